"""Search by a model of the measured times, and pruning by the same model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import numpy as np

from ...config import Config
from ..outcome import Outcome, Status
from .domain import Domain
from .kriging import Kriging, expected_improvement, stacked
from .protocol import Search

#: Ratio of the predicted time to the best, from which a config is not compiled.
HOPELESS = 3.0
#: Measured times needed before a config is dropped for its prediction.
_TRUSTED = 8
#: Consecutive dropped configs that end a search.
_DROPPED = 50
#: A failed config counts as this many times as slow as the slowest success.
_FAILED = 2.0
#: Candidates that are drawn at first, and for each config given after that. Drawing one takes about 0.5 ms.
_FIRST_DRAWN, _DRAWN = 24, 2
#: Every second candidate is the next neighbor of one of this many of the fastest configs. The others are a few steps
#: from one of this many of them, and one in this many is anywhere. Optima that predictions miss end at 1.2 times their
#: time after 80 evaluations. With steps alone, around 5 configs and one in 4 anywhere, they end at 1.35
#: (test/autotuner/test_search.py).
_WALKED, _AROUND, _ANYWHERE = 2, 3, 8
#: Gains that differ by less than this ratio are ordered at random.
_TIE = 1e-3
#: Seeds that are tried before the model is used.
_SEEDS = 4


class Observations:
    """Observations for the model. Configs in flight count with their predicted time."""

    def __init__(self, domain: Domain) -> None:
        self._domain = domain
        self.times: dict[Config, float | None] = {}
        self.pending: list[Config] = []
        self._rows: dict[Config, tuple[Sequence[float], float]] = {}

    @property
    def best(self) -> float:
        """The natural logarithm of the least time; infinite before there is one."""
        return min((math.log(time) for time in self.times.values() if time is not None), default=math.inf)

    @property
    def worked(self) -> int:
        return sum(time is not None for time in self.times.values())

    def tell(self, outcome: Outcome) -> None:
        if outcome.config in self.pending:
            self.pending.remove(outcome.config)
        if outcome.status is not Status.PRUNED:
            self.times[outcome.config] = outcome.microseconds

    def model(self) -> Kriging | None:
        """Fit the model; None before any time is known."""
        logs = {config: math.log(time) for config, time in self.times.items() if time is not None}
        if not logs:
            return None
        slowest = max(logs.values()) + math.log(_FAILED)
        known = [(config, logs.get(config, slowest)) for config in self.times]
        model = self._fitted(known)
        if self.pending:
            believed, _ = model.at(*self.rows(self.pending))
            model = self._fitted([*known, *zip(self.pending, believed, strict=True)])
        return model

    def _fitted(self, known: Sequence[tuple[Config, float]]) -> Kriging:
        features, predicted = self.rows([config for config, _ in known])
        return Kriging.fitted(features, predicted, np.array([time for _, time in known]))

    def hopeless(self, log_time: Any) -> Any:
        """Return which predictions are too far from the best time."""
        return (self.worked >= _TRUSTED) & (log_time > self.best + math.log(HOPELESS))

    def rows(self, configs: Sequence[Config]) -> tuple[Any, Any]:
        """Return features of configs, a row for each, and the natural logarithms of their predicted times."""
        for config in configs:
            if config not in self._rows:
                self._rows[config] = self._domain.features(config), self._domain.log_time(config)
        rows = [self._rows[config] for config in configs]
        return stacked([features for features, _ in rows]), np.array([time for _, time in rows])


class SurrogateSearch:
    """Search that tries the first seeds, then the candidate with the largest expected improvement on the best.

    Candidates are all configs of a list; else seeds, mutations of the fastest and random configs, more of them as the
    search goes on.
    """

    def __init__(self, domain: Domain, seed: int) -> None:
        self._domain = domain
        self._rng = Random(seed)
        self._first = list(domain.seeds[:_SEEDS])
        self._candidates: dict[Config, None] = dict.fromkeys(domain.configs or domain.seeds)
        self._given: set[Config] = set()
        self._around: dict[Config, Iterator[Config]] = {}
        self._drawn = 0
        self._observed = Observations(domain)

    def ask(self, count: int) -> Sequence[Config]:
        given: list[Config] = []
        while len(given) < count:
            config = self._first.pop(0) if self._first else self._next()
            if config is None:
                break
            self._candidates.pop(config, None)
            if config not in self._given:
                self._given.add(config)
                self._observed.pending.append(config)
                given.append(config)
        return given

    def tell(self, outcome: Outcome) -> None:
        self._observed.tell(outcome)

    def _next(self) -> Config | None:
        self._draw(_DRAWN if self._given else _FIRST_DRAWN)
        candidates = list(self._candidates)
        if not candidates:
            return None
        model = self._observed.model()
        if model is None:
            return candidates[int(np.argmin(self._observed.rows(candidates)[1]))]
        features, predicted = self._observed.rows(candidates)
        mean, deviation = model.at(features, predicted)
        deviation = np.hypot(deviation, model.doubt(predicted))
        gain = expected_improvement(mean, deviation, self._observed.best)
        gain *= 1.0 + _TIE * np.array([self._rng.random() for _ in candidates])
        # the condition that ends the search must be certain
        hopeless = self._observed.hopeless(mean - 2.0 * deviation)
        at = int(np.argmax(np.where(hopeless, -1.0, gain)))
        return None if hopeless[at] else candidates[at]

    def _draw(self, count: int) -> None:
        """Draw more candidates, unless all of them are listed."""
        if self._domain.configs is not None:
            return
        worked = {config: time for config, time in self._observed.times.items() if time is not None}
        fastest = sorted(worked, key=worked.__getitem__)[:_AROUND] or list(self._domain.seeds)
        for _ in range(count):
            self._drawn += 1
            at, second = divmod(self._drawn, 2)
            config = self._neighbour(fastest[:_WALKED]) if second else self._anywhere(fastest, at)
            if config is not None and config not in self._given:
                self._candidates[config] = None

    def _neighbour(self, fastest: Sequence[Config]) -> Config | None:
        """Return the next neighbor of the fastest configs, those of the first one before those of others."""
        for config in fastest:
            around = self._around.setdefault(config, self._domain.neighbours(config))
            found = next(around, None)
            if found is not None:
                return found
        return None

    def _anywhere(self, fastest: Sequence[Config], at: int) -> Config | None:
        """Return a config some steps away from one of the fastest, between them, or anywhere, in turn."""
        if at % _ANYWHERE == 0 or not fastest:
            return self._domain.random(self._rng)
        if at % _ANYWHERE == 1 and len(fastest) > 2:
            base, plus, minus = self._rng.sample(fastest, 3)
            return self._domain.differed(base, plus, minus, self._rng)
        return self._domain.mutated(self._rng.choice(fastest), self._rng)


class Pruned:
    """Wrapper of a search that drops configs predicted to be ``HOPELESS`` times as slow as the best.

    The search gets a pruned outcome for them.
    """

    def __init__(self, inner: Search, domain: Domain) -> None:
        self._inner = inner
        self._observed = Observations(domain)

    def ask(self, count: int) -> Sequence[Config]:
        given: list[Config] = []
        model = self._observed.model()
        dropped = 0
        while len(given) < count and dropped < _DROPPED:
            asked = self._inner.ask(count - len(given))
            if not asked:
                break
            for config in asked:
                if model is not None and self._is_hopeless(model, config):
                    dropped += 1
                    self._inner.tell(self._dropped(config))
                else:
                    given.append(config)
        return given

    def tell(self, outcome: Outcome) -> None:
        self._observed.tell(outcome)
        self._inner.tell(outcome)

    def _is_hopeless(self, model: Kriging, config: Config) -> bool:
        mean, _ = model.at(*self._observed.rows([config]))
        return bool(self._observed.hopeless(mean[0]))

    def _dropped(self, config: Config) -> Outcome:
        why = f"predicted to take over {HOPELESS:g} times the best"
        return Outcome(config=config, status=Status.PRUNED, detail=why)
