"""Convolutions written as products, and chunks of state-space layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def pointwise_relu6(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Apply a 1x1 convolution `w[N, C]` to `x[B, C, H, W]`, then scale, shift and clamp to 0 ... 6."""
    b, c, height, width = x.size()
    n = w.size(0)
    pixels = height * width
    flat = x.view(b, c, pixels)
    out = torch.empty([b, n, pixels], dtype=x.dtype, device=x.device)
    for image, filters, places in hl.tile([b, n, pixels], block_size=[1, None, None]):
        acc = hl.zeros([filters, places], dtype=torch.float32)
        for inner in hl.tile(c):
            acc = torch.addmm(acc, w[filters, inner], flat[image.begin, inner, places])
        y = acc * scale[filters][:, None] + shift[filters][:, None]
        out[image.begin, filters, places] = torch.clamp(y, 0.0, 6.0).to(out.dtype)
    return out.view(b, n, height, width)


def pointwise_relu6_torch(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    y = high(F.conv2d(x, w[:, :, None, None]))
    return torch.clamp(y * scale[:, None, None] + shift[:, None, None], 0.0, 6.0).to(x.dtype)


def make_pointwise_relu6(device: str, small: bool) -> Arguments:
    b, c, n, height = (2, 24, 40, 5) if small else (64, 192, 384, 28)
    w = normal(device, n, c, dtype=FP16, scale=c**-0.5)
    return normal(device, b, c, height, height, dtype=FP16), w, normal(device, n), normal(device, n)


CELLS.add(pointwise_relu6, make_pointwise_relu6, pointwise_relu6_torch)


@helion.kernel
def shortcut_conv(x: torch.Tensor, w: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """Add a 1x1 convolution with stride 2 of `x[B, H, W, C]` to `residual[B, H / 2, W / 2, N]`, then apply relu."""
    b, height, width, c = x.size()
    n = w.size(1)
    out = torch.empty_like(residual)
    for image, row, places, cols in hl.tile([b, height // 2, width // 2, n], block_size=[1, 1, None, None]):
        bi, ri = image.begin, row.begin
        acc = residual[bi, ri, places, cols].to(torch.float32)
        for inner in hl.tile(c):
            acc = hl.dot(x[bi, 2 * ri, places.index * 2, inner], w[inner, cols], acc=acc)
        out[bi, ri, places, cols] = torch.relu(acc).to(out.dtype)
    return out


def shortcut_conv_torch(x: torch.Tensor, w: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return torch.relu(x[:, ::2, ::2] @ w + residual)


def make_shortcut_conv(device: str, small: bool) -> Arguments:
    b, height, c, n = (2, 10, 24, 40) if small else (32, 56, 256, 512)
    w = normal(device, c, n, dtype=BF16, scale=c**-0.5)
    return (
        normal(device, b, height, height, c, dtype=BF16),
        w,
        normal(device, b, height // 2, height // 2, n, dtype=BF16),
    )


CELLS.add(shortcut_conv, make_shortcut_conv, shortcut_conv_torch)


@helion.kernel
def padded_conv3_silu(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Apply a 3x3 convolution `w[3, 3, C, N]`, a bias and silu to padded images `x[B, H + 2, W + 2, C]`."""
    b, height, width, c = x.size()
    n = w.size(3)
    out = torch.empty([b, height - 2, width - 2, n], dtype=x.dtype, device=x.device)
    for image, row, places, cols in hl.tile([b, height - 2, width - 2, n], block_size=[1, 1, None, None]):
        bi, ri = image.begin, row.begin
        acc = hl.zeros([places, cols], dtype=torch.float32)
        for dy in hl.static_range(3):
            for dx in hl.static_range(3):
                for inner in hl.tile(c):
                    acc = hl.dot(x[bi, ri + dy, places.index + dx, inner], w[dy, dx, inner, cols], acc=acc)
        y = acc + bias[cols].to(torch.float32)[None, :]
        out[bi, ri, places, cols] = (y * torch.sigmoid(y)).to(out.dtype)
    return out


def padded_conv3_silu_torch(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.silu(F.conv2d(x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1), bias)).permute(0, 2, 3, 1).contiguous()


def make_padded_conv3_silu(device: str, small: bool) -> Arguments:
    b, height, c, n = (2, 7, 16, 24) if small else (8, 66, 320, 320)
    w = normal(device, 3, 3, c, n, dtype=FP16, scale=(9 * c) ** -0.5)
    x = F.pad(normal(device, b, height - 2, height - 2, c, dtype=FP16), [0, 0, 1, 1, 1, 1])
    return x, w, normal(device, n, dtype=FP16)


CELLS.add(padded_conv3_silu, make_padded_conv3_silu, padded_conv3_silu_torch)


@helion.kernel
def tokens_to_image(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, grid: int) -> torch.Tensor:
    """Map tokens `x[B, T, C]` by `w[C, P, P N]` to patches of an image `[B, grid P, grid P, N]`."""
    b, _, c = x.size()
    p, n = w.size(1), w.size(2)
    out = torch.empty([b, grid, p, grid, n], dtype=x.dtype, device=x.device)
    for image, line, at, places, cols in hl.tile([b, grid, p, grid, n], block_size=[1, 1, 1, None, None]):
        bi, li, pi = image.begin, line.begin, at.begin
        acc = hl.zeros([places, cols], dtype=torch.float32)
        for inner in hl.tile(c):
            acc = hl.dot(x[bi, li * grid + places.index, inner], w[inner, pi, cols], acc=acc)
        out[bi, li, pi, places, cols] = (acc + bias[pi, cols].to(torch.float32)[None, :]).to(out.dtype)
    return out


def tokens_to_image_torch(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, grid: int) -> torch.Tensor:
    y = (x @ w.flatten(1) + bias.flatten()).unflatten(2, w.shape[1:]).unflatten(1, [grid, grid])
    return y.transpose(2, 3).contiguous()


def make_tokens_to_image(device: str, small: bool) -> Arguments:
    b, grid, c, p, n = (2, 4, 40, 2, 12) if small else (32, 32, 768, 8, 12)
    w = normal(device, c, p, p * n, dtype=BF16, scale=c**-0.5)
    return normal(device, b, grid * grid, c, dtype=BF16), w, normal(device, p, p * n, dtype=BF16), grid


CELLS.add(tokens_to_image, make_tokens_to_image, tokens_to_image_torch)


@helion.kernel
def mamba_chunk_states(x: torch.Tensor, dt: torch.Tensor, cum: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Sum up what chunks add to states `[B, N, H, P, S]`.

    The inputs are `x[B, N, L, H, P]`, `dt` and `cum` `[B, N, L, H]`, and `keys[B, N, L, S]`."""
    b, n, length, h, p = x.size()
    length, p, s = hl.specialize(length), hl.specialize(p), hl.specialize(keys.size(3))
    out = torch.empty([b, n, h, p, s], dtype=torch.float32, device=x.device)
    for bi, ni, hi in hl.grid([b, n, h]):
        last = cum[bi, ni, length - 1, hi]
        acc = hl.zeros([p, s], dtype=torch.float32)
        for rows in hl.tile(length):
            weight = torch.exp(last - cum[bi, ni, rows, hi]) * dt[bi, ni, rows, hi]
            own = x[bi, ni, rows, hi, :].to(torch.float32) * weight[:, None]
            acc = hl.dot(own.to(x.dtype).T, keys[bi, ni, rows, :], acc=acc)
        out[bi, ni, hi, :, :] = acc
    return out


def mamba_chunk_states_torch(x: torch.Tensor, dt: torch.Tensor, cum: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    weight = torch.exp(cum[:, :, -1:] - cum) * dt
    own = (high(x) * weight[..., None]).to(x.dtype)
    return high(own.permute(0, 1, 3, 4, 2) @ keys[:, :, None])


def make_mamba_chunk_states(device: str, small: bool) -> Arguments:
    b, n, length, h, p, s = (2, 3, 32, 3, 16, 32) if small else (4, 16, 256, 32, 64, 128)
    dt = torch.rand([b, n, length, h], device=device) * 0.1
    x = normal(device, b, n, length, h, p, dtype=BF16)
    return x, dt, torch.cumsum(-dt, 2), normal(device, b, n, length, s, dtype=BF16)


CELLS.add(mamba_chunk_states, make_mamba_chunk_states, mamba_chunk_states_torch)


@helion.kernel
def dilated_taps(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, dilation: int) -> torch.Tensor:
    """Convolve `x[B, T, C]` over time with 2 taps `w[2, C, 2 N]`, and multiply tanh and sigmoid of the halves."""
    b, t, c = x.size()
    n = w.size(2) // 2
    out = torch.empty([b, t - dilation, n], dtype=x.dtype, device=x.device)
    for batch, times, cols in hl.tile([b, t - dilation, n], block_size=[1, None, None]):
        bi = batch.begin
        value = hl.zeros([times, cols], dtype=torch.float32)
        gate = hl.zeros([times, cols], dtype=torch.float32)
        for inner in hl.tile(c):
            past = x[bi, times, inner]
            now = x[bi, times.index + dilation, inner]
            value = hl.dot(past, w[0, inner, cols], acc=value)
            value = hl.dot(now, w[1, inner, cols], acc=value)
            gate = hl.dot(past, w[0, inner, cols.index + n], acc=gate)
            gate = hl.dot(now, w[1, inner, cols.index + n], acc=gate)
        value = torch.tanh(value + bias[cols].to(torch.float32)[None, :])
        gate = torch.sigmoid(gate + bias[cols.index + n].to(torch.float32)[None, :])
        out[bi, times, cols] = (value * gate).to(out.dtype)
    return out


def dilated_taps_torch(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, dilation: int) -> torch.Tensor:
    y = x[:, : x.size(1) - dilation] @ w[0] + x[:, dilation:] @ w[1] + bias
    value, gate = high(y).chunk(2, -1)
    return (torch.tanh(value) * torch.sigmoid(gate)).to(x.dtype)


def make_dilated_taps(device: str, small: bool) -> Arguments:
    b, t, c, n, dilation = (2, 37, 24, 40, 4) if small else (8, 8000, 128, 128, 64)
    w = normal(device, 2, c, 2 * n, dtype=FP16, scale=(2 * c) ** -0.5)
    return normal(device, b, t, c, dtype=FP16), w, normal(device, 2 * n, dtype=FP16), dilation


CELLS.add(dilated_taps, make_dilated_taps, dilated_taps_torch)


@helion.kernel
def filter_gradient(grad: torch.Tensor, x: torch.Tensor, main: torch.Tensor) -> torch.Tensor:
    """Add products of `grad[B, N, H, W]` and `x[B, C, H, W]` over pixels to a fp32 gradient `main[N, C]`."""
    b, n, height, width = grad.size()
    c = x.size(1)
    pixels = height * width
    upper, lower = grad.view(b, n, pixels), x.view(b, c, pixels)
    for filters, channels in hl.tile([n, c]):
        acc = main[filters, channels]
        for image in hl.grid(b):
            for places in hl.tile(pixels):
                acc = hl.dot(upper[image, filters, places], lower[image, channels, places].T, acc=acc)
        main[filters, channels] = acc
    return main


def filter_gradient_torch(grad: torch.Tensor, x: torch.Tensor, main: torch.Tensor) -> torch.Tensor:
    upper, lower = grad.transpose(0, 1).flatten(1), x.transpose(0, 1).flatten(1)
    return main.add_((upper @ lower.T).to(main.dtype))


def make_filter_gradient(device: str, small: bool) -> Arguments:
    b, n, c, height = (3, 24, 40, 4) if small else (32, 512, 256, 28)
    grad, x = (normal(device, b, size, height, height, dtype=BF16) for size in (n, c))
    return grad, x, normal(device, n, c, scale=100.0)


CELLS.add(filter_gradient, make_filter_gradient, filter_gradient_torch)


@helion.kernel
def output_mix(x: torch.Tensor, w: torch.Tensor, dt: torch.Tensor) -> torch.Tensor:
    """Return steps of a state-space layer, `softplus(x w[N, R].T + dt[N])`, of the first columns of `x[M, R + 2 S]`."""
    m = x.size(0)
    n, r = w.size()
    r = hl.specialize(r)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for rows, cols in hl.tile([m, n]):
        y = hl.dot(x[rows, hl.arange(r)], w[cols, :].T) + dt[cols][None, :]
        out[rows, cols] = torch.where(y > 20.0, y, torch.log(1.0 + torch.exp(torch.clamp(y, max=20.0))))
    return out


def output_mix_torch(x: torch.Tensor, w: torch.Tensor, dt: torch.Tensor) -> torch.Tensor:
    return F.softplus(high(F.linear(x[:, : w.size(1)], w)) + dt)


def make_output_mix(device: str, small: bool) -> Arguments:
    m, n, r, s = (13, 24, 16, 4) if small else (16384, 2048, 64, 16)
    w = normal(device, n, r, dtype=BF16, scale=r**-0.5)
    return normal(device, m, r + 2 * s, dtype=BF16), w, normal(device, n)


CELLS.add(output_mix, make_output_mix, output_mix_torch)
