"""First seeds of kernels of many kinds: they compile, fit and hardly spill, and shared memory is never more than predicted."""

from __future__ import annotations

import inspect
import re
from functools import cache

import pytest
import torch
from varied_kernels import (
    BF16,
    E4M3,
    E5M2,
    FP32,
    Varied,
    cells,
    channel_group_norm,
    dynamic_product,
    focal_loss_gradient,
    noisy_rms,
    norm_then_column_sums,
    normed_product,
    ragged_mean,
    routed_product,
    row_prefix_sum,
    scaled_fp8_product,
    small_products,
    tensor,
)

from helion import exc
from helion.backends.triton.resources.predict import predict
from helion.backends.triton.resources.tiles import vector_elements
from helion.backends.triton.resources.traffic import work
from helion.backends.triton.toolchain.offline import compile_offline
from helion.backends.triton.toolchain.signature import offline_signature
from helion.runtime.bound import BoundKernel

CUDA = ("sm_80", "sm_86", "sm_89", "sm_90", "h200", "sm_120")
GPUS = (*CUDA, "sm_100", "gfx942")
CELLS = {str(cell): cell for cell in cells()}
#: Bytes that a seed may spill, where some config of the kernel spills none.
SPILLED = 64
#: One of each kind that goes through shared memory in a way of its own.
SAMPLE = (
    "bin_counts-2048x1000",
    "row_prefix_sum-64x32768 float32",
    "decayed_sum-2048x512 float32",
    "gathered_rows_added-200000x128 bfloat16",
    "tropical_product-1000x128x2000 bfloat16",
    "channel_group_norm-32x4096x32x8 bfloat16",
    "gated_dual_product-2048x2048x2048 float32",
    "routed_product-1000x1000x3000 float16",
    "bilinear_scores-4096x1024x1024 bfloat16",
)


@cache
def bound(name: str, gpu: str) -> BoundKernel:
    cell: Varied = CELLS[name]
    return cell.kernel.bind(cell.args, target=gpu)


def sizes(kernel: BoundKernel, at: int = 0) -> dict[int, int]:
    return kernel.config_spec.sizes(kernel.seeds[at].config)


# --- compiled ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLE)
@pytest.mark.parametrize("gpu", ["sm_90", "gfx942"])
def test_shared_memory_is_never_more_than_predicted(name: str, gpu: str) -> None:
    check(name, gpu)


@pytest.mark.prove
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("gpu", GPUS)
def test_every_first_seed_fits_as_predicted(name: str, gpu: str) -> None:
    check(name, gpu)


def check(name: str, gpu: str) -> None:
    try:
        kernel = bound(name, gpu)
        seeds = kernel.seeds
    except exc.BackendUnsupported:  # such as fp8 where the GPU has none
        return
    if not seeds:
        assert kernel.declined
        return
    found = kernel.resources(seeds[0].config)
    assert found.fits
    assert found.shared_bytes <= seeds[0].predicted.shared_bytes


@pytest.mark.parametrize("case", ["16384x1024 bfloat16", "8192x8192 bfloat16", "4096x3000 float32"])
@pytest.mark.parametrize("gpu", ["sm_80", "sm_100"])
def test_random_numbers_take_registers(case: str, gpu: str) -> None:
    kernel = bound(f"{noisy_rms.name}-{case}", gpu)
    assert kernel.seeds[0].predicted.spill_risk == 0
    assert kernel.resources(kernel.seeds[0].config).spill_bytes <= SPILLED


@pytest.mark.parametrize("warps", [4, 16])
def test_registers_of_random_numbers_are_what_the_assembler_takes(warps: int) -> None:
    kernel = noisy_rms.bind((*(tensor(4096, 4096),) * 2, tensor(4096), 3), target="sm_90")
    config = kernel.config_spec.normalize({"block_sizes": [1], "num_warps": warps})
    predicted = predict(kernel.facts, kernel.config_spec.sizes(config), warps, 1, kernel.target)
    measured = kernel.resources(config).registers
    assert 0.75 * measured <= predicted.registers_per_thread <= 2 * measured


# --- 8-bit floats --------------------------------------------------------------------------------------------------------


def fp8_product(m: int, k: int, n: int, dtype: torch.dtype, gpu: str, *, turned: bool = True) -> BoundKernel:
    y = tensor(n, k, dtype=dtype).T if turned else tensor(k, n, dtype=dtype)
    scales = tensor(m, dtype=FP32), tensor(n, dtype=FP32)
    return scaled_fp8_product.bind((tensor(m, k, dtype=dtype), y, *scales), target=gpu)


