"""Batched products, products of three matrices, and products whose rows are normalized, quantized or mixed again."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, E4M3, FP16, FP32, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def scaled_scores(q: torch.Tensor, k: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Store scores `[B, H, T, S]` of `q[B, T, H, D]` and `k[B, S, H, D]`, with -1e4 for padding `~keep[B, S]`."""
    b, t, h, d = q.size()
    s = k.size(1)
    d = hl.specialize(d)
    out = torch.empty([b, h, t, s], dtype=q.dtype, device=q.device)
    for tile_b, tile_h, rows, cols in hl.tile([b, h, t, s], block_size=[1, 1, None, None]):
        bi, hi = tile_b.begin, tile_h.begin
        scores = hl.dot(q[bi, rows, hi, :], k[bi, cols, hi, :].T) * d**-0.5
        out[bi, hi, rows, cols] = torch.where(keep[bi, cols][None, :], scores, -1e4).to(out.dtype)
    return out


def scaled_scores_torch(q: torch.Tensor, k: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1) * q.size(3) ** -0.5
    return scores.masked_fill(~keep[:, None, None], -1e4)


def make_scaled_scores(device: str, small: bool) -> Arguments:
    b, t, s, h, d = (2, 13, 21, 3, 16) if small else (16, 512, 512, 12, 64)
    q, k = normal(device, b, t, h, d, dtype=FP16), normal(device, b, s, h, d, dtype=FP16)
    return q, k, torch.rand([b, s], device=device) < 0.9


CELLS.add(scaled_scores, make_scaled_scores, scaled_scores_torch)


