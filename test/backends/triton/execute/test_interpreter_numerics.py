"""Numbers in interpreted kernels: formats, rounding, integer arithmetic, NaN, math and device-library functions."""

from __future__ import annotations

import fractions
import math
import warnings

import pytest
import torch
import triton
import triton.language as tl

from helion.backends.triton.execute.interpreter import interpret

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@triton.jit
def unary_kernel(x, out, n, F: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, F(tl.load(x + i, mask=i < n)), mask=i < n)


@triton.jit
def binary_kernel(x, y, out, n, F: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n)
    b = tl.load(y + i, mask=i < n)
    tl.store(out + i, F(a, b), mask=i < n)


@triton.jit
def ternary_kernel(x, y, z, out, n, F: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n)
    b = tl.load(y + i, mask=i < n)
    c = tl.load(z + i, mask=i < n)
    tl.store(out + i, F(a, b, c), mask=i < n)


@triton.jit
def cast_kernel(x, out, n, DTYPE: tl.constexpr, ROUNDING: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(out + i, a.to(DTYPE, fp_downcast_rounding=ROUNDING), mask=i < n)


KERNELS = {1: unary_kernel, 2: binary_kernel, 3: ternary_kernel}


def apply(function, *inputs: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``function`` (a @triton.jit one) elementwise on 1-D tensors in an interpreted kernel."""
    out = torch.empty(inputs[0].shape, dtype=dtype or inputs[0].dtype)
    block = 1024
    interpret(
        KERNELS[len(inputs)],
        (triton.cdiv(out.numel(), block),),
        (*inputs, out, out.numel()),
        {"F": function, "BLOCK": block, "num_warps": 4},
    )
    return out


def cast(x: torch.Tensor, dtype: torch.dtype, rounding: str | None = None) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=dtype)
    element = {BF16: tl.bfloat16, F16: tl.float16, F32: tl.float32, F64: tl.float64, E4M3: tl.float8e4nv}
    element |= {E5M2: tl.float8e5, torch.int8: tl.int8, torch.uint8: tl.uint8, torch.int16: tl.int16}
    element |= {torch.int32: tl.int32, torch.uint32: tl.uint32, torch.int64: tl.int64, torch.bool: tl.int1}
    element |= {torch.float8_e4m3fnuz: tl.float8e4b8, torch.float8_e5m2fnuz: tl.float8e5b16}
    interpret(
        cast_kernel,
        (triton.cdiv(x.numel(), 4096),),
        (x, out, x.numel()),
        {"DTYPE": element[dtype], "ROUNDING": rounding, "BLOCK": 4096},
    )
    return out


def random_bits(n: int) -> torch.Tensor:
    """float32 of every kind: uniformly random bits, numbers around bf16 and fp16 ties, and the special ones."""
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(-(2**31), 2**31, (n,), generator=generator, dtype=torch.int64).to(torch.int32)
    ties = (bits & ~0xFFFF) | torch.tensor([0x8000, 0x7FFF, 0x8001, 0x0000], dtype=torch.int32).repeat(n // 4 + 1)[:n]
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 3.4e38, 65504.0, 65519.9, 65520.0, 1e-45, 2e-8])
    return torch.cat([bits.view(F32), ties.view(F32), torch.randn(n, generator=generator), special])


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Bit for bit, any NaN equal to any other; -0.0 and 0.0 differ."""
    assert actual.dtype == expected.dtype
    nan = expected.float().isnan()
    assert torch.equal(actual.float().isnan(), nan)
    size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[actual.dtype.itemsize]
    assert torch.equal(actual.view(size)[~nan], expected.view(size)[~nan])


def saturated(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    limit = torch.finfo(dtype).max
    return x.clamp(-limit, limit).to(dtype)


# Formats


@pytest.mark.parametrize("dtype", [BF16, F16, E4M3, E5M2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz])
def test_float32_is_rounded_to_nearest_even(dtype: torch.dtype) -> None:
    x = random_bits(20000)
    expected = x.to(dtype) if dtype in (BF16, F16) else saturated(x, dtype)
    assert_same(cast(x, dtype), expected)


@pytest.mark.parametrize("dtype", [E4M3, E5M2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, BF16, F16])
def test_every_narrow_number_widens_exactly(dtype: torch.dtype) -> None:
    bits = torch.arange(2 ** (8 * dtype.itemsize))
    x = bits.to(torch.uint8 if dtype.itemsize == 1 else torch.uint16).view(dtype)
    assert_same(cast(x, F32), x.float())
    assert_same(cast(x, dtype), x)
    finite = x[x.float().isfinite()]
    assert_same(cast(cast(finite, F32), dtype), finite)


@pytest.mark.parametrize(("source", "target"), [(BF16, F16), (F16, BF16), (BF16, E5M2), (F16, E4M3), (E5M2, BF16)])
def test_narrow_to_narrow(source: torch.dtype, target: torch.dtype) -> None:
    x = random_bits(3000).to(source) if source != E5M2 else torch.arange(256).to(torch.uint8).view(E5M2)
    expected = saturated(x.float(), target) if target in (E4M3, E5M2) else x.float().to(target)
    assert_same(cast(x, target), expected)


def test_float64_and_integers_are_rounded_once() -> None:
    tie = torch.tensor([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8, -(1 + 2.0**-8 + 2.0**-40), 1e-300, -1e300], dtype=F64)
    expected = [1 + 2.0**-7, 1.0, -(1 + 2.0**-7), 0.0, -math.inf]
    assert cast(tie, BF16).tolist() == expected
    # Through float32 the lowest bit would be lost and the tie fall to the even neighbour below.
    assert cast(torch.tensor([2**30 + 2**22 + 1, 2**30 + 2**22], dtype=torch.int32), BF16).tolist() == [
        2**30 + 2**23,
        2**30,
    ]
    wide = torch.tensor([2**60 + 2**52 + 1, 2**60 + 2**52, -(2**60) - 2**52 - 1, 12], dtype=torch.int64)
    assert cast(wide, BF16).tolist() == [2.0**60 + 2.0**53, 2.0**60, -(2.0**60) - 2.0**53, 12.0]


@pytest.mark.parametrize("dtype", [BF16, F16, E5M2])
def test_rounding_toward_zero(dtype: torch.dtype) -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(2)) * 100
    actual = cast(x, dtype, "rtz").float()
    nearest = x.to(dtype)
    assert (actual.abs() <= x.abs()).all()
    step = (nearest.float() - actual).abs()
    assert (step <= x.abs() * 2.0 ** {BF16: -7, F16: -10, E5M2: -2}[dtype]).all()
    assert ((nearest.float().abs() <= x.abs()) <= (nearest.float() == actual)).all()
    assert step.max() > 0


def test_float_to_integer_saturates_as_the_device_does() -> None:
    x = torch.tensor([1.9, -1.9, 3e9, -3e9, 300.0, -300.0, 70000.0, math.inf, -math.inf, math.nan, 2.0**31, -0.5])
    int32, lowest = 2**31 - 1, -(2**31)
    assert cast(x, torch.int32).tolist() == [1, -1, int32, lowest, 300, -300, 70000, int32, lowest, 0, int32, 0]
    # 8 bits: saturated at 16, then truncated.
    assert cast(x, torch.int8).tolist() == [1, -1, -1, 0, 44, -44, -1, -1, 0, 0, -1, 0]
    assert cast(x, torch.uint8).tolist() == [1, 0, 255, 0, 44, 0, 255, 255, 0, 0, 255, 0]
    assert cast(x, torch.int64)[-3].item() == -(2**63)
    assert cast(x, torch.bool).tolist() == [True] * 12


# Arithmetic in narrow formats


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def sub(a, b):
    return a - b


@triton.jit
def mul(a, b):
    return a * b


@triton.jit
def div(a, b):
    return a / b


@triton.jit
def less(a, b):
    return a < b


@triton.jit
def equal(a, b):
    return a == b


@triton.jit
def largest(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def larger_number(a, b):
    return tl.maximum(a, b)


@triton.jit
def smallest(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def choose(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def negate(a):
    return -a


@triton.jit
def magnitude(a):
    return tl.abs(a)


@triton.jit
def scale_and_shift(a):
    return a * 0.1 + 3


@pytest.mark.parametrize("dtype", [BF16, F16, F32, F64])
@pytest.mark.parametrize(
    ("function", "reference"),
    [
        (add, torch.add),
        (sub, torch.sub),
        (mul, torch.mul),
        (div, torch.div),
        (largest, torch.maximum),
        (smallest, torch.minimum),
        (larger_number, torch.fmax),
        (less, torch.lt),
        (equal, torch.eq),
    ],
    ids=lambda f: f.__name__,
)
def test_binary_operations_are_bit_exact(function, reference, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    x, y = ((torch.randn(3001, generator=generator) * 10 + 1).to(dtype) for _ in range(2))
    x[5:60:7], y[3:50:5], y[100] = math.nan, math.inf, 0
    expected = reference(x, y)
    assert_same(apply(function, x, y, dtype=expected.dtype), expected)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_unary_operations_are_bit_exact(dtype: torch.dtype) -> None:
    x = random_bits(2000).to(dtype)
    assert_same(apply(magnitude, x), x.abs())
    nonzero = x[x != 0]  # before Triton 3.8, -x is 0 - x, which loses the sign of zero
    assert_same(apply(negate, nonzero), -nonzero)
    assert_same(apply(scale_and_shift, x), x * 0.1 + 3 if dtype == F32 else ((x * torch.tensor(0.1, dtype=dtype)) + 3))


def test_where_on_bf16() -> None:
    x, y = torch.randn(777).bfloat16(), torch.randn(777).bfloat16()
    assert_same(apply(choose, x, y), torch.where(x > y, x, y))


@triton.jit
def multiply_add(a, b, c):
    return tl.fma(a, b, c)


@pytest.mark.parametrize("dtype", [BF16, F32, F64])
def test_fma_rounds_once(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    x, y = (torch.randn(300, generator=generator, dtype=F64).to(dtype) for _ in range(2))
    z = (-(x.double() * y.double())).to(dtype)  # cancels all but the product's rounding error
    actual = apply(multiply_add, x, y, z)
    for a, b, c, r in zip(x.tolist(), y.tolist(), z.tolist(), actual.tolist(), strict=True):
        exact = fractions.Fraction(a) * fractions.Fraction(b) + fractions.Fraction(c)
        assert r == torch.tensor(float(exact), dtype=F64).to(dtype).item()
    wide = [torch.randn(300, generator=generator, dtype=F64).to(dtype) for _ in range(3)]
    actual = apply(multiply_add, *wide)
    for a, b, c, r in zip(*(w.tolist() for w in wide), actual.tolist(), strict=True):
        exact = fractions.Fraction(a) * fractions.Fraction(b) + fractions.Fraction(c)
        error = abs(exact - fractions.Fraction(r))
        for other in (math.inf, -math.inf):
            near = torch.nextafter(torch.tensor(r, dtype=dtype), torch.tensor(other, dtype=dtype)).item()
            assert error <= abs(exact - fractions.Fraction(near))
    assert apply(multiply_add, *(torch.tensor([v], dtype=dtype) for v in (math.inf, 1.0, 1.0))).item() == math.inf


@triton.jit
def clamp(a, b, c):
    return tl.clamp(a, b, c)


@triton.jit
def clamp_nan(a, b, c):
    return tl.clamp(a, b, c, propagate_nan=tl.PropagateNan.ALL)


def test_clamp_and_nan() -> None:
    x = torch.tensor([-2.0, 0.5, 9.0, math.nan, -math.inf])
    low, high = torch.full((5,), -1.0), torch.full((5,), 1.0)
    assert apply(clamp, x, low, high).tolist() == [-1.0, 0.5, 1.0, -1.0, -1.0]
    propagated = apply(clamp_nan, x, low, high)
    assert propagated[3].isnan()
    assert propagated[[0, 1, 2, 4]].tolist() == [-1.0, 0.5, 1.0, -1.0]


# Integers


@triton.jit
def quotient(a, b):
    return a // b


@triton.jit
def remainder(a, b):
    return a % b


@triton.jit
def shift_right(a, b):
    return a >> b


@triton.jit
def shift_left(a, b):
    return a << b


@triton.jit
def umulhi(a, b):
    return tl.umulhi(a, b)


@triton.jit
def exclusive_or(a, b):
    return (a ^ b) | (a & ~b)


INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64]


def integers(dtype: torch.dtype, *, seed: int, zero: bool = True) -> torch.Tensor:
    """1500 integers, half of them small and half of any size."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-(2**62), 2**62, (1500,), generator=generator)
    values[::2] = torch.randint(-20, 20, (750,), generator=generator)
    signed = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    narrow = values.to(signed)
    if not zero:
        narrow[narrow == 0] = 7
    return narrow if torch.iinfo(dtype).min < 0 else narrow.view(dtype)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_arithmetic_wraps_and_truncates(dtype: torch.dtype) -> None:
    x, y = integers(dtype, seed=5), integers(dtype, seed=6, zero=False)
    shift = (integers(torch.int64, seed=7) % (8 * dtype.itemsize)).to(dtype)
    modulus, low = 2 ** (8 * dtype.itemsize), torch.iinfo(dtype).min

    def wrapped(value: int) -> int:
        return (value - low) % modulus + low

    def truncated(a: int, b: int) -> int:
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)

    cases = [
        (add, y, lambda a, b: a + b),
        (sub, y, lambda a, b: a - b),
        (mul, y, lambda a, b: a * b),
        (quotient, y, truncated),
        (remainder, y, lambda a, b: a - b * truncated(a, b)),
        (exclusive_or, y, lambda a, b: (a ^ b) | (a & ~b)),
        (shift_right, shift, lambda a, b: a >> b),
        (shift_left, shift, lambda a, b: a << b),
    ]
    if dtype.itemsize >= 4:
        bits = 8 * dtype.itemsize
        cases.append((umulhi, y, lambda a, b: (a % modulus) * (b % modulus) >> bits))
    for function, other, reference in cases:
        actual = apply(function, x, other)
        expected = [wrapped(reference(a, b)) for a, b in zip(x.tolist(), other.tolist(), strict=True)]
        assert actual.tolist() == expected, function.__name__
    comparison = apply(less, x, y, dtype=torch.bool)
    assert comparison.tolist() == [a < b for a, b in zip(x.tolist(), y.tolist(), strict=True)]


@triton.jit
def scalar_division_kernel(out, a, b):
    tl.store(out, a // b)
    tl.store(out + 1, a % b)
    for i in range(-7, -6):
        tl.store(out + 2, i // 2)
        tl.store(out + 3, i % 4)
        tl.store(out + 4, i.to(tl.int64) // 2)


def test_scalar_division_truncates() -> None:
    out = torch.empty(5, dtype=torch.int32)
    interpret(scalar_division_kernel, (1,), (out, -7, 2), {})
    assert out.tolist() == [-3, -1, -3, -3, -3]


@triton.jit
def float_scalar_kernel(x, out, scale):
    i = tl.arange(0, 8)
    tl.store(out + i, tl.load(x + i) * scale)


def test_a_float_argument_is_float32() -> None:
    # bf16 * float32 is float32 on the device: one rounding, at the store.
    x, out = torch.randn(8).bfloat16(), torch.empty(8, dtype=BF16)
    interpret(float_scalar_kernel, (1,), (x, out, 0.1), {})
    assert_same(out, (x.float() * torch.tensor(0.1)).bfloat16())
    double, result = torch.ones(8, dtype=F64), torch.empty(8, dtype=F64)
    interpret(float_scalar_kernel, (1,), (double, result, 0.1), {})
    assert result[0].item() == torch.tensor(0.1).double().item()
    interpret(float_scalar_kernel, (1,), (double, result, -0.0), {})
    assert torch.signbit(result).all()


# Math functions, against float64


@triton.jit
def exp(a):
    return tl.exp(a)


@triton.jit
def exp2(a):
    return tl.exp2(a)


@triton.jit
def log(a):
    return tl.log(a)


@triton.jit
def log2(a):
    return tl.log2(a)


@triton.jit
def sin(a):
    return tl.sin(a)


@triton.jit
def cos(a):
    return tl.cos(a)


@triton.jit
def sqrt(a):
    return tl.sqrt(a)


@triton.jit
def sqrt_rn(a):
    return tl.sqrt_rn(a)


@triton.jit
def rsqrt(a):
    return tl.rsqrt(a)


@triton.jit
def erf(a):
    return tl.erf(a)


@triton.jit
def floor(a):
    return tl.floor(a)


@triton.jit
def ceil(a):
    return tl.ceil(a)


@triton.jit
def sigmoid(a):
    return tl.sigmoid(a)


@triton.jit
def div_rn(a, b):
    return tl.div_rn(a, b)


@triton.jit
def fdiv(a, b):
    return tl.math.fdiv(a, b)


@pytest.mark.parametrize(
    ("function", "reference", "low", "high", "ulps"),
    [
        (exp, torch.exp, -80, 80, 4),
        (exp2, torch.exp2, -100, 100, 4),
        (log, torch.log, 1e-6, 100, 4),
        (log2, torch.log2, 1e-6, 100, 4),
        (sin, torch.sin, -30, 30, 4),
        (cos, torch.cos, -30, 30, 4),
        (sqrt, torch.sqrt, 0, 100, 0.5),
        (sqrt_rn, torch.sqrt, 0, 100, 0.5),
        (rsqrt, torch.rsqrt, 1e-6, 100, 0.51),
        (erf, torch.erf, -5, 5, 4),
        (floor, torch.floor, -1000, 1000, 0),
        (ceil, torch.ceil, -1000, 1000, 0),
        (sigmoid, torch.sigmoid, -20, 20, 4),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_math_functions(function, reference, low: float, high: float, ulps: float) -> None:
    x = torch.rand(1001, generator=torch.Generator().manual_seed(6)) * (high - low) + low
    check_ulps(apply(function, x), reference(x.double()), ulps)
    if function is sqrt_rn:
        return  # Triton has it for float32 only
    wide = x.double()
    torch.testing.assert_close(apply(function, wide), reference(wide), rtol=1e-13, atol=1e-15)


def check_ulps(actual: torch.Tensor, expected: torch.Tensor, ulps: float) -> None:
    """``actual`` (float32) within ``ulps`` units in the last place of ``expected`` (float64)."""
    assert actual.dtype == F32
    finite = expected.isfinite()
    assert_same(actual[~finite], expected[~finite].float())
    unit = torch.pow(2.0, torch.frexp(expected[finite].float())[1].double() - 24).clamp_min(2.0**-149)
    error = (actual[finite].double() - expected[finite]).abs() / unit
    # The sine of a large argument near a root has no relative accuracy; one unit at 1 is allowed there.
    allowed = torch.where(expected[finite].abs() < 1, ulps * 2.0**-24 / unit, torch.tensor(ulps, dtype=F64))
    assert (error <= allowed.clamp_min(ulps)).all(), error.max()


def test_division_is_correctly_rounded() -> None:
    x, y = torch.randn(2001), torch.randn(2001)
    for function in (div, div_rn, fdiv):
        assert_same(apply(function, x, y), (x.double() / y.double()).float())


def test_no_numpy_warning_escapes() -> None:
    x = torch.tensor([0.0, -1.0, math.inf, math.nan, 1e30, 3e38])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apply(log, x), apply(exp, x), apply(div, x, x * 0), apply(sqrt, x), apply(mul, x, x)
        cast(x * 1e8, F16), cast(x, torch.int32)
        apply(quotient, torch.tensor([1, -(2**31)], dtype=torch.int32), torch.tensor([0, -1], dtype=torch.int32))
