"""The section of docs/performance.md about kernels that no rule was fitted to, next to torch.compile.

A file `benchmarks/results/DEVICE-variants.jsonl` has one line for each run of a kernel. Lines whose ``what`` begins with
``UNFITTED`` are of kernels as a user writes them, run with the default config. Of each kernel the last line counts.
``why`` is the reason of a default that is slow.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.goals import number, table

SUFFIX = "-variants"
UNFITTED = "first call of a kernel that no rule was fitted to"
#: Ratios above count as this one. The goals are of their geometric mean, and of the kernels below ``SLOW``.
MOST, MEAN, SLOW, FEW = 3.0, 1.25, 0.9, 2

Row = Mapping[str, Any]


def read(folder: Path) -> dict[str, dict[str, Row]]:
    """Return the last row of each kernel, by device."""
    found: dict[str, dict[str, Row]] = {}
    for path in sorted(folder.glob(f"*{SUFFIX}.jsonl")):
        for row in map(json.loads, path.read_text().splitlines()):
            if row.get("what", "").startswith(UNFITTED) and {"default", "compile"} <= set(row["microseconds"]):
                kernels = found.setdefault(row["device"], {})
                kernels[row["name"]] = {"why": kernels.get(row["name"], {}).get("why", ""), **row}
    return found


def ratio(row: Row) -> float:
    """Return torch.compile's time over that of the default."""
    times = row["microseconds"]
    return float(times["compile"] / times["default"])


def mean(rows: Sequence[Row]) -> float:
    """Return the geometric mean of the ratios, of which none counts more than ``MOST``."""
    return math.exp(sum(math.log(min(MOST, ratio(row))) for row in rows) / len(rows))


def sections(by_device: Mapping[str, Mapping[str, Row]]) -> Iterator[str]:
    """Yield the lines of the section, none without results."""
    for device, kernels in by_device.items():
        rows = sorted(kernels.values(), key=ratio)
        slow = [row for row in rows if ratio(row) < SLOW]
        yield from (
            f"## Kernels that no rule was fitted to, {device}",
            "",
            f"{len(rows)} kernels as users write them, with the default config of their first call. The geometric mean of",
            f"torch.compile's time over ours is {number(mean(rows))} where no ratio counts more than {MOST:g}",
            f"(goal {MEAN}). {len(slow)} of them are below {SLOW} (goal: {FEW} of 60).",
            "",
            *table(
                ("kernel", "default, us", "torch.compile, us", "ratio", "reason"),
                "lrrrl",
                [
                    (
                        row["name"],
                        number(row["microseconds"]["default"]),
                        number(row["microseconds"]["compile"]),
                        number(ratio(row)),
                        row["why"] if ratio(row) < SLOW else "",
                    )
                    for row in rows
                ],
            ),
            "",
        )
