"""torch's elementwise functions on device values, as ops of the pointwise table.

Functions of several ops are composed here from device values. Half precision is widened to fp32 for a whole composite
and rounded once at its end, as in eager kernels.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import torch.nn.functional as F

from .... import exc
from ...._shapes import Expr
from ...ir.pointwise import POINTWISE
from ...ir.pointwise import named as named
from .. import ops
from ..rules import Rule, Rules
from ..state.fits import check_fits, common_integer
from ..tracer import Tracer
from ..values import DeviceValue, describe

RULES = Rules()
rule = RULES.register

HALF = (torch.float16, torch.bfloat16)

_REFLECTED: dict[str, Any] = {
    "bitwise_and": torch.Tensor.__rand__,
    "bitwise_or": torch.Tensor.__ror__,
    "bitwise_xor": torch.Tensor.__rxor__,
    "remainder": torch.Tensor.__rmod__,
    "pow": torch.Tensor.__rpow__,
    "div": torch.Tensor.__rtruediv__,
    "sub": torch.Tensor.__rsub__,
    "floordiv": torch.Tensor.__rfloordiv__,
    "lshift": torch.Tensor.__rlshift__,
    "rshift": torch.Tensor.__rrshift__,
}


def _direct(name: str) -> Rule:
    def call(t: Tracer, input: Any, *operands: Any, **extra: Any) -> DeviceValue:
        if extra.pop("inplace", False) or extra.pop("out", None) is not None:
            raise exc.UnsupportedTorchFunction(
                name=f"{name} in place", remedy="; assign the result to the name instead"
            )
        if "other" in extra:
            operands = (*operands, extra.pop("other"))
        if "exponent" in extra:
            operands = (*operands, extra.pop("exponent"))
        if extra:
            raise TypeError(f"unexpected keyword {next(iter(extra))!r}")
        return ops.pointwise(t, name, input, *operands)

    return call


for _op in POINTWISE.values():
    if _op.functions:
        rule(*_op.functions)(_direct(_op.name))
for _name, _function in _REFLECTED.items():
    rule(_function)(lambda t, value, other, name=_name: ops.pointwise(t, name, other, value))


def in_float32(fn: Rule) -> Rule:
    """Compute a composite in fp32 when its input is half precision, and round its result once."""

    @functools.wraps(fn)
    def call(t: Tracer, value: Any, /, *args: Any, **kwargs: Any) -> Any:
        tensors = [a for a in (value, *args) if isinstance(a, DeviceValue)]
        if tensors and all(a.dtype in HALF or not a.dtype.is_floating_point for a in tensors) and value.dtype in HALF:
            result = functools.reduce(torch.promote_types, (a.dtype for a in tensors))
            wide = [
                ops.cast(t, a, torch.float32) if isinstance(a, DeviceValue) and a.dtype in HALF else a for a in args
            ]
            return ops.cast(t, fn(t, ops.cast(t, value, torch.float32), *wide, **kwargs), result)
        return fn(t, value, *args, **kwargs)

    return call


def _scaled(t: Tracer, value: Any, alpha: Any) -> Any:
    return value if isinstance(alpha, (int, float)) and alpha == 1 else ops.pointwise(t, "mul", value, alpha)


def _in_dtype(t: Tracer, dtype: torch.dtype, *operands: Any) -> list[Any]:
    """Return operands in the dtype in which torch computes; Python numbers stay as they are."""
    return [ops.cast(t, x, dtype) if isinstance(x, DeviceValue) and x.number is None else x for x in operands]


def scaled_sum(t: Tracer, name: str, input: Any, other: Any, alpha: Any) -> DeviceValue:
    """Return ``input`` plus or minus ``other * alpha``, in the dtype that it has without ``alpha``.

    As in torch both operands are converted first: an int8 times ``alpha`` wraps only if the sum is int8, too.
    """
    if isinstance(alpha, (int, float)) and alpha == 1:
        return ops.pointwise(t, name, input, other)
    dtype = ops.promote(t, name, (input, other))
    if isinstance(alpha, float) and not dtype.is_floating_point:
        raise exc.TypeInferenceError(f"torch.{name} of integers takes an integer as alpha, got {alpha!r}.")
    left, right = _in_dtype(t, dtype, ops.as_device(t, input), ops.as_device(t, other))
    total = in_float32(lambda t, a, b: ops.pointwise(t, name, a, b * alpha))(t, left, right)
    return ops.cast(t, total, dtype) if isinstance(alpha, int) else total


@rule(*named("add"), torch.Tensor.__add__, torch.Tensor.__radd__)
def _add(t: Tracer, input: Any, other: Any, *, alpha: Any = 1) -> DeviceValue:
    return scaled_sum(t, "add", input, other, alpha)


@rule(*named("sub"), *named("subtract"), torch.Tensor.__sub__)
def _sub(t: Tracer, input: Any, other: Any, *, alpha: Any = 1) -> DeviceValue:
    return scaled_sum(t, "sub", input, other, alpha)


@rule(*named("mul"), *named("multiply"), torch.Tensor.__mul__, torch.Tensor.__rmul__)
def _mul(t: Tracer, input: Any, other: Any) -> DeviceValue:
    return ops.pointwise(t, "mul", input, other)


@rule(*named("div"), *named("divide"), *named("true_divide"), torch.Tensor.__truediv__)
def _div(t: Tracer, input: Any, other: Any, *, rounding_mode: str | None = None) -> DeviceValue:
    names = {None: "div", "floor": "floordiv", "trunc": "truncdiv"}
    if rounding_mode not in names:
        raise TypeError(f"rounding_mode must be None, 'floor' or 'trunc', got {rounding_mode!r}")
    if rounding_mode == "trunc" and ops.promote(t, "truncdiv", (input, other)) in HALF:
        # eager rounds the quotient to its dtype before it truncates
        return ops.pointwise(t, "trunc", ops.pointwise(t, "div", input, other))
    return ops.pointwise(t, names[rounding_mode], input, other)


@rule(*named("floor_divide"), torch.Tensor.__floordiv__)
def _floordiv(t: Tracer, input: Any, other: Any) -> DeviceValue:
    return ops.pointwise(t, "floordiv", input, other)


@rule(
    torch.Tensor.__pos__,
    *named("positive"),
    *named("clone"),
    torch.Tensor.contiguous,
)
def _same(t: Tracer, input: DeviceValue, *, memory_format: Any = None) -> DeviceValue:
    return input


@rule(torch.Tensor.detach, torch.detach)
def _detach(t: Tracer, input: DeviceValue) -> DeviceValue:
    return ops.with_vjp(t, "constant", input)


@rule(torch.where)
def _where(t: Tracer, condition: Any, input: Any = None, other: Any = None) -> DeviceValue:
    if input is None or other is None:
        raise exc.DataDependentOutputShapeNotSupported(name="torch.where with one argument")
    return ops.pointwise(t, "where", condition, input, other)


@rule(torch.Tensor.where)
def _where_method(t: Tracer, input: DeviceValue, condition: Any, other: Any) -> DeviceValue:
    """Record ``input.where(condition, other)``: the method has the condition as its second operand."""
    return ops.pointwise(t, "where", condition, input, other)


def beside(t: Tracer, value: Any, number: Any) -> Any:
    """Return an integer of the device in a dtype that holds the number that it is compared with: 300 is no uint8."""
    is_integer = type(number) is int or (isinstance(number, Expr) and number.kind is int)
    if not isinstance(value, DeviceValue) or value.number is not None or not is_integer:
        return value
    of_symbol = ops.integer_dtype(t, number) if isinstance(number, Expr) else value.dtype
    return ops.cast(t, value, common_integer(value.dtype, number, of_symbol))


@rule(torch.Tensor.masked_fill, torch.masked_fill)
def _masked_fill(t: Tracer, input: DeviceValue, mask: Any, value: Any) -> DeviceValue:
    fill = ops.cast(t, value, input.dtype) if isinstance(value, DeviceValue) else ops.full(t, (), value, input.dtype)
    return ops.pointwise(t, "where", mask, fill, input)


@rule(*named("clamp"), *named("clip"))
def _clamp(t: Tracer, input: DeviceValue, min: Any = None, max: Any = None) -> DeviceValue:
    if min is None and max is None:
        raise TypeError("at least one of min and max must be given")
    result = input
    for name, bound in (("maximum", min), ("minimum", max)):
        if bound is None:
            continue
        if type(bound) is int:
            check_fits(bound, input.dtype)
        if isinstance(bound, Expr) and bound.kind is int:
            result = ops.cast(t, ops.pointwise(t, name, beside(t, result, bound), bound), input.dtype)
        else:
            result = ops.pointwise(t, name, result, bound)
    if not any(isinstance(bound, DeviceValue) and bound.number is None for bound in (min, max)):
        return result
    bounds = [bound for bound in (min, max) if bound is not None]
    name = "clamp" if len(bounds) == 2 else "clamp_min" if max is None else "clamp_max"
    return ops.with_vjp(t, name, result, input, *bounds)


@rule(torch.Tensor.clamp_min, torch.clamp_min)
def _clamp_min(t: Tracer, input: DeviceValue, min: Any) -> DeviceValue:
    return _clamp(t, input, min=min)


@rule(torch.Tensor.clamp_max, torch.clamp_max)
def _clamp_max(t: Tracer, input: DeviceValue, max: Any) -> DeviceValue:
    return _clamp(t, input, max=max)


@rule(*named("round"))
def _round(t: Tracer, input: DeviceValue, *, decimals: int = 0) -> DeviceValue:
    if decimals == 0:
        return ops.pointwise(t, "round", input)
    scale = 10.0 ** abs(decimals)
    if decimals > 0:
        return ops.pointwise(t, "round", input * scale) / scale
    return ops.pointwise(t, "round", input / scale) * scale


@rule(*named("square"))
def _square(t: Tracer, input: DeviceValue) -> DeviceValue:
    return ops.pointwise(t, "mul", input, input)


# --- dtype conversions ------------------------------------------------------------------------------------------------


@rule(torch.Tensor.to, torch.Tensor.type, torch.Tensor.type_as)
def _to(t: Tracer, input: DeviceValue, *args: Any, **kwargs: Any) -> DeviceValue:
    kwargs.pop("non_blocking", None)
    kwargs.pop("copy", None)
    kwargs.pop("memory_format", None)
    device = kwargs.pop("device", None)
    wanted = [*args, *kwargs.values()]
    dtype = input.dtype
    for item in wanted:
        if isinstance(item, torch.dtype):
            dtype = item
        elif hasattr(item, "dtype"):
            dtype = item.dtype
        elif isinstance(item, (torch.device, str)):
            device = item
        elif not isinstance(item, bool):
            raise TypeError(f"cannot convert to {describe(item)}")
    if device is not None and torch.device(device) != input.device:
        raise exc.UnsupportedTorchFunction(name="moving a device value to another device", remedy="")
    return ops.cast(t, input, dtype)


for _name, _dtype in {
    "float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16, "double": torch.float64,
    "int": torch.int32, "long": torch.int64, "short": torch.int16, "char": torch.int8, "byte": torch.uint8, "bool": torch.bool,
}.items():  # fmt: skip
    rule(getattr(torch.Tensor, _name))(lambda t, input, dtype=_dtype: ops.cast(t, input, dtype))


# --- composites of device values --------------------------------------------------------------------------------------


@rule(F.silu)
@in_float32
def _silu(t: Tracer, input: DeviceValue, inplace: bool = False) -> DeviceValue:
    return input * ops.pointwise(t, "sigmoid", input)


@rule(F.gelu)
@in_float32
def _gelu(t: Tracer, input: DeviceValue, *, approximate: str = "none") -> DeviceValue:
    if approximate == "none":
        return input * 0.5 * (ops.pointwise(t, "erf", input * math.sqrt(0.5)) + 1.0)
    if approximate != "tanh":
        raise TypeError(f"approximate must be 'none' or 'tanh', got {approximate!r}")
    inner = (input + input * input * input * 0.044715) * math.sqrt(2.0 / math.pi)
    return input * 0.5 * (ops.pointwise(t, "tanh", inner) + 1.0)


def soft_positive(t: Tracer, value: DeviceValue) -> DeviceValue:
    """Return ``log(1 + exp(value))``, by the logarithm of a number from 1 to 2."""
    small = ops.pointwise(t, "exp", -ops.pointwise(t, "abs", value))
    return ops.pointwise(t, "maximum", value, 0.0) + ops.pointwise(t, "log1p_unit", small)


@rule(F.softplus)
@in_float32
def _softplus(t: Tracer, input: DeviceValue, beta: float = 1.0, threshold: float = 20.0) -> DeviceValue:
    scaled = input * beta
    soft = soft_positive(t, scaled) / beta
    return ops.with_vjp(
        t, "softplus", ops.pointwise(t, "where", scaled > threshold, input, soft), input, beta, threshold
    )


@rule(F.leaky_relu)
@in_float32
def _leaky_relu(t: Tracer, input: DeviceValue, negative_slope: float = 0.01, inplace: bool = False) -> DeviceValue:
    return ops.pointwise(t, "where", input > 0, input, input * negative_slope)


@rule(F.elu)
@in_float32
def _elu(t: Tracer, input: DeviceValue, alpha: float = 1.0, inplace: bool = False) -> DeviceValue:
    result = ops.pointwise(t, "where", input > 0, input, ops.pointwise(t, "expm1", input) * alpha)
    return ops.with_vjp(t, "elu", result, input, alpha, 1.0, 1.0)


@rule(F.hardtanh)
@in_float32
def _hardtanh(t: Tracer, input: DeviceValue, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    return ops.with_vjp(t, "hardtanh", _clamp(t, input, min_val, max_val), input, min_val, max_val)


@rule(F.relu6)
@in_float32
def _relu6(t: Tracer, input: DeviceValue, inplace: bool = False) -> Any:
    return ops.with_vjp(t, "hardtanh", _clamp(t, input, 0.0, 6.0), input, 0.0, 6.0)


@rule(F.hardsigmoid)
@in_float32
def _hardsigmoid(t: Tracer, input: DeviceValue, inplace: bool = False) -> DeviceValue:
    return ops.with_vjp(t, "hardsigmoid", _clamp(t, input + 3.0, 0.0, 6.0) / 6.0, input)


@rule(F.hardswish)
@in_float32
def _hardswish(t: Tracer, input: DeviceValue, inplace: bool = False) -> DeviceValue:
    return ops.with_vjp(t, "hardswish", input * _clamp(t, input + 3.0, 0.0, 6.0) / 6.0, input)


@rule(F.mish)
@in_float32
def _mish(t: Tracer, input: DeviceValue, inplace: bool = False) -> DeviceValue:
    return input * ops.pointwise(t, "tanh", _softplus(t, input))


@rule(F.logsigmoid)
@in_float32
def _logsigmoid(t: Tracer, input: DeviceValue) -> DeviceValue:
    result = ops.pointwise(t, "minimum", input, 0.0) - ops.pointwise(
        t, "log1p_unit", ops.pointwise(t, "exp", -ops.pointwise(t, "abs", input))
    )
    return ops.with_vjp(t, "logsigmoid", result, input)


@rule(*named("lerp"))
@in_float32
def _lerp(t: Tracer, input: DeviceValue, end: Any, weight: Any) -> DeviceValue:
    return input + (end - input) * weight


@rule(*named("addcmul"))
def _addcmul(t: Tracer, input: DeviceValue, tensor1: Any, tensor2: Any, *, value: Any = 1) -> DeviceValue:
    dtype = ops.promote(t, "add", (input, tensor1 * tensor2))
    if not dtype.is_floating_point:
        value = int(value) if isinstance(value, float) else value
    added = in_float32(lambda t, a, b, c: a + _scaled(t, b * c, value))
    return added(t, *_in_dtype(t, dtype, input, tensor1, tensor2))


@rule(*named("addcdiv"))
def _addcdiv(t: Tracer, input: DeviceValue, tensor1: Any, tensor2: Any, *, value: Any = 1) -> DeviceValue:
    dtype = ops.promote(t, "add", (input, tensor1 / tensor2))
    added = in_float32(lambda t, a, b, c: a + _scaled(t, b / c, value))
    return added(t, *_in_dtype(t, dtype, input, tensor1, tensor2))


@rule(*named("xlogy"), torch.special.xlogy)
def _xlogy(t: Tracer, input: DeviceValue, other: Any) -> DeviceValue:
    dtype = ops.promote(t, "div", (input, other))
    other = other if isinstance(other, DeviceValue) else ops.full(t, (), other, dtype)
    return _xlogy_of(t, *_in_dtype(t, dtype, input, other))


@in_float32
def _xlogy_of(t: Tracer, input: DeviceValue, other: DeviceValue) -> DeviceValue:
    product = ops.pointwise(t, "mul", input, ops.pointwise(t, "log", other))
    zero = ops.pointwise(
        t,
        "logical_and",
        ops.pointwise(t, "eq", input, 0),
        ops.pointwise(t, "logical_not", ops.pointwise(t, "isnan", other)),
    )
    return ops.with_vjp(t, "xlogy", ops.pointwise(t, "where", zero, 0.0, product), input, other)


@rule(*named("logaddexp"))
@in_float32
def _logaddexp(t: Tracer, input: DeviceValue, other: DeviceValue) -> DeviceValue:
    high = ops.pointwise(t, "maximum", input, other)
    low = ops.pointwise(t, "minimum", input, other)
    same = ops.pointwise(t, "eq", input, other)  # also when both are the same infinity, where high - low is nan
    gap = ops.pointwise(t, "where", same, 0.0, low - high)
    result = high + ops.pointwise(t, "log1p_unit", ops.pointwise(t, "exp", gap))
    return ops.with_vjp(t, "logaddexp", result, input, other)


def truth(t: Tracer, value: Any) -> Any:
    """Return a condition as a boolean: numbers and numeric scalars are compared with zero."""
    if isinstance(value, Expr) and value.kind is not bool:
        return value != 0
    if isinstance(value, DeviceValue) and value.dtype != torch.bool:
        return ops.pointwise(t, "ne", value, 0)
    return value
