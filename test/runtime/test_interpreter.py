"""Kernels run on CPU tensors: the language, memory, launching, errors, and that Triton is left as it was."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.tools.tensor_descriptor import TensorDescriptor

from helion._locks import TRITON_LOCK
from helion.runtime.interpreter import interpret

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


# Control flow and calls

SCALE = tl.constexpr(3)
OFFSET: tl.constexpr = 2


class Pair(NamedTuple):
    first: object
    second: object


@triton.jit
def with_default(x, factor: tl.constexpr = SCALE, shift=1.0):
    return x * factor + shift


@triton.jit
def first_of(pair):
    return pair[0] + pair[1] * 0


@triton.jit
def control_kernel(x, out, n, pair, LIMIT: tl.constexpr, FLAG: tl.constexpr, FN: tl.constexpr):
    pid = tl.program_id(0)
    value = tl.load(x + pid)
    total = 0.0
    for i in tl.static_range(0, LIMIT, 2):
        total += value * i
    for i in tl.range(0, n, num_stages=2, loop_unroll_factor=1, flatten=True, disallow_acc_multi_buffer=True):
        if (i % 2 == 0 and i != 4) or i == 5:
            total += i.to(tl.float32)
    count = n
    while count > 3:
        count -= 2
        total = total + count
    if FLAG and value > 0:
        total += 100.0
    elif not FLAG or value < -1e9:
        total += 1000.0
    else:
        total -= 100.0
    total += first_of(pair)
    total = total if pid > 0 else -total
    assert total < 1e9, "too large"
    inside = 0 < value < 0.7
    total = tl.where(inside, total + 0.5, total)
    total += sum_of([with_default(value * k) for k in (0, 1)][1], FN(value, shift=OFFSET))
    tl.store(out + pid, total * min(n, 2) / max(n, 7, 3))
    tl.static_assert(LIMIT == 5)
    tl.multiple_of(n, 1)
    tl.debug_barrier()


@triton.jit
def sum_of(a, b):
    return a + b


@pytest.mark.parametrize("flag", [True, False])
def test_control_flow(flag: bool) -> None:
    x, out = torch.tensor([0.5, -2.0, 0.6, 3.0]), torch.empty(4)
    kwargs = {"LIMIT": 5, "FLAG": flag, "FN": with_default, "num_warps": 8, "num_stages": 3}
    interpret(control_kernel, (4,), (x, out, 9, (10, 4)), kwargs)
    for pid, value in enumerate(x.tolist()):
        total = value * (0 + 2 + 4) + (0 + 2 + 6 + 8 + 5) + (7 + 5 + 3)
        if flag:
            total += 100 if value > 0 else -100
        else:
            total += 1000
        total += 10
        total = total if pid > 0 else -total
        total += 0.5 if 0 < value < 0.7 else 0
        total += value * 3 + 1 + value * 3 + 2
        assert out[pid].item() == pytest.approx(total * 2 / 9, rel=1e-6)


def test_closures_and_changed_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    factor = tl.constexpr(5)

    @triton.jit
    def helper(x):
        return x * factor + OFFSET

    @triton.jit
    def kernel(out):
        tl.store(out, helper(1.0))

    out = torch.empty(1)
    interpret(kernel, (1,), (out,), {})
    assert out.item() == 7
    monkeypatch.setitem(globals(), "OFFSET", tl.constexpr(10))
    interpret(kernel, (1,), (out,), {})
    assert out.item() == 15


@triton.jit
def grid_kernel(out):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(axis=2)
    nx, ny = tl.num_programs(0), tl.num_programs(1)
    tl.store(out + (z * ny + y) * nx + x, x + 10 * y + 100 * z + 1000 * tl.num_programs(2))


def test_grid() -> None:
    out = torch.empty(2, 3, 4, dtype=I32)
    interpret(grid_kernel, (4, 3, 2), (out,), {})
    z, y, x = torch.meshgrid(torch.arange(2), torch.arange(3), torch.arange(4), indexing="ij")
    assert torch.equal(out, (x + 10 * y + 100 * z + 2000).int())
    interpret(grid_kernel, (0, 3), (out,), {})


@triton.jit
def rand_kernel(out, seed, N: tl.constexpr):
    tl.store(out + tl.arange(0, N), tl.randint(seed, tl.arange(0, N)))
    tl.store(out + N + tl.arange(0, N), (tl.rand(seed, tl.arange(0, N)) * 1e6).to(tl.int32))


def test_random_numbers_are_philox() -> None:
    out = torch.empty(128, dtype=I32)
    interpret(rand_kernel, (1,), (out, 42), {"N": 64})
    assert out[:64].tolist() == [philox(42, i) for i in range(64)]
    assert 4e5 < out[64:].float().mean() < 6e5


def philox(seed: int, offset: int) -> int:
    """First 32-bit word of Philox4x32-10 (Salmon et al., 2011), as a signed number."""
    key0, key1 = seed & 0xFFFFFFFF, seed >> 32
    c = [offset, 0, 0, 0]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ key0, b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ key1, a & 0xFFFFFFFF]
        key0, key1 = (key0 + 0x9E3779B9) & 0xFFFFFFFF, (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return c[0] - 2**32 if c[0] >= 2**31 else c[0]


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


# Memory


@triton.jit
def copy_kernel(x, out, rows, columns, stride_r, stride_c, OTHER: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    r, c = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    mask = (r < rows) & (c < columns)
    value = tl.load(
        x + r * stride_r + c * stride_c, mask=mask, other=OTHER, cache_modifier=".cg", eviction_policy="evict_last"
    )
    tl.store(out + r * C + c, value)


@pytest.mark.parametrize(
    "dtype", [F32, BF16, F16, torch.float8_e4m3fn, torch.int8, torch.uint8, torch.int64, torch.bool]
)
def test_masked_load_of_strided_tensors(dtype: torch.dtype) -> None:
    base = (randn(20, 30) * 4).to(dtype) if dtype != torch.bool else randn(20, 30) > 0.5
    x = base[3:10, 1:29:3].T  # (10, 7)
    other = {torch.bool: 1, torch.float8_e4m3fn: 2.0}.get(dtype, 3)
    out = torch.empty(16, 8, dtype=dtype)
    interpret(copy_kernel, (1,), (x, out, 10, 7, x.stride(0), x.stride(1)), {"OTHER": other, "R": 16, "C": 8})
    expected = torch.full((16, 8), other, dtype=F32).to(dtype)
    expected[:10, :7] = x
    assert torch.equal(out.float(), expected.float())


@triton.jit
def descriptor_kernel(x, out, rows, columns, stride, R: tl.constexpr, C: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, columns], [stride, 1], [R, C])
    target = tl.make_tensor_descriptor(out, shape=[rows, columns], strides=[stride, 1], block_shape=[R, C])
    for r in range(0, rows, R):
        for c in range(0, columns, C):
            tl.store_tensor_descriptor(target, [r, c], source.load([r, c]) * 2)


@triton.jit
def host_descriptor_kernel(source, target, R: tl.constexpr, C: tl.constexpr):
    row, column = tl.program_id(0) * R, tl.program_id(1) * C
    target.store([row, column], source.load([row, column]) + 1)


def test_tensor_descriptors() -> None:
    x, out = randn(21, 40, dtype=BF16), torch.zeros(21, 40, dtype=BF16)
    interpret(descriptor_kernel, (1,), (x[:, :35], out[:, :35], 21, 35, 40), {"R": 8, "C": 16})
    assert torch.equal(out[:, :35], x[:, :35] * 2)
    assert (out[:, 35:] == 0).all()
    y = torch.zeros(21, 40)
    source, target = (TensorDescriptor.from_tensor(t, [8, 16]) for t in (x.float(), y))
    interpret(host_descriptor_kernel, (3, 3), (source, target), {"R": 8, "C": 16})
    assert torch.equal(y, x.float() + 1)
    with pytest.raises(ValueError, match=r"'descriptor_kernel', program \(0, 0, 0\): a tensor descriptor needs outer"):
        interpret(descriptor_kernel, (1,), (x, out, 21, 35, 35), {"R": 8, "C": 16})


@triton.jit
def block_pointer_kernel(x, out, rows, columns, R: tl.constexpr, C: tl.constexpr):
    source = tl.make_block_ptr(x, (rows, columns), (columns, 1), (0, 0), (R, C), (1, 0))
    target = tl.make_block_ptr(out, (rows, columns), (columns, 1), (0, 0), (R, C), (1, 0))
    for _ in range(0, columns, C):
        value = tl.load(source, boundary_check=(0, 1), padding_option="zero")
        tl.store(target, value + 1, boundary_check=(0, 1))
        source = tl.advance(source, (0, C))
        target = tl.advance(target, (0, C))


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
def test_block_pointers() -> None:
    x, out = randn(5, 37), torch.zeros(5, 37)

    def run() -> None:
        interpret(block_pointer_kernel, (1,), (x, out, 5, 37), {"R": 8, "C": 16})

    if tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 9):
        with pytest.raises(NotImplementedError, match="Block pointers have been removed"):
            run()
    else:
        run()
        assert torch.equal(out, x + 1)


@triton.jit
def atomic_kernel(index, value, target, old, n, F: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    where = tl.load(index + i, mask=i < n, other=0)
    before = F(target + where, tl.load(value + i, mask=i < n, other=0), i < n)
    tl.store(old + i, before, mask=i < n)


@triton.jit
def atomic_add(p, v, mask):
    return tl.atomic_add(p, v, mask=mask, sem="relaxed")


@triton.jit
def atomic_max(p, v, mask):
    return tl.atomic_max(p, v, mask=mask)


@triton.jit
def atomic_min(p, v, mask):
    return tl.atomic_min(p, v, mask=mask)


@triton.jit
def atomic_and(p, v, mask):
    return tl.atomic_and(p, v, mask=mask)


@triton.jit
def atomic_or(p, v, mask):
    return tl.atomic_or(p, v, mask=mask)


@triton.jit
def atomic_xor(p, v, mask):
    return tl.atomic_xor(p, v, mask=mask)


@triton.jit
def atomic_xchg(p, v, mask):
    return tl.atomic_xchg(p, v, mask=mask)


ATOMICS = {
    "add": (atomic_add, lambda a, b: a + b, [F32, torch.float64, BF16, F16, I32, torch.int64, torch.uint32]),
    "max": (atomic_max, max, [F32, torch.float64, I32, torch.int64, torch.uint32, torch.uint64]),
    "min": (atomic_min, min, [F32, I32, torch.uint32]),
    "and": (atomic_and, lambda a, b: a & b, [I32, torch.int64]),
    "or": (atomic_or, lambda a, b: a | b, [I32, torch.uint32]),
    "xor": (atomic_xor, lambda a, b: a ^ b, [I32]),
    "xchg": (atomic_xchg, lambda a, b: b, [F32, I32, torch.int64]),
}


@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n, (_, _, dtypes) in ATOMICS.items() for d in dtypes], ids=str)
def test_atomics(name: str, dtype: torch.dtype) -> None:
    function, reference, _ = ATOMICS[name]
    n, generator = 50, torch.Generator().manual_seed(9)
    index = torch.randint(0, 6, (n,), generator=generator, dtype=I32)
    if dtype.is_floating_point:
        value, target = (torch.randn(n, generator=generator) * 3).to(dtype), randn(6, seed=10).to(dtype)
    else:
        value, target = (torch.randint(0, 2**31 - 1, (k,), generator=generator).to(dtype) for k in (n, 6))
        if torch.iinfo(dtype).min < 0:
            value = torch.where(torch.arange(n) % 3 == 0, -value, value)
        elif dtype == torch.uint32:
            value[0], target[5] = 2**32 - 5, 2**31 + 3
    expected, expected_old = target.tolist(), []
    for i, v in zip(index.tolist(), value.tolist(), strict=True):
        expected_old.append(expected[i])
        after = torch.tensor(reference(expected[i], v), dtype=torch.float64 if dtype.is_floating_point else None)
        expected[i] = wrapped(int(after), dtype) if not dtype.is_floating_point else after.to(dtype).item()
    old = torch.empty(n, dtype=dtype)
    interpret(atomic_kernel, (1,), (index, value, target, old, n), {"F": function, "BLOCK": 64})
    assert target.tolist() == expected
    if name in ("max", "min") and dtype.is_floating_point:
        return  # Triton makes two integer atomics of it, of the negative and of the other lanes
    assert old.tolist() == expected_old


def wrapped(value: int, dtype: torch.dtype) -> int:
    low = torch.iinfo(dtype).min
    return (value - low) % 2 ** (8 * dtype.itemsize) + low


@triton.jit
def lock_kernel(lock, total, order):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    before = tl.load(total)
    tl.store(total, before + 1)
    tl.store(order + tl.program_id(0), before)
    tl.atomic_xchg(lock, 0)


def test_compare_and_swap() -> None:
    lock, total, order = torch.zeros(1, dtype=I32), torch.zeros(1), torch.empty(5)
    interpret(lock_kernel, (5,), (lock, total, order), {})
    assert (lock.item(), total.item(), order.tolist()) == (0, 5.0, [0.0, 1.0, 2.0, 3.0, 4.0])


@triton.jit
def raw_pointer_kernel(addresses, out, N: tl.constexpr):
    source = tl.load(addresses).to(tl.pointer_type(tl.float32))
    tl.store(out + tl.arange(0, N), tl.load(source + tl.arange(0, N)))


def test_pointers_made_from_integers_are_not_checked() -> None:
    x, out = randn(8), torch.empty(8)
    interpret(raw_pointer_kernel, (1,), (torch.tensor([x.data_ptr()]), out), {"N": 8})
    assert torch.equal(out, x)


@triton.jit
def shifted_copy_kernel(x, out, shift, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i + shift))


def test_out_of_bounds_access_is_an_error() -> None:
    whole, out = randn(48), torch.empty(32)
    part = whole[8:40]
    interpret(shifted_copy_kernel, (1,), (part, out, 8), {"BLOCK": 32})  # outside the view, inside its storage
    assert torch.equal(out, whole[16:])
    message = r"kernel 'shifted_copy_kernel', program \(0, 0, 0\): out-of-bounds access: reads 4 bytes at address"
    with pytest.raises(IndexError, match=rf"{message} 0x[0-9a-f]+, 0 bytes past the end of argument 'x' \(192 bytes\)"):
        interpret(shifted_copy_kernel, (1,), (part, out, 16), {"BLOCK": 32})
    with pytest.raises(IndexError, match=rf"{message} .* 400 bytes before .*Mask the access"):
        interpret(shifted_copy_kernel, (1,), (whole, out, -100), {"BLOCK": 32})
    small = torch.full((8,), 7.0)
    with pytest.raises(IndexError, match=r"writes 4 bytes .* past the end of argument 'out'"):
        interpret(shifted_copy_kernel, (1,), (whole, small, 0), {"BLOCK": 32})
    assert (small == 7).all()  # nothing was written


# Debugging aids and refusals


@triton.jit
def printing_kernel(x, N: tl.constexpr):
    value = tl.load(x + tl.arange(0, N))
    tl.device_print("value", value)
    tl.static_print("N is", N)
    print("double", tl.sum(value) * 2)


def test_printing(capsys: pytest.CaptureFixture[str]) -> None:
    interpret(printing_kernel, (2,), (torch.arange(4, dtype=I32),), {"N": 4})
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"pid ({p}, 0, 0) {t}" if "N" not in t else t for p in (0, 1) for t in PRINTED]


PRINTED = ("value: [0 1 2 3]", "N is 4", "double: 12")


@triton.jit
def failing_kernel(x, MODE: tl.constexpr, N: tl.constexpr):
    value = tl.load(x + tl.arange(0, N))
    if MODE == "assert":
        tl.device_assert(value < 3, "value is too large")
    elif MODE == "statement":
        assert tl.max(value, axis=0) < 3, "statement"
    elif MODE == "static":
        tl.static_assert(N == 3, "N must be 3")
    elif MODE == "assume":
        tl.assume(tl.program_id(0) == 1)
    elif MODE == "asm":
        tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [value], dtype=tl.int32, is_pure=True, pack=1)
    elif MODE == "condition":
        if value > 1:
            tl.store(x, 0)
    elif MODE == "type":
        tl.exp(value)
    elif MODE == "python":
        undefined_name(value)  # noqa: F821


@pytest.mark.parametrize(
    ("mode", "error", "message"),
    [
        ("assert", AssertionError, r"'failing_kernel', program \(0, 0, 0\): tl.device_assert failed: value is too"),
        ("statement", AssertionError, "statement"),
        ("static", AssertionError, "tl.static_assert failed: N must be 3"),
        ("assume", AssertionError, r"kernel 'failing_kernel', program \(0, 0, 0\): tl.assume does not hold"),
        ("asm", NotImplementedError, r"'failing_kernel'.*tl.inline_asm_elementwise .*'mov.b32 \$0, \$1;'"),
        ("condition", ValueError, r"a condition needs a scalar, got a block of shape \[4\]"),
        ("type", ValueError, "Expected dtype .*fp32.* but got int32"),
        ("python", NameError, "undefined_name"),
    ],
)
def test_errors_in_kernels(mode: str, error: type[Exception], message: str) -> None:
    before = snapshot()
    with pytest.raises(error, match=message) as caught:
        interpret(failing_kernel, (2,), (torch.arange(4, dtype=I32),), {"MODE": mode, "N": 4})
    line = inspect.getsourcelines(failing_kernel.fn)[1]
    frames = [f for f in caught.traceback if f.name == "failing_kernel"]
    assert frames[0].path.name == "test_interpreter.py"
    assert line < frames[0].lineno < line + 30
    assert snapshot() == before
    assert TRITON_LOCK.acquire(blocking=False)
    TRITON_LOCK.release()


def test_unsuitable_arguments() -> None:
    x = torch.empty(4)
    with pytest.raises(ValueError, match=r"'shifted_copy_kernel': argument 'x' is on meta.*CPU"):
        interpret(shifted_copy_kernel, (1,), (x.to("meta"), x, 0), {"BLOCK": 4})
    with pytest.raises(TypeError, match=r"argument 'x' has dtype torch\.complex64"):
        interpret(shifted_copy_kernel, (1,), (torch.empty(4, dtype=torch.complex64), x, 0), {"BLOCK": 4})
    with pytest.raises(TypeError, match="argument 'shift' is a str"):
        interpret(shifted_copy_kernel, (1,), (x, x, "0"), {"BLOCK": 4})
    with pytest.raises(TypeError, match="kernel 'shifted_copy_kernel': missing a required argument: 'BLOCK'"):
        interpret(shifted_copy_kernel, (1,), (x, x, 0), {})
    for grid in ((), (1, 1, 1, 1), (-1,), (1.0,)):
        with pytest.raises(ValueError, match="'shifted_copy_kernel': the grid must be one to three integers"):
            interpret(shifted_copy_kernel, grid, (x, x, 0), {"BLOCK": 4})


# Triton stays as it is


def snapshot() -> dict[str, object]:
    """Every attribute, by identity, of what an interpreter could be tempted to replace."""
    import triton.runtime.interpreter as stock

    owners = [tl, tl.core, tl.math, tl.standard, tl.random, tl.core.tensor, tl.core.dtype]
    owners += [tl.core.tensor_descriptor_base, libdevice, cuda_libdevice, triton.runtime.jit.JITFunction, stock]
    owners += [stock.InterpreterBuilder, stock.GridExecutor, stock.InterpretedFunction, tl.semantic.TritonSemantic]
    return {f"{o.__name__}.{name}": id(value) for o in owners for name, value in vars(o).items() if name != "_cache"}


def compile_offline(block: int) -> str:
    source = ASTSource(shifted_copy_kernel, {"x": "*fp32", "out": "*fp32", "shift": "i32"}, {"BLOCK": block})
    with TRITON_LOCK:
        return triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ttir"]


def test_triton_is_not_changed() -> None:
    before = snapshot()
    seen: list[dict[str, object]] = []
    out = torch.empty(8)

    def hook() -> int:
        seen.append(snapshot())
        return 1

    @triton.jit
    def kernel(out, HOOK: tl.constexpr):
        tl.store(out + tl.arange(0, 8), HOOK() * 1.0)

    interpret(kernel, (1,), (out, tl.constexpr(hook)), {})
    assert (out == 1).all()
    assert seen == [before]
    assert snapshot() == before
    assert "tt.load" in compile_offline(64)
    interpret(shifted_copy_kernel, (1,), (randn(8), out, 0), {"BLOCK": 8})
    assert torch.equal(out, randn(8))
    assert "tt.load" in compile_offline(128)


def test_one_thread_interprets_while_another_compiles() -> None:
    results: list[torch.Tensor] = []
    texts: list[str] = []
    failures: list[BaseException] = []

    def interpreting() -> None:
        for seed in range(30):
            x = randn(16, 32, seed=seed)
            results.append(on_block(softmax_rows, x, (16, 32)) - torch.softmax(x, 1))

    def compiling() -> None:
        texts.extend(compile_offline(2**k) for k in range(4, 12))

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (interpreting, compiling, interpreting)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(results) == 60
    assert max(r.abs().max().item() for r in results) < 1e-6
    assert len(texts) == 8
    assert all("tt.load" in text for text in texts)


@triton.jit
def empty_kernel(x):
    pass


def test_a_launch_costs_little() -> None:
    x = torch.empty(1)
    interpret(empty_kernel, (1,), (x,), {})
    best = min(timed(lambda: interpret(empty_kernel, (1,), (x,), {})) for _ in range(20))
    assert best < 0.5e-3


def timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def test_nothing_heavy_is_imported(tmp_path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import sys
            import torch, triton, triton.language as tl
            from helion.runtime.interpreter import interpret
            @triton.jit
            def kernel(x, N: tl.constexpr):
                i = tl.arange(0, N)
                tl.store(x + i, tl.softmax(tl.erf(tl.load(x + i).to(tl.float32))).to(tl.bfloat16))
            x = torch.ones(8, dtype=torch.bfloat16)
            interpret(kernel, (1,), (x,), {"N": 8})
            assert (x == 0.125).all()
            heavy = ("torch._dynamo", "torch._inductor", "triton.runtime.interpreter", "scipy")
            print([name for name in sys.modules if name.startswith(heavy)])
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": REPOSITORY}
    command = [sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


REPOSITORY = __file__.rsplit("/test/", 1)[0]
