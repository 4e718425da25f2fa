"""The section of docs/performance.md about the operators of ``helion.ops``.

The files of ``benchmarks/results/ops`` are what ``benchmarks/ops.py`` writes (``DEVICE.json``), ``benchmarks/ops_peers.py``
(``DEVICE-peers.jsonl``) and ``benchmarks/ops_first_calls.py`` (``DEVICE-first-calls.json``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PEERS, FIRST_CALLS = "-peers", "-first-calls"
PASSES = ("forward", "both")
#: The least ratio of a cell, and the share of cells that are to be at least as fast as the others.
LEAST, SHARE = 0.9, 0.9
OURS = "helion"


@dataclass(kw_only=True)
class Operators:
    """Rows of one device, by file."""

    cells: list[Mapping[str, Any]] = field(default_factory=list)
    peers: list[Mapping[str, Any]] = field(default_factory=list)
    first_calls: list[Mapping[str, Any]] = field(default_factory=list)
    untimed: list[Mapping[str, Any]] = field(default_factory=list)
    """Libraries without times, with the reasons."""


def read(folder: Path) -> dict[str, Operators]:
    """Return the rows by device."""
    found: dict[str, Operators] = {}
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        of_device = found.setdefault(content["environment"]["device"], Operators())
        if path.stem.endswith(FIRST_CALLS):
            of_device.first_calls += content["rows"]
        else:
            of_device.cells += content["rows"]
    for path in sorted(folder.glob(f"*{PEERS}.jsonl")):
        for row in map(json.loads, path.read_text().splitlines()):
            of_device = found.setdefault(row["device"], Operators())
            (of_device.untimed if "untimed" in row else of_device.peers).append(row)
    return found


def sections(by_device: Mapping[str, Operators]) -> Iterator[str]:
    """Yield the lines of the section, none without results."""
    if not by_device:
        return
    yield from (
        "## Operators",
        "",
        "Operators of `helion.ops` at shapes of models in use, next to the same in PyTorch (compiled and eager) and in other",
        "libraries. Times are of the device, with a cold L2, in microseconds: of the forward pass, and of forward and",
        "backward. Ratios are of the fastest other one to the operator, so that above 1 the operator is faster. Times of",
        "the host are of whole calls of few rows.",
        "",
    )
    for device, found in by_device.items():
        yield from _device(device, found)


def ratio(times: Mapping[str, float]) -> float | None:
    """Return the time of the fastest other variant over that of the operator; None if one of them is missing."""
    others = [us for name, us in times.items() if name != OURS]
    return min(others) / times[OURS] if OURS in times and others else None


def _ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    found = {f"{row['name']} {row['shape']}, {label}": ratio(row.get(label, {})) for row in rows for label in PASSES}
    return {name: each for name, each in found.items() if each is not None}


def _device(device: str, found: Operators) -> Iterator[str]:
    for title, rows in (("torch.compile and eager", found.cells), ("other libraries", found.peers)):
        ratios = _ratios(rows)
        if not ratios:
            continue
        fast = sum(each >= 1 for each in ratios.values())
        below = {name: each for name, each in sorted(ratios.items(), key=lambda item: item[1]) if each < LEAST}
        yield from (f"### Operators next to {title}, {device}", "")
        yield (
            f"- At least as fast in {fast} of {len(ratios)} cells ({100 * fast / len(ratios):.0f} %; the goal is "
            f"{100 * SHARE:.0f} %)."
        )
        named = "; ".join(f"{name}: {each:.2f}" for name, each in below.items())
        yield f"- Below {LEAST}: {named}." if named else f"- None is below {LEAST}."
        yield ""
        yield from _table(rows)
    if found.untimed:
        yield from ("Libraries without times, as pip finds them for the software of these runs:", "")
        yield from (f"- {each['library']} {each['version']}: {each['untimed']}" for each in found.untimed)
        yield ""
    yield from _first_calls(device, found.first_calls)


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    labels = (*PASSES, "host")
    names = dict.fromkeys(name for row in rows for label in labels for name in row.get(label, ()))
    shown = [OURS, *(name for name in names if name != OURS)]
    yield f"| operator | shape | pass | {' | '.join(shown)} | ratio |"
    yield f"| :-- | :-- | :-- |{' --: |' * (len(shown) + 1)}"
    for row in rows:
        for label in labels:
            times = row.get(label, {})
            if OURS not in times:
                continue
            cells = (f"{times[name]:.1f}" if name in times else "" for name in shown)
            of_all = ratio(times)
            by = ", by events" if row.get("by", {}).get(label) else ""
            by += ", helion in a run of its own" if label in row.get("apart", ()) else ""
            last = "" if of_all is None else f"{of_all:.2f}"
            yield f"| {row['name']} | {row['shape']} | {label}{by} | {' | '.join(cells)} | {last} |"
    yield ""


def _first_calls(device: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not rows:
        return
    yield from (
        f"### First calls of all operators, {device}",
        "",
        "Seconds of the first calls of all operators, one shape each: with empty caches, and in later processes. The sum "
        "has the import of Triton. Goals: 20 s from empty caches on 16 cores, 1 s in a later process.",
        "",
        "| caches | processes | seconds | sum of all calls | import of `helion.ops` | slowest |",
        "| :-- | --: | --: | --: | --: | :-- |",
    )
    for row in rows:
        slowest = ", ".join(f"{name} {seconds:.2f}" for name, seconds in list(row["calls_s"].items())[:3])
        yield (
            f"| {row['caches']} | {row['processes']} | {row['seconds']:.2f} | {row['sum_s']:.2f} | "
            f"{row['import_s']:.2f} | {slowest} |"
        )
    yield ""


__all__ = ["Operators", "ratio", "read", "sections"]
