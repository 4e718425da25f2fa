"""``plan_umma_attention``: the plan of attention on tcgen05, with scores, weights and outputs in tensor memory.

A tile has one or two groups of 128 queries. A thread of a softmax warp has the scores of one query in registers. It
writes their weights, rounded, over the scores in tensor memory, which the next MMA reads as its left operand.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Protocol

from ....._support.records import dataclass, replace
from .....hardware import Target
from ..counts import PipelineCounts
from ..dtypes import DTYPES, itemsize
from ..records import WARP_THREADS
from ..refusal import Refusal
from ..shared import RING_ALIGNMENT_BYTES, WORD_BYTES, Allocation, placed
from .build import (
    KEY_STEP,
    LEAST_STAGES,
    cached_rows,
    check_problem,
    check_splits,
    heads_per_band,
    key_step,
    may_share,
    takes_lazy,
)
from .records import AttentionChoice, AttentionPlan, AttentionProblem, ScorePlan

UMMA_ROWS = 128
"""Queries of a group: the rows of an MMA of one CTA, and the lanes of tensor memory."""
UMMA_GROUPS, UMMA_KEYS = 2, 128
"""The most groups and keys of a block. A thread has all scores of a query in registers."""
UMMA_STAGES = 6
SOFTMAX_WARPS, CORRECTION_WARPS = 4, 4
"""Warps of a group that compute weights, and those that rescale and store the outputs of all groups."""
UMMA_REGISTERS = {1: (224, 160, 120), 2: (192, 88, 40)}
"""Registers of a thread that computes weights, of one that corrects outputs, and of one that loads or issues MMAs, by
groups: the register file holds them all."""
MESSAGE_VALUES = 3
"""Numbers of a query from its softmax to its correction: a factor or a sum, a maximum, and the factor that restores it."""
MESSAGE_ALIGNMENT_BYTES = 16
EXPONENTIALS, MOST_POLYNOMIAL = 16, 6
"""Consecutive exponentials of which ``polynomial`` are computed by one, and the most of these (measurement
``umma_registers``)."""
FP32_PER_SPECIAL = 8
"""Lanes of fp32 for each lane of the special function unit, on every GPU since Volta (CUDA programming guide, arithmetic
throughput: 128 and 16 results per clock)."""
ISSUED, ISSUED_MORE = 3.5, 4.5
"""Instructions of a thread for each score, and those that a polynomial adds in place of one of the special function
unit. Both are counted in the printed code, with operations on pairs of fp32 as one."""
HAND_OVER_US = 0.15
"""Latency of a block that nothing hides: from the MMAs to the softmax, and back. It is an estimate, of three barriers and a
load of tensor memory, that no measurement supports."""
OVERLAP = 4.0
"""Exponent of the norm that combines the times of units that overlap, as fitted on Hopper (``resources.attention``)."""


@dataclass(frozen=True, kw_only=True)
class UmmaChoice(AttentionChoice):
    """The tunable decisions of a config; ``groups`` are of 128 queries, and None means the best by the model."""

    polynomial: int | None = None


@dataclass(frozen=True, kw_only=True)
class UmmaPlan(AttentionPlan):
    """An attention on tcgen05 with every decision made."""

    polynomial: int
    """Of each ``EXPONENTIALS`` of a query, those that a polynomial computes on the fp32 pipe."""
    tensor_memory_limit_columns: int
    tensor_share: float
    """Predicted share of the tensor pipe in the time of a block."""

    __hash__ = ScorePlan.__hash__

    @property
    def group_rows(self) -> int:
        return UMMA_ROWS

    @property
    def takes_quads(self) -> bool:
        """False: a thread has all scores of a query, in their order."""
        return False

    @property
    def adds_products(self) -> bool:
        """False: MMAs of all types add in fp32."""
        return False

    @property
    def computes_queries(self) -> bool:
        """True if threads replace the queries in shared memory by their formula."""
        return bool(self.problem.query.instructions)

    @property
    def partial_values(self) -> int:
        """The accumulators of a row, its maximum and its sum."""
        return self.problem.v.columns + 2

    @property
    def softmax_warps(self) -> int:
        return SOFTMAX_WARPS * self.groups

    @property
    def score_columns(self) -> int:
        """First columns of tensor memory: the scores of all groups, which weights take half of."""
        return self.groups * self.keys

    @property
    def memory_columns(self) -> int:
        """Columns of tensor memory that are used."""
        return self.score_columns + self.groups * self.problem.v.columns


@dataclass(frozen=True, kw_only=True)
class UmmaCounts:
    """Counts of the pipelines. Those of Q, of scores, weights, messages and outputs have a stage for each group."""

    q: PipelineCounts
    k: PipelineCounts
    v: PipelineCounts
    queries: PipelineCounts
    """Queries that threads have computed."""
    scores: PipelineCounts
    weights: PipelineCounts
    message: PipelineCounts
    output: PipelineCounts


def plan_umma_attention(problem: AttentionProblem, choice: UmmaChoice, target: Target) -> UmmaPlan:
    """Return the plan. Raises ``Refusal`` for what is not implemented on tcgen05, or does not fit."""
    check_problem(problem)
    _check_parts(problem, target)
    _check_choice(problem, choice, target)
    cached = cached_rows(problem, target)
    columns, operations = (problem.q.columns, problem.v.columns), len(problem.score.instructions)
    polynomial = choice.polynomial
    if polynomial is None:
        polynomial = (
            best_polynomial(columns, choice.keys, operations, problem.q.dtype, target) if problem.softmax else 0
        )
    time = block_time(columns, choice.keys, operations, polynomial, problem.q.dtype, target)
    time = time if problem.softmax else replace(time, special=0.0)
    found: UmmaPlan | None = None
    stages = range(UMMA_STAGES, LEAST_STAGES - 1, -1) if choice.stages is None else (choice.stages,)
    for own, number in ((own, number) for own in (True, False) for number in stages):
        if not own and (choice.splits > 1 or not may_share(problem)):
            continue
        found = UmmaPlan(
            problem=problem,
            groups=choice.groups,
            keys=choice.keys,
            stages=number,
            pingpong=choice.groups > 1,
            lazy=choice.lazy,
            scheduler="static",
            splits=choice.splits,
            own_output=own,
            heads_per_band=heads_per_band(problem, cached),
            cached_rows=cached,
            shared_limit_bytes=target.smem_per_block_bytes,
            registers_per_sm=target.registers_per_sm,
            registers_per_thread=target.max_registers_per_thread,
            polynomial=polynomial,
            tensor_memory_limit_columns=target.tensor_memory_columns,
            tensor_share=time.tensor / time.of_groups(choice.groups) * choice.groups,
        )
        if umma_bytes(found) <= found.shared_limit_bytes:
            return found
    assert found is not None
    raise Refusal(
        f"tiles of {found.rows} queries and {found.keys} keys with {found.stages} stages need {umma_bytes(found)} bytes"
        f" of shared memory; a CTA has {found.shared_limit_bytes}"
    )


def _check_parts(problem: AttentionProblem, target: Target) -> None:
    """Check that a problem has none of the parts that are implemented for wgmma alone. Raises ``Refusal``."""
    needed = problem.v.columns + key_step(problem)
    if needed > target.tensor_memory_columns:
        raise Refusal(
            f"attention with values of {problem.v.columns} dimensions needs {needed} columns of tensor memory with the shortest"
            f" blocks, of {key_step(problem)} keys; a CTA has {target.tensor_memory_columns}. It is implemented for wgmma"
        )
    for holds, part in _parts(problem):
        if holds:
            raise Refusal(f"attention {part} is implemented for wgmma, and not for tcgen05")


def _parts(problem: AttentionProblem) -> Iterator[tuple[object, str]]:
    """Yield parts of attention, each with whether a problem has it."""
    yield problem.latent, "whose values are columns of its keys"
    yield problem.rounded, f"whose p @ v is rounded to {problem.rounded} before it is added"


def _check_choice(problem: AttentionProblem, choice: UmmaChoice, target: Target) -> None:
    if not 1 <= choice.groups <= UMMA_GROUPS:
        raise Refusal(f"tiles of {UMMA_ROWS * choice.groups} queries; 128 and 256 are implemented on tcgen05")
    if choice.keys % KEY_STEP or not KEY_STEP <= choice.keys <= UMMA_KEYS:
        raise Refusal(
            f"blocks of {choice.keys} keys; multiples of {KEY_STEP} up to {UMMA_KEYS} are implemented on tcgen05"
        )
    if choice.keys % (step := DTYPES[problem.q.dtype].mma_k):
        raise Refusal(f"blocks of {choice.keys} keys in {problem.q.dtype}; multiples of {step} are implemented")
    if choice.stages is not None and not LEAST_STAGES <= choice.stages <= UMMA_STAGES:
        raise Refusal(f"{choice.stages} stages of K and V; {LEAST_STAGES} to {UMMA_STAGES} are implemented on tcgen05")
    pages = problem.k.pages
    if pages is not None and pages.size % choice.keys:
        raise Refusal(f"blocks of {choice.keys} keys in pages of {pages.size}; a block is implemented within a page")
    if choice.splits > 1:
        check_splits(problem, choice, UMMA_ROWS * choice.groups, choice.groups)
    if choice.polynomial is not None and (choice.polynomial % 2 or not 0 <= choice.polynomial <= MOST_POLYNOMIAL):
        raise Refusal(
            f"{choice.polynomial} of {EXPONENTIALS} exponentials by a polynomial; even numbers up to {MOST_POLYNOMIAL} are"
            " implemented"
        )
    if not problem.softmax and (choice.lazy or choice.polynomial or choice.splits > 1):
        raise Refusal(
            "tcgen05_lazy_rescale, tcgen05_polynomial and tcgen05_key_splits are implemented for weights of a softmax"
        )
    if choice.lazy and not takes_lazy(problem):
        raise Refusal(
            f"tcgen05_lazy_rescale with weights in {problem.q.dtype} of up to 2**{problem.lift:g} is out of range"
        )
    columns = choice.groups * (choice.keys + problem.v.columns)
    if columns > target.tensor_memory_columns:
        raise Refusal(
            f"tiles of {UMMA_ROWS * choice.groups} queries with blocks of {choice.keys} keys and {problem.v.columns} columns"
            f" need {columns} columns of tensor memory; a CTA has {target.tensor_memory_columns}"
        )


# Time ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BlockTime:
    """The microseconds of a group's block on the units of an SM. They overlap, since groups take turns."""

    tensor: float
    """The tensor pipe: its rate, or that of its operands in shared memory."""
    special: float
    issue: float

    @property
    def all(self) -> float:
        """The time of a block of one of several groups: a norm of those of its units."""
        return float(sum(each**OVERLAP for each in (self.tensor, self.special, self.issue)) ** (1 / OVERLAP))

    def of_groups(self, groups: int) -> float:
        """Return the time of a block of all groups. That of one group overlaps with nothing."""
        return HAND_OVER_US + (groups * self.all if groups > 1 else self.tensor + max(self.special, self.issue))


