"""Sizes and strides of the result of an elementwise torch function: TensorIterator's rule, on numbers only.

The first such call on meta tensors takes a second, because torch imports its compiler.
"""

from __future__ import annotations

from collections.abc import Sequence

Sizes = tuple[int, ...]
#: Sizes and strides of an operand, in elements.
Layout = tuple[Sizes, Sizes]


def result_layout(operands: Sequence[Layout]) -> Layout | None:
    """Return the layout of a new tensor for the result; None if the operands do not broadcast.

    Numbers count as operands without dimensions. Dense operands of one layout keep it. Otherwise the dimensions are
    ordered by the strides of the operands, earlier ones first, and packed.
    """
    shape = _broadcast([sizes for sizes, _ in operands])
    if shape is None:
        return None
    if all(sizes == shape for sizes, _ in operands):
        for known in (_row_major(shape), _channels_last(shape)):
            if known is not None and all(_is_laid_out(each, known) for each in operands):
                return shape, known
        first = operands[0][1]
        if is_dense(shape, first) and all(strides == first for _, strides in operands):
            return shape, first
    order = _order(shape, [_spread(each, shape) for each in operands])
    if order == list(range(len(shape)))[::-1]:
        return shape, _row_major(shape)
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= shape[dim]
    return shape, tuple(strides)


def _broadcast(shapes: Sequence[Sizes]) -> Sizes | None:
    rank = max(map(len, shapes))
    result = [1] * rank
    for sizes in shapes:
        for at, size in enumerate(sizes, rank - len(sizes)):
            if size != 1 and result[at] not in (1, size):
                return None
            result[at] = result[at] if size == 1 else size
    return tuple(result)


def _row_major(shape: Sizes) -> Sizes:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _channels_last(shape: Sizes) -> Sizes | None:
    """Return the channels-last strides of an image; None for other ranks than 4."""
    if len(shape) != 4:
        return None
    strides, step = [0] * 4, 1
    for dim in (1, 3, 2, 0):
        strides[dim] = step
        step *= max(shape[dim], 1) if dim else shape[dim]
    return tuple(strides)


def _is_laid_out(operand: Layout, strides: Sizes) -> bool:
    """Return whether an operand has these strides, ignoring dimensions of size 1."""
    sizes, own = operand
    if strides == _row_major(sizes) and 0 in sizes:
        return True
    return all(n == 1 or mine == wanted for n, mine, wanted in zip(sizes, own, strides, strict=True))


def is_dense(shape: Sizes, strides: Sizes) -> bool:
    """Return whether the elements fill a contiguous range of memory without overlap."""
    if _is_laid_out((shape, strides), _row_major(shape)):
        return True
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _spread(operand: Layout, shape: Sizes) -> Sizes:
    """Return the strides of an operand along the result's dimensions; 0 along broadcast ones."""
    sizes, strides = operand
    lead = len(shape) - len(sizes)
    own = [0 if n == 1 and shape[at] != 1 else s for at, (n, s) in enumerate(zip(sizes, strides, strict=True), lead)]
    return (*[0] * lead, *own)


def _order(shape: Sizes, strides: Sequence[Sizes]) -> list[int]:
    """Order the dimensions from the innermost to the outermost. The comparison is not transitive, so this is the same
    insertion sort as torch's.
    """
    order = list(range(len(shape)))[::-1]
    for last in range(1, len(order)):
        at = last
        for before in range(last - 1, -1, -1):
            found = _compare(shape, strides, order[before], order[at])
            if found > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif found < 0:
                break
    return order


def _compare(shape: Sizes, strides: Sequence[Sizes], first: int, second: int) -> int:
    """Return -1 if ``first`` is inside of ``second``, 1 if outside, 0 if no operand decides."""
    for each in strides:
        a, b = each[first], each[second]
        if a == 0 or b == 0:
            continue
        if a != b:
            return -1 if a < b else 1
        if shape[first] > shape[second]:
            return 1
    return 0
