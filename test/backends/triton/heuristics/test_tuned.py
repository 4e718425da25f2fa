"""The numbers of the rules: rows of a table with provenance, by target, and no rule that asks which GPU this is."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

import pytest

from helion._testing import EXAMPLES_DIR, import_path
from helion.backends.triton.heuristics import several_loops, tuned
from helion.backends.triton.heuristics.tuned import EVERYWHERE, Tuned
from helion.hardware import known_targets, target

FOLDER = Path(str(several_loops.__file__)).parent
FILES = sorted(FOLDER.rglob("*.py"))
RULES = {record.rule: record for record in Tuned.__subclasses__()}
SCRIPTS = ("benchmarks/sweep.py", "timed", "published", "offline", "reasoned")
constants = import_path(EXAMPLES_DIR.parent / "scripts" / "constants.py")


def test_every_row_is_a_number_of_a_rule_with_its_origin() -> None:
    known = {name for row in map(target, known_targets()) for name in (row.name,)} | {EVERYWHERE}
    seen = set()
    for row in tuned.rows():
        assert row.key in {field.name for field in fields(RULES[row.rule])}, row
        assert known.issuperset(row.targets) and row.script in SCRIPTS, row
        assert bool(row.device) == (row.script != "reasoned"), row
        assert not row.date or re.fullmatch(r"20\d\d-\d\d-\d\d", row.date), row
        assert row.date or row.script not in ("benchmarks/sweep.py", "timed"), row
        places = {(row.rule, row.key, name) for name in row.targets}
        assert not places & seen, row
        seen |= places


@pytest.mark.parametrize("record", RULES.values(), ids=lambda record: record.rule)
def test_a_rule_has_all_of_its_numbers_or_none_for_a_target(record: type[Tuned]) -> None:
    applies = [name for name in known_targets() if tuned.has_rows(record, target(name))]
    assert applies, "no target has the numbers of this rule"
    for name in known_targets():
        general = [row for row in tuned.rows() if row.rule == record.rule and EVERYWHERE in row.targets]
        if name in applies:
            found = tuned.tuned(record, target(name))
            kinds = {field.name: str(field.type).split("[")[0] for field in fields(record)}
            assert {key: type(value).__name__ for key, value in vars(found).items()} == kinds
        else:
            assert not general, "some numbers apply everywhere and others do not"


@dataclass(frozen=True)
class Planted(Tuned):
    rule: ClassVar[str] = "planted"

    size: int


def row(value: int, *targets: str) -> tuned.Row:
    return tuned.Row(
        rule="planted",
        key="size",
        value=value,
        targets=targets,
        device="",
        date="",
        script="reasoned",
        cells="",
        gain="",
    )


def test_a_row_for_an_architecture_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned._for.cache_clear()
    monkeypatch.setattr(tuned, "rows", lambda: (row(1, "sm_90", "sm_100"), row(2, EVERYWHERE)))
    assert tuned.tuned(Planted, target("h200")) == tuned.tuned(Planted, target("sm_90")) == Planted(1)
    assert tuned.tuned(Planted, target("sm_100")) == Planted(1) and tuned.tuned(Planted, target("sm_80")) == Planted(2)
    with pytest.raises(ValueError, match="depend on the target"):
        tuned.tuned(Planted)
    tuned._for.cache_clear()


def test_numbers_without_a_field_and_fields_without_a_number_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "rows", tuple)
    with pytest.raises(TypeError, match="size"):
        tuned.tuned(Planted, target("gfx950"))
    tuned._for.cache_clear()
    other = tuned.Row(**{**vars(row(1, EVERYWHERE)), "key": "length"})
    monkeypatch.setattr(tuned, "rows", lambda: (row(1, EVERYWHERE), other))
    with pytest.raises(TypeError, match="length"):
        tuned.tuned(Planted)
    tuned._for.cache_clear()


def asks_for_a_device(text: str) -> set[str]:
    """Code, not prose, that reads the name of a device or of an architecture."""
    names = {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
    literals = {
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return (names & {"device", "capability", "arch"}) | {
        one for one in literals if re.fullmatch(r"sm_\d+|gfx\w+|[hba]\d00", one)
    }


def test_no_rule_asks_which_gpu_this_is() -> None:
    assert {path.name: found for path in FILES if (found := asks_for_a_device(path.read_text()))} == {}
    assert asks_for_a_device("x = target.device") and asks_for_a_device("fast = target.name == 'sm_90'")


def test_numbers_are_rows_and_not_constants() -> None:
    assert sum(constants.constants(path.read_text()) for path in FILES) <= constants.MOST
    assert constants.constants("_A, _B = 1, 2\nC: int = 3\nd = 4\n") == 3
