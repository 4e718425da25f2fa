"""Dtypes: conversions, promotion, stores that convert, integer and boolean kernels, matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import PROVE

import helion
import helion.language as hl
from helion._testing import check

INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DTYPES = (torch.bool, *INTEGERS, *FLOATS)


def call(kernel: helion.Kernel, *args: Any, **config: Any) -> Any:
    bound = kernel.bind(args)
    return bound.compile_config(config or bound.conservative_config())(*args)


def verify(
    kernel: helion.Kernel, reference: Callable[..., Any], *args: Any, rtol: float | None = None, **config: Any
) -> None:
    bound = kernel.bind(args)
    check(kernel.name, bound.compile_config(config or bound.conservative_config()), reference, args, rtol=rtol)


def values(dtype: torch.dtype) -> torch.Tensor:
    """Values that every dtype holds, and for floats some that need rounding."""
    if dtype == torch.bool:
        return torch.arange(37) % 3 == 0
    x = torch.arange(37) * 3
    return (x / 7).to(dtype) if dtype.is_floating_point else x.to(dtype)


@helion.kernel
def convert(x: torch.Tensor, dtype: torch.dtype, out_dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=out_dtype)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile].to(dtype)
    return out


@helion.kernel
def convert_by_store(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile]
    return out


@helion.kernel
def convert_by_methods(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=torch.float64)
    for tile in hl.tile(x.size(0)):
        v = x[tile]
        total = v.float() + v.double() + v.half() + v.bfloat16() + v.int() + v.long() + v.short() + v.char() + v.byte()
        out[tile] = total + v.bool() + v.type(torch.int32) + v.type_as(total) + v.to(dtype=torch.float32)
    return out


@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_conversions(source: torch.dtype) -> None:
    x = values(source)
    for target in DTYPES:
        assert torch.equal(call(convert, x, target, target), x.to(target)), target
        assert torch.equal(call(convert_by_store, x, torch.empty(37, dtype=target)), x.to(target)), target
        assert torch.equal(call(convert, x, target, torch.float64), x.to(target).double()), target
    expected = (
        x.float() + x.double() + x.half() + x.bfloat16() + x.int() + x.long() + x.short() + x.char() + x.byte()
    ) + x.bool() + x.type(torch.int32) + x.double() + x.float()  # fmt: skip
    assert torch.equal(call(convert_by_methods, x), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_narrowing_rounds_to_nearest_even(dtype: torch.dtype) -> None:
    fine = torch.linspace(-3, 3, 5003) * torch.logspace(-6, 4, 5003)
    assert torch.equal(call(convert, fine, dtype, dtype), fine.to(dtype))
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 65519.9, 65520.0, 1e30, 6e-8, 2.9e-8])
    torch.testing.assert_close(call(convert, special, dtype, dtype), special.to(dtype), rtol=0, atol=0, equal_nan=True)


def test_bit_casts() -> None:
    @helion.kernel
    def bits(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.shape, dtype=torch.int32)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile].view(torch.int32) + 1
        return out

    x = torch.randn(37)
    assert torch.equal(call(bits, x), x.view(torch.int32) + 1)


@helion.kernel
def combine(x: torch.Tensor, y: torch.Tensor, f: Callable[..., Any], dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=dtype)
    for tile in hl.tile(x.size(0)):
        out[tile] = f(x[tile], y[tile])
    return out


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "where": lambda a, b: torch.where(a > b, a, b),
    "maximum": lambda a, b: torch.maximum(a, b),
    "comparison": lambda a, b: a <= b,
    "floor division": lambda a, b: a // b,
}


@pytest.mark.parametrize("first", DTYPES, ids=str)
def test_promotion(first: torch.dtype) -> None:
    """The dtype of a result is eager's: it shows through the store that does not convert."""
    x = values(first)
    for number, second in enumerate(DTYPES, 2 * DTYPES.index(first)):
        y = values(second).flip(0) + (1 if second != torch.bool else torch.ones(37, dtype=torch.bool))
        # the sample has a third of the functions for one pair of dtypes
        names = list(ARITHMETIC) if PROVE else list(ARITHMETIC)[number % 3 :: 3]
        for name in names:
            f = ARITHMETIC[name]
            try:
                eager = f(x, y)
            except RuntimeError:
                continue
            result = call(combine, x, y, f, eager.dtype)
            exact = not eager.dtype.is_floating_point or name not in ("div", "floor division")
            torch.testing.assert_close(
                result, eager, rtol=0 if exact else None, atol=0 if exact else None, equal_nan=True,
                msg=lambda m, name=name, second=second: f"{name} with {second}: {m}",
            )  # fmt: skip


