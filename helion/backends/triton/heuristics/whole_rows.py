"""More whole rows of an elementwise program, where starting its programs takes longer than their accesses."""

from __future__ import annotations

from ...._compiler.facts.records import KernelFacts
from ...._support.records import replace
from ....hardware import Target
from ..proposal import TritonProposal
from . import register_safety as safety
from .choose import trust, unless_faster
from .predicted_time import proposal_us
from .sizing import estimate, has_wide_memory


def fewer_programs(tiles: TritonProposal, facts: KernelFacts, target: Target) -> TritonProposal:
    """Return the same with more rows of whole dimensions, if that is predicted to be faster, where memory is fast for the SMs.

    A tile of so many bytes counts all elements as wide as the widest, such as angles of a rotation. Most may be narrower.
    """
    whole = any(axis.kind == "full" for axis in facts.axes)
    if not whole or not has_wide_memory(target) or not tiles.block_sizes:
        return tiles
    axis, found, warps = facts.tunable_axes[-1], [], tiles.num_warps or 1
    for more in (2, 4):
        rows = more * tiles.block_sizes[axis.block_id]
        if rows <= min(axis.padded or 2**30, axis.max_size or 2**30):
            sizes = {**tiles.block_sizes, axis.block_id: rows}
            reason = f"{tiles.reason}, {more} times the rows: fewer programs begin"
            found += [
                replace(tiles, reason=reason, block_sizes=sizes, num_warps=count) for count in (warps, more * warps)
            ]
    within = [
        each
        for each in found
        if safety.within(estimate(facts, target, dict(each.block_sizes), each.num_warps or 1, 1), safety.MANY_ROWS)
    ]
    first, *others = ((each, proposal_us(facts, each, target)) for each in (tiles, *within))
    return unless_faster(first, others, trust(target).fewer_programs)
