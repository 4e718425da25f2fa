"""Clocks for the duration of functions on a device."""

from __future__ import annotations

import functools
import math
import time
import warnings
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol

import torch

from ...autotuner.measure.runs import COOL_SECONDS, FEWEST_ROUNDS, WARM_SECONDS, Run, in_turns, samples

#: Bytes written before every timed run: more than any L2 has.
_FLUSH_BYTES = 256 << 20

Function = Callable[[], Any]


class Clock(Protocol):
    """Clock that times functions with flushed caches."""

    def time(self, function: Function, expected: float, best: float) -> list[float]:
        """Time a function and return microseconds of its runs.

        ``expected`` is the prediction, ``best`` the least median so far: a function far from it runs a few times only.
        """
        ...

    def rounds(self, functions: Sequence[tuple[Function, float]], count: int) -> list[list[float]]:
        """Return microseconds of up to ``count`` rounds, each with one run of every function in a random order.

        Functions are paired with their predictions.
        """
        ...

    def wait(self) -> None:
        """Wait until all launches have ended. Raises errors of the device."""
        ...


class DeviceClock:
    """A GPU's own clock: the time between two events around a call.

    The call is replayed from a CUDA graph if it can be captured, so that the launch overhead does not count.
    """

    def __init__(self, device: torch.device, seed: int) -> None:
        self._device = device
        self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=device)
        self._stream = torch.cuda.Stream(device)
        self._rng = Random(seed)
        #: A graph that keeps the pool of all others.
        self._anchor: Any = None
        self._warm_until = -math.inf

    def time(self, function: Function, expected: float, best: float) -> list[float]:
        (run,) = self._runs([function])
        return samples(run, best, time.perf_counter)

    def rounds(self, functions: Sequence[tuple[Function, float]], count: int) -> list[list[float]]:
        runs = self._runs([function for function, _ in functions])
        warming = 0.0 if time.perf_counter() < self._warm_until else WARM_SECONDS
        rows = in_turns(runs, count, self._rng, time.perf_counter, warming)
        self._warm_until = time.perf_counter() + COOL_SECONDS
        return rows

    def wait(self) -> None:
        torch.cuda.synchronize()

    def _runs(self, functions: Sequence[Function]) -> list[Run]:
        """Return replayed runs of all functions, or of none: times with and without launch overhead are not comparable."""
        waiting = [_waits(function) for function in functions]
        self.wait()
        captured = [] if any(waiting) else [self._captured(function) for function in functions]
        runs = [run for run in captured if run is not None]
        if len(runs) == len(functions):
            return runs
        return [functools.partial(self._between, function) for function in functions]

    def _captured(self, function: Function) -> Run | None:
        start, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))

        def whole() -> None:
            self._flush.zero_()
            start.record()
            function()
            end.record()

        graph = self._recorded(whole)
        if graph is None:
            return None

        def run() -> float:
            graph.replay()
            self.wait()
            return 1e3 * start.elapsed_time(end)

        return run

    def _recorded(self, function: Function) -> Any:
        """Return the graph of a function; None if it cannot be captured.

        ``torch.cuda.graph`` would first free the memory that torch caches, and the next launches would allocate it again.
        Here it is freed only if memory does not suffice (measurement ``first_call_captures``). All graphs share a pool, and
        so do all results their memory.
        """
        generator = torch.cuda.default_generators[self._device.index or 0]
        state = generator.clone_state()
        for _ in range(2):
            try:
                if self._anchor is None:
                    self._anchor = self._record(self._flush[:1].zero_, torch.cuda.graph_pool_handle())
                return self._record(function, self._anchor.pool())
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
            except RuntimeError:
                break
        # after a failed capture, torch 2.11 leaves its generator unusable outside of one, and its pool in use
        self._anchor = None
        generator.graphsafe_set_state(state)
        self.wait()
        return None

    def _record(self, function: Function, pool: Any) -> Any:
        """Return the graph of a function, whose memory is of ``pool``. Raises ``RuntimeError`` if it cannot be captured."""
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=pool)
            try:
                function()
            finally:
                graph.capture_end()
        return graph

    def _between(self, function: Function) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flush.zero_()
        start.record()
        function()
        end.record()
        self.wait()
        return 1e3 * start.elapsed_time(end)


def _waits(function: Function) -> bool:
    """Run a function, and return whether its host code waits for the device, so that it cannot be captured."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode is a prototype, says torch
        torch.cuda.set_sync_debug_mode("error")
    try:
        function()
    except RuntimeError:  # whatever else it is, it is raised when the function is timed
        return True
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    return False


class SimulatedClock:
    """A clock without a GPU: each function runs once, and its time is the prediction, with noise."""

    #: The standard deviation of the logarithm of times, as an H200 shows from run to run.
    NOISE = 0.01

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)

    def time(self, function: Function, expected: float, best: float) -> list[float]:
        function()
        return [self._noisy(expected) for _ in range(5)]

    def rounds(self, functions: Sequence[tuple[Function, float]], count: int) -> list[list[float]]:
        for function, _ in functions:
            function()
        return [[self._noisy(expected) for _, expected in functions] for _ in range(count)]

    def wait(self) -> None:
        pass

    def _noisy(self, expected: float) -> float:
        return expected * math.exp(self._rng.gauss(0.0, self.NOISE))


#: Runs of each function that the user's own benchmark is called for at a time.
_REPEATS = 5


class UserClock:
    """The user's own clock: ``benchmark(functions, repeat=..., desc=...)`` returns the milliseconds of each function."""

    def __init__(self, benchmark: Callable[..., Sequence[float]], inner: Clock, seed: int) -> None:
        self._benchmark = benchmark
        self._inner = inner
        self._rng = Random(seed)

    def time(self, function: Function, expected: float, best: float) -> list[float]:
        return self._row([function])

    def rounds(self, functions: Sequence[tuple[Function, float]], count: int) -> list[list[float]]:
        order = list(range(len(functions)))
        rows = []
        for _ in range(min(count, FEWEST_ROUNDS)):  # each is the result of several runs
            self._rng.shuffle(order)
            times = dict(zip(order, self._row([functions[at][0] for at in order]), strict=True))
            rows.append([times[at] for at in range(len(functions))])
        return rows

    def wait(self) -> None:
        self._inner.wait()

    def _row(self, functions: list[Function]) -> list[float]:
        times = list(self._benchmark(functions, repeat=_REPEATS, desc=None))
        if len(times) != len(functions) or not all(isinstance(t, (int, float)) and 0 < t < math.inf for t in times):
            raise ValueError(
                f"autotune_benchmark_fn gave {times!r}, not the milliseconds of {len(functions)} functions"
            )
        return [1e3 * float(time) for time in times]


def clock_of(device: torch.device, seed: int, benchmark: Callable[..., Sequence[float]] | None = None) -> Clock:
    """Return the clock of a device, or one that calls the user's ``benchmark``, if there is one."""
    own: Clock = DeviceClock(device, seed) if device.type == "cuda" else SimulatedClock(seed)
    return own if benchmark is None else UserClock(benchmark, own, seed)
