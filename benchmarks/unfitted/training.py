"""Losses, optimizers, gradients and the routing of tokens."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def adamw_half_states(
    master: torch.Tensor, grad: torch.Tensor, m: torch.Tensor, v: torch.Tensor, lr: float, decay: float, step: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """AdamW with fp32 weights and bf16 states, in place; also returns the bf16 copy of the weights."""
    copy = torch.empty(master.size(), dtype=torch.bfloat16, device=master.device)
    c1, c2 = 1.0 - 0.9**step, 1.0 - 0.95**step
    for tile in hl.tile(master.size(0)):
        g = grad[tile].to(torch.float32)
        w = master[tile] * (1.0 - lr * decay)
        first = 0.9 * m[tile].to(torch.float32) + 0.1 * g
        second = 0.95 * v[tile].to(torch.float32) + 0.05 * g * g
        w = w - lr * (first / c1) / (torch.sqrt(second / c2) + 1e-8)
        master[tile] = w
        copy[tile] = w.to(torch.bfloat16)
        m[tile] = first.to(torch.bfloat16)
        v[tile] = second.to(torch.bfloat16)
    return copy, master, m, v


def adamw_half_states_torch(
    master: torch.Tensor, grad: torch.Tensor, m: torch.Tensor, v: torch.Tensor, lr: float, decay: float, step: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    c1, c2 = 1.0 - 0.9**step, 1.0 - 0.95**step
    g = high(grad)
    first = 0.9 * high(m) + 0.1 * g
    second = 0.95 * high(v) + 0.05 * g * g
    w = master * (1.0 - lr * decay) - lr * (first / c1) / (torch.sqrt(second / c2) + 1e-8)
    return w.to(torch.bfloat16), master.copy_(w), m.copy_(first), v.copy_(second)


def make_adamw_half_states(device: str, small: bool) -> Arguments:
    n = 1001 if small else 12_000_001
    return (
        normal(device, n),
        normal(device, n, dtype=BF16),
        normal(device, n, dtype=BF16, scale=0.1),
        torch.rand([n], device=device).to(BF16),
        1e-3,
        0.1,
        10,
    )


CELLS.add(adamw_half_states, make_adamw_half_states, adamw_half_states_torch)


@helion.kernel
def quintic_terms(a: torch.Tensor, b: float, c: float) -> torch.Tensor:
    """`b A + c A @ A` of batches of symmetric matrices: the middle of an orthogonalization step."""
    n, m, _ = a.size()
    out = torch.empty_like(a)
    for tile_n, tile_i, tile_j in hl.tile([n, m, m], block_size=[1, None, None]):
        acc = hl.zeros([tile_i, tile_j], dtype=torch.float32)
        for tile_k in hl.tile(m):
            acc = torch.addmm(acc, a[tile_n.begin, tile_i, tile_k], a[tile_n.begin, tile_k, tile_j])
        out[tile_n.begin, tile_i, tile_j] = (b * a[tile_n.begin, tile_i, tile_j].to(torch.float32) + c * acc).to(
            a.dtype
        )
    return out


CELLS.add(
    quintic_terms,
    lambda device, small: (
        normal(device, *((2, 33, 33) if small else (16, 1024, 1024)), dtype=BF16, scale=0.1),
        -4.7,
        2.03,
    ),
    lambda a, b, c: torch.baddbmm(a, a, a, beta=b, alpha=c),
)


@helion.kernel
def biased_top6(logits: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Six experts of each token by `sigmoid + bias`, with normalized sigmoids as weights."""
    t, e = logits.size()
    weights = torch.empty([t, 6], dtype=torch.float32, device=logits.device)
    experts = torch.empty([t, 6], dtype=torch.int32, device=logits.device)
    for tile in hl.tile(t):
        scores = torch.sigmoid(logits[tile, :].to(torch.float32))
        left = scores + bias[:][None, :]
        lanes = hl.arange(e)[None, :]
        total = hl.zeros([tile], dtype=torch.float32)
        for i in hl.static_range(6):
            best = torch.argmax(left, -1)
            chosen = lanes == best[:, None]
            own = torch.where(chosen, scores, 0.0).sum(-1)
            left = torch.where(chosen, float("-inf"), left)
            total = total + own
            experts[tile, i] = best.to(torch.int32)
            weights[tile, i] = own
        for i in hl.static_range(6):
            weights[tile, i] = weights[tile, i] / total
    return weights, experts


