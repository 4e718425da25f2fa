"""The benchmark of the tuner on CPU tensors: all kernels are right, what was measured is not measured again, GPUs share the
kernels, and a peer is another interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import PROVE

from benchmarks import tuner, tuner_kernels
from helion.runtime import ref_mode

NAMES = list(tuner_kernels.CASES)
TIMES = {"quick": {"none": 10.0, "minimal": 8.0}, "full": {"none": 10.0, "full": 9.0}}


@pytest.mark.parametrize("name", NAMES if PROVE else ["column_max", "softplus_rows"])
def test_kernels_are_right(name: str) -> None:
    args = tuner_kernels.arguments(name, "cpu", 150)
    kernel = getattr(tuner_kernels, name)
    expected = ref_mode.run_reference(kernel, tuple(arg.double().to(arg.dtype) for arg in args))
    torch.testing.assert_close(kernel(*args), expected, atol=2e-2, rtol=2e-2)


def peer_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    script = tmp_path / "peer.sh"
    script.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    script.chmod(0o755)
    monkeypatch.setenv("PEER_PYTHON", str(script))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """Kernel, part and GPU of everything that would have run."""
    found: list[tuple[str, str, str]] = []

    def ours(name: str, part: str, limits: Any, gpu: str, simulated: bool) -> tuner.Row:
        found.append((name, part, gpu))
        if [each[0] for each in found].count(name) == 1 and name == "row_range":
            return {"failures": {"process": "exit status -11"}}
        return {"seconds": dict.fromkeys(TIMES[part], 1.0), "failures": {}, "microseconds": TIMES[part]}

    monkeypatch.setattr(tuner, "ours", ours)
    monkeypatch.delenv("PEER_PYTHON", raising=False)
    return found


def test_what_was_measured_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], asked: list[Any]
) -> None:
    peer_that(tmp_path, monkeypatch, "echo noise", """echo '{"seconds": 3.0, "microseconds": 16.0}'""")
    out = tmp_path / "out.json"
    command = ["--simulated", "--out", str(out), "--names", "row_range,column_max"]
    assert tuner.main(command) == 1
    assert [each[:2] for each in asked] == [(name, part) for part in TIMES for name in ("row_range", "column_max")]
    assert tuner.main(command) == 0 and [each[:2] for each in asked[4:]] == [("row_range", "quick")]
    found = json.loads(out.read_text())["kernels"]
    assert found["row_range"]["peer"] == {"allowed_seconds": 180.0, "seconds": 3.0, "microseconds": 16.0}
    said = capsys.readouterr().out
    assert "quick failed: process: exit status -11" in said
    assert "minimal: geometric mean 1.250, least 1.250, of 2 kernels" in said
    assert "minimal / peer: geometric mean 2.000" in said and "none / full: geometric mean 0.900" in said


def test_gpus_share_the_kernels(tmp_path: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes the next one; here none takes long, and one of both may take them all."""
    monkeypatch.setattr(tuner, "visible_gpus", lambda count, simulated: ["GPU-a", "3"])
    out = tmp_path / "out.json"
    assert tuner.main(["--simulated", "--out", str(out), "--parts", "full,quick"]) == 1  # one failed once
    assert sorted(each[:2] for each in asked) == sorted((name, part) for part in TIMES for name in NAMES)
    assert {each[2] for each in asked} <= {"GPU-a", "3"}
    assert {part for row in json.loads(out.read_text())["kernels"].values() for part in row} == set(TIMES)


