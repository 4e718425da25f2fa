"""The backward pass of attention: loops that make scores and their gradient again, for queries, for keys and values, or
for all three at once.

Tiles as in the published kernels for H100 and A100: 128 rows held against 64 walked over for heads of 128, 64 against 64
for heads of 64; less where that spills or does not fit, and where SMs would be idle. Where the matrix unit is asynchronous
two programs of four warps on an SM come first, of which one has its exponentials while the other multiplies, and for heads that
leave no room for two, one that holds twice as many rows in loops of one sum. On an H200 (CUDA 13.0, Triton 3.6, 2026-11-23) causal
gradients of heads of 128 take 2049 us instead of 4222 so (64 heads, 4096 rows; the library 1864), of 64 765 instead of 1131
(128 of 2048; 726; with two stages 960); all three gradients in one pass 1346 instead of 1790 with heads of 128 (64 of 2048; 923),
and 3460 with steps of 128 rows instead of 3901 with 64 (96 of 4096; 3202).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import ClassVar

from ...._compiler.facts.records import KernelFacts
from ....autotuner.proposal import Declined, Heuristic, Predicted
from ....hardware import Target
from ..proposal import TritonProposal
from . import register_safety as safety
from .attention_tiles import Tile, cost_of, fits, programs_of
from .sizing import Sizes, clamp, estimate

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
#: What comes before them where the matrix unit is asynchronous: two programs on an SM, with three stages where there is room and
#: every product is a sum, or one.
_DEEP, _PAIRED, _TALL = Tile(64, 64, 3, 4), Tile(64, 64, 2, 4), Tile(64, 64, 1, 8)
#: The same where a loop has products that are no sums of its own, such as gradients added to memory: longer steps where the
#: registers hold two programs with them and no three without, and no stages where shared memory holds two without alone.
_LONG, _UNSTAGED, _WIDE = Tile(64, 128, 2, 4), Tile(64, 64, 1, 4), Tile(64, 32, 1, 8)
#: Percent of the registers that may be planned with for these: offline for sm_90 244 of 255 planned with take 255 and 238
#: take 236, both without spills.
_MEASURED_PERCENT = 96
#: The same beside products that are no sums: 249 of 255 planned with spill 8 to 88 bytes with heads of 64, 236 up to 96 with
#: heads of 128, 222 none with 256. What two programs gain is more than that.
_OTHERS_PERCENT = 98
#: Part of what runs at once, in quarters, that programs are worth sharing an SM for: on an H200 256 of 264 are.
_QUARTERS = 3


class TritonAttentionGradientHeuristic(Heuristic):
    name: ClassVar[str] = "TritonAttentionGradientHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        loops = facts.attention_gradients
        if not loops:
            return Declined("no loop makes the scores of attention and their gradient")
        if not all(facts.axes[a].tunable for fact in loops for a in (fact.held_axis, fact.walked_axis)):
            return Declined("queries or keys are not tiles")
        first = _measured(facts, target)
        for percent in (safety.gradient(target), safety.ALL):
            found = tuple(itertools.islice(_feasible(facts, target, percent), _KEPT))
            if first or found:
                return (*first, *found)
        return Declined("no tile of queries and keys fits without spilling")


def _measured(facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...]:
    """The tiles that were measured to be fastest for 16-bit numbers, the first that fits."""
    if not target.has("wgmma") or any(each.lhs_dtype.itemsize != 2 for each in facts.matmuls):
        return ()
    others = _has_other_products(facts)
    alone = any(_sums(facts, fact.region) == 1 for fact in facts.attention_gradients)
    plain = [(_DEEP, 1, 2, _MEASURED_PERCENT), (_PAIRED, 1, 2, _MEASURED_PERCENT)]
    steps = (_PAIRED, _UNSTAGED) if _is_room_for_three(facts, target) else (_LONG, _PAIRED, _UNSTAGED)
    added = [(tile, 1, 2, _OTHERS_PERCENT) for tile in steps]
    last = [(_TALL, 2, 1, _MEASURED_PERCENT)] if alone else [(_WIDE, 1, 1, _OTHERS_PERCENT)] if others else []
    for tile, tall, together, percent in (*(added if others else plain), *last):
        sizes = _sizes_of(facts, tile, tall)
        predicted = estimate(facts, target, sizes, tile.warps, tile.stages)
        room = predicted.fits and together * predicted.shared_bytes <= target.smem_per_sm_bytes
        busy = 4 * sum(_programs(facts, sizes)) >= _QUARTERS * together * target.num_sms
        if room and busy and safety.within(predicted, percent):
            return (_proposal(facts, target, tile, sizes, predicted),)
    return ()


def _is_room_for_three(facts: KernelFacts, target: Target) -> bool:
    """Whether the registers of an SM hold three programs of short steps."""
    predicted = estimate(facts, target, _sizes_of(facts, _PAIRED), _PAIRED.warps, _PAIRED.stages)
    threads = 3 * _PAIRED.warps * target.warp_size
    return predicted.registers_per_thread * threads <= target.registers_per_sm * safety.ATTENTION // 100


def _has_other_products(facts: KernelFacts) -> bool:
    """Whether a loop multiplies scores by something that it does not add up, such as gradients that are added to memory."""
    loops = {fact.region for fact in facts.attention_gradients}
    return any(each.region in loops and each.consumes and each.accumulator_loop is None for each in facts.matmuls)


def _sums(facts: KernelFacts, region: int) -> int:
    """Products that a loop adds up."""
    return sum(each.accumulator_loop == region for each in facts.matmuls)


def _sizes_of(facts: KernelFacts, tile: Tile, tall: int = 1) -> Sizes:
    """``tall``: how many times as many rows programs with one sum hold, and walk over so many times fewer. Those with two
    multiply what they walk over, of which the asynchronous unit takes no fewer than it has rows."""
    sizes = {axis.block_id: axis.min_size for axis in facts.tunable_axes}
    for fact in facts.attention_gradients:
        times = tall if _sums(facts, fact.region) == 1 else 1
        sizes[fact.held_axis] = clamp(tile.held * times, facts.axes[fact.held_axis])
        sizes[fact.walked_axis] = clamp(tile.walked // times, facts.axes[fact.walked_axis])
    return sizes


def _programs(facts: KernelFacts, sizes: Sizes) -> list[int]:
    return [programs_of(facts, facts.regions[fact.region].root, sizes) for fact in facts.attention_gradients]


def _proposal(facts: KernelFacts, target: Target, tile: Tile, sizes: Sizes, predicted: Predicted) -> TritonProposal:
    return TritonProposal(
        reason=f"{tile.held} rows held and {tile.walked} walked over at once, "
        f"{predicted.registers_per_thread} registers, {sum(_programs(facts, sizes))} programs on {target.num_sms} SMs",
        block_sizes=sizes,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def _feasible(facts: KernelFacts, target: Target, percent: int) -> Iterator[TritonProposal]:
    """Those that fit, the least that an SM works through first, and of one height in the order of the table."""

    def cost(tile: Tile) -> float:
        sizes = _sizes_of(facts, tile)
        loops = zip(facts.attention_gradients, _programs(facts, sizes), strict=True)
        return sum(cost_of(tile, made, sizes[fact.held_axis], target) for fact, made in loops)

    for tile in sorted(_CANDIDATES, key=cost):
        sizes = _sizes_of(facts, tile)
        predicted = fits(facts, target, sizes, tile, percent)
        if predicted is not None:
            yield _proposal(facts, target, tile, sizes, predicted)
