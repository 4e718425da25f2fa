"""Pointwise operations as Triton expressions, with the results of eager PyTorch.

One row of :data:`_TABLE` per op of :data:`helion._compiler.ir.pointwise.POINTWISE`. A row holds up to three forms, by
the kind of dtype the op computes in. A form is a function of the operands.

Half types (fp16, bf16, fp8) compute in fp32 and are rounded once, to the result dtype, as PyTorch does.

Accuracy in fp32 on NVIDIA, against the correctly rounded result. Bounds are those of the CUDA C++ Programming Guide
(mathematical functions) and of the PTX instructions that Triton generates:

- exact: ``sqrt`` (``tl.sqrt_rn``), ``fmod``, ``remainder``, ``floordiv``, ``truncdiv``, division of integers, and
  everything made of additions, comparisons, roundings and bit operations;
- within 2 units in the last place (ulp): ``div`` and ``reciprocal`` (``div.full``), ``rsqrt``, ``exp2``, ``log``,
  ``log2``, ``log1p_unit``, ``sin``, ``cos`` and ``erf``;
- within 4 ulp: ``tanh`` and the other functions of libdevice, except ``lgamma`` and ``i0`` (6 ulp);
- ``exp`` and ``sigmoid``: 2 ulp plus 1.2 ulp for every unit of ``|x|``, 2 more for ``sigmoid``. They are ``ex2(x *
  log2(e))``, 2 instructions where libdevice takes 9 and ``tl.exp`` 5, and the multiplication is rounded. Softmax and
  attention evaluate it once per element and with x <= 0, where the absolute error stays below 2^-22.

``exp``, ``exp2``, ``sigmoid``, ``rsqrt``, ``floor``, ``ceil`` and the functions of libdevice flush subnormal numbers to
zero. ``floordiv`` of floats may lose the sign of a zero.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ....._compiler.ir.pointwise import POINTWISE, Scalar, fold_cast
from ....._compiler.ir.pointwise import common_dtype as promoted_dtype
from ..expressions import LIBDEVICE, Expression, atom, call, helper, in_parentheses, infix, libdevice, method, prefix
from ..expressions import number as number_text

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

#: `(tanh(x) / x - 1) / x^2` as a polynomial of x^2, lowest power first, with the least relative error of tanh for |x|
#: up to 0.625, 4.4e-9. Beyond, tanh(|x|) is 1 - 2 / (1 + exp(2 |x|)), whose subtraction loses half a unit in the last
#: place there.
_TANH_SMALL = (
    -0.33333281941853465, 0.13331442194741128, -0.053739714845158736, 0.020639086566146644, -0.005704986325284085,
)  # fmt: skip
_TANH_BOUND = 0.625
_LOG2_E = math.log2(math.e)


def _horner(coefficients: Sequence[float], x: str) -> str:
    text = repr(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        text = f"({text} * {x} + {coefficient!r})"
    return text


#: Rounds an fp32 number to bf16, to nearest even, in the upper half of a register with a zero lower half: the result as
#: fp32. It is one instruction at full rate.
ROUND_PTX = "cvt.rn.bf16x2.f32 $0, $1, 0f00000000;"
ROUND_TO_BF16 = "_rounded_bf16"

#: Makes the loop wait for a value, because an instruction reads it.
SETTLE_PTX = "mov.b32 $0, $1; // is there"
SETTLE = "_settled"

#: A zero that ptxas cannot fold, because it reads the clock: one of two neighbouring numbers is even. An operand
#: combined with it by `or` is unchanged, in other registers.
ZERO_PTX = "{ .reg .b32 t, u; mov.u32 t, %clock; add.u32 u, t, 1; mul.lo.u32 t, t, u; and.b32 $0, t, 1; }"
RENEW_PTX = "or.b32 $0, $1, $2; // renewed"
RENEW = "_renewed"

HELPERS: Mapping[str, str] = {
    RENEW: f'''\
@triton.jit
def {RENEW}(x):
    """The same, in registers that are written here: an operand from before a loop."""
    PACK: tl.constexpr = 32 // x.dtype.primitive_bitwidth
    zero = tl.inline_asm_elementwise({ZERO_PTX!r}, "=r,r", [tl.program_id(0)], dtype=tl.int32, is_pure=False, pack=1)
    if PACK == 2:
        zero = zero.to(tl.int16)
    if PACK == 4:
        zero = zero.to(tl.int8)
    return tl.inline_asm_elementwise({RENEW_PTX!r}, "=r,r,r", [x, zero], dtype=x.dtype, is_pure=True, pack=PACK)
''',
    SETTLE: f'''\
@triton.jit
def {SETTLE}(x):
    """The same, which is waited for here: sums of a matrix unit that works by itself."""
    PACK: tl.constexpr = 32 // x.dtype.primitive_bitwidth
    return tl.inline_asm_elementwise({SETTLE_PTX!r}, "=r,r", [x], dtype=x.dtype, is_pure=True, pack=PACK)
''',
    ROUND_TO_BF16: f'''\
@triton.jit
def {ROUND_TO_BF16}(x):
    """fp32 rounded to bf16, in fp32."""
    return tl.inline_asm_elementwise({ROUND_PTX!r}, "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
''',
    "_log1p_unit": f'''\
@triton.jit
def _log1p_unit(u):
    """log(1 + u) for u from 0 to 1: 10 instructions where libdevice takes 29 and a branch."""
    return u * {_horner(_LOG1P_UNIT, "u")}
''',
    "_tanh": f'''\
@triton.jit
def _tanh(x):
    """16 instructions, where libdevice has as many and branches for every number."""
    size = tl.abs(x)
    large = 1.0 - libdevice.fast_dividef(1.0, tl.exp2(size * {2 * _LOG2_E!r}) * 0.5 + 0.5)
    square = x * x
    small = x * (square * {_horner(_TANH_SMALL, "square")} + 1.0)
    return tl.where(size < {_TANH_BOUND!r}, small, libdevice.copysign(large, x))
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
"""Functions that an expression may need, by name, as source text for the top of the generated module."""


# --- literals and conversions -----------------------------------------------------------------------------------------

_HALVES = frozenset(dtype for dtype, _, _ in _DTYPES if dtype.is_floating_point and dtype.itemsize <= 2)
_FP8 = frozenset(dtype for dtype in _HALVES if dtype.itemsize == 1)
_FP32_MAX = torch.finfo(torch.float32).max
_FP32_TINY = torch.finfo(torch.float32).tiny
# Every value of these is a value of each half type other than fp8, so that converting them is exact.
_NARROW = (torch.bool, torch.int8, torch.uint8)


def literal(value: Scalar, dtype: torch.dtype | None = None) -> str:
    """Return ``value`` as source text; with ``dtype``, first converted to it as PyTorch converts a number to a dtype.

    Integers wrap around, numbers are rounded to half types, and fp32 keeps the digits it was given (Triton rounds
    them). Infinities and NaN are printed as ``float('inf')``, and ``-0.0``, of which Triton drops the sign, as a
    product.

    Raises:
        ValueError: the conversion is not defined, as that of an infinity to an integer dtype.
    """
    value = value if dtype is None else _converted(value, dtype)
    if is_negative_zero(value):
        return in_parentheses(_negative_zero(torch.float32 if dtype is None else dtype)).text
    return number_text(value).text


def is_negative_zero(value: Scalar | None) -> bool:
    """Return whether ``value`` is -0.0, of which Triton drops the sign."""
    return isinstance(value, float) and value == 0 and math.copysign(1.0, value) < 0


def _negative_zero(dtype: torch.dtype) -> Expression:
    """Return ``-0.0`` as an expression of ``dtype``: Triton makes +0.0 of every constant that equals zero."""
    zero = call("tl.full", Expression("()"), _ZERO, Expression(TRITON_DTYPES[dtype]))
    return infix(zero, "*", _MINUS_ONE)


def _converted(value: Scalar, dtype: torch.dtype) -> Scalar:
    if dtype in _HALVES or not dtype.is_floating_point:
        converted = fold_cast(value, dtype)
        if converted is None:
            raise ValueError(f"{value!r} has no value as {dtype}; use a floating-point dtype or another number")
        return converted
    value = float(value)
    if dtype is torch.float32 and abs(value) > _FP32_MAX:
        return fold_cast(value, dtype) or value
    return value


def _to(operand: Expression, dtype: torch.dtype) -> Expression:
    return method(operand, f"to({TRITON_DTYPES[dtype]})")


def _viewed(operand: Expression, dtype: torch.dtype) -> Expression:
    return method(operand, f"to({TRITON_DTYPES[dtype]}, bitcast=True)")


def cast(operand: Expression, src: torch.dtype, dst: torch.dtype) -> Expression:
    """Return an expression of dtype ``src`` converted to ``dst``, as ``.to(dst)`` does in eager mode.

    - Overflow: e4m3fn saturates at ±448, e5m2 becomes infinite; NaN stays. The ``fnuz`` types overflow as the
      hardware does.
    - Integers and fp64 go through fp32 on the way to a half type, so they are rounded twice, as in eager mode.
    - A float outside the range of an integer dtype has no defined value, but uint8 wraps around as in eager mode, up
      to ±2^31.
    """
    if src is dst:
        return operand
    if dst is torch.bool:
        return _against_zero(operand, src, "!=")
    operand = atom(operand)
    single = torch.float32
    if src is not single and (
        (dst in _HALVES and not (src in _HALVES and src not in _FP8))
        or (src in _FP8 and dst not in (torch.float16, torch.bfloat16))
    ):
        operand, src = _to(operand, single), single
        if dst is single:
            return operand
    if dst is torch.uint8 and src.is_floating_point:
        return _to(_to(operand, torch.int32), dst)
    converted = _to(operand, dst)
    if dst is torch.float8_e5m2:
        # The conversion instruction saturates, at infinities too. 61440 lies halfway between the greatest finite
        # number, 57344, and 2^16, and is rounded up, to the even mantissa. 0x7C and 0xFC are the infinities.
        sides = Expression("0xFC"), Expression("0x7C")
        infinite = _to(call("tl.where", infix(operand, "<", _ZERO), *sides), torch.uint8)
        beyond = infix(call("tl.abs", operand), ">=", number_text(61440.0))
        return _viewed(call("tl.where", beyond, infinite, _viewed(converted, torch.uint8)), dst)
    return converted


def _against_zero(operand: Expression, src: torch.dtype, symbol: str) -> Expression:
    """Return an expression of a dtype other than bool, compared with zero."""
    operand = atom(operand)
    if src in _FP8:
        operand = _to(operand, torch.float32)
    return infix(operand, symbol, _ZERO if src.is_floating_point else _NULL)


def bitcast(operand: Expression, src: torch.dtype, dst: torch.dtype) -> Expression:
    """Return the bits of an expression of dtype ``src``, read as ``dst``, as ``.view(dst)`` does in eager mode.

    Raises:
        TypeError: the dtypes differ in size.
    """
    if src.itemsize != dst.itemsize:
        raise TypeError(
            f"cannot view {src} as {dst}: {src.itemsize} and {dst.itemsize} bytes; convert with .to(dtype), or view as "
            f"a dtype of {src.itemsize} bytes"
        )
    if src is dst:
        return operand
    if src is torch.bool:  # one bit in Triton, one byte in memory
        operand, src = _to(operand, torch.uint8), torch.uint8
        return operand if src is dst else bitcast(operand, src, dst)
    if dst is torch.bool:
        return infix(bitcast(operand, src, torch.uint8), "!=", _NULL)
    return _viewed(operand, dst)


_ZERO, _ONE, _MINUS_ONE = map(number_text, (0.0, 1.0, -1.0))
_NULL, _TRUE, _INFINITY = map(number_text, (0, True, math.inf))


# --- operands ---------------------------------------------------------------------------------------------------------

#: The name of a variable, or a number.
Operand = str | Scalar


@dataclass(frozen=True, kw_only=True, slots=True)
class _Arg:
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
            return _negative_zero(self.dtype)
        return call("tl.full", Expression("()"), self.expression, Expression(TRITON_DTYPES[self.dtype]))

    @property
    def _natural(self) -> bool:
        """True if Triton gives the bare literal this very dtype."""
        if isinstance(self.value, float):
            size = abs(self.value)
            if is_negative_zero(self.value):
                return False
            normal = size == 0 or not size < _FP32_TINY  # subnormal numbers become fp64; NaN is fp32
            return self.dtype is torch.float32 and normal
        if self.dtype is torch.bool:
            return True
        return self.dtype is torch.int32

    @property
    def bits(self) -> int:
        return 8 * self.dtype.itemsize


def _arg(
    operand: Operand, source: torch.dtype | None, common: torch.dtype, compute: torch.dtype, round_literals: bool
) -> _Arg:
    if not isinstance(operand, str):
        if round_literals and common in _HALVES:
            operand = _converted(operand, common)
        value = _converted(operand, compute)
        return _Arg(expression=number_text(value), dtype=compute, value=value)
    name = Expression(operand)
    if source is None:
        return _Arg(expression=name, dtype=compute, weak=True)
    if common is not compute and source is not common and source not in _NARROW:
        name = cast(name, source, common)  # eager mode rounds to the common dtype before it computes in fp32
        return _Arg(expression=atom(cast(name, common, compute)), dtype=compute, source=source)
    return _Arg(expression=atom(cast(name, source, compute)), dtype=compute, source=source)


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


def _itself(a: _Arg) -> Expression:
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


def _div(a: _Arg, b: _Arg) -> Expression:
    sources = [arg.source for arg in (a, b) if arg.source is not None]
    if sources and not any(source.is_floating_point for source in sources):
        return _exact_div(a.typed, b.typed, a.dtype)  # so that quotients of multiples are whole numbers
    if isinstance(b.value, float) and math.isfinite(b.value) and math.frexp(abs(b.value))[0] == 0.5:
        inverse = 1.0 / b.value
        if _FP32_TINY <= abs(inverse) <= _FP32_MAX:
            return infix(a.bare, "*", number_text(inverse))  # the same number, without the division
    return infix(a.bare, "/", b.bare)


def _signs_differ(a: _Arg, b: _Arg) -> Expression:
    for known, other in ((b, a), (a, b)):
        if known.value is not None:
            return infix(other.bare, ">=" if known.value < 0 else "<", _NULL)
    return infix(infix(a.bare, "<", _NULL), "!=", infix(b.bare, "<", _NULL))


def _inexact_down(rest: Expression, a: _Arg, b: _Arg) -> Expression:
    """Return whether the quotient, rounded toward zero, exceeds its floor. ``rest`` is the result of C's ``%``."""
    if b.value is not None:
        return infix(rest, "<" if b.value > 0 else ">", _NULL)
    return infix(infix(rest, "!=", _NULL), "&", _signs_differ(a, b))


