"""Kernels that no rule was made for (benchmarks/unseen): right in the interpreter, and what the heuristics make of them."""

from __future__ import annotations

import functools
import inspect
import math
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from heuristic_kernels import H100

import helion
import helion.language as hl
from benchmarks.unseen.table import ALL, ATTENTION, BF16, Maker, Unseen
from helion._shapes import cdiv
from helion._testing import map_tensors
from helion.backends.triton.resources.predict import predict
from helion.backends.triton.toolchain.offline import compile_offline
from helion.backends.triton.toolchain.signature import offline_signature
from helion.hardware import Target
from helion.runtime.bound import BoundKernel

#: Every so many kernels run unless everything is asked for.
STRIDE = 1 if os.environ.get("HELION_PROVE") == "1" else 4
BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
GPUS = ("sm_80", "sm_90", "sm_100", "gfx942")
BY_NAME = {one.kernel.name: one for one in ALL}


def flat(values: Any) -> list[torch.Tensor]:
    return [values] if isinstance(values, torch.Tensor) else [t for each in values for t in flat(each)]


def small_cases() -> Iterator[Any]:
    for one in ALL:
        for dtype, shape in one.small:
            yield pytest.param(one, dtype, shape, id=f"{one.kernel.name}-{dtype}-{'x'.join(map(str, shape))}")


def bound(name: str, gpu: str | Target, shape: int = 0) -> BoundKernel:
    one = BY_NAME[name]
    dtype, extents = one.shapes[shape]
    return one.kernel.bind(one.arguments(Maker("meta"), dtype, *extents), target=gpu)


def programs(kernel: BoundKernel) -> int:
    sizes = kernel.config_spec.sizes(kernel.default_config())
    grid = (kernel.facts.axes[axis] for axis in kernel.facts.grid_axes)
    return math.prod(cdiv(axis.extent or 1, sizes[axis.block_id]) for axis in grid)


def first(kernel: BoundKernel) -> str:
    config = kernel.default_config()
    return next((seed.heuristic for seed in kernel.seeds if seed.config == config), "")


def instructions(kernel: BoundKernel) -> str:
    config = kernel.default_config()
    plan = kernel._analysis.code(config).plan
    function = inspect.unwrap(kernel.compile_config(config)).__globals__[plan.kernel_names[0]]
    return str(compile_offline(function, **offline_signature(plan, kernel.target)).asm["ptx"])


