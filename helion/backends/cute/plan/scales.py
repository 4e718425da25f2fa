"""Factors of blocks of K: what the products of a block are multiplied by before they are added up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Side = Literal["row", "column"]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A tensor of factors: for row, or column, ``x`` of D and block ``b`` of K element ``x // lines * pitch + b * k_pitch``.

    ``lines`` rows, or columns, share a factor. With ``whole`` all of a tile do, whatever it covers, so that it may cover no
    more than these.
    """

    name: str
    side: Side
    dtype: str
    pitch: int
    k_pitch: int
    lines: int = 1
    whole: bool = False

    @property
    def label(self) -> str:
        """Its name in the text, unlike any of the kernel's own."""
        return f"{self.name}_scale"


@dataclass(frozen=True, kw_only=True)
class BlockScales:
    """The factors of blocks of ``k`` elements of K, at most one per row of D and one per column."""

    k: int
    factors: tuple[Scale, ...]

    def of(self, side: Side) -> Scale | None:
        return next((factor for factor in self.factors if factor.side == side), None)
