"""Quantization to fp8 by rows, by groups of columns and by square blocks."""

from __future__ import annotations

import torch

import helion
import helion.language as hl

from ..._operators import Operator, check_tensor, rows
from .scales import check_block, check_format, check_group, fake_rows, largest_of, scaled


@helion.kernel(static_shapes=False)
def quantize_fp8_kernel(x: torch.Tensor, dtype: hl.constexpr, largest: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute fp8 values `[M, N]` and fp32 scales `[M]` with `values * scale` near `x[M, N]`."""
    m = x.size(0)
    n = hl.specialize(x.size(1))
    out = torch.empty([m, n], dtype=dtype, device=x.device)
    scales = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile in hl.tile(m):
        row, scale = scaled(x[tile, :].to(torch.float32), largest)
        scales[tile] = scale
        out[tile, :] = row.to(dtype)
    return out, scales


@helion.kernel(static_shapes=False)
def quantize_fp8_blocks_kernel(
    x: torch.Tensor, dtype: hl.constexpr, largest: float, block: hl.constexpr
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute fp8 values `[M, N]`, and a scale for each square of `block` rows and columns of `x[M, N]`."""
    m, n = x.size()
    out = torch.empty([m, n], dtype=dtype, device=x.device)
    scales = torch.empty([helion.cdiv(m, block), helion.cdiv(n, block)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n], block_size=[block, block]):
        values = x[tile_m, tile_n].to(torch.float32)
        highest = torch.amax(torch.amax(torch.abs(values), dim=-1), dim=0)
        scale = torch.where(highest > 0, highest / largest, 1.0)
        scales[tile_m.id, tile_n.id] = scale
        out[tile_m, tile_n] = (values / scale).to(dtype)
    return out, scales


def _fake_blocks(x: torch.Tensor, dtype: torch.dtype, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = (-(-size // block) for size in x.shape)
    return x.new_empty(x.shape, dtype=dtype), x.new_empty(*blocks, dtype=torch.float32)


_quantize = Operator(
    "quantize_fp8(Tensor x, ScalarType dtype) -> (Tensor, Tensor)",
    quantize_fp8_kernel,
    run=lambda x, dtype: quantize_fp8_kernel(x, dtype, largest_of(dtype)),
    fake=fake_rows,
)
_quantize.refuse_gradients()
_quantize_blocks = Operator(
    "quantize_fp8_blocks(Tensor x, ScalarType dtype, int block) -> (Tensor, Tensor)",
    quantize_fp8_blocks_kernel,
    run=lambda x, dtype, block: quantize_fp8_blocks_kernel(x, dtype, largest_of(dtype), block),
    fake=_fake_blocks,
)
_quantize_blocks.refuse_gradients()


def quantize_fp8(
    x: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn, *, group: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize each row of `x`, or each group of its columns, with a scale of its own. There is no gradient.

    Args:
        x: `[..., N]`; float32, bfloat16 or float16.
        dtype: `torch.float8_e4m3fn` or `torch.float8_e5m2`.
        group: number of consecutive columns with one scale, a divisor of N; None: all.

    Returns:
        Values of the shape of `x`, and fp32 scales, `[...]` or `[..., N / group]`; `values * scale` is near `x`. Rows
        and groups of zeros have scale 1.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or value.
    """
    check_tensor("quantize_fp8", "x", x, least_dims=1)
    check_format("quantize_fp8", dtype)
    check_group("quantize_fp8", group, x.size(-1))
    parts = x if group is None else x.view(*x.shape[:-1], x.size(-1) // group, group)
    values, scales = _quantize(rows(parts), dtype)
    return values.view(x.shape), scales.view(parts.shape[:-1])


def quantize_fp8_blocks(
    x: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn, *, block: int = 128
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize each square block of a matrix with a scale of its own, as for weights. There is no gradient.

    Args:
        x: `[M, N]`; float32, bfloat16 or float16.
        dtype: `torch.float8_e4m3fn` or `torch.float8_e5m2`.
        block: number of rows and columns of a block, a power of two. The last blocks may be smaller.

    Returns:
        Values of the shape of `x`, and fp32 scales `[ceil(M / block), ceil(N / block)]`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or value.
    """
    check_tensor("quantize_fp8_blocks", "x", x, dims=2)
    check_format("quantize_fp8_blocks", dtype)
    check_block("quantize_fp8_blocks", block)
    values, scales = _quantize_blocks(x, dtype, block)
    return values, scales
