"""Refuses stores in which several lanes or programs write one element because of a tensor's strides.

A dimension of stride 0, which ``torch.Tensor.expand`` makes, has one element for all of its indices. A store to several
of them leaves the value of the last thread; eager PyTorch refuses it too. An atomic operation, and a store to one
index, are well defined. Other strides may overlap as well: definite overlaps give a warning.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from .... import exc
from ...ir.grammar import HostTensor, Index, MemoryAttrs, Op, Program, Root, Value
from .programs import Programs, several


def check_overlaps(program: Program) -> Program:
    """Return the program. Raises ``exc.OverlappingStore`` if a store covers several indices of a dimension of stride
    0."""
    for root in program.roots:
        stores = [op for op in root.body.walk() if op.kind == "store" and _stretched(program, op)]
        known = _programs(program, root) if stores else None
        for op in stores:
            assert known is not None
            for dim in _stretched(program, op):
                if _covers(program, op, dim) or _follows(known, op, dim):
                    tensor = program.tensors[op.attributes(MemoryAttrs).tensor]
                    raise exc.OverlappingStore(name=tensor.name, dim=dim, location=op.location)
    return program


def overlapping_stores(program: Program) -> Iterator[exc.BaseWarning]:
    """Yield a warning for each store that covers two dimensions in which some indices are one element."""
    for op in program.walk():
        if op.kind != "store":
            continue
        tensor = program.tensors[op.attributes(MemoryAttrs).tensor]
        dims = [dim for dim in range(tensor.ndim) if _covers(program, op, dim)]
        if any(_meet(tensor, a, b) for at, a in enumerate(dims) for b in dims[at + 1 :]):
            yield exc.StoreToSharedElements(name=tensor.name, strides=list(tensor.strides)).at(op.location)


def _stretched(program: Program, op: Op) -> list[int]:
    """Return the dimensions of stride 0 of the tensor that an op accesses; none if it certainly has no elements."""
    tensor = program.tensors[op.attributes(MemoryAttrs).tensor]
    if any(_is(size, 0) for size in tensor.shape):
        return []
    sides = zip(tensor.shape, tensor.strides, strict=True)
    return [dim for dim, (size, stride) in enumerate(sides) if _is(stride, 0) and not _is(size, 1)]


def _is(number: object, wanted: int) -> bool:
    return isinstance(number, int) and number == wanted


def _covers(program: Program, op: Op, dim: int) -> bool:
    """Return whether the lanes of an access, over all tiles, have several indices of a dimension."""
    index = op.attributes(MemoryAttrs).indices[dim]
    value = _operand(op, index)
    if index.kind == "block" and index.block is not None:
        extent = program.blocks[index.block].extent
        return not (isinstance(extent, int) and extent <= 1)
    return index.kind == "tensor" and value is not None and not all(each.is_one for each in value.dims)


def _operand(op: Op, index: Index) -> Value | None:
    value = op.operands[index.operand] if index.operand is not None else None
    return value if isinstance(value, Value) else None


def _follows(known: Programs, op: Op, dim: int) -> bool:
    """Return whether the programs of a grid store to different indices of a dimension."""
    value = _operand(op, op.attributes(MemoryAttrs).indices[dim])
    return value is not None and bool(known.values.get(value.number))


def _programs(program: Program, root: Root) -> Programs:
    """Return the values that depend on the program, for tiles of one element."""
    sizes = {block.id: 1 for block in program.blocks}
    return Programs.of(program, root, {axis.block: axis for axis in root.axes if several(axis, sizes)}, sizes)


def _meet(tensor: HostTensor, a: int, b: int) -> bool:
    """Return whether two indices of dimension ``a``, with some of ``b``, are certainly one element."""
    numbers = (tensor.shape[a], tensor.shape[b], tensor.strides[a], tensor.strides[b])
    if not all(isinstance(number, int) for number in numbers) or 0 in numbers:
        return False
    first, second, step, other = (int(number) for number in numbers)
    common = math.gcd(step, other)
    return other // common < first and step // common < second


__all__ = ["check_overlaps", "overlapping_stores"]
