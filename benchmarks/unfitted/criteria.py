"""Norms of volumes and streams with their gradients, and losses of language models, rankings and detectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, FP16, FP32, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def residual_rms_norm_gradient(
    grad: torch.Tensor, stream_grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return gradients of `x[T, D]` and of the weight of an RMS norm whose input also flows on as a residual."""
    t, d = x.size()
    d = hl.specialize(d)
    out = torch.empty_like(x)
    block = hl.register_block_size(t)
    parts = torch.empty([helion.cdiv(t, block), d], dtype=torch.float32, device=x.device)
    for part in hl.tile(t, block_size=block):
        total = hl.zeros([d], dtype=torch.float32)
        for rows in hl.tile(part.begin, part.end):
            inverse = rstd[rows][:, None]
            unit = x[rows, :].to(torch.float32) * inverse
            g = grad[rows, :].to(torch.float32)
            total += (g * unit).sum(0)
            g = g * weight[:].to(torch.float32)[None, :]
            own = inverse * (g - unit * (g * unit).mean(-1, keepdim=True))
            out[rows, :] = (own + stream_grad[rows, :].to(torch.float32)).to(x.dtype)
        parts[part.id, :] = total
    return out, parts.sum(0)


def residual_rms_norm_gradient_torch(
    grad: torch.Tensor, stream_grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    inverse = rstd[:, None]
    unit, g = high(x) * inverse, high(grad)
    scaled = g * high(weight)
    own = inverse * (scaled - unit * (scaled * unit).mean(-1, keepdim=True))
    return (own + high(stream_grad)).to(x.dtype), (g * unit).sum(0)


def make_residual_rms_norm_gradient(device: str, small: bool) -> Arguments:
    t, d = (37, 80) if small else (8192, 2880)
    x = normal(device, t, d, dtype=BF16)
    rstd = torch.rsqrt(high(x).square().mean(-1) + 1e-6)
    return normal(device, t, d, dtype=BF16), normal(device, t, d, dtype=BF16), x, normal(device, d, dtype=BF16), rstd


CELLS.add(residual_rms_norm_gradient, make_residual_rms_norm_gradient, residual_rms_norm_gradient_torch)


@helion.kernel
def gated_layer_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Normalize rows of `x[T, D]` with an affine map, and multiply them by the silu of a gate."""
    t, _d = x.size()
    out = torch.empty_like(x)
    for rows in hl.tile(t):
        v = x[rows, :].to(torch.float32)
        mean = v.mean(-1, keepdim=True)
        v = v - mean
        rstd = torch.rsqrt((v * v).mean(-1, keepdim=True) + 1e-5)
        y = v * rstd * weight[:].to(torch.float32) + bias[:].to(torch.float32)
        out[rows, :] = (y * F.silu(gate[rows, :].to(torch.float32))).to(x.dtype)
    return out


def gated_layer_norm_torch(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    y = F.layer_norm(high(x), [x.size(-1)], high(weight), high(bias), 1e-5)
    return (y * F.silu(high(gate))).to(x.dtype)


def make_gated_layer_norm(device: str, small: bool) -> Arguments:
    t, d = (37, 100) if small else (50432, 1000)
    x, gate = normal(device, t, d, dtype=FP16), normal(device, t, d, dtype=FP16)
    return x, gate, normal(device, d, dtype=FP16), normal(device, d, dtype=FP16)


CELLS.add(gated_layer_norm, make_gated_layer_norm, gated_layer_norm_torch)


@helion.kernel
def volume_instance_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Normalize each channel of volumes `[B, C, D, H, W]` over its voxels, with an affine map and a leaky relu."""
    b, c, depth, height, width = x.size()
    voxels = depth * height * width
    flat = x.view(b * c, voxels)
    out = torch.empty_like(flat)
    for row in hl.grid(b * c):
        total = hl.zeros([], dtype=torch.float32)
        squares = hl.zeros([], dtype=torch.float32)
        for at in hl.tile(voxels):
            v = flat[row, at].to(torch.float32)
            total += v.sum(0)
            squares += (v * v).sum(0)
        mean = total / voxels
        rstd = torch.rsqrt(squares / voxels - mean * mean + 1e-5)
        scale = rstd * weight[row % c]
        shift = bias[row % c] - mean * scale
        for at in hl.tile(voxels):
            v = flat[row, at].to(torch.float32) * scale + shift
            out[row, at] = torch.where(v > 0, v, 0.01 * v).to(x.dtype)
    return out.view(b, c, depth, height, width)


def volume_instance_norm_torch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.leaky_relu(F.instance_norm(high(x), weight=weight, bias=bias, eps=1e-5), 0.01).to(x.dtype)


def make_volume_instance_norm(device: str, small: bool) -> Arguments:
    shape = (2, 3, 5, 6, 7) if small else (4, 32, 80, 96, 96)
    return normal(device, *shape, dtype=FP16), normal(device, shape[1]), normal(device, shape[1])


CELLS.add(volume_instance_norm, make_volume_instance_norm, volume_instance_norm_torch)


@helion.kernel
def frozen_batch_norm_add(
    x: torch.Tensor,
    shortcut: torch.Tensor,
    mean: torch.Tensor,
    var: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
) -> torch.Tensor:
    """Apply batch norm with stored statistics to `x[B, C, H, W]`, add a shortcut, and take the relu."""
    b, c, height, width = x.size()
    pixels = height * width
    flat, added = x.view(b, c, pixels), shortcut.view(b, c, pixels)
    out = torch.empty_like(flat)
    for tb, tc, tp in hl.tile([b, c, pixels]):
        scale = weight[tc] * torch.rsqrt(var[tc] + 1e-5)
        shift = bias[tc] - mean[tc] * scale
        y = flat[tb, tc, tp].to(torch.float32) * scale[None, :, None] + shift[None, :, None]
        out[tb, tc, tp] = torch.relu(y + added[tb, tc, tp].to(torch.float32)).to(x.dtype)
    return out.view(b, c, height, width)


def frozen_batch_norm_add_torch(
    x: torch.Tensor,
    shortcut: torch.Tensor,
    mean: torch.Tensor,
    var: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
) -> torch.Tensor:
    y = F.batch_norm(high(x), mean, var, weight, bias, False, 0.0, 1e-5)
    return torch.relu(y + high(shortcut)).to(x.dtype)


def make_frozen_batch_norm_add(device: str, small: bool) -> Arguments:
    b, c, height, width = (3, 10, 5, 5) if small else (256, 1024, 14, 14)
    x, shortcut = normal(device, b, c, height, width, dtype=FP16), normal(device, b, c, height, width, dtype=FP16)
    var = torch.rand([c], device=device) + 0.5
    return x, shortcut, normal(device, c), var, normal(device, c), normal(device, c)


CELLS.add(frozen_batch_norm_add, make_frozen_batch_norm_add, frozen_batch_norm_add_torch)


@helion.kernel
def group_norm_affine_gradient(
    grad: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return gradients of the scales and shifts `[C]` of a group norm of `x[B, C, P]`, with moments `[B, G]`."""
    b, c, p = x.size()
    members = c // mean.size(1)
    scales = torch.zeros([c], dtype=torch.float32, device=x.device)
    shifts = torch.zeros([c], dtype=torch.float32, device=x.device)
    for image, channels in hl.tile([b, c], block_size=[1, None]):
        i = image.begin
        products = hl.zeros([channels], dtype=torch.float32)
        sums = hl.zeros([channels], dtype=torch.float32)
        for at in hl.tile(p):
            g = grad[i, channels, at].to(torch.float32)
            products += (g * x[i, channels, at].to(torch.float32)).sum(-1)
            sums += g.sum(-1)
        group = channels.index // members
        hl.atomic_add(scales, [channels], (products - sums * mean[i, group]) * rstd[i, group])
        hl.atomic_add(shifts, [channels], sums)
    return scales, shifts


def group_norm_affine_gradient_torch(
    grad: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    members = x.size(1) // mean.size(1)
    m, r = (each.repeat_interleave(members, 1)[:, :, None] for each in (mean, rstd))
    g = high(grad)
    return (g * (high(x) - m) * r).sum([0, 2]), g.sum([0, 2])


def make_group_norm_affine_gradient(device: str, small: bool) -> Arguments:
    b, c, p, groups = (2, 12, 35, 4) if small else (32, 320, 4096, 32)
    grad, x = normal(device, b, c, p, dtype=BF16), normal(device, b, c, p, dtype=BF16)
    return grad, x, normal(device, b, groups), torch.rand([b, groups], device=device) + 0.5


CELLS.add(group_norm_affine_gradient, make_group_norm_affine_gradient, group_norm_affine_gradient_torch)


@helion.kernel
def pretraining_loss(logits: torch.Tensor, labels: torch.Tensor, smoothing: float, weight: float) -> torch.Tensor:
    """Return the sum of smoothed cross entropy and z loss over tokens of `logits[T, V]`, and the number of labels.

    Labels of -100 do not count.
    """
    t, v = logits.size()
    flat = logits.view(-1)
    out = torch.zeros([2], dtype=torch.float32, device=logits.device)
    for rows in hl.tile(t):
        x = logits[rows, :].to(torch.float32)
        lse = torch.logsumexp(x, -1)
        average = x.mean(-1)
        label = labels[rows]
        counted = label >= 0
        own = hl.load(flat, [rows.index * v + torch.clamp(label, min=0)], extra_mask=counted).to(torch.float32)
        loss = lse - (1.0 - smoothing) * own - smoothing * average + weight * lse * lse
        hl.atomic_add(out, [0], torch.where(counted, loss, 0.0).sum(0))
        hl.atomic_add(out, [1], counted.to(torch.float32).sum(0))
    return out


def pretraining_loss_torch(logits: torch.Tensor, labels: torch.Tensor, smoothing: float, weight: float) -> torch.Tensor:
    x, counted = high(logits), labels >= 0
    lse = torch.logsumexp(x, -1)
    own = x.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    loss = lse - (1.0 - smoothing) * own - smoothing * x.mean(-1) + weight * lse * lse
    return torch.stack([torch.where(counted, loss, 0.0).sum(), counted.sum().to(loss.dtype)])


def make_pretraining_loss(device: str, small: bool) -> Arguments:
    t, v = (37, 257) if small else (4096, 50257)
    labels = torch.randint(0, v, [t], device=device)
    labels = torch.where(torch.rand([t], device=device) < 0.2, -100, labels)
    return normal(device, t, v, dtype=BF16), labels, 0.1, 1e-4


CELLS.add(pretraining_loss, make_pretraining_loss, pretraining_loss_torch)


@helion.kernel
def distillation_gradient(student: torch.Tensor, teacher: torch.Tensor, keep: torch.Tensor, tau: float) -> torch.Tensor:
    """Return the gradient of a KL divergence at temperature `tau` for a student's logits `[T, V]`, masked by tokens."""
    t, _v = student.size()
    out = torch.empty_like(student)
    for rows in hl.tile(t):
        p = torch.softmax(student[rows, :].to(torch.float32) / tau, -1)
        q = torch.softmax(teacher[rows, :].to(torch.float32) / tau, -1)
        out[rows, :] = torch.where(keep[rows][:, None], tau * (p - q), 0.0).to(student.dtype)
    return out


def distillation_gradient_torch(
    student: torch.Tensor, teacher: torch.Tensor, keep: torch.Tensor, tau: float
) -> torch.Tensor:
    p, q = torch.softmax(high(student) / tau, -1), torch.softmax(high(teacher) / tau, -1)
    return torch.where(keep[:, None], tau * (p - q), 0.0).to(student.dtype)


def make_distillation_gradient(device: str, small: bool) -> Arguments:
    t, v = (37, 203) if small else (2048, 32003)
    keep = torch.rand([t], device=device) < 0.8
    return normal(device, t, v, dtype=BF16, scale=3.0), normal(device, t, v, dtype=BF16, scale=3.0), keep, 2.0


CELLS.add(distillation_gradient, make_distillation_gradient, distillation_gradient_torch)


@helion.kernel
def both_ways_contrast(scores: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return losses of images and of texts from their scores `[N, N]`, whose diagonal has the pairs."""
    n = scores.size(0)
    flat = scores.view(-1)
    images = torch.empty([n], dtype=torch.float32, device=scores.device)
    texts = torch.empty([n], dtype=torch.float32, device=scores.device)
    for rows in hl.tile(n):
        x = scores[rows, :].to(torch.float32) * scale
        own = flat[rows.index * (n + 1)].to(torch.float32) * scale
        images[rows] = torch.logsumexp(x, -1) - own
    for cols in hl.tile(n):
        top = hl.full([cols], float("-inf"), dtype=torch.float32)
        total = hl.zeros([cols], dtype=torch.float32)
        for rows in hl.tile(n):
            x = scores[rows, cols].to(torch.float32) * scale
            new = torch.maximum(top, x.amax(0))
            total = total * torch.exp(top - new) + torch.exp(x - new[None, :]).sum(0)
            top = new
        own = flat[cols.index * (n + 1)].to(torch.float32) * scale
        texts[cols] = top + torch.log(total) - own
    return images, texts


def both_ways_contrast_torch(scores: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    x = high(scores) * scale
    own = x.diagonal()
    return torch.logsumexp(x, 1) - own, torch.logsumexp(x, 0) - own


def make_both_ways_contrast(device: str, small: bool) -> Arguments:
    n = 67 if small else 9000
    return normal(device, n, n, dtype=FP16, scale=0.1), 20.0


CELLS.add(both_ways_contrast, make_both_ways_contrast, both_ways_contrast_torch)


@helion.kernel
def list_ranking_loss(scores: torch.Tensor, relevance: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of two softmaxes over the first `lengths[q]` documents of each query `[Q, N]`."""
    q, n = scores.size()
    out = torch.empty([q], dtype=torch.float32, device=scores.device)
    for rows in hl.tile(q):
        inside = hl.arange(n)[None, :] < lengths[rows][:, None]
        x = torch.where(inside, scores[rows, :], float("-inf"))
        r = torch.where(inside, relevance[rows, :].to(torch.float32), float("-inf"))
        target = torch.softmax(r, -1)
        logs = x - torch.logsumexp(x, -1, keepdim=True)
        out[rows] = -torch.where(inside, target * logs, 0.0).sum(-1)
    return out


def list_ranking_loss_torch(scores: torch.Tensor, relevance: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    inside = torch.arange(scores.size(1), device=scores.device) < lengths[:, None]
    x = scores.masked_fill(~inside, float("-inf"))
    r = high(relevance).to(scores.dtype).masked_fill(~inside, float("-inf"))
    return -torch.where(inside, torch.softmax(r, -1) * torch.log_softmax(x, -1), 0.0).sum(-1)


def make_list_ranking_loss(device: str, small: bool) -> Arguments:
    q, n = (37, 20) if small else (200_000, 120)
    relevance = torch.randint(0, 5, [q, n], device=device, dtype=torch.uint8)
    return normal(device, q, n, dtype=FP32), relevance, torch.randint(1, n + 1, [q], device=device, dtype=torch.int32)


CELLS.add(list_ranking_loss, make_list_ranking_loss, list_ranking_loss_torch)


@helion.kernel
def pair_ranking_gradient(scores: torch.Tensor, relevance: torch.Tensor) -> torch.Tensor:
    """Return the gradient of scores `[Q, N]` for logistic losses of all pairs of documents with unequal relevance."""
    q, n = scores.size()
    out = torch.empty_like(scores)
    for query, own in hl.tile([q, n], block_size=[1, None]):
        i = query.begin
        s, r = scores[i, own], relevance[i, own]
        total = hl.zeros([own], dtype=torch.float32)
        for other in hl.tile(n):
            sign = torch.sign(r[:, None] - relevance[i, other][None, :])
            gap = s[:, None] - scores[i, other][None, :]
            total -= (sign * torch.sigmoid(-sign * gap)).sum(-1)
        out[i, own] = total
    return out


def pair_ranking_gradient_torch(scores: torch.Tensor, relevance: torch.Tensor) -> torch.Tensor:
    sign = torch.sign(relevance[:, :, None] - relevance[:, None, :])
    gap = scores[:, :, None] - scores[:, None, :]
    return -(sign * torch.sigmoid(-sign * gap)).sum(-1)


def make_pair_ranking_gradient(device: str, small: bool) -> Arguments:
    q, n = (5, 20) if small else (4096, 200)
    relevance = torch.randint(0, 5, [q, n], device=device).to(FP32)
    return normal(device, q, n), relevance


CELLS.add(pair_ranking_gradient, make_pair_ranking_gradient, pair_ranking_gradient_torch)


@helion.kernel
def quantile_huber_loss(value: torch.Tensor, target: torch.Tensor, kappa: float) -> torch.Tensor:
    """Return the quantile Huber loss of returns `value[B, N]` against sampled targets `[B, M]`, summed over pairs."""
    b, n = value.size()
    m = target.size(1)
    out = torch.empty([b], dtype=torch.float32, device=value.device)
    for rows in hl.tile(b):
        gap = target[rows, :][:, None, :] - value[rows, :][:, :, None]
        size = torch.abs(gap)
        huber = torch.where(size <= kappa, 0.5 * gap * gap, kappa * (size - 0.5 * kappa))
        level = (hl.arange(n).to(torch.float32) + 0.5) / n
        asymmetry = torch.abs(level[None, :, None] - torch.where(gap < 0, 1.0, 0.0))
        out[rows] = (asymmetry * huber).sum(-1).sum(-1) / (m * kappa)
    return out


def quantile_huber_loss_torch(value: torch.Tensor, target: torch.Tensor, kappa: float) -> torch.Tensor:
    n, m = value.size(1), target.size(1)
    gap = target[:, None, :] - value[:, :, None]
    huber = torch.where(gap.abs() <= kappa, 0.5 * gap * gap, kappa * (gap.abs() - 0.5 * kappa))
    level = (torch.arange(n, device=value.device, dtype=value.dtype) + 0.5) / n
    return ((level[:, None] - (gap < 0).to(value.dtype)).abs() * huber).sum([1, 2]) / (m * kappa)


def make_quantile_huber_loss(device: str, small: bool) -> Arguments:
    b, n, m = (19, 11, 8) if small else (32768, 51, 64)
    return normal(device, b, n), normal(device, b, m), 1.0


CELLS.add(quantile_huber_loss, make_quantile_huber_loss, quantile_huber_loss_torch)


@helion.kernel
def heatmap_focal_loss(logits: torch.Tensor, heat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the focal loss of center points for each image, from logits and targets `[B, C, P]`, and the centers."""
    b, c, p = logits.size()
    loss = torch.zeros([b], dtype=torch.float32, device=logits.device)
    centers = torch.zeros([b], dtype=torch.int32, device=logits.device)
    x, y = logits.view(b, c * p), heat.view(b, c * p)
    for rows, at in hl.tile([b, c * p]):
        v, t = x[rows, at].to(torch.float32), y[rows, at].to(torch.float32)
        prob = torch.sigmoid(v)
        center = t == 1.0
        hit = (1.0 - prob) * (1.0 - prob) * F.logsigmoid(v)
        away = (1.0 - t) * (1.0 - t)
        miss = prob * prob * away * away * F.logsigmoid(-v)
        hl.atomic_add(loss, [rows], -torch.where(center, hit, miss).sum(-1))
        hl.atomic_add(centers, [rows], center.to(torch.int32).sum(-1))
    return loss, centers


def heatmap_focal_loss_torch(logits: torch.Tensor, heat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    v, t = high(logits), high(heat)
    prob, center = torch.sigmoid(v), t == 1.0
    hit = (1 - prob).square() * F.logsigmoid(v)
    miss = prob.square() * (1 - t).pow(4) * F.logsigmoid(-v)
    return -torch.where(center, hit, miss).sum([1, 2]), center.sum([1, 2]).to(torch.int32)


def make_heatmap_focal_loss(device: str, small: bool) -> Arguments:
    b, c, p = (3, 4, 35) if small else (48, 80, 128 * 128)
    heat = torch.rand([b, c, p], device=device)
    heat = torch.where(heat > 0.99, 1.0, heat)
    return normal(device, b, c, p, dtype=FP16, scale=2.0), heat.to(FP16)


CELLS.add(heatmap_focal_loss, make_heatmap_focal_loss, heatmap_focal_loss_torch)
