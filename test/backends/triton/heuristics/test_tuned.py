"""The numbers of the rules: rows of a table with provenance, by feature, and no rule that asks which GPU this is."""

from __future__ import annotations

import ast
import collections
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

import pytest

from helion._testing import EXAMPLES_DIR, import_path
from helion.backends.triton.heuristics import several_loops, tuned
from helion.backends.triton.heuristics.tuned import EVERYWHERE, Tuned
from helion.hardware import FEATURES, known_targets, target

FOLDER = Path(str(several_loops.__file__)).parent
FILES = sorted(FOLDER.rglob("*.py"))
RULES = {record.rule: record for record in Tuned.__subclasses__()}
SCRIPTS = ("benchmarks/sweep.py", "timed", "published", "offline", "reasoned")
constants = import_path(EXAMPLES_DIR.parent / "scripts" / "constants.py")


def test_every_row_is_a_number_of_a_rule_with_its_origin() -> None:
    seen = set()
    for row in tuned.rows():
        assert row.key in {field.name for field in fields(RULES[row.rule])}, row
        assert row.needs in FEATURES | {EVERYWHERE} and row.script in SCRIPTS, row
        assert bool(row.device) == (row.script != "reasoned"), row
        assert not row.date or re.fullmatch(r"20\d\d-\d\d-\d\d", row.date), row
        assert row.date or row.script not in ("benchmarks/sweep.py", "timed"), row
        assert (row.rule, row.key, row.needs) not in seen, row
        seen.add((row.rule, row.key, row.needs))


@pytest.mark.parametrize("record", RULES.values(), ids=lambda record: record.rule)
def test_a_rule_has_all_of_its_numbers_for_every_gpu(record: type[Tuned]) -> None:
    kinds = {field.name: str(field.type).split("[")[0] for field in fields(record)}
    for name in known_targets():
        found = tuned.tuned(record, target(name))
        assert {key: type(value).__name__ for key, value in vars(found).items()} == kinds


def test_a_number_for_one_feature_has_no_other_feature() -> None:
    needs = collections.Counter((row.rule, row.key) for row in tuned.rows() if row.needs != EVERYWHERE)
    assert max(needs.values()) == 1, "of two features of a GPU, neither takes precedence"


@dataclass(frozen=True)
class Planted(Tuned):
    rule: ClassVar[str] = "planted"

    size: int


def row(value: int, needs: str) -> tuned.Row:
    return tuned.Row(
        rule="planted",
        key="size",
        value=value,
        needs=needs,
        device="",
        date="",
        script="reasoned",
        cells="",
        gain="",
    )


def test_a_row_for_a_feature_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned._for.cache_clear()
    monkeypatch.setattr(tuned, "rows", lambda: (row(1, "tensor_descriptor"), row(2, EVERYWHERE)))
    assert tuned.tuned(Planted, target("h200")) == tuned.tuned(Planted, target("sm_100")) == Planted(1)
    assert tuned.tuned(Planted, target("sm_80")) == Planted(2)
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
    tree = ast.parse(text)
    messages = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node not in messages:
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            if node.attr in NAMES and owner in ("target", "gpu"):
                found.add(f"{owner}.{node.attr}")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(DEVICES, node.value.lower()):
            found.add(node.value)
    return found


#: Fields of a target that name it, and names of architectures, devices and kinds of memory.
NAMES = ("name", "device", "capability", "arch")
DEVICES = r"sm_?\d+\w?|gfx\w+|(gb|[hablv])\d+s?|rtx\w+|mi\d+\w?|hopper|blackwell|ampere|ada|cdna\d?|hbm\w*|gddr\w*"
#: Configs that were measured on a GPU of the same instructions are tried there.
MEASURED = {"pretuned.py"}
#: Rooms of rules, facts and predictions.
ROOMS = (
    "backends/triton/heuristics",
    "backends/triton/resources",
    "backends/cute/heuristics",
    "backends/cute/resources",
    "autotuner",
    "_compiler/facts",
)


def test_no_rule_asks_which_gpu_this_is() -> None:
    package = FOLDER.parents[2]
    files = [path for room in ROOMS for path in sorted((package / room).rglob("*.py")) if path.name not in MEASURED]
    assert len(files) > 150
    assert {path.name: found for path in files if (found := asks_for_a_device(path.read_text()))} == {}
    assert asks_for_a_device("x = target.device") and asks_for_a_device("fast = self.target.name == name")
    assert asks_for_a_device("fast = 'H200' in names") and not asks_for_a_device("f'{target.name} has no such unit'")


def test_numbers_are_rows_and_not_constants() -> None:
    assert sum(constants.constants(path.read_text()) for path in FILES) <= constants.MOST
    assert constants.constants("_A, _B = 1, 2\nC: int = 3\nd = 4\n") == 3
