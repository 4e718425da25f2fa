"""Grammar of the device IR: every record that a program consists of.

::

    Program  = tensors, blocks, roots, host code
    Root     = axes, Region                     one grid loop; its body runs once per program
    Region   = params, ops, results
    Op       = number, kind, operands, results, attrs, regions, location
    operand  = Value | number

    kind       attrs          operands                        meaning
    number     NumberAttrs    -                               a host number, passed as a kernel argument
    tile       TileAttrs      -                               begin, end, id, count ... of a loop over a block
    iota       IotaAttrs      -                               the indices of a block (or 0, 1, 2 ... when relative)
    full       None           fill                            a value of the result's shape
    load       MemoryAttrs    index values, mask              lanes out of range read 0
    store      MemoryAttrs    value, index values, mask       lanes out of range are not written
    load_at    AddressAttrs   pointers, offsets, mask         a load through the user's pointers
    store_at   AddressAttrs   value, pointers, offsets, mask  a store through the user's pointers; no result
    pointwise  PointwiseAttrs operands, broadcast             see pointwise.py for the names
    reduce     ReduceAttrs    value                           drops the dimensions it reduces
    dot        DotAttrs       lhs, rhs[, acc][, scales]       [.., M, K] x [.., K, N] (+ acc)
    view       ViewAttrs      value                           reshape, permute, broadcast
    atomic     MemoryAttrs    values, index values            read-modify-write; returns the old values
    mask       MaskAttrs      value                           fill lanes out of range along some dimensions
    scan       ScanAttrs      values                          prefix scan along a dimension
    fold       FoldAttrs      values                          reduction of a dimension by a user's function
    gather     GatherAttrs    value, index                    lanes of one value selected by another
    sort       None           keys[, elements, descending]    ascending keys, in that order of these elements if given
    join       None           two values                      a new last dimension of 2
    split      None           value                           both halves of a last dimension of 2
    print      PrintAttrs     values                          from every program; or a stop in the debugger
    check      CheckAttrs     index values, mask              an error if the condition fails (checked mode only)
    asm        AsmAttrs       values                          elementwise inline assembly
    inline     InlineAttrs    values                          the user's inline source for the target
    seed       SeedAttrs      -                               one of the seeds that the launch has drawn
    random     RandomAttrs    seed, offset                    random numbers: a function of seed and offset only
    random4    None           seed, offset                    four uniform numbers in [0, 1), likewise
    barrier    None           -                               thread-block barrier with memory order
    for        ForAttrs       carried, bounds                 sequential loop; region params are the carried values
    while      WhileAttrs     carried                         a region with the condition, and the body
    if         None           condition                       two regions; results merge

The region of a scan or a fold combines two sets of scalars into one. All records are immutable. Numbers identify
values and ops; ``build.py`` assigns each number once in a program. A rewrite keeps the number of an op that survives,
however it changes, and gives a new one to a copy. Within a program one object represents each value, so ``is`` also
distinguishes values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar, Union

import torch

from ..._shapes import Dim, Dims, Expr, Number
from ..._support.records import dataclass, replace
from ...fields import Fragment
from ..source import Location
from .host_module import HostModule, Member
from .preorder import Ordered, preorder
from .structure import Structural


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One SSA value: a tile of ``dtype`` with ``dims`` (``()`` is a scalar). ``name`` is the user's, where known."""

    number: int
    dtype: torch.dtype
    dims: Dims
    name: str = ""


Operand = Value | int | float | bool


# --- attributes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NumberAttrs:
    expr: Expr


TileField = Literal["begin", "end", "id", "count", "block_size", "index"]


@dataclass(frozen=True, slots=True)
class TileAttrs:
    """One property of a loop's tile: ``field`` of the active loop over ``block``, or the ``index`` of ``hl.grid``."""

    block: int
    field: TileField


@dataclass(frozen=True, slots=True)
class IotaAttrs:
    """Indices of a block. If ``relative``, they count from ``start``, not from the position of the block's loop."""

    block: int
    relative: bool
    start: int = 0
    step: int = 1


