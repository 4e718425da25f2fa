"""Reductions: the published worked examples, and the budget that sizes them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from harness import facts_of, tensor
from heuristic_kernels import (
    B200,
    FP32,
    H100,
    kl_div,
    norm_gradient,
    proposed,
    reason,
    rms_norm,
    sum_then_scale,
    two_pass_softmax,
    welford,
)
from sample_kernels import add, matmul_to_bf16, row_sum, softmax
from unseen_kernels import second_largest

import helion
import helion.language as hl
from benchmarks.unfitted.serving import CELLS
from helion._compiler.facts.records import KernelFacts, LiveTile
from helion._testing import EXAMPLES_DIR, import_path
from helion.autotuner.proposal import Proposal
from helion.backends.triton.heuristics.families.reduction.budget import allocate, row_budget
from helion.backends.triton.heuristics.families.reduction.user_tiled import TritonUserTiledReductionHeuristic
from helion.backends.triton.heuristics.families.reduction.whole import TritonReductionHeuristic
from helion.backends.triton.heuristics.sizing import estimate
from helion.hardware import Target, known_targets, target


def with_live_rows(facts: KernelFacts, count: int, **changes: Any) -> KernelFacts:
    """The facts with ``count`` live fp32 row tiles and one column, as the published examples assume."""

    def tiles(axis: int, grid: int) -> tuple[LiveTile, ...]:
        return (*(((grid, axis), 4),) * count, ((grid,), 4))

    rows = facts.grid_axes[0]
    changed = tuple(
        dataclasses.replace(fact, live_tiles=tiles(fact.axis, rows), body_live_tiles=count, **changes)
        for fact in facts.reductions
    )
    return dataclasses.replace(facts, reductions=changed)


def reduction_seed(facts: KernelFacts, gpu: Target) -> Proposal:
    whole, tiled = TritonReductionHeuristic(), TritonUserTiledReductionHeuristic()
    return proposed(tiled if reason(whole, facts, gpu) else whole, facts, gpu)[0]


def row_seed(facts: KernelFacts, gpu: Target) -> tuple[list[int], list[int | None], int | None]:
    first = reduction_seed(facts, gpu)
    sizes = [first.block_sizes[axis.block_id] for axis in facts.tunable_axes]
    return sizes, [first.reduction_loops[axis.block_id] for axis in facts.rolled_axes], first.num_warps


def test_row_budget() -> None:
    assert row_budget(H100) == row_budget(B200) == row_budget(target("a100")) == 245760


@pytest.mark.parametrize(
    ("kernel", "args", "rows", "hopper", "blackwell"),
    [
        (rms_norm, (tensor(2048, 16384, dtype=FP32), tensor(16384)), 3, ([1], [None], 16), None),
        (softmax, (tensor(1024, 1024),), 3, ([1], [None], 4), None),
        (row_sum, (tensor(4096, 4096),), 2, ([2], [None], 8), ([2], [None], 4)),
        (row_sum, (tensor(4096, 18432),), 2, ([1], [16384], 32), ([1], [16384], 32)),
        (row_sum, (tensor(8, 2**20),), 2, ([1], [16384], 32), ([1], [16384], 32)),
        (rms_norm, (tensor(131072, 512), tensor(512)), 3, ([8], [None], 4), ([8], [None], 2)),
        (softmax, (tensor(4096, 8192),), 3, ([2], [None], 16), ([2], [None], 4)),
        (softmax, (tensor(4096, 8192),), 7, ([1], [None], 16), ([1], [None], 4)),
        (softmax, (tensor(4096, 32768),), 7, ([1], [8192], 32), ([1], [8192], 32)),
        (sum_then_scale, (tensor(1024, 4096, dtype=FP32),), 1, ([1, 4096], [None], 8), None),
        (sum_then_scale, (tensor(1024, 131072, dtype=FP32),), 1, ([1, 32768], [16384], 32), ([1, 4096], [16384], 32)),
        (kl_div, (tensor(4096, 131072, dtype=FP32),) * 2, 6, ([4096, 1], [], 32), None),
        (two_pass_softmax, (tensor(4096, 4096, dtype=FP32),), 3, ([2, 4096], [], 8), ([2, 4096], [], 4)),
        (two_pass_softmax, (tensor(4096, 131072, dtype=FP32),), 3, ([1, 16384], [], 32), None),
        (welford, (tensor(262144, 1024, dtype=FP32),), 3, ([8, 1024, 1024], [], 4), None),
    ],
)
def test_reduction_published(kernel: Any, args: Any, rows: int, hopper: Any, blackwell: Any) -> None:
    facts = with_live_rows(facts_of(kernel, *args), rows)
    assert row_seed(facts, H100) == hopper
    if blackwell is not None:
        assert row_seed(facts, B200) == blackwell


@pytest.mark.parametrize(
    ("rows", "store_only", "longest"),
    [
        (1, False, 183296),
        (1, True, 72704),
        (2, False, 91136),
        (2, True, 35840),
        (3, False, 60416),
        (3, True, 23552),
        (4, False, 45056),
        (4, True, 17408),
        (7, False, 25600),
        (7, True, 10240),
    ],
)
def test_longest_row_that_is_held(rows: int, store_only: bool, longest: int) -> None:
    def held(extent: int) -> bool:
        facts = with_live_rows(facts_of(softmax, tensor(8, extent, dtype=FP32)), rows, store_only_re_read=store_only)
        return not allocate(facts, H100).looped

    assert held(longest) and not held(longest + 1024)


def test_real_live_tiles_give_the_published_choices() -> None:
    assert row_seed(facts_of(softmax, tensor(4096, 8192)), H100) == ([2], [None], 16)
    assert row_seed(facts_of(rms_norm, tensor(2048, 16384, dtype=FP32), tensor(16384)), H100) == ([1], [None], 16)
    assert row_seed(facts_of(row_sum, tensor(4096, 16384)), H100)[1] == [None]
    assert row_seed(facts_of(row_sum, tensor(4096, 18432)), H100)[1] == [16384]


def test_more_live_tiles_never_give_a_larger_chunk() -> None:
    facts = facts_of(softmax, tensor(4096, 65536, dtype=FP32))
    found = [allocate(with_live_rows(facts, rows), H100).chunks[1] for rows in range(1, 12)]
    chunks = [2**20 if chunk is None else chunk for chunk in found]
    assert chunks == sorted(chunks, reverse=True)
    assert chunks[-1] < chunks[0]


def test_eviction() -> None:
    streamed = reduction_seed(facts_of(row_sum, tensor(4096, 4096)), H100)
    assert streamed.eviction == {0: "first"}
    twice = reduction_seed(facts_of(two_pass_softmax, tensor(4096, 4096)), H100)
    assert twice.eviction == {0: "last", 1: "first"}
    once = reduction_seed(facts_of(kl_div, tensor(64, 4096), tensor(64, 4096)), H100)
    assert once.eviction == {}


def test_gradients_per_feature_take_one_wave_of_partial_sums() -> None:
    facts = facts_of(norm_gradient, tensor(65536, 1024), tensor(65536, 1024))
    assert any(fact.per_feature_accumulator for fact in facts.reductions)
    first = reduction_seed(facts, H100)
    outer, inner = (axis.block_id for axis in facts.tunable_axes)
    assert first.block_sizes[outer] == 512  # 65536 rows over 132 SMs, rounded up
    assert first.block_sizes[inner] >= 4
    assert not first.reduction_loops


def test_no_reduction_seed_is_predicted_to_spill() -> None:
    for kernel, count in ((softmax, 1), (rms_norm, 2), (row_sum, 1), (two_pass_softmax, 1), (welford, 1)):
        for extent in (1000, 8192, 32768, 131072):
            args = (tensor(4096, extent, dtype=FP32), tensor(extent, dtype=FP32))[:count]
            facts = facts_of(kernel, *args)
            for gpu in (H100, B200, target("a100"), target("mi300x")):
                first = reduction_seed(facts, gpu)
                found = estimate(facts, gpu, first.block_sizes, first.num_warps or 0, 1, first.reduction_loops)
                assert found.fits and not found.spill_risk, (kernel.__name__, extent, gpu)


@pytest.mark.parametrize(("gpu", "extent"), [("sm_80", 32768), ("sm_80", 131072), ("gfx942", 131072)])
def test_a_loop_that_applies_a_result_has_no_longer_tile_than_registers_hold_for_sure(gpu: str, extent: int) -> None:
    """Tiles of 32768 and 65536 with as many threads as a block has are predicted to take nearly all registers."""
    kernel = import_path(EXAMPLES_DIR / "welford.py").welford
    facts = facts_of(kernel.fn, tensor(2048, extent), tensor(extent), tensor(extent), 1e-5)
    assert row_seed(facts, target(gpu))[0] == [1, 16384, 16384]


@pytest.mark.parametrize(("extent", "chunk"), [(32768, 16384), (32000, 8192)])
def test_a_row_that_ends_inside_of_a_chunk_takes_no_more_registers_than_a_thread_has(extent: int, chunk: int) -> None:
    """The masks of such a chunk leave less room for another order of instructions."""
    facts = facts_of(second_largest.fn, tensor(4096, extent))
    assert row_seed(facts, target("sm_120"))[1] == [chunk]


def test_reductions_decline() -> None:
    whole, tiled = TritonReductionHeuristic(), TritonUserTiledReductionHeuristic()
    product = facts_of(matmul_to_bf16, tensor(64, 64), tensor(64, 64))
    assert "the kernel has a matmul" in reason(whole, product, H100)
    assert "the kernel has a matmul" in reason(tiled, product, H100)
    elementwise = facts_of(add, tensor(64, 64), tensor(64, 64))
    assert "no reduction" in reason(whole, elementwise, H100)
    assert reason(tiled, facts_of(softmax, tensor(64, 64)), H100)
    assert reason(whole, facts_of(welford, tensor(64, 64)), H100)


@pytest.mark.parametrize("name", known_targets())
def test_one_reduction_heuristic_applies_to_each_kernel(name: str) -> None:
    for kernel, args in ((softmax, (tensor(64, 64),)), (welford, (tensor(64, 64),))):
        facts = facts_of(kernel, *args)
        both = (TritonReductionHeuristic(), TritonUserTiledReductionHeuristic())
        assert sum(bool(reason(heuristic, facts, target(name))) for heuristic in both) == 1


def column_means(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(1)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(1)):
        out[tile] = x[:, tile].float().square().mean(0)
    return out


@pytest.mark.parametrize(("columns", "chunks"), [(4099, 256), (4096, 2048)])
def test_rows_that_begin_anywhere_have_short_chunks(columns: int, chunks: int) -> None:
    """Each element has a load of its own there, and loads need registers next to the sums."""
    x = torch.empty(8192, columns, dtype=torch.bfloat16, device="meta")
    seed = helion.kernel(column_means).bind((x,), target="h200").seeds[0]
    assert seed.heuristic == "TritonColumnReductionHeuristic"
    assert seed.config["reduction_loops"] == [chunks]


def scaled_to_bytes(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    for rows in hl.tile(x.size(0)):
        values = x[rows, :]
        low, high = values.amin(-1, keepdim=True), values.amax(-1, keepdim=True)
        out[rows, :] = ((values - low) / (high - low) * 255).to(torch.uint8)
    return out


def test_rows_have_fewer_warps_where_that_is_predicted_to_be_faster() -> None:
    bound = helion.kernel(scaled_to_bytes).bind((tensor(16384, 3000, dtype=FP32),), target="h200")
    first = bound.seeds[0]
    assert first.config["num_warps"] == 4 and first.reason.endswith("4 warps")


def cached_bytes(q: torch.Tensor, k: torch.Tensor, scale: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Queries `q[B, R, D]` of keys and values in bytes, by sums of products."""
    b, r, d = q.size()
    r, d = hl.specialize(r), hl.specialize(d)
    out = torch.empty([b, r, d], dtype=torch.float32, device=q.device)
    for tile_b in hl.tile(b, block_size=1):
        at = tile_b.begin
        query = q[at, :, :].to(torch.float32)
        top = hl.full([r], float("-inf"), dtype=torch.float32)
        total = hl.zeros([r], dtype=torch.float32)
        acc = hl.zeros([r, d], dtype=torch.float32)
        for tile_n in hl.tile(k.size(1)):
            keys = k[at, tile_n, :].to(torch.float32) * scale[at, tile_n][:, None]
            scores = (query[:, None, :] * keys[None, :, :]).sum(-1)
            new = torch.maximum(top, scores.amax(-1))
            p = torch.exp2(scores - new[:, None])
            shrink = torch.exp2(top - new)
            total = total * shrink + p.sum(-1)
            values = v[at, tile_n, :].to(torch.float32) * scale[at, tile_n][:, None]
            acc = acc * shrink[:, None] + (p[:, :, None] * values[None, :, :]).sum(1)
            top = new
        out[at, :, :] = acc / total[:, None]
    return out


