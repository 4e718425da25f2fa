"""Memory accesses of device code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ... import exc
from ..._shapes import ONE, WIDE, Dim, Dims, Expr, broadcast_dims, hint_of
from ..ir.grammar import HostTensor, MemoryAttrs, Operand, SeedAttrs
from . import ops, subscripts
from .host_uses import used_directly
from .ops import check_dtype
from .state import TraceState
from .state.alignment import placed
from .values import DeviceValue, HostTensorValue, describe, source_name


def tensor_id(t: TraceState, tensor: HostTensorValue) -> int:
    """Return the number of a host tensor in the program; the first use adds it."""
    known = t.tensors.number_of(tensor)
    if known is not None:
        return known
    source = tensor.source or tensor.made
    if not source:
        raise exc.InvalidAPIUsage(
            "The launch cannot pass this host tensor because it has no name; assign it to a variable first."
        )
    dtype = tensor.dtype
    if dtype == torch.float4_e2m1fn_x2:
        # two numbers in a byte; device code accesses the bytes
        source, dtype = f"_helion_runtime.flat_bytes({source})", torch.uint8
    check_dtype(dtype)
    check_offsets(t, tensor)
    if tensor.device.type == "cpu" and t.device.type == "cuda":
        raise exc.InvalidAPIUsage(
            f"The host tensor {source!r} is on the CPU, but the kernel runs on {t.device}; give it device=, or move it there."
        )
    if tensor.device.type == "cuda" and t.device.type == "cpu" and t.world.misplaced is None:
        t.world.misplaced = exc.TensorOnOtherDevice(name=source, device=tensor.device).at(t.builder.location)
    t.tensors.check(tensor)
    t.tensors.used.append(tensor)
    t.tensors.program.append(
        HostTensor(
            id=len(t.tensors.program),
            name=source,
            source=source,
            dtype=dtype,
            shape=tuple(map(t.numbers.known, tensor.shape)),
            strides=tuple(map(t.numbers.known, tensor.strides)),
            storage=tensor.storage,
            aligned=tensor.aligned,
            place=tensor.place,
            begin=tensor.begin,
            part=t.tensors.part_of(tensor),
            member=tensor.member,
        )
    )
    return len(t.tensors.program) - 1


def check_offsets(t: TraceState, tensor: HostTensorValue) -> None:
    """Refuse a tensor whose offsets do not fit the index dtype."""
    if t.context.index_dtype != torch.int32:
        return
    last = sum((hint_of(s) - 1) * hint_of(st) for s, st in zip(tensor.shape, tensor.strides, strict=True))
    if last >= WIDE:
        raise exc.IndexOffsetOutOfRangeForInt32(name=tensor.source, offset=last)


def drawn_seed(t: TraceState) -> DeviceValue:
    """Return one more of the seeds that the launch being recorded draws from torch's generator, all at once."""
    drawn = t.tensors.seeds
    if t.tensors.first not in drawn:
        name = t.numbers.fresh_name("rng_seeds", len(drawn))
        made = HostTensorValue(t, (1,), (1,), torch.int64, t.device, t.tensors.new_storage(), name)
        drawn[t.tensors.first] = (tensor_id(t, made), 0)
    tensor, at = drawn[t.tensors.first]
    drawn[t.tensors.first] = (tensor, at + 1)
    t.tensors.program[tensor] = replace(t.tensors.program[tensor], shape=(at + 1,))
    return ops.emit(t, "seed", (), torch.int64, (), SeedAttrs(tensor, at))


def load(
    t: TraceState,
    tensor: HostTensorValue,
    index: Any,
    mask: Any = None,
    eviction: str | None = None,
    mark: Sequence[Any] = (),
) -> DeviceValue:
    """Record a load. ``mark`` is that of marked words, and what ``MemoryAttrs`` says of it."""
    plan = subscripts.plan(t, tensor, index, checked=mask is not None)
    _warn_of_pairs(t, tensor, plan)
    operands: list[Operand] = list(plan.operands)
    mask_at = _mask(t, plan, mask, operands)
    mark_at = _mark(t, mark, operands)
    load_slot = None
    if eviction is None:
        load_slot = t.slots.load()
    attrs = MemoryAttrs(
        tensor=tensor_id(t, tensor),
        indices=plan.indices,
        slot=t.slots.memory(),
        rank=len(plan.dims),
        load_slot=load_slot,
        mask=mask_at,
        eviction=eviction,
        mark=mark_at,
    )
    dtype = t.tensors.program[attrs.tensor].dtype
    if mask_at is not None:
        return ops.emit(t, "load", operands, dtype, plan.dims, attrs)
    once = tuple(ONE if at in plan.repeated else dim for at, dim in enumerate(plan.dims))
    return ops.broadcast(t, ops.emit(t, "load", operands, dtype, once, attrs), plan.dims)