@helion.kernel
def mix_values(p: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Multiply weights `p[B, H, T, S]` by values `v[B, S, H, D]`, with results `[B, T, H, D]`."""
    b, h, t, s = p.size()
    d = hl.specialize(v.size(3))
    out = torch.empty([b, t, h, d], dtype=v.dtype, device=v.device)
    for tile_b, tile_h, rows in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        acc = hl.zeros([rows, d], dtype=torch.float32)
        for cols in hl.tile(s):
            acc = hl.dot(p[bi, hi, rows, cols], v[bi, cols, hi, :], acc=acc)
        out[bi, rows, hi, :] = acc.to(out.dtype)
    return out


def make_mix_values(device: str, small: bool) -> Arguments:
    b, h, t, s, d = (2, 3, 13, 21, 16) if small else (8, 12, 700, 701, 64)
    p = torch.softmax(normal(device, b, h, t, s), -1).to(BF16)
    return p, normal(device, b, s, h, d, dtype=BF16)


CELLS.add(mix_values, make_mix_values, lambda p, v: (p @ v.transpose(1, 2)).transpose(1, 2))


@helion.kernel
def propagate_covariance(f: torch.Tensor, p: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Return `f p f.T + noise` of small fp32 matrices `[B, D, D]`: a step of many Kalman filters."""
    b, d, _ = f.size()
    d = hl.specialize(d)
    out = torch.empty_like(p)
    for bi in hl.grid(b):
        transition = f[bi, :, :]
        moved = hl.dot(transition, p[bi, :, :])
        out[bi, :, :] = hl.dot(moved, transition.T) + noise[:, :]
    return out


def make_propagate_covariance(device: str, small: bool) -> Arguments:
    b, d = (3, 16) if small else (8192, 64)
    f, p = normal(device, b, d, d, dtype=FP32, scale=d**-0.5), normal(device, b, d, d, dtype=FP32)
    return f, p, normal(device, d, d)


CELLS.add(propagate_covariance, make_propagate_covariance, lambda f, p, noise: f @ p @ f.mT + noise)


@helion.kernel
def gate_and_value_kept(
    x: torch.Tensor, gate: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return `sigmoid(x gate.T) * (x value.T)` and both products, which the gradient reads."""
    m, k = x.size()
    n = gate.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    first, second = torch.empty_like(out), torch.empty_like(out)
    for rows, cols in hl.tile([m, n]):
        left = hl.zeros([rows, cols], dtype=torch.float32)
        right = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            left = torch.addmm(left, x[rows, inner], gate[cols, inner].T)
            right = torch.addmm(right, x[rows, inner], value[cols, inner].T)
        first[rows, cols] = left.to(x.dtype)
        second[rows, cols] = right.to(x.dtype)
        out[rows, cols] = (torch.sigmoid(left) * right).to(x.dtype)
    return out, first, second


def gate_and_value_kept_torch(
    x: torch.Tensor, gate: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    first, second = F.linear(x, gate), F.linear(x, value)
    return (torch.sigmoid(high(first)) * high(second)).to(x.dtype), first, second


def make_gate_and_value_kept(device: str, small: bool) -> Arguments:
    m, k, n = (13, 40, 24) if small else (8192, 768, 2048)
    weights = (normal(device, n, k, dtype=BF16, scale=k**-0.5) for _ in range(2))
    return normal(device, m, k, dtype=BF16), *weights


CELLS.add(gate_and_value_kept, make_gate_and_value_kept, gate_and_value_kept_torch)


@helion.kernel
def project_channels_first(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Project tokens `x[B, T, K]` by `w[N, K]` and store channels first, `[B, N, T]`."""
    b, t, k = x.size()
    n = w.size(0)
    out = torch.empty([b, n, t], dtype=x.dtype, device=x.device)
    for batch, rows, cols in hl.tile([b, t, n], block_size=[1, None, None]):
        bi = batch.begin
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = torch.addmm(acc, x[bi, rows, inner], w[cols, inner].T)
        y = acc + bias[cols].to(torch.float32)[None, :]
        out[bi, cols, rows] = y.to(out.dtype).T
    return out


def project_channels_first_torch(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w, bias).transpose(1, 2).contiguous()


def make_project_channels_first(device: str, small: bool) -> Arguments:
    b, t, k, n = (2, 13, 40, 24) if small else (16, 1024, 1024, 512)
    w, bias = normal(device, n, k, dtype=BF16, scale=k**-0.5), normal(device, n, dtype=BF16)
    return normal(device, b, t, k, dtype=BF16), w, bias


CELLS.add(project_channels_first, make_project_channels_first, project_channels_first_torch)


@helion.kernel
def ensemble_layer(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Apply a layer of an ensemble in fp32: `silu(x[E, M, K] w[E, K, N] + bias[E, N])`."""
    e, m, k = x.size()
    n = w.size(2)
    out = torch.empty([e, m, n], dtype=x.dtype, device=x.device)
    for member, rows, cols in hl.tile([e, m, n], block_size=[1, None, None]):
        ei = member.begin
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = hl.dot(x[ei, rows, inner], w[ei, inner, cols], acc=acc)
        y = acc + bias[ei, cols][None, :]
        out[ei, rows, cols] = y * torch.sigmoid(y)
    return out


def make_ensemble_layer(device: str, small: bool) -> Arguments:
    e, m, k, n = (3, 13, 20, 24) if small else (32, 1000, 256, 256)
    return normal(device, e, m, k), normal(device, e, k, n, scale=k**-0.5), normal(device, e, n)


CELLS.add(ensemble_layer, make_ensemble_layer, lambda x, w, bias: F.silu(torch.baddbmm(bias[:, None], x, w)))


@helion.kernel
def soft_codebook(x: torch.Tensor, codes: torch.Tensor, heat: float) -> torch.Tensor:
    """Return `softmax(heat x codes.T) codes` for `x[M, D]` and a codebook `[N, D]` that fits one tile."""
    m, d = x.size()
    hl.specialize(codes.size(0))
    d = hl.specialize(d)
    out = torch.empty_like(x)
    for rows in hl.tile(m):
        scores = hl.dot(x[rows, :], codes[:, :].T) * heat
        p = torch.softmax(scores, dim=-1).to(x.dtype)
        out[rows, :] = hl.dot(p, codes[:, :]).to(x.dtype)
    return out


def soft_codebook_torch(x: torch.Tensor, codes: torch.Tensor, heat: float) -> torch.Tensor:
    return torch.softmax(high(x @ codes.T) * heat, -1).to(x.dtype) @ codes


def make_soft_codebook(device: str, small: bool) -> Arguments:
    m, n, d = (37, 32, 16) if small else (262144, 128, 64)
    return normal(device, m, d, dtype=BF16), normal(device, n, d, dtype=BF16), 0.125


CELLS.add(soft_codebook, make_soft_codebook, soft_codebook_torch)


@helion.kernel
def unit_embeddings(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Project `x[M, K]` by `w[K, N]` and divide each row by its norm, as heads of contrastive models do."""
    m, k = x.size()
    n = hl.specialize(w.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows in hl.tile(m):
        acc = hl.zeros([rows, n], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = hl.dot(x[rows, inner], w[inner, :], acc=acc)
        norm = torch.sqrt((acc * acc).sum(-1, keepdim=True))
        out[rows, :] = (acc / torch.clamp(norm, min=1e-12)).to(x.dtype)
    return out


def make_unit_embeddings(device: str, small: bool) -> Arguments:
    m, k, n = (13, 40, 32) if small else (32768, 768, 512)
    return normal(device, m, k, dtype=FP16), normal(device, k, n, dtype=FP16, scale=k**-0.5)


CELLS.add(unit_embeddings, make_unit_embeddings, lambda x, w: F.normalize(high(x @ w), dim=-1).to(x.dtype))


@helion.kernel
def lower_triangle_times(low: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Multiply the lower triangle of `low[T, T]` by `x[T, N]`, and skip what is above the diagonal."""
    t, n = x.size()
    out = torch.empty_like(x)
    for rows, cols in hl.tile([t, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(0, rows.end):
            own = torch.where(inner.index[None, :] <= rows.index[:, None], low[rows, inner], 0.0).to(x.dtype)
            acc = hl.dot(own, x[inner, cols], acc=acc)
        out[rows, cols] = acc.to(x.dtype)
    return out


def make_lower_triangle_times(device: str, small: bool) -> Arguments:
    t, n = (37, 24) if small else (4096, 2048)
    return normal(device, t, t, dtype=BF16, scale=t**-0.5), normal(device, t, n, dtype=BF16)


CELLS.add(lower_triangle_times, make_lower_triangle_times, lambda low, x: low.tril() @ x)


@helion.kernel
def smooth_by_kernel(x: torch.Tensor, y: torch.Tensor, values: torch.Tensor, gamma: float) -> torch.Tensor:
    """Return `exp(-gamma |x - y|^2) values / sums` for points `x[M, D]` and `y[N, D]`: kernel regression."""
    m, d = x.size()
    n = y.size(0)
    d, e = hl.specialize(d), hl.specialize(values.size(1))
    out = torch.empty([m, e], dtype=torch.float32, device=x.device)
    for rows in hl.tile(m):
        own = x[rows, :]
        norm = (own.to(torch.float32) * own.to(torch.float32)).sum(-1)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, e], dtype=torch.float32)
        for cols in hl.tile(n):
            other = y[cols, :]
            other_norm = (other.to(torch.float32) * other.to(torch.float32)).sum(-1)
            squares = norm[:, None] + other_norm[None, :] - 2.0 * hl.dot(own, other.T)
            p = torch.where(cols.index[None, :] < n, torch.exp(-gamma * squares), 0.0)
            total += p.sum(-1)
            acc = hl.dot(p.to(values.dtype), values[cols, :], acc=acc)
        out[rows, :] = acc / total[:, None]
    return out


def smooth_by_kernel_torch(x: torch.Tensor, y: torch.Tensor, values: torch.Tensor, gamma: float) -> torch.Tensor:
    squares = (high(x) ** 2).sum(-1)[:, None] + (high(y) ** 2).sum(-1) - 2.0 * high(x) @ high(y).T
    p = torch.exp(-gamma * squares)
    return high(p.to(values.dtype) @ values) / p.sum(-1, keepdim=True)


def make_smooth_by_kernel(device: str, small: bool) -> Arguments:
    m, n, d, e = (13, 37, 16, 16) if small else (8192, 10000, 32, 32)
    x, y = normal(device, m, d, dtype=BF16), normal(device, n, d, dtype=BF16)
    return x, y, normal(device, n, e, dtype=BF16), 0.05


CELLS.add(smooth_by_kernel, make_smooth_by_kernel, smooth_by_kernel_torch)


@helion.kernel
def fp8_batched(x: torch.Tensor, w: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Multiply batches of e4m3, `x[E, M, K]` and `w[E, N, K]`, with a scale for each batch."""
    e, m, k = x.size()
    n = w.size(1)
    out = torch.empty([e, m, n], dtype=torch.bfloat16, device=x.device)
    for batch, rows, cols in hl.tile([e, m, n], block_size=[1, None, None]):
        ei = batch.begin
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = hl.dot(x[ei, rows, inner], w[ei, cols, inner].T, acc=acc)
        out[ei, rows, cols] = (acc * scales[ei]).to(out.dtype)
    return out


def fp8_batched_reference(x: torch.Tensor, w: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return (x.to(scales.dtype) @ w.to(scales.dtype).mT * scales[:, None, None]).to(BF16)


def fp8_batched_torch(x: torch.Tensor, w: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    one = torch.ones([], device=x.device)
    parts = [
        torch._scaled_mm(own, weight.T, scale_a=scale, scale_b=one, out_dtype=BF16)
        for own, weight, scale in zip(x, w, scales, strict=True)
    ]
    return torch.stack(parts)


def make_fp8_batched(device: str, small: bool) -> Arguments:
    e, m, k, n = (3, 16, 64, 48) if small else (16, 512, 2048, 1536)
    return normal(device, e, m, k).to(E4M3), normal(device, e, n, k).to(E4M3), torch.rand([e], device=device) * 0.1


CELLS.add(fp8_batched, make_fp8_batched, fp8_batched_reference, fp8_batched_torch)


@helion.kernel
def low_rank_gradient(grad: torch.Tensor, hidden: torch.Tensor, scale: float) -> torch.Tensor:
    """Return `scale grad[M, N].T hidden[M, R]` in fp32, the gradient of the wide factor of an adapter."""
    m, n = grad.size()
    r = hl.specialize(hidden.size(1))
    out = torch.empty([n, r], dtype=torch.float32, device=grad.device)
    for cols in hl.tile(n):
        acc = hl.zeros([cols, r], dtype=torch.float32)
        for rows in hl.tile(m):
            acc = hl.dot(grad[rows, cols].T, hidden[rows, :], acc=acc)
        out[cols, :] = acc * scale
    return out


def make_low_rank_gradient(device: str, small: bool) -> Arguments:
    m, n, r = (37, 24, 16) if small else (16384, 4096, 16)
    return normal(device, m, n, dtype=BF16), normal(device, m, r, dtype=BF16), 0.25


CELLS.add(low_rank_gradient, make_low_rank_gradient, lambda grad, hidden, scale: high(grad.T @ hidden) * scale)


@helion.kernel
def view_correlation(a: torch.Tensor, b: torch.Tensor, stats: torch.Tensor) -> torch.Tensor:
    """Correlate the columns of two fp32 views `[M, D]`, with means and reciprocal deviations `stats[4, D]`."""
    m, d = a.size()
    out = torch.empty([d, d], dtype=torch.float32, device=a.device)
    for rows, cols in hl.tile([d, d]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(m):
            left = (a[inner, rows] - stats[0, rows][None, :]) * stats[1, rows][None, :]
            right = (b[inner, cols] - stats[2, cols][None, :]) * stats[3, cols][None, :]
            left = torch.where(inner.index[:, None] < m, left, 0.0)
            acc = hl.dot(left.T, right, acc=acc)
        out[rows, cols] = acc / m
    return out


def view_correlation_torch(a: torch.Tensor, b: torch.Tensor, stats: torch.Tensor) -> torch.Tensor:
    return ((a - stats[0]) * stats[1]).T @ ((b - stats[2]) * stats[3]) / a.size(0)


def make_view_correlation(device: str, small: bool) -> Arguments:
    m, d = (37, 24) if small else (2048, 2048)
    a, b = normal(device, m, d), normal(device, m, d)
    return a, b, torch.stack([a.mean(0), 1 / a.std(0), b.mean(0), 1 / b.std(0)])


CELLS.add(view_correlation, make_view_correlation, view_correlation_torch)


@helion.kernel
def spatial_gate(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Gate the first half of `x[B, T, 2 C]` by the second, mixed over tokens by `w[T, T]` with `bias[T]`."""
    b, t, both = x.size()
    c = both // 2
    out = torch.empty([b, t, c], dtype=x.dtype, device=x.device)
    for batch, rows, cols in hl.tile([b, t, c], block_size=[1, None, None]):
        bi = batch.begin
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(t):
            acc = hl.dot(w[rows, inner], x[bi, inner, cols.index + c], acc=acc)
        gate = acc + bias[rows].to(torch.float32)[:, None]
        out[bi, rows, cols] = (x[bi, rows, cols].to(torch.float32) * gate).to(out.dtype)
    return out


def spatial_gate_torch(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    own, other = x.chunk(2, -1)
    return own * (w @ other + bias[:, None])


def make_spatial_gate(device: str, small: bool) -> Arguments:
    b, t, c = (2, 37, 24) if small else (32, 512, 1536)
    w = normal(device, t, t, dtype=BF16, scale=t**-0.5)
    return normal(device, b, t, 2 * c, dtype=BF16), w, normal(device, t, dtype=BF16)


CELLS.add(spatial_gate, make_spatial_gate, spatial_gate_torch)


@helion.kernel
def linear_to_fp8_rows(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiply `x[M, K]` by `w[N, K].T` and return e4m3 with a scale for each row, `amax / 448`."""
    m, k = x.size()
    n = hl.specialize(w.size(0))
    out = torch.empty([m, n], dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty([m, 1], dtype=torch.float32, device=x.device)
    for rows in hl.tile(m):
        acc = hl.zeros([rows, n], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = torch.addmm(acc, x[rows, inner], w[:, inner].T)
        scale = torch.clamp(torch.abs(acc).amax(-1), min=1e-12) / 448.0
        out[rows, :] = (acc / scale[:, None]).to(torch.float8_e4m3fn)
        scales[rows, 0] = scale
    return out, scales


def linear_to_fp8_rows_torch(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = high(F.linear(x, w))
    scales = torch.clamp(y.abs().amax(-1, keepdim=True), min=1e-12) / 448.0
    return (y / scales).clamp(-448.0, 448.0).to(E4M3), scales


def make_linear_to_fp8_rows(device: str, small: bool) -> Arguments:
    m, k, n = (13, 40, 32) if small else (16384, 2048, 512)
    return normal(device, m, k, dtype=BF16), normal(device, n, k, dtype=BF16, scale=k**-0.5)


CELLS.add(linear_to_fp8_rows, make_linear_to_fp8_rows, linear_to_fp8_rows_torch)