@helion.kernel
def integers(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), 12], dtype=torch.int64)
    for tile in hl.tile(x.size(0)):
        a, b = x[tile], y[tile]
        out[tile, 0] = a // b
        out[tile, 1] = a % b
        out[tile, 2] = torch.div(a, b, rounding_mode="trunc")
        out[tile, 3] = torch.fmod(a, b)
        out[tile, 4] = a & b
        out[tile, 5] = a | b
        out[tile, 6] = a ^ b
        out[tile, 7] = ~a
        out[tile, 8] = (a << 2) + (a >> 1)
        out[tile, 9] = torch.clamp(a, -3, 3) - torch.minimum(a, b)
        out[tile, 10] = -a + abs(b) * torch.sign(a)
        out[tile, 11] = (a == b).to(torch.int64) + (a != 0) * 2
    return out


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_integer_arithmetic(dtype: torch.dtype) -> None:
    x = torch.arange(-20, 21, dtype=dtype)
    for k in (1, 2, 3, -1, -3, 7):
        y = torch.full_like(x, k)
        expected = torch.stack(
            [
                t.long()
                for t in (
                    x // y, x % y, torch.div(x, y, rounding_mode="trunc"), torch.fmod(x, y), x & y, x | y, x ^ y, ~x,
                    (x << 2) + (x >> 1), torch.clamp(x, -3, 3) - torch.minimum(x, y), -x + abs(y) * torch.sign(x),
                    (x == y).to(torch.int64) + (x != 0) * 2,
                )
            ],
            1,
        )  # fmt: skip
        assert torch.equal(call(integers, x, y), expected), k


@helion.kernel
def booleans(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.empty([x.size(0), 6], dtype=torch.bool)
    counts = torch.empty([x.size(0)], dtype=torch.int64)
    for tile in hl.tile(x.size(0)):
        a, b = x[tile], y[tile]
        out[tile, 0] = a & b
        out[tile, 1] = a | ~b
        out[tile, 2] = a ^ b
        out[tile, 3] = torch.logical_not(a)
        out[tile, 4] = torch.where(a, b, True)
        out[tile, 5] = a == b
        counts[tile] = a.to(torch.int64) + b
    return out, counts


def test_booleans() -> None:
    x, y = torch.tensor([0, 0, 1, 1, 1]) > 0, torch.tensor([0, 1, 0, 1, 1]) > 0
    out, counts = call(booleans, x, y)
    expected = torch.stack([x & y, x | ~y, x ^ y, ~x, torch.where(x, y, True), x == y], 1)
    assert torch.equal(out, expected)
    assert torch.equal(counts, x.long() + y)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap_around(dtype: torch.dtype) -> None:
    top = torch.iinfo(dtype).max
    x = torch.tensor([top, top - 1, torch.iinfo(dtype).min], dtype=dtype)
    assert torch.equal(call(combine, x, x, ARITHMETIC["add"], dtype), x + x)
    assert torch.equal(call(combine, x, x, ARITHMETIC["mul"], dtype), x * x)


@helion.kernel
def fills(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty([x.size(0), 5], dtype=dtype)
    for tile in hl.tile(x.size(0)):
        out[tile, 0] = 1
        out[tile, 1] = 0.75
        out[tile, 2] = hl.full([tile], 3, dtype=torch.int32)
        out[tile, 3] = torch.full([tile], True)
        out[tile, 4] = torch.ones_like(x[tile]) * x[tile]
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_stores_convert_like_eager_assignment(dtype: torch.dtype) -> None:
    x = torch.arange(5).float()
    expected = torch.empty(5, 5, dtype=dtype)
    expected[:, 0], expected[:, 1], expected[:, 2], expected[:, 3] = 1, 0.75, 3, True
    expected[:, 4] = x
    assert torch.equal(call(fills, x, dtype), expected)


@helion.kernel
def accumulate_in_half(x: torch.Tensor) -> torch.Tensor:
    """``+=`` keeps the dtype of the accumulator, as in eager."""
    out = torch.empty([x.size(0)], dtype=torch.float32)
    for a in hl.tile(x.size(0)):
        acc = hl.zeros([a], dtype=torch.bfloat16)
        for j in hl.grid(x.size(1)):
            acc += x[a, j]
        out[a] = acc.to(torch.float32)
    return out


def test_in_place_operators_keep_the_dtype() -> None:
    x = torch.randn(5, 37, generator=torch.Generator().manual_seed(0))
    acc = torch.zeros(5, dtype=torch.bfloat16)
    for j in range(37):
        acc += x[:, j]
    assert torch.equal(call(accumulate_in_half, x), acc.float())


# --- matrix products ----------------------------------------------------------------------------------------------------


@helion.kernel
def product(x: torch.Tensor, y: torch.Tensor, dtype: torch.dtype, epilogue: Callable[..., Any]) -> torch.Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=dtype)
    for a, b in hl.tile([m, n]):
        acc = hl.zeros([a, b], dtype=torch.float32)
        for c in hl.tile(k):
            acc = hl.dot(x[a, c], y[c, b], acc=acc)
        out[a, b] = epilogue(acc)
    return out


@helion.kernel
def product_of_whole_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)])
    for a, b in hl.tile(out.size()):
        out[a, b] = (torch.exp(x[a, :]) @ y[:, b]) + torch.mm(x[a, :], torch.cos(y[:, b]))
    return out


