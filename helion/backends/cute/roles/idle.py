"""Warpgroups without rows in the last tile of a group pass its K tiles on, and leave the matrix unit to the others.

The accumulator of such a warpgroup holds anything: none of its rows is stored.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ..plan.records import GemmPlan
from .edits import edit_role
from .grammar import Advance, Gate, KernelProgram, KLoop, Release, Step, TileLoop, Wait
from .hopper import MAINLOOP

SKIPS = False
"""True to leave out rows: it has not run on a GPU."""


@dataclass(frozen=True)
class LeaveSums(Step):
    """Leave the accumulator of a tile as it is, without rows to store."""


PASSING: tuple[Step, ...] = (
    KLoop((Wait("ab_read"), Release("ab_free"), Advance("ab_free"), Advance("ab_read"))),
    LeaveSums(),
)


def has_idle_rows(plan: GemmPlan) -> bool:
    """Return whether one of two warpgroups may have no row of a tile."""
    return plan.problem.groups is not None and plan.unit == "wgmma" and plan.warpgroups > 1 and not plan.promote


def with_idle_rows(program: KernelProgram) -> KernelProgram:
    """Run the mainloop of a tile only in the warpgroups that have rows of it."""
    return edit_role(program, "store", _skip) if SKIPS and has_idle_rows(program.plan) else program


def _skip(step: Step) -> tuple[Step, ...]:
    length = len(MAINLOOP)
    starts = range(len(step.body) - length) if isinstance(step, TileLoop) else ()
    at = next((at for at in starts if step.body[at : at + length] == MAINLOOP), None)  # type: ignore[attr-defined]
    if at is None:
        return (step,)
    assert isinstance(step, TileLoop)
    gated = Gate("some", MAINLOOP), Gate("none", PASSING)
    return (dataclasses.replace(step, body=(*step.body[:at], *gated, *step.body[at + length :])),)
