"""Shared memory of conversions between the layouts in which threads load, compute and store tiles."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence

import torch

from ...._compiler.facts.records import KernelFacts, MemoryOpFact
from ....hardware import Target
from ..lower.align import is_long
from . import known
from .known import Alike
from .layouts import moved_at_once, rounds, rows_held
from .tiles import (
    VECTOR_BYTES,
    by_nearness,
    halved_widths,
    is_joined,
    is_loaded_once,
    shared_widths,
    tile_bytes,
    vector_elements,
    widths_of,
)

#: Bytes of an address.
_POINTER_BYTES = 8
#: Bytes of the dtype that narrower ones are widened to.
_FLOAT_BYTES = 4
#: Bytes of the elements that matrix loads and stores move.
_TURNED_BYTES = 2


def _warps_along(columns: int, itemsize: int, num_warps: int, target: Target) -> int:
    """Return the warps along the contiguous axis of a tile, when each thread has one vector of it."""
    threads = columns * itemsize // VECTOR_BYTES
    return max(1, min(num_warps, threads // target.warp_size))


def narrow_bytes(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> int:
    """Return the bytes for tiles that span some axes of a larger one (weights of a row, a mask for all heads).

    They are loaded in one layout and used in another. With the same contiguous axis they convert when warps are spread
    over several rows or access widths differ. Otherwise they convert unless each element has a thread, which then loads
    the elements it needs.
    """
    if facts.matmuls:
        return 0
    threads = num_warps * target.warp_size
    tiles = known.narrow(facts)
    most, joined = 0, {op.tile_axes[:-1] for op in facts.memory_ops if is_joined(op, facts)} if tiles else set()
    for own, parts, wider, lacking, across in tiles:
        inner = own[-1]
        rows = max([math.prod([sizes[axis] for axis in axes]) for axes in lacking], default=1)
        widest = max([op.itemsize for op in wider], default=4)
        spread = rows > 1 and _warps_along(sizes[inner], widest, num_warps, target) < num_warps
        whole = across and math.prod([sizes[axis] for axis in own]) >= threads
        widths = widths_of(wider, sizes, threads)
        once = [op for op in parts if is_loaded_once(op, facts, sizes)]
        for op in parts:
            if op in once:
                continue
            moved = wider and (spread or widths != {vector_elements(op, sizes, threads)})
            if not whole and not moved:
                continue
            # elements may be widened first, but not where others come in the layout of the result or are stored in a run
            widened = op.cast_itemsize if op.dtype == torch.bool else max(_FLOAT_BYTES, op.itemsize)
            widened = op.itemsize if once or own in joined else widened
            for itemsize in {op.itemsize, widened}:
                size = tile_bytes((op.tile_axes, itemsize), sizes)
                # no number of rounds makes a smaller tile larger
                if size > most and not whole:
                    size //= _narrow_rounds(op, wider, widths, sizes, itemsize, threads, target)
                most = max(most, size)
    return most


def _narrow_rounds(
    op: MemoryOpFact,
    wider: Sequence[MemoryOpFact],
    widths: Collection[int],
    sizes: Mapping[int, int],
    itemsize: int,
    threads: int,
    target: Target,
) -> int:
    """Return the rounds in which the load ``op`` converts to the layout of ``wider`` tiles."""
    if any(o.inner_axis not in (o.tile_axes[-1], None) or known.repeats(o.tile_axes) for o in (op, *wider)):
        return 1
    own = vector_elements(op, sizes, threads)
    held = rows_held(op.tile_axes, sizes, own, threads)
    least = []
    for axes in {other.tile_axes for other in wider}:
        for width in widths:
            moved = moved_at_once(own * itemsize, width * itemsize, target)
            least.append(rounds(held, rows_held(axes, sizes, width, threads), itemsize, moved))
    return min(least)


def expanded_bytes(facts: KernelFacts, sizes: Mapping[int, int], threads: int, target: Target) -> int:
    """Return the bytes for tiles that are loaded and broadcast over more axes than any access has, such as all pairs of
    rows.

    The combined tile has consecutive elements in neighbouring threads. Few elements are loaded in that layout at once.
    """
    if facts.matmuls:
        return 0
    most = 0
    for axes, loads in known.expanded(facts):
        spread_out = rows_held(axes, sizes, 1, threads)
        for op in loads:
            own = op.tile_axes
            if tile_bytes((own, 1), sizes) < threads:
                continue
            in_rows = op.inner_axis in (own[-1], None)
            width = vector_elements(op, sizes, threads)
            held = rows_held(own if in_rows else own[::-1], sizes, width, threads)
            # lanes along another axis first read no matrices
            ahead = in_rows and next((axis for axis in reversed(axes) if sizes[axis] > 1), own[-1]) == own[-1]
            moved = moved_at_once(width * op.itemsize, op.itemsize, target) if ahead else VECTOR_BYTES
            apart = 1 if known.repeats(axes) else rounds(held, spread_out, op.itemsize, moved)
            most = max(most, tile_bytes((own, op.itemsize), sizes) // apart)
    return most


def transposed_bytes(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> int:
    """Return the bytes for layout conversions between accesses whose contiguous axis, order of axes or width
    differs.
    """
    if facts.matmuls:
        return 0
    threads = num_warps * target.warp_size
    most = 0
    for group in known.alike(facts):
        halves = group.halves
        if group.quotients and (once := [op for op in group.ops if is_loaded_once(op, facts, sizes)]):
            # the others are converted as they are loaded
            group = group._replace(ops=tuple(op for op in group.ops if op not in once), halves=False)
        axes, ops = group.axes, group.ops
        own = [vector_elements(op, sizes, threads) for op in ops]
        # halves of a pair are separated within a thread
        pairs = any([width < 2 and sizes[op.tile_axes[-1]] == 2 for op, width in zip(ops, own, strict=True)])
        widths = shared_widths(ops, own)
        if group.stored and len(ops) > 1:
            widths |= _aligned_widths(ops, facts, sizes, threads)
        if ops and (group.paired or halves):
            widths |= halved_widths(ops, group.paired, sizes, threads)
        differ = group.turned or pairs or len(widths) > 1
        if ops and (differ or (not group.in_rows and _are_permuted(ops, sizes, max(widths), threads))):
            most = max(most, _turned_bytes(group, pairs, widths, sizes, threads, target))
        if group.summary:
            # it has the layout of the tile whose reductions it is computed from
            most = max(most, *(tile_bytes((axes, max(_FLOAT_BYTES, op.itemsize)), sizes) for op in ops), 0)
        numel = tile_bytes((axes, 1), sizes)
        if group.paired and 2 * numel == threads:
            # each thread loads half a pair; with fewer elements than threads, it loads both
            most = max(most, *(2 * numel * op.itemsize for op in ops))
        if group.shared and group.stored and numel < threads:
            # with fewer elements than threads it is computed in the layout of another tile
            most = max(most, *(numel * max(_FLOAT_BYTES, op.itemsize) for op in ops))
    return max([most, *[tile_bytes(tile, sizes) for tile in facts.transposed_squares]])


def _turned_bytes(
    group: Alike, pairs: bool, widths: set[int], sizes: Mapping[int, int], threads: int, target: Target
) -> int:
    """Return the bytes for accesses of ``group`` that have several layouts; ``pairs`` are widened before."""
    most, orders = 0, {by_nearness(op, sizes) for op in group.ops}
    for op in group.ops:
        # for a gathered atomic, the addresses are converted; Triton 3.6 needs one round for those of several rows
        scattered = op.kind == "atomic" and op.gathered and target.kind == "cuda"
        itemsize = _POINTER_BYTES if scattered else max(_FLOAT_BYTES if pairs or group.halves else 1, op.itemsize)
        size = tile_bytes((op.tile_axes, itemsize), sizes)
        in_rows = sum(sizes[axis] > 1 for axis in op.tile_axes) > 1
        if pairs or group.repeats or (scattered and in_rows):
            pass
        elif group.in_rows:
            size //= width_rounds(op, widths, itemsize, sizes, threads, target)
        elif len(orders) > 1:
            size //= _order_rounds(group.ops, orders, itemsize, sizes, threads)
        most = max(most, size)
    return most


def _aligned_widths(
    ops: Sequence[MemoryOpFact], facts: KernelFacts, sizes: Mapping[int, int], threads: int
) -> set[int]:
    """Return the elements per thread of loads of one tile in loops that ``lower/align.py`` begins at a vector.

    Those are chunks of a long row that begins anywhere. A loop that loads them again and stores may not be aligned, as
    where it numbers columns or reads weights of them. Its loads are as wide as the others, its stores are not.
    """
    found: set[int] = set()
    if not any([op.kind == "store" for op in ops]):
        return found
    for op in ops:
        if not op.looped or op.kind != "load" or not op.feeds_store:
            continue
        *others, axis = op.tile_axes
        extent = facts.axes[axis].extent if facts.axes[axis].static else None
        if dict(op.looped).get(axis, 0) <= 1 or known.is_of_rows_alike(facts, axis):
            continue
        if not op.static or op.gathered or op.inner_axis != axis or any(sizes[o] > 1 for o in others):
            continue
        width = min(VECTOR_BYTES // op.itemsize, sizes[axis] // threads)
        if extent is not None and is_long(extent, sizes[axis]) and width > vector_elements(op, sizes, threads):
            found.add(width)
    return found


def _are_permuted(ops: Sequence[MemoryOpFact], sizes: Mapping[int, int], vector: int, threads: int) -> bool:
    """Return whether accesses of one tile order its axes so that threads have different elements.

    Threads lie along the contiguous axis first and then along the others, from the last to the first.
    """
    if len(ops) == 1:
        return False
    layouts: dict[tuple[int, ...], set[tuple[object, ...]]] = {}
    for op in ops:
        inner = op.inner_axis
        axes = tuple(axis for axis in op.tile_axes if sizes[axis] > 1)
        order = axes
        if inner is not None and axes.count(inner) == 1:
            order = *(axis for axis in axes if axis != inner), inner
        layout: tuple[object, ...] = order
        if len(set(order)) == len(order):
            held = rows_held(order, sizes, vector, threads)
            layout = *sorted(held.items()), *(axis for axis in order if held[axis] != sizes[axis] - 1)
        layouts.setdefault(tuple(sorted(axes)), set()).add(layout)
    return any(len(known) > 1 for known in layouts.values())


def width_rounds(
    op: MemoryOpFact,
    widths: set[int],
    itemsize: int,
    sizes: Mapping[int, int],
    threads: int,
    target: Target | None,
) -> int:
    """Return the rounds of a conversion of ``itemsize``-byte elements between accesses of different ``widths``.

    With a target, matrix loads or stores may move elements of two bytes, in both directions.
    """
    least = []
    for one, other in itertools.combinations(sorted(widths), 2):
        held = [rows_held(op.tile_axes, sizes, width, threads) for width in (one, other)]
        ways = [(one * itemsize, other * itemsize), (other * itemsize, one * itemsize)]
        moved = (
            VECTOR_BYTES
            if target is None or itemsize != _TURNED_BYTES
            else max(moved_at_once(*way, target) for way in ways)
        )
        least.append(rounds(held[0], held[1], itemsize, moved))
    return min(least, default=1)


def _order_rounds(
    ops: Collection[MemoryOpFact],
    orders: Collection[tuple[int, ...]],
    itemsize: int,
    sizes: Mapping[int, int],
    threads: int,
) -> int:
    """Return the rounds of a conversion of ``itemsize``-byte elements between accesses with different ``orders`` of
    axes.
    """
    if len({order[:1] for order in orders}) > 1:
        return 1
    held = [
        rows_held(order[::-1], sizes, width, threads) for order in orders for width in widths_of(ops, sizes, threads)
    ]
    return min((rounds(one, other, itemsize) for one, other in itertools.combinations(held, 2)), default=1)


__all__ = ["expanded_bytes", "narrow_bytes", "transposed_bytes", "width_rounds"]
