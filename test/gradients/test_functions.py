"""The derivative of each function against torch's in fp64, also where it has a kink, at zero and at ties."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import helion
import helion.language as hl
from helion._compiler.autodiff.pointwise import POINTWISE as DERIVATIVES
from helion._compiler.autodiff.rules import RULES
from helion._compiler.ir.ops import OPS
from helion._compiler.ir.pointwise import POINTWISE


@helion.kernel
def unary(x: torch.Tensor, function: Callable[..., Any]) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = function(x[tile])
    return out


@helion.kernel
def binary(x: torch.Tensor, y: torch.Tensor, function: Callable[..., Any]) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = function(x[tile], y[tile])
    return out


ANYWHERE = (-2.5, -1.0, -0.5, -1e-3, 0.0, 1e-3, 0.25, 0.5, 1.0, 2.5)
POSITIVE = (1e-3, 0.2, 0.5, 1.0, 1.75, 3.0)
INSIDE = (-0.9, -0.4, 0.0, 0.1, 0.4, 0.9)

#: Functions of one operand, and where they are looked at.
UNARY: dict[str, tuple[Callable[[Any], Any], tuple[float, ...]]] = {
    "neg": (lambda v: -v, ANYWHERE),
    "abs": (lambda v: torch.abs(v), ANYWHERE),
    "sign": (lambda v: torch.sign(v), ANYWHERE),
    "square": (lambda v: torch.square(v), ANYWHERE),
    "sqrt": (lambda v: torch.sqrt(v), POSITIVE),
    "rsqrt": (lambda v: torch.rsqrt(v), POSITIVE),
    "reciprocal": (lambda v: torch.reciprocal(v), POSITIVE),
    "exp": (lambda v: torch.exp(v), ANYWHERE),
    "exp2": (lambda v: torch.exp2(v), ANYWHERE),
    "expm1": (lambda v: torch.expm1(v), ANYWHERE),
    "log": (lambda v: torch.log(v), POSITIVE),
    "log2": (lambda v: torch.log2(v), POSITIVE),
    "log10": (lambda v: torch.log10(v), POSITIVE),
    "log1p": (lambda v: torch.log1p(v), POSITIVE),
    "sin": (lambda v: torch.sin(v), ANYWHERE),
    "cos": (lambda v: torch.cos(v), ANYWHERE),
    "tan": (lambda v: torch.tan(v), ANYWHERE),
    "asin": (lambda v: torch.asin(v), INSIDE),
    "acos": (lambda v: torch.acos(v), INSIDE),
    "atan": (lambda v: torch.atan(v), ANYWHERE),
    "sinh": (lambda v: torch.sinh(v), ANYWHERE),
    "cosh": (lambda v: torch.cosh(v), ANYWHERE),
    "tanh": (lambda v: torch.tanh(v), ANYWHERE),
    "asinh": (lambda v: torch.asinh(v), ANYWHERE),
    "acosh": (lambda v: torch.acosh(v + 1), POSITIVE),
    "atanh": (lambda v: torch.atanh(v), INSIDE),
    "sigmoid": (lambda v: torch.sigmoid(v), ANYWHERE),
    "erf": (lambda v: torch.erf(v), ANYWHERE),
    "erfc": (lambda v: torch.erfc(v), ANYWHERE),
    "erfinv": (lambda v: torch.erfinv(v), INSIDE),
    "floor": (lambda v: torch.floor(v) + v, ANYWHERE),
    "ceil": (lambda v: torch.ceil(v) + v, ANYWHERE),
    "round": (lambda v: torch.round(v) + v, ANYWHERE),
    "trunc": (lambda v: torch.trunc(v) + v, ANYWHERE),
    "frac": (lambda v: torch.frac(v), ANYWHERE),
    "relu": (lambda v: torch.relu(v), ANYWHERE),
    "leaky_relu": (lambda v: F.leaky_relu(v, 0.1), ANYWHERE),
    "elu": (lambda v: F.elu(v), ANYWHERE),
    "selu": (lambda v: F.selu(v), ANYWHERE),
    "celu": (lambda v: F.celu(v, 2.0), ANYWHERE),
    "gelu": (lambda v: F.gelu(v), ANYWHERE),
    "gelu_tanh": (lambda v: F.gelu(v, approximate="tanh"), ANYWHERE),
    "silu": (lambda v: F.silu(v), ANYWHERE),
    "mish": (lambda v: F.mish(v), ANYWHERE),
    "softplus": (lambda v: F.softplus(v), ANYWHERE),
    "softsign": (lambda v: F.softsign(v), ANYWHERE),
    "logsigmoid": (lambda v: F.logsigmoid(v), ANYWHERE),
    "tanhshrink": (lambda v: F.tanhshrink(v), ANYWHERE),
    "hardswish": (lambda v: F.hardswish(v), ANYWHERE),
    "clamp": (lambda v: torch.clamp(v, -1.0, 0.5), ANYWHERE),
    "clamp_min": (lambda v: v.clamp(min=0.0), ANYWHERE),
    "clamp_max": (lambda v: torch.clamp(v, max=0.25), ANYWHERE),
    "nan_to_num": (lambda v: torch.nan_to_num(v), ANYWHERE),
    "threshold": (lambda v: F.threshold(v, 0.1, 2.0), ANYWHERE),
    "logit": (lambda v: torch.logit(v * 0.25), POSITIVE),
    "power_0": (lambda v: v**0 + v, ANYWHERE),
    "power_2": (lambda v: v**2, ANYWHERE),
    "power_5": (lambda v: v**5, ANYWHERE),
    "power_half": (lambda v: v**0.5, POSITIVE),
    "power_minus_2": (lambda v: v**-2, POSITIVE),
    "base_3": (lambda v: 3.0**v, ANYWHERE),
    "right_operands": (lambda v: 1.0 - 2.0 / (3.0 + v), ANYWHERE),
    "where": (lambda v: torch.where(v > 0, v * v, 3.0), ANYWHERE),
    "rounded": (lambda v: v.to(torch.int32).to(v.dtype) * v, ANYWHERE),
    "remainder_2": (lambda v: v % 0.75, (-2.0, -0.5, 0.3, 1.9)),
    "masked_fill": (lambda v: (v * v).masked_fill(v < 0, 1.5), ANYWHERE),
    "maximum_of_itself": (lambda v: torch.maximum(v, v) * v, ANYWHERE),
    "chain": (lambda v: torch.tanh(torch.exp(-v * v) * torch.sigmoid(v)) / (1 + v * v), ANYWHERE),
}

#: Functions of two operands.
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda v, w: torch.add(v, w, alpha=2.5),
    "sub": lambda v, w: v - w,
    "mul": lambda v, w: v * w,
    "div": lambda v, w: v / w,
    "pow": lambda v, w: torch.abs(v) ** w,
    "atan2": lambda v, w: torch.atan2(v, w),
    "hypot": lambda v, w: torch.hypot(v, w),
    "fmod": lambda v, w: torch.fmod(v, w),
    "remainder": lambda v, w: torch.remainder(v, w),
    "floor_division": lambda v, w: torch.div(v, w, rounding_mode="floor") * v,
    "maximum": lambda v, w: torch.maximum(v, w),
    "minimum": lambda v, w: torch.minimum(v, w),
    "fmax": lambda v, w: torch.fmax(v, w),
    "fmin": lambda v, w: torch.fmin(v, w),
    "copysign": lambda v, w: torch.copysign(v, w),
    "logaddexp": lambda v, w: torch.logaddexp(v, w),
    "logaddexp2": lambda v, w: torch.logaddexp2(v, w),
    "lerp": lambda v, w: torch.lerp(v, w, 0.3),
    "addcmul": lambda v, w: torch.addcmul(v, v, w, value=0.5),
    "addcdiv": lambda v, w: torch.addcdiv(v, w, v * v + 1.0, value=0.5),
    "xlogy": lambda v, w: torch.xlogy(v, torch.abs(w) + 0.5),
    "where": lambda v, w: torch.where(v < w, v * w, v + w),
    "mse_loss": lambda v, w: F.mse_loss(v, w, reduction="none"),
    "smooth_l1_loss": lambda v, w: F.smooth_l1_loss(v, w, reduction="none"),
    "bce": lambda v, w: F.binary_cross_entropy_with_logits(v, w, reduction="none"),
    "comparisons": lambda v, w: (v > w) * v + (v <= w) * w,
}
FIRST = (-2.0, -0.75, 0.5, 0.5, 1.5, 3.0, -1.25)
SECOND = (0.6, -1.5, 0.5, 2.0, 1.5, -0.7, -1.25)


def compare(found: Any, function: Callable[..., Any], operands: list[torch.Tensor], grad: torch.Tensor) -> None:
    leaves = [o.clone().requires_grad_() for o in operands]
    wanted = torch.autograd.grad(function(*leaves), leaves, grad)
    for gradient, reference in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
        torch.testing.assert_close(gradient, reference, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    function, points = UNARY[name]
    x = torch.tensor(points, dtype=torch.float64)
    grad = torch.linspace(0.5, 2.0, len(points), dtype=torch.float64)
    compare(helion.experimental.backward(unary, grad, x, function), function, [x], grad)


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    x, y = torch.tensor(FIRST, dtype=torch.float64), torch.tensor(SECOND, dtype=torch.float64)
    grad = torch.linspace(0.5, 2.0, len(FIRST), dtype=torch.float64)
    compare(helion.experimental.backward(binary, grad, x, y, BINARY[name]), BINARY[name], [x, y], grad)


@pytest.mark.prove
@pytest.mark.parametrize("name", UNARY)
def test_unary_in_float32(name: str) -> None:
    function, points = UNARY[name]
    x = torch.tensor(points, dtype=torch.float32)
    found = helion.experimental.backward(unary, torch.ones_like(x), x, function)
    leaf = x.double().requires_grad_()
    (wanted,) = torch.autograd.grad(function(leaf).sum(), leaf)
    torch.testing.assert_close(found.double(), wanted, rtol=2e-4, atol=2e-5, equal_nan=True)


def test_every_op_has_a_rule_or_a_reason() -> None:
    assert set(RULES) == set(OPS)
    assert all(callable(rule) or rule for rule in RULES.values())


def test_every_function_has_a_derivative_or_a_reason() -> None:
    assert set(DERIVATIVES) == set(POINTWISE)
    for name, row in DERIVATIVES.items():
        if not isinstance(row, str):
            assert len(row) == POINTWISE[name].arity[1], name


def test_ties_of_reductions() -> None:
    @helion.kernel
    def extremes(x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(x.size(0))
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile, :].amax(1) + 2 * x[tile, :].amin(1)
        return out

    x = torch.tensor([[1.0, 3.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0]], dtype=torch.float64)
    found = helion.experimental.backward(extremes, torch.ones(2, dtype=torch.float64), x)
    leaf = x.clone().requires_grad_()
    (wanted,) = torch.autograd.grad((leaf.amax(1) + 2 * leaf.amin(1)).sum(), leaf)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_products_with_zeros(zeros: int) -> None:
    @helion.kernel
    def products(x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(x.size(0))
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile, :].prod(1)
        return out

    x = torch.tensor([[1.5, -2.0, 3.0, 0.5, 4.0]], dtype=torch.float64)
    x[0, :zeros] = 0.0
    found = helion.experimental.backward(products, torch.tensor([2.0], dtype=torch.float64), x)
    leaf = x.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(leaf.prod(1), leaf, torch.tensor([2.0], dtype=torch.float64))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", ["lgamma", "i0"])
def test_functions_without_a_derivative(name: str) -> None:
    function = getattr(torch, name)
    with pytest.raises(helion.exc.AutodiffNotSupported, match=name) as caught:
        helion.experimental.backward(unary, torch.ones(3), torch.ones(3), lambda v: function(v))
    assert "out[tile] = function(x[tile])" in str(caught.value) or "lambda" in str(caught.value)
