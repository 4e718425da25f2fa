"""The GEMM that a launch computes, with its launch-time numbers, and checks that the kernel can take them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from ...._support.lazy import lazy
from ..plan import records
from ..plan.records import GemmProblem
from ..plan.refusal import Refusal
from ..toolchain.kernel import GemmKernel

if TYPE_CHECKING:
    from ..plan import build, copied, epilogue, finish
    from ..plan import runtime as sizes
    from ..plan.attention import backward, launch, numbers, operands, row_values
    from ..plan.attention import build as attention_build
    from ..plan.attention import records as attention
    from ..plan.attention.records import ScoreProblem
    from ..plan.chained import records as chained
    from ..plan.rowwise import records as rowwise
    from ..plan.rowwise.records import RowProblem
else:
    # a launch needs the records of its own problem alone
    build = lazy("helion.backends.cute.plan.build")
    copied = lazy("helion.backends.cute.plan.copied")
    epilogue = lazy("helion.backends.cute.plan.epilogue")
    finish = lazy("helion.backends.cute.plan.finish")
    sizes = lazy("helion.backends.cute.plan.runtime")
    backward = lazy("helion.backends.cute.plan.attention.gradients")
    launch = lazy("helion.backends.cute.plan.attention.launch")
    numbers = lazy("helion.backends.cute.plan.attention.numbers")
    operands = lazy("helion.backends.cute.plan.attention.operands")
    row_values = lazy("helion.backends.cute.plan.attention.row_values")
    attention_build = lazy("helion.backends.cute.plan.attention.build")
    attention = lazy("helion.backends.cute.plan.attention.records")
    chained = lazy("helion.backends.cute.plan.chained.records")
    rowwise = lazy("helion.backends.cute.plan.rowwise.records")


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


#: Modules with the records of problems, in the order in which names are looked up.
_MODULES = (epilogue, copied, records, operands, attention, numbers, rowwise, backward, row_values, chained)


class _Records(dict[str, object]):
    """Names in the text of a problem; the modules that define them are imported on first use."""

    def __missing__(self, name: str) -> object:
        for module in _MODULES:
            value = getattr(module, name, None)
            if isinstance(value, type):
                self[name] = value
                return value
        raise KeyError(name)


_RECORDS = _Records(inf=math.inf)

#: Arguments of a launch: tensors, fp32 scalars, and launch-time integers.
Given = torch.Tensor | float


@functools.lru_cache(maxsize=256)
def problem_of(text: str) -> Problem:
    """Return the problem that a kernel's text describes."""
    problem: Problem = eval(text, {}, _RECORDS)
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
    if not problem.runtime:
        return problem
    if not isinstance(problem, GemmProblem):
        return _not_a_gemm(problem, integers)
    found = sizes.filled(problem, dict(zip(problem.runtime, integers, strict=True)))
    if finish.counts_rows(problem) and found.m > problem.m:
        raise Refusal(f"{found.m} rows in memory, of which the workspace of this kernel has room for {problem.m}")
    build.check_problem(found)
    for output in found.outputs_of("exact"):
        sizes.check_row_ends(found, output)
    if problem.batch is not None and found.batch is not None:
        moved = zip(_batch_strides(problem), _batch_strides(found), strict=True)
        if any(bool(example) != bool(number) for example, number in moved):
            raise Refusal(
                "matmuls of the batch share operands that the kernel was compiled to read separately for each"
            )
    return found


def _not_a_gemm(problem: Problem, integers: Sequence[int]) -> Problem:
    if isinstance(problem, attention.ScoreProblem):
        return _attention(problem, integers)
    if isinstance(problem, rowwise.RowProblem):
        check_columns(problem, dict(zip(problem.runtime, integers, strict=True)))
    return problem


def check_columns(problem: RowProblem, given: Mapping[str, int]) -> None:
    """Check that a kernel is for the columns of a launch. Raises ``Refusal``."""
    n = given.get(rowwise.SIZE_N, problem.n)
    each = problem.lanes if problem.n % problem.lanes == 0 else 1
    if problem.columns_at_launch and not (problem.least <= n <= problem.n and n % each == 0):
        raise Refusal(
            f"rows of {n} columns, and this kernel is for {problem.least} to {problem.n}, in multiples of {each}"
        )


def _attention(problem: ScoreProblem, integers: Sequence[int]) -> ScoreProblem:
    found = numbers.filled(problem, dict(zip(problem.runtime, integers, strict=True)))
    launch.check_launch(found)
    if isinstance(found, attention.AttentionProblem):
        attention_build.check_problem(found)
    elif isinstance(found, backward.BackwardProblem):
        backward.check_backward(found)
    return found


def _batch_strides(problem: GemmProblem) -> tuple[int, ...]:
    assert problem.batch is not None
    return (problem.batch.a, problem.batch.b, problem.batch.d, *problem.batch.operands)
