"""The cases of `benchmarks/distributed.py` on simulated ranks: checks on small tensors."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

import helion.distributed as hd
from benchmarks import distributed

EXAMPLES = Path(__file__).parents[2] / "examples" / "distributed"
CASES = {
    "primitives": 6,
    "stress": 1,
    "all_reduce": 2,
    "rms_norm": 1,
    "matmul_all_reduce": 2,
    "matmul_reduce_scatter": 2,
    "all_gather_matmul": 2,
    "experts": 1,
}


@pytest.mark.parametrize(
    "case", ["primitives", *(pytest.param(c, marks=pytest.mark.prove) for c in CASES if c != "primitives")]
)
def test_cases_are_right(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    cases: Any = importlib.import_module("benchmarks.distributed_cases")
    hd.run(lambda: getattr(cases, case)(distributed.Rank(tmp_path, 0.0)), 2)
    rows = [json.loads(line) for file in tmp_path.iterdir() for line in file.read_text().splitlines()]
    assert [row["right"] for row in rows] == [True] * CASES[case]
