"""torch calls in host code, evaluated on sizes and strides only.

Common elementwise functions and reductions have rules (``elementwise.py``); torch itself evaluates all others on meta
tensors (``meta.py``). Calls that depend on run-time numbers have a rule (``views.py``, ``factories.py``), or their
numbers are read from the real result right before the launch. Results that are neither plain allocations nor views of
exact tensors are ``checked``: launches compare them with the model.
"""

from __future__ import annotations

from typing import Any

import torch

from .... import exc
from ...._shapes import Expr, number_key
from ..state import TraceState
from ..values import HostTensorValue, describe
from . import data, factories, views
from .data import deferred_tensor, number
from .elementwise import elementwise, layout_of, plain_name, reduction
from .elementwise_layout import is_dense
from .factories import allocate, contiguous_strides
from .meta import Question, has_symbols, is_symbolic, refusal, tensors_in
from .peers import remote_tensors
from .results import device_of, noted, outs_of

#: Functions whose result usually shares memory with their first argument.
_VIEWS = frozenset(
    (
        "view", "view_as", "reshape", "reshape_as", "t", "transpose", "swapaxes", "swapdims", "permute", "unsqueeze", "squeeze", "expand",
        "expand_as", "broadcast_to", "broadcast_tensors", "flatten", "unflatten", "select", "narrow", "__getitem__", "chunk", "split", "unbind", "detach",
        "contiguous", "to", "float", "half", "bfloat16", "double", "int", "long", "bool", "type", "movedim", "moveaxis", "ravel", "diagonal", "as_strided", "unfold",
        "tensor_split", "hsplit", "vsplit", "dsplit", "split_with_sizes", "view_as_real", "view_as_complex", "adjoint", "atleast_1d", "atleast_2d", "atleast_3d",
    )
)  # fmt: skip
#: Views that may begin at any offset in their input.
_SHIFTING = frozenset(
    (
        "select", "narrow", "__getitem__", "chunk", "split", "unbind", "diagonal", "as_strided", "unfold", "tensor_split", "hsplit", "vsplit",
        "dsplit", "split_with_sizes", "as_strided_", "set_",
    )
)  # fmt: skip
#: Views that begin at an offset in the memory of their input, wherever that begins.
_PLACING = frozenset(("as_strided", "as_strided_", "set_"))
#: Functions that allocate, with sizes and strides that follow from their arguments by documented rules.
_ALLOCATORS = frozenset(("clone", *(factories.NAMES - factories.OF_DATA)))
#: In-place functions that may change more than data.
_RESHAPING = frozenset(
    (
        "t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "resize_", "resize_as_", "set_", "as_strided_",
    )
)  # fmt: skip
#: Words in the names of host calls that allocate rather than compute.
_QUIET = (
    "like", "new", "empty", "zeros", "full", "ones", "rand", "promote", "clone", "arange", "tensor", "is_", "finfo", "iinfo", "result_type",
    "cumsum", "manual_seed", "device", "cat", "get_",
)  # fmt: skip
#: Functions whose number of results depends on their arguments.
_COUNTED = frozenset(("chunk", "split", "unbind", "tensor_split", "hsplit", "vsplit", "dsplit"))
#: Functions whose result has the shape of the first argument.
_SAME_SHAPE = frozenset(
    (
        "softmax", "log_softmax", "cumsum", "cumprod", "flip", "roll", "tril", "triu", "argsort", "layer_norm", "rms_norm", "gelu", "silu",
        "clamp", "clamp_min", "clamp_max", "nan_to_num", "dropout", "leaky_relu", "elu", "softplus", "masked_fill", "bernoulli", "logsumexp_",
    )
)  # fmt: skip
_METADATA = frozenset(
    (
        "numel", "nelement", "dim", "ndimension", "size", "stride", "element_size", "is_contiguous", "is_floating_point", "is_complex",
        "is_signed", "storage_offset", "data_ptr", "__len__",
    )
)  # fmt: skip
#: Metadata of a tensor that launches may rely on.
READS = _METADATA | frozenset(("shape", "ndim", "dtype", "device", "itemsize", "nbytes", "is_cuda", "is_cpu", "layout"))
#: Functions whose results have the strides of their first argument, if that is dense.
_KEEPING = frozenset(("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"))


