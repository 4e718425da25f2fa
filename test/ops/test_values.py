"""Results and gradients of ``helion.ops``, against plain torch in fp64."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from ops.table import Case, cases

from helion.testing import check, outputs

#: Relative errors of sums of values that were rounded to a dtype.
ROUNDED = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 4e-5}
NAMES = [case.name for case in cases()]


@functools.cache
def _cases() -> dict[str, Case]:
    return {case.name: case for case in cases()}


def _gradients(case: Case) -> tuple[Any, Any]:
    """Return functions of the same arguments that give the gradients of the op and of its reference."""

    def of(function: Any) -> Any:
        def gradients(*args: Any) -> tuple[torch.Tensor, ...]:
            leaves = list(args)
            for at in case.differentiated:
                leaves[at] = args[at].detach().requires_grad_()
            results = outputs(function(*leaves))
            generator = torch.Generator().manual_seed(1)
            given = [torch.randn(r.shape, generator=generator).add(0.5).bfloat16().to(r.dtype) for r in results]
            return torch.autograd.grad(results, [leaves[at] for at in case.differentiated], given)

        return gradients

    return of(case.op), of(case.reference)


@pytest.mark.parametrize("name", NAMES)
def test_results(name: str) -> None:
    case = _cases()[name]
    check(name, case.op, case.reference, case.args, slack=2)


#: Ops whose backward kernels the compiler derives, which takes some seconds.
DERIVED = ("linear_attention", "selective_scan")
DIFFERENTIATED = [case.name for case in cases() if case.differentiated]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.prove) if n.startswith(DERIVED) else n for n in DIFFERENTIATED]
)
def test_gradients(name: str) -> None:
    case = _cases()[name]
    op, reference = _gradients(case)
    rounded = max(ROUNDED.get(arg.dtype, 0) for arg in case.args if isinstance(arg, torch.Tensor))
    check(name, op, reference, case.args, rtol=rounded, slack=case.slack)
    for found, at in zip(op(*case.args), case.differentiated, strict=True):
        assert found.dtype == case.args[at].dtype
