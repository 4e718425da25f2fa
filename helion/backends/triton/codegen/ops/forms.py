"""Forms of pointwise operations: functions from converted operands to expressions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

import torch

from ....._compiler.ir.pointwise import Scalar
from ....._support.records import dataclass
from ..expressions import LIBDEVICE, Expression, atom, call, helper, infix, libdevice, prefix
from ..expressions import number as number_text
from .literals import (
    FP32_MAX,
    FP32_TINY,
    HALVES,
    INFINITY,
    LOG2_E,
    MINUS_ONE,
    NARROW,
    NULL,
    ONE,
    TRITON_DTYPES,
    TRUE,
    ZERO,
    cast,
    converted_number,
    is_negative_zero,
    negative_zero,
    to_dtype,
)

# --- operands ---------------------------------------------------------------------------------------------------------

#: The name of a variable, or a number.
Operand = str | Scalar


@dataclass(frozen=True, kw_only=True, slots=True)
class Arg:
    """One operand, converted to the dtype in which the op computes.

    ``value``: of a number. ``weak``: the name of a Python number, in the dtype that Triton gave it.
    ``source``: the dtype before the conversion; None for Python numbers.
    """

    expression: Expression
    dtype: torch.dtype
    source: torch.dtype | None = None
    value: Scalar | None = None
    weak: bool = False

    @property
    def bare(self) -> Expression:
        """The operand for an operator whose other side is a tensor of `dtype`: Triton adopts that dtype for a
        number.
        """
        if is_negative_zero(self.value):
            return self.full
        return self.expression if not self.weak or self.dtype in (torch.float32, torch.float64) else self.typed

    @property
    def typed(self) -> Expression:
        """The operand as a function argument: an expression that has exactly `dtype` in Triton."""
        if self.weak:
            return call("tl.cast", self.expression, keywords=(TRITON_DTYPES[self.dtype],))
        return self.expression if self.value is None or self._natural else self.full

    @property
    def full(self) -> Expression:
        if is_negative_zero(self.value):
            return negative_zero(self.dtype)
        return call("tl.full", Expression("()"), self.expression, Expression(TRITON_DTYPES[self.dtype]))

    @property
    def _natural(self) -> bool:
        """True if Triton gives the bare literal this very dtype."""
        if isinstance(self.value, float):
            size = abs(self.value)
            if is_negative_zero(self.value):
                return False
            normal = size == 0 or not size < FP32_TINY  # subnormal numbers become fp64; NaN is fp32
            return self.dtype is torch.float32 and normal
        if self.dtype is torch.bool:
            return True
        return self.dtype is torch.int32

    @property
    def bits(self) -> int:
        return 8 * self.dtype.itemsize


def make_arg(
    operand: Operand, source: torch.dtype | None, common: torch.dtype, compute: torch.dtype, round_literals: bool
) -> Arg:
    if not isinstance(operand, str):
        if round_literals and common in HALVES:
            operand = converted_number(operand, common)
        value = converted_number(operand, compute)
        return Arg(expression=number_text(value), dtype=compute, value=value)
    name = Expression(operand)
    if source is None:
        return Arg(expression=name, dtype=compute, weak=True)
    if common is not compute and source is not common and source not in NARROW:
        name = cast(name, source, common)  # eager mode rounds to the common dtype before it computes in fp32
        return Arg(expression=atom(cast(name, common, compute)), dtype=compute, source=source)
    return Arg(expression=atom(cast(name, source, compute)), dtype=compute, source=source)


_Form = Callable[..., Expression]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """The forms of one op.

    ``native``: half types are not widened, because the op rounds nothing and every target has it.
    """

    floats: _Form | None = None
    ints: _Form | None = None
    bools: _Form | None = None
    native: bool = False


# --- forms of many ops ------------------------------------------------------------------------------------------------


def _same(form: _Form, bools: _Form | None = None) -> _Row:
    return _Row(floats=form, ints=form, bools=bools)


def _floats(form: _Form) -> _Row:
    return _Row(floats=form)


def _operator(symbol: str) -> _Form:
    return lambda a, b: infix(a.bare, symbol, b.bare)


def _function(name: str, *keywords: str) -> _Form:
    return lambda *args: call(name, *(arg.typed for arg in args), keywords=keywords)


def _libdevice(name: str) -> _Form:
    return lambda *args: libdevice(name, *(arg.typed for arg in args))


def _itself(a: Arg) -> Expression:
    return a.bare


def _against_itself(symbol: str) -> _Form:
    """Return a comparison with itself: no integer is NaN or infinite, but the result needs the operand's shape."""
    return lambda a: infix(a.bare, symbol, a.bare)


def _extremum(function: str, propagate_nan: str, symbol: str) -> _Row:
    floats = _function(f"tl.{function}", f"propagate_nan=tl.PropagateNan.{propagate_nan}")
    return _Row(floats=floats, ints=_function(f"tl.{function}"), bools=_operator(symbol))


