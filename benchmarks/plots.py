"""Plots of the results of benchmarks/seeds.py; the one file here that needs matplotlib (the extra ``plot``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.goals import geometric_mean, over_seed, values_of
from benchmarks.seeds import Row

#: Dtype, its name in the legend, and one of the colours of Okabe and Ito, which colour-blind readers can tell apart.
DTYPES = (("bfloat16", "bf16", "#0072B2"), ("float16", "fp16", "#009E73"), ("float32", "fp32", "#D55E00"))
TICKS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)
#: Text stays text, and identifiers depend on nothing but the drawing.
STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "helion", "font.size": 9.0}


def lanes(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows by the label of their line in the plot: the kernel, or the case where there is one kernel only."""
    single = len({row.kernel for row in rows}) == 1
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.case if single else row.kernel, []).append(row)
    return found


def plot(rows: Sequence[Row], title: str, path: Path) -> None:
    """Write torch.compile / seed of every cell as a dot, and the geometric mean of a kernel and dtype as a bar.

    At least one row must have both times. The same rows give the same bytes with the same matplotlib.
    """
    groups = lanes(rows)
    present = [entry for entry in DTYPES if any(row.dtype == entry[0] for row in rows)]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.0, 0.9 + 0.36 * len(groups)), layout="constrained", facecolor="white")
        axes = figure.add_subplot()
        every = []
        for at, members in enumerate(groups.values()):
            for offset, (dtype, _, colour) in enumerate(present):
                values = values_of([row for row in members if row.dtype == dtype], over_seed("compile"))
                mean = geometric_mean(values)
                if mean is None:
                    continue
                every += values
                height = at + 0.22 * (offset - (len(present) - 1) / 2)
                axes.scatter(values, [height] * len(values), s=11, color=colour, alpha=0.5, linewidths=0)
                axes.scatter([mean], [height], s=70, color=colour, marker="|", linewidths=2)
        for _, name, colour in present:
            axes.scatter([], [], s=11, color=colour, label=name)
        axes.axvline(1.0, color="black", linewidth=0.8, zorder=0.9)
        axes.set_xscale("log")
        axes.set_xlim(min(0.7, *every) / 1.1, max(1.5, *every) * 1.1)
        axes.xaxis.set_major_locator(FixedLocator(TICKS))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_yticks(range(len(groups)), list(groups))
        axes.set_ylim(len(groups) - 0.4, -0.6)
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("torch.compile / seed (right of 1 the seed is faster; bar: geometric mean)")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, handletextpad=0.2)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    # Ends of lines carry blanks that some editors and tools take away.
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line.rstrip() for line in lines) + "\n")
