"""Pointwise operations as Triton expressions, with the results of eager PyTorch.

One row of :data:`_TABLE` per op of :data:`helion._compiler.ir.pointwise.POINTWISE`. A row holds up to three templates,
by the kind of dtype the op computes in. A template is a format string, or a function of its operands where constants,
signs or dtypes matter.

Half types (fp16, bf16, fp8) compute in fp32 and are rounded once, to the result dtype, as PyTorch does.

Accuracy in fp32 on NVIDIA, against the correctly rounded result. Bounds are those of the CUDA C++ Programming Guide
(mathematical functions) and of the PTX instructions that Triton generates:

- exact: ``sqrt`` (``tl.sqrt_rn``), ``fmod``, ``remainder``, ``floordiv``, ``truncdiv``, division of integers, and
  everything made of additions, comparisons, roundings and bit operations;
- within 2 units in the last place (ulp): ``div`` and ``reciprocal`` (``div.full``), ``rsqrt``, ``exp2``, ``log``,
  ``log2``, ``log1p_unit``, ``sin``, ``cos`` and ``erf``;
- within 4 ulp: the other functions of libdevice, except ``lgamma`` and ``i0`` (6 ulp);
- ``exp`` and ``sigmoid``: 2 ulp plus 1.2 ulp for every unit of ``|x|``, 2 more for ``sigmoid``. They are
  ``ex2(x * log2(e))``, 2 instructions where libdevice takes 9 and ``tl.exp`` 5, and the product is rounded. Softmax and
  attention evaluate it once per element and with x <= 0, where the absolute error stays below 2^-22.

``exp``, ``exp2``, ``sigmoid``, ``rsqrt``, ``floor``, ``ceil`` and the functions of libdevice flush subnormal numbers to zero. ``floordiv`` of
floats may lose the sign of a zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ...._compiler.ir.pointwise import POINTWISE, Scalar, fold_cast
from ...._compiler.ir.pointwise import common_dtype as promoted_dtype

_DTYPES: tuple[tuple[torch.dtype, str, str], ...] = (
    (torch.bool, "tl.int1", "i1"),
    (torch.int8, "tl.int8", "i8"),
    (torch.int16, "tl.int16", "i16"),
    (torch.int32, "tl.int32", "i32"),
    (torch.int64, "tl.int64", "i64"),
    (torch.uint8, "tl.uint8", "u8"),
    (torch.uint16, "tl.uint16", "u16"),
    (torch.uint32, "tl.uint32", "u32"),
    (torch.uint64, "tl.uint64", "u64"),
    (torch.float16, "tl.float16", "fp16"),
    (torch.bfloat16, "tl.bfloat16", "bf16"),
    (torch.float32, "tl.float32", "fp32"),
    (torch.float64, "tl.float64", "fp64"),
    (torch.float8_e4m3fn, "tl.float8e4nv", "fp8e4nv"),
    (torch.float8_e5m2, "tl.float8e5", "fp8e5"),
    (torch.float8_e4m3fnuz, "tl.float8e4b8", "fp8e4b8"),
    (torch.float8_e5m2fnuz, "tl.float8e5b16", "fp8e5b16"),
)
TRITON_DTYPES: Mapping[torch.dtype, str] = {dtype: name for dtype, name, _ in _DTYPES}
"""As written in kernels: ``"tl.float32"``."""
SIGNATURE_DTYPES: Mapping[torch.dtype, str] = {dtype: name for dtype, _, name in _DTYPES}
"""As written in the signature of an ``ASTSource``: ``"fp32"``; a pointer is ``"*fp32"``."""

#: log1p(u) / u for u from 0 to 1, lowest power first: the polynomial with the least relative error, 4.7e-9.
_LOG1P_UNIT = (
    1.0, -0.4999990165233612, 0.3332996368408203, -0.24954134225845337, 0.1967594027519226, -0.15305593609809875,
    0.10603656619787216, -0.056959543377161026, 0.01985146477818489, -0.0032440253999084234,
)  # fmt: skip


def _horner(coefficients: Sequence[float], x: str) -> str:
    text = repr(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        text = f"({text} * {x} + {coefficient!r})"
    return text


HELPERS: Mapping[str, str] = {
    "_log1p_unit": f'''\
@triton.jit
def _log1p_unit(u):
    """log(1 + u) for u from 0 to 1: 10 instructions where libdevice takes 29 and a branch."""
    return u * {_horner(_LOG1P_UNIT, "u")}
''',
    "_integer_power": '''\
@triton.jit
def _integer_power(base, exponent, BITS: tl.constexpr):
    """base ** exponent for integers, wrapping around; BITS is the width of the exponent."""
    one = base * 0 + 1
    result = one
    power = base
    bits = exponent
    for _ in tl.static_range(BITS):
        result = tl.where((bits & 1) != 0, result * power, result)
        power = power * power
        bits = bits >> 1
    # A negative exponent leaves only the powers of 1 and -1 different from zero.
    alternating = tl.where((exponent & 1) != 0, base, one)
    inverse = tl.where(base == one, one, tl.where(base == -one, alternating, base * 0))
    return tl.where(exponent < 0, inverse, result)
''',
}
"""Functions that an expression may call, by name, as source text for the top of the generated module."""


def needs_libdevice(text: str) -> bool:
    """Whether ``text`` needs ``from triton.language.extra import libdevice`` in its module."""
    return "libdevice." in text


def needed_helpers(text: str) -> tuple[str, ...]:
    """The sources of the :data:`HELPERS` that ``text`` calls."""
    return tuple(source for name, source in HELPERS.items() if f"{name}(" in text)


# --- literals and conversions -----------------------------------------------------------------------------------------

_HALVES = frozenset(dtype for dtype, _, _ in _DTYPES if dtype.is_floating_point and dtype.itemsize <= 2)
_FP8 = frozenset(dtype for dtype in _HALVES if dtype.itemsize == 1)
_FP32_MAX = torch.finfo(torch.float32).max
_LOG2_E = math.log2(math.e)
_FP32_TINY = torch.finfo(torch.float32).tiny
# Every value of these is a value of each half type other than fp8, so that converting them rounds nothing.
_NARROW = (torch.bool, torch.int8, torch.uint8)


def literal(value: Scalar, dtype: torch.dtype | None = None) -> str:
    """``value`` as source text; with ``dtype``, first converted to it as PyTorch converts a number to a dtype.

    Integers wrap around, numbers are rounded to half types, and fp32 keeps the digits it was given (Triton rounds
    them). Infinities and NaN are printed as ``float('inf')``. Triton drops the sign of ``-0.0``.

    Raises:
        ValueError: the conversion is not defined, as that of an infinity to an integer dtype.
    """
    if dtype is not None and (dtype in _HALVES or not dtype.is_floating_point):
        converted = fold_cast(value, dtype)
        if converted is None:
            raise ValueError(f"{value!r} has no value as {dtype}; use a floating-point dtype or another number")
        value = converted
    elif dtype is not None:
        value = float(value)
        if dtype is torch.float32 and abs(value) > _FP32_MAX:
            value = fold_cast(value, dtype) or value
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    return repr(value)


def _number(text: str) -> Scalar | None:
    """The number that a literal stands for; None if ``text`` is not a literal."""
    if text in ("True", "False"):
        return text == "True"
    if text.startswith("float("):
        return float(text[len("float('") : -len("')")])
    if not (text[0].isdigit() or text[0] in "-.+"):
        return None
    try:
        return int(text)
    except ValueError:
        return float(text)


def _atom(text: str) -> str:
    """``text`` in parentheses unless it is a name, a literal, a call or already in parentheses."""
    depth = 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == " " and depth == 0:
            return f"({text})"
    return f"({text})" if text[0] in "-~" or text[0].isdigit() else text


def cast(text: str, src: torch.dtype, dst: torch.dtype) -> str:
    """The value of expression ``text``, of dtype ``src``, converted to ``dst`` as ``.to(dst)`` does in eager mode.

    - Overflow: e4m3fn saturates at ±448, e5m2 becomes infinite; NaN stays. The ``fnuz`` types overflow as the
      hardware does.
    - Integers and fp64 go through fp32 on the way to a half type, so they are rounded twice, as in eager mode.
    - A float outside the range of an integer dtype has no defined value, but uint8 wraps around as in eager mode, up
      to ±2^31.
    """
    if src is dst:
        return text
    if dst is torch.bool:
        return _against_zero(text, src, "!=")
    text = _atom(text)
    single = torch.float32
    if src is not single and (
        (dst in _HALVES and not (src in _HALVES and src not in _FP8))
        or (src in _FP8 and dst not in (torch.float16, torch.bfloat16))
    ):
        text, src = f"{text}.to(tl.float32)", single
        if dst is single:
            return text
    if dst is torch.uint8 and src.is_floating_point:
        return f"{text}.to(tl.int32).to(tl.uint8)"
    converted = f"{text}.to({TRITON_DTYPES[dst]})"
    if dst is torch.float8_e5m2:
        # The conversion instruction saturates, at infinities too. 61440 lies halfway between the greatest finite
        # number, 57344, and 2^16, and is rounded up, to the even mantissa. 0x7C and 0xFC are the infinities.
        infinite = f"tl.where({text} < 0.0, 0xFC, 0x7C).to(tl.uint8)"
        bits = f"tl.where(tl.abs({text}) >= 61440.0, {infinite}, {converted}.to(tl.uint8, bitcast=True))"
        return f"{bits}.to(tl.float8e5, bitcast=True)"
    return converted


def _against_zero(text: str, src: torch.dtype, symbol: str) -> str:
    """``text``, of a dtype other than bool, compared with zero."""
    text = _atom(text)
    if src in _FP8:
        text = f"{text}.to(tl.float32)"
    return f"{text} {symbol} {'0.0' if src.is_floating_point else '0'}"


def bitcast(text: str, src: torch.dtype, dst: torch.dtype) -> str:
    """The bits of expression ``text``, of dtype ``src``, read as ``dst``, as ``.view(dst)`` does in eager mode.

    Raises:
        TypeError: the dtypes differ in size.
    """
    if src.itemsize != dst.itemsize:
        raise TypeError(
            f"cannot view {src} as {dst}: {src.itemsize} and {dst.itemsize} bytes; convert with .to(dtype), or view as "
            f"a dtype of {src.itemsize} bytes"
        )
    if src is dst:
        return text
    if src is torch.bool:  # one bit in Triton, one byte in memory
        text, src = f"{_atom(text)}.to(tl.uint8)", torch.uint8
        return text if src is dst else bitcast(text, src, dst)
    if dst is torch.bool:
        return f"{_atom(bitcast(text, src, torch.uint8))} != 0"
    return f"{_atom(text)}.to({TRITON_DTYPES[dst]}, bitcast=True)"


# --- operands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Arg:
    """One operand, converted to the dtype in which the op computes.

    ``value``: of a literal. ``weak``: a name that stands for a Python number, of whatever dtype Triton gave it.
    ``source``: the dtype before the conversion; None for Python numbers.
    """

    text: str
    dtype: torch.dtype
    source: torch.dtype | None = None
    value: Scalar | None = None
    weak: bool = False

    @property
    def bare(self) -> str:
        """For use with an operator whose other side is a tensor of `dtype`: Triton adopts that for a number."""
        return self.text if not self.weak or self.dtype in (torch.float32, torch.float64) else self.typed

    @property
    def typed(self) -> str:
        """For use as an argument of a function: an expression that Triton gives exactly `dtype`."""
        if self.weak:
            return f"tl.cast({self.text}, {TRITON_DTYPES[self.dtype]})"
        return self.text if self.value is None or self._natural else self.full

    @property
    def full(self) -> str:
        return f"tl.full((), {self.text}, {TRITON_DTYPES[self.dtype]})"

    @property
    def _natural(self) -> bool:
        """Whether Triton gives the bare literal this very dtype."""
        if isinstance(self.value, float):
            size = abs(self.value)
            normal = size == 0 or not size < _FP32_TINY  # subnormal numbers become fp64; NaN is fp32
            return self.dtype is torch.float32 and normal
        if self.dtype is torch.bool:
            return True
        return self.dtype is torch.int32

    @property
    def bits(self) -> int:
        return 8 * self.dtype.itemsize

    def __str__(self) -> str:
        return self.bare


def _arg(
    text: str, source: torch.dtype | None, common: torch.dtype, compute: torch.dtype, round_literals: bool
) -> _Arg:
    if source is None:
        value = _number(text)
        if value is None:
            return _Arg(text=text, dtype=compute, weak=True)
        if round_literals and common in _HALVES:
            text = literal(value, common)
            value = _number(text)
        assert value is not None
        text = literal(value, compute)
        return _Arg(text=text, dtype=compute, value=_number(text))
    if common is not compute and source is not common and source not in _NARROW:
        text = cast(text, source, common)  # eager mode rounds to the common dtype before it computes in fp32
        return _Arg(text=_atom(cast(text, common, compute)), dtype=compute, source=source)
    return _Arg(text=_atom(cast(text, source, compute)), dtype=compute, source=source)


_Template = str | Callable[..., str]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """The templates of one op. In a format string, operands of operators are bare and arguments of calls typed.

    ``native``: half types are not widened, because the op rounds nothing and every target has it.
    """

    floats: _Template | None = None
    ints: _Template | None = None
    bools: _Template | None = None
    native: bool = False


def _fill(template: _Template, args: Sequence[_Arg]) -> str:
    if not isinstance(template, str):
        return template(*args)
    return template.format(*(arg.typed if "(" in template else arg.bare for arg in args))


# --- templates that look at their operands ----------------------------------------------------------------------------


def _exact_div(lhs: str, rhs: str, dtype: torch.dtype) -> str:
    """Division rounded to nearest: `/` may be off by 2 ulp in fp32 and is exact in fp64."""
    return f"tl.div_rn({lhs}, {rhs})" if dtype is torch.float32 else f"{lhs} / {rhs}"


def _div(a: _Arg, b: _Arg) -> str:
    sources = [arg.source for arg in (a, b) if arg.source is not None]
    if sources and not any(source.is_floating_point for source in sources):
        return _exact_div(a.typed, b.typed, a.dtype)  # so that quotients of multiples are whole numbers
    if isinstance(b.value, float) and math.isfinite(b.value) and math.frexp(abs(b.value))[0] == 0.5:
        inverse = 1.0 / b.value
        if _FP32_TINY <= abs(inverse) <= _FP32_MAX:
            return f"{a} * {literal(inverse)}"  # the same number, without the division
    return f"{a} / {b}"


def _signs_differ(a: _Arg, b: _Arg) -> str:
    if b.value is not None:
        return f"({a} >= 0)" if b.value < 0 else f"({a} < 0)"
    if a.value is not None:
        return f"({b} >= 0)" if a.value < 0 else f"({b} < 0)"
    return f"(({a} < 0) != ({b} < 0))"


def _inexact_down(rest: str, a: _Arg, b: _Arg) -> str:
    """In parentheses: whether the quotient, rounded toward zero, exceeds its floor. ``rest`` is what C's ``%`` leaves."""
    if b.value is not None:
        return f"({rest} {'<' if b.value > 0 else '>'} 0)"
    return f"(({rest} != 0) & {_signs_differ(a, b)})"


