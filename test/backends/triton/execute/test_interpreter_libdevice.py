"""CUDA's device library in interpreted kernels, against float64 references."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from helion.backends.triton.execute.interpreter import interpret

F32, F64, I32, I64 = torch.float32, torch.float64, torch.int32, torch.int64


@triton.jit
def unary_kernel(x, out, n, F: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, F(tl.load(x + i, mask=i < n)), mask=i < n)


@triton.jit
def binary_kernel(x, y, out, n, F: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n)
    b = tl.load(y + i, mask=i < n)
    tl.store(out + i, F(a, b), mask=i < n)


@triton.jit
def ternary_kernel(x, y, z, out, n, F: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n)
    b = tl.load(y + i, mask=i < n)
    c = tl.load(z + i, mask=i < n)
    tl.store(out + i, F(a, b, c), mask=i < n)


KERNELS = {1: unary_kernel, 2: binary_kernel, 3: ternary_kernel}


def apply(function: Callable, *inputs: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``function`` elementwise on at most 1024 numbers, in an interpreted kernel."""
    out = torch.empty(inputs[0].shape, dtype=dtype or inputs[0].dtype)
    interpret(KERNELS[len(inputs)], (1,), (*inputs, out, out.numel()), {"F": function, "BLOCK": 1024})
    return out


# name: (reference, low, high) on one argument
DEVICE_FUNCTIONS = {
    "acos": (torch.acos, -1, 1),
    "acosh": (torch.acosh, 1, 50),
    "asin": (torch.asin, -1, 1),
    "asinh": (torch.asinh, -50, 50),
    "atan": (torch.atan, -50, 50),
    "atanh": (torch.atanh, -0.99, 0.99),
    "cbrt": (lambda x: x.sign() * x.abs().pow(1 / 3), -50, 50),
    "ceil": (torch.ceil, -50, 50),
    "cos": (torch.cos, -3, 3),
    "cosh": (torch.cosh, -20, 20),
    "cyl_bessel_i0": (torch.special.i0, -20, 20),
    "cyl_bessel_i1": (torch.special.i1, -20, 20),
    "erf": (torch.erf, -4, 4),
    "erfc": (torch.erfc, -4, 4),
    "erfcinv": (lambda x: torch.special.erfinv(1 - x), 0.05, 1.95),
    "erfcx": (torch.special.erfcx, -4, 4),
    "erfinv": (torch.special.erfinv, -0.99, 0.99),
    "exp": (torch.exp, -50, 50),
    "exp10": (lambda x: torch.pow(torch.tensor(10.0, dtype=F64), x), -30, 30),
    "exp2": (torch.exp2, -50, 50),
    "expm1": (torch.expm1, -10, 10),
    "floor": (torch.floor, -50, 50),
    "j0": (torch.special.bessel_j0, 0.1, 20),
    "j1": (torch.special.bessel_j1, 0.1, 20),
    "lgamma": (torch.lgamma, 0.1, 50),
    "log": (torch.log, 0.01, 50),
    "log10": (torch.log10, 0.01, 50),
    "log1p": (torch.log1p, -0.9, 50),
    "log2": (torch.log2, 0.01, 50),
    "nearbyint": (torch.round, -50, 50),
    "normcdf": (torch.special.ndtr, -4, 4),
    "normcdfinv": (torch.special.ndtri, 0.01, 0.99),
    "rcbrt": (lambda x: x.pow(-1 / 3), 0.1, 50),
    "rint": (torch.round, -50, 50),
    "round": (lambda x: x.sign() * (x.abs() + 0.5).floor(), -50, 50),
    "rsqrt": (torch.rsqrt, 0.01, 50),
    "sin": (torch.sin, -3, 3),
    "sinh": (torch.sinh, -20, 20),
    "sinpi": (lambda x: torch.sin(x * math.pi), -2, 2),
    "sqrt": (torch.sqrt, 0, 50),
    "tan": (torch.tan, -1.5, 1.5),
    "tanh": (torch.tanh, -5, 5),
    "tgamma": (lambda x: torch.lgamma(x).exp(), 0.5, 30),
    "trunc": (torch.trunc, -50, 50),
    "y0": (torch.special.bessel_y0, 0.1, 20),
    "y1": (torch.special.bessel_y1, 0.1, 20),
}


