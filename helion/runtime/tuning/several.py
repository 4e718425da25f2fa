"""Tuning of one config for several argument sets."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ... import exc
from ..._support.nested import copy_tensors, tensors_in
from ...autotuner.cache.store import default_store
from ...autotuner.measure.several import AGGREGATIONS, SeveralSets
from ...autotuner.options import Options
from ...config import Config
from .. import ref_mode
from ..specialization.specialized import Specialized
from .autotune import evaluator_of, keep, searched
from .candidates import admitted, domain_of, legal, start_configs
from .clocks import clock_of
from .device_lock import lock_of
from .keys import key_of

#: References that the times of a set may be divided by.
RELATIVES = (None, "default", "baseline")

#: A specialization with the arguments it is for.
ArgSet = tuple[Specialized, Sequence[Any]]


def check_options(aggregation: Any, relative_to: Any, cache_tag: Any) -> None:
    """Raise ``exc.InvalidAPIUsage`` for illegal options of ``autotune_multi``."""
    if aggregation not in AGGREGATIONS:
        names = ", ".join(map(repr, AGGREGATIONS))
        raise exc.InvalidAPIUsage(f"aggregation must be one of {names}, got {aggregation!r}.")
    if relative_to not in RELATIVES:
        raise exc.InvalidAPIUsage(f"relative_to must be None, 'default' or 'baseline', got {relative_to!r}.")
    if cache_tag is not None and not (isinstance(cache_tag, str) and cache_tag):
        raise exc.InvalidAPIUsage(f"cache_tag must be None or a string that is not empty, got {cache_tag!r}.")


def tuned_for_all(
    sets: Sequence[ArgSet],
    options: Options,
    aggregation: str,
    relative_to: str | None,
    cache_tag: str | None,
    force: bool,
) -> Config:
    """Find the config that is fastest for all of ``sets`` together, in the space of the first.

    Writes its result to the cache.
    """
    first, args = sets[0]
    store = default_store()
    tag = _tag(sets, aggregation, relative_to, cache_tag)
    key = None if store is None else key_of(first, args, tag)
    if not force and store is not None and key is not None:
        row = store.get(key)
        if row is not None and (known := legal(first, row.config)) is not None:
            return known
    first.settings.check_autotuning_disabled()
    starts = admitted(first, options, (c for of, _ in sets for c in start_configs(of, options, store, None)))
    if not starts:
        reason = "autotune_config_filter lets none to begin with pass for all argument sets"
        raise exc.NoConfigFound(kernel=first.kernel.name, reason=reason)
    domain = domain_of(first, options, (), starts)
    with contextlib.ExitStack() as stack:
        each = replace(options, workers=max(1, options.workers // len(sets)))
        evaluators = [
            (stack.enter_context(evaluator_of(of, values, each)), functools.partial(legal, of)) for of, values in sets
        ]
        units = None if relative_to is None else [_unit(of, values, relative_to, each) for of, values in sets]
        evaluator = SeveralSets(evaluators, aggregation, units)
        name = f"{first.kernel.name} for {len(sets)} argument sets on {first.target.name}"
        result = searched(first, options, domain, evaluator, name, starts[0])
    if store is not None and key is not None:
        keep(store, key, result, options)
    return result.config


def _tag(sets: Sequence[ArgSet], aggregation: str, relative_to: str | None, cache_tag: str | None) -> str:
    keys = [key_of(of, args) for of, args in sets]
    text = repr((aggregation, relative_to, [None if key is None else key.digest for key in keys]))
    return f"{cache_tag or 'several'} {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _unit(of: Specialized, args: Sequence[Any], relative_to: str, options: Options) -> float:
    """Return the reference time in microseconds: of the default config, or of the baseline function."""
    if relative_to == "default":
        with evaluator_of(of, args, options) as evaluator:
            evaluator.start(of.analysis.default_config)
            outcome = evaluator.finish()
        if outcome.microseconds is None:
            raise exc.NoConfigFound(kernel=of.kernel.name, reason=f"the default config fails: {outcome.detail}")
        return outcome.microseconds
    device = next((tensor.device for tensor in tensors_in(args)), torch.device("cpu"))
    function = options.baseline or functools.partial(_eager, of)
    values = copy_tensors(args)
    expected = max(of.analysis.predict(of.analysis.default_config).time_us, 1e-3)
    clock, lock = clock_of(device, options.random_seed, options.benchmark), lock_of(device, options.lock_seconds)
    if lock.is_shared:
        function(*values)  # it may compile something
    with lock.held():
        times = clock.time(lambda: function(*values), expected, float("inf"))
    return sorted(times)[len(times) // 2]


def _eager(of: Specialized, *args: Any) -> Any:
    return ref_mode.run_reference(of.kernel, args)