def biased_top6_torch(logits: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores = torch.sigmoid(high(logits))
    experts = torch.topk(scores + bias, 6, -1).indices
    own = scores.gather(1, experts)
    return own / own.sum(-1, keepdim=True), experts.to(torch.int32)


def make_biased_top6(device: str, small: bool) -> Arguments:
    t, e = (37, 40) if small else (16384, 256)
    return normal(device, t, e), normal(device, e, scale=0.01)


CELLS.add(biased_top6, make_biased_top6, biased_top6_torch)


@helion.kernel
def experts_back(
    h: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, token: torch.Tensor, gate: torch.Tensor, tokens: int
) -> torch.Tensor:
    """Second layer of experts: rows sorted by expert times `w[E, K, N]`, added to their tokens with a weight."""
    _, k = h.size()
    e, _, n = w.size()
    out = torch.zeros([tokens, n], dtype=torch.float32, device=h.device)
    for expert, tile_n in hl.tile([e, n], block_size=[1, None]):
        start, end = offsets[expert.begin], offsets[expert.begin + 1]
        for tile_m in hl.tile(start, end):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, h[tile_m, tile_k], w[expert.begin, tile_k, tile_n])
            hl.atomic_add(out, [token[tile_m], tile_n], acc * gate[tile_m].to(torch.float32)[:, None])
    return out


def experts_back_reference(
    h: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, token: torch.Tensor, gate: torch.Tensor, tokens: int
) -> torch.Tensor:
    o = offsets.tolist()
    y = torch.cat([h[a:b] @ w[i] for i, (a, b) in enumerate(itertools.pairwise(o))])
    return torch.zeros([tokens, w.size(2)], dtype=high(h).dtype, device=h.device).index_add(
        0, token, high(y) * high(gate)[:, None]
    )


def make_experts_back(device: str, small: bool) -> Arguments:
    tokens, e, k, n = (21, 4, 33, 17) if small else (2048, 16, 1024, 2048)
    expert = torch.randint(0, e, [2 * tokens])
    order = torch.argsort(expert, stable=True)
    off = torch.zeros([e + 1], dtype=torch.int64)
    off[1:] = torch.bincount(expert, minlength=e).cumsum(0)
    return (
        normal(device, 2 * tokens, k, dtype=BF16),
        normal(device, e, k, n, dtype=BF16, scale=0.05),
        off.to(device),
        (order // 2).to(device),
        torch.rand([2 * tokens], device=device).to(BF16),
        tokens,
    )


CELLS.add(experts_back, make_experts_back, experts_back_reference)


@helion.kernel
def supervised_contrast(z: torch.Tensor, labels: torch.Tensor, temperature: float) -> torch.Tensor:
    """Mean over the positives of each row of `logsumexp of the others - similarity`."""
    n, _d = z.size()
    out = torch.empty([n], dtype=torch.float32, device=z.device)
    for tile_i in hl.tile(n):
        own = labels[tile_i]
        rows = z[tile_i, :]
        top = hl.full([tile_i], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_i], dtype=torch.float32)
        positive = hl.zeros([tile_i], dtype=torch.float32)
        count = hl.zeros([tile_i], dtype=torch.float32)
        for tile_j in hl.tile(n):
            s = hl.dot(rows, z[tile_j, :].T) / temperature
            other = tile_i.index[:, None] != tile_j.index[None, :]
            s_other = torch.where(other, s, float("-inf"))
            new = torch.maximum(top, torch.amax(s_other, -1))
            safe = torch.where(new == float("-inf"), 0.0, new)
            total = total * torch.exp(top - safe) + torch.exp(s_other - safe[:, None]).sum(-1)
            same = other & (own[:, None] == labels[tile_j][None, :])
            positive += torch.where(same, s, 0.0).sum(-1)
            count += torch.where(same, 1.0, 0.0).sum(-1)
            top = new
        out[tile_i] = top + torch.log(total) - positive / torch.clamp(count, min=1.0)
    return out


def supervised_contrast_torch(z: torch.Tensor, labels: torch.Tensor, temperature: float) -> torch.Tensor:
    s = high(z @ z.T) / temperature
    n = z.size(0)
    eye = torch.eye(n, dtype=torch.bool, device=z.device)
    same = (labels[:, None] == labels[None, :]) & ~eye
    lse = torch.logsumexp(s.masked_fill(eye, -math.inf), -1)
    return lse - torch.where(same, s, 0.0).sum(-1) / same.sum(-1).clamp(min=1)


def make_supervised_contrast(device: str, small: bool) -> Arguments:
    n, c = (45, 32) if small else (4096, 128)
    return F.normalize(normal(device, n, c), dim=-1).to(BF16), torch.randint(0, 10, [n], device=device), 0.1


CELLS.add(supervised_contrast, make_supervised_contrast, supervised_contrast_torch)


