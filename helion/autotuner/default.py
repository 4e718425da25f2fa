"""Which config runs when nothing was tuned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..config import Config
from .proposal import Predict, Predicted
from .seeds import SeedReport
from .space import ConfigSpace

#: How many times as fast another seed must be predicted than the first one that a heuristic promotes to replace it: what
#: the heuristics know of kernels like theirs is worth more than the prediction, up to here.
_MARGIN = 2.0
#: Part of the time of that seed that one which contends with it is predicted to take at most.
_CONTENDED = 0.85
#: How many times as fast a config that is predicted to spill must be to replace one that is not.
SPILLING = 4.0

_Option = tuple[Config, Predicted]
#: Keys of a config with which a program has more registers; see ``backends.protocol.Backend.wider``.
Wider = Callable[[Config], Mapping[str, Any]]


def choose_default(report: SeedReport, space: ConfigSpace, predict: Predict, wider: Wider) -> Config:
    """The first seed that a heuristic promotes and that fits without spilling, unless another is predicted much faster.
    Where there is none, the fastest by prediction of all seeds that fit and of the conservative config.

    Where all are predicted to spill: the first promoted one, else the one that is fastest for what it spills, with as
    many registers as a program can have if that helps.
    """
    seeds = [(seed.config, seed.predicted) for seed in report.seeds]
    promotable = frozenset(report.promoted)
    preferred = next((o for o in seeds if _is_good(o[1]) and o[0] in promotable), None)
    if preferred is not None:
        preferred = _contended(preferred, [o for o in seeds if _is_good(o[1]) and o[0] in report.contending])
        fastest = min((option for option in seeds if option[1].fits), key=_cost)
        return preferred[0] if _cost(preferred) <= _MARGIN * _cost(fastest) else fastest[0]
    conservative = space.conservative()
    if not seeds:
        return conservative
    everything = [*seeds, (conservative, predict(conservative))]
    if any(_is_good(predicted) for _, predicted in everything):
        return min((option for option in everything if option[1].fits), key=_cost)[0]
    promoted = next((config for config, _ in seeds if config in promotable), None)
    return promoted or _least_short(everything, space, predict, wider)


def _contended(preferred: _Option, contending: list[_Option]) -> _Option:
    """The fastest of ``contending`` where that is predicted to be faster than ``preferred``."""
    fastest = min(contending, key=_cost, default=preferred)
    return fastest if _cost(fastest) <= _CONTENDED * _cost(preferred) else preferred


def _cost(option: _Option) -> float:
    predicted = option[1]
    return predicted.time_us * (SPILLING if predicted.spills else 1.0)


def _least_short(options: list[_Option], space: ConfigSpace, predict: Predict, wider: Wider) -> Config:
    """Of the configs that fit, and these made ``wider``, the one that is fastest for what it spills; the conservative one, which stands last, where none fits."""
    conservative = options[-1][0]
    wide = [space.repair({**config, **wider(config)}) for config, _ in options]
    found = options + [(config, predict(config)) for config in wide]

    def cost(option: _Option) -> float:
        predicted = option[1]
        short = predicted.registers_per_thread / predicted.register_limit
        return predicted.time_us * max(1.0, short) ** 2

    return min((option for option in found if option[1].fits), key=cost, default=(conservative, None))[0]


def _is_good(predicted: Predicted) -> bool:
    return predicted.fits and not predicted.spills
