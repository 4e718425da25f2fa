"""Default configs beside those that the effort ``full`` finds, over a sample of all timed cells.

    python benchmarks/tuned_sample.py search --out FILE.jsonl [--part K/N | --cells NAME:AT,...] [--tuned S] [--seconds S]
    python benchmarks/tuned_sample.py time FILE.jsonl ... --out FILE.jsonl [--seconds S]

``search`` runs a few searches side by side, which measure in turns. ``time`` compiles the default and the found config of
each cell, and times both in turn while no other process uses the GPU. The sample is ``--count`` cells of all suites in a
random order that is always the same, and ``--part 1/3`` takes every third. ``--cells adapter:0`` names cells instead, by
their place among those of a kernel, and ``adapter:0:triton`` a backend too. Each row is written when it is there. A
command that runs again goes on after the rows of its file; cells that failed are tried once more.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402

import helion  # noqa: E402
from benchmarks.cells import Cell, inputs, timed_cells  # noqa: E402
from benchmarks.timing import GraphTimer  # noqa: E402
from benchmarks.turns import in_turn, turn  # noqa: E402
from helion.settings import Settings  # noqa: E402

OUT = ROOT / "build" / "tuned-sample.jsonl"
#: Suites of whole kernels that no rule was fitted to.
SUITES = ("unseen", "workloads", "mechanisms")
COUNT = 60
#: Seconds between two lines of a process that has the GPU.
TURN = 30.0

Row = dict[str, Any]


def by_name(cells: Iterable[Cell]) -> dict[str, Cell]:
    """Return the cells by kernel and place among those of the kernel."""
    found: dict[str, Cell] = {}
    seen: dict[str, int] = {}
    for cell in cells:
        at = seen.get(cell.kernel, 0)
        seen[cell.kernel] = at + 1
        found[f"{cell.kernel}:{at}"] = cell
    return found


def sample(names: Sequence[str], count: int, part: str) -> list[str]:
    """Return every Nth of ``count`` names in an order that is always the same."""
    mixed = random.Random(0).sample(sorted(names), min(count, len(names)))
    first, step = map(int, part.split("/"))
    return mixed[first - 1 :: step]


def bound_of(cell: Cell, backend: str, args: tuple[Any, ...]) -> Any:
    """Return the kernel of a cell bound for a backend, or for the default one if its name is empty."""
    settings = cell.function.settings.to_dict() | ({"backend": backend} if backend else {})
    return helion.kernel(cell.function.fn, settings=Settings(**settings)).bind(args)


def searched(name: str, cell: Cell, backend: str, tuned: float) -> Row:
    """Return the default config of a cell, and the one that is found in so many seconds."""
    args = inputs(cell, "cuda")
    bound = bound_of(cell, backend, args)
    default = bound.default_config()
    found = bound.autotune(args, effort="full", seconds=tuned, progress=False, random_seed=1)
    configs = {"default": default, "tuned": bound.config_spec.normalize(found)}
    return {
        "name": name,
        "kernel": cell.kernel,
        "case": cell.case,
        "dtype": cell.dtype,
        "backend": bound.backend,
        "tuned_seconds": tuned,
        "configs": {which: bound.short_config(config).to_dict() for which, config in configs.items()},
    }


def timed(row: Mapping[str, Any], cell: Cell) -> Row:
    """Return the row with microseconds of all its configs; a default that was found again has one time."""
    args = inputs(cell, "cuda")
    bound = bound_of(cell, row["backend"], args)
    functions = {
        which: functools.partial(bound.compile_config(bound.config_spec.normalize(config)), *args)
        for which, config in row["configs"].items()
    }
    for function in functions.values():
        function()
    torch.cuda.synchronize()
    with turn():
        times, failures = GraphTimer(31).time(functions)
    found = {which: each.median for which, each in times.items()}
    if row["configs"]["default"] == row["configs"]["tuned"] and {"default", "tuned"} <= set(found):
        found["default"] = found["tuned"] = min(found["default"], found["tuned"])
    device = torch.cuda.get_device_name()
    return {**row, "device": device, "microseconds": found, **({"failures": failures} if failures else {})}


def ratios(rows: Iterable[Mapping[str, Any]]) -> list[float]:
    """Return the found config's times over the default's, at most 1: a search begins with the default."""
    both = [row["microseconds"] for row in rows if {"default", "tuned"} <= set(row.get("microseconds", ()))]
    return [min(1.0, times["tuned"] / times["default"]) for times in both]


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return one line about all rows."""
    found = ratios(rows)
    if not found:
        return "nothing was timed"
    mean = math.exp(sum(map(math.log, found)) / len(found))
    return f"tuned / default: geometric mean {mean:.3f}, least {min(found):.2f} of {len(found)} cells"


