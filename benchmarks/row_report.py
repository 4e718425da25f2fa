"""The section of docs/performance.md about row kernels, of what `benchmarks/row_kernels.py` writes.

A file `benchmarks/results/cute/DEVICE-row-kernels.jsonl` has the lines of several runs; of equal cells the last one counts.
`row-binaries.jsonl` has what `benchmarks/row_binaries.py` writes, `row-misses.jsonl` what `benchmarks/row_misses.py` does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import row_goals

Line = Mapping[str, Any]
SUFFIX = "-row-kernels"
BINARIES, MISSES = "row-binaries", "row-misses"
LINEAR = "linear_cross_entropy"
PARTS = "linear-parts"
#: Share of the copy that each kernel and dtype should reach in the geometric mean, and all of them together.
LEAST, MEAN = 0.92, 0.95
#: Columns from which rows are long, their least share of the copy, and least ratio of torch.compile's time.
LONG, LONG_SHARE, LONG_RATIO = 32768, 0.90, 1.45
#: The same of sums over rows.
SUMS_SHARE, SUMS_RATIO = 0.90, 1.5
#: Threads of an SM that issue an instruction in each clock, its GHz under load, and the SMs of an H200.
ISSUED, CLOCK_GHZ, SMS = 128, 1.755, 132
#: Share of the time of a kernel from which issue explains it, and bytes of a row up to which its length does.
BOUND_BY_ISSUE, SHORT_ROW_BYTES = 0.5, 512
#: Instructions of the special function unit for an element that are worth a word.
SOME = 0.5
#: Time of a launch with few rows, beside the best other, from which a cell counts as slower.
SLOWER = 1.05
#: Share of the time that SMs without a row in the last round idle, from which it is worth a word.
IDLE = 0.01
#: Bytes that a kernel may spill for each block of rows, which explain no time.
FEW_SPILLS = 64


def read(folder: Path) -> dict[str, list[Line]]:
    """Return the lines of each device, in order."""
    found: dict[str, list[Line]] = {}
    for path in sorted(folder.glob(f"*{SUFFIX}.jsonl")):
        lines = [json.loads(text) for text in path.read_text().splitlines()]
        device = next((line["device"] for line in lines if line.get("kind") == "run"), "")
        found[device or path.name.removesuffix(f"{SUFFIX}.jsonl")] = lines
    for name in (MISSES, BINARIES, PARTS):
        if (path := folder / f"{name}.jsonl").exists():
            found[name] = [json.loads(text) for text in path.read_text().splitlines()]
    for path in sorted(folder.parent.glob("ops/*.json")):
        found[LINEAR] = [
            line for line in json.loads(path.read_text())["rows"] if line.get("name") == LINEAR
        ] or found.get(LINEAR, [])
    return found


def sections(by_device: Mapping[str, Sequence[Line]]) -> Iterator[str]:
    """Yield the lines of the section, none without cells of the suites."""
    for device, lines in by_device.items():
        if device in (MISSES, PARTS):
            continue
        if device in (BINARIES, LINEAR):
            yield from (_binaries if device == BINARIES else _linear)(lines)
            compiled = {each["shape"]: each["both"]["compile"] for each in lines if not each.get("failed", True)}
            yield from _parts(by_device.get(PARTS, ()), compiled) if device == LINEAR else ()
            continue
        cells = _last(line for line in lines if line.get("kind") == "suite")
        if cells:
            few = _last(line for line in lines if line.get("kind") == "few")
            others = {"sums": _sums(lines), "few": few, "linear": by_device.get(LINEAR, ())}
            yield from _device(device, lines, cells, {**others, "binaries": by_device.get(BINARIES, ())})
            yield from _misses(misses(lines), [line for line in by_device.get(MISSES, ()) if line["device"] == device])
            yield from _few(few)
            yield from _channels([line for line in lines if line.get("kind") == "channels"])
            yield from _any_length(lines)
            yield from _logs([line for line in lines if line.get("kind") == "logs"])


def _last(lines: Iterator[Line] | Sequence[Line]) -> list[Line]:
    return list({(line["name"], line["type"], line["m"], line["n"]): line for line in lines}.values())


def _sums(lines: Sequence[Line]) -> list[Line]:
    """Return the cells of gradients with sums over rows, with torch.compile's time if it was measured."""
    compiled = {
        (line["name"], line["type"], line["m"], line["n"]): line["us"]
        for line in lines
        if line.get("kind") == "compile"
    }
    timed = [
        line
        for line in lines
        if line.get("kind") == "result" and line["name"].endswith("_backward") and "us" in line and not line.get("at")
    ]
    found = _last([line for line in timed if line["name"] != "softmax_backward"])
    keys = [(line["name"], line["type"], line["m"], line["n"]) for line in found]
    return [{**line, "compile_us": compiled.get(key)} for line, key in zip(found, keys, strict=True)]


