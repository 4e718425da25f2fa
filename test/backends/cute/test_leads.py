"""Leads of matmuls in predicted time over the general backend."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sample_kernels
import torch
from harness import tensor

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS
from benchmarks.unseen.products import adapter
from helion.autotuner.margins import PREDICTABLE_LEAD, Lead
from helion.backends.cute.shapes import CHAINED_LEADS, GENERAL_MATMULS, SEQUENCE_LEAD, lead_of
from helion.settings import Settings


def bound(kernel: helion.Kernel, args: tuple[object, ...], backend: str) -> helion.BoundKernel:
    settings = Settings(**{**kernel.settings.to_dict(), "backend": backend})
    return helion.kernel(kernel.fn, settings=settings).bind(args, target="h200")


def lead(kernel: helion.Kernel, args: tuple[object, ...]) -> Lead:
    analysis = bound(kernel, args, "cute")._analysis
    return lead_of(analysis.program, analysis.facts)


@pytest.mark.parametrize(("rows", "corrected"), [(32, 1.0), (4096, GENERAL_MATMULS)])
def test_predictions_of_many_rows_are_corrected(rows: int, corrected: float) -> None:
    found = lead(helion.kernel(sample_kernels.matmul), (tensor(rows, 4096), tensor(4096, 4096)))
    assert found.ratio == PREDICTABLE_LEAD.ratio and found.corrected == corrected


def four_products(x, y, v, w):
    """A loop for each pair of tensors."""
    m, k = x.size()
    out = torch.empty([m, v.size(1)], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile(out.size()):
        acc = hl.zeros([rows, columns], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = hl.dot(x[rows, inner], v[inner, columns], acc=acc)
        for inner in hl.tile(k):
            acc = hl.dot(y[rows, inner], w[inner, columns], acc=acc)
        for inner in hl.tile(k):
            acc = hl.dot(x[rows, inner], w[inner, columns], acc=acc)
        for inner in hl.tile(k):
            acc = hl.dot(y[rows, inner], v[inner, columns], acc=acc)
        out[rows, columns] = acc.to(x.dtype)
    return out


def test_loops_in_sequence_run_as_one() -> None:
    args = (*(tensor(4096, 128) for _ in range(2)), *(tensor(128, 256) for _ in range(2)))
    assert lead(helion.kernel(four_products), args) == replace(
        SEQUENCE_LEAD, corrected=SEQUENCE_LEAD.corrected * GENERAL_MATMULS
    )


@pytest.mark.parametrize("name", ["strided_conv", "padded_conv3_silu"])
def test_loops_that_triton_fuses_have_no_lead(name: str) -> None:
    """Nine taps take 47 us in one loop of cute and 35.6 in one of Triton, padded ones 130 and 125 (H200)."""
    cell = CELLS[name]
    args = cell.arguments("meta", False)
    assert (
        lead(cell.kernel, args).ratio == PREDICTABLE_LEAD.ratio and lead(cell.kernel, args).corrected <= GENERAL_MATMULS
    )
    assert bound(cell.kernel, args, "auto").backend == "triton"


@pytest.mark.parametrize(("rows", "backend"), [(32, "triton"), (4096, "cute")])
def test_few_rows_of_products_in_sequence_stay_with_the_general_backend(rows: int, backend: str) -> None:
    """Of 32 rows, 37.8 us and 39.6 with this backend (H200)."""
    n, rank = (11008, 64) if rows == 32 else (4096, 16)
    args = tensor(rows, 4096), tensor(n, 4096), tensor(rank, 4096), tensor(n, rank)
    assert lead(adapter, args).ratio == CHAINED_LEADS[rows > 32].ratio
    assert bound(adapter, args, "auto").backend == backend
