"""Elementwise steps, norms, columns, windows and losses."""

from __future__ import annotations

import torch

import helion
import helion.language as hl


@helion.kernel()
def partial_rope(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Turns neighbours among the first 2 R features of `x[B, T, H, D]` by `angles[T, R]`; copies the others."""
    b, t, h, _ = x.size()
    pairs = hl.specialize(angles.size(1))
    out = torch.empty_like(x)
    even, odd = x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
    out_even, out_odd = out[..., 0 : 2 * pairs : 2], out[..., 1 : 2 * pairs : 2]
    rest, out_rest = x[..., 2 * pairs :], out[..., 2 * pairs :]
    for tile_b, tile_t, tile_h in hl.tile([b, t, h]):
        angle = angles[tile_t, :].to(torch.float32)
        cos, sin = torch.cos(angle)[None, :, None, :], torch.sin(angle)[None, :, None, :]
        first = even[tile_b, tile_t, tile_h, :].to(torch.float32)
        second = odd[tile_b, tile_t, tile_h, :].to(torch.float32)
        out_even[tile_b, tile_t, tile_h, :] = (first * cos - second * sin).to(x.dtype)
        out_odd[tile_b, tile_t, tile_h, :] = (first * sin + second * cos).to(x.dtype)
        out_rest[tile_b, tile_t, tile_h, :] = rest[tile_b, tile_t, tile_h, :]
    return out


@helion.kernel()
def norm_and_rope(x: torch.Tensor, weight: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """RMS norm of each head of `x[T, H, D]`, whose halves are then turned by `cos`, `sin` `[T, D / 2]`."""
    t, h, d = x.size()
    half = hl.specialize(d // 2)
    out = torch.empty_like(x)
    for tile_t, tile_h in hl.tile([t, h]):
        low = x[tile_t, tile_h, :half].to(torch.float32)
        high = x[tile_t, tile_h, half:].to(torch.float32)
        square = (low * low).sum(-1) + (high * high).sum(-1)
        scale = torch.rsqrt(square / (2 * half) + 1e-6)[:, :, None]
        low = low * scale * weight[:half].to(torch.float32)
        high = high * scale * weight[half:].to(torch.float32)
        c, s = cos[tile_t, :][:, None, :].to(torch.float32), sin[tile_t, :][:, None, :].to(torch.float32)
        out[tile_t, tile_h, :half] = (low * c - high * s).to(x.dtype)
        out[tile_t, tile_h, half:] = (high * c + low * s).to(x.dtype)
    return out


@helion.kernel()
def layer_norm_to_int8(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Layer norm of the rows of `x[M, N]` as int8 with a scale for each row."""
    m, n = x.size()
    out = torch.empty([m, n], dtype=torch.int8, device=x.device)
    scales = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile in hl.tile(m):
        values = x[tile, :].to(torch.float32)
        mean = values.mean(-1, keepdim=True)
        centred = values - mean
        variance = (centred * centred).mean(-1, keepdim=True)
        y = centred * torch.rsqrt(variance + 1e-5) * weight[:].to(torch.float32) + bias[:].to(torch.float32)
        scale = y.abs().amax(-1) / 127.0
        out[tile, :] = torch.round(y / scale[:, None]).to(torch.int8)
        scales[tile] = scale
    return out, scales


@helion.kernel()
def residual_norm_to_fp8(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`x + residual` and its RMS norm in fp8 with a scale for each 128 features; `[M, N]`, weight `[N]`."""
    m, n = x.size()
    groups = n // 128
    summed = torch.empty_like(x)
    out = torch.empty([m, groups, 128], dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty([m, groups], dtype=torch.float32, device=x.device)
    x3, residual3, summed3 = (each.view(m, groups, 128) for each in (x, residual, summed))
    gain = weight.view(groups, 128)
    for tile in hl.tile(m):
        values = x3[tile, :, :].to(torch.float32) + residual3[tile, :, :].to(torch.float32)
        summed3[tile, :, :] = values.to(x.dtype)
        square = (values * values).sum(-1).sum(-1)
        y = values * torch.rsqrt(square / n + 1e-6)[:, None, None] * gain[:, :].to(torch.float32)[None, :, :]
        scale = y.abs().amax(-1).clamp(min=1e-6) / 448.0
        out[tile, :, :] = (y / scale[:, :, None]).to(torch.float8_e4m3fn)
        scales[tile, :] = scale
    return summed, out.view(m, n), scales


@helion.kernel()
def group_norm_nhwc(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Group norm and SiLU of `x[B, P, G, C]`: pixels of one image and channels of one group share their moments."""
    b, p, g, c = x.size()
    c = hl.specialize(c)
    out = torch.empty_like(x)
    for tile_b, tile_g in hl.tile([b, g], block_size=[1, 1]):
        total = hl.zeros([c], dtype=torch.float32)
        square = hl.zeros([c], dtype=torch.float32)
        for tile_p in hl.tile(p):
            values = x[tile_b.begin, tile_p, tile_g.begin, :].to(torch.float32)
            total = total + values.sum(0)
            square = square + (values * values).sum(0)
        mean = total.sum(0) / (p * c)
        scale = torch.rsqrt(square.sum(0) / (p * c) - mean * mean + 1e-5)
        gain, shift = weight[tile_g.begin, :].to(torch.float32), bias[tile_g.begin, :].to(torch.float32)
        for tile_p in hl.tile(p):
            values = x[tile_b.begin, tile_p, tile_g.begin, :].to(torch.float32)
            y = (values - mean) * scale * gain[None, :] + shift[None, :]
            out[tile_b.begin, tile_p, tile_g.begin, :] = (y * torch.sigmoid(y)).to(x.dtype)
    return out


@helion.kernel()
def batch_norm_columns(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Batch norm and ReLU of `x[M, C]` with the moments of its own columns, which are returned as well."""
    m, c = x.size()
    out = torch.empty_like(x)
    means = torch.empty([c], dtype=torch.float32, device=x.device)
    variances = torch.empty([c], dtype=torch.float32, device=x.device)
    for tile_c in hl.tile(c):
        total = hl.zeros([tile_c], dtype=torch.float32)
        square = hl.zeros([tile_c], dtype=torch.float32)
        for tile_m in hl.tile(m):
            values = x[tile_m, tile_c].to(torch.float32)
            total = total + values.sum(0)
            square = square + (values * values).sum(0)
        mean = total / m
        variance = square / m - mean * mean
        means[tile_c] = mean
        variances[tile_c] = variance
        scale = torch.rsqrt(variance + 1e-5) * weight[tile_c].to(torch.float32)
        for tile_m in hl.tile(m):
            y = (x[tile_m, tile_c].to(torch.float32) - mean[None, :]) * scale[None, :]
            out[tile_m, tile_c] = torch.relu(y + bias[tile_c].to(torch.float32)[None, :]).to(x.dtype)
    return out, means, variances


@helion.kernel()
def gated_group_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """RMS norm of every group of `x * silu(gate)`, both `[M, G, D]`; weight `[G, D]`."""
    m, g, _ = x.size()
    out = torch.empty_like(x)
    for tile_m, tile_g in hl.tile([m, g]):
        z = gate[tile_m, tile_g, :].to(torch.float32)
        y = x[tile_m, tile_g, :].to(torch.float32) * z * torch.sigmoid(z)
        scale = torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-5)
        out[tile_m, tile_g, :] = (y * scale * weight[tile_g, :].to(torch.float32)[None, :, :]).to(x.dtype)
    return out


@helion.kernel()
def unit_columns(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    """The columns of `x[K, N]` with norm `gain[N]`: a weight norm."""
    k, n = x.size()
    out = torch.empty_like(x)
    for tile_n in hl.tile(n):
        square = hl.zeros([tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            values = x[tile_k, tile_n].to(torch.float32)
            square = square + (values * values).sum(0)
        scale = gain[tile_n].to(torch.float32) * torch.rsqrt(square)
        for tile_k in hl.tile(k):
            out[tile_k, tile_n] = (x[tile_k, tile_n].to(torch.float32) * scale[None, :]).to(x.dtype)
    return out


@helion.kernel()
def swiglu_gradients(grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Gradients of gate and up of `silu(gate) * up`, all `[M, N]`, side by side in one `[M, 2 N]`."""
    m, n = grad.size()
    out = torch.empty([m, 2 * n], dtype=grad.dtype, device=grad.device)
    to_gate, to_up = out[:, :n], out[:, n:]
    for tile in hl.tile([m, n]):
        g, a, b = grad[tile].to(torch.float32), gate[tile].to(torch.float32), up[tile].to(torch.float32)
        s = torch.sigmoid(a)
        to_gate[tile] = (g * b * s * (1.0 + a * (1.0 - s))).to(grad.dtype)
        to_up[tile] = (g * a * s).to(grad.dtype)
    return out


@helion.kernel(ignore_warnings=[helion.exc.TensorOperationInWrapper])
def biased_gelu_gradients(grad: torch.Tensor, x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of `gelu(x + bias)` by tanh: that of `x[M, N]`, and of `bias[N]` by sums of rows in two stages."""
    m, n = x.size()
    span = hl.register_block_size(m)
    out = torch.empty_like(x)
    parts = torch.empty([helion.cdiv(m, span), n], dtype=torch.float32, device=x.device)
    for rows, columns in hl.tile([m, n], block_size=[span, None]):
        acc = hl.zeros([columns], dtype=torch.float32)
        shift = bias[columns].to(torch.float32)[None, :]
        for row in hl.tile(rows.begin, rows.end):
            v = x[row, columns].to(torch.float32) + shift
            t = torch.tanh(0.7978845608 * (v + 0.044715 * v * v * v))
            slope = 0.5 * (1.0 + t) + 0.5 * v * (1.0 - t * t) * 0.7978845608 * (1.0 + 0.134145 * v * v)
            result = grad[row, columns].to(torch.float32) * slope
            out[row, columns] = result.to(x.dtype)
            acc = acc + result.sum(0)
        parts[rows.id, columns] = acc
    return out, parts.sum(0)


@helion.kernel()
def adamw_with_master(
    master: torch.Tensor, first: torch.Tensor, second: torch.Tensor, grad: torch.Tensor, rate: float, step: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """One step of AdamW over fp32 `master[N]`, `first[N]`, `second[N]` and a narrow `grad[N]`; also the narrow weights."""
    (n,) = master.size()
    new, new_first, new_second = torch.empty_like(master), torch.empty_like(first), torch.empty_like(second)
    narrow = torch.empty_like(grad)
    for tile in hl.tile(n):
        g = grad[tile].to(torch.float32)
        m = first[tile] * 0.9 + g * 0.1
        v = second[tile] * 0.95 + g * g * 0.05
        slope = (m / (1.0 - 0.9**step)) / (torch.sqrt(v / (1.0 - 0.95**step)) + 1e-8)
        w = master[tile] * (1.0 - rate * 0.1) - rate * slope
        new[tile] = w
        new_first[tile] = m
        new_second[tile] = v
        narrow[tile] = w.to(grad.dtype)
    return new, new_first, new_second, narrow


@helion.kernel(ignore_warnings=[helion.exc.TensorOperationInWrapper])
def gradient_norm(x: torch.Tensor) -> torch.Tensor:
    """The 2-norm of `x[N]`, in parts that torch adds."""
    (n,) = x.size()
    span = hl.register_block_size(1024, 1 << 20)
    parts = torch.empty([helion.cdiv(n, span)], dtype=torch.float32, device=x.device)
    for part in hl.tile(n, block_size=span):
        values = x[part].to(torch.float32)
        parts[part.id] = (values * values).sum()
    return parts.sum().sqrt()


@helion.kernel()
def depthwise_nhwc(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """3 by 3 filters of each channel's own over `x[B, H, W, C]`, zeros around; `w[3, 3, C]`."""
    b, h, wide, c = x.size()
    out = torch.empty_like(x)
    for tile_b, tile_h, tile_w, tile_c in hl.tile([b, h, wide, c], block_size=[1, 1, None, None]):
        acc = hl.zeros([tile_w, tile_c], dtype=torch.float32)
        for dy in hl.static_range(3):
            for dx in hl.static_range(3):
                row, column = tile_h.begin + dy - 1, tile_w.index + dx - 1
                inside = (row >= 0) & (row < h) & (column >= 0) & (column < wide)
                values = hl.load(x, [tile_b.begin, row, column, tile_c], extra_mask=inside[:, None])
                acc = acc + values.to(torch.float32) * w[dy, dx, tile_c].to(torch.float32)[None, :]
        out[tile_b.begin, tile_h.begin, tile_w, tile_c] = acc.to(x.dtype)
    return out


@helion.kernel()
def causal_convolution(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """SiLU of four taps of each channel's own along time: `x[B, C, T]`, `w[C, 4]`, `bias[C]`."""
    b, c, t = x.size()
    out = torch.empty_like(x)
    for tile_b, tile_c, tile_t in hl.tile([b, c, t], block_size=[1, None, None]):
        acc = hl.zeros([tile_c, tile_t], dtype=torch.float32) + bias[tile_c].to(torch.float32)[:, None]
        for tap in hl.static_range(4):
            at = tile_t.index + (tap - 3)
            values = hl.load(x, [tile_b.begin, tile_c, at], extra_mask=(at >= 0)[None, :])
            acc = acc + values.to(torch.float32) * w[tile_c, tap].to(torch.float32)[:, None]
        out[tile_b.begin, tile_c, tile_t] = (acc * torch.sigmoid(acc)).to(x.dtype)
    return out


@helion.kernel()
def wave_step(now: torch.Tensor, before: torch.Tensor, speed: torch.Tensor) -> torch.Tensor:
    """`2 now - before + speed * laplacian(now)` by five points, `[H, W]`, zeros around."""
    h, w = now.size()
    out = torch.empty_like(now)
    for tile_h, tile_w in hl.tile([h, w]):
        y, x = tile_h.index, tile_w.index
        here = now[tile_h, tile_w]
        up = hl.load(now, [y - 1, x], extra_mask=(y > 0)[:, None])
        down = hl.load(now, [y + 1, x], extra_mask=(y < h - 1)[:, None])
        left = hl.load(now, [y, x - 1], extra_mask=(x > 0)[None, :])
        right = hl.load(now, [y, x + 1], extra_mask=(x < w - 1)[None, :])
        bend = up + down + left + right - 4.0 * here
        out[tile_h, tile_w] = 2.0 * here - before[tile_h, tile_w] + speed[tile_h, tile_w] * bend
    return out


@helion.kernel()
def max_pool_nhwc(x: torch.Tensor) -> torch.Tensor:
    """The greatest of 3 by 3 pixels at every second one of `x[B, H, W, C]`, nothing around."""
    b, h, w, c = x.size()
    tall, wide = (h - 1) // 2 + 1, (w - 1) // 2 + 1
    out = torch.empty([b, tall, wide, c], dtype=x.dtype, device=x.device)
    for tile_b, tile_y, tile_x, tile_c in hl.tile([b, tall, wide, c], block_size=[1, 1, None, None]):
        top = hl.full([tile_x, tile_c], float("-inf"), dtype=torch.float32)
        for dy in hl.static_range(3):
            for dx in hl.static_range(3):
                row, column = tile_y.begin * 2 + dy - 1, tile_x.index * 2 + dx - 1
                inside = ((row >= 0) & (row < h) & (column >= 0) & (column < w))[:, None]
                values = hl.load(x, [tile_b.begin, row, column, tile_c], extra_mask=inside).to(torch.float32)
                top = torch.maximum(top, torch.where(inside, values, float("-inf")))
        out[tile_b.begin, tile_y.begin, tile_x, tile_c] = top.to(x.dtype)
    return out


@helion.kernel()
def padded_transpose(x: torch.Tensor, length: hl.constexpr) -> torch.Tensor:
    """`x[B, T, C]` as `[B, C, length]` with zeros behind T."""
    b, t, c = x.size()
    out = torch.empty([b, c, length], dtype=x.dtype, device=x.device)
    for tile_b, tile_c, tile_t in hl.tile([b, c, length]):
        inside = (tile_t.index < t)[None, :, None]
        values = hl.load(x, [tile_b, tile_t, tile_c], extra_mask=inside)
        out[tile_b, tile_c, tile_t] = values.transpose(1, 2)
    return out


@helion.kernel()
def patches(x: torch.Tensor, side: hl.constexpr) -> torch.Tensor:
    """Patches of `side` by `side` pixels of `x[B, C, H, W]` as rows: `[B, H / side, W / side, C, side, side]`."""
    b, c, h, w = x.size()
    tall, wide = h // side, w // side
    out = torch.empty([b, tall, wide, c, side, side], dtype=x.dtype, device=x.device)
    images = x.view(b, c, tall, side, wide, side)
    for tile_b, tile_c, tile_y, tile_x in hl.tile([b, c, tall, wide], block_size=[1, 1, 1, None]):
        pixels = images[tile_b.begin, tile_c.begin, tile_y.begin, :, tile_x, :]
        out[tile_b.begin, tile_y.begin, tile_x, tile_c.begin, :, :] = pixels.permute(1, 0, 2)
    return out


@helion.kernel()
def decay_matrices(steps: torch.Tensor) -> torch.Tensor:
    """`exp(sum of steps[j + 1 .. i])` for j up to i, else 0, of each chunk: `[B, L]` to `[B, L, L]`."""
    b, length = steps.size()
    out = torch.empty([b, length, length], dtype=torch.float32, device=steps.device)
    for tile_b in hl.tile(b):
        sums = torch.cumsum(steps[tile_b, :].to(torch.float32), dim=-1)
        at = hl.arange(length)
        apart = sums[:, :, None] - sums[:, None, :]
        below = (at[:, None] >= at[None, :])[None, :, :]
        out[tile_b, :, :] = torch.where(below, torch.exp(apart), 0.0)
    return out


@helion.kernel()
def smoothed_loss_and_gradient(
    logits: torch.Tensor, labels: torch.Tensor, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross entropy of `logits[M, V]` against smoothed labels and its gradient, in two passes over the vocabulary."""
    m, v = logits.size()
    losses = torch.empty([m], dtype=torch.float32, device=logits.device)
    gradient = torch.empty_like(logits)
    for tile_m in hl.tile(m):
        label = labels[tile_m]
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        den = hl.zeros([tile_m], dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        own = hl.zeros([tile_m], dtype=torch.float32)
        for tile_v in hl.tile(v):
            x = logits[tile_m, tile_v].to(torch.float32)
            new = torch.maximum(top, x.amax(-1))
            den = den * torch.exp(top - new) + torch.exp(x - new[:, None]).sum(-1)
            total = total + x.sum(-1)
            own = own + torch.where(tile_v.index[None, :] == label[:, None], x, 0.0).sum(-1)
            top = new
        log_sum = top + torch.log(den)
        losses[tile_m] = log_sum - (1.0 - smoothing) * own - smoothing / v * total
        for tile_v in hl.tile(v):
            p = torch.exp(logits[tile_m, tile_v].to(torch.float32) - log_sum[:, None])
            hit = torch.where(tile_v.index[None, :] == label[:, None], 1.0 - smoothing, 0.0)
            gradient[tile_m, tile_v] = (p - hit - smoothing / v).to(logits.dtype)
    return losses, gradient


@helion.kernel()
def state_step(
    state: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token through a state space: `state[B, H, P, N]`, `x[B, H, P]`, `dt[B, H]`, `a[H]`, `b`, `c` `[B, N]`."""
    batch, heads, p, _ = state.size()
    new = torch.empty_like(state)
    out = torch.empty_like(x)
    for tile_b, tile_h, tile_p in hl.tile([batch, heads, p], block_size=[1, 1, None]):
        width = dt[tile_b.begin, tile_h.begin].to(torch.float32)
        decay = torch.exp(width * a[tile_h.begin].to(torch.float32))
        entered = x[tile_b.begin, tile_h.begin, tile_p].to(torch.float32) * width
        before = state[tile_b.begin, tile_h.begin, tile_p, :].to(torch.float32)
        after = before * decay + entered[:, None] * b[tile_b.begin, :].to(torch.float32)[None, :]
        new[tile_b.begin, tile_h.begin, tile_p, :] = after.to(state.dtype)
        y = (after * c[tile_b.begin, :].to(torch.float32)[None, :]).sum(-1)
        out[tile_b.begin, tile_h.begin, tile_p] = y.to(x.dtype)
    return new, out
