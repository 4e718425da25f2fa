"""Axes: one fact per block of the program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..._shapes import Expr, Number, cdiv, hint_of, next_power_of_2
from ...fields import Fragment, values_of
from .lookups import Lookups, lookups
from .records import AxisFact, AxisKind, MemoryOpFact, RegionFact
from .walk import LoopBound, TileBound, Walk

#: Places of a tile that the mean length of a loop is taken over.
_PLACES = 16

_KINDS: dict[str, AxisKind] = {"grid": "scalar", "full": "full"}


def axis_facts(walk: Walk, rollable: tuple[int, ...]) -> tuple[AxisFact, ...]:
    """Return one fact per block; ``rollable`` are the whole dimensions that can be rolled into chunks."""
    roots: dict[int, list[int]] = {}
    for region in walk.regions:
        for axis in region.axes if region.kind == "root" else ():
            roots.setdefault(axis, []).append(region.root)
    fragments = dict(walk.program.tunables)
    facts = []
    for block in walk.program.blocks:
        chosen_by, choices = _choices(block.size, fragments)
        extent = None if block.extent is None else max(1, int(hint_of(block.extent)))
        facts.append(
            AxisFact(
                block_id=block.id,
                name=block.name,
                kind=_KINDS.get(block.kind, "tile" if block.size is None else "fixed"),
                extent=extent,
                padded=0 if extent is None else max(next_power_of_2(extent), block.min_size),
                static=block.extent is not None and not isinstance(block.extent, Expr),
                size=None if block.size is None else int(hint_of(block.size)),
                rollable=block.id in rollable,
                on_grid=block.id in roots,
                roots=tuple(roots.get(block.id, ())),
                outer=walk.outer.get(block.id),
                min_size=block.min_size,
                max_size=block.max_size,
                chosen_by=chosen_by,
                choices=choices,
            )
        )
    return tuple(facts)


def _choices(size: Number | None, fragments: Mapping[str, Fragment]) -> tuple[str, tuple[tuple[object, int], ...]]:
    """Return the only tunable that a size depends on, and its values with the resulting sizes; empty if there is
    none."""
    if not isinstance(size, Expr) or not size.leaves_are("tunable", "host"):
        return "", ()
    names = {leaf.args[0] for leaf in size.leaves() if leaf.op == "tunable"}
    if len(names) != 1:
        return "", ()
    (name,) = names

    def sized(value: object) -> int:
        return int(size.evaluate(lambda leaf: value if leaf.op == "tunable" else leaf.hint))

    return name, tuple((value, sized(value)) for value in values_of(fragments[name]))


def with_means(axes: tuple[AxisFact, ...], walk: Walk, memory_ops: Sequence[MemoryOpFact]) -> tuple[AxisFact, ...]:
    """Return ``axes`` with estimates of extents that depend on data, and mean ones of those that end or begin at a tile."""
    unknown = [axis for axis in axes if axis.extent is None and axis.outer is None]
    if not unknown:
        return axes
    looked_up = lookups(walk)
    lengths = {
        axis.block_id: _lengths_between(*walk.diagonal[axis.block_id], axes)
        if axis.block_id in walk.diagonal
        else (_mean(axis.block_id, axes, walk.regions, memory_ops, looked_up), None)
        for axis in unknown
    }
    known = ((axis, *lengths.get(axis.block_id, (None, None))) for axis in axes)
    return tuple(replace(axis, mean=mean, longest=longest) for axis, mean, longest in known)


def _lengths_between(
    begin: LoopBound, end: LoopBound, axes: tuple[AxisFact, ...]
) -> tuple[int, int] | tuple[None, None]:
    """Return the mean and the longest length of a loop whose bounds follow a tile, over the places of the tile.

    Loops begin at zero or later, as with ``max(tile.begin - window, 0)``.
    """
    followed = {axes[bound.block].extent for bound in (begin, end) if isinstance(bound, TileBound)}
    (extent,) = followed if len(followed) == 1 else (None,)
    if extent is None:
        return None, None

    def at(bound: LoopBound, place: float) -> float:
        if not isinstance(bound, TileBound):
            return bound
        return max(0.0, place - place % bound.multiple + bound.shift if bound.multiple > 1 else place + bound.shift)

    places = [extent * (each + 0.5) / _PLACES for each in range(_PLACES)]
    found = [max(0.0, at(end, place) - at(begin, place)) for place in places]
    return max(1, math.ceil(sum(found) / _PLACES)), max(1, math.ceil(max(found)))


def _mean(
    axis: int,
    axes: tuple[AxisFact, ...],
    regions: Sequence[RegionFact],
    memory_ops: Sequence[MemoryOpFact],
    looked_up: Lookups,
) -> int | None:
    """Return the estimated extent of an axis: that of an access, divided by the grid axes that it does not index.

    Of all accesses, use the one that indexes the most grid axes, and a direct access before a gather. Divide only by
    axes with a fixed tile if there are any: a bound is one number, looked up by such an axis. If all of them index the
    access, rows along other axes share its extent. An access by all axes that look up the bound has rows of its own.
    Tile numbers index an access too.
    """
    bound = looked_up.bounds.get(axis, frozenset())
    found: list[tuple[bool, int, int]] = []
    for op in memory_ops:
        paged = looked_up.reaches.get((op.slot, axis)) if op.kind == "load" else None
        if axis not in (*op.tile_axes, *op.subscript_axes) and paged is None:
            continue
        direct = axis in op.subscript_axes
        gathered = [extent for a, extent in zip(op.subscript_axes, op.extents, strict=True) if a is None]
        reach = op.extents[op.subscript_axes.index(axis)] if direct else max(gathered, default=1)
        root = regions[op.region].root
        around = {a.block_id for a in axes if a.on_grid and root in a.roots} | set(op.tile_axes)
        indexed = {*op.subscript_axes, *(looked_up.numbers.get(op.slot, ()) if op.kind == "load" else ())}
        sharing = around - indexed - {axis}
        fixed = {a for a in around - {axis} if not axes[a].tunable}
        sharing = sharing & fixed or (set() if fixed else sharing)
        if bound and bound <= indexed:
            sharing = set()
        parts = math.prod(max(1, axes[a].extent or axes[a].size or 1) for a in sharing)
        found.append((not direct and paged is None, parts, max(1, cdiv(paged or reach, parts))))
    return min(found)[-1] if found else None


def count(number: Number) -> int:
    """Return a size or stride in elements: the constant, or the value seen when binding."""
    return int(hint_of(number))
