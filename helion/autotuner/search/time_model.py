"""Predicted times of configs for all searches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from ...config import Config
from ..proposal import Predict, Predicted

#: Predictions of distinct configs that are kept.
_KEPT = 20_000


class TimeModel(Protocol):
    """A prediction of times, and its features."""

    def fits(self, config: Config) -> bool:
        """Return whether a launch is possible."""
        ...

    def log_time(self, config: Config) -> float:
        """Return the natural logarithm of the predicted microseconds."""
        ...

    def features(self, config: Config) -> Sequence[float]:
        """Return further features that the time may depend on, scaled so that a relevant difference is about 1."""
        ...


class PredictedTime:
    """The backend's own prediction."""

    def __init__(self, predict: Predict) -> None:
        self._predict = predict
        self._known: dict[Config, Predicted] = {}

    def predicted(self, config: Config) -> Predicted:
        found = self._known.get(config)
        if found is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            found = self._known[config] = self._predict(config)
        return found

    def fits(self, config: Config) -> bool:
        return self.predicted(config).fits

    def log_time(self, config: Config) -> float:
        return math.log(max(self.predicted(config).time_us, 1e-3))

    def features(self, config: Config) -> Sequence[float]:
        predicted = self.predicted(config)
        waves = max(predicted.waves, 1e-6)
        return (
            math.log2(waves),
            math.ceil(waves) / waves if waves > 1 else 1.0,
            predicted.registers_per_thread / predicted.register_limit,
            predicted.spill_risk,
            math.log2(predicted.occupancy_blocks + 0.5),
            math.log2(predicted.shared_bytes + 1024),
        )
