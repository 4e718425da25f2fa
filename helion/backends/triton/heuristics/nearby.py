"""Tiles near those of a rule, for reductions that memory does not limit.

A rule knows a class of kernels by its bytes. Where instructions, latency or starting programs take longer, more or fewer
rows in fewer warps may take half of the time (measurement ``nearby_tiles``). Steps double or halve one tile or one chunk of
a row, or halve the warps, while the predicted time falls.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, cast

from ...._compiler.facts.records import AxisFact, KernelFacts
from ...._support.records import dataclass, replace
from ....autotuner.proposal import Declined, Heuristic, Proposal
from ....hardware import VECTOR_BYTES, Target
from ..proposal import TritonProposal
from . import register_safety as safety
from .choose import trust
from .predicted_time import proposal_timing, proposal_us
from .sizing import Chunks, clamp, estimate, extent_of, is_contiguous
from .tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "nearby"

    #: Share of the predicted time that memory takes from which it limits a kernel.
    limits: float
    #: Shortest predicted time: below, launches and latency take most of it.
    least_us: float
    #: Ratio of predicted times up to which the first step leads to others; it changes one tile or the warps.
    promising: float
    #: Ratio of predicted times that tells nothing: of such steps, the one with the fewest warps is taken.
    alike: float
    #: Most steps from the tiles of the rule.
    steps: int
    #: Bytes of the shortest pieces of rows of a program: the others of a line are read by another one.
    piece_bytes: int
    #: Share of the predicted time that memory takes from which programs have such pieces.
    lines: float
    #: Elements of the shortest chunk of a row, and of one that is scanned.
    least_chunk: int
    least_scanned: int
    #: Ratio of predicted times up to which chunks have a vector of each thread.
    in_vectors: float


def with_nearby(
    found: tuple[Proposal, ...], facts: KernelFacts, target: Target, rivals: Iterable[Heuristic] = ()
) -> tuple[Proposal, ...]:
    """Return the proposals after one of nearby tiles, if that is predicted to be much faster than the first.

    It must be faster than the other proposals and those of ``rivals``, the rules that follow, too.
    """
    if not found or not _applies(facts):
        return found
    first = cast("TritonProposal", found[0])
    if first.pid_type is not None or first.launch or first.ranges:
        return found
    before, numbers = proposal_timing(facts, first, target), tuned(_Numbers)
    if any(_is_fixed(facts.axes[axis], chunk, facts) for axis, chunk in first.reduction_loops.items()):
        return found
    if before.us < numbers.least_us or dict(before.units)["memory"] >= numbers.limits * before.us:
        return found
    best, us = first, before.us
    for at in range(numbers.steps):
        timed = [(proposal_us(facts, each, target), each) for each in steps(best, facts, target, few=at == 0)]
        least = min((after for after, _ in timed), default=us)
        if least >= (numbers.promising if at == 0 else 1.0) * us:
            break
        alike = [pair for pair in timed if pair[0] <= min(us, numbers.alike * least)]
        us, best = min(alike, key=lambda pair: (pair[1].num_warps or 1, pair[0]))
    stepped = any(not axis.on_grid for axis in facts.tunable_axes)
    ratio = trust(target).nearby_steps if stepped else trust(target).nearby
    if us > ratio * before.us or any(each < us for each in _others(found[1:], rivals, facts, target)):
        return found
    best = _in_vectors(best, us, facts, target)
    shape = " x ".join(map(str, best.block_sizes.values()))
    return (replace(best, reason=f"{first.reason}; predicted to be faster in {shape}, {best.num_warps} warps"), *found)


def _in_vectors(best: TritonProposal, us: float, facts: KernelFacts, target: Target) -> TritonProposal:
    """Return shorter chunks, then more warps, down to a vector of each thread, while predicted times are alike.

    The assembler keeps loads of several steps in flight where a step has one of a thread, which predictions do not count
    (measurement ``chunks_of_a_vector``).
    """
    numbers = tuned(_Numbers)
    loads = [op for op in facts.memory_ops if op.kind == "load"]
    while not facts.scans:
        sizes, warps = best.block_sizes, best.num_warps or 1
        vectors = VECTOR_BYTES * warps * target.warp_size
        long = {
            axis: chunk
            for axis, chunk in best.reduction_loops.items()
            if chunk is not None
            and any(
                chunk * math.prod(sizes.get(each, 1) for each in op.tile_axes) * op.itemsize > vectors
                for op in loads
                if axis in op.tile_axes
            )
        }
        shorter = {axis: chunk // 2 for axis, chunk in long.items() if chunk > numbers.least_chunk}
        tried = replace(best, reduction_loops={**best.reduction_loops, **shorter})
        if long and not shorter:
            if 2 * warps * target.warp_size > target.max_threads_per_block:
                break
            tried = replace(best, num_warps=2 * warps)
        if not long or proposal_us(facts, tried, target) > numbers.in_vectors * us:
            break
        best = tried
    return best


def _others(
    found: Iterable[Proposal], rivals: Iterable[Heuristic], facts: KernelFacts, target: Target
) -> Iterator[float]:
    """Yield the predicted times of the other proposals of a rule and of those of the rules that follow."""
    asked = (rule for rule in rivals if rule.promote_seed_to_default and not rule.fallback_only)
    made = (rule.propose(facts, target) for rule in asked)
    for each in (*found, *itertools.chain.from_iterable(one for one in made if not isinstance(one, Declined))):
        yield proposal_us(facts, cast("TritonProposal", each), target)


def _applies(facts: KernelFacts) -> bool:
    """Return whether the kernel reduces in one grid loop, over lengths that are known, without atomics or a matmul.

    A second loop over the same rows has tiles of its own, which predictions do not rank.
    Programs that accumulate along features have as many rows as leave each SM one of them.
    """
    if any(fact.per_feature_accumulator for fact in facts.reductions) or _are_pairs(facts):
        return False
    known = all(axis.extent is not None or axis.outer is not None for axis in facts.axes)
    loops = [axis for axis in facts.tunable_axes if not axis.on_grid]
    others = len(loops) > 1 or facts.matmuls or facts.sorts or facts.atomics or facts.pointwise or facts.messages
    return facts.num_roots == 1 and bool(facts.reductions) and known and not others


def _are_pairs(facts: KernelFacts) -> bool:
    """Return whether results along two axes of the grid each reduce what two loads have of one of them.

    Their rule was timed, and predictions do not rank the elements of a step (measurement ``rows_of_results``).
    """
    primary = facts.primary_reduction
    if primary is None:
        return False
    grid = {axis for axis in primary.tile if axis in facts.grid_axes}
    loads = [op for op in facts.memory_ops if op.kind == "load" and primary.axis in op.tile_axes]
    return len(grid) > 1 and sum(not grid <= set(op.tile_axes) for op in loads) > 1


def steps(proposal: TritonProposal, facts: KernelFacts, target: Target, *, few: bool) -> Iterator[TritonProposal]:
    """Yield the same with one tile or chunk doubled, halved, or a tile halved for another one, and with half of the warps.

    Tiles of axes that are adjacent in a load are exchanged too.

    If ``few``, tiles double in as many warps and halve in half of them: as many elements of a thread in smaller programs.
    Where registers do not hold the tile, threads have no more of them than by the rule, and may have half of the elements.
    """
    sizes, warps, chunks = dict(proposal.block_sizes), proposal.num_warps or 1, dict(proposal.reduction_loops)

    def registers(tiles: Mapping[int, int], count: int, parts: Chunks) -> int | None:
        """Return the registers of a thread that cannot hold its part of a tile, None of others."""
        predicted = estimate(facts, target, tiles, count, 1, parts)
        return None if safety.within(predicted, safety.MANY_ROWS) else predicted.registers_per_thread

    fewer_warps, short = max(1, warps // 2), registers(sizes, warps, chunks)
    halved = {fewer_warps} if short is None else {warps, fewer_warps}
    axes = [axis for axis in facts.tunable_axes if axis.block_id in sizes]
    busy = _needs_lines(proposal, facts, target)
    least = {axis.block_id: _shortest(axis, facts) if busy else 1 for axis in axes}
    tried = [(sizes, warps // 2, chunks)] if warps > 1 else []
    for axis in axes:
        size = sizes[axis.block_id]
        for changed, counts in ((2 * size, {warps}), (size // 2, halved)):
            if _allows(axis, changed) and changed >= min(size, least[axis.block_id]):
                every = counts if few else {warps, fewer_warps}
                tried += [({**sizes, axis.block_id: changed}, count, chunks) for count in every]
    for one, other in itertools.combinations(axes, 2):
        turned = sizes[other.block_id], sizes[one.block_id]
        if _are_adjacent(one, other, facts) and _allows(one, turned[0]) and _allows(other, turned[1]):
            exchanged = {**sizes, one.block_id: turned[0], other.block_id: turned[1]}
            tried += [(exchanged, count, chunks) for count in halved | {warps}]
    for fewer, more in itertools.permutations(axes, 2) if not few else ():
        half, double = sizes[fewer.block_id] // 2, 2 * sizes[more.block_id]
        if half >= least[fewer.block_id] and _allows(fewer, half) and _allows(more, double):
            tried.append(({**sizes, fewer.block_id: half, more.block_id: double}, warps, chunks))
    numbers, scanned = tuned(_Numbers), {fact.axis for fact in facts.scans}
    for block, chunk in chunks.items():
        shortest = numbers.least_scanned if block in scanned else numbers.least_chunk
        for part, counts in _chunks(facts.axes[block], chunk, shortest, warps, halved):
            tried += [(sizes, count, {**chunks, block: part}) for count in (counts if few else {warps, fewer_warps})]
    for each, count, parts in tried:
        needs = registers(each, count, parts)
        if needs is None or (short is not None and needs <= short):
            yield replace(proposal, block_sizes=each, num_warps=count, reduction_loops=parts)


def _chunks(
    axis: AxisFact, chunk: int | None, shortest: int, warps: int, halved: set[int]
) -> Iterator[tuple[int | None, set[int]]]:
    """Yield the chunks of twice and of half as many elements, and the warps of each; a whole dimension has no others."""
    if chunk is None:
        return
    yield (2 * chunk if 2 * chunk < axis.padded else None), {warps}
    if chunk > shortest:
        yield chunk // 2, halved


def _is_fixed(axis: AxisFact, chunk: int | None, facts: KernelFacts) -> bool:
    """Return whether a rule's chunks stay: those of contiguous rows, and of single elements."""
    return chunk is not None and (chunk < tuned(_Numbers).least_chunk or is_contiguous(axis, facts))


