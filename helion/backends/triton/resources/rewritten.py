"""Facts of a kernel with rewritten matmuls.

A config can swap A and B (``rewrites/swap_ab.py``), pack operands or copy them K-major (``rewrites/copy_operands.py``), or precompute
them (``rewrites/precompute_operands.py``).
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Mapping, Set
from dataclasses import replace

import torch

from ...._compiler.facts.records import (
    KernelFacts,
    Layout,
    LiveTiles,
    MatmulFact,
    MemoryOpFact,
    PrecomputableFact,
    StagedOperand,
)
from ...._shapes import cdiv, next_power_of_2
from .predict import Same

#: Rows of packed operands are multiples of this many elements.
_ALIGNED = 16


def turned(facts: KernelFacts) -> KernelFacts:
    """Return the facts with A and B of matmuls swapped; the left operand, which is the kernel's right one, is computed.

    A repeated call returns the same object.
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
    """Return the facts with operand rows aligned to 16 bytes. A repeated call returns the same object."""
    return _packed(Same(facts))


@functools.lru_cache(maxsize=64)
def _packed(same: Same) -> KernelFacts:
    operands = {slot for fact in same.facts.matmuls for slot in (fact.lhs_slot, fact.rhs_slot)}
    return replace(
        same.facts,
        memory_ops=tuple(_aligned(op) if op.slot in operands else op for op in same.facts.memory_ops),
    )


def transposed(facts: KernelFacts) -> KernelFacts:
    """Return the facts with K-major operands. A repeated call returns the same object."""
    return _transposed(Same(facts))


@functools.lru_cache(maxsize=64)
def _transposed(same: Same) -> KernelFacts:
    facts = same.facts
    slots = frozenset(facts.mn_major_slots)
    return replace(
        facts,
        memory_ops=tuple(_exchanged(op) if op.slot in slots else op for op in facts.memory_ops),
        matmuls=tuple(_along_depth(fact, slots) for fact in facts.matmuls),
    ).with_rewrites(transpose_operands=(), swap_ab=False)


def hoisted(facts: KernelFacts) -> KernelFacts:
    """Return the facts with precomputed operands as loads. A repeated call returns the same object."""
    return _hoisted(Same(facts))


@functools.lru_cache(maxsize=64)
def _hoisted(same: Same) -> KernelFacts:
    facts = same.facts
    for each in facts.precomputable:
        facts = _loaded(facts, each)
    return facts.with_rewrites(precompute_operands=())


def joined(facts: KernelFacts) -> KernelFacts:
    """Return the facts with the consecutive loops fused into the first, over the elements of all. A repeated call
    returns the same object.
    """
    return _joined(Same(facts))


@functools.lru_cache(maxsize=64)
def _joined(same: Same) -> KernelFacts:
    facts, (first, *others) = same.facts, same.facts.fusible_axes
    gone = {region.region for region in facts.regions if set(region.axes) & set(others)}
    axis, count = facts.axes[first], len(facts.fusible_axes)
    extent = count * (axis.extent or 1)
    longer = replace(axis, extent=extent, padded=next_power_of_2(extent))
    matmuls = tuple(replace(f, static_k=extent) if f.k_axis == first else f for f in facts.matmuls)
    return _renumbered(
        replace(
            facts,
            axes=tuple(longer if each is axis else each for each in facts.axes),
            matmuls=tuple(fact for fact in matmuls if fact.region not in gone),
            staged=tuple(each for each in facts.staged if each.region not in gone),
            memory_ops=tuple(op for op in facts.memory_ops if op.region not in gone),
            work=tuple(each for each in facts.work if each.region not in gone),
        ).with_rewrites(fuse_loops=()),
        _standing_for(facts, gone),
    )


def _standing_for(facts: KernelFacts, gone: Set[int]) -> dict[int, int]:
    """Return, for each dot of the loops ``gone``, the corresponding dot of the fused loop, by number."""
    regions: dict[int, list[int]] = {}
    for fact in facts.matmuls:
        regions.setdefault(fact.region, []).append(fact.number)
    kept = next(region.region for region in facts.regions if facts.fusible_axes[0] in region.axes)
    pairs = [zip(regions[region], regions[kept], strict=True) for region in gone if region in regions]
    return {number: stands for pair in pairs for number, stands in pair}


def _renumbered(facts: KernelFacts, standing: Mapping[int, int]) -> KernelFacts:
    """Return the facts with the remaining dots numbered from 0. ``standing`` maps the dots that are gone to their
    replacements.
    """
    left = [fact.number for fact in facts.matmuls]
    at = {number: place for place, number in enumerate(left)}
    at.update((number, at[stands]) for number, stands in standing.items())

    def before(number: int) -> int:
        return bisect.bisect_left(left, number)

    return replace(
        facts,
        matmuls=tuple(
            replace(f, number=at[f.number], consumes=tuple(dict.fromkeys(at[n] for n in f.consumes)))
            for f in facts.matmuls
        ),
        staged=tuple(replace(each, dot=at[each.dot], after=before(each.after)) for each in facts.staged),
        memory_ops=tuple(replace(op, after=before(op.after)) for op in facts.memory_ops),
    ).with_rewrites(
        precompute_operands=tuple(replace(each, dot=at[each.dot]) for each in facts.precomputable if each.dot in left)
    )


