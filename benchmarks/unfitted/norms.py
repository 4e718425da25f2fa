"""Norms with what follows or precedes them: activations, splits of columns, dropout, quantization, and gradients."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def instance_norm_leaky(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, slope: float, eps: float
) -> torch.Tensor:
    """Return instance norm of images `[B, C, H, W]` with a weight for each channel, then a leaky ReLU."""
    b, c, h, w = x.size()
    planes = x.view(b, c, h * w)
    out = torch.empty_like(planes)
    for batch, channels in hl.tile([b, c]):
        v = planes[batch, channels, :].to(torch.float32)
        mean = v.mean(-1, keepdim=True)
        centered = v - mean
        rstd = torch.rsqrt((centered * centered).mean(-1, keepdim=True) + eps)
        y = centered * rstd * weight[channels].to(torch.float32)[None, :, None]
        y = y + bias[channels].to(torch.float32)[None, :, None]
        out[batch, channels, :] = torch.where(y > 0, y, slope * y).to(x.dtype)
    return out.view(b, c, h, w)


def instance_norm_leaky_torch(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, slope: float, eps: float
) -> torch.Tensor:
    y = F.instance_norm(high(x), weight=high(weight), bias=high(bias), eps=eps)
    return F.leaky_relu(y, slope).to(x.dtype)


def make_instance_norm_leaky(device: str, small: bool) -> Arguments:
    b, c, h, w = (2, 5, 7, 9) if small else (8, 320, 112, 112)
    x = normal(device, b, c, h, w, dtype=FP16)
    return x, normal(device, c, dtype=FP16), normal(device, c, dtype=FP16), 0.01, 1e-5


CELLS.add(instance_norm_leaky, make_instance_norm_leaky, instance_norm_leaky_torch)


@helion.kernel
def group_norm_channels_last(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: hl.constexpr, eps: float
) -> torch.Tensor:
    """Group norm and SiLU of images `[B, C, H, W]` whose channels are contiguous in memory."""
    b, c, h, w = x.size()
    size = hl.specialize(c) // groups
    pixels = x.permute(0, 2, 3, 1).view(b, h * w, groups, size)
    out = torch.empty_like(pixels)
    gains, shifts = weight.view(groups, size), bias.view(groups, size)
    for batch, group in hl.grid([b, groups]):
        total = hl.zeros([size], dtype=torch.float32)
        square = hl.zeros([size], dtype=torch.float32)
        for tile in hl.tile(h * w):
            v = pixels[batch, tile, group, :].to(torch.float32)
            total += v.sum(0)
            square += (v * v).sum(0)
        count = h * w * size
        mean = total.sum(-1) / count
        rstd = torch.rsqrt(square.sum(-1) / count - mean * mean + eps)
        gain = gains[group, :].to(torch.float32) * rstd
        shift = shifts[group, :].to(torch.float32) - mean * gain
        for tile in hl.tile(h * w):
            y = pixels[batch, tile, group, :].to(torch.float32) * gain[None, :] + shift[None, :]
            out[batch, tile, group, :] = (y * torch.sigmoid(y)).to(x.dtype)
    return out.view(b, h, w, c).permute(0, 3, 1, 2)


def group_norm_channels_last_torch(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int, eps: float
) -> torch.Tensor:
    return F.silu(F.group_norm(high(x), groups, high(weight), high(bias), eps)).to(x.dtype)


def make_group_norm_channels_last(device: str, small: bool) -> Arguments:
    b, c, h, w, groups = (2, 24, 5, 7, 3) if small else (16, 320, 64, 64, 32)
    x = normal(device, b, h, w, c, dtype=BF16).permute(0, 3, 1, 2)
    return x, normal(device, c, dtype=BF16), normal(device, c, dtype=BF16), groups, 1e-5


CELLS.add(group_norm_channels_last, make_group_norm_channels_last, group_norm_channels_last_torch)


@helion.kernel
def normed_gelu_gradient(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return gradients of `gelu(layer_norm(x[M, N]))` for x, weight and bias, from saved statistics `[M]`."""
    m, n = x.size()
    dx = torch.empty_like(x)
    dweight = torch.zeros([n], dtype=torch.float32, device=x.device)
    dbias = torch.zeros([n], dtype=torch.float32, device=x.device)
    for tile in hl.tile(m):
        gain = weight[:].to(torch.float32)[None, :]
        normed = (x[tile, :].to(torch.float32) - mean[tile][:, None]) * rstd[tile][:, None]
        y = normed * gain + bias[:].to(torch.float32)[None, :]
        cdf = 0.5 * (1.0 + torch.erf(y * math.sqrt(0.5)))
        density = torch.exp(-0.5 * y * y) * (1.0 / math.sqrt(2.0 * math.pi))
        g = grad[tile, :].to(torch.float32) * (cdf + y * density)
        hl.atomic_add(dweight, [slice(None)], (g * normed).sum(0))
        hl.atomic_add(dbias, [slice(None)], g.sum(0))
        g = g * gain
        along = (g * normed).mean(-1)[:, None]
        dx[tile, :] = ((g - g.mean(-1)[:, None] - normed * along) * rstd[tile][:, None]).to(x.dtype)
    return dx, dweight, dbias


