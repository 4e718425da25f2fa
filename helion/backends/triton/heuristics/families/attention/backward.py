"""The backward pass of attention: loops that recompute scores and their gradient, for queries, for keys and values, or
for all three.

Tiles are those of published kernels for H100 and A100. Heads of 128 take 128 stationary rows against 64 streamed, heads
of 64 take 64 against 64. Smaller ones follow where these spill, do not fit, or leave SMs idle.

On an asynchronous matrix unit two programs of four warps per SM come first: one computes its exponentials while the
other runs its matmuls. Heads too wide for two take one program with twice the rows, in loops with one accumulator
(measurement ``attention_gradients``). In all loops they have 16 rows of scores for each warp where shared memory allows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import ClassVar

from ......_compiler.facts.records import KernelFacts
from ......_support.records import dataclass, replace
from ......autotuner.proposal import Declined, Heuristic, Predicted
from ......hardware import Target
from ....proposal import TritonProposal
from ... import register_safety as safety
from ...amd_options import with_amd_options
from ...predicted_time import proposal_us
from ...sizing import Sizes, clamp, estimate, programs_of
from ...tuned import Tuned, tuned
from .tiles import Tile, cost_of, fits, neighbours_along, share_sms, start_sizes

_CANDIDATES = (
    Tile(128, 64, 3, 8),
    Tile(128, 64, 2, 8),
    Tile(128, 32, 2, 8),
    Tile(64, 64, 3, 4),
    Tile(64, 64, 2, 4),
    Tile(64, 64, 3, 8),
    Tile(64, 64, 2, 8),
    Tile(64, 32, 3, 4),
    Tile(64, 32, 2, 4),
    Tile(64, 32, 2, 8),
    Tile(64, 16, 2, 8),
    Tile(32, 32, 2, 4),
    Tile(32, 32, 1, 8),
    Tile(32, 16, 1, 8),
    Tile(16, 16, 1, 4),
)
_KEPT = 3
#: Tiles tried first on an asynchronous matrix unit: two programs per SM with as many stages as fit, or one program.
_PAIRED, _TALL = (Tile(64, 64, 3, 4), Tile(64, 64, 2, 4), Tile(64, 64, 1, 4)), Tile(64, 64, 1, 8)
#: Stationary and streamed rows of loops with one accumulator, and of those with several: those of _TALL, and the same with
#: 16 rows of scores for each warp. All warps are along the rows of scores, and of fewer rows each is computed twice.
_LONE = (((128, 32), (64, 64)), ((128, 64), (64, 128)))
#: The same as _TALL where a loop has matmuls that are not its own accumulators, such as gradients added to memory.
_WIDE = Tile(64, 32, 1, 8)


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "attention_gradient"

    #: The widest heads whose masked tiles have loops of their own.
    peeled_head: int


class TritonAttentionGradientHeuristic(Heuristic):
    name: ClassVar[str] = "TritonAttentionGradientHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        loops = facts.attention_gradients
        if not loops:
            return Declined("no loop computes the scores of attention and their gradient")
        if not all(facts.axes[a].tunable for fact in loops for a in (fact.stationary_axis, fact.streamed_axis)):
            return Declined("queries or keys are not tiles")
        first = _measured(facts, target)
        for percent in (safety.gradient(target), safety.ALL):
            found = tuple(itertools.islice(_feasible(facts, target, percent), _KEPT))
            if first or found:
                return with_amd_options((*first, *found), facts, target)
        return Declined("no tile of queries and keys fits without spilling")


def _measured(facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...]:
    """Return a proposal of the tiles measured fastest for 16-bit operands: the first that fits."""
    if not target.has("wgmma") or any(each.lhs_dtype.itemsize != 2 for each in facts.matmuls):
        return ()
    for tile in _PAIRED:
        if (found := _fitting(facts, target, tile, _sizes_of(facts, tile), 2, safety.GRADIENT_MEASURED)) is not None:
            return (found,)
    if any(_sums(facts, fact.region) == 1 for fact in facts.attention_gradients):
        lone = [_fitting(facts, target, _TALL, _sizes_of(facts, _TALL, _LONE[0]), 1, safety.GRADIENT_MEASURED)]
        if lone[0] is not None:
            lone.append(
                _fitting(facts, target, _TALL, _sizes_of(facts, _TALL, _LONE[1]), 1, safety.GRADIENT_UNREPEATED)
            )
        timed = [(each, proposal_us(facts, each, target)) for each in lone if each is not None]
        return tuple(proposal for proposal, _ in sorted(timed, key=lambda pair: pair[1]))
    wide = _has_other_products(facts)
    last = _fitting(facts, target, _WIDE, _sizes_of(facts, _WIDE), 1, safety.GRADIENT_MEASURED) if wide else None
    return () if last is None else (last,)


def _fitting(
    facts: KernelFacts, target: Target, tile: Tile, sizes: Sizes, together: int, percent: int
) -> TritonProposal | None:
    """Return the proposal if ``together`` programs share an SM, and stay within ``percent`` of its registers."""
    predicted = estimate(facts, target, sizes, tile.warps, tile.stages)
    room = predicted.fits and together * predicted.shared_bytes <= target.smem_per_sm_bytes
    busy = share_sms(sum(_programs(facts, sizes)), together, target)
    if not (room and busy and safety.within(predicted, percent)):
        return None
    proposal = _proposal(facts, target, tile, sizes, predicted)
    peeled = (
        {"peel_masks": True} if _is_narrow(facts, target) and any(f.hidden for f in facts.attention_gradients) else {}
    )
    return replace(proposal, loop_orders=_orders(facts, target), may_spill=percent > safety.ALL, launch=peeled)


def _orders(facts: KernelFacts, target: Target) -> dict[int, tuple[int, ...]]:
    """Return ``loop_orders`` in which neighbouring programs stream the same rows, where L2 does not hold those of all
    heads.

    Where L2 holds them, causal programs with the most work of all heads begin first (measurement
    ``attention_gradient_order``).
    """
    found: dict[int, tuple[int, ...]] = {}
    for fact in facts.attention_gradients:
        ops = [op for op in (*facts.memory_ops, *facts.atomics) if op.region == fact.region and op.kind != "store"]
        if sum(op.accessed_numel * op.itemsize for op in ops) > target.l2_bytes:
            found |= neighbours_along(facts, facts.regions[fact.region].root, fact.stationary_axis)
    return found


def _is_narrow(facts: KernelFacts, target: Target) -> bool:
    """Return whether registers hold loops without masks next to those with them: of heads of few elements.

    There masks take a third of the instructions (measurement ``attention_gradients_peeled``).
    """
    loops = {fact.region for fact in facts.attention_gradients}
    sums = [each.static_n for each in facts.matmuls if each.region in loops and each.accumulator_loop == each.region]
    widest = tuned(_Numbers, target).peeled_head
    return bool(sums) and all(n is not None and n <= widest for n in sums)


def _has_other_products(facts: KernelFacts) -> bool:
    """Return whether a loop has a matmul of the scores without an accumulator of its own, such as gradients added to
    memory.
    """
    loops = {fact.region for fact in facts.attention_gradients}
    return any(each.region in loops and each.consumes and each.accumulator_loop is None for each in facts.matmuls)


def _sums(facts: KernelFacts, region: int) -> int:
    """Return the number of matmuls with an accumulator that the loop carries."""
    return sum(each.accumulator_loop == region for each in facts.matmuls)


def _sizes_of(facts: KernelFacts, tile: Tile, lone: tuple[tuple[int, int], tuple[int, int]] | None = None) -> Sizes:
    """Return block sizes for ``tile``, or the stationary and streamed rows ``lone`` for loops with one accumulator and
    with several.

    Loops with two accumulators multiply the streamed rows, of which the asynchronous unit needs at least as many as its
    own rows.
    """
    sizes = start_sizes(facts)
    for fact in facts.attention_gradients:
        held, walked = lone[_sums(facts, fact.region) != 1] if lone else (tile.held, tile.walked)
        sizes[fact.stationary_axis] = clamp(held, facts.axes[fact.stationary_axis])
        sizes[fact.streamed_axis] = clamp(walked, facts.axes[fact.streamed_axis])
    return sizes


def _programs(facts: KernelFacts, sizes: Sizes) -> list[int]:
    return [programs_of(facts, sizes, facts.regions[fact.region].root) for fact in facts.attention_gradients]


def _proposal(facts: KernelFacts, target: Target, tile: Tile, sizes: Sizes, predicted: Predicted) -> TritonProposal:
    return TritonProposal(
        reason=f"{tile.held} stationary rows, {tile.walked} streamed per step, "
        f"{predicted.registers_per_thread} registers, {sum(_programs(facts, sizes))} programs on {target.num_sms} SMs",
        block_sizes=sizes,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def _feasible(facts: KernelFacts, target: Target, percent: int) -> Iterator[TritonProposal]:
    """Yield the proposals that fit, by increasing cost, and for equal heights in the order of the table."""

    def cost(tile: Tile) -> float:
        sizes = _sizes_of(facts, tile)
        loops = zip(facts.attention_gradients, _programs(facts, sizes), strict=True)
        return sum(cost_of(tile, made, sizes[fact.stationary_axis], target) for fact, made in loops)

    for tile in sorted(_CANDIDATES, key=cost):
        sizes = _sizes_of(facts, tile)
        predicted = fits(facts, target, sizes, tile, percent)
        if predicted is not None:
            yield _proposal(facts, target, tile, sizes, predicted)
