"""torch's reductions on device values, and composites of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from .... import exc
from ...._shapes import ONE, Expr
from .. import ops
from ..rules import Rule, Rules
from ..tracer import Tracer
from ..values import DeviceValue
from .pointwise import HALF, in_float32, named
from .shapes import position

RULES = Rules()
rule = RULES.register

#: Remedy for a mean or a variance along a tiled dimension.
_SUMS = "; sum over a loop and divide by the size of the dimension, or take the whole dimension with `:`"


class _ValueAndIndex(NamedTuple):
    values: DeviceValue
    indices: DeviceValue


def _positions(input: DeviceValue, dim: Any) -> list[int]:
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        return list(range(input.ndim))
    found = [position(input, d) for d in (dim if isinstance(dim, (tuple, list)) else (dim,))]
    if len(set(found)) != len(found):
        raise exc.InvalidReductionDim(dim=list(dim), shape=f"{input!r} (a dimension appears twice)")
    return found


def _reduce(
    t: Tracer, name: str, input: DeviceValue, positions: list[int], keepdim: bool, dtype: torch.dtype
) -> DeviceValue:
    result = ops.reduce(t, name, input, positions, dtype) if positions else ops.cast(t, input, dtype)
    if keepdim:
        dims = tuple(ONE if i in positions else d for i, d in enumerate(input.dims))
        result = ops.reshape(t, result, dims)
    return result


def whole(t: Tracer, input: DeviceValue, positions: Iterable[int], name: str, remedy: str = "") -> None:
    """Refuse a function of all elements of a dimension along a tiled one: it would be computed for each tile
    separately, and change with the block size.
    """
    for block in (t.blocks[id] for at in positions for id in input.dims[at].blocks):
        least = block.size if isinstance(block.size, int) else block.min_size
        # a constant block size is the user's own: no config changes it
        covers = isinstance(block.size, int) or (isinstance(block.extent, int) and block.extent <= least)
        if block.kind == "tile" and not covers:
            own = (
                f"; it would be computed for each tile of {block.name!r} separately: take the whole dimension with `:`"
            )
            raise exc.UnsupportedTorchFunction(name=f"torch.{name} along a tile", remedy=remedy or own)


def _extremes(t: Tracer, name: str, input: DeviceValue, dim: Any) -> list[int]:
    """Return ``_positions`` of an extremum. Raises as eager does for a whole dimension without elements."""
    positions = _positions(input, dim)
    blocks = [t.blocks[block] for at in positions for block in input.dims[at].blocks]
    if any(block.kind == "full" and isinstance(block.extent, int) and block.extent == 0 for block in blocks):
        raise exc.TorchOpTracingError(name=f"torch.{name}", reason="the dimension to reduce has no elements")
    return positions


def _count(t: Tracer, input: DeviceValue, positions: list[int]) -> Any:
    """Return the number of reduced elements: the extent of whole dimensions, the lanes in range of tiles."""
    count: Any = 1
    for at in positions:
        for block in input.dims[at].blocks:
            known = t.blocks[block]
            tile = t.blocks.active.get(block)
            if known.kind == "tile" and tile is not None:
                count = (tile.end - tile.begin) * count
            else:
                count = count * t.blocks.block_size(known)
        count = count * input.dims[at].const
    return count


def _accumulated(t: Tracer, name: str, input: DeviceValue, dim: Any, keepdim: bool, dtype: Any) -> DeviceValue:
    """Record sum or prod: half precision accumulates in fp32, integers in int64."""
    if dtype is not None:
        input = ops.cast(t, input, dtype)
    result = input.dtype if input.dtype.is_floating_point else torch.int64
    wide = torch.float32 if result in HALF else result
    return ops.cast(
        t, _reduce(t, name, ops.cast(t, input, wide), _positions(input, dim), keepdim, wide), dtype or result
    )


@rule(*named("sum"))
def sum_of(t: Tracer, input: DeviceValue, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> DeviceValue:
    return _accumulated(t, "sum", input, dim, keepdim, dtype)


@rule(*named("prod"))
def _prod(t: Tracer, input: DeviceValue, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> DeviceValue:
    return _accumulated(t, "prod", input, dim, keepdim, dtype)


@rule(*named("mean"))
def mean_of(t: Tracer, input: DeviceValue, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> DeviceValue:
    result = dtype or input.dtype
    if not result.is_floating_point:
        raise exc.TorchOpTracingError(name="torch.mean", reason=f"the input must be floating point, got {result}")
    wide = torch.float32 if result in HALF else result
    positions = _positions(input, dim)
    whole(t, input, positions, "mean", _SUMS)
    total = _reduce(t, "sum", ops.cast(t, input, wide), positions, keepdim, wide)
    return ops.cast(t, total / _count(t, input, positions), result)


def _moments(t: Tracer, input: DeviceValue, positions: list[int], correction: Any) -> tuple[DeviceValue, DeviceValue]:
    """Return variance and mean by two passes over the values, with the reduced dimensions kept as 1."""
    count = _count(t, input, positions)
    mean = _reduce(t, "sum", input, positions, True, input.dtype) / count
    centred = input - mean
    squares = _reduce(t, "sum", centred * centred, positions, True, input.dtype)
    divisor = count - correction
    if isinstance(divisor, (int, float)):
        divisor = max(divisor, 0)
    return squares / divisor, mean


def root_of(t: Tracer, squares: DeviceValue) -> DeviceValue:
    """Return the root of a sum of squares, whose derivative at 0 is defined as 0."""
    return ops.with_vjp(t, "root", ops.pointwise(t, "sqrt", squares), squares)


def _variance(
    t: Tracer, input: DeviceValue, dim: Any, unbiased: Any, correction: Any, keepdim: bool
) -> tuple[DeviceValue, DeviceValue]:
    if isinstance(dim, bool):  # var(x, True) means unbiased=True over all dimensions
        dim, unbiased = None, dim
    if correction is None:
        correction = 1 if unbiased is None or unbiased else 0
    if not input.dtype.is_floating_point:
        raise exc.TorchOpTracingError(name="torch.var", reason=f"the input must be floating point, got {input.dtype}")
    positions = _positions(input, dim)
    whole(t, input, positions, "var", _SUMS)
    wide = ops.cast(t, input, torch.float32) if input.dtype in HALF else input
    variance, mean = _moments(t, wide, positions, correction)
    variance = ops.with_vjp(t, "variance", variance, wide, mean, _count(t, wide, positions) - correction)
    if not keepdim:
        dims = tuple(d for i, d in enumerate(input.dims) if i not in positions)
        variance, mean = ops.reshape(t, variance, dims), ops.reshape(t, mean, dims)
    return variance, mean


def _spread(rooted: bool, with_mean: bool) -> Rule:
    """Return the rule of a variance, or of its root, alone or with the mean."""

    def spread(
        t: Tracer,
        input: DeviceValue,
        dim: Any = None,
        unbiased: Any = None,
        keepdim: bool = False,
        *,
        correction: Any = None,
    ) -> DeviceValue | tuple[DeviceValue, DeviceValue]:
        variance, mean = _variance(t, input, dim, unbiased, correction, keepdim)
        found = ops.cast(t, root_of(t, variance) if rooted else variance, input.dtype)
        return (found, ops.cast(t, mean, input.dtype)) if with_mean else found

    return spread


rule(*named("var"))(_spread(rooted=False, with_mean=False))
rule(*named("std"))(_spread(rooted=True, with_mean=False))
rule(torch.var_mean)(_spread(rooted=False, with_mean=True))
rule(torch.std_mean)(_spread(rooted=True, with_mean=True))


def _known(t: Tracer, input: DeviceValue) -> tuple[DeviceValue, DeviceValue]:
    """Return the mask of numbers that are not nan, and ``input`` with 0 for nan."""
    missing = ops.pointwise(t, "isnan", input)
    return ops.pointwise(t, "logical_not", missing), ops.pointwise(
        t, "where", missing, ops.full(t, (), 0, input.dtype), input
    )


@rule(*named("nansum"))
def _nansum(t: Tracer, input: DeviceValue, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> DeviceValue:
    return sum_of(t, _known(t, input)[1], dim, keepdim, dtype=dtype)


@rule(*named("nanmean"))
def _nanmean(
    t: Tracer, input: DeviceValue, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> DeviceValue:
    whole(t, input, _positions(input, dim), "nanmean", _SUMS)
    there, values = _known(t, input)
    result = dtype or input.dtype
    wide = torch.float32 if result in HALF else result
    total = sum_of(t, ops.cast(t, values, wide), dim, keepdim)
    return ops.cast(t, total / sum_of(t, there, dim, keepdim), result)


class _Extremes(NamedTuple):
    min: DeviceValue
    max: DeviceValue


@rule(*named("aminmax"))
def _aminmax(t: Tracer, input: DeviceValue, *, dim: Any = None, keepdim: bool = False) -> _Extremes:
    return _Extremes(_amin(t, input, dim, keepdim), _amax(t, input, dim, keepdim))


@rule(*named("amax"))
def _amax(t: Tracer, input: DeviceValue, dim: Any = None, keepdim: bool = False) -> DeviceValue:
    return _reduce(t, "max", input, _extremes(t, "amax", input, dim), keepdim, input.dtype)


@rule(*named("amin"))
def _amin(t: Tracer, input: DeviceValue, dim: Any = None, keepdim: bool = False) -> DeviceValue:
    return _reduce(t, "min", input, _extremes(t, "amin", input, dim), keepdim, input.dtype)


def _arg(t: Tracer, name: str, input: DeviceValue, dim: Any, keepdim: bool) -> DeviceValue:
    if dim is None:
        if input.ndim != 1:
            raise exc.UnsupportedTorchFunction(
                name=f"torch.{name} over all dimensions", remedy="; give dim, one dimension at a time"
            )
        dim = 0
    return _reduce(t, name, input, _extremes(t, name, input, position(input, dim)), keepdim, torch.int64)


@rule(*named("argmax"))
def _argmax(t: Tracer, input: DeviceValue, dim: Any = None, keepdim: bool = False) -> DeviceValue:
    return _arg(t, "argmax", input, dim, keepdim)


@rule(*named("argmin"))
def _argmin(t: Tracer, input: DeviceValue, dim: Any = None, keepdim: bool = False) -> DeviceValue:
    return _arg(t, "argmin", input, dim, keepdim)


def _extremum(t: Tracer, name: str, input: DeviceValue, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record ``max``/``min``: of two values elementwise, of everything, or along a dimension with indices."""
    if args and isinstance(args[0], DeviceValue):
        return ops.pointwise(t, {"max": "maximum", "min": "minimum"}[name], input, args[0])
    if "other" in kwargs:
        return ops.pointwise(t, {"max": "maximum", "min": "minimum"}[name], input, kwargs["other"])
    if not args and "dim" not in kwargs:
        return _reduce(t, name, input, _extremes(t, name, input, None), False, input.dtype)
    dim = args[0] if args else kwargs["dim"]
    keepdim = args[1] if len(args) > 1 else kwargs.get("keepdim", False)
    at = position(input, dim)
    values = _reduce(t, name, input, _extremes(t, name, input, at), keepdim, input.dtype)
    indices = _arg(t, "argmax" if name == "max" else "argmin", input, dim, keepdim)
    return _ValueAndIndex(_selected(t, values, input, indices, at, keepdim), indices)


