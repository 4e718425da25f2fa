"""Derivatives of pointwise operations, one row each.

A row has one expression for each operand: its share of the gradient ``g`` of the result ``y``, in terms of the operands
``a``, ``b`` and ``c``. None: the derivative is zero wherever it exists. A row that is a text is the reason that there
is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

Row = tuple["str | None", ...] | str

_ZERO: Row = (None,)
_ZERO2: Row = (None, None)
_TIES = (
    "torch.where({a} == {b}, 0.5 * {g}, torch.where({a} %s {b}, 0.0, {g}))",
    "torch.where({a} == {b}, 0.5 * {g}, torch.where({b} %s {a}, 0.0, {g}))",
)

POINTWISE: Mapping[str, Row] = {
    "add": ("{g}", "{g}"),
    "sub": ("{g}", "-{g}"),
    "mul": ("{g} * {b}", "{g} * {a}"),
    "div": ("{g} / {b}", "-{g} * {y} / {b}"),
    "floordiv": _ZERO2,
    "truncdiv": _ZERO2,
    "remainder": ("{g}", "-{g} * ({a} // {b})"),
    "fmod": ("{g}", "-{g} * torch.trunc({a} / {b})"),
    "pow": (
        "torch.where({b} == 0, 0.0, {g} * {b} * {a} ** ({b} - 1))",
        "torch.where(({a} == 0) & ({b} >= 0), 0.0, {g} * {y} * torch.log({a}))",
    ),
    "neg": ("-{g}",),
    "abs": ("{g} * torch.sign({a})",),
    "sign": _ZERO,
    "relu": ("torch.where({a} <= 0, 0.0, {g})",),
    "maximum": tuple(each % "<" for each in _TIES),
    "minimum": tuple(each % ">" for each in _TIES),
    # the gradient goes to the other operand only where that is greater (less), or where this one is nan
    "fmax": ("torch.where(({a} >= {b}) | torch.isnan({b}), {g}, 0.0)", "torch.where(({a} >= {b}) | torch.isnan({b}), 0.0, {g})"),
    "fmin": ("torch.where(({a} <= {b}) | torch.isnan({b}), {g}, 0.0)", "torch.where(({a} <= {b}) | torch.isnan({b}), 0.0, {g})"),
    "floor": _ZERO,
    "ceil": _ZERO,
    "round": _ZERO,
    "trunc": _ZERO,
    "frac": ("{g}",),
    "copysign": ("{g} * torch.where({a} == 0, 0.0, {y} / {a})", None),
    "reciprocal": ("-{g} * {y} * {y}",),
    "sqrt": ("{g} / (2.0 * {y})",),
    "rsqrt": ("-0.5 * {g} * {y} * {y} * {y}",),
    "exp": ("{g} * {y}",),
    "exp2": (f"{{g}} * {{y}} * {math.log(2.0)!r}",),
    "expm1": ("{g} * ({y} + 1.0)",),
    "log": ("{g} / {a}",),
    "log2": (f"{{g}} / ({{a}} * {math.log(2.0)!r})",),
    "log10": (f"{{g}} / ({{a}} * {math.log(10.0)!r})",),
    "log1p": ("{g} / ({a} + 1.0)",),
    "log1p_unit": ("{g} / ({a} + 1.0)",),
    "sin": ("{g} * torch.cos({a})",),
    "cos": ("-{g} * torch.sin({a})",),
    "tan": ("{g} * ({y} * {y} + 1.0)",),
    "asin": ("{g} * torch.rsqrt(1.0 - {a} * {a})",),
    "acos": ("-{g} * torch.rsqrt(1.0 - {a} * {a})",),
    "atan": ("{g} / ({a} * {a} + 1.0)",),
    "atan2": (
        "torch.where({a} * {a} + {b} * {b} == 0, 0.0, {g} * {b} / ({a} * {a} + {b} * {b}))",
        "torch.where({a} * {a} + {b} * {b} == 0, 0.0, -{g} * {a} / ({a} * {a} + {b} * {b}))",
    ),
    "sinh": ("{g} * torch.cosh({a})",),
    "cosh": ("{g} * torch.sinh({a})",),
    "tanh": ("{g} * (1.0 - {y} * {y})",),
    "asinh": ("{g} * torch.rsqrt({a} * {a} + 1.0)",),
    "acosh": ("{g} * torch.rsqrt(({a} - 1.0) * ({a} + 1.0) + 0.0)",),
    "atanh": ("{g} / (1.0 - {a} * {a})",),
    "sigmoid": ("{g} * {y} * (1.0 - {y})",),
    "erf": (f"{{g}} * {2.0 / math.sqrt(math.pi)!r} * torch.exp(-{{a}} * {{a}})",),
    "erfc": (f"-{{g}} * {2.0 / math.sqrt(math.pi)!r} * torch.exp(-{{a}} * {{a}})",),
    "erfinv": (f"{{g}} * {math.sqrt(math.pi) / 2.0!r} * torch.exp({{y}} * {{y}})",),
    "lgamma": "its derivative, digamma, is not supported in device code",
    "i0": "its derivative, the Bessel function i1, is not supported in device code",
    "hypot": ("{g} * ({a} / {y})", "{g} * ({b} / {y})"),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), _ZERO2),
    **dict.fromkeys(("isnan", "isinf", "isfinite", "signbit", "logical_not", "bitwise_not"), _ZERO),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), _ZERO2),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "lshift", "rshift"), _ZERO2),
    "where": (None, "torch.where({a}, {g}, 0.0)", "torch.where({a}, 0.0, {g})"),
    "cast": ("{g}",),
    "bitcast": "the bits of a number have no derivative",
}  # fmt: skip


def share(name: str, at: int, operands: tuple[object, ...]) -> str | None:
    """Return the expression of a row for operand ``at``; ``operands`` are numbers if known at compile time, None for
    values.

    A constant bound follows ``clamp``: the gradient passes unchanged inside of the bound, ties included.
    """
    row = POINTWISE[name]
    assert not isinstance(row, str)
    other = operands[1 - at] if len(operands) == 2 else None
    if name in ("maximum", "minimum") and other is not None:
        inside = (">" if name == "maximum" else "<") + "="
        return (
            f"torch.where({{a}} {inside} {{b}}, {{g}}, 0.0)"
            if at == 0
            else f"torch.where({{b}} {inside} {{a}}, {{g}}, 0.0)"
        )
    if name == "pow" and other is not None:
        return _power(other) if at == 0 else _exponential(other)
    return row[at]


def _exponential(base: object) -> str:
    """Return the derivative of a power by its exponent, for a base that is a number."""
    if not isinstance(base, (int, float)):
        log = "torch.log(hl.full([], {a}, dtype={t}))"
        return f"torch.where(({{a}} == 0) & ({{b}} >= 0), 0.0, {{g}} * {{y}} * {log})"
    if base > 0:
        return f"{{g}} * {{y}} * {math.log(base)!r}"
    log = 'float("-inf")' if base == 0 else 'float("nan")'
    return f"torch.where({{b}} >= 0, 0.0, {{g}} * {{y}} * {log})" if base == 0 else f"{{g}} * {{y}} * {log}"


def _power(exponent: object) -> str | None:
    """Return the derivative of a power by its base."""
    if not isinstance(exponent, (int, float)):
        return "{g} * ({b} * {a} ** ({b} - 1))"
    special = {0: None, 1: "{g}", 2: "{g} * 2.0 * {a}", 3: "{g} * 3.0 * {a} * {a}"}
    if exponent in special:
        return special[exponent]  # type: ignore[index]
    return (
        f"{{g}} * {exponent!r} * {{a}} ** {exponent - 1!r}"
        if exponent > 1
        else (f"{{g}} * {exponent!r} * {{a}} ** ({exponent - 1!r})")
    )
