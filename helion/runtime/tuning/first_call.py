"""Seeds that the first call on a GPU measures without a request for tuning, because predictions favor them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ... import knobs
from ..._compiler.ir.effects import meets_other_gpus
from ..._support.locks import is_held_here, new_lock
from ...autotuner.options import Options
from ...backends import BACKENDS, stub
from ...config import Config
from ..call.signature import tensors_in
from ..generated import codecache
from ..specialization.specialized import Specialized
from . import autotune
from .evaluator import job_of

#: Maximum of seeds that are measured with the default config, the fastest by prediction first.
MOST = 2
#: Ratio of a seed's predicted time to that of the default config, below which it is measured. Closer predictions do not
#: tell which is faster.
_LESS = 0.97
#: Seconds after which no further one is compiled.
SECONDS = 1.0
#: Timeout in seconds to wait for other processes' measurements: the call should not take long.
_LOCK_SECONDS = 5.0
#: Memory needed to measure, as a multiple of that of the arguments: copies to restore and compare, and results of two
#: configs. Then the memory that flushes the caches.
_COPIES, _FLUSHED = 6, 1 << 30
#: Tuning options, each of which means that the user decides when to tune.
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
    """List the seeds that are predicted to be clearly faster than ``config``, and to fit without spilling."""
    known = (seed.predicted for seed in of.analysis.seeds.seeds if seed.config == config)
    least = (next(known, None) or of.analysis.predict(config)).time_us
    seeds = [seed for seed in of.analysis.seeds.seeds if seed.predicted.fits and not seed.predicted.spills]
    faster = [seed for seed in seeds if seed.predicted.time_us < _LESS * least and seed.config != config]
    return [seed.config for seed in sorted(faster, key=lambda seed: seed.predicted.time_us)][:MOST]


def is_left_alone(of: Specialized, args: Sequence[Any]) -> bool:
    """Return whether a call runs its default config without measuring.

    Reasons: tuning is switched off or decided by the user, or a graph may be recorded. Results may have to be the same
    in every run or on every machine, or memory is short.
    """
    return (
        any(getattr(of.settings, name) for name in _DECIDED)
        or knobs.DISALLOW_AUTOTUNING.read()
        or of.tabled is not None
        or stub.active()
        or torch.is_inference_mode_enabled()
        or torch.are_deterministic_algorithms_enabled()
        or _is_one_of_many()
        or meets_other_gpus(of.analysis.program)
        or of.kernel.is_in_graphs
        or _is_captured()
        or not _has_memory(args)
    )


def measured(of: Specialized, args: Sequence[Any], config: Config) -> Config:
    """Return the fastest of ``config``, the default, and its contenders.

    Another config must be certainly faster and give the same results. Writes its result to the cache. Raises every
    error.
    """
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
        # the tag separates it from requested tuning
        found = autotune.tuned(of, args, options, [config, *seeds], force=False)
    finally:
        _UNDER_WAY.release()
    if found.result is not None and found.result.why == "interrupted":
        raise KeyboardInterrupt  # it was meant for the program, which requested no search
    return found.config


def _begun() -> bool:
    """Take the turn to measure, not reentrant; return False if another measurement is in flight."""
    return not is_held_here(_UNDER_WAY) and _UNDER_WAY.acquire(blocking=False)


def _function(of: Specialized, config: Config) -> Callable[..., Any]:
    """Return the compiled function of a config."""
    job = job_of(of, config)
    module = codecache.load(job.text, job.name, BACKENDS[job.backend].executor.prepare)
    function: Callable[..., Any] = getattr(module, job.name)
    return function


def _is_one_of_many() -> bool:
    """Return whether other processes compute the same results, which must agree in every bit."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


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
