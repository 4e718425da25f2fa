"""Recurrences whose state has a whole dimension: linear attention token by token, delta rules, state space models.

Matches a loop over single indices that carries tiles with a whole dimension and reduces along it in each step, without
a matmul. A step computes little compared with the latency of its loads, so asynchronous copies of many steps are in
flight. Each thread reads the elements of a row that it needs from shared memory. The loop is unrolled by four, so that
its steps overlap. Loads too narrow for asynchronous copies are prefetched into registers as many steps as the loop is
unrolled by. Triton 3.6 and 3.7 do not pipeline a loop that carries a value over more than one iteration. The reductions
of a step cross the threads of a program, and one warp needs no barrier for them. Tiles of the other dimension leave
each scheduler of an SM a program or two (measurement ``state_recurrence``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from ....._compiler.facts.records import AxisFact, KernelFacts, MemoryOpFact
from ....._shapes import previous_power_of_2
from ....._support.records import dataclass
from .....autotuner.proposal import Declined, Heuristic
from .....hardware import Target
from ...proposal import TritonProposal
from ...resources.predict import predict
from ...resources.registers import ahead_registers
from ..sizing import all_sizes, clamp, extent_of, grid_extent, is_contiguous
from ..tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "state_recurrence"

    #: Programs per SM, one for each of its schedulers; and the excess over all of them that costs no program.
    programs: int
    full: float
    #: Programs per SM and stages of a loop with asynchronous copies: the first with enough shared memory is taken.
    pipelines: tuple[tuple[int, int], ...]
    #: The fewest bytes of a thread that an asynchronous copy takes.
    copied_bytes: int
    #: Programs per SM where values are prefetched into registers: two on each scheduler hide the latency of a step.
    carried_programs: int
    #: Elements per thread of all tiles that the loop carries, and most warps.
    thread_elements: int
    most_warps: int
    #: The unroll factor, the most prefetched steps, and 4-byte registers per thread for prefetched values.
    unrolled: int
    ahead: int
    registers: int
    #: Least iterations of the unrolled loop.
    least_turns: int


_TUNED = tuned(_Numbers)


class TritonStateRecurrenceHeuristic(Heuristic):
    name: ClassVar[str] = "TritonStateRecurrenceHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if facts.matmuls or facts.scans or facts.atomics or facts.num_roots != 1:
            return Declined("the kernel has a matmul, a scan, an atomic or several grids")
        loops = [region for region in facts.regions if region.kind == "loop"]
        if len(loops) != 1 or len(loops[0].axes) != 1 or facts.axes[loops[0].axes[0]].kind != "scalar":
            return Declined("the kernel does not have exactly one loop, over single indices")
        step = facts.axes[loops[0].axes[0]]
        if not any(facts.axes[axis].kind == "full" for fact in facts.accumulators for axis in fact.axes):
            return Declined("no carried tile of the loop has a whole dimension")
        if not facts.sized_reductions or any(
            fact.region != loops[0].region or fact.category != "full_slice" for fact in facts.sized_reductions
        ):
            return Declined("not all reductions are over whole dimensions in the steps of the loop")
        if not facts.tunable_axes or any(not axis.on_grid for axis in facts.tunable_axes):
            return Declined("the tiles of the kernel are not those of its grid")
        loads = [op for op in facts.memory_ops if op.kind == "load" and op.region == loops[0].region]
        if not loads or not {op.slot for op in loads} <= set(facts.prefetchable_slots):
            return Declined("a load of a step cannot be prefetched")
        if extent_of(step) < _TUNED.unrolled * _TUNED.least_turns:
            return Declined("the loop has few steps")
        proposals = tuple(
            p for p in (_copied(facts, target, step, loads), _carried(facts, target, step)) if p is not None
        )
        return proposals or Declined("the smallest tiles spill")


def _copied(facts: KernelFacts, target: Target, step: AxisFact, loads: Sequence[MemoryOpFact]) -> TritonProposal | None:
    """Return a proposal that prefetches into shared memory, and into registers where loads are too narrow for that.

    Return None where no load is wide enough for asynchronous copies, or shared memory does not suffice.
    """
    if target.kind != "cuda":
        return None
    for programs, stages in _TUNED.pipelines:
        sizes = _sizes(facts, target, programs)
        warps = _warps(facts, target, sizes)
        all_of = all_sizes(facts, sizes)
        narrow = [op for op in loads if _thread_bytes(op, all_of, warps * target.warp_size) < _TUNED.copied_bytes]
        if len(narrow) == len(loads):
            return None
        taken = predict(facts, all_of, warps, 1, target, prefetch_stages=stages, unrolled=_TUNED.unrolled)
        if programs * taken.shared_bytes <= target.smem_per_sm_bytes and not taken.spill_risk:
            return TritonProposal(
                reason=f"{_reason(facts, sizes)}, copies of {(stages - 1) * _TUNED.unrolled} steps in flight, {warps} warps",
                block_sizes=sizes,
                ranges={
                    "range_num_stages": {step.block_id: stages},
                    "range_unroll_factors": {step.block_id: _TUNED.unrolled},
                },
                num_warps=warps,
                num_stages=1,
                launch={"prefetch_distance": _TUNED.unrolled} if narrow else {},
            )
    return None


def _carried(facts: KernelFacts, target: Target, step: AxisFact) -> TritonProposal | None:
    """Return a proposal that prefetches into registers."""
    sizes = _sizes(facts, target, _TUNED.carried_programs)
    warps = _warps(facts, target, sizes)
    all_of = all_sizes(facts, sizes)
    registers = ahead_registers(facts, all_of, warps, target)
    ahead = max(1, min(_TUNED.ahead, previous_power_of_2(max(1, _TUNED.registers // registers))))
    if predict(facts, all_of, warps, 1, target, ahead=ahead).spill_risk:
        return None
    return TritonProposal(
        reason=f"{_reason(facts, sizes)}, {ahead} steps prefetched, {warps} warps",
        block_sizes=sizes,
        ranges={"range_unroll_factors": {step.block_id: min(_TUNED.unrolled, ahead)}} if ahead > 1 else {},
        num_warps=warps,
        num_stages=1,
        launch={"prefetch_distance": ahead},
    )


def _reason(facts: KernelFacts, sizes: Mapping[int, int]) -> str:
    return f"tiles of {' x '.join(map(str, sizes.values()))} by whole dimensions of {_most_whole(facts)}"


def _sizes(facts: KernelFacts, target: Target, programs: int) -> dict[int, int]:
    """Return tiles that leave an SM ``programs`` programs, or smaller ones that fit in registers, along contiguous axes
    first.
    """
    most = max(1, _TUNED.thread_elements * target.warp_size // _most_whole(facts))
    share = int(_TUNED.full * grid_extent(facts) / (programs * target.num_sms))
    room = max(1, min(most, previous_power_of_2(max(1, share))))
    sizes: dict[int, int] = {}
    for axis in sorted(facts.tunable_axes, key=lambda axis: _rank(axis, facts)):
        sizes[axis.block_id] = clamp(min(room, axis.padded or room), axis)
        room = max(1, room // sizes[axis.block_id])
    return sizes


def _warps(facts: KernelFacts, target: Target, sizes: Mapping[int, int]) -> int:
    carried = sum(_elements(all_sizes(facts, sizes), fact.axes) for fact in facts.accumulators)
    return max(
        1, min(_TUNED.most_warps, previous_power_of_2(max(1, carried // (_TUNED.thread_elements * target.warp_size))))
    )


def _rank(axis: AxisFact, facts: KernelFacts) -> tuple[bool, int]:
    return not is_contiguous(axis, facts), -extent_of(axis)


def _most_whole(facts: KernelFacts) -> int:
    """Return the most elements of whole dimensions of a tile that the loop carries."""
    return max(_whole(facts, fact.axes) for fact in facts.accumulators)


def _whole(facts: KernelFacts, axes: tuple[int, ...]) -> int:
    return math.prod(max(1, facts.axes[axis].padded) for axis in axes if facts.axes[axis].kind == "full")


def _elements(sizes: Mapping[int, int], axes: tuple[int, ...]) -> int:
    return math.prod(sizes[axis] for axis in axes)


def _thread_bytes(op: MemoryOpFact, sizes: Mapping[int, int], threads: int) -> int:
    """Return the bytes of a tile that a thread copies at once; 0 for a scalar."""
    return max(1, _elements(sizes, op.tile_axes) // threads) * op.itemsize if op.tile_axes else 0
