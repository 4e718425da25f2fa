"""Rules for ``hl`` functions: the ops that each one records during a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .... import exc
from .... import language as hl
from ...._shapes import ONE, Expr, hint_of, is_power_of_2, next_power_of_2
from ....config import OWN_KEYS, TUNABLE
from ....fields import Fragment
from ....language.atomics import check_dtype, check_order
from ....language.scans import plain_function
from ....language.stack_tensor import StackTensor
from .. import memory, ops
from ..rules import Rules
from ..torch.matmul import dot
from ..torch.pointwise import HALF, named
from ..torch.reductions import whole
from ..torch.shapes import arange, bounds_of_arange, position
from ..tracer import Tracer
from ..values import DeviceValue, HostTensorValue, Tile, describe
from . import stack
from .scaled_dot import dot_scaled

RULES, TORCH_RULES = Rules(), Rules()
rule, torch_rule = RULES.register, TORCH_RULES.register


@rule(hl.zeros)
def _zeros(t: Tracer, shape: Any, dtype: torch.dtype = torch.float32, device: Any = None) -> DeviceValue:
    return ops.full(t, t.blocks.dims_of(shape), 0, dtype)


@rule(hl.full)
def _full(t: Tracer, shape: Any, value: Any, dtype: torch.dtype = torch.float32, device: Any = None) -> DeviceValue:
    return ops.full(t, t.blocks.dims_of(shape), value, dtype)


@rule(hl.arange)
def _arange(t: Tracer, *bounds: Any, dtype: Any = None, device: Any = None, **named: Any) -> DeviceValue:
    found = bounds_of_arange(bounds, named)
    if named:
        raise TypeError(f"hl.arange has no argument {next(iter(named))!r}")
    return arange(t, found, dtype)


@rule(hl.subscript)
def _subscript(t: Tracer, tensor: Any, index: Any) -> Any:
    for item in index if isinstance(index, (list, tuple)) else (index,):
        if item is not None and item is not ... and not (isinstance(item, slice) and item == slice(None)):
            raise exc.InvalidIndexingType(got=f"{describe(item)}, in hl.subscript,")
    return tensor[tuple(index) if isinstance(index, (list, tuple)) else index]


@rule(hl.dot)
def _dot(t: Tracer, mat1: Any, mat2: Any, acc: Any = None, out_dtype: Any = None) -> DeviceValue:
    if acc is not None and not isinstance(acc, DeviceValue):
        acc = ops.as_device(t, acc, "as the accumulator of hl.dot")
    return dot(t, mat1, mat2, acc, out_dtype)


@rule(hl.dot_scaled)
def _dot_scaled(
    t: Tracer,
    mat1: Any,
    mat1_scale: Any,
    mat1_format: Any,
    mat2: Any,
    mat2_scale: Any,
    mat2_format: Any,
    acc: Any = None,
    out_dtype: Any = None,
) -> DeviceValue:
    if acc is not None and not isinstance(acc, DeviceValue):
        acc = ops.as_device(t, acc, "as the accumulator of hl.dot_scaled")
    return dot_scaled(t, (mat1, mat2), (mat1_scale, mat2_scale), (mat1_format, mat2_format), acc, out_dtype)


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
    if isinstance(tensor, StackTensor):
        return stack.load(t, tensor, _index(index), extra_mask, eviction_policy)
    return memory.load(t, _host_tensor(t, tensor, "hl.load"), _index(index), extra_mask, eviction_policy)


@rule(hl.store)
def _store(t: Tracer, tensor: Any, index: Any, value: Any, extra_mask: Any = None) -> None:
    if isinstance(tensor, DeviceValue):
        raise exc.DeviceTensorSubscriptAssignmentNotAllowed(name="the target of hl.store")
    if isinstance(tensor, StackTensor):
        stack.store(t, tensor, _index(index), value, extra_mask)
        return
    memory.store(t, _host_tensor(t, tensor, "hl.store"), _index(index), value, extra_mask)


def _tile(tile: Any, name: str) -> Tile:
    if not isinstance(tile, Tile):
        raise exc.TypeInferenceError(f"{name} takes a tile, got {describe(tile)}.")
    return tile


for _function, _attribute in {
    hl.tile_index: "index", hl.tile_begin: "begin", hl.tile_end: "end", hl.tile_id: "id", hl.tile_count: "count",
    hl.tile_block_size: "block_size",
}.items():  # fmt: skip
    rule(_function)(lambda t, tile, name=_attribute: getattr(_tile(tile, f"hl.tile_{name}"), name))


@rule(hl.register_block_size)
def _register_block_size(t: Tracer, min_or_max: Any, max: Any = None) -> Expr:
    low, high = (1, min_or_max) if max is None else (min_or_max, max)
    if not isinstance(low, int) or not is_power_of_2(low):
        raise exc.InvalidAPIUsage(
            f"The minimum of hl.register_block_size must be a constant power of two, got {describe(low)}."
        )
    if not isinstance(high, (int, Expr)):
        raise exc.InvalidAPIUsage(f"The maximum of hl.register_block_size must be a size, got {describe(high)}.")
    block = t.blocks.new(
        "tile",
        high,
        name=f"block_{len(t.blocks.all)}",
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
        return t.numbers.specialize(value)
    if isinstance(value, (int, float)):
        return value
    raise exc.SpecializeArgType(got=describe(value))


@rule(hl.barrier)
def _barrier(t: Tracer) -> None:
    raise exc.BarrierOnlyAllowedAtTopLevel()


# --- atomics ----------------------------------------------------------------------------------------------------------


def _atomic(name: str) -> Callable[..., Any]:
    def call(t: Tracer, target: Any, index: Any, *values: Any, sem: str = "relaxed", scope: str = "gpu") -> DeviceValue:
        function = f"hl.atomic_{name}"
        if isinstance(target, DeviceValue):
            raise exc.AtomicOnDeviceTensor(name=function)
        if isinstance(target, StackTensor):
            raise exc.InvalidAPIUsage(
                f"{function} does not take stack tensors; load and store them, or pass the tensors."
            )
        tensor = _host_tensor(t, target, function)
        count = 2 if name == "cas" else 1
        for at, given in enumerate(values[count:]):  # they may be positional
            sem, scope = (given, scope) if at == 0 else (sem, given)
        values = values[:count]
        check_order(function, sem, scope)
        check_dtype(name, tensor.dtype)
        return memory.atomic(t, name, tensor, _index(index), values, sem, scope)

    return call


def _atomic_keywords(name: str) -> Callable[..., Any]:
    call = _atomic(name)
    keywords = ("expected", "value") if name == "cas" else ("value",)

    def with_keywords(t: Tracer, target: Any, index: Any, *values: Any, **named: Any) -> DeviceValue:
        return call(t, target, index, *values, *(named.pop(k) for k in keywords if k in named), **named)

    return with_keywords


for _name in ("add", "max", "min", "and", "or", "xor", "xchg", "cas"):
    rule(getattr(hl, f"atomic_{_name}"))(_atomic_keywords(_name))


# --- reductions and scans ---------------------------------------------------------------------------------------------


def _inputs(t: Tracer, value: Any, name: str) -> tuple[DeviceValue, ...]:
    inputs = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    for item in inputs:
        ops.refuse_operand(item, f"in {name}")
        if not isinstance(item, DeviceValue) or not item.dims:
            raise exc.TypeInferenceError(f"{name} takes tiles, got {describe(item)}.")
    return ops.together(t, inputs, f" in {name}")


def _check_function(combine_fn: Any, name: str) -> None:
    if combine_fn is None or isinstance(combine_fn, (int, float, str, tuple, list, DeviceValue, HostTensorValue, Tile)):
        raise exc.InvalidAPIUsage(
            f"{name} takes a function of two values that combines them, got {describe(combine_fn)}."
        )


@rule(hl.reduce)
def _reduce(
    t: Tracer, combine_fn: Any, input_tensor: Any, dim: Any = None, other: Any = 0, keep_dims: bool = False
) -> Any:
    _check_function(combine_fn, "hl.reduce")
    combine_fn, inputs = plain_function(combine_fn), _inputs(t, input_tensor, "hl.reduce")
    others = tuple(other) if isinstance(other, (tuple, list)) else (other,) * len(inputs)
    if len(others) != len(inputs) or not all(isinstance(o, (int, float)) for o in others):
        raise exc.TypeInferenceError(
            f"other of hl.reduce must be a number for each of the {len(inputs)} tensors, got {other!r}."
        )
    fills = tuple(float(o) if i.dtype.is_floating_point else o for o, i in zip(others, inputs, strict=True))
    rank = inputs[0].ndim
    positions = range(rank) if dim is None else [position(inputs[0], dim)]
    values = inputs
    for at in sorted(positions, reverse=True):
        values = ops.fold(t, values, ops.combine(t, combine_fn, values), at, fills)
    if keep_dims:
        dims = tuple(ONE if i in positions else d for i, d in enumerate(inputs[0].dims))
        values = tuple(ops.reshape(t, v, dims) for v in values)
    return values if isinstance(input_tensor, (tuple, list)) else values[0]


@rule(hl.associative_scan)
def _associative_scan(t: Tracer, combine_fn: Any, input_tensor: Any, dim: int, reverse: bool = False) -> Any:
    _check_function(combine_fn, "hl.associative_scan")
    combine_fn, inputs = plain_function(combine_fn), _inputs(t, input_tensor, "hl.associative_scan")
    at = position(inputs[0], dim)
    if reverse and t.blocks.may_be_padded(inputs[0].dims[at]):
        values = _scan_from_padding(t, combine_fn, inputs, at)
    else:
        values = ops.scan(t, inputs, ops.combine(t, combine_fn, inputs), at, reverse)
    return values if isinstance(input_tensor, (tuple, list)) else values[0]


@torch_rule(torch._higher_order_ops.associative_scan)
def _torch_associative_scan(
    t: Tracer, combine_fn: Any, xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise"
) -> Any:
    """Record an associative scan; ``combine_mode`` only matters to torch's own compiler."""
    return _associative_scan(t, combine_fn, xs, dim, reverse)


