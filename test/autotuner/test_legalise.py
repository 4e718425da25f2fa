"""From a proposal to a legal config that is predicted to fit, or to the reason why nothing does."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest
import torch
from harness import program_of, tensor
from hypothesis import given
from hypothesis import strategies as st
from sample_kernels import matmul, softmax

from helion._compiler.facts.collect import collect_facts
from helion._compiler.facts.records import KernelFacts
from helion._compiler.rewrites.reduction_loops.roll import rollable_blocks
from helion.autotuner import legalise as legaliser
from helion.autotuner.proposal import Predicted
from helion.autotuner.space import ConfigSpace, build_space
from helion.backends import BACKENDS
from helion.backends.triton.proposal import TritonProposal
from helion.config import Config
from helion.hardware import Target, target
from helion.settings import Settings

meta = functools.partial(tensor, dtype=torch.float16)


def bound(kernel: Callable[..., Any], *args: torch.Tensor, on: str = "sm_90") -> tuple[ConfigSpace, KernelFacts]:
    program = program_of(kernel, *args, on=on)
    rollable = rollable_blocks(program)[0]
    return build_space(program, rollable, target(on), Settings(), BACKENDS["triton"].keys), collect_facts(
        program, rollable
    )


def prediction(*, shared_bytes: int, fits: bool) -> Predicted:
    return Predicted(
        registers_per_thread=32,
        spill_risk=0.0,
        shared_bytes=shared_bytes,
        tensor_memory_columns=0,
        waves=1.0,
        occupancy_blocks=1,
        fits=fits,
        bytes_moved=0,
        flops=0,
        time_us=1.0,
        register_limit=255,
    )


def operands_in_shared_memory(
    facts: KernelFacts, sizes: Mapping[int, int], *, num_warps: int, num_stages: int, target: Target
) -> Predicted:
    """A matmul's operand tiles in fp16, once per stage."""
    m, n, k = (sizes[block] for block in range(3))
    shared_bytes = 2 * num_stages * k * (m + n)
    return prediction(shared_bytes=shared_bytes, fits=shared_bytes <= target.smem_per_block_bytes)


def legalise(
    proposal: TritonProposal, space: ConfigSpace, facts: KernelFacts, target: Target, model: Callable[..., Predicted]
) -> tuple[Config, Predicted] | str:
    """With a model of tiles, warps and stages."""

    def predict(config: Config) -> Predicted:
        stages = max(config["num_stages"], *config["range_num_stages"])
        return model(facts, space.sizes(config), num_warps=config["num_warps"], num_stages=stages, target=target)

    return legaliser.legalise(proposal, space, predict, BACKENDS["triton"].with_less_smem)


def rows_of_at_most(elements: int) -> Any:
    """Whatever the kernel, its tile of blocks 0 and 1 may have so many elements."""

    def model(
        facts: KernelFacts, sizes: Mapping[int, int], *, num_warps: int, num_stages: int, target: Target
    ) -> Predicted:
        return prediction(shared_bytes=sizes[0] * sizes[1], fits=sizes[0] * sizes[1] <= elements)

    return model


def never(
    facts: KernelFacts, sizes: Mapping[int, int], *, num_warps: int, num_stages: int, target: Target
) -> Predicted:
    return prediction(shared_bytes=2**20, fits=False)


MATRICES = meta(4096, 4096), meta(4096, 4096)


@pytest.mark.parametrize(
    ("sizes", "num_stages", "on", "legal", "legal_stages", "shared_bytes"),
    [
        ((128, 128, 64), 4, "sm_90", [128, 128, 64], 4, 131072),
        # one stage less at a time, until 2 * stages * 64 * 384 bytes are there: 232448 on H100, 101376 on L40S
        ((128, 256, 64), 6, "sm_90", [128, 256, 64], 4, 196608),
        ((128, 256, 64), 6, "sm_89", [128, 256, 64], 2, 98304),
        # then the largest tile
        ((256, 256, 128), 4, "sm_89", [128, 256, 128], 1, 98304),
        # or the one of the largest that makes it fit
        ((256, 512, 256), 3, "sm_89", [128, 256, 128], 1, 98304),
        # numbers out of range are brought into it first
        ((100, 8192, 1), 20, "sm_90", [64, 4096, 16], 1, 133120),
    ],
)
def test_stages_then_tiles(
    sizes: tuple[int, int, int], num_stages: int, on: str, legal: list[int], legal_stages: int, shared_bytes: int
) -> None:
    space, facts = bound(matmul, *MATRICES, on=on)
    proposal = TritonProposal(reason="", block_sizes=dict(enumerate(sizes)), num_stages=num_stages, num_warps=8)
    result = legalise(proposal, space, facts, target(on), model=operands_in_shared_memory)
    assert not isinstance(result, str)
    config, predicted = result
    assert (config["block_sizes"], config["num_stages"]) == (legal, legal_stages)
    assert predicted.shared_bytes == shared_bytes <= target(on).smem_per_block_bytes
    assert config["num_warps"] == 8
    assert space.normalize(config) == config


