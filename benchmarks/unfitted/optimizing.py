"""Steps of optimizers, positions, dropout with stored bits, and layouts of weights, feature maps and videos."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, E4M3, FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def adamw_with_master(
    master: torch.Tensor,
    copy: torch.Tensor,
    grad: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    scale: torch.Tensor,
    rate: float,
    decay: float,
    step: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Make a step of AdamW on fp32 parameters, with gradients in bf16 times a loaded factor; write a copy in bf16."""
    for at in hl.tile(master.size(0)):
        g = grad[at].to(torch.float32) * scale[0]
        m = 0.9 * first[at] + 0.1 * g
        v = 0.95 * second[at] + 0.05 * g * g
        unbiased = m / (1.0 - 0.9**step)
        root = torch.sqrt(v / (1.0 - 0.95**step))
        p = master[at] * (1.0 - rate * decay) - rate * unbiased / (root + 1e-8)
        first[at], second[at], master[at] = m, v, p
        copy[at] = p.to(copy.dtype)
    return master, copy


def adamw_with_master_torch(
    master: torch.Tensor,
    copy: torch.Tensor,
    grad: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    scale: torch.Tensor,
    rate: float,
    decay: float,
    step: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    g = grad.to(master.dtype) * scale
    m = first.copy_(0.9 * first + 0.1 * g)
    v = second.copy_(0.95 * second + 0.05 * g * g)
    update = (m / (1.0 - 0.9**step)) / (torch.sqrt(v / (1.0 - 0.95**step)) + 1e-8)
    master.copy_(master * (1.0 - rate * decay) - rate * update)
    return master, copy.copy_(master)


def make_adamw_with_master(device: str, small: bool) -> Arguments:
    n = 1003 if small else 17_000_003
    master = normal(device, n)
    grad, scale = normal(device, n, dtype=BF16), torch.full([1], 0.3, device=device)
    second = torch.rand([n], device=device)
    return master, master.to(BF16), grad, normal(device, n), second, scale, 1e-3, 0.1, 7


CELLS.add(adamw_with_master, make_adamw_with_master, adamw_with_master_torch)


@helion.kernel
def factored_moments(
    grad: torch.Tensor, row_state: torch.Tensor, column_state: torch.Tensor, beta: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the new means of squares of rows and columns of a gradient `[M, N]`, as Adafactor keeps them."""
    m, n = grad.size()
    rows_new = torch.empty_like(row_state)
    block = hl.register_block_size(m)
    parts = torch.empty([helion.cdiv(m, block), n], dtype=torch.float32, device=grad.device)
    for rows in hl.tile(m, block_size=block):
        total = hl.zeros([rows], dtype=torch.float32)
        for cols in hl.tile(n):
            g = grad[rows, cols].to(torch.float32)
            square = g * g + 1e-30
            total += square.sum(-1)
            parts[rows.id, cols] = square.sum(0)
        rows_new[rows] = beta * row_state[rows] + (1.0 - beta) * total / n
    return rows_new, beta * column_state + (1.0 - beta) * parts.sum(0) / m


def factored_moments_torch(
    grad: torch.Tensor, row_state: torch.Tensor, column_state: torch.Tensor, beta: float
) -> tuple[torch.Tensor, torch.Tensor]:
    square = high(grad).square() + 1e-30
    rows = beta * row_state + (1.0 - beta) * square.mean(1)
    return rows, beta * column_state + (1.0 - beta) * square.mean(0)


def make_factored_moments(device: str, small: bool) -> Arguments:
    m, n = (37, 101) if small else (8192, 11008)
    return normal(device, m, n, dtype=BF16), torch.rand([m], device=device), torch.rand([n], device=device), 0.99


CELLS.add(factored_moments, make_factored_moments, factored_moments_torch)


@helion.kernel
def momentum_and_norm(grad: torch.Tensor, momentum: torch.Tensor, mu: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Update a momentum in place; return Nesterov's direction in bf16 and its norm for each matrix of `[L, M, N]`."""
    layers, m, n = grad.size()
    size = m * n
    g_flat, m_flat = grad.view(layers, size), momentum.view(layers, size)
    out = torch.empty([layers, size], dtype=torch.bfloat16, device=grad.device)
    squares = torch.zeros([layers], dtype=torch.float32, device=grad.device)
    for layer, at in hl.tile([layers, size], block_size=[1, None]):
        i = layer.begin
        g = g_flat[i, at].to(torch.float32)
        new = mu * m_flat[i, at] + g
        m_flat[i, at] = new
        direction = g + mu * new
        out[i, at] = direction.to(torch.bfloat16)
        hl.atomic_add(squares, [i], (direction * direction).sum(0))
    return out.view(layers, m, n), torch.sqrt(squares)


def momentum_and_norm_torch(grad: torch.Tensor, momentum: torch.Tensor, mu: float) -> tuple[torch.Tensor, torch.Tensor]:
    g = grad.to(momentum.dtype)
    new = momentum.copy_(mu * momentum + g)
    direction = g + mu * new
    return direction.to(BF16), direction.square().sum([1, 2]).sqrt()


def make_momentum_and_norm(device: str, small: bool) -> Arguments:
    layers, m, n = (3, 21, 35) if small else (12, 1024, 2736)
    return normal(device, layers, m, n, dtype=BF16), normal(device, layers, m, n), 0.95


CELLS.add(momentum_and_norm, make_momentum_and_norm, momentum_and_norm_torch)


@helion.kernel
def rowwise_adagrad(
    table: torch.Tensor, state: torch.Tensor, ids: torch.Tensor, grad: torch.Tensor, rate: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Make a step of Adagrad on distinct rows `ids[R]` of a table `[V, D]`, with one fp32 sum of squares a row."""
    r, _d = grad.size()
    for rows in hl.tile(r):
        g = grad[rows, :]
        row = ids[rows]
        total = state[row] + (g * g).mean(-1)
        hl.store(state, [row], total)
        new = table[row, :].to(torch.float32) - rate * g / (torch.sqrt(total) + 1e-8)[:, None]
        hl.store(table, [row, slice(None)], new.to(table.dtype))
    return table, state


def rowwise_adagrad_torch(
    table: torch.Tensor, state: torch.Tensor, ids: torch.Tensor, grad: torch.Tensor, rate: float
) -> tuple[torch.Tensor, torch.Tensor]:
    total = state[ids] + grad.square().mean(-1)
    new = high(table[ids]) - rate * grad / (total.sqrt() + 1e-8)[:, None]
    return table.index_put_((ids,), new.to(table.dtype)), state.index_put_((ids,), total)


def make_rowwise_adagrad(device: str, small: bool) -> Arguments:
    v, r, d = (101, 33, 20) if small else (600_000, 200_000, 96)
    ids = torch.randperm(v, device=device)[:r]
    return normal(device, v, d, dtype=FP16), torch.rand([v], device=device), ids, normal(device, r, d), 0.05


CELLS.add(rowwise_adagrad, make_rowwise_adagrad, rowwise_adagrad_torch)


@helion.kernel
def resilient_step(
    params: torch.Tensor, grad: torch.Tensor, before: torch.Tensor, sizes: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Make a step of Rprop in place: sizes of steps grow while signs of gradients `[N]` persist, and shrink else."""
    for at in hl.tile(params.size(0)):
        g = grad[at]
        agreement = g * before[at]
        factor = torch.where(agreement > 0, 1.2, torch.where(agreement < 0, 0.5, 1.0))
        size = torch.clamp(sizes[at] * factor, 1e-6, 50.0)
        g = torch.where(agreement < 0, 0.0, g)
        params[at] = params[at] - torch.sign(g) * size
        before[at] = g
        sizes[at] = size
    return params, before, sizes


def resilient_step_torch(
    params: torch.Tensor, grad: torch.Tensor, before: torch.Tensor, sizes: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    agreement = grad * before
    ones = torch.ones_like(grad)
    factor = torch.where(agreement > 0, 1.2 * ones, torch.where(agreement < 0, 0.5 * ones, ones))
    sizes.mul_(factor).clamp_(1e-6, 50.0)
    before.copy_(grad.masked_fill(agreement < 0, 0.0))
    return params.sub_(before.sign() * sizes), before, sizes


def make_resilient_step(device: str, small: bool) -> Arguments:
    n = 1003 if small else 12_500_000
    sizes = torch.rand([n], device=device) * 0.01
    return normal(device, n), normal(device, n), normal(device, n), sizes


CELLS.add(resilient_step, make_resilient_step, resilient_step_torch)


@helion.kernel
def rotary_from_positions(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, frequencies: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate halves of queries `[T, H, D]` and keys `[T, G, D]` in place by angles of positions and `[D / 2]`."""
    t, h, d = q.size()
    g = k.size(1)
    d, half = hl.specialize((d, frequencies.size(0)))
    assert d == 2 * half
    for rows in hl.tile(t):
        angle = positions[rows].to(torch.float32)[:, None] * frequencies[:][None, :]
        c, s = torch.cos(angle), torch.sin(angle)
        for head in hl.grid(h):
            a = q[rows, head, :half].to(torch.float32)
            b = q[rows, head, half:].to(torch.float32)
            q[rows, head, :half] = (a * c - b * s).to(q.dtype)
            q[rows, head, half:] = (b * c + a * s).to(q.dtype)
        for head in hl.grid(g):
            a = k[rows, head, :half].to(torch.float32)
            b = k[rows, head, half:].to(torch.float32)
            k[rows, head, :half] = (a * c - b * s).to(k.dtype)
            k[rows, head, half:] = (b * c + a * s).to(k.dtype)
    return q, k


def rotary_from_positions_torch(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, frequencies: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    angle = (positions.to(frequencies.dtype)[:, None] * frequencies)[:, None, :]
    c, s = torch.cos(angle), torch.sin(angle)

    def rotated(x: torch.Tensor) -> torch.Tensor:
        a, b = high(x).chunk(2, -1)
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    return q.copy_(rotated(q)), k.copy_(rotated(k))


def make_rotary_from_positions(device: str, small: bool) -> Arguments:
    t, h, g, d = (19, 4, 2, 16) if small else (16384, 24, 8, 128)
    positions = torch.randint(0, 100 if small else 8192, [t], device=device)
    frequencies = 10000.0 ** -(torch.arange(d // 2, device=device) / (d // 2))
    return normal(device, t, h, d, dtype=BF16), normal(device, t, g, d, dtype=BF16), positions, frequencies


CELLS.add(rotary_from_positions, make_rotary_from_positions, rotary_from_positions_torch)


@helion.kernel
def add_sinusoids(x: torch.Tensor, rate: float) -> torch.Tensor:
    """Add sines and cosines of positions to `x[B, T, D]`, sines in the first half of D, without a table."""
    b, t, d = x.size()
    half = d // 2
    out = torch.empty_like(x)
    for tb, tt, td in hl.tile([b, t, d]):
        at = td.index
        number = torch.where(at < half, at, at - half).to(torch.float32)
        angle = tt.index.to(torch.float32)[:, None] * torch.exp(-rate * number)[None, :]
        wave = torch.where((at < half)[None, :], torch.sin(angle), torch.cos(angle))
        out[tb, tt, td] = (x[tb, tt, td].to(torch.float32) + wave[None, :, :]).to(x.dtype)
    return out


def add_sinusoids_torch(x: torch.Tensor, rate: float) -> torch.Tensor:
    _b, t, d = x.size()
    number = torch.arange(d // 2, device=x.device, dtype=high(x).dtype)
    angle = torch.arange(t, device=x.device, dtype=high(x).dtype)[:, None] * torch.exp(-rate * number)
    return (high(x) + torch.cat([torch.sin(angle), torch.cos(angle)], -1)).to(x.dtype)


def make_add_sinusoids(device: str, small: bool) -> Arguments:
    shape = (2, 15, 20) if small else (24, 1500, 1280)
    return normal(device, *shape, dtype=FP16), 0.0144


CELLS.add(add_sinusoids, make_add_sinusoids, add_sinusoids_torch)


@helion.kernel
def channels_last_fp8(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Copy `x[B, C, P]` in fp16 to `[B, P, C]` in e4m3, with a scale for each channel."""
    b, c, p = x.size()
    out = torch.empty([b, p, c], dtype=torch.float8_e4m3fn, device=x.device)
    for tb, tp, tc in hl.tile([b, p, c]):
        v = x[tb, tc, tp].to(torch.float32) * scales[tc][None, :, None]
        out[tb, tp, tc] = torch.clamp(v, -448.0, 448.0).transpose(1, 2).to(torch.float8_e4m3fn)
    return out


def channels_last_fp8_torch(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    v = (high(x) * scales[:, None]).clamp(-448.0, 448.0)
    return v.transpose(1, 2).contiguous().to(E4M3)


def make_channels_last_fp8(device: str, small: bool) -> Arguments:
    b, c, p = (2, 20, 35) if small else (32, 320, 64 * 96)
    return normal(device, b, c, p, dtype=FP16), torch.rand([c], device=device) * 4.0


CELLS.add(channels_last_fp8, make_channels_last_fp8, channels_last_fp8_torch)


@helion.kernel
def video_tubelets(video: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, size: hl.constexpr) -> torch.Tensor:
    """Cut uint8 videos `[B, T, H, W, 3]` into normalized tokens `[B, T/2, H/P, W/P, 2, P, P, 3]` in bf16."""
    b, t, height, width, c = video.size()
    c = hl.specialize(c)
    rows, cols = height // size, width // size
    parts = video.view(b, t // 2, 2, rows, size, cols, size * c)
    out = torch.empty([b, t // 2, rows, cols, 2, size, size * c], dtype=torch.bfloat16, device=video.device)
    for tb, tt, tr, tc in hl.tile([b, t // 2, rows, cols], block_size=[1, 1, 1, None]):
        for frame in hl.static_range(2):
            for line in hl.grid(size):
                v = parts[tb.begin, tt.begin, frame, tr.begin, line, tc, :].to(torch.float32)
                channel = hl.arange(size * c) % c
                y = (v / 255.0 - mean[channel][None, :]) / std[channel][None, :]
                out[tb.begin, tt.begin, tr.begin, tc, frame, line, :] = y.to(torch.bfloat16)
    return out.view(b, t // 2, rows, cols, 2 * size * size * c)


def video_tubelets_torch(video: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, size: int) -> torch.Tensor:
    b, t, height, width, c = video.size()
    y = (video.to(mean.dtype) / 255.0 - mean) / std
    y = y.view(b, t // 2, 2, height // size, size, width // size, size, c)
    return y.permute(0, 1, 3, 5, 2, 4, 6, 7).flatten(4).to(BF16)


def make_video_tubelets(device: str, small: bool) -> Arguments:
    b, t, height, width, size = (2, 4, 8, 12, 4) if small else (16, 16, 224, 224, 16)
    video = torch.randint(0, 256, [b, t, height, width, 3], device=device, dtype=torch.uint8)
    mean, std = torch.rand([3], device=device), torch.rand([3], device=device) + 0.2
    return video, mean, std, size


CELLS.add(video_tubelets, make_video_tubelets, video_tubelets_torch)


@helion.kernel
def unpack_nf4(packed: torch.Tensor, book: torch.Tensor, scales: torch.Tensor, outer: torch.Tensor) -> torch.Tensor:
    """Decode two 4-bit codes a byte `[N, K / 2]` by a book of 16, with int8 scales of 64 and fp32 scales of rows."""
    n, bytes_of_row = packed.size()
    out = torch.empty([n, bytes_of_row, 2], dtype=torch.bfloat16, device=packed.device)
    for rows, cols in hl.tile([n, bytes_of_row]):
        byte = packed[rows, cols].to(torch.int32)
        scale = scales[rows, cols.index // 32].to(torch.float32) * outer[rows][:, None]
        high_code, low_code = book[byte >> 4] * scale, book[byte & 15] * scale
        out[rows, cols, :] = hl.join(high_code, low_code).to(torch.bfloat16)
    return out.view(n, bytes_of_row * 2)


def unpack_nf4_torch(
    packed: torch.Tensor, book: torch.Tensor, scales: torch.Tensor, outer: torch.Tensor
) -> torch.Tensor:
    n = packed.size(0)
    codes = torch.stack([packed >> 4, packed & 15], -1).view(n, -1, 64).long()
    scale = scales.to(outer.dtype) * outer[:, None]
    return (book[codes] * scale[:, :, None]).view(n, -1).to(BF16)


def make_unpack_nf4(device: str, small: bool) -> Arguments:
    n, k = (13, 192) if small else (8192, 13824)
    packed = torch.randint(0, 256, [n, k // 2], device=device, dtype=torch.uint8)
    scales = torch.randint(1, 128, [n, k // 64], device=device).to(torch.int8)
    book = torch.sort(torch.rand([16], device=device) * 2.0 - 1.0).values
    return packed, book, scales, torch.rand([n], device=device) * 1e-3


CELLS.add(unpack_nf4, make_unpack_nf4, unpack_nf4_torch)


def drawn(seed: int, size: int, device: torch.device) -> torch.Tensor:
    """Return the numbers of `hl.rand`."""
    from helion._support.philox import philox, uniform

    return uniform(philox(torch.tensor(seed, device=device), torch.arange(size, device=device))[0])


@helion.kernel
def dropout_with_bits(x: torch.Tensor, p: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Drop elements of `x[R, C]`, and keep which ones remain as bits of int32, 32 columns each."""
    r, c = x.size()
    words = c // 32
    x32 = x.view(r, words, 32)
    out = torch.empty_like(x32)
    bits = torch.empty([r, words], dtype=torch.int32, device=x.device)
    for rows, cols in hl.tile([r, words]):
        kept = hl.rand([rows, cols, 32], seed) >= p
        out[rows, cols, :] = torch.where(kept, x32[rows, cols, :].to(torch.float32) / (1.0 - p), 0.0).to(x.dtype)
        bits[rows, cols] = (kept.to(torch.int32) << hl.arange(32)[None, None, :]).sum(-1)
    return out.view(r, c), bits


def dropout_with_bits_reference(x: torch.Tensor, p: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    kept = (drawn(seed, x.numel(), x.device) >= p).view(x.shape)
    return torch.where(kept, high(x) / (1.0 - p), 0.0).to(x.dtype), bits_of(kept)


def bits_of(kept: torch.Tensor) -> torch.Tensor:
    """Pack booleans `[R, C]` into int32 `[R, C / 32]`."""
    shifts = torch.arange(32, device=kept.device, dtype=torch.int32)
    return (kept.view(kept.size(0), -1, 32).to(torch.int32) << shifts).sum(-1, dtype=torch.int32)


def dropout_with_bits_torch(x: torch.Tensor, p: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    kept = torch.rand(x.shape, device=x.device) >= p
    return torch.where(kept, high(x) / (1.0 - p), 0.0).to(x.dtype), bits_of(kept)


def make_dropout_with_bits(device: str, small: bool) -> Arguments:
    r, c = (13, 96) if small else (12000, 4096)
    return normal(device, r, c, dtype=BF16), 0.1, 11


CELLS.add(dropout_with_bits, make_dropout_with_bits, dropout_with_bits_reference, dropout_with_bits_torch, draws=True)


@helion.kernel
def squared_relu_through_bits(grad: torch.Tensor, x: torch.Tensor, bits: torch.Tensor, p: float) -> torch.Tensor:
    """Return the gradient of a squared relu of `x[R, C]` followed by a dropout whose mask is bits of int32."""
    r, c = x.size()
    out = torch.empty_like(x)
    for rows, cols in hl.tile([r, c]):
        word = bits[rows, cols.index // 32]
        kept = (word >> (cols.index % 32)[None, :]) & 1
        slope = 2.0 * torch.relu(x[rows, cols].to(torch.float32)) / (1.0 - p)
        out[rows, cols] = (grad[rows, cols].to(torch.float32) * slope * kept.to(torch.float32)).to(x.dtype)
    return out


def squared_relu_through_bits_torch(grad: torch.Tensor, x: torch.Tensor, bits: torch.Tensor, p: float) -> torch.Tensor:
    shifts = torch.arange(32, device=x.device, dtype=torch.int32)
    kept = ((bits[:, :, None] >> shifts) & 1).view(x.shape)
    return (high(grad) * 2.0 * F.relu(high(x)) / (1.0 - p) * kept).to(x.dtype)


def make_squared_relu_through_bits(device: str, small: bool) -> Arguments:
    r, c = (13, 96) if small else (9000, 5120)
    bits = torch.randint(-(2**31), 2**31, [r, c // 32], device=device).to(torch.int32)
    return normal(device, r, c, dtype=BF16), normal(device, r, c, dtype=BF16), bits, 0.5


CELLS.add(squared_relu_through_bits, make_squared_relu_through_bits, squared_relu_through_bits_torch)