def _are_adjacent(one: AxisFact, other: AxisFact, facts: KernelFacts) -> bool:
    """Return whether neighbours along either axis are adjacent in a load, as of ``x[i + j]``.

    Threads are spread over the longer tile. Steps that pass equal tiles on the way to a faster one are slower first.
    """
    loads = (dict(op.steps) for op in facts.memory_ops if op.kind == "load" and op.gathered)
    return any(steps.get(one.block_id) == steps.get(other.block_id) == 1.0 for steps in loads)


def _needs_lines(proposal: TritonProposal, facts: KernelFacts, target: Target) -> bool:
    """Return whether memory takes so much of the time that programs have whole lines (measurement ``three_largest``)."""
    before = proposal_timing(facts, proposal, target)
    return dict(before.units)["memory"] >= tuned(_Numbers).lines * before.us


def _shortest(axis: AxisFact, facts: KernelFacts) -> int:
    """Return the elements of the shortest pieces of rows of a program, along an axis of the grid.

    Only programs that hold the reduced axis whole have any (measurement ``held_columns``).
    """
    primary = facts.primary_reduction
    if primary is None or not axis.on_grid or facts.axes[primary.axis].kind != "full":
        return 1
    loads = (op for op in facts.memory_ops if op.inner_axis == axis.block_id and len(op.tile_axes) > 1)
    return max((tuned(_Numbers).piece_bytes // op.itemsize for op in loads), default=1)


def _allows(axis: AxisFact, size: int) -> bool:
    return bool(size) and clamp(size, axis) == size and size < 2 * extent_of(axis)
