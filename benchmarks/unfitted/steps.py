"""Steps of optimizers, chains of elementwise functions with broadcasts and masks, and rotary embeddings."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def centered_rmsprop(
    weight: torch.Tensor,
    grad: torch.Tensor,
    square: torch.Tensor,
    average: torch.Tensor,
    momentum: torch.Tensor,
    rate: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Take a step of centered RMSprop with momentum in place, all in fp32 but the gradient."""
    for tile in hl.tile(weight.size()):
        g = grad[tile].to(torch.float32)
        s = 0.99 * square[tile] + 0.01 * g * g
        a = 0.99 * average[tile] + 0.01 * g
        m = 0.9 * momentum[tile] + g / (torch.sqrt(torch.clamp(s - a * a, min=0.0)) + 1e-3)
        square[tile] = s
        average[tile] = a
        momentum[tile] = m
        weight[tile] = weight[tile] - rate * m
    return weight, square, average, momentum


def centered_rmsprop_torch(
    weight: torch.Tensor,
    grad: torch.Tensor,
    square: torch.Tensor,
    average: torch.Tensor,
    momentum: torch.Tensor,
    rate: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    g = high(grad)
    s, a = 0.99 * square + 0.01 * g * g, 0.99 * average + 0.01 * g
    m = 0.9 * momentum + g / (torch.sqrt(torch.clamp(s - a * a, min=0)) + 1e-3)
    return weight.copy_(weight - rate * m), square.copy_(s), average.copy_(a), momentum.copy_(m)


def make_centered_rmsprop(device: str, small: bool) -> Arguments:
    m, n = (13, 33) if small else (4096, 3000)
    square = torch.rand([m, n], device=device) + 1.0
    tensors = normal(device, m, n), normal(device, m, n, dtype=BF16), square
    return *tensors, normal(device, m, n, scale=0.1), normal(device, m, n), 1e-2


CELLS.add(centered_rmsprop, make_centered_rmsprop, centered_rmsprop_torch)


@helion.kernel
def sophia_step(
    weight: torch.Tensor, grad: torch.Tensor, moment: torch.Tensor, hessian: torch.Tensor, rate: float, decay: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Take a step of Sophia in place: weights, gradients and moments in bf16, the diagonal of the Hessian in fp32."""
    for tile in hl.tile(weight.numel()):
        w = weight[tile].to(torch.float32) * (1.0 - rate * decay)
        m = 0.965 * moment[tile].to(torch.float32) + 0.035 * grad[tile].to(torch.float32)
        moment[tile] = m.to(moment.dtype)
        ratio = torch.abs(m) / (0.04 * hessian[tile] + 1e-15)
        weight[tile] = (w - rate * torch.sign(m) * torch.clamp(ratio, max=1.0)).to(weight.dtype)
    return weight, moment


def sophia_step_torch(
    weight: torch.Tensor, grad: torch.Tensor, moment: torch.Tensor, hessian: torch.Tensor, rate: float, decay: float
) -> tuple[torch.Tensor, torch.Tensor]:
    m = 0.965 * high(moment) + 0.035 * high(grad)
    ratio = torch.clamp(m.abs() / (0.04 * hessian + 1e-15), max=1)
    w = high(weight) * (1 - rate * decay) - rate * torch.sign(m) * ratio
    return weight.copy_(w), moment.copy_(m)


def make_sophia_step(device: str, small: bool) -> Arguments:
    n = 1003 if small else 25_165_827
    w, g, m = (normal(device, n, dtype=BF16) for _ in range(3))
    return w, g, m, torch.rand([n], device=device) * 50.0, 0.1, 0.1


CELLS.add(sophia_step, make_sophia_step, sophia_step_torch)


@helion.kernel
def adan_step(
    weight: torch.Tensor,
    grad: torch.Tensor,
    before: torch.Tensor,
    first: torch.Tensor,
    change: torch.Tensor,
    second: torch.Tensor,
    rate: float,
    decay: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Take a step of Adan in place: the gradient and the one before in bf16, weights and three moments in fp32."""
    for tile in hl.tile(weight.size(0)):
        g = grad[tile].to(torch.float32)
        d = g - before[tile].to(torch.float32)
        m = 0.98 * first[tile] + 0.02 * g
        v = 0.92 * change[tile] + 0.08 * d
        u = g + 0.92 * d
        n = 0.99 * second[tile] + 0.01 * u * u
        first[tile] = m
        change[tile] = v
        second[tile] = n
        weight[tile] = (weight[tile] - rate * (m + 0.92 * v) / (torch.sqrt(n) + 1e-8)) / (1.0 + rate * decay)
        before[tile] = grad[tile]
    return weight, before, first, change, second


def adan_step_torch(
    weight: torch.Tensor,
    grad: torch.Tensor,
    before: torch.Tensor,
    first: torch.Tensor,
    change: torch.Tensor,
    second: torch.Tensor,
    rate: float,
    decay: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    g = high(grad)
    d = g - high(before)
    m, v = 0.98 * first + 0.02 * g, 0.92 * change + 0.08 * d
    n = 0.99 * second + 0.01 * (g + 0.92 * d) ** 2
    w = (weight - rate * (m + 0.92 * v) / (torch.sqrt(n) + 1e-8)) / (1 + rate * decay)
    return weight.copy_(w), before.copy_(grad), first.copy_(m), change.copy_(v), second.copy_(n)


def make_adan_step(device: str, small: bool) -> Arguments:
    n = 999 if small else 10_000_000
    halves = normal(device, n, dtype=BF16), normal(device, n, dtype=BF16)
    moments = normal(device, n), normal(device, n), torch.rand([n], device=device) + 0.1
    return normal(device, n), *halves, *moments, 1e-2, 0.02


CELLS.add(adan_step, make_adan_step, adan_step_torch)


@helion.kernel
def unscale_and_check(grad: torch.Tensor, inverse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return gradients in fp16 times `inverse[1]`, in fp32 and 0 where they are not finite, and if some are not."""
    out = torch.empty(grad.size(), dtype=torch.float32, device=grad.device)
    found = torch.zeros([1], dtype=torch.float32, device=grad.device)
    for tile in hl.tile(grad.size(0)):
        g = grad[tile].to(torch.float32)
        finite = torch.isfinite(g)
        bad = torch.where(finite, 0.0, 1.0).amax(-1)
        if bad > 0:
            hl.atomic_max(found, [0], bad)
        out[tile] = torch.where(finite, g * inverse[0], 0.0)
    return out, found


def unscale_and_check_torch(grad: torch.Tensor, inverse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    g = grad.float()
    finite = torch.isfinite(g)
    return torch.where(finite, g * inverse, 0.0), (~finite).any().to(torch.float32).view(1)


def make_unscale_and_check(device: str, small: bool) -> Arguments:
    n = 1007 if small else 40_000_001
    grad = normal(device, n, dtype=FP16)
    grad[n // 3 :: n // 2] = float("inf")
    return grad, torch.full([1], 2.0**-10, device=device)


CELLS.add(unscale_and_check, make_unscale_and_check, unscale_and_check_torch)


@helion.kernel
def dropped_paths(
    x: torch.Tensor, branch: torch.Tensor, gamma: torch.Tensor, keep: torch.Tensor, rate: float
) -> torch.Tensor:
    """Return `x + gamma[D] * branch` for samples that are kept, else x; the branch lacks the class token of x."""
    b, t, d = x.size()
    out = torch.empty_like(x)
    for batch, tokens, cols in hl.tile([b, t, d]):
        factor = keep[batch].to(torch.float32) / (1.0 - rate)
        scale = factor[:, None, None] * gamma[cols].to(torch.float32)[None, None, :]
        has_branch = (tokens.index > 0)[None, :, None]
        y = hl.load(branch, [batch, tokens.index - 1, cols], extra_mask=has_branch).to(torch.float32)
        out[batch, tokens, cols] = (x[batch, tokens, cols].to(torch.float32) + scale * y).to(x.dtype)
    return out


def dropped_paths_torch(
    x: torch.Tensor, branch: torch.Tensor, gamma: torch.Tensor, keep: torch.Tensor, rate: float
) -> torch.Tensor:
    y = F.pad(high(branch), [0, 0, 1, 0]) * high(gamma)
    return (high(x) + y * (keep.to(y.dtype) / (1 - rate))[:, None, None]).to(x.dtype)


def make_dropped_paths(device: str, small: bool) -> Arguments:
    b, t, d = (3, 9, 20) if small else (64, 577, 1024)
    x, branch = normal(device, b, t, d, dtype=BF16), normal(device, b, t - 1, d, dtype=BF16)
    return x, branch, normal(device, d, dtype=BF16), torch.rand([b], device=device) > 0.3, 0.3


CELLS.add(dropped_paths, make_dropped_paths, dropped_paths_torch)


@helion.kernel
def masked_channel_glu(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return `a * sigmoid(b)` for halves of the channels of `x[B, 2C, T]`, and 0 for frames past the lengths `[B]`."""
    b, c2, t = x.size()
    c = c2 // 2
    value, gate = x.chunk(2, dim=1)
    out = torch.empty([b, c, t], dtype=x.dtype, device=x.device)
    for batch, channels, frames in hl.tile([b, c, t]):
        a = value[batch, channels, frames].to(torch.float32)
        y = a * torch.sigmoid(gate[batch, channels, frames].to(torch.float32))
        inside = frames.index[None, None, :] < lengths[batch][:, None, None]
        out[batch, channels, frames] = torch.where(inside, y, 0.0).to(x.dtype)
    return out


def masked_channel_glu_torch(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    inside = torch.arange(x.size(2), device=x.device) < lengths[:, None]
    return F.glu(high(x), 1).masked_fill(~inside[:, None], 0).to(x.dtype)


def make_masked_channel_glu(device: str, small: bool) -> Arguments:
    b, c, t = (2, 5, 21) if small else (32, 512, 1501)
    lengths = torch.randint(t // 2, t + 1, [b], device=device)
    return normal(device, b, 2 * c, t, dtype=FP16), lengths


CELLS.add(masked_channel_glu, make_masked_channel_glu, masked_channel_glu_torch)


@helion.kernel
def squeeze_scale_add(x: torch.Tensor, squeezed: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """Return `relu(x * hardsigmoid(squeezed[B, C]) + residual)` for images `[B, C, H, W]` with contiguous channels."""
    b, c, h, w = x.size()
    pixels = x.permute(0, 2, 3, 1).view(b, h * w, c)
    others = residual.permute(0, 2, 3, 1).view(b, h * w, c)
    out = torch.empty_like(pixels)
    for batch, places, channels in hl.tile([b, h * w, c]):
        s = torch.clamp(squeezed[batch, channels].to(torch.float32) / 6.0 + 0.5, 0.0, 1.0)
        y = pixels[batch, places, channels].to(torch.float32) * s[:, None, :]
        y = y + others[batch, places, channels].to(torch.float32)
        out[batch, places, channels] = torch.relu(y).to(x.dtype)
    return out.view(b, h, w, c).permute(0, 3, 1, 2)


def squeeze_scale_add_torch(x: torch.Tensor, squeezed: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    s = F.hardsigmoid(high(squeezed))[:, :, None, None]
    return torch.relu(high(x) * s + high(residual)).to(x.dtype)


def make_squeeze_scale_add(device: str, small: bool) -> Arguments:
    b, h, w, c = (2, 5, 7, 24) if small else (128, 28, 28, 480)
    x, residual = (normal(device, b, h, w, c, dtype=FP16).permute(0, 3, 1, 2) for _ in range(2))
    return x, normal(device, b, c, dtype=FP16, scale=2.0), residual


CELLS.add(squeeze_scale_add, make_squeeze_scale_add, squeeze_scale_add_torch)


@helion.kernel
def packed_pairs_rotary(
    qkv: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """Turn neighbouring pairs of the queries and keys in `qkv[T, 3, H, D]` in place, by rows of tables `[P, D / 2]`."""
    t, _, h, _ = qkv.size()
    half = hl.specialize(cos.size(1))
    pairs = qkv.view(t, 3, h, half, 2)
    for tokens, heads in hl.tile([t, h]):
        place = positions[tokens]
        c, s = cos[place, :][:, None, :], sin[place, :][:, None, :]
        for part in hl.static_range(2):
            a, b = hl.split(pairs[tokens, part, heads, :, :].to(torch.float32))
            pairs[tokens, part, heads, :, :] = hl.join(a * c - b * s, b * c + a * s).to(qkv.dtype)
    return qkv


def packed_pairs_rotary_torch(
    qkv: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    c, s = cos[positions][:, None, None], sin[positions][:, None, None]
    a, b = high(qkv[:, :2]).unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([a * c - b * s, b * c + a * s], -1).flatten(-2)
    qkv[:, :2] = turned.to(qkv.dtype)
    return qkv


def make_packed_pairs_rotary(device: str, small: bool) -> Arguments:
    t, h, d, p = (11, 3, 16, 40) if small else (16384, 16, 128, 8192)
    angle = torch.rand([p, d // 2], device=device) * 6.28
    positions = torch.randint(0, p, [t], device=device)
    return normal(device, t, 3, h, d, dtype=BF16), positions, torch.cos(angle), torch.sin(angle)


CELLS.add(packed_pairs_rotary, make_packed_pairs_rotary, packed_pairs_rotary_torch)


@helion.kernel
def halves_rotary_to_tokens(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn halves of the heads of `x[B, H, T, D]` by angles `[T, D]`, and return them as `[B, T, H, D]`."""
    b, h, t, d = x.size()
    half = hl.specialize(d) // 2
    out = torch.empty([b, t, h, d], dtype=x.dtype, device=x.device)
    x1, x2 = x.narrow(3, 0, half), x.narrow(3, half, half)
    out1, out2 = out.narrow(3, 0, half), out.narrow(3, half, half)
    cos, sin = cos.narrow(1, 0, half), sin.narrow(1, 0, half)
    for batch, head, tokens in hl.tile([b, h, t], block_size=[1, None, None]):
        i = batch.begin
        a = x1[i, head, tokens, :].to(torch.float32)
        c = x2[i, head, tokens, :].to(torch.float32)
        cosine, sine = cos[tokens, :].to(torch.float32), sin[tokens, :].to(torch.float32)
        first = a * cosine[None, :, :] - c * sine[None, :, :]
        second = c * cosine[None, :, :] + a * sine[None, :, :]
        out1[i, tokens, head, :] = first.to(x.dtype).transpose(0, 1)
        out2[i, tokens, head, :] = second.to(x.dtype).transpose(0, 1)
    return out


def halves_rotary_to_tokens_torch(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    v = high(x)
    a, b = v.chunk(2, dim=-1)
    y = v * high(cos) + torch.cat([-b, a], -1) * high(sin)
    return y.to(x.dtype).transpose(1, 2).contiguous()


def make_halves_rotary_to_tokens(device: str, small: bool) -> Arguments:
    b, h, t, d = (2, 3, 13, 16) if small else (6, 24, 2049, 96)
    angle = (torch.rand([t, d // 2], device=device) * 6.28).repeat(1, 2)
    return normal(device, b, h, t, d, dtype=FP16), torch.cos(angle).to(FP16), torch.sin(angle).to(FP16)


CELLS.add(halves_rotary_to_tokens, make_halves_rotary_to_tokens, halves_rotary_to_tokens_torch)


@helion.kernel
def three_axes_rotary(
    q: torch.Tensor, positions: torch.Tensor, frequencies: torch.Tensor, axes: torch.Tensor
) -> torch.Tensor:
    """Turn halves of `q[T, H, D]` by positions `[3, T]` times frequencies `[D / 2]`, each of which has an axis."""
    t, h, _ = q.size()
    half = hl.specialize(frequencies.size(0))
    out = torch.empty_like(q)
    for tokens, heads in hl.tile([t, h]):
        place = positions[axes[:], tokens].to(torch.float32).T
        angle = place * frequencies[:][None, :]
        c, s = torch.cos(angle)[:, None, :], torch.sin(angle)[:, None, :]
        a = q[tokens, heads, :half].to(torch.float32)
        b = q[tokens, heads, half:].to(torch.float32)
        out[tokens, heads, :half] = (a * c - b * s).to(q.dtype)
        out[tokens, heads, half:] = (b * c + a * s).to(q.dtype)
    return out


def three_axes_rotary_torch(
    q: torch.Tensor, positions: torch.Tensor, frequencies: torch.Tensor, axes: torch.Tensor
) -> torch.Tensor:
    angle = positions[axes].T.to(frequencies.dtype) * frequencies
    c, s = torch.cos(angle)[:, None], torch.sin(angle)[:, None]
    a, b = high(q).chunk(2, dim=-1)
    return torch.cat([a * c - b * s, b * c + a * s], -1).to(q.dtype)


def make_three_axes_rotary(device: str, small: bool) -> Arguments:
    t, h, d = (14, 3, 32) if small else (16384, 28, 128)
    half = d // 2
    frequencies = 1e4 ** (-torch.arange(half, device=device) / half)
    axes = torch.repeat_interleave(torch.arange(3), torch.tensor([half // 4, 3 * half // 8, 3 * half // 8]))
    positions = torch.randint(0, 2000, [3, t], device=device)
    return normal(device, t, h, d, dtype=BF16), positions, frequencies, axes.to(device)


CELLS.add(three_axes_rotary, make_three_axes_rotary, three_axes_rotary_torch)
