"""Configs that the first call on a GPU measures without a request for tuning, within ``first_call_seconds``.

They are the *leaders*: seeds, and configs near them, that may be faster than the default within the error of
predictions. Threads compile them at the same time. They are checked against the results of the default, then timed in
turns with it. The choice is kept on disk for later processes.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ... import exc, knobs
from ..._support.locks import is_held_here, new_lock
from ..._support.nested import tensors_in
from ...autotuner import leaders
from ...autotuner.options import Options, cpus
from ...autotuner.pool.threads import ThreadPool
from ...autotuner.search.domain import SpaceDomain
from ...autotuner.search.time_model import PredictedTime
from ...autotuner.tuner import Measuring
from ...backends import BACKENDS, stub
from ...config import Config
from ..generated import codecache
from ..specialization.specialized import Specialized
from . import autotune
from .chosen_before import TAG, is_decided
from .evaluator import job_of

#: Configs that are measured with the default one.
MOST = 4
#: The same where a backend compiles one config at a time. They are seeds, predicted to take less than this ratio of the
#: default's time: closer predictions do not tell which is faster.
_MOST_SEEDS, _LESS = 2, 0.97
#: Parts of ``first_call_seconds`` after which no further config is predicted, and after which compilations end.
_PREDICTING, _COMPILING = 0.15, 0.6
#: Configs within this ratio of the least time of a few runs are ranked, and the fastest is compared with the default.
#: Both take a part of ``first_call_seconds``.
_CLOSE, _RANKING, _COMPARING = 1.3, 0.1, 0.15
#: Timeout in seconds to wait for other processes' measurements: the call should not take long.
_LOCK_SECONDS = 5.0
#: Memory needed to measure, as a multiple of that of the arguments: copies to restore and compare, and results of two
#: configs. Then the memory that flushes the caches.
_COPIES, _FLUSHED = 6, 1 << 30
_UNDER_WAY = new_lock()


def measured(of: Specialized, args: Sequence[Any], config: Config) -> Config:
    """Return the fastest of ``config``, the default, and its contenders.

    Another config must be certainly faster and give the same results. Writes its result to the cache. Raises every
    error.
    """
    seconds = of.settings.first_call_seconds
    if not seconds or is_left_alone(of, args) or not _begun():
        return config
    try:
        return _fastest(of, args, config, seconds)
    finally:
        _UNDER_WAY.release()


def _fastest(of: Specialized, args: Sequence[Any], config: Config, seconds: float) -> Config:
    began = time.monotonic()
    others = contenders(of, config, began + _PREDICTING * seconds)
    if not others:
        return config
    asked = {
        "progress": False,
        "seconds": seconds,
        "lock_seconds": _LOCK_SECONDS,
        "baseline": _function(of, config),
        "workers": 1 + len(others),
    }
    options = Options.of(of.settings, "minimal", asked)
    measuring = Measuring(
        close=_CLOSE, ranking_seconds=_RANKING * seconds, comparing_seconds=_COMPARING * seconds, brief=True
    )
    with _threads(of, config, began + _COMPILING * seconds) as pool:
        found = autotune.tuned(of, args, options, [config, *others], tag=TAG, pool=pool, measuring=measuring)
    if found.result is not None and found.result.why == "interrupted":
        raise KeyboardInterrupt  # it was meant for the program, which requested no search
    return found.config


def contenders(of: Specialized, config: Config, until: float) -> list[Config]:
    """List the configs to measure with ``config``, whose code differs, the most promising first.

    Seeds and near configs are predicted until the time ``until`` of ``time.monotonic``.
    """
    if of.analysis.backend.toolchain.together() is None:
        return _faster_seeds(of, config)
    model = PredictedTime(of.analysis.predict)
    seeds = [seed.config for seed in of.analysis.seeds.seeds]
    domain = SpaceDomain(of.analysis.space, model, seeds, moves=leaders.is_moved)

    def allowed(other: Config) -> bool:
        return model.fits(other) and not model.predicted(other).spills

    error = model.predicted(config).error
    found = leaders.leaders(domain, config, error, allowed, lambda: time.monotonic() < until)
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


def _faster_seeds(of: Specialized, config: Config) -> list[Config]:
    """List the seeds that are predicted to be clearly faster than ``config``, and to fit without spilling."""
    known = (seed.predicted for seed in of.analysis.seeds.seeds if seed.config == config)
    least = (next(known, None) or of.analysis.predict(config)).time_us
    seeds = [seed for seed in of.analysis.seeds.seeds if seed.predicted.fits and not seed.predicted.spills]
    faster = [seed for seed in seeds if seed.predicted.time_us < _LESS * least and seed.config != config]
    return [seed.config for seed in sorted(faster, key=lambda seed: seed.predicted.time_us)][:_MOST_SEEDS]


@contextlib.contextmanager
def _threads(of: Specialized, config: Config, until: float) -> Iterator[ThreadPool | None]:
    """Yield a pool of threads that compile all but ``config``; None if the backend compiles one config at a time."""
    together = of.analysis.backend.toolchain.together()
    if together is None:
        yield None
        return
    with together as run:
        yield ThreadPool(run, min(MOST, cpus()), until, compiled=(config,))


def is_left_alone(of: Specialized, args: Sequence[Any]) -> bool:
    """Return whether a call runs its default config without measuring.

    Reasons are those of ``is_decided``, that tuning is switched off, that a graph may be recorded, and too little memory.
    """
    return (
        is_decided(of)
        or knobs.DISALLOW_AUTOTUNING.read()
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
