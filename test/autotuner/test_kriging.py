"""The model of times, next to the Gaussian process of scikit-learn 1.9.1 with the same kernel and noise."""

from __future__ import annotations

import numpy as np

from helion.autotuner.search.kriging import Kriging

FEATURES = np.array([[0, 0, 0], [1, 0, 0], [0, 2, 1], [3, 1, 0], [2, 2, 2], [5, 0, 1]], dtype=float)
PREDICTED = np.array([3.0, 2.8, 3.4, 2.9, 3.1, 3.6])
OBSERVED = np.array([3.1, 2.7, 3.3, 3.2, 3.0, 3.9])
AT = np.array([[0, 0, 0], [1, 1, 1], [4, 0, 0], [9, 9, 9]], dtype=float)
#: GaussianProcessRegressor(0.5 * Matern(2, nu=0.5) + 0.5 * Matern(8, nu=0.5), alpha=1e-3, optimizer=None), fitted to
#: what the line of predicted times leaves.
ERRORS = np.array([0.032917664669, -0.105019990218, 0.180872326141, 0.003812489876])
DEVIATIONS = np.array([0.031584461836, 0.598330463387, 0.640876640587, 0.991221469747])


def test_means_and_deviations_are_those_of_a_gaussian_process() -> None:
    model = Kriging.fitted(FEATURES, PREDICTED, OBSERVED)
    predicted = np.array([3.0, 2.9, 3.2, 3.3])
    mean, deviation = model.at(AT, predicted)
    np.testing.assert_allclose(mean - model.slope * predicted - model.offset, ERRORS, rtol=0, atol=1e-9)
    np.testing.assert_allclose(deviation / model.spread, DEVIATIONS, rtol=0, atol=1e-9)