def _is_power_of_two(value: Scalar | None) -> bool:
    return isinstance(value, int) and value > 0 and value & (value - 1) == 0


def _unsigned(dtype: torch.dtype) -> bool:
    return not dtype.is_signed


def _floordiv_int(a: _Arg, b: _Arg) -> Expression:
    if _is_power_of_two(b.value):
        return infix(a.bare, ">>", number_text(int(b.value or 1).bit_length() - 1))
    quotient = infix(a.bare, "//", b.bare)
    if _unsigned(a.dtype):
        return quotient
    return infix(quotient, "-", _to(_inexact_down(infix(a.bare, "%", b.bare), a, b), a.dtype))


def _remainder_int(a: _Arg, b: _Arg) -> Expression:
    if _is_power_of_two(b.value):
        return infix(a.bare, "&", number_text(int(b.value or 1) - 1))
    rest = infix(a.bare, "%", b.bare)
    if _unsigned(a.dtype):
        return rest
    return infix(rest, "+", infix(_to(_inexact_down(rest, a, b), a.dtype), "*", b.bare))


def _floordiv_float(a: _Arg, b: _Arg) -> Expression:
    # The quotient of the multiple of b below a is a whole number up to rounding errors; floor(a / b) is not the same,
    # as a / b may be rounded up to a whole number.
    rest = libdevice("fmod", a.typed, b.typed)
    single = a.dtype is torch.float32
    multiple = _exact_div(infix(a.bare, "-", rest), b.typed if single else b.bare, a.dtype)
    floor = libdevice("nearbyint", infix(multiple, "-", _to(_inexact_down(rest, a, b), a.dtype)))
    if b.value:
        return floor
    quotient = infix(a.bare, "/", b.bare)
    return quotient if b.value is not None else call("tl.where", infix(b.bare, "==", _NULL), quotient, floor)


