"""Views of host tensors whose sizes are symbols.

Sizes and strides of the result are computed if they follow from those of the input. Otherwise they are *deferred*
symbols: the generated host code reads them from the result right before the launch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .... import exc
from ...._shapes import Expr, Number, hint_of, number_key
from ..state import TraceState
from ..values import HostTensorValue, describe
from .data import deferred
from .factories import contiguous_strides, is_row_major

Shape = tuple[Number, ...]
Rule = Callable[..., Any]


LINE_BYTES = 16
"""The alignment that ``HostTensor.aligned`` promises."""


class Unruled(Exception):
    """Raised if a rule does not cover the arguments; the result is read at run time."""


def make(
    t: TraceState,
    like: HostTensorValue,
    shape: Shape,
    strides: Shape | None,
    *,
    dtype: torch.dtype | None = None,
    own: bool = False,
    seen: Sequence[int] | None = None,
) -> HostTensorValue:
    """Return a tensor of ``shape``; strides of None are read from it at run time. ``own``: it has its own memory.

    ``seen`` are its strides at bind time, those of a contiguous tensor by default.
    """
    storage = t.tensors.new_storage() if own else like.storage
    result = HostTensorValue(t, shape, (), dtype or like.dtype, like.device, storage)
    if strides is None:
        steps = contiguous_strides(shape) if seen is None else seen
        strides = tuple(deferred(t, result, "stride", i, hint_of(step)) for i, step in enumerate(steps))
    result.strides = strides
    result.aligned, result.place = own or like.aligned, 0 if own else like.place
    result.begin = 0 if own else like.begin
    return result


def moved_place(value: HostTensorValue, moved: int) -> tuple[int, int | None]:
    """Return the place and the begin of a view that begins ``moved`` bytes after a tensor does."""
    return (value.place + moved) % LINE_BYTES, moved_begin(value, moved)


def moved_part(value: HostTensorValue, moved: int) -> tuple[HostTensorValue, int] | None:
    """Return the whole tensor of a view that certainly begins ``moved`` bytes after one, and the bytes before it."""
    whole, before = value.part or (value, 0)
    return None if whole.moved or value.moved else (whole, before + moved)


def moved_begin(value: HostTensorValue, moved: int) -> int | None:
    return None if value.begin is None else value.begin + moved


def may_be_one(t: TraceState, size: Number) -> bool:
    """Return whether a size can be 1 at run time; if it is one of an argument, record that it must not be."""
    if not isinstance(size, Expr):
        return size == 1
    return size.op != "host" or not t.numbers.is_above_one(size)


def broadcast(t: TraceState, shapes: Sequence[Shape]) -> list[Number | None]:
    """Return the broadcast of shapes, None for sizes that are known at run time only because either of two may be 1."""
    result: list[Number | None] = [1] * max(map(len, shapes))
    for shape in shapes:
        for at, size in enumerate(shape, len(result) - len(shape)):
            known = result[at]
            if known is None:
                result[at] = None if may_be_one(t, size) else size
            elif isinstance(known, int) and known == 1:
                result[at] = size
            elif number_key(size) not in (1, number_key(known)) and may_be_one(t, known):
                result[at] = None if may_be_one(t, size) else size
    return result


def _dim(value: HostTensorValue, dim: Any, extra: int = 0) -> int:
    rank = value.ndim + extra
    if isinstance(dim, Expr):
        raise Unruled
    if not isinstance(dim, int) or not -rank <= dim < rank:
        raise exc.InvalidReductionDim(dim=describe(dim), shape=repr(value))
    return dim % rank


def _flat(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else args


def _view(t: TraceState, value: HostTensorValue, *sizes: Any) -> HostTensorValue:
    if len(sizes) == 1 and isinstance(sizes[0], torch.dtype):
        if sizes[0].itemsize != value.dtype.itemsize:
            raise Unruled
        return make(t, value, value.shape, value.strides, dtype=sizes[0])
    wanted = _flat(sizes)
    total: Number = value.numel()
    known: Number = 1
    for size in wanted:
        if not (isinstance(size, int) and size == -1):
            known = known * size
    if {0, -1} <= {size for size in wanted if isinstance(size, int)}:
        asked = ", ".join(map(str, wanted))
        raise exc.TorchOpTracingError(
            name="torch.Tensor.view",
            reason=f"-1 can be any size in [{asked}], which has no elements; write the size out",
        )
    shape = tuple(_quotient(total, known) if isinstance(s, int) and s == -1 else s for s in wanted)
    return _viewed(t, value, shape)


def _viewed(t: TraceState, value: HostTensorValue, shape: Shape) -> HostTensorValue:
    """Return a view of another shape. Unless the tensor is known to be contiguous, its strides are read at run time."""
    if is_row_major(value):
        return make(t, value, shape, contiguous_strides(shape))
    try:
        seen = value.meta.reshape([hint_of(size) for size in shape]).stride()
    except RuntimeError:  # sizes of other arguments, which do not fit at bind time
        return make(t, value, shape, None)
    return make(t, value, shape, None, seen=seen)


def _factors(number: Number) -> tuple[int, list[Expr]]:
    if not isinstance(number, Expr):
        return int(number), []
    if number.op != "mul":
        return 1, [number]
    parts = [_factors(a) for a in number.args]
    return parts[0][0] * parts[1][0], parts[0][1] + parts[1][1]


def _quotient(total: Number, known: Number) -> Number:
    """Return ``total // known`` with common factors cancelled, so that an unchanged size keeps its symbol."""
    const, symbols = _factors(total)
    divisor, others = _factors(known)
    rest = []
    for other in others:
        match = next((i for i, s in enumerate(symbols) if number_key(s) == number_key(other)), None)
        if match is None:
            rest.append(other)
        else:
            del symbols[match]
    others = rest
    if not others and const % divisor == 0:
        result: Number = const // divisor
        for symbol in symbols:
            result = symbol * result
        return result
    return total // known


