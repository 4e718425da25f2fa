"""Rows of the left operand that TMA gathers by a vector of their numbers, on Blackwell."""

from __future__ import annotations

import pytest
import torch
from backends.cute import gemms

import helion
import helion.language as hl
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.operands import gathered
from helion.backends.cute.plan.records import Choice
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.plan.workspace import workspace_bytes


def picked(x: torch.Tensor, rows: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    m, (k, n) = rows.size(0), w.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        row = rows[tile_m]
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[row, tile_k], w[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def operands(m: int, dtype: torch.dtype = torch.int32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(m)
    return torch.randn(300, 200).bfloat16(), torch.randint(0, 300, (m,)).to(dtype), torch.randn(200, 136).bfloat16()


def test_tma_gathers_rows() -> None:
    x, rows, w = operands(192)
    bound = helion.kernel(picked, backend="cute").bind((x, rows, w), target="sm_100")
    config = helion.Config(**{**bound.default_config().to_dict(), "tcgen05_copies_in": "tma"})
    plan = bound.plan(config).gemm
    found = gathered(plan)
    assert found is not None and found.lines is not None and found.sources[0].picked == 300
    assert not workspace_bytes(plan) and not plan.problem.copied
    code, resources = bound.to_code(config), bound.resources(config)
    assert "Gather4" in code and "griddepcontrol" not in code and "prepare_a" not in code
    # four rows of a tile of 64 at a time, and a tile of B
    assert (resources.spill_bytes, resources.sass_counts["UTMALDG"]) == (0, 64 // 4 + 1)
    bound.set_config(config)
    wanted = x[rows.long()].double() @ w.double()
    assert (bound(x, rows, w).double() - wanted).norm() < 5e-3 * wanted.norm()


@pytest.mark.parametrize(("m", "dtype"), [(190, torch.int32), (192, torch.int64)])
def test_other_rows_are_gathered_in_memory(m: int, dtype: torch.dtype) -> None:
    """TMA reads four numbers of 32 bits at a time, also of rows past the end of the last tile."""
    bound = helion.kernel(picked, backend="cute").bind(operands(m, dtype), target="sm_100")
    plan = bound.plan().gemm
    assert gathered(plan) is None and workspace_bytes(plan)
    assert plan.prepare is not None
    with pytest.raises(Refusal, match="whose rows TMA gathers|by a vector of int32"):
        plan_gemm(plan.prepare.problem, Choice(tile=(64, 64, 64), copies_in="tma"), gemms.BLACKWELL)
