"""Tuned configs on disk: kept by many processes at once, whatever becomes of the file."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import multiprocessing
import os
import pathlib
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from conftest import PROVE

from helion._support import files as _files
from helion._support import later
from helion.autotuner.cache.rows import Entry, Key, Row, exported, imported, merged
from helion.autotuner.cache.store import Store, default_store
from helion.autotuner.outcome import Outcome, Status
from helion.config import Config

ROOT = pathlib.Path(__file__).parents[2]


def key(**changes: Any) -> Key:
    fields: dict[str, Any] = {
        "kernel": "softmax",
        "source": "abc",
        "specialization": "float32 [8, 100]",
        "target": "h200",
        "versions": "helion 1",
        "space": "s",
        "dtypes": "float32",
        "shapes": ((8, 100),),
    }
    return Key(**{**fields, **changes})


def entry(at: int = 0, microseconds: float = 10.0, **changes: Any) -> Entry:
    config = Config(block_sizes=[at + 1], num_warps=4)
    sweep = (
        Outcome(config=config, status=Status.OK, microseconds=microseconds, compile_seconds=0.5),
        Outcome(config=Config(block_sizes=[at + 2]), status=Status.INACCURATE, detail="off by 3"),
    )
    row = Row(
        key=key(**changes),
        config=config,
        microseconds=microseconds,
        baseline_microseconds=12.5,
        effort="quick",
        tried=2,
        when=5.0,
    )
    return Entry(row=row, sweep=sweep)


def test_what_is_put_is_there_in_other_processes(tmp_path: pathlib.Path) -> None:
    store = Store(tmp_path / "t.sqlite")
    assert store.get(key()) is None and store.all() == [] and not store.path.exists()
    assert store.put(entry(3))
    again = Store(store.path)
    assert again.get(key()) == entry(3).row
    assert set(again.sweep(key())) == set(entry(3).sweep)
    assert again.get(key(versions="helion 2")) is None


def test_a_sweep_grows(tmp_path: pathlib.Path) -> None:
    store = Store(tmp_path / "t.sqlite")
    store.add(key(), entry(0).sweep)
    assert store.get(key()) is None and len(store.sweep(key())) == 2
    store.put(entry(5))
    assert len(store.sweep(key())) == 4


def test_what_is_written_later_is_there_for_reads(tmp_path: pathlib.Path) -> None:
    store, go = Store(tmp_path / "t.sqlite"), threading.Event()
    later.do_later(go.wait)
    store.put_later(entry(3))
    store.add_later(key(), [Outcome(config=entry(3).row.config, status=Status.UNTIMED, detail="again")])
    assert not store.path.exists() and store.has_any
    assert store.get(key(kernel="another")) is None  # and waits for none
    threading.Timer(0.01, go.set).start()
    assert store.has_any and store.get(key()) == entry(3).row
    assert [each.status for each in store.sweep(key())].count(Status.UNTIMED) == 1  # in the order given


def test_the_process_ends_after_what_is_written_later(tmp_path: pathlib.Path) -> None:
    done = tmp_path / "done"
    text = f"import pathlib, time\nfrom helion._support import later\nlater.do_later(lambda: (time.sleep(0.05), pathlib.Path({str(done)!r}).touch()))"
    spec = "import sys, types; sys.modules['helion'] = types.ModuleType('helion'); sys.modules['helion'].__path__ = "
    subprocess.run([sys.executable, "-c", f"{spec}[{str(ROOT / 'helion')!r}]\n{text}"], check=True)
    assert done.exists()


def test_the_nearest_shapes_come_first(tmp_path: pathlib.Path) -> None:
    store = Store(tmp_path / "t.sqlite")
    for rows, columns in ((8, 100), (8, 4000), (64, 100), (16, 100)):
        store.put(entry(shapes=((rows, columns),), specialization=f"{rows},{columns}"))
    store.put(entry(dtypes="bfloat16", specialization="b"))
    store.put(entry(target="b200", specialization="c"))
    store.put(entry(shapes=((8, 100, 1),), specialization="d"))
    asked = key(shapes=((8, 128),), specialization="8,128")
    found = [row.key.shapes for row in store.related(asked)]
    assert found == [((8, 100),), ((16, 100),), ((64, 100),), ((8, 4000),), ((8, 100, 1),)]


def test_stale_versions_are_related_but_not_the_answer(tmp_path: pathlib.Path) -> None:
    store = Store(tmp_path / "t.sqlite")
    store.put(entry(versions="helion 0"))
    assert store.get(key()) is None
    assert [row.key.versions for row in store.related(key())] == ["helion 0"]


@pytest.mark.parametrize("content", [b"", b"not a database at all, but long enough to be looked at" * 50])
def test_a_file_that_is_no_database_is_replaced(
    tmp_path: pathlib.Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path / f"{len(content)}.sqlite")
    store.path.write_bytes(content)
    assert store.get(key()) is None
    assert store.put(entry())
    assert store.get(key()) == entry().row
    said = capsys.readouterr().err
    assert ("is no database any more" in said) == bool(content)
    if content:
        assert [path.read_bytes() for path in tmp_path.glob("*.broken-*")] == [content]


@pytest.mark.parametrize("kept", [100, 5000, 20000])
def test_a_truncated_file_breaks_nothing(tmp_path: pathlib.Path, kept: int) -> None:
    store = Store(tmp_path / "t.sqlite")
    for at in range(60):
        store.put(entry(at, specialization=f"{at}"))
    for path in tmp_path.glob("*-wal"):
        path.unlink()
    with store.path.open("r+b") as file:
        file.truncate(kept)
    store.get(key(specialization="59"))
    assert store.put(entry(7)) or store.put(entry(7))
    assert store.get(key()) == entry(7).row


def test_a_row_of_nonsense_breaks_nothing(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path / "nonsense.sqlite")
    store.put(entry())
    with sqlite3.connect(store.path) as connection:
        connection.execute("update tuned set config = '{'")
    assert store.get(key()) is None
    assert "cannot be read" in capsys.readouterr().err
    with sqlite3.connect(store.path) as connection:
        connection.execute("update tuned set config = '{}', microseconds = -1")
    assert store.get(key()) is None
    assert store.put(entry()) and store.get(key()) == entry().row


def as_nobody(function: Any) -> None:
    """Runs a function where the permissions of files count, which they do not for root; fails where it raises."""
    pid = os.fork()
    if pid == 0:
        try:
            if os.getuid() == 0:
                os.setuid(65534)
            function()
            os._exit(0)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def opened_to_all(path: pathlib.Path) -> pathlib.Path:
    """A folder that every user may enter; pytest's are not."""
    for each in (path, *path.parents[:3]):
        if each.stat().st_uid == os.getuid():
            each.chmod(each.stat().st_mode | 0o055)
    return path