def test_warps_that_exchange_sums_in_each_step_are_fewer_by_prediction() -> None:
    """Measurement ``rows_of_bytes``."""
    rows, scale = tensor(1024, 4096, 128, dtype=torch.int8), tensor(1024, 4096, dtype=FP32)
    facts = facts_of(cached_bytes, tensor(1024, 1, 128), rows, scale, tensor(1024, 4096, 128, dtype=torch.int8))
    best, *rest = proposed(TritonUserTiledReductionHeuristic(), facts, target("h200"))
    assert "predicted to be faster" in best.reason and rest
    assert (best.num_warps or 0) < (rest[0].num_warps or 0)


def test_loops_over_several_rows_of_a_program_have_fewer_warps_by_prediction() -> None:
    """Measurement ``low_ranks``."""
    cell = CELLS["adapter_of_each_token"]
    seed = cell.kernel.bind(cell.arguments("meta", False), target="h200").seeds[0]
    assert seed.config["num_warps"] == 8 and seed.config["block_sizes"] == [1, 1024, 1024]


def best_of_rows(x: torch.Tensor, times: hl.constexpr) -> torch.Tensor:
    out = torch.empty([x.size(0), times], dtype=torch.int64, device=x.device)
    for rows in hl.tile(x.size(0)):
        values = torch.log_softmax(x[rows, :], dim=-1)
        lanes = hl.arange(x.size(1))[None, :]
        for i in hl.static_range(times):
            best = torch.argmax(values, -1)
            out[rows, i] = best
            values = torch.where(lanes == best[:, None], float("-inf"), values)
    return out


