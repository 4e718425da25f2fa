"""Reductions whose rows are few, short of a warp, or one part of a step: warps that do not meet, and rows read whole."""

from __future__ import annotations

import math

import pytest
import torch

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS


@helion.kernel(backend="triton")
def class_losses(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    b, c, n = x.shape
    c = hl.specialize(c)
    out = torch.empty([b, n], dtype=torch.float32, device=x.device)
    for tile_b, tile_n in hl.tile([b, n], block_size=[1, None]):
        values = x[tile_b.begin, :, tile_n].float()
        top = values.amax(0)
        total = torch.log(torch.exp(values - top[None, :]).sum(0)) + top
        own = torch.where(hl.arange(c)[:, None] == labels[tile_b.begin, tile_n][None, :], values, 0.0).sum(0)
        out[tile_b.begin, tile_n] = total - own
    return out


@helion.kernel(backend="triton")
def mean_errors(x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    b, t, _d = x.shape
    out = torch.empty([b], dtype=torch.float32, device=x.device)
    for i in hl.grid(b):
        total = hl.zeros([1], dtype=torch.float32)
        for tile in hl.tile(t):
            apart = x[i, tile, :].float() - y[i, tile, :].float()
            total = total + ((apart * apart).sum(-1) * mask[i, tile].float()).sum(0)
        out[i] = total.sum()
    return out


@helion.kernel(backend="triton")
def normalized(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].float()
        out[tile, :] = (row * torch.rsqrt((row * row).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)
    return out


@helion.kernel(backend="triton")
def middle_norms(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for b, s in hl.tile([x.size(0), x.size(2)]):
        values = x[b, :, s].float()
        out[b, :, s] = (values * torch.rsqrt((values * values).mean(1, keepdim=True) + 1e-6)).to(x.dtype)
    return out


def _meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def test_few_rows_of_columns_are_in_one_warp() -> None:
    args = _meta(16, 19, 262144), _meta(16, 262144, dtype=torch.int64)
    first = class_losses.bind(args, target="h200").seeds[0]
    assert first.heuristic == "TritonColumnReductionHeuristic"
    assert (first.config["block_sizes"], first.config["num_warps"]) == ([128], 1)
    many = class_losses.bind((_meta(16, 190, 262144), args[1]), target="h200").seeds[0]
    assert many.config["num_warps"] > 1


def test_steps_over_rows_read_them_whole() -> None:
    rows = _meta(256, 1024, 256)
    first = mean_errors.bind((rows, rows, _meta(256, 1024, dtype=torch.bool)), target="h200").seeds[0].config
    assert (first["block_sizes"], first["reduction_loops"], first["num_warps"]) == ([32], [None], 8)


@pytest.mark.parametrize(("batch", "stages"), [(256, 3), (520, 0)])
def test_steps_over_rows_of_few_programs_are_pipelined(batch: int, stages: int) -> None:
    """Two programs of an SM have room for three stages of 32 KiB, four for none."""
    args = *(_meta(batch, 1024, 256) for _ in range(2)), _meta(batch, 1024)
    config = mean_errors.bind(args, target="h200").seeds[0].config
    assert (config["block_sizes"], config["range_num_stages"]) == ([32], [0, stages])


@pytest.mark.parametrize(
    ("columns", "dtype", "rows", "warps"),
    [
        (768, torch.bfloat16, 1, 1),
        (1000, torch.bfloat16, 2, 4),
        (768, torch.float32, 1, 4),
        (512, torch.bfloat16, 4, 4),
    ],
)
def test_one_warp_takes_a_row_that_leaves_another_idle(columns: int, dtype: torch.dtype, rows: int, warps: int) -> None:
    first = normalized.bind((_meta(32768, columns, dtype=dtype),), target="h200").seeds[0].config
    assert (first["block_sizes"], first["num_warps"]) == ([rows], warps)


@helion.kernel(backend="triton")
def largest_of_groups(x: torch.Tensor) -> torch.Tensor:
    m, groups, _ = x.size()
    out = torch.empty([m, groups], dtype=torch.float32, device=x.device)
    for tile_m, tile_g in hl.tile([m, groups]):
        out[tile_m, tile_g] = torch.amax(torch.abs(x[tile_m, tile_g, :].float()), -1)
    return out


@pytest.mark.parametrize(("columns", "more"), [(16, True), (32, True), (512, False)])
def test_programs_of_short_rows_have_more_of_them(columns: int, more: bool) -> None:
    x = torch.empty(4096, 344, columns, dtype=torch.bfloat16, device="meta")
    seed = largest_of_groups.bind((x,), target="h200").seeds[0]
    assert seed.heuristic == "TritonStreamingReductionHeuristic"
    rows = seed.config.block_sizes[0] * seed.config.block_sizes[1]
    assert (rows > 16) == more, seed.config


@helion.kernel(backend="triton")
def modulated(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    b, t, _ = x.size()
    out = torch.empty_like(x)
    for tile_b, tile_t in hl.tile([b, t]):
        row = x[tile_b, tile_t, :].float()
        row = row - row.mean(-1, keepdim=True)
        row = row * torch.rsqrt((row * row).mean(-1, keepdim=True) + 1e-5)
        out[tile_b, tile_t, :] = (row * (1 + scale[tile_b, :].float())[:, None, :] + scale[tile_b, :][:, None, :]).to(
            x.dtype
        )
    return out


@pytest.mark.parametrize(
    ("batches", "rows", "n", "sizes"),
    [(16, 4096, 1152, [1, 2]), (16, 4097, 1000, None), (65536, 1, 1152, [1, 1]), (8, 1000, 65536, [1, 1])],
)
def test_two_rows_of_a_batch_share_its_scale(batches: int, rows: int, n: int, sizes: list[int] | None) -> None:
    """Measurement ``rows_of_a_batch``."""
    first = modulated.bind((_meta(batches, rows, n), _meta(batches, n)), target="h200").seeds[0]
    assert first.heuristic == "TritonStreamingReductionHeuristic"
    found = first.config["block_sizes"]
    assert found == sizes if sizes is not None else found[1] > 1
    assert sizes != [1, 2] or (first.config["num_warps"] == 2 and "share loads" in first.reason)


@helion.kernel(backend="triton")
def channel_sums(
    grad: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    n, c, s = x.shape
    first = torch.empty([c], dtype=torch.float32, device=x.device)
    second = torch.empty([c], dtype=torch.float32, device=x.device)
    for tile_c in hl.tile(c):
        a = hl.zeros([tile_c], dtype=torch.float32)
        b = hl.zeros([tile_c], dtype=torch.float32)
        for tile_n, tile_s in hl.tile([n, s]):
            g = grad[tile_n, tile_c, tile_s].float()
            a += g.sum(dim=(0, 2))
            apart = x[tile_n, tile_c, tile_s].float() - mean[tile_c][None, :, None]
            b += (g * (apart * rstd[tile_c][None, :, None])).sum(dim=(0, 2))
        first[tile_c] = a
        second[tile_c] = b
    return first, second


@pytest.mark.parametrize(
    ("shape", "sizes", "warps"), [((64, 512, 225), [1, 8, 256], 4), ((32, 1024, 784), [1, 2, 1024], 4)]
)
def test_results_that_share_an_sm_take_short_steps(shape: tuple[int, ...], sizes: list[int], warps: int) -> None:
    """Measurement ``nested_steps``."""
    args = (*[_meta(*shape)] * 2, *[_meta(shape[1], dtype=torch.float32)] * 2)
    first = channel_sums.bind(args, target="h200").seeds[0]
    assert (first.config["block_sizes"], first.config["num_warps"]) == (sizes, warps)


def test_results_with_an_sm_each_keep_long_steps() -> None:
    args = (*[_meta(64, 128, 225)] * 2, *[_meta(128, dtype=torch.float32)] * 2)
    first = channel_sums.bind(args, target="h200").seeds[0]
    assert first.heuristic == "TritonNestedReductionHeuristic" and first.config["num_warps"] == 16


@helion.kernel(backend="triton")
def pooled_pairs(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.size()[:3], dtype=x.dtype, device=x.device)
    for tile_b, tile_h, tile_w in hl.tile(out.size()):
        out[tile_b, tile_h, tile_w] = x[tile_b, tile_h, tile_w, :].to(torch.float32).mean(-1)
    return out


def test_rows_of_a_few_bytes_fill_a_program() -> None:
    x = torch.empty(2048, 64, 64, 2, dtype=torch.bfloat16, device="meta")
    seed = pooled_pairs.bind((x,), target="h200").seeds[0]
    assert seed.heuristic == "TritonStreamingReductionHeuristic"
    assert math.prod(seed.config.block_sizes) > 128, seed.config
    x = torch.randn(3, 5, 7, 2).to(torch.bfloat16)
    torch.testing.assert_close(pooled_pairs(x), x.float().mean(-1).to(x.dtype))


@helion.kernel(backend="triton")
def halved_interval(x: torch.Tensor) -> torch.Tensor:
    """The threshold at which what exceeds it has a sum of squares of 1, by halving an interval."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        low = row.amax(-1) - 1.0
        width = 1.0
        for _ in range(20):
            width = width * 0.5
            above = torch.relu(row - (low + width)[:, None])
            low = torch.where((above * above).sum(-1) >= 1.0, low + width, low)
        out[tile, :] = torch.relu(row - low[:, None]).to(x.dtype)
    return out


def test_a_warp_takes_a_row_alone_that_a_loop_reduces_again() -> None:
    seed = halved_interval.bind((torch.empty(8192, 1001, dtype=torch.bfloat16, device="meta"),), target="h200").seeds[0]
    assert (seed.config["block_sizes"], seed.config["num_warps"]) == ([1], 1) and "reduces again" in seed.reason
    long = torch.empty(8192, 8000, dtype=torch.bfloat16, device="meta")
    assert halved_interval.bind((long,), target="h200").seeds[0].config["num_warps"] > 2
    x = torch.randn(5, 63)
    low, width = x.amax(-1, keepdim=True) - 1, 1.0
    for _ in range(20):
        width *= 0.5
        low = torch.where((torch.relu(x - low - width) ** 2).sum(-1, keepdim=True) >= 1, low + width, low)
    torch.testing.assert_close(halved_interval(x), torch.relu(x - low))


@helion.kernel(backend="triton")
def distances_of_rows(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Weighted squared distances of `x` and `y[N, C, P]` over C, each divided by its norm."""
    n, _c, p = x.shape
    out = torch.empty([n, p], dtype=torch.float32, device=x.device)
    for tn, tp in hl.tile([n, p]):
        a, b = x[tn, :, tp].float(), y[tn, :, tp].float()
        apart = a * torch.rsqrt((a * a).sum(1))[:, None, :] - b * torch.rsqrt((b * b).sum(1))[:, None, :]
        out[tn, tp] = (apart * apart * w[:].float()[None, :, None]).sum(1)
    return out


def test_converted_rows_leave_registers_for_whole_columns() -> None:
    """The assembler keeps both rows in bf16: 128 registers and no spills, where fp32 would take 256."""
    x = _meta(16, 192, 3136)
    bound = distances_of_rows.bind((x, x, _meta(192)), target="h200")
    assert bound.default_config()["reduction_loops"] == [None]
    held = bound.config_spec.normalize(
        helion.Config(block_sizes=[1, 32], reduction_loops=[None], num_warps=4, num_stages=1)
    )
    real, predicted = bound.resources(held), bound._analysis.predict(held)
    assert (real.spill_bytes, predicted.spill_risk) == (0, 0.0)
    assert abs(predicted.registers_per_thread - real.registers) <= real.registers // 8


@helion.kernel(backend="triton")
def colours_of_rays(density: torch.Tensor, colour: torch.Tensor, width: torch.Tensor) -> torch.Tensor:
    out = torch.empty([density.size(0), 2], dtype=torch.float32, device=density.device)
    for tile in hl.tile(density.size(0)):
        depth = density[tile, :].float() * width[tile, :]
        weight = torch.exp(depth - hl.cumsum(depth, 1)) * (1.0 - torch.exp(-depth))
        for channel in hl.static_range(2):
            out[tile, channel] = (weight * colour[tile, :, channel].float()).sum(1)
    return out


def test_a_warp_has_fewer_rows_where_they_fill_its_registers() -> None:
    """Measurement ``rows_of_a_warp``."""
    args = _meta(65536, 192), _meta(65536, 192, 2), _meta(65536, 192, dtype=torch.float32)
    bound = colours_of_rays.bind(args, target="h200")
    config = bound.default_config()
    eight = bound.config_spec.normalize({**config, "block_sizes": [8]})
    predicted, of_eight = (bound._analysis.predict(each) for each in (config, eight))
    assert config["num_warps"] == 1 and config["block_sizes"][0] < 8
    assert predicted.registers_per_thread <= of_eight.register_limit // 2 < of_eight.registers_per_thread


@pytest.mark.parametrize(("columns", "rows", "warps"), [(4097, 1024, 8), (2001, 2048, 16)])
def test_two_programs_overlap_where_an_sm_has_registers_for_one(columns: int, rows: int, warps: int) -> None:
    """Row ``overlapping_columns`` of tuned.tsv; fewer programs than SMs overlap with none."""
    kernel = helion.kernel(CELLS["welford_columns"].kernel.fn, backend="triton")
    bound = kernel.bind((_meta(8192, columns, dtype=torch.float16),), target="h200")
    config = bound.default_config()
    assert config["num_warps"] == warps and config["block_sizes"][1] == rows
    threads = 32 * warps * bound.resources(config).registers
    assert (2 * threads <= bound.target.registers_per_sm) == (columns == 4097)


def test_rows_held_whole_are_not_read_again_for_single_loads() -> None:
    """Rows that begin anywhere have a load for each element (measurement ``columns_in_order``)."""
    bound = middle_norms.bind((_meta(256, 96, 1001, dtype=torch.float32),), target="h200")
    assert bound.seeds[0].heuristic == "TritonColumnReductionHeuristic"
    assert bound.default_config()["reduction_loops"] == [None]


def test_few_long_rows_have_an_sm_each() -> None:
    """Row ``wide_programs`` of tuned.tsv."""
    cell = CELLS["min_p_sample"]
    bound = helion.kernel(cell.kernel.fn, backend="triton").bind(cell.arguments("meta", False), target="h200")
    assert bound.default_config()["reduction_loops"][0] >= 8192 and bound.default_config()["num_warps"] == 32


@helion.kernel(backend="triton")
def expert_loads(logits: torch.Tensor) -> torch.Tensor:
    t, e = logits.shape
    out = torch.zeros([hl.specialize(e)], dtype=torch.float32, device=logits.device)
    for tile in hl.tile(t):
        hl.atomic_add(out, [slice(None)], torch.softmax(logits[tile, :].float(), -1).sum(0))
    return out


@helion.kernel(backend="triton")
def expert_shares(logits: torch.Tensor) -> torch.Tensor:
    t, e = logits.shape
    out = torch.empty([t, hl.specialize(e)], dtype=torch.float32, device=logits.device)
    for tile in hl.tile(t):
        out[tile, :] = torch.softmax(logits[tile, :].float(), -1)
    return out


@pytest.mark.parametrize("experts", [64, 160, 256])
def test_programs_that_add_their_sums_to_memory_have_more_rows(experts: int) -> None:
    logits = _meta(32768, experts)
    summed, stored = (kernel.bind((logits,), target="h200").seeds[0] for kernel in (expert_loads, expert_shares))
    assert summed.heuristic == stored.heuristic == "TritonStreamingReductionHeuristic"
    assert summed.config["block_sizes"][0] >= 2 * stored.config["block_sizes"][0]
    assert "adds their sums" not in stored.reason and (experts == 64 or "adds their sums" in summed.reason)
    assert summed.predicted.spill_risk < 0.5


def test_few_rows_are_left_to_as_many_programs_as_sms() -> None:
    first = expert_loads.bind((_meta(2048, 160),), target="h200").seeds[0]
    assert 2048 / first.config["block_sizes"][0] >= 64


@helion.kernel(backend="triton")
def drawn(x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.int64, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.argmax(torch.softmax(x[tile, :].float(), -1) / noise[tile, :], -1)
    return out


@pytest.mark.parametrize(("rows", "chunk"), [(256, 4096), (2048, 2048)])
def test_two_programs_of_an_sm_have_longer_chunks(rows: int, chunk: int) -> None:
    """Measurement ``chunks_of_pairs``."""
    args = (_meta(rows, 32000, dtype=torch.float32),) * 2
    assert drawn.bind(args, target="h200").default_config()["reduction_loops"] == [chunk]


@pytest.mark.parametrize(("steps", "columns"), [(512, 32), (150, 64)])
def test_few_columns_are_held_whole_before_rows_are_read_again(steps: int, columns: int) -> None:
    """Measurement ``columns_read_once``."""
    kernel = helion.kernel(CELLS["middle_softmax"].kernel.fn, backend="triton")
    config = kernel.bind((_meta(64, steps, 1024),), target="h200").default_config()
    assert config["reduction_loops"] == [None] and config["block_sizes"][1] <= columns


def _losses(tokens: int, columns: int) -> helion.BoundKernel:
    kernel = helion.kernel(CELLS["z_loss_in_place"].kernel.fn, backend="triton")
    return kernel.bind((_meta(tokens, columns), _meta(tokens, dtype=torch.int64), 1e-2), target="h200")


@pytest.mark.parametrize("columns", [32000, 32768, 50257, 128256])
def test_loops_that_read_long_rows_twice_leave_room_for_other_programs(columns: int) -> None:
    first = _losses(4096, columns).seeds[0]
    _, summed, stored = first.config["block_sizes"]
    assert first.config["num_warps"] <= 8 and summed == stored <= 8192 and "predicted to be faster" in first.reason


def test_loops_over_short_rows_have_them_whole() -> None:
    assert _losses(4096, 8192).seeds[0].config["block_sizes"] == [1, 8192, 8192]


def test_loops_over_pieces_of_rows_have_long_steps() -> None:
    """A group norm of 16 x 4096 x 320 takes 89 us in steps of 1024 rows, 117 in 512, 126 in 256 and 8 warps (an H200)."""
    cell = CELLS["group_norm_silu"]
    first = helion.kernel(cell.kernel.fn, backend="triton").bind(cell.arguments("meta", False), target="h200").seeds[0]
    assert first.config["block_sizes"] == [1024, 1024] and first.config["num_warps"] == 32


@helion.kernel(backend="triton")
def lagged_sums(x: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), 16], dtype=torch.float32, device=x.device)
    for rows in hl.tile(x.size(0)):
        sums = [hl.zeros([rows]) for _ in range(16)]
        for tile in hl.tile(x.size(1)):
            now = x[rows, tile]
            sums = [sums[lag] + (now * padded[rows, tile.index + lag]).sum(1) for lag in range(16)]
        for lag in hl.static_range(16):
            out[rows, lag] = sums[lag]
    return out


def test_many_loads_of_a_row_leave_each_thread_an_element() -> None:
    """The bytes of a thread are divided by the loads of a row, of which there may be more than bytes."""
    x, padded = _meta(4096, 4097, dtype=torch.float32), _meta(4096, 4113, dtype=torch.float32)
    config = dict(lagged_sums.bind((x, padded), target="h200").default_config())
    rows, width = config["block_sizes"]
    assert rows * width >= 32 * config["num_warps"]
