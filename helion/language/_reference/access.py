"""Reads and writes of ``tensor[index]`` in reference mode.

Lanes of a tile that reaches past the end of the tensor read 0 and write nothing, unless the kernel is checked. Other
indices out of range are errors, unless an ``extra_mask`` turns their lanes off: compiled code would access other
memory.
"""

from __future__ import annotations

import functools
import linecache
import os
import pathlib
import sys
import types
from collections.abc import Sequence
from typing import Any

import torch

from ... import exc
from ..._support.records import dataclass
from .._unwritten import unwritten
from ..tiles import Span
from .session import Session, axes_of, axis_of, current, set_axes, set_axis, shadow_of

#: Files whose frames are between the user's code and this module.
_BETWEEN = (str(pathlib.Path(torch.__file__).parent), str(pathlib.Path(__file__).parents[2]))

#: Dtypes that torch moves around but cannot index or fill, by an integer of the same size.
_BITS = {
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(_BITS[tensor.dtype]) if tensor.dtype in _BITS else tensor


@dataclass(frozen=True)
class _Item:
    """The index of one dimension (``dim``; None for a new one): ``basic``, or ``indices``, whose dimensions start at
    ``place`` of the result and of which those from ``stop`` on are out of range. ``is_tile``: they are a tile's, or
    those of one that was moved."""

    dim: int | None
    place: int
    rank: int
    basic: Any = None
    indices: torch.Tensor | None = None
    stop: int | None = None
    is_tile: bool = False

    def values(self, size: int, device: torch.device) -> torch.Tensor:
        """Return the indices into a dimension of ``size`` elements, possibly out of range."""
        if self.indices is not None:
            return self.indices.to(device=device, dtype=torch.int64)
        if isinstance(self.basic, slice):
            return torch.arange(*self.basic.indices(size), device=device)
        return torch.tensor(self.basic, device=device)


@dataclass(frozen=True)
class Selection:
    """The elements of a tensor that an index selects.

    ``shape`` is the shape of the result. ``basic`` is a plain index of ints, slices and Nones if all lanes are in
    range and no dimension is gathered, else None. ``lanes`` has the in-bounds indices of each dimension of the
    tensor, broadcastable to ``shape``. ``valid`` has broadcastable masks of the dimensions in which some lanes are
    out of range. ``gathered`` are the dimensions indexed by tensors. ``axes`` identify the lanes of each dimension.
    """

    tensor: torch.Tensor
    items: tuple[_Item, ...]
    shape: tuple[int, ...]
    axes: tuple[object, ...]

    @functools.cached_property
    def basic(self) -> tuple[Any, ...] | None:
        if any(item.indices is not None for item in self.items):
            return None
        return tuple(item.basic for item in self.items)

    @property
    def gathered(self) -> tuple[int, ...]:
        return tuple(i.dim for i in self.items if i.indices is not None and i.stop is None and i.dim is not None)

    @property
    def lanes(self) -> tuple[torch.Tensor, ...]:
        return self._lanes_and_valid[0]

    @property
    def valid(self) -> tuple[torch.Tensor, ...]:
        return () if self.basic is not None else self._lanes_and_valid[1]

    def spread(self, item: _Item) -> torch.Tensor:
        """Return the indices into a dimension, possibly out of range, broadcastable to ``shape``."""
        assert item.dim is not None
        values = item.values(self.tensor.shape[item.dim], self.tensor.device)
        after = len(self.shape) - item.place - values.ndim
        return values.reshape([1] * item.place + list(values.shape) + [1] * after)

    @property
    def in_tiles(self) -> torch.Tensor:
        """Return the mask of the lanes that belong to tiles, not to their padding."""
        inside = torch.ones(self.shape, dtype=torch.bool, device=self.tensor.device)
        for item in self.items:
            if item.stop is not None:
                inside &= self.spread(item) < item.stop
        return inside

    @functools.cached_property
    def _lanes_and_valid(self) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        lanes, valid = [], []
        for item in self.items:
            if item.dim is None:
                continue
            size = self.tensor.shape[item.dim]
            values = self.spread(item)
            inside = (values >= 0) & (values < (size if item.stop is None else min(size, item.stop)))
            if not bool(inside.all()):
                valid.append(inside)
                values = values.clamp(0, max(size - 1, 0))
            lanes.append(values)
        return tuple(lanes), tuple(valid)

    def chosen(self, mask: Any = None) -> torch.Tensor | None:
        """Return a mask of the lanes that are in range and where ``mask`` is true; None if all are."""
        masks = list(self.valid) if mask is None else [*self.valid, fitted_mask(mask, self.shape)]
        if not masks:
            return None
        chosen = masks[0].expand(self.shape)
        for each in masks[1:]:
            chosen = chosen & each
        return chosen


def select(tensor: torch.Tensor, index: Any) -> Selection:
    """Return the selection of ``tensor[index]`` by the rules of compiled kernels.

    Tiles and slices select ranges; integers drop a dimension. Every index into a dimension of size 1 selects element
    0. A single index tensor contributes all of its dimensions. Several index tensors that
    are all 1-D select an outer product; if one has more dimensions, neighbours broadcast together.

    Raises ``exc.RankMismatch``, ``exc.InvalidIndexingType``, ``exc.DataDependentOutputShapeNotSupported`` and
    ``exc.ShapeMismatch``.
    """
    items, shape, axes = _place(tensor, _expanded(tensor, index))
    return Selection(tensor, tuple(items), shape, axes)


def _place(tensor: torch.Tensor, index: list[Any]) -> tuple[list[_Item], tuple[int, ...], tuple[object, ...]]:
    """Return each index with its position in the result, the result's shape, and the axes of its dimensions."""
    items: list[_Item] = []
    shape: list[int] = []
    axes: list[object] = []
    joint = _joint(index)
    joint_at: int | None = None
    dim = 0
    for entry in index:
        place = len(shape)
        if entry is None:
            items.append(_Item(None, place, 1))
            shape.append(1)
            axes.append(None)
            continue
        size = tensor.shape[dim]
        if isinstance(entry, torch.Tensor) and entry.ndim:
            if size == 1:  # every index selects its one element
                entry = set_axis(torch.zeros_like(entry), axis_of(entry))
            if joint is not None:
                if joint_at is None:
                    joint_at = place
                    shape.extend(joint)
                    axes.extend([None] * len(joint))
                start = joint_at + len(joint) - entry.ndim
            else:
                start = place
                shape.extend(entry.shape)
                axes.extend(axes_of(entry))
            shadow = shadow_of(entry)
            is_tile = shadow is not None and shadow.is_tile
            items.append(_Item(dim, start, entry.ndim, indices=entry, is_tile=is_tile))
        else:
            item, axis = _plain(tensor, entry, dim, place)
            items.append(item)
            if item.rank:
                shape.append(_length(item, size))
                axes.append(axis)
        dim += 1
    return items, tuple(shape), tuple(axes)


def _length(item: _Item, size: int) -> int:
    return len(range(*item.basic.indices(size))) if item.indices is None else len(item.indices)


def _plain(tensor: torch.Tensor, entry: Any, dim: int, place: int) -> tuple[_Item, object]:
    """Return a tile, a slice or a number as the index of dimension ``dim``, and the axis of its lanes."""
    size = tensor.shape[dim]
    if isinstance(entry, Span):
        if size == 1:
            return _repeated(tensor, entry, dim, place), entry.axis
        end = entry.begin + entry.length
        if entry.begin >= 0 and end <= min(entry.stop, size):
            return _Item(dim, place, 1, slice(entry.begin, end)), entry.axis
        indices = torch.arange(entry.begin, end, device=tensor.device)
        return _Item(dim, place, 1, indices=indices, stop=entry.stop, is_tile=True), entry.axis
    if isinstance(entry, slice):
        if not all(p is None or hasattr(p, "__index__") for p in (entry.start, entry.stop, entry.step)):
            raise exc.InvalidIndexingType(got=f"the slice {entry!r}")
        start, stop, step = entry.indices(size)
        if step > 0:
            whole = ("whole", len(range(start, stop, step)))
            axis = axes_of(tensor)[dim] if (start, stop, step) == (0, size, 1) else None
            return _Item(dim, place, 1, slice(start, max(start, stop), step)), axis or whole
        return _Item(dim, place, 1, indices=torch.arange(start, stop, step, device=tensor.device), stop=size), None
    if size == 1:
        return _Item(dim, place, 0, 0), None
    if isinstance(entry, torch.Tensor):  # a scalar: one place, perhaps out of range
        value = int(entry)
        if 0 <= value < size:
            return _Item(dim, place, 0, value), None
        return _Item(dim, place, 0, indices=entry), None
    if not -size <= entry < size:
        raise exc.InvalidAPIUsage(
            f"Index {entry} is out of range for dimension {dim} of a tensor of shape {list(tensor.shape)}."
        )
    return _Item(dim, place, 0, int(entry) % size), None


def _repeated(tensor: torch.Tensor, entry: Span, dim: int, place: int) -> _Item:
    """Return a tile as the index of a dimension of one element, which every lane in range selects."""
    inside = max(0, min(entry.length, entry.stop - entry.begin))
    if entry.length == inside == 1:
        return _Item(dim, place, 1, slice(0, 1))
    indices = torch.arange(entry.length, device=tensor.device) >= inside
    return _Item(dim, place, 1, indices=indices.to(torch.int64), stop=1 if inside < entry.length else None)


def _joint(index: list[Any]) -> tuple[int, ...] | None:
    """Return the shape that several index tensors broadcast to together. Return None if each has dimensions of its
    own: 1-D tensors, and tensors with a slice, tile or None between them."""
    places = [at for at, entry in enumerate(index) if isinstance(entry, torch.Tensor) and entry.ndim]
    tensors = [index[at] for at in places]
    if len(tensors) < 2 or all(t.ndim == 1 for t in tensors):
        return None
    if any(entry is None or isinstance(entry, (slice, Span)) for entry in index[places[0] : places[-1]]):
        return None
    shapes = [tuple(t.shape) for t in tensors]
    broadcast = _broadcast(shapes)
    if broadcast is None:
        raise exc.ShapeMismatch(
            lhs=list(shapes[0]), rhs=list(shapes[1]), detail=": index tensors must broadcast together"
        )
    return broadcast


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        return None


def _expanded(tensor: torch.Tensor, index: Any) -> list[Any]:
    """Return the index as one entry per dimension (plus Nones): tuples of tiles are flattened, the ellipsis and
    missing dimensions are filled."""
    entries: list[Any] = []
    for entry in index if isinstance(index, (tuple, list)) else (index,):
        entries.extend(entry if isinstance(entry, tuple) else (entry,))
    for entry in entries:
        if isinstance(entry, torch.Tensor):
            if entry.dtype == torch.bool:
                raise exc.DataDependentOutputShapeNotSupported(name="Indexing with a boolean tensor")
            if entry.dtype.is_floating_point or entry.dtype.is_complex:
                raise exc.InvalidIndexingType(got=f"A tensor of {entry.dtype}")
        elif not (entry is None or entry is ... or isinstance(entry, (Span, slice))) and (
            isinstance(entry, bool) or not hasattr(entry, "__index__")
        ):
            raise exc.InvalidIndexingType(got=f"{entry!r}")
    given = sum(entry is not None and entry is not ... for entry in entries)
    dots = [at for at, entry in enumerate(entries) if entry is ...]
    if len(dots) > 1:
        raise exc.InvalidIndexingType(got="More than one ellipsis")
    if given > tensor.ndim:
        raise exc.RankMismatch(
            expected=tensor.ndim,
            got=given,
            what=f"a tensor of shape {list(tensor.shape)}",
            remedy="there are too many",
        )
    fill = [slice(None)] * (tensor.ndim - given)
    return [*entries[: dots[0]], *fill, *entries[dots[0] + 1 :]] if dots else [*entries, *fill]


# --- checks -------------------------------------------------------------------------------------------------------------


def check_range(selection: Selection, verb: str, mask: Any = None) -> None:
    """Raise ``exc.IndexOutOfRange`` if an active lane has an index out of range.

    Padded versions of a value may be out of range.
    """
    session = current()
    if selection.basic is not None or session.level != len(session.frames):
        return
    for item in selection.items:
        if item.dim is None or item.indices is None or (item.is_tile and not session.settings.checked):
            continue
        size = selection.tensor.shape[item.dim]
        values = selection.spread(item)
        outside = (values < 0) | (values >= size)
        if item.stop is not None:
            outside &= values < item.stop
        if not bool(outside.any()):
            continue
        outside = outside.expand(selection.shape) & selection.in_tiles
        if mask is not None:
            outside = outside & fitted_mask(mask, selection.shape)
        if bool(outside.any()):
            bad = int(values.expand(selection.shape)[outside].flatten()[0])
            what = f"out of range in dimension {item.dim}, which has {size} elements, at index {bad}"
            raise exc.IndexOutOfRange(_complaint(selection.tensor, verb, what))


def check_written(tensor: torch.Tensor, values: torch.Tensor, verb: str) -> None:
    """Raise ``exc.UnwrittenRead`` if a checked kernel reads uninitialized elements of ``tensor``."""
    session = current()
    if not session.settings.checked or session.level != len(session.frames):
        return
    holes = unwritten(values)
    if holes is not None and bool(holes.any()):
        raise exc.UnwrittenRead(_complaint(tensor, verb, "where it is uninitialized"))


def _user_frame() -> types.FrameType | None:
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    return frame


def _name(frame: types.FrameType | None, tensor: torch.Tensor) -> str:
    """Return the name of the user's variable that holds a tensor."""
    names = {} if frame is None else frame.f_locals
    return next((name for name, value in names.items() if value is tensor), "a tensor")


def _complaint(tensor: torch.Tensor, verb: str, what: str) -> str:
    """Return a message with the user's file, line and name of the tensor."""
    frame = _user_frame()
    if frame is None:
        return f"The kernel {verb} a tensor of shape {list(tensor.shape)} {what}."
    file, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, line).strip()
    return f"{os.path.basename(file)}:{line}: kernel {frame.f_code.co_name!r} {verb} {_name(frame, tensor)!r} {what}, in `{text}`"


