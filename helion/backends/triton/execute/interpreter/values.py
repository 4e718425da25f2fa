"""Values inside an interpreted kernel.

``Handle`` replaces an IR value in Triton's semantic layer: here a numpy array. ``Tensor`` and ``Descriptor`` are
subclasses of ``triton.language``'s own classes whose operators and methods have their semantic object. So nothing of
``triton.language`` is replaced while a kernel runs.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.jit import JITCallable

from .numerics import HELD


class Handle:
    """A value: array ``data``, scalar type ``dtype`` (a number type or a pointer) and logical ``shape``.

    ``data`` broadcasts to ``shape`` and need not have it: a splat scalar stays an array of shape (1,) until an
    operation that depends on positions calls :meth:`full`. A scalar has shape () and data of shape (1,). Wrapped arrays
    are never written to.
    """

    __slots__ = ("data", "dtype", "shape")

    def __init__(self, data: np.ndarray, dtype: tl.dtype, shape: tuple[int, ...] | None = None) -> None:
        self.data = data
        self.dtype = dtype
        self.shape = data.shape if shape is None else shape

    def full(self) -> np.ndarray:
        """Return the data in the logical shape (read-only where it had to be broadcast)."""
        data, shape = self.data, self.shape
        if data.shape == shape or not shape:
            return data
        return np.broadcast_to(data, shape)


class Dim(int):
    """A block's extent: an int with a ``.value``, which Triton's code reads from its constexprs."""

    __slots__ = ()

    @property
    def value(self) -> int:
        return int(self)


class Block(tl.block_type):
    """An interned block type; made only by :func:`block`. ``dims`` is the shape as a tuple of ints."""

    dims: tuple[int, ...]

    def __init__(self, element: tl.dtype, dims: tuple[int, ...]) -> None:
        # Not the base's: it rejects extents that are not powers of two, which halves of a scan may have. Shapes that a
        # kernel requests pass through the base class in Triton's own code.
        self.element_ty = element
        self.dims = dims
        self.shape = tl.tuple([Dim(d) for d in dims])
        self.numel = math.prod(dims)
        self.name = f"<{list(dims)}, {element}>"

    def with_element_ty(self, scalar_ty: tl.dtype) -> tl.dtype:
        return block(scalar_ty, self.dims)


_scalars: dict[str, tl.dtype] = {
    t.name: t
    for t in vars(tl).values()
    if isinstance(t, tl.dtype) and not isinstance(t, (tl.block_type, tl.pointer_type))
}
_blocks: dict[tuple[str, tuple[int, ...]], Block] = {}


def scalar(dtype: tl.dtype) -> tl.dtype:
    """Return the interned object of a scalar type; equal types become identical."""
    return _scalars.setdefault(dtype.name, dtype)


def block(element: tl.dtype, dims: Iterable[int]) -> Block:
    """Return the interned object of the block type of scalar type ``element`` and shape ``dims``."""
    key = (element.name, dims if dims.__class__ is tuple else tuple(int(d) for d in dims))
    found = _blocks.get(key)
    if found is None:
        if len(_blocks) > 4096:  # shapes of a process are few; a test suite's are not
            _blocks.clear()
        found = _blocks[key] = Block(scalar(element), key[1])
    return found


_NO_SHAPE = tl.tuple([])
_ONE = Dim(1)


class Tensor(tl.tensor):
    """A ``tl.tensor`` whose handle is a :class:`Handle` (or a block pointer's) and whose type is interned."""

    def __init__(self, handle: Any, type: tl.dtype) -> None:
        kind = type.__class__
        if kind is not Block and type.is_block():
            type = block(type.scalar, type.shape)
            kind = Block
        if kind is Block:
            self.shape = type.shape
            self.numel = Dim(type.numel)
            dtype = type.element_ty
            dims = type.dims
        else:
            type = dtype = scalar(type)
            self.shape = _NO_SHAPE
            self.numel = _ONE
            dims = ()
        self.type = type
        self.dtype = dtype
        self.handle = handle
        if handle.__class__ is Handle:
            handle.shape = dims
            held = HELD.get(dtype.name)
            # IR integers have no sign; the type that Triton's semantic layer gives the result decides.
            if held is not None and handle.data.dtype != held:
                handle.data = _with_sign(handle.data, held)
            handle.dtype = dtype

    @property
    def T(self) -> Tensor:
        return self.permute(1, 0)

    def __repr__(self) -> str:
        content = self.handle.full() if isinstance(self.handle, Handle) else self.handle
        return f"{self.dtype}{list(self.shape)} {content}"

    __str__ = __repr__


def _with_sign(data: np.ndarray, held: np.dtype) -> np.ndarray:
    if data.dtype.kind not in "iu" or held.kind not in "iu" or data.dtype.itemsize != held.itemsize:
        raise TypeError(f"interpreter: an operation returned {data.dtype} instead of {held}")
    return data.view(held)


class Descriptor(tl.tensor_descriptor):
    """A ``tl.tensor_descriptor`` whose methods have their semantic object."""


def binary_shape(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the common shape of two blocks under Triton's rule (a missing or 1 extent stretches), or None."""
    if len(left) < len(right):
        left = (1,) * (len(right) - len(left)) + left
    elif len(right) < len(left):
        right = (1,) * (len(left) - len(right)) + right
    result = []
    for a, b in zip(left, right, strict=True):
        if a != b and a != 1 and b != 1:
            return None
        result.append(b if a == 1 else a)
    return tuple(result)


def bind_builtin(function: Callable[..., Any], semantic: object) -> Callable[..., Any]:
    """Return a ``triton.language`` builtin as an ordinary function that returns this module's values."""
    takes_semantic = "_semantic" in inspect.signature(function).parameters

    def call(*args: Any, **kwargs: Any) -> Any:
        if takes_semantic:
            kwargs["_semantic"] = semantic
        return own(function(*args, **kwargs))

    call.__name__ = getattr(function, "__name__", "builtin")
    return call


def own(value: Any) -> Any:
    """Return the result ``value`` of a Triton builtin, with Triton's own tensors and constexprs replaced by ours."""
    kind = value.__class__
    if kind is Tensor or value is None:
        return value
    if kind is tl.tensor:
        return Tensor(value.handle, value.type)
    if kind is tl.constexpr:
        return value.value
    if kind is tuple or kind is list:
        return kind(own(v) for v in value)
    if kind is tl.tuple:
        return tl.tuple([own(v) for v in value.values], value.type)
    if kind is tl.tensor_descriptor:
        return Descriptor(value.handle, own(value.shape).values, own(value.strides).values, value.block_type)
    return value


def bind_methods(semantic: object, interpreted: Callable[[JITCallable], Callable[..., Any]]) -> None:
    """Give :class:`Tensor` and :class:`Descriptor` their operators and methods.

    ``interpreted`` turns a ``@triton.jit`` function (``x.sum`` and the like are such) into a Python function.
    """
    for ours, theirs in ((Tensor, tl.tensor), (Descriptor, tl.tensor_descriptor)):
        done = {name for name, value in vars(ours).items() if isinstance(value, (types.FunctionType, property))}
        for name in dir(theirs):
            if name in done:
                continue
            member = inspect.getattr_static(theirs, name)
            if isinstance(member, JITCallable):
                setattr(ours, name, _jit_method(name, interpreted(member)))
            elif tl.core.is_builtin(member):
                setattr(ours, name, _builtin_method(name, member, semantic))


def _jit_method(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    method.__name__ = name
    return method


def _builtin_method(name: str, function: Callable[..., Any], semantic: object) -> Callable[..., Any]:
    def method(self: Any, *args: Any, _semantic: object = None, **kwargs: Any) -> Any:
        return own(function(self, *args, _semantic=semantic, **kwargs))

    method.__name__ = name
    return method
