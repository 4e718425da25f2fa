"""Products whose whole rows are reduced: what runs untuned."""

from __future__ import annotations

import pytest
from harness import facts_of, tensor
from heuristic_kernels import FP32, H100, attention_facts, matmul_layer_norm, proposed, reason
from sample_kernels import matmul_to_bf16, softmax

from helion.backends.triton.heuristics.families.epilogue.rows import TritonRowEpilogueHeuristic
from helion.backends.triton.heuristics.sizing import estimate
from helion.hardware import target

HEURISTIC = TritonRowEpilogueHeuristic()


@pytest.mark.parametrize("name", ["a100", "l40s", "h100", "h200", "b200"])
def test_rows_fit_without_spilling_and_give_each_sm_a_program(name: str) -> None:
    gpu = target(name)
    for m, n in ((131072, 512), (2048, 256)):
        facts = facts_of(matmul_layer_norm, tensor(m, 512), tensor(512, n), tensor(n), tensor(n))
        (first,) = proposed(HEURISTIC, facts, gpu)
        predicted = estimate(facts, gpu, first.block_sizes, first.num_warps or 0, first.num_stages or 0)
        assert predicted.fits and not predicted.spills
        rows = first.block_sizes[facts.matmuls[0].m_axis]
        assert rows == 16 or m // rows >= gpu.num_sms
        assert first.reason.startswith(f"{rows} whole rows of {n} reduced by ")


def test_row_epilogue_declines() -> None:
    product = facts_of(matmul_to_bf16, tensor(64, 64), tensor(64, 64))
    for facts in (product, facts_of(softmax, tensor(64, 64)), attention_facts(64)):
        assert "not one matmul with one reduction" in reason(HEURISTIC, facts, H100)
    wide = tensor(512, 8192, dtype=FP32)
    facts = facts_of(matmul_layer_norm, tensor(4096, 512, dtype=FP32), wide, tensor(8192), tensor(8192))
    assert "every number of rows spills or does not fit" in reason(HEURISTIC, facts, H100)
    assert "asynchronous copies" in reason(HEURISTIC, facts, target("mi300x"))
