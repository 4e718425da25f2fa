"""Loops over K that end with the tile of rows, or of columns: triangular matrices."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from backends.cute import products
from backends.cute.products import BF16, BOUNDS

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.codegen.module import build
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.records import Choice
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.resources.shape import shape_of
from helion.backends.cute.roles.edits import edit_role
from helion.backends.cute.roles.grammar import KLoop, Step
from helion.backends.cute.roles.programs import kernel_program
from helion.backends.cute.shapes import MATMUL
from helion.backends.cute.toolchain.offline import compile_text
from helion.backends.cute.verify.state import Fault
from helion.backends.cute.verify.verify import verify
from helion.hardware import target as target_of

M, N = 300, 104
TARGETS = ("sm_90", "sm_100")


@helion.kernel(backend="cute")
def lower(low: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(0, i.end):
            left = torch.where(i.index[:, None] >= d.index[None, :], low[i, d], 0.0).to(x.dtype)
            acc = hl.dot(left, x[d, j], acc=acc)
        out[i, j] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute")
def upper(x: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Columns of a tile end K, without a mask: `up` has zeros below the diagonal."""
    m, n = x.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(j.end):
            acc = hl.dot(x[i, d], up[d, j], acc=acc)
        out[i, j] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute")
def shorter(low: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The matrix has fewer columns than the tiles of rows cover."""
    m, n = low.size(0), x.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(i.end):
            acc = hl.dot(low[i, d], x[d, j], acc=acc)
        out[i, j] = acc.to(x.dtype)
    return out


def tensor(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> torch.Tensor:
    return products.values(*shape, dtype=dtype, device="cpu", seed=seed)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_rows_end_k(dtype: torch.dtype, target: str) -> None:
    low, x = tensor(M, M, dtype=dtype), tensor(M, N, seed=1, dtype=dtype)
    bound = lower.bind((low, x), target=target)
    assert products.row_error(bound(low, x), low.double().tril() @ x.double()) < BOUNDS[dtype]
    gemm = bound.plan().gemm
    ends = gemm.whole.ends
    assert ends is not None and (ends.side, ends.tile) == ("m", gemm.tile[0]) and bound.seeds
    assert f"k_end = cutlass.min({gemm.k_tiles}, (tile_m + 1) * {gemm.tile[0] // gemm.tile[2]})" in build(gemm)


def test_numbers_after_the_end_are_not_read() -> None:
    """A NaN above the diagonal reaches rows of its own tile alone, as in the program."""
    x, up = tensor(M, 304), tensor(304, 304, seed=1).triu()
    bound = upper.bind((x, up), target="sm_90")
    assert products.row_error(bound(x, up), x.double() @ up.double()) < BOUNDS[BF16]
    x[:, 300] = torch.nan
    tile = bound.plan().gemm.tile[1]
    found = bound(x, up)
    assert found[:, : 300 // tile * tile].isfinite().all()
    (ends,) = {each.ends for each in [bound.plan().gemm.problem]}
    assert ends is not None and ends.side == "n"


def test_a_masked_operand_is_predicted_without_scales() -> None:
    """Its tensor is no scale of blocks of K, with which `auto` took the general backend."""
    low, x = (torch.empty(4096, 4096, dtype=BF16, device="meta") for _ in range(2))
    bound = helion.kernel(lower.fn, backend="auto").bind((low, x), target="h200")
    shape = shape_of(bound.facts)
    assert not isinstance(shape, str)
    assert shape.problem.scales is None and bound.backend == "cute"


def test_other_ends_are_refused() -> None:
    with pytest.raises(exc.CuteUnsupported, match="of which tiles cover 300 along K"):
        shorter.bind((tensor(M, 200), tensor(200, N)), target="sm_90")
    problem = upper.bind((tensor(M, 304), tensor(304, 304)), target="sm_90").plan().gemm.problem
    for choice in (
        Choice(tile=(64, 64, 64), pingpong=True),
        Choice(tile=(64, 64, 64), splits=2),
        Choice(tile=(64, 64, 64), cluster=(1, 2)),
    ):
        with pytest.raises(Refusal, match="that end K; multiples of the K tile are implemented"):
            plan_gemm(problem, choice, target_of("sm_90"))


@pytest.mark.parametrize("target", TARGETS)
def test_roles_that_do_not_agree_are_faults(target: str) -> None:
    """Plant a load of all K tiles but the first."""
    x, up = tensor(M, 304), tensor(304, 304)
    bound = upper.bind((x, up), target=target)
    program = kernel_program(bound.plan().gemm)
    verify(program)
    asked = MATMUL.on_request(bound._analysis.program, bound.facts, bound.env.target)
    assert asked.startswith("matmuls whose K ends with tiles run on request") == (target == "sm_100")

    def plant(step: Step) -> tuple[Step, ...]:
        return (dataclasses.replace(step, first=1) if isinstance(step, KLoop) else step,)

    with pytest.raises(Fault):
        verify(edit_role(program, "load", plant))


@pytest.mark.prove
@pytest.mark.parametrize("target", TARGETS)
def test_kernels_compile_without_spills(target: str) -> None:
    for kernel, given in ((lower, (tensor(M, M), tensor(M, N))), (upper, (tensor(M, 304), tensor(304, 304)))):
        gemm = kernel.bind(given, target=target).plan().gemm
        assert ".local" not in compile_text(build(gemm), gemm).ptx
