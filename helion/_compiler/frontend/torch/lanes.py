"""torch functions that move lanes of device values: stack, cat, gather, flip, cummax and cummin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .... import exc
from ...._shapes import ONE, broadcast_dims
from .. import ops
from ..rules import Rules
from ..tracer import Tracer
from ..values import DeviceValue, describe
from .pointwise import HALF, in_float32, named
from .reductions import whole
from .shapes import insert_one, position

RULES = Rules()
rule = RULES.register


class _ValuesAndIndices(NamedTuple):
    values: DeviceValue
    indices: DeviceValue


def _common(t: Tracer, tensors: Sequence[Any], name: str) -> list[DeviceValue]:
    values = [ops.as_device(t, v, f"in torch.{name}") for v in tensors]
    dtype = values[0].dtype
    for value in values[1:]:
        dtype = torch.promote_types(dtype, value.dtype)
    return [ops.cast(t, v, dtype) for v in values]


@rule(torch.stack)
def _stack(t: Tracer, tensors: Sequence[Any], dim: int = 0) -> DeviceValue:
    values = _common(t, tensors, "stack")
    at = position(values[0], dim, extra=1)
    if len(values) == 1:
        return insert_one(t, values[0], at)
    lanes = ops.lanes(t, len(values), values[0].ndim + 1, at)
    result = insert_one(t, values[-1], at)
    for number in reversed(range(len(values) - 1)):
        result = ops.pointwise(t, "where", lanes == number, insert_one(t, values[number], at), result)
    return result


@rule(torch.cat, torch.concat, torch.concatenate)
def _cat(t: Tracer, tensors: Sequence[Any], dim: int = 0) -> DeviceValue:
    values = _common(t, tensors, "cat")
    at = position(values[0], dim)
    result = values[0]
    for value in values[1:]:
        result = _cat_two(t, result, value, at)
    return result


def _cat_two(t: Tracer, first: DeviceValue, second: DeviceValue, at: int) -> DeviceValue:
    sizes = [t.blocks.size_of(v.dims[at]) for v in (first, second)]
    if not all(isinstance(s, int) for s in sizes):
        raise exc.UnsupportedTorchFunction(name="torch.cat along a tile", remedy="; store the parts separately")
    for value in (first, second):
        _refuse_tail(t, value, at, "cat")
    left, right = sizes
    lanes = ops.lanes(t, left + right, first.ndim, at)
    parts = []
    for value, size, start in ((first, left, 0), (second, right, left)):
        if size == 1:
            parts.append(value)
            continue
        index = ops.pointwise(t, "minimum", ops.pointwise(t, "maximum", lanes - start, 0), size - 1)
        dims = (*value.dims[:at], lanes.dims[at], *value.dims[at + 1 :])
        parts.append(ops.gather(t, value, ops.broadcast(t, index, dims), at))
    return ops.pointwise(t, "where", lanes < left, parts[0], parts[1])


@rule(*named("gather"))
def _gather(t: Tracer, input: DeviceValue, dim: int, index: DeviceValue) -> DeviceValue:
    at = position(input, dim)
    if not isinstance(index, DeviceValue) or index.dtype not in (torch.int32, torch.int64):
        raise exc.TypeInferenceError(f"torch.gather needs an integer index, got {describe(index)}.")
    others = [d for i, d in enumerate(input.dims) if i != at]
    if index.ndim != input.ndim or [d for i, d in enumerate(index.dims) if i != at] != others:
        raise exc.ShapeMismatch(
            lhs=repr(input), rhs=repr(index), detail=f": torch.gather needs equal dimensions other than {at}"
        )
    return ops.gather(t, input, index, at, given=True)


@rule(torch.take_along_dim, torch.Tensor.take_along_dim)
def _take_along_dim(t: Tracer, input: DeviceValue, indices: DeviceValue, dim: Any = None) -> DeviceValue:
    if dim is None:
        raise exc.UnsupportedTorchFunction(name="torch.take_along_dim without dim", remedy="; name the dimension")
    at = position(input, dim)
    if indices.ndim != input.ndim:
        raise exc.ShapeMismatch(lhs=repr(input), rhs=repr(indices), detail=" in torch.take_along_dim: the ranks differ")
    ones = (ops.reshape(t, v, v.dims) for v in (input, indices))
    value, index = ones
    others = [broadcast_dims(((a,), (b,))) for a, b in zip(value.dims, index.dims, strict=True)]
    if any(found is None for i, found in enumerate(others) if i != at):
        raise exc.ShapeMismatch(lhs=repr(input), rhs=repr(indices), detail=" in torch.take_along_dim")
    dims = [found[0] if found is not None else ONE for found in others]
    value = ops.broadcast(t, value, (*dims[:at], value.dims[at], *dims[at + 1 :]))
    index = ops.broadcast(t, index, (*dims[:at], index.dims[at], *dims[at + 1 :]))
    return _gather(t, value, at, index)


@rule(*named("index_select"))
def _index_select(t: Tracer, input: DeviceValue, dim: int, index: DeviceValue) -> DeviceValue:
    at = position(input, dim)
    if not isinstance(index, DeviceValue) or index.ndim > 1:
        raise exc.TorchOpTracingError(
            name="torch.index_select", reason=f"the index must be a vector, got {describe(index)}"
        )
    (chosen,) = index.dims or (ONE,)
    index = ops.reshape(t, index, tuple(chosen if i == at else ONE for i in range(input.ndim)))
    return _gather(t, input, at, ops.broadcast(t, index, (*input.dims[:at], chosen, *input.dims[at + 1 :])))


@rule(torch.hstack)
def _hstack(t: Tracer, tensors: Sequence[Any]) -> DeviceValue:
    return _cat(t, tensors, 0 if _rank_of(tensors) <= 1 else 1)


@rule(torch.vstack, torch.row_stack)
def _vstack(t: Tracer, tensors: Sequence[Any]) -> DeviceValue:
    return _stack(t, tensors, 0) if _rank_of(tensors) == 1 else _cat(t, tensors, 0)


def _rank_of(tensors: Sequence[Any]) -> int:
    return max((v.ndim for v in tensors if isinstance(v, DeviceValue)), default=0)


@rule(*named("fliplr"))
def _fliplr(t: Tracer, input: DeviceValue) -> DeviceValue:
    return _flip(t, input, 1)


@rule(*named("flipud"))
def _flipud(t: Tracer, input: DeviceValue) -> DeviceValue:
    return _flip(t, input, 0)


@rule(*named("flip"))
def _flip(t: Tracer, input: DeviceValue, *places: Any, dims: Any = None) -> DeviceValue:
    if dims is None:
        dims = places[0] if len(places) == 1 and isinstance(places[0], (tuple, list)) else places
    wanted = dims if isinstance(dims, (tuple, list)) else (dims,)
    for dim in wanted:
        at = position(input, dim)
        size = t.blocks.size_of(input.dims[at])
        if not isinstance(size, int):
            raise exc.UnsupportedTorchFunction(
                name="torch.flip along a tile",
                remedy="; it would flip each tile separately; index the tensor from its end instead",
            )
        _refuse_tail(t, input, at, "flip")
        if size > 1:
            lanes = ops.lanes(t, size, input.ndim, at)
            # lanes beyond the extent read the first element; they are masked wherever they matter
            index = ops.pointwise(t, "maximum", size - 1 - lanes, 0)
            input = ops.gather(t, input, ops.broadcast(t, index, input.dims), at)
    return input


def _refuse_tail(t: Tracer, value: DeviceValue, at: int, name: str) -> None:
    """Refuse a function that moves lanes of a tile whose last ones may be out of range."""
    for block in value.dims[at].blocks:
        tile = t.blocks.active.get(block)
        if tile is not None and not t.blocks.has_no_tail(tile):
            raise exc.UnsupportedTorchFunction(
                name=f"torch.{name} along tile {t.blocks[block].name!r}",
                remedy="; its last tile may have fewer elements: take a block size that divides the dimension, or all of it with `:`",
            )


def _fixed(t: Tracer, value: DeviceValue, at: int, name: str) -> int:
    size = t.blocks.size_of(value.dims[at])
    if not isinstance(size, int):
        raise exc.UnsupportedTorchFunction(
            name=f"torch.{name} along a tile", remedy="; it would change each tile separately"
        )
    return size


@rule(*named("narrow"))
def _narrow(t: Tracer, input: DeviceValue, dim: int, start: int, length: int) -> DeviceValue:
    at = position(input, dim)
    _fixed(t, input, at, "narrow")
    return input[(*[slice(None)] * at, slice(start, start + length))]


@rule(*named("select"))
def _select(t: Tracer, input: DeviceValue, dim: int, index: int) -> DeviceValue:
    at = position(input, dim)
    _fixed(t, input, at, "select")
    return input[(*[slice(None)] * at, index)]


@rule(torch.Tensor.repeat, torch.tile, torch.Tensor.tile)
def _repeat(t: Tracer, input: DeviceValue, *repeats: Any) -> DeviceValue:
    counts = repeats[0] if len(repeats) == 1 and isinstance(repeats[0], (tuple, list)) else repeats
    value = ops.reshape(t, input, (ONE,) * (len(counts) - input.ndim) + input.dims)
    for at, count in enumerate(counts, value.ndim - len(counts)):
        if count != 1:
            size = _fixed(t, value, at, "repeat")
            _refuse_tail(t, value, at, "repeat")
            value = ops.pick(t, value, at, ops.lanes(t, size * count, value.ndim, at) % size)
    return value


@rule(*named("repeat_interleave"))
def _repeat_interleave(t: Tracer, input: DeviceValue, repeats: int, dim: int) -> DeviceValue:
    at = position(input, dim)
    size = _fixed(t, input, at, "repeat_interleave")
    return ops.pick(t, input, at, ops.lanes(t, size * repeats, input.ndim, at) // repeats)


@rule(torch.nn.functional.pad)
def _pad(t: Tracer, input: DeviceValue, pad: Sequence[int], mode: str = "constant", value: Any = None) -> DeviceValue:
    if mode != "constant":
        raise exc.UnsupportedTorchFunction(name=f"torch.nn.functional.pad(mode={mode!r})", remedy="")
    for number in range(len(pad) // 2):
        at, before, after = input.ndim - 1 - number, pad[2 * number], pad[2 * number + 1]
        if before or after:
            size = _fixed(t, input, at, "nn.functional.pad")
            _refuse_tail(t, input, at, "nn.functional.pad")
            source = ops.lanes(t, before + size + after, input.ndim, at) - before
            inside = ops.pointwise(t, "logical_and", source >= 0, source < size)
            input = ops.cast(
                t, ops.pointwise(t, "where", inside, ops.pick(t, input, at, source), value or 0), input.dtype
            )
    return input


@rule(torch.eye)
def _eye(t: Tracer, n: Any, m: Any = None, *, dtype: Any = None, device: Any = None) -> DeviceValue:
    rows, columns = ops.lanes(t, n, 2, 0), ops.lanes(t, n if m is None else m, 2, 1)
    return ops.cast(t, ops.pointwise(t, "eq", rows, columns), dtype or t.world.default_dtype())


# --- cumulative extrema and sums --------------------------------------------------------------------------------------


def _running_extreme(t: Tracer, input: DeviceValue, dim: int, name: str, comparison: str) -> _ValuesAndIndices:
    """Record the extremum of each prefix, and its index: of equal ones the last."""
    at = position(input, dim)
    whole(t, input, [at], name)
    wide = ops.cast(t, input, torch.float32) if input.dtype in HALF else input
    places = ops.broadcast(t, ops.lanes(t, t.blocks.size_of(input.dims[at]), input.ndim, at), input.dims)

    def later(left: Any, at_left: Any, right: Any, at_right: Any) -> tuple[DeviceValue, DeviceValue]:
        taken = ops.pointwise(t, comparison, right, left)
        if wide.dtype.is_floating_point:
            taken = ops.pointwise(t, "logical_or", taken, ops.pointwise(t, "isnan", right))
        return tuple(ops.pointwise(t, "where", taken, r, k) for r, k in ((right, left), (at_right, at_left)))  # type: ignore[return-value]

    inputs = (wide, places)
    values, indices = ops.scan(t, inputs, ops.combine(t, later, inputs), at, False)
    return _ValuesAndIndices(ops.cast(t, values, input.dtype), ops.cast(t, indices, torch.int64))


@rule(*named("cummax"))
def _cummax(t: Tracer, input: DeviceValue, dim: int) -> _ValuesAndIndices:
    return _running_extreme(t, input, dim, "cummax", "ge")


@rule(*named("cummin"))
def _cummin(t: Tracer, input: DeviceValue, dim: int) -> _ValuesAndIndices:
    return _running_extreme(t, input, dim, "cummin", "le")


@rule(*named("logcumsumexp"))
@in_float32
def _logcumsumexp(t: Tracer, input: DeviceValue, dim: int) -> DeviceValue:
    at = position(input, dim)
    whole(t, input, [at], "logcumsumexp")
    add = t.rules[torch.logaddexp]
    region = ops.combine(t, lambda a, b: add(t, a, b), (input,))
    return ops.scan(t, (input,), region, at, False)[0]
