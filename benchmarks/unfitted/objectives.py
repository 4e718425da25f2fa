"""Losses of language models, sampling, and steps of optimizers with matrices or small states."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def z_loss_in_place(logits: torch.Tensor, labels: torch.Tensor, weight: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross entropy plus ``weight`` times the squared log-sum-exp; the gradient replaces the logits `[T, V]`."""
    t, v = logits.size()
    flat = logits.view(-1)
    loss = torch.empty([t], dtype=torch.float32, device=logits.device)
    for rows in hl.tile(t):
        m = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        for cols in hl.tile(v):
            x = logits[rows, cols].to(torch.float32)
            new = torch.maximum(m, torch.amax(x, -1))
            total = total * torch.exp(m - new) + torch.exp(x - new[:, None]).sum(-1)
            m = new
        lse = m + torch.log(total)
        label = labels[rows]
        own = flat[rows.index * v + label].to(torch.float32)
        loss[rows] = lse - own + weight * lse * lse
        for cols in hl.tile(v):
            p = torch.exp(logits[rows, cols].to(torch.float32) - lse[:, None])
            hit = cols.index[None, :] == label[:, None]
            slope = p * (1.0 + 2.0 * weight * lse)[:, None] - torch.where(hit, 1.0, 0.0)
            logits[rows, cols] = slope.to(logits.dtype)
    return loss, logits


def z_loss_in_place_torch(
    logits: torch.Tensor, labels: torch.Tensor, weight: float
) -> tuple[torch.Tensor, torch.Tensor]:
    x = high(logits)
    lse = torch.logsumexp(x, -1)
    own = x.gather(1, labels[:, None])[:, 0]
    slope = torch.softmax(x, -1) * (1.0 + 2.0 * weight * lse)[:, None]
    slope = slope - (torch.arange(x.size(1), device=x.device)[None] == labels[:, None]).to(x.dtype)
    return lse - own + weight * lse * lse, logits.copy_(slope)


def make_z_loss_in_place(device: str, small: bool) -> Arguments:
    t, v = (17, 63) if small else (4096, 32768)
    return normal(device, t, v, dtype=BF16), torch.randint(0, v, [t], device=device), 1e-2


CELLS.add(z_loss_in_place, make_z_loss_in_place, z_loss_in_place_torch)


@helion.kernel
def sparse_distillation(student: torch.Tensor, ids: torch.Tensor, teacher: torch.Tensor, tau: float) -> torch.Tensor:
    """KL divergence of a student's logits `[T, V]` from the best K of a teacher: ids and log-probabilities `[T, K]`."""
    t, _ = student.size()
    out = torch.empty([t], dtype=torch.float32, device=student.device)
    for tile in hl.tile(t):
        x = student[tile, :].to(torch.float32) / tau
        top = torch.amax(x, -1)
        lse = top + torch.log(torch.exp(x - top[:, None]).sum(-1))
        known = teacher[tile, :]
        own = student[tile.index[:, None], ids[tile, :]].to(torch.float32) / tau - lse[:, None]
        out[tile] = (torch.exp(known) * (known - own)).sum(-1) * tau * tau
    return out


def sparse_distillation_torch(
    student: torch.Tensor, ids: torch.Tensor, teacher: torch.Tensor, tau: float
) -> torch.Tensor:
    own = torch.log_softmax(high(student) / tau, -1).gather(1, ids)
    return (torch.exp(teacher) * (teacher - own)).sum(-1) * tau * tau


def make_sparse_distillation(device: str, small: bool) -> Arguments:
    t, v, k = (13, 65, 5) if small else (4096, 50304, 64)
    known = torch.log_softmax(normal(device, t, k), -1) - 0.1
    return normal(device, t, v, dtype=BF16), torch.randint(0, v, [t, k], device=device), known, 2.0


CELLS.add(sparse_distillation, make_sparse_distillation, sparse_distillation_torch)


@helion.kernel
def siglip_loss(images: torch.Tensor, texts: torch.Tensor, scale: float, bias: float) -> torch.Tensor:
    """Sums `[N]` of the sigmoid losses of each image with all texts, both `[N, D]` and normalized."""
    n, _ = images.size()
    out = torch.empty([n], dtype=torch.float32, device=images.device)
    for rows in hl.tile(n):
        own = images[rows, :]
        acc = hl.zeros([rows], dtype=torch.float32)
        for cols in hl.tile(n):
            s = hl.dot(own, texts[cols, :].T) * scale + bias
            z = torch.where(rows.index[:, None] == cols.index[None, :], s, -s)
            acc += (torch.clamp(-z, min=0.0) + torch.log1p(torch.exp(-torch.abs(z)))).sum(-1)
        out[rows] = acc
    return out


