"""A row kernel as its facts describe it, for decisions before a plan is made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from ....._compiler.facts.records import KernelFacts, MemoryOpFact, ReductionFact
from ....._shapes import dtype_name
from ....._support.records import dataclass, field
from ...plan.rowwise.buckets import bucket_of
from ...plan.rowwise.demand import GRANULE_BYTES, WORD_BYTES, RowDemand, is_wide
from ...plan.rowwise.passes import MOST_KEPT_COLUMNS, POSITION_REGISTERS, held_bytes

SFU_WORK, POLYNOMIAL_WORK, FP8_WORK = 2, 20, 6
"""Instructions of an operation on the special function unit, of one that is a polynomial, and of a conversion to e4m3,
approximately."""
EXACT_WORK = 8
"""The same as ``SFU_WORK`` for elements of 32 bits, by ptxas for sm_90: 7 of an exponential, 10 of a division, 24 of a
logarithm. Those of 16 bits have short forms, of one instruction each but for the logarithm's polynomial."""
ACCESS_WORK, POSITION_WORK = 4, 4
"""Instructions that load an element, and those of the search for one position."""

LEAST_KEPT_WALKS = 2
"""Passes over a row from which on polynomials are probably before the last one: facts do not say where."""

SUMS = frozenset({"sum", "mean"})
"""Reductions that one pass over a row may have, though one depends on another."""


@dataclass(frozen=True, kw_only=True)
class RowShape:
    """A row kernel from facts: ``rows`` is the axis of rows, and ``blocks`` that of blocks whose rows are summed.

    ``fixed`` are sizes that the kernel gives to these axes.
    """

    demand: RowDemand
    m: int
    rows: int
    blocks: int | None = None
    fixed: Mapping[int, int] = field(default_factory=dict)

    @property
    def tile(self) -> int | None:
        """The axis whose size is the number of rows of a CTA at a time; None if the kernel fixes it."""
        return None if self.rows in self.fixed else self.rows


def describes_rows(facts: KernelFacts) -> bool:
    """Return whether a kernel reduces something, and has no matmul."""
    return not facts.matmuls and bool(facts.reductions)


