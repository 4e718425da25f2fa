"""``plan_backward``: the plan of one choice of attention's gradients, its pipelines and shared memory.

Where the kernel adds the gradient of streamed rows to memory, the consumer groups exchange left operands through shared memory.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ....._support.records import dataclass, replace
from .....hardware import Target
from ..counts import PipelineCounts
from ..dtypes import itemsize
from ..records import SUM_BYTES, TMA_ALIGNMENT_BYTES, WGMMA_ROWS
from ..refusal import Refusal
from ..shared import RING_ALIGNMENT_BYTES, WORD_BYTES, Allocation, placed
from .build import (
    KEY_STEP,
    LEAST_STAGES,
    MOST_GROUPS,
    MOST_KEYS,
    MOST_MODES,
    MOST_STAGES,
    REGISTERS,
    TILE_SLOTS,
    blocks_counts,
)
from .gradients import ATOMIC_COLUMNS, STREAMED, AtomicSum, BackwardProblem, check_backward, estimated_registers
from .operands import Source
from .records import Scheduler, ScorePlan

ATOMIC_KEYS = 64
"""Streamed rows of a block whose gradient is added to memory: those of one MMA."""
TURNED_KEYS = 96
"""The same where MMAs compute the gradient transposed: the most whose accumulators two consumer groups hold. Half of them are
a multiple of 16, the columns of a swizzled line of left operands."""
EXCHANGE_STAGES = 2
"""Blocks of left operands in shared memory: one is written while the one before is multiplied."""
FEW_TILES = 8
"""Tiles of an SM up to which their order matters more than the L2 cache: tiles of a head visit the same blocks in turn."""
VECTOR_MULTIPLE = 32
VECTOR_STEP = TMA_ALIGNMENT_BYTES // SUM_BYTES
"""Multiples of elements at which stages of a staged source begin, and blocks in memory: others are illegal on an H200."""


def is_staging_kind(source: Source) -> bool:
    """Return whether a source has one fp32 number for each streamed row, contiguous."""
    return source.kind == "key" and source.dtype == "float32" and source.pitches[1] == 1


def _is_staged(source: Source) -> bool:
    """Return whether TMA can load blocks of a source."""
    strides = (source.offset, *(mode.stride for mode in source.modes))
    aligned = all(stride * SUM_BYTES % TMA_ALIGNMENT_BYTES == 0 for stride in strides)
    return is_staging_kind(source) and aligned and 1 + len(source.modes) <= MOST_MODES


@dataclass(frozen=True, kw_only=True)
class BackwardChoice:
    """The tunable decisions of a config; None means the most that fits."""

    groups: int
    """Consumer warpgroups, of 64 owned rows each."""
    keys: int
    """Streamed rows of a block."""
    stages: int | None = None
    scheduler: Scheduler = "static"


@dataclass(frozen=True, kw_only=True)
class BackwardPlan(ScorePlan):
    """Gradients of attention with every decision made. Immutable and hashable; contains no generated text."""

    problem: BackwardProblem
    groups: int
    keys: int
    stages: int
    """Pipeline stages of each streamed matrix."""
    scheduler: Scheduler
    heads_per_band: int
    cached_rows: int
    """Streamed rows of a head that stay in the L2 cache, counted once for each repetition."""
    few_tiles: int
    """Tiles of a launch up to which all heads are in one band, if tiles differ in length."""
    shared_limit_bytes: int
    registers_per_sm: int
    registers_per_thread: int
    splits: int = 1
    own_output: bool = False

    __hash__ = ScorePlan.__hash__

    @property
    def operand_bytes(self) -> int:
        return itemsize(self.problem.owned[0].dtype)

    @functools.cached_property
    def staged(self) -> dict[str, tuple[Source, ...]]:
        """Sources that TMA loads with the blocks of each pipeline: numbers per streamed row, contiguous in fp32.

        The first product's values read those of the first pipeline. Both pipelines' stages have to be in use until after
        the last values are computed, as with two gradients. Of spans they are loaded where a gradient is added to memory:
        threads have no registers for their addresses then.
        """
        spanned = self.problem.spans_keys and self.problem.atomic is None
        if len(self.problem.gradients) < len(STREAMED) or spanned:
            return dict.fromkeys(STREAMED, ())
        formula = self.problem.formula
        found: dict[str, list[Source]] = {name: [] for name in STREAMED}
        for at, source in enumerate(formula.sources):
            if _is_staged(source):
                found[STREAMED[0 if self.problem.feeds_early(formula.starts + at) else 1]].append(source)
        return {name: tuple(sources) for name, sources in found.items()}

    @property
    def moves_vectors(self) -> bool:
        """True if blocks of staged sources begin at a loaded row, before which TMA reads up to the next aligned one."""
        return self.problem.key_range is not None and self.problem.key_range.begins is not None

    @property
    def vector_rows(self) -> int:
        """Elements of a staged source that TMA loads for a block."""
        return self.keys + (VECTOR_STEP if self.moves_vectors else 0)

    @property
    def vector_pitch(self) -> int:
        """Elements from one stage of a staged source to the next, a multiple of the alignment of TMA."""
        return -(-self.vector_rows // VECTOR_MULTIPLE) * VECTOR_MULTIPLE

    @property
    def orders_by_length(self) -> bool:
        return not self.problem.band.is_whole

    @property
    def is_limited(self) -> bool:
        return self.problem.spans_keys

    @property
    def clears_rows(self) -> bool:
        """True if owned rows without streamed rows are cleared: they may be no numbers, as rows of no sequence are, and the
        gradient of streamed rows adds over them."""
        return self.problem.atomic is not None and self.problem.spans_keys

    @property
    def turned(self) -> bool:
        """True if MMAs compute the gradient that is added to memory transposed: consumer groups share its streamed rows, since
        it has no 64 columns for each."""
        atomic = self.problem.atomic
        return atomic is not None and atomic.matrix.columns < ATOMIC_COLUMNS * self.groups

    @property
    def overlap(self) -> bool:
        """True if the MMAs of a block's gradient are in flight while the next block's first product is issued. Those of two
        gradients are not, since ptxas serializes MMAs with two accumulators in flight at a loop's edge."""
        return self.problem.atomic is None and all(len(chosen) == 1 for chosen in self.problem.passes)


