"""What data says where to read and to write: routing, segments, pages, samples, counts."""

from __future__ import annotations

import torch

import helion
import helion.language as hl


@helion.kernel()
def routed_gates(logits: torch.Tensor, k: hl.constexpr) -> tuple[torch.Tensor, torch.Tensor]:
    """The k greatest of the softmax of every row of `logits[T, E]`, made to sum to 1, and where they stand."""
    t, e = logits.size()
    gates = torch.empty([t, k], dtype=torch.float32, device=logits.device)
    experts = torch.empty([t, k], dtype=torch.int32, device=logits.device)
    for tile in hl.tile(t):
        left = torch.softmax(logits[tile, :].to(torch.float32), dim=-1)
        kept = hl.zeros([tile, k], dtype=torch.float32)
        for at in hl.static_range(k):
            best, where = left.amax(-1), torch.argmax(left, dim=-1)
            kept = torch.where(hl.arange(k)[None, :] == at, best[:, None], kept)
            experts[tile, at] = where.to(torch.int32)
            left = torch.where(hl.arange(e)[None, :] == where[:, None], -1.0, left)
        gates[tile, :] = kept / kept.sum(-1, keepdim=True)
    return gates, experts


@helion.kernel()
def segment_softmax(scores: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Softmax of each column of `scores[E, H]` over the edges `starts[i] .. starts[i + 1]` of every node."""
    heads = hl.specialize(scores.size(1))
    out = torch.empty_like(scores)
    for node in hl.grid(starts.size(0) - 1):
        begin, end = starts[node], starts[node + 1]
        top = hl.full([heads], float("-inf"), dtype=torch.float32)
        den = hl.zeros([heads], dtype=torch.float32)
        for tile in hl.tile(begin, end):
            x = scores[tile, :].to(torch.float32)
            new = torch.maximum(top, x.amax(0))
            den = den * torch.exp(top - new) + torch.exp(x - new[None, :]).sum(0)
            top = new
        for tile in hl.tile(begin, end):
            p = torch.exp(scores[tile, :].to(torch.float32) - top[None, :]) / den[None, :]
            out[tile, :] = p.to(scores.dtype)
    return out


@helion.kernel()
def neighbour_sums(features: torch.Tensor, neighbours: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """`sum(features[neighbours[j]])` over `j` in `starts[i] .. starts[i + 1]`: `features[V, D]`, a sparse product."""
    count, d = starts.size(0) - 1, features.size(1)
    out = torch.empty([count, d], dtype=features.dtype, device=features.device)
    for node, tile_d in hl.tile([count, d], block_size=[1, None]):
        acc = hl.zeros([tile_d], dtype=torch.float32)
        for tile in hl.tile(starts[node.begin], starts[node.begin + 1]):
            acc = acc + features[neighbours[tile], tile_d].to(torch.float32).sum(0)
        out[node.begin, tile_d] = acc.to(features.dtype)
    return out


@helion.kernel()
def gathered_pages(pages: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Pages `[P, page, G, D]` in the order of `table[B, n]` as one cache `[B, G, n * page, D]`."""
    _, page, g, d = pages.size()
    b, count = table.size()
    out = torch.empty([b, g, count * page, d], dtype=pages.dtype, device=pages.device)
    flat = pages.view(-1, g, d)
    for tile_b, tile_n, tile_g in hl.tile([b, count * page, g], block_size=[1, None, 1]):
        at = table[tile_b.begin, tile_n.index // page] * page + tile_n.index % page
        out[tile_b.begin, tile_g.begin, tile_n, :] = flat[at, tile_g.begin, :]
    return out


@helion.kernel()
def written_slots(keys: torch.Tensor, slots: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`keys[T, G, D]` in fp8 in the slots of a cache of `size` tokens, and the scale of each head of a token."""
    t, g, d = keys.size()
    cache = torch.zeros([size, g, d], dtype=torch.float8_e4m3fn, device=keys.device)
    scales = torch.zeros([size, g], dtype=torch.float32, device=keys.device)
    for tile_t, tile_g in hl.tile([t, g]):
        values = keys[tile_t, tile_g, :].to(torch.float32)
        scale = values.abs().amax(-1).clamp(min=1e-6) / 448.0
        slot = slots[tile_t]
        cache[slot, tile_g, :] = (values / scale[:, :, None]).to(torch.float8_e4m3fn)
        scales[slot, tile_g] = scale
    return cache, scales


@helion.kernel()
def bilinear_samples(x: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """`x[B, H, W, C]` between four pixels at each of `points[B, P, 2]` in -1 .. 1, zeros outside: `[B, P, C]`."""
    b, h, w, c = x.size()
    count = points.size(1)
    out = torch.empty([b, count, c], dtype=x.dtype, device=x.device)
    pixels = x.view(b, h * w, c)
    for tile_b, tile_p, tile_c in hl.tile([b, count, c], block_size=[1, None, None]):
        across = ((points[tile_b.begin, tile_p, 0] + 1.0) * w - 1.0) / 2.0
        down = ((points[tile_b.begin, tile_p, 1] + 1.0) * h - 1.0) / 2.0
        left, top = torch.floor(across), torch.floor(down)
        acc = hl.zeros([tile_p, tile_c], dtype=torch.float32)
        for dy in hl.static_range(2):
            for dx in hl.static_range(2):
                column, row = left + dx, top + dy
                part = (1.0 - torch.abs(across - column)) * (1.0 - torch.abs(down - row))
                inside = (column >= 0) & (column < w) & (row >= 0) & (row < h)
                at = (row * w + column).to(torch.int32)
                values = hl.load(pixels, [tile_b.begin, at, tile_c], extra_mask=inside[:, None])
                acc = acc + values.to(torch.float32) * torch.where(inside, part, 0.0)[:, None]
        out[tile_b.begin, tile_p, tile_c] = acc.to(x.dtype)
    return out


@helion.kernel()
def buckets(x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """How many of the sorted `edges[E]` are at most each element of `x[N]`."""
    (n,) = x.size()
    out = torch.empty([n], dtype=torch.int32, device=x.device)
    for tile in hl.tile(n):
        below = edges[:][None, :] <= x[tile][:, None]
        out[tile] = below.to(torch.int32).sum(-1)
    return out


@helion.kernel()
def joint_counts(x: torch.Tensor, y: torch.Tensor, bins: int) -> torch.Tensor:
    """How often each pair of integers below `bins` stands at the same place of `x[N]` and `y[N]`."""
    out = torch.zeros([bins * bins], dtype=torch.int32, device=x.device)
    for tile in hl.tile(x.size(0)):
        hl.atomic_add(out, [x[tile] * bins + y[tile]], torch.ones_like(x[tile], dtype=torch.int32))
    return out.view(bins, bins)


@helion.kernel()
def unpacked_weights(packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """Weights of 4 bits without sign, two in a byte of `packed[N, K / 2]`, with a scale and a zero for each 128."""
    n, half = packed.size()
    out = torch.empty([n, half, 2], dtype=scales.dtype, device=packed.device)
    for tile_n, tile_k in hl.tile([n, half]):
        both = packed[tile_n, tile_k].to(torch.int32)
        group = tile_k.index // 64
        scale = scales[tile_n, group].to(torch.float32)
        zero = zeros[tile_n, group].to(torch.float32)
        low = ((both & 15).to(torch.float32) - zero) * scale
        high = ((both >> 4).to(torch.float32) - zero) * scale
        out[tile_n, tile_k, :] = hl.join(low, high).to(scales.dtype)
    return out.view(n, 2 * half)
