"""Axes: one fact per block of the program."""

from __future__ import annotations

from ..._shapes import Expr, Number, hint_of, next_power_of_2
from .records import AxisFact, AxisKind
from .walk import Walk

_KINDS: dict[str, AxisKind] = {"grid": "scalar", "full": "full"}


def axis_facts(walk: Walk, rollable: tuple[int, ...]) -> tuple[AxisFact, ...]:
    """``rollable`` are the whole dimensions that can be walked in chunks."""
    roots: dict[int, list[int]] = {}
    loops: dict[int, list[int]] = {}
    for region in walk.regions:
        for axis in region.axes:
            if region.kind == "root":
                roots.setdefault(axis, []).append(region.root)
            else:
                loops.setdefault(axis, []).append(region.region)
    facts = []
    for block in walk.program.blocks:
        extent = None if block.extent is None else int(hint_of(block.extent))
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
                loops=tuple(loops.get(block.id, ())),
                outer=walk.outer.get(block.id),
                min_size=block.min_size,
                max_size=block.max_size,
            )
        )
    return tuple(facts)


def count(number: Number) -> int:
    """A size or stride in elements: the constant, or the value seen when binding."""
    return int(hint_of(number))
