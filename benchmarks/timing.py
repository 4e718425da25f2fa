"""Times on a GPU: CUDA graphs, a cold L2, variants in turn; and the same from a recording, for machines without one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

#: Written before every timed run; the largest L2 of a current GPU (CDNA3's last-level cache) just fits.
FLUSH_BYTES = 256 * 2**20
REPETITIONS, LEAST_REPETITIONS = 15, 11
#: Functions that take longer than this many microseconds are timed so often: their runs differ by 4 % at most (an H200).
SLOW, SLOW_REPETITIONS = 100_000.0, 3


@dataclass(frozen=True, kw_only=True)
class Times:
    """Microseconds of device time of one function."""

    median: float
    low: float
    """The lower quartile."""
    high: float
    """The upper quartile."""

    @classmethod
    def of(cls, samples: Sequence[float]) -> Times:
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median=median, low=low, high=high)


def reason(error: BaseException, length: int = 300) -> str:
    """Class and first line of an error."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first[:length]}"


class Timer(Protocol):
    def time(self, functions: Mapping[str, Callable[[], Any]]) -> tuple[dict[str, Times], dict[str, str]]:
        """Times by name, and why there are none for the other names."""


class GraphTimer:
    """Device time between two event nodes around one call in a CUDA graph; L2 is overwritten before each.

    Functions that read then wait for lines that L2 writes back. With ``clean``, L2 is filled by reads after that.
    The graphs of all variants are replayed in turn, so that a change of clocks meets all of them alike.
    """

    def __init__(self, repetitions: int = REPETITIONS, clean: bool = False) -> None:
        if repetitions < LEAST_REPETITIONS:
            raise ValueError(f"a median of {repetitions} runs says too little; take at least {LEAST_REPETITIONS}")
        self.repetitions = repetitions
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
        self._read = torch.zeros(FLUSH_BYTES // 4, device="cuda") if clean else None
        self._stream = torch.cuda.Stream()

    def time(self, functions: Mapping[str, Callable[[], Any]]) -> tuple[dict[str, Times], dict[str, str]]:
        graphs: dict[str, Callable[[], float]] = {}
        failures: dict[str, str] = {}
        for name, function in functions.items():
            try:
                graphs[name] = self._captured(function)
            except Exception as error:  # of any library that is timed: it belongs into the table
                failures[name] = reason(error)
                torch.cuda.synchronize()
        samples: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(self.repetitions):
            for name, replay in graphs.items():
                if len(samples[name]) < SLOW_REPETITIONS or samples[name][-1] < SLOW:
                    samples[name].append(replay())
        graphs.clear()
        torch.cuda.empty_cache()  # gives the memory of the graphs back
        return {name: Times.of(values) for name, values in samples.items()}, failures

    def _captured(self, function: Callable[[], Any]) -> Callable[[], float]:
        """A function that replays the graph of one cold run and returns its microseconds."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(2):
                function()
        torch.cuda.current_stream().wait_stream(self._stream)
        start = torch.cuda.Event(enable_timing=True, external=True)
        end = torch.cuda.Event(enable_timing=True, external=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            self._flush.zero_()
            if self._read is not None:
                self._read.amax()
            start.record()
            function()
            end.record()

        def replay() -> float:
            graph.replay()
            torch.cuda.synchronize()
            return 1e3 * start.elapsed_time(end)

        return replay


class RecordedTimer:
    """Calls every function once and answers with times given beforehand: the harness without a GPU."""

    def __init__(self, microseconds: Mapping[str, Sequence[float]]) -> None:
        self.microseconds = microseconds

    def time(self, functions: Mapping[str, Callable[[], Any]]) -> tuple[dict[str, Times], dict[str, str]]:
        times, failures = {}, {}
        for name, function in functions.items():
            try:
                function()
                times[name] = Times.of(self.microseconds[name])
            except Exception as error:
                failures[name] = reason(error)
        return times, failures


def copy_bandwidth(timer: Timer, bytes_copied: int = 2**30) -> float:
    """10**9 bytes per second that an elementwise copy of a large tensor reads and writes."""
    source = torch.randn([bytes_copied // 4], device="cuda")
    target = torch.empty_like(source)
    # a kernel: the driver's own copy is slower in a graph
    times, _ = timer.time({"copy": lambda: torch.mul(source, 1.0, out=target)})
    return 2 * bytes_copied / times["copy"].median * 1e-3
