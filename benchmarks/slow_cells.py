"""The section of docs/performance.md about timed cells whose default is slower than torch.compile, with the reasons.

`benchmarks/results/slow-cells.tsv` has a reason for each of them: what the kernel must move, compute or launch.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.goals import number, table
from benchmarks.seeds import Row
from benchmarks.unfitted_report import SLOW

FILE = "slow-cells.tsv"
#: Suites of whole kernels, which no rule was fitted to.
SUITES = ("unseen", "workloads")

Key = tuple[str, str, str, str]


def reasons(folder: Path) -> dict[Key, str]:
    with (folder / FILE).open() as lines:
        rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        next(rows)
        return {(suite, kernel, case, dtype): why for suite, kernel, case, dtype, why in rows}


def key_of(row: Row) -> Key:
    return row.suite, row.kernel, row.case, row.dtype


def slow(rows: Iterable[Row]) -> list[tuple[float, Row]]:
    """Return torch.compile's time over that of the default, and the cell, where that is below ``SLOW``."""
    timed = [row for row in rows if row.suite in SUITES and "compile" in row.times]
    ratios = [(row.times["compile"]["median"] / row.times[_default(row)]["median"], row) for row in timed]
    return sorted((each for each in ratios if each[0] < SLOW), key=lambda each: (each[0], key_of(each[1])))


def _default(row: Row) -> str:
    return "default" if "default" in row.times else "seed"


def section(rows: Iterable[Row], folder: Path) -> Iterator[str]:
    """Yield the lines of the section, none without such cells."""
    found, why = slow(rows), reasons(folder)
    if found:
        yield from (f"## Timed cells below {SLOW} of torch.compile", "")
        lines = [
            (row.kernel, row.case, row.dtype, number(ratio), why.get(key_of(row), "not known")) for ratio, row in found
        ]
        yield from (*table(("kernel", "case", "dtype", "torch.compile / default", "reason"), "lllrl", lines), "")
