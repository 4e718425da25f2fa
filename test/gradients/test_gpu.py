"""The gradients of all kernels on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradients.kernels import CASES, Case
from gradients.test_backward import check, expected, incoming, tensors

import helion


def on_gpu(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(v.cuda() if isinstance(v, torch.Tensor) else v for v in values)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_backward(case: Case, dtype: torch.dtype) -> None:
    arguments = case.arguments(dtype)
    grads = incoming(case, arguments, dtype)
    wanted = expected(case, arguments, grads)
    given = on_gpu(grads)
    found = helion.experimental.backward(case.kernel, given if len(given) > 1 else given[0], *on_gpu(arguments))
    # products of fp32 are those of TF32
    tol = 5e-3 if dtype == torch.float32 else 0.03
    check([None if g is None else g.cpu() for g in tensors(found)], wanted, dtype, tol)


@pytest.mark.gpu
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_autograd(case: Case) -> None:
    arguments = case.arguments(torch.float32)
    grads = incoming(case, arguments, torch.float32)
    wanted = expected(case, arguments, grads)
    for _ in range(2):
        leaves = [
            a.cuda().requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a
            for a in on_gpu(arguments)
        ]
        outputs = tensors(case.kernel.differentiable()(*leaves))
        asked = [a for a in leaves if isinstance(a, torch.Tensor) and a.requires_grad]
        found = torch.autograd.grad(outputs, asked, on_gpu(grads))
        check([g.cpu() for g in found], wanted, torch.float32, 5e-3)
