"""Check and time parts of matmuls that the CuTe backend runs on request: groups of rows, batches of several dimensions,
several products of the same rows, windows of tensors, additions to memory, int8, and sums of matmuls.

    python benchmarks/cute_parts.py [--times] [--repeats N] [--seconds N] [--workers N] [--device cpu] [NAME ...]

Each case has its own process. They compile side by side without the GPU, and take it in turn; one that hangs is ended after
``--turn`` seconds. Each prints one line of JSON: the largest error of a row against fp64, rows that have changed and should
not, and the repeats whose bytes differ. With ``--times`` a second line has medians in microseconds: of this backend, of
Triton, and of torch's calls. ``--device cpu`` evaluates the kernels without a GPU.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "test")]

import helion  # noqa: E402
from benchmarks.cute_parts_cases import CASES, UNTOUCHED, Arguments, Case  # noqa: E402
from benchmarks.turns import in_turn, turn  # noqa: E402


def stacked(result: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return a copy of a result, or of all of a kernel's results."""
    tensor = result.clone() if isinstance(result, torch.Tensor) else torch.stack(result)
    return tensor[:, None] if tensor.ndim == 1 else tensor


def _nearly_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether rows differ by as much as the order of additions changes them."""
    one, other = one.double(), other.double()
    return bool(((one - other).norm(dim=1) <= 1e-2 * other.norm(dim=1)).all())


def checked(case: Case, arguments: Arguments, bound: helion.BoundKernel, repeats: int) -> dict[str, Any]:
    """Return the largest error of a row, rows that changed and should not, and the repeats that differ."""
    result = stacked(bound(*arguments))
    same = torch.equal if case.ordered else _nearly_equal
    differing = sum(not same(stacked(bound(*arguments)), result) for _ in range(repeats))
    rows, exact = (each.reshape(-1, result.size(-1)) for each in (result, case.exact(*arguments)))
    outside = exact[:, 0].isnan()
    changed = int((rows[outside] != UNTOUCHED).any(1).sum())
    inside = exact[~outside]
    error = float(((rows[~outside].double() - inside).norm(dim=1) / inside.norm(dim=1)).max())
    return {"error": error, "differing": differing, "changed": changed, "ok": error < 1e-2 and not differing + changed}


def timed(case: Case, arguments: Arguments, bounds: Mapping[str, helion.BoundKernel]) -> dict[str, float]:
    """Return medians in microseconds."""
    from benchmarks.timing import GraphTimer

    functions = case.library(*arguments)
    for name, bound in bounds.items():
        functions[name] = functools.partial(bound, *arguments)
    times, _ = GraphTimer().time(functions)
    return {name: each.median for name, each in times.items()}


def compile_ahead(case: Case, backends: Sequence[str]) -> None:
    """Compile the kernels without the GPU, for tensors of the same shapes."""
    with torch.device("meta"):
        arguments = case.arguments()
    for backend in backends:
        bound = case.bound(arguments, backend, target="h200")
        bound.resources(bound.default_config())


def run(name: str, options: argparse.Namespace) -> None:
    case, on_gpu = CASES[name], options.device == "cuda"
    if on_gpu:
        compile_ahead(case, ("cute", "triton") if options.times else ("cute",))
    torch.set_default_device(options.device)
    with turn():
        arguments = case.arguments()
        target = None if on_gpu else "sm_90"
        line = {"name": name, **checked(case, arguments, case.bound(arguments, "cute", target), options.repeats)}
        print(json.dumps(line), flush=True)
        if options.times:
            bounds = {backend: case.bound(arguments, backend) for backend in ("cute", "triton")}
            print(json.dumps({"name": name, **timed(case, arguments, bounds)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="check and time parts of matmuls")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=120.0, help="limit of all cases, compilation included")
    parser.add_argument("--turn", type=float, default=30.0, help="limit of one case on the GPU between two lines")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="cases that compile at once")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--here", action="store_true", help="run the cases in this process")
    options = parser.parse_args()
    if options.here:
        for name in options.names or CASES:
            run(name, options)
        return
    flags = ["--here", "--repeats", str(options.repeats), "--device", options.device]
    flags += ["--times"] if options.times else []
    jobs = {name: [sys.executable, __file__, name, *flags] for name in options.names or CASES}
    lines = in_turn(jobs, at_once=options.workers, turn_seconds=options.turn, seconds=options.seconds)
    for name, line in lines:
        print(json.dumps(line if "why" not in line else {"name": name, "ok": False, **line}), flush=True)


if __name__ == "__main__":
    main()
