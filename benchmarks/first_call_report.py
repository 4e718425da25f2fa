"""The section of docs/performance.md about first calls, of what `benchmarks/first_call.py` writes.

A file `benchmarks/results/DEVICE-first-call.json` is its `first-call.json`, with `timed` left out.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

SUFFIX = "-first-call"
#: The configs of a cell, in the order of the columns.
_CONFIGS = ("default", "first call", "best of the sample")
#: The config of a search, which few cells have.
_TUNED = "tuned"
#: Calls whose seconds are compared.
_CALLS = ("default", "first call", "second process", "third process")


def read(folder: Path) -> dict[str, list[Mapping[str, Any]]]:
    """Return the cells by device."""
    files = [json.loads(path.read_text()) for path in sorted(folder.glob(f"*{SUFFIX}.json"))]
    return {each["device"]: each["cells"] for each in files}


def sections(by_device: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """Yield the lines of the section, none without results."""
    if not by_device:
        return
    yield from (
        "## First calls",
        "",
        "The first call of a kernel without a config may measure a few configs (`first_call_seconds`). Times are of the",
        "default, of the config that the first call took, and of the best of 44 configs that were timed before. Ratios",
        "are to the latter, so that below 1 is better. Seconds are of whole calls: the first one without and with",
        "measurements, with empty caches, and the first one of later processes.",
        "",
    )
    for device, cells in by_device.items():
        yield from _device(device, [cell for cell in cells if "microseconds" in cell])


def _device(device: str, cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    *ours, best = _CONFIGS
    timed = [cell for cell in cells if set(_CONFIGS) <= set(cell["microseconds"])]
    yield from (f"### First calls, {device}", "")
    for name in ours:
        ratios = [cell["microseconds"][name] / cell["microseconds"][best] for cell in timed]
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        yield f"- {name} / {best}: {mean:.3f} in the geometric mean of {len(ratios)} cells, at most {max(ratios):.2f}."
    for name in ours:
        searched = [cell["microseconds"] for cell in cells if {name, _TUNED} <= set(cell["microseconds"])]
        if ratios := [times[name] / times[_TUNED] for times in searched]:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            yield (
                f"- {name} / the config that the effort `full` found in 8 to 15 seconds: {mean:.3f} in the geometric mean of "
                f"{len(ratios)} cells, at most {max(ratios):.2f}."
            )
    for name in _CALLS:
        seconds = [cell["seconds"][name] for cell in cells if name in cell["seconds"]]
        if seconds:
            yield f"- Seconds, {name}: {statistics.median(seconds):.2f} in the median, at most {max(seconds):.2f}."
    yield from ("", "| kernel | case | dtype | default, µs | first call, µs | best of the sample, µs |")
    yield "| :-- | :-- | :-- | --: | --: | --: |"
    for cell in timed:
        times = " | ".join(f"{cell['microseconds'][name]:.1f}" for name in _CONFIGS)
        yield f"| {cell['kernel']} | {cell['case']} | {cell['dtype']} | {times} |"
    yield ""
