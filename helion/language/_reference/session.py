"""Reference mode: eager evaluation of ``hl`` functions while a kernel runs as a plain Python function.

``ACTIVE`` holds the session of the kernel that runs eagerly in the current context; only ``runtime.ref_mode`` sets
it. Each declared function has its eager reference next to the declaration, a plain function of tensors and sizes::

    @reference(cumsum)
    def _cumsum(input_tensor, dim, reverse=False):
        return ...

By default a tile covers its whole dimension, so values have no padding. With a given block size the last tile of a
loop may be short. Compiled code computes on the whole block there and masks loads, stores and reductions. An
accumulator made for a block therefore keeps all of its lanes through the short tile.

To give the same results, a value made in a short iteration exists in several versions. The *cut* version has the
lanes in range and is the tensor that the user sees. The *padded* version has the block size and remains when the loop
is done. There is one version per level. At level 0 no tile is cut; at level n the tiles of the n outermost short
iterations are. A function is evaluated once per level on which its arguments differ. A variable carried through the
loop keeps its lanes out of range.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal, Protocol, TypeVar

import torch

from ... import exc
from ..._support.records import dataclass, field
from ...config import Config
from ...settings import Settings

_F = TypeVar("_F", bound=Callable[..., Any])
Evaluate = Literal["padded", "once", "raw"]

#: The session of the kernel that runs eagerly in this context, or None.
ACTIVE: ContextVar[Session | None] = ContextVar("helion_reference", default=None)
#: Eager references by declared function, and how each is evaluated.
REFERENCES: dict[Any, tuple[Callable[..., Any], Evaluate]] = {}


def reference(declared: Callable[..., Any], evaluate: Evaluate = "padded") -> Callable[[_F], _F]:
    """Register the eager reference of a declared function.

    The reference is called with the arguments of the declared function, in which each tile is a ``Span`` (``int``
    gives its size). ``evaluate`` is one of:

    - ``padded``: a function of values;
    - ``once``: a function with side effects, which sees only the lanes in range;
    - ``raw``: a function that takes tiles as they are.
    """

    def register(fn: _F) -> _F:
        REFERENCES[declared] = (fn, evaluate)
        return fn

    return register


def current() -> Session:
    """Return the session of the kernel that is running."""
    session = ACTIVE.get()
    assert session is not None
    return session


# --- values on several levels -------------------------------------------------------------------------------------------


class Leveled:
    """A value that differs from level to level."""

    def at(self, session: Session, level: int, as_size: bool) -> Any:
        raise NotImplementedError


class Axis(Protocol):
    """A loop axis: its block size, and the current tile if its loop is running."""

    size: int
    tile: Any


class ShortTile(Protocol):
    """The part of a tile that a session uses."""

    block: Axis
    frame: Frame | None

    @property
    def is_short(self) -> bool: ...

    @property
    def lanes(self) -> tuple[int, int]: ...


@dataclass(eq=False)
class Frame:
    """One iteration of a loop in which some tiles are short."""

    tiles: tuple[ShortTile, ...]


_ATTRIBUTE = "_helion_reference"


@dataclass(eq=False)
class Shadow:
    """The versions and axes of a tensor.

    ``padded[level]`` is its version for each level below ``len(frames)``. ``axes`` identify the loop axis or whole
    dimension of each dimension's lanes; None if unknown. ``is_tile`` marks a shifted tile (``tile + n``): unlike
    computed indices, it may reach past the end of the indexed dimension.
    """

    frames: tuple[Frame, ...] = ()
    padded: tuple[Any, ...] = ()
    axes: tuple[object, ...] = ()
    is_tile: bool = False

    def at(self, value: Any, frames: tuple[Frame, ...], level: int) -> Any:
        common = 0
        for mine, theirs in zip(self.frames, frames, strict=False):
            if mine is not theirs:
                break
            common += 1
        level = min(level, common)
        return self.padded[level] if level < len(self.frames) else value


def shadow_of(tensor: torch.Tensor) -> Shadow | None:
    return getattr(tensor, _ATTRIBUTE, None)


def axes_of(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return the axis of each dimension's lanes, None where it is not known."""
    shadow = shadow_of(tensor)
    axes = () if shadow is None else shadow.axes
    return axes if len(axes) == tensor.ndim else (None,) * tensor.ndim


