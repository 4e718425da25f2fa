"""Check the prose of the project: openings of docstrings, length of sentences, banned words.

    python scripts/prose.py [PATH ...] [--count]

Reads docstrings, comments and messages of Python files, and paragraphs of Markdown pages. Prints one line for each
violation as `path:line: rule: text`, or with `--count` the number for each folder. Exits with 1 when there is one.
Code spans count as one word. Code blocks, tables and headings have no sentences.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Files and folders that the rules hold for.
PLACES = ("helion", "docs", "README.md", "CONTRIBUTING.md", "scripts", "examples")
#: Pages made from data by `make report`: their text comes from checked sources.
GENERATED = ("docs/performance.md",)

MAX_WORDS = 25
#: No docstring opens with one of these, and no sentence without a question mark opens with What or Whether.
QUESTION_WORDS = frozenset({"what", "whether", "which", "who", "where", "how", "whose", "why"})
#: Docstrings of functions do not open with these either: they open with a verb.
NO_VERBS = frozenset(
    (
        "the", "a", "an", "of", "one", "all", "every", "each", "its", "those", "that", "these", "this", "it", "in", "by",
        "with", "as", "for", "from", "any", "no", "none", "both", "two", "three", "four", "without", "within", "until",
        "after", "before", "only", "such", "there", "other", "another", "same",
    )
)  # fmt: skip
#: Banned word, and the plain one.
BANNED = {
    r"behind": "after",
    r"stands?|stood|standing": "be, or name the relation",
    r"nobody|whoever|somebody": "no one, or name the thing",
    r"anew": "again",
    r"(?:come|comes|came) to": "be, become",
    r"had better": "should",
    r"beside": "with, next to",
    r"apart": "separately",
    r"turned|crosswise": "swapped (A and B), transposed",
    r"box(?:es|ed)": "tile of a TMA descriptor",
    r"g(?:one|oes) on with": "resumed, continue",
    r"under way": "in flight",
}
_BANNED = re.compile(r"\b(?:" + "|".join(f"(?P<b{i}>{each})" for i, each in enumerate(BANNED)) + r")\b", re.IGNORECASE)
_SPAN = re.compile(r"``[^`]*``|`[^`]*`|\[([^\]]*)\]\([^)]*\)")
#: The end of a sentence: a full stop and the like, then a new one. Abbreviations and list items are no ends.
_SENTENCE = re.compile(r"(?<![ (]e\.g\.)(?<![ (]i\.e\.)(?<=[.!?:;])\s+")
_SECTION = re.compile(r"^\s*(?:Args|Returns|Raises|Yields|Example|Examples|Note|Source|Sources)::?\s*$")


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class Violation:
    """A place in the text and the rule that it breaks."""

    path: str
    line: int
    rule: str
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passage:
    """A paragraph of prose and its first line in the file."""

    path: str
    line: int
    text: str
    #: Messages are made from parts, so only banned words are looked for in them.
    is_message: bool = False


def violations(path: Path) -> list[Violation]:
    """Return the violations of one file, in order of lines."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()
    if path.suffix == ".py":
        nodes = list(ast.walk(ast.parse(text)))
        passages = [*_python_passages(name, nodes), *_comments(name, text)]
        found = [*_opening_violations(name, nodes), *_passage_violations(passages)]
    else:
        found = list(_passage_violations(_markdown_passages(name, text)))
    return sorted(found)


def files(places: Iterable[str | Path]) -> Iterator[Path]:
    """Yield the Python and Markdown files of files and folders."""
    for place in map(Path, places):
        whole = place if place.is_absolute() else ROOT / place
        found = sorted(p for p in whole.rglob("*") if p.suffix in (".py", ".md")) if whole.is_dir() else [whole]
        yield from (p for p in found if p.relative_to(ROOT).as_posix() not in GENERATED)


# ---------------------------------------------------------------------------------------------------------------------
# Openings of docstrings


def _opening_violations(path: str, nodes: list[ast.AST]) -> Iterator[Violation]:
    for node in nodes:
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        docstring = ast.get_docstring(node)
        line = node.body[0].lineno if docstring else 0
        if docstring and (reason := _opening(node, docstring)):
            first = " ".join(docstring.split()[:8])
            yield Violation(path=path, line=line, rule=reason, text=first)


def _opening(node: ast.AST, docstring: str) -> str:
    word = re.match(r"\W*([\w'-]*)", docstring)
    first = word[1].lower() if word else ""
    if first in QUESTION_WORDS:
        return "opens with a question word"
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_property(node):
        return ""
    if docstring.lstrip().startswith("`") or first in NO_VERBS or not first.isalpha() or not docstring[0].isupper():
        return "function opens without a verb"
    return "" if first in verbs() else "function opens without a verb (a new verb is a line in scripts/verbs.txt)"


def verbs() -> frozenset[str]:
    """Return the verbs that docstrings of functions open with."""
    global _verbs
    if _verbs is None:
        _verbs = frozenset((ROOT / "scripts" / "verbs.txt").read_text(encoding="utf-8").split())
    return _verbs


_verbs: frozenset[str] | None = None


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = {ast.unparse(each).rpartition(".")[2] for each in node.decorator_list}
    return bool(names & {"property", "cached_property"})


# ---------------------------------------------------------------------------------------------------------------------
# Passages


def _python_passages(path: str, nodes: list[ast.AST]) -> Iterator[Passage]:
    docstrings = set()
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                docstrings.add(id(first.value))
                yield from _paragraphs(path, first.lineno, first.value.value)
    for node in nodes:
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in docstrings:
            continue
        if len(node.value.split()) >= 4 and "\n" not in node.value:
            yield Passage(path=path, line=node.lineno, text=node.value, is_message=True)


