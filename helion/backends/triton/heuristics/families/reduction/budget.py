"""The register budget over live tiles, shared by both kinds of reduction kernels.

The sizes of reduced axes and of grid axes follow from the bytes of tiles that are live at the same time. The budget is
the register file of one SM. The figures are the published ones for H100 (245760 bytes of row budget and its multiples),
written as fractions of ``Target``'s register file.
"""

from __future__ import annotations

import math
from typing import ClassVar

from ......_compiler.facts.records import AxisFact, KernelFacts, LiveTiles, MemoryOpFact, ReductionFact
from ......_shapes import cdiv, next_power_of_2, previous_power_of_2
from ......_support.records import dataclass, field
from ......autotuner.proposal import Declined
from ......hardware import Target
from ...sizing import extent_of, has_wide_memory
from ...tuned import Tuned, tuned

_REGISTER_BYTES = 4


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "reduction_budget"

    #: Fraction of the register file for live tiles; the rest is for addresses and temporaries.
    row_share: tuple[int, int]
    #: A reduction that carries a whole tile through its loop gets half of that.
    carried_divisor: int
    #: A row that is needed again stays in registers up to this many times the budget. The count of live tiles is that
    #: of the IR, and registers are reused within it. Rows that a second loop would read again only to store cost less
    #: when chunked.
    hold: tuple[int, int]
    hold_store_only: tuple[int, int]
    #: Rows of at most this many elements are loaded whole: a chunk of them would be less than a warp reads at once.
    least_chunk: int
    #: Most elements of a chunk.
    max_chunk: int
    #: Least waves of programs when programs get several rows, and most rows.
    min_waves: int
    max_rows: int
    #: Programs per SM that a very long grid is cut to, and the rows that small ones (by elements) start from.
    grid_waves: int
    small_rows: tuple[tuple[int, int], ...]
    #: Elements of the tile of a loop that only applies a result, where memory is fast.
    wide_apply_tile: int
    #: Bytes along the contiguous axis where that is not the reduced one: a full transaction, or less while SMs are
    #: idle. The floor is the sector in which memory is written. It is one vector load where nothing is stored or where
    #: this many elements fit in registers.
    held_columns: int
    #: Least fraction of the SMs that whole sectors keep busy.
    busy: float
    #: A tensor decides the layout of tiles only if the largest has at most this many times its bytes.
    small: int


_TUNED = tuned(_Numbers)

_LINE_BYTES, _SECTOR_BYTES, _VECTOR_BYTES = 128, 32, 16


@dataclass
class Allocation:
    """Sizes of tunable axes and chunks of rollable ones, in elements; a chunk of None loads the dimension whole.

    ``reduced_away``: a grid axis starts above 1 and no live tile spans it, so each program accumulates many of its
    tiles. ``columns``: the contiguous grid axes that a reduction runs across, with the elements they start from.
    """

    primary: ReductionFact
    sizes: dict[int, int] = field(default_factory=dict)
    chunks: dict[int, int | None] = field(default_factory=dict)
    reduced_away: bool = False
    columns: dict[int, int] = field(default_factory=dict)

    @property
    def looped(self) -> bool:
        return any(chunk is not None for chunk in self.chunks.values())


def row_budget(target: Target) -> int:
    """Return the bytes of live tiles per program."""
    over, under = _TUNED.row_share
    return target.registers_per_sm * _REGISTER_BYTES * over // under


def allocate(facts: KernelFacts, target: Target, *, hold: bool = True) -> Allocation:
    """Return sizes for every tunable axis and every rollable one. The kernel needs a reduction of known extent.

    ``hold`` False chunks every row that can be chunked.
    """
    primary = facts.primary_reduction
    assert primary is not None
    return _Allocator(facts, target, primary, hold).run()


