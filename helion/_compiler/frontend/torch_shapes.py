"""torch's views and factories on device values."""

from __future__ import annotations

import math
from typing import Any

import torch

from ... import exc
from ..._shapes import ONE, Dim, Dims, Expr, broadcast_dims, number_key
from . import ops
from .rules import Rules
from .torch_pointwise import named
from .tracer import Tracer
from .values import DeviceValue, HostTensorValue, Tile, describe, source_name

RULES = Rules()
rule = RULES.register

# --- factories: their sizes are tiles, block sizes and constants -------------------------------------------------------


def _sizes(size: tuple[Any, ...]) -> Any:
    return size[0] if len(size) == 1 and isinstance(size[0], (tuple, list)) else size


def _check_factory(kwargs: dict[str, Any]) -> torch.dtype | None:
    dtype = kwargs.pop("dtype", None)
    for name in ("device", "layout", "pin_memory", "requires_grad", "memory_format"):
        kwargs.pop(name, None)
    if kwargs:
        raise TypeError(f"unexpected keyword {next(iter(kwargs))!r}")
    return dtype


def default_dtype(t: Tracer, fill: Any) -> torch.dtype:
    """The dtype ``torch.full`` takes for a fill value."""
    if isinstance(fill, DeviceValue):
        return fill.dtype
    kind = fill.kind if isinstance(fill, Expr) else type(fill)
    return torch.bool if kind is bool else torch.int64 if kind is int else t.world.default_dtype()


@rule(torch.zeros)
def _zeros(t: Tracer, *size: Any, **kwargs: Any) -> DeviceValue:
    dtype = _check_factory(kwargs) or t.world.default_dtype()
    return ops.full(t, t.blocks.dims_of(_sizes(size)), 0, dtype)


@rule(torch.ones)
def _ones(t: Tracer, *size: Any, **kwargs: Any) -> DeviceValue:
    dtype = _check_factory(kwargs) or t.world.default_dtype()
    return ops.full(t, t.blocks.dims_of(_sizes(size)), 1, dtype)


@rule(torch.full)
def _full(t: Tracer, size: Any, fill_value: Any, **kwargs: Any) -> DeviceValue:
    return ops.full(t, t.blocks.dims_of(size), fill_value, _check_factory(kwargs) or default_dtype(t, fill_value))


# what memory that nobody wrote holds is undefined; zeros are as good as anything
rule(torch.empty)(_zeros)


@rule(torch.Tensor.item)
def _item(t: Tracer, value: DeviceValue) -> DeviceValue:
    if any(not dim.is_one for dim in value.dims):
        raise exc.TypeInferenceError(f".item() takes a value with one element, got {value!r}.")
    return ops.reshape(t, value, ())


@rule(torch.tensor, torch.scalar_tensor)
def _tensor(t: Tracer, data: Any, **kwargs: Any) -> DeviceValue:
    if not isinstance(data, (bool, int, float, Expr)):
        raise exc.UnsupportedTorchFunction(name=f"torch.tensor of {describe(data)}", remedy="; make it in host code")
    return ops.full(t, (), data, _check_factory(kwargs) or default_dtype(t, data))


@rule(torch.zeros_like, torch.empty_like)
def _zeros_like(t: Tracer, input: DeviceValue, **kwargs: Any) -> DeviceValue:
    return ops.full(t, input.dims, 0, _check_factory(kwargs) or input.dtype)


@rule(torch.ones_like)
def _ones_like(t: Tracer, input: DeviceValue, **kwargs: Any) -> DeviceValue:
    return ops.full(t, input.dims, 1, _check_factory(kwargs) or input.dtype)


@rule(torch.full_like)
def _full_like(t: Tracer, input: DeviceValue, fill_value: Any, **kwargs: Any) -> DeviceValue:
    return ops.full(t, input.dims, fill_value, _check_factory(kwargs) or input.dtype)


@rule(torch.Tensor.new_zeros)
def _new_zeros(t: Tracer, input: DeviceValue, *size: Any, **kwargs: Any) -> DeviceValue:
    return ops.full(t, t.blocks.dims_of(_sizes(size)), 0, _check_factory(kwargs) or input.dtype)


