"""Facts: properties of a kernel that heuristics and the resource model read.

All facts follow from the device IR alone: never from a config, a kernel's name or a backend. An *axis* is a block of
the program, identified by the block's id. A *region* is a straight sequence of ops: the body of a grid loop, of a
sequential loop, or of one branch. Regions are numbered in program order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, TypeVar

import torch

from ..._support.records import dataclass, field, replace
from ..rewrites.late_reductions.threads import LateReductionFact as LateReductionFact
from ..rewrites.precompute_operands import PrecomputableFact as PrecomputableFact
from ..rewrites.unfuse_matmul import UnfusedMatmulFact as UnfusedMatmulFact
from .access import MemoryOpFact, ReducedTile, RowWindow, ScanFact, SortFact

#: One tile in registers: the axes it spans and the bytes of one element, which dimensions of constant size multiply.
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
    - ``full``: a whole dimension, padded to a power of two; at once, or in chunks if ``rollable`` and rolled by the config.
    - ``scalar``: ``hl.grid``; one element at a time, no dimension.

    ``extent`` is the true number of elements. For dynamic sizes it is the value seen when binding, and ``static`` is
    False. It is None if it depends on data or on another tile. An empty axis counts as one element: nothing runs then,
    but a config is still chosen. ``padded`` is the next power of two, at least ``min_size`` (0 when unknown).

    ``mean`` estimates an extent that depends on data: the extent of the accessed tensors along the axis, divided among
    the programs that share it. It is None without such tensors. If loop bounds follow the tile of another axis, as below
    or above a diagonal (``hl.tile(other.end)``, ``hl.tile(other.begin, n)``), it is the mean over the tile's places.
    ``longest`` is then the most of one place.

    ``outer`` is the axis whose tile bounds this one (``hl.tile(outer.begin, outer.end)``). ``roots`` are the numbers of
    the grid loops over the axis. ``min_size`` and ``max_size`` are the kernel's own bounds. If a fixed size depends on
    a tunable of the kernel, ``chosen_by`` is its name. ``choices`` then has its values with the size for each.
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
    longest: int | None = None
    chosen_by: str = ""
    choices: tuple[tuple[object, int], ...] = ()

    @property
    def tunable(self) -> bool:
        """True if the size is a slot of ``block_sizes``."""
        return self.kind == "tile"


@dataclass(frozen=True, kw_only=True, slots=True)
class RegionFact:
    """One region. ``axes`` are those of its grid or loop. ``parent`` is None for roots, and ``root`` numbers the grid
    loops from 0. ``gathers`` is the most loads of one step, in a row, each of which gives the index of the next load;
    ``lookups`` counts those that change from step to step."""

    region: int
    kind: RegionKind
    root: int
    parent: int | None
    axes: tuple[int, ...]
    gathers: int = 0
    lookups: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class MatmulFact:
    """One dot, in program order.

    - ``m_block_id``, ``n_block_id``, ``k_block_id``: None if the dimension is not a tile (a specialized N, say).
    - ``m_axis``, ``n_axis``, ``k_axis``: the axis, whatever its kind; ``batch_axes`` are the leading axes.
    - ``static_*``: problem extents in elements, not tile sizes; None if not known at compile time.
    - ``*_prologue``: true if ops other than views are between load and dot.
    - ``accumulator_loop``: the region of the loop that carries the accumulator.
    - ``consumes``: numbers of the dots whose results reach this dot's operands.
    - ``chained``: true if the accumulator is the result of another dot of the region.
    - ``added``: true if the dot has an accumulator, or its result is a term of an addition.
    - ``indexed``: true if an operand is computed from indices as well.
    - ``*_format``: the microscaling formats of a scaled dot, "" for others. ``static_k`` then counts numbers, but the
      tile of a packed ``e2m1`` operand counts bytes.
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
    indexed: bool = False
    lhs_format: str = ""
    rhs_format: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReductionFact:
    """The reductions over one axis in one region.

    ``extent`` is the true element count (0 when unknown). ``category`` is the first that applies:

    - ``declined``: the extent is unknown.
    - ``full_grid``: on the grid, with the whole extent in each program.
    - ``grid_tile``: on the grid.
    - ``user_tile``: a loop that the kernel writes over a tunable tile.
    - ``fixed``: such a loop over a fixed tile.
    - ``full_slice``: a whole dimension.

    ``tile`` is the widest value reduced and ``itemsize`` the bytes of its elements. ``input_load_itemsize`` is the
    narrowest dtype in memory among the loads that feed the reductions. Without such loads, it is that of loads whose
    last subscript is the axis, else 0. ``num_loads`` counts the loads of the region and of its loops over the axis.
    ``re_read``: some load feeds two reductions, or a reduction and a later store; ``re_read_slot`` is its load slot.
    ``store_only_re_read``: a tensor that feeds the reductions is also needed for a later store, so a rolled loop reads
    it twice. ``carried_2d`` counts loop-carried tiles of two or more dimensions whose last axis is this one.
    ``live_tiles`` is the snapshot at the step with the most simultaneously live tiles (highest rank first), with each
    op's operands and results together; ``body_live_tiles`` counts those that span the axis. ``per_feature_accumulator``:
    the reduction feeds a loop-carried accumulator that spans only other, whole axes (``grad_weight[N]``). ``stages``
    names the reductions by their depth in the chain of dependent reductions. The reductions of one stage can run
    together. ``exponential_stages`` are the numbers of those with a sum of exponentials. ``gone`` are the later axes that
    each of the reductions reduces too, and first. ``kept`` counts the values over the axis that stay from one stage to a
    later one (``kept_values``). ``after`` is the region after whose loops all may run, or None. ``tiles`` has each of them.
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
    exponential_stages: tuple[int, ...] = ()
    kept: int = 0
    gone: frozenset[int] = frozenset()
    after: int | None = None
    tiles: tuple[ReducedTile, ...] = ()

    @property
    def sized(self) -> bool:
        """True if a heuristic may size the axis as a reduction."""
        return self.category in ("full_slice", "full_grid", "user_tile")

    @property
    def full_extent(self) -> bool:
        return self.category in ("full_slice", "full_grid")


@dataclass(frozen=True, kw_only=True, slots=True)
class AccumulatorFact:
    """A value that a sequential loop carries. ``axes`` are those of its dimensions; facts omit scalars."""

    axes: tuple[int, ...]
    of_dot: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PointwiseFact:
    """A kernel that only maps elements: no dot, no sized reduction, no carried tile, no op that depends on tiling.

    - ``total_numel``: the elements of the largest grid loop; along axes of the grid that are not tunable, its programs.
    - ``slab_numel``: elements of memory per tiled element, over all *full* accesses; those of a window count once. A
      full access covers at least half of ``total_numel``, so padded or cropped tensors count.
    - ``storage_itemsize``: the widest dtype of full accesses in memory.
    - ``compute_itemsize``: the widest dtype of values that reach a store, without index arithmetic.
    - ``contiguous_axes``: tiled axes with stride 1 in some full access.
    - ``gather_stride``: the largest index scale on a stride-1 axis.
    - ``max_op_slab``: the largest number of untiled elements per tiled element in one access.
    - ``one_run``: true if all tiled accesses are contiguous in memory, so that a flattened grid visits them in order.
    - ``rows_beside_run``: true if that holds for all accesses but loads of few elements, such as a bias.
    - ``numbered_run``: true if elements are numbered, as by ``tile.index``, and that holds for all other accesses. Those
      are gathers, strided loads and loads of few elements. The other two are false then.
    - ``run_order``: the order of the grid axes, by position, in which ``rows_beside_run`` would hold, the slowest first;
      empty if it holds as the kernel is, or in no order.
    - ``window_axes``: tiled axes along which loads of one tensor are at three or more positions, and windows of neighbours
      share at least half of them.
    """

    total_numel: int
    slab_numel: int
    storage_itemsize: int
    compute_itemsize: int
    contiguous_axes: tuple[int, ...]
    gather_stride: int
    max_op_slab: int
    one_run: bool = False
    rows_beside_run: bool = False
    numbered_run: bool = False
    run_order: tuple[int, ...] = ()
    window_axes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class MatmulWithReductionEpilogueFact:
    """Exactly one dot, and exactly one sized reduction, of the dot's result and over its whole N.

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
    """Dots with output rows that each program visits in tiles. All sized reductions are over these rows.

    The dots share ``m_block_id``, a tile of the grid loop. ``n_block_ids`` are the tiles of their columns, in loops
    inside the grid loop. ``k_block_ids`` are the tiles of their K. Both have each tile once and in order.
    ``apply_axes`` are the tiles of later loops over as many columns, with a size of their own. An example is a loop
    that normalizes the results that an earlier loop has stored.
    """

    matmuls: tuple[MatmulFact, ...]
    reductions: tuple[ReductionFact, ...]
    m_block_id: int
    n_block_ids: tuple[int, ...]
    k_block_ids: tuple[int, ...]
    apply_axes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionFact:
    """Two dots in one loop, the second fed by the first: through a reduction over the loop's axis, or (``weighted``) none.
    ``query_axis`` is M of both, None if the kernel has a constant number of queries. ``key_axis`` is N of the first and K of the
    second. ``region`` is the loop. ``hidden``: position comparisons mask whole tiles of keys in the loop. ``diagonal``: the loop
    ends at the end of the query tile, or a number of keys from there. It begins with the ``chunk`` of the tile's first query, if
    that has a length. ``window``: the keys that a query sees at most, where comparisons bound both directions.
    """

    query_axis: int | None
    key_axis: int
    region: int
    hidden: bool = False
    diagonal: bool = False
    window: int | None = None
    chunk: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionGradientFact:
    """One loop of a backward pass of attention.

    Two dots in the loop compute tiles of the same two axes, scores and their gradient. Another dot consumes a value
    computed from both. A program keeps a tile of ``stationary_axis`` (queries for their gradient, keys for theirs) while the
    loop runs over ``streamed_axis``. ``hidden``: position comparisons mask whole tiles of the loop, or it begins or ends
    with the stationary tile.
    """

    region: int
    stationary_axis: int
    streamed_axis: int
    hidden: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedOperand:
    """A load that feeds dot number ``dot``: a tile of ``axes`` that passes through shared memory.

    - ``region``: the region of the load (one copy per pipeline stage if that is a loop).
    - ``after``: the number of dots that precede the load.
    - ``itemsize``: bytes of an element in memory.
    - ``direct``: only views and masks are between load and dot.
    - ``shared``: ops other than dots also read it.
    - ``worked``: an operand is computed from it.
    """

    region: int
    dot: int
    role: Literal["lhs", "rhs"]
    slot: int
    axes: tuple[int, ...]
    itemsize: int
    direct: bool
    after: int
    shared: bool = False
    worked: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkFact:
    """Elementwise ops of region ``region`` on values that span ``axes``.

    ``ops`` is their number, and ``sfu_ops`` the number of those on the special function unit (transcendental functions,
    roots, divisions). ``polynomials`` counts those of them that take dozens of instructions each, and ``randoms`` the
    calls of the random number generator, which are not in ``ops``. ``indices`` counts those that compute with the indices of
    their last axis.
    """

    region: int
    axes: tuple[int, ...]
    ops: int
    sfu_ops: int
    polynomials: int = 0
    randoms: int = 0
    indices: int = 0