def done(path: Path) -> list[Row]:
    """Return the whole rows of a file without those that failed, none where there is no file."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("}\n")]
    return [row for row in rows if "why" not in row]


def left(jobs: Mapping[str, Sequence[str]], rows: Iterable[Mapping[str, Any]]) -> dict[str, Sequence[str]]:
    """Return the jobs whose cells have no row, by their names without or with a backend."""
    had = {name for row in rows for name in (row["name"], f"{row['name']}:{row['backend']}")}
    return {name: job for name, job in jobs.items() if name not in had}


def _jobs(options: argparse.Namespace, names: Mapping[str, Cell]) -> dict[str, list[str]]:
    """Return the command of each process by the name of its cell."""
    own = [sys.executable, __file__]
    if options.what == "time":
        rows = [json.loads(line) for file in options.files for line in file.read_text().splitlines()]
        return {f"{row['name']}:{row['backend']}": [*own, "one", json.dumps(row)] for row in rows if "configs" in row}
    chosen = options.cells or sample([*names], options.count, options.part)
    return {name: [*own, "one", name, "--tuned", str(options.tuned)] for name in chosen}


def _one(what: str, tuned: float) -> Row:
    names = _named()
    if what.startswith("{"):
        row = json.loads(what)
        return timed(row, names[row["name"]])
    kernel, at, *backend = what.split(":")
    name = f"{kernel}:{at}"
    return searched(name, names[name], "".join(backend), tuned)


@functools.cache
def _named() -> dict[str, Cell]:
    return by_name(cell for cell in timed_cells() if cell.suite in SUITES)


def _rows(jobs: Mapping[str, Sequence[str]], options: argparse.Namespace) -> Iterator[Row]:
    for name, row in in_turn(jobs, at_once=options.at_once, turn_seconds=TURN, seconds=options.seconds):
        yield {"name": name, **row}


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("search", "time", "one"))
    parser.add_argument("files", nargs="*", type=Path, help="results of searches to time")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--cells", type=lambda text: text.split(","), help="by name, not of the sample")
    parser.add_argument("--count", type=int, default=COUNT, help="cells of the sample")
    parser.add_argument("--part", default="1/1", help="K/N: every Nth cell of the sample from the Kth on")
    parser.add_argument("--tuned", type=float, default=60.0, help="seconds of a search")
    parser.add_argument("--seconds", type=float, default=600.0, help="after which processes are ended")
    parser.add_argument("--at-once", type=int, default=6, help="processes side by side")
    options = parser.parse_args(arguments)
    torch.set_float32_matmul_precision("high")
    if options.what == "one":
        print(json.dumps(_one(str(options.files[0]), options.tuned)), flush=True)
        return 0
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = done(options.out)
    jobs = left(_jobs(options, _named()), rows)
    with options.out.open("a") as file:
        for row in _rows(jobs, options):
            rows.append(row)
            print(json.dumps(row), file=file, flush=True)
            print(row.get("name"), row.get("microseconds", row.get("configs", row.get("why"))), flush=True)
    print(summary(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
