"""Kernels that move data: other orders of axes, blocks of channels, and values of several dtypes."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def blocked_channels(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """`relu(x * scale + shift)` of `x[N, C, H, W]`, stored as `[N, C / 16, H, W, 16]`."""
    n, c, h, w = x.size()
    out = torch.empty([n, c // 16, h, w, 16], dtype=x.dtype, device=x.device)
    grouped = x.view(n, c // 16, 16, h * w)
    flat = out.view(n, c // 16, h * w, 16)
    scales, shifts = scale.view(c // 16, 16), shift.view(c // 16, 16)
    for tile_n, tile_c, tile_p in hl.tile([n, c // 16, h * w]):
        v = grouped[tile_n, tile_c, :, tile_p].to(torch.float32)
        v = torch.relu(v * scales[tile_c, :][None, :, :, None] + shifts[tile_c, :][None, :, :, None])
        flat[tile_n, tile_c, tile_p, :] = v.permute(0, 1, 3, 2).to(x.dtype)
    return out


def blocked_channels_torch(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    n, c, h, w = x.size()
    v = torch.relu(x.to(scale.dtype) * scale[:, None, None] + shift[:, None, None]).to(x.dtype)
    return v.view(n, c // 16, 16, h, w).permute(0, 1, 3, 4, 2).contiguous()


def make_blocked_channels(device: str, small: bool) -> Arguments:
    n, c, h, w = (2, 32, 5, 7) if small else (32, 128, 56, 56)
    return normal(device, n, c, h, w, dtype=FP16), normal(device, c), normal(device, c)


CELLS.add(blocked_channels, make_blocked_channels, blocked_channels_torch)


@helion.kernel
def frames_to_tokens(x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """`x[B, T, N, D] + position[T, D]`, stored as `[B, N, T, D]`."""
    b, t, n, d = x.size()
    out = torch.empty([b, n, t, d], dtype=x.dtype, device=x.device)
    for tile_b, tile_t, tile_n, tile_d in hl.tile([b, t, n, d]):
        v = x[tile_b, tile_t, tile_n, tile_d] + position[tile_t, tile_d][None, :, None, :]
        out[tile_b, tile_n, tile_t, tile_d] = v.permute(0, 2, 1, 3)
    return out


def frames_to_tokens_torch(x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    return (x + position[None, :, None, :]).permute(0, 2, 1, 3).contiguous()


def make_frames_to_tokens(device: str, small: bool) -> Arguments:
    b, t, n, c = (2, 3, 7, 33) if small else (4, 16, 1024, 768)
    return normal(device, b, t, n, c, dtype=BF16), normal(device, t, c, dtype=BF16)


CELLS.add(frames_to_tokens, make_frames_to_tokens, frames_to_tokens_torch)


@helion.kernel
def pixel_shuffle_bias(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`[N, 4 C, H, W]` to `[N, C, 2 H, 2 W]`, with a bias per output channel."""
    n, c4, h, w = x.size()
    c = c4 // 4
    out = torch.empty([n, c, 2 * h, 2 * w], dtype=x.dtype, device=x.device)
    source = x.view(n, c, 2, 2, h, w)
    target = out.view(n, c, h, 2, w, 2)
    for tile_n, tile_c, tile_h, tile_w in hl.tile([n, c, h, w]):
        v = source[tile_n, tile_c, :, :, tile_h, tile_w]
        v = v + bias[tile_c][None, :, None, None, None, None]
        target[tile_n, tile_c, tile_h, :, tile_w, :] = v.permute(0, 1, 4, 2, 5, 3)
    return out