# --- forms that look at their operands --------------------------------------------------------------------------------


def _exact_div(lhs: Expression, rhs: Expression, dtype: torch.dtype) -> Expression:
    """Return a division rounded to nearest: `/` may be off by 2 ulp in fp32 and is exact in fp64."""
    return call("tl.div_rn", lhs, rhs) if dtype is torch.float32 else infix(lhs, "/", rhs)


def _div(a: Arg, b: Arg) -> Expression:
    sources = [arg.source for arg in (a, b) if arg.source is not None]
    if sources and not any(source.is_floating_point for source in sources):
        return _exact_div(a.typed, b.typed, a.dtype)  # so that quotients of multiples are whole numbers
    if isinstance(b.value, float) and math.isfinite(b.value) and math.frexp(abs(b.value))[0] == 0.5:
        inverse = 1.0 / b.value
        if FP32_TINY <= abs(inverse) <= FP32_MAX:
            return infix(a.bare, "*", number_text(inverse))  # the same number, without the division
    return infix(a.bare, "/", b.bare)


def _signs_differ(a: Arg, b: Arg) -> Expression:
    for known, other in ((b, a), (a, b)):
        if known.value is not None:
            return infix(other.bare, ">=" if known.value < 0 else "<", NULL)
    return infix(infix(a.bare, "<", NULL), "!=", infix(b.bare, "<", NULL))


def _inexact_down(rest: Expression, a: Arg, b: Arg) -> Expression:
    """Return whether the quotient, rounded toward zero, exceeds its floor. ``rest`` is the result of C's ``%``."""
    if b.value is not None:
        return infix(rest, "<" if b.value > 0 else ">", NULL)
    return infix(infix(rest, "!=", NULL), "&", _signs_differ(a, b))


def _is_power_of_two(value: Scalar | None) -> bool:
    return isinstance(value, int) and value > 0 and value & (value - 1) == 0


def _unsigned(dtype: torch.dtype) -> bool:
    return not dtype.is_signed


def _floordiv_int(a: Arg, b: Arg) -> Expression:
    if _is_power_of_two(b.value):
        return infix(a.bare, ">>", number_text(int(b.value or 1).bit_length() - 1))
    quotient = infix(a.bare, "//", b.bare)
    if _unsigned(a.dtype):
        return quotient
    return infix(quotient, "-", to_dtype(_inexact_down(infix(a.bare, "%", b.bare), a, b), a.dtype))


def _remainder_int(a: Arg, b: Arg) -> Expression:
    if _is_power_of_two(b.value):
        return infix(a.bare, "&", number_text(int(b.value or 1) - 1))
    rest = infix(a.bare, "%", b.bare)
    if _unsigned(a.dtype):
        return rest
    return infix(rest, "+", infix(to_dtype(_inexact_down(rest, a, b), a.dtype), "*", b.bare))


def _floordiv_float(a: Arg, b: Arg) -> Expression:
    # The quotient of the multiple of b below a is a whole number up to rounding errors; floor(a / b) is not the same,
    # as a / b may be rounded up to a whole number.
    rest = libdevice("fmod", a.typed, b.typed)
    single = a.dtype is torch.float32
    multiple = _exact_div(infix(a.bare, "-", rest), b.typed if single else b.bare, a.dtype)
    floor = libdevice("nearbyint", infix(multiple, "-", to_dtype(_inexact_down(rest, a, b), a.dtype)))
    if b.value:
        return floor
    quotient = infix(a.bare, "/", b.bare)
    return quotient if b.value is not None else call("tl.where", infix(b.bare, "==", NULL), quotient, floor)


def _remainder_float(a: Arg, b: Arg) -> Expression:
    rest = libdevice("fmod", a.typed, b.typed)
    return call("tl.where", _inexact_down(rest, a, b), infix(rest, "+", b.bare), rest)


def _truncdiv_float(a: Arg, b: Arg) -> Expression:
    return libdevice("trunc", _exact_div(a.typed, b.typed, a.dtype))


def _relu(a: Arg) -> Expression:
    return call("tl.maximum", a.typed, ZERO, keywords=("propagate_nan=tl.PropagateNan.ALL",))


def _sqrt(a: Arg) -> Expression:
    return call("tl.sqrt_rn" if a.dtype is torch.float32 else "tl.sqrt", a.typed)


def _rsqrt(a: Arg) -> Expression:
    # In fp64 the instruction of tl.rsqrt is an approximation with far fewer than 53 bits.
    single = a.dtype is torch.float32
    return call("tl.rsqrt", a.typed) if single else infix(ONE, "/", call("tl.sqrt", a.typed))