def _remainder_float(a: _Arg, b: _Arg) -> Expression:
    rest = libdevice("fmod", a.typed, b.typed)
    return call("tl.where", _inexact_down(rest, a, b), infix(rest, "+", b.bare), rest)


def _truncdiv_float(a: _Arg, b: _Arg) -> Expression:
    return libdevice("trunc", _exact_div(a.typed, b.typed, a.dtype))


def _relu(a: _Arg) -> Expression:
    return call("tl.maximum", a.typed, _ZERO, keywords=("propagate_nan=tl.PropagateNan.ALL",))


def _sqrt(a: _Arg) -> Expression:
    return call("tl.sqrt_rn" if a.dtype is torch.float32 else "tl.sqrt", a.typed)


def _rsqrt(a: _Arg) -> Expression:
    # In fp64 the instruction of tl.rsqrt is an approximation with far fewer than 53 bits.
    single = a.dtype is torch.float32
    return call("tl.rsqrt", a.typed) if single else infix(_ONE, "/", call("tl.sqrt", a.typed))


def _exp(a: _Arg) -> Expression:
    # tl.exp keeps subnormal results with three more instructions, half of the others in a row of a softmax
    return call("tl.exp", a.typed) if a.dtype is torch.float64 else _power_of_e(a, 1)


