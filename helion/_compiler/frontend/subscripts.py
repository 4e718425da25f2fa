"""The subscript planner: the elements that ``tensor[...]`` selects, for shapes, code and facts alike."""

from __future__ import annotations

import ast
from typing import Any

import torch

from ... import exc
from ..._shapes import ONE, Dim, Dims, Expr, Number, broadcast_dims, fixed_at, number_key, positive_part
from ..._support.records import dataclass
from ..ir.grammar import Index, Operand
from ..ir.host_module import Reach, out_of_range, past_the_end
from ..ir.operands import unaddressed
from . import ops
from .host_uses import used_directly
from .polynomials import Polynomial
from .state import TraceState
from .values import DeviceValue, HostTensorValue, Tile, TileTuple, describe, source_name

_VARYING = (
    " (hl.specialize makes an argument or a size one; for a number that varies, loop over hl.tile of it, or load the "
    "whole dimension and select with torch.where)"
)


@dataclass(frozen=True)
class SubscriptPlan:
    """The elements that a subscript selects.

    ``indices`` has one entry per tensor dimension; ``dims`` is the shape of the selected tile. Operand numbers in
    ``indices`` count from the planner's ``shift``.
    """

    indices: tuple[Index, ...]
    operands: tuple[Operand, ...]
    dims: Dims
    #: Dimensions that no index varies over: the tile repeats one element of the tensor there.
    repeated: tuple[int, ...] = ()
    #: Dimensions of slices, which pair with no index tensor.
    sliced: tuple[int, ...] = ()
    #: The mask of lanes inside of the tensor, for slices with device bounds that may exceed its end.
    inside: DeviceValue | None = None


