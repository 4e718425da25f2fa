"""The roles of attention on Hopper: a warp loads K and V and asks for tiles, one loads Q, and each consumer group
multiplies and stores 64 queries. In latent attention two groups share the queries, and each has half of the output's columns."""

from __future__ import annotations

import functools
from collections.abc import Callable

from ...plan.attention.build import LATENT_REGISTERS, REGISTERS, counts
from ...plan.attention.records import AttentionPlan, ScorePlan
from ...plan.records import WARPGROUP_THREADS
from ..grammar import (
    Acquire,
    Advance,
    Commit,
    Cursor,
    FenceShared,
    IncrementTileCounter,
    NamedBarrier,
    Pipeline,
    RegisterLimit,
    Release,
    ResetTileCounter,
    Role,
    SetUp,
    Step,
    StorePartials,
    StoreWait,
    Tail,
    Wait,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
    WorkspaceAcquire,
    WorkspaceRelease,
)
from .grammar import (
    AddProduct,
    AttentionProgram,
    AwaitPartials,
    BlockLoop,
    ClearOutput,
    CombinePartials,
    CombiningSplit,
    Finish,
    FirstWarp,
    GroupLoop,
    GroupSync,
    HandOut,
    JoinTotals,
    LastSplit,
    LoadBias,
    LoadBlock,
    LoadLoop,
    LoadRows,
    NextTile,
    OutputMma,
    PassTurn,
    ReadBias,
    Rescale,
    RestoreMaxima,
    RoundWeights,
    RowsSync,
    ScoreMma,
    SideLoop,
    Softmax,
    StoreColumns,
    StoreOutput,
    TakeTicket,
    TakeTurn,
    TransformQueries,
    WorkLoop,
    WriteOutput,
)

LONG_FORMULA = 4
"""Operations of a formula of scores from which one loop computes all blocks of a tile with masks on both sides. A branch around the
masks costs little beside them, and a second copy takes as long to compile (measurement ``attention_copies``)."""

LOADING_WARPS = 4
"""Register counts change per warpgroup, so the load warps have a warpgroup to themselves."""


def attention_program(plan: AttentionPlan) -> AttentionProgram:
    """Build the roles, pipelines and barriers of ``plan``."""
    numbers = counts(plan)
    pipelines = [
        Pipeline(name="k", kind="tma_wgmma", counts=numbers.k, barriers="k_barriers"),
        Pipeline(name="q", kind="tma_rows", counts=numbers.q, barriers="q_barriers"),
    ]
    if numbers.v is not None:
        pipelines.insert(1, Pipeline(name="v", kind="tma_wgmma", counts=numbers.v, barriers="v_barriers"))
    if numbers.bias is not None:
        pipelines.append(Pipeline(name="bias", kind="tma_wgmma", counts=numbers.bias, barriers="bias_barriers"))
    if numbers.tile is not None:
        pipelines.append(Pipeline(name="tile", kind="mailbox", counts=numbers.tile, barriers="tile_barriers"))
    groups = range(plan.consumer_groups)
    barriers = [NamedBarrier(name=f"group_{at}", number=1 + at, threads=WARPGROUP_THREADS) for at in groups]
    if plan.pingpong:
        first = 1 + plan.groups
        barriers += [NamedBarrier(name=f"turn_{at}", number=first + at, threads=2 * WARPGROUP_THREADS) for at in groups]
    if plan.problem.latent:
        barriers.append(
            NamedBarrier(name="rows", number=1 + len(barriers), threads=WARPGROUP_THREADS * plan.column_groups)
        )
    return AttentionProgram(
        plan=plan,
        warps=LOADING_WARPS + plan.consumer_warps,
        pipelines=tuple(pipelines),
        barriers=tuple(barriers),
        roles=(_load_blocks(plan), load_rows(1), _attend_latent(plan) if plan.problem.latent else _attend(plan)),
        registers=registers_of_roles(plan) if plan.consumer_groups > 1 else (),
    )


def registers_of_roles(plan: ScorePlan) -> tuple[RegisterLimit, ...]:
    """Return the registers that loading and consumer warps change to."""
    loading, consuming = LATENT_REGISTERS if plan.column_groups > 1 else REGISTERS[plan.groups]
    loads = RegisterLimit(first_warp=0, warps=LOADING_WARPS, registers=loading, change="decrease")
    warps = plan.consumer_warps
    return loads, RegisterLimit(first_warp=LOADING_WARPS, warps=warps, registers=consuming, change="increase")


def _load(operand: str, behind: bool = False) -> tuple[Step, ...]:
    cursor = f"{operand}_fill"
    return Acquire(cursor), LoadBlock(operand, cursor, behind), Commit(cursor), Advance(cursor)


def _load_bias(plan: AttentionPlan) -> tuple[Step, ...]:
    cursor = "bias_fill"
    return (Acquire(cursor), LoadBias(cursor), Commit(cursor), Advance(cursor)) if plan.bias is not None else ()


