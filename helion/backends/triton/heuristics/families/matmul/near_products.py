"""Tiles of several matmuls near those of the rule, by predicted time.

A rule takes the highest tile that fits. Half of its rows may leave an SM several programs, and twice as many read shared
operands less often. Small matrices that are multiplied once need fewer warps. Tiles along loops stay, because predictions
do not rank shorter ones. So do sides of matmuls in steps along K, of which half reads the other operand twice
(measurement ``near_products``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ......_compiler.facts.records import KernelFacts
from ......_support.records import dataclass, replace
from ......hardware import Target
from ....proposal import TritonProposal
from ... import register_safety as safety
from ...choose import trust, unless_faster
from ...predicted_time import proposal_us
from ...sizing import clamp, estimate, extent_of
from ...tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "near_products"

    #: Shortest predicted time: below, launches and latency take most of it.
    least_us: float
    #: Least side of a tile, and fewest warps of one that is multiplied in a loop.
    least_side: int
    least_warps: int


def near(facts: KernelFacts, tile: TritonProposal, target: Target) -> TritonProposal | None:
    """Return the tile with half or twice the rows or columns, or with fewer warps, if that is predicted to be faster."""
    ratio = trust(target).near_products
    if not ratio or tile.launch or tile.pid_type is not None:
        return None
    us = proposal_us(facts, tile, target)
    if us < tuned(_Numbers).least_us:
        return None
    found = []
    for sizes, warps, stages in _steps(facts, tile):
        predicted = estimate(facts, target, sizes, warps, stages)
        if predicted.fits and not predicted.spill_risk and safety.within(predicted, safety.ALL):
            shape = " x ".join(map(str, sizes.values())) or "the same tile"
            reason = f"{tile.reason}; predicted to be faster in {shape}, {warps} warps, {stages} stages"
            each = replace(tile, block_sizes=sizes, num_warps=warps, num_stages=stages, reason=reason)
            found.append((each, proposal_us(facts, each, target)))
    best = unless_faster((tile, us), found, ratio)
    return None if best is tile else best


def _steps(facts: KernelFacts, tile: TritonProposal) -> Iterator[tuple[dict[int, int], int, int]]:
    """Yield block sizes, warps and stages that are one step away."""
    numbers = tuned(_Numbers)
    given, warps, stages = dict(tile.block_sizes), tile.num_warps or 1, tile.num_stages or 1
    if all(facts.regions[fact.region].kind == "root" for fact in facts.matmuls):
        yield from ((given, fewer, stages) for fewer in (warps // 2, warps // 4) if fewer)
    in_steps = any(fact.k_axis in facts.regions[fact.region].axes for fact in facts.matmuls)
    for axis in facts.tunable_axes:
        size = given.get(axis.block_id, 0)
        if not axis.on_grid or size < numbers.least_side:
            continue
        half, twice = ({**given, axis.block_id: changed} for changed in (size // 2, 2 * size))
        if not in_steps and size > numbers.least_side and clamp(size // 2, axis) == size // 2:
            yield from ((half, warps, depth) for depth in (stages, stages + 1))
            if warps > numbers.least_warps:
                yield half, warps // 2, stages
        if clamp(2 * size, axis) == 2 * size and size < extent_of(axis):
            yield twice, warps, stages
