"""Lines that an index picks: of operands, and of outputs that threads store or add to."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from backends.cute import cubins, picked_kernels, products
from backends.cute.picked_kernels import added, combined, dequantized, gathered, gathered_columns, routed, scattered
from backends.cute.products import BF16, BOUNDS
from backends.cute.test_verify import is_found_at_once

import helion
from helion import exc
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.epilogue import LineNumbers
from helion.backends.cute.plan.records import Choice
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.resources.shape import shape_of
from helion.backends.cute.roles.edits import edit_role
from helion.backends.cute.roles.grammar import GroupViews
from helion.backends.cute.roles.programs import kernel_program
from helion.backends.cute.shapes import MATMUL
from helion.hardware import target as target_of

M, N, K, LINES = 203, 136, 72, 90
OFFSETS = (3, 70, 70, 190)


def tensor(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> torch.Tensor:
    return products.values(*shape, dtype=dtype, device="cpu", seed=seed)


def numbers(count: int = M, lines: int = LINES, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(0, lines, (count,), generator=torch.Generator().manual_seed(1)).to(dtype)


def multiplied(rows: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return the product of the rows of each group by its matrix in fp64; 0 in rows of none."""
    out = torch.zeros(len(rows), w.size(2), dtype=torch.float64)
    for at, (first, after) in enumerate(itertools.pairwise(OFFSETS)):
        out[first:after] = rows[first:after].double() @ w[at].double()
    return out


# Operands -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("k", [72, 71])
def test_rows_of_the_left_operand(dtype: torch.dtype, k: int) -> None:
    x, w, rows = tensor(LINES, k), tensor(N, k, seed=1), numbers(dtype=dtype)
    assert products.row_error(gathered(x, w, rows), x[rows].double() @ w.double().t()) < BOUNDS[BF16]
    problem = gathered.bind((x, w, rows), target="sm_90").plan().gemm.whole
    copied = problem.copy_of("a")
    assert copied.sources[0].picked == LINES and copied.lines.dtype == str(dtype).split(".")[1]


def test_rows_by_numbers_with_a_stride_and_of_a_transposed_tensor() -> None:
    x, w, rows = tensor(K, LINES).t(), tensor(N, K, seed=1), numbers(2 * M)[::2]
    assert products.row_error(gathered(x, w, rows), x[rows].double() @ w.double().t()) < BOUNDS[BF16]


def test_numbers_outside_of_the_tensor_read_inside_of_it() -> None:
    x, w, rows = tensor(LINES, K), tensor(N, K, seed=1), numbers()
    rows[7], rows[9] = -5, LINES
    wanted = x[rows.clamp(0, LINES - 1)].double() @ w.double().t()
    assert products.row_error(gathered(x, w, rows), wanted) < BOUNDS[BF16]


def test_lines_of_the_right_operand() -> None:
    x, w, words = tensor(M, K), tensor(LINES, K, seed=1), numbers(N)
    assert products.row_error(gathered_columns(x, w, words), x.double() @ w[words].double().t()) < BOUNDS[BF16]


@pytest.mark.parametrize("dtype", [BF16, torch.float32, torch.float8_e4m3fn])
def test_an_index_along_k(dtype: torch.dtype) -> None:
    """Lines along K stay as they are for 16 bits, and are transposed for others."""
    x, w, rows = tensor(M, K, dtype=dtype), tensor(LINES, N, seed=1, dtype=dtype), numbers(K)
    given = (x, w, rows) if dtype != torch.float8_e4m3fn else (x, w.t().contiguous().t(), rows)
    found = picked_kernels.inner.bind(given, target="sm_90")
    bound = 0.04 if dtype == torch.float8_e4m3fn else BOUNDS[BF16]
    assert products.row_error(found(*given).float(), x.double() @ w.double()[rows]) < bound
    prepared = found.plan().gemm.prepare.operands[-1]
    assert prepared.major == ("mn" if dtype == BF16 else "k")
    assert prepared.copied.sources[0].k_picked == LINES
    assert not MATMUL.on_request(found._analysis.program, found.facts, found.env.target)


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_seeds_know_what_an_index_along_k_leaves_contiguous(target: str) -> None:
    """A tile of B that is contiguous along N has whole swizzled lines of it."""
    x, w, rows = tensor(64, 520), tensor(LINES, 32, seed=1), numbers(520)
    found = picked_kernels.inner.bind((x, w, rows), target=target)
    shape = shape_of(found.facts)
    assert not isinstance(shape, str) and shape.problem.copied[0].sources[0].k_picked
    assert found.plan().gemm.tile[1] == 64


