"""Loops over data count in 64 bits where a counter of 32 bits may go beyond the end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl

END = 2**31 - 1


@helion.kernel(backend="triton", config=helion.Config(block_sizes=[32]))
def sums_of_indices(starts: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([starts.size(0)], dtype=torch.int64, device=starts.device)
    for r in hl.grid(starts.size(0)):
        acc = hl.zeros([], dtype=torch.int64)
        for t in hl.tile(starts[r], ends[r]):
            acc = acc + t.index.to(torch.int64).sum()
        out[r] = acc
    return out


@helion.kernel(backend="triton", config=helion.Config(block_sizes=[32]))
def last_indices(starts: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([starts.size(0)], dtype=torch.int64, device=starts.device)
    for r in hl.grid(starts.size(0)):
        last = hl.full([], -1, dtype=torch.int32)
        for t in hl.tile(starts[r], ends[r]):
            last = torch.maximum(last, t.index.amax())
        out[r] = last
    return out


@helion.kernel(backend="triton")
def sums_of_rows(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([ends.size(0)], dtype=torch.float32, device=x.device)
    for r in hl.grid(ends.size(0)):
        acc = hl.zeros([], dtype=torch.float32)
        for t in hl.tile(0, ends[r]):
            acc = acc + x[t].sum()
        out[r] = acc
    return out


@helion.kernel(backend="triton")
def sums_after_starts(x: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([ends.size(0)], dtype=torch.float32, device=x.device)
    for r in hl.grid(ends.size(0)):
        acc = hl.zeros([], dtype=torch.float32)
        start = starts[r]
        for t in hl.tile(0, ends[r]):
            acc = acc + x[start + t.index].sum()
        out[r] = acc
    return out


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("kernel", [sums_of_indices, last_indices])
def test_loops_end_near_the_largest_integer(kernel: Any, dtype: torch.dtype) -> None:
    starts, ends = (torch.tensor(each, dtype=dtype) for each in ([END - 40, 3, 7], [END, 50, 7]))
    reduce = sum if kernel is sums_of_indices else lambda indices: max(indices, default=-1)
    expected = [reduce(range(*each)) for each in zip(starts.tolist(), ends.tolist(), strict=True)]
    assert kernel(starts, ends).tolist() == expected


def test_loops_that_address_a_tensor_count_in_32_bits() -> None:
    x, data = tensor(1000, dtype=torch.float32), tensor(5, dtype=torch.int32)
    for bound in (
        sums_of_rows.bind((x, data), target="sm_90"),
        sums_after_starts.bind((x, data, data), target="sm_90"),
    ):
        assert "int64" not in bound.to_triton_code()
    assert "tl.range(cast, cast_1" in sums_of_indices.bind((data, data), target="sm_90").to_triton_code()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("kernel", [sums_of_indices, last_indices])
def test_loops_compile(kernel: Any, dtype: torch.dtype) -> None:
    data = tensor(5, dtype=dtype)
    kernel.bind((data, data), target="sm_90").resources()