def misses(lines: Sequence[Line]) -> list[Line]:
    """Return the slowest cell of each kernel and type of the suites that misses its goal, and the gradients and rows that
    begin anywhere that do."""
    kernels: dict[tuple[str, str], list[Line]] = {}
    for cell in _last(line for line in lines if line.get("kind") == "suite"):
        kernels.setdefault((cell["name"], cell["type"]), []).append(cell)
    below = [found for found in kernels.values() if _mean([cell["share"] for cell in found]) < LEAST]
    slowest = [min(found, key=lambda cell: cell["share"]) for found in below]
    others = [cell for cell in _sums(lines) if cell["share"] < SUMS_SHARE]
    others += [cell for cell in row_goals.anywhere(lines).values() if cell["share"] < LONG_SHARE]
    return [*slowest, *others]


def _misses(cells: Sequence[Line], counts: Sequence[Line]) -> Iterator[str]:
    """Yield the table of cells that miss their share of the copy, with a reason for each."""
    known = {_key(line): line for line in counts}
    found = [(cell, known[_key(cell)]) for cell in cells if _key(cell) in known]
    if not found:
        return
    yield from (
        "### Cells below their goal, and why",
        "",
        "The slowest cell of each kernel and type of the suites below its goal. Gradients and long rows that begin anywhere",
        "follow that are below theirs. Instructions are those of the binary's loop over rows, by `benchmarks/row_misses.py`,",
        "per element; a program of Triton has them of all its loops. Issue is the time in which all SMs issue them, as a share",
        "of the measured time, for rows that are read once. A round is a row for each cluster that runs at once.",
        "",
        "| kernel | dtype | size | backend | share of copy | instructions | issue | reason |",
        "| :-- | :-- | :-- | :-- | --: | --: | --: | :-- |",
    )
    for cell, line in sorted(found, key=lambda pair: _key(pair[0])):
        issue = line["instructions"] * cell["m"] * cell["n"] / (SMS * ISSUED * CLOCK_GHZ * 1e3)
        us = cell.get("auto_us", cell.get("us"))
        yield (
            f"| {cell['name']} | {cell['type']} | {cell['m']} x {cell['n']} | {line['backend']} | {cell['share']:.3f} |"
            f" {line['instructions']:.1f} | {f'{issue / us:.2f}' if line['passes'] == 1 else '-'} | {_reason(cell, line, issue / us)} |"
        )
    yield ""


def _reason(cell: Line, line: Line, issue: float) -> str:
    """Return the mechanism that a cell's time follows from, by its counts."""
    row_bytes = cell["n"] * (2 if cell["type"] == "bfloat16" else 4)
    if cell["m"] < SMS:
        return f"{cell['m']} rows for {SMS} SMs, and a second kernel for their sums"
    if line.get("host"):
        return f"launches of torch after the kernel's: {line['host']} (measurement `losses_on_host`)"
    if line["passes"] > 1:
        return f"rows are read {line['passes']} times"
    if line["spill_bytes"] > FEW_SPILLS:
        return f"{line['spill_bytes']} bytes of registers spill"
    if issue >= BOUND_BY_ISSUE:
        special = f", {line['math']:.1f} of them of the special function unit" if line["math"] >= SOME else ""
        return f"issue of instructions{special}"
    if row_bytes <= SHORT_ROW_BYTES:
        return f"rows of {row_bytes} bytes: few bytes in flight for each reduction"
    rounds = line.get("rounds", 0.0)
    if rounds > 1 and (idle := 1 - rounds / math.ceil(rounds)) >= IDLE:
        return f"waits between the passes of a row; {rounds:.1f} rounds of rows, whose last one idles for {idle:.0%} of the time"
    if line["cluster"] > 1:
        return f"waits of clusters of {line['cluster']} CTAs, which do not cover all SMs"
    return "waits between the passes of a row"


def _key(line: Line) -> tuple[str, str, int, int]:
    return line["name"], line["type"], line["m"], line["n"]


