"""Results of matmuls that are stored in pairs, which ``lower.accesses.pairs`` stores at once."""

from __future__ import annotations

import functools
from collections import defaultdict

from ...._compiler.facts.records import KernelFacts, MemoryOpFact
from ...._support.records import replace

_PAIR = 2


@functools.lru_cache(maxsize=64)
def paired_stores(facts: KernelFacts) -> frozenset[int]:
    """Return the slots of two stores after the loops of a matmul that together fill a last dimension of two elements."""
    found: dict[tuple[object, ...], list[int]] = defaultdict(list)
    roots = {facts.regions[fact.region].root for fact in facts.matmuls}
    for op in facts.memory_ops if roots else ():
        region = facts.regions[op.region]
        if op.kind == "store" and region.kind == "root" and region.root in roots and _is_one_of_two(op):
            found[op.storage, op.region, op.tile_axes, op.subscript_axes, op.strides].append(op.slot)
    return frozenset(slot for slots in found.values() if len(slots) == _PAIR for slot in slots)


def _is_one_of_two(op: MemoryOpFact) -> bool:
    known = op.static and bool(op.subscript_axes) and op.subscript_axes[-1] is None and len(op.tile_axes) > 1
    if not known or (op.strides[-1], op.extents[-1]) != (1, _PAIR):
        return False
    return None not in op.subscript_axes[:-1] and all(stride % _PAIR == 0 for stride in op.strides[:-1])


def half_of_pair(op: MemoryOpFact) -> MemoryOpFact:
    """Return the store of one of two elements as half of the bytes of one store, whose lanes are adjacent."""
    return replace(
        op,
        subscript_axes=op.subscript_axes[:-1],
        strides=tuple(stride // _PAIR for stride in op.strides[:-1]),
        extents=op.extents[:-1],
        scales=op.scales[:-1],
    )
