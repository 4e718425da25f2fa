"""torch functions that are a few lines of others."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from .... import exc
from ...._shapes import ONE, Dim
from .. import ops
from ..rules import Rules
from ..tracer import Tracer
from ..values import DeviceValue
from .matmul import dot
from .pointwise import in_float32, named, scaled_sum
from .reductions import norm, softmax_of, sum_of
from .shapes import insert_one, position

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
    return scaled_sum(t, "sub", other, input, alpha)


@rule(*named("logit"), torch.special.logit)
@in_float32
def _logit(t: Tracer, input: DeviceValue, eps: float | None = None) -> DeviceValue:
    if eps is None:
        return ops.with_vjp(t, "logit", ops.pointwise(t, "log", input / (1.0 - input)), input)
    inside = ops.pointwise(t, "minimum", ops.pointwise(t, "maximum", input, eps), 1.0 - eps)
    result = ops.pointwise(t, "log", inside / (1.0 - inside))
    return ops.with_vjp(t, "logit_within", result, input, eps, 1.0 - eps)


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
    result = high + ops.pointwise(t, "log2", ops.pointwise(t, "exp2", gap) + 1.0)
    return ops.with_vjp(t, "logaddexp2", result, input, other)


@rule(*named("heaviside"))
def _heaviside(t: Tracer, input: DeviceValue, values: DeviceValue) -> DeviceValue:
    step = ops.cast(t, ops.pointwise(t, "gt", input, 0), input.dtype)
    return ops.pointwise(t, "where", ops.pointwise(t, "eq", input, 0), values, step)


# --- activations ------------------------------------------------------------------------------------------------------


@rule(F.threshold, torch.threshold)
def _threshold(t: Tracer, input: DeviceValue, threshold: float, value: float, inplace: bool = False) -> DeviceValue:
    below = ops.pointwise(t, "le", input, threshold)  # false for nan
    result = ops.pointwise(t, "where", below, ops.full(t, (), value, input.dtype), input)
    return ops.with_vjp(t, "threshold", result, input, threshold)


@rule(F.selu, torch.selu)
@in_float32
def _selu(t: Tracer, input: DeviceValue, inplace: bool = False) -> DeviceValue:
    # the fixed point of Klambauer et al. 2017
    scale, alpha = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
    result = ops.pointwise(t, "where", input > 0, input, ops.pointwise(t, "expm1", input) * alpha) * scale
    return ops.with_vjp(t, "elu", result, input, alpha * scale, scale, 1.0)


@rule(F.celu, torch.celu)
@in_float32
def _celu(t: Tracer, input: DeviceValue, alpha: float = 1.0, inplace: bool = False) -> DeviceValue:
    result = ops.pointwise(t, "where", input > 0, input, ops.pointwise(t, "expm1", input / alpha) * alpha)
    return ops.with_vjp(t, "elu", result, input, 1.0, 1.0, 1.0 / alpha)


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


# --- matmuls and norms ------------------------------------------------------------------------------------------------


@rule(F.linear)
def _linear(t: Tracer, input: DeviceValue, weight: DeviceValue, bias: DeviceValue | None = None) -> DeviceValue:
    if input.ndim != 2 or weight.ndim != 2:
        raise exc.ShapeMismatch(lhs=repr(input), rhs=repr(weight), detail=": linear takes two operands of rank 2")
    result = torch.promote_types(input.dtype, weight.dtype)
    product = dot(t, input, ops.permute(t, weight, (1, 0)))
    return ops.cast(t, product if bias is None else product + bias, result)


@rule(*named("outer"), *named("ger"))
def outer(t: Tracer, input: DeviceValue, vec2: DeviceValue) -> DeviceValue:
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


# --- triangular masks -------------------------------------------------------------------------------------------------


def _triangle(t: Tracer, input: DeviceValue, diagonal: int, lower: bool) -> DeviceValue:
    name = "tril" if lower else "triu"
    if input.ndim < 2 or not isinstance(diagonal, int):
        raise TypeError(f"{name} takes a tile of rank 2 or more and a constant diagonal")
    rows, columns = (_places(t, input, at, name) for at in (input.ndim - 2, input.ndim - 1))
    kept = ops.pointwise(t, "ge" if lower else "le", rows + diagonal, columns)
    return ops.pointwise(t, "where", kept, input, ops.full(t, (), 0, input.dtype))


def _places(t: Tracer, input: DeviceValue, at: int, name: str) -> DeviceValue:
    """Return row or column numbers of a whole dimension; refuse a tile, whose position in the tensor is unknown."""
    dim = input.dims[at]
    if not dim.is_one and not _is_all(t, dim):
        raise exc.UnsupportedTorchFunction(
            name=f"torch.{name} of a tile", remedy="; compare tile.index of rows and columns and use torch.where"
        )
    dims = [ONE] * input.ndim
    dims[at] = dim
    index = ops.iota(t, t.blocks.size_of(dim)) if not dim.is_one else ops.full(t, (ONE,), 0, torch.int32)
    return ops.reshape(t, index, tuple(dims))


def _is_all(t: Tracer, dim: Dim) -> bool:
    """Return whether a dimension is a whole one, or that of the only tile of its loop."""
    if dim.block is None or t.blocks[dim.block].kind == "full":
        return dim.block is not None
    tile = t.blocks.active.get(dim.block)
    size = t.blocks.size_of(dim)
    return (
        tile is not None and isinstance(size, int) and tile.first == 0 and tile.last is not None and tile.last <= size
    )


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


@rule(torch.atleast_1d)
def _atleast_1d(t: Tracer, input: DeviceValue) -> DeviceValue:
    return input if input.ndim else ops.reshape(t, input, (ONE,))


@rule(torch.atleast_2d)
def _atleast_2d(t: Tracer, input: DeviceValue) -> DeviceValue:
    return input if input.ndim > 1 else ops.reshape(t, input, (*(ONE,) * (2 - input.ndim), *input.dims))


# --- more elementwise functions ---------------------------------------------------------------------------------------


@rule(F.softshrink)
def _softshrink(t: Tracer, input: DeviceValue, lambd: float = 0.5) -> DeviceValue:
    outer_parts = ops.pointwise(t, "where", input > lambd, input - lambd, ops.pointwise(t, "where", input < -lambd, input + lambd, input * 0))  # fmt: skip
    return ops.with_vjp(t, "softshrink", ops.cast(t, outer_parts, input.dtype), input, lambd)


@rule(F.hardshrink, *named("hardshrink"))
def _hardshrink(t: Tracer, input: DeviceValue, lambd: float = 0.5) -> DeviceValue:
    inside = ops.pointwise(t, "logical_and", input >= -lambd, input <= lambd)
    return ops.pointwise(t, "where", inside, ops.full(t, (), 0, input.dtype), input)


@rule(F.prelu, *named("prelu"))
def _prelu(t: Tracer, input: DeviceValue, weight: DeviceValue) -> DeviceValue:
    if weight.ndim == 1 and input.ndim > 2:
        weight = ops.reshape(t, weight, (*weight.dims, *(ONE,) * (input.ndim - 2)))
    return ops.with_vjp(t, "prelu", ops.pointwise(t, "where", input > 0, input, input * weight), input, weight)


@rule(*named("sinc"), torch.special.sinc)
@in_float32
def _sinc(t: Tracer, input: DeviceValue) -> DeviceValue:
    angle = input * math.pi
    quotient = ops.pointwise(t, "sin", angle) / angle
    result = ops.pointwise(t, "where", ops.pointwise(t, "eq", input, 0), 1.0, quotient)
    return ops.with_vjp(t, "sinc", result, input)


@rule(*named("ldexp"))
def _ldexp(t: Tracer, input: DeviceValue, other: Any) -> DeviceValue:
    return input * ops.pointwise(t, "pow", 2.0, other)


@rule(*named("float_power"))
def _float_power(t: Tracer, input: Any, exponent: Any) -> DeviceValue:
    wide = [ops.cast(t, v, torch.float64) if isinstance(v, DeviceValue) else v for v in (input, exponent)]
    return ops.pointwise(t, "pow", *wide)


@rule(*named("isclose"))
def _isclose(
    t: Tracer, input: DeviceValue, other: DeviceValue, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> DeviceValue:
    gap, allowed = ops.pointwise(t, "abs", input - other), ops.pointwise(t, "abs", other) * rtol + atol
    near = ops.pointwise(t, "logical_and", gap <= allowed, ops.pointwise(t, "isfinite", gap))
    same = ops.pointwise(t, "logical_or", near, ops.pointwise(t, "eq", input, other))
    if not equal_nan:
        return same
    both = (ops.pointwise(t, "isnan", v) for v in (input, other))
    return ops.pointwise(t, "logical_or", same, ops.pointwise(t, "logical_and", *both))


@rule(*named("isposinf"))
def _isposinf(t: Tracer, input: DeviceValue) -> DeviceValue:
    return ops.pointwise(t, "eq", input, math.inf)


@rule(*named("isneginf"))
def _isneginf(t: Tracer, input: DeviceValue) -> DeviceValue:
    return ops.pointwise(t, "eq", input, -math.inf)


@rule(*named("isreal"))
def _isreal(t: Tracer, input: DeviceValue) -> DeviceValue:
    return ops.full(t, input.dims, True, torch.bool)


@rule(torch.special.ndtr)
@in_float32
def _ndtr(t: Tracer, input: DeviceValue) -> DeviceValue:
    return ops.pointwise(t, "erfc", input * -math.sqrt(0.5)) * 0.5


@rule(torch.special.entr)
@in_float32
def _entr(t: Tracer, input: DeviceValue) -> DeviceValue:
    # the product is negated: an unsigned integer has no negative
    product = -(input * ops.pointwise(t, "log", input))
    inside = ops.pointwise(t, "where", ops.pointwise(t, "eq", input, 0), 0.0, product)
    result = ops.pointwise(t, "where", input < 0, -math.inf, inside)
    return ops.with_vjp(t, "entr", ops.pointwise(t, "where", ops.pointwise(t, "isnan", input), input, result), input)


@rule(torch.special.xlog1py)
@in_float32
def _xlog1py(t: Tracer, input: DeviceValue, other: DeviceValue) -> DeviceValue:
    product = input * ops.pointwise(t, "log1p", other)
    known = ops.pointwise(t, "logical_not", ops.pointwise(t, "isnan", other))
    zero = ops.pointwise(t, "logical_and", ops.pointwise(t, "eq", input, 0), known)
    return ops.with_vjp(t, "xlog1py", ops.pointwise(t, "where", zero, 0.0, product), input, other)


@rule(*named("dist"))
@in_float32
def _dist(t: Tracer, input: DeviceValue, other: DeviceValue, p: Any = 2) -> DeviceValue:
    return norm(t, input - other, p)


@rule(*named("diff"))
def _diff(t: Tracer, input: DeviceValue, n: int = 1, dim: int = -1) -> DeviceValue:
    at = position(input, dim)
    size = t.blocks.size_of(input.dims[at])
    if not isinstance(size, int) or not 1 <= n < size:
        raise exc.UnsupportedTorchFunction(
            name=f"torch.diff of order {n} along {size!r} elements",
            remedy="; load the tensor at shifted indices and subtract, or fix the size with hl.specialize",
        )
    before = (slice(None),) * at
    for _ in range(n):
        input = ops.pointwise(t, "sub", input[(*before, slice(1, None))], input[(*before, slice(None, -1))])
    return input
