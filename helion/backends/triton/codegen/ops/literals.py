"""Dtypes, literals, conversions and helper functions of generated Triton code."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from ....._compiler.ir.pointwise import Scalar, fold_cast
from ..expressions import Expression, atom, call, in_parentheses, infix, method
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
LOG2_E = math.log2(math.e)

#: ``rest`` of x by the divisor's size, not negative, and the ``quotient`` of ``natural``, which is one too small unless
#: ``less < 0``: natural * (2**63 - 1 - size * reciprocal) < size * 2**63. A size of 2**63 is negative, and larger than all.
_LONG_DIVISION = """\
    size = tl.abs(divisor)
    reciprocal = 9223372036854775807 // tl.where(size == 0, 1, size)
    sign = x >> 63
    natural = x ^ sign
    quotient = tl.umulhi(natural << 1, tl.full(x.shape, 0, tl.int64) + reciprocal)
    part = natural - quotient * size
    less = part - size
    rest = (tl.where(less < 0, part, less) ^ sign) + (size & sign)"""


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
    large = 1.0 - libdevice.fast_dividef(1.0, tl.exp2(size * {2 * LOG2_E!r}) * 0.5 + 0.5)
    square = x * x
    small = x * (square * {_horner(_TANH_SMALL, "square")} + 1.0)
    return tl.where(size < {_TANH_BOUND!r}, small, libdevice.copysign(large, x))
''',
    "_difference": """\
@triton.jit
def _difference(x, y):
    \"\"\"x - y, of which neither is a product that takes an FMA.\"\"\"
    return libdevice.sub_rn(x, y)
""",
    "_long_floordiv": f"""\
@triton.jit
def _long_floordiv(x, divisor):
    \"\"\"x // divisor of int64 and an int64 scalar, rounded down.\"\"\"
{_LONG_DIVISION}
    quotient = tl.where(less < 0, quotient, quotient + 1) ^ sign
    return tl.where(divisor < 0, -quotient - (rest != 0).to(tl.int64), quotient)
""",
    "_long_remainder": f"""\
@triton.jit
def _long_remainder(x, divisor):
    \"\"\"x % divisor of int64 and an int64 scalar, with the sign of the divisor.\"\"\"
{_LONG_DIVISION}
    return tl.where((rest != 0) & (divisor < 0), rest + divisor, rest)
""",
    "_summed_log": """\
@triton.jit
def _summed_log(x):
    \"\"\"log(x) by one instruction, which takes no subnormal numbers.\"\"\"
    subnormal = x < 1.1754943508222875e-38
    scaled = tl.where(subnormal, x * 16777216.0, x)
    return libdevice.fast_logf(scaled) + tl.where(subnormal, -16.635532333438686, 0.0)
""",
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

HALVES = frozenset(dtype for dtype, _, _ in _DTYPES if dtype.is_floating_point and dtype.itemsize <= 2)
FP8 = frozenset(dtype for dtype in HALVES if dtype.itemsize == 1)
FP32_MAX = torch.finfo(torch.float32).max
FP32_TINY = torch.finfo(torch.float32).tiny
# Every value of these is a value of each half type other than fp8, so that converting them is exact.
NARROW = (torch.bool, torch.int8, torch.uint8)


def literal(value: Scalar, dtype: torch.dtype | None = None) -> str:
    """Return ``value`` as source text; with ``dtype``, first converted to it as PyTorch converts a number to a dtype.

    Integers wrap around, numbers are rounded to half types, and fp32 keeps the digits it was given (Triton rounds
    them). Infinities and NaN are printed as ``float('inf')``, and ``-0.0``, of which Triton drops the sign, as a
    product.

    Raises:
        ValueError: the conversion is not defined, as that of an infinity to an integer dtype.
    """
    value = value if dtype is None else converted_number(value, dtype)
    if is_negative_zero(value):
        return in_parentheses(negative_zero(torch.float32 if dtype is None else dtype)).text
    return number_text(value).text


def is_negative_zero(value: Scalar | None) -> bool:
    """Return whether ``value`` is -0.0, of which Triton drops the sign."""
    return isinstance(value, float) and value == 0 and math.copysign(1.0, value) < 0


def negative_zero(dtype: torch.dtype) -> Expression:
    """Return ``-0.0`` as an expression of ``dtype``: Triton makes +0.0 of every constant that equals zero."""
    zero = call("tl.full", Expression("()"), ZERO, Expression(TRITON_DTYPES[dtype]))
    return infix(zero, "*", MINUS_ONE)


def converted_number(value: Scalar, dtype: torch.dtype) -> Scalar:
    if dtype in HALVES or not dtype.is_floating_point:
        converted = fold_cast(value, dtype)
        if converted is None:
            raise ValueError(f"{value!r} has no value as {dtype}; use a floating-point dtype or another number")
        return converted
    value = float(value)
    if dtype is torch.float32 and abs(value) > FP32_MAX:
        return fold_cast(value, dtype) or value
    return value


def to_dtype(operand: Expression, dtype: torch.dtype) -> Expression:
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
        return against_zero(operand, src, "!=")
    operand = atom(operand)
    single = torch.float32
    if src is not single and (
        (dst in HALVES and not (src in HALVES and src not in FP8))
        or (src in FP8 and dst not in (torch.float16, torch.bfloat16))
    ):
        operand, src = to_dtype(operand, single), single
        if dst is single:
            return operand
    if dst is torch.uint8 and src.is_floating_point:
        return to_dtype(to_dtype(operand, torch.int32), dst)
    converted = to_dtype(operand, dst)
    if dst is torch.float8_e5m2:
        # The conversion instruction saturates, at infinities too. 61440 lies halfway between the greatest finite
        # number, 57344, and 2^16, and is rounded up, to the even mantissa. 0x7C and 0xFC are the infinities.
        sides = Expression("0xFC"), Expression("0x7C")
        infinite = to_dtype(call("tl.where", infix(operand, "<", ZERO), *sides), torch.uint8)
        beyond = infix(call("tl.abs", operand), ">=", number_text(61440.0))
        return _viewed(call("tl.where", beyond, infinite, _viewed(converted, torch.uint8)), dst)
    return converted


def against_zero(operand: Expression, src: torch.dtype, symbol: str) -> Expression:
    """Return an expression of a dtype other than bool, compared with zero."""
    operand = atom(operand)
    if src in FP8:
        operand = to_dtype(operand, torch.float32)
    return infix(operand, symbol, ZERO if src.is_floating_point else NULL)


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
        operand, src = to_dtype(operand, torch.uint8), torch.uint8
        return operand if src is dst else bitcast(operand, src, dst)
    if dst is torch.bool:
        return infix(bitcast(operand, src, torch.uint8), "!=", NULL)
    return _viewed(operand, dst)


ZERO, ONE, MINUS_ONE = map(number_text, (0.0, 1.0, -1.0))
NULL, TRUE, INFINITY = map(number_text, (0, True, math.inf))
