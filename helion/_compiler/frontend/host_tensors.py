"""torch calls in host code, evaluated on sizes and strides only.

Allocations have rules of their own; views run on meta tensors, which is cheap; anything else also runs on meta tensors
and warns that it computes on the host. (The first elementwise call on a meta tensor costs a second, because torch
imports its compiler for it; kernels whose host code only allocates and views never pay that.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ... import exc
from ..._shapes import Expr, Number
from ..ir.pointwise import result_dtype
from . import host_views
from .captures import UNNAMED
from .values import HostTensorValue, describe

if TYPE_CHECKING:
    from .tracer import Tracer

_FACTORIES = (torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn)
_LIKE = (torch.empty_like, torch.zeros_like, torch.ones_like, torch.rand_like, torch.randn_like, torch.full_like)
_NEW = (torch.Tensor.new_empty, torch.Tensor.new_zeros, torch.Tensor.new_ones)
#: Functions whose result shares memory with their first argument.
_VIEWS = frozenset(
    (
        "view", "view_as", "reshape", "reshape_as", "t", "transpose", "swapaxes", "permute", "unsqueeze", "squeeze", "expand",
        "expand_as", "broadcast_to", "broadcast_tensors", "flatten", "unflatten", "select", "narrow", "__getitem__", "chunk", "split", "unbind", "detach",
        "contiguous", "to", "float", "half", "bfloat16", "type", "movedim", "ravel", "diagonal", "as_strided", "unfold",
    )
)  # fmt: skip
#: Views that may begin anywhere in their input.
_SHIFTING = frozenset(
    ("select", "narrow", "__getitem__", "chunk", "split", "unbind", "diagonal", "as_strided", "unfold")
)
#: Words in the names of host calls that allocate rather than compute.
_QUIET = (
    "like",
    "new",
    "empty",
    "zeros",
    "full",
    "ones",
    "rand",
    "promote",
    "clone",
    "arange",
    "tensor",
    "is_",
    "finfo",
    "iinfo",
    "result_type",
    "cumsum",
    "manual_seed",
    "device",
    "cat",
    "get_",
)


def contiguous_strides(shape: tuple[Number, ...]) -> tuple[Number, ...]:
    """Row-major strides in elements."""
    strides: list[Number] = []
    step: Number = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (max(size, 1) if isinstance(size, int) else size)
    return tuple(reversed(strides))


def allocate(
    t: Tracer, shape: Any, dtype: torch.dtype | None, device: Any, strides: tuple[Number, ...] | None = None
) -> HostTensorValue:
    """A new tensor with memory of its own."""
    shape = tuple(shape)
    for size in shape:
        if not isinstance(size, (int, Expr)):
            raise exc.TypeInferenceError(f"A tensor size must be an integer, got {describe(size)}.")
    where = t.device if device is None else torch.device(device)
    return HostTensorValue(
        t, shape, strides or contiguous_strides(shape), dtype or torch.get_default_dtype(), where, t.new_storage()
    )


def _sizes(size: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(size) == 1 and isinstance(size[0], (tuple, list)):
        return tuple(size[0])
    return size


def _dense_strides(value: HostTensorValue) -> tuple[Number, ...]:
    """The strides ``empty_like`` gives: the input's when it is dense (a permuted tensor stays permuted)."""
    sizes = [(stride, size) for stride, size in zip(value.strides, value.shape, strict=True)]
    if any(isinstance(x, Expr) for pair in sizes for x in pair):
        return value.strides
    expected: Any = 1
    for stride, size in sorted(pair for pair in sizes if pair[1] != 1):
        if stride != expected:
            # not dense: torch keeps the order of the dimensions by stride and packs them
            return _packed(value)
        expected *= size
    return value.strides


def _packed(value: HostTensorValue) -> tuple[Number, ...]:
    fake = torch.empty_like(host_views.example(value))
    return tuple(fake.stride())


