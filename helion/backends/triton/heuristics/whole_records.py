"""Programs of one warp for kernels of small matrices and other records: each thread has one, and no warp waits for another.

Where records are so short that the GPU starts programs more slowly than memory moves their bytes, programs have more warps
(measurement ``started_records``).
"""

from __future__ import annotations

from typing import ClassVar

from ...._compiler.facts.records import KernelFacts
from ...._compiler.passes.analysis.whole_records import LEAST_ACCESSES, is_whole, record_of
from ...._support.records import dataclass, replace
from ....hardware import Target
from ..proposal import TritonProposal
from .predicted_time import proposal_timing
from .tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "whole_records"

    #: Ratio of the time to start programs to that of their bytes up to which programs have one warp.
    started: float
    #: The same up to which they have more warps, and the most of these.
    most: float
    most_warps: int


def of_records(tiles: TritonProposal, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...]:
    """Return a proposal for records that are accessed as a whole, else none (measurement ``whole_records``)."""
    if target.kind != "cuda" or len(facts.grid_axes) != 1 or not facts.axes[facts.grid_axes[0]].tunable:
        return ()
    (axis,) = facts.grid_axes
    accesses: dict[tuple[str, str], int] = {}
    for op in facts.memory_ops:
        along = [at for at, found in enumerate(op.subscript_axes) if found == axis]
        if op.gathered or not op.static or op.tile_axes != (axis,) or len(along) != 1:
            continue
        if is_whole(record_of(op.extents, op.strides, along[0]), op.itemsize):
            accesses[op.name, op.kind] = accesses.get((op.name, op.kind), 0) + 1
    if max(accesses.values(), default=0) < LEAST_ACCESSES:
        return ()
    return (_warps_of_records(tiles, facts, axis, target),)


def _warps_of_records(tiles: TritonProposal, facts: KernelFacts, axis: int, target: Target) -> TritonProposal:
    """Return the proposal of one record for each thread, in one warp unless most of the time starts programs.

    More warps then halve that time, until it is less than half of the time of the memory.
    """
    numbers = tuned(_Numbers)
    block, warps, most = facts.axes[axis].block_id, 1, numbers.started
    while True:
        reason = f"{tiles.reason}, of records that {'a warp loads' if warps == 1 else f'{warps} warps load'} as a whole"
        sizes = {block: warps * target.warp_size}
        made = replace(tiles, reason=reason, block_sizes=sizes, num_warps=warps, loop_orders={})
        units = dict(proposal_timing(facts, made, target).units)
        if warps == numbers.most_warps or units["starting programs"] <= most * units["memory"]:
            return made
        warps, most = 2 * warps, numbers.most
