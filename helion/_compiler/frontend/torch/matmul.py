"""Matmuls on device values: ``hl.dot`` and torch's functions record the same op."""

from __future__ import annotations

from typing import Any

import torch

from .... import exc
from ...._shapes import ONE, Dim
from ....language.matmul import DOT_DTYPES, FLOAT8, accumulator_dtype, check_dtypes
from .. import ops
from ..rules import Rules
from ..state.alignment import joint, same_size
from ..tracer import Tracer
from ..values import DeviceValue
from .pointwise import named

RULES = Rules()
rule = RULES.register


def dot(
    t: Tracer,
    lhs: DeviceValue,
    rhs: DeviceValue,
    acc: DeviceValue | None = None,
    out_dtype: torch.dtype | None = None,
) -> DeviceValue:
    """Record ``lhs[.., M, K] @ rhs[.., K, N] (+ acc)`` of rank 2 or 3; a matrix is multiplied with each matrix of a
    batch.

    The result has the dtype ``out_dtype`` if given, else that of ``acc``, else the accumulator's.
    """
    for operand in (lhs, rhs):
        ops.refuse_operand(operand, "in a matmul")
        if not isinstance(operand, DeviceValue):
            raise exc.TypeInferenceError("A matmul needs two device values.")
    check_dtypes(lhs.dtype, rhs.dtype)
    lhs, rhs = _of_equal_rank(t, lhs, rhs)
    if lhs.dtype != rhs.dtype:
        common = torch.promote_types(lhs.dtype, rhs.dtype)
        lhs, rhs = ops.cast(t, lhs, common), ops.cast(t, rhs, common)
    lhs, rhs = _inner(t, lhs, rhs)
    if lhs.dims[-1] != rhs.dims[-2]:
        raise exc.ShapeMismatch(
            lhs=repr(lhs),
            rhs=repr(rhs),
            detail=f": the inner dimensions {t.blocks.dim_text(lhs.dims[-1])} and {t.blocks.dim_text(rhs.dims[-2])} differ"
            + t.blocks.sizes_text(lhs.dims[-1:], rhs.dims[-2:-1]),
        )
    if lhs.ndim == 3 and lhs.dims[0] != rhs.dims[0]:
        found = joint(t.blocks, (lhs.dims[:1], rhs.dims[:1]))
        if found is None:
            raise exc.DotBatchDimensionMismatch(lhs=repr(lhs), rhs=repr(rhs), detail="")
        (batch,) = found
        lhs, rhs = ops.broadcast(t, lhs, (batch, *lhs.dims[1:])), ops.broadcast(t, rhs, (batch, *rhs.dims[1:]))
    _raise_minimums(t, lhs, rhs)
    rows, columns, inner = t.context.limits.min_dot[lhs.dtype.itemsize]
    lhs, rhs = _padded(t, lhs, -1, inner), _padded(t, rhs, -2, inner)
    if any(_is_narrow(t, dim, least) for dim, least in ((lhs.dims[-2], rows), (rhs.dims[-1], columns))):
        return _of_padded_sides(t, lhs, rhs, acc, out_dtype)
    wide = accumulator_dtype(lhs.dtype, rhs.dtype)
    result = out_dtype or (acc.dtype if acc is not None else wide)
    dims = (*lhs.dims[:-1], rhs.dims[-1])
    wanted = t.context.settings.dot_precision
    precision = wanted if wanted in t.context.limits.dot_precisions else "ieee"
    if acc is not None and acc.dims != dims:
        acc = ops.broadcast(t, acc, dims)
    if acc is not None and acc.dtype != wide:
        acc = ops.cast(t, acc, wide)
    return ops.cast(t, ops.dot(t, lhs, rhs, acc, wide, precision), result)


def _of_equal_rank(t: Tracer, lhs: DeviceValue, rhs: DeviceValue) -> tuple[DeviceValue, DeviceValue]:
    """Return the operands with the matrix repeated over the batch where one operand is a batch of matrices."""
    if {lhs.ndim, rhs.ndim} - {2, 3}:
        raise exc.ShapeMismatch(
            lhs=repr(lhs),
            rhs=repr(rhs),
            detail=": the operands of a matmul must be matrices or batches of them, of rank 2 or 3",
        )
    if lhs.ndim == rhs.ndim:
        return lhs, rhs
    (batch,) = (operand.dims[0] for operand in (lhs, rhs) if operand.ndim == 3)
    lhs, rhs = (
        operand
        if operand.ndim == 3
        else ops.broadcast(t, ops.reshape(t, operand, (ONE, *operand.dims)), (batch, *operand.dims))
        for operand in (lhs, rhs)
    )
    return lhs, rhs


