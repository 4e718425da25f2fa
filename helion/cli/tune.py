"""``python -m helion tune``: kernels for arguments that a file lists.

target = "h200"            # with no GPU: what is compiled for (default: HELION_TARGET, else sm_90)

[[tune]]
kernel = "kernels.py::softmax"
args = [["bf16[4096,8192]"], ["bf16[4096,1000]"]]
effort = "quick"           # and other options of kernel.autotune
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import pathlib
import signal
import sys
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..autotuner import pretuned
from ..autotuner.cache.rows import Entry, exported, imported
from ..autotuner.cache.store import Store, default_store
from ..autotuner.options import Options, cpus
from .arguments import find_kernel, parse_arguments
from .command import Command
from .ray_pool import RayPool
from .work import Report, Work, Worker
from .worker_pool import LocalPool, WorkerPool, distributed


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spec", help="a TOML file: [[tune]] tables with kernel, args and options of kernel.autotune")
    parser.add_argument("--out", default=None, help="with no GPU: the file for the configs (default: SPEC with .json)")
    parser.add_argument("--configs", type=int, default=8, help="with no GPU: mutations of the seeds that are compiled")
    parser.add_argument(
        "--contribute", metavar="FILE", default=None, help="add the measured configs, keyed by facts, to this file"
    )
    parser.add_argument("--force", action="store_true", help="tune also what was tuned before")
    parser.add_argument("--offline", action="store_true", help="as with no GPU")
    parser.add_argument(
        "--gpus", type=int, default=None, help="measure on so many GPUs at once (default: all there are)"
    )
    parser.add_argument(
        "--ray", metavar="ADDRESS", default=None, help="on a Ray cluster, an actor per GPU: auto, local, or host:port"
    )


def _run(options: argparse.Namespace) -> int:
    path = pathlib.Path(options.spec)
    spec = _read(path)
    works = list(_works(spec, path))
    if options.gpus is not None and options.gpus < 1:
        raise ValueError(f"--gpus must be at least 1, got {options.gpus}")
    if options.contribute is not None:
        _contributed(pathlib.Path(options.contribute))  # another file is refused before the search, not after it
    measuring = not options.offline and (_on_gpus(works, options) or _all_simulated(works))
    if options.contribute is not None and (not measuring or _all_simulated(works)):
        raise ValueError("--contribute takes times of a GPU: run it where there is one, without --offline")
    if measuring:
        return _measured([replace(work, force=options.force) for work in works], options)
    offline = [replace(work, target=spec.get("target"), offline=options.configs) for work in works]
    entries, failed = _finished(_each(offline, options, measuring=False))
    out = path.with_suffix(".json") if options.out is None else pathlib.Path(options.out)
    out.write_text(exported([replace(entry, sweep=()) for entry in entries]), encoding="utf-8")
    print(f"{len(entries)} of {len(works)} compiled and ranked: {out}")
    return 1 if failed else 0


def _on_gpus(works: Sequence[Work], options: argparse.Namespace) -> bool:
    return options.ray is not None or (bool(works) and torch.cuda.is_available())


def _all_simulated(works: Sequence[Work]) -> bool:
    return all(work.options.get("simulated") for work in works)


def _measured(works: Sequence[Work], options: argparse.Namespace) -> int:
    """Tune on GPUs, and keep all results in the cache of this machine, also those of other workers."""
    store = default_store()
    known = [replace(work, known=_known(store, work)) for work in works]
    failed, measured = 0, []
    for work, report in _each(known, options, measuring=True):
        failed += not _shown(work, report)
        measured += pretuned.parsed(report.measured) if report.measured else []
        if report.entries and store is not None:
            for entry in imported(report.entries):
                store.put(entry)
    print(f"{len(works) - failed} of {len(works)} tuned")
    if options.contribute is not None:
        _contribute(pathlib.Path(options.contribute), measured)
    return 1 if failed else 0


def _contribute(path: pathlib.Path, measured: Sequence[pretuned.Row]) -> None:
    """Add rows to a file, and say how it is used."""
    path.write_text(pretuned.formatted([*_contributed(path), *measured]), encoding="utf-8")
    print(f"{len(measured)} measured configs added to {path}; HELION_PRETUNED={path} lets other kernels try them")


def _contributed(path: pathlib.Path) -> list[pretuned.Row]:
    """Return the rows of a file. Raises ValueError if it has another format, or its folder does not exist."""
    if not path.parent.is_dir():
        raise ValueError(f"--contribute {path}: there is no folder {path.parent}")
    try:
        return pretuned.parsed(path.read_text(encoding="utf-8")) if path.is_file() else []
    except ValueError as error:
        raise ValueError(f"--contribute {path}: {error}") from error


def _known(store: Store | None, work: Work) -> str:
    """Return the rows of a kernel in this machine's cache, for workers that have a cache of their own."""
    rows = [] if store is None else store.all(work.kernel.rpartition("::")[2])
    return exported([Entry(row=row) for row in rows]) if rows else ""


