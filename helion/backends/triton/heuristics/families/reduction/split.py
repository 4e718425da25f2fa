"""Reductions over rows for which the grid has few programs: split, so that enough programs share each reduction to fill
the GPU.

Matches kernels without a dot whose grid loop accumulates tiles of rows, and may then loop over them again
(``rewrites/split_k``). Examples are column sums, batch norm, group norm of channels-last
images, and norms of columns or of few long rows. It applies where whole cache lines of columns leave fewer than two
programs per SM. A program has four warps and prefetches chunks, and two of them keep an SM busy.

Where each group of an image has a program and there are one to two per SM, programs of few warps are all resident.
Programs adjacent in memory are adjacent in the grid.
"""

from __future__ import annotations

import math
from typing import ClassVar

from ......_compiler.facts.records import KernelFacts, ReductionFact
from ......_shapes import cdiv, next_power_of_2, previous_power_of_2
from ......_support.records import dataclass
from ......autotuner.proposal import Declined, Heuristic
from ......hardware import Target
from ....proposal import TritonProposal
from ...choose import fastest, trust
from ...predicted_time import proposal_us
from ...sizing import all_sizes, clamp, estimate, extent_of, warps_for_threads
from ...tuned import Tuned, tuned
from .budget import column_axis, reduction_alone

#: Bytes of a tile's rows where columns are contiguous: a cache line.
_LINE_BYTES = 128


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "split_reduction"

    #: Bytes of a chunk for each thread, in vectors of 16; and those of programs that share a reduction of many chunks.
    thread_bytes: int
    shared_bytes: int
    #: Part of the programs that SMs should have at once, below which there are twice as many.
    least_filled: float
    #: Threads, programs per SM, and stages of the loops, the fastest first.
    shared: tuple[tuple[int, int, int], ...]
    #: The same of programs that share no reduction.
    alone: tuple[int, int, int]
    #: Least chunks of a split, and of all rows: with fewer, the launch of another kernel takes longer. Then the same
    #: for plain sums.
    least_chunks: int
    least_rows: int
    least_summed: int


_TUNED = tuned(_Numbers)


class TritonSplitReductionHeuristic(Heuristic):
    name: ClassVar[str] = "TritonSplitReductionHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        primary = reduction_alone(facts)
        if isinstance(primary, Declined):
            return primary
        if not facts.splittable_k:
            return Declined("no accumulation loop can be split")
        if primary.category != "user_tile" or not facts.axes[primary.axis].tunable:
            return Declined(f"the reduction over axis {primary.axis} is not over tiles of a loop")
        sizes = _grid_sizes(facts, primary)
        programs = math.prod(cdiv(extent_of(facts.axes[a]), all_sizes(facts, sizes)[a]) for a in facts.grid_axes)
        first, *others = [_proposal(facts, primary, target, sizes, programs, *chosen) for chosen in _TUNED.shared]
        if first is not None:
            return (first, *(other for other in others if other is not None))
        few = programs in range(target.num_sms, _TUNED.alone[1] * target.num_sms + 1)
        if facts.split_epilogue_loops and few and _lies_across(facts, primary):
            return (_alone(facts, primary, target, sizes, programs),)
        in_rows = column_axis(facts, primary) is None
        if in_rows and not facts.split_epilogue_loops and programs < target.num_sms:
            return _few_chunks(facts, primary, target, sizes, programs) or Declined(
                "a split is predicted to gain little"
            )
        return Declined("the grid has a program or two for each SM, or there are few rows")