def test_several_share_a_gpu_and_the_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of them are under way before the first has ended."""
    monkeypatch.setattr(tuner, "visible_gpus", lambda count, simulated: ["GPU-a", "3"])
    monkeypatch.setattr(tuner.os, "sched_getaffinity", lambda pid: set(range(10)))
    everybody, shares = threading.Barrier(6, timeout=600), list[set[int]]()
    monkeypatch.setattr(tuner.os, "sched_setaffinity", lambda pid, cpus: shares.append(cpus))
    seen: list[str] = []

    def ours(name: str, part: str, limits: tuner.Limits, gpu: str, simulated: bool) -> tuner.Row:
        everybody.wait()
        seen.append(gpu)
        return {"seconds": {}, "failures": {}, "microseconds": TIMES[part]}

    monkeypatch.setattr(tuner, "ours", ours)
    command = ["--simulated", "--out", str(tmp_path / "out.json"), "--parts", "full", "--at-once"]
    assert tuner.main([*command, "3", "--names", ",".join(NAMES[:6])]) == 0
    assert sorted(seen) == ["3"] * 3 + ["GPU-a"] * 3
    assert sorted(map(len, shares)) == [1, 1, 2, 2, 2, 2] and set.union(*shares) == set(range(10))
    monkeypatch.setenv("PEER_PYTHON", sys.executable)
    for asked, said in ((["0"], "at least one"), (["2", "--parts", "full,peer"], "a peer does not measure in turns")):
        with pytest.raises(SystemExit):
            tuner.main([*command, *asked])
        assert said in capsys.readouterr().err


def test_results_of_another_gpu_are_not_added_to(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    out.write_text(json.dumps({"device": "NVIDIA H200", "kernels": {}}))
    with pytest.raises(ValueError, match="has results of NVIDIA H200; this is simulated"):
        tuner.main(["--simulated", "--out", str(out)])


def test_a_part_is_added_to_what_was_kept(tmp_path: Path, asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    kept = json.loads((tuner.ROOT / "benchmarks/results/tuner/nvidia-h200.json").read_text())
    for row in kept["kernels"].values():
        row.pop("full", None)
    out = tmp_path / "out.json"
    out.write_text(json.dumps({**kept, "device": "simulated"}))
    assert tuner.main(["--simulated", "--out", str(out), "--parts", "full", "--names", "two_outputs"]) == 0
    assert asked == [("two_outputs", "full", "")]
    found = json.loads(out.read_text())["kernels"]
    assert found.pop("two_outputs") == {**kept["kernels"].pop("two_outputs"), "full": found_full()}
    assert found == kept["kernels"]
    assert "full / peer: geometric mean 6.862, least 6.862, of 1 kernels" in capsys.readouterr().out


def found_full() -> tuner.Row:
    return {"seconds": {"none": 1.0, "full": 1.0}, "failures": {}, "microseconds": TIMES["full"]}


def test_gpus_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for visible, count, expected in (
        (None, None, ["0", "1"]),
        ("5, 7", 1, ["5"]),
        ("GPU-a,GPU-b", 2, ["GPU-a", "GPU-b"]),
    ):
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert tuner.visible_gpus(count, False) == expected
    for count in (0, 3):
        with pytest.raises(ValueError, match=f"--gpus {count}: 2 GPUs are visible"):
            tuner.visible_gpus(count, False)


def test_nothing_is_begun_that_would_not_end_in_time(tmp_path: Path, asked: list[Any]) -> None:
    command = ["--simulated", "--out", str(tmp_path / "out.json"), "--names", "column_max", "--full-seconds", "600"]
    assert tuner.main([*command, "--seconds", str(tuner.AROUND + 20)]) == 1 and asked == []
    assert tuner.main([*command, "--seconds", str(tuner.AROUND + 400)]) == 1
    assert tuner.main([*command, "--seconds", str(tuner.AROUND + 1000)]) == 0
    assert [each[1] for each in asked] == ["quick", "full"]


def test_a_peer_searches_as_long_as_there_is_time() -> None:
    now = time.monotonic() + tuner.AROUND
    left = [tuner.Limits(ends=now + seconds, full=60.0, peer=1800.0).searching("peer") for seconds in (30, 1000, 5000)]
    assert left[0] is None and left[1] is not None and 500 < left[1] <= 1000 and left[2] == 1800.0


def test_a_peer_that_gives_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer_that(tmp_path, monkeypatch, "echo Traceback >&2", "echo there is no GPU >&2", "exit 1")
    assert tuner.peer("column_max", 60.0, 60.0, "") == {"allowed_seconds": 60.0, "failure": "there is no GPU"}
    child = tmp_path / "pid"
    peer_that(tmp_path, monkeypatch, "sleep 1000 &", f"echo $! > {child}", "sleep 1000")

    class Begun(subprocess.Popen):  # type: ignore[type-arg]
        """A process whose seconds count once it has a child."""

        def communicate(self, *args: Any, **options: Any) -> Any:
            while not child.exists() or not child.read_text():
                time.sleep(0.01)
            return super().communicate(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(tuner.subprocess, "Popen", Begun)
        found = tuner.peer("column_max", 1.0, 1.0, "")
    assert found["failure"] == "no answer within 1 s"
    assert ended(int(child.read_text()))
    monkeypatch.setenv("PEER_PYTHON", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="nowhere, which cannot be run"):
        tuner.main(["--simulated", "--parts", "peer"])


def ended(pid: int) -> bool:
    """Whether a process that was killed ends, which takes it a moment."""
    status = Path(f"/proc/{pid}/stat")
    for _ in range(10_000):
        if not status.exists() or status.read_text().split()[2] == "Z":
            return True
        time.sleep(0.01)
    return False


def test_equal_configs_take_equally_long() -> None:
    """However often they are measured."""
    configs = {"none": {"num_warps": 4}, "minimal": {"num_warps": 4}, "quick": {"num_warps": 8}}
    part = {
        "configs": configs,
        "microseconds": {"none": 10.0, "minimal": 10.2, "quick": 8.0},
        "seconds": {"quick": 3.0},
    }
    lines = tuner.summary({"row_range": {"quick": part, "peer": {"microseconds": 9.0}}})
    assert "minimal: geometric mean 1.000, least 1.000, of 1 kernels" in lines
    assert "quick: geometric mean 1.250, least 1.250, of 1 kernels" in lines
    assert "minimal / peer: geometric mean 0.900, least 0.900, of 1 kernels" in lines


def test_the_guide_says_what_was_measured() -> None:
    kept = json.loads((tuner.ROOT / "benchmarks/results/tuner/nvidia-h200.json").read_text())
    lines = tuner.summary(kept["kernels"])
    assert "\n".join(lines[len(kept["kernels"]) :]) in (tuner.ROOT / "docs/guide/tuning.md").read_text()


@pytest.mark.prove
def test_several_run_at_once_without_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = ["--simulated", "--out", str(out), "--parts", "full", "--full-seconds", "5", "--at-once", "2"]
    assert tuner.main([*command, "--names", "channel_scale,row_range"]) == 0
    rows = json.loads(out.read_text())["kernels"]
    assert set(rows) == {"channel_scale", "row_range"}
    assert all(set(row["full"]["configs"]) == {"none", "full"} and not row["full"]["failures"] for row in rows.values())


@pytest.mark.prove
def test_it_runs_without_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = ["--simulated", "--out", str(out), "--parts", "quick", "--names", "channel_scale"]
    assert tuner.main(command) == 0
    (row,) = json.loads(out.read_text())["kernels"].values()
    assert set(row["quick"]["configs"]) == {"none", "minimal", "quick"} and not row["quick"]["failures"]
    assert row["quick"]["seconds"]["minimal, compiled"] > 0