def plan_backward(problem: BackwardProblem, choice: BackwardChoice, target: Target) -> BackwardPlan:
    """Return the plan. Raises ``Refusal`` for a choice that is not implemented or does not fit."""
    check_backward(problem)
    if not target.has("wgmma"):
        raise Refusal(f"gradients of attention are implemented for wgmma, which {target} does not have")
    _check_choice(problem, choice)
    row_bytes = sum(matrix.columns for matrix in problem.streamed) * itemsize(problem.streamed[0].dtype)
    row_bytes += 0 if problem.atomic is None else problem.atomic.matrix.columns * SUM_BYTES
    cached = target.l2_bytes // (2 * row_bytes)
    few = 0 if problem.band.is_whole else FEW_TILES * target.num_sms
    stages = range(MOST_STAGES, LEAST_STAGES - 1, -1) if choice.stages is None else (choice.stages,)
    for number in stages:
        found = BackwardPlan(
            problem=problem,
            groups=choice.groups,
            keys=choice.keys,
            stages=number,
            scheduler=choice.scheduler,
            heads_per_band=_heads_per_band(problem, WGMMA_ROWS * choice.groups, cached, few),
            cached_rows=cached,
            few_tiles=few,
            shared_limit_bytes=target.smem_per_block_bytes,
            registers_per_sm=target.registers_per_sm,
            registers_per_thread=target.max_registers_per_thread,
        )
        if backward_bytes(found) <= found.shared_limit_bytes:
            return found
    raise Refusal(
        f"tiles of {found.rows} rows and blocks of {found.keys} with {found.stages} stages need {backward_bytes(found)}"
        f" bytes of shared memory; a CTA has {found.shared_limit_bytes}"
    )


def _check_choice(problem: BackwardProblem, choice: BackwardChoice) -> None:
    if not 1 <= choice.groups <= MOST_GROUPS:
        raise Refusal(f"tiles of {WGMMA_ROWS * choice.groups} rows; 64, 128 and 192 are implemented")
    if choice.keys % KEY_STEP or not KEY_STEP <= choice.keys <= MOST_KEYS:
        raise Refusal(f"blocks of {choice.keys} rows; multiples of {KEY_STEP} up to {MOST_KEYS} are implemented")
    if choice.stages is not None and not LEAST_STAGES <= choice.stages <= MOST_STAGES:
        raise Refusal(f"{choice.stages} stages of blocks; {LEAST_STAGES} to {MOST_STAGES} are implemented")
    if problem.atomic is not None:
        _check_atomic_choice(problem, problem.atomic, choice)
    needed, most = backward_registers(problem, choice.keys), REGISTERS[choice.groups][1]
    if needed > most:
        raise Refusal(
            f"{choice.groups} consumer groups with blocks of {choice.keys} rows need {needed} registers per thread; they"
            f" have {most}"
        )


def _check_atomic_choice(problem: BackwardProblem, atomic: AtomicSum, choice: BackwardChoice) -> None:
    columns = [problem.streamed[each.right].columns for each in problem.gradients]
    groups, keys = atomic_tile(problem.owned[atomic.right].columns, columns, problem.draws)
    if choice.groups != groups:
        raise Refusal(
            f"tiles of {WGMMA_ROWS * choice.groups} rows; a kernel that adds to {atomic.matrix.name}, of"
            f" {atomic.matrix.columns} dimensions, has tiles of {WGMMA_ROWS * groups}"
        )
    if choice.keys != keys:
        raise Refusal(f"blocks of {choice.keys} rows; a kernel that adds to {atomic.matrix.name} has blocks of {keys}")