class _Planner:
    def __init__(self, tracer: TraceState, tensor: HostTensorValue, shift: int, checked: bool, computed: bool) -> None:
        self.tracer = tracer
        self.checked = checked
        self.computed = computed
        self.tensor = tensor
        self.shift = shift
        self.indices: list[Index] = []
        self.operands: list[Operand] = []
        self.dims: list[Dim] = []
        self.reaching: list[tuple[DeviceValue, Number]] = []

    def operand(self, value: DeviceValue) -> int:
        self.operands.append(value.value)
        return self.shift + len(self.operands) - 1

    def size(self, dim: int) -> Number:
        return self.tracer.numbers.known(self.tensor.shape[dim])

    def is_one(self, dim: int) -> bool:
        """Return whether the dimension has one element, which every index selects."""
        size = self.size(dim)
        return isinstance(size, int) and size == 1

    def scalar(self, value: Any, dim: int) -> None:
        if isinstance(value, DeviceValue):
            _check_integer(value)
        field = self.tracer.origins.field_of(value) if isinstance(value, DeviceValue) else None
        self.rely_on_several(dim, None if field is None else field.block)
        if self.is_one(dim) and not (field is not None and self.is_at_zero(field.block)):
            self.indices.append(Index("scalar"))
            return
        if isinstance(value, DeviceValue):
            self.check_index(value, dim)
            self.indices.append(Index("scalar", operand=self.operand(value)))
            return
        size = self.size(dim)
        if isinstance(value, int) and isinstance(size, int):
            if not -size <= value < size:
                raise out_of_range(value, self.tensor.source, dim, size)
            value = value % size
        elif isinstance(value, int):
            self.check_number(value, dim)
            value = size + value if value < 0 else value
        elif value.kind is int and value.leaves_are("host"):
            self.check_number(value, dim)
            # negative ones count from the end, as in Python; the host evaluates this before the launch
            value = value + size * (value < 0)
        self.indices.append(Index("scalar", shift=value))

    def block(self, block: int, dim: int, shift: Number = 0, operand: DeviceValue | None = None) -> None:
        size = self.size(dim)
        moved = operand is not None or not (isinstance(shift, int) and shift == 0)
        self.rely_on_several(dim, None if moved else block)
        repeats = self.is_one(dim) and not self.is_at_zero(block, shift, operand)
        if repeats and not (self.computed and (moved or not self.has_several(block))):
            self.indices.append(Index("scalar"))
            self.dims.append(Dim(blocks=(block,)))
            return
        self.check_range(block, dim, size, shift, operand)
        at = None if operand is None else self.operand(operand)
        self.indices.append(Index("block", block=block, positions=(len(self.dims),), shift=shift, operand=at))
        self.dims.append(Dim(blocks=(block,)))

    def rely_on_several(self, dim: int, block: int | None) -> None:
        """Record that the code needs several elements in a dimension, since any index selects the only one of one.

        The index of a loop over as many elements needs nothing.
        """
        size = self.size(dim)
        extent = None if block is None else self.tracer.blocks[block].extent
        if isinstance(size, Expr) and (extent is None or number_key(positive_part(extent)) != number_key(size)):
            self.tracer.numbers.rely_on(size)

    def is_at_zero(self, block: int, shift: Number = 0, operand: DeviceValue | None = None) -> bool:
        """Return whether all indices in range are 0, because the loop is over one element."""
        extent, tile = self.tracer.blocks[block].extent, self.tracer.blocks.active.get(block)
        plain = isinstance(extent, int) and extent == 1 and operand is None and isinstance(shift, int) and shift == 0
        return plain and (tile is None or tile.last == 1)

    def has_several(self, block: int) -> bool:
        """Return whether a loop certainly covers more than one element, unlike one with run-time bounds."""
        extent = self.tracer.blocks[block].extent
        return extent is not None and self.tracer.numbers.is_above_one(extent)

    def check_range(self, block: int, dim: int, size: Number, shift: Number, operand: DeviceValue | None) -> None:
        """Refuse a tile that exceeds the end of the tensor, unless the user masks the access.

        Lanes before the tensor are masked, and in a branch, which may exclude such tiles, those after it. Checked mode
        reports them instead.
        """
        tile = self.tracer.blocks.active.get(block)
        if self.checked or tile is None or tile.range is None or operand is not None:
            return
        begin, end = (number + shift for number in tile.range)
        if not self.tracer.blocks.branches:
            self.reach(tile, dim, size, begin, end)
            outside = isinstance(begin, int) and begin < 0
        else:
            outside = self.is_partly_outside(size, begin, end)
        if outside and not self.tracer.context.settings.checked:
            places = ops.tile_index(self.tracer, tile)
            self.reaching.append((ops.pointwise(self.tracer, "add", places, shift), size))

    def is_partly_outside(self, size: Number, begin: Number, end: Number) -> bool:
        """Return whether some indices of a loop may be before the tensor or past its end."""
        before = isinstance(begin, int) and begin < 0
        return before or not self.tracer.numbers.is_at_most(end, size)

    def reach(self, tile: Tile, dim: int, size: Number, begin: Number, end: Number) -> None:
        """Refuse indices of a loop from ``begin`` to ``end`` that exceed the end of the tensor; at the launch, if they or
        its size are known only there. Checked mode looks at the accesses themselves."""
        end = positive_part(end)
        if isinstance(end, int) and isinstance(size, int):
            if end > size:
                raise past_the_end(tile.block.name, end, self.tensor.source or self.tensor.made, dim, size)
        elif not self.tracer.context.settings.checked and not self.tracer.numbers.is_at_most(end, size):
            self.compare(tile.block.name, dim, size, begin, end)

    def check_number(self, index: Number, dim: int) -> None:
        """Refuse an index out of range at the launch, where it or the size is known only there.

        A branch may exclude it, and checked mode looks at the accesses themselves.
        """
        numbers, size = self.tracer.numbers, self.size(dim)
        if self.checked or self.tracer.blocks.branches or self.tracer.context.settings.checked:
            return
        if not (numbers.is_at_most(0, index) and numbers.is_at_most(index + 1, size)):
            self.compare("", dim, size, index, index + 1)

    def compare(self, tile: str, dim: int, size: Number, begin: Number, end: Number) -> None:
        name, location = self.tensor.source or self.tensor.made, self.tracer.builder.location
        reach = Reach(tile=tile, begin=begin, end=end, name=name, dim=dim, size=size, location=location)
        self.tracer.tensors.compare(reach)

    def check_index(self, value: DeviceValue, dim: int) -> None:
        """Refuse an ``hl.grid`` index, plus or minus a number of the host, that exceeds the end of the tensor."""
        found = self.tracer.origins.polynomial(value)
        indices = [atom for atom in found.atoms if atom[0] == "tile"] if found is not None else []
        if found is None or len(indices) != 1 or self.checked or self.tracer.blocks.branches:
            return
        ((_, block, field),) = indices
        tile, scale = self.tracer.blocks.active.get(block), found.terms.get((indices[0],))
        rest = Polynomial({m: c for m, c in found.terms.items() if m != (indices[0],)}, found.numbers).number()
        if tile is None or tile.range is None or rest is None:
            return
        begin, end = tile.range
        if scale == 1 and (field == "index" or (field == "begin" and fixed_at(tile.block.size, 1))):
            self.reach(tile, dim, self.size(dim), begin + rest, end + rest)
        elif scale == -1 and field == "index":
            self.reach(tile, dim, self.size(dim), rest - end + 1, rest - begin + 1)

    def whole(self, item: slice, dim: int) -> None:
        size = self.size(dim)
        if _is_whole(item):
            if self.is_one(dim):
                self.indices.append(Index("scalar"))
                self.dims.append(ONE)
            elif isinstance(size, Expr) and size.leaves_are("block"):
                self.tensor_index(ops.iota(self.tracer, size), dim)
            else:
                self.block(self.tracer.blocks.whole(size).id, dim)
            return
        parts = (item.start, item.stop, item.step)
        if isinstance(size, Expr) and all(p is None or isinstance(p, int) for p in parts):
            # the number of elements that a slice selects depends on the size
            size = self.tracer.numbers.specialize(size)
        if not isinstance(size, int) or not all(p is None or isinstance(p, int) for p in parts):
            if self.moving(item, dim, size):
                return
            shown = [_shown(self.tracer, p) for p in (parts if item.step is not None else parts[:2])]
            remedy = _VARYING if any(isinstance(p, Expr) for p in parts) else ""
            raise exc.InvalidIndexingType(got=f"the slice {':'.join(shown)}, whose bounds are not constants{remedy},")
        start, stop, step = item.indices(size)
        length = len(range(start, stop, step))
        if length == 0:
            raise exc.InvalidAPIUsage(
                f"The slice {start}:{stop}:{step} of dimension {dim} of {self.tensor.source!r} is empty."
            )
        if length == 1:
            self.indices.append(Index("scalar", shift=start))
            self.dims.append(ONE)
            return
        if step == 1:
            self.block(self.tracer.blocks.whole(length).id, dim, shift=start)
            return
        self.tensor_index(ops.iota(self.tracer, length, start, step), dim)

    def moving(self, item: slice, dim: int, size: Number) -> bool:
        """Select a slice of constant length with non-constant bounds. Return False if its length is not constant, or if
        its lanes would get the mask of an unrelated tile.
        """
        t = self.tracer
        start = 0 if item.start is None else item.start
        first, last = t.origins.polynomial(start), t.origins.polynomial(item.stop)
        step = 1 if item.step is None else item.step
        if first is None or last is None or type(step) is not int or step < 1:
            return False
        count = (last - first).over(step)
        length = None if count is None else t.blocks.dim_of_polynomial(count)
        if length is None:
            return False
        block = None if length.block is None else t.blocks[length.block]
        if block is not None and block.kind == "tile" and t.blocks.is_walked(block):
            field = t.origins.field_of(start) if isinstance(start, DeviceValue) else None
            if field is not None and field.block == block.id and field.field == "begin" and step == 1:
                self.block(block.id, dim)
                return True
            # lanes of a tile's own size are in range where the tile is
            if not any(atom[:2] == ("tile", block.id) for atom in first.atoms):
                return False
        places = ops.iota_along(t, length, step=step)
        places = ops.pointwise(t, "add", places, start)
        self.reaching.append((places, size))
        self.tensor_index(places, dim)
        return True

    def tensor_index(self, value: DeviceValue, dim: int, first: int | None = None) -> None:
        """Add an index tensor. A single one keeps the position of its dimensions; joint ones have them from ``first``
        on.
        """
        self.rely_on_several(dim, None)
        at = len(self.dims) if first is None else first
        positions = tuple(range(at, at + value.ndim))
        if self.is_one(dim) and not self.computed:
            self.indices.append(Index("scalar"))
        else:
            self.indices.append(Index("tensor", positions=positions, operand=self.operand(value)))
        if first is None:
            self.dims.extend(value.dims)


