"""Matmuls that are much wider than tall, or the reverse: memory-bound, so K is read in long runs.

Matches exactly one 2-D dot of known extents with an aspect ratio of 8 or more. Published for H100 and MI355X as an
alternate, never the default; not measured on a GPU here.
"""

from __future__ import annotations

from typing import ClassVar

from ......_compiler.facts.records import KernelFacts
from ......_shapes import previous_power_of_2
from ......_support.records import dataclass
from ......autotuner.proposal import Declined, Heuristic
from ......hardware import Target
from ....proposal import TritonProposal
from ...tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "skinny_gemm"

    #: Least ratio of M and N, and the tile.
    aspect: int
    tile: tuple[int, int, int]


_TUNED = tuned(_Numbers)


class TritonSkinnyGemmHeuristic(Heuristic):
    name: ClassVar[str] = "TritonSkinnyGemmHeuristic"
    promote_seed_to_default: ClassVar[bool] = False

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if len(facts.matmuls) != 1:
            return Declined(f"the kernel has {len(facts.matmuls)} matmuls, not one")
        fact = facts.matmuls[0]
        if fact.lhs_rank != 2 or fact.rhs_rank != 2:
            return Declined("the matmul is batched")
        blocks = [b for b in (fact.m_block_id, fact.n_block_id, fact.k_block_id) if b is not None]
        if len(blocks) != 3:
            return Declined("M, N and K of the matmul are not three tiles")
        if not all(facts.axes[block].on_grid for block in blocks[:2]):
            return Declined("M or N of the matmul is not on the grid")
        m, n, k = fact.static_m, fact.static_n, fact.static_k
        if m is None or n is None or k is None:
            return Declined("an extent of the matmul is not known when the kernel is compiled")
        if max(m, n) < _TUNED.aspect * min(m, n):
            return Declined(f"{m} x {n} is not skinny: the aspect ratio is below {_TUNED.aspect}")
        sizes = {}
        for block, extent, wanted in zip(blocks, (m, n, k), _TUNED.tile, strict=True):
            sizes[block] = max(facts.axes[block].min_size, previous_power_of_2(min(wanted, extent)))
        return (TritonProposal(reason=f"long runs of K for a matmul of {m} x {n}", block_sizes=sizes),)
