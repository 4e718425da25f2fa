"""Bytes of tiles, and how many of their elements one access moves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from ...._compiler.facts.records import KernelFacts, LiveTile, MemoryOpFact
from ....hardware import VECTOR_BYTES


def tile_bytes(tile: LiveTile, sizes: Mapping[int, int]) -> int:
    axes, size = tile
    for axis in axes:
        size *= sizes[axis]
    return size


def vector_elements(op: MemoryOpFact, sizes: Mapping[int, int], threads: int) -> int:
    """Return the elements of one thread's access: neighbours in memory, as many as the strides keep aligned.

    It is at most the number of elements per thread.
    """
    numel = 1
    for axis in op.tile_axes:
        numel *= sizes[axis]
    return vector_of(op, numel, threads) if numel >= 2 * threads else 1


def vector_of(op: MemoryOpFact, numel: int, threads: int) -> int:
    """Return the same for a tile of ``numel`` elements, at least one for each thread."""
    width = min(VECTOR_BYTES // op.itemsize, numel // threads)
    return math.gcd(width, op.aligned) if width > 1 else 1


def is_loaded_once(op: MemoryOpFact, facts: KernelFacts, sizes: Mapping[int, int]) -> bool:
    """Return whether lanes that share an element have it from one load (``lower/accesses/repeated_loads.py``)."""
    if op.kind != "load" or not op.quotients or facts.matmuls:
        return False
    for axis, divisor in op.quotients:
        extent = facts.axes[axis].extent
        if extent is None or not facts.axes[axis].static or extent % sizes[axis] or divisor & (divisor - 1):
            return False
    return all(sizes[axis] > 1 for axis, _ in op.quotients)


def is_joined(op: MemoryOpFact, facts: KernelFacts) -> bool:
    """Return whether a store's short last dimension is one run with the one before (``lower/accesses/runs.py``)."""
    if op.kind != "store" or len(op.tile_axes) < 2 or facts.matmuls or op.subscript_axes[-2:] != op.tile_axes[-2:]:
        return False
    last, extent = facts.axes[op.tile_axes[-1]], op.extents[-1]
    whole = last.kind == "full" and last.static and last.padded == extent > 1
    return whole and op.strides[-2:] == (extent, 1) and extent * op.itemsize < VECTOR_BYTES


def widths_of(ops: Collection[MemoryOpFact], sizes: Mapping[int, int], threads: int) -> set[int]:
    """Return the elements per thread of accesses of one tile: loads take the widest of all, stores their own."""
    return shared_widths(ops, [vector_elements(op, sizes, threads) for op in ops])


def shared_widths(ops: Collection[MemoryOpFact], own: Sequence[int]) -> set[int]:
    """Return the same for accesses that alone would have their ``own`` elements per thread."""
    if not own or min(own) == (widest := max(own)):
        return set(own[:1])
    return {widest if op.kind == "load" else width for op, width in zip(ops, own, strict=True)}


def halved_widths(ops: Collection[MemoryOpFact], paired: bool, sizes: Mapping[int, int], threads: int) -> set[int]:
    """Return the neighbours of a thread where elements of pairs are separated or joined, and those of whole vectors.

    A thread has one of each pair that is ``paired`` in memory. Otherwise it has half of a vector of other elements, which
    are up to twice as wide.
    """
    each = [max(1, tile_bytes((op.tile_axes, 1), sizes) // threads) for op in ops]
    widths = {min(VECTOR_BYTES // op.itemsize, own) for op, own in zip(ops, each, strict=True)}
    return widths | ({1} if paired else {max(1, width // part) for width in widths for part in (2, 4)})


def by_nearness(op: MemoryOpFact, sizes: Mapping[int, int]) -> tuple[int, ...]:
    """Return the axes of the tile in the order in which threads are assigned.

    The contiguous axis comes first, then the others from the last to the first. Axes of one element are left out.
    """
    axes = list(op.tile_axes)
    strides = [stride for axis, stride in zip(op.subscript_axes, op.strides, strict=True) if axis in axes]
    inner = op.inner_axis
    if inner is not None:
        # an axis may occur twice
        near = [at for at, axis in enumerate(axes) if axis == inner and (len(strides) < len(axes) or strides[at] == 1)]
        if near:
            axes.append(axes.pop(near[-1]))
    return tuple(axis for axis in reversed(axes) if sizes[axis] > 1)


def beyond(axes: Iterable[int], own: Iterable[int]) -> tuple[int, ...]:
    """Return the axes of a tile that a part of it lacks; none where it is as large, or not a part of it.

    An axis that occurs twice counts twice.
    """
    left = list(axes)
    for axis in own:
        if axis not in left:
            return ()
        left.remove(axis)
    return tuple(left)


def beside_turned(store: MemoryOpFact, facts: KernelFacts) -> tuple[int, ...] | None:
    """Return the axes of a stored tile besides its contiguous axis and that of a load of the same tile, where these
    differ; None where they are one.

    Such a tile goes through shared memory, in which its rows meet in the same banks.
    """
    inner = store.inner_axis if store.kind == "store" else None
    if inner is None:
        return None
    tile = sorted(store.tile_axes)
    for op in facts.memory_ops:
        other = op.inner_axis if op.kind == "load" and op.region == store.region else None
        if other is not None and other != inner and sorted(op.tile_axes) == tile:
            return tuple((Counter(store.tile_axes) - Counter((inner, other))).elements())
    return None
