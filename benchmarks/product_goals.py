"""The table of goals of matmuls in the cute backend, with what was measured, for ``benchmarks/report.py``.

All ratios are of a library's time, or of torch.compile's, over ours. Of each case and config the last run counts.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Line = Mapping[str, Any]
#: Share of the matmuls among kernels of others, on Hopper and Blackwell.
CENSUS, EPILOGUES, EPILOGUES_LEAST = 0.85, 1.05, 0.95
#: Epilogues of elements, and the names of cases of benchmarks/cute.py that have them.
FUSED = ("bias_", "scale_", "relu_", "row_column", "swiglu")
#: Cases of benchmarks/cute_products.py with pitches that are no multiples of 16 bytes.
ODD, ODD_RATIO = ("odd_k", "odd_n", "fp16_odd", "four_bytes", "eight_bytes"), 1.5
FP8, BLOCKWISE, COPY, TF32, TF32_ROWS = 1.04, 1.0, 0.80, 0.95, 1.0
TF32_SQUARE = ("tf32", "tf32_2048")
#: Cases of benchmarks/cute_parts.py with groups of rows, or of K.
GROUPED = (
    "even_128",
    "few_rows_128",
    "giant_128",
    "turned_8",
    "turned_128",
    "expert_gradients_8",
    "expert_gradients_1k",
)
GROUPED += ("expert_gradients_128", "expert_gradients_few_128")
GROUPED_CUBLAS, GROUPED_TORCH, LAYER, FEW_TILES, ROWS, ROWS_LEAST = 1.05, 1.0, 1.3, 0.95, 1.2, 1.0
FEW = ("bf16 256x256x65536", "bf16 512x512x16384", "bf16 64x64x262144", "bf16 4096x4104x1000")
REASONS = (
    (
        "TF32",
        "The matrix unit takes TF32 along K alone. Clusters that reduce rows have B transposed by a kernel before the matmul."
        " In the matmul, shared memory would have to move more than it can during the MMAs.",
        "tf32_turning",
    ),
    (
        "whole rows, torch.compile",
        "The matmul alone bounds the ratio. A cluster holds its accumulators until rows are reduced, so that no MMAs of the next"
        " tile hide the epilogue, and clusters of 16 CTAs leave SMs idle.",
        "row_products",
    ),
    (
        "sizes that fill rounds of SMs in part, cuBLAS",
        "Tiles fill the last of few rounds in part. Few rows of a long B are bound by its way from memory to each CTA.",
        "uneven_rounds",
    ),
    (
        "fp8 with scales of rows",
        "Larger tiles have more accumulators than a thread has registers: sums of 256 elements along K are added outside of"
        " the matrix unit.",
        "fp8_tiles",
    ),
    (
        "fp8 with scales of blocks",
        "No other tile, cluster, order of tiles or number of accumulators is faster there, and two rounds of tiles leave SMs"
        " idle.",
        "block_scaled_tiles",
    ),
    (
        "int8 weights of few rows, share",
        "Sums over the weights, which multiply nothing, read them at little more than this share, and a few megabytes at less.",
        "few_rows_read",
    ),
    (
        "mixture of experts, torch compile",
        "The matmuls of few experts are most of the time, and torch has the same ones.",
        "moe_products",
    ),
    (
        "int4 weights of few rows, share",
        "A launch that does nothing takes almost half of a copy's time per direction of 8192x8192. Loads alone take longer than"
        " the share allows up to that size, and conversions add a fifth.",
        "streamed_weights",
    ),
)
"""Goals, why they are missed, and the rows of ``measurements.tsv`` that show it."""
Row = tuple[str, str, str, bool]


def read(folder: Path, times: Mapping[str, Sequence[Line]]) -> dict[str, list[str]]:
    """Return the table of each device: ``times`` are those of ``benchmarks/cute.py times``, and ``folder`` has all results."""
    return {device: _table(folder, device, lines) for device, lines in times.items()}


def _table(folder: Path, device: str, times: Sequence[Line]) -> list[str]:
    cute = folder / "cute"
    rows = [
        *_census(_lines(cute / "census.jsonl")),
        *_fused(times),
        *_products(_last(_lines(cute / f"{device}-products.jsonl"), "torch")),
        *_fp32_rows(folder / f"{device}-epilogue.json"),
        *_eight_bits(times),
        *_weights(_lines(cute / f"{device}-few-rows.jsonl")),
        *_grouped(_last(_lines(cute / f"{device}-parts.jsonl"), "cute")),
        *_layers(_lines(folder / "ops" / f"{device}-moe.jsonl")),
        *_few(times, _lines(cute / f"{device}-few-tiles.jsonl")),
        *_rows(times),
        *_whole_rows(folder / f"{device}-epilogue.json"),
    ]
    lines = [
        "Goals of matmuls: times of the other over ours, geometric means and lowest ones. Each case has its last run.",
        "",
    ]
    lines += ["| goal | wanted | measured | met |", "| :-- | --: | :-- | :-- |"]
    lines += [f"| {goal} | {wanted} | {measured} | {'yes' if met else 'no'} |" for goal, wanted, measured, met in rows]
    return [*lines, "", *_reasons(folder / "measurements.tsv", [goal for goal, *_, met in rows if not met])]


def _reasons(table: Path, missed: Sequence[str]) -> list[str]:
    """Return the reasons of missed goals that are known, from the rows of measurements that show them."""
    rows = [line.split("\t") for line in table.read_text().splitlines()]
    known = {name: (cells, result) for name, *_, cells, result in rows}
    lines = [
        f"- {goal}: {why} {known[name][0]}: {known[name][1]}."
        for goal, why, name in REASONS
        if any(each.startswith(goal) for each in missed)
    ]
    return ["Reasons of missed goals, with what was counted or measured:", "", *lines, ""] if lines else []


def _lines(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _last(lines: Sequence[Line], of: str) -> dict[str, Line]:
    """Return the last line of each case that has the time of a variant."""
    return {line["name"]: line for line in lines if of in line and "cute" in line}


def _ratios(ratios: Mapping[str, float], least: float) -> tuple[str, bool]:
    """Return the geometric mean of ratios and the lowest with its case, and whether it reaches ``least``."""
    name, low = min(ratios.items(), key=lambda each: each[1])
    mean = statistics.geometric_mean(ratios.values())
    return f"{mean:.2f}, lowest {low:.2f} ({name}), of {len(ratios)}", low >= least


def _over(lines: Mapping[str, Line], names: Sequence[str], other: str) -> dict[str, float]:
    return {name: lines[name][other] / lines[name]["cute"] for name in names if name in lines and other in lines[name]}


def _census(lines: Sequence[Line]) -> Iterator[Row]:
    for line in {each["target"]: each for each in lines}.values():
        share = line["taken"] / line["of"]
        measured = f"{share:.3f}, {line['taken']} of {line['of']} cases"
        yield f"share of matmuls that it takes, {line['target']}", f"{CENSUS}", measured, share >= CENSUS


def _fused(times: Sequence[Line]) -> Iterator[Row]:
    found = {each["case"]: each["ratio"] for each in times if each["case"].startswith(FUSED) and each["ratio"]}
    if found:
        measured, met = _ratios(found, EPILOGUES_LEAST)
        mean = statistics.geometric_mean(found.values())
        yield (
            "bf16 with epilogues, torch.compile",
            f"{EPILOGUES}; {EPILOGUES_LEAST}",
            measured,
            met and mean >= EPILOGUES,
        )


def _products(lines: Mapping[str, Line]) -> Iterator[Row]:
    for goal, names, least in (
        ("odd pitches, cuBLAS", ODD, ODD_RATIO),
        ("TF32 of 4096 and 2048, cuBLAS", TF32_SQUARE, TF32),
    ):
        if found := _over(lines, names, "torch"):
            yield goal, f"{least}", *_ratios(found, least)


def _fp32_rows(path: Path) -> Iterator[Row]:
    """Return the goal of fp32 matmuls with reductions of rows, which are computed in TF32."""
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    found = {
        f"{row['kernel']} {row['case']}": row["times"]["compile"]["median"] / row["times"]["seed"]["median"]
        for row in rows
        if row["dtype"] == "float32" and {"compile", "seed"} <= row["times"].keys()
    }
    if found:
        yield "TF32 with reductions of rows, torch.compile", f"{TF32_ROWS}", *_ratios(found, TF32_ROWS)


def _eight_bits(times: Sequence[Line]) -> Iterator[Row]:
    if by_row := {each["case"]: each["ratio"] for each in times if each["case"].startswith("fp8 ") and each["ratio"]}:
        measured, _ = _ratios(by_row, FP8)
        yield (
            "fp8 with scales of rows, `_scaled_mm`",
            f"{FP8}",
            measured,
            statistics.geometric_mean(by_row.values()) >= FP8,
        )
    if found := {
        each["case"]: each["ratio"] for each in times if each["case"].startswith("blockwise") and each["ratio"]
    }:
        yield "fp8 with scales of blocks, `_scaled_mm`", f"{BLOCKWISE}", *_ratios(found, BLOCKWISE)


def _sizes(line: Line) -> str:
    return f"{line['m']}x{line['n']}x{line['k']}"


def _weights(lines: Sequence[Line]) -> Iterator[Row]:
    """Yield the shares of the rates of a copy of the weights, and of sums over them, which read them alone. Of cases whose
    default was timed the last time of it counts, of others that of the fastest config."""
    for kind in ("int8", "int4"):
        copied, read = dict[str, float](), dict[str, float]()
        timed = [line for line in lines if "share" in line and "m" in line and line["name"].startswith(kind)]
        by_default = {_sizes(line): line for line in timed if line.get("default")}
        for each in timed:
            case = _sizes(each)
            line = by_default.get(case, each)
            copied[case] = max(copied.get(case, 0.0), line["share"])
            if sums := line.get("read", each.get("read")):
                read[case] = max(read.get(case, 0.0), sums / line["cute"])
        chosen = {case: line for case, line in by_default.items() if "auto" in line}
        if of_other := {case: line["triton"] / line["cute"] for case, line in chosen.items()}:
            yield f"{kind} weights of few rows, Triton where `auto` takes cute", "1.0", *_ratios(of_other, 1.0)
        if copied:
            yield f"{kind} weights of few rows, share of the copy", f"{COPY:.2f}", *_ratios(copied, COPY)
        if read:
            measured, _ = _ratios(read, COPY)
            yield (
                f"{kind} weights of few rows, time of sums over the weights",
                "-",
                measured,
                min(read.values()) >= COPY,
            )


def _grouped(lines: Mapping[str, Line]) -> Iterator[Row]:
    for goal, other, least in (
        ("groups, all calls of cuBLAS", "cublas", GROUPED_CUBLAS),
        ("groups, `torch._grouped_mm`", "grouped_mm", GROUPED_TORCH),
    ):
        if found := _over(lines, GROUPED, other):
            yield goal, f"{least}", *_ratios(found, least)


def _layers(lines: Sequence[Line]) -> Iterator[Row]:
    cells = {
        f"{each['tokens']} tokens, {each['experts']} experts": each["us"] for each in lines if each["name"] == "moe"
    }
    for other in ("eager", "compile"):
        if found := {name: us[other] / us["helion"] for name, us in cells.items() if other in us}:
            yield f"mixture of experts, torch {other}", f"{LAYER}", *_ratios(found, LAYER)


def _few(times: Sequence[Line], lines: Sequence[Line]) -> Iterator[Row]:
    found = {each["case"]: each["ratio"] for each in times if each["case"] in FEW and each["ratio"]}
    for each in lines:
        if each["kind"] in ("few", "odd") and not each["config"] and "cute" in each and "variant" not in each:
            name = "bf16 " + "x".join(map(str, each["shape"]))
            found |= {name: each["library"] / each["cute"]} if name in FEW else {}
    if found:
        yield "few tiles and odd rows, cuBLAS", f"{FEW_TILES}", *_ratios(found, FEW_TILES)
    turned = [
        each for each in lines if each["kind"] == "swapped" and not each["config"] and each.get("swapped") is not False
    ]
    if rows := {"x".join(map(str, each["shape"])): each["library"] / each["cute"] for each in turned if "cute" in each}:
        yield "rows that fill usual tiles badly, cuBLAS", f"{FEW_TILES}", *_ratios(rows, FEW_TILES)
    uneven = [each for each in lines if each["kind"] == "uneven" and not each["config"] and "cute" in each]
    if rows := {"x".join(map(str, each["shape"])): each["library"] / each["cute"] for each in uneven}:
        yield "sizes that fill rounds of SMs in part, cuBLAS", f"{FEW_TILES}", *_ratios(rows, FEW_TILES)


def _rows(times: Sequence[Line]) -> Iterator[Row]:
    found = {each["case"]: each["ratio"] for each in times if each["case"].startswith("rows ") and each["ratio"]}
    if found:
        measured, met = _ratios(found, ROWS_LEAST)
        yield (
            "epilogues of rows, torch.compile",
            f"{ROWS}; {ROWS_LEAST}",
            measured,
            met and statistics.geometric_mean(found.values()) >= ROWS,
        )


def _whole_rows(path: Path) -> Iterator[Row]:
    """Yield the ratios of the suite of whole rows."""
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    found = {
        f"{row['kernel']} {row['case']} {row['dtype']}": row["times"]["compile"]["median"]
        / row["times"]["seed"]["median"]
        for row in rows
        if {"compile", "seed"} <= {*row["times"]}
    }
    if found:
        measured, met = _ratios(found, ROWS_LEAST)
        mean = statistics.geometric_mean(found.values())
        yield "whole rows, torch.compile", f"{ROWS}; {ROWS_LEAST}", measured, met and mean >= ROWS
