"""Loops over rows in fewer warps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from ......_compiler.facts.records import KernelFacts, ReductionFact
from ......hardware import Target
from ....proposal import TritonProposal
from ...sizing import estimate


def lighter_tiles(
    first: TritonProposal, primary: ReductionFact, facts: KernelFacts, target: Target
) -> Iterator[TritonProposal]:
    """Yield the same with a half and a quarter of the warps, in the same tiles and in tiles half as long.

    The warps of a row exchange its sums in each step of the loop, with barriers (measurement ``rows_of_bytes``,
    measurement ``low_ranks``).
    """
    warps, size = first.num_warps or 1, first.block_sizes.get(primary.axis, 1)
    least = max(1, facts.axes[primary.axis].min_size)
    for fewer, tile in itertools.product((warps // 2, warps // 4), (size, size // 2)):
        if not fewer or tile < least:
            continue
        sizes = {**first.block_sizes, primary.axis: tile}
        if not estimate(facts, target, sizes, fewer, 1, first.reduction_loops).spill_risk:
            reason = f"{first.reason}; predicted to be faster in tiles of {tile} and {fewer} warps"
            yield replace(first, reason=reason, block_sizes=sizes, num_warps=fewer)
