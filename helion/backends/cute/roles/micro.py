"""Scales that the matrix unit multiplies by.

One warp copies those of a K tile to the stage of A and B. The warp that issues MMAs moves them to tensor memory, where each
stage has a place.
"""

from __future__ import annotations

import dataclasses

from ...._support.records import dataclass
from .edits import add_role, edit_role
from .grammar import (
    Advance,
    ArriveAfterCopies,
    CopyAcquire,
    CopyTail,
    Cursor,
    KernelProgram,
    KLoop,
    Mma,
    OrderCopies,
    Role,
    SetUp,
    Step,
    TileLoop,
    Wait,
)


class MicroStep(Step):
    """A step about scales that the matrix unit takes."""


@dataclass(frozen=True)
class MicroViews(MicroStep):
    """Make views of the scales: of shared memory for the copying warp (``copies``), or for the MMAs."""

    copies: bool = False


@dataclass(frozen=True)
class StartScales(MicroStep):
    """Start cp.async copies of the scales of the current K tile to the stage of ``cursor``; lines past the end are 0."""

    cursor: str


@dataclass(frozen=True)
class MoveScales(MicroStep):
    """Move the scales of the stage of ``cursor`` from shared memory to its place in tensor memory (tcgen05.cp)."""

    cursor: str


@dataclass(frozen=True)
class MicroMma(Mma, MicroStep):
    """Issue all MMAs of the K tile in the stage of ``cursor``, with the scales in its place of tensor memory."""


def with_micro_scales(program: KernelProgram) -> KernelProgram:
    """Add the warp that copies scales, and multiply by them."""
    copies = (CopyAcquire("ab_scale"), StartScales("ab_scale"), ArriveAfterCopies("ab_scale"), Advance("ab_scale"))
    role = Role(
        name="scale",
        first_warp=program.warps,
        warps=1,
        program=(
            MicroViews(copies=True),
            Cursor("ab_scale", "ab", "producer"),
            TileLoop((KLoop(copies),)),
            CopyTail("ab_scale"),
        ),
    )
    program = edit_role(program, "multiply", _multiply)
    return add_role(dataclasses.replace(program, warps=program.warps + 1), role)


def _multiply(step: Step) -> tuple[Step, ...]:
    if step == SetUp("umma_fragments"):
        return (step, MicroViews())
    if step == Wait("ab_read"):
        return (step, OrderCopies("ab_read"), MoveScales("ab_read"))
    return (MicroMma(step.cursor, step.first),) if isinstance(step, Mma) else (step,)
