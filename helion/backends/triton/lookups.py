"""Lookups in small tables in loops that multiply, which ``lower.accesses.tables`` takes from registers."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping

from ..._compiler.facts.records import KernelFacts
from ..._shapes import is_power_of_2

#: Most elements of a table, which each lookup passes to other threads.
MOST_LOOKED_UP = 256
#: Bytes of an element that Triton copies to shared memory ahead; it loads shorter ones when they are needed.
COPIED_BYTES = 4


@functools.lru_cache(maxsize=64)
def tables(facts: KernelFacts) -> frozenset[int]:
    """Return the slots of loads of small tables in loops that multiply, where these copy operands ahead."""
    loops = {fact.region for fact in facts.matmuls if facts.regions[fact.region].kind == "loop"}
    return frozenset(
        op.slot
        for op in facts.memory_ops
        if op.region in loops and op.kind == "load" and op.gathered and op.static and not op.steps
        if op.strides == (1,) and op.itemsize >= COPIED_BYTES
        if op.extents[0] <= MOST_LOOKED_UP and is_power_of_2(op.extents[0])
    )


def looks_up_tables_alone(facts: KernelFacts, region: int) -> bool:
    """Return whether no load of a loop but those of tables has an index that another load gives."""
    known = tables(facts)
    return all(op.slot in known for op in facts.memory_ops if op.region == region and op.gathered and not op.steps)


def passed_bytes(facts: KernelFacts, sizes: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the region of each lookup in a table, and the bytes of its places or results, which change layout."""
    known = tables(facts)
    for op in facts.memory_ops if known else ():
        if op.slot in known:
            yield op.region, op.itemsize * math.prod(sizes[axis] for axis in op.tile_axes)
