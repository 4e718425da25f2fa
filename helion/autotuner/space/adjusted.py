"""Differences between a requested config and the normalized one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..._support.records import dataclass
from .fields import Field, PerSlot


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """A key, or entries at the end of a list, that a kernel does not have with these arguments."""

    what: str
    asked: Any
    why: str

    def __str__(self) -> str:
        return f"{self.what}={self.asked!r} is dropped: {self.why}"


@dataclass(frozen=True, kw_only=True)
class Adjustment:
    """A changed value; ``what`` is a key or an entry of one."""

    what: str
    asked: Any
    got: Any
    why: str

    def __str__(self) -> str:
        return f"{self.what} is {self.got!r}, not {self.asked!r}: {self.why}"


#: The full config after a step of normalization, and the reason for the step's changes.
Snapshot = tuple[str, Mapping[str, Any]]


def adjustments(
    fields: Iterable[Field], asked: Mapping[str, Any], snapshots: Sequence[Snapshot]
) -> tuple[Adjustment, ...]:
    """List the entries of keys in ``asked`` that differ after the last of ``snapshots``."""
    found = []
    for field in fields:
        if field.key not in asked:
            continue
        values = [(why, values[field.key]) for why, values in snapshots]
        if not isinstance(field, PerSlot):
            found += _adjusted(field.key, asked[field.key], values)
            continue
        for at, slot in enumerate(field.slots[: len(asked[field.key])]):
            what = f"{field.key}[{at}]{f' ({slot.name})' if slot.name else ''}"
            reasons = [slot.remedy or values[0][0], *(why for why, _ in values[1:])]
            steps = [(why, entries[at]) for why, (_, entries) in zip(reasons, values, strict=True)]
            found += _adjusted(what, asked[field.key][at], steps)
    return tuple(found)


def _adjusted(what: str, asked: Any, values: Sequence[tuple[str, Any]]) -> list[Adjustment]:
    got = values[-1][1]
    if got == asked:
        return []
    before = (asked, *(value for _, value in values))
    why = next(why for (why, value), was in zip(reversed(values), reversed(before[:-1]), strict=True) if value != was)
    return [Adjustment(what=what, asked=asked, got=got, why=why)]
