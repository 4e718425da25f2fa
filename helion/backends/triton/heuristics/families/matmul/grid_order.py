"""The order of the programs of a grid whose shared operands exceed the L2 cache.

Programs that run at the same time read a shared operand from memory once. In row-major order each wave reads all rows
and a few columns. In groups of rows, or column-major, it reads about as many of each (measurement ``grid_order``).
Where data decides the range along K, the sharing is not known and the order stays.

Matrices of a batch share nothing. Rows of a result that begin within sectors share one at each edge of a tile, which two
programs write. It is written to memory once if they follow each other (measurement ``batched_order``).

In grids of more axes, such as taps of a transposed convolution, programs that share an operand follow each other. Axes of
a batch do not count, but those of groups do, whose rows are pieces of longer ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

from ......_compiler.facts.records import KernelFacts, MatmulFact
from ......_shapes import cdiv
from ......_support.records import dataclass, replace
from ......hardware import VECTOR_BYTES, Target
from ....proposal import TritonProposal
from ....resources.time.demand import rereads_depend_on_groups
from ....resources.time.roots import SECTOR_BYTES
from ...choose import trust, unless_faster
from ...predicted_time import proposal_us
from ...sizing import all_sizes, extent_of, programs_of
from ...tuned import Tuned, tuned
from .extents import within_rows


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "grid_order"

    #: Numbers of rows of tiles that run consecutively.
    groups: tuple[int, int, int, int]


_TUNED = tuned(_Numbers)


def ordered(facts: KernelFacts, proposal: TritonProposal, target: Target) -> TritonProposal:
    """Return the proposal with its programs in the order of least predicted time.

    Return it unchanged where no order is faster, where the time is not known, or where it proposes an order already.
    """
    if any(facts.axes[axis].extent is None for fact in facts.matmuls for axis in _ranges(facts, fact)):
        return proposal
    if proposal.loop_orders or proposal.pid_type is not None or "split_k" in proposal.launch:
        return proposal
    if (rows := _along_rows(facts, proposal, target)) is not None:
        return rows
    batch, ratio = _batch(facts), trust(target).grid_order
    if batch and _exceed_cache(facts, target) and trust(target).whole_batches:
        batch, ratio = set(), min(ratio, trust(target).whole_batches)
    if proposal.l2_groupings and len(set(facts.grid_axes) - batch) < 3:
        return proposal
    options = (proposal, *_options(facts, proposal, batch, target))
    first, *others = ((option, proposal_us(facts, option, target)) for option in options)
    return unless_faster(first, others, ratio)


def _options(facts: KernelFacts, proposal: TritonProposal, batch: set[int], target: Target) -> Iterator[TritonProposal]:
    """Yield the column-major order, then groups of rows if they may change the time.

    Orders of more axes are those of the axes that are not of a ``batch``.
    """
    groups = _TUNED.groups if rereads_depend_on_groups(facts, target) else ()
    roots = {facts.regions[fact.region].root for fact in facts.matmuls}
    sizes = all_sizes(facts, proposal.block_sizes)
    grids = [region for region in facts.regions if region.kind == "root" and region.root in roots]
    for grid in grids:
        tiles = [cdiv(extent_of(facts.axes[axis]), sizes[axis]) for axis in grid.axes]
        several = [at for at, count in enumerate(tiles) if count > 1]
        if len(set(grid.axes) - batch) > 2 and len(several) > 1 and not _end_within_sectors(facts):
            ungrouped = {root: group for root, group in proposal.l2_groupings.items() if root != grid.root}
            for order in _orders(facts, grid.axes, several):
                reason = f"{proposal.reason}, programs that share an operand together"
                yield replace(proposal, loop_orders={grid.root: order}, l2_groupings=ungrouped, reason=reason)
        if len(tiles) == len(several) == 2:
            yield replace(proposal, loop_orders={grid.root: (1, 0)}, reason=f"{proposal.reason}, columns first")
            for group in groups:
                reason = f"{proposal.reason}, {group} rows at a time"
                yield replace(proposal, l2_groupings={grid.root: group}, reason=reason)


def _ranges(facts: KernelFacts, fact: MatmulFact) -> Iterator[int]:
    """Yield the tile along K; without one, the axes of the loops next to and around a matmul."""
    if fact.k_block_id is not None:
        yield fact.k_block_id
        return
    root = facts.regions[fact.region].root
    for region in facts.regions:
        if region.kind == "loop" and region.root == root:
            yield from region.axes


def _batch(facts: KernelFacts) -> set[int]:
    """Return the axes of the grid that every operand of a matmul and every result has, as whole matrices.

    Their programs share nothing. Matrices whose rows are pieces of the same longer rows share pages of memory.
    """
    moved = [op for op in facts.memory_ops if op.matmul_operand or op.kind == "store"]
    batch = set(facts.grid_axes).intersection(*({*op.subscript_axes, *op.tile_axes} for op in moved))
    return batch - {axis for op in moved for axis in within_rows(op)}


def _exceed_cache(facts: KernelFacts, target: Target) -> bool:
    """Return whether some operand of all matrices of a batch exceeds the cache.

    In row-major order, each operand is read again once programs of all matrices had their turn (measurement
    ``batched_order``).
    """
    operands = (op for op in facts.memory_ops if op.matmul_operand)
    return any(math.prod(op.extents) * op.itemsize > target.l2_bytes for op in operands)


def _end_within_sectors(facts: KernelFacts) -> bool:
    """Return whether rows of a result share sectors with their neighbours: only whole batches of them were timed."""
    return any(op.kind == "store" and op.aligned * op.itemsize % SECTOR_BYTES for op in facts.memory_ops)


def _orders(facts: KernelFacts, axes: tuple[int, ...], several: list[int]) -> Iterator[tuple[int, ...]]:
    """Yield the orders in which programs that share a load of a matmul follow each other, for each load; the last axis of
    several fastest. The others follow from the last to the first, then from the first to the last."""
    last_first, found = [*reversed(range(len(axes)))], set[tuple[int, ...]]()
    for op in (op for op in facts.memory_ops if op.kind == "load" and op.matmul_operand):
        apart = [at for at in last_first if at in several and axes[at] not in (*op.subscript_axes, *op.tile_axes)]
        others = [at for at in last_first if at not in apart]
        for order in ((*apart, *others), (*apart, *reversed(others))):
            if apart and order not in found:
                found.add(order)
                yield order


def _along_rows(facts: KernelFacts, proposal: TritonProposal, target: Target) -> TritonProposal | None:
    """Return the order along rows, one matrix of a batch after the other, if tiles of these rows share sectors.

    It is also that of matrices whose rows begin anywhere: programs of many of them at once read each in short pieces
    (measurement ``batched_order``).
    """
    if len(facts.matmuls) != 1 or facts.num_roots != 1:
        return None
    (fact,), (grid, *_) = facts.matmuls, [region for region in facts.regions if region.kind == "root"]
    batch = [axis for axis in grid.axes if axis not in (fact.m_axis, fact.n_axis)]
    m, n = fact.m_axis, fact.n_axis
    if not batch or m not in grid.axes or n not in grid.axes:
        return None
    operands = [op for op in facts.memory_ops if op.slot in (fact.lhs_slot, fact.rhs_slot)]
    results = [op for op in facts.memory_ops if op.kind == "store"]
    apart = all(set(batch) <= set(op.subscript_axes) for op in (*operands, *results))
    within = all(op.inner_axis == n and op.aligned * op.itemsize % SECTOR_BYTES for op in results)
    sizes = all_sizes(facts, proposal.block_sizes)
    waits = programs_of(facts, sizes) > target.num_sms
    anywhere = waits and any(op.aligned * op.itemsize % VECTOR_BYTES for op in operands)
    across, along = (extent_of(facts.axes[axis]) > sizes[axis] for axis in (m, n))
    if len(operands) != 2 or not results or not apart or not ((within and along) or (anywhere and (across or along))):
        return None
    order = tuple(grid.axes.index(axis) for axis in (n, m, *reversed(batch)))
    return replace(
        proposal, loop_orders={grid.root: order}, l2_groupings={}, reason=f"{proposal.reason}, along rows first"
    )
