"""Keys that distinguish constants by type and by bits, as compiled code depends on them.

``==`` is no measure for that: 0.0 equals -0.0, 1 equals True and 1.0, and NaN does not equal itself.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import struct
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch

_BITS = struct.Struct("<d")
#: Types of which equal values have equal bits.
_EXACT = frozenset((int, bool, str, bytes, type(None), torch.dtype, torch.device))
#: Types of constants without an identity of their own: an equal, newly made one leads to the same code.
PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.Size,
    np.generic,
    enum.Enum,
)


def float_key(value: float) -> Hashable:
    """Return the type and the bits of a float."""
    return (type(value), value.hex() if value == value else _BITS.pack(value).hex())


def exact_key(value: Any, other: Callable[[Any], Hashable] | None = None) -> Hashable:
    """Return a key that two constants share only if no code can distinguish them: types, bits, and those of all parts.

    Args:
        value: numbers, strings, enums, dtypes, and tuples, lists, dicts, sets, ranges, slices and dataclasses of them.
        other: makes the key of anything else; without it that is type and value, which must be hashable then.
    """
    kind = type(value)
    if kind in _EXACT:
        return (kind, value)
    if isinstance(value, enum.Enum):  # equal members of other classes are others
        return (kind, value.name, exact_key(value.value, other))
    if isinstance(value, np.generic):
        return (kind, str(value.dtype), value.tobytes())
    if isinstance(value, float):
        return float_key(value)
    if isinstance(value, complex):
        return (kind, float_key(value.real), float_key(value.imag))
    part = functools.partial(exact_key, other=other)
    if isinstance(value, (tuple, list)):
        return (kind, *map(part, value))
    if isinstance(value, dict):
        return (kind, *((part(k), part(v)) for k, v in value.items()))
    if isinstance(value, (set, frozenset)):
        return (kind, *sorted(map(part, value), key=repr))
    if isinstance(value, (range, slice)):
        return (kind, part(value.start), part(value.stop), part(value.step))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (kind, *(part(getattr(value, f.name)) for f in dataclasses.fields(value)))
    return (kind, value) if other is None else other(value)


def is_constant(value: Any) -> bool:
    """Return whether a constant has no identity of its own: a plain one, or a tuple, frozenset or range of such."""
    if isinstance(value, (tuple, frozenset)):
        return all(map(is_constant, value))
    return isinstance(value, (*PLAIN, range, slice))


def are_same(a: Any, b: Any) -> bool:
    """Return whether two constants have the same type and bits. Symbolic sizes count as the numbers they equal."""
    if a is b:
        return True
    if is_constant(a) and is_constant(b):
        return exact_key(a) == exact_key(b)
    return bool(a == b)


__all__ = ["PLAIN", "are_same", "exact_key", "float_key", "is_constant"]
