"""The grammar of the device IR: every record a program is made of.

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
    load_at    AddressAttrs   pointers, offsets, mask         what is at addresses of the user's; else as load
    store_at   AddressAttrs   value, pointers, offsets, mask  the same for a store; it has no result
    pointwise  PointwiseAttrs operands, broadcast             see pointwise.py for the names
    reduce     ReduceAttrs    value                           drops the dimensions it reduces
    dot        DotAttrs       lhs, rhs[, acc][, scales]       [.., M, K] x [.., K, N] (+ acc)
    view       ViewAttrs      value                           reshape, permute, broadcast
    atomic     MemoryAttrs    values, index values            read-modify-write; gives the values from before
    mask       MaskAttrs      value                           fill lanes out of range along some dimensions
    scan       ScanAttrs      values                          running combination along a dimension
    fold       FoldAttrs      values                          combination of a dimension, which disappears
    gather     GatherAttrs    value, index                    lanes of one value picked by another
    sort       None           value                           ascending along the last dimension
    join       None           two values                      a new last dimension of 2
    split      None           value                           both halves of a last dimension of 2
    print      PrintAttrs     values                          from every program; or a stop in the debugger
    check      CheckAttrs     index values, mask              an error where it does not hold (checked mode only)
    asm        AsmAttrs       values                          inline assembly on elements
    inline     InlineAttrs    values                          target source of the user's
    seed       SeedAttrs      -                               one of the seeds that the launch has drawn
    random     RandomAttrs    seed, offset                    numbers that depend on seed and offset only
    random4    None           seed, offset                    four uniform numbers in [0, 1) that depend on both only
    barrier    None           -                               the program's threads wait for each other's accesses
    for        ForAttrs       carried, bounds                 sequential loop; region params are the carried values
    while      WhileAttrs     carried                         a region that gives the condition, and the body
    if         None           condition                       two regions; results merge

The region of a scan or a fold combines two sets of scalars into one.

Everything is immutable. Values, and ops, are identified by their numbers: each is given once in a program, by ``build.py``.
A rewrite keeps the number of an op that survives, however it changes, and gives another one to a copy. Within a program
one object stands for each value, so that ``is`` tells values apart too.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, Union

import torch

from ..._shapes import Dim, Dims, Expr, Number
from ...fields import Fragment
from ..source import Location, Place
from .structure import Structural


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One SSA value: a tile of ``dtype`` with ``dims`` (``()`` is a scalar). ``name`` is the user's, where known."""

    number: int
    dtype: torch.dtype
    dims: Dims
    name: str = ""


Operand = Value | int | float | bool


# --- attributes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NumberAttrs:
    expr: Expr


TileField = Literal["begin", "end", "id", "count", "block_size", "index"]


@dataclass(frozen=True, slots=True)
class TileAttrs:
    """``field`` of the active loop over ``block``; ``index`` is the scalar index of an ``hl.grid`` loop."""

    block: int
    field: TileField


@dataclass(frozen=True, slots=True)
class IotaAttrs:
    """``relative``: count from ``start`` instead of from the position of the block's loop."""

    block: int
    relative: bool
    start: int = 0
    step: int = 1


@dataclass(frozen=True, slots=True)
class Index:
    """How one dimension of a host tensor is addressed. One of size 1 is a scalar 0, whatever the dimensions of its index.

    - ``block``: the indices of ``block`` plus ``shift`` (plus operand ``operand``, a scalar), along result
      dimension ``positions[0]``.
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
    """One memory access. ``slot`` numbers loads and stores together in program order and survives cloning.

    ``load_slot`` numbers the loads whose eviction policy the user left open. ``mask`` is the operand that holds the
    user's extra mask. ``rank`` is the number of dimensions of the accessed tile. ``atomic`` is the operation of an
    atomic (its slots are numbered by themselves), ``sem`` its memory order. What an ``unread`` atomic gives, nothing uses.
    The memory of a ``padded`` load has whole tiles, with zeros out of range. Lanes of an ``aligned`` access begin at multiples of so
    many elements of its tensor.
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
    unread: bool = False
    padded: bool = False
    aligned: int = 0


@dataclass(frozen=True, slots=True)
class AddressAttrs:
    """An access to memory that no tensor of the program may be known to own: at pointers (addresses in bytes, int64) plus
    offsets, in elements of ``dtype``, which broadcast together. Every lane has its mask."""

    dtype: torch.dtype
    eviction: str | None = None


#: The ``storage`` of memory that no tensor of a program is known to own; those of tensors count from 1.
ELSEWHERE = 0


