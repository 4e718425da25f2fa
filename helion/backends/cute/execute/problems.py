"""The GEMM that a launch computes, with its launch-time numbers, and checks that the kernel can take them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from ..plan import copied, epilogue, records
from ..plan.attention import backward, operands
from ..plan.attention import numbers as launch_numbers
from ..plan.attention import records as attention
from ..plan.attention.backward import BackwardProblem, check_backward
from ..plan.attention.build import check_problem as check_attention
from ..plan.attention.launch import check_launch
from ..plan.attention.numbers import filled as filled_attention
from ..plan.attention.records import AttentionProblem, ScoreProblem
from ..plan.build import check_problem
from ..plan.chained import records as chained
from ..plan.finish import counts_rows
from ..plan.records import GemmProblem
from ..plan.refusal import Refusal
from ..plan.rowwise import records as row_records
from ..plan.rowwise.records import SIZE_N, RowProblem
from ..plan.runtime import check_row_ends, filled
from ..toolchain.kernel import GemmKernel


class Problem(Protocol):
    """The computation of a kernel, of any shape."""

    @property
    def runtime(self) -> tuple[str, ...]:
        """Names of the integers that each launch passes, in order."""
        ...

    @property
    def argument_names(self) -> tuple[str, ...]:
        """Names of the tensors and scalars of a launch for messages, in order."""
        ...

    @property
    def outputs_at(self) -> range:
        """Positions of the outputs among the arguments of a launch."""
        ...


#: Names in the text of a problem.
_RECORDS: dict[str, object] = {"inf": math.inf} | {
    name: value
    for module in (chained, records, epilogue, copied, operands, attention, backward, launch_numbers, row_records)
    for name, value in vars(module).items()
    if isinstance(value, type)
}

#: Arguments of a launch: tensors, fp32 scalars, and launch-time integers.
Given = torch.Tensor | float


@functools.lru_cache(maxsize=256)
def problem_of(text: str) -> Problem:
    """Return the problem that a kernel's text describes."""
    problem: Problem = eval(text, dict(_RECORDS))
    return problem


def split(kernel: GemmKernel, given: Sequence[Given]) -> tuple[Sequence[Given], tuple[int, ...]]:
    """Return the tensors and scalars, and the launch-time integers in the order of ``plan.runtime``."""
    integers = len(problem_of(kernel.problem).runtime)
    at = len(given) - integers
    return given[:at], tuple(int(each) for each in given[at:])


@functools.lru_cache(maxsize=256)
def names_of(kernel: GemmKernel) -> tuple[str, ...]:
    """Return the names of the tensors and scalars of a launch for messages, in order."""
    return problem_of(kernel.problem).argument_names


@functools.lru_cache(maxsize=256)
def has_messages(kernel: GemmKernel) -> bool:
    """Return whether a kernel waits for peers, or signals to them."""
    problem = problem_of(kernel.problem)
    return isinstance(problem, GemmProblem) and bool(problem.epilogue.words)


@functools.lru_cache(maxsize=1024)
def launched(kernel: GemmKernel, integers: tuple[int, ...]) -> Problem:
    """Return the problem of a launch. Raises ``Refusal`` for sizes and strides that the kernel cannot take.

    It is kept, since filling in and checking a problem takes longer than a small kernel runs.
    """
    problem = problem_of(kernel.problem)
    if problem.runtime and isinstance(problem, ScoreProblem):
        return _attention(problem, integers)
    if isinstance(problem, RowProblem):
        check_columns(problem, dict(zip(problem.runtime, integers, strict=True)))
    if not problem.runtime or not isinstance(problem, GemmProblem):
        return problem
    found = filled(problem, dict(zip(problem.runtime, integers, strict=True)))
    if counts_rows(problem) and found.m > problem.m:
        raise Refusal(f"{found.m} rows in memory, of which the workspace of this kernel has room for {problem.m}")
    check_problem(found)
    for output in found.outputs_of("exact"):
        check_row_ends(found, output)
    if problem.batch is not None and found.batch is not None:
        moved = zip(_batch_strides(problem), _batch_strides(found), strict=True)
        if any(bool(example) != bool(number) for example, number in moved):
            raise Refusal(
                "matmuls of the batch share operands that the kernel was compiled to read separately for each"
            )
    return found


def check_columns(problem: RowProblem, numbers: Mapping[str, int]) -> None:
    """Check that a kernel is for the columns of a launch. Raises ``Refusal``."""
    n = numbers.get(SIZE_N, problem.n)
    each = problem.lanes if problem.n % problem.lanes == 0 else 1
    if problem.columns_at_launch and not (problem.least <= n <= problem.n and n % each == 0):
        raise Refusal(
            f"rows of {n} columns, and this kernel is for {problem.least} to {problem.n}, in multiples of {each}"
        )


def _attention(problem: ScoreProblem, integers: Sequence[int]) -> ScoreProblem:
    found = filled_attention(problem, dict(zip(problem.runtime, integers, strict=True)))
    check_launch(found)
    if isinstance(found, BackwardProblem):
        check_backward(found)
    elif isinstance(found, AttentionProblem):
        check_attention(found)
    return found


def _batch_strides(problem: GemmProblem) -> tuple[int, ...]:
    assert problem.batch is not None
    return (problem.batch.a, problem.batch.b, problem.batch.d, *problem.batch.operands)
