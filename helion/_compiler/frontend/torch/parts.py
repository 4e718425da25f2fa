"""torch functions that split device values along whole dimensions: split, chunk, unbind and the like."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .... import exc
from .. import ops
from ..rules import Rules
from ..tracer import Tracer
from ..values import DeviceValue
from .pointwise import named
from .shapes import position, reshape

RULES = Rules()
rule = RULES.register

_Parts = tuple[DeviceValue, ...]


def _along(t: Tracer, input: DeviceValue, dim: Any, name: str) -> tuple[int, int]:
    """Return the dimension and its size. Raises for a tiled dimension."""
    at = position(input, dim)
    size = t.blocks.size_of(input.dims[at])
    if not isinstance(size, int):
        raise exc.UnsupportedSplitOperation(name=f"torch.{name} along a tile")
    return at, size


def _parts(t: Tracer, input: DeviceValue, at: int, bounds: Iterable[tuple[int, int]]) -> _Parts:
    bounds = tuple(bounds)
    if len(bounds) == 2 and _are_halves(t, input, at, bounds):
        return _halves(t, input, at)
    before = (slice(None),) * at
    return tuple(input[(*before, slice(begin, end))] for begin, end in bounds)


def _are_halves(t: Tracer, input: DeviceValue, at: int, bounds: tuple[tuple[int, int], ...]) -> bool:
    (first, middle), (again, last) = bounds
    equal = first == 0 and middle == again and last == 2 * middle == t.blocks.size_of(input.dims[at])
    return equal and t.blocks.fills_lanes(last)


def _halves(t: Tracer, input: DeviceValue, at: int) -> _Parts:
    """Split a power of two of elements into halves, without a gather."""
    half = input.shape[at] // 2
    apart = reshape(t, input, [*input.shape[:at], 2, half, *input.shape[at + 1 :]])
    order = [i for i in range(apart.ndim) if i != at]
    return ops.split(t, ops.permute(t, apart, [*order, at]))


def halves(t: Tracer, input: DeviceValue, dim: Any, name: str) -> _Parts:
    """Return both halves of a dimension. Raises for an odd number of elements."""
    at, size = _along(t, input, dim, name)
    if size % 2:
        raise exc.TorchOpTracingError(name=f"torch.{name}", reason=f"dimension {at} has an odd size, {size}")
    return _parts(t, input, at, ((0, size // 2), (size // 2, size)))


def _constant(value: Any, name: str) -> int:
    if type(value) is not int:
        raise exc.UnsupportedSplitOperation(name=f"torch.{name} with sizes that are not constants")
    return value


@rule(*named("split"), *named("split_with_sizes"))
def _split(t: Tracer, input: DeviceValue, split_size_or_sections: Any = None, dim: int = 0, **sizes: Any) -> _Parts:
    for name in ("split_size", "split_sizes"):  # the methods' keywords
        split_size_or_sections = sizes.pop(name, split_size_or_sections)
    if sizes:
        raise TypeError(f"unexpected keyword {next(iter(sizes))!r}")
    at, size = _along(t, input, dim, "split")
    if isinstance(split_size_or_sections, (tuple, list)):
        lengths = [_constant(length, "split") for length in split_size_or_sections]
        if sum(lengths) != size or min(lengths, default=0) < 1:
            raise exc.TorchOpTracingError(name="torch.split", reason=f"the sizes must add up to {size}, got {lengths}")
        ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
        return _parts(t, input, at, ((end - length, end) for end, length in zip(ends, lengths, strict=True)))
    step = _constant(split_size_or_sections, "split")
    if step < 1:
        raise exc.TorchOpTracingError(name="torch.split", reason=f"the size of a part must be positive, got {step}")
    return _parts(t, input, at, ((begin, min(begin + step, size)) for begin in range(0, size, step)))


@rule(*named("chunk"))
def _chunk(t: Tracer, input: DeviceValue, chunks: int, dim: int = 0) -> _Parts:
    at, size = _along(t, input, dim, "chunk")
    step = -(-size // max(1, _constant(chunks, "chunk")))
    return _parts(t, input, at, ((begin, min(begin + step, size)) for begin in range(0, size, step)))


@rule(*named("tensor_split"))
def _tensor_split(
    t: Tracer, input: DeviceValue, indices_or_sections: Any = None, dim: int = 0, **named_sizes: Any
) -> _Parts:
    for name in ("sections", "indices"):
        indices_or_sections = named_sizes.pop(name, indices_or_sections)
    if named_sizes:
        raise TypeError(f"unexpected keyword {next(iter(named_sizes))!r}")
    at, size = _along(t, input, dim, "tensor_split")
    if isinstance(indices_or_sections, (tuple, list)):
        places = [range(size + 1)[slice(_constant(i, "tensor_split"), None)][0] if abs(i) <= size else size for i in indices_or_sections]  # fmt: skip
    else:
        count = _constant(indices_or_sections, "tensor_split")
        base, extra = divmod(size, count)
        places = [i * base + min(i, extra) for i in range(1, count)]
    bounds = tuple(zip((0, *places), (*places, size), strict=True))
    if any(begin >= end for begin, end in bounds):
        raise exc.UnsupportedSplitOperation(name="torch.tensor_split with empty parts")
    return _parts(t, input, at, bounds)


def _split_along(dim: int) -> Callable[..., _Parts]:
    def call(t: Tracer, input: DeviceValue, indices_or_sections: Any) -> _Parts:
        return _tensor_split(t, input, indices_or_sections, 0 if input.ndim == 1 else dim)

    return call


rule(*named("vsplit"))(_split_along(0))
rule(*named("hsplit"))(_split_along(1))
rule(*named("dsplit"))(_split_along(2))


@rule(*named("unbind"))
def _unbind(t: Tracer, input: DeviceValue, dim: int = 0) -> _Parts:
    at, size = _along(t, input, dim, "unbind")
    if size == 2:
        order = [i for i in range(input.ndim) if i != at]
        return ops.split(t, ops.permute(t, input, [*order, at]))
    before = (slice(None),) * at
    return tuple(input[(*before, i)] for i in range(size))


@rule(torch.nn.functional.glu)
def _glu(t: Tracer, input: DeviceValue, dim: int = -1) -> DeviceValue:
    first, second = halves(t, input, dim, "nn.functional.glu")
    gate = functools.partial(ops.pointwise, t, "sigmoid")
    return ops.cast(t, ops.cast(t, first, torch.float32) * gate(ops.cast(t, second, torch.float32)), input.dtype) if input.dtype.itemsize < 4 else first * gate(second)  # fmt: skip