class Accessible:
    """An operand other than a tensor that ``hl.load`` and ``hl.store`` accept."""

    __slots__ = ()

    def load_eagerly(self, index: Any, mask: Any) -> torch.Tensor:
        """Load from it as ``load`` does from a tensor."""
        raise NotImplementedError

    def store_eagerly(self, index: Any, value: Any, mask: Any) -> None:
        """Store into it as ``store`` does into a tensor."""
        raise NotImplementedError


# --- reading ------------------------------------------------------------------------------------------------------------


def load(tensor: torch.Tensor, index: Any, mask: Any = None) -> torch.Tensor:
    """Return a copy of ``tensor[index]``. Lanes of tiles that are out of range, and those where ``mask`` is false,
    are 0.

    Raises ``exc.IndexOutOfRange``, and of a checked kernel ``exc.UnwrittenRead``.
    """
    selection = select(tensor, index)
    check_range(selection, "reads", mask)
    if selection.basic is not None:
        result = tensor[selection.basic].clone()
    elif tensor.numel() == 0:
        result = tensor.new_zeros(selection.shape)
    else:
        result = _bits(tensor)[selection.lanes].view(tensor.dtype)
    hidden = selection.valid if mask is None else (*selection.valid, fitted_mask(mask, selection.shape))
    for valid in hidden:
        _bits(result).masked_fill_(~valid, 0)
    check_written(tensor, result, "reads")
    return set_axes(result, selection.axes)


