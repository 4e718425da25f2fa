"""What the rows of benchmarks/seeds.py amount to: ratios, geometric means, and the goals that they are held against.

Every ratio is of two times of the same cell, the other variant's over the seed's: above 1 the seed is faster.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.seeds import Row

#: Suites whose kernels move data and compute little; rows with matrix products are left out of shares of bandwidth.
MEMORY_SUITES = ("reductions", "transfer", "pointwise")
#: Kernels that save memory by computing products again: four of them against the two of torch.compile and of their other form.
COMPUTED_TWICE = ("fused_linear_jsd_tiled",)
#: Below this, starting a kernel and draining it takes a large part of the time even if it copies at full speed.
LARGE_BYTES = 250_000_000

Value = Callable[[Row], "float | None"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One goal and what was measured of it; the goal is met if ``measured`` is at least ``wanted``."""

    goal: str
    wanted: float
    measured: float | None
    """None if no cell of it was measured."""
    cells: int
    remark: str = ""
    percent: bool = False
    """Whether both numbers are shares."""

    @property
    def met(self) -> bool:
        return self.measured is not None and self.measured >= self.wanted

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return "not measured"
        if self.met:
            return "met"
        missed = 100 * (1 - self.measured / self.wanted)
        return f"**missed** by {missed:.1f} %" if missed >= 0.05 else "**missed** by less than 0.1 %"


# ---------------------------------------------------------------------------------------------------------- of one row


def microseconds(row: Row, variant: str) -> float | None:
    times = row.times.get(variant)
    return None if times is None else times["median"]


def is_seed(variant: str) -> bool:
    return variant == "seed" or variant.startswith("seed ")


def default_variant(row: Row) -> str | None:
    """The variant that runs when nothing was tuned; None if there are several seeds and the row does not tell."""
    if "default" not in row.configs:
        return "seed" if sum(map(is_seed, row.configs)) == 1 else None
    return next(name for name, config in row.configs.items() if config == row.configs["default"])


def fastest_seed(row: Row) -> float | None:
    """Microseconds of the fastest seed that was timed; that is the first one alone where no others were."""
    return min((times["median"] for name, times in row.times.items() if is_seed(name)), default=None)


def over_seed(variant: str) -> Value:
    """How many times faster the first seed is than ``variant``."""

    def value(row: Row) -> float | None:
        ours, theirs = microseconds(row, "seed"), microseconds(row, variant)
        return None if ours is None or theirs is None else theirs / ours

    return value


def over_fastest(variant: str) -> Value:
    """How many times faster the fastest timed seed is than ``variant``."""

    def value(row: Row) -> float | None:
        ours, theirs = fastest_seed(row), microseconds(row, variant)
        return None if ours is None or theirs is None else theirs / ours

    return value


def share_of(copy_gb_per_s: float | None) -> Value:
    """The first seed's part of the bandwidth of a copy, of inputs and outputs counted once; of large cells alone."""

    def value(row: Row) -> float | None:
        ours = microseconds(row, "seed")
        if ours is None or not copy_gb_per_s or row.flops or row.bytes < LARGE_BYTES:
            return None
        return row.bytes / ours * 1e-3 / copy_gb_per_s

    return value


def teraflops(row: Row) -> float | None:
    ours = microseconds(row, "seed")
    return None if ours is None or not row.flops else row.flops / ours * 1e-6


def columns(row: Row) -> int:
    """N of a row with a matrix product."""
    found = re.search(r"\bN=(\d+)", row.case)
    assert found is not None, f"the case {row.case!r} of {row.kernel} names no N"
    return int(found[1])


def is_tiled(row: Row) -> bool:
    return row.kernel.endswith("_tiled")


def label(row: Row) -> str:
    return f"{row.kernel}, {row.case}, {row.dtype}"


# ------------------------------------------------------------------------------------------------------------- of many


def geometric_mean(values: Sequence[float]) -> float | None:
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None


def values_of(rows: Iterable[Row], value: Value) -> list[float]:
    return [found for found in map(value, rows) if found is not None]


