"""The backward of linear layers whose weights have few bits and no gradient."""

from __future__ import annotations

from typing import Any

import torch

from ._operators import Operator


def differentiate_linear(linear: Operator, backward: Operator) -> None:
    """Register gradients of `x` and `bias` for an operator that is called with `x`, weight, scale and `bias`.

    Args:
        linear: the operator.
        backward: computes the gradient of `x` from that of the result, the weight and the scale.
    """

    def save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _, weight, scale, bias = inputs
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.save_for_backward(weight, scale)

    def gradients(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        of_bias = None if ctx.bias_dtype is None else grad.sum(0, dtype=torch.float32).to(ctx.bias_dtype)
        return backward(grad, *ctx.saved_tensors), None, None, of_bias

    linear.differentiate(save, gradients)
