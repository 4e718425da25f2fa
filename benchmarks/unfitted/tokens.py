"""Work on tokens of language models: gradients of norms before a turn, hashes, parts of losses, and thresholds."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def turned_norm_gradient(
    x: torch.Tensor, weight: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, grad: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of an RMS norm of the heads of `x[T, H, D]`, whose first R numbers are then turned in halves.
    Those are for x and for `weight[D]`; angles `cos[T, R / 2]` and `sin[T, R / 2]` leave the rest as it is."""
    t, h, d = x.size()
    half = hl.specialize(cos.size(1))
    d = hl.specialize(d)
    dx = torch.empty_like(x)
    dweight = torch.zeros([d], dtype=torch.float32, device=x.device)
    for tokens, heads in hl.tile([t, h]):
        i = hl.arange(d)
        partner = torch.where(i < half, i + half, torch.where(i < 2 * half, i - half, i))
        sign = torch.where(i < half, 1.0, -1.0)
        angle = torch.where(i < 2 * half, i % half, 0)
        turned = (i < 2 * half)[None, None, :]
        g = grad[tokens, heads, :].to(torch.float32)
        other = grad[tokens, heads, partner].to(torch.float32)
        c, s = cos[tokens, angle][:, None, :], sin[tokens, angle][:, None, :]
        g = torch.where(turned, g * c + sign[None, None, :] * other * s, g)
        v = x[tokens, heads, :].to(torch.float32)
        inverse = torch.rsqrt((v * v).mean(-1) + eps)[:, :, None]
        normed = v * inverse
        hl.atomic_add(dweight, [slice(None)], (g * normed).sum(0).sum(0))
        g = g * weight[:].to(torch.float32)[None, None, :]
        dx[tokens, heads, :] = ((g - normed * (g * normed).mean(-1)[:, :, None]) * inverse).to(x.dtype)
    return dx, dweight


