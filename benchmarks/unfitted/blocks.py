"""Norms, rotary embeddings, gated activations and their gradients, as blocks of transformers have them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, E4M3, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def sandwich_norms(
    branch: torch.Tensor, residual: torch.Tensor, after: torch.Tensor, before: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMS norm of a branch, its sum with the residual, and the RMS norm of that; gains are `1 + weight`."""
    t, _ = branch.size()
    stream, out = torch.empty_like(residual), torch.empty_like(branch)
    for tile in hl.tile(t):
        x = branch[tile, :].to(torch.float32)
        x = x * torch.rsqrt((x * x).mean(-1) + eps)[:, None] * (1.0 + after[:].to(torch.float32))[None, :]
        total = residual[tile, :].to(torch.float32) + x
        stream[tile, :] = total.to(residual.dtype)
        scale = torch.rsqrt((total * total).mean(-1) + eps)
        out[tile, :] = (total * scale[:, None] * (1.0 + before[:].to(torch.float32))[None, :]).to(branch.dtype)
    return stream, out


def sandwich_norms_torch(
    branch: torch.Tensor, residual: torch.Tensor, after: torch.Tensor, before: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    d = branch.size(-1)
    total = high(residual) + F.rms_norm(high(branch), [d], 1.0 + high(after), eps)
    return total.to(residual.dtype), F.rms_norm(total, [d], 1.0 + high(before), eps).to(branch.dtype)


def make_sandwich_norms(device: str, small: bool) -> Arguments:
    t, d = (13, 75) if small else (8192, 3584)
    x = (normal(device, t, d, dtype=BF16) for _ in range(2))
    return *x, *(normal(device, d, dtype=BF16, scale=0.1) for _ in range(2)), 1e-6


CELLS.add(sandwich_norms, make_sandwich_norms, sandwich_norms_torch)


@helion.kernel
def gated_group_norm_gradient(
    x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients for x and z of `rms_norm(x * silu(z)) * weight[G, C]`, normalized in groups of `[T, G, C]`."""
    t, groups, _ = x.size()
    dx, dz = torch.empty_like(x), torch.empty_like(z)
    for rows, group in hl.tile([t, groups]):
        a = x[rows, group, :].to(torch.float32)
        b = z[rows, group, :].to(torch.float32)
        s = torch.sigmoid(b)
        y = a * b * s
        inverse = torch.rsqrt((y * y).mean(-1) + eps)[:, :, None]
        normed = y * inverse
        dy = grad[rows, group, :].to(torch.float32) * weight[group, :].to(torch.float32)[None, :, :]
        dy = (dy - normed * (dy * normed).mean(-1)[:, :, None]) * inverse
        dx[rows, group, :] = (dy * b * s).to(x.dtype)
        dz[rows, group, :] = (dy * a * s * (1.0 + b * (1.0 - s))).to(z.dtype)
    return dx, dz


def gated_group_norm_gradient_torch(
    x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = high(x), high(z)
    s = torch.sigmoid(b)
    y = a * b * s
    inverse = torch.rsqrt((y * y).mean(-1, keepdim=True) + eps)
    normed = y * inverse
    dy = high(grad) * high(weight)
    dy = (dy - normed * (dy * normed).mean(-1, keepdim=True)) * inverse
    return (dy * b * s).to(x.dtype), (dy * a * s * (1.0 + b * (1.0 - s))).to(z.dtype)


def make_gated_group_norm_gradient(device: str, small: bool) -> Arguments:
    t, groups, c = (11, 3, 40) if small else (8192, 8, 512)
    x, z, grad = (normal(device, t, groups, c, dtype=BF16) for _ in range(3))
    return x, z, normal(device, groups, c, dtype=BF16), grad, 1e-5


CELLS.add(gated_group_norm_gradient, make_gated_group_norm_gradient, gated_group_norm_gradient_torch)


@helion.kernel
def rotary_of_patches(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, width: int) -> torch.Tensor:
    """Turn neighbouring pairs of `x[B, T, H, D]`: the first half by the row of a patch, the second by its column.
    Angles `cos[S, D / 4]` and `sin[S, D / 4]` are those of each row or column."""
    b, t, h, _ = x.size()
    quarter = hl.specialize(cos.size(1))
    out = torch.empty_like(x)
    pairs, turned = x.view(b, t, h, 2, quarter, 2), out.view(b, t, h, 2, quarter, 2)
    for bi, tokens, heads in hl.tile([b, t, h], block_size=[1, None, None]):
        batch = bi.begin
        row, column = tokens.index // width, tokens.index % width
        first, second = hl.split(pairs[batch, tokens, heads, 0, :, :].to(torch.float32))
        c, s = cos[row, :][:, None, :], sin[row, :][:, None, :]
        turned[batch, tokens, heads, 0, :, :] = hl.join(first * c - second * s, first * s + second * c).to(x.dtype)
        first, second = hl.split(pairs[batch, tokens, heads, 1, :, :].to(torch.float32))
        c, s = cos[column, :][:, None, :], sin[column, :][:, None, :]
        turned[batch, tokens, heads, 1, :, :] = hl.join(first * c - second * s, first * s + second * c).to(x.dtype)
    return out


def rotary_of_patches_torch(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, width: int) -> torch.Tensor:
    b, t, h, d = x.size()
    token = torch.arange(t, device=x.device)
    place = torch.stack([token // width, token % width], 1)
    c, s = cos[place][:, None], sin[place][:, None]
    first, second = high(x).view(b, t, h, 2, d // 4, 2).unbind(-1)
    return torch.stack([first * c - second * s, first * s + second * c], -1).view(x.shape).to(x.dtype)


def make_rotary_of_patches(device: str, small: bool) -> Arguments:
    b, rows, width, h, d = (2, 3, 5, 3, 16) if small else (8, 48, 64, 16, 80)
    angle = torch.rand([max(rows, width), d // 4], device=device) * 6.28
    return normal(device, b, rows * width, h, d, dtype=BF16), torch.cos(angle), torch.sin(angle), width


CELLS.add(rotary_of_patches, make_rotary_of_patches, rotary_of_patches_torch)


@helion.kernel
def turn_back_and_pack(
    dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """Gradients `[B, H, T, D]` of turned queries and keys and of values, packed as `[B, T, 3, H, D]` before the turn.
    The halves of a head are turned by `cos[T, D / 2]` and `sin[T, D / 2]`."""
    b, h, t, d = dq.size()
    half = hl.specialize(cos.size(1))
    out = torch.empty([b, t, 3, h, d], dtype=dq.dtype, device=dq.device)
    for bi, hi, tokens in hl.tile([b, h, t], block_size=[1, 1, None]):
        batch, head = bi.begin, hi.begin
        low, upper = hl.arange(half), half + hl.arange(half)
        c, s = cos[tokens, :], sin[tokens, :]
        x, y = dq[batch, head, tokens, low].to(torch.float32), dq[batch, head, tokens, upper].to(torch.float32)
        out[batch, tokens, 0, head, low] = (x * c + y * s).to(out.dtype)
        out[batch, tokens, 0, head, upper] = (y * c - x * s).to(out.dtype)
        x, y = dk[batch, head, tokens, low].to(torch.float32), dk[batch, head, tokens, upper].to(torch.float32)
        out[batch, tokens, 1, head, low] = (x * c + y * s).to(out.dtype)
        out[batch, tokens, 1, head, upper] = (y * c - x * s).to(out.dtype)
        out[batch, tokens, 2, head, :] = dv[batch, head, tokens, :]
    return out


def turn_back_and_pack_torch(
    dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    def back(g: torch.Tensor) -> torch.Tensor:
        x, y = high(g).chunk(2, -1)
        return torch.cat([x * cos + y * sin, y * cos - x * sin], -1).to(g.dtype)

    return torch.stack([back(dq), back(dk), dv], 2).permute(0, 3, 2, 1, 4).contiguous()


def make_turn_back_and_pack(device: str, small: bool) -> Arguments:
    b, h, t, d = (2, 3, 13, 16) if small else (2, 24, 4096, 128)
    angle = torch.rand([t, d // 2], device=device) * 6.28
    return *(normal(device, b, h, t, d, dtype=BF16) for _ in range(3)), torch.cos(angle), torch.sin(angle)


CELLS.add(turn_back_and_pack, make_turn_back_and_pack, turn_back_and_pack_torch)


@helion.kernel
def clamped_glu_gradient(x: torch.Tensor, grad: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    """Gradient of `gate sigmoid(alpha gate) (up + 1)`, gate and up clamped, in turn along the rows of `x[T, 2 N]`."""
    t, n = grad.size()
    out = torch.empty_like(x)
    pairs, slopes = x.view(t, n, 2), out.view(t, n, 2)
    for rows, cols in hl.tile([t, n]):
        gate, up = hl.split(pairs[rows, cols, :].to(torch.float32))
        g = grad[rows, cols].to(torch.float32)
        a = torch.clamp(gate, max=limit)
        b = torch.clamp(up, min=-limit, max=limit)
        s = torch.sigmoid(alpha * a)
        da = torch.where(gate < limit, g * (b + 1.0) * s * (1.0 + alpha * a * (1.0 - s)), 0.0)
        db = torch.where(torch.abs(up) < limit, g * a * s, 0.0)
        slopes[rows, cols, :] = hl.join(da, db).to(x.dtype)
    return out


def clamped_glu_gradient_torch(x: torch.Tensor, grad: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    gate, up = high(x)[:, ::2], high(x)[:, 1::2]
    g, a, b = high(grad), torch.clamp(gate, max=limit), torch.clamp(up, -limit, limit)
    s = torch.sigmoid(alpha * a)
    da = torch.where(gate < limit, g * (b + 1.0) * s * (1.0 + alpha * a * (1.0 - s)), 0.0)
    db = torch.where(up.abs() < limit, g * a * s, 0.0)
    return torch.stack([da, db], -1).view(x.shape).to(x.dtype)


def make_clamped_glu_gradient(device: str, small: bool) -> Arguments:
    t, n = (13, 37) if small else (8192, 2880)
    return normal(device, t, 2 * n, dtype=BF16, scale=4.0), normal(device, t, n, dtype=BF16), 1.702, 7.0


CELLS.add(clamped_glu_gradient, make_clamped_glu_gradient, clamped_glu_gradient_torch)


@helion.kernel
def geglu_to_fp8(x: torch.Tensor, smooth: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`gelu(gate) * up / smooth` of packed rows `x[T, 2 N]` in e4m3, with a scale for each row."""
    t, n = x.size(0), smooth.size(0)
    halves = x.view(t, 2, n)
    out = torch.empty([t, n], dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty([t, 1], dtype=torch.float32, device=x.device)
    for tile in hl.tile(t):
        gate = halves[tile, 0, :].to(torch.float32)
        y = F.gelu(gate, approximate="tanh") * halves[tile, 1, :].to(torch.float32) / smooth[:][None, :]
        scale = torch.clamp(torch.abs(y).amax(-1), min=1e-10) / 448.0
        scales[tile, 0] = scale
        out[tile, :] = (y / scale[:, None]).to(torch.float8_e4m3fn)
    return out, scales


def geglu_to_fp8_torch(x: torch.Tensor, smooth: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gate, up = high(x).chunk(2, -1)
    y = F.gelu(gate, approximate="tanh") * up / smooth
    scale = torch.clamp(y.abs().amax(-1, keepdim=True), min=1e-10) / 448.0
    return (y / scale).to(E4M3), scale


def make_geglu_to_fp8(device: str, small: bool) -> Arguments:
    t, n = (13, 75) if small else (4096, 6912)
    return normal(device, t, 2 * n, dtype=BF16), torch.rand([n], device=device) + 0.5


CELLS.add(geglu_to_fp8, make_geglu_to_fp8, geglu_to_fp8_torch)


@helion.kernel
def modulated_norm_gradient(
    x: torch.Tensor, scale: torch.Tensor, grad: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of `layer_norm(x) * (1 + scale) + shift` of `x[B, T, D]`: for x, and for scale and shift `[B, D]`."""
    b, t, d = x.size()
    dx = torch.empty_like(x)
    dscale = torch.zeros([b, d], dtype=torch.float32, device=x.device)
    dshift = torch.zeros([b, d], dtype=torch.float32, device=x.device)
    for bi, rows in hl.tile([b, t], block_size=[1, None]):
        batch = bi.begin
        v = x[batch, rows, :].to(torch.float32)
        centered = v - v.mean(-1)[:, None]
        inverse = torch.rsqrt((centered * centered).mean(-1) + eps)[:, None]
        normed = centered * inverse
        g = grad[batch, rows, :].to(torch.float32)
        hl.atomic_add(dscale, [batch, slice(None)], (g * normed).sum(0))
        hl.atomic_add(dshift, [batch, slice(None)], g.sum(0))
        g = g * (1.0 + scale[batch, :].to(torch.float32))[None, :]
        g = g - g.mean(-1)[:, None] - normed * (g * normed).mean(-1)[:, None]
        dx[batch, rows, :] = (g * inverse).to(x.dtype)
    return dx, dscale, dshift


def modulated_norm_gradient_torch(
    x: torch.Tensor, scale: torch.Tensor, grad: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    v, g = high(x), high(grad)
    centered = v - v.mean(-1, keepdim=True)
    inverse = torch.rsqrt((centered * centered).mean(-1, keepdim=True) + eps)
    normed = centered * inverse
    dscale, dshift = (g * normed).sum(1), g.sum(1)
    g = g * (1.0 + high(scale))[:, None]
    g = g - g.mean(-1, keepdim=True) - normed * (g * normed).mean(-1, keepdim=True)
    return (g * inverse).to(x.dtype), dscale, dshift


def make_modulated_norm_gradient(device: str, small: bool) -> Arguments:
    b, t, d = (2, 13, 40) if small else (8, 2048, 1152)
    x, grad = (normal(device, b, t, d, dtype=BF16) for _ in range(2))
    return x, normal(device, b, d, dtype=BF16, scale=0.2), grad, 1e-6


CELLS.add(modulated_norm_gradient, make_modulated_norm_gradient, modulated_norm_gradient_torch)


@helion.kernel
def encoder_embeddings(
    ids: torch.Tensor,
    segments: torch.Tensor,
    words: torch.Tensor,
    places: torch.Tensor,
    kinds: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
) -> torch.Tensor:
    """Layer norm of `words[ids] + places[t] + kinds[segments]` for tokens `[B, T]`; ids of 0 give zeros."""
    b, t = ids.size()
    d = words.size(1)
    out = torch.empty([b, t, d], dtype=words.dtype, device=words.device)
    for bi, tokens in hl.tile([b, t], block_size=[1, None]):
        batch = bi.begin
        token = ids[batch, tokens]
        x = words[token, :].to(torch.float32) + places[tokens, :].to(torch.float32)
        x = x + kinds[segments[batch, tokens], :].to(torch.float32)
        normed = F.layer_norm(x, [d], weight[:].to(torch.float32), bias[:].to(torch.float32), 1e-12)
        out[batch, tokens, :] = torch.where((token != 0)[:, None], normed, 0.0).to(words.dtype)
    return out


def encoder_embeddings_torch(
    ids: torch.Tensor,
    segments: torch.Tensor,
    words: torch.Tensor,
    places: torch.Tensor,
    kinds: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
) -> torch.Tensor:
    x = high(words[ids]) + high(places[: ids.size(1)]) + high(kinds[segments])
    normed = F.layer_norm(x, [x.size(-1)], high(weight), high(bias), 1e-12)
    return torch.where((ids != 0)[..., None], normed, 0.0).to(words.dtype)


def make_encoder_embeddings(device: str, small: bool) -> Arguments:
    b, t, vocabulary, d = (3, 13, 50, 40) if small else (64, 512, 30522, 768)
    ids = torch.randint(0, vocabulary, [b, t], device=device)
    segments = torch.randint(0, 2, [b, t], device=device)
    tables = (normal(device, n, d, dtype=BF16) for n in (vocabulary, t, 2))
    return ids, segments, *tables, normal(device, d, dtype=BF16), normal(device, d, dtype=BF16)


CELLS.add(encoder_embeddings, make_encoder_embeddings, encoder_embeddings_torch)
