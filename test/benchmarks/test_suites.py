"""benchmarks/suites.py without a GPU: processes that answer, die or hang, cells to time, and rows of several runs."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import seeds, suites
from benchmarks.cells import Cell, inputs, timed_cells
from benchmarks.timing import RecordedTimer
from helion._testing import map_tensors

#: Answers requests with twice their number; dies of 3, is silent about 4.
SERVER = """
import json, sys, time
for text in sys.stdin:
    n = json.loads(text)["n"]
    if n == 3:
        sys.exit("no such number")
    if n == 4:
        time.sleep(1000)
    print("other text", flush=True)
    print(json.dumps({"twice": 2 * n}), flush=True)
"""
COMMAND = [sys.executable, "-c", SERVER]
KEY = ("pointwise", "swiglu", "24 by 24", "bfloat16")
HEAD = {
    "device": "NVIDIA H200",
    "torch": "2",
    "triton": "3",
    "python": "3",
    "float32_matmul_precision": "high",
    "date": "2026-01-01",
    "copy_gb_per_s": 4000,
    "backends": ["triton"],
}


def test_a_process_that_dies_or_hangs_is_replaced() -> None:
    requests = [{"n": n} for n in range(6)]
    found = {line.pop("n"): line for line in suites.answers(COMMAND, requests, workers=1, seconds=600, silent=0.5)}
    assert {n: found[n] for n in (0, 1, 2, 5)} == {n: {"twice": 2 * n} for n in (0, 1, 2, 5)}
    assert found[3] == {"why": "exit status 1: no such number\n"}
    assert found[4] == {"why": "no answer for 0.5 s"}


def test_cells_without_time_are_left_for_another_run() -> None:
    requests = [{"n": 4}, {"n": 1}]
    assert [*suites.answers(COMMAND, requests, workers=1, seconds=0.3, silent=600)] == []


def small(kernel: str) -> Cell:
    cell = next(cell for cell in timed_cells() if cell.kernel == kernel)

    def smaller(like: torch.Tensor) -> torch.Tensor:
        return torch.empty([min(size, 24) for size in like.shape], dtype=like.dtype, device="meta")

    return dataclasses.replace(cell, args=map_tensors(cell.args, smaller), case=KEY[2])


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Cell:
    cell = small("swiglu")
    monkeypatch.setattr(suites, "cells_by_key", lambda: {cell.key: cell})
    monkeypatch.setattr(suites, "inputs", lambda cell, device: inputs(cell, "cpu"))
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)
    return cell


def test_checks_are_used_by_the_stage_that_times(on_cpu: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    line = suites.checked({"key": on_cpu.key})
    assert line["failures"] == {} and line["errors"].keys() >= {"seed", "conservative", "eager", "compile"}
    timer: Any = RecordedTimer({name: [2.0] * 11 for name in line["errors"]})
    monkeypatch.setattr(seeds, "checked", lambda *_: ({}, {name: "wrong" for name in line["errors"]}))
    row = suites.timed({"key": on_cpu.key, **line}, timer)["row"]
    assert row["errors"] == line["errors"] and row["times"].keys() == line["errors"].keys()
    other = {**line, "configs": {"seed": "another"}}
    assert suites.timed({"key": on_cpu.key, **other}, timer)["row"]["times"] == {}


def test_cells_with_another_default_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [key for key in suites.cells_by_key() if key[0] == "matmul"]
    kept = {key: row for key, row in suites.kept_rows(["matmul"]).items() if key != keys[2]}
    monkeypatch.setattr(suites, "kept_rows", lambda _: kept)
    monkeypatch.setattr(suites, "is_changed", lambda cell, rows, target: cell.key not in rows)
    assert suites.chosen(["matmul"], "1/1", True, "h200") == [keys[2]]
    assert suites.chosen(["matmul"], "1/2", False, "h200") == [keys[2], *keys[1:2], *keys[4::2]]


def test_another_backend_or_config_is_a_change() -> None:
    cell = small("swiglu")
    bound = cell.function.bind(cell.args, target="h200")
    row = {"heuristic": bound.seeds[0].heuristic, "configs": {"seed": repr(bound.short_config(bound.default_config()))}}
    assert not suites.is_changed(cell, {cell.key: row}, "h200")
    assert suites.is_changed(cell, {}, "h200")
    assert suites.is_changed(cell, {cell.key: {**row, "heuristic": "CuteRows"}}, "h200")
    assert suites.is_changed(cell, {cell.key: {**row, "configs": {**row["configs"], "default": "another"}}}, "h200")


def test_rows_of_several_files_are_kept(tmp_path: Path) -> None:
    def row(case: str, us: float) -> dict[str, Any]:
        times = {"seed": {"median": us, "low": us, "high": us}}
        made = seeds.Row(
            suite="pointwise",
            kernel="swiglu",
            case=case,
            dtype="float32",
            heuristic="Triton",
            configs={},
            bytes=1,
            flops=0,
            times=times,
            errors={},
            failures={},
        )
        return {"row": dataclasses.asdict(made)}

    files = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    dead = {"key": KEY, "why": "no answer"}
    for file, lines in zip(files, ([row("1", 1.0), row("2", 2.0)], [row("2", 3.0), dead]), strict=True):
        text = "".join(json.dumps(line) + "\n" for line in ({"environment": HEAD}, *lines))
        file.write_text(text + '{"cut": ')
    said = suites.merge(files, tmp_path)
    assert "two.jsonl: pointwise swiglu 24 by 24 bfloat16: no answer" in said
    found = json.loads((tmp_path / "nvidia-h200-pointwise.json").read_text())
    assert found["environment"]["runs"] == 2
    assert [(each["case"], each["times"]["seed"]["median"]) for each in found["rows"]] == [("1", 1.0), ("2", 3.0)]