def _is_power_of_two(value: Scalar | None) -> bool:
    return isinstance(value, int) and value > 0 and value & (value - 1) == 0


def _unsigned(dtype: torch.dtype) -> bool:
    return not dtype.is_signed


def _floordiv_int(a: _Arg, b: _Arg) -> str:
    if _is_power_of_two(b.value):
        return f"{a} >> {int(b.value or 1).bit_length() - 1}"
    if _unsigned(a.dtype):
        return f"{a} // {b}"
    return f"{a} // {b} - {_inexact_down(f'{a} % {b}', a, b)}.to({TRITON_DTYPES[a.dtype]})"


def _remainder_int(a: _Arg, b: _Arg) -> str:
    if _is_power_of_two(b.value):
        return f"{a} & {int(b.value or 1) - 1}"
    if _unsigned(a.dtype):
        return f"{a} % {b}"
    down = _inexact_down(f"{a} % {b}", a, b)
    return f"{a} % {b} + {down}.to({TRITON_DTYPES[a.dtype]}) * {b}"


def _floordiv_float(a: _Arg, b: _Arg) -> str:
    # The quotient of the multiple of b below a is a whole number up to rounding errors; floor(a / b) is not the same,
    # as a / b may be rounded up to a whole number.
    rest = f"libdevice.fmod({a.typed}, {b.typed})"
    multiple = _exact_div(f"{a} - {rest}", b.typed, a.dtype) if a.dtype is torch.float32 else f"({a} - {rest}) / {b}"
    floor = f"libdevice.nearbyint({multiple} - {_inexact_down(rest, a, b)}.to({TRITON_DTYPES[a.dtype]}))"
    if b.value:
        return floor
    return f"{a} / {b}" if b.value is not None else f"tl.where({b} == 0, {a} / {b}, {floor})"


