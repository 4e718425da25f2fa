"""Kernels of ``benchmarks/cute_parts.py``: parts of matmuls, as users spell them."""

from __future__ import annotations

import torch

import helion.language as hl


def experts(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """``x[rows, K]`` by ``w[G, N, K]``."""
    k, (groups, n, _) = x.size(1), w.size()
    for g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        for tile_m in hl.tile(offsets[g.id], offsets[g.id + 1]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], w[g.id, tile_n, tile_k].T, acc=acc)
            out[tile_m, tile_n] = acc.to(out.dtype)
    return out


def lengths(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """The same, by the number of rows of each group."""
    k, (groups, n, _) = x.size(1), w.size()
    for g in hl.grid(groups):
        start = offsets[g]
        for tile_m, tile_n in hl.tile([offsets[g + 1] - start, n]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[start + tile_m.index, tile_k], w[g, tile_n, tile_k].T, acc=acc)
            out[start + tile_m.index, tile_n] = acc.to(out.dtype)
    return out


def masked(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, out: torch.Tensor, longest: int) -> torch.Tensor:
    """The same in parallel over the first ``longest`` rows of each group, with masks."""
    k, (groups, n, _) = x.size(1), w.size()
    for g, tile_m, tile_n in hl.tile([groups, longest, n], block_size=[1, None, None]):
        row = offsets[g.id] + tile_m.index
        inside = (row < offsets[g.id + 1])[:, None]
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(hl.load(x, [row, tile_k], extra_mask=inside), w[g.id, tile_n, tile_k].T, acc=acc)
        hl.store(out, [row, tile_n], acc.to(out.dtype), extra_mask=inside)
    return out


def weighted(
    x: torch.Tensor,
    w: torch.Tensor,
    offsets: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
) -> torch.Tensor:
    """The same, with a bias of each group, a weight of each row and a residual."""
    k, (groups, n, _) = x.size(1), w.size()
    for g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        for tile_m in hl.tile(offsets[g.id], offsets[g.id + 1]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], w[g.id, tile_n, tile_k].T, acc=acc)
            value = (acc + bias[g.id, tile_n][None, :]) * weight[tile_m][:, None]
            out[tile_m, tile_n] = (value + residual[tile_m, tile_n]).to(out.dtype)
    return out


