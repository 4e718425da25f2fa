"""The benchmark of the tuner on CPU tensors: all kernels are right, what was measured is not measured again, and a peer is
another interpreter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import PROVE

from benchmarks import tuner, tuner_kernels
from helion.runtime import ref_mode

NAMES = list(tuner_kernels.CASES)


@pytest.mark.parametrize("name", NAMES if PROVE else ["column_max", "softplus_rows"])
def test_kernels_are_right(name: str) -> None:
    args = tuner_kernels.arguments(name, "cpu", 150)
    kernel = getattr(tuner_kernels, name)
    expected = ref_mode.run_reference(kernel, tuple(arg.double().to(arg.dtype) for arg in args))
    torch.testing.assert_close(kernel(*args), expected, atol=2e-2, rtol=2e-2)


def test_what_was_measured_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def measured(name: str, options: Any) -> dict[str, Any]:
        asked.append(name)
        if name == "row_range" and asked.count(name) == 1:
            return {"failures": {"process": "exit status -11"}}
        seconds = dict.fromkeys(("none", *options.efforts.split(",")), 1.0)
        return {"seconds": seconds, "failures": {}, "microseconds": {"none": 10.0, "minimal": 8.0}}

    script = tmp_path / "peer.py"
    script.write_text('#!/bin/sh\necho noise\necho \'{"seconds": 3.0, "microseconds": 16.0}\'\n')
    script.chmod(0o755)
    monkeypatch.setattr(tuner, "_in_a_process", measured)
    monkeypatch.setenv("PEER_PYTHON", str(script))
    monkeypatch.setenv("HELION_SKIP_CACHE", "1")
    out = tmp_path / "out.json"
    command = ["--out", str(out), "--names", "row_range,column_max", "--efforts", "minimal"]
    assert tuner.main(command) == 1
    assert tuner.main(command) == 0 and asked == ["row_range", "column_max", "row_range"]
    found = json.loads(out.read_text())["kernels"]
    assert found["row_range"]["peer"] == {"seconds": 3.0, "microseconds": 16.0}
    said = capsys.readouterr().out
    assert (
        "minimal: geometric mean 1.250, least 1.250, of 2 kernels" in said
        and "minimal / peer: geometric mean 2.000" in said
    )
    script.write_text("#!/bin/sh\necho there is no GPU >&2\nexit 1\n")
    assert tuner.peer("column_max") == {"failure": "there is no GPU\n"}


@pytest.mark.prove
def test_it_runs_without_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = ["--simulated", "--out", str(out), "--efforts", "minimal,quick", "--full-seconds", "5", "--names"]
    assert tuner.main([*command, "channel_scale"]) == 0
    (row,) = json.loads(out.read_text())["kernels"].values()
    assert set(row["configs"]) == {"none", "minimal", "quick"} and not row["failures"]
