"""Products side by side: the batch as a dimension of tiles, as a scalar index, as a loop, and what each of them reads."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import pytest
import torch
from backends.cute import gemms, products
from backends.cute.products import BF16, BOUNDS

import helion
import helion.language as hl
from helion._testing import EXAMPLES_DIR, import_path
from helion.backends.cute.codegen.module import build
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.records import Batch, Choice, GemmProblem
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.resources.shape import ProductShape, shape_of
from helion.backends.cute.resources.time import RATES, predicted_time
from helion.backends.cute.toolchain.offline import compile_text
from helion.hardware import target as target_of

SIZES = (5, 100, 72, 136)


def tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    return products.values(*shape, dtype=BF16, device="cpu", seed=seed)


def problem_of(kernel: helion.Kernel, *args: torch.Tensor) -> GemmProblem:
    return kernel.bind(args, target="sm_90").plan().gemm.problem


def check(actual: torch.Tensor, expected: torch.Tensor) -> None:
    rows = expected.size(-1)
    assert products.row_error(actual.reshape(-1, rows), expected.reshape(-1, rows)) < BOUNDS[BF16]


SPELLINGS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "tiles": products.bmm,
    "one by one": products.bmm_one_by_one,
}
LEFT: dict[str, Callable[[int, int, int], torch.Tensor]] = {
    "contiguous": lambda b, m, k: tensor(b, m, k),
    "columns": lambda b, m, k: tensor(b, k, m + 4).transpose(1, 2)[:, :m],
    "interleaved": lambda b, m, k: tensor(m, b, k).transpose(0, 1),
    "shared": lambda b, m, k: tensor(1, m, k).expand(b, m, k),
    "padded": lambda b, m, k: tensor(b, m + 3, k + 8)[:, :m, :k],
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("size", [1, 5])
def test_products_of_a_batch(spelling: str, left: str, size: int) -> None:
    m, n, k = SIZES[1:]
    x, y = LEFT[left](size, m, k), tensor(size, k, n, seed=1)
    check(SPELLINGS[spelling](x, y), x.double() @ y.double())
    problem = problem_of(SPELLINGS[spelling], x, y)
    wanted = Batch(size=size, a=x.stride(0), b=n * k, d=m * n) if size > 1 else None
    assert problem.batch == wanted
    assert (problem.m, problem.n, problem.k) == (m, n, k)


def test_a_loop_over_the_batch_shares_the_right_operand() -> None:
    b, _, n, k = SIZES
    m = 128  # shorter rows of one operand are joined
    x, y = tensor(b, m, k), tensor(k, n, seed=1)
    check(products.bmm_shared(x, y), x.double() @ y.double())
    assert problem_of(products.bmm_shared, x, y).batch == Batch(size=b, a=m * k, b=0, d=m * n)


def test_short_rows_of_a_shared_right_operand_are_one_product() -> None:
    b, m, n, k = SIZES
    x, y = tensor(b, m, k), tensor(k, n, seed=1)
    check(products.bmm_shared(x, y), x.double() @ y.double())
    problem = problem_of(products.bmm_shared, x, y)
    assert (problem.m, problem.batch) == (b * m, None)


def test_an_epilogue_reads_what_is_of_each_product_and_what_is_of_all() -> None:
    b, m, n, k = SIZES
    x, y, row, residual = tensor(b, m, k), tensor(b, k, n, seed=1), tensor(b, n, seed=2), tensor(b, m, n, seed=4)
    column = products.values(m, dtype=torch.float32, device="cpu", seed=3)
    args = (x, y, row, column, residual)
    value = (x.double() @ y.double()) * column.double()[:, None] + row.double()[:, None, :]
    check(products.bmm_fused(*args), (torch.nn.functional.silu(value) + residual.double()).transpose(0, 1))
    problem = problem_of(products.bmm_fused, *args)
    assert [each.kind for each in problem.epilogue.operands] == ["column", "row", "exact"]
    assert problem.batch == Batch(size=b, a=m * k, b=n * k, d=n, operands=(0, n, m * n))
    assert problem.d_pitch == b * n


def test_a_seed_takes_one_product_of_a_batch_at_a_time() -> None:
    x, y = (torch.empty(64, 512, 512, dtype=BF16, device="meta") for _ in range(2))
    bound = products.bmm.bind((x, y), target="h200")
    assert all(seed.config["block_sizes"][0] == 1 for seed in bound.seeds)
    assert "64 of 512 x 512 x 512" in str(bound.plan())
    rows, columns = bound.plan().gemm.work
    assert bound.plan().gemm.pieces == 64 * rows * columns


def test_many_short_products_that_memory_bounds_have_wide_tiles_of_few_rows() -> None:
    """All tiles are predicted to take equally long, but each costs barriers and waits."""
    x, y = torch.empty(48, 1024, 64, dtype=BF16, device="meta"), torch.empty(48, 64, 1024, dtype=BF16, device="meta")
    first, *_ = products.bmm.bind((x, y), target="h200").seeds
    assert first.config["block_sizes"][1:3] == [64, 128]


@helion.kernel(backend="cute", static_shapes=True)
def all_into_one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    b, m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_b, tile_m, tile_n in hl.tile([b, m, n], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_b.begin, tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(out.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def neighbours(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    b, m, k = x.size()
    n = y.size(1)
    out = torch.empty([b, m, n], dtype=x.dtype, device=x.device)
    for i in hl.grid(b):
        for tile_m, tile_n in hl.tile([m, n]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[(i + 1) % b, tile_m, tile_k], y[tile_k, tile_n])
            out[i, tile_m, tile_n] = acc.to(out.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def scaled_by_number(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    b, m, k = x.size()
    n = y.size(1)
    out = torch.empty([b, m, n], dtype=x.dtype, device=x.device)
    for i in hl.grid(b):
        for tile_m, tile_n in hl.tile([m, n]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[i, tile_m, tile_k], y[tile_k, tile_n])
            out[i, tile_m, tile_n] = (acc * i).to(out.dtype)
    return out


@helion.kernel(backend="cute")
def whole_matrices(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    b, m, _ = x.shape
    out = torch.empty([b, m, y.size(2)], dtype=x.dtype, device=x.device)
    for of in hl.tile(b):
        out[of, :, :] = torch.bmm(x[of, :, :], y[of, :, :])
    return out


@helion.kernel(backend="cute")
def lower_half(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.shape
    out = torch.zeros([m, m], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, m], block_size=[64, 64]):
        if i.id >= j.id:
            acc = hl.zeros([i, j], dtype=torch.float32)
            for d in hl.tile(k):
                acc = hl.dot(x[i, d], y[j, d].T, acc=acc)
            out[i, j] = acc.to(x.dtype)
    return out


def test_whole_matrices_and_conditions_are_refused_with_a_remedy() -> None:
    with pytest.raises(
        helion.exc.CuteUnsupported, match="each program multiplies whole matrices, .* hl.tile over their rows"
    ):
        whole_matrices.bind((tensor(5, 32, 64), tensor(5, 64, 16)), target="sm_90")
    with pytest.raises(helion.exc.CuteUnsupported, match=r"if in an epilogue .* torch\.where chooses values"):
        lower_half.bind((tensor(128, 72), tensor(128, 72)), target="sm_90")


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (all_into_one, "stored at the same address"),
        (neighbours, "selects matrices, and is used for nothing else"),
        (scaled_by_number, "selects matrices, and is used for nothing else"),
    ],
)
def test_a_batch_that_is_used_otherwise_is_refused(kernel: helion.Kernel, message: str) -> None:
    b, m, n, k = SIZES
    with pytest.raises(helion.exc.CuteUnsupported, match=message):
        kernel.bind((tensor(b, m, k), tensor(k, n)), target="sm_90").plan()


def test_matrices_of_a_batch_that_tma_cannot_step_to_are_copied() -> None:
    b, m, n, k = SIZES
    x = torch.as_strided(tensor(b * m * k + 64), (b, m, k), (m * k + 4, k, 1))
    problem = products.bmm.bind((x, tensor(b, k, n)), target="sm_90").plan().gemm.problem
    assert [each.operand for each in problem.copied] == ["a"]


@helion.kernel(backend="cute")
def batch_last(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k, b = x.shape
    n = y.size(1)
    out = torch.empty([m, n, b], dtype=x.dtype, device=x.device)
    for of, i, j in hl.tile([b, m, n], block_size=[1, None, None]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = torch.addmm(acc, x[i, d, of.id], y[d, j, of.id])
        out[i, j, of.id] = acc.to(x.dtype)
    return out


def test_matrices_of_a_batch_that_is_the_last_dimension_lie_between_each_other() -> None:
    b, m, n, k = SIZES
    x, y = tensor(m, k, b), tensor(k, n, b, seed=1)
    wanted = torch.einsum("mkb,knb->mnb", x.double(), y.double())
    check(batch_last(x, y).permute(2, 0, 1), wanted.permute(2, 0, 1))
    problem = problem_of(batch_last, x, y)
    assert problem.batch == Batch(size=b, a=1, b=1, d=1)
    assert [each.kind for each in problem.outputs] == ["strided"]


@pytest.mark.parametrize("b", [7, 8])
def test_seeds_of_such_matrices_copy_them(b: int) -> None:
    bound = batch_last.bind((tensor(256, 128, b), tensor(128, 192, b)), target="h200")
    assert "warps copy A and B" in bound.seeds[0].reason
    assert bound.plan().gemm.whole.outputs[0].kind == "strided"


tiled_norm = import_path(EXAMPLES_DIR / "matmul_rms_norm_tiled.py").matmul_rms_norm_tiled


def test_another_loop_over_the_columns_stores_by_tma() -> None:
    args = (tensor(4096, 512), tensor(512, 1024), tensor(1024))
    bound = helion.kernel(tiled_norm.fn, backend="cute").bind(args, target="h200")
    shape = shape_of(bound.facts)
    assert not isinstance(shape, str)
    assert (
        [each.kind for each in shape.problem.outputs]
        == [each.kind for each in bound.plan().gemm.whole.outputs]
        == ["exact"]
    )


@pytest.mark.parametrize(
    ("strides", "message"),
    [
        ({"d": 1000 * 520 - 8}, "so matmuls of the batch overlap"),
        ({"d": 0}, "so matmuls of the batch overlap"),
        ({"a": -136}, "A has a stride of -136"),
    ],
)
def test_batches_that_have_no_plan(strides: dict[str, int], message: str) -> None:
    with pytest.raises(Refusal, match=message):
        plan_gemm(gemms.batched(gemms.product(1000, 520, 136), **strides), gemms.SQUARE, gemms.HOPPER)


def test_the_text_of_a_problem_names_a_batch_where_there_is_one() -> None:
    plain = gemms.product()
    names = {each.__name__: each for each in (GemmProblem, Batch)} | {"Epilogue": type(plain.epilogue)}
    assert "batch" not in repr(plain)
    assert eval(repr(plain), names) == plain
    many = gemms.batched(plain)
    assert eval(repr(many), names) == many != dataclasses.replace(many, batch=None)


@pytest.mark.parametrize(
    ("name", "flat"),
    [("sm_90/batch", 0), ("sm_90/batch_interleaved", 0), ("sm_90/batch_shared", 1), ("sm_100/batch_pair", 0)],
)
def test_all_that_is_of_one_product_has_three_coordinates(name: str, flat: int) -> None:
    """In the binary's own instructions: what all products share has two."""
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (the cute extra)")
    plan = gemms.all_plans()[name]
    ptx = compile_text(build(plan), plan).ptx
    copies = re.findall(r"cp\.async\.bulk\.tensor\.(\d)d\S* \S+ ?\[?[^{]*\{([^}]*)\}", ptx)
    assert len(copies) >= 3
    assert all(int(rank) == len(coordinates.split(",")) for rank, coordinates in copies)
    assert sum(rank == "2" for rank, _ in copies) == flat * (2 if name == "sm_90/batch_shared" else 1)