def _scan_from_padding(t: Tracer, combine_fn: Any, inputs: tuple[DeviceValue, ...], at: int) -> tuple[DeviceValue, ...]:
    """Scan in reverse over a padded dimension. Its first lanes are out of range and a user function has no known
    identity, so each value has a flag that is 0 there.
    """
    flags = ops.full(t, inputs[0].dims, 1, torch.int32)

    def skipping(left: tuple[DeviceValue, ...], right: tuple[DeviceValue, ...]) -> tuple[DeviceValue, ...]:
        both = ops.combined(t, combine_fn, left[1:], right[1:])
        found = ops.pointwise(t, "ne", left[0], 0)
        kept = (ops.pointwise(t, "where", found, b, r) for b, r in zip(both, right[1:], strict=True))
        return (ops.pointwise(t, "bitwise_or", left[0], right[0]), *kept)

    flagged = (flags, *inputs)
    identity = (0, *(0.0 if v.dtype.is_floating_point else 0 for v in inputs))
    return ops.scan(t, flagged, ops.combine(t, skipping, flagged), at, True, identity)[1:]


def cumulative(t: Tracer, name: str, value: DeviceValue, dim: int, reverse: bool) -> DeviceValue:
    """Record cumsum (``add``) or cumprod (``mul``): half precision accumulates in fp32, integers in int64."""
    wide = torch.float32 if value.dtype in HALF else value.dtype if value.dtype.is_floating_point else torch.int64
    source = ops.cast(t, value, wide)
    neutral = 0 if name == "add" else 1
    identity = float(neutral) if wide.is_floating_point else neutral
    region = ops.combine(t, lambda a, b: ops.pointwise(t, name, a, b), (source,))
    (result,) = ops.scan(t, (source,), region, position(value, dim), reverse, (identity,))
    return ops.cast(t, result, value.dtype if value.dtype.is_floating_point else wide)


