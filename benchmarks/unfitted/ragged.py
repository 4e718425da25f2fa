"""Gathers, scatters, sequences of several lengths, graphs and distances."""

from __future__ import annotations

import itertools
import math

import torch

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, high, normal, offsets_of

CELLS = Cells()


@helion.kernel
def take_along_rows(x: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """`torch.gather(x, 1, columns)`."""
    m, n = x.size()
    k = columns.size(1)
    flat = x.view(-1)
    out = torch.empty([m, k], dtype=x.dtype, device=x.device)
    for tile_m, tile_k in hl.tile([m, k]):
        out[tile_m, tile_k] = flat[tile_m.index[:, None] * n + columns[tile_m, tile_k]]
    return out


def make_take_along_rows(device: str, small: bool) -> Arguments:
    m, n, k = (19, 101, 33) if small else (8192, 4096, 1024)
    return normal(device, m, n, dtype=BF16), torch.randint(0, n, [m, k], device=device)


CELLS.add(take_along_rows, make_take_along_rows, lambda x, c: torch.gather(x, 1, c))


@helion.kernel
def unpack_sequences(tokens: torch.Tensor, offsets: torch.Tensor, longest: int) -> torch.Tensor:
    """Packed rows `[T, D]` to `[B, longest, D]`, zero past the end of each sequence."""
    b = offsets.size(0) - 1
    d = tokens.size(1)
    out = torch.empty([b, longest, d], dtype=tokens.dtype, device=tokens.device)
    for tile_b, tile_l, tile_d in hl.tile([b, longest, d], block_size=[1, None, None]):
        start = offsets[tile_b.begin]
        end = offsets[tile_b.begin + 1]
        row = start + tile_l.index
        v = hl.load(tokens, [row, tile_d], extra_mask=(row < end)[:, None])
        out[tile_b, tile_l, tile_d] = v[None, :, :]
    return out


def unpack_sequences_torch(tokens: torch.Tensor, offsets: torch.Tensor, longest: int) -> torch.Tensor:
    row = offsets[:-1, None] + torch.arange(longest, device=tokens.device)
    inside = row < offsets[1:, None]
    return torch.where(inside[..., None], tokens[row.clamp(max=tokens.size(0) - 1)], 0)


def make_unpack_sequences(device: str, small: bool) -> Arguments:
    b, high, c = (5, 17, 33) if small else (64, 1024, 512)
    off = offsets_of(b, 1, high)
    return normal(device, int(off[-1]), c, dtype=BF16), off.to(device), high


CELLS.add(unpack_sequences, make_unpack_sequences, unpack_sequences_torch)


@helion.kernel
def calibration(
    confidence: torch.Tensor, correct: torch.Tensor, bins: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Count, sum of confidences and number of correct answers of each bin of confidence."""
    counts = torch.zeros([bins], dtype=torch.int32, device=confidence.device)
    sums = torch.zeros([bins], dtype=torch.float32, device=confidence.device)
    hits = torch.zeros([bins], dtype=torch.int32, device=confidence.device)
    for tile in hl.tile(confidence.size(0)):
        c = confidence[tile]
        at = torch.clamp((c * bins).to(torch.int32), max=bins - 1)
        hl.atomic_add(counts, [at], 1)
        hl.atomic_add(sums, [at], c)
        hl.atomic_add(hits, [at], correct[tile].to(torch.int32))
    return counts, sums, hits


def calibration_torch(
    confidence: torch.Tensor, correct: torch.Tensor, bins: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    at = (confidence * bins).to(torch.int64).clamp(max=bins - 1)
    counts = torch.zeros([bins], dtype=torch.int32, device=at.device).index_add(
        0, at, torch.ones_like(at, dtype=torch.int32)
    )
    sums = torch.zeros([bins], dtype=confidence.dtype, device=at.device).index_add(0, at, confidence)
    hits = torch.zeros([bins], dtype=torch.int32, device=at.device).index_add(0, at, correct.to(torch.int32))
    return counts, sums, hits


def make_calibration(device: str, small: bool) -> Arguments:
    n = 1001 if small else 2_000_001
    return (torch.rand([n], device=device) * 256).floor() / 256, torch.rand([n], device=device) > 0.4, 16


CELLS.add(calibration, make_calibration, calibration_torch)


@helion.kernel
def voxel_means(features: torch.Tensor, voxel: torch.Tensor, voxels: int) -> torch.Tensor:
    """Mean of the features of the points of each voxel."""
    n, c = features.size()
    sums = torch.zeros([voxels, c], dtype=torch.float32, device=features.device)
    counts = torch.zeros([voxels], dtype=torch.float32, device=features.device)
    out = torch.empty([voxels, c], dtype=features.dtype, device=features.device)
    for tile_n in hl.tile(n):
        at = voxel[tile_n]
        hl.atomic_add(counts, [at], 1.0)
        for tile_c in hl.tile(c):
            hl.atomic_add(sums, [at, tile_c], features[tile_n, tile_c].to(torch.float32))
    hl.barrier()
    for tile_v, tile_d in hl.tile([voxels, c]):
        out[tile_v, tile_d] = (sums[tile_v, tile_d] / torch.clamp(counts[tile_v], min=1.0)[:, None]).to(features.dtype)
    return out


def voxel_means_torch(features: torch.Tensor, voxel: torch.Tensor, voxels: int) -> torch.Tensor:
    hi = torch.promote_types(features.dtype, torch.float32)
    sums = torch.zeros([voxels, features.size(1)], dtype=hi, device=voxel.device).index_add(0, voxel, features.to(hi))
    counts = torch.zeros([voxels], dtype=hi, device=voxel.device).index_add(0, voxel, torch.ones_like(voxel, dtype=hi))
    return (sums / counts.clamp(min=1)[:, None]).to(features.dtype)


def make_voxel_means(device: str, small: bool) -> Arguments:
    n, c, v = (203, 13, 21) if small else (200_000, 64, 20_000)
    return normal(device, n, c, dtype=BF16), torch.randint(0, v, [n], device=device), v


CELLS.add(voxel_means, make_voxel_means, voxel_means_torch)


@helion.kernel
def jagged_attention_pool(values: torch.Tensor, scores: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """For each sequence the sum of its rows, weighted by the softmax of their scores."""
    rows = offsets.size(0) - 1
    d = values.size(1)
    out = torch.empty([rows, d], dtype=values.dtype, device=values.device)
    for row, tile_d in hl.tile([rows, d], block_size=[1, None]):
        start, end = offsets[row.begin], offsets[row.begin + 1]
        top = hl.full([], float("-inf"), dtype=torch.float32)
        total = hl.zeros([], dtype=torch.float32)
        acc = hl.zeros([tile_d], dtype=torch.float32)
        for tile in hl.tile(start, end):
            s = scores[tile].to(torch.float32)
            new = torch.maximum(top, torch.amax(s, 0))
            e = torch.exp(s - new)
            old = torch.exp(top - new)
            total = total * old + e.sum(0)
            acc = acc * old + (e[:, None] * values[tile, tile_d].to(torch.float32)).sum(0)
            top = new
        out[row, tile_d] = (acc / total)[None, :].to(values.dtype)
    return out


def jagged_attention_pool_reference(values: torch.Tensor, scores: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    o = offsets.tolist()
    return torch.stack([torch.softmax(scores[a:b], 0) @ values[a:b] for a, b in itertools.pairwise(o)])


def jagged_attention_pool_torch(values: torch.Tensor, scores: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    rows = offsets.size(0) - 1
    seg = torch.repeat_interleave(torch.arange(rows, device=values.device), offsets.diff(), output_size=values.size(0))
    s = scores.float()
    top = torch.full([rows], -math.inf, device=s.device).scatter_reduce(0, seg, s, "amax")
    e = torch.exp(s - top[seg])
    total = torch.zeros([rows], device=s.device).index_add(0, seg, e)
    w = e / total[seg]
    return torch.zeros([rows, values.size(1)], device=s.device).index_add(0, seg, w[:, None] * values).to(values.dtype)


def make_jagged_attention_pool(device: str, small: bool) -> Arguments:
    b, high, c = (7, 40, 33) if small else (512, 512, 256)
    off = offsets_of(b, 1, high)
    return normal(device, int(off[-1]), c, dtype=BF16), normal(device, int(off[-1]), dtype=BF16), off.to(device)


CELLS.add(
    jagged_attention_pool, make_jagged_attention_pool, jagged_attention_pool_reference, jagged_attention_pool_torch
)


@helion.kernel
def city_block(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """L1 distances of the rows of `x[M, D]` to those of `y[N, D]`."""
    m, d = x.size()
    n = y.size(0)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_d in hl.tile(d):
            a, b = x[tile_m, tile_d], y[tile_n, tile_d]
            acc += torch.abs(a[:, None, :] - b[None, :, :]).sum(-1)
        out[tile_m, tile_n] = acc
    return out


def make_city_block(device: str, small: bool) -> Arguments:
    m, n, c = (33, 41, 17) if small else (2048, 2048, 64)
    return normal(device, m, c), normal(device, n, c)


CELLS.add(city_block, make_city_block, lambda x, y: torch.cdist(x, y, p=1))


@helion.kernel
def weighted_neighbours(
    offsets: torch.Tensor, columns: torch.Tensor, weights: torch.Tensor, x: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """`relu(A @ x + bias)` with a sparse A in CSR."""
    n = offsets.size(0) - 1
    d = x.size(1)
    out = torch.empty([n, d], dtype=x.dtype, device=x.device)
    for row, tile_d in hl.tile([n, d], block_size=[1, None]):
        acc = hl.zeros([tile_d], dtype=torch.float32)
        for tile_e in hl.tile(offsets[row.begin], offsets[row.begin + 1]):
            rows = x[columns[tile_e], tile_d].to(torch.float32)
            acc += (rows * weights[tile_e].to(torch.float32)[:, None]).sum(0)
        out[row, tile_d] = torch.relu(acc + bias[tile_d].to(torch.float32))[None, :].to(x.dtype)
    return out


def weighted_neighbours_torch(
    offsets: torch.Tensor, columns: torch.Tensor, weights: torch.Tensor, x: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    n = offsets.size(0) - 1
    rows = torch.repeat_interleave(torch.arange(n, device=x.device), offsets.diff(), output_size=columns.size(0))
    acc = torch.zeros([n, x.size(1)], dtype=high(x).dtype, device=x.device).index_add(
        0, rows, high(x[columns]) * high(weights)[:, None]
    )
    return torch.relu(acc + high(bias)).to(x.dtype)


def make_weighted_neighbours(device: str, small: bool) -> Arguments:
    n, c, most = (23, 33, 9) if small else (30000, 128, 32)
    off = offsets_of(n, 0, most)
    e = int(off[-1])
    return (
        off.to(device),
        torch.randint(0, n, [e], device=device),
        torch.rand([e], device=device).to(BF16),
        normal(device, n, c, dtype=BF16),
        normal(device, c, dtype=BF16),
    )


CELLS.add(weighted_neighbours, make_weighted_neighbours, weighted_neighbours_torch)


@helion.kernel
def edge_scores(
    source: torch.Tensor, target: torch.Tensor, x: torch.Tensor, y: torch.Tensor, scale: float
) -> torch.Tensor:
    """Sampled dense-dense product: `sigmoid(scale * x[source] . y[target])` for each edge and head."""
    e = source.size(0)
    h = x.size(1)
    out = torch.empty([e, h], dtype=torch.float32, device=x.device)
    for tile_e, tile_h in hl.tile([e, h]):
        a = x[source[tile_e], tile_h, :].to(torch.float32)
        b = y[target[tile_e], tile_h, :].to(torch.float32)
        out[tile_e, tile_h] = torch.sigmoid((a * b).sum(-1) * scale)
    return out


def make_edge_scores(device: str, small: bool) -> Arguments:
    n, e, h, c = (11, 37, 3, 16) if small else (20000, 200_000, 4, 32)
    return (
        torch.randint(0, n, [e], device=device),
        torch.randint(0, n, [e], device=device),
        normal(device, n, h, c, dtype=BF16),
        normal(device, n, h, c, dtype=BF16),
        0.2,
    )


CELLS.add(
    edge_scores, make_edge_scores, lambda s, t, x, y, scale: torch.sigmoid((high(x[s]) * high(y[t])).sum(-1) * scale)
)
