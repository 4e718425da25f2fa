"""The backend of ``auto`` for packed weights that a kernel before unpacks."""

from __future__ import annotations

import pytest
import torch

import helion
from benchmarks.unseen.table import ALL, Maker


@pytest.mark.parametrize(("rows", "columns", "backend"), [(16, 4096, "triton"), (2048, 11008, "cute")])
def test_few_rows_of_unpacked_weights_stay_with_triton(rows: int, columns: int, backend: str) -> None:
    """For 16 rows Triton takes 16.0 us and cute 27.6; for 2048 cute is faster (an H200)."""
    one = next(each for each in ALL if each.kernel.name == "grouped_int4_weights")
    args = one.arguments(Maker("meta"), torch.float16, rows, 4096, columns)
    assert helion.kernel(one.kernel.fn, backend="auto").bind(args, target="h200").backend == backend
