"""The evaluation of each shape of kernels on CPU tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..plan.attention.gradients import BackwardProblem
from ..plan.attention.records import AttentionProblem
from ..plan.chained.records import ChainedProblem
from ..plan.records import GemmProblem
from ..plan.rowwise.records import RowProblem
from ..toolchain.kernel import GemmKernel
from .attention import evaluate_attention, evaluate_backward
from .chained import evaluate_chained
from .evaluate import evaluate_gemm
from .problems import Given, problem_of
from .rowwise.evaluate import evaluate_rows

EVALUATORS: Mapping[type[Any], Callable[[GemmKernel, Sequence[Given]], None]] = {
    GemmProblem: evaluate_gemm,
    ChainedProblem: evaluate_chained,
    AttentionProblem: evaluate_attention,
    BackwardProblem: evaluate_backward,
    RowProblem: evaluate_rows,
}
"""Evaluations by the class of the kernel's problem."""


def evaluate(kernel: GemmKernel, given: Sequence[Given]) -> None:
    """Run ``kernel`` on the CPU tensors of a launch. Raises ``Refusal`` for arguments that the kernel cannot take."""
    EVALUATORS[type(problem_of(kernel.problem))](kernel, given)
