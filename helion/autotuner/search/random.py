"""Configs drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ...config import Config
from ..outcome import Outcome
from .domain import Domain

#: Consecutive draws without a new config, after which the domain counts as exhausted.
_PATIENCE = 200


class RandomSearch:
    """Search that draws at random. With ``seeded`` the seeds of the domain come first."""

    def __init__(self, domain: Domain, seed: int, *, seeded: bool = True) -> None:
        self._domain = domain
        self._rng = Random(seed)
        self._first = list(domain.seeds) if seeded else []
        self._given: set[Config] = set()

    def ask(self, count: int) -> Sequence[Config]:
        given: list[Config] = []
        fruitless = 0
        while len(given) < count and fruitless < _PATIENCE:
            config = self._first.pop(0) if self._first else self._domain.random(self._rng)
            if config is None or config in self._given:
                fruitless += 1
                continue
            self._given.add(config)
            given.append(config)
        return given

    def tell(self, outcome: Outcome) -> None:
        pass
