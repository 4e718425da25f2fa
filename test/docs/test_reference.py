"""The reference says all there is, and the pages name nothing that is not there."""

from __future__ import annotations

import builtins
import importlib.util
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from doc_pages import Runner

import helion
import helion.language as hl
from helion import knobs
from helion._compiler.frontend.torch import functions as torch_functions
from helion.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
_PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def _load() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("docs_reference", ROOT / "scripts" / "reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs_reference"] = module
    spec.loader.exec_module(module)
    return module


reference = _load()
MODULES = [each for _, found in reference.modules() for each in found]
ENTRIES = [*reference.language(), *reference.package(), *MODULES, *reference.operators()]


def unknown(entry: Any) -> list[str]:
    """What is wrong with the documentation of a public name."""
    found = []
    parts = reference.sections(entry.doc)
    if not entry.doc:
        found.append("it has no docstring")
    if entry.doc.startswith(("What ", "Whatever ", "How ")):
        found.append("a docstring says what a thing is or does, in the imperative or as a noun")
    if "Raises ``" in entry.doc:
        found.append("errors stand in a section of their own, `Raises:`")
    named = [name for name, _ in reference.items(parts.get("Args:", ()))]
    if named and named != list(entry.parameters):
        found.append(f"the arguments are {list(entry.parameters)}, documented are {named}")
    for name, _ in reference.items(parts.get("Raises:", ())):
        owner, plain = (helion.exc, name.removeprefix("exc.")) if name.startswith("exc.") else (builtins, name)
        if not hasattr(owner, plain):
            found.append(f"there is no error {name}")
    return found


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_public_names_are_documented(entry: Any) -> None:
    assert not unknown(entry)


#: The public names of ``hl`` without an example: unsupported ones, aliases, and types that others return.
_WITHOUT_EXAMPLE = {
    "hl.Channel", "hl.ProcessGroupName", "hl.StackTensor", "hl.constexpr", "hl.RemoteCopy",
}  # fmt: skip
_LANGUAGE = {each.name: each for each in reference.language()}


def test_every_function_of_the_language_has_an_example() -> None:
    without = {name for name, each in _LANGUAGE.items() if not reference.example(each.doc)}
    assert without <= _WITHOUT_EXAMPLE


@pytest.mark.parametrize("name", sorted(set(_LANGUAGE) - _WITHOUT_EXAMPLE))
def test_examples_of_docstrings_run(name: str, tmp_path: Path) -> None:
    code = "import torch\nimport helion\nimport helion.language as hl\n\n" + reference.example(_LANGUAGE[name].doc)
    module = "docs_example_" + name.removeprefix("hl.")
    try:
        Runner(module, f"```python\n{code}\n```\n", tmp_path).run()
    finally:
        sys.modules.pop(module, None)


@pytest.mark.parametrize(
    ("doc", "complaint"),
    [
        ("", "no docstring"),
        ("What it is.", "a docstring says"),
        ("It. Raises ``TypeError``.", "a section of their own"),
        ("It.\n\nArgs:\n    y: something.", "documented are"),
        ("It.\n\nRaises:\n    exc.NoSuchError: never.", "no error"),
        ("It.\n\nRaises:\n    NoSuchError: never.", "no error"),
    ],
)
def test_bad_docstrings_are_reported(doc: str, complaint: str) -> None:
    (found,) = unknown(reference.Entry("f", "f(x)", doc, ("x",)))
    assert complaint in found
    assert not unknown(
        reference.Entry("f", "f(x)", "It.\n\nArgs:\n    x: something.\n\nRaises:\n    TypeError: never.", ("x",))
    )


def test_every_config_key_has_a_row() -> None:
    assert set(reference.config_fields()) == set(helion.config.KEYS)
    own = {key.split("_", 1)[1] for key in reference.product_fields() if key not in helion.config.KEYS}
    assert own == set(reference.PRODUCT_KEYS)


def test_every_setting_has_a_row() -> None:
    rows = {row[0].strip("`") for row in (*reference.setting_rows(), *reference.ignored_rows())}
    assert rows == set(Settings().to_dict())


def test_every_variable_has_a_row() -> None:
    page = reference.settings_page()
    known = [k for k in (*vars(knobs).values(), *knobs.SETTINGS.values()) if isinstance(k, knobs.Knob)]
    ignored = {row[0].strip("`") for row in reference.ignored_rows()}
    expected = {k.env for k in known} - {knobs.SETTINGS[name].env for name in ignored if name in knobs.SETTINGS}
    assert {env for env in expected if f"`{env}`" not in page} == set()


def test_every_torch_function_is_listed() -> None:
    taken = [f for f, rule in torch_functions.RULES.items() if not reference.is_refusal(rule)]
    listed = {name for names in reference.torch_groups().values() for name in names}
    assert listed == set(reference.torch_names(taken))


def test_every_error_has_a_row() -> None:
    page = reference.errors_page()
    classes = [c for c in vars(helion.exc).values() if isinstance(c, type) and issubclass(c, helion.exc.Base)]
    classes = [c for c in classes if c not in (helion.exc.Base, helion.exc.BaseError, helion.exc.BaseWarning)]
    assert [c.__name__ for c in classes if f"`{c.__name__}`" not in page] == []


_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.S)
_NAME = re.compile(r"(?<![\w./])(hl|helion|torch|exc)((?:\.[A-Za-z_]\w*)+)")
_VARIABLE = re.compile(r"\b(HELION_[A-Z0-9_]+)\b")


def missing_names(text: str) -> list[str]:
    """Names of helion and torch in the code of a page that do not exist, and variables that nothing reads."""
    owners = {"hl": hl, "helion": helion, "torch": torch, "exc": helion.exc}
    found = []
    for code in _CODE.findall(text):
        for root, path in _NAME.findall(code):
            if path.endswith(".py"):  # a file
                continue
            value: Any = owners[root]
            for part in path[1:].split("."):
                value = getattr(value, part, _submodule(value, part))
                if value is None:
                    found.append(f"{root}{path}")
                    break
    known = {k.env for k in (*vars(knobs).values(), *knobs.SETTINGS.values()) if isinstance(k, knobs.Knob)}
    return found + [name for name in _VARIABLE.findall(text) if name not in known | {"HELION_PROVE"}]


def _submodule(value: Any, part: str) -> Any:
    """A module that nobody has imported yet."""
    try:
        return importlib.import_module(f"{value.__name__}.{part}")
    except (ImportError, AttributeError):
        return None


@pytest.mark.parametrize("page", _PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages_name_what_exists(page: Path) -> None:
    assert missing_names(page.read_text()) == []


def test_missing_names_are_reported() -> None:
    text = "`hl.tile` and `helion.Kernel.bind`, `hl.tilez`, `helion.exc.NoSuch`, HELION_LOGS and HELION_LOG"
    assert missing_names(text) == ["hl.tilez", "helion.exc.NoSuch", "HELION_LOG"]