@rule(torch.Tensor.new_ones)
def _new_ones(t: Tracer, input: DeviceValue, *size: Any, **kwargs: Any) -> DeviceValue:
    return ops.full(t, t.blocks.dims_of(_sizes(size)), 1, _check_factory(kwargs) or input.dtype)


rule(torch.Tensor.new_empty)(_new_zeros)


@rule(torch.Tensor.new_full)
def _new_full(t: Tracer, input: DeviceValue, size: Any, fill_value: Any, **kwargs: Any) -> DeviceValue:
    return ops.full(t, t.blocks.dims_of(size), fill_value, _check_factory(kwargs) or input.dtype)


@rule(torch.arange)
def _arange(t: Tracer, *bounds: Any, **kwargs: Any) -> DeviceValue:
    dtype = _check_factory(kwargs)
    return arange(t, bounds, dtype or torch.int64)


def arange(t: Tracer, bounds: tuple[Any, ...], dtype: torch.dtype | None) -> DeviceValue:
    """``arange(end)``, ``arange(start, end)`` or ``arange(start, end, step)`` with constant bounds or one block size."""
    if not 1 <= len(bounds) <= 3:
        raise TypeError(f"arange takes 1 to 3 bounds, got {len(bounds)}")
    if len(bounds) == 1 and isinstance(bounds[0], (Expr, Tile)):
        return ops.iota(t, bounds[0], dtype=dtype)
    if not all(isinstance(b, int) for b in bounds):
        raise exc.ShapeSpecializingCall(what="arange")
    values = range(*bounds)
    if len(values) == 0:
        raise exc.ShapeSpecializingAllocation(size="0")
    return ops.iota(t, len(values), values.start, values.step, dtype=dtype)


# --- views -------------------------------------------------------------------------------------------------------------


def position(value: DeviceValue, dim: Any, extra: int = 0) -> int:
    """A dimension number, negative ones counted from the end."""
    rank = value.ndim + extra
    if not isinstance(dim, int) or not -rank <= dim < rank:
        raise exc.InvalidReductionDim(dim=describe(dim) if not isinstance(dim, int) else dim, shape=repr(value))
    return dim % rank


def insert_one(t: Tracer, value: DeviceValue, at: int) -> DeviceValue:
    return ops.reshape(t, value, (*value.dims[:at], ONE, *value.dims[at:]))


@rule(*named("unsqueeze"))
def _unsqueeze(t: Tracer, input: DeviceValue, dim: int) -> DeviceValue:
    return insert_one(t, input, position(input, dim, extra=1))


@rule(*named("squeeze"))
def _squeeze(t: Tracer, input: DeviceValue, dim: Any = None) -> DeviceValue:
    if dim is None:
        drop = {i for i, d in enumerate(input.dims) if d.is_one}
    else:
        drop = {position(input, d) for d in (dim if isinstance(dim, (tuple, list)) else (dim,))}
    return ops.reshape(t, input, tuple(d for i, d in enumerate(input.dims) if i not in drop or not d.is_one))


@rule(*named("permute"))
def _permute(t: Tracer, input: DeviceValue, *dims: Any) -> DeviceValue:
    order = [position(input, d) for d in _sizes(dims)]
    if sorted(order) != list(range(input.ndim)):
        raise TypeError(f"{order} is not a permutation of the {input.ndim} dimensions")
    return ops.permute(t, input, order)


@rule(*named("transpose"), *named("swapaxes"), *named("swapdims"))
def _transpose(t: Tracer, input: DeviceValue, dim0: int, dim1: int) -> DeviceValue:
    order = list(range(input.ndim))
    a, b = position(input, dim0), position(input, dim1)
    order[a], order[b] = b, a
    return ops.permute(t, input, order)


@rule(*named("movedim"), *named("moveaxis"))
def _movedim(t: Tracer, input: DeviceValue, source: Any, destination: Any) -> DeviceValue:
    sources, destinations = (d if isinstance(d, (tuple, list)) else (d,) for d in (source, destination))
    moved = {position(input, d): position(input, s) for s, d in zip(sources, destinations, strict=True)}
    others = iter(i for i in range(input.ndim) if i not in moved.values())
    return ops.permute(t, input, [moved[i] if i in moved else next(others) for i in range(input.ndim)])


@rule(*named("t"))
def _t(t: Tracer, input: DeviceValue) -> DeviceValue:
    if input.ndim > 2:
        raise TypeError(f"t() takes at most 2 dimensions, got {input.ndim}")
    return ops.permute(t, input, range(input.ndim)[::-1])


