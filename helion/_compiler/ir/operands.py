"""Operands of ops by their meaning."""

from __future__ import annotations

from collections.abc import Sequence

from ..._shapes import Dims, fixed_at
from .grammar import DotAttrs, Index, Op, Operand, Value


def accumulator_of(op: Op) -> Value | None:
    """Return the accumulator of a dot, if it has one."""
    scaled = op.attrs.scaled if isinstance(op.attrs, DotAttrs) else None
    scales = scaled.scales if scaled is not None else ()
    rest = [operand for at, operand in enumerate(op.operands) if at >= 2 and at not in scales]
    assert all(isinstance(operand, Value) for operand in rest) and len(rest) <= 1
    return rest[0] if rest else None  # type: ignore[return-value]


def is_block(index: Index) -> bool:
    """Return whether an index is that of a tile itself, without an offset."""
    return index.kind == "block" and index.operand is None and fixed_at(index.shift, 0)


def unaddressed(indices: tuple[Index, ...], operands: Sequence[Operand | None], dims: Dims) -> tuple[int, ...]:
    """Return the dimensions of an accessed tile that no index covers: those of indices into dimensions of size 1."""
    walked: set[int] = set()
    for index in indices:
        value = operands[index.operand] if index.kind == "tensor" and index.operand is not None else None
        if isinstance(value, Value):
            pairs = zip(index.positions[::-1], value.dims[::-1], strict=False)
            walked.update(position for position, dim in pairs if not dim.is_one)
        else:
            walked.update(index.positions)
    return tuple(at for at, dim in enumerate(dims) if at not in walked and not dim.is_one)