T = TypeVar("T")


class Lazy(Generic[T]):
    """A lazy value: computed at the first access, once."""

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute = compute

    @functools.cached_property
    def value(self) -> T:
        return self._compute()

    @classmethod
    def of(cls, value: T) -> Lazy[T]:
        """Return a value that is known."""
        return cls(lambda: value)


@dataclass(frozen=True, kw_only=True, slots=True)
class RewrittenFacts:
    """Facts of the grid loops of a kernel after a rewrite.

    ``copied_bytes`` are half of the bytes that new grid loops before them read and write: a copy of that many bytes
    takes the same time.
    """

    facts: KernelFacts
    copied_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class FlatFacts:
    """Facts of a kernel with loops over runs in memory flattened. The last block of each has all elements.

    ``loops`` has the original blocks of each loop by its number, and ``axes`` those of the kernel as it is.
    """

    facts: KernelFacts
    loops: Mapping[int, tuple[int, ...]]
    axes: tuple[AxisFact, ...]

    def sizes(self, sizes: Mapping[int, int]) -> dict[int, int]:
        """Return sizes by block of the flattened loops for those of the original ones."""
        made = dict(sizes)
        for blocks in self.loops.values():
            made |= {**dict.fromkeys(blocks, 1), blocks[-1]: math.prod(sizes[block] for block in blocks)}
        return made


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KernelFacts:
    """All facts of a kernel. ``axes[i].block_id == i``.

    They are compared by identity: caches look them up often, and comparing all fields would take longer than a prediction.

    - ``live_tiles``: one snapshot per root, the peak by rank, as in ``ReductionFact``.
    - ``resident_tiles``: those that registers must hold between ops, none in another; elementwise chains run in place.
    - ``needed_tiles``: the same without tiles whose elements a reduction takes one by one.
    - ``held_tiles``: those of values that must exist whole, because they cross a reduction, a dot, a loop or a store.
    - ``packed_tiles``, ``kept_tiles``: needed and held ones; values only converted from loads have the loads' dtype.
    - ``random_tiles``: tiles of random numbers.
    - ``transposed_squares``: tiles in which a permutation exchanges two dimensions of one axis; no access shows that.
    - ``numbered_axes``: axes of tiles that ops compute from the places of their elements.
    - ``messages``: the signals to other GPUs and waits for them; ``meetings``: the barriers between grid loops with no host
      code in between.
    - ``phases``: a number for each grid loop; programs of those with equal numbers run at the same time.
    - ``row_windows``: loads that rows of a tile share, of the grid loops that only map elements.
    - ``rewrites``: facts about rewrites by config key (``Rewrite.fact``); ``rewritten``: those of the kernel after one.
    - ``apart``: facts of each grid loop as a kernel of its own, with the same blocks; empty for one grid loop.
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
    needed_tiles: tuple[tuple[LiveTiles, ...], ...]
    held_tiles: tuple[tuple[LiveTiles, ...], ...]
    packed_tiles: tuple[tuple[LiveTiles, ...], ...]
    kept_tiles: tuple[tuple[LiveTiles, ...], ...]
    late_reductions: tuple[LateReductionFact, ...] = ()
    scans: tuple[ScanFact, ...] = ()
    sorts: tuple[SortFact, ...] = ()
    random_tiles: LiveTiles = ()
    transposed_squares: LiveTiles = ()
    numbered_axes: frozenset[int] = frozenset()
    atomics: tuple[MemoryOpFact, ...] = ()
    messages: int = 0
    meetings: int = 0
    phases: tuple[int, ...] = ()
    row_windows: tuple[RowWindow, ...] = ()
    pointwise: PointwiseFact | None = None
    matmul_with_reduction_epilogue: MatmulWithReductionEpilogueFact | None = None
    matmul_with_tiled_reduction_epilogue: MatmulWithTiledReductionEpilogueFact | None = None
    attention: AttentionFact | None = None
    weighted: AttentionFact | None = None
    attention_gradients: tuple[AttentionGradientFact, ...] = ()
    rewrites: Mapping[str, Lazy[Any]] = field(default_factory=dict, compare=False, repr=False)
    rewritten: Mapping[str, Lazy[RewrittenFacts | None]] = field(default_factory=dict, compare=False, repr=False)
    flat: Lazy[FlatFacts | None] | None = field(default=None, compare=False, repr=False)
    apart: tuple[Lazy[KernelFacts], ...] = field(default=(), compare=False, repr=False)

    def rewrite(self, key: str) -> Any:
        """Return the fact about the rewrite of a key, None if there is none."""
        return self.rewrites[key].value if key in self.rewrites else None

    def after(self, *keys: str) -> RewrittenFacts:
        """Return the facts after rewrites by these keys, each where it applies. A repeated call returns the same
        facts.
        """
        facts, copied = self, 0
        for key in keys:
            found = facts.rewritten[key].value if key in facts.rewritten else None
            if found is not None:
                facts, copied = found.facts, copied + found.copied_bytes
        return RewrittenFacts(facts=facts, copied_bytes=copied)

    def with_rewrites(self, **facts: Any) -> KernelFacts:
        """Return facts with these about rewrites, by key."""
        return replace(self, rewrites={**self.rewrites, **{key: Lazy.of(fact) for key, fact in facts.items()}})

    @property
    def splittable_k(self) -> bool:
        """True if programs can share the accumulation of the matmul (split-K)."""
        return self.rewrite("split_k") is not None

    @property
    def split_epilogue_loops(self) -> tuple[int, ...]:
        """Axes of loops after the split accumulation that the programs then also share."""
        split = self.rewrite("split_k")
        return () if split is None else split.epilogue

    @property
    def split_axis(self) -> int | None:
        """The axis of the loop whose accumulation programs can share; None if there is none."""
        split = self.rewrite("split_k")
        return None if split is None else split.axis

    @property
    def precomputable(self) -> tuple[PrecomputableFact, ...]:
        """Operands of matmuls that can be precomputed."""
        return self.rewrite("precompute_operands") or ()

    @property
    def fusible_axes(self) -> tuple[int, ...]:
        """Axes of loops that can be fused, in their order."""
        return self.rewrite("fuse_loops") or ()

    @property
    def swappable_ab(self) -> bool:
        """True if A and B of every matmul can be swapped."""
        return bool(self.rewrite("swap_ab"))

    @property
    def unaligned_operands(self) -> bool:
        """True if operands of matmuls have rows at unaligned addresses that can be copied."""
        return bool(self.rewrite("pack_operands"))

    @property
    def mn_major_slots(self) -> tuple[int, ...]:
        """Slots of MN-major operands that can be copied to K-major."""
        return self.rewrite("transpose_operands") or ()

    @property
    def prefetchable_slots(self) -> tuple[int, ...]:
        """Slots of loads that loops over single indices can prefetch."""
        return self.rewrite("prefetch_distance") or ()

    @property
    def unfused(self) -> UnfusedMatmulFact[KernelFacts] | str:
        """Facts of the unfused matmuls and the rest, or the reason why matmuls cannot be computed first."""
        return self.rewrite("unfuse_matmul") or "the kernel has no matmul"

    @property
    def tunable_axes(self) -> tuple[AxisFact, ...]:
        """The axes with a slot in ``block_sizes``, in order."""
        return tuple([axis for axis in self.axes if axis.kind == "tile"])

    @property
    def rolled_axes(self) -> tuple[AxisFact, ...]:
        """The axes with a slot in ``reduction_loops``, in order."""
        return tuple(axis for axis in self.axes if axis.rollable)

    @property
    def sized_reductions(self) -> tuple[ReductionFact, ...]:
        return tuple([fact for fact in self.reductions if fact.sized])

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
        """Return the axes of the grid and of the loops around the ops of ``region``, outermost first."""
        axes: tuple[int, ...] = ()
        at: int | None = region
        while at is not None:
            axes = (*self.regions[at].axes, *axes)
            at = self.regions[at].parent
        return axes