def _power_of_e(a: _Arg, sign: int) -> Expression:
    return call("tl.exp2", infix(a.bare, "*", number_text(sign * _LOG2_E)))


def _log1p_unit(a: _Arg) -> Expression:
    return libdevice("log1p", a.typed) if a.dtype is torch.float64 else helper("_log1p_unit", a.typed)


def _tanh(a: _Arg) -> Expression:
    if a.dtype is torch.float64:
        return libdevice("tanh", a.typed)
    return call("_tanh", a.typed, needs=frozenset(("_tanh", LIBDEVICE)))


def _sigmoid(a: _Arg) -> Expression:
    if a.dtype is torch.float64:
        return call("tl.sigmoid", a.typed)
    # the divisor is at least 1, so that the fast division is accurate; 5 instructions where tl.sigmoid takes 12
    return libdevice("fast_dividef", _ONE, infix(_ONE, "+", _power_of_e(a, -1)))


def _product(a: _Arg, count: int) -> Expression:
    """Return ``a * a * a`` with ``count`` factors."""
    return functools.reduce(lambda done, factor: infix(done, "*", factor), [a.bare] * count)


_FLOAT_POWERS: Mapping[float, _Form] = {
    -2.0: lambda a: infix(_ONE, "/", _product(a, 2)),
    -1.0: lambda a: infix(_ONE, "/", a.bare),
    -0.5: _rsqrt,
    0.5: _sqrt,
    1.0: _itself,
    2.0: lambda a: _product(a, 2),
    3.0: lambda a: _product(a, 3),
}


