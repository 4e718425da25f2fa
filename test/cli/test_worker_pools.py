"""``python -m helion tune`` on several GPUs and machines, which are simulated: what a lost worker was doing, others do."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from helion.__main__ import main
from helion.autotuner.cache.store import default_store
from helion.autotuner.outcome import Outcome
from helion.cli import worker_pool
from helion.cli.ray_pool import RayPool
from helion.cli.work import Report, Work, Worker
from helion.cli.worker_pool import LocalPool, PoolWorker, WorkerDied, WorkerPool, distributed
from helion.runtime.tuning import evaluator

KERNELS = """
import os, signal, time
import torch, helion
import helion.language as hl

@helion.kernel
def centred(x, y):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        rows = x[tile, :] + y[None, :]
        out[tile, :] = rows - rows.mean(-1, keepdim=True)
    return out

@helion.kernel
def deadly(x):
    os.kill(os.getpid(), signal.SIGKILL)
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile] + 1
    return x
"""
SPEC = """
[[tune]]
kernel = "kernels.py::centred"
args = [["f32[3,40]", "f32[40]"], ["f32[5,63]", "f32[63]"], ["bf16[2,100]", "bf16[100]"], ["f32[1,1]", "f32[1]"]]
simulated = true
effort = "minimal"
"""


@pytest.fixture
def spec(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "kernels.py").write_text(KERNELS)
    path = tmp_path / "spec.toml"
    path.write_text(SPEC)
    return path


def kept() -> int:
    store = default_store()
    return 0 if store is None else len(store.all("centred"))


DEADLY = """
[[tune]]
kernel = "kernels.py::deadly"
args = [["f32[8]"]]
simulated = true
isolated = false
accuracy = false
configs = 1
"""


@pytest.mark.prove
def test_every_gpu_has_a_process_and_one_that_dies_costs_the_others_nothing(
    spec: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec.write_text(DEADLY + SPEC)
    assert main(["tune", str(spec), "--gpus", "2"]) == 1
    said = capsys.readouterr()
    assert "4 of 5 tuned" in said.out and said.out.count("@helion.kernel(config=") == 4 == kept()
    assert "centred(f32[1,1], f32[1]): " in said.out
    assert "error: deadly(f32[8]): 2 workers were lost with it: " in said.err
    assert main(["tune", str(spec), "--gpus", "0"]) == 2


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Interrupts are those of a terminal: shells have them ignored by what they start in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_ends_all_works_and_keeps_what_was_found(
    spec: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], interrupts: None
) -> None:
    """It ends a search, whose best so far is an answer, and the works after it are not begun."""
    spec.write_text(SPEC.replace('"minimal"', '"quick"\nisolated = false\nprogress = false'))
    finish = evaluator.Evaluator.finish
    tried: list[Outcome] = []

    def interrupted(self: evaluator.Evaluator) -> Outcome:
        tried.append(finish(self))
        if len(tried) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return tried[-1]

    monkeypatch.setattr(evaluator.Evaluator, "finish", interrupted)
    before = signal.getsignal(signal.SIGINT)
    assert main(["tune", str(spec), "--gpus", "1"]) == 130
    said = capsys.readouterr()
    assert said.err == "interrupted\n" and said.out.count("@helion.kernel(config=") == 1 == kept() and len(tried) == 2
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.prove
def test_a_worker_that_is_killed_is_replaced_and_its_work_done(spec: pathlib.Path) -> None:
    name = f"{spec.parent / 'kernels.py'}::centred"
    works = [
        Work(kernel=name, args=(f"f32[2,{n}]", f"f32[{n}]"), options={"simulated": True, "effort": "minimal"})
        for n in (3, 4, 5, 6)
    ]
    pool = LocalPool([0, 1])
    done: dict[str, Report] = {}
    killed: list[int] = []
    try:
        for work, report in distributed(works, pool):
            done[str(work)] = report
            if not killed:
                killed += pool.pids()
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)
    finally:
        pool.close()
    assert len(killed) == 2 and len(done) == 4 and all(report.worked for report in done.values()), done


def test_a_worker_sees_its_own_gpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for visible, gpu, expected in ((None, 3, "3"), ("5, 7", 1, "7"), ("GPU-a,GPU-b", 0, "GPU-a")):
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        Worker(gpu)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == expected
    for visible, gpu, there in (("5,7", 2, 2), ("", 0, 0)):  # others that the machine has are none of this process's
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with pytest.raises(
            ValueError, match=f"GPU {gpu} of {there} is requested, but CUDA_VISIBLE_DEVICES is '{visible}'"
        ):
            Worker(gpu)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == visible


def test_more_gpus_than_are_visible_are_refused(
    spec: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec.write_text(SPEC.replace("simulated = true\n", ""))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert main(["tune", str(spec), "--gpus", "3"]) == 2
    assert "--gpus 3: this process sees 2 (CUDA_VISIBLE_DEVICES says which)" in capsys.readouterr().err


class FakeRay:
    """A cluster of these machines, whose actors are counted."""

    def __init__(self, nodes: Sequence[dict[str, float]]) -> None:
        self.asked: list[dict[str, Any]] = []
        self.is_up = False
        self._nodes = nodes

    def init(self, **_: Any) -> None:
        self.is_up = True

    def shutdown(self) -> None:
        self.is_up = False

    def nodes(self) -> list[dict[str, Any]]:
        dead = {"Alive": False, "Resources": {"CPU": 100.0, "GPU": 10.0}}
        return [dead, *({"Alive": True, "Resources": node} for node in self._nodes)]

    def remote(self, **options: Any) -> Any:
        self.asked.append(options)
        ready = SimpleNamespace(remote=object)
        return lambda worker: SimpleNamespace(remote=lambda: SimpleNamespace(__ray_ready__=ready))


@pytest.mark.parametrize(
    ("measuring", "gpus", "actors", "cpus"), [(True, None, 3, 4), (True, 2, 2, 4), (False, None, 72, 1)]
)
def test_actors_find_room_on_every_machine_with_a_gpu(
    monkeypatch: pytest.MonkeyPatch, measuring: bool, gpus: int | None, actors: int, cpus: int
) -> None:
    """However many CPUs machines without one have."""
    cluster = FakeRay([{"CPU": 60.0}, {"CPU": 8.0, "GPU": 2.0}, {"CPU": 4.0, "GPU": 1.0}])
    monkeypatch.setitem(sys.modules, "ray", cluster)
    RayPool("auto", measuring, gpus)
    assert [each["num_cpus"] for each in cluster.asked] == [cpus] * actors
    assert {each["num_gpus"] for each in cluster.asked} == {int(measuring)}


def test_a_cluster_with_too_few_gpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for nodes, gpus, message in (
        ([{"CPU": 8.0}], None, "^the Ray cluster at auto has no GPU$"),
        ([{"CPU": 8.0, "GPU": 2.0}], 3, "^--gpus 3: the Ray cluster at auto has 2 GPU$"),
    ):
        cluster = FakeRay(nodes)
        monkeypatch.setitem(sys.modules, "ray", cluster)
        with pytest.raises(ValueError, match=message):
            RayPool("auto", True, gpus)
        assert not cluster.is_up and not cluster.asked


def test_what_was_tuned_on_another_machine_is_not_tuned_again(
    spec: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(
        kernel=f"{spec.parent / 'kernels.py'}::centred",
        args=("f32[2,3]", "f32[3]"),
        options={"simulated": True, "configs": 3, "isolated": False},
    )
    report = Worker().run(work)
    assert report.worked and report.entries
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("HELION_DISALLOW_AUTOTUNING", "1")
    assert "HELION_DISALLOW_AUTOTUNING" in Worker().run(work).message
    again = Worker().run(Work(kernel=work.kernel, args=work.args, options=work.options, known=report.entries))
    assert again.worked and again.message == report.message


class Flaky:
    """Loses some of the works that it is given."""

    def __init__(self, losing: Sequence[str], log: list[str]) -> None:
        self._losing = losing
        self._log = log
        self._work = ""

    def begin(self, work: Work) -> None:
        self._work = work.args[0]
        self._log.append(self._work)
        if "begin" in self._losing:
            raise WorkerDied("gone")

    def result(self) -> Report:
        if self._work in self._losing:
            raise WorkerDied("gone")
        return Report(worked=True, message=self._work)


class FlakyPool:
    """Hires those of ``workers`` one after the other in place of those that are lost."""

    def __init__(self, workers: Sequence[Flaky], count: int) -> None:
        self._left = deque(workers)
        self._there: list[PoolWorker] = []
        self._count = count

    def new_workers(self) -> Sequence[PoolWorker]:
        fresh = [self._left.popleft() for _ in range(min(len(self._left), self._count - len(self._there)))]
        self._there += fresh
        return fresh

    def ready(self, busy: Sequence[PoolWorker]) -> Sequence[PoolWorker]:
        return busy[:1]

    def drop(self, worker: PoolWorker) -> None:
        self._there.remove(worker)

    @property
    def is_gone(self) -> bool:
        return not (self._there or self._left)

    def close(self) -> None:
        pass


def outcome(pool: WorkerPool, names: str) -> dict[str, str]:
    works = [Work(kernel="f.py::k", args=(name,)) for name in names]
    return {work.args[0]: report.message for work, report in distributed(works, pool)}


def test_works_of_lost_workers_are_given_to_others() -> None:
    log: list[str] = []
    losses: list[Sequence[str]] = ["a", ["begin"], "", ""]
    found = outcome(FlakyPool([Flaky(losing, log) for losing in losses], 2), "abcde")
    assert found == {name: name for name in "abcde"} and sorted(log) == list("aabbcde")
    log.clear()
    found = outcome(FlakyPool([Flaky("b", log) for _ in range(4)], 2), "abc")
    assert found == {"a": "a", "b": f"{worker_pool.ATTEMPTS} workers were lost with it: gone", "c": "c"}
    lost, alone = f"{worker_pool.ATTEMPTS} workers were lost with it: gone", "no worker is left"
    found = outcome(FlakyPool([Flaky("a", log), Flaky("a", log)], 2), "abc")
    assert found["a"] == lost and set(found.values()) <= {lost, alone, "b", "c"} and len(found) == 3
    found = outcome(FlakyPool([Flaky("b", log)], 1), "abc")
    assert found == {"a": "a", "b": alone, "c": alone}


RAY = """
import pathlib, sys, threading, time
import ray
from ray.cluster_utils import Cluster
from helion.__main__ import main
import helion.cli.tune as tune

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
nodes = [cluster.add_node(num_cpus=1, num_gpus=1) for _ in range(2)]
cluster.wait_for_nodes()
shown = tune._shown
def killing(work, report):
    if nodes:
        cluster.remove_node(nodes.pop(), allow_graceful=False)
        nodes.clear()
        print("one node killed", flush=True)
    return shown(work, report)
tune._shown = killing
status = main(["tune", sys.argv[1], "--ray", cluster.address])
cluster.shutdown()
sys.exit(status)
"""


@pytest.mark.prove
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray (the extra ray)")
def test_a_ray_cluster_loses_a_node(spec: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Two nodes of one GPU each, one of which is killed when the first result is there; then all is known already."""
    spec.write_text(
        SPEC.replace('["f32[1,1]", "f32[1]"]', ", ".join(f'["f32[2,{n}]", "f32[{n}]"]' for n in range(2, 8)))
    )
    command = [sys.executable, "-c", RAY, str(spec)]
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "RAY_DEDUP_LOGS": "0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "one node killed" in done.stdout and "9 of 9 tuned" in done.stdout
    assert kept() == 9
