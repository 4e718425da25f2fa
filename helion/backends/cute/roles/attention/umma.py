"""The roles of attention on tcgen05: softmax warps of each group of queries, warps that correct all outputs, and three more.
One of these issues the MMAs of all groups, one loads K and V, one loads Q.

While the softmax of one group runs, the tensor pipe multiplies for the other. Scores, weights and outputs stay in tensor
memory; weights take the columns of the scores that they are computed from.
"""

from __future__ import annotations

from typing import ClassVar

from ....._support.records import dataclass
from ...plan.attention.umma import CORRECTION_WARPS, UMMA_REGISTERS, UmmaPlan, umma_counts
from ...plan.records import WARP_THREADS, WARPGROUP_THREADS
from ..grammar import (
    Acquire,
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
    RegisterLimit,
    Release,
    Role,
    SetUp,
    Step,
    StoreWait,
    Tail,
    Wait,
)
from .grammar import (
    BlockLoop,
    FirstWarp,
    GroupLoop,
    LoadBlock,
    LoadLoop,
    NextTile,
    Rescale,
    ScoreMma,
    ScoreProgram,
    StoreOutput,
    TransformQueries,
    WorkLoop,
)
from .programs import combined, load_rows

OF_GROUPS = ("scores", "weights", "message", "output")
"""Pipelines with a stage for each group, other than that of Q."""
OTHER_WARPS = 4
"""The last warpgroup: its first warps issue MMAs, load K and V, and load Q."""


@dataclass(frozen=True)
class LastGroup(Step):
    """Run the body for the last group alone."""

    body: tuple[Step, ...]


@dataclass(frozen=True)
class TensorFence(Step):
    """Order accesses of tensor memory across threads: ``after`` a wait, those that follow; else, before an arrival, those
    that precede."""

    after: bool


@dataclass(frozen=True)
class OutputOfBlock(Step):
    """Issue the MMAs of weights @ v of the current block, or with ``behind`` of the one before it. Those of a tile's first
    block overwrite the output, others add to it."""

    cursor: str
    behind: bool = False


@dataclass(frozen=True)
class CommitMma(Step):
    """Let the barrier of ``cursor`` arrive when all MMAs that were issued are complete: the full one of a producer, the
    empty one of a consumer."""

    cursor: str


@dataclass(frozen=True)
class ReadScores(Step):
    """Load the scores of a row from tensor memory into the registers of its thread."""


@dataclass(frozen=True)
class Maxima(Step):
    """Apply the formula of scores, and with ``masked`` the masks of the block, and raise the row maximum, if there is a
    softmax. The ``first`` block of a tile sets it."""

    masked: bool
    first: bool = False


@dataclass(frozen=True)
class WriteFactors(Step):
    """Store the factor of the row, which its output is rescaled by, to shared memory."""


@dataclass(frozen=True)
class Exponentials(Step):
    """Compute the weights of the block, with or without masks. Without a softmax they are the scores."""

    masked: bool


@dataclass(frozen=True)
class DropWeights(Step):
    """Apply the formula of weights that were summed, as of dropout."""

    first: bool = False


@dataclass(frozen=True)
class WriteWeights(Step):
    """Store the rounded weights to tensor memory, over the first half of the row's scores."""


@dataclass(frozen=True)
class AddWeights(Step):
    """Add the weights to the row sum, rescaled by the factor. The ``first`` block sets it."""

    first: bool = False


@dataclass(frozen=True)
class WriteTotals(Step):
    """Store the row's sum and maximum, and the factor that makes its output relative to that, to shared memory."""


@dataclass(frozen=True)
class ReadMessage(Step):
    """Load what the softmax of the row has stored: a factor, or the ``last`` message of a tile, its sum and maximum."""

    last: bool = False


@dataclass(frozen=True)
class FinishRow(Step):
    """Compute the outputs of the row from tensor memory, store numbers per query, and store the output matrix, rounded, to
    the group's shared memory."""


@dataclass(frozen=True, kw_only=True)
class UmmaProgram(ScoreProgram):
    """A kernel of attention on tcgen05."""

    unit: ClassVar[str] = "tcgen05"
    plan: UmmaPlan


