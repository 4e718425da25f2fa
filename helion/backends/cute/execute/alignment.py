"""Aligned copies of the tensors of a launch whose addresses TMA cannot take."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..toolchain.kernel import GemmKernel
from .problems import Given, problem_of

ALIGNMENT_BYTES = 16


def is_aligned(tensor: torch.Tensor) -> bool:
    return tensor.data_ptr() % ALIGNMENT_BYTES == 0


def aligned(given: Sequence[Given]) -> tuple[Given, ...]:
    """Return the arguments of a launch with copies of tensors that begin between multiples of 16 bytes."""
    return tuple(_copied(each) if isinstance(each, torch.Tensor) and not is_aligned(each) else each for each in given)


def write_back(kernel: GemmKernel, given: Sequence[Given], passed: Sequence[Given]) -> None:
    """Copy the outputs among ``passed``, those that ``aligned`` has copied, to the tensors ``given``."""
    for at in problem_of(kernel.problem).outputs_at:
        output, copy = given[at], passed[at]
        if output is not copy and isinstance(output, torch.Tensor) and isinstance(copy, torch.Tensor):
            output.detach().copy_(copy)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides, of the elements between those of the tensor as well."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((extent - 1) * stride for extent, stride in steps)
    elements = torch.as_strided(tensor.detach(), (span,), (1,), tensor.storage_offset())
    return torch.as_strided(elements.clone(), tensor.shape, tensor.stride())
