"""The loop variable of ``hl.tile`` as a type, and its properties as functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch

from .. import exc
from .._shapes import cdiv
from .._support.records import dataclass
from ._reference.session import Frame, Leveled, Session, axis_of, current, set_axis, shadow_of
from ._registry import declare, reference

#: Attributes of a tile.
TILE_ATTRIBUTES = ("index", "begin", "end", "block_size", "id", "count")


class Tile:
    """A block of consecutive indices: the loop variable of ``hl.tile``.

    Use it as an index (``x[tile]``), as a size (``hl.zeros([tile])``), or through its attributes; ``tile + n`` and
    ``tile - n`` are its indices moved by ``n``. Any other arithmetic raises ``exc.IncorrectTileUsage``.

    Attributes:
        index: the indices, an integer tensor of shape ``[block_size]`` in the kernel's index dtype. Those of the last
            tile may lie beyond ``end``; loads and stores mask them.
        begin: the first index, a scalar.
        end: one past the last index in range, a scalar; at most the loop's end.
        block_size: the number of lanes, a size that the config decides unless the loop fixes it.
        id: ``begin // block_size``, a scalar: which tile this is, from 0 in a loop that begins at 0.
        count: how many tiles the loop has, a scalar.

    Example::

        @helion.kernel
        def lower_triangle(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            for i, j in hl.tile([x.size(0), x.size(1)]):
                inside = i.index[:, None] >= j.index[None, :]
                out[i, j] = torch.where(inside, x[i, j], 0)
            return out

        lower_triangle(torch.randn(10, 10))
    """

    if TYPE_CHECKING:
        # scalars are Any: they are used as numbers, and as tensors of torch

        @property
        def index(self) -> torch.Tensor: ...
        @property
        def begin(self) -> Any: ...
        @property
        def end(self) -> Any: ...
        @property
        def block_size(self) -> int: ...
        @property
        def id(self) -> Any: ...
        @property
        def count(self) -> Any: ...

        # these make x[tile], hl.zeros([tile]) and tile + 1 well typed
        def __index__(self) -> int: ...
        def __add__(self, other: int | torch.Tensor) -> torch.Tensor: ...
        def __radd__(self, other: int | torch.Tensor) -> torch.Tensor: ...
        def __sub__(self, other: int | torch.Tensor) -> torch.Tensor: ...


@declare("device")
def tile_index(tile: Tile) -> torch.Tensor:
    """Return the indices of a tile, as ``tile.index``: an integer tensor of shape ``[tile.block_size]``.

    Raises:
        exc.TypeInferenceError: ``tile`` is not a tile.

    Example::

        @helion.kernel
        def iota(out: torch.Tensor) -> torch.Tensor:
            for tile in hl.tile(out.size(0)):
                out[tile] = hl.tile_index(tile)
            return out

        iota(torch.empty(10))
    """


@declare("device")
def tile_begin(tile: Tile) -> Any:
    """Return the first index of a tile, as ``tile.begin``: a scalar.

    Raises:
        exc.TypeInferenceError: ``tile`` is not a tile.

    Example::

        @helion.kernel
        def begins(out: torch.Tensor) -> torch.Tensor:
            for tile in hl.tile(out.size(0), block_size=4):
                out[tile] = hl.full([tile], 0) + hl.tile_begin(tile)
            return out

        begins(torch.empty(10))
    """


@declare("device")
def tile_end(tile: Tile) -> Any:
    """Return the end of a tile, as ``tile.end``: a scalar, one past the last index in range.

    Raises:
        exc.TypeInferenceError: ``tile`` is not a tile.

    Example::

        @helion.kernel
        def ends(out: torch.Tensor) -> torch.Tensor:
            for tile in hl.tile(out.size(0), block_size=4):
                out[tile] = hl.full([tile], 0) + hl.tile_end(tile)
            return out

        ends(torch.empty(10))
    """


@declare("both")
def tile_block_size(tile: Tile) -> int:
    """Return the number of lanes of a tile, as ``tile.block_size``: a size.

    Raises:
        exc.TypeInferenceError: ``tile`` is not a tile.

    Example::

        @helion.kernel
        def sizes(out: torch.Tensor) -> torch.Tensor:
            for tile in hl.tile(out.size(0), block_size=4):
                out[tile] = hl.full([tile], hl.tile_block_size(tile))
            return out

        sizes(torch.empty(10))
    """


@declare("device")
def tile_id(tile: Tile) -> Any:
    """Return ``tile.begin // tile.block_size``, as ``tile.id``: a scalar, from 0 in a loop that begins at 0.

    Raises:
        exc.TypeInferenceError: ``tile`` is not a tile.

    Example::

        @helion.kernel
        def tile_sums(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty([(x.size(0) + 3) // 4], device=x.device)
            for tile in hl.tile(x.size(0), block_size=4):
                out[hl.tile_id(tile)] = x[tile].sum(0)
            return out

        tile_sums(torch.ones(10))
    """


@declare("device")
def tile_count(tile: Tile) -> Any:
    """Return the number of tiles in the loop of a tile, as ``tile.count``: a scalar.

    Raises:
        exc.TypeInferenceError: ``tile`` is not a tile.

    Example::

        @helion.kernel
        def counts(out: torch.Tensor) -> torch.Tensor:
            for tile in hl.tile(out.size(0), block_size=4):
                out[tile] = hl.full([tile], 0) + hl.tile_count(tile)
            return out

        counts(torch.empty(10))
    """


# --- eager references ---------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class RefAxis:
    """One axis of a loop that runs eagerly, or a registered block size. ``tile`` is the current
    tile of its loop, if that runs. ``fixed``: the kernel itself gives the size, not a config."""

    size: int
    tile: Any = None
    fixed: bool = False


class BlockSize(int, Leveled):
    """A block size as a number. As a size of a value in a short tile it is the number of lanes in range."""

    axis: RefAxis

    def at(self, session: Session, level: int, as_size: bool) -> int:
        tile = self.axis.tile
        if not as_size or tile is None or int(self) != tile.size:
            return int(self)
        return len(tile.at(session, level, as_size))


def block_size(axis: RefAxis) -> BlockSize:
    """Return the size of an axis, with the axis attached."""
    size = BlockSize(axis.size)
    size.axis = axis
    return size


@dataclass(frozen=True, eq=False)
class Span:
    """A tile as references receive it: ``length`` indices from ``begin`` on; those below ``stop`` are in range.

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
        """True if the tile reaches past the end of its loop."""
        return self._cut is not self._padded

    @property
    def lanes(self) -> tuple[int, int]:
        """The number of lanes in range, and the number of all lanes."""
        return self._cut.length, self.size

    def at(self, session: Session, level: int, as_size: bool) -> Span:
        frames = session.frames
        outside = any(self.frame is frame for frame in frames[level:])
        return self._padded if outside else self._cut

    @property
    def index(self) -> torch.Tensor:
        return current().call(_index, (self,), {})

    @property
    def begin(self) -> Any:
        return current().scalar(self._begin)

    @property
    def end(self) -> Any:
        return current().scalar(self._begin + self._cut.length)

    @property
    def id(self) -> Any:
        return current().scalar(self._begin // self.size)

    @property
    def count(self) -> Any:
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
    """The variable of a multi-dimensional ``hl.tile`` loop; it is unpacked in subscripts."""

    def __getattr__(self, name: str) -> NoReturn:
        if len(self) == 1 and name in TILE_ATTRIBUTES:
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