def plan(
    tracer: TraceState,
    tensor: HostTensorValue,
    index: Any,
    shift: int = 0,
    checked: bool = False,
    computed: bool = False,
) -> SubscriptPlan:
    """Return the elements that ``tensor[index]`` selects. Raises RankMismatch and the like.

    ``checked``: the user masks the access. In a dimension of one element, an index selects that element whatever its
    value. ``computed``: indices that are computed, and tiles whose loop may have one element, are used unchanged there.
    """
    items = _expand(tracer, tensor, index)
    planner = _Planner(tracer, tensor, shift, checked, computed)
    joint = _joint(tracer, items)
    first_joint: int | None = None
    sliced: list[int] = []
    dim = 0
    for item in items:
        if item is None:
            planner.dims.append(ONE)
            continue
        if isinstance(item, Tile):
            planner.block(item.block.id, dim)
        elif isinstance(item, slice):
            tile = _tile_of(tracer, item)
            sliced.append(len(planner.dims))
            if tile is not None:
                planner.block(tile, dim)
            else:
                planner.whole(item, dim)
        elif isinstance(item, (int, Expr)) or (isinstance(item, DeviceValue) and not item.dims):
            planner.scalar(item, dim)
        elif joint is not None and any(item is member for member in joint.members):
            if first_joint is None:
                first_joint = len(planner.dims)
                planner.dims.extend(joint.dims)
            planner.tensor_index(item, dim, first_joint + len(joint.dims) - item.ndim)
        else:
            _check_integer(item)
            affine = tracer.origins.affine(item) if item.ndim == 1 else None
            if affine is not None:
                planner.block(affine.block.id, dim, affine.shift, affine.operand)
            else:
                planner.tensor_index(item, dim)
        dim += 1
    _check_jagged(tracer, planner)
    indices, dims = tuple(planner.indices), tuple(planner.dims)
    repeated = unaddressed(indices, [*[None] * shift, *planner.operands], dims)
    return SubscriptPlan(indices, tuple(planner.operands), dims, repeated, tuple(sliced), _inside(tracer, planner))


