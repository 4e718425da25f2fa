"""First calls of all operators of ``helion.ops`` on a GPU: from empty caches, and in a later process.

    python benchmarks/ops_first_calls.py [--out FILE.json] [--workers 1 16] [--profile FILE.txt]

For each number of workers it starts with empty caches. So many processes take operators in turn, one cell of
``benchmarks/ops.py`` each, and call each operator once. Then one process calls them all again with what the first ones
cached, and another one after it: the former still times configs that had compiled too late. A row has the seconds of each
call and of the import of ``helion.ops``, and those from the first call of any process to the last.
``HELION_FIRST_CALL_SECONDS=0`` leaves out what first calls measure. ``--profile`` writes where the slow calls of one more
process spend their time.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import cProfile
import datetime
import json
import multiprocessing
import os
import pstats
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]
OUT = ROOT / "build" / "ops-first-calls.json"


#: Operators of several or long kernels, which processes take first, so that none begins one when others are done.
LONG = ("moe", "attention", "selective_scan", "gated_delta_rule", "latent_decode", "linear_cross_entropy", "sample")
#: Calls that take so many seconds are in the profile.
SLOW = 0.015


def call_all(names: list[str], profile: Path | None = None) -> dict[str, Any]:
    """Call operators once each; return the seconds of each, of the import, and the clock at the first and the last call."""
    import torch

    began = time.perf_counter()
    import helion.ops  # noqa: F401

    imported = time.perf_counter() - began
    from benchmarks import ops
    from benchmarks.timing import reason

    # a reference that is not called here: its import brings torch's compiler, whose objects a garbage collection visits
    ops.packed_reference = lambda: None
    by_name = {cell.name: cell for cell in ops.cells()}  # of each operator the last cell
    torch.empty(1, device="cuda")
    found: dict[str, Any] = {"import_s": round(imported, 3), "calls_s": {}, "failed": {}, "began": time.time()}
    for name in names:
        args = by_name[name].make()
        torch.cuda.synchronize()
        watched = cProfile.Profile() if profile else contextlib.nullcontext()
        began = time.perf_counter()
        try:
            with watched:
                by_name[name].op(*args)
                torch.cuda.synchronize()
        except Exception as error:  # an operator that fails belongs into the table
            found["failed"][name] = reason(error)
            continue
        found["calls_s"][name] = seconds = round(time.perf_counter() - began, 3)
        if profile and seconds > SLOW:
            with profile.open("a") as file:
                print(f"{name}: {seconds} s", file=file)
                pstats.Stats(watched, stream=file).sort_stats("cumulative").print_stats(45)
        del args
    return {**found, "ended": time.time()}


def names_of_cells() -> list[str]:
    """Return the names of the operators that have cells, in the order of their calls."""
    from benchmarks.ops import cells

    return list(dict.fromkeys((*LONG, *(cell.name for cell in cells()))))


def run(names: list[str], workers: int, profile: Path | None = None) -> dict[str, Any]:
    """Call operators in so many processes at once; return the results of all."""
    spawned = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=spawned) as pool:
        shares = list(pool.map(call_all, [[name] for name in names], [profile] * len(names)))
    calls: dict[str, float] = {}
    failed: dict[str, str] = {}
    for share in shares:
        calls |= share["calls_s"]
        failed |= share["failed"]
    return {
        "seconds": round(max(s["ended"] for s in shares) - min(s["began"] for s in shares), 2),
        "sum_s": round(sum(calls.values()), 2),
        "import_s": max(s["import_s"] for s in shares),
        "calls_s": dict(sorted(calls.items(), key=lambda item: -item[1])),
        "failed": failed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE.json")
    parser.add_argument("--workers", type=int, nargs="*", default=[16, 1], help="numbers of processes, in turn")
    parser.add_argument("--profile", type=Path, metavar="FILE.txt")
    options = parser.parse_args()
    spawned = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawned) as pool:
        names, device = pool.submit(names_of_cells).result(), pool.submit(device_name).result()
    found: dict[str, Any] = {"environment": {"device": device, "date": datetime.date.today().isoformat()}, "rows": []}
    for workers in options.workers:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["HELION_CACHE_DIR"], os.environ["TRITON_CACHE_DIR"] = f"{folder}/helion", f"{folder}/triton"
            os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has bytecode from the start
            last = [("profiled", 1)] if options.profile else []
            for caches, count in (("empty", workers), ("filled", 1), ("filled", 1), *last):
                watched = options.profile if caches == "profiled" else None
                row = {"caches": caches, "processes": count, **run(names, count, watched)}
                found["rows"].append(row)
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(found, indent=1) + "\n")
                print({**row, "calls_s": dict(list(row["calls_s"].items())[:8])}, flush=True)
    return 0


def device_name() -> str:
    import torch

    return torch.cuda.get_device_name()


if __name__ == "__main__":
    sys.exit(main())