def _selected(
    t: Tracer, values: DeviceValue, input: DeviceValue, indices: DeviceValue, at: int, keepdim: bool
) -> DeviceValue:
    """Return ``values`` with the derivative of a selection by ``indices`` along dimension ``at``: only these lanes get
    a gradient.
    """
    if not input.dtype.is_floating_point:
        return values
    ones = [ONE] * input.ndim
    kept = ops.reshape(t, indices, tuple(ONE if i == at else d for i, d in enumerate(input.dims)))
    dim = input.dims[at]
    lanes = ops.reshape(t, ops.iota_along(t, dim), (*ones[:at], dim, *ones[at + 1 :]))
    return ops.with_vjp(t, "select", values, input, kept, lanes, over=() if keepdim else (at,))


@rule(*named("max"))
def _max(t: Tracer, input: DeviceValue, *args: Any, **kwargs: Any) -> Any:
    return _extremum(t, "max", input, args, kwargs)


@rule(*named("min"))
def _min(t: Tracer, input: DeviceValue, *args: Any, **kwargs: Any) -> Any:
    return _extremum(t, "min", input, args, kwargs)


def _truth_reduce(t: Tracer, name: str, input: DeviceValue, dim: Any, keepdim: bool) -> DeviceValue:
    flags = input if input.dtype == torch.bool else ops.pointwise(t, "ne", input, 0)
    # any = max and all = min of 0 and 1; without a lane in range they are the least and the greatest int32
    reduced = _reduce(t, name, ops.cast(t, flags, torch.int32), _positions(input, dim), keepdim, torch.int32)
    return ops.pointwise(t, "gt", reduced, 0)