def test_a_folder_that_cannot_be_written_is_read(tmp_path: pathlib.Path) -> None:
    store = Store(opened_to_all(tmp_path) / "t.sqlite")
    store.put(entry(4))
    store.path.chmod(0o444)
    tmp_path.chmod(0o555)

    def use() -> None:
        assert store.get(key()) == entry(4).row
        assert not store.put(entry(5))
        assert store.get(key()) == entry(4).row
        elsewhere = Store(tmp_path / "missing" / "t.sqlite")
        assert elsewhere.get(key()) is None and not elsewhere.put(entry())

    try:
        as_nobody(use)
    finally:
        tmp_path.chmod(0o755)


def test_a_cache_folder_that_can_only_be_read_counts(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found is kept elsewhere, and goes before it."""
    folder, elsewhere = tmp_path / "given", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    monkeypatch.setenv("HELION_CACHE_DIR", str(folder))
    store = default_store()
    assert store is not None and not store.has_any
    for each in (entry(4), entry(5, specialization="other")):
        assert store.put(each)
    allowed = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: allowed(path, mode) and not (path == folder and mode & os.W_OK)
    )
    monkeypatch.setattr(_files, "private_folder", lambda: elsewhere)
    store = default_store()
    assert store is not None and store.has_any and store.path.parent == elsewhere
    assert store.get(key()) == entry(4).row and len(store.all()) == 2 and set(store.sweep(key())) == set(entry(4).sweep)
    assert store.put(entry(6)) and store.get(key()) == entry(6).row
    assert {repr(row.config) for row in store.all()} == {repr(entry(at).row.config) for at in (5, 6)}
    assert store.delete() == 1 and store.get(key()) == entry(4).row
    monkeypatch.setattr(os, "access", allowed)
    assert default_store().get(key()) == entry(4).row  # type: ignore[union-attr]


def in_a_child(use: Callable[[], None]) -> None:
    """Runs it in a process of its own, where writing more than 4 KiB into a file fails as on a full disk."""
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
            use()
            os._exit(0)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_full_disk_breaks_nothing(tmp_path: pathlib.Path) -> None:
    store = Store(tmp_path / "t.sqlite")
    store.put(entry(4))

    def use() -> None:
        results = [store.put(entry(at, specialization=f"{at}")) for at in range(200)]
        assert not all(results)
        assert store.get(key()) == entry(4).row

    in_a_child(use)
    assert store.get(key()) == entry(4).row
    assert store.put(entry(6))


def test_a_file_that_a_full_disk_left_empty_is_said_to_be_that(tmp_path: pathlib.Path) -> None:
    """It has no tables, which is none of the user's business."""

    def use() -> None:
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            store = Store(tmp_path / "t.sqlite")
            assert not store.put(entry()) and store.path.is_file()
            assert not store.put(entry()) and store.get(key()) is None and store.delete() == 0
        assert f"{store.path} cannot be written: " in said.getvalue() and "no such table" not in said.getvalue()

    in_a_child(use)
    store = Store(tmp_path / "t.sqlite")
    assert store.get(key()) is None and store.put(entry()) and store.get(key()) == entry().row


def write_many(path: str, process: int, count: int) -> None:
    store = Store(pathlib.Path(path))
    for at in range(count):
        assert store.put(entry(at, specialization=f"{process}:{at}"))


def test_many_processes_write_at_once(tmp_path: pathlib.Path) -> None:
    processes, rows = 8, 1250 if PROVE else 25
    context = multiprocessing.get_context("fork")
    path = tmp_path / "t.sqlite"
    running = [context.Process(target=write_many, args=(str(path), at, rows)) for at in range(processes)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    assert [each.exitcode for each in running] == [0] * processes
    found = {row.key.specialization for row in Store(path).all()}
    assert found == {f"{process}:{at}" for process in range(processes) for at in range(rows)}
    with sqlite3.connect(path) as connection:
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]


def numbers_of(store: Store, writer: int) -> list[int]:
    """The rows of one process that wrote many."""
    words = [row.key.specialization.split(":") for row in store.all()]
    return sorted(int(word[1]) for word in words if word[0] == str(writer))


def test_a_process_killed_while_it_writes_loses_nothing_that_was_kept(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "t.sqlite"
    context = multiprocessing.get_context("fork")
    for round_ in range(3):
        process = context.Process(target=write_many, args=(str(path), round_, 100_000))
        process.start()
        while len(numbers_of(Store(path), round_)) < 10:
            time.sleep(0.02)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    store = Store(path)
    for round_ in range(3):
        numbers = numbers_of(store, round_)
        assert numbers == list(range(len(numbers))) and numbers
    assert store.put(entry()) and store.get(key()) == entry().row


def test_machines_share_a_folder(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = (tmp_path / "shared").as_uri()
    one, two = (Store(tmp_path / f"{name}.sqlite", url) for name in "ab")
    one.put(entry(3, 10.0))
    assert two.get(key()) == entry(3, 10.0).row
    assert Store(two.path).get(key()) == entry(3, 10.0).row  # kept here, too
    two.put(entry(4, 8.0))
    one.put(entry(5, 9.0))
    third = Store(tmp_path / "c.sqlite", url)
    assert third.get(key()) == entry(4, 8.0).row
    unreachable = Store(tmp_path / "d.sqlite", "no-such-protocol://x")
    assert unreachable.put(entry()) and unreachable.get(key()) == entry().row
    assert "cannot be used" in capsys.readouterr().err


def test_exports_of_two_machines_merge(tmp_path: pathlib.Path) -> None:
    mine = [entry(1, 10.0), entry(2, 5.0, specialization="x")]
    theirs = [entry(3, 9.0), entry(4, 7.0, specialization="y")]
    back = imported(exported(mine, sweeps=True))
    assert back == sorted(mine, key=lambda each: each.row.key.digest)
    both = {each.row.key.specialization: each for each in merged([*back, *imported(exported(theirs))])}
    assert {name: each.row.microseconds for name, each in both.items()} == {
        key().specialization: 9.0,
        "x": 5.0,
        "y": 7.0,
    }
    assert exported(list(both.values())) == exported(list(both.values())[::-1])
    assert set(both[key().specialization].sweep) == set(mine[0].sweep)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "cache export"),
        ('{"format": "helion-configs", "version": 9}', "version 9, known is 1"),
        ('{"format": "helion-configs", "version": 1, "rows": [{}]}', "row 0: KeyError: 'microseconds'"),
        ('{"format": "helion-configs", "version": 1, "rows": [3]}', "row 0"),
    ],
)
def test_other_files_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        imported(text)


@pytest.mark.parametrize("value", [-1.0, 0.0, float("nan"), float("inf"), "x"])
def test_times_that_are_none_are_refused(value: object) -> None:
    data = json.loads(exported([entry()]))
    data["rows"][0]["microseconds"] = value
    with pytest.raises(ValueError, match="row 0"):
        imported(json.dumps(data))


def test_every_part_of_a_key_counts() -> None:
    for field in dataclasses.fields(Key):
        other = ((9, 9),) if field.name == "shapes" else "other"
        assert key(**{field.name: other}).digest != key().digest
