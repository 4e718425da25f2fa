"""torch's views and factories on device values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import torch

from .... import exc
from ...._shapes import ONE, Dim, Dims, Expr, number_key
from .. import ops
from ..host_uses import used_directly
from ..polynomials import constant
from ..rules import Rules
from ..state.alignment import is_single
from ..tracer import Tracer
from ..values import DeviceValue, HostTensorValue, Tile, describe
from .padded_reshape import is_padded, keeps_lanes, moved
from .pointwise import named

RULES = Rules()
rule = RULES.register

# --- factories, whose sizes are tiles, block sizes and constants ------------------------------------------------------


def _sizes(size: tuple[Any, ...]) -> Any:
    return size[0] if len(size) == 1 and isinstance(size[0], (tuple, list)) else size


def _given_sizes(size: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the sizes of a factory, which may be given by keyword."""
    return kwargs.pop("size") if "size" in kwargs and not size else _sizes(size)


def _check_factory(kwargs: dict[str, Any]) -> torch.dtype | None:
    dtype = kwargs.pop("dtype", None)
    for name in ("device", "layout", "pin_memory", "requires_grad", "memory_format"):
        kwargs.pop(name, None)
    if kwargs:
        raise TypeError(f"unexpected keyword {next(iter(kwargs))!r}")
    return dtype


def default_dtype(t: Tracer, fill: Any) -> torch.dtype:
    """Return the dtype of ``torch.full`` for a fill value."""
    if isinstance(fill, DeviceValue):
        return fill.dtype
    kind = fill.kind if isinstance(fill, Expr) else type(fill)
    return torch.bool if kind is bool else torch.int64 if kind is int else t.world.default_dtype()


@rule(torch.zeros)
def _zeros(t: Tracer, *size: Any, **kwargs: Any) -> DeviceValue:
    sizes = _given_sizes(size, kwargs)
    dtype = _check_factory(kwargs) or t.world.default_dtype()
    return ops.full(t, t.blocks.dims_of(sizes), 0, dtype)


@rule(torch.ones)
def _ones(t: Tracer, *size: Any, **kwargs: Any) -> DeviceValue:
    sizes = _given_sizes(size, kwargs)
    dtype = _check_factory(kwargs) or t.world.default_dtype()
    return ops.full(t, t.blocks.dims_of(sizes), 1, dtype)


@rule(torch.full)
def _full(t: Tracer, size: Any, fill_value: Any, **kwargs: Any) -> DeviceValue:
    return ops.full(t, t.blocks.dims_of(size), fill_value, _check_factory(kwargs) or default_dtype(t, fill_value))


# uninitialized memory is undefined, so zeros are valid
rule(torch.empty)(_zeros)


@rule(torch.Tensor.item)
def _item(t: Tracer, value: DeviceValue) -> DeviceValue:
    if any(not is_single(t.blocks, dim) for dim in value.dims):
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
    sizes = _given_sizes(size, kwargs)
    return ops.full(t, t.blocks.dims_of(sizes), 0, _check_factory(kwargs) or input.dtype)


@rule(torch.Tensor.new_ones)
def _new_ones(t: Tracer, input: DeviceValue, *size: Any, **kwargs: Any) -> DeviceValue:
    sizes = _given_sizes(size, kwargs)
    return ops.full(t, t.blocks.dims_of(sizes), 1, _check_factory(kwargs) or input.dtype)


rule(torch.Tensor.new_empty)(_new_zeros)


@rule(torch.Tensor.new_full)
def _new_full(t: Tracer, input: DeviceValue, size: Any, fill_value: Any, **kwargs: Any) -> DeviceValue:
    return ops.full(t, t.blocks.dims_of(size), fill_value, _check_factory(kwargs) or input.dtype)


@rule(torch.arange)
def _arange(t: Tracer, *bounds: Any, **kwargs: Any) -> DeviceValue:
    bounds = bounds_of_arange(bounds, kwargs)
    dtype = _check_factory(kwargs)
    real = any(_is_real(t, b) for b in bounds)
    return arange(t, bounds, dtype or (t.world.default_dtype() if real else torch.int64))


