"""Times of many configs of each Triton kernel of benchmarks/unfitted, by which predicted times are judged.

    python benchmarks/unfitted_sample.py --draw DRAWN.json [--count N] [--target h200]        on a CPU
    python benchmarks/unfitted_sample.py --drawn DRAWN.json --out ROWS.tsv [--part K/N] [--seconds S]    on a GPU

The sample of a kernel is its default, its seeds, the leaders of a first call, and those mutations of these that are
farthest from each other. Processes take the
kernels from a common list, compile their configs side by side, and compare the results with the reference. When all have
ended, or after a part of the seconds, each has the GPU in turn and times its kernels. ROWS.tsv gets a line for each config, as
benchmarks/sweep.py writes them. Configs that fail or are wrong are added to ROWS.failed.jsonl.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402
import torch  # noqa: E402

from benchmarks.cells import Cell, inputs, unfitted_cells  # noqa: E402
from benchmarks.seeds import bound_of, relative_error  # noqa: E402
from benchmarks.sweep import KEPT_TARGET, Timed, sampled  # noqa: E402
from benchmarks.timing import LEAST_REPETITIONS, GraphTimer, Timer, reason  # noqa: E402
from benchmarks.turns import in_turn, turn  # noqa: E402
from benchmarks.unfitted_times import where  # noqa: E402
from helion import Config  # noqa: E402
from helion._support.nested import copy_tensors  # noqa: E402
from helion.autotuner import leaders  # noqa: E402
from helion.autotuner.search.domain import SpaceDomain  # noqa: E402
from helion.autotuner.search.time_model import PredictedTime  # noqa: E402
from helion.autotuner.space import Field  # noqa: E402

#: Configs of a kernel: in all, leaders among them, and mutations that are drawn for each one.
COUNT, LEADERS, POOL = 18, 3, 3
#: Of the seconds, the part for compiling; and processes side by side.
COMPILING, AT_ONCE = 0.68, 15
#: Seconds of one kernel's compilations, and between two lines of a process that has the GPU.
MOST, TURN = 40.0, 30.0

Row = dict[str, Any]
Configs = Sequence[Mapping[str, Any]]


def drawn(cell: Cell, count: int, on: str) -> list[Row]:
    """Return the sample of a kernel, as short configs."""
    bound = cell.function.bind(cell.args, target=on)
    analysis, default = bound._analysis, bound.default_config()
    model = PredictedTime(analysis.predict)
    seeds = [seed.config for seed in bound.seeds]
    domain = SpaceDomain(bound.config_spec, model, seeds, moves=_moves, scales=leaders.scale)
    error = model.predicted(default).error
    near = itertools.islice(leaders.leaders(domain, default, error, model.fits), LEADERS)
    chosen = list(dict.fromkeys([default, *seeds, *near]))[: count // 3]
    others = [Config(**each) for each in sampled(cell, POOL * count, on, chosen, _moves)]
    places = {config: np.array(domain.features(config)) for config in others}
    while len(chosen) < min(count, len(others)):
        chosen.append(max(others, key=lambda one: min(float(((places[one] - places[c]) ** 2).sum()) for c in chosen)))
    return [bound.short_config(config).to_dict() for config in chosen]


def _moves(field: Field) -> bool:
    """Return whether mutations change a field: those of leaders, and ways to access memory."""
    return leaders.is_moved(field) or field.key == "indexing"


def draw(count: int, on: str) -> dict[str, list[Row]]:
    """Return the samples by kernel, those with the longest code first: they compile for longest."""
    found = {
        cell.kernel: (drawn(cell, count, on), cell.function.bind(cell.args, target=on)) for cell in unfitted_cells()
    }
    texts = {name: len(bound.to_triton_code(configs[0])) for name, (configs, bound) in found.items() if configs}
    return {name: found[name][0] for name in sorted(texts, key=lambda name: -texts[name])}


class DeviceFailedError(Exception):
    """A config has ended all work of this process on the device."""


class Claims:
    """Files by which processes share a list: each kernel is taken once, unless the device of its process fails.

    A config that made the device fail is tried by no other process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, names: Sequence[str]) -> Iterator[str]:
        for name in names:
            try:
                (self._folder / name).touch(exist_ok=False)
            except FileExistsError:
                continue
            yield name

    def give_back(self, names: Sequence[str]) -> None:
        for name in names:
            (self._folder / name).unlink()

    def avoid(self, name: str, at: int, why: str) -> None:
        (self._folder / f"{name} {at}").write_text(why)

    def avoided(self, name: str, at: int) -> str | None:
        """Return why a config is tried by no process."""
        path = self._folder / f"{name} {at}"
        return path.read_text() if path.exists() else None