def by_kernel(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """The rows by kernel and dtype, in their order."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.kernel, row.dtype), []).append(row)
    return groups


def number(value: float | None, *, percent: bool = False) -> str:
    """Three digits of a ratio or of microseconds; ``-`` where there is none."""
    if value is None:
        return "-"
    if percent:
        return f"{100 * value:.1f} %"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _mean(goal: str, wanted: float, rows: Sequence[Row], value: Value, remark: str = "") -> Finding:
    """A goal for the geometric mean over cells."""
    pairs = [(found, row) for row in rows if (found := value(row)) is not None]
    if pairs:
        lowest, where = min(pairs, key=lambda pair: pair[0])
        remark += ("; " if remark else "") + f"lowest {number(lowest)}: {label(where)}"
    measured = geometric_mean([found for found, _ in pairs])
    return Finding(goal=goal, wanted=wanted, measured=measured, cells=len(pairs), remark=remark)


def _every_cell(goal: str, wanted: float, rows: Sequence[Row], value: Value) -> Finding:
    """A goal that each cell has to meet."""
    pairs = sorted(((found, at) for at, row in enumerate(rows) if (found := value(row)) is not None))
    below = [f"{label(rows[at])} {number(found)}" for found, at in pairs if found < wanted]
    measured = pairs[0][0] if pairs else None
    return Finding(goal=goal, wanted=wanted, measured=measured, cells=len(pairs), remark=_below(below))


def _every_kernel(goal: str, wanted: float, rows: Sequence[Row], value: Value, *, percent: bool = False) -> Finding:
    """A goal that the geometric mean of each kernel and dtype has to meet."""
    cells, means = 0, []
    for (kernel, dtype), group in by_kernel(rows).items():
        found = values_of(group, value)
        mean = geometric_mean(found)
        if mean is not None:
            cells += len(found)
            means.append((mean, f"{kernel} {dtype} {number(mean, percent=percent)}"))
    means.sort()
    remark = _below([text for mean, text in means if mean < wanted])
    if remark:
        remark = f"{sum(mean < wanted for mean, _ in means)} of {len(means)} {remark}"
    measured = means[0][0] if means else None
    return Finding(goal=goal, wanted=wanted, measured=measured, cells=cells, remark=remark, percent=percent)


def _below(texts: Sequence[str]) -> str:
    return f"below: {', '.join(texts)}" if texts else ""


def _all_run(rows: Sequence[Row], goal: str) -> Finding:
    """A goal that the first seed of every row runs and is right."""
    good = sum("seed" in row.times for row in rows)
    part = good / len(rows) if rows else None
    remark = f"{good} of {len(rows)}" if rows else ""
    return Finding(goal=goal, wanted=1.0, measured=part, cells=len(rows), remark=remark, percent=True)


# --------------------------------------------------------------------------------------------------------------- goals


def needs_rescue(row: Row) -> bool:
    """Whether the conservative config does not run or is wrong; a full GPU memory says nothing about the config."""
    return "conservative" in row.failures and not row.failures["conservative"].startswith("OutOfMemoryError")


def _rescues(rows: Sequence[Row]) -> Finding:
    goal = "the first seed runs where the conservative config does not"
    stranded = [row for row in rows if needs_rescue(row)]
    if stranded or not rows:
        return _all_run(stranded, goal)
    return Finding(
        goal=goal, wanted=1.0, measured=1.0, cells=0, remark="the conservative config runs in every cell", percent=True
    )


def epilogue_findings(rows: Sequence[Row]) -> list[Finding]:
    """Goals for matrix products with reductions behind them; the published results are of the kernels that hold whole
    rows."""
    whole = [row for row in rows if not is_tiled(row)]
    tiled = [row for row in rows if is_tiled(row) and row.dtype == "bfloat16" and 2048 <= columns(row) <= 4096]
    first = geometric_mean(values_of(tiled, over_seed("compile")))
    return [
        _mean("whole rows: conservative config / seed, geometric mean", 6.9, whole, over_seed("conservative")),
        _every_cell("conservative config / seed, every cell", 1.0, rows, over_seed("conservative")),
        _rescues(whole),
        _mean(
            "whole rows, N ≤ 512: torch.compile / seed, geometric mean",
            1.2,
            [row for row in whole if columns(row) <= 512],
            over_seed("compile"),
        ),
        _mean(
            "tiled columns, N = 2048-4096, bf16: torch.compile / fastest seed, geometric mean",
            0.8,
            tiled,
            over_fastest("compile"),
            remark="" if first is None else f"the first seed alone: {number(first)}",
        ),
    ]


def row_findings(rows: Sequence[Row]) -> list[Finding]:
    """Goals for reductions over rows, but for kernels that compute more than what they are compared with."""
    rows = [row for row in rows if row.kernel not in COMPUTED_TWICE]
    means = [
        _mean(
            f"{short}: torch.compile / seed, geometric mean",
            wanted,
            [row for row in rows if row.dtype == dtype],
            over_seed("compile"),
        )
        for dtype, short, wanted in (("bfloat16", "bf16", 1.05), ("float32", "fp32", 1.03))
    ]
    return [*means, _every_kernel("torch.compile / seed, every kernel and dtype", 0.95, rows, over_seed("compile"))]


def matmul_findings(rows: Sequence[Row]) -> list[Finding]:
    half = [row for row in rows if row.dtype == "bfloat16"]
    return [_mean("bf16: cuBLAS (eager) / seed, geometric mean", 0.85, half, over_seed("eager"))]


def findings(suite: str, rows: Sequence[Row], copy_gb_per_s: float | None) -> list[Finding]:
    """The goals of one suite on one device; ``rows`` is empty where nothing was measured."""
    special: dict[str, Callable[[Sequence[Row]], list[Finding]]] = {
        "epilogue": epilogue_findings,
        "reductions": row_findings,
        "transfer": row_findings,
        "matmul": matmul_findings,
    }
    found = special[suite](rows) if suite in special else []
    if suite in MEMORY_SUITES:
        goal = "share of the bandwidth of a copy, every kernel and dtype, large cells"
        found.append(_every_kernel(goal, 0.9, rows, share_of(copy_gb_per_s), percent=True))
    return [*found, _all_run(rows, "the first seed runs and is right, every cell")]


def dispatch_findings(tables: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Goals of benchmarks/dispatch.py: the limit over the time, for the number of tensors where that is least."""
    found = []
    for table in tables:
        for name, limits in table["goals"].items():
            measured = {row["label"]: row["microseconds"] for row in table["rows"]}[name]
            pairs = list(zip(measured, limits, strict=True))
            texts = [f"{value:.2f} of {limit:.2f}" for value, limit in pairs]
            found.append(
                Finding(
                    goal=f"{name}, {table['title']}: µs allowed / µs measured",
                    wanted=1.0,
                    measured=min(limit / value for value, limit in pairs),
                    cells=len(pairs),
                    remark=f"µs: {', '.join(texts)}",
                )
            )
    return found


def table(header: Sequence[str], alignment: str, lines: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown; ``alignment`` has an ``l`` or ``r`` for each column."""
    rule = [{"l": ":--", "r": "--:"}[side] for side in alignment]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |" for cells in (header, rule, *lines)]
