"""Repetitions of each part of a grid loop, and the programs that run together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ....._shapes import cdiv
from .launch import Launch
from .roots import Access, Root


class Nest:
    """The loops of one root with sizes.

    ``trips`` are the tiles along each axis, ``used`` the mean in-range elements of a tile, ``walked`` the chunked whole
    dimensions. ``elements`` are those of each of the root's tiles, ``useful`` those of them in range. ``parts`` is the
    split-K factor.
    """

    def __init__(self, root: Root, sizes: Mapping[int, int], parts: int = 1) -> None:
        self._root = root
        trips: dict[int, int] = {}
        used: dict[int, float] = {}
        walked: list[int] = []
        for axis, elements, outer, whole in root.extents:
            size = sizes[axis]
            if elements is not None:
                count = max(1, cdiv(elements, size))
                used[axis] = min(size, elements / count)
            else:
                count = 1 if outer is None else max(1, cdiv(sizes[outer], size))
                used[axis] = size
            trips[axis] = count
            if size < whole:
                walked.append(axis)
        self.trips, self.used, self.walked = trips, used, frozenset(walked)
        self._sizes = sizes
        parts = parts if root.split else 1
        self.programs = parts * _product(trips, root.order)
        if parts > 1:
            trips.update((axis, cdiv(trips[axis], parts)) for axis in root.divided)
        self.elements = [_product(sizes, axes) for axes in root.tiles]
        self.useful = [_product(used, axes) for axes in root.tiles]
        self.runs = [_product(trips, axes) for axes in root.loops]

    def times(self, region: int) -> int:
        """Return the runs of ``region`` in one program."""
        return self.runs[region]

    def chunks(self, axes: Iterable[int]) -> int:
        """Return the chunks that a tile over ``axes`` is processed in."""
        return _product(self.trips, [axis for axis in axes if axis in self.walked]) if self.walked else 1

    def repeats(self, access: Access) -> tuple[int, int]:
        """Return the passes over a chunked row, and the executions of the access in a program."""
        if not self.walked:
            return 1, self.runs[access.region]
        passes = max([1, *(count for axis, count in access.looped if axis in self.walked)])
        return passes, self.runs[access.region] * self.chunks(access.axes) * passes

    def walks(self, access: Access) -> int:
        """Return the number of times a program reads the same elements."""
        return _product(self.trips, access.outside)

    def run(self, access: Access) -> float:
        """Return the contiguous elements in memory of the tile of a contiguous access."""
        run = 1.0
        for axis, elements in access.nested:
            run *= self.used[axis]
            if self._sizes[axis] < elements:
                break
        return run

    def threads_of_axes(self, threads: int) -> dict[int, int]:
        """Return the threads of a program along each axis of the largest tile, from those of its loads."""
        number = max(range(len(self.elements)), key=self.elements.__getitem__)
        accesses = [access for access in self._root.accesses if access.tile == number]
        inner = [access.inner for access in accesses if access.inner is not None]
        widest = max([access.widest for access in accesses if access.kind == "load"], default=1)
        found: dict[int, int] = {}
        left = threads
        for axis in sorted(reversed(self._root.tiles[number]), key=lambda axis: axis not in inner[:1]):
            width = 1 if found else max(1, min(widest, self.elements[number] // threads))
            found[axis] = min(left, max(1, self._sizes[axis] // width))
            left //= found[axis]
        return found

    @property
    def iterations(self) -> int:
        """Runs of the innermost loop or chunk of a program."""
        return max([self.runs[region] for region in self._root.regions]) * self.chunks(self.walked)

    def ordered(self, launch: Launch) -> tuple[int, ...]:
        """Return the axes of the grid, the fastest first."""
        axes, order = self._root.order, launch.orders.get(self._root.root)
        return tuple([axes[at] for at in order]) if order and len(order) == len(axes) else axes

    def covered(self, launch: Launch, at_once: float, shared: Collection[int]) -> float:
        """Return the distinct tiles along the axes that are not ``shared``, summed over the rounds of programs that run
        together.
        """
        cover = self.together(launch, at_once)
        rounds = max(1.0, self.programs / at_once)
        return rounds * _product(cover, [axis for axis in cover if axis not in shared])

    def share(self, launch: Launch, at_once: float, axes: Iterable[int]) -> float:
        """Return the fraction of all tiles along ``axes`` that programs which run together have."""
        cover = self.together(launch, at_once)
        return _product(cover, axes) / _product(self.trips, axes)

    def together(self, launch: Launch, at_once: float) -> dict[int, float]:
        """Return the distinct tiles along each axis of the grid that ``at_once`` programs have.

        They are neighbours. Where each has a block of consecutive tiles, they are evenly spaced along the slowest axes,
        and anywhere along the others (measurement ``blocks_of_tiles``).
        """
        order, left = list(self.ordered(launch)), min(at_once, self.programs)
        cover: dict[int, float] = {}
        if launch.blocked:
            running = left
            for axis in reversed(order):
                cover[axis] = min(left if left > 1.0 else running, self.trips[axis])
                left = max(1.0, left / self.trips[axis])
            return cover
        root = self._root.root
        grouping = 1 if root in launch.flattened else launch.groupings.get(root, 1)
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
        return cover


def _product(of: Mapping[int, Any], axes: Iterable[int]) -> Any:
    # a loop takes half the time of math.prod
    product: Any = 1
    for axis in axes:
        product *= of[axis]
    return product
