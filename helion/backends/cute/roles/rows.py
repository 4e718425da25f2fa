"""Row reductions: passes over the sub-tiles that reduce, exchanges between the CTAs of a row, and a pass that stores."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..plan.counts import counts
from ..plan.joint import meeting
from ..plan.records import GemmPlan
from ..plan.reductions import exchanges
from .common import last_stores
from .edits import contains, edit_role
from .grammar import (
    AddTerms,
    Advance,
    ArmRows,
    BarrierSync,
    ClearRows,
    Cursor,
    EvaluateRows,
    Gate,
    GatherRows,
    JoinLanes,
    KernelProgram,
    OwnRows,
    Pipeline,
    ReadSums,
    Release,
    SendRows,
    SetUp,
    Step,
    StoreRows,
    SubtileLoop,
    TileLoop,
    Wait,
)

CURSOR = "rows_place"


def with_rows(program: KernelProgram) -> KernelProgram:
    """Add the reducing passes. The storing pass is the last, or missing where no output is a matrix."""
    plan, ring = program.plan, counts(program.plan).rows

    def rule(step: Step) -> tuple[Step, ...]:
        if isinstance(step, SubtileLoop):
            return _walks(plan, step)
        if isinstance(step, TileLoop):
            cursor = (Cursor(CURSOR, "rows", "consumer"),) if ring else ()
            return (SetUp("rows"), *cursor, step)
        if (step,) == last_stores(plan) and not plan.problem.matrices:
            return ()
        return (step,)

    program = edit_role(program, "store", rule)
    if not contains(TileLoop(program.role("store").program), BarrierSync):
        program = dataclasses.replace(program, barriers=tuple(b for b in program.barriers if b.name != "epilogue"))
    if ring is None:
        return program
    pipeline = Pipeline(name="rows", kind="rows", counts=ring, barriers="rows_barriers")
    return dataclasses.replace(program, pipelines=(*program.pipelines, pipeline))


def _walks(plan: GemmPlan, loop: SubtileLoop) -> tuple[Step, ...]:
    (read, *_) = loop.body
    assert isinstance(read, ReadSums)
    steps: list[Step] = [EvaluateRows(0)]
    for number in range(len(exchanges(plan))):
        reducing = dataclasses.replace(loop, body=(read, AddTerms(number)))
        steps += [ClearRows(number), reducing, JoinLanes(number)]
        together = meeting(plan, number)
        if number != together[-1]:
            steps.append(OwnRows())
        elif counts(plan).rows:
            steps += _exchange(together)
        else:
            steps.append(EvaluateRows(number + 1))
    if plan.problem.numbers:
        steps.append(StoreRows())
    if plan.problem.matrices:
        return (*steps, loop)
    if plan.problem.epilogue.of_kind("row") and counts(plan).rows is None and not plan.columns_stay:
        # Neither an exchange nor a store separates this tile's row operands from those of the next.
        steps.append(BarrierSync("epilogue"))
    return tuple(_given_back(steps, loop))


def _exchange(together: tuple[int, ...]) -> tuple[Step, ...]:
    """Return the steps of the exchange of these passes; later passes use the result of the first."""
    last = together[-1]
    gathered = [step for number in together for step in (GatherRows(CURSOR, number), EvaluateRows(number + 1))]
    return (ArmRows(CURSOR, last), SendRows(CURSOR, last), Wait(CURSOR), *gathered, Advance(CURSOR))


def _given_back(steps: Sequence[Step], loop: SubtileLoop) -> list[Step]:
    """Release tensor memory in the last pass over it, as the storing pass would do."""
    release = [step for step in loop.body if isinstance(step, Gate) and any(isinstance(s, Release) for s in step.body)]
    last = max((i for i, step in enumerate(steps) if isinstance(step, SubtileLoop)), default=None)
    if last is None or not release:
        return list(steps)
    walk = steps[last]
    assert isinstance(walk, SubtileLoop)
    (read, *rest) = walk.body
    return [*steps[:last], dataclasses.replace(walk, body=(read, *release, *rest)), *steps[last + 1 :]]
