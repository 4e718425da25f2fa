"""Products with few rows or columns."""

from __future__ import annotations

from harness import facts_of, tensor
from heuristic_kernels import H100, matmul_largest, matmul_rms_norm_tiled, proposed, reason
from sample_kernels import matmul_to_bf16

from helion.backends.triton.heuristics.families.matmul.skinny import TritonSkinnyGemmHeuristic


def test_skinny_gemm() -> None:
    heuristic = TritonSkinnyGemmHeuristic()
    for (m, n, k), expected in (((1024, 8192, 4096), (64, 64, 256)), ((16, 8192, 128), (16, 64, 128))):
        facts = facts_of(matmul_to_bf16, tensor(m, k), tensor(k, n))
        assert tuple(proposed(heuristic, facts, H100)[0].block_sizes.values()) == expected
    square = facts_of(matmul_to_bf16, tensor(4096, 4096), tensor(4096, 4096))
    assert "not skinny" in reason(heuristic, square, H100)
    for kernel in (matmul_rms_norm_tiled, matmul_largest):
        facts = facts_of(kernel, tensor(4096, 4096), tensor(4096, 512))
        assert "not on the grid" in reason(heuristic, facts, H100)
    assert not heuristic.promote_seed_to_default
