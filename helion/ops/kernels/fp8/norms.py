"""Norms whose rows are quantized to fp8, with a scale for a row or for each group of its columns."""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl

from ..._operators import Operator, check_tensor, rows, split
from .scales import check_format, check_group, fake_rows, largest_of, scaled


@helion.kernel(static_shapes=False)
def norm_fp8_kernel(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    centered: hl.constexpr,
    dtype: hl.constexpr,
    largest: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Compute the same of the normalized rows of `x[M, N] + residual[M, N]`, which are not stored; return that sum too.

    With `centered`, rows have their mean subtracted before, as in a layer norm.
    """
    m = x.size(0)
    n = hl.specialize(x.size(1))
    out = torch.empty([m, n], dtype=dtype, device=x.device)
    scales = torch.empty([m], dtype=torch.float32, device=x.device)
    added = None if residual is None else torch.empty([m, n], dtype=residual.dtype, device=x.device)
    for tile in hl.tile(m):
        row = x[tile, :].to(torch.float32)
        if residual is not None and added is not None:
            total = (row + residual[tile, :].to(torch.float32)).to(residual.dtype)
            added[tile, :] = total
            row = total.to(torch.float32)
        if centered:
            row = row - torch.mean(row, dim=-1, keepdim=True)
        row = row * torch.rsqrt(torch.mean(row * row, dim=-1, keepdim=True) + eps) * weight[:].to(torch.float32)
        if bias is not None:
            row = row + bias[:].to(torch.float32)
        row, scale = scaled(row, largest)
        scales[tile] = scale
        out[tile, :] = row.to(dtype)
    return out, scales, added


@helion.kernel(static_shapes=False)
def norm_fp8_groups_kernel(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    centered: hl.constexpr,
    dtype: hl.constexpr,
    largest: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Compute the same of rows `x[M, G, N / G]` with a scale for each of the G groups of a row."""
    m = x.size(0)
    groups, width = hl.specialize(x.size(1)), hl.specialize(x.size(2))
    out = torch.empty([m, groups, width], dtype=dtype, device=x.device)
    scales = torch.empty([m, groups], dtype=torch.float32, device=x.device)
    added = None if residual is None else torch.empty([m, groups, width], dtype=residual.dtype, device=x.device)
    for tile in hl.tile(m):
        row = x[tile, :, :].to(torch.float32)
        if residual is not None and added is not None:
            total = (row + residual[tile, :, :].to(torch.float32)).to(residual.dtype)
            added[tile, :, :] = total
            row = total.to(torch.float32)
        if centered:
            row = row - (torch.sum(torch.sum(row, dim=-1), dim=-1) / (groups * width))[:, None, None]
        squares = torch.sum(torch.sum(row * row, dim=-1), dim=-1) / (groups * width)
        row = row * torch.rsqrt(squares + eps)[:, None, None] * weight[:, :].to(torch.float32)
        if bias is not None:
            row = row + bias[:, :].to(torch.float32)
        row, scale = scaled(row, largest)
        scales[tile, :] = scale
        out[tile, :, :] = row.to(dtype)
    return out, scales, added


def _norm_operator(name: str) -> Operator:
    """Return the operator of a norm. By its name it adds a residual, and centers rows, which takes a bias."""
    adds, centered = name.startswith("add"), "layer" in name
    inputs = f"Tensor x, {'Tensor residual, ' * adds}Tensor weight, {'Tensor? bias, ' * centered}float eps"

    def run(x: torch.Tensor, *others: Any) -> tuple[torch.Tensor, ...]:
        residual, others = (others[0], others[1:]) if adds else (None, others)
        weight, *bias, eps, dtype = others
        kernel: Any = norm_fp8_kernel if x.dim() == 2 else norm_fp8_groups_kernel
        given = x, residual, weight, bias[0] if bias else None, eps, centered, dtype, largest_of(dtype)
        return tuple(kernel(*given)[: 2 + adds])

    def fake(x: torch.Tensor, *others: Any) -> tuple[torch.Tensor, ...]:
        rows = fake_rows(x, others[-1])
        return (*rows, others[0].new_empty(others[0].shape)) if adds else rows

    schema = f"{name}({inputs}, ScalarType dtype) -> (Tensor, Tensor{', Tensor' * adds})"
    found = Operator(schema, norm_fp8_kernel, norm_fp8_groups_kernel, run=run, fake=fake)
    found.refuse_gradients()
    return found


_NORM_NAMES = ("rms_norm_fp8", "add_rms_norm_fp8", "layer_norm_fp8", "add_layer_norm_fp8")
_NORMS = {name: _norm_operator(name) for name in _NORM_NAMES}


def _norm(
    op: str,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    dtype: torch.dtype,
    group: int | None,
) -> tuple[torch.Tensor, ...]:
    """Check the arguments of a norm and compute it; return values and scales, and the sum with a residual."""
    check_tensor(op, "x", x, least_dims=1)
    if residual is not None:
        check_tensor(op, "residual", residual, shape=x.shape, like=x)
    check_tensor(op, "weight", weight, shape=x.shape[-1:], like=x)
    if bias is not None:
        check_tensor(op, "bias", bias, shape=x.shape[-1:], like=x)
    check_format(op, dtype)
    check_group(op, group, x.size(-1))
    shape, adds = x.shape, [] if residual is None else [rows(residual)]
    parts: list[torch.Tensor | None] = [rows(x), *adds, weight, *([bias] if "layer" in op else [])]
    if group is not None:
        parts = [None if t is None else split(t, t.dim() - 1, shape[-1] // group, group) for t in parts]
    values, scales, *added = _NORMS[op](*parts, eps, dtype)
    return values.view(shape), scales.view(*shape[:-1], *scales.shape[1:]), *(t.view(shape) for t in added)


def rms_norm_fp8(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    group: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalize rows as `rms_norm` does and quantize them as `quantize_fp8` does, in one kernel. There is no gradient.

    Args:
        x: `[..., N]`; float32, bfloat16 or float16.
        weight: `[N]`; any of these dtypes.
        eps: added to the mean of squares.
        dtype: `torch.float8_e4m3fn` or `torch.float8_e5m2`.
        group: number of consecutive columns with one scale, a divisor of N; None: all.

    Returns:
        Values of the shape of `x`, and fp32 scales, `[...]` or `[..., N / group]`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape, device or value.
    """
    values, scales = _norm("rms_norm_fp8", x, None, weight, None, eps, dtype, group)
    return values, scales


def add_rms_norm_fp8(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    group: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Add a residual to `x`, normalize the rows of the sum and quantize them, in one kernel. There is no gradient.

    Args:
        x: `[..., N]`; float32, bfloat16 or float16.
        residual: a tensor of the shape of `x`, of any of these dtypes.
        weight: `[N]`; any of these dtypes.
        eps: added to the mean of squares.
        dtype: `torch.float8_e4m3fn` or `torch.float8_e5m2`.
        group: number of consecutive columns with one scale, a divisor of N; None: all.

    Returns:
        Values of the shape of `x`, fp32 scales, `[...]` or `[..., N / group]`, and `x + residual` in the dtype of `residual`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape, device or value.
    """
    values, scales, added = _norm("add_rms_norm_fp8", x, residual, weight, None, eps, dtype, group)
    return values, scales, added


def layer_norm_fp8(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    group: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalize rows as `layer_norm` does and quantize them as `quantize_fp8` does, in one kernel. There is no gradient.

    Args:
        x: `[..., N]`; float32, bfloat16 or float16.
        weight: `[N]`; any of these dtypes.
        bias: `[N]`; any of these dtypes, or None.
        eps: added to the variance.
        dtype: `torch.float8_e4m3fn` or `torch.float8_e5m2`.
        group: number of consecutive columns with one scale, a divisor of N; None: all.

    Returns:
        Values of the shape of `x`, and fp32 scales, `[...]` or `[..., N / group]`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape, device or value.
    """
    values, scales = _norm("layer_norm_fp8", x, None, weight, bias, eps, dtype, group)
    return values, scales


def add_layer_norm_fp8(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    group: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Add a residual to `x` and do the same as `layer_norm_fp8` with the sum, in one kernel. There is no gradient.

    Args:
        x: `[..., N]`; float32, bfloat16 or float16.
        residual: a tensor of the shape of `x`, of any of these dtypes.
        weight: `[N]`; any of these dtypes.
        bias: `[N]`; any of these dtypes, or None.
        eps: added to the variance.
        dtype: `torch.float8_e4m3fn` or `torch.float8_e5m2`.
        group: number of consecutive columns with one scale, a divisor of N; None: all.

    Returns:
        Values of the shape of `x`, fp32 scales, `[...]` or `[..., N / group]`, and `x + residual` in the dtype of `residual`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape, device or value.
    """
    values, scales, added = _norm("add_layer_norm_fp8", x, residual, weight, bias, eps, dtype, group)
    return values, scales, added
