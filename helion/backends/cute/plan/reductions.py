"""Dependences between row reductions."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Protocol

from .epilogue import REDUCTIONS, Constant, Epilogue, EpilogueOutput
from .records import GemmPlan


class Evaluated(Protocol):
    """A problem with a straight-line program, whose values it stores."""

    @property
    def epilogue(self) -> Epilogue: ...
    @property
    def outputs(self) -> Sequence[EpilogueOutput]: ...
    def __hash__(self) -> int: ...


@functools.lru_cache(maxsize=1024)
def exchanges(plan: GemmPlan) -> tuple[tuple[int, ...], ...]:
    """Return the reductions, by numbers of values, of each exchange: those of the same depth."""
    return reductions_of(plan.problem)


@functools.lru_cache(maxsize=1024)
def reductions_of(problem: Evaluated) -> tuple[tuple[int, ...], ...]:
    """Return the reductions of `problem` that its outputs need, grouped by depth."""
    epilogue = problem.epilogue
    wanted = needed(epilogue, (output.value for output in problem.outputs))
    reductions = [value for value in wanted if (made := epilogue.made(value)) and made.op in REDUCTIONS]
    last = max((epilogue.levels[value] for value in reductions), default=0)
    return tuple(
        tuple(value for value in reductions if epilogue.levels[value] == level) for level in range(1, last + 1)
    )


def needed(epilogue: Epilogue, values: Iterable[int]) -> list[int]:
    """Return `values` and all values that they depend on, in order."""
    found: set[int] = set()
    left = list(values)
    while left:
        value = left.pop()
        if value not in found:
            found.add(value)
            made = epilogue.made(value)
            left += [x for x in made.arguments if not isinstance(x, Constant)] if made else []
    return sorted(found)
