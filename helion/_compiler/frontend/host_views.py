"""Views of host tensors whose sizes are symbols.

Where the sizes and strides of the result follow from those of the input they are computed; where they do not, they are
*late* symbols: the generated host code reads them off the result right before the launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ... import exc
from ..._shapes import Expr, Number, hint_of, number_key
from .values import HostTensorValue, describe

if TYPE_CHECKING:
    from .tracer import Tracer

Shape = tuple[Number, ...]


def make(
    t: Tracer,
    like: HostTensorValue,
    shape: Shape,
    strides: Shape | None,
    *,
    dtype: torch.dtype | None = None,
    own: bool = False,
) -> HostTensorValue:
    """A tensor of ``shape``; ``strides`` None means they are read off it at run time. ``own``: memory of its own."""
    storage = t.new_storage() if own else like.storage
    result = HostTensorValue(t, shape, (), dtype or like.dtype, like.device, storage)
    result.strides = tuple(late(t, result, "stride", i, 64) for i in range(len(shape))) if strides is None else strides
    result.aligned = own or like.aligned
    return result


def late(t: Tracer, tensor: HostTensorValue, what: str, dim: int, hint: int) -> Expr:
    """Size or stride ``dim`` of a tensor that the host code makes."""
    name = f"host_{what}_{len(t.late)}"
    t.late[name] = (tensor, f"{what}({dim})")
    return Expr("host", (name,), hint)


def is_symbolic(value: HostTensorValue) -> bool:
    return any(isinstance(n, Expr) for n in (*value.shape, *value.strides))


def _dim(value: HostTensorValue, dim: int, extra: int = 0) -> int:
    rank = value.ndim + extra
    if not isinstance(dim, int) or not -rank <= dim < rank:
        raise exc.InvalidReductionDim(dim=describe(dim), shape=repr(value))
    return dim % rank


def _flat(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else args


def _view(t: Tracer, value: HostTensorValue, *sizes: Any) -> HostTensorValue:
    if len(sizes) == 1 and isinstance(sizes[0], torch.dtype):
        return make(t, value, value.shape, value.strides, dtype=sizes[0])
    wanted = _flat(sizes)
    total: Number = value.numel()
    known: Number = 1
    for size in wanted:
        if not (isinstance(size, int) and size == -1):
            known = known * size
    shape = tuple(_quotient(total, known) if isinstance(s, int) and s == -1 else s for s in wanted)
    return make(t, value, shape, None)


def _factors(number: Number) -> tuple[int, list[Expr]]:
    if not isinstance(number, Expr):
        return int(number), []
    if number.op != "mul":
        return 1, [number]
    parts = [_factors(a) for a in number.args]
    return parts[0][0] * parts[1][0], parts[0][1] + parts[1][1]


def _quotient(total: Number, known: Number) -> Number:
    """``total // known`` with common factors cancelled, so that a size that stays keeps its symbol."""
    const, symbols = _factors(total)
    divisor, others = _factors(known)
    for other in list(others):
        match = next((s for s in symbols if number_key(s) == number_key(other)), None)
        if match is not None:
            symbols = [s for s in symbols if s is not match]
            others.remove(other)
    if not others and const % divisor == 0:
        result: Number = const // divisor
        for symbol in symbols:
            result = symbol * result
        return result
    return total // known


def _permute(t: Tracer, value: HostTensorValue, *dims: Any) -> HostTensorValue:
    order = [_dim(value, d) for d in _flat(dims)]
    return make(t, value, tuple(value.shape[i] for i in order), tuple(value.strides[i] for i in order))


def _transpose(t: Tracer, value: HostTensorValue, dim0: int, dim1: int) -> HostTensorValue:
    order = list(range(value.ndim))
    a, b = _dim(value, dim0), _dim(value, dim1)
    order[a], order[b] = b, a
    return _permute(t, value, *order)


def _t(t: Tracer, value: HostTensorValue) -> HostTensorValue:
    return _permute(t, value, *range(value.ndim)[::-1])


def _unsqueeze(t: Tracer, value: HostTensorValue, dim: int) -> HostTensorValue:
    at = _dim(value, dim, extra=1)
    return make(t, value, (*value.shape[:at], 1, *value.shape[at:]), (*value.strides[:at], 1, *value.strides[at:]))


def _squeeze(t: Tracer, value: HostTensorValue, dim: int) -> HostTensorValue:
    at = _dim(value, dim)
    if not (isinstance(value.shape[at], int) and value.shape[at] == 1):
        return value
    return make(t, value, (*value.shape[:at], *value.shape[at + 1 :]), (*value.strides[:at], *value.strides[at + 1 :]))


def _expand(t: Tracer, value: HostTensorValue, *sizes: Any) -> HostTensorValue:
    wanted = _flat(sizes)
    lead = len(wanted) - value.ndim
    shape: list[Number] = []
    strides: list[Number] = []
    for at, size in enumerate(wanted):
        old = value.shape[at - lead] if at >= lead else 1
        broadcast = isinstance(old, int) and old == 1
        shape.append(old if (isinstance(size, int) and size == -1) or not broadcast else size)
        strides.append(value.strides[at - lead] if at >= lead and not broadcast else 0)
    return make(t, value, tuple(shape), tuple(strides))


