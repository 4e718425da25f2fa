"""The roles of attention's gradients on Hopper: a warp loads blocks and asks for tiles, one loads owned rows, and each
consumer group multiplies and stores 64 of them.

Where blocks add the gradient of streamed rows to memory, a group multiplies 64 of its columns. It needs the left operands of
all groups for that. It multiplies those of a block during the next one, in the registers of the second product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...plan.attention.backward import BackwardPlan, backward_counts
from ...plan.attention.gradients import STREAMED, BackwardProblem
from ...plan.records import WARPGROUP_THREADS
from ..grammar import (
    Acquire,
    Advance,
    Commit,
    Cursor,
    FenceShared,
    NamedBarrier,
    Pipeline,
    Release,
    Role,
    SetUp,
    Step,
    StoreWait,
    Tail,
    Wait,
    WarpSync,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
)
from .grammar import (
    AddSum,
    AllGroupsSync,
    AllRows,
    BackwardProgram,
    BlockLoop,
    ClearRows,
    Differences,
    Finish,
    FirstWarp,
    GradientMma,
    GroupSync,
    HandOut,
    LoadBlock,
    LoadLoop,
    NextPass,
    NextTile,
    ProductMma,
    PublishLeft,
    RepeatLoop,
    StoreOutput,
    SumMma,
    TakeTicket,
    WaitExchange,
    Weights,
    WorkLoop,
    WriteLeft,
    WriteOutput,
    WriteSum,
)
from .programs import LOADING_WARPS, load_rows, registers_of_roles

READ = {name: f"{name}_read" for name in STREAMED}
FREE = {name: f"{name}_free" for name in STREAMED}


def backward_program(plan: BackwardPlan) -> BackwardProgram:
    """Build the roles, pipelines and barriers of ``plan``."""
    kinds = {"rows": "tma_rows", "tile": "mailbox", "exchange": "exchange"}
    pipelines = tuple(
        Pipeline(name=name, kind=kinds.get(name, "tma_wgmma"), counts=numbers, barriers=f"{name}_barriers")  # type: ignore[arg-type]
        for name, numbers in backward_counts(plan).items()
    )
    groups = range(plan.groups)
    barriers = [NamedBarrier(name=f"group_{at}", number=1 + at, threads=WARPGROUP_THREADS) for at in groups]
    if plan.problem.atomic is not None:
        everyone = WARPGROUP_THREADS * plan.groups
        barriers.append(NamedBarrier(name="groups", number=1 + plan.groups, threads=everyone))
    return BackwardProgram(
        plan=plan,
        warps=LOADING_WARPS + plan.consumer_warps,
        pipelines=pipelines,
        barriers=tuple(barriers),
        roles=(_load_blocks(plan), load_rows(1, "rows"), _multiply(plan)),
        registers=registers_of_roles(plan) if plan.groups > 1 else (),
    )


def _load_blocks(plan: BackwardPlan) -> Role:
    """Build the role that loads blocks. It draws a tile after all blocks of the one before: the CTAs with the longest tiles draw
    last then."""
    ticket: tuple[Step, ...] = (TakeTicket(),) if plan.scheduler == "dynamic" else ()
    whole = loads_of_blocks(plan)
    later = [NextPass(loads=True), *whole] * (len(plan.problem.passes) - 1)
    return Role(
        name="load",
        first_warp=0,
        warps=1,
        program=(
            SetUp("load_blocks"),
            *(Cursor(f"{name}_fill", name, "producer") for name in STREAMED),
            WorkLoop((*whole, *later, *ticket, HandOut())),
            *(Tail(f"{name}_fill") for name in STREAMED),
        ),
    )


def loads_of_blocks(plan: BackwardPlan) -> tuple[Step, ...]:
    """Return the steps that load all blocks of both streamed matrices."""
    block = tuple(
        step
        for name in STREAMED
        for cursor in (f"{name}_fill",)
        for step in (Acquire(cursor), LoadBlock(name, cursor), Commit(cursor), Advance(cursor))
    )
    if plan.problem.is_repeated:
        return RepeatLoop(block, first=True), LoadLoop((RepeatLoop(block),))
    return *block, LoadLoop(block)


def other_blocks(plan: BackwardPlan, block: Callable[[bool], tuple[Step, ...]]) -> tuple[Step, ...]:
    """Return the steps of all blocks of a tile but the first; ``block`` returns those of a masked one, or of another."""
    parts = [(part, block(part != "free")) for part in plan.parts]
    if not plan.problem.is_repeated:
        return tuple(BlockLoop(part, steps) for part, steps in parts)
    again = RepeatLoop(block(True), first=True, begin=1)
    return again, *(BlockLoop(part, (RepeatLoop(steps),)) for part, steps in parts)


def _freed(problem: BackwardProblem, chosen: Sequence[int], multiplied: bool) -> tuple[Step, ...]:
    """Return the releases of the stages of streamed matrices that the chosen gradients multiply, or of the others."""
    used = {STREAMED[problem.gradients[at].right] for at in chosen}
    freed = [name for name in STREAMED if (name in used) == multiplied]
    return tuple(step for name in freed for step in (Release(FREE[name]), Advance(FREE[name])))


def _gradients(problem: BackwardProblem, chosen: Sequence[int], late: bool, first: bool) -> tuple[Step, ...]:
    """Return the MMAs of the chosen gradients whose left operands need the second product, or of the others."""
    chosen = [at for at in chosen if problem.late[problem.gradients[at].left] == late]
    if not chosen:
        return ()
    issued = (GradientMma(at, READ[STREAMED[problem.gradients[at].right]], first) for at in chosen)
    return WgmmaFence(), *issued, WgmmaCommit()


def _product(number: int, first: bool) -> tuple[Step, ...]:
    cursor = READ[STREAMED[number]]
    return Wait(cursor), WgmmaFence(), ProductMma(number, cursor, first), WgmmaCommit()


def _block(plan: BackwardPlan, chosen: Sequence[int], masked: bool, first: bool = False) -> tuple[Step, ...]:
    """Return the steps of one block, for the gradients of a pass. Those of the ``first`` one of a tile begin the
    accumulators."""
    problem = plan.problem
    only = chosen[0] if len(problem.passes) > 1 else None
    freed, others = (_freed(problem, chosen, multiplied) for multiplied in (True, False))
    former: tuple[Step, ...] = (WgmmaWait(1), *freed) if plan.overlap and not first else ()
    early, late = (_gradients(problem, chosen, late, first) for late in (False, True))
    advances = (Advance(READ[name]) for name in STREAMED)
    weights = Weights(masked, READ["first"], first, only)
    if not late:
        return *_product(0, first), *former, WgmmaWait(0), weights, Wait(READ["second"]), *others, *early, *advances
    differences = Differences(masked, READ["second"], first, only)
    return (
        *_product(0, first),
        *former,
        *_product(1, first),
        WgmmaWait(1),
        weights,
        *early,
        WgmmaWait(1 if early else 0),
        *((differences, *others) if only is not None else (*others, differences)),
        *late,
        *(() if plan.overlap else (WgmmaWait(0), *freed)),
        *advances,
    )


_WAIT_FOR_FORMER: tuple[Step, ...] = (WaitExchange(), WgmmaFence(), SumMma(), WgmmaCommit())
_ADD_FORMER: tuple[Step, ...] = (StoreWait(0), WarpSync(), WriteSum(), FenceShared(), WarpSync(), AddSum())


def _atomic_block(plan: BackwardPlan, chosen: Sequence[int], masked: bool, first: bool = False) -> tuple[Step, ...]:
    """Return the steps of one block, in which the former block's gradient is added to memory.

    It takes the registers of the second product once the differences are computed. Its MMAs and those of the tile's own
    gradient are in flight while it is added, and while left operands are exchanged. A group waits for others late in a block,
    so that one may compute while another multiplies. No MMAs are in flight at the end, since ptxas would serialize them.
    """
    early, late = (_gradients(plan.problem, chosen, late, first) for late in (False, True))
    return (
        *_product(0, first),
        *_product(1, first),
        WgmmaWait(1),
        Weights(masked, READ["first"], first),
        *early,
        WgmmaWait(1 if early else 0),
        Differences(masked, READ["second"], first),
        *(() if first else _WAIT_FOR_FORMER),
        *late,
        WgmmaWait(1),
        *(() if first else _ADD_FORMER),
        WriteLeft(),
        FenceShared(),
        WarpSync(),
        PublishLeft(first),
        WgmmaWait(0),
        *(step for name in STREAMED for step in (Release(READ[name]), Advance(READ[name]))),
    )


def _stored(plan: BackwardPlan, chosen: Sequence[int], last: bool) -> tuple[Step, ...]:
    """Return the steps after the last block of a pass. Outputs take the shared memory of the tile's rows, which all warps of a
    group have read then. Those of all groups have where the gradient of streamed rows is added."""
    atomic = plan.problem.atomic is not None
    release = (StoreWait(0), Release("rows_read")) if last else ()
    return (
        *((*_WAIT_FOR_FORMER, WgmmaWait(0), *_ADD_FORMER) if atomic else ()),
        *((WgmmaWait(0), *_freed(plan.problem, chosen, multiplied=True)) if plan.overlap else ()),
        AllGroupsSync() if atomic else GroupSync(),
        *(step for at in chosen for step in (Finish(at), WriteOutput(at))),
        FenceShared(),
        GroupSync(),
        FirstWarp((*(StoreOutput(at) for at in chosen), *release)),
    )


def _pass(plan: BackwardPlan, chosen: Sequence[int]) -> tuple[Step, ...]:
    """Return the steps of the blocks of a tile, for the gradients of a pass: one body for the first block, and one for each part of the
    others. Their number decides how long compilation takes (measurement ``gradient_bodies``)."""
    block = _block if plan.problem.atomic is None else _atomic_block
    others = other_blocks(plan, lambda masked: block(plan, chosen, masked))
    return *block(plan, chosen, masked=True, first=True), *others


def _rows(plan: BackwardPlan) -> tuple[Step, ...]:
    """Return the steps that wait for the tile's rows. Cleared ones are read by MMAs of all groups after the exchange of the
    first block."""
    if plan.problem.atomic is None:
        return (Wait("rows_read"),)
    return AllRows(), *((ClearRows(), FenceShared()) if plan.clears_rows else ())


def _multiply(plan: BackwardPlan) -> Role:
    atomic = plan.problem.atomic is not None
    cursors = {name: (READ[name],) if atomic else (READ[name], FREE[name]) for name in STREAMED}
    first, *later = plan.problem.passes
    steps = [*_pass(plan, first), *_stored(plan, first, last=not later)]
    for chosen in later:
        steps += [NextPass(), *_pass(plan, chosen), *_stored(plan, chosen, last=chosen == later[-1])]
    return Role(
        name="multiply",
        first_warp=LOADING_WARPS,
        warps=plan.consumer_warps,
        program=(
            SetUp("multiply"),
            *(Cursor(cursor, name, "consumer") for name in STREAMED for cursor in cursors[name]),
            WorkLoop((*_rows(plan), *steps, NextTile())),
            *((StoreWait(0),) if atomic else ()),
        ),
    )