def _remainder_float(a: _Arg, b: _Arg) -> str:
    rest = f"libdevice.fmod({a.typed}, {b.typed})"
    return f"tl.where({_inexact_down(rest, a, b)[1:-1]}, {rest} + {b}, {rest})"


def _truncdiv_float(a: _Arg, b: _Arg) -> str:
    return f"libdevice.trunc({_exact_div(a.typed, b.typed, a.dtype)})"


def _sqrt(a: _Arg) -> str:
    return f"tl.sqrt_rn({a.typed})" if a.dtype is torch.float32 else f"tl.sqrt({a.typed})"


def _rsqrt(a: _Arg) -> str:
    # In fp64 the instruction behind tl.rsqrt is an approximation with far fewer than 53 bits.
    return f"tl.rsqrt({a.typed})" if a.dtype is torch.float32 else f"1.0 / tl.sqrt({a.typed})"


def _exp(a: _Arg) -> str:
    # tl.exp keeps subnormal results by three more instructions, half of what a row of a softmax has otherwise
    return f"tl.exp({a.typed})" if a.dtype is torch.float64 else f"tl.exp2({a} * {_LOG2_E!r})"


def _log1p_unit(a: _Arg) -> str:
    return f"libdevice.log1p({a.typed})" if a.dtype is torch.float64 else f"_log1p_unit({a.typed})"


