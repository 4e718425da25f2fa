"""Operands that kernels before the matmul write: next to scales of blocks of K, rounded to 8-bit floats, of given rows."""

from __future__ import annotations

import pytest
import torch
from backends.cute import gemms, products, scaled_kernels

import helion
import helion.language as hl
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.records import Choice
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.roles.edits import edit_role
from helion.backends.cute.roles.grammar import Advance, Release
from helion.backends.cute.shapes import MATMUL
from helion.backends.cute.verify.state import Fault
from helion.backends.cute.verify.verify import verify

E4M3 = scaled_kernels.E4M3


def moved(case: str, k: int) -> tuple[torch.Tensor, ...]:
    """Return arguments whose B is contiguous along N, or whose rows begin anywhere."""
    a, b, *scales = scaled_kernels.arguments(scaled_kernels.CASES[case], 200, 272, k)
    return a, b.contiguous(), *scales


@pytest.mark.parametrize(
    ("case", "k", "copied"), [("by_id", 400, {"b"}), ("expanded", 403, {"a", "b"}), ("gathered", 403, {"a", "b"})]
)
def test_operands_next_to_scales_are_written_before(case: str, k: int, copied: set[str]) -> None:
    given = moved(case, k)
    bound = scaled_kernels.CASES[case].kernel.bind(given, target="sm_90")
    made = bound.plan().gemm
    assert made.prepare is not None and {each.copied.operand for each in made.prepare.operands} == copied
    assert made.problem.scales is not None and (made.problem.a_major, made.problem.b_major) == ("k", "k")
    wanted = scaled_kernels.reference(scaled_kernels.CASES[case], *given)
    assert products.row_error(bound(*given), wanted) < 4e-3
    reason = MATMUL.on_request(bound._analysis.program, bound.facts, bound.env.target)
    assert reason == ""
    with pytest.raises(Refusal, match="next to scales of blocks of K, are copied in memory"):
        plan_gemm(made.whole, Choice(tile=(128, 64, 128), copies_in="shared"), gemms.HOPPER)


@helion.kernel(backend="cute", static_shapes=True)
def quantized(x: torch.Tensor, scale: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = x[tile_m, tile_k].to(torch.float32) * scale[tile_m][:, None]
            acc = hl.dot(rows.to(y.dtype), y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc.to(torch.bfloat16)
    return out


@pytest.mark.parametrize("dtype", [E4M3, torch.float8_e5m2])
def test_operands_are_rounded_to_8_bit_floats(dtype: torch.dtype) -> None:
    x, scale = torch.randn(200, 400).bfloat16() + 0.25, torch.rand(200) + 0.5
    y = torch.randn(136, 400).to(dtype).t()
    wanted = (x.float() * scale[:, None]).to(dtype).double() @ y.double()
    bound = quantized.bind((x, scale, y), target="sm_90")
    assert products.row_error(bound(x, scale, y), wanted) < 4e-3
    (copied,) = bound.plan().gemm.whole.copied
    assert [made.op for made in copied.instructions] == ["mul"]
    reason = MATMUL.on_request(bound._analysis.program, bound.facts, bound.env.target)
    assert reason == ""


@helion.kernel(backend="cute", static_shapes=True)
def rounded_within(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = x[tile_m, tile_k].to(torch.float8_e4m3fn).to(torch.float32) * 0.5
            acc = hl.dot(rows.to(y.dtype), y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc.to(torch.bfloat16)
    return out


def test_other_roundings_to_8_bits_are_refused() -> None:
    x, y = torch.randn(200, 400).bfloat16(), torch.randn(400, 136).bfloat16()
    with pytest.raises(
        helion.exc.CuteUnsupported, match="of a computed operand, round_float8_e4m3fn, is not implemented"
    ):
        rounded_within.bind((x, y), target="sm_90")


@helion.kernel(backend="cute", static_shapes=False)
def of_given_rows(x: torch.Tensor, y: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
    m = x.size(0)
    k, n = hl.specialize(y.size())
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n].to(x.dtype), acc=acc)
        out[tile_m, tile_n] = (acc + added[tile_m, tile_n].to(torch.float32)).to(torch.bfloat16)
    return out


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_launches_give_rows_next_to_written_operands(dtype: torch.dtype) -> None:
    """One plan serves all rows; the right operand has a constant size, and rows that TMA cannot load."""
    y = (torch.randn(400, 265) * 8).to(dtype)
    bound = None
    for rows in (200, 37, 1000):
        x, added = torch.randn(rows, 400).bfloat16(), torch.randn(rows, 265).bfloat16()
        bound = bound or of_given_rows.bind((x, y, added), target="sm_90")
        wanted = x.double() @ y.double() + added.double()
        assert products.row_error(of_given_rows(x, y, added), wanted) < 4e-3
    assert bound is not None
    made = bound.plan().gemm
    assert made.prepare is not None and "size_m" in made.problem.runtime
    reason = MATMUL.on_request(bound._analysis.program, bound.facts, bound.env.target)
    assert reason == ""


def test_threads_store_what_is_added_to_a_matrix_that_tma_loads() -> None:
    """The buffers of the matrix are given back, although no store by TMA follows."""
    kernel = helion.kernel(of_given_rows.fn, backend="cute", static_shapes=True)
    x, y = torch.randn(200, 400).bfloat16(), torch.randn(400, 264).bfloat16()
    given = x, y[:, :261].contiguous(), torch.randn(200, 264).bfloat16()[:, :261]
    bound = kernel.bind(given, target="sm_90")
    problem = bound.plan().gemm.problem
    assert ([each.kind for each in problem.epilogue.operands], problem.outputs[0].kind) == (["exact"], "strided")
    assert products.row_error(kernel(*given), x.double() @ given[1].double() + given[2].double()) < 4e-3
    program = bound.plan().roles
    verify(program)
    kept = Release("residual_read"), Advance("residual_read")
    with pytest.raises(Fault):
        verify(edit_role(program, "store", lambda step: () if step in kept else (step,)))
    reason = MATMUL.on_request(bound._analysis.program, bound.facts, bound.env.target)
    assert reason == ""


def test_other_numbers_of_the_launch_are_refused() -> None:
    kernel = helion.kernel(quantized.fn, backend="cute", static_shapes=False)
    given = torch.randn(200, 400).bfloat16(), torch.rand(200), torch.randn(136, 400).to(E4M3).t()
    with pytest.raises(helion.exc.CuteUnsupported, match="known only at run time"):
        kernel.bind(given, target="sm_90")
