"""Elementwise kernels: the published worked examples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import facts_of, tensor
from heuristic_kernels import B200, FP32, H100, gelu, nine_sines, proposed, reason
from sample_kernels import add, scan, softmax, transpose

import helion
import helion.language as hl
from helion.backends.triton.heuristics.families.pointwise import TritonPointwiseHeuristic

BF16 = torch.bfloat16


@helion.kernel()
def scaled_and_shifted(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """A number for each row, one for each column."""
    out = torch.empty_like(x)
    for row, column in hl.tile(x.size()):
        out[row, column] = (x[row, column].to(torch.float32) * scale[row][:, None] + shift[column][None, :]).to(x.dtype)
    return out


@pytest.mark.parametrize(
    ("kernel", "args", "hopper", "blackwell"),
    [
        (add, (tensor(2**26),) * 2, ([1024], 4), ([2048], 4)),
        (add, (tensor(2**26, dtype=FP32),) * 2, ([512], 4), ([1024], 2)),
        (add, (tensor(1024, 1024),) * 2, ([1, 512], 4), ([1, 1024], 4)),
        (gelu, (tensor(8192, 8192),), ([1, 2048], 4), ([1, 4096], 8)),
        (nine_sines, (tensor(2**26),), ([2048], 16), ([4096], 16)),
        (add, (tensor(4096, 4096, dtype=FP32).T,) * 2, ([512, 1], 4), ([1024, 1], 2)),
        (transpose, (tensor(4096, 4096, dtype=FP32),), ([64, 64], 4), ([64, 64], 8)),
        (transpose, (tensor(4096, 4096),), ([128, 128], 4), ([128, 128], 16)),
        (add, (tensor(65536, dtype=FP32),) * 2, ([256], 4), None),
    ],
)
def test_pointwise_published(kernel: Any, args: Any, hopper: Any, blackwell: Any) -> None:
    facts = facts_of(kernel, *args)
    for gpu, expected in ((H100, hopper), (B200, blackwell)):
        if expected is not None:
            first = proposed(TritonPointwiseHeuristic(), facts, gpu)[0]
            assert ([first.block_sizes[a.block_id] for a in facts.tunable_axes], first.num_warps) == expected


def test_pointwise_declines_where_tiles_change_results() -> None:
    assert reason(TritonPointwiseHeuristic(), facts_of(scan, tensor(64, 64)), H100)
    assert reason(TritonPointwiseHeuristic(), facts_of(softmax, tensor(64, 64)), H100)


def flattened(m: int, n: int, dtype: torch.dtype) -> bool:
    """Whether the first config walks the matrix as a run."""
    facts = facts_of(scaled_and_shifted, tensor(m, n, dtype=dtype), tensor(m, dtype=dtype), tensor(n, dtype=dtype))
    assert facts.pointwise is not None and not facts.pointwise.one_run
    return proposed(TritonPointwiseHeuristic(), facts, H100)[0].flatten_loops == {0: True}


def test_narrow_rows_that_begin_anywhere_are_a_run_beside_a_bias() -> None:
    assert flattened(4097, 3001, BF16)
    assert not flattened(4096, 3000, BF16), "vectors of all rows"
    assert not flattened(4097, 3001, FP32), "single elements fill what a warp accesses"
    assert not flattened(4097, 15, BF16), "the row's numbers are no few"


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize(("m", "n"), [(17, 63), (3, 1001), (130, 35), (1, 9)])
def test_a_run_beside_a_bias_is_right(m: int, n: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(n)
    x, scale, shift = ((torch.randn(*shape, generator=generator) + 2).to(dtype) for shape in ((m, n), (m,), (n,)))
    config = helion.Config(block_sizes=[1, 128], flatten_loops=[True])
    got = helion.kernel(scaled_and_shifted.fn, config=config)(x, scale, shift)
    expected = x.float() * scale.float()[:, None] + shift.float()[None, :]
    torch.testing.assert_close(got, expected.to(dtype))
