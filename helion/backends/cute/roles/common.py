"""Parts that the programs of both matrix units share."""

from __future__ import annotations

from ..plan.records import GemmPlan
from .grammar import (
    Acquire,
    Advance,
    BarrierSync,
    Commit,
    Cursor,
    Evaluate,
    FenceShared,
    Gate,
    KLoop,
    Role,
    SetUp,
    Step,
    StoreWait,
    Tail,
    TileLoop,
    TmaLoad,
    TmaStore,
    WarpSync,
    WriteStage,
)


def load_role(plan: GemmPlan, warp: int, views: str) -> Role:
    """One warp that fills the ring of A and B: the acquire alone decides how far it runs ahead, so a K shorter than the
    ring and an odd K tail need no case of their own."""
    second = tuple(TmaLoad(operand.label, "ab_fill") for operand in plan.problem.epilogue.of_kind("product"))
    return Role(
        name="load",
        first_warp=warp,
        warps=1,
        program=(
            SetUp(views),
            Cursor("ab_fill", "ab", "producer"),
            TileLoop(
                (
                    KLoop(
                        (
                            Acquire("ab_fill"),
                            TmaLoad("a", "ab_fill"),
                            TmaLoad("b", "ab_fill"),
                            *second,
                            Commit("ab_fill"),
                            Advance("ab_fill"),
                        )
                    ),
                )
            ),
            Tail("ab_fill"),
        ),
    )


def store_subtile(plan: GemmPlan) -> tuple[Step, ...]:
    """From registers to global memory with one barrier: the first warp sees to it before the barrier that the buffers of
    the *next* sub-tile have been read, that is all stores but those of the last ``store_stages`` - 2."""
    outputs = range(len(plan.problem.outputs_of("exact")))
    if plan.warp_stores:
        return _store_rows_of_warp(plan, outputs)
    return (
        Evaluate(),
        *(WriteStage(output) for output in outputs),
        FenceShared(),
        Gate("first_warp", (StoreWait((plan.store_stages - 2) * len(outputs)),)),
        BarrierSync("epilogue"),
        Gate("first_warp", tuple(TmaStore(output) for output in outputs)),
    )


def _store_rows_of_warp(plan: GemmPlan, outputs: range) -> tuple[Step, ...]:
    """By each warp for itself: the lane that stores has seen its buffers read before the others write to them, and stores what
    all have written."""
    return (
        Evaluate(),
        StoreWait((plan.store_stages - 1) * len(outputs)),
        WarpSync(),
        *(WriteStage(output) for output in outputs),
        FenceShared(),
        WarpSync(),
        *(TmaStore(output) for output in outputs),
    )


def last_stores(plan: GemmPlan) -> tuple[Step, ...]:
    """Until shared memory may go away."""
    return (StoreWait(0),) if plan.warp_stores else (Gate("first_warp", (StoreWait(0),)),)