@helion.kernel(backend="cute")
def both_kinds(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    b, m, k = x.shape
    n = y.size(2)
    narrow = torch.empty([b, m, n], dtype=x.dtype, device=x.device)
    wide = torch.empty([b, m, n], dtype=torch.float32, device=x.device)
    for of, i, j in hl.tile([b, m, n], block_size=[1, None, None]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = torch.addmm(acc, x[of.id, i, d], y[of.id, d, j])
        narrow[of.id, i, j] = acc.to(x.dtype)
        wide[of.id, i, j] = acc
    return narrow, wide


def test_threads_step_over_distances_that_tma_cannot() -> None:
    """Rows of 4 * 69 elements are multiples of 16 bytes in fp32 alone."""
    bound = both_kinds.bind((tensor(5, 185, 72), tensor(5, 72, 276, seed=1)), target="sm_90")
    assert {each.kind for each in bound.plan().gemm.problem.outputs} == {"strided", "exact"}
    assert "cute.kernel" in bound.to_cute_code()


@helion.kernel
def along_the_last(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k, b = x.shape
    n = y.size(0)
    out = torch.empty([m, n, b], dtype=x.dtype, device=x.device)
    for of, i, j in hl.tile([b, m, n], block_size=[1, None, None]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = torch.addmm(acc, x[i, d, of.begin], y[j, d, of.begin].T)
        out[i, j, of.begin] = acc.to(x.dtype)
    return out


def test_a_batch_whose_elements_are_apart_is_packed_by_triton() -> None:
    """Warps copy each element from a sector of its own, which takes far longer than a copy of all of them."""
    x = torch.empty([384, 384, 128], dtype=torch.bfloat16, device="meta")
    bound = along_the_last.bind((x, x), target="h200")
    assert bound.backend_on_gpu == "triton"
    assert bound.default_config()["pack_operands"]
    assert "_helion_packed_5" in bound.to_triton_code()
    shape = shape_of(bound.facts)
    assert isinstance(shape, ProductShape)
    adjacent = dataclasses.replace(
        shape.problem,
        copied=tuple(
            dataclasses.replace(each, sources=(dataclasses.replace(each.sources[0], pitch=1),))
            for each in shape.problem.copied
        ),
    )
    apart, near = (
        predicted_time(plan_gemm(each, Choice(tile=(128, 64, 64)), target_of("h200")), 0, target_of("h200"))
        for each in (shape.problem, adjacent)
    )
    assert apart.k_tile_us == (128 + 64) * 64 * RATES.scattered_us > 4 * near.k_tile_us
