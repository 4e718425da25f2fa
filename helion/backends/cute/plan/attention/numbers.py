"""Integers of attention that are known only at launch, and the problem of one launch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from ..dtypes import SIZE

T = TypeVar("T")


class LaunchInt(int):
    """An integer that each launch passes as ``name``. Its value is that of the arguments which the kernel was bound to.

    ``kind`` is ``SIZE``, of 32 bits, or ``PITCH``, of 64. Those of one program are equal if they have one name: then they are
    equal in every launch. Those of plans for other bound arguments differ. None equals a plain integer. Arithmetic uses the
    value, and gives a plain integer.
    """

    name: str
    kind: str

    def __new__(cls, example: int, name: str, kind: str = SIZE) -> LaunchInt:
        made = super().__new__(cls, example)
        made.name, made.kind = name, kind
        return made

    def __getnewargs__(self) -> tuple[int, str, str]:  # type: ignore[override]
        return int(self), self.name, self.kind

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LaunchInt) and (self.name, int(self)) == (other.name, int(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self.name, int(self)))

    def __repr__(self) -> str:
        return f"LaunchInt({int(self)}, {self.name!r}, {self.kind!r})"


def is_known(number: int | None) -> bool:
    """Return whether a number is the same in every launch."""
    return not isinstance(number, LaunchInt)


def text_of(number: int) -> str:
    """Return a number in generated code: digits, or the name of one that is known only at launch."""
    return number.name if isinstance(number, LaunchInt) else str(number)


def launch_integers(record: object) -> tuple[LaunchInt, ...]:
    """Return the integers of a record that are known only at launch, each once, in the order of its fields."""
    return tuple(dict.fromkeys(_integers(record)))


def _integers(value: object) -> Iterator[LaunchInt]:
    if isinstance(value, LaunchInt):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _integers(each)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _integers(getattr(value, field.name))


def filled(record: T, numbers: Mapping[str, int]) -> T:
    """Return a record with the integers of one launch, by name."""
    value: Any = record
    if isinstance(value, LaunchInt):
        value = numbers[value.name]
    elif isinstance(value, tuple):
        value = tuple(filled(each, numbers) for each in value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        value = dataclasses.replace(value, **{name: filled(each, numbers) for name, each in fields.items()})
    found: T = value
    return found