def turned_norm_gradient_torch(
    x: torch.Tensor, weight: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, grad: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    half = cos.size(1)
    c, s = cos[:, None], sin[:, None]
    a, b, rest = high(grad).split([half, half, x.size(2) - 2 * half], -1)
    g = torch.cat([a * c + b * s, b * c - a * s, rest], -1)
    v = high(x)
    inverse = torch.rsqrt((v * v).mean(-1, keepdim=True) + eps)
    normed = v * inverse
    dweight = (g * normed).sum((0, 1))
    g = g * high(weight)
    return ((g - normed * (g * normed).mean(-1, keepdim=True)) * inverse).to(x.dtype), dweight


def make_turned_norm_gradient(device: str, small: bool) -> Arguments:
    t, h, d, r = (13, 3, 32, 16) if small else (8192, 32, 128, 64)
    angle = torch.rand([t, r // 2], device=device) * 6.28
    x, grad = (normal(device, t, h, d, dtype=BF16) for _ in range(2))
    return x, normal(device, d, dtype=BF16), torch.cos(angle), torch.sin(angle), grad, 1e-6


CELLS.add(turned_norm_gradient, make_turned_norm_gradient, turned_norm_gradient_torch)


@helion.kernel
def latent_array_attention(
    latents: torch.Tensor, kv: torch.Tensor, lengths: torch.Tensor, gate: torch.Tensor
) -> torch.Tensor:
    """`latents[M, H, D] + tanh(gate[H])` times attention of the latents to the tokens `kv[B, T, 2, H, D]` of each of B
    sequences, which end at `lengths[B]`."""
    count, h, d = latents.size()
    b = kv.size(0)
    count, d = hl.specialize(count), hl.specialize(d)
    out = torch.empty([b, count, h, d], dtype=latents.dtype, device=latents.device)
    scale = 1.0 / math.sqrt(d)
    for batch, head in hl.grid([b, h]):
        q = latents[:, head, :]
        m = hl.full([count], float("-inf"), dtype=torch.float32)
        total = hl.zeros([count], dtype=torch.float32)
        acc = hl.zeros([count, d], dtype=torch.float32)
        for cols in hl.tile(lengths[batch]):
            s = hl.dot(q, kv[batch, cols, 0, head, :].T) * scale
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp(s - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(kv.dtype), kv[batch, cols, 1, head, :], acc=acc * alpha[:, None])
            m = new
        y = q.to(torch.float32) + torch.tanh(gate[head]) * acc / total[:, None]
        out[batch, :, head, :] = y.to(latents.dtype)
    return out


def latent_array_attention_torch(
    latents: torch.Tensor, kv: torch.Tensor, lengths: torch.Tensor, gate: torch.Tensor
) -> torch.Tensor:
    q = latents.transpose(0, 1)[None].expand(kv.size(0), -1, -1, -1)
    k, v = (each.transpose(1, 2) for each in kv.unbind(2))
    keep = torch.arange(kv.size(1), device=kv.device) < lengths[:, None]
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None]).transpose(1, 2)
    return (high(latents) + torch.tanh(gate)[:, None] * high(y)).to(latents.dtype)


def make_latent_array_attention(device: str, small: bool) -> Arguments:
    b, t, h, d, count = (2, 37, 3, 32, 16) if small else (48, 2304, 12, 64, 64)
    lengths = torch.randint(t // 2, t + 1, [b], device=device, dtype=torch.int32)
    latents, kv = normal(device, count, h, d, dtype=BF16), normal(device, b, t, 2, h, d, dtype=BF16)
    return latents, kv, lengths, normal(device, h)


CELLS.add(latent_array_attention, make_latent_array_attention, latent_array_attention_torch)


@helion.kernel
def hashed_pairs_embedding(
    ids: torch.Tensor, words: torch.Tensor, pairs: torch.Tensor, mix: torch.Tensor
) -> torch.Tensor:
    """Embeddings of tokens `ids[B, T]`, plus `mix[D]` times a row of a table that each pair of neighbours hashes to."""
    b, t = ids.size()
    d, slots = words.size(1), pairs.size(0)
    out = torch.empty([b, t, d], dtype=words.dtype, device=words.device)
    for bi, tokens, cols in hl.tile([b, t, d], block_size=[1, None, None]):
        batch = bi.begin
        own = ids[batch, tokens]
        before = hl.load(ids, [batch, tokens.index - 1], extra_mask=tokens.index > 0)
        mixed = (own * 36313) ^ (before * 27191)
        slot = mixed % slots
        y = words[own, cols].to(torch.float32)
        y = y + mix[cols][None, :] * pairs[slot, cols].to(torch.float32)
        out[batch, tokens, cols] = y.to(words.dtype)
    return out


def hashed_pairs_embedding_torch(
    ids: torch.Tensor, words: torch.Tensor, pairs: torch.Tensor, mix: torch.Tensor
) -> torch.Tensor:
    slot = ((ids * 36313) ^ (F.pad(ids, [1, 0])[:, :-1] * 27191)) % pairs.size(0)
    return (high(words[ids]) + mix * high(pairs[slot])).to(words.dtype)


def make_hashed_pairs_embedding(device: str, small: bool) -> Arguments:
    b, t, vocabulary, slots, d = (3, 13, 50, 64, 24) if small else (16, 2048, 50304, 200003, 1024)
    words, pairs = (normal(device, n, d, dtype=BF16) for n in (vocabulary, slots))
    return torch.randint(0, vocabulary, [b, t], device=device), words, pairs, normal(device, d)


CELLS.add(hashed_pairs_embedding, make_hashed_pairs_embedding, hashed_pairs_embedding_torch)


@helion.kernel
def loss_of_a_shard(
    x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor, first: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What a device adds to a cross entropy of `x[T, D] @ w[V, D].T` over a vocabulary that devices share.
    The largest logit, the sum of exponentials below it, and the label's logit, which is 0 if another device has it."""
    t, d = x.size()
    v = w.size(0)
    top = torch.empty([t], dtype=torch.float32, device=x.device)
    sums = torch.empty_like(top)
    own = torch.empty_like(top)
    for rows in hl.tile(t):
        m = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        picked = hl.zeros([rows], dtype=torch.float32)
        label = labels[rows] - first
        for cols in hl.tile(v):
            logits = hl.zeros([rows, cols], dtype=torch.float32)
            for inner in hl.tile(d):
                logits = hl.dot(x[rows, inner], w[cols, inner].T, acc=logits)
            inside = (cols.index < v)[None, :]
            logits = torch.where(inside, logits, float("-inf"))
            new = torch.maximum(m, logits.amax(-1))
            total = total * torch.exp(m - new) + torch.exp(logits - new[:, None]).sum(-1)
            hit = (cols.index[None, :] == label[:, None]) & inside
            picked += torch.where(hit, logits, 0.0).sum(-1)
            m = new
        top[rows], sums[rows], own[rows] = m, total, picked
    return top, sums, own


def loss_of_a_shard_torch(
    x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor, first: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    logits = high(x @ w.T)
    top = logits.amax(-1)
    label = labels - first
    here = (label >= 0) & (label < w.size(0))
    own = logits.gather(1, torch.where(here, label, 0)[:, None])[:, 0]
    return top, torch.exp(logits - top[:, None]).sum(-1), torch.where(here, own, 0.0)


def make_loss_of_a_shard(device: str, small: bool) -> Arguments:
    t, d, v = (13, 48, 75) if small else (4096, 1024, 16032)
    labels = torch.randint(0, 4 * v, [t], device=device)
    labels = torch.where(torch.arange(t, device=device) % 3 == 0, v + labels % v, labels)
    return normal(device, t, d, dtype=BF16), normal(device, v, d, dtype=BF16, scale=d**-0.5), labels, v


CELLS.add(loss_of_a_shard, make_loss_of_a_shard, loss_of_a_shard_torch)


@helion.kernel
def clip_each_layer(grads: torch.Tensor, limits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Clip the gradient of each of the layers `grads[L, N]` to a norm of `limits[L]`; infinite numbers become 0."""
    layers, n = grads.size()
    squares = torch.zeros([layers], dtype=torch.float32, device=grads.device)
    out = torch.empty_like(grads)
    for layer, cols in hl.tile([layers, n], block_size=[1, None]):
        g = grads[layer.begin, cols].to(torch.float32)
        g = torch.where(torch.isfinite(g), g, 0.0)
        hl.atomic_add(squares, [layer.begin], (g * g).sum())
    hl.barrier()
    for layer, cols in hl.tile([layers, n], block_size=[1, None]):
        norm = torch.sqrt(squares[layer.begin])
        factor = torch.clamp(limits[layer.begin] / (norm + 1e-6), max=1.0)
        g = grads[layer.begin, cols].to(torch.float32)
        out[layer.begin, cols] = (torch.where(torch.isfinite(g), g, 0.0) * factor).to(grads.dtype)
    return out, squares


def clip_each_layer_torch(grads: torch.Tensor, limits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    g = high(grads)
    g = torch.where(torch.isfinite(g), g, 0.0)
    squares = (g * g).sum(1)
    factor = torch.clamp(limits / (torch.sqrt(squares) + 1e-6), max=1.0)
    return (g * factor[:, None]).to(grads.dtype), squares


def make_clip_each_layer(device: str, small: bool) -> Arguments:
    layers, n = (3, 301) if small else (36, 1500000)
    grads = normal(device, layers, n, dtype=BF16, scale=0.01)
    grads[:, 7] = math.inf
    return grads, torch.rand([layers], device=device) * 0.02 * math.sqrt(n)


CELLS.add(clip_each_layer, make_clip_each_layer, clip_each_layer_torch)


@helion.kernel
def best_of_bisection(logits: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities of about the `k[B]` best tokens of each row of `logits[B, V]`, zeros for the others, and a
    threshold. Eighteen bisections between the smallest and the largest logit find the threshold."""
    b, v = logits.size()
    out = torch.empty([b, v], dtype=torch.float32, device=logits.device)
    thresholds = torch.empty([b], dtype=torch.float32, device=logits.device)
    for tile in hl.tile(b):
        x = logits[tile, :].to(torch.float32)
        wanted = k[tile]
        top = x.amax(-1)
        low, upper = x.amin(-1), top
        for _ in range(18):
            middle = 0.5 * (low + upper)
            enough = (x >= middle[:, None]).to(torch.int32).sum(-1) >= wanted
            low = torch.where(enough, middle, low)
            upper = torch.where(enough, upper, middle)
        p = torch.where(x >= low[:, None], torch.exp(x - top[:, None]), 0.0)
        out[tile, :] = p / p.sum(-1)[:, None]
        thresholds[tile] = low
    return out, thresholds


def best_of_bisection_torch(logits: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = high(logits)
    top = x.amax(-1)
    low, upper = x.amin(-1), top
    for _ in range(18):
        middle = 0.5 * (low + upper)
        enough = (x >= middle[:, None]).sum(-1) >= k
        low, upper = torch.where(enough, middle, low), torch.where(enough, upper, middle)
    p = torch.where(x >= low[:, None], torch.exp(x - top[:, None]), 0.0)
    return p / p.sum(-1, keepdim=True), low


def make_best_of_bisection(device: str, small: bool) -> Arguments:
    b, v = (9, 75) if small else (512, 32000)
    k = torch.randint(5, 65, [b], device=device, dtype=torch.int32)
    return normal(device, b, v, dtype=BF16, scale=2.0), k


CELLS.add(best_of_bisection, make_best_of_bisection, best_of_bisection_torch)


@helion.kernel
def gated_short_convolution(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """`c * conv(b * v)` of projections b, c and v packed as `x[B, T, 3, C]`, causal over `taps[C, 3]` of each channel."""
    b, t, _, c = x.size()
    out = torch.empty([b, t, c], dtype=x.dtype, device=x.device)
    for bi, tokens, cols in hl.tile([b, t, c], block_size=[1, None, None]):
        batch = bi.begin
        total = hl.zeros([tokens, cols], dtype=torch.float32)
        for back in hl.static_range(3):
            place = tokens.index - back
            inside = (place >= 0)[:, None]
            gate = hl.load(x, [batch, place, 0, cols], extra_mask=inside).to(torch.float32)
            value = hl.load(x, [batch, place, 2, cols], extra_mask=inside).to(torch.float32)
            total += gate * value * taps[cols, 2 - back].to(torch.float32)[None, :]
        out[batch, tokens, cols] = (x[batch, tokens, 1, cols].to(torch.float32) * total).to(x.dtype)
    return out


def gated_short_convolution_torch(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    gate, scale, value = high(x).unbind(2)
    y = F.conv1d(F.pad((gate * value).transpose(1, 2), [2, 0]), high(taps)[:, None], groups=taps.size(0))
    return (scale * y.transpose(1, 2)).to(x.dtype)


def gated_short_convolution_baseline(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    gate, scale, value = x.float().unbind(2)
    padded, w, t = F.pad(gate * value, [0, 0, 2, 0]), taps.float(), x.size(1)
    y = padded[:, :t] * w[:, 0] + padded[:, 1 : t + 1] * w[:, 1] + padded[:, 2:] * w[:, 2]
    return (scale * y).to(x.dtype)


def make_gated_short_convolution(device: str, small: bool) -> Arguments:
    b, t, c = (2, 13, 40) if small else (4, 4096, 2048)
    return normal(device, b, t, 3, c, dtype=BF16), normal(device, c, 3, dtype=BF16)


CELLS.add(
    gated_short_convolution,
    make_gated_short_convolution,
    gated_short_convolution_torch,
    gated_short_convolution_baseline,
)


@helion.kernel
def ring_cache_decode(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, places: torch.Tensor, sinks: torch.Tensor
) -> torch.Tensor:
    """Attention of one token, queries `[B, G, R, D]`, to a ring of the last W tokens `[B, W, G, D]`, of which
    `places[B] + 1` came so far; logits `sinks[G, R]` take their share of the probabilities."""
    b, g, r, d = q.size()
    width = k.size(1)
    r, d = hl.specialize(r), hl.specialize(d)
    out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(d)
    for sequence, group in hl.grid([b, g]):
        query = q[sequence, group, :, :]
        filled = torch.clamp(places[sequence] + 1, max=width)
        m = sinks[group, :].to(torch.float32)
        total = hl.full([r], 1.0, dtype=torch.float32)
        acc = hl.zeros([r, d], dtype=torch.float32)
        for slots in hl.tile(filled):
            s = hl.dot(query, k[sequence, slots, group, :].T) * scale
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp(s - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[sequence, slots, group, :], acc=acc * alpha[:, None])
            m = new
        out[sequence, group, :, :] = (acc / total[:, None]).to(q.dtype)
    return out


def ring_cache_decode_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, places: torch.Tensor, sinks: torch.Tensor
) -> torch.Tensor:
    keys, values = k.transpose(1, 2), v.transpose(1, 2)
    scores = high(q @ keys.transpose(-1, -2)) / math.sqrt(q.size(-1))
    keep = torch.arange(k.size(1), device=k.device) <= places[:, None]
    scores = scores.masked_fill(~keep[:, None, None], -math.inf)
    sink = high(sinks)[None, :, :, None].expand(q.size(0), -1, -1, 1)
    p = torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]
    return p.to(v.dtype) @ values


def make_ring_cache_decode(device: str, small: bool) -> Arguments:
    b, w, g, r, d = (2, 37, 2, 4, 32) if small else (64, 2048, 8, 8, 64)
    k, v = (normal(device, b, w, g, d, dtype=BF16) for _ in range(2))
    places = torch.randint(w // 2, 4 * w, [b], device=device, dtype=torch.int32)
    return normal(device, b, g, r, d, dtype=BF16), k, v, places, normal(device, g, r, dtype=BF16)


CELLS.add(ring_cache_decode, make_ring_cache_decode, ring_cache_decode_torch)


@helion.kernel
def centered_int8_keys(k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys `[B, T, H, D]` less their mean over all tokens, in int8 as `[B, H, T, D]` with a scale for each 64 tokens.
    Also returns the means `[B, H, D]`."""
    b, t, h, d = k.size()
    d = hl.specialize(d)
    means = torch.zeros([b, h, d], dtype=torch.float32, device=k.device)
    out = torch.empty([b, h, t, d], dtype=torch.int8, device=k.device)
    scales = torch.empty([b, h, helion.cdiv(t, 64)], dtype=torch.float32, device=k.device)
    for bi, hi, tokens in hl.tile([b, h, t], block_size=[1, 1, None]):
        part = k[bi.begin, tokens, hi.begin, :].to(torch.float32).sum(0)
        hl.atomic_add(means, [bi.begin, hi.begin, slice(None)], part / t)
    hl.barrier()
    for bi, hi, tokens in hl.tile([b, h, t], block_size=[1, 1, 64]):
        batch, head = bi.begin, hi.begin
        x = k[batch, tokens, head, :].to(torch.float32) - means[batch, head, :][None, :]
        x = torch.where((tokens.index < t)[:, None], x, 0.0)
        scale = torch.clamp(torch.abs(x).amax(), min=1e-6) / 127.0
        out[batch, head, tokens, :] = torch.round(x / scale).to(torch.int8)
        scales[batch, head, tokens.id] = scale
    return out, scales, means


def centered_int8_keys_torch(k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = high(k).transpose(1, 2)
    t = x.size(2)
    means = x.mean(2)
    x = F.pad(x - means[:, :, None], [0, 0, 0, -t % 64]).unflatten(2, [-1, 64])
    scales = torch.clamp(x.abs().amax((-1, -2)), min=1e-6) / 127.0
    codes = torch.round(x / scales[..., None, None]).to(torch.int8)
    return codes.flatten(2, 3)[:, :, :t].contiguous(), scales, means


def make_centered_int8_keys(device: str, small: bool) -> Arguments:
    b, t, h, d = (2, 77, 2, 16) if small else (2, 8192, 24, 128)
    return ((normal(device, b, t, h, d) + normal(device, b, 1, h, d)).to(BF16),)


CELLS.add(centered_int8_keys, make_centered_int8_keys, centered_int8_keys_torch)