@helion.kernel
def product_with_transforms(x: torch.Tensor, y: torch.Tensor, scale: float) -> torch.Tensor:
    """Operands that are not 0 out of range before they are masked."""
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n])
    for a, b in hl.tile([m, n]):
        acc = hl.zeros([a, b])
        for c in hl.tile(k):
            acc = torch.addmm(acc, torch.exp(x[a, c]), (y[c, b] + 1) / scale)
            acc += torch.matmul(x[a, c] + 1, y[c, b].to(torch.float32))
        out[a, b] = acc
    return out


@helion.kernel
def batched(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), x.size(1), y.size(2)])
    for a, b, c in hl.tile(out.size()):
        acc = hl.zeros([a, b, c])
        for d in hl.tile(x.size(2)):
            acc = torch.baddbmm(acc, x[a, b, d], y[a, d, c])
        out[a, b, c] = acc + bias[c]
    return out


@helion.kernel
def transposed_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(1), y.size(0)])
    for a, b in hl.tile(out.size()):
        acc = hl.zeros([a, b])
        for c in hl.tile(x.size(0)):
            acc = hl.dot(x[c, a].T, y[b, c].transpose(0, 1), acc=acc)
        out[a, b] = acc
    return out


@helion.kernel
def scaled_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)])
    for a, b in hl.tile(out.size()):
        start = torch.ones([a, b], dtype=torch.float32)
        out[a, b] = torch.addmm(start, x[a, :], y[:, b], beta=0.5, alpha=2.0)
    return out


@helion.kernel
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(q)
    for a in hl.tile(q.size(0)):
        high = hl.full([a], float("-inf"))
        total = hl.zeros([a])
        acc = hl.zeros([a, q.size(1)])
        rows = q[a, :]
        for b in hl.tile(k.size(0)):
            scores = rows @ k[b, :].T
            raised = torch.maximum(high, scores.amax(-1))
            weights = torch.exp(scores - raised[:, None])
            factor = torch.exp(high - raised)
            total = total * factor + weights.sum(-1)
            acc = torch.addmm(acc * factor[:, None], weights, v[b, :])
            high = raised
        out[a, :] = acc / total[:, None]
    return out


def matrix(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) + 0.5).to(dtype)


