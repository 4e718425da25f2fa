"""Shared memory of a part of a kernel, with the dots between which it is in use."""

from __future__ import annotations

from ...._support.records import dataclass


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Bytes of another use in ``region``, live after ``after`` dots, or with None anywhere in the region.

    ``boxed``: it is a store with a descriptor, whose own buffer needs no conversion.
    """

    region: int
    size: int
    after: int | None = None
    boxed: bool = False


@dataclass(frozen=True, kw_only=True)
class Passing:
    """A transient buffer in ``region``, live from after dot ``after`` - 1 to dot ``until``, which is in region
    ``used``.

    ``lasting``: the dot may not complete before later loops run.
    """

    region: int
    after: int
    until: int
    used: int
    size: int
    lasting: bool


def peak(passing: list[Passing], dots: int) -> int:
    """Return the most bytes live at the same one of ``dots``."""
    if not passing:
        return 0
    return max([sum([p.size for p in passing if p.after <= number <= p.until]) for number in range(dots)], default=0)
