"""torch functions that are a few lines of others."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from ... import exc
from ..._shapes import ONE
from . import ops
from .rules import Rules
from .torch_matmul import dot
from .torch_pointwise import in_float32, named
from .torch_reductions import norm, softmax_of, sum_of
from .torch_shapes import insert_one, position
from .tracer import Tracer
from .values import DeviceValue

RULES = Rules()
rule = RULES.register


@rule(*named("nan_to_num"))
def _nan_to_num(t: Tracer, input: DeviceValue, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> DeviceValue:
    if not input.dtype.is_floating_point:
        return input
    limits = torch.finfo(input.dtype)
    high, low = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
    result = ops.pointwise(
        t, "where", ops.pointwise(t, "isnan", input), ops.full(t, (), nan or 0.0, input.dtype), input
    )
    result = ops.pointwise(
        t, "where", ops.pointwise(t, "eq", input, math.inf), ops.full(t, (), high, input.dtype), result
    )
    return ops.pointwise(
        t, "where", ops.pointwise(t, "eq", input, -math.inf), ops.full(t, (), low, input.dtype), result
    )


@rule(*named("sgn"))
def _sgn(t: Tracer, input: DeviceValue) -> DeviceValue:
    return ops.pointwise(t, "sign", input)


@rule(*named("rsub"))
def _rsub(t: Tracer, input: DeviceValue, other: Any, *, alpha: Any = 1) -> DeviceValue:
    return ops.pointwise(t, "sub", other, input if alpha == 1 else input * alpha)


@rule(*named("logit"), torch.special.logit)
@in_float32
def _logit(t: Tracer, input: DeviceValue, eps: float | None = None) -> DeviceValue:
    if eps is not None:
        input = ops.pointwise(t, "minimum", ops.pointwise(t, "maximum", input, eps), 1.0 - eps)
    return ops.pointwise(t, "log", input / (1.0 - input))


@rule(*named("deg2rad"))
def _deg2rad(t: Tracer, input: DeviceValue) -> DeviceValue:
    return ops.pointwise(t, "mul", input, math.pi / 180.0)


@rule(*named("rad2deg"))
def _rad2deg(t: Tracer, input: DeviceValue) -> DeviceValue:
    return ops.pointwise(t, "mul", input, 180.0 / math.pi)


@rule(*named("logaddexp2"))
@in_float32
def _logaddexp2(t: Tracer, input: DeviceValue, other: DeviceValue) -> DeviceValue:
    high, low = ops.pointwise(t, "maximum", input, other), ops.pointwise(t, "minimum", input, other)
    gap = ops.pointwise(t, "where", ops.pointwise(t, "eq", input, other), 0.0, low - high)
    return high + ops.pointwise(t, "log2", ops.pointwise(t, "exp2", gap) + 1.0)


@rule(*named("heaviside"))
def _heaviside(t: Tracer, input: DeviceValue, values: DeviceValue) -> DeviceValue:
    step = ops.cast(t, ops.pointwise(t, "gt", input, 0), input.dtype)
    result = ops.pointwise(t, "where", ops.pointwise(t, "eq", input, 0), values, step)
    return ops.pointwise(t, "where", ops.pointwise(t, "isnan", input), input, result)


# --- activations -------------------------------------------------------------------------------------------------------


@rule(F.threshold, torch.threshold)
def _threshold(t: Tracer, input: DeviceValue, threshold: float, value: float, inplace: bool = False) -> DeviceValue:
    return ops.pointwise(
        t, "where", ops.pointwise(t, "gt", input, threshold), input, ops.full(t, (), value, input.dtype)
    )


@rule(F.selu, torch.selu)
@in_float32
def _selu(t: Tracer, input: DeviceValue, inplace: bool = False) -> DeviceValue:
    # the fixed point of Klambauer et al. 2017
    scale, alpha = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
    return ops.pointwise(t, "where", input > 0, input, ops.pointwise(t, "expm1", input) * alpha) * scale


@rule(F.celu, torch.celu)
@in_float32
def _celu(t: Tracer, input: DeviceValue, alpha: float = 1.0, inplace: bool = False) -> DeviceValue:
    return ops.pointwise(t, "where", input > 0, input, ops.pointwise(t, "expm1", input / alpha) * alpha)


@rule(F.softsign)
@in_float32
def _softsign(t: Tracer, input: DeviceValue) -> DeviceValue:
    return input / (ops.pointwise(t, "abs", input) + 1.0)


@rule(F.tanhshrink)
@in_float32
def _tanhshrink(t: Tracer, input: DeviceValue) -> DeviceValue:
    return input - ops.pointwise(t, "tanh", input)


@rule(F.softmin)
def _softmin(t: Tracer, input: DeviceValue, dim: int, _stacklevel: int = 3, dtype: Any = None) -> DeviceValue:
    return softmax_of(t, -input, dim, dtype)


# --- losses without a reduction ----------------------------------------------------------------------------------------


def _unreduced(reduction: str, name: str) -> None:
    if reduction != "none":
        raise exc.UnsupportedTorchFunction(
            name=f"torch.nn.functional.{name} with reduction={reduction!r}",
            remedy="; use reduction='none' and reduce the result over the whole tensor",
        )


@rule(F.mse_loss)
@in_float32
def _mse_loss(t: Tracer, input: DeviceValue, target: DeviceValue, *, reduction: str = "mean") -> DeviceValue:
    _unreduced(reduction, "mse_loss")
    return (input - target) * (input - target)


@rule(F.l1_loss)
def _l1_loss(t: Tracer, input: DeviceValue, target: DeviceValue, *, reduction: str = "mean") -> DeviceValue:
    _unreduced(reduction, "l1_loss")
    return ops.pointwise(t, "abs", input - target)


@rule(F.smooth_l1_loss)
@in_float32
def _smooth_l1_loss(
    t: Tracer, input: DeviceValue, target: DeviceValue, *, reduction: str = "mean", beta: float = 1.0
) -> DeviceValue:
    _unreduced(reduction, "smooth_l1_loss")
    gap = ops.pointwise(t, "abs", input - target)
    if beta == 0:
        return gap
    return ops.pointwise(t, "where", gap < beta, gap * gap * (0.5 / beta), gap - 0.5 * beta)


@rule(F.huber_loss)
@in_float32
def _huber_loss(
    t: Tracer, input: DeviceValue, target: DeviceValue, *, reduction: str = "mean", delta: float = 1.0
) -> DeviceValue:
    _unreduced(reduction, "huber_loss")
    gap = ops.pointwise(t, "abs", input - target)
    return ops.pointwise(t, "where", gap <= delta, gap * gap * 0.5, (gap - 0.5 * delta) * delta)


@rule(F.kl_div)
@in_float32
def _kl_div(
    t: Tracer, input: DeviceValue, target: DeviceValue, *, reduction: str = "mean", log_target: bool = False
) -> DeviceValue:
    _unreduced(reduction, "kl_div")
    if log_target:
        return ops.pointwise(t, "exp", target) * (target - input)
    entropy = ops.pointwise(
        t, "where", ops.pointwise(t, "eq", target, 0), 0.0, target * ops.pointwise(t, "log", target)
    )
    return entropy - target * input


@rule(F.binary_cross_entropy_with_logits)
@in_float32
def _bce_with_logits(t: Tracer, input: DeviceValue, target: DeviceValue, *, reduction: str = "mean") -> DeviceValue:
    _unreduced(reduction, "binary_cross_entropy_with_logits")
    tail = ops.pointwise(t, "log1p_unit", ops.pointwise(t, "exp", -ops.pointwise(t, "abs", input)))
    return ops.pointwise(t, "maximum", input, 0.0) - input * target + tail


# --- products and norms ------------------------------------------------------------------------------------------------


@rule(F.linear)
def _linear(t: Tracer, input: DeviceValue, weight: DeviceValue, bias: DeviceValue | None = None) -> DeviceValue:
    if input.ndim != 2 or weight.ndim != 2:
        raise exc.ShapeMismatch(lhs=repr(input), rhs=repr(weight), detail=": linear takes two operands of rank 2")
    result = torch.promote_types(input.dtype, weight.dtype)
    product = dot(t, input, ops.permute(t, weight, (1, 0)))
    return ops.cast(t, product if bias is None else product + bias, result)


@rule(*named("outer"), *named("ger"))
def _outer(t: Tracer, input: DeviceValue, vec2: DeviceValue) -> DeviceValue:
    if input.ndim != 1 or vec2.ndim != 1:
        raise exc.ShapeMismatch(lhs=repr(input), rhs=repr(vec2), detail=": outer takes two vectors")
    return insert_one(t, input, 1) * insert_one(t, vec2, 0)


@rule(F.normalize)
@in_float32
def _normalize(t: Tracer, input: DeviceValue, p: Any = 2.0, dim: int = 1, eps: float = 1e-12) -> DeviceValue:
    return input / ops.pointwise(t, "maximum", norm(t, input, p, dim, True), eps)


@rule(*named("count_nonzero"))
def _count_nonzero(t: Tracer, input: DeviceValue, dim: Any = None) -> DeviceValue:
    return sum_of(t, ops.pointwise(t, "ne", input, 0), dim)


# --- triangles ---------------------------------------------------------------------------------------------------------


def _triangle(t: Tracer, input: DeviceValue, diagonal: int, lower: bool) -> DeviceValue:
    name = "tril" if lower else "triu"
    if input.ndim < 2 or not isinstance(diagonal, int):
        raise TypeError(f"{name} takes a tile of rank 2 or more and a constant diagonal")
    rows, columns = (_places(t, input, at, name) for at in (input.ndim - 2, input.ndim - 1))
    kept = ops.pointwise(t, "ge" if lower else "le", rows + diagonal, columns)
    return ops.pointwise(t, "where", kept, input, ops.full(t, (), 0, input.dtype))


def _places(t: Tracer, input: DeviceValue, at: int, name: str) -> DeviceValue:
    """Row or column numbers of a whole dimension; a tile does not know where in the tensor it came from."""
    dim = input.dims[at]
    if not dim.is_one and (dim.block is None or t.blocks[dim.block].kind != "full"):
        raise exc.UnsupportedTorchFunction(
            name=f"torch.{name} of a tile", remedy="; compare tile.index of rows and columns and use torch.where"
        )
    dims = [ONE] * input.ndim
    dims[at] = dim
    index = ops.iota(t, t.blocks.size_of(dim)) if not dim.is_one else ops.full(t, (ONE,), 0, torch.int32)
    return ops.reshape(t, index, tuple(dims))


@rule(*named("tril"))
def _tril(t: Tracer, input: DeviceValue, diagonal: int = 0) -> DeviceValue:
    return _triangle(t, input, diagonal, True)


@rule(*named("triu"))
def _triu(t: Tracer, input: DeviceValue, diagonal: int = 0) -> DeviceValue:
    return _triangle(t, input, diagonal, False)


@rule(*named("roll"))
def _roll(t: Tracer, input: DeviceValue, shifts: Any, dims: Any = None) -> DeviceValue:
    if dims is None:
        raise exc.UnsupportedTorchFunction(name="torch.roll without dims", remedy="; name the dimension")
    for shift, dim in zip(*(v if isinstance(v, (tuple, list)) else (v,) for v in (shifts, dims)), strict=True):
        at = position(input, dim)
        size = t.blocks.size_of(input.dims[at])
        if not isinstance(size, int) or not isinstance(shift, int):
            raise exc.UnsupportedTorchFunction(name="torch.roll along a tile", remedy="; shift the subscript instead")
        if size > 1:
            index = ops.pointwise(t, "remainder", _places(t, input, at, "roll") - shift, size)
            input = ops.gather(t, input, ops.broadcast(t, index, input.dims), at)
    return input
