"""Groups of a kernel's tiles that no size changes, found once for each kernel."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from ...._compiler.facts.records import KernelFacts, MemoryOpFact
from .tiles import VECTOR_BYTES, beyond

Axes = tuple[int, ...]
Ops = tuple[MemoryOpFact, ...]


def of_a_run(facts: KernelFacts, sizes: Mapping[int, int]) -> tuple[KernelFacts, dict[int, int]]:
    """Return facts and sizes of a flattened grid: all elements of a tile lie along its last axis, and vectors of accesses
    of one run do not end with rows.
    """
    *_, last = axes = facts.grid_axes
    return _in_a_run(facts), {
        **sizes,
        **dict.fromkeys(axes, 1),
        last: math.prod(sizes[axis] for axis in axes),
    }


@functools.lru_cache(maxsize=64)
def _in_a_run(facts: KernelFacts) -> KernelFacts:
    extents = {axis: facts.axes[axis].extent for axis in facts.grid_axes}
    # lanes of a run are no neighbours along one axis that share an element
    runs = ((op, op.has_run_of_vectors(extents, VECTOR_BYTES)) for op in facts.memory_ops)
    ops = (replace(op, run=run, quotients=()) for op, run in runs)
    return replace(facts, memory_ops=tuple(ops))


class Narrow(NamedTuple):
    """Accesses of a tile that spans some axes of larger ones.

    ``wider`` are the accesses of those whose last axis is the same, ``rows`` the axes that the tile lacks of each.
    """

    axes: Axes
    ops: Ops
    wider: Ops
    rows: tuple[Axes, ...]
    across: bool
    """Set where some larger tiles have another last axis."""


class Alike(NamedTuple):
    """Accesses of tiles over the same axes, in any order.

    ``turned``: their contiguous axes differ. ``in_rows``: all have one order of axes and are contiguous along the last.
    ``repeats``: several dimensions are one axis. ``summary``: a stored tile that is not loaded, is reduced itself, and
    shares axes with another reduced tile. ``shared``: another tile has some of the axes. ``stored``: one is a store.
    ``paired``: one access takes two neighbours that the kernel takes one by one (``lower/accesses/pairs.py``). ``halves``: a
    computed tile of pairs has the axes, and its elements are separated or joined. ``quotients``: lanes share elements of one.
    """

    axes: Axes
    ops: Ops
    turned: bool
    in_rows: bool
    repeats: bool
    summary: bool
    shared: bool
    stored: bool
    paired: bool
    halves: bool
    quotients: bool


class Expanded(NamedTuple):
    """A tile over more axes than any access has, and the loads of parts of it."""

    axes: Axes
    loads: Ops


class Again(NamedTuple):
    """A load that another loop of the grid loop repeats. ``once`` are the tiles of both loops whose axes differ: Triton
    merges the loads where each covers its dimension.
    """

    op: MemoryOpFact
    once: Axes


def is_of_rows_alike(facts: KernelFacts, axis: int) -> bool:
    """Return whether every loop over ``axis`` has rows at the same places and of the same width, and numbers none of their
    elements.
    """
    rows = {(op.subscript_axes, op.strides, op.scales, op.itemsize) for op in facts.memory_ops if axis in op.tile_axes}
    return len(rows) == 1 and axis not in facts.numbered_axes


def repeats(axes: Axes) -> bool:
    """Return whether several dimensions of a tile are one axis, as those of one constant length are."""
    return len(set(axes)) < len(axes)


@functools.lru_cache(maxsize=64)
def narrow(facts: KernelFacts) -> tuple[Narrow, ...]:
    """Return the accesses of tiles that are parts of larger ones."""
    tiles: dict[Axes, list[MemoryOpFact]] = {}
    for op in facts.memory_ops:
        tiles.setdefault(op.tile_axes, []).append(op)
    found = []
    for own, parts in tiles.items():
        larger = [op for axes, ops in tiles.items() if own and beyond(axes, own) for op in ops]
        if larger:
            wider = tuple(op for op in larger if op.tile_axes[-1] == own[-1])
            rows = tuple(beyond(axes, own) for axes in dict.fromkeys(op.tile_axes for op in wider))
            across = len(wider) < len(larger)
            found.append(Narrow(axes=own, ops=tuple(parts), wider=wider, rows=rows, across=across))
    return tuple(found)


@functools.lru_cache(maxsize=64)
def alike(facts: KernelFacts) -> tuple[Alike, ...]:
    """Return all accesses of tiles, atomics included, by the axes of the tile."""
    groups: dict[Axes, list[MemoryOpFact]] = {}
    for op in (*facts.memory_ops, *facts.atomics):
        if op.tile_axes:
            groups.setdefault(tuple(sorted(op.tile_axes)), []).append(op)
    accessed = {axis for axes in groups for axis in axes}
    live = {axes for tiles in facts.live_tiles for axes, _ in tiles if axes and axes[-1] not in accessed}
    pairs = {(*axes[:-1], facts.axes[axes[-1]].padded) for axes in live}
    found = []
    for axes, ops in groups.items():
        rows = ops[0].tile_axes
        found.append(
            Alike(
                axes=axes,
                ops=tuple(ops),
                turned=len({op.inner_axis for op in ops} - {None}) > 1,
                in_rows=all(op.tile_axes == rows and op.inner_axis in (rows[-1], None) for op in ops),
                repeats=repeats(axes),
                summary=all(op.kind == "store" for op in ops) and _is_reduced_twice(axes, facts),
                shared=any(not set(axes).isdisjoint(other) for other in groups if other != axes),
                stored=any(op.kind == "store" for op in ops),
                paired=_are_paired(ops),
                halves=(*rows, 2) in pairs,
                quotients=any(op.quotients for op in ops),
            )
        )
    return tuple(found)


def _are_paired(ops: list[MemoryOpFact]) -> bool:
    """Return whether accesses of one tile take both elements of a pair along the contiguous dimension."""
    known: set[tuple[object, ...]] = set()
    for op in ops:
        dim = next((dim for dim in reversed(range(op.rank)) if op.strides[dim] == 1), None)
        if dim is not None and op.subscript_axes[dim] is None and not op.gathered:
            others, last = (*op.scales[:dim], *op.scales[dim + 1 :]), op.scales[dim]
            place = (op.kind, op.storage, op.region, op.tile_axes, op.subscript_axes, *others, last // 2)
            rows = (*op.strides[:dim], *op.strides[dim + 1 :])
            if all(stride % 2 == 0 for stride in rows) and (*place, 1 - last % 2) in known:
                return True
            known.add((*place, last % 2))
    return False


def _is_reduced_twice(axes: Axes, facts: KernelFacts) -> bool:
    """Return whether a tile is reduced, and so is another one with some of its axes."""
    own = set(axes)
    tiles = [set(fact.tile) for fact in facts.reductions]
    return own in tiles and any(tile != own and not tile.isdisjoint(own) for tile in tiles)


@functools.lru_cache(maxsize=64)
def expanded(facts: KernelFacts) -> tuple[Expanded, ...]:
    """Return the tiles that no access has, and that some load has a part of."""
    known = {tuple(sorted(op.tile_axes)) for op in facts.memory_ops}
    tiles = {fact.tile for fact in facts.reductions} | {axes for tiles in facts.live_tiles for axes, _ in tiles}
    loads = [op for op in facts.memory_ops if op.kind == "load" and op.tile_axes]
    larger = (axes for axes in tiles if tuple(sorted(axes)) not in known)
    parts = ((axes, tuple(op for op in loads if beyond(axes, op.tile_axes))) for axes in larger)
    return tuple(Expanded(axes, ops) for axes, ops in parts if ops)


@functools.lru_cache(maxsize=64)
def again(facts: KernelFacts) -> tuple[Again, ...]:
    """Return the loads that two loops over different tiles of the same dimensions have in common."""
    found = []
    roots = {region.region: region.root for region in facts.regions}
    places: dict[tuple[object, ...], list[MemoryOpFact]] = {}
    for op in facts.memory_ops:
        if op.kind != "load" or not op.tile_axes or op.gathered:
            continue
        alike = places.setdefault((op.storage, op.strides, op.scales, roots[op.region]), [])
        for other in alike:
            if op.region != other.region:
                pairs = zip(op.subscript_axes, other.subscript_axes, strict=True)
                once = [axis for pair in pairs if pair[0] != pair[1] for axis in pair]
                if once and None not in once:
                    found.append(Again(op, tuple(axis for axis in once if axis is not None)))
        alike.append(op)
    return tuple(found)