def _permute(t: TraceState, value: HostTensorValue, *dims: Any) -> HostTensorValue:
    order = [_dim(value, d) for d in _flat(dims)]
    return make(t, value, tuple(value.shape[i] for i in order), tuple(value.strides[i] for i in order))


def _transpose(t: TraceState, value: HostTensorValue, dim0: int, dim1: int) -> HostTensorValue:
    order = list(range(value.ndim))
    a, b = _dim(value, dim0), _dim(value, dim1)
    order[a], order[b] = b, a
    return _permute(t, value, *order)


def _t(t: TraceState, value: HostTensorValue) -> HostTensorValue:
    return _permute(t, value, *range(value.ndim)[::-1])


def _unsqueeze(t: TraceState, value: HostTensorValue, dim: int) -> HostTensorValue:
    at = _dim(value, dim, extra=1)
    step = value.shape[at] * value.strides[at] if at < value.ndim else 1
    return make(t, value, (*value.shape[:at], 1, *value.shape[at:]), (*value.strides[:at], step, *value.strides[at:]))


def _squeeze(t: TraceState, value: HostTensorValue, dim: int) -> HostTensorValue:
    at = _dim(value, dim)
    if not (isinstance(value.shape[at], int) and value.shape[at] == 1):
        if may_be_one(t, value.shape[at]):
            raise Unruled
        return make(t, value, value.shape, value.strides)
    return make(t, value, (*value.shape[:at], *value.shape[at + 1 :]), (*value.strides[:at], *value.strides[at + 1 :]))