def _inner(t: Tracer, lhs: DeviceValue, rhs: DeviceValue) -> tuple[DeviceValue, DeviceValue]:
    """Unify inner dimensions of one constant size, to that of a tile if there is one."""
    left, right = lhs.dims[-1], rhs.dims[-2]
    if left == right or not same_size(t.blocks, left, right):
        return lhs, rhs
    if right.block in t.blocks.active and left.block not in t.blocks.active:
        return ops.broadcast(t, lhs, (*lhs.dims[:-1], right)), rhs
    return lhs, ops.broadcast(t, rhs, (*rhs.dims[:-2], left, rhs.dims[-1]))


def _raise_minimums(t: Tracer, lhs: DeviceValue, rhs: DeviceValue) -> None:
    """Raise the minimum sizes of tiles to those of Tensor Cores; limit batch tiles to one matrix."""
    minimums = t.context.limits.min_dot[lhs.dtype.itemsize]
    for dim, minimum in zip((lhs.dims[-2], rhs.dims[-1], lhs.dims[-1]), minimums, strict=True):
        lanes = t.blocks.lanes_of(dim)
        if dim.blocks and (lanes is None or lanes < minimum):
            # for a side of several blocks, a tile alone provides the minimum
            tunable = [b for b in dim.blocks if t.blocks.is_tunable(b)]
            block, least = (tunable or dim.blocks)[-1], -(-minimum // dim.const)
            if not t.blocks.cannot_widen(block, least):
                t.blocks.require(block, least)
    if lhs.ndim == 3 and (batch := lhs.dims[0].block) is not None and t.blocks.is_tunable(batch):
        t.blocks.limit(batch, 1)


def _is_narrow(t: Tracer, dim: Dim, least: int) -> bool:
    """Return whether a side has fewer than ``least`` lanes, which a reshape of an equal dimension fixes."""
    lanes = t.blocks.lanes_of(dim)
    return lanes is not None and lanes < least and any(t.blocks.cannot_widen(b, least) for b in dim.blocks)


def _of_padded_sides(
    t: Tracer, lhs: DeviceValue, rhs: DeviceValue, acc: DeviceValue | None, out_dtype: torch.dtype | None
) -> DeviceValue:
    """Record a matmul with more rows or columns, which are 0, and take those of the operands from its result."""
    rows, columns, _ = t.context.limits.min_dot[lhs.dtype.itemsize]
    wide = accumulator_dtype(lhs.dtype, rhs.dtype)
    kept = lhs.dims[-2], rhs.dims[-1]
    lhs = _padded(t, lhs, -2, rows) if _is_narrow(t, kept[0], rows) else lhs
    rhs = _padded(t, rhs, -1, columns) if _is_narrow(t, kept[1], columns) else rhs
    sides = lhs.dims[-2], rhs.dims[-1]
    t.blocks.count_lanes(side for side, dim in zip(sides, kept, strict=True) if side != dim)
    result = dot(t, lhs, rhs, None, wide)
    for back, dim in enumerate(reversed(kept), 1):
        at = result.ndim - back
        if result.dims[at] != dim:
            extra = Dim(blocks=result.dims[at].blocks[len(dim.blocks) :])
            apart = ops.reshape(t, result, (*result.dims[:at], dim, extra, *result.dims[at + 1 :]))
            first = ops.reshape(t, _is_first(t, extra), (extra, *(ONE,) * (back - 1)))
            # a sum alone would include 0 times infinity
            result = ops.reduce(t, "sum", ops.pointwise(t, "where", first, apart, 0), (at + 1,), wide)
    if acc is not None:
        result = ops.pointwise(t, "add", ops.cast(t, acc, wide), result)
    return ops.cast(t, result, out_dtype or (acc.dtype if acc is not None else wide))


def _padded(t: Tracer, value: DeviceValue, at: int, least: int) -> DeviceValue:
    """Insert zeros after each element along ``at`` of an operand, if it has a fixed number of lanes below ``least``."""
    dim = value.dims[at]
    lanes = t.blocks.lanes_of(dim)
    if lanes is None or lanes >= least:  # None: ``_raise_minimums`` has raised it to the least
        return value
    extra = t.blocks.dim_of(-(-least // lanes))
    at %= value.ndim
    kept = ops.reshape(t, _is_first(t, extra), (extra, *(ONE,) * (value.ndim - 1 - at)))
    within = _within(t, dim)
    if within is not None:
        inside = ops.reshape(t, within, (dim, ONE, *(ONE,) * (value.ndim - 1 - at)))
        kept = ops.pointwise(t, "logical_and", kept, inside)
    apart = ops.reshape(t, value, (*value.dims[: at + 1], *(() if dim.is_one else (ONE,)), *value.dims[at + 1 :]))
    spread = ops.pointwise(t, "where", kept, apart, 0)
    merged = extra if dim.is_one else dim * extra
    return ops.reshape(t, spread, (*value.dims[:at], merged, *value.dims[at + 1 :]))


def _is_first(t: Tracer, dim: Dim) -> DeviceValue:
    return ops.pointwise(t, "eq", ops.iota(t, t.blocks.size_of(dim)), 0)


def _within(t: Tracer, dim: Dim) -> DeviceValue | None:
    """Return the mask of lanes in range of a dimension with a fixed number of lanes; None if all are."""
    if dim.block is None:
        return None
    tile = t.blocks.active.get(dim.block)
    if tile is not None:
        return ops.pointwise(t, "lt", ops.tile_index(t, tile), ops.tile_field(t, tile, "end"))
    extent = t.blocks[dim.block].extent
    if t.blocks[dim.block].kind != "full" or t.blocks.fills_lanes(extent):
        return None
    return ops.pointwise(t, "lt", ops.iota(t, extent), extent)


def is_dot_dtype(*values: DeviceValue) -> bool:
    """Return whether a matmul takes values without a conversion."""
    return all(value.dtype in DOT_DTYPES for value in values)


def product_dtype(lhs: DeviceValue, rhs: DeviceValue, name: str) -> torch.dtype:
    if lhs.dtype in FLOAT8 or rhs.dtype in FLOAT8:
        raise exc.UnsupportedTorchFunction(name=f"{name} of 8-bit floats", remedy="; use hl.dot")
    return torch.promote_types(lhs.dtype, rhs.dtype)


def _product(t: Tracer, input: Any, other: Any, name: str, ranks: tuple[int, ...], out_dtype: Any) -> DeviceValue:
    for operand in (input, other):
        ops.refuse_operand(operand, f"in {name}")
    if input.ndim not in ranks or other.ndim not in ranks:
        raise exc.ShapeMismatch(
            lhs=repr(input), rhs=repr(other), detail=f": {name} takes operands of rank {' or '.join(map(str, ranks))}"
        )
    return dot(t, input, other, None, out_dtype or product_dtype(input, other, name))


@rule(*named("mm"))
def _mm(t: Tracer, input: DeviceValue, mat2: DeviceValue, out_dtype: Any = None) -> DeviceValue:
    return _product(t, input, mat2, "torch.mm", (2,), out_dtype)


@rule(*named("bmm"))
def _bmm(t: Tracer, input: DeviceValue, mat2: DeviceValue, out_dtype: Any = None) -> DeviceValue:
    return _product(t, input, mat2, "torch.bmm", (3,), out_dtype)


def _scaled_product(
    t: Tracer, name: str, acc: Any, lhs: DeviceValue, rhs: DeviceValue, beta: Any, alpha: Any, out_dtype: Any
) -> DeviceValue:
    rank = 3 if name == "torch.baddbmm" else 2
    for operand in (lhs, rhs):
        ops.refuse_operand(operand, f"in {name}")
    if (lhs.ndim, rhs.ndim) != (rank, rank):
        raise exc.ShapeMismatch(lhs=repr(lhs), rhs=repr(rhs), detail=f": {name} takes operands of rank {rank}")
    if not isinstance(acc, DeviceValue):
        acc = ops.as_device(t, acc, "as the accumulator of a matmul")
    result = out_dtype or torch.promote_types(acc.dtype, product_dtype(lhs, rhs, "addmm"))
    if beta == 1 and alpha == 1:
        return dot(t, lhs, rhs, acc, result)
    wide = accumulator_dtype(lhs.dtype, rhs.dtype)
    product = dot(t, lhs, rhs, None, wide)
    scaled = ops.cast(t, acc, wide)
    scaled = scaled if beta == 1 else scaled * beta
    return ops.cast(t, scaled - product if alpha == -1 else scaled + product * alpha, result)


@rule(*named("addmm"))
def _addmm(
    t: Tracer, input: Any, mat1: DeviceValue, mat2: DeviceValue, *, beta: Any = 1, alpha: Any = 1, out_dtype: Any = None
) -> DeviceValue:
    return _scaled_product(t, "torch.addmm", input, mat1, mat2, beta, alpha, out_dtype)


@rule(*named("baddbmm"))
def _baddbmm(
    t: Tracer,
    input: Any,
    batch1: DeviceValue,
    batch2: DeviceValue,
    *,
    beta: Any = 1,
    alpha: Any = 1,
    out_dtype: Any = None,
) -> DeviceValue:
    return _scaled_product(t, "torch.baddbmm", input, batch1, batch2, beta, alpha, out_dtype)
