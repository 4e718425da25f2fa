"""Rows of products side by side, of numbers that a tensor of one element holds, and chains of several kinds of steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from backends.cute.products import BOUNDS, row_error, values
from backends.cute.row_kernels import BF16, FP32, Case, expected, operands, per_row, whole_rows

import helion
import helion.language as hl
from helion.backends.cute.plan.records import Batch

F = torch.nn.functional
INFINITY = float("inf")


def _max_minus_mean(a: Any) -> Any:
    return a.amax(-1) - a.mean(-1)


CHAINS: dict[str, Case] = {
    "masked softmax": Case(chain=lambda a, w, b, c, r: torch.softmax(torch.where(r > -1, a, -INFINITY), dim=-1)),
    "softcapped": Case(chain=lambda a, w, b, c, r: torch.log_softmax(torch.tanh(a / 2.0) * 2.0, dim=-1), dtype=FP32),
    "clamped": Case(chain=lambda a, w, b, c, r: F.normalize(torch.clamp(a, -1.5, 1.5) + b, dim=-1)),
    "variance of shifted columns": Case(
        chain=lambda a, w, b, c, r: (a - c) * torch.rsqrt(torch.var(a + b, dim=-1, keepdim=True) + 1e-5), dtype=FP32
    ),
    "range": Case(chain=lambda a, w, b, c, r: a / (a.amax(-1, keepdim=True) - a.amin(-1, keepdim=True)), dtype=FP32),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains(name: str) -> None:
    given = operands(63, 1000, 72, BF16)
    case = CHAINS[name]
    found = whole_rows(*given, case.dtype, case.chain)
    assert row_error(found, expected(case, *given)) < max(BOUNDS[case.dtype], BOUNDS[FP32] * 5)


def test_numbers_of_rows_of_several_reductions() -> None:
    x, y, *_ = operands(63, 1536, 72, BF16)
    sums = x.double() @ y.double()
    torch.testing.assert_close(
        per_row(x, y, FP32, _max_minus_mean).double(), _max_minus_mean(sums), rtol=1e-5, atol=1e-5
    )
    positive = per_row(x, y, FP32, lambda a: (a > 0).to(FP32).sum(-1))
    assert (positive.double() - (sums > 0).sum(1)).abs().max() <= 1


@helion.kernel(backend="cute", static_shapes=True)
def tempered(x: torch.Tensor, y: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """softmax of the silu of a product, over what a tensor of one element holds."""
    m, k = x.size()
    n = hl.specialize(y.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        out[tile_m, :] = torch.softmax(F.silu(acc) / temperature[0], dim=-1).to(x.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def dequantized(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """A product times a tensor without dimensions."""
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = (acc * scale[()]).to(torch.bfloat16)
    return out


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_one_element_beside_rows(dtype: torch.dtype) -> None:
    x, y, *_ = operands(63, 1000, 72, BF16)
    for held in (torch.tensor([0.5]), torch.tensor([0.25, 7.0])):
        found = tempered(x, y, held.to(dtype))
        wanted = torch.softmax(F.silu(x.double() @ y.double()) / float(held[0]), dim=-1)
        assert row_error(found, wanted) < BOUNDS[BF16]
    (operand,) = tempered.bind((x, y, torch.tensor([0.5])), target="sm_90").plan().gemm.problem.epilogue.operands
    assert (operand.kind, operand.pitch) == ("column", 0)


def test_one_element_beside_tiles() -> None:
    x, y, *_ = operands(63, 40, 72, BF16)
    found = dequantized(x, y, torch.tensor(-3.0))
    assert row_error(found, (x.double() @ y.double()) * -3) < BOUNDS[BF16]


@helion.kernel(backend="cute", static_shapes=True)
def rows_one_by_one(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A loop over the batch: log_softmax, and the logsumexp of each row."""
    b, m, k = x.size()
    n = hl.specialize(y.size(2))
    out = torch.empty([b, m, n], dtype=torch.float32, device=x.device)
    total = torch.empty([b, m], dtype=torch.float32, device=x.device)
    for i in hl.grid(b):
        for tile_m in hl.tile(m):
            acc = hl.zeros([tile_m, n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[i, tile_m, tile_k], y[i, tile_k, :])
            acc = acc + bias[i, :].to(torch.float32)
            lse = torch.logsumexp(acc, dim=-1)
            total[i, tile_m] = lse
            out[i, tile_m, :] = acc - lse[:, None]
    return out, total


@helion.kernel(backend="cute", static_shapes=True)
def rows_of_tiles(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The batch as a dimension of tiles: rms_norm, of one right operand."""
    b, m, k = x.size()
    n = hl.specialize(y.size(2))
    out = torch.empty([b, m, n], dtype=x.dtype, device=x.device)
    for tile_b, tile_m in hl.tile([b, m]):
        acc = hl.zeros([tile_b, tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.baddbmm(acc, x[tile_b, tile_m, tile_k], y[tile_b, tile_k, :])
        scale = torch.rsqrt(torch.mean(acc * acc, dim=-1, keepdim=True) + 1e-6)
        out[tile_b, tile_m, :] = (acc * scale * weight[:].to(torch.float32)).to(x.dtype)
    return out


def batch(b: int, m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    how: dict[str, Any] = {"dtype": FP32, "device": "cpu"}
    return values(b, m, k, **how).to(BF16), (values(b, k, n, seed=1, **how) * k**-0.5).to(BF16)


@pytest.mark.parametrize("size", [1, 5])
def test_rows_of_a_loop_over_products(size: int) -> None:
    m, n, k = 63, 1000, 72
    x, y = batch(size, m, n, k)
    bias = values(size, n, dtype=BF16, device="cpu", seed=2)
    found, total = rows_one_by_one(x, y, bias)
    sums = x.double() @ y.double() + bias.double()[:, None, :]
    assert row_error(found.reshape(-1, n), sums.log_softmax(-1).reshape(-1, n)) < BOUNDS[FP32] * 5
    torch.testing.assert_close(total.double(), sums.logsumexp(-1), rtol=1e-5, atol=1e-5)
    plan = rows_one_by_one.bind((x, y, bias), target="sm_90").plan().gemm
    wanted = Batch(size=size, a=m * k, b=k * n, d=m * n, operands=(n,), more=(m,))
    assert plan.problem.batch == (wanted if size > 1 else None)
    assert plan.pieces == size * plan.work[0] and plan.work[1] == 1


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_rows_of_tiles_of_products(target: str) -> None:
    b, m, n, k = 3, 65, 1536, 72
    x, y = batch(b, m, n, k)
    weight = values(n, dtype=BF16, device="cpu", seed=3)
    found = rows_of_tiles(x, y, weight)
    wanted = F.rms_norm(x.double() @ y.double(), [n], weight.double(), 1e-6)
    assert row_error(found.reshape(-1, n), wanted.reshape(-1, n)) < BOUNDS[BF16]
    bound = rows_of_tiles.bind((x, y, weight), target=target)
    assert all(seed.config["block_sizes"][0] == 1 for seed in bound.seeds)
    assert bound.plan().shared_bytes == bound.seeds[0].predicted.shared_bytes
