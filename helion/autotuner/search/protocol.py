"""Protocol of searches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...config import Config
from ..outcome import Outcome


class Search(Protocol):
    """Deterministic search: the same outcomes lead to the same configs.

    Several configs may be in flight at once; outcomes are reported in the order in which the configs were given.
    """

    def ask(self, count: int) -> Sequence[Config]:
        """Return at most ``count`` new configs; none when it has no more, or waits for outcomes."""
        ...

    def tell(self, outcome: Outcome) -> None:
        """Report the outcome of a config it gave."""
        ...
