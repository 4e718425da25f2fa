"""Training steps: gradients of norms and losses, optimizers, embeddings."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, FP16, Arguments, Cells, below, heads, high, normal, offsets_of

CELLS = Cells()


@helion.kernel
def rms_norm_gradient(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, inverse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of an RMS norm for x and for its weights, which are added up in parts."""
    m, n = x.size()
    n = hl.specialize(n)
    block = hl.register_block_size(m)
    dx = torch.empty_like(x)
    parts = torch.empty([helion.cdiv(m, block), n], dtype=torch.float32, device=x.device)
    for outer in hl.tile(m, block_size=block):
        w = weight[:].to(torch.float32)
        acc = hl.zeros([n])
        for rows in hl.tile(outer.begin, outer.end):
            r = inverse[rows][:, None]
            g = grad[rows, :].to(torch.float32)
            unit = x[rows, :].to(torch.float32) * r
            scaled = g * w[None, :]
            dx[rows, :] = (r * (scaled - unit * (scaled * unit).mean(-1)[:, None])).to(x.dtype)
            acc += (g * unit).sum(0)
        parts[outer.id, :] = acc
    return dx, parts.sum(0).to(weight.dtype)


def rms_norm_gradient_torch(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, inverse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    r = inverse[:, None]
    unit, scaled = high(x) * r, high(grad) * high(weight)
    dx = r * (scaled - unit * (scaled * unit).mean(-1, keepdim=True))
    return dx.to(x.dtype), (high(grad) * unit).sum(0).to(weight.dtype)


def make_rms_norm_gradient(device: str, small: bool) -> Arguments:
    m, n = (37, 65) if small else (8192, 4096)
    x = normal(device, m, n, dtype=BF16)
    inverse = torch.rsqrt((high(x) ** 2).mean(-1) + 1e-6)
    return normal(device, m, n, dtype=BF16), x, normal(device, n, dtype=BF16), inverse


CELLS.add(rms_norm_gradient, make_rms_norm_gradient, rms_norm_gradient_torch)


@helion.kernel
def layer_norm_gradient(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, inverse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of a layer norm for x, weight and bias; the last two by atomic additions."""
    m, n = x.size()
    dx = torch.empty_like(x)
    dw = torch.zeros([n], dtype=torch.float32, device=x.device)
    db = torch.zeros([n], dtype=torch.float32, device=x.device)
    for rows in hl.tile(m):
        g = grad[rows, :].to(torch.float32)
        unit = (x[rows, :].to(torch.float32) - mean[rows][:, None]) * inverse[rows][:, None]
        scaled = g * weight[:].to(torch.float32)[None, :]
        first = scaled.mean(-1, keepdim=True)
        second = (scaled * unit).mean(-1, keepdim=True)
        dx[rows, :] = (inverse[rows][:, None] * (scaled - first - unit * second)).to(x.dtype)
        hl.atomic_add(dw, [slice(None)], (g * unit).sum(0))
        hl.atomic_add(db, [slice(None)], g.sum(0))
    return dx, dw, db


def layer_norm_gradient_torch(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, inverse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    r = inverse[:, None]
    g, unit = high(grad), (high(x) - mean[:, None]) * r
    scaled = g * high(weight)
    dx = r * (scaled - scaled.mean(-1, keepdim=True) - unit * (scaled * unit).mean(-1, keepdim=True))
    return dx.to(x.dtype), (g * unit).sum(0), g.sum(0)


def make_layer_norm_gradient(device: str, small: bool) -> Arguments:
    m, n = (33, 63) if small else (32768, 1000)
    x = normal(device, m, n, dtype=FP16)
    mean, inverse = high(x).mean(-1), torch.rsqrt(high(x).var(-1, correction=0) + 1e-5)
    return normal(device, m, n, dtype=FP16), x, normal(device, n, dtype=FP16), mean, inverse


CELLS.add(layer_norm_gradient, make_layer_norm_gradient, layer_norm_gradient_torch)


@helion.kernel
def swiglu_gradient(packed: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient of `silu(gate) * up` of packed rows `[M, 2, N]`, and the product again for the next gradient."""
    m, n = grad.size()
    out = torch.empty_like(packed)
    again = torch.empty_like(grad)
    for rows, columns in hl.tile([m, n]):
        gate = packed[rows, 0, columns].to(torch.float32)
        up = packed[rows, 1, columns].to(torch.float32)
        g = grad[rows, columns].to(torch.float32)
        s = torch.sigmoid(gate)
        out[rows, 0, columns] = (g * up * s * (1 + gate * (1 - s))).to(packed.dtype)
        out[rows, 1, columns] = (g * gate * s).to(packed.dtype)
        again[rows, columns] = (gate * s * up).to(grad.dtype)
    return out, again


def swiglu_gradient_torch(packed: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gate, up = high(packed).unbind(1)
    g, s = high(grad), torch.sigmoid(gate)
    out = torch.stack([g * up * s * (1 + gate * (1 - s)), g * gate * s], 1).to(packed.dtype)
    return out, (gate * s * up).to(grad.dtype)


def make_swiglu_gradient(device: str, small: bool) -> Arguments:
    m, n = (33, 63) if small else (8192, 2730)
    return normal(device, m, 2, n, dtype=BF16), normal(device, m, n, dtype=BF16)


CELLS.add(swiglu_gradient, make_swiglu_gradient, swiglu_gradient_torch)


@helion.kernel
def smoothed_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross entropy with label smoothing of each row, and its gradient; rows with a label of -100 give zeros."""
    t, v = logits.size()
    loss = torch.empty([t], dtype=torch.float32, device=logits.device)
    grad = torch.empty_like(logits)
    for tile in hl.tile(t):
        x = logits[tile, :].to(torch.float32)
        label = labels[tile]
        kept = label != -100
        top = torch.amax(x, -1)
        shifted = torch.exp(x - top[:, None])
        total = shifted.sum(-1)
        hit = hl.arange(v)[None, :] == label[:, None]
        own = torch.where(hit, x, 0.0).sum(-1)
        each = top + torch.log(total) - (1 - smoothing) * own - smoothing * x.mean(-1)
        loss[tile] = torch.where(kept, each, 0.0)
        slope = shifted / total[:, None] - torch.where(hit, 1 - smoothing, 0.0) - smoothing / v
        grad[tile, :] = torch.where(kept[:, None], slope, 0.0).to(logits.dtype)
    return loss, grad


def smoothed_cross_entropy_torch(
    logits: torch.Tensor, labels: torch.Tensor, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    x = high(logits)
    v = logits.size(1)
    loss = F.cross_entropy(x, labels, reduction="none", label_smoothing=smoothing, ignore_index=-100)
    hit = torch.arange(v, device=logits.device)[None] == labels[:, None]
    slope = torch.softmax(x, -1) - torch.where(hit, 1 - smoothing, 0.0) - smoothing / v
    return loss, torch.where((labels != -100)[:, None], slope, 0.0).to(logits.dtype)


def make_smoothed_cross_entropy(device: str, small: bool) -> Arguments:
    t, v = (17, 63) if small else (2048, 32003)
    labels = torch.randint(0, v, [t], device=device)
    return normal(device, t, v, dtype=BF16), torch.where(torch.rand([t], device=device) < 0.1, -100, labels), 0.1


CELLS.add(smoothed_cross_entropy, make_smoothed_cross_entropy, smoothed_cross_entropy_torch)


@helion.kernel
def focal_loss(logits: torch.Tensor, targets: torch.Tensor, alpha: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Focal loss (gamma of 2) of sigmoids of `[N, C]` with targets 0 and 1: sums of the rows, and the gradient."""
    n, _ = logits.size()
    loss = torch.empty([n], dtype=torch.float32, device=logits.device)
    grad = torch.empty_like(logits)
    for rows in hl.tile(n):
        positive = targets[rows, :] == 1
        sign = torch.where(positive, 1.0, -1.0)
        weight = torch.where(positive, alpha, 1.0 - alpha)
        z = logits[rows, :].to(torch.float32) * sign
        p = torch.sigmoid(z)
        log_p = torch.minimum(z, torch.zeros_like(z)) - torch.log1p(torch.exp(-torch.abs(z)))
        loss[rows] = (-weight * (1 - p) * (1 - p) * log_p).sum(-1)
        grad[rows, :] = sign * weight * (1 - p) * (1 - p) * (2 * p * log_p - (1 - p))
    return loss, grad


def focal_loss_torch(logits: torch.Tensor, targets: torch.Tensor, alpha: float) -> tuple[torch.Tensor, torch.Tensor]:
    positive = targets == 1
    sign, weight = torch.where(positive, 1.0, -1.0), torch.where(positive, alpha, 1.0 - alpha)
    z = logits * sign
    p, log_p = torch.sigmoid(z), F.logsigmoid(z)
    return (-weight * (1 - p) ** 2 * log_p).sum(-1), sign * weight * (1 - p) ** 2 * (2 * p * log_p - (1 - p))


def make_focal_loss(device: str, small: bool) -> Arguments:
    n, c = (37, 11) if small else (200_001, 91)
    return normal(device, n, c), (torch.rand([n, c], device=device) < 0.1).to(torch.int8), 0.25


CELLS.add(focal_loss, make_focal_loss, focal_loss_torch)


@helion.kernel
def lion_step(
    weight: torch.Tensor, moment: torch.Tensor, grad: torch.Tensor, rate: float, decay: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """A step of Lion in place: fp32 weights, bf16 moments."""
    for tile in hl.tile(weight.size()):
        g, m = grad[tile].to(torch.float32), moment[tile].to(torch.float32)
        step = torch.sign(0.9 * m + 0.1 * g)
        weight[tile] = weight[tile] * (1.0 - rate * decay) - rate * step
        moment[tile] = (0.99 * m + 0.01 * g).to(moment.dtype)
    return weight, moment


def lion_step_torch(
    weight: torch.Tensor, moment: torch.Tensor, grad: torch.Tensor, rate: float, decay: float
) -> tuple[torch.Tensor, torch.Tensor]:
    g, m = grad.float(), moment.float()
    weight.copy_(weight * (1.0 - rate * decay) - rate * torch.sign(0.9 * m + 0.1 * g))
    return weight, moment.copy_(0.99 * m + 0.01 * g)


def make_lion_step(device: str, small: bool) -> Arguments:
    m, n = (33, 63) if small else (4096, 4097)
    return normal(device, m, n), normal(device, m, n, dtype=BF16), normal(device, m, n, dtype=BF16), 1e-3, 0.1


CELLS.add(lion_step, make_lion_step, lion_step_torch)


@helion.kernel
def clip_by_norm(grad: torch.Tensor, limit: float) -> tuple[torch.Tensor, torch.Tensor]:
    """A gradient scaled to a norm of at most ``limit``, and its norm squared: two loops with a barrier between."""
    n = grad.size(0)
    out = torch.empty_like(grad)
    total = torch.zeros([1], dtype=torch.float32, device=grad.device)
    for tile in hl.tile(n):
        g = grad[tile].to(torch.float32)
        hl.atomic_add(total, [0], (g * g).sum(0))
    hl.barrier()
    for tile in hl.tile(n):
        factor = torch.clamp(limit * torch.rsqrt(total[0]), max=1.0)
        out[tile] = (grad[tile].to(torch.float32) * factor).to(grad.dtype)
    return out, total


def clip_by_norm_torch(grad: torch.Tensor, limit: float) -> tuple[torch.Tensor, torch.Tensor]:
    total = (high(grad) ** 2).sum()
    return (high(grad) * torch.clamp(limit * torch.rsqrt(total), max=1.0)).to(grad.dtype), total[None]


CELLS.add(
    clip_by_norm,
    lambda device, small: (normal(device, 1001 if small else 30_000_001, dtype=BF16), 1.0),
    clip_by_norm_torch,
)


@helion.kernel
def averaged_weights(average: torch.Tensor, weight: torch.Tensor, decay: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Exponential average of bf16 weights in place, in fp32, and the largest change of each row."""
    m, _ = weight.size()
    change = torch.empty([m], dtype=torch.float32, device=weight.device)
    for rows in hl.tile(m):
        old = average[rows, :]
        new = old + (1.0 - decay) * (weight[rows, :].to(torch.float32) - old)
        change[rows] = torch.abs(new - old).amax(-1)
        average[rows, :] = new
    return average, change


def averaged_weights_torch(
    average: torch.Tensor, weight: torch.Tensor, decay: float
) -> tuple[torch.Tensor, torch.Tensor]:
    new = average + (1.0 - decay) * (weight.float() - average)
    change = (new - average).abs().amax(-1)
    return average.copy_(new), change


def make_averaged_weights(device: str, small: bool) -> Arguments:
    m, n = (33, 63) if small else (4097, 4096)
    return normal(device, m, n), normal(device, m, n, dtype=BF16), 0.9


CELLS.add(averaged_weights, make_averaged_weights, averaged_weights_torch)


@helion.kernel
def embedding_gradient(grad: torch.Tensor, ids: torch.Tensor, count: int, padding: int) -> torch.Tensor:
    """Gradient of an embedding of `count` rows in fp32 by atomic additions; the padding's row stays zero."""
    t, d = grad.size()
    out = torch.zeros([count, d], dtype=torch.float32, device=grad.device)
    for rows, columns in hl.tile([t, d]):
        row = ids[rows]
        g = torch.where((row != padding)[:, None], grad[rows, columns].to(torch.float32), 0.0)
        hl.atomic_add(out, [row, columns], g)
    return out


def embedding_gradient_torch(grad: torch.Tensor, ids: torch.Tensor, count: int, padding: int) -> torch.Tensor:
    out = torch.zeros([count, grad.size(1)], dtype=torch.float32, device=grad.device)
    return out.index_add(0, ids, torch.where((ids != padding)[:, None], grad.float(), 0.0))


def make_embedding_gradient(device: str, small: bool) -> Arguments:
    t, d, count = (37, 63, 20) if small else (32768, 1000, 32000)
    ids = torch.randint(0, count, [t], device=device, dtype=torch.int32)
    return normal(device, t, d, dtype=BF16), ids, count, 3


CELLS.add(embedding_gradient, make_embedding_gradient, embedding_gradient_torch)


@helion.kernel
def weighted_bags(table: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Weighted sums of the rows of a table in bags; bag i has the ids from `offsets[i]` to `offsets[i + 1]`."""
    bags, d = offsets.size(0) - 1, table.size(1)
    out = torch.empty([bags, d], dtype=torch.float32, device=table.device)
    for bag, columns in hl.tile([bags, d], block_size=[1, None]):
        acc = hl.zeros([columns])
        for items in hl.tile(offsets[bag.begin], offsets[bag.begin + 1]):
            acc += (weights[items][:, None] * table[ids[items], columns].to(torch.float32)).sum(0)
        out[bag.begin, columns] = acc
    return out


def weighted_bags_torch(
    table: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    bags = offsets.size(0) - 1
    bag = torch.searchsorted(offsets, torch.arange(ids.size(0), device=ids.device), right=True) - 1
    out = torch.zeros([bags, table.size(1)], dtype=torch.float32, device=table.device)
    return out.index_add(0, bag, (weights[:, None] * table[ids]).float())


def weighted_bags_baseline(
    table: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    return F.embedding_bag(
        ids, table, offsets, mode="sum", per_sample_weights=weights.to(table.dtype), include_last_offset=True
    ).float()


def make_weighted_bags(device: str, small: bool) -> Arguments:
    bags, d, count, longest = (21, 40, 50, 9) if small else (32768, 128, 1 << 19, 40)
    offsets = offsets_of(bags, 0, longest)
    total = int(offsets[-1])
    ids = torch.randint(0, count, [total], device=device)
    return normal(device, count, d, dtype=FP16), ids, torch.rand([total], device=device), offsets.to(device)


CELLS.add(weighted_bags, make_weighted_bags, weighted_bags_torch, weighted_bags_baseline)


@helion.kernel
def distillation(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """KL divergence of each row of a student's logits from a teacher's at a temperature, and its gradient."""
    t, _ = student.size()
    loss = torch.empty([t], dtype=torch.float32, device=student.device)
    grad = torch.empty_like(student)
    for tile in hl.tile(t):
        s = torch.log_softmax(student[tile, :].to(torch.float32) / temperature, dim=-1)
        p = torch.log_softmax(teacher[tile, :].to(torch.float32) / temperature, dim=-1)
        loss[tile] = (torch.exp(p) * (p - s)).sum(-1) * (temperature * temperature)
        grad[tile, :] = (temperature * (torch.exp(s) - torch.exp(p))).to(student.dtype)
    return loss, grad


def distillation_torch(
    student: torch.Tensor, teacher: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    s = torch.log_softmax(high(student) / temperature, -1)
    p = torch.log_softmax(high(teacher) / temperature, -1)
    loss = (torch.exp(p) * (p - s)).sum(-1) * temperature**2
    return loss, (temperature * (torch.exp(s) - torch.exp(p))).to(student.dtype)


def make_distillation(device: str, small: bool) -> Arguments:
    t, v = (13, 65) if small else (1024, 50257)
    return normal(device, t, v, dtype=BF16), normal(device, t, v, dtype=BF16), 2.0


CELLS.add(distillation, make_distillation, distillation_torch)


@helion.kernel
def softmax_gradient(p: torch.Tensor, grad: torch.Tensor, scale: float) -> torch.Tensor:
    """Gradient of the scores of attention `[B, T, S]` from probabilities and their gradient."""
    b, t, _ = p.size()
    out = torch.empty_like(grad)
    for tile_b, tile_t in hl.tile([b, t]):
        own = p[tile_b, tile_t, :].to(torch.float32)
        product = own * grad[tile_b, tile_t, :].to(torch.float32)
        out[tile_b, tile_t, :] = scale * (product - own * product.sum(-1, keepdim=True))
    return out


def softmax_gradient_torch(p: torch.Tensor, grad: torch.Tensor, scale: float) -> torch.Tensor:
    product = high(p) * high(grad)
    return (scale * (product - high(p) * product.sum(-1, keepdim=True))).to(grad.dtype)


def make_softmax_gradient(device: str, small: bool) -> Arguments:
    b, t = (3, 37) if small else (48, 1000)
    p = torch.softmax(normal(device, b, t, t), -1).to(FP16)
    return p, normal(device, b, t, t, dtype=FP16), 0.125


CELLS.add(softmax_gradient, make_softmax_gradient, softmax_gradient_torch)


@helion.kernel
def key_value_gradient(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of keys and values of causal attention `[B, H, T, D]` from saved log-sum-exps and row sums."""
    b, h, t, d = q.size()
    d = hl.specialize(d)
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    scale = 1.0 / math.sqrt(d)
    for tile_b, tile_h, keys in hl.tile([b, h, t], block_size=[1, 1, None]):
        own, value = k[tile_b.begin, tile_h.begin, keys, :], v[tile_b.begin, tile_h.begin, keys, :]
        for_keys, for_values = hl.zeros([keys, d]), hl.zeros([keys, d])
        for rows in hl.tile(keys.begin, t):
            query = q[tile_b.begin, tile_h.begin, rows, :]
            g = grad[tile_b.begin, tile_h.begin, rows, :]
            s = hl.dot(own, query.T) * scale - lse[tile_b.begin, tile_h.begin, rows][None, :]
            p = torch.where(keys.index[:, None] <= rows.index[None, :], torch.exp(s), 0.0)
            for_values = hl.dot(p.to(v.dtype), g, acc=for_values)
            ds = p * (hl.dot(value, g.T) - delta[tile_b.begin, tile_h.begin, rows][None, :])
            for_keys = hl.dot(ds.to(k.dtype), query, acc=for_keys)
        dk[tile_b.begin, tile_h.begin, keys, :] = (for_keys * scale).to(k.dtype)
        dv[tile_b.begin, tile_h.begin, keys, :] = for_values.to(v.dtype)
    return dk, dv


def key_value_gradient_reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    scale = 1.0 / math.sqrt(q.size(-1))
    s = (q @ k.transpose(-1, -2)).float() * scale - lse[..., None]
    p = torch.where(below(q.size(2), q.device), torch.exp(s), 0.0)
    ds = p * ((grad @ v.transpose(-1, -2)).float() - delta[..., None]) * scale
    return ds.to(k.dtype).transpose(-1, -2) @ q, p.to(v.dtype).transpose(-1, -2) @ grad


def make_key_value_gradient(device: str, small: bool) -> Arguments:
    q, k, v, grad = heads(device, small, 4)
    scores = high(q) @ high(k).transpose(-1, -2) / math.sqrt(q.size(-1))
    lse = torch.logsumexp(scores.masked_fill(~below(q.size(2), q.device), -math.inf), -1)
    return q, k, v, grad, lse, normal(device, *q.shape[:3], scale=0.1)


CELLS.add(key_value_gradient, make_key_value_gradient, key_value_gradient_reference)