@rule(hl.cumsum)
def _cumsum(t: Tracer, input_tensor: Any, dim: int, reverse: bool = False) -> DeviceValue:
    return cumulative(t, "add", _inputs(t, input_tensor, "hl.cumsum")[0], dim, reverse)


@rule(hl.cumprod)
def _cumprod(t: Tracer, input_tensor: Any, dim: int, reverse: bool = False) -> DeviceValue:
    return cumulative(t, "mul", _inputs(t, input_tensor, "hl.cumprod")[0], dim, reverse)


_SCANS = "; take the whole dimension with `:`, or use hl.cumsum or hl.cumprod, which scan each tile separately"


@torch_rule(*named("cumsum"))
def _torch_cumsum(t: Tracer, input: DeviceValue, dim: int, *, dtype: Any = None) -> DeviceValue:
    whole(t, input, [position(input, dim)], "cumsum", _SCANS)
    return cumulative(t, "add", input if dtype is None else ops.cast(t, input, dtype), dim, False)


@torch_rule(*named("cumprod"))
def _torch_cumprod(t: Tracer, input: DeviceValue, dim: int, *, dtype: Any = None) -> DeviceValue:
    whole(t, input, [position(input, dim)], "cumprod", _SCANS)
    return cumulative(t, "mul", input if dtype is None else ops.cast(t, input, dtype), dim, False)


# --- joining and splitting --------------------------------------------------------------------------------------------


@rule(hl.join)
def _join(t: Tracer, tensor0: Any, tensor1: Any) -> DeviceValue:
    first, second = ops.as_device(t, tensor0, "in hl.join"), ops.as_device(t, tensor1, "in hl.join")
    first, second = ops.together(t, (first, second), " in hl.join")
    dtype = torch.promote_types(first.dtype, second.dtype)
    return ops.join(t, ops.cast(t, first, dtype), ops.cast(t, second, dtype))


@rule(hl.split)
def _split(t: Tracer, tensor: Any) -> tuple[DeviceValue, DeviceValue]:
    value = ops.as_device(t, tensor, "in hl.split")
    last = t.blocks.size_of(value.dims[-1]) if value.dims else None
    if not (isinstance(last, int) and last == 2):
        block = value.dims[-1].block if value.dims else None
        hint = t.blocks.size_text(None if block is None else t.blocks[block].extent)
        raise exc.ShapeMismatch(lhs=repr(value), rhs="[..., 2]", detail=f": hl.split needs a last dimension of 2{hint}")
    return ops.split(t, value)


# --- tunables ---------------------------------------------------------------------------------------------------------


@rule(hl.register_tunable)
def _register_tunable(t: Tracer, name: Any, fragment: Any) -> Expr:
    if not isinstance(name, str) or not isinstance(fragment, Fragment):
        raise exc.RegisterTunableArgTypes(got=f"{describe(name)} and {describe(fragment)}")
    value = fragment.default()
    if not isinstance(value, (int, float)):
        raise exc.TunableTypeNotSupported(name=name, got=type(value).__name__)
    if name in OWN_KEYS:
        name = f"{TUNABLE}{name}"
    if name in t.registered.tunables:
        raise exc.TunableNameConflict(name=name.removeprefix(TUNABLE))
    t.registered.tunables[name] = fragment
    return Expr("tunable", (name,), value)
