"""Repeated walks: a walk is undone and repeated after it has found facts that it needs from the start, such as the
numbers that a loop changes.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TypeVar

from ...._support.records import dataclass
from .. import journal
from ..state import TraceSnapshot
from .scope import Scope
from .unfollowed import SavedHost, restore_host, save_host

_T = TypeVar("_T")


@dataclass(frozen=True)
class Saved:
    """A snapshot of everything that a walk changes, and of its position."""

    trace: TraceSnapshot
    walk: journal.Snapshot
    frame: journal.Snapshot
    host: SavedHost
    node: ast.AST | None


def repeated(s: Scope, attempt: Callable[[], _T | None]) -> _T:
    """Repeat an attempt until it has a result. Failed attempts are undone, except for the facts that they found."""
    saved = save(s)
    while (found := attempt()) is None:
        restore(s, saved)
    return found


def save(s: Scope) -> Saved:
    """Return a snapshot of the walk for ``restore``."""
    return Saved(s.t.snapshot(), journal.snapshot(s.walk), journal.snapshot(s.frame), save_host(s), s.node)


def restore(s: Scope, saved: Saved) -> None:
    """Restore the walk to the state when ``saved`` was taken; the snapshot can be used again."""
    s.t.restore(saved.trace)
    journal.restore(s.walk, saved.walk)
    journal.restore(s.frame, saved.frame)
    restore_host(s, saved.host)
    s.node = saved.node
