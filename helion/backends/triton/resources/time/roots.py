"""The facts of each grid loop that predicted times need, before any config is known."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from ....._compiler.facts.records import (
    AxisFact,
    KernelFacts,
    LateReductionFact,
    MatmulFact,
    MemoryOpFact,
    ReductionFact,
    WorkFact,
)
from ....._support.records import dataclass
from .....hardware import REGISTER_BYTES
from ...histograms import width_of
from ...lookups import tables
from ..paired import half_of_pair, paired_stores
from ..tiles import VECTOR_BYTES, beside_turned

#: Bytes of a sector of memory.
SECTOR_BYTES = 32
#: Elements from which on a stride no longer narrows the accesses of one thread.
_ALIGNED = 16
#: Values that are reduced together: an index accompanies its value, and is compared too.
_VALUES = {"argmax": 3, "argmin": 3}
#: Elementwise ops that a random number takes the time of: ten rounds of Philox with four multiplications each, half of
#: which are issued at half the rate. It is fitted to six kernels on an H200 (rows ``dropout_times`` of attention).
RANDOM_OPS = 34
#: Instructions of a piecewise polynomial, such as a sine, beyond those of the special function unit (measurement
#: ``polynomial_ops``). A scan's combination takes the time of more in place of that unit's (measurement
#: ``scanned_rows``).
POLYNOMIAL_OPS, _SCANNED_POLYNOMIAL_OPS = 8, 20
#: Floats that one atomic adds a vector of, on GPUs that have such atomics.
_VECTORED = (torch.float32, torch.float16, torch.bfloat16)
#: Instructions of a quotient and a remainder: of a power of two, and of other constants.
_MASKED, _DIVIDED = 0, 8


class Extent(NamedTuple):
    """The extent of one axis. ``elements`` is None where it is not known, and bounded by the tile of ``outer`` if that
    is given.

    A size smaller than ``whole`` chunks it; ``whole`` is 0 where it cannot be chunked.
    """

    axis: int
    elements: int | None
    outer: int | None
    whole: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """A load, store or atomic of a tile, which is number ``tile`` of the root's.

    ``inner`` is the contiguous axis, or None. ``nested`` begins with it and its elements in memory; each further axis is
    contiguous where a tile has all elements of those before. Rows begin at multiples of ``aligned`` elements. ``widest`` are the
    elements of the widest access of a thread, ``widest_of_run`` those in a flattened grid. ``inside`` are the axes of
    the grid that the access depends on, ``apart`` the others. ``looped``: the passes of a load where rows are chunked,
    by axis. ``strided`` is an axis whose neighbours share sectors of memory without being adjacent, with the bytes from one
    to the next. Neighbours along the axes of ``quotients`` share an element, so many of them. ``turned`` are those of ``beside_turned``. ``placed`` are the axes of the grid that index a tensor whose other
    elements data selects, None for other accesses.
    """

    kind: str
    slot: int
    storage: int
    region: int
    tile: int
    axes: tuple[int, ...]
    itemsize: int
    once_bytes: int
    """Bytes of all elements in reach."""
    whole_bytes: int
    """Bytes of the tensor."""
    inner: int | None
    strided: tuple[int, float] | None
    quotients: tuple[tuple[int, int], ...]
    nested: tuple[tuple[int, int], ...]
    aligned: int
    widest: int
    widest_of_run: int
    unit_stride: frozenset[int | None]
    inside: tuple[int, ...]
    apart: tuple[int, ...]
    again: tuple[int, ...]
    """The axes of loops whose steps load the same place, or one nearby, as taps of a window do."""
    outside: tuple[int, ...]
    """The axes of loops around the access that index none of its dimensions."""
    looped: tuple[tuple[int, int], ...]
    numbered: bool
    """Set for a store to a location that each program computes for itself."""
    copied_bytes: int
    """Contiguous bytes that begin at multiples of as many."""
    feeds_dots: bool
    in_loop: bool
    carried: bool
    """Set for a load that a loop over single indices can carry in registers until a later step."""
    turned: tuple[int, ...] | None
    placed: tuple[int, ...] | None
    bins: int
    """The power of two of a histogram, or of sums, that may take the place of an atomic's elements; else 0."""
    summed: bool
    """Set where each element of such an atomic is a value of its own."""
    read_again: bool
    """Set where a later load, another pass or another program may read the same elements. An eviction policy changes no traffic
    of others (measurement ``read_once``)."""
    vectored: bool
    """Set for an atomic on floats that GPUs with vector atomics add several of at once."""


