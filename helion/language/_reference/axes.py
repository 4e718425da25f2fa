"""Axes of the lanes of each dimension through torch's functions, and the alignment of smaller values with larger
ones.

Dimensions of elementwise calls are aligned at the right, as in torch. Where the axes differ there, a value with a
tile is aligned by its axes: ``a[i, j] + b[i]``, ``a[i, j, :] + b[i, :]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ..tiles import RefAxis
from .session import axes_of, set_axes, shadow_of

_Axes = tuple[object, ...]


# --- elementwise calls --------------------------------------------------------------------------------------------------


def elementwise(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function whose tensor arguments broadcast, each aligned by its axes; the result has axes too."""
    values = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
    rank = max((v.ndim for v in values), default=0)
    target = _columns([v for v in values if v.ndim == rank])
    args = tuple(_placed(a, target) for a in args)
    kwargs = {name: _placed(a, target) for name, a in kwargs.items()}
    result = function(*args, **kwargs)
    if isinstance(result, torch.Tensor) and result.ndim == rank:
        values = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor) and v.ndim == rank]
        set_axes(result, tuple(axis for axis, _ in _columns(values)))
    return result


def _columns(values: Sequence[torch.Tensor]) -> list[tuple[object, int]]:
    """Return axis and size of each dimension of the broadcast of values of one rank."""
    each = zip(*(zip(axes_of(v), v.shape, strict=True) for v in values), strict=True)
    return [_column(list(column)) for column in each]


def _column(column: list[tuple[object, int]]) -> tuple[object, int]:
    several = [pair for pair in column if pair[1] != 1] or column
    known = {axis for axis, _ in several if axis is not None}
    return (known.pop() if len(known) == 1 else None), several[0][1]


def _placed(value: Any, target: Sequence[tuple[object, int]]) -> Any:
    """Insert dimensions of 1 into a value of lower rank, if the target has its tiles at other positions."""
    if not isinstance(value, torch.Tensor) or not 0 < value.ndim < len(target):
        return value
    if all(map(_fits, zip(axes_of(value), value.shape, strict=True), target[len(target) - value.ndim :])):
        return value
    several = [(axis, size) for axis, size in zip(axes_of(value), value.shape, strict=True) if _counts(axis, size)]
    own, places = [_identity(*pair) for pair in several], [_identity(*pair) for pair in target]
    tiles = any(isinstance(axis, RefAxis) for axis, _ in several)
    if not tiles or any(places.count(each) != 1 for each in own) or [each for each in places if each in own] != own:
        return value
    found = dict(zip(own, several, strict=True))
    dims = [found.get(place, (None, 1)) for place in places]
    return set_axes(value.reshape([size for _, size in dims]), tuple(axis for axis, _ in dims))


def _counts(axis: object, size: int) -> bool:
    """Return whether a dimension is more than a constant 1."""
    return size != 1 or isinstance(axis, RefAxis)


def _identity(axis: object, size: int) -> object:
    """Return the identity of a dimension: the axis of a tile, or the size."""
    return axis if isinstance(axis, RefAxis) else size


def _fits(have: tuple[object, int], want: tuple[object, int]) -> bool:
    """Return whether a dimension has one lane or as many as another one, for every config."""
    (axis, size), (other, extent) = have, want
    if axis is not None and axis == other:
        return True
    return not _varies(axis) and (size == 1 or (size == extent and not _varies(other)))


def _varies(axis: object) -> bool:
    return isinstance(axis, RefAxis) and not axis.fixed


# --- other functions ----------------------------------------------------------------------------------------------------


def note_axes(function: Callable[..., Any], result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return ``result`` of a call, with its axes where they follow from those of the first argument."""
    rule = _RULES.get(function)
    if rule is not None and args and isinstance(args[0], torch.Tensor):
        for item in result if isinstance(result, tuple) else (result,):
            if isinstance(item, torch.Tensor):
                _note(item, rule(function, item, args, kwargs))
    return result


def _note(value: torch.Tensor, axes: _Axes) -> None:
    shadow = shadow_of(value)
    for version in (value, *(() if shadow is None else shadow.padded)):
        set_axes(version, axes)


def _kept(function: Callable[..., Any], result: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Axes:
    return axes_of(args[0]) if result.shape == args[0].shape else ()


def _reduced(
    function: Callable[..., Any], result: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> _Axes:
    """Return the axes without those of the reduced dimensions; kept dimensions of 1 have no axis."""
    value, dims = args[0], args[1] if len(args) > 1 else kwargs.get("dim")
    if not isinstance(dims, (int, tuple, list)):
        return ()
    reduced = {dim % value.ndim for dim in (dims if isinstance(dims, (tuple, list)) else (dims,)) if value.ndim}
    left = [(at not in reduced, axis) for at, axis in enumerate(axes_of(value))]
    if result.ndim == value.ndim:
        return tuple(axis if stays else None for stays, axis in left)
    return tuple(axis for stays, axis in left if stays)


def _permuted(
    function: Callable[..., Any], result: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> _Axes:
    """Return the moved axes. The function shows on a tensor of distinct sizes how it moves dimensions."""
    axes = dict(enumerate(axes_of(args[0]), 2))
    with torch._C.DisableTorchFunction():
        moved = function(torch.empty(list(axes), device="meta"), *args[1:], **kwargs)
    return tuple(axes.get(size) for size in moved.shape)


_Rule = Callable[[Callable[..., Any], torch.Tensor, Sequence[Any], Mapping[str, Any]], _Axes]


def _named(rule: _Rule, names: Iterable[str]) -> dict[Any, _Rule]:
    owners = (torch, torch.Tensor, torch.nn.functional)
    return {getattr(o, n): rule for o in owners for n in names if callable(getattr(o, n, None))}


_RULES: dict[Any, _Rule] = {
    **_named(
        _kept,
        (
            "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "tanh", "sigmoid", "relu",
            "erf", "abs", "neg", "negative", "reciprocal", "square", "sign", "floor", "ceil", "round", "trunc", "isnan", "isinf",
            "logical_not", "bitwise_not", "__invert__", "__neg__", "to", "float", "double", "half", "bfloat16", "int", "long", "bool",
            "type", "clone", "contiguous", "softmax", "log_softmax", "cumsum", "cumprod", "zeros_like", "ones_like", "full_like",
            "empty_like", "expand_as", "silu", "gelu", "leaky_relu", "elu", "celu", "selu", "softplus", "softsign", "mish", "relu6", "hardtanh",
            "hardswish", "hardsigmoid", "logsigmoid", "dropout",
        ),
    ),
    **_named(_reduced, ("sum", "mean", "prod", "amax", "amin", "argmax", "argmin", "max", "min", "any", "all", "logsumexp", "var", "std", "var_mean")),
    **_named(_permuted, ("permute", "transpose", "t", "swapaxes", "movedim", "unsqueeze")),
    torch.Tensor.T.__get__: _permuted,  # type: ignore[attr-defined]
    torch.Tensor.mT.__get__: _permuted,  # type: ignore[attr-defined]
}  # fmt: skip
