"""Linear layer with an int8 weight and a scale per row of it.

The integers become the dtype of the activations as operands of the matmul; the scale is applied once, to the
accumulator. The gradient of few rows is a sum over many rows of the weight by few programs. So programs share that sum,
and a second kernel adds their parts.
"""

from __future__ import annotations

import torch

import helion
import helion.language as hl

from .._low_bits import differentiate_linear
from .._operators import Operator, check_tensor, rows

#: The gradient of at most so many rows is added up in parts.
FEW_ROWS = 64
#: The most parts, and the least rows of the weight of one. So many columns have programs for all SMs without parts.
MOST_PARTS, LEAST_ROWS, MANY_COLUMNS = 8, 512, 2**15
#: Parts begin at multiples of so many rows of the weight.
ALIGNED = 128


@helion.kernel(static_shapes=False)
def int8_linear_kernel(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Compute `x[M, K] @ (weight[N, K] * scale[N, None]).T + bias[N]`."""
    m = x.size(0)
    n, k = hl.specialize(weight.size())
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], weight[tile_n, tile_k].to(x.dtype).T, acc=acc)
        result = acc * scale[tile_n].to(torch.float32)[None, :]
        if bias is not None:
            result = result + bias[tile_n].to(torch.float32)[None, :]
        out[tile_m, tile_n] = result
    return out


@helion.kernel(static_shapes=False)
def int8_linear_backward_kernel(grad: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Compute the gradient of `x`, `(grad[M, N] * scale[N]) @ weight[N, K]`."""
    m = grad.size(0)
    n, k = hl.specialize(weight.size())
    out = torch.empty([m, k], dtype=grad.dtype, device=grad.device)
    for tile_m, tile_k in hl.tile([m, k]):
        acc = hl.zeros([tile_m, tile_k], dtype=torch.float32)
        for tile_n in hl.tile(n):
            scaled = grad[tile_m, tile_n].to(torch.float32) * scale[tile_n].to(torch.float32)[None, :]
            acc = hl.dot(scaled.to(grad.dtype), weight[tile_n, tile_k].to(grad.dtype), acc=acc)
        out[tile_m, tile_k] = acc
    return out


@helion.kernel(static_shapes=False)
def int8_linear_backward_parts_kernel(
    grad: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, parts: hl.constexpr
) -> torch.Tensor:
    """Compute the gradient of `x` in parts that add up to it, fp32 `[M, parts, K]`, each from some rows of the weight."""
    m = grad.size(0)
    n, k = hl.specialize(weight.size())
    size = helion.cdiv(helion.cdiv(n, parts), ALIGNED) * ALIGNED
    partial = torch.empty([m, parts, k], dtype=torch.float32, device=grad.device)
    for tile_m, tile_k, part in hl.tile([m, k, parts], block_size=[None, None, 1]):
        acc = hl.zeros([tile_m, tile_k], dtype=torch.float32)
        for tile_n in hl.tile(part.begin * size, min((part.begin + 1) * size, n)):
            scaled = grad[tile_m, tile_n].to(torch.float32) * scale[tile_n].to(torch.float32)[None, :]
            acc = hl.dot(scaled.to(grad.dtype), weight[tile_n, tile_k].to(grad.dtype), acc=acc)
        partial[tile_m, part.begin, tile_k] = acc
    return partial


@helion.kernel(static_shapes=False)
def add_parts_kernel(partial: torch.Tensor, dtype: hl.constexpr) -> torch.Tensor:
    """Add up the parts of `partial[M, parts, K]`."""
    m = partial.size(0)
    parts, k = hl.specialize((partial.size(1), partial.size(2)))
    out = torch.empty([m, k], dtype=dtype, device=partial.device)
    for tile_m, tile_k in hl.tile([m, k]):
        total = partial[tile_m, 0, tile_k]
        for part in hl.static_range(1, parts):
            total = total + partial[tile_m, part, tile_k]
        out[tile_m, tile_k] = total
    return out


def _run_backward(grad: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    n, k = weight.shape
    parts = min(MOST_PARTS, MANY_COLUMNS // max(k, 1), n // LEAST_ROWS)
    if parts <= 1 or not 0 < grad.size(0) <= FEW_ROWS:
        return int8_linear_backward_kernel(grad, weight, scale)
    return add_parts_kernel(int8_linear_backward_parts_kernel(grad, weight, scale, parts), grad.dtype)


_backward = Operator(
    "int8_linear_backward(Tensor grad, Tensor weight, Tensor scale) -> Tensor",
    int8_linear_backward_kernel,
    int8_linear_backward_parts_kernel,
    add_parts_kernel,
    run=_run_backward,
    fake=lambda grad, weight, scale: grad.new_empty(grad.size(0), weight.size(1)),
)
_backward.differentiate_once()
_int8_linear = Operator(
    "int8_linear(Tensor x, Tensor weight, Tensor scale, Tensor? bias) -> Tensor",
    int8_linear_kernel,
    fake=lambda x, weight, scale, bias: x.new_empty(x.size(0), weight.size(0)),
)
differentiate_linear(_int8_linear, _backward)


def int8_linear(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Apply a linear layer with a quantized weight: `x @ (weight * scale[:, None]).T + bias`.

    There are gradients with respect to `x` and `bias`; the weight and its scale are constants.

    Args:
        x: `[..., K]`; float32, bfloat16 or float16.
        weight: `[N, K]`; int8.
        scale: `[N]`; float32, bfloat16 or float16.
        bias: `[N]`, or None; any of these dtypes.

    Returns:
        `[..., N]` in the dtype of `x`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or device.
    """
    op = "int8_linear"
    check_tensor(op, "x", x, least_dims=1)
    check_tensor(op, "weight", weight, dtypes=(torch.int8,), dims=2, like=x)
    check_tensor(op, "weight", weight, dtypes=(torch.int8,), shape=(weight.size(0), x.size(-1)))
    check_tensor(op, "scale", scale, shape=weight.shape[:1], like=x)
    if bias is not None:
        check_tensor(op, "bias", bias, shape=weight.shape[:1], like=x)
    out: torch.Tensor = _int8_linear(rows(x), weight, scale.detach(), bias)
    return out.view(*x.shape[:-1], weight.size(0))