class Work(NamedTuple):
    """Elementwise ops on tile number ``tile``, and the part of them that the special function unit computes."""

    region: int
    tile: int
    axes: tuple[int, ...]
    ops: int
    sfu_ops: int
    apart: bool
    """Set for ops of a loop that has no tile with more axes: their values have a layout of their own."""


class Reduction(NamedTuple):
    """Reductions of tile number ``tile``, which has ``axes``: ``values`` are reduced, and ``product`` is the matmul that
    computes them, if one does. Each of several of one name counts (measurement ``counted_reductions``).

    ``tile`` lacks the axes that are reduced before. ``widest`` are the elements of the widest load of a thread, one where
    rows begin anywhere. ``ahead`` are the axes that threads are spread over before the reduced one. ``adjacent`` are
    several axes along which neighbours of a computed place are adjacent. Threads are spread over the longest tile of
    these first, of equal ones over that of the first dimension (measurement ``gathers_alone``).
    """

    fact: ReductionFact
    axes: tuple[int, ...]
    tile: int
    values: int
    widest: int
    ahead: tuple[int, ...]
    adjacent: tuple[int, ...]
    product: MatmulFact | None

    def lies_along(self, sizes: Mapping[int, int]) -> bool:
        """Return whether threads are spread over the reduced axis first, of several with adjacent neighbours."""
        return bool(self.adjacent) and max(self.adjacent, key=lambda axis: sizes[axis]) == self.fact.axis


class Scan(NamedTuple):
    """A scan along ``axis``, of tile number ``tile`` with axes ``axes``, once for each tile along the axes of ``around``.

    Each position has ``words`` registers. One combination takes ``ops``, of which ``sfu_ops`` are of the special function
    unit. ``widest`` and ``ahead`` are those of a ``Reduction``.
    """

    axis: int
    tile: int
    axes: tuple[int, ...]
    words: int
    ops: int
    sfu_ops: int
    around: tuple[int, ...]
    widest: int
    ahead: tuple[int, ...]


class Sort(NamedTuple):
    """A sort along ``axis``, of tile number ``tile``, once for each tile along the axes of ``around``."""

    axis: int
    tile: int
    itemsize: int
    around: tuple[int, ...]


class Root(NamedTuple):
    """The facts of one grid loop over the axes ``order``.

    ``tiles`` are the axes of all tiles, which other fields refer to by number. ``held`` are the regions and tiles of
    live values, each once. ``loops`` are the axes of the loops around each of the kernel's regions, and ``regions``
    those of this grid loop.
    """

    root: int
    order: tuple[int, ...]
    extents: tuple[Extent, ...]
    split: bool
    """Set where several programs may share accumulation loops, whose axes are ``divided``."""
    divided: tuple[int, ...]
    tiles: tuple[tuple[int, ...], ...]
    rank: int
    """The most dimensions of a tile."""
    loops: tuple[tuple[int, ...], ...]
    storing: frozenset[int]
    """The loops that store, so that loads of the next step wait for the stores."""
    uneven: bool
    longest: float
    """Set where loops are longer in some programs than in others."""
    regions: tuple[int, ...]
    accesses: tuple[Access, ...]
    work: tuple[Work, ...]
    reductions: tuple[Reduction, ...]
    late: tuple[LateReductionFact, ...]
    scans: tuple[Scan, ...]
    sorts: tuple[Sort, ...]
    matmuls: tuple[MatmulFact, ...]
    held: tuple[tuple[int, int], ...]
    numbering: int
    """Instructions by which an element of a flattened grid finds its indices, where computed subscripts need them."""
    is_flat: bool
    """Set for a grid loop without loops inside."""
    consumed: tuple[tuple[MatmulFact, frozenset[int]], ...]
    """Matmuls whose results others of the same loop consume, with the tiles of their rows and columns."""
    computed: tuple[tuple[MatmulFact, frozenset[int]], ...]
    """Matmuls with a right operand that is computed from loads, and the tiles of it."""
    tables: frozenset[int]
    """Slots of small tables that are loaded before the loops."""


