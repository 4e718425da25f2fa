"""Rules for stack tensors: accesses by addresses that the kernel loads."""

from __future__ import annotations

from typing import Any

import torch

from .... import exc
from .... import language as hl
from ...._shapes import ONE, Dim, Dims, Number, broadcast_dims, fixed_at, number_key
from ....language.stack_tensor import StackTensor, check_pointers
from ...ir.grammar import AddressAttrs, Index
from .. import memory, ops, subscripts
from ..rules import Rules
from ..tracer import Tracer
from ..values import DeviceValue, HostTensorValue, describe, source_name

RULES = Rules()


@RULES.register(hl.stacktensor_like)
def _stacktensor_like(t: Tracer, tensor_like: Any, dev_ptrs: Any) -> StackTensor:
    if not isinstance(tensor_like, HostTensorValue):
        raise exc.StackTensorExampleOnDevice(got=describe(tensor_like))
    if isinstance(dev_ptrs, HostTensorValue):
        raise exc.StackTensorDevPtrOnHost(name=source_name(dev_ptrs))
    if not isinstance(dev_ptrs, DeviceValue):
        raise exc.InvalidAPIUsage(
            f"The second argument of hl.stacktensor_like must be a tile, got {describe(dev_ptrs)}."
        )
    check_pointers(dev_ptrs.dtype)
    ops.check_dtype(tensor_like.dtype)
    return StackTensor(tensor_like, dev_ptrs)


class _Accessed:
    """The elements that ``stack[index]`` selects: pointers, offsets, and the mask of lanes in range."""

    def __init__(self, t: Tracer, stack: StackTensor, index: Any, mask: Any) -> None:
        self.t = t
        self.like: HostTensorValue = stack.tensor_like
        self.pointers: DeviceValue = stack.dev_ptrs
        self.plan = subscripts.plan(t, self.like, index, checked=mask is not None)
        self.dims: Dims = (*self.pointers.dims, *self.plan.dims)
        memory.check_offsets(t, self.like)
        pointers = self._placed(ops.cast(t, self.pointers, torch.int64), 0)
        #: The operands of the access: pointers, offsets and mask.
        self.operands = (pointers.value, self._offsets().value, self._mask(mask).value)

    def _placed(self, value: DeviceValue, first: int) -> DeviceValue:
        """Return a value reshaped so that its dimensions are those of the result from ``first`` on."""
        after = len(self.dims) - first - value.ndim
        return ops.reshape(self.t, value, (*(ONE,) * first, *value.dims, *(ONE,) * after))

    def _lanes(self, index: Index) -> DeviceValue:
        """Return the indices in one dimension that an index selects."""
        t = self.t
        parts: list[Any] = []
        if index.kind == "block":
            assert index.block is not None
            parts.append(_indices(t, Dim(blocks=(index.block,))))
        if index.operand is not None:
            value = self.plan.operands[index.operand]
            parts.append(value if isinstance(value, (int, float)) else ops.wrap(t, value))
        if not fixed_at(index.shift, 0) or not parts:
            parts.append(index.shift)
        total = ops.as_device(t, parts[0])
        for part in parts[1:]:
            total = ops.pointwise(t, "add", total, part)
        return self._placed(total, len(self.pointers.dims) + (index.positions[0] if index.positions else 0))

    def _offsets(self) -> DeviceValue:
        """Return the offsets in elements from the start of each tensor."""
        t = self.t
        total = ops.full(t, (ONE,) * len(self.dims), 0, t.context.index_dtype)
        for index, stride in zip(self.plan.indices, self.like.strides, strict=True):
            lanes = self._lanes(index)
            if not (isinstance(stride, int) and stride == 1):
                lanes = ops.pointwise(t, "mul", lanes, stride)
            total = ops.pointwise(t, "add", total, lanes)
        return ops.broadcast(t, total, self.dims)

    def _mask(self, mask: Any) -> DeviceValue:
        t = self.t
        parts = [self._placed(inside, at) for at, dim in enumerate(self.dims) for inside in _in_range(t, dim)]
        for index, size in zip(self.plan.indices, self.like.shape, strict=True):
            if index.kind == "tensor" or (index.kind == "block" and not self._surely_inside(index, size)):
                lanes = self._lanes(index)
                parts += [ops.pointwise(t, "lt", lanes, size), ops.pointwise(t, "ge", lanes, 0)]
        if self.plan.inside is not None:
            parts.append(self._placed(self.plan.inside, len(self.pointers.dims)))
        if mask is not None:
            parts.append(self._given_mask(mask))
        total = ops.full(t, (ONE,) * len(self.dims), True, torch.bool)
        for part in parts:
            total = ops.pointwise(t, "logical_and", total, part)
        return ops.broadcast(t, total, self.dims)

    def _surely_inside(self, index: Index, size: Number) -> bool:
        """Return whether lanes in range of a block are in the range of the dimension too."""
        assert index.block is not None
        block, tile = self.t.blocks[index.block], self.t.blocks.active.get(index.block)
        moved = index.operand is not None or not fixed_at(index.shift, 0)
        end = tile.last if tile is not None else block.extent if block.kind == "full" else None
        if moved or end is None:
            return False
        return number_key(end) == number_key(size) or (isinstance(end, int) and isinstance(size, int) and end <= size)

    def _given_mask(self, mask: Any) -> DeviceValue:
        value = ops.as_device(self.t, mask, "as a mask")
        if value.dtype != torch.bool:
            raise exc.TypeInferenceError(f"extra_mask must be a boolean tile, got {value!r}.")
        if broadcast_dims((self.dims, value.dims)) != self.dims:
            text = self.t.blocks.dims_text
            raise exc.ShapeMismatch(
                lhs=text(self.dims), rhs=text(value.dims), detail=": extra_mask must broadcast to the accessed tile"
            )
        return value