@rule(*named("any"))
def _any(t: Tracer, input: DeviceValue, dim: Any = None, keepdim: bool = False) -> DeviceValue:
    return _truth_reduce(t, "max", input, dim, keepdim)


@rule(*named("all"))
def _all(t: Tracer, input: DeviceValue, dim: Any = None, keepdim: bool = False) -> DeviceValue:
    return _truth_reduce(t, "min", input, dim, keepdim)


# --- composites -------------------------------------------------------------------------------------------------------


def _in_floats(fn: Rule) -> Rule:
    """Compute a composite of integers in floats: the dtype of the input cannot represent its intermediate sums."""

    @functools.wraps(fn)
    def call(t: Tracer, value: Any, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, DeviceValue) and not value.dtype.is_floating_point:
            value = ops.cast(t, value, ops.promote(t, "sqrt", (value,)))
        return fn(t, value, *args, **kwargs)

    return call


def _softmax_dtype(t: Tracer, input: DeviceValue, dtype: Any) -> DeviceValue:
    return input if dtype is None else ops.cast(t, input, dtype)


def _highest(t: Tracer, input: DeviceValue, at: list[int]) -> DeviceValue:
    """Return the maximum that a softmax subtracts, as a constant. The derivative by it is zero; its computation would
    leave the rounding of a sum over the row in the gradient of one element."""
    return ops.with_vjp(t, "constant", _reduce(t, "max", input, at, True, input.dtype))


