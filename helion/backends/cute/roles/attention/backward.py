"""The roles of attention's gradients on Hopper: a warp loads blocks and asks for tiles, one loads owned rows, and each
consumer group multiplies and stores 64 of them.
"""

from __future__ import annotations

from ...plan.attention.backward import STREAMED, BackwardPlan, BackwardProblem, backward_counts
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
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
)
from .grammar import (
    BackwardProgram,
    BlockLoop,
    Differences,
    Finish,
    FirstWarp,
    GradientMma,
    GroupLoop,
    GroupSync,
    HandOut,
    LoadBlock,
    LoadLoop,
    LoadRows,
    NextTile,
    ProductMma,
    RepeatLoop,
    StoreOutput,
    TakeTicket,
    Weights,
    WorkLoop,
    WriteOutput,
)
from .programs import LOADING_WARPS, registers_of_roles

READ = {name: f"{name}_read" for name in STREAMED}
FREE = {name: f"{name}_free" for name in STREAMED}


def backward_program(plan: BackwardPlan) -> BackwardProgram:
    """Build the roles, pipelines and barriers of ``plan``."""
    kinds = {"rows": "tma_rows", "tile": "mailbox"}
    pipelines = tuple(
        Pipeline(name=name, kind=kinds.get(name, "tma_wgmma"), counts=numbers, barriers=f"{name}_barriers")  # type: ignore[arg-type]
        for name, numbers in backward_counts(plan).items()
    )
    return BackwardProgram(
        plan=plan,
        warps=LOADING_WARPS + plan.consumer_warps,
        pipelines=pipelines,
        barriers=tuple(
            NamedBarrier(name=f"group_{at}", number=1 + at, threads=WARPGROUP_THREADS) for at in range(plan.groups)
        ),
        roles=(_load_blocks(plan), _load_rows(), _multiply(plan)),
        registers=registers_of_roles(plan) if plan.groups > 1 else (),
    )


def _load_blocks(plan: BackwardPlan) -> Role:
    block = tuple(
        step
        for name in STREAMED
        for cursor in (f"{name}_fill",)
        for step in (Acquire(cursor), LoadBlock(name, cursor), Commit(cursor), Advance(cursor))
    )
    blocks: tuple[Step, ...] = (*block, LoadLoop(block))
    ticket: tuple[Step, ...] = (TakeTicket(),) if plan.scheduler == "dynamic" else ()
    return Role(
        name="load",
        first_warp=0,
        warps=1,
        program=(
            SetUp("load_blocks"),
            *(Cursor(f"{name}_fill", name, "producer") for name in STREAMED),
            WorkLoop((*ticket, *_repeated(plan, blocks), HandOut())),
            *(Tail(f"{name}_fill") for name in STREAMED),
        ),
    )


def _repeated(plan: BackwardPlan, body: tuple[Step, ...]) -> tuple[Step, ...]:
    return (RepeatLoop(body),) if plan.problem.repeats > 1 else body


def _load_rows() -> Role:
    return Role(
        name="load_rows",
        first_warp=1,
        warps=1,
        program=(
            SetUp("load_rows"),
            WorkLoop((GroupLoop((Acquire("rows_fill"), LoadRows("rows_fill"))), NextTile())),
            Tail("rows_fill"),
        ),
    )


def _freed(problem: BackwardProblem, multiplied: bool) -> tuple[Step, ...]:
    """Return the releases of the stages of streamed matrices that gradients multiply, or of the others."""
    used = {STREAMED[each.right] for each in problem.gradients}
    freed = [name for name in STREAMED if (name in used) == multiplied]
    return tuple(step for name in freed for step in (Release(FREE[name]), Advance(FREE[name])))


def _gradients(problem: BackwardProblem, late: bool, first: bool) -> tuple[Step, ...]:
    """Return the MMAs of the gradients whose left operands need the second product, or of the others."""
    chosen = [at for at, each in enumerate(problem.gradients) if problem.late[each.left] == late]
    if not chosen:
        return ()
    issued = (GradientMma(at, READ[STREAMED[problem.gradients[at].right]], first) for at in chosen)
    return WgmmaFence(), *issued, WgmmaCommit()


def _block(plan: BackwardPlan, masked: bool, first: bool = False) -> tuple[Step, ...]:
    """Return the steps of one block. Those of the ``first`` one of a tile begin the accumulators."""
    problem = plan.problem
    freed = _freed(problem, multiplied=True)
    former: tuple[Step, ...] = (WgmmaWait(1), *freed) if plan.overlap and not first else ()
    early = _gradients(problem, late=False, first=first)
    return (
        Wait(READ["first"]),
        WgmmaFence(),
        ProductMma(0, READ["first"]),
        WgmmaCommit(),
        *former,
        Wait(READ["second"]),
        WgmmaFence(),
        ProductMma(1, READ["second"]),
        WgmmaCommit(),
        WgmmaWait(1),
        Weights(masked, READ["first"], first),
        *early,
        WgmmaWait(1 if early else 0),
        *_freed(problem, multiplied=False),
        Differences(masked, READ["second"], first),
        *_gradients(problem, late=True, first=first),
        *(() if plan.overlap else (WgmmaWait(0), *freed)),
        *(Advance(READ[name]) for name in STREAMED),
    )


def _stored(plan: BackwardPlan) -> tuple[Step, ...]:
    """Return the steps after the last block. Outputs take the shared memory of the tile's rows, which all warps of a group
    have read then."""
    gradients = range(len(plan.problem.gradients))
    return (
        *((WgmmaWait(0), *_freed(plan.problem, multiplied=True)) if plan.overlap else ()),
        GroupSync(),
        *(step for at in gradients for step in (Finish(at), WriteOutput(at))),
        FenceShared(),
        GroupSync(),
        FirstWarp((*(StoreOutput(at) for at in gradients), StoreWait(0), Release("rows_read"))),
        NextTile(),
    )


def _multiply(plan: BackwardPlan) -> Role:
    parts: tuple[Step, ...] = tuple(BlockLoop(part, _block(plan, masked=part != "free")) for part in plan.parts)
    if plan.problem.repeats > 1:
        parts = (RepeatLoop((BlockLoop("again", _block(plan, masked=True)), *parts)),)
    return Role(
        name="multiply",
        first_warp=LOADING_WARPS,
        warps=plan.consumer_warps,
        program=(
            SetUp("multiply"),
            *(Cursor(cursor, name, "consumer") for name in STREAMED for cursor in (READ[name], FREE[name])),
            WorkLoop((Wait("rows_read"), *_block(plan, masked=True, first=True), *parts, *_stored(plan))),
        ),
    )