def _sigmoid(a: _Arg) -> str:
    if a.dtype is torch.float64:
        return f"tl.sigmoid({a.typed})"
    # the divisor is at least 1, so that the plain division is right; 5 instructions where tl.sigmoid takes 12
    return f"libdevice.fast_dividef(1.0, 1.0 + tl.exp2({a} * {-_LOG2_E!r}))"


_FLOAT_POWERS: Mapping[float, Callable[[_Arg], str]] = {
    -2.0: lambda a: f"1.0 / ({a} * {a})",
    -1.0: lambda a: f"1.0 / {a}",
    -0.5: _rsqrt,
    0.5: _sqrt,
    1.0: lambda a: f"{a}",
    2.0: lambda a: f"{a} * {a}",
    3.0: lambda a: f"{a} * {a} * {a}",
}


def _pow_float(a: _Arg, b: _Arg) -> str:
    power = _FLOAT_POWERS.get(float(b.value)) if b.value is not None and a.value is None else None
    return power(a) if power is not None else f"libdevice.pow({a.typed}, {b.typed})"


def _pow_int(a: _Arg, b: _Arg) -> str:
    exponent = b.value
    if exponent is None:
        return f"_integer_power({a.typed}, {b.typed}, {b.bits})"
    if 1 <= exponent <= 4:
        return " * ".join([f"{a}"] * int(exponent))
    return f"_integer_power({a.typed}, {b.full}, {max(1, int(exponent).bit_length())})"


