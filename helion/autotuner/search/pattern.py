"""Pattern search: walks from the best configs to their neighbours as long as that helps."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ...config import Config
from ..outcome import Outcome
from .domain import Domain

#: How many of the fastest configs are walked from at once.
_COPIES = 2
#: Neighbours of one config that are tried before it is given up, those along keys of most weight first.
_STEPS = 40
#: Random configs to begin with where there are no seeds.
_DRAWN = 4


class PatternSearch:
    """The seeds, or some random configs where there are none; then neighbours of the fastest that are not yet looked
    around."""

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
        """Queues what is around the fastest configs; whether there was any left to look around."""
        fastest = sorted(self._times, key=self._times.__getitem__)[:_COPIES]
        fresh = [config for config in fastest if config not in self._walked]
        for config in fresh:
            self._walked.add(config)
            around = (other for other in self._domain.neighbours(config) if other not in self._given)
            self._queue += [other for other, _ in zip(around, range(_STEPS), strict=False)]
        return bool(self._queue) or (bool(fresh) and self._advance())