def set_axes(tensor: torch.Tensor, axes: tuple[object, ...]) -> torch.Tensor:
    """Record the axis of each dimension's lanes."""
    if len(axes) == tensor.ndim and any(axis is not None for axis in axes):
        shadow = shadow_of(tensor)
        if shadow is None:
            setattr(tensor, _ATTRIBUTE, Shadow(axes=axes))
        else:
            shadow.axes = axes
    return tensor


def axis_of(tensor: torch.Tensor) -> object:
    """Return the axis of a 1-D tensor's lanes, or None when it is not known."""
    return axes_of(tensor)[0] if tensor.ndim == 1 else None


def set_axis(tensor: torch.Tensor, axis: object) -> torch.Tensor:
    """Record the axis of a 1-D tensor's lanes."""
    return set_axes(tensor, (axis,))


class LeveledInt(int, Leveled):
    """A size that depends on the level; as a number it is the innermost one."""

    shadow: Shadow

    def at(self, session: Session, level: int, as_size: bool) -> int:
        return int(self.shadow.at(self, session.frames, level))


@dataclass(frozen=True)
class _Failed:
    error: RuntimeError


#: Functions that move lanes: their padded results cannot be compared with the cut ones lane by lane.
_MOVES = frozenset(
    getattr(owner, name)
    for owner in (torch, torch.Tensor)
    for name in (
        "reshape", "view", "flatten", "unflatten", "ravel", "permute", "transpose", "t", "swapaxes", "movedim", "flip", "roll",
        "reshape_as", "view_as",
    )
    if hasattr(owner, name)
)  # fmt: skip