def call(t: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One torch call in host code."""
    if func is torch.Tensor.item:
        return item(t, args[0].dtype)
    if func is torch.Tensor.tolist:
        return _items(t, args[0], 0)
    if func in _FACTORIES:
        size = kwargs.get("size", args)
        return allocate(
            t, _sizes(size if isinstance(size, tuple) else (size,)), kwargs.get("dtype"), kwargs.get("device", "cpu")
        )
    if func is torch.full:
        size = args[0] if args else kwargs["size"]
        fill = args[1] if len(args) > 1 else kwargs["fill_value"]
        dtype = kwargs.get("dtype") or _fill_dtype(fill)
        return allocate(t, size if isinstance(size, (tuple, list)) else (size,), dtype, kwargs.get("device", "cpu"))
    if func in _LIKE:
        like = args[0]
        dtype = kwargs.get("dtype") or like.dtype
        if host_views.is_symbolic(like):
            return host_views.make(t, like, like.shape, None, dtype=dtype, own=True)
        return allocate(t, like.shape, dtype, kwargs.get("device") or like.device, _dense_strides(like))
    if func in _NEW:
        like = args[0]
        dtype = kwargs.get("dtype") or like.dtype
        return allocate(t, _sizes(args[1:] or (kwargs["size"],)), dtype, kwargs.get("device") or like.device)
    if func is torch.Tensor.new_full:
        like = args[0]
        return allocate(t, args[1], kwargs.get("dtype") or like.dtype, kwargs.get("device") or like.device)
    name = getattr(func, "__name__", "").strip("_")
    if name in _ELEMENTWISE or name.removeprefix("r") in _ELEMENTWISE:
        return _elementwise(t, _ELEMENTWISE.get(name) or _ELEMENTWISE[name.removeprefix("r")], args)
    if name in _REDUCTIONS and not any(isinstance(a, HostTensorValue) for a in args[1:]):
        return _reduction(t, name, *args, **kwargs)
    return _on_meta(t, func, args, kwargs)


def item(t: Tracer, dtype: torch.dtype) -> Expr:
    """A number that the host reads off a tensor: known at run time only."""
    return number(t, 1.0 if dtype.is_floating_point else dtype == torch.bool or 64)


def number(t: Tracer, hint: Any) -> Expr:
    """A number that an expression of the host code gives at run time, like ``hint``."""
    name = t.fresh_name("host_item", len(t.drawn))
    t.drawn[name] = UNNAMED
    return Expr("host", (name,), hint)


def _items(t: Tracer, tensor: HostTensorValue, dim: int) -> Any:
    """What ``tolist`` gives: numbers in nested lists."""
    if dim == tensor.ndim:
        return item(t, tensor.dtype)
    size = tensor.shape[dim]
    return [_items(t, tensor, dim + 1) for _ in range(t.specialize(size) if isinstance(size, Expr) else int(size))]


def is_item(t: Tracer, value: Any) -> bool:
    """Whether a number comes from the data of tensors."""
    return isinstance(value, Expr) and any(leaf.args[0] in t.drawn for leaf in value.leaves())


#: Elementwise host calls with a shape rule here, by the op that gives the dtype.
_ELEMENTWISE = {
    **{n: n for n in ("add", "sub", "mul", "div", "pow", "exp", "log", "sqrt", "rsqrt", "neg", "abs", "sigmoid", "tanh", "relu", "eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum")},
    "truediv": "div", "floordiv": "floordiv", "mod": "remainder",
}  # fmt: skip
_REDUCTIONS = ("sum", "mean", "prod", "amax", "amin")


def _elementwise(t: Tracer, name: str, args: tuple[Any, ...]) -> HostTensorValue:
    """A computation on the host, launched on its own: worth a warning."""
    t.warn(exc.TensorOperationInWrapper(name=f"torch.{name}"))
    kinds = [
        (a.dtype, a.ndim) if isinstance(a, HostTensorValue) else a.kind if isinstance(a, Expr) else a for a in args
    ]
    tensors = [a for a in args if isinstance(a, HostTensorValue)]
    shape: list[Number] = []
    rank = max(a.ndim for a in tensors)
    for position in range(rank):
        size: Number = 1
        for tensor in tensors:
            at = position - rank + tensor.ndim
            if at >= 0 and not (isinstance(tensor.shape[at], int) and tensor.shape[at] == 1):
                size = tensor.shape[at]
        shape.append(size)
    return allocate(t, shape, result_dtype(name, kinds), tensors[0].device)


def _reduction(
    t: Tracer, name: str, value: HostTensorValue, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> HostTensorValue:
    t.warn(exc.TensorOperationInWrapper(name=f"torch.{name}"))
    dims = range(value.ndim) if dim is None else dim if isinstance(dim, (tuple, list)) else (dim,)
    reduced = {d % max(value.ndim, 1) for d in dims}
    shape = [1 if i in reduced else s for i, s in enumerate(value.shape) if keepdim or i not in reduced]
    integer = name in ("sum", "prod") and not value.dtype.is_floating_point
    return allocate(t, shape, dtype or (torch.int64 if integer else value.dtype), value.device)


def _fill_dtype(fill: Any) -> torch.dtype:
    kind = fill.kind if isinstance(fill, Expr) else type(fill)
    return torch.bool if kind is bool else torch.int64 if kind is int else torch.get_default_dtype()


def view(t: Tracer, tensor: HostTensorValue, index: Any) -> Any:
    """``tensor[index]`` in host code."""
    return _on_meta(t, torch.Tensor.__getitem__, (tensor, index), {})


def _on_meta(t: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    inputs: list[HostTensorValue] = []
    name = getattr(func, "__name__", str(func))
    tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, HostTensorValue)]
    symbolic = any(map(host_views.is_symbolic, tensors)) or any(isinstance(a, Expr) or _is_open_slice(a) for a in args)
    rule = host_views.rule(name) if symbolic else None
    if rule is not None:
        return rule(t, *args, **kwargs)

    def lower(item: Any) -> Any:
        if isinstance(item, HostTensorValue):
            inputs.append(item)
            return host_views.example(item)
        if isinstance(item, Expr):
            return item.hint
        if isinstance(item, (tuple, list)) and not hasattr(item, "_fields"):
            return type(item)(lower(x) for x in item)
        if isinstance(item, dict):
            return {key: lower(x) for key, x in item.items()}
        return item

    lowered_args, lowered_kwargs = lower(args), lower(kwargs)
    device = lowered_kwargs.pop("device", None)
    if device is not None or not inputs:
        lowered_kwargs["device"] = "meta"
    result = func(*lowered_args, **lowered_kwargs)
    aliases = name in _VIEWS
    if not aliases and _has_tensor(result) and not any(word in name for word in _QUIET):
        t.warn(exc.TensorOperationInWrapper(name=f"torch.{name}"))
    storages = iter(inputs)

    def lift(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            if isinstance(item, (tuple, list)) and not isinstance(item, torch.Size) and not hasattr(item, "_fields"):
                return type(item)(lift(x) for x in item)
            return tuple(item) if isinstance(item, torch.Size) else item
        if symbolic and inputs:
            return host_views.lift_late(t, inputs[0], item, not aliases)
        source = inputs[0] if inputs and (name != "broadcast_tensors") else next(storages, None)
        where = torch.device(device) if device is not None else source.device if source is not None else t.device
        storage = source.storage if aliases and source is not None else t.new_storage()
        aligned = not aliases or (name not in _SHIFTING and (source is None or source.aligned))
        return HostTensorValue(t, tuple(item.shape), tuple(item.stride()), item.dtype, where, storage, aligned=aligned)

    return lift(result)


def _is_open_slice(index: Any) -> bool:
    """Whether a subscript has a slice whose bounds are known at run time only."""
    if isinstance(index, tuple):
        return any(map(_is_open_slice, index))
    return isinstance(index, slice) and any(isinstance(n, Expr) for n in (index.start, index.stop, index.step))


def _has_tensor(result: Any) -> bool:
    if isinstance(result, (tuple, list)):
        return any(map(_has_tensor, result))
    return isinstance(result, torch.Tensor)