def pixel_shuffle_bias_torch(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.pixel_shuffle(x, 2) + bias[None, :, None, None]


def make_pixel_shuffle_bias(device: str, small: bool) -> Arguments:
    n, c, h, w = (2, 3, 5, 9) if small else (16, 32, 120, 160)
    return normal(device, n, 4 * c, h, w, dtype=FP16), normal(device, c, dtype=FP16)


CELLS.add(pixel_shuffle_bias, make_pixel_shuffle_bias, pixel_shuffle_bias_torch)


@helion.kernel
def spatial_film(x: torch.Tensor, gain: torch.Tensor, offset: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`x[B, H, W, C] * (1 + gain[B, C]) + offset[H, W]` where `mask[B, H, W]`, else x."""
    b, h, w, c = x.size()
    out = torch.empty_like(x)
    for tile_b, tile_h, tile_w, tile_c in hl.tile([b, h, w, c]):
        v = x[tile_b, tile_h, tile_w, tile_c]
        y = v * (1.0 + gain[tile_b, tile_c][:, None, None, :]) + offset[tile_h, tile_w][None, :, :, None]
        out[tile_b, tile_h, tile_w, tile_c] = torch.where(mask[tile_b, tile_h, tile_w][:, :, :, None], y, v)
    return out


def spatial_film_torch(x: torch.Tensor, gain: torch.Tensor, offset: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    y = x * (1.0 + gain[:, None, None, :]) + offset[None, :, :, None]
    return torch.where(mask[..., None], y, x)


def make_spatial_film(device: str, small: bool) -> Arguments:
    b, h, w, c = (2, 5, 7, 33) if small else (16, 64, 64, 320)
    return (
        normal(device, b, h, w, c, dtype=BF16),
        normal(device, b, c, dtype=BF16),
        normal(device, h, w, dtype=BF16),
        torch.rand([b, h, w], device=device) > 0.3,
    )


CELLS.add(spatial_film, make_spatial_film, spatial_film_torch)


@helion.kernel
def phase_gate(x: torch.Tensor, gate: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Complex pairs `[T, C, 2]` times `gate[T, C] exp(i angle[C])`."""
    t, c, pair = x.size()
    hl.specialize(pair)
    out = torch.empty_like(x)
    for tile_t, tile_c in hl.tile([t, c]):
        a, b = hl.split(x[tile_t, tile_c, :].to(torch.float32))
        g = torch.sigmoid(gate[tile_t, tile_c].to(torch.float32))
        cos, sin = torch.cos(angle[tile_c])[None, :], torch.sin(angle[tile_c])[None, :]
        out[tile_t, tile_c, :] = hl.join(g * (a * cos - b * sin), g * (a * sin + b * cos)).to(x.dtype)
    return out


def phase_gate_torch(x: torch.Tensor, gate: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    a, b = high(x).unbind(-1)
    g = torch.sigmoid(high(gate))
    return torch.stack([g * (a * angle.cos() - b * angle.sin()), g * (a * angle.sin() + b * angle.cos())], -1).to(
        x.dtype
    )


def make_phase_gate(device: str, small: bool) -> Arguments:
    t, c = (17, 33) if small else (8192, 2048)
    return normal(device, t, c, 2, dtype=BF16), normal(device, t, c, dtype=BF16), normal(device, c)


CELLS.add(phase_gate, make_phase_gate, phase_gate_torch)


@helion.kernel
def radix4(real: torch.Tensor, imag: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Butterflies of four quarters of each row `[B, 4, N]`."""
    b, _, n = real.size()
    r, s = torch.empty_like(real), torch.empty_like(imag)
    for tile_b, tile_n in hl.tile([b, n]):
        a, ai = real[tile_b, 0, tile_n], imag[tile_b, 0, tile_n]
        c, ci = real[tile_b, 1, tile_n], imag[tile_b, 1, tile_n]
        d, di = real[tile_b, 2, tile_n], imag[tile_b, 2, tile_n]
        e, ei = real[tile_b, 3, tile_n], imag[tile_b, 3, tile_n]
        p, pi, q, qi = a + d, ai + di, a - d, ai - di
        u, ui, v, vi = c + e, ci + ei, c - e, ci - ei
        r[tile_b, 0, tile_n], s[tile_b, 0, tile_n] = p + u, pi + ui
        r[tile_b, 1, tile_n], s[tile_b, 1, tile_n] = q + vi, qi - v
        r[tile_b, 2, tile_n], s[tile_b, 2, tile_n] = p - u, pi - ui
        r[tile_b, 3, tile_n], s[tile_b, 3, tile_n] = q - vi, qi + v
    return r, s


def radix4_torch(real: torch.Tensor, imag: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    (a, c, d, e), (ai, ci, di, ei) = real.unbind(1), imag.unbind(1)
    p, pi, q, qi = a + d, ai + di, a - d, ai - di
    u, ui, v, vi = c + e, ci + ei, c - e, ci - ei
    return torch.stack([p + u, q + vi, p - u, q - vi], 1), torch.stack([pi + ui, qi - v, pi - ui, qi + v], 1)


def make_radix4(device: str, small: bool) -> Arguments:
    shape = (5, 4, 33) if small else (1024, 4, 2048)
    return normal(device, *shape), normal(device, *shape)


CELLS.add(radix4, make_radix4, radix4_torch)


@helion.kernel
def blend(
    a: torch.Tensor, b: torch.Tensor, choice: torch.Tensor, gain: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """bf16 and fp16 frames mixed by an int8 choice; fp16, and int16 samples."""
    m, n = a.size()
    out = torch.empty([m, n], dtype=torch.float16, device=a.device)
    samples = torch.empty([m, n], dtype=torch.int16, device=a.device)
    for tile_m, tile_n in hl.tile([m, n]):
        share = choice[tile_m, tile_n].to(torch.float32) / 127.0
        v = (a[tile_m, tile_n].to(torch.float32) * share + b[tile_m, tile_n].to(torch.float32) * (1.0 - share)) * gain[
            tile_m
        ][:, None]
        out[tile_m, tile_n] = v.to(torch.float16)
        samples[tile_m, tile_n] = torch.clamp(torch.round(v * 4096.0), -32768, 32767).to(torch.int16)
    return out, samples


def blend_torch(
    a: torch.Tensor, b: torch.Tensor, choice: torch.Tensor, gain: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    share = choice.to(torch.float32) / 127.0
    v = (a.to(torch.float32) * share + b.to(torch.float32) * (1.0 - share)) * gain.to(torch.float32)[:, None]
    return v.to(torch.float16), torch.clamp(torch.round(v * 4096.0), -32768, 32767).to(torch.int16)


def make_blend(device: str, small: bool) -> Arguments:
    m, n = (17, 33) if small else (4096, 4001)
    return (
        normal(device, m, n, dtype=BF16),
        normal(device, m, n, dtype=FP16),
        torch.randint(-127, 128, [m, n], device=device, dtype=torch.int8),
        torch.rand([m], device=device),
    )


CELLS.add(blend, make_blend, blend_torch)
