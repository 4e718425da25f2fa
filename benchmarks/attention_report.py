"""The section of docs/performance.md about attention, of what `benchmarks/attention.py` writes.

A file `benchmarks/results/DEVICE-attention.jsonl` has its lines; the first one is the device.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
SUFFIX = "-attention"
BINARIES = "attention-binaries"
"""The file of what `benchmarks/attention_binaries.py` writes."""
OURS = ("helion", "derived", "operator")
"""Variants of this package under their defaults. Others of it are listed, and count for nothing."""
OTHERS = ("cudnn", "flash", "flex", "math")
_KEYS = ("dims", "causal", "batch", "heads", "groups", "m", "n", "hook")
_VALUES = "values"
"""Dimensions of values, which lines of other cells need not have."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What cells of some jobs should reach: the geometric mean of the ratio of times, and the lowest one."""

    title: str
    covers: Callable[[Cell], bool]
    mean: float | None
    lowest: float | None
    others: Sequence[str] = ()
    """The variants of the ratio; none for those of ``OTHERS``."""
    clean: bool = False
    """Whether L2 was filled by reads before."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """All variants of one attention: microseconds of the right ones, and what failed or was wrong."""

    part: str
    row: Row
    times: Mapping[str, float] = field(default_factory=dict)
    clean: Mapping[str, float] = field(default_factory=dict)
    """Those of decoding after L2 was filled by reads."""
    failed: Mapping[str, str] = field(default_factory=dict)
    config: str = ""

    def fastest(self, names: Iterable[str], clean: bool = False) -> tuple[float, str] | None:
        times = self.clean if clean else self.times
        return min(((times[name], name) for name in names if name in times), default=None)

    def ratio(self, others: Sequence[str] = OTHERS, clean: bool = False) -> float | None:
        """Return the time of the fastest other over that of the fastest of ours."""
        ours, other = self.fastest(OURS, clean), self.fastest(others, clean)
        return None if ours is None or other is None else other[0] / ours[0]

    @property
    def teraflops(self) -> float | None:
        """TFLOP/s of the fastest of ours; gradients count two and a half times the forward."""
        ours, row = self.fastest(OURS), self.row
        columns = row["dims"] + (row.get(_VALUES) or row["dims"])
        flops = 2 * row["batch"] * row["heads"] * row["m"] * row["n"] * columns * (0.5 if row["causal"] else 1.0)
        flops *= 2.5 if self.part == "backward" else 1.0
        return None if ours is None or row["hook"] in ("window", "documents") else flops / ours[0] / 1e6


GOALS = (
    Goal(title="forward, equal and grouped heads", covers=lambda c: c.part in ("forward", "grouped"), mean=1.03, lowest=0.97),
    Goal(title="forward of ragged sizes and few heads", covers=lambda c: c.part == "ragged", mean=None, lowest=0.95),
    Goal(title="softcap, bias, window, documents, beside FlexAttention", covers=lambda c: c.part == "hooks", mean=1.5, lowest=1.1),
    Goal(title="backward, heads of 64 and 128", covers=lambda c: c.part == "backward" and c.row["dims"] < 256, mean=1.05, lowest=0.95),
    Goal(title="backward, heads of 256", covers=lambda c: c.part == "backward" and c.row["dims"] == 256, mean=None, lowest=0.9),
    Goal(title="decoding", covers=lambda c: c.part == "decode", mean=None, lowest=1.0),
    Goal(title="decoding, share of the copy rate", covers=lambda c: c.part == "decode", mean=None, lowest=0.85, others=("copy",)),
    Goal(title="decoding, share of the rate of a read", covers=lambda c: c.part == "decode", mean=None, lowest=None, others=("read",)),
    Goal(title="decoding, L2 filled by reads", covers=lambda c: c.part == "decode", mean=None, lowest=1.0, clean=True),
    Goal(title="decoding, L2 filled by reads, share of the copy rate", covers=lambda c: c.part == "decode", mean=None, lowest=0.85, others=("copy",), clean=True),
    Goal(title="decoding, L2 filled by reads, share of the rate of a read", covers=lambda c: c.part == "decode", mean=None, lowest=None, others=("read",), clean=True),
)  # fmt: skip


_NOTES = {
    "decode": (
        "The copy reads half of the bytes: its writes wait in L2, so that a kernel that only reads as much takes longer. With few keys",
        "a launch and the combination of parts count (measurement `combined_at_once`). Heads of 64",
        "dimensions take as long as that read with any blocks, stages and parts (measurement `decode_narrow`).",
        "",
    ),
}
"""Lines of the page before the cells of a part: why goals are missed."""


def read(folder: Path) -> dict[str, list[Row]]:
    """Return the lines by device, of files that are called so."""
    files = sorted(folder.glob(f"*{SUFFIX}.jsonl"))
    found = {f.stem.removesuffix(SUFFIX): _lines(f) for f in files}
    binaries = _lines(folder / "cute" / f"{BINARIES}.jsonl")
    for rows in found.values():
        if binaries and rows[0]["device"] == binaries[0]["gpu"]:
            rows += binaries
    return found


def _lines(file: Path) -> list[Row]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def cells(rows: Sequence[Row]) -> list[Cell]:
    """Return the cells in the order of their jobs."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if "variant" in row:
            key = (row["job"].partition(":")[0], *(row[key] for key in _KEYS), row.get(_VALUES, 0))
            found.setdefault(key, []).append(row)
    made = []
    for (part, *_), lines in sorted(found.items(), key=lambda pair: pair[0][:2]):
        good, clean = (
            {line["variant"]: line[key] for line in lines if line.get("right") and key in line}
            for key in ("us", "clean")
        )
        bad = {
            line["variant"]: line.get("why", f"error {line.get('error')}") for line in lines if not line.get("right")
        }
        configs = [line["config"] for line in lines if line["variant"] == "helion" and "config" in line]
        made.append(Cell(part=part, row=lines[0], times=good, clean=clean, failed=bad, config="".join(configs[:1])))
    return made


