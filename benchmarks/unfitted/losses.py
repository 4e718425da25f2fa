"""Losses with one number for a row or a sample, and softmaxes of scores, with odd lengths of rows."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def next_token_loss(logits: torch.Tensor, ids: torch.Tensor, pad: int) -> torch.Tensor:
    """Return cross entropy `[B, T - 1]` of logits `[B, T, V]` with the next of `ids[B, T]`; 0 where that is pad."""
    b, t, _ = logits.size()
    seen, following = logits[:, :-1], ids[:, 1:]
    out = torch.empty([b, t - 1], dtype=torch.float32, device=logits.device)
    for batch, tokens in hl.tile([b, t - 1], block_size=[1, None]):
        i = batch.begin
        row = seen[i, tokens, :].to(torch.float32)
        label = following[i, tokens]
        top = torch.amax(row, -1, keepdim=True)
        lse = torch.log(torch.exp(row - top).sum(-1)) + top.squeeze(-1)
        hit = hl.arange(row.size(1))[None, :] == label[:, None]
        own = torch.where(hit, row, 0.0).sum(-1)
        out[i, tokens] = torch.where(label == pad, 0.0, lse - own)
    return out


def next_token_loss_torch(logits: torch.Tensor, ids: torch.Tensor, pad: int) -> torch.Tensor:
    x, y = high(logits[:, :-1]).transpose(1, 2), ids[:, 1:]
    return F.cross_entropy(x, y, ignore_index=pad, reduction="none")


def make_next_token_loss(device: str, small: bool) -> Arguments:
    b, t, v = (2, 7, 131) if small else (4, 1024, 50257)
    return normal(device, b, t, v, dtype=BF16), torch.randint(0, v, [b, t], device=device), 3


CELLS.add(next_token_loss, make_next_token_loss, next_token_loss_torch)


@helion.kernel
def log_softmax_gradient(grad: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Return gradient of a log-softmax of rows from its results `out[M, N]`."""
    dx = torch.empty_like(grad)
    for tile in hl.tile(grad.size(0)):
        g = grad[tile, :].to(torch.float32)
        p = torch.exp(out[tile, :].to(torch.float32))
        dx[tile, :] = (g - p * g.sum(-1, keepdim=True)).to(grad.dtype)
    return dx


