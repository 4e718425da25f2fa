"""Matmuls of quantized operands."""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl

from .cell import BF16, E4M3, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def requantized_int8(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """int8 times int8 with an int32 bias, rescaled per column and clamped to int8."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=torch.int8, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.int32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_n, tile_k].T, acc=acc)
        v = torch.round((acc + bias[tile_n]).to(torch.float32) * scale[tile_n])
        out[tile_m, tile_n] = torch.clamp(v, -128, 127).to(torch.int8)
    return out


def requantized_int8_reference(
    x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    acc = (x.double() @ w.double().T).to(torch.int32) + bias
    return torch.clamp(torch.round(acc.to(torch.float32) * scale.to(torch.float32)), -128, 127).to(torch.int8)


def requantized_int8_torch(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    acc = torch._int_mm(x, w.T) + bias
    return torch.clamp(torch.round(acc.to(torch.float32) * scale), -128, 127).to(torch.int8)


def make_requantized(device: str, small: bool) -> Arguments:
    m, k, n = (33, 80, 49) if small else (4096, 4096, 4096)

    def int8(*shape: int) -> torch.Tensor:
        return torch.randint(-128, 128, shape, device=device).to(torch.int8)

    return (
        int8(m, k),
        int8(n, k),
        torch.rand([n], device=device) * 1e-4 + 1e-5,
        torch.randint(-1000, 1000, [n], device=device).to(torch.int32),
    )


CELLS.add(requantized_int8, make_requantized, requantized_int8_reference, requantized_int8_torch)


@helion.kernel
def ternary_linear(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """`x[M, K]` times ternary weights, four of a column to a byte along K (`w + 1` in two bits), and a scale."""
    m, k = x.size()
    n = packed.size(0)
    quads = x.view(m, k // 4, 4)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k // 4):
            byte = packed[tile_n, tile_k].to(torch.int32)
            for part in hl.static_range(4):
                w = (((byte >> (2 * part)) & 3) - 1).to(x.dtype)
                acc = hl.dot(quads[tile_m, tile_k, part], w.T, acc=acc)
        out[tile_m, tile_n] = (acc * scale[0]).to(x.dtype)
    return out


def ternary_linear_torch(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    shifts = torch.arange(0, 8, 2, device=x.device)
    w = ((packed.to(torch.int32)[:, :, None] >> shifts) & 3) - 1
    return (high(x @ w.flatten(1).T.to(x.dtype)) * scale).to(x.dtype)


def make_ternary(device: str, small: bool) -> Arguments:
    m, k, n = (5, 256, 33) if small else (16, 4096, 8192)
    w = torch.randint(0, 3, [n, k // 4, 4], device=device)
    packed = (w * (4 ** torch.arange(4, device=device))).sum(-1).to(torch.uint8)
    return normal(device, m, k, dtype=BF16), packed, torch.full([1], 0.02, device=device)


CELLS.add(ternary_linear, make_ternary, ternary_linear_torch)


@helion.kernel
def fp8_weights_grouped(x: torch.Tensor, w: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """`x[M, K]` in bf16 times e4m3 weights `w[N, K]` with a scale for each 64 along K."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k, block_size=64):
            part = hl.dot(x[tile_m, tile_k], w[tile_n, tile_k].to(x.dtype).T)
            acc += part * scales[tile_n, tile_k.id].to(torch.float32)[None, :]
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def fp8_weights_torch(x: torch.Tensor, w: torch.Tensor, scales: torch.Tensor) -> Any:
    return x @ (w.to(x.dtype) * scales.repeat_interleave(64, 1)).to(x.dtype).T


def make_fp8_weights(device: str, small: bool) -> Arguments:
    m, k, n = (17, 192, 49) if small else (64, 4096, 6144)
    return (
        normal(device, m, k, dtype=BF16),
        normal(device, n, k).to(E4M3),
        (torch.rand([n, k // 64], device=device) + 0.5).to(BF16),
    )


CELLS.add(fp8_weights_grouped, make_fp8_weights, fp8_weights_torch)


@helion.kernel
def int4_columns(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """`x[M, K]` times signed 4-bit weights `packed[K, N / 2]`, neighbours along N in a byte, scales of groups of 32."""
    m, k = x.size()
    half = packed.size(1)
    out = torch.empty([m, half, 2], dtype=x.dtype, device=x.device)
    pairs = scales.view(scales.size(0), half, 2)
    for tile_m, tile_n in hl.tile([m, half]):
        even = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        odd = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k, block_size=32):
            byte = packed[tile_k, tile_n]
            low = ((byte << 4) >> 4).to(x.dtype)
            high = (byte >> 4).to(x.dtype)
            rows = x[tile_m, tile_k]
            even += hl.dot(rows, low) * pairs[tile_k.id, tile_n, 0].to(torch.float32)[None, :]
            odd += hl.dot(rows, high) * pairs[tile_k.id, tile_n, 1].to(torch.float32)[None, :]
        out[tile_m, tile_n, 0] = even.to(x.dtype)
        out[tile_m, tile_n, 1] = odd.to(x.dtype)
    return out.view(m, 2 * half)


def int4_columns_torch(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    w = torch.stack([(packed << 4) >> 4, packed >> 4], -1).flatten(1).to(scales.dtype)
    return x @ (w * scales.repeat_interleave(32, 0)).to(x.dtype)


def make_int4_columns(device: str, small: bool) -> Arguments:
    m, k, n = (7, 96, 66) if small else (32, 4096, 4096)
    return (
        normal(device, m, k, dtype=BF16),
        torch.randint(-128, 128, [k, n // 2], device=device).to(torch.int8),
        (torch.rand([k // 32, n], device=device) * 0.1).to(BF16),
    )


CELLS.add(int4_columns, make_int4_columns, int4_columns_torch)
