"""Walks that are repeated once they have shown what had to be known before them, such as which numbers a loop changes."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from .. import journal
from ..state import TraceSnapshot
from .scope import Scope
from .unfollowed import SavedHost, restore_host, save_host

_T = TypeVar("_T")


@dataclass(frozen=True)
class Saved:
    """All that a walk changes, as it was, and where the walk stood."""

    trace: TraceSnapshot
    walk: journal.Snapshot
    frame: journal.Snapshot
    host: SavedHost
    node: ast.AST | None


def repeated(s: Scope, attempt: Callable[[], _T | None]) -> _T:
    """What the first attempt gives that gives anything. Those before it leave no trace, but in what they have learned."""
    saved = save(s)
    while (found := attempt()) is None:
        restore(s, saved)
    return found


def save(s: Scope) -> Saved:
    """What ``restore`` needs to forget everything that is walked from here on."""
    return Saved(s.t.snapshot(), journal.snapshot(s.walk), journal.snapshot(s.frame), save_host(s), s.node)


def restore(s: Scope, saved: Saved) -> None:
    """The walk is as it was when ``saved`` was taken, which may be used again."""
    s.t.restore(saved.trace)
    journal.restore(s.walk, saved.walk)
    journal.restore(s.frame, saved.frame)
    restore_host(s, saved.host)
    s.node = saved.node