def sections(by_device: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return the lines of the page about attention, a section for each device."""
    return [line for rows in by_device.values() if rows for line in _section(rows)]


def _section(rows: Sequence[Row]) -> list[str]:
    known, found = rows[0], cells(rows)
    runs = f" in {known['runs']} runs" if known.get("runs", 1) > 1 else ""
    lines = [
        f"## Attention, {known['device']}",
        "",
        f"`{known['script']}` with torch {known['torch']}, cuDNN {known['cudnn']} and Triton {known['triton']}, {known['date']}{runs}: bf16 and",
        "microseconds with a cold L2, all variants of a cell in turn in one process. Ratios are the time of the fastest other over",
        "that of the default config: above 1 the kernel is faster. Others are the backends of torch's `scaled_dot_product_attention`,",
        "and compiled FlexAttention where scores have a formula. The copy moves as many bytes as keys and values have, half of them to",
        "memory; the read is a sum of as many. L2 was overwritten before each call, so that a kernel that reads waits for lines that L2",
        "writes back, and a copy leaves its own there. *L2 filled by reads* has the times of decoding without such lines. Gradients are those of `helion.ops.attention`, and of the loop of",
        "`examples/attention.py` by `differentiable()`. *B x H / G* is batch by heads by heads of keys.",
        "",
    ]
    lines += _table(("goal", "cells", "mean", "wanted", "lowest", "wanted", "cells below"), "lrrrrrr", [*_goals(found)])
    for part in dict.fromkeys(each.part for each in found):
        own = [each for each in found if each.part == part]
        lines += [f"### Attention: {part}", "", *_NOTES.get(part, ()), *_cells(own)]
    lines += _binaries([row for row in rows if "plan_ms" in row])
    lines += _launches([row for row in rows if row.get("kind") == "launches"])
    failed = [f"- {_name(each)}: {name}: `{why[:140]}`" for each in found for name, why in each.failed.items()]
    return [*lines, "Failed or wrong:", "", *failed, ""] if failed else lines


def _goals(found: Sequence[Cell]) -> Iterable[tuple[str, ...]]:
    for goal in GOALS:
        ratios = [each.ratio(goal.others or OTHERS, goal.clean) for each in found if goal.covers(each)]
        known = [each for each in ratios if each is not None]
        if not known:
            yield goal.title, "0", "-", _number(goal.mean), "-", _number(goal.lowest), "-"
            continue
        below = sum(each < (goal.lowest or 0.0) for each in known)
        mean, lowest = statistics.geometric_mean(known), min(known)
        yield (
            goal.title,
            str(len(known)),
            _number(mean),
            _number(goal.mean),
            _number(lowest),
            _number(goal.lowest),
            str(below),
        )


def _cells(found: Sequence[Cell]) -> list[str]:
    names = [name for name in (*OURS, "cute", *OTHERS, "copy", "read") if any(name in each.times for each in found)]
    clean = [name for name in names if any(name in each.clean for each in found)]
    body = []
    for each in found:
        pairs = [*((each.times, name) for name in names), *((each.clean, name) for name in clean)]
        times = [f"{known[name]:.1f}" if name in known else "-" for known, name in pairs]
        rate, ratio = each.teraflops, each.ratio()
        body.append((_name(each), *times, "-" if rate is None else f"{rate:.0f}", _number(ratio), f"`{each.config}`" if each.config else "-"))  # fmt: skip
    return _table(("head, B x H / G, queries x keys", *names, *(f"{name}, clean" for name in clean), "TFLOP/s", "ratio", "config"), "l" + "r" * (len(names) + len(clean) + 2) + "l", body)  # fmt: skip


def _binaries(rows: Sequence[Row]) -> list[str]:
    """Return the table of the times that kernels take before their first launch."""
    if not rows:
        return []
    slow = [max(row[key] for row in rows) for key in ("plan_ms", "compile_s", "load_ms")]
    times = ("plan_ms", "compile_s", "trace_s", "mlir_s", "binary_s", "load_ms")
    body = [
        (row["name"], *(f"{row[key]:.1f}" if key in row else "-" for key in times), str(row["registers"]), str(row["spill_bytes"]))
        for row in rows
    ]  # fmt: skip
    return [
        "### Attention: before the first launch",
        "",
        "`benchmarks/attention_binaries.py`: milliseconds to plan, verify and print a kernel, seconds to compile it, and milliseconds",
        f"to load it from the cache on disk. The longest are {slow[0]:.1f} ms (goal 30), {slow[1]:.1f} s (goal 3) and {slow[2]:.1f} ms (goal 5).",
        "",
        "Compilation is the DSL's trace of the Python text, MLIR's passes, and LLVM with ptxas. All three follow the length of the kernel,",
        "in which loops over elements of registers are unrolled. Lower levels of optimization of the DSL save no time.",
        "The processors are shared with other jobs. Of several runs that of the least time is listed.",
        "",
        *_table(
            (
                "kernel",
                "plan ms",
                "compile s",
                "trace s",
                "MLIR s",
                "LLVM, ptxas s",
                "load ms",
                "registers",
                "spilled bytes",
            ),
            "lrrrrrrrr",
            body,
        ),
    ]


def _launches(rows: Sequence[Row]) -> list[str]:
    """Return the table of launches of random sizes, and of equal ones."""
    if not rows:
        return []
    random = sum(row["launches"] for row in rows if not row["same"])
    body = [
        (row["name"], str(row["launches"]), "equal" if row["same"] else "random", f"{row['worst']:.4f}", str(row["differing"]), str(row["written"]))
        for row in rows
    ]  # fmt: skip
    return [
        "### Attention: many launches",
        "",
        f"`benchmarks/attention_launches.py`: {random} launches of random sizes, and of equal ones, of one binary for each kernel.",
        "Errors are those of a row beside fp32, relative to its norm. Bits differ from those of a second launch, or of the first.",
        "Elements around the output are not to be written.",
        "",
        *_table(("kernel", "launches", "sizes", "largest error", "differing", "written around"), "lrlrrr", body),
    ]


def _name(cell: Cell) -> str:
    row = cell.row
    heads = f"{row['heads']}" if row["heads"] == row["groups"] else f"{row['heads']} / {row['groups']}"
    mask = row["hook"] or ("causal" if row["causal"] else "full")
    values = f" / {row[_VALUES]}" if row.get(_VALUES) else ""
    return f"{row['dims']}{values} {mask}, {row['batch']} x {heads}, {row['m']} x {row['n']}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _table(header: Sequence[str], sides: str, body: Iterable[Sequence[str]]) -> list[str]:
    rule = [{"l": ":--", "r": "--:"}[side] for side in sides]
    return [*(f"| {' | '.join(each)} |" for each in (header, rule, *body)), ""]
