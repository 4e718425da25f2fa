"""Matrix products that are not plain: routed, triangular, sparse by blocks, small ones by the thousand, few rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl


@helion.kernel()
def routed_experts(x: torch.Tensor, w: torch.Tensor, tokens: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Rows `x[tokens[i]]` times the matrix of their expert: `x[T, K]`, `w[E, K, N]`; expert e has `starts[e]` and on."""
    (rows,) = tokens.size()
    experts, k, n = w.size()
    out = torch.empty([rows, n], dtype=x.dtype, device=x.device)
    for tile_e, tile_n in hl.tile([experts, n], block_size=[1, None]):
        e = tile_e.begin
        for tile_t in hl.tile(starts[e], starts[e + 1]):
            row = tokens[tile_t]
            acc = hl.zeros([tile_t, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[row, tile_k], w[e, tile_k, tile_n], acc=acc)
            out[tile_t, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel()
def aligned_experts(x: torch.Tensor, w: torch.Tensor, tokens: torch.Tensor, expert_of: torch.Tensor) -> torch.Tensor:
    """The same where every block of 64 rows has one expert, `expert_of[block]`; `w[E, N, K]`."""
    (rows,) = tokens.size()
    _, n, k = w.size()
    out = torch.empty([rows, n], dtype=x.dtype, device=x.device)
    for tile_t, tile_n in hl.tile([rows, n], block_size=[64, None]):
        e = expert_of[tile_t.id]
        row = tokens[tile_t]
        acc = hl.zeros([tile_t, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[row, tile_k], w[e, tile_n, tile_k].T, acc=acc)
        out[tile_t, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel()
def lower_triangle_product(low: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`tril(low[M, M]) @ x[M, N]`, without what is above the diagonal."""
    m, n = x.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(0, tile_m.end):
            below = tile_m.index[:, None] >= tile_k.index[None, :]
            left = torch.where(below, low[tile_m, tile_k], 0.0).to(x.dtype)
            acc = hl.dot(left, x[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel()
def block_sparse_product(
    blocks: torch.Tensor, columns: torch.Tensor, starts: torch.Tensor, x: torch.Tensor
) -> torch.Tensor:
    """A sparse matrix of `blocks[nnz, S, S]`, in rows of blocks by `starts` and `columns`, times `x[K, N]`."""
    _, side, _ = blocks.size()
    side = hl.specialize(side)
    rows, n = starts.size(0) - 1, x.size(1)
    out = torch.empty([rows, side, n], dtype=x.dtype, device=x.device)
    for row, tile_n in hl.tile([rows, n], block_size=[1, None]):
        acc = hl.zeros([side, tile_n], dtype=torch.float32)
        begin, end = starts[row.begin], starts[row.begin + 1]
        for at in hl.grid(begin, end):
            inner = columns[at] * side + hl.arange(side)
            acc = hl.dot(blocks[at, :, :], x[inner, tile_n], acc=acc)
        out[row.begin, :, tile_n] = acc.to(x.dtype)
    return out.view(rows * side, n)


@helion.kernel()
def feature_interactions(x: torch.Tensor) -> torch.Tensor:
    """Products of all pairs of the F vectors of each sample: `x[B, F, D]` to `[B, F, F]`."""
    b, f, _ = x.size()
    out = torch.empty([b, f, f], dtype=x.dtype, device=x.device)
    for tile_b in hl.tile(b):
        values = x[tile_b, :, :]
        out[tile_b, :, :] = torch.bmm(values, values.transpose(1, 2)).to(x.dtype)
    return out


@helion.kernel()
def congruences(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`a @ x @ a.T` of each of many small matrices `[B, n, n]`."""
    b, _, _ = a.size()
    out = torch.empty_like(x)
    for i in hl.grid(b):
        left = a[i, :, :]
        half = hl.dot(left, x[i, :, :])
        out[i, :, :] = hl.dot(half.to(x.dtype), left.T).to(x.dtype)
    return out


@helion.kernel()
def chunk_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    """Gated linear attention within chunks: `q`, `k` `[B, L, D]`, `v[B, L, E]`, log gates `[B, L]`."""
    b, length, e = v.size()
    out = torch.empty_like(v)
    for tile_b, tile_e in hl.tile([b, e], block_size=[1, None]):
        i = tile_b.begin
        sums = torch.cumsum(gates[i, :].to(torch.float32), dim=0)
        at = hl.arange(length)
        faded = torch.exp(torch.clamp(sums[:, None] - sums[None, :], max=0.0))
        weights = torch.where(at[:, None] >= at[None, :], faded, 0.0)
        scores = hl.dot(q[i, :, :], k[i, :, :].T) * weights
        out[i, :, tile_e] = hl.dot(scores.to(v.dtype), v[i, :, tile_e]).to(v.dtype)
    return out


@helion.kernel()
def gated_vector(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """`silu(gate @ x) * (up @ x)` of one token `x[K]` and two weights `[N, K]`."""
    n, k = gate.size()
    out = torch.empty([n], dtype=x.dtype, device=x.device)
    for tile_n in hl.tile(n):
        first = hl.zeros([tile_n], dtype=torch.float32)
        second = hl.zeros([tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            values = x[tile_k].to(torch.float32)[None, :]
            first = first + (gate[tile_n, tile_k].to(torch.float32) * values).sum(-1)
            second = second + (up[tile_n, tile_k].to(torch.float32) * values).sum(-1)
        out[tile_n] = (first * torch.sigmoid(first) * second).to(x.dtype)
    return out


@helion.kernel()
def few_tokens(x: torch.Tensor, w: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """`residual[M, N] + x[M, K] @ w[N, K].T` for so few rows that one tile holds them."""
    m, k = x.size()
    m = hl.specialize(m)
    n = w.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_n in hl.tile(n):
        acc = hl.zeros([m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[:, tile_k], w[tile_n, tile_k].T, acc=acc)
        out[:, tile_n] = (acc + residual[:, tile_n].to(torch.float32)).to(x.dtype)
    return out


@helion.kernel()
def int8_vector(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """`(w[N, K] @ x[K]) * scale[N]` with weights of int8."""
    n, k = w.size()
    out = torch.empty([n], dtype=x.dtype, device=x.device)
    for tile_n in hl.tile(n):
        acc = hl.zeros([tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = acc + (w[tile_n, tile_k].to(torch.float32) * x[tile_k].to(torch.float32)[None, :]).sum(-1)
        out[tile_n] = (acc * scale[tile_n]).to(x.dtype)
    return out


@helion.kernel()
def packed_geglu(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`gelu(a) * b` of the two halves of `x[M, K] @ w[K, 2 N] + bias[2 N]`."""
    m, k = x.size()
    n = w.size(1) // 2
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    gate, up = w[:, :n], w[:, n:]
    gate_bias, up_bias = bias[:n], bias[n:]
    for tile_m, tile_n in hl.tile([m, n]):
        first = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        second = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = x[tile_m, tile_k]
            first = torch.addmm(first, rows, gate[tile_k, tile_n])
            second = torch.addmm(second, rows, up[tile_k, tile_n])
        first = first + gate_bias[tile_n].to(torch.float32)
        second = second + up_bias[tile_n].to(torch.float32)
        out[tile_m, tile_n] = (F.gelu(first) * second).to(x.dtype)
    return out


@helion.kernel()
def projected_heads(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """`x[B, T, K] @ w[H, K, D]` as `[B, H, T, D]`: queries, heads first."""
    b, t, k = x.size()
    h, _, d = w.size()
    d = hl.specialize(d)
    out = torch.empty([b, h, t, d], dtype=x.dtype, device=x.device)
    for tile_b, tile_h, tile_t in hl.tile([b, h, t], block_size=[1, 1, None]):
        acc = hl.zeros([tile_t, d], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_b.begin, tile_t, tile_k], w[tile_h.begin, tile_k, :], acc=acc)
        out[tile_b.begin, tile_h.begin, tile_t, :] = acc.to(x.dtype)
    return out


@helion.kernel()
def gaussian_affinity(x: torch.Tensor, y: torch.Tensor, gamma: float) -> torch.Tensor:
    """`exp(-gamma * |x[i] - y[j]|**2)` of all pairs of rows of `x[M, K]`, `y[N, K]`; norms are summed on the way."""
    m, k = x.size()
    n = y.size(0)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        left = hl.zeros([tile_m], dtype=torch.float32)
        right = hl.zeros([tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            a, b = x[tile_m, tile_k], y[tile_n, tile_k]
            acc = hl.dot(a, b.T, acc=acc)
            left = left + (a.to(torch.float32) * a.to(torch.float32)).sum(-1)
            right = right + (b.to(torch.float32) * b.to(torch.float32)).sum(-1)
        apart = left[:, None] + right[None, :] - 2.0 * acc
        out[tile_m, tile_n] = torch.exp(-gamma * torch.relu(apart))
    return out


@helion.kernel()
def contrastive_loss(x: torch.Tensor, y: torch.Tensor, temperature: float) -> torch.Tensor:
    """`logsumexp(x[i] @ y.T / temperature) - x[i] @ y[i] / temperature` for every row of `x[M, D]`, `y[M, D]`."""
    m, d = x.size()
    d = hl.specialize(d)
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        rows = x[tile_m, :]
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        den = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(m):
            s = hl.dot(rows, y[tile_n, :].T) / temperature
            new = torch.maximum(top, s.amax(-1))
            den = den * torch.exp(top - new) + torch.exp(s - new[:, None]).sum(-1)
            top = new
        own = (rows.to(torch.float32) * y[tile_m, :].to(torch.float32)).sum(-1) / temperature
        out[tile_m] = top + torch.log(den) - own
    return out


@helion.kernel()
def gated_state_scan(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    """`o[t] = q[t] @ S[t]`, `S[t] = diag(gates[t]) S[t - 1] + k[t]^T v[t]`, token by token: `[B, T, D]`, `v[B, T, E]`."""
    b, t, e = v.size()
    d = hl.specialize(q.size(2))
    out = torch.empty_like(v)
    for tile_b, tile_e in hl.tile([b, e], block_size=[1, None]):
        i = tile_b.begin
        state = hl.zeros([d, tile_e], dtype=torch.float32)
        for step in hl.grid(t):
            kept = gates[i, step, :].to(torch.float32)[:, None]
            entered = k[i, step, :].to(torch.float32)[:, None] * v[i, step, tile_e].to(torch.float32)[None, :]
            state = state * kept + entered
            out[i, step, tile_e] = (q[i, step, :].to(torch.float32)[:, None] * state).sum(0).to(v.dtype)
    return out
