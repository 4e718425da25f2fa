"""Softmax of rows.

The backward needs the result alone: the gradient of a row is `p * (grad - sum(grad * p))`.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl

from .._operators import Operator, check_tensor, rows, shaped


@helion.kernel(static_shapes=False)
def softmax_kernel(x: torch.Tensor) -> torch.Tensor:
    """Compute the softmax of each row of `x[M, N]`."""
    m = x.size(0)
    n = hl.specialize(x.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile in hl.tile(m):
        row = x[tile, :].to(torch.float32)
        exponential = torch.exp(row - torch.amax(row, dim=-1, keepdim=True))
        out[tile, :] = exponential / torch.sum(exponential, dim=-1, keepdim=True)
    return out


@helion.kernel(static_shapes=False)
def softmax_backward_kernel(grad: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Compute the gradient of the rows of which `out[M, N]` is the softmax."""
    m = out.size(0)
    n = hl.specialize(out.size(1))
    grad_x = torch.empty([m, n], dtype=out.dtype, device=out.device)
    for tile in hl.tile(m):
        given = grad[tile, :].to(torch.float32)
        p = out[tile, :].to(torch.float32)
        grad_x[tile, :] = p * (given - torch.sum(given * p, dim=-1, keepdim=True))
    return grad_x


_backward = Operator(
    "softmax_backward(Tensor grad, Tensor out) -> Tensor",
    softmax_backward_kernel,
    fake=lambda grad, out: out.new_empty(out.shape),
)
_backward.differentiate_once()
_softmax = Operator("softmax(Tensor x) -> Tensor", softmax_kernel, fake=lambda x: x.new_empty(x.shape))


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(output)


def _gradient(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = _backward(grad, *ctx.saved_tensors)
    return result


_softmax.differentiate(_save, _gradient)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Compute the softmax along the last dimension, in fp32.

    Args:
        x: `[..., N]`; float32, bfloat16 or float16.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        exc.WrongOpArgument: the argument has another dtype or shape.
    """
    check_tensor("softmax", "x", x, least_dims=1)
    out: torch.Tensor = _softmax(rows(x))
    return shaped(out, x.shape)
