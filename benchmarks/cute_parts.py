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
from benchmarks.cute_parts_cases import (  # noqa: E402
    E4M3,
    UNTOUCHED,
    Arguments,
    Case,
    batched,
    begun_within,
    by_heads,
    by_tokens,
    grouped,
    in_experts,
    in_halves,
    into_memory,
    of_blocks,
    of_bytes,
    of_cells,
    of_complex_numbers,
    of_mixtures,
    of_nibbles,
    of_nvfp4,
    of_states,
    over_time,
    side_by_side,
    with_adapter,
    with_gates,
    with_sums,
)
from benchmarks.cute_parts_epilogues import into_bytes, of_centres, with_dropout  # noqa: E402
from benchmarks.cute_parts_groups import of_blocks_of_experts, of_experts  # noqa: E402
from benchmarks.cute_parts_kernels import (  # noqa: E402
    added_experts,
    cosines,
    four,
    heads,
    held,
    lengths,
    projected,
    routed_experts,
    routed_gated_experts,
    scattered_experts,
    three,
    weight_gradients,
    weighted,
)
from benchmarks.cute_parts_loops import (  # noqa: E402
    ended_by_columns,
    ended_by_rows,
    heads_in_each,
    in_each,
    normalized_in_each,
    with_rounded_tiles,
)
from benchmarks.cute_parts_sequences import through_few_columns, with_low_rank  # noqa: E402
from benchmarks.turns import in_turn, turn  # noqa: E402

