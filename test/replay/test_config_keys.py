"""Every config key has an entry that shows what it does; ``make replay`` shows and takes changes of the texts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from helion._testing import import_path
from helion.autotuner.space.fields import PerAccess, PerSlot, Scalar
from helion.backends.triton.space import VERBATIM_PREFIX
from helion.config import KEYS, SINGULAR
from helion.fields import EnumFragment

HERE = Path(__file__).resolve().parent
matrix = import_path(HERE / "config_keys.py")
replay = import_path(HERE.parents[1] / "scripts" / "replay.py")
#: What keys with names are when nobody sets them.
DEFAULTS = {"", "flat", "pointer"}
SPACES = [matrix.bound(sample, target).config_spec for sample in matrix.SAMPLES for target in matrix.TARGETS]


@pytest.mark.parametrize("name", replay.key_names())
def test_generated_code_is_as_expected(name: str) -> None:
    difference = replay.difference(name)
    assert not difference, f"{difference}\nIf this is meant: python scripts/replay.py {name} --update"


def missing(entries: Any) -> set[str]:
    """Keys that some sample has, or that are refused by name, and that no entry sets."""
    known = set(KEYS).union(*(space.keys for space in SPACES), *(space.absent for space in SPACES))
    return known - {entry.key for entry in entries}


def unshown(entry: Any) -> list[str]:
    """What keeps the entry from showing its key."""
    texts = {target: matrix.with_key(entry, target) for target in matrix.TARGETS}
    plain = {target: matrix.without(entry, target) for target in matrix.TARGETS}
    same = tuple(target for target in matrix.TARGETS if texts[target] == plain[target])
    wrong = [f"{target}: without the key it is {text}" for target, text in plain.items() if "\n" not in text.strip()]
    if same != entry.same:
        wrong.append(f"the code is that without the key on {same}, and {entry.same} was announced")
    return wrong


def test_every_key_has_an_entry() -> None:
    assert missing(matrix.ENTRIES) == set()
    assert any(entry.key.startswith(VERBATIM_PREFIX) for entry in matrix.ENTRIES)
    assert missing([entry for entry in matrix.ENTRIES if entry.key != "maxnreg"]) == {"maxnreg"}


def test_every_entry_shows_its_key() -> None:
    assert {entry.label: wrong for entry in matrix.ENTRIES if (wrong := unshown(entry))} == {}


def test_an_entry_that_shows_nothing_is_noticed() -> None:
    (first, *_) = (entry for entry in matrix.ENTRIES if entry.key == "num_warps")
    assert unshown(dataclasses.replace(first, value=1)) and unshown(dataclasses.replace(first, same=("sm_90",)))
    assert unshown(dataclasses.replace(first, beside={"pid_type": "nothing"}))


def test_every_name_that_a_key_can_have_has_an_entry() -> None:
    """Choices between names; numbers and flags are shown by example."""
    named = {(entry.key, name) for entry in matrix.ENTRIES for name in _names(entry.value)}
    for space in SPACES:
        for field in space.fields:
            for name in _choices(field) - DEFAULTS:
                assert field.key == "atomic_indexing" or (field.key, name) in named, f"{field.key}={name!r}"


def _names(value: Any) -> set[str]:
    each = value if isinstance(value, (list, tuple)) else [value]
    return {name for name in each if isinstance(name, str)}


def _choices(field: Any) -> set[str]:
    fragments = [field.fragment] if isinstance(field, Scalar) else []
    fragments += [field.choice] if isinstance(field, PerAccess) else []
    fragments += [slot.fragment for slot in field.slots] if isinstance(field, PerSlot) else []
    return {name for each in fragments if isinstance(each, EnumFragment) for name in _names(each.choices)}


def test_entries_name_keys_in_full_and_once() -> None:
    labels = [entry.label for entry in matrix.ENTRIES]
    assert len(labels) == len(set(labels)) and not set(SINGULAR) & set(matrix.KEYS)
    assert set(matrix.SAMPLES) == {entry.sample for entry in matrix.ENTRIES}
