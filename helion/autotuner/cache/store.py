"""The cache as the rest sees it: it answers or it does not, and nothing that happens to it breaks a call."""

from __future__ import annotations

import contextlib
import pathlib
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ... import _files, _logging, knobs
from ..outcome import Outcome
from .database import Database, opened
from .rows import Entry, Key, Row
from .shared import SharedStore

FILE = "tuned.sqlite"
#: What the sqlite file of another program, or half of one, raises.
_BROKEN = ("file is not a database", "malformed", "disk image")

T = TypeVar("T")


class Store:
    """``path`` is the file of this machine, ``url`` a store that it shares with others, or None.

    Without a file nothing is made before there is something to keep.
    """

    def __init__(self, path: pathlib.Path, url: str | None = None) -> None:
        self.path = path
        self.url = url

    def get(self, key: Key) -> Row | None:
        """The row of just this key, here or in the shared store."""
        row: Row | None = self._read(lambda database: database.get(key), None)
        if row is None and self.url is not None:
            entry = self._share(lambda shared: shared.get(key))
            if entry is not None:
                self._write(lambda database: database.put(entry))
                return entry.row
        return row

    def related(self, key: Key) -> list[Row]:
        """Rows of the same kernel and target for other shapes, or made by other versions; the nearest first."""
        rows: list[Row] = self._read(lambda database: database.related(key), [])
        others = [row for row in rows if row.key.digest != key.digest and row.key.dtypes == key.dtypes]
        return sorted(others, key=lambda row: (key.distance(row.key), -row.when))

    def all(self, kernel: str | None = None) -> list[Row]:
        return self._read(lambda database: database.all(kernel), [])

    def sweep(self, key: Key) -> tuple[Outcome, ...]:
        """All that was tried for a key."""
        return self._read(lambda database: database.sweep(key), ())

    def put(self, entry: Entry) -> bool:
        """Keeps an entry; whether that worked here."""
        kept = self._write(lambda database: database.put(entry))
        if self.url is not None:
            self._share(lambda shared: shared.put(entry))
        return kept

    def add(self, key: Key, sweep: Sequence[Outcome]) -> bool:
        """Keeps what was tried, before there is an answer."""
        return self._write(lambda database: database.add(key, sweep))

    def delete(self, kernel: str | None = None) -> int:
        return self._read(lambda database: database.delete(kernel), 0)

    def _read(self, ask: Callable[[Database], T], otherwise: T) -> T:
        if not self.path.is_file():
            return otherwise
        try:
            with opened(self.path) as database:
                return ask(database)
        except (sqlite3.Error, OSError, ValueError, KeyError, TypeError) as error:
            self._give_up(error, "read")
            return otherwise

    def _write(self, change: Callable[[Database], None]) -> bool:
        for _ in range(2):
            try:
                with opened(self.path) as database:
                    change(database)
                return True
            except (sqlite3.Error, OSError, ValueError) as error:
                if not self._give_up(error, "written"):
                    return False
        return False

    def _give_up(self, error: Exception, what: str) -> bool:
        """Says what is wrong, and moves aside a file that is no database; whether another try may work."""
        if not (isinstance(error, sqlite3.DatabaseError) and any(text in str(error) for text in _BROKEN)):
            _logging.say_once(f"helion: tuned configs in {self.path} cannot be {what}: {error}")
            return False
        aside = self.path.with_name(f"{self.path.name}.broken-{secrets.token_hex(4)}")
        try:
            self.path.rename(aside)
        except OSError as failure:
            _logging.say_once(f"helion: {self.path} is no database any more, and cannot be moved: {failure}")
            return False
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(OSError):
                self.path.with_name(self.path.name + suffix).unlink()
        _logging.say_once(f"helion: {self.path} is no database any more ({error}); it is now {aside.name}")
        return True

    def _share(self, ask: Callable[[SharedStore], Any]) -> Any:
        assert self.url is not None
        try:
            return ask(SharedStore(self.url))
        except Exception as error:  # of any file system there is
            _logging.say_once(f"helion: the shared store {self.url} cannot be used: {type(error).__name__}: {error}")
            return None


def default_store() -> Store | None:
    """The one in the cache folder; None with ``HELION_SKIP_CACHE``."""
    if knobs.SKIP_CACHE.read():
        return None
    return Store(_files.cache_dir() / FILE, knobs.SHARED_CACHE.read())
