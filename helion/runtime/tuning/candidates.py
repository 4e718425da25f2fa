"""Configs of a bound kernel that may be tried, and those that a search begins with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from ... import exc
from ...autotuner.cache.rows import Key
from ...autotuner.cache.store import Store
from ...autotuner.options import Options
from ...autotuner.pretuned import pretuned
from ...autotuner.search.domain import Domain, ListedDomain, SpaceDomain
from ...autotuner.search.time_model import PredictedTime
from ...config import Config, as_config
from ..specialization.specialized import Specialized
from .keys import legal

#: Number of rows of other shapes or versions, and number of configs of an interrupted sweep, that a search begins with.
_RELATED, _RESUMED = 4, 4
#: Draws of random configs if the user's filter drops all others.
_DRAWS = 50


def measured_elsewhere(of: Specialized) -> list[Config]:
    """List the full configs that were measured to be the fastest for kernels of the same structure, where legal here."""
    analysis = of.analysis
    found = (legal(of, config) for config in pretuned(analysis.facts, of.target, analysis.backend.name))
    return list(dict.fromkeys(filter(None, found)))


def admission(of: Specialized, options: Options) -> Callable[[Config], Config | None]:
    """Return a function that applies the user's filter to a full config: it returns it, its replacement, or None."""
    admit = options.filter
    if admit is None:
        return lambda config: config

    def admitted(config: Config) -> Config | None:
        answer = admit(config)
        if isinstance(answer, (Config, Mapping)):
            return legal(of, {**answer, **options.overrides})
        return config if answer else None

    return admitted


def start_configs(of: Specialized, options: Options, store: Store | None, key: Key | None) -> list[Config]:
    """List the configs to begin with, in order.

    These are the default config, the user's, those measured for kernels of the same structure and the seeds'. Those
    cached for this and the nearest shapes follow. All have the user's overrides and pass the user's filter.
    """
    wanted = options.seed_configs or ()
    asked = [as_config(each) for each in ([wanted] if isinstance(wanted, (dict, Config)) else wanted)]
    seeds = (seed.config for seed in of.analysis.seeds.seeds)
    found = [of.analysis.default_config, *asked, *measured_elsewhere(of), *seeds]
    if store is not None and key is not None:
        sweep = sorted(store.sweep(key), key=lambda outcome: outcome.time)
        found += [outcome.config for outcome in sweep[:_RESUMED] if outcome.microseconds is not None]
        found += [row.config for row in store.related(key)[:_RELATED]]
    starts = admitted(of, options, ({**config, **options.overrides} for config in found))
    return starts or _drawn(of, options)


def _drawn(of: Specialized, options: Options) -> list[Config]:
    """Draw a config that passes the user's filter. Raises ``exc.NoConfigFound`` if none is found."""
    domain, rng = domain_of(of, options, (), ()), Random(options.random_seed)
    found = next((config for _ in range(_DRAWS) if (config := domain.random(rng)) is not None), None)
    if found is None:
        raise exc.NoConfigFound(
            kernel=of.kernel.name, reason="autotune_config_filter lets no seed and no config drawn at random pass"
        )
    return [found]


def admitted(of: Specialized, options: Options, configs: Any) -> list[Config]:
    """List the full forms of ``configs`` that are legal and pass the user's filter, each once."""
    admit = admission(of, options)
    normal = (legal(of, config) for config in configs)
    return list(dict.fromkeys(c for config in normal if config is not None and (c := admit(config)) is not None))


def domain_of(of: Specialized, options: Options, given: Sequence[Config], seeds: Sequence[Config]) -> Domain:
    """Return the domain of the list ``given``, if there is one, else of the whole space."""
    model = PredictedTime(of.analysis.predict)
    if given:
        return ListedDomain(given, of.analysis.space.fields, model)
    return SpaceDomain(of.analysis.space, model, seeds, options.overrides, admission(of, options))
