"""Taps of neighbours and of time: convolutions, pools and their gradients, and layers that carry a state."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, FP16, FP32, Arguments, Cells, below, high, normal

CELLS = Cells()


@helion.kernel
def conv3_of_80_channels(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`silu(conv(x) + bias) + x` of a 3 by 3 convolution: `x[B, H + 2, W + 2, C]` with a border of zeros, `w[3, 3, C, C]`."""
    b, height, width, c = x.size()
    h, wide = height - 2, width - 2
    c = hl.specialize(c)
    out = torch.empty([b, h, wide, c], dtype=x.dtype, device=x.device)
    for tile_b, tile_h, cols in hl.tile([b, h, wide], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        acc = hl.zeros([cols, c], dtype=torch.float32)
        for dy in hl.static_range(3):
            for dx in hl.static_range(3):
                acc = hl.dot(x[bi, hi + dy, cols.index + dx, :], w[dy, dx, :, :], acc=acc)
        y = acc + bias[:].to(torch.float32)[None, :]
        y = F.silu(y) + x[bi, hi + 1, cols.index + 1, :].to(torch.float32)
        out[bi, hi, cols, :] = y.to(x.dtype)
    return out


def conv3_of_80_channels_torch(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    y = F.conv2d(x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1), bias).permute(0, 2, 3, 1)
    return F.silu(y) + x[:, 1:-1, 1:-1]


def make_conv3_of_80_channels(device: str, small: bool) -> Arguments:
    b, h, wide, c = (2, 4, 13, 20) if small else (48, 80, 80, 80)
    x = F.pad(normal(device, b, h, wide, c, dtype=FP16), (0, 0, 1, 1, 1, 1))
    return x, normal(device, 3, 3, c, c, dtype=FP16, scale=(9 * c) ** -0.5), normal(device, c, dtype=FP16)


CELLS.add(conv3_of_80_channels, make_conv3_of_80_channels, conv3_of_80_channels_torch)


@helion.kernel
def conv5_to_48(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Rectified 5 by 5 convolution without padding, 24 to 48 channels: taps in a loop, `x[B, H, W, C]`, `w[5, 5, N, C]`."""
    b, height, width, c = x.size()
    n = w.size(2)
    c, n = hl.specialize(c), hl.specialize(n)
    out = torch.empty([b, height - 4, width - 4, n], dtype=x.dtype, device=x.device)
    for tile_b, tile_h, cols in hl.tile([b, height - 4, width - 4], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        acc = hl.zeros([cols, n], dtype=torch.float32)
        for dy, dx in hl.grid([5, 5]):
            acc = hl.dot(x[bi, hi + dy, cols.index + dx, :], w[dy, dx, :, :].T, acc=acc)
        out[bi, hi, cols, :] = torch.relu(acc).to(x.dtype)
    return out


def conv5_to_48_torch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(F.conv2d(x.permute(0, 3, 1, 2), w.permute(2, 3, 0, 1))).permute(0, 2, 3, 1)


def make_conv5_to_48(device: str, small: bool) -> Arguments:
    b, h, wide, c, n = (2, 7, 13, 16, 24) if small else (64, 100, 100, 24, 48)
    return normal(device, b, h, wide, c, dtype=BF16), normal(device, 5, 5, n, c, dtype=BF16, scale=(25 * c) ** -0.5)


CELLS.add(conv5_to_48, make_conv5_to_48, conv5_to_48_torch)


@helion.kernel
def depthwise5_and_sums(
    x: torch.Tensor, w: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Depthwise 5 by 5 of `x[B, H, W, C]` with zeros outside, a folded norm and a SiLU; and sums of pixels `[B, C]`."""
    b, h, wide, c = x.size()
    out = torch.empty_like(x)
    sums = torch.zeros([b, c], dtype=torch.float32, device=x.device)
    for tile_b, tile_h, cols, chans in hl.tile([b, h, wide, c], block_size=[1, 1, None, None]):
        bi, hi = tile_b.begin, tile_h.begin
        acc = hl.zeros([cols, chans], dtype=torch.float32)
        for dy in hl.static_range(5):
            for dx in hl.static_range(5):
                row, at = hi + dy - 2, cols.index + (dx - 2)
                inside = (row >= 0) & (row < h) & (at >= 0) & (at < wide)
                tap = hl.load(x, [bi, row, at, chans], extra_mask=inside[:, None])
                acc += tap.to(torch.float32) * w[dy, dx, chans].to(torch.float32)[None, :]
        y = F.silu(acc * gain[chans][None, :] + bias[chans][None, :])
        out[bi, hi, cols, chans] = y.to(x.dtype)
        hl.atomic_add(sums, [bi, chans], torch.where(cols.index[:, None] < wide, y, 0.0).sum(0))
    return out, sums


def depthwise5_and_sums_torch(
    x: torch.Tensor, w: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    y = F.conv2d(high(x).permute(0, 3, 1, 2), high(w).permute(2, 0, 1)[:, None], padding=2, groups=x.size(3))
    y = F.silu(y.permute(0, 2, 3, 1) * gain + bias)
    return y.to(x.dtype), y.sum((1, 2))


def depthwise5_and_sums_baseline(
    x: torch.Tensor, w: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    y = F.conv2d(x.permute(0, 3, 1, 2), w.permute(2, 0, 1)[:, None], padding=2, groups=x.size(3))
    y = F.silu(high(y).permute(0, 2, 3, 1) * gain + bias)
    return y.to(x.dtype), y.sum((1, 2))


def make_depthwise5_and_sums(device: str, small: bool) -> Arguments:
    b, h, c = (2, 7, 20) if small else (64, 28, 240)
    gain, bias = torch.rand([c], device=device) + 0.5, normal(device, c)
    return normal(device, b, h, h, c, dtype=BF16), normal(device, 5, 5, c, dtype=BF16, scale=0.2), gain, bias


CELLS.add(depthwise5_and_sums, make_depthwise5_and_sums, depthwise5_and_sums_torch, depthwise5_and_sums_baseline)


@helion.kernel
def packed_causal_conv4(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, sequence: torch.Tensor) -> torch.Tensor:
    """SiLU of a causal depthwise convolution of four taps over packed tokens `x[T, C]`, within `sequence[T]`."""
    t, c = x.size()
    out = torch.empty_like(x)
    for rows, chans in hl.tile([t, c]):
        own = sequence[rows]
        acc = bias[chans].to(torch.float32)[None, :] + hl.zeros([rows, chans], dtype=torch.float32)
        for tap in hl.static_range(4):
            at = rows.index - tap
            near = torch.clamp(at, min=0)
            same = (at >= 0) & (sequence[near] == own)
            value = hl.load(x, [near, chans], extra_mask=same[:, None]).to(torch.float32)
            acc += value * w[3 - tap, chans].to(torch.float32)[None, :]
        out[rows, chans] = F.silu(acc).to(x.dtype)
    return out


def packed_causal_conv4_torch(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, sequence: torch.Tensor
) -> torch.Tensor:
    y = high(bias) + high(x) * high(w[3])
    for tap in (1, 2, 3):
        same = (sequence[tap:] == sequence[:-tap])[:, None]
        y = y + F.pad(torch.where(same, high(x[:-tap]), 0.0) * high(w[3 - tap]), (0, 0, tap, 0))
    return F.silu(y).to(x.dtype)


def make_packed_causal_conv4(device: str, small: bool) -> Arguments:
    t, c = (53, 24) if small else (20000, 3072)
    sequence = torch.sort(torch.randint(0, 6 if small else 40, [t], device=device, dtype=torch.int32)).values
    return normal(device, t, c, dtype=BF16), normal(device, 4, c, dtype=BF16), normal(device, c, dtype=BF16), sequence


CELLS.add(packed_causal_conv4, make_packed_causal_conv4, packed_causal_conv4_torch)


@helion.kernel
def average_pool3_gradient(grad: torch.Tensor) -> torch.Tensor:
    """Gradient of 3 by 3 averages `grad[B, H, W, C]` with a border of one, which counts only pixels of the image."""
    b, h, w, c = grad.size()
    out = torch.empty_like(grad)
    for tile_b, tile_h, cols, chans in hl.tile([b, h, w, c], block_size=[1, 1, None, None]):
        bi, hi = tile_b.begin, tile_h.begin
        acc = hl.zeros([cols, chans], dtype=torch.float32)
        for dy in hl.static_range(3):
            for dx in hl.static_range(3):
                row, at = hi + dy - 1, cols.index + (dx - 1)
                inside = (row >= 0) & (row < h) & (at >= 0) & (at < w)
                tall = min(row + 2, h) - max(row - 1, 0)
                wide = torch.clamp(at + 2, max=w) - torch.clamp(at - 1, min=0)
                value = hl.load(grad, [bi, row, at, chans], extra_mask=inside[:, None]).to(torch.float32)
                acc += value / torch.where(inside, tall * wide, 1).to(torch.float32)[:, None]
        out[bi, hi, cols, chans] = acc.to(grad.dtype)
    return out


def average_pool3_gradient_torch(grad: torch.Tensor) -> torch.Tensor:
    h, w = grad.shape[1:3]
    ones = torch.ones([1, 1, h, w], device=grad.device)
    share = F.avg_pool2d(ones, 3, 1, 1, divisor_override=1)
    y = high(grad).permute(0, 3, 1, 2) / share
    return F.avg_pool2d(y, 3, 1, 1, divisor_override=1).permute(0, 2, 3, 1).to(grad.dtype)


CELLS.add(
    average_pool3_gradient,
    lambda device, small: (normal(device, *((2, 5, 7, 20) if small else (64, 35, 35, 288)), dtype=FP16),),
    average_pool3_gradient_torch,
)


@helion.kernel
def upsample_beside_skip(x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
    """Repeat pixels of `x[B, H, W, C]` twice in both directions, beside the channels of `skip[B, 2 H, 2 W, S]`."""
    b, h, w, c = x.size()
    s = skip.size(3)
    out = torch.empty([b, 2 * h, 2 * w, c + s], dtype=x.dtype, device=x.device)
    for tile_b, tile_h, cols in hl.tile([b, 2 * h, 2 * w], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        for chans in hl.tile(c):
            out[bi, hi, cols, chans] = x[bi, hi // 2, cols.index // 2, chans]
        for chans in hl.tile(s):
            out[bi, hi, cols, chans.index + c] = skip[bi, hi, cols, chans]
    return out


def upsample_beside_skip_torch(x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
    up = F.interpolate(x.permute(0, 3, 1, 2), scale_factor=2, mode="nearest").permute(0, 2, 3, 1)
    return torch.cat([up, skip], -1).contiguous()


def make_upsample_beside_skip(device: str, small: bool) -> Arguments:
    b, h, w, c, s = (2, 3, 5, 20, 12) if small else (32, 40, 40, 320, 192)
    return normal(device, b, h, w, c, dtype=FP16), normal(device, b, 2 * h, 2 * w, s, dtype=FP16)


CELLS.add(upsample_beside_skip, make_upsample_beside_skip, upsample_beside_skip_torch)


@helion.kernel
def patches_of_3(x: torch.Tensor) -> torch.Tensor:
    """Copy 3 by 3 neighbourhoods of `x[B, H, W, C]`, with zeros outside, into rows `[B, H, W, 9, C]` of a product."""
    b, h, w, c = x.size()
    out = torch.empty([b, h, w, 9, c], dtype=x.dtype, device=x.device)
    for tile_b, tile_h, cols, chans in hl.tile([b, h, w, c], block_size=[1, 1, None, None]):
        bi, hi = tile_b.begin, tile_h.begin
        for tap in hl.static_range(9):
            row, at = hi + (tap // 3 - 1), cols.index + (tap % 3 - 1)
            inside = (row >= 0) & (row < h) & (at >= 0) & (at < w)
            out[bi, hi, cols, tap, chans] = hl.load(x, [bi, row, at, chans], extra_mask=inside[:, None])
    return out


def patches_of_3_torch(x: torch.Tensor) -> torch.Tensor:
    h, w = x.shape[1:3]
    wide = F.pad(x, (0, 0, 1, 1, 1, 1))
    return torch.stack([wide[:, i : i + h, j : j + w] for i in range(3) for j in range(3)], 3)


CELLS.add(
    patches_of_3,
    lambda device, small: (normal(device, *((2, 5, 7, 20) if small else (32, 40, 40, 144)), dtype=BF16),),
    patches_of_3_torch,
)


@helion.kernel
def transposed_conv2(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Transposed 2 by 2 convolution with stride 2: `x[B, H, W, C]`, `w[2, 2, C, N]`: a product for each of four places."""
    b, h, wide, c = x.size()
    n = w.size(3)
    out = torch.empty([b, h, 2, wide, 2, n], dtype=x.dtype, device=x.device)
    for tile_b, tile_h, place, cols, chans in hl.tile([b, h, 4, wide, n], block_size=[1, 1, 1, None, None]):
        bi, hi = tile_b.begin, tile_h.begin
        dy, dx = place.begin // 2, place.begin % 2
        acc = hl.zeros([cols, chans], dtype=torch.float32)
        for inner in hl.tile(c):
            acc = hl.dot(x[bi, hi, cols, inner], w[dy, dx, inner, chans], acc=acc)
        out[bi, hi, dy, cols, dx, chans] = (acc + bias[chans].to(torch.float32)[None, :]).to(x.dtype)
    return out.view(b, 2 * h, 2 * wide, n)


def transposed_conv2_torch(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    y = F.conv_transpose2d(x.permute(0, 3, 1, 2), w.permute(2, 3, 0, 1), bias, stride=2)
    return y.permute(0, 2, 3, 1).contiguous()


def make_transposed_conv2(device: str, small: bool) -> Arguments:
    b, h, wide, c, n = (2, 3, 13, 24, 20) if small else (16, 64, 64, 512, 256)
    w, bias = normal(device, 2, 2, c, n, dtype=FP16, scale=c**-0.5), normal(device, n, dtype=FP16)
    return normal(device, b, h, wide, c, dtype=FP16), w, bias


CELLS.add(transposed_conv2, make_transposed_conv2, transposed_conv2_torch)


@helion.kernel
def gated_dilated_conv(x: torch.Tensor, w: torch.Tensor, w_out: torch.Tensor, dilation: int) -> torch.Tensor:
    """Residual layer of a vocoder: `x[B, T, C]` plus `tanh(f) * sigmoid(g)` times `w_out[C, C]`, where f and g are causal
    convolutions of two taps, `w[2, 2, C, C]` by gate and tap."""
    b, t, c = x.size()
    c = hl.specialize(c)
    out = torch.empty_like(x)
    for tile_b, rows in hl.tile([b, t], block_size=[1, None]):
        bi = tile_b.begin
        own = x[bi, rows, :]
        at = rows.index - dilation
        before = hl.load(x, [bi, at, slice(None)], extra_mask=(at >= 0)[:, None])
        f = hl.dot(before, w[0, 0, :, :], acc=hl.dot(own, w[0, 1, :, :]))
        g = hl.dot(before, w[1, 0, :, :], acc=hl.dot(own, w[1, 1, :, :]))
        z = (torch.tanh(f) * torch.sigmoid(g)).to(x.dtype)
        out[bi, rows, :] = (hl.dot(z, w_out[:, :]) + own.to(torch.float32)).to(x.dtype)
    return out


def gated_dilated_conv_torch(x: torch.Tensor, w: torch.Tensor, w_out: torch.Tensor, dilation: int) -> torch.Tensor:
    before = F.pad(x, (0, 0, dilation, 0))[:, : x.size(1)]
    f, g = (high(before @ w[i, 0]) + high(x @ w[i, 1]) for i in range(2))
    return x + (torch.tanh(f) * torch.sigmoid(g)).to(x.dtype) @ w_out


def make_gated_dilated_conv(device: str, small: bool) -> Arguments:
    b, t, c, dilation = (2, 37, 16, 5) if small else (8, 16000, 96, 64)
    w, w_out = normal(device, 2, 2, c, c, dtype=BF16, scale=c**-0.5), normal(device, c, c, dtype=BF16, scale=c**-0.5)
    return normal(device, b, t, c, dtype=BF16), w, w_out, dilation


CELLS.add(gated_dilated_conv, make_gated_dilated_conv, gated_dilated_conv_torch)


def after(decay: torch.Tensor, value: torch.Tensor, next_decay: torch.Tensor, next_value: torch.Tensor) -> tuple:
    return decay * next_decay, value * next_decay + next_value


@helion.kernel
def gated_linear_unit_scan(
    x: torch.Tensor, gate: torch.Tensor, forget: torch.Tensor, rate: torch.Tensor
) -> torch.Tensor:
    """Real-gated linear recurrence of `x[B, T, C]`: decays `exp(-8 softplus(rate) sigmoid(forget))`, inputs gated and
    scaled by `sqrt(1 - decay^2)`. A program scans tiles of time and carries the state of its channels."""
    b, t, c = x.size()
    out = torch.empty_like(x)
    for tile_b, chans in hl.tile([b, c], block_size=[1, None]):
        bi = tile_b.begin
        speed = -8.0 * F.softplus(rate[chans])
        state = hl.zeros([chans], dtype=torch.float32)
        for rows in hl.tile(t):
            log_decay = speed[None, :] * torch.sigmoid(forget[bi, rows, chans].to(torch.float32))
            decay = torch.exp(log_decay)
            own = x[bi, rows, chans].to(torch.float32) * torch.sigmoid(gate[bi, rows, chans].to(torch.float32))
            own = own * torch.sqrt(1.0 - torch.exp(2.0 * log_decay))
            inside = (rows.index < t)[:, None]
            decay, own = torch.where(inside, decay, 1.0), torch.where(inside, own, 0.0)
            whole, y = hl.associative_scan(after, (decay, own), dim=0)
            y = y + whole * state[None, :]
            out[bi, rows, chans] = y.to(x.dtype)
            last = rows.index == rows.end - 1
            state = torch.where(last[:, None], y, 0.0).sum(0)
    return out


def gated_linear_unit_scan_torch(
    x: torch.Tensor, gate: torch.Tensor, forget: torch.Tensor, rate: torch.Tensor
) -> torch.Tensor:
    log_decay = -8.0 * F.softplus(rate) * torch.sigmoid(high(forget))
    own = high(x) * torch.sigmoid(high(gate)) * torch.sqrt(1.0 - torch.exp(2.0 * log_decay))
    state, states = torch.zeros_like(own[:, 0]), []
    for at in range(x.size(1)):
        state = torch.exp(log_decay[:, at]) * state + own[:, at]
        states.append(state)
    return torch.stack(states, 1).to(x.dtype)


def gated_linear_unit_scan_baseline(
    x: torch.Tensor, gate: torch.Tensor, forget: torch.Tensor, rate: torch.Tensor
) -> torch.Tensor:
    log_decay = -8.0 * F.softplus(rate) * torch.sigmoid(high(forget))
    y = high(x) * torch.sigmoid(high(gate)) * torch.sqrt(1.0 - torch.exp(2.0 * log_decay))
    decay, step = torch.exp(log_decay), 1
    while step < x.size(1):
        y = y + decay * F.pad(y, (0, 0, step, 0))[:, :-step]
        decay = decay * F.pad(decay, (0, 0, step, 0), value=1.0)[:, :-step]
        step *= 2
    return y.to(x.dtype)


def make_gated_linear_unit_scan(device: str, small: bool) -> Arguments:
    b, t, c = (2, 37, 24) if small else (8, 2000, 2560)
    x, gate, forget = (normal(device, b, t, c, dtype=BF16) for _ in range(3))
    return x, gate, forget, normal(device, c) - 4.0


CELLS.add(
    gated_linear_unit_scan,
    make_gated_linear_unit_scan,
    gated_linear_unit_scan_torch,
    gated_linear_unit_scan_baseline,
)


@helion.kernel
def pass_states(states: torch.Tensor, decays: torch.Tensor, first: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """States before each chunk and after the last, from `states[B, N, H, P, S]` of chunks and log-decays `[B, N, H]`."""
    b, n, h, p, s = states.size()
    size = p * s
    flat, start = states.view(b, n, h, size), first.view(b, h, size)
    before = torch.empty_like(flat)
    last = torch.empty([b, h, size], dtype=torch.float32, device=states.device)
    for tile_b, tile_h, tile in hl.tile([b, h, size], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        state = start[bi, hi, tile].to(torch.float32)
        for ci in hl.grid(n):
            before[bi, ci, hi, tile] = state.to(states.dtype)
            state = torch.exp(decays[bi, ci, hi]) * state + flat[bi, ci, hi, tile].to(torch.float32)
        last[bi, hi, tile] = state
    return before.view(b, n, h, p, s), last.view(b, h, p, s)


def pass_states_torch(
    states: torch.Tensor, decays: torch.Tensor, first: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    state, before = high(first), []
    for ci in range(states.size(1)):
        before.append(state.to(states.dtype))
        state = torch.exp(decays[:, ci])[..., None, None] * state + states[:, ci]
    return torch.stack(before, 1), state


def make_pass_states(device: str, small: bool) -> Arguments:
    b, n, h, p, s = (2, 3, 2, 8, 16) if small else (8, 16, 80, 64, 128)
    decays = -torch.rand([b, n, h], device=device)
    return normal(device, b, n, h, p, s, dtype=BF16), decays, normal(device, b, h, p, s, dtype=FP32)


CELLS.add(pass_states, make_pass_states, pass_states_torch)


@helion.kernel
def matrix_memory_parallel(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, forget: torch.Tensor, enter: torch.Tensor
) -> torch.Tensor:
    """Parallel form of an mLSTM of `[B, H, T, D]`: products of queries and keys, weighted by sums of log forget gates
    `[B, H, T]` and input gates, with a running maximum; rows are divided by the size of their sum, at least exp(-max)."""
    b, h, t, d = q.size()
    d = hl.specialize(d)
    out = torch.empty_like(q)
    scale = d**-0.5
    for tile_b, tile_h, rows in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        queries = q[bi, hi, rows, :]
        past = forget[bi, hi, rows]
        m = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, d], dtype=torch.float32)
        for cols in hl.tile(rows.end):
            weight = past[:, None] + (enter[bi, hi, cols] - forget[bi, hi, cols])[None, :]
            weight = torch.where(rows.index[:, None] >= cols.index[None, :], weight, float("-inf"))
            new = torch.maximum(m, weight.amax(-1))
            s = hl.dot(queries, k[bi, hi, cols, :].T) * scale * torch.exp(weight - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + s.sum(-1)
            acc = hl.dot(s.to(v.dtype), v[bi, hi, cols, :], acc=acc * alpha[:, None])
            m = new
        size = torch.maximum(torch.abs(total), torch.exp(-m))
        out[bi, hi, rows, :] = (acc / size[:, None]).to(q.dtype)
    return out


def matrix_memory_parallel_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, forget: torch.Tensor, enter: torch.Tensor
) -> torch.Tensor:
    weight = forget[..., :, None] + (enter - forget)[..., None, :]
    weight = weight.masked_fill(~below(q.size(2), q.device), -math.inf)
    m = weight.amax(-1, keepdim=True)
    s = high(q @ k.transpose(-1, -2)) * q.size(3) ** -0.5 * torch.exp(weight - m)
    size = torch.maximum(s.sum(-1, keepdim=True).abs(), torch.exp(-m))
    return (high(s.to(v.dtype) @ v) / size).to(q.dtype)


def make_matrix_memory_parallel(device: str, small: bool) -> Arguments:
    b, h, t, d = (2, 2, 37, 16) if small else (4, 8, 2048, 128)
    q, k, v = (normal(device, b, h, t, d, dtype=BF16) for _ in range(3))
    forget = torch.cumsum(F.logsigmoid(normal(device, b, h, t) + 3.0), -1)
    return q, k, v, forget, normal(device, b, h, t)


CELLS.add(matrix_memory_parallel, make_matrix_memory_parallel, matrix_memory_parallel_torch)