@rule(torch.Tensor.expand, torch.broadcast_to, torch.Tensor.broadcast_to)
def _expand(t: Tracer, input: DeviceValue, *sizes: Any) -> DeviceValue:
    wanted = _sizes(sizes)
    lead = len(wanted) - input.ndim
    keep = [type(s) is int and s == -1 for s in wanted]
    dims = tuple(
        input.dims[i - lead] if k else t.blocks.dim_of(s) for i, (s, k) in enumerate(zip(wanted, keep, strict=True))
    )
    return ops.broadcast(t, input, dims)


@rule(torch.Tensor.expand_as)
def _expand_as(t: Tracer, input: DeviceValue, other: DeviceValue) -> DeviceValue:
    return ops.broadcast(t, input, other.dims)


@rule(torch.broadcast_tensors)
def _broadcast_tensors(t: Tracer, *tensors: DeviceValue) -> tuple[DeviceValue, ...]:
    dims = broadcast_dims([v.dims for v in tensors])
    if dims is None:
        raise exc.ShapeMismatch(
            lhs=t.blocks.dims_text(tensors[0].dims), rhs=t.blocks.dims_text(tensors[1].dims), detail=""
        )
    return tuple(ops.broadcast(t, v, dims) for v in tensors)


@rule(torch.Tensor.view, torch.Tensor.reshape, torch.reshape)
def _view(t: Tracer, input: DeviceValue, *shape: Any) -> DeviceValue:
    if len(shape) == 1 and isinstance(shape[0], torch.dtype):
        return bitcast(t, input, shape[0])
    return reshape(t, input, _sizes(shape))


@rule(torch.Tensor.view_as, torch.Tensor.reshape_as)
def _view_as(t: Tracer, input: DeviceValue, other: DeviceValue) -> DeviceValue:
    return reshape(t, input, other.shape)


@rule(*named("flatten"))
def _flatten(t: Tracer, input: DeviceValue, start_dim: int = 0, end_dim: int = -1) -> DeviceValue:
    if input.ndim == 0:
        return ops.reshape(t, input, (ONE,))
    first, last = position(input, start_dim), position(input, end_dim)
    merged = math.prod((d for d in input.dims[first : last + 1]), start=ONE)
    return _checked_reshape(t, input, (*input.dims[:first], _whole(t, merged), *input.dims[last + 1 :]))


def _whole(t: Tracer, dim: Dim) -> Dim:
    """A product of whole dimensions as the whole dimension of that size."""
    size = t.blocks.size_of(dim)
    fixed = all(t.blocks[b].kind == "full" for b in dim.blocks)
    return t.blocks.dim_of(size) if fixed and isinstance(size, int) else dim


@rule(*named("unflatten"))
def _unflatten(t: Tracer, input: DeviceValue, dim: int, sizes: Any) -> DeviceValue:
    at = position(input, dim)
    return reshape(t, input, [*input.shape[:at], *sizes, *input.shape[at + 1 :]])


def bitcast(t: Tracer, input: DeviceValue, dtype: torch.dtype) -> DeviceValue:
    if dtype.itemsize != input.dtype.itemsize:
        raise exc.UnsupportedTorchFunction(name=f"view({dtype}) of {input.dtype}", remedy="; the item sizes must agree")
    return ops.pointwise(t, "bitcast", input, dtype=dtype)


def reshape(t: Tracer, input: DeviceValue, sizes: Any) -> DeviceValue:
    """Reshape to sizes that are tiles, block sizes or constants, with at most one -1."""
    sizes = list(sizes) if isinstance(sizes, (tuple, list)) else [sizes]
    unknown = [i for i, s in enumerate(sizes) if type(s) is int and s == -1]
    if len(unknown) > 1:
        raise TypeError("only one size can be -1")
    dims = [ONE if i in unknown else t.blocks.dim_of(s) for i, s in enumerate(sizes)]
    # dimensions that stay keep their identity, so that a size met before in the value means that very dimension
    have = [d for d in input.dims if not d.is_one]
    for i, dim in enumerate(dims):
        if dim not in have:
            same = [d for d in have if number_key(t.blocks.size_of(d)) == number_key(t.blocks.size_of(dim))]
            if same and i not in unknown and not dim.is_one:
                dims[i] = same[0]
    if unknown:
        dims[unknown[0]] = _remaining(t, input, [d for i, d in enumerate(dims) if i not in unknown])
    return _checked_reshape(t, input, tuple(dims))


