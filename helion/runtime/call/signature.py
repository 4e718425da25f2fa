"""Specialization keys: dtypes, shapes, strides, constants and the target."""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import types
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from ... import exc, hardware, knobs
from ..._exact import exact_key, is_constant
from ..._shapes import (
    CONCRETE_TENSORS,
    ROW_MAJOR,
    SYMBOLIC,
    WIDE,
    SizeClasses,
    has_wide_offsets,
    is_row_major,
    shared_memory,
    static_dims,
)
from ..._support.nested import kinds, tensors_in
from ...backends.execution import SizeTable
from ...language.constants import ConstExpr


def arguments_key(values: Sequence[Any], constant_at: Sequence[bool], static: bool) -> Key:
    """Return the part of all arguments that compiled code depends on, as a plain tuple.

    ``constant_at`` marks ``hl.constexpr`` parameters.

    Tensors and numbers of exactly those types are read directly, all else through ``Keys``, with equal results: sizes
    of other kinds of tensors may be symbols. Raises TypeError for a kind of argument that kernels do not take.
    """
    keys = Keys(static)
    parts: list[Hashable] = []
    storages: list[int] = []
    plain = True
    for value, constant in zip(values, constant_at, strict=True):
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            if value.is_nested:  # asked for its strides, it would end the process
                check_layout(value)
            try:
                storage = value.untyped_storage()
                storages.append(storage._cdata)
                plain = plain and storage.resizable()  # memory of others may overlap
            except (RuntimeError, NotImplementedError):
                check_layout(value)
                plain = False
            parts.append(
                (value.dtype, value.shape, value.stride(), value.device.type) if static else keys.tensor(value)
            )
        elif constant:
            plain = plain and kind in _CONCRETE_CONSTANTS
            parts.append(keys.of(value, True))
        elif kind is int:
            parts.append((int, _is_narrow(value)))
        elif kind is float or kind is bool:
            parts.append((kind, True))
        else:
            plain = plain and value is None
            parts.append(keys.of(value))
    if not plain:
        return (*parts, aliasing(values))
    return (*parts, None if len(set(storages)) == len(storages) else _groups(storages))


class TensorSignature(NamedTuple):
    """The part of a key for one tensor of dynamic shape, from which guards in Python and in C++ are made.

    Sizes and strides are numbers in tuples if they are compiled in, else classes (``SizeClasses``).
    """

    dtype: torch.dtype
    sizes: tuple[tuple[int] | int, ...]
    strides: tuple[tuple[int] | int, ...]
    device: str
    wide: bool

    def known(self) -> tuple[list[int | None], list[int | None]]:
        """Return sizes and strides that are compiled in, None for the others."""
        sizes, strides = ([n[0] if isinstance(n, tuple) else None for n in each] for each in (self.sizes, self.strides))
        return sizes, strides

    def classes(self) -> tuple[int, ...]:
        """Return the classes of the other numbers, sizes before strides."""
        return tuple(n for n in (*self.sizes, *self.strides) if isinstance(n, int))


def class_of(key: Hashable) -> Hashable:
    """Return the part of a key that separates bound kernels.

    Of a tensor of dynamic sizes it has dtype, device and rank, whether offsets are wide, and fixed sizes. Other sizes,
    equal ones, and strides differ from call to call.
    """
    if isinstance(key, TensorSignature):
        sizes = tuple([n if isinstance(n, tuple) and n[0] >= SYMBOLIC else None for n in key.sizes])
        return (key.dtype, sizes, None, key.device, key.wide)
    return tuple(map(class_of, key)) if isinstance(key, tuple) else key


def has_small_sizes(key: Hashable) -> bool:
    """Return whether a dynamic size in a key is 0 or 1, for which code of other sizes may be right too."""
    if isinstance(key, TensorSignature):
        return any(isinstance(n, tuple) and n[0] < SYMBOLIC for n in key.sizes)
    return isinstance(key, tuple) and any(map(has_small_sizes, key))


