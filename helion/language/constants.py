"""Compile-time constants: arguments, specialized sizes, registered block sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from .. import exc
from .._shapes import is_power_of_2
from ._reference import ACTIVE, current
from ._registry import declare, reference
from .tiles import RefAxis, block_size

_T = TypeVar("_T")


class ProcessGroupName(str):
    """Annotate a parameter that names a process group of ``torch.distributed``.

    Names are compile-time constants, as every string argument: host code may pass them on to ``torch.distributed``, and
    another name is another specialization.
    """

    __slots__ = ()


class ConstExpr(Generic[_T]):
    """A compile-time constant: annotate a parameter with ``hl.constexpr``, or pass ``hl.constexpr(value)``.

    The value becomes part of the specialization key: the kernel is compiled once per value, and branches on it are
    resolved when compiling. ``hl.constexpr`` is this class.

    Attributes:
        value: a hashable value: a number, a bool, a string, a dtype.
    """

    __slots__ = ("value",)

    if not TYPE_CHECKING:

        def __new__(cls, value: _T) -> Any:
            """In a kernel that runs as plain Python, the value itself."""
            return super().__new__(cls) if ACTIVE.get() is None else value

    def __init__(self, value: _T) -> None:
        self.value = value

    def __index__(self) -> int:
        return int(self.value)  # type: ignore[call-overload]

    def __bool__(self) -> bool:
        return bool(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstExpr) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"hl.constexpr({self.value!r})"


if TYPE_CHECKING:
    # `flag: hl.constexpr = False` must type-check, and so must arithmetic on it
    constexpr = Any
else:
    constexpr = ConstExpr


@declare("host")
def register_block_size(min_or_max: int, max: int | None = None, /) -> int:
    """Make a block size of the config's in host code, to pass as ``block_size=`` of several loops or as a size.

    ``hl.register_block_size(max)`` or ``hl.register_block_size(min, max)``. It is one entry of ``block_sizes``; loops and
    dimensions that share it share the entry. Dimensions of one loop, and loops inside each other, have tiles of their own of
    that size: ``for i, j in hl.tile([n, n], block_size=[size, size])`` has square tiles.

    Args:
        min_or_max: the largest block size, or the smallest where two are given, which is a constant power of two.
        max: the largest block size.

    Raises:
        exc.InvalidAPIUsage: bounds that are no sizes.
    """


@declare("host")
def specialize(value: _T) -> _T:
    """Make a size, a stride or a number argument, or a sequence of them, a compile-time constant.

    The kernel is compiled once per value. With ``static_shapes=True`` sizes and strides are constants already.

    Returns:
        The value.

    Raises:
        exc.SpecializeOnDevice: called in device code.
        exc.SpecializeArgType: the value comes from something else than sizes, strides and numbers of the arguments.
    """


# --- eager references ---------------------------------------------------------------------------------------------------


@reference(register_block_size, "raw")
def _register_block_size(min_or_max: Any, max: Any = None, /) -> int:
    """The maximum by default, so that a loop over that many elements is one tile."""
    low, high = (1, min_or_max) if max is None else (min_or_max, max)
    if not isinstance(low, int) or not is_power_of_2(low):
        raise exc.InvalidAPIUsage(
            f"The minimum of hl.register_block_size must be a constant power of two, got {low!r}."
        )
    if isinstance(high, (bool, float)) or not hasattr(high, "__index__"):
        raise exc.InvalidAPIUsage(f"The maximum of hl.register_block_size must be a size, got {high!r}.")
    largest = 1 if high.__index__() < 1 else high.__index__()
    return block_size(RefAxis(current().configured_size() or largest))


@reference(specialize, "raw")
def _specialize(value: Any) -> Any:
    if isinstance(value, torch.Tensor) or not isinstance(value, (int, float, tuple, list)):
        raise exc.SpecializeArgType(got=f"a {type(value).__name__}")
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return type(value)(_specialize(item) for item in value)
    return value
