"""Products whose rows are reduced tile by tile."""

from __future__ import annotations

import pytest
import torch
from harness import facts_of, tensor
from heuristic_kernels import (
    BF16,
    FP8,
    FP32,
    H100,
    attention_facts,
    distance_of_products,
    matmul_largest,
    matmul_layer_norm,
    matmul_rms_norm_tiled,
    proposed,
    reason,
)
from sample_kernels import matmul_to_bf16

from helion._compiler.facts.records import KernelFacts
from helion.backends.triton.heuristics.families.epilogue.tiled import (
    TritonMatmulTiledReductionEpilogueHeuristic,
)
from helion.backends.triton.heuristics.sizing import estimate
from helion.hardware import Target, known_targets, target

# GPU, dtype, then (M, N, K, N of the loop that applies, warps, stages) of all seeds; M = 131072, K = 512, N = 2048
TILED = [
    ("h100", BF16, [(128, 256, 64, 128, 8, 4), (128, 128, 64, 128, 4, 3), (64, 256, 32, 128, 4, 4), (256, 128, 64, 128, 8, 4)]),
    ("h100", FP32, [(128, 128, 32, 128, 8, 4), (128, 64, 32, 128, 4, 4), (64, 128, 32, 128, 4, 4), (256, 64, 32, 128, 8, 4)]),
    ("b200", BF16, [(128, 256, 64, 128, 8, 4), (128, 128, 64, 128, 4, 3), (64, 256, 32, 128, 4, 4), (256, 128, 64, 128, 8, 4)]),
    ("b200", FP32, [(128, 128, 32, 128, 8, 4), (128, 64, 32, 128, 4, 4), (64, 128, 32, 128, 4, 4), (256, 64, 32, 128, 8, 4)]),
    ("a100", BF16, [(128, 256, 64, 128, 8, 4), (128, 128, 32, 128, 4, 4), (64, 256, 32, 128, 4, 4), (256, 128, 32, 128, 8, 4)]),
]  # fmt: skip


def tiled_seeds(facts: KernelFacts, gpu: Target) -> list[tuple[int, ...]]:
    found = proposed(TritonMatmulTiledReductionEpilogueHeuristic(), facts, gpu)
    return [(*dict(sorted(p.block_sizes.items())).values(), p.num_warps or 0, p.num_stages or 0) for p in found]


@pytest.mark.parametrize(("name", "dtype", "expected"), TILED, ids=[f"{name}-{dtype}" for name, dtype, _ in TILED])
def test_tiled_epilogue(name: str, dtype: torch.dtype, expected: list[tuple[int, ...]]) -> None:
    facts = facts_of(matmul_rms_norm_tiled, tensor(131072, 512, dtype=dtype), tensor(512, 2048, dtype=dtype))
    assert tiled_seeds(facts, H100 if name == "h100" else target(name)) == expected


@pytest.mark.parametrize("name", known_targets())
def test_tiled_epilogue_fits_everywhere(name: str) -> None:
    gpu = target(name)
    for m, k, n in ((131072, 512, 2048), (4096, 8192, 4096), (100, 77, 300)):
        for dtype in (BF16, FP32, FP8):
            for kernel in (matmul_rms_norm_tiled, matmul_largest):
                facts = facts_of(kernel, tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype))
                for found in proposed(TritonMatmulTiledReductionEpilogueHeuristic(), facts, gpu):
                    predicted = estimate(facts, gpu, found.block_sizes, found.num_warps or 0, found.num_stages or 0)
                    assert predicted.fits and not predicted.spill_risk, (m, k, n, dtype, found)


def test_tiled_epilogue_gives_each_sm_a_program() -> None:
    rows = []
    for m in (100, 8192, 131072):
        facts = facts_of(matmul_largest, tensor(m, 512), tensor(512, 4096))
        rows.append(tiled_seeds(facts, H100)[0][0])
    assert rows == [64, 64, 128]
    # without an asynchronous unit tiles may be lower
    facts = facts_of(matmul_largest, tensor(100, 512), tensor(512, 4096))
    assert tiled_seeds(facts, target("a100"))[0][0] == 32


def test_tiled_epilogue_leaves_registers_for_masks_and_addresses() -> None:
    even = facts_of(matmul_largest, tensor(131072, 512), tensor(512, 4096))
    assert tiled_seeds(even, H100)[0] == (128, 256, 64, 8, 4)
    # K tiles reach past the end: no tile that takes more than 70 % of the registers
    for k in (520, 513, 77):
        ragged = facts_of(matmul_largest, tensor(131072, k), tensor(k, 4096))
        for found in proposed(TritonMatmulTiledReductionEpilogueHeuristic(), ragged, H100):
            predicted = estimate(ragged, H100, found.block_sizes, found.num_warps or 0, found.num_stages or 0)
            assert predicted.registers_per_thread <= 0.7 * predicted.register_limit
    # rows that are not aligned are loaded one by one: fewer of them are ahead
    odd = facts_of(matmul_largest, tensor(131072, 513), tensor(513, 4099))
    assert tiled_seeds(odd, H100)[0][-1] < 4


def test_two_products_share_the_registers() -> None:
    facts = facts_of(distance_of_products, tensor(32768, 512), tensor(512, 4096), tensor(512, 4096))
    # M, N, and K of both
    assert tiled_seeds(facts, H100)[0] == (128, 128, 64, 64, 8, 4)


def test_tiled_epilogue_is_no_plain_product() -> None:
    tiled = TritonMatmulTiledReductionEpilogueHeuristic()
    for kernel in (matmul_rms_norm_tiled, matmul_largest):
        facts = facts_of(kernel, tensor(4096, 4096), tensor(4096, 512))
        assert proposed(tiled, facts, H100)
    layer_norm = facts_of(matmul_layer_norm, tensor(64, 64), tensor(64, 128), tensor(128), tensor(128))
    for facts in (layer_norm, facts_of(matmul_to_bf16, tensor(64, 64), tensor(64, 64)), attention_facts(64)):
        assert reason(tiled, facts, H100)
    assert TritonMatmulTiledReductionEpilogueHeuristic.promote_seed_to_default
