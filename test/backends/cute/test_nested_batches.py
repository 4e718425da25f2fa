"""Batches of several dimensions: more axes of the grid, loops around it, and quotients and remainders of an index."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from backends.cute import products
from backends.cute.products import BF16, BOUNDS

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.codegen.module import build
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.records import Batch, Choice, GemmProblem
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.resources.predict import timing
from helion.backends.cute.resources.shape import shape_of
from helion.backends.cute.shapes import MATMUL
from helion.backends.cute.toolchain.offline import compile_text
from helion.hardware import target as target_of

B, H, T, K, N = 2, 6, 100, 72, 40


@helion.kernel(backend="cute")
def by_tiles(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A grid of four dimensions, and a matrix of several heads."""
    b, h, t, k = x.size()
    groups, _, n = w.size()
    shared = h // groups
    out = torch.empty([b, h, t, n], dtype=x.dtype, device=x.device)
    for tile_b, tile_h, tile_t, tile_n in hl.tile([b, h, t, n], block_size=[1, 1, None, None]):
        acc = hl.zeros([tile_t, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            left = x[tile_b.begin, tile_h.begin, tile_t, tile_k]
            acc = hl.dot(left, w[tile_h.begin // shared, tile_k, tile_n], acc=acc)
        out[tile_b.begin, tile_h.begin, tile_t, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute")
def by_grid(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    b, h, t, k = x.size()
    groups, _, n = w.size()
    out = torch.empty([b, h, t, n], dtype=x.dtype, device=x.device)
    for i, j in hl.grid([b, h]):
        for tile_t, tile_n in hl.tile([t, n]):
            acc = hl.zeros([tile_t, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[i, j, tile_t, tile_k], w[j // (h // groups), tile_k, tile_n], acc=acc)
            out[i, j, tile_t, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute")
def by_loops(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    b, h, t, k = x.size()
    groups, _, n = w.size()
    out = torch.empty([b, h, t, n], dtype=x.dtype, device=x.device)
    for i in hl.grid(b):
        for j in hl.grid(h):
            for tile_t, tile_n in hl.tile([t, n]):
                acc = hl.zeros([tile_t, tile_n], dtype=torch.float32)
                for tile_k in hl.tile(k):
                    acc = hl.dot(x[i, j, tile_t, tile_k], w[j // (h // groups), tile_k, tile_n], acc=acc)
                out[i, j, tile_t, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute")
def by_remainders(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """One index for all heads of all batches, and whole rows."""
    b, h, t, k = x.size()
    groups, n = w.size(0), hl.specialize(w.size(2))
    out = torch.empty([b, h, t, n], dtype=x.dtype, device=x.device)
    for tile_i, tile_t in hl.tile([b * h, t], block_size=[1, None]):
        i, j = tile_i.begin // h, tile_i.begin % h
        acc = hl.zeros([tile_t, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[i, j, tile_t, tile_k], w[j // (h // groups), tile_k, :], acc=acc)
        out[i, j, tile_t, :] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute")
def fused(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor, row: torch.Tensor, residual: torch.Tensor
) -> torch.Tensor:
    """A bias of each head, a scale of each batch, a number of each row, and a residual."""
    b, h, t, k = x.size()
    n = w.size(2)
    out = torch.empty([b, t, h, n], dtype=x.dtype, device=x.device)
    for i, j in hl.grid([b, h]):
        for tile_t, tile_n in hl.tile([t, n]):
            acc = hl.zeros([tile_t, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[i, j, tile_t, tile_k], w[j, tile_k, tile_n], acc=acc)
            value = torch.relu((acc + bias[j, tile_n][None, :]) * scale[i] * row[i, j, tile_t][:, None])
            out[i, tile_t, j, tile_n] = (value + residual[i, tile_t, j, tile_n]).to(x.dtype)
    return out


SPELLINGS = {each.name: each for each in (by_tiles, by_grid, by_loops, by_remainders)}


def tensor(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> torch.Tensor:
    return products.values(*shape, dtype=dtype, device="cpu", seed=seed)


def check(actual: torch.Tensor, expected: torch.Tensor) -> None:
    rows = expected.size(-1)
    assert products.row_error(actual.reshape(-1, rows), expected.reshape(-1, rows)) < BOUNDS[BF16]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(("groups", "sizes"), [(1, [12]), (3, [2, 3, 2]), (6, [6, 2])])
def test_a_matrix_for_each_head_or_several(spelling: str, groups: int, sizes: list[int]) -> None:
    rows = 128 if groups == 1 else T  # shorter sequences with one matrix are joined
    kernel, x, w = SPELLINGS[spelling], tensor(B, H, rows, K), tensor(groups, K, N, seed=1)
    wanted = x.double() @ w.repeat_interleave(H // groups, 0).double()
    check(kernel(x, w), wanted)
    batch = kernel.bind((x, w), target="sm_90").plan().gemm.problem.batch
    assert [level.size for level in batch.levels] == sizes
    assert [level.b for level in batch.levels] == {1: [0], 3: [0, K * N, 0], 6: [K * N, 0]}[groups]
    heads_last = x.transpose(1, 2).contiguous().transpose(1, 2)
    check(kernel(heads_last, w), wanted)


def test_an_epilogue_reads_what_is_of_each_dimension() -> None:
    x, w, bias, residual = tensor(B, H, T, K), tensor(H, K, N, seed=1), tensor(H, N, seed=2), tensor(B, T, H, N, seed=3)
    scale, row = torch.rand(B) + 0.5, torch.rand(B, H, T) + 0.5
    value = (x.double() @ w.double() + bias.double()[:, None]) * scale.double()[:, None, None, None]
    wanted = torch.relu(value * row.double()[..., None]).transpose(1, 2) + residual.double()
    check(fused(x, w, bias, scale, row, residual), wanted)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_seeds_know_all_dimensions(spelling: str) -> None:
    x, w = tensor(B, H, T, K), tensor(3, K, N)
    for target in ("sm_90", "sm_100"):
        bound = SPELLINGS[spelling].bind((x, w), target=target)
        reason = MATMUL.on_request(bound._analysis.program, bound.facts, bound.env.target)
        asked = "matmuls in a batch of several dimensions run on request, with backend='cute'"
        assert reason == ("" if target == "sm_90" else asked)
        assert bound.seeds and bound.plan().gemm.tiles == B * H * bound.plan().gemm.work[0] * bound.plan().gemm.work[1]


# Plans -------------------------------------------------------------------------------------------------------------------

NESTED = Batch(size=4, a=0, b=K * N, d=N, outer=Batch(size=3, a=T * K, b=0, d=4 * T * N))
PROBLEM = GemmProblem(
    m=T, n=N, k=K, operand_dtype="bfloat16", output_dtype="bfloat16", a_pitch=K, b_pitch=N, d_pitch=4 * N, b_major="mn",
    batch=NESTED,
)  # fmt: skip


def test_each_tensor_has_the_dimensions_that_move_it() -> None:
    text = build(plan_gemm(PROBLEM, Choice(tile=(64, 64, 64)), target_of("sm_90")))
    assert "batch_1 = batch // 4" in text and "batch = batch % 4" in text
    assert "from_a[None, tile_m, k_tile, batch_1]" in text and "from_b[None, tile_n, k_tile, batch]" in text
    assert "tile_n * 2 + subtile, batch, batch_1]" in text
    assert "(cutlass.Int32(100), 72, 3), stride=(72, 1, 7200)" in text


@pytest.mark.prove
@pytest.mark.parametrize(
    ("target", "choice"), [("sm_90", Choice(tile=(64, 64, 64))), ("sm_100", Choice(tile=(128, 64, 64), cluster=(1, 1)))]
)
def test_nested_batches_compile(target: str, choice: Choice) -> None:
    outer = dataclasses.replace(NESTED.outer, outer=Batch(size=2, a=3 * T * K, b=4 * K * N, d=12 * T * N))
    plan = plan_gemm(
        dataclasses.replace(PROBLEM, batch=dataclasses.replace(NESTED, outer=outer)), choice, target_of(target)
    )
    assert compile_text(build(plan), plan).cubin


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (dataclasses.replace(NESTED, d=8), "matmuls of the batch overlap"),
        (dataclasses.replace(NESTED, outer=Batch(size=3, a=4, b=0, d=4 * T * N)), "TMA needs a multiple of 16"),
        (dataclasses.replace(NESTED, outer=dataclasses.replace(NESTED.outer, size=1)), "a batch of 1 matmuls"),
    ],
)
def test_what_tma_or_the_outputs_do_not_allow_is_refused(batch: Batch, reason: str) -> None:
    with pytest.raises(Refusal, match=reason):
        plan_gemm(dataclasses.replace(PROBLEM, batch=batch), Choice(tile=(64, 64, 64)), target_of("sm_90"))


@helion.kernel(backend="cute")
def uneven(x: torch.Tensor, w: torch.Tensor, parts: int) -> torch.Tensor:
    b, t, k = x.size()
    n, parts = w.size(2), hl.specialize(parts)
    out = torch.empty([b, t, n], dtype=x.dtype, device=x.device)
    for i in hl.grid(b):
        for tile_t, tile_n in hl.tile([t, n]):
            acc = hl.zeros([tile_t, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[i, tile_t, tile_k], w[i // parts, tile_k, tile_n], acc=acc)
            out[i, tile_t, tile_n] = acc.to(x.dtype)
    return out


def test_a_division_that_leaves_a_remainder_is_refused() -> None:
    with pytest.raises(exc.CuteUnsupported, match="the index of i, of 5, is divided by 2, which leaves a remainder"):
        uneven.bind((tensor(5, T, K), tensor(3, K, N), 2), target="sm_90")


def test_sizes_that_only_the_launch_knows_are_refused() -> None:
    dynamic = helion.kernel(fused.fn, backend="cute", static_shapes=False)
    args = tensor(B, H, T, K), tensor(H, K, N), tensor(H, N), torch.rand(B), torch.rand(B, H, T), tensor(B, T, H, N)
    with pytest.raises(exc.CuteUnsupported, match="known when the kernel is compiled"):
        dynamic.bind(args, target="sm_90")


@helion.kernel(backend="cute")
def scores(q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    b, s, h, d = q.size()
    t = k.size(1)
    d = hl.specialize(d)
    out = torch.empty([b, h, s, t], dtype=q.dtype, device=q.device)
    for i, j, rows, columns in hl.tile([b, h, s, t], block_size=[1, 1, None, None]):
        found = hl.dot(q[i.begin, rows, j.begin, :], k[i.begin, columns, j.begin, :].T)
        out[i.begin, j.begin, rows, columns] = (found * 0.125 + bias[i.begin, rows, columns]).to(q.dtype)
    return out


def test_a_matrix_that_matmuls_share_is_read_once_and_loaded_ahead() -> None:
    b, s, h = 8, 1024, 16
    shapes = ((b, s, h, 64), (b, s, h, 64), (b, s, s))
    bound = scores.bind(tuple(torch.empty(each, dtype=BF16, device="meta") for each in shapes), target="h200")
    shape, gemm = shape_of(bound.facts), bound.plan().gemm
    assert not isinstance(shape, str)
    moved = BF16.itemsize * (2 * b * s * h * 64 + (h + 1) * b * s * s)
    assert shape.bytes_moved == moved
    assert gemm.residual_stages == 8
    few = dataclasses.replace(gemm, residual_stages=2)
    slow, fast = (timing(each, shape, bound.env.target).total_us for each in (few, gemm))
    assert slow > 1.3 * fast
