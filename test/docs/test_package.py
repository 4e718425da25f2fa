"""The wheel and the source distribution hold all that the package needs."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import helion

ROOT = Path(__file__).resolve().parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text()


def test_files_that_are_no_modules_are_in_the_package() -> None:
    (listed,) = re.findall(r"\[tool\.setuptools\.package-data\]\nhelion = \[(.*)\]", PROJECT)
    patterns = re.findall(r'"([^"]+)"', listed)
    package = ROOT / "helion"
    others = [
        str(path.relative_to(package))
        for path in package.rglob("*")
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
    ]
    assert "py.typed" in others
    assert [name for name in others if not any(fnmatch(name, pattern) for pattern in patterns)] == []


def test_every_folder_is_a_package() -> None:
    folders = {path.parent for path in (ROOT / "helion").rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_versions_agree() -> None:
    assert re.findall(r'^version = "(.*)"$', PROJECT, re.M) == [helion.__version__]
