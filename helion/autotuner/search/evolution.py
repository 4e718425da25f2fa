"""Differential evolution: configs of a population move by the differences of others."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ...config import Config
from ..outcome import Outcome
from .domain import Domain

_POPULATION = 20
#: Consecutive draws without a new config, after which configs are drawn at random, and after which the search ends.
_STUCK, _PATIENCE = 8, 200


class DifferentialEvolution:
    """Search that begins with the seeds and random configs. A config that is faster than its parent replaces it."""

    def __init__(self, domain: Domain, seed: int, population: int = _POPULATION) -> None:
        self._domain = domain
        self._rng = Random(seed)
        self._size = population
        self._first = list(domain.seeds)
        self._given: set[Config] = set()
        self._parents: dict[Config, Config | None] = {}
        self._population: dict[Config, float] = {}

    def ask(self, count: int) -> Sequence[Config]:
        given: list[Config] = []
        fruitless = 0
        while len(given) < count and fruitless < _PATIENCE:
            parent, config = self._drawn(fruitless)
            if config is None or config in self._given:
                fruitless += 1
                continue
            self._given.add(config)
            self._parents[config] = parent
            given.append(config)
        return given

    def tell(self, outcome: Outcome) -> None:
        parent = self._parents.pop(outcome.config, None)
        if outcome.microseconds is None:
            return
        if parent is None or parent not in self._population:
            self._population[outcome.config] = outcome.microseconds
        elif outcome.microseconds < self._population[parent]:
            del self._population[parent]
            self._population[outcome.config] = outcome.microseconds
        if len(self._population) > self._size:
            slowest = max(self._population, key=self._population.__getitem__)
            del self._population[slowest]

    def _drawn(self, fruitless: int) -> tuple[Config | None, Config | None]:
        """Return a config to try, and the one it may replace."""
        if self._first:
            return None, self._first.pop(0)
        if len(self._given) < self._size or len(self._population) < 4 or fruitless > _STUCK:
            return None, self._domain.random(self._rng)
        target, base, plus, minus = self._rng.sample(list(self._population), 4)
        if self._rng.random() < 0.5:
            base = min(self._population, key=self._population.__getitem__)
        moved = self._domain.differed(base, plus, minus, self._rng)
        return target, moved if moved != base else self._domain.mutated(base, self._rng)
