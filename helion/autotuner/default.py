"""Choice of the config that runs if nothing was tuned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..config import Config
from .margins import FASTER_RATIO, PREDICTABLE_LEAD, SPILLING_RATIO
from .proposal import Predict, Predicted
from .seeds import SeedReport
from .space import ConfigSpace

_Option = tuple[Config, Predicted]
#: Config keys that give a program more registers; see ``backends.protocol.Backend.with_max_registers``.
Wider = Callable[[Config], Mapping[str, Any]]


def choose_default(report: SeedReport, space: ConfigSpace, predict: Predict, wider: Wider) -> Config:
    """Choose the first promoted seed that fits without spilling, unless another is predicted to be much faster.

    One that was measured may spill.

    If all are predicted to spill, choose the first promoted one, else the fastest after a penalty for its spills. It
    gets as many registers as a program can have if that helps.
    """
    seeds = [(seed.config, seed.predicted) for seed in report.seeds]
    promotable = frozenset(report.promoted)
    spilling = {seed.config for seed in report.seeds if seed.may_spill}
    good = [option for option in seeds if _is_good(option[1], option[0] in spilling)]
    preferred = next((option for option in good if option[0] in promotable), None)
    if preferred is not None:
        preferred = _competed(preferred, good, dict(report.competing))
        fastest = min((option for option in seeds if option[1].fits), key=_cost)
        measured = preferred[1].time_us if preferred[0] in spilling else _cost(preferred)
        return preferred[0] if measured <= FASTER_RATIO * _cost(fastest) else fastest[0]
    conservative = space.conservative()
    if not seeds:
        return conservative
    everything = [*seeds, (conservative, predict(conservative))]
    if any(_is_good(predicted) for _, predicted in everything):
        first = min((option for option in seeds if option[1].fits), key=_cost, default=everything[-1])
        led = _cost(everything[-1]) < PREDICTABLE_LEAD.ratio * _cost(first) and everything[-1][1].fits
        return conservative if led else first[0]
    promoted = next((config for config, _ in seeds if config in promotable), None)
    return promoted or _least_short(everything, space, predict, wider)


def _competed(preferred: _Option, good: list[_Option], competing: Mapping[Config, float]) -> _Option:
    """Return the fastest of the ``competing`` configs if its predicted time is within its ratio to ``preferred``."""
    fastest = min((option for option in good if option[0] in competing), key=_cost, default=preferred)
    return fastest if _cost(fastest) <= competing.get(fastest[0], 1.0) * _cost(preferred) else preferred


def _cost(option: _Option) -> float:
    predicted = option[1]
    return predicted.time_us * (SPILLING_RATIO if predicted.spills else 1.0)


def _least_short(options: list[_Option], space: ConfigSpace, predict: Predict, wider: Wider) -> Config:
    """Return the fastest config that fits, also made ``wider``, after a penalty for its spills.

    If none fits, return the conservative one, which is the last option.
    """
    conservative = options[-1][0]
    wide = [space.repair({**config, **wider(config)}) for config, _ in options]
    found = options + [(config, predict(config)) for config in wide]

    def cost(option: _Option) -> float:
        predicted = option[1]
        short = predicted.registers_per_thread / predicted.register_limit
        return predicted.time_us * max(1.0, short) ** 2

    return min((option for option in found if option[1].fits), key=cost, default=(conservative, None))[0]


def _is_good(predicted: Predicted, measured: bool = False) -> bool:
    return predicted.fits and (measured or not predicted.spills)