def log_softmax_gradient_torch(grad: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    g = high(grad)
    return (g - torch.exp(high(out)) * g.sum(-1, keepdim=True)).to(grad.dtype)


def make_log_softmax_gradient(device: str, small: bool) -> Arguments:
    m, n = (9, 129) if small else (12000, 4097)
    return normal(device, m, n, dtype=BF16), torch.log_softmax(normal(device, m, n), -1).to(BF16)


CELLS.add(log_softmax_gradient, make_log_softmax_gradient, log_softmax_gradient_torch)


@helion.kernel
def multiclass_hinge(logits: torch.Tensor, labels: torch.Tensor, margin: float) -> torch.Tensor:
    """Return mean over the other classes of `max(0, margin - own + x)` for each row of `logits[M, N]`."""
    m, n = logits.size()
    flat = logits.view(-1)
    out = torch.empty([m], dtype=torch.float32, device=logits.device)
    for tile in hl.tile(m):
        own = flat[tile.index * n + labels[tile]].to(torch.float32)
        over = torch.relu(margin - own[:, None] + logits[tile, :].to(torch.float32))
        out[tile] = (over.sum(-1) - margin) / n
    return out


def multiclass_hinge_torch(logits: torch.Tensor, labels: torch.Tensor, margin: float) -> torch.Tensor:
    return F.multi_margin_loss(high(logits), labels, margin=margin, reduction="none")


def multiclass_hinge_baseline(logits: torch.Tensor, labels: torch.Tensor, margin: float) -> torch.Tensor:
    x = high(logits)
    own = x.gather(1, labels[:, None])
    return (torch.relu(margin - own + x).sum(-1) - margin) / x.size(1)


def make_multiclass_hinge(device: str, small: bool) -> Arguments:
    m, n = (33, 100) if small else (131072, 1000)
    return normal(device, m, n, dtype=FP16), torch.randint(0, n, [m], device=device), 1.0


CELLS.add(multiclass_hinge, make_multiclass_hinge, multiclass_hinge_torch, multiclass_hinge_baseline)


@helion.kernel
def gaussian_likelihood(moments: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return mean negative log-likelihood of each image `target[B, C, H, W]` under means and log-variances `[B, 2C,
    H, W]`."""
    b, c, h, w = target.size()
    n = c * h * w
    both = moments.view(b, 2 * n)
    mean, logvar = both.narrow(1, 0, n), both.narrow(1, n, n)
    flat = target.view(b, n)
    out = torch.empty([b], dtype=torch.float32, device=target.device)
    for tile in hl.tile(b):
        spread = torch.clamp(logvar[tile, :].to(torch.float32), -10.0, 10.0)
        off = flat[tile, :].to(torch.float32) - mean[tile, :].to(torch.float32)
        out[tile] = 0.5 * (spread + off * off * torch.exp(-spread) + math.log(2.0 * math.pi)).mean(-1)
    return out


def gaussian_likelihood_torch(moments: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    mean, logvar = high(moments).chunk(2, dim=1)
    logvar = torch.clamp(logvar, -10, 10)
    off = high(target) - mean
    return 0.5 * (logvar + off * off * torch.exp(-logvar) + math.log(2 * math.pi)).mean((1, 2, 3))


def make_gaussian_likelihood(device: str, small: bool) -> Arguments:
    b, c, h, w = (3, 2, 5, 7) if small else (200, 3, 224, 224)
    return normal(device, b, 2 * c, h, w, dtype=BF16), normal(device, b, c, h, w, dtype=BF16)


CELLS.add(gaussian_likelihood, make_gaussian_likelihood, gaussian_likelihood_torch)


@helion.kernel
def jensen_shannon(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return Jensen-Shannon divergence of the softmaxes of the rows of two tensors of logits `[M, N]`."""
    m, _ = a.size()
    out = torch.empty([m], dtype=torch.float32, device=a.device)
    for tile in hl.tile(m):
        p = torch.log_softmax(a[tile, :].to(torch.float32), -1)
        q = torch.log_softmax(b[tile, :].to(torch.float32), -1)
        ep, eq = torch.exp(p), torch.exp(q)
        middle = torch.log(0.5 * (ep + eq))
        out[tile] = 0.5 * (ep * (p - middle) + eq * (q - middle)).sum(-1)
    return out


def jensen_shannon_torch(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    p, q = torch.log_softmax(high(a), -1), torch.log_softmax(high(b), -1)
    middle = torch.log(0.5 * (torch.exp(p) + torch.exp(q)))
    return 0.5 * (torch.exp(p) * (p - middle) + torch.exp(q) * (q - middle)).sum(-1)


def make_jensen_shannon(device: str, small: bool) -> Arguments:
    m, n = (14, 99) if small else (8192, 12288)
    return normal(device, m, n, dtype=BF16), normal(device, m, n, dtype=BF16)


CELLS.add(jensen_shannon, make_jensen_shannon, jensen_shannon_torch)


@helion.kernel
def masked_huber(predicted: torch.Tensor, target: torch.Tensor, mask: torch.Tensor, delta: float) -> torch.Tensor:
    """Return mean Huber loss over the valid frames of each sample: `[B, T, D]` with a mask `[B, T]`."""
    b, t, d = predicted.size()
    out = torch.empty([b], dtype=torch.float32, device=predicted.device)
    for i in hl.grid(b):
        total = hl.zeros([], dtype=torch.float32)
        count = hl.zeros([], dtype=torch.float32)
        for frames in hl.tile(t):
            off = torch.abs(predicted[i, frames, :].to(torch.float32) - target[i, frames, :].to(torch.float32))
            loss = torch.where(off < delta, 0.5 * off * off, delta * (off - 0.5 * delta))
            valid = mask[i, frames].to(torch.float32)
            total += (loss.sum(-1) * valid).sum()
            count += valid.sum()
        out[i] = total / (torch.clamp(count, min=1.0) * d)
    return out


def masked_huber_torch(predicted: torch.Tensor, target: torch.Tensor, mask: torch.Tensor, delta: float) -> torch.Tensor:
    loss = F.huber_loss(high(predicted), high(target), reduction="none", delta=delta).sum(-1)
    valid = mask.to(loss.dtype)
    return (loss * valid).sum(1) / (valid.sum(1).clamp(min=1) * predicted.size(2))


def make_masked_huber(device: str, small: bool) -> Arguments:
    b, t, d = (4, 19, 10) if small else (384, 1501, 80)
    mask = torch.rand([b, t], device=device) > 0.2
    return normal(device, b, t, d, dtype=FP16), normal(device, b, t, d, dtype=FP16), mask, 1.0


CELLS.add(masked_huber, make_masked_huber, masked_huber_torch)


@helion.kernel
def mixup_loss(
    logits: torch.Tensor, first: torch.Tensor, second: torch.Tensor, share: torch.Tensor, smoothing: float
) -> torch.Tensor:
    """Return cross entropy `[M]` of `logits[M, N]` with two labels each, one of weight `share[M]`, and smoothing."""
    m, n = logits.size()
    flat = logits.view(-1)
    out = torch.empty([m], dtype=torch.float32, device=logits.device)
    for tile in hl.tile(m):
        row = logits[tile, :].to(torch.float32)
        lse = torch.logsumexp(row, -1)
        a = flat[tile.index * n + first[tile]].to(torch.float32)
        b = flat[tile.index * n + second[tile]].to(torch.float32)
        own = share[tile] * a + (1.0 - share[tile]) * b
        out[tile] = lse - (1.0 - smoothing) * own - smoothing * row.mean(-1)
    return out


def mixup_loss_torch(
    logits: torch.Tensor, first: torch.Tensor, second: torch.Tensor, share: torch.Tensor, smoothing: float
) -> torch.Tensor:
    x = high(logits)
    own = share * x.gather(1, first[:, None])[:, 0] + (1 - share) * x.gather(1, second[:, None])[:, 0]
    return torch.logsumexp(x, -1) - (1 - smoothing) * own - smoothing * x.mean(-1)


def make_mixup_loss(device: str, small: bool) -> Arguments:
    m, n = (26, 65) if small else (98304, 1000)
    first, second = (torch.randint(0, n, [m], device=device) for _ in range(2))
    return normal(device, m, n, dtype=BF16), first, second, torch.rand([m], device=device), 0.1


CELLS.add(mixup_loss, make_mixup_loss, mixup_loss_torch)


@helion.kernel
def asymmetric_loss(logits: torch.Tensor, targets: torch.Tensor, clip: float) -> torch.Tensor:
    """Return asymmetric focal loss of several labels, summed for each row: logits `[M, N]`, targets of booleans."""
    m, _ = logits.size()
    out = torch.empty([m], dtype=torch.float32, device=logits.device)
    for tile in hl.tile(m):
        p = torch.sigmoid(logits[tile, :].to(torch.float32))
        negative = torch.clamp(1.0 - p + clip, max=1.0)
        wrong = 1.0 - negative
        loss_on = torch.log(torch.clamp(p, min=1e-8)) * (1.0 - p)
        loss_off = torch.log(torch.clamp(negative, min=1e-8)) * wrong * wrong * wrong * wrong
        out[tile] = -torch.where(targets[tile, :], loss_on, loss_off).sum(-1)
    return out


def asymmetric_loss_torch(logits: torch.Tensor, targets: torch.Tensor, clip: float) -> torch.Tensor:
    p = torch.sigmoid(high(logits))
    negative = torch.clamp(1 - p + clip, max=1)
    loss_on = torch.log(p.clamp(min=1e-8)) * (1 - p)
    loss_off = torch.log(negative.clamp(min=1e-8)) * (1 - negative) ** 4
    return -torch.where(targets, loss_on, loss_off).sum(-1)


def make_asymmetric_loss(device: str, small: bool) -> Arguments:
    m, n = (15, 77) if small else (12288, 9605)
    return normal(device, m, n, dtype=FP16), torch.rand([m, n], device=device) < 0.02, 0.05


CELLS.add(asymmetric_loss, make_asymmetric_loss, asymmetric_loss_torch)


@helion.kernel
def label_ranks(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Count the classes with a larger logit than the label, for each row of `[M, N]`; equal ones count if before it."""
    m, n = logits.size()
    flat = logits.view(-1)
    out = torch.empty([m], dtype=torch.int32, device=logits.device)
    for tile in hl.tile(m):
        label = labels[tile]
        own = flat[tile.index * n + label]
        row = logits[tile, :]
        before = hl.arange(n)[None, :] < label[:, None]
        larger = (row > own[:, None]) | ((row == own[:, None]) & before)
        out[tile] = larger.to(torch.int32).sum(-1)
    return out


def label_ranks_torch(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    own = logits.gather(1, labels[:, None])
    before = torch.arange(logits.size(1), device=logits.device) < labels[:, None]
    return ((logits > own) | ((logits == own) & before)).sum(-1, dtype=torch.int32)


def make_label_ranks(device: str, small: bool) -> Arguments:
    m, n = (12, 90) if small else (16384, 12289)
    return normal(device, m, n, dtype=BF16), torch.randint(0, n, [m], device=device)


CELLS.add(label_ranks, make_label_ranks, label_ranks_torch)


@helion.kernel
def padded_score_softmax(scores: torch.Tensor, padding: torch.Tensor, bias: torch.Tensor, scale: float) -> torch.Tensor:
    """Return softmax of scaled scores `[B, H, Q, K]` plus a bias `[H, Q, K]`, without keys in `padding[B, K]`."""
    b, h, q, _ = scores.size()
    out = torch.empty_like(scores)
    for batch, head, rows in hl.tile([b, h, q], block_size=[1, 1, None]):
        i, j = batch.begin, head.begin
        s = scores[i, j, rows, :].to(torch.float32) * scale + bias[j, rows, :].to(torch.float32)
        s = torch.where(padding[i, :][None, :], float("-inf"), s)
        out[i, j, rows, :] = torch.softmax(s, dim=-1).to(scores.dtype)
    return out


def padded_score_softmax_torch(
    scores: torch.Tensor, padding: torch.Tensor, bias: torch.Tensor, scale: float
) -> torch.Tensor:
    s = (high(scores) * scale + high(bias)).masked_fill(padding[:, None, None], -math.inf)
    return torch.softmax(s, -1).to(scores.dtype)


def make_padded_score_softmax(device: str, small: bool) -> Arguments:
    b, h, q = (2, 3, 19) if small else (24, 16, 577)
    padding = torch.rand([b, q], device=device) < 0.15
    padding[:, 0] = False
    return normal(device, b, h, q, q, dtype=FP16, scale=4.0), padding, normal(device, h, q, q, dtype=FP16), 0.125


CELLS.add(padded_score_softmax, make_padded_score_softmax, padded_score_softmax_torch)


@helion.kernel
def dropped_softmax_gradient(
    grad: torch.Tensor, p: torch.Tensor, keep: torch.Tensor, rate: float, scale: float
) -> torch.Tensor:
    """Return gradient for scores of attention, through a dropout with mask `keep` after a softmax `p`, all `[B, Q,
    K]`."""
    b, q, _ = p.size()
    out = torch.empty_like(p)
    for batch, rows in hl.tile([b, q]):
        g = torch.where(keep[batch, rows, :], grad[batch, rows, :].to(torch.float32) / (1.0 - rate), 0.0)
        w = p[batch, rows, :].to(torch.float32)
        out[batch, rows, :] = (scale * w * (g - (g * w).sum(-1, keepdim=True))).to(p.dtype)
    return out


def dropped_softmax_gradient_torch(
    grad: torch.Tensor, p: torch.Tensor, keep: torch.Tensor, rate: float, scale: float
) -> torch.Tensor:
    g, w = torch.where(keep, high(grad) / (1 - rate), 0.0), high(p)
    return (scale * w * (g - (g * w).sum(-1, keepdim=True))).to(p.dtype)


def make_dropped_softmax_gradient(device: str, small: bool) -> Arguments:
    b, q, k = (3, 11, 25) if small else (192, 512, 769)
    p = torch.softmax(normal(device, b, q, k), -1).to(FP16)
    return normal(device, b, q, k, dtype=FP16), p, torch.rand([b, q, k], device=device) > 0.1, 0.1, 0.125


CELLS.add(dropped_softmax_gradient, make_dropped_softmax_gradient, dropped_softmax_gradient_torch)
