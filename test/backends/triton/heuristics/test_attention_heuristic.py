"""Attention."""

from __future__ import annotations

import pytest
import torch
from harness import facts_of, tensor
from heuristic_kernels import H100, attention_facts, proposed
from sample_kernels import attention

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS
from benchmarks.unseen.attention import decode_one_token, flash_forward
from helion.backends.triton.heuristics.families.attention.decode import TritonAttentionDecodeHeuristic
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


@pytest.mark.parametrize(("name", "warps"), [("h100", 4), ("h200", 4), ("b200", 8)])
@pytest.mark.parametrize("head", [64, 128])
def test_one_group_of_warps_takes_few_queries(head: int, name: str, warps: int) -> None:
    """Measurement ``clamped_queries``."""
    facts = facts_of(attention, tensor(64, 64, head), tensor(64, head, 4096), tensor(64, 4096, head))
    first = proposed(TritonAttentionHeuristic(), facts, target(name))[0]
    predicted = estimate(facts, target(name), first.block_sizes, first.num_warps or 0, first.num_stages or 0)
    assert first.num_warps == warps and predicted.fits and predicted.spill_risk == 0


def _projected_decode(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor, heads: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """Attention of one query for each row of `q[R, D]` to `k`, `v[R, T, D]`, then a projection by `w[R * D, N]`."""
    rows, tokens, dim = k.shape
    dim = hl.specialize(dim)
    for r in hl.grid(rows):
        largest = hl.full([1], float("-inf"), dtype=torch.float32)
        total, acc = hl.zeros([1]), hl.zeros([1, dim])
        for tile in hl.tile(tokens):
            scores = hl.dot(q[r, :][None, :], k[r, tile, :].T)
            peak = torch.maximum(largest, torch.amax(scores, -1))
            weights, decay = torch.exp(scores - peak[:, None]), torch.exp(largest - peak)
            total = total * decay + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[r, tile, :], acc=acc * decay[:, None])
            largest = peak
        heads[r, :] = (acc / total[:, None]).sum(0).to(heads.dtype)
    hl.barrier()
    for tile_m, tile_n in hl.tile([heads.size(0), w.size(1)]):
        sums = hl.zeros([tile_m, tile_n])
        for tile_k in hl.tile(dim):
            sums = hl.dot(heads[tile_m, tile_k], w[tile_k, tile_n], acc=sums)
        out[tile_m, tile_n] = sums.to(out.dtype)
    return out


@pytest.mark.parametrize("name", ["h200", "b200", "gfx942"])
def test_matmuls_beside_the_attention_have_tiles_of_their_own(name: str) -> None:
    rows, tokens, dim, columns = 24, 4000, 128, 4000

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device="meta")

    args = empty(rows, dim), empty(rows, tokens, dim), empty(rows, tokens, dim), empty(dim, columns)
    bound = helion.kernel(_projected_decode).bind((*args, empty(rows, dim), empty(rows, columns)), target=name)
    proposals = proposed(TritonAttentionDecodeHeuristic(), bound.facts, bound.target)
    for proposal in proposals:
        keys, m, n, k = (proposal.block_sizes[axis.block_id] for axis in bound.facts.tunable_axes)
        assert keys >= 16 and m * n >= 256 and k >= 32
    first = bound.config_spec.normalize(bound.default_config())
    alone = bound.config_spec.normalize({**first, "block_sizes": [first["block_sizes"][0], 1, 1, 16]})
    assert bound._analysis.predict(first).time_us < bound._analysis.predict(alone).time_us


def test_operands_of_32_bits_are_read_for_more_queries() -> None:
    q = tensor(2, 8, 2048, 64, dtype=torch.float32)
    first = proposed(TritonAttentionHeuristic(), facts_of(flash_forward, q, q, q), target("h100"))[0]
    assert (list(first.block_sizes.values())[-2:], first.num_warps, first.num_stages) == ([256, 64], 8, 3)
    assert first.launch["indexing"] == ["pointer", "block_ptr", "block_ptr", "pointer"]
    narrow = tensor(1, 32, 1024, 32, dtype=torch.float32)
    other = proposed(TritonAttentionHeuristic(), facts_of(flash_forward, narrow, narrow, narrow), target("h100"))[0]
    assert "indexing" not in other.launch


