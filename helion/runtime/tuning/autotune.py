"""Tuning of a bound kernel on arguments: seeds, search, compile pool, bench, cache."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ... import exc
from ..._compiler.facts.packed import packed_starts, rounded_dtypes
from ..._support import logs as _logging
from ..._support.nested import copy_tensors, tensors_in
from ...autotuner.cache.rows import Entry, Key, Row
from ...autotuner.cache.store import Store, default_store
from ...autotuner.measure.accuracy import Tolerance
from ...autotuner.measure.guarded import Guards, poisoned
from ...autotuner.measure.protocol import Evaluator as AnyEvaluator
from ...autotuner.options import Options
from ...autotuner.outcome import Outcome, Status
from ...autotuner.pool.children import ForkServer
from ...autotuner.pool.compiling import CompilePool, Patience
from ...autotuner.pool.threads import ThreadPool
from ...autotuner.progress import listeners
from ...autotuner.search.domain import Domain
from ...autotuner.search.finite import FiniteSearch
from ...autotuner.search.protocol import Search
from ...autotuner.search.strategy import search_of
from ...autotuner.tuner import Budget, Listener, Measuring, Result, tune
from ...config import Config
from .. import ref_mode
from ..specialization.specialized import Specialized
from .bench import AnyBench, Bench, DirectBench
from .candidates import admitted, domain_of, legal, start_configs
from .device_lock import DeviceLock, lock_of
from .evaluator import Evaluator, job_of
from .keys import key_of
from .session import Task, fork_server_of, kept_random_numbers, same_random_numbers


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The answer of tuning. ``result`` is None if it came from the cache."""

    config: Config
    result: Result | None


def tuned(
    of: Specialized,
    args: Sequence[Any],
    options: Options,
    given: Sequence[Config] = (),
    *,
    force: bool = True,
    only: bool = True,
    pool: ThreadPool | None = None,
    measuring: Measuring | None = None,
    is_kept: bool = True,
) -> Tuned:
    """Find the fastest config for ``args``, beginning with ``given``, or among these if ``only`` is set.

    Writes its result to the cache if it ``is_kept``, under a tag made from ``given`` if the search is limited to them.
    ``pool`` compiles until a deadline, in place of processes. ``measuring`` is the precision, that of ``options`` by
    default.

    Without ``force`` a cached answer is used. Raises ``exc.AutotuningDisallowedInEnvironment``, ``exc.NoConfigFound``
    if no config works, and errors of reference mode.
    """
    store = default_store() if is_kept else None
    listed = bool(given) and only
    key = None if store is None else key_of(of, args, _tag(given) if listed else "")
    if not force and store is not None and key is not None:
        row = store.get(key)
        if row is not None and (known := legal(of, row.config)) is not None:
            return Tuned(config=known, result=None)
    of.settings.check_autotuning_disabled()
    starts = admitted(of, options, given)
    if not listed:
        starts = list(dict.fromkeys([*starts, *start_configs(of, options, store, key)]))
    elif not starts:
        raise exc.NoConfigFound(kernel=of.kernel.name, reason="autotune_config_filter lets none of those given pass")
    domain = domain_of(of, options, starts if listed else (), starts)
    keeping = [] if store is None or key is None else [SweepKeeper(store, key)]
    measuring = measuring or Measuring(close=options.close)
    with evaluator_of(of, args, options, pool, measuring) as evaluator:
        name = f"{of.kernel.name} on {of.target.name}"
        result = searched(of, options, domain, evaluator, name, starts[0], keeping, measuring)
    if result.outcomes and not any(o.status is Status.OK for o in result.outcomes):
        reasons = dict.fromkeys(o.detail for o in result.outcomes if o.detail)
        raise exc.NoConfigFound(kernel=of.kernel.name, reason="; ".join(list(reasons)[:5]) or result.why)
    if store is not None and key is not None:
        keep(store, key, result, options)
    return Tuned(config=result.config, result=result)


def _tag(given: Sequence[Config]) -> str:
    """Return the tag of the cache key for a list of configs."""
    text = repr([config.to_dict() for config in given])
    return f"of {len(given)} configs {hashlib.sha256(text.encode()).hexdigest()[:16]}"


class SweepKeeper:
    """Listener that saves outcomes while a search runs, so that the next search resumes one that was killed."""

    #: Seconds between writes.
    INTERVAL = 2.0

    def __init__(self, store: Store, key: Key) -> None:
        self._store = store
        self._key = key
        self._fresh: list[Outcome] = []
        self._last = time.monotonic()

    def tried(self, outcome: Outcome) -> None:
        self._fresh.append(outcome)
        if time.monotonic() - self._last >= self.INTERVAL:
            self._store.add(self._key, self._fresh)
            self._fresh, self._last = [], time.monotonic()

    def finished(self, result: Result) -> None:
        """Do nothing: all outcomes are saved with the answer."""


