"""Root-mean-square normalization of rows, alone or of the sum with a residual.

A whole row stays in registers between its sum of squares and its scaling. The gradient of the weight is a sum over
rows: each program adds up a block of rows, and others add up the blocks in the same launch, in a fixed order.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl

from .._block_sums import COLUMNS, LINES
from .._operators import Operator, check_tensor, rows, shaped


@helion.kernel(static_shapes=False)
def rms_norm_kernel(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalize the rows of `x[M, N]` and scale them by `weight[N]`."""
    m = x.size(0)
    n = hl.specialize(x.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile in hl.tile(m):
        row = x[tile, :].to(torch.float32)
        scale = torch.rsqrt(torch.mean(row * row, dim=-1, keepdim=True) + eps)
        out[tile, :] = row * scale * weight[:].to(torch.float32)
    return out


@helion.kernel(static_shapes=False)
def add_rms_norm_kernel(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
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
        scale = torch.rsqrt(torch.mean(row * row, dim=-1, keepdim=True) + eps)
        out[tile, :] = row * scale * weight[:].to(torch.float32)
    return out, added


@helion.kernel(static_shapes=False, backend="auto")
def rms_norm_backward_kernel(
    grad: torch.Tensor, grad_row: torch.Tensor | None, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the gradient of the rows `x[M, N]`, add `grad_row[M, N]` to it, and that of `weight[N]`."""
    m = x.size(0)
    n = hl.specialize(x.size(1))
    block = hl.register_block_size(m)
    grad_x = torch.empty([m, n], dtype=x.dtype, device=x.device)
    grad_weight = torch.empty([n], dtype=weight.dtype, device=x.device)
    partial = torch.empty([helion.cdiv(m, block), n], dtype=torch.float32, device=x.device)
    for outer in hl.tile(m, block_size=block):
        sums = hl.zeros([n], dtype=torch.float32)
        for tile in hl.tile(outer.begin, outer.end):
            row = x[tile, :].to(torch.float32)
            given = grad[tile, :].to(torch.float32)
            scale = torch.rsqrt(torch.mean(row * row, dim=-1, keepdim=True) + eps)
            normalized = row * scale
            sums += torch.sum(given * normalized, dim=0)
            weighted = given * weight[:].to(torch.float32)
            found = (weighted - normalized * torch.mean(weighted * normalized, dim=-1, keepdim=True)) * scale
            if grad_row is not None:
                found = found + grad_row[tile, :].to(torch.float32)
            grad_x[tile, :] = found
        partial[outer.id, :] = sums
    hl.barrier()
    for columns in hl.tile(n, block_size=COLUMNS):
        total = hl.zeros([columns], dtype=torch.float32)
        for lines in hl.tile(partial.size(0), block_size=LINES):
            total += torch.sum(partial[lines, columns], dim=0)
        grad_weight[columns] = total
    return grad_x, grad_weight


def _like(x: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), other.new_empty(other.shape)


_backward = Operator(
    "rms_norm_backward(Tensor grad, Tensor? grad_row, Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)",
    rms_norm_backward_kernel,
    fake=lambda grad, grad_row, x, weight, eps: _like(x, weight),
)
_backward.differentiate_once()

_rms_norm = Operator(
    "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
    rms_norm_kernel,
    fake=lambda x, weight, eps: x.new_empty(x.shape),
)
_add_rms_norm = Operator(
    "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)",
    add_rms_norm_kernel,
    fake=lambda x, residual, weight, eps: _like(x, residual),
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, weight = ctx.saved_tensors
    return (*_backward(grad, None, x, weight, ctx.eps), None)


def _save_sum(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    x, _, weight, ctx.eps = inputs
    ctx.dtype = x.dtype
    ctx.save_for_backward(output[1], weight)


def _gradients_of_sum(ctx: Any, grad: torch.Tensor, grad_added: torch.Tensor) -> tuple[Any, ...]:
    added, weight = ctx.saved_tensors
    grad_sum, grad_weight = _backward(grad, grad_added, added, weight, ctx.eps)
    return grad_sum.to(ctx.dtype), grad_sum, grad_weight, None


_rms_norm.differentiate(_save, _gradients)
_add_rms_norm.differentiate(_save_sum, _gradients_of_sum)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Divide each row of `x` by its root mean square and scale it by `weight`, in fp32.

    Args:
        x: `[..., N]`; float32, bfloat16 or float16.
        weight: `[N]`; any of these dtypes.
        eps: added to the mean of squares.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or device.
    """
    check_tensor("rms_norm", "x", x, least_dims=1)
    check_tensor("rms_norm", "weight", weight, shape=x.shape[-1:], like=x)
    out: torch.Tensor = _rms_norm(rows(x), weight, eps)
    return shaped(out, x.shape)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add a residual to `x` and normalize the rows of the sum as `rms_norm` does, in one kernel.

    Args:
        x: `[..., N]`; float32, bfloat16 or float16.
        residual: a tensor of the shape of `x`, of any of these dtypes.
        weight: `[N]`; any of these dtypes.
        eps: added to the mean of squares.

    Returns:
        The normalized rows in the dtype of `x`, and `x + residual` in the dtype of `residual`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or device.
    """
    check_tensor("add_rms_norm", "x", x, least_dims=1)
    check_tensor("add_rms_norm", "residual", residual, shape=x.shape, like=x)
    check_tensor("add_rms_norm", "weight", weight, shape=x.shape[-1:], like=x)
    out, added = _add_rms_norm(rows(x), rows(residual), weight, eps)
    return shaped(out, x.shape), shaped(added, x.shape)
