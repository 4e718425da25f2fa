"""The roles of attention's gradients on tcgen05: warps that compute left operands and store sums, and three more.

One of these issues the MMAs of all groups, one loads blocks, one loads owned rows. While a group computes the left operands
of a block, the tensor pipe multiplies for the other.
"""

from __future__ import annotations

from typing import ClassVar

from ....._support.records import dataclass
from ...plan.attention.gradients import STREAMED
from ...plan.attention.umma_backward import OF_GROUPS, UmmaBackwardPlan, umma_backward_counts
from ...plan.records import WARP_THREADS, WARPGROUP_THREADS
from ..grammar import (
    Advance,
    AllocateSums,
    BarrierSync,
    Commit,
    Cursor,
    FenceShared,
    FindSums,
    FreeSums,
    NamedBarrier,
    Pipeline,
    Release,
    Role,
    SetUp,
    Step,
    StoreWait,
    Tail,
    Wait,
)
from .backward import FREE, READ, loads_of_blocks, other_blocks
from .grammar import (
    FirstWarp,
    GroupLoop,
    GroupSync,
    LoadLoop,
    NextTile,
    ProductMma,
    ScoreProgram,
    StoreOutput,
    WorkLoop,
)
from .programs import load_rows
from .umma import OTHER_WARPS, CommitMma, TensorFence


@dataclass(frozen=True)
class OtherBlocks(LoadLoop):
    """Loop over all blocks of a tile but the first, those of all repetitions."""


@dataclass(frozen=True)
class GradientOfBlock(Step):
    """Issue the MMAs of gradient number ``gradient`` of the block before the current one, or with ``last`` of the last one.
    Those of a tile's first block overwrite its sum, others add to it."""

    gradient: int
    cursor: str
    last: bool = False


@dataclass(frozen=True)
class Lefts(Step):
    """Compute the left operands of a block from both products, rounded, and store them over these. With ``masked`` they are
    0 out of the band. The ``first`` block is that of a tile."""

    masked: bool
    first: bool = False


@dataclass(frozen=True)
class FinishGradient(Step):
    """Compute the output of a gradient from its sum, and store it, rounded, to the shared memory of owned rows."""

    gradient: int


@dataclass(frozen=True, kw_only=True)
class UmmaBackwardProgram(ScoreProgram):
    """A kernel of attention's gradients on tcgen05."""

    unit: ClassVar[str] = "tcgen05"
    plan: UmmaBackwardPlan


def umma_backward_program(plan: UmmaBackwardPlan) -> UmmaBackwardProgram:
    """Build the roles, pipelines and barriers of ``plan``."""
    kinds = {"rows": "tma_rows", **dict.fromkeys(STREAMED, "tma_umma"), **dict.fromkeys(OF_GROUPS, "of_groups")}
    pipelines = tuple(
        Pipeline(name=name, kind=kinds[name], counts=numbers, barriers=f"{name}_barriers")  # type: ignore[arg-type]
        for name, numbers in umma_backward_counts(plan).items()
    )
    first, groups = plan.consumer_warps, plan.groups
    barriers = [NamedBarrier(name=f"group_{at}", number=1 + at, threads=WARPGROUP_THREADS) for at in range(groups)]
    of_memory = {"tensor_memory": first + 1, "end": first}
    barriers += [
        NamedBarrier(name=name, number=1 + groups + at, threads=warps * WARP_THREADS)
        for at, (name, warps) in enumerate(of_memory.items())
    ]
    return UmmaBackwardProgram(
        plan=plan,
        warps=first + OTHER_WARPS,
        pipelines=pipelines,
        barriers=tuple(barriers),
        roles=(_compute(plan), _multiply(plan, first), _load_blocks(plan, first + 1), load_rows(first + 2, "rows")),
        registers=(),
    )


