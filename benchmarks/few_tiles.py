"""Time configs of matmuls beside those of torch: with few tiles, with rows between lines of memory, and of experts.

Others have a last wave that few tiles fill, few rows with A and B swapped, or rows of the output that TMA cannot store.

    python benchmarks/few_tiles.py {few,odd,waves,swapped,lines,gated,grouped} [--compile] [--seconds N] [--turn N] [--workers N] [--out FILE]

``--compile`` fills the cache of compiled kernels without the GPU. Without it, one process times all configs in order, the
default first. It is replaced where a config gives no line for ``--turn`` seconds. A line of JSON has the config, the
microseconds of both, and the distance of the results. ``gated`` and ``grouped`` are the two matmuls of ``helion.ops.moe``.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "test")]

from backends.cute import products  # noqa: E402

import helion  # noqa: E402
from benchmarks.timing import GraphTimer, reason  # noqa: E402
from helion.backends.cute.resources.time import resident_clusters  # noqa: E402
from helion.backends.cute.space import GRID_SPLITS  # noqa: E402
from helion.hardware import target as target_of  # noqa: E402
from helion.ops.kernels.experts import gated_experts_kernel, grouped_matmul_kernel  # noqa: E402

BF16, TARGET = torch.bfloat16, "h200"
EXPERTS = ((1024, 8, 4096, 14336, 2), (1024, 128, 2048, 768, 8))
"""Tokens, experts, K, N and the experts of a token."""
SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "few": ((256, 256, 65536), (512, 512, 16384), (64, 64, 262144)),
    "odd": ((4096, 4104, 1000), (4096, 4104, 1024), (4096, 4096, 1000), (4096, 4096, 1024)),
    "waves": ((1536, 3072, 16384), (5120, 1024, 16384), (1536, 3072, 4096), (2560, 5120, 16384), (3072, 3072, 4096)),
    "swapped": ((300, 8192, 8192), (150, 8192, 8192), (160, 4096, 4096), (300, 4096, 14336)),
    "lines": ((4097, 4097, 1000), (4096, 4100, 4096), (8192, 300, 8192)),
    "gated": EXPERTS,
    "grouped": EXPERTS,
}
K_MAJOR = ("swapped",)
"""Kinds whose right operand is contiguous along K."""
TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (256, 64), (64, 256), (256, 128), (128, 256))
CLUSTERS, SPLITS = ((1, 1), (2, 1), (1, 2), (2, 2)), (1, 2, 4, 8)
MOST_CTAS, LEAST_CTAS, MOST_READ_BYTES = 8, 60, 700_000
"""Limits of the CTAs of a cluster, of all CTAs, and of the partials that one CTA reads."""
WIDE = ((128, 128, True), (128, 128, False), (256, 128, False), (128, 256, False), (64, 256, True))
"""Tiles, and whether two consumer groups take turns."""

OF_GROUPS = {
    "gated": ((128, 128), (64, 128), (128, 64), (64, 64)),
    "grouped": ((128, 256), (256, 128), (64, 256), (128, 128), (64, 128)),
}
"""Tiles of groups of rows."""

Job = tuple[str, tuple[int, ...], dict[str, Any]]


def few(m: int, n: int, k: int) -> Iterator[dict[str, Any]]:
    """Yield configs that split K among as many clusters as run at once."""
    for (rows, columns), (cm, cn), splits in itertools.product(TILES, CLUSTERS, SPLITS):
        ctas, subtile = cm * cn * splits, min(32, columns // splits)
        if m % (rows * cm) or n % (columns * cn) or ctas > MOST_CTAS or subtile < 8:
            continue
        tiles = m // rows * (n // columns)
        at_once = resident_clusters(ctas, target_of(TARGET)) * cm * cn // tiles
        clusters = max((each for each in GRID_SPLITS if each <= at_once), default=0)
        read = clusters * rows * columns * 4 // splits
        if tiles * splits * clusters >= LEAST_CTAS and k // 64 >= splits * clusters and read <= MOST_READ_BYTES:
            yield {
                "block_sizes": [rows, columns, 64],
                "wgmma_cluster_m": cm,
                "wgmma_cluster_n": cn,
                "wgmma_k_splits": splits,
                "wgmma_grid_splits": clusters,
                "wgmma_epilogue_columns": subtile,
            }


def odd(m: int, n: int, k: int) -> Iterator[dict[str, Any]]:
    for (rows, columns, pingpong), (cm, cn) in itertools.product(WIDE, CLUSTERS[:3]):
        clusters = {"wgmma_cluster_m": cm, "wgmma_cluster_n": cn}
        yield {"block_sizes": [rows, columns, 64], "l2_groupings": [4], "wgmma_pingpong": pingpong, **clusters}


def waves(m: int, n: int, k: int) -> Iterator[dict[str, Any]]:
    """Yield configs whose clusters split the tiles of the last wave alone."""
    for (rows, columns), (cm, cn) in itertools.product(((128, 256), (128, 128), (128, 192)), CLUSTERS[1:3]):
        at_once = resident_clusters(cm * cn, target_of(TARGET))
        left = -(-m // (rows * cm)) * -(-n // (columns * cn)) % at_once
        clusters = max((each for each in GRID_SPLITS if left and each <= at_once // left), default=1)
        if clusters > 1 and columns % (64 * cm) == 0:
            clustered = {"wgmma_cluster_m": cm, "wgmma_cluster_n": cn, "l2_groupings": [4]}
            split = {"wgmma_grid_splits": clusters, "wgmma_split_tiles": "last"}
            yield {"block_sizes": [rows, columns, 64], **clustered, **split}


def swapped(m: int, n: int, k: int) -> Iterator[dict[str, Any]]:
    for (lines, columns), (cm, cn) in itertools.product(((128, 160), (64, 160), (128, 80)), CLUSTERS):
        if lines % (64 * cn) == 0:
            yield {"block_sizes": [columns, lines, 64], "wgmma_cluster_m": cm, "wgmma_cluster_n": cn}


def lines(m: int, n: int, k: int) -> Iterator[dict[str, Any]]:
    yield from (config | {"wgmma_copies_in": "memory"} for config in odd(m, n, k))


def of_groups(kind: str) -> Iterator[dict[str, Any]]:
    for (rows, columns), (cm, cn), pingpong in itertools.product(OF_GROUPS[kind], CLUSTERS[:3], (False, True)):
        if not (pingpong and rows * columns > 128 * 128):
            clusters = {"wgmma_cluster_m": cm, "wgmma_cluster_n": cn}
            yield {"block_sizes": [columns, rows, 64], "l2_groupings": [8], "wgmma_pingpong": pingpong, **clusters}


def jobs(kind: str) -> list[Job]:
    """Return the configs of a kind; an empty one is the default."""
    known = {"few": few, "odd": odd, "waves": waves, "swapped": swapped, "lines": lines}
    found = [(shape, known[kind](*shape) if kind in known else of_groups(kind)) for shape in SHAPES[kind]]
    return [(kind, shape, keys) for shape, configs in found for keys in ({}, *configs)]


def filled(*shape: int, device: str, scale: float = 1.0) -> torch.Tensor:
    made = torch.empty(*shape, dtype=BF16, device=device)
    return made if device == "meta" else made.normal_().mul_(scale)


@functools.lru_cache(1)
def arguments(kind: str, shape: tuple[int, ...], device: str) -> tuple[torch.Tensor, ...]:
    if kind not in OF_GROUPS:
        m, n, k = shape
        if kind in K_MAJOR:
            return filled(m, k, device=device), filled(n, k, device=device, scale=k**-0.5).t()
        return filled(m, k, device=device), filled(k, n, device=device, scale=k**-0.5)
    tokens, experts, k, n, chosen = shape
    routed = torch.rand(tokens, experts, generator=torch.Generator().manual_seed(0)).topk(chosen, -1).indices
    rows = torch.bincount(routed.flatten(), minlength=experts).cumsum(0)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), rows]).to(device)
    k, n = (k, 2 * n) if kind == "gated" else (n, k)
    return filled(tokens * chosen, k, device=device), filled(experts, k, n, device=device, scale=k**-0.5), offsets


def kernel_of(kind: str) -> helion.Kernel:
    if kind not in OF_GROUPS:
        return helion.kernel(products.matmul.fn, backend="cute")
    kernel = gated_experts_kernel if kind == "gated" else grouped_matmul_kernel
    return helion.kernel(kernel.fn, backend="cute", static_shapes=False)


def library(kind: str, given: tuple[torch.Tensor, ...]) -> Callable[[], torch.Tensor]:
    """Return torch's call, or its composition."""
    x, y, *offsets = given
    if not offsets:
        return lambda: x @ y
    ends = offsets[0][1:].to(torch.int32)
    if kind == "grouped":
        return lambda: torch._grouped_mm(x, y, offs=ends)

    def gated() -> torch.Tensor:
        gate, up = torch._grouped_mm(x, y, offs=ends).chunk(2, -1)
        return torch.nn.functional.silu(gate) * up

    return gated


