"""A simulated device: times from a function, with noise, failures, and all that makes real times misleading."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from ...config import Config
from ..outcome import Outcome, Status
from .runs import Run, in_turns, samples


@dataclass(frozen=True, kw_only=True)
class Disturbances:
    """Effects of a device on times of kernels; none by default.

    ``noise`` is the standard deviation of the logarithm of each run. ``placement`` is that of all runs of a config
    until it is prepared again. An idle device takes ``cold`` times as long, decreasing until ``ramp`` seconds of work
    have passed. ``drift`` is the relative growth of times per second. In a slow state times are ``slow`` times as long;
    the state changes every ``dwell`` seconds on average. ``tail`` is the probability of a run that takes 1 to 10 times
    as long. ``step`` is the resolution of the clock in microseconds.
    """

    noise: float = 0.0
    placement: float = 0.0
    cold: float = 1.0
    ramp: float = 0.01
    drift: float = 0.0
    slow: float = 1.0
    dwell: float = 0.02
    tail: float = 0.0
    step: float = 0.0


#: Seconds to flush the caches and launch before each run.
_BETWEEN = 90e-6


class SimulatedDevice:
    """Simulated evaluator; ``times`` returns the microseconds of a config.

    ``failures`` returns the failed outcome of a config, if any. Repeatable by ``seed``. ``now`` are the seconds that
    the device has worked; before each config it is idle.
    """

    def __init__(
        self,
        times: Callable[[Config], float],
        *,
        noise: float = 0.0,
        disturbances: Disturbances | None = None,
        failures: Callable[[Config], Status | None] = lambda config: None,
        seed: int = 0,
        capacity: int = 1,
    ) -> None:
        self.capacity = capacity
        self.waited = 0.0
        self.started: list[Config] = []
        self.now = 0.0
        self._disturbances = Disturbances(noise=noise) if disturbances is None else disturbances
        self._times = times
        self._failures = failures
        self._rng = Random(seed)
        self._waiting: deque[Config] = deque()
        self._warm = 0.0
        self._slow = False
        self._drift = self._rng.choice((-1.0, 1.0)) * self._disturbances.drift

    def start(self, config: Config) -> None:
        self.started.append(config)
        self._waiting.append(config)

    def finish(self) -> Outcome:
        config = self._waiting.popleft()
        failure = self._failures(config)
        if failure is not None:
            return Outcome(config=config, status=failure, detail="simulated")
        self._warm = 0.0  # the device was idle while it was compiled
        time = statistics.median(samples(self._prepared(config), math.inf, self.clock))
        return Outcome(config=config, status=Status.OK, microseconds=time, compile_seconds=0.0)

    def rounds(self, configs: Sequence[Config], count: int) -> Sequence[Mapping[Config, float]]:
        working = [config for config in configs if self._failures(config) is None]
        if not working:
            return []
        rows = in_turns([self._prepared(config) for config in working], count, self._rng, self.clock)
        return [dict(zip(working, row, strict=True)) for row in rows]

    def close(self) -> None:
        self._waiting.clear()

    def clock(self) -> float:
        """Return the seconds that the device has worked."""
        return self.now

    def _prepared(self, config: Config) -> Run:
        time = self._times(config) * math.exp(self._rng.gauss(0.0, self._disturbances.placement))
        return lambda: self._run(time)

    def _run(self, time: float) -> float:
        known, rng = self._disturbances, self._rng
        share = max(0.0, 1.0 - self._warm / known.ramp)
        factor = math.exp(rng.gauss(0.0, known.noise)) * (1.0 + (known.cold - 1.0) * share)
        factor *= math.exp(self._drift * self.now) * (known.slow if self._slow else 1.0)
        if rng.random() < known.tail:
            factor *= 10.0 ** rng.random()
        took = 1e-6 * time * factor
        spent = took + _BETWEEN
        self._slow ^= rng.random() < 1.0 - math.exp(-spent / known.dwell)
        self._warm += spent
        self.now += spent
        return max(round(1e6 * took / known.step), 1) * known.step if known.step else 1e6 * took
