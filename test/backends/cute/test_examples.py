"""The examples of the backend, each against eager PyTorch in fp32, and what their runs print."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import helion
from helion._testing import EXAMPLES_DIR, import_path
from helion.backends.cute.plan.kernel import CutePlan

FOLDER = EXAMPLES_DIR / "cute"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "common")


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    example, common = import_path(FOLDER / f"{name}.py"), import_path(FOLDER / "common.py")
    for kernel, args in example.cases():
        common.relative_error(kernel, example.reference, args)
        for target in ("sm_90", "sm_100"):
            assert isinstance(kernel.bind(args, target=target).plan(), CutePlan)


@pytest.mark.prove
def test_a_run_says_what_ran_where() -> None:
    script = FOLDER / "swiglu_products.py"
    root = str(Path(helion.__file__).parents[1])
    said = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, env={"PYTHONPATH": root}
    ).stdout
    assert "swiglu: error" in said and "on wgmma" in said
    assert "refused: Kernel 'rows_accumulated' cannot be compiled by the cute backend" in said
    assert "rows_accumulated: error" in said
