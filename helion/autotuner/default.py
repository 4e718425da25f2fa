"""Which config runs when nothing was tuned."""

from __future__ import annotations

from .._compiler.facts.records import KernelFacts
from .._compiler.resources.predict import Predicted, predict
from ..config import Config
from ..hardware import Target
from .seeds import SeedReport
from .space import ConfigSpace


def choose_default(report: SeedReport, space: ConfigSpace, facts: KernelFacts, target: Target) -> Config:
    """The first seed that a heuristic promotes, else the conservative config, unless that is predicted not to fit or to
    spill: then the first seed that does neither, else the first that fits and wants no more registers."""
    for seed in report.seeds:
        if seed.config in report.promoted:
            return seed.config
    conservative = space.conservative()
    small = _predict(conservative, space, facts, target)
    if _is_good(small):
        return conservative
    for seed in report.seeds:
        if _is_good(seed.predicted):
            return seed.config
    for seed in report.seeds:
        if seed.predicted.fits and seed.predicted.registers_per_thread <= small.registers_per_thread:
            return seed.config
    return conservative


def _predict(config: Config, space: ConfigSpace, facts: KernelFacts, target: Target) -> Predicted:
    sizes = space.sizes(config)
    return predict(facts, sizes, num_warps=config["num_warps"], num_stages=config["num_stages"], target=target)


def _is_good(predicted: Predicted) -> bool:
    return predicted.fits and not predicted.spill_risk
