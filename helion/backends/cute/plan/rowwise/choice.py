"""The tunable decisions of a row kernel."""

from __future__ import annotations

from typing import Literal

from ....._support.records import dataclass

Keep = Literal["registers", "shared"]

WARP_LANES = 32
OVERLAPPED_ROWS = 2
"""Rows that are reduced before a row is mapped, where both overlap: messages of one have as long as another takes."""
MOST_LOADED_CTAS = 8
"""CTAs of an SM up to which each has a warp that loads rows."""
WARPGROUP = 4
"""Warps whose registers change together (PTX ISA, ``setmaxnreg``)."""
LOAD_REGISTERS = 24
"""Registers of a thread of the warpgroup that loads rows, if warps of rows have the others: the fewest that ptxas takes."""


@dataclass(frozen=True, kw_only=True)
class RowChoice:
    """The tunable decisions of a config.

    ``cluster`` CTAs hold a row, in ``warps`` warps each. A CTA works on ``rows`` rows at a time. ``ctas_per_sm`` CTAs
    share an SM. Between passes a row stays in ``registers``, or in its chunks in ``shared`` memory. With ``ahead``, warps
    reduce the next row before they await the exchange of a row. With ``overlap``, they reduce the row after that one while
    they map a row, so that none waits for the chain of steps of another.
    """

    cluster: int = 1
    warps: int = 8
    rows: int = 1
    ctas_per_sm: int = 2
    keep: Keep = "registers"
    ahead: bool = False
    overlap: bool = False

    @property
    def rows_ahead(self) -> int:
        """Rows that are reduced before the messages of a row are awaited."""
        return OVERLAPPED_ROWS if self.overlap else int(self.ahead)

    @property
    def loads_itself(self) -> bool:
        """True if the one warp of a CTA loads its rows: a warp for loads would take half of the registers."""
        return self.ctas_per_sm > MOST_LOADED_CTAS

    @property
    def row_threads(self) -> int:
        """The threads of a CTA's rows."""
        return self.rows * WARP_LANES * self.warps

    @property
    def load_warps(self) -> int:
        """The warps that precede those of the rows: one that loads them, unless each loads its own."""
        return 0 if self.loads_itself else 1
