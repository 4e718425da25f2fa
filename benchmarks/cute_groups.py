"""Check and time products of groups of rows, as experts have them, which the CuTe backend runs on request.

    python benchmarks/cute_groups.py [--times] [--repeats N] [--seconds N] [NAME ...]

Each case runs in a process of its own, so that one that hangs is ended after ``--seconds``. Each prints one line of JSON:
the largest error of a row against fp64, rows outside of groups that have changed, and the repeats whose bytes differ.
With ``--times`` the line has medians in microseconds: of this backend, of Triton, of ``torch._grouped_mm`` and of one
matmul for each group.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import helion  # noqa: E402
import helion.language as hl  # noqa: E402

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
UNTOUCHED = 3.0


def experts(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """``x[rows, K]`` by ``w[G, N, K]``."""
    k, (groups, n, _) = x.size(1), w.size()
    for g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        for tile_m in hl.tile(offsets[g.id], offsets[g.id + 1]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], w[g.id, tile_n, tile_k].T, acc=acc)
            out[tile_m, tile_n] = acc.to(out.dtype)
    return out


def lengths(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """The same, by the number of rows of each group."""
    k, (groups, n, _) = x.size(1), w.size()
    for g in hl.grid(groups):
        start = offsets[g]
        for tile_m, tile_n in hl.tile([offsets[g + 1] - start, n]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[start + tile_m.index, tile_k], w[g, tile_n, tile_k].T, acc=acc)
            out[start + tile_m.index, tile_n] = acc.to(out.dtype)
    return out


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kernel with the sizes of groups, the first row and the columns of its matrices. ``config`` has keys to set."""

    sizes: tuple[int, ...]
    kernel: Callable[..., torch.Tensor] = experts
    n: int = 2048
    k: int = 1024
    first: int = 0
    dtype: torch.dtype = BF16
    config: tuple[tuple[str, Any], ...] = ()

    @property
    def bounds(self) -> list[int]:
        return list(itertools.accumulate(self.sizes, initial=self.first))

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        bounds, generator = self.bounds, torch.Generator("cuda").manual_seed(0)

        def made(*shape: int) -> torch.Tensor:
            return ((torch.randn(shape, generator=generator, device="cuda") + 0.25) / self.k**0.25).to(self.dtype)

        rows = bounds[-1] + 3
        out = torch.full((rows, self.n), UNTOUCHED, dtype=BF16, device="cuda")
        offsets = torch.tensor(bounds, dtype=torch.int32, device="cuda")
        return made(rows, self.k), made(len(self.sizes), self.n, self.k), offsets, out

    def bound(self, arguments: tuple[torch.Tensor, ...], backend: str) -> helion.BoundKernel:
        bound = helion.kernel(self.kernel, backend=backend).bind(arguments)
        if self.config and backend == "cute":
            bound.set_config({**bound.default_config().to_dict(), **dict(self.config)})
        return bound


EVEN, SKEWED = (512,) * 8, (0, 1, 3000, 0, 64, 129, 1, 901)
CASES = {
    "one_group": Case(sizes=(300,), n=264, k=200),
    "small": Case(sizes=(70, 0, 1, 229), n=264, k=200, first=5),
    "lengths": Case(sizes=(70, 0, 1, 229), n=264, k=200, first=5, kernel=lengths),
    "fp8": Case(sizes=(70, 0, 1, 229), n=272, k=208, first=5, dtype=E4M3),
    "cooperative": Case(sizes=SKEWED, first=3, config=(("wgmma_pingpong", False),)),
    "one_cta": Case(sizes=SKEWED, first=3, config=(("wgmma_cluster_m", 1), ("wgmma_cluster_n", 1))),
    "shared_a": Case(sizes=SKEWED, first=3, config=(("wgmma_cluster_m", 1), ("wgmma_cluster_n", 2))),
    "even_8": Case(sizes=EVEN),
    "skewed_8": Case(sizes=SKEWED),
    "even_64": Case(sizes=(128,) * 64, n=1536),
    "few_rows_128": Case(sizes=(7,) * 128, n=1536),
    "giant_128": Case(sizes=(0,) * 60 + (1,) * 60 + (8000,) + (0,) * 7, n=1536),
}


def checked(case: Case, repeats: int) -> dict[str, Any]:
    """Return the error of all groups, rows that no group has and that changed, and the repeats that differ."""
    arguments = case.tensors()
    x, w, _, out = arguments
    bound = case.bound(arguments, "cute")
    result = bound(*arguments).clone()
    differing = sum(not torch.equal(bound(*arguments), result) for _ in range(repeats))
    error, inside = 0.0, torch.zeros(out.size(0), dtype=torch.bool)
    for at, (first, after) in enumerate(itertools.pairwise(case.bounds)):
        if first < after:
            inside[first:after] = True
            exact = x[first:after].double() @ w[at].double().t()
            difference = (result[first:after].double() - exact).norm(dim=1)
            error = max(error, float((difference / exact.norm(dim=1)).max()))
    changed = int((result.cpu()[~inside] != UNTOUCHED).any(1).sum())
    right = error < 1e-2 and not differing and not changed
    return {"error": error, "differing": differing, "changed": changed, "ok": right}


def timed(case: Case) -> dict[str, float]:
    """Return medians in microseconds."""
    from benchmarks.timing import GraphTimer

    arguments = case.tensors()
    x, w, offsets, out = arguments
    pairs = list(enumerate(itertools.pairwise(case.bounds)))

    def one_by_one() -> None:
        for at, (first, after) in pairs:
            if first < after:
                torch.mm(x[first:after], w[at].t(), out=out[first:after])

    functions: dict[str, Callable[[], Any]] = {"cublas": one_by_one}
    if case.dtype == BF16 and case.first == 0:
        functions["grouped_mm"] = lambda: torch._grouped_mm(x[: case.bounds[-1]], w.transpose(1, 2), offs=offsets[1:])
    for backend in ("cute", "triton"):
        bound = case.bound(arguments, backend)
        functions[backend] = lambda bound=bound: bound(*arguments)
    times, _ = GraphTimer().time(functions)
    return {name: each.median for name, each in times.items()}


def run(name: str, options: argparse.Namespace) -> None:
    line = {"name": name, **checked(CASES[name], options.repeats)}
    print(json.dumps(line), flush=True)
    if options.times and CASES[name].dtype == BF16:
        print(json.dumps({**line, **timed(CASES[name])}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="check and time products of groups of rows")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of one case, compilation included")
    parser.add_argument("--here", action="store_true", help="run the cases in this process")
    options = parser.parse_args()
    for name in options.names or CASES:
        if options.here:
            run(name, options)
            continue
        flags = ["--here", "--repeats", str(options.repeats), *(["--times"] if options.times else [])]
        with subprocess.Popen([sys.executable, __file__, name, *flags], stdout=subprocess.PIPE, text=True) as process:
            try:
                said, _ = process.communicate(timeout=options.seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                said, _ = process.communicate()
        last = said.strip().splitlines()
        print(last[-1] if last else json.dumps({"name": name, "ok": False, "why": "no result"}), flush=True)


if __name__ == "__main__":
    main()
