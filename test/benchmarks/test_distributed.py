"""The cases of `benchmarks/distributed.py` on simulated ranks: checks on small tensors, and calls of all that they time."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import helion.distributed as hd
from benchmarks import distributed

EXAMPLES = Path(__file__).parents[2] / "examples" / "distributed"
CASES = {
    "primitives": 6,
    "stress": 1,
    "all_reduce": 3,
    "rms_norm": 1,
    "matmul_all_reduce": 3,
    "matmul_reduce_scatter": 3,
    "all_gather_matmul": 3,
    "experts": 1,
    "sending": 6,
    "pieces": 1,
}
_SAMPLE = ["primitives", *(pytest.param(case, marks=pytest.mark.prove) for case in CASES if case != "primitives")]


def _rows(
    case: str, make: Callable[[], distributed.Rank], folder: Path, monkeypatch: pytest.MonkeyPatch, ranks: int = 2
) -> list[Any]:
    """Return the rows of a case."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    cases: Any = importlib.import_module("benchmarks.distributed_cases")
    hd.run(lambda: getattr(cases, case)(make()), ranks)
    return [json.loads(line) for file in folder.iterdir() for line in file.read_text().splitlines()]


@pytest.mark.parametrize("case", _SAMPLE)
def test_cases_are_right(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _rows(case, lambda: distributed.Rank(tmp_path, 0.0), tmp_path, monkeypatch)
    assert [(row["right"], row["ranks"]) for row in rows] == [(True, 2)] * CASES[case]


@pytest.mark.prove
@pytest.mark.parametrize("case", CASES)
def test_cases_are_right_on_four_ranks(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _rows(case, lambda: distributed.Rank(tmp_path, 0.0), tmp_path, monkeypatch, 4)
    assert [(row["right"], row["ranks"]) for row in rows] == [(True, 4)] * CASES[case]


@pytest.mark.parametrize("one_gpu", (False, True))
def test_each_rank_has_a_gpu_of_its_own_or_all_have_the_first(
    one_gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(distributed, "_together", lambda out, ranks, port, cases, end: _started(out, ranks))
    monkeypatch.setattr(distributed.subprocess, "Popen", lambda command, env, **_: started.append(env["LOCAL_RANK"]))
    monkeypatch.delenv(distributed.ONE_GPU, raising=False)
    arguments = ["--out", str(tmp_path), "--ranks", "2", *(["--one-gpu"] if one_gpu else []), "lost"]
    monkeypatch.setattr(sys, "argv", ["distributed.py", *arguments])
    monkeypatch.setattr(os, "environ", dict(os.environ))
    distributed.main()
    assert started == (["0", "0"] if one_gpu else ["0", "1"])


def _started(out: Path, ranks: int) -> str:
    for rank in range(ranks):
        distributed._start(out, rank, ranks, 29500, ["lost"], 0.0)
    return "done"


class _TimedRank(distributed.Rank):
    """A simulated rank that calls what it would time once; ``refused`` are what needs GPUs."""

    def __init__(self, out: Path, refused: list[str]) -> None:
        super().__init__(out, 0.0)
        self.refused = refused

    def rows_of(self, case: str, what: str, variants: dict[str, Callable[[], Any]], **options: Any) -> None:
        for variant, function in variants.items():
            try:
                function()
            except NotImplementedError:
                self.refused.append(variant)
            self.write({"case": case, "what": what, "variant": variant, **options})


@pytest.fixture
def idle_group(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A process group whose collective operations do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    with monkeypatch.context() as patched:
        patched.setattr(torch.distributed, "is_initialized", lambda: False)
        yield
    torch.distributed.destroy_process_group()


@pytest.mark.prove
@pytest.mark.parametrize("case", ["configs", *(case for case in CASES if case not in ("primitives", "stress"))])
def test_what_is_timed_can_be_called(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle_group: None
) -> None:
    refused: list[str] = []
    rows = _rows(case, lambda: _TimedRank(tmp_path, refused), tmp_path, monkeypatch)
    assert any("variant" in row for row in rows) and all(row.get("right", True) for row in rows)
    assert all("torch" in variant for variant in refused)