@dataclass(frozen=True, slots=True)
class Index:
    """Addressing of one dimension of a host tensor. A dimension of size 1 has the scalar index 0, whatever the
    dimensions of its index.

    - ``block``: the indices of ``block`` plus ``shift`` (plus operand ``operand``, a scalar), along result dimension
      ``positions[0]``.
    - ``scalar``: ``shift`` plus operand ``operand``; no result dimension.
    - ``tensor``: operand ``operand``, an integer value whose dimensions are the result dimensions ``positions``.
    """

    kind: Literal["block", "scalar", "tensor"]
    block: int | None = None
    positions: tuple[int, ...] = ()
    shift: Number = 0
    operand: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryAttrs:
    """One memory access.

    - ``slot`` numbers loads and stores together in program order and survives cloning. Atomics have slots of their own.
      ``load_slot`` numbers the loads whose eviction policy the user left open.
    - ``mask`` is the operand that holds the user's extra mask, ``rank`` the number of dimensions of the accessed tile.
    - ``atomic`` is the operation of an atomic, ``sem`` its memory order, ``scope`` the programs that see it: those of
      this GPU (``gpu``) or of all GPUs (``sys``). The result of an ``unread`` atomic has no use.
    - ``padded``: memory of whole tiles, with zeros out of range. ``aligned``: lanes begin at its multiples; 0 if unknown.
      ``based``: pointers begin with the tile. ``lanes``: most lanes of a thread at once; 0 for a vector.
    - ``run``: last dimensions whose lanes are one run with the one before.
    - ``mark``: operand with the mark of the words. A load waits for it; two more are its note, and nanoseconds until then.
    """

    tensor: int
    indices: tuple[Index, ...]
    slot: int
    rank: int
    load_slot: int | None = None
    mask: int | None = None
    eviction: str | None = None
    atomic: str | None = None
    sem: str = "relaxed"
    scope: str = "gpu"
    unread: bool = False
    padded: bool = False
    aligned: int = 0
    run: int = 0
    lanes: int = 0
    based: bool = False
    mark: int | None = None


@dataclass(frozen=True, slots=True)
class AddressAttrs:
    """An access to memory that may belong to no known tensor of the program.

    The addresses are pointers (in bytes, int64) plus offsets (in elements of ``dtype``), which broadcast together.
    Every lane has its mask.
    """

    dtype: torch.dtype
    eviction: str | None = None


ELSEWHERE = 0  #: The ``storage`` of memory that belongs to no known tensor of a program; those of tensors count from 1.


@dataclass(frozen=True, slots=True)
class PointwiseAttrs:
    name: str


@dataclass(frozen=True, slots=True)
class VjpAttrs:
    """The function that computes the value: ``name`` is a row of ``autodiff/functions.py``. ``over`` are the dimensions
    of its first input that the value lacks."""

    name: str
    over: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReduceAttrs:
    """A reduction: ``name`` is a row of ``reductions.REDUCTIONS``, ``dims`` are positions in the operand, ascending. A
    ``kept`` reduction must not move out of its loop."""

    name: str
    dims: tuple[int, ...]
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Scaled:
    """Microscaling formats of the operands of a dot, and the op's operands that are their scales.

    Scales are e8m0 exponents as uint8. There is one scale per row of the left operand, or column of the right one, and
    per 32 elements of K: ``[M, K / 32]`` and ``[N, K / 32]``. An operand of format ``e2m1`` packs two numbers of K into
    each element.
    """

    lhs_format: str
    rhs_format: str
    lhs_scale: int | None = None
    rhs_scale: int | None = None

    @property
    def scales(self) -> tuple[int, ...]:
        return tuple(at for at in (self.lhs_scale, self.rhs_scale) if at is not None)