# --- the session --------------------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class Session:
    """One eager run of a kernel. ``depth`` counts the device loops around the current statement.

    ``block_sizes`` are those of a config, or None for tiles that cover whole dimensions. They belong to the dimensions
    of loops, and to registered block sizes, in the order in which these are met first.
    """

    device: torch.device
    index_dtype: torch.dtype
    settings: Settings
    config: Config | None = None
    block_sizes: tuple[int, ...] | None = None
    #: True if grid loops take one index at a time.
    single_rows: bool = False
    depth: int = 0
    frames: tuple[Frame, ...] = ()
    level: int = field(default=0, repr=False)
    #: The tiles of the loops that are running, outermost first.
    running: tuple[Any, ...] = ()
    #: Seeds of torch's random functions in the grid loop that is running, by the place of the call.
    seeds: dict[Any, torch.Tensor] = field(default_factory=dict, repr=False)
    #: Number of seeds that each launch of the compiled kernel draws at once, in order, where that makes a difference.
    launches: Callable[[], Iterator[int]] = field(default=lambda: iter(()), repr=False)
    _counts: Iterator[int] | None = field(default=None, repr=False)
    _drawn: list[torch.Tensor] = field(default_factory=list, repr=False)
    _slots: dict[Any, int] = field(default_factory=dict, repr=False)

    @property
    def on_device(self) -> bool:
        return self.depth > 0

    def scalar(self, value: int) -> torch.Tensor:
        """Return a number as compiled code has it: a tensor without dimensions, in the index dtype. It lives on the
        CPU, where reading it is cheap; torch mixes such scalars with tensors of any device."""
        with torch._C.DisableTorchFunction():
            return torch.tensor(value, dtype=self.index_dtype)

    def draw(self) -> torch.Tensor:
        """Return the next seed of the kernel's device, as launches draw them."""
        if not self._drawn:
            if self._counts is None:
                self._counts = self.launches()
            count = next(self._counts, 1)
            self._drawn += torch.randint(2**63 - 1, (count,), device=self.device).unbind()
        return self._drawn.pop(0)

    def configured_size(self, position: int = 0) -> int | None:
        """Return the config's block size for dimension ``position`` of the loop call that is running; None without
        one."""
        if self.block_sizes is None:
            return None
        language = __package__.rpartition(".")[0]
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__", "").startswith(f"{language}."):
            frame = frame.f_back
        assert frame is not None
        slot = self._slots.setdefault((frame.f_code, frame.f_lasti, position), len(self._slots))
        return self.block_sizes[slot] if slot < len(self.block_sizes) else None

    @contextlib.contextmanager
    def inside(self, tiles: Sequence[ShortTile]) -> Iterator[bool]:
        """Run one iteration of a loop over ``tiles``; yield whether some of them are short."""
        outer, replaced = self.frames, [tile.block.tile for tile in tiles]
        self.running = (*self.running, *tiles)
        for tile in tiles:
            tile.block.tile = tile
        short = tuple(tile for tile in tiles if tile.is_short)
        if short:
            frame = Frame(short)
            for tile in short:
                tile.frame = frame
            self.frames = (*outer, frame)
        try:
            yield bool(short)
        finally:
            self.frames = outer
            self.running = self.running[: len(self.running) - len(tiles)]
            for tile, before in zip(tiles, replaced, strict=True):
                tile.block.tile = before

    def keep_lanes(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Restore, after a short iteration, the lanes out of range of each variable that the iteration changed."""
        for name, value in after.items():
            old = before.get(name)
            shadow = shadow_of(value) if isinstance(value, torch.Tensor) else None
            if old is value or not isinstance(old, torch.Tensor) or shadow is None or shadow.frames != self.frames:
                continue
            padded = [*shadow.padded, value]
            for level in reversed(range(len(shadow.padded))):
                kept = self.at(old, level)
                if kept.shape == padded[level].shape and kept.dtype == value.dtype:
                    padded[level] = _with_lanes(kept, padded[level + 1])
            shadow.padded = tuple(padded[:-1])

    # --- calls -----------------------------------------------------------------------------------------------------------

    def call_declared(self, function: Any, where: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an ``hl`` function, and raise the errors of calls in the wrong place."""
        name = f"hl.{function.__name__}"
        if where == "device" and not self.on_device:
            raise exc.DeviceAPIOnHost(name=name)
        if where == "host" and self.on_device:
            raise exc.SpecializeOnDevice() if function.__name__ == "specialize" else exc.NotAllowedOnDevice(what=name)
        if function not in REFERENCES:
            raise exc.BackendUnsupported(what=name, backend="eager reference", remedy="; run the kernel compiled")
        implementation, evaluate = REFERENCES[function]
        if evaluate == "raw":
            return implementation(*args, **kwargs)
        return (self.call_once if evaluate == "once" else self.call)(implementation, args, kwargs, takes_sizes=True)

    def call_once(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, takes_sizes: bool = False
    ) -> Any:
        """Call a function on the lanes in range only."""
        self.level = len(self.frames)
        args, kwargs = self.arguments_at(args, kwargs, self.level, takes_sizes)
        with torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        takes_sizes: bool = False,
        elementwise: bool = False,
    ) -> Any:
        """Call a function on every level on which its arguments differ; return the innermost result.

        ``takes_sizes`` says that integers among the arguments themselves (not only in lists) are sizes, ``elementwise``
        that tensor arguments broadcast.
        """
        innermost = len(self.frames)
        if not innermost:
            self.level = 0
            args, kwargs = self.arguments_at(args, kwargs, 0, takes_sizes)
            with torch._C.DisableTorchFunction():
                return _inherit_axis(function(*args, **kwargs), args)
        inputs = [self.arguments_at(args, kwargs, level, takes_sizes) for level in range(innermost + 1)]
        if elementwise:
            inputs = [(_without_false_broadcasts(a, inputs[0][0]), k) for a, k in inputs]
        results: list[Any] = [None] * len(inputs)
        for level in reversed(range(len(inputs))):
            if level < innermost and _same(inputs[level], inputs[level + 1]):
                results[level] = results[level + 1]
            else:
                results[level] = self._attempt(function, inputs[level][0], inputs[level][1], level)
        _fill_failures(results)
        return self._combine(results, function not in _MOVES)

    def _attempt(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], level: int) -> Any:
        """Return the result on a level, or the failure. A reshape, for example, may be valid for whole blocks only."""
        self.level = level
        try:
            with torch._C.DisableTorchFunction():
                try:
                    result = function(*args, **kwargs)
                except exc.CheckFailed:
                    raise
                except RuntimeError:
                    aligned = self.aligned(args)
                    if aligned is args:
                        raise
                    result = function(*aligned, **kwargs)
                return _inherit_axis(result, args)
        except exc.CheckFailed:  # an error of the kernel, not of this version of the values
            raise
        except RuntimeError as error:
            return _Failed(error)

    def _combine(self, versions: list[Any], comparable: bool) -> Any:
        """Return the innermost version, with the other versions attached to it."""
        value = versions[-1]
        if isinstance(value, torch.Tensor):
            if any(isinstance(v, torch.Tensor) and v.shape != value.shape for v in versions):
                padded = _with_lanes_in_range(versions) if comparable else versions[:-1]
                before = shadow_of(value)
                is_tile = before is not None and before.is_tile
                setattr(value, _ATTRIBUTE, Shadow(self.frames, tuple(padded), axes_of(value), is_tile))
            return value
        if type(value) is int and any(v != value for v in versions):
            size = LeveledInt(value)
            size.shadow = Shadow(self.frames, tuple(versions[:-1]))
            return size
        if isinstance(value, (tuple, list)) and all(
            isinstance(v, (tuple, list)) and len(v) == len(value) for v in versions
        ):
            items = [self._combine([v[i] for v in versions], comparable) for i in range(len(value))]
            return tuple(items) if isinstance(value, torch.Size) else value
        return value

    def arguments_at(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], level: int, takes_sizes: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call as they are on ``level``."""
        return (
            tuple(self.at(value, level, takes_sizes) for value in args),
            {name: self.at(value, level, takes_sizes) for name, value in kwargs.items()},
        )

    def at(self, value: Any, level: int, as_size: bool = False) -> Any:
        """Return ``value`` as it is on ``level``, also within tuples, lists, dicts and slices.

        Block sizes are plain numbers unless they are in a list or ``as_size`` is set.
        """
        if isinstance(value, torch.Tensor):
            shadow = shadow_of(value)
            return value if shadow is None or not shadow.frames else shadow.at(value, self.frames, level)
        if isinstance(value, Leveled):
            return value.at(self, level, as_size)
        if isinstance(value, tuple):
            items = [self.at(item, level, True) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if type(value) is list:
            return [self.at(item, level, True) for item in value]
        if type(value) is dict:
            return {key: self.at(item, level, as_size) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(self.at(value.start, level), self.at(value.stop, level), self.at(value.step, level))
        return value

    # --- lanes -----------------------------------------------------------------------------------------------------------

    def common(self, first: int, second: int) -> int | None:
        """Return the number of lanes that two dimensions share. This is all of them if they are equal. If one is a
        whole block and the other the same block cut, it is the number in range. Return None for unrelated dimensions.
        """
        if first == second:
            return first
        pair = (min(first, second), max(first, second))
        cut = any(tile.lanes == pair for frame in self.frames[: self.level] for tile in frame.tiles)
        return pair[0] if cut else None

    def aligned(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return ``args`` with whole blocks cut to the lanes in range wherever another tensor is cut."""
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        lanes: dict[int, int] = {}
        for position in range(1, max((t.ndim for t in tensors), default=0) + 1):
            sizes = {t.shape[-position] for t in tensors if t.ndim >= position} - {1}
            if len(sizes) == 2 and (shared := self.common(*sizes)) is not None:
                lanes[position] = shared
        if not lanes:
            return args
        return tuple(_narrowed(a, lanes) if isinstance(a, torch.Tensor) else a for a in args)