def _is_real(t: Tracer, bound: Any) -> bool:
    if isinstance(bound, DeviceValue):
        return bound.dtype.is_floating_point
    return (bound.kind if isinstance(bound, Expr) else type(bound)) is float


def bounds_of_arange(bounds: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return start, end and step; remove those given by keyword from ``kwargs``."""
    if not 0 <= len(bounds) <= 3:
        raise TypeError(f"arange takes 1 to 3 bounds, got {len(bounds)}")
    names = ("end",) if len(bounds) == 1 and "end" not in kwargs else ("start", "end", "step")
    given: dict[str, Any] = {name: kwargs.pop(name) for name in ("start", "end", "step") if name in kwargs}
    for name, bound in zip(names, bounds, strict=False):
        if name in given:
            raise TypeError(f"arange got two values for {name!r}")
        given[name] = bound
    if "end" not in given:
        raise TypeError("arange needs an end")
    return given.get("start", 0), given["end"], given.get("step", 1)


def arange(t: Tracer, bounds: tuple[Any, Any, Any], dtype: torch.dtype | None) -> DeviceValue:
    """Record ``start``, ``start + step`` ... up to ``end``. The number of elements is a constant, or a function of
    block sizes. If it is that of a tile, the result has the dimension of the tile.
    """
    start, end, step = bounds
    if isinstance(end, Tile) and isinstance(start, int) and start == 0 and step == 1:
        return ops.iota(t, end, dtype=dtype)
    if all(isinstance(b, (int, float)) for b in bounds):
        return _constant_arange(t, start, end, step, dtype)
    tile = _walked(t, start, end, step)
    if tile is not None:
        return ops.tile_index(t, tile) if dtype is None else ops.cast(t, ops.tile_index(t, tile), dtype)
    dim = _dim_of_arange(t, start, end, step)
    if dim is None:
        raise exc.ShapeSpecializingCall(what="arange")
    lanes = ops.iota_along(t, dim, step=step)
    result = lanes if isinstance(start, int) and start == 0 else ops.pointwise(t, "add", lanes, start)
    return result if dtype is None else ops.cast(t, result, dtype)


def _constant_arange(t: Tracer, start: Any, end: Any, step: Any, dtype: torch.dtype | None) -> DeviceValue:
    if step == 0:
        raise exc.TorchOpTracingError(name="torch.arange", reason="step must not be zero")
    count = max(0, math.ceil((end - start) / step))
    if count == 0:
        raise exc.ShapeSpecializingAllocation(size="0")
    if isinstance(start, int) and isinstance(step, int):
        return ops.iota(t, count, start, step, dtype=dtype)
    return ops.cast(t, ops.cast(t, ops.iota(t, count), torch.float32) * step + start, dtype or torch.float32)


def _walked(t: Tracer, start: Any, end: Any, step: Any) -> Tile | None:
    """Return the tile whose indices are an ``arange`` from ``tile.begin`` to ``tile.end``, or over its block size."""
    field = t.origins.field_of(start) if isinstance(start, DeviceValue) else None
    tile = t.blocks.active.get(field.block) if field is not None and field.field == "begin" else None
    if tile is None or step != 1:
        return None
    last = t.origins.field_of(end) if isinstance(end, DeviceValue) else None
    if last is not None and (last.block, last.field) == (tile.block.id, "end"):
        return tile
    dim = _dim_of_arange(t, start, end, step)
    return tile if dim is not None and dim.block == tile.block.id else None


def _dim_of_arange(t: Tracer, start: Any, end: Any, step: Any) -> Dim | None:
    first, last = t.origins.polynomial(start), t.origins.polynomial(end)
    if first is None or last is None or type(step) is not int or step == 0:
        return None
    count = (last - first).over(step) if step > 0 else (first - last).over(-step)
    dim = None if count is None else t.blocks.dim_of_polynomial(count)
    if dim is None and step == 1 and type(start) is int and start == 0 and _is_whole_size(t, end):
        return Dim(blocks=(t.blocks.whole(end).id,))
    return dim


def _is_whole_size(t: Tracer, number: Any) -> bool:
    """Return whether a number is the size of a dimension of an argument, of which a value may have all elements."""
    return isinstance(number, Expr) and number.op == "host" and number.args[0] in t.numbers.sizes


@rule(torch.linspace)
def _linspace(t: Tracer, start: Any, end: Any, steps: Any, *, dtype: Any = None, device: Any = None) -> DeviceValue:
    if type(steps) is not int or steps < 1 or not all(isinstance(b, (int, float)) for b in (start, end)):
        raise exc.ShapeSpecializingCall(what="torch.linspace")
    count, kind = max(1, steps - 1), dtype or t.world.default_dtype()
    lanes = ops.cast(t, ops.iota(t, steps), torch.float32)
    step = (end - start) / count
    # from both ends, as in torch: each of them is exact
    values = ops.pointwise(t, "where", lanes < steps / 2, lanes * step + start, (lanes - count) * step + end)
    return ops.cast(t, values, kind)


# --- views ------------------------------------------------------------------------------------------------------------


def position(value: DeviceValue, dim: Any, extra: int = 0) -> int:
    """Return a dimension number, negative ones counted from the end."""
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
        drop = set(range(input.ndim))
    else:
        drop = {position(input, d) for d in (dim if isinstance(dim, (tuple, list)) else (dim,))}
    return ops.reshape(
        t, input, tuple(d for i, d in enumerate(input.dims) if i not in drop or not is_single(t.blocks, d))
    )


@rule(*named("permute"))
def _permute(t: Tracer, input: DeviceValue, *order_of: Any, dims: Any = None) -> DeviceValue:
    order = [position(input, d) for d in (_sizes(order_of) if dims is None else dims)]
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
def _expand(t: Tracer, input: DeviceValue, *sizes: Any, size: Any = None) -> DeviceValue:
    wanted = _sizes(sizes) if size is None else size
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
    return ops.together(t, tensors)


@rule(torch.Tensor.view, torch.Tensor.reshape, torch.reshape)
def _view(
    t: Tracer, input: DeviceValue, *sizes: Any, shape: Any = (), size: Any = (), dtype: Any = None
) -> DeviceValue:
    shape = sizes or ((dtype,) if dtype is not None else tuple(shape) or tuple(size))
    if len(shape) == 1 and isinstance(shape[0], torch.dtype):
        return bitcast(t, input, shape[0])
    return reshape(t, input, _sizes(shape))


@rule(torch.Tensor.view_as, torch.Tensor.reshape_as)
def _view_as(t: Tracer, input: DeviceValue, other: DeviceValue) -> DeviceValue:
    return reshape(t, input, other.shape)


@rule(*named("adjoint"))
def _adjoint(t: Tracer, input: DeviceValue) -> DeviceValue:
    return _transpose(t, input, -2, -1)


@rule(*named("ravel"))
def _ravel(t: Tracer, input: DeviceValue) -> DeviceValue:
    return _flatten(t, input)


@rule(*named("flatten"))
def _flatten(t: Tracer, input: DeviceValue, start_dim: int = 0, end_dim: int = -1) -> DeviceValue:
    if input.ndim == 0:
        return ops.reshape(t, input, (ONE,))
    first, last = position(input, start_dim), position(input, end_dim)
    merged = math.prod((d for d in input.dims[first : last + 1]), start=ONE)
    return _checked_reshape(t, input, (*input.dims[:first], _whole(t, merged), *input.dims[last + 1 :]))


def _whole(t: Tracer, dim: Dim) -> Dim:
    """Return a product of whole dimensions as the whole dimension of that size."""
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
    dims = list(t.blocks.dims_of([1 if i in unknown else s for i, s in enumerate(sizes)]))
    dims = _unchanged(t, input, dims, unknown)
    if unknown:
        dims[unknown[0]] = _remaining(t, input, [d for i, d in enumerate(dims) if i not in unknown])
    return _checked_reshape(t, input, tuple(dims))


def _unchanged(t: Tracer, input: DeviceValue, wanted: list[Dim], unknown: Sequence[int]) -> list[Dim]:
    """Return the wanted dimensions, where those that a reshape leaves unchanged keep their identity.

    A dimension is unchanged if it has the same size, and the dimensions before it have as many elements. After an
    unknown one, the dimensions that follow count. Other dimensions of equal size are different ones::

        [tile, 16] -> [4, 4, 4] = [tile, 4, 4] for a tile of 4 elements
        [16, tile] -> [4, 4, 4] = [4, 4, tile]
    """
    have = [dim for dim in input.dims if not dim.is_one]
    found = list(wanted)
    for at, dim in enumerate(wanted):
        if dim.is_one or at in unknown:
            continue
        after = bool(unknown) and at > unknown[0]
        around = _signature(t, wanted[at + 1 :] if after else wanted[:at])
        same = (
            own
            for place, own in enumerate(have)
            if (_same_size(t, own, dim) or (own not in wanted and _twins(t, own, dim)))
            and _signature(t, have[place + 1 :] if after else have[:place]) == around
        )
        found[at] = next(same, dim)
    return found


def _same_size(t: Tracer, one: Dim, other: Dim) -> bool:
    return number_key(t.blocks.size_of(one)) == number_key(t.blocks.size_of(other))


def _twins(t: Tracer, one: Dim, other: Dim) -> bool:
    blocks = (one.block, other.block)
    return None not in blocks and len({t.blocks.sized_by(block) for block in blocks if block is not None}) == 1


def _remaining(t: Tracer, input: DeviceValue, known: list[Dim]) -> Dim:
    """Return the quotient of the value's dimensions and the known ones."""
    if any(t.blocks[b].base is not None for d in (*input.dims, *known) for b in d.blocks):
        return _remaining_part(t, input, known)
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
                return _remaining_part(t, input, known)
        extent *= const_part
    if extent == 1:
        return _whole(t, Dim(const, tuple(blocks)))
    # constants divided out of a whole dimension result in a whole dimension of the quotient
    for block in list(blocks):
        size = t.blocks[block].extent
        if t.blocks[block].kind == "full" and isinstance(size, int) and size % extent == 0:
            blocks.remove(block)
            rest = size // extent
            quotient = ONE if rest == 1 else Dim(blocks=(t.blocks.whole(rest).id,))
            return quotient * Dim(const, tuple(blocks))
    return _remaining_part(t, input, known)


def _remaining_part(t: Tracer, input: DeviceValue, known: list[Dim]) -> Dim:
    """Return ``_remaining`` for dimensions with fractions of tiles."""
    total, found = (
        math.prod((t.blocks.polynomial_of(d) for d in dims), start=constant(1)) for dims in (input.dims, known)
    )
    count = total.quotient(found)
    dim = None if count is None else t.blocks.dim_of_polynomial(count)
    if dim is None:
        whole = [dim for dim in input.dims if not dim.is_one]
        raise exc.ShapeMismatch(
            lhs=repr(input),
            rhs=t.blocks.dims_text(tuple(known)),
            detail=f" in a reshape: no whole number is known for -1, and {_difference(t, whole)}",
        )
    return dim


def _checked_reshape(t: Tracer, input: DeviceValue, dims: Dims) -> DeviceValue:
    """Reshape after checking that every lane keeps its element: merged and split dimensions must have no padding."""
    before = [d for d in input.dims if not d.is_one]
    after = [d for d in dims if not d.is_one]
    if before == after:
        return ops.reshape(t, input, dims)
    if _signature(t, before) != _signature(t, after):
        raise exc.ShapeMismatch(
            lhs=repr(input), rhs=t.blocks.dims_text(dims), detail=f" in a reshape: {_difference(t, before)}"
        )
    plain, first = tuple(before), 0
    while before and after and before[0] == after[0]:
        before, after, first = before[1:], after[1:], first + 1
    while before and after and before[-1] == after[-1]:
        before, after = before[:-1], after[:-1]
    several, wanted = ([d for d in side if not is_single(t.blocks, d)] for side in (before, after))
    if several and wanted and not keeps_lanes(t, several, wanted):
        around = (plain[:first], plain[first + len(before) :])
        found = moved(t, ops.reshape(t, input, (*around[0], *several, *around[1])), several, wanted, first)
        if found is None:
            raise exc.BackendUnsupported(
                what=f"Reshaping {input!r} to {t.blocks.dims_text(dims)}",
                backend=t.context.limits.backend,
                remedy=f": {_padding(t, (*before, *after))}, so its elements would move; reshape the tensor in host code, as "
                "in x.view(n, 128, 3), and load from that",
            )
        return ops.moved(t, ops.reshape(t, found, dims), input)
    t.blocks.count_lanes((*several, *wanted))
    tiles_before, tiles_after = _tiles(t, before, after), _tiles(t, after, before)
    if tiles_before != tiles_after or _moves_a_tile(t, before, after):
        raise exc.BackendUnsupported(
            what=f"Reshaping {input!r} to {t.blocks.dims_text(dims)}",
            backend=t.context.limits.backend,
            remedy=": tiles would change their order; use permute",
        )
    if len(after) == 1 and tiles_after:
        factors = tuple(before)
        t.blocks.merged[after[0]] = factors if t.blocks.merged.get(after[0], factors) == factors else None
    return ops.reshape(t, _settled_tails(t, input, dims), dims)


def _difference(t: Tracer, before: list[Dim]) -> str:
    """Return the reason that two numbers of elements are not known to be equal."""
    for block in (t.blocks[b] for dim in before for b in dim.blocks):
        if block.kind == "full" and isinstance(block.extent, Expr):
            size = t.blocks.numbers.text_of(block.extent)
            return f"{size} is known at run time only; mark it with hl.specialize in host code"
    return "the numbers of elements differ"


def _padding(t: Tracer, dims: Iterable[Dim]) -> str:
    """Return text that names the dimension with padding lanes."""
    size = next(t.blocks.size_of(dim) for dim in dims if is_padded(t, dim))
    return f"the dimension of {size!r} elements is padded to a power of two"


def _signature(t: Tracer, dims: list[Dim]) -> tuple[Fraction, tuple[Any, ...]]:
    """Return the constant part of a number of elements, and the blocks whose sizes are not constant."""
    const, symbols = Fraction(1), []
    for dim in dims:
        const *= dim.const
        for block in (t.blocks[b] for b in dim.blocks):
            size = block.extent if block.kind == "full" else block.size
            if isinstance(size, int):
                const *= size
            else:
                share, whole = t.blocks.share(block)
                const *= share
                symbols.append(whole)
    return const, tuple(sorted(symbols))


def _tiles(t: Tracer, dims: list[Dim], others: list[Dim]) -> list[int]:
    """Return the tiles of one side of a reshape, with fractions of a tile as that tile. Tiles of constant size that are
    a number on the other side are omitted.
    """
    kept = {b for d in others for b in d.blocks}
    blocks = [t.blocks[b] for d in dims for b in d.blocks if t.blocks[b].kind == "tile"]
    wholes = [(b, b.id if b.base is None or b.twin_of is not None else b.base) for b in blocks]
    return [whole for b, whole in wholes if b.id in kept or not isinstance(b.size, int)]


def _moves_a_tile(t: Tracer, before: list[Dim], after: list[Dim]) -> bool:
    """Return whether a tile with a tail has another number of elements before it than it had.

    The elements of [i, 16] as [16, i] depend on the size of the tile, and the tail is elsewhere.
    """
    sides = [[factor for dim in side for factor in t.blocks.merged.get(dim) or (dim,)] for side in (before, after)]
    places = [{dim.block: at for at, dim in enumerate(side) if dim.block is not None} for side in sides]
    for block in places[0].keys() & places[1].keys():
        first, second = (_signature(t, side[: place[block]]) for side, place in zip(sides, places, strict=True))
        tile = t.blocks.active.get(block)
        if first != second and tile is not None and not t.blocks.has_no_tail(tile):
            return True
    return False


def _settled_tails(t: Tracer, input: DeviceValue, after: Dims) -> DeviceValue:
    """Zero the out-of-range lanes of tiles that a reshape splits, as loads do; no mask identifies them afterwards."""
    kept = {block for dim in after for block in dim.blocks}
    for at, dim in enumerate(input.dims):
        if dim.block is not None and dim.block not in kept:
            input = ops.within_tile(t, input, at, 0)
    return input


@rule(torch.Tensor.numel, torch.numel)
def _numel(t: Tracer, input: DeviceValue) -> Any:
    return input.numel()


def refuse_host(value: Any, t: Tracer, how: str) -> None:
    if isinstance(value, HostTensorValue):
        raise used_directly(value, how)
