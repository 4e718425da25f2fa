"""The primitive operations of a trace, which rules are composed of: each emits one op and returns its value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ... import exc
from ..._shapes import LEAVES, ONE, WIDE, Dim, Dims, Expr, Number, broadcast_dims, hint_of
from ..ir.grammar import (
    DotAttrs,
    FoldAttrs,
    GatherAttrs,
    IotaAttrs,
    NumberAttrs,
    Operand,
    PointwiseAttrs,
    RandomAttrs,
    ReduceAttrs,
    Region,
    Scaled,
    ScanAttrs,
    TileAttrs,
    TileField,
    Value,
    ViewAttrs,
    VjpAttrs,
)
from ..ir.pointwise import result_dtype
from ..ir.reductions import identity
from .host_uses import used_directly
from .runtime_values import is_runtime
from .state import TraceState
from .state.alignment import is_single, joint, placed
from .state.fits import check_fits
from .state.ranges import of_field
from .values import DeviceValue, HostTensorValue, Tile, describe

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
_AMD_FLOATS = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
_SIGNED = (torch.int64, torch.int32, torch.int16, torch.int8)
_UNSIGNED = (torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool)
#: Dtypes of values of device code.
_DTYPES = frozenset((*_FLOATS, *_AMD_FLOATS, *_SIGNED, *_UNSIGNED))


def check_dtype(dtype: torch.dtype) -> None:
    """Raise ``exc.TypeInferenceError`` for a dtype that no value of device code can have."""
    if not isinstance(dtype, torch.dtype):
        raise exc.InvalidAPIUsage(f"A dtype must be a torch.dtype, got {dtype!r}.")
    if dtype in _DTYPES:
        return
    remedy = "use an 8-bit integer type, for example tensor.view(torch.uint8)"
    if dtype.is_complex:
        remedy = "pass torch.view_as_real(tensor), whose last dimension has the real and the imaginary part"
    raise exc.TypeInferenceError(f"{dtype} is not supported in device code: {remedy}.")


# --- values -----------------------------------------------------------------------------------------------------------


def wrap(t: TraceState, value: Value) -> DeviceValue:
    return DeviceValue(t, value)


def emit(
    t: TraceState, kind: Any, operands: Sequence[Operand], dtype: torch.dtype, dims: Dims, attrs: Any = None
) -> DeviceValue:
    check_dtype(dtype)
    result = wrap(t, t.builder.emit(kind, operands, dtype, dims, attrs))
    extreme = kind == "reduce" and attrs.name in ("max", "min")
    if (kind == "view" or extreme) and isinstance(operands[0], Value):
        t.ranges.note(result, t.ranges.of(wrap(t, operands[0])))
    return result


def number(t: TraceState, expr: Number) -> DeviceValue:
    """Return a host number as a scalar device value."""
    if not isinstance(expr, Expr):
        dtype = (
            torch.bool
            if isinstance(expr, bool)
            else torch.float32
            if isinstance(expr, float)
            else t.context.index_dtype
        )
        return emit(t, "full", (expr,), dtype, ())
    kind = expr.kind
    dtype = torch.bool if kind is bool else torch.float32 if kind is float else integer_dtype(t, expr)
    value = emit(t, "number", (), dtype, (), NumberAttrs(expr))
    value.number = expr
    return value


def as_device(t: TraceState, value: Any, how: str = "as an operand") -> DeviceValue:
    """Return a number or device value as a device value; refuse host tensors and tiles."""
    if isinstance(value, DeviceValue):
        return value
    if isinstance(value, (int, float, Expr)):
        return number(t, value)
    refuse_operand(value, how)
    raise exc.UnsupportedPythonType(got=describe(value), where="device")


def refuse_operand(value: Any, how: str) -> None:
    if isinstance(value, HostTensorValue):
        raise used_directly(value, how)
    if isinstance(value, Tile):
        raise exc.IncorrectTileUsage(how="as a number")


def operand(t: TraceState, value: Any) -> Operand:
    if isinstance(value, (bool, int, float)):
        return value
    return as_device(t, value).value


_CONTAINERS = (list, tuple, dict, set, frozenset, range)
_NO_OPERANDS = (*_CONTAINERS, str, bytes, slice, type(...))


def pointwise(t: TraceState, name: str, *operands: Any, dtype: torch.dtype | None = None) -> DeviceValue:
    """Record an elementwise op with broadcasting; ``dtype`` overrides torch's promotion (of ``cast`` and the like)."""
    for given in operands:
        refuse_operand(given, f"in {name}")
        if given is None or isinstance(given, _NO_OPERANDS):
            text = f"{describe(given)} was used in {name}, which takes tiles and numbers"
            remedy = "; take its numbers one by one, or pass a tensor" if isinstance(given, _CONTAINERS) else ""
            raise exc.TypeInferenceError(f"{text}{remedy}.")
    dims = broadcast_dims([o.dims for o in operands if isinstance(o, DeviceValue)])
    if dims is None:
        operands, dims = _aligned(t, operands, f" in {name}")
    if dtype is None:
        if t.ranges.exceeds(name, operands):
            operands = tuple(_widened(t, operand) for operand in operands)
        dtype = promote(t, name, operands)
    operands = _exact(t, operands, dtype)
    result = emit(t, "pointwise", [operand(t, o) for o in operands], dtype, dims, PointwiseAttrs(name))
    t.origins.is_made(name, operands, result)
    if dtype == torch.int32:
        t.ranges.note(result, t.ranges.of_op(name, operands))
    return result


