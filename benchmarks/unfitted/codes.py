"""Quantized rows, columns and blocks: made, read, and passed from one scale to another."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, E4M3, FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def int8_of_columns(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes of `x[M, N]` in int8 with a scale for each column, which is its largest magnitude over 127."""
    m, n = x.size()
    codes = torch.empty([m, n], dtype=torch.int8, device=x.device)
    scales = torch.empty([n], dtype=torch.float32, device=x.device)
    for cols in hl.tile(n):
        top = hl.zeros([cols], dtype=torch.float32)
        for rows in hl.tile(m):
            top = torch.maximum(top, torch.abs(x[rows, cols].to(torch.float32)).amax(0))
        scale = torch.clamp(top, min=1e-8) / 127.0
        scales[cols] = scale
        for rows in hl.tile(m):
            q = torch.round(x[rows, cols].to(torch.float32) / scale[None, :])
            codes[rows, cols] = q.to(torch.int8)
    return codes, scales


def int8_of_columns_torch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    v = high(x)
    scale = v.abs().amax(0).clamp(min=1e-8) / 127
    return torch.round(v / scale).to(torch.int8), scale


def make_int8_of_columns(device: str, small: bool) -> Arguments:
    m, n = (45, 70) if small else (4096, 14336)
    return (normal(device, m, n, dtype=BF16),)


CELLS.add(int8_of_columns, make_int8_of_columns, int8_of_columns_torch)