def store(
    t: TraceState, tensor: HostTensorValue, index: Any, value: Any, mask: Any = None, mark: Sequence[Any] = ()
) -> None:
    _check_storable(value, "as the stored value")
    plan = subscripts.plan(t, tensor, index, shift=1, checked=mask is not None)
    if _repeated(t, plan, value) is not None:
        plan = subscripts.plan(t, tensor, index, shift=1, checked=mask is not None, computed=True)
    if isinstance(value, DeviceValue):
        plan = _walked_by_tiles(t, plan, value.dims)
        _check_outer_product(t, tensor, plan, value)
    check_repeated(t, tensor, plan, value)
    _warn_of_pairs(t, tensor, plan)
    given = stored(t, tensor, plan.dims, value)
    operands: list[Operand] = [given.value, *plan.operands]
    mask_at = _mask(t, plan, mask, operands)
    attrs = MemoryAttrs(
        tensor=tensor_id(t, tensor),
        indices=plan.indices,
        slot=t.slots.memory(),
        rank=len(plan.dims),
        mask=mask_at,
        mark=_mark(t, mark, operands),
    )
    t.builder.emit("store", operands, tensor.dtype, plan.dims, attrs)


def _check_storable(value: Any, how: str) -> None:
    """Raise for an object that is neither a value of device code nor a number."""
    if not isinstance(value, (DeviceValue, int, float, Expr)):
        ops.refuse_operand(value, how)
        raise exc.RequiresTensorInAssignment(got=describe(value))


def atomic(
    t: TraceState,
    name: str,
    tensor: HostTensorValue,
    index: Any,
    values: Sequence[Any],
    sem: str,
    scope: str = "gpu",
) -> DeviceValue:
    """Record a read-modify-write of ``tensor[index]`` and return the old value."""
    plan = subscripts.plan(t, tensor, index, shift=len(values))
    if plan.inside is not None:
        raise exc.InvalidIndexingType(
            got="A slice with device bounds, or a tile that may be outside, in an atomic operation,"
        )
    for value in values:
        _check_storable(value, f"as the value of hl.atomic_{name}")
        if isinstance(value, DeviceValue):
            _check_outer_product(t, tensor, plan, value)
    _warn_of_pairs(t, tensor, plan)
    given = [stored(t, tensor, plan.dims, value).value for value in values]
    attrs = MemoryAttrs(
        tensor=tensor_id(t, tensor),
        indices=plan.indices,
        slot=t.slots.atomic(),
        rank=len(plan.dims),
        atomic=name,
        sem=sem,
        scope=scope,
    )
    return ops.emit(t, "atomic", [*given, *plan.operands], tensor.dtype, plan.dims, attrs)


def _mask(t: TraceState, plan: subscripts.SubscriptPlan, mask: Any, operands: list[Operand]) -> int | None:
    if mask is None and plan.inside is None:
        return None
    if mask is None:
        operands.append(plan.inside.value)  # type: ignore[union-attr]
        return len(operands) - 1
    mask = ops.as_device(t, mask, "as a mask")
    if mask.dtype != torch.bool:
        raise exc.TypeInferenceError(f"extra_mask must be a boolean tile, got {mask!r}.")
    if placed(t.blocks, mask.dims, plan.dims) is None:
        raise exc.ShapeMismatch(
            lhs=t.blocks.dims_text(plan.dims),
            rhs=t.blocks.dims_text(mask.dims),
            detail=": extra_mask must broadcast to the accessed tile",
        )
    mask = ops.broadcast(t, mask, plan.dims)
    if plan.inside is not None:
        mask = ops.pointwise(t, "logical_and", mask, plan.inside)
    operands.append(mask.value)
    return len(operands) - 1


def _mark(t: TraceState, mark: Sequence[Any], operands: list[Operand]) -> int | None:
    operands += [ops.operand(t, each) for each in mark]
    return len(operands) - len(mark) if mark else None


def check_repeated(t: TraceState, tensor: HostTensorValue, plan: subscripts.SubscriptPlan, value: Any) -> None:
    """Refuse a store of several values into one element, whose dimension has size 1."""
    dim = _repeated(t, plan, value)
    if dim is not None:
        raise exc.ShapeMismatch(
            lhs=t.blocks.dims_text(value.dims),
            rhs=f"a dimension of 1 of {source_name(tensor)!r}",
            detail=f": all of {t.blocks.dims_text((dim,))} would be stored into one element; reduce it, or use an atomic",
        )


def _repeated(t: TraceState, plan: subscripts.SubscriptPlan, value: Any) -> Dim | None:
    """Return a dimension of a value whose lanes would all be stored into one element."""
    dims = value.dims if isinstance(value, DeviceValue) else ()
    own = {len(plan.dims) - back: dim for back, dim in enumerate(reversed(dims), 1)}
    for at in plan.repeated:
        dim = own.get(at, ONE)
        size = t.blocks.size_of(dim)
        if not (isinstance(size, int) and size == 1):
            return dim
    return None


