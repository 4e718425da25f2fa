"""The keys that a query sees by its position."""

from __future__ import annotations

from ....._support.records import dataclass
from .numbers import text_of
from .operands import Place, text_without


@dataclass(frozen=True, kw_only=True, repr=False)
class Band:
    """The keys that a query sees: ``first`` <= key - query - ``shift`` <= ``last``, where None is no bound, or no shift.

    Keys below ``prefix`` are seen whatever the last one is. Keys before the query's own ``chunk`` are not seen, where that is
    not 0: chunks begin at its multiples. The query is the row, or the row modulo ``period`` where the heads of a group are
    rows of one tile.
    """

    first: int | None = None
    last: int | None = None
    shift: Place | None = None
    period: int = 0
    prefix: Place | None = None
    chunk: int = 0

    def __repr__(self) -> str:
        return text_without(self, [name for name in ("period", "prefix", "chunk") if not getattr(self, name)])

    @property
    def is_whole(self) -> bool:
        return (self.first, self.last, self.chunk) == (None, None, 0)

    @property
    def has_first(self) -> bool:
        return self.first is not None or self.chunk != 0

    def first_of(self, query: str) -> str:
        """Return the text of the first key that a query sees."""
        bounds = [] if self.first is None else [f"{query} + {text_of(self.first)}{' + shift' if self.shift else ''}"]
        bounds += [f"({query}) // {text_of(self.chunk)} * {text_of(self.chunk)}"] if self.chunk else []
        return bounds[0] if len(bounds) == 1 else f"cutlass.max({', '.join(bounds)})"

    def last_of(self, query: str) -> str:
        """Return the text of the last key of a query."""
        assert self.last is not None
        last = f"{query} + {text_of(self.last)}{' + shift' if self.shift else ''}"
        return f"cutlass.max({last}, prefix - 1)" if self.prefix else last

    def query(self, row: str) -> str:
        """Return the text of the query of a row."""
        return f"({row}) % {self.period}" if self.period else row

    def queries_of(self, tile: str, rows: int) -> tuple[str, int]:
        """Return the text of the first query of a tile of ``rows``, and the number of its queries."""
        return ("0", self.period) if self.period else (f"{tile} * {rows}", rows)