def _read_bias(plan: AttentionPlan) -> tuple[Step, ...]:
    """Return the steps that read a block's bias. The fence orders the reads before the load that fills the stage again."""
    cursor = "bias_read"
    steps = (Wait(cursor), ReadBias(cursor), FenceShared(), Release(cursor), Advance(cursor))
    return steps if plan.bias is not None else ()


def _load_blocks(plan: AttentionPlan) -> Role:
    """Build the role that loads K one block before V: the scores of a block are multiplied before the output of the
    former one."""
    ticket: tuple[Step, ...] = (TakeTicket(),) if plan.scheduler == "dynamic" else ()
    if plan.problem.latent:
        body = (*_load("k"), LoadLoop(_load("k")), *ticket, HandOut())
        program = (SetUp("load_blocks"), Cursor("k_fill", "k", "producer"), WorkLoop(body), Tail("k_fill"))
        return Role(name="load", first_warp=0, warps=1, program=program)
    cursors = ("k_fill", "v_fill", *(["bias_fill"] if plan.bias is not None else []))
    scores = (*_load("k"), *_load_bias(plan))
    return Role(
        name="load",
        first_warp=0,
        warps=1,
        program=(
            SetUp("load_blocks"),
            *(Cursor(cursor, cursor.removesuffix("_fill"), "producer") for cursor in cursors),
            WorkLoop((*scores, LoadLoop((*scores, *_load("v", behind=True))), *ticket, *_load("v"), HandOut())),
            *(Tail(cursor) for cursor in cursors),
        ),
    )


def load_rows(warp: int, rows: str = "q") -> Role:
    """Build the role that loads a tile's own rows, by the pipeline ``rows``."""
    fill = f"{rows}_fill"
    return Role(
        name="load_rows",
        first_warp=warp,
        warps=1,
        program=(SetUp("load_rows"), WorkLoop((GroupLoop((Acquire(fill), LoadRows(fill))), NextTile())), Tail(fill)),
    )


def _queries(plan: AttentionPlan) -> tuple[Step, ...]:
    """Return the steps that compute queries in shared memory, which the MMAs of all warps of a group read."""
    sync = RowsSync() if plan.problem.latent else GroupSync()
    return (TransformQueries(), FenceShared(), sync) if plan.problem.query.instructions else ()


def _step(plan: AttentionPlan, masked: bool, any: bool = False) -> tuple[Step, ...]:
    """Return the steps of one block, or of ``any``: its scores, and the output of the block before.

    The wait for the next stage of V precedes that for the MMAs. Its retry loop ends a basic block, so that ptxas keeps
    the exponentials before the second wait, and they overlap with the MMAs.
    """
    take: tuple[Step, ...] = (TakeTurn(),) if plan.pingpong else ()
    give: tuple[Step, ...] = (PassTurn(),) if plan.pingpong else ()
    return (
        Wait("k_read"),
        *take,
        WgmmaFence(),
        ScoreMma("k_read"),
        WgmmaCommit(),
        OutputMma("v_read"),
        WgmmaCommit(),
        *give,
        *_read_bias(plan),
        WgmmaWait(1),
        Release("k_read"),
        Advance("k_read"),
        Softmax(masked, any=any),
        Advance("v_read"),
        Wait("v_read"),
        WgmmaWait(0),
        Release("v_free"),
        Advance("v_free"),
        *((AddProduct(),) if plan.adds_products else ()),
        *((Rescale(),) if plan.problem.softmax else ()),
        RoundWeights(),
    )


def block_loops(plan: ScorePlan, body: Callable[[bool], tuple[Step, ...]]) -> tuple[Step, ...]:
    """Return the loops over the blocks of a tile but the first, given the steps of a block with and without masks.

    Each kind of blocks is printed once: compilation takes as long as the kernel. One group has longer blocks, and no registers
    left for what the loop over sides keeps.
    """
    if "edge" in plan.parts and "diagonal" in plan.parts and plan.consumer_groups > 1:
        return (SideLoop((BlockLoop("side", body(True)), BlockLoop("middle", body(False)))),)
    return tuple(BlockLoop(part, body(part != "free")) for part in plan.parts)


def _first_block(plan: AttentionPlan) -> tuple[Step, ...]:
    """Return the steps of the first block, which holds the end of K and is always masked."""
    return (
        Wait("k_read"),
        WgmmaFence(),
        ScoreMma("k_read"),
        WgmmaCommit(),
        *_read_bias(plan),
        WgmmaWait(0),
        Release("k_read"),
        Advance("k_read"),
        Softmax(masked=True, first=True),
        RoundWeights(),
        Wait("v_read"),
    )


def _last_output(plan: AttentionPlan) -> tuple[Step, ...]:
    """Return the steps after the last block: its output, and the stores."""
    early: tuple[Step, ...] = (Release("q_read"),) if plan.own_output else ()
    stored: tuple[Step, ...] = (FirstWarp((StoreWait(0),)),) if plan.own_output else ()
    handed: tuple[Step, ...] = () if plan.own_output else (StoreWait(0), Release("q_read"))
    finish = (
        Finish(),
        *stored,
        GroupSync(),
        WriteOutput(),
        FenceShared(),
        GroupSync(),
        FirstWarp((StoreOutput(), *handed)),
    )
    return (
        *early,
        WgmmaFence(),
        OutputMma("v_read"),
        WgmmaCommit(),
        *((JoinTotals(),) if plan.problem.needs_total else ()),
        WgmmaWait(0),
        Release("v_free"),
        Advance("v_free"),
        Advance("v_read"),
        *((AddProduct(),) if plan.adds_products else ()),
        *((RestoreMaxima(),) if plan.restores_maxima else ()),
        *(_combined_at_once() if plan.combining > 1 else combined(finish, GroupSync()) if plan.splits > 1 else finish),
        NextTile(),
    )