def _broadcast_tensors(t: Tracer, *values: Any) -> tuple[HostTensorValue, ...]:
    tensors = _flat(values)
    rank = max(v.ndim for v in tensors)
    shape: list[Number] = []
    for position in range(rank):
        sizes = [v.shape[position - rank + v.ndim] for v in tensors if position - rank + v.ndim >= 0]
        shape.append(next((s for s in sizes if not (isinstance(s, int) and s == 1)), 1))
    return tuple(_expand(t, v, *shape) for v in tensors)


def _flatten(t: Tracer, value: HostTensorValue, start_dim: int = 0, end_dim: int = -1) -> HostTensorValue:
    first, last = _dim(value, start_dim), _dim(value, end_dim)
    merged: Number = 1
    for size in value.shape[first : last + 1]:
        merged = merged * size
    return make(t, value, (*value.shape[:first], merged, *value.shape[last + 1 :]), None)


def _unflatten(t: Tracer, value: HostTensorValue, dim: int, sizes: Any) -> HostTensorValue:
    at = _dim(value, dim)
    return _view(t, value, (*value.shape[:at], *sizes, *value.shape[at + 1 :]))


def _contiguous(t: Tracer, value: HostTensorValue, **_: Any) -> HostTensorValue:
    strides: list[Number] = []
    step: Number = 1
    for size in reversed(value.shape):
        strides.append(step)
        step = step * size
    return make(t, value, value.shape, tuple(reversed(strides)))


def _to(t: Tracer, value: HostTensorValue, *args: Any, **kwargs: Any) -> HostTensorValue:
    items = [*args, *kwargs.values()]
    dtype = next(
        (i if isinstance(i, torch.dtype) else i.dtype for i in items if isinstance(i, (torch.dtype, HostTensorValue))),
        value.dtype,
    )
    return value if dtype == value.dtype else make(t, value, value.shape, None, dtype=dtype)


def _clone(t: Tracer, value: HostTensorValue, **_: Any) -> HostTensorValue:
    return make(t, value, value.shape, None, own=True)


def _getitem(t: Tracer, value: HostTensorValue, index: Any) -> HostTensorValue:
    items = list(index) if isinstance(index, tuple) else [index]
    given = sum(i is not None and i is not ... for i in items)
    fill = [slice(None)] * (value.ndim - given)
    at = next((i for i, item in enumerate(items) if item is ...), len(items))
    items = [*items[:at], *fill, *items[at + 1 :]]
    shape: list[Number | None] = []
    strides: list[Number] = []
    dim = 0
    for item in items:
        if item is None:
            shape.append(1)
            strides.append(1)
            continue
        if isinstance(item, slice):
            step = 1 if item.step is None else item.step
            shape.append(_slice_size(value.shape[dim], item))
            strides.append(value.strides[dim] * step)
        elif not isinstance(item, (int, Expr)):
            raise exc.InvalidIndexingType(got=describe(item))
        dim += 1
    result = HostTensorValue(t, (), tuple(strides), value.dtype, value.device, value.storage, aligned=False)
    result.shape = tuple(late(t, result, "size", i, 64) if s is None else s for i, s in enumerate(shape))
    return result


def _slice_size(size: Number, item: slice) -> Number | None:
    """How many elements a slice takes of a dimension; None where that is known at run time only."""
    parts = (item.start, item.stop, item.step)
    if all(part is None for part in parts):
        return size
    if not isinstance(size, int) or any(isinstance(part, Expr) for part in parts):
        return None
    return len(range(*item.indices(size)))


_RULES: dict[str, Callable[..., Any]] = {
    "view": _view, "reshape": _view, "view_as": lambda t, v, o: _view(t, v, o.shape), "reshape_as": lambda t, v, o: _view(t, v, o.shape),
    "permute": _permute, "transpose": _transpose, "swapaxes": _transpose, "t": _t, "unsqueeze": _unsqueeze, "squeeze": _squeeze,
    "expand": _expand, "broadcast_to": _expand, "expand_as": lambda t, v, o: _expand(t, v, o.shape),
    "broadcast_tensors": _broadcast_tensors, "flatten": _flatten, "unflatten": _unflatten, "contiguous": _contiguous, "to": _to, "clone": _clone,
    "detach": lambda t, v: v, "__getitem__": _getitem, "select": lambda t, v, d, i: _getitem(t, v, (*[slice(None)] * _dim(v, d), i)),
    **{n: (lambda t, v, dtype=d, **_: _to(t, v, dtype)) for n, d in {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16, "double": torch.float64, "int": torch.int32, "long": torch.int64, "bool": torch.bool}.items()},
}  # fmt: skip


def rule(name: str) -> Callable[..., Any] | None:
    """The rule for a view of a tensor with symbolic sizes."""
    return _RULES.get(name)


def lift_late(t: Tracer, like: HostTensorValue, meta: torch.Tensor, own: bool) -> HostTensorValue:
    """A result known by example only: every size and stride is read off it at run time."""
    storage = t.new_storage() if own else like.storage
    result = HostTensorValue(t, (), (), meta.dtype, like.device, storage, aligned=own)
    result.shape = tuple(late(t, result, "size", i, int(s)) for i, s in enumerate(meta.shape))
    result.strides = tuple(late(t, result, "stride", i, int(s)) for i, s in enumerate(meta.stride()))
    return result


def example(value: HostTensorValue) -> torch.Tensor:
    """A meta tensor with the sizes seen when binding."""
    shape, strides = ([hint_of(n) for n in numbers] for numbers in (value.shape, value.strides))
    return torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")
