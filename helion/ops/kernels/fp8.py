"""Quantization to fp8 with one scale per row, alone or after a norm, and the matmul of such matrices.

The largest magnitude of a row becomes the largest number of the format. The matmul accumulates in fp32 and applies the
scales once, to the accumulator.
"""

from __future__ import annotations

import torch

import helion
import helion.language as hl

from .._operators import FLOATS, Operator, check, check_tensor, rows

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@helion.kernel(static_shapes=False)
def quantize_fp8_kernel(x: torch.Tensor, dtype: hl.constexpr, largest: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute fp8 values `[M, N]` and fp32 scales `[M]` with `values * scale` near `x[M, N]`."""
    m = x.size(0)
    n = hl.specialize(x.size(1))
    out = torch.empty([m, n], dtype=dtype, device=x.device)
    scales = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile in hl.tile(m):
        row = x[tile, :].to(torch.float32)
        highest = torch.amax(torch.abs(row), dim=-1)
        scale = torch.where(highest > 0, highest / largest, 1.0)
        scales[tile] = scale
        out[tile, :] = (row / scale[:, None]).to(dtype)
    return out, scales


@helion.kernel(static_shapes=False)
def rms_norm_fp8_kernel(
    x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: hl.constexpr, largest: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the same of the normalized rows, which are not stored."""
    m = x.size(0)
    n = hl.specialize(x.size(1))
    out = torch.empty([m, n], dtype=dtype, device=x.device)
    scales = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile in hl.tile(m):
        row = x[tile, :].to(torch.float32)
        row = row * torch.rsqrt(torch.mean(row * row, dim=-1, keepdim=True) + eps) * weight[:].to(torch.float32)
        highest = torch.amax(torch.abs(row), dim=-1)
        scale = torch.where(highest > 0, highest / largest, 1.0)
        scales[tile] = scale
        out[tile, :] = (row / scale[:, None]).to(dtype)
    return out, scales


@helion.kernel(static_shapes=False)
def scaled_matmul_kernel(
    x: torch.Tensor, weight: torch.Tensor, x_scale: torch.Tensor, weight_scale: torch.Tensor, dtype: hl.constexpr
) -> torch.Tensor:
    """Compute `(x[M, K] * x_scale[M, None]) @ (weight[N, K] * weight_scale[N, None]).T`."""
    m = x.size(0)
    n, k = hl.specialize(weight.size())
    out = torch.empty([m, n], dtype=dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], weight[tile_n, tile_k].T, acc=acc)
        out[tile_m, tile_n] = acc * x_scale[tile_m][:, None] * weight_scale[tile_n][None, :]
    return out


def _largest(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).max


def _fake(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape, dtype=dtype), x.new_empty(x.size(0), dtype=torch.float32)


_quantize = Operator(
    "quantize_fp8(Tensor x, ScalarType dtype) -> (Tensor, Tensor)",
    quantize_fp8_kernel,
    run=lambda x, dtype: quantize_fp8_kernel(x, dtype, _largest(dtype)),
    fake=_fake,
)
_rms_norm_fp8 = Operator(
    "rms_norm_fp8(Tensor x, Tensor weight, float eps, ScalarType dtype) -> (Tensor, Tensor)",
    rms_norm_fp8_kernel,
    run=lambda x, weight, eps, dtype: rms_norm_fp8_kernel(x, weight, eps, dtype, _largest(dtype)),
    fake=lambda x, weight, eps, dtype: _fake(x, dtype),
)
_scaled_matmul = Operator(
    "scaled_matmul(Tensor x, Tensor weight, Tensor x_scale, Tensor weight_scale, ScalarType dtype) -> Tensor",
    scaled_matmul_kernel,
    fake=lambda x, weight, x_scale, weight_scale, dtype: x.new_empty(x.size(0), weight.size(0), dtype=dtype),
)


def quantize_fp8(x: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize each row of `x` with a scale of its own. There is no gradient.

    Args:
        x: `[..., N]`; float32, bfloat16 or float16.
        dtype: `torch.float8_e4m3fn` or `torch.float8_e5m2`.

    Returns:
        Values of the shape of `x`, and fp32 scales `[...]`; `values * scale` is near `x`. Rows of zeros have scale 1.

    Raises:
        exc.WrongOpArgument: an argument has another dtype or shape.
    """
    check_tensor("quantize_fp8", "x", x, least_dims=1)
    check("quantize_fp8", "dtype", dtype in FP8, "torch.float8_e4m3fn or torch.float8_e5m2", dtype)
    values, scales = _quantize(rows(x), dtype)
    return values.view(x.shape), scales.view(x.shape[:-1])


def rms_norm_fp8(
    x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, *, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalize rows as `rms_norm` does and quantize them as `quantize_fp8` does, in one kernel. There is no gradient.

    Args:
        x: `[..., N]`; float32, bfloat16 or float16.
        weight: `[N]`; any of these dtypes.
        eps: added to the mean of squares.
        dtype: `torch.float8_e4m3fn` or `torch.float8_e5m2`.

    Returns:
        Values of the shape of `x`, and fp32 scales `[...]`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or device.
    """
    op = "rms_norm_fp8"
    check_tensor(op, "x", x, least_dims=1)
    check_tensor(op, "weight", weight, shape=x.shape[-1:], like=x)
    check(op, "dtype", dtype in FP8, "torch.float8_e4m3fn or torch.float8_e5m2", dtype)
    values, scales = _rms_norm_fp8(rows(x), weight, eps, dtype)
    return values.view(x.shape), scales.view(x.shape[:-1])


def scaled_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    weight_scale: torch.Tensor,
    *,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """Multiply fp8 activations by the transpose of an fp8 weight, with a scale per row of both. There is no gradient.

    Args:
        x: `[..., K]`; float8_e4m3fn or float8_e5m2.
        weight: `[N, K]`, of the dtype of `x`.
        x_scale: fp32 `[...]`, one per row of `x`.
        weight_scale: fp32 `[N]`.
        dtype: dtype of the result; bfloat16, float16 or float32.

    Returns:
        `[..., N]` of `dtype`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or device.
    """
    op = "scaled_matmul"
    check_tensor(op, "x", x, dtypes=FP8, least_dims=1)
    check_tensor(op, "weight", weight, dtypes=(x.dtype,), least_dims=2, like=x)
    check_tensor(op, "weight", weight, dtypes=(x.dtype,), shape=(weight.size(0), x.size(-1)))
    check_tensor(op, "x_scale", x_scale, dtypes=(torch.float32,), shape=x.shape[:-1], like=x)
    check_tensor(op, "weight_scale", weight_scale, dtypes=(torch.float32,), shape=weight.shape[:1], like=x)
    check(op, "dtype", dtype in FLOATS, "bfloat16, float16 or float32", dtype)
    out: torch.Tensor = _scaled_matmul(rows(x), weight, x_scale.reshape(-1), weight_scale, dtype)
    return out.view(*x.shape[:-1], weight.size(0))
