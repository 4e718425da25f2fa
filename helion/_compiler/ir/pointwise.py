"""Pointwise operations: names, dtype rules, constant folding and rough cost. Names no backend.

A new operation is one row of :data:`POINTWISE``, its derivative in ``autodiff/pointwise.py``, one row in the table of
each backend that has it, and a test.

The eager PyTorch function in a row defines the operation. Dtypes, refusals and folded constants come from running it on
one-element CPU tensors. They are PyTorch's own, including error messages.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F

from ..._support.records import dataclass

Scalar = bool | int | float
Operand = tuple[torch.dtype, int] | Scalar | type
"""Operand of a dtype rule: ``(dtype, ndim)`` of a value, a Python scalar, or the type of a Python scalar with unknown
value (``int``, ``float``, ``bool``)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PointwiseOp:
    """One row of :data:`POINTWISE`.

    Attributes:
        name: as in IR dumps and in the tables of the backends. Operands come in the order of the PyTorch function.
        arity: least and greatest number of operands.
        result: the dtype rule. ``same``: PyTorch's promotion of the operands; ``float``: the promotion, with integers
            and bools becoming the default float dtype; ``bool``; ``given``: named by the op (``cast``, ``bitcast``).
        cost: ``sfu`` needs the special function unit (transcendental functions, reciprocals, roots, divisions) or a
            sequence of comparable length; ``alu`` is anything cheaper.
        eager: the PyTorch function that defines the op. Takes tensors and Python scalars; None for ``given``.
        fold: the value on constants: Python scalars in, a Python scalar out. Evaluated in fp64, int64 or bool by the
            eager function. None (the result) where the op has no value there, such as an integer division by zero.
            None (the attribute) where constants do not determine the value.
        functions: the torch functions and Tensor methods that are the op: they take its operands and nothing else.
        call: the source text of a call, with operands by number; empty for that of ``torch.<name>``.
    """

    name: str
    arity: tuple[int, int]
    result: Literal["same", "float", "bool", "given"]
    cost: Literal["alu", "sfu"]
    eager: Callable[..., torch.Tensor] | None
    fold: Callable[..., Scalar | None] | None
    functions: tuple[Any, ...] = ()
    call: str = ""


@contextmanager
def _plain_eager() -> Iterator[None]:
    """Run eager functions as if no mode were active: fake tensors, ``torch.device`` contexts, autocast."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch._C._DisableAutocast():
        yield


_PYTHON_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64}


def _tensor(value: Scalar) -> torch.Tensor:
    return torch.tensor(value, dtype=_PYTHON_DTYPES[type(value)], device="cpu")


def _tensors(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return ``function`` of two tensors, extended to take a Python scalar for either: the scalar gets the promoted
    dtype."""

    @functools.wraps(function)
    def lifted(lhs: torch.Tensor | Scalar, rhs: torch.Tensor | Scalar) -> torch.Tensor:
        common = torch.result_type(lhs, rhs)
        return function(
            lhs if isinstance(lhs, torch.Tensor) else _tensor(lhs).to(common),
            rhs if isinstance(rhs, torch.Tensor) else _tensor(rhs).to(common),
        )

    return lifted


