"""Attention of one new token per sequence to cached keys and values, which may be in pages, or latent.

A program takes the heads that share keys, and a part of the sequence: with few sequences, parts keep all SMs busy. A
second kernel combines the parts. Lengths are known on the device only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

import helion
import helion.language as hl

from .._operators import INDICES, Operator, check, check_tensor
from .attention import MASKED, is_general

#: Programs that a call should have: some for each SM of a large GPU.
PROGRAMS = 512
#: Programs below which those of a kernel without parts leave SMs without work.
FEW_PROGRAMS = 128
#: The fewest keys for which a sequence is split once more.
LEAST_KEYS = 256
#: Heads of a latent cache that one program takes, and the programs of a call, by which the number of parts is chosen.
LATENT_HEADS = 64
LATENT_PROGRAMS = 128
#: The widest slice of latent values whose accumulators fit into registers.
LATENT_WIDTH = 256
#: Pages of a multiple of so many keys hold whole blocks of keys, as backends with TMA need them.
PAGE_MULTIPLE = 16
#: A part of a sequence has a multiple of so many keys.
LATENT_KEYS = 64


@helion.kernel(static_shapes=False)
def decode_kernel(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: torch.Tensor,
    few: hl.constexpr,
    scale: float | None,
) -> torch.Tensor:
    """Compute the attention of `q[B, G, R, D]` to the first `lengths[b]` rows of `k[B, N, G, D]` and `v[B, N, G, E]`.

    If programs are `few`, their number is part of the kernel, so that a backend can divide the keys among more.
    """
    batch, groups = q.size(0), q.size(1)
    if few:
        batch, groups = hl.specialize(batch), hl.specialize(groups)
    shared, depth, width = hl.specialize(q.size(2)), hl.specialize(q.size(3)), hl.specialize(v.size(3))
    factor = (depth**-0.5 if scale is None else scale) * math.log2(math.e)
    out = torch.empty([batch, groups, shared, width], dtype=q.dtype, device=q.device)
    for tile_b, tile_g, tile_r in hl.tile([batch, groups, shared], block_size=[1, 1, None]):
        sequence, group = tile_b.begin, tile_g.begin
        query = q[sequence, group, tile_r, :]
        highest = hl.full([tile_r], MASKED, dtype=torch.float32)
        total = hl.zeros([tile_r], dtype=torch.float32)
        acc = hl.zeros([tile_r, width], dtype=torch.float32)
        for tile in hl.tile(lengths[sequence]):
            scores = hl.dot(query, k[sequence, tile, group, :].T) * factor
            raised = torch.maximum(highest, torch.amax(scores, dim=-1))
            weights = torch.exp2(scores - raised[:, None])
            shrink = torch.exp2(highest - raised)
            total = total * shrink + torch.sum(weights, dim=-1)
            acc = hl.dot(weights.to(v.dtype), v[sequence, tile, group, :], acc=acc * shrink[:, None])
            highest = raised
        out[sequence, group, tile_r, :] = acc / torch.where(total > 0, total, 1.0)[:, None]
    return out


@helion.kernel(static_shapes=False)
def paged_kernel(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    page: hl.constexpr,
    few: hl.constexpr,
    scale: float,
) -> torch.Tensor:
    """Compute the same with rows of `k[P * page, G, D]` and `v[P * page, G, E]`, in the pages that `table` names."""
    batch, groups = q.size(0), q.size(1)
    if few:
        batch, groups = hl.specialize(batch), hl.specialize(groups)
    shared, width = hl.specialize(q.size(2)), hl.specialize(v.size(2))
    out = torch.empty([batch, groups, shared, width], dtype=q.dtype, device=q.device)
    for tile_b, tile_g, tile_r in hl.tile([batch, groups, shared], block_size=[1, 1, None]):
        sequence, group = tile_b.begin, tile_g.begin
        query = q[sequence, group, tile_r, :]
        highest = hl.full([tile_r], MASKED, dtype=torch.float32)
        total = hl.zeros([tile_r], dtype=torch.float32)
        acc = hl.zeros([tile_r, width], dtype=torch.float32)
        for tile in hl.tile(lengths[sequence]):
            row = table[sequence, tile.index // page] * page + tile.index % page
            scores = hl.dot(query, k[row, group, :].T) * (scale * math.log2(math.e))
            raised = torch.maximum(highest, torch.amax(scores, dim=-1))
            weights = torch.exp2(scores - raised[:, None])
            shrink = torch.exp2(highest - raised)
            total = total * shrink + torch.sum(weights, dim=-1)
            acc = hl.dot(weights.to(v.dtype), v[row, group, :], acc=acc * shrink[:, None])
            highest = raised
        out[sequence, group, tile_r, :] = acc / torch.where(total > 0, total, 1.0)[:, None]
    return out


@helion.kernel(static_shapes=False)
def decode_parts_kernel(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    page: int,
    parts: hl.constexpr,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the attention of `q[B, G, R, D]` to the rows of `k[P * page, G, D]` and `v[P * page, G, E]` that `table` names.

    Returns the result of each part of a sequence, and the log-sum-exp of its scores in base 2.
    """
    batch, groups = q.size(0), q.size(1)
    shared, width = hl.specialize(q.size(2)), hl.specialize(v.size(2))
    out = torch.empty([batch, groups, parts, shared, width], dtype=torch.float32, device=q.device)
    normalizers = torch.empty([batch, groups, parts, shared], dtype=torch.float32, device=q.device)
    for tile_b, tile_g, tile_p in hl.tile([batch, groups, parts], block_size=[1, 1, 1]):
        sequence, group, part = tile_b.begin, tile_g.begin, tile_p.begin
        query = q[sequence, group, :, :]
        length = lengths[sequence]
        step = (length + parts - 1) // parts
        highest = hl.full([shared], MASKED, dtype=torch.float32)
        total = hl.zeros([shared], dtype=torch.float32)
        acc = hl.zeros([shared, width], dtype=torch.float32)
        for tile in hl.tile(torch.minimum(part * step, length), torch.minimum(part * step + step, length)):
            row = table[sequence, tile.index // page] * page + tile.index % page
            scores = hl.dot(query, k[row, group, :].T) * (scale * math.log2(math.e))
            raised = torch.maximum(highest, torch.amax(scores, dim=-1))
            weights = torch.exp2(scores - raised[:, None])
            shrink = torch.exp2(highest - raised)
            total = total * shrink + torch.sum(weights, dim=-1)
            acc = hl.dot(weights.to(v.dtype), v[row, group, :], acc=acc * shrink[:, None])
            highest = raised
        out[sequence, group, part, :, :] = acc / torch.where(total > 0, total, 1.0)[:, None]
        normalizers[sequence, group, part, :] = highest + torch.log2(total)
    return out, normalizers


@helion.kernel(static_shapes=False)
def latent_kernel(
    q: torch.Tensor,
    cache: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    width: hl.constexpr,
    page: hl.constexpr,
    few: hl.constexpr,
    scale: float,
) -> torch.Tensor:
    """Compute the attention of `q[B, H, D]` to rows of `cache[P * page, D]`, whose first `width` dimensions are the values."""
    batch, heads, _ = q.size(0), q.size(1), hl.specialize(q.size(2))
    if few:
        batch, heads = hl.specialize(batch), hl.specialize(heads)
    out = torch.empty([batch, heads, width], dtype=q.dtype, device=q.device)
    for tile_b, tile_h in hl.tile([batch, heads], block_size=[1, None]):
        sequence = tile_b.begin
        query = q[sequence, tile_h, :]
        highest = hl.full([tile_h], MASKED, dtype=torch.float32)
        total = hl.zeros([tile_h], dtype=torch.float32)
        acc = hl.zeros([tile_h, width], dtype=torch.float32)
        for tile in hl.tile(lengths[sequence]):
            row = table[sequence, tile.index // page] * page + tile.index % page
            scores = hl.dot(query, cache[row, :].T) * (scale * math.log2(math.e))
            raised = torch.maximum(highest, torch.amax(scores, dim=-1))
            weights = torch.exp2(scores - raised[:, None])
            shrink = torch.exp2(highest - raised)
            total = total * shrink + torch.sum(weights, dim=-1)
            acc = hl.dot(weights.to(cache.dtype), cache[row, :width], acc=acc * shrink[:, None])
            highest = raised
        out[sequence, tile_h, :] = acc / torch.where(total > 0, total, 1.0)[:, None]
    return out


@helion.kernel(static_shapes=False)
def latent_parts_kernel(
    q: torch.Tensor,
    rotary_q: torch.Tensor,
    latent: torch.Tensor,
    rotary: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    page: hl.constexpr,
    parts: hl.constexpr,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the same with rows of `latent[P * page, S, L]` that are keys and values of all heads of `q[B, H, S, L]`.

    Scores have a second term, of `rotary_q[B, H, R]` and `rotary[P * page, R]`. A program computes one of the S slices
    of its heads' values, for which it needs whole scores: accumulators of all slices would not fit into registers.
    """
    batch, heads = q.size(0), q.size(1)
    slices, width, _ = hl.specialize((q.size(2), q.size(3), rotary_q.size(2)))
    out = torch.empty([batch, parts, heads, slices, width], dtype=torch.float32, device=q.device)
    normalizers = torch.empty([batch, parts, heads, slices], dtype=torch.float32, device=q.device)
    for tile_b, tile_p, tile_h, tile_s in hl.tile([batch, parts, heads, slices], block_size=[1, 1, None, 1]):
        sequence, part, own = tile_b.begin, tile_p.begin, tile_s.begin
        queries = [q[sequence, tile_h, (own + i) % slices, :] for i in range(slices)]
        rotary_query = rotary_q[sequence, tile_h, :]
        length = lengths[sequence].to(torch.int32)
        step = (length + parts * LATENT_KEYS - 1) // (parts * LATENT_KEYS) * LATENT_KEYS
        highest = hl.full([tile_h], MASKED, dtype=torch.float32)
        total = hl.zeros([tile_h], dtype=torch.float32)
        acc = hl.zeros([tile_h, width], dtype=torch.float32)
        for tile in hl.tile(torch.minimum(part * step, length), torch.minimum(part * step + step, length)):
            row = table[sequence, tile.index // page] * page + tile.index % page
            value = latent[row, own, :]
            scores = hl.dot(rotary_query, rotary[row, :].T, acc=hl.dot(queries[0], value.T))
            for i in hl.static_range(1, slices):
                scores = hl.dot(queries[i], latent[row, (own + i) % slices, :].T, acc=scores)
            scores = scores * (scale * math.log2(math.e))
            raised = torch.maximum(highest, torch.amax(scores, dim=-1))
            weights = torch.exp2(scores - raised[:, None])
            shrink = torch.exp2(highest - raised)
            total = total * shrink + torch.sum(weights, dim=-1)
            acc = hl.dot(weights.to(value.dtype), value, acc=acc * shrink[:, None])
            highest = raised
        out[sequence, part, tile_h, own, :] = acc / torch.where(total > 0, total, 1.0)[:, None]
        normalizers[sequence, part, tile_h, own] = highest + torch.log2(total)
    return out, normalizers


@helion.kernel(static_shapes=False)
def decode_combine_kernel(parts: torch.Tensor, normalizers: torch.Tensor, dtype: hl.constexpr) -> torch.Tensor:
    """Combine the results `parts[M, P, R, E]` of the parts; a sequence without keys gives 0."""
    m = parts.size(0)
    shared, width = hl.specialize(parts.size(2)), hl.specialize(parts.size(3))
    out = torch.empty([m, shared, width], dtype=dtype, device=parts.device)
    for tile, tile_r in hl.tile([m, shared], block_size=[1, 1]):
        normalizer = normalizers[tile.begin, :, tile_r.begin]
        highest = torch.clamp(torch.amax(normalizer, dim=0), min=MASKED)
        weights = torch.exp2(normalizer - highest)
        total = torch.sum(weights, dim=0)
        result = torch.sum(parts[tile.begin, :, tile_r.begin, :] * weights[:, None], dim=0)
        out[tile.begin, tile_r.begin, :] = result / torch.where(total > 0, total, 1.0)
    return out


def _parts(programs: int, table: torch.Tensor, page: int, wanted: int = PROGRAMS) -> int:
    """Return the number of parts of a sequence, if one part each has `programs` programs."""
    most = min(wanted // max(programs, 1), table.size(1) * page // LEAST_KEYS)
    return 1 << max(most, 1).bit_length() - 1  # a power of two, so that few kernels are compiled


def _run(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor, *options: Any
) -> torch.Tensor:
    page, scale = options
    given = q, k, v, table, lengths, page, q.size(0) * q.size(1) < FEW_PROGRAMS, scale
    if page % PAGE_MULTIPLE == 0 and not is_general(paged_kernel, given):
        found: torch.Tensor = paged_kernel(*given)
        return found
    return _run_in_parts(q, k, v, table, lengths, page, scale)


def _run_in_parts(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor, *options: Any
) -> torch.Tensor:
    page, scale = options
    batch, groups, shared, _ = q.shape
    parts = _parts(batch * groups, table, page)
    out, normalizers = decode_parts_kernel(q, k, v, table, lengths, page, parts, scale)
    found = decode_combine_kernel(out.flatten(0, 1), normalizers.flatten(0, 1), q.dtype)
    return found.view(batch, groups, shared, v.size(2))


def _run_contiguous(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, scale: float | None
) -> torch.Tensor:
    few = q.size(0) * q.size(1) < FEW_PROGRAMS
    given = q, k, v, lengths, few, scale
    if few and is_general(decode_kernel, given):
        sequences = torch.arange(q.size(0), dtype=torch.int32, device=q.device)
        factor = q.size(3) ** -0.5 if scale is None else scale
        return _run_in_parts(q, k.flatten(0, 1), v.flatten(0, 1), sequences[:, None], lengths, k.size(1), factor)
    found: torch.Tensor = decode_kernel(*given)
    return found


def _run_latent(
    q: torch.Tensor, cache: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor, *options: Any
) -> torch.Tensor:
    width, page, scale = options
    few = q.size(0) * -(-q.size(1) // LATENT_HEADS) < FEW_PROGRAMS
    given = q, cache, table, lengths, width, page, few, scale
    if page % PAGE_MULTIPLE == 0 and not is_general(latent_kernel, given):
        whole: torch.Tensor = latent_kernel(*given)
        return whole
    slices = 1
    while width // slices > LATENT_WIDTH and width % (2 * slices) == 0:
        slices *= 2
    batch, heads, _ = q.shape
    operands = q[..., :width].unflatten(-1, (slices, -1)), q[..., width:]
    rows = cache[:, :width].unflatten(-1, (slices, -1)), cache[:, width:]
    parts = _parts(batch * slices * -(-heads // LATENT_HEADS), table, page, LATENT_PROGRAMS)
    out, normalizers = latent_parts_kernel(*operands, *rows, table, lengths, page, parts, scale)
    found: torch.Tensor = decode_combine_kernel(out.flatten(2, 3), normalizers.flatten(2, 3), q.dtype)
    return found.view(batch, heads, width)


_decode = Operator(
    "decode(Tensor q, Tensor k, Tensor v, Tensor table, Tensor lengths, SymInt page, float scale) -> Tensor",
    paged_kernel,
    decode_parts_kernel,
    decode_combine_kernel,
    run=_run,
    fake=lambda q, k, v, *others: q.new_empty(*q.shape[:3], v.size(2)),
)
_decode.refuse_gradients()

_contiguous = Operator(
    "contiguous_decode(Tensor q, Tensor k, Tensor v, Tensor lengths, float? scale) -> Tensor",
    decode_kernel,
    decode_parts_kernel,
    decode_combine_kernel,
    run=_run_contiguous,
    fake=lambda q, k, v, *others: q.new_empty(*q.shape[:3], v.size(3)),
)
_contiguous.refuse_gradients()

_latent = Operator(
    "latent_decode(Tensor q, Tensor cache, Tensor table, Tensor lengths, int width, SymInt page, float scale) -> Tensor",
    latent_kernel,
    latent_parts_kernel,
    decode_combine_kernel,
    run=_run_latent,
    fake=lambda q, cache, table, lengths, width, page, scale: q.new_empty(*q.shape[:2], width),
)
_latent.refuse_gradients()


def paged_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scale: float | None = None,
) -> torch.Tensor:
    """Compute the attention of one query per sequence to keys and values in pages. There is no gradient.

    fp32 tensors are multiplied in TF32 on a GPU.

    Args:
        q: `[B, H, D]`; float32, bfloat16 or float16.
        k_cache: contiguous `[P, page, G, D]` of the same dtype. G divides H: consecutive heads of `q` share a head.
        v_cache: contiguous `[P, page, G, E]` of the same dtype.
        table: `[B, pages]`, the pages of each sequence in order, from 0 to P - 1; int32 or int64. Pages that a sequence
            does not reach are not read.
        lengths: `[B]`, keys per sequence, from 0 to `pages * page`; int32 or int64.
        scale: factor of the scores; None means `1 / sqrt(D)`.

    Returns:
        `[B, H, E]` in the dtype of `q`; 0 for a sequence without keys.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape, device or value.
    """
    op = "paged_decode"
    check_tensor(op, "q", q, dims=3)
    grouped = _grouped(op, q, {"k_cache": k_cache, "v_cache": v_cache})
    page, (batch, heads, depth) = k_cache.size(1), q.shape
    check(op, "k_cache", page > 0, "of pages with at least one key", f"shape {list(k_cache.shape)}")
    check_tensor(op, "table", table, dtypes=INDICES, dims=2, like=q)
    check_tensor(op, "table", table, dtypes=INDICES, shape=(batch, table.size(1)))
    check_tensor(op, "lengths", lengths, dtypes=INDICES, shape=(batch,), like=q)
    factor = 1 / math.sqrt(depth) if scale is None else float(scale)
    flat = k_cache.flatten(0, 1), v_cache.flatten(0, 1)
    out: torch.Tensor = _decode(grouped, *flat, table, lengths, page, factor)
    return out.view(batch, heads, v_cache.size(3))


def decode(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, *, scale: float | None = None
) -> torch.Tensor:
    """Compute the attention of one query per sequence to cached keys and values. There is no gradient.

    fp32 tensors are multiplied in TF32 on a GPU.

    Args:
        q: `[B, H, D]`; float32, bfloat16 or float16.
        k: contiguous `[B, N, G, D]` of the same dtype, N at least 1. G divides H: consecutive heads of `q` share a head.
        v: contiguous `[B, N, G, E]` of the same dtype.
        lengths: `[B]`, keys per sequence, from 0 to N; int32 or int64.
        scale: factor of the scores; None means `1 / sqrt(D)`.

    Returns:
        `[B, H, E]` in the dtype of `q`; 0 for a sequence without keys.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape, device or value.
    """
    op = "decode"
    check_tensor(op, "q", q, dims=3)
    check_tensor(op, "k", k, dtypes=(q.dtype,), dims=4, like=q)
    check_tensor(op, "k", k, dtypes=(q.dtype,), shape=(q.size(0), *k.shape[1:3], q.size(2)))
    grouped = _grouped(op, q, {"k": k, "v": v})
    check(op, "k", k.size(1) > 0, "of at least one key", f"shape {list(k.shape)}")
    check_tensor(op, "lengths", lengths, dtypes=INDICES, shape=(q.size(0),), like=q)
    factor = None if scale is None else float(scale)
    out: torch.Tensor = _contiguous(grouped, k, v, lengths, factor)
    return out.view(*q.shape[:2], v.size(3))


def _grouped(op: str, q: torch.Tensor, caches: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Check contiguous caches of keys and values, whose last dimensions are groups and those of a head, by their names.

    Return the queries as `[B, G, R, D]`.
    """
    batch, heads, depth = q.shape
    (key, k), (value, v) = caches.items()
    check_tensor(op, key, k, dtypes=(q.dtype,), dims=4, like=q)
    check_tensor(op, key, k, dtypes=(q.dtype,), shape=(*k.shape[:3], depth))
    check_tensor(op, value, v, dtypes=(q.dtype,), dims=4, like=q)
    check_tensor(op, value, v, dtypes=(q.dtype,), shape=(*k.shape[:3], v.size(3)))
    for name, cache in caches.items():
        check(op, name, cache.is_contiguous(), "contiguous", f"strides {cache.stride()}")
    groups = k.size(2)
    divides = groups > 0 and heads > 0 and heads % groups == 0
    check(op, key, divides, f"of a number of heads that divides {heads}", f"{groups} heads")
    return q.reshape(batch, groups, heads // groups, depth)


def latent_decode(
    q: torch.Tensor,
    cache: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    *,
    width: int,
    scale: float,
) -> torch.Tensor:
    """Compute the attention of one query per sequence to a cache of latent rows in pages. There is no gradient.

    All heads share a row, as in multi-head latent attention with absorbed projections. A row is the key, and its first
    `width` dimensions are the value. fp32 tensors are multiplied in TF32 on a GPU.

    Args:
        q: `[B, H, D]`; float32, bfloat16 or float16.
        cache: contiguous `[P, page, D]` of the same dtype.
        table: `[B, pages]`, the pages of each sequence in order, from 0 to P - 1; int32 or int64. Pages that a sequence
            does not reach are not read.
        lengths: `[B]`, keys per sequence, from 0 to `pages * page`; int32 or int64.
        width: number of dimensions of a value, from 1 to D - 1; 512 of 576 in models in use.
        scale: factor of the scores. Models take it from the dimensions of a head before the absorption.

    Returns:
        `[B, H, width]` in the dtype of `q`; 0 for a sequence without keys.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape, device or value.
    """
    op = "latent_decode"
    check_tensor(op, "q", q, dims=3)
    batch, heads, depth = q.shape
    check(op, "q", heads > 0, "of at least one head", f"shape {list(q.shape)}")
    check_tensor(op, "cache", cache, dtypes=(q.dtype,), dims=3, like=q)
    page = cache.size(1)
    check_tensor(op, "cache", cache, dtypes=(q.dtype,), shape=(cache.size(0), page, depth))
    check(op, "cache", cache.is_contiguous(), "contiguous", f"strides {cache.stride()}")
    check(op, "cache", page > 0, "of pages with at least one key", f"shape {list(cache.shape)}")
    check_tensor(op, "table", table, dtypes=INDICES, dims=2, like=q)
    check_tensor(op, "table", table, dtypes=INDICES, shape=(batch, table.size(1)))
    check_tensor(op, "lengths", lengths, dtypes=INDICES, shape=(batch,), like=q)
    check(op, "width", 0 < width < depth, f"from 1 to {depth - 1}", width)
    flat = q, cache.flatten(0, 1)
    out: torch.Tensor = _latent(*flat, table, lengths, width, page, float(scale))
    return out
