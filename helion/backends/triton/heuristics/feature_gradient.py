"""Gradients of parameters on H200: every program accumulates its share of the rows into one row of partial results.

Matches kernels without a dot in which a loop over rows carries an accumulator along the feature axis. Examples are
grad_weight[N] and grad_bias[N] of a norm's backward pass. It applies to such GPUs only, and comes before
``TritonReductionHeuristic``, whose choice is the published one for H100. In sweeps of six shapes many programs with few
threads beat one wave of large ones, if each accumulates enough rows. The shapes were bf16 and fp32 with 512 to 8192
features (CUDA 13.0, Triton 3.6, 2026-11-20; `python benchmarks/sweep.py --score`).
"""

from __future__ import annotations

from typing import ClassVar

from ...._compiler.facts.records import AxisFact, KernelFacts
from ...._shapes import previous_power_of_2
from ....autotuner.proposal import Declined, Heuristic
from ....hardware import MemoryClass, Target
from ..proposal import TritonProposal
from .reduction_budget import allocate
from .reduction_launch import launch
from .sizing import extent_of

#: Most rows of a program, and of the tile that it reads at once.
_ROWS, _TILE_ROWS = 64, 2
#: Elements of that tile per thread, and most threads before register pressure asks for more.
_THREAD_ELEMENTS, _THREADS = 32, 512


class TritonFeatureGradientHeuristic(Heuristic):
    name: ClassVar[str] = "TritonFeatureGradientHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if target.memory is not MemoryClass.FAST:
            return Declined(f"measured for H200, not for {target.device}")
        if facts.matmuls:
            return Declined("the kernel has a matmul")
        if facts.primary_reduction is None or not any(fact.per_feature_accumulator for fact in facts.reductions):
            return Declined("no accumulator along features is carried through a loop over rows")
        summed = _summed_axes(facts)
        if not summed:
            return Declined("the rows of a program are not a tile")
        found = allocate(facts, target)
        primary = found.primary
        width = facts.axes[primary.axis].padded or primary.extent
        for grid, inner in summed:
            shares = previous_power_of_2(max(1, extent_of(grid) // target.num_sms))
            found.sizes[grid.block_id] = max(grid.min_size, min(_ROWS, shares))
            found.sizes[inner.block_id] = max(inner.min_size, min(_TILE_ROWS, found.sizes[grid.block_id]))
        threads = max(target.warp_size, min(_THREADS, _TILE_ROWS * width // _THREAD_ELEMENTS))
        chosen = launch(found, facts, target, threads=threads)
        rows = ", ".join(str(chosen.sizes[grid.block_id]) for grid, _ in summed)
        return (
            TritonProposal(
                reason=f"{rows} rows of {primary.extent} features per program, {chosen.num_warps} warps",
                block_sizes=chosen.sizes,
                reduction_loops=chosen.chunks,
                num_warps=chosen.num_warps,
                num_stages=1,
            ),
        )


def _summed_axes(facts: KernelFacts) -> list[tuple[AxisFact, AxisFact]]:
    """Return the tiles of the grid that an inner loop iterates over, each with the tile of that loop."""
    inner = [axis for axis in facts.tunable_axes if not axis.on_grid]
    pairs = [(facts.axes[axis.outer], axis) for axis in inner if axis.outer is not None]
    return [(grid, axis) for grid, axis in pairs if grid.on_grid and grid.tunable]