def _pow_bool(a: _Arg, b: _Arg) -> str:
    # Eager mode takes this only with a number on one side.
    if b.value is not None:
        return f"{a}" if b.value else f"{a} | True"
    return f"{b} | True" if a.value else f"~{b}"


def _lshift(a: _Arg, b: _Arg) -> str:
    """Eager mode gives 0 for an amount that is negative or not below the width."""
    if b.value is not None:
        return f"{a} << {b}" if 0 <= b.value < b.bits else f"{a} * 0"
    in_range = f"{b} < {b.bits}" if _unsigned(b.dtype) else f"({b} >= 0) & ({b} < {b.bits})"
    return f"tl.where({in_range}, {a.typed} << {b}, 0)"


def _rshift(a: _Arg, b: _Arg) -> str:
    """Eager mode gives what is left when all bits are out for an amount that is negative or not below the width."""
    if _unsigned(a.dtype):
        if b.value is not None:
            return f"{a} >> {b}" if 0 <= b.value < b.bits else f"{a} * 0"
        return f"tl.where({b} < {b.bits}, {a.typed} >> {b}, 0)"
    most = b.bits - 1
    if b.value is not None:
        return f"{a} >> {b if 0 <= b.value < most else most}"
    return f"{a.typed} >> tl.where(({b} >= 0) & ({b} < {most}), {b}, {most})"