def _inside(tracer: TraceState, planner: _Planner) -> DeviceValue | None:
    """Return the mask of lanes of device-bounded slices inside of the tensor, in the dimensions of the access."""
    result: DeviceValue | None = None
    for places, size in planner.reaching:
        (dim,) = places.dims
        shape = [ONE] * len(planner.dims)
        shape[planner.dims.index(dim)] = dim
        within = ops.reshape(tracer, ops.pointwise(tracer, "logical_and", places >= 0, places < size), tuple(shape))
        result = within if result is None else ops.pointwise(tracer, "logical_and", result, within)
    return result if result is None else ops.broadcast(tracer, result, tuple(planner.dims))


def _shown(tracer: TraceState, bound: Any) -> str:
    """Return a bound of a slice by the names and expressions of the user's code."""
    if isinstance(bound, Expr):
        written = tracer.numbers.written
        return bound.render(lambda leaf: ast.unparse(written[leaf.args[0]]) if leaf.args[0] in written else repr(leaf))
    return "" if bound is None else repr(bound)


def _is_whole(item: slice) -> bool:
    # bounds may be device values, which `==` would compare on the device
    return item.start is None and item.stop is None and item.step is None


def _tile_of(tracer: TraceState, item: slice) -> int | None:
    """Return the block of ``tile.begin:tile.end``, which selects the same as the tile."""
    if not isinstance(item.start, DeviceValue) or not isinstance(item.stop, DeviceValue) or item.step not in (None, 1):
        return None
    begin, end = tracer.origins.field_of(item.start), tracer.origins.field_of(item.stop)
    if begin is None or end is None or begin.block != end.block or (begin.field, end.field) != ("begin", "end"):
        return None
    return begin.block