def call(t: TraceState, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Evaluate one torch call in host code."""
    name = getattr(func, "__name__", str(func))
    if func is torch.Tensor.item:
        return item(t, args[0].dtype)
    if func is torch.Tensor.tolist:
        return _items(t, args[0], 0)
    if name in _METADATA and args and isinstance(args[0], HostTensorValue):
        t.tensors.rely(args[0])
        return getattr(args[0], name)(*args[1:], **kwargs)
    if name == "get_remote_tensors":
        return remote_tensors(t, *args, **kwargs)
    by_data = _by_data(t, name, args, kwargs)
    if by_data is not None:
        return by_data
    if _is_in_place(name, args):
        return _change(t, func, name, args, kwargs)
    made = elementwise(t, name, args, kwargs)
    if made is None:
        made = reduction(t, name, args, kwargs)
    if made is not None:
        t.world.warn(exc.TensorOperationInWrapper(name=f"torch.{plain_name(name)}"))
        return made
    if name in ("to", "cpu", "cuda") and args and isinstance(args[0], HostTensorValue):
        return _converted(t, name, args, kwargs)
    if has_symbols((args, kwargs)):
        return _symbolic(t, func, name, args, kwargs)
    made = _dense_like(t, name, args, kwargs)
    return _asked(t, func, name, args, kwargs) if made is None else made


def _dense_like(t: TraceState, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> HostTensorValue | None:
    """Evaluate ``empty_like`` and the like of a dense tensor, whose strides they keep; None for other calls. Torch's
    own rule for meta tensors is in Python, and its first call imports sympy, which takes 0.4 s.
    """
    if name not in _KEEPING or kwargs.keys() - {"dtype", "device", "fill_value"} or not args:
        return None
    value, dtype, device = args[0], kwargs.get("dtype"), kwargs.get("device")
    if not isinstance(value, HostTensorValue) or not is_dense(*layout_of(value)):
        return None
    where = value.device if device is None else torch.device(device)
    made = allocate(t, value.shape, dtype or value.dtype, where, tuple(value.strides))
    return noted(t, made, [value], exact=True, typed=dtype is not None, placed=device is not None)


def view(t: TraceState, tensor: HostTensorValue, index: Any) -> Any:
    """Evaluate ``tensor[index]`` in host code."""
    return call(t, torch.Tensor.__getitem__, (tensor, index), {})


# --- numbers ----------------------------------------------------------------------------------------------------------


def item(t: TraceState, dtype: torch.dtype) -> Expr:
    """Return a symbol for a number that the host reads from a tensor, which is known at run time only."""
    return number(t, 1.0 if dtype.is_floating_point else dtype == torch.bool or 64)


def _items(t: TraceState, tensor: HostTensorValue, dim: int) -> Any:
    """Return the result of ``tolist``: numbers in nested lists."""
    t.tensors.rely(tensor)
    if dim == tensor.ndim:
        return item(t, tensor.dtype)
    size = tensor.shape[dim]
    return [
        _items(t, tensor, dim + 1) for _ in range(t.numbers.specialize(size) if isinstance(size, Expr) else int(size))
    ]


def is_item(t: TraceState, value: Any) -> bool:
    """Return whether a number comes from the data of tensors."""
    return isinstance(value, Expr) and any(leaf.args[0] in t.numbers.drawn for leaf in value.leaves())


def is_contiguous(t: TraceState, value: HostTensorValue, memory_format: torch.memory_format) -> Any:
    """Return whether a tensor is contiguous. With symbolic sizes or strides, the answer may
    follow from their form. Otherwise it is a property of an argument, which a branch adds to the specialization key, or
    is read at run time.
    """
    if not is_symbolic(value):
        return value.meta.is_contiguous(memory_format=memory_format)
    plain = memory_format is torch.contiguous_format
    if plain and all(
        (isinstance(n, int) and n == 1) or number_key(s) == number_key(e)
        for n, s, e in zip(value.shape, value.strides, contiguous_strides(value.shape), strict=True)
    ):
        return True
    hint = value.meta.is_contiguous(memory_format=memory_format)
    return _property(t, value, "is_contiguous", () if plain else (memory_format,), hint)


def _property(t: TraceState, value: HostTensorValue, method: str, args: tuple[Any, ...], hint: Any) -> Expr:
    """Return the run-time result of a method: a symbol for an argument, a number read at the call for other tensors."""
    if not value.origin or not value.source:
        return number(t, hint)
    text = ", ".join(f"memory_format={each!r}" for each in args)
    name = f"{value.source}_{method}" if value.source.isidentifier() else f"argument_{method}_{len(t.numbers.symbols)}"
    return t.numbers.symbol(name, f"{value.source}.{method}({text})", (*value.origin, (method, *args)), hint)


def read_tensor(t: TraceState, value: HostTensorValue, method: str, hint: Any) -> Expr:
    """Return a number that is not modelled, such as the storage offset of a tensor or whether it requires gradients."""
    return _property(t, value, method, (), hint) if method == "storage_offset" else number(t, hint)


# --- data, and changes in place ---------------------------------------------------------------------------------------


def _by_data(t: TraceState, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a function that depends on the data of tensors; None for other functions."""
    if name == "__getitem__":
        return data.by_mask(t, *args)
    rule = data.rule(name, args)
    if rule is None:
        return None
    given = {key: value for key, value in kwargs.items() if key not in ("input", "self")}
    first = [kwargs[key] for key in ("input", "self") if key in kwargs]
    for tensor in tensors_in((args, kwargs)):
        t.tensors.rely(tensor)
    try:
        return rule(t, *first, *args, **given)
    except TypeError as error:
        raise refusal(f"torch.{name}", error) from None


def _is_in_place(name: str, args: tuple[Any, ...]) -> bool:
    return name.endswith("_") and not name.endswith("__") and bool(args) and isinstance(args[0], HostTensorValue)


def update(t: TraceState, value: HostTensorValue, name: str, other: Any) -> HostTensorValue:
    """Evaluate ``value += other`` and the like: the tensor stays the same, and so do its sizes, strides and dtype."""
    t.world.warn(exc.TensorOperationInWrapper(name=f"torch.{name}"))
    return value


def _change(t: TraceState, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Evaluate an in-place call, whose result is its first argument."""
    value = args[0]
    t.tensors.changed.add(value.storage)
    for other in t.tensors.lifted.values():
        if name in _RESHAPING and other is not value and other.storage == value.storage:
            other.checked = True  # it may be the very same tensor
    if name not in _RESHAPING:
        if not any(word in name for word in _QUIET):
            t.world.warn(exc.TensorOperationInWrapper(name=f"torch.{name}"))
        return value
    if value.chosen:
        raise exc.TypeInferenceError(
            f"Tensor.{name} of {describe(value)}, which is one of several tensors, is not supported; use the function that returns a new tensor."
        )
    if t.host_loops:
        raise exc.TypeInferenceError(
            f"Tensor.{name} in a host loop around a grid loop is not supported; use the function that returns a new tensor."
        )
    if not has_symbols((args, kwargs)):
        return _asked(t, func, name, args, kwargs)
    rule = views.rule(name.removesuffix("_"))
    changed = None if rule is None or name == "squeeze_" else views.applied(rule, t, args, kwargs)
    if changed is None or not _moved(t, value, changed):
        raise exc.TypeInferenceError(
            f"Tensor.{name} of {describe(value)}, whose sizes are known at run time only, is not supported; use the function that returns a new tensor."
        )
    value.shape, value.strides, value.origin = changed.shape, changed.strides, ()  # no longer those of the argument
    return value


def _moved(t: TraceState, value: HostTensorValue, changed: HostTensorValue) -> bool:
    """Update the deferred numbers of ``value`` to their dimensions after the change; return whether all still exist."""
    places = {
        number.args[0]: f"{what}({dim})"
        for what, numbers in (("size", changed.shape), ("stride", changed.strides))
        for dim, number in enumerate(numbers)
        if isinstance(number, Expr) and number.op == "host"
    }
    own = [name for name, (owner, _) in t.numbers.deferred.items() if owner is value]
    if any(owner is changed for owner, _ in t.numbers.deferred.values()) or any(name not in places for name in own):
        return False
    t.numbers.deferred.update({name: (value, places[name]) for name in own})
    return True


# --- other calls ------------------------------------------------------------------------------------------------------


def _first_byte(meta: torch.Tensor) -> int:
    return int(meta.storage_offset()) * meta.dtype.itemsize


def _asked(t: TraceState, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Evaluate a call whose arguments are all known by torch itself."""
    inputs = tensors_in((args, kwargs))
    device = kwargs.get("device")
    plain = {key: value for key, value in kwargs.items() if key not in ("device", "pin_memory")}
    if device is not None or (not inputs and name in factories.NAMED_DEVICE):
        plain["device"] = "meta"
    question = Question(t, f"torch.{name}", func)
    result = question.ask(args, plain)
    question.take_changes()
    for tensor in inputs if not _has_tensor(result) else ():
        t.tensors.rely(tensor)
    if _has_tensor(result) and name not in _VIEWS | _RESHAPING and not any(word in name for word in _QUIET):
        t.world.warn(exc.TensorOperationInWrapper(name=f"torch.{name}"))
    where = torch.device(device) if device is not None else device_of(t, inputs, free=name in factories.NAMES)
    outs_of(kwargs)
    exact = name in _VIEWS or name in _ALLOCATORS or name in _RESHAPING

    def lift(value: Any) -> HostTensorValue:
        origin = question.origin(value)
        if origin is not None and origin[1]:
            if name in _SHIFTING:
                origin[0].aligned = False
            return origin[0]
        if origin is None:
            made = HostTensorValue(
                t, tuple(value.shape), tuple(value.stride()), value.dtype, where, t.tensors.new_storage()
            )
            made.aligned = name not in factories.OF_DATA
        else:
            like = origin[0]
            made = HostTensorValue(t, tuple(value.shape), tuple(value.stride()), value.dtype, where, like.storage)
            moved = _first_byte(value) - _first_byte(like.meta)
            made.aligned = like.aligned and name not in _PLACING and moved % views.LINE_BYTES == 0
            made.place, made.begin = (0, None) if name in _PLACING else views.moved_place(like, moved)
            made.part = views.moved_part(like, moved) if name in _VIEWS and name not in _PLACING else None
        if value.is_meta:
            made.become(value)
        return noted(t, made, inputs, exact, bool(kwargs.get("dtype")), placed=device is not None)

    return _lifted(result, lift)


def _lifted(result: Any, lift: Any) -> Any:
    """Return ``result`` with ``lift`` applied to every tensor in it."""
    if isinstance(result, torch.Tensor):
        return lift(result)
    if isinstance(result, torch.Size):
        return tuple(result)
    if isinstance(result, (tuple, list)):
        items = [_lifted(x, lift) for x in result]
        return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)
    return result


def _symbolic(t: TraceState, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Evaluate a call that depends on numbers known at run time only."""
    inputs = tensors_in((args, kwargs))
    rule = views.rule(name)
    made = views.applied(rule, t, args, kwargs) if rule is not None else None
    if made is None:
        made = factories.symbolic(t, func, name, args, kwargs)
        if made is not None and not inputs and kwargs.get("device") is None:
            made.device = device_of(t, [], free=True)
    if made is not None:
        exact = name in _ALLOCATORS or name in views.EXACT
        for each in made if isinstance(made, tuple) else (made,):
            if all(each is not known for known in inputs):
                placed = kwargs.get("device") is not None
                noted(t, each, inputs, exact, bool(kwargs.get("dtype")), placed=placed)
        return made
    if kwargs.get("out") is not None:
        return outs_of(kwargs)
    return _deferred_results(t, func, name, *_counted(t, name, args, kwargs))


def _counted(
    t: TraceState, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Specialize on run-time numbers that determine the number of results."""
    if name in _COUNTED and not any(isinstance(a, (tuple, list)) for a in (*args[1:], *kwargs.values())):
        for value in (*args, *kwargs.values()):
            for size in value.shape if isinstance(value, HostTensorValue) else [value]:
                if isinstance(size, Expr):
                    t.numbers.specialize(size)
    return args, kwargs


def _deferred_results(t: TraceState, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return results known by example: numbers and sizes are read at run time."""
    inputs = tensors_in((args, kwargs))
    for size in (size for tensor in inputs for size in tensor.shape):
        t.numbers.rely_on(size)  # with one element, the result may have another rank than the example
    device = kwargs.get("device")
    plain = {key: value for key, value in kwargs.items() if key not in ("device", "pin_memory")}
    if device is not None or (not inputs and name in factories.NAMED_DEVICE):
        plain["device"] = "meta"
    question = Question(t, f"torch.{name}", func)
    result = question.ask(args, plain)
    if _has_tensor(result) and name not in _VIEWS and not any(word in name for word in _QUIET):
        t.world.warn(exc.TensorOperationInWrapper(name=f"torch.{name}"))
    shape = inputs[0].shape if name in _SAME_SHAPE and inputs else None

    def lift(value: torch.Tensor) -> HostTensorValue:
        origin = question.origin(value)
        if origin is not None and origin[1]:
            return origin[0]
        like = inputs[0] if origin is None and inputs else None if origin is None else origin[0]
        made = deferred_tensor(t, like, value, storage=None if origin is None else origin[0].storage, shape=shape)
        made.device = torch.device(device) if device is not None else device_of(t, inputs, free=not inputs)
        made.place, made.begin = (0, None)
        if origin is not None and name not in _PLACING:
            made.place, made.begin = views.moved_place(origin[0], _first_byte(value) - _first_byte(origin[0].meta))
        return noted(t, made, inputs, False, bool(kwargs.get("dtype")))

    return _lifted(_numbers(t, result), lift)


def _numbers(t: TraceState, result: Any) -> Any:
    """Replace the numbers in the result of a call by symbols for the numbers of the same call at run time."""
    if isinstance(result, (bool, int, float)):
        return number(t, result)
    if isinstance(result, torch.Size):
        return tuple(number(t, n) for n in result)
    if type(result) in (tuple, list):
        return type(result)(_numbers(t, x) for x in result)
    return result


def _has_tensor(result: Any) -> bool:
    if isinstance(result, (tuple, list)):
        return any(map(_has_tensor, result))
    return isinstance(result, torch.Tensor)


def _converted(t: TraceState, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> HostTensorValue:
    """Evaluate ``x.to(...)``, ``x.cpu()``, ``x.cuda()``: the tensor itself if there is nothing to convert."""
    value, *rest = args
    options = dict(kwargs)
    flags = [a for a in rest if isinstance(a, bool)]
    copy = options.get("copy", flags[1] if len(flags) > 1 else False)
    wanted = [
        *(a for a in rest if a is not None and not isinstance(a, bool)),
        options.get("dtype"),
        options.get("device"),
        options.get("other"),
    ]
    like = next((w for w in wanted if isinstance(w, HostTensorValue)), None)
    dtype = next((w for w in wanted if isinstance(w, torch.dtype)), like.dtype if like is not None else value.dtype)
    place = next((torch.device(w) for w in wanted if isinstance(w, (str, int, torch.device))), None)
    device = place or (torch.device(name) if name != "to" else like.device if like is not None else value.device)
    indexed = None not in (device.index, value.device.index)
    moved = device.type != value.device.type or (indexed and device != value.device)
    layout = {key: options[key] for key in ("memory_format",) if options.get(key) is not None}
    if is_symbolic(value):
        if dtype == value.dtype and not (moved or copy or layout):
            return value
        shared = None if copy or moved or dtype != value.dtype else value.storage
        example = value.meta.to(dtype)
        made = deferred_tensor(t, value, example, storage=shared, shape=tuple(value.shape))
        made.aligned = shared is None or value.aligned
    else:
        made = _asked(t, torch.Tensor.to, "to", (value, dtype), {"copy": bool(copy or moved), **layout})
        if made is value:
            return value
    made.device = device
    return noted(t, made, [value], exact=not moved, typed=True)
