"""Segments, histograms, prefix sums, ranks and packed codes of data."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, high, normal, offsets_of

CELLS = Cells()


@helion.kernel
def unsorted_maxima(x: torch.Tensor, ids: torch.Tensor, segments: int) -> torch.Tensor:
    """Return maxima `[S, D]` of the rows of `x[N, D]` of each id, in any order; segments without rows have -inf."""
    n, d = x.size()
    out = torch.full([segments, d], float("-inf"), dtype=torch.float32, device=x.device)
    for tile_n, tile_d in hl.tile([n, d]):
        hl.atomic_max(out, [ids[tile_n], tile_d], x[tile_n, tile_d])
    return out


def unsorted_maxima_torch(x: torch.Tensor, ids: torch.Tensor, segments: int) -> torch.Tensor:
    out = torch.full([segments, x.size(1)], -torch.inf, dtype=x.dtype, device=x.device)
    return out.scatter_reduce(0, ids[:, None].expand_as(x), x, "amax")


def make_unsorted_maxima(device: str, small: bool) -> Arguments:
    n, d, segments = (100, 19, 5) if small else (200000, 64, 20000)
    ids = torch.cat([torch.arange(segments, device=device), torch.randint(0, segments, [n - segments], device=device)])
    return normal(device, n, d), ids[torch.randperm(n, device=device)], segments


CELLS.add(unsorted_maxima, make_unsorted_maxima, unsorted_maxima_torch)


@helion.kernel
def jagged_moments(x: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and deviation `[S, D]` of the columns of each run of rows of `x[N, D]`."""
    segments, d = offsets.size(0) - 1, x.size(1)
    mean = torch.empty([segments, d], dtype=torch.float32, device=x.device)
    deviation = torch.empty([segments, d], dtype=torch.float32, device=x.device)
    for segment in hl.grid(segments):
        begin, end = offsets[segment], offsets[segment + 1]
        count = (end - begin).to(torch.float32)
        for tile_d in hl.tile(d):
            total = hl.zeros([tile_d], dtype=torch.float32)
            squares = hl.zeros([tile_d], dtype=torch.float32)
            for rows in hl.tile(begin, end):
                v = x[rows, tile_d].to(torch.float32)
                total += v.sum(0)
                squares += (v * v).sum(0)
            average = total / count
            mean[segment, tile_d] = average
            deviation[segment, tile_d] = torch.sqrt(torch.clamp(squares / count - average * average, min=0.0))
    return mean, deviation


