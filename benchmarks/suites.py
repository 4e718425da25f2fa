"""Times of whole suites on a machine that is lent for minutes.

    python benchmarks/suites.py run ROWS.jsonl [--suites S,...] [--part K/N] [--changed] [--workers W] [--seconds S]
    python benchmarks/suites.py merge ROWS.jsonl ...

Processes compile the variants of cells side by side, and compare them with fp64. Every few seconds those that compile are
stopped, and the cells that are ready are timed one after the other by the processes that have compiled them. Cells whose
default differs from that of the kept row come first; ``--changed`` takes them alone. A process that dies or is silent for
too long is replaced. Each row is written when it is there, and a command that runs again goes on after the rows of its
file. ``merge`` puts rows into benchmarks/results, beside those of other cells.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import dataclasses
import functools
import gc
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

#: Torch then counts GPUs without a context on one, which a forked process could not use.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import helion  # noqa: E402
from benchmarks import seeds  # noqa: E402
from benchmarks.cells import Cell, inputs, timed_cells  # noqa: E402
from benchmarks.timing import GraphTimer, copy_bandwidth, reason  # noqa: E402
from helion.settings import Settings  # noqa: E402

#: Suites in the order in which little time is spent on them.
ORDER = ("reductions", "transfer", "workloads", "general", "matmul", "unseen", "mechanisms", "pointwise", "epilogue")
DEVICE = "nvidia-h200"
#: Seconds without an answer after which a process is ended. Conservative configs of long rows run for seconds.
SILENT = 60.0
#: Shapes of one function that torch.compile keeps.
_SHAPES = 128
#: Seconds for which a check goes on after the end of its turn.
_GRACE = 8.0
#: Seconds in which the GPU ends what stopped processes have launched: slow configs run for half a second.
SETTLING = 1.5
#: The option of Linux's prctl by which a process ends with its parent.
_PARENT_DEATH_SIGNAL = 1

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


# ---------------------------------------------------------------------------------------------------------- processes


class Worker:
    """A forked process that answers requests, begun again if it has died.

    ``ready`` are the cells that it has checked and that are not timed yet.
    """

    def __init__(self, serve: Callable[[Connection], None]) -> None:
        self._serve = serve
        self.asked: Line | None = None
        self.since = 0.0
        self.ready: list[Key] = []
        self._begin()

    def _begin(self) -> None:
        # a forked process has all imports, but no GPU if this one had to ask the driver for it
        context: Any = multiprocessing.get_context("fork" if _is_unused() else "spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_alone, args=(self._serve, theirs))
        self._process.start()
        theirs.close()

    @property
    def is_alive(self) -> bool:
        return self._process.exitcode is None

    def ask(self, request: Line) -> None:
        if not self.is_alive:
            self._begin()
        self.asked, self.since = request, time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # it has died, and there is no answer either
            self.connection.send(request)

    def answer(self) -> Line:
        """Return the answer, which is there. That of a process which has died is the reason why."""
        try:
            found: Line = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.end()
            return {"why": f"the process has died, exit status {self._process.exitcode}"}
        self.asked = None
        return found

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and to those that it has begun."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid or 0, number)

    def end(self) -> None:
        """End the process. Its cells are lost."""
        self._process.join(0.2 if self.connection.poll() else 0.0)  # one that has died keeps its status
        self.signal(signal.SIGKILL)
        self._process.kill()  # it has no group of its own yet if it has just begun
        self._process.join()
        self.asked = None


def _is_unused() -> bool:
    """Return whether torch can count the GPUs without the driver, or there is none."""
    return not torch.cuda.is_available() or torch.cuda._device_count_nvml() > 0


def _alone(serve: Callable[[Connection], None], connection: Connection) -> None:
    os.setsid()  # so that the compilers that it begins can be stopped with it
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    serve(connection)


class Run:
    """Checks and times of cells by several processes, as far as there is time."""

    def __init__(
        self, serve: Callable[[Connection], None], keys: Iterable[Key], workers: int, silent: float = SILENT
    ) -> None:
        self._waiting = collections.deque(keys)
        self._workers = [Worker(serve) for _ in range(workers)]
        self._silent = silent
        self._settling = SETTLING
        self._short: set[Key] = set()
        self._has_environment = False

    def lines(self, seconds: float, turn: float) -> Iterator[Line]:
        """Yield rows, and reasons why there are none, for so many seconds. Cells are timed after each ``turn``."""
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end and (self._waiting or self._is_busy() or any(w.ready for w in self._workers)):
                yield from self._checked(min(end, time.monotonic() + turn))
                yield from self._timed(end)
        finally:
            for worker in self._workers:
                worker.end()

    def _is_busy(self) -> bool:
        return any(worker.asked for worker in self._workers)

    def _checked(self, until: float) -> Iterator[Line]:
        while (now := time.monotonic()) < until + _GRACE:
            for worker in self._workers:
                if worker.asked is None and self._waiting and now < until:
                    worker.ask({"do": "check", "key": self._waiting.popleft()})
            busy = [worker for worker in self._workers if worker.asked]
            if not busy:
                return
            able = wait([worker.connection for worker in busy], 0.2)
            for worker in busy:
                key = worker.asked["key"] if worker.asked else None
                if worker.connection in able:
                    yield from self._taken(worker, key, worker.answer())
                elif self._is_silent(worker):
                    worker.end()
                    yield from self._taken(worker, key, {"why": f"no answer for {self._silent:g} s"})

    def _taken(self, worker: Worker, key: Any, answer: Line) -> Iterator[Line]:
        """Take the answer to a check: a cell to time, or the reason why it cannot be timed."""
        if "why" in answer:
            yield {"key": key, **answer}
            if not worker.is_alive:  # what it had checked is lost
                self._waiting.extendleft(worker.ready)
                worker.ready = []
        elif answer["ready"]:
            worker.ready.append(key)
        elif key in self._short:
            yield {"key": key, "why": "out of memory twice"}
        else:
            self._short.add(key)
            self._waiting.append(key)

    def _timed(self, end: float) -> Iterator[Line]:
        """Time what is ready while the processes that check are stopped."""
        stopped = [worker for worker in self._workers if worker.asked]
        began = time.monotonic()
        for worker in stopped:
            worker.signal(signal.SIGSTOP)
        if stopped:
            time.sleep(self._settling)
        for worker in self._workers:
            while worker.ready and worker not in stopped and time.monotonic() < end:
                if not self._has_environment:
                    self._has_environment = True
                    yield {"environment": self._asked(worker, {"do": "environment", "key": None})}
                key = worker.ready.pop(0)
                answer = self._asked(worker, {"do": "time", "key": key})
                if "row" in answer:
                    yield {"key": key, **answer}
                else:
                    yield from self._taken(worker, key, answer)
        for worker in stopped:
            worker.signal(signal.SIGCONT)
            worker.since += time.monotonic() - began

    def _asked(self, worker: Worker, request: Line) -> Line:
        worker.ask(request)
        while not worker.connection.poll(0.2):
            if self._is_silent(worker):
                worker.end()
                return {"why": f"no answer for {self._silent:g} s"}
        return worker.answer()

    def _is_silent(self, worker: Worker) -> bool:
        return time.monotonic() - worker.since > self._silent


class Server:
    """The cells of one process, with their variants and the outcomes of their checks."""

    def __init__(self, device: str = "cuda") -> None:
        self._device = device
        self._checked: dict[Key, tuple[seeds.Variants, dict[str, float], dict[str, str]]] = {}
        self._timer: Any = None

    def check(self, key: Key) -> Line:
        """Compile the variants of a cell, and compare them with fp64."""
        cell = cells_by_key()[key]
        args = inputs(cell, self._device)
        made = seeds.variants(cell, args, forget=False)
        errors, failures = seeds.checked(cell, made, args)
        if any("OutOfMemory" in why or "ALLOC_FAILED" in why for why in failures.values()):
            return {"ready": False}
        functions = {name: _with_arguments(function, ()) for name, function in made.functions.items()}
        self._checked[key] = dataclasses.replace(made, functions=functions), errors, failures
        return {"ready": True}

    def time(self, key: Key) -> Line:
        """Time the variants of a cell that are right, on new tensors."""
        if key not in self._checked:  # by a process that has died
            return {"ready": False}
        made, errors, failures = self._checked.pop(key)
        cell = cells_by_key()[key]
        args = inputs(cell, self._device)
        functions = {name: _with_arguments(function, args) for name, function in made.functions.items()}
        self._timer = self._timer or GraphTimer()
        row = seeds.measured(cell, dataclasses.replace(made, functions=functions), self._timer, errors, failures)
        return {"row": dataclasses.asdict(row)}

    def environment(self, key: Key) -> Line:
        """Return what times depend on."""
        return {**seeds.environment(), "copy_gb_per_s": round(copy_bandwidth(GraphTimer()))}


def serve(connection: Connection) -> None:
    """Answer the requests of another process."""
    server = Server()
    torch.set_float32_matmul_precision("high")
    torch._inductor.config.compile_threads = 1  # the processes are the threads
    torch._dynamo.config.recompile_limit = _SHAPES
    torch.set_num_threads(1)
    while True:
        request = connection.recv()
        try:
            found = getattr(server, request["do"])(request["key"])
        except torch.OutOfMemoryError:
            found = {"ready": False}
        except Exception as error:  # it belongs into the table
            found = {"why": reason(error)}
        gc.collect()
        torch.cuda.empty_cache()
        connection.send(found)


def _with_arguments(function: Any, args: tuple[Any, ...]) -> functools.partial[Any]:
    """Return a variant with other arguments, none of which keep memory."""
    if function.func is seeds.run_config:
        return functools.partial(function.func, *function.args[:2], args)
    return functools.partial(function.func, *args)


# -------------------------------------------------------------------------------------------------------------- files


def lines_of(path: Path) -> list[Line]:
    """Return the whole lines of a file, none where there is no file."""
    if not path.exists():
        return []
    return [json.loads(text) for text in path.read_text().splitlines(keepends=True) if text.endswith("}\n")]


def run(options: argparse.Namespace) -> int:
    """Check and time the cells that the file has no row of, and return the exit status."""
    if options.cells:
        keys = [_key(json.loads(text)) for text in options.cells.read_text().splitlines()]
    else:
        keys = chosen(options.suites, options.part, options.changed, options.target)
    if options.list:
        print("\n".join(map(json.dumps, keys)))
        return 0
    (path,) = options.files
    had = {_key(line["key"]) for line in lines_of(path) if "row" in line}
    left = [key for key in keys if key not in had]
    count, began = 0, time.monotonic()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for line in Run(serve, left, options.workers).lines(options.seconds, options.turn):
            print(json.dumps(line), file=file, flush=True)
            count += "row" in line
            said = seeds.text_of(seeds.Row(**line["row"])) if "row" in line else str(line)
            print(f"{time.monotonic() - began:.0f} s, {said[:400]}", flush=True)
    print(f"{count} of {len(left)} cells in {time.monotonic() - began:.0f} s", flush=True)
    return 0 if count else 1


def _key(words: Sequence[str]) -> Key:
    suite, kernel, case, dtype = words
    return suite, kernel, case, dtype


def merge(files: Iterable[Path], results: Path) -> list[str]:
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
    parser.add_argument("what", choices=("run", "merge"))
    parser.add_argument("files", nargs="+", type=Path, help="of rows")
    parser.add_argument("--suites", type=lambda text: text.split(","), default=list(ORDER))
    parser.add_argument("--part", default="1/1", help="K/N: every Nth cell from the Kth on")
    parser.add_argument("--changed", action="store_true", help="only cells with another default than their kept row")
    parser.add_argument("--target", default="h200", help="GPU whose defaults are compared")
    parser.add_argument("--list", action="store_true", help="print the cells and time none")
    parser.add_argument("--cells", type=Path, help="a file of what --list has printed, which is not asked for again")
    parser.add_argument("--workers", type=int, default=14, help="processes that check")
    parser.add_argument(
        "--turn", type=float, default=20.0, help="seconds after which the cells that are ready are timed"
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="after which no cell goes on")
    options = parser.parse_args(arguments)
    if options.what == "merge":
        print("\n".join(merge(options.files, seeds.RESULTS)))
        return 0
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