def hoisted_bytes(facts: KernelFacts) -> int:
    """Return the bytes read and written to precompute operands, halved: a copy of that many bytes takes the
    same time.
    """
    read = {op.slot: op.accessed_numel * op.itemsize for op in facts.memory_ops}
    made = {(each.main, each.along): each for each in facts.precomputable}.values()
    return sum(sum(read[slot] for slot in each.slots) + each.numel * each.dtype.itemsize for each in made) // 2


def _loaded(facts: KernelFacts, each: PrecomputableFact) -> KernelFacts:
    """Return the facts with one operand as a load in place of its largest one."""
    fact = facts.matmuls[each.dot]
    itemsize = each.dtype.itemsize * math.prod(each.lanes)
    operand = StagedOperand(
        region=fact.region,
        dot=each.dot,
        role=each.role,
        slot=each.main,
        axes=each.axes,
        itemsize=itemsize,
        direct=True,
        after=0,
    )
    both = frozenset(each.axes)
    others = (s for s in facts.staged if (s.dot, s.role) != (each.dot, each.role))
    return replace(
        facts,
        matmuls=tuple(_multiplied(f, each) if f.number == each.dot else f for f in facts.matmuls),
        staged=(*others, operand),
        memory_ops=tuple(
            _access(op, each, fact.region) if op.slot == each.main else op
            for op in facts.memory_ops
            if op.slot not in each.slots or op.slot == each.main
        ),
        work=tuple(w for w in facts.work if w.region != fact.region or not both <= set(w.axes)),
        live_tiles=tuple(_without(tiles, both) for tiles in facts.live_tiles),
        resident_tiles=tuple(tuple(_without(tiles, both) for tiles in root) for root in facts.resident_tiles),
        held_tiles=tuple(tuple(_without(tiles, both) for tiles in root) for root in facts.held_tiles),
    )


def _multiplied(fact: MatmulFact, each: PrecomputableFact) -> MatmulFact:
    # K is the last dimension of the left operand and the first one of the right
    layout: Layout = "k_major" if (each.along == 1) == (each.role == "lhs") else "mn_major"
    if each.role == "lhs":
        return replace(fact, lhs_slot=each.main, lhs_layout=layout, lhs_prologue=False)
    return replace(fact, rhs_slot=each.main, rhs_layout=layout, rhs_prologue=False)


def _access(op: MemoryOpFact, each: PrecomputableFact, region: int) -> MemoryOpFact:
    """Return the load of an operand; lanes besides those of an axis are part of its elements."""
    return replace(
        op,
        dtype=each.dtype,
        region=region,
        tile_axes=each.axes,
        subscript_axes=each.axes,
        strides=(each.shape[1], 1) if each.along else (1, each.shape[0]),
        extents=each.shape,
        scales=(1, 1),
        gathered=False,
        accessed_numel=each.numel,
        matmul_operand=each.role,
        cast_itemsize=each.dtype.itemsize,
    )


def _without(tiles: LiveTiles, both: frozenset[int]) -> LiveTiles:
    return tuple(tile for tile in tiles if not both <= set(tile[0]))


def changed_bytes(before: KernelFacts, after: KernelFacts) -> int:
    """Return the bytes of the operands that ``packed`` or ``transposed`` changed."""
    pairs = zip(before.memory_ops, after.memory_ops, strict=True)
    return sum(old.accessed_numel * old.itemsize for old, new in pairs if old.strides != new.strides)


def _aligned(op: MemoryOpFact) -> MemoryOpFact:
    whole = (stride if stride <= 1 else cdiv(stride, _ALIGNED) * _ALIGNED for stride in op.strides)
    return replace(op, strides=tuple(whole))


def _exchanged(op: MemoryOpFact) -> MemoryOpFact:
    """Return a 2-D access that is contiguous along the other dimension, in aligned rows."""
    rows, columns = (cdiv(extent, _ALIGNED) * _ALIGNED for extent in op.extents)
    return replace(op, strides=(1, rows) if op.strides[1] == 1 else (columns, 1))


def _along_depth(fact: MatmulFact, slots: frozenset[int]) -> MatmulFact:
    if fact.lhs_slot in slots:
        fact = replace(fact, lhs_layout="k_major")
    return replace(fact, rhs_layout="k_major") if fact.rhs_slot in slots else fact


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