@dataclass(frozen=True, slots=True)
class DotAttrs:
    """A matmul. ``precision`` is ``tf32``, ``tf32x3`` or ``ieee`` (it matters for fp32 operands only). ``single``: the
    batch has one matrix, which the MMA takes without a reshape."""

    precision: str
    scaled: Scaled | None = None
    single: bool = False


@dataclass(frozen=True, slots=True)
class ViewAttrs:
    """A view; ``order`` is the permutation of a ``permute``."""

    name: Literal["reshape", "permute", "broadcast"]
    order: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MaskAttrs:
    """A mask that sets lanes out of range along dimensions ``dims`` to ``fill``."""

    dims: tuple[int, ...]
    fill: int | float | bool


@dataclass(frozen=True, slots=True)
class ScanAttrs:
    """A scan. ``identity`` holds the identity elements of the operands, where known. A reversed scan fills lanes out of
    range with them."""

    dim: int
    reverse: bool
    identity: tuple[int | float | bool, ...] | None = None


@dataclass(frozen=True, slots=True)
class FoldAttrs:
    """A fold. ``other`` holds the values of lanes out of range, one number per operand."""

    dim: int
    other: tuple[int | float | bool, ...]


@dataclass(frozen=True, slots=True)
class GatherAttrs:
    """A gather. ``given``: the index is the user's own and may be out of range. ``doubled``: the number of times that
    the value is concatenated with itself along ``dim`` before the gather."""

    dim: int
    given: bool = False
    doubled: int = 0


@dataclass(frozen=True, slots=True)
class RandomAttrs:
    """Random numbers: ``uniform`` in [0, 1), ``normal``, or ``bits``, 32 random bits as int32."""

    name: Literal["uniform", "normal", "bits"]


@dataclass(frozen=True, slots=True)
class SeedAttrs:
    """Element ``at`` of ``tensor``, which holds the seeds that a launch draws beforehand. No kernel writes them."""

    tensor: int
    at: int


@dataclass(frozen=True, slots=True)
class PrintAttrs:
    """A print. ``stops``: the debugger takes over instead (in an interpreter only)."""

    prefix: str
    stops: bool = False


@dataclass(frozen=True, slots=True)
class CheckAttrs:
    """A condition on the lanes of an access or gather of a tile with dimensions ``dims``. ``message`` describes its
    violation.

    With ``index``, the index must be at least 0 and below ``size``, or below the lanes of a dimension. Without, the
    operand must not hold the fill pattern of unwritten memory (``language/_unwritten.py``). ``mask`` is the operand
    that holds the access's extra mask.
    """

    message: str
    dims: Dims
    index: Index | None = None
    size: Number | Dim = 0
    mask: int | None = None


InlineEffect = Literal["none", "reads", "any"]


@dataclass(frozen=True, slots=True)
class Definition:
    """A user's function, constant or import that a module must contain. It is called ``name`` unless that name is
    taken. ``text`` has ``{0}`` for its name and ``{1}``, ``{2}`` ... for those of ``uses``."""

    name: str
    text: str
    uses: tuple[Definition, ...] = ()


@dataclass(frozen=True, slots=True)
class InlineAttrs:
    """The user's source in the target's language.

    ``lines`` have ``{0}``, ``{1}`` ... for the operands, then the pointers to ``tensors``, then the names of
    ``definitions``. The last line is an expression of the results. ``effect``: ``none`` computes with its operands
    alone, ``reads`` reads the tensors, ``any`` may have any effect. ``waits``: it waits for programs of other GPUs.
    """

    lines: tuple[str, ...]
    definitions: tuple[Definition, ...] = ()
    tensors: tuple[int, ...] = ()
    effect: InlineEffect = "any"
    waits: bool = False


@dataclass(frozen=True, slots=True)
class AsmAttrs:
    """Elementwise inline assembly, with the arguments of ``hl.inline_asm_elementwise``."""

    asm: str
    constraints: str
    dtypes: tuple[torch.dtype, ...]
    is_pure: bool
    pack: int
    places: str


Bound = Union[int, Expr, "OperandRef"]


