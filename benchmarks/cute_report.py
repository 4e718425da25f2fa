"""The sections of matmuls of the cute backend in docs/performance.md, and their figures in README."""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.goals import number, table

Line = Mapping[str, Any]


def sections(times: Mapping[str, Sequence[Line]], goals: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the sections of devices: the goals of matmuls, and what benchmarks/cute.py measured."""
    lines: list[str] = []
    for device, rows in sorted(times.items()):
        lines += [f"## The cute backend, {device}", "", *goals.get(device, ())]
        lines += [
            'Default configs of `backend="cute"` beside torch\'s own kernels and the default of the Triton backend:'
        ]
        lines += [
            "device time with a cold L2, medians in µs; a ratio is torch's time over ours (`benchmarks/cute.py times`).",
            "",
        ]
        body = []
        for row in rows:
            times_us, other = row["us"], row["against"]
            figures = (times_us.get("cute"), times_us.get(other), row["ratio"], times_us.get("triton"))
            body.append((row["case"], other, *map(number, figures), f"`{row['seed']}`".replace("helion.Config", "")))
        header = ("product", "beside", "cute, µs", "beside it, µs", "ratio", "Triton, µs", "config")
        lines += [*table(header, "llrrrrl", body), ""]
        for against in dict.fromkeys(row["against"] for row in rows):
            ratios = [row["ratio"] for row in rows if row["against"] == against and row["ratio"]]
            mean = statistics.geometric_mean(ratios)
            lines += [f"Beside {against}: geometric mean {mean:.3f}, least {min(ratios):.3f}.", ""]
    return lines


#: What README says of the cute backend: the first word of a case, what it is beside, and both in words.
README_GROUPS = (
    ("bf16", "cublas", "bf16 matmuls", "cuBLAS"),
    ("fp8", "scaled_mm", "fp8 matmuls", "`torch._scaled_mm`"),
    ("", "compile", "matmuls with an elementwise epilogue", "torch.compile"),
    ("rows", "compile", "matmuls followed by a row reduction", "torch.compile"),
    ("blockwise", "scaled_mm", "fp8 matmuls with scales of blocks", "`torch._scaled_mm`"),
)
README_BEGIN, README_END = "<!-- figures: written by `make report` -->", "<!-- end of figures -->"


def readme_figures(times: Mapping[str, Sequence[Line]]) -> str:
    """Return the speed of the cute backend in README: all of a group, with its worst and its best case."""
    lines = []
    known = {word for word, *_ in README_GROUPS if word}
    for device, rows in sorted(times.items()):
        lines += [f"Untuned on {device}, as multiples of the other's speed:", ""]
        for word, against, what, beside in README_GROUPS:
            ratios = [
                row["ratio"]
                for row in rows
                if row["against"] == against and row["ratio"] and _is_of(row["case"].split()[0], word, known)
            ]
            if ratios:
                mean, low, high = statistics.geometric_mean(ratios), min(ratios), max(ratios)
                lines.append(
                    f"- {what}: {mean:.2f}x {beside} in the geometric mean of {len(ratios)}, {low:.2f}x to {high:.2f}x"
                )
        lines.append("")
    return "\n".join(lines).strip()


def _is_of(first: str, word: str, known: Collection[str]) -> bool:
    return first == word if word else first not in known


def with_figures(readme: str, times: Mapping[str, Sequence[Line]]) -> str:
    """Return README with new text between its marks."""
    before, _, rest = readme.partition(README_BEGIN)
    _, _, behind = rest.partition(README_END)
    return f"{before}{README_BEGIN}\n{readme_figures(times)}\n{README_END}{behind}"


def read(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of `benchmarks/cute.py times` by device, of files that are called so."""
    suffix = "-times"
    files = sorted(folder.glob(f"*{suffix}.json"))
    return {path.stem.removesuffix(suffix): json.loads(path.read_text()) for path in files}