def _few(cells: Sequence[Line]) -> Iterator[str]:
    """Yield the table of launches with fewer rows than SMs."""
    if not cells:
        return
    slower = [cell for cell in cells if cell["auto_us"] > SLOWER * _best_other(cell)]
    yield from (
        "### Few rows",
        "",
        f"{len(cells)} launches of 1 to 64 rows in bf16, by `benchmarks/row_kernels.py --kinds few`, in microseconds.",
        f"{len(slower)} are more than 5 % slower than torch.compile or Triton's default"
        + (": " + ", ".join(f"{c['name']} {c['m']} x {c['n']}" for c in slower) if slower else "")
        + ".",
        "",
        "| kernel | size | auto | backend | Triton | cute | torch.compile |",
        "| :-- | :-- | --: | :-- | --: | --: | --: |",
    )
    for cell in sorted(cells, key=_key):
        others = [f"{cell[name]:.1f}" if name in cell else "-" for name in ("triton_us", "cute_us", "compile_us")]
        size = f"{cell['m']} x {cell['n']}"
        yield f"| {cell['name']} | {size} | {cell['auto_us']:.1f} | {cell['backend']} | {' | '.join(others)} |"
    yield ""


def _best_other(cell: Line) -> float:
    return min(cell[name] for name in ("triton_us", "compile_us") if name in cell)


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _device(
    device: str, lines: Sequence[Line], cells: Sequence[Line], others: Mapping[str, Sequence[Line]]
) -> Iterator[str]:
    sums = others["sums"]
    kernels: dict[tuple[str, str], list[Line]] = {}
    for cell in cells:
        kernels.setdefault((cell["name"], cell["type"]), []).append(cell)
    means = {key: _mean([cell["share"] for cell in found]) for key, found in kernels.items()}
    below = [key for key, mean in means.items() if mean < LEAST]
    long = [cell for cell in cells if cell["n"] >= LONG and cell["backend"] == "cute"]
    slower = [cell for cell in cells if cell["auto_us"] > 1.05 * min(cell.get("triton_us", 1e9), 1e9)]
    yield from (
        f"## Row kernels, {device}",
        "",
        f"The suites *reductions* and *transfer* as `auto` runs them: {len(cells)} cells of 64 MB and more, by",
        "`benchmarks/row_kernels.py --kinds suite`. Each is timed in one process with a copy of the same bytes, Triton's",
        "default where `auto` takes the cute backend, and torch.compile. Shares of the copy's speed are geometric means.",
        "",
        "Lines of `benchmarks/results/cute` say what was checked: `result` between guards in four equal runs, `lengths` in launches",
        "of random sizes, `sanitized` under compute-sanitizer. Tests plant faults of exchanges (`test_row_kernels.py`, `test_row_ahead.py`,",
        "`test_row_sums.py`): each is found.",
        "",
        *row_goals.table(lines, [*means.values()], _mean([*means.values()]), (LEAST, MEAN), others),
        f"- {_held(means.values(), LEAST)} of {len(means)} kernels and dtypes reach {LEAST:.2f} of the copy; all together"
        f" {_mean(list(means.values())):.3f} (goal {MEAN:.2f}).",
        f"- Rows of {LONG} columns and more on the cute backend: {_held((c['share'] for c in long), LONG_SHARE)} of"
        f" {len(long)} cells reach {LONG_SHARE:.2f}, {_held((c['compile_us'] / c['auto_us'] for c in long), LONG_RATIO)}"
        f" are {LONG_RATIO} times as fast as torch.compile.",
        f"- {len(slower)} cells are more than 5 % slower than Triton's default"
        + (": " + ", ".join(_cell(cell) for cell in slower) if slower else "")
        + ".",
    )
    if sums:
        timed = [cell for cell in sums if cell["compile_us"]]
        yield (
            f"- Gradients with sums over rows: {_held((c['share'] for c in sums), SUMS_SHARE)} of {len(sums)} cells reach"
            f" {SUMS_SHARE:.2f} of the copy, {_held((c['compile_us'] / c['us'] for c in timed), SUMS_RATIO)} of"
            f" {len(timed)} are {SUMS_RATIO} times as fast as torch.compile."
        )
    yield from (
        "",
        "| kernel | dtype | cells | on cute | share of copy | lowest | torch.compile / auto | Triton / auto |",
    )
    yield "| :-- | :-- | --: | --: | --: | :-- | --: | --: |"
    for key, found in sorted(kernels.items()):
        lowest = min(found, key=lambda cell: cell["share"])
        ours = [cell for cell in found if "triton_us" in cell]
        triton = f"{_mean([cell['triton_us'] / cell['auto_us'] for cell in ours]):.2f}" if ours else "-"
        compiled = _mean([cell["compile_us"] / cell["auto_us"] for cell in found])
        mark = " (missed)" if key in below else ""
        yield (
            f"| {key[0]} | {key[1]} | {len(found)} | {len(ours)} | {means[key]:.3f}{mark} |"
            f" {lowest['share']:.3f}: {lowest['m']} x {lowest['n']} | {compiled:.2f} | {triton} |"
        )
    if sums:
        yield from ("", "| gradient | dtype | size | us | share of copy | torch.compile / ours |")
        yield "| :-- | :-- | :-- | --: | --: | --: |"
        for cell in sorted(sums, key=lambda cell: (cell["name"], cell["type"], cell["n"])):
            ratio = f"{cell['compile_us'] / cell['us']:.2f}" if cell["compile_us"] else "-"
            size = f"{cell['m']} x {cell['n']}"
            yield f"| {cell['name']} | {cell['type']} | {size} | {cell['us']:.1f} | {cell['share']:.3f} | {ratio} |"
    yield ""