_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _comparison(symbol: str) -> _Row:
    def compare(a: _Arg, b: _Arg) -> str:
        swap = a.value is not None
        left, right = (b, a) if swap else (a, b)
        # A comparison types a number by itself, as fp32 or int32: too few digits for fp64, enough for any integer.
        number = right.typed if right.dtype is torch.float64 else right.bare
        return f"{left} {_MIRRORED[symbol] if swap else symbol} {number}"

    return _Row(floats=compare, ints=compare, bools=compare)


def _sign(a: _Arg) -> str:
    name = TRITON_DTYPES[a.dtype]
    if _unsigned(a.dtype):
        return f"({a} > 0).to({name})"
    return f"({a} > 0).to({name}) - ({a} < 0).to({name})"


def _same(template: _Template, bools: _Template | None = None) -> _Row:
    return _Row(floats=template, ints=template, bools=bools)


def _extremum(function: str, propagate_nan: str, bools: str) -> _Row:
    floats = f"tl.{function}({{0}}, {{1}}, propagate_nan=tl.PropagateNan.{propagate_nan})"
    return _Row(floats=floats, ints=f"tl.{function}({{0}}, {{1}})", bools=bools)


def _floats(template: _Template) -> _Row:
    return _Row(floats=template)


_TABLE: Mapping[str, _Row] = {
    "add": _same("{0} + {1}", "{0} | {1}"),
    "sub": _same("{0} - {1}"),
    "mul": _same("{0} * {1}", "{0} & {1}"),
    "div": _floats(_div),
    "floordiv": _Row(floats=_floordiv_float, ints=_floordiv_int),
    "truncdiv": _Row(floats=_truncdiv_float, ints="{0} // {1}"),
    "remainder": _Row(floats=_remainder_float, ints=_remainder_int),
    # `%` of floats in Triton is a - b * trunc(a / b), wrong for large quotients.
    "fmod": _Row(floats="libdevice.fmod({0}, {1})", ints="{0} % {1}"),
    "pow": _Row(floats=_pow_float, ints=_pow_int, bools=_pow_bool),
    # Unary minus in Triton is 0 - x, which loses the sign of zero.
    "neg": _Row(floats="{0} * -1.0", ints="-{0}", native=True),
    "abs": _Row(floats="tl.abs({0})", ints="tl.abs({0})", native=True),
    "sign": _same(_sign, "{0}"),
    "relu": _Row(floats="tl.maximum({0}, 0.0, propagate_nan=tl.PropagateNan.ALL)", ints="tl.where({0} > 0, {0}, 0)"),
    "maximum": _extremum("maximum", "ALL", "{0} | {1}"),
    "minimum": _extremum("minimum", "ALL", "{0} & {1}"),
    "fmax": _extremum("maximum", "NONE", "{0} | {1}"),
    "fmin": _extremum("minimum", "NONE", "{0} & {1}"),
    "floor": _Row(floats="tl.floor({0})", ints="{0}"),
    "ceil": _Row(floats="tl.ceil({0})", ints="{0}"),
    "round": _Row(floats="libdevice.nearbyint({0})", ints="{0}"),  # half to even
    "trunc": _Row(floats="libdevice.trunc({0})", ints="{0}"),
    "frac": _floats("{0} - libdevice.trunc({0})"),
    "copysign": _floats("libdevice.copysign({0}, {1})"),
    "reciprocal": _floats("1.0 / {0}"),
    "sqrt": _floats(_sqrt),
    "rsqrt": _floats(_rsqrt),
    "exp": _floats(_exp),
    "exp2": _floats("tl.exp2({0})"),
    "expm1": _floats("libdevice.expm1({0})"),
    "log": _floats("tl.log({0})"),
    "log2": _floats("tl.log2({0})"),
    "log10": _floats("libdevice.log10({0})"),
    "log1p": _floats("libdevice.log1p({0})"),
    "log1p_unit": _floats(_log1p_unit),
    "sin": _floats("tl.sin({0})"),
    "cos": _floats("tl.cos({0})"),
    "tan": _floats("libdevice.tan({0})"),
    "asin": _floats("libdevice.asin({0})"),
    "acos": _floats("libdevice.acos({0})"),
    "atan": _floats("libdevice.atan({0})"),
    "atan2": _floats("libdevice.atan2({0}, {1})"),
    "sinh": _floats("libdevice.sinh({0})"),
    "cosh": _floats("libdevice.cosh({0})"),
    "tanh": _floats("libdevice.tanh({0})"),
    "asinh": _floats("libdevice.asinh({0})"),
    "acosh": _floats("libdevice.acosh({0})"),
    "atanh": _floats("libdevice.atanh({0})"),
    "sigmoid": _floats(_sigmoid),
    "erf": _floats("tl.erf({0})"),
    "erfc": _floats("libdevice.erfc({0})"),
    "erfinv": _floats("libdevice.erfinv({0})"),
    "lgamma": _floats("libdevice.lgamma({0})"),
    "i0": _floats("libdevice.cyl_bessel_i0({0})"),
    "hypot": _floats("libdevice.hypot({0}, {1})"),
    "eq": _comparison("=="),
    "ne": _comparison("!="),
    "lt": _comparison("<"),
    "le": _comparison("<="),
    "gt": _comparison(">"),
    "ge": _comparison(">="),
    # No integer is NaN or infinite; the result must have the operand's shape all the same.
    "isnan": _same("{0} != {0}", "{0} != {0}"),
    "isinf": _Row(floats="tl.abs({0}) == float('inf')", ints="{0} != {0}", bools="{0} != {0}"),
    "isfinite": _Row(floats="tl.abs({0}) < float('inf')", ints="{0} == {0}", bools="{0} == {0}"),
    "bitwise_and": _Row(ints="{0} & {1}", bools="{0} & {1}"),
    "bitwise_or": _Row(ints="{0} | {1}", bools="{0} | {1}"),
    "bitwise_xor": _Row(ints="{0} ^ {1}", bools="{0} ^ {1}"),
    "bitwise_not": _Row(ints="~{0}", bools="~{0}"),
    "lshift": _Row(ints=_lshift),
    "rshift": _Row(ints=_rshift),
}


