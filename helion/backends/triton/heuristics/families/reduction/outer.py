"""Reductions of outer combinations: each element, or row, of one tensor combined with each of another.

Matches kernels without a dot that reduce a value along an axis, where every load lacks an axis of that value. Examples
are elements compared with all edges of a histogram, kernel sums, and distances of all pairs of rows. Each load serves
many elements, so instructions bound the kernel. With one element along the reduced axis per step, each thread
accumulates results of its own. Lanes exchange nothing, and what they share is one load of a warp. Rows loaded whole lie
across lanes, and each result takes five shuffles per 32 elements. With fewer results than threads, lanes share them, and
a thread combines what it loads with several results: a load of strided elements takes a cycle for each line of a warp.
Results along two axes have a thread each (measurement ``pairs_of_results``). By
ptxas for sm_90 (Triton 3.7), counting the edges below an element takes 2.2 instructions for each of 31 edges.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import ClassVar

from ......_compiler.facts.records import KernelFacts, MemoryOpFact, ReductionFact
from ......_shapes import next_power_of_2
from ......_support.records import dataclass
from ......autotuner.proposal import Declined, Heuristic
from ......hardware import VECTOR_BYTES, Target
from ....proposal import TritonProposal
from ...choose import trust, unless_faster
from ...predicted_time import proposal_us
from ...sizing import Sizes, clamp, estimate, extent_of, programs_of, warps_for_threads
from ...tuned import Tuned, tuned
from .budget import reduction_alone


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "outer_reduction"

    #: Threads, and elements of each along the single kept axis; then elements along the other kept axes, where each
    #: element of the last axis has a thread of its own.
    threads: int
    elements: int
    deep_elements: int
    #: With fewer results than threads: results of a program, elements of each along the reduced axis, and threads.
    shared_results: int
    shared_elements: int
    shared_threads: int
    #: The same for one warp, and least programs of it per SM.
    warp_results: int
    warp_elements: int
    warp_programs: int
    #: Elements of a step of one warp.
    step: int
    #: Where programs load vectors of rows of both sides: rows of the first one, elements of a step, and warps.
    vector_rows: int
    vector_step: int
    vector_warps: int
    #: Where results of one row of several combine with elements of that row: results of a warp, and elements of a step.
    row_results: int
    row_steps: tuple[int, ...]
    #: Least elements that a load must be combined with: below, the kernel is memory-bound.
    least_reuse: int
    #: Least programs per SM, as far as tiles can shrink.
    programs: int


_TUNED = tuned(_Numbers)


class TritonOuterReductionHeuristic(Heuristic):
    name: ClassVar[str] = "TritonOuterReductionHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        primary = reduction_alone(facts)
        if isinstance(primary, Declined):
            return primary
        if len(facts.reductions) != 1 or facts.scans or facts.num_roots != 1:
            return Declined("not exactly one reduction")
        axis = facts.axes[primary.axis]
        if primary.category not in ("full_slice", "user_tile") or not (axis.rollable or axis.tunable):
            return Declined(f"axis {primary.axis} cannot be looped over in steps of one")
        kept = [block for block in primary.tile if block != primary.axis]
        if not kept or not all(facts.axes[block].on_grid and facts.axes[block].tunable for block in kept):
            return Declined("an axis that the reduction keeps is no tile of the grid")
        along = [op for op in (*facts.memory_ops, *facts.atomics) if primary.axis in op.tile_axes]
        reuse = _reuse(along, facts, primary)
        if primary.full_extent and any(len(op.tile_axes) > 1 for op in along):
            pairs = _whole_pairs(facts, target, primary) if reuse >= _TUNED.least_reuse else None
            return Declined(f"rows along axis {primary.axis} are loaded in chunks") if pairs is None else (pairs,)
        elements = math.prod(extent_of(facts.axes[block]) for block in kept)
        if reuse < _TUNED.least_reuse:
            return Declined(f"loads along axis {primary.axis} serve only {reuse} elements each")
        _, *more = kept
        threads = _TUNED.threads if more else target.max_warps_per_sm * target.warp_size
        if elements < target.num_sms * threads:
            return _shared(kept, facts, target, primary)
        sizes = _tiles(kept, facts, target)
        step = {primary.axis: axis.min_size or 1}
        chunks = step if axis.rollable else {}
        sizes |= {} if axis.rollable else step
        warps = warps_for_threads(_TUNED.threads, target)
        while estimate(facts, target, sizes, warps, 1, chunks).spill_risk:
            largest = max(kept, key=lambda block: sizes[block])
            if sizes[largest] <= facts.axes[largest].min_size:
                break
            sizes[largest] //= 2
        way = " by ".join(str(sizes[block]) for block in kept)
        proposal = TritonProposal(
            reason=f"{way} results of {primary.extent} elements, one per thread, {warps} warps",
            block_sizes=sizes,
            reduction_loops=chunks,
            num_warps=warps,
            num_stages=1,
        )
        if not axis.rollable:
            return (_in_steps(proposal, facts, target, primary),)
        return (_fewer_results(proposal, kept, facts, target),)


def _fewer_results(proposal: TritonProposal, kept: list[int], facts: KernelFacts, target: Target) -> TritonProposal:
    """Return the same with a quarter or an eighth of the results of each thread, if that is predicted to be faster.

    Values computed from the results, such as elements that they select, occupy registers for each of them.
    """
    first, every = kept[0], [proposal]
    for share in (4, 8):
        size = proposal.block_sizes[first] // share
        if len(kept) > 1 and size >= facts.axes[first].min_size:
            sizes = {**proposal.block_sizes, first: size}
            every.append(replace(proposal, reason=f"{proposal.reason}, {size} of them at once", block_sizes=sizes))
    timed = [(each, proposal_us(facts, each, target)) for each in every]
    return unless_faster(timed[0], timed[1:], trust(target).fewer_results)


def _in_steps(proposal: TritonProposal, facts: KernelFacts, target: Target, primary: ReductionFact) -> TritonProposal:
    """Return the same with more elements in a step, if that is predicted to be faster, for sums that a maximum scales.

    Each step computes an exponential for the sum before it, next to one for each element.
    """
    if not primary.exponential_stages or len(primary.stages) < 2:
        return _by_vectors(_of_one_warp(proposal, facts, target, primary), facts, target, primary)
    step, every = proposal.block_sizes[primary.axis], [proposal]
    for more in (4 * step, 8 * step, 16 * step, 32 * step):
        sizes = {**proposal.block_sizes, primary.axis: clamp(more, facts.axes[primary.axis])}
        if not estimate(facts, target, sizes, proposal.num_warps or 1, 1).spill_risk:
            every.append(replace(proposal, reason=f"{proposal.reason}, {more} at a time", block_sizes=sizes))
    timed = [(each, proposal_us(facts, each, target)) for each in every]
    return unless_faster(timed[0], timed[1:], trust(target).lighter_rows)


def _of_one_warp(
    proposal: TritonProposal, facts: KernelFacts, target: Target, primary: ReductionFact
) -> TritonProposal:
    """Return a warp with two results of a thread and several elements in a step, if that is predicted to be faster.

    It is for so few results that programs have one row of them: no other row shares what a thread loads, but its loads of a
    step are in flight together (measurement ``rows_of_results``).
    """
    *others, last = (block for block in primary.tile if block != primary.axis)
    if not others or any(proposal.block_sizes[block] > 1 for block in others):
        return proposal
    columns, step = 2 * target.warp_size, _TUNED.step
    if facts.axes[last].padded < columns or facts.axes[primary.axis].padded < step:
        return proposal
    sizes = {**proposal.block_sizes, last: columns, primary.axis: step}
    reason = f"{columns} results of {primary.extent} elements, {step} at a time, in one warp"
    one = replace(proposal, reason=reason, block_sizes=sizes, num_warps=1)
    if estimate(facts, target, sizes, 1, 1).spill_risk:
        return proposal
    timed = [(each, proposal_us(facts, each, target)) for each in (proposal, one)]
    return unless_faster(timed[0], timed[1:], trust(target).lighter_rows)


def _by_vectors(proposal: TritonProposal, facts: KernelFacts, target: Target, primary: ReductionFact) -> TritonProposal:
    """Return steps of a vector of several rows of each side, if that is predicted to be faster, for rows of memory.

    A load of single elements of rows takes a line for each of them. Of vectors, a thread combines each with those of several
    rows (measurement ``vectors_of_pairs``).
    """
    if (vector := _vector(facts, primary)) is None:
        return _of_a_row(proposal, facts, target, primary)
    every = [proposal]
    for step in (vector, vector // 2):
        sizes, reason = _of_vectors(facts, primary, step)
        sizes = {**proposal.block_sizes, **sizes, primary.axis: clamp(step, facts.axes[primary.axis])}
        if not estimate(facts, target, sizes, _TUNED.vector_warps, 1).spill_risk:
            every.append(replace(proposal, reason=reason, block_sizes=sizes, num_warps=_TUNED.vector_warps))
    timed = [(each, proposal_us(facts, each, target)) for each in every]
    return unless_faster(timed[0], timed[1:], trust(target).vector_steps)


def _of_a_row(proposal: TritonProposal, facts: KernelFacts, target: Target, primary: ReductionFact) -> TritonProposal:
    """Return a warp for results of one row of several, with several of its elements in a step, if predicted to be faster.

    It is for elements that all results of a row combine with, such as ranks within it. A thread loads vectors of them for
    several results (measurement ``results_of_a_row``).
    """
    loads = [op for op in facts.memory_ops if op.kind == "load" and primary.axis in op.tile_axes]
    rows = {block for op in loads for block in op.tile_axes} - {primary.axis}
    first, *others = (block for block in primary.tile if block != primary.axis)
    if rows != {first} or len(others) != 1 or any(op.inner_axis != primary.axis or op.gathered for op in loads):
        return proposal
    wanted = {first: 1, others[0]: min(_TUNED.row_results, facts.axes[others[0]].padded or 1)}
    sizes, every = {**proposal.block_sizes, **wanted}, [proposal]
    if programs_of(facts, sizes, primary.root) < _TUNED.warp_programs * target.num_sms:
        return proposal
    for step in _TUNED.row_steps:
        tiles = {block: clamp(size, facts.axes[block]) for block, size in {**sizes, primary.axis: step}.items()}
        if not estimate(facts, target, tiles, 1, 1).spill_risk:
            reason = f"{tiles[others[0]]} results of a row of {primary.extent} elements, {step} at a time, in one warp"
            every.append(replace(proposal, reason=reason, block_sizes=tiles, num_warps=1))
    timed = [(each, proposal_us(facts, each, target)) for each in every]
    return unless_faster(timed[0], timed[1:], trust(target).one_row)


def _whole_pairs(facts: KernelFacts, target: Target, primary: ReductionFact) -> TritonProposal | None:
    """Return chunks of a vector of several rows of each side, for pairs of rows that the kernel loads whole.

    A thread keeps sums of its elements of a chunk until the end (measurement ``vectors_of_pairs``).
    """
    vector, axis = _vector(facts, primary), facts.axes[primary.axis]
    if vector is None or not axis.rollable or primary.re_read or axis.padded < 2 * vector:
        return None
    sizes, reason = _of_vectors(facts, primary, vector)
    sizes = {each.block_id: each.min_size for each in facts.tunable_axes} | sizes
    chunks = {primary.axis: vector}
    few = programs_of(facts, sizes, primary.root) < _TUNED.programs * target.num_sms
    if few or estimate(facts, target, sizes, _TUNED.vector_warps, 1, chunks).spill_risk:
        return None
    return TritonProposal(
        reason=reason, block_sizes=sizes, reduction_loops=chunks, num_warps=_TUNED.vector_warps, num_stages=1
    )


def _vector(facts: KernelFacts, primary: ReductionFact) -> int | None:
    """Return the elements of a vector of rows of both sides along the reduced axis; None where rows lie otherwise."""
    loads = [op for op in facts.memory_ops if op.kind == "load" and primary.axis in op.tile_axes]
    sides = {block for op in loads for block in op.tile_axes if len(op.tile_axes) == 2}
    if len(primary.tile) != 3 or sides != set(primary.tile):
        return None
    if any(op.inner_axis != primary.axis or op.gathered for op in loads):
        return None
    return VECTOR_BYTES // max(op.itemsize for op in loads)


def _of_vectors(facts: KernelFacts, primary: ReductionFact, step: int) -> tuple[Sizes, str]:
    """Return the rows of both sides for steps of vectors, and the reason."""
    first, second = (block for block in primary.tile if block != primary.axis)
    wanted = {first: _TUNED.vector_rows, second: _TUNED.vector_step // (_TUNED.vector_rows * step)}
    sizes = {block: clamp(size, facts.axes[block]) for block, size in wanted.items()}
    shape = " by ".join(map(str, sizes.values()))
    return sizes, f"{shape} results of {primary.extent} elements, {step} at a time, {_TUNED.vector_warps} warps"


def _shared(
    kept: list[int], facts: KernelFacts, target: Target, primary: ReductionFact
) -> tuple[TritonProposal, ...] | Declined:
    """Return the proposal whose lanes share results, of which each program has several.

    If a thread has no registers for all of them, it is the fastest by prediction with fewer results or shorter steps.
    """
    axis, (block, *more) = facts.axes[primary.axis], kept
    width = min(_TUNED.shared_elements, next_power_of_2(primary.extent))
    if more or axis.rollable or width < _TUNED.shared_elements:
        return Declined(
            f"{extent_of(facts.axes[block])} results are fewer than threads, and {primary.extent} elements no loop over"
            " one axis"
        )
    rows, least = _TUNED.shared_results, {each.block_id: each.min_size for each in facts.tunable_axes}
    results = programs_of(facts, least, primary.root)
    if results < rows * _TUNED.programs * target.num_sms:
        return Declined(f"{results} results are fewer than {rows} for each of {_TUNED.programs} programs per SM")
    if (one := _shared_by_a_warp(block, results, facts, target, primary)) is not None:
        return (one,)
    warps = warps_for_threads(_TUNED.shared_threads, target)
    fit = []
    for some, size in itertools.product((rows, rows // 2, rows // 4), (width, width // 2)):
        sizes = {**least, primary.axis: clamp(size, axis), block: clamp(some, facts.axes[block])}
        reason = f"{some} results of {primary.extent} elements, {size} at a time, shared by {warps} warps"
        if estimate(facts, target, sizes, warps, 1).spill_risk:
            continue
        fit.append(TritonProposal(reason=reason, block_sizes=sizes, num_warps=warps, num_stages=1))
        if (some, size) == (rows, width):
            break
    if not fit:
        return Declined(f"{rows // 4} results by {width // 2} elements do not fit in registers")
    return (min(fit, key=lambda each: proposal_us(facts, each, target)),)


def _shared_by_a_warp(
    block: int, results: int, facts: KernelFacts, target: Target, primary: ReductionFact
) -> TritonProposal | None:
    """Return the proposal of few results for a warp, which meets no other; None without registers, or with few programs.

    A thread has many independent elements (measurement ``results_of_a_warp``).
    """
    axis, rows = facts.axes[primary.axis], _TUNED.warp_results
    size = min(_TUNED.warp_elements, next_power_of_2(primary.extent))
    sizes = {each.block_id: each.min_size for each in facts.tunable_axes}
    sizes |= {primary.axis: clamp(size, axis), block: clamp(rows, facts.axes[block])}
    if results < rows * _TUNED.warp_programs * target.num_sms or estimate(facts, target, sizes, 1, 1).spill_risk:
        return None
    reason = f"{rows} results of {primary.extent} elements, {size} at a time, shared by a warp"
    return TritonProposal(reason=reason, block_sizes=sizes, num_warps=1, num_stages=1)


def _reuse(along: list[MemoryOpFact], facts: KernelFacts, primary: ReductionFact) -> int:
    """Return the least number of elements that each element loaded along the reduced axis is combined with; 0 without
    loads.
    """
    tile = frozenset(primary.tile)
    found = (math.prod(extent_of(facts.axes[a]) for a in tile.difference(op.tile_axes)) for op in along)
    return min(found, default=0)


def _tiles(kept: list[int], facts: KernelFacts, target: Target) -> Sizes:
    """Return block sizes in which neighbouring threads lie along the last kept axis."""
    *others, last = kept
    sizes = {axis.block_id: axis.min_size for axis in facts.tunable_axes}
    highest = {block: facts.axes[block].padded or next_power_of_2(extent_of(facts.axes[block])) for block in kept}
    sizes[last] = min(highest[last], _TUNED.threads if others else _TUNED.threads * _TUNED.elements)
    room = _TUNED.deep_elements
    for block in reversed(others):
        sizes[block] = min(highest[block], room)
        room //= sizes[block]

    def programs() -> float:
        grid = (facts.axes[block] for block in facts.grid_axes)
        return math.prod(extent_of(axis) / sizes.get(axis.block_id, 1) for axis in grid)

    for block in (*others, last):
        least = 1 if block in others else _TUNED.threads
        while sizes[block] > least and programs() < _TUNED.programs * target.num_sms:
            sizes[block] //= 2
    return {block: clamp(size, facts.axes[block]) for block, size in sizes.items()}
