"""Gradients of parameters: every program accumulates its share of the rows into one row of partial results.

Matches kernels without a dot in which a loop over rows carries an accumulator along the feature axis. Examples are
grad_weight[N] and grad_bias[N] of a norm's backward pass. Many programs with few threads beat one wave of large ones,
if each accumulates enough rows. Programs have half the rows where the last wave is predicted to leave SMs idle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from ......_compiler.facts.records import AxisFact, KernelFacts
from ......_shapes import cdiv, previous_power_of_2
from ......_support.records import dataclass
from ......autotuner.proposal import Declined, Heuristic
from ......hardware import Target
from ....proposal import TritonProposal
from ...choose import trust, unless_faster
from ...predicted_time import proposal_us
from ...sizing import extent_of, wave_efficiency
from ...tuned import Tuned, tuned
from .budget import allocate
from .launch import launch


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "feature_gradient"

    #: Most rows of a program, and of the tile that it reads at once.
    rows: int
    tile_rows: int
    #: Elements of that tile per thread, and most threads before register pressure asks for more.
    thread_elements: int
    threads: int


_TUNED = tuned(_Numbers)


class TritonFeatureGradientHeuristic(Heuristic):
    name: ClassVar[str] = "TritonFeatureGradientHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if facts.matmuls:
            return Declined("the kernel has a matmul")
        if facts.primary_reduction is None or not any(fact.per_feature_accumulator for fact in facts.reductions):
            return Declined("no accumulator along features is carried through a loop over rows")
        summed = _summed_axes(facts)
        if not summed:
            return Declined("the rows of a program are not a tile")
        most = {
            grid.block_id: min(_TUNED.rows, previous_power_of_2(max(1, extent_of(grid) // target.num_sms)))
            for grid, _ in summed
        }
        made = _proposal(facts, target, summed, most)
        programs = math.prod(cdiv(extent_of(grid), made.block_sizes[grid.block_id]) for grid, _ in summed)
        if wave_efficiency(programs, target) >= trust(target).full_waves:
            return (made,)
        half = _proposal(facts, target, summed, {block: max(1, rows // 2) for block, rows in most.items()})
        timed = [(each, proposal_us(facts, each, target)) for each in (made, half)]
        return (unless_faster(timed[0], timed[1:], trust(target).fewer_summed_rows),)


def _proposal(
    facts: KernelFacts, target: Target, summed: Sequence[tuple[AxisFact, AxisFact]], most: Mapping[int, int]
) -> TritonProposal:
    """Return the proposal with at most so many rows of a program, by the axis of the grid."""
    found = allocate(facts, target)
    primary = found.primary
    width = facts.axes[primary.axis].padded or primary.extent
    for grid, inner in summed:
        found.sizes[grid.block_id] = max(grid.min_size, most[grid.block_id])
        found.sizes[inner.block_id] = max(inner.min_size, min(_TUNED.tile_rows, found.sizes[grid.block_id]))
    threads = max(target.warp_size, min(_TUNED.threads, _TUNED.tile_rows * width // _TUNED.thread_elements))
    chosen = launch(found, facts, target, threads=threads)
    rows = ", ".join(str(chosen.sizes[grid.block_id]) for grid, _ in summed)
    return TritonProposal(
        reason=f"{rows} rows of {primary.extent} features per program, {chosen.num_warps} warps",
        block_sizes=chosen.sizes,
        reduction_loops=chosen.chunks,
        num_warps=chosen.num_warps,
        num_stages=1,
    )


def _summed_axes(facts: KernelFacts) -> list[tuple[AxisFact, AxisFact]]:
    """Return the tiles of the grid that an inner loop iterates over, each with the tile of that loop."""
    inner = [axis for axis in facts.tunable_axes if not axis.on_grid]
    pairs = [(facts.axes[axis.outer], axis) for axis in inner if axis.outer is not None]
    return [(grid, axis) for grid, axis in pairs if grid.on_grid and grid.tunable]
