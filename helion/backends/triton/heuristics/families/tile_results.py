"""Larger tiles for kernels that store results of each tile, such as sums of its rows, which host code combines.

::

    for rows, columns in hl.tile([m, n], block_size=[block, None]):
        parts[rows.id, columns] = x[rows, columns].sum(0)
    return parts.sum(0)

The rules count the bytes of a row, and small tiles write as many results as there are elements. Host code reads them
again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import ClassVar, cast

from ....._compiler.facts.records import AxisFact, KernelFacts
from ....._support.records import dataclass, replace
from .....autotuner.proposal import Proposal
from .....hardware import Target
from ...proposal import TritonProposal
from ...resources.traffic import read_after_bytes, work
from .. import register_safety as safety
from ..choose import trust
from ..predicted_time import proposal_us
from ..sizing import all_sizes, clamp, estimate
from ..tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "tile_results"

    #: Factors of the rows of a tile, divisors of its columns, and factors of its warps.
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    warps: tuple[float, ...]
    #: Fewest columns of a tile or chunk that is divided.
    least_columns: int
    #: Least bytes of the results, as a share of those that the kernel moves.
    least_share: float


def with_larger_tiles(found: tuple[Proposal, ...], facts: KernelFacts, target: Target) -> tuple[Proposal, ...]:
    """Return the proposals after one of more rows, if that is predicted to be much faster than the first.

    The predicted time includes that in which host code reads the results.
    """
    rows = _rows(facts)
    first = cast("TritonProposal", found[0]) if found else None
    if first is None or not rows or facts.num_roots > 1 or facts.matmuls or facts.atomics or facts.messages:
        return found
    if first.pid_type is not None or first.launch or first.ranges or first.flatten_loops:
        return found
    sizes = all_sizes(facts, first.block_sizes, first.reduction_loops)
    moved = work(facts, sizes, first.num_warps or 1, target).bytes_moved
    if read_after_bytes(facts, sizes) < tuned(_Numbers).least_share * moved:
        return found
    timed = ((proposal_us(facts, each, target), each) for each in _larger(first, rows, facts, target))
    us, best = min(timed, key=lambda pair: pair[0], default=(0.0, None))
    if best is None or us > trust(target).tile_results * proposal_us(facts, first, target):
        return found
    shape = " x ".join(map(str, best.block_sizes.values()))
    return (
        replace(best, reason=f"{first.reason}; {shape} leave fewer results of tiles, {best.num_warps} warps"),
        *found,
    )


def _rows(facts: KernelFacts) -> tuple[AxisFact, ...]:
    """Return the axes of the grid whose tiles have results in memory that only host code reads."""
    loaded = {op.storage for op in facts.memory_ops if op.kind == "load"}
    stored = [op for op in facts.memory_ops if op.per_tile and op.storage not in loaded]
    free = [axis for axis in facts.tunable_axes if axis.on_grid and axis.extent is not None]
    return tuple(axis for axis in free if any(axis.block_id not in op.tile_axes for op in stored))


def _larger(
    first: TritonProposal, rows: tuple[AxisFact, ...], facts: KernelFacts, target: Target
) -> Iterator[TritonProposal]:
    """Yield the same with more rows, fewer columns and other warps, where registers hold the tile."""
    numbers, before = tuned(_Numbers), first.num_warps or 1
    for axis, more, fewer, share in itertools.product(rows, numbers.rows, numbers.columns, numbers.warps):
        sizes, chunks = dict(first.block_sizes), dict(first.reduction_loops)
        sizes[axis.block_id] = clamp(sizes[axis.block_id] * more, axis)
        if sizes[axis.block_id] != first.block_sizes[axis.block_id] * more or sizes[axis.block_id] >= 2 * axis.padded:
            continue
        for other in facts.tunable_axes:
            if other not in rows and (size := sizes[other.block_id]) > numbers.least_columns:
                sizes[other.block_id] = clamp(max(numbers.least_columns, size // fewer), other)
        for block, chunk in first.reduction_loops.items():
            length = facts.axes[block].padded if chunk is None else chunk
            if fewer > 1 and length > numbers.least_columns:
                chunks[block] = max(numbers.least_columns, length // fewer)
        warps = int(before * share)
        if not warps or warps * target.warp_size > target.max_threads_per_block:
            continue
        if safety.within(estimate(facts, target, sizes, warps, 1, chunks), safety.MANY_ROWS):
            yield replace(first, block_sizes=sizes, reduction_loops=chunks, num_warps=warps)
