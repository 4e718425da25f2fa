"""Runs of elementwise kernels with random numbers, which idle lanes of the last tile of a row compute too."""

from __future__ import annotations

from typing import ClassVar

from ...._compiler.facts.records import KernelFacts, PointwiseFact
from ...._support.records import dataclass, replace
from ....hardware import Target
from ..proposal import TritonProposal
from .choose import trust, unless_faster
from .predicted_time import proposal_us
from .tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "random_runs"

    #: By how much the run and the warps of a tile are divided, of each tile that is tried.
    shares: tuple[tuple[int, int], ...]


def shorter_runs(tiles: TritonProposal, fact: PointwiseFact, facts: KernelFacts, target: Target) -> TritonProposal:
    """Return the same with a half or a quarter of the longest run, if that is predicted to be faster."""
    run = max(fact.contiguous_axes, key=lambda axis: tiles.block_sizes.get(axis, 0), default=None)
    if run is None:
        return tiles
    every = [tiles]
    for share, fewer in tuned(_Numbers).shares:
        size, warps = tiles.block_sizes[run] // share, (tiles.num_warps or 1) // fewer
        if size >= facts.axes[run].min_size and warps:
            sizes = {**tiles.block_sizes, run: size}
            reason = f"{tiles.reason}, runs of {size} in {warps} warps"
            every.append(replace(tiles, reason=reason, block_sizes=sizes, num_warps=warps))
    timed = [(each, proposal_us(facts, each, target)) for each in every]
    return unless_faster(timed[0], timed[1:], trust(target).shorter_runs)
