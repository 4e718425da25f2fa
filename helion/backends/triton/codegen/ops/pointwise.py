"""Pointwise operations as Triton expressions, with the results of eager PyTorch.

One row of :data:`forms.TABLE` per op of :data:`helion._compiler.ir.pointwise.POINTWISE`. A row holds up to three forms, by
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
  attention evaluate it once per element and with x <= 0, where the absolute error stays below 2^-22;
- ``log`` of 16-bit elements in sums (``lower/summed_logs.py``): to base 2, an absolute error of 2^-22 near 1, and a
  relative one of 2^-22 elsewhere.

``exp``, ``exp2``, ``sigmoid``, ``rsqrt``, ``floor``, ``ceil`` and the functions of libdevice flush subnormal numbers to
zero. ``floordiv`` of floats may lose the sign of a zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from ....._compiler.ir.pointwise import POINTWISE, Scalar
from ....._compiler.ir.pointwise import common_dtype as promoted_dtype
from ..expressions import Expression, call, helper, infix, prefix
from ..expressions import number as number_text
from .forms import TABLE, Arg, Operand, make_arg
from .literals import FP8, HALVES, NULL, ROUND_TO_BF16, ZERO, against_zero, bitcast, cast, converted_number, literal

# --- ops whose operands keep their own dtypes -------------------------------------------------------------------------

_Dtypes = Sequence[torch.dtype | None]


def _given(operand: Operand, source: torch.dtype | None, dtype: torch.dtype) -> Arg:
    return make_arg(operand, source, dtype, dtype, True)


def _truth(operand: Operand, dtype: torch.dtype | None) -> Expression:
    if not isinstance(operand, str):
        return number_text(bool(operand))
    if dtype is None:
        return infix(call("tl.cast", Expression(operand), keywords=("tl.float32",)), "!=", ZERO)
    return cast(Expression(operand), dtype, torch.bool)


def _logical(symbol: str) -> Callable[[Sequence[Operand], _Dtypes, torch.dtype], Expression]:
    def render_logical(operands: Sequence[Operand], dtypes: _Dtypes, result: torch.dtype) -> Expression:
        first, second = map(_truth, operands, dtypes)
        return infix(first, symbol, second)

    return render_logical


def _logical_not(operands: Sequence[Operand], dtypes: _Dtypes, result: torch.dtype) -> Expression:
    dtype, (operand,) = dtypes[0], operands
    if isinstance(operand, str) and dtype is not None and dtype is not torch.bool:
        return against_zero(Expression(operand), dtype, "==")
    return prefix("~", _given(operand, dtype, torch.bool).typed)


def _signbit(operands: Sequence[Operand], dtypes: _Dtypes, result: torch.dtype) -> Expression:
    dtype = dtypes[0] or torch.float32
    operand = _given(operands[0], dtypes[0], dtype).typed
    if not dtype.is_floating_point:
        return infix(operand, "<", NULL)
    # The comparison x < 0 would not see the sign of a zero or a NaN.
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    return infix(bitcast(operand, dtype, integer), "<", NULL)


def _where(operands: Sequence[Operand], dtypes: _Dtypes, result: torch.dtype) -> Expression:
    condition = _truth(operands[0], dtypes[0])
    values = [_given(operand, dtype, result) for operand, dtype in zip(operands[1:], dtypes[1:], strict=True)]
    chosen = [value.bare for value in values]
    if result in FP8:  # Triton has no fp8 constants
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
    return name in TABLE and not TABLE[name].native


def render_rounded(name: str, operands: Sequence[Operand], operand_dtypes: _Dtypes) -> Expression:
    """Return op ``name``, whose result is of bf16, as an expression of dtype fp32 that has the same value.

    Args:
        name: of an op that rounds its result or, of operands of bf16 and numbers, ``where``, ``neg`` or ``abs``.
        operands: as for :func:`render`. Names of operands of bf16 may be those of variables of fp32.
        operand_dtypes: as for :func:`render`.
    """
    if name == "where":
        taken = [o if isinstance(o, str) else converted_number(o, torch.bfloat16) for o in operands]
        return _where([operands[0], *taken[1:]], operand_dtypes, torch.float32)
    if name == "cast":
        return helper(ROUND_TO_BF16, Expression(str(operands[0])))
    if not computes_in_fp32(name):
        form = TABLE[name].floats
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
    if name not in TABLE:
        raise KeyError(f"no Triton form of pointwise operation {name!r}; add a row to {__name__}._TABLE")
    row = TABLE[name]
    predicate = POINTWISE[name].result == "bool"
    if not predicate:
        common_dtype = result_dtype
    elif common_dtype is None:
        common_dtype = _comparison_dtype(name, operands, operand_dtypes)
    compute = torch.float32 if common_dtype in HALVES and not row.native else common_dtype
    form = row.floats if compute.is_floating_point else row.bools if compute is torch.bool else row.ints
    if form is None:
        raise TypeError(f"pointwise operation {name!r} does not exist for {compute}; convert the operands first")
    round_literals = name not in _KEEP_DIGITS
    args = [
        make_arg(operand, dtype, common_dtype, compute, round_literals)
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
