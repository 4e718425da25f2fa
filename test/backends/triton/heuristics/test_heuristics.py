"""Heuristics: the published worked examples as golden values, thresholds, and what becomes of proposals."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import facts_of, tensor
from sample_kernels import add, attention, bmm, matmul_to_bf16, row_sum, scan, softmax, transpose

import helion.language as hl
from helion._compiler.facts.records import KernelFacts, LiveTile
from helion.autotuner.proposal import Declined, Heuristic, Predicted, Proposal
from helion.autotuner.seeds import MAX_SEEDS, make_seeds
from helion.backends.triton.heuristics.attention import TritonAttentionHeuristic
from helion.backends.triton.heuristics.fallback import TritonFallbackHeuristic
from helion.backends.triton.heuristics.matmul import TritonMatmulHeuristic
from helion.backends.triton.heuristics.matmul_reduction_epilogue import (
    TritonMatmulReductionEpilogueHeuristic,
    staged_budget,
)
from helion.backends.triton.heuristics.matmul_tiled_reduction_epilogue import (
    TritonMatmulTiledReductionEpilogueHeuristic,
)
from helion.backends.triton.heuristics.pointwise import TritonPointwiseHeuristic
from helion.backends.triton.heuristics.product_extents import Extents, product_extents
from helion.backends.triton.heuristics.reduction import TritonReductionHeuristic
from helion.backends.triton.heuristics.reduction_budget import allocate, row_budget
from helion.backends.triton.heuristics.registry import HEURISTICS
from helion.backends.triton.heuristics.row_epilogue import TritonRowEpilogueHeuristic
from helion.backends.triton.heuristics.sizing import all_sizes, estimate
from helion.backends.triton.heuristics.skinny_gemm import TritonSkinnyGemmHeuristic
from helion.backends.triton.heuristics.user_tiled_reduction import TritonUserTiledReductionHeuristic
from helion.config import Config
from helion.hardware import Target, known_targets, target

BF16, FP32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
H100, B200 = target("h100"), target("b200")


def promotes(name: str) -> bool:
    return any(h.promote_seed_to_default for h in HEURISTICS if h.name == name)


def proposed(heuristic: Heuristic, facts: KernelFacts, gpu: Target) -> tuple[Proposal, ...]:
    found = heuristic.propose(facts, gpu)
    assert not isinstance(found, Declined), found.reason
    return found


def reason(heuristic: Heuristic, facts: KernelFacts, gpu: Target) -> str:
    """Why it declines; empty where it does not."""
    found = heuristic.propose(facts, gpu)
    return found.reason if isinstance(found, Declined) else ""


# --- kernels -------------------------------------------------------------------------------------------------------------


def matmul_layer_norm(x, y, weight, bias):
    m, k = x.size()
    n = hl.specialize(y.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        variance, mean = torch.var_mean(acc, dim=-1, keepdim=True, correction=0)
        out[tile_m, :] = (acc - mean) * torch.rsqrt(variance + 1e-5) * weight[:] + bias[:]
    return out


def matmul_rms_norm_tiled(x, y):
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        squares = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
            squares = squares + torch.sum(acc * acc, dim=-1)
            out[tile_m, tile_n] = acc
        scale = torch.rsqrt(squares / n + 1e-6)
        for tile_n in hl.tile(n):
            out[tile_m, tile_n] = out[tile_m, tile_n].to(torch.float32) * scale[:, None]
    return out


def matmul_largest(x, y):
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
            highest = torch.maximum(highest, torch.amax(acc, dim=-1))
        out[tile_m] = highest
    return out


def distance_of_products(x, y, z):
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            left = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                left = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=left)
            right = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                right = hl.dot(x[tile_m, tile_k], z[tile_k, tile_n], acc=right)
            total = total + torch.sum(torch.abs(left - right), dim=-1)
        out[tile_m] = total
    return out


def split_k(x, y):
    m, k = x.size()
    n = y.size(1)
    out = torch.zeros([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n, span in hl.tile([m, n, k]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(span.begin, span.end):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        hl.atomic_add(out, [tile_m, tile_n], acc)
    return out


def parts_then_sum(x, y):
    m, k = x.size()
    n = y.size(1)
    span = (k + 3) // 4
    parts = torch.empty([4, m, n], dtype=torch.float32, device=x.device)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_s, tile_m, tile_n in hl.tile([4, m, n], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(tile_s.begin * span, min(tile_s.begin * span + span, k)):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        parts[tile_s.begin, tile_m, tile_n] = acc
    hl.barrier()
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_m, tile_n] = torch.sum(parts[:, tile_m, tile_n], dim=0)
    return out


def grouped(x, y, offsets):
    rows, k = x.size()
    groups, _, n = y.size()
    out = torch.empty([rows, n], dtype=x.dtype, device=x.device)
    for tile_g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        group = tile_g.begin
        for tile_m in hl.tile(offsets[group], offsets[group + 1]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], y[group, tile_k, tile_n], acc=acc)
            out[tile_m, tile_n] = acc
    return out


def halves(x, y, z):
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
            acc = hl.dot(x[tile_m, tile_k], z[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


def rms_norm(x, weight):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        scale = torch.rsqrt((row * row).mean(-1, keepdim=True) + 1e-6)
        out[tile, :] = row * scale * weight[:].to(torch.float32)
    return out


def sum_then_scale(x):
    m, n = x.size()
    out = torch.empty_like(x)
    for tile_m in hl.tile(m):
        total = x[tile_m, :].to(torch.float32).sum(-1)
        for tile_n in hl.tile(n):
            out[tile_m, tile_n] = x[tile_m, tile_n] / total[:, None]
    return out


def two_pass_softmax(x):
    m, n = x.size()
    out = torch.empty_like(x)
    block_m = hl.register_block_size(m)
    block_n = hl.register_block_size(n)
    for tile_m in hl.tile(m, block_size=block_m):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n, block_size=block_n):
            values = x[tile_m, tile_n].to(torch.float32)
            raised = torch.maximum(highest, torch.amax(values, dim=1))
            total = total * torch.exp(highest - raised) + torch.sum(torch.exp(values - raised[:, None]), dim=1)
            highest = raised
        for tile_n in hl.tile(n, block_size=block_n):
            out[tile_m, tile_n] = torch.exp(x[tile_m, tile_n].to(torch.float32) - highest[:, None]) / total[:, None]
    return out


def welford(x):
    m, n = x.size()
    out = torch.empty_like(x)
    for tile_m in hl.tile(m):
        mean = hl.zeros([tile_m], dtype=torch.float32)
        square = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            values = x[tile_m, tile_n].to(torch.float32)
            mean = mean + torch.sum(values, dim=-1)
            square = square + torch.sum(values * values, dim=-1)
        for tile_n in hl.tile(n):
            out[tile_m, tile_n] = (x[tile_m, tile_n].to(torch.float32) - mean[:, None]) * square[:, None]
    return out


def kl_div(prediction, truth):
    rows, classes = prediction.size()
    loss = torch.empty([rows], dtype=torch.float32, device=prediction.device)
    block_v = hl.register_block_size(classes)
    block_r = hl.register_block_size(rows)
    for tile_r in hl.tile(rows, block_size=block_r):
        acc = hl.zeros([tile_r, block_v], dtype=torch.float32)
        for tile_v in hl.tile(classes, block_size=block_v):
            log_p = prediction[tile_r, tile_v]
            q = truth[tile_r, tile_v]
            acc += torch.exp(q) * (q - log_p)
        loss[tile_r] = acc.sum(dim=-1)
    return loss


def norm_gradient(x, grad):
    m, n = x.size()
    n = hl.specialize(n)
    block = hl.register_block_size(m)
    partial = torch.empty([(m + block - 1) // block, n], dtype=torch.float32, device=x.device)
    for outer in hl.tile(m, block_size=block):
        acc = hl.zeros([n], dtype=torch.float32)
        for inner in hl.tile(outer.begin, outer.end):
            acc += (x[inner, :].to(torch.float32) * grad[inner, :].to(torch.float32)).sum(0)
        partial[outer.id, :] = acc
    return partial


def gelu(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        value = x[tile].to(torch.float32)
        out[tile] = 0.5 * value * (1 + torch.tanh(0.79788456 * (value + 0.044715 * value * value * value)))
    return out


def nine_sines(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        value = torch.sin(torch.sin(torch.sin(x[tile])))
        value = torch.sin(torch.sin(torch.sin(value)))
        out[tile] = torch.sin(torch.sin(torch.sin(value)))
    return out


# --- matrix products -----------------------------------------------------------------------------------------------------

# (M, N, K), then (M, N, K tile, warps, stages, group) for 16-bit and for fp32 operands; the same on H100 and B200
MATMULS = [
    ((4096, 4096, 4096), (128, 256, 64, 8, 4, 1), (128, 256, 32, 8, 4, 1)),
    ((2048, 2048, 2048), (128, 256, 64, 8, 4, 1), (128, 256, 32, 8, 4, 1)),
    ((8192, 8192, 8192), (128, 256, 64, 8, 4, 1), (128, 256, 32, 8, 4, 1)),
    ((1024, 1024, 1024), (128, 64, 128, 4, 4, 1), (128, 64, 64, 4, 4, 1)),
    ((512, 512, 512), (64, 64, 128, 4, 4, 1), (64, 64, 64, 4, 6, 1)),
    ((16, 4096, 4096), (16, 32, 256, 4, 6, 1), (16, 32, 256, 4, 4, 1)),
    ((1, 4096, 4096), (16, 32, 256, 4, 6, 1), (16, 32, 256, 4, 4, 1)),
    ((128, 4096, 4096), (64, 64, 128, 4, 6, 1), (64, 64, 64, 4, 6, 1)),
    ((8192, 1024, 4096), (128, 256, 64, 8, 4, 2), (128, 256, 32, 8, 4, 2)),
    ((131072, 64, 512), (512, 64, 32, 8, 6, 2), (512, 64, 16, 8, 6, 2)),
    ((256, 256, 12288), (64, 64, 128, 4, 6, 1), (64, 64, 64, 4, 6, 1)),
    ((16, 11008, 4096), (16, 128, 128, 4, 6, 1), (16, 128, 64, 4, 6, 1)),
]


def matmul_seed(facts: KernelFacts, gpu: Target) -> tuple[int, ...]:
    first = proposed(TritonMatmulHeuristic(), facts, gpu)[0]
    fact = facts.matmuls[0]
    tile = [first.block_sizes[b] for b in (fact.m_block_id, fact.n_block_id, fact.k_block_id)]
    return (*tile, first.num_warps, first.num_stages, first.l2_groupings.get(0, 1))


@pytest.mark.parametrize(("extents", "half", "single"), MATMULS, ids=[str(row[0]) for row in MATMULS])
def test_matmul_published(extents: tuple[int, int, int], half: tuple[int, ...], single: tuple[int, ...]) -> None:
    m, n, k = extents
    for dtype, expected in ((BF16, half), (torch.float16, half), (FP32, single)):
        facts = facts_of(matmul_to_bf16, tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype))
        for gpu in (H100, B200):
            assert matmul_seed(facts, gpu) == expected, (dtype, gpu)


def test_matmul_of_fp8_is_sized_by_one_byte() -> None:
    facts = facts_of(matmul_to_bf16, tensor(4096, 4096, dtype=FP8), tensor(4096, 4096, dtype=FP8))
    assert matmul_seed(facts, H100) == matmul_seed(facts, B200) == (128, 256, 128, 8, 4, 1)
    k_major = facts_of(matmul_to_bf16, tensor(4096, 4096, dtype=FP8), tensor(4096, 4096, dtype=FP8).t())
    # partial sums stand beside the accumulator where the unit does not add in fp32
    assert matmul_seed(k_major, H100) == (128, 128, 128, 8, 6, 1)
    assert matmul_seed(k_major, B200) == (128, 256, 128, 8, 4, 1)


@pytest.mark.parametrize(
    ("shape", "gpu", "expected"),
    [
        ((10240, 64, 128, 256), H100, (64, 128, 64, 4, 2, 1)),
        ((10240, 64, 128, 256), B200, (32, 64, 64, 1, 2, 1)),
        ((4096, 128, 128, 64), H100, (64, 128, 16, 4, 2, 1)),
        ((4096, 128, 128, 64), B200, (32, 64, 16, 1, 2, 1)),
    ],
)
def test_many_small_products(shape: tuple[int, ...], gpu: Target, expected: tuple[int, ...]) -> None:
    batch, m, n, k = shape
    facts = facts_of(bmm, tensor(batch, m, k), tensor(batch, k, n))
    assert matmul_seed(facts, gpu) == expected
    assert proposed(TritonMatmulHeuristic(), facts, gpu)[0].block_sizes[0] == 1


def test_matmul_alternates_are_turned_and_shorter() -> None:
    facts = facts_of(matmul_to_bf16, tensor(4096, 4096), tensor(4096, 4096))
    found = proposed(TritonMatmulHeuristic(), facts, H100)
    tiles = [(dict(p.block_sizes), p.num_stages) for p in found]
    assert tiles == [
        ({0: 128, 1: 256, 2: 64}, 4),
        ({0: 256, 1: 128, 2: 64}, 4),
        ({0: 256, 1: 128, 2: 64}, 3),
    ]


@pytest.mark.parametrize("name", known_targets())
def test_matmul_fits_everywhere(name: str) -> None:
    gpu = target(name)
    for extents in ((4096, 4096, 4096), (16, 4096, 4096), (131072, 64, 512), (100, 77, 33)):
        m, n, k = extents
        for dtype in (BF16, FP32, FP8):
            facts = facts_of(matmul_to_bf16, tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype))
            first = proposed(TritonMatmulHeuristic(), facts, gpu)[0]
            predicted = estimate(facts, gpu, first.block_sizes, first.num_warps or 0, first.num_stages or 0)
            assert predicted.fits and predicted.spill_risk < 1, (extents, dtype, predicted)


def test_matmul_declines() -> None:
    heuristic = TritonMatmulHeuristic()
    assert "0 matrix products" in reason(heuristic, facts_of(softmax, tensor(64, 64)), H100)
    layer_norm = facts_of(matmul_layer_norm, tensor(64, 64), tensor(64, 128), tensor(128), tensor(128))
    assert "not three tiles" in reason(heuristic, layer_norm, H100)
    assert "2 matrix products" in reason(heuristic, attention_facts(64), H100)


def tiles_of(facts: KernelFacts, gpu: Target) -> list[tuple[tuple[int, ...], int | None, int | None]]:
    found = proposed(TritonMatmulHeuristic(), facts, gpu)
    return [(tuple(dict(sorted(p.block_sizes.items())).values()), p.num_warps, p.num_stages) for p in found]


def test_a_tile_that_bounds_k_is_split_until_the_wave_is_full() -> None:
    # (M, N, span, K): 4 products of 128 x 256 and 32 parts of K for 132 SMs
    facts = facts_of(split_k, tensor(256, 16384), tensor(16384, 512))
    assert tiles_of(facts, H100)[0] == ((128, 256, 512, 64), 8, 4)
    # two products per SM already
    facts = facts_of(split_k, tensor(4096, 16384), tensor(16384, 2048))
    assert tiles_of(facts, H100)[0] == ((128, 256, 16384, 64), 8, 4)
    spans = [
        tiles_of(facts_of(split_k, tensor(m, 16384), tensor(16384, 512)), H100)[0][0][2] for m in (256, 1024, 4096)
    ]
    assert spans == sorted(spans)


def test_loops_without_a_product_get_tiles_of_their_own() -> None:
    facts = facts_of(parts_then_sum, tensor(256, 16384), tensor(16384, 512))
    # (M, N, K of the parts, M and N of their sum)
    assert tiles_of(facts, H100)[0] == ((64, 64, 128, 2, 512), 4, 6)


def test_rows_of_groups_are_as_many_as_there_are_on_average() -> None:
    offsets = torch.empty(17, dtype=torch.int32, device="meta")
    facts = facts_of(grouped, tensor(32768, 2048), tensor(16, 2048, 4096), offsets)
    assert product_extents(facts) == Extents(m=2048, n=4096, k=2048, batch=16, span=None)
    # N, M, K; no more than 128 rows and 3 stages, whose masks are in registers
    assert tiles_of(facts, H100) == [((128, 128, 64), 8, 3)]
    few = facts_of(grouped, tensor(512, 2048), tensor(16, 2048, 4096), offsets)
    assert tiles_of(few, H100)[0][0][1] == 32


def test_two_products_over_the_same_tiles_stage_twice_the_operands() -> None:
    facts = facts_of(halves, tensor(4096, 4096), tensor(4096, 4096), tensor(4096, 4096))
    one = facts_of(matmul_to_bf16, tensor(4096, 4096), tensor(4096, 4096))
    assert tiles_of(facts, H100)[0] == ((128, 256, 32), 8, 4)
    assert tiles_of(one, H100)[0] == ((128, 256, 64), 8, 4)


def test_skinny_gemm() -> None:
    heuristic = TritonSkinnyGemmHeuristic()
    for (m, n, k), expected in (((1024, 8192, 4096), (64, 64, 256)), ((16, 8192, 128), (16, 64, 128))):
        facts = facts_of(matmul_to_bf16, tensor(m, k), tensor(k, n))
        assert tuple(proposed(heuristic, facts, H100)[0].block_sizes.values()) == expected
    square = facts_of(matmul_to_bf16, tensor(4096, 4096), tensor(4096, 4096))
    assert "not skinny" in reason(heuristic, square, H100)


# --- matrix product and reduction ----------------------------------------------------------------------------------------

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
    assert not promotes("TritonMatmulReductionEpilogueHeuristic")
    assert promotes("TritonMatmulHeuristic") and promotes("TritonReductionHeuristic")
    assert not promotes("TritonFallbackHeuristic") and not promotes("no such heuristic")


@pytest.mark.parametrize(
    ("name", "budget"), [("h100", 196608), ("b200", 196608), ("a100", 131072), ("rtx4090", 65536), ("mi300x", 65536)]
)
def test_staged_budget_comes_from_the_target(name: str, budget: int) -> None:
    assert staged_budget(target(name)) == budget


def test_epilogue_declines() -> None:
    product = facts_of(matmul_to_bf16, tensor(64, 64), tensor(64, 64))
    for facts in (product, facts_of(softmax, tensor(64, 64)), attention_facts(64)):
        for heuristic in (TritonMatmulReductionEpilogueHeuristic(), TritonRowEpilogueHeuristic()):
            assert "not one matrix product with one reduction" in reason(heuristic, facts, H100)


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


# --- matrix product and reduction over tiles -----------------------------------------------------------------------------

# GPU, dtype, then (M, N, K, N of the loop that applies, warps, stages) of all seeds; M = 131072, K = 512, N = 2048
TILED = [
    ("h100", BF16, [(128, 256, 64, 128, 8, 4), (128, 128, 64, 128, 4, 3), (64, 256, 32, 128, 4, 4), (256, 128, 64, 128, 8, 4)]),
    ("h100", FP32, [(128, 256, 32, 128, 8, 4), (128, 128, 32, 128, 4, 3), (64, 256, 16, 128, 4, 4), (256, 128, 32, 128, 8, 4)]),
    ("b200", BF16, [(128, 256, 64, 128, 8, 4), (128, 128, 64, 128, 4, 3), (64, 256, 32, 128, 4, 4), (256, 128, 64, 128, 8, 4)]),
    ("b200", FP32, [(128, 128, 32, 128, 8, 4), (128, 64, 32, 128, 4, 4), (64, 128, 32, 128, 4, 4), (256, 64, 32, 128, 8, 4)]),
    ("a100", BF16, [(128, 256, 64, 128, 8, 4), (64, 256, 32, 128, 4, 4)]),
]  # fmt: skip


def tiled_seeds(facts: KernelFacts, gpu: Target) -> list[tuple[int, ...]]:
    found = proposed(TritonMatmulTiledReductionEpilogueHeuristic(), facts, gpu)
    return [(*dict(sorted(p.block_sizes.items())).values(), p.num_warps or 0, p.num_stages or 0) for p in found]


@pytest.mark.parametrize(("name", "dtype", "expected"), TILED, ids=[f"{name}-{dtype}" for name, dtype, _ in TILED])
def test_tiled_epilogue(name: str, dtype: torch.dtype, expected: list[tuple[int, ...]]) -> None:
    facts = facts_of(matmul_rms_norm_tiled, tensor(131072, 512, dtype=dtype), tensor(512, 2048, dtype=dtype))
    assert tiled_seeds(facts, target(name)) == expected


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
    ragged = facts_of(matmul_largest, tensor(131072, 520), tensor(520, 4096))
    assert tiled_seeds(ragged, H100)[0] == (128, 128, 64, 8, 4)
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
        assert "reduced in the same program" in reason(TritonMatmulHeuristic(), facts, H100)
        assert "not on the grid" in reason(TritonSkinnyGemmHeuristic(), facts, H100)
    layer_norm = facts_of(matmul_layer_norm, tensor(64, 64), tensor(64, 128), tensor(128), tensor(128))
    for facts in (layer_norm, facts_of(matmul_to_bf16, tensor(64, 64), tensor(64, 64)), attention_facts(64)):
        assert reason(tiled, facts, H100)
    assert promotes("TritonMatmulTiledReductionEpilogueHeuristic")


# --- reductions ----------------------------------------------------------------------------------------------------------


def with_live_rows(facts: KernelFacts, count: int, **changes: Any) -> KernelFacts:
    """The facts with ``count`` live fp32 row tiles and one column, as the published examples assume."""

    def tiles(axis: int, grid: int) -> tuple[LiveTile, ...]:
        return (*(((grid, axis), 4),) * count, ((grid,), 4))

    rows = facts.grid_axes[0]
    changed = tuple(
        dataclasses.replace(fact, live_tiles=tiles(fact.axis, rows), body_live_tiles=count, **changes)
        for fact in facts.reductions
    )
    return dataclasses.replace(facts, reductions=changed)


def reduction_seed(facts: KernelFacts, gpu: Target) -> Proposal:
    whole, tiled = TritonReductionHeuristic(), TritonUserTiledReductionHeuristic()
    return proposed(tiled if reason(whole, facts, gpu) else whole, facts, gpu)[0]


def row_seed(facts: KernelFacts, gpu: Target) -> tuple[list[int], list[int | None], int | None]:
    first = reduction_seed(facts, gpu)
    sizes = [first.block_sizes[axis.block_id] for axis in facts.tunable_axes]
    return sizes, [first.reduction_loops[axis.block_id] for axis in facts.rolled_axes], first.num_warps


def test_row_budget() -> None:
    assert row_budget(H100) == row_budget(B200) == row_budget(target("a100")) == 245760


@pytest.mark.parametrize(
    ("kernel", "args", "rows", "hopper", "blackwell"),
    [
        (rms_norm, (tensor(2048, 16384, dtype=FP32), tensor(16384)), 3, ([1], [None], 16), None),
        (softmax, (tensor(1024, 1024),), 3, ([1], [None], 4), None),
        (row_sum, (tensor(4096, 4096),), 2, ([2], [None], 8), ([2], [None], 4)),
        (row_sum, (tensor(4096, 18432),), 2, ([1], [16384], 32), ([1], [16384], 32)),
        (row_sum, (tensor(8, 2**20),), 2, ([1], [16384], 32), ([1], [16384], 32)),
        (rms_norm, (tensor(131072, 512), tensor(512)), 3, ([8], [None], 4), ([8], [None], 2)),
        (softmax, (tensor(4096, 8192),), 3, ([2], [None], 16), ([2], [None], 4)),
        (softmax, (tensor(4096, 8192),), 7, ([1], [None], 16), ([1], [None], 4)),
        (softmax, (tensor(4096, 32768),), 7, ([1], [8192], 32), ([1], [8192], 32)),
        (sum_then_scale, (tensor(1024, 4096, dtype=FP32),), 1, ([1, 4096], [None], 8), None),
        (sum_then_scale, (tensor(1024, 131072, dtype=FP32),), 1, ([1, 32768], [16384], 32), ([1, 4096], [16384], 32)),
        (kl_div, (tensor(4096, 131072, dtype=FP32),) * 2, 6, ([4096, 1], [], 32), None),
        (two_pass_softmax, (tensor(4096, 4096, dtype=FP32),), 3, ([2, 4096], [], 8), ([2, 4096], [], 4)),
        (two_pass_softmax, (tensor(4096, 131072, dtype=FP32),), 3, ([1, 16384], [], 32), None),
        (welford, (tensor(262144, 1024, dtype=FP32),), 3, ([8, 1024, 1024], [], 4), None),
    ],
)
def test_reduction_published(kernel: Any, args: Any, rows: int, hopper: Any, blackwell: Any) -> None:
    facts = with_live_rows(facts_of(kernel, *args), rows)
    assert row_seed(facts, H100) == hopper
    if blackwell is not None:
        assert row_seed(facts, B200) == blackwell


@pytest.mark.parametrize(
    ("rows", "store_only", "longest"),
    [
        (1, False, 183296),
        (1, True, 72704),
        (2, False, 91136),
        (2, True, 35840),
        (3, False, 60416),
        (3, True, 23552),
        (4, False, 45056),
        (4, True, 17408),
        (7, False, 25600),
        (7, True, 10240),
    ],
)
def test_longest_row_that_is_held(rows: int, store_only: bool, longest: int) -> None:
    def held(extent: int) -> bool:
        facts = with_live_rows(facts_of(softmax, tensor(8, extent, dtype=FP32)), rows, store_only_re_read=store_only)
        return not allocate(facts, H100).looped

    assert held(longest) and not held(longest + 1024)


def test_real_live_tiles_give_the_published_choices() -> None:
    assert row_seed(facts_of(softmax, tensor(4096, 8192)), H100) == ([2], [None], 16)
    assert row_seed(facts_of(rms_norm, tensor(2048, 16384, dtype=FP32), tensor(16384)), H100) == ([1], [None], 16)
    assert row_seed(facts_of(row_sum, tensor(4096, 16384)), H100)[1] == [None]
    assert row_seed(facts_of(row_sum, tensor(4096, 18432)), H100)[1] == [16384]


def test_more_live_tiles_never_give_a_larger_chunk() -> None:
    facts = facts_of(softmax, tensor(4096, 65536, dtype=FP32))
    found = [allocate(with_live_rows(facts, rows), H100).chunks[1] for rows in range(1, 12)]
    chunks = [2**20 if chunk is None else chunk for chunk in found]
    assert chunks == sorted(chunks, reverse=True)
    assert chunks[-1] < chunks[0]


def test_eviction() -> None:
    streamed = reduction_seed(facts_of(row_sum, tensor(4096, 4096)), H100)
    assert streamed.eviction == {0: "first"}
    twice = reduction_seed(facts_of(two_pass_softmax, tensor(4096, 4096)), H100)
    assert twice.eviction == {0: "last", 1: "first"}
    once = reduction_seed(facts_of(kl_div, tensor(64, 4096), tensor(64, 4096)), H100)
    assert once.eviction == {}


def test_gradients_per_feature_take_one_wave_of_partial_sums() -> None:
    facts = facts_of(norm_gradient, tensor(65536, 1024), tensor(65536, 1024))
    assert any(fact.per_feature_accumulator for fact in facts.reductions)
    first = reduction_seed(facts, H100)
    outer, inner = (axis.block_id for axis in facts.tunable_axes)
    assert first.block_sizes[outer] == 512  # 65536 rows over 132 SMs, rounded up
    assert first.block_sizes[inner] >= 4
    assert not first.reduction_loops


def test_no_reduction_seed_is_predicted_to_spill() -> None:
    for kernel, count in ((softmax, 1), (rms_norm, 2), (row_sum, 1), (two_pass_softmax, 1), (welford, 1)):
        for extent in (1000, 8192, 32768, 131072):
            args = (tensor(4096, extent, dtype=FP32), tensor(extent, dtype=FP32))[:count]
            facts = facts_of(kernel, *args)
            for gpu in (H100, B200, target("a100"), target("mi300x")):
                first = reduction_seed(facts, gpu)
                found = estimate(facts, gpu, first.block_sizes, first.num_warps or 0, 1, first.reduction_loops)
                assert found.fits and not found.spill_risk, (kernel.__name__, extent, gpu)


def test_reductions_decline() -> None:
    whole, tiled = TritonReductionHeuristic(), TritonUserTiledReductionHeuristic()
    product = facts_of(matmul_to_bf16, tensor(64, 64), tensor(64, 64))
    assert "matrix product" in reason(whole, product, H100)
    assert "matrix product" in reason(tiled, product, H100)
    elementwise = facts_of(add, tensor(64, 64), tensor(64, 64))
    assert "no reduction" in reason(whole, elementwise, H100)
    assert reason(tiled, facts_of(softmax, tensor(64, 64)), H100)
    assert reason(whole, facts_of(welford, tensor(64, 64)), H100)


@pytest.mark.parametrize("name", known_targets())
def test_one_reduction_heuristic_applies_to_each_kernel(name: str) -> None:
    for kernel, args in ((softmax, (tensor(64, 64),)), (welford, (tensor(64, 64),))):
        facts = facts_of(kernel, *args)
        both = (TritonReductionHeuristic(), TritonUserTiledReductionHeuristic())
        assert sum(bool(reason(heuristic, facts, target(name))) for heuristic in both) == 1


# --- elementwise ---------------------------------------------------------------------------------------------------------


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


# --- the rest ------------------------------------------------------------------------------------------------------------


@functools.cache
def attention_facts(head: int) -> KernelFacts:
    return facts_of(attention, tensor(16, 2048, head), tensor(16, head, 2048), tensor(16, 2048, head))


@pytest.mark.parametrize("name", known_targets())
def test_attention_takes_a_tile_that_fits(name: str) -> None:
    gpu = target(name)
    for head in (64, 128):
        facts = attention_facts(head)
        first = proposed(TritonAttentionHeuristic(), facts, gpu)[0]
        predicted = estimate(facts, gpu, first.block_sizes, first.num_warps or 0, first.num_stages or 0)
        assert predicted.fits and predicted.spill_risk == 0


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


def test_registry_ends_in_the_fallback_and_names_are_unique() -> None:
    names = [h.name for h in HEURISTICS]
    assert len(set(names)) == len(names)
    assert names[-1] == "TritonFallbackHeuristic"
    assert names == [type(h).__name__ for h in HEURISTICS]


# --- seeds ---------------------------------------------------------------------------------------------------------------


def legal(facts: KernelFacts, gpu: Target, seen: list[Proposal] | None = None) -> Callable[[Proposal], Any]:
    """A legaliser that takes every proposal as it is."""

    def legalise(proposal: Proposal) -> tuple[Config, Predicted]:
        if seen is not None:
            seen.append(proposal)
        warps, stages = proposal.num_warps or 4, proposal.num_stages or 1
        predicted = estimate(facts, gpu, proposal.block_sizes, warps, stages, proposal.reduction_loops)
        sizes = all_sizes(facts, proposal.block_sizes)
        config = Config(
            block_sizes=[sizes[axis.block_id] for axis in facts.tunable_axes],
            reduction_loops=[proposal.reduction_loops.get(axis.block_id) for axis in facts.rolled_axes],
            num_warps=warps,
            num_stages=stages,
        )
        return config, predicted

    return legalise


@pytest.mark.parametrize(
    ("kernel", "args", "first"),
    [
        (matmul_to_bf16, (tensor(1024, 1024), tensor(1024, 1024)), "TritonMatmulHeuristic"),
        (softmax, (tensor(4096, 8192),), "TritonReductionHeuristic"),
        (welford, (tensor(4096, 8192),), "TritonUserTiledReductionHeuristic"),
        (add, (tensor(4096, 8192),) * 2, "TritonPointwiseHeuristic"),
        (matmul_layer_norm, (tensor(4096, 512), tensor(512, 512), tensor(512), tensor(512)), "TritonMatmulReductionEpilogueHeuristic"),
        (matmul_rms_norm_tiled, (tensor(4096, 512), tensor(512, 512)), "TritonMatmulTiledReductionEpilogueHeuristic"),
        (split_k, (tensor(256, 4096), tensor(4096, 256)), "TritonMatmulHeuristic"),
        (scan, (tensor(64, 64),), "TritonFallbackHeuristic"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_seeds_are_ranked_and_every_heuristic_is_accounted_for(kernel: Any, args: Any, first: str) -> None:
    facts = facts_of(kernel, *args)
    report = make_seeds(facts, H100, HEURISTICS, legal(facts, H100))
    assert report.seeds[0].heuristic == first
    assert 1 <= len(report.seeds) <= MAX_SEEDS
    assert len({seed.config for seed in report.seeds}) == len(report.seeds)
    given = {seed.heuristic for seed in report.seeds}
    declined = [name for name, _ in report.declined]
    assert not given & set(declined) and len(set(declined)) == len(declined)
    assert given | set(declined) == {h.name for h in HEURISTICS}
    assert all(reason for _, reason in report.declined) and all(seed.reason for seed in report.seeds)


def test_refused_proposals_give_their_reasons() -> None:
    facts = facts_of(softmax, tensor(64, 64))
    report = make_seeds(facts, H100, HEURISTICS, lambda proposal: "131072 bytes are needed, 65536 are there")
    assert report.seeds == ()
    assert dict(report.declined)["TritonFallbackHeuristic"] == "131072 bytes are needed, 65536 are there"


def test_equal_configs_are_one_seed_of_the_first_heuristic() -> None:
    facts = facts_of(softmax, tensor(64, 64))
    one = (Config(num_warps=4), estimate(facts, H100, {}, 4, 1))
    report = make_seeds(facts, H100, HEURISTICS, lambda proposal: one)
    assert [seed.heuristic for seed in report.seeds] == ["TritonReductionHeuristic"]
    assert dict(report.declined)["TritonFallbackHeuristic"] == "same config as a seed of TritonReductionHeuristic"


def test_unknown_backend_has_no_seeds() -> None:
    facts = facts_of(softmax, tensor(64, 64))
    assert make_seeds(facts, H100, (), legal(facts, H100)).seeds == ()


def test_seeds_do_not_depend_on_the_kernels_name() -> None:
    source = inspect.getsource(softmax).replace("def softmax", "def something_else")
    linecache.cache["<renamed softmax>"] = (len(source), None, source.splitlines(keepends=True), "<renamed softmax>")
    namespace = dict(softmax.__globals__)
    exec(compile(source, "<renamed softmax>", "exec"), namespace)
    renamed = facts_of(namespace["something_else"], tensor(4096, 8192))
    assert renamed == facts_of(softmax, tensor(4096, 8192))