def reduction_alone(facts: KernelFacts) -> ReductionFact | Declined:
    """Return the reduction that sizes are allocated for, of a kernel without a matmul."""
    if facts.matmuls:
        return Declined("the kernel has a matmul")
    return facts.primary_reduction or Declined("no reduction of known extent inside of a program")


def column_axis(facts: KernelFacts, fact: ReductionFact) -> int | None:
    """Return the tile of the grid along which all tensors that ``fact`` reduces are contiguous, if there is one.

    Tensors much smaller than the largest do not count, such as a mask that all columns share. Columns may be of short
    records, such as the parts of complex numbers.
    """
    found = {(axis, parts) for op in _spanning(facts, fact) for axis, parts in _contiguous(op, facts, fact)}
    block, _ = found.pop() if len(found) == 1 else (None, 1)
    if block is None or block == fact.axis:
        return None
    return block if facts.axes[block].on_grid and facts.axes[block].tunable else None


def column_bytes(facts: KernelFacts, fact: ReductionFact) -> int:
    """Return the bytes of an element of a column, with all parts of a record."""
    found = [(op.itemsize * parts, parts) for op in _spanning(facts, fact) for _, parts in _contiguous(op, facts, fact)]
    return max((size for size, parts in found if parts > 1), default=max(1, fact.input_load_itemsize))


def _spanning(facts: KernelFacts, fact: ReductionFact) -> list[MemoryOpFact]:
    """Return the loads of values that ``fact`` reduces, of the largest tensors."""
    spanning = [op for op in facts.memory_ops if _is_spanned(op, facts, fact)]
    most = max((op.accessed_numel * op.itemsize for op in spanning), default=0)
    return [op for op in spanning if op.accessed_numel * op.itemsize * _TUNED.small >= most]


def _contiguous(op: MemoryOpFact, facts: KernelFacts, fact: ReductionFact) -> list[tuple[int | None, int]]:
    """Return the axes along which a load is contiguous, each with the elements of a record of whole dimensions.

    A dimension that ``fact`` reduces is no part of a record.
    """
    layout = list(zip(op.subscript_axes, op.strides, op.extents, strict=True))
    parts = 1
    while True:
        found = [(axis, extent) for axis, stride, extent in layout if stride == parts and extent > 1]
        records = {axis.block_id for axis in facts.axes if axis.kind == "full" and axis.block_id != fact.axis}
        whole = [extent for axis, extent in found if axis in records]
        if len(found) != 1 or not whole or parts * whole[0] * op.itemsize > _VECTOR_BYTES:
            return [(axis, parts) for axis, _ in found] or [(None, 1)]
        parts *= whole[0]


def _is_spanned(op: MemoryOpFact, facts: KernelFacts, fact: ReductionFact) -> bool:
    """Return whether ``op`` loads a value of at least two dimensions that ``fact`` reduces."""
    spans = op.kind == "load" and fact.axis in op.subscript_axes and len(set(op.tile_axes)) > 1
    return spans and facts.regions[op.region].root == fact.root


def _busy(line_bytes: int, stores: bool) -> float:
    """Return the fraction of the SMs that columns of ``line_bytes`` should keep busy.

    Every program that shares a sector reads it, so fewer programs with whole sectors are enough where only results are
    stored (measurement ``column_sectors``).
    """
    return 1.0 if stores or line_bytes > _SECTOR_BYTES else _TUNED.busy