def _pow_float(a: _Arg, b: _Arg) -> Expression:
    power = _FLOAT_POWERS.get(float(b.value)) if b.value is not None and a.value is None else None
    return power(a) if power is not None else libdevice("pow", a.typed, b.typed)


def _pow_int(a: _Arg, b: _Arg) -> Expression:
    exponent = b.value
    if exponent is None:
        return helper("_integer_power", a.typed, b.typed, number_text(b.bits))
    if 1 <= exponent <= 4:
        return _product(a, int(exponent))
    return helper("_integer_power", a.typed, b.full, number_text(max(1, int(exponent).bit_length())))


def _pow_bool(a: _Arg, b: _Arg) -> Expression:
    # Eager mode takes this only with a number on one side.
    if b.value is not None:
        return a.bare if b.value else infix(a.bare, "|", _TRUE)
    return infix(b.bare, "|", _TRUE) if a.value else prefix("~", b.bare)


def _in_width(b: _Arg, width: int) -> Expression:
    """Return whether an amount that is known at run time is between 0 and ``width``."""
    below = infix(b.bare, "<", number_text(width))
    return below if _unsigned(b.dtype) else infix(infix(b.bare, ">=", _NULL), "&", below)


def _lshift(a: _Arg, b: _Arg) -> Expression:
    """Return a left shift; eager mode gives 0 for an amount that is negative or not below the width."""
    if b.value is not None:
        return infix(a.bare, "<<", b.bare) if 0 <= b.value < b.bits else infix(a.bare, "*", _NULL)
    return call("tl.where", _in_width(b, b.bits), infix(a.typed, "<<", b.bare), _NULL)