def whole_of(t: TraceState, tensor: HostTensorValue, index: Any, value: HostTensorValue) -> DeviceValue:
    """Load all of the host tensor ``value``, to be stored into ``tensor[index]``. Raises RankMismatch unless it has as
    many dimensions as the subscript selects, and HostTensorDirectUsage if the subscript selects tiles.
    """
    dims = subscripts.plan(t, tensor, index).dims
    selected = len(dims) if value.ndim else 0
    if value.ndim == selected and any(t.blocks[b].kind == "tile" for dim in dims[: value.ndim] for b in dim.blocks):
        raise used_directly(value, "as the stored value")
    if value.ndim != selected:
        raise exc.RankMismatch(
            expected=selected,
            got=value.ndim,
            what=f"the host tensor {source_name(value)!r} of shape {list(value.shape)} stored into {source_name(tensor)!r}",
            remedy="it must have the dimensions that the subscript selects",
        )
    return load(t, value, (slice(None),) * value.ndim)


def _check_outer_product(
    t: TraceState, tensor: HostTensorValue, plan: subscripts.SubscriptPlan, value: DeviceValue
) -> None:
    """Refuse a value of too few dimensions for index tensors that select an outer product: it was meant for pairs."""
    places = {index.positions for index in plan.indices if index.kind == "tensor"}
    if len(places) > 1 and 0 < value.ndim < len(plan.dims):
        raise exc.RankMismatch(
            expected=len(plan.dims),
            got=value.ndim,
            what=f"a value stored into {source_name(tensor)!r}, where index tensors select {t.blocks.dims_text(plan.dims)}",
            remedy="to pair index tensors, index the flattened tensor with one",
        )


def _warn_of_pairs(t: TraceState, tensor: HostTensorValue, plan: subscripts.SubscriptPlan) -> None:
    """Warn of an access to all pairs of what 1-D index tensors of one size select, for which torch selects one each."""
    of_one = [each for each in plan.indices if len(each.positions) == 1 and each.positions[0] not in plan.sliced]
    computed = {plan.dims[each.positions[0]] for each in of_one if each.kind == "tensor"}
    places = {dim: {each.positions for each in of_one if plan.dims[each.positions[0]] == dim} for dim in computed}
    if any(len(several) > 1 and not dim.is_one for dim, several in places.items()):
        dims = t.blocks.dims_text(plan.dims)
        t.world.warn(exc.IndexTensorsNotPaired(name=source_name(tensor), dims=dims))


def _pairs_text(t: TraceState, value: DeviceValue) -> str:
    """Return a hint for a value with a tile in two of its dimensions, as index tensors that were to be paired give."""
    blocks = [dim.block for dim in value.dims if dim.block is not None and t.blocks[dim.block].kind == "tile"]
    if len(set(blocks)) == len(blocks):
        return ""
    return (
        "; 1-D index tensors select an outer product; to pair them, index the flattened tensor with one: "
        "`flat = x.view(-1)` before the loop, `flat[rows * n + columns]` in it"
    )


def _walked_by_tiles(t: TraceState, plan: subscripts.SubscriptPlan, given: Dims) -> subscripts.SubscriptPlan:
    """Replace ``:`` by a tile of the value that covers the same dimension."""
    indices, dims = list(plan.indices), list(plan.dims)
    for back, dim in enumerate(reversed(given[-len(dims) :] if dims else ()), 1):
        at = len(dims) - back
        tile = t.blocks.active.get(dim.block) if dim.block is not None else None
        whole = dims[at].block
        if tile is None or whole is None or t.blocks[whole].kind != "full" or tile.jagged is not None:
            continue
        extent = t.blocks[whole].extent
        if isinstance(extent, int) and tile.first == 0 and tile.last == extent:
            indices = [
                replace(i, block=tile.block.id) if i.block == whole and i.positions == (at,) else i for i in indices
            ]
            dims[at] = dim if any(i.block == tile.block.id and i.positions == (at,) for i in indices) else dims[at]
    return replace(plan, indices=tuple(indices), dims=tuple(dims))


def stored(t: TraceState, tensor: HostTensorValue, dims: Dims, value: Any) -> DeviceValue:
    """Return a value in the dtype of ``tensor``, broadcast to the shape that a subscript of it selects."""
    if not isinstance(value, DeviceValue):
        if isinstance(value, (int, float)):
            return ops.full(t, dims, value, tensor.dtype)
        value = ops.number(t, value)
    given = value.dims
    while len(given) > len(dims) and given[0].is_one:
        given = given[1:]
    if len(given) > len(dims):
        raise exc.RankMismatch(
            expected=len(given),
            got=len(dims) if len(dims) == tensor.ndim else f"{len(dims)} besides integers, which select one element",
            what=f"a value of shape {t.blocks.dims_text(value.dims)} stored into {source_name(tensor)!r}",
            remedy="the value has more dimensions than the subscript selects" + _pairs_text(t, value),
        )
    value = ops.reshape(t, value, given)
    if broadcast_dims((given, dims)) != dims and (len(given) < len(dims) or placed(t.blocks, given, dims) is None):
        raise exc.ShapeMismatch(
            lhs=t.blocks.dims_text(given),
            rhs=t.blocks.dims_text(dims),
            detail=f": the first is stored into {source_name(tensor)!r} where the subscript selects the second"
            + (t.blocks.twins_text(given, dims) or t.blocks.sizes_text(given, dims)),
        )
    return ops.broadcast(t, ops.cast(t, value, tensor.dtype), dims)
