"""Prediction of a config's time from those of others: a Gaussian process with the predicted times as its mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Correlation lengths of times, in steps of a config's keys: half of the correlation is lost between near configs, half
#: between far ones. With these two the best of the kept sweeps is found in 30 evaluations. Of 260 cells, random search
#: is better in one, by 0.1 %; with one length of 3, in two (test/autotuner/test_replay.py).
_LENGTHS = (2.0, 8.0)
#: Noise of times, about 5 % of their spread, and the least spread, which is assumed to be 5 %.
_NUGGET = 1e-3
_LEAST_SPREAD = 0.05
#: The assumed spread of predictions with only one or two measured times.
_FIRST_SPREAD = 0.3
#: Prior weight of predictions: that of pairs of times whose squared logarithms sum up to this. Of 0.1, 0.3, 1 and 3 it
#: gets nearest to optima that predictions miss (test/autotuner/test_search.py). It loses nothing on the kept sweeps.
_TRUST = 0.3
#: The prior standard deviation of the slope, and for each observation if that is more: a predicted difference may not
#: exist. In the kept sweeps some configs are predicted to take much longer than the best of the others because of
#: registers. They are faster than that one, and a search that has tried most others tries them (measurement
#: ``search_doubt``).
_DOUBT, _DOUBT_OF_EACH = 0.5, 0.12
#: Observations beyond which only the fastest are used, so that a fit stays below a few milliseconds.
_MOST = 300

Array = Any


@dataclass(frozen=True)
class Kriging:
    """Gaussian process fitted to the natural logarithms of observed times, with the predicted ones as prior mean."""

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
        """Fit a model; ``features`` has a row per observation, at least one."""
        if len(observed) > _MOST:
            kept = np.argsort(observed, kind="stable")[:_MOST]
            features, predicted, observed = features[kept], predicted[kept], observed[kept]
        slope = _slope(predicted, observed)
        errors = observed - slope * predicted
        offset = float(errors.mean())
        spread = max(float(errors.std()) if len(errors) > 2 else _FIRST_SPREAD, _LEAST_SPREAD)
        middle = float(predicted.mean())
        seen = float(((predicted - middle) ** 2).sum()) / spread**2
        inverse = np.linalg.inv(covariance(features, features) + _NUGGET * np.eye(len(errors)))
        doubt = max(_DOUBT, _DOUBT_OF_EACH * len(errors))
        deviation = 1.0 / math.sqrt(1.0 / doubt**2 + seen)
        return cls(features, slope, deviation, middle, offset, spread, inverse, inverse @ (errors - offset))

    def at(self, features: Array, predicted: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation of the logarithms of times, a number per row."""
        across = covariance(features, self.features)
        mean = self.slope * predicted + self.offset + across @ self.weights
        explained = np.einsum("ij,jk,ik->i", across, self.inverse, across, optimize=True)
        return mean, self.spread * np.sqrt(np.maximum(1.0 - explained, 1e-9))

    def doubt(self, predicted: Array) -> Array:
        """Return the standard deviation due to the distance of predictions from those with known times."""
        return self.slope_deviation * np.abs(predicted - self.middle)


def _slope(predicted: Array, observed: Array) -> float:
    """Return the fraction of predicted differences that times show, from 0 (none) to 1 (all, the prior)."""
    about = predicted - predicted.mean()
    seen = float(about @ (observed - observed.mean()))
    return min(max((seen + _TRUST) / (float(about @ about) + _TRUST), 0.0), 1.0)


def covariance(a: Array, b: Array) -> Array:
    """Return the correlation of errors of predicted times between rows of features: 1 for equal rows."""
    squared = (a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2.0 * a @ b.T
    distance = np.sqrt(np.maximum(squared, 0.0))
    parts = [np.exp(-distance / length) for length in _LENGTHS]
    return sum(parts[1:], parts[0]) / len(parts)


def expected_improvement(mean: Array, deviation: Array, best: float) -> Array:
    """Return the expected reduction below ``best``; times above it count as no reduction."""
    z = (best - mean) / deviation
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in z])
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return deviation * (z * below + density)


def stacked(rows: Sequence[Sequence[float]]) -> Array:
    """Stack rows of numbers to a matrix."""
    return np.array(rows, dtype=np.float64).reshape(len(rows), -1)
