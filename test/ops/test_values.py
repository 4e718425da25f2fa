"""Results and gradients of ``helion.ops``, against plain torch in fp64."""

from __future__ import annotations

import functools

import pytest
import torch
from ops.table import ROUNDED, Case, cases, gradients

from helion.testing import check

NAMES = [case.name for case in cases()]


@functools.cache
def _cases() -> dict[str, Case]:
    return {case.name: case for case in cases()}


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
    op, reference = gradients(case)
    rounded = max(ROUNDED.get(arg.dtype, 0) for arg in case.args if isinstance(arg, torch.Tensor))
    check(name, op, reference, case.args, rtol=rounded, slack=case.slack)
    for found, at in zip(op(*case.args), case.differentiated, strict=True):
        assert found.dtype == case.args[at].dtype
