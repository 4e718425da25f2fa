"""Alignment of dimensions of device values: equal dimensions, dimensions of one constant size, and tiles that determine
their position in a larger value.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...._shapes import ONE, Dim, Dims
from .blocks import Blocks


def same_size(blocks: Blocks, one: Dim, other: Dim) -> bool:
    """Return whether two dimensions have the same number of elements for every config; a tile of constant size has that
    many.
    """
    if one == other:
        return True
    first, second = blocks.size_of(one), blocks.size_of(other)
    return isinstance(first, int) and isinstance(second, int) and first == second


def is_single(blocks: Blocks, dim: Dim) -> bool:
    """Return whether a dimension has one element, as tiles of a constant size of 1 have."""
    size = blocks.size_of(dim)
    return isinstance(size, int) and size == 1


def joint(blocks: Blocks, shapes: Sequence[Dims]) -> Dims | None:
    """Return the broadcast of shapes that the plain rules refuse: aligned at the right, or else the smaller ones within
    the largest by ``placed``. None if there is none.
    """
    found = _aligned(blocks, shapes)
    if found is not None:
        return found
    rank = max(map(len, shapes))
    target = _aligned(blocks, [shape for shape in shapes if len(shape) == rank])
    if target is None or any(placed(blocks, shape, target) is None for shape in shapes):
        return None
    return target


def placed(blocks: Blocks, dims: Dims, target: Dims) -> Dims | None:
    """Return ``dims`` as dimensions of ``target`` and 1, so that they broadcast to it.

    They are aligned at the right, or else by tiles, with 1 in the other positions. None if neither fits.

    Tiles align ``dims`` if each dimension occurs once in ``target``, in this order, and one of them is a tile. ``[i,
    16]`` is ``[i, 1, 16]`` in ``[i, j, 16]``, and has no alignment in ``[i, 16, 16]``.
    """
    if len(dims) > len(target):
        return None
    found: list[Dim] = []
    for have, want in zip(dims, target[len(target) - len(dims) :], strict=True):
        if same_size(blocks, have, want):
            found.append(want)
        elif is_single(blocks, have):
            found.append(ONE)
        else:
            return _by_tile(blocks, dims, target)
    return tuple(found)


def _by_tile(blocks: Blocks, dims: Dims, target: Dims) -> Dims | None:
    own = [dim for dim in dims if not dim.is_one]
    tiles = any(dim.block is not None and blocks[dim.block].kind == "tile" for dim in own)
    if not tiles or any(target.count(dim) != 1 for dim in own) or [dim for dim in target if dim in own] != own:
        return None
    return tuple(dim if dim in own else ONE for dim in target)


def _aligned(blocks: Blocks, shapes: Sequence[Dims]) -> Dims | None:
    rank = max(map(len, shapes))
    columns = ([shape[at - rank] for shape in shapes if at - rank >= -len(shape)] for at in range(rank))
    dims = [_one_of(blocks, column) for column in columns]
    return None if any(dim is None for dim in dims) else tuple(dim for dim in dims if dim is not None)


def _one_of(blocks: Blocks, dims: Sequence[Dim]) -> Dim | None:
    """Return the dimension that all dimensions of one position broadcast to. A tile is preferred, because it has a
    mask.
    """
    several = [dim for dim in dims if not is_single(blocks, dim)] or [dim for dim in dims if not dim.is_one]
    if not several:
        return ONE
    if not all(same_size(blocks, several[0], dim) for dim in several):
        return None
    return next((dim for dim in several if dim.block in blocks.active), several[0])
