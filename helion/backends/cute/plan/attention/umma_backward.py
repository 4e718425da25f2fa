"""``plan_umma_backward``: the plan of attention's gradients on tcgen05, with products, left operands and sums in tensor memory.

A thread has an owned row. It writes the left operands of a block, rounded, over the products that they are computed from.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from ....._support.records import dataclass, replace
from .....hardware import Target
from ..counts import PipelineCounts
from ..records import SUM_BYTES
from ..refusal import Refusal
from ..shared import RING_ALIGNMENT_BYTES, WORD_BYTES, Allocation, placed
from .backward import VECTOR_MULTIPLE, BackwardChoice, BackwardPlan
from .build import KEY_STEP, LEAST_STAGES, MOST_STAGES
from .gradients import PRODUCTS, BackwardProblem, check_backward
from .records import ScorePlan
from .umma import SOFTMAX_WARPS, UMMA_GROUPS, UMMA_KEYS, UMMA_ROWS

OF_GROUPS = ("scores", "lefts", "output")
"""Pipelines with a stage for each group, other than that of the tile's rows."""


@dataclass(frozen=True, kw_only=True)
class UmmaBackwardPlan(BackwardPlan):
    """Gradients of attention on tcgen05 with every decision made."""

    tensor_memory_limit_columns: int

    __hash__ = ScorePlan.__hash__

    @property
    def group_rows(self) -> int:
        return UMMA_ROWS

    @property
    def product_columns(self) -> int:
        """Columns of tensor memory of one product of all groups. Left operands take half of them."""
        return self.groups * self.keys

    @property
    def memory_columns(self) -> int:
        """Columns of tensor memory that are used."""
        return self.first_column(len(self.problem.gradients))

    def first_column(self, gradient: int) -> int:
        """Return the first column of tensor memory of the sums of a gradient, after those before it."""
        columns = (self.problem.streamed[each.right].columns for each in self.problem.gradients[:gradient])
        return PRODUCTS * self.product_columns + self.groups * sum(columns)


def plan_umma_backward(problem: BackwardProblem, choice: BackwardChoice, target: Target) -> UmmaBackwardPlan:
    """Return the plan. Raises ``Refusal`` for what is not implemented on tcgen05, or does not fit."""
    check_backward(problem)
    for holds, part in _parts(problem):
        if holds:
            raise Refusal(f"gradients of attention {part} are implemented for wgmma, and not for tcgen05")
    _check_choice(problem, choice)
    cached = target.l2_bytes // (2 * sum(matrix.columns for matrix in problem.streamed) * 2)
    stages = range(MOST_STAGES, LEAST_STAGES - 1, -1) if choice.stages is None else (choice.stages,)
    for number in stages:
        found = UmmaBackwardPlan(
            problem=problem,
            groups=choice.groups,
            keys=choice.keys,
            stages=number,
            scheduler="static",
            heads_per_band=max(1, min(problem.batches, cached // max(1, problem.repeats * problem.keys))),
            cached_rows=cached,
            few_tiles=0,
            shared_limit_bytes=target.smem_per_block_bytes,
            registers_per_sm=target.registers_per_sm,
            registers_per_thread=target.max_registers_per_thread,
            tensor_memory_limit_columns=target.tensor_memory_columns,
        )
        if found.memory_columns > found.tensor_memory_limit_columns:
            raise Refusal(
                f"tiles of {found.rows} rows with blocks of {found.keys} rows need {found.memory_columns} columns of tensor"
                f" memory; a CTA has {found.tensor_memory_limit_columns}"
            )
        if umma_backward_bytes(found) <= found.shared_limit_bytes:
            return found
    raise Refusal(
        f"tiles of {found.rows} rows and blocks of {found.keys} with {found.stages} stages need"
        f" {umma_backward_bytes(found)} bytes of shared memory; a CTA has {found.shared_limit_bytes}"
    )


def _parts(problem: BackwardProblem) -> Iterator[tuple[object, str]]:
    """Yield parts of gradients, each with whether a problem has it."""
    added = "" if problem.atomic is None else problem.atomic.matrix.name
    yield problem.atomic is not None, f"that are added to {added} in memory"
    yield any(each.wide for each in problem.gradients), "in float32"
    yield problem.loop_outputs, "that are stored in the loop"
    yield len(problem.passes) > 1, "whose sums are too wide for one pass over the blocks"


def _check_choice(problem: BackwardProblem, choice: BackwardChoice) -> None:
    if not 1 <= choice.groups <= UMMA_GROUPS:
        raise Refusal(f"tiles of {UMMA_ROWS * choice.groups} rows; 128 and 256 are implemented on tcgen05")
    if choice.keys % KEY_STEP or not KEY_STEP <= choice.keys <= UMMA_KEYS:
        raise Refusal(
            f"blocks of {choice.keys} rows; multiples of {KEY_STEP} up to {UMMA_KEYS} are implemented on tcgen05"
        )
    if choice.stages is not None and not LEAST_STAGES <= choice.stages <= MOST_STAGES:
        raise Refusal(f"{choice.stages} stages of blocks; {LEAST_STAGES} to {MOST_STAGES} are implemented")
    if choice.scheduler != "static":
        raise Refusal("gradients of attention on tcgen05 have a static tile scheduler")


@functools.lru_cache(maxsize=1024)
def umma_backward_counts(plan: UmmaBackwardPlan) -> dict[str, PipelineCounts]:
    """Return the counts of the pipelines, by name. MMAs arrive once, when they are complete; warps once each."""
    owned = sum(matrix.columns for matrix in plan.problem.owned)
    row_bytes = UMMA_ROWS * owned * plan.operand_bytes
    once = PipelineCounts(stages=plan.groups, full_arrivals=1, empty_arrivals=0)
    found = {"rows": replace(once, empty_arrivals=1, transaction_bytes=row_bytes)}
    for name, matrix in plan.problem.blocks.items():
        vectors = len(plan.staged[name]) * plan.vector_rows * SUM_BYTES
        size = plan.keys * matrix.columns * plan.operand_bytes + vectors
        found[name] = PipelineCounts(stages=plan.stages, full_arrivals=1, empty_arrivals=1, transaction_bytes=size)
    return {**found, "scores": once, "lefts": replace(once, full_arrivals=SOFTMAX_WARPS), "output": once}


@functools.lru_cache(maxsize=1024)
def umma_backward_memory(plan: UmmaBackwardPlan) -> tuple[Allocation, ...]:
    """Return every allocation of shared memory, by offset."""
    width = plan.operand_bytes
    sizes = {f"own_{at}": plan.rows * matrix.columns for at, matrix in enumerate(plan.problem.owned)}
    sizes |= {name: plan.stages * plan.keys * matrix.columns for name, matrix in plan.problem.blocks.items()}
    wanted = [(f"shared_{name}", size * width, RING_ALIGNMENT_BYTES) for name, size in sizes.items()]
    vectors = [source for sources in plan.staged.values() for source in sources]
    size = plan.stages * plan.vector_pitch * SUM_BYTES
    wanted += [(f"shared_{source.label}", size, VECTOR_MULTIPLE * SUM_BYTES) for source in vectors]
    counts = umma_backward_counts(plan)
    wanted += [(f"{name}_barriers", each.barrier_words * WORD_BYTES, WORD_BYTES) for name, each in counts.items()]
    wanted.append(("tensor_memory_address", 4, 4))
    return tuple(placed(wanted))


def umma_backward_bytes(plan: UmmaBackwardPlan) -> int:
    """Return the bytes of shared memory, which the launch requests."""
    last = umma_backward_memory(plan)[-1]
    return last.offset_bytes + last.size_bytes
