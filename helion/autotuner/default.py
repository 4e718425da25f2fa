"""Which config runs when nothing was tuned."""

from __future__ import annotations

from .._compiler.facts.records import KernelFacts
from ..backends.triton.resources.predict import Predicted, predict
from ..backends.triton.resources.registers import register_limit
from ..config import Config
from ..hardware import Target
from .seeds import SeedReport
from .space import ConfigSpace

#: How many times as fast another seed must be predicted than the first one that a heuristic promotes to replace it: what
#: the heuristics know of kernels like theirs is worth more than the prediction, up to here.
_MARGIN = 2.0
#: How many times as fast a config that is predicted to spill must be to replace one that is not.
_SPILLING = 4.0

#: A spill predicted with less than this risk does not happen; of 0.2 to 0.6, 88 to 1528 bytes were spilled offline.
_SURE = 0.1

_Option = tuple[Config, Predicted]


def choose_default(report: SeedReport, space: ConfigSpace, facts: KernelFacts, target: Target) -> Config:
    """The first seed that a heuristic promotes and that fits without spilling, unless another is predicted much faster.
    Where there is none, the fastest by prediction of all seeds that fit and of the conservative config.

    Where all are predicted to spill: the first promoted one, else the one that is fastest for what it spills, with as
    many warps as there are if that helps.
    """
    seeds = [(seed.config, seed.predicted) for seed in report.seeds]
    preferred = next((o for o in seeds if _is_good(o[1]) and o[0] in report.promoted), None)
    if preferred is not None:
        fastest = min((option for option in seeds if option[1].fits), key=_cost)
        return preferred[0] if _cost(preferred) <= _MARGIN * _cost(fastest) else fastest[0]
    conservative = space.conservative()
    if not seeds:
        return conservative
    everything = [*seeds, (conservative, _predict(conservative, space, facts, target))]
    if any(_is_good(predicted) for _, predicted in everything):
        return min((option for option in everything if option[1].fits), key=_cost)[0]
    promoted = next((config for config, _ in seeds if config in report.promoted), None)
    return promoted or _least_short(everything, space, facts, target)


def _cost(option: _Option) -> float:
    predicted = option[1]
    return predicted.time_us * (_SPILLING if predicted.spill_risk >= _SURE else 1.0)


def _least_short(options: list[_Option], space: ConfigSpace, facts: KernelFacts, target: Target) -> Config:
    """Of the configs that fit, and these with the most warps, the one that is fastest for what it spills; the conservative
    one, which stands last, where none fits."""
    conservative = options[-1][0]
    most = target.max_threads_per_block // target.warp_size
    wide = [space.repair({**config, "num_warps": most}) for config, _ in options]
    found = options + [(config, _predict(config, space, facts, target)) for config in wide]

    def cost(option: _Option) -> float:
        config, predicted = option
        short = predicted.registers_per_thread / register_limit(config["num_warps"], target)
        return predicted.time_us * max(1.0, short) ** 2

    return min((option for option in found if option[1].fits), key=cost, default=(conservative, None))[0]


def _predict(config: Config, space: ConfigSpace, facts: KernelFacts, target: Target) -> Predicted:
    sizes = space.sizes(config)
    return predict(facts, sizes, num_warps=config["num_warps"], num_stages=config["num_stages"], target=target)


def _is_good(predicted: Predicted) -> bool:
    return predicted.fits and predicted.spill_risk < _SURE
