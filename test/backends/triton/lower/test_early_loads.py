"""Loads precede the first reduction where programs do not fill the GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl

BF16 = torch.bfloat16
EPS = 1e-5


def rms_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        scale = torch.rsqrt((row * row).mean(-1) + EPS)
        out[tile, :] = (row * scale[:, None] * weight[:] + bias[:]).to(x.dtype)
    return out


def picked_by_a_maximum(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=table.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = table[torch.argmax(x[tile, :], -1)]
    return out


def written_after_a_sum(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        total[tile] = x[tile, :].to(torch.float32).sum(-1)
        out[tile, :] = (x[tile, :] - total[tile][:, None]).to(x.dtype)
    return out


def bound(m: int, n: int, **settings: Any) -> Any:
    args = (tensor(m, n, dtype=BF16), tensor(n, dtype=BF16), tensor(n, dtype=BF16))
    return helion.kernel(rms_norm, backend="triton", **settings).bind(args, target="sm_90")


def places(code: str, *texts: str) -> list[int]:
    return sorted(range(len(texts)), key=lambda at: code.index(texts[at]))


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(("m", "early"), [(16, True), (120, True), (3000, False)])
def test_vectors_are_loaded_before_the_sum_of_few_rows(m: int, early: bool, static: bool) -> None:
    """Dynamic sizes count with the magnitude that they have at binding."""
    code = bound(m, 1000, static_shapes=static).to_triton_code(helion.Config(block_sizes=[1], num_warps=4))
    found = places(code, "tl.load(x", "tl.load(weight", "tl.load(bias", "tl.sum(")
    assert found == ([0, 1, 2, 3] if early else [0, 3, 1, 2])


def test_registers_limit_early_loads() -> None:
    """One warp has room for one of two vectors of 1000 elements, and for none of 4000."""
    for n, wanted in ((1000, [0, 1, 3, 2]), (4000, [0, 3, 1, 2])):
        code = bound(16, n).to_triton_code(helion.Config(block_sizes=[1], num_warps=1))
        assert places(code, "tl.load(x", "tl.load(weight", "tl.load(bias", "tl.sum(") == wanted


def test_values() -> None:
    x, weight, bias = torch.randn(7, 301) + 3, torch.randn(301), torch.randn(301)
    wide = x.double()
    wanted = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * weight.double() + bias.double()
    found = helion.kernel(rms_norm, backend="triton")(x, weight, bias)
    assert (found.double() - wanted).abs().max() < 1e-5


def test_loads_stay_where_they_depend_on_the_reduction_or_on_a_store() -> None:
    x, table = torch.randn(5, 70), torch.arange(70.0)
    kernel = helion.kernel(picked_by_a_maximum, backend="triton")
    code = kernel.bind((x, table), target="sm_90").to_triton_code(helion.Config(block_sizes=[1]))
    assert code.index("tl.load(table") > code.index("tl.load(x")
    assert torch.equal(kernel(x, table), x.argmax(-1).float())
    total = torch.full((5,), 100.0)
    kernel = helion.kernel(written_after_a_sum, backend="triton")
    code = kernel.bind((x, total), target="sm_90").to_triton_code(helion.Config(block_sizes=[1]))
    assert "tl.load(total" not in code or code.index("tl.load(total") > code.index("tl.store(total")
    torch.testing.assert_close(kernel(x, total), x - x.sum(-1, keepdim=True))