def prepared(
    cell: Cell, args: tuple[Any, ...], configs: Configs, device_ok: Callable[[], bool], end: float, claims: Claims
) -> tuple[dict[int, Callable[[], Any]], list[tuple[int, str]]]:
    """Return functions of the configs that run and are right, and why others are not, until ``end``."""
    given = functools.partial(copy_tensors, args)  # kernels may write into their arguments
    assert cell.baseline is not None
    expected, bound = cell.baseline(*given()), cell.function.bind(args)
    functions: dict[int, Callable[[], Any]] = {}
    failed: list[tuple[int, str]] = []
    for at, config in enumerate(configs):
        if why := claims.avoided(cell.kernel, at):
            failed.append((at, why))
            continue
        if time.monotonic() > end:
            break
        try:
            compiled = bound.compile_config(Config(**config))
            error = relative_error(compiled(*given()), expected)
        except Exception as caught:  # of the compiler or the driver: such a config has no time
            failed.append((at, reason(caught)))
            if not device_ok():
                claims.avoid(cell.kernel, at, f"the device failed: {reason(caught)}")
                raise DeviceFailedError from caught
            continue
        if error <= bound_of(args):
            functions[at] = functools.partial(compiled, *args)
        else:
            failed.append((at, f"wrong: the result is {error:.1e} off, {bound_of(args):.0e} is allowed"))
    return functions, failed


def device_ok() -> bool:
    """Return whether the device still runs kernels: an access outside of memory ends all of a process."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def timed(
    names: Sequence[str],
    samples: Mapping[str, Configs],
    claims: Claims,
    device: str,
    end: float,
    timer: Callable[[], Timer],
) -> Iterator[Row]:
    """Yield the rows of the kernels that this process takes: times by place of the config, and failures."""
    cells = {cell.kernel: cell for cell in unfitted_cells()}
    ready: dict[str, tuple[dict[int, Callable[[], Any]], list[tuple[int, str]]]] = {}
    taken: list[str] = []
    try:
        for name in claims.take(names):
            taken.append(name)
            now = time.monotonic()
            if now > end:
                break
            args = inputs(cells[name], device)
            until = min(end, now + MOST)
            ready[name] = prepared(cells[name], args, samples[name], device_ok, until, claims)
            del args
            if device == "cuda":
                torch.cuda.empty_cache()  # the other processes need the memory
    except DeviceFailedError:
        claims.give_back(taken)
        raise
    with turn():
        clock = timer()
        for name, (functions, failed) in ready.items():
            times, untimed = clock.time({str(at): function for at, function in functions.items()})
            why = [*failed, *((int(at), text) for at, text in untimed.items())]
            yield {"name": name, "us": {at: each.median for at, each in times.items()}, "failed": why}


def lines(row: Row, cell: Cell, configs: Configs) -> Iterator[str]:
    """Yield the lines of a kernel's times."""
    for at, us in row["us"].items():
        one = Timed(kernel=cell.kernel, case=cell.case, dtype=cell.dtype, config=configs[int(at)], microseconds=us)
        yield f"{one.text}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=Path, help="write the sample to this file, and time nothing")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument(
        "--target", default=KEPT_TARGET, help="the GPU whose seeds and predictions a sample starts from"
    )
    parser.add_argument("--drawn", type=Path, help="time the sample of this file")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "unfitted-samples.tsv")
    parser.add_argument("--part", default="0/1", help="every Nth kernel from the Kth")
    parser.add_argument("--seconds", type=float, default=160.0)
    parser.add_argument("--claims", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--end", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.draw:
        options.draw.write_text(json.dumps(draw(options.count, options.target)))
        return 0
    if options.drawn is None:
        parser.error("give --draw or --drawn")
    samples = json.loads(options.drawn.read_text())
    first, step = map(int, options.part.split("/"))
    names = [*samples][first::step]
    if options.claims:
        torch.set_float32_matmul_precision("high")
        timer = functools.partial(GraphTimer, LEAST_REPETITIONS)
        try:
            for row in timed(names, samples, Claims(options.claims), "cuda", options.end, timer):
                print(json.dumps(row), flush=True)
        except DeviceFailedError:  # a new process takes the place of this one
            os.execv(sys.executable, [sys.executable, *sys.argv])
        return 0
    begin, compiling = time.monotonic(), options.seconds * COMPILING
    cells = {cell.kernel: cell for cell in unfitted_cells()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as claims, options.out.open("a") as out:
        own = [sys.executable, __file__, "--drawn", str(options.drawn), "--part", options.part]
        own += ["--claims", claims, "--end", str(begin + compiling)]
        jobs = {f"process {at}": own for at in range(AT_ONCE)}
        failed = options.out.with_suffix(".failed.jsonl").open("a")
        for process, row in in_turn(
            jobs, at_once=AT_ONCE, turn_seconds=TURN, seconds=options.seconds, together_seconds=compiling + 6.0
        ):
            if "why" in row:
                print(json.dumps({"process": process, **row}), file=failed, flush=True)
                continue
            name = row["name"]
            out.writelines(lines(row, cells[name], samples[name]))
            out.flush()
            for at, why in row["failed"]:
                print(json.dumps({"name": name, "config": samples[name][at], "why": why}), file=failed, flush=True)
            print(
                f"{time.monotonic() - begin:.0f}",
                name,
                len(row["us"]),
                min(row["us"].values(), default=None),
                flush=True,
            )
        failed.close()
    print(json.dumps(where()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