def test_rows_that_several_reductions_read_again_stay_in_the_cache() -> None:
    """Measurement ``read_again``."""
    seed = helion.kernel(best_of_rows).bind((tensor(512, 50257, dtype=FP32), 4), target="h200").seeds[0]
    assert seed.config["reduction_loops"] != [None]
    assert "first" not in seed.config["load_eviction_policies"]


def weighted_loss(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    loss, grad = torch.empty([x.size(0)], dtype=torch.float32, device=x.device), torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        sign = torch.where(y[rows, :] == 1, 1.0, -1.0)
        z = x[rows, :].to(torch.float32) * sign
        p = torch.sigmoid(z)
        log_p = torch.minimum(z, torch.zeros_like(z)) - torch.log1p(torch.exp(-torch.abs(z)))
        loss[rows] = (-(1 - p) * (1 - p) * log_p).sum(-1)
        grad[rows, :] = sign * (1 - p) * (1 - p) * (2 * p * log_p - (1 - p))
    return loss, grad


def test_rows_of_heavy_bodies_are_counted_by_their_widest_load() -> None:
    """Measurement ``widest_loads``: targets in bytes do not make rows of fp32 shorter."""
    args = (tensor(200_001, 91, dtype=FP32), tensor(200_001, 91, dtype=torch.int8))
    wide, narrow = (helion.kernel(weighted_loss).bind((args[0], y), target="h200") for y in (args[0], args[1]))
    assert wide.default_config()["block_sizes"] == narrow.default_config()["block_sizes"] == [4]


def group_statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    images, places, groups, width = x.size()
    out, means = torch.empty_like(x), torch.empty([images, groups], dtype=torch.float32, device=x.device)
    for image, group in hl.grid([images, groups]):
        total = hl.zeros([], dtype=torch.float32)
        for rows in hl.tile(places):
            total += x[image, rows, group, :].to(torch.float32).sum()
        mean = total / (places * width)
        means[image, group] = mean
        for rows in hl.tile(places):
            v = x[image, rows, group, :].to(torch.float32) - mean
            out[image, rows, group, :] = v * torch.sigmoid(v)
    return out, means


@pytest.mark.parametrize("gpu", ["sm_80", "sm_90", "sm_100"])
def test_loops_over_pieces_of_rows_have_registers_for_their_addresses(gpu: str) -> None:
    """Measurement ``pieces_of_rows``."""
    pieces, rows = (helion.kernel(group_statistics).bind((tensor(16, 4096, 32, n),), target=gpu) for n in (10, 16))
    first, others = pieces.seeds[0], rows.seeds[0]
    assert all(a <= b for a, b in zip(first.config["block_sizes"], others.config["block_sizes"], strict=True))
    assert sum(first.config["block_sizes"]) < sum(others.config["block_sizes"])
    assert not pieces.resources(first.config).spill_bytes
