"""Operators of ``helion.ops`` beside those of other libraries on a GPU, which are installed but no part of this project.

    python benchmarks/ops_peers.py --out FILE.jsonl [--seconds S] [NAME ...]

Liger (``liger-kernel``) and QuACK (``quack-kernels``) are called by their public functions, at shapes of models in use.
Each result is compared with fp32, and its largest error is relative to the largest value. Each cell has a process. All
compile side by side; then each has the GPU alone. A cell has the device times of a forward pass and of both passes, with a
cold L2: of CUDA graphs, or ``by`` events where a library waits for the GPU, which no graph can hold.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import multiprocessing
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from benchmarks.ops import angles, integers, normal, passes, rms, rotate  # noqa: E402
from benchmarks.timing import FLUSH_BYTES, GraphTimer, reason  # noqa: E402
from helion import ops  # noqa: E402

#: Fills of L2 before a call that is timed by events: they take longer than the host needs to launch its kernels.
FILLS, REPETITIONS = 12, 15
EPS = 1e-6


@dataclass(frozen=True)
class Cell:
    """One operator at one shape; all variants take the arguments of ``make``, gradients are those of ``differentiated``."""

    name: str
    shape: str
    variants: Mapping[str, Callable[..., Any]]
    reference: Callable[..., Any]
    make: Callable[[], tuple[Any, ...]]
    differentiated: tuple[int, ...]


def of(module: str, name: str) -> Callable[..., Any]:
    """Return a function of another library, which is imported by its first call."""
    return lambda *args, **options: getattr(importlib.import_module(module), name)(*args, **options)


def liger(name: str) -> Callable[..., Any]:
    return of("liger_kernel.transformers.functional", f"liger_{name}")


def cells() -> Iterator[Cell]:
    for m, n in ((8192, 4096),):
        yield from _row_cells(m, n)
    yield from _loss_cells()
    yield _rope_cell()


def _row_cells(m: int, n: int) -> Iterator[Cell]:
    shape = f"{m}x{n}"

    def row(tensors: int, vectors: int) -> Callable[[], tuple[torch.Tensor, ...]]:
        return lambda: (*(normal(m, n) for _ in range(tensors)), *(normal(n) for _ in range(vectors)))

    theirs, quack = liger("rms_norm"), of("quack.rmsnorm", "rmsnorm")
    yield Cell(
        "rms_norm",
        shape,
        {
            "helion": ops.rms_norm,
            "liger": lambda x, w: theirs(x, w, EPS, in_place=False),
            "quack": lambda x, w: quack(x, w, eps=EPS),
        },
        lambda x, w: rms(x.float(), w.float()),
        row(1, 1),
        (0, 1),
    )
    added = liger("fused_add_rms_norm")
    yield Cell(
        "add_rms_norm",
        shape,
        {
            "helion": lambda x, r, w: ops.add_rms_norm(x, r, w)[0],
            "liger": lambda x, r, w: added(x, r, w, EPS, in_place=False)[0],
            "quack": lambda x, r, w: quack(x, w, residual=r, eps=EPS, prenorm=True)[0],
        },
        lambda x, r, w: rms((x + r).float(), w.float()),
        row(2, 1),
        (0, 1, 2),
    )
    layer = liger("layer_norm")
    yield Cell(
        "layer_norm",
        shape,
        {"helion": ops.layer_norm, "liger": lambda x, w, b: layer(x, w, b, 1e-5)},
        lambda x, w, b: F.layer_norm(x.float(), [x.size(-1)], w.float(), b.float()),
        row(1, 2),
        (0, 1, 2),
    )
    soft = {"helion": ops.softmax, "liger": liger("softmax"), "quack": of("quack.softmax", "softmax")}
    yield Cell("softmax", shape, soft, lambda x: x.float().softmax(-1), row(1, 0), (0,))
    gated = {"helion": ops.swiglu, "liger": liger("swiglu")}
    yield Cell("swiglu", shape, gated, lambda a, b: F.silu(a.float()) * b.float(), row(2, 0), (0, 1))
    tanh = {"helion": lambda a, b: ops.geglu(a, b, approximate="tanh"), "liger": liger("geglu")}
    yield Cell("geglu", shape, tanh, lambda a, b: F.gelu(a.float(), approximate="tanh") * b.float(), row(2, 0), (0, 1))


def _loss_cells() -> Iterator[Cell]:
    for m, n in ((4096, 128256), (8192, 32000)):
        made = lambda m=m, n=n: (normal(m, n), integers(n, m))  # noqa: E731
        losses = {
            "helion": ops.cross_entropy,
            "liger": liger("cross_entropy"),
            "quack": of("quack.cross_entropy", "cross_entropy"),
        }
        yield Cell("cross_entropy", f"{m}x{n}", losses, lambda x, t: F.cross_entropy(x.float(), t), made, (0,))
    for m, k, n in ((4096, 4096, 128256), (8192, 2048, 32000)):
        sizes = lambda m=m, k=k, n=n: (normal(m, k), normal(n, k, scale=0.02), integers(n, m))  # noqa: E731
        losses = {
            "helion": ops.linear_cross_entropy,
            "liger": liger("fused_linear_cross_entropy"),
            "quack": of("quack.linear_cross_entropy", "chunked_linear_cross_entropy"),
        }
        exact = lambda x, w, t: F.cross_entropy((x @ w.T).float(), t)  # noqa: E731
        yield Cell("linear_cross_entropy", f"{m}x{k}x{n}", losses, exact, sizes, (0, 1))


def _rope_cell() -> Cell:
    rope = liger("rope")

    def both(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ops.rope(q, cos, sin), ops.rope(k, cos, sin)

    def theirs(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide = (torch.cat((each, each), -1)[None] for each in (cos, sin))
        found: Any = rope(q.transpose(1, 2), k.transpose(1, 2), *wide)
        return found[0].transpose(1, 2), found[1].transpose(1, 2)

    def exact(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return rotate(q.float(), cos, sin), rotate(k.float(), cos, sin)

    made = lambda: (normal(4, 4096, 32, 128), normal(4, 4096, 8, 128), *angles(4096, 128))  # noqa: E731
    return Cell("rope", "4x4096x32/8x128", {"helion": both, "liger": theirs}, exact, made, (0, 1))


# --- running ----------------------------------------------------------------------------------------------------------


def cloned(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments with memory of their own: some functions write into theirs."""
    return tuple(each.clone() for each in args)


