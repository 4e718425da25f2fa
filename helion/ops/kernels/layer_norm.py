"""Layer normalization of rows, alone or of the sum with a residual.

Mean and variance come from one row in registers, the variance from centered values. The gradients of weight and bias
are sums over rows: each program adds up a block of rows, and others add up the blocks in the same launch.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl

from .._block_sums import COLUMNS, LINES
from .._operators import Operator, check_tensor, rows, shaped


@helion.kernel(static_shapes=False)
def layer_norm_kernel(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    """Normalize the rows of `x[M, N]`, scale them by `weight[N]` and add `bias[N]`."""
    m = x.size(0)
    n = hl.specialize(x.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile in hl.tile(m):
        row = x[tile, :].to(torch.float32)
        centered = row - torch.mean(row, dim=-1, keepdim=True)
        scale = torch.rsqrt(torch.mean(centered * centered, dim=-1, keepdim=True) + eps)
        result = centered * scale * weight[:].to(torch.float32)
        if bias is not None:
            result = result + bias[:].to(torch.float32)
        out[tile, :] = result
    return out


@helion.kernel(static_shapes=False)
def add_layer_norm_kernel(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalize the rows of `x[M, N] + residual[M, N]`; return the result and the sum."""
    m = x.size(0)
    n = hl.specialize(x.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    added = torch.empty([m, n], dtype=residual.dtype, device=x.device)
    for tile in hl.tile(m):
        total = (x[tile, :].to(torch.float32) + residual[tile, :].to(torch.float32)).to(residual.dtype)
        added[tile, :] = total
        row = total.to(torch.float32)  # rounded as it is stored, so that the backward sees the same row
        centered = row - torch.mean(row, dim=-1, keepdim=True)
        scale = torch.rsqrt(torch.mean(centered * centered, dim=-1, keepdim=True) + eps)
        result = centered * scale * weight[:].to(torch.float32)
        if bias is not None:
            result = result + bias[:].to(torch.float32)
        out[tile, :] = result
    return out, added


@helion.kernel(static_shapes=False, backend="auto")
def layer_norm_backward_kernel(
    grad: torch.Tensor, grad_row: torch.Tensor | None, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the gradient of the rows `x[M, N]`, add `grad_row[M, N]` to it, and those of `weight[N]` and the bias."""
    m = x.size(0)
    n = hl.specialize(x.size(1))
    block = hl.register_block_size(m)
    grad_x = torch.empty([m, n], dtype=x.dtype, device=x.device)
    grad_weight = torch.empty([n], dtype=weight.dtype, device=x.device)
    grad_bias = torch.empty([n], dtype=weight.dtype, device=x.device)
    weights = torch.empty([helion.cdiv(m, block), n], dtype=torch.float32, device=x.device)
    biases = torch.empty([helion.cdiv(m, block), n], dtype=torch.float32, device=x.device)
    for outer in hl.tile(m, block_size=block):
        sums_weight = hl.zeros([n], dtype=torch.float32)
        sums_bias = hl.zeros([n], dtype=torch.float32)
        for tile in hl.tile(outer.begin, outer.end):
            row = x[tile, :].to(torch.float32)
            given = grad[tile, :].to(torch.float32)
            centered = row - torch.mean(row, dim=-1, keepdim=True)
            scale = torch.rsqrt(torch.mean(centered * centered, dim=-1, keepdim=True) + eps)
            normalized = centered * scale
            sums_weight += torch.sum(given * normalized, dim=0)
            sums_bias += torch.sum(given, dim=0)
            weighted = given * weight[:].to(torch.float32)
            along = torch.mean(weighted * normalized, dim=-1, keepdim=True)
            found = (weighted - torch.mean(weighted, dim=-1, keepdim=True) - normalized * along) * scale
            if grad_row is not None:
                found = found + grad_row[tile, :].to(torch.float32)
            grad_x[tile, :] = found
        weights[outer.id, :] = sums_weight
        biases[outer.id, :] = sums_bias
    hl.barrier()
    for columns in hl.tile(n, block_size=COLUMNS):
        of_weight = hl.zeros([columns], dtype=torch.float32)
        of_bias = hl.zeros([columns], dtype=torch.float32)
        for lines in hl.tile(weights.size(0), block_size=LINES):
            of_weight += torch.sum(weights[lines, columns], dim=0)
            of_bias += torch.sum(biases[lines, columns], dim=0)
        grad_weight[columns] = of_weight
        grad_bias[columns] = of_bias
    return grad_x, grad_weight, grad_bias


_backward = Operator(
    "layer_norm_backward(Tensor grad, Tensor? grad_row, Tensor x, Tensor weight, float eps) -> (Tensor, Tensor, Tensor)",
    layer_norm_backward_kernel,
    fake=lambda grad, grad_row, x, weight, eps: (
        x.new_empty(x.shape),
        *(weight.new_empty(weight.shape) for _ in range(2)),
    ),
)
_backward.differentiate_once()

_layer_norm = Operator(
    "layer_norm(Tensor x, Tensor weight, Tensor? bias, float eps) -> Tensor",
    layer_norm_kernel,
    fake=lambda x, weight, bias, eps: x.new_empty(x.shape),
)
_add_layer_norm = Operator(
    "add_layer_norm(Tensor x, Tensor residual, Tensor weight, Tensor? bias, float eps) -> (Tensor, Tensor)",
    add_layer_norm_kernel,
    fake=lambda x, residual, weight, bias, eps: (x.new_empty(x.shape), residual.new_empty(residual.shape)),
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, weight, bias, ctx.eps = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(x, weight)


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, weight = ctx.saved_tensors
    grad_x, grad_weight, grad_bias = _backward(grad, None, x, weight, ctx.eps)
    return grad_x, grad_weight, None if ctx.bias_dtype is None else grad_bias.to(ctx.bias_dtype), None


def _save_sum(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    x, _, weight, bias, ctx.eps = inputs
    ctx.dtype, ctx.bias_dtype = x.dtype, None if bias is None else bias.dtype
    ctx.save_for_backward(output[1], weight)


def _gradients_of_sum(ctx: Any, grad: torch.Tensor, grad_added: torch.Tensor) -> tuple[Any, ...]:
    added, weight = ctx.saved_tensors
    grad_sum, grad_weight, grad_bias = _backward(grad, grad_added, added, weight, ctx.eps)
    bias = None if ctx.bias_dtype is None else grad_bias.to(ctx.bias_dtype)
    return grad_sum.to(ctx.dtype), grad_sum, grad_weight, bias, None


_layer_norm.differentiate(_save, _gradients)
_add_layer_norm.differentiate(_save_sum, _gradients_of_sum)


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, eps: float = 1e-5
) -> torch.Tensor:
    """Subtract from each row of `x` its mean, divide it by its deviation, scale it by `weight` and add `bias`, in fp32.

    Args:
        x: `[..., N]`; float32, bfloat16 or float16.
        weight: `[N]`; any of these dtypes.
        bias: `[N]`, or None.
        eps: added to the variance.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or device.
    """
    _check("layer_norm", x, weight, bias)
    out: torch.Tensor = _layer_norm(rows(x), weight, bias, eps)
    return shaped(out, x.shape)


def add_layer_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add a residual to `x` and normalize the rows of the sum as `layer_norm` does, in one kernel.

    Args:
        x: `[..., N]`; float32, bfloat16 or float16.
        residual: a tensor of the shape of `x`, of any of these dtypes.
        weight: `[N]`; any of these dtypes.
        bias: `[N]`, or None.
        eps: added to the variance.

    Returns:
        The normalized rows in the dtype of `x`, and `x + residual` in the dtype of `residual`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or device.
    """
    _check("add_layer_norm", x, weight, bias)
    check_tensor("add_layer_norm", "residual", residual, shape=x.shape, like=x)
    out, added = _add_layer_norm(rows(x), rows(residual), weight, bias, eps)
    return shaped(out, x.shape), shaped(added, x.shape)


def _check(op: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    check_tensor(op, "x", x, least_dims=1)
    check_tensor(op, "weight", weight, shape=x.shape[-1:], like=x)
    if bias is not None:
        check_tensor(op, "bias", bias, shape=x.shape[-1:], like=x)