def _indices(t: Tracer, dim: Dim) -> DeviceValue:
    """Return the indices of a block, which is a tile of an open loop or a whole dimension."""
    assert dim.block is not None
    tile = t.blocks.active.get(dim.block)
    return tile.index if tile is not None else ops.iota(t, t.blocks.size_of(dim))


def _in_range(t: Tracer, dim: Dim) -> list[DeviceValue]:
    """Return the mask of lanes in range of a dimension; empty if all are."""
    if not t.blocks.may_be_padded(dim):
        return []
    if dim.block is None:
        raise exc.InvalidAPIUsage(
            f"A stack tensor cannot be accessed along {t.blocks.dim_text(dim)}, which merges tiles; access it before reshaping."
        )
    tile = t.blocks.active.get(dim.block)
    if tile is not None and tile.jagged is not None:
        raise exc.InvalidAPIUsage(
            "A stack tensor cannot be accessed along a jagged tile; pass an extra_mask with hl.tile."
        )
    extent = t.blocks[dim.block].extent
    if tile is None and (extent is None or t.blocks[dim.block].kind == "tile"):
        return []
    end: Any = tile.end if tile is not None else extent
    return [ops.pointwise(t, "lt", _indices(t, dim), end)]


def load(t: Tracer, stack: StackTensor, index: Any, mask: Any, eviction: str | None) -> DeviceValue:
    """Record ``stack[index]``; lanes out of range read 0."""
    at = _Accessed(t, stack, index, mask)
    attrs = AddressAttrs(at.like.dtype, eviction)
    return ops.emit(t, "load_at", at.operands, at.like.dtype, at.dims, attrs)


def store(t: Tracer, stack: StackTensor, index: Any, value: Any, mask: Any) -> None:
    """Record ``stack[index] = value``."""
    at = _Accessed(t, stack, index, mask)
    memory.check_repeated(t, at.like, at.plan, value)
    stored = memory.stored(t, at.like, at.dims, value)
    t.builder.append("store_at", (stored.value, *at.operands), (), AddressAttrs(at.like.dtype))