LEAST_NORM = 1e-6
"""Rows of zeros have this norm, so that any other result of theirs is an error."""
EVEN, SKEWED, FEW = (512,) * 8, (0, 1, 3000, 0, 64, 129, 1, 901), (70, 0, 1, 229)
GIANT = (0,) * 60 + (1,) * 60 + (8000,) + (0,) * 7
EIGHT = (2750, 1310, 2048, 2049, 640, 4096, 1927, 1564)
#: 16384 rows of 128 experts.
MANY = (*(64 + 37 * at % 129 for at in range(127)), 147)
NARROW = (("block_sizes", [128, 64, 64]), ("wgmma_pingpong", True), ("wgmma_cluster_m", 1))
TALL = (("block_sizes", [256, 64]), ("wgmma_ab_stages", None), ("wgmma_epilogue_columns", 16))
"""Tiles of 256 rows of two matmuls, with as many stages as fit."""
WIDE_CLUSTER = (
    ("block_sizes", [128, 128, 64]),
    ("wgmma_cluster_m", 2),
    ("wgmma_cluster_n", 2),
    ("wgmma_ab_stages", None),
)
CASES = {
    "one_group": grouped(300, n=264, k=200),
    "small": grouped(*FEW, n=264, k=200, first=5),
    "lengths": grouped(*FEW, n=264, k=200, first=5, kernel=lengths),
    "fp8": grouped(*FEW, n=272, k=208, first=5, dtype=E4M3),
    "cooperative": grouped(*SKEWED, first=3, config=(("wgmma_pingpong", False),)),
    "one_cta": grouped(*SKEWED, first=3, config=(("wgmma_cluster_m", 1), ("wgmma_cluster_n", 1))),
    "shared_a": grouped(*SKEWED, first=3, config=(("wgmma_cluster_m", 1), ("wgmma_cluster_n", 2))),
    "weighted": grouped(*FEW, n=264, k=200, first=5, kernel=weighted),
    "weighted_skewed": grouped(*SKEWED, first=3, kernel=weighted),
    "dynamic": grouped(*FEW, n=264, k=200, first=5, static=False),
    "blocks_of_experts": of_blocks_of_experts(700, 5, k=200, n=264),
    "picked_blocks": of_blocks_of_experts(700, 5, k=200, n=264, tokens=300),
    "picked_blocks_large": of_blocks_of_experts(16384, 32, k=2048, n=1536, tokens=4096),
    "masked": grouped(*FEW, n=264, k=200, first=5, longest=1000),
    "masked_shorter": grouped(*FEW, n=264, k=200, first=5, longest=64),
    "masked_dynamic": grouped(*FEW, n=264, k=200, first=5, longest=40, static=False),
    "masked_odd": grouped(*FEW, n=263, k=203, first=5, longest=70),
    "heads": batched(heads, 3, 4, 203, 200, 264, 4),
    "shared_heads": batched(heads, 3, 8, 203, 200, 264, 2),
    "projected": batched(projected, 3, 5, 203, 200, 64, 5),
    "heads_odd": batched(heads, 3, 4, 203, 201, 263, 4),
    "states": of_states(2, 3, 100, 4, 40, 72),
    "states_large": of_states(8, 16, 256, 32, 64, 128),
    "three": side_by_side(three, 3, 203, 264, 200),
    "four": side_by_side(four, 4, 203, 264, 200),
    "three_odd": side_by_side(three, 3, 203, 264, 201),
    "four_odd": side_by_side(four, 4, 203, 264, 479),
    "shifted": begun_within(203, 264, 201),
    "shifted_even": begun_within(203, 263, 200),
    "nibbles": of_nibbles(203, 264, 512),
    "nibbles_odd": of_nibbles(203, 263, 512),
    "nibbles_large": of_nibbles(2048, 11008, 4096),
    "nibbles_few_rows": of_nibbles(16, 4096, 4096),
    "nvfp4": of_nvfp4(203, 264, 512),
    "nvfp4_large": of_nvfp4(4096, 4096, 4096),
    "low_rank": with_low_rank(203, 264, 320, 16),
    "low_rank_odd": with_low_rank(203, 263, 320, 20),
    "low_rank_large": with_low_rank(4096, 4096, 4096, 16),
    "low_rank_few_rows": with_low_rank(32, 11008, 4096, 64),
    "few_columns": through_few_columns(203, 264, 320, 40),
    "few_columns_large": through_few_columns(2048, 32000, 2048, 64),
    "held": side_by_side(held, 1, 203, 264, 200),
    "added": into_memory(203, 264, 2000),
    "added_split": into_memory(203, 264, 2000, split=4),
    "added_large": into_memory(256, 512, 100000),
    "added_square": into_memory(4096, 4096, 4096),
    "bytes": of_bytes(203, 264, 3008),
    "bytes_square": of_bytes(4096, 4096, 4096),
    "bytes_blocks": of_blocks(203, 264, 5),
    "bytes_blocks_square": of_blocks(4096, 4096, 32),
    "bytes_rows": of_bytes(32, 8192, 8192),
    "adapted": with_adapter(203, 264, 200, 24),
    "gated_sums": with_gates(203, 264, 200, 24),
    "gated_sums_large": with_gates(8192, 4096, 4096, 64),
    "filtered": over_time(203, 264, 200),
    "filtered_odd": over_time(203, 263, 201),
    "filtered_odd_large": over_time(8192, 2047, 2047),
    "complex": of_complex_numbers(203, 264, 200),
    "complex_odd": of_complex_numbers(203, 263, 201),
    "complex_large": of_complex_numbers(4096, 4096, 2048),
    "nearest": of_centres(203, 64, 264),
    "nearest_large": of_centres(65536, 64, 1024),
    "bytes_to_bytes": into_bytes(203, 264, 3008),
    "bytes_to_bytes_square": into_bytes(4096, 4096, 4096),
    "dropped": with_dropout(203, 264, 200),
    "dropped_odd": with_dropout(203, 263, 201),
    "dropped_large": with_dropout(8192, 4096, 4096),
    "ended_rows": ended_by_rows(300, 104),
    "ended_rows_large": ended_by_rows(4096, 4096),
    "ended_columns": ended_by_columns(300, 304),
    "ended_columns_large": ended_by_columns(4096, 4096),
    "rounded_tiles": with_rounded_tiles(203, 264, 200),
    "rounded_tiles_large": with_rounded_tiles(4096, 4096, 4096),
    "spread": in_each(3, 203, 264, 200),
    "spread_odd": in_each(3, 203, 263, 201),
    "spread_large": in_each(64, 512, 512, 512),
    "spread_heads": heads_in_each(2, 5, 203, 64, 200),
    "spread_heads_large": heads_in_each(8, 32, 1024, 128, 1024),
    "spread_rows": normalized_in_each(3, 50, 1000),
    "spread_rows_large": normalized_in_each(32, 128, 4096),
    "cells": of_cells(203, 200, 264),
    "cells_large": of_cells(4096, 1024, 1024),
    "mixtures": of_mixtures(203, 64, 136),
    "mixtures_large": of_mixtures(100000, 64, 128),
    "adapted_large": with_adapter(8192, 4096, 4096, 64),
    "filtered_large": over_time(8192, 2048, 2048),
    "halves": in_halves(203, 264, 200),
    "rotated": by_heads(203, 5, 200),
    "halves_large": in_halves(8192, 8192, 2048),
    "rotated_large": by_heads(8192, 32, 4096),
    "rotated_tall": by_heads(203, 5, 200, config=TALL),
    "rotated_tall_large": by_heads(8192, 32, 4096, config=TALL),
    "odd_groups": grouped(*FEW, n=264, k=203, first=5),
    "odd_outputs": grouped(*FEW, n=263, k=200, first=5),
    "odd_groups_8": grouped(*EVEN, k=1023),
    "odd_outputs_8": grouped(*EVEN, n=2047),
    "even_8": grouped(*EVEN),
    "skewed_8": grouped(*SKEWED),
    "masked_even_8": grouped(*EVEN, longest=max(EVEN)),
    "even_128": grouped(*(128,) * 128, n=768, k=2048),
    "even_64": grouped(*(128,) * 64, n=1536),
    "few_rows_128": grouped(*(7,) * 128, n=1536),
    "giant_128": grouped(*GIANT, n=1536),
    "gated_small": in_experts(*FEW, n=264, k=200, gated=True),
    "gated_static": in_experts(*FEW, n=264, k=200, gated=True, static=True),
    "gated_one_cta": in_experts(*SKEWED, n=264, k=200, gated=True, config=(("wgmma_cluster_m", 1),)),
    "gated_8": in_experts(*EIGHT, n=14336, k=4096, gated=True),
    "gated_128": in_experts(*MANY, n=768, k=2048, gated=True),
    "gated_few_128": in_experts(*(7,) * 128, n=768, k=2048, gated=True),
    "turned_8": in_experts(*EIGHT, n=14336, k=4096),
    "turned_8_unbanded": in_experts(*EIGHT, n=14336, k=4096, config=(("l2_groupings", [1]),)),
    "turned_128": in_experts(*MANY, n=768, k=2048),
    "turned_128_narrow": in_experts(*MANY, n=768, k=2048, config=NARROW),
    "turned_128_one_cta": in_experts(*MANY, n=768, k=2048, config=(("wgmma_cluster_m", 1),)),
    "gathered": by_tokens(routed_experts, *FEW, tokens=97, n=264, k=200),
    "gathered_gated": by_tokens(routed_gated_experts, *FEW, tokens=97, n=264, k=200),
    "gathered_gated_128": by_tokens(routed_gated_experts, *MANY, tokens=2048, n=768, k=2048),
    "scattered": by_tokens(scattered_experts, *FEW, tokens=350, n=264, k=200),
    "added_rows": by_tokens(added_experts, *FEW, tokens=97, n=264, k=200, dtype=torch.float32),
    "added_half": by_tokens(added_experts, *FEW, tokens=97, n=264, k=200),
    "gathered_8": by_tokens(routed_experts, *EIGHT, tokens=8192, n=4096, k=4096),
    "scattered_8": by_tokens(scattered_experts, *EIGHT, tokens=16384, n=4096, k=4096),
    "added_8": by_tokens(added_experts, *EIGHT, tokens=8192, n=4096, k=4096, dtype=torch.float32),
    "gathered_128": by_tokens(routed_experts, *MANY, tokens=2048, n=768, k=2048),
    "expert_gradients": of_experts(*FEW, m=200, n=264, first=5),
    "expert_gradients_skewed": of_experts(*SKEWED, m=200, n=264, first=3),
    "expert_gradients_fp16": of_experts(*FEW, m=200, n=264, dtype=torch.float16),
    "expert_gradients_one": of_experts(300, m=200, n=264, first=5),
    "expert_gradients_giant": of_experts(*GIANT, m=264, n=200, first=1),
    "expert_gradients_dynamic": of_experts(*FEW, m=200, n=264, first=5, static=False),
    "expert_gradients_cluster": of_experts(*SKEWED, m=512, n=512, first=5, config=WIDE_CLUSTER),
    "decayed_gradients": of_experts(*SKEWED, m=200, n=264, first=3, decay=True),
    "expert_gradients_8": of_experts(*EIGHT, m=4096, n=14336, static=False),
    "expert_gradients_128": of_experts(*MANY, m=2048, n=1536, static=False),
    "expert_gradients_few_128": of_experts(*(7,) * 128, m=2048, n=768, static=False),
    "expert_gradients_1k": of_experts(*(256,) * 8, m=4096, n=4096, static=False),
    "cosines": with_sums(cosines, 203, 264, 200),
    "weight_gradients": with_sums(weight_gradients, 200, 264, 203),
    "cosines_large": with_sums(cosines, 8192, 4096, 1024),
    "weight_gradients_large": with_sums(weight_gradients, 4096, 4096, 8192),
    "heads_large": batched(heads, 8, 16, 1024, 128, 1024, 4),
    "three_large": side_by_side(three, 3, 8192, 2048, 2048),
    "four_large": side_by_side(four, 4, 8192, 2048, 2048),
    "three_odd_large": side_by_side(three, 3, 8192, 2048, 2047),
    "shifted_large": begun_within(4096, 4096, 4096),
    "held_large": side_by_side(held, 1, 8192, 2048, 512),
    "projected_large": batched(projected, 8, 32, 1024, 4096, 128, 32),
}


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
    error = float(((rows[~outside].double() - inside).norm(dim=1) / inside.norm(dim=1).clamp(min=LEAST_NORM)).max())
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