def _widened(t: TraceState, operand: Any) -> Any:
    is_integer = isinstance(operand, DeviceValue) and operand.dtype == torch.int32
    return cast(t, operand, torch.int64) if is_integer else operand


def _aligned(t: TraceState, operands: Sequence[Any], how: str) -> tuple[tuple[Any, ...], Dims]:
    """Align operands of different dimensions; return them in dimensions that broadcast, and the result's dimensions."""
    values = [o for o in operands if isinstance(o, DeviceValue)]
    dims = joint(t.blocks, [v.dims for v in values])
    if dims is None:
        texts = [t.blocks.dims_text(v.dims) for v in values]
        ranks = {v.ndim for v in values}
        shapes = [v.dims for v in values]
        remedy = t.blocks.twins_text(*shapes) or t.blocks.sizes_text(*shapes)
        if len(ranks) > 1 and not remedy:
            remedy = "; dimensions are aligned at the right: write b[i][:, None] to align them otherwise"
        elif ranks == {1} and not remedy:
            remedy = "; to combine each element of one with each of the other, write `[:, None]` after that of the rows"
        raise exc.ShapeMismatch(
            lhs=texts[0],
            rhs=" and ".join(texts[1:]),
            detail=how + remedy,
        )
    return tuple(_fitting(t, o, dims) if isinstance(o, DeviceValue) else o for o in operands), dims


def _fitting(t: TraceState, value: DeviceValue, dims: Dims) -> DeviceValue:
    result = fitted(t, value, dims)
    return value if result is None else result


def together(t: TraceState, values: Sequence[DeviceValue], how: str = "") -> tuple[DeviceValue, ...]:
    """Broadcast values to one shape."""
    dims = broadcast_dims([v.dims for v in values])
    if dims is None:
        values, dims = _aligned(t, values, how)
    return tuple(broadcast(t, v, dims) for v in values)


