"""Split K within a cluster: partials go to the CTA that owns a sub-tile, which adds and stores it."""

from __future__ import annotations

import dataclasses

from ..plan.counts import counts
from .edits import edit_role
from .grammar import (
    Acquire,
    AddPartials,
    Advance,
    BarrierSync,
    Cursor,
    Gate,
    KernelProgram,
    Pipeline,
    ReadSums,
    Release,
    SendPartials,
    Step,
    StoreWait,
    SubtileLoop,
    Tail,
    TileLoop,
    Wait,
)

SEND: tuple[Step, ...] = (
    Acquire("parts_fill"),
    SubtileLoop((Gate("others", (ReadSums(), SendPartials("parts_fill"))),)),
    Advance("parts_fill"),
    Gate("first_warp", (StoreWait(0),)),
    BarrierSync("epilogue"),
    Wait("parts_read"),
)
"""All partials are sent before any are awaited, so that no two CTAs wait for each other. The barrier after lets the
first buffer be written, however many of them the last tile used."""

GIVE_BACK: tuple[Step, ...] = (Release("parts_read"), Advance("parts_read"))


def with_splits(program: KernelProgram) -> KernelProgram:
    """Add the exchange between mainloop and epilogue; the residual warp loads only the sub-tiles that its CTA owns."""
    parts = counts(program.plan).parts
    assert parts is not None
    program = edit_role(program, "store", _store)
    if program.plan.has_residual:
        program = edit_role(program, "load_residual", _only_own)
    ring = Pipeline(name="parts", kind="exchange", counts=parts, barriers="parts_barriers")
    return dataclasses.replace(program, pipelines=(*program.pipelines, ring))


def _store(step: Step) -> tuple[Step, ...]:
    if isinstance(step, SubtileLoop):
        (read, *rest) = step.body
        assert isinstance(read, ReadSums)
        own = Gate("owner", (read, AddPartials("parts_read"), *rest))
        return (*SEND, dataclasses.replace(step, body=(own,)), *GIVE_BACK)
    if isinstance(step, TileLoop):
        cursors = (Cursor("parts_fill", "parts", "producer"), Cursor("parts_read", "parts", "consumer"))
        return (*cursors, step, Tail("parts_fill"))
    return (step,)


def _only_own(step: Step) -> tuple[Step, ...]:
    if isinstance(step, SubtileLoop):
        return (dataclasses.replace(step, body=(Gate("owner", step.body),)),)
    return (step,)
