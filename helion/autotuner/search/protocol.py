"""What a search is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...config import Config
from ..outcome import Outcome


class Search(Protocol):
    """Deterministic: the same answers to the same questions give the same questions.

    Several configs may be under way at once; outcomes are told in the order in which the configs were given.
    """

    def ask(self, count: int) -> Sequence[Config]:
        """At most ``count`` configs that were not given before; none when it has no more, or waits for outcomes."""
        ...

    def tell(self, outcome: Outcome) -> None:
        """What became of a config it gave."""
        ...
