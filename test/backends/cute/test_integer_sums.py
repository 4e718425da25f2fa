"""Integers in int32 that are added to the accumulator of an int8 matmul before it is converted."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.codegen.module import build
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.records import Choice
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.shapes import MATMUL
from helion.backends.cute.toolchain.offline import compile_text
from helion.hardware import target as target_of

TARGETS = ("sm_90", "sm_100")


@helion.kernel(backend="cute")
def quantized(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, scale: float) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    out = torch.empty([m, n], dtype=torch.int8, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.int32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], y[d, j], acc=acc)
        values = (acc + bias[j][None, :]).to(torch.float32) * scale
        out[i, j] = torch.clamp(torch.round(values), -128.0, 127.0).to(torch.int8)
    return out


@helion.kernel(backend="cute")
def added(x: torch.Tensor, y: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.int32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], y[d, j], acc=acc)
        out[i, j] = (start[i, j] + acc).to(torch.float32)
    return out


@helion.kernel(backend="cute")
def doubled(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.int32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], y[d, j], acc=acc)
        out[i, j] = (acc + (bias[j] * 2)[None, :]).to(torch.float32)
    return out


def integers(*shape: int, most: int, seed: int, dtype: torch.dtype = torch.int8) -> torch.Tensor:
    return torch.randint(-most, most, shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def given(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        integers(m, k, most=128, seed=0),
        integers(n, k, most=128, seed=1).t(),
        integers(n, most=2**29, seed=2, dtype=torch.int32),
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("m", "n", "k"), [(150, 200, 2064), (33, 104, 208)])
def test_sums_are_exact(m: int, n: int, k: int, target: str) -> None:
    """The sums need more bits than fp32 has, and nearly cancel."""
    x, y, bias = given(m, n, k)
    exact = x.double() @ y.double()
    bias[0] = 1 - int(exact[0, 0])
    bound = quantized.bind((x, y, bias, 3e-6), target=target)
    wanted = ((exact + bias.double()).float() * torch.tensor(3e-6)).round().clamp(-128, 127).to(torch.int8)
    assert torch.equal(bound(x, y, bias, 3e-6), wanted) and bound.seeds
    start = (2**25 + 1 - exact).to(torch.int32)
    assert (added.bind((x, y, start), target=target)(x, y, start) == 2**25).all()


@pytest.mark.parametrize("target", TARGETS)
def test_integers_are_added_before_the_conversion(target: str) -> None:
    x, y, bias = given(150, 208, 256)
    bound = quantized.bind((x, y, bias, 0.1), target=target)
    (operand,) = bound.plan().gemm.problem.epilogue.of_kind("integers")
    assert (operand.pitch, operand.column_pitch) == (0, 1)
    text = build(bound.plan().gemm)
    assert f"(integers[i] + {operand.label}[" in text and ").to(cutlass.Float32)" in text
    asked = MATMUL.on_request(bound._analysis.program, bound.facts, bound.env.target)
    assert ("run on request" in asked) == (target == "sm_100")


def test_other_integers_are_refused() -> None:
    x, y, bias = given(64, 104, 256)
    with pytest.raises(exc.CuteUnsupported, match="integers other than loaded ones"):
        doubled.bind((x, y, bias), target="sm_90")
    problem = quantized.bind((x, y, bias, 0.1), target="sm_90").plan().gemm.problem
    with pytest.raises(Refusal, match="where K is not split"):
        plan_gemm(problem, Choice(tile=(64, 64, 128), splits=2), target_of("sm_90"))
    for change, reason in (
        ({"dtype": "int8"}, "is added to an accumulator"),
        ({"kind": "strided", "dtype": "float32"}, "and read by nothing else"),
    ):
        operands = tuple(
            dataclasses.replace(each, **change) if each.kind == "integers" else each
            for each in problem.epilogue.operands
        )
        wrong = dataclasses.replace(problem, epilogue=dataclasses.replace(problem.epilogue, operands=operands))
        with pytest.raises(Refusal, match=reason):
            plan_gemm(wrong, Choice(tile=(64, 64, 128)), target_of("sm_90"))


@pytest.mark.prove
@pytest.mark.parametrize("target", TARGETS)
def test_kernels_compile_without_spills(target: str) -> None:
    gemm = quantized.bind((*given(150, 208, 256), 0.1), target=target).plan().gemm
    assert ".local" not in compile_text(build(gemm), gemm).ptx
