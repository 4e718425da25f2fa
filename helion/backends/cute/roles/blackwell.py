"""tcgen05: one warp loads, one issues MMAs for its CTA or for a pair, four read tensor memory and store."""

from __future__ import annotations

import dataclasses

from ..plan.counts import counts
from ..plan.records import GemmPlan
from ..plan.scales import promoted
from .common import first_buffers, load_role, store_subtile
from .edits import edit_role
from .grammar import (
    Acquire,
    Advance,
    AllocateSums,
    BarrierSync,
    ClearSums,
    Commit,
    Cursor,
    FindSums,
    FreeSums,
    Gate,
    KernelProgram,
    KGroups,
    KLoop,
    LoadScales,
    Mma,
    NamedBarrier,
    Pipeline,
    Promote,
    ReadSums,
    Release,
    Role,
    SelectSums,
    SetUp,
    Step,
    StoreWait,
    SubtileLoop,
    Tail,
    TileLoop,
    Wait,
)
from .partial import PieceViews, issued_loops

STORING_WARPS = 4
ISSUING_WARP = 4
LOADING_WARP = 5

ISSUE: tuple[Step, ...] = (
    Acquire("sums_fill"),
    SelectSums("sums_fill"),
    KLoop((Wait("ab_read"), Mma("ab_read"), Release("ab_read"), Advance("ab_read"))),
    Commit("sums_fill"),
)

DRAIN: tuple[Step, ...] = (
    LoadScales(),
    Wait("sums_read"),
    Promote("sums_read"),
    Release("sums_read"),
    Advance("sums_read"),
)
"""A block of K with its own scales, which fills one accumulator stage; blocks are added up in registers."""


def program(plan: GemmPlan) -> KernelProgram:
    """Build the roles for `plan`, without the edits of its epilogue."""
    accumulator = counts(plan).accumulator
    assert accumulator is not None
    kernel = KernelProgram(
        plan=plan,
        warps=LOADING_WARP + 1,
        spare_warp=LOADING_WARP + 1,
        pipelines=(
            Pipeline(name="ab", kind="tma_umma", counts=counts(plan).ab, barriers="ab_barriers"),
            Pipeline(name="accumulator", kind="umma_epilogue", counts=accumulator, barriers="accumulator_barriers"),
        ),
        barriers=(
            NamedBarrier(name="epilogue", number=1, threads=counts(plan).consumer_threads),
            NamedBarrier(name="tensor_memory", number=2, threads=counts(plan).tensor_memory_threads),
        ),
        roles=(
            Role(name="store", first_warp=0, warps=STORING_WARPS, program=_store(plan)),
            Role(name="multiply", first_warp=ISSUING_WARP, warps=1, program=_multiply(plan)),
            load_role(plan, LOADING_WARP, "umma_loads"),
        ),
        host=("umma", "output"),
    )
    return _only_leaders_issue(kernel) if plan.ctas_per_mma == 2 else kernel


def _multiply(plan: GemmPlan) -> tuple[Step, ...]:
    acquire, select, loop, commit = ISSUE
    loops = issued_loops(plan) if plan.problem.absent else (loop,)
    issue: tuple[Step, ...] = (acquire, select, *loops, commit, Advance("sums_fill"))
    if promoted(plan.problem.scales) is not None:
        issue = (KGroups(issue, size=plan.promote_k_tiles),)
    return (
        FindSums(),
        SetUp("umma_fragments"),
        *((PieceViews(),) if plan.problem.absent else ()),
        Cursor("ab_read", "ab", "consumer"),
        Cursor("sums_fill", "accumulator", "producer"),
        TileLoop(issue),
        Tail("sums_fill"),
    )


def _store(plan: GemmPlan) -> tuple[Step, ...]:
    """Build the program of the epilogue warps, which release an accumulator stage after its last sub-tile is in
    registers.

    The loop stays rolled: the other warps keep working, and long epilogues would otherwise be compiled once per
    sub-tile.
    """
    give_back = Gate("last_subtile", (Release("sums_read"),))
    tile: tuple[Step, ...] = (
        Wait("sums_read"),
        *first_buffers(plan),
        SubtileLoop((ReadSums("sums_read"), give_back, *store_subtile(plan)), rolled=True),
        Advance("sums_read"),
    )
    if promoted(plan.problem.scales) is not None:
        drained = (ClearSums(), KGroups(DRAIN, size=plan.promote_k_tiles))
        tile = (*drained, *first_buffers(plan), SubtileLoop((ReadSums(), *store_subtile(plan))))
    return (
        AllocateSums(),
        FindSums(),
        SetUp("umma_sums"),
        *((SetUp("scales"),) if promoted(plan.problem.scales) is not None else ()),
        Cursor("sums_read", "accumulator", "consumer"),
        TileLoop(tile),
        Gate("first_warp", (StoreWait(0),)),
        BarrierSync("epilogue"),
        FreeSums(),
    )


def _only_leaders_issue(kernel: KernelProgram) -> KernelProgram:
    """Restrict issue to one CTA of each pair, which waits for operands. The other keeps its pipeline state in step."""

    def rule(step: Step) -> tuple[Step, ...]:
        if isinstance(step, (TileLoop, KGroups)) and step.body[0] == ISSUE[0]:
            return (
                dataclasses.replace(step, body=(Gate("leader", step.body[: len(ISSUE)]), *step.body[len(ISSUE) :])),
            )
        if isinstance(step, Tail):
            return (Gate("leader", (step,)),)
        return (step,)

    return edit_role(kernel, "multiply", rule)
