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


#: A user's module: the kernel keeps the signature of the function, and wrong calls are errors.
USER = """
import torch
from typing_extensions import assert_type

import helion
import helion.language as hl


@helion.kernel
def bare(x: torch.Tensor, n: int = 2) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        assert_type(tile_m, hl.Tile)
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile in hl.tile(n):
            total += x[tile_m, tile].sum(1)
        out[tile_m, tile_n] = total[:, None] + tile_n.index + tile_m.begin
    return out


@helion.kernel(config=helion.Config(block_sizes=[1]), static_shapes=False)
def with_options(x: torch.Tensor, flag: hl.constexpr = False) -> tuple[torch.Tensor, torch.Tensor]:
    for tile in hl.tile(x.size(0)):
        hl.atomic_add(x, [tile], hl.load(x, [tile], extra_mask=tile.index > 3))
    return x, x


x = torch.randn(3, 4)
assert_type(bare(x), torch.Tensor)
assert_type(with_options(x, flag=True), tuple[torch.Tensor, torch.Tensor])
every: list[helion.Kernel] = [bare, with_options]
bare("x")  # error: [arg-type]
bare(x, m=2)  # error: [call-arg]
hl.zeros(3.5)  # error: [arg-type]
"""
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
[mypy-torch,torch._C,torch._C._VariableFunctions,torch._tensor,torch._VF,torch.functional,torch.nn,torch.nn.functional,torch.types]
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


@pytest.mark.parametrize(
    "config", [OPTIONS + PART_OF_TORCH, pytest.param(OPTIONS, marks=pytest.mark.prove)], ids=["part of torch", "torch"]
)
def test_types_of_a_users_module_and_of_examples(config: str, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER)
    expected = {
        f"user.py:{number}": line.split("error: ")[1]
        for number, line in enumerate(USER.splitlines(), 1)
        if "# error: " in line
    }
    said = _mypy(tmp_path, config, "user.py", *_copied(tmp_path, SAMPLE))
    assert {line.split(": ")[0]: line.split("  ")[-1] for line in said} == expected


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