#: A string, which may have a # in it, or a comment. Tokens would take most of the time of this script.
_STRING_OR_COMMENT = re.compile(
    r""""{3}(?:\\.|[^\\])*?"{3}|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(?P<comment>\#[^\n]*)""",
    re.DOTALL,
)


def _comment_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the comments of Python source and their lines."""
    line, end = 1, 0
    for found in _STRING_OR_COMMENT.finditer(text):
        line += text.count("\n", end, found.start())
        end = found.start()
        if comment := found["comment"]:
            yield line, comment


def _comments(path: str, text: str) -> Iterator[Passage]:
    lines: list[str] = []
    begin = last = 0
    for line, comment in _comment_lines(text):
        if re.match(r"#\s*(?:noqa|type:|ruff:|mypy:|!|-{5})", comment):
            continue
        if lines and line != last + 1:
            yield Passage(path=path, line=begin, text=" ".join(lines))
            lines = []
        begin = begin if lines else line
        lines.append(comment.lstrip("#:").strip().partition("# noqa")[0])
        last = line
    if lines:
        yield Passage(path=path, line=begin, text=" ".join(lines))


def _paragraphs(path: str, line: int, docstring: str) -> Iterator[Passage]:
    """Yield the paragraphs of a docstring: no blocks of code after `::`, no tables."""
    code_after: int | None = None
    lines: list[str] = []
    begin = line
    for number, raw in enumerate(docstring.split("\n"), line):
        indent = len(raw) - len(raw.lstrip())
        text = raw.strip()
        if code_after is not None and (not text or indent > code_after):
            continue
        code_after = None
        is_item = bool(
            re.match(r"(?:[-*•]|\d+\.)\s|``?[\w.*\[\]]+``?(?:\s*\([^)]*\))?:", text) or re.match(r"\w+:\s", text)
        )
        if not text or _SECTION.match(raw) or is_item or text.startswith(("|", ">>>", "===", "---")):
            if lines:
                yield Passage(path=path, line=begin, text=" ".join(lines))
            lines = []
        if text.endswith("::"):
            code_after = indent if number > line else -1
        if text and not _SECTION.match(raw) and not text.startswith(("|", ">>>", "===", "---")):
            begin = begin if lines else number
            lines.append(text)
        if text.endswith("::") and lines:
            yield Passage(path=path, line=begin, text=" ".join(lines))
            lines = []
    if lines:
        yield Passage(path=path, line=begin, text=" ".join(lines))


def _markdown_passages(path: str, text: str) -> Iterator[Passage]:
    lines: list[str] = []
    begin, fence = 0, ""
    for number, raw in enumerate([*text.split("\n"), ""], 1):
        stripped = raw.strip()
        opened = re.match(r"(```+|~~~+)", stripped)
        if fence or opened:
            if opened and (not fence or stripped == fence):
                fence = "" if fence else opened[1]
            stripped = ""
        is_item = bool(re.match(r"(?:[-*]|\d+\.)\s", stripped))
        if not stripped or is_item or stripped.startswith(("|", "#", "<!--", ":", "!!!", "![")):
            if lines:
                yield Passage(path=path, line=begin, text=" ".join(lines))
            lines = []
        if stripped.startswith(("#", "|")):
            yield Passage(path=path, line=number, text=stripped, is_message=True)
        elif stripped and not stripped.startswith(("<!--", "![")):
            begin = begin if lines else number
            lines.append(re.sub(r"^(?:[-*]|\d+\.)\s+", "", stripped))


def _passage_violations(passages: Iterable[Passage]) -> Iterator[Violation]:
    for passage in passages:
        plain = _SPAN.sub(lambda m: m[1] or "X", passage.text)
        for match in _BANNED.finditer(plain):
            better = list(BANNED.values())[next(i for i in range(len(BANNED)) if match[f"b{i}"])]
            around = plain[max(0, match.start() - 30) : match.end() + 30]
            yield Violation(path=passage.path, line=passage.line, rule=f"'{match[0]}' ({better})", text=around)
        if not passage.is_message:
            yield from _sentence_violations(passage, plain)


def _sentence_violations(passage: Passage, plain: str) -> Iterator[Violation]:
    for sentence in _SENTENCE.split(plain):
        words = sentence.split()
        if len(words) > MAX_WORDS:
            text = " ".join(words[:10]) + " …"
            yield Violation(path=passage.path, line=passage.line, rule=f"{len(words)} words in a sentence", text=text)
        if words and words[0] in ("What", "Whether") and not sentence.endswith("?"):
            text = " ".join(words[:10])
            yield Violation(path=passage.path, line=passage.line, rule="sentence opens with a question word", text=text)


# ---------------------------------------------------------------------------------------------------------------------
# Report


def main() -> int:
    """Print the violations, or their number for each folder."""
    parser = argparse.ArgumentParser(description="check openings, sentences and words of the project's prose")
    parser.add_argument("paths", nargs="*", default=PLACES, metavar="PATH")
    parser.add_argument("--count", action="store_true", help="print the number for each folder only")
    options = parser.parse_args()
    found = [each for path in files(options.paths) for each in violations(path)]
    if options.count:
        for place, number in sorted(Counter(str(Path(each.path).parent) for each in found).items()):
            print(f"{number:6d} {place}")
    else:
        for each in found:
            print(f"{each.path}:{each.line}: {each.rule}: {each.text}")
    print(f"{len(found)} violations", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
