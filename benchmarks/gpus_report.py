"""The section of docs/performance.md that compares two GPUs of one architecture.

`benchmarks/results/nvidia-h100-defaults.tsv` has times of first seeds on an H100, without and with the numbers of `tuned.tsv`.
They stand next to the times of the same cells on an H200, which the suites have, where the same backend runs there.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.goals import number, table
from benchmarks.seeds import Row
from helion.hardware import target

FILE = "nvidia-h100-defaults.tsv"
#: Names of the two, and the backend of the file's seeds.
ONE, OTHER, BACKEND = "h100", "h200", "triton"
#: Cells that are listed: those whose ratios are the highest.
LISTED = 8

Key = tuple[str, str, str, str]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Microseconds of one cell on both GPUs, and the day of those on the first one."""

    key: Key
    one: float
    other: float
    date: str

    @property
    def ratio(self) -> float:
        return self.one / self.other


def microseconds_of(row: Row) -> float | None:
    """Return the time of the default in a suite's row, None where another backend runs."""
    names = ("default", "seed") if row.heuristic.lower().startswith(BACKEND) else ()
    return next((row.times[name]["median"] for name in names if name in row.times), None)


def read(folder: Path, rows: Iterable[Row]) -> list[Pair]:
    """Return the cells of the file that the suites have times of, in the order of the file."""
    known = {(row.suite, row.kernel, row.case, row.dtype): row for row in rows}
    path, found = folder / FILE, []
    head, *lines = path.read_text().splitlines() if path.exists() else ("",)
    date = next((word.strip(",;") for word in head.split() if word.startswith("20")), "")
    for suite, kernel, case, dtype, _, after in (line.split("\t") for line in lines[1:]):
        key = suite, kernel, case, dtype
        other = microseconds_of(known[key]) if key in known else None
        if other is not None:
            found.append(Pair(key=key, one=float(after), other=other, date=date))
    return found


def _mean(pairs: Sequence[Pair]) -> float:
    return math.exp(sum(math.log(pair.ratio) for pair in pairs) / len(pairs))


def _body(groups: Mapping[str, Sequence[Pair]]) -> list[tuple[str, ...]]:
    return [
        (
            name,
            str(len(pairs)),
            number(_mean(pairs)),
            number(min(p.ratio for p in pairs)),
            number(max(p.ratio for p in pairs)),
        )
        for name, pairs in groups.items()
    ]


def sections(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield the lines of the section, none without pairs."""
    if not pairs:
        return
    one, other = target(ONE), target(OTHER)
    bandwidth = other.bandwidth_gb_per_s / one.bandwidth_gb_per_s
    groups = collections.defaultdict(list)
    for pair in pairs:
        groups[pair.key[0]].append(pair)
    highest = sorted(pairs, key=lambda pair: -pair.ratio)[:LISTED]
    yield from (
        f"## Two GPUs: {one.device} and {other.device}",
        "",
        f"The first seeds of the Triton backend on an {one.device} ({pairs[0].date}), and the defaults of the {other.device}",
        f"in the suites above, where that backend runs. Ratios are of times: above 1 the {other.device} is faster. By the data sheets it has",
        f"{number(bandwidth)} times the bandwidth, and the same SMs. A larger ratio means that the default has changed since.",
        "",
        *table(("suite", "cells", "ratio", "lowest", "highest"), "lrrrr", _body({**groups, "all": pairs})),
        "",
        f"The {len(highest)} highest:",
        "",
        *table(
            ("suite", "kernel", "case", "dtype", f"{one.device}, µs", f"{other.device}, µs", "ratio"),
            "llllrrr",
            [(*pair.key, number(pair.one), number(pair.other), number(pair.ratio)) for pair in highest],
        ),
        "",
    )
