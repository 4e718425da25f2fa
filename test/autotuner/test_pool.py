"""Processes that crash, hang, or take all memory lose their own work and nothing else, and none outlives who started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from workloads import Counter, Work

from helion.autotuner.pool import compiling
from helion.autotuner.pool.children import (
    ATTEMPTS,
    ForkServer,
    ProcessDied,
    Raised,
    ServerDied,
    TimedOut,
    shared_fork_server,
)
from helion.autotuner.pool.compiling import CompilePool, Patience


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer() as started:
        yield started


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int) -> bool:
    """Wait until a process has ended; one that never ends makes the answer False."""
    for _ in range(2000):
        if not is_running(pid):
            return True
        time.sleep(0.05)
    return False


def test_a_child_keeps_its_object(fork_server: ForkServer) -> None:
    child = fork_server.child(Counter, 3)
    assert [child.call("add", 4), child.call("add", 1)] == [7, 8]
    with pytest.raises(Raised, match="KeyError: 'missing'"):
        child.call("raises")
    assert child.call("add", 0) == 8
    child.kill()
    with pytest.raises(ProcessDied):
        child.call("add", 1)


def test_a_child_that_hangs_is_killed(fork_server: ForkServer) -> None:
    child = fork_server.child(Counter, 0)
    pid = child.call("pid")
    with pytest.raises(TimedOut):
        child.call("hang", seconds=0.3)
    assert gone(pid)


def test_a_child_that_crashes_is_noticed_at_once(fork_server: ForkServer) -> None:
    child = fork_server.child(Counter, 0)
    with pytest.raises(ProcessDied):
        child.call("crash", seconds=600)


def collected(pool: CompilePool, count: int) -> dict[object, compiling.Built]:
    built: dict[object, compiling.Built] = {}
    while len(built) < count:
        built.update((each.key, each) for each in pool.poll(1.0))
    return built


def test_jobs_that_fail_lose_themselves_only(fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "MEGABYTES", 512)
    patience = Patience(most=600.0, adaptive=False)
    pool = CompilePool(lambda: fork_server, workers=3, patience=patience)
    kinds = ("raise", "segfault", "exit", "exhaust", "slow", "quick")
    for kind in kinds:
        pool.submit(kind, Work(kind))
    built = collected(pool, len(kinds))
    assert {kind: each.answer for kind, each in built.items() if not each.failure} == {
        "slow": "slow done",
        "quick": "quick done",
    }
    assert built["raise"].failure == "ValueError: no such thing" and not built["raise"].crashed
    assert built["segfault"].crashed and built["exit"].crashed
    assert "MemoryError" in built["exhaust"].failure
    patience.most = 1.0
    pool.submit("hang", Work("hang"))
    (hung,) = collected(pool, 1).values()
    assert hung.timed_out and hung.failure == "not compiled within 1 s"
    assert not pool.busy


def test_a_job_that_takes_long_is_not_waited_for(fork_server: ForkServer) -> None:
    """The first thing that a process says is that it has its job."""
    pool = CompilePool(lambda: fork_server, workers=3, patience=Patience(most=600.0))
    pool.submit("hang", Work("hang"))
    time.sleep(0.3)
    for at in range(5):
        pool.submit(at, Work("quick"))
    assert set(collected(pool, 5)) == set(range(5))
    pool.close()


def test_a_pool_that_is_closed_leaves_no_process(fork_server: ForkServer) -> None:
    pool = CompilePool(lambda: fork_server, workers=2, patience=Patience(most=600.0))
    for at in range(4):
        pool.submit(at, Work("hang"))
    pids = [run.child.pid for run in pool._running]
    assert len(pids) == 2
    pool.close()
    assert all(map(gone, pids)) and not pool.busy


def test_a_child_that_dies_alone_is_told_from_one_whose_fork_server_died() -> None:
    with ForkServer() as fork_server:
        alone, other = (fork_server.child(Counter, 0) for _ in range(2))
        with pytest.raises(ProcessDied) as died:
            alone.call("crash", seconds=600)
        assert not isinstance(died.value, ServerDied) and fork_server.is_alive
        os.kill(fork_server.pid, signal.SIGKILL)
        assert gone(fork_server.pid) and gone(other.pid)
        with pytest.raises(ServerDied):
            other.call("add", 1)
        assert not fork_server.is_alive
        with pytest.raises(ServerDied):
            fork_server.child(Counter, 0)


def test_jobs_are_compiled_by_the_next_fork_server() -> None:
    """A fork server is killed while jobs run, and before jobs are submitted, when it may not look dead yet."""
    pool = CompilePool(lambda: shared_fork_server((Work,)), workers=2, patience=Patience(most=600.0))
    for at in range(3):
        pool.submit(at, Work("slow"))
    os.kill(shared_fork_server((Work,)).pid, signal.SIGKILL)
    built = collected(pool, 3)
    assert {each.answer for each in built.values()} == {"slow done"}
    os.kill(shared_fork_server((Work,)).pid, signal.SIGKILL)
    pool.submit("later", Work("quick"))
    assert collected(pool, 1)["later"].answer == "quick done"


def test_a_job_is_not_given_to_fork_servers_without_end() -> None:
    used = []

    def dying() -> ForkServer:
        used.append(ForkServer())
        os.kill(used[-1].pid, signal.SIGKILL)
        return used[-1]

    pool = CompilePool(dying, workers=2, patience=Patience(most=600.0))
    pool.submit("job", Work("quick"))
    (lost,) = collected(pool, 1).values()
    assert lost.crashed and "the fork server has ended" in lost.failure
    assert len(used) == ATTEMPTS and not pool.busy


def test_patience_follows_what_was_seen() -> None:
    patience = Patience(most=60.0)
    assert patience.seconds == 60.0
    for _ in range(20):
        patience.finished(0.5)
    assert patience.seconds == 5.0
    for _ in range(20):
        patience.finished(4.0)
    assert patience.seconds == pytest.approx(16.0)
    for _ in range(200):
        patience.finished(100.0)
    assert patience.seconds == 60.0
    fixed = Patience(most=60.0, adaptive=False)
    for _ in range(20):
        fixed.finished(0.5)
    assert fixed.seconds == 60.0


HOWS = ("interrupt", "catch", "fork_server")
SCRIPT = """
    import sys, time
    from helion.autotuner.pool.children import ForkServer
    from workloads import Counter
    fork_server = ForkServer()
    child = fork_server.child(Counter, 0)
    print(fork_server.pid, child.call("pid"), flush=True)
    child.post("hang")
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        if "catch" in sys.argv:
            fork_server.close()
            print("closed", flush=True)
            sys.exit(0)
        raise
"""


@pytest.mark.parametrize("how", ["kill", *(pytest.param(each, marks=pytest.mark.prove) for each in HOWS)])
def test_nobody_outlives_the_process_that_began(how: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        fork_server, child = map(int, process.stdout.readline().split())
        assert is_running(fork_server) and is_running(child)
        if how == "kill":
            process.kill()
        elif how == "fork_server":
            os.kill(fork_server, signal.SIGKILL)
        else:
            os.killpg(process.pid, signal.SIGINT)
        assert gone(child) and (how == "fork_server" or gone(fork_server))
        process.kill()
        process.wait()