def _exact(t: TraceState, operands: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    """Specialize on float arguments of an fp64 op if they are passed in fewer bits, which would round them."""
    passed = t.context.limits.float_arguments
    if dtype != torch.float64 or passed == torch.float64:
        return operands
    numbers = [o.number if isinstance(o, DeviceValue) else o for o in operands]
    for n in numbers:
        if isinstance(n, Expr) and n.kind is float and is_runtime(t, n) and not t.numbers.changes(n):
            name = str(passed).removeprefix("torch.")
            why = f" (numbers are passed in {name}; pass a number for float64 arithmetic in a tensor)"
            raise exc.KnownAtRunTime(what=f"`{n!r}`", because=why)
    return tuple(
        t.numbers.specialize(n) if isinstance(n, Expr) and n.kind is float else o
        for o, n in zip(operands, numbers, strict=True)
    )


def promote(t: TraceState, name: str, operands: Sequence[Any]) -> torch.dtype:
    kinds: list[Any] = []
    for operand in operands:
        if isinstance(operand, DeviceValue) and operand.number is None:
            kinds.append((operand.dtype, operand.ndim))
        else:
            number = operand.number if isinstance(operand, DeviceValue) else operand
            kinds.append(hint_of(number))  # type: ignore[arg-type]
    try:
        result = result_dtype(name, kinds)
    except RecursionError:  # of the user's functions: reported as such where they are called
        raise
    except (TypeError, RuntimeError) as error:
        raise exc.TorchOpTracingError(name=name, reason=str(error)) from error
    if result.is_floating_point and not any(type(k) is tuple and k[0].is_floating_point for k in kinds):
        t.world.default_dtype()
    return result


def cast(t: TraceState, value: Any, dtype: torch.dtype) -> DeviceValue:
    if isinstance(value, DeviceValue) and value.dtype == dtype:
        return value
    check_dtype(dtype)
    return pointwise(t, "cast", value, dtype=dtype)


def with_vjp(t: TraceState, name: str, value: DeviceValue, *inputs: Any, over: Sequence[int] = ()) -> DeviceValue:
    """Give ``value`` the derivative of a function of ``inputs``: row ``name`` of ``autodiff/functions.py``, rather than
    that of its ops. ``over`` are the dimensions of the first input that ``value`` lacks.
    """
    if not value.dtype.is_floating_point:
        return value
    operands = (value.value, *(operand(t, each) for each in inputs))
    return emit(t, "vjp", operands, value.dtype, value.dims, VjpAttrs(name, tuple(over)))


def moved(t: TraceState, value: DeviceValue, source: DeviceValue) -> DeviceValue:
    """Give ``value``, which is ``source`` reshaped by gathers, the derivative of a reshape."""
    return emit(t, "vjp", (value.value, source.value), value.dtype, value.dims, VjpAttrs("reshape"))


def full(t: TraceState, dims: Dims, fill: Any, dtype: torch.dtype) -> DeviceValue:
    check_dtype(dtype)
    if isinstance(fill, DeviceValue):
        if fill.dims:
            raise exc.ShapeMismatch(
                lhs=t.blocks.dims_text(fill.dims), rhs="[]", detail=": the fill value must be a scalar"
            )
        return emit(t, "full", (cast(t, fill, dtype).value,), dtype, dims)
    if isinstance(fill, Expr):
        return emit(t, "full", (cast(t, number(t, fill), dtype).value,), dtype, dims)
    if not isinstance(fill, (int, float)):
        refuse_operand(fill, "as a fill value")
        raise exc.UnsupportedPythonType(got=describe(fill), where="device")
    if dtype.is_floating_point:
        fill = float(fill)
    elif dtype == torch.bool:
        fill = bool(fill)
    else:
        check_fits(fill := int(fill), dtype)
    return emit(t, "full", (fill,), dtype, dims)


def iota(t: TraceState, dim_size: Any, start: int = 0, step: int = 1, dtype: torch.dtype | None = None) -> DeviceValue:
    """Return 0, 1, 2 ... (times ``step`` plus ``start``) along the dimension of size ``dim_size``."""
    return iota_along(t, t.blocks.dim_of(dim_size), start, step, dtype)


def iota_along(t: TraceState, dim: Dim, start: int = 0, step: int = 1, dtype: torch.dtype | None = None) -> DeviceValue:
    """Return 0, 1, 2 ... (times ``step`` plus ``start``) along ``dim``."""
    if dim.is_one:
        return full(t, (ONE,), start, dtype or t.context.index_dtype)
    if dim.block is None:
        return _product_iota(t, dim, start, step, dtype)
    attrs = IotaAttrs(dim.block, True, start, step)
    result = emit(t, "iota", (), t.context.index_dtype, (dim,), attrs)
    ends = (start, start + step * (t.blocks.size_of(dim) - 1))
    t.ranges.note(result, ends if step > 0 else ends[::-1])
    return cast(t, result, dtype) if dtype is not None else result


def _product_iota(t: TraceState, dim: Dim, start: int, step: int, dtype: torch.dtype | None) -> DeviceValue:
    """Return 0, 1, 2 ... along a product of block sizes and a constant, computed from the digits of its factors."""
    factors = [Dim(blocks=(b,)) for b in dim.blocks] + ([t.blocks.dim_of(dim.const)] if dim.const != 1 else [])
    total: DeviceValue | None = None
    for at, factor in enumerate(factors):
        size = t.blocks.size_of(factor)
        dims = tuple(factor if i == at else ONE for i in range(len(factors)))
        digit = reshape(t, iota_along(t, factor), dims)
        total = digit if total is None else pointwise(t, "add", pointwise(t, "mul", total, size), digit)
    assert total is not None
    result = reshape(t, total, (dim,))
    if step != 1:
        result = pointwise(t, "mul", result, step)
    if start:
        result = pointwise(t, "add", result, start)
    return cast(t, result, dtype or t.context.index_dtype)


def tile_index(t: TraceState, tile: Tile) -> DeviceValue:
    dims = (Dim(blocks=(tile.block.id,)),)
    result = emit(t, "iota", (), t.context.index_dtype, dims, IotaAttrs(tile.block.id, False))
    t.origins.is_index(result, tile.block)
    t.ranges.note(result, of_field(tile, "index"))
    return result


def tile_field(t: TraceState, tile: Tile, field: TileField) -> DeviceValue:
    attrs = TileAttrs(tile.block.id, field)
    result = emit(t, "tile", (), t.context.index_dtype, (), attrs)
    t.origins.is_field(result, attrs)
    t.ranges.note(result, of_field(tile, field))
    return result


# --- shapes -----------------------------------------------------------------------------------------------------------


def reshape(t: TraceState, value: DeviceValue, dims: Dims) -> DeviceValue:
    if dims == value.dims:
        return value
    result = emit(t, "view", (value.value,), value.dtype, dims, ViewAttrs("reshape"))
    result.number = value.number if not dims else None
    return result


def permute(t: TraceState, value: DeviceValue, order: Sequence[int]) -> DeviceValue:
    if list(order) == list(range(value.ndim)):
        return value
    dims = tuple(value.dims[i] for i in order)
    return emit(t, "view", (value.value,), value.dtype, dims, ViewAttrs("permute", tuple(order)))


def broadcast(t: TraceState, value: DeviceValue, dims: Dims) -> DeviceValue:
    if dims == value.dims:
        return value
    if broadcast_dims((value.dims, dims)) != dims:
        fitting = fitted(t, value, dims)
        if fitting is None:
            raise exc.ShapeMismatch(
                lhs=t.blocks.dims_text(value.dims),
                rhs=t.blocks.dims_text(dims),
                detail=": the first cannot be expanded to the second" + t.blocks.sizes_text(value.dims, dims),
            )
        value = fitting
    if len(value.dims) < len(dims):
        value = reshape(t, value, (ONE,) * (len(dims) - len(value.dims)) + value.dims)
    if dims == value.dims:
        return value
    return emit(t, "view", (value.value,), value.dtype, dims, ViewAttrs("broadcast"))


def fitted(t: TraceState, value: DeviceValue, dims: Dims, fill: Any = 0) -> DeviceValue | None:
    """Return ``value`` in equivalent dimensions that broadcast to ``dims``; None if there are none. Lanes that are out
    of range of a tile before and in range after that get ``fill``: a number, or a value of shape ``dims``.
    """
    found = placed(t.blocks, value.dims, dims)
    if found is None or found == value.dims:
        return None if found is None else value
    for at, dim in enumerate(value.dims):
        if dim not in found and not is_single(t.blocks, dim):
            value = within_tile(t, value, at, fill)
    return reshape(t, value, found)


def within_tile(t: TraceState, value: DeviceValue, at: int, fill: Any) -> DeviceValue:
    """Fill the lanes of ``value`` that are out of range of the tile along dimension ``at``, if there may be any.
    ``fill`` is a number, or a value of the same shape.
    """
    block = value.dims[at].block
    tile = None if block is None else t.blocks.active.get(block)
    if tile is None or t.blocks.has_no_tail(tile):
        return value
    inside = pointwise(t, "lt", tile_index(t, tile), tile_field(t, tile, "end"))
    shape = tuple(value.dims[at] if i == at else ONE for i in range(value.ndim))
    return pointwise(t, "where", reshape(t, inside, shape), value, fill, dtype=value.dtype)


# --- reductions and matmuls -------------------------------------------------------------------------------------------


def reduce(t: TraceState, name: str, value: DeviceValue, positions: Sequence[int], dtype: torch.dtype) -> DeviceValue:
    """Reduce over the dimensions at ``positions``, which disappear."""
    positions = tuple(sorted(positions))
    _check_reducible(t, name, value, positions)
    for position in positions:
        dim = value.dims[position]
        if t.blocks.hides_tail(dim):
            inside = None if name in ("argmax", "argmin") else _inside_merged(t, dim)
            if inside is not None:
                shape = tuple(d if i == position else ONE for i, d in enumerate(value.dims))
                fill = identity(name, value.dtype)
                value = pointwise(t, "where", reshape(t, inside, shape), value, fill, dtype=value.dtype)
                continue
            raise _cannot_reduce(t, value, position)
    kept = tuple(d for i, d in enumerate(value.dims) if i not in positions)
    walked = tuple(p for p in positions if not value.dims[p].is_one)
    if len(walked) < len(positions) and name not in ("argmax", "argmin"):
        value = reshape(t, value, tuple(d for i, d in enumerate(value.dims) if i not in positions or i in walked))
        walked = tuple(p - sum(q < p and q not in walked for q in positions) for p in walked)
        if not walked:
            return cast(t, value, dtype)
        positions = walked
    return emit(t, "reduce", (value.value,), dtype, kept, ReduceAttrs(name, tuple(positions)))


def _check_reducible(t: TraceState, name: str, value: DeviceValue, positions: Sequence[int]) -> None:
    blocks = [t.blocks[b] for position in positions for b in value.dims[position].blocks]
    if blocks:
        _refuse_float8(t, f"A reduction ({name})", value)


def _cannot_reduce(t: TraceState, value: DeviceValue, position: int) -> exc.Base:
    return exc.ShapeMismatch(
        lhs=t.blocks.dims_text(value.dims),
        rhs="a reduction",
        detail=f": dimension {position} merges or splits tiles, whose out-of-range lanes are unknown after that; reduce before reshaping",
    )


def _inside_merged(t: TraceState, dim: Dim) -> DeviceValue | None:
    """Return the mask of lanes in range of a dimension that merges tiles; None if the order of the tiles is unknown."""
    factors = t.blocks.merged.get(dim)
    if factors is None:
        return None
    result = full(t, (ONE,) * len(factors), True, torch.bool)
    for at, factor in enumerate(factors):
        tile = None if factor.block is None else t.blocks.active.get(factor.block)
        if tile is None and any(t.blocks[b].kind == "tile" for b in factor.blocks):
            return None
        if tile is not None:
            shape = tuple(factor if i == at else ONE for i in range(len(factors)))
            within = pointwise(t, "lt", tile_index(t, tile), tile_field(t, tile, "end"))
            result = pointwise(t, "logical_and", result, reshape(t, within, shape))
    return reshape(t, broadcast(t, result, factors), (dim,))


def dot(
    t: TraceState, lhs: DeviceValue, rhs: DeviceValue, acc: DeviceValue | None, dtype: torch.dtype, precision: str
) -> DeviceValue:
    """Record ``lhs @ rhs (+ acc)`` with the result in ``dtype``; operands have the same rank, 2 or 3."""
    operands = [lhs.value, rhs.value, *([acc.value] if acc is not None else [])]
    dims = (*lhs.dims[:-1], rhs.dims[-1])
    return emit(t, "dot", operands, dtype, dims, DotAttrs(precision))


def dot_scaled(
    t: TraceState,
    lhs: DeviceValue,
    rhs: DeviceValue,
    acc: DeviceValue | None,
    scales: tuple[DeviceValue | None, DeviceValue | None],
    formats: tuple[str, str],
) -> DeviceValue:
    """Record ``lhs @ rhs (+ acc)`` in fp32 of matrices in microscaling formats."""
    operands = [lhs.value, rhs.value, *([acc.value] if acc is not None else [])]
    places: list[int | None] = []
    for scale in scales:
        places.append(None if scale is None else len(operands))
        operands += [scale.value] if scale is not None else []
    attrs = DotAttrs("ieee", Scaled(*formats, *places))
    return emit(t, "dot", operands, torch.float32, (lhs.dims[0], rhs.dims[1]), attrs)


def combine(t: TraceState, function: Any, inputs: Sequence[DeviceValue]) -> Region:
    """Record a user's function of two sets of scalars as a region; results have the dtypes of the inputs."""
    params = [t.builder.value(v.dtype, (), f"{side}_{i}") for side in ("left", "right") for i, v in enumerate(inputs)]
    wrapped = [wrap(t, p) for p in params]
    count = len(inputs)
    with t.builder.region() as recorded:
        results = combined(t, function, wrapped[:count], wrapped[count:])
    for op in recorded:
        if op.kind not in ("pointwise", "full", "vjp"):
            raise exc.NotAllowedInHelperFunction(what=f"A {op.kind}", location=op.location)
    return Region(tuple(params), tuple(recorded), tuple(r.value for r in results))


def combined(
    t: TraceState, function: Any, left: Sequence[DeviceValue], right: Sequence[DeviceValue]
) -> tuple[DeviceValue, ...]:
    """Call a user's function of two values, of two tuples, or of the values of both; results have the dtypes of
    ``left``.
    """
    count = len(left)
    flat = count == 1 or _takes(function, 2 * count)
    result = t.call(function, (*left, *right) if flat else (tuple(left), tuple(right)))
    results = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    if len(results) != count:
        raise exc.TypeInferenceError(f"The combine function of {count} values must return {count}, got {len(results)}.")
    return tuple(cast(t, as_device(t, r), v.dtype) for r, v in zip(results, left, strict=True))


def _refuse_float8(t: TraceState, what: str, *values: DeviceValue) -> None:
    for value in values:
        if value.dtype.is_floating_point and value.dtype.itemsize == 1:
            raise exc.TypeInferenceError(
                f"{what} of {value.dtype} is not supported: there is no arithmetic on 8-bit floats; convert to "
                "torch.float32 first."
            )


def fold(
    t: TraceState, inputs: Sequence[DeviceValue], region: Region, dim: int, other: tuple[Any, ...]
) -> tuple[DeviceValue, ...]:
    if t.blocks.hides_tail(inputs[0].dims[dim]):
        raise _cannot_reduce(t, inputs[0], dim)
    results = [t.builder.value(v.dtype, tuple(d for i, d in enumerate(v.dims) if i != dim)) for v in inputs]
    return _combined(t, "fold", inputs, region, results, FoldAttrs(dim, other))


def scan(
    t: TraceState,
    inputs: Sequence[DeviceValue],
    region: Region,
    dim: int,
    reverse: bool,
    identity: tuple[Any, ...] | None = None,
) -> tuple[DeviceValue, ...]:
    results = [t.builder.value(v.dtype, v.dims) for v in inputs]
    return _combined(t, "scan", inputs, region, results, ScanAttrs(dim, reverse, identity))


def _combined(
    t: TraceState, kind: Any, inputs: Sequence[DeviceValue], region: Region, results: list[Value], attrs: Any
) -> tuple[DeviceValue, ...]:
    _refuse_float8(t, f"A {kind}", *inputs)
    operands = tuple(v.value for v in inputs)
    t.builder.append(kind, operands, results, attrs, (region,))
    return tuple(wrap(t, result) for result in results)


def gather(t: TraceState, value: DeviceValue, index: DeviceValue, dim: int, given: bool = False) -> DeviceValue:
    """Record ``result[.., i, ..] = value[.., index[.., i, ..], ..]`` along ``dim``; the other dimensions are equal.
    ``given``: the index is the user's.
    """
    return emit(t, "gather", (value.value, index.value), value.dtype, index.dims, GatherAttrs(dim, given))


def lanes(t: TraceState, size: Any, rank: int, at: int) -> DeviceValue:
    """Return 0, 1, 2 ... along dimension ``at`` of ``rank`` dimensions."""
    index = iota(t, size)
    return reshape(t, index, tuple(index.dims[0] if i == at else ONE for i in range(rank)))


def pick(t: TraceState, value: DeviceValue, at: int, index: DeviceValue) -> DeviceValue:
    """Gather elements of a whole dimension, by an index of the same rank whose other dimensions are 1. Out-of-range
    lanes of the index read the first or last element.
    """
    size = t.blocks.size_of(value.dims[at])
    assert isinstance(size, int)
    if size == 1:
        return broadcast(t, value, (*value.dims[:at], index.dims[at], *value.dims[at + 1 :]))
    index = pointwise(t, "minimum", pointwise(t, "maximum", index, 0), size - 1)
    return gather(t, value, broadcast(t, index, (*value.dims[:at], index.dims[at], *value.dims[at + 1 :])), at)


def join(t: TraceState, first: DeviceValue, second: DeviceValue) -> DeviceValue:
    dims = (*first.dims, t.blocks.dim_of(2))
    return emit(t, "join", (first.value, second.value), first.dtype, dims)


def split(t: TraceState, value: DeviceValue) -> tuple[DeviceValue, DeviceValue]:
    results = tuple(t.builder.value(value.dtype, value.dims[:-1]) for _ in range(2))
    t.builder.append("split", (value.value,), results)
    return wrap(t, results[0]), wrap(t, results[1])


def integer_dtype(t: TraceState, expr: Expr) -> torch.dtype:
    """Return int32 for arguments that fit it, as the specialization key guarantees; int64 for other arguments, for
    arithmetic on them, and for run-time numbers of the host code.
    """
    plain = expr.op in LEAVES and expr.args[0] not in t.numbers.drawn
    return torch.int32 if plain and -WIDE <= expr.hint < WIDE else torch.int64


def random(t: TraceState, name: Any, seed: DeviceValue, offset: DeviceValue) -> DeviceValue:
    dtype = torch.int32 if name == "bits" else torch.float32
    return emit(t, "random", (seed.value, offset.value), dtype, offset.dims, RandomAttrs(name))


def random4(t: TraceState, seed: DeviceValue, offset: DeviceValue) -> tuple[DeviceValue, ...]:
    """Record four uniform numbers for each offset."""
    results = tuple(t.builder.value(torch.float32, offset.dims) for _ in range(4))
    t.builder.append("random4", (seed.value, offset.value), results)
    return tuple(wrap(t, result) for result in results)


def _takes(function: Any, count: int) -> bool:
    """Return whether a plain function has exactly ``count`` positional parameters."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_argcount == count