def _combined_at_once() -> tuple[Step, ...]:
    """Return the steps of a part of the keys, of which several combine columns of all parts."""
    return (
        StorePartials(),
        WorkspaceRelease(),
        GroupSync(),
        FirstWarp((IncrementTileCounter(), AwaitPartials(), WorkspaceAcquire())),
        GroupSync(),
        CombiningSplit((CombinePartials(), Finish(), StoreColumns())),
    )


def combined(finish: tuple[Step, ...], sync: Step, given_back: tuple[Step, ...] = ()) -> tuple[Step, ...]:
    """Return the steps of a part of the keys: store a partial, and finish the tile if it is the last to arrive. ``sync``
    synchronizes the threads that have the partial, and ``given_back`` are steps after its accumulators were read.

    Fences and barriers order partials before the increment of the counter, and the increment before the reads.
    """
    return (
        StorePartials(),
        *given_back,
        WorkspaceRelease(),
        sync,
        FirstWarp((IncrementTileCounter(), WorkspaceAcquire())),
        sync,
        LastSplit((CombinePartials(), FirstWarp((ResetTileCounter(),)), *finish)),
    )


def _attend(plan: AttentionPlan) -> Role:
    begin: tuple[Step, ...] = (PassTurn(first=True),) if plan.pingpong else ()
    end: tuple[Step, ...] = (TakeTurn(last=True),) if plan.pingpong else ()
    parts: tuple[Step, ...] = block_loops(plan, functools.partial(_step, plan))
    if any(isinstance(each, SideLoop) for each in parts) and len(plan.problem.score.instructions) >= LONG_FORMULA:
        parts = (BlockLoop("any", _step(plan, masked=True, any=True)),)
    return Role(
        name="attend",
        first_warp=LOADING_WARPS,
        warps=plan.consumer_warps,
        program=(
            SetUp("attend"),
            Cursor("k_read", "k", "consumer"),
            Cursor("v_read", "v", "consumer"),
            Cursor("v_free", "v", "consumer"),
            *([Cursor("bias_read", "bias", "consumer")] if plan.bias is not None else []),
            *begin,
            WorkLoop(
                (Wait("q_read"), *_queries(plan), ClearOutput(), *_first_block(plan), *parts, *_last_output(plan))
            ),
            *end,
            FirstWarp((StoreWait(0),)),
        ),
    )


# Latent attention ------------------------------------------------------------------------------------------------------


def _latent_step(plan: AttentionPlan, masked: bool, first: bool = False) -> tuple[Step, ...]:
    """Return the steps of one block, whose rows are keys and values.

    The output of a block is multiplied before the scores of the next one. So a stage is filled while the other one is read,
    and the other group's MMAs overlap with the softmax.
    """
    rescale: tuple[Step, ...] = (Rescale(),) if plan.problem.softmax and not first else ()
    return (
        Wait("k_read"),
        WgmmaFence(),
        ScoreMma("k_read"),
        WgmmaCommit(),
        WgmmaWait(0),
        Softmax(masked, first=first),
        *rescale,
        RoundWeights(),
        WgmmaFence(),
        OutputMma("k_read"),
        WgmmaCommit(),
        WgmmaWait(0),
        Release("k_read"),
        Advance("k_read"),
    )


def _latent_end(plan: AttentionPlan) -> tuple[Step, ...]:
    """Return the steps after the last block. All groups that share queries release them, with or without an output."""
    stored = (Finish(), WriteOutput(), FenceShared(), GroupSync(), FirstWarp((StoreOutput(), StoreWait(0))))
    return (
        *((JoinTotals(),) if plan.problem.needs_total else ()),
        *((RestoreMaxima(),) if plan.restores_maxima else ()),
        RowsSync(),
        *(_combined_at_once() if plan.combining > 1 else combined(stored, GroupSync()) if plan.splits > 1 else stored),
        FirstWarp((Release("q_read"),)),
        NextTile(),
    )


def _attend_latent(plan: AttentionPlan) -> Role:
    parts = block_loops(plan, functools.partial(_latent_step, plan))
    first = _latent_step(plan, masked=True, first=True)
    return Role(
        name="attend",
        first_warp=LOADING_WARPS,
        warps=plan.consumer_warps,
        program=(
            SetUp("attend"),
            Cursor("k_read", "k", "consumer"),
            WorkLoop((Wait("q_read"), *_queries(plan), ClearOutput(), *first, *parts, *_latent_end(plan))),
            FirstWarp((StoreWait(0),)),
        ),
    )