def compiled(job: Job) -> dict[str, Any]:
    """Compile a config of a shape without the GPU, and return its line."""
    kind, shape, keys = job
    try:
        bound = kernel_of(kind).bind(arguments(kind, shape, "meta"), target=TARGET)
        found = bound.resources(helion.Config(**keys) if keys else bound.default_config())
        return {"shape": shape, "config": keys, "registers": found.registers, "spills": found.spill_bytes}
    except (helion.exc.Base, RuntimeError) as error:
        return {"shape": shape, "config": keys, "failed": reason(error)}


def timed(timer: GraphTimer, job: Job) -> dict[str, Any]:
    """Time a config of a shape, and return its line."""
    kind, shape, keys = job
    given = arguments(kind, shape, "cuda")
    bound, call = kernel_of(kind).bind(given), library(kind, given)
    config = helion.Config(**keys) if keys else bound.default_config()
    line: dict[str, Any] = {"shape": shape, "config": keys}
    line |= {} if keys else {"default": repr(bound.short_config(config)), "reason": bound.seeds[0].reason}
    try:
        function = bound.compile_config(config)
        wanted = call().float()
        line["error"] = float((function(*given).float() - wanted).norm() / wanted.norm())
    except (helion.exc.Base, RuntimeError) as error:
        return line | {"failed": reason(error)}
    us, why = timer.time({"cute": functools.partial(function, *given), "library": call})
    return line | {name: round(each.median, 2) for name, each in us.items()} | ({"failed": str(why)} if why else {})


