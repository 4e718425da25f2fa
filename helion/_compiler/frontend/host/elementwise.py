"""Rules for elementwise functions and reductions of tensors in host code: shape, strides and dtype of their results.

(The first elementwise call on a meta tensor takes a second, because torch imports its compiler. Kernels whose host code
only allocates and views never pay that.)
"""

from __future__ import annotations

from typing import Any

import torch

from .... import exc
from ...._shapes import Expr, hint_of, number_key
from ...ir.pointwise import POINTWISE, result_dtype
from ..state import TraceState
from ..values import HostTensorValue
from . import views
from .data import deferred
from .elementwise_layout import Layout, result_layout
from .factories import allocate, contiguous_strides
from .meta import has_symbols, is_symbolic, refusal
from .results import device_of, noted, outs_of

#: Elementwise host calls with a rule here, by the op that determines the dtype.
_ELEMENTWISE = {
    **{name: name for name, op in POINTWISE.items() if op.eager is not None and name not in ("truncdiv", "log1p_unit", "hypot")},
    "truediv": "div", "floordiv": "floordiv", "floor_divide": "floordiv", "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "invert": "bitwise_not", "negative": "neg", "absolute": "abs", "multiply": "mul", "subtract": "sub", "divide": "div",
    "radd": "add", "rsub": "sub", "rmul": "mul", "rtruediv": "div", "rdiv": "div", "rfloordiv": "floordiv", "rmod": "remainder", "rpow": "pow",
}  # fmt: skip
#: Keywords of elementwise functions, in the order of their operands.
_OPERANDS = ("condition", "input", "self", "other", "exponent")
_REDUCTIONS = ("sum", "mean", "prod", "amax", "amin")
_RENAMED = {"axis": "dim", "keepdims": "keepdim", "self": "input"}


def plain_name(name: str) -> str:
    """Return the name of a call without underscores and without the mark of reflected operators."""
    bare = name.strip("_")
    return bare if bare in POINTWISE or bare not in _ELEMENTWISE else bare.removeprefix("r")


def _operands(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
    """Return the operands of an elementwise call in order; None if it has other arguments."""
    if any(key not in (*_OPERANDS, "out", "alpha") for key in kwargs):
        return None
    named = {key: kwargs[key] for key in _OPERANDS if key in kwargs}
    return [*(named.pop(key) for key in _OPERANDS[:3] if key in named and not args), *args, *named.values()]


def elementwise(t: TraceState, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> HostTensorValue | None:
    """Evaluate an elementwise call on the host; None for other calls."""
    op = _ELEMENTWISE.get(name.strip("_"))
    operands = _operands(args, kwargs) if op is not None else None
    if op is None or operands is None or not POINTWISE[op].arity[0] <= len(operands) <= POINTWISE[op].arity[1]:
        return None
    tensors = [o for o in operands if isinstance(o, HostTensorValue)]
    if not tensors or any(not isinstance(o, (HostTensorValue, Expr, int, float)) for o in operands):
        return None
    kinds = [
        (o.dtype, o.ndim) if isinstance(o, HostTensorValue) else o.kind if isinstance(o, Expr) else o for o in operands
    ]
    if kwargs.get("out") is not None:
        return (
            outs_of(kwargs) if isinstance(kwargs["out"], HostTensorValue) and _fits(kwargs["out"], operands) else None
        )
    try:
        dtype = result_dtype(op, kinds)
    except TypeError as error:
        raise refusal(f"torch.{plain_name(name)}", error) from None
    result = _laid_out(t, operands, dtype, device_of(t, tensors))
    return noted(t, result, tensors, exact=False)


def _fits(out: HostTensorValue, operands: list[Any]) -> bool:
    if has_symbols([out, *operands]):
        return True
    found = result_layout([layout_of(o) for o in operands])
    return found is not None and found[0] == tuple(out.shape)


def _laid_out(t: TraceState, operands: list[Any], dtype: torch.dtype, device: torch.device) -> HostTensorValue:
    """Return a new tensor for an elementwise function of ``operands``."""
    tensors = [o for o in operands if isinstance(o, HostTensorValue)]
    if not any(map(is_symbolic, tensors)):
        found = result_layout([layout_of(o) for o in operands])
        if found is None:
            shapes = " and ".join(repr(list(o.shape)) for o in tensors)
            raise exc.ShapeMismatch(lhs=shapes, rhs="a broadcast", detail=" in an elementwise call on the host")
        return allocate(t, found[0], dtype, device, found[1])
    result = HostTensorValue(t, (), (), dtype, device, t.tensors.new_storage())
    sizes = views.broadcast(t, [o.shape for o in tensors])
    hints = _hints([o.shape for o in tensors])
    result.shape = tuple(deferred(t, result, "size", i, hints[i]) if n is None else n for i, n in enumerate(sizes))
    plain = contiguous_strides(result.shape)
    whole = [o for o in tensors if o.ndim]
    alike = all(_keys(o.shape) == _keys(result.shape) and _keys(o.strides) == _keys(plain) for o in whole)
    if None in sizes or not alike:
        result.strides = tuple(deferred(t, result, "stride", i, hint_of(s)) for i, s in enumerate(plain))
    else:
        result.strides = plain
    return result


def layout_of(operand: Any) -> Layout:
    """Return sizes and strides of an operand; numbers have none."""
    if not isinstance(operand, HostTensorValue):
        return (), ()
    return tuple(map(hint_of, operand.shape)), tuple(map(hint_of, operand.strides))


def _keys(numbers: Any) -> list[Any]:
    return [number_key(n) for n in numbers]


def _hints(shapes: list[Any]) -> list[int]:
    """Return the sizes of the broadcast at bind time."""
    result = [1] * max(map(len, shapes))
    for shape in shapes:
        for at, size in enumerate(shape, len(result) - len(shape)):
            result[at] = hint_of(size) if hint_of(size) != 1 else result[at]
    return result


def reduction(t: TraceState, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> HostTensorValue | None:
    """Evaluate ``x.sum(dim)`` and the like; None for other calls."""
    if name not in _REDUCTIONS:
        return None
    given = {_RENAMED.get(key, key): value for key, value in kwargs.items()}
    order = ("input", "dim", "keepdim")
    if len(args) > 3 or given.keys() - {*order, "dtype"}:
        return None
    given.update(zip(order, args, strict=False))
    value, dim, keepdim = given.get("input"), given.get("dim"), given.get("keepdim", False)
    dims = dim if isinstance(dim, (tuple, list)) else () if dim is None else (dim,)
    if not isinstance(value, HostTensorValue) or not isinstance(keepdim, bool):
        return None
    if any(type(d) is not int or not -max(value.ndim, 1) <= d < max(value.ndim, 1) for d in dims):
        return None
    reduced = {d % max(value.ndim, 1) for d in dims or range(value.ndim)}
    shape = [1 if i in reduced else s for i, s in enumerate(value.shape) if keepdim or i not in reduced]
    integer = name in ("sum", "prod") and not value.dtype.is_floating_point
    dtype = given.get("dtype") or (torch.int64 if integer else value.dtype)
    return noted(t, allocate(t, shape, dtype, value.device), [value], exact=False)
