"""``tl.reduce``, ``tl.associative_scan`` and ``tl.map_elementwise`` with any combine function.

A combine function of Triton's own library (sum, max ...) becomes one numpy call. Any other is called on whole blocks,
log2(n) times, as the device combines lanes in a tree; one that branches on its arguments is called per element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton.language as tl

from . import numerics
from .numerics import NARROW
from .semantic import SEMANTIC, BlockCondition
from .values import Handle, Tensor, block

Combine = Callable[..., Any]


def _tensor(data: np.ndarray, dtype: tl.dtype) -> Tensor:
    """Return a block of ``data``'s shape; a scalar for a 0-d array."""
    if data.ndim == 0:
        return Tensor(Handle(data.reshape(1), dtype), dtype)
    return Tensor(Handle(data, dtype), block(dtype, data.shape))


def _sum(x: np.ndarray, axis: int) -> np.ndarray:
    # float64 partial sums: at least as accurate as any tree, and independent of the axis order.
    wide = np.float64 if x.dtype.kind == "f" else x.dtype
    return np.add.reduce(x, axis=axis, dtype=wide).astype(x.dtype)


def _product(x: np.ndarray, axis: int) -> np.ndarray:
    wide = np.float64 if x.dtype.kind == "f" else x.dtype
    return np.multiply.reduce(x, axis=axis, dtype=wide).astype(x.dtype)


_REDUCTIONS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "_sum_combine": _sum,
    "_prod_combine": _product,
    # tl.maximum and tl.minimum drop NaN unless told otherwise.
    "_elementwise_max": lambda x, axis: np.fmax.reduce(x, axis=axis),
    "_elementwise_min": lambda x, axis: np.fmin.reduce(x, axis=axis),
    "_xor_combine": lambda x, axis: np.bitwise_xor.reduce(x, axis=axis),
    "_or_combine": lambda x, axis: np.bitwise_or.reduce(x, axis=axis),
    "_and_combine": lambda x, axis: np.bitwise_and.reduce(x, axis=axis),
}

_ARG_REDUCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "_argmax_combine_tie_break_left": np.argmax,
    "_argmax_combine_tie_break_fast": np.argmax,
    "_argmin_combine_tie_break_left": np.argmin,
    "_argmin_combine_tie_break_fast": np.argmin,
}

_SCANS: dict[str, np.ufunc] = {"_sum_combine": np.add, "_prod_combine": np.multiply}


def _library_name(combine: Any) -> str:
    """Return the name of the function of ``triton.language.standard`` that ``combine`` is, or ''."""
    jit = getattr(combine, "jit", None)
    name = getattr(jit, "__name__", "")
    return name if name and getattr(tl.standard, name, None) is jit else ""


def _rounded(data: np.ndarray, dtype: tl.dtype) -> np.ndarray:
    return numerics.round_narrow(data, dtype.name) if dtype.name in NARROW else data


def _results(combine: Combine, left: Sequence[Tensor], right: Sequence[Tensor]) -> list[Tensor]:
    """Call ``combine`` once and return its results with the operands' types."""
    results = combine(*left, *right)
    if not isinstance(results, (tuple, tl.tuple)):
        results = (results,)
    if len(results) != len(left):
        raise ValueError(f"a combine function of {len(left)} values must return as many, got {len(results)}")
    out = []
    for value, operand in zip(results, left, strict=True):
        value = SEMANTIC.cast(SEMANTIC.to_tensor(value), operand.dtype)
        out.append(SEMANTIC.broadcast_impl_value(value, operand)[0])
    return out


def _call_on_arrays(
    combine: Combine, left: Sequence[np.ndarray], right: Sequence[np.ndarray], types: Sequence[tl.dtype]
) -> list[np.ndarray]:
    """Apply ``combine`` to arrays elementwise; element by element where it branches on its arguments."""
    shape = left[0].shape
    try:
        results = _results(
            combine,
            [_tensor(a, t) for a, t in zip(left, types, strict=True)],
            [_tensor(a, t) for a, t in zip(right, types, strict=True)],
        )
    except BlockCondition:
        out = [np.empty(shape, a.dtype) for a in left]
        for index in np.ndindex(shape):
            scalars = _results(
                combine,
                [_tensor(np.asarray(a[index]), t) for a, t in zip(left, types, strict=True)],
                [_tensor(np.asarray(a[index]), t) for a, t in zip(right, types, strict=True)],
            )
            for target, value in zip(out, scalars, strict=True):
                target[index] = value.handle.data[0]
        return out
    return [np.broadcast_to(r.handle.data, shape) if shape else r.handle.data.reshape(()) for r in results]


def _inputs(value: Any) -> tuple[Tensor, ...]:
    return tuple(value) if isinstance(value, (tuple, list, tl.tuple)) else (value,)


def _axis(axis: Any, rank: int) -> int:
    axis = int(getattr(axis, "value", axis))
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is out of bounds for a block of rank {rank}")
    return axis % rank


def reduce(input: Any, axis: Any, combine_fn: Combine, keep_dims: Any = False, **_: Any) -> Any:
    """Run ``tl.reduce``. ``axis`` None reduces over everything."""
    inputs = _inputs(input)
    shape = tuple(int(s) for s in inputs[0].shape)
    axis = getattr(axis, "value", axis)
    arrays = [t.handle.full() for t in inputs]
    if axis is None:
        arrays, at = [a.reshape(-1) for a in arrays], 0
        kept: tuple[int, ...] = (1,) * len(shape)
    else:
        at = _axis(axis, len(shape))
        kept = (*shape[:at], 1, *shape[at + 1 :])
    types = [t.dtype for t in inputs]
    reduced = _reduce_arrays(arrays, at, combine_fn, types)
    if getattr(keep_dims, "value", keep_dims):
        reduced = [r.reshape(kept) for r in reduced]
    results = tuple(_tensor(r, t) for r, t in zip(reduced, types, strict=True))
    return results[0] if isinstance(input, tl.tensor) else results