def _truncdiv(lhs: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
    return torch.div(lhs, rhs, rounding_mode="trunc")


def _fold(eager: Callable[..., torch.Tensor], *values: Scalar) -> Scalar | None:
    # By text, because 1, 1.0 and True, and 0.0 and -0.0, are equal and would share a cache entry.
    return _fold_texts(eager, values, tuple(map(repr, values)))


@functools.lru_cache(maxsize=4096)
def _fold_texts(
    eager: Callable[..., torch.Tensor], values: tuple[Scalar, ...], texts: tuple[str, ...]
) -> Scalar | None:
    try:
        with _plain_eager():
            return eager(*map(_tensor, values)).item()
    except RuntimeError:  # PyTorch has no result: integer division by zero, an integer beyond 64 bits
        return None


def fold_cast(value: Scalar, dtype: torch.dtype) -> Scalar | None:
    """Return ``value`` converted to ``dtype`` as PyTorch's ``.to(dtype)`` does: rounded, wrapped or saturated.

    None if the result is undefined (a NaN, an infinity or a number beyond 64 bits as an integer).
    """
    if dtype is torch.bool:
        return bool(value)
    if not dtype.is_floating_point:
        if isinstance(value, float) and not (math.isfinite(value) and abs(value) < 2.0**63):
            return None
        info = torch.iinfo(dtype)
        return (int(value) - info.min) % 2**info.bits + info.min
    try:
        return _rounded(repr(float(value)), dtype)
    except OverflowError:  # an integer beyond the range of fp64
        return None


@functools.lru_cache(maxsize=4096)
def _rounded(text: str, dtype: torch.dtype) -> Scalar:
    """Return a number, given by its ``repr``, rounded to a floating-point type."""
    with _plain_eager():
        return _tensor(float(text)).to(dtype).item()


def fold_typed(
    name: str, values: Sequence[Scalar], dtypes: Sequence[torch.dtype | None], result: torch.dtype
) -> Scalar | None:
    """Return op ``name`` of constants in their dtypes: int8 and int32 wrap, fp32 rounds.

    Args:
        dtypes: of the operands, None for a Python number, which takes the dtype that PyTorch promotes it to.
        result: the dtype of the op's result.

    None if PyTorch has no result, or one of another dtype.
    """
    # By text, because 1, 1.0 and True, and 0.0 and -0.0, are equal and would share a cache entry.
    return _fold_typed(name, tuple(values), tuple(map(repr, values)), tuple(dtypes), result)


@functools.lru_cache(maxsize=4096)
def _fold_typed(
    name: str,
    values: tuple[Scalar, ...],
    texts: tuple[str, ...],
    dtypes: tuple[torch.dtype | None, ...],
    result: torch.dtype,
) -> Scalar | None:
    eager = POINTWISE[name].eager
    if eager is None:
        return None
    try:
        with _plain_eager():
            operands = [
                value if dtype is None else _tensor(value).to(dtype).reshape(1)
                for value, dtype in zip(values, dtypes, strict=True)
            ]
            folded = eager(*operands)
            return folded.item() if folded.dtype == result else None
    except (RuntimeError, OverflowError, TypeError):  # integer division by zero, a number beyond its dtype
        return None


_Result = Literal["same", "float", "bool", "given"]


def named(name: str) -> list[Any]:
    """Return ``torch.name`` and ``torch.Tensor.name``, if they exist."""
    return [getattr(owner, name) for owner in (torch, torch.Tensor) if hasattr(owner, name)]


def _row(
    name: str,
    eager: Callable[..., torch.Tensor],
    arity: int,
    result: _Result,
    cost: Literal["alu", "sfu"],
    *,
    torch_name: bool = True,
    also: tuple[Any, ...] = (),
    call: str = "",
) -> PointwiseOp:
    """Return a row. Functions of its name are the op, else ``eager``, unless ``torch_name`` is off; ``also`` are others."""
    functions = (named(name) or [eager]) if torch_name else []
    return PointwiseOp(
        name=name,
        arity=(arity, arity),
        result=result,
        cost=cost,
        eager=eager,
        fold=functools.partial(_fold, eager),
        functions=(*functions, *also),
        call=call,
    )


_ROWS = (
    _row("add", operator.add, 2, "same", "alu", torch_name=False),
    _row("sub", operator.sub, 2, "same", "alu", torch_name=False),
    _row("mul", operator.mul, 2, "same", "alu", torch_name=False),
    _row("div", operator.truediv, 2, "float", "sfu", torch_name=False),
    _row("floordiv", operator.floordiv, 2, "same", "sfu", torch_name=False),
    _row(
        "truncdiv",
        _tensors(_truncdiv),
        2,
        "same",
        "sfu",
        torch_name=False,
        call='torch.div({0}, {1}, rounding_mode="trunc")',
    ),
    _row("remainder", operator.mod, 2, "same", "sfu", also=(torch.Tensor.__mod__,)),
    _row("fmod", _tensors(torch.fmod), 2, "same", "sfu"),
    _row("pow", operator.pow, 2, "same", "sfu", also=(torch.Tensor.__pow__,)),
    _row("neg", operator.neg, 1, "same", "alu", also=(torch.negative, torch.Tensor.__neg__, torch.Tensor.negative)),
    _row("abs", torch.abs, 1, "same", "alu", also=(torch.absolute, torch.Tensor.absolute, torch.Tensor.__abs__)),
    _row("sign", torch.sign, 1, "same", "alu"),
    _row("relu", torch.relu, 1, "same", "alu", also=(F.relu,)),
    _row("maximum", _tensors(torch.maximum), 2, "same", "alu"),
    _row("minimum", _tensors(torch.minimum), 2, "same", "alu"),
    _row("fmax", _tensors(torch.fmax), 2, "same", "alu"),
    _row("fmin", _tensors(torch.fmin), 2, "same", "alu"),
    _row("floor", torch.floor, 1, "same", "alu"),
    _row("ceil", torch.ceil, 1, "same", "alu"),
    _row("round", torch.round, 1, "same", "alu", torch_name=False),
    _row("trunc", torch.trunc, 1, "same", "alu", also=(torch.fix,)),
    _row("frac", torch.frac, 1, "same", "alu"),
    _row("copysign", _tensors(torch.copysign), 2, "float", "alu"),
    _row("reciprocal", torch.reciprocal, 1, "float", "sfu"),
    _row("sqrt", torch.sqrt, 1, "float", "sfu"),
    _row("rsqrt", torch.rsqrt, 1, "float", "sfu"),
    _row("exp", torch.exp, 1, "float", "sfu"),
    _row("exp2", torch.exp2, 1, "float", "sfu", also=(torch.special.exp2,)),
    _row("expm1", torch.expm1, 1, "float", "sfu", also=(torch.special.expm1,)),
    _row("log", torch.log, 1, "float", "sfu"),
    _row("log2", torch.log2, 1, "float", "sfu"),
    _row("log10", torch.log10, 1, "float", "sfu"),
    _row("log1p", torch.log1p, 1, "float", "sfu", also=(torch.special.log1p,)),
    # of operands from 0 to 1
    _row("log1p_unit", torch.log1p, 1, "float", "sfu", torch_name=False, call="torch.log1p({0})"),
    _row("sin", torch.sin, 1, "float", "sfu"),
    _row("cos", torch.cos, 1, "float", "sfu"),
    _row("tan", torch.tan, 1, "float", "sfu"),
    _row("asin", torch.asin, 1, "float", "sfu", also=(torch.arcsin,)),
    _row("acos", torch.acos, 1, "float", "sfu", also=(torch.arccos,)),
    _row("atan", torch.atan, 1, "float", "sfu", also=(torch.arctan,)),
    _row("atan2", _tensors(torch.atan2), 2, "float", "sfu", also=(torch.arctan2,)),
    _row("sinh", torch.sinh, 1, "float", "sfu"),
    _row("cosh", torch.cosh, 1, "float", "sfu"),
    _row("tanh", torch.tanh, 1, "float", "sfu", also=(F.tanh,)),
    _row("asinh", torch.asinh, 1, "float", "sfu", also=(torch.arcsinh,)),
    _row("acosh", torch.acosh, 1, "float", "sfu", also=(torch.arccosh,)),
    _row("atanh", torch.atanh, 1, "float", "sfu", also=(torch.arctanh,)),
    _row("sigmoid", torch.sigmoid, 1, "float", "sfu", also=(F.sigmoid, torch.special.expit)),
    _row("erf", torch.erf, 1, "float", "sfu", also=(torch.special.erf,)),
    _row("erfc", torch.erfc, 1, "float", "sfu", also=(torch.special.erfc,)),
    _row("erfinv", torch.erfinv, 1, "float", "sfu", also=(torch.special.erfinv,)),
    _row("lgamma", torch.lgamma, 1, "float", "sfu", also=(torch.special.gammaln,)),
    _row("i0", torch.special.i0, 1, "float", "sfu", also=(torch.special.i0,)),
    _row("hypot", _tensors(torch.hypot), 2, "same", "sfu"),
    _row("eq", operator.eq, 2, "bool", "alu"),
    _row("ne", operator.ne, 2, "bool", "alu", also=(torch.not_equal, torch.Tensor.not_equal)),
    _row("lt", operator.lt, 2, "bool", "alu", also=(torch.less, torch.Tensor.less)),
    _row("le", operator.le, 2, "bool", "alu", also=(torch.less_equal, torch.Tensor.less_equal)),
    _row("gt", operator.gt, 2, "bool", "alu", also=(torch.greater, torch.Tensor.greater)),
    _row("ge", operator.ge, 2, "bool", "alu", also=(torch.greater_equal, torch.Tensor.greater_equal)),
    _row("isnan", torch.isnan, 1, "bool", "alu"),
    _row("isinf", torch.isinf, 1, "bool", "alu"),
    _row("isfinite", torch.isfinite, 1, "bool", "alu"),
    _row("signbit", torch.signbit, 1, "bool", "alu"),
    _row("logical_and", _tensors(torch.logical_and), 2, "bool", "alu"),
    _row("logical_or", _tensors(torch.logical_or), 2, "bool", "alu"),
    _row("logical_xor", _tensors(torch.logical_xor), 2, "bool", "alu"),
    _row("logical_not", torch.logical_not, 1, "bool", "alu"),
    _row("bitwise_and", operator.and_, 2, "same", "alu", also=(torch.Tensor.__and__,)),
    _row("bitwise_or", operator.or_, 2, "same", "alu", also=(torch.Tensor.__or__,)),
    _row("bitwise_xor", operator.xor, 2, "same", "alu", also=(torch.Tensor.__xor__,)),
    _row("bitwise_not", torch.bitwise_not, 1, "same", "alu", also=(torch.Tensor.__invert__,)),
    _row(
        "lshift",
        torch.bitwise_left_shift,
        2,
        "same",
        "alu",
        torch_name=False,
        also=(torch.bitwise_left_shift, torch.Tensor.bitwise_left_shift, torch.Tensor.__lshift__),
    ),
    _row(
        "rshift",
        torch.bitwise_right_shift,
        2,
        "same",
        "alu",
        torch_name=False,
        also=(torch.bitwise_right_shift, torch.Tensor.bitwise_right_shift, torch.Tensor.__rshift__),
    ),
    _row("where", torch.where, 3, "same", "alu", torch_name=False),
    # The dtype of these two is part of the op; `fold_cast` is the value of a cast of a constant.
    PointwiseOp(name="cast", arity=(1, 1), result="given", cost="alu", eager=None, fold=None),
    PointwiseOp(name="bitcast", arity=(1, 1), result="given", cost="alu", eager=None, fold=None),
)

POINTWISE: Mapping[str, PointwiseOp] = {row.name: row for row in _ROWS}
"""All pointwise ops by name. The front end composes ``clamp`` from ``maximum`` and ``minimum``."""

_INVERSES = ("asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh", "erfinv")
_CURVES = ("pow", "expm1", "log1p", "erf", "erfc", "lgamma", "i0", "sin", "cos", "tan", "sinh", "cosh", "tanh")
POLYNOMIALS = frozenset((*_CURVES, *_INVERSES))
"""Ops that are piecewise polynomials: dozens of instructions with intermediate values."""


@functools.lru_cache(maxsize=256)
def _sample(dtype: torch.dtype, dimensioned: bool) -> torch.Tensor:
    """Return a one-element CPU tensor; for promotion only zero or more dimensions matters."""
    return torch.tensor([1.0] if dimensioned else 1.0, device="cpu").to(dtype)


def _key(operand: Operand) -> tuple[Any, ...]:
    if isinstance(operand, tuple):
        dtype, ndim = operand
        return (dtype, ndim > 0)
    if isinstance(operand, type):
        return (operand, operand(1))
    return (type(operand), operand)


def _operands_of(op: PointwiseOp, key: tuple[tuple[Any, ...], ...]) -> list[torch.Tensor | Scalar]:
    operands = [_sample(*k) if isinstance(k[0], torch.dtype) else k[1] for k in key]
    if not any(isinstance(o, torch.Tensor) for o in operands):
        # Only scalars: PyTorch treats a Python number as a tensor without dimensions.
        operands = [torch.tensor(o, device="cpu") for o in operands]
    return operands


@functools.lru_cache(maxsize=16384)
def _result_dtype(name: str, key: tuple[tuple[Any, ...], ...], default: torch.dtype) -> torch.dtype:
    op = POINTWISE[name]
    assert op.eager is not None
    with _plain_eager():
        return op.eager(*_operands_of(op, key)).dtype


@functools.lru_cache(maxsize=16384)
def _common_dtype(key: tuple[tuple[Any, ...], ...], default: torch.dtype) -> torch.dtype:
    with _plain_eager():
        operands: list[Any] = [_sample(*k) if isinstance(k[0], torch.dtype) else k[1] for k in key]
        return torch.result_type(operands[0], operands[-1])


def _check(name: str, operands: Sequence[Operand]) -> PointwiseOp:
    op = POINTWISE.get(name)
    if op is None:
        raise TypeError(f"there is no pointwise operation {name!r}; helion._compiler.ir.pointwise.POINTWISE lists them")
    least, most = op.arity
    if not least <= len(operands) <= most:
        raise TypeError(f"pointwise operation {name!r} takes {least} operand(s), got {len(operands)}")
    return op


def result_dtype(name: str, operands: Sequence[Operand]) -> torch.dtype:
    """Return the dtype that eager PyTorch gives the result of op ``name``.

    Args:
        name: a key of :data:`POINTWISE`` whose rule is not ``given``.
        operands: ``(dtype, ndim)` of a value, a Python scalar, or a Python scalar's type if the value is unknown.
            Values without dimensions and Python scalars promote as in PyTorch. If all operands are Python scalars they
            count as tensors without dimensions.

    Raises:
        TypeError: PyTorch refuses these operands (the message is PyTorch's), or the op or the number of operands is
            wrong.
    """
    op = _check(name, operands)
    if op.eager is None:
        raise TypeError(f"the result dtype of {name!r} does not follow from its operands; it is part of the operation")
    try:
        return _result_dtype(name, tuple(map(_key, operands)), torch.get_default_dtype())
    except RecursionError:  # of the caller's own depth, not of the operands
        raise
    except (RuntimeError, ValueError) as error:
        raise TypeError(str(error)) from error


def common_dtype(name: str, operands: Sequence[Operand]) -> torch.dtype:
    """Return the dtype to which op ``name`` converts its operands before it computes (``eq`` of fp16 and int32: fp16).

    The condition of ``where`` does not take part. Raises TypeError if PyTorch has no promotion.
    """
    _check(name, operands)
    values = operands[1:] if name == "where" else operands
    try:
        return _common_dtype(tuple(map(_key, values)), torch.get_default_dtype())
    except RecursionError:
        raise
    except RuntimeError as error:
        raise TypeError(str(error)) from error
