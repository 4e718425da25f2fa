"""Warpgroups without rows in the last tile of a group pass its K tiles on, and leave the matrix unit to the others.

The accumulator of such a warpgroup holds anything: none of its rows is stored.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ..plan.counts import has_idle_rows
from .edits import edit_role
from .grammar import Advance, Gate, KernelProgram, KLoop, Release, Step, TileLoop, Wait
from .hopper import MAINLOOP


@dataclass(frozen=True)
class LeaveSums(Step):
    """Leave the accumulator of a tile as it is, without rows to store."""


PASSING: tuple[Step, ...] = (
    KLoop((Wait("ab_read"), Release("ab_free"), Advance("ab_free"), Advance("ab_read"))),
    LeaveSums(),
)


def with_idle_rows(program: KernelProgram) -> KernelProgram:
    """Run the mainloop of a tile only in the warpgroups that have rows of it."""
    return edit_role(program, "store", _skip) if has_idle_rows(program.plan) else program


def _skip(step: Step) -> tuple[Step, ...]:
    length = len(MAINLOOP)
    starts = range(len(step.body) - length) if isinstance(step, TileLoop) else ()
    at = next((at for at in starts if step.body[at : at + length] == MAINLOOP), None)  # type: ignore[attr-defined]
    if at is None:
        return (step,)
    assert isinstance(step, TileLoop)
    gated = Gate("some", MAINLOOP), Gate("none", PASSING)
    return (dataclasses.replace(step, body=(*step.body[:at], *gated, *step.body[at + length :])),)
