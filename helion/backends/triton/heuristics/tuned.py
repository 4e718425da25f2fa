"""Numbers of the rules: rows of ``tuned.tsv``, each with what a GPU needs for it and the measurement it is from.

A rule declares its numbers as a frozen dataclass derived from ``Tuned``. Its fields are the keys of the rows, and their
comments give meaning and unit. A row applies to GPUs with the feature that it ``needs``, or to all (``*``). A row for a
feature takes precedence over one for all. No row names a GPU: the device of a row is the one that was measured.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from ...._support.records import dataclass
from ....hardware import Target

TABLE = Path(__file__).with_name("tuned.tsv")
COLUMNS = ("rule", "key", "value", "needs", "device", "date", "script", "cells", "gain")
#: The need of a row that applies everywhere.
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
    needs: str
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
        yield Row(**texts | {"value": ast.literal_eval(texts["value"])})


def tuned(record: type[_T], target: Target | None = None) -> _T:
    """Return the numbers of ``record`` for ``target``; without one, those of a rule whose numbers have one row each.

    Raises:
        TypeError: The table lacks a row for a field, or has a row for none.
        ValueError: A number has several rows, so that it depends on the target.
    """
    key: Any = record  # mypy: a class is hashable
    return _only(key) if target is None else _for(key, target.features)


@functools.cache
def _only(record: type[_T]) -> _T:
    own = [row for row in rows() if row.rule == record.rule]
    if len({row.key for row in own}) < len(own):
        raise ValueError(f"numbers of {record.rule} depend on the target")
    return record(**{row.key: row.value for row in own})


@functools.cache
def _for(record: type[_T], features: frozenset[str]) -> _T:
    own = [row for row in rows() if row.rule == record.rule]
    general = {row.key: row.value for row in own if row.needs == EVERYWHERE}
    return record(**general | {row.key: row.value for row in own if row.needs in features})
