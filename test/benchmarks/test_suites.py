"""benchmarks/suites.py without a GPU: processes that answer, die or hang, cells to time, and rows of several runs."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import seeds, suites
from benchmarks.cells import Cell, timed_cells
from benchmarks.timing import RecordedTimer
from helion._testing import map_tensors

#: Seconds after which a process is ended that hangs, or a run.
SILENT, LONG = 600.0, 1e6
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


def answers(connection: Connection) -> None:
    """Check and time cells by their first word: "dies" and "hangs" do, "large" has no memory the first time."""
    short = list[Any]()
    while True:
        request = connection.recv()
        key = request["key"]
        if key and key[0] == request["do"] + " dies":
            os._exit(3)
        if key and key[0] == request["do"] + " hangs":
            Path(key[1]).touch()
            time.sleep(1000)
        if request["do"] == "environment":
            connection.send({"device": "none"})
        elif request["do"] == "time":
            connection.send({"row": key[0]})
        elif key[0] == "large" and key not in short:
            short.append(key)
            connection.send({"ready": False})
        else:
            connection.send({"why": "no such cell"} if key[0] == "bad" else {"ready": True})


def lines(*names: str, workers: int = 1, seconds: float = LONG, hangs: Path | str = "") -> list[suites.Line]:
    keys = [(name, str(hangs), "", "") for name in names]
    return [*suites.Run(answers, keys, workers, SILENT).lines(seconds, LONG)]


@pytest.mark.parametrize("workers", [1, 3])
def test_cells_are_timed_once_they_are_checked(workers: int) -> None:
    environment, *rows = lines("a", "b", "c", "d", workers=workers)
    assert environment == {"environment": {"device": "none"}}
    assert sorted(row["row"] for row in rows) == ["a", "b", "c", "d"]


def test_a_cell_without_memory_is_tried_again() -> None:
    _, *rows = lines("large", "a")
    assert sorted(row["row"] for row in rows) == ["a", "large"]


@pytest.mark.parametrize(
    ("what", "why"), [("dies", "the process has died, exit status 3"), ("hangs", "no answer for 600 s")]
)
@pytest.mark.parametrize("stage", ["check", "time"])
def test_a_process_that_dies_or_hangs_is_replaced(
    stage: str, what: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a process hangs, the clock is at the end of its time: processes of a busy machine are no slower by it."""
    name, hangs, real = f"{stage} {what}", tmp_path / "hangs", time.monotonic
    monkeypatch.setattr(suites.time, "monotonic", lambda: real() + 2 * SILENT * hangs.exists())
    found = {line["key"][0]: line for line in lines("a", name, "b", "bad", hangs=hangs) if "key" in line}
    assert found[name] == {"key": (name, str(hangs), "", ""), "why": why}
    assert found["bad"]["why"] == "no such cell"
    assert found["a"]["row"] == "a" and found["b"]["row"] == "b"


def test_cells_without_time_are_left_for_another_run() -> None:
    assert lines("check hangs", "a", seconds=0.0) == []


def small(kernel: str) -> Cell:
    cell = next(cell for cell in timed_cells() if cell.kernel == kernel)

    def smaller(like: torch.Tensor) -> torch.Tensor:
        return torch.empty([min(size, 24) for size in like.shape], dtype=like.dtype, device="meta")

    return dataclasses.replace(cell, args=map_tensors(cell.args, smaller), case=KEY[2])


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Cell:
    cell = small("swiglu")
    monkeypatch.setattr(suites, "cells_by_key", lambda: {cell.key: cell})
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)
    return cell


def test_variants_are_checked_then_timed_on_new_tensors(on_cpu: Cell) -> None:
    server = suites.Server("cpu")
    assert server.time(on_cpu.key) == {"ready": False}
    assert server.check(on_cpu.key) == {"ready": True}
    names = ("seed", "default", "conservative", "eager", "compile")
    server._timer = RecordedTimer({name: [2.0] * 11 for name in names})
    row = server.time(on_cpu.key)["row"]
    assert (
        row["failures"] == {}
        and {"seed", "conservative", "eager", "compile"} <= row["times"].keys() == row["errors"].keys()
    )
    assert server.time(on_cpu.key) == {"ready": False}


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
