"""Pattern search: moves from the best configs to their neighbors as long as that helps."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ...config import Config
from ..outcome import Outcome
from .domain import Domain

#: Number of the fastest configs that are expanded at once.
_COPIES = 2
#: Neighbors of one config that are tried before it is dropped, those along keys of most weight first.
_STEPS = 40
#: Random configs to begin with if there are no seeds.
_DRAWN = 4


class PatternSearch:
    """Search that begins with the seeds, or some random configs without any.

    Then it expands the neighbors of the fastest configs.
    """

    def __init__(self, domain: Domain, seed: int) -> None:
        self._domain = domain
        rng = Random(seed)
        drawn = (domain.random(rng) for _ in range(0 if domain.seeds else _DRAWN))
        self._queue: list[Config] = [*domain.seeds, *(config for config in drawn if config is not None)]
        self._given: set[Config] = set()
        self._waiting = 0
        self._times: dict[Config, float] = {}
        self._walked: set[Config] = set()

    def ask(self, count: int) -> Sequence[Config]:
        given: list[Config] = []
        while len(given) < count:
            if not self._queue and (self._waiting or given or not self._advance()):
                break
            config = self._queue.pop(0)
            if config not in self._given:
                self._given.add(config)
                given.append(config)
        self._waiting += len(given)
        return given

    def tell(self, outcome: Outcome) -> None:
        self._waiting -= 1
        if outcome.microseconds is not None:
            if self._walked and outcome.microseconds < min(self._times.values()):
                self._queue.clear()  # go on from here at once
            self._times[outcome.config] = outcome.microseconds

    def _advance(self) -> bool:
        """Queue the neighbors of the fastest configs; return whether any was left to expand."""
        fastest = sorted(self._times, key=self._times.__getitem__)[:_COPIES]
        fresh = [config for config in fastest if config not in self._walked]
        for config in fresh:
            self._walked.add(config)
            around = (other for other in self._domain.neighbours(config) if other not in self._given)
            self._queue += [other for other, _ in zip(around, range(_STEPS), strict=False)]
        return bool(self._queue) or (bool(fresh) and self._advance())