def test_columns_of_the_left_operand_and_rows_across_k() -> None:
    x, w, columns = tensor(M, LINES), tensor(K, N, seed=1), numbers(K, dtype=torch.int32)
    half = (w.float() * 0.5).bfloat16()
    wanted = x.double()[:, columns] @ half.double()
    assert products.row_error(picked_kernels.inner_columns(x, w, columns), wanted) < 1e-5
    rows, columns[3], columns[5] = x.t().contiguous(), -4, LINES
    wanted = rows.double()[columns.clamp(0, LINES - 1)].t() @ w.double()
    assert products.row_error(picked_kernels.weight_gradient(rows, columns, w), wanted) < 1e-5


def test_computed_operands_of_picked_rows() -> None:
    scale, w, rows = torch.rand(LINES) / 64, tensor(N, K, seed=1), numbers()
    x = torch.randint(-128, 128, (LINES, K), generator=torch.Generator().manual_seed(0), dtype=torch.int8)
    left = (x.float() * scale[:, None]).bfloat16()[rows]
    assert products.row_error(dequantized(x, scale, w, rows), left.double() @ w.double().t()) < BOUNDS[BF16]


def test_groups_of_picked_rows() -> None:
    x, tokens, offsets = tensor(LINES, K), numbers(200), torch.tensor(OFFSETS)
    gate, up = (tensor(3, N, K, seed=seed) for seed in (1, 2))
    first, second = (multiplied(x[tokens], each.transpose(1, 2)) for each in (gate, up))
    wanted = torch.nn.functional.silu(first) * second
    found = routed(x, gate, up, tokens, offsets)
    assert products.row_error(found, wanted) < BOUNDS[BF16] and not found[wanted.abs().sum(1) == 0].any()


# Outputs ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [136, 133])
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_rows_are_stored_to_picked_lines(n: int, dtype: torch.dtype) -> None:
    x, w, rows = tensor(M, K), tensor(n, K, seed=1), torch.randperm(M + 20)[:M]
    rows[5] = -1  # nothing is stored for it, nor for numbers past the end
    rows[6] = M + 20
    out = scattered(x, w, rows, torch.full((M + 20, n), 3.0, dtype=dtype))
    inside = (rows >= 0) & (rows < M + 20)
    product = x.double() @ w.double().t()
    assert products.row_error(out[rows[inside]], product[inside]) < BOUNDS[dtype]
    rest = torch.ones(M + 20, dtype=torch.bool)
    rest[rows[inside]] = False
    assert (out[rest] == 3).all()


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_groups_are_added_to_the_rows_of_their_tokens(dtype: torch.dtype) -> None:
    x, w, tokens = tensor(200, K), tensor(3, K, N, seed=1), numbers(200)
    weight, begun = torch.rand(200), tensor(LINES, N, seed=4, dtype=dtype)
    found = combined(x, w, tokens, weight, torch.tensor(OFFSETS), begun.clone())
    values = (multiplied(x, w) * weight.double()[:, None])[OFFSETS[0] : OFFSETS[-1]]
    wanted = begun.double().index_add(0, tokens[OFFSETS[0] : OFFSETS[-1]], values)
    assert products.row_error(found, wanted) < 2 * BOUNDS[dtype]


@pytest.mark.parametrize("layout", ["odd", "transposed"])
def test_additions_to_matrices_that_tma_does_not_take(layout: str) -> None:
    n = 133 if layout == "odd" else N
    x, w = tensor(M, K), tensor(n, K, seed=1)
    begun = tensor(M, n, seed=4, dtype=torch.float32)
    begun = begun[:, ::1] if layout == "odd" else begun.repeat_interleave(2, 1)[:, ::2]
    wanted = begun.double() + x.double() @ w.double().t()
    assert products.row_error(added(x, w, begun.clone()), wanted) < BOUNDS[torch.float32]