def jagged_moments_torch(x: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    v = high(x)
    sizes = offsets[1:] - offsets[:-1]
    ids = torch.searchsorted(offsets, torch.arange(x.size(0), device=x.device), right=True) - 1
    zeros = torch.zeros([sizes.size(0), x.size(1)], dtype=v.dtype, device=x.device)
    mean = zeros.index_add(0, ids, v) / sizes[:, None]
    square = zeros.index_add(0, ids, v * v) / sizes[:, None]
    return mean, torch.sqrt(torch.clamp(square - mean * mean, min=0.0))


def make_jagged_moments(device: str, small: bool) -> Arguments:
    segments, low, top, d = (7, 3, 40, 33) if small else (4096, 16, 160, 256)
    offsets = offsets_of(segments, low, top)
    return normal(device, int(offsets[-1]), d, dtype=BF16), offsets.to(device)


CELLS.add(jagged_moments, make_jagged_moments, jagged_moments_torch)


@helion.kernel
def byte_histograms(pixels: torch.Tensor) -> torch.Tensor:
    """Return numbers of pixels `[N, 256]` of each value, in every plane of bytes `[N, P]`."""
    n, p = pixels.size()
    counts = torch.zeros([n, 256], dtype=torch.int32, device=pixels.device)
    flat = counts.view(-1)
    for tile_n, tile_p in hl.tile([n, p]):
        value = pixels[tile_n, tile_p].to(torch.int32)
        hl.atomic_add(flat, [tile_n.index[:, None] * 256 + value], 1)
    return counts


def byte_histograms_torch(pixels: torch.Tensor) -> torch.Tensor:
    n = pixels.size(0)
    places = torch.arange(n, device=pixels.device)[:, None] * 256 + pixels
    return torch.bincount(places.flatten(), minlength=256 * n).view(n, 256).to(torch.int32)


CELLS.add(
    byte_histograms,
    lambda device, small: (
        torch.randint(0, 256, (3, 1000) if small else (192, 65536), device=device, dtype=torch.uint8),
    ),
    byte_histograms_torch,
)


@helion.kernel
def pack_left(x: torch.Tensor, threshold: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return numbers of each row above a threshold, moved to its begin, with their places; zeros follow, -1 as a
    place."""
    n, width = x.size()
    values = torch.zeros([n, width], dtype=x.dtype, device=x.device)
    places = torch.full([n, width], -1, dtype=torch.int32, device=x.device)
    counts = torch.empty([n], dtype=torch.int32, device=x.device)
    for row in hl.grid(n):
        v = x[row, :]
        keep = v > threshold
        to = torch.cumsum(keep.to(torch.int32), 0) - 1
        hl.store(values, [row, to], v, extra_mask=keep)
        hl.store(places, [row, to], hl.arange(width), extra_mask=keep)
        counts[row] = keep.to(torch.int32).sum(0)
    return values, places, counts


def pack_left_torch(x: torch.Tensor, threshold: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    keep = x > threshold
    order = torch.sort((~keep).to(torch.int8), dim=1, stable=True).indices
    counts = keep.sum(1)
    inside = torch.arange(x.size(1), device=x.device)[None] < counts[:, None]
    values = torch.where(inside, x.gather(1, order), 0.0)
    return values, torch.where(inside, order, -1).to(torch.int32), counts.to(torch.int32)


CELLS.add(
    pack_left,
    lambda device, small: (normal(device, *((5, 100) if small else (8192, 4096))), 1.0),
    pack_left_torch,
)


@helion.kernel
def long_prefix_sums(x: torch.Tensor) -> torch.Tensor:
    """Return sums of all numbers up to each one of a long vector: sums of parts, their prefix sums, and the parts'
    own."""
    n = x.size(0)
    block = hl.register_block_size(n)
    parts = helion.cdiv(n, block)
    sums = torch.empty([parts], dtype=torch.int64, device=x.device)
    out = torch.empty([n], dtype=torch.int64, device=x.device)
    for tile in hl.tile(n, block_size=block):
        sums[tile.id] = x[tile].to(torch.int64).sum(0)
    before = torch.cumsum(sums, 0) - sums
    for tile in hl.tile(n, block_size=block):
        out[tile] = hl.cumsum(x[tile].to(torch.int64), 0) + before[tile.id]
    return out


CELLS.add(
    long_prefix_sums,
    lambda device, small: (torch.randint(0, 100, [1000 if small else 16000000], device=device, dtype=torch.int32),),
    lambda x: torch.cumsum(x, 0),
)


@helion.kernel
def fractional_ranks(x: torch.Tensor) -> torch.Tensor:
    """Return rank of each number in its row, from 0; equal numbers share the mean of their ranks. All pairs are
    compared."""
    n, width = x.size()
    out = torch.empty([n, width], dtype=torch.float32, device=x.device)
    for tile_n, tile_i in hl.tile([n, width]):
        own = x[tile_n, tile_i]
        below = hl.zeros([tile_n, tile_i], dtype=torch.float32)
        for tile_j in hl.tile(width):
            other = x[tile_n, tile_j]
            less = (other[:, None, :] < own[:, :, None]).to(torch.float32)
            equal = (other[:, None, :] == own[:, :, None]).to(torch.float32)
            below += (less + 0.5 * equal).sum(-1)
        out[tile_n, tile_i] = below - 0.5
    return out


def fractional_ranks_torch(x: torch.Tensor) -> torch.Tensor:
    ordered = torch.sort(x, dim=1).values
    first = torch.searchsorted(ordered, x)
    last = torch.searchsorted(ordered, x, right=True)
    return 0.5 * (first + last - 1).to(torch.float32)


CELLS.add(
    fractional_ranks,
    lambda device, small: (torch.randint(0, 90, (5, 37) if small else (8192, 256), device=device).to(torch.float32),),
    fractional_ranks_torch,
)


@helion.kernel
def column_distributions(x: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """Return the part of each column of `x[N, C]` that is at most each of its `levels[K, C]`: `[K, C]`."""
    n, c = x.size()
    k = hl.specialize(levels.size(0))
    out = torch.empty([k, c], dtype=torch.float32, device=x.device)
    for tile_c in hl.tile(c):
        level = levels[:, tile_c]
        count = hl.zeros([k, tile_c], dtype=torch.int32)
        for rows in hl.tile(n):
            hit = x[rows, tile_c].to(torch.float32)[:, None, :] <= level[None, :, :]
            count += hit.to(torch.int32).sum(0)
        out[:, tile_c] = count.to(torch.float32) / n
    return out


def column_distributions_torch(x: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    return (high(x)[None] <= levels[:, None]).to(levels.dtype).mean(1)


def make_column_distributions(device: str, small: bool) -> Arguments:
    n, c, k = (100, 37, 5) if small else (16384, 2048, 8)
    return normal(device, n, c, dtype=BF16), normal(device, k, c).sort(0).values


CELLS.add(column_distributions, make_column_distributions, column_distributions_torch)


@helion.kernel
def crossed_embeddings(ids: torch.Tensor, pairs: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return rows `[B, P, D]` of a table at the hash of two of the ids `[B, F]`, for the pairs of fields `[P, 2]`."""
    b, _ = ids.size()
    p, (rows, d) = pairs.size(0), table.size()
    out = torch.empty([b, p, d], dtype=table.dtype, device=table.device)
    for tile_b, tile_p in hl.tile([b, p]):
        first = ids[tile_b, pairs[tile_p, 0]].to(torch.int64)
        second = ids[tile_b, pairs[tile_p, 1]].to(torch.int64)
        place = ((first * 2654435761) ^ (second * 40503 + tile_p.index[None, :])) % rows
        out[tile_b, tile_p, :] = table[place, :]
    return out


def crossed_embeddings_torch(ids: torch.Tensor, pairs: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    first, second = ids.long()[:, pairs[:, 0]], ids.long()[:, pairs[:, 1]]
    number = torch.arange(pairs.size(0), device=ids.device)
    return table[((first * 2654435761) ^ (second * 40503 + number)) % table.size(0)]


def make_crossed_embeddings(device: str, small: bool) -> Arguments:
    b, f, p, rows, d = (7, 5, 6, 101, 16) if small else (16384, 26, 40, 1000003, 32)
    ids = torch.randint(0, 1000000, [b, f], device=device, dtype=torch.int32)
    return ids, torch.randint(0, f, [p, 2], device=device, dtype=torch.int32), normal(device, rows, d, dtype=BF16)


CELLS.add(crossed_embeddings, make_crossed_embeddings, crossed_embeddings_torch)


@helion.kernel
def pack_book4(weights: torch.Tensor, book: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return indices of the nearest of 16 sorted numbers, two a byte `[N, 32]`, of weights `[N, 64]` by their largest
    one."""
    n, width = weights.size()
    half = width // 2
    pairs = weights.view(n, half, 2)
    codes = torch.empty([n, half], dtype=torch.uint8, device=weights.device)
    scales = torch.empty([n], dtype=torch.float32, device=weights.device)
    for tile in hl.tile(n):
        v = pairs[tile, :, :].to(torch.float32)
        scale = torch.amax(torch.abs(v), (1, 2))
        scales[tile] = scale
        v = v / torch.clamp(scale, min=1e-12)[:, None, None]
        code = torch.zeros_like(v, dtype=torch.int32)
        for i in hl.static_range(15):
            code += (v > 0.5 * (book[i] + book[i + 1])).to(torch.int32)
        low, top = hl.split(code)
        codes[tile, :] = (low | (top << 4)).to(torch.uint8)
    return codes, scales


def pack_book4_torch(weights: torch.Tensor, book: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    v = high(weights)
    scale = v.abs().amax(1)
    code = torch.bucketize(v / torch.clamp(scale, min=1e-12)[:, None], 0.5 * (book[1:] + book[:-1]))
    return (code[:, ::2] | (code[:, 1::2] << 4)).to(torch.uint8), scale


def make_pack_book4(device: str, small: bool) -> Arguments:
    book = torch.rand([16], device=device).sort().values * 2 - 1
    return normal(device, 37 if small else 800000, 64, dtype=BF16), book


CELLS.add(pack_book4, make_pack_book4, pack_book4_torch)


@helion.kernel
def signs_from_bits(bits: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Return `scale` where a bit is set and `-scale`, plus `shift`, of each column: `[M, 8 N]` from bytes `[M, N]`."""
    m, n = bits.size()
    out = torch.empty([m, n, 8], dtype=torch.bfloat16, device=bits.device)
    scales, shifts = scale.view(n, 8), shift.view(n, 8)
    for tile_m, tile_n in hl.tile([m, n]):
        byte = bits[tile_m, tile_n].to(torch.int32)
        one = (byte[:, :, None] >> hl.arange(8)[None, None, :]) & 1
        sign = (2 * one - 1).to(torch.float32)
        value = sign * scales[tile_n, :][None, :, :] + shifts[tile_n, :][None, :, :]
        out[tile_m, tile_n, :] = value.to(torch.bfloat16)
    return out.view(m, 8 * n)


def signs_from_bits_torch(bits: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    one = (bits[:, :, None].to(torch.int32) >> torch.arange(8, device=bits.device)) & 1
    return ((2 * one - 1).to(torch.float32).flatten(1) * scale + shift).to(BF16)


def make_signs_from_bits(device: str, small: bool) -> Arguments:
    m, n = (5, 37) if small else (8192, 1024)
    bits = torch.randint(0, 256, [m, n], device=device, dtype=torch.uint8)
    return bits, torch.rand([8 * n], device=device), normal(device, 8 * n)


CELLS.add(signs_from_bits, make_signs_from_bits, signs_from_bits_torch)


@helion.kernel
def segmentation_loss(
    logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, ignored: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weighted cross entropy `[N, S]` of logits `[N, C, S]`, and the sums of weights; some pixels have an
    ignored label."""
    n, c, s = logits.size()
    loss = torch.empty([n, s], dtype=torch.float32, device=logits.device)
    total = torch.zeros([n], dtype=torch.float32, device=logits.device)
    for tile_n, tile_s in hl.tile([n, s]):
        x = logits[tile_n, :, tile_s].to(torch.float32)
        label = labels[tile_n, tile_s].to(torch.int64)
        hit = label[:, None, :] == hl.arange(c)[None, :, None]
        own = torch.where(hit, x, 0.0).sum(1)
        weight = torch.where(hit, weights[:][None, :, None], 0.0).sum(1)
        weight = torch.where(label == ignored, 0.0, weight)
        loss[tile_n, tile_s] = weight * (torch.logsumexp(x, 1) - own)
        hl.atomic_add(total, [tile_n], weight.sum(1))
    return loss, total


def segmentation_loss_torch(
    logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, ignored: int
) -> tuple[torch.Tensor, torch.Tensor]:
    label = labels.long()
    loss = F.cross_entropy(high(logits), label, weights, ignore_index=ignored, reduction="none")
    weight = torch.where(label == ignored, 0.0, weights[torch.where(label == ignored, 0, label)])
    return loss, weight.sum(1)


def make_segmentation_loss(device: str, small: bool) -> Arguments:
    n, c, s = (2, 19, 100) if small else (8, 19, 512 * 1024)
    labels = torch.randint(0, c + 1, [n, s], device=device, dtype=torch.uint8)
    labels = torch.where(labels == c, 255, labels).to(torch.uint8)
    return normal(device, n, c, s, dtype=BF16), labels, torch.rand([c], device=device), 255


CELLS.add(segmentation_loss, make_segmentation_loss, segmentation_loss_torch)
