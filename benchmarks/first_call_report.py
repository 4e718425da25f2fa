"""The section of docs/performance.md about first calls, of what `benchmarks/first_call.py` writes.

A file `benchmarks/results/DEVICE-first-call.json` is its `first-call.json`, with `timed` left out. A file
`DEVICE-tuned-sample.jsonl` has what `benchmarks/tuned_sample.py time` writes, with the date, the versions, what the cells are
a sample of (``sample``), and the number of searches at the same time besides each (``beside``). A file
`DEVICE-calls.jsonl` has what `benchmarks/first_call.py --calls` and ``--alone`` write, with the date and which of them.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

SUFFIX = "-first-call"
TUNED_SUFFIX, CALLS_SUFFIX = "-tuned-sample", "-calls"
#: Ways to measure calls alone.
_WAYS = {
    "calls": "in one process, after a first call of each backend",
    "alone": "in processes of their own, which import the compiler and the backend",
}
#: The configs of a cell, in the order of the columns.
_CONFIGS = ("default", "first call", "best of the sample")
#: The config of a search, which few cells have.
_TUNED = "tuned"
#: Calls whose seconds are compared.
_CALLS = ("default", "first call", "second process", "third process")


def read(folder: Path) -> dict[str, list[Mapping[str, Any]]]:
    """Return the cells by device."""
    files = [json.loads(path.read_text()) for path in sorted(folder.glob(f"*{SUFFIX}.json"))]
    found = {each["device"]: list(each["cells"]) for each in files}
    for path in sorted(folder.glob(f"*{TUNED_SUFFIX}.jsonl")):
        for row in map(json.loads, path.read_text().splitlines()):
            found.setdefault(row["device"], []).append(row)
    for path in sorted(folder.glob(f"*{CALLS_SUFFIX}.jsonl")):
        for row in map(json.loads, path.read_text().splitlines()):
            found.setdefault(row["device"], []).append(
                {**row, "microseconds": {}, "seconds": {}, "call": row["seconds"]}
            )
    return {device: cells for device, cells in found.items() if any(_is_call(cell) for cell in cells)}


def _is_call(cell: Mapping[str, Any]) -> bool:
    """Return whether first calls were measured, and not searches alone."""
    return bool(cell.get("seconds"))


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


def _searched(name: str, how: str, cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    searched = [cell["microseconds"] for cell in cells if {name, _TUNED} <= set(cell["microseconds"])]
    if ratios := [times[name] / times[_TUNED] for times in searched]:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        yield (
            f"- {name} / the config that the effort `full` found in {how}: {mean:.3f} in the geometric mean of "
            f"{len(ratios)} cells, at most {max(ratios):.2f}."
        )


def _device(device: str, cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    *ours, best = _CONFIGS
    timed = [cell for cell in cells if set(_CONFIGS) <= set(cell["microseconds"])]
    yield from (f"### First calls, {device}", "")
    for name in ours:
        ratios = [cell["microseconds"][name] / cell["microseconds"][best] for cell in timed]
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        yield f"- {name} / {best}: {mean:.3f} in the geometric mean of {len(ratios)} cells, at most {max(ratios):.2f}."
    for name in ours:
        yield from _searched(name, "8 to 15 seconds", [cell for cell in cells if _is_call(cell)])
    samples = dict.fromkeys((c["sample"], c["tuned_seconds"], c["beside"]) for c in cells if "tuned_seconds" in c)
    for what, seconds, beside in samples:
        own = [cell for cell in cells if (cell.get("sample"), cell.get("tuned_seconds")) == (what, seconds)]
        yield from _searched("default", f"{seconds:.0f} seconds, beside {beside} other searches, for {what}", own)
    for name in _CALLS:
        seconds = [cell["seconds"][name] for cell in cells if name in cell.get("seconds", ())]
        if seconds:
            yield f"- Seconds, {name}: {statistics.median(seconds):.2f} in the median, at most {max(seconds):.2f}."
    for way, how in _WAYS.items():
        if own := [cell for cell in cells if cell.get("way") == way]:
            first, again = [cell["call"] for cell in own], [cell["later"] for cell in own if "later" in cell]
            yield (
                f"- Seconds, first calls of {len(own)} kernels {how} ({own[0]['date']}): {statistics.median(first):.2f} in "
                f"the median, {sum(each > 2 for each in first)} above 2, at most {max(first):.2f}. Later processes: "
                f"{statistics.median(again):.2f} in the median, at most {max(again):.2f}."
            )
    yield from ("", "| kernel | case | dtype | default, µs | first call, µs | best of the sample, µs |")
    yield "| :-- | :-- | :-- | --: | --: | --: |"
    for cell in timed:
        times = " | ".join(f"{cell['microseconds'][name]:.1f}" for name in _CONFIGS)
        yield f"| {cell['kernel']} | {cell['case']} | {cell['dtype']} | {times} |"
    yield ""
