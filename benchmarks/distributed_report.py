"""The section of docs/performance.md about several GPUs, of what `benchmarks/distributed.py` writes.

A file `benchmarks/results/DEVICE-distributed.jsonl` is its `distributed.jsonl`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
_Key = tuple[str, str, bool, int]
SUFFIX = "-distributed"
#: Bytes of an element of all products.
_ELEMENT_BYTES = 2
#: The variant that is the product without messages.
_ALONE = "cublas alone"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """All variants of one case and size: microseconds by variant. Calls in a graph are a cell of their own.

    ``alone`` has the time of the product by cuBLAS in the run of each variant: GPUs of two runs differ by a few percent.
    """

    case: str
    what: str
    graph: bool
    ranks: int
    times: Mapping[str, float]
    alone: Mapping[str, float]

    def best(self, *kinds: str) -> tuple[str, float] | None:
        """Return the fastest variant of these kinds, and its microseconds."""
        able = [(us, variant) for variant, us in self.times.items() if _kind(variant) in kinds]
        return (min(able)[1], min(able)[0]) if able else None


def _kind(variant: str) -> str:
    """Return whose variant it is: of a kernel under its default config or under another one, or of a library."""
    if variant == _ALONE or variant == "copy engine":
        return variant
    if "nccl" in variant:
        return "nccl"
    if "torch" in variant:
        return "torch"
    return "config" if re.search(r", \d|warps", variant) else "default"


def read(folder: Path) -> dict[str, list[Row]]:
    """Return the rows by device, of files that are called so."""
    files = sorted(folder.glob(f"*{SUFFIX}.jsonl"))
    return {f.stem.removesuffix(SUFFIX): [json.loads(line) for line in f.read_text().splitlines()] for f in files}


def cells(rows: Sequence[Row]) -> list[Cell]:
    """Return the cells in the order of their first rows."""
    found: dict[_Key, dict[str, Row]] = {}
    products: dict[_Key, dict[str | None, float]] = {}
    for row in rows:
        if row.get("us") is not None:
            part = f", {row['variant'].partition(',')[0]}" if row["case"] == "experts" else ""
            key = (row["case"], row["what"] + part, bool(row.get("graph")), row["ranks"])
            found.setdefault(key, {})[row["variant"]] = row
            if row["variant"] == _ALONE:
                products.setdefault(key, {})[row.get("date")] = row["us"]
    return [_cell(key, variants, products.get(key, {})) for key, variants in found.items()]


def _cell(key: _Key, variants: Mapping[str, Row], products: Mapping[str | None, float]) -> Cell:
    """Return a cell; ``products`` are the times of the product alone by date, of which the last stands for others."""
    case, what, graph, ranks = key
    times = {variant: row["us"] for variant, row in variants.items()}
    dates = {variant: row.get("date") for variant, row in variants.items()}
    alone = {variant: products.get(date, times[_ALONE]) for variant, date in dates.items() if products}
    return Cell(case=case, what=what, graph=graph, ranks=ranks, times=times, alone=alone)


def _sent_bytes(cell: Cell) -> int | None:
    """Return the fewest bytes that each rank sends for a product: its part of the sums, for an all-reduce twice."""
    sizes = re.fullmatch(r"(\d+) x (\d+) x (\d+)", cell.what)
    if sizes is None:
        return None
    rows, _, columns = map(int, sizes.groups())
    part = rows * columns * _ELEMENT_BYTES // cell.ranks
    return part * (cell.ranks - 1) * (2 if cell.case == "matmul_all_reduce" else 1)


def goals(cell: Cell, link_gb_per_s: float | None) -> Iterator[tuple[str, float, float]]:
    """Yield each goal of a cell: what is compared, the ratio of times, and the largest one wanted."""
    ours, nccl, torch = cell.best("default"), cell.best("nccl"), cell.best("torch")
    if ours is None:
        return
    absolute = cell.case == "experts" and cell.ranks == 2
    if nccl is not None and not absolute:
        small = cell.case == "all_reduce" and int(cell.what.split()[0]) <= 512
        yield "nccl", ours[1] / nccl[1], 0.6 if small else 0.55 if cell.case == "rms_norm" else 1.0
    if torch is not None and cell.case == "all_gather_matmul":
        yield "torch", ours[1] / torch[1], 1 / 0.97
    sent = _sent_bytes(cell)
    if sent is not None and link_gb_per_s:
        least = sent / link_gb_per_s / 1e3
        able = [variant for variant in cell.alone if _kind(variant) == "default"]
        if able:
            yield "bound", min(cell.times[each] / max(cell.alone[each], least) for each in able), 1 / 0.9
    if absolute:
        most = 85 if "dispatch" in ours[0] else 90
        yield f"{most} us", ours[1] / most, 1.0


def _link(found: Sequence[Cell]) -> float | None:
    """Return the bandwidth of the copy engine in GB/s."""
    times = [(int(cell.what.split()[0]), us) for cell in found if cell.case == "link" for us in cell.times.values()]
    return max((megabytes * 2**20 / us / 1e3 for megabytes, us in times), default=None)


def _line(cell: Cell, link: float | None) -> tuple[str, ...]:
    def text(*kinds: str) -> str:
        best = cell.best(*kinds)
        return "-" if best is None else f"{best[1]:.1f}"

    ours = cell.best("default")
    held = [f"{ratio:.2f} of {of}{'' if ratio <= most else ' (missed)'}" for of, ratio, most in goals(cell, link)]
    where = f"{cell.what}, in a graph" if cell.graph else cell.what
    name = "-" if ours is None else ours[0]
    return cell.case, where, text("default"), name, text("config"), text("nccl"), text("torch"), "; ".join(held)


def sections(by_device: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return the lines of the page about several GPUs: a section for each device and number of ranks."""
    lines: list[str] = []
    for device, rows in by_device.items():
        for ranks in sorted({row["ranks"] for row in rows}):
            lines += _section(device, ranks, [row for row in rows if row["ranks"] == ranks])
    return lines


