"""Tiles whose columns are multiples of 16 and not only powers of two: configs, search, seeds, and what their kernels compute."""

from __future__ import annotations

import functools
from random import Random
from typing import Any

import pytest
import torch
from backends.cute import gemms, lockstep, products
from backends.cute.products import BF16, BOUNDS, matmul

import helion
import helion.language as hl
from helion import exc
from helion.autotuner.space.fields import BlockSizes, values_of
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.records import Choice
from helion.backends.cute.subtiles import buffers_of, subtile_of

HOPPER, BLACKWELL = "sm_90", "sm_100"
WIDTHS = tuple(range(32, 257, 16))


@functools.cache
def bound(on: str, m: int, n: int, k: int, major: str = "column") -> Any:
    x = torch.empty(m, k, dtype=BF16, device="meta")
    lines = {"column": (n, k), "row": (k, n)}[major]
    y = torch.empty(*lines, dtype=BF16, device="meta")
    return matmul.bind((x, y.t() if major == "column" else y), target=on)


def block_sizes(space: Any) -> BlockSizes:
    field = space.field("block_sizes")
    assert isinstance(field, BlockSizes)
    return field


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("wanted", [8, 16, 32, 64])
def test_sub_tiles_and_buffers_divide_every_tile(width: int, wanted: int) -> None:
    columns = subtile_of(width, wanted)
    assert columns in (8, 16, 32, 64) and width % columns == 0 and columns <= wanted
    parts = width // columns
    assert parts >= 2
    for buffers in (2, 3, 4, 5, 8):
        got = buffers_of(parts, buffers)
        assert got >= 2 and parts % got == 0
        assert got <= buffers or all(parts % each for each in range(2, buffers + 1))


def test_buffers_need_not_divide_sub_tiles() -> None:
    assert (subtile_of(176, 32), subtile_of(176, 32, divided=False), subtile_of(176, 8, divided=False)) == (8, 16, 8)
    assert buffers_of(176 // 16, 4) == 2


@pytest.mark.parametrize("on", [HOPPER, BLACKWELL])
def test_every_multiple_of_16_is_a_config(on: str) -> None:
    known = bound(on, 1000, 3000, 520)
    for width in WIDTHS:
        config = known.config_spec.normalize(helion.Config(block_sizes=[128, width, 64]))
        assert config["block_sizes"] == [128, width, 64]
        assert known.config_spec.normalize(config) == config
        plan = known.plan(config).gemm
        assert plan.tile == (128, width, 64)
        assert plan.subtiles % plan.store_stages == 0 or plan.store_stages == 2


def test_columns_along_which_b_is_contiguous_are_multiples_of_its_swizzled_lines() -> None:
    known = bound(HOPPER, 1000, 3000, 520, "row")
    assert values_of(block_sizes(known.config_spec).slots[1].fragment) == (64, 128, 192, 256)
    config = known.config_spec.normalize(helion.Config(block_sizes=[128, 192, 64]))
    assert known.plan(config).gemm.tile == (128, 192, 64)


@pytest.mark.parametrize(
    ("major", "sizes", "message"),
    [
        ("column", [128, 100, 64], r"block_sizes\[1\] \(.*\) must be a power of two or a multiple of 16, got 100\."),
        ("column", [128, 8 + 16, 64], r"block_sizes\[1\] \(.*\) must be a power of two or a multiple of 16, got 24\."),
        ("column", [128, -16, 64], r"block_sizes\[1\] \(.*\) must be a power of two or a multiple of 16, got -16\."),
        ("column", [128, 0, 64], r"block_sizes\[1\] \(.*\) must be a power of two or a multiple of 16, got 0\."),
        ("column", [128, 96.0, 64], r"block_sizes\[1\] \(.*\) must be an integer, got 96\.0\."),
        ("column", [128, True, 64], r"block_sizes\[1\] \(.*\) must be an integer, got True\."),
        ("row", [128, 80, 64], r"block_sizes\[1\] \(.*\) must be a power of two or a multiple of 64, got 80\."),
        ("column", [96, 80, 64], r"block_sizes\[0\] \(.*\) must be a power of two, got 96\."),
        ("column", [128, 80, 96], r"block_sizes\[2\] \(.*\) must be a power of two, got 96\."),
    ],
)
def test_other_sizes_are_refused(major: str, sizes: list[Any], message: str) -> None:
    with pytest.raises(exc.InvalidConfig, match=message):
        bound(HOPPER, 1000, 3000, 520, major).config_spec.normalize(helion.Config(block_sizes=sizes))


@pytest.mark.parametrize(("asked", "got"), [(16, 32), (8, 32), (272, 256), (1024, 256), (240, 240)])
def test_sizes_out_of_range_are_brought_into_it(asked: int, got: int) -> None:
    config = bound(HOPPER, 1000, 3000, 520).config_spec.normalize(helion.Config(block_sizes=[128, asked, 64]))
    assert config["block_sizes"] == [128, got, 64]


def test_a_pair_of_ctas_shares_columns_in_halves() -> None:
    known = bound(BLACKWELL, 1000, 3000, 520)
    assert known.plan(known.config_spec.normalize(helion.Config(block_sizes=[256, 96, 64]))).gemm.ctas_per_mma == 2
    with pytest.raises(exc.InvalidConfig, match="a tile of 80 columns; multiples of 32"):
        known.config_spec.normalize(helion.Config(block_sizes=[256, 80, 64]))


def test_steps_of_a_search_reach_every_tile() -> None:
    field = block_sizes(bound(HOPPER, 1000, 3000, 520).config_spec)
    seen, found = set(), [field.default()]
    while found:
        value = found.pop()
        if value[1] not in seen:
            seen.add(value[1])
            found += field.neighbours(value)
    assert seen == set(WIDTHS)
    assert {field.random(Random(seed))[1] for seed in range(200)} == set(WIDTHS)
    assert [each[1] for each in field.neighbours([64, 96, 64]) if each[1] != 96] == [64, 80, 112, 128]


@pytest.mark.parametrize("on", [HOPPER, BLACKWELL])
def test_random_configs_of_uneven_tiles_are_normal_and_have_plans(on: str) -> None:
    known = bound(on, 1000, 3000, 520)
    space, uneven = known.config_spec, 0
    for seed in range(60):
        config = space.random(Random(seed))
        predicted = known._analysis.predict(config)
        if predicted.fits:
            assert space.normalize(config) == config
            plan = known.plan(config).gemm
            assert plan.tile[1] == config["block_sizes"][1]
            uneven += plan.tile[1] & (plan.tile[1] - 1) != 0
    assert uneven >= 10


@pytest.mark.parametrize(("size", "half"), [(256, 128), (192, 96), (144, 64), (80, 32), (48, 32)])
def test_half_of_a_tile_is_one(size: int, half: int) -> None:
    space = bound(HOPPER, 1000, 3000, 520).config_spec
    assert space.half(space.tunable[1], size) == half
    assert space.half(space.tunable[0], 128) == 64


def test_seeds_take_columns_that_fit_better() -> None:
    """Two CTAs of a cluster have half of the columns each."""
    config = bound("h200", 8192, 144, 2048).default_config()
    assert (config["block_sizes"][1], config["wgmma_cluster_n"]) == (80, 2)
    assert bound("h200", 4096, 4096, 4096).default_config()["block_sizes"] == [128, 256, 64]


@helion.kernel(backend="cute", autotune_effort="none")
def fixed_columns(x: torch.Tensor, y: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    (m, k), n = x.shape, y.shape[1]
    rows, columns = hl.specialize(rows), hl.specialize(columns)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n], block_size=[rows, columns]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def operands(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = products.values(m, k, dtype=BF16, device="cpu")
    return x, products.operand(k, n, "column", dtype=BF16, device="cpu", seed=1)


@pytest.mark.parametrize("columns", [80, 112, 192])
def test_a_program_may_say_such_a_tile(columns: int) -> None:
    x, y = operands(65, 200, 72)
    known = fixed_columns.bind((x, y, 64, columns), target=HOPPER)
    assert known.plan().gemm.tile == (64, columns, 64)
    assert products.row_error(fixed_columns(x, y, 64, columns), products.reference(x, y, BF16, None)) < BOUNDS[BF16]


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        (64, 100, "block_size=100 .*: it must be a power of two or a multiple of 16"),
        (96, 80, "a tile of 96 rows; 64, 128, 256 are implemented on wgmma"),
    ],
)
def test_a_program_may_say_no_other(rows: int, columns: int, message: str) -> None:
    with pytest.raises(exc.BackendUnsupported, match=message):
        fixed_columns.bind((*operands(65, 200, 72), rows, columns), target=HOPPER)