def unaddressed(indices: tuple[Index, ...], operands: Sequence[Operand | None], dims: Dims) -> tuple[int, ...]:
    """Dimensions of an accessed tile over which no index walks: those of indices into dimensions of size 1."""
    walked: set[int] = set()
    for index in indices:
        value = operands[index.operand] if index.kind == "tensor" and index.operand is not None else None
        if isinstance(value, Value):
            pairs = zip(index.positions[::-1], value.dims[::-1], strict=False)
            walked.update(position for position, dim in pairs if not dim.is_one)
        else:
            walked.update(index.positions)
    return tuple(at for at, dim in enumerate(dims) if at not in walked and not dim.is_one)


@dataclass(frozen=True, slots=True)
class PointwiseAttrs:
    name: str


@dataclass(frozen=True, slots=True)
class VjpAttrs:
    """The function that gives the value: ``name`` is a row of ``autodiff/functions.py``. ``over`` are the dimensions of its
    first input that the value lacks."""

    name: str
    over: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReduceAttrs:
    """``name`` is a row of ``reductions.REDUCTIONS``, ``dims`` are positions in the operand, ascending. One that is
    ``kept`` must not move out of its loop."""

    name: str
    dims: tuple[int, ...]
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Scaled:
    """The microscaling formats of the operands of a dot, and which operands of the op are their scales.

    Scales are e8m0 exponents as uint8, one per row of the operand, or column of the right one, and per 32 numbers along
    K: ``[M, K / 32]`` and ``[N, K / 32]``. An operand of format ``e2m1`` holds two numbers per element along K.
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
    """``precision`` is ``tf32``, ``tf32x3`` or ``ieee`` (it matters for fp32 operands only). ``single``: the batch has one
    matrix, which the matrix unit takes as it is."""

    precision: str
    scaled: Scaled | None = None
    single: bool = False


@dataclass(frozen=True, slots=True)
class ViewAttrs:
    """``order`` is the permutation of a ``permute``."""

    name: Literal["reshape", "permute", "broadcast"]
    order: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MaskAttrs:
    """Lanes out of range along dimensions ``dims`` become ``fill``."""

    dims: tuple[int, ...]
    fill: int | float | bool


@dataclass(frozen=True, slots=True)
class ScanAttrs:
    """``identity``: neutral elements of the operands, where known; a reversed scan fills lanes out of range with them."""

    dim: int
    reverse: bool
    identity: tuple[int | float | bool, ...] | None = None


@dataclass(frozen=True, slots=True)
class FoldAttrs:
    """``other``: what lanes out of range count as, one number per operand."""

    dim: int
    other: tuple[int | float | bool, ...]


@dataclass(frozen=True, slots=True)
class GatherAttrs:
    """``given``: the user's own index, which may be out of range. ``doubled``: how often the value is put beside itself along
    ``dim`` before lanes are picked."""

    dim: int
    given: bool = False
    doubled: int = 0


@dataclass(frozen=True, slots=True)
class RandomAttrs:
    """``uniform`` numbers in [0, 1), ``normal`` ones, or ``bits``: 32 random bits as int32."""

    name: Literal["uniform", "normal", "bits"]


@dataclass(frozen=True, slots=True)
class SeedAttrs:
    """Element ``at`` of ``tensor``, which holds the seeds that a launch draws before it, and which nothing writes."""

    tensor: int
    at: int


@dataclass(frozen=True, slots=True)
class PrintAttrs:
    """``stops``: nothing is printed, the debugger takes over (in an interpreter only)."""

    prefix: str
    stops: bool = False


@dataclass(frozen=True, slots=True)
class CheckAttrs:
    """What must hold of the lanes of an access, or a gather, of a tile of dimensions ``dims``: ``message`` says what does not.

    With ``index``, that it is at least 0 and below ``size``, or the lanes of a dimension. Without, that the operand holds nothing that only memory
    which nobody has written does (``language/_unwritten.py``). ``mask`` is the operand that holds the access's extra mask.
    """

    message: str
    dims: Dims
    index: Index | None = None
    size: Number | Dim = 0
    mask: int | None = None


InlineEffect = Literal["none", "reads", "any"]


@dataclass(frozen=True, slots=True)
class Definition:
    """A function, constant or import of the user's that a module must contain, called ``name`` unless something else is.
    ``text`` has ``{0}`` for its name and ``{1}``, ``{2}`` ... for those of ``uses``."""

    name: str
    text: str
    uses: tuple[Definition, ...] = ()


@dataclass(frozen=True, slots=True)
class InlineAttrs:
    """Source of the user's in the target's language: ``lines`` with ``{0}``, ``{1}`` ... for the operands, after them the
    pointers to ``tensors``, and then the names of ``definitions``; the last line is an expression of the results.
    ``effect``: it computes with its operands alone, ``reads`` the tensors, or may do ``any`` thing."""

    lines: tuple[str, ...]
    definitions: tuple[Definition, ...] = ()
    tensors: tuple[int, ...] = ()
    effect: InlineEffect = "any"


@dataclass(frozen=True, slots=True)
class AsmAttrs:
    """Inline assembly on elements, with the arguments of ``hl.inline_asm_elementwise``."""

    asm: str
    constraints: str
    dtypes: tuple[torch.dtype, ...]
    is_pure: bool
    pack: int
    places: str


Bound = Union[int, Expr, "OperandRef"]


@dataclass(frozen=True, slots=True)
class OperandRef:
    """Operand ``at`` of the op that holds the attribute."""

    at: int


@dataclass(frozen=True, slots=True)
class Split:
    """Of an axis, one of ``count`` runs of whole tiles: the one whose number is the index of the scalar axis ``block``."""

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
    #: Lengths of the rows of a jagged loop: lanes beyond a row's own length are out of range.
    jagged: OperandRef | None = None
    #: Of a flattened grid: the axes this one stands for, the slowest among the lanes of a tile first.
    merged: tuple[LoopAxis, ...] = ()
    #: Of a loop whose tiles are spread over several programs: those of this one.
    split: Split | None = None
    #: Of a loop that begins up to so many elements, less one, before the first that is in range.
    aligned: int = 0
    #: Of a loop whose tiles have no lanes out of range, whatever its bounds look like.
    whole: bool = False
    #: Of a grid whose last tile has code of its own, so that the others need no masks.
    parted: bool = False
    #: Of a loop that walks its tiles from the last one to the first.
    backwards: bool = False


@dataclass(frozen=True, slots=True)
class Variables:
    """How the values that a loop carries live in variables, for generated code that has those: positions of values.

    - ``taken``: nothing else reads the initial value, so that its variable may become that of the carried value.
    - ``fresh``: it begins as a value of its own, because it may take the place of another one.
    - ``updated``: what the body yields is assigned where it is computed, as nothing reads the old value from there on.
    """

    taken: frozenset[int]
    fresh: frozenset[int]
    updated: frozenset[int]


@dataclass(frozen=True, slots=True)
class ForAttrs:
    """``chunked``: the loop was made from a full-width block, by rolling a reduction. ``carried``: how many operands
    (the first ones) are initial values of the region's params; the others are bounds. ``like`` is the number that the loop had of
    which it is a run, 0 for one that is whole. ``variables`` are known from the code generator's own steps on."""

    axes: tuple[LoopAxis, ...]
    carried: int
    chunked: bool = False
    like: int = 0
    variables: Variables | None = None