def _reduce_arrays(
    arrays: list[np.ndarray], axis: int, combine: Combine, types: Sequence[tl.dtype]
) -> list[np.ndarray]:
    name = _library_name(combine)
    if name in _REDUCTIONS and len(arrays) == 1:
        return [_rounded(np.asarray(_REDUCTIONS[name](arrays[0], axis)), types[0])]
    if name in _ARG_REDUCTIONS and len(arrays) == 2:
        value, index = arrays
        ascending = value.shape[axis] < 2 or bool((np.diff(index, axis=axis) > 0).all())
        if ascending and not (value.dtype.kind == "f" and np.isnan(value).any()):
            position = np.expand_dims(_ARG_REDUCTIONS[name](value, axis=axis), axis)
            return [np.take_along_axis(a, position, axis=axis).squeeze(axis) for a in arrays]
    parts = [np.moveaxis(a, axis, -1) for a in arrays]
    while parts[0].shape[-1] > 1:
        # Combining neighbours first keeps the order of operands, so that associativity suffices.
        length = parts[0].shape[-1]
        odd = [p[..., length - length % 2 :] for p in parts]
        even = [p[..., : length - length % 2] for p in parts]
        halves = _call_on_arrays(combine, [p[..., 0::2] for p in even], [p[..., 1::2] for p in even], types)
        parts = [np.concatenate([h, o], axis=-1) if o.shape[-1] else h for h, o in zip(halves, odd, strict=True)]
    return [p[..., 0] for p in parts]


def reduce_with_indices(input: Any, axis: Any, combine_fn: Combine, keep_dims: Any = False, **_: Any) -> Any:
    """Reduce (value, index) pairs, for ``tl.argmax`` and similar functions; indices count along ``axis``."""
    at = _axis(axis, len(input.shape))
    shape = tuple(int(s) for s in input.shape)
    index = np.arange(shape[at], dtype=np.int32).reshape((-1,) + (1,) * (len(shape) - 1 - at))
    indices = Tensor(Handle(index, tl.int32), block(tl.int32, shape))
    return reduce((input, indices), at, combine_fn, keep_dims)


def associative_scan(input: Any, axis: Any, combine_fn: Combine, reverse: Any = False, **_: Any) -> Any:
    """Run ``tl.associative_scan``: inclusive prefixes along ``axis``, from its end where ``reverse``."""
    inputs = _inputs(input)
    types = [t.dtype for t in inputs]
    at = _axis(axis, len(inputs[0].shape))
    parts = [np.moveaxis(t.handle.full(), at, -1) for t in inputs]
    backward = bool(getattr(reverse, "value", reverse))
    if backward:
        parts = [p[..., ::-1] for p in parts]
    name = _library_name(combine_fn)
    if name in _SCANS and len(parts) == 1:
        x = parts[0]
        wide = np.float64 if x.dtype.kind == "f" else x.dtype
        parts = [_rounded(_SCANS[name].accumulate(x, axis=-1, dtype=wide).astype(x.dtype), types[0])]
    else:
        parts = _scan_arrays(parts, combine_fn, types)
    if backward:
        parts = [p[..., ::-1] for p in parts]
    results = tuple(_tensor(np.ascontiguousarray(np.moveaxis(p, -1, at)), t) for p, t in zip(parts, types, strict=True))
    return results[0] if isinstance(input, tl.tensor) else results


def _scan_arrays(parts: list[np.ndarray], combine: Combine, types: Sequence[tl.dtype]) -> list[np.ndarray]:
    """Scan with Hillis and Steele: after step k each element has combined its 2^k predecessors."""
    length, distance = parts[0].shape[-1], 1
    while distance < length:
        earlier = [p[..., :-distance] for p in parts]
        later = [p[..., distance:] for p in parts]
        combined = _call_on_arrays(combine, earlier, later, types)
        parts = [np.concatenate([p[..., :distance], c], axis=-1) for p, c in zip(parts, combined, strict=True)]
        distance *= 2
    return parts


def map_elementwise(scalar_fn: Combine, *args: Any, pack: Any = 1, **_: Any) -> Any:
    """Run ``tl.map_elementwise``: ``scalar_fn`` on ``pack`` neighbouring elements of each argument at a time."""
    pack = int(getattr(pack, "value", pack))
    tensors = SEMANTIC.broadcast_tensors(*[SEMANTIC.to_tensor(a) for a in args])
    shape = tensors[0].handle.shape
    packed = [t.handle.full().reshape(-1, pack) for t in tensors]
    columns = [(p[:, j], t.dtype) for p, t in zip(packed, tensors, strict=True) for j in range(pack)]

    def call(values: Sequence[tuple[np.ndarray, tl.dtype]]) -> list[Tensor]:
        results = scalar_fn(*[_tensor(a, t) for a, t in values])
        return [SEMANTIC.to_tensor(r) for r in _inputs(results)]

    try:
        found = call(columns)
        outs = [(np.broadcast_to(r.handle.data, len(packed[0])), r.dtype) for r in found]
    except BlockCondition:
        rows = [call([(np.asarray(a[i]), t) for a, t in columns]) for i in range(len(packed[0]))]
        outs = [(np.concatenate([row[k].handle.data for row in rows]), r.dtype) for k, r in enumerate(rows[0])]
    merged = [
        _tensor(np.stack([outs[k + j][0] for j in range(pack)], axis=-1).reshape(shape or ()), outs[k][1])
        for k in range(0, len(outs), pack)
    ]
    return merged[0] if len(merged) == 1 else tuple(merged)