def _each(works: Sequence[Work], options: argparse.Namespace, measuring: bool) -> Iterator[tuple[Work, Report]]:
    """Yield every job with its report: from this process, or from a pool if there is more than one GPU."""
    if options.ray is not None:
        yield from _by_pool(works, RayPool(options.ray, measuring, options.gpus))
        return
    gpus = _gpus(options.gpus, _all_simulated(works)) if measuring else [None]
    if len(gpus) == 1:
        worker = Worker()
        with _interrupts() as interrupts:
            for work in works:
                yield work, worker.run(work)
                if interrupts:  # it ended the search of one kernel, whose best so far is kept
                    raise KeyboardInterrupt
        return
    share = max(1, (cpus() - 1) // len(gpus))
    works = [replace(work, options={"workers": share, **work.options}) for work in works]
    yield from _by_pool(works, LocalPool(gpus))


@contextlib.contextmanager
def _interrupts() -> Iterator[Sequence[int]]:
    """Collect the keyboard interrupts of the body, even those that other code caught."""
    came: list[int] = []
    before = signal.getsignal(signal.SIGINT)

    def noticed(number: int, frame: types.FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt

    ours = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGINT, noticed)
    try:
        yield came
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)


def _by_pool(works: Sequence[Work], pool: WorkerPool) -> Iterator[tuple[Work, Report]]:
    with contextlib.closing(pool):
        yield from distributed(works, pool)


def _gpus(count: int | None, simulated: bool) -> list[int | None]:
    """Return the numbers of ``count`` visible GPUs, or of all if it is None.

    If all times are ``simulated``, return that many None, for processes without a GPU. Raises ValueError for more GPUs
    than there are.
    """
    there = torch.cuda.device_count()
    if simulated:
        return [None] * (count or max(1, there))
    if count is not None and count > there:
        raise ValueError(f"--gpus {count}: this process sees {there} (CUDA_VISIBLE_DEVICES says which)")
    return list(range(there if count is None else count))


def _finished(results: Iterator[tuple[Work, Report]]) -> tuple[list[Entry], int]:
    """Print reports as jobs end, and return all entries found and the number of failures."""
    entries: list[Entry] = []
    failed = 0
    for work, report in results:
        failed += not _shown(work, report)
        entries += imported(report.entries) if report.entries else []
    return entries, failed


def _shown(work: Work, report: Report) -> bool:
    """Print the report of a job, and return whether it succeeded."""
    if report.worked:
        print(f"{work}: {report.message}", flush=True)
    else:
        print(f"error: {work}: {report.message}", file=sys.stderr, flush=True)
    return report.worked


def _read(path: pathlib.Path) -> dict[str, Any]:
    toml = _toml()
    try:
        found: dict[str, Any] = toml.loads(path.read_text(encoding="utf-8"))
    except toml.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    if unknown := sorted(set(found) - {"target", "tune"}):
        raise ValueError(f"{path}: unknown keys {', '.join(unknown)}; known are target and [[tune]]")
    return found


def _toml() -> Any:
    try:
        return importlib.import_module("tomllib")
    except ModuleNotFoundError:  # Python 3.10
        pass
    try:
        return importlib.import_module("tomli")
    except ModuleNotFoundError as error:
        raise ValueError("reading TOML needs Python 3.11, or tomli: pip install tomli") from error


def _works(spec: Mapping[str, Any], path: pathlib.Path) -> Iterator[Work]:
    """Yield the jobs of a file.

    Raises ValueError for a missing kernel, and ``exc.Base`` for arguments and options that a kernel does not accept.
    """
    for at, table in enumerate(spec.get("tune", ())):
        if not isinstance(table.get("kernel"), str) or not isinstance(table.get("args"), list):
            raise ValueError(f'{path}: [[tune]] number {at + 1} needs kernel = "FILE.py::NAME" and args = [[...], ...]')
        name = str((path.parent / table["kernel"]).absolute())
        kernel = find_kernel(name)
        options = {key: value for key, value in table.items() if key not in ("kernel", "args")}
        if "target" in options:
            raise ValueError(
                f"{path}: target belongs at the top of the file, before the first [[tune]]; it applies to all kernels"
            )
        Options.of(kernel.settings, "quick", options)
        for texts in table["args"]:
            positional, keywords = parse_arguments(texts)
            kernel.normalize_args(*positional, **keywords)
            yield Work(kernel=name, args=tuple(texts), options=options)


COMMAND = Command(
    name="tune",
    help="tune kernels that a file lists; with no GPU, compile and rank them",
    configure=_configure,
    run=_run,
)