def row_shape_of(facts: KernelFacts) -> RowShape | str:
    """Return the row kernel of facts, or the reason why they show none."""
    if facts.num_roots != 1:
        return "the grid is not one tile of rows"
    grid, inner = _grid_of_rows(facts), _rows_of_blocks(facts)
    rows = grid if inner is None else (inner,)
    columns = {axis.block_id for axis in facts.axes if axis.block_id not in (*grid, inner)}
    parts = _parts(facts, columns)
    columns -= parts
    extents = {facts.axes[axis].extent for axis in columns}
    m, n = math.prod(facts.axes[axis].extent or 0 for axis in grid), next(iter(extents), None)
    if len(extents) != 1 or not n or not m:
        return "rows do not have one number of columns"
    loads = _accesses(facts, "load", rows, columns)
    stores = _accesses(facts, "store", rows, columns)
    repeated = [op for axis in grid for op in _accesses(facts, "load", (axis,), columns)] if len(grid) > 1 else []
    if not loads:
        return "the kernel reads no tensor of rows"
    loads += repeated
    reads = [op for op in facts.memory_ops if op.kind == "load"]
    vectors = [op for op in reads if len(op.tile_axes) == 1 and op.tile_axes[0] in columns]
    reductions = [fact for fact in facts.reductions if fact.axis in columns]
    stages = max((len(fact.stages) for fact in reductions), default=0)
    groups, wide = _groups(facts, parts, min(op.itemsize for op in loads))
    positions = sum(name.startswith("arg") for fact in reductions for name in fact.names)
    stages = max(stages, 2) if positions else stages  # the extreme, then its position
    again = [op for op in loads if stages > 1 or any(each.feeds_store for each in reads if each.storage == op.storage)]
    sums = [
        op for op in facts.memory_ops if op.kind == "store" and len(op.tile_axes) == 1 and op.tile_axes[0] in columns
    ]
    pairs = [op for op in _accesses(facts, "store", rows, parts) if facts.axes[op.tile_axes[-1]].extent == n // 2]
    later = bool(stores or pairs) and not (len(columns) == 1 and _in_loops(facts, reductions))
    walks = _walks(stages, len(columns), {name for fact in reductions for name in fact.names})
    least, n, pitches = _bucket(facts, columns, loads, (*loads, *stores, *(sums if inner is not None else ())))
    keeps = inner is None and not wide and len(again) == 1 and _keeps_costly(facts, columns, walks if later else 0, n)
    work = _work(facts, columns, [op.itemsize for op in loads], walks, positions, 1 if keeps else walks - (not later))
    demand = RowDemand(
        n=n,
        least=least,
        inputs=tuple(op.itemsize for op in loads),
        outputs=tuple(op.itemsize for op in stores),
        pitches=pitches,
        vectors=tuple({op.storage: op.itemsize for op in vectors}.values()),
        repeated=bool(repeated),
        held_bytes=_held_bytes(again if later or stages > 1 else [], keeps),
        keeps_computed=keeps,
        live=0 if keeps or inner is not None else _live(again, reductions, columns, stages > 1 or later),
        exchanges=(sum(len(fact.names) for fact in reductions) + (stages > 1),) if stages else (),
        passes=stages + later,
        walks=0 if inner is not None else walks,
        later=later,
        sums=len(sums) if inner is not None else 0,
        group=max(groups, default=0),
        pairs=tuple(op.itemsize for op in pairs),
        wide=wide,
        gathers=_gathers(reads, columns),
        temporaries=_place_registers(facts, columns, parts, positions > 0 or wide > 0),
        work=work + FP8_WORK * sum(op.dtype == torch.float8_e4m3fn for op in stores),
    )
    return RowShape(demand=demand, m=m, rows=rows[-1], blocks=None if inner is None else grid[0], fixed=_fixed(facts))


def _gathers(reads: Sequence[MemoryOpFact], columns: set[int]) -> int:
    """Return the number of loads of single elements of rows."""
    return sum(op.gathered and not columns & {*op.tile_axes} for op in reads)


def _fixed(facts: KernelFacts) -> dict[int, int]:
    return {axis.block_id: axis.size for axis in facts.axes if axis.kind == "fixed" and axis.size is not None}


def _grid_of_rows(facts: KernelFacts) -> tuple[int, ...]:
    """Return the axes of the grid without that of parts of rows, which the kernel reduces."""
    grid = facts.grid_axes
    if len(grid) < 2 or facts.axes[grid[-1]].kind != "fixed":
        return grid
    return grid[:-1] if any(fact.axis == grid[-1] for fact in facts.reductions) else grid


def _in_loops(facts: KernelFacts, reductions: Sequence[ReductionFact]) -> bool:
    """Return whether loops over columns, or a grid, reduce rows: their stores do not depend on their reductions."""
    return bool(reductions) and all(
        fact.category in ("user_tile", "fixed") or facts.axes[fact.axis].on_grid for fact in reductions
    )


def _walks(stages: int, loops: int, names: set[str]) -> int:
    """Return the passes over a row, of which one may reduce a mean and sums about it; with several loops over columns, at
    least three."""
    together = min(stages, 1) if names <= SUMS else stages
    return max(together, loops if loops > 1 else 0) + 1


def _bucket(
    facts: KernelFacts, columns: set[int], loads: Sequence[MemoryOpFact], accesses: Sequence[MemoryOpFact]
) -> tuple[int, int, tuple[int, ...]]:
    """Return the fewest columns if only the launch knows their number, else 0; the most columns; and strides of rows."""
    n = max(facts.axes[axis].extent or 0 for axis in columns)
    strides = tuple(op.strides[-2] for op in accesses)
    if all(facts.axes[axis].static for axis in columns):
        return 0, n, strides
    bucket = bucket_of(n, n % (GRANULE_BYTES // min(op.itemsize for op in loads)) == 0)
    return bucket[0], bucket[-1], tuple(bucket[-1] if stride == n else 0 for stride in strides)


def _parts(facts: KernelFacts, columns: set[int]) -> set[int]:
    """Return the axes of groups of columns, and of the columns of a group: shorter ones that no load has, or two whose
    product is that of all columns."""
    loaded = {axis for op in facts.memory_ops for axis in op.tile_axes if op.kind == "load"}
    extents = {axis: facts.axes[axis].extent or 0 for axis in columns}
    longest = max(extents.values(), default=0)
    products = {extent * other for extent in extents.values() for other in extents.values()}
    grouped = {axis for axis, extent in extents.items() if extent and longest % extent == 0 and longest in products}
    return {axis for axis in (columns - loaded) | grouped if extents[axis] < longest}


def _groups(facts: KernelFacts, parts: set[int], least_bytes: int) -> tuple[list[int], int]:
    """Return the columns of groups that are reduced, and how many of these reductions no warp has at once."""
    groups = [facts.axes[fact.axis].extent or 0 for fact in facts.reductions if fact.axis in parts]
    return groups, sum(is_wide(group, GRANULE_BYTES // least_bytes) for group in groups)


def _place_registers(facts: KernelFacts, columns: set[int], parts: set[int], found: bool) -> int:
    """Return the registers for places of elements: of positions or wide groups, if they are ``found``, of numbers of
    columns, and of numbers of groups."""
    found |= any(each.indices and each.axes[-1] in columns for each in facts.work)
    reads = [op for op in facts.memory_ops if op.kind == "load" and op.tile_axes]
    return POSITION_REGISTERS * max(found, len({op.storage for op in reads if op.tile_axes[-1] in parts}))


def _rows_of_blocks(facts: KernelFacts) -> int | None:
    """Return the axis of the rows of a tile of the grid, if a loop covers them."""
    found = [axis.block_id for axis in facts.axes if axis.extent is None and axis.outer in facts.grid_axes]
    return found[0] if len(found) == 1 and len(facts.grid_axes) == 1 else None


def _accesses(facts: KernelFacts, kind: str, among: Sequence[int], columns: set[int]) -> list[MemoryOpFact]:
    """Return one access of each tensor of rows."""
    found: dict[int, MemoryOpFact] = {}
    for op in facts.memory_ops:
        axes = set(op.tile_axes)
        rows = {*among} <= axes and len(op.tile_axes) == len(among) + 1
        if op.kind == kind and rows and axes & columns and not op.gathered:
            found.setdefault(op.storage, op)
    return list(found.values())


def _held_bytes(again: Sequence[MemoryOpFact], keeps: bool) -> int:
    """Return the bytes of an element between passes: of a polynomial, or of what is read ``again``."""
    return WORD_BYTES if keeps else sum(held_bytes(dtype_name(op.dtype)) for op in again)


def _live(again: Sequence[MemoryOpFact], reductions: Sequence[ReductionFact], columns: set[int], kept: bool) -> int:
    """Return how many values of an element stay from one pass to a later one at most; with loops over columns, these are
    all that several of them read."""
    if not kept:
        return 0
    return len(again) if len(columns) > 1 else max((fact.kept for fact in reductions), default=0)


def _keeps_costly(facts: KernelFacts, columns: set[int], walks: int, n: int) -> bool:
    """Return whether threads keep polynomials of elements that two later passes read."""
    computed = any(work.polynomials for work in facts.work if columns & set(work.axes))
    return computed and walks > LEAST_KEPT_WALKS and n <= MOST_KEPT_COLUMNS


def _work(
    facts: KernelFacts, columns: set[int], itemsizes: Sequence[int], walks: int, positions: int, times: int
) -> int:
    """Return the instructions per element, approximately, of rows of inputs of these sizes.

    Each pass after the first, up to that of a position, computes an element again. Polynomials are computed ``times`` times.
    """
    special = EXACT_WORK if (max if positions else min)(itemsizes) >= WORD_BYTES else SFU_WORK
    count = polynomials = 0
    for work in facts.work:
        if columns & set(work.axes):
            count += work.ops + special * work.sfu_ops
            polynomials += work.polynomials
    count = count * (walks - 1 if positions else 1) + POLYNOMIAL_WORK * polynomials * max(1, times)
    return ACCESS_WORK + count + POSITION_WORK * positions