def _section(device: str, ranks: int, rows: Sequence[Row]) -> list[str]:
    checks = [row for row in rows if "right" in row]
    wrong = [f"{row['case']}: {row.get('what', '')}" for row in checks if not row["right"]]
    failed = [
        f"{row['case']}, {row['what']}, {row['variant']}: {row['error']}"
        for row in rows
        if "variant" in row and "error" in row
    ]
    found = cells(rows)
    link = _link(found)
    held = [ratio <= most for cell in found for _, ratio, most in goals(cell, link)]
    start = next((row for row in rows if row["case"] == "start"), {"device": device, "torch": "-", "triton": "-"})
    lines = [f"## Several GPUs: {ranks} {start['device']}", ""]
    lines += [f"`benchmarks/distributed.py` with torch {start['torch']} and Triton {start['triton']}."]
    lines += [f"{len(checks)} checks, {len(wrong)} wrong. Of {len(held)} goals {sum(held)} are met."]
    lines += [f"Wrong: {'; '.join(wrong)}."] if wrong else []
    lines += [f"The copy engine sends {link:.0f} GB/s in each direction." if link else "The link was not measured."]
    lines += ["Microseconds of a call, the largest of all ranks, without NVLink multicast."]
    lines += ["The GPUs pause for 6 ms before each few calls, so that they are cool."]
    lines += ["Goals are held against the fastest kernel under its default config; -: not measured."]
    lines += ["The bound is the product by cuBLAS in the run of the kernel, or the bytes over the link.", ""]
    header = ("case", "size", "default", "variant", "best config", "nccl", "torch", "ratio of the default's time")
    body = [_line(cell, link) for cell in found if cell.case not in ("link", "pieces")]
    lines += [
        f"| {' | '.join(each)} |" for each in (header, [":--", ":--", "--:", ":--", "--:", "--:", "--:", ":--"], *body)
    ]
    notes = [*failed, *(_pieces(cell) for cell in found if cell.case == "pieces")]
    return [*lines, "", *(f"- {note}" for note in notes), *[""] * bool(notes)]


def _pieces(cell: Cell) -> str:
    """Return the times of what overlapped products are made of."""
    return f"{cell.what}: " + ", ".join(f"{variant} {us:.1f}" for variant, us in cell.times.items())