# --- ops whose operands keep their own dtypes -------------------------------------------------------------------------

_Dtypes = Sequence[torch.dtype | None]


def _given(text: str, source: torch.dtype | None, dtype: torch.dtype) -> _Arg:
    return _arg(text, source, dtype, dtype, True)


def _truth(text: str, dtype: torch.dtype | None) -> str:
    if dtype is None:
        value = _number(text)
        return repr(bool(value)) if value is not None else f"tl.cast({text}, tl.float32) != 0.0"
    return cast(text, dtype, torch.bool)


def _logical(symbol: str) -> Callable[[Sequence[str], _Dtypes, torch.dtype], str]:
    def render_logical(operands: Sequence[str], dtypes: _Dtypes, result: torch.dtype) -> str:
        return f" {symbol} ".join(map(_atom, map(_truth, operands, dtypes)))

    return render_logical


def _logical_not(operands: Sequence[str], dtypes: _Dtypes, result: torch.dtype) -> str:
    dtype = dtypes[0]
    if dtype is None or dtype is torch.bool:
        return f"~{_given(operands[0], dtype, torch.bool).typed}"
    return _against_zero(operands[0], dtype, "==")


def _signbit(operands: Sequence[str], dtypes: _Dtypes, result: torch.dtype) -> str:
    dtype = dtypes[0] or torch.float32
    text = _given(operands[0], dtypes[0], dtype).typed
    if not dtype.is_floating_point:
        return f"{text} < 0"
    # The comparison x < 0 would not see the sign of a zero or a NaN.
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    return f"{bitcast(text, dtype, integer)} < 0"


def _where(operands: Sequence[str], dtypes: _Dtypes, result: torch.dtype) -> str:
    condition = _truth(operands[0], dtypes[0])
    values = [_given(text, dtype, result) for text, dtype in zip(operands[1:], dtypes[1:], strict=True)]
    texts = [value.bare for value in values]
    if result in _FP8:  # Triton has no fp8 constants
        texts = [
            v.text if v.source is not None else cast(replace(v, dtype=torch.float32).full, torch.float32, result)
            for v in values
        ]
    elif all(value.value is not None for value in values):
        texts[0] = values[0].typed
    return f"tl.where({condition}, {', '.join(texts)})"