def heads(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """``x[B, H, T, K]`` by ``w[G, K, N]``, of which several heads share one."""
    b, h, t, k = x.size()
    shared, n = h // w.size(0), w.size(2)
    for i, j in hl.grid([b, h]):
        for tile_t, tile_n in hl.tile([t, n]):
            acc = hl.zeros([tile_t, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[i, j, tile_t, tile_k], w[j // shared, tile_k, tile_n], acc=acc)
            out[i, j, tile_t, tile_n] = acc.to(out.dtype)
    return out


def projected(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """``x[B, T, K]`` by ``w[H, K, D]`` as ``[B, H, T, D]``."""
    (b, t, k), h, d = x.size(), w.size(0), hl.specialize(w.size(2))
    for tile_b, tile_h, tile_t in hl.tile([b, h, t], block_size=[1, 1, None]):
        acc = hl.zeros([tile_t, d], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_b.begin, tile_t, tile_k], w[tile_h.begin, tile_k, :], acc=acc)
        out[tile_b.begin, tile_h.begin, tile_t, :] = acc.to(out.dtype)
    return out


def three(
    x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Products by three matrices ``[N, K]``."""
    (m, depth), n = x.size(), q.size(0)
    first = torch.empty([m, n], dtype=x.dtype, device=x.device)
    second, third = torch.empty_like(first), torch.empty_like(first)
    for tile_m, tile_n in hl.tile([m, n]):
        a = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        b = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        c = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(depth):
            rows = x[tile_m, tile_k]
            a = hl.dot(rows, q[tile_n, tile_k].T, acc=a)
            b = hl.dot(rows, k[tile_n, tile_k].T, acc=b)
            c = hl.dot(rows, v[tile_n, tile_k].T, acc=c)
        first[tile_m, tile_n] = a.to(x.dtype)
        second[tile_m, tile_n] = b.to(x.dtype)
        third[tile_m, tile_n] = c.to(x.dtype)
    return first, second, third


def shifted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y = x[:, 1:], y[1:, 3:]
    (m, k), n = x.size(), y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


def halves(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """SwiGLU with the gate in the first rows of ``w[2 * N, K]``."""
    (m, k), n = x.size(), w.size(0) // 2
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        gate = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        up = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = x[tile_m, tile_k]
            gate = hl.dot(rows, w[tile_n, tile_k].T, acc=gate)
            up = hl.dot(rows, w[tile_n.index + n, tile_k].T, acc=up)
        out[tile_m, tile_n] = (torch.nn.functional.silu(gate) * up).to(x.dtype)
    return out


def rotated(x: torch.Tensor, w: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Heads of ``w[H * 2 * D, K]``, whose halves are rotated by angles of each row."""
    (m, k), half = x.size(), hl.specialize(cos.size(1))
    out = torch.empty([m, w.size(0)], dtype=x.dtype, device=x.device)
    for tile_m, head in hl.tile([m, w.size(0) // (2 * half)], block_size=[None, 1]):
        first = hl.zeros([tile_m, half], dtype=torch.float32)
        second = hl.zeros([tile_m, half], dtype=torch.float32)
        at = head.begin * 2 * half + hl.arange(half)
        for tile_k in hl.tile(k):
            rows = x[tile_m, tile_k]
            first = hl.dot(rows, w[at, tile_k].T, acc=first)
            second = hl.dot(rows, w[at + half, tile_k].T, acc=second)
        c, s = cos[tile_m, :].to(torch.float32), sin[tile_m, :].to(torch.float32)
        out[tile_m, at] = (first * c - second * s).to(x.dtype)
        out[tile_m, at + half] = (first * s + second * c).to(x.dtype)
    return out


def into_zeros(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``x[M, K]`` by ``y[K, N]``, which programs with 512 of K each add to zeros."""
    m, k = x.size()
    n = y.size(1)
    out = torch.zeros([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n, part in hl.tile([m, n, k], block_size=[None, None, 512]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(part.begin, part.end):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        hl.atomic_add(out, [tile_m, tile_n], acc)
    return out


def integers(x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    """int8 ``x[M, K]`` by ``w[N, K]`` with a scale of each row and each column."""
    (m, k), n = x.size(), w.size(0)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.int32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_n, tile_k].T, acc=acc)
        scaled = acc.to(torch.float32) * x_scale[tile_m][:, None] * w_scale[tile_n][None, :]
        out[tile_m, tile_n] = scaled.to(torch.bfloat16)
    return out


def adapted(x: torch.Tensor, w: torch.Tensor, low: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """``x[M, K]`` by ``w[N, K]`` plus ``low[M, R]`` by ``up[N, R]``."""
    (m, k), n, rank = x.size(), w.size(0), low.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_n, tile_k].T, acc=acc)
        for tile_r in hl.tile(rank):
            acc = hl.dot(low[tile_m, tile_r], up[tile_n, tile_r].T, acc=acc)
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def filtered(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A convolution of ``x[T + 2, K]`` along time by ``w[3, K, N]``."""
    (t, c), n = x.size(), w.size(2)
    out = torch.empty([t - 2, n], dtype=x.dtype, device=x.device)
    for tile_t, tile_n in hl.tile([t - 2, n]):
        acc = hl.zeros([tile_t, tile_n], dtype=torch.float32)
        for tile_c in hl.tile(c):
            for tap in hl.static_range(3):
                acc = hl.dot(x[tile_t.index + tap, tile_c], w[tap, tile_c, tile_n], acc=acc)
        out[tile_t, tile_n] = acc.to(x.dtype)
    return out


def held(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """``x[M, K]`` by ``w[N, K]``, with all of K at once."""
    (m, k), n = x.size(), w.size(0)
    k, out = hl.specialize(k), torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_m, tile_n] = hl.dot(x[tile_m, :], w[tile_n, :].T).to(x.dtype)
    return out


def gated_experts(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """SwiGLU of ``x[rows, K]`` by ``w[G, K, 2 * N]``, with the gate in the first columns."""
    groups, k, n = w.size(0), hl.specialize(w.size(1)), hl.specialize(out.size(1))
    hl.specialize(w.size(2))
    for g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        for tile_m in hl.tile(offsets[g.begin], offsets[g.begin + 1]):
            gate = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            up = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                rows = x[tile_m, tile_k]
                gate = hl.dot(rows, w[g.begin, tile_k, tile_n], acc=gate)
                up = hl.dot(rows, w[g.begin, tile_k, tile_n.index + n], acc=up)
            out[tile_m, tile_n] = (torch.nn.functional.silu(gate) * up).to(out.dtype)
    return out


def turned_experts(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """``x[rows, K]`` by ``w[G, K, N]``."""
    groups, k, n = w.size(0), hl.specialize(w.size(1)), hl.specialize(out.size(1))
    hl.specialize(w.size(2))
    for g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        for tile_m in hl.tile(offsets[g.begin], offsets[g.begin + 1]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], w[g.begin, tile_k, tile_n], acc=acc)
            out[tile_m, tile_n] = acc.to(out.dtype)
    return out


def routed_experts(
    x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, tokens: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """The same of the rows of ``tokens``."""
    groups, k, n = w.size(0), hl.specialize(w.size(1)), hl.specialize(out.size(1))
    for g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        for tile_m in hl.tile(offsets[g.begin], offsets[g.begin + 1]):
            token = tokens[tile_m]
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[token, tile_k], w[g.begin, tile_k, tile_n], acc=acc)
            out[tile_m, tile_n] = acc.to(out.dtype)
    return out


def routed_gated_experts(
    x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, tokens: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """SwiGLU of the rows of ``tokens`` by ``w[G, K, 2 * N]``, with the gate in the first columns."""
    groups, k, n = w.size(0), hl.specialize(w.size(1)), hl.specialize(out.size(1))
    for g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        for tile_m in hl.tile(offsets[g.begin], offsets[g.begin + 1]):
            token = tokens[tile_m]
            gate = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            up = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                rows = x[token, tile_k]
                gate = hl.dot(rows, w[g.begin, tile_k, tile_n], acc=gate)
                up = hl.dot(rows, w[g.begin, tile_k, tile_n.index + n], acc=up)
            out[tile_m, tile_n] = (torch.nn.functional.silu(gate) * up).to(out.dtype)
    return out


def scattered_experts(
    x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, tokens: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """``x[rows, K]`` by ``w[G, K, N]``, stored to the rows ``tokens``."""
    groups, k, n = w.size(0), hl.specialize(w.size(1)), hl.specialize(out.size(1))
    for g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        for tile_m in hl.tile(offsets[g.begin], offsets[g.begin + 1]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], w[g.begin, tile_k, tile_n], acc=acc)
            out[tokens[tile_m], tile_n] = acc.to(out.dtype)
    return out


def added_experts(
    x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, tokens: torch.Tensor, like: torch.Tensor
) -> torch.Tensor:
    """The same, added to zeros."""
    groups, k, n = w.size(0), hl.specialize(w.size(1)), hl.specialize(w.size(2))
    out = torch.zeros_like(like)
    for g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        for tile_m in hl.tile(offsets[g.begin], offsets[g.begin + 1]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], w[g.begin, tile_k, tile_n], acc=acc)
            hl.atomic_add(out, [tokens[tile_m], tile_n], acc.to(out.dtype))
    return out


def cosines(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Cosines of the angles between the rows of ``x[M, K]`` and ``y[N, K]``, whose norms are summed on the way."""
    (m, k), n = x.size(), y.size(0)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        left = hl.zeros([tile_m], dtype=torch.float32)
        right = hl.zeros([tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            a, b = x[tile_m, tile_k], y[tile_n, tile_k]
            acc = hl.dot(a, b.T, acc=acc)
            left += (a.to(torch.float32) * a.to(torch.float32)).sum(-1)
            right += (b.to(torch.float32) * b.to(torch.float32)).sum(-1)
        out[tile_m, tile_n] = acc * torch.rsqrt(left)[:, None] * torch.rsqrt(right)[None, :]
    return out


def weight_gradients(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """``x[K, M].T`` by ``grad[K, N]``, plus the sum of the rows of ``grad``."""
    (k, m), n = x.size(), grad.size(1)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        total = hl.zeros([tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            g = grad[tile_k, tile_n]
            acc = hl.dot(x[tile_k, tile_m].T, g, acc=acc)
            total += g.to(torch.float32).sum(0)
        out[tile_m, tile_n] = acc + total[None, :]
    return out


def four(
    x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Products by four matrices ``[N, K]``."""
    (m, depth), n = x.size(), q.size(0)
    first = torch.empty([m, n], dtype=x.dtype, device=x.device)
    second, third, fourth = torch.empty_like(first), torch.empty_like(first), torch.empty_like(first)
    for tile_m, tile_n in hl.tile([m, n]):
        a = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        b = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        c = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        d = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(depth):
            rows = x[tile_m, tile_k]
            a = hl.dot(rows, q[tile_n, tile_k].T, acc=a)
            b = hl.dot(rows, k[tile_n, tile_k].T, acc=b)
            c = hl.dot(rows, v[tile_n, tile_k].T, acc=c)
            d = hl.dot(rows, w[tile_n, tile_k].T, acc=d)
        first[tile_m, tile_n] = a.to(x.dtype)
        second[tile_m, tile_n] = b.to(x.dtype)
        third[tile_m, tile_n] = c.to(x.dtype)
        fourth[tile_m, tile_n] = d.to(x.dtype)
    return first, second, third, fourth


def gated_sums(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, h: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """SwiGLU of ``x[M, K]`` by ``w[N, K]`` plus ``h[M, R]`` by ``u[N, R]``, times ``x`` by ``v`` plus the same."""
    (m, k), n, rank = x.size(), w.size(0), h.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        gate = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        up = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = x[tile_m, tile_k]
            gate = hl.dot(rows, w[tile_n, tile_k].T, acc=gate)
            up = hl.dot(rows, v[tile_n, tile_k].T, acc=up)
        for tile_r in hl.tile(rank):
            low = h[tile_m, tile_r]
            gate = hl.dot(low, u[tile_n, tile_r].T, acc=gate)
            up = hl.dot(low, u[tile_n, tile_r].T, acc=up)
        out[tile_m, tile_n] = (torch.nn.functional.silu(gate) * up).to(x.dtype)
    return out


def integer_blocks(x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    """int8 ``x[M, K]`` by ``w[N, K]`` with a scale of each block of 128 of K, for each row and each column."""
    (m, k), n = x.size(), w.size(0)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k, block_size=128):
            part = hl.dot(x[tile_m, tile_k], w[tile_n, tile_k].T, out_dtype=torch.int32).to(torch.float32)
            acc += part * x_scale[tile_m, tile_k.id][:, None] * w_scale[tile_n, tile_k.id][None, :]
        out[tile_m, tile_n] = acc.to(torch.bfloat16)
    return out