def block_time(
    columns: tuple[int, int], keys: int, operations: int, polynomial: int, dtype: str, target: Target
) -> BlockTime:
    """Return the times of a block of ``keys``, with ``columns`` of q and of v and a formula of ``operations``.

    For each lane of fp32 and clock, one instruction is issued, and one byte of shared memory is read.
    """
    lanes_per_us = target.fp32_tflops * 1e6 / 2 / target.num_sms
    share, scores = polynomial / EXPONENTIALS, UMMA_ROWS * keys
    multiplied = 2 * scores * sum(columns) * target.num_sms / (target.matrix_tflops_for(dtype) * 1e6)
    read = itemsize(dtype) * (UMMA_ROWS * columns[0] + keys * sum(columns)) / lanes_per_us
    return BlockTime(
        tensor=max(multiplied, read),
        special=scores * (1 - share) * FP32_PER_SPECIAL / lanes_per_us,
        issue=scores * (ISSUED + ISSUED_MORE * share + operations) / lanes_per_us,
    )


def best_polynomial(columns: tuple[int, int], keys: int, operations: int, dtype: str, target: Target) -> int:
    """Return the number of exponentials by a polynomial with the least predicted time."""
    return min(
        range(0, MOST_POLYNOMIAL + 1, 2),
        key=lambda each: block_time(columns, keys, operations, each, dtype, target).all,
    )


