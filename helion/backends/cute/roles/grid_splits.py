"""Clusters that split the K of a tile: all put their sums into a workspace, and the CTA that comes last adds them.

Nobody waits for anybody, so it does not matter which clusters run at the same time. The sums are added in the order of K,
whoever does it, so that the result is the same in every run.
"""

from __future__ import annotations

import dataclasses
import functools

from .edits import contains, edit_role, rewrite
from .grammar import (
    AddPartials,
    Advance,
    BarrierSync,
    Evaluate,
    Gate,
    IncrementTileCounter,
    KernelProgram,
    ReadSums,
    ReducePartials,
    Release,
    ResetTileCounter,
    Step,
    StorePartials,
    SubtileLoop,
    Wait,
    WorkspaceAcquire,
    WorkspaceRelease,
)

COUNT: tuple[Step, ...] = (
    BarrierSync("epilogue"),
    Gate("first_warp", (WorkspaceRelease(), IncrementTileCounter(), WorkspaceAcquire())),
    BarrierSync("epilogue"),
)
"""Between what all warps have put into the workspace and what they take from it."""


def with_grid_splits(program: KernelProgram) -> KernelProgram:
    """Who loads residuals does not know which CTA will be the last, so the others pass theirs by."""
    residual = program.plan.has_residual
    return edit_role(program, "store", functools.partial(_store, residual=residual))


def _store(step: Step, residual: bool) -> tuple[Step, ...]:
    if not isinstance(step, SubtileLoop) or not contains(step, Evaluate):
        return (step,)
    gated = step.body[0] if len(step.body) == 1 and isinstance(step.body[0], Gate) else None
    steps = step.body if gated is None else gated.body
    behind = 1 + max(at for at, inner in enumerate(steps) if _reads_sums(inner))

    def loop(*body: Step) -> SubtileLoop:
        return dataclasses.replace(step, body=body if gated is None else (dataclasses.replace(gated, body=body),))

    passed_by = rewrite(steps[behind:], _only_releases)
    return (
        loop(*steps[:behind], StorePartials()),
        *COUNT,
        Gate("last_part", (loop(ReducePartials(), *steps[behind:]), Gate("first_warp", (ResetTileCounter(),)))),
        *((Gate("earlier_part", (loop(*passed_by),)),) if residual else ()),
    )


def _reads_sums(step: Step) -> bool:
    """The steps that bring sums into registers, and that which then gives tensor memory back."""
    return isinstance(step, (ReadSums, AddPartials)) or (isinstance(step, Gate) and step.who == "last_subtile")


def _only_releases(step: Step) -> tuple[Step, ...]:
    """Of the steps of a sub-tile, those that keep the place in the ring of residuals."""
    return (step,) if isinstance(step, (Wait, Release, Advance)) and step.cursor == "residual_read" else ()
