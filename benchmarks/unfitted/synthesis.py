"""Models that generate images and audio: modulated norms, steps of samplers, stems, quantized activations."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, E4M3, FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def modulate_after_gate(
    x: torch.Tensor, branch: torch.Tensor, modulation: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`x + gate * branch` of `[B, T, C]` and its modulated layer norm; `modulation[B, 6, C]` has the gate in row 2."""
    b, t, _ = x.size()
    total, out = torch.empty_like(x), torch.empty_like(x)
    for tile_b, tile_t in hl.tile([b, t], block_size=[1, None]):
        i = tile_b.begin
        v = x[i, tile_t, :].to(torch.float32)
        v = v + modulation[i, 2, :].to(torch.float32)[None, :] * branch[i, tile_t, :].to(torch.float32)
        total[i, tile_t, :] = v.to(x.dtype)
        centered = v - v.mean(-1, keepdim=True)
        unit = centered * torch.rsqrt((centered * centered).mean(-1, keepdim=True) + 1e-6)
        shift, scale = modulation[i, 3, :].to(torch.float32), modulation[i, 4, :].to(torch.float32)
        out[i, tile_t, :] = (unit * (1.0 + scale[None, :]) + shift[None, :]).to(x.dtype)
    return total, out


def modulate_after_gate_torch(
    x: torch.Tensor, branch: torch.Tensor, modulation: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    _, _, gate, shift, scale, _ = high(modulation)[:, :, None].unbind(1)
    v = high(x) + gate * high(branch)
    return v.to(x.dtype), (F.layer_norm(v, [x.size(2)], eps=1e-6) * (1.0 + scale) + shift).to(x.dtype)


def make_modulate_after_gate(device: str, small: bool) -> Arguments:
    b, t, c = (2, 21, 63) if small else (8, 4096, 1152)
    return tuple(normal(device, *shape, dtype=BF16) for shape in ((b, t, c), (b, t, c), (b, 6, c)))


CELLS.add(modulate_after_gate, make_modulate_after_gate, modulate_after_gate_torch)


@helion.kernel
def guided_step(
    sample: torch.Tensor, both: torch.Tensor, keep: torch.Tensor, move: torch.Tensor, guidance: float, mix: float
) -> torch.Tensor:
    """A sampler's step of `[B, N]` with guidance from predictions `[2, B, N]`, whose deviation is restored in part."""
    b, _ = sample.size()
    out = torch.empty_like(sample)
    for tile in hl.tile(b):
        free, given = both[0, tile, :].to(torch.float32), both[1, tile, :].to(torch.float32)
        guided = free + guidance * (given - free)
        spread = torch.sqrt(torch.var(given, -1) / torch.var(guided, -1))
        guided = guided * (mix * spread + 1.0 - mix)[:, None]
        x = sample[tile, :].to(torch.float32)
        out[tile, :] = (keep[tile][:, None] * x + move[tile][:, None] * guided).to(sample.dtype)
    return out


def guided_step_torch(
    sample: torch.Tensor, both: torch.Tensor, keep: torch.Tensor, move: torch.Tensor, guidance: float, mix: float
) -> torch.Tensor:
    free, given = high(both).unbind(0)
    guided = free + guidance * (given - free)
    restored = guided * (given.std(-1, keepdim=True) / guided.std(-1, keepdim=True))
    guided = mix * restored + (1.0 - mix) * guided
    return (keep[:, None] * high(sample) + move[:, None] * guided).to(sample.dtype)


def make_guided_step(device: str, small: bool) -> Arguments:
    b, n = (5, 65) if small else (64, 4 * 96 * 96)
    weights = torch.rand([b], device=device), torch.rand([b], device=device)
    return normal(device, b, n, dtype=FP16), normal(device, 2, b, n, dtype=FP16), *weights, 7.5, 0.7


CELLS.add(guided_step, make_guided_step, guided_step_torch)


@helion.kernel
def draw_latents(moments: torch.Tensor, noise: torch.Tensor, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Latents `[B, N]` of an autoencoder from means and log-variances `[B, 2, N]`, and the divergence of each sample."""
    b, n = noise.size()
    out = torch.empty_like(noise)
    divergence = torch.zeros([b], dtype=torch.float32, device=noise.device)
    for tile_b, tile_n in hl.tile([b, n]):
        mean = moments[tile_b, 0, tile_n].to(torch.float32)
        log = torch.clamp(moments[tile_b, 1, tile_n].to(torch.float32), -30.0, 20.0)
        draw = mean + torch.exp(0.5 * log) * noise[tile_b, tile_n].to(torch.float32)
        out[tile_b, tile_n] = (draw * factor).to(noise.dtype)
        part = 0.5 * (mean * mean + torch.exp(log) - 1.0 - log)
        hl.atomic_add(divergence, [tile_b], part.sum(-1))
    return out, divergence


def draw_latents_torch(moments: torch.Tensor, noise: torch.Tensor, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    mean, log = high(moments).unbind(1)
    log = torch.clamp(log, -30.0, 20.0)
    out = (mean + torch.exp(0.5 * log) * high(noise)) * factor
    return out.to(noise.dtype), 0.5 * (mean * mean + torch.exp(log) - 1.0 - log).sum(-1)


def make_draw_latents(device: str, small: bool) -> Arguments:
    b, n = (5, 65) if small else (32, 16 * 128 * 128)
    return normal(device, b, 2, n, dtype=BF16), normal(device, b, n, dtype=BF16), 0.18215


CELLS.add(draw_latents, make_draw_latents, draw_latents_torch)


@helion.kernel
def audio_stem(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """GELU of a convolution of width 3 and stride 2 with padding, `x[B, C, T]` and `w[O, C, 3]`, plus position embeddings
    `[T / 2, O]`; tokens `[B, T / 2, O]`."""
    b, c, t = x.size()
    half, o = position.size()
    out = torch.empty([b, half, o], dtype=x.dtype, device=x.device)
    for tile_b, tile_t, tile_o in hl.tile([b, half, o], block_size=[1, None, None]):
        i = tile_b.begin
        acc = hl.zeros([tile_t, tile_o], dtype=torch.float32)
        for tap in hl.static_range(3):
            at = tile_t.index * 2 + tap - 1
            inside = (at >= 0) & (at < t)
            for tile_c in hl.tile(c):
                part = hl.load(x, [i, tile_c, at], extra_mask=inside[None, :])
                acc = hl.dot(part.T, w[tile_o, tile_c, tap].T, acc=acc)
        y = acc + bias[tile_o].to(torch.float32)[None, :]
        y = 0.5 * y * (1.0 + torch.erf(y * (1.0 / math.sqrt(2.0))))
        out[i, tile_t, tile_o] = (y + position[tile_t, tile_o].to(torch.float32)).to(x.dtype)
    return out


def audio_stem_torch(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.conv1d(x, w, bias, stride=2, padding=1)).transpose(1, 2) + position


def make_audio_stem(device: str, small: bool) -> Arguments:
    b, c, t, o = (2, 20, 38, 40) if small else (16, 384, 3000, 384)
    shapes = (o, c, 3), (o,), (t // 2, o)
    return normal(device, b, c, t, dtype=FP16), *(normal(device, *shape, dtype=FP16, scale=0.05) for shape in shapes)


CELLS.add(audio_stem, make_audio_stem, audio_stem_torch)


@helion.kernel
def snake_residual(x: torch.Tensor, residual: torch.Tensor, alpha: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """`y + sin(exp(alpha) y)^2 / exp(beta)` of `y = x + residual`, audio `[B, C, T]`, with parameters of channels."""
    out = torch.empty_like(x)
    for tile_b, tile_c, tile_t in hl.tile(x.size()):
        y = x[tile_b, tile_c, tile_t] + residual[tile_b, tile_c, tile_t]
        frequency = torch.exp(alpha[tile_c])[None, :, None]
        wave = torch.sin(frequency * y)
        out[tile_b, tile_c, tile_t] = y + wave * wave / (torch.exp(beta[tile_c])[None, :, None] + 1e-9)
    return out


def snake_residual_torch(
    x: torch.Tensor, residual: torch.Tensor, alpha: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    y = x + residual
    return y + torch.sin(torch.exp(alpha)[:, None] * y) ** 2 / (torch.exp(beta)[:, None] + 1e-9)


def make_snake_residual(device: str, small: bool) -> Arguments:
    b, c, t = (2, 5, 63) if small else (8, 192, 16385)
    return normal(device, b, c, t), normal(device, b, c, t), normal(device, c), normal(device, c)


CELLS.add(snake_residual, make_snake_residual, snake_residual_torch)


@helion.kernel
def qk_norm_rotary(
    qkv: torch.Tensor, gains: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMS norms of heads of queries and keys in `[B, T, 3, H, D / 2, 2]`, with gains `[2, D / 2, 2]`, then a rotation of
    pairs by angles `[T, D / 2]`; both go to `[B, H, T, D / 2, 2]`."""
    b, t, _, h, half, _ = qkv.size()
    q = torch.empty([b, h, t, half, 2], dtype=qkv.dtype, device=qkv.device)
    k = torch.empty_like(q)
    for tile_b, tile_t, tile_h in hl.tile([b, t, h], block_size=[1, None, None]):
        i = tile_b.begin
        cos, sin = cosines[tile_t, :][:, None, :], sines[tile_t, :][:, None, :]
        for which in hl.static_range(2):
            even = qkv[i, tile_t, which, tile_h, :, 0].to(torch.float32)
            odd = qkv[i, tile_t, which, tile_h, :, 1].to(torch.float32)
            squares = (even * even + odd * odd).sum(-1, keepdim=True)
            inverse = torch.rsqrt(squares / (2 * half) + 1e-6)
            even = even * inverse * gains[which, :, 0].to(torch.float32)[None, None, :]
            odd = odd * inverse * gains[which, :, 1].to(torch.float32)[None, None, :]
            first = (even * cos - odd * sin).to(qkv.dtype).transpose(0, 1)
            second = (odd * cos + even * sin).to(qkv.dtype).transpose(0, 1)
            if which == 0:
                q[i, tile_h, tile_t, :, 0] = first
                q[i, tile_h, tile_t, :, 1] = second
            else:
                k[i, tile_h, tile_t, :, 0] = first
                k[i, tile_h, tile_t, :, 1] = second
    return q, k


def qk_norm_rotary_torch(
    qkv: torch.Tensor, gains: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    x = high(qkv)[:, :, :2]
    x = x * torch.rsqrt((x * x).flatten(-2).mean(-1)[..., None, None] + 1e-6) * high(gains)[:, None]
    cos, sin = cosines[:, None, None], sines[:, None, None]
    even, odd = x.unbind(-1)
    turned = torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).to(qkv.dtype)
    q, k = turned.permute(2, 0, 3, 1, 4, 5).contiguous().unbind(0)
    return q, k


def make_qk_norm_rotary(device: str, small: bool) -> Arguments:
    b, t, h, half = (2, 13, 3, 8) if small else (4, 4096, 16, 64)
    angles = torch.rand([t, half], device=device)
    tensors = normal(device, b, t, 3, h, half, 2, dtype=BF16), normal(device, 2, half, 2, dtype=BF16)
    return *tensors, torch.cos(angles), torch.sin(angles)


CELLS.add(qk_norm_rotary, make_qk_norm_rotary, qk_norm_rotary_torch)


@helion.kernel
def silu_fp8_groups(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`silu(gate) * up` of rows `[M, 2 F]` in e4m3, with scales `[F / 128, M]` of groups of 128."""
    m = packed.size(0)
    groups = packed.size(1) // 256
    x = packed.view(m, 2, groups, 128)
    out = torch.empty([m, groups, 128], dtype=torch.float8_e4m3fn, device=packed.device)
    scales = torch.empty([groups, m], dtype=torch.float32, device=packed.device)
    for rows, group in hl.tile([m, groups]):
        gate = x[rows, 0, group, :].to(torch.float32)
        y = gate * torch.sigmoid(gate) * x[rows, 1, group, :].to(torch.float32)
        scale = torch.clamp(y.abs().amax(-1), min=1e-8) / 448.0
        scales[group, rows] = scale.T
        out[rows, group, :] = (y / scale[:, :, None]).to(torch.float8_e4m3fn)
    return out.view(m, groups * 128), scales


def silu_fp8_groups_torch(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gate, up = high(packed).chunk(2, 1)
    y = (F.silu(gate) * up).view(packed.size(0), -1, 128)
    scale = torch.clamp(y.abs().amax(-1), min=1e-8) / 448.0
    return (y / scale[..., None]).flatten(1).to(E4M3), scale.T.contiguous()


CELLS.add(
    silu_fp8_groups,
    lambda device, small: (normal(device, *((33, 768) if small else (4097, 2 * 14336)), dtype=BF16),),
    silu_fp8_groups_torch,
)
