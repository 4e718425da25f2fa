"""Layers around a product: recurrent cells, folded norms, classifiers, adapters, and products of uncommon shapes."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def heads_of_197_tokens(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, heads: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Project `x[B, T, K]` by `w[3 H D, K]` to scaled queries, keys and values `[B, H, T, D]`."""
    b, t, k = x.size()
    h = hl.specialize(heads)
    d = hl.specialize(w.size(0)) // (3 * h)
    out = torch.empty([3, b, h, t, d], dtype=x.dtype, device=x.device)
    weights, biases = w.view(3 * h, d, k), bias.view(3 * h, d)
    for tile_b, part, rows in hl.tile([b, 3 * h, t], block_size=[1, 1, None]):
        bi, pi = tile_b.begin, part.begin
        acc = hl.zeros([rows, d], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = hl.dot(x[bi, rows, inner], weights[pi, :, inner].T, acc=acc)
        acc = acc + biases[pi, :].to(torch.float32)[None, :]
        factor = torch.where(pi < h, d**-0.5, 1.0)
        out[pi // h, bi, pi % h, rows, :] = (acc * factor).to(x.dtype)
    return out[0], out[1], out[2]


def heads_of_197_tokens_torch(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, heads: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    b, t, _ = x.size()
    q, k, v = F.linear(x, w, bias).view(b, t, 3, heads, -1).permute(2, 0, 3, 1, 4).contiguous().unbind(0)
    return q * q.size(-1) ** -0.5, k, v


def make_heads_of_197_tokens(device: str, small: bool) -> Arguments:
    b, t, k, h, d = (2, 13, 40, 2, 16) if small else (128, 197, 768, 12, 64)
    w = normal(device, 3 * h * d, k, dtype=BF16, scale=k**-0.5)
    return normal(device, b, t, k, dtype=BF16), w, normal(device, 3 * h * d, dtype=BF16), h


CELLS.add(heads_of_197_tokens, make_heads_of_197_tokens, heads_of_197_tokens_torch)


@helion.kernel
def five_tokens_gate_up(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Compute `silu(x gate.T) * (x up.T)` of a few rows `x[M, K]`, both weights `[N, K]`."""
    m, k = x.size()
    n = gate.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, cols in hl.tile([m, n]):
        a = hl.zeros([rows, cols], dtype=torch.float32)
        b = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            own = x[rows, inner]
            a = torch.addmm(a, own, gate[cols, inner].T)
            b = torch.addmm(b, own, up[cols, inner].T)
        out[rows, cols] = (a * torch.sigmoid(a) * b).to(x.dtype)
    return out


def five_tokens_gate_up_torch(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return (F.silu(high(F.linear(x, gate))) * high(F.linear(x, up))).to(x.dtype)


def make_five_tokens_gate_up(device: str, small: bool) -> Arguments:
    m, k, n = (5, 40, 24) if small else (5, 5120, 13824)
    gate, up = (normal(device, n, k, dtype=BF16, scale=k**-0.5) for _ in range(2))
    return normal(device, m, k, dtype=BF16), gate, up


CELLS.add(five_tokens_gate_up, make_five_tokens_gate_up, five_tokens_gate_up_torch)


@helion.kernel
def points_to_24(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Compute `leaky_relu(x w.T + bias)` of many rows of 96 features, with 24 results each."""
    m, k = x.size()
    n = w.size(0)
    k, n = hl.specialize(k), hl.specialize(n)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows in hl.tile(m):
        y = hl.dot(x[rows, :], w[:, :].T) + bias[:].to(torch.float32)[None, :]
        out[rows, :] = F.leaky_relu(y, 0.1).to(x.dtype)
    return out


def make_points_to_24(device: str, small: bool) -> Arguments:
    m, k, n = (53, 96, 24) if small else (700001, 96, 24)
    w = normal(device, n, k, dtype=FP16, scale=k**-0.5)
    return normal(device, m, k, dtype=FP16), w, normal(device, n, dtype=FP16)


CELLS.add(points_to_24, make_points_to_24, lambda x, w, bias: F.leaky_relu(F.linear(x, w, bias), 0.1))


@helion.kernel
def folded_layer_norm(
    x: torch.Tensor, w: torch.Tensor, sums: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """Layer norm of `x[M, K]` without weights, then `w[N, K]`: the norm follows the product, by sums of rows of w."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, cols in hl.tile([m, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        first = hl.zeros([rows], dtype=torch.float32)
        second = hl.zeros([rows], dtype=torch.float32)
        for inner in hl.tile(k):
            own = x[rows, inner]
            wide = own.to(torch.float32)
            first += wide.sum(-1)
            second += (wide * wide).sum(-1)
            acc = hl.dot(own, w[cols, inner].T, acc=acc)
        mean = first / k
        scale = torch.rsqrt(second / k - mean * mean + eps)
        y = (acc - mean[:, None] * sums[cols][None, :]) * scale[:, None]
        out[rows, cols] = (y + bias[cols][None, :]).to(x.dtype)
    return out


def folded_layer_norm_torch(
    x: torch.Tensor, w: torch.Tensor, sums: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    y = F.layer_norm(high(x), x.shape[1:], eps=eps).to(x.dtype)
    return (high(y @ w.T) + bias).to(x.dtype)


def make_folded_layer_norm(device: str, small: bool) -> Arguments:
    m, k, n = (13, 40, 24) if small else (6304, 1280, 3840)
    w = normal(device, n, k, dtype=BF16, scale=k**-0.5)
    x = normal(device, m, k, dtype=BF16) + 0.5
    return x, w, w.float().sum(1), normal(device, n), 1e-5


CELLS.add(folded_layer_norm, make_folded_layer_norm, folded_layer_norm_torch)


@helion.kernel
def thousand_classes_loss(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, labels: torch.Tensor, smoothing: float
) -> torch.Tensor:
    """Smoothed cross entropy `[M]` of the logits `x[M, K] w[C, K].T + bias`, which are not stored."""
    m, k = x.size()
    c = hl.specialize(w.size(0))
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for rows in hl.tile(m):
        acc = hl.zeros([rows, c], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = hl.dot(x[rows, inner], w[:, inner].T, acc=acc)
        logits = acc + bias[:].to(torch.float32)[None, :]
        known = torch.log_softmax(logits, dim=-1)
        own = torch.where(hl.arange(c)[None, :] == labels[rows][:, None], known, 0.0).sum(-1)
        out[rows] = -(1.0 - smoothing) * own - smoothing * known.mean(-1)
    return out


def thousand_classes_loss_torch(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, labels: torch.Tensor, smoothing: float
) -> torch.Tensor:
    return F.cross_entropy(high(F.linear(x, w, bias)), labels, reduction="none", label_smoothing=smoothing)


def make_thousand_classes_loss(device: str, small: bool) -> Arguments:
    m, k, c = (13, 40, 50) if small else (8192, 2048, 1000)
    w, bias = normal(device, c, k, dtype=BF16, scale=k**-0.5), normal(device, c, dtype=BF16)
    return normal(device, m, k, dtype=BF16), w, bias, torch.randint(0, c, [m], device=device), 0.1


CELLS.add(thousand_classes_loss, make_thousand_classes_loss, thousand_classes_loss_torch)


@helion.kernel
def vocabulary_in_one_pass(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy `[T]` of `x[T, K] w[V, K].T`, with a running maximum over tiles of the vocabulary."""
    t, k = x.size()
    v = w.size(0)
    out = torch.empty([t], dtype=torch.float32, device=x.device)
    for rows in hl.tile(t):
        label = labels[rows]
        m = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        own = hl.zeros([rows], dtype=torch.float32)
        for cols in hl.tile(v):
            acc = hl.zeros([rows, cols], dtype=torch.float32)
            for inner in hl.tile(k):
                acc = hl.dot(x[rows, inner], w[cols, inner].T, acc=acc)
            own += torch.where(cols.index[None, :] == label[:, None], acc, 0.0).sum(-1)
            new = torch.maximum(m, acc.amax(-1))
            total = total * torch.exp(m - new) + torch.exp(acc - new[:, None]).sum(-1)
            m = new
        out[rows] = m + torch.log(total) - own
    return out


def vocabulary_in_one_pass_torch(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(high(x @ w.T), labels, reduction="none")


def make_vocabulary_in_one_pass(device: str, small: bool) -> Arguments:
    t, k, v = (13, 40, 157) if small else (4096, 768, 50257)
    w = normal(device, v, k, dtype=BF16, scale=k**-0.5)
    return normal(device, t, k, dtype=BF16), w, torch.randint(0, v, [t], device=device)


CELLS.add(vocabulary_in_one_pass, make_vocabulary_in_one_pass, vocabulary_in_one_pass_torch)


@helion.kernel
def vocabulary_in_parts(x: torch.Tensor, w: torch.Tensor, parts: int) -> torch.Tensor:
    """Log-sum-exp `[T]` of `x[T, K] w[V, K].T`: maxima and sums of parts of the vocabulary, joined by a second loop."""
    t, k = x.size()
    v = w.size(0)
    parts = hl.specialize(parts)
    length = (v + parts - 1) // parts
    maxima = torch.empty([parts, t], dtype=torch.float32, device=x.device)
    sums = torch.empty([parts, t], dtype=torch.float32, device=x.device)
    out = torch.empty([t], dtype=torch.float32, device=x.device)
    for rows, part in hl.tile([t, parts], block_size=[None, 1]):
        pi = part.begin
        m = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        for cols in hl.tile(pi * length, min(pi * length + length, v)):
            acc = hl.zeros([rows, cols], dtype=torch.float32)
            for inner in hl.tile(k):
                acc = hl.dot(x[rows, inner], w[cols, inner].T, acc=acc)
            new = torch.maximum(m, acc.amax(-1))
            total = total * torch.exp(m - new) + torch.exp(acc - new[:, None]).sum(-1)
            m = new
        maxima[pi, rows] = m
        sums[pi, rows] = total
    hl.barrier()
    for rows in hl.tile(t):
        m = maxima[:, rows]
        top = m.amax(0)
        out[rows] = top + torch.log((sums[:, rows] * torch.exp(m - top[None, :])).sum(0))
    return out


def vocabulary_in_parts_torch(x: torch.Tensor, w: torch.Tensor, parts: int) -> torch.Tensor:
    return torch.logsumexp(high(x @ w.T), -1)


def make_vocabulary_in_parts(device: str, small: bool) -> Arguments:
    t, k, v, parts = (13, 40, 157, 4) if small else (600, 2048, 32003, 16)
    return normal(device, t, k, dtype=FP16), normal(device, v, k, dtype=FP16, scale=k**-0.5), parts


CELLS.add(vocabulary_in_parts, make_vocabulary_in_parts, vocabulary_in_parts_torch)


@helion.kernel
def expand_hardswish(x: torch.Tensor, w: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Expand 80 channels of pixels `x[B, H, W, C]` by `w[C, N]`, with a folded batch norm and a hardswish."""
    b, height, width, c = x.size()
    n = w.size(1)
    c = hl.specialize(c)
    out = torch.empty([b, height, width, n], dtype=x.dtype, device=x.device)
    pixels, results = x.view(-1, c), out.view(-1, n)
    for rows, cols in hl.tile([pixels.size(0), n]):
        y = hl.dot(pixels[rows, :], w[:, cols]) * gain[cols][None, :] + bias[cols][None, :]
        results[rows, cols] = F.hardswish(y).to(x.dtype)
    return out


def expand_hardswish_torch(x: torch.Tensor, w: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.hardswish(high(x @ w) * gain + bias).to(x.dtype)


def make_expand_hardswish(device: str, small: bool) -> Arguments:
    b, height, c, n = (2, 5, 20, 24) if small else (128, 28, 80, 480)
    x, w = normal(device, b, height, height, c, dtype=FP16), normal(device, c, n, dtype=FP16, scale=c**-0.5)
    return x, w, torch.rand([n], device=device) + 0.5, normal(device, n)


CELLS.add(expand_hardswish, make_expand_hardswish, expand_hardswish_torch)


@helion.kernel
def maxout_of_four(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return the largest of four linear layers: `x[M, K]`, `w[4, N, K]`, `bias[4, N]`."""
    m, k = x.size()
    n = w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, cols in hl.tile([m, n]):
        best = hl.full([rows, cols], float("-inf"), dtype=torch.float32)
        for piece in hl.static_range(4):
            acc = hl.zeros([rows, cols], dtype=torch.float32)
            for inner in hl.tile(k):
                acc = hl.dot(x[rows, inner], w[piece, cols, inner].T, acc=acc)
            best = torch.maximum(best, acc + bias[piece, cols].to(torch.float32)[None, :])
        out[rows, cols] = best.to(x.dtype)
    return out


def maxout_of_four_torch(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (F.linear(x, w.flatten(0, 1)) + bias.flatten()).unflatten(1, [4, -1]).amax(1)


def make_maxout_of_four(device: str, small: bool) -> Arguments:
    m, k, n = (13, 40, 24) if small else (3000, 1024, 1536)
    w = normal(device, 4, n, k, dtype=BF16, scale=k**-0.5)
    return normal(device, m, k, dtype=BF16), w, normal(device, 4, n, dtype=BF16)


CELLS.add(maxout_of_four, make_maxout_of_four, maxout_of_four_torch)


@helion.kernel
def gru_step(
    x: torch.Tensor, h: torch.Tensor, w_x: torch.Tensor, w_h: torch.Tensor, b_x: torch.Tensor, b_h: torch.Tensor
) -> torch.Tensor:
    """A step of a GRU: inputs `x[M, K]`, states `h[M, N]`, weights `[3, N, K]` and `[3, N, N]`: reset, update, new."""
    m, k = x.size()
    n = h.size(1)
    out = torch.empty_like(h)
    for rows, cols in hl.tile([m, n]):
        reset = hl.zeros([rows, cols], dtype=torch.float32)
        update = hl.zeros([rows, cols], dtype=torch.float32)
        from_x = hl.zeros([rows, cols], dtype=torch.float32)
        from_h = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            own = x[rows, inner]
            reset = hl.dot(own, w_x[0, cols, inner].T, acc=reset)
            update = hl.dot(own, w_x[1, cols, inner].T, acc=update)
            from_x = hl.dot(own, w_x[2, cols, inner].T, acc=from_x)
        for inner in hl.tile(n):
            state = h[rows, inner]
            reset = hl.dot(state, w_h[0, cols, inner].T, acc=reset)
            update = hl.dot(state, w_h[1, cols, inner].T, acc=update)
            from_h = hl.dot(state, w_h[2, cols, inner].T, acc=from_h)
        r = torch.sigmoid(reset + (b_x[0, cols] + b_h[0, cols])[None, :])
        z = torch.sigmoid(update + (b_x[1, cols] + b_h[1, cols])[None, :])
        c = torch.tanh(from_x + b_x[2, cols][None, :] + r * (from_h + b_h[2, cols][None, :]))
        out[rows, cols] = ((1.0 - z) * c + z * h[rows, cols].to(torch.float32)).to(h.dtype)
    return out


def gru_step_torch(
    x: torch.Tensor, h: torch.Tensor, w_x: torch.Tensor, w_h: torch.Tensor, b_x: torch.Tensor, b_h: torch.Tensor
) -> torch.Tensor:
    i_r, i_z, i_n = (high(F.linear(x, w_x.flatten(0, 1))) + b_x.flatten()).chunk(3, 1)
    h_r, h_z, h_n = (high(F.linear(h, w_h.flatten(0, 1))) + b_h.flatten()).chunk(3, 1)
    z = torch.sigmoid(i_z + h_z)
    return ((1.0 - z) * torch.tanh(i_n + torch.sigmoid(i_r + h_r) * h_n) + z * h).to(h.dtype)


def make_gru_step(device: str, small: bool) -> Arguments:
    m, k, n = (13, 40, 24) if small else (4000, 512, 1024)
    w_x = normal(device, 3, n, k, dtype=BF16, scale=k**-0.5)
    w_h = normal(device, 3, n, n, dtype=BF16, scale=n**-0.5)
    x, h = normal(device, m, k, dtype=BF16), normal(device, m, n, dtype=BF16)
    return x, h, w_x, w_h, normal(device, 3, n), normal(device, 3, n)


CELLS.add(gru_step, make_gru_step, gru_step_torch)


@helion.kernel
def lstm_step(
    x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, w_x: torch.Tensor, w_h: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A step of an LSTM of 650 units: `x[M, K]`, `h` and `c[M, N]`, weights `[4 N, K]` and `[4 N, N]` of i, f, g, o."""
    m, k = x.size()
    n = h.size(1)
    new_h, new_c = torch.empty_like(h), torch.empty_like(c)
    for rows, cols in hl.tile([m, n]):
        i = hl.zeros([rows, cols], dtype=torch.float32) + bias[cols][None, :]
        f = hl.zeros([rows, cols], dtype=torch.float32) + bias[cols.index + n][None, :]
        g = hl.zeros([rows, cols], dtype=torch.float32) + bias[cols.index + 2 * n][None, :]
        o = hl.zeros([rows, cols], dtype=torch.float32) + bias[cols.index + 3 * n][None, :]
        for inner in hl.tile(k):
            own = x[rows, inner]
            i = torch.addmm(i, own, w_x[cols, inner].T)
            f = torch.addmm(f, own, w_x[cols.index + n, inner].T)
            g = torch.addmm(g, own, w_x[cols.index + 2 * n, inner].T)
            o = torch.addmm(o, own, w_x[cols.index + 3 * n, inner].T)
        for inner in hl.tile(n):
            own = h[rows, inner]
            i = torch.addmm(i, own, w_h[cols, inner].T)
            f = torch.addmm(f, own, w_h[cols.index + n, inner].T)
            g = torch.addmm(g, own, w_h[cols.index + 2 * n, inner].T)
            o = torch.addmm(o, own, w_h[cols.index + 3 * n, inner].T)
        cell = torch.sigmoid(f) * c[rows, cols] + torch.sigmoid(i) * torch.tanh(g)
        new_c[rows, cols] = cell
        new_h[rows, cols] = (torch.sigmoid(o) * torch.tanh(cell)).to(h.dtype)
    return new_h, new_c


def lstm_step_torch(
    x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, w_x: torch.Tensor, w_h: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    i, f, g, o = (high(F.linear(x, w_x)) + high(F.linear(h, w_h)) + bias).chunk(4, 1)
    cell = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return (torch.sigmoid(o) * torch.tanh(cell)).to(h.dtype), cell


def make_lstm_step(device: str, small: bool) -> Arguments:
    m, k, n = (13, 40, 24) if small else (2048, 650, 650)
    w_x, w_h = (normal(device, 4 * n, size, dtype=FP16, scale=size**-0.5) for size in (k, n))
    x, h = normal(device, m, k, dtype=FP16), normal(device, m, n, dtype=FP16)
    return x, h, normal(device, m, n), w_x, w_h, normal(device, 4 * n)


CELLS.add(lstm_step, make_lstm_step, lstm_step_torch)


@helion.kernel
def tanh_gated_residual(
    stream: torch.Tensor, x: torch.Tensor, w: torch.Tensor, alpha: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`stream[M, N] + tanh(alpha[0]) * (x[M, K] w[N, K].T)`, and the mean square of each row of it."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty_like(stream)
    squares = torch.zeros([m], dtype=torch.float32, device=x.device)
    for rows, cols in hl.tile([m, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = hl.dot(x[rows, inner], w[cols, inner].T, acc=acc)
        y = stream[rows, cols].to(torch.float32) + torch.tanh(alpha[0]) * acc
        out[rows, cols] = y.to(stream.dtype)
        hl.atomic_add(squares, [rows], (y * y).sum(-1) / n)
    return out, squares


def tanh_gated_residual_torch(
    stream: torch.Tensor, x: torch.Tensor, w: torch.Tensor, alpha: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    y = high(stream) + torch.tanh(alpha) * high(x @ w.T)
    return y.to(stream.dtype), (y * y).mean(-1)


def make_tanh_gated_residual(device: str, small: bool) -> Arguments:
    m, k, n = (13, 40, 24) if small else (5001, 4096, 2304)
    stream, x = normal(device, m, n, dtype=BF16), normal(device, m, k, dtype=BF16)
    return stream, x, normal(device, n, k, dtype=BF16, scale=k**-0.5), normal(device, 1)


CELLS.add(tanh_gated_residual, make_tanh_gated_residual, tanh_gated_residual_torch)
