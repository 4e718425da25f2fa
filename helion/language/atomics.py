"""Atomic read-modify-write of host tensors. Each returns the values from before, as a tile of the selected shape.

``value`` is a number or a tile that broadcasts to the selected shape, cast to the tensor's dtype. ``sem`` is
``relaxed``, ``acquire``, ``release`` or ``acq_rel``. Lanes out of range do nothing. Raises ``exc.AtomicOnDeviceTensor``
when the target is a device value.
"""

from __future__ import annotations

from typing import Any

from ._registry import declare


@declare("device")
def atomic_add(target: Any, index: list[Any], value: Any, sem: str = "relaxed") -> Any:
    """``target[index] += value``."""


@declare("device")
def atomic_max(target: Any, index: list[Any], value: Any, sem: str = "relaxed") -> Any:
    """``target[index] = max(target[index], value)``."""


@declare("device")
def atomic_min(target: Any, index: list[Any], value: Any, sem: str = "relaxed") -> Any:
    """``target[index] = min(target[index], value)``."""


@declare("device")
def atomic_and(target: Any, index: list[Any], value: Any, sem: str = "relaxed") -> Any:
    """``target[index] &= value``, for integers and bools."""


@declare("device")
def atomic_or(target: Any, index: list[Any], value: Any, sem: str = "relaxed") -> Any:
    """``target[index] |= value``, for integers and bools."""


@declare("device")
def atomic_xor(target: Any, index: list[Any], value: Any, sem: str = "relaxed") -> Any:
    """``target[index] ^= value``, for integers and bools."""


@declare("device")
def atomic_xchg(target: Any, index: list[Any], value: Any, sem: str = "relaxed") -> Any:
    """``target[index] = value``."""


@declare("device")
def atomic_cas(target: Any, index: list[Any], expected: Any, value: Any, sem: str = "relaxed") -> Any:
    """``target[index] = value`` where ``target[index] == expected``."""
