"""The loop variable of ``hl.tile``, for annotations, and its properties as functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from .. import exc
from .._shapes import cdiv
from ._reference import Frame, Leveled, Session, axis_of, current, set_axis, shadow_of
from ._registry import declare, reference


class Tile:
    """A block of consecutive indices. Use it as an index, as a size, or through its properties.

    ``index`` is a 1-D integer tensor of the indices, ``begin`` and ``end`` the range (``end`` is at most the loop's
    end), ``block_size`` the size from the config, ``id`` is ``begin // block_size``, ``count`` the number of tiles.
    """

    index: Any
    begin: Any
    end: Any
    block_size: Any
    id: Any
    count: Any


@declare("device")
def tile_index(tile: Any) -> Any:
    """``tile.index``."""


@declare("device")
def tile_begin(tile: Any) -> Any:
    """``tile.begin``."""


@declare("device")
def tile_end(tile: Any) -> Any:
    """``tile.end``."""


@declare("both")
def tile_block_size(tile: Any) -> Any:
    """``tile.block_size``."""


@declare("device")
def tile_id(tile: Any) -> Any:
    """``tile.id``."""


@declare("device")
def tile_count(tile: Any) -> Any:
    """``tile.count``."""


# --- eager references ---------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class RefAxis:
    """One axis of a loop that runs eagerly, or a registered block size. ``tile`` is where its loop is, if it runs."""

    size: int
    tile: Any = None


class BlockSize(int, Leveled):
    """A block size as a number. As a size of a value made in a short tile it counts the lanes in range."""

    axis: RefAxis

    def at(self, session: Session, level: int, as_size: bool) -> int:
        tile = self.axis.tile
        if not as_size or tile is None or int(self) != tile.size:
            return int(self)
        return len(tile.at(session, level, as_size))


def block_size(axis: RefAxis) -> BlockSize:
    """The size of an axis, which knows the axis."""
    size = BlockSize(axis.size)
    size.axis = axis
    return size


@dataclass(frozen=True, eq=False)
class Span:
    """What references get for a tile: ``length`` indices from ``begin`` on, of which those below ``stop`` are in range.

    ``int`` gives the length. ``extent`` is the length of the whole loop.
    """

    axis: RefAxis
    begin: int
    length: int
    stop: int
    extent: int

    def __index__(self) -> int:
        return self.length

    def __len__(self) -> int:
        return self.length


@reference(tile_index)
def _index(span: Span) -> torch.Tensor:
    if not isinstance(span, Span):
        raise exc.TypeInferenceError(f"hl.tile_index takes a tile, got a {type(span).__name__}.")
    session = current()
    values = torch.arange(span.begin, span.begin + span.length, dtype=session.index_dtype, device=session.device)
    return set_axis(values, span.axis)


def _plus(indices: torch.Tensor, shift: Any) -> torch.Tensor:
    moved = set_axis(indices + shift, axis_of(indices))
    shadow = shadow_of(moved)
    assert shadow is not None
    shadow.is_tile = True
    return moved


class RefTile(Tile, Leveled):
    """The variable of an ``hl.tile`` loop that runs eagerly: the indices ``[begin, begin + size)`` below ``stop``."""

    def __init__(self, axis: RefAxis, begin: int, first: int, stop: int) -> None:
        self.block = axis
        self.size = axis.size
        self.frame: Frame | None = None
        self._begin, self._first, self._stop = begin, first, stop
        self._cut = Span(axis, begin, min(axis.size, stop - begin), stop, stop - first)
        self._padded = self._cut if self._cut.length == axis.size else Span(axis, begin, axis.size, stop, stop - first)

    @property
    def is_short(self) -> bool:
        """Whether the tile reaches past the end of its loop."""
        return self._cut is not self._padded

    @property
    def lanes(self) -> tuple[int, int]:
        """How many lanes are in range, and how many there are."""
        return self._cut.length, self.size

    def at(self, session: Session, level: int, as_size: bool) -> Span:
        frames = session.frames
        outside = any(self.frame is frame for frame in frames[level:])
        return self._padded if outside else self._cut

    @property
    def index(self) -> torch.Tensor:
        return current().call(_index, (self,), {})

    @property
    def begin(self) -> torch.Tensor:
        return current().scalar(self._begin)

    @property
    def end(self) -> torch.Tensor:
        return current().scalar(self._begin + self._cut.length)

    @property
    def id(self) -> torch.Tensor:
        return current().scalar(self._begin // self.size)

    @property
    def count(self) -> torch.Tensor:
        return current().scalar(cdiv(self._stop - self._first, self.size))

    @property
    def block_size(self) -> int:
        return block_size(self.block)

    def __index__(self) -> int:
        return self._cut.length

    def _shifted(self, other: Any, sign: int) -> Any:
        if isinstance(other, bool) or not (
            isinstance(other, int) or (isinstance(other, torch.Tensor) and not other.ndim)
        ):
            raise exc.IncorrectTileUsage(how="as a number")
        return current().call(_plus, (self.index, other if sign > 0 else -other), {})

    def __add__(self, other: Any) -> Any:
        return self._shifted(other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._shifted(other, -1)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise exc.IncorrectTileUsage(how="as a number")

    def __iter__(self) -> NoReturn:
        raise exc.FailedToUnpackTile(count="several")

    def __repr__(self) -> str:
        return f"tile [{self._begin}, {self._begin + self._cut.length})"


for _name in (
    "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "rsub", "pow", "rpow", "lt", "le", "gt",
    "ge", "neg", "invert", "bool", "int", "float", "and", "rand", "or", "ror", "xor", "rxor", "matmul", "rmatmul",
    "getitem",
):  # fmt: skip
    setattr(RefTile, f"__{_name}__", RefTile._refuse)


class RefTileTuple(tuple[RefTile, ...]):
    """The variable of a multi-dimensional ``hl.tile`` loop; it spreads in subscripts."""

    def __getattr__(self, name: str) -> NoReturn:
        if len(self) == 1 and name in Tile.__annotations__:
            raise exc.OverpackedTile()
        raise AttributeError(f"a sequence of tiles has no attribute {name!r}")


def _tile(tile: Any, name: str) -> RefTile:
    if not isinstance(tile, RefTile):
        raise exc.TypeInferenceError(f"hl.tile_{name} takes a tile, got a {type(tile).__name__}.")
    return tile


for _function, _attribute in {
    tile_begin: "begin", tile_end: "end", tile_id: "id", tile_count: "count", tile_block_size: "block_size",
}.items():  # fmt: skip
    reference(_function, "raw")(lambda tile, name=_attribute: getattr(_tile(tile, name), name))