def _expand(t: TraceState, value: HostTensorValue, *sizes: Any) -> HostTensorValue:
    wanted = _flat(sizes)
    lead = len(wanted) - value.ndim
    shape: list[Number] = []
    strides: list[Number | None] = []
    for at, size in enumerate(wanted):
        old = value.shape[at - lead] if at >= lead else 1
        keeps = (isinstance(size, int) and size == -1) or number_key(old) == number_key(size)
        known = keeps or not may_be_one(t, old)
        shape.append(old if known else size)
        if at >= lead and known:
            strides.append(value.strides[at - lead])
        else:
            strides.append(0 if isinstance(old, int) else None)
    result = make(t, value, tuple(shape), ())
    hints = enumerate(strides)
    result.strides = tuple(deferred(t, result, "stride", i, 0) if s is None else s for i, s in hints)
    return result


def _broadcast_tensors(t: TraceState, *values: Any) -> tuple[HostTensorValue, ...]:
    tensors = _flat(values)
    shape = broadcast(t, [v.shape for v in tensors])
    if any(size is None for size in shape):
        raise Unruled
    return tuple(_expand(t, v, *shape) for v in tensors)


def _flatten(t: TraceState, value: HostTensorValue, start_dim: int = 0, end_dim: int = -1) -> HostTensorValue:
    first, last = _dim(value, start_dim), _dim(value, end_dim)
    merged: Number = 1
    for size in value.shape[first : last + 1]:
        merged = merged * size
    return _viewed(t, value, (*value.shape[:first], merged, *value.shape[last + 1 :]))


def _unflatten(t: TraceState, value: HostTensorValue, dim: int, sizes: Any) -> HostTensorValue:
    at = _dim(value, dim)
    return _view(t, value, (*value.shape[:at], *sizes, *value.shape[at + 1 :]))


def _contiguous(
    t: TraceState, value: HostTensorValue, *, memory_format: Any = torch.contiguous_format
) -> HostTensorValue:
    if memory_format is not torch.contiguous_format:
        result = make(t, value, value.shape, None)
        result.checked = True
        return result
    strides: list[Number] = []
    step: Number = 1
    for size in reversed(value.shape):
        strides.append(step)
        step = step * size
    return make(t, value, value.shape, tuple(reversed(strides)))


def _to(t: TraceState, value: HostTensorValue, dtype: torch.dtype) -> HostTensorValue:
    return value if dtype == value.dtype else _copied(t, value, dtype)


def _cast(dtype: torch.dtype) -> Rule:
    return lambda t, value: _to(t, value, dtype)


def _clone(t: TraceState, value: HostTensorValue, **_: Any) -> HostTensorValue:
    return _copied(t, value, value.dtype)


def _copied(t: TraceState, value: HostTensorValue, dtype: torch.dtype) -> HostTensorValue:
    """Return a copy. Unless the tensor is known to be contiguous, its strides are read at run time."""
    if is_row_major(value):
        return make(t, value, value.shape, value.strides, dtype=dtype, own=True)
    return make(t, value, value.shape, None, dtype=dtype, own=True, seen=torch.empty_like(value.meta).stride())


def _getitem(t: TraceState, value: HostTensorValue, index: Any) -> HostTensorValue:
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
            strides.append(value.shape[dim] * value.strides[dim] if dim < value.ndim else 1)
            continue
        if isinstance(item, slice):
            step = 1 if item.step is None else item.step
            shape.append(_slice_size(t, value.shape[dim], item))
            strides.append(value.strides[dim] * step)
        elif isinstance(item, bool) or not isinstance(item, (int, Expr)):
            raise Unruled
        dim += 1
    aligned = value.aligned and _moves_by_lines(value, items)
    result = HostTensorValue(t, (), tuple(strides), value.dtype, value.device, value.storage, aligned=aligned)
    hints, moved = _hints(value, items)
    result.place, result.begin = (value.place + moved) % LINE_BYTES, moved_begin(value, moved)
    result.part = _part(value, items)
    result.shape = tuple(deferred(t, result, "size", i, hints[i]) if s is None else s for i, s in enumerate(shape))
    return result


