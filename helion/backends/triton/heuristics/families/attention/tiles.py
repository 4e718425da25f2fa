"""Helpers of the attention heuristics: tiles that fit, their cost and their number of programs."""

from __future__ import annotations

from typing import NamedTuple

from ......_compiler.facts.records import KernelFacts
from ......_shapes import cdiv
from ......autotuner.proposal import Predicted
from ......hardware import Target
from ... import register_safety as safety
from ...candidates import moderate_sizes
from ...sizing import Sizes, estimate, most_warps

#: Estimated throughput of an SM by tile height, relative to 128 rows. Each tile reads keys and values from shared memory
#: once, and matmuls of fewer than 64 rows leave the asynchronous units idle. That of 256 rows is for operands of 32 bits
#: (measurement ``attention_tf32``).
_RATE = {256: 1.35, 128: 1.0, 64: 0.9, 32: 0.5, 16: 0.3}
#: Estimated latency between dependent steps of the loop, in rows of a tile of 128.
_LATENCY_ROWS = 72
#: Fraction, in quarters, of the resident programs that must exist for sharing SMs to pay: on an H200 256 of 264 do.
_QUARTERS = 3
#: Sides of the tiles of matmuls in other grid loops: whole lines of K, and columns that keep the rows' tile small.
_BESIDE = {"m": 64, "n": 32, "k": 64}


class Tile(NamedTuple):
    """Stationary rows of a program, rows that its loop streams per step, stages and warps."""

    held: int
    walked: int
    stages: int
    warps: int


def start_sizes(facts: KernelFacts) -> Sizes:
    """Return the smallest tiles for the grid loops with attention, and moderate ones for all other grid loops.

    Those may hold the matmuls before and after the attention, as in a kernel of a whole layer (measurement
    ``decode_layer``).
    """
    regions = [each.region for each in (facts.attention, *facts.attention_gradients) if each is not None]
    roots = {facts.regions[region].root for region in regions}
    sizes = {axis.block_id: axis.min_size for axis in facts.tunable_axes}
    if len(roots) == facts.num_roots:
        return sizes
    moderate = moderate_sizes(facts, _BESIDE)
    own = {axis.block_id for axis in facts.tunable_axes if roots & set(axis.roots)}
    return {block: size if block in own else moderate[block] for block, size in sizes.items()}


def fits(facts: KernelFacts, target: Target, sizes: Sizes, tile: Tile, percent: int) -> Predicted | None:
    """Return the prediction of a launch if it fits and stays within ``percent`` of the registers."""
    if tile.warps > most_warps(facts, sizes, target):
        return None
    predicted = estimate(facts, target, sizes, tile.warps, tile.stages)
    good = predicted.fits and not predicted.spill_risk and safety.within(predicted, percent)
    return predicted if good else None


def cost_of(tile: Tile, programs: int, rows: int, target: Target) -> float:
    """Return the work of one SM, in rows of a tile of 128, where each program has ``rows`` stationary rows."""
    return max(_LATENCY_ROWS, cdiv(programs, target.num_sms) * rows / _RATE[tile.held])


def share_sms(programs: int, together: int, target: Target) -> bool:
    """Return whether there are enough programs for ``together`` of them on each SM."""
    return 4 * programs >= _QUARTERS * together * target.num_sms


def neighbours_along(facts: KernelFacts, root: int, axis: int) -> dict[int, tuple[int, ...]]:
    """Return ``loop_orders`` of a grid loop in which neighbouring programs have neighbouring tiles of ``axis``.

    Such programs stream the same tensors. Return nothing where the default order already does this.
    """
    axes = [each for each in facts.grid_axes if root in facts.axes[each].roots]
    if axis not in axes or len(axes) < 2:
        return {}
    at = axes.index(axis)
    return {root: (at, *(other for other in reversed(range(len(axes))) if other != at))}
