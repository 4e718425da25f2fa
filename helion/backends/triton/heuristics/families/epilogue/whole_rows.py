"""Matmuls whose output rows are whole within a program, and reduced there."""

from __future__ import annotations

from ......_compiler.facts.records import KernelFacts, MatmulFact, ReductionFact
from ......_support.records import dataclass
from ......autotuner.proposal import Declined


@dataclass(frozen=True, kw_only=True)
class WholeRows:
    """``matmul`` with tiles along M and K, and the ``reduction`` over its output rows of ``n`` elements, padded."""

    matmul: MatmulFact
    reduction: ReductionFact
    m_block_id: int
    k_block_id: int
    n: int


def whole_rows(facts: KernelFacts) -> WholeRows | Declined:
    """Return the matmul and its reduction, or the reason why the kernel does not have these."""
    fact = facts.matmul_with_reduction_epilogue
    if fact is None:
        return Declined("not one matmul with one reduction over its output rows")
    if fact.n_block_id is not None:
        return Declined("N is tiled, so no program holds a whole output row")
    m, k = fact.m_block_id, fact.k_block_id
    if m is None or k is None:
        return Declined("M or K of the matmul is not a tile")
    return WholeRows(matmul=fact.matmul, reduction=fact.reduction, m_block_id=m, k_block_id=k, n=fact.n_extent)