def umma_program(plan: UmmaPlan) -> UmmaProgram:
    """Build the roles, pipelines and barriers of ``plan``."""
    numbers, first = umma_counts(plan), plan.softmax_warps + CORRECTION_WARPS
    of_memory = plan.softmax_warps + CORRECTION_WARPS
    return UmmaProgram(
        plan=plan,
        warps=first + OTHER_WARPS,
        pipelines=(
            Pipeline(name="k", kind="tma_umma", counts=numbers.k, barriers="k_barriers"),
            Pipeline(name="v", kind="tma_umma", counts=numbers.v, barriers="v_barriers"),
            Pipeline(name="q", kind="tma_rows", counts=numbers.q, barriers="q_barriers"),
            *(
                Pipeline(name=name, kind="of_groups", counts=getattr(numbers, name), barriers=f"{name}_barriers")
                for name in (*(["queries"] if plan.computes_queries else []), *OF_GROUPS)
            ),
        ),
        barriers=(
            NamedBarrier(name="correction", number=1, threads=WARPGROUP_THREADS),
            NamedBarrier(name="tensor_memory", number=2, threads=(of_memory + 1) * WARP_THREADS),
            NamedBarrier(name="end", number=3, threads=of_memory * WARP_THREADS),
        ),
        roles=(
            _softmax(plan),
            _correct(plan),
            _multiply(plan, first),
            _load_blocks(first + 1),
            load_rows(first + 2),
        ),
        registers=_registers(plan),
    )


def _registers(plan: UmmaPlan) -> tuple[RegisterLimit, ...]:
    """Return the registers that warps change to, by warpgroup."""
    softmax, correction, others = UMMA_REGISTERS[plan.groups]
    first = plan.softmax_warps
    return (
        RegisterLimit(first_warp=0, warps=first, registers=softmax, change="increase"),
        RegisterLimit(first_warp=first, warps=CORRECTION_WARPS, registers=correction, change="decrease"),
        RegisterLimit(first_warp=first + CORRECTION_WARPS, warps=OTHER_WARPS, registers=others, change="decrease"),
    )


def _load(operand: str, behind: bool = False) -> tuple[Step, ...]:
    cursor = f"{operand}_fill"
    return Acquire(cursor), LoadBlock(operand, cursor, behind), Commit(cursor), Advance(cursor)


def _load_blocks(warp: int) -> Role:
    """Build the role that loads V of a block before K of the next one, the order in which MMAs read them."""
    return Role(
        name="load",
        first_warp=warp,
        warps=1,
        program=(
            SetUp("load_blocks"),
            Cursor("k_fill", "k", "producer"),
            Cursor("v_fill", "v", "producer"),
            WorkLoop(
                (*_load("k"), LoadLoop((*_load("v", behind=True), *_load("k"))), *_load("v"), NextTile()),
            ),
            Tail("k_fill"),
            Tail("v_fill"),
        ),
    )


def _output(plan: UmmaPlan, behind: bool = False) -> tuple[Step, ...]:
    """Return the steps that add a block to the output of a group, the last of which frees the block's values.

    Weights of a softmax are added after the correction of the output. Without a softmax, the output is handed over with
    its last block alone.
    """
    corrected: tuple[Step, ...] = (Acquire("output_fill"),) if plan.problem.softmax else ()
    committed: tuple[Step, ...] = (CommitMma("output_fill"),) if plan.problem.softmax or not behind else ()
    return (
        Wait("weights_read"),
        *corrected,
        TensorFence(after=True),
        OutputOfBlock("v_read", behind),
        *committed,
        LastGroup((Release("v_read"),)),
    )


def _multiply(plan: UmmaPlan, warp: int) -> Role:
    """Build the role that issues all MMAs: for each group the output of a block, then the scores of the next one.

    MMAs run in the order of their issue, so that the scores of a block overwrite weights that were read. The tensor pipe
    does so, while PTX promises it for one accumulator. The output waits for the weights and for the correction of the one
    before.
    """
    scores = (ScoreMma("k_read"), CommitMma("scores_fill"))
    queries = "queries_read" if plan.computes_queries else "q_read"
    computed: tuple[Step, ...] = (Cursor(queries, "queries", "consumer"),) if plan.computes_queries else ()
    read: tuple[Step, ...] = (Advance(queries),) if plan.computes_queries else ()
    free_q: tuple[Step, ...] = (GroupLoop((CommitMma("q_read"),)),) if plan.own_output else ()
    softmax = plan.problem.softmax
    ends = (Advance("v_read"), Advance("weights_read"), *((Advance("output_fill"),) if softmax else ()))
    begun = () if softmax else (GroupLoop((Acquire("output_fill"),)), Advance("output_fill"))
    both = GroupLoop((*_output(plan, behind=True), *scores))
    block = (Wait("v_read"), Wait("k_read"), both, Release("k_read"), Advance("k_read"), *ends)
    return Role(
        name="multiply",
        first_warp=warp,
        warps=1,
        program=(
            FindSums(),
            SetUp("multiply"),
            Cursor("k_read", "k", "consumer"),
            Cursor("v_read", "v", "consumer"),
            Cursor("weights_read", "weights", "consumer"),
            Cursor("output_fill", "output", "producer"),
            *computed,
            WorkLoop(
                (
                    Wait("k_read"),
                    GroupLoop((Wait(queries), *scores)),
                    *read,
                    Release("k_read"),
                    Advance("k_read"),
                    *begun,
                    LoadLoop(block),
                    *free_q,
                    Wait("v_read"),
                    GroupLoop(_output(plan)),
                    *ends,
                    NextTile(),
                )
            ),
        ),
    )