# Decisions and code -------------------------------------------------------------------------------------------------------


def bound(kernel: helion.Kernel, target: str = "sm_90") -> helion.BoundKernel:
    meta = {"dtype": BF16, "device": "meta"}
    x, w, rows = torch.empty(4096, 512, **meta), torch.empty(1024, 512, **meta), torch.empty(4096, device="meta").long()
    experts, offsets = torch.empty(8, 1024, 512, **meta), torch.empty(9, device="meta").long()
    out = torch.empty(4096, 1024, dtype=torch.float32, device="meta")
    given = {
        "gathered": (x, w, rows),
        "scattered": (x, w, rows, out),
        "added": (x, w, torch.empty(4096, 1027, dtype=torch.float32, device="meta")[:, :1024]),
        "routed": (x, experts, experts, rows, offsets),
        "combined": (x, experts.transpose(1, 2), rows, rows.float(), offsets, out),
    }[kernel.name]
    return kernel.bind(given, target=target)


KERNELS = (gathered, scattered, added, routed, combined)


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_seeds_and_requests(kernel: helion.Kernel, target: str) -> None:
    found = bound(kernel, target)
    shape = shape_of(found.facts)
    assert not isinstance(shape, str) and found.seeds
    problem = found.plan().gemm.whole
    assert (shape.problem.m, shape.problem.n, shape.problem.k) == (problem.m, problem.n, problem.k)
    assert [each.kind for each in shape.problem.outputs] == [each.kind for each in problem.outputs]
    assert [each.lines is None for each in shape.problem.copied] == [each.lines is None for each in problem.copied]
    asked = MATMUL.on_request(found._analysis.program, found.facts, found.env.target)
    wanted = "added to memory" if kernel is added else "that an index picks"
    assert not asked if target == "sm_90" else wanted in asked
    if problem.copied:
        assert found.plan().gemm.prepare is not None, "rows are picked before the matmul"


@pytest.mark.prove
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_kernels_compile_without_spills(kernel: helion.Kernel, target: str) -> None:
    found = cubins.measure(bound(kernel, target).plan().gemm)
    assert found["stack_bytes"] == 0 and not found["misplaced_barriers"]
    if kernel in (added, combined):
        assert found["opcodes"].get("RED", found["opcodes"].get("REDG"))


def test_threads_store_up_to_the_end_of_their_group() -> None:
    text = bound(combined).to_cute_code()
    assert "<= group_end - 1 and" in text and "first_row = group_begin + " in text
    program = kernel_program(bound(combined).plan().gemm)
    faulty = edit_role(program, "load", lambda step: () if isinstance(step, GroupViews) else (step,))
    assert is_found_at_once(faulty)


@pytest.mark.parametrize(
    ("kernel", "given", "reason"),
    [
        ("twice", (tensor(LINES, LINES), tensor(K, N), numbers(), numbers(K)), "without offsets and masks"),
        ("with_bias", (tensor(M, K), tensor(N, K), numbers(), tensor(LINES, N)), "are read in an epilogue"),
    ],
)
def test_other_picks_are_refused(kernel: str, given: tuple[torch.Tensor, ...], reason: str) -> None:
    with pytest.raises(exc.CuteUnsupported, match=reason):
        getattr(picked_kernels, kernel).bind(given, target="sm_90")


def test_plans_of_picked_lines_in_stages_are_refused() -> None:
    problem = bound(gathered).plan().gemm.whole
    with pytest.raises(Refusal, match="of picked lines, .* are copied in memory"):
        plan_gemm(problem, Choice(tile=(128, 64, 64)), target_of("sm_90"))
    strange = dataclasses.replace(problem.copied[0], lines=LineNumbers(name="rows", dtype="float32", pitch=1))
    with pytest.raises(Refusal, match="rows of float32 with a stride of 1 picks lines"):
        plan_gemm(dataclasses.replace(problem, copied=(strange,)), Choice(tile=(128, 64, 64)), target_of("sm_90"))