@_in_floats
@in_float32
def _softmax_of(t: Tracer, input: DeviceValue, dim: int) -> DeviceValue:
    at = [position(input, dim)]
    whole(t, input, at, "softmax")
    powers = ops.pointwise(t, "exp", input - _highest(t, input, at))
    return powers / _reduce(t, "sum", powers, at, True, input.dtype)


@rule(F.softmax)
def _softmax(t: Tracer, input: DeviceValue, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> DeviceValue:
    if dim is None:
        raise TypeError("dim must be given")
    return _softmax_of(t, _softmax_dtype(t, input, dtype), dim)


@rule(*named("softmax"), torch.special.softmax)
def softmax_of(t: Tracer, input: DeviceValue, dim: int, dtype: Any = None) -> DeviceValue:
    return _softmax_of(t, _softmax_dtype(t, input, dtype), dim)


@_in_floats
@in_float32
def _log_softmax_of(t: Tracer, input: DeviceValue, dim: int) -> DeviceValue:
    at = [position(input, dim)]
    whole(t, input, at, "log_softmax")
    shifted = input - _highest(t, input, at)
    return shifted - ops.pointwise(t, "log", _reduce(t, "sum", ops.pointwise(t, "exp", shifted), at, True, input.dtype))


@rule(F.log_softmax)
def _log_softmax(t: Tracer, input: DeviceValue, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    if dim is None:
        raise TypeError("dim must be given")
    return _log_softmax_of(t, _softmax_dtype(t, input, dtype), dim)


@rule(*named("log_softmax"), torch.special.log_softmax)
def torch_log_softmax(t: Tracer, input: DeviceValue, dim: int, dtype: Any = None) -> DeviceValue:
    return _log_softmax_of(t, _softmax_dtype(t, input, dtype), dim)


@rule(*named("logsumexp"), torch.special.logsumexp)
@_in_floats
@in_float32
def _logsumexp(t: Tracer, input: DeviceValue, dim: Any, keepdim: bool = False) -> DeviceValue:
    at = _positions(input, dim)
    high = _reduce(t, "max", input, at, True, input.dtype)
    # a row of infinities has no finite maximum to subtract: exp(inf - inf) would be nan
    finite = ops.pointwise(t, "where", ops.pointwise(t, "isinf", high), 0.0, high)
    total = (
        ops.pointwise(t, "log", _reduce(t, "sum", ops.pointwise(t, "exp", input - finite), at, True, input.dtype))
        + finite
    )
    total = ops.with_vjp(t, "logsumexp", total, input)
    return total if keepdim else ops.reshape(t, total, tuple(d for i, d in enumerate(input.dims) if i not in at))


def _trailing(t: Tracer, input: DeviceValue, normalized_shape: Any) -> list[int]:
    sizes = list(normalized_shape) if isinstance(normalized_shape, (tuple, list)) else [normalized_shape]
    dims = [t.blocks.dim_of(size) for size in sizes]
    tail = input.dims[input.ndim - len(dims) :]
    if len(dims) > input.ndim or any(_extent(t, d) != _extent(t, s) for d, s in zip(dims, tail, strict=True)):
        raise exc.ShapeMismatch(
            lhs=repr(input), rhs=repr(sizes), detail=": normalized_shape must be the trailing dimensions"
        )
    return list(range(input.ndim - len(dims), input.ndim))


def _extent(t: Tracer, dim: Any) -> Any:
    size = t.blocks.size_of(dim)
    return size.key if isinstance(size, Expr) else size


@rule(F.layer_norm, torch.layer_norm)
@_in_floats
@in_float32
def _layer_norm(
    t: Tracer, input: DeviceValue, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> DeviceValue:
    positions = _trailing(t, input, normalized_shape)
    whole(t, input, positions, "nn.functional.layer_norm")
    variance, mean = _moments(t, input, positions, 0)
    result = (input - mean) * ops.pointwise(t, "rsqrt", variance + eps)
    if weight is not None:
        result = result * weight
    return result if bias is None else result + bias


@rule(F.rms_norm, torch.rms_norm)
@_in_floats
@in_float32
def _rms_norm(
    t: Tracer, input: DeviceValue, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> DeviceValue:
    positions = _trailing(t, input, normalized_shape)
    whole(t, input, positions, "nn.functional.rms_norm")
    count = _count(t, input, positions)
    power = _reduce(t, "sum", input * input, positions, True, input.dtype) / count
    result = input * ops.pointwise(t, "rsqrt", power + (torch.finfo(input.dtype).eps if eps is None else eps))
    return result if weight is None else result * weight


@rule(torch.linalg.vector_norm)
def _vector_norm(
    t: Tracer, x: DeviceValue, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> DeviceValue:
    return norm(t, x if dtype is None else ops.cast(t, x, dtype), ord, dim, keepdim)


@rule(torch.linalg.norm)
def _linalg_norm(
    t: Tracer, A: DeviceValue, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> DeviceValue:
    dims = _positions(A, dim)
    if ord is not None and len(dims) > 1 and ord != "fro":
        raise exc.UnsupportedTorchFunction(name=f"torch.linalg.norm of matrices of order {ord!r}", remedy="")
    return _vector_norm(t, A, 2 if ord is None else ord, dim, keepdim, dtype=dtype)


@rule(*named("norm"))
@_in_floats
@in_float32
def norm(t: Tracer, input: DeviceValue, p: Any = 2, dim: Any = None, keepdim: bool = False) -> DeviceValue:
    at = _positions(input, dim)
    if p not in (1, 1.0, math.inf):  # sums and maxima of magnitudes have partial results per tile
        whole(
            t,
            input,
            at,
            "norm",
            "; sum the powers over a loop and take the root of the total, or take the whole dimension with `:`",
        )
    over = () if keepdim else at
    magnitude = ops.pointwise(t, "abs", input)
    if p in ("fro", 2, 2.0):
        length = ops.pointwise(t, "sqrt", _reduce(t, "sum", input * input, at, keepdim, input.dtype))
        return ops.with_vjp(t, "norm_2", length, input, over=over)
    if p in (1, 1.0):
        return _reduce(t, "sum", magnitude, at, keepdim, input.dtype)
    if p == math.inf:
        greatest = _reduce(t, "max", magnitude, at, keepdim, input.dtype)
        return ops.with_vjp(t, "norm_inf", greatest, input, _ties(t, magnitude, at), over=over)
    if isinstance(p, (int, float)) and p > 0:
        powers = _reduce(t, "sum", ops.pointwise(t, "pow", magnitude, p), at, keepdim, input.dtype)
        name = "norm" if p > 2 else "norm_below_2" if p > 1 else "norm_below_1"
        return ops.with_vjp(t, name, ops.pointwise(t, "pow", powers, 1.0 / p), input, p, over=over)
    raise exc.UnsupportedTorchFunction(name=f"a norm of order {p!r}", remedy="; use a positive order or inf")


def _ties(t: Tracer, values: DeviceValue, at: list[int]) -> DeviceValue:
    """Return the number of elements that are the greatest, or nan."""
    greatest = _reduce(t, "max", values, at, True, values.dtype)
    same = ops.pointwise(t, "eq", values, greatest)
    counted = ops.pointwise(t, "logical_or", same, ops.pointwise(t, "isnan", values))
    return _reduce(t, "sum", ops.cast(t, counted, values.dtype), at, True, values.dtype)
