"""wgmma: one warp loads, one or two warpgroups multiply and store their rows of the tile."""

from __future__ import annotations

import dataclasses

from ..plan.counts import counts, in_fragments
from ..plan.records import LOADING_WARPS, GemmPlan
from .common import first_buffers, last_stores, load_role, store_subtile
from .edits import contains, rewrite
from .elements.drawn import with_draws
from .grammar import (
    Advance,
    ClearSums,
    Cursor,
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
    SetUp,
    Step,
    SubtileLoop,
    TileLoop,
    Wait,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
)
from .halves import converting_mainloop, promoting_mainloop, turning_mainloop
from .overlapped import overlapped_mainloop
from .partial import PieceViews, wgmma_mainloop
from .registers import register_limit
from .sliced import sliced_mainloop

LOADING_REGISTERS = 40
STORING_REGISTERS = 232
"""128 x 40 + 256 x 232 registers are 64512 of 65536."""

MAINLOOP: tuple[Step, ...] = (
    Wait("ab_read"),
    WgmmaFence(),
    Mma("ab_read", first=True),
    WgmmaCommit(),
    Advance("ab_read"),
    KLoop(
        (
            Wait("ab_read"),
            WgmmaFence(),
            Mma("ab_read"),
            WgmmaCommit(),
            WgmmaWait(1),
            Release("ab_free"),
            Advance("ab_free"),
            Advance("ab_read"),
        ),
        first=1,
    ),
    WgmmaWait(0),
    Release("ab_free"),
    Advance("ab_free"),
)
"""One K tile is in flight during the wait for the next; its stage is released after the next MMAs are issued."""

PROMOTED_MAINLOOP: tuple[Step, ...] = (
    ClearSums(),
    KLoop(
        (
            Wait("ab_read"),
            WgmmaFence(),
            Mma("ab_read", first=True),
            WgmmaCommit(),
            WgmmaWait(0),
            Release("ab_read"),
            Advance("ab_read"),
            Promote(),
        )
    ),
)
"""The accumulator of each K tile is added outside of the matrix unit, while the other warpgroup uses the unit."""


def _mainloop(plan: GemmPlan) -> tuple[Step, ...]:
    if plan.sliced:
        return sliced_mainloop(plan.promote)
    if plan.converts:
        return promoting_mainloop(plan.problem.scales is not None) if plan.promote else converting_mainloop()
    if in_fragments(plan):
        return turning_mainloop()
    if plan.problem.absent:
        return wgmma_mainloop(plan)
    if not plan.promote:
        return with_draws(plan, MAINLOOP)
    if plan.accumulator_stages > 1:
        return overlapped_mainloop(plan.problem.scales is not None, span=plan.promote_k_tiles)
    if plan.promote_k_tiles == 1:
        loop = PROMOTED_MAINLOOP
    else:
        loop = (ClearSums(), KGroups((*MAINLOOP, Promote()), size=plan.promote_k_tiles))
    return loop if plan.problem.scales is None else rewrite(loop, _with_scales)


def _with_scales(step: Step) -> tuple[Step, ...]:
    """Load scales before the wait for the operands of their block; the MMAs hide the latency."""
    if isinstance(step, (KLoop, KGroups)) and contains(step, Promote):
        return (dataclasses.replace(step, body=(LoadScales(), *step.body)),)
    return (step,)


def program(plan: GemmPlan) -> KernelProgram:
    """Build the roles for `plan`, without the edits of its epilogue.

    Two CTAs per SM share its registers evenly: the load warp has no warpgroup to itself, and no warp changes its
    register count.
    """
    warps, shared_sm = plan.consumer_warps, plan.ctas_per_sm > 1
    mainloop = _mainloop(plan)
    cursors = [] if plan.sliced else [Cursor("ab_read", "ab", "consumer")]
    if plan.converts and not plan.sliced:
        cursors.append(Cursor("raw_read", "raw", "consumer"))
    if not plan.sliced and (
        not plan.promote or plan.promote_k_tiles > 1 or plan.converts or plan.accumulator_stages > 1
    ):
        cursors.append(Cursor("ab_free", "ab", "consumer"))
    store = Role(
        name="store",
        first_warp=0 if shared_sm else LOADING_WARPS,
        warps=warps,
        program=(
            SetUp("wgmma_sums"),
            *((PieceViews(),) if plan.problem.absent else ()),
            *((SetUp("scales"),) if plan.problem.scales is not None else ()),
            *cursors,
            TileLoop(
                (
                    *mainloop,
                    *first_buffers(plan),
                    SubtileLoop((ReadSums(), *store_subtile(plan))),
                )
            ),
            *last_stores(plan),
        ),
    )
    two = warps * plan.teams > LOADING_WARPS and not shared_sm
    loading = warps if shared_sm else 0
    launched = warps + 1 if shared_sm else LOADING_WARPS + warps * plan.teams
    return KernelProgram(
        plan=plan,
        warps=launched,
        spare_warp=loading + 1,
        pipelines=(Pipeline(name="ab", kind="tma_wgmma", counts=counts(plan).ab, barriers="ab_barriers"),),
        barriers=(NamedBarrier(name="epilogue", number=1, threads=counts(plan).consumer_threads),),
        roles=(load_role(plan, loading, "wgmma_loads"), store),
        host=("wgmma", "output"),
        registers=(
            register_limit(plan, launched, 0, LOADING_WARPS, LOADING_REGISTERS),
            register_limit(plan, launched, LOADING_WARPS, warps * plan.teams, STORING_REGISTERS),
        )
        if two
        else (),
    )
