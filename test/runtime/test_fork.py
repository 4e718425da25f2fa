"""Processes forked while other threads run, compile and bind kernels: no lock is held for ever, and nothing stays half done."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion._support import lazy
from helion._support import locks as _locks
from helion.backends import stub
from helion.backends.triton.execute.interpreter.semantic import SEMANTIC
from helion.backends.triton.toolchain import offline

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")


@helion.kernel(config=helion.Config(block_sizes=[8]))
def double(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t] = x[t] * 2
    return out


def forked(work: Callable[[], bool]) -> int:
    """The exit status of a forked process that works: 0 if it found what it should, a signal if it did not end."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(600)  # it hangs
        try:
            os._exit(0 if work() else 1)
        except BaseException:
            os._exit(2)
    return os.waitpid(pid, 0)[1]


@pytest.fixture
def held() -> Iterator[Callable[..., None]]:
    """Has another thread hold locks until the test is over."""
    done = threading.Event()
    threads = []

    def hold(*locks: Any) -> None:
        has = threading.Event()

        def wait() -> None:
            with contextlib.ExitStack() as taken:
                for lock in locks:
                    taken.enter_context(lock)
                has.set()
                done.wait()

        threads.append(threading.Thread(target=wait))
        threads[-1].start()
        assert has.wait(600)

    yield hold
    done.set()
    for thread in threads:
        thread.join()


def right() -> bool:
    x = torch.arange(11.0) + 1
    return torch.equal(double(x), x * 2) and torch.equal(double(x[:7]), x[:7] * 2)


def test_every_lock_that_another_thread_holds(held: Callable[[Any], None]) -> None:
    assert right()
    held(*_locks._LOCKS)
    assert forked(right) == 0


def test_a_lock_of_this_thread_stays_held() -> None:
    def work() -> bool:
        return _locks.is_held_here(_locks.TRITON_LOCK) and right()

    with _locks.TRITON_LOCK, double.variants._lock:
        assert (
            forked(lambda: _locks.is_held_here(double.variants._lock) and _locks.is_held_here(_locks.TRITON_LOCK)) == 0
        )
    with _locks.TRITON_LOCK:
        assert forked(work) == 0
        assert not _locks.is_held_elsewhere(_locks.TRITON_LOCK)
    assert right()


class Slow:
    @functools.cached_property
    def value(self) -> int:
        _BEGUN.set()
        time.sleep(0.3)
        return 3


_BEGUN = threading.Event()


def test_properties_that_another_thread_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slow, "__module__", "helion.config")
    monkeypatch.setattr(helion.config, "Slow", Slow, raising=False)
    thread = threading.Thread(target=lambda: Slow().value)
    thread.start()
    assert _BEGUN.wait(600)
    assert forked(lambda: Slow().value == 3) == 0
    thread.join()


def test_an_interpreted_launch_of_another_thread_is_forgotten(
    held: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = SEMANTIC.builder
    monkeypatch.setattr(builder, "races", object(), raising=False)
    monkeypatch.setattr(builder, "kernel", "of another thread")
    monkeypatch.setattr(builder, "program", (3, 0, 0))
    held(_locks.TRITON_LOCK)
    assert forked(lambda: (builder.races, builder.kernel, builder.program) == (None, "", (0, 0, 0)) and right()) == 0
    assert builder.kernel == "of another thread"


def test_a_compilation_of_another_thread_is_forgotten(held: Callable[[Any], None]) -> None:
    from triton.runtime.jit import JITFunction

    double(torch.ones(3))
    bound = double.bind((torch.ones(3),))
    module = bound.compile_config(bound.config)
    (kernel,) = [each for each in inspect.unwrap(module).__globals__.values() if isinstance(each, JITFunction)]
    held(_locks.TRITON_LOCK)
    held(kernel._hash_lock)
    assert forked(lambda: bool(kernel.cache_key)) == 0
    assert offline.ptxas_version()


def test_recovery_is_for_what_was_held(held: Callable[[Any], None]) -> None:
    free, taken, done = _locks.new_lock(), _locks.new_lock(), []
    _locks.recover(free, lambda: done.append("free"))
    _locks.recover(taken, lambda: done.append("taken"))
    held(taken)
    assert forked(lambda: done == ["taken"]) == 0
    assert not done


def test_a_fork_waits_for_imports_on_demand() -> None:
    done = []

    def slow() -> None:
        with _locks.importing():
            begun.set()
            time.sleep(0.2)
            done.append(True)

    begun = threading.Event()
    thread = threading.Thread(target=slow)
    thread.start()
    assert begun.wait(600)
    assert forked(lambda: done == [True] and lazy.lazy("helion.config").Config is helion.Config) == 0
    thread.join()
    assert not _locks._IMPORTS and not _locks._FORKING


def _run(x: torch.Tensor) -> None:
    double(x)


def _compile(x: torch.Tensor) -> None:
    helion.kernel(double.fn, config=double.configs[0])(x)


def _bind(x: torch.Tensor) -> None:
    double.bind((x,))


@pytest.mark.parametrize("count", [2, pytest.param(100, marks=pytest.mark.prove)])
def test_forks_beside_threads_that_work(count: int) -> None:
    assert right()
    stop = threading.Event()

    def repeat(work: Callable[[torch.Tensor], None]) -> None:
        size = 0
        while not stop.is_set():
            size = size % 50 + 1
            work(torch.ones(size))

    threads = [threading.Thread(target=repeat, args=(work,)) for work in (_run, _compile, _bind)]
    for thread in threads:
        thread.start()
    try:
        for at in range(count):
            time.sleep(0.003 * (at % 7))
            assert forked(right) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_child_without_cuda_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    assert right()  # CPU tensors need none
    monkeypatch.setattr(stub, "on_gpu", lambda value: isinstance(value, torch.Tensor))
    with pytest.raises(exc.CudaInForkedProcess, match=r"Kernel 'double'.*spawn"):
        double(torch.ones(3))
    with pytest.raises(exc.CudaInForkedProcess):
        double.bind((torch.ones(3),))(torch.ones(3))
