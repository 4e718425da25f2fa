"""Copied operands next to scales of blocks of K, and operands that are rounded to 8-bit floats: kernels before the matmul."""

from __future__ import annotations

import pytest
import torch
from backends.cute import gemms, products, scaled_kernels

import helion
import helion.language as hl
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.records import Choice
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.shapes import MATMUL

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
    assert "with scales of blocks of K, next to copied operands, run on request" in reason
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
    assert "whose operand x is rounded to 8-bit floats run on request" in reason


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
