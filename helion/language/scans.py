"""Reductions and scans with a user-defined function, and cumulative sums and products."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from .. import exc
from ._reference.session import axes_of, set_axes
from ._registry import declare, reference


@declare("device")
def reduce(
    combine_fn: Callable[..., Any], input_tensor: Any, dim: int | None = None, other: Any = 0, keep_dims: bool = False
) -> Any:
    """Combine all elements along a dimension of a tile with a function.

    Args:
        combine_fn: an associative function of two values; for a tuple of n tiles of two tuples, or of 2n values. It
            computes with its arguments and constants only.
        input_tensor: a tile, or a tuple of tiles that are combined together.
        dim: the dimension; None combines all of them.
        other: the value of lanes out of range, a number, or one per tile: the identity of ``combine_fn``.
        keep_dims: keep the dimension with size 1.

    Returns:
        A tile without ``dim``, or a tuple of them; dtypes are those of the input.

    Raises:
        exc.InvalidReductionDim: there is no such dimension.
        exc.TypeInferenceError: not tiles, or a combine function that returns another number of values.
        exc.NotAllowedInHelperFunction: the combine function has side effects or accesses memory.

    Example::

        def larger(a, b):
            return torch.maximum(a, b)

        @helion.kernel
        def row_max(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
            for tile in hl.tile(x.size(0)):
                out[tile] = hl.reduce(larger, x[tile, :], dim=1, other=float("-inf"))
            return out

        row_max(torch.randn(10, 30))
    """


@declare("device")
def associative_scan(combine_fn: Callable[..., Any], input_tensor: Any, dim: int, reverse: bool = False) -> Any:
    """Combine each element along a dimension of a tile with all elements before it.

    Args:
        combine_fn: as for ``hl.reduce``.
        input_tensor: a tile, or a tuple of tiles that are combined together. Each tile of an ``hl.tile`` loop is
            scanned separately; take the whole dimension with ``:`` to scan all of it.
        dim: the dimension.
        reverse: combine with all elements after it instead.

    Returns:
        A tile of the input's shape and dtype, or a tuple of them.

    Raises:
        exc.InvalidReductionDim: there is no such dimension.
        exc.TypeInferenceError: not tiles, or a combine function that returns another number of values.
        exc.NotAllowedInHelperFunction: the combine function has side effects or accesses memory.

    Example::

        def larger(a, b):
            return torch.maximum(a, b)

        @helion.kernel
        def running_max(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            for tile in hl.tile(x.size(0)):
                out[tile, :] = hl.associative_scan(larger, x[tile, :], dim=1)
            return out

        running_max(torch.randn(10, 30))
    """


@declare("device")
def cumsum(input_tensor: torch.Tensor, dim: int, reverse: bool = False) -> torch.Tensor:
    """Compute the cumulative sum along a dimension of a tile.

    Each tile of an ``hl.tile`` loop is summed separately. Half precision is summed in float32 and rounded once;
    integers give int64.

    Args:
        input_tensor: a tile.
        dim: the dimension.
        reverse: sum from the end.

    Raises:
        exc.InvalidReductionDim: there is no such dimension.

    Example::

        @helion.kernel
        def running_sum(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            for tile in hl.tile(x.size(0)):
                out[tile, :] = hl.cumsum(x[tile, :], dim=1)
            return out

        running_sum(torch.randn(10, 30))
    """


@declare("device")
def cumprod(input_tensor: torch.Tensor, dim: int, reverse: bool = False) -> torch.Tensor:
    """Compute the cumulative product along a dimension of a tile.

    Each tile of an ``hl.tile`` loop is multiplied separately. Half precision is multiplied in float32 and rounded
    once; integers give int64.

    Args:
        input_tensor: a tile.
        dim: the dimension.
        reverse: multiply from the end.

    Raises:
        exc.InvalidReductionDim: there is no such dimension.

    Example::

        @helion.kernel
        def running_product(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            for tile in hl.tile(x.size(0)):
                out[tile, :] = hl.cumprod(x[tile, :], dim=1)
            return out

        running_product(torch.randn(10, 30))
    """


# --- eager references ---------------------------------------------------------------------------------------------------

_Values = tuple[torch.Tensor, ...]


def _inputs(value: Any, name: str) -> _Values:
    inputs = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    for item in inputs:
        if not isinstance(item, torch.Tensor) or not item.ndim:
            raise exc.TypeInferenceError(f"{name} takes tiles, got {item!r}.")
    spread = torch.broadcast_tensors(*inputs)
    return tuple(set_axes(s, axes_of(item)) for s, item in zip(spread, inputs, strict=True))


def _position(value: torch.Tensor, dim: Any) -> int:
    if not isinstance(dim, int) or not -value.ndim <= dim < value.ndim:
        raise exc.InvalidReductionDim(dim=dim, shape=list(value.shape))
    return dim % value.ndim


def _combine(function: Callable[..., Any], left: _Values, right: _Values) -> _Values:
    """Call the user's function with two sets of values; results take the dtypes of the inputs."""
    count = len(left)
    flat = count == 1 or _takes(function, 2 * count)
    result = function(*left, *right) if flat else function(left, right)
    results = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    if len(results) != count:
        raise exc.TypeInferenceError(f"The combine function of {count} values must give {count}, got {len(results)}.")
    return tuple(torch.as_tensor(r).to(v.dtype).expand(v.shape) for r, v in zip(results, left, strict=True))


def plain_function(combine_fn: Any) -> Any:
    """Return the function that combines, unwrapped if it is a kernel."""
    return combine_fn.fn if getattr(combine_fn, "_is_helion_kernel", False) else combine_fn


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # functions of C have no signature
        return True
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) == count


def _parts(values: _Values, dim: int, begin: int | None, end: int | None, step: int = 1) -> _Values:
    index = (slice(None),) * dim + (slice(begin, end, step),)
    return tuple(v[index] for v in values)


@reference(reduce)
def _reduce(
    combine_fn: Callable[..., Any], input_tensor: Any, dim: int | None = None, other: Any = 0, keep_dims: bool = False
) -> Any:
    combine_fn, values = plain_function(combine_fn), _inputs(input_tensor, "hl.reduce")
    dims = range(values[0].ndim) if dim is None else [_position(values[0], dim)]
    axes = [None if at in dims else axis for at, axis in enumerate(axes_of(values[0])) if keep_dims or at not in dims]
    for at in dims:
        while (size := values[0].shape[at]) > 1:  # neighbours in pairs; an odd last one is kept for the next round
            last = _parts(values, at, size - 1, None) if size % 2 else None
            values = _combine(combine_fn, _parts(values, at, 0, size - 1, 2), _parts(values, at, 1, None, 2))
            if last is not None:
                values = tuple(torch.cat(pair, at) for pair in zip(values, last, strict=True))
    if not keep_dims:
        for at in sorted(dims, reverse=True):
            values = tuple(v.squeeze(at) for v in values)
    values = tuple(set_axes(v, tuple(axes)) for v in values)
    return values if isinstance(input_tensor, (tuple, list)) else values[0]


@reference(associative_scan)
def _associative_scan(combine_fn: Callable[..., Any], input_tensor: Any, dim: int, reverse: bool = False) -> Any:
    combine_fn, values = plain_function(combine_fn), _inputs(input_tensor, "hl.associative_scan")
    at, axes = _position(values[0], dim), axes_of(values[0])
    if reverse:
        values = tuple(v.flip(at) for v in values)
    distance = 1
    while distance < values[0].shape[at]:
        kept = _parts(values, at, 0, distance)
        made = _combine(combine_fn, _parts(values, at, 0, -distance), _parts(values, at, distance, None))
        values = tuple(torch.cat(pair, at) for pair in zip(kept, made, strict=True))
        distance *= 2
    if reverse:
        values = tuple(v.flip(at) for v in values)
    values = tuple(set_axes(v, axes) for v in values)
    return values if isinstance(input_tensor, (tuple, list)) else values[0]


def _cumulative(function: Callable[..., torch.Tensor], value: torch.Tensor, dim: int, reverse: bool) -> torch.Tensor:
    """Scan half precision in fp32 and integers in int64."""
    half = value.dtype in (torch.float16, torch.bfloat16)
    floating = value.dtype.is_floating_point
    source = value.to(torch.float32 if half else value.dtype if floating else torch.int64)
    at = _position(value, dim)
    result = function(source.flip(at), at).flip(at) if reverse else function(source, at)
    return set_axes(result.to(value.dtype) if floating else result, axes_of(value))


@reference(cumsum)
def _cumsum(input_tensor: Any, dim: int, reverse: bool = False) -> torch.Tensor:
    return _cumulative(torch.cumsum, _inputs(input_tensor, "hl.cumsum")[0], dim, reverse)


@reference(cumprod)
def _cumprod(input_tensor: Any, dim: int, reverse: bool = False) -> torch.Tensor:
    return _cumulative(torch.cumprod, _inputs(input_tensor, "hl.cumprod")[0], dim, reverse)
