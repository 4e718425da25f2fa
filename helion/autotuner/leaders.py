"""Configs that a few measurements choose from: those that may be the fastest, within the error of predicted times.

Their assembled code orders them better than predictions do, but where nothing is timed the default is better still
(measurement ``assembled_order``). No margin of predicted times chooses among them as well as a few times do (measurement
``user_samples``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..config import Config
from .search import domain as domains
from .search.domain import Domain
from .search.kriging import covariance
from .space import ConfigSpace, Field

#: Configs whose neighbors are candidates, neighbors of each, and of the first one those in which two keys balance each
#: other. A config takes 1 to 4 ms to predict.
_CENTRES, _NEIGHBOURS, _BALANCED = 3, 24, 16
#: Keys of weight 1 that leaders differ in from seeds, besides all of a larger weight. They order the grid. Other ways to
#: access memory seldom gain anything (measurement ``gains_of_steps``); these, persistent grids and options of loops are left
#: to searches.
_KEYS = frozenset({"loop_orders", "l2_groupings"})
#: Threads of a warp.
_LANES = 32
#: Draws of the errors of all candidates. The same seed gives the same leaders in every process.
_DRAWS, _SEED = 512, 0
#: Least expected gain of one more leader, as a part of the time. Above it, leaders of the kept samples get lost
#: (benchmarks/time_model.py).
_LEAST_GAIN = 0.01
#: Variance of independent errors, relative to that of correlated ones.
NUGGET = 1e-3

Array = Any


def is_moved(field: Field, pipelines: bool = True) -> bool:
    """Return whether leaders may differ from seeds in a field. Stages only have an effect where a kernel ``pipelines``."""
    return (field.weight > 1 or field.key in _KEYS) and (pipelines or field.key != "num_stages")


def scale(field: Field) -> float:
    """Return the scale of distances between values of a field. The reversal of an order is equally far for any length."""
    scaled = domains.scale(field)
    if field.key != "loop_orders":
        return scaled
    dims = max(map(len, field.default()), default=2)
    return scaled / math.sqrt(dims * (dims**2 - 1) / 6)


def code_length(space: ConfigSpace, config: Config, text: str) -> float:
    """Return a number that grows with the instructions of a thread: the text, once for each of its elements."""
    sizes = space.decode(config).sizes
    elements = max((volume.numel(sizes) for volume in space.shape.volumes), default=1)
    return len(text) * max(1.0, elements / (_LANES * int(config.get("num_warps", 1))))


def candidates(
    domain: Domain, first: Config, allowed: Callable[[Config], bool], has_time: Callable[[], bool]
) -> list[Config]:
    """List ``first``, the seeds, and neighbors of ``first`` and of the fastest by prediction, as far as ``allowed``.

    Without time no further neighbor is predicted.
    """
    found = dict.fromkeys([first, *filter(allowed, domain.seeds)])
    centre = first
    centres = {first}
    for at in range(_CENTRES):
        steps: Iterator[Config] = itertools.islice(domain.neighbours(centre), _NEIGHBOURS)
        if not at:
            steps = itertools.chain(steps, itertools.islice(domain.balanced(centre), _BALANCED))
        found.update(dict.fromkeys(filter(allowed, itertools.takewhile(lambda _: has_time(), steps))))
        left = [config for config in found if config not in centres]
        if not left or not has_time():
            break
        centre = min(left, key=domain.log_time)
        centres.add(centre)
    return list(found)


def leaders(
    domain: Domain,
    first: Config,
    error: float,
    allowed: Callable[[Config], bool],
    has_time: Callable[[], bool] = lambda: True,
    resolution: float = 0.0,
) -> Iterator[Config]:
    """Yield the configs to measure after ``first``, the most promising first.

    ``error`` is the standard deviation of the logarithms of predicted times. A config that is expected to gain less
    than ``resolution``, in microseconds, cannot be told from ``first``.
    """
    configs = candidates(domain, first, allowed, has_time)
    features = np.array([domain.features(config) for config in configs])
    log_times = np.array([domain.log_time(config) for config in configs])
    least_gain = max(_LEAST_GAIN, resolution / math.exp(log_times[0]))
    for at in promising(features, log_times, 0, error, least_gain):
        yield configs[at]


def promising(
    features: Array, log_times: Array, first: int, error: float, least_gain: float = _LEAST_GAIN
) -> Iterator[int]:
    """Yield the rows that lower the expected least time most, given that ``first`` and those before are measured.

    Each lowers it by ``least_gain`` of it, or more.

    Errors of predictions are Gaussian with the deviation ``error``, and correlated by the distance of ``features``.
    """
    count = len(log_times)
    deviation = np.linalg.cholesky(covariance(features, features) + NUGGET * np.eye(count))
    drawn = np.random.default_rng(_SEED).standard_normal((count, _DRAWS))
    times = log_times[:, None] + error * (deviation @ drawn)
    least = times[first]
    while True:
        gains = np.maximum(least - times, 0.0).mean(1)
        at = int(np.argmax(gains))
        if gains[at] < least_gain:
            return
        yield at
        least = np.minimum(least, times[at])
