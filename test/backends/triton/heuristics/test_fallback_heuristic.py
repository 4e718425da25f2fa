"""The fallback."""

from __future__ import annotations

import pytest
from harness import facts_of, tensor
from heuristic_kernels import FP32, attention_facts, norm_gradient, proposed
from sample_kernels import add, matmul_to_bf16, scan, softmax

import helion
from benchmarks.unseen.attention import latent_decode
from helion.backends.triton.heuristics.families.fallback import TritonFallbackHeuristic
from helion.backends.triton.heuristics.sizing import estimate
from helion.hardware import known_targets, target


@pytest.mark.parametrize("name", known_targets())
def test_fallback_is_legal_everywhere(name: str) -> None:
    gpu = target(name)
    for facts in (
        facts_of(softmax, tensor(4096, 65536, dtype=FP32)),
        facts_of(matmul_to_bf16, tensor(4096, 4096), tensor(4096, 4096)),
        facts_of(scan, tensor(64, 2048)),
        facts_of(norm_gradient, tensor(65536, 1024), tensor(65536, 1024)),
        facts_of(add, tensor(7, 11, 13), tensor(7, 11, 13)),
        attention_facts(128),
    ):
        heuristic = TritonFallbackHeuristic()
        (first,) = proposed(heuristic, facts, gpu)
        found = estimate(
            facts, gpu, first.block_sizes, first.num_warps or 0, first.num_stages or 0, first.reduction_loops
        )
        assert found.fits and found.spill_risk == 0
        assert set(first.block_sizes) == {axis.block_id for axis in facts.tunable_axes}
    assert not TritonFallbackHeuristic.promote_seed_to_default


@pytest.mark.parametrize("gpu", ("sm_90", "h200"))
def test_warps_are_those_that_chained_matmuls_may_have(gpu: str) -> None:
    """128 heads share a latent cache: 64 rows are legal in four warps only, whose registers do not hold them."""
    bound = latent_decode.bind((tensor(64, 128, 576), tensor(64, 4096, 576), 512), target=gpu)
    (proposal,) = TritonFallbackHeuristic().propose(bound.facts, bound.target)
    asked = helion.Config(block_sizes=[*proposal.block_sizes.values()], num_warps=proposal.num_warps)
    assert bound.config_spec.normalize(asked)["num_warps"] == proposal.num_warps
    assert all(seed.predicted.spill_risk < 0.1 for seed in bound.seeds)
