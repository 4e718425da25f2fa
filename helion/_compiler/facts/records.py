"""Facts: what heuristics and the resource model know about a kernel.

Everything here follows from the device IR alone: never from a config, a kernel's name or a backend. An *axis* is a
block of the program and goes by the block's id. A *region* is a straight run of ops: the body of a grid loop, of a
sequential loop, or of one branch; regions are numbered in program order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

import torch

#: One tile in registers: the axes it spans and the bytes of one element. A dimension of constant size multiplies the
#: bytes, so ``itemsize * product of the sizes of the axes`` is the tile's exact size.
LiveTile = tuple[tuple[int, ...], int]
LiveTiles = tuple[LiveTile, ...]

AxisKind = Literal["tile", "fixed", "full", "scalar"]
RegionKind = Literal["root", "loop", "branch"]
Category = Literal["full_slice", "full_grid", "user_tile", "grid_tile", "fixed", "declined"]
Layout = Literal["k_major", "mn_major", "strided"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AxisFact:
    """One block of the program.

    - ``tile``: its size comes from ``block_sizes``.
    - ``fixed``: its size is ``size``, given by the kernel.
    - ``full``: a whole dimension, held at once and padded to a power of two; in chunks if ``rollable`` and wanted.
    - ``scalar``: ``hl.grid``; one element at a time, no dimension.

    ``extent`` is the true number of elements (the value seen when binding, where sizes are dynamic; then ``static`` is
    False), None when it depends on data or on another tile. No elements count as one: nothing runs then, but a config is
    chosen all the same. ``padded`` is its next power of two, at least ``min_size`` (0 when unknown).
    ``mean`` is an estimate where the extent depends on data: how far the tensors reach that the axis walks over, shared
    among the programs that walk over parts of them; None where there are none. Half of the other axis where the extent
    depends on one tile alone, as below or above a diagonal (``hl.tile(other.end)``, ``hl.tile(other.begin, n)``).
    ``outer`` is the axis whose tile bounds this one (``hl.tile(outer.begin, outer.end)``). ``roots`` are
    the numbers of the grid loops that walk over the axis; ``min_size`` and ``max_size`` are the kernel's own bounds.
    Where a fixed size follows from a tunable of the kernel, ``chosen_by`` is its name, and ``choices`` has its values with
    the size for each.
    """

    block_id: int
    name: str
    kind: AxisKind
    extent: int | None
    padded: int
    static: bool
    size: int | None
    rollable: bool
    on_grid: bool
    roots: tuple[int, ...]
    outer: int | None
    min_size: int
    max_size: int | None
    mean: int | None = None
    chosen_by: str = ""
    choices: tuple[tuple[object, int], ...] = ()

    @property
    def tunable(self) -> bool:
        """Whether the size is a slot of ``block_sizes``."""
        return self.kind == "tile"


@dataclass(frozen=True, kw_only=True, slots=True)
class RegionFact:
    """One region. ``axes`` are those its grid or loop walks over; ``parent`` is None for roots, and ``root`` numbers
    the grid loops from 0."""

    region: int
    kind: RegionKind
    root: int
    parent: int | None
    axes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryOpFact:
    """One load, store or atomic, in program order (``slot`` is its number there; atomics are numbered by themselves).

    Per subscript: ``subscript_axes`` (the axis whose indices it holds, through affine arithmetic too; None for scalars
    and gathers), ``strides`` and ``extents`` of the host tensor in elements, and ``scales`` (2 for ``x[2 * tile.index]`` and ``x[2]``).
    ``tile_axes`` are the axes of the accessed tile. ``accessed_numel`` is the number of different elements in reach:
    dimensions of stride 0 count once. ``matmul_operand`` is ``lhs`` or ``rhs`` when the load feeds a dot through at most
    casts, views and one-operand ops. ``reductions_fed`` counts the reductions the value reaches without crossing another
    reduction, per axis; ``feeds_store``: it reaches a store that way.
    ``looped``: how often a load of a row is done when the row is walked in chunks, per axis that can be.
    ``cast_itemsize``: bytes of an element in memory, or of what a loaded one is converted to if that is wider.
    ``static``: strides and extents are known when compiling; if not, they are those seen when binding. ``after`` as many
    dots as stand before.
    """

    slot: int
    load_slot: int | None
    kind: Literal["load", "store", "atomic"]
    storage: int
    name: str
    dtype: torch.dtype
    region: int
    tile_axes: tuple[int, ...]
    subscript_axes: tuple[int | None, ...]
    strides: tuple[int, ...]
    extents: tuple[int, ...]
    scales: tuple[int, ...]
    gathered: bool
    accessed_numel: int
    matmul_operand: Literal["lhs", "rhs"] | None
    reductions_fed: tuple[tuple[int, int], ...]
    feeds_store: bool
    looped: tuple[tuple[int, int], ...] = ()
    cast_itemsize: int = 0
    static: bool = True
    after: int = 0

    @property
    def itemsize(self) -> int:
        """Bytes of one element in memory."""
        return self.dtype.itemsize

    @property
    def rank(self) -> int:
        return len(self.strides)

    def is_one_run(self, extents: Mapping[int, int | None]) -> bool:
        """Whether all elements in reach lie in memory in the order of some axes, one behind the other."""
        following = 1
        for axis, extent in tuple(extents.items())[::-1]:
            places = [at for at, each in enumerate(self.subscript_axes) if each == axis]
            if not self.static or self.gathered or extent is None or len(places) != 1:
                return False
            (at,) = places
            if extent > 1 and (self.strides[at] != following or self.extents[at] != extent or self.scales[at] != 1):
                return False
            following *= extent
        return following == self.accessed_numel


@dataclass(frozen=True, kw_only=True, slots=True)
class MatmulFact:
    """One dot, in program order.

    ``m_block_id`` and its like are None where the dimension is not a tile (a specialised N, say); ``m_axis`` and its
    like name the axis whatever its kind, and ``batch_axes`` those in front. ``static_*`` are problem extents in
    elements, not tile sizes, None if not known when compiling. ``*_prologue`` says whether ops other than views stand
    between load and dot. ``accumulator_loop``: the region of the loop that carries the accumulator. ``consumes``:
    numbers of the dots whose results reach this one's operands. ``chained``: the accumulator is the result of another dot
    of the region. ``added``: the product goes to a sum, as its accumulator or as a term. ``*_format`` are the microscaling formats of a scaled
    dot, "" for others; ``static_k`` then counts numbers, where the tile of a packed ``e2m1`` operand counts bytes.
    ``turned``: a config has it computed as its transpose, which this is a fact of.
    """

    number: int
    region: int
    lhs_rank: int
    rhs_rank: int
    m_block_id: int | None
    n_block_id: int | None
    k_block_id: int | None
    m_axis: int | None
    n_axis: int | None
    k_axis: int | None
    batch_axes: tuple[int, ...]
    static_m: int | None
    static_n: int | None
    static_k: int | None
    lhs_dtype: torch.dtype
    rhs_dtype: torch.dtype
    precision: str
    lhs_slot: int | None
    rhs_slot: int | None
    lhs_layout: Layout | None
    rhs_layout: Layout | None
    lhs_prologue: bool
    rhs_prologue: bool
    accumulator_loop: int | None
    consumes: tuple[int, ...]
    chained: bool = False
    added: bool = True
    lhs_format: str = ""
    rhs_format: str = ""
    turned: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ReductionFact:
    """The reductions over one axis in one region.

    ``extent`` is the true element count (0 when unknown). ``category``, by the first that holds: ``declined`` (the
    extent is unknown), ``full_grid`` (on the grid, whole extent in each program), ``grid_tile`` (on the grid),
    ``user_tile`` (a loop that the kernel spells out over a tunable tile), ``fixed`` (such a loop of a fixed tile),
    ``full_slice`` (a whole dimension).

    ``tile`` is the widest value reduced and ``itemsize`` the bytes of its elements, ``input_load_itemsize`` the narrowest in memory among the loads that feed
    the reductions (else among loads whose last subscript is the axis, else 0). ``num_loads`` counts the loads of the
    region and of its loops over the axis. ``re_read``: some load feeds two reductions, or one and a store beyond it; ``re_read_slot``
    is its load slot. ``store_only_re_read``: a tensor that feeds the reductions is needed again for a store after them,
    so looping reads it twice. ``carried_2d`` counts loop-carried tiles of two or more dimensions that end in the axis.

    ``live_tiles`` is the snapshot at the step with the most simultaneously live tiles (highest rank first), each op's
    operands and results together; ``body_live_tiles`` counts those that span the axis. ``per_feature_accumulator``: the
    reduction feeds a loop-carried accumulator that spans other, whole axes only (``grad_weight[N]``). ``stages`` names every
    reduction, by how many of the others it needs one after the other: those of one stage can be done at once.
    """

    axis: int
    region: int
    root: int
    names: tuple[str, ...]
    category: Category
    extent: int
    tile: tuple[int, ...]
    itemsize: int
    input_load_itemsize: int
    num_loads: int
    re_read: bool
    re_read_slot: int | None
    store_only_re_read: bool
    carried_2d: int
    body_live_tiles: int
    live_tiles: LiveTiles
    per_feature_accumulator: bool
    stages: tuple[tuple[str, ...], ...] = ()

    @property
    def sized(self) -> bool:
        """Whether a heuristic may size the axis as a reduction."""
        return self.category in ("full_slice", "full_grid", "user_tile")

    @property
    def full_extent(self) -> bool:
        return self.category in ("full_slice", "full_grid")


@dataclass(frozen=True, kw_only=True, slots=True)
class AccumulatorFact:
    """One value that a sequential loop carries. ``axes`` of its dimensions; scalars are left out."""

    axes: tuple[int, ...]
    of_dot: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanFact:
    """One running combination (``scan``) or combination by a function of the kernel's (``fold``) along ``axis``, of values
    that span ``tile``: ``itemsize`` bytes for each place, of all values together. ``ops`` elementwise ones combine two."""

    kind: Literal["scan", "fold"]
    axis: int | None
    tile: tuple[int, ...] = ()
    itemsize: int = 0
    ops: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PointwiseFact:
    """The kernel only maps elements: no dot, no sized reduction, no carried tile, nothing that depends on tiling.

    ``total_numel`` is the product of the extents of all tunable axes, and of the programs along the other axes of the
    grid. A *full* access reaches at least half as many elements: what is padded or cropped is read in part.
    ``slab_numel``: elements each tiled element drags along, over all full accesses, those of a window once. ``storage_itemsize``: the
    widest of them in memory; ``compute_itemsize``: the widest value on the way to a store (index arithmetic aside).
    ``contiguous_axes``: tiled axes with stride 1 in some full access. ``sfu_ops`` counts transcendental ops.
    ``gather_stride`` is the largest index scale on a stride-1 axis, ``max_op_slab`` the largest untiled fan-out of one.
    ``one_run``: all that is tiled is one run in memory, which a flattened grid walks over. ``rows_beside_run``: all but loads of few
    elements, such as a bias.
    """

    total_numel: int
    slab_numel: int
    storage_itemsize: int
    compute_itemsize: int
    contiguous_axes: tuple[int, ...]
    sfu_ops: int
    gather_stride: int
    max_op_slab: int
    one_run: bool = False
    rows_beside_run: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class MatmulWithReductionEpilogueFact:
    """Exactly one dot, and exactly one sized reduction, of its product and over the whole of its output dimension.

    ``n_extent`` is the padded width of an output row: the next power of two of N. ``n_block_id`` is None unless N is a
    tile.
    """

    matmul: MatmulFact
    reduction: ReductionFact
    n_extent: int

    @property
    def m_block_id(self) -> int | None:
        return self.matmul.m_block_id

    @property
    def k_block_id(self) -> int | None:
        return self.matmul.k_block_id

    @property
    def n_block_id(self) -> int | None:
        return self.matmul.n_block_id


@dataclass(frozen=True, kw_only=True, slots=True)
class MatmulWithTiledReductionEpilogueFact:
    """Dots whose output rows each program walks over in tiles, and all sized reductions are over these.

    The dots share ``m_block_id``, a tile of the grid loop. ``n_block_ids`` are the tiles of their columns, in loops inside
    of it, and ``k_block_ids`` those of their summands, each once and in order. ``apply_axes`` are the tiles of later
    loops over as many columns with a size of their own, such as one that normalises what an earlier loop has stored.
    """

    matmuls: tuple[MatmulFact, ...]
    reductions: tuple[ReductionFact, ...]
    m_block_id: int
    n_block_ids: tuple[int, ...]
    k_block_ids: tuple[int, ...]
    apply_axes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionFact:
    """Two dots in one loop, the second fed by the first through a reduction over the loop's axis.

    ``query_axis`` is M of both, None where the kernel's queries are a constant number; ``key_axis`` is N of the first
    and K of the second. ``region`` is the loop. ``hidden``: comparisons of places hide whole tiles of keys that the loop walks
    over (``passes/peel.py``). ``diagonal``: the loop ends where the tile of queries does.
    """

    query_axis: int | None
    key_axis: int
    region: int
    hidden: bool = False
    diagonal: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionGradientFact:
    """One loop of a backward pass of attention: two dots there give tiles of the same two axes, scores and their
    gradient, and another one takes what is made of both.

    A program holds a tile of ``held_axis`` (queries for their gradient, keys for theirs) while the loop walks over
    ``walked_axis``.
    """

    region: int
    held_axis: int
    walked_axis: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedOperand:
    """A load that feeds dot number ``dot``: a tile of ``axes`` that passes through shared memory. ``region`` is where it
    is loaded (one copy per pipeline stage if that is a loop), ``after`` as many dots as stand before; ``itemsize`` is in
    memory; ``direct``: nothing but views and masks stands between load and dot; ``shared``: something else than dots
    reads it too."""

    region: int
    dot: int
    role: Literal["lhs", "rhs"]
    slot: int
    axes: tuple[int, ...]
    itemsize: int
    direct: bool
    after: int
    shared: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class HoistableFact:
    """An operand of dot number ``dot`` that may be computed once, by a grid loop in front (``passes/hoist.py``): ``shape``
    elements of ``dtype`` in tiles of ``axes``, with ``lanes`` of them for each element of an axis. Memory is contiguous along dimension ``along``.
    ``slots`` are the loads that it is made of, ``main`` that of the largest tensor, in whose place it is loaded."""

    dot: int
    role: Literal["lhs", "rhs"]
    dtype: torch.dtype
    axes: tuple[int, int]
    lanes: tuple[int, int]
    shape: tuple[int, int]
    along: int
    slots: tuple[int, ...]
    main: int

    @property
    def numel(self) -> int:
        return self.shape[0] * self.shape[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkFact:
    """Elementwise ops of region ``region`` on values that span ``axes``: how many, and how many of them need the special
    function unit (transcendental functions, roots, divisions). ``polynomials`` are those of them that take dozens of
    instructions each."""

    region: int
    axes: tuple[int, ...]
    ops: int
    sfu_ops: int
    polynomials: int = 0


T = TypeVar("T")


class Later(Generic[T]):
    """What is computed when somebody asks for it, once."""

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute = compute

    @functools.cached_property
    def value(self) -> T:
        return self._compute()


def _no_product() -> str:
    return "the kernel has no matrix product"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ApartFact:
    """A kernel whose matrix products are computed first, in grid loops of their own: facts of these (``products``) and of the
    others (``rest``), which have the same axes. ``rows``, ``columns`` and ``depths`` are axes of tiles of the products.
    """

    products: KernelFacts
    rest: KernelFacts
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    depths: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelFacts:
    """Everything known about a kernel. ``axes[i].block_id == i``.

    ``live_tiles`` has one snapshot per root: the peak by rank, as in ``ReductionFact``. ``resident_tiles`` has the
    snapshots (per root, none contained in another) of what must be held between ops: elementwise chains work in place
    there, and masks and views cost nothing. ``held_tiles`` are the snapshots of what must be there whole, because it
    crosses a reduction, a dot, a loop or a store. ``random_tiles`` are those of random numbers, ``transposed_squares`` those of
    which a permutation exchanges dimensions that are one axis, as memory accesses do not show. ``divisible``: programs may
    share the sums of the kernel's product (``passes/split_sums.py``), and ``spread`` are the axes of loops behind the sums that they then
    share, too (``passes/spread.py``). ``hoistable`` are the operands of products that may be computed
    first, ``joinable`` the axes of loops that may be one (``passes/join.py``), in their order. ``turnable``: every product can be
    computed as its transpose (``passes/turn.py``); ``packable``: operands of products can be copied to rows that begin at
    multiples of 16 bytes, where they do not (``passes/pack.py``). ``crosswise`` are the slots of operands that can be copied
    contiguous along K, which a matrix unit that reads rows along K alone needs. ``apart``: its products and the rest of it by themselves, or why
    products cannot be computed first (``passes/materialize.py``). ``ahead`` are the slots of loads that loops over single indices can
    make in an earlier step (``passes/ahead.py``).
    """

    axes: tuple[AxisFact, ...]
    regions: tuple[RegionFact, ...]
    grid_axes: tuple[int, ...]
    num_roots: int
    memory_ops: tuple[MemoryOpFact, ...]
    matmuls: tuple[MatmulFact, ...]
    reductions: tuple[ReductionFact, ...]
    accumulators: tuple[AccumulatorFact, ...]
    staged: tuple[StagedOperand, ...]
    work: tuple[WorkFact, ...]
    live_tiles: tuple[LiveTiles, ...]
    resident_tiles: tuple[tuple[LiveTiles, ...], ...]
    held_tiles: tuple[tuple[LiveTiles, ...], ...]
    scans: tuple[ScanFact, ...] = ()
    random_tiles: LiveTiles = ()
    transposed_squares: LiveTiles = ()
    atomics: tuple[MemoryOpFact, ...] = ()
    pointwise: PointwiseFact | None = None
    matmul_with_reduction_epilogue: MatmulWithReductionEpilogueFact | None = None
    matmul_with_tiled_reduction_epilogue: MatmulWithTiledReductionEpilogueFact | None = None
    attention: AttentionFact | None = None
    attention_gradients: tuple[AttentionGradientFact, ...] = ()
    divisible: bool = False
    spread: tuple[int, ...] = ()
    hoistable: tuple[HoistableFact, ...] = ()
    joinable: tuple[int, ...] = ()
    turnable: bool = False
    packable: bool = False
    crosswise: tuple[int, ...] = ()
    ahead: tuple[int, ...] = ()
    apart: Later[ApartFact | str] = field(default_factory=lambda: Later(_no_product), compare=False, repr=False)

    @property
    def tunable_axes(self) -> tuple[AxisFact, ...]:
        """The axes with a slot in ``block_sizes``, in order."""
        return tuple(axis for axis in self.axes if axis.tunable)

    @property
    def rolled_axes(self) -> tuple[AxisFact, ...]:
        """The axes with a slot in ``reduction_loops``, in order."""
        return tuple(axis for axis in self.axes if axis.rollable)

    @property
    def sized_reductions(self) -> tuple[ReductionFact, ...]:
        return tuple(fact for fact in self.reductions if fact.sized)

    @property
    def primary_reduction(self) -> ReductionFact | None:
        """The sized reduction that moves the most bytes per row (extent times bytes in memory), then the longest."""
        return max(
            self.sized_reductions, key=lambda r: (r.extent * max(1, r.input_load_itemsize), r.extent), default=None
        )

    @property
    def attention_root(self) -> int:
        """The grid loop that has the attention; there must be one."""
        assert self.attention is not None
        return self.regions[self.attention.region].root

    def enclosing_axes(self, region: int) -> tuple[int, ...]:
        """The axes of the grid and of the loops around the ops of ``region``, outermost first."""
        axes: tuple[int, ...] = ()
        at: int | None = region
        while at is not None:
            axes = (*self.regions[at].axes, *axes)
            at = self.regions[at].parent
        return axes

    def summary(self) -> str:
        """One line for reports: what the kernel is made of."""
        parts = [_axes_text(self.axes)]
        parts += [_matmul_text(fact) for fact in self.matmuls]
        parts += [_reduction_text(fact) for fact in self.reductions]
        if self.pointwise is not None:
            parts.append(f"pointwise over {self.pointwise.total_numel} elements")
        if self.matmul_with_reduction_epilogue is not None:
            parts.append(f"matmul with reduction epilogue over N={self.matmul_with_reduction_epilogue.n_extent}")
        tiled = self.matmul_with_tiled_reduction_epilogue
        if tiled is not None:
            applied = f", applied over {', '.join(map(str, tiled.apply_axes))}" if tiled.apply_axes else ""
            columns = ", ".join(map(str, tiled.n_block_ids))
            parts.append(f"matmul with reduction epilogue over tiles of axis {columns}{applied}")
        if self.attention is not None:
            parts.append("attention")
        if self.attention_gradients:
            parts.append("gradients of attention")
        parts += [f"{fact.kind} over axis {fact.axis}" for fact in self.scans]
        parts += [f"{len(self.atomics)} atomics"] * bool(self.atomics)
        loads = sum(op.kind == "load" for op in self.memory_ops)
        parts.append(f"{loads} loads, {len(self.memory_ops) - loads} stores")
        return "; ".join(parts)


def _axes_text(axes: tuple[AxisFact, ...]) -> str:
    def one(axis: AxisFact) -> str:
        place = "grid" if axis.on_grid else "rolled" if axis.rollable else "whole" if axis.kind == "full" else "loop"
        extent = "?" if axis.extent is None else str(axis.extent)
        fixed = f" by {axis.size}" if axis.kind == "fixed" else ""
        return f"{axis.block_id}:{axis.name} {place} {extent}{fixed}"

    return f"axes {', '.join(map(one, axes))}"


def _matmul_text(fact: MatmulFact) -> str:
    extents = "x".join("?" if e is None else str(e) for e in (fact.static_m, fact.static_n, fact.static_k))
    lhs, rhs = fact.lhs_format or _dtype(fact.lhs_dtype), fact.rhs_format or _dtype(fact.rhs_dtype)
    types = ("scaled " if fact.lhs_format else "") + (lhs if lhs == rhs else f"{lhs}*{rhs}")
    return f"dot {extents} {types}"


def _reduction_text(fact: ReductionFact) -> str:
    detail = f"{fact.body_live_tiles} live" + (", re-read" if fact.re_read else "")
    if fact.per_feature_accumulator:
        detail += ", per-feature accumulator"
    return f"{'+'.join(fact.names)} over axis {fact.axis} ({fact.category} of {fact.extent or '?'}, {detail})"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
