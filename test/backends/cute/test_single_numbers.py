"""Epilogues that read single numbers of a tensor, which begin at any address."""

from __future__ import annotations

import pytest
import torch
from backends.cute.products import BOUNDS, row_error, values

import helion
import helion.language as hl

BF16 = torch.bfloat16


def scaled(x: torch.Tensor, y: torch.Tensor, scales: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
    """The first number of a tensor is multiplied with the third one, and the second one is added."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty_like(skip)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        acc = acc * (scales[0] * scales[2]) + scales[1]
        out[tile_m, tile_n] = (acc + skip[tile_m, tile_n].to(torch.float32)).to(skip.dtype)
    return out


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_numbers_at_any_address(dtype: torch.dtype) -> None:
    kernel = helion.kernel(scaled, backend="cute")
    for m, n, k in ((70, 136, 72), (33, 64, 40)):
        x = values(m, k, dtype=torch.float32, device="cpu").to(BF16)
        y = values(k, n, dtype=torch.float32, device="cpu", seed=1).to(BF16)
        skip = values(m, n, dtype=torch.float32, device="cpu", seed=2).to(BF16)
        scales = torch.tensor([0.5, -3.0, 0.25], dtype=dtype)
        wanted = x.double() @ y.double() * 0.125 - 3.0 + skip.double()
        assert row_error(kernel(x, y, scales, skip), wanted) < BOUNDS[BF16]
    operands = kernel.bind((x, y, scales, skip)).plan().gemm.problem.epilogue.operands
    assert [operand.kind for operand in operands] == ["column", "column", "column", "exact"]


def test_two_scales_of_a_tensor_leave_fp8_to_cute() -> None:
    """The right operand along N is copied for it; Triton would transpose each of its tiles in registers."""
    e4m3 = torch.float8_e4m3fn
    x, y = torch.empty(8192, 4096, dtype=e4m3, device="meta"), torch.empty(4096, 3072, dtype=e4m3, device="meta")
    given = x, y, torch.empty(3, device="meta"), torch.empty(8192, 3072, dtype=BF16, device="meta")
    bound = helion.kernel(scaled, backend="auto").bind(given, target="h200")
    assert bound.backend == "cute"
    code = helion.kernel(scaled, backend="cute").bind(given, target="h200").to_triton_code()
    assert "scales_" in code and "_operand + 1\n" in code and "_operand + 2\n" in code
