"""Host functions whose results have sizes, or are numbers, that depend on the data of tensors.

Their sizes are *deferred*: the generated host code reads them from the real result right before the launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ...._shapes import hint_of, number_key
from ..captures import UNNAMED
from ..state import TraceState
from ..values import Expr, HostTensorValue
from .meta import has_symbols, is_symbolic, needs_data


def number(t: TraceState, hint: Any) -> Expr:
    """Return a symbol for a number that an expression of the host code has at run time; ``hint`` is an example."""
    name = t.numbers.fresh_name("host_item", len(t.numbers.drawn))
    t.numbers.drawn[name] = UNNAMED
    return Expr("host", (name,), hint)


def deferred(t: TraceState, tensor: HostTensorValue, what: str, dim: int, hint: int) -> Expr:
    """Return a symbol for size or stride ``dim`` of a tensor that the host code makes."""
    name = f"host_{what}_{len(t.numbers.deferred)}"
    t.numbers.deferred[name] = (tensor, f"{what}({dim})")
    return Expr("host", (name,), hint)


def deferred_tensor(
    t: TraceState,
    like: HostTensorValue | None,
    example: torch.Tensor,
    *,
    storage: int | None = None,
    shape: tuple[Any, ...] | None = None,
) -> HostTensorValue:
    """Return a tensor known by example only. Its strides, and its sizes unless ``shape`` is given, are read from it at
    run time. ``storage`` is the memory it shares, None for its own.
    """
    device = t.device if like is None else like.device
    result = HostTensorValue(t, (), (), example.dtype, device, t.tensors.new_storage() if storage is None else storage)
    sizes = enumerate(example.shape)
    result.shape = tuple(deferred(t, result, "size", i, int(n)) for i, n in sizes) if shape is None else shape
    result.strides = tuple(deferred(t, result, "stride", i, int(s)) for i, s in enumerate(example.stride()))
    result.aligned = storage is None
    result.checked = True
    return result


def one_of(t: TraceState, values: list[HostTensorValue]) -> HostTensorValue | None:
    """Return a tensor that is one of ``values`` at run time: modelled after the first, and compared before launches.

    It may share the memory of each of them. None if they differ in more than sizes, strides and dtype.
    """
    first = values[0]
    if any(v.ndim != first.ndim or v.device != first.device or v.python_type is not first.python_type for v in values):
        return None
    numbers = [[number_key(n) for n in (*v.shape, *v.strides)] for v in values]
    if any(map(is_symbolic, values)) and any(each != numbers[0] for each in numbers):
        made = deferred_tensor(t, first, first.meta, storage=first.storage)
    else:
        made = HostTensorValue(t, first.shape, first.strides, first.dtype, first.device, first.storage)
    made.aligned, made.checked, made.chosen = False, True, True
    return made


def _example(rank: int, dtype: torch.dtype, count: int) -> torch.Tensor:
    """Return an example of ``count`` rows of one element each."""
    return torch.empty([count, *[1] * (rank - 1)] if rank else [], dtype=dtype, device="meta")


def _count(value: HostTensorValue) -> int:
    return max(1, math.prod(int(hint_of(n)) for n in value.shape))


def _nonzero(t: TraceState, value: HostTensorValue, *, as_tuple: bool = False) -> Any:
    if as_tuple:
        return tuple(
            deferred_tensor(t, value, _example(1, torch.int64, _count(value))) for _ in range(max(1, value.ndim))
        )
    example = torch.empty([_count(value), value.ndim], dtype=torch.int64, device="meta")
    return deferred_tensor(t, value, example)


def _masked_select(t: TraceState, value: HostTensorValue, mask: HostTensorValue) -> HostTensorValue:
    return deferred_tensor(t, value, _example(1, value.dtype, _count(value)))


def _unique(
    t: TraceState,
    value: HostTensorValue,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    rank = 1 if dim is None else value.ndim
    found = [deferred_tensor(t, value, _example(rank, value.dtype, _count(value)))]
    if return_inverse:
        inverse = torch.empty(
            [hint_of(n) for n in value.shape] if dim is None else [1], dtype=torch.int64, device="meta"
        )
        found.append(deferred_tensor(t, value, inverse))
    if return_counts:
        found.append(deferred_tensor(t, value, _example(1, torch.int64, _count(value))))
    return found[0] if len(found) == 1 else tuple(found)


def _unique_consecutive(
    t: TraceState,
    value: HostTensorValue,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    return _unique(t, value, True, return_inverse, return_counts, dim)


def _bincount(t: TraceState, value: HostTensorValue, weights: Any = None, minlength: Any = 0) -> HostTensorValue:
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype is torch.float32 else torch.float64
    return deferred_tensor(t, value, _example(1, dtype, _count(value)))


def _repeats(
    t: TraceState, value: HostTensorValue, repeats: Any = None, dim: Any = None, *, output_size: Any = None
) -> Any:
    if repeats is None:  # of indices
        return deferred_tensor(t, value, _example(1, value.dtype, _count(value)))
    if not isinstance(repeats, HostTensorValue):
        return None
    rank = 1 if dim is None else value.ndim
    return deferred_tensor(t, value, _example(rank, value.dtype, _count(value)))


def _where(t: TraceState, condition: HostTensorValue) -> Any:
    return _nonzero(t, condition, as_tuple=True)


def _truth(t: TraceState, *_: Any, **__: Any) -> Expr:
    return number(t, True)


def _refused(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise needs_data(name)

    return refuse


_RULES: dict[str, Callable[..., Any]] = {
    "nonzero": _nonzero, "argwhere": _nonzero, "masked_select": _masked_select, "unique": _unique, "_unique2": _unique,
    "unique_consecutive": _unique_consecutive, "bincount": _bincount, "repeat_interleave": _repeats,
    "equal": _truth, "allclose": _truth, "is_nonzero": _truth,
    **{name: _refused(f"Tensor.{name}") for name in ("numpy", "__array__", "untyped_storage", "storage", "__dlpack__")},
}  # fmt: skip


def rule(name: str, args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """Return the rule for a function whose result depends on data, None for others."""
    if name == "where" and len(args) == 1:
        return _where
    return _RULES.get(name)


def is_mask(item: Any) -> bool:
    return isinstance(item, HostTensorValue) and item.dtype in (torch.bool, torch.uint8)


def by_mask(t: TraceState, value: HostTensorValue, index: Any) -> HostTensorValue | None:
    """Return ``value[index]`` with boolean tensors among the indices; None if there are none."""
    items = index if isinstance(index, tuple) else (index,)
    if not any(map(is_mask, items)):
        return None
    lowered: list[Any] = []
    for item in items:
        if is_mask(item):  # as torch does: one tensor of indices for each of its dimensions
            count = _count(item)
            lowered += [torch.empty([count], dtype=torch.int64, device="meta") for _ in range(item.ndim)]
        elif isinstance(item, HostTensorValue):
            lowered.append(item.meta)
        elif isinstance(item, slice) and has_symbols(item):
            lowered.append(slice(*map(hint_of, (item.start, item.stop, item.step))))
        else:
            lowered.append(hint_of(item))
    return deferred_tensor(t, value, value.meta[tuple(lowered)])
