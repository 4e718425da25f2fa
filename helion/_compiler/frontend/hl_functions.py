"""Rules for ``hl`` functions: what each one means while a kernel is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ... import exc
from ... import language as hl
from ..._shapes import Expr, hint_of, is_power_of_2, next_power_of_2
from .torch_matmul import dot
from .torch_shapes import arange
from .tracer import Tracer
from .values import DeviceValue, HostTensorValue, Tile, describe

HL_RULES: dict[Any, Callable[..., Any]] = {}


def rule(function: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        HL_RULES[function] = fn
        return fn

    return register


@rule(hl.zeros)
def _zeros(t: Tracer, shape: Any, dtype: torch.dtype = torch.float32, device: Any = None) -> DeviceValue:
    return t.full(t.dims_of(shape), 0, dtype)


@rule(hl.full)
def _full(t: Tracer, shape: Any, value: Any, dtype: torch.dtype = torch.float32, device: Any = None) -> DeviceValue:
    return t.full(t.dims_of(shape), value, dtype)


@rule(hl.arange)
def _arange(t: Tracer, *bounds: Any, dtype: Any = None, device: Any = None, step: int = 1) -> DeviceValue:
    if step != 1:
        bounds = (bounds[0], bounds[1], step) if len(bounds) == 2 else (0, bounds[0], step)
    return arange(t, bounds, dtype)


@rule(hl.subscript)
def _subscript(t: Tracer, tensor: Any, index: Any) -> Any:
    return tensor[tuple(index) if isinstance(index, (list, tuple)) else index]


@rule(hl.dot)
def _dot(t: Tracer, mat1: Any, mat2: Any, acc: Any = None, out_dtype: Any = None) -> DeviceValue:
    if acc is not None and not isinstance(acc, DeviceValue):
        acc = t.as_device(acc, "as the accumulator of hl.dot")
    return dot(t, mat1, mat2, acc, out_dtype)


def _host_tensor(t: Tracer, tensor: Any, name: str) -> HostTensorValue:
    if not isinstance(tensor, HostTensorValue):
        raise exc.TypeInferenceError(f"{name} works on host tensors, got {describe(tensor)}.")
    return tensor


def _index(index: Any) -> Any:
    return tuple(index) if isinstance(index, list) else index


@rule(hl.load)
def _load(t: Tracer, tensor: Any, index: Any, extra_mask: Any = None, eviction_policy: str | None = None) -> Any:
    if eviction_policy not in (None, "", "evict_first", "evict_last"):
        raise exc.InvalidAPIUsage(
            f"eviction_policy must be '', 'evict_first' or 'evict_last', got {eviction_policy!r}."
        )
    return t.load(_host_tensor(t, tensor, "hl.load"), _index(index), extra_mask, eviction_policy)


@rule(hl.store)
def _store(t: Tracer, tensor: Any, index: Any, value: Any, extra_mask: Any = None) -> None:
    if isinstance(tensor, DeviceValue):
        raise exc.DeviceTensorSubscriptAssignmentNotAllowed(name="the target of hl.store")
    t.store(_host_tensor(t, tensor, "hl.store"), _index(index), value, extra_mask)


def _tile(tile: Any, name: str) -> Tile:
    if not isinstance(tile, Tile):
        raise exc.TypeInferenceError(f"{name} takes a tile, got {describe(tile)}.")
    return tile


for _function, _attribute in {
    hl.tile_index: "index", hl.tile_begin: "begin", hl.tile_end: "end", hl.tile_id: "id", hl.tile_count: "count",
    hl.tile_block_size: "block_size",
}.items():  # fmt: skip
    HL_RULES[_function] = lambda t, tile, name=_attribute: getattr(_tile(tile, f"hl.tile_{name}"), name)


@rule(hl.register_block_size)
def _register_block_size(t: Tracer, min_or_max: Any, max: Any = None) -> Expr:
    low, high = (1, min_or_max) if max is None else (min_or_max, max)
    if not isinstance(low, int) or not is_power_of_2(low):
        raise exc.InvalidAPIUsage(
            f"The minimum of hl.register_block_size must be a constant power of two, got {describe(low)}."
        )
    if not isinstance(high, (int, Expr)):
        raise exc.InvalidAPIUsage(f"The maximum of hl.register_block_size must be a size, got {describe(high)}.")
    block = t.new_block(
        "tile",
        high,
        name=f"block_{len(t.blocks)}",
        registered=True,
        min_size=low,
        max_size=next_power_of_2(hint_of(high)) if isinstance(high, int) else None,
    )
    return Expr("block", (block.id,), 64)


@rule(hl.specialize)
def _specialize(t: Tracer, value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_specialize(t, item) for item in value)
    if isinstance(value, Expr):
        return t.specialize(value)
    if isinstance(value, (int, float)):
        return value
    raise exc.SpecializeArgType(got=describe(value))
