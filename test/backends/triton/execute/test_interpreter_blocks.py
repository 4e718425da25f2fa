"""Operations on blocks in interpreted kernels: reductions, scans, shapes, elementwise maps, matrix products."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl

from helion.backends.triton.execute.interpreter import interpret

F32, BF16, F16, I32 = torch.float32, torch.bfloat16, torch.float16, torch.int32


def randn(*shape: int, dtype: torch.dtype = F32, seed: int = 0, mean: float = 0.5) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) + mean).to(dtype)


@triton.jit
def block_kernel(x, out, F: tl.constexpr, R: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr):
    """F of one (R, C) block; its OUT elements are stored flat."""
    i = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    result = F(tl.load(x + i))
    if OUT == 1:
        tl.store(out, result)
    else:
        tl.store(out + tl.arange(0, OUT), tl.reshape(result, [OUT]))


def on_block(function, x: torch.Tensor, out_shape: tuple[int, ...], dtype: torch.dtype | None = None) -> torch.Tensor:
    out = torch.empty(out_shape, dtype=dtype or x.dtype)
    rows, columns = x.shape
    interpret(block_kernel, (1,), (x, out), {"F": function, "R": rows, "C": columns, "OUT": out.numel()})
    return out


# Reductions and scans


@triton.jit
def sum_rows(x):
    return tl.sum(x, axis=1)


@triton.jit
def sum_columns(x):
    return tl.sum(x, axis=0)


@triton.jit
def sum_all(x):
    return tl.sum(x)


@triton.jit
def max_rows(x):
    return x.max(axis=-1)


@triton.jit
def min_columns(x):
    return tl.min(x, axis=0)


@triton.jit
def argmax_rows(x):
    return tl.argmax(x, axis=1)


@triton.jit
def argmin_columns(x):
    return tl.argmin(x, axis=0)


@triton.jit
def softmax_rows(x):
    e = tl.exp(x - tl.max(x, axis=1, keep_dims=True))
    return e / tl.sum(e, axis=1, keep_dims=True)


@triton.jit
def cumsum_rows(x):
    return tl.cumsum(x, axis=1)


@triton.jit
def cumsum_from_below(x):
    return tl.cumsum(x, axis=0, reverse=True)


@triton.jit
def cumprod_rows(x):
    return tl.cumprod(x, axis=1)


@triton.jit
def xor_rows(x):
    return tl.xor_sum(x, axis=1)


BLOCK_CASES = [
    (sum_rows, lambda x: x.sum(1)),
    (sum_columns, lambda x: x.sum(0)),
    (sum_all, lambda x: x.sum()),
    (max_rows, lambda x: x.amax(1)),
    (min_columns, lambda x: x.amin(0)),
    (softmax_rows, lambda x: torch.softmax(x, 1)),
    (cumsum_rows, lambda x: x.cumsum(1)),
    (cumsum_from_below, lambda x: x.flip(0).cumsum(0).flip(0)),
    (cumprod_rows, lambda x: x.cumprod(1)),
]


@pytest.mark.parametrize(("function", "reference"), BLOCK_CASES, ids=lambda f: getattr(f, "__name__", ""))
def test_library_reductions_and_scans(function, reference: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = randn(16, 32)
    expected = reference(x.double())
    torch.testing.assert_close(on_block(function, x, tuple(expected.shape)).double(), expected, rtol=1e-6, atol=1e-6)


def test_reductions_of_other_types() -> None:
    x = randn(8, 64, dtype=BF16)
    assert torch.equal(on_block(max_rows, x, (8,)), x.amax(1))
    torch.testing.assert_close(on_block(sum_rows, x, (8,)), x.float().sum(1).bfloat16(), rtol=2**-8, atol=0)
    n = torch.randint(-100, 100, (8, 64), dtype=torch.int8)
    assert torch.equal(on_block(sum_rows, n, (8,), I32), n.sum(1).int())
    assert torch.equal(on_block(argmax_rows, n, (8,), I32), n.argmax(1).int())
    assert torch.equal(on_block(xor_rows, n.int(), (8,)), torch.tensor([xor_of(row) for row in n.tolist()]).int())
    flags = randn(4, 8) > 0
    assert torch.equal(on_block(sum_rows, flags, (4,), I32), flags.sum(1).int())


def xor_of(values: list[int]) -> int:
    result = 0
    for value in values:
        result ^= value
    return result


def test_ties_and_nan_in_reductions() -> None:
    x = torch.tensor([[1.0, 5.0, 5.0, 2.0], [3.0, 3.0, 0.0, 0.0]])
    assert on_block(argmax_rows, x, (2,), I32).tolist() == [1, 0]
    assert on_block(argmin_columns, x, (4,), I32).tolist() == [0, 1, 1, 1]
    x[0, 1] = float("nan")
    assert on_block(max_rows, x, (2,)).tolist() == [5.0, 3.0]  # tl.max drops NaN
    assert on_block(sum_rows, x, (2,))[0].isnan()


@triton.jit
def combine_largest(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def reduce_largest(x):
    return tl.reduce(x, 1, combine_largest)


@triton.jit
def combine_welford(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    delta = mean_b - mean_a
    n = n_a + n_b
    return mean_a + delta * n_b / n, m2_a + m2_b + delta * delta * n_a * n_b / n, n


@triton.jit
def variance_rows(x):
    _, m2, n = tl.reduce((x, tl.zeros_like(x), tl.full(x.shape, 1.0, tl.float32)), 1, combine_welford)
    return m2 / n


@triton.jit
def combine_branching(a, b):
    if a > b:
        return a
    else:
        return b


@triton.jit
def reduce_branching(x):
    return tl.reduce(x, 0, combine_branching, keep_dims=True)


@triton.jit
def combine_recurrence(a_gain, a_value, b_gain, b_value):
    return a_gain * b_gain, b_gain * a_value + b_value


@triton.jit
def recurrence_rows(x):
    _, values = tl.associative_scan((x * 0 + 0.5, x), 1, combine_recurrence)
    return values


@triton.jit
def combine_first(a, b):
    return a


@triton.jit
def last_everywhere(x):
    return tl.associative_scan(x, 1, combine_first, reverse=True)


@triton.jit
def scan_bf16(x):
    return tl.associative_scan(x, 1, combine_largest)


def test_own_combine_functions() -> None:
    x = randn(8, 32)
    torch.testing.assert_close(on_block(variance_rows, x, (8,)), x.var(1, unbiased=False), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(on_block(reduce_branching, x[:4, :8].contiguous(), (8,)), x[:4, :8].amax(0))
    expected, last = torch.empty(8, 32), torch.zeros(8)
    for k in range(32):
        last = 0.5 * last + x[:, k]
        expected[:, k] = last
    torch.testing.assert_close(on_block(recurrence_rows, x, (8, 32)), expected)
    assert torch.equal(on_block(last_everywhere, x, (8, 32)), x[:, 31:].expand(8, 32))
    half = x.bfloat16()
    assert torch.equal(on_block(scan_bf16, half, (8, 32)), half.cummax(1).values)
    x[3, 7] = float("nan")
    assert on_block(reduce_largest, x, (8,)).isnan().tolist() == [i == 3 for i in range(8)]


# Shapes


@triton.jit
def sort_rows(x):
    return tl.sort(x, descending=True)


@triton.jit
def top_four(x):
    return tl.topk(x, 4)


@triton.jit
def flip_rows(x):
    return tl.flip(x, 1)


@triton.jit
def swap_pairs(x):
    a, b = tl.split(tl.reshape(x, [x.shape[0], x.shape[1] // 2, 2]))
    return tl.join(b, a)


@triton.jit
def transpose(x):
    return tl.trans(x) + x.T - tl.permute(x, (1, 0))


@triton.jit
def interleave_with_self(x):
    return tl.interleave(x, -x)


@triton.jit
def middle_to_front(x):
    return tl.permute(tl.reshape(x, [2, 4, x.numel // 8]), 1, 0, 2)


@triton.jit
def outer_sum(x):
    column = tl.expand_dims(tl.sum(x, axis=1), 1)
    row = tl.broadcast_to(tl.sum(x, axis=0)[None, :], x.shape)
    return column + row


@triton.jit
def gather_reversed(x):
    index = x.shape[1] - 1 - tl.arange(0, x.shape[1])[None, :]
    return tl.gather(x, tl.broadcast_to(index, x.shape), axis=1)


@triton.jit
def concatenate(x):
    row = tl.ravel(x)
    return tl.cat(row, row * 2, can_reorder=True)


@pytest.mark.parametrize("dtype", [F32, BF16, I32], ids=str)
@pytest.mark.parametrize(
    ("function", "reference"),
    [
        (sort_rows, lambda x: x.sort(1, descending=True).values),
        (top_four, lambda x: x.topk(4, 1).values),
        (flip_rows, lambda x: x.flip(1)),
        (swap_pairs, lambda x: x.reshape(8, 8, 2).flip(2)),
        (transpose, lambda x: x.T),
        (interleave_with_self, lambda x: torch.stack([x, -x], -1).reshape(8, 32)),
        (middle_to_front, lambda x: x.reshape(2, 4, 16).permute(1, 0, 2)),
        (gather_reversed, lambda x: x.flip(1)),
        (concatenate, lambda x: torch.cat([x.ravel(), x.ravel() * 2])),
    ],
    ids=lambda f: getattr(f, "__name__", ""),
)
def test_shape_operations(function, reference: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> None:
    x = (randn(8, 16) * 10).to(dtype)
    expected = reference(x).contiguous()
    assert torch.equal(on_block(function, x, tuple(expected.shape)), expected)


def test_broadcasting() -> None:
    x = randn(8, 16)
    torch.testing.assert_close(on_block(outer_sum, x, (8, 16)), x.sum(1, keepdim=True) + x.sum(0, keepdim=True))


@triton.jit
def histogram_kernel(x, out, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    i = tl.arange(0, BLOCK)
    values = tl.load(x + i, mask=i < n, other=-1)
    tl.store(out + tl.arange(0, BINS), tl.histogram(values, BINS))


def test_histogram() -> None:
    x = torch.randint(0, 12, (50,), dtype=I32)
    out = torch.empty(8, dtype=I32)
    interpret(histogram_kernel, (1,), (x, out, 50), {"BLOCK": 64, "BINS": 8})
    assert torch.equal(out, torch.bincount(x, minlength=12)[:8].int())


# Maps


@triton.jit
def selu_scalar(x, alpha):
    if x > 0:
        return x
    else:
        return alpha * (tl.exp(x) - 1)


@triton.jit
def mapped(x):
    return tl.map_elementwise(selu_scalar, x, 1.5)


@triton.jit
def swap_two(a, b):
    return b, a


@triton.jit
def mapped_in_pairs(x):
    return tl.map_elementwise(swap_two, x, pack=2)


def test_map_elementwise() -> None:
    x = randn(4, 16)
    torch.testing.assert_close(on_block(mapped, x, (4, 16)), torch.where(x > 0, x, 1.5 * torch.expm1(x)))
    assert torch.equal(on_block(mapped_in_pairs, x, (4, 16)), x.reshape(4, 8, 2).flip(2).reshape(4, 16))


# Matrix products


@triton.jit
def dot_kernel(
    a, b, c, M, N, K, OUT: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=OUT)
    for k in range(0, tl.cdiv(K, BK)):
        rk = k * BK + tl.arange(0, BK)
        x = tl.load(a + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0)
        y = tl.load(b + rk[:, None] * N + rn[None, :], mask=(rk[:, None] < K) & (rn[None, :] < N), other=0.0)
        acc = tl.dot(x, y, acc=acc, out_dtype=OUT, input_precision=PRECISION, max_num_imprecise_acc=0)
    tl.store(c + rm[:, None] * N + rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


@pytest.mark.parametrize(
    ("dtype", "out", "triton_out"),
    [
        (BF16, F32, tl.float32),
        (F16, F32, tl.float32),
        (F16, F16, tl.float16),
        (F32, F32, tl.float32),
        (torch.float64, torch.float64, tl.float64),
        (torch.float8_e4m3fn, F32, tl.float32),
        (torch.float8_e5m2, F32, tl.float32),
        (torch.int8, I32, tl.int32),
    ],
    ids=str,
)
@pytest.mark.parametrize("precision", ["ieee", "tf32x3"])
def test_dot(dtype: torch.dtype, out: torch.dtype, triton_out: tl.dtype, precision: str) -> None:
    m, n, k = 45, 37, 51
    a, b = (randn(m, k) * 3).to(dtype), (randn(k, n, seed=1) * 3).to(dtype)
    c = torch.empty(m, n, dtype=out)
    blocks = {"BM": 32, "BN": 16, "BK": 32, "OUT": triton_out, "PRECISION": precision}
    interpret(dot_kernel, (2, 3), (a, b, c, m, n, k), blocks)
    expected = a.double() @ b.double()
    tolerance = {F32: 1e-5, F16: 2e-3, torch.float64: 1e-13, I32: 0}[out]
    torch.testing.assert_close(c.double(), expected, rtol=tolerance, atol=tolerance * 100)


@triton.jit
def bmm_kernel(a, b, c, B: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, B)[:, None, None] * N * N + tl.arange(0, N)[None, :, None] * N + tl.arange(0, N)[None, None, :]
    tl.store(c + i, tl.dot(tl.load(a + i), tl.load(b + i), out_dtype=tl.float32))


def test_batched_dot() -> None:
    a, b, c = randn(4, 16, 16, dtype=BF16), randn(4, 16, 16, dtype=BF16, seed=1), torch.empty(4, 16, 16)
    interpret(bmm_kernel, (1,), (a, b, c), {"B": 4, "N": 16})
    torch.testing.assert_close(c, a.float() @ b.float())


@triton.jit
def scaled_dot_kernel(a, sa, b, sb, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rm, rn, rk, rs = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K), tl.arange(0, K // 32)
    half = tl.arange(0, K // 2)
    x = tl.load(a + rm[:, None] * K + rk[None, :])
    y = tl.load(b + half[:, None] * N + rn[None, :])
    x_scale = tl.load(sa + rm[:, None] * (K // 32) + rs[None, :])
    y_scale = tl.load(sb + rn[:, None] * (K // 32) + rs[None, :])
    acc = tl.dot_scaled(x, x_scale, "e4m3", y, y_scale, "e2m1")
    tl.store(c + rm[:, None] * N + rn[None, :], acc)


def test_scaled_dot() -> None:
    m, n, k = 16, 32, 64
    a = randn(m, k, dtype=torch.float8_e4m3fn)
    codes = torch.randint(0, 16, (k, n), dtype=torch.uint8)
    packed = codes[0::2] | (codes[1::2] << 4)
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = table[(codes & 7).long()] * torch.where(codes > 7, -1.0, 1.0)
    a_scale, b_scale = (torch.randint(125, 130, (rows, k // 32), dtype=torch.uint8) for rows in (m, n))
    c = torch.empty(m, n)
    interpret(scaled_dot_kernel, (1,), (a, a_scale, packed, b_scale, c), {"M": m, "N": n, "K": k})
    wide_a = a.float() * (2.0 ** (a_scale.float() - 127)).repeat_interleave(32, 1)
    wide_b = values * (2.0 ** (b_scale.float() - 127)).repeat_interleave(32, 1).T
    torch.testing.assert_close(c, wide_a @ wide_b)