def _proposal(
    facts: KernelFacts,
    primary: ReductionFact,
    target: Target,
    sizes: dict[int, int],
    programs: int,
    threads: int,
    per_sm: int,
    stages: int,
) -> TritonProposal | None:
    slots = per_sm * target.num_sms
    parts = previous_power_of_2(max(1, slots // programs))
    if parts > 1 and parts * programs < _TUNED.least_filled * slots:
        parts *= 2
    rows = extent_of(facts.axes[primary.axis])
    least = _TUNED.least_rows if facts.split_epilogue_loops else _TUNED.least_summed
    every = (_chunk(facts, primary, sizes, threads * each) for each in (_TUNED.shared_bytes, _TUNED.thread_bytes))
    chunk = next((each for each in every if rows >= each * least), None)
    if chunk is None:
        return None
    parts = min(parts, next_power_of_2(cdiv(rows, _TUNED.least_chunks * chunk)))
    return _split(facts, primary, target, sizes, programs, parts, threads, stages, chunk) if parts > 1 else None


def _few_chunks(
    facts: KernelFacts, primary: ReductionFact, target: Target, sizes: dict[int, int], programs: int
) -> tuple[TritonProposal, ...]:
    """Return a split of rows of few chunks for fewer programs than SMs.

    With the launch that reduces the partials, it must be predicted to be faster than a wide program for each row.
    """
    most = target.max_threads_per_block
    chunks = {
        threads: _chunk(facts, primary, sizes, threads * _TUNED.thread_bytes)
        for threads in (most, most // 2, *(each[0] for each in _TUNED.shared))
    }
    whole = [
        _split(facts, primary, target, sizes, programs, 1, threads, 1, chunks[threads]) for threads in (most, most // 2)
    ]
    shared = []
    for threads, per_sm, stages in _TUNED.shared:
        rows = extent_of(facts.axes[primary.axis]) // chunks[threads]
        parts = min(previous_power_of_2(per_sm * target.num_sms // programs), previous_power_of_2(max(1, rows)))
        if parts > 1:
            split = _split(facts, primary, target, sizes, programs, parts, threads, stages, chunks[threads])
            shared.append(split)
    timed = [[(each, proposal_us(facts, each, target)) for each in group] for group in (whole, shared)]
    alone, best = map(fastest, timed)
    if alone is None or best is None or best[1] > trust(target).few_chunks * alone[1]:
        return ()
    return best[0], alone[0]


def _split(
    facts: KernelFacts,
    primary: ReductionFact,
    target: Target,
    sizes: dict[int, int],
    programs: int,
    parts: int,
    threads: int,
    stages: int,
    chunk: int,
) -> TritonProposal:
    rows = extent_of(facts.axes[primary.axis])
    sizes, warps = _fitting(facts, primary, target, sizes, chunk, threads)
    axes = _walked(facts, primary)
    return TritonProposal(
        reason=f"{programs} tiles of {rows} rows, each split over {parts} programs in chunks of {sizes[primary.axis]}, {warps} warps",
        block_sizes=sizes,
        ranges={"range_num_stages": dict.fromkeys(axes, stages)} if stages > 1 else {},
        num_warps=warps,
        num_stages=1,
        launch={"split_k": parts} if parts > 1 else {},
    )


def _alone(
    facts: KernelFacts, primary: ReductionFact, target: Target, sizes: dict[int, int], programs: int
) -> TritonProposal:
    threads = _TUNED.alone[0]
    chunk = _chunk(facts, primary, sizes, threads * _TUNED.thread_bytes)
    sizes, warps = _fitting(facts, primary, target, sizes, chunk, threads)
    return TritonProposal(
        reason=f"{programs} programs at once, in chunks of {sizes[primary.axis]}, {warps} warps",
        block_sizes=sizes,
        loop_orders={primary.root: _order(facts, primary)},
        num_warps=warps,
        num_stages=1,
    )


def _lies_across(facts: KernelFacts, primary: ReductionFact) -> bool:
    """Return whether the reduced tensors are contiguous along a whole dimension, so that adjacent programs share cache
    lines.
    """
    loads = (op for op in facts.memory_ops if op.kind == "load" and primary.axis in op.tile_axes)
    inner = {axis for op in loads for axis, stride in zip(op.subscript_axes, op.strides, strict=True) if stride == 1}
    return bool(inner) and all(axis is not None and facts.axes[axis].kind == "full" for axis in inner)


def _order(facts: KernelFacts, primary: ReductionFact) -> tuple[int, ...]:
    """Return the grid axes by the stride of their elements in memory, the smallest first."""
    loads = [op for op in facts.memory_ops if op.kind == "load" and primary.axis in op.tile_axes]
    largest = max(loads, key=lambda op: op.accessed_numel * op.itemsize)
    apart = dict(zip(largest.subscript_axes, largest.strides, strict=True))
    return tuple(sorted(range(len(facts.grid_axes)), key=lambda at: apart.get(facts.grid_axes[at], math.inf)))


def _grid_sizes(facts: KernelFacts, primary: ReductionFact) -> dict[int, int]:
    """Return whole cache lines along contiguous columns, else as few elements as the kernel allows."""
    sizes = {axis.block_id: axis.min_size for axis in facts.tunable_axes if axis.on_grid}
    column = column_axis(facts, primary)
    if column is not None:
        axis, line = facts.axes[column], _LINE_BYTES // max(1, primary.input_load_itemsize)
        sizes[column] = clamp(min(line, axis.padded or line), axis)
    return sizes


def _chunk(facts: KernelFacts, primary: ReductionFact, sizes: dict[int, int], bytes_at_once: int) -> int:
    """Return the rows that are loaded at once, over all tensors. Loads of a number for each row do not count."""
    loads = sum(op.kind == "load" and set(primary.tile) <= set(op.tile_axes) for op in facts.memory_ops)
    lanes = math.prod(all_sizes(facts, sizes)[a] for a in primary.tile if a != primary.axis)
    each = lanes * max(1, primary.input_load_itemsize) * max(1, loads)
    return previous_power_of_2(max(1, bytes_at_once // each))


def _walked(facts: KernelFacts, primary: ReductionFact) -> list[int]:
    """Return the tiles of the loops over rows: those that accumulate, and the later ones."""
    return [
        axis.block_id
        for axis in facts.tunable_axes
        if not axis.on_grid and (axis.block_id in facts.split_epilogue_loops or axis.extent == primary.extent)
    ]


def _fitting(
    facts: KernelFacts, primary: ReductionFact, target: Target, sizes: dict[int, int], chunk: int, threads: int
) -> tuple[dict[int, int], int]:
    """Return tiles with chunks of rows that do not spill, and warps."""
    warps, walked = warps_for_threads(threads, target), [facts.axes[a] for a in _walked(facts, primary)]
    sizes = sizes | {axis.block_id: clamp(chunk, axis) for axis in walked}
    while (
        estimate(facts, target, sizes, warps, 1).spill_risk and sizes[primary.axis] > facts.axes[primary.axis].min_size
    ):
        sizes |= {axis.block_id: clamp(sizes[axis.block_id] // 2, axis) for axis in walked}
    return sizes, warps


__all__ = ["TritonSplitReductionHeuristic"]