def _exp(a: Arg) -> Expression:
    # tl.exp keeps subnormal results with three more instructions, half of the others in a row of a softmax
    return call("tl.exp", a.typed) if a.dtype is torch.float64 else _power_of_e(a, 1)


def _power_of_e(a: Arg, sign: int) -> Expression:
    return call("tl.exp2", infix(a.bare, "*", number_text(sign * LOG2_E)))


def _log1p_unit(a: Arg) -> Expression:
    return libdevice("log1p", a.typed) if a.dtype is torch.float64 else helper("_log1p_unit", a.typed)


def _tanh(a: Arg) -> Expression:
    if a.dtype is torch.float64:
        return libdevice("tanh", a.typed)
    return call("_tanh", a.typed, needs=frozenset(("_tanh", LIBDEVICE)))


def _sigmoid(a: Arg) -> Expression:
    if a.dtype is torch.float64:
        return call("tl.sigmoid", a.typed)
    # the divisor is at least 1, so that the fast division is accurate; 5 instructions where tl.sigmoid takes 12
    return libdevice("fast_dividef", ONE, infix(ONE, "+", _power_of_e(a, -1)))


def _product(a: Arg, count: int) -> Expression:
    """Return ``a * a * a`` with ``count`` factors."""
    return functools.reduce(lambda done, factor: infix(done, "*", factor), [a.bare] * count)


_FLOAT_POWERS: Mapping[float, _Form] = {
    -2.0: lambda a: infix(ONE, "/", _product(a, 2)),
    -1.0: lambda a: infix(ONE, "/", a.bare),
    -0.5: _rsqrt,
    0.5: _sqrt,
    1.0: _itself,
    2.0: lambda a: _product(a, 2),
    3.0: lambda a: _product(a, 3),
}


def _pow_float(a: Arg, b: Arg) -> Expression:
    power = _FLOAT_POWERS.get(float(b.value)) if b.value is not None and a.value is None else None
    return power(a) if power is not None else libdevice("pow", a.typed, b.typed)


def _pow_int(a: Arg, b: Arg) -> Expression:
    exponent = b.value
    if exponent is None:
        return helper("_integer_power", a.typed, b.typed, number_text(b.bits))
    if 1 <= exponent <= 4:
        return _product(a, int(exponent))
    return helper("_integer_power", a.typed, b.full, number_text(max(1, int(exponent).bit_length())))


def _pow_bool(a: Arg, b: Arg) -> Expression:
    # Eager mode takes this only with a number on one side.
    if b.value is not None:
        return a.bare if b.value else infix(a.bare, "|", TRUE)
    return infix(b.bare, "|", TRUE) if a.value else prefix("~", b.bare)


def _in_width(b: Arg, width: int) -> Expression:
    """Return whether an amount that is known at run time is between 0 and ``width``."""
    below = infix(b.bare, "<", number_text(width))
    return below if _unsigned(b.dtype) else infix(infix(b.bare, ">=", NULL), "&", below)


def _lshift(a: Arg, b: Arg) -> Expression:
    """Return a left shift; eager mode gives 0 for an amount that is negative or not below the width."""
    if b.value is not None:
        return infix(a.bare, "<<", b.bare) if 0 <= b.value < b.bits else infix(a.bare, "*", NULL)
    return call("tl.where", _in_width(b, b.bits), infix(a.typed, "<<", b.bare), NULL)


def _rshift(a: Arg, b: Arg) -> Expression:
    """Return a right shift; eager mode shifts out all bits for an amount that is negative or not below the width."""
    if _unsigned(a.dtype):
        if b.value is not None:
            return infix(a.bare, ">>", b.bare) if 0 <= b.value < b.bits else infix(a.bare, "*", NULL)
        return call("tl.where", _in_width(b, b.bits), infix(a.typed, ">>", b.bare), NULL)
    most = b.bits - 1
    if b.value is not None:
        return infix(a.bare, ">>", b.bare if 0 <= b.value < most else number_text(most))
    return infix(a.typed, ">>", call("tl.where", _in_width(b, most), b.bare, number_text(most)))


_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _comparison(symbol: str) -> _Row:
    def compare(a: Arg, b: Arg) -> Expression:
        swap = a.value is not None
        left, right = (b, a) if swap else (a, b)
        # A comparison gives a number its own dtype, fp32 or int32: too few digits for fp64, enough for any integer.
        other = right.typed if right.dtype is torch.float64 else right.bare
        return infix(left.bare, _MIRRORED[symbol] if swap else symbol, other)

    return _Row(floats=compare, ints=compare, bools=compare)


def _sign(a: Arg) -> Expression:
    positive = to_dtype(infix(a.bare, ">", NULL), a.dtype)
    if _unsigned(a.dtype):
        return positive
    return infix(positive, "-", to_dtype(infix(a.bare, "<", NULL), a.dtype))


