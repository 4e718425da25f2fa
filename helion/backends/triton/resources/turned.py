"""Facts of a kernel whose products are turned around (``lower/turn.py``), as its resources depend on them."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from ...._compiler.facts.records import KernelFacts, MatmulFact, StagedOperand
from .predict import Same


def turned(facts: KernelFacts) -> KernelFacts:
    """With rows and columns of products exchanged, and with the left operand computed, which is the right one of the kernel.

    Asked again for the same, it answers the same object.
    """
    return _turned(Same(facts))


@functools.lru_cache(maxsize=64)
def _turned(same: Same) -> KernelFacts:
    facts = same.facts
    numbers = {fact.number for fact in facts.matmuls if _is_turnable(fact)}
    matmuls = (_product(fact) if fact.number in numbers else fact for fact in facts.matmuls)
    staged = (_operand(each) if each.dot in numbers else each for each in facts.staged)
    return replace(facts, matmuls=tuple(matmuls), staged=tuple(staged))


def _is_turnable(fact: MatmulFact) -> bool:
    tf32 = fact.precision == "tf32" and fact.lhs_dtype == fact.rhs_dtype == torch.float32
    layouts = (fact.lhs_layout, fact.rhs_layout) == ("k_major", "mn_major")
    return tf32 and layouts and (fact.lhs_rank, fact.rhs_rank) == (2, 2)


def _product(fact: MatmulFact) -> MatmulFact:
    return replace(
        fact,
        m_block_id=fact.n_block_id,
        n_block_id=fact.m_block_id,
        m_axis=fact.n_axis,
        n_axis=fact.m_axis,
        static_m=fact.static_n,
        static_n=fact.static_m,
        lhs_slot=fact.rhs_slot,
        rhs_slot=fact.lhs_slot,
        rhs_layout="k_major",
        lhs_layout="k_major",
        lhs_prologue=True,
        turned=True,
    )


def _operand(each: StagedOperand) -> StagedOperand:
    return replace(each, role="rhs") if each.role == "lhs" else replace(each, role="lhs", direct=False)