def _remaining(t: Tracer, input: DeviceValue, known: list[Dim]) -> Dim:
    """What is left of the value's dimensions when the known ones are taken out."""
    blocks = [b for d in input.dims for b in d.blocks]
    const = math.prod(d.const for d in input.dims)
    extent = 1
    for dim in known:
        const_part = dim.const
        for block in dim.blocks:
            if block in blocks:
                blocks.remove(block)
            elif t.blocks[block].kind == "full":
                size = t.blocks[block].extent
                assert isinstance(size, int)
                extent *= size
            else:
                raise exc.ShapeMismatch(lhs=repr(input), rhs=t.blocks.dims_text(tuple(known)), detail=" in a reshape")
        extent *= const_part
    if extent == 1:
        return _whole(t, Dim(const, tuple(blocks)))
    # constants taken out of a whole dimension leave a whole dimension of the quotient
    for block in list(blocks):
        size = t.blocks[block].extent
        if t.blocks[block].kind == "full" and isinstance(size, int) and size % extent == 0:
            blocks.remove(block)
            rest = size // extent
            quotient = ONE if rest == 1 else Dim(blocks=(t.blocks.whole(rest).id,))
            return quotient * Dim(const, tuple(blocks))
    raise exc.ShapeMismatch(lhs=repr(input), rhs=t.blocks.dims_text(tuple(known)), detail=" in a reshape")


def _checked_reshape(t: Tracer, input: DeviceValue, dims: Dims) -> DeviceValue:
    """Reshape after checking that every lane keeps its element: merged and split dimensions must have no padding."""
    before = [d for d in input.dims if not d.is_one]
    after = [d for d in dims if not d.is_one]
    if before == after:
        return ops.reshape(t, input, dims)
    if _signature(t, before) != _signature(t, after):
        raise exc.ShapeMismatch(
            lhs=repr(input), rhs=t.blocks.dims_text(dims), detail=" in a reshape: the numbers of elements differ"
        )
    while before and after and before[0] == after[0]:
        before, after = before[1:], after[1:]
    while before and after and before[-1] == after[-1]:
        before, after = before[:-1], after[:-1]
    for dim in (*before, *after):
        for block in dim.blocks:
            extent = t.blocks[block].extent
            if t.blocks[block].kind == "full" and not t.blocks.fills_lanes(extent):
                raise exc.BackendUnsupported(
                    what=f"Reshaping {input!r} to {t.blocks.dims_text(dims)}",
                    backend=t.context.limits.backend,
                    remedy=f": the dimension of {extent} elements is padded to a power of two, so its elements would move",
                )
    tiles_before = [b for d in before for b in d.blocks if t.blocks[b].kind == "tile"]
    tiles_after = [b for d in after for b in d.blocks if t.blocks[b].kind == "tile"]
    if tiles_before != tiles_after:
        raise exc.BackendUnsupported(
            what=f"Reshaping {input!r} to {t.blocks.dims_text(dims)}",
            backend=t.context.limits.backend,
            remedy=": tiles would change their order; use permute",
        )
    if len(after) == 1 and tiles_after:
        factors = tuple(before)
        t.blocks.merged[after[0]] = factors if t.blocks.merged.get(after[0], factors) == factors else None
    return ops.reshape(t, input, dims)


def _signature(t: Tracer, dims: list[Dim]) -> tuple[int, tuple[Any, ...]]:
    const, symbols = 1, []
    for dim in dims:
        const *= dim.const
        for block in dim.blocks:
            extent = t.blocks[block].extent
            if t.blocks[block].kind == "full" and isinstance(extent, int):
                const *= extent
            else:
                symbols.append(block)
    return const, tuple(sorted(symbols))


@rule(torch.Tensor.numel, torch.numel)
def _numel(t: Tracer, input: DeviceValue) -> Any:
    return input.numel()


def refuse_host(value: Any, t: Tracer, how: str) -> None:
    if isinstance(value, HostTensorValue):
        raise exc.HostTensorDirectUsage(name=source_name(value), how=how)
