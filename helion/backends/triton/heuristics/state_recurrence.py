"""Recurrences whose state has a whole dimension: linear attention token by token, delta rules, state space models.

Matches a loop over single indices that carries tiles with a whole dimension and reduces along it in each step, without a matrix
product. What a step computes is little next to what its loads take to arrive, so that steps are loaded ahead into registers, and
the loop is unrolled as far as tiles in registers need to come back to where they were. The sums of a step cross the threads of a
program: one warp needs no barriers for them. Tiles of the other dimension are what leaves each scheduler of an SM a program.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from ...._compiler.facts.records import AxisFact, KernelFacts
from ...._shapes import previous_power_of_2
from ....autotuner.proposal import Declined, Heuristic
from ....hardware import Target
from ..proposal import TritonProposal
from ..resources.registers import ahead_registers
from .sizing import all_sizes, clamp, estimate, extent_of, grid_extent, is_contiguous

#: Programs for each SM, one for each of its schedulers; so much more than all of them is no program less.
_PROGRAMS, _FULL = 4, 1.1
#: Elements of a thread of all tiles that the loop carries, and warps at most.
_THREAD_ELEMENTS, _MOST_WARPS = 32, 8
#: Steps of a turn of the loop, steps ahead at most, and registers of 4 bytes of a thread for what is loaded ahead.
_UNROLLED, _AHEAD, _REGISTERS = 4, 8, 96
#: The loop has this many turns at least.
_LEAST_TURNS = 4


class TritonStateRecurrenceHeuristic(Heuristic):
    name: ClassVar[str] = "TritonStateRecurrenceHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if facts.matmuls or facts.scans or facts.atomics or facts.num_roots != 1:
            return Declined("the kernel has a matrix product, a scan, an atomic or several grids")
        loops = [region for region in facts.regions if region.kind == "loop"]
        if len(loops) != 1 or len(loops[0].axes) != 1 or facts.axes[loops[0].axes[0]].kind != "scalar":
            return Declined("the kernel has no loop over single indices, or others beside it")
        step = facts.axes[loops[0].axes[0]]
        if not any(facts.axes[axis].kind == "full" for fact in facts.accumulators for axis in fact.axes):
            return Declined("no tile that the loop carries has a whole dimension")
        if not facts.sized_reductions or any(
            fact.region != loops[0].region or fact.category != "full_slice" for fact in facts.sized_reductions
        ):
            return Declined("the steps of the loop reduce no whole dimension, or others do")
        if not facts.tunable_axes or any(not axis.on_grid for axis in facts.tunable_axes):
            return Declined("the tiles of the kernel are not those of its grid")
        loads = [op for op in facts.memory_ops if op.kind == "load" and op.region == loops[0].region]
        if not loads or not {op.slot for op in loads} <= set(facts.ahead):
            return Declined("a step loads what an earlier one cannot")
        if extent_of(step) < _UNROLLED * _LEAST_TURNS:
            return Declined("there are few steps")
        whole = max(_whole(facts, fact.axes) for fact in facts.accumulators)
        sizes = _sizes(facts, target, max(1, _THREAD_ELEMENTS * target.warp_size // whole))
        carried = sum(_elements(all_sizes(facts, sizes), fact.axes) for fact in facts.accumulators)
        warps = max(1, min(_MOST_WARPS, previous_power_of_2(carried // (_THREAD_ELEMENTS * target.warp_size))))
        registers = ahead_registers(facts, all_sizes(facts, sizes), warps, target)
        ahead = max(1, min(_AHEAD, previous_power_of_2(_REGISTERS // registers)))
        if estimate(facts, target, sizes, warps, 1).spill_risk:
            return Declined("the smallest tiles spill")
        return (
            TritonProposal(
                reason=f"tiles of {' x '.join(map(str, sizes.values()))} beside {whole}, {ahead} steps ahead, {warps} warps",
                block_sizes=sizes,
                range_unroll_factors={step.block_id: min(_UNROLLED, ahead)} if ahead > 1 else {},
                num_warps=warps,
                num_stages=1,
                launch={"load_ahead": ahead},
            ),
        )


def _sizes(facts: KernelFacts, target: Target, most: int) -> dict[int, int]:
    """The tiles that leave an SM enough programs, of ``most`` elements, given to contiguous axes first."""
    share = int(_FULL * grid_extent(facts) / (_PROGRAMS * target.num_sms))
    room = max(1, min(most, previous_power_of_2(max(1, share))))
    sizes: dict[int, int] = {}
    for axis in sorted(facts.tunable_axes, key=lambda axis: _rank(axis, facts)):
        sizes[axis.block_id] = clamp(min(room, axis.padded or room), axis)
        room = max(1, room // sizes[axis.block_id])
    return sizes


def _rank(axis: AxisFact, facts: KernelFacts) -> tuple[bool, int]:
    return not is_contiguous(axis, facts), -extent_of(axis)


def _whole(facts: KernelFacts, axes: tuple[int, ...]) -> int:
    return math.prod(max(1, facts.axes[axis].padded) for axis in axes if facts.axes[axis].kind == "full")


def _elements(sizes: Mapping[int, int], axes: tuple[int, ...]) -> int:
    return math.prod(sizes[axis] for axis in axes)