# --- what they compute -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("one", "dtype", "shape"), list(small_cases())[::STRIDE])
def test_the_kernels_are_right(one: Unseen, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    args = one.arguments(Maker("cpu"), dtype, *shape)
    wide = map_tensors(args, lambda t: t.double() if t.is_floating_point() and t.dtype.itemsize > 1 else t)
    for mine, exact in zip(flat(one.kernel(*args)), flat(one.reference(*wide)), strict=True):
        assert mine.shape == exact.shape
        distance = float((mine.double() - exact.double()).norm() / exact.double().norm())
        assert distance <= max(BOUNDS.get(mine.dtype, 0.0), BOUNDS.get(dtype, 2e-5))


def test_references_take_every_shape_that_is_timed() -> None:
    """What moves at least is counted on meta tensors."""
    for one in ALL:
        for dtype, shape in one.shapes if STRIDE == 1 else one.shapes[:1]:
            assert all(t.device.type == "meta" for t in flat(one.reference(*_meta(one, dtype, shape))))


def _meta(one: Unseen, dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Any, ...]:
    return tuple(map_tensors(one.arguments(Maker("meta"), dtype, *shape), lambda t: t.to("meta")))


# --- what is known of them -------------------------------------------------------------------------------------------


def test_a_loop_up_to_a_diagonal_has_half_of_the_axis() -> None:
    facts = bound("causal_backward", "sm_90").facts
    loops = [axis for axis in facts.axes if not axis.on_grid and axis.kind == "tile"]
    assert [(axis.extent, axis.outer, axis.mean) for axis in loops] == [(None, None, 2048)] * 2


def test_a_tile_of_another_tile_is_no_diagonal() -> None:
    facts = bound("decode_split_keys", "sm_90").facts
    (part,) = (axis for axis in facts.axes if axis.on_grid and axis.tunable)
    (keys,) = (axis for axis in facts.axes if axis.outer is not None)
    assert (keys.outer, keys.mean) == (part.block_id, None)


def test_both_loops_of_a_backward_pass_are_found() -> None:
    facts = bound("causal_backward", "sm_90").facts
    names = [(facts.axes[f.stationary_axis].name, facts.axes[f.streamed_axis].name) for f in facts.attention_gradients]
    assert names == [("tile_m", "tile_n"), ("tile_n", "tile_m")] and facts.attention is None
    fused = bound("fused_backward", "sm_90").facts
    assert [fused.axes[f.stationary_axis].name for f in fused.attention_gradients] == ["tile_n"]


@pytest.mark.parametrize(
    ("name", "shape", "sizes", "warps"),
    [
        ("causal_backward", 0, [64, 64, 64, 64], 4),
        ("causal_backward", 1, [64, 64, 64, 64], 4),
        ("causal_backward", 2, [128, 64, 64, 128], 8),  # 128 rows of scores, so that no warp repeats any
        ("fused_backward", 0, [64, 64], 4),  # two without stages share an SM
        ("fused_backward", 1, [64, 64], 4),
        ("latent_decode", 0, [32, 64], 4),
        ("latent_decode", 1, [16, 64], 8),  # one program on an SM
        ("softcapped_window", 1, [128, 64], 4),
    ],
)
def test_programs_of_four_warps_share_an_sm_where_there_are_two(
    name: str, shape: int, sizes: list[int], warps: int
) -> None:
    config = bound(name, "h200", shape).default_config()
    assert (config["block_sizes"], config["num_warps"]) == (sizes, warps)


@pytest.mark.parametrize(
    ("name", "shape", "peeled"),
    [("causal_backward", 0, False), ("causal_backward", 1, True), ("fused_backward", 1, False)],
)
def test_narrow_gradients_have_loops_without_masks(name: str, shape: int, peeled: bool) -> None:
    assert bound(name, "h200", shape).default_config()["peel_masks"] == peeled


@pytest.mark.parametrize(
    ("name", "shape", "orders"),
    [
        ("causal_backward", 0, [[1, 0], [1, 0]]),
        ("causal_backward", 1, [[1, 0], [1, 0]]),
        ("causal_backward", 2, [[0, 1], [0, 1]]),  # all heads fit the cache
        ("fused_backward", 0, [[1, 0]]),
    ],
)
def test_neighbours_walk_over_the_same_rows_where_the_cache_does_not_hold_all(
    name: str, shape: int, orders: list[list[int]]
) -> None:
    assert bound(name, "h200", shape).default_config()["loop_orders"] == orders


@pytest.mark.parametrize(
    ("batch", "keys", "head", "expected"),
    [
        (128, 4096, 128, ([1, 64, 128], 1, 2, False)),
        (128, 4224, 128, ([1, 64, 128], 1, 0, False)),  # 33 steps
        (128, 4097, 128, ([1, 64, 64], 3, 0, True)),
        (16, 4096, 128, ([1, 64, 64], 3, 0, False)),  # two programs on an SM
        (128, 4097, 64, ([1, 64, 128], 2, 0, True)),
    ],
)
def test_boxes_of_keys_follow_what_shares_an_sm(batch: int, keys: int, head: int, expected: tuple[Any, ...]) -> None:
    one = BY_NAME["flash_forward"]
    kernel = one.kernel.bind(one.arguments(Maker("meta"), BF16, 1, batch, 1000, keys, head), target="h200")
    config = kernel.default_config()
    found = config["block_sizes"], config["num_stages"], config["range_unroll_factors"][-1], config["peel_masks"]
    assert found == expected and config["indexing"].count("tensor_descriptor") == 2


def test_scores_of_two_products_are_no_backward_pass() -> None:
    facts = bound("latent_decode", "sm_90").facts
    assert facts.attention is not None and facts.attention_gradients == ()
    assert [fact.chained for fact in facts.matmuls] == [False, True, False]


@pytest.mark.parametrize("one", ATTENTION[:8], ids=lambda one: str(one.kernel.name))
def test_attention_is_found_however_it_is_written(one: Unseen) -> None:
    assert all(bound(one.kernel.name, "sm_90", at).facts.attention is not None for at in range(len(one.shapes)))


def test_a_size_that_follows_from_a_tunable_is_known_for_each_of_its_values() -> None:
    (axis,) = (axis for axis in bound("tuned_split", "sm_90").facts.axes if axis.choices)
    assert axis.chosen_by == "parts" and axis.choices[0] == (1, 16384) and axis.choices[-1] == (256, 64)


# --- what is proposed ------------------------------------------------------------------------------------------------

EXPECTED = {
    "TritonAttentionHeuristic": ("flash_forward", "causal_gqa", "softcapped_window", "varlen_forward", "latent_decode"),
    "TritonAttentionDecodeHeuristic": ("decode_one_token", "decode_split_keys", "paged_decode"),
    "TritonAttentionGradientHeuristic": ("causal_backward", "fused_backward"),
    "TritonRecurrenceHeuristic": ("selective_scan", "embedding_mean"),
    "TritonColumnReductionHeuristic": ("column_sums_in_parts",),
}


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("rule", EXPECTED)
def test_each_family_has_its_rule(rule: str, gpu: str) -> None:
    for name in EXPECTED[rule]:
        kernel = bound(name, gpu)
        assert first(kernel) == rule, name
        seed = next(seed for seed in kernel.seeds if seed.config == kernel.default_config())
        assert seed.predicted.fits and not seed.predicted.spills, name


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("shape", [0, 1, 2])
def test_parts_of_keys_give_every_sm_a_program(shape: int, gpu: str) -> None:
    kernel = bound("decode_split_keys", gpu, shape)
    sizes = kernel.config_spec.sizes(kernel.default_config())
    (part,) = (axis for axis in kernel.facts.axes if axis.on_grid and axis.tunable)
    assert programs(kernel) >= 0.8 * kernel.target.num_sms and sizes[part.block_id] >= 256


@pytest.mark.parametrize(("heads", "queries", "expected"), [(128, 4096, 128), (1, 8192, 64), (1, 4096, 64)])
def test_few_queries_are_cut_into_more_programs(heads: int, queries: int, expected: int) -> None:
    one = BY_NAME["flash_forward"]
    args = one.arguments(Maker("meta"), BF16, 1, heads, queries, queries, 128)
    kernel = one.kernel.bind(args, target="sm_100")
    assert kernel.default_config()["block_sizes"][1] == expected


@pytest.mark.parametrize(("shape", "tile", "parts"), [(0, [64, 64, 128], 8), (1, [64, 32, 256], 64)])
def test_a_tunable_of_the_kernel_splits_k(shape: int, tile: list[int], parts: int) -> None:
    """Smaller tiles with fewer parts add less by atomics, and keep as many SMs busy."""
    kernel = bound("tuned_split", "sm_90", shape)
    default = kernel.default_config()
    assert (default["block_sizes"], default["parts"]) == (tile, parts) and programs(kernel) >= 128


@pytest.mark.parametrize("gpu", ["sm_90", "h200", "gfx942"])
def test_columns_summed_in_parts_are_read_in_lines(gpu: str) -> None:
    kernel = bound("column_sums_in_parts", gpu)
    sizes = kernel.config_spec.sizes(kernel.default_config())
    (columns,) = (axis.block_id for axis in kernel.facts.axes if axis.name == "columns")
    assert 2 * sizes[columns] >= 32 and programs(kernel) >= 0.8 * kernel.target.num_sms


def test_few_tiles_of_a_long_product_share_sums_or_are_smaller() -> None:
    few, many = bound("weight_gradient", "h200"), bound("weight_gradient", "h200", 1)
    assert programs(few) * few.default_config()["split_k"] == 128
    assert few.seeds[1].config["block_sizes"][:2] == [64, 32] and few.seeds[1].config["split_k"] == 1
    # 64 x 64 tiles fill the GPU alone, but read too much: 81 us on an H200, where cuBLAS takes 55
    assert many.default_config()["block_sizes"][:2] == [128, 256] and many.default_config()["split_k"] == 8
    assert many.seeds[1].config["block_sizes"][:2] == [64, 64]
    elsewhere = [seed.config["block_sizes"][:2] for seed in bound("weight_gradient", H100).seeds]
    assert (elsewhere[0], elsewhere[2]) == ([64, 64], [64, 32])


@pytest.mark.parametrize(("batch", "keys", "warps"), [(16, 128, 4), (64, 64, 2)])
def test_programs_that_have_an_sm_alone_read_longer_tiles_of_keys(batch: int, keys: int, warps: int) -> None:
    """Measurement ``decode_alone``: nothing but the warps of a program hides its latency."""
    one = BY_NAME["decode_one_token"]
    args = one.arguments(Maker("meta"), torch.bfloat16, batch, 64, 8, 8192, 128)
    config = one.kernel.bind(args, target="h200").default_config()
    assert (config["block_sizes"][-1], config["num_warps"]) == (keys, warps)


def test_descriptors_read_packed_weights_of_few_rows() -> None:
    """Measurement ``packed_boxes``: a tile has 32 bytes of each row."""
    found = {gpu: bound("grouped_int4_weights", gpu, 1).seeds[0] for gpu in ("h200", "sm_80")}
    assert found["h200"].heuristic == "TritonHoistedOperandsHeuristic"
    assert found["h200"].config["indexing"] == ["tensor_descriptor", "pointer", "pointer", "pointer"]
    assert "tensor_descriptor" not in found["sm_80"].config["indexing"]


def test_chunks_that_are_multiplied_by_themselves_are_short() -> None:
    kernel = bound("decayed_linear_attention", "sm_90")
    (chunk,) = (axis.block_id for axis in kernel.facts.axes if axis.name == "chunk")
    assert kernel.config_spec.sizes(kernel.default_config())[chunk] == 64 and kernel.default_config()["num_stages"] >= 3
    assert kernel.default_config()["num_warps"] == 4, "measurement state_warps"
    assert kernel.default_config()["indexing"] == ["pointer"] * 5, "block pointers take the last registers"


@pytest.mark.parametrize(("shape", "warps"), [(1, 4), (2, 8)])
def test_queries_of_two_products_have_block_pointers_where_registers_are_left(shape: int, warps: int) -> None:
    config = bound("decayed_linear_attention", "sm_90", shape).default_config()
    assert config["indexing"] == ["pointer", "block_ptr", "pointer", "pointer", "pointer"]
    assert config["num_warps"] == warps


@pytest.mark.parametrize("name", ["blockwise_fp8", "sum_of_two"])
def test_few_programs_have_more_bytes_in_flight(name: str) -> None:
    rule = next(seed for seed in bound(name, "sm_90", 0).seeds if "least predicted time" not in seed.reason)
    assert rule.config["num_stages"] <= 3
    assert bound(name, "sm_90", 1).default_config()["num_stages"] > 3


def test_partial_sums_that_nothing_is_added_to_need_no_second_accumulator() -> None:
    """Each product of 128 along K is scaled by itself: larger tiles fit than where it goes to a sum."""
    alone, summed = bound("blockwise_fp8", "sm_90"), bound("rowwise_fp8", "sm_90")
    assert [fact.added for kernel in (alone, summed) for fact in kernel.facts.matmuls] == [False, True]
    assert alone.default_config()["block_sizes"] == [128, 128]


@pytest.mark.parametrize("gpu", [H100, "sm_100", "sm_120"], ids=str)
def test_persistent_grids_are_alternates_where_they_are_not_measured(gpu: str | Target) -> None:
    kernel = bound("rowwise_fp8", gpu)
    kinds = [seed.config["pid_type"] for seed in kernel.seeds]
    assert kinds[0] == "flat" and "persistent_interleaved" in kinds
    assert kernel.default_config()["pid_type"] == "flat"


# --- what the compilers make of it -----------------------------------------------------------------------------------


@functools.cache
def compiled(name: str, gpu: str) -> Any:
    kernel = bound(name, gpu)
    return kernel, kernel.resources(kernel.default_config())


@pytest.mark.parametrize("stages", [1, pytest.param(2, marks=pytest.mark.prove)])
def test_what_several_asynchronous_products_read_is_there_once(stages: int) -> None:
    """Each load feeds two products, of which one takes the transpose, and transposes of scores take turns."""
    kernel = bound("causal_backward", "sm_90")
    config = kernel.config_spec.repair({"block_sizes": [64] * 4, "num_warps": 4, "num_stages": stages})
    predicted = predict(kernel.facts, kernel.config_spec.decode(config).sizes, 4, stages, kernel.target)
    assert predicted.shared_bytes == kernel.resources(config).shared_bytes


@pytest.mark.parametrize(
    ("name", "spilled"),
    [
        ("fused_backward", 0),
        pytest.param("latent_decode", 136, marks=pytest.mark.prove),
        pytest.param("causal_backward", 48, marks=pytest.mark.prove),
    ],
)
def test_two_programs_share_an_sm_though_they_spill_a_little(name: str, spilled: int) -> None:
    kernel, real = compiled(name, "sm_90")
    assert 2 * real.registers * real.threads <= kernel.target.registers_per_sm
    assert 2 * real.shared_bytes <= kernel.target.smem_per_sm_bytes and real.spill_bytes <= spilled


@pytest.mark.parametrize("name", ["selective_scan", "tuned_split", "decayed_linear_attention"])
def test_first_seeds_fit_without_spilling(name: str) -> None:
    _, real = compiled(name, "sm_90")
    assert not real.overflow and real.spill_bytes == 0


def test_a_backward_pass_runs_on_the_asynchronous_unit() -> None:
    text = instructions(compiled("causal_backward", "sm_90")[0])
    assert re.search(r"wgmma\.mma_async", text) and "mma.sync" not in text


def test_warps_of_a_role_each_compile_where_accumulators_are_in_tensor_memory() -> None:
    kernel = bound("rowwise_fp8", "sm_100")
    (seed,) = (seed for seed in kernel.seeds if any(seed.config["range_warp_specializes"]))
    real = kernel.resources(seed.config)
    assert not real.overflow and real.spill_bytes == 0


def test_steps_of_a_recurrence_are_loaded_ahead() -> None:
    kernel, real = compiled("selective_scan", "sm_90")
    assert "cp.async" in instructions(kernel)
    seed = next(seed for seed in kernel.seeds if seed.config == kernel.default_config())
    assert real.shared_bytes == seed.predicted.shared_bytes


def test_steps_that_load_no_tile_prefetch_nothing() -> None:
    @helion.kernel
    def counted(x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.size(), dtype=torch.int32, device=x.device)
        for tile in hl.tile(x.size(0)):
            v, count = x[tile], hl.zeros([tile], dtype=torch.int32)
            for i in range(edges.size(0)):
                count += (v >= edges[i]).to(torch.int32)
            out[tile] = count
        return out

    bound = counted.bind((torch.empty(1 << 20, device="meta"), torch.empty(256, device="meta")), target="sm_90")
    assert bound.seeds[0].heuristic == "TritonRecurrenceHeuristic" and bound.seeds[0].config["range_num_stages"] == [
        0,
        0,
    ]
    assert bound.seeds[0].config["block_sizes"] == [512] and bound.seeds[0].config["num_warps"] == 4
    assert bound.resources(bound.default_config()).shared_bytes == 0
