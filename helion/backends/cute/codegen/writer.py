"""A writer of indented Python lines, and two texts as one."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

_TOKEN = re.compile(r"[0-9.]*[.][0-9.]*|[0-9]+|[A-Za-z_0-9]+|.")
"""A number with a point, an integer, a name, or any other character."""


def unrolled(*bounds: int) -> str:
    """Return the range of a loop whose body is traced once, and which the DSL unrolls after most of its passes.

    The binary is that of a loop unrolled while it is traced, but the trace is shorter (measurement ``traced_once``).
    """
    return f"cutlass.range({', '.join(map(str, bounds))}, unroll_full=True)"


class Writer:
    """A list of lines; ``block`` indents the lines written inside."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str = "") -> None:
        self._lines.append("    " * self._depth + text if text else "")

    def lines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.line(text)

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def written(self) -> tuple[str, ...]:
        return tuple(self._lines)


def in_one(
    first: Sequence[str], second: Sequence[str], by: str, names: Mapping[tuple[str, str], str]
) -> list[str] | None:
    """Return lines that run as ``first`` where ``by`` is 0, and as ``second`` where it is 1; None if there are none.

    Integers that differ become multiples of ``by``, and names one that ``names`` has for both. Lines that only ``second``
    has become a branch.
    """
    found: list[str] = []
    own: list[str] = []
    left = list(first)
    for line in second:
        same = _line_in_one(left[0], line, by, names) if left else None
        if same is None:
            named = {second: name for (_, second), name in names.items()}
            own.append("".join(named.get(token, token) for token in _TOKEN.findall(line)))
            continue
        found += [*_branch(own, by), same]
        own, left = [], left[1:]
    return None if left else [*found, *_branch(own, by)]


def _branch(lines: Sequence[str], by: str) -> Iterator[str]:
    """Yield lines of one depth in a branch of their own."""
    if lines:
        depth = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
        yield f"{depth}if {by} == 1:"
        yield from (f"    {line}" for line in lines)


def _line_in_one(first: str, second: str, by: str, names: Mapping[tuple[str, str], str]) -> str | None:
    pairs = [_TOKEN.findall(line) for line in (first, second)]
    if len(pairs[0]) != len(pairs[1]):
        return None
    found = []
    for one, other in zip(*pairs, strict=True):
        if one == other:
            found.append(one)
        elif (one, other) in names:
            found.append(names[one, other])
        elif one.isdecimal() and other.isdecimal():
            found.append(f"({one} + {by} * {int(other) - int(one)})")
        else:
            return None
    return "".join(found)
