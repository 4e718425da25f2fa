"""The notebooks run from their first to their last cell."""

from __future__ import annotations

import json
import linecache
import sys
import types
from pathlib import Path

import pytest

from helion._testing import EXAMPLES_DIR

NOTEBOOKS = sorted((EXAMPLES_DIR / "notebooks").glob("*.ipynb"))


def run(path: Path, module: types.ModuleType) -> None:
    """Run the code cells of a notebook in a module, each with a file name of its own, as IPython does."""
    for at, cell in enumerate(json.loads(path.read_text())["cells"]):
        if cell["cell_type"] != "code":
            continue
        source, name = "".join(cell["source"]) + "\n", f"<{path.stem} cell {at}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec"), vars(module))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = types.ModuleType(f"notebook_{path.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    run(path, module)
    printed = capsys.readouterr().out
    expected = {"getting_started": "in wrong", "tuning_and_explain": "def _helion_rms_norm("}
    assert expected[path.stem] in printed


def test_there_are_two_without_results() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["getting_started", "tuning_and_explain"]
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text())["cells"]
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


def test_a_wrong_cell_is_reported(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["no code"]},
        {"cell_type": "code", "source": ["x = 1\n", "assert x == 2"]},
    ]
    (tmp_path / "wrong.ipynb").write_text(json.dumps({"cells": cells}))
    with pytest.raises(AssertionError):
        run(tmp_path / "wrong.ipynb", types.ModuleType("notebook_wrong"))