def test_wide_heads_have_longer_blocks_before_stages() -> None:
    """Measured on an H200: 363 us, and 414 with two stages of 32 keys (nvidia-h200-samples.tsv)."""
    q = tensor(1, 8, 2048, 512, dtype=torch.bfloat16)
    first = proposed(TritonAttentionHeuristic(), facts_of(flash_forward, q, q, q), H100)[0]
    assert (list(first.block_sizes.values())[-2:], first.num_warps, first.num_stages) == ([64, 64], 8, 1)


def test_steps_of_several_scores_take_the_fastest_tile_that_does_not_spill() -> None:
    """Their plan may take all registers (measurement ``several_scores``); a binary that spills leaves the tile by rule."""
    q, v = tensor(32, 2048, 64, dtype=torch.bfloat16), tensor(32, 2048, 128, dtype=torch.bfloat16)
    of_two = CELLS["differential_attention"].kernel.fn
    found = proposed(TritonAttentionHeuristic(), facts_of(of_two, q, q, q, q, v, 0.3), target("h200"))
    first, ruled = ((list(each.block_sizes.values())[-2:], each.num_warps, each.num_stages) for each in found[:2])
    assert (first, ruled) == (([128, 64], 8, 3), ([128, 32], 8, 3))


def test_decoding_of_converted_keys_takes_longer_steps_of_more_warps() -> None:
    """Measurement ``converted_keys``; 16-bit keys keep the published tile."""
    cell = CELLS["int8_cache_decode"]
    q, *cache, lengths = cell.arguments("meta", False)
    heuristic = TritonAttentionDecodeHeuristic()
    first = proposed(heuristic, facts_of(cell.kernel.fn, q, *cache, lengths), target("h200"))[0]
    assert (list(first.block_sizes.values())[-1], first.num_warps, first.num_stages) == (128, 4, 3)
    keys = tensor(64, 8, 8192, 128, dtype=torch.bfloat16)
    one = facts_of(decode_one_token, tensor(64, 64, 128, dtype=torch.bfloat16), keys, keys)
    first = proposed(heuristic, one, target("h200"))[0]
    assert (list(first.block_sizes.values())[-1], first.num_warps, first.num_stages) == (64, 2, 3)


def test_pages_take_the_most_stages_that_fit() -> None:
    """Measurement ``paged_stages``."""
    cell = CELLS["paged_prefill"]
    args = cell.arguments("meta", False)
    first, ruled = proposed(TritonAttentionHeuristic(), facts_of(cell.kernel.fn, *args), target("h200"))[:2]
    assert (first.num_stages, ruled.num_stages) == (6, 3) and first.block_sizes == ruled.block_sizes


def test_pages_of_8_bits_have_more_warps() -> None:
    cell = CELLS["paged_fp8_decode"]
    args = cell.arguments("meta", False)
    first = proposed(TritonAttentionDecodeHeuristic(), facts_of(cell.kernel.fn, *args), target("h200"))[0]
    assert (list(first.block_sizes.values())[-1], first.num_warps) == (64, 4)


def test_steps_that_keep_more_than_a_softmax_are_of_one_group_of_warps() -> None:
    """Registers of one group hold 64 rows there, and 128 of a plain softmax."""
    cell = CELLS["attention_entropy"]
    config = cell.kernel.bind(cell.arguments("meta", False), target="h200").default_config()
    assert config["block_sizes"] == [64, 64] and config["num_warps"] == 4 and config["num_stages"] == 3
    plain = proposed(TritonAttentionHeuristic(), attention_facts(64), target("h200"))[0]
    assert 128 in plain.block_sizes.values() or plain.launch.get("indexing")