@helion.kernel
def distance_iou(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Distance-IoU loss of pairs of boxes `[N, 4]`."""
    n = a.size(0)
    out = torch.empty([n], dtype=torch.float32, device=a.device)
    for tile in hl.tile(n):
        ax, ay, bx, by = a[tile, 0], a[tile, 1], a[tile, 2], a[tile, 3]
        cx, cy, dx, dy = b[tile, 0], b[tile, 1], b[tile, 2], b[tile, 3]
        inter = torch.relu(torch.minimum(bx, dx) - torch.maximum(ax, cx)) * torch.relu(
            torch.minimum(by, dy) - torch.maximum(ay, cy)
        )
        union = (bx - ax) * (by - ay) + (dx - cx) * (dy - cy) - inter
        w = torch.maximum(bx, dx) - torch.minimum(ax, cx)
        h = torch.maximum(by, dy) - torch.minimum(ay, cy)
        p, q = (ax + bx - cx - dx) * 0.5, (ay + by - cy - dy) * 0.5
        out[tile] = 1.0 - inter / union + (p * p + q * q) / (w * w + h * h + 1e-7)
    return out


def distance_iou_torch(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    ax, ay, bx, by = a.unbind(-1)
    cx, cy, dx, dy = b.unbind(-1)
    inter = torch.relu(torch.minimum(bx, dx) - torch.maximum(ax, cx)) * torch.relu(
        torch.minimum(by, dy) - torch.maximum(ay, cy)
    )
    union = (bx - ax) * (by - ay) + (dx - cx) * (dy - cy) - inter
    w, h = torch.maximum(bx, dx) - torch.minimum(ax, cx), torch.maximum(by, dy) - torch.minimum(ay, cy)
    p, q = (ax + bx - cx - dx) * 0.5, (ay + by - cy - dy) * 0.5
    return 1 - inter / union + (p * p + q * q) / (w * w + h * h + 1e-7)


def make_distance_iou(device: str, small: bool) -> Arguments:
    n = 77 if small else 4_000_001
    lo1, lo2 = torch.rand([n, 2], device=device), torch.rand([n, 2], device=device)
    return torch.cat([lo1, lo1 + torch.rand([n, 2], device=device) + 0.1], 1), torch.cat(
        [lo2, lo2 + torch.rand([n, 2], device=device) + 0.1], 1
    )


CELLS.add(distance_iou, make_distance_iou, distance_iou_torch)


@helion.kernel
def preference_loss(
    chosen: torch.Tensor,
    rejected: torch.Tensor,
    chosen_ref: torch.Tensor,
    rejected_ref: torch.Tensor,
    mask: torch.Tensor,
    beta: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """DPO loss and reward margin of pairs of sequences of token log-probabilities `[B, T]`."""
    b, _ = chosen.size()
    loss = torch.empty([b], dtype=torch.float32, device=chosen.device)
    margins = torch.empty([b], dtype=torch.float32, device=chosen.device)
    for tile in hl.tile(b):
        kept = mask[tile, :]
        up = torch.where(kept, chosen[tile, :] - chosen_ref[tile, :], 0.0).sum(-1)
        down = torch.where(kept, rejected[tile, :] - rejected_ref[tile, :], 0.0).sum(-1)
        z = beta * (up - down)
        margins[tile] = z
        loss[tile] = torch.log1p(torch.exp(-torch.abs(z))) + torch.relu(-z)
    return loss, margins


def preference_loss_torch(
    chosen: torch.Tensor,
    rejected: torch.Tensor,
    chosen_ref: torch.Tensor,
    rejected_ref: torch.Tensor,
    mask: torch.Tensor,
    beta: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    z = beta * (
        torch.where(mask, chosen - chosen_ref, 0.0).sum(-1) - torch.where(mask, rejected - rejected_ref, 0.0).sum(-1)
    )
    return -F.logsigmoid(z), z


def make_preference_loss(device: str, small: bool) -> Arguments:
    b, t = (9, 65) if small else (512, 8191)
    return (*(normal(device, b, t) for _ in range(4)), torch.rand([b, t], device=device) > 0.2, 0.1)


CELLS.add(preference_loss, make_preference_loss, preference_loss_torch)


@helion.kernel
def bias_gelu_gradient(grad: torch.Tensor, x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of `gelu(x + bias)` (tanh form) for x and for the bias."""
    m, n = x.size()
    dx = torch.empty_like(x)
    db = torch.zeros([n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        v = x[tile_m, tile_n].to(torch.float32) + bias[tile_n].to(torch.float32)
        t = torch.tanh(0.7978845608 * (v + 0.044715 * v * v * v))
        slope = 0.5 * (1.0 + t) + 0.5 * v * (1.0 - t * t) * 0.7978845608 * (1.0 + 3 * 0.044715 * v * v)
        g = grad[tile_m, tile_n].to(torch.float32) * slope
        dx[tile_m, tile_n] = g.to(x.dtype)
        hl.atomic_add(db, [tile_n], g.sum(0))
    return dx, db


def bias_gelu_gradient_torch(
    grad: torch.Tensor, x: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    v = high(x) + high(bias)
    t = torch.tanh(0.7978845608 * (v + 0.044715 * v * v * v))
    g = high(grad) * (0.5 * (1.0 + t) + 0.5 * v * (1.0 - t * t) * 0.7978845608 * (1.0 + 3 * 0.044715 * v * v))
    return g.to(x.dtype), g.sum(0)


def make_bias_gelu_gradient(device: str, small: bool) -> Arguments:
    m, n = (33, 65) if small else (8192, 4096)
    return normal(device, m, n, dtype=BF16), normal(device, m, n, dtype=BF16), normal(device, n, dtype=BF16)


CELLS.add(bias_gelu_gradient, make_bias_gelu_gradient, bias_gelu_gradient_torch)
