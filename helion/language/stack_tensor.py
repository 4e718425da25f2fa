"""Many tensors of one shape, by their addresses."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from .. import exc
from . import memory
from ._reference import access
from ._registry import declare, reference


class _Fields(NamedTuple):
    tensor_like: Any
    dev_ptrs: Any


class StackTensor(_Fields, access.Accessible):
    """Tensors of the shape, strides and dtype of ``tensor_like``, at the addresses in ``dev_ptrs`` (see
    ``hl.stacktensor_like``).

    ``tensor_like`` is a host tensor and ``dev_ptrs`` a device tensor of torch.uint64, of any shape. ``stack[index]``
    loads ``tensor_like[index]`` of each: its shape is that of ``dev_ptrs``, then that of the selected elements.
    ``stack[index] = value`` broadcasts ``value`` to that shape and stores each slice into its tensor. ``hl.load`` and
    ``hl.store`` take it too; atomic operations do not.
    """

    __slots__ = ()

    @property
    def shape(self) -> Any:
        """The shape of ``dev_ptrs``, then that of ``tensor_like``."""
        return (*self.dev_ptrs.shape, *self.tensor_like.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor_like.dtype

    @property
    def device(self) -> torch.device:
        return self.tensor_like.device

    def new_empty(self, *args: Any, **kwargs: Any) -> Any:
        """Create a tensor as ``tensor_like.new_empty`` does."""
        return self.tensor_like.new_empty(*args, **kwargs)

    def __getitem__(self, index: Any) -> Any:
        return memory.load(self, list(index) if isinstance(index, tuple) else [index])

    def __setitem__(self, index: Any, value: Any) -> None:
        memory.store(self, list(index) if isinstance(index, tuple) else [index], value)

    def load_eagerly(self, index: Any, mask: Any) -> torch.Tensor:
        each = tensors_of(self)
        shape = (*self.dev_ptrs.shape, *access.select(self.tensor_like, index).shape)
        if not each:
            return self.tensor_like.new_empty(shape)
        masks = _apart(mask, shape, self.dev_ptrs.ndim)
        return torch.stack([access.load(t, index, m) for t, m in zip(each, masks, strict=False)]).reshape(shape)

    def store_eagerly(self, index: Any, value: Any, mask: Any) -> None:
        shape = (*self.dev_ptrs.shape, *access.select(self.tensor_like, index).shape)
        values = access.stored_value(self.tensor_like, value, shape).reshape(-1, *shape[self.dev_ptrs.ndim :])
        masks = _apart(mask, shape, self.dev_ptrs.ndim)
        for tensor, stored, chosen in zip(tensors_of(self), values, masks, strict=False):
            access.store(tensor, index, stored, chosen)


def _apart(mask: Any, shape: tuple[int, ...], rank: int) -> Iterator[Any]:
    """Yield the slice of a mask for each tensor of a stack, whose addresses have ``rank`` dimensions."""
    if mask is None:
        return itertools.repeat(None)
    return iter(access.fitted_mask(mask, shape).reshape(-1, *shape[rank:]))


@declare("device")
def stacktensor_like(tensor_like: torch.Tensor, dev_ptrs: torch.Tensor) -> StackTensor:
    """Treat tensors at many addresses as one: ``hl.stacktensor_like(like, ptrs[tile])[index]`` loads ``like[index]``
    of each.

    Lanes of ``dev_ptrs`` that are out of range are neither loaded nor stored. The memory at the addresses is not
    checked.

    Args:
        tensor_like: a host tensor of their shape, strides and dtype.
        dev_ptrs: the addresses of their first elements, a loaded tile of torch.uint64 of any shape.

    Returns:
        An ``hl.StackTensor``, whose shape is that of ``dev_ptrs``, then that of ``tensor_like``.

    Raises:
        exc.StackTensorcOnHost: called in host code.
        exc.StackTensorDevPtrOnHost: ``dev_ptrs`` is a host tensor.
        exc.StackTensorExampleOnDevice: ``tensor_like`` is a device value.
        exc.StackTensorDevPtrDtype: the addresses are not torch.uint64.

    Example::

        @helion.kernel
        def sum_of(like: torch.Tensor, addresses: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(like)
            for tile in hl.tile(like.size(0)):
                stack = hl.stacktensor_like(like, addresses[:])
                out[tile] = stack[tile].sum(0)
            return out

        tensors = [torch.ones(10), torch.ones(10)]
        sum_of(tensors[0], torch.tensor([t.data_ptr() for t in tensors], dtype=torch.uint64))
    """


def check_pointers(dtype: torch.dtype) -> None:
    """Raise ``exc.StackTensorDevPtrDtype`` for addresses that are not torch.uint64."""
    if dtype != torch.uint64:
        raise exc.StackTensorDevPtrDtype(got=dtype)


# --- eager references ---------------------------------------------------------------------------------------------------


@reference(stacktensor_like, "raw")
def _stacktensor_like(tensor_like: Any, dev_ptrs: Any) -> StackTensor:
    if not isinstance(dev_ptrs, torch.Tensor):
        raise exc.InvalidAPIUsage(f"The second argument of hl.stacktensor_like must be a tile, got {dev_ptrs!r}.")
    check_pointers(dev_ptrs.dtype)
    return StackTensor(tensor_like, dev_ptrs)


class _Memory:
    """Bytes at an address of a GPU, for ``torch.as_tensor``."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}


def _at(address: int, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor like ``like`` at an address."""
    last = sum((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True))
    size = (last + 1) * like.dtype.itemsize if like.numel() else 0
    if not size:
        return like
    if like.device.type == "cpu":
        content = torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)
    else:
        content = torch.as_tensor(_Memory(address, size), device=like.device)
    return content.view(like.dtype).as_strided(like.shape, like.stride())


def tensors_of(stack: StackTensor) -> list[torch.Tensor]:
    """Return the tensors of a stack, in row-major order of their addresses."""
    like = stack.tensor_like
    addresses = stack.dev_ptrs.view(torch.int64).reshape(-1).tolist()
    return [_at(address % 2**64, like) for address in addresses]
