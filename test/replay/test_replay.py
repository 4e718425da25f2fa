"""The code of every example is what it was when it was last looked at; ``make replay`` shows and takes changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from helion._testing import import_path

replay = import_path(Path(__file__).resolve().parents[2] / "scripts" / "replay.py")


@pytest.mark.parametrize("example", replay.example_names())
def test_generated_code_is_as_expected(example: str) -> None:
    difference = replay.difference(example)
    assert not difference, f"{difference}\nIf this is meant: python scripts/replay.py {example} --update"


def test_every_file_belongs_to_an_example() -> None:
    assert not replay.stale()


def test_files_name_no_machine_and_are_small() -> None:
    files = list(replay.EXPECTED.rglob("*.txt"))
    assert sum(file.stat().st_size for file in files) < 1_500_000
    for file in files:
        text = file.read_text()
        assert str(replay.ROOT) not in text and "# src[" not in text and "_imported_" not in text, file.name


def test_a_difference_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "EXPECTED", tmp_path)
    now = replay.generate("add")
    (tmp_path / "add.txt").write_text(now.replace("tl.load", "tl.lod", 1))
    shown = replay.difference("add").splitlines()
    changed = [line[0] for line in shown if line[0] in "-+" and line[:3] not in ("---", "+++")]
    assert changed == ["-", "+"]
    (tmp_path / "add.txt").write_text(now)
    assert replay.difference("add") == ""
    (tmp_path / "gone.txt").write_text("")
    assert [path.name for path in replay.stale()] == ["gone.txt"]
