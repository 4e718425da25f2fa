"""Values that stay between reductions which depend on each other, where a row is kept whole."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from ..ir.grammar import Op, PointwiseAttrs, ReduceAttrs, Region
from .walk import Walk

EXTREMES = frozenset({"max", "amax", "min", "amin"})
NEVER = sys.maxsize
PACKED_BYTES = 2
"""Bytes of elements of which a word has two, so that extremes compare words."""


def kept_values(axis: int, body: Region, found: Sequence[tuple[Op, int]], levels: Sequence[int], walk: Walk) -> int:
    """Return how many values over ``axis`` a row has at most between two passes over it.

    There is one pass per level of the reductions ``found``, and one for stores after them. A value is computed in the first
    pass that needs it, and stays until the last pass that computes another value from it.
    """
    passes = {op.number: level for (op, _), level in zip(found, levels, strict=True)}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    starts = _starts(body, passes)
    for op in reversed(body.ops):
        needed = (
            [starts[op.number]] if op.number in starts else [first.get(value.number, NEVER) for value in op.results]
        )
        at = min(needed, default=NEVER)
        if at == NEVER or (op.number in passes and _compares_words(op, walk)):
            continue
        for value in op.values():
            if axis in walk.tile(value)[0]:
                first[value.number] = min(first.get(value.number, at), at)
                last[value.number] = max(last.get(value.number, at), at)
    counts = Counter(at for number, start in first.items() for at in range(start, last[number]))
    return max(counts.values(), default=0)


def _starts(body: Region, passes: dict[int, int]) -> dict[int, int]:
    """Return the pass of each reduction and of each store, by the number of the op."""
    level: dict[int, int] = {}
    starts = dict(passes)
    for op in body.ops:
        found = max((level.get(value.number, 0) for value in op.values()), default=0)
        found = passes[op.number] + 1 if op.number in passes else found
        level.update((value.number, found) for value in op.results)
        if op.kind in ("store", "atomic"):
            starts[op.number] = found
    return starts


def _compares_words(op: Op, walk: Walk) -> bool:
    """Return whether a reduction is an extreme of loaded elements, of which a word has two."""
    if op.attributes(ReduceAttrs).name not in EXTREMES:
        return False
    made = walk.makers.of(op.operands[0])
    while made is not None and (made.kind in ("mask", "view") or made.attrs == PointwiseAttrs("cast")):
        made = walk.makers.of(made.operands[0])
    return made is not None and made.kind == "load" and made.results[0].dtype.itemsize == PACKED_BYTES
