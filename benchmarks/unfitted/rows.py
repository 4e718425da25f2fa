"""Reductions of rows, with several results, and quantizers."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, normal

CELLS = Cells()


@helion.kernel
def confidence(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Entropy of the softmax of each row, its largest probability, and the class of that."""
    m, _ = logits.size()
    entropy = torch.empty([m], dtype=torch.float32, device=logits.device)
    best = torch.empty([m], dtype=torch.float32, device=logits.device)
    place = torch.empty([m], dtype=torch.int64, device=logits.device)
    for tile in hl.tile(m):
        row = logits[tile, :].to(torch.float32)
        top = torch.amax(row, -1)
        shifted = row - top[:, None]
        e = torch.exp(shifted)
        total = e.sum(-1)
        entropy[tile] = torch.log(total) - (e * shifted).sum(-1) / total
        best[tile] = 1.0 / total
        place[tile] = torch.argmax(row, -1)
    return entropy, best, place


def confidence_torch(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    p = torch.softmax(logits.float(), -1)
    lp = torch.log_softmax(logits.float(), -1)
    return -(p * lp).sum(-1), p.amax(-1), logits.argmax(-1)


def confidence_reference(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    p = torch.softmax(logits, -1)
    return -(p * torch.log_softmax(logits, -1)).sum(-1), p.amax(-1), logits.argmax(-1)


CELLS.add(
    confidence,
    lambda device, small: ((normal(device, 37, 301) if small else normal(device, 8192, 3001)).to(BF16),),
    confidence_reference,
    confidence_torch,
)


@helion.kernel
def scaled_branch_norm(
    x: torch.Tensor, branch: torch.Tensor, gamma: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Residual stream with layer scale, its layer norm, and the saved statistics."""
    m, _n = x.size()
    stream, normed = torch.empty_like(x), torch.empty_like(x)
    mean = torch.empty([m], dtype=torch.float32, device=x.device)
    rstd = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile in hl.tile(m):
        s = x[tile, :].to(torch.float32) + gamma[:].to(torch.float32)[None, :] * branch[tile, :].to(torch.float32)
        stream[tile, :] = s.to(x.dtype)
        mu = s.mean(-1)
        c = s - mu[:, None]
        r = torch.rsqrt((c * c).mean(-1) + eps)
        mean[tile] = mu
        rstd[tile] = r
        normed[tile, :] = (c * r[:, None] * weight[:].to(torch.float32) + bias[:].to(torch.float32)).to(x.dtype)
    return stream, normed, mean, rstd


def scaled_branch_norm_torch(
    x: torch.Tensor, branch: torch.Tensor, gamma: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    hi = torch.promote_types(x.dtype, torch.float32)
    s = x.to(hi) + gamma.to(hi) * branch.to(hi)
    mean = s.mean(-1)
    rstd = torch.rsqrt(s.var(-1, unbiased=False) + eps)
    normed = (s - mean[:, None]) * rstd[:, None] * weight.to(hi) + bias.to(hi)
    return s.to(x.dtype), normed.to(x.dtype), mean, rstd


def make_scaled_branch_norm(device: str, small: bool) -> Arguments:
    m, n = (33, 129) if small else (16384, 1536)
    return (
        normal(device, m, n, dtype=BF16),
        normal(device, m, n, dtype=BF16),
        normal(device, n, dtype=BF16),
        normal(device, n, dtype=BF16),
        normal(device, n, dtype=BF16),
        1e-5,
    )


CELLS.add(scaled_branch_norm, make_scaled_branch_norm, scaled_branch_norm_torch, None)


@helion.kernel
def cosine_embedding(a: torch.Tensor, b: torch.Tensor, target: torch.Tensor, margin: float) -> torch.Tensor:
    """`1 - cos` of pairs whose target is 1, `max(0, cos - margin)` of the others."""
    m, _ = a.size()
    out = torch.empty([m], dtype=torch.float32, device=a.device)
    for tile in hl.tile(m):
        p, q = a[tile, :].to(torch.float32), b[tile, :].to(torch.float32)
        cos = (p * q).sum(-1) * torch.rsqrt((p * p).sum(-1) * (q * q).sum(-1) + 1e-12)
        out[tile] = torch.where(target[tile] > 0, 1.0 - cos, torch.relu(cos - margin))
    return out


def cosine_embedding_torch(a: torch.Tensor, b: torch.Tensor, target: torch.Tensor, margin: float) -> torch.Tensor:
    hi = torch.promote_types(a.dtype, torch.float32)
    p, q = a.to(hi), b.to(hi)
    cos = (p * q).sum(-1) * torch.rsqrt((p * p).sum(-1) * (q * q).sum(-1) + 1e-12)
    return torch.where(target > 0, 1 - cos, torch.relu(cos - margin))


def make_cosine_embedding(device: str, small: bool) -> Arguments:
    m, n = (65, 77) if small else (32768, 769)
    return (
        normal(device, m, n, dtype=BF16),
        normal(device, m, n, dtype=BF16),
        torch.randint(0, 2, [m], device=device) * 2 - 1,
        0.1,
    )


CELLS.add(cosine_embedding, make_cosine_embedding, cosine_embedding_torch)


@helion.kernel
def poly_loss(logits: torch.Tensor, labels: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Cross entropy plus `epsilon (1 - p)` of each row; rows with a label of -100 give 0."""
    m, n = logits.size()
    out = torch.empty([m], dtype=torch.float32, device=logits.device)
    flat = logits.view(-1)
    for tile in hl.tile(m):
        label = labels[tile]
        kept = label != -100
        own = flat[tile.index * n + torch.where(kept, label, 0)].to(torch.float32)
        lse = torch.logsumexp(logits[tile, :].to(torch.float32), -1)
        ce = lse - own
        out[tile] = torch.where(kept, ce + epsilon * (1.0 - torch.exp(-ce)), 0.0)
    return out


def poly_loss_torch(logits: torch.Tensor, labels: torch.Tensor, epsilon: float) -> torch.Tensor:
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    ce = F.cross_entropy(logits, labels, reduction="none", ignore_index=-100)
    return torch.where(labels != -100, ce + epsilon * (1 - torch.exp(-ce)), 0.0)


def make_poly_loss(device: str, small: bool) -> Arguments:
    m, n = (19, 505) if small else (4096, 50257)
    labels = torch.randint(0, n, [m], device=device)
    labels[::7] = -100
    return normal(device, m, n, dtype=BF16), labels, 1.5


CELLS.add(poly_loss, make_poly_loss, poly_loss_torch)


@helion.kernel
def head_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMS norm of each head of `x[B, T, H, D]`, with weights `[H, D]`."""
    b, t, h, _d = x.size()
    out = torch.empty_like(x)
    for tile_b, tile_t, tile_h in hl.tile([b, t, h]):
        v = x[tile_b, tile_t, tile_h, :].to(torch.float32)
        r = torch.rsqrt((v * v).mean(-1, keepdim=True) + eps)
        out[tile_b, tile_t, tile_h, :] = (v * r * weight[tile_h, :].to(torch.float32)).to(x.dtype)
    return out


def head_norm_torch(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    v = x.to(torch.promote_types(x.dtype, torch.float32))
    return (v * torch.rsqrt((v * v).mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def make_head_norm(device: str, small: bool) -> Arguments:
    b, t, h, n = (2, 7, 3, 96) if small else (8, 2048, 24, 96)
    return normal(device, b, t, h, n, dtype=BF16), normal(device, h, n, dtype=BF16), 1e-6


CELLS.add(head_norm, make_head_norm, head_norm_torch)


@helion.kernel
def winsorize(x: torch.Tensor, limit: float) -> torch.Tensor:
    """Each row clipped to its mean plus and minus `limit` standard deviations."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :]
        mean, std = row.mean(-1, keepdim=True), row.std(-1, keepdim=True)
        out[tile, :] = torch.minimum(torch.maximum(row, mean - limit * std), mean + limit * std)
    return out


def winsorize_torch(x: torch.Tensor, limit: float) -> torch.Tensor:
    mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
    return torch.minimum(torch.maximum(x, mean - limit * std), mean + limit * std)


CELLS.add(
    winsorize, lambda device, small: (normal(device, *((21, 257) if small else (8192, 4097))), 2.0), winsorize_torch
)


@helion.kernel
def earth_mover(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """`sum |cumsum(p - q)|` of the rows of two histograms."""
    m, _ = p.size()
    out = torch.empty([m], dtype=torch.float32, device=p.device)
    for tile in hl.tile(m):
        out[tile] = torch.abs(torch.cumsum(p[tile, :] - q[tile, :], -1)).sum(-1)
    return out


def earth_mover_torch(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(p - q, -1).abs().sum(-1)


def make_earth_mover(device: str, small: bool) -> Arguments:
    m, n = (27, 63) if small else (32768, 500)
    return torch.softmax(normal(device, m, n), -1), torch.softmax(normal(device, m, n), -1)


CELLS.add(earth_mover, make_earth_mover, earth_mover_torch)


@helion.kernel
def group_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric int8 of groups of 32 along the rows, with fp16 scales."""
    m, n = x.size()
    q = torch.empty([m, n // 32, 32], dtype=torch.int8, device=x.device)
    scales = torch.empty([m, n // 32], dtype=torch.float16, device=x.device)
    groups = x.view(m, n // 32, 32)
    for tile_m, tile_g in hl.tile([m, n // 32]):
        v = groups[tile_m, tile_g, :].to(torch.float32)
        scale = torch.clamp(torch.amax(torch.abs(v), -1) / 127.0, min=1e-5)
        scales[tile_m, tile_g] = scale.to(torch.float16)
        q[tile_m, tile_g, :] = torch.clamp(torch.round(v / scale[:, :, None]), -127, 127).to(torch.int8)
    return q.view(m, n), scales


def group_int8_torch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    m, n = x.size()
    v = x.view(m, n // 32, 32).to(torch.float32)
    scale = torch.clamp(v.abs().amax(-1) / 127.0, min=1e-5)
    return torch.clamp(torch.round(v / scale[:, :, None]), -127, 127).to(torch.int8).view(m, n), scale.to(torch.float16)


CELLS.add(
    group_int8,
    lambda device, small: (normal(device, *((11, 96) if small else (4096, 11008)), dtype=BF16),),
    group_int8_torch,
)


@helion.kernel
def square_block_fp8(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 of `w` in blocks of 128 by 128, with an fp32 scale each."""
    m, n = w.size()
    q = torch.empty([m, n], dtype=torch.float8_e4m3fn, device=w.device)
    scales = torch.empty([m // 128, n // 128], dtype=torch.float32, device=w.device)
    for tile_m, tile_n in hl.tile([m, n], block_size=[128, 128]):
        v = w[tile_m, tile_n].to(torch.float32)
        scale = torch.clamp(torch.amax(torch.abs(v)), min=1e-4) / 448.0
        scales[tile_m.id, tile_n.id] = scale
        q[tile_m, tile_n] = (v / scale).to(torch.float8_e4m3fn)
    return q, scales


def square_block_fp8_torch(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    m, n = w.size()
    v = w.to(torch.float32).view(m // 128, 128, n // 128, 128)
    scale = v.abs().amax((1, 3)).clamp(min=1e-4) / 448.0
    return (v / scale[:, None, :, None]).to(torch.float8_e4m3fn).view(m, n), scale


CELLS.add(
    square_block_fp8,
    lambda device, small: (normal(device, *((256, 384) if small else (4096, 7168)), dtype=BF16),),
    square_block_fp8_torch,
)
