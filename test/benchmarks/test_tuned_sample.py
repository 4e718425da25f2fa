"""The script that compares defaults with long searches: its cells, their processes, and the summary."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.cells import mechanism_cells
from benchmarks.tuned_sample import _jobs, by_name, done, left, sample, summary


def test_parts_of_the_sample_are_the_same_each_time_and_share_no_cell() -> None:
    names = [f"kernel:{at}" for at in range(50)]
    parts = [sample(names, 20, f"{at}/3") for at in (1, 2, 3)]
    assert [len(part) for part in parts] == [7, 7, 6]
    assert len({name for part in parts for name in part}) == 20
    assert parts == [sample(names[::-1], 20, f"{at}/3") for at in (1, 2, 3)]


def test_cells_have_names_by_their_place_in_the_kernel() -> None:
    named = by_name(mechanism_cells())
    for name, cell in named.items():
        kernel, _, at = name.partition(":")
        assert [each for each in named.values() if each.kernel == kernel][int(at)] is cell


def test_timing_takes_what_was_found_and_leaves_failed_searches_out(tmp_path: Path) -> None:
    found = {"name": "a:0", "backend": "triton", "configs": {"default": {}, "tuned": {"num_warps": 2}}}
    (tmp_path / "found.jsonl").write_text("\n".join(map(json.dumps, (found, {"name": "b:1", "why": "no time left"}))))
    options = argparse.Namespace(what="time", files=[tmp_path / "found.jsonl"])
    ((name, command),) = _jobs(options, {}).items()
    assert name == "a:0:triton" and json.loads(command[-1]) == found


def test_a_command_goes_on_after_the_rows_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    assert done(path) == []
    row, failed = {"name": "a:0", "backend": "triton"}, {"name": "b:1", "why": "no time left"}
    path.write_text(f'{json.dumps(row)}\n{json.dumps(failed)}\n{{"name": "c')
    assert done(path) == [row]
    jobs: dict[str, list[str]] = {"a:0": [], "a:0:triton": [], "a:0:cute": [], "b:1": [], "c:0": []}
    assert [*left(jobs, done(path))] == ["a:0:cute", "b:1", "c:0"]


def test_summary_takes_no_search_for_slower_than_its_first_config() -> None:
    rows = [
        {"microseconds": {"default": 10.0, "tuned": 5.0}},
        {"microseconds": {"default": 10.0, "tuned": 10.4}},
        {"why": "no time left"},
    ]
    assert summary(rows) == f"tuned / default: geometric mean {0.5**0.5:.3f}, least 0.50 of 2 cells"
    assert summary([]) == "nothing was timed"


@pytest.mark.parametrize("part", ["1/60", "60/60"])
def test_a_part_may_be_one_cell(part: str) -> None:
    assert len(sample([f"kernel:{at}" for at in range(219)], 60, part)) == 1
