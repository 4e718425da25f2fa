"""Seeds that are measured at the first call on a GPU though nobody asked for tuning: where predictions doubt the first one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ... import knobs
from ..._locks import is_held_here, new_lock
from ...autotuner.options import Options
from ...backends import BACKENDS, stub
from ...config import Config
from .. import codecache
from ..signature import tensors_in
from ..specialized import Specialized
from . import autotune
from .evaluator import job_of

#: Seeds that are measured beside the config that would run, the fastest by prediction first.
MOST = 2
#: Part of the time of the config that would run that they may be predicted to take: closer predictions say nothing about which
#: is faster, as with backends.
_LESS = 0.97
#: Seconds after which no further one is compiled.
SECONDS = 1.0
#: Seconds that a candidate waits at most until other processes have measured: nobody has asked the call to take long.
_LOCK_SECONDS = 5.0
#: Memory that measuring may need: so many times that of the arguments (copies to restore them from and to compare them with,
#: results of two configs), and what caches are flushed with.
_COPIES, _FLUSHED = 6, 1 << 30
#: What users say about tuning, each of which means that they decide when it happens.
_DECIDED = (
    "autotune_baseline_fn",
    "autotune_baseline_accuracy_check_fn",
    "autotune_benchmark_fn",
    "autotune_config_filter",
    "autotune_config_overrides",
    "autotune_seed_configs",
)

_UNDER_WAY = new_lock()


def contenders(of: Specialized, config: Config) -> list[Config]:
    """Seeds that are predicted to be clearly faster than ``config``, and to fit without spilling."""
    known = (seed.predicted for seed in of.analysis.seeds.seeds if seed.config == config)
    least = (next(known, None) or of.analysis.predict(config)).time_us
    seeds = [seed for seed in of.analysis.seeds.seeds if seed.predicted.fits and not seed.predicted.spills]
    faster = [seed for seed in seeds if seed.predicted.time_us < _LESS * least and seed.config != config]
    return [seed.config for seed in sorted(faster, key=lambda seed: seed.predicted.time_us)][:MOST]


def is_left_alone(of: Specialized, args: Sequence[Any]) -> bool:
    """Whether a call runs what it would run untuned without asking any further: tuning is switched off or decided by the
    user, a graph is or may be recorded, results must be the same in every run or on every machine, or memory is short."""
    return (
        any(getattr(of.settings, name) for name in _DECIDED)
        or knobs.DISALLOW_AUTOTUNING.read()
        or of.tabled is not None
        or stub.active()
        or torch.is_inference_mode_enabled()
        or torch.are_deterministic_algorithms_enabled()
        or _is_one_of_many()
        or of.kernel.is_in_graphs
        or _is_captured()
        or not _has_memory(args)
    )


def measured(of: Specialized, args: Sequence[Any], config: Config) -> Config:
    """The fastest of ``config``, which would run untuned, and its contenders; ``config`` unless another one is certainly
    faster and gives the same results. Keeps what it finds. Raises whatever goes wrong."""
    seeds = contenders(of, config)
    if not seeds or is_left_alone(of, args) or not _begun():
        return config
    try:
        asked = {
            "progress": False,
            "seconds": SECONDS,
            "lock_seconds": _LOCK_SECONDS,
            "baseline": _function(of, config),
        }
        options = Options.of(of.settings, "minimal", asked)
        # as a list of configs it is kept apart from what somebody asked for
        found = autotune.tuned(of, args, options, [config, *seeds], force=False)
    finally:
        _UNDER_WAY.release()
    if found.result is not None and found.result.why == "interrupted":
        raise KeyboardInterrupt  # it was not meant for a search that nobody asked for
    return found.config


def _begun() -> bool:
    """Take the turn to measure, which no thread has twice; False where another measurement is under way."""
    return not is_held_here(_UNDER_WAY) and _UNDER_WAY.acquire(blocking=False)


def _function(of: Specialized, config: Config) -> Callable[..., Any]:
    """The compiled function of a config."""
    job = job_of(of, config)
    module = codecache.load(job.text, job.name, BACKENDS[job.backend].executor.prepare)
    function: Callable[..., Any] = getattr(module, job.name)
    return function


def _is_one_of_many() -> bool:
    """Whether other processes compute the same, and must agree in every bit."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _is_captured() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _has_memory(args: Sequence[Any]) -> bool:
    """Whether a GPU has memory for copies of its arguments, of what torch holds and does not use, too."""
    sizes: dict[torch.device, int] = {}
    for tensor in filter(stub.on_gpu, tensors_in(args)):
        sizes[tensor.device] = sizes.get(tensor.device, 0) + tensor.untyped_storage().nbytes()
    return all(_free(device) >= _COPIES * size + _FLUSHED for device, size in sizes.items())


def _free(device: torch.device) -> int:
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
