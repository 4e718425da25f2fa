"""Prose of rooms that are clean stays clean, and planted violations are reported."""

from __future__ import annotations

import importlib.util
import re
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

#: Rooms without violations of scripts/prose.py: files, and folders with all they contain.
HELD = ("CONTRIBUTING.md", "README.md", "docs", "examples", "fuzz", "helion", "scripts")


def _load() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("prose", ROOT / "scripts" / "prose.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["prose"] = module
    spec.loader.exec_module(module)
    return module


prose = _load()


def rules(path: Path) -> list[str]:
    """Return the rules that a file violates, one per violation."""
    return [each.rule for each in prose.violations(path)]


@pytest.mark.parametrize("room", HELD)
def test_rooms_have_no_violations(room: str) -> None:
    paths = list(prose.files([room]))
    assert paths, f"{room} has no files: correct HELD"
    found = [each for path in paths for each in prose.violations(path)]
    assert not found, "\n".join(f"{each.path}:{each.line}: {each.rule}: {each.text}" for each in found)


GOOD = '''"""A module with plain prose."""


class Record:
    """A record of two numbers."""

    @property
    def total(self) -> int:
        """The sum of both."""
        return 3


def count() -> int:
    """Return a number."""
    return 1  # after the first one
'''

#: A text of `GOOD`, a violation to put in its place, and the rule that reports it.
PLANTED = {
    "module_question": ("A module with plain prose.", "What a module says.", "opens with a question word"),
    "record_question": ("A record of two numbers.", "How numbers are kept.", "opens with a question word"),
    "property_question": ("The sum of both.", "Whether both are added.", "opens with a question word"),
    "function_question": ("Return a number.", "Which number it is.", "opens with a question word"),
    "function_article": ("Return a number.", "The number.", "function opens without a verb"),
    "function_code": ("Return a number.", "``1``, as a number.", "function opens without a verb"),
    "function_preposition": ("Return a number.", "With no arguments, a number.", "function opens without a verb"),
    "function_unknown_verb": ("Return a number.", "Returns a number.", "function opens without a verb"),
    "long_docstring": ("A record of two numbers.", "A record" + " of numbers" * 13 + ".", "28 words in a sentence"),
    "long_comment": ("after the first one", "one " * 26, "26 words in a sentence"),
    "later_question": ("Return a number.", "Return a number. What it is is 1.", "sentence opens with a question word"),
    "banned_docstring": ("A record of two numbers.", "A record behind two numbers.", "'behind'"),
    "banned_comment": ("after the first one", "nobody needs it", "'nobody'"),
    "banned_message": ("return 1", 'raise ValueError("it stands in the wrong place")', "'stands'"),
}


def test_plain_prose_has_no_violations(tmp_path: Path) -> None:
    path = tmp_path / "good.py"
    path.write_text(GOOD)
    assert rules(path) == []


@pytest.mark.parametrize("case", PLANTED)
def test_planted_violations_are_reported(case: str, tmp_path: Path) -> None:
    text, planted, rule = PLANTED[case]
    assert GOOD.count(text) == 1
    path = tmp_path / "planted.py"
    path.write_text(GOOD.replace(text, planted))
    assert [each for each in rules(path) if each.startswith(rule)], rules(path)


PAGE = """# A title

A paragraph with a [link behind it](behind.md) is checked, `behind` in code is not.

```text
nobody checks a block of code
```

- a list item of {count} words: {words}
"""


def test_comments_are_told_from_strings() -> None:
    text = 'a = "# no" + \'# "no\'  # one\nb = """\n# no\n\\""" # no\n"""\nc = r"\\" #three\n'
    assert list(prose._comment_lines(text)) == [(1, "# one"), (6, "#three")]


def test_pages_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(PAGE.format(count=25, words=" ".join(["word"] * 25)))
    assert rules(path) == ["'behind' (after)"]
    path.write_text(PAGE.format(count=26, words=" ".join(["word"] * 26)))
    assert sorted(rules(path)) == ["'behind' (after)", "26 words in a sentence"]


def test_verbs_are_words_in_lower_case() -> None:
    wrong = [each for each in prose.verbs() if not (each.isalpha() and each.islower())]
    assert not wrong, f"correct scripts/verbs.txt: {wrong}"
    assert not prose.verbs() & (prose.NO_VERBS | prose.QUESTION_WORDS)


def test_files_that_docstrings_name_exist() -> None:
    names = {
        path.name
        for folder in ("helion", "benchmarks", "scripts", "docs", "test")
        for path in (ROOT / folder).rglob("*.*")
    }
    missing = {
        (str(path.relative_to(ROOT)), name)
        for path in (ROOT / "helion").rglob("*.py")
        for name in re.findall(r"``(?:[\w.-]+/)*(\w[\w.-]*\.(?:py|tsv))``", path.read_text())
        if name not in names and not name.startswith("_")
    }
    assert not missing