@pytest.mark.parametrize("name", DEVICE_FUNCTIONS)
def test_device_library_function(name: str) -> None:
    reference, low, high = DEVICE_FUNCTIONS[name]
    wide = torch.rand(513, generator=torch.Generator().manual_seed(7), dtype=F64) * (high - low) + low
    x = wide.float()
    actual = apply(getattr(libdevice, name), x)
    assert actual.dtype == F32
    torch.testing.assert_close(actual.double(), reference(x.double()), rtol=3e-6, atol=1e-6)
    torch.testing.assert_close(apply(getattr(libdevice, name), wide), reference(wide), rtol=1e-11, atol=1e-12)


@triton.jit
def to_power(a, b):
    return libdevice.pow(a, b)


@triton.jit
def is_nan(a):
    return libdevice.isnan(a).to(tl.int1)


@triton.jit
def is_inf(a):
    return libdevice.isinf(a).to(tl.int1)


@triton.jit
def sign_bit(a):
    return libdevice.signbit(a) != 0


def ieee_remainder(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.tensor([math.remainder(*p) for p in zip(a.tolist(), b.tolist(), strict=True)], dtype=F64)


@pytest.mark.parametrize("dtype", [F32, F64])
def test_device_library_functions_of_two_arguments(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(8)
    x = torch.randn(513, generator=generator, dtype=F64).to(dtype) * 5
    y = torch.randn(513, generator=generator, dtype=F64).to(dtype)
    cases = {
        "atan2": (x, y, torch.atan2),
        "copysign": (x, y, torch.copysign),
        "fdim": (x, y, lambda a, b: (a - b).clamp_min(0)),
        "fmod": (x, y, torch.fmod),
        "hypot": (x, y, torch.hypot),
        "nextafter": (x, y, None),
        "pow": (x.abs(), y, torch.pow),
        "remainder": (x, y, ieee_remainder),
        "rhypot": (x, y, lambda a, b: 1 / torch.hypot(a, b)),
        "div_rn": (x, y, torch.div),
    }
    for name, (a, b, reference) in cases.items():
        actual = apply(getattr(libdevice, name), a, b)
        assert actual.dtype == dtype
        expected = torch.nextafter(a, b) if reference is None else reference(a.double(), b.double())
        tolerance = {"rtol": 2e-6, "atol": 1e-6} if dtype == F32 else {"rtol": 1e-12, "atol": 1e-12}
        torch.testing.assert_close(actual.double(), expected.double(), msg=lambda m, n=name: f"{n}: {m}", **tolerance)


def test_device_library_predicates_and_bits() -> None:
    x = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, -3.5])
    for values in (x, x.double()):
        assert apply(is_nan, values, dtype=torch.bool).tolist() == values.isnan().tolist()
        assert apply(is_inf, values, dtype=torch.bool).tolist() == values.isinf().tolist()
        assert apply(sign_bit, values, dtype=torch.bool)[[0, 1, 2, 3, 5]].tolist() == [False, True, False, True, True]
    n = torch.tensor([0, 1, -1, 2**31 - 1, -(2**31), 0x00F0], dtype=I32)
    assert apply(libdevice.clz, n).tolist() == [32, 31, 0, 1, 0, 24]
    assert apply(libdevice.popc, n).tolist() == [0, 1, 32, 31, 1, 4]
    assert apply(libdevice.ffs, n).tolist() == [0, 1, 1, 1, 32, 5]
    assert apply(libdevice.brev, n).tolist() == [0, -(2**31), -1, -2, 1, 0x0F000000]
    assert apply(libdevice.popc, n.long(), dtype=I32).tolist() == [0, 1, 64, 31, 33, 4]
    halves = torch.tensor([0.5, 1.5, 2.5, -0.5, -2.5])
    assert apply(libdevice.llround, halves, dtype=I64).tolist() == [1, 2, 3, -1, -3]
    assert apply(libdevice.llrint, halves, dtype=I64).tolist() == [0, 2, 2, 0, -2]
    assert apply(libdevice.float2int_rd, halves, dtype=I32).tolist() == [0, 1, 2, -1, -3]
    assert apply(libdevice.float_as_int, halves, dtype=I32).tolist() == halves.view(I32).tolist()
    assert apply(libdevice.ilogb, torch.tensor([8.0, 0.3]), dtype=I32).tolist() == [3, -2]