@dataclass(frozen=True, slots=True)
class OperandRef:
    """A reference to operand ``at`` of the op that holds the attribute."""

    at: int


@dataclass(frozen=True, slots=True)
class Split:
    """One of ``count`` runs of whole tiles of an axis. The index of the scalar axis ``block`` selects the run."""

    block: int
    count: int


@dataclass(frozen=True, slots=True)
class LoopAxis:
    """One dimension of a loop. ``scalar`` axes (``hl.grid``) advance by ``step`` and have no block dimension."""

    block: int
    begin: Bound
    end: Bound
    scalar: bool = False
    step: Number = 1
    #: Row lengths of a jagged loop: lanes beyond the length of their row are out of range.
    jagged: OperandRef | None = None
    #: For a flattened grid: the original axes, the slowest-varying among the lanes of a tile first.
    merged: tuple[LoopAxis, ...] = ()
    #: For a loop whose tiles are distributed over several programs: the tiles of this program.
    split: Split | None = None
    #: For a loop that begins up to this many elements, less one, before the first element in range.
    aligned: int = 0
    #: True if no tile of the loop has lanes out of range, whatever its bounds.
    whole: bool = False
    #: True for a grid whose last tile has its own code, so that the other tiles need no masks.
    parted: bool = False
    backwards: bool = False  # True for a loop that visits its tiles from the last to the first.


@dataclass(frozen=True, slots=True)
class Variables:
    """Positions of carried values by the way that generated code keeps them in variables.

    - ``taken``: no other op reads the initial value, so its variable may become that of the carried value.
    - ``fresh``: the variable starts with a copy, because the carried value may replace another value.
    - ``updated``: the yielded value is assigned where it is computed, since no later op reads the old value.
    """

    taken: frozenset[int]
    fresh: frozenset[int]
    updated: frozenset[int]


@dataclass(frozen=True, slots=True)
class ForAttrs:
    """A sequential loop.

    - ``chunked``: the loop was made from a full-width block, by rolling a reduction.
    - ``carried``: the number of leading operands that are initial values of the region's params; the others are bounds.
    - ``like``: the number of the original loop if this loop runs a range of it; 0 for a whole loop.
    - ``variables``: set by the code generator's own steps.
    """

    axes: tuple[LoopAxis, ...]
    carried: int
    chunked: bool = False
    like: int = 0
    variables: Variables | None = None


@dataclass(frozen=True, slots=True)
class WhileAttrs:
    """A while loop; ``variables`` as in ``ForAttrs``."""

    variables: Variables | None = None


Kind = str  #: The key of a row of ``ops.OPS``.
A = TypeVar("A")


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    number: int
    kind: Kind
    operands: tuple[Operand, ...]
    results: tuple[Value, ...]
    attrs: Any
    regions: tuple[Region, ...] = ()
    location: Location | None = None

    @property
    def result(self) -> Value:
        return self.results[0]

    def attributes(self, kind: type[A]) -> A:
        """Return the attributes of an op that is known to have attributes of ``kind``."""
        assert isinstance(self.attrs, kind), self.kind
        return self.attrs

    def values(self) -> Iterator[Value]:
        """Return the operands that are values."""
        return iter([operand for operand in self.operands if isinstance(operand, Value)])

    def reads(self) -> Iterator[Value]:
        """Yield the values that the op itself reads: its operands, and the results of its regions."""
        yield from self.values()
        for region in self.regions:
            yield from (result for result in region.results if isinstance(result, Value))

    def walk(self) -> Iterator[Op]:
        """Return an iterator over this op and the ops in its regions, in program order."""
        return preorder((self,))


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    params: tuple[Value, ...]
    ops: tuple[Op, ...]
    results: tuple[Operand, ...]

    def walk(self) -> Iterator[Op]:
        return preorder(self.ops)


# --- the program ------------------------------------------------------------------------------------------------------

