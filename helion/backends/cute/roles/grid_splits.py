"""Split K across clusters: all store their partials in a workspace, and the last CTA of a tile adds them.

Clusters may split the tiles of the last wave alone (hybrid stream-K). One cluster has all of K of each other tile, and
reads its accumulators from registers.

No CTA waits for another, so clusters need not be co-resident. Partials are added in a fixed order by any CTA, so
results are deterministic. Clusters that each add a part of the tile are up to 4 % faster (``all add partials`` in
benchmarks/results/cute/nvidia-h200-few-tiles.jsonl). They wait for all partials, so they have to be launched together.
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
"""The steps between storing and reading partials."""


def with_grid_splits(program: KernelProgram) -> KernelProgram:
    """Add split K to a program. The residual warp cannot know which CTA is last, so the others skip their residuals."""
    residual = program.plan.has_residual
    last = program.plan.whole_tiles > 0
    return edit_role(program, "store", functools.partial(_store, residual=residual, last=last))


def _store(step: Step, residual: bool, last: bool) -> tuple[Step, ...]:
    if not isinstance(step, SubtileLoop) or not contains(step, Evaluate):
        return (step,)
    gated = step.body[0] if len(step.body) == 1 and isinstance(step.body[0], Gate) else None
    steps = step.body if gated is None else gated.body
    epilogue_at = 1 + max(at for at, inner in enumerate(steps) if _reads_sums(inner))

    def loop(*body: Step) -> SubtileLoop:
        return dataclasses.replace(step, body=body if gated is None else (dataclasses.replace(gated, body=body),))

    passed_by = rewrite(steps[epilogue_at:], _only_releases)
    if last:
        ours = Gate("split_tile", (ReducePartials(),)), Gate("whole_tile", steps[:epilogue_at])
        skipped = (Gate("earlier_part", (loop(*passed_by),)),) if residual else ()
        return (
            Gate("split_tile", (loop(*steps[:epilogue_at], StorePartials()), *COUNT)),
            Gate("last_part", (loop(*ours, *steps[epilogue_at:]),)),
            Gate("split_tile", (Gate("last_part", (Gate("first_warp", (ResetTileCounter(),)),)), *skipped)),
        )
    return (
        loop(*steps[:epilogue_at], StorePartials()),
        *COUNT,
        Gate("last_part", (loop(ReducePartials(), *steps[epilogue_at:]), Gate("first_warp", (ResetTileCounter(),)))),
        *((Gate("earlier_part", (loop(*passed_by),)),) if residual else ()),
    )


def _reads_sums(step: Step) -> bool:
    """Return whether a step brings accumulators into registers, or then releases tensor memory."""
    return isinstance(step, (ReadSums, AddPartials)) or (isinstance(step, Gate) and step.who == "last_subtile")


def _only_releases(step: Step) -> tuple[Step, ...]:
    """Keep only the steps of a sub-tile that advance the residual pipeline."""
    return (step,) if isinstance(step, (Wait, Release, Advance)) and step.cursor == "residual_read" else ()
