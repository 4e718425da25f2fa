"""Warps of elementwise kernels by the vectors of a thread, and where rows share what they compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import helion
import helion.language as hl

BF16, FP32 = torch.bfloat16, torch.float32


def meta(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def first(kernel: Any, *args: Any, target: str = "h200") -> helion.Config:
    return helion.kernel(kernel).bind(args, target=target).seeds[0].config


def stepped(w: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A step of an optimizer in place, with four loads and three stores."""
    for tile in hl.tile(w.numel()):
        grad = g[tile].to(torch.float32)
        mean = 0.9 * m[tile].to(torch.float32) + 0.1 * grad
        square = 0.99 * v[tile] + 0.01 * grad * grad
        m[tile] = mean.to(m.dtype)
        v[tile] = square
        w[tile] = (w[tile].to(torch.float32) - mean * torch.rsqrt(square + 1e-6)).to(w.dtype)
    return w


def turned(q: torch.Tensor, places: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """Halves of `q[T, H, D]` by angles that the heads of a token share."""
    t, h, _ = q.size()
    half = hl.specialize(frequencies.size(0))
    out = torch.empty_like(q)
    for tokens, heads in hl.tile([t, h]):
        angle = places[tokens][:, None] * frequencies[:][None, :]
        c, s = torch.cos(angle)[:, None, :], torch.sin(angle)[:, None, :]
        a, b = q[tokens, heads, :half].to(torch.float32), q[tokens, heads, half:].to(torch.float32)
        out[tokens, heads, :half] = (a * c - b * s).to(q.dtype)
        out[tokens, heads, half:] = (b * c + a * s).to(q.dtype)
    return out


@pytest.mark.parametrize(("narrow", "warps"), [(BF16, 1), (FP32, 2)])
def test_threads_of_short_tiles_have_whole_vectors(narrow: torch.dtype, warps: int) -> None:
    n = 2**25
    args = (meta(n, dtype=narrow), meta(n, dtype=narrow), meta(n, dtype=narrow), meta(n, dtype=FP32))
    config = first(stepped, *args)
    assert (config["block_sizes"], config["num_warps"]) == ([256], warps)


def test_few_programs_keep_their_threads() -> None:
    n = 2**16
    args = (meta(n, dtype=FP32), meta(n, dtype=FP32), meta(n, dtype=FP32), meta(n, dtype=FP32))
    assert first(stepped, *args)["num_warps"] >= 2


def test_threads_compute_few_shared_sines() -> None:
    args = (meta(16384, 28, 128, dtype=BF16), meta(16384, dtype=FP32), meta(64, dtype=FP32))
    config = first(turned, *args)
    # rows of other threads each compute the sines of their token again
    assert config["block_sizes"][1] >= 16 * config["num_warps"]


@pytest.mark.parametrize("sizes", [(5, 3, 16), (33, 28, 64)])
def test_shared_sines_are_right(sizes: tuple[int, int, int]) -> None:
    t, h, d = sizes
    q, places, frequencies = torch.randn(t, h, d), torch.arange(t).float(), torch.rand(d // 2)
    angle = (places[:, None] * frequencies)[:, None]
    a, b = q.chunk(2, -1)
    expected = torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)
    torch.testing.assert_close(helion.kernel(turned)(q, places, frequencies), expected, rtol=1e-4, atol=1e-4)
