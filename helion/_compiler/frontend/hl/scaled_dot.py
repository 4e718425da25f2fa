"""``hl.dot_scaled``: matmuls of operands in microscaling formats."""

from __future__ import annotations

from typing import Any

import torch

from .... import exc
from ...._shapes import Dim
from ....language.matmul import SCALE_GROUP, check_scaled, scale_group
from .. import ops
from ..tracer import Tracer
from ..values import DeviceValue, describe


def dot_scaled(
    t: Tracer,
    mats: tuple[Any, Any],
    scales: tuple[Any, Any],
    formats: tuple[Any, Any],
    acc: DeviceValue | None,
    out_dtype: torch.dtype | None,
) -> DeviceValue:
    """Record ``mats[0] @ mats[1] (+ acc)``; see ``hl.dot_scaled`` for shapes and dtypes."""
    for side, mat, scale, name in zip((1, 2), mats, scales, formats, strict=True):
        for value in (mat,) if scale is None else (mat, scale):
            ops.refuse_operand(value, "in hl.dot_scaled")
            if not isinstance(value, DeviceValue):
                raise exc.TypeInferenceError(
                    f"hl.dot_scaled takes tiles, and None for a scale of 1, got {describe(value)}."
                )
        check_scaled(mat, scale, name, side)
    lhs, rhs = mats
    inner = [
        _count(t, dim, 2 if name == "e2m1" else 1)
        for dim, name in zip((lhs.dims[1], rhs.dims[0]), formats, strict=True)
    ]
    if inner[0] != inner[1]:
        raise exc.ShapeMismatch(
            lhs=repr(lhs),
            rhs=repr(rhs),
            detail=f": as {formats[0]} and {formats[1]} they have {_text(t, inner[0])} and {_text(t, inner[1])} numbers along K",
        )
    for side, scale, rows, count in zip((1, 2), scales, (lhs.dims[0], rhs.dims[1]), inner, strict=True):
        if scale is not None:
            _check_scale(t, scale, rows, count, side)
    _raise_minimums(t, lhs, rhs, formats)
    result = out_dtype or (acc.dtype if acc is not None else torch.float32)
    if acc is not None:
        dims = (lhs.dims[0], rhs.dims[1])
        acc = ops.cast(t, ops.broadcast(t, acc, dims) if acc.dims != dims else acc, torch.float32)
    return ops.cast(t, ops.dot_scaled(t, lhs, rhs, acc, scales, formats), result)


#: A number of lanes: a constant times blocks whose size is unknown in the trace.
_Count = tuple[int, tuple[int, ...]]


def _count(t: Tracer, dim: Dim, factor: int) -> _Count:
    """Return ``factor`` times the elements of a dimension, with blocks of unknown size as symbols."""
    count, open_blocks = dim.const * factor, []
    for block in dim.blocks:
        known = t.blocks[block].extent if t.blocks[block].kind == "full" else t.blocks[block].size
        if isinstance(known, int):
            count *= known
        else:
            open_blocks.append(block)
    return count, tuple(sorted(open_blocks))


def _text(t: Tracer, count: _Count) -> str:
    return " * ".join([str(count[0]), *(t.blocks[block].name for block in count[1])])


def _check_scale(t: Tracer, scale: DeviceValue, rows: Dim, numbers: _Count, side: int) -> None:
    group = scale_group(scale.dtype)
    found = _count(t, scale.dims[1], group)
    if scale.dims[0] == rows and found == numbers:
        return
    groups = f"{numbers[0] // group} * ..." if numbers[1] else f"{numbers[0]} / {group}"
    detail = (
        f": mat{side}_scale of hl.dot_scaled must be [{t.blocks.dim_text(rows)}, {groups}], one scale for {group} of the "
        f"{_text(t, numbers)} numbers along K"
    )
    if numbers[1] and numbers[0] % group:
        detail += "; give the loop over K a constant block_size, or tile over groups"
    raise exc.ShapeMismatch(lhs=repr(scale), rhs=f"mat{side}", detail=detail)


def _raise_minimums(t: Tracer, lhs: DeviceValue, rhs: DeviceValue, formats: tuple[str, str]) -> None:
    """Raise the minimum sizes of tiles to those of Tensor Cores, and to one scale group along K."""
    limits = t.context.limits
    rows, columns, _ = limits.min_dot[1]
    packs = [2 if name == "e2m1" else 1 for name in formats]
    inner = limits.min_four_bit_k if packs == [2, 2] else SCALE_GROUP
    numbers, open_blocks = _count(t, lhs.dims[1], packs[0])
    if not open_blocks and numbers < inner:
        raise exc.BackendUnsupported(
            what=f"hl.dot_scaled of {numbers} numbers along K on {t.context.target}",
            backend=limits.backend,
            remedy=f": of these formats it takes at least {inner}; pad with zeros",
        )
    sides = (
        (lhs.dims[0], rows),
        (rhs.dims[1], columns),
        (lhs.dims[1], inner // packs[0]),
        (rhs.dims[0], inner // packs[1]),
    )
    for dim, minimum in sides:
        known, open_blocks = _count(t, dim, 1)
        for block in open_blocks[-1:]:
            if t.blocks.is_tunable(block):
                t.blocks.require(block, -(-minimum // known))
