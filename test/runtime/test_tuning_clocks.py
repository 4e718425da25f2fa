"""The clock of a device on a stand-in for torch's graphs and events: what is captured is replayed, or nothing is."""

from __future__ import annotations

import contextlib
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
import torch

from helion.autotuner.measure.runs import COOL_SECONDS, in_turns, samples
from helion.runtime.tuning import clocks


class FakeCuda:
    """Time passes as functions say; replaying a graph runs what was captured in it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []
        self.recording: list[Callable[[], None]] | None = None
        #: Functions that wait for the device: as torch sees it, and otherwise.
        self.waits: set[str] = set()
        self.waits_unseen: set[str] = set()
        self.mode = 0
        self.streams: list[Any] = ["the user's"]
        self.generator = "the user's"
        self.pools = itertools.count()
        self.broken: set[int] = set()
        #: Runs that find no memory before the cache is emptied.
        self.without_memory = 0

    def emptied(self) -> None:
        self.calls.append("emptied")
        self.without_memory = 0

    def work(self, name: str, seconds: float) -> Callable[[], None]:
        def function() -> None:
            if self.mode == "error" and name in self.waits:
                raise RuntimeError("called a synchronizing CUDA operation")
            if self.recording is not None and name in self.waits | self.waits_unseen:
                raise RuntimeError("operation not permitted when stream is capturing")
            if self.recording is not None and self.without_memory:
                raise torch.OutOfMemoryError("out of memory")
            self.do(lambda: self._worked(name, seconds))

        return function

    def do(self, step: Callable[[], None]) -> None:
        if self.recording is None:
            step()
        else:
            self.recording.append(step)

    def _worked(self, name: str, seconds: float) -> None:
        self.calls.append(name)
        self.now += seconds

    def module(self) -> types.SimpleNamespace:
        fake = self

        class Event:
            def __init__(self, **_: Any) -> None:
                self.at = 0.0

            def record(self) -> None:
                fake.do(lambda: setattr(self, "at", fake.now))

            def elapsed_time(self, end: Event) -> float:
                return 1e3 * (end.at - self.at)

        class Graph:
            steps: list[Callable[[], None]]

            def capture_begin(self, *, pool: Any) -> None:
                """A pool takes no other graph after a failure, and the generator is unusable."""
                assert fake.streams[-1] != "the user's" and pool not in fake.broken
                self.of, fake.recording, fake.generator = pool, [], "capturing"
                self.steps = fake.recording

            def capture_end(self) -> None:
                fake.recording = None
                if isinstance(sys.exc_info()[1], RuntimeError) and not isinstance(
                    sys.exc_info()[1], torch.OutOfMemoryError
                ):
                    fake.broken.add(self.of)
                    raise RuntimeError("operation failed due to a previous error during capture")
                fake.generator = "the user's"

            def pool(self) -> Any:
                return self.of

            def replay(self) -> None:
                for step in self.steps:
                    step()

        @contextlib.contextmanager
        def on(stream: Any) -> Iterator[None]:
            fake.streams.append(stream)
            try:
                yield
            finally:
                fake.streams.pop()

        def set_mode(mode: Any) -> None:
            fake.mode = mode

        generator = types.SimpleNamespace(
            clone_state=lambda: fake.generator, graphsafe_set_state=lambda state: setattr(fake, "generator", state)
        )
        return types.SimpleNamespace(
            Event=Event, CUDAGraph=Graph, stream=on, current_stream=lambda: fake.streams[-1],
            Stream=lambda device: types.SimpleNamespace(wait_stream=lambda other: None), synchronize=lambda: None,
            graph_pool_handle=lambda: next(fake.pools), default_generators=[generator], empty_cache=fake.emptied,
            get_sync_debug_mode=lambda: fake.mode, set_sync_debug_mode=set_mode,
        )  # fmt: skip


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(clocks, "_FLUSH_BYTES", 8)
    monkeypatch.setattr(torch, "cuda", fake.module())
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: fake.now)
    return fake


def test_every_function_runs_once_a_round_in_changing_orders(cuda: FakeCuda) -> None:
    clock = clocks.DeviceClock(torch.device("cpu"), 3)
    functions = [(cuda.work(name, seconds), 1.0) for name, seconds in (("a", 1e-4), ("b", 2e-4), ("c", 3e-4))]
    rows = clock.rounds(functions, 12)
    assert [[round(time) for time in row] for row in rows] == [[100, 200, 300]] * 12
    orders = {tuple(cuda.calls[at : at + 3]) for at in range(len(cuda.calls) - 36, len(cuda.calls), 3)}
    assert len(orders) > 3 and all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert sum({"a": 1e-4, "b": 2e-4, "c": 3e-4}[name] for name in cuda.calls[3:-36]) >= 0.02  # warmed up


@pytest.mark.parametrize("unseen", [False, True])
def test_where_one_cannot_be_captured_none_is_replayed(cuda: FakeCuda, unseen: bool) -> None:
    """Nor is anything left of the attempt."""
    (cuda.waits_unseen if unseen else cuda.waits).add("b")
    clock = clocks.DeviceClock(torch.device("cpu"), 3)
    rows = clock.rounds([(cuda.work("a", 1e-4), 1.0), (cuda.work("b", 2e-4), 1.0)], 5)
    assert [[round(time) for time in row] for row in rows] == [[100, 200]] * 5
    assert len(clock.time(cuda.work("b", 2e-4), 1.0, 1e9)) == 20
    assert (cuda.streams, cuda.generator, cuda.mode) == (["the user's"], "the user's", 0)


def test_a_capture_without_memory_is_repeated_with_an_empty_cache(cuda: FakeCuda) -> None:
    clock = clocks.DeviceClock(torch.device("cpu"), 3)
    cuda.without_memory = 1
    rows = clock.rounds([(cuda.work("a", 1e-4), 1.0), (cuda.work("b", 2e-4), 1.0)], 5)
    assert [[round(time) for time in row] for row in rows] == [[100, 200]] * 5
    assert cuda.calls.count("emptied") == 1 and next(cuda.pools) == 1  # one pool for all


def test_a_warm_device_is_not_warmed_up_again(cuda: FakeCuda) -> None:
    clock = clocks.DeviceClock(torch.device("cpu"), 3)
    functions = [(cuda.work(name, 1e-4), 1.0) for name in "ab"]
    for idle, runs in ((0.0, 200), (COOL_SECONDS / 2, 0), (2 * COOL_SECONDS, 200)):
        cuda.now += idle
        before = len(cuda.calls)
        clock.rounds(functions, 5)
        assert len(cuda.calls) - before == pytest.approx(2 + runs + 10, abs=2)


def test_what_takes_long_runs_less_often(cuda: FakeCuda) -> None:
    clock = clocks.DeviceClock(torch.device("cpu"), 3)
    slow = cuda.work("slow", 0.5)
    assert len(clock.time(slow, 1.0, 1e9)) == 3 and len(clock.rounds([(slow, 1.0)], 40)) == 5
    assert len(clock.time(cuda.work("far", 1e-3), 1.0, 100.0)) == 3


def test_runs_begin_when_the_device_is_warm() -> None:
    now = [0.0]

    def run() -> float:
        now[0] += 1e-3
        return 2.0 if now[0] < 0.015 else 1.0

    assert samples(run, 1e9, lambda: now[0]) == [1.0] * 20
    now[0] = 0.0
    assert in_turns([run], 3, Random(0), lambda: now[0]) == [[1.0]] * 3
    now[0] = 0.0
    assert samples(run, 0.0, lambda: now[0]) == [2.0] * 3
