"""Time matmuls of few rows with 8-bit weights under many configs of the CuTe backend, beside a copy of the weights.

    python benchmarks/few_rows.py [--seconds N] [--turn N] [NAME ...]

Each config has its own process: it compiles without the GPU, and takes it in turn. A line of JSON has the config, the
microseconds, those of Triton's default, of a copy of the weights and of sums over them, the share of the copy's rate at
which weights are read, and the error of a row against fp64. ``clean`` has the times after L2 was filled by reads.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import helion  # noqa: E402
import helion.language as hl  # noqa: E402
from benchmarks.cute_products import CASES, ERRORS, Case, compiled, row_error  # noqa: E402
from benchmarks.timing import GraphTimer  # noqa: E402
from benchmarks.turns import in_turn, turn  # noqa: E402

NAMES = (
    "int8_weights_one_row",
    "int8_weights_few_rows",
    "int8_linear_few_rows",
    "int8_weights_fp16",
    "int8_weights_64_rows",
)
TILES = ((64, 32), (128, 32), (64, 64), (128, 64))
SPLITS = ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (1, 4))
"""CTAs of a cluster and clusters that split K."""
FILLS, MOST = 0.8, 1.8
"""The least and the most CTAs of a config, as shares of the SMs; twice as many are at most two on each."""


def row_sums(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, :].sum(-1)
    return out


def configs(case: Case, sms: int = 132) -> Iterator[dict[str, Any]]:
    """Yield the keys of the configs of a case."""
    (m, n, _), rows = case.large, case.large[0]
    n += case.odd[0]
    for (tile_n, tile_m), (splits, clusters) in itertools.product(TILES, SPLITS):
        ctas = -(-n // tile_n) * -(-m // tile_m) * splits * clusters
        if tile_m < max(32, min(rows, 64)):
            continue
        keys = {
            "block_sizes": [tile_m, tile_n, 128],
            "wgmma_copies_in": "registers",
            "wgmma_k_splits": splits,
            "wgmma_grid_splits": clusters,
            "wgmma_epilogue_columns": max(8, min(16, tile_m // splits)),
        }
        if FILLS * sms <= ctas <= MOST * sms:
            yield keys
        if sms < ctas <= 2 * sms and (tile_n == 64 or (splits == 1 and tile_m == 32)):
            yield keys | {"wgmma_ctas_per_sm": 2}


def timed(name: str, number: int) -> dict[str, Any]:
    """Compile a config of a case, wait for the GPU, and return its line."""
    case, keys = CASES[name], [*configs(CASES[name])][number]
    kernel = helion.kernel(case.kernel, backend="cute")
    bound = kernel.bind(case.tensors(True, "meta"), target="h100")
    config = helion.Config(**keys)
    bound.resources(config)
    triton = compiled(case, True, "triton")
    with turn():
        arguments = case.tensors(True, "cuda")
        found = kernel.bind(arguments)
        found.set_config(config)
        error = row_error(found(*arguments), case.exact(*arguments))
        other = triton[0].bind(arguments)
        other.set_config(triton[1])
        weights = arguments[1]
        target, words = torch.empty_like(weights), weights.t().contiguous().view(torch.float32)
        sums = helion.kernel(row_sums).bind((words, words[:, 0]))
        functions = {
            "cute": functools.partial(found, *arguments),
            "triton": functools.partial(other, *arguments),
            "copy": functools.partial(target.copy_, weights),
            "read": functools.partial(sums, words, torch.empty_like(words[:, 0])),
        }
        us, clean = (
            {each: time.median for each, time in timer.time(functions)[0].items()}
            for timer in (GraphTimer(), GraphTimer(clean=True))
        )
    share = us["copy"] / 2 / us["cute"]
    return {"config": keys, **us, "clean": clean, "share": share, "error": error, "ok": error < ERRORS[case.out]}


def main() -> None:
    parser = argparse.ArgumentParser(description="time matmuls of few rows with 8-bit weights")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=120.0, help="limit of all configs, compilation included")
    parser.add_argument("--turn", type=float, default=10.0, help="limit of one config on the GPU")
    parser.add_argument("--here", type=int, help="time the config of this number in this process")
    options = parser.parse_args()
    if options.here is not None:
        print(json.dumps(timed(options.names[0], options.here)), flush=True)
        return
    jobs = {
        f"{name}/{number}": [sys.executable, __file__, name, "--here", str(number)]
        for name in options.names or NAMES
        for number, _ in enumerate(configs(CASES[name]))
    }
    for job, line in in_turn(jobs, at_once=os.cpu_count() or 1, turn_seconds=options.turn, seconds=options.seconds):
        name, number = job.split("/")
        print(json.dumps({"name": name, "number": int(number), **line}), flush=True)


if __name__ == "__main__":
    main()
