"""The script that measures first calls on a GPU: the choice of cells, and the summary."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path

import pytest

import helion
from benchmarks import first_call, first_call_report
from benchmarks.cells import swept_cells
from benchmarks.first_call import ROOT, alone, caches, chosen, in_a_child, sampled, summary
from benchmarks.sweep import OTHER_SAMPLES, parse
from helion import exc


def test_cells_are_of_different_kernels_and_have_the_best_config() -> None:
    rows = parse(OTHER_SAMPLES.read_text())
    found = chosen(swept_cells(), rows, 24)
    assert len(found) == len({cell.kernel for cell, _ in found}) == 24
    for cell, best in found:
        mine = [row for row in rows if row.key == cell.key[1:]]
        assert min(mine, key=lambda row: row.microseconds).config == best
    assert len(chosen(swept_cells(), rows, 1000)) == len({row.kernel for row in rows})


def test_configs_of_the_sample_are_those_of_their_backend() -> None:
    cells = chosen(swept_cells(), parse(OTHER_SAMPLES.read_text()), 1000)
    ((cell, best),) = (each for each in cells if each[0].kernel == "linear")
    other = dataclasses.replace(cell, function=helion.kernel(cell.function.fn, backend="cute"))
    with pytest.raises(exc.InvalidConfig, match="range_flattens"):
        other.function.bind(cell.args).config_spec.normalize(best)
    bound, config = sampled(other, best, cell.args)
    assert bound.backend == "triton" and config["range_flattens"] == best["range_flattens"]


def test_summary_compares_with_the_best_of_the_sample() -> None:
    rows = [
        {
            "microseconds": {"default": 12.0, "first call": 10.0, "best of the sample": 10.0},
            "seconds": {"default": 0.5, "first call": 1.5, "second process": 0.3, "third process": 0.1},
        },
        {
            "microseconds": {"default": 30.0, "first call": 22.0, "best of the sample": 20.0},
            "seconds": {"default": 0.7, "first call": 1.1},
        },
        {"failure": "out of memory"},
    ]
    assert summary(rows) == [
        "default / best of the sample: geometric mean 1.342, worst 1.50 of 2 cells",
        "first call / best of the sample: geometric mean 1.049, worst 1.10 of 2 cells",
        "seconds, default: median 0.60, at most 0.70",
        "seconds, first call: median 1.30, at most 1.50",
        "seconds, second process: median 0.30, at most 0.30",
        "seconds, third process: median 0.10, at most 0.10",
    ]
    assert summary(rows[2:]) == ["nothing was timed"]
    searched = {"default": 12.0, "first call": 10.0, "best of the sample": 10.0, "tuned": 8.0}
    lines = summary([{"microseconds": searched, "seconds": {}}])
    assert "first call / tuned: geometric mean 1.250, worst 1.25 of 1 cells" in lines


def test_caches_are_in_the_folder_and_then_as_before(tmp_path: Path) -> None:
    before = dict(os.environ)
    with caches(tmp_path):
        assert os.environ["HELION_CACHE_DIR"] == str(tmp_path / "helion")
        assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "triton") and os.environ["HELION_PRETUNED"] == "0"
    assert dict(os.environ) == before


def test_the_page_has_ratios_of_each_device() -> None:
    found = {
        "A": [
            {
                "kernel": "row_sum",
                "case": "8 by 8",
                "dtype": "float32",
                "seconds": {"default": 0.5, "first call": 1.5},
                "microseconds": {"default": 20.0, "first call": 12.5, "best of the sample": 10.0},
            },
            {"kernel": "broken", "case": "8", "dtype": "float32", "failure": "OutOfMemoryError"},
        ]
    }
    text = "\n".join(first_call_report.sections(found))
    assert "### First calls, A" in text and "broken" not in text
    assert "- default / best of the sample: 2.000 in the geometric mean of 1 cells, at most 2.00." in text
    assert "- first call / best of the sample: 1.250" in text and "second process" not in text.split("### ")[1]
    assert "| row_sum | 8 by 8 | float32 | 20.0 | 12.5 | 10.0 |" in text
    assert list(first_call_report.sections({})) == []


def test_the_kept_first_calls_are_of_known_kernels() -> None:
    known = {cell.kernel for cell in swept_cells()}
    kept = first_call_report.read(ROOT / "benchmarks" / "results")
    assert len(kept) >= 2 and all(cell["kernel"] in known for cells in kept.values() for cell in cells)


def test_searches_of_a_sample_are_reported_apart(tmp_path: Path) -> None:
    call = {"kernel": "a", "case": "1", "dtype": "x", "seconds": {"default": 1.0}}
    call["microseconds"] = {"default": 2.0, "first call": 2.0, "best of the sample": 2.0, "tuned": 1.0}
    (tmp_path / "gpu-first-call.json").write_text(json.dumps({"device": "GPU", "cells": [call]}))
    row = {"device": "GPU", "kernel": "b", "microseconds": {"default": 3.0, "tuned": 2.0}, "tuned_seconds": 62.0}
    (tmp_path / "gpu-tuned-sample.jsonl").write_text(json.dumps({**row, "sample": "slow cells", "beside": 5}) + "\n")
    timed = {"device": "GPU", "kernel": "c", "way": "calls", "date": "2026-11-29", "seconds": 2.5, "later": 0.25}
    (tmp_path / "gpu-calls.jsonl").write_text(json.dumps(timed) + "\n")
    text = "\n".join(first_call_report.sections(first_call_report.read(tmp_path)))
    assert "first calls of 1 kernels in one process" in text and "2.50 in the median, 1 above 2, at most 2.50" in text
    assert "in 8 to 15 seconds: 2.000 in the geometric mean of 1 cells" in text
    assert "in 62 seconds, beside 5 other searches, for slow cells: 1.500 in the geometric mean of 1 cells" in text
    assert "median, at most 1.00" in text and "| b |" not in text


def test_a_call_alone_answers_from_another_process_or_says_why() -> None:
    assert in_a_child(lambda: {"process": os.getpid()}, 30.0)["process"] != os.getpid()
    assert in_a_child(lambda: {"ratio": 1 / 0}, 30.0) == {"failure": "ZeroDivisionError: division by zero"}
    assert in_a_child(lambda: dict(time=signal.pause()), 0.2) == {"failure": "no answer in 0 seconds"}


def test_calls_alone_leave_out_the_cells_of_the_file(tmp_path: Path) -> None:
    cell = swept_cells()[0]
    row = {"kernel": cell.kernel, "case": cell.case, "dtype": cell.dtype, "seconds": 0.5}
    out = tmp_path / "rows.jsonl"
    out.write_text(json.dumps(row) + "\n")
    alone(out, [cell], 60.0)
    assert [json.loads(line) for line in out.read_text().splitlines()] == [row]


def test_first_calls_are_kept_where_the_later_process_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bound:
        backend = "triton"

    monkeypatch.setattr(first_call, "called", lambda cell, args, seconds: (0.5, Bound()))
    monkeypatch.setattr(first_call, "inputs", lambda cell, device: ())
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU")
    cells = [cell for cell, _ in chosen(swept_cells(), parse(OTHER_SAMPLES.read_text()), 2)]
    out = tmp_path / "rows.jsonl"

    def fails(folder: Path, names: list[str]) -> dict[str, float]:
        raise RuntimeError("no such device")

    monkeypatch.setattr(first_call, "later", fails)
    with pytest.raises(RuntimeError, match="no such device"):
        first_call.calls(out, cells, 1e9)
    monkeypatch.setattr(first_call, "later", lambda folder, names: dict.fromkeys(names, 0.01))
    first_call.calls(out, cells[:1], 1e9)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["kernel"] for row in rows] == [*(cell.kernel for cell in cells), cells[0].kernel]
    assert [row.get("later") for row in rows] == [None, None, 0.01] and all(row["seconds"] == 0.5 for row in rows)
