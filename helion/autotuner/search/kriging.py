"""What times of other configs say of one: a Gaussian process about the predicted times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Distances, in steps of a config's keys, over which times lose most of what they have in common: half of it between near
#: configs already, half of it between far ones. With these two the best of the kept sweeps is found in 30 evaluations and, of
#: 260 cells, random search is ahead in one, by 0.1 %; with one length of 3 it is in two (test/autotuner/test_replay.py).
_LENGTHS = (2.0, 8.0)
#: Times are known to about 5 % of how far they differ from each other, and configs are assumed to differ by at least 5 %.
_NUGGET = 1e-3
_LEAST_SPREAD = 0.05
#: The spread that is assumed of predictions while nothing can be told from one or two measured times.
_FIRST_SPREAD = 0.3
#: How much is known of predictions beforehand: as much as from pairs of times whose squared logarithms sum up to this. Of
#: 0.1, 0.3, 1 and 3 the one that comes nearest to optima which predictions do not know of (test/autotuner/test_search.py), at
#: no loss on the kept sweeps.
_TRUST = 0.3
#: The standard deviation of the slope beforehand: half of a difference that is predicted may be none. In the kept sweeps a
#: config that is predicted to take 3.4 times as long as the best of the others, for want of registers, is faster than it.
_DOUBT = 0.5
#: Observations beyond which only the fastest are used, so that a fit stays below a few milliseconds.
_MOST = 300

Array = Any


@dataclass(frozen=True)
class Kriging:
    """Fitted to observed natural logarithms of times, whose predictions are the mean it starts from."""

    features: Array
    slope: float
    slope_deviation: float
    middle: float
    offset: float
    spread: float
    inverse: Array
    weights: Array

    @classmethod
    def fitted(cls, features: Array, predicted: Array, observed: Array) -> Kriging:
        """``features`` are a row per observation; at least one."""
        if len(observed) > _MOST:
            kept = np.argsort(observed, kind="stable")[:_MOST]
            features, predicted, observed = features[kept], predicted[kept], observed[kept]
        slope = _slope(predicted, observed)
        errors = observed - slope * predicted
        offset = float(errors.mean())
        spread = max(float(errors.std()) if len(errors) > 2 else _FIRST_SPREAD, _LEAST_SPREAD)
        middle = float(predicted.mean())
        seen = float(((predicted - middle) ** 2).sum()) / spread**2
        covariance = _covariance(features, features) + _NUGGET * np.eye(len(errors))
        inverse = np.linalg.inv(covariance)
        deviation = 1.0 / math.sqrt(1.0 / _DOUBT**2 + seen)
        return cls(features, slope, deviation, middle, offset, spread, inverse, inverse @ (errors - offset))

    def at(self, features: Array, predicted: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of the logarithms of times, a number per row."""
        across = _covariance(features, self.features)
        mean = self.slope * predicted + self.offset + across @ self.weights
        explained = np.einsum("ij,jk,ik->i", across, self.inverse, across, optimize=True)
        return mean, self.spread * np.sqrt(np.maximum(1.0 - explained, 1e-9))

    def doubt(self, predicted: Array) -> Array:
        """The standard deviation that comes from how far predictions are from those whose times are known."""
        return self.slope_deviation * np.abs(predicted - self.middle)


def _slope(predicted: Array, observed: Array) -> float:
    """How much of the predicted differences is seen in times, from 0 (nothing) to 1 (all), which is assumed at first."""
    about = predicted - predicted.mean()
    seen = float(about @ (observed - observed.mean()))
    return min(max((seen + _TRUST) / (float(about @ about) + _TRUST), 0.0), 1.0)


def _covariance(a: Array, b: Array) -> Array:
    squared = (a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2.0 * a @ b.T
    distance = np.sqrt(np.maximum(squared, 0.0))
    parts = [np.exp(-distance / length) for length in _LENGTHS]
    return sum(parts[1:], parts[0]) / len(parts)


def expected_improvement(mean: Array, deviation: Array, best: float) -> Array:
    """By how much, on average, a config is below ``best``; what is above counts as nothing."""
    z = (best - mean) / deviation
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in z])
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return deviation * (z * below + density)


def stacked(rows: Sequence[Sequence[float]]) -> Array:
    """Rows of numbers as a matrix."""
    return np.array(rows, dtype=np.float64).reshape(len(rows), -1)
