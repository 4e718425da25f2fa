"""The cache for its users: failures to read or write it are reported, and never break a call."""

from __future__ import annotations

import contextlib
import pathlib
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ... import knobs
from ..._support import files as _files
from ..._support import later, logs
from ..outcome import Outcome
from .database import Database, opened
from .rows import Entry, Key, Row
from .shared import SharedStore

FILE = "tuned.sqlite"
#: Fragments of errors for a file that is no database, or a damaged one.
_BROKEN = ("file is not a database", "malformed", "disk image")

T = TypeVar("T")


class Store:
    """The cache.

    ``path`` is the file of this machine, ``url`` a store shared with others, or None; ``given`` is a read-only file, or
    None.

    The file is created only when there is something to write. ``put_later`` and ``add_later`` return before the disk has
    it, which may take longer than the call. Reads wait for what they ask for.
    """

    def __init__(self, path: pathlib.Path, url: str | None = None, given: pathlib.Path | None = None) -> None:
        self.path = path
        self.url = url
        self._paths = (path,) if given is None else (path, given)

    @property
    def has_any(self) -> bool:
        """Return whether there may be rows."""
        return self.url is not None or not later.is_idle() or any(path.is_file() for path in self._paths)

    def get(self, key: Key) -> Row | None:
        """Return the row of exactly this key, from here or from the shared store."""
        row = next(iter(self._read(lambda database: [found] if (found := database.get(key)) else [], key)), None)
        if row is None and self.url is not None:
            entry = self._share(lambda shared: shared.get(key))
            if entry is not None:
                self._write(lambda database: database.put(entry))
                return entry.row
        return row

    def related(self, key: Key) -> list[Row]:
        """Return rows of the same kernel and target for other shapes, or made by other versions; the nearest first."""
        rows = self._read(lambda database: database.related(key))
        others = [row for row in rows if row.key.digest != key.digest and row.key.dtypes == key.dtypes]
        return sorted(others, key=lambda row: (key.distance(row.key), -row.when))

    def all(self, kernel: str | None = None) -> list[Row]:
        rows = self._read(lambda database: database.all(kernel))
        return list({row.key.digest: row for row in reversed(rows)}.values())[::-1]

    def sweep(self, key: Key) -> tuple[Outcome, ...]:
        """Return all outcomes for a key."""
        outcomes = self._read(lambda database: list(database.sweep(key)), key)
        return tuple({outcome.config: outcome for outcome in reversed(outcomes)}.values())[::-1]

    def put(self, entry: Entry) -> bool:
        """Write an entry; return whether that succeeded here."""
        kept = self._write(lambda database: database.put(entry))
        if self.url is not None:
            self._share(lambda shared: shared.put(entry))
        return kept

    def add(self, key: Key, sweep: Sequence[Outcome]) -> bool:
        """Write outcomes before there is an answer."""
        return self._write(lambda database: database.add(key, sweep))

    def put_later(self, entry: Entry) -> None:
        """Begin to write an entry."""
        later.do_later(lambda: self.put(entry), entry.row.key)

    def add_later(self, key: Key, sweep: Sequence[Outcome]) -> None:
        """Begin to write outcomes."""
        later.do_later(lambda: self.add(key, sweep), key)

    def delete(self, kernel: str | None = None) -> int:
        """Delete rows from the file of this machine; return the number."""
        later.wait()
        deleted: list[int] = []
        if self.path.is_file():
            self._write(lambda database: deleted.append(database.delete(kernel)))
        return sum(deleted)

    def _read(self, ask: Callable[[Database], list[T]], key: Key | None = None) -> list[T]:
        """Return the rows of all files, those of this machine first. Wait for what is written, of ``key`` if it is given."""
        later.wait(key)
        return [each for path in self._paths if path.is_file() for each in self._read_of(path, ask)]

    def _read_of(self, path: pathlib.Path, ask: Callable[[Database], list[T]]) -> list[T]:
        try:
            with opened(path) as database:
                return ask(database)
        except (sqlite3.Error, OSError, ValueError, KeyError, TypeError) as error:
            self._give_up(path, error, "read")
            return []

    def _write(self, change: Callable[[Database], None]) -> bool:
        for _ in range(2):
            try:
                with opened(self.path) as database:
                    change(database)
                return True
            except (sqlite3.Error, OSError, ValueError) as error:
                if not self._give_up(self.path, error, "written"):
                    return False
        return False

    def _give_up(self, path: pathlib.Path, error: Exception, what: str) -> bool:
        """Report an error, and rename a file that is no database; return whether another attempt may succeed."""
        if not (isinstance(error, sqlite3.DatabaseError) and any(text in str(error) for text in _BROKEN)):
            logs.say_once(f"helion: tuned configs in {path} cannot be {what}: {error}")
            return False
        aside = path.with_name(f"{path.name}.broken-{secrets.token_hex(4)}")
        try:
            path.rename(aside)
        except OSError as failure:
            logs.say_once(f"helion: {path} is no database any more, and cannot be moved: {failure}")
            return False
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(OSError):
                path.with_name(path.name + suffix).unlink()
        logs.say_once(f"helion: {path} is no database any more ({error}); it is now {aside.name}")
        return True

    def _share(self, ask: Callable[[SharedStore], Any]) -> Any:
        assert self.url is not None
        try:
            return ask(SharedStore(self.url))
        except Exception as error:  # of any file system there is
            logs.say_once(f"helion: the shared store {self.url} cannot be used: {type(error).__name__}: {error}")
            return None


def default_store() -> Store | None:
    """Return the store in the cache folder; None with ``HELION_SKIP_CACHE``.

    If that folder is read-only, its rows are used, and new ones are written to another folder.
    """
    if knobs.SKIP_CACHE.read():
        return None
    given = _files.read_only_cache_dir()
    return Store(_files.cache_dir() / FILE, knobs.SHARED_CACHE.read(), None if given is None else given / FILE)
