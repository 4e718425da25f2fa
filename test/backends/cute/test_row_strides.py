"""Row kernels whose strides of rows only the launch knows: values on simulated threads, the CPU, code and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from backends.cute.row_device import run_rows
from backends.cute.test_row_kernels import EPS, H100, close, numbers
from harness import program_of, tensor

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.lower.rowwise.rows import rows_of
from helion.backends.cute.plan.rowwise.choice import RowChoice
from helion.backends.cute.plan.rowwise.layout import layout_of
from helion.backends.cute.plan.rowwise.passes import demand_of
from helion.backends.cute.plan.rowwise.records import RowPlan


def added_norm(x, residual, w, out):
    n = hl.specialize(x.size(1))
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32) + residual[tile, :].to(torch.float32)
        scale = torch.rsqrt((row * row).sum(-1) / n + EPS)
        out[tile, :] = (row * scale[:, None] * w[:].to(torch.float32)).to(out.dtype)


def arguments(m: int, n: int, pads: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    x, residual, out = (numbers(m, n + pad, seed=at)[:, :n] for at, pad in enumerate(pads))
    return x, residual, numbers(n, seed=4), out


def wanted(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    row = x.double() + residual.double()
    return row * torch.rsqrt(row.square().mean(-1, keepdim=True) + EPS) * w.double()


@pytest.mark.parametrize("choice", [RowChoice(warps=1), RowChoice(cluster=2, warps=8)], ids=str)
def test_each_matrix_has_a_stride_of_its_own(choice: RowChoice) -> None:
    """The plan is of other strides than the launch."""
    m, n = 5, 1000
    meta = [
        torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="meta") for a in arguments(7, n, (8, 16, 24))
    ]
    kernel = rows_of(program_of(added_norm, *meta, static_shapes=False))
    problem = kernel.problem
    size, *strides = problem.runtime
    assert size == "size_m" and len(strides) == 3
    assert set(dict(kernel.multiples).values()) == {8}
    layout = layout_of(demand_of(problem), choice, H100)
    limits = {"shared_limit_bytes": H100.smem_per_block_bytes, "registers_per_sm": H100.registers_per_sm}
    x, residual, w, out = arguments(m, n, (40, 0, 80))
    given = {"x": x, "residual": residual, "out": out}
    launched = [given[name.split("_")[1]].stride(0) for name in strides]
    run_rows(RowPlan(problem=problem, layout=layout, unit="wgmma", **limits), [out], [x, residual, w], m, 2, launched)
    assert close(out, wanted(x, residual, w))


def test_the_cpu_takes_any_strides_with_one_binary() -> None:
    kernel = helion.kernel(added_norm, backend="cute", static_shapes=False)
    for m, pads in ((5, (8, 16, 24)), (9, (80, 8, 16)), (3, (8, 8, 8))):
        x, residual, w, out = arguments(m, 1000, pads)
        kernel(x, residual, w, out)
        assert close(out, wanted(x, residual, w))
    assert len({id(kernel.bind(arguments(m, 1000, (8, 16, 24)))) for m in (5, 9)}) == 1


def test_rows_are_not_taken_for_contiguous() -> None:
    """A stride that is the number of columns when the kernel is compiled may be another at launch."""
    meta = [tensor(7, 1000), tensor(7, 1008)[:, :1000], tensor(1000), tensor(7, 1008)[:, :1000]]
    kernel = rows_of(program_of(added_norm, *meta, static_shapes=False))
    layout = layout_of(demand_of(kernel.problem), RowChoice(warps=1), H100)
    assert layout.aligned and not layout.contiguous


def column_sums(x, rows, total):
    n = hl.specialize(x.size(1))
    for tile in hl.tile(x.size(0)):
        total[tile] = x[tile, :].to(torch.float32).sum(-1) * rows[tile] / n


@pytest.mark.parametrize(
    ("kernel", "made", "reason"),
    [
        (
            added_norm,
            lambda: (tensor(7, 1012)[:, :1000], tensor(7, 1000), tensor(1000), tensor(7, 1000)),
            "of 8 elements",
        ),
        (column_sums, lambda: (tensor(7, 1000), tensor(7, 3)[:, 0], tensor(7)), "for matrices, not for pitch_rows"),
    ],
)
def test_refusals(kernel: Any, made: Any, reason: str) -> None:
    given = made()
    with pytest.raises(exc.CuteUnsupported, match=reason):
        helion.kernel(kernel, backend="cute", static_shapes=False).bind(given, target="h200").to_cute_code()