class _Allocator:
    def __init__(self, facts: KernelFacts, target: Target, primary: ReductionFact, hold: bool) -> None:
        self.facts, self.target, self.primary, self.hold = facts, target, primary, hold
        self.budget = row_budget(target)
        self.result = Allocation(primary)
        self.seated: dict[int, int] = {}

    def run(self) -> Allocation:
        facts = self.facts
        for fact in facts.sized_reductions:
            self.column(fact)
        for axis in facts.axes:
            if axis.on_grid:
                self.seated[axis.block_id] = self.floor(axis) if axis.tunable else axis.size or 1
        by_region: dict[int, list[ReductionFact]] = {}
        for fact in facts.sized_reductions:
            by_region.setdefault(fact.region, []).append(fact)
        for group in by_region.values():
            for fact in sorted(group, key=lambda f: (not f.full_extent, -f.extent)):
                if fact.axis not in self.seated:
                    self.reduced(fact)
        for block in facts.grid_axes:
            if facts.axes[block].tunable:
                self.result.sizes[block] = self.seated[block] = self.grid(facts.axes[block])
        for axis in facts.tunable_axes:
            if axis.block_id not in self.seated:
                self.result.sizes[axis.block_id] = self.seated[axis.block_id] = self.independent(axis)
        return self.result

    # --- footprints
    # ------------------------------------------------------------------------------------------------------

    def width(self, axis: int) -> int:
        """Return the elements of an axis: its size if given, else all of it."""
        fact = self.facts.axes[axis]
        return self.seated.get(axis) or fact.padded or fact.size or 1

    def polynomial(self, tiles: LiveTiles, axis: int) -> tuple[int, int]:
        """Return (scale, flat): the bytes of ``tiles`` are scale * size of the axis + flat."""
        scale = flat = 0
        for axes, itemsize in tiles:
            if axis in axes:
                scale += itemsize * math.prod(self.width(a) for a in axes if a != axis)
            else:
                flat += itemsize * math.prod(map(self.width, axes))
        return scale, flat

    def worst(self, axis: int) -> tuple[int, int]:
        """Return the polynomial of the group with the largest scale; one element per lane where no tile spans
        the axis.
        """
        found = [self.polynomial(fact.live_tiles, axis) for fact in self.facts.sized_reductions]
        scale, flat = max(found, key=lambda pair: pair[0], default=(0, 0))
        return max(scale, self.primary.itemsize), flat

    # --- one axis at a time
    # ----------------------------------------------------------------------------------------------

    def together(self, axis: AxisFact) -> list[AxisFact]:
        """Return the axes of the grids that ``axis`` is on."""
        axes = (self.facts.axes[a] for a in self.facts.grid_axes)
        return [other for other in axes if set(other.roots) & set(axis.roots)]

    def column(self, fact: ReductionFact) -> None:
        """Set the size of the axis along which the reduced tensors are contiguous, if that is one of the grid."""
        block = column_axis(self.facts, fact)
        if block is None:
            return
        axis, itemsize = self.facts.axes[block], column_bytes(self.facts, fact)
        programs = math.prod(map(extent_of, self.together(axis)))
        # columns of records begin anywhere: a line more for the sectors that programs share
        lines = _LINE_BYTES * (2 if itemsize > max(1, fact.input_load_itemsize) else 1)
        size = min(max(1, axis.padded), lines // itemsize)
        stores = any(
            op.kind == "store" and axis.block_id in op.tile_axes and op.rank > 1 for op in self.facts.memory_ops
        )
        held = self.facts.axes[fact.axis].padded * max(1, _VECTOR_BYTES // itemsize) <= _TUNED.held_columns
        least = _SECTOR_BYTES if stores and not held else _VECTOR_BYTES
        while size * itemsize > least and programs // size < self.target.num_sms * _busy(size * itemsize, stores):
            size //= 2
        self.result.columns[block] = max(size, self.result.columns.get(block, 1))

    def floor(self, axis: AxisFact) -> int:
        """Return the smallest tile of a grid axis.

        It is larger where the grid is very long and rows are short, or where memory is contiguous along the axis.
        """
        along = {a.block_id for a in self.facts.axes if a.kind == "full"} | {self.primary.axis}
        row = math.prod(max(1, self.facts.axes[a].padded) for a in along)
        row *= math.prod(size for a, size in self.result.columns.items() if a != axis.block_id)
        most = next((rows for limit, rows in _TUNED.small_rows if row <= limit), 1)
        dims = sum(other.tunable for other in self.together(axis))
        programs = math.ceil((_TUNED.grid_waves * self.target.num_sms) ** (1 / max(1, dims)))
        least = max(axis.min_size, self.result.columns.get(axis.block_id, 1))
        return max(least, previous_power_of_2(min(extent_of(axis) // programs, most)))

    def reduced(self, fact: ReductionFact) -> None:
        axis = self.facts.axes[fact.axis]
        if fact.category == "full_grid" or (fact.full_extent and not axis.rollable):
            self.seated[fact.axis] = max(1, axis.padded)
            return
        scale, flat = self.worst(fact.axis)
        budget = self.budget // _TUNED.carried_divisor if fact.carried_2d else self.budget
        whole = axis.padded or axis.max_size or _TUNED.max_chunk
        chunk = min(_TUNED.max_chunk, previous_power_of_2((budget - flat) // scale), whole)
        if self.may_hold(fact, scale, flat) or (fact.full_extent and whole <= _TUNED.least_chunk):
            chunk = whole
        if fact.full_extent:
            held = chunk >= whole and self.hold
            chunk = chunk if held else min(chunk, max(axis.min_size, whole // 2))
            self.result.chunks[fact.axis] = None if held else chunk
            self.seated[fact.axis] = whole if held else chunk
        else:
            self.result.sizes[fact.axis] = self.seated[fact.axis] = max(axis.min_size, chunk)

    def may_hold(self, fact: ReductionFact, scale: int, flat: int) -> bool:
        """Return whether a row beyond the budget stays in registers, because a chunked loop would read it again.

        A loop that the kernel writes itself reads its row again in any case.
        """
        if (
            not (fact.full_extent and fact.re_read)
            or fact.carried_2d
            or not 0 < fact.extent <= self.target.max_tensor_numel
        ):
            return False
        over, under = _TUNED.hold_store_only if fact.store_only_re_read else _TUNED.hold
        return (scale * fact.extent + flat) * under <= self.budget * over

    def grid(self, axis: AxisFact) -> int:
        facts, floor = self.facts, self.floor(axis)
        rows = math.prod(map(extent_of, self.together(axis)))
        tiles = [tile for fact in facts.sized_reductions for tile in fact.live_tiles]
        whole = axis.padded or floor
        if not any(axis.block_id in axes for axes, _ in tiles):
            self.result.reduced_away |= floor > 1
            # each program accumulates its share, which leaves about one wave of partial results
            others = math.prod(self.seated[a.block_id] for a in self.together(axis) if a != axis)
            return max(floor, min(next_power_of_2(cdiv(rows, self.target.num_sms * others)), whole))
        if any(fact.carried_2d for fact in facts.reductions):
            return floor
        scale, flat = self.worst(axis.block_id)
        budget = self.budget // _TUNED.carried_divisor if self.primary.carried_2d else self.budget
        fitting = previous_power_of_2((budget - flat) // scale)
        # rows of a program are those along all of its grid axes
        others = math.prod(self.seated[a.block_id] for a in self.together(axis) if a != axis and a.tunable)
        occupancy = previous_power_of_2(rows // (self.target.num_sms * _TUNED.min_waves * others))
        most = whole if self.primary.category == "full_grid" else max(1, _TUNED.max_rows // others)
        return max(floor, min(fitting, occupancy, most, whole))

    def independent(self, axis: AxisFact) -> int:
        """Return the size of a tile of a loop that reduces nothing, such as one that applies a result."""
        if any(fact.axis == axis.block_id for fact in self.facts.reductions):
            return axis.min_size
        size = previous_power_of_2(self.budget // self.primary.itemsize)
        if axis.padded:
            size = min(size, axis.padded)
        applies = axis.extent is not None and axis.extent == self.primary.extent
        return max(
            axis.min_size,
            min(size, _TUNED.wide_apply_tile) if applies and has_wide_memory(self.target) else size,
        )
