"""Losses of tokens, routing, optimizers, embeddings and caches of language models."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def capped_logits_gradient(
    logits: torch.Tensor, labels: torch.Tensor, upstream: torch.Tensor, cap: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross entropy of `cap tanh(logits / cap)` of `[T, V]`, and its gradient times `upstream[T]`."""
    t, v = logits.size()
    loss = torch.empty([t], dtype=torch.float32, device=logits.device)
    grad = torch.empty_like(logits)
    for row in hl.grid(t):
        x = torch.tanh(logits[row, :].to(torch.float32) / cap)
        y = cap * x
        lse = torch.logsumexp(y, 0)
        label = labels[row]
        hit = hl.arange(v) == label
        loss[row] = lse - torch.where(hit, y, 0.0).sum(0)
        slope = (torch.exp(y - lse) - torch.where(hit, 1.0, 0.0)) * (1.0 - x * x)
        grad[row, :] = (slope * upstream[row]).to(logits.dtype)
    return loss, grad


def capped_logits_gradient_torch(
    logits: torch.Tensor, labels: torch.Tensor, upstream: torch.Tensor, cap: float
) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.tanh(high(logits) / cap)
    y = cap * x
    lse = torch.logsumexp(y, -1, keepdim=True)
    hit = torch.arange(y.size(1), device=y.device)[None] == labels[:, None]
    slope = (torch.exp(y - lse) - hit.to(y.dtype)) * (1.0 - x * x) * upstream[:, None]
    return (lse - y.gather(1, labels[:, None]))[:, 0], slope.to(logits.dtype)


def make_capped_logits_gradient(device: str, small: bool) -> Arguments:
    t, v = (13, 75) if small else (2048, 65536)
    labels = torch.randint(0, v, [t], device=device)
    return normal(device, t, v, dtype=BF16, scale=8.0), labels, torch.rand([t], device=device), 30.0


CELLS.add(capped_logits_gradient, make_capped_logits_gradient, capped_logits_gradient_torch)


