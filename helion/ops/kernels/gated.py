"""Gated linear units: an activation of one tensor times another, as between the two matmuls of a feed-forward layer.

Forward and backward are pointwise, computed in fp32. Gate and value may be the halves of one tensor, as `chunk` gives
them: kernels take strides, so that nothing is copied.
"""

from __future__ import annotations

import math
from typing import Any

import torch

import helion
import helion.language as hl

from .._operators import Operator, check, check_tensor, rows, shaped


def silu(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `x * sigmoid(x)` and its derivative."""
    sigmoid = torch.sigmoid(x)
    return x * sigmoid, sigmoid * (1 + x * (1 - sigmoid))


def gelu(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `x * Phi(x)`, with the distribution function of a normal variable, and its derivative."""
    below = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
    return x * below, below + x * torch.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))


def gelu_tanh(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the approximation of `gelu` by a hyperbolic tangent, and its derivative."""
    root = math.sqrt(2 / math.pi)
    tangent = torch.tanh(root * (x + 0.044715 * x * x * x))
    slope = (1 - tangent * tangent) * root * (1 + 3 * 0.044715 * x * x)
    return 0.5 * x * (1 + tangent), 0.5 * (1 + tangent + x * slope)


@helion.kernel(static_shapes=False)
def gated_kernel(gate: torch.Tensor, up: torch.Tensor, activation: hl.constexpr) -> torch.Tensor:
    """Compute `activation(gate[M, N]) * up[M, N]`."""
    m, n = gate.size()
    out = torch.empty([m, n], dtype=up.dtype, device=up.device)
    for tile_m, tile_n in hl.tile([m, n]):
        activated, _ = activation(gate[tile_m, tile_n].to(torch.float32))
        out[tile_m, tile_n] = activated * up[tile_m, tile_n].to(torch.float32)
    return out


@helion.kernel(static_shapes=False)
def gated_backward_kernel(
    grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: hl.constexpr
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the gradients of `gate[M, N]` and `up[M, N]`."""
    m, n = gate.size()
    grad_gate = torch.empty([m, n], dtype=gate.dtype, device=gate.device)
    grad_up = torch.empty([m, n], dtype=up.dtype, device=up.device)
    for tile_m, tile_n in hl.tile([m, n]):
        given = grad[tile_m, tile_n].to(torch.float32)
        activated, slope = activation(gate[tile_m, tile_n].to(torch.float32))
        grad_gate[tile_m, tile_n] = given * up[tile_m, tile_n].to(torch.float32) * slope
        grad_up[tile_m, tile_n] = given * activated
    return grad_gate, grad_up


#: Activations by the name that the operator takes.
ACTIVATIONS = {"silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh}

_backward = Operator(
    "gated_backward(Tensor grad, Tensor gate, Tensor up, str activation) -> (Tensor, Tensor)",
    gated_backward_kernel,
    run=lambda grad, gate, up, activation: gated_backward_kernel(grad, gate, up, ACTIVATIONS[activation]),
    fake=lambda grad, gate, up, activation: (gate.new_empty(gate.shape), up.new_empty(up.shape)),
)
_backward.differentiate_once()
_gated = Operator(
    "gated(Tensor gate, Tensor up, str activation) -> Tensor",
    gated_kernel,
    run=lambda gate, up, activation: gated_kernel(gate, up, ACTIVATIONS[activation]),
    fake=lambda gate, up, activation: up.new_empty(up.shape),
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    gate, up, ctx.activation = inputs
    ctx.save_for_backward(gate, up)


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return (*_backward(grad, *ctx.saved_tensors, ctx.activation), None)


_gated.differentiate(_save, _gradients)


def _call(op: str, gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    check_tensor(op, "gate", gate, least_dims=1)
    check_tensor(op, "up", up, shape=gate.shape, like=gate)
    out: torch.Tensor = _gated(rows(gate), rows(up), activation)
    return shaped(out, gate.shape)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Compute `silu(gate) * up` in fp32.

    Args:
        gate: `[..., N]`; float32, bfloat16 or float16.
        up: a tensor of the shape of `gate`, of any of these dtypes.

    Returns:
        A tensor of the shape and dtype of `up`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or device.
    """
    return _call("swiglu", gate, up, "silu")


def geglu(gate: torch.Tensor, up: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """Compute `gelu(gate) * up` in fp32.

    Args:
        gate: `[..., N]`; float32, bfloat16 or float16.
        up: a tensor of the shape of `gate`, of any of these dtypes.
        approximate: `"none"`, or `"tanh"` for the approximation by a hyperbolic tangent.

    Returns:
        A tensor of the shape and dtype of `up`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape, device or value.
    """
    check("geglu", "approximate", approximate in ("none", "tanh"), "'none' or 'tanh'", repr(approximate))
    return _call("geglu", gate, up, "gelu" if approximate == "none" else "gelu_tanh")
