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


def unpacked(packed: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """4-bit numbers of `packed[K, N / 8]` less zeros `[K / 128, N / 8]`, with scales `[K / 128, N]`: `[K, N]`."""
    k, n8 = packed.size()
    out = torch.empty([k, n8, 8], dtype=scales.dtype, device=packed.device)
    factors = scales.view(-1, n8, 8)
    for rows, columns in hl.tile([k, n8]):
        j = hl.arange(8)
        shift = 4 * (j // 2 + 4 * (j % 2))
        code = (packed[rows, columns][:, :, None] >> shift[None, None, :]) & 15
        zero = (zeros[rows.index // 128, columns][:, :, None] >> shift[None, None, :]) & 15
        weight = (code - zero).to(torch.float32) * factors[rows.index // 128, columns, :].to(torch.float32)
        out[rows, columns, :] = weight.to(scales.dtype)
    return out


def copied(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows, columns in hl.tile(x.size()):
        out[rows, columns] = x[rows, columns] * 2
    return out


def test_tiles_that_instructions_limit_have_fewer_warps() -> None:
    words = (meta(8192, 1280, dtype=torch.int32), meta(64, 1280, dtype=torch.int32))
    args = (*words, meta(64, 10240, dtype=torch.float16))
    few, usual = (seed.config for seed in helion.kernel(unpacked).bind(args, target="h200").seeds[:2])
    assert few["block_sizes"] == usual["block_sizes"]
    assert few["num_warps"] < usual["num_warps"]


def test_tiles_that_memory_limits_keep_their_warps() -> None:
    assert first(copied, meta(8192, 8192, dtype=BF16))["num_warps"] == 4


def spread(points: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """Interleaved bits of three coordinates."""
    out = torch.empty([points.size(0)], dtype=torch.int32, device=points.device)
    for tile in hl.tile(points.size(0)):
        code = torch.zeros([tile], dtype=torch.int32)
        for axis in hl.static_range(3):
            v = ((points[tile, axis] - low[axis]) * 1023).to(torch.int32)
            v = (v | (v << 16)) & 0x030000FF
            v = (v | (v << 8)) & 0x0300F00F
            v = (v | (v << 4)) & 0x030C30C3
            code |= ((v | (v << 2)) & 0x09249249) << axis
        out[tile] = code
    return out


def test_records_have_fewer_warps_and_strided_windows_keep_theirs() -> None:
    assert first(spread, meta(8000000, 3, dtype=torch.float32), meta(3, dtype=torch.float32))["num_warps"] < 8


def test_unpacked_and_spread_numbers_are_right() -> None:
    packed, zeros = (torch.randint(-(2**31), 2**31, [n, 5], dtype=torch.int32) for n in (256, 2))
    scales = torch.rand(2, 40).to(torch.float16)
    j = torch.arange(8, dtype=torch.int32)
    shift = 4 * (j // 2 + 4 * (j % 2))
    code, zero = (((each[:, :, None] >> shift) & 15).flatten(1) for each in (packed, zeros))
    expected = (code - zero.repeat_interleave(128, 0)).float() * scales.float().repeat_interleave(128, 0)
    config = helion.Config(block_sizes=[1, 256], num_warps=1)
    found = helion.kernel(unpacked, config=config)(packed, zeros, scales).flatten(1)
    torch.testing.assert_close(found, expected.to(torch.float16))
    points, low = torch.rand(1000, 3), torch.zeros(3)
    grid = (points * 1023).to(torch.int32)
    bits = sum(((grid[:, axis] >> bit) & 1) << (3 * bit + axis) for bit in range(10) for axis in range(3))
    code = helion.kernel(spread, config=helion.Config(block_sizes=[256], num_warps=4))(points, low)
    torch.testing.assert_close(code, bits.to(torch.int32))