def _load_blocks(plan: UmmaBackwardPlan, warp: int) -> Role:
    return Role(
        name="load",
        first_warp=warp,
        warps=1,
        program=(
            SetUp("load_blocks"),
            *(Cursor(f"{name}_fill", name, "producer") for name in STREAMED),
            WorkLoop((*loads_of_blocks(plan), NextTile())),
            *(Tail(f"{name}_fill") for name in STREAMED),
        ),
    )


def _multiply(plan: UmmaBackwardPlan, warp: int) -> Role:
    """Build the role that issues all MMAs: for each group the gradients of a block, then the products of the next one.

    MMAs run in the order of their issue, so that products overwrite left operands that were read. Left operands of a tile
    are computed after the sums of the one before were read, by the same warps.
    """
    gradients = range(len(plan.problem.gradients))
    products = (*(ProductMma(at, READ[name]) for at, name in enumerate(STREAMED)), CommitMma("scores_fill"))

    def added(last: bool) -> tuple[Step, ...]:
        cursors = (FREE[STREAMED[each.right]] for each in plan.problem.gradients)
        issued = (GradientOfBlock(at, cursor, last) for at, cursor in zip(gradients, cursors, strict=True))
        return Wait("lefts_read"), TensorFence(after=True), *issued

    waits = tuple(Wait(READ[name]) for name in STREAMED)
    read = tuple(Advance(READ[name]) for name in STREAMED)
    freed = tuple(step for name in STREAMED for step in (Release(FREE[name]), Advance(FREE[name])))
    ends = (*freed, Advance("lefts_read"))
    return Role(
        name="multiply",
        first_warp=warp,
        warps=1,
        program=(
            FindSums(),
            SetUp("multiply"),
            *(Cursor(cursor, name, "consumer") for name in STREAMED for cursor in (READ[name], FREE[name])),
            Cursor("lefts_read", "lefts", "consumer"),
            WorkLoop(
                (
                    *waits,
                    GroupLoop((Wait("rows_read"), *products)),
                    *read,
                    OtherBlocks((*waits, GroupLoop((*added(last=False), *products)), *read, *ends)),
                    GroupLoop((*added(last=True), CommitMma("output_fill"))),
                    *ends,
                    NextTile(),
                )
            ),
        ),
    )


def _block(plan: UmmaBackwardPlan, masked: bool, first: bool = False) -> tuple[Step, ...]:
    """Return the steps of a block's left operands. Numbers per streamed row are in the stages of the block."""
    staged = [READ[name] for name in STREAMED if plan.staged[name]]
    return (
        Wait("scores_read"),
        TensorFence(after=True),
        *(Wait(cursor) for cursor in staged),
        Lefts(masked, first),
        TensorFence(after=False),
        Commit("lefts_fill"),
        Advance("scores_read"),
        *(Advance(cursor) for cursor in staged),
    )


def _compute(plan: UmmaBackwardPlan) -> Role:
    """Build the role that computes left operands and outputs, which take the shared memory of rows that no MMA reads then."""
    outputs = range(len(plan.problem.gradients))
    others = other_blocks(plan, lambda masked: _block(plan, masked))
    stored = (*(StoreOutput(at) for at in outputs), StoreWait(0), Release("rows_read"))
    end = (
        Wait("output_read"),
        TensorFence(after=True),
        *(FinishGradient(at) for at in outputs),
        TensorFence(after=False),
        Advance("output_read"),
        FenceShared(),
        GroupSync(),
        FirstWarp(stored),
        NextTile(),
    )
    return Role(
        name="compute",
        first_warp=0,
        warps=plan.consumer_warps,
        program=(
            AllocateSums(),
            FindSums(),
            SetUp("compute"),
            *(Cursor(READ[name], name, "consumer") for name in STREAMED if plan.staged[name]),
            Cursor("scores_read", "scores", "consumer"),
            Cursor("lefts_fill", "lefts", "producer"),
            Cursor("output_read", "output", "consumer"),
            WorkLoop((*_block(plan, masked=True, first=True), *others, *end)),
            BarrierSync("end"),
            FreeSums(),
        ),
    )
