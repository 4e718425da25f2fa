"""Bias, dropout and residual in one kernel, as after the projections of a transformer layer.

The mask is never stored: the backward pass generates the same random numbers again from the seed. The seed is a tensor
on the device, so that CUDA graphs replay with fresh numbers.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl

from .._operators import Operator, check, check_tensor, rows


@helion.kernel(static_shapes=False)
def dropout_kernel(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    seed: torch.Tensor,
    p: float,
    drops: hl.constexpr,
) -> torch.Tensor:
    """Compute `dropout(x[M, N] + bias[N]) + residual[M, N]`, where elements are dropped with probability `p`."""
    m, n = x.size()
    out = torch.empty([m, n], dtype=residual.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        values = x[tile_m, tile_n].to(torch.float32)
        if bias is not None:
            values = values + bias[tile_n].to(torch.float32)[None, :]
        if drops:
            kept = hl.rand([tile_m, tile_n], seed[0]) >= p
            values = torch.where(kept, values / (1 - p), 0.0)
        out[tile_m, tile_n] = values + residual[tile_m, tile_n].to(torch.float32)
    return out


@helion.kernel(static_shapes=False)
def dropout_backward_kernel(
    grad: torch.Tensor, seed: torch.Tensor, p: float, drops: hl.constexpr, dtype: hl.constexpr
) -> torch.Tensor:
    """Compute the gradient of `x + bias` from that of the result, `grad[M, N]`."""
    m, n = grad.size()
    out = torch.empty([m, n], dtype=dtype, device=grad.device)
    for tile_m, tile_n in hl.tile([m, n]):
        given = grad[tile_m, tile_n].to(torch.float32)
        if drops:
            kept = hl.rand([tile_m, tile_n], seed[0]) >= p
            given = torch.where(kept, given / (1 - p), 0.0)
        out[tile_m, tile_n] = given
    return out


_backward = Operator(
    "dropout_backward(Tensor grad, Tensor seed, float p, ScalarType dtype) -> Tensor",
    dropout_backward_kernel,
    run=lambda grad, seed, p, dtype: dropout_backward_kernel(grad, seed, p, p > 0, dtype),
    fake=lambda grad, seed, p, dtype: grad.new_empty(grad.shape, dtype=dtype),
)
_backward.differentiate_once()
_dropout = Operator(
    "bias_dropout_residual(Tensor x, Tensor? bias, Tensor residual, Tensor seed, float p) -> Tensor",
    dropout_kernel,
    run=lambda x, bias, residual, seed, p: dropout_kernel(x, bias, residual, seed, p, p > 0),
    fake=lambda x, bias, residual, seed, p: residual.new_empty(residual.shape),
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, bias, residual, seed, ctx.p = inputs
    ctx.dtype, ctx.bias_dtype, ctx.residual_dtype = x.dtype, None if bias is None else bias.dtype, residual.dtype
    ctx.save_for_backward(seed)


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    grad_x = _backward(grad, *ctx.saved_tensors, ctx.p, ctx.dtype)
    grad_bias = None if ctx.bias_dtype is None else grad_x.sum(0, dtype=torch.float32).to(ctx.bias_dtype)
    return grad_x, grad_bias, grad.to(ctx.residual_dtype), None, None


_dropout.differentiate(_save, _gradients)


def bias_dropout_residual(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    *,
    p: float,
    training: bool = True,
) -> torch.Tensor:
    """Add a bias to `x`, drop elements, scale the others by `1 / (1 - p)` and add a residual, in fp32.

    The seed is drawn from torch's generator of the device, so `torch.manual_seed` makes a run repeatable.

    Args:
        x: `[..., N]`; float32, bfloat16 or float16.
        bias: `[N]`, or None; any of these dtypes.
        residual: a tensor of the shape of `x`, of any of these dtypes.
        p: probability of an element to be dropped, from 0 to less than 1.
        training: False drops nothing.

    Returns:
        A tensor of the shape of `x` and the dtype of `residual`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape, device or value.
    """
    op = "bias_dropout_residual"
    check_tensor(op, "x", x, least_dims=1)
    if bias is not None:
        check_tensor(op, "bias", bias, shape=x.shape[-1:], like=x)
    check_tensor(op, "residual", residual, shape=x.shape, like=x)
    check(op, "p", 0 <= p < 1, "from 0 to less than 1", p)
    seed = torch.randint(2**62, [1], device=x.device)
    out: torch.Tensor = _dropout(rows(x), bias, rows(residual), seed, float(p) if training else 0.0)
    return out.view(x.shape)
