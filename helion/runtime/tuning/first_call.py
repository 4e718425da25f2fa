"""Configs that the first call on a GPU measures without a request for tuning, within ``first_call_seconds``.

They are configs measured for kernels of the same structure (``autotuner.pretuned``), then the *leaders*: seeds, and
configs near them, that may be faster than the default within the error of predictions. Threads compile them, the most
promising first, and at the same time as the default where there are enough processors. Those that compile in time are
checked against the results of the default, then timed in turns with it. The choice is kept on disk for later processes.
Those that compile late are waited for and timed at the end, if they are predicted to be clearly faster. The call drops
the others and leaves them: a stage that runs outside of Python cannot be ended, and they end after it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from ... import exc, knobs
from ..._support import switching
from ..._support.locks import is_held_here, new_lock
from ..._support.nested import tensors_in
from ...autotuner import leaders
from ...autotuner.cache.store import default_store
from ...autotuner.measure.comparison import RESOLUTION
from ...autotuner.measure.runs import TRIAL_RUNS
from ...autotuner.options import Options, cpus
from ...autotuner.outcome import Status
from ...autotuner.pool.threads import ThreadPool, left_running
from ...autotuner.search.domain import SpaceDomain
from ...autotuner.search.time_model import PredictedTime
from ...autotuner.tuner import Measuring, Result
from ...backends import BACKENDS, stub
from ...backends.execution import Resources
from ...config import Config
from ..generated import codecache
from ..specialization.compiled import Compiled
from ..specialization.specialized import Specialized
from . import autotune, candidates, chosen_before
from .chosen_before import is_decided
from .evaluator import job_of
from .session import OfflineJob

#: Configs that are measured with the default one, and most threads that compile them. One processor is left to the
#: default, and machines with fewer than so many compile it alone. More threads delay each other: parts of a compilation
#: hold Python's lock, such as linking a library of functions (measurement ``first_call_threads``).
MOST, _THREADS, _PROCESSORS = 4, 3, 3
#: The same where a backend compiles one config at a time. They are seeds, predicted to be clearly faster.
_MOST_SEEDS = 2
#: Ratio of predicted times below which a config is clearly faster: closer predictions do not tell.
_LESS = 0.97
#: Parts of ``first_call_seconds`` after which no further config is predicted, and after which those that have compiled
#: are timed: from the end of the default's compilation on, if they began with it or after it.
_PREDICTING, _COMPILING_ALONG, _COMPILING = 0.1, 0.35, 0.6
#: The same after which no assembler runs that began with the default's, and no result is waited for: also not for those
#: that compile late (measurement ``left_contenders``).
_ASSEMBLING_ALONG = 1.5
#: Ratio of the times to compile two configs from which on the longer one may compile late (measurement
#: ``late_contenders``).
_LONGER = 1.3
#: Power of the ratio of the lengths of their code that is taken for it: much of a compilation does not depend on the
#: elements of a thread (measurement ``code_lengths``).
_OF_LENGTH = 0.6
#: Configs within this ratio of the least time of a few runs are ranked, and the fastest is compared with the default.
#: Both take a part of ``first_call_seconds``.
_CLOSE, _RANKING, _COMPARING = 1.3, 0.06, 0.1
#: Rounds of each block of that comparison: half of those that a search takes.
_COMPARING_ROUNDS = 20
#: Parts of ``first_call_seconds`` in which the call waits for other processes' measurements, and after which it neither
#: runs another config nor compares any. For configs that compiled late, the time begins again.
_WAITING, _MEASURING, _MEASURING_LATE = 0.3, 1.0, 0.5
#: Memory needed to measure, as a multiple of that of the arguments: copies to restore and compare, and results of two
#: configs. Then the memory that flushes the caches.
_COPIES, _FLUSHED = 6, 1 << 30
#: Errors of the moment, such as a full disk. They say nothing about a config, and a later process may measure it.
_PASSING = (torch.OutOfMemoryError, MemoryError, OSError)
_NO_OTHER = "no other config may be faster"
_UNDER_WAY = new_lock()


@dataclass(frozen=True, kw_only=True)
class Times:
    """Times of ``time.monotonic`` in one first call, and ``compiling``: the seconds that the default config took.

    ``compiling`` is 0.0 if that is unknown, because the binary was on disk. No config is predicted after ``predicting``,
    and those compiled are timed from ``timing`` on. Nothing compiles after ``end``.
    """

    compiling: float
    predicting: float
    timing: float
    end: float

    @classmethod
    def of(cls, seconds: float, compiling: float) -> Times:
        """Return the times of a first call that begins now, with ``seconds`` to measure."""
        now = time.monotonic()
        timing = now + _COMPILING * seconds
        predicting = min(now + _PREDICTING * seconds, timing - compiling)
        return cls(compiling=compiling, predicting=predicting, timing=timing, end=now + seconds)

    @property
    def suffice(self) -> bool:
        """Return whether a config that begins to compile now can be timed."""
        return time.monotonic() + self.compiling < self.timing


@dataclass(frozen=True, kw_only=True, eq=False)
class Along:
    """The contenders of ``default`` that compile in ``pool`` along with it."""

    default: Config
    contenders: Sequence[Config]
    pool: ThreadPool


@contextlib.contextmanager
def compiling_along(compiled: Compiled, args: Sequence[Any]) -> Iterator[Along | None]:
    """Compile the contenders along with the default config, and yield them once it is compiled.

    Yield None where nothing is measured, or they should not compile at the same time. In the body, this thread holds
    the locks of ``compiled`` and of the compiler.
    """
    of = compiled.specialized
    together = of.analysis.backend.toolchain.together()
    if together is None or cpus() < _PROCESSORS or not _is_measured(of, args) or not _begun():
        yield None
        return
    try:
        # in the order in which other threads take the locks
        with compiled.lock, together as run, switching.often():
            began, seconds = time.monotonic(), of.settings.first_call_seconds
            ends = began + _ASSEMBLING_ALONG * seconds
            threads = max(1, min(_THREADS, cpus() - 1 - left_running()))
            pool = ThreadPool(run, 1 + threads, math.inf, ends=ends)
            try:
                yield _begun_along(compiled, pool, threads, ends)
            finally:
                pool.close()
    finally:
        _UNDER_WAY.release()


def _is_measured(of: Specialized, args: Sequence[Any]) -> bool:
    """Return whether a call with these arguments may measure contenders, of which no process knows yet."""
    return (
        bool(of.settings.first_call_seconds)
        and not is_decided(of)
        and not is_left_alone(args)
        and not of.analysis.traced.acts
        and of.analysis.refusal() is None
    )


def _begun_along(compiled: Compiled, pool: ThreadPool, threads: int, ends: float) -> Along:
    """Begin to compile the default config and the first contenders, and wait for the default's end.

    Contenders are predicted once the default has been parsed: both take Python's lock, and all wait for the default.
    They end about as long after it as they begin after it. Where that is too late, only those are compiled that may be timed
    at the end.
    """
    of = compiled.specialized
    default, seconds = of.analysis.default_config, of.settings.first_call_seconds
    compiled.expect_launch(default)
    pool.submit(default, _Unhurried(job_of(of, default)), ends=math.inf)
    began = time.monotonic()
    pool.wait_until_parsed(default, _PREDICTING * seconds)
    times = replace(Times.of(seconds, 0.0), end=ends)
    others = contenders(of, default, times)
    if time.monotonic() - began > _COMPILING_ALONG * seconds:
        others = _worth_timing(of, default, others)
    _submit(of, pool, default, others[:threads], times)  # the others begin where they can still be timed
    pool.wait_for(default)
    now = time.monotonic()
    pool.take_at(max(now, min(now + _COMPILING_ALONG * seconds, ends)))
    return Along(default=default, contenders=others, pool=pool)


def _submit(of: Specialized, pool: ThreadPool, first: Config, others: Sequence[Config], times: Times) -> None:
    """Compile ``others``, longer than results are taken if they may be timed at the end.

    Those with much longer code than ``first`` wait until it is known how long that took.
    """
    worth = _worth_timing(of, first, others)
    shortest = _code_length(of, first) if others else 0.0
    for config in others:
        longer = max(1.0, _code_length(of, config) / shortest) ** _OF_LENGTH
        ends = times.end if config in worth else -math.inf
        pool.submit(config, _Launched(of, job_of(of, config)), ends=ends, waits=longer > _LONGER, longer=longer)


def _code_length(of: Specialized, config: Config) -> float:
    return leaders.code_length(of.analysis.space, config, of.analysis.code(config).text)


@dataclass(frozen=True)
class _Launched:
    """The compilation of a config that is launched next, with what a launch needs besides its binary."""

    of: Specialized
    job: OfflineJob

    def run_within(self, seconds: float) -> Resources:
        job, executor = self.job, self.of.executor
        executor.expect_launch(vars(codecache.load(job.text, job.name, executor.prepare)), job.plan, job.target)
        return job.run_within(seconds)


@dataclass(frozen=True)
class _Unhurried:
    """The compilation of a config that runs in any case, with the limit of such."""

    job: OfflineJob

    def run_within(self, seconds: float) -> Resources:
        return self.job.run_within(knobs.COMPILE_LIMIT_SECONDS.read() or None)


def measured(compiled: Compiled, args: Sequence[Any], config: Config, along: Along | None = None) -> Config:
    """Return the fastest of ``config``, the default, and its contenders.

    Another config must be certainly faster and give the same results. Writes its choice to the cache, also one without
    times, unless memory or the disk was full. Raises every error.
    """
    of = compiled.specialized
    seconds = of.settings.first_call_seconds
    if not seconds or is_decided(of) or of.analysis.traced.acts:
        return config
    if along is None and (is_left_alone(args) or not _begun()):
        return config
    try:
        if along is not None and along.default == config:  # the check of its binary may have replaced it
            return _decided_along(of, args, along)
        return _decided(of, args, config, Times.of(seconds, compiled.compile_seconds.get(config, 0.0)))
    except _PASSING:
        raise
    except Exception as error:
        chosen_before.keep_untimed(of, args, config, f"{type(error).__name__}: {error}"[:500])
        raise
    finally:
        if along is None:
            _UNDER_WAY.release()


def _decided_along(of: Specialized, args: Sequence[Any], along: Along) -> Config:
    """Measure the contenders that compile along with the default config."""
    if along.contenders:
        return _fastest(of, args, along.default, along.contenders, contextlib.nullcontext(along.pool))
    chosen_before.keep_untimed(of, args, along.default, _NO_OTHER)
    return along.default


def _decided(of: Specialized, args: Sequence[Any], config: Config, times: Times) -> Config:
    """Measure the contenders that there is time for."""
    others = contenders(of, config, times) if times.suffice else []
    if others and times.suffice:
        return _fastest(of, args, config, others, _threads(of, config, others, times))
    why = _NO_OTHER if times.suffice else "there is no time to compile another config"
    chosen_before.keep_untimed(of, args, config, why)
    return config


def _fastest(
    of: Specialized,
    args: Sequence[Any],
    first: Config,
    others: Sequence[Config],
    threads: AbstractContextManager[ThreadPool | None],
) -> Config:
    """Return the fastest of ``first`` and ``others``, which ``threads`` compile, and keep all outcomes."""
    with threads as pool:
        found, options = _tuned(of, args, first, others, pool, _MEASURING)
        results = [_uninterrupted(found.result)]
        late = [] if pool is None else _late(of, first, found.config, pool)
    if late and pool is not None:
        found, _ = _tuned(of, args, found.config, late, pool.of_compiled([found.config, *late]), _MEASURING_LATE)
        results.append(_uninterrupted(found.result))
    kept = {outcome.config: outcome for result in results for outcome in result.outcomes}
    if any(outcome.status is Status.NO_MEMORY for outcome in kept.values()):
        return first
    store, key = default_store(), chosen_before.tagged(of, args)
    if store is not None and key is not None and found.result is not None:
        autotune.keep(store, key, replace(found.result, outcomes=tuple(kept.values())), options)
        if found.result.microseconds is None:
            chosen_before.keep_untimed(of, args, found.config, "no config could be timed next to the default")
    return found.config


def _uninterrupted(result: Result | None) -> Result:
    """Return a result; raise the interrupt that ended it, which was meant for the program: it requested no search."""
    if result is None or result.why == "interrupted":
        raise KeyboardInterrupt
    return result


def _late(of: Specialized, first: Config, best: Config, pool: ThreadPool) -> list[Config]:
    """Wait for the configs that compile late and may be faster than ``best``, and list those that have compiled in time.

    Others than those that may be faster than ``first``, too, give up before their next stage (``_submit``).
    """
    in_flight = [key for key in pool.in_flight() if isinstance(key, Config)]
    compiled = pool.late(_worth_timing(of, first, _worth_timing(of, best, in_flight)))
    return [built.key for built in compiled if isinstance(built.key, Config)]


def _tuned(
    of: Specialized, args: Sequence[Any], first: Config, others: Sequence[Config], pool: ThreadPool | None, part: float
) -> tuple[autotune.Tuned, Options]:
    """Time ``first`` and those of ``others`` that ``pool`` compiles in time, in a part of ``first_call_seconds``."""
    seconds = of.settings.first_call_seconds
    asked = {
        "progress": False,
        "seconds": seconds,
        "lock_seconds": _WAITING * seconds,
        "baseline": _function(of, first),
        "workers": 1 + len(others),
    }
    options = Options.of(of.settings, "minimal", asked)
    measuring = Measuring(
        close=_CLOSE,
        ranking_seconds=_RANKING * seconds,
        comparing_seconds=_COMPARING * seconds,
        comparing_rounds=_COMPARING_ROUNDS,
        brief=True,
        seconds=part * seconds,
        waiting_seconds=_WAITING * seconds,
    )
    found = autotune.tuned(of, args, options, [first, *others], pool=pool, measuring=measuring, is_kept=False)
    return found, options


def _worth_timing(of: Specialized, best: Config, others: Sequence[Config]) -> list[Config]:
    """List the configs that are predicted to be clearly faster than ``best``."""
    least = _LESS * of.analysis.predict(best).time_us if others else 0.0
    return [config for config in others if of.analysis.predict(config).time_us < least]


def contenders(of: Specialized, config: Config, times: Times) -> list[Config]:
    """List the configs to measure with ``config``, whose code differs, the most promising first.

    They are configs measured for kernels of the same structure, then seeds, and configs near seeds as far as there is
    time to predict them. There are none where two configs are predicted to run for longer than the call may measure.
    """
    if 2e-6 * TRIAL_RUNS * of.analysis.predict(config).time_us > _MEASURING * of.settings.first_call_seconds:
        return []
    if of.analysis.backend.toolchain.together() is None:
        return _faster_seeds(of, config, times.compiling)
    model = PredictedTime(of.analysis.predict)
    seeds = [seed.config for seed in of.analysis.seeds.seeds]
    moves = functools.partial(leaders.is_moved, pipelines=bool(of.analysis.facts.matmuls))
    domain = SpaceDomain(of.analysis.space, model, seeds, moves=moves, scales=leaders.scale)

    def has_time() -> bool:
        return time.monotonic() < times.predicting

    error = model.predicted(config).error
    measured = filter(model.fits, candidates.measured_elsewhere(of))
    found = itertools.chain(measured, leaders.leaders(domain, config, error, model.fits, has_time, RESOLUTION))
    return list(itertools.islice(_differing(of, config, found), MOST))


def _differing(of: Specialized, config: Config, others: Iterator[Config]) -> Iterator[Config]:
    """Yield the configs whose generated code differs from that of ``config`` and of those before."""
    texts = {of.analysis.code(config).text}
    for other in others:
        with contextlib.suppress(exc.Base):  # no code can be generated, or it takes minutes to compile
            text = of.analysis.code(of.analysis.space.worth_compiling(other)).text
            if text not in texts:
                texts.add(text)
                yield other


def _faster_seeds(of: Specialized, config: Config, compiling: float) -> list[Config]:
    """List the seeds that are predicted to be clearly faster than ``config``, and to fit without spilling.

    There is time for all of them to compile one after the other.
    """
    count = int(_COMPILING * of.settings.first_call_seconds / compiling) if compiling else 0
    known = (seed.predicted for seed in of.analysis.seeds.seeds if seed.config == config)
    least = (next(known, None) or of.analysis.predict(config)).time_us
    seeds = [seed for seed in of.analysis.seeds.seeds if seed.predicted.fits and not seed.predicted.spills]
    faster = [seed for seed in seeds if seed.predicted.time_us < _LESS * least and seed.config != config]
    return [seed.config for seed in sorted(faster, key=lambda seed: seed.predicted.time_us)][: min(count, _MOST_SEEDS)]


@contextlib.contextmanager
def _threads(of: Specialized, first: Config, others: Sequence[Config], times: Times) -> Iterator[ThreadPool | None]:
    """Yield a pool of threads that compile all but ``first``; None if the backend compiles one config at a time."""
    together = of.analysis.backend.toolchain.together()
    if together is None:
        yield None
        return
    with together as run:
        workers = min(_THREADS, cpus())
        pool = ThreadPool(run, workers, times.timing, ends=times.end, expected=times.compiling, compiled=(first,))
        try:
            _submit(of, pool, first, others, times)  # they begin while the results of the first one are computed
            yield pool
        finally:
            pool.close()


def is_left_alone(args: Sequence[Any]) -> bool:
    """Return whether a call measures nothing: tuning is off, a graph may be recorded, or there is too little memory."""
    return (
        knobs.DISALLOW_AUTOTUNING.read()
        or stub.active()
        or torch.is_inference_mode_enabled()
        or _is_captured()
        or not _has_memory(args)
    )


def _begun() -> bool:
    """Take the turn to measure, not reentrant; return False if another measurement is in flight."""
    return not is_held_here(_UNDER_WAY) and _UNDER_WAY.acquire(blocking=False)


def _function(of: Specialized, config: Config) -> Callable[..., Any]:
    """Return the compiled function of a config."""
    job = job_of(of, config)
    module = codecache.load(job.text, job.name, BACKENDS[job.backend].executor.prepare)
    function: Callable[..., Any] = getattr(module, job.name)
    return function


def _is_captured() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _has_memory(args: Sequence[Any]) -> bool:
    """Return whether a GPU has memory for copies of its arguments, including memory that torch caches."""
    sizes: dict[torch.device, int] = {}
    for tensor in filter(stub.on_gpu, tensors_in(args)):
        sizes[tensor.device] = sizes.get(tensor.device, 0) + tensor.untyped_storage().nbytes()
    return all(_free(device) >= _COPIES * size + _FLUSHED for device, size in sizes.items())


def _free(device: torch.device) -> int:
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
