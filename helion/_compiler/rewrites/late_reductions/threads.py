"""Threads that share a tile, and the part of it that each has."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from ...._shapes import cdiv
from ...._support.records import dataclass
from ....hardware import REGISTER_BYTES

#: Least steps of the loops: with fewer, exchanges take little of the time.
LEAST_STEPS = 4
#: Most loads of a thread for one tensor in a step.
_MOST_LOADS = 8
#: Most registers of a thread for the rest of a tile in a loop with a matmul.
_BESIDE_MATMUL = 16


@dataclass(frozen=True, kw_only=True)
class Folds:
    """Elements of a tile that one thread combines, by dimension, and the threads that share one result.

    ``loads`` are those of a thread for one of the tensors that the tile is computed from. ``across``: threads of several
    warps share a result, since neighbours in memory are different results.
    """

    folds: tuple[int, ...]
    lanes: tuple[int, ...]
    sharing: int
    loads: int = 0
    across: bool = False

    def may_run_late(self, itemsize: int, threads: int, multiplies: bool) -> bool:
        """Return whether a reduction joins threads, and its loop gains without it.

        Of many loads, the assembler then keeps few in flight (measurement ``late_columns``). In a loop that ``multiplies``,
        a reduction within a warp runs while the matrix unit multiplies, but one across warps makes all wait.
        """
        beside = self.across and self.registers(itemsize, threads) <= _BESIDE_MATMUL
        return self.sharing > 1 and self.loads <= _MOST_LOADS and (beside or not multiplies)

    def registers(self, itemsize: int, threads: int) -> int:
        """Return the registers of a thread that the rest of the tile takes."""
        rest = math.prod(lanes // fold for lanes, fold in zip(self.lanes, self.folds, strict=True))
        return max(1, rest // threads) * max(1, itemsize // REGISTER_BYTES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lanes:
    """Memory that a tile is computed from: ``first`` is the dimension along which it is contiguous, if any.

    ``vector`` are the most elements of a thread in a row. ``vectors`` are those of one load of each tensor, by the alignment
    of its rows.
    """

    first: int | None
    vector: int
    vectors: tuple[int, ...]


def folds_of(lanes: Sequence[int], reduced: Collection[int], memory: Lanes, threads: int) -> Folds:
    """Return the elements that each thread has along the ``reduced`` dimensions of a tile, beyond its vectors.

    Threads take vectors along the contiguous dimension, then single elements along the others. Their order is the
    compiler's, so each counts as the next one. Where memory is contiguous along no dimension, no elements are in one
    thread for certain.
    """
    last = len(lanes) - 1
    near = last if memory.first is None else memory.first
    each = max(1, math.prod(lanes) // threads)
    own = max(1, min(memory.vector, each, lanes[near]))
    along = min(threads, lanes[near] // own)
    left, folds = threads // along, [1] * len(lanes)
    for at in reduced if memory.first is not None else ():
        folds[at] = max(1, lanes[at] // (own * along if at == near else min(left, lanes[at])))
    sharing = along if near in reduced else 1
    for at in (at for at in range(last, -1, -1) if at != near):
        along = min(left, lanes[at])
        left //= along
        sharing *= along if at in reduced else 1
    loads = max((each // min(vector, each) for vector in memory.vectors), default=0)
    across = memory.first is not None and near not in reduced
    return Folds(folds=tuple(folds), lanes=tuple(lanes), sharing=sharing, loads=loads, across=across)


@dataclass(frozen=True, kw_only=True, slots=True)
class LateReductionFact:
    """A reduction that a loop accumulates, so that it may run after the loop.

    It is in ``region``, and runs in region ``after`` then. ``dims`` are those of the reduced tile, each the axes of a
    dimension and a constant factor; ``reduced`` are positions among them. ``walked`` are the axes of the loops that
    accumulate it, each with its elements, None if only the launch knows them. ``multiplies``: they have a matmul.
    """

    region: int
    after: int
    dims: tuple[tuple[tuple[int, ...], int], ...]
    reduced: tuple[int, ...]
    itemsize: int
    memory: Lanes
    walked: tuple[tuple[int, int | None], ...]
    multiplies: bool = False

    def may_run(self, sizes: Mapping[int, int], threads: int) -> bool:
        """Return whether the reduction runs after its loops, as far as registers allow."""
        return self.running(sizes, threads) is not None

    def running(self, sizes: Mapping[int, int], threads: int) -> Folds | None:
        """Return what each thread combines if the reduction runs after its loops, else None."""
        if not self.repeats(sizes):
            return None
        folds = self.folds(sizes, threads)
        return folds if folds.may_run_late(self.itemsize, threads, self.multiplies) else None

    def repeats(self, sizes: Mapping[int, int]) -> bool:
        """Return whether the loops run enough steps to be rewritten."""
        steps = 1
        for axis, elements in self.walked:
            if elements is None:
                return True
            steps *= cdiv(elements, sizes[axis])
        return steps >= LEAST_STEPS

    def folds(self, sizes: Mapping[int, int], threads: int) -> Folds:
        """Return the elements of the tile that each thread combines in a step."""
        lanes = [const * math.prod([sizes[axis] for axis in axes]) for axes, const in self.dims]
        return folds_of(lanes, self.reduced, self.memory, threads)


__all__ = ["LEAST_STEPS", "Folds", "Lanes", "LateReductionFact", "folds_of"]
