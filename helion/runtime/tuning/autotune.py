"""Tunes a bound kernel on arguments: seeds, search, compile pool, bench, cache."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ... import _logging, exc
from ...autotuner.cache.rows import Entry, Key, Row
from ...autotuner.cache.store import Store, default_store
from ...autotuner.measure.accuracy import Tolerance
from ...autotuner.options import Options
from ...autotuner.outcome import Status
from ...autotuner.pool.children import Nursery, shared_nursery
from ...autotuner.pool.compiling import CompilePool, Patience
from ...autotuner.progress import listeners
from ...autotuner.search.domain import Domain, ListedDomain, SpaceDomain
from ...autotuner.search.finite import FiniteSearch
from ...autotuner.search.strategy import search_of
from ...autotuner.search.time_model import PredictedTime
from ...autotuner.tuner import Budget, Result, tune
from ...config import Config, as_config
from .. import ref_mode
from ..signature import tensors_in
from ..specialized import Specialized
from .bench import AnyBench, Bench, DirectBench
from .evaluator import Evaluator
from .keys import key_of
from .session import NEEDED, Task, copied

#: Rows of other shapes, or made by other versions, that a search begins with, and configs of a sweep that it goes on from.
_RELATED, _RESUMED = 4, 4


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """``result`` is None where the answer was kept from before."""

    config: Config
    result: Result | None


def tuned(
    of: Specialized, args: Sequence[Any], options: Options, given: Sequence[Config] = (), *, force: bool = True
) -> Tuned:
    """The fastest config for ``args``, of ``given`` if there are any. Keeps what it finds.

    Without ``force`` an answer that was kept is taken. Raises ``exc.AutotuningDisallowedInEnvironment``,
    ``exc.NoConfigFound`` where nothing works, and what reference mode raises.
    """
    store = default_store()
    key = key_of(of, args) if store is not None and not given else None
    if not force and store is not None and key is not None:
        row = store.get(key)
        if row is not None and (known := legal(of, row.config)) is not None:
            return Tuned(config=known, result=None)
    of.settings.check_autotuning_disabled()
    baseline = given[0] if given else of.analysis.default_config
    starts = start_configs(of, options, store, key)
    domain = domain_of(of, options, given, [baseline, *starts])
    search = FiniteSearch(given) if given else search_of(options, domain)
    with evaluator_of(of, args, options) as evaluator:
        budget = Budget(seconds=options.seconds, configs=options.configs)
        name = f"{of.kernel.name} on {of.target.name}"
        shown = listeners(name, budget, options, baseline, of.decorator)
        result = tune(search, evaluator, budget, baseline, shown)
    if result.outcomes and not any(o.status is Status.OK for o in result.outcomes):
        reasons = dict.fromkeys(o.detail for o in result.outcomes if o.detail)
        raise exc.NoConfigFound(kernel=of.kernel.name, reason="; ".join(list(reasons)[:5]) or result.why)
    if store is not None and key is not None:
        keep(store, key, result, options)
    return Tuned(config=result.config, result=result)


def legal(of: Specialized, config: Config) -> Config | None:
    """A config from elsewhere as the space has it now; None where it takes it no more."""
    try:
        return of.analysis.space.normalize(config)
    except (exc.InvalidConfig, exc.NoFeasibleConfig):
        return None


def keep(store: Store, key: Key, result: Result, options: Options) -> None:
    if result.microseconds is None:
        store.add(key, result.outcomes)
        return
    row = Row(
        key=key,
        config=result.config,
        microseconds=result.microseconds,
        baseline_microseconds=result.baseline_microseconds,
        effort=options.effort,
        tried=len(result.outcomes),
        when=time.time(),
    )
    store.put(Entry(row=row, sweep=result.outcomes))


def start_configs(of: Specialized, options: Options, store: Store | None, key: Key | None) -> list[Config]:
    """Configs to begin with, in order: the user's, the seeds', those kept of this and of the nearest shapes."""
    wanted = of.settings.autotune_seed_configs or ()
    asked = [as_config(each) for each in ([wanted] if isinstance(wanted, (dict, Config)) else wanted)]
    found = [*asked, *(seed.config for seed in of.analysis.seeds.seeds)]
    if store is not None and key is not None:
        sweep = sorted(store.sweep(key), key=lambda outcome: outcome.time)
        found += [outcome.config for outcome in sweep[:_RESUMED] if outcome.microseconds is not None]
        found += [row.config for row in store.related(key)[:_RELATED]]
    overridden = ({**config, **options.overrides} for config in found)
    normal = (legal(of, Config(**each)) for each in overridden)
    return [config for config in normal if config is not None]


def domain_of(of: Specialized, options: Options, given: Sequence[Config], seeds: Sequence[Config]) -> Domain:
    model = PredictedTime(of.analysis.predict)
    if given:
        return ListedDomain(given, of.analysis.space.fields, model)
    return SpaceDomain(of.analysis.space, model, seeds, options.overrides)


@contextlib.contextmanager
def evaluator_of(of: Specialized, args: Sequence[Any], options: Options) -> Iterator[Evaluator]:
    """Tries configs on ``args``; ends what runs afterwards, also when interrupted."""
    direct = not options.isolated or options.effort == "minimal" or _needs_its_module(of)
    if not direct:
        shared_nursery(NEEDED)  # it imports what it needs while the reference is computed
    task = _task(of, args, options)
    with contextlib.ExitStack() as stack:
        pool, bench = None, None
        if not direct:
            nursery = functools.partial(shared_nursery, NEEDED)
            patience = Patience(most=options.compile_seconds, adaptive=options.adaptive)
            pool = CompilePool(nursery, options.workers, patience)
            bench = _isolated(nursery, task, options)
        evaluator = Evaluator(of, bench or DirectBench(task), pool, options.workers)
        stack.callback(evaluator.close)
        yield evaluator


def _isolated(nursery: Callable[[], Nursery], task: Task, options: Options) -> AnyBench | None:
    """None for arguments that cannot go to another process."""
    try:
        return Bench(nursery, task, options.run_seconds)
    except Exception as error:  # whatever pickling the user's objects raises
        _logging.say_once(f"helion: {task.name} is tuned within this process: its arguments cannot leave it ({error})")
        return None


def _needs_its_module(of: Specialized) -> bool:
    """Whether generated code reads globals of the user's module, which another process does not have."""
    return "source_module(" in of.analysis.text(of.analysis.default_config)


def _task(of: Specialized, args: Sequence[Any], options: Options) -> Task:
    device = next((tensor.device for tensor in tensors_in(args)), torch.device("cpu"))
    expected, changed = _reference(of, args) if options.accuracy else (None, None)
    return Task(
        name=of.kernel.name,
        backend=of.analysis.backend.name,
        args=tuple(args),
        expected=expected,
        changed=changed,
        tolerance=Tolerance(atol=options.atol, rtol=options.rtol),
        device=device,
        seed=options.random_seed,
    )


def _reference(of: Specialized, args: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """What the kernel, or the function that the user names for it, gives for copies of ``args``, and the copies after."""
    copies = copied(args)
    function: Callable[..., Any] | None = of.settings.autotune_baseline_fn
    result = ref_mode.run_reference(of.kernel, copies) if function is None else function(*copies)
    return result, copies