def atomic_tile(added: int, columns: Sequence[int], draws: bool = False) -> tuple[int, int]:
    """Return the consumer groups and the streamed rows of a block where the gradient of streamed rows, of ``added`` columns, is
    added to memory. ``columns`` are those of the tile's own gradients."""
    fits = estimated_registers(columns, TURNED_KEYS, atomic=True, draws=draws) <= REGISTERS[2][1]
    if added == ATOMIC_COLUMNS and fits:
        return 2, TURNED_KEYS
    return max(1, added // ATOMIC_COLUMNS), ATOMIC_KEYS


def least_choice(problem: BackwardProblem) -> BackwardChoice:
    """Return the choice of the fewest registers and the least shared memory."""
    if problem.atomic is None:
        return BackwardChoice(groups=1, keys=KEY_STEP)
    columns = [problem.streamed[each.right].columns for each in problem.gradients]
    groups, keys = atomic_tile(problem.owned[problem.atomic.right].columns, columns, problem.draws)
    return BackwardChoice(groups=groups, keys=keys)


def backward_registers(problem: BackwardProblem, keys: int) -> int:
    """Return the estimated registers of a consumer thread."""
    columns = [problem.streamed[each.right].columns for each in problem.gradients]
    atomic, stores = problem.atomic is not None, bool(problem.loop_outputs)
    spans = problem.spans_keys
    return estimated_registers(columns, keys, atomic=atomic, draws=problem.draws, stores=stores, spans=spans)


def _heads_per_band(problem: BackwardProblem, rows: int, cached_rows: int, few_tiles: int) -> int:
    """Return the heads whose streamed matrices stay in the L2 cache together.

    All heads are in one band where SMs have few tiles of different lengths. Else the longest tiles of the last band would
    begin when other SMs have none left.
    """
    tiles = -(-problem.queries // rows) * problem.batches
    if tiles <= few_tiles:
        return max(1, problem.batches)
    return max(1, min(problem.batches, cached_rows // max(1, problem.repeats * problem.keys)))


@functools.lru_cache(maxsize=1024)
def backward_counts(plan: BackwardPlan) -> dict[str, PipelineCounts]:
    """Return the counts of the pipelines of ``plan``, by name."""
    columns = sum(matrix.columns for matrix in plan.problem.owned)
    found = {
        "rows": PipelineCounts(
            stages=plan.groups,
            full_arrivals=1,
            empty_arrivals=1,
            transaction_bytes=WGMMA_ROWS * columns * plan.operand_bytes,
        )
    }
    for name, matrix in plan.problem.blocks.items():
        blocks, vectors = blocks_counts(plan, matrix.columns), len(plan.staged[name]) * plan.vector_rows * SUM_BYTES
        found[name] = replace(blocks, transaction_bytes=blocks.transaction_bytes + vectors)
    if plan.problem.atomic is not None:
        found["exchange"] = PipelineCounts(stages=EXCHANGE_STAGES, full_arrivals=plan.consumer_warps, empty_arrivals=0)
    if plan.scheduler == "dynamic":
        found["tile"] = PipelineCounts(stages=TILE_SLOTS, full_arrivals=1, empty_arrivals=1 + plan.consumer_warps)
    return found


@functools.lru_cache(maxsize=1024)
def backward_memory(plan: BackwardPlan) -> tuple[Allocation, ...]:
    """Return every allocation of ``plan``, by offset."""
    numbers, width = backward_counts(plan), plan.operand_bytes
    wanted = [
        (f"shared_own_{at}", plan.rows * matrix.columns * width, RING_ALIGNMENT_BYTES)
        for at, matrix in enumerate(plan.problem.owned)
    ]
    wanted += [
        (f"shared_{name}", plan.stages * plan.keys * matrix.columns * width, RING_ALIGNMENT_BYTES)
        for name, matrix in plan.problem.blocks.items()
    ]
    if plan.problem.atomic is not None:
        columns = plan.problem.atomic.matrix.columns
        wanted.append(("shared_exchange", EXCHANGE_STAGES * plan.rows * plan.keys * width, RING_ALIGNMENT_BYTES))
        wanted.append(("shared_sum", plan.keys * columns * SUM_BYTES, RING_ALIGNMENT_BYTES))
    vectors = [source for sources in plan.staged.values() for source in sources]
    size = plan.stages * plan.vector_pitch * SUM_BYTES
    wanted += [(f"shared_{source.label}", size, VECTOR_MULTIPLE * SUM_BYTES) for source in vectors]
    wanted += [(f"{name}_barriers", each.barrier_words * WORD_BYTES, WORD_BYTES) for name, each in numbers.items()]
    if plan.scheduler == "dynamic":
        wanted.append(("tile_slots", 4 * TILE_SLOTS, WORD_BYTES))
    return tuple(placed(wanted))


def backward_bytes(plan: BackwardPlan) -> int:
    """Return the total bytes of shared memory, which the launch requests."""
    last = backward_memory(plan)[-1]
    return last.offset_bytes + last.size_bytes
