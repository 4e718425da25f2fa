"""Taking a batch dimension of size 1 out of a program: the text it gives, and that it changes no result."""

from __future__ import annotations

import pytest
import torch

import helion
import helion.language as hl


@helion.kernel
def batched_product(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    b, m, k = x.size()
    n = y.size(2)
    out = torch.empty([b, m, n], dtype=x.dtype, device=x.device)
    for tile_b, tile_m, tile_n in hl.tile([b, m, n]):
        acc = hl.zeros([tile_b, tile_m, tile_n])
        for tile_k in hl.tile(k):
            acc = torch.baddbmm(acc, x[tile_b, tile_m, tile_k], y[tile_b, tile_k, tile_n])
        rows = acc.sum(-1, keepdim=True) * scale[tile_b][:, None, None]
        out[tile_b, tile_m, tile_n] = (acc + bias[tile_n] + tile_b.index[:, None, None]) * 0.5 + rows
    return out


@helion.kernel
def batch_in_the_last_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    b, m, k = x.size()
    n = y.size(2)
    out = torch.empty([m, n, b], dtype=x.dtype, device=x.device)
    for tile_b, tile_m, tile_n in hl.tile([b, m, n]):
        acc = hl.zeros([tile_b, tile_m, tile_n])
        for tile_k in hl.tile(k):
            acc = torch.baddbmm(acc, x[tile_b, tile_m, tile_k], y[tile_b, tile_k, tile_n])
        out[tile_m, tile_n, tile_b] = acc.permute(1, 2, 0)
    return out


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(3, 37, 21) + 1, torch.randn(3, 21, 18) - 1


def test_one_matrix_is_loaded_in_two_dimensions() -> None:
    x, y = operands()
    bound = batched_product.bind((x, y, torch.randn(18), torch.randn(3)))
    text = bound.to_triton_code({"block_sizes": [1, 16, 16, 16]})
    text = "\n".join(line for line in text.splitlines() if not line.strip().startswith("#"))
    assert "batch * 777 + indices_1[:, None] * 21 + indices_3[None, :]" in text
    assert "tl.reshape" not in text and "None, None" not in text
    assert "acc = tl.dot(load, load_1, acc=acc" in text


@pytest.mark.parametrize("blocks", [[1, 16, 16, 16], [1, 32, 64, 32], [1, 64, 16, 16]])
def test_the_result_is_that_of_eager(blocks: list[int]) -> None:
    x, y = operands()
    bias, scale = torch.randn(18), torch.randn(3)
    product = torch.bmm(x.double(), y.double())
    tiles = blocks[2]
    bound = batched_product.bind((x, y, bias, scale))
    bound.set_config({"block_sizes": blocks})
    # the row sum of the kernel is over the tile of n, as written; compare where one tile holds the row
    rows = product.sum(-1, keepdim=True) * scale[:, None, None]
    expected = (product + bias + torch.arange(3)[:, None, None]) * 0.5 + rows
    result = bound(x, y, bias, scale)
    if tiles >= 18:
        torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-3)
    else:
        parts = [
            product[..., i : i + tiles].sum(-1, keepdim=True).expand(-1, -1, min(tiles, 18 - i))
            for i in range(0, 18, tiles)
        ]
        expected = expected - rows + torch.cat(parts, -1) * scale[:, None, None]
        torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-3)


def test_a_batch_that_moves_keeps_its_dimension() -> None:
    x, y = operands()
    bound = batch_in_the_last_place.bind((x, y))
    bound.set_config({"block_sizes": [1, 16, 16, 16]})
    assert "tl.reshape" in bound.to_triton_code()
    torch.testing.assert_close(bound(x, y), torch.bmm(x, y).permute(1, 2, 0), rtol=1e-4, atol=1e-4)
