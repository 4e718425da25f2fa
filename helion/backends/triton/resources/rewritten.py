"""Facts of a kernel whose products a config rewrites: they are turned around (``lower/turn.py``), or their operands packed
(``passes/pack.py``)."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from ...._compiler.facts.records import KernelFacts, MatmulFact, MemoryOpFact, StagedOperand
from ...._shapes import cdiv
from .predict import Same

#: Elements that rows of packed operands are multiples of, at least.
_ALIGNED = 16


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


def packed(facts: KernelFacts) -> KernelFacts:
    """With operands whose rows begin at multiples of 16 bytes. Asked again for the same, it answers the same object."""
    return _packed(Same(facts))


@functools.lru_cache(maxsize=64)
def _packed(same: Same) -> KernelFacts:
    operands = {slot for fact in same.facts.matmuls for slot in (fact.lhs_slot, fact.rhs_slot)}
    return replace(
        same.facts,
        memory_ops=tuple(_aligned(op) if op.slot in operands else op for op in same.facts.memory_ops),
    )


def changed_bytes(before: KernelFacts, after: KernelFacts) -> int:
    """Of the operands that ``packed`` changed."""
    pairs = zip(before.memory_ops, after.memory_ops, strict=True)
    return sum(old.accessed_numel * old.itemsize for old, new in pairs if old.strides != new.strides)


def _aligned(op: MemoryOpFact) -> MemoryOpFact:
    whole = (stride if stride <= 1 else cdiv(stride, _ALIGNED) * _ALIGNED for stride in op.strides)
    return replace(op, strides=tuple(whole))


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
