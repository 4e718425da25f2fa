"""The standard programs of each matrix unit, and the edits that a plan needs."""

from __future__ import annotations

import dataclasses
import functools

from ..plan.counts import counts
from ..plan.passes import passes, reads_matrices
from ..plan.records import GemmPlan
from . import blackwell, hopper
from .copied import with_copies
from .edits import add_role, before, edit_role
from .grammar import (
    VECTORS,
    Acquire,
    AddTerms,
    Advance,
    BarrierSync,
    ClusterExit,
    Commit,
    CopyTail,
    Cursor,
    Evaluate,
    FenceShared,
    GroupViews,
    KernelProgram,
    LaunchFinish,
    LoadVectors,
    Pipeline,
    ReadResiduals,
    Release,
    Role,
    SetUp,
    ShareVectors,
    Step,
    SubtileLoop,
    Tail,
    TileLoop,
    TmaLoad,
    Wait,
)
from .grid_splits import with_grid_splits
from .messages import with_messages
from .micro import with_micro_scales
from .rows import with_rows
from .splits import with_splits
from .teams import with_teams


def kernel_program(plan: GemmPlan) -> KernelProgram:
    """Build the roles, pipelines and barriers of `plan`."""
    program = hopper.program(plan) if plan.unit == "wgmma" else blackwell.program(plan)
    if plan.problem.epilogue.of_kind("row") or plan.problem.epilogue.of_kind("column"):
        program = with_vectors(program)
    if plan.by_rows:
        program = with_rows(program)
    if plan.has_residual:
        program = with_residuals(program)
    if plan.problem.epilogue.words:
        program = with_messages(program)
    if plan.problem.copied:
        program = with_copies(program)
    if plan.problem.scales is not None and plan.problem.scales.micro:
        program = with_micro_scales(program)
    if plan.problem.groups is not None:
        program = with_groups(program)
    if plan.splits > 1:
        program = with_splits(program)
    if plan.grid_splits > 1:
        program = with_grid_splits(program)
    if plan.teams > 1:
        program = with_teams(program)
    if plan.finish is not None:
        program = edit_role(program, "load", before(Tail, (LaunchFinish(),)))
        if not any(role.name == "load" for role in program.roles):
            program = edit_role(program, "copy", before(CopyTail, (LaunchFinish(),)))
    if plan.ctas > 1:
        program = dataclasses.replace(program, exit=(ClusterExit(),))
    return program


def with_vectors(program: KernelProgram) -> KernelProgram:
    """Load row and column operands before the wait for the accumulator, and share rows after it.

    Where all tiles have the same columns, rows are shared once before the tile loop. The last barrier of the epilogue
    warps separates the reads of one tile from the writes of the next.
    """
    epilogue = program.plan.problem.epilogue
    kinds = tuple(kind for kind in VECTORS if epilogue.of_kind(kind))
    once: tuple[Step, ...] = ()
    if "row" in kinds and program.plan.columns_stay:
        once, kinds = (LoadVectors(("row",), once=True), ShareVectors(), BarrierSync("epilogue")), kinds[:-1]
    elif "row" in kinds:
        program = edit_role(program, "store", before(SubtileLoop, (ShareVectors(), BarrierSync("epilogue"))))
    program = edit_role(program, "store", before(TileLoop, (SetUp("vectors"), *once)))
    if not kinds:
        return program
    return edit_role(
        program,
        "store",
        lambda step: (TileLoop((LoadVectors(kinds), *step.body)),) if isinstance(step, TileLoop) else (step,),
    )


def with_groups(program: KernelProgram) -> KernelProgram:
    """Make views of the rows of its group at the start of each tile, in the roles that move rows."""
    moving = {"load": GroupViews("loads"), "load_residual": GroupViews("residuals"), "store": GroupViews("stores")}
    for name, views in moving.items():
        program = edit_role(program, name, functools.partial(_with_views, views))
    return program


def _with_views(views: GroupViews, step: Step) -> tuple[Step, ...]:
    return (dataclasses.replace(step, body=(views, *step.body)),) if isinstance(step, TileLoop) else (step,)


def with_residuals(program: KernelProgram) -> KernelProgram:
    """Add a warp that loads residuals through TMA, ahead of the epilogue warps by its pipeline.

    It loads them once for each pass over the sub-tiles that reads them.
    """
    residual = counts(program.plan).residual
    assert residual is not None
    readers = [each for each in passes(program.plan) if reads_matrices(program.plan, each)]
    loads = tuple(TmaLoad(operand.label, "residual_fill") for operand in program.plan.problem.epilogue.of_kind("exact"))
    steps = (Acquire("residual_fill"), *loads, Commit("residual_fill"), Advance("residual_fill"))
    first = program.spare_warp
    program = add_role(
        dataclasses.replace(program, warps=max(program.warps, first + 1)),
        Role(
            name="load_residual",
            first_warp=first,
            warps=1,
            program=(
                SetUp("residual_loads"),
                Cursor("residual_fill", "residual", "producer"),
                TileLoop((SubtileLoop(steps, rolled=True),) * len(readers)),
                Tail("residual_fill"),
            ),
        ),
    )
    program = dataclasses.replace(
        program,
        pipelines=(
            *program.pipelines,
            Pipeline(name="residual", kind="tma_epilogue", counts=residual, barriers="residual_barriers"),
        ),
        host=(*program.host, "residuals"),
    )
    read = (Wait("residual_read"), ReadResiduals("residual_read"))
    give_back = (Release("residual_read"), Advance("residual_read"))
    numbers = [each.number for each in readers if not each.outputs]

    def rule(step: Step) -> tuple[Step, ...]:
        if isinstance(step, AddTerms) and step.number in numbers:
            return (*read, step, FenceShared(), *give_back)
        if isinstance(step, Evaluate) and len(readers) > len(numbers):
            return (*read, step)
        if isinstance(step, FenceShared) and len(readers) > len(numbers):
            return (step, *give_back)
        return (step,)

    program = edit_role(program, "store", rule)
    cursor = Cursor("residual_read", "residual", "consumer")
    return edit_role(program, "store", before(TileLoop, (SetUp("residual_reads"), cursor)))
