"""Numbers of the rules: rows of ``tuned.tsv``, each with the targets where it applies and the measurement it is from.

A rule declares its numbers as a frozen dataclass derived from ``Tuned``. Its fields are the keys of the rows, and their
comments give meaning and unit. A row applies to the architectures of its ``targets``, or to all (``*``). A row for an
architecture takes precedence over one for all.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from ....hardware import Target

TABLE = Path(__file__).with_name("tuned.tsv")
COLUMNS = ("rule", "key", "value", "targets", "device", "date", "script", "cells", "gain")
#: Targets of a row that applies everywhere.
EVERYWHERE = "*"
#: Text of a column that equals the one of the line above.
_DITTO = '"'


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number of a rule.

    ``device``, ``date`` and ``script`` name the measurement, ``cells`` its kernels and shapes, and ``gain`` its result.
    ``script`` is ``published`` for numbers of others, ``offline`` for those of the assembler, and ``reasoned`` for
    starting points that were not measured.
    """

    rule: str
    key: str
    value: Any
    targets: tuple[str, ...]
    device: str
    date: str
    script: str
    cells: str
    gain: str


@dataclass(frozen=True)
class Tuned:
    """Base of a rule's numbers. ``rule`` is the name of the rule in the table."""

    rule: ClassVar[str]


_T = TypeVar("_T", bound=Tuned)


@functools.cache
def rows() -> tuple[Row, ...]:
    """Return the rows of the table in their order."""
    return tuple(_parsed(TABLE.read_text()))


def _parsed(text: str) -> Iterator[Row]:
    above = [""] * len(COLUMNS)
    for line in text.splitlines()[1:]:
        above = [was if now == _DITTO else now for now, was in zip(line.split("\t"), above, strict=True)]
        texts: dict[str, Any] = dict(zip(COLUMNS, above, strict=True))
        parsed = {"value": ast.literal_eval(texts["value"]), "targets": tuple(texts["targets"].split(","))}
        yield Row(**texts | parsed)


def tuned(record: type[_T], target: Target | None = None) -> _T:
    """Return the numbers of ``record`` for ``target``; without one, those of a rule whose numbers have one row each.

    Raises:
        TypeError: The table lacks a row for a field, or has a row for none.
        ValueError: A number has several rows, so that it depends on the target.
    """
    key: Any = record  # mypy: a class is hashable
    return _only(key) if target is None else _for(key, target.name)


def has_rows(record: type[Tuned], target: Target) -> bool:
    """Return whether the table has all numbers of ``record`` for ``target``."""
    return _keys_for(record.rule, target.name) >= {field.name for field in fields(record)}


@functools.cache
def _only(record: type[_T]) -> _T:
    own = [row for row in rows() if row.rule == record.rule]
    if len({row.key for row in own}) < len(own):
        raise ValueError(f"numbers of {record.rule} depend on the target")
    return record(**{row.key: row.value for row in own})


@functools.cache
def _for(record: type[_T], architecture: str) -> _T:
    own = [row for row in rows() if row.rule == record.rule]
    general = {row.key: row.value for row in own if EVERYWHERE in row.targets}
    return record(**general | {row.key: row.value for row in own if architecture in row.targets})


@functools.cache
def _keys_for(rule: str, architecture: str) -> frozenset[str]:
    places = {EVERYWHERE, architecture}
    return frozenset(row.key for row in rows() if row.rule == rule and not places.isdisjoint(row.targets))