BlockKind = Literal["tile", "grid", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Part ``at`` of ``count`` equal parts of a tile of ``block``."""

    block: int
    at: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One iteration dimension.

    - ``tile``: from ``hl.tile`` or ``hl.register_block_size``; its size is ``size`` if fixed, else from the config.
    - ``grid``: from ``hl.grid``; size 1, no dimension.
    - ``full``: a whole dimension ``:`` of ``extent`` elements; its size is the next power of two, or a chunk.

    ``extent`` is the number of elements that its loops cover (the largest, when they differ), None if unknown. ``size``
    may be a function of tunables, or the size of another block, possibly divided by a power of two. ``registered``
    blocks keep one size over several loops. A flattened block has the product of the extents and sizes of its
    ``merged`` blocks. A block with ``part`` covers a fraction of another block's tile and has no loop of its own.
    """

    id: int
    kind: BlockKind
    extent: Number | None
    size: Number | None = None
    name: str = ""
    min_size: int = 1
    max_size: int | None = None
    registered: bool = False
    merged: tuple[int, ...] = ()
    part: Part | None = None

    @property
    def tunable(self) -> bool:
        """True if the size of the block is a slot of ``block_sizes``."""
        return self.kind == "tile" and self.size is None and not self.merged and self.part is None

    @property
    def base(self) -> int | None:
        """The block that this block's size depends on."""
        leaves = self.size.leaves() if isinstance(self.size, Expr) else ()
        return next((leaf.args[0] for leaf in leaves if leaf.op == "block"), None)

    @property
    def twin_of(self) -> int | None:
        """The block whose size this block has, undivided."""
        return self.size.args[0] if isinstance(self.size, Expr) and self.size.op == "block" else None

    @property
    def label(self) -> str:
        """The suffix of the block's names in generated code."""
        if self.part is not None:
            return f"{self.part.block}_part"
        return "_".join(map(str, self.merged)) or str(self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTensor:
    """A tensor the host passes to the kernel. ``source`` is the host expression for it, ``storage`` its memory.

    ``shape`` and ``strides`` count elements; aliases share ``storage``.
    """

    id: int
    name: str
    source: str
    dtype: torch.dtype
    shape: tuple[Number, ...]
    strides: tuple[Number, ...]
    storage: int
    aligned: bool = True  # If all arguments begin at multiples of 16 bytes, so does it.
    place: int = 0  # Bytes after a multiple of 16 at which it begins, seen when binding aligned arguments.
    begin: int | None = 0  # Bytes from the begin of its memory, seen when binding. None if not known.
    part: tuple[int, int] | None = None  # Number of the tensor that it is a part of, and the certain bytes before it.
    #: True if it is allocated, uninitialized, right before the launch; ``source`` is then the variable that holds it.
    made: bool = False
    member: Member | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """One grid loop: the axes it distributes over programs, and the body that each program runs."""

    axes: tuple[LoopAxis, ...]
    body: Region
    location: Location | None = None
    phase: int = 0  # Roots of one phase run concurrently; a later phase sees the writes of earlier ones.
    #: Roots of one launch have one position in the host code, and their kernels take the same arguments.
    launch: int = 0
    spread: int = 0  # Dimensions of loops inside it in the source that became its last axes here, or were unrolled.
    joined: int = 0  # Axes of the source whose lines are rows of another axis here.
    sliced: bool = False  # Whole dimensions of the source have a load for each of their elements here.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program(Structural, Ordered):
    tensors: tuple[HostTensor, ...]
    blocks: tuple[Block, ...]
    roots: tuple[Root, ...]
    host: HostModule
    index_dtype: torch.dtype
    tunables: tuple[tuple[str, Fragment], ...] = ()  # The kernel's own config keys, with their values.

    def walk(self) -> Iterator[Op]:
        return self.in_order(self.roots)

    def map_regions(self, change: Callable[[Region], Region]) -> Program:
        """Return a copy with every root body changed."""
        return replace(self, roots=tuple(replace(root, body=change(root.body)) for root in self.roots))
