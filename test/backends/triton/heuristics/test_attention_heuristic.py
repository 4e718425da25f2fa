"""Attention."""

from __future__ import annotations

import pytest
from heuristic_kernels import attention_facts, proposed

from helion.backends.triton.heuristics.families.attention.forward import TritonAttentionHeuristic
from helion.backends.triton.heuristics.sizing import estimate
from helion.hardware import known_targets, target


@pytest.mark.parametrize("name", known_targets())
def test_attention_takes_a_tile_that_fits(name: str) -> None:
    gpu = target(name)
    for head in (64, 128):
        facts = attention_facts(head)
        first = proposed(TritonAttentionHeuristic(), facts, gpu)[0]
        predicted = estimate(facts, gpu, first.block_sizes, first.num_warps or 0, first.num_stages or 0)
        assert predicted.fits and predicted.spill_risk == 0


@pytest.mark.parametrize(
    ("name", "head", "warps"), [("h200", 64, 4), ("h200", 128, 4), ("h200", 256, 8), ("h100", 64, 4), ("b200", 64, 8)]
)
def test_programs_share_an_sm_of_an_asynchronous_matrix_unit(name: str, head: int, warps: int) -> None:
    first = proposed(TritonAttentionHeuristic(), attention_facts(head), target(name))[0]
    assert first.num_warps == warps
