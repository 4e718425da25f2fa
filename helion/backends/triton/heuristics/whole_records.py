"""Programs of one warp for kernels of small matrices and other records: each thread has one, and no warp waits for another."""

from __future__ import annotations

from ...._compiler.facts.records import KernelFacts
from ...._compiler.passes.analysis.whole_records import LEAST_ACCESSES, is_whole, record_of
from ...._support.records import replace
from ....hardware import Target
from ..proposal import TritonProposal


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
    block = facts.axes[axis].block_id
    reason = f"{tiles.reason}, of records that a warp loads as a whole"
    return (replace(tiles, reason=reason, block_sizes={block: target.warp_size}, num_warps=1, loop_orders={}),)