def siglip_loss_torch(images: torch.Tensor, texts: torch.Tensor, scale: float, bias: float) -> torch.Tensor:
    s = high(images @ texts.T) * scale + bias
    sign = 2 * torch.eye(s.size(0), device=s.device) - 1
    return -F.logsigmoid(sign * s).sum(-1)


def make_siglip_loss(device: str, small: bool) -> Arguments:
    n, d = (37, 48) if small else (8192, 768)
    a, b = (F.normalize(normal(device, n, d), dim=-1).to(BF16) for _ in range(2))
    return a, b, 10.0, -10.0


CELLS.add(siglip_loss, make_siglip_loss, siglip_loss_torch)


@helion.kernel
def penalized_log_softmax(
    logits: torch.Tensor, counts: torch.Tensor, temperature: torch.Tensor, repetition: float, frequency: float
) -> torch.Tensor:
    """Log-probabilities of tokens `[B, V]` after penalties for those that were drawn before, with a temperature each."""
    b, v = logits.size()
    out = torch.empty([b, v], dtype=torch.float32, device=logits.device)
    for tile in hl.tile(b):
        x = logits[tile, :].to(torch.float32)
        seen = counts[tile, :]
        x = torch.where(seen > 0, torch.where(x > 0, x / repetition, x * repetition), x)
        x = (x - frequency * seen.to(torch.float32)) / temperature[tile][:, None]
        out[tile, :] = torch.log_softmax(x, dim=-1)
    return out


def penalized_log_softmax_torch(
    logits: torch.Tensor, counts: torch.Tensor, temperature: torch.Tensor, repetition: float, frequency: float
) -> torch.Tensor:
    x = high(logits)
    x = torch.where(counts > 0, torch.where(x > 0, x / repetition, x * repetition), x)
    return torch.log_softmax((x - frequency * counts) / temperature[:, None], -1)


def make_penalized_log_softmax(device: str, small: bool) -> Arguments:
    b, v = (9, 65) if small else (128, 151936)
    counts = torch.clamp(torch.randint(-60, 4, [b, v], device=device, dtype=torch.int16), min=0)
    return normal(device, b, v, dtype=BF16), counts, torch.rand([b], device=device) + 0.5, 1.2, 0.1


CELLS.add(penalized_log_softmax, make_penalized_log_softmax, penalized_log_softmax_torch)


@helion.kernel
def newton_schulz_square(a: torch.Tensor, b: float, c: float) -> torch.Tensor:
    """`b * a + c * a @ a` of symmetric matrices `[L, M, M]`: a part of a step of Muon."""
    layers, m, _ = a.size()
    out = torch.empty_like(a)
    for layer, rows, cols in hl.tile([layers, m, m], block_size=[1, None, None]):
        li = layer.begin
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(m):
            acc = torch.addmm(acc, a[li, rows, inner], a[li, inner, cols])
        out[li, rows, cols] = (b * a[li, rows, cols].to(torch.float32) + c * acc).to(a.dtype)
    return out


def newton_schulz_square_torch(a: torch.Tensor, b: float, c: float) -> torch.Tensor:
    return torch.baddbmm(a, a, a, beta=b, alpha=c)


def make_newton_schulz_square(device: str, small: bool) -> Arguments:
    layers, m = (2, 37) if small else (12, 1024)
    x = normal(device, layers, m, 2 * m, dtype=BF16, scale=(2 * m) ** -0.5)
    return x @ x.transpose(1, 2), -4.775, 2.0315


CELLS.add(newton_schulz_square, make_newton_schulz_square, newton_schulz_square_torch)


