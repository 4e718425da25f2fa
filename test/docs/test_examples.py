"""Examples are what users copy: they use public names only, type-check, and say what ran where."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helion._testing import import_path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
#: What an example may import of the package.
PUBLIC = {"helion", "helion.language", "helion.testing"}


def private_names(source: str) -> Iterator[str]:
    """Modules and attributes that users should not use."""
    for node in ast.walk(ast.parse(source)):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
            yield from (alias.name for alias in node.names if alias.name.startswith("_"))
        yield from (m for m in modules if m.split(".")[0] == "helion" and m not in PUBLIC)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            own = isinstance(node.value, ast.Name) and node.value.id == "self"
            yield from () if own else (node.attr,)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_use_public_names(path: Path) -> None:
    assert list(private_names(path.read_text())) == []


def test_private_names_are_reported() -> None:
    source = "import helion.runtime.kernel\nfrom helion._testing import check\nfrom helion import _x\nbound._of"
    assert list(private_names(source)) == ["helion.runtime.kernel", "helion._testing", "_x", "_of"]


def test_a_run_says_what_ran_where() -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        import_path(ROOT / "examples" / "add.py").main()
    lines = printed.getvalue().splitlines()
    assert len(lines) >= 3
    assert all(line.startswith("add, ") and "max error" in line and "float" in line for line in lines)


USER = Path(__file__).parent / "user_module.py"
#: Examples that a quick run looks at; all of them under `make prove`.
SAMPLE = ("add", "attention", "grouped_gemm", "matmul", "segment_reduction")


def _check_types(command: list[str], folder: Path) -> list[str]:
    """What a type checker says of the files of a folder outside of the checkout, for which helion is a library."""
    place = {**os.environ, "PYTHONPATH": str(ROOT), "MYPYPATH": ""}
    run = subprocess.run(command, cwd=folder, env=place, capture_output=True, text=True, check=False)
    assert run.returncode in (0, 1), run.stderr
    return [line for line in run.stdout.splitlines() if " error: " in line]


#: Functions of torch that have no annotations are called without complaint.
OPTIONS = """
[mypy]
strict = true
disallow_untyped_calls = false
follow_imports = silent
ignore_missing_imports = true
"""
#: The whole of torch takes most of the time: tensors, types and functions are read, other modules under `make prove`.
PART_OF_TORCH = """
[mypy-torch.*]
follow_imports = skip
[mypy-torch,torch._C,torch._C._VariableFunctions,torch._tensor,torch._VF,torch.functional,torch.nn,torch.nn.functional,torch.nn.modules,torch.nn.modules.linear,torch.nn.modules.module,torch.types]
follow_imports = silent
"""


def _mypy(folder: Path, config: str, *files: str) -> list[str]:
    (folder / "mypy.ini").write_text(config)
    cache = ROOT / ".mypy_cache" / "users"
    command = [sys.executable, "-m", "mypy", "--config-file=mypy.ini", f"--cache-dir={cache}", *files]
    return _check_types(command, folder)


def _copied(folder: Path, names: tuple[str, ...]) -> list[str]:
    for name in names:
        (folder / f"{name}.py").write_text((ROOT / "examples" / f"{name}.py").read_text())
    return [f"{name}.py" for name in names]


@pytest.mark.prove
@pytest.mark.parametrize("config", [OPTIONS + PART_OF_TORCH, OPTIONS], ids=["part of torch", "torch"])
def test_types_of_a_users_module_and_of_examples(config: str, tmp_path: Path) -> None:
    """Errors of that module are where it says so: an ignore that is not needed would be one."""
    (tmp_path / USER.name).write_text(USER.read_text())
    assert _mypy(tmp_path, config, USER.name, *_copied(tmp_path, SAMPLE)) == []


@pytest.mark.prove
def test_types_of_all_examples(tmp_path: Path) -> None:
    files = _copied(tmp_path, tuple(path.stem for path in EXAMPLES))
    assert _mypy(tmp_path, OPTIONS, *files) == []


@pytest.mark.prove
def test_pyright_takes_all_examples(tmp_path: Path) -> None:
    """pyright comes from the package index, and its own first run fetches the rest of it."""
    _copied(tmp_path, tuple(path.stem for path in EXAMPLES))
    tools = tmp_path / "tools"
    subprocess.run([sys.executable, "-m", "venv", str(tools)], check=True)
    subprocess.run([str(tools / "bin" / "pip"), "install", "-q", "pyright"], check=True)
    sites = [entry for entry in sys.path if entry.endswith("site-packages")]
    config = {"include": ["*.py"], "extraPaths": [str(ROOT), *sites], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    assert _check_types([str(tools / "bin" / "pyright")], tmp_path) == []
