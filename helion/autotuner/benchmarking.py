"""Timing of functions, with the usual statistics for GPU kernels."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

#: Written between two timed runs so that the second starts with a cold L2; the largest L2 of a current GPU (CDNA3's
#: 256 MB last-level cache) just fits.
_L2_FLUSH_BYTES = 256 * 2**20
#: Runs whose mean determines how many runs fill the requested time.
_PROBES = 5
_SUMMARIES: dict[str, Callable[[Sequence[float]], Any]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "min": min,
    "max": max,
    "all": list,
}


def event_times(function: Callable[[], Any], repetitions: int, clear: Iterable[torch.Tensor] = ()) -> list[float]:
    """Return the milliseconds of each run on the current GPU, by its events, each with a cold L2.

    Args:
        function: called without arguments.
        repetitions: how many times.
        clear: tensors whose gradients are removed before each run.
    """
    flush = torch.empty(_L2_FLUSH_BYTES, dtype=torch.int8, device="cuda")
    pairs = []
    for _ in range(repetitions):
        for tensor in clear:
            tensor.grad = None
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        flush.zero_()
        start.record()
        function()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in pairs]


def _wall_times(function: Callable[[], Any], repetitions: int, clear: Iterable[torch.Tensor] = ()) -> list[float]:
    """Return the milliseconds of each run by the host's clock, without a GPU."""
    times = []
    for _ in range(repetitions):
        for tensor in clear:
            tensor.grad = None
        start = time.perf_counter()
        function()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Sequence[torch.Tensor] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    """Measure a function: device time with a cold L2 on a GPU, host time otherwise.

    Args:
        fn: called without arguments.
        warmup: milliseconds of runs that do not count.
        rep: milliseconds of runs that count; at least one run does.
        grad_to_none: tensors whose gradients are removed before each run.
        quantiles: return these quantiles, numbers from 0 to 1, instead of a summary.
        return_mode: ``"mean"``, ``"median"``, ``"min"``, ``"max"``, or ``"all"`` for a list.

    Returns:
        Milliseconds; with ``quantiles`` a list, or a number for a single one.

    Raises:
        ValueError: there is no such ``return_mode``.
    """
    if return_mode not in _SUMMARIES:
        raise ValueError(f"return_mode must be one of {', '.join(_SUMMARIES)}, got {return_mode!r}")
    measure = event_times if torch.cuda.is_available() else _wall_times
    clear = tuple(grad_to_none or ())
    fn()
    estimate = max(statistics.fmean(measure(fn, _PROBES, clear)), 1e-6)
    for _ in range(int(warmup / estimate)):
        fn()
    times = measure(fn, max(1, int(rep / estimate)), clear)
    if quantiles is None:
        return _SUMMARIES[return_mode](times)
    found = torch.quantile(torch.tensor(times, dtype=torch.float64), torch.tensor(quantiles, dtype=torch.float64))
    return found.tolist() if len(found) > 1 else found.item()


def do_bench_generic(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Sequence[torch.Tensor] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    """Measure a function on any device; the same as ``do_bench``.

    Args:
        fn: called without arguments.
        warmup: milliseconds of runs that do not count.
        rep: milliseconds of runs that count.
        grad_to_none: tensors whose gradients are removed before each run.
        quantiles: return these quantiles instead of a summary.
        return_mode: as for ``do_bench``.

    Returns:
        Milliseconds, as ``do_bench``.

    Raises:
        ValueError: there is no such ``return_mode``.
    """
    return do_bench(fn, warmup, rep, grad_to_none, quantiles, return_mode)
