"""The rows in a SQLite file that many processes use at once. SQLite's errors are raised; ``store`` catches them."""

from __future__ import annotations

import contextlib
import json
import pathlib
import sqlite3
import time
from collections.abc import Iterator, Sequence

from ...config import Config
from ..outcome import Outcome, Status
from .rows import Entry, Key, Row

#: Timeout in seconds to wait for other processes to finish writing.
_PATIENCE = 30.0
_SCHEMA = """
create table if not exists tuned (
    digest text primary key, kernel text not null, source text not null, specialization text not null,
    target text not null, versions text not null, space text not null, dtypes text not null, shapes text not null,
    tag text not null, config text not null, microseconds real not null, baseline_microseconds real,
    effort text not null, tried integer not null, moment real not null
);
create index if not exists tuned_kernel on tuned (kernel, source, target);
create table if not exists tried (
    digest text not null, config text not null, status text not null, microseconds real, compile_seconds real,
    detail text not null, primary key (digest, config)
) without rowid;
"""
_COLUMNS = (
    "kernel, source, specialization, target, versions, space, dtypes, shapes, tag, config, microseconds, "
    "baseline_microseconds, effort, tried, moment"
)


class Database:
    """One connection. A file that is not writable is opened to read; writes then raise the reason."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._unwritable: sqlite3.OperationalError | None = None
        try:
            self._connection = _writable(path)
        except sqlite3.OperationalError as error:
            readable = _readable(path)
            if readable is None:
                raise
            self._connection, self._unwritable = readable, error

    def close(self) -> None:
        self._connection.close()

    def get(self, key: Key) -> Row | None:
        """Return the row of exactly this key."""
        found = self._rows("where digest = ?", (key.digest,))
        return found[0] if found else None

    def related(self, key: Key) -> list[Row]:
        """Return rows of the same kernel, source and target: other shapes, versions and spaces."""
        return self._rows("where kernel = ? and source = ? and target = ?", (key.kernel, key.source, key.target))

    def all(self, kernel: str | None = None) -> list[Row]:
        """Return all rows, or those of one kernel."""
        order = "order by kernel, target, specialization, moment"
        return self._rows(order, ()) if kernel is None else self._rows(f"where kernel = ? {order}", (kernel,))

    def sweep(self, key: Key) -> tuple[Outcome, ...]:
        """Return all outcomes for a key."""
        rows = self._connection.execute(
            "select config, status, microseconds, compile_seconds, detail from tried where digest = ?", (key.digest,)
        )
        return tuple(
            Outcome(
                config=Config.from_dict(json.loads(config)),
                status=Status(status),
                microseconds=microseconds,
                compile_seconds=compile_seconds,
                detail=detail,
            )
            for config, status, microseconds, compile_seconds, detail in rows
        )

    def put(self, entry: Entry) -> None:
        """Write a row, replacing one with its key; its outcomes are added to the earlier ones."""
        key, row = entry.row.key, entry.row
        with self._writing() as transaction:
            transaction.execute(
                f"insert or replace into tuned (digest, {_COLUMNS}) values ({', '.join('?' * 16)})",
                (
                    *(key.digest, key.kernel, key.source, key.specialization, key.target, key.versions, key.space),
                    *(key.dtypes, json.dumps(key.shapes), key.tag, json.dumps(row.config.to_dict()), row.microseconds),
                    *(row.baseline_microseconds, row.effort, row.tried, row.when or time.time()),
                ),
            )
            self._add(transaction, key, entry.sweep)

    def add(self, key: Key, sweep: Sequence[Outcome]) -> None:
        """Save outcomes before there is a row, so that a later run resumes from them."""
        with self._writing() as transaction:
            self._add(transaction, key, sweep)

    def delete(self, kernel: str | None = None) -> int:
        """Delete all rows, or those of one kernel; return the number."""
        with self._writing() as transaction:
            if kernel is None:
                transaction.execute("delete from tried")
                return transaction.execute("delete from tuned").rowcount
            transaction.execute(
                "delete from tried where digest in (select digest from tuned where kernel = ?)", (kernel,)
            )
            return transaction.execute("delete from tuned where kernel = ?", (kernel,)).rowcount

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction."""
        if self._unwritable is not None:
            raise self._unwritable
        with self._connection as transaction:
            yield transaction

    def _add(self, transaction: sqlite3.Connection, key: Key, sweep: Sequence[Outcome]) -> None:
        transaction.executemany(
            "insert or replace into tried values (?, ?, ?, ?, ?, ?)",
            (
                (
                    key.digest,
                    json.dumps(o.config.to_dict()),
                    o.status.value,
                    o.microseconds,
                    o.compile_seconds,
                    o.detail,
                )
                for o in sweep
            ),
        )

    def _rows(self, where: str, values: Sequence[str]) -> list[Row]:
        rows = self._connection.execute(f"select {_COLUMNS} from tuned {where}", values)
        found = []
        for row in rows:
            named = dict(zip(_COLUMNS.split(", "), row, strict=True))
            named["shapes"], named["config"] = json.loads(named["shapes"]), json.loads(named["config"])
            found.append(Row.from_dict({**named, "when": named["moment"]}))
        return found


def _writable(path: pathlib.Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_PATIENCE)
    try:
        _prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.OperationalError):  # file systems without shared memory keep their journal
        connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = normal")
    if not _has_tables(connection):
        connection.executescript(f"begin immediate; {_SCHEMA} commit;")


def _has_tables(connection: sqlite3.Connection) -> bool:
    names = {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}
    return {"tuned", "tried"} <= names


def _readable(path: pathlib.Path) -> sqlite3.Connection | None:
    """Open a file that is only readable; None if nothing was ever written to it, for example because of a full disk."""
    if not path.is_file():
        return None
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    if _has_tables(connection):
        return connection
    connection.close()
    return None


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[Database]:
    """Open a database for one operation. Raises sqlite3.Error and OSError."""
    database = Database(path)
    try:
        yield database
    finally:
        database.close()
