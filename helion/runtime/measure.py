"""Times of compiled kernels on a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch

from .. import exc
from ..config import Config
from .compiled import Compiled

#: Candidates among given configs are timed this often; the median counts.
_REPETITIONS = 11


def fastest(compiled: Compiled, configs: Sequence[Config], args: Sequence[Any]) -> Config:
    """The config with the least median time on the device of ``args``; configs that fail to launch are left out.

    Inputs are cloned for every candidate, so that a kernel that writes into them is timed on equal data.
    """
    times: dict[Config, float] = {}
    failures: list[str] = []
    for config in configs:
        copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        try:
            times[config] = _median_ms(compiled.function(config), copies)
        except compiled.specialized.executor.error as error:
            failures.append(f"{config!r}: {error.__cause__}")
    if not times:
        raise exc.NoConfigFound(kernel=compiled.specialized.kernel.name, reason="; ".join(failures))
    return min(times, key=times.__getitem__)


def _median_ms(run: Any, args: Sequence[Any]) -> float:
    run(*args)
    torch.cuda.synchronize()
    samples = []
    for _ in range(_REPETITIONS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run(*args)
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end))
    return statistics.median(samples)