@dataclass(frozen=True, slots=True)
class WhileAttrs:
    """``variables`` as in ``ForAttrs``."""

    variables: Variables | None = None


#: A row of ``ops.OPS``.
Kind = str
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
        """Those of an op that is known to have attributes of ``kind``."""
        assert isinstance(self.attrs, kind), self.kind
        return self.attrs

    def values(self) -> Iterator[Value]:
        """The operands that are values."""
        return (operand for operand in self.operands if isinstance(operand, Value))

    def reads(self) -> Iterator[Value]:
        """The values it reads itself: its operands, and what its regions yield."""
        yield from self.values()
        for region in self.regions:
            yield from (result for result in region.results if isinstance(result, Value))

    def walk(self) -> Iterator[Op]:
        """This op and the ops in its regions, in program order."""
        yield self
        for region in self.regions:
            yield from region.walk()


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    params: tuple[Value, ...]
    ops: tuple[Op, ...]
    results: tuple[Operand, ...]

    def walk(self) -> Iterator[Op]:
        for op in self.ops:
            yield from op.walk()


def accumulator_of(op: Op) -> Value | None:
    """What a dot adds its product to."""
    scaled = op.attrs.scaled if isinstance(op.attrs, DotAttrs) else None
    scales = scaled.scales if scaled is not None else ()
    rest = [operand for at, operand in enumerate(op.operands) if at >= 2 and at not in scales]
    assert all(isinstance(operand, Value) for operand in rest) and len(rest) <= 1
    return rest[0] if rest else None  # type: ignore[return-value]