# Pipelines and memory --------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def umma_counts(plan: UmmaPlan) -> UmmaCounts:
    """Return the counts of ``plan``. MMAs arrive once, when they are complete; warps once each."""
    return UmmaCounts(
        q=PipelineCounts(
            stages=plan.groups,
            full_arrivals=1,
            empty_arrivals=1,
            transaction_bytes=UMMA_ROWS * plan.problem.q.columns * plan.operand_bytes,
        ),
        k=_blocks_counts(plan, plan.problem.k.columns),
        v=_blocks_counts(plan, plan.problem.v.columns),
        queries=PipelineCounts(stages=plan.groups, full_arrivals=CORRECTION_WARPS, empty_arrivals=0),
        scores=PipelineCounts(stages=plan.groups, full_arrivals=1, empty_arrivals=0),
        weights=PipelineCounts(stages=plan.groups, full_arrivals=SOFTMAX_WARPS, empty_arrivals=0),
        message=PipelineCounts(stages=plan.groups, full_arrivals=SOFTMAX_WARPS, empty_arrivals=CORRECTION_WARPS),
        output=PipelineCounts(stages=plan.groups, full_arrivals=1, empty_arrivals=CORRECTION_WARPS),
    )


def _blocks_counts(plan: UmmaPlan, columns: int) -> PipelineCounts:
    return PipelineCounts(
        stages=plan.stages,
        full_arrivals=1,
        empty_arrivals=1,
        transaction_bytes=plan.keys * columns * plan.operand_bytes,
    )


