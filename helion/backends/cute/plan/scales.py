"""Scales of blocks of K: multiply the partial sum of a block before it is accumulated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Side = Literal["row", "column"]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A tensor of scales. Row or column ``x`` of D and block ``b`` of K use element ``x // lines * pitch + b *
    k_pitch``.

    ``lines`` rows, or columns, share a scale. With ``whole`` all of a tile share one, so a tile may cover no more than
    ``lines``.
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
        """Its name in generated code, distinct from the kernel's own names."""
        return f"{self.name}_scale"


@dataclass(frozen=True, kw_only=True)
class BlockScales:
    """The scales of blocks of ``k`` elements of K, at most one per row of D and one per column."""

    k: int
    factors: tuple[Scale, ...]

    def of(self, side: Side) -> Scale | None:
        return next((factor for factor in self.factors if factor.side == side), None)