@helion.kernel
def shampoo_statistics(left: torch.Tensor, grad: torch.Tensor, beta: float) -> torch.Tensor:
    """`beta * left + (1 - beta) * grad @ grad.T` in place, left in fp32, `grad[M, N]` in bf16."""
    m, n = grad.size()
    for rows, cols in hl.tile([m, m]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(n):
            acc = hl.dot(grad[rows, inner], grad[cols, inner].T, acc=acc)
        left[rows, cols] = beta * left[rows, cols] + (1.0 - beta) * acc
    return left


def shampoo_statistics_torch(left: torch.Tensor, grad: torch.Tensor, beta: float) -> torch.Tensor:
    return left.copy_(beta * left + (1.0 - beta) * (high(grad) @ high(grad).T))


def shampoo_statistics_baseline(left: torch.Tensor, grad: torch.Tensor, beta: float) -> torch.Tensor:
    return left.copy_(beta * left + (1.0 - beta) * (grad @ grad.T).float())


def make_shampoo_statistics(device: str, small: bool) -> Arguments:
    m, n = (37, 65) if small else (3000, 4096)
    return normal(device, m, m), normal(device, m, n, dtype=BF16), 0.95


CELLS.add(shampoo_statistics, make_shampoo_statistics, shampoo_statistics_torch, shampoo_statistics_baseline)


@helion.kernel
def adam_8bit(
    weight: torch.Tensor,
    grad: torch.Tensor,
    first: torch.Tensor,
    first_scale: torch.Tensor,
    second: torch.Tensor,
    second_scale: torch.Tensor,
    rate: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A step of Adam in place: weights in bf16, moments in int8 and in uint8 (of square roots), a scale for each 256."""
    blocks = first_scale.size(0)
    w, g = weight.view(blocks, 256), grad.view(blocks, 256)
    m, s = first.view(blocks, 256), second.view(blocks, 256)
    for tile in hl.tile(blocks):
        slope = g[tile, :].to(torch.float32)
        moment = m[tile, :].to(torch.float32) * first_scale[tile][:, None]
        root = s[tile, :].to(torch.float32) * second_scale[tile][:, None]
        moment = 0.9 * moment + 0.1 * slope
        square = 0.999 * root * root + 0.001 * slope * slope
        root = torch.sqrt(square)
        w[tile, :] = (w[tile, :].to(torch.float32) - rate * moment / (root + 1e-8)).to(weight.dtype)
        top = torch.clamp(torch.abs(moment).amax(-1), min=1e-12) / 127.0
        first_scale[tile] = top
        m[tile, :] = torch.round(moment / top[:, None]).to(torch.int8)
        top = torch.clamp(root.amax(-1), min=1e-12) / 255.0
        second_scale[tile] = top
        s[tile, :] = torch.round(root / top[:, None]).to(torch.uint8)
    return weight, first_scale, second_scale


def adam_8bit_torch(
    weight: torch.Tensor,
    grad: torch.Tensor,
    first: torch.Tensor,
    first_scale: torch.Tensor,
    second: torch.Tensor,
    second_scale: torch.Tensor,
    rate: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    slope = grad.float().view(-1, 256)
    moment = 0.9 * first.view(-1, 256).float() * first_scale[:, None] + 0.1 * slope
    root = torch.sqrt(0.999 * (second.view(-1, 256).float() * second_scale[:, None]) ** 2 + 0.001 * slope * slope)
    weight.copy_(weight.float() - (rate * moment / (root + 1e-8)).view(weight.shape))
    top = torch.clamp(moment.abs().amax(-1), min=1e-12) / 127.0
    first_scale.copy_(top)
    first.copy_(torch.round(moment / top[:, None]).to(torch.int8).view(first.shape))
    top = torch.clamp(root.amax(-1), min=1e-12) / 255.0
    second_scale.copy_(top)
    second.copy_(torch.round(root / top[:, None]).to(torch.uint8).view(second.shape))
    return weight, first_scale, second_scale


def make_adam_8bit(device: str, small: bool) -> Arguments:
    m, n = (3, 512) if small else (5000, 4096)
    blocks = m * n // 256
    first = torch.randint(-127, 128, [m, n], device=device, dtype=torch.int8)
    second = torch.randint(1, 256, [m, n], device=device, dtype=torch.uint8)
    scales = (torch.rand([blocks], device=device) * 1e-3 + 1e-4 for _ in range(2))
    tensors = normal(device, m, n, dtype=BF16), normal(device, m, n, dtype=BF16, scale=0.01)
    return *tensors, first, next(scales), second, next(scales), 1e-3


CELLS.add(adam_8bit, make_adam_8bit, adam_8bit_torch)
