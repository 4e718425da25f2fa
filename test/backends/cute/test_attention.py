"""Attention of the cute backend: recognition, evaluation on CPU tensors, keys and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from backends.cute import attention_kernels as kernels

import helion

CASES = kernels.cases()


@pytest.mark.parametrize(("case", "arguments"), CASES, ids=[case.name for case, _ in CASES])
def test_values_on_cpu_tensors(case: kernels.Case, arguments: tuple[Any, ...]) -> None:
    """Evaluate a kernel, whose problem is all that is read of the program, against fp64."""
    found = helion.kernel(backend="cute")(case.kernel)(*arguments)
    wanted = case.reference(*arguments)
    for one, other in zip(*((x,) if torch.is_tensor(x) else x for x in (found, wanted)), strict=True):
        assert (one.double() - other).norm() < 5e-3 * other.norm()
