"""Matmuls whose operands are computed from tiles that a view merges, such as unpacked low-bit weights: computed once,
before.

Takes the first of a few tiles, from large to small, that fits without spilling and fills the waves. ``precomputed.py``
decides where that pays. Few rows are multiplied by weights that each program unpacks, with split-K (measurement
``packed_columns``). Rows of which a tile has every second element are copied first (measurement ``scattered_rows``).
``TritonMatmulHeuristic`` handles operands over plain tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ......_compiler.facts.records import KernelFacts, MatmulFact, PrecomputableFact
from ......_shapes import cdiv, next_power_of_2, previous_power_of_2
from ......_support.records import dataclass, replace
from ......autotuner.proposal import Declined, Heuristic
from ......hardware import VECTOR_BYTES, Target
from ....proposal import TritonProposal
from ...candidates import moderate_sizes
from ...choose import full_first, trust, unless_faster
from ...predicted_time import proposal_us
from ...sizing import all_sizes, clamp, estimate, programs_of
from ...tuned import Tuned, tuned
from .precomputed import hoisting, launch_us, unhoisted
from .unaligned import copy_numbers


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "hoisted_operands"

    #: M, N and warps, from large to small; then bytes of a tile along K, and stages.
    sides: tuple[tuple[int, int, int], ...]
    line: int
    stages: tuple[int, int, int]
    #: Rows of tiles that run consecutively, so that they find columns in L2.
    group: int
    #: Constants for matmuls of few rows, whose programs each unpack their weights: M, N, warps, stages, programs per
    #: SM, split-K factor and steps of each split.
    least_rows: int
    most_rows: int
    columns: int
    few_warps: int
    few_stages: int
    filled: int
    most_parts: int
    least_steps: int


_TUNED = tuned(_Numbers)


class TritonHoistedOperandsHeuristic(Heuristic):
    name: ClassVar[str] = "TritonHoistedOperandsHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if not facts.precomputable or all(None not in _tiled(fact) for fact in facts.matmuls):
            return Declined("no operand over merged lanes can be precomputed")
        if why := unhoisted(facts, target):
            few = _few_rows(facts, target)
            return Declined(why) if few is None else _with_copies(few, few, facts, (), target)
        keys = ("precompute_operands",)
        best = _largest(facts, keys, target)
        if best is None:
            return Declined("no tile of the matmul fits without spilling")
        return hoisting(
            facts, _with_copies(best, _largest(facts, (*keys, "pack_operands"), target), facts, keys, target)
        )


def _largest(facts: KernelFacts, keys: tuple[str, ...], target: Target) -> TritonProposal | None:
    """Return the first tile that fits and fills the waves, of a kernel that these rewrites change."""
    loaded = facts.after(*keys).facts
    feasible = _feasible(loaded, facts.precomputable, target)
    return full_first(feasible, lambda p: programs_of(loaded, p.block_sizes), target)


def _with_copies(
    as_written: TritonProposal,
    copying: TritonProposal | None,
    facts: KernelFacts,
    before: tuple[str, ...],
    target: Target,
) -> tuple[TritonProposal, ...]:
    """Return the proposal for facts after ``before``, and first one that also copies scattered rows, if that is faster.

    A tile has every second of their elements. Loads of these wait in each step, and a loop prefetches copies.
    """
    if not facts.unaligned_operands or copying is None:
        return (as_written,)
    packed = facts.after(*before, "pack_operands")
    us = 2e-3 * packed.copied_bytes / target.bandwidth_gb_per_s + launch_us()
    us += proposal_us(packed.facts, copying, target)
    if us > trust(target).rewritten * copy_numbers().unaligned * proposal_us(
        facts.after(*before).facts, as_written, target
    ):
        return (as_written,)
    reason = f"{copying.reason}, scattered rows copied"
    return replace(copying, reason=reason, launch={**copying.launch, "pack_operands": True}), as_written


def _tiled(fact: MatmulFact) -> tuple[int | None, ...]:
    return fact.m_block_id, fact.n_block_id, fact.k_block_id


def _sizes(facts: KernelFacts, hoistable: tuple[PrecomputableFact, ...], m: int, n: int, k: int) -> dict[int, int]:
    """Return block sizes with these sides, including tiles that a view merges into one side."""
    sizes = moderate_sizes(facts, {"m": m, "n": n, "k": k})
    for each in hoistable:
        for axis, lanes, side in zip(each.axes, each.lanes, (k, n) if each.role == "rhs" else (m, k), strict=True):
            if lanes > 1 and facts.axes[axis].tunable:
                sizes[axis] = clamp(max(1, side // lanes), facts.axes[axis])
    return sizes


def _feasible(facts: KernelFacts, hoistable: tuple[PrecomputableFact, ...], target: Target) -> Iterator[TritonProposal]:
    """Yield each tile with the deepest pipeline that fits."""
    k = _TUNED.line // max(each.dtype.itemsize for each in hoistable)
    for m, n, warps in _TUNED.sides:
        sizes = _sizes(facts, hoistable, m, n, k)
        for stages in _TUNED.stages:
            predicted = estimate(facts, target, sizes, warps, stages)
            if predicted.fits and not predicted.spill_risk:
                yield TritonProposal(
                    reason=f"{m} x {n} x {k} tiles, {stages} stages, operands precomputed",
                    block_sizes=sizes,
                    l2_groupings=dict.fromkeys(range(facts.num_roots), _TUNED.group),
                    num_warps=warps,
                    num_stages=stages,
                )
                break


def _few_rows(facts: KernelFacts, target: Target) -> TritonProposal | None:
    """Return a proposal for few rows of one matmul: a split-K factor with which programs on an SM hide each other's
    latency.
    """
    if any(fact.n_block_id is None for fact in facts.matmuls):
        return None
    rows = max(fact.static_m or _TUNED.most_rows + 1 for fact in facts.matmuls)
    if rows > _TUNED.most_rows or not facts.splittable_k or not target.has("wgmma"):
        return None
    itemsize = max(each.dtype.itemsize for each in facts.precomputable)
    sizes = moderate_sizes(
        facts,
        {"m": max(_TUNED.least_rows, next_power_of_2(rows)), "n": _TUNED.columns, "k": 2 * _TUNED.line // itemsize},
    )
    predicted = estimate(facts, target, sizes, _TUNED.few_warps, _TUNED.few_stages)
    if not predicted.fits or predicted.spill_risk:
        return None
    tiles = all_sizes(facts, sizes)
    tiled = ("tile", "fixed")
    loops = {
        axis
        for each in facts.precomputable
        for axis in each.axes
        if not facts.axes[axis].on_grid and facts.axes[axis].kind in tiled
    }
    steps = min((cdiv(facts.axes[axis].extent or 1, tiles[axis]) for axis in loops), default=1)
    room = _TUNED.filled * target.num_sms // max(1, programs_of(facts, sizes))
    longest = min(steps // _TUNED.least_steps, _TUNED.most_parts)
    parts = previous_power_of_2(max(1, min(room, longest)))
    boxed = _packed_loads(facts) if target.has("tensor_descriptor") else ()

    def split(parts: int) -> tuple[TritonProposal, float]:
        tiles = TritonProposal(
            reason=f"{rows} rows, split-K by {parts}",
            block_sizes=sizes,
            num_warps=_TUNED.few_warps,
            num_stages=_TUNED.few_stages,
            indexing=dict.fromkeys(boxed, "tensor_descriptor"),
            launch={"split_k": parts} if parts > 1 else {},
        )
        return tiles, proposal_us(facts, tiles, target)

    # a few more programs than the SMs have room for may still be faster than half of them
    best = unless_faster(split(parts), [split(2 * parts)] if 2 * parts <= longest else [], trust(target).split_k)
    return _in_one_stage(best, facts, longest, target) if _gathers(facts) else best


def _in_one_stage(staged: TritonProposal, facts: KernelFacts, longest: int, target: Target) -> TritonProposal:
    """Return the same without a pipeline and with more parts of K, if that is predicted to be faster.

    A pipeline stages a word for each element of a tile whose neighbours share words. Without it, more programs share an SM
    (measurement ``words_of_elements``).
    """
    predicted = estimate(facts, target, staged.block_sizes, staged.num_warps or 1, 1)
    at_once = max(1, predicted.occupancy_blocks) * target.num_sms // max(1, programs_of(facts, staged.block_sizes))
    parts, every = staged.launch.get("split_k", 1), [staged]
    while parts <= min(at_once, longest):
        reason = f"{staged.reason.split(',')[0]}, split-K by {parts}, one stage"
        every.append(replace(staged, reason=reason, num_stages=1, launch={"split_k": parts} if parts > 1 else {}))
        parts *= 2
    timed = [(each, proposal_us(facts, each, target)) for each in every]
    return unless_faster(timed[0], timed[1:], trust(target).rewritten_split_k)


def _gathers(facts: KernelFacts) -> bool:
    """Return whether arithmetic selects the words of an operand that programs unpack."""
    axes = [{axis for axis in each.axes if facts.axes[axis].tunable} for each in facts.precomputable]
    words = [op for op in facts.memory_ops if op.kind == "load" and op.gathered]
    return any(own and own <= set(op.tile_axes) for own in axes for op in words)


def _packed_loads(facts: KernelFacts) -> tuple[int, ...]:
    """Return the slots of packed operands: their tile has a few bytes of each row (measurement ``packed_boxes``)."""
    axes = [{axis for axis in each.axes if facts.axes[axis].tunable} for each in facts.precomputable]
    return tuple(
        op.slot
        for op in facts.memory_ops
        if op.kind == "load" and op.static and not op.gathered and op.itemsize == 1
        if any(own <= set(op.tile_axes) for own in axes)
        if all(stride == 1 or stride * op.itemsize % VECTOR_BYTES == 0 for stride in op.strides)
    )
