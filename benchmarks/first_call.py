"""Gain and cost of the first call's measurements (`helion/runtime/tuning/first_call.py`) on a GPU.

    python benchmarks/first_call.py [--out FILE.json] [--cells N] [--part K/N] [--seconds S] [--tuned S]

Takes kernels of the kept samples, one cell of each. Each is called for the first time without and with measurements,
both with empty caches. Two later processes then call all of them with what the second calls have cached. The default
config, the one that the first call chose and the best of the kept sample are timed in turns, and with ``--tuned`` the
config that the effort ``full`` finds in so many seconds. ``--part 1/4`` takes every fourth cell. Each row is written
when it is there.

    python benchmarks/first_call.py --alone ROWS.jsonl [--cells N] [--part K/N] [--seconds S]

makes each first call in a process of its own, with empty caches, and the first one of a later process. The process has
imported only the definitions of the kernels, and times no config afterwards. Cells that ``ROWS.jsonl`` has are left out.
With ``--calls ROWS.jsonl`` one process makes all first calls, after one of each backend, and another one the later calls.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import math
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # a process that counts devices cannot be forked

import torch  # noqa: E402

import helion  # noqa: E402
from benchmarks.cells import Cell, inputs, swept_cells, timed_cells  # noqa: E402
from benchmarks.sweep import OTHER_SAMPLES, Timed, parse  # noqa: E402
from benchmarks.timing import GraphTimer, reason  # noqa: E402
from helion.runtime.tuning import chosen_before  # noqa: E402
from helion.settings import Settings  # noqa: E402

OUT = ROOT / "build" / "first-call.json"
#: The configs that are timed, and the one that others are compared with.
NAMES, BEST, TUNED = ("default", "first call", "best of the sample"), "best of the sample", "tuned"
SAMPLED_BACKEND = "triton"
#: Processes that call all kernels with what the first calls, and the processes before, have cached.
LATER = ("second process", "third process")
#: Kernels of each backend, whose first calls import it.
WARM = ("row_sum", "matmul")


def chosen(cells: Sequence[Cell], rows: Iterable[Timed], count: int) -> list[tuple[Cell, Mapping[str, Any]]]:
    """Return ``count`` cells with rows, evenly among kernels, each with its best config."""
    best: dict[tuple[str, str, str], Timed] = {}
    for row in rows:
        known = best.setdefault(row.key, row)
        best[row.key] = min(known, row, key=lambda each: each.microseconds)
    by_kernel = {cell.kernel: cell for cell in reversed(cells) if cell.key[1:] in best}
    found = sorted(by_kernel.values(), key=lambda cell: cell.kernel)
    places = [at * len(found) // count for at in range(count)] if count < len(found) else range(len(found))
    return [(found[at], best[found[at].key[1:]].config) for at in places]


@contextlib.contextmanager
def caches(folder: Path) -> Iterator[None]:
    """Keep all that calls cache in a folder, and use no measured configs of the package."""
    names = {
        "HELION_CACHE_DIR": str(folder / "helion"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "HELION_PRETUNED": "0",  # they are the best of these very samples
    }
    former = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in former.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


def called(cell: Cell, args: tuple[Any, ...], seconds: float) -> tuple[float, Any]:
    """Return the seconds of a first call, and the bound kernel."""
    settings = Settings(**{**cell.function.settings.to_dict(), "first_call_seconds": seconds})
    kernel = helion.kernel(cell.function.fn, settings=settings)
    torch.cuda.synchronize()
    began = time.perf_counter()
    kernel(*args)
    torch.cuda.synchronize()
    return time.perf_counter() - began, kernel.bind(args)


def sampled(cell: Cell, config: Mapping[str, Any], args: tuple[Any, ...]) -> tuple[Any, helion.Config]:
    """Return the kernel bound for the backend of the samples, and a config of theirs in full."""
    settings = Settings(**{**cell.function.settings.to_dict(), "backend": SAMPLED_BACKEND})
    bound = helion.kernel(cell.function.fn, settings=settings).bind(args)
    return bound, bound.config_spec.normalize(config)


def measured(cell: Cell, best: Mapping[str, Any], folder: Path, timer: GraphTimer, tuned: float) -> dict[str, Any]:
    """Return seconds of first calls, and microseconds of the configs by their names.

    They include one that is searched for ``tuned`` seconds, unless that is 0.
    """
    args = inputs(cell, "cuda")
    row: dict[str, Any] = {"kernel": cell.kernel, "case": cell.case, "dtype": cell.dtype, "seconds": {}}
    with caches(folder / "without"):
        row["seconds"]["default"], bound = called(cell, args, 0.0)
    with caches(folder / "with"):
        row["seconds"]["first call"], chose = called(cell, args, Settings().first_call_seconds)
        of = chose.variant.specialized
        row["timed"] = [
            {**outcome.to_dict(), "config": of.short_config(outcome.config).to_dict()}
            for outcome in chosen_before.timed(of, of.sample())
        ]
    pairs = ((bound, bound.config), (chose, chose.config), sampled(cell, best, args))
    configs = dict(zip(NAMES, pairs, strict=True))
    if tuned:
        with caches(folder / "tuned"):
            found = bound.autotune(args, effort="full", seconds=tuned, progress=False, random_seed=1)
        configs[TUNED] = (bound, bound.config_spec.normalize(found))
    row["configs"] = {name: by.short_config(config).to_dict() for name, (by, config) in configs.items()}
    row["backends"] = {name: by.backend for name, (by, _) in configs.items()}
    functions = {name: functools.partial(by.compile_config(config), *args) for name, (by, config) in configs.items()}
    times, failures = timer.time(functions)
    row["microseconds"] = {name: each.median for name, each in times.items()}
    return {**row, **({"failures": failures} if failures else {})}


def again(folder: Path, names: Sequence[str]) -> dict[str, float]:
    """Return the seconds of the first call of each cell in this process, with what another one has cached."""
    by_name = {" ".join(cell.key): cell for cell in swept_cells()}
    with caches(folder / "with"):
        torch.ones(1, device="cuda").add_(1)
        args = {name: inputs(by_name[name], "cuda") for name in names}
        for name in (*WARM, names[0]):  # imports of each backend
            cell = next((cell for cell in timed_cells() if cell.kernel == name), by_name[names[0]])
            called(cell, inputs(cell, "cuda"), 0.0 if name in WARM else Settings().first_call_seconds)
        return {name: called(by_name[name], args[name], Settings().first_call_seconds)[0] for name in names}


def in_a_child(answer: Callable[[], Mapping[str, Any]], seconds: float) -> dict[str, Any]:
    """Return what ``answer`` returns in a forked process, or a ``failure``; end that process after so many seconds."""
    read, write = os.pipe()
    if not (child := os.fork()):
        try:
            os.write(write, json.dumps(answer()).encode())
        except BaseException as error:  # it belongs into the table
            os.write(write, json.dumps({"failure": f"{type(error).__name__}: {error}"[:500]}).encode())
        finally:
            os._exit(0)
    os.close(write)
    text, until = b"", time.monotonic() + seconds
    while select.select([read], [], [], max(0.0, until - time.monotonic()))[0]:
        if not (more := os.read(read, 1 << 16)):
            break
        text += more
    os.close(read)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return dict(json.loads(text)) if text else {"failure": f"no answer in {seconds:.0f} seconds"}


def called_alone(cell: Cell, folder: Path) -> dict[str, Any]:
    """Return the device, the seconds of the first call of this process, the backend and the config that it chose."""
    torch.ones(1, device="cuda").add_(1)  # the context of the device
    args = inputs(cell, "cuda")
    with caches(folder):
        seconds, bound = called(cell, args, Settings().first_call_seconds)
        config = bound.short_config(bound.config).to_dict()
    return {"device": torch.cuda.get_device_name(), "seconds": seconds, "backend": bound.backend, "config": config}


def alone(out: Path, every: Sequence[Cell], seconds: float) -> None:
    """Append a row for each cell: the seconds of the first call, and of that of a later process."""
    if torch.cuda.is_initialized():
        raise RuntimeError("this process has initialized CUDA, so forked ones cannot use it: measure in a new process")
    begun = time.monotonic()
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    known = {(row["kernel"], row["case"], row["dtype"]) for row in rows}
    with out.open("a") as file:
        for cell in (cell for cell in every if (cell.kernel, cell.case, cell.dtype) not in known):
            if time.monotonic() - begun > seconds:
                return
            with tempfile.TemporaryDirectory() as folder:
                row = {"kernel": cell.kernel, "case": cell.case, "dtype": cell.dtype, "cpus": os.cpu_count()}
                row |= in_a_child(functools.partial(called_alone, cell, Path(folder)), 60.0)
                if "failure" not in row:
                    row["later"] = in_a_child(functools.partial(called_alone, cell, Path(folder)), 60.0).get("seconds")
            print(json.dumps(row), file=file, flush=True)
            print(json.dumps(row)[:300], flush=True)


def calls(out: Path, every: Sequence[Cell], seconds: float) -> None:
    """Append a row for each cell: the seconds of the first call in this process, after one of each of ``WARM``, and of
    that in a later process. First calls are written before that process begins.
    """
    begun, rows = time.monotonic(), dict[str, dict[str, Any]]()
    by_kernel, before = {cell.kernel: cell for cell in timed_cells()}, out.read_text() if out.exists() else ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with caches(folder / "warm"):
            for kernel in WARM:
                called(by_kernel[kernel], inputs(by_kernel[kernel], "cuda"), Settings().first_call_seconds)
        for cell in every:
            if time.monotonic() - begun > seconds:
                break
            args = inputs(cell, "cuda")
            with caches(folder / "with"):
                took, bound = called(cell, args, Settings().first_call_seconds)
            row = {"kernel": cell.kernel, "case": cell.case, "dtype": cell.dtype, "cpus": os.cpu_count()}
            row |= {"device": torch.cuda.get_device_name(), "seconds": took, "backend": bound.backend}
            rows[" ".join(cell.key)] = row
        out.write_text(before + _lines(rows.values()))
        for key, took in later(folder, list(rows)).items():
            rows[key]["later"] = took
        out.write_text(before + _lines(rows.values()))


def _lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def later(folder: Path, names: Sequence[str]) -> dict[str, float]:
    """Return the seconds of the first call of each cell in a later process; raise ``RuntimeError`` if that fails."""
    command = [sys.executable, __file__, "--again", str(folder), "--names", json.dumps(list(names))]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode:
        raise RuntimeError(found.stderr[-2000:])
    return dict(json.loads(found.stdout.splitlines()[-1]))


def ratios(rows: Sequence[Mapping[str, Any]], name: str, best: str = BEST) -> list[float]:
    """Return the times of a config over the best one, of the cells that have both."""
    timed = [row["microseconds"] for row in rows if {name, best} <= set(row.get("microseconds", ()))]
    return [times[name] / times[best] for times in timed]


def summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Format lines about all cells: times over the best of the sample, and seconds."""
    if not any("microseconds" in row for row in rows):
        return ["nothing was timed"]
    lines = []
    for best, name in itertools.product((BEST, TUNED), NAMES[:2]):
        if found := ratios(rows, name, best):
            mean = math.exp(sum(map(math.log, found)) / len(found))
            lines.append(f"{name} / {best}: geometric mean {mean:.3f}, worst {max(found):.2f} of {len(found)} cells")
    for name in ("default", "first call", *LATER):
        taken = [row["seconds"][name] for row in rows if name in row.get("seconds", ())]
        if taken:
            lines.append(f"seconds, {name}: median {statistics.median(taken):.2f}, at most {max(taken):.2f}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--cells", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=180.0, help="after which no other cell is begun")
    parser.add_argument("--part", default="1/1", help="K/N: every Nth cell from the Kth on")
    parser.add_argument("--tuned", type=float, default=0.0, help="seconds of a search of each cell")
    parser.add_argument("--alone", type=Path, metavar="ROWS.jsonl", help="time calls alone, each in its own process")
    parser.add_argument("--calls", type=Path, metavar="ROWS.jsonl", help="time calls alone, all in one process")
    parser.add_argument("--again", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--names", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.again is not None:
        print(json.dumps(again(options.again, options.names)))
        return 0
    if options.alone is not None:
        torch.set_num_threads(1)  # a forked process lacks the threads of this one
    part, parts = map(int, options.part.split("/"))
    every = chosen(swept_cells(), parse(OTHER_SAMPLES.read_text()), options.cells)[part - 1 :: parts]
    if options.alone is not None:
        alone(options.alone, [cell for cell, _ in every], options.seconds)
        return 0
    if options.calls is not None:
        calls(options.calls, [cell for cell, _ in every], options.seconds)
        return 0
    began, rows, timer = time.monotonic(), list[dict[str, Any]](), GraphTimer(51)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        named: dict[str, dict[str, Any]] = {}
        for cell, best in every:
            if time.monotonic() - began > options.seconds:
                break
            try:
                rows.append(measured(cell, best, Path(folder), timer, options.tuned))
                named[" ".join(cell.key)] = rows[-1]
            except Exception as error:  # it belongs into the table
                rows.append({"kernel": cell.kernel, "case": cell.case, "dtype": cell.dtype, "failure": reason(error)})
            _write(options.out, rows)
            print(json.dumps(rows[-1]), flush=True)
        for process in LATER:
            for name, seconds in later(Path(folder), list(named)).items():
                named[name]["seconds"][process] = seconds
    _write(options.out, rows)
    print("\n".join(summary(rows)))
    return 0


def _write(out: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    out.write_text(json.dumps({"device": torch.cuda.get_device_name(), "cells": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
