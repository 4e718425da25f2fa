"""Functions that make tensors, with sizes that may be known at run time only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .... import exc
from ...._shapes import Expr, Number, number_key
from ..state import TraceState
from ..values import HostTensorValue, describe
from .data import deferred
from .meta import Question

Shape = tuple[Number, ...]

_WINDOWS = ("hann_window", "hamming_window", "blackman_window", "bartlett_window", "kaiser_window")
_PLAIN = ("empty", "zeros", "ones", "rand", "randn")
_LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")
_NEW = ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor", "new_empty_strided")
#: Functions that allocate and take ``device=``.
NAMES = frozenset(
    (
        *_PLAIN, *_LIKE, *_NEW, *_WINDOWS, "full", "arange", "range", "randint", "randperm", "normal", "tensor", "as_tensor", "asarray",
        "scalar_tensor", "eye", "linspace", "logspace", "tril_indices", "triu_indices", "empty_strided", "from_numpy", "frombuffer", "empty_permuted",
        "complex",
    )
)  # fmt: skip
#: Functions among them that wrap existing host data, whose sizes are those of the data.
OF_DATA = frozenset(("as_tensor", "asarray", "from_numpy", "frombuffer"))
NAMED_DEVICE = NAMES - {"from_numpy", "frombuffer", "complex"}


def is_factory(function: Any) -> bool:
    """Return whether a torch function makes a tensor from arguments of any kind."""
    return getattr(function, "__name__", "") in NAMES and getattr(torch, function.__name__, None) is function


def follows_arguments(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call makes a tensor on the default device, and could make it on another one."""
    asked = any(kwargs.get(name) is not None for name in ("out", "generator", "pin_memory")) or "device" in kwargs
    name = getattr(function, "__name__", "")
    free = is_factory(function) and name in NAMED_DEVICE - OF_DATA - {*_LIKE, "normal"}
    return free and not asked and not any(isinstance(value, HostTensorValue) for value in (*args, *kwargs.values()))


def contiguous_strides(shape: Shape) -> Shape:
    """Return row-major strides in elements."""
    strides: list[Number] = []
    step: Number = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (max(size, 1) if isinstance(size, int) else size)
    return tuple(reversed(strides))


def is_row_major(value: HostTensorValue) -> bool:
    """Return whether the form of a tensor's strides shows that it is contiguous in every launch."""
    pairs = zip(value.strides, contiguous_strides(value.shape), strict=True)
    return all(number_key(stride) == number_key(plain) for stride, plain in pairs)


def allocate(
    t: TraceState, shape: Any, dtype: torch.dtype | None, device: Any, strides: Shape | None = None
) -> HostTensorValue:
    """Return a new tensor with its own memory."""
    shape = tuple(shape)
    for size in shape:
        if not isinstance(size, (int, Expr)):
            raise exc.TypeInferenceError(f"A tensor size must be an integer, got {describe(size)}.")
    where = t.device if device is None else torch.device(device)
    return HostTensorValue(
        t, shape, strides or contiguous_strides(shape), dtype or t.world.default_dtype(), where, t.tensors.new_storage()
    )


def symbolic(
    t: TraceState, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> HostTensorValue | None:
    """Return the result of a factory with run-time sizes; None if they do not follow from its arguments."""
    if kwargs.get("out") is not None or name not in NAMES:
        return None
    shape = _shape(name, args, kwargs)
    if shape is None or not all(isinstance(n, (int, Expr)) and not isinstance(n, bool) for n in shape):
        return None
    inputs = args[:1] if args and isinstance(args[0], HostTensorValue) else ()
    plain = {key: value for key, value in kwargs.items() if key not in ("device", "pin_memory")}
    if kwargs.get("device") is not None or not inputs:
        plain["device"] = "meta"
    example = Question(t, f"torch.{name}", func).ask(args, plain)
    device = kwargs.get("device") or (inputs[0].device if inputs else "cpu")
    made = allocate(t, shape, example.dtype, device)
    if "strided" in name:
        made.strides = tuple(_given(args[len(inputs) :], kwargs, "size", "stride")["stride"])
    elif kwargs.get("memory_format") is not None or (name in _LIKE and not (inputs and is_row_major(inputs[0]))):
        made.strides = tuple(deferred(t, made, "stride", i, int(s)) for i, s in enumerate(example.stride()))
    return made


def _shape(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shape | None:
    if name in _LIKE:
        like = kwargs.get("input", args[0] if args else None)
        return tuple(like.shape) if isinstance(like, HostTensorValue) else None
    if name in _NEW:
        args = args[1:]
    if name in _PLAIN or name in ("new_empty", "new_zeros", "new_ones"):
        return _sizes(args or (kwargs.get("size"),))
    found = _SHAPES.get("window" if name in _WINDOWS else name)
    return None if found is None else found(args, kwargs)


def _sizes(size: Any) -> Shape | None:
    if len(size) == 1 and isinstance(size[0], (tuple, list)):
        return tuple(size[0])
    return tuple(size)


def _given(args: tuple[Any, ...], kwargs: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return arguments by name."""
    return {**kwargs, **dict(zip(names, args, strict=False))}


def _sized(*names: str) -> Callable[..., Shape | None]:
    """Return a shape function for a shape that is one of the arguments."""

    def shape(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shape | None:
        size = _given(args, kwargs, *names).get("size")
        return tuple(size) if isinstance(size, (tuple, list)) else None

    return shape


def _length(*names: str) -> Callable[..., Shape | None]:
    """Return a shape function for one dimension, whose size is one of the arguments."""

    def shape(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shape | None:
        length: Any = _given(args, kwargs, *names).get("length")
        return (length,) if isinstance(length, (int, Expr)) else None

    return shape


def _arange(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shape | None:
    given = _given(args if len(args) > 1 else (0, *args), kwargs, "start", "end", "step")
    start, step = given.get("start", 0), given.get("step", 1)
    end: Any = given.get("end")
    if not all(_is_integer(n) for n in (start, end)) or not (isinstance(step, int) and step == 1):
        return None
    return (end if isinstance(start, int) and start == 0 else end - start,)


def _is_integer(value: Any) -> bool:
    return type(value) is int or (isinstance(value, Expr) and value.kind is int)


def _eye(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shape | None:
    given = _given(args, kwargs, "n", "m")
    return (given["n"], given["m"] if given.get("m") is not None else given["n"])


def _randint(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shape | None:
    size = next((a for a in args if isinstance(a, (tuple, list))), kwargs.get("size"))
    return None if size is None else tuple(size)


_SHAPES: dict[str, Callable[..., Shape | None]] = {
    "full": lambda args, kwargs: _full(_given(args, kwargs, "size")["size"]),
    "new_full": lambda args, kwargs: _full(_given(args, kwargs, "size")["size"]),
    "empty_strided": _sized("size", "stride"),
    "new_empty_strided": _sized("size", "stride"),
    "arange": _arange,
    "eye": _eye,
    "randint": _randint,
    "normal": _sized("mean", "std", "size"),
    "randperm": lambda args, kwargs: _length("length")(args, {"length": kwargs.get("n")}),
    "window": lambda args, kwargs: _length("length")(args, {"length": kwargs.get("window_length")}),
    "linspace": lambda args, kwargs: _length("start", "end", "length")(args, {"length": kwargs.get("steps")}),
    "logspace": lambda args, kwargs: _length("start", "end", "length")(args, {"length": kwargs.get("steps")}),
}


def _full(size: Any) -> Shape:
    return tuple(size) if isinstance(size, (tuple, list)) else (size,)
