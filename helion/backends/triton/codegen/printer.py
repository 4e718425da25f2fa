"""Lines of Python with indentation, names for values, and the variables of loops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...._compiler.ir.grammar import Value
from ...._compiler.source import Location
from ...._names import NameSpace
from ...._support.records import dataclass


@dataclass
class Active:
    """The variables of the innermost loop over a block. ``mask`` is empty where no tile extends past the end."""

    offset: str
    index: str = ""
    mask: str = ""
    begin: str = "0"
    end: str = ""
    #: Of a jagged loop: the mask with the rows' dimensions before the loop's, and the blocks of those.
    rows_mask: str = ""
    rows: tuple[int, ...] = ()


class Lines:
    """Lines of text with the line of the user's source that each comes from, in comments if ``comments``."""

    def __init__(self, comments: bool) -> None:
        self.lines: list[str] = []
        self.depth = 0
        #: Positions in ``lines`` with the user's line from there on.
        self.origins: list[tuple[int, Location]] = []
        self._comments = comments
        self._last: tuple[str, int] | None = None

    def add(self, text: str) -> None:
        self.lines.append(f"{'    ' * self.depth}{text}" if text else "")

    def origin(self, location: Location | None) -> None:
        """Set the user's line of the following lines, with one comment per run of ops of that line."""
        if location is None or (location.file, location.line) == self._last:
            return
        self._last = (location.file, location.line)
        self.origins.append((len(self.lines), location))
        if self._comments:
            self.add(f"# src[{location.short()}]: {location.text}")

    @contextmanager
    def indent(self) -> Iterator[None]:
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1


class Names:
    """Python names of IR values: the user's where known, else derived from the op."""

    Mark = tuple[dict[int, str], dict[int, str], set[str]]

    def __init__(self, space: NameSpace) -> None:
        self.space = space
        self._of: dict[int, str] = {}
        self._promised: dict[int, str] = {}
        self._shared: set[str] = set()

    def fresh(self, base: str) -> str:
        return self.space.fresh(base)

    def of(self, value: Value) -> str:
        return self._of[value.number]

    def define(self, value: Value, base: str) -> str:
        """Return a variable for ``value``: the one promised to it, else a new one."""
        name = self._promised.pop(value.number, None) or self.space.fresh(value.name or base)
        self._of[value.number] = name
        return name

    def mark(self) -> Names.Mark:
        """Return the current names, which ``rewind`` restores."""
        return dict(self._of), dict(self._promised), set(self._shared)

    def rewind(self, mark: Names.Mark) -> None:
        """Restore the names of values; names that were given out are not reused."""
        self._of, self._promised, self._shared = mark

    def alias(self, value: Value, name: str) -> None:
        """Make ``value`` an alias of the variable ``name``, which may belong to another value too."""
        self._of[value.number] = name
        self._shared.add(name)

    def promise(self, value: Value, name: str) -> None:
        """Reserve the existing variable ``name`` for the assignment of ``value``."""
        self._promised[value.number] = name

    def is_own(self, value: Value) -> bool:
        """Return whether no other value uses the variable of ``value``."""
        return self._of[value.number] not in self._shared

    def reuse(self, value: Value, name: str) -> None:
        """Give the variable ``name`` to ``value``; its old value is dead."""
        self._of[value.number] = name
