"""``log1p`` of numbers from 0 to 1: which operands are known to be in that range, and the values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import helion
import helion.language as hl

IN_UNIT: tuple[Callable[..., torch.Tensor], ...] = (
    lambda v, w: torch.exp(-torch.abs(v)),
    lambda v, w: torch.exp(-v.abs() * 2.0),
    lambda v, w: torch.exp(torch.abs(v) * -0.5),
    lambda v, w: torch.exp2(-(v * v)),
    lambda v, w: torch.exp(-torch.relu(v)),
    lambda v, w: torch.exp(torch.minimum(v, -w.abs())),
    lambda v, w: torch.exp(torch.clamp(v, max=0.0)),
    lambda v, w: torch.exp(-v.abs() - w * w),
    lambda v, w: torch.exp(-(v.abs() / 3.0).to(torch.bfloat16).to(torch.float32)),
    lambda v, w: torch.exp(torch.where(v > 0, -v.abs(), -w.abs())),
    lambda v, w: torch.sigmoid(v),
)
OTHERS: tuple[Callable[..., torch.Tensor], ...] = (
    lambda v, w: v.abs(),
    lambda v, w: torch.exp(v),
    lambda v, w: torch.exp(-v),
    lambda v, w: torch.exp(v.abs()),
    lambda v, w: torch.exp(v * -0.5),
    lambda v, w: torch.exp(-(v * w)),
    lambda v, w: torch.exp(-torch.minimum(v, w.abs())),
    lambda v, w: torch.exp(torch.maximum(v, -w.abs())),
    lambda v, w: torch.exp(torch.where(v > 0, v, -w.abs())),
    lambda v, w: torch.exp(v.abs() / -w.abs() * -1.0),
    lambda v, w: torch.exp(-v.abs()) + 0.5,
)


def logarithms(x: torch.Tensor, y: torch.Tensor, function: Callable[..., torch.Tensor]) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.log1p(function(x[tile], y[tile]))
    return out


def operands(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.cat([torch.randn(490) * 4, torch.tensor([0.0, -0.0, 40.0, -40.0, torch.nan, 1e-30, -1e-30])])
    return x.to(dtype), torch.randn(x.size(0)).to(dtype)


@pytest.mark.parametrize("at", range(len(IN_UNIT)))
def test_numbers_from_0_to_1(at: int) -> None:
    x, y = operands()
    bound = helion.kernel(logarithms).bind((x, y, IN_UNIT[at]))
    code = bound.to_code()
    assert "_log1p_unit(" in code and "libdevice.log1p" not in code
    torch.testing.assert_close(bound(x, y, IN_UNIT[at]), torch.log1p(IN_UNIT[at](x, y)), equal_nan=True)


@pytest.mark.parametrize("at", range(len(OTHERS)))
def test_other_numbers_keep_the_logarithm(at: int) -> None:
    x, y = operands()
    bound = helion.kernel(logarithms).bind((x, y, OTHERS[at]))
    code = bound.to_code()
    assert "libdevice.log1p" in code and "_log1p_unit(" not in code
    torch.testing.assert_close(bound(x, y, OTHERS[at]), torch.log1p(OTHERS[at](x, y)), equal_nan=True)


def softplus(x: torch.Tensor, beta: float, threshold: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = F.softplus(x[tile], beta, threshold)
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("beta", "threshold"), [(1.0, 20.0), (2.5, 3.0), (-1.0, 20.0)])
def test_softplus_has_no_general_logarithm(dtype: torch.dtype, beta: float, threshold: float) -> None:
    x = torch.cat([operands(dtype)[0], torch.tensor([torch.inf, -torch.inf, 88.0, -88.0], dtype=dtype)])
    kernel = helion.kernel(softplus)
    torch.testing.assert_close(kernel(x, beta, threshold), F.softplus(x, beta, threshold), equal_nan=True)
    assert dtype is torch.float64 or "libdevice.log1p" not in kernel.bind((x, beta, threshold)).to_code()


#: Integers whose negatives, sizes or squares wrap.
WRAPPING: tuple[tuple[torch.Tensor, Callable[..., torch.Tensor]], ...] = (
    (torch.arange(200, dtype=torch.uint8), lambda v, w: torch.exp((-torch.abs(v)).to(torch.float32) / 64)),
    (torch.arange(-128, 127, dtype=torch.int8), lambda v, w: torch.exp((-(v * v)).to(torch.float32) / 64)),
    (torch.arange(-128, 127, dtype=torch.int8), lambda v, w: torch.exp(-(torch.abs(v).to(torch.float32)) / 64)),
)


@pytest.mark.parametrize("at", range(len(WRAPPING)))
def test_integers_that_wrap_keep_the_logarithm(at: int) -> None:
    x, function = WRAPPING[at]
    y = torch.zeros(x.size(0))

    def wrapped(x: torch.Tensor, y: torch.Tensor, function: Callable[..., torch.Tensor]) -> torch.Tensor:
        out = torch.empty_like(y)
        for tile in hl.tile(x.size(0)):
            out[tile] = torch.log1p(function(x[tile], y[tile]))
        return out

    torch.testing.assert_close(helion.kernel(wrapped)(x, y, function), torch.log1p(function(x, y)))