def _check_jagged(tracer: TraceState, planner: _Planner) -> None:
    """Refuse an access with a jagged tile but without the tile of its rows, which determines the lanes in range."""
    for dim in planner.dims:
        tile = tracer.blocks.active.get(dim.block) if dim.block is not None else None
        if tile is None or tile.jagged is None:
            continue
        missing = [d for d in tile.jagged.dims if d not in planner.dims]
        if missing:
            raise exc.InvalidJaggedTileUsage(
                f"{planner.tensor.source!r} is indexed with {tile!r} but not with the tile of its rows, {tracer.blocks.dim_text(missing[0])}."
            )


@dataclass(frozen=True)
class _Joint:
    """Index tensors that broadcast together, and the shape of their broadcast."""

    members: tuple[DeviceValue, ...]
    dims: Dims


def _joint(tracer: TraceState, items: list[Any]) -> _Joint | None:
    """Broadcast index tensors together as in torch, if one has at least two dimensions and only scalars are between
    them. Otherwise each has its own dimensions: 1-D ones select an outer product.
    """
    members = [item for item in items if isinstance(item, DeviceValue) and item.dims]
    if len(members) < 2 or all(t.ndim == 1 for t in members):
        return None
    places = [at for at, item in enumerate(items) if isinstance(item, DeviceValue) and item.dims]
    between = items[places[0] : places[-1]]
    if not all(isinstance(item, (int, Expr, DeviceValue)) for item in between):
        return None
    for member in members:
        _check_integer(member)
    dims = broadcast_dims([t.dims for t in members])
    if dims is None:
        raise exc.ShapeMismatch(
            lhs=tracer.blocks.dims_text(members[0].dims),
            rhs=tracer.blocks.dims_text(members[1].dims),
            detail=": index tensors must broadcast together",
        )
    return _Joint(tuple(members), dims)


def _check_integer(value: DeviceValue) -> None:
    if value.dtype == torch.bool:
        raise exc.DataDependentOutputShapeNotSupported(name="Indexing with a boolean tensor")
    if value.dtype.is_floating_point:
        raise exc.InvalidIndexingType(got=f"A {value!r} value")


