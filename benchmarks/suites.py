"""Times of whole suites in two stages, for a machine that is lent for minutes.

    python benchmarks/suites.py check FILE.jsonl [--suites S,...] [--part K/N] [--workers W] [--seconds S]
    python benchmarks/suites.py time FILE.jsonl --out ROWS.jsonl [--timers T] [--seconds S]
    python benchmarks/suites.py merge ROWS.jsonl ...

``check`` compiles the variants of cells and compares them with fp64, by many processes on one GPU. ``time`` takes the
cells of a file of checks, compiled before, and times each cell while no other process uses the GPU. ``merge`` puts rows
into benchmarks/results, beside those of other cells. Cells whose default differs from that of the kept row come first;
``--changed`` takes them alone. A process that dies or is silent for too long is replaced, and its cell has a reason. Each
line is written when it is there, and a stage that runs again goes on after the lines of its file.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import helion  # noqa: E402
from benchmarks import seeds  # noqa: E402
from benchmarks.cells import Cell, inputs, timed_cells  # noqa: E402
from benchmarks.timing import GraphTimer, copy_bandwidth, reason  # noqa: E402
from benchmarks.turns import LOCK, turn  # noqa: E402
from helion.settings import Settings  # noqa: E402

#: Suites in the order in which little time is spent on them.
ORDER = ("reductions", "transfer", "workloads", "general", "matmul", "epilogue", "pointwise")
#: Seconds after which a silent process is ended: conservative configs of long rows run for seconds.
SILENT = {"check": 100.0, "time": 45.0}
DEVICE = "nvidia-h200"

Key = tuple[str, str, str, str]
Line = dict[str, Any]


@functools.cache
def cells_by_key() -> dict[Key, Cell]:
    """Return all timed cells by their keys."""
    return {cell.key: cell for cell in timed_cells()}


# --------------------------------------------------------------------------------------------------------- which cells


def is_changed(cell: Cell, kept: Mapping[Key, Mapping[str, Any]], target: str) -> bool:
    """Return whether a cell's default is of another backend or another config than its kept row, or it has none."""
    row = kept.get(cell.key)
    if row is None:
        return True
    settings = Settings(**{**cell.function.settings.to_dict(), "backend": "auto"})
    bound = helion.kernel(cell.function.fn, settings=settings).bind(cell.args, target=target)
    config = repr(bound.short_config(bound.default_config()))
    is_cute = row["heuristic"].lower().startswith("cute")
    return (bound.backend == "cute") != is_cute or config != row["configs"].get("default", row["configs"].get("seed"))


def kept_rows(suites: Iterable[str]) -> dict[Key, Mapping[str, Any]]:
    """Return the rows in benchmarks/results by their keys."""
    found: dict[Key, Mapping[str, Any]] = {}
    for suite in suites:
        path = seeds.RESULTS / f"{DEVICE}-{suite}.json"
        rows = json.loads(path.read_text())["rows"] if path.exists() else ()
        found |= {(row["suite"], row["kernel"], row["case"], row["dtype"]): row for row in rows}
    return found


def chosen(suites: Sequence[str], part: str, changed: bool, target: str) -> list[Key]:
    """Return every Nth cell of the suites, those with another default than their kept row first."""
    kept, first, rest = kept_rows(suites), list[Key](), list[Key]()
    for suite in suites:
        for cell in (cell for cell in cells_by_key().values() if cell.suite == suite):
            (first if is_changed(cell, kept, target) else rest).append(cell.key)
    at, step = map(int, part.split("/"))
    return (first if changed else [*first, *rest])[at - 1 :: step]


# ------------------------------------------------------------------------------------------------- processes for cells


