"""Processes that measure on the same GPU do so in turns, on the CPU: a UUID stands for the GPU."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import pytest
import torch

import helion
import helion.language as hl
from helion._support import files
from helion.autotuner.pool.children import Child
from helion.runtime.tuning import autotune, device_lock
from helion.runtime.tuning.bench import Bench
from helion.runtime.tuning.device_lock import DeviceLock, lock_of
from helion.runtime.tuning.session import OfflineJob, Session

UUID = "GPU-of-this-test"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of this test's locks, of which nothing is known."""
    monkeypatch.setattr(files, "private_folder", lambda: tmp_path)
    for name in ("_IN_VAIN", "_RELEASED"):
        monkeypatch.setattr(device_lock, name, type(getattr(device_lock, name))())
    return tmp_path


# a process that holds the lock: at most how often, until it has changed hands five times, and for how many seconds
HOLDER = """
import itertools, json, os, pathlib, sys, time
from helion._support import files
from helion.runtime.tuning.device_lock import DeviceLock
folder, times, seconds = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
files.private_folder = lambda: folder
lock, held, turns = DeviceLock("GPU-of-this-test", 600.0), [], folder / "turns"
print("imported", flush=True)
sys.stdin.readline()
for _ in range(times):
    with lock.held():
        held.append([time.monotonic()])
        if seconds > 1:
            print("held", flush=True)
        with turns.open("a") as file:
            print(os.getpid(), file=file)
        time.sleep(seconds)
        held[-1].append(time.monotonic())
        holders = turns.read_text().split()
    if sum(before != after for before, after in itertools.pairwise(holders)) >= 5:
        break
print(json.dumps(held))
"""


@contextlib.contextmanager
def holder(folder: Path, times: int, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """A process that begins when it is sent a line."""
    command = [sys.executable, "-c", HOLDER, str(folder), str(times), str(seconds)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "imported\n"
        try:
            yield process
        finally:
            process.kill()


def begun(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    assert process.stdin is not None and process.stdout is not None
    print(file=process.stdin, flush=True)
    return process


def holding(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """One that holds the lock until it is killed."""
    assert begun(process).stdout is not None
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_processes_hold_it_one_after_the_other(folder: Path) -> None:
    """And nobody waits until another one has finished."""
    with holder(folder, 2000, 0.01) as one, holder(folder, 2000, 0.01) as other:
        begun(one), begun(other)
        held = [json.loads(process.communicate(timeout=600)[0]) for process in (one, other)]
    spans = sorted((*span, at) for at, each in enumerate(held) for span in each)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    changes = sum(before[2] != after[2] for before, after in itertools.pairwise(spans))
    assert changes >= 5


def test_a_holder_that_is_killed_holds_no_longer(folder: Path) -> None:
    lock, killed = DeviceLock(UUID, 600.0), []

    def kill() -> None:
        killed.append(True)
        os.kill(process.pid, signal.SIGKILL)

    with holder(folder, 1, 1000.0) as process:
        holding(process)
        threading.Timer(0.2, kill).start()
        with lock.held():
            assert killed and lock.waited
    assert not device_lock._IN_VAIN


def test_a_holder_that_never_lets_go_is_waited_for_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = DeviceLock(UUID, 0.5)
    with holder(folder, 1, 1000.0) as process:
        os.kill(holding(process).pid, signal.SIGSTOP)
        with lock.held():
            assert 0.5 <= lock.waited
        began = lock.waited
        with lock.held():
            assert lock.waited - began >= device_lock._AGAIN - 0.01
    assert capsys.readouterr().err.count("another process has measured on GPU GPU-of-this-test for 0.5 s") == 1
    with lock.held():  # it has ended
        assert not device_lock._IN_VAIN


def test_all_waits_together_are_limited(folder: Path) -> None:
    lock = DeviceLock(UUID, 0.2, 0.3)
    with holder(folder, 1, 1000.0) as process:
        os.kill(holding(process).pid, signal.SIGSTOP)
        began = time.monotonic()
        for _ in range(30):
            with lock.held():
                pass
        assert 0.3 <= lock.waited and time.monotonic() - began < 3.0


def test_threads_take_turns_and_a_thread_that_holds_it_has_it(folder: Path) -> None:
    lock, entered = DeviceLock(UUID, 600.0), []

    def other() -> None:
        with DeviceLock(UUID, 600.0).held():
            entered.append("other")

    thread = threading.Thread(target=other)
    with lock.held(), DeviceLock(UUID, 600.0).held():
        thread.start()
        time.sleep(0.05)
        assert entered == []
    thread.join(600)
    assert entered == ["other"]
    with pytest.raises(KeyError), lock.held():
        raise KeyError
    with DeviceLock(UUID, 0.0).held():
        assert not device_lock._IN_VAIN


def test_a_process_forked_by_a_holder_does_not_hold_it(folder: Path) -> None:
    with DeviceLock(UUID, 600.0).held():
        child = os.fork()
        if child == 0:
            time.sleep(1000)
            os._exit(0)
    try:
        with DeviceLock(UUID, 0.0).held():
            assert not device_lock._IN_VAIN
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_where_no_file_can_be_made_there_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(files, "private_folder", lambda: tmp_path / "file")
    device_lock._say_without.cache_clear()
    lock = DeviceLock(UUID, 600.0)
    with caplog.at_level("DEBUG", device_lock.__name__):
        for _ in range(2):
            with lock.held():
                assert not device_lock._IN_VAIN
    assert len(caplog.records) == 1 and re.search("without a lock: (FileExists|NotADirectory)Error", caplog.text)

    def refuse(*args: object, **options: object) -> None:
        raise NotImplementedError("a file system without flock")

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    with caplog.at_level("DEBUG", device_lock.__name__), lock.held():
        assert "without a lock: NotImplementedError: a file system without flock" in caplog.text


def test_gpus_are_told_apart_by_their_uuids(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU without one, and what is no GPU, is nobody else's."""
    given = types.SimpleNamespace(uuid="5f3c")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: given)
    gpu = lock_of(torch.device("cuda", 1), 60.0)
    with gpu.held():
        assert gpu.is_shared and device_lock._HELD.names == {"5f3c"}
    assert device_lock._HELD.names == set()
    assert not lock_of(torch.device("cpu"), 60.0).is_shared
    given = types.SimpleNamespace()
    assert not lock_of(torch.device("cuda", 1), 60.0).is_shared


def add_one(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + 1
    return out


@pytest.mark.parametrize("isolated", [False, pytest.param(True, marks=pytest.mark.prove)])
def test_candidates_are_measured_while_it_is_held_and_compiled_while_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolated: bool
) -> None:
    """A CPU that has a UUID."""
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(autotune, "lock_of", lambda device, seconds, most: DeviceLock(UUID, seconds, most))
    seen: list[tuple[str, bool]] = []

    def watched(owner: Any, name: str, what: str) -> None:
        original = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            seen.append((what, UUID in device_lock._HELD.names))
            return original(*args, **options)

        monkeypatch.setattr(owner, name, call)

    watched(Child, "call", "measured")
    watched(Bench, "_started", "started")
    for name in ("run", "turns"):
        watched(Session, name, "measured")
    watched(OfflineJob, "run", "compiled")
    x = torch.randn(40, 30)
    kernel = helion.kernel(add_one)
    kernel.autotune((x,), configs=3, isolated=isolated, simulated=True, progress=False, workers=1, random_seed=1)
    torch.testing.assert_close(kernel(x), x + 1)
    assert all(held == (what == "measured") for what, held in seen)
    assert {"measured", "started" if isolated else "compiled"} <= {what for what, _ in seen}