def largest_error(found: Any, expected: Any) -> float:
    """Return the largest error relative to the largest value, of all results together."""
    pairs = zip(*(each if isinstance(each, tuple) else (each,) for each in (found, expected)), strict=True)
    return max(float((a.float() - b.float()).abs().max() / b.float().abs().max()) for a, b in pairs)


def prepared(cell: Cell) -> dict[str, Any]:
    """Call all variants once, and compare them with the reference; return errors and reasons."""
    torch.manual_seed(0)
    args = cell.make()
    row: dict[str, Any] = {"name": cell.name, "shape": cell.shape, "errors": {}, "failed": {}}
    expected = cell.reference(*args)
    wanted = passes_of(cell, cell.reference, cloned(args), backward=True)()
    for name, function in cell.variants.items():
        try:
            errors = [largest_error(function(*cloned(args)), expected)]
            errors.append(largest_error(passes_of(cell, function, cloned(args), backward=True)(), wanted))
            row["errors"][name] = [round(each, 5) for each in errors]
        except Exception as error:  # of any library: it belongs into the table
            row["failed"][name] = reason(error)
    return row


def passes_of(cell: Cell, function: Callable[..., Any], args: tuple[Any, ...], *, backward: bool) -> Callable[[], Any]:
    """Return a call without arguments, as ``benchmarks.ops`` times it."""
    call: Callable[[], Any] = passes(cell, function, args, backward=backward)  # type: ignore[arg-type]
    return call


def by_events(functions: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Return microseconds between events around calls in turn, after fills of L2."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(REPETITIONS):
        for name, function in functions.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(FILLS):
                flush.zero_()
            start.record()
            function()
            end.record()
            torch.cuda.synchronize()
            samples[name].append(1e3 * start.elapsed_time(end))
    return {name: statistics.median(each) for name, each in samples.items()}


def timed(cell: Cell, row: dict[str, Any]) -> None:
    """Add the times of all variants that work to a row."""
    torch.manual_seed(0)
    args, timer = cell.make(), GraphTimer()
    works = {name: f for name, f in cell.variants.items() if name not in row["failed"]}
    for label, backward in (("forward", False), ("both", True)):
        calls = {name: passes_of(cell, f, cloned(args), backward=backward) for name, f in works.items()}
        times, failures = timer.time(calls)
        row[label] = {name: round(each.median, 2) for name, each in times.items()}
        if failures:
            row[label] = {name: round(us, 2) for name, us in by_events(calls).items()}
            row.setdefault("by", {})[label] = "events"


def work(at: int, turn: Any, together: Any, results: Any) -> None:
    """Prepare the cell at a place, wait for all others, and time it in its turn."""
    cell = list(cells())[at]
    row = prepared(cell)
    try:
        together.wait()
    except threading.BrokenBarrierError:  # one takes longer than all others
        row["alone"] = False
    with turn:
        timed(cell, row)
    results.put(row)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="operators; all if none is named")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "ops-peers.jsonl", metavar="FILE.jsonl")
    parser.add_argument("--seconds", type=float, default=90.0, help="time for everything")
    options = parser.parse_args()
    end = time.time() + options.seconds
    picked = [at for at, cell in enumerate(cells()) if not options.names or cell.name in options.names]
    spawned = multiprocessing.get_context("spawn")
    turn, results = spawned.Lock(), spawned.Queue()
    together = spawned.Barrier(len(picked), timeout=0.65 * options.seconds)
    workers = [spawned.Process(target=work, args=(at, turn, together, results), daemon=True) for at in picked]
    for each in workers:
        each.start()
    versions = {name: version_of(name) for name in ("torch", "triton", "liger-kernel", "quack-kernels")}
    about = {"device": torch.cuda.get_device_name(), "date": datetime.date.today().isoformat(), "versions": versions}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("a") as file:
        for _ in picked:
            try:
                row = results.get(timeout=max(end - time.time(), 0.1))
            except Exception:  # nothing in time; the module of queues has the class
                break
            print(json.dumps({**row, **about}), file=file, flush=True)
            print({key: row[key] for key in row if key not in about}, flush=True)
    for each in workers:
        each.kill()
    return 0


def version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