def _rshift(a: _Arg, b: _Arg) -> Expression:
    """Return a right shift; eager mode shifts out all bits for an amount that is negative or not below the width."""
    if _unsigned(a.dtype):
        if b.value is not None:
            return infix(a.bare, ">>", b.bare) if 0 <= b.value < b.bits else infix(a.bare, "*", _NULL)
        return call("tl.where", _in_width(b, b.bits), infix(a.typed, ">>", b.bare), _NULL)
    most = b.bits - 1
    if b.value is not None:
        return infix(a.bare, ">>", b.bare if 0 <= b.value < most else number_text(most))
    return infix(a.typed, ">>", call("tl.where", _in_width(b, most), b.bare, number_text(most)))


_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _comparison(symbol: str) -> _Row:
    def compare(a: _Arg, b: _Arg) -> Expression:
        swap = a.value is not None
        left, right = (b, a) if swap else (a, b)
        # A comparison gives a number its own dtype, fp32 or int32: too few digits for fp64, enough for any integer.
        other = right.typed if right.dtype is torch.float64 else right.bare
        return infix(left.bare, _MIRRORED[symbol] if swap else symbol, other)

    return _Row(floats=compare, ints=compare, bools=compare)


def _sign(a: _Arg) -> Expression:
    positive = _to(infix(a.bare, ">", _NULL), a.dtype)
    if _unsigned(a.dtype):
        return positive
    return infix(positive, "-", _to(infix(a.bare, "<", _NULL), a.dtype))