@pytest.mark.parametrize("width", [80, 144, 192])
def test_products_in_such_tiles(width: int) -> None:
    x, y = operands(63, 1000, 136)
    kernel = helion.kernel(matmul.fn, backend="cute", config=helion.Config(block_sizes=[64, width, 64]))
    assert products.row_error(kernel(x, y), products.reference(x, y, BF16, None)) < BOUNDS[BF16]


@pytest.mark.parametrize(
    ("name", "tile", "subtile", "buffers"),
    [
        ("sm_90", (128, 80, 64), 16, 5),
        ("sm_90", (64, 112, 64), 8, 2),
        ("sm_90", (128, 144, 64), 16, 3),
        ("sm_100", (128, 144, 64), 16, 3),
        ("sm_100", (64, 80, 64), 16, 5),
    ],
)
def test_the_text_computes_what_torch_does(name: str, tile: tuple[int, int, int], subtile: int, buffers: int) -> None:
    """All threads in lockstep, each sub-tile of a tile that ends behind the last column."""
    target = gemms.HOPPER if name == "sm_90" else gemms.BLACKWELL
    n = tile[1] - 8
    problem = gemms.product(tile[0] - 1, n, 64, output="float32", epilogue=gemms.bias("silu"))
    plan = plan_gemm(problem, Choice(tile=tile, epilogue_n=subtile, store_stages=buffers), target)
    generator = torch.Generator().manual_seed(n)
    sums, bias = (torch.randn(*shape, generator=generator) * 3 + 1 for shape in ((tile[0], n), (n,)))
    cluster = lockstep.Cluster(plan, [sums], {"bias": bias.to(BF16)})
    cluster.run()
    wanted = torch.nn.functional.silu(sums.double() + bias.to(BF16).double())
    (output,) = problem.outputs
    got = cluster.matrix(output.name)[: problem.m].double()
    torch.testing.assert_close(got, wanted[: problem.m], rtol=1e-5, atol=1e-5)
