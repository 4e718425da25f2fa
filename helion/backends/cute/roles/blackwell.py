"""tcgen05: one warp loads, one issues matrix instructions for its CTA or for a pair, four read tensor memory and store."""

from __future__ import annotations

import dataclasses

from ..plan.counts import counts
from ..plan.records import GemmPlan
from .common import load_role, store_subtile
from .edits import edit_role
from .grammar import (
    Acquire,
    Advance,
    AllocateSums,
    Commit,
    Cursor,
    FindSums,
    FreeSums,
    Gate,
    KernelProgram,
    KLoop,
    Meet,
    Mma,
    NamedBarrier,
    Pipeline,
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

STORING_WARPS = 4
ISSUING_WARP = 4
LOADING_WARP = 5

ISSUE: tuple[Step, ...] = (
    Acquire("sums_fill"),
    SelectSums("sums_fill"),
    KLoop((Wait("ab_read"), Mma("ab_read"), Release("ab_read"), Advance("ab_read"))),
    Commit("sums_fill"),
)


def program(plan: GemmPlan) -> KernelProgram:
    """The roles for `plan`, without what its epilogue asks for."""
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
            Role(name="multiply", first_warp=ISSUING_WARP, warps=1, program=_multiply()),
            load_role(plan, LOADING_WARP, "umma_loads"),
        ),
        host=("umma", "output"),
    )
    return _only_leaders_issue(kernel) if plan.ctas_per_mma == 2 else kernel


def _multiply() -> tuple[Step, ...]:
    return (
        FindSums(),
        SetUp("umma_fragments"),
        Cursor("ab_read", "ab", "consumer"),
        Cursor("sums_fill", "accumulator", "producer"),
        TileLoop((*ISSUE, Advance("sums_fill"))),
        Tail("sums_fill"),
    )


def _store(plan: GemmPlan) -> tuple[Step, ...]:
    """A stage of sums is given back as soon as its last sub-tile is in registers. The loop stays rolled: the other warps
    work on meanwhile, and long epilogues would otherwise be compiled once per sub-tile."""
    give_back = Gate("last_subtile", (Release("sums_read"),))
    return (
        AllocateSums(),
        FindSums(),
        SetUp("umma_sums"),
        Cursor("sums_read", "accumulator", "consumer"),
        TileLoop(
            (
                Wait("sums_read"),
                SubtileLoop((ReadSums("sums_read"), give_back, *store_subtile(plan)), rolled=True),
                Advance("sums_read"),
            )
        ),
        Gate("first_warp", (StoreWait(0),)),
        Meet("epilogue"),
        FreeSums(),
    )


def _only_leaders_issue(kernel: KernelProgram) -> KernelProgram:
    """One CTA of each pair issues for both, and alone waits for operands; the other keeps its place in the stages."""

    def rule(step: Step) -> tuple[Step, ...]:
        if isinstance(step, TileLoop):
            return (
                dataclasses.replace(step, body=(Gate("leader", step.body[: len(ISSUE)]), *step.body[len(ISSUE) :])),
            )
        if isinstance(step, Tail):
            return (Gate("leader", (step,)),)
        return (step,)

    return edit_role(kernel, "multiply", rule)
