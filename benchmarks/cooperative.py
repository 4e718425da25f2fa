"""Kernels with barriers on a GPU: one cooperative launch, compared with one launch for each phase.

    python benchmarks/cooperative.py [--out FILE.jsonl] [--launches N]

Each case runs with both and is compared with PyTorch, also in graphs on two streams at once. A line per case has
microseconds: device time of a graph with a cold L2, and those of a call in a loop.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

import torch  # noqa: E402

import helion  # noqa: E402
from benchmarks.timing import GraphTimer, reason  # noqa: E402
from helion._testing import import_path  # noqa: E402

#: Runs of a case whose results are all compared, and calls that are timed in a loop.
LAUNCHES, CALLS = 300, 200
PERSISTENT = {"pid_type": "persistent_interleaved"}
#: Decode layers: tokens, hidden, heads, groups, dimensions, inner and cached tokens.
LAYERS = ((1, 4096, 32, 8, 128, 14336, 4096), (16, 4096, 32, 8, 128, 14336, 1024), (4, 2048, 16, 4, 128, 5632, 512))
#: Products: rows, K, columns and parts.
PRODUCTS = ((16, 4096, 4096, 8), (64, 8192, 1024, 16), (7, 1000, 513, 5))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kernel with two configs, and the same in PyTorch; ``tolerance`` is relative to the largest result."""

    name: str
    kernel: helion.Kernel
    args: tuple[Any, ...]
    eager: Callable[..., torch.Tensor]
    apart: helion.Config
    together: helion.Config
    tolerance: float


def cases() -> Iterator[Case]:
    """Yield the cases, with random arguments."""
    torch.manual_seed(0)
    products = import_path(ROOT / "examples" / "split_k_barrier.py")
    for m, k, n, parts in PRODUCTS:
        x = torch.randn(m, k, device="cuda").bfloat16() + 0.1
        y = (torch.randn(k, n, device="cuda") * k**-0.5).bfloat16()
        bound = products.matmul_in_parts.bind((x, y, parts))
        full = {**bound.default_config(), **PERSISTENT}
        apart, together = (bound.config_spec.normalize({**full, "cooperative_launch": c}) for c in (False, True))
        yield Case(
            name=f"product {m} {k} {n} in {parts}",
            kernel=products.matmul_in_parts,
            args=(x, y, parts),
            eager=lambda x, y, parts: x @ y,
            apart=apart,
            together=together,
            tolerance=0.01,
        )
    layers = import_path(ROOT / "examples" / "decode_layer.py")
    for sizes in LAYERS:
        args = layers.inputs(*sizes, torch.bfloat16)
        spec = layers.decode_layer.bind(args).config_spec
        apart, together = (spec.normalize({**layers.TOGETHER, "cooperative_launch": c}) for c in (False, True))
        yield Case(
            name=f"layer {' '.join(map(str, sizes))}",
            kernel=layers.decode_layer,
            args=args,
            eager=layers.reference,
            apart=apart,
            together=together,
            tolerance=0.03,
        )


def wrong(case: Case, run: Callable[..., torch.Tensor], launches: int) -> str:
    """Return what is wrong with the results of many launches, and of two graphs at once, or ""."""
    exact = case.eager(*case.args).float()

    def error(found: torch.Tensor) -> float:
        return float((found.float() - exact).abs().max() / exact.abs().max())

    first = run(*case.args)
    if not error(first) <= case.tolerance:
        return f"error {error(first):.2e}"
    differing = sum(not torch.equal(run(*case.args), first) for _ in range(launches))
    if differing:
        return f"{differing} of {launches} launches differ"
    streams, graphs, found = [torch.cuda.Stream() for _ in range(2)], [], []
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            found.append(run(*case.args))
        graphs.append(graph)
    for _ in range(launches):
        for stream, graph in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        run(*case.args)
    torch.cuda.synchronize()
    return "" if all(torch.equal(each, first) for each in found) else "graphs that run at once differ"


def loop_us(call: Callable[[], Any]) -> float:
    """Return the microseconds of a call in a loop, on the host and the device together."""
    for _ in range(5):
        call()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    torch.cuda.synchronize()
    return round(1e6 * (time.perf_counter() - began) / CALLS, 2)


def row(case: Case, launches: int, timer: GraphTimer) -> dict[str, Any]:
    """Return the checks and times of a case."""
    found: dict[str, Any] = {"case": case.name, "failed": {}, "graph_us": {}, "loop_us": {}}
    calls: dict[str, Callable[[], Any]] = {"eager": lambda: case.eager(*case.args)}
    bound = case.kernel.bind(case.args)
    for name, config in (("apart", case.apart), ("together", case.together)):
        try:
            run = bound.compile_config(config)
            if what := wrong(case, run, launches):
                found["failed"][name] = what
            calls[name] = lambda run=run: run(*case.args)  # type: ignore[misc]
        except Exception as error:  # a launch that the driver refuses belongs into the table
            found["failed"][name] = reason(error)
    if "layer" in case.name:
        calls.pop("eager")  # its loop over tokens reads lengths on the host
    times, failures = timer.time(calls)
    found["graph_us"] = {name: round(each.median, 2) for name, each in times.items()}
    found["failed"] |= {f"{name}, graph": why for name, why in failures.items()}
    found["loop_us"] = {name: loop_us(call) for name, call in calls.items()}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="compare cooperative launches with one launch for each phase")
    parser.add_argument("--out", type=Path, default=None, metavar="FILE.jsonl")
    parser.add_argument("--launches", type=int, default=LAUNCHES, help="runs of each case that are compared")
    options = parser.parse_args()
    timer, bad = GraphTimer(), 0
    device = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": str(datetime.date.today())}
    for case in cases():
        found = row(case, options.launches, timer) | device
        bad += bool(found["failed"])
        line = json.dumps(found)
        print(line, flush=True)
        if options.out is not None:
            with options.out.open("a", encoding="utf-8") as out:
                out.write(line + "\n")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
