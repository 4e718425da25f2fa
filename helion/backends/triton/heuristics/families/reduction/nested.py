"""Reductions over several dimensions that one loop iterates over, for few results: statistics of a channel over a
batch.

Matches kernels without a dot whose loop over several tiles reduces all of them, reads nothing again and stores nothing.
The grid must have at most two results per SM. A program then has an SM of its own: its tile is what 512 threads keep in
flight, along contiguous memory first. A loop that reduces after its last step takes what they load at once (measurement
``late_nested``). Where that dimension takes several tiles, the nest is flattened into one loop
(measurement ``nested_reduction``).
"""

from __future__ import annotations

from typing import ClassVar

from ......_compiler.facts.records import KernelFacts
from ......_support.records import dataclass
from ......autotuner.proposal import Declined, Heuristic
from ......hardware import Target
from ....proposal import TritonProposal
from ...sizing import clamp, estimate, grid_extent, is_contiguous, warps_for_threads
from ...tuned import Tuned, tuned
from .budget import reduction_alone
from .walked import walked_by


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "nested_reduction"

    #: Most programs per SM, and most elements of a tile: in all, and along one dimension.
    programs: int
    tile: int
    run: int
    threads: int
    #: Elements of a tile that the loop reduces after its last step.
    late_tile: int


_TUNED = tuned(_Numbers)


class TritonNestedReductionHeuristic(Heuristic):
    name: ClassVar[str] = "TritonNestedReductionHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        primary = reduction_alone(facts)
        if isinstance(primary, Declined):
            return primary
        walked = walked_by(facts, primary)
        if isinstance(walked, Declined):
            return walked
        if grid_extent(facts) > _TUNED.programs * target.num_sms:
            return Declined(f"more than {_TUNED.programs} programs per SM")
        sizes = {axis.block_id: axis.min_size for axis in facts.tunable_axes}
        room = _TUNED.tile if primary.after is None else _TUNED.late_tile
        for axis in sorted(walked, key=lambda axis: not is_contiguous(axis, facts)):
            sizes[axis.block_id] = clamp(min(room, _TUNED.run, axis.padded or _TUNED.run), axis)
            room = max(1, room // sizes[axis.block_id])
        warps = warps_for_threads(_TUNED.threads, target)
        if estimate(facts, target, sizes, warps, 1).spill_risk:
            return Declined("a tile for all threads spills")
        inner = walked[-1]
        several = inner.extent is None or sizes[inner.block_id] < inner.extent
        tile = " x ".join(str(sizes[axis.block_id]) for axis in walked)
        return (
            TritonProposal(
                reason=f"tiles of {tile} of a result per program, {warps} warps",
                block_sizes=sizes,
                ranges={"range_flattens": {walked[0].block_id: True}} if several else {},
                num_warps=warps,
                num_stages=1,
            ),
        )
