"""Memory layouts of host tensors: views without common elements, and views whose elements have places of their own."""

from __future__ import annotations

from typing import Any

from ...._shapes import number_key
from ...ir.grammar import HostTensor


def are_apart(one: HostTensor, other: HostTensor) -> bool:
    """Return whether two views of one tensor certainly have no element in common: other columns of the same rows.

    Their dimensions of steps that a row divides choose a row; all others together stay within a part of it.
    """
    if one.part is None or other.part is None or one.part[0] != other.part[0] or one.dtype != other.dtype:
        return False
    numbers = (*one.shape, *one.strides, *other.shape, *other.strides)
    if not all(isinstance(number, int) for number in numbers):
        return False
    rows = sorted({int(stride) for stride in (*one.strides, *other.strides) if int(stride) > 1})
    for row in rows:
        (begin, end), (first, last) = (_columns(each, row) for each in (one, other))
        if max(end, last) <= row * one.dtype.itemsize and (end <= first or last <= begin):
            return True
    return False


def _columns(tensor: HostTensor, row: int) -> tuple[int, int]:
    """Return the first byte of a view in a row of so many elements, and the one after the last."""
    assert tensor.part is not None
    itemsize, within = tensor.dtype.itemsize, 1
    for size, stride in zip(tensor.shape, tensor.strides, strict=True):
        within += (max(int(size), 1) - 1) * abs(int(stride)) if int(stride) % row else 0
    begin = tensor.part[1] % (row * itemsize)
    return begin, begin + within * itemsize


def is_injective(tensor: HostTensor) -> bool:
    """Return whether every element of a view has a place of its own; False if in doubt."""
    dims = [
        (size, stride)
        for size, stride in zip(tensor.shape, tensor.strides, strict=True)
        if not (isinstance(size, int) and size <= 1)
    ]
    if all(isinstance(n, int) for dim in dims for n in dim):
        reach: Any = 0
        for size, stride in sorted(dims, key=lambda dim: dim[1]):
            if stride <= reach:
                return False
            reach += (size - 1) * stride
        return True
    # Symbolic: each stride is that of the next inner dimension times its size.
    steps = {number_key(1)}
    while dims:
        found = next((at for at, dim in enumerate(dims) if number_key(dim[1]) in steps), None)
        if found is None:
            return False
        size, stride = dims.pop(found)
        steps = {number_key(stride * size), number_key(size * stride)}
    return True