def _begin(item: Any) -> Any:
    """Return the index at which a part of a dimension begins."""
    if not isinstance(item, slice):
        return item
    return 0 if item.start is None else item.start


def _part(value: HostTensorValue, items: Sequence[Any]) -> tuple[HostTensorValue, int] | None:
    """Return the whole tensor of a subscript's result, and the bytes before it; None if they may differ."""
    moved = 0
    dims = (item for item in items if item is not None)
    for item, stride in zip(dims, value.strides, strict=False):
        begin = _begin(item)
        if not isinstance(begin, int) or begin < 0 or (begin and not isinstance(stride, int)):
            return None
        moved += begin * int(hint_of(stride)) * value.dtype.itemsize if begin else 0
    return moved_part(value, moved)


def _moves_by_lines(value: HostTensorValue, items: Sequence[Any]) -> bool:
    """Return whether a subscript's result certainly begins a multiple of 16 bytes after the tensor does."""
    begins = [_begin(item) for item in items if item is not None]
    moved = [
        (begin, stride)
        for begin, stride in zip(begins, value.strides, strict=False)
        if isinstance(begin, Expr) or begin != 0
    ]
    if not all(isinstance(begin, int) and begin >= 0 and isinstance(stride, int) for begin, stride in moved):
        return False
    return sum(begin * stride for begin, stride in moved) * value.dtype.itemsize % LINE_BYTES == 0


def _hints(value: HostTensorValue, items: list[Any]) -> tuple[list[int], int]:
    """Return the sizes of the subscript's result at bind time, and the bytes from the tensor's begin to its own.

    They are placeholders if it cannot be evaluated.
    """
    known = [slice(*map(hint_of, (i.start, i.stop, i.step))) if isinstance(i, slice) else hint_of(i) for i in items]
    try:
        found = value.meta[tuple(known)]
    except (IndexError, RuntimeError):
        return [64] * (value.ndim + len(items)), 0
    moved = int(found.storage_offset()) - int(value.meta.storage_offset())
    return [*found.shape], moved * value.dtype.itemsize


def _select(t: TraceState, value: HostTensorValue, dim: int, index: Any) -> HostTensorValue:
    return _getitem(t, value, (*[slice(None)] * _dim(value, dim), index))


def _narrow(t: TraceState, value: HostTensorValue, dim: int, start: Any, length: Any) -> HostTensorValue:
    at = _dim(value, dim)
    result = make(t, value, (*value.shape[:at], length, *value.shape[at + 1 :]), value.strides)
    begins = [slice(start if dim == at else 0, None) for dim in range(value.ndim)]
    result.aligned = value.aligned and _moves_by_lines(value, begins)
    moved = hint_of(start) * hint_of(value.strides[at]) * value.dtype.itemsize
    result.place, result.begin = (value.place + moved) % LINE_BYTES, moved_begin(value, moved)
    return result


def _split(t: TraceState, value: HostTensorValue, split_size: Any, dim: int = 0) -> tuple[HostTensorValue, ...]:
    if not isinstance(split_size, (tuple, list)):
        raise Unruled  # the number of parts depends on the size
    begins = [sum(split_size[:at]) for at in range(len(split_size))]
    return tuple(_narrow(t, value, dim, begin, size) for begin, size in zip(begins, split_size, strict=True))


def _view_as_real(t: TraceState, value: HostTensorValue) -> HostTensorValue:
    strides = (*(stride * 2 for stride in value.strides), 1)
    return make(t, value, (*value.shape, 2), strides, dtype=value.dtype.to_real())


def _cat(t: TraceState, tensors: Any, dim: int = 0) -> HostTensorValue:
    at = _dim(tensors[0], dim)
    if any(v.ndim != tensors[0].ndim or v.dtype != tensors[0].dtype for v in tensors):
        raise Unruled
    total: Number = 0
    for value in tensors:
        total = value.shape[at] + total
    result = make(t, tensors[0], (*tensors[0].shape[:at], total, *tensors[0].shape[at + 1 :]), None, own=True)
    result.checked = True
    return result


