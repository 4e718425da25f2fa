"""The table of goals of row kernels, with what was measured, for ``benchmarks/row_report.py``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]
#: Columns and their least share of the copy and ratio to torch.compile: of rows that begin anywhere, which are no
#: multiples of so many columns, and of long ones.
LANES, LONG, LONG_SHARE, LONG_RATIO = 8, 32768, 0.90, 1.45
#: The same of gradients with sums over rows.
SUMS_SHARE, SUMS_RATIO = 0.90, 1.5
#: Milliseconds of a plan, its verification and its text, and seconds of a compilation.
PLAN_MS, COMPILE_S = 20.0, 2.0
#: Linear cross entropy with gradients: its size, ratio to torch.compile, and eager PyTorch's memory beside ours.
LINEAR_SIZE, LINEAR_RATIO, LINEAR_MEMORY = "8192x4096x128256", 1.2, 8.0


def table(
    lines: Sequence[Line],
    means: Sequence[float],
    mean: float,
    goals: tuple[float, float],
    others: Mapping[str, Sequence[Line]],
) -> Iterator[str]:
    """Yield the table of one device.

    ``means`` are the shares of kernels and types, ``mean`` that of all, ``goals`` theirs. ``others`` has the gradients, few
    rows, binaries, and linear cross entropy.
    """
    yield from ("| goal | wanted | measured | met |", "| :-- | :-- | :-- | :-- |")
    least, together = goals
    rows = [
        ("share of the copy, each kernel and dtype", f"{least:.2f}", *_of(means, least)),
        ("the same, all together", f"{together:.2f}", f"{mean:.3f}", mean >= together),
        *_long(lines),
        *_anywhere(lines),
        *_gradients(others["sums"]),
        *_few(others["few"]),
        *_linear(others["linear"]),
        *_compiled(others["binaries"]),
        *_right(lines),
    ]
    for name, wanted, measured, met in rows:
        yield f"| {name} | {wanted} | {measured} | {'yes' if met else 'no'} |"
    yield ""


Row = tuple[str, str, str, bool]


def _of(values: Sequence[float], least: float) -> tuple[str, bool]:
    reached = sum(value >= least for value in values)
    return f"{reached} of {len(values)}, lowest {min(values):.2f}", reached == len(values)


def _pair(name: str, shares: Sequence[float], ratios: Sequence[float], goals: tuple[float, float]) -> Iterator[Row]:
    share, ratio = goals
    if shares:
        yield f"share of the copy, {name}", f"{share:.2f}", *_of(shares, share)
    if ratios:
        yield f"torch.compile / ours, {name}", f"{ratio:.2f}", *_of(ratios, ratio)


def _key(line: Line) -> tuple[str, str, int, int]:
    return line["name"], line["type"], line["m"], line["n"]


def _last(lines: Sequence[Line], kind: str) -> dict[tuple[str, str, int, int], Line]:
    return {_key(line): line for line in lines if line.get("kind") == kind and not line.get("at")}


def _long(lines: Sequence[Line]) -> Iterator[Row]:
    cells = [cell for key, cell in _last(lines, "suite").items() if key[3] >= LONG]
    ratios = [cell["compile_us"] / cell["auto_us"] for cell in cells]
    yield from _pair(
        f"rows from {LONG} columns on", [cell["share"] for cell in cells], ratios, (LONG_SHARE, LONG_RATIO)
    )


def anywhere(lines: Sequence[Line]) -> dict[tuple[str, str, int, int], Line]:
    """Return the timed cells of long rows that begin anywhere, without gradients that have sums over rows."""
    return {
        key: line
        for key, line in _last(lines, "result").items()
        if key[3] % LANES and key[3] >= LONG and "us" in line and not key[0].endswith("norm_backward")
    }


def _anywhere(lines: Sequence[Line]) -> Iterator[Row]:
    cells = anywhere(lines)
    compiled = {key: line["us"] for key, line in _last(lines, "compile").items()}
    ratios = [compiled[key] / cell["us"] for key, cell in cells.items() if key in compiled]
    yield from _pair(
        "long rows that begin anywhere", [cell["share"] for cell in cells.values()], ratios, (LONG_SHARE, LONG_RATIO)
    )


def _gradients(cells: Sequence[Line]) -> Iterator[Row]:
    ratios = [cell["compile_us"] / cell["us"] for cell in cells if cell["compile_us"]]
    yield from _pair(
        "gradients with sums over rows", [cell["share"] for cell in cells], ratios, (SUMS_SHARE, SUMS_RATIO)
    )


def _few(cells: Sequence[Line]) -> Iterator[Row]:
    if not cells:
        return
    others = [
        min(cell[name] for name in ("triton_us", "compile_us") if name in cell) / cell["auto_us"] for cell in cells
    ]
    slower = sum(ratio < 1 / 1.05 for ratio in others)
    yield "launches of few rows that are over 5 % slower than another", "0", f"{slower} of {len(cells)}", not slower


def _linear(lines: Sequence[Line]) -> Iterator[Row]:
    for line in lines:
        if line["shape"] == LINEAR_SIZE and not line["failed"]:
            ratio = line["both"]["compile"] / line["both"]["helion"]
            memory = line["peak_mib"]["eager"] / line["peak_mib"]["helion"]
            yield f"torch.compile / ours, linear cross entropy {LINEAR_SIZE}", f"{LINEAR_RATIO:.1f}", f"{ratio:.2f}", ratio >= LINEAR_RATIO  # fmt: skip
            yield "its memory, eager / ours", f"{LINEAR_MEMORY:.0f}", f"{memory:.1f}", memory >= LINEAR_MEMORY


def _compiled(lines: Sequence[Line]) -> Iterator[Row]:
    found = [line for line in lines if "registers" in line]
    if not found:
        return
    plan, seconds = max(line["plan_ms"] for line in found), max(line["compile_s"] for line in found)
    spilled = sum(line["spill_bytes"] > 0 for line in found)
    yield "plan, verification and text, ms", f"{PLAN_MS:.0f}", f"{plan:.1f}", plan <= PLAN_MS
    yield "compilation, s", f"{COMPILE_S:.0f}", f"{seconds:.1f}", round(seconds, 1) <= COMPILE_S
    yield "binaries for Hopper and Blackwell that spill", "0", f"{spilled} of {len(found)}", not spilled


def _right(lines: Sequence[Line]) -> Iterator[Row]:
    """Yield the rows of checks: of each result, launch after launch, and by compute-sanitizer."""
    cells = _last(lines, "result").values()
    if cells:
        wrong, differ = (sum(not line[name] for line in cells) for name in ("ok", "same"))
        outside = sum(not line["guards"] for line in cells)
        yield "cells whose errors exceed their bound, or that write outside of tensors", "0", f"{wrong + outside} of {len(cells)}", not wrong + outside  # fmt: skip
        yield "cells whose results differ in four runs", "0", f"{differ} of {len(cells)}", not differ
    counted = [line for line in lines if line.get("kind") in ("lengths", "repeated")]
    if counted:
        total, differ = (sum(line[name] for line in counted) for name in ("launches", "wrong"))
        yield "launches of random sizes that differ", "0", f"{differ} of {total}", not differ
    checked = {line["form"]: line for line in lines if line.get("kind") == "sanitized"}
    if checked:
        bad = sum(line["errors"] for line in checked.values())
        yield f"errors of compute-sanitizer in {', '.join(sorted(checked))}", "0", str(bad), not bad
