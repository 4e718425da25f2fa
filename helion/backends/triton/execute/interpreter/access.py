"""Memory operations of the builder: loads, stores, block pointers, tensor descriptors, atomics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir

from . import numerics
from .elementwise import signed, unsigned
from .memory import Memory
from .numerics import HELD, NARROW, RAW
from .races import RaceDetector
from .ranks import RankWatch
from .values import Handle

_BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "ADD": np.add,
    "FADD": np.add,
    "MAX": np.maximum,
    "UMAX": np.maximum,
    "FMAX": np.fmax,
    "MIN": np.minimum,
    "UMIN": np.minimum,
    "FMIN": np.fmin,
    "AND": np.bitwise_and,
    "OR": np.bitwise_or,
    "XOR": np.bitwise_xor,
    "XCHG": lambda old, new: new,
}

_POINTER = np.dtype(np.uint64)


def _itemsize(element: tl.dtype) -> int:
    return max(1, element.primitive_bitwidth // 8)


def _is_volatile(options: Sequence[Any]) -> bool:
    """Return whether a load is volatile, by the options of the builder's method: cache, eviction, volatile."""
    return bool(options) and options[-1] is True


def _raw_dtype(element: tl.dtype) -> np.dtype:
    return RAW.get(element.name, _POINTER)


def _ints(handles: Sequence[Handle]) -> tuple[int, ...]:
    return tuple(int(h.data.reshape(-1)[0]) for h in handles)


class Window:
    """A block-shaped view of a strided tensor: a ``tl.make_block_ptr`` value or a tensor descriptor.

    ``strides`` and ``offsets`` count elements, ``extents`` are the tensor's, ``dims`` is the block's shape.
    ``fill_nan``: elements outside read as NaN instead of 0.
    """

    __slots__ = ("base", "dims", "extents", "fill_nan", "offsets", "strides")

    def __init__(
        self,
        base: Handle,
        extents: Sequence[int],
        strides: Sequence[int],
        offsets: Sequence[int],
        dims: Sequence[int],
        fill_nan: bool,
    ) -> None:
        self.base = base
        self.extents = tuple(extents)
        self.strides = tuple(strides)
        self.offsets = tuple(offsets)
        self.dims = tuple(int(d) for d in dims)
        self.fill_nan = fill_nan

    def at(self, offsets: Sequence[int]) -> Window:
        return Window(self.base, self.extents, self.strides, offsets, self.dims, self.fill_nan)

    def elements(self, checked_dims: Sequence[int] | None = None) -> tuple[Handle, Handle]:
        """Return addresses of the block's elements, and a mask of those inside the tensor in ``checked_dims`` (default
        all).
        """
        rank = len(self.dims)
        itemsize = _itemsize(self.base.dtype.element_ty)
        address = self.base.data.view(np.int64).reshape((1,) * rank)
        inside = np.ones((1,) * rank, bool)
        for d in range(rank):
            index = self.offsets[d] + np.arange(self.dims[d], dtype=np.int64)
            index = index.reshape((1,) * d + (-1,) + (1,) * (rank - 1 - d))
            address = address + index * (self.strides[d] * itemsize)
            if checked_dims is None or d in checked_dims:
                inside = inside & (index >= 0) & (index < self.extents[d])
        return Handle(address.view(np.uint64), self.base.dtype, self.dims), Handle(inside, tl.int1, self.dims)


