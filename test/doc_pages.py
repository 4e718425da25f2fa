"""Code blocks of Markdown pages, and what runs them.

Python blocks of a page run in order, in one module whose source has them at the lines of the page. A ``text`` block right
behind one is what it prints. The commands of a ``console`` block run in a folder of the page's own; the lines behind a
command stand in what it prints, but for ``...``. A comment in the line above says more of a block: ``<!-- gpu -->`` is
compiled and not run, ``<!-- file: NAME -->`` is also saved under that name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import re
import runpy
import shlex
import sys
import types
from pathlib import Path

from helion.__main__ import main

_MARK = re.compile(r"^<!-- (?P<what>\w+)(: (?P<name>[\w.]+))? -->$")
_FENCE = re.compile(r"^```(?P<language>\w*)")
ROOT = Path(__file__).resolve().parents[1]
#: Commands that set up a machine or need one: nothing runs them here.
_OF_MACHINES = ("pip", "git", "nvidia-smi", "cd", "python3", "source")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block. ``line`` is that of its first line of text, from 1; ``end`` that behind its fence."""

    language: str
    text: str
    line: int
    mark: str = ""
    file: str = ""

    @property
    def end(self) -> int:
        return self.line + len(self.text.splitlines()) + 1


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page."""
    found = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence is None:
            at += 1
            continue
        end = lines.index("```", at + 1)
        above = next((line for line in reversed(lines[:at]) if line), "")
        mark = _MARK.match(above)
        what, name = (mark["what"], mark["name"] or "") if mark else ("", "")
        found.append(Block(fence["language"], "\n".join(lines[at + 1 : end]), at + 2, what, name))
        at = end + 1
    return found


def outputs(text: str) -> dict[int, str]:
    """The expected output of Python blocks, by their line."""
    page, lines = blocks(text), text.splitlines()
    found = {}
    for block, after in itertools.pairwise(page):
        between = lines[block.end - 1 : after.line - 2]
        if block.language == "python" and after.language == "text" and not any(between):
            found[block.line] = after.text
    return found


class Runner:
    """Runs the blocks of one page: as one module, with a call of ``_behind`` at the end of each block."""

    def __init__(self, name: str, text: str, folder: Path) -> None:
        self.text, self.folder = text, folder
        self.blocks = blocks(text)
        self.outputs = outputs(text)
        self.file = folder / f"{name}.py"
        self.printed = io.StringIO()
        self.module = types.ModuleType(name)
        vars(self.module).update(__file__=str(self.file), _behind=self._behind)
        sys.modules[name] = self.module

    def run(self) -> None:
        """Raises whatever a block raises, and AssertionError where an output is not the one of the page."""
        source = self._source()
        self.file.write_text(source)
        code = compile(source, str(self.file), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(self.printed):
            exec(code, vars(self.module))

    def _source(self) -> str:
        lines = [""] * (len(self.text.splitlines()) + 1)
        for number, block in enumerate(self.blocks):
            if block.language == "python" and block.mark == "gpu":
                compile("\n" * (block.line - 1) + block.text, str(self.file), "exec", dont_inherit=True)
            elif block.language == "python":
                lines[block.line - 1 : block.end - 2] = block.text.splitlines()
            lines[block.end - 2] = f"_behind({number})"
        return "\n".join(lines)

    def _behind(self, number: int) -> None:
        """Look at what a Python block has printed; run a console block."""
        block, printed = self.blocks[number], self._take()
        expected = self.outputs.get(block.line)
        if expected is not None:
            assert _stripped(printed) == _stripped(expected), f"line {block.line} prints\n{printed}"
        if block.file:
            (self.folder / block.file).write_text(block.text + "\n")
        if block.language == "console":
            for command, shown in commands(block.text):
                self._command(command)
                _check_shown(command, shown, self._take())

    def _take(self) -> str:
        """What was printed since the last time."""
        text = self.printed.getvalue()
        self.printed.seek(0)
        self.printed.truncate()
        return text

    def _command(self, command: str) -> None:
        words = [word for word in shlex.split(command, comments=True) if not re.match(r"^[A-Z_]+=", word)]
        if words[:3] == ["python", "-m", "helion"]:
            code = main(words[3:])
            assert not code, f"{command}: exit status {code}"
        elif words[0] == "python":
            runpy.run_path(str(self.folder / words[1]), run_name="__main__")
        elif words[0] == "make":
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
            assert words[1] in targets, f"the Makefile has no target {words[1]!r}"
        else:
            assert words[0] in _OF_MACHINES, f"nothing here runs {command!r}"


def commands(text: str) -> list[tuple[str, list[str]]]:
    """The commands of a console block, each with the lines shown behind it."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and line.strip() not in ("", "..."):
            found[-1][1].append(line.strip())
    return found


def _stripped(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def _check_shown(command: str, shown: list[str], printed: str) -> None:
    said = [line.strip() for line in printed.splitlines()]
    missing = [line for line in shown if line not in said]
    assert not missing, f"{command} does not print {missing[0]!r} but\n{printed}"