def _block(plan: UmmaPlan, masked: bool, first: bool = False) -> tuple[Step, ...]:
    """Return the steps of a block's softmax. The correction starts before the exponentials, the next MMA before the sum, unless
    weights are changed after that."""
    message: tuple[Step, ...] = (
        Acquire("message_fill"),
        WriteFactors(),
        Commit("message_fill"),
        Advance("message_fill"),
    )
    summed: tuple[Step, ...] = (AddWeights(first),) if plan.problem.needs_total else ()
    dropped: tuple[Step, ...] = ()
    if plan.problem.dropped is not None:
        dropped, summed = (*summed, DropWeights(first)), ()
    return (
        Wait("scores_read"),
        TensorFence(after=True),
        ReadScores(),
        Advance("scores_read"),
        Maxima(masked, first),
        *(() if first or not plan.problem.softmax else message),
        Exponentials(masked),
        *dropped,
        WriteWeights(),
        TensorFence(after=False),
        Commit("weights_fill"),
        *summed,
    )


def _softmax(plan: UmmaPlan) -> Role:
    parts = tuple(BlockLoop(part, _block(plan, masked=part != "free")) for part in plan.parts)
    totals = (Acquire("message_fill"), WriteTotals(), Commit("message_fill"), Advance("message_fill"))
    return Role(
        name="softmax",
        first_warp=0,
        warps=plan.softmax_warps,
        program=(
            AllocateSums(),
            FindSums(),
            SetUp("softmax"),
            Cursor("scores_read", "scores", "consumer"),
            Cursor("weights_fill", "weights", "producer"),
            Cursor("message_fill", "message", "producer"),
            WorkLoop((*_block(plan, masked=True, first=True), *parts, *totals, NextTile())),
            BarrierSync("end"),
            FreeSums(),
        ),
    )


def _correct(plan: UmmaPlan) -> Role:
    """Build the role that rescales the output of a block by the factors of the next one, and stores that of the last.

    It computes the queries of a tile first, where they have a formula.

    Outputs are in shared memory of their own, or in that of the queries, which no MMA reads after the last output.
    """
    own = plan.own_output

    def message(last: bool) -> tuple[Step, ...]:
        read = (Wait("message_read"), ReadMessage(last), Release("message_read"))
        return (*read, Wait("output_read"), TensorFence(after=True))

    given_back = (TensorFence(after=False), Release("output_read"))
    handed: tuple[Step, ...] = () if own else (StoreWait(0), Release("q_read"))
    stores = plan.groups - 1 if plan.splits == 1 else 0  # not every part stores
    before: tuple[Step, ...] = (FirstWarp((StoreWait(stores),)), BarrierSync("correction")) if own else ()
    stored = (FenceShared(), BarrierSync("correction"), FirstWarp((StoreOutput(), *handed)))
    advance = (Advance("message_read"), Advance("output_read"))
    finished: tuple[Step, ...] = (*before, FinishRow(), *given_back, *stored)
    if plan.splits > 1:
        finished = combined((*before, FinishRow(), *stored), BarrierSync("correction"), given_back)
    rescale: tuple[Step, ...] = ()
    if plan.problem.softmax:
        rescale = (LoadLoop((GroupLoop((*message(last=False), Rescale(), *given_back)), *advance)),)
    begin: tuple[Step, ...] = ()
    transform: tuple[Step, ...] = ()
    if plan.computes_queries:
        begin = (Cursor("queries_fill", "queries", "producer"),)
        computed = (Wait("q_read"), TransformQueries(), FenceShared(), Commit("queries_fill"))
        transform = (GroupLoop(computed), Advance("queries_fill"))
    return Role(
        name="correct",
        first_warp=plan.softmax_warps,
        warps=CORRECTION_WARPS,
        program=(
            FindSums(),
            SetUp("correct"),
            Cursor("message_read", "message", "consumer"),
            Cursor("output_read", "output", "consumer"),
            *begin,
            WorkLoop(
                (
                    *transform,
                    *rescale,
                    GroupLoop((*message(last=True), *finished)),
                    *advance,
                    NextTile(),
                )
            ),
            FirstWarp((StoreWait(0),)),
            BarrierSync("end"),
        ),
    )