def limit(kernel: BoundKernel, **config: object) -> int:
    """The products along K that the code lets the matrix unit add up by itself."""
    (found,) = re.findall(r"max_num_imprecise_acc=(\d+)", kernel.to_triton_code(config))
    return int(found)


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize(
    ("gpu", "tile", "warps", "expected"),
    [
        ("sm_90", (128, 128, 128), 8, 128),
        ("h200", (64, 128, 32), 4, 32),
        ("sm_90", (64, 64, 64), 4, 64),
        ("sm_90", (64, 64, 256), 4, 128),
        # too few rows or warps for the asynchronous unit: the older one adds in fp32
        ("sm_90", (32, 128, 128), 4, 0),
        ("sm_90", (64, 128, 128), 2, 0),
        ("sm_89", (128, 128, 128), 8, 0),
        ("sm_100", (128, 128, 128), 8, 0),
        ("sm_120", (128, 128, 128), 8, 0),
        ("gfx942", (128, 128, 64), 8, 0),
    ],
)
def test_partial_sums_of_8_bit_floats(
    dtype: torch.dtype, gpu: str, tile: tuple[int, ...], warps: int, expected: int
) -> None:
    kernel = fp8_product(512, 2048, 768, dtype, gpu)
    assert limit(kernel, block_sizes=list(tile), num_warps=warps) == expected


@pytest.mark.parametrize("gpu", ["sm_90", "h200"])
@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize(("m", "k", "n"), [(4096, 4096, 4096), (1000, 1024, 3072)])
def test_seeds_of_8_bit_floats_leave_room_for_two_accumulators(m: int, k: int, n: int, turned: bool, gpu: str) -> None:
    kernel = fp8_product(m, k, n, E4M3, gpu, turned=turned)
    fact = kernel.facts.matmuls[0]
    tile = sizes(kernel)
    if turned:
        assert tile[fact.m_axis] >= 64 and tile[fact.m_axis] * tile[fact.n_axis] <= 128 * 128
    assert limit(kernel, **kernel.default_config()) == (min(128, tile[fact.k_axis]) if turned else 0)
    assert kernel.seeds[0].predicted.spill_risk == 0


def promoted(products: torch.Tensor, every: int) -> torch.Tensor:
    """Sums along the last dimension as the asynchronous unit takes them: 32 products at a time are added to what it has,
    all cut off 13 bits below the largest exponent among them; every so many products its sum goes to fp32."""
    total = torch.zeros(products.shape[:-1], dtype=torch.float32)
    for start in range(0, products.size(-1), every):
        own = torch.zeros(products.shape[:-1], dtype=torch.float64)
        for at in range(start, min(start + every, products.size(-1)), 32):
            together = torch.cat([own[..., None], products[..., at : at + 32]], -1)
            _, exponent = torch.frexp(together.abs().amax(-1, keepdim=True))
            unit = torch.exp2((exponent - 14).double())
            own = (torch.trunc(together / unit) * unit).sum(-1)
        total += own.float()
    return total


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_partial_sums_of_128_products_are_accurate(dtype: torch.dtype) -> None:
    """At a K of 8192 with a mean that is not zero: within 2 ** -9 of the sum, where one that is never promoted loses
    several times as much."""
    generator = torch.Generator().manual_seed(8)
    x, y = (torch.rand(24, 8192, generator=generator).to(dtype).double() for _ in range(2))
    products = x * y
    exact = products.sum(-1)

    def error(every: int) -> float:
        return float(((promoted(products, every) - exact).abs() / exact).max())

    assert error(128) <= 2**-9
    assert error(8192) >= 8 * error(128)


@pytest.mark.parametrize("gpu", ["sm_90"])
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_8_bit_floats_are_multiplied_asynchronously(gpu: str, dtype: torch.dtype) -> None:
    kernel = fp8_product(1024, 1024, 1024, dtype, gpu)
    text = assembly(kernel)
    name = {E4M3: "e4m3", E5M2: "e5m2"}[dtype]
    assert re.search(rf"wgmma\.mma_async[\w.]*\.f32\.{name}\.{name}", text)
    assert "mma.sync" not in text


def assembly(kernel: BoundKernel) -> str:
    full = kernel.default_config()
    plan = kernel._analysis.code(full).plan
    function = inspect.unwrap(kernel.compile_config(full)).__globals__[plan.kernel_names[0]]
    return compile_offline(function, **offline_signature(plan, kernel.target)).asm["ptx"]