def _without_false_broadcasts(args: tuple[Any, ...], padded: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return ``args`` with whole blocks cut where another one is cut to a single lane, which must not broadcast."""
    lanes: dict[int, tuple[int, object]] = {}
    for cut, whole in zip(args, padded, strict=True):
        if isinstance(cut, torch.Tensor) and cut is not whole and cut.ndim == whole.ndim:
            for position in range(1, cut.ndim + 1):
                if cut.shape[-position] == 1 < whole.shape[-position]:
                    lanes[position] = whole.shape[-position], axes_of(whole)[-position]
    if not lanes:
        return args
    return tuple(
        _narrowed(a, {p: 1 for p, block in lanes.items() if _has_block(a, p, *block)})
        if isinstance(a, torch.Tensor)
        else a
        for a in args
    )


def _has_block(tensor: torch.Tensor, position: int, size: int, axis: object) -> bool:
    """Return whether a dimension, counted from the right, may be a whole block of an axis."""
    if tensor.ndim < position or tensor.shape[-position] != size:
        return False
    return axis is None or axes_of(tensor)[-position] in (None, axis)


def _narrowed(tensor: torch.Tensor, lanes: dict[int, int]) -> torch.Tensor:
    for position, count in lanes.items():
        if tensor.ndim >= position and tensor.shape[-position] > count:
            tensor = tensor.narrow(-position, 0, count)
    return tensor


def _with_lanes_in_range(versions: list[Any]) -> list[Any]:
    """Return the padded versions, with the lanes in range taken from the cut ones. A reduction, for example, must not
    see padding."""
    padded = list(versions)
    for level in reversed(range(len(padded) - 1)):
        inner, outer = padded[level + 1], padded[level]
        if outer is inner or not isinstance(outer, torch.Tensor):
            continue
        if outer.shape == inner.shape:
            padded[level] = inner
        elif outer.ndim == inner.ndim and all(o >= i for o, i in zip(outer.shape, inner.shape, strict=True)):
            padded[level] = _with_lanes(outer, inner)
    return padded[:-1]


def _with_lanes(outer: torch.Tensor, inner: torch.Tensor) -> torch.Tensor:
    """Return a copy of ``outer`` with its first lanes from ``inner``."""
    with torch._C.DisableTorchFunction():
        result = outer.clone()
        result[tuple(slice(size) for size in inner.shape)] = inner
        return set_axes(result, axes_of(outer))


def _fill_failures(results: list[Any]) -> None:
    """Replace the failure of a level by the result of the next inner level that has one, or else of the next outer
    one."""
    for level in reversed(range(len(results) - 1)):
        if isinstance(results[level], _Failed):
            results[level] = results[level + 1]
    for level in range(1, len(results)):
        if isinstance(results[level], _Failed):
            results[level] = results[level - 1]
    if isinstance(results[-1], _Failed):
        raise results[-1].error


def _same(first: Any, second: Any) -> bool:
    if first is second:
        return True
    if type(first) is not type(second):
        return False
    if isinstance(first, (tuple, list)):
        return len(first) == len(second) and all(map(_same, first, second))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_same(first[key], second[key]) for key in first)
    if isinstance(first, slice):
        return _same((first.start, first.stop, first.step), (second.start, second.stop, second.step))
    return isinstance(first, (int, float, str)) and first == second


def _inherit_axis(result: Any, args: tuple[Any, ...]) -> Any:
    """Give a 1-D result of 1-D arguments their axis."""
    if isinstance(result, torch.Tensor) and result.ndim == 1 and axis_of(result) is None:
        vectors = [a for a in args if isinstance(a, torch.Tensor) and a.shape == result.shape]
        axes = {id(axis): axis for axis in map(axis_of, vectors) if axis is not None}
        if len(axes) == 1:
            set_axis(result, next(iter(axes.values())))
    return result