def time_from(kind: str, first: int) -> None:
    """Print the lines of all configs from the number ``first`` on, each after a line with its number."""
    timer = GraphTimer(11)
    for number, job in [*enumerate(jobs(kind))][first:]:
        print(json.dumps({"number": number}), flush=True)
        print(json.dumps({"number": number, **timed(timer, job)}), flush=True)


def lines_of(command: Sequence[str], turn: float, end: float) -> Iterator[Mapping[str, Any] | None]:
    """Yield the lines of a process, and None if it gave none for ``turn`` seconds; then it is ended."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    unread, last = b"", time.monotonic() + 2 * turn
    while True:
        if select.select([child.stdout], [], [], 0.5)[0]:
            data = os.read(child.stdout.fileno(), 65536)
            if not data:
                child.wait()
                return
            *whole, unread = (unread + data).split(b"\n")
            yield from map(json.loads, whole)
            last = time.monotonic()
        if time.monotonic() > min(last + turn, end):
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            yield None
            return


def main() -> None:
    parser = argparse.ArgumentParser(description="time matmuls with few tiles under many configs")
    parser.add_argument("kind", choices=[*SHAPES])
    parser.add_argument("--compile", action="store_true", help="compile alone, without the GPU")
    parser.add_argument("--seconds", type=float, default=120.0, help="limit of all configs")
    parser.add_argument("--turn", type=float, default=15.0, help="limit of one config on the GPU")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="kernels that compile at once")
    parser.add_argument("--out", type=Path, default=Path("/dev/stdout"))
    parser.add_argument("--first", type=int, help="time from this config on in this process")
    options = parser.parse_args()
    if options.first is not None:
        time_from(options.kind, options.first)
        return
    known = jobs(options.kind)
    with options.out.open("a", buffering=1) as out:
        if options.compile:
            with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
                out.writelines(json.dumps(line) + "\n" for line in pool.imap_unordered(compiled, known))
            return
        end, number = time.monotonic() + options.seconds, 0
        while number < len(known) and time.monotonic() < end:
            command, at = [sys.executable, __file__, options.kind, "--first", str(number)], number - 1
            for line in lines_of(command, options.turn, end):
                at = at if line is None else line["number"]
                if line is None or len(line) > 1:
                    hung = {"number": at, "config": known[max(at, 0)][-1], "failed": "no line in its time"}
                    out.write(json.dumps(line or hung) + "\n")
            number = max(at, number) + 1


if __name__ == "__main__":
    main()
