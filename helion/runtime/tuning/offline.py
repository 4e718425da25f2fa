"""Tuning without a GPU: configs are compiled for the target, and those without spills ranked by predicted time."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from ... import exc
from ...autotuner.cache.rows import Entry, Row
from ...autotuner.options import Options
from ...autotuner.outcome import Outcome, Status
from ...autotuner.pool.compiling import Built, CompilePool, Patience
from ...autotuner.search.domain import SpaceDomain
from ...autotuner.search.time_model import PredictedTime
from ...backends.execution import Resources
from ...config import Config
from ..specialization.specialized import Specialized
from .candidates import admission, start_configs
from .evaluator import job_of
from .keys import key_of
from .session import fork_server_of

#: Mutations of the seeds that are ranked by predicted time before the first of them are compiled.
_DRAWN = 100


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A ranking.

    ``best`` has the least predicted time of the configs that fit and do not spill. ``outcomes`` are all that were
    compiled, with predicted microseconds.
    """

    best: Config
    outcomes: tuple[Outcome, ...]


def ranked(of: Specialized, options: Options, configs: int) -> Ranked:
    """Compile the seeds and the ``configs`` mutations of them that are predicted to be fastest.

    The default config is the answer unless another is predicted to be faster. Raises ``exc.NoConfigFound``.
    """
    model = PredictedTime(of.analysis.predict)
    candidates = _candidates(of, model, options, configs)
    pool = CompilePool(
        functools.partial(fork_server_of, of.analysis.backend.name, of.target),
        options.workers,
        Patience(most=options.compile_seconds),
    )
    try:
        outcomes = _compiled(of, pool, candidates)
    finally:
        pool.close()
    working = [outcome for outcome in outcomes if outcome.status is Status.OK]
    if not working:
        reasons = dict.fromkeys(outcome.detail for outcome in outcomes)
        raise exc.NoConfigFound(kernel=of.kernel.name, reason="; ".join(list(reasons)[:5]))
    order = {config: at for at, config in enumerate(candidates)}  # of equal times the seeds' own order decides
    best = min(working, key=lambda outcome: (round(outcome.time, 2), order[outcome.config]))
    return Ranked(best=best.config, outcomes=tuple(outcomes))


def entry_of(of: Specialized, args: Sequence[Any], found: Ranked) -> Entry:
    """Return the cache entry of a ranking.

    Raises ``exc.InvalidAPIUsage`` for arguments that other processes cannot recognize.
    """
    key = key_of(of, args, measured=True)  # for calls on that GPU
    if key is None:
        raise exc.InvalidAPIUsage(f"Configs of kernel {of.kernel.name!r} for these arguments cannot be kept.")
    times = {outcome.config: outcome.time for outcome in found.outcomes}
    row = Row(
        key=key,
        config=found.best,
        microseconds=times[found.best],
        effort="offline",
        tried=len(found.outcomes),
        when=time.time(),
    )
    return Entry(row=row, sweep=found.outcomes)


def _candidates(of: Specialized, model: PredictedTime, options: Options, configs: int) -> list[Config]:
    """List the default config, the seeds, and the mutations predicted to be fastest."""
    seeds = start_configs(of, options, None, None)
    admit, rng = admission(of, options), Random(options.random_seed)
    domain = SpaceDomain(of.analysis.space, model, seeds, options.overrides, admit)
    drawn = (domain.mutated(rng.choice(seeds), rng) for _ in range(_DRAWN if seeds else 0))
    fresh = list(dict.fromkeys(config for config in drawn if config is not None and config not in seeds))
    return [*seeds, *sorted(fresh, key=model.log_time)[:configs]]


def _compiled(of: Specialized, pool: CompilePool, candidates: Sequence[Config]) -> list[Outcome]:
    for config in candidates:
        pool.submit(config, job_of(of, config))
    outcomes = []
    while pool.busy:
        outcomes += [_outcome(of, built) for built in pool.poll(1.0)]
    return outcomes


def _outcome(of: Specialized, built: Built) -> Outcome:
    config = built.key
    assert isinstance(config, Config)
    wrong, answer = built.failure, built.answer
    if isinstance(answer, Resources):
        wrong = "; ".join(answer.overflow) or (f"spills {answer.spill_bytes} bytes" if answer.spill_bytes else "")
    if wrong:
        return Outcome(config=config, status=Status.FAILED, detail=wrong[:500], compile_seconds=built.seconds)
    time_us = max(of.analysis.predict(config).time_us, 1e-3)
    return Outcome(config=config, status=Status.OK, microseconds=time_us, compile_seconds=built.seconds)
