"""Any kernel on any target: moderate tiles, reduced until nothing spills and everything fits.

Always applies, and comes last (measurement ``fallback``).
"""

from __future__ import annotations

import functools
from typing import ClassVar

from ....._compiler.facts.records import AxisFact, KernelFacts
from ....._support.records import dataclass
from .....autotuner.proposal import Heuristic, Predicted
from .....hardware import Target
from ...proposal import TritonProposal
from .. import register_safety as safety
from ..candidates import moderate_sizes
from ..sizing import Chunks, Sizes, all_sizes, estimate, halve, most_warps
from ..tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "fallback"

    #: Sides of the tile of a dot.
    dot_sides: dict[str, int]
    #: A row of up to this many elements is loaded whole.
    held_row: int
    chunk: int
    warps: int
    most_threads: int
    stages: int
    smallest_chunk: int


_TUNED = tuned(_Numbers)


class TritonFallbackHeuristic(Heuristic):
    name: ClassVar[str] = "TritonFallbackHeuristic"
    promote_seed_to_default: ClassVar[bool] = False

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...]:
        sizes = moderate_sizes(facts, _TUNED.dot_sides)
        chunks: Chunks = {
            axis.block_id: None if axis.padded <= _TUNED.held_row else _TUNED.chunk for axis in facts.rolled_axes
        }
        warps, stages = _TUNED.warps, _TUNED.stages if facts.matmuls else 1
        most = max(1, _TUNED.most_threads // target.warp_size)
        percent = safety.gradient(target) if facts.attention_gradients else safety.ALL
        while True:
            predicted = estimate(facts, target, sizes, warps, stages, chunks)
            if predicted.fits and not predicted.spill_risk and safety.within(predicted, percent):
                break
            if (
                predicted.fits
                and 2 * warps <= min(most, most_warps(facts, sizes, target))
                and _helps(predicted, estimate(facts, target, sizes, warps * 2, stages, chunks))
            ):
                warps *= 2
            elif not predicted.fits and stages > 1:
                stages -= 1
            else:
                short = functools.partial(_short, facts, target, warps, stages)
                smaller = halve(_able(facts, sizes, chunks), sizes, chunks, facts, short)
                if smaller is None:
                    break
                sizes, chunks = smaller
        reason = f"tiles of at most {max(sizes.values(), default=1)}, {_outcome(predicted)}"
        return (
            TritonProposal(
                reason=reason, block_sizes=sizes, reduction_loops=chunks, num_warps=warps, num_stages=stages
            ),
        )


def _helps(predicted: Predicted, wider: Predicted) -> bool:
    """Return whether more warps reduce the excess of registers.

    Where each warp repeats the operands of its neighbours, twice the warps need nearly as many registers per thread, of
    half as many.
    """
    over, over_wider = (p.registers_per_thread / p.register_limit for p in (predicted, wider))
    return over_wider < over


def _short(
    facts: KernelFacts, target: Target, warps: int, stages: int, sizes: Sizes, chunks: Chunks
) -> tuple[float, ...]:
    """Return by how much a launch exceeds the target's resources, the most severe first."""
    predicted = estimate(facts, target, sizes, warps, stages, chunks)
    shared = 0 if predicted.fits else predicted.shared_bytes
    return not predicted.fits, shared, predicted.spill_risk, predicted.registers_per_thread, predicted.time_us


def _outcome(predicted: Predicted) -> str:
    if not predicted.fits:
        return predicted.reason
    if predicted.spill_risk:
        return "which still exceed the registers"
    return f"{predicted.registers_per_thread} registers, {predicted.shared_bytes} bytes of shared memory"


def _able(facts: KernelFacts, sizes: Sizes, chunks: Chunks) -> tuple[int, ...]:
    """Return the tiles that can be halved, or the row chunks if all tiles are at their minimum."""

    def least(axis: AxisFact) -> int:
        return max(axis.min_size, _TUNED.smallest_chunk if axis.block_id in chunks else 1)

    now = all_sizes(facts, sizes, chunks)
    for blocks in (tuple(sizes), tuple(chunks)):
        able = tuple(block for block in blocks if now[block] > least(facts.axes[block]))
        if able:
            return able
    return ()
