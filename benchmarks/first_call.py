"""What seeds that are measured at the first call gain and cost, where nobody asked for tuning (`helion/runtime/tuning/first_call.py`).

    python benchmarks/first_call.py [--out FILE.json] [--cells N] [--seconds S]

Of the cells that `benchmarks/cells.py` times, those with a seed that is predicted to be faster than the one that would run;
no more than N, and as many of each kernel as of others. Each is called for the first time with the effort ``none``, again
with its binary on disk, with no effort, and with no effort and all binaries on disk: the differences are what measuring
takes with and without compiling. The configs with and without it are timed in turn. Each row is written when it is there.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402

import helion  # noqa: E402
from benchmarks.cells import Cell, inputs, timed_cells  # noqa: E402
from benchmarks.timing import GraphTimer, reason  # noqa: E402
from helion.runtime.tuning import first_call  # noqa: E402
from helion.settings import Settings  # noqa: E402

OUT = ROOT / "build" / "first-call.json"


def doubted(cells: Sequence[Cell], target: str | None = None) -> Iterator[Cell]:
    """Cells whose first call would measure seeds, the first of each kernel before the second ones."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        bound = cell.function.bind(cell.args, target=target)
        if first_call.contenders(bound.variant.of, bound.default_config()):
            found.setdefault(cell.kernel, []).append(cell)
    for at in range(max(map(len, found.values()), default=0)):
        yield from (each[at] for each in found.values() if at < len(each))


def measured(cell: Cell, timer: GraphTimer) -> dict[str, Any]:
    """Seconds of first calls, and microseconds of the configs that they chose."""
    args = inputs(cell, "cuda")
    row: dict[str, Any] = {"kernel": cell.kernel, "case": cell.case, "dtype": cell.dtype, "seconds": {}}
    configs = {}
    for name, effort in (("first", "none"), ("none", "none"), ("unset", None), ("unset, compiled", None)):
        settings = Settings(**{**cell.function.settings.to_dict(), "autotune_effort": effort})
        kernel = helion.kernel(cell.function.fn, settings=settings)
        torch.cuda.synchronize()
        began = time.perf_counter()
        kernel(*args)
        torch.cuda.synchronize()
        row["seconds"][name] = time.perf_counter() - began
        bound = kernel.bind(args)
        configs[name] = bound.config
    row["seeds"] = 1 + len(first_call.contenders(bound.variant.of, bound.default_config()))
    row["configs"] = {name: bound.short_config(configs[name]).to_dict() for name in ("none", "unset")}
    functions = {name: functools.partial(bound.compile_config(configs[name]), *args) for name in ("none", "unset")}
    times, failures = timer.time(functions)
    row["microseconds"] = {name: each.median for name, each in times.items()}
    return {**row, **({"failures": failures} if failures else {})}


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines about all of them: how many times as fast, and the seconds that measuring took."""
    timed = [row for row in rows if len(row.get("microseconds", {})) == 2]
    if not timed:
        return ["nothing was timed"]
    other = [row for row in timed if row["configs"]["none"] != row["configs"]["unset"]]
    ratios = [row["microseconds"]["none"] / row["microseconds"]["unset"] for row in other]
    gain = math.exp(sum(map(math.log, ratios)) / len(timed))
    least = min(ratios, default=1.0)
    lines = [f"{len(timed)} cells, {len(other)} run another seed: geometric mean {gain:.3f}, least {least:.3f}"]
    for name, than in (("unset", "none"), ("unset, compiled", "none")):
        taken = [row["seconds"][name] - row["seconds"][than] for row in timed]
        lines.append(f"seconds more with {name}: median {statistics.median(taken):.2f}, at most {max(taken):.2f}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--cells", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no other cell is begun")
    options = parser.parse_args(arguments)
    os.environ["HELION_SKIP_CACHE"] = "1"  # each call measures
    began, rows, timer = time.monotonic(), list[dict[str, Any]](), GraphTimer(51)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder  # nothing is compiled beforehand
        for cell, _ in zip(doubted(timed_cells(), "h200"), range(options.cells), strict=False):
            if time.monotonic() - began > options.seconds:
                break
            try:
                rows.append(measured(cell, timer))
            except Exception as error:  # it belongs into the table
                rows.append({"kernel": cell.kernel, "case": cell.case, "dtype": cell.dtype, "failure": reason(error)})
            options.out.parent.mkdir(parents=True, exist_ok=True)
            found = {"device": torch.cuda.get_device_name(), "cells": rows}
            options.out.write_text(json.dumps(found, indent=1) + "\n")
            print(json.dumps(rows[-1]), flush=True)
    print("\n".join(summary(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
