"""Row kernels that store one element for each pair of columns: packed codes of 4 bits and their scales."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from backends.cute.test_row_kernels import numbers, prepared, run
from harness import tensor

import helion
import helion.language as hl
from benchmarks.row_pairs import ENDS, code, codes_of, gated, int4, normed, of_blocks, of_powers, of_rows
from helion import exc
from helion.backends.cute.plan.rowwise.choice import RowChoice
from helion.backends.cute.resources.rowwise.shape import row_shape_of

BF16, FP8, UINT8 = torch.bfloat16, torch.float8_e4m3fn, torch.uint8
CHOICES = (
    RowChoice(cluster=1, warps=1, rows=4),
    RowChoice(cluster=1, warps=4),
    RowChoice(cluster=2, warps=8),
)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize(("dtype", "n"), [(BF16, 1000), (BF16, 1024), (torch.float32, 1004), (torch.float16, 2048)])
def test_codes_with_a_scale_for_each_row(choice: RowChoice, dtype: torch.dtype, n: int) -> None:
    x = numbers(5, n, dtype=dtype) - 2
    low, scale = torch.full((5, n // 2), 7, dtype=UINT8), torch.full((5,), 7.0)
    run(of_rows, (x, low, scale), choice)
    assert torch.equal(scale, x.float().abs().amax(-1) / 6.0)
    assert torch.equal(low, codes_of(x.float() / scale[:, None]))


def test_ties_round_to_even() -> None:
    x = torch.tensor([[sign * end for end, _ in ENDS for sign in (1, -1)] + [6.0, -0.0]] * 2).bfloat16()
    x = torch.cat([x] * 8, 1)
    low, scale = torch.full((2, 64), 7, dtype=UINT8), torch.full((2,), 7.0)
    run(of_rows, (x, low, scale), RowChoice(warps=1))
    found = torch.stack([low & 15, low >> 4], -1).view(2, -1)[0, :14:2]
    assert found.tolist() == [0, 2, 2, 4, 4, 6, 6]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_blocks_with_scales_of_8_bits(choice: RowChoice) -> None:
    x = numbers(5, 1024) - 2
    low, scale = torch.full((5, 512), 7, dtype=UINT8), torch.full((5, 64), 7.0).to(FP8)
    run(of_blocks, (x, low, scale), choice)
    blocks = x.float().view(5, 64, 16)
    step = (blocks.abs().amax(-1) / 6.0).to(FP8)
    assert torch.equal(scale.view(UINT8), step.view(UINT8))
    assert torch.equal(low, codes_of((blocks / step.float()[:, :, None]).view(5, 1024)))
    low, exponents = torch.full((5, 512), 7, dtype=UINT8), torch.full((5, 32), 7, dtype=UINT8)
    run(of_powers, (x, low, exponents), choice)
    blocks = x.float().view(5, 32, 32)
    power = torch.floor(torch.log2(blocks.abs().amax(-1).double())) - 2
    assert torch.equal(exponents, (power + 127).to(UINT8))
    assert torch.equal(low, codes_of((blocks * torch.exp2(-power).float()[:, :, None]).clamp(-6, 6).view(5, 1024)))


def test_a_norm_and_its_codes() -> None:
    x, residual, w = numbers(3, 1000), numbers(3, 1000, seed=1), numbers(1000, seed=2)
    out, low, scale = torch.full_like(x, 7.0), torch.full((3, 500), 7, dtype=UINT8), torch.full((3, 1), 7.0)
    run(normed, (x, residual, w, out, low, scale), RowChoice(warps=4))
    total = (x.float() + residual.float()).bfloat16()
    assert torch.equal(out, total)
    row = total.double()
    row = row * torch.rsqrt(row.square().mean(-1, keepdim=True) + 1e-5) * w.double()
    step = row.abs().amax(-1, keepdim=True) / 6.0
    assert ((scale.double() - step).abs() <= 1e-6 * step).all()
    assert (low != codes_of(row / step)).double().mean() < 2e-3  # a sum in another order may move a number past an end


def test_integers_of_4_bits_and_gates_between_values() -> None:
    x = numbers(3, 1000) - 3
    low, scale = torch.full((3, 500), 7, dtype=UINT8), torch.full((3,), 7.0)
    run(int4, (x, low, scale), RowChoice(warps=2))
    code = torch.round(x.float() / (x.float().abs().amax(-1) / 7.0)[:, None]).clamp(-8, 7).to(torch.int32) & 15
    assert torch.equal(low, (code[:, ::2] | (code[:, 1::2] << 4)).to(UINT8))
    out, total = torch.full((3, 500), 7.0).bfloat16(), torch.full((3,), 7.0)
    run(gated, (x, out, total), RowChoice(warps=2))
    row = x.double() - x.double().mean(-1, keepdim=True)
    want = torch.nn.functional.silu(row[:, ::2]) * row[:, 1::2]
    assert ((out.double() - want).abs() <= 2**-8 * (want.abs() + 0.01)).all()


@pytest.mark.parametrize("kernel", [of_rows, int4])
def test_the_cpu_gives_the_same_codes(kernel: Callable[..., None]) -> None:
    x = numbers(5, 1000) - 2
    first, second = (torch.full((5, 500), 7, dtype=UINT8) for _ in range(2))
    scale = torch.full((5,), 7.0)
    helion.kernel(kernel, backend="cute")(x, first, scale)
    run(kernel, (x, second, scale), RowChoice(warps=4))
    assert torch.equal(first, second)


def test_equal_problems_are_one_object() -> None:
    """Caches of plans compare problems of many instructions by identity."""
    arguments = numbers(4, 4096), torch.empty(4, 2048, dtype=UINT8), torch.empty(4)
    one, other = (prepared(of_rows, arguments, RowChoice())[0].problem for _ in range(2))
    assert one is other


def test_bytes_of_a_pair_count_half() -> None:
    arguments = numbers(4, 4096), torch.empty(4, 2048, dtype=UINT8), torch.empty(4)
    demand = prepared(of_rows, arguments, RowChoice())[1].layout.demand
    assert (demand.pairs, demand.column_bytes) == ((1,), 2.5)
    bound = helion.kernel(of_rows, backend="cute").bind(
        (tensor(4096, 32768), tensor(4096, 16384, dtype=UINT8), tensor(4096, dtype=torch.float32)), target="h200"
    )
    assert row_shape_of(bound.variant.specialized.analysis.facts).demand.pairs == (1,)


def odd_bits(x, low, scale):
    n = hl.specialize(x.size(1))
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        scale[tile] = row.sum(-1)
        even, odd = hl.split(code(row).reshape(tile, n // 2, 2))
        low[tile, :] = (even | (odd << 3)).to(torch.uint8)


def too_large(x, low, scale):
    n = hl.specialize(x.size(1))
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        scale[tile] = row.sum(-1)
        even, odd = hl.split(code(row).reshape(tile, n // 2, 2))
        low[tile, :] = (even + odd * 32).to(torch.uint8)


def unclamped(x, low, scale):
    n = hl.specialize(x.size(1))
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        scale[tile] = row.sum(-1)
        even, odd = hl.split(torch.round(row).to(torch.int32).reshape(tile, n // 2, 2))
        low[tile, :] = (even | (odd << 4)).to(torch.uint8)


def summed_pairs(x, low, scale):
    n = hl.specialize(x.size(1))
    for tile in hl.tile(x.size(0)):
        even, odd = hl.split(x[tile, :].to(torch.float32).reshape(tile, n // 2, 2))
        scale[tile] = (even * odd).sum(-1)
        low[tile, :] = code(even).to(torch.uint8)


@pytest.mark.parametrize(
    ("kernel", "n", "reason"),
    [
        (odd_bits, 1024, "bitwise_or of int32"),
        (too_large, 1024, "the numbers of low may not fit in uint8"),
        (unclamped, 1024, "cast of int32"),
        (summed_pairs, 1024, "sums, maxima and minima in fp32 of the columns of each group"),
        (of_rows, 1002, "pairs of columns need strides of rows that are multiples of 8 elements"),
    ],
)
def test_refusals(kernel: Any, n: int, reason: str) -> None:
    arguments = tensor(4, n), tensor(4, n // 2, dtype=UINT8), tensor(4, dtype=torch.float32)
    with pytest.raises(exc.CuteUnsupported, match=reason):
        helion.kernel(kernel, backend="cute").bind(arguments, target="h200").to_cute_code()