def _channels(cells: Sequence[Line]) -> Iterator[str]:
    """Yield the table of group norms with weights, and of their gradients with sums of channels."""
    if not cells:
        return
    yield from (
        "### Rows of channels",
        "",
        "A group norm with weights, and its gradients with sums of each channel of an image, in microseconds, beside",
        "Triton's default and PyTorch's operator, which has the sums over images as well.",
        "",
        "| kernel | dtype | images, groups, channels, pixels | cute | Triton | PyTorch | share of copy |",
        "| :-- | :-- | :-- | --: | --: | --: | --: |",
    )
    for cell in cells:
        times = " | ".join(f"{cell[f'{name}_us']:.1f}" for name in ("cute", "triton", "torch"))
        shape, share = " x ".join(map(str, cell["shape"])), cell["copy_us"] / cell["cute_us"]
        yield f"| {cell['name']} | {cell['type']} | {shape} | {times} | {share:.3f} |"
    yield ""


def _any_length(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the table of kernels whose number of columns only the launch knows, beside those of one length."""
    checked = _last(line for line in lines if line.get("kind") == "lengths")
    timed = _last(line for line in lines if line.get("kind") == "buckets")
    if not timed:
        return
    right = [line for line in checked if line["ok"]]
    batches = [line for line in lines if line.get("kind") == "batches" and line["ok"]]
    yield from (
        "### Rows of any length",
        "",
        "With dynamic shapes one binary is for all rows of a bucket. It ran the first, the last and random lengths of buckets",
        f"between guards, then {sum(line['launches'] for line in checked)} launches in random order:"
        f" {len(right)} of {len(checked)} kernels and types are right."
        + (f" So are {len(batches)} calls with tensors of three and four dimensions." if batches else ""),
        "",
        "| kernel | dtype | size | us | of one length, us | share of copy |",
        "| :-- | :-- | :-- | --: | --: | --: |",
    )
    for cell in sorted(timed, key=lambda cell: (cell["name"], cell["type"], cell["n"])):
        size = f"{cell['m']} x {cell['n']}"
        yield (
            f"| {cell['name']} | {cell['type']} | {size} | {cell['us']:.1f} | {cell['known_us']:.1f} | {cell['share']:.3f} |"
        )
    yield ""


def _logs(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the table of errors of logarithms over every number of a type."""
    if not lines:
        return
    yield from (
        "### Logarithms of 16-bit elements",
        "",
        "Errors over every finite positive number of a type, by `benchmarks/row_logs.py`. Stored logarithms have a polynomial",
        "near 1; summed ones are one instruction. Rounding its argument changes a logarithm near 1 by up to 2.8e-3 to base 2 for",
        "bf16, and by 3.5e-4 for fp16.",
        "",
        "| logarithm | dtype | largest relative error | largest error to base 2, from 1/2 to 2 |",
        "| :-- | :-- | --: | --: |",
    )
    for line in {(line["name"], line["type"]): line for line in lines}.values():
        yield f"| {line['name']} | {line['type']} | {line['relative']:.1e} | {line['log2_near_one']:.1e} |"
    yield ""


def _binaries(lines: Sequence[Line]) -> Iterator[str]:
    found = [line for line in lines if "registers" in line]
    targets = sorted({line["target"] for line in found}, reverse=True)
    plan, seconds = max(line["plan_ms"] for line in found), max(line["compile_s"] for line in found)
    spilled = [line for line in found if line["spill_bytes"]]
    yield from (
        "## Row kernels, compiled",
        "",
        f"Default layouts in bf16 by `benchmarks/row_binaries.py`, for {' and '.join(targets)}. A plan, its verification and",
        f"its text take at most {plan:.1f} ms of the processor, a compilation {seconds:.1f} s.",
        f"{len(spilled)} of {len(found)} binaries spill, at most {max(line['spill_bytes'] for line in found)} bytes. Each cell"
        " has registers, spilled bytes, and instructions per element with all that is outside of loops.",
        "",
    )
    yield f"| kernel | size | {' | '.join(targets)} |"
    yield f"| :-- | :-- |{' :-- |' * len(targets)}"
    cells = {(line["name"], line["m"], line["n"], line["target"]): line for line in found}
    for name, m, n in dict.fromkeys((line["name"], line["m"], line["n"]) for line in lines):
        texts = [_binary(cells.get((name, m, n, target))) for target in targets]
        yield f"| {name} | {m} x {n} | {' | '.join(texts)} |"
    yield ""


def _linear(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the table of linear cross entropy: its time in products of the size of the logits."""
    timed = [line for line in lines if not line["failed"]]
    if not timed:
        return
    yield from (
        "## Linear cross entropy",
        "",
        "A forward pass without gradients is one product of tokens, features and classes, with statistics of its rows. With",
        "gradients there are three. Their rate bounds the speed: what is left to gain is the time beyond three forward",
        "passes. Memory is that of eager PyTorch, which stores the logits, beside ours.",
        "",
        "| size | forward, ms | with gradients, ms | in forward passes | TFLOP/s | torch.compile / ours | memory, eager / ours |",
        "| :-- | --: | --: | --: | --: | --: | --: |",
    )
    for line in timed:
        m, k, n = map(int, line["shape"].split("x"))
        forward, both, peak = line["forward"]["helion"], line["both"]["helion"], line["peak_mib"]
        yield (
            f"| {line['shape']} | {forward / 1e3:.2f} | {both / 1e3:.2f} | {both / forward:.2f} |"
            f" {6 * m * k * n / both / 1e6:.0f} | {line['both']['compile'] / both:.2f} |"
            f" {peak['eager'] / peak['helion']:.1f} |"
        )
    yield ""


def _parts(lines: Sequence[Line], compiled: Mapping[str, float]) -> Iterator[str]:
    """Yield the table of the kernels of one step of linear cross entropy with gradients, each timed in a short burst."""
    if not lines:
        return
    run, *parts = lines
    steps = run["of"] // run["rows"]
    burst = steps * sum(line["us"] for line in parts) / 1e3
    products = steps * sum(line["us"] for line in parts if line["cublas_us"]) / 1e3
    yield from (
        f"A step of {run['rows']} of the rows of {run['shape']} on {run['device']}, each kernel in a burst of five calls.",
        f"{steps} steps take {burst:.1f} ms in bursts, {products:.1f} of them in products, and {run['both_us'] / 1e3:.1f} ms in",
        "a row: under the power of long products the clock falls. What is no product bounds the gain that is left.",
        *_bound(run, parts, steps, burst, compiled),
        "",
        "| part | us | cuBLAS, us |",
        "| :-- | --: | --: |",
    )
    yield from (f"| {line['name']} | {line['us']:.0f} | {_us(line['cublas_us'])} |" for line in parts)
    yield ""


def _bound(
    run: Line, parts: Sequence[Line], steps: int, burst_ms: float, compiled: Mapping[str, float]
) -> Iterator[str]:
    """Yield the time of the three products alone at cuBLAS's speed, at the clock of the whole, beside torch.compile's."""
    if run["shape"] not in compiled:
        return
    alone = steps * sum(line["cublas_us"] or 0.0 for line in parts) / 1e3 * run["both_us"] / 1e3 / burst_ms
    whole = compiled[run["shape"]] / 1e3
    yield f"Three products of cuBLAS and nothing else would take {alone:.1f} ms at that clock. torch.compile takes {whole:.1f} ms:"
    yield f"{whole / alone:.2f} times as fast is the most that three products allow."


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _binary(line: Line | None) -> str:
    return "refused" if line is None else f"{line['registers']}, {line['spill_bytes']}, {line['instructions']}"


def _held(values: Any, least: float) -> int:
    return sum(value >= least for value in values)


def _cell(cell: Line) -> str:
    ratio = cell["auto_us"] / cell["triton_us"]
    return f"{cell['name']} {cell['type']} {cell['m']} x {cell['n']} ({ratio:.2f})"