@pytest.mark.gpu
@pytest.mark.parametrize("k", [128, 1000, 8192])
def test_8_bit_floats_are_accurate_on_the_gpu(k: int) -> None:
    x, y = (torch.rand(512, 16 * (k // 16), device="cuda").to(E4M3) for _ in range(2))
    ones = torch.ones(512, device="cuda")
    exact = x.double() @ y.double().T
    result = scaled_fp8_product(x, y.T, ones, ones).double()
    # Rounding to bf16, and what the unit leaves out: of each product in a partial sum less than the last of 14 bits of that sum.
    # Without partial sums 5 % of K = 8192 are lost.
    target = scaled_fp8_product.bind((x, y.T, ones, ones)).target
    bound = 2**-8 + min(x.size(1), target.fp8_partial_sum) * 2**-13 + 2**-16
    assert float(((result - exact).abs() / exact).max()) <= bound


# --- what is proposed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("case", ["8x16384x32x16 float16", "32x4096x32x8 bfloat16"])
def test_the_tile_that_takes_the_registers_is_halved(case: str, gpu: str) -> None:
    """Two loops over positions: neither of them ends up with single ones, and the short row is held."""
    kernel = bound(f"{channel_group_norm.name}-{case}", gpu)
    config = kernel.default_config()
    chosen = kernel.config_spec.sizes(config)
    loops = [chosen[axis.block_id] for axis in kernel.facts.tunable_axes if not axis.on_grid]
    assert min(loops) >= 64 and set(config["reduction_loops"]) == {None}


@pytest.mark.parametrize("gpu", GPUS)
def test_two_loops_over_a_long_row_keep_wide_tiles(gpu: str) -> None:
    for case in ("4096x128256 bfloat16", "2048x50257 float32", "16384x32000 bfloat16"):
        kernel = bound(f"{focal_loss_gradient.name}-{case}", gpu)
        chosen = kernel.config_spec.sizes(kernel.default_config())
        assert min(chosen[a.block_id] for a in kernel.facts.tunable_axes if not a.on_grid) >= 1024


@pytest.mark.parametrize("gpu", ["sm_80", "sm_90", "h200", "sm_100"])
def test_rows_of_another_grid_loop_are_left_alone(gpu: str) -> None:
    """A second grid loop sums up columns: it reads whole sectors of them, whatever the rows of the first take."""
    kernel = norm_then_column_sums.bind((tensor(2048, 16384), tensor(2048, 16384)), target=gpu)
    column = next(a for a in kernel.facts.axes if a.on_grid and a.roots == (1,))
    assert 2 * kernel.config_spec.sizes(kernel.default_config())[column.block_id] >= 32


@pytest.mark.parametrize("case", ["512x4096x4096 bfloat16", "2048x1024x1024 float16"])
@pytest.mark.parametrize("gpu", ["sm_80", "sm_90", "sm_100"])
def test_the_default_is_no_slower_than_the_conservative_config(case: str, gpu: str) -> None:
    kernel = bound(f"{normed_product.name}-{case}", gpu)

    def cost(config: object) -> float:
        tile = kernel.config_spec.sizes(config)  # type: ignore[arg-type]
        return predict(kernel.facts, tile, config["num_warps"], config["num_stages"], kernel.target).time_us  # type: ignore[index]

    assert cost(kernel.default_config()) <= cost(kernel.conservative_config())
    assert kernel.default_config() != kernel.conservative_config()


def test_descriptors_are_proposed_only_for_tensors_that_they_can_move() -> None:
    case = "4096x4096x4096 bfloat16"
    for name in (dynamic_product.name, routed_product.name):
        first = bound(f"{name}-{case}", "h200").seeds[0].config
        assert "tensor_descriptor" not in first["indexing"] and first["pid_type"] == "flat"
    gated = bound(f"gated_dual_product-{case}", "h200")
    assert all(op.static and not op.gathered for op in gated.facts.memory_ops)


def test_strides_that_come_with_the_launch_are_loaded_as_far_as_they_are_known_to_be_aligned() -> None:
    known, unknown = (bound(f"{dynamic_product.name}-{case}", "sm_90") for case in CASES_OF_STRIDES)
    widths = [
        {vector_elements(op, sizes(kernel), 128) for op in kernel.facts.memory_ops if op.kind == "load"}
        for kernel in (known, unknown)
    ]
    assert widths == [{8}, {1}]


CASES_OF_STRIDES = ("4096x4096x4096 bfloat16", "1000x1000x3000 float16")


# --- work ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("matrices", "side"), [(4096, 32), (20000, 16)])
def test_dimensions_of_one_extent_are_counted_each(matrices: int, side: int) -> None:
    kernel = bound(f"small_products-{matrices}x{side} {'bfloat16' if side == 32 else 'float16'}", "sm_90")
    done = work(kernel.facts, sizes(kernel), 4, kernel.target)
    assert done.bytes_moved == 3 * matrices * side * side * 2
    assert small_products.name in kernel.kernel.name


def test_a_loop_over_data_is_as_long_as_its_share_of_the_tensor() -> None:
    kernel = bound(f"{ragged_mean.name}-65536x1024", "sm_90")
    (axis,) = (axis for axis in kernel.facts.axes if axis.extent is None)
    assert axis.mean == 65536 // 16
    done = work(kernel.facts, sizes(kernel), 4, kernel.target)
    assert 65536 * 1024 * 2 <= done.bytes_moved <= 1.1 * 65536 * 1024 * 2


def test_a_scan_passes_on_a_number_for_each_part_of_its_row() -> None:
    kernel = bound(f"{row_prefix_sum.name}-64x32768 float32", "sm_90")
    # elements by 256 threads of 4, for each of 8 warps: all of the row, or of a chunk
    for chunk, passed in ((None, 32), (4096, 4)):
        config = kernel.config_spec.normalize({"block_sizes": [1], "reduction_loops": [chunk], "num_warps": 8})
        predicted = predict(kernel.facts, kernel.config_spec.sizes(config), 8, 1, kernel.target)
        assert predicted.shared_bytes == passed * 8 * 4


def test_every_cell_is_named_once() -> None:
    assert len(CELLS) == len(cells()) and BF16 in {a.dtype for c in cells() for a in c.args if hasattr(a, "dtype")}
