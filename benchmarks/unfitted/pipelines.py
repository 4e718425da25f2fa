"""Stages of models around products and attention: projections, caches, windows, pairs, codes."""

from __future__ import annotations

import math

import torch

import helion
import helion.language as hl

from .cell import BF16, FP16, FP32, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def spectral_magnitude(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Magnitudes of `x @ cosines` and `x @ sines`, as real and imaginary parts."""
    m, k = x.size()
    n = cosines.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile([m, n]):
        re, im = hl.zeros([rows, columns]), hl.zeros([rows, columns])
        for inner in hl.tile(k):
            part = x[rows, inner]
            re = torch.addmm(re, part, cosines[inner, columns])
            im = torch.addmm(im, part, sines[inner, columns])
        out[rows, columns] = torch.sqrt(re * re + im * im).to(x.dtype)
    return out


def make_spectral_magnitude(device: str, small: bool) -> Arguments:
    m, k, n = (33, 64, 40) if small else (16384, 1024, 520)
    return tuple(normal(device, *shape, dtype=FP16, scale=0.1) for shape in ((m, k), (k, n), (k, n)))


CELLS.add(
    spectral_magnitude,
    make_spectral_magnitude,
    lambda x, c, s: torch.sqrt((high(x) @ high(c)) ** 2 + (high(x) @ high(s)) ** 2).to(x.dtype),
    lambda x, c, s: torch.sqrt((x @ c).float() ** 2 + (x @ s).float() ** 2).to(x.dtype),
)


@helion.kernel
def split_heads(
    qkv: torch.Tensor, bias: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, width: hl.constexpr
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values `[H, T, width]` of packed rows `[T, 3 H width]` plus a bias; halves of the first two turned."""
    t = qkv.size(0)
    count = qkv.size(1) // (3 * width)
    half = hl.specialize(cosines.size(1))
    packed = qkv.view(t, 3, count, 2, half)
    biases = bias.view(3, count, 2, half)
    outs = torch.empty([3, count, t, 2, half], dtype=qkv.dtype, device=qkv.device)
    for tile_t, tile_h in hl.tile([t, count]):
        cos = cosines[tile_t, :].to(torch.float32)[:, None, :]
        sin = sines[tile_t, :].to(torch.float32)[:, None, :]
        for which in hl.static_range(3):
            low = packed[tile_t, which, tile_h, 0, :].to(torch.float32) + biases[which, tile_h, 0, :].to(torch.float32)
            top = packed[tile_t, which, tile_h, 1, :].to(torch.float32) + biases[which, tile_h, 1, :].to(torch.float32)
            if which < 2:
                low, top = low * cos - top * sin, top * cos + low * sin
            outs[which, tile_h, tile_t, 0, :] = low.to(qkv.dtype).transpose(0, 1)
            outs[which, tile_h, tile_t, 1, :] = top.to(qkv.dtype).transpose(0, 1)
    q, k, v = outs.view(3, count, t, width).unbind(0)
    return q, k, v


def split_heads_torch(
    qkv: torch.Tensor, bias: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, width: int
) -> tuple[torch.Tensor, ...]:
    t = qkv.size(0)
    x = (high(qkv) + high(bias)).view(t, 3, -1, 2, width // 2)
    cos, sin = high(cosines)[:, None, None], high(sines)[:, None, None]
    low, top = x[:, :2, :, 0], x[:, :2, :, 1]
    turned = torch.stack([low * cos - top * sin, top * cos + low * sin], 3)
    both = torch.cat([turned, x[:, 2:]], 1).to(qkv.dtype)
    return tuple(each.permute(1, 0, 2, 3).reshape(-1, t, width) for each in both.unbind(1))


def make_split_heads(device: str, small: bool) -> Arguments:
    t, count, width = (21, 3, 32) if small else (8192, 16, 128)
    packed = 3 * count * width
    angles = torch.rand([t, width // 2], device=device)
    return (
        normal(device, t, packed, dtype=BF16),
        normal(device, packed, dtype=BF16),
        torch.cos(angles).to(BF16),
        torch.sin(angles).to(BF16),
        width,
    )


CELLS.add(split_heads, make_split_heads, split_heads_torch)


@helion.kernel
def cache_in_int8(
    keys: torch.Tensor, slots: torch.Tensor, cache: torch.Tensor, scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Write new keys `[T, H, D]` into the slots of a cache `[S, H, D]` in int8, with a scale for each head and token."""
    t, h, _ = keys.size()
    for tile_t, tile_h in hl.tile([t, h]):
        x = keys[tile_t, tile_h, :].to(torch.float32)
        scale = torch.clamp(x.abs().amax(-1), min=1e-8) / 127.0
        to = slots[tile_t]
        cache[to, tile_h, :] = torch.round(x / scale[:, :, None]).to(torch.int8)
        scales[to, tile_h] = scale
    return cache, scales


def cache_in_int8_torch(
    keys: torch.Tensor, slots: torch.Tensor, cache: torch.Tensor, scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    x = keys.float()
    scale = torch.clamp(x.abs().amax(-1), min=1e-8) / 127.0
    cache[slots] = torch.round(x / scale[..., None]).to(torch.int8)
    scales[slots] = scale
    return cache, scales


def make_cache_in_int8(device: str, small: bool) -> Arguments:
    t, h, d, s = (21, 3, 64, 40) if small else (16384, 8, 128, 65536)
    slots = torch.randperm(s, device=device if device != "meta" else "cpu")[:t].to(device)
    cache = torch.zeros([s, h, d], dtype=torch.int8, device=device)
    return normal(device, t, h, d, dtype=BF16), slots, cache, torch.zeros([s, h], device=device)


CELLS.add(cache_in_int8, make_cache_in_int8, cache_in_int8_torch)


@helion.kernel
def covariance_penalty(x: torch.Tensor) -> torch.Tensor:
    """Sum of the squares of the covariances of the columns of centred `x[N, D]`, without variances, over D."""
    n, d = x.size()
    out = torch.zeros([1], dtype=torch.float32, device=x.device)
    for rows, columns in hl.tile([d, d]):
        acc = hl.zeros([rows, columns])
        for samples in hl.tile(n):
            acc = torch.addmm(acc, x[samples, rows].T, x[samples, columns])
        acc = acc / (n - 1)
        apart = rows.index[:, None] != columns.index[None, :]
        hl.atomic_add(out, [0], torch.where(apart, acc * acc, 0.0).sum() / d)
    return out


def covariance_penalty_torch(x: torch.Tensor) -> torch.Tensor:
    c = high(x).T @ high(x) / (x.size(0) - 1)
    return ((c * c).sum() - (c.diagonal() ** 2).sum())[None] / x.size(1)


def covariance_penalty_baseline(x: torch.Tensor) -> torch.Tensor:
    c = (x.T @ x).float() / (x.size(0) - 1)
    return ((c * c).sum() - (c.diagonal() ** 2).sum())[None] / x.size(1)


CELLS.add(
    covariance_penalty,
    lambda device, small: (normal(device, *((40, 33) if small else (4096, 2048)), dtype=BF16),),
    covariance_penalty_torch,
    covariance_penalty_baseline,
)


@helion.kernel
def hamming_distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Bits that differ between all pairs of codes `[N, W]` and `[M, W]`, words of 32 bits."""
    n, words = a.size()
    m = b.size(0)
    out = torch.empty([n, m], dtype=torch.int16, device=a.device)
    for rows, columns in hl.tile([n, m]):
        count = hl.zeros([rows, columns], dtype=torch.int32)
        for word in range(words):
            x = a[rows, word][:, None] ^ b[columns, word][None, :]
            x = x - ((x >> 1) & 0x55555555)
            x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
            x = (x + (x >> 4)) & 0x0F0F0F0F
            x = x + (x >> 8)
            count += (x + (x >> 16)) & 0x3F
        out[rows, columns] = count.to(torch.int16)
    return out


def hamming_distances_torch(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    total = torch.zeros([a.size(0), b.size(0)], dtype=torch.int32, device=a.device)
    for word in range(a.size(1)):
        x = a[:, word][:, None] ^ b[:, word][None]
        for bit in range(31):
            total += (x >> bit) & 1
    return total.to(torch.int16)


def hamming_distances_baseline(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x = a[:, None] ^ b[None]
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    x = x + (x >> 8)
    return ((x + (x >> 16)) & 0x3F).sum(-1).to(torch.int16)


def make_hamming_distances(device: str, small: bool) -> Arguments:
    n, m, words = (33, 21, 3) if small else (4096, 4096, 8)
    return tuple(torch.randint(0, 1 << 31, [rows, words], device=device).to(torch.int32) for rows in (n, m))


CELLS.add(hamming_distances, make_hamming_distances, hamming_distances_torch, hamming_distances_baseline)


@helion.kernel
def codebook_linear(x: torch.Tensor, codes: torch.Tensor, book: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """`x @ w` for weights `w[K, N]` of a book of 16 numbers: two codes a byte along K, and a scale for each 64 of K."""
    m, k = x.size()
    n = codes.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile([m, n]):
        acc = hl.zeros([rows, columns])
        for bytes_ in hl.tile(k // 2, block_size=32):
            code = codes[bytes_, columns].to(torch.int32)
            low, top = book[code & 15], book[code >> 4]
            scale = scales[bytes_.id, columns][None, :]
            w = hl.join(low * scale, top * scale).permute(0, 2, 1).reshape(64, columns)
            acc = hl.dot(x[rows, bytes_.begin * 2 + hl.arange(64)], w.to(x.dtype), acc=acc)
        out[rows, columns] = acc.to(x.dtype)
    return out


def codebook_linear_torch(
    x: torch.Tensor, codes: torch.Tensor, book: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    code = codes.to(torch.int64)
    w = torch.stack([book[code & 15], book[code >> 4]], 1).reshape(-1, codes.size(1))
    w = (w * scales.repeat_interleave(64, 0)).to(x.dtype)
    return (x @ w).to(x.dtype)


def make_codebook_linear(device: str, small: bool) -> Arguments:
    m, k, n = (5, 128, 33) if small else (32, 4096, 4096)
    return (
        normal(device, m, k, dtype=BF16, scale=0.1),
        torch.randint(0, 256, [k // 2, n], device=device, dtype=torch.uint8),
        normal(device, 16),
        torch.rand([k // 64, n], device=device) * 0.1,
    )


CELLS.add(codebook_linear, make_codebook_linear, codebook_linear_torch)


@helion.kernel
def gathered_scattered(x: torch.Tensor, w: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Rows of `x @ w` at `source`, added to the rows of the result at `target`."""
    pairs, k, n = source.size(0), x.size(1), w.size(1)
    out = torch.zeros([x.size(0), n], dtype=torch.float32, device=x.device)
    for tile, columns in hl.tile([pairs, n]):
        rows = source[tile]
        acc = hl.zeros([tile, columns])
        for inner in hl.tile(k):
            acc = torch.addmm(acc, x[rows, inner], w[inner, columns])
        hl.atomic_add(out, [target[tile], columns], acc)
    return out


def gathered_scattered_torch(
    x: torch.Tensor, w: torch.Tensor, source: torch.Tensor, target: torch.Tensor
) -> torch.Tensor:
    out = torch.zeros([x.size(0), w.size(1)], dtype=FP32 if x.dtype != torch.float64 else x.dtype, device=x.device)
    return out.index_add_(0, target, high(x[source]) @ high(w))


def gathered_scattered_baseline(
    x: torch.Tensor, w: torch.Tensor, source: torch.Tensor, target: torch.Tensor
) -> torch.Tensor:
    out = torch.zeros([x.size(0), w.size(1)], dtype=FP32, device=x.device)
    return out.index_add_(0, target, (x[source] @ w).float())


def make_gathered_scattered(device: str, small: bool) -> Arguments:
    rows, pairs, k, n = (33, 21, 40, 24) if small else (65536, 32768, 128, 128)
    ids = [torch.randint(0, rows, [pairs], device=device) for _ in range(2)]
    return normal(device, rows, k, dtype=BF16), normal(device, k, n, dtype=BF16, scale=0.1), *ids


CELLS.add(gathered_scattered, make_gathered_scattered, gathered_scattered_torch, gathered_scattered_baseline)


@helion.kernel
def triangle_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`out[i, j, c] = sum over k of a[i, k, c] * b[j, k, c]`: a product for each channel, channels last."""
    n, _, channels = a.size()
    out = torch.empty([n, n, channels], dtype=a.dtype, device=a.device)
    for channel, rows, columns in hl.tile([channels, n, n], block_size=[1, None, None]):
        acc = hl.zeros([rows, columns])
        for inner in hl.tile(n):
            acc = torch.addmm(acc, a[rows, inner, channel.begin], b[columns, inner, channel.begin].T)
        out[rows, columns, channel.begin] = acc.to(a.dtype)
    return out


def make_triangle_product(device: str, small: bool) -> Arguments:
    shape = (21, 21, 5) if small else (384, 384, 128)
    return normal(device, *shape, dtype=BF16, scale=0.2), normal(device, *shape, dtype=BF16, scale=0.2)


CELLS.add(
    triangle_product,
    make_triangle_product,
    lambda a, b: torch.einsum("ikc,jkc->ijc", high(a), high(b)).to(a.dtype),
    lambda a, b: torch.einsum("ikc,jkc->ijc", a, b),
)


@helion.kernel
def point_covariances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Covariances `[B, 3, 3]` of centred point sets `[B, N, 3]`."""
    batch, n, _ = a.size()
    out = torch.empty([batch, 3, 3], dtype=torch.float32, device=a.device)
    for tile in hl.tile(batch):
        for i in hl.static_range(3):
            x = a[tile, :, i]
            x = x - x.mean(1, keepdim=True)
            for j in hl.static_range(3):
                y = b[tile, :, j]
                out[tile, i, j] = (x * (y - y.mean(1, keepdim=True))).sum(1) / n
    return out


def point_covariances_torch(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x, y = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    return (x[:, :, :, None] * y[:, :, None, :]).sum(1) / a.size(1)


def make_point_covariances(device: str, small: bool) -> Arguments:
    shape = (5, 37, 3) if small else (16384, 512, 3)
    return normal(device, *shape), normal(device, *shape)


CELLS.add(point_covariances, make_point_covariances, point_covariances_torch)


@helion.kernel
def window_attention(qkv: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Attention in windows of 49 pixels: `qkv[W, 49, 3, H, 32]`, with a bias `[H, 49, 49]` of the scores."""
    windows, size, _, count, width = qkv.size()
    size, width = hl.specialize(size), hl.specialize(width)
    out = torch.empty([windows, size, count, width], dtype=qkv.dtype, device=qkv.device)
    for window, head in hl.tile([windows, count], block_size=[1, 1]):
        q = qkv[window.begin, :, 0, head.begin, :]
        k = qkv[window.begin, :, 1, head.begin, :]
        v = qkv[window.begin, :, 2, head.begin, :]
        scores = hl.dot(q, k.T, out_dtype=torch.float32) * (1 / math.sqrt(width)) + bias[head.begin, :, :]
        p = torch.softmax(scores, dim=1)
        out[window.begin, :, head.begin, :] = hl.dot(p.to(qkv.dtype), v, out_dtype=torch.float32).to(qkv.dtype)
    return out


def window_attention_torch(qkv: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    q, k, v = (high(x).transpose(1, 2) for x in qkv.unbind(2))
    p = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)) + bias, -1)
    return (p @ v).transpose(1, 2).to(qkv.dtype).contiguous()


def window_attention_baseline(qkv: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    mask = bias.to(qkv.dtype)[None]
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).contiguous()


def make_window_attention(device: str, small: bool) -> Arguments:
    windows, count = (3, 2) if small else (4096, 6)
    return normal(device, windows, 49, 3, count, 32, dtype=BF16), normal(device, count, 49, 49)


CELLS.add(window_attention, make_window_attention, window_attention_torch, window_attention_baseline)