def with_a_batch(values: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return arguments like these, with a longer first dimension where it has one element or none; None if it never has.

    Of such tensors only dtype, sizes, strides and device are like the given ones. Tensors that share memory give None:
    separate tensors would hide it.
    """
    if aliasing(values) is not None:
        return None
    taken = {n for tensor in tensors_in(values) for n in (*tensor.shape, *tensor.stride())}
    longer = next(n for n in itertools.count(SYMBOLIC) if n not in taken)

    def like(value: Any) -> Any:
        if type(value) is not torch.Tensor or not value.dim() or value.size(0) >= SYMBOLIC or 0 in static_dims(value):
            return value
        shape = (longer, *value.shape[1:])
        return torch.empty_strided(shape, value.stride(), dtype=value.dtype, device=value.device)

    made = tuple(map(like, values))
    return None if all(a is b for a, b in zip(made, values, strict=True)) else made


def signature_of(tensor: torch.Tensor, classes: SizeClasses, *, static: bool = False) -> TensorSignature:
    """Return the signature of a tensor.

    ``classes`` has those of the tensors before; with ``static`` all numbers are compiled in.
    """
    sizes: tuple[int, ...] = tensor.shape
    strides: tuple[int, ...] = tensor.stride()
    if type(tensor) not in CONCRETE_TENSORS:
        sizes, strides = tuple(map(int, sizes)), tuple(map(int, strides))
    if static:
        parts = (classes.of(sizes, range(len(sizes))), classes.of(strides, range(len(strides))))
    else:
        fixed = static_dims(tensor) if hasattr(tensor, "_dynamo_static_indices") else ()
        parts = (classes.of(sizes, fixed), classes.of(strides))
    wide = has_wide_offsets(sizes, strides)
    return tuple.__new__(TensorSignature, (tensor.dtype, *parts, tensor.device.type, wide))  # half the time of a call


def size_table(signatures: Iterable[TensorSignature]) -> SizeTable:
    """Return the table that a native guard compares the classes of such tensors with."""
    each = tuple(signatures)
    classes = tuple(n for signature in each for n in signature.classes())
    return SizeTable(classes=classes, wide=tuple(signature.wide for signature in each), symbolic=SYMBOLIC, limit=WIDE)


def beyond_64_bits(value: int, argument: str = "a kernel argument") -> str:
    """Return the message about an integer that no kernel takes."""
    return (
        f"{argument} of {value} does not fit a signed integer of 64 bits; pass it as a float, or as {value % 2**63}, "
        "which is its remainder by 2**63, where it is a seed"
    )


def _is_narrow(value: int) -> bool:
    """Return whether an integer is passed in 32 bits. Raises OverflowError for one that does not fit 64 bits."""
    if -WIDE <= value < WIDE:
        return True
    if not -(2**63) <= value < 2**63:
        raise OverflowError(beyond_64_bits(value))
    return False


class Keys:
    """Source of the keys of one call's arguments.

    With dynamic shapes a size or stride is keyed by its class: 0 and 1 by value, others by the first earlier one they
    equal.
    """

    def __init__(self, static: bool, baked: bool = False) -> None:
        self._static = static
        self._baked = baked
        self._classes = SizeClasses()
        self._inside: tuple[types.FunctionType, ...] = ()

    def of(self, value: Any, constant: bool = False) -> Hashable:
        """Return the part of an argument that compiled code depends on.

        Raises TypeError for a kind that kernels do not take.
        """
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, ConstExpr):
            return ("constexpr", self.of(value.value, True))
        if isinstance(value, types.FunctionType):
            return self.function(value, constant)
        if isinstance(value, types.MethodType) and isinstance(value.__func__, types.FunctionType):
            return (types.MethodType, self.function(value.__func__, constant), Same(value.__self__))
        if isinstance(value, functools.partial):
            static = Keys(static=True, baked=True)
            keywords = tuple((name, static.of(v, constant)) for name, v in value.keywords.items())
            given = (static.of(v, constant) for v in value.args)
            return (functools.partial, self.of(value.func, constant), *given, keywords)
        if constant or (self._baked and is_constant(value)):
            return exact_key(value, self._other_constant)
        if value is None or isinstance(value, (str, torch.dtype, torch.device, torch.Size)):
            return (type(value), value)
        if isinstance(value, (bool, int, float)):
            # numbers are passed at run time; integers beyond 32 bits have code of their own
            return (type(value), isinstance(value, float) or _is_narrow(value))
        if isinstance(value, (tuple, list)):
            return (type(value), *map(self.of, value))
        if isinstance(value, dict):
            return (dict, *((exact_key(k), self.of(v)) for k, v in value.items()))
        if isinstance(value, _BUILTIN_FUNCTIONS):
            return value
        if isinstance(value, torch.fx.GraphModule):
            return (type(value).__name__, value.code)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return (type(value), *(self.of(getattr(value, f.name)) for f in dataclasses.fields(value)))
        if isinstance(value, torch.nn.Module) or isinstance(vars(type(value)).get("__call__"), types.FunctionType):
            return (type(value), Same(value))
        raise TypeError(
            f"a kernel argument of type {type(value).__name__} is not supported; pass tensors, numbers, strings, dtypes, "
            f"functions, or tuples, lists, dicts and dataclasses of them{_remedy(value)}"
        )

    def _other_constant(self, value: Any) -> Hashable:
        """Return the key of a part of a constant that is none itself: its object, where it is no tensor or function."""
        if isinstance(value, (torch.Tensor, ConstExpr, types.FunctionType, types.MethodType, functools.partial)):
            return self.of(value, True)
        return (type(value), value)

    def tensor(self, value: torch.Tensor) -> Hashable:
        check_layout(value)
        if self._static:
            return (value.dtype, tuple(value.shape), tuple(value.stride()), value.device.type)
        return signature_of(value, self._classes)

    def function(self, fn: types.FunctionType, constant: bool = False) -> Hashable:
        """Return the key of a function: its code and all it closes over, numbers by their bits, tensors by type and shape.

        A ``constant`` one may close over any object that is hashable.
        """
        if any(fn is other for other in self._inside):  # a function that calls itself
            return None
        static = Keys(static=True, baked=True)
        static._inside = (*self._inside, fn)
        cells: list[Hashable] = []
        for cell in fn.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # not assigned yet
                cells.append(None)
                continue
            cells.append(static.of(content, constant))
        defaults = tuple(static.of(v, constant) for v in fn.__defaults__ or ())
        keywords = tuple((name, static.of(v, constant)) for name, v in (fn.__kwdefaults__ or {}).items())
        # equal code of two modules reads the globals of each
        return (fn.__code__, Same(fn.__globals__), tuple(cells), defaults, keywords)


class Same:
    """Wrapper that is equal only for the same object, which it does not keep alive."""

    __slots__ = ("_hash", "_value")

    def __init__(self, value: Any) -> None:
        self._hash = id(value)
        try:
            self._value: Callable[[], Any] = weakref.ref(value)
        except TypeError:  # namespaces of modules among others
            self._value = lambda: value

    def __eq__(self, other: object) -> bool:
        value = self._value()
        return isinstance(other, Same) and value is not None and other._value() is value

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"the same {type(self._value()).__name__}"


def _remedy(value: Any) -> str:
    """Suggest a replacement for a value of a kind that kernels do not take."""
    if isinstance(value, enum.Enum):
        return "; annotate the parameter as hl.constexpr, or pass the member's value"
    if isinstance(value, torch.nn.Module):
        return "; pass its parameters as tensors, and what it computes as a plain function"
    if type(value).__module__ == "numpy":
        return "; pass torch.from_numpy(array), or int(number) and float(number)"
    if isinstance(value, (set, frozenset, range)):
        return "; pass a tuple of its items"
    if isinstance(value, complex):
        return "; pass its real and imaginary part"
    if callable(value):
        return "; write a plain function or lambda around what is called, which may close over tensors and numbers"
    return "; a hashable constant can be passed to a parameter annotated as hl.constexpr"


# checks type, dispatch keys, dtype, device and sizes of any number of tensors in one call, 40 ns each
TensorGuards: Any = getattr(getattr(torch._C._dynamo, "guards", None), "TensorGuards", None)

Key = tuple[Hashable, ...]

_TENSORS = frozenset(CONCRETE_TENSORS)
#: Types of arguments without tensors inside.
_PLAIN = _TENSORS | {int, float, bool, str, type(None)}
_CONCRETE_CONSTANTS = (int, float, bool, str, type(None))
_BUILTIN_FUNCTIONS = (types.BuiltinFunctionType, type(torch.Tensor.exp), type(torch.Tensor.__add__))


def any_device(key: Hashable) -> Any:
    """Return a key without the devices of the tensors in it."""
    if not isinstance(key, tuple):
        return key
    if len(key) > 3 and isinstance(key[0], torch.dtype):
        key = (*key[:3], *key[4:])
    return tuple(map(any_device, key))


def check_layout(tensor: torch.Tensor) -> None:
    """Raise TypeError for sparse tensors and others without strides."""
    if tensor.is_nested:
        raise TypeError(
            "a kernel argument is a nested tensor; kernels address memory by strides: pass its values() and its offsets "
            "(with layout=torch.jagged), or to_padded_tensor(0.0)"
        )
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"a kernel argument is a tensor with layout {tensor.layout}; kernels address memory by strides: pass its "
            "parts (crow_indices(), col_indices(), values() ...) or to_dense()"
        )


def aliasing(values: Sequence[Any]) -> Hashable:
    """Return which tensors among the arguments and their functions' closures share memory.

    Each has the position of the first one with the same storage.
    """
    tensors = list(tensors_in(values, closures=True))
    if len(tensors) < 2:
        return None
    first = shared_memory(tensors)
    return None if len(set(first)) == len(first) else tuple(first)


def _groups(storages: Sequence[int]) -> tuple[int, ...]:
    first: dict[int, int] = {}
    return tuple(first.setdefault(storage, at) for at, storage in enumerate(storages))


def ask(value: Any, step: tuple[Any, ...]) -> Any:
    """Call a method, given as its name and its arguments."""
    method, *given = step
    if method == ROW_MAJOR:
        return is_row_major(value)
    if method == "is_contiguous" and given:
        return value.is_contiguous(memory_format=given[0])
    return getattr(value, method)(*given)


def pick(values: tuple[Any, ...], origin: tuple[Any, ...]) -> Any:
    """Return the number that ``origin``, a path ``("arg", position, ...)``, leads to."""
    _, at, *rest = origin
    value = values[at]
    for step in rest:
        if isinstance(step, tuple):
            value = ask(value, step)
        elif isinstance(step, str) and not isinstance(value, dict):
            value = getattr(value, step)
        else:
            value = value[step]
    return value


class UsualInputs:
    """Fast check that arguments are like those of a former call in everything that ``inputs.check_call`` checks.

    It is one call of C++ instead of one of Python for each property (measurement ``host_calls``).
    """

    def __init__(self) -> None:
        self._known: tuple[int, Callable[..., bool]] | None = None

    def learn(self, values: Sequence[Any]) -> None:
        """Record arguments that were found to be plain memory without gradients as usual."""
        tensors = [value for value in values if type(value) in _TENSORS]
        if TensorGuards is None or not tensors or not _PLAIN.issuperset(map(type, values)):
            return
        any_size: list[list[None]] = [[None] * tensor.dim() for tensor in tensors]
        check = TensorGuards(*tensors, dynamic_dims_sizes=any_size, dynamic_dims_strides=any_size).check
        self._known = (len(tensors), check)

    def hold(self, values: Sequence[Any]) -> bool:
        """Return whether arguments have the usual dispatch keys, dtypes, devices and ranks, and no forward-mode
        gradients.
        """
        known = self._known
        if known is None or forward_ad._current_level >= 0:
            return False
        if not _TENSORS.issuperset(map(type, values)):
            if not _PLAIN.issuperset(map(type, values)):
                return False
            values = [value for value in values if type(value) in _TENSORS]
        # a nested tensor that is asked for its strides, as the check does, ends the process
        return len(values) == known[0] and not any(value.is_nested for value in values) and known[1](*values)


# --- the target ----------------------------------------------------------------------------------------------------------

_NUMBERS = itertools.count()
_TOKENS: dict[int, tuple[hardware.Target, int]] = {}


def target_of(kernel: str, values: tuple[Any, ...]) -> hardware.Target:
    """Return the target of CUDA tensors among the arguments, else ``HELION_TARGET``. Raises ``exc.NoTensorArgs``."""
    device = next((v.device for v in values if type(v) in CONCRETE_TENSORS), None)
    if device is None:
        device = next((t.device for t in tensors_in(values)), None)
    if device is None:
        device = next((v for v in values if isinstance(v, torch.device)), None)
    if device is None:
        raise exc.NoTensorArgs(kernel=kernel, got=kinds(values))
    if device.type == "cuda" and torch.cuda.is_available():
        return hardware.from_device_properties(
            device.index if device.index is not None else torch.cuda.current_device()
        )
    return hardware.target(knobs.TARGET.read() or hardware.DEFAULT_TARGET)


def token(target: hardware.Target) -> int:
    """Return a number for a target, equal for equal ones; hashing all its fields is slower than a whole call."""
    known = _TOKENS.get(id(target))
    if known is None or known[0] is not target:
        if len(_TOKENS) >= 256:
            _TOKENS.clear()
        known = _TOKENS[id(target)] = (target, _number_of(target))
    return known[1]


@functools.lru_cache(maxsize=256)
def _number_of(target: hardware.Target) -> int:
    return next(_NUMBERS)