@functools.lru_cache(maxsize=64)
def roots_of(facts: KernelFacts) -> tuple[Root, ...]:
    """Return one record per grid loop; a repeated call returns the same."""
    return tuple(
        _Preparation(facts, region.root, region.axes).root() for region in facts.regions if region.kind == "root"
    )


class _Preparation:
    """Numbers the tiles of one grid loop in the order of first use."""

    def __init__(self, facts: KernelFacts, root: int, order: tuple[int, ...]) -> None:
        self.facts, self.number, self.order = facts, root, order
        self.grid = {axis: facts.axes[axis].extent for axis in order}
        self.regions = tuple(each.region for each in facts.regions if each.root == root)
        self.matmuls = tuple(fact for fact in facts.matmuls if fact.region in self.regions)
        self.tiles: dict[tuple[int, ...], int] = {}
        self.carried = facts.prefetchable_slots
        self.last_reads = {op.storage: op.slot for op in facts.memory_ops if op.kind == "load"}
        #: The axes of the loops around each region.
        self.loops: list[tuple[int, ...]] = []
        for fact in facts.regions:  # parents come first
            outside = () if fact.parent is None else self.loops[fact.parent]
            self.loops.append((*outside, *fact.axes) if fact.kind == "loop" else outside)

    def is_apart(self, work: WorkFact, held: Sequence[tuple[int, tuple[int | None, ...]]]) -> bool:
        """Return whether ops are in a loop that has no tile with more axes, nor has a loop inside of it."""
        facts, inside = self.facts.regions, {work.region}
        for each in facts[work.region + 1 :]:  # parents come first
            inside |= {each.region} if each.parent in inside else set()
        axes = {axis for region, tile in held if region in inside for axis in tile if axis is not None}
        return facts[work.region].kind == "loop" and axes <= set(work.axes)

    def tile(self, axes: tuple[int, ...]) -> int:
        return self.tiles.setdefault(axes, len(self.tiles))

    def root(self) -> Root:
        facts, regions = self.facts, self.regions
        operations = [op for op in facts.memory_ops if op.region in regions]
        held: list[tuple[int, tuple[int | None, ...]]] = [(w.region, w.axes) for w in facts.work if w.region in regions]
        held += [(op.region, op.tile_axes) for op in operations]
        held += [(fact.region, (fact.m_axis, fact.n_axis)) for fact in self.matmuls]
        known = [(region, self.tile(tuple(axis for axis in axes if axis is not None))) for region, axes in held]
        operations += [op for op in facts.atomics if op.region in regions]
        taken = {(number, fact.region) for fact in self.matmuls for number in fact.consumes}
        consumed = [fact for fact in self.matmuls if (fact.number, fact.region) in taken]
        accesses = tuple(map(self.access, operations))
        return Root(
            root=self.number,
            order=self.order,
            extents=tuple(map(_extent, facts.axes)),
            split=self.is_split(),
            divided=_divided(facts) if self.is_split() else (),
            loops=tuple(self.loops),
            storing=frozenset(
                op.region for op in operations if op.kind != "load" and facts.regions[op.region].kind == "loop"
            ),
            uneven=any([self.is_uneven(axis) for region in regions for axis in self.loops[region]]),
            longest=max([self.longest(axis) for region in regions for axis in self.loops[region]], default=1.0),
            regions=regions,
            accesses=accesses,
            work=tuple(
                Work(
                    w.region,
                    self.tile(w.axes),
                    w.axes,
                    w.ops + RANDOM_OPS * w.randoms + POLYNOMIAL_OPS * w.polynomials,
                    w.sfu_ops,
                    self.is_apart(w, held),
                )
                for w in facts.work
                if w.region in regions
            ),
            reductions=tuple(
                each for fact in facts.reductions if fact.region in regions for each in self.reduced(fact, accesses)
            ),
            late=tuple(fact for fact in facts.late_reductions if fact.region in regions),
            scans=tuple(self.scans(accesses)),
            sorts=tuple(self.sorts()),
            matmuls=self.matmuls,
            tables=tables(self.facts),
            held=tuple(dict.fromkeys(known)),
            tiles=tuple(self.tiles),
            rank=max(map(len, self.tiles), default=0),
            is_flat=len(regions) == 1,
            numbering=self.numbering() if not self.matmuls and any(op.steps for op in operations) else 0,
            consumed=tuple(
                (fact, frozenset(n for axes, n in self.tiles.items() if axes[-2:] == (fact.m_axis, fact.n_axis)))
                for fact in consumed
            ),
            computed=tuple(
                (fact, frozenset(n for axes, n in self.tiles.items() if set(axes[-2:]) == {fact.k_axis, fact.n_axis}))
                for fact in self.matmuls
                if fact.rhs_prologue and not fact.consumes
            ),
        )

    def numbering(self) -> int:
        """Return the instructions of the quotients and remainders of an element's number, by the sizes of all axes but
        the slowest one."""
        sizes = [self.facts.axes[axis].extent or 0 for axis in self.order[1:]]
        return sum(_MASKED if size and not size & (size - 1) else _DIVIDED for size in sizes)

    def is_split(self) -> bool:
        """Return whether split-K is of this grid loop: of several it is the one with matmuls."""
        return self.facts.num_roots == 1 or any(self.facts.split_axis in self.loops[each] for each in self.regions)

    def is_uneven(self, axis: int) -> bool:
        fact = self.facts.axes[axis]
        return fact.extent is None and fact.mean is not None

    def longest(self, axis: int) -> float:
        """Return the longest loop over the axis, relative to the mean. No launch ends before its longest program
        (measurement ``longest_loop``)."""
        fact = self.facts.axes[axis]
        return fact.longest / fact.mean if fact.longest and fact.mean and fact.extent is None else 1.0

    def access(self, op: MemoryOpFact) -> Access:
        computed = bool(op.steps)
        if self.matmuls and computed:  # lanes have a matmul's layout (measurement ``looked_up_biases``)
            op = _with_run(op) if op.matmul_operand else dataclasses.replace(op, steps=())
        if self.matmuls and op.slot in paired_stores(self.facts):
            op = half_of_pair(op)
        dimensions = tuple(zip(op.subscript_axes, op.strides, op.extents, op.scales, strict=True))
        is_load, around = op.kind == "load", self.loops[op.region]
        together = [a for a, stride, extent, scale in dimensions if a is not None and stride == scale == 1 < extent]
        inner = together[-1] if together else None
        apart = [stride for axis, stride, extent, _ in dimensions if axis != inner and stride > 1 and extent > 1]
        reached = {*op.tile_axes, *op.subscript_axes, *(axis for axis, _ in op.steps)}
        near = {axis for axis, _ in op.steps} if op.gathered else {*op.subscript_axes, *op.tile_axes}
        walks = (
            is_load
            and bool(around)
            and (op.gathered or not computed)
            and near.issuperset(op.tile_axes)
            and (op.gathered or None not in op.subscript_axes)
        )
        aligned, vector = math.gcd(_ALIGNED, *apart), VECTOR_BYTES // op.itemsize
        outside = tuple([a for a in around if a not in op.tile_axes])
        others = tuple([axis for axis in self.order if axis not in reached])
        passes = max([1, *(count for _, count in op.looped)])
        return Access(
            kind=op.kind,
            slot=op.slot,
            storage=op.storage,
            region=op.region,
            tile=self.tile(op.tile_axes),
            axes=op.tile_axes,
            itemsize=op.itemsize,
            once_bytes=op.accessed_numel * op.itemsize,
            whole_bytes=math.prod([extent for _, stride, extent, _ in dimensions if stride]) * op.itemsize,
            inner=inner,
            strided=None if together else _near(op) if op.gathered else _strided(op),
            quotients=op.quotients if inner is None else (),
            nested=_nested(op),
            aligned=aligned,
            widest=min(vector, aligned),
            widest_of_run=vector if op.has_run_of_vectors(self.grid, VECTOR_BYTES) else min(vector, aligned),
            unit_stride=_unit_stride(op),
            inside=tuple([axis for axis in self.order if axis in reached]),
            apart=others,
            again=tuple([a for a in around if a not in reached]) if walks else (),
            outside=outside,
            looped=op.looped if is_load else (),
            numbered=op.kind == "store" and None in op.subscript_axes,
            copied_bytes=op.itemsize * (min(vector, aligned) if inner is not None else 1),
            feeds_dots=any([op.region == fact.region for fact in self.matmuls]),
            in_loop=self.facts.regions[op.region].kind == "loop",
            carried=is_load and op.slot in self.carried,
            turned=beside_turned(op, self.facts) if op.kind == "store" else None,
            placed=tuple(a for a in self.order if a in op.subscript_axes) if op.gathered and not op.steps else None,
            bins=width_of(op.bins, op.summed) if op.bins else 0,
            summed=op.summed,
            read_again=bool(outside or others) or passes > 1 or self.last_reads.get(op.storage, -1) > op.slot,
            vectored=op.atomic == "add" and op.dtype in _VECTORED,
        )

    def reduced(self, fact: ReductionFact, accesses: tuple[Access, ...]) -> Iterator[Reduction]:
        """Yield the reductions of a fact: those of one tile and place together."""
        values = dict[tuple[tuple[int, ...], int], int]()
        for each in fact.tiles:
            values[each.axes, each.at] = values.get((each.axes, each.at), 0) + _VALUES.get(each.name, 1) * each.count
        for (tile, at), count in values.items():
            yield self.reduction(fact, accesses, tile, at, count)

    def reduction(
        self, fact: ReductionFact, accesses: tuple[Access, ...], tile: tuple[int, ...], at: int, values: int
    ) -> Reduction:
        vector = VECTOR_BYTES // max(1, fact.input_load_itemsize or fact.itemsize)
        products = (p for p in self.matmuls if p.region == fact.region and {p.m_axis, p.n_axis} <= set(tile))
        widest, ahead = self.spread(tile, at, vector, accesses)
        adjacent = self.adjacent(fact.region, tile)
        return Reduction(
            fact=fact,
            axes=tile,
            tile=self.tile(tuple(axis for axis in tile if axis not in fact.gone)),
            values=values,
            widest=1 if adjacent else widest,
            ahead=ahead,
            adjacent=adjacent,
            product=next(products, None),
        )

    def adjacent(self, region: int, tile: tuple[int, ...]) -> tuple[int, ...]:
        """Return the axes of a tile along which a load of a computed place has adjacent neighbours, if these are several."""
        loads = (op for op in self.facts.memory_ops if op.kind == "load" and op.region == region and op.gathered)
        steps = next((dict(op.steps) for op in loads if op.tile_axes == tile), {})
        found = tuple(axis for axis in tile if steps.get(axis) == 1.0)
        return found if len(found) > 1 else ()

    def spread(
        self, tile: tuple[int, ...], at: int, vector: int, accesses: tuple[Access, ...]
    ) -> tuple[int, tuple[int, ...]]:
        """Return the elements of the widest load of a thread, and the axes that threads are spread over before that of
        dimension ``at``.
        """
        moved = [access.widest for access in accesses if access.kind == "load" and access.axes == tile]
        *before, last = tile
        # a tile that no access has is computed element by element: neighbours along the last axis in other threads
        loaded = any(set(tile) <= set(op.tile_axes) for op in self.facts.memory_ops) or bool(self.matmuls)
        ahead = (last, *before[:at]) if loaded else tile[:at:-1]
        return min(vector, max(moved, default=vector)) if loaded else 1, ahead if at != len(tile) - 1 else ()

    def scans(self, accesses: tuple[Access, ...]) -> list[Scan]:
        found = []
        for fact in self.facts.scans:
            if fact.axis is not None and not set(fact.tile).isdisjoint(self.order):
                around = tuple(axis for axis in fact.tile if axis not in self.order)
                loads = [access for access in accesses if access.kind == "load" and access.axes == fact.tile]
                vector = VECTOR_BYTES // min([access.itemsize for access in loads], default=REGISTER_BYTES)
                widest, ahead = self.spread(fact.tile, fact.tile.index(fact.axis), vector, accesses)
                found.append(
                    Scan(
                        axis=fact.axis,
                        tile=self.tile(fact.tile),
                        axes=fact.tile,
                        words=max(1, fact.itemsize // REGISTER_BYTES),
                        ops=fact.ops + _SCANNED_POLYNOMIAL_OPS * fact.polynomials,
                        sfu_ops=fact.sfu_ops - fact.polynomials,
                        around=around,
                        widest=widest,
                        ahead=ahead,
                    )
                )
        return found

    def sorts(self) -> Iterator[Sort]:
        for fact in self.facts.sorts:
            if fact.axis is not None and not set(fact.tile).isdisjoint(self.order):
                around = tuple(axis for axis in fact.tile if axis not in self.order)
                yield Sort(fact.axis, self.tile(fact.tile), fact.itemsize, around)


def _extent(axis: AxisFact) -> Extent:
    elements = axis.mean if axis.extent is None else axis.extent
    return Extent(axis.block_id, elements, axis.outer, axis.padded if axis.rollable else 0)


def _with_run(op: MemoryOpFact) -> MemoryOpFact:
    """Return an operand without steps, whose computed subscript is its axis where neighbours of that are adjacent.

    ``x[rows, tile.begin * 2 + hl.arange(64)]`` is a run along the axis of 64 elements.
    """
    axes = [axis for axis, step in op.steps if step == 1.0]
    at = [i for i, (axis, n) in enumerate(zip(op.subscript_axes, op.strides, strict=True)) if axis is None and n == 1]
    if len(axes) != 1 or len(at) != 1 or op.subscript_axes.count(None) != 1 or axes[0] in op.subscript_axes:
        return dataclasses.replace(op, steps=())
    subscripts = tuple(axes[0] if i == at[0] else axis for i, axis in enumerate(op.subscript_axes))
    return dataclasses.replace(op, subscript_axes=subscripts, gathered=False, steps=())


def _strided(op: MemoryOpFact) -> tuple[int, int] | None:
    """Return the axis with the smallest step in memory, and the bytes of a step, if that is less than a sector."""
    dimensions = zip(op.subscript_axes, op.strides, op.extents, op.scales, strict=True)
    steps = [
        (s * scale * op.itemsize, axis) for axis, s, extent, scale in dimensions if axis in op.tile_axes and extent > 1
    ]
    step, axis = min(((step, axis) for step, axis in steps if step > 0), default=(SECTOR_BYTES, None))
    return None if axis is None or step >= SECTOR_BYTES else (axis, step)


def _near(op: MemoryOpFact) -> tuple[int, float] | None:
    """Return the last axis of a tile and the mean bytes of a step, if that is less than a sector.

    Lanes of computed subscripts lie along the last axis.
    """
    step = dict(op.steps).get(op.tile_axes[-1], 0.0) * op.itemsize if op.tile_axes else 0.0
    return (op.tile_axes[-1], step) if 0 < step < SECTOR_BYTES else None


def _unit_stride(op: MemoryOpFact) -> frozenset[int | None]:
    """Return the axes along which neighbours are neighbours in memory, or nearly so."""
    found = {a for a, stride in zip(op.subscript_axes, op.strides, strict=True) if stride == 1}
    return frozenset(found | {axis for axis, step in op.steps if 0 < step * op.itemsize < SECTOR_BYTES})


def _nested(op: MemoryOpFact) -> tuple[tuple[int, int], ...]:
    """Return the axes along which an access is contiguous, each given all elements of those before, and their elements
    in memory.
    """
    found: list[tuple[int, int]] = []
    following = 1
    dimensions = zip(op.subscript_axes, op.strides, op.extents, op.scales, strict=True)
    left = [(axis, stride, extent) for axis, stride, extent, scale in dimensions if extent > 1 and scale == 1]
    while True:
        there = [(axis, extent) for axis, stride, extent in left if stride == following and axis is not None]
        if not there:
            return tuple(found)
        found.append(there[-1])
        following *= there[-1][1]


def _divided(facts: KernelFacts) -> tuple[int, ...]:
    """Return the axes of loops whose accumulation programs may share."""
    if facts.matmuls and facts.split_axis is not None:
        return (facts.split_axis,)
    if facts.matmuls:  # a loop over K has tiles that a config chooses, or that the kernel fixes
        fixed = {a for region in facts.regions if region.kind == "loop" for a in region.axes if facts.axes[a].size}
        tiles = (f.k_axis if f.k_block_id is None and f.k_axis in fixed else f.k_block_id for f in facts.matmuls)
        return tuple(dict.fromkeys(axis for axis in tiles if axis is not None))
    summed = (fact.axis for fact in facts.reductions if fact.category == "user_tile")
    return tuple(dict.fromkeys((*summed, *facts.split_epilogue_loops)))