def normed_gelu_gradient_torch(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    normed = (high(x) - mean[:, None]) * rstd[:, None]
    y = normed * high(weight) + high(bias)
    cdf = 0.5 * (1 + torch.erf(y * math.sqrt(0.5)))
    g = high(grad) * (cdf + y * torch.exp(-0.5 * y * y) / math.sqrt(2 * math.pi))
    dweight, dbias = (g * normed).sum(0), g.sum(0)
    g = g * high(weight)
    dx = (g - g.mean(-1, keepdim=True) - normed * (g * normed).mean(-1, keepdim=True)) * rstd[:, None]
    return dx.to(x.dtype), dweight, dbias


def make_normed_gelu_gradient(device: str, small: bool) -> Arguments:
    m, n = (27, 65) if small else (577 * 48, 1280)
    x = normal(device, m, n, dtype=BF16)
    mean = x.float().mean(-1)
    rstd = torch.rsqrt(x.float().var(-1, unbiased=False) + 1e-5)
    weight, bias = (normal(device, n, dtype=BF16) for _ in range(2))
    return normal(device, m, n, dtype=BF16), x, weight, bias, mean, rstd


CELLS.add(normed_gelu_gradient, make_normed_gelu_gradient, normed_gelu_gradient_torch)


@helion.kernel
def latent_split_norms(
    x: torch.Tensor, q_weight: torch.Tensor, kv_weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return RMS norms of two parts of the columns of `x[T, Q + K + R]`, and a copy of the last R columns."""
    t, n = x.size()
    q, k = q_weight.size(0), kv_weight.size(0)
    r = n - q - k
    queries, latents, rest = x.split([q, k, r], 1)
    out_q = torch.empty([t, q], dtype=x.dtype, device=x.device)
    out_k = torch.empty([t, k], dtype=x.dtype, device=x.device)
    out_r = torch.empty([t, r], dtype=x.dtype, device=x.device)
    for tile in hl.tile(t):
        v = queries[tile, :].to(torch.float32)
        inverse = torch.rsqrt((v * v).mean(-1, keepdim=True) + eps)
        out_q[tile, :] = (v * inverse * q_weight[:].to(torch.float32)[None, :]).to(x.dtype)
        u = latents[tile, :].to(torch.float32)
        inverse = torch.rsqrt((u * u).mean(-1, keepdim=True) + eps)
        out_k[tile, :] = (u * inverse * kv_weight[:].to(torch.float32)[None, :]).to(x.dtype)
        out_r[tile, :] = rest[tile, :]
    return out_q, out_k, out_r


def latent_split_norms_torch(
    x: torch.Tensor, q_weight: torch.Tensor, kv_weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k = q_weight.size(0), kv_weight.size(0)
    a, b, rest = x.split([q, k, x.size(1) - q - k], 1)
    a = F.rms_norm(high(a), [q], high(q_weight), eps)
    b = F.rms_norm(high(b), [k], high(kv_weight), eps)
    return a.to(x.dtype), b.to(x.dtype), rest.clone()


def make_latent_split_norms(device: str, small: bool) -> Arguments:
    t, q, k, r = (19, 48, 32, 8) if small else (24576, 1536, 512, 64)
    return normal(device, t, q + k + r, dtype=BF16), normal(device, q, dtype=BF16), normal(device, k, dtype=BF16), 1e-6


CELLS.add(latent_split_norms, make_latent_split_norms, latent_split_norms_torch)


@helion.kernel
def batch_norm_train(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return batch norm of rows `x[M, C]` in training: results, means and variances of the columns."""
    m, c = x.size()
    out = torch.empty_like(x)
    total = torch.zeros([c], dtype=torch.float32, device=x.device)
    square = torch.zeros([c], dtype=torch.float32, device=x.device)
    mean = torch.empty([c], dtype=torch.float32, device=x.device)
    var = torch.empty([c], dtype=torch.float32, device=x.device)
    for rows, cols in hl.tile([m, c]):
        v = x[rows, cols].to(torch.float32)
        hl.atomic_add(total, [cols], v.sum(0))
        hl.atomic_add(square, [cols], (v * v).sum(0))
    hl.barrier()
    for cols in hl.tile(c):
        mu = total[cols] / m
        mean[cols] = mu
        var[cols] = square[cols] / m - mu * mu
    hl.barrier()
    for rows, cols in hl.tile([m, c]):
        gain = torch.rsqrt(var[cols] + eps) * weight[cols]
        y = (x[rows, cols].to(torch.float32) - mean[cols][None, :]) * gain[None, :] + bias[cols][None, :]
        out[rows, cols] = y.to(x.dtype)
    return out, mean, var


def batch_norm_train_torch(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    v = high(x)
    mean, var = v.mean(0), v.var(0, unbiased=False)
    return ((v - mean) * torch.rsqrt(var + eps) * weight + bias).to(x.dtype), mean, var


def make_batch_norm_train(device: str, small: bool) -> Arguments:
    m, c = (77, 20) if small else (64 * 56 * 56, 256)
    return normal(device, m, c, dtype=FP16) + 0.5, normal(device, c), normal(device, c), 1e-5


CELLS.add(batch_norm_train, make_batch_norm_train, batch_norm_train_torch)


@helion.kernel
def weight_norm_bf16(v: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows of `v[M, N]` in fp32 divided by their norms, times `g[M]`, in bf16; also the norms."""
    m, _ = v.size()
    out = torch.empty(v.size(), dtype=torch.bfloat16, device=v.device)
    norms = torch.empty([m], dtype=torch.float32, device=v.device)
    for tile in hl.tile(m):
        row = v[tile, :]
        norm = torch.sqrt((row * row).sum(-1))
        norms[tile] = norm
        out[tile, :] = (row * (g[tile] / norm)[:, None]).to(torch.bfloat16)
    return out, norms


def weight_norm_bf16_torch(v: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    norm = v.norm(dim=-1)
    return (v * (g / norm)[:, None]).to(torch.bfloat16), norm


def make_weight_norm_bf16(device: str, small: bool) -> Arguments:
    m, n = (13, 101) if small else (8192, 11008)
    return normal(device, m, n), normal(device, m)


CELLS.add(weight_norm_bf16, make_weight_norm_bf16, weight_norm_bf16_torch)


@helion.kernel
def smoothed_norm_int8(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, smooth: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return layer norm of `x[M, N]` divided by `smooth[N]`, in int8 with a scale for each row."""
    m, _ = x.size()
    codes = torch.empty(x.size(), dtype=torch.int8, device=x.device)
    scales = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile in hl.tile(m):
        row = x[tile, :].to(torch.float32)
        centered = row - row.mean(-1, keepdim=True)
        rstd = torch.rsqrt((centered * centered).mean(-1, keepdim=True) + eps)
        y = centered * rstd * weight[:].to(torch.float32)[None, :] + bias[:].to(torch.float32)[None, :]
        y = y / smooth[:][None, :]
        scale = torch.clamp(torch.abs(y).amax(-1), min=1e-6) / 127.0
        scales[tile] = scale
        codes[tile, :] = torch.round(y / scale[:, None]).to(torch.int8)
    return codes, scales


def smoothed_norm_int8_torch(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, smooth: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    y = F.layer_norm(high(x), [x.size(1)], high(weight), high(bias), eps) / smooth
    scale = torch.clamp(y.abs().amax(-1), min=1e-6) / 127
    return torch.round(y / scale[:, None]).to(torch.int8), scale


def make_smoothed_norm_int8(device: str, small: bool) -> Arguments:
    m, n = (11, 129) if small else (6144, 12288)
    weight, bias = (normal(device, n, dtype=BF16) for _ in range(2))
    return normal(device, m, n, dtype=BF16), weight, bias, torch.rand([n], device=device) + 0.5, 1e-5


CELLS.add(smoothed_norm_int8, make_smoothed_norm_int8, smoothed_norm_int8_torch)


@helion.kernel
def dynamic_tanh_gradient(
    grad: torch.Tensor, x: torch.Tensor, alpha: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return gradients of `tanh(alpha * x) * weight + bias` for x `[M, N]`, alpha `[1]`, weight and bias."""
    m, n = x.size()
    dx = torch.empty_like(x)
    dalpha = torch.zeros([1], dtype=torch.float32, device=x.device)
    dweight = torch.zeros([n], dtype=torch.float32, device=x.device)
    dbias = torch.zeros([n], dtype=torch.float32, device=x.device)
    for rows, cols in hl.tile([m, n]):
        a = alpha[0]
        v = x[rows, cols].to(torch.float32)
        g = grad[rows, cols].to(torch.float32)
        t = torch.tanh(a * v)
        hl.atomic_add(dweight, [cols], (g * t).sum(0))
        hl.atomic_add(dbias, [cols], g.sum(0))
        inner = g * weight[cols].to(torch.float32)[None, :] * (1.0 - t * t)
        hl.atomic_add(dalpha, [0], (inner * v).sum())
        dx[rows, cols] = (inner * a).to(x.dtype)
    return dx, dalpha, dweight, dbias


def dynamic_tanh_gradient_torch(
    grad: torch.Tensor, x: torch.Tensor, alpha: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    v, g = high(x), high(grad)
    t = torch.tanh(alpha * v)
    inner = g * high(weight) * (1 - t * t)
    return (inner * alpha).to(x.dtype), (inner * v).sum().view(1), (g * t).sum(0), g.sum(0)


def make_dynamic_tanh_gradient(device: str, small: bool) -> Arguments:
    m, n = (29, 67) if small else (197 * 128, 1152)
    x = normal(device, m, n, dtype=BF16)
    grad = (normal(device, m, n) * 0.1 + 0.05 * x.float() + 0.01).to(BF16)
    return grad, x, torch.full([1], 0.5, device=device), torch.rand([n], device=device).to(BF16)


CELLS.add(dynamic_tanh_gradient, make_dynamic_tanh_gradient, dynamic_tanh_gradient_torch)


@helion.kernel
def masked_dropout_norm(
    x: torch.Tensor, residual: torch.Tensor, keep: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `residual + dropout(x)` with a given mask, and its layer norm, all `[M, N]`."""
    m, _ = x.size()
    stream, out = torch.empty_like(x), torch.empty_like(x)
    for tile in hl.tile(m):
        kept = torch.where(keep[tile, :], x[tile, :].to(torch.float32) / (1.0 - p), 0.0)
        s = residual[tile, :].to(torch.float32) + kept
        stream[tile, :] = s.to(x.dtype)
        var, mean = torch.var_mean(s, -1, keepdim=True, correction=0)
        y = (s - mean) * torch.rsqrt(var + 1e-5)
        out[tile, :] = (y * weight[:].to(torch.float32)[None, :] + bias[:].to(torch.float32)[None, :]).to(x.dtype)
    return stream, out


def masked_dropout_norm_torch(
    x: torch.Tensor, residual: torch.Tensor, keep: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    s = high(residual) + torch.where(keep, high(x) / (1 - p), 0.0)
    return s.to(x.dtype), F.layer_norm(s, [x.size(1)], high(weight), high(bias)).to(x.dtype)


def make_masked_dropout_norm(device: str, small: bool) -> Arguments:
    m, n = (21, 75) if small else (16384, 2560)
    x, residual = (normal(device, m, n, dtype=FP16) for _ in range(2))
    keep = torch.rand([m, n], device=device) > 0.1
    return x, residual, keep, normal(device, n, dtype=FP16), normal(device, n, dtype=FP16), 0.1


CELLS.add(masked_dropout_norm, make_masked_dropout_norm, masked_dropout_norm_torch)