_TABLE: Mapping[str, _Row] = {
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
    "neg": _Row(floats=lambda a: infix(a.bare, "*", _MINUS_ONE), ints=lambda a: prefix("-", a.bare), native=True),
    "abs": _Row(floats=_function("tl.abs"), ints=_function("tl.abs"), native=True),
    "sign": _same(_sign, _itself),
    "relu": _Row(floats=_relu, ints=lambda a: call("tl.where", infix(a.typed, ">", _NULL), a.typed, _NULL)),
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
    "reciprocal": _floats(lambda a: infix(_ONE, "/", a.bare)),
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
        floats=lambda a: infix(call("tl.abs", a.typed), "==", _INFINITY),
        ints=_against_itself("!="),
        bools=_against_itself("!="),
    ),
    "isfinite": _Row(
        floats=lambda a: infix(call("tl.abs", a.typed), "<", _INFINITY),
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


# --- ops whose operands keep their own dtypes -------------------------------------------------------------------------

_Dtypes = Sequence[torch.dtype | None]


def _given(operand: Operand, source: torch.dtype | None, dtype: torch.dtype) -> _Arg:
    return _arg(operand, source, dtype, dtype, True)


def _truth(operand: Operand, dtype: torch.dtype | None) -> Expression:
    if not isinstance(operand, str):
        return number_text(bool(operand))
    if dtype is None:
        return infix(call("tl.cast", Expression(operand), keywords=("tl.float32",)), "!=", _ZERO)
    return cast(Expression(operand), dtype, torch.bool)


def _logical(symbol: str) -> Callable[[Sequence[Operand], _Dtypes, torch.dtype], Expression]:
    def render_logical(operands: Sequence[Operand], dtypes: _Dtypes, result: torch.dtype) -> Expression:
        first, second = map(_truth, operands, dtypes)
        return infix(first, symbol, second)

    return render_logical


def _logical_not(operands: Sequence[Operand], dtypes: _Dtypes, result: torch.dtype) -> Expression:
    dtype, (operand,) = dtypes[0], operands
    if isinstance(operand, str) and dtype is not None and dtype is not torch.bool:
        return _against_zero(Expression(operand), dtype, "==")
    return prefix("~", _given(operand, dtype, torch.bool).typed)


def _signbit(operands: Sequence[Operand], dtypes: _Dtypes, result: torch.dtype) -> Expression:
    dtype = dtypes[0] or torch.float32
    operand = _given(operands[0], dtypes[0], dtype).typed
    if not dtype.is_floating_point:
        return infix(operand, "<", _NULL)
    # The comparison x < 0 would not see the sign of a zero or a NaN.
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    return infix(bitcast(operand, dtype, integer), "<", _NULL)


def _where(operands: Sequence[Operand], dtypes: _Dtypes, result: torch.dtype) -> Expression:
    condition = _truth(operands[0], dtypes[0])
    values = [_given(operand, dtype, result) for operand, dtype in zip(operands[1:], dtypes[1:], strict=True)]
    chosen = [value.bare for value in values]
    if result in _FP8:  # Triton has no fp8 constants
        chosen = [
            v.expression if v.source is not None else cast(replace(v, dtype=torch.float32).full, torch.float32, result)
            for v in values
        ]
    elif all(value.value is not None for value in values):
        chosen[0] = values[0].typed
    return call("tl.where", condition, *chosen)


def _cast(operands: Sequence[Operand], dtypes: _Dtypes, result: torch.dtype) -> Expression:
    (operand,), (dtype,) = operands, dtypes
    if dtype is None or not isinstance(operand, str):
        return _given(operand, None, result).typed
    return cast(Expression(operand), dtype, result)


def _bitcast(operands: Sequence[Operand], dtypes: _Dtypes, result: torch.dtype) -> Expression:
    (operand,), (dtype,) = operands, dtypes
    if dtype is None or not isinstance(operand, str):
        number = operand if isinstance(operand, str) else literal(operand)
        raise TypeError(f"the number {number} has no dtype to view as {result}; convert it to a dtype first")
    return bitcast(Expression(operand), dtype, result)


_OWN_DTYPES: Mapping[str, Callable[[Sequence[Operand], _Dtypes, torch.dtype], Expression]] = {
    "where": _where,
    "cast": _cast,
    "bitcast": _bitcast,
    "signbit": _signbit,
    "logical_and": _logical("&"),
    "logical_or": _logical("|"),
    "logical_xor": _logical("^"),
    "logical_not": _logical_not,
}

# With a half tensor and a Python number, eager mode on a GPU computes these with the number in fp32; for other ops it
# rounds the number to the half type first.
_KEEP_DIGITS = frozenset(("add", "sub", "mul", "div", "floordiv", "truncdiv"))
#: Ops whose result is zero or one of their operands, which needs no rounding.
_SELECTS = frozenset(("maximum", "minimum", "fmax", "fmin", "relu"))


def render(
    name: str,
    operands: Sequence[Operand],
    operand_dtypes: _Dtypes,
    result_dtype: torch.dtype,
    *,
    common_dtype: torch.dtype | None = None,
) -> Expression:
    """Return op ``name`` as one Triton expression with the value it has in eager PyTorch.

    Args:
        name: a key of :data:`helion._compiler.ir.pointwise.POINTWISE`.
        operands: names of variables, or numbers; names may be repeated in the result.
        operand_dtypes: the dtype of each operand; None for a Python number. Also None for the name of a scalar
            kernel argument with one, which does not take part in promotion like a tensor.
        result_dtype: of the op, as :func:`helion._compiler.ir.pointwise.result_dtype` gives it.
        common_dtype: the dtype in which a comparison compares. Needed only where it does not follow from
            `operand_dtypes`: an operand without dimensions, or the name of a Python number.

    Returns:
        An expression of dtype `result_dtype`. It may need libdevice and :data:`HELPERS`.

    Raises:
        KeyError: there is no op of that name.
        TypeError: the op does not exist for these dtypes.
    """
    special = _OWN_DTYPES.get(name)
    if special is not None:
        return special(operands, operand_dtypes, result_dtype)
    computed, dtype = _computed(name, operands, operand_dtypes, result_dtype, common_dtype)
    return cast(computed, dtype, result_dtype)


def computes_in_fp32(name: str) -> bool:
    """Return whether the op converts operands of half types to fp32, and rounds its result if that is of one."""
    return name in _TABLE and not _TABLE[name].native


def render_rounded(name: str, operands: Sequence[Operand], operand_dtypes: _Dtypes) -> Expression:
    """Return op ``name``, whose result is of bf16, as an expression of dtype fp32 that has the same value.

    Args:
        name: of an op that rounds its result or, of operands of bf16 and numbers, ``where``, ``neg`` or ``abs``.
        operands: as for :func:`render`. Names of operands of bf16 may be those of variables of fp32.
        operand_dtypes: as for :func:`render`.
    """
    if name == "where":
        taken = [o if isinstance(o, str) else _converted(o, torch.bfloat16) for o in operands]
        return _where([operands[0], *taken[1:]], operand_dtypes, torch.float32)
    if name == "cast":
        return helper(ROUND_TO_BF16, Expression(str(operands[0])))
    if not computes_in_fp32(name):
        form = _TABLE[name].floats
        assert form is not None
        return form(*(_given(o, d, torch.float32) for o, d in zip(operands, operand_dtypes, strict=True)))
    computed, _ = _computed(name, operands, operand_dtypes, torch.bfloat16, None)
    numbers = all(d is torch.bfloat16 or not isinstance(o, str) for o, d in zip(operands, operand_dtypes, strict=True))
    return computed if name in _SELECTS and numbers else helper(ROUND_TO_BF16, computed)


def _computed(
    name: str,
    operands: Sequence[Operand],
    operand_dtypes: _Dtypes,
    result_dtype: torch.dtype,
    common_dtype: torch.dtype | None,
) -> tuple[Expression, torch.dtype]:
    """Return the result of an op of the table, and the dtype in which it is computed."""
    if name not in _TABLE:
        raise KeyError(f"no Triton form of pointwise operation {name!r}; add a row to {__name__}._TABLE")
    row = _TABLE[name]
    predicate = POINTWISE[name].result == "bool"
    if not predicate:
        common_dtype = result_dtype
    elif common_dtype is None:
        common_dtype = _comparison_dtype(name, operands, operand_dtypes)
    compute = torch.float32 if common_dtype in _HALVES and not row.native else common_dtype
    form = row.floats if compute.is_floating_point else row.bools if compute is torch.bool else row.ints
    if form is None:
        raise TypeError(f"pointwise operation {name!r} does not exist for {compute}; convert the operands first")
    round_literals = name not in _KEEP_DIGITS
    args = [
        _arg(operand, dtype, common_dtype, compute, round_literals)
        for operand, dtype in zip(operands, operand_dtypes, strict=True)
    ]
    if all(arg.value is not None for arg in args):  # two numbers would be Python's to compute
        args[0] = replace(args[0], expression=args[0].full, value=None)
    return form(*args), torch.bool if predicate else compute


def _comparison_dtype(name: str, operands: Sequence[Operand], dtypes: _Dtypes) -> torch.dtype:
    kinds: list[tuple[torch.dtype, int] | Scalar] = []
    for operand, dtype in zip(operands, dtypes, strict=True):
        if dtype is not None:
            kinds.append((dtype, 1))
        elif not isinstance(operand, str):
            kinds.append(operand)
        else:
            raise TypeError(f"{name} of {operand!r}, a number of unknown kind: pass common_dtype")
    return promoted_dtype(name, kinds)