class Access:
    """Builder methods that access memory."""

    memory: Memory
    #: Detector of data races of a launch, if requested, or the watch of a simulated rank.
    races: RaceDetector | RankWatch | None = None

    @property
    def place(self) -> str:
        """The kernel and program, for messages."""
        raise NotImplementedError

    def create_load(self, pointers: Handle, *rest: Any) -> Handle:
        return self.create_masked_load(pointers, None, None, *rest)

    def create_masked_load(self, pointers: Handle, mask: Handle | None, other: Handle | None, *rest: Any) -> Handle:
        element = pointers.dtype.element_ty
        marked = isinstance(self.races, RankWatch) and _is_volatile(rest) and self.races.marked_at(pointers) is not None
        if self.races is not None and not marked:
            self.races.load(pointers, mask, _raw_dtype(element).itemsize)
        raw = self.memory.load(
            pointers.data,
            None if mask is None else mask.data,
            None if other is None else numerics.encode(other.data, element.name),
            _raw_dtype(element),
        )
        if isinstance(self.races, RankWatch) and marked:
            self.races.poll(pointers, mask, raw)
        elif self.races is not None and _is_volatile(rest):
            self.races.polled(pointers, raw)
        return Handle(numerics.decode(raw, element.name), element, pointers.shape)

    def create_store(self, pointers: Handle, value: Handle, *_: Any) -> None:
        self.create_masked_store(pointers, value, None)

    def create_masked_store(self, pointers: Handle, value: Handle, mask: Handle | None, *_: Any) -> None:
        raw = numerics.encode(value.data, value.dtype.name)
        if self.races is not None:
            self.races.store(pointers, raw, mask)
        self.memory.store(pointers.data, raw, None if mask is None else mask.data)

    def create_addptr(self, pointer: Handle, offset: Handle) -> Handle:
        steps = offset.data.astype(np.int64)
        itemsize = _itemsize(pointer.dtype.element_ty)
        if itemsize > 1:
            np.multiply(steps, itemsize, out=steps)
        return Handle(pointer.data + steps.view(np.uint64), pointer.dtype, pointer.shape)

    def create_int_to_ptr(self, source: Handle, target: tl.dtype) -> Handle:
        self.memory.made_pointers()
        return Handle(source.data.astype(np.int64).view(np.uint64), target.scalar, source.shape)

    # Block pointers (Triton 3.8 and older).

    def create_make_block_ptr(
        self,
        base: Handle,
        shape: Sequence[Handle],
        strides: Sequence[Handle],
        offsets: Sequence[Handle],
        dims: Sequence[int],
        _order: Sequence[int],
    ) -> Window:
        return Window(base, _ints(shape), _ints(strides), _ints(offsets), dims, False)

    def create_advance(self, window: Window, offsets: Sequence[Handle]) -> Window:
        return window.at([a + b for a, b in zip(window.offsets, _ints(offsets), strict=True)])

    def create_tensor_pointer_load(self, window: Window, dims: Sequence[int], padding: Any, *_: Any) -> Handle:
        return self._padded_load(*window.elements(dims), padding == ir.PADDING_OPTION.PAD_NAN)

    def create_tensor_pointer_store(self, window: Window, value: Handle, dims: Sequence[int], *_: Any) -> None:
        pointers, inside = window.elements(dims)
        self.create_masked_store(pointers, value, inside)

    def _padded_load(self, pointers: Handle, inside: Handle, nan: bool) -> Handle:
        element = pointers.dtype.element_ty
        other = Handle(np.full(1, np.nan, HELD[element.name]), element, ()) if nan else None
        return self.create_masked_load(pointers, inside, other)

    # Tensor descriptors.

    def create_make_tensor_descriptor(
        self,
        base: Handle,
        shape: Sequence[Handle],
        strides: Sequence[Handle],
        dims: Sequence[int],
        _is_signed: bool,
        padding: Any = None,
    ) -> Window:
        window = Window(base, _ints(shape), _ints(strides), [0] * len(dims), dims, padding == ir.PADDING_OPTION.PAD_NAN)
        itemsize = _itemsize(base.dtype.element_ty)
        address = int(base.data[0])
        if address % 16:
            raise ValueError(
                f"{self.place}: a tensor descriptor needs a base address that is a multiple of 16 bytes, got "
                f"{address:#x}. Pass a tensor whose storage offset is one."
            )
        if any(stride * itemsize % 16 for stride in window.strides[:-1]):
            raise ValueError(
                f"{self.place}: a tensor descriptor needs outer strides that are multiples of 16 bytes, got "
                f"{window.strides[:-1]} elements of {itemsize} bytes. Pad the rows, or use pointers."
            )
        return window

    def create_descriptor_load(self, window: Window, offsets: Sequence[Handle], *_: Any) -> Handle:
        return self._padded_load(*window.at(_ints(offsets)).elements(), window.fill_nan)

    def create_descriptor_store(self, window: Window, value: Handle, offsets: Sequence[Handle]) -> None:
        placed = window.at(_ints(offsets))
        row, width = placed.extents[-1], _itemsize(window.base.dtype.element_ty)
        if row * width % 16 and placed.offsets[-1] + placed.dims[-1] > row:
            raise ValueError(
                f"{self.place}: a tensor descriptor stores whole groups of 16 bytes, and a tile passes the end of a row of "
                f"{row} elements of {width} bytes. Pad the rows, or use pointers."
            )
        pointers, inside = placed.elements()
        self.create_masked_store(pointers, value, inside)

    def create_descriptor_reduce(self, kind: Any, window: Window, value: Handle, offsets: Sequence[Handle]) -> None:
        operation = kind.name
        if operation in ("ADD", "MIN", "MAX"):
            if value.dtype.is_floating():
                operation = f"F{operation}"
            elif value.dtype.is_int_unsigned() and operation != "ADD":
                operation = f"U{operation}"
        pointers, inside = window.at(_ints(offsets)).elements()
        self._atomic(operation, pointers, value, inside)

    def _rows(self, window: Window, rows: Handle, column: Handle) -> tuple[Handle, Handle]:
        """Return addresses of one block row for each entry of ``rows``, and a mask of those inside the tensor."""
        parts = [window.at((int(row), *_ints([column]))).elements() for row in rows.full()]
        shape = (len(parts), window.dims[1])
        pointers = np.concatenate([p.full() for p, _ in parts])
        inside = np.concatenate([i.full() for _, i in parts])
        return Handle(pointers, window.base.dtype, shape), Handle(inside, tl.int1, shape)

    def create_descriptor_gather(self, window: Window, rows: Handle, column: Handle, _type: tl.dtype) -> Handle:
        return self._padded_load(*self._rows(window, rows, column), window.fill_nan)

    def create_descriptor_scatter(self, window: Window, value: Handle, rows: Handle, column: Handle) -> None:
        pointers, inside = self._rows(window, rows, column)
        self.create_masked_store(pointers, value, inside)

    # Atomics.

    def create_atomic_rmw(
        self, operation: Any, pointers: Handle, value: Handle, mask: Handle, sem: Any = None, scope: Any = None, *_: Any
    ) -> Handle:
        return self._atomic(operation.name, pointers, value, mask, sem, scope)

    def _atomic(
        self, operation: str, pointers: Handle, value: Handle, mask: Handle, sem: Any = None, scope: Any = None
    ) -> Handle:
        name = value.dtype.name
        if self.races is not None:
            self.races.atomic(pointers, mask, _raw_dtype(value.dtype).itemsize, sem, scope)
        values = np.broadcast_to(value.data, pointers.full().shape).reshape(-1)
        if operation in ("MAX", "MIN"):
            values = signed(values)
        elif operation in ("UMAX", "UMIN"):
            values = unsigned(values)
        function = _BINARY[operation]

        def change(old: np.ndarray, lanes: np.ndarray) -> np.ndarray:
            result = function(numerics.decode(old, name).view(values.dtype), values[lanes])
            if name in NARROW:
                result = numerics.round_narrow(result, name)
            return numerics.encode(result, name).view(old.dtype)

        every = np.broadcast_to(mask.data, pointers.full().shape)
        old = self._update(pointers, every, _raw_dtype(value.dtype), change, sem, scope)
        return Handle(numerics.decode(old, name), value.dtype, pointers.shape)

    def _update(
        self,
        pointers: Handle,
        active: np.ndarray,
        raw: np.dtype,
        change: Callable[[np.ndarray, np.ndarray], np.ndarray],
        sem: Any,
        scope: Any,
    ) -> np.ndarray:
        """Update the active lanes and return the old bits."""
        addresses = pointers.full()
        old = self.memory.update(addresses, active, raw, change)
        if self.races is not None and active.any():
            new = self.memory.load(addresses[active], None, None, raw)
            self.races.updated(addresses[active], old[active], new, sem, scope)
        return old

    def create_atomic_cas(
        self, pointers: Handle, compare: Handle, value: Handle, sem: Any = None, scope: Any = None, *_: Any
    ) -> Handle:
        name, raw = value.dtype.name, _raw_dtype(value.dtype)
        if self.races is not None:
            self.races.atomic(pointers, None, raw.itemsize, sem, scope)
        addresses = pointers.full()
        bits = f"u{raw.itemsize}"
        expected, desired = (
            np.broadcast_to(numerics.encode(h.data, name), addresses.shape).reshape(-1) for h in (compare, value)
        )

        def change(old: np.ndarray, lanes: np.ndarray) -> np.ndarray:
            return np.where(old.view(bits) == expected[lanes].view(bits), desired[lanes], old)

        old = self._update(pointers, np.ones(addresses.shape, bool), raw, change, sem, scope)
        return Handle(numerics.decode(old, name), value.dtype, pointers.shape)

    def create_atomic_load(self, pointers: Handle, mask: Handle, *_: Any) -> Handle:
        return self.create_masked_load(pointers, mask, None)

    def create_atomic_store(self, pointers: Handle, value: Handle, mask: Handle, *_: Any) -> None:
        self.create_masked_store(pointers, value, mask)

    def create_atomic_poll(self, pointers: Handle, expected: Handle, timeout: Any, *_: Any) -> Handle:
        found = np.equal(self.create_load(pointers).data, expected.data)
        if not found.all() and not isinstance(timeout, Handle):
            raise RuntimeError(
                f"{self.place}: tl.atomic_poll would wait forever. Programs run one after the other on CPU tensors, "
                "and none of the earlier ones wrote the value waited for; wait only for programs with smaller ids."
            )
        return Handle(found, tl.int1, pointers.shape)
