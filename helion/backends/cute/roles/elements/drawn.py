"""Random numbers that comparisons alone read, drawn as bits while the matrix unit works.

A random number takes 70 instructions, each of which waits for the one before. In an epilogue they delay the next tile, as
straight-line code that is longer than the instruction cache. In the loop over K a few are drawn while MMAs are in flight.
"""

from __future__ import annotations

from ....._support.records import dataclass
from ...plan.passes import MOST_DRAWS, drawn, draws
from ...plan.records import GemmPlan
from ..grammar import KLoop, Step, WgmmaCommit
from ..partial import TermLoop

USUAL = 4
"""Random numbers of a thread in each K tile, whose chains of instructions hide each other's latency."""


@dataclass(frozen=True)
class StartDraws(Step):
    """Clear the words of bits, and draw the first ``count`` ones of the tile."""

    count: int


@dataclass(frozen=True)
class Draw(Step):
    """Draw ``count`` bits in a K tile: those of K tile 1 are numbers ``after`` and up, and so on."""

    count: int
    after: int


def with_draws(plan: GemmPlan, mainloop: tuple[Step, ...]) -> tuple[Step, ...]:
    """Draw while the MMAs of all K tiles but the first one are in flight, and what is left before them."""
    if not drawn(plan):
        return mainloop
    count, loops = draws(plan), plan.k_tiles - 1
    each = USUAL if count <= USUAL * loops else MOST_DRAWS
    drawing = min(loops, count // each)
    before = count - drawing * each
    found: list[Step] = [StartDraws(before)]
    for step in mainloop:
        if not isinstance(step, KLoop) or not drawing:
            found.append(step)
            continue
        assert step.first == 1, "the first K tile is before the loop"
        at = 1 + next(at for at, inner in enumerate(step.body) if isinstance(inner, WgmmaCommit))
        body = (*step.body[:at], Draw(each, before), *step.body[at:])
        found.append(TermLoop(body, first=1, stop=1 + drawing))
        found.append(TermLoop(step.body, first=1 + drawing))  # of no K tile, if all of them draw
    return tuple(found)