def _cast(operands: Sequence[str], dtypes: _Dtypes, result: torch.dtype) -> str:
    if dtypes[0] is None:
        return _given(operands[0], None, result).typed
    return cast(operands[0], dtypes[0], result)


def _bitcast(operands: Sequence[str], dtypes: _Dtypes, result: torch.dtype) -> str:
    if dtypes[0] is None:
        raise TypeError(f"the number {operands[0]} has no dtype to view as {result}; convert it to a dtype first")
    return bitcast(operands[0], dtypes[0], result)


_OWN_DTYPES: Mapping[str, Callable[[Sequence[str], _Dtypes, torch.dtype], str]] = {
    "where": _where,
    "cast": _cast,
    "bitcast": _bitcast,
    "signbit": _signbit,
    "logical_and": _logical("&"),
    "logical_or": _logical("|"),
    "logical_xor": _logical("^"),
    "logical_not": _logical_not,
}

# With a half tensor and a Python number, eager mode on a GPU computes these with the number in fp32; before it computes
# anything else it rounds the number to the half type.
_KEEP_DIGITS = frozenset(("add", "sub", "mul", "div", "floordiv", "truncdiv"))


def render(
    name: str,
    operands: Sequence[str],
    operand_dtypes: _Dtypes,
    result_dtype: torch.dtype,
    *,
    common_dtype: torch.dtype | None = None,
) -> str:
    """Op ``name`` as one Triton expression with the value it has in eager PyTorch.

    Args:
        name: a key of :data:`helion._compiler.ir.pointwise.POINTWISE`.
        operands: names or literals (see :func:`literal`); some are repeated in the result.
        operand_dtypes: the dtype of each operand; None for a Python number, which is a literal or the name of a
            scalar kernel argument, and does not take part in promotion the way a tensor does.
        result_dtype: of the op, as :func:`helion._compiler.ir.pointwise.result_dtype` gives it.
        common_dtype: the dtype in which a comparison compares. Needed only where it does not follow from
            `operand_dtypes`: an operand without dimensions, or the name of a Python number.

    Returns:
        An expression of dtype `result_dtype`. It may need libdevice (:func:`needs_libdevice`) and :data:`HELPERS`
        (:func:`needed_helpers`). It is not put in parentheses.

    Raises:
        KeyError: there is no op of that name.
        TypeError: the op does not exist for these dtypes.
    """
    special = _OWN_DTYPES.get(name)
    if special is not None:
        return special(operands, operand_dtypes, result_dtype)
    if name not in _TABLE:
        raise KeyError(f"no Triton form of pointwise operation {name!r}; add a row to {__name__}._TABLE")
    row = _TABLE[name]
    predicate = POINTWISE[name].result == "bool"
    if not predicate:
        common_dtype = result_dtype
    elif common_dtype is None:
        common_dtype = _comparison_dtype(name, operands, operand_dtypes)
    compute = torch.float32 if common_dtype in _HALVES and not row.native else common_dtype
    template = row.floats if compute.is_floating_point else row.bools if compute is torch.bool else row.ints
    if template is None:
        raise TypeError(f"pointwise operation {name!r} does not exist for {compute}; convert the operands first")
    round_literals = name not in _KEEP_DIGITS
    args = [
        _arg(text, dtype, common_dtype, compute, round_literals)
        for text, dtype in zip(operands, operand_dtypes, strict=True)
    ]
    if all(arg.value is not None for arg in args):  # two numbers would be Python's to compute
        args[0] = replace(args[0], text=args[0].full, value=None)
    return cast(_fill(template, args), torch.bool if predicate else compute, result_dtype)


def _comparison_dtype(name: str, operands: Sequence[str], dtypes: _Dtypes) -> torch.dtype:
    kinds: list[tuple[torch.dtype, int] | Scalar] = []
    for text, dtype in zip(operands, dtypes, strict=True):
        number = _number(text) if dtype is None else None
        if dtype is None and number is None:
            raise TypeError(f"{name} of {text!r}, a number of unknown kind: pass common_dtype")
        kinds.append((dtype, 1) if dtype is not None else number if number is not None else 0)
    return promoted_dtype(name, kinds)
