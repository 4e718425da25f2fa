"""Rules for random numbers: of ``hl``, from a user's seed, and of torch, from torch's generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .... import exc
from .... import language as hl
from ...._shapes import ONE, WIDE, Dims, Expr
from .. import memory, ops
from ..rules import Rules
from ..tracer import Tracer
from ..values import DeviceValue, HostTensorValue, Tile, describe

RULES, TORCH_RULES = Rules(), Rules()
rule, torch_rule = RULES.register, TORCH_RULES.register


def _fits_in_32_bits(t: Tracer, dims: Dims) -> bool:
    """Return whether a tensor of the whole shape is known to have fewer than 2**31 elements."""
    count = 1
    for dim in dims:
        count *= dim.const
        for block in dim.blocks:
            extent = t.blocks[block].extent
            if not isinstance(extent, int):
                return False
            count *= extent
    return count < WIDE


def _offsets(t: Tracer, dims: Dims) -> DeviceValue:
    """Return the index of every element in a row-major tensor of the whole shape, not of the tile."""
    total: DeviceValue | None = None
    wide = not _fits_in_32_bits(t, dims)
    for at, dim in enumerate(dims):
        if dim.is_one:
            continue
        block = dim.block
        tile = t.blocks.active.get(block) if block is not None else None
        index = tile.index if tile is not None else ops.iota(t, t.blocks.size_of(dim))
        if wide:
            index = ops.cast(t, index, torch.int64)
        extent: Any = t.blocks[block].extent if block is not None else 1
        if extent is None:
            raise exc.ShapeSpecializingCall(what="hl.rand over a tile whose loop has no known end")
        ones = [ONE] * len(dims)
        ones[at] = dim
        spread = ops.reshape(t, index, tuple(ones))
        total = spread if total is None else total * extent + spread
    return ops.full(t, (ONE,) * len(dims), 0, t.context.index_dtype) if total is None else total


def _seed(t: Tracer, seed: Any) -> DeviceValue:
    if not isinstance(seed, (int, float, Expr, DeviceValue, HostTensorValue, Tile)):
        raise exc.TypeInferenceError(f"A seed must be an integer, got {describe(seed)} of type {type(seed).__name__}.")
    value = ops.as_device(t, seed, "as a seed")
    if value.dims or value.dtype.is_floating_point:
        raise exc.TypeInferenceError(f"A seed must be an integer, got {describe(seed)}.")
    return value


def _given_offsets(t: Tracer, offsets: Any, name: str) -> DeviceValue:
    value = ops.as_device(t, offsets, f"as offsets of {name}")
    if value.dtype.is_floating_point or value.dtype == torch.bool:
        raise exc.TypeInferenceError(f"The offsets of {name} must be integers, got {describe(offsets)}.")
    return value


@rule(hl.rand)
def _rand(t: Tracer, shape: Any, seed: Any, device: Any = None, offsets: Any = None) -> DeviceValue:
    dims = t.blocks.dims_of(shape)
    places = _offsets(t, dims) if offsets is None else ops.broadcast(t, _given_offsets(t, offsets, "hl.rand"), dims)
    return ops.random(t, "uniform", _seed(t, seed), places)


@rule(hl.rand4x)
def _rand4x(t: Tracer, seed: Any, offsets: Any) -> tuple[DeviceValue, ...]:
    places = _given_offsets(t, offsets, "hl.rand4x")
    return ops.random4(t, _seed(t, seed), places)


@rule(hl.randint)
def _randint(t: Tracer, shape: Any, low: int, high: int, seed: Any, device: Any = None) -> DeviceValue:
    if not (isinstance(low, int) and isinstance(high, int) and low < high):
        raise exc.InvalidAPIUsage(f"hl.randint needs constant bounds low < high, got {low!r} and {high!r}.")
    word = ops.random(t, "bits", _seed(t, seed), _offsets(t, t.blocks.dims_of(shape)))
    # in 32 bits, where the smallest integer has no absolute value, and with the remainder of C
    magnitude = ops.cast(t, ops.pointwise(t, "abs", word), torch.int64)
    return ops.cast(t, ops.pointwise(t, "fmod", magnitude, high - low) + low, torch.int32)


def _drawn(t: Tracer, dims: Dims) -> DeviceValue:
    """Record uniform numbers in [0, 1) with a seed from torch's generator at every launch."""
    return ops.random(t, "uniform", memory.drawn_seed(t), _offsets(t, dims))


def _normal(t: Tracer, dims: Dims) -> DeviceValue:
    """Record standard normal numbers: Box-Muller of two words for each element."""
    return ops.random(t, "normal", memory.drawn_seed(t), _offsets(t, dims))


def _random_factory(t: Tracer, make: Callable[..., DeviceValue], dims: Dims, dtype: torch.dtype) -> DeviceValue:
    if not dtype.is_floating_point:
        raise exc.TypeInferenceError(
            f"Random numbers of torch are floating-point numbers, not {dtype}; use hl.randint."
        )
    return ops.cast(t, make(t, dims), dtype)


def _register_random(name: str, make: Callable[..., DeviceValue]) -> None:
    def of_sizes(t: Tracer, *size: Any, dtype: Any = None, device: Any = None, generator: None = None) -> DeviceValue:
        sizes = size[0] if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
        return _random_factory(t, make, t.blocks.dims_of(sizes), dtype or t.world.default_dtype())

    def like(t: Tracer, input: DeviceValue, *, dtype: Any = None, device: Any = None) -> DeviceValue:
        return _random_factory(t, make, input.dims, dtype or input.dtype)

    torch_rule(getattr(torch, name))(of_sizes)
    torch_rule(getattr(torch, f"{name}_like"))(like)


@torch_rule(torch.nn.functional.dropout)
def _dropout(t: Tracer, input: DeviceValue, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not training or (isinstance(p, (int, float)) and p == 0):
        return input
    if isinstance(p, (int, float)) and not 0 <= p <= 1:
        raise exc.InvalidAPIUsage(f"The probability of torch.nn.functional.dropout must be between 0 and 1, got {p}.")
    kept = ops.pointwise(t, "ge", _drawn(t, input.dims), p)
    return ops.cast(t, ops.pointwise(t, "where", kept, input / (1.0 - p), 0), input.dtype)


_register_random("rand", _drawn)
_register_random("randn", _normal)