def _expand(tracer: TraceState, tensor: HostTensorValue, index: Any) -> list[Any]:
    """Return the index as one item per dimension (plus Nones), with tuples spread and missing dimensions filled."""
    items: list[Any] = []
    for item in index if isinstance(index, (tuple, list)) else (index,):
        items.extend(item if isinstance(item, TileTuple) else (item,))
    for item in items:
        ok = item is None or item is ... or isinstance(item, (Tile, slice, Expr, DeviceValue))
        if not ok and (isinstance(item, bool) or not isinstance(item, int)):
            if isinstance(item, HostTensorValue):
                if item.dtype == torch.bool:
                    raise exc.DataDependentOutputShapeNotSupported(name="Indexing with a boolean tensor")
                raise used_directly(item, "as an index")
            raise exc.InvalidIndexingType(got=describe(item))
    given = sum(item is not None and item is not ... for item in items)
    ellipses = sum(item is ... for item in items)
    if ellipses > 1:
        raise exc.InvalidIndexingType(got="More than one ellipsis")
    if given > tensor.ndim:
        raise exc.RankMismatch(
            expected=tensor.ndim,
            got=given,
            what=f"{source_name(tensor)!r} of shape {list(tensor.shape)}",
            remedy="there are too many",
        )
    fill = [slice(None)] * (tensor.ndim - given)
    if ellipses:
        at = next(i for i, item in enumerate(items) if item is ...)
        return [*items[:at], *fill, *items[at + 1 :]]
    return [*items, *fill]


def subscript_device(tracer: TraceState, value: DeviceValue, index: Any) -> DeviceValue:
    """Evaluate ``value[:, None]`` and the like; for a whole dimension, which is not tiled, also numbers and slices."""
    items = list(index) if isinstance(index, (tuple, list)) else [index]
    given = sum(item is not None and item is not ... for item in items)
    if given > value.ndim:
        raise exc.RankMismatch(
            expected=value.ndim,
            got=given,
            what=f"a device value of shape {tracer.blocks.dims_text(value.dims)}",
            remedy="there are too many",
        )
    fill = [slice(None)] * (value.ndim - given)
    at = next((i for i, item in enumerate(items) if item is ...), None)
    if at is not None:
        items = [*items[:at], *fill, *items[at + 1 :]]
    else:
        items += fill
    dims: list[Dim] = []
    remaining = iter(enumerate(value.dims))
    for item in items:
        if item is None:
            dims.append(ONE)
            continue
        at, dim = next(remaining)
        if isinstance(item, slice) and _is_whole(item):
            dims.append(dim)
        elif type(item) is int and item in (0, -1) and dim.is_one:
            continue
        else:
            value = _part(tracer, value, at, item)
            if isinstance(item, slice):
                dims.append(value.dims[at])
    return ops.reshape(tracer, value, tuple(dims))


def _part(tracer: TraceState, value: DeviceValue, at: int, item: Any) -> DeviceValue:
    """Select a number or a constant slice of a whole dimension, which becomes one of the selected size."""
    size = tracer.blocks.size_of(value.dims[at])
    parts = (item.start, item.stop, item.step) if isinstance(item, slice) else (item,)
    if not isinstance(size, int) or not all(p is None or type(p) is int for p in parts):
        if isinstance(item, DeviceValue) and item.dtype == torch.bool:
            raise exc.InvalidAPIUsage(
                f"A boolean mask cannot select elements of the device value {value!r}: their number would depend on data; "
                "keep all of them with torch.where(mask, value, other)."
            )
        if isinstance(item, slice) or type(item) is int:
            raise exc.InvalidAPIUsage(
                f"Dimension {at} of the device value {value!r} is a tile or of unknown size, and {describe(item)} cannot be "
                "an index of it. Subscript the tensor in the load instead; a whole dimension (`:`) whose size hl.specialize "
                "has fixed takes an index."
            )
        raise exc.InvalidIndexingType(got=f"{describe(item)}, on dimension {at} of the device value {value!r},")
    if not isinstance(item, slice) and not -size <= item < size:
        raise exc.InvalidAPIUsage(f"Index {item} is out of range for dimension {at} of the device value {value!r}.")
    chosen = range(size)[item] if isinstance(item, slice) else range(item % size, item % size + 1)
    if not chosen:
        raise exc.InvalidAPIUsage(f"The slice of dimension {at} of the device value {value!r} is empty.")
    index = ops.lanes(tracer, len(chosen), value.ndim, at) * chosen.step + chosen.start
    return ops.pick(tracer, value, at, index)
