"""Times many configs of the cells of benchmarks/cells.py on a GPU, and says how far the first seeds are from the best.

    python benchmarks/sweep.py --score                          from what is kept; needs no GPU
    python benchmarks/sweep.py --suites reductions --kernels softmax --extents 4096 \\
        --grid '{"block_sizes": [[1], [2]], "num_warps": [4, 8]}'    times all combinations, and keeps them

The file has a line per config: kernel, case, dtype, config as JSON, microseconds (device time with a cold L2 by CUDA
graph, the median of 11). Configs that fail, or are not right, have none.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from benchmarks.cells import Cell, inputs, timed_cells  # noqa: E402
from benchmarks.seeds import SUITES, Variants, bound_of, checked, chosen_cells, least_bytes  # noqa: E402
from benchmarks.timing import LEAST_REPETITIONS, GraphTimer, Timer  # noqa: E402
from helion import exc  # noqa: E402

KEPT = ROOT / "benchmarks" / "results" / "nvidia-h200-sweeps.tsv"
#: What the kept file was measured on: torch 2.11 with CUDA 13.0, Triton 3.6, 2026-11-20.
KEPT_TARGET = "h200"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timed:
    kernel: str
    case: str
    dtype: str
    config: Mapping[str, Any]
    microseconds: float

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kernel, self.case, self.dtype

    @property
    def text(self) -> str:
        return "\t".join((*self.key, json.dumps(self.config, separators=(",", ":")), f"{self.microseconds:.1f}"))


def parse(text: str) -> list[Timed]:
    found = []
    for line in text.splitlines():
        kernel, case, dtype, config, microseconds = line.split("\t")
        found.append(
            Timed(kernel=kernel, case=case, dtype=dtype, config=json.loads(config), microseconds=float(microseconds))
        )
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """The first seed's time over the best of ``configs``; None where the seed is not among them."""

    cell: Cell
    configs: int
    ratio: float | None


def scores(rows: Iterable[Timed], target: str = KEPT_TARGET) -> Iterator[Score]:
    """One for each cell with rows, in the order of the cells."""
    by_cell: dict[tuple[str, str, str], list[Timed]] = {}
    for row in rows:
        by_cell.setdefault(row.key, []).append(row)
    for cell in timed_cells():
        timed = by_cell.get(cell.key[1:])
        if timed is None:
            continue
        bound = cell.function.bind(cell.args, target=target)
        seed = bound.seeds[0].config
        best = min(row.microseconds for row in timed)
        mine = [row.microseconds for row in timed if bound.config_spec.normalize(row.config) == seed]
        yield Score(cell=cell, configs=len(timed), ratio=mine[0] / best if mine else None)


def combinations(grid: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def swept(cell: Cell, args: tuple[Any, ...], grid: Mapping[str, list[Any]], timer: Timer) -> Iterator[Timed]:
    """The configs of ``grid`` that are legal, run and are right."""
    bound = cell.function.bind(args)
    functions, configs = {}, {}
    for at, config in enumerate(combinations(grid)):
        try:
            functions[str(at)] = functools.partial(bound.compile_config(config), *args)
        except exc.InvalidConfig:
            continue
        configs[str(at)] = config
    made = Variants(functions=functions, configs={}, heuristic="", bytes=least_bytes(cell, args), flops=0)
    errors, _ = checked(cell, made, args)
    right = {name: functions[name] for name, error in errors.items() if error <= bound_of(args)}
    times, _ = timer.time(right)
    for name, value in times.items():
        yield Timed(
            kernel=cell.kernel, case=cell.case, dtype=cell.dtype, config=configs[name], microseconds=value.median
        )


def text_of(found: Iterable[Score]) -> str:
    """Geometric mean and worst of each kernel and dtype."""
    groups: dict[tuple[str, str], list[Score]] = {}
    for score in found:
        groups.setdefault((score.cell.kernel, score.cell.dtype), []).append(score)
    lines = []
    for (kernel, dtype), group in groups.items():
        known = [score.ratio for score in group if score.ratio is not None]
        mean = f"{math.exp(sum(map(math.log, known)) / len(known)):.3f}, at most {max(known):.2f}" if known else "-"
        configs = sum(score.configs for score in group)
        lines.append(f"{kernel} {dtype}: seed / best {mean}; {len(known)} of {len(group)} cells, {configs} configs")
    return "\n".join(lines)


def main() -> int:
    words = functools.partial(str.split, sep=",")
    parser = argparse.ArgumentParser(description="time many configs, and score the first seeds by them")
    parser.add_argument("--score", action="store_true", help="from the kept file, without a GPU")
    parser.add_argument("--suites", type=words, default=list(SUITES))
    parser.add_argument("--kernels", type=words, default=[])
    parser.add_argument("--dtypes", type=words, default=[])
    parser.add_argument("--extents", type=lambda text: list(map(int, text.split(","))), default=[])
    parser.add_argument("--grid", type=json.loads, default={}, help="JSON: the values of each config key")
    parser.add_argument("--out", type=Path, default=KEPT, help="the file to score, or to add to")
    options = parser.parse_args()
    if options.score:
        print(text_of(scores(parse(options.out.read_text()))))
        return 0
    if not options.grid:
        parser.error("what to time? give --grid, or --score for what is kept")
    if not torch.cuda.is_available():
        print("not measured: torch sees no GPU", file=sys.stderr)
        return 1
    torch.set_float32_matmul_precision("high")
    timer = GraphTimer(LEAST_REPETITIONS)
    cells = timed_cells()
    for index in chosen_cells(options):
        rows = list(swept(cells[index], inputs(cells[index], "cuda"), options.grid, timer))
        with options.out.open("a") as file:
            file.writelines(f"{row.text}\n" for row in rows)
        print(*(row.text for row in sorted(rows, key=lambda row: row.microseconds)[:5]), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
