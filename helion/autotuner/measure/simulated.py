"""A device that is not there: times from a function, with noise and failures."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import Random

from ...config import Config
from ..outcome import Outcome, Status
from .statistics import Samples, certain_order

#: Runs of each of the leaders when they are told apart.
_ROUNDS, _RUNS = 20, 5


class SimulatedDevice:
    """``times`` gives the microseconds of a config, ``noise`` the standard deviation of the logarithm of each run.

    ``failures`` say of configs what becomes of them instead. Repeatable by ``seed``.
    """

    def __init__(
        self,
        times: Callable[[Config], float],
        *,
        noise: float = 0.0,
        failures: Callable[[Config], Status | None] = lambda config: None,
        seed: int = 0,
        capacity: int = 1,
    ) -> None:
        self.capacity = capacity
        self.started: list[Config] = []
        self._times = times
        self._noise = noise
        self._failures = failures
        self._rng = Random(seed)
        self._waiting: deque[Config] = deque()

    def start(self, config: Config) -> None:
        self.started.append(config)
        self._waiting.append(config)

    def finish(self) -> Outcome:
        config = self._waiting.popleft()
        failure = self._failures(config)
        if failure is not None:
            return Outcome(config=config, status=failure, detail="simulated")
        return Outcome(config=config, status=Status.OK, microseconds=self._run(config), compile_seconds=0.0)

    def confirm(self, configs: Sequence[Config]) -> Mapping[Config, float]:
        working = [config for config in configs if self._failures(config) is None]
        samples = {config: Samples() for config in working}
        return certain_order(samples, lambda config: [self._run(config) for _ in range(_RUNS)], _ROUNDS)

    def close(self) -> None:
        self._waiting.clear()

    def _run(self, config: Config) -> float:
        return self._times(config) * math.exp(self._rng.gauss(0.0, self._noise))
