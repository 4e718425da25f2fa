"""The section of the page about operators, from files as the benchmarks write them; and the cells of other libraries."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import ops as benchmark
from benchmarks import ops_first_calls, ops_peers, ops_report

ENVIRONMENT = {"device": "NVIDIA X", "date": "2026-01-01"}
CELLS = [
    {
        "name": "swiglu",
        "shape": "8x8",
        "forward": {"helion": 2.0, "compile": 3.0, "eager": 8.0},
        "both": {"helion": 5.0},
    },
    {"name": "rope", "shape": "4x4", "forward": {"helion": 4.0, "eager": 2.0}, "host": {"helion": 9.0, "eager": 18.0}},
]
PEER = {"name": "rope", "shape": "4x4", "forward": {"helion": 4.0, "liger": 4.2}, "by": {"forward": "events"}}
UNTIMED = {"library": "flashy", "version": "1.2", "untimed": "a wheel of 900 MB"}
CALLS = {"caches": "filled", "processes": 1, "seconds": 1.5, "sum_s": 1.2, "import_s": 0.1, "calls_s": {"rope": 0.7}}


def lines(folder: Path) -> list[str]:
    (folder / "x.json").write_text(json.dumps({"environment": ENVIRONMENT, "rows": CELLS}))
    peers = "".join(json.dumps({**row, **ENVIRONMENT}) + "\n" for row in (PEER, UNTIMED))
    (folder / "x-peers.jsonl").write_text(peers)
    (folder / "x-first-calls.json").write_text(json.dumps({"environment": ENVIRONMENT, "rows": [CALLS]}))
    return list(ops_report.sections(ops_report.read(folder)))


def test_the_section_has_ratios_and_misses(tmp_path: Path) -> None:
    found = lines(tmp_path)
    assert "- At least as fast in 1 of 2 cells (50 %; the goal is 90 %)." in found
    assert "- Below 0.9: rope 4x4, forward: 0.50." in found
    assert "| swiglu | 8x8 | forward | 2.0 | 3.0 | 8.0 | 1.50 |" in found
    assert "| swiglu | 8x8 | both | 5.0 |  |  |  |" in found
    assert "| rope | 4x4 | host | 9.0 |  | 18.0 | 2.00 |" in found
    assert "| rope | 4x4 | forward, by events | 4.0 | 4.2 | 1.05 |" in found
    assert "- None is below 0.9." in found
    assert "- flashy 1.2: a wheel of 900 MB" in found
    assert "| filled | 1 | 1.50 | 1.20 | 0.10 | rope 0.70 |" in found


def test_nothing_without_results(tmp_path: Path) -> None:
    assert list(ops_report.sections(ops_report.read(tmp_path))) == []


def test_cells_of_other_libraries_have_names_of_operators() -> None:
    names = [cell.name for cell in benchmark.cells()]
    assert {cell.name for cell in ops_peers.cells()} <= set(names)
    assert sorted(ops_first_calls.names_of_cells()) == sorted(set(names))
    for cell in ops_peers.cells():
        assert next(iter(cell.variants)) == "helion" and len(cell.variants) > 1


@pytest.mark.parametrize("name", ["rms_norm", "add_rms_norm", "layer_norm", "softmax", "swiglu", "geglu"])
def test_references_of_other_libraries(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "DEVICE", "cpu")
    cell = next(cell for cell in ops_peers.cells() if cell.name == name)
    torch.manual_seed(0)
    args = tuple(torch.randn([8, 64][-each.dim() :]).to(torch.bfloat16) for each in made(cell))
    assert ops_peers.largest_error(cell.variants["helion"](*args), cell.reference(*args)) < 1e-2
    ours, theirs = (gradients(cell, function, args) for function in (cell.variants["helion"], cell.reference))
    assert ops_peers.largest_error(ours, theirs) < 3e-2


def gradients(cell: ops_peers.Cell, function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """Return gradients by results that count differently: the sum of a softmax, say, has none."""
    leaves = [a.detach().clone().requires_grad_() if at in cell.differentiated else a for at, a in enumerate(args)]
    found = function(*leaves)
    results = [r for r in (found if isinstance(found, tuple) else (found,)) if r.requires_grad]
    weights = [torch.arange(r.numel()).cos().view_as(r).to(r.dtype) for r in results]
    return torch.autograd.grad(results, [leaves[at] for at in cell.differentiated], weights)


def made(cell: ops_peers.Cell) -> tuple[torch.Tensor, ...]:
    """Return the arguments of a cell without their memory."""
    with torch.device("meta"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark, "DEVICE", "meta")
        found: tuple[torch.Tensor, ...] = cell.make()
        return found