@dataclasses.dataclass
class _Worker:
    """A process that answers each line with one of JSON. It begins with the first request."""

    command: Sequence[str]
    silent: float
    """Seconds without an answer after which it is ended."""
    process: subprocess.Popen[bytes] | None = None

    def answer(self, request: Line, end: float) -> Line | None:
        """Return the answer, or the reason why there is none; None if the time is over."""
        if self.process is None:
            self.errors = tempfile.TemporaryFile()  # noqa: SIM115, which lasts as long as the process
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, start_new_session=True
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has died: it has no more lines either
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        late, unread = min(end, time.monotonic() + self.silent), b""
        while True:
            left = late - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                self.end()
                return None if time.monotonic() >= end else {"why": f"no answer for {self.silent:g} s"}
            more = os.read(self.process.stdout.fileno(), 1 << 20)
            if not more:
                return {"why": self.end()}
            *whole, unread = (unread + more).split(b"\n")
            for text in whole:
                if text.startswith(b"{"):  # libraries print as well
                    return dict(json.loads(text))

    def end(self) -> str:
        """End the process with its group, and return the end of its errors."""
        process, self.process = self.process, None
        if process is None:
            return ""
        try:
            process.communicate(timeout=0.5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        self.errors.seek(0)
        return f"exit status {process.returncode}: {self.errors.read()[-600:].decode(errors='replace')}"


def answers(
    command: Sequence[str], requests: Sequence[Line], *, workers: int, seconds: float, silent: float
) -> Iterator[Line]:
    """Yield each request with its answer as it comes, by so many processes, as long as there is time."""
    waiting, found = collections.deque(requests), queue.Queue[Line | None]()
    end = time.monotonic() + seconds

    def work() -> None:
        worker = _Worker(command, silent)
        try:
            while time.monotonic() < end:
                try:
                    request = waiting.popleft()
                except IndexError:
                    break
                answer = worker.answer(request, end)
                if answer is not None:
                    found.put({**request, **answer})
        finally:
            worker.end()
            found.put(None)

    running = [threading.Thread(target=work, daemon=True) for _ in range(workers)]
    for thread in running:
        thread.start()
    left = len(running)
    while left:
        line = found.get()
        if line is None:
            left -= 1
        else:
            yield line


# ------------------------------------------------------------------------------------------------------------- stages


def checked(request: Mapping[str, Any]) -> Line:
    """Compile the variants of a cell, and return errors, reasons and configs."""
    cell = cells_by_key()[tuple(request["key"])]
    args = inputs(cell, "cuda")
    made = seeds.variants(cell, args)
    errors, failures = seeds.checked(cell, made, args)
    del args
    torch.cuda.empty_cache()
    is_short_of_memory = any("OutOfMemory" in why or "ALLOC_FAILED" in why for why in failures.values())
    return {} if is_short_of_memory else {"errors": errors, "failures": failures, "configs": dict(made.configs)}


def timed(request: Mapping[str, Any], timer: GraphTimer) -> Line:
    """Time the variants of a cell that are right, and return the row. Check again what differs from the checks."""
    cell = cells_by_key()[tuple(request["key"])]
    with turn():
        args = inputs(cell, "cuda")
    made = seeds.variants(cell, args)
    with turn():
        errors, failures = request.get("errors", {}), request.get("failures", {})
        known = made.functions.keys() <= errors.keys() | failures.keys()
        if not known or request.get("configs") != made.configs:
            errors, failures = seeds.checked(cell, made, args)
        row = seeds.measured(cell, made, timer, errors, failures)
        del args, made
        torch.cuda.empty_cache()
    return {"row": dataclasses.asdict(row)}


def serve(stage: str) -> None:
    """Answer the lines of the standard input."""
    torch.set_float32_matmul_precision("high")
    torch._inductor.config.compile_threads = 1  # the processes are the threads
    torch.set_num_threads(1)
    answer: Callable[[Mapping[str, Any]], Line] = checked
    if stage == "time":
        with turn():
            answer = functools.partial(timed, timer=GraphTimer())
    for text in sys.stdin:
        began = time.perf_counter()
        try:
            found = answer(json.loads(text))
        except Exception as error:  # it belongs into the table
            found = {"why": reason(error)}
        print(json.dumps({**found, "took_s": round(time.perf_counter() - began, 2)}), flush=True)


def lines_of(path: Path) -> list[Line]:
    """Return the whole lines of a file, none where there is no file."""
    if not path.exists():
        return []
    return [json.loads(text) for text in path.read_text().splitlines(keepends=True) if text.endswith("}\n")]


def _run(stage: str, requests: Sequence[Line], path: Path, workers: int, seconds: float) -> int:
    """Write the answers to the requests that the file does not have, and return how many came."""
    path.parent.mkdir(parents=True, exist_ok=True)
    had = {tuple(line["key"]) for line in lines_of(path) if "key" in line}
    left = [request for request in requests if tuple(request["key"]) not in had]
    count, began = 0, time.monotonic()
    with path.open("a") as file:
        own = [sys.executable, __file__, "serve", stage]
        for line in answers(own, left, workers=workers, seconds=seconds, silent=SILENT[stage]):
            print(json.dumps(line), file=file, flush=True)
            count += 1
            said = seeds.text_of(seeds.Row(**line["row"])) if "row" in line else line.get("why", "")
            print(f"{time.monotonic() - began:.0f} s, {' '.join(line['key'])}: {said[:300]}", flush=True)
    print(f"{stage}: {count} of {len(left)} cells in {time.monotonic() - began:.0f} s", flush=True)
    return count


def check(options: argparse.Namespace) -> int:
    """Run the first stage."""
    keys = chosen(options.suites, options.part, options.changed, options.target)
    if options.list:
        print("\n".join(" ".join(key) for key in keys))
        return 0
    requests = [{"key": key} for key in keys]
    return 0 if _run("check", requests, options.files[0], options.workers, options.seconds) else 1


def time_all(options: argparse.Namespace) -> int:
    """Run the second stage on the cells of the first one, in the order of the suites."""
    known = {tuple(line["key"]): line for line in lines_of(options.files[0])}
    requests = [known[key] for key in sorted(known, key=lambda key: ORDER.index(key[0]))]
    requests = [
        {name: value for name, value in each.items() if name != "took_s"} for each in requests if "why" not in each
    ]
    if not any("environment" in line for line in lines_of(options.out)):
        torch.set_float32_matmul_precision("high")
        head = {**seeds.environment(), "copy_gb_per_s": round(copy_bandwidth(GraphTimer()))}
        torch.cuda.empty_cache()
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("a") as file:
            print(json.dumps({"environment": head}), file=file, flush=True)
    with tempfile.NamedTemporaryFile() as lock:
        os.environ[LOCK] = lock.name
        return 0 if _run("time", requests, options.out, options.timers, options.seconds) else 1


def merge(files: Sequence[Path], results: Path) -> list[str]:
    """Put the rows of files into those of the results, each file a run, and return a line for each suite and failure."""
    said = []
    for path in files:
        lines = lines_of(path)
        head = next(line["environment"] for line in lines if "environment" in line)
        found: dict[str, list[seeds.Row]] = {}
        for line in lines:
            if "row" in line:
                row = seeds.Row(**line["row"])
                found.setdefault(row.suite, []).append(row)
            elif "why" in line:
                said.append(f"{path.name}: {' '.join(line['key'])}: {line['why']}")
        for suite, rows in found.items():
            name = f"{head['device'].lower().replace(' ', '-')}-{suite}.json"
            earlier = json.loads((results / name).read_text()) if (results / name).exists() else {}
            seeds.write(results / name, *seeds.kept(earlier, head, rows))
            said.append(f"{path.name}: {len(rows)} rows of {suite}")
    return said


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("check", "time", "merge", "serve"))
    parser.add_argument("files", nargs="+", help="of checks for check and time, of rows for merge")
    parser.add_argument("--suites", type=lambda text: text.split(","), default=list(ORDER))
    parser.add_argument("--part", default="1/1", help="K/N: every Nth cell from the Kth on")
    parser.add_argument("--changed", action="store_true", help="only cells with another default than their kept row")
    parser.add_argument("--target", default="h200", help="GPU whose defaults are compared")
    parser.add_argument("--list", action="store_true", help="print the cells and check nothing")
    parser.add_argument("--workers", type=int, default=8, help="processes that check")
    parser.add_argument("--timers", type=int, default=2, help="processes that time in turns")
    parser.add_argument("--seconds", type=float, default=600.0, help="after which no cell goes on")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "suites.jsonl")
    options = parser.parse_args(arguments)
    if options.what == "serve":
        serve(options.files[0])
        return 0
    options.files = [Path(name) for name in options.files]
    if options.what == "merge":
        print("\n".join(merge(options.files, seeds.RESULTS)))
        return 0
    return check(options) if options.what == "check" else time_all(options)


if __name__ == "__main__":
    sys.exit(main())