def searched(
    of: Specialized,
    options: Options,
    domain: Domain,
    evaluator: AnyEvaluator,
    name: str,
    baseline: Config,
    keeping: Sequence[Listener] = (),
    measuring: Measuring | None = None,
) -> Result:
    """Run as many searches as the options request; ``name`` is shown to users."""
    measuring = measuring or Measuring(close=options.close)
    if domain.configs is not None:
        searches: list[Search] = [FiniteSearch(domain.configs)]
    else:
        searches = [search_of(options, domain, options.random_seed + at) for at in range(options.best_of)]
    budget = Budget(seconds=options.seconds, configs=options.configs)
    whole = Budget(seconds=options.seconds * len(searches), configs=options.configs * len(searches))
    told = [*keeping, *listeners(name, whole, options, baseline, of.decorator)]
    return tune(searches[0], evaluator, budget, baseline, told, again=searches[1:], measuring=measuring)


def kept_entry(of: Specialized, args: Sequence[Any]) -> Entry | None:
    """Return the cache entry for ``args``, with all candidates tried."""
    store, key = default_store(), key_of(of, args)
    row = None if store is None or key is None else store.get(key)
    return None if store is None or row is None else Entry(row=row, sweep=store.sweep(row.key))


def keep(store: Store, key: Key, result: Result, options: Options) -> None:
    """Write a result. A call goes on before the disk has it."""
    if result.microseconds is None:
        store.add_later(key, result.outcomes)
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
    store.put_later(Entry(row=row, sweep=result.outcomes))


@contextlib.contextmanager
def evaluator_of(
    of: Specialized,
    args: Sequence[Any],
    options: Options,
    threads: ThreadPool | None = None,
    measuring: Measuring | None = None,
) -> Iterator[Evaluator]:
    """Yield an evaluator of configs on ``args``, and end its processes afterwards, also on interrupts.

    A search within this process may compile in ``threads``, which stay open.
    """
    direct = not options.isolated or options.effort == "minimal" or _needs_its_module(of)
    fork_server = functools.partial(fork_server_of, of.analysis.backend.name, of.target)
    if not direct:
        fork_server()  # it imports what it needs while the reference is computed
    task = _task(of, args, options)
    if not direct and not fork_server().is_ready:
        _compiled_here(of)
    measuring = measuring or Measuring()
    lock = lock_of(task.device, options.lock_seconds, measuring.waiting_seconds)
    with contextlib.ExitStack() as stack:
        stack.enter_context(kept_random_numbers(task.device))
        pool: CompilePool | ThreadPool | None = threads
        bench = None
        if not direct:
            patience = Patience(most=options.compile_seconds, adaptive=options.adaptive)
            pool = CompilePool(fork_server, options.workers, patience)
            # functions of the user's may need what only this process has
            own = task.check is not None or task.benchmark is not None
            bench = None if own else _isolated(fork_server, task, options, lock)
        evaluator = Evaluator(of, bench or DirectBench(task, lock), pool, options.workers, lock, brief=measuring.brief)
        stack.callback(evaluator.close)
        yield evaluator


def _compiled_here(of: Specialized) -> None:
    """Compile the default config here, so that other processes find it on disk. They report its errors, too."""
    with contextlib.suppress(Exception):
        job_of(of, of.analysis.default_config).run()


def _isolated(fork_server: Callable[[], ForkServer], task: Task, options: Options, lock: DeviceLock) -> AnyBench | None:
    """Return a bench in another process; None for arguments that cannot be sent to it."""
    try:
        return Bench(fork_server, task, options.run_seconds, lock)
    except Exception as error:  # whatever pickling the user's objects raises
        _logging.say_once(f"helion: {task.name} is tuned within this process: its arguments cannot leave it ({error})")
        return None


def _needs_its_module(of: Specialized) -> bool:
    """Return whether generated code reads globals of the user's module, which another process does not have."""
    return "source_module(" in of.analysis.text(of.analysis.default_config)


def _task(of: Specialized, args: Sequence[Any], options: Options) -> Task:
    device = next((tensor.device for tensor in tensors_in(args)), torch.device("cpu"))
    expected, changed = _reference(of, args, device, options) if options.accuracy else (None, None)
    return Task(
        name=of.kernel.name,
        backend=of.analysis.backend.name,
        args=tuple(args),
        expected=expected,
        changed=changed,
        tolerance=Tolerance(
            atol=options.atol,
            rtol=options.rtol,
            packed=packed_starts(of.analysis.program),
            rounded=rounded_dtypes(of.analysis.program),
        ),
        device=device,
        seed=options.random_seed,
        check=options.check,
        benchmark=options.benchmark,
    )


def _reference(
    of: Specialized, args: Sequence[Any], device: torch.device, options: Options
) -> tuple[Any, tuple[Any, ...]]:
    """Run the kernel, or the baseline function, on copies of ``args``; return its result and the copies.

    Random numbers are those that candidates draw, and unwritten memory has the same contents.
    """
    copies = copy_tensors(args)
    function = options.baseline
    with same_random_numbers(device, options.random_seed), poisoned(Guards()):
        result = ref_mode.run_reference(of.kernel, copies) if function is None else function(*copies)
    return result, copies