@helion.kernel
def token_policy_terms(
    logits: torch.Tensor, actions: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of the drawn token and entropy of each row of `logits[T, V]`, in one pass."""
    t, v = logits.size()
    chosen = torch.empty([t], dtype=torch.float32, device=logits.device)
    entropy = torch.empty_like(chosen)
    for rows in hl.tile(t):
        m = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        weighted = hl.zeros([rows], dtype=torch.float32)
        own = hl.zeros([rows], dtype=torch.float32)
        action = actions[rows]
        for cols in hl.tile(v):
            x = logits[rows, cols].to(torch.float32) / temperature
            new = torch.maximum(m, x.amax(-1))
            p = torch.exp(x - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            weighted = weighted * alpha + (p * x).sum(-1)
            own += torch.where(cols.index[None, :] == action[:, None], x, 0.0).sum(-1)
            m = new
        lse = m + torch.log(total)
        chosen[rows] = own - lse
        entropy[rows] = lse - weighted / total
    return chosen, entropy


def token_policy_terms_torch(
    logits: torch.Tensor, actions: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.log_softmax(high(logits) / temperature, -1)
    return x.gather(1, actions[:, None])[:, 0], -(torch.exp(x) * x).sum(-1)


def make_token_policy_terms(device: str, small: bool) -> Arguments:
    t, v = (13, 75) if small else (3000, 128256)
    return normal(device, t, v, dtype=BF16, scale=2.0), torch.randint(0, v, [t], device=device), 0.8


CELLS.add(token_policy_terms, make_token_policy_terms, token_policy_terms_torch)


@helion.kernel
def clipped_policy_loss(
    new: torch.Tensor,
    old: torch.Tensor,
    base: torch.Tensor,
    advantage: torch.Tensor,
    lengths: torch.Tensor,
    clip: float,
    beta: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Means of clipped policy losses with a KL term over the first `lengths[B]` tokens of `[B, T]`, and gradients."""
    b, t = new.size()
    loss = torch.empty([b], dtype=torch.float32, device=new.device)
    grad = torch.empty_like(new)
    for tile in hl.tile(b):
        length = lengths[tile].to(torch.float32)
        gain = advantage[tile][:, None]
        total = hl.zeros([tile], dtype=torch.float32)
        for tokens in hl.tile(t):
            x = new[tile, tokens]
            ratio = torch.exp(x - old[tile, tokens])
            ahead = base[tile, tokens].to(torch.float32) - x
            behind = torch.exp(ahead)
            bounded = torch.clamp(ratio, 1.0 - clip, 1.0 + clip)
            term = torch.minimum(ratio * gain, bounded * gain)
            keep = tokens.index[None, :] < lengths[tile][:, None]
            total += torch.where(keep, beta * (behind - ahead - 1.0) - term, 0.0).sum(-1)
            slope = beta * (1.0 - behind) - torch.where(ratio * gain <= bounded * gain, ratio * gain, 0.0)
            grad[tile, tokens] = torch.where(keep, slope / length[:, None], 0.0)
        loss[tile] = total / length
    return loss, grad


def clipped_policy_loss_torch(
    new: torch.Tensor,
    old: torch.Tensor,
    base: torch.Tensor,
    advantage: torch.Tensor,
    lengths: torch.Tensor,
    clip: float,
    beta: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    gain, length = advantage[:, None], lengths[:, None]
    ratio, ahead = torch.exp(new - old), high(base) - new
    behind = torch.exp(ahead)
    bounded = torch.clamp(ratio, 1.0 - clip, 1.0 + clip)
    keep = torch.arange(new.size(1), device=new.device)[None] < length
    term = torch.minimum(ratio * gain, bounded * gain)
    loss = torch.where(keep, beta * (behind - ahead - 1.0) - term, 0.0).sum(-1) / lengths
    slope = beta * (1.0 - behind) - torch.where(ratio * gain <= bounded * gain, ratio * gain, 0.0)
    return loss, torch.where(keep, slope / length, 0.0)


def make_clipped_policy_loss(device: str, small: bool) -> Arguments:
    b, t = (5, 37) if small else (1024, 8192)
    new = -torch.rand([b, t], device=device)
    old, base = new + normal(device, b, t, scale=0.2), (new + normal(device, b, t, scale=0.1)).to(BF16)
    lengths = torch.randint(t // 4, t + 1, [b], device=device, dtype=torch.int32)
    return new, old, base, normal(device, b), lengths, 0.2, 0.04


CELLS.add(clipped_policy_loss, make_clipped_policy_loss, clipped_policy_loss_torch)


@helion.kernel
def balance_sums(logits: torch.Tensor, coefficient: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The best expert of each token of `logits[T, E]` with its probability, and the loss that balances experts."""
    t, e = logits.size()
    share = torch.zeros([e], dtype=torch.float32, device=logits.device)
    mass = torch.zeros([e], dtype=torch.float32, device=logits.device)
    expert = torch.empty([t], dtype=torch.int64, device=logits.device)
    weight = torch.empty([t], dtype=torch.float32, device=logits.device)
    loss = torch.empty([1], dtype=torch.float32, device=logits.device)
    for tile in hl.tile(t):
        p = torch.softmax(logits[tile, :].to(torch.float32), -1)
        best = torch.argmax(p, -1)
        expert[tile] = best
        weight[tile] = p.amax(-1)
        hit = hl.arange(e)[None, :] == best[:, None]
        real = (tile.index < t)[:, None]
        hl.atomic_add(share, [slice(None)], torch.where(hit & real, 1.0, 0.0).sum(0))
        hl.atomic_add(mass, [slice(None)], torch.where(real, p, 0.0).sum(0))
    hl.barrier()
    for one in hl.grid(1):
        loss[one] = coefficient * e * (share[:] / t * mass[:] / t).sum(0)
    return expert, weight, loss


def balance_sums_torch(logits: torch.Tensor, coefficient: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    p = torch.softmax(high(logits), -1)
    weight, expert = p.max(-1)
    share = F.one_hot(expert, p.size(1)).to(p.dtype).mean(0)
    return expert, weight, (coefficient * p.size(1) * (share * p.mean(0)).sum()).reshape(1)


def make_balance_sums(device: str, small: bool) -> Arguments:
    t, e = (37, 12) if small else (131072, 128)
    places = torch.argsort(torch.rand([t, e], device=device), 1)
    return (places + torch.rand([t, e], device=device) * 0.25).float() * 0.25, 0.01


CELLS.add(balance_sums, make_balance_sums, balance_sums_torch)


@helion.kernel
def group_limited_experts(logits: torch.Tensor, bias: torch.Tensor, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight experts of each token from its four best groups of `logits[T, G, E]`, with normalized sigmoids.
    A group counts by its two best `sigmoid + bias`."""
    t, groups, each = logits.size()
    groups, each = hl.specialize(groups), hl.specialize(each)
    ids = torch.empty([t, 8], dtype=torch.int64, device=logits.device)
    weights = torch.empty([t, 8], dtype=torch.float32, device=logits.device)
    for tile in hl.tile(t):
        score = torch.sigmoid(logits[tile, :, :].to(torch.float32))
        choice = score + bias[:, :][None, :, :]
        place = hl.arange(each)[None, None, :]
        best = choice.amax(-1)
        rest = torch.where(place == choice.argmax(-1)[:, :, None], float("-inf"), choice)
        rank = best + rest.amax(-1)
        better = (rank[:, None, :] > rank[:, :, None]).to(torch.int32).sum(-1)
        choice = torch.where((better < 4)[:, :, None], choice, float("-inf"))
        flat = choice.flatten(1)
        scores = score.flatten(1)
        numbers = hl.arange(groups * each)[None, :]
        total = hl.zeros([tile], dtype=torch.float32)
        for i in hl.static_range(8):
            found = flat.argmax(-1)
            hit = numbers == found[:, None]
            value = torch.where(hit, scores, 0.0).sum(-1)
            ids[tile, i] = found
            weights[tile, i] = value
            total += value
            flat = torch.where(hit, float("-inf"), flat)
        for i in hl.static_range(8):
            weights[tile, i] = weights[tile, i] * factor / total
    return ids, weights


def group_limited_experts_torch(
    logits: torch.Tensor, bias: torch.Tensor, factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    score = torch.sigmoid(high(logits))
    choice = score + bias
    groups = choice.topk(2, -1).values.sum(-1).topk(4, -1).indices
    keep = torch.zeros(choice.shape[:2], dtype=torch.bool, device=choice.device).scatter(1, groups, True)
    ids = choice.masked_fill(~keep[..., None], float("-inf")).flatten(1).topk(8, -1).indices
    weights = score.flatten(1).gather(1, ids)
    return ids, weights * factor / weights.sum(-1, keepdim=True)


def make_group_limited_experts(device: str, small: bool) -> Arguments:
    t, groups, each = (13, 8, 4) if small else (65536, 8, 32)
    places = torch.argsort(torch.rand([t, groups * each], device=device), 1).view(t, groups, each)
    logits = places.float() * (4.0 / (groups * each)) - 2.0
    return logits.to(BF16), normal(device, groups, each, scale=1e-4), 2.5


CELLS.add(group_limited_experts, make_group_limited_experts, group_limited_experts_torch)


@helion.kernel
def trust_ratio_step(
    weight: torch.Tensor, grad: torch.Tensor, first: torch.Tensor, second: torch.Tensor, rate: float, decay: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A step of LAMB of `weight[M, N]` in place: the update is scaled by the ratio of both norms."""
    m, n = weight.size()
    norms = torch.zeros([2], dtype=torch.float32, device=weight.device)
    update = torch.empty_like(weight)
    for rows, cols in hl.tile([m, n]):
        g = grad[rows, cols].to(torch.float32)
        w = weight[rows, cols]
        moment = 0.9 * first[rows, cols] + 0.1 * g
        square = 0.999 * second[rows, cols] + 0.001 * g * g
        first[rows, cols] = moment
        second[rows, cols] = square
        step = moment / (torch.sqrt(square) + 1e-6) + decay * w
        update[rows, cols] = step
        hl.atomic_add(norms, [0], (w * w).sum())
        hl.atomic_add(norms, [1], (step * step).sum())
    hl.barrier()
    for rows, cols in hl.tile([m, n]):
        ratio = torch.sqrt(norms[0]) / torch.clamp(torch.sqrt(norms[1]), min=1e-9)
        weight[rows, cols] = weight[rows, cols] - rate * ratio * update[rows, cols]
    return weight, first, second


def trust_ratio_step_torch(
    weight: torch.Tensor, grad: torch.Tensor, first: torch.Tensor, second: torch.Tensor, rate: float, decay: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = high(grad)
    first.copy_(0.9 * first + 0.1 * g)
    second.copy_(0.999 * second + 0.001 * g * g)
    step = first / (torch.sqrt(second) + 1e-6) + decay * weight
    ratio = weight.norm() / torch.clamp(step.norm(), min=1e-9)
    return weight.copy_(weight - rate * ratio * step), first, second


def make_trust_ratio_step(device: str, small: bool) -> Arguments:
    m, n = (13, 75) if small else (4096, 4096)
    second = torch.rand([m, n], device=device) * 1e-4 + 1e-6
    grad = normal(device, m, n, dtype=BF16, scale=0.01)
    return normal(device, m, n), grad, normal(device, m, n, scale=0.01), second, 1e-2, 0.01


CELLS.add(trust_ratio_step, make_trust_ratio_step, trust_ratio_step_torch)


@helion.kernel
def schedule_free_step(
    shown: torch.Tensor, base: torch.Tensor, second: torch.Tensor, grad: torch.Tensor, rate: float, mix: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A step of schedule-free AdamW in place, of weights in bf16 that mix a base in fp32 with its average."""
    flat, z, v, g = shown.view(-1), base.view(-1), second.view(-1), grad.view(-1)
    for tile in hl.tile(flat.size(0)):
        slope = g[tile].to(torch.float32)
        y = flat[tile].to(torch.float32)
        square = 0.999 * v[tile] + 0.001 * slope * slope
        v[tile] = square
        slope = slope / (torch.sqrt(square) + 1e-8) + 0.01 * y
        old = z[tile]
        y = y + mix * (old - y) + rate * (0.9 * (1.0 - mix) - 1.0) * slope
        z[tile] = old - rate * slope
        flat[tile] = y.to(shown.dtype)
    return shown, base, second


def schedule_free_step_torch(
    shown: torch.Tensor, base: torch.Tensor, second: torch.Tensor, grad: torch.Tensor, rate: float, mix: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    slope, y = high(grad), high(shown)
    second.mul_(0.999).add_(0.001 * slope * slope)
    slope = slope / (torch.sqrt(second) + 1e-8) + 0.01 * y
    shown.copy_(y + mix * (base - y) + rate * (0.9 * (1.0 - mix) - 1.0) * slope)
    return shown, base.sub_(rate * slope), second


def make_schedule_free_step(device: str, small: bool) -> Arguments:
    m, n = (13, 75) if small else (3001, 8192)
    base = normal(device, m, n)
    shown = (base + normal(device, m, n, scale=0.05)).to(BF16)
    second = torch.rand([m, n], device=device) * 1e-4 + 1e-6
    return shown, base, second, normal(device, m, n, dtype=BF16, scale=0.01), 1e-2, 0.02


CELLS.add(schedule_free_step, make_schedule_free_step, schedule_free_step_torch)


@helion.kernel
def two_tables_gradient(
    grad: torch.Tensor, words: torch.Tensor, places: torch.Tensor, vocabulary: int, longest: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of embeddings of words and of places in packed sequences, from `grad[T, D]`."""
    t, d = grad.size()
    by_word = torch.zeros([vocabulary, d], dtype=torch.float32, device=grad.device)
    by_place = torch.zeros([longest, d], dtype=torch.float32, device=grad.device)
    for rows, cols in hl.tile([t, d]):
        g = grad[rows, cols].to(torch.float32)
        hl.atomic_add(by_word, [words[rows], cols], g)
        hl.atomic_add(by_place, [places[rows], cols], g)
    return by_word, by_place


def two_tables_gradient_torch(
    grad: torch.Tensor, words: torch.Tensor, places: torch.Tensor, vocabulary: int, longest: int
) -> tuple[torch.Tensor, torch.Tensor]:
    g = high(grad)
    by_word = torch.zeros([vocabulary, g.size(1)], dtype=g.dtype, device=g.device).index_add_(0, words, g)
    by_place = torch.zeros([longest, g.size(1)], dtype=g.dtype, device=g.device).index_add_(0, places, g)
    return by_word, by_place


def make_two_tables_gradient(device: str, small: bool) -> Arguments:
    t, d, vocabulary, longest = (37, 24, 20, 11) if small else (32768, 768, 30522, 1024)
    words = torch.randint(0, vocabulary, [t], device=device)
    return normal(device, t, d, dtype=BF16), words, torch.arange(t, device=device) % longest, vocabulary, longest


CELLS.add(two_tables_gradient, make_two_tables_gradient, two_tables_gradient_torch)


@helion.kernel
def bit_mask_dropout_gradient(
    grad: torch.Tensor, bits: torch.Tensor, scale: torch.Tensor, p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of `dropout(x) * scale[D]`, whose mask has a bit for each element, and the mask's share of each row."""
    t, d8 = bits.size()
    out = torch.empty_like(grad)
    kept = torch.empty([t], dtype=torch.float32, device=grad.device)
    groups, results, scales = grad.view(t, d8, 8), out.view(t, d8, 8), scale.view(d8, 8)
    for tile in hl.tile(t):
        byte = bits[tile, :].to(torch.int32)
        keep = ((byte[:, :, None] >> hl.arange(8)[None, None, :]) & 1) == 1
        g = groups[tile, :, :].to(torch.float32) * scales[:, :].to(torch.float32)[None, :, :]
        results[tile, :, :] = torch.where(keep, g / (1.0 - p), 0.0).to(grad.dtype)
        kept[tile] = keep.to(torch.float32).sum(-1).sum(-1) / (8 * d8)
    return out, kept


def bit_mask_dropout_gradient_torch(
    grad: torch.Tensor, bits: torch.Tensor, scale: torch.Tensor, p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    keep = ((bits[:, :, None] >> torch.arange(8, device=bits.device)) & 1).flatten(1) == 1
    out = torch.where(keep, high(grad) * high(scale) / (1.0 - p), 0.0).to(grad.dtype)
    return out, high(keep.to(scale.dtype)).mean(-1)


def make_bit_mask_dropout_gradient(device: str, small: bool) -> Arguments:
    t, d = (13, 80) if small else (16384, 2560)
    bits = torch.randint(0, 256, [t, d // 8], device=device, dtype=torch.uint8)
    return normal(device, t, d, dtype=BF16), bits, normal(device, d, dtype=BF16), 0.5


CELLS.add(bit_mask_dropout_gradient, make_bit_mask_dropout_gradient, bit_mask_dropout_gradient_torch)


@helion.kernel
def append_int4_cache(
    k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, cache: torch.Tensor, scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Write keys and values `[T, H, D]` in 4 bits to `cache[S, 2, H, D / 2]`, with a scale for each head and token.
    Neighbours share a byte; a token with a negative slot is left out."""
    t, h, _ = k.size()
    half = hl.specialize(cache.size(3))
    keys, values = k.view(t, h, half, 2), v.view(t, h, half, 2)
    for tile, heads in hl.tile([t, h]):
        slot = slots[tile]
        used = (slot >= 0)[:, None]
        for which in hl.static_range(2):
            pairs = keys[tile, heads, :, :] if which == 0 else values[tile, heads, :, :]
            low, upper = hl.split(pairs.to(torch.float32))
            top = torch.maximum(torch.abs(low).amax(-1), torch.abs(upper).amax(-1))
            scale = torch.clamp(top, min=1e-6) / 7.0
            low = torch.clamp(torch.round(low / scale[:, :, None]), -7.0, 7.0).to(torch.int32) + 8
            upper = torch.clamp(torch.round(upper / scale[:, :, None]), -7.0, 7.0).to(torch.int32) + 8
            packed = (low | (upper << 4)).to(torch.uint8)
            hl.store(cache, [slot, which, heads, slice(None)], packed, extra_mask=used[:, :, None])
            hl.store(scales, [slot, which, heads], scale.to(scales.dtype), extra_mask=used)
    return cache, scales


def append_int4_cache_torch(
    k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, cache: torch.Tensor, scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = torch.stack([k, v], 1)
    x = high(pairs)
    scale = torch.clamp(x.abs().amax(-1), min=1e-6) / 7.0
    codes = torch.clamp(torch.round(x / scale[..., None]), -7.0, 7.0).to(torch.int32) + 8
    packed = (codes[..., ::2] | (codes[..., 1::2] << 4)).to(torch.uint8)
    keep = slots >= 0
    safe = torch.where(keep, slots, slots.max() + 1)
    cache[safe] = torch.where(keep[:, None, None, None], packed, cache[safe])
    scales[safe] = torch.where(keep[:, None, None], scale.to(scales.dtype), scales[safe])
    return cache, scales


def make_append_int4_cache(device: str, small: bool) -> Arguments:
    t, h, d, count = (13, 3, 16, 40) if small else (32768, 8, 128, 65536)
    slots = torch.randperm(count - 1, device=device)[:t]
    slots = torch.where(torch.arange(t, device=device) % 7 == 3, -1, slots)
    cache = torch.zeros([count, 2, h, d // 2], dtype=torch.uint8, device=device)
    scales = torch.zeros([count, 2, h], dtype=torch.float32, device=device)
    return *(normal(device, t, h, d, dtype=BF16) for _ in range(2)), slots, cache, scales


CELLS.add(append_int4_cache, make_append_int4_cache, append_int4_cache_torch)
