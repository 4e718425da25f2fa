"""Axes of the loops that split-K distributes."""

from __future__ import annotations

from ...._support.records import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitFact:
    """The ``axis`` of the split loop, and the axes of the loops after it that programs then also share."""

    axis: int
    epilogue: tuple[int, ...]


__all__ = ["SplitFact"]
