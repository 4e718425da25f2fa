"""What the resource model says of kernels that nothing was tuned on, beside what the assemblers said of them."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from unseen_kernels import unseen
from varied_kernels import Varied

import helion
import helion.language as hl
from benchmarks.cells import workload_cells
from benchmarks.workloads.products import feature_interactions
from helion.autotuner.proposal import Predicted
from helion.backends.triton.backend import Triton
from helion.backends.triton.resources.layouts import moved_at_once
from helion.backends.triton.resources.matrix import unit_for
from helion.backends.triton.resources.predict import predict
from helion.hardware import target
from helion.ops.kernels.cross_entropy import cross_entropy_kernel


@functools.cache
def cells() -> dict[tuple[str, str], Varied]:
    return {(cell.kernel.name, cell.case): cell for cell in unseen()}


def predicted(name: str, case: str, gpu: str, **config: Any) -> Predicted:
    """What is predicted of the first seed with other values of ``config``."""
    cell = cells()[name, case]
    bound = cell.kernel.bind(cell.args, target=gpu)
    decisions = bound.config_spec.decode(bound.config_spec.repair({**bound.seeds[0].config, **config}))
    values = decisions.values
    return predict(bound.facts, decisions.sizes, values["num_warps"], values["num_stages"], target(gpu))


@pytest.mark.parametrize(
    ("name", "case", "gpu", "config", "spilled"),
    [
        # places of maxima beside the values, and accumulators of several reductions at once
        ("second_largest", "4096x32000 bfloat16", "sm_100", {"reduction_loops": [None], "num_warps": 8}, 96),
        ("second_largest", "4096x32000 bfloat16", "sm_120", {"reduction_loops": [None], "num_warps": 32}, 104),
        ("second_largest", "4096x32000 bfloat16", "sm_90", {"reduction_loops": [8192], "num_warps": 8}, 0),
        ("two_best_experts", "512x50257 float16", "sm_90", {"reduction_loops": [16384], "num_warps": 32}, 456),
        ("two_best_experts", "512x50257 float16", "sm_90", {"reduction_loops": [8192], "num_warps": 32}, 0),
        ("entropy", "1000x100003 float16", "gfx942", {"reduction_loops": [32768], "num_warps": 16}, 372),
        # polynomials of many elements
        ("fp8_to_fp8", "4096x4096x4096", "sm_100", {"block_sizes": [128, 256, 128], "num_warps": 8}, 88),
        ("fp8_to_fp8", "4096x4096x4096", "sm_100", {"block_sizes": [128, 128, 128], "num_warps": 8}, 0),
        # more than two products side by side
        ("complex_product", "1024x1024x1024 float32", "sm_80", {"block_sizes": [128, 128, 16], "num_warps": 8}, 308),
        ("gated_cell", "4096x1024x1024 bfloat16", "sm_86", {"block_sizes": [128, 64, 64, 64], "num_warps": 8}, 340),
        ("gated_cell", "4096x1024x1024 bfloat16", "sm_80", {"block_sizes": [32, 32, 64, 64], "num_warps": 4}, 0),
    ],
)
def test_what_spills_is_foreseen(name: str, case: str, gpu: str, config: dict[str, Any], spilled: int) -> None:
    assert (predicted(name, case, gpu, **config).spill_risk > 0) == (spilled > 0)


@pytest.mark.parametrize(
    ("name", "case", "gpu", "config", "real"),
    [
        ("to_bytes", "8192x4096 bfloat16", "sm_90", {"block_sizes": [1, 2048], "num_warps": 4}, 2048),
        ("to_bytes", "8192x4096 bfloat16", "sm_100", {"block_sizes": [1, 4096], "num_warps": 8}, 4096),
        ("attraction", "16384", "sm_90", {"block_sizes": [1, 8192], "num_warps": 16}, 8192),
        ("best_predecessors", "4096x128 float32", "sm_86", {"block_sizes": [32, 1], "num_warps": 4}, 2048),
        ("logistic_gradient", "1000x16384 float16", "sm_90", {"block_sizes": [8, 1], "num_warps": 16}, 16384),
        ("cosine_scores", "4096x2048x4096 bfloat16", "sm_90", {"block_sizes": [128, 128, 64], "num_stages": 6}, 163840),
        ("bytes_to_bytes", "4096x4096x4096", "sm_100", {"block_sizes": [128, 256, 128], "num_stages": 4}, 147456),
        # one copy of rows that two products take, and a product that changes its layout before it is rounded
        ("gated_by_itself", "1000x777x1300 float16", "sm_100", {"block_sizes": [128, 64, 64], "num_stages": 4}, 65568),
        ("gated_by_itself", "1000x777x1300 float16", "sm_100", {"block_sizes": [128, 128, 32], "num_stages": 2}, 65536),
        # rows that a dot and the operand of another one are computed from, by unit; a transpose that two dots take
        ("state_update", "16x1024x128 float16", "sm_80", {}, 65792),
        ("state_update", "16x1024x128 float16", "sm_90", {}, 168448),
        ("delta_rule", "64x2048x128 bfloat16", "sm_100", {}, 131584),
        # operands that wait for one another in turn, and right ones that AMD prefetches into registers
        ("filter_of_three", "1000x777x1300 float16", "sm_90", {}, 106496),
        ("causal_scores", "32x1024x128x1024 bfloat16", "gfx950", {}, 24576),
    ],
)
def test_shared_memory_is_close(name: str, case: str, gpu: str, config: dict[str, Any], real: int) -> None:
    assert real <= predicted(name, case, gpu, **config).shared_bytes <= 1.10 * real + 2048


#: GPUs, stages, and the bytes of a loop whose loads take an index that it loads too: of 24576 bytes of operands.
LOOKED_UP = [
    *(("sm_80", stages, real) for stages, real in ((1, 24576), (2, 24576), (3, 24580), (4, 24580), (5, 49160))),
    *(("sm_90", stages, real) for stages, real in ((2, 49152), (3, 49156), (4, 49156), (5, 73736))),
    *(("sm_100", stages, real) for stages, real in ((2, 49168), (4, 49172), (5, 73752))),
    *(("gfx942", stages, real) for stages, real in ((2, 24576), (3, 24576), (4, 49152), (5, 73728))),
]


@pytest.mark.parametrize(("gpu", "stages", "real"), LOOKED_UP)
def test_lookups_take_some_of_the_stages(gpu: str, stages: int, real: int) -> None:
    cell = next(cell for cell in workload_cells() if cell.kernel == "block_sparse_product")
    bound = cell.function.bind(cell.args, target=gpu)
    decisions = bound.config_spec.decode(bound.config_spec.normalize({"block_sizes": [128], "num_warps": 4}))
    found = predict(bound.facts, decisions.sizes, 4, stages, target(gpu)).shared_bytes
    assert real <= found <= real + 128


#: GPUs, rows, columns, dtypes, warps, and the bytes of rows and of their transpose in the layout of the unit.
TRANSPOSED = [
    ("sm_80", 64, 128, torch.bfloat16, 4, 20480),
    ("sm_80", 64, 128, torch.bfloat16, 8, 24576),
    ("sm_90", 27, 128, torch.bfloat16, 4, 12288),
    ("sm_120", 64, 64, torch.float16, 4, 10240),
    ("sm_80", 64, 128, torch.float32, 2, 40960),
    ("sm_80", 64, 128, torch.float32, 8, 49152),
    ("sm_86", 100, 48, torch.float32, 4, 36864),
    ("sm_80", 16, 256, torch.bfloat16, 2, 16384),
]


@pytest.mark.parametrize(("gpu", "rows", "columns", "dtype", "warps", "real"), TRANSPOSED)
def test_rows_change_to_their_transpose_in_rounds(
    gpu: str, rows: int, columns: int, dtype: torch.dtype, warps: int, real: int
) -> None:
    bound = feature_interactions.bind((torch.empty(64, rows, columns, dtype=dtype, device="meta"),), target=gpu)
    sizes = bound.config_spec.decode(bound.seeds[0].config).sizes
    assert predict(bound.facts, {**sizes, 0: 1}, warps, 3, target(gpu)).shared_bytes == real


def test_whole_numbers_are_narrowed_before_they_change_their_layout() -> None:
    cell = next(cell for cell in workload_cells() if cell.kernel == "buckets")
    bound = cell.function.bind(cell.args, target="sm_80")  # sums of int64, stored as int32: 1024 of 4 bytes
    assert bound.seeds[0].predicted.shared_bytes == 4096


def test_views_that_begin_anywhere_are_stored_by_single_elements() -> None:
    name, case = "swiglu_gradients", "4097 by 1001"  # halves of rows of 2002 in fp16: the second begins after 1001
    (cell,) = (cell for cell in workload_cells() if (cell.kernel, cell.case) == (name, case))
    bound = cell.function.bind(cell.args, target="sm_90")
    *_, first, second = bound.facts.memory_ops
    assert (first.place, first.aligned, second.place, second.aligned) == (0, 2002, 2002 % 16, 1)
    assert bound.seeds[0].predicted.shared_bytes == 1024  # 512 elements change to the layout of single ones


#: GPUs, and how many copies of each operand three stages have there.
UNROLLED = [("sm_80", 2), ("sm_90", 3), ("sm_100", 3), ("gfx942", 2)]


@helion.kernel()
def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
    for row, column in hl.tile(out.size()):
        acc = hl.zeros([row, column], dtype=torch.float32)
        for depth in hl.tile(x.size(1)):
            acc = hl.dot(x[row, depth], y[depth, column], acc=acc)
        out[row, column] = acc.to(x.dtype)
    return out


@helion.kernel()
def turned_blocks(x: torch.Tensor) -> torch.Tensor:
    """The first two axes of blocks change places; the contiguous one stays."""
    out = torch.empty([x.size(1), x.size(0), x.size(2)], dtype=x.dtype, device=x.device)
    for a, b, c in hl.tile(x.size()):
        out[b, a, c] = x[a, b, c].permute(1, 0, 2)
    return out


@pytest.mark.parametrize(("gpu", "copies"), UNROLLED)
@pytest.mark.parametrize("unrolled", [1, 2, 4])
def test_every_step_of_an_unrolled_loop_is_prefetched(gpu: str, copies: int, unrolled: int) -> None:
    """What Triton 3.7 allocates, but for barriers of 8 bytes."""
    x = torch.empty(1024, 1024, dtype=torch.bfloat16, device="meta")
    bound = product.bind((x, x), target=gpu)
    config = bound.config_spec.repair(
        {
            "block_sizes": [64, 64, 32],
            "num_warps": 4,
            "num_stages": 3,
            "range_unroll_factors": [0, unrolled],
            "indexing": "pointer",
        }
    )
    taken = Triton().predict(bound.facts, bound.config_spec.decode(config), target(gpu)).shared_bytes
    assert taken // 128 * 128 == unrolled * copies * (64 + 64) * 32 * 2


@pytest.mark.parametrize("gpu", ["sm_90", "gfx942"])
@pytest.mark.parametrize(("blocks", "exchanged"), [([4, 8, 64], True), ([1, 8, 64], False), ([4, 8, 1024], False)])
def test_axes_in_another_order_change_the_layout(gpu: str, blocks: list[int], exchanged: bool) -> None:
    """Unless one of them is no longer than 1, or all threads stand along the contiguous axis."""
    bound = turned_blocks.bind((torch.empty(64, 64, 2048, dtype=torch.bfloat16, device="meta"),), target=gpu)
    config = bound.config_spec.repair({"block_sizes": blocks, "num_warps": 128 // target(gpu).warp_size})
    taken = Triton().predict(bound.facts, bound.config_spec.decode(config), target(gpu)).shared_bytes
    real = bound.resources(config).shared_bytes
    assert real <= taken and (taken > 0) == exchanged == (real > 0)


def assert_is_close(bound: Any, config: dict[str, Any]) -> None:
    """Compare the shared memory of a config with what the assembler takes."""
    whole = helion.Config(**bound.config_spec.repair({**bound.seeds[0].config, **config}))
    real = bound.resources(whole).shared_bytes
    taken = Triton().predict(bound.facts, bound.config_spec.decode(whole), bound.target).shared_bytes
    assert real <= taken <= 1.10 * real + 2048


@pytest.mark.parametrize(
    ("gpu", "chunk", "warps"), [("sm_90", 2048, 8), ("sm_80", 4096, 16), ("sm_100", 16384, 32), ("gfx942", 4096, 8)]
)
def test_stores_of_an_aligned_row_change_the_layout(gpu: str, chunk: int, warps: int) -> None:
    """Loads of chunks that begin at a vector are wide, stores of the loop that runs backwards are not."""
    cell = cells()["smoothed_loss_gradient", "1000x100003 float16"]
    bound = cell.kernel.bind(cell.args, target=gpu)
    assert_is_close(bound, {"reduction_loops": [chunk], "num_warps": warps})


@helion.kernel()
def shifted_product(x: torch.Tensor, y: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
    for row, column in hl.tile(out.size()):
        acc = hl.zeros([row, column], dtype=torch.float32)
        for depth in hl.tile(x.size(1)):
            acc = hl.dot(x[row, depth], y[depth, column], acc=acc)
        out[row, column] = (acc + shift[column][None, :]).to(x.dtype)
    return out


@pytest.mark.parametrize("flattened", [True, False])
@pytest.mark.parametrize(("gpu", "way"), [("sm_80", "pointer"), ("sm_90", "pointer"), ("sm_90", "tensor_descriptor")])
def test_a_flattened_loop_stores_while_the_next_operands_arrive(gpu: str, way: str, flattened: bool) -> None:
    x = torch.empty(1024, 1536, dtype=torch.bfloat16, device="meta")
    bound = shifted_product.bind((x, x.T, torch.empty(1024, device="meta")), target=gpu)
    config = {
        "block_sizes": [64, 128, 64],
        "num_warps": 4,
        "num_stages": 3,
        "pid_type": "persistent_interleaved",
        "range_flattens": [flattened, None],
        "indexing": way,
    }
    assert_is_close(bound, config)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("batch_norm_columns", "401408 by 64"),
        ("unit_columns", "2048 by 1000"),
        ("group_norm_nhwc", "4 by 16384 by 32 by 8"),
        ("routed_gates", "10000 by 60 by 6"),
    ],
)
def test_loops_after_a_reduction_use_its_memory_and_layout(name: str, case: str) -> None:
    (cell,) = (cell for cell in workload_cells() if cell.kernel == name and cell.case == case)
    assert_is_close(cell.function.bind(cell.args, target="sm_90"), {})


def test_rows_stay_for_a_product_that_is_computed_from_them() -> None:
    # 64 x 64 x 2 bytes of rows and of another operand; one turn at a time where nothing stays
    taken = predicted("state_update", "32x2048x64 bfloat16", "gfx942", num_stages=1).shared_bytes
    assert taken == 16384


@helion.kernel()
def swapped_rows(x: torch.Tensor) -> torch.Tensor:
    a, b, c = x.size()
    out = torch.empty([b, a, c], dtype=x.dtype, device=x.device)
    for i, j, k in hl.tile([a, b, c]):
        out[j, i, k] = x[i, j, k].permute(1, 0, 2) + 1
    return out


@helion.kernel()
def transposed_squares(x: torch.Tensor) -> torch.Tensor:
    b, n, _ = x.size()
    n = hl.specialize(n)
    out = torch.empty([b, n, n], dtype=x.dtype, device=x.device)
    for i in hl.tile(b):
        out[i, :, :] = x[i, :, :].permute(0, 2, 1) + 1
    return out


@pytest.mark.parametrize("gpu", ["sm_90", "gfx942"])
@pytest.mark.parametrize(
    ("kernel", "shape", "blocks"),
    [
        (swapped_rows, (256, 128, 512), [4, 8, 64]),
        (swapped_rows, (256, 128, 512), [16, 4, 32]),
        (transposed_squares, (1024, 16, 16), [8]),
    ],
)
def test_tiles_change_their_layout_where_rows_behind_the_innermost_are_permuted(
    kernel: helion.Kernel, shape: tuple[int, ...], blocks: list[int], gpu: str
) -> None:
    bound = kernel.bind((torch.empty(shape, dtype=torch.bfloat16, device="meta"),), target=gpu)
    given = {**bound.seeds[0].config, "block_sizes": blocks, "num_warps": 4, "num_stages": 1}
    config = helion.Config(**bound.config_spec.repair(given))
    decisions = bound.config_spec.decode(config)
    found = predict(bound.facts, decisions.sizes, 4, 1, target(gpu)).shared_bytes
    assert 0 < bound.resources(config).shared_bytes <= found


def test_squares_that_are_not_transposed_stay_in_their_layout() -> None:
    cell = next(cell for cell in workload_cells() if cell.kernel == "decay_matrices")
    assert cell.function.bind(cell.args, target="sm_90").facts.transposed_squares == ()
    x = torch.empty(1024, 16, 16, device="meta")
    assert transposed_squares.bind((x,), target="sm_90").facts.transposed_squares == (((0, 1, 1), 4),)


@helion.kernel()
def scaled_rows(x: torch.Tensor, numbered: hl.constexpr) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty_like(x)
    for tile in hl.tile(m):
        part = torch.log_softmax(x[tile, :].to(torch.float32), -1)
        if numbered:
            part = part * hl.arange(n)[None, :]
        out[tile, :] = part.to(x.dtype)
    return out


@pytest.mark.parametrize("numbered", [False, True])
def test_loops_that_number_elements_store_in_another_width(numbered: bool) -> None:
    """The first loop over unaligned rows loads vectors; a loop that numbers their elements does not."""
    x = torch.empty(4096, 50257, dtype=torch.float16, device="meta")
    bound = scaled_rows.bind((x, numbered), target="sm_90")
    assert bound.facts.numbered_axes == ({1} if numbered else set())
    assert_is_close(bound, {"reduction_loops": [2048], "num_warps": 8, "num_stages": 1})


@pytest.mark.parametrize("gpu", ["sm_90", *(pytest.param(gpu, marks=pytest.mark.prove) for gpu in ("sm_86", "gfx942"))])
def test_a_scan_is_not_laid_out_as_squares_made_of_it(gpu: str) -> None:
    """What is spread over a square has a dimension more than what is combined along a row."""
    cell = next(cell for cell in workload_cells() if cell.kernel == "decay_matrices" and "100" in cell.case)
    bound = cell.function.bind(cell.args, target=gpu)
    seed = bound.seeds[0]
    real = bound.resources(seed.config).shared_bytes
    assert real <= seed.predicted.shared_bytes <= 1.10 * real + 2048


def test_products_of_whole_numbers_have_no_unit_of_their_own_in_tensor_memory() -> None:
    def unit(dtype: torch.dtype, gpu: str, columns: int = 64) -> str:
        return unit_for(
            rows=128,
            columns=columns,
            depth=64,
            batched=False,
            dtypes=(dtype, dtype),
            k_major=True,
            precision="tf32",
            warps=8,
            target=target(gpu),
        )

    assert unit(torch.int8, "sm_100") == "mma"
    assert unit(torch.bfloat16, "sm_100") == "tcgen05"
    assert unit(torch.int8, "sm_90") == "wgmma"
    assert unit(torch.bfloat16, "sm_90", 8) == unit(torch.bfloat16, "sm_100", 8) == "mma"


def test_matrix_stores_write_what_wider_accesses_read() -> None:
    assert moved_at_once(16, 4, target("sm_80")) == moved_at_once(16, 4, target("sm_90")) == 4
    assert (moved_at_once(16, 64, target("sm_80")), moved_at_once(16, 64, target("sm_90"))) == (16, 4)
    assert moved_at_once(16, 4, target("gfx942")) == moved_at_once(4, 16, target("gfx942")) == 16


@pytest.mark.parametrize("gpu", ["sm_90", "h200", "sm_100", "gfx942"])
def test_a_mask_that_all_columns_share_does_not_say_how_tiles_lie(gpu: str) -> None:
    cell = cells()["mean_over_time", "64x512x768 bfloat16"]
    bound = cell.kernel.bind(cell.args, target=gpu)
    assert bound.seeds[0].heuristic == "TritonColumnReductionHeuristic"
    sizes = bound.config_spec.sizes(bound.seeds[0].config)
    assert sizes[1] * 2 >= 128 and bound.seeds[0].predicted.waves > 0.5


def test_more_warps_are_no_help_where_each_repeats_the_operands_of_its_neighbours() -> None:
    cell = cells()["state_update", "16x1024x128 float16"]
    bound = cell.kernel.bind(cell.args, target="sm_80")
    # 1560 bytes are spilled, with 16 warps 20216
    assert (bound.seeds[0].config["num_warps"], bound.seeds[0].config["num_stages"]) == (8, 2)


def test_rows_that_begin_anywhere_take_registers_of_single_loads_on_amd() -> None:
    """By LLVM for gfx942: whole rows of 50257 spill 196 bytes and of 50256 none; 32001 take 102 registers, 32000 58."""

    def whole(columns: int) -> Predicted:
        logits = torch.empty(8192, columns, dtype=torch.bfloat16, device="meta")
        labels = torch.empty(8192, dtype=torch.int64, device="meta")
        args = (logits, None, labels, -100, 0.1, True)
        bound = helion.kernel(cross_entropy_kernel.fn).bind(args, target="gfx942")
        config = bound.config_spec.normalize(
            helion.Config(block_sizes=[1], reduction_loops=[None], num_warps=16, num_stages=1)
        )
        return bound._analysis.predict(config)

    assert whole(50257).spill_risk > 0 == whole(50256).spill_risk
    assert whole(40001).spill_risk == 0
    assert whole(32001).registers_per_thread >= whole(32000).registers_per_thread + 25


SHAPES = ((16384, 1024), (1024, 128), (128, 1024))


@helion.kernel()
def bottleneck(x: torch.Tensor, narrow: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
    """Two layers: the result of the first is an operand of all steps of the second."""
    width = hl.specialize(narrow.size(1))
    out = torch.empty([x.size(0), wide.size(1)], dtype=x.dtype, device=x.device)
    for rows in hl.tile(x.size(0)):
        acc = hl.zeros([rows, width], dtype=torch.float32)
        for k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[rows, k], narrow[k, :])
        middle = torch.relu(acc).to(x.dtype)
        for columns in hl.tile(wide.size(1)):
            out[rows, columns] = hl.dot(middle, wide[:, columns]).to(x.dtype)
    return out


@pytest.mark.parametrize(
    ("gpu", "tile", "warps", "real", "bound"),
    [
        ("sm_80", [32, 64, 64], 4, 45056, 45056),
        ("sm_120", [16, 64, 64], 4, 38912, 38912),
        ("sm_100", [128, 64, 128], 8, 139280, 163904),  # its stores exchange in rounds
    ],
)
def test_a_result_stays_in_shared_memory_throughout_a_loop_that_multiplies_it(
    gpu: str, tile: list[int], warps: int, real: int, bound: int
) -> None:
    x, narrow, wide = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in SHAPES)
    bound_kernel = bottleneck.bind((x, narrow, wide), target=gpu)
    sizes = bound_kernel.config_spec.decode(bound_kernel.config_spec.repair({"block_sizes": tile})).sizes
    assert real <= predict(bound_kernel.facts, sizes, warps, 3, target(gpu)).shared_bytes <= bound


@helion.kernel(autotune_effort="none", backend="triton")
def short_products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.size(0), y.size(1), dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile(out.shape):
        out[rows, columns] = (x[rows, :] @ y[:, columns]).to(x.dtype)
    return out


@pytest.mark.parametrize("gpu", ["sm_80", "sm_90"])
@pytest.mark.parametrize(("dtype", "stages"), [(torch.bfloat16, 4), (torch.float32, 3)])
def test_persistent_programs_prefetch_for_their_next_tile(gpu: str, dtype: torch.dtype, stages: int) -> None:
    x, y = (torch.empty(shape, dtype=dtype, device="meta") for shape in ((1000, 64), (64, 300)))
    bound = short_products.bind((x, y), target=gpu)
    launch = {"block_sizes": [64, 64], "num_warps": 4, "num_stages": stages, "pid_type": "persistent_interleaved"}
    assert_is_close(bound, launch | {"indexing": ["pointer"] * 3})


@helion.kernel(autotune_effort="none")
def doubled_rows(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = hl.cumsum(x[tile, :], dim=1)
    return out


@pytest.mark.parametrize("unrolled", [0, 2])
def test_persistent_programs_without_a_dot_prefetch_by_their_own_stages(unrolled: int) -> None:
    bound = doubled_rows.bind((torch.empty(5000, 128, device="meta"),), target="sm_90")
    launch = {"block_sizes": [16], "num_warps": 8, "pid_type": "persistent_blocked", "num_sm_multiplier": 8}
    assert_is_close(bound, launch | {"range_num_stages": [3], "range_unroll_factors": [unrolled]})


@helion.kernel(autotune_effort="none")
def ordered_bits(x: torch.Tensor, queue: torch.Tensor, out: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        bits = hl.reduce(lambda a, b: a | b, x[tile], dim=0, other=0)
        out[hl.atomic_add(queue, [0], 1)] = bits


def test_folds_and_returned_numbers_are_exchanged() -> None:
    x, queue, out = (torch.empty(n, dtype=torch.int32, device="meta") for n in (5000, 1, 10))
    bound = ordered_bits.bind((x, queue, out), target="sm_90")
    assert_is_close(bound, {"block_sizes": [512], "num_warps": 4})
    assert bound.resources(bound.seeds[0].config).shared_bytes


@helion.kernel
def both_directions(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows, cols = a.new_empty([a.size(0)], dtype=torch.float32), b.new_empty([b.size(0)], dtype=torch.float32)
    hl.specialize(a.size(1))
    for tile_m in hl.tile(a.size(0)):
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        own = a[tile_m, :]
        for tile_n in hl.tile(b.size(0)):
            top = torch.maximum(top, torch.amax(hl.dot(own, b[tile_n, :].T), -1))
        rows[tile_m] = top
    for tile_n in hl.tile(b.size(0)):
        top = hl.full([tile_n], float("-inf"), dtype=torch.float32)
        own = b[tile_n, :]
        for tile_m in hl.tile(a.size(0)):
            top = torch.maximum(top, torch.amax(hl.dot(own, a[tile_m, :].T), -1))
        cols[tile_n] = top
    return rows, cols


@pytest.mark.parametrize("gpu", ["sm_90", "sm_80"])
def test_grid_loops_of_one_launch_share_their_memory(gpu: str) -> None:
    bound = both_directions.bind((torch.empty(4096, 256, device="meta").bfloat16(),) * 2, target=gpu)
    config = helion.Config(block_sizes=[64, 64, 64, 64], num_warps=4, num_stages=2)
    taken = Triton().predict(bound.facts, bound.config_spec.decode(bound.config_spec.normalize(config)), bound.target)
    real = bound.resources(config).shared_bytes
    assert real <= taken.shared_bytes <= 1.10 * real + 2048


@helion.kernel
def _with_residual(x: torch.Tensor, y: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    out = torch.empty_like(residual)
    for rows, columns in hl.tile([m, residual.size(1)]):
        acc = hl.zeros([rows, columns])
        for inner in hl.tile(k):
            acc = torch.addmm(acc, x[rows, inner], y[inner, columns])
        out[rows, columns] = (acc + residual[rows, columns].to(torch.float32)).to(out.dtype)
    return out


@pytest.mark.parametrize(("depth", "real"), [(60, 24576), (64, 24576), (128, 32768)])
def test_a_sum_of_one_step_begins_with_the_tile_that_is_added(depth: int, real: int) -> None:
    shapes = ((100, depth), (depth, 100), (100, 100))
    args = tuple(torch.empty(*shape, device="meta", dtype=torch.bfloat16) for shape in shapes)
    kernel = _with_residual.bind(args, target="h200")
    full = kernel.config_spec.normalize(helion.Config(block_sizes=[64, 64, 64], num_warps=4, num_stages=2))
    assert kernel._analysis.predict(full).shared_bytes == real == kernel.resources(full).shared_bytes
