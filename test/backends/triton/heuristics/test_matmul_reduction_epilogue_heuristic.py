"""Products whose whole rows are reduced: the published worked examples."""

from __future__ import annotations

import pytest
import torch
from harness import facts_of, tensor
from heuristic_kernels import BF16, FP32, H100, attention_facts, matmul_layer_norm, proposed, reason
from sample_kernels import matmul_to_bf16, softmax

from helion.backends.triton.heuristics.families.epilogue.published import (
    TritonMatmulReductionEpilogueHeuristic,
    staged_budget,
)
from helion.hardware import Target, target

# N, then (M, K, warps, stages) for bf16 and fp32; M = 131072, K = 512, H100
EPILOGUES = [
    (64, (64, 32, 4, 3), (32, 32, 4, 3)),
    (256, (64, 32, 4, 3), (32, 32, 4, 3)),
    (512, (64, 32, 8, 3), (32, 32, 4, 3)),
    (768, (32, 32, 8, 3), (32, 16, 8, 3)),
    (1024, (32, 32, 8, 3), (32, 16, 8, 3)),
    (1536, (16, 16, 8, 3), (16, 16, 8, 1)),
    (2048, (16, 16, 8, 3), (16, 16, 8, 1)),
    (3072, (8, 16, 8, 1), None),
    (4096, (8, 16, 8, 1), None),
    (8192, None, None),
]


@pytest.mark.parametrize(("n", "half", "single"), EPILOGUES, ids=[str(row[0]) for row in EPILOGUES])
def test_epilogue_published(n: int, half: tuple[int, ...] | None, single: tuple[int, ...] | None) -> None:
    heuristic = TritonMatmulReductionEpilogueHeuristic()
    for dtype, expected in ((BF16, half), (FP32, single)):
        args = (tensor(131072, 512, dtype=dtype), tensor(512, n, dtype=dtype), tensor(n), tensor(n))
        facts = facts_of(matmul_layer_norm, *args)
        if expected is None:
            assert "bytes of shared memory are needed" in reason(heuristic, facts, H100)
            continue
        first = proposed(heuristic, facts, H100)[0]
        fact = facts.matmul_with_reduction_epilogue
        assert fact is not None
        tile = (first.block_sizes[fact.m_block_id], first.block_sizes[fact.k_block_id])
        assert (*tile, first.num_warps, first.num_stages) == expected
        assert first.reduction_loops == {}


def test_epilogue_is_not_the_default() -> None:
    assert not TritonMatmulReductionEpilogueHeuristic.promote_seed_to_default


@pytest.mark.parametrize(
    ("name", "budget"), [("h100", 196608), ("b200", 196608), ("a100", 131072), ("rtx4090", 65536), ("mi300x", 65536)]
)
def test_staged_budget_comes_from_the_target(name: str, budget: int) -> None:
    assert staged_budget(target(name)) == budget


def test_epilogue_declines() -> None:
    product = facts_of(matmul_to_bf16, tensor(64, 64), tensor(64, 64))
    for facts in (product, facts_of(softmax, tensor(64, 64)), attention_facts(64)):
        assert "not one matmul with one reduction" in reason(TritonMatmulReductionEpilogueHeuristic(), facts, H100)


def epilogue_seeds(n: int, dtype: torch.dtype, gpu: Target) -> list[tuple[int, int | None, int | None]]:
    """(M, warps, stages) of all of them."""
    facts = facts_of(
        matmul_layer_norm, tensor(131072, 512, dtype=dtype), tensor(512, n, dtype=dtype), tensor(n), tensor(n)
    )
    fact = facts.matmul_with_reduction_epilogue
    assert fact is not None and fact.m_block_id is not None
    found = proposed(TritonMatmulReductionEpilogueHeuristic(), facts, gpu)
    return [(p.block_sizes[fact.m_block_id], p.num_warps, p.num_stages) for p in found]


def test_epilogue_alternates_have_twice_the_warps_and_half_of_the_rows() -> None:
    assert epilogue_seeds(256, BF16, H100) == [(64, 4, 3)]
    assert epilogue_seeds(1024, BF16, H100) == [(32, 8, 3), (32, 16, 3), (16, 8, 3)]
    assert epilogue_seeds(2048, FP32, H100) == [(16, 8, 1), (16, 16, 2)]
    assert epilogue_seeds(4096, BF16, H100) == [(8, 8, 1), (8, 16, 2)]
