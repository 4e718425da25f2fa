"""Parts that the programs of both matrix units share."""

from __future__ import annotations

from collections.abc import Sequence

from ..plan.records import GemmPlan
from ..plan.shared import staged
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
    OfTerm,
    Role,
    SetUp,
    Step,
    StoreStrided,
    StoreWait,
    Tail,
    TileLoop,
    TmaLoad,
    TmaStore,
    WarpSync,
    WriteStage,
)


def load_role(plan: GemmPlan, warp: int, views: str) -> Role:
    """Build the load warp, which fills the pipeline of A and B. Only the acquire limits its prefetch distance.

    A K shorter than the pipeline and an odd K tail need no special case.
    """
    operands = plan.problem.multiplicands
    loads = [
        tuple(TmaLoad(each.label, "ab_fill") for each in operands if each.term == term)
        for term in range(1 + len(plan.problem.terms))
    ]
    steps = loads[0] if len(loads) == 1 else tuple(OfTerm(term, each) for term, each in enumerate(loads))
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
                            *steps,
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
    """Return the steps from registers to global memory with one barrier.

    Before the barrier, the first warp waits until the buffers of the *next* sub-tile have been read. These are all
    stores but those of the last ``store_stages`` - 2. Without stores by TMA, the barrier separates the reads of row
    operands from the writes of those of the next tile. A fence separates reads of residuals from the next loads.
    """
    exact = plan.problem.outputs_of("exact")
    outputs, written = range(len(exact)), [exact.index(output) for output in staged(plan.problem)]
    evaluated = (Evaluate(), *(StoreStrided(at) for at in range(len(plan.problem.outputs_of("strided")))))
    if not outputs and plan.problem.strided:
        return (*evaluated, *([FenceShared()] if plan.has_residual else []), BarrierSync("epilogue"))
    if plan.warp_stores:
        return _store_rows_of_warp(plan, outputs, written, evaluated)
    return (
        *evaluated,
        *(WriteStage(output) for output in written),
        FenceShared(),
        Gate("first_warp", (StoreWait((plan.store_stages - 2) * len(outputs)),)),
        BarrierSync("epilogue"),
        Gate("first_warp", tuple(TmaStore(output) for output in outputs)),
    )


def first_buffers(plan: GemmPlan) -> tuple[Step, ...]:
    """Return the steps before the sub-tiles of a tile: where buffers do not divide them, the first one may have the buffer of
    the last one of the tile before.
    """
    exact = plan.problem.outputs_of("exact")
    if plan.splits > 1 or plan.subtiles % plan.store_stages == 0 or not exact:
        return ()
    if plan.warp_stores:
        return StoreWait(0), WarpSync()
    return Gate("first_warp", (StoreWait(0),)), BarrierSync("epilogue")


def _store_rows_of_warp(
    plan: GemmPlan, outputs: range, written: Sequence[int], evaluated: tuple[Step, ...]
) -> tuple[Step, ...]:
    """Return the steps of a store by each warp separately.

    The storing lane waits until its buffers have been read before the others write them, and stores after all have
    written.
    """
    return (
        *evaluated,
        StoreWait((plan.store_stages - 1) * len(outputs)),
        WarpSync(),
        *(WriteStage(output) for output in written),
        FenceShared(),
        WarpSync(),
        *(TmaStore(output) for output in outputs),
    )


def last_stores(plan: GemmPlan) -> tuple[Step, ...]:
    """Return the steps that wait until no store reads shared memory any more."""
    return (StoreWait(0),) if plan.warp_stores else (Gate("first_warp", (StoreWait(0),)),)