def test_device_library_integers() -> None:
    a = torch.tensor([5, -7, 2**31 - 1, 0x12345678], dtype=I32)
    b = torch.tensor([3, -4, 1, -2], dtype=I32)
    assert apply(libdevice.hadd, a, b).tolist() == [4, -6, 2**30, 0x091A2B3B]
    assert apply(libdevice.rhadd, a, b).tolist() == [4, -5, 2**30, 0x091A2B3B]
    assert apply(libdevice.mulhi, a, b).tolist() == [0, 0, 0, -1]
    assert apply(libdevice.mul24, a, b).tolist()[:2] == [15, 28]
    assert apply(libdevice.sad, a, b, torch.full((4,), 10, dtype=torch.uint32), dtype=I32).tolist()[:2] == [12, 13]
    selector = torch.tensor([0x0123, 0x3210, 0x7654, 0x0005], dtype=I32)
    reversed_five = int.from_bytes((5).to_bytes(4, "little"), "big")
    assert apply(libdevice.byte_perm, a, b, selector).tolist()[:3] == [reversed_five, -7, 1]
    assert apply(libdevice.mulhi, a.long() << 40, b.long() << 40).tolist()[:2] == [15 << 16, 28 << 16]
    high_low = apply(libdevice.hiloint2double, *(torch.tensor([v], dtype=I32) for v in (0x3FF80000, 0)), dtype=F64)
    assert high_low.item() == 1.5
    assert apply(libdevice.double2hiint, torch.tensor([1.5], dtype=F64), dtype=I32).item() == 0x3FF80000


def test_device_library_special_values() -> None:
    x = torch.tensor([-0.5, -1.5, 0.5, -1.0, 0.0, 5.0, 171.0], dtype=F64)
    gamma = apply(libdevice.tgamma, x)
    expected = torch.tensor([math.gamma(v) if v not in (-1.0, 0.0) else math.nan for v in x.tolist()], dtype=F64)
    expected[4] = math.inf
    torch.testing.assert_close(gamma, expected, rtol=1e-12, atol=0, equal_nan=True)
    assert apply(libdevice.cospi, torch.tensor([0.5, 1.0, 1e6, math.inf])).tolist()[1:3] == [-1.0, 1.0]
    assert apply(libdevice.logb, torch.tensor([0.0, 0.3, -8.0, math.inf])).tolist() == [-math.inf, -2, 3, math.inf]
    assert apply(libdevice.saturatef, torch.tensor([-2.0, 0.25, 7.0, math.nan])).tolist() == [0, 0.25, 1, 0]
    assert apply(libdevice.fast_dividef, torch.tensor([1.0]), torch.tensor([4.0])).item() == 0.25
    ones = torch.ones(3)
    torch.testing.assert_close(apply(libdevice.norm3d, ones, ones * 2, ones * 2), ones * 3)
    torch.testing.assert_close(apply(libdevice.rnorm3d, ones, ones * 2, ones * 2), ones / 3)
    assert apply(libdevice.fma, ones, ones, ones).tolist() == [2.0] * 3
    assert apply(libdevice.scalbn, ones, torch.tensor([3, -1, 0], dtype=I32)).tolist() == [8.0, 0.5, 1.0]
    assert apply(libdevice.pow, ones * 3, torch.tensor([2, -1, 0], dtype=I32)).tolist() == pytest.approx([9, 1 / 3, 1])
    assert apply(libdevice.ll2float_rn, torch.tensor([2**40 + 1]), dtype=F32).item() == 2.0**40


def test_device_library_refusals() -> None:
    x = torch.ones(8)
    with pytest.raises(NotImplementedError, match=r"kernel 'binary_kernel', program \(0, 0, 0\).*'__nv_fadd_rd'"):
        apply(libdevice.add_rd, x, x)
    with pytest.raises(KeyError, match="bfloat16"):  # Triton's own refusal of types the library lacks
        apply(libdevice.erf, x.bfloat16())