@helion.kernel
def unpack_awq(packed: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return weights `[K, N]` in fp16 of `packed[K, N / 8]`, with such zeros and with scales `[K / 128, N]`.
    The 4-bit code of column `8 i + j` is nibble `j / 2 + 4 (j % 2)` of number `i`."""
    k, n8 = packed.size()
    out = torch.empty([k, 8 * n8], dtype=scales.dtype, device=packed.device)
    eights = out.view(k, n8, 8)
    factors = scales.view(-1, n8, 8)
    for rows, cols in hl.tile([k, n8]):
        j = hl.arange(8)
        shift = 4 * (j // 2 + 4 * (j % 2))
        group = rows.index // 128
        code = (packed[rows, cols][:, :, None] >> shift[None, None, :]) & 15
        zero = (zeros[group, cols][:, :, None] >> shift[None, None, :]) & 15
        weight = (code - zero).to(torch.float32) * factors[group, cols, :].to(torch.float32)
        eights[rows, cols, :] = weight.to(scales.dtype)
    return out


def unpack_awq_torch(packed: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    j = torch.arange(8, device=packed.device, dtype=torch.int32)
    shift = 4 * (j // 2 + 4 * (j % 2))
    code = ((packed[:, :, None] >> shift) & 15).flatten(1)
    zero = ((zeros[:, :, None] >> shift) & 15).flatten(1)
    code = code.unflatten(0, (scales.size(0), -1))
    return ((code - zero[:, None]) * high(scales)[:, None]).flatten(0, 1).to(scales.dtype)


def make_unpack_awq(device: str, small: bool) -> Arguments:
    k, n = (256, 40) if small else (8192, 10240)
    packed, zeros = (
        torch.randint(-(2**31), 2**31, [rows, n // 8], device=device, dtype=torch.int32) for rows in (k, k // 128)
    )
    return packed, zeros, normal(device, k // 128, n, dtype=FP16, scale=0.01)


CELLS.add(unpack_awq, make_unpack_awq, unpack_awq_torch)


@helion.kernel
def add_fp8_rows(x: torch.Tensor, scale: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Add rows `x[M, N]` in fp8 times `scale[M]` to the residual in place; also the norms of the sums."""
    m, _ = x.size()
    norms = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile in hl.tile(m):
        y = residual[tile, :].to(torch.float32) + x[tile, :].to(torch.float32) * scale[tile][:, None]
        norms[tile] = torch.sqrt((y * y).sum(-1))
        residual[tile, :] = y.to(residual.dtype)
    return residual, norms


def add_fp8_rows_torch(
    x: torch.Tensor, scale: torch.Tensor, residual: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    y = high(residual) + x.float() * scale[:, None]
    return residual.copy_(y), y.norm(dim=-1)


def make_add_fp8_rows(device: str, small: bool) -> Arguments:
    m, n = (17, 99) if small else (8192, 6145)
    x = normal(device, m, n).to(E4M3)
    return x, torch.rand([m], device=device) + 0.5, normal(device, m, n, dtype=BF16)


CELLS.add(add_fp8_rows, make_add_fp8_rows, add_fp8_rows_torch)


@helion.kernel
def delayed_fp8(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes of `x[M, N]` in fp8 by a scale of the step before, and the largest magnitude for the next."""
    m, n = x.size()
    codes = torch.empty(x.size(), dtype=torch.float8_e4m3fn, device=x.device)
    largest = torch.zeros([1], dtype=torch.float32, device=x.device)
    for rows, cols in hl.tile([m, n]):
        v = x[rows, cols].to(torch.float32)
        hl.atomic_max(largest, [0], torch.abs(v).amax())
        codes[rows, cols] = torch.clamp(v * scale[0], -448.0, 448.0).to(torch.float8_e4m3fn)
    return codes, largest


def delayed_fp8_torch(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    v = high(x)
    return torch.clamp(v * scale, -448, 448).to(E4M3), v.abs().amax().view(1)


def make_delayed_fp8(device: str, small: bool) -> Arguments:
    m, n = (19, 130) if small else (8192, 12288)
    return normal(device, m, n, dtype=BF16), torch.full([1], 90.0, device=device)


CELLS.add(delayed_fp8, make_delayed_fp8, delayed_fp8_torch)


@helion.kernel
def rescale_gelu(
    sums: torch.Tensor, row_scale: torch.Tensor, column_scale: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return GELU of int32 sums `[M, N]` times scales of rows and columns plus bias, in int8 by rows."""
    m, _ = sums.size()
    codes = torch.empty(sums.size(), dtype=torch.int8, device=sums.device)
    scales = torch.empty([m], dtype=torch.float32, device=sums.device)
    for tile in hl.tile(m):
        x = sums[tile, :].to(torch.float32) * row_scale[tile][:, None] * column_scale[:][None, :]
        y = torch.nn.functional.gelu(x + bias[:].to(torch.float32)[None, :])
        scale = torch.clamp(torch.abs(y).amax(-1), min=1e-8) / 127.0
        scales[tile] = scale
        codes[tile, :] = torch.clamp(torch.round(y / scale[:, None]), -127.0, 127.0).to(torch.int8)
    return codes, scales


def rescale_gelu_torch(
    sums: torch.Tensor, row_scale: torch.Tensor, column_scale: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    y = F.gelu(sums.float() * row_scale[:, None] * column_scale + high(bias))
    scale = y.abs().amax(-1).clamp(min=1e-8) / 127
    return torch.clamp(torch.round(y / scale[:, None]), -127, 127).to(torch.int8), scale


def make_rescale_gelu(device: str, small: bool) -> Arguments:
    m, n = (14, 70) if small else (6000, 11008)
    sums = torch.randint(-20000, 20000, [m, n], device=device, dtype=torch.int32)
    scales = (torch.rand([size], device=device) * 0.01 + 0.005 for size in (m, n))
    return sums, *scales, normal(device, n, dtype=FP16)


CELLS.add(rescale_gelu, make_rescale_gelu, rescale_gelu_torch)


@helion.kernel
def read_int8_blocks(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return weights `[N, K]` in bf16 from int8 codes and a scale for each block of 128 by 128."""
    n, k = codes.size()
    out = torch.empty([n, k], dtype=torch.bfloat16, device=codes.device)
    for rows, cols in hl.tile([n, k]):
        scale = scales[rows.index // 128, cols.index // 128]
        out[rows, cols] = (codes[rows, cols].to(torch.float32) * scale).to(torch.bfloat16)
    return out


def read_int8_blocks_torch(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    n, k = codes.size()
    full = scales.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    return (codes.float() * full).to(BF16)


def read_int8_blocks_baseline(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    rows, cols = (torch.arange(size, device=codes.device) // 128 for size in codes.size())
    return (codes.float() * scales[rows[:, None], cols[None, :]]).to(BF16)


def make_read_int8_blocks(device: str, small: bool) -> Arguments:
    n, k = (140, 270) if small else (10944, 7168)
    codes = torch.randint(-127, 128, [n, k], device=device, dtype=torch.int8)
    return codes, torch.rand([-(-n // 128), -(-k // 128)], device=device) * 0.01


CELLS.add(read_int8_blocks, make_read_int8_blocks, read_int8_blocks_torch, read_int8_blocks_baseline)


@helion.kernel
def value_heads_to_fp8(qkv: torch.Tensor, heads: hl.constexpr) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the last heads of `qkv[T, H, D]` in fp8, with a scale for each token and head."""
    t, h, d = qkv.size()
    values = qkv[:, h - heads :]
    codes = torch.empty([t, heads, d], dtype=torch.float8_e4m3fn, device=qkv.device)
    scales = torch.empty([t, heads], dtype=torch.float32, device=qkv.device)
    for tokens, own in hl.tile([t, heads]):
        v = values[tokens, own, :].to(torch.float32)
        scale = torch.clamp(torch.abs(v).amax(-1), min=1e-6) / 448.0
        scales[tokens, own] = scale
        codes[tokens, own, :] = (v / scale[:, :, None]).to(torch.float8_e4m3fn)
    return codes, scales


def value_heads_to_fp8_torch(qkv: torch.Tensor, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    v = high(qkv[:, -heads:])
    scale = v.abs().amax(-1).clamp(min=1e-6) / 448
    return (v / scale[:, :, None]).to(E4M3), scale


def make_value_heads_to_fp8(device: str, small: bool) -> Arguments:
    t, h, d, heads = (13, 7, 16, 2) if small else (32768, 48, 128, 8)
    return normal(device, t, h, d, dtype=BF16), heads


CELLS.add(value_heads_to_fp8, make_value_heads_to_fp8, value_heads_to_fp8_torch)
