"""What is fixed at compile time: constants, specialized sizes, registered block sizes."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from ._registry import declare

_T = TypeVar("_T")


class ConstExpr(Generic[_T]):
    """A compile-time constant argument: annotate a parameter with ``hl.constexpr``, or pass ``hl.constexpr(value)``.

    The value becomes part of the specialization key, and branches on it are resolved when compiling.
    """

    __slots__ = ("value",)

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


constexpr = ConstExpr


@declare("host")
def register_block_size(min_or_max: Any, max: Any = None, /) -> Any:
    """A block size, ``register_block_size(max)`` or ``register_block_size(min, max)``, to pass as ``block_size=`` or as a size.

    Loops that share it share one entry of ``block_sizes``.
    """


@declare("host")
def specialize(value: Any) -> Any:
    """Make a size, a stride or a number argument (or a sequence of them) a compile-time constant.

    Raises ``exc.SpecializeOnDevice`` in device code and ``exc.SpecializeArgType`` for anything else.
    """
