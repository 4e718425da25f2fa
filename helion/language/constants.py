"""Compile-time constants: arguments, specialized sizes, registered block sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from .. import exc
from .._shapes import is_power_of_2
from ._reference.session import ACTIVE, current
from ._registry import declare, reference
from .tiles import RefAxis, block_size

_T = TypeVar("_T")


class ProcessGroupName(str):
    """The annotation of a parameter that names a process group of ``torch.distributed``.

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

    Example::

        @helion.kernel
        def power(x: torch.Tensor, exponent: hl.constexpr) -> torch.Tensor:
            out = torch.empty_like(x)
            for tile in hl.tile(x.size(0)):
                acc = x[tile]
                for _ in hl.static_range(exponent - 1):
                    acc = acc * x[tile]
                out[tile] = acc
            return out

        power(torch.randn(10), 3)
    """

    __slots__ = ("value",)

    if not TYPE_CHECKING:

        def __new__(cls, value: _T) -> Any:
            """Return the value itself in a kernel that runs as plain Python."""
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
    """Register a block size that the config decides, for ``block_size=`` of several loops or as a size.

    Call ``hl.register_block_size(max)`` or ``hl.register_block_size(min, max)`` in host code. The size is one entry of
    ``block_sizes``, shared by all loops and dimensions that use it. Two dimensions of one loop, or of nested loops, have
    separate tiles of that size: ``for i, j in hl.tile([n, n], block_size=[size, size])`` has square tiles.

    Args:
        min_or_max: the largest block size, or the smallest if two are given, which is a constant power of two.
        max: the largest block size.

    Raises:
        exc.InvalidAPIUsage: bounds that are not sizes.

    Example::

        @helion.kernel
        def row_sum(x: torch.Tensor) -> torch.Tensor:
            m, n = x.size()
            out = torch.empty([m], dtype=x.dtype, device=x.device)
            block = hl.register_block_size(n)
            for tile_m in hl.tile(m):
                acc = hl.zeros([tile_m, block])
                for tile_n in hl.tile(n, block_size=block):
                    acc += x[tile_m, tile_n]
                out[tile_m] = acc.sum(-1)
            return out

        row_sum(torch.randn(10, 30))
    """


@declare("host")
def specialize(value: _T) -> _T:
    """Make a size, a stride or a number argument, or a sequence of them, a compile-time constant.

    The kernel is compiled once per value. With ``static_shapes=True`` sizes and strides are constants already.

    Returns:
        The value.

    Raises:
        exc.SpecializeOnDevice: called in device code.
        exc.SpecializeArgType: the value depends on more than sizes, strides and numbers of the arguments.

    Example::

        @helion.kernel(static_shapes=False)
        def row_norm(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            n = hl.specialize(x.size(1))
            for tile in hl.tile(x.size(0)):
                out[tile, :] = x[tile, :] / (x[tile, :].abs().sum(-1, keepdim=True) / n)
            return out

        row_norm(torch.randn(10, 30))
    """


# --- eager references ---------------------------------------------------------------------------------------------------


@reference(register_block_size, "raw")
def _register_block_size(min_or_max: Any, max: Any = None, /) -> int:
    """Return the maximum by default, so that a loop over that many elements is one tile."""
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
