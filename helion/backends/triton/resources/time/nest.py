"""How often each part of a grid loop runs, and which programs run together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ....._compiler.facts.records import KernelFacts, MemoryOpFact
from ....._shapes import cdiv
from ..traffic import trips
from .launch import Launch


class Nest:
    """The loops of one root with sizes.

    ``trips`` are the tiles along each axis, ``used`` the elements of a tile that are in range on average, ``walked`` the
    whole dimensions that are taken in chunks, ``order`` the axes of the grid. ``parts`` programs share the loop over K.
    """

    def __init__(self, facts: KernelFacts, sizes: Mapping[int, int], root: int, parts: int = 1) -> None:
        self._facts, self._root = facts, root
        self.trips = {axis.block_id: trips(facts, sizes, axis.block_id) for axis in facts.axes}
        shared = {fact.k_block_id for fact in facts.matmuls} if parts > 1 else ()
        self.used: dict[int, float] = {}
        for axis in facts.axes:
            extent = axis.mean if axis.extent is None else axis.extent
            size = sizes[axis.block_id]
            self.used[axis.block_id] = size if extent is None else min(size, extent / self.trips[axis.block_id])
        self.walked = frozenset(a.block_id for a in facts.axes if a.rollable and sizes[a.block_id] < a.padded)
        self.order = next(r.axes for r in facts.regions if r.kind == "root" and r.root == root)
        self.programs = parts * math.prod([self.trips[axis] for axis in self.order])
        self.trips.update((axis, cdiv(self.trips[axis], parts)) for axis in shared if axis is not None)
        self._times: dict[int, int] = {}

    def times(self, region: int) -> int:
        """Runs of ``region`` in one program."""
        found = self._times.get(region)
        if found is None:
            fact = self._facts.regions[region]
            outside = 1 if fact.parent is None else self.times(fact.parent)
            own = math.prod([self.trips[axis] for axis in fact.axes]) if fact.kind == "loop" else 1
            found = self._times[region] = outside * own
        return found

    def chunks(self, axes: Iterable[int]) -> int:
        """Chunks that a tile over ``axes`` is taken in."""
        return math.prod([self.trips[axis] for axis in axes if axis in self.walked]) if self.walked else 1

    def repeats(self, op: MemoryOpFact) -> tuple[int, int]:
        """Passes over a row that is taken in chunks, and how often a program does the access in all."""
        passes = 1
        if self.walked and op.kind == "load":
            passes = max([1, *(count for axis, count in op.looped if axis in self.walked)])
        return passes, self.times(op.region) * self.chunks(op.tile_axes) * passes

    @property
    def iterations(self) -> int:
        """Runs of the innermost loop or chunk of a program."""
        regions = [r.region for r in self._facts.regions if r.root == self._root]
        return max(self.times(region) for region in regions) * self.chunks(self.walked)

    def ordered(self, launch: Launch) -> tuple[int, ...]:
        """The axes of the grid, the fastest first."""
        order = launch.orders.get(self._root)
        return tuple(self.order[at] for at in order) if order and len(order) == len(self.order) else self.order

    def covered(self, launch: Launch, at_once: float, shared: list[int]) -> float:
        """Of all rounds of programs that run together: different tiles along the axes that are not ``shared``."""
        order, left = list(self.ordered(launch)), min(at_once, self.programs)
        cover: dict[int, float] = {}
        grouping = 1 if self._root in launch.flattened else launch.groupings.get(self._root, 1)
        if grouping > 1 and len(order) >= 2:
            first, second, *order = order
            cover[first] = min(grouping, self.trips[first])
            left = max(1.0, left / cover[first])
            cover[second] = min(left, self.trips[second])
            left = max(1.0, left / cover[second])
            cover[first] = min(self.trips[first], cover[first] * left)
            left = 1.0
        for axis in order:
            cover[axis] = min(left, self.trips[axis])
            left = max(1.0, left / self.trips[axis])
        rounds = max(1.0, self.programs / at_once)
        return rounds * math.prod([cover[axis] for axis in cover if axis not in shared])
