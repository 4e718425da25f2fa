"""Loads that the rows of a thread share in elementwise kernels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from ...._compiler.facts.records import KernelFacts, MemoryOpFact
from ...._support.records import dataclass, replace
from ....hardware import Target
from ..proposal import TritonProposal
from ..resources.time.roots import SECTOR_BYTES
from . import register_safety as safety
from .choose import trust, unless_faster
from .predicted_time import proposal_us
from .sizing import clamp, estimate
from .tuned import Tuned, tuned

#: Bytes that rows share, for each byte of their own, from which fewer warps with more rows each are tried.
_NEARLY = 0.75


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "pairs"

    #: Rows and columns of a program whose loads have one of both axes each, and its warps.
    rows: int
    columns: int
    warps: int


def pair_tile(tiles: TritonProposal, axis: int, first: int, facts: KernelFacts) -> TritonProposal | None:
    """Return a tile for pairs of rows and columns, where no load has both axes; None for other kernels.

    A thread loads what each axis has once for all of its elements (measurement ``pairs_of_elements``).
    """
    loads = [op for op in facts.memory_ops if op.kind == "load"]
    if facts.random_tiles or any({axis, first} <= set(op.tile_axes) or op.gathered for op in loads):
        return None
    numbers = tuned(_Numbers)
    rows, run = numbers.rows, numbers.columns
    if rows > facts.axes[axis].padded or run > facts.axes[first].padded:
        return None
    sizes = {**tiles.block_sizes, axis: rows, first: run}
    reason = f"{tiles.reason}, of {rows} x {run}: pairs of a thread share operands"
    return replace(tiles, reason=reason, block_sizes=sizes, num_warps=numbers.warps)


def computed_once(
    tiles: TritonProposal, facts: KernelFacts, target: Target, tries: Iterable[tuple[int, int]]
) -> TritonProposal | None:
    """Return the same with more rows or fewer warps, if that is predicted to be faster, where rows share polynomials.

    Threads of different rows all compute what these share, such as the sines of a token's angles for its heads
    (measurement ``shared_sines``). Of ``tries``, each has halves of the rows and a divisor of the warps.
    """
    costly = [set(work.axes) for work in facts.work if work.polynomials and work.axes]
    shared = [axis for axis in facts.tunable_axes if costly and not any(axis.block_id in axes for axes in costly)]
    if len(facts.tunable_axes) < 2 or not shared or shared[-1].block_id not in tiles.block_sizes:
        return None
    axis, warps, found = shared[-1], tiles.num_warps or 1, []
    for half_rows, fewer in tries:
        rows, count = half_rows * tiles.block_sizes[axis.block_id] // 2, warps // fewer
        if not count or clamp(rows, axis) != rows:
            continue
        sizes = {**tiles.block_sizes, axis.block_id: rows}
        if safety.within(estimate(facts, target, sizes, count, 1), safety.MANY_ROWS):
            reason = f"{tiles.reason}, of {rows} rows in {count} warps, which compute fewer polynomials"
            found.append(replace(tiles, reason=reason, block_sizes=sizes, num_warps=count))
    timed = [(each, proposal_us(facts, each, target)) for each in (tiles, *found)]
    best = unless_faster(timed[0], timed[1:], trust(target).reused)
    return None if best is tiles else best


def sharing_rows(first: int, facts: KernelFacts) -> int | None:
    """Return the innermost axis whose tiles share loads of nearly as many bytes as those of their own accesses."""
    for axis in reversed(facts.tunable_axes):
        common, own = common_and_own(axis.block_id, first, facts)
        if axis.block_id != first and axis.extent != 1 and common and common >= _NEARLY * own:
            return None if _has_parts(axis.block_id, first, facts) else axis.block_id
    return None


def _has_parts(axis: int, first: int, facts: KernelFacts) -> bool:
    """Return whether tiles of rows are stored in parts of elements, as by ``x[rows, columns, 0]``.

    Each part is an access and a register of its own, and more rows multiply both (measurement ``rows_of_parts``).
    """
    tiled = (op for op in facts.memory_ops if not op.gathered and {axis, first} <= set(op.tile_axes))
    return any(op.inner_axis is None and op.kind == "store" for op in tiled)


def common_and_own(axis: int, first: int, facts: KernelFacts) -> tuple[int, int]:
    """Return the bytes of each element along ``first`` that loads move once for all tiles along ``axis``, and those that
    each tile moves.
    """
    accesses = [op for op in facts.memory_ops if first in op.tile_axes and not op.gathered]
    common = sum(_lane_bytes(op, first) for op in accesses if op.kind == "load" and axis not in op.tile_axes)
    own = sum(_lane_bytes(op, first) for op in accesses if op.kind != "load" or axis in op.tile_axes)
    return common, own


def _lane_bytes(op: MemoryOpFact, axis: int) -> int:
    """Return the bytes that an access moves for each element along an axis, unused ones of its sectors included."""
    at = op.subscript_axes.index(axis) if axis in op.subscript_axes else None
    step = 1 if at is None else max(1, op.strides[at] * max(1, op.scales[at]))
    return op.itemsize * min(step, max(1, SECTOR_BYTES // op.itemsize))
