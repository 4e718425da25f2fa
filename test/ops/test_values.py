"""Results and gradients of ``helion.ops``, against plain torch in fp64."""

from __future__ import annotations

import functools

import pytest
import torch
from ops.table import ROUNDED, Case, cases, gradients

import helion
from helion.ops.kernels import attention as attention_kernels
from helion.ops.kernels import experts
from helion.ops.kernels.recurrences import selective_scan
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


def test_parts_of_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are equal, as many as give all SMs programs, and begin with the state of the parts before."""
    parts = selective_scan._scan_parts
    assert [parts(*sizes) for sizes in ((1, 4096, 4096), (4, 2048, 1536), (64, 4096, 4096), (1, 200, 64))] == [
        8,
        4,
        1,
        1,
    ]
    assert parts(1, 4099, 64) == 1 and parts(1, 4100, 64) == 25 and parts(0, 4096, 64) == 32
    monkeypatch.setattr(selective_scan, "SCAN_POSITIONS", 4)
    case = _cases()["selective_scan, fp32"]
    x, dt, a, b, c, skip = case.args
    longer = tuple(torch.cat((t, t + 0.1, t[:, :1]), 1) for t in (x, dt, b, c))
    x, dt, b, c = (t[:, :15] for t in longer)
    check("selective_scan", case.op, case.reference, (x, dt, a, b, c, skip))


@pytest.mark.parametrize(
    ("slots", "count", "dtype"), [(300, 7, torch.int32), (20, 130, torch.int64), (0, 3, torch.int32)]
)
def test_numbers_in_order(slots: int, count: int, dtype: torch.dtype) -> None:
    """The kernel sorts as a stable sort does, also with experts that nothing has chosen."""
    indices = torch.randint(count, (slots,), generator=torch.Generator().manual_seed(0)).to(dtype)
    order, places, offsets = experts.order_by_expert_kernel(indices, count)
    by_expert, wanted = torch.sort(indices, stable=True)
    torch.testing.assert_close(order.long(), wanted)
    torch.testing.assert_close(places.long(), torch.argsort(wanted))
    torch.testing.assert_close(offsets.long(), torch.searchsorted(by_expert, torch.arange(count + 1, dtype=dtype)))


@pytest.mark.parametrize("backend", ["triton", "cute"])
def test_one_kernel_computes_all_gradients_of_attention(backend: str) -> None:
    """Compare it with the kernels of queries, and of keys and values, which add in the same order."""
    torch.manual_seed(0)
    shapes = ((4, 70), (4, 70), (2, 90), (2, 90))
    tensors = [(torch.randn(heads, rows, 64) + 0.2).bfloat16() for heads, rows in shapes]
    given = (*tensors, torch.randn(4, 70) + 9, torch.randn(4, 70) / 10, 2, None, True, 0, 0.0)
    together = helion.kernel(attention_kernels.attention_keys_backward_kernel.fn, backend=backend, static_shapes=False)
    grad_k, grad_v, sums = together(*given, True)
    wanted = attention_kernels.attention_queries_backward_kernel(*given)
    for one, other in zip((grad_k, grad_v), attention_kernels.attention_keys_backward_kernel(*given), strict=True):
        assert (one.double() - other.double()).norm() < 1e-3 * other.double().norm()
    assert sums.dtype == torch.float32
    assert (sums.double() - wanted.double()).norm() < 3e-3 * wanted.double().norm()