TABLE: Mapping[str, _Row] = {
    "add": _same(_operator("+"), _operator("|")),
    "sub": _same(_operator("-")),
    "mul": _same(_operator("*"), _operator("&")),
    "div": _floats(_div),
    "floordiv": _Row(floats=_floordiv_float, ints=_floordiv_int),
    "truncdiv": _Row(floats=_truncdiv_float, ints=_operator("//")),
    "remainder": _Row(floats=_remainder_float, ints=_remainder_int),
    # `%` of floats in Triton is a - b * trunc(a / b), wrong for large quotients.
    "fmod": _Row(floats=_libdevice("fmod"), ints=_operator("%")),
    "pow": _Row(floats=_pow_float, ints=_pow_int, bools=_pow_bool),
    # Unary minus in Triton is 0 - x, which loses the sign of zero.
    "neg": _Row(floats=lambda a: infix(a.bare, "*", MINUS_ONE), ints=lambda a: prefix("-", a.bare), native=True),
    "abs": _Row(floats=_function("tl.abs"), ints=_function("tl.abs"), native=True),
    "sign": _same(_sign, _itself),
    "relu": _Row(floats=_relu, ints=lambda a: call("tl.where", infix(a.typed, ">", NULL), a.typed, NULL)),
    "maximum": _extremum("maximum", "ALL", "|"),
    "minimum": _extremum("minimum", "ALL", "&"),
    "fmax": _extremum("maximum", "NONE", "|"),
    "fmin": _extremum("minimum", "NONE", "&"),
    "floor": _Row(floats=_function("tl.floor"), ints=_itself),
    "ceil": _Row(floats=_function("tl.ceil"), ints=_itself),
    "round": _Row(floats=_libdevice("nearbyint"), ints=_itself),  # half to even
    "trunc": _Row(floats=_libdevice("trunc"), ints=_itself),
    "frac": _floats(lambda a: infix(a.typed, "-", libdevice("trunc", a.typed))),
    "copysign": _floats(_libdevice("copysign")),
    "reciprocal": _floats(lambda a: infix(ONE, "/", a.bare)),
    "sqrt": _floats(_sqrt),
    "rsqrt": _floats(_rsqrt),
    "exp": _floats(_exp),
    "exp2": _floats(_function("tl.exp2")),
    "expm1": _floats(_libdevice("expm1")),
    "log": _floats(_function("tl.log")),
    "log2": _floats(_function("tl.log2")),
    "log10": _floats(_libdevice("log10")),
    "log1p": _floats(_libdevice("log1p")),
    "log1p_unit": _floats(_log1p_unit),
    "sin": _floats(_function("tl.sin")),
    "cos": _floats(_function("tl.cos")),
    "tan": _floats(_libdevice("tan")),
    "asin": _floats(_libdevice("asin")),
    "acos": _floats(_libdevice("acos")),
    "atan": _floats(_libdevice("atan")),
    "atan2": _floats(_libdevice("atan2")),
    "sinh": _floats(_libdevice("sinh")),
    "cosh": _floats(_libdevice("cosh")),
    "tanh": _floats(_tanh),
    "asinh": _floats(_libdevice("asinh")),
    "acosh": _floats(_libdevice("acosh")),
    "atanh": _floats(_libdevice("atanh")),
    "sigmoid": _floats(_sigmoid),
    "erf": _floats(_function("tl.erf")),
    "erfc": _floats(_libdevice("erfc")),
    "erfinv": _floats(_libdevice("erfinv")),
    "lgamma": _floats(_libdevice("lgamma")),
    "i0": _floats(_libdevice("cyl_bessel_i0")),
    "hypot": _floats(_libdevice("hypot")),
    "eq": _comparison("=="),
    "ne": _comparison("!="),
    "lt": _comparison("<"),
    "le": _comparison("<="),
    "gt": _comparison(">"),
    "ge": _comparison(">="),
    "isnan": _same(_against_itself("!="), _against_itself("!=")),
    "isinf": _Row(
        floats=lambda a: infix(call("tl.abs", a.typed), "==", INFINITY),
        ints=_against_itself("!="),
        bools=_against_itself("!="),
    ),
    "isfinite": _Row(
        floats=lambda a: infix(call("tl.abs", a.typed), "<", INFINITY),
        ints=_against_itself("=="),
        bools=_against_itself("=="),
    ),
    "bitwise_and": _Row(ints=_operator("&"), bools=_operator("&")),
    "bitwise_or": _Row(ints=_operator("|"), bools=_operator("|")),
    "bitwise_xor": _Row(ints=_operator("^"), bools=_operator("^")),
    "bitwise_not": _Row(ints=lambda a: prefix("~", a.bare), bools=lambda a: prefix("~", a.bare)),
    "lshift": _Row(ints=_lshift),
    "rshift": _Row(ints=_rshift),
}
