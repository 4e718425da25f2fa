"""Orders of programs in which those next to each other load the same rows, or are next to each other in memory.

A grid over rows and over results of each row, such as lags or thresholds, loads a row once for each result. The caches
keep it where the programs of one row follow each other. In the default order, those of one result do: each of them reads
all rows from memory again (measurement ``rows_read_again``).
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from ...._compiler.facts.records import KernelFacts, MemoryOpFact
from ...._shapes import cdiv
from ...._support.records import dataclass, replace
from ....hardware import Target
from ..proposal import TritonProposal
from .choose import trust, unless_faster
from .predicted_time import proposal_us
from .sizing import all_sizes, extent_of
from .tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "program_order"

    #: Most bytes of a short piece of a row: memory opens a page of more bytes.
    piece_bytes: int


def innermost_first(first: int, facts: KernelFacts) -> dict[int, tuple[int, ...]]:
    """Return ``loop_orders`` with neighbouring programs along ``first``, then along the last of the other axes."""
    axes = facts.grid_axes
    if facts.num_roots != 1 or len(axes) < 2 or first not in axes:
        return {}
    at = axes.index(first)
    return {0: (at, *(other for other in reversed(range(len(axes))) if other != at))}


def near_rows(proposal: TritonProposal, facts: KernelFacts, target: Target) -> TritonProposal:
    """Return the proposal with another order of programs, if that is predicted to be faster.

    Only grids are reordered of which some load lacks an axis: other programs then load the same rows.
    """
    if facts.num_roots != 1 or proposal.loop_orders or proposal.l2_groupings or proposal.pid_type is not None:
        return proposal
    grid, sizes = facts.grid_axes, all_sizes(facts, proposal.block_sizes, proposal.reduction_loops)
    tiles = [cdiv(extent_of(facts.axes[axis]), sizes.get(axis, 1)) for axis in grid]
    several = [at for at, count in enumerate(tiles) if count > 1]
    loads = [{*op.subscript_axes, *op.tile_axes} for op in facts.memory_ops if op.kind == "load"]
    if len(several) < 2 or not any(axes and not {grid[at] for at in several} <= axes for axes in loads):
        return proposal
    orders = ((at, *(other for other in range(len(grid)) if other != at)) for at in several if at)
    others = [
        replace(proposal, loop_orders={0: order}, reason=f"{proposal.reason}, programs of the same rows together")
        for order in orders
    ]
    first, *timed = ((each, proposal_us(facts, each, target)) for each in (proposal, *others))
    return unless_faster(first, timed, trust(target).near_rows)


def beside_pieces(proposal: TritonProposal, facts: KernelFacts) -> TritonProposal:
    """Return the proposal with neighbouring programs along the axis of the grid whose pieces of memory are neighbours.

    Rows of a tile are then short pieces of longer rows, such as those of one head of all. Programs that run at once read
    whole rows (measurement ``pieces_of_heads``).
    """
    if facts.num_roots != 1 or proposal.loop_orders or proposal.l2_groupings or proposal.pid_type is not None:
        return proposal
    found = Counter[int]()
    for op in facts.memory_ops:
        axis = _between_rows(op, facts)
        if axis is not None:
            found[axis] += op.accessed_numel * op.itemsize
    if not found:
        return proposal
    first = max(found, key=lambda axis: found[axis])
    if 2 * found[first] < sum(op.accessed_numel * op.itemsize for op in facts.memory_ops):
        return proposal
    reason = f"{proposal.reason}, programs of neighbouring pieces together"
    return replace(proposal, loop_orders=innermost_first(first, facts), reason=reason)


def _between_rows(op: MemoryOpFact, facts: KernelFacts) -> int | None:
    """Return the axis of the grid, one index for a program, along which short pieces of rows of a tile follow each other."""
    inner = op.inner_axis
    if inner is None or op.gathered or len(op.tile_axes) < 2:
        return None
    piece = max(1, facts.axes[inner].padded)
    places = [*zip(op.subscript_axes, op.strides, op.extents, strict=True)]
    longest = max(stride for axis, stride, _ in places if axis in op.tile_axes)
    for axis, stride, extent in places:
        alone = axis in facts.grid_axes and axis not in op.tile_axes
        if (
            alone
            and extent > 1
            and stride <= piece
            and stride < longest
            and stride * op.itemsize <= tuned(_Numbers).piece_bytes
        ):
            return axis
    return None
