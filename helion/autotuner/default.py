"""Which config runs when nothing was tuned."""

from __future__ import annotations

from .._compiler.facts.records import KernelFacts
from .._compiler.resources.predict import Predicted, predict
from ..config import Config
from ..hardware import Target
from .heuristics.registry import promotes
from .seeds import SeedReport
from .space import ConfigSpace


def choose_default(report: SeedReport, space: ConfigSpace, facts: KernelFacts, target: Target) -> Config:
    """The first seed of a heuristic that promotes, else the conservative config, unless that is predicted to spill or
    not to fit and a seed is not."""
    for seed in report.seeds:
        if promotes(seed.heuristic):
            return seed.config
    conservative = space.conservative()
    if _is_good(_predict(conservative, space, facts, target)):
        return conservative
    better = next((seed for seed in report.seeds if _is_good(seed.predicted)), None)
    return conservative if better is None else better.config


def _predict(config: Config, space: ConfigSpace, facts: KernelFacts, target: Target) -> Predicted:
    sizes = space.sizes(config)
    return predict(facts, sizes, num_warps=config["num_warps"], num_stages=config["num_stages"], target=target)


def _is_good(predicted: Predicted) -> bool:
    return predicted.fits and not predicted.spill_risk
