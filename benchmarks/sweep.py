"""Times many configs of the cells of benchmarks/cells.py on a GPU, and says how far the first seeds are from the best.

    python benchmarks/sweep.py --score                          from what is kept; needs no GPU
    python benchmarks/sweep.py --suites reductions --kernels softmax --extents 4096 \\
        --grid '{"block_sizes": [[1], [2]], "num_warps": [4, 8]}'    times all combinations, and keeps them
    python benchmarks/sweep.py --suites holdout --sample 24 --seconds 140   random mutations of the seeds
    python benchmarks/sweep.py --suites holdout,workloads --sample 40 --cells 1 --target h100 --draw FILE   draws them, on a CPU
    python benchmarks/sweep.py --drawn FILE --seconds 500 --out TSV         times configs that were drawn before

The file has a line per config: kernel, case, dtype, config as JSON, microseconds (device time with a cold L2 by CUDA
graph, the median of 11). Configs that fail, or are not right, have none.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import itertools
import json
import math
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from benchmarks.cells import Cell, inputs, swept_cells  # noqa: E402
from benchmarks.seeds import SUITES, Variants, bound_of, checked, chosen_cells, least_bytes  # noqa: E402
from benchmarks.timing import LEAST_REPETITIONS, GraphTimer, Timer  # noqa: E402
from helion import Config, exc  # noqa: E402
from helion._compiler.facts.records import KernelFacts, Lazy, RewrittenFacts  # noqa: E402
from helion.autotuner.search.domain import SpaceDomain  # noqa: E402
from helion.autotuner.search.time_model import PredictedTime  # noqa: E402
from helion.autotuner.space import Field  # noqa: E402

KEPT = ROOT / "benchmarks" / "results" / "nvidia-h200-sweeps.tsv"
#: What ``--sample`` gave for families that no rule and no prediction was made for.
SAMPLES = ROOT / "benchmarks" / "results" / "nvidia-h200-samples.tsv"
#: The same of kernels that predicted times are judged by: nothing is fitted to them.
HOLDOUT = ROOT / "benchmarks" / "results" / "nvidia-h200-holdout.tsv"
#: The device of these files: torch 2.11 with CUDA 13.0, Triton 3.6, 2026-11-20, the samples 22, the last 23.
KEPT_TARGET = "h200"
#: Samples of an H200 around later seeds: torch 2.11, CUDA 13.0, Triton 3.6, 2026-11-30. Predictions are judged by them too.
RECENT = ROOT / "benchmarks" / "results" / "nvidia-h200-recent-samples.tsv"
#: Samples of an H200 of the kernels of benchmarks/unfitted: torch 2.11, CUDA 13.0, Triton 3.6, 2026-11-30.
UNFITTED = ROOT / "benchmarks" / "results" / "nvidia-h200-unfitted-samples.tsv"
#: Samples of an H100, one cell of each of 72 kernels: torch 2.11 with CUDA 13.0, Triton 3.6, 2026-11-28. Nothing is
#: fitted to them: they judge predictions on a GPU that the fit has not seen.
OTHER_SAMPLES = ROOT / "benchmarks" / "results" / "nvidia-h100-samples.tsv"
OTHER_TARGET = "h100"
#: Of the time that is predicted for the first seed, what a sampled config may take; of its chance to spill; and mutations
#: that are drawn for each config that is wanted.
_HOPELESS, _SPILLS, _DRAWS = 6.0, 0.5, 40
#: Processes that compile, and configs that one compiles in a row. Each process has the inputs of a cell on the device.
_WORKERS, _AT_ONCE = 14, 3
#: Of the seconds for a sampled sweep, what compiling may take.
_COMPILING = 0.65


def measured_facts(facts: KernelFacts) -> KernelFacts:
    """Return facts of the code that all kept times are of.

    Rows of windows did not share loads, and no reduction ran after its loop.
    """
    if not facts.late_reductions and not facts.row_windows:
        return facts
    flat = facts.flat.value if facts.flat is not None else None
    if flat is not None:
        flat = dataclasses.replace(flat, facts=measured_facts(flat.facts))
    rewritten = {key: Lazy(functools.partial(_measured, each)) for key, each in facts.rewritten.items()}
    return dataclasses.replace(facts, late_reductions=(), row_windows=(), flat=Lazy.of(flat), rewritten=rewritten)


def _measured(after: Lazy[RewrittenFacts | None]) -> RewrittenFacts | None:
    found = after.value
    return None if found is None else dataclasses.replace(found, facts=measured_facts(found.facts))


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
    for cell in swept_cells():
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


def sampled(
    cell: Cell,
    count: int,
    on: str = KEPT_TARGET,
    starts: Sequence[Config] | None = None,
    moves: Callable[[Field], bool] = lambda field: True,
) -> list[Mapping[str, Any]]:
    """The seeds, and mutations of them one after another, so that all distances occur; the same in every process.

    What is predicted to take ``_HOPELESS`` of the first seed's time, to spill or not to fit is left out. ``starts`` are
    kept and mutated instead of the seeds. Mutations change fields that ``moves`` accepts.
    """
    bound = cell.function.bind(cell.args, target=on)
    model = PredictedTime(bound._analysis.predict)
    seeds = [seed.config for seed in bound.seeds] or [bound.default_config()]
    domain = SpaceDomain(bound.config_spec, model, seeds, moves=moves)
    rng, found = random.Random(repr(cell.key)), dict.fromkeys(seeds[: count // 3] if starts is None else starts)
    slowest = model.log_time(next(iter(found))) + math.log(_HOPELESS)
    for _ in range(_DRAWS * count):
        if len(found) >= count:
            break
        config = domain.mutated(rng.choice(list(found)), rng)
        if config and model.log_time(config) < slowest and model.predicted(config).spill_risk < _SPILLS:
            found[config] = None
    return [dict(config) for config in found]


def draw(indices: Iterable[int], count: int, on: str) -> list[dict[str, Any]]:
    """Return the sampled configs of each cell, as values for JSON."""
    cells = _cells()
    return [
        {"cell": list(cells[index].key), "configs": [dict(config) for config in sampled(cells[index], count, on)]}
        for index in indices
    ]


def drawn(path: Path) -> dict[int, list[Mapping[str, Any]]]:
    """Read the configs that ``draw`` gave, by the index of their cell."""
    indices = {cell.key: index for index, cell in enumerate(_cells())}
    return {indices[tuple(entry["cell"])]: entry["configs"] for entry in json.loads(path.read_text())}


def in_turns(cells: Sequence[Cell], indices: Iterable[int], most: int | None = None) -> list[int]:
    """Return the first cell of each kernel, then the second ones, at most ``most`` of each."""
    seen: collections.Counter[str] = collections.Counter()
    turns = []
    for index in indices:
        turns.append((seen[cells[index].kernel], index))
        seen[cells[index].kernel] += 1
    return [index for turn, index in sorted(turns) if most is None or turn < most]


@functools.cache
def _cells() -> list[Cell]:
    return swept_cells()


def launched(index: int, configs: Sequence[Mapping[str, Any]]) -> tuple[int, list[Mapping[str, Any]]]:
    """In a process of its own: the configs that run, whose binaries the disk caches then have."""
    torch.set_float32_matmul_precision("high")
    cell, running = _cells()[index], []
    for config in configs:
        with contextlib.suppress(Exception):  # of the compiler or the driver: such a config has no time
            args = inputs(cell, "cuda")
            cell.function.bind(args).compile_config(config)(*args)
            torch.cuda.synchronize()
            running.append(config)
    torch.cuda.empty_cache()  # the other processes need the memory
    return index, running


def prepared(chosen: Mapping[int, Sequence[Mapping[str, Any]]], seconds: float) -> dict[int, list[Mapping[str, Any]]]:
    """The configs of each cell that were compiled and ran within the time, several cells at once."""
    found: dict[int, list[Mapping[str, Any]]] = {index: [] for index in chosen}
    tasks = [
        (index, configs[at : at + _AT_ONCE])
        for index, configs in chosen.items()
        for at in range(0, len(configs), _AT_ONCE)
    ]
    with multiprocessing.get_context("spawn").Pool(min(_WORKERS, os.cpu_count() or 1)) as pool:
        waiting = [pool.apply_async(launched, task) for task in tasks]
        end = time.monotonic() + seconds
        for one in waiting:
            with contextlib.suppress(multiprocessing.TimeoutError):
                index, running = one.get(max(0.0, end - time.monotonic()))
                found[index] += running
    return found


def swept(cell: Cell, args: tuple[Any, ...], wanted: Iterable[Mapping[str, Any]], timer: Timer) -> Iterator[Timed]:
    """The configs that are legal, run and are right."""
    bound = cell.function.bind(args)
    functions, configs = {}, {}
    for at, config in enumerate(wanted):
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
    parser.add_argument("--sample", type=int, default=0, help="configs of each cell around its seeds")
    parser.add_argument(
        "--seconds", type=float, default=150.0, help="for a sampled sweep; what is left then is not timed"
    )
    parser.add_argument("--cells", type=int, help="sampled cells of each kernel, at most")
    parser.add_argument(
        "--target", default=KEPT_TARGET, help="the GPU whose seeds and predictions a sample starts from"
    )
    parser.add_argument("--draw", type=Path, help="write the sample to this file, and time nothing")
    parser.add_argument("--drawn", type=Path, help="time the sample of this file")
    parser.add_argument("--out", type=Path, default=KEPT, help="the file to score, or to add to")
    options = parser.parse_args()
    if options.score:
        print(text_of(scores(parse(options.out.read_text()))))
        return 0
    if not options.grid and not options.sample and options.drawn is None:
        parser.error("no configs: give --grid, --sample or --drawn, or --score for those that are kept")
    cells = _cells()
    if options.draw is not None:
        indices = in_turns(cells, chosen_cells(options, cells), options.cells)
        options.draw.write_text(json.dumps(draw(indices, options.sample, options.target)))
        return 0
    if not torch.cuda.is_available():
        print("not measured: torch sees no GPU", file=sys.stderr)
        return 1
    torch.set_float32_matmul_precision("high")
    begin = time.monotonic()
    if options.sample or options.drawn is not None:
        samples = (
            drawn(options.drawn)
            if options.drawn is not None
            else {
                index: sampled(cells[index], options.sample, options.target)
                for index in in_turns(cells, chosen_cells(options, cells), options.cells)
            }
        )
        chosen = prepared(samples, options.seconds * _COMPILING - (time.monotonic() - begin))
    else:
        chosen = {index: list(combinations(options.grid)) for index in chosen_cells(options, cells)}
    timer = GraphTimer(LEAST_REPETITIONS)
    for index, configs in chosen.items():
        if not options.grid and time.monotonic() - begin > options.seconds:
            break
        rows = list(swept(cells[index], inputs(cells[index], "cuda"), configs, timer))
        with options.out.open("a") as file:
            file.writelines(f"{row.text}\n" for row in rows)
        print(*(row.text for row in sorted(rows, key=lambda row: row.microseconds)[:5]), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
