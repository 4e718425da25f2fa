"""The wheel and the source distribution hold all that the package needs."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

import helion
from helion._testing import import_path

ROOT = Path(__file__).resolve().parents[2]
badges = import_path(ROOT / "scripts" / "badges.py")
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
    assert re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M) == [helion.__version__]
    assert re.findall(r"^## ([\d.]+)$", (ROOT / "docs" / "changelog.md").read_text(), re.M)[0] == helion.__version__


def test_badges_are_of_the_metadata() -> None:
    kept = {path.name: path.read_text() for path in badges.FOLDER.iterdir()}
    assert kept == badges.badges()
    for page, folder in ((ROOT / "README.md", "docs/badges/"), (ROOT / "docs" / "index.md", "badges/")):
        shown = re.findall(rf"\({folder}(\w+\.svg)\)", page.read_text())
        assert len(shown) == 5 and set(shown) <= {*kept}


def test_the_badge_of_checks_that_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["badges.py", "--passed", str(tmp_path / "site" / "checks.svg")])
    assert badges.main() == 0
    assert f">{helion.__version__} passed<" in (tmp_path / "site" / "checks.svg").read_text()


def test_extras_are_on_the_page_of_stability() -> None:
    (section,) = re.findall(r"\[project\.optional-dependencies\]\n(.*?)\n\n", PROJECT, re.S)
    page = (ROOT / "docs" / "stability.md").read_text().split("## Names and extras")[1]
    extras = re.findall(r"^(\w+) =", section, re.M)
    assert len(extras) >= 4
    assert [extra for extra in extras if f"`{extra}`" not in page] == []
    readme = (ROOT / "README.md").read_text().split("\nExtras: ")[1].split(". ")[0]
    assert sorted(re.findall(r"`(\w+)`", readme)) == sorted(extras)
