"""Objects outside of the arguments that a trace has read and changed, and its warnings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from .... import exc
from ...source import Location
from ..guards import Guard, guard
from ..journal import Part


class World(Part):
    """Globals, containers and attributes by identity. ``ignored``: warnings that the user does not want."""

    def __init__(self, ignored: frozenset[str]) -> None:
        self.ignored = ignored
        #: Guards on objects that are read through globals, by location.
        self.guards: dict[tuple[Any, ...], Guard] = {}
        self.warnings: list[exc.Base] = []
        #: The scope that the walk is in: ``location`` is that of its current node.
        self.scope: Any = None
        #: Lists made in device code, with the depth of regions they were made at.
        self.lists: dict[int, tuple[Any, int]] = {}
        #: Containers whose content is known at run time only, and their opaque replacements.
        self.poisoned: dict[int, tuple[Any, Any]] = {}
        #: Attributes and global names that the kernel's own code changes: the object and the new value.
        self.attributes: dict[tuple[int, str], tuple[Any, Any]] = {}
        #: Containers from outside of the kernel, with the copies that the trace uses.
        self.copies: dict[int, tuple[Any, Any]] = {}
        #: Host expressions for functions and other objects.
        self.function_sources: dict[int, str] = {}
        #: Number of calls and statements with effects so far, which run when the host code runs.
        self.effects = 0
        #: True if another run of the host code would be seen outside: it prints, say, or changes an object.
        self.acts = False
        #: The error of a call with CPU tensors alone: device code uses a tensor that host code makes on a GPU.
        self.misplaced: exc.Base | None = None

    def assume(self, kind: Any, owner: Any, key: Any, value: Any) -> None:
        """Record that something outside of the arguments was read: the compiled code depends on it."""
        made = guard(kind, owner, key, value)
        if made is None or (kind, id(owner), key) in self.guards:
            return
        self.guards[(kind, id(owner), key)] = made
        # a container is the same object when its contents have changed
        if isinstance(value, dict):
            for inner, content in value.items():
                self.assume("item", value, inner, content)
        elif isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            for inner, content in enumerate(value):
                self.assume("item", value, inner, content)
        if isinstance(value, list):
            self.assume("length", value, None, len(value))
        elif isinstance(value, dict):
            self.assume("keys", value, None, tuple(value))
        elif isinstance(value, set):
            self.assume("content", value, None, frozenset(value))

    def default_dtype(self) -> torch.dtype:
        """Return the default dtype, which the compiled code depends on from here on."""
        self.assume("state", torch.get_default_dtype, None, torch.get_default_dtype())
        return torch.get_default_dtype()

    def warn(self, warning: exc.Base) -> None:
        """Add a warning about the line that the walk is at, unless the user ignores its kind.

        Computations of host code in one line have one warning.
        """
        if type(warning).__name__ in self.ignored:
            return
        warning.at(None if self.scope is None else self.scope.location())
        joined = _of_one_line(self.warnings[-1], warning) if self.warnings else None
        if joined is None:
            self.warnings.append(warning)
        else:
            self.warnings[-1:] = [joined]


def _of_one_line(before: exc.Base, warning: exc.Base) -> exc.Base | None:
    """Return one warning about two computations of host code in one line; None for others."""
    first, second = before.location, warning.location
    kind = type(warning)
    if not isinstance(warning, exc.TensorOperationInWrapper) or type(before) is not kind:
        return None
    if not isinstance(first, Location) or not isinstance(second, Location):
        return None
    if (first.file, first.line) != (second.file, second.line):
        return None
    names = dict.fromkeys((*str(before.fields["name"]).split(", "), warning.fields["name"]))
    columns = min(first.column, second.column), max(first.end_column, second.end_column)
    both = replace(first, column=columns[0], end_column=columns[1])
    return kind(name=", ".join(names)).at(both)
