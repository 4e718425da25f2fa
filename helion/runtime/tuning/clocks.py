"""How long a function takes on a device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

import torch

#: Written before every timed run: more than any L2 holds.
_FLUSH_BYTES = 256 << 20
#: Runs of one candidate, the seconds that they may take, and how much slower than the best so far ends them early.
_RUNS, _FEWEST, _SECONDS, _FAR = 20, 3, 0.05, 2.0


class Clock(Protocol):
    """Times functions."""

    def time(self, function: Callable[[], Any], expected: float, best: float) -> list[float]:
        """Microseconds of runs, with what was in the caches gone before each. ``expected`` is the prediction, ``best`` the
        least median so far: what is far from it is run a few times only."""
        ...

    def wait(self) -> None:
        """Returns when everything that was launched has ended. Raises what went wrong on the device."""
        ...


class DeviceClock:
    """A GPU's own: the time between two events around a call, which is replayed from a graph where it can be captured, so
    that launching does not count."""

    def __init__(self, device: torch.device) -> None:
        self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=device)
        self._stream = torch.cuda.Stream(device)

    def time(self, function: Callable[[], Any], expected: float, best: float) -> list[float]:
        function()
        self.wait()
        run = self._captured(function) or (lambda: self._between(function))
        times: list[float] = []
        began = time.perf_counter()
        while len(times) < _RUNS and (len(times) < _FEWEST or time.perf_counter() - began < _SECONDS):
            times.append(run())
            if len(times) == _FEWEST and min(times) > _FAR * best:
                break
        return times

    def wait(self) -> None:
        torch.cuda.synchronize()

    def _captured(self, function: Callable[[], Any]) -> Callable[[], float] | None:
        start, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                self._flush.zero_()
                start.record()
                function()
                end.record()
        except RuntimeError:  # host code that waits for the device cannot be captured
            self.wait()
            return None

        def run() -> float:
            graph.replay()
            self.wait()
            return 1e3 * start.elapsed_time(end)

        return run

    def _between(self, function: Callable[[], Any]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flush.zero_()
        start.record()
        function()
        end.record()
        self.wait()
        return 1e3 * start.elapsed_time(end)


class SimulatedClock:
    """No GPU: the function runs once, and takes as long as it is predicted to, with noise."""

    #: The standard deviation of the logarithm of times: what an H200 shows from run to run.
    NOISE = 0.01

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)

    def time(self, function: Callable[[], Any], expected: float, best: float) -> list[float]:
        function()
        return [expected * math.exp(self._rng.gauss(0.0, self.NOISE)) for _ in range(5)]

    def wait(self) -> None:
        pass


def clock_of(device: torch.device, seed: int) -> Clock:
    return DeviceClock(device) if device.type == "cuda" else SimulatedClock(seed)
