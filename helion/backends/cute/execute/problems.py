"""The GEMM that a launch computes, with its launch-time numbers, and checks that the kernel can take them."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from ..plan import epilogue, records
from ..plan.build import check_problem
from ..plan.records import GemmProblem
from ..plan.refusal import Refusal
from ..plan.runtime import filled
from ..toolchain.kernel import GemmKernel

#: Names in the text of a problem.
_RECORDS = {
    name: value for module in (records, epilogue) for name, value in vars(module).items() if isinstance(value, type)
}

#: Arguments of a launch: tensors, fp32 scalars, and launch-time integers.
Given = torch.Tensor | float


@functools.lru_cache(maxsize=256)
def problem_of(text: str) -> GemmProblem:
    """Return the problem that a kernel's text describes."""
    problem: GemmProblem = eval(text, dict(_RECORDS))
    return problem


def split(kernel: GemmKernel, given: Sequence[Given]) -> tuple[Sequence[Given], tuple[int, ...]]:
    """Return the tensors and scalars, and the launch-time integers in the order of ``plan.runtime``."""
    integers = len(problem_of(kernel.problem).runtime)
    at = len(given) - integers
    return given[:at], tuple(int(each) for each in given[at:])


@functools.lru_cache(maxsize=256)
def names_of(kernel: GemmKernel) -> tuple[str, ...]:
    """Return the names of the tensors and scalars of a launch for messages, in order."""
    problem = problem_of(kernel.problem)
    outputs = (problem.names[2], *(output.name for output in problem.outputs[1:]))
    factors = problem.scales.factors if problem.scales is not None else ()
    operands = (operand.name for operand in problem.epilogue.operands)
    return (*problem.names[:2], *outputs, *operands, *(factor.name for factor in factors))


def launched(kernel: GemmKernel, integers: Sequence[int]) -> GemmProblem:
    """Return the problem of a launch. Raises ``Refusal`` for sizes and strides that the kernel cannot take."""
    problem = problem_of(kernel.problem)
    if not problem.runtime:
        return problem
    found = filled(problem, dict(zip(problem.runtime, integers, strict=True)))
    check_problem(found)
    if problem.batch is not None and found.batch is not None:
        moved = zip(_batch_strides(problem), _batch_strides(found), strict=True)
        if any(bool(example) != bool(number) for example, number in moved):
            raise Refusal(
                "matmuls of the batch share operands that the kernel was compiled to read separately for each"
            )
    return found


def _batch_strides(problem: GemmProblem) -> tuple[int, ...]:
    assert problem.batch is not None
    return (problem.batch.a, problem.batch.b, problem.batch.d, *problem.batch.operands)