def test_stages_of_a_loop_count_too() -> None:
    space, facts = bound(matmul, *MATRICES)
    proposal = TritonProposal(
        reason="", block_sizes={0: 128, 1: 256, 2: 128}, num_stages=1, ranges={"range_num_stages": {2: 4}}
    )
    result = legalise(proposal, space, facts, target("sm_90"), model=operands_in_shared_memory)
    assert not isinstance(result, str)
    assert result[0]["range_num_stages"] == [0, 2]
    assert result[0]["num_stages"] == 1
    assert result[0]["block_sizes"] == [128, 256, 128]


@pytest.mark.parametrize(
    ("elements", "tile", "chunk"), [(2**16, 16, None), (2**12, 1, None), (2**11, 1, 2**11), (2**9, 1, 2**9)]
)
def test_rows_become_chunks_last(elements: int, tile: int, chunk: int | None) -> None:
    space, facts = bound(softmax, meta(1000, 4000))
    proposal = TritonProposal(reason="", block_sizes={0: 64}, reduction_loops={1: None})
    result = legalise(proposal, space, facts, target("sm_90"), model=rows_of_at_most(elements))
    assert not isinstance(result, str)
    assert (result[0]["block_sizes"], result[0]["reduction_loops"]) == ([tile], [chunk])


def test_tiles_beyond_the_largest_one_shrink_before_anything_is_predicted() -> None:
    space, facts = bound(matmul, *MATRICES)
    proposal = TritonProposal(reason="", block_sizes={0: 4096, 1: 4096, 2: 16})
    result = legalise(proposal, space, facts, target("sm_90"), model=rows_of_at_most(2**20))
    assert not isinstance(result, str)
    assert result[0]["block_sizes"] == [1024, 1024, 16]


def test_nothing_fits() -> None:
    space, facts = bound(matmul, *MATRICES)
    result = legalise(TritonProposal(reason="", num_stages=3), space, facts, target("sm_90"), model=never)
    assert result == (
        "does not fit sm_90 (H100 SXM), even with one stage and the smallest tiles (tile_m=1, tile_n=1, tile_k=16): "
        "1048576 bytes of shared memory are needed, and a block has 232448"
    )


def test_refused_settings_are_a_reason() -> None:
    space, facts = bound(matmul, *MATRICES)
    result = legalise(TritonProposal(reason="", launch={"waves_per_eu": 2}), space, facts, target("sm_90"), model=never)
    assert result == "waves_per_eu cannot be 2: it is an option of AMD GPUs, and the target is sm_90 (H100 SXM); leave it out."  # fmt: skip


def test_blocks_that_do_not_exist_are_a_bug() -> None:
    space, facts = bound(matmul, *MATRICES)
    with pytest.raises(KeyError, match="block_sizes has no entry for \\[5\\]"):
        legalise(TritonProposal(reason="", block_sizes={5: 16}), space, facts, target("sm_90"), model=never)


@given(
    seed=st.integers(0, 2**32),
    stages=st.integers(-1, 12),
    warps=st.integers(0, 64),
    on=st.sampled_from(("sm_80", "sm_89", "sm_100", "gfx942", "xpu")),
)
def test_what_comes_out_fits_and_is_normal(seed: int, stages: int, warps: int, on: str) -> None:
    space, facts = bound(matmul, *MATRICES, on=on)
    rng = Random(seed)
    proposal = TritonProposal(
        reason="",
        block_sizes={block: rng.randrange(1, 5000) for block in range(3)},
        l2_groupings={0: rng.randrange(1, 100)},
        num_stages=stages,
        num_warps=warps,
    )
    result = legalise(proposal, space, facts, target(on), model=operands_in_shared_memory)
    assert not isinstance(result, str)
    config, predicted = result
    assert predicted.fits
    assert space.normalize(config) == config
    assert operands_in_shared_memory(facts, space.sizes(config), num_warps=4, num_stages=config["num_stages"], target=target(on)) == predicted  # fmt: skip
