"""The section of docs/performance.md about the axes of a config that searches gain by.

A file `benchmarks/results/DEVICE-axes.jsonl` has what `benchmarks/tuned_sample.py time` writes for rows with further configs:
the found one with one axis as in the default, named by the axis.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.goals import number, table

SUFFIX = "-axes"
DEFAULT, FOUND, BACK = "default", "tuned", "-"
#: Gains of found configs from which their axes count, and loss from which an axis carries one.
GAIN, LOSS = 1.03, 1.02

Row = Mapping[str, Any]


def read(folder: Path) -> dict[str, list[Row]]:
    """Return the rows by device."""
    found: dict[str, list[Row]] = {}
    for path in sorted(folder.glob(f"*{SUFFIX}.jsonl")):
        for row in map(json.loads, path.read_text().splitlines()):
            found.setdefault(row["device"], []).append(row)
    return found


def losses(row: Row) -> dict[str, float]:
    """Return, for each axis that a found config changes, its time without that over its own."""
    times, configs = row["microseconds"], row["configs"]
    apart = {name.removeprefix(BACK): us / times[FOUND] for name, us in times.items() if name.startswith(BACK)}
    keys = [
        key for key in {**configs[DEFAULT], **configs[FOUND]} if configs[DEFAULT].get(key) != configs[FOUND].get(key)
    ]
    return apart or dict.fromkeys(keys[:1], times[DEFAULT] / times[FOUND])


def sections(by_device: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """Yield the lines of the section, none without results."""
    for device, rows in by_device.items():
        gains = [row for row in rows if row["microseconds"][DEFAULT] / row["microseconds"][FOUND] >= GAIN]
        by_axis: dict[str, list[float]] = {}
        for row in gains:
            for axis, loss in losses(row).items():
                by_axis.setdefault(axis, []).append(loss)
        carried = {axis: [loss for loss in each if loss > LOSS] for axis, each in by_axis.items()}
        order = sorted(by_axis, key=lambda axis: (-len(carried[axis]), -len(by_axis[axis]), axis))
        mean = [number(math.exp(statistics.fmean(map(math.log, carried[a])))) if carried[a] else "" for a in order]
        yield from (
            f"## Axes that searches gain by, {device}",
            "",
            f"Of {len(gains)} configs that the effort `full` found, each at least {GAIN} times as fast as the default: the cells",
            f"that change an axis, and those that lose {LOSS} or more if it alone goes back.",
            "",
            *table(
                ("axis", "changed", "carried", "loss, mean", "highest"),
                "lrrrr",
                [
                    (axis, str(len(by_axis[axis])), str(len(carried[axis])), one, number(max(by_axis[axis])))
                    for axis, one in zip(order, mean, strict=True)
                ],
            ),
            "",
        )