SIZES = [(1, 1, 1), (17, 9, 33), (33, 77, 5), (16, 63, 16)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_products(dtype: torch.dtype) -> None:
    for m, k, n in SIZES:
        x, y = matrix(m, k, dtype=dtype), matrix(k, n, dtype=dtype)
        verify(product, lambda x, y, d, f: f(x @ y), x, y, torch.float32, lambda acc: torch.relu(acc), rtol=1e-4)
        verify(product, lambda x, y, d, f: f(x @ y), x, y, dtype, lambda acc: acc * 0.5, block_sizes=[16, 32, 16])


def test_products_with_lanes_out_of_range() -> None:
    for m, k, n in SIZES[1:]:
        x, y = matrix(m, k), matrix(k, n)
        verify(product_of_whole_rows, lambda x, y: torch.exp(x) @ y + x @ torch.cos(y), x, y, rtol=1e-4)
        verify(
            product_with_transforms, lambda x, y, s: torch.exp(x) @ ((y + 1) / s) + (x + 1) @ y, x, y, 0.5, rtol=1e-4
        )
        verify(transposed_product, lambda x, y: x.T @ y.T, x.T.contiguous(), y.T.contiguous(), rtol=1e-4)
        verify(transposed_product, lambda x, y: x.T @ y.T, x.T, y.T, rtol=1e-4)
        verify(scaled_product, lambda x, y: 0.5 + 2 * (x @ y), x, y, rtol=1e-4)
    x, y, bias = matrix(3, 17, 21), matrix(3, 21, 9), matrix(9)
    verify(batched, lambda x, y, b: x @ y + b, x, y, bias, rtol=1e-4)
    q, k, v = matrix(33, 16), matrix(21, 16), matrix(21, 16)
    verify(attention, lambda q, k, v: torch.softmax(q @ k.T, -1) @ v, q, k, v, rtol=1e-4)
    q, k, v = matrix(5, 20), matrix(77, 20), matrix(77, 20)
    verify(attention, lambda q, k, v: torch.softmax(q @ k.T, -1) @ v, -q, k, v, rtol=1e-4)


def test_infinities_out_of_range_do_not_reach_a_product() -> None:
    """``1 / x`` is infinite in lanes that read 0."""

    @helion.kernel
    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty([x.size(0), y.size(1)])
        for a, b in hl.tile(out.size()):
            acc = hl.zeros([a, b])
            for c in hl.tile(x.size(1)):
                acc = hl.dot(1 / x[a, c], torch.log(y[c, b]), acc=acc)
            out[a, b] = acc
        return out

    x, y = matrix(5, 21).abs() + 1, matrix(21, 7).abs() + 1
    verify(kernel, lambda x, y: (1 / x) @ torch.log(y), x, y, rtol=1e-4)


def test_product_of_bytes() -> None:
    @helion.kernel
    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty([x.size(0), y.size(1)], dtype=torch.int32)
        for a, b in hl.tile(out.size()):
            acc = hl.zeros([a, b], dtype=torch.int32)
            for c in hl.tile(x.size(1)):
                acc = hl.dot(x[a, c], y[c, b], acc=acc)
            out[a, b] = acc
        return out

    x = torch.arange(17 * 37).reshape(17, 37).remainder(251).sub(125).to(torch.int8)
    y = torch.arange(37 * 9).reshape(37, 9).remainder(253).sub(120).to(torch.int8)
    assert torch.equal(call(kernel, x, y), x.int() @ y.int())


@pytest.mark.parametrize(
    ("target", "wanted", "precision"),
    [
        ("sm_90", "tf32", "tf32"),
        ("sm_90", "tf32x3", "tf32x3"),
        ("gfx942", "tf32", "tf32"),
        ("gfx942", "tf32x3", "ieee"),
        ("gfx950", "tf32", "ieee"),
    ],
)
def test_fp32_products_have_a_precision_that_the_target_knows(target: str, wanted: str, precision: str) -> None:
    @helion.kernel(dot_precision=wanted)
    def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
        for rows, columns in hl.tile(out.size()):
            acc = hl.zeros([rows, columns], dtype=torch.float32)
            for inner in hl.tile(x.size(1)):
                acc = torch.addmm(acc, x[rows, inner], y[inner, columns])
            out[rows, columns] = acc
        return out

    bound = matmul.bind((torch.empty(64, 64, device="meta"), torch.empty(64, 64, device="meta")), target=target)
    assert f"input_precision='{precision}'" in bound.to_triton_code()
    assert bound.resources().fits


@pytest.mark.parametrize("eager", [True, False])
def test_integers_stay_integers_in_place(eager: bool) -> None:
    def halved(x: torch.Tensor) -> torch.Tensor:
        for t in hl.tile(x.size(0)):
            x[t] /= 2
        return x

    kernel = helion.kernel(halved, ref_mode=helion.RefMode.EAGER if eager else helion.RefMode.OFF)
    torch.testing.assert_close(kernel(torch.ones(3)), torch.full([3], 0.5))
    with pytest.raises((helion.exc.TypeInferenceError, RuntimeError), match=r"cannot be stored back|can't be cast"):
        kernel(torch.arange(4))