@functools.lru_cache(maxsize=1024)
def umma_memory(plan: UmmaPlan) -> tuple[Allocation, ...]:
    """Return every allocation of shared memory, by offset."""
    numbers = umma_counts(plan)
    rings = {"k": numbers.k, "v": numbers.v}
    wanted = [("shared_q", plan.groups * numbers.q.transaction_bytes, RING_ALIGNMENT_BYTES)]
    if plan.own_output:
        output = plan.problem.matrix
        size = plan.rows * output.matrix.columns * itemsize(output.dtype)
        wanted.append(("shared_o", size, RING_ALIGNMENT_BYTES))
    wanted += [
        (f"shared_{name}", plan.stages * ring.transaction_bytes, RING_ALIGNMENT_BYTES) for name, ring in rings.items()
    ]
    wanted.append(("shared_message", 4 * MESSAGE_VALUES * plan.rows, MESSAGE_ALIGNMENT_BYTES))
    if plan.splits > 1:
        wanted.append(("shared_counts", 4 * plan.groups, WORD_BYTES))
    computed = ["queries"] if plan.computes_queries else []
    for name in ("q", "k", "v", *computed, "scores", "weights", "message", "output"):
        ring = getattr(numbers, name)
        wanted.append((f"{name}_barriers", ring.barrier_words * WORD_BYTES, WORD_BYTES))
    wanted.append(("tensor_memory_address", 4, 4))
    return tuple(placed(wanted))


def umma_bytes(plan: UmmaPlan) -> int:
    """Return the bytes of shared memory, which the launch requests."""
    last = umma_memory(plan)[-1]
    return last.offset_bytes + last.size_bytes


class InTensorMemory(Protocol):
    """A plan whose kernel uses tensor memory."""

    @property
    def memory_columns(self) -> int: ...


def allocated_columns(plan: InTensorMemory) -> int:
    """Return the columns of tensor memory that a CTA allocates: a power of two, at least 32."""
    return max(WARP_THREADS, 1 << (plan.memory_columns - 1).bit_length())
