"""Evaluation of products in sequence on CPU tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..plan.chained.records import ChainedProblem
from ..plan.records import GemmProblem
from ..toolchain.kernel import GemmKernel
from .evaluate import evaluate_problem
from .problems import Given, problem_of


def evaluate_chained(kernel: GemmKernel, given: Sequence[Given]) -> None:
    """Run products in sequence on the arguments of a launch."""
    problem = problem_of(kernel.problem)
    assert isinstance(problem, ChainedProblem)
    count = len(problem.main.argument_names)
    tensors = [each if isinstance(each, torch.Tensor) else torch.tensor(float(each)) for each in given]
    of_main, (a, b, *rest) = tensors[:count], tensors[count:]
    middle = _middle(problem.first, a.device)
    evaluate_problem(problem.first, [a, b, middle, *rest])
    of_main[problem.at] = middle
    evaluate_problem(problem.main, of_main)


def _middle(first: GemmProblem, device: torch.device) -> torch.Tensor:
    """Return the memory of the middle, without numbers."""
    size = first.m * first.d_pitch
    return torch.full((size,), torch.nan, dtype=getattr(torch, first.output_dtype), device=device)