# --- the program ---------------------------------------------------------------------------------------------------------

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

    ``extent`` is the number of elements its loops cover (the largest, when they differ), None if unknown. ``size`` may be
    a function of tunables, or that of another block, as it is or divided by a power of two.
    ``registered`` blocks keep one size over several loops. A block that flattening made has the elements, and the size,
    of the blocks ``merged`` together; one that stands for a ``part`` of the tiles of another has no loop of its own.
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
        """Whether its size is a slot of ``block_sizes``."""
        return self.kind == "tile" and self.size is None and not self.merged and self.part is None

    @property
    def base(self) -> int | None:
        """The block whose size gives its own."""
        leaves = self.size.leaves() if isinstance(self.size, Expr) else ()
        return next((leaf.args[0] for leaf in leaves if leaf.op == "block"), None)

    @property
    def twin_of(self) -> int | None:
        """The block whose size it has, which is a part of no other."""
        return self.size.args[0] if isinstance(self.size, Expr) and self.size.op == "block" else None

    @property
    def label(self) -> str:
        """What tells its names in generated code from those of other blocks."""
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
    #: Whether it begins at a multiple of 16 bytes, provided that the arguments do.
    aligned: bool = True
    #: Whether it is made right before the launch, with nothing in it; ``source`` is then the variable that holds it.
    made: bool = False

    @property
    def ndim(self) -> int:
        return len(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What a launch relies on of a tensor that host code made, which the host expression ``source`` gives.

    ``shape`` and ``strides`` count elements, None for what is read off it anyway. ``device`` is None for that of the
    arguments. ``made`` names it in every variant of the program.
    """

    source: str
    made: str
    dtype: torch.dtype
    shape: tuple[Number | None, ...]
    strides: tuple[Number | None, ...]
    device: torch.device | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """One grid loop: the axes it spreads over programs, and what each program does."""

    axes: tuple[LoopAxis, ...]
    body: Region
    location: Location | None = None
    #: Roots of one phase run at the same time; a later phase sees what earlier ones wrote.
    phase: int = 0
    #: Roots of one launch stand in one place of the host code, and their kernels take the same arguments.
    launch: int = 0


class Launch(ast.stmt):
    """Where the host code launches kernels: a statement in place of grid loops. ``number`` is that of their roots."""

    _fields = ("number",)

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.number = number


class Keep(ast.stmt):
    """``name = value`` in host code, if a launch needs ``name``."""

    _fields = ("name", "value")

    def __init__(self, name: str = "", value: ast.expr | None = None) -> None:
        super().__init__()
        self.name, self.value = name, value or ast.Constant(None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostModule(Structural):
    """The user's function around the device loops.

    ``function`` is its syntax tree, with a ``Launch`` in place of grid loops, which may stand in a loop.
    ``registered`` maps calls of ``hl.register_block_size`` (by line and column) to block ids, ``tunable_calls`` those
    of ``hl.register_tunable`` to names; ``specialized_calls`` are calls of ``hl.specialize``, ``placed_calls`` calls of
    factories that get the device of the tensor ``placed_by``. ``symbols`` gives the host expression of every run-time number, by name;
    ``deferred_symbols`` those that are known only right before the launch. ``captures`` maps expressions whose
    results launches may need (by first and last line and column) to the names of these: one for each time that the
    expression is evaluated, counted from the beginning of an iteration where it stands in a loop around a launch.
    ``source_globals`` are the globals of the user's module that the function names: the module that one is, "" for
    anything else.
    """

    name: str
    function: ast.FunctionDef
    source_module: str
    device_source: str
    registered: Mapping[tuple[int, int], int]
    tunable_calls: Mapping[tuple[int, int], str]
    specialized_calls: frozenset[tuple[int, int]]
    symbols: Mapping[str, str]
    deferred_symbols: Mapping[str, str]
    captures: Mapping[Place, tuple[str, ...]]
    source_globals: Mapping[str, str]
    #: What is compared before each launch.
    checks: tuple[tuple[Check, ...], ...] = ()
    #: A parameter that holds a tensor from the first statement to the last, if there is one.
    reference: str = ""
    #: With dynamic shapes: what the code assumes of sizes and strides of the arguments.
    argument_checks: tuple[str, ...] = ()
    placed_calls: frozenset[tuple[int, int]] = frozenset()
    placed_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program(Structural):
    tensors: tuple[HostTensor, ...]
    blocks: tuple[Block, ...]
    roots: tuple[Root, ...]
    host: HostModule
    index_dtype: torch.dtype
    #: Config keys of the kernel's own, with their values.
    tunables: tuple[tuple[str, Fragment], ...] = ()

    def walk(self) -> Iterator[Op]:
        for root in self.roots:
            yield from root.body.walk()

    def map_regions(self, change: Callable[[Region], Region]) -> Program:
        """A copy with every root body changed."""
        return replace(self, roots=tuple(replace(root, body=change(root.body)) for root in self.roots))
