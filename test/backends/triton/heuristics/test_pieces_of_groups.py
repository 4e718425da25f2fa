"""Programs of groups of channels, whose pieces of memory are neighbours."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from harness import tensor

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS

BF16 = torch.bfloat16


def normed_groups(x: torch.Tensor) -> torch.Tensor:
    """Groups of channels of `x[B, S, G, W]` with a mean of 0 and a variance of 1."""
    b, s, g, w = x.size()
    width = hl.specialize(w)
    out = torch.empty_like(x)
    for image, group in hl.grid([b, g]):
        total = hl.zeros([width], dtype=torch.float32)
        square = hl.zeros([width], dtype=torch.float32)
        for tile in hl.tile(s):
            v = x[image, tile, group, :].to(torch.float32)
            total += v.sum(0)
            square += (v * v).sum(0)
        mean = total.sum(-1) / (s * width)
        scale = torch.rsqrt(square.sum(-1) / (s * width) - mean * mean + 1e-5)
        for tile in hl.tile(s):
            out[image, tile, group, :] = ((x[image, tile, group, :].to(torch.float32) - mean) * scale).to(x.dtype)
    return out


def scaled_heads(x: torch.Tensor) -> torch.Tensor:
    """Heads of tokens `x[B, S, H, D]`, each column of a head divided by its largest magnitude over the tokens."""
    b, s, h, d = x.size()
    size = hl.specialize(d)
    out = torch.empty_like(x)
    for batch, head in hl.grid([b, h]):
        most = hl.zeros([size], dtype=torch.float32)
        for tile in hl.tile(s):
            most = torch.maximum(most, x[batch, tile, head, :].to(torch.float32).abs().amax(0))
        for tile in hl.tile(s):
            out[batch, tile, head, :] = (x[batch, tile, head, :].to(torch.float32) / most[None, :]).to(x.dtype)
    return out


@pytest.mark.parametrize("width", [8, 10, 20])
def test_programs_of_groups_run_along_memory(width: int) -> None:
    """Measurement ``pieces_of_groups``."""
    x = tensor(16, 4096, 32, width, dtype=BF16)
    config = helion.kernel(normed_groups, backend="triton").bind((x,), target="h200").default_config()
    assert config["loop_orders"] == [[1, 0]]
    assert config["num_warps"] * 32 * 128 >= config["block_sizes"][0] * width


def test_the_group_norm_of_images_has_the_tile_of_its_twin() -> None:
    found = []
    for name in ("group_norm_channels_last", "group_norm_silu"):
        cell = CELLS[name]
        bound = helion.kernel(cell.kernel.fn, backend="triton").bind(cell.arguments("meta", False), target="h200")
        config = bound.default_config()
        found.append((config["block_sizes"], config["num_warps"], config["loop_orders"]))
    assert found[0] == found[1] == ([1024, 1024], 32, [[1, 0]])


def test_heads_run_along_memory() -> None:
    bound = helion.kernel(scaled_heads, backend="triton").bind((tensor(32, 4096, 16, 64, dtype=BF16),), target="h200")
    assert bound.default_config()["loop_orders"] == [[1, 0]]


@pytest.mark.parametrize("pixels", [63, 1000])
def test_wide_programs_are_right(pixels: int) -> None:
    config = helion.Config(block_sizes=[1024, 1024], num_warps=32, loop_orders=[[1, 0]])
    x = torch.randn(2, pixels, 3, 10) + 0.3
    expected = F.group_norm(x.flatten(2).transpose(1, 2), 3).transpose(1, 2).reshape(x.shape)
    torch.testing.assert_close(helion.kernel(normed_groups, config=config)(x), expected, rtol=1e-4, atol=1e-4)
    scaled = helion.kernel(scaled_heads, config=config)(x)
    torch.testing.assert_close(scaled, x / x.abs().amax(1, keepdim=True))