def _stack(t: TraceState, tensors: Any, dim: int = 0) -> HostTensorValue:
    at = _dim(tensors[0], dim, extra=1)
    if any(v.dtype != tensors[0].dtype for v in tensors):
        raise Unruled
    shape = (*tensors[0].shape[:at], len(tensors), *tensors[0].shape[at:])
    result = make(t, tensors[0], shape, None, own=True)
    result.checked = True
    return result


def _slice_size(t: TraceState, size: Number, item: slice) -> Number | None:
    """Return the number of elements that a slice takes of a dimension; None if that is known at run time only."""
    parts = (item.start, item.stop, item.step)
    if all(part is None for part in parts):
        return size
    if any(isinstance(part, Expr) for part in parts):
        return None
    if isinstance(size, int):
        return len(range(*item.indices(size)))
    return _without_ends(t, size, item.start or 0, item.stop) if item.step in (None, 1) else None


def _without_ends(t: TraceState, size: Number, start: int, stop: int | None) -> Number | None:
    """Return the number of elements without some at both ends of a dimension of an argument; None for other slices.

    The code relies on a size that has all of these, which may be two, as classes of sizes are no finer.
    """
    if not isinstance(size, Expr) or size.op != "host" or size.args[0] not in t.numbers.sizes:
        return None
    left_out = start - (stop or 0)
    if start < 0 or (stop is not None and stop >= 0) or not left_out <= min(2, size.hint):
        return None
    t.numbers.rely_on(size, left_out)
    return size - left_out


_DTYPES = {
    "float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16, "double": torch.float64, "int": torch.int32, "long": torch.int64,
    "bool": torch.bool, "short": torch.int16, "char": torch.int8, "byte": torch.uint8,
}  # fmt: skip
_RULES: dict[str, Rule] = {
    "view": _view, "reshape": _view, "view_as": lambda t, v, other: _view(t, v, other.shape), "reshape_as": lambda t, v, other: _view(t, v, other.shape),
    "permute": _permute, "transpose": _transpose, "swapaxes": _transpose, "swapdims": _transpose, "t": _t, "unsqueeze": _unsqueeze, "squeeze": _squeeze,
    "expand": _expand, "broadcast_to": _expand, "expand_as": lambda t, v, other: _expand(t, v, other.shape),
    "broadcast_tensors": _broadcast_tensors, "flatten": _flatten, "unflatten": _unflatten, "contiguous": _contiguous, "clone": _clone,
    "detach": lambda t, v: make(t, v, v.shape, v.strides), "__getitem__": _getitem, "select": _select, "narrow": _narrow,
    "split": _split, "split_with_sizes": _split, "view_as_real": _view_as_real,
    "cat": _cat, "concat": _cat, "concatenate": _cat, "stack": _stack,
    **{name: _cast(dtype) for name, dtype in _DTYPES.items()},
}  # fmt: skip
#: Rules whose results match torch's for all numbers.
EXACT = frozenset(_RULES) - {"cat", "concat", "concatenate", "stack"}


def rule(name: str) -> Rule | None:
    """Return the rule for a view of a tensor with symbolic sizes."""
    return _RULES.get(name)


def applied(rule: Rule, t: TraceState, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a rule, or None for arguments that it does not cover."""
    given = {_RENAMED.get(key, key): value for key, value in kwargs.items()}
    before = dict(t.numbers.deferred)
    try:
        inspect.signature(rule).bind(t, *args, **given)
        return rule(t, *args, **given)
    except (Unruled, TypeError):
        t.numbers.deferred.clear()
        t.numbers.deferred.update(before)
        return None


_RENAMED = {
    "input": "value",
    "self": "value",
    "axis0": "dim0",
    "axis1": "dim1",
    "axis": "dim",
    "split_size_or_sections": "split_size",
    "split_sizes": "split_size",
}