def fitted_mask(mask: Any, shape: tuple[int, ...]) -> torch.Tensor:
    """Return an ``extra_mask`` expanded to the shape of the accessed tile."""
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise exc.TypeInferenceError(f"extra_mask must be a boolean tile, got {got}.")
    fitted = fit(mask, shape, current())
    if fitted is None:
        raise exc.ShapeMismatch(
            lhs=list(shape), rhs=list(mask.shape), detail=": extra_mask must broadcast to the accessed tile"
        )
    return fitted


def fit(value: torch.Tensor, shape: tuple[int, ...], session: Session) -> torch.Tensor | None:
    """Return ``value`` expanded to ``shape``, with a whole block cut where ``shape`` has its lanes in range. Return
    None if it does not broadcast."""
    for position in range(1, min(value.ndim, len(shape)) + 1):
        have, want = value.shape[-position], shape[-position]
        if have > want and have != 1 and session.common(have, want) == want:
            value = value.narrow(-position, 0, want)
    return value.expand(shape) if _broadcast([tuple(value.shape), shape]) == shape else None


# --- writing ------------------------------------------------------------------------------------------------------------


def stored_value(tensor: torch.Tensor, value: Any, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a value as stored into a selection of shape ``shape``: in the tensor's dtype, expanded."""
    if isinstance(value, (bool, int, float)):
        value = torch.tensor(value, device=tensor.device)
    elif not isinstance(value, torch.Tensor):
        raise exc.RequiresTensorInAssignment(got=f"a {type(value).__name__}")
    given = value
    while given.ndim > len(shape) and given.shape[0] == 1:
        given = given[0]
    if given.ndim > len(shape):
        raise exc.RankMismatch(
            expected=given.ndim,
            got=len(shape),
            what=f"a value of shape {list(value.shape)}",
            remedy="the value has more dimensions than the subscript selects",
        )
    fitted = fit(given, shape, current())
    if fitted is None:
        raise exc.ShapeMismatch(
            lhs=list(given.shape),
            rhs=list(shape),
            detail=": the first is stored where the subscript selects the second",
        )
    return fitted.to(device=tensor.device, dtype=tensor.dtype)


def store(tensor: torch.Tensor, index: Any, value: Any, mask: Any = None) -> None:
    """Store ``value`` into ``tensor[index]``, for the lanes in range and those where ``mask`` is true.

    Raises ``exc.IndexOutOfRange``, ``exc.DuplicateStoreIndicesError`` when two lanes write the same element, and
    ``exc.OverlappingStore`` when they have several indices of a dimension of stride 0.
    """
    selection = select(tensor, index)
    check_range(selection, "writes", mask)
    _refuse_overlap(selection)
    values = stored_value(tensor, value, selection.shape)
    if selection.basic is not None and mask is None:
        tensor[selection.basic] = values
        return
    lanes, chosen = selection.lanes, selection.chosen(mask)
    if chosen is not None:
        lanes = tuple(lane.expand(selection.shape)[chosen] for lane in lanes)
        values = _bits(values)[chosen].view(tensor.dtype)
    if selection.gathered:
        _refuse_duplicates(tensor, lanes, selection.gathered if chosen is None else range(tensor.ndim))
    _bits(tensor)[lanes] = _bits(values)


def _refuse_overlap(selection: Selection) -> None:
    tensor = selection.tensor
    for item in selection.items:
        dim = item.dim
        if dim is None or tensor.stride(dim) != 0 or tensor.shape[dim] <= 1:
            continue
        values = item.values(tensor.shape[dim], tensor.device)
        if (values if item.stop is None else values[values < item.stop]).numel() > 1:
            raise exc.OverlappingStore(name=_name(_user_frame(), tensor), dim=dim)


def _refuse_duplicates(tensor: torch.Tensor, lanes: tuple[torch.Tensor, ...], dims: Sequence[int]) -> None:
    """Refuse lanes that write one element. Tiles give distinct lanes, so it is enough to compare the gathered
    dimensions."""
    places = torch.zeros([], dtype=torch.int64, device=tensor.device)
    for dim in dims:
        places = places * tensor.shape[dim] + lanes[dim]
    distinct = int(torch.unique(places).numel())
    if distinct != places.numel():
        raise exc.DuplicateStoreIndicesError(count=places.numel() - distinct, shape=list(tensor.shape))
