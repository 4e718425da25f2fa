"""What the rules for attention share: tiles that fit, and how many programs they make."""

from __future__ import annotations

import math
from typing import NamedTuple

from ...._compiler.facts.records import KernelFacts
from ...._shapes import cdiv
from ....autotuner.proposal import Predicted
from ....hardware import Target
from . import register_safety as safety
from .sizing import Sizes, estimate, extent_of, most_warps

#: Part of the rate of the highest tile at which an SM works through others, at a guess: keys and values are read from
#: shared memory once for each of them, and products of less than 64 rows leave the asynchronous units idle.
_RATE = {128: 1.0, 64: 0.9, 32: 0.5, 16: 0.3}
#: Rows of the highest tile that are worked through while a step of the loop waits for the one before it, at a guess.
_LATENCY_ROWS = 72
#: Part of what runs at once, in quarters, that programs are worth sharing an SM for: on an H200 256 of 264 are.
_QUARTERS = 3


class Tile(NamedTuple):
    """Elements that a program holds and that its loop walks over at once, stages and warps."""

    held: int
    walked: int
    stages: int
    warps: int


def fits(facts: KernelFacts, target: Target, sizes: Sizes, tile: Tile, percent: int) -> Predicted | None:
    """What a launch takes, where it fits and ``percent`` of the registers hold it."""
    if tile.warps > most_warps(facts, sizes, target):
        return None
    predicted = estimate(facts, target, sizes, tile.warps, tile.stages)
    good = predicted.fits and not predicted.spill_risk and safety.within(predicted, percent)
    return predicted if good else None


def cost_of(tile: Tile, programs: int, rows: int, target: Target) -> float:
    """What an SM works through, in rows of the highest tile, where programs hold ``rows`` each."""
    return max(_LATENCY_ROWS, cdiv(programs, target.num_sms) * rows / _RATE[tile.held])


def share_sms(programs: int, together: int, target: Target) -> bool:
    """Whether there are enough programs for so many of them ``together`` on each SM."""
    return 4 * programs >= _QUARTERS * together * target.num_sms


def neighbours_along(facts: KernelFacts, root: int, axis: int) -> dict[int, tuple[int, ...]]:
    """``loop_orders`` of a grid loop in which neighbouring programs hold neighbouring tiles of ``axis``, and so walk over the
    same tensors; empty where they do in any case."""
    axes = [each for each in facts.grid_axes if root in facts.axes[each].roots]
    if axis not in axes or len(axes) < 2:
        return {}
    at = axes.index(axis)
    return {root: (at, *(other for other in reversed(range(len(axes))) if other != at))}


def programs_of(facts: KernelFacts, root: int, sizes: Sizes) -> int:
    """Programs of one grid loop."""

    def count(axis: int) -> int:
        fact = facts.axes[axis]
        return cdiv(extent_of(fact), sizes.get(axis) or fact.size or 1)

    return math.prod(count(axis) for axis in facts.grid_axes if root in facts.axes[axis].roots)
