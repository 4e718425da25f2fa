"""Elementwise kernels: the published worked examples."""

from __future__ import annotations

from typing import Any

import pytest
from harness import facts_of, tensor
from heuristic_kernels import B200, FP32, H100, gelu, nine_sines, proposed, reason
from sample_kernels import add, scan, softmax, transpose

from helion.backends.triton.heuristics.pointwise import TritonPointwiseHeuristic


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
