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


def row_losses(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    flat = x.view(-1)
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile in hl.tile(m):
        row = x[tile, :].to(torch.float32)
        top = row.amax(-1)
        total = torch.exp(row - top[:, None]).sum(-1)
        picked = flat[tile.index * n + labels[tile]].to(torch.float32)
        out[tile] = torch.log(total) + top - picked
    return out


def scaled_products(w: torch.Tensor, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    m, n = w.size()
    out = torch.empty([m], dtype=torch.float32, device=w.device)
    for tile_m in hl.tile(m):
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            total = total + (w[tile_m, tile_n] * x[tile_n][None, :]).to(torch.float32).sum(-1)
        out[tile_m] = total * scale[tile_m]
    return out


def counted_up(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        seen[tile] = seen[tile] + 1.0
        out[tile] = x[tile, :].sum(-1) * seen[tile]
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


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("rows", [1, 4])
def test_labels_are_loaded_before_the_maximum_of_many_rows(rows: int, static: bool) -> None:
    """An element of each row takes a register, where weights of whole rows take more and stay."""
    args = (tensor(16384, 4096, dtype=BF16), tensor(16384, dtype=torch.int64))
    kernel = helion.kernel(row_losses, backend="triton", static_shapes=static)
    code = kernel.bind(args, target="sm_90").to_triton_code(helion.Config(block_sizes=[rows], num_warps=4))
    assert places(code, "tl.load(x", "tl.load(labels", "tl.load(flat", "tl.reduce(", "tl.sum(") == [0, 1, 2, 3, 4]
    x, labels = torch.randn(9, 70), torch.randint(0, 70, (9,))
    wanted = torch.nn.functional.cross_entropy(x.double(), labels, reduction="none")
    assert (kernel(x, labels).double() - wanted).abs().max() < 1e-5


def test_labels_stay_after_the_maximum_in_one_warp() -> None:
    args = (tensor(16384, 4096, dtype=BF16), tensor(16384, dtype=torch.int64))
    kernel = helion.kernel(row_losses, backend="triton")
    code = kernel.bind(args, target="sm_90").to_triton_code(helion.Config(block_sizes=[1], num_warps=1))
    assert places(code, "tl.load(x", "tl.reduce(", "tl.load(labels") == [0, 1, 2]


def test_scales_are_loaded_before_a_loop_that_reduces() -> None:
    args = (tensor(8192, 4096, dtype=BF16), tensor(4096, dtype=BF16), tensor(8192))
    kernel = helion.kernel(scaled_products, backend="triton")
    code = kernel.bind(args, target="sm_90").to_triton_code(helion.Config(block_sizes=[2, 1024], num_warps=4))
    assert places(code, "tl.load(scale", "tl.load(w", "tl.sum(") == [0, 1, 2]
    w, x, scale = torch.randn(9, 70), torch.randn(70), torch.randn(9)
    torch.testing.assert_close(kernel(w, x, scale), w @ x * scale, rtol=1e-4, atol=1e-4)


def test_an_element_that_the_program_wrote_is_read_after_the_store() -> None:
    args = (tensor(8192, 4096), tensor(8192))
    kernel = helion.kernel(counted_up, backend="triton")
    code = kernel.bind(args, target="sm_90").to_triton_code(helion.Config(block_sizes=[1], num_warps=4))
    assert code.count("tl.load(seen") == 2
    assert code.index("tl.load(seen") < code.index("tl.store(seen") < code.rindex("tl.load(seen")
    x, seen = torch.randn(5, 70), torch.arange(5.0)
    torch.testing.assert_close(kernel(x, seen.clone()), x.sum(-1) * (seen + 1))
