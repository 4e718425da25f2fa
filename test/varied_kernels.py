"""Kernels of many kinds, unlike the examples, with shapes and dtypes: what heuristics and the resource model are held
against. Tensors are on ``meta``: nothing here is run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

import helion
import helion.language as hl

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
E4M3, E5M2, INT8, INT32 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.int32


def tensor(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


# --- scans, histograms, gathers ------------------------------------------------------------------------------------------


@helion.kernel()
def bin_counts(x: torch.Tensor, bins: hl.constexpr) -> torch.Tensor:
    out = torch.zeros([x.size(0), bins], dtype=torch.int32, device=x.device)
    for row, column in hl.tile(x.size()):
        hl.atomic_add(out, [row.index[:, None], x[row, column]], 1)
    return out


@helion.kernel()
def running_maximum(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for row in hl.tile(x.size(0)):
        out[row, :] = hl.associative_scan(torch.maximum, x[row, :].to(torch.float32), dim=1).to(x.dtype)
    return out


@helion.kernel()
def row_prefix_sum(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for row in hl.tile(x.size(0)):
        out[row, :] = torch.cumsum(x[row, :].to(torch.float32), dim=1).to(x.dtype)
    return out


@helion.kernel()
def chunked_prefix_sum(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for row in hl.tile(x.size(0)):
        before = hl.zeros([row], dtype=torch.float32)
        for chunk in hl.tile(x.size(1)):
            values = x[row, chunk].to(torch.float32)
            out[row, chunk] = (torch.cumsum(values, dim=1) + before[:, None]).to(x.dtype)
            before = before + values.sum(1)
    return out


def _compose(a: Any, b: Any, c: Any, d: Any) -> Any:
    return a * c, b * c + d


@helion.kernel()
def decayed_sum(decay: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """``h[t] = decay[t] * h[t - 1] + x[t]`` down the columns, whole sequences at once."""
    hl.specialize(x.size(0))
    out = torch.empty_like(x)
    for column in hl.tile(x.size(1)):
        values = x[:, column].to(torch.float32)
        factors = decay[:, column].to(torch.float32)
        _, state = hl.associative_scan(_compose, (factors, values), dim=0)
        out[:, column] = state.to(x.dtype)
    return out


@helion.kernel()
def stepwise_recurrence(decay: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for channel in hl.tile(x.size(1)):
        state = hl.zeros([channel], dtype=torch.float32)
        for step in hl.grid(x.size(0)):
            state = state * decay[step, channel].to(torch.float32) + x[step, channel].to(torch.float32)
            out[step, channel] = state.to(x.dtype)
    return out


@helion.kernel()
def gathered_rows_added(
    table: torch.Tensor, source: torch.Tensor, target: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    for edge, feature in hl.tile([source.size(0), table.size(1)]):
        messages = hl.load(table, [source[edge], feature]).to(torch.float32)
        hl.atomic_add(out, [target[edge], feature], messages)
    return out


@helion.kernel()
def pooled_embedding(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    out = torch.empty([ids.size(0), table.size(1)], dtype=table.dtype, device=table.device)
    for bag, feature in hl.tile(out.size()):
        total = hl.zeros([bag, feature], dtype=torch.float32)
        for at in hl.grid(ids.size(1)):
            total += hl.load(table, [ids[bag, at], feature]).to(torch.float32)
        out[bag, feature] = (total / ids.size(1)).to(table.dtype)
    return out


# --- reductions ----------------------------------------------------------------------------------------------------------


@helion.kernel()
def noisy_rms(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, seed: int) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty_like(x)
    for row in hl.tile(m):
        kept = hl.rand([row, n], seed=seed) > 0.2
        hidden = torch.where(kept, x[row, :].to(torch.float32) * 1.25, 0.0) + residual[row, :].to(torch.float32)
        scale = torch.rsqrt((hidden * hidden).mean(-1, keepdim=True) + 1e-6)
        out[row, :] = (hidden * scale * weight[:].to(torch.float32)).to(x.dtype)
    return out


@helion.kernel()
def noisy_copy(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for row, column in hl.tile(x.size()):
        out[row, column] = x[row, column] + torch.randn_like(x[row, column])
    return out


@helion.kernel()
def focal_loss_gradient(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Two loops over classes in each program, both the kernel's own."""
    m, n = logits.size()
    grad = torch.empty_like(logits)
    for row in hl.tile(m):
        top = hl.full([row], float("-inf"), dtype=torch.float32)
        total = hl.zeros([row], dtype=torch.float32)
        for part in hl.tile(n):
            values = logits[row, part].to(torch.float32)
            peak = torch.maximum(top, torch.amax(values, dim=1))
            total = total * torch.exp(top - peak) + torch.exp(values - peak[:, None]).sum(1)
            top = peak
        for part in hl.tile(n):
            values = logits[row, part].to(torch.float32)
            p = torch.exp(values - top[:, None]) / total[:, None]
            hit = part.index[None, :] == labels[row][:, None]
            hardness = (1.0 - p) * (1.0 - p) * torch.log(p + 1e-6)
            grad[row, part] = torch.where(hit, p - 1.0, p * hardness).to(logits.dtype)
    return grad


@helion.kernel()
def channel_group_norm(x: torch.Tensor) -> torch.Tensor:
    """``[batch, positions, groups, channels]`` normalised over positions and channels."""
    b, p, g, c = x.size()
    c = hl.specialize(c)
    out = torch.empty_like(x)
    for batch, group in hl.tile([b, g]):
        total = hl.zeros([batch, group], dtype=torch.float32)
        squares = hl.zeros([batch, group], dtype=torch.float32)
        for at in hl.tile(p):
            values = x[batch, at, group, :].to(torch.float32)
            total = total + values.sum(-1).sum(1)
            squares = squares + (values * values).sum(-1).sum(1)
        mean = total / (p * c)
        scale = torch.rsqrt(squares / (p * c) - mean * mean + 1e-5)
        for at in hl.tile(p):
            values = x[batch, at, group, :].to(torch.float32)
            shifted = (values - mean[:, None, :, None]) * scale[:, None, :, None]
            out[batch, at, group, :] = shifted.to(x.dtype)
    return out


@helion.kernel()
def norm_then_column_sums(grad: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in the first grid loop, columns of what it wrote in the second."""
    m, n = x.size()
    out = torch.empty_like(x)
    sums = torch.empty([n], dtype=torch.float32, device=x.device)
    for row in hl.tile(m):
        values = x[row, :].to(torch.float32)
        g = grad[row, :].to(torch.float32)
        scale = torch.rsqrt((values * values).mean(-1, keepdim=True) + 1e-6)
        out[row, :] = (g * scale - values * scale * (g * values).mean(-1, keepdim=True)).to(x.dtype)
    hl.barrier()
    for column in hl.tile(n):
        acc = hl.zeros([column], dtype=torch.float32)
        for row in hl.tile(m):
            acc = acc + (grad[row, column].to(torch.float32) * x[row, column].to(torch.float32)).sum(0)
        sums[column] = acc
    return out, sums


@helion.kernel()
def ragged_mean(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    out = torch.empty([offsets.size(0) - 1, x.size(1)], dtype=torch.float32, device=x.device)
    for sequence, column in hl.tile([out.size(0), out.size(1)], block_size=[1, None]):
        begin, end = offsets[sequence.begin], offsets[sequence.begin + 1]
        acc = hl.zeros([column], dtype=torch.float32)
        for at in hl.tile(begin, end):
            acc = acc + x[at, column].to(torch.float32).sum(0)
        out[sequence.begin, column] = acc / (end - begin).to(torch.float32)
    return out


@helion.kernel()
def chebyshev_distance(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(0)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for i, j in hl.tile([m, n]):
        most = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            apart = (x[i, d].to(torch.float32)[:, None, :] - y[j, d].to(torch.float32)[None, :, :]).abs()
            most = torch.maximum(most, apart.amax(-1))
        out[i, j] = most
    return out


@helion.kernel()
def tropical_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for i, j in hl.tile([m, n]):
        best = hl.full([i, j], float("-inf"), dtype=torch.float32)
        for d in hl.tile(k):
            sums = x[i, d].to(torch.float32)[:, :, None] + y[d, j].to(torch.float32)[None, :, :]
            best = torch.maximum(best, sums.amax(1))
        out[i, j] = best
    return out


# --- products ------------------------------------------------------------------------------------------------------------


@helion.kernel(static_shapes=False)
def dynamic_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = torch.addmm(acc, x[i, d], y[d, j])
        out[i, j] = acc.to(x.dtype)
    return out


@helion.kernel()
def routed_product(x: torch.Tensor, rows: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Rows of the left operand are picked by number."""
    n = y.size(1)
    out = torch.empty([rows.size(0), n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([rows.size(0), n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(x.size(1)):
            acc = torch.addmm(acc, hl.load(x, [rows[i], d]), y[d, j])
        out[i, j] = acc.to(x.dtype)
    return out


@helion.kernel()
def scaled_fp8_product(x: torch.Tensor, y: torch.Tensor, x_scale: torch.Tensor, y_scale: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], y[d, j], acc=acc)
        out[i, j] = (acc * x_scale[i][:, None] * y_scale[j][None, :]).to(torch.bfloat16)
    return out


@helion.kernel()
def block_scaled_fp8(x: torch.Tensor, y: torch.Tensor, x_scale: torch.Tensor, y_scale: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k, block_size=128):
            part = hl.dot(x[i, d], y[d, j])
            acc = acc + part * x_scale[i, d.id][:, None] * y_scale[d.id, j][None, :]
        out[i, j] = acc.to(torch.bfloat16)
    return out


@helion.kernel()
def int8_weights(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], w[d, j].to(x.dtype), acc=acc)
        out[i, j] = (acc * scale[j][None, :]).to(x.dtype)
    return out


@helion.kernel()
def int8_product(x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = w.size(1)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.int32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], w[d, j], acc=acc)
        out[i, j] = (acc.to(torch.float32) * x_scale[i][:, None] * w_scale[j][None, :]).to(torch.bfloat16)
    return out


@helion.kernel()
def grouped_int4(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Two weights a byte, a scale for every 64 rows of a column."""
    m, k = x.size()
    n = packed.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    pairs = x.view(m, k // 2, 2)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k // 2, block_size=32):
            both = packed[d, j]
            scale = scales[d.id, j].to(torch.float32)[None, :]
            even = (((both << 4) >> 4).to(torch.float32) * scale).to(x.dtype)
            odd = ((both >> 4).to(torch.float32) * scale).to(x.dtype)
            acc = hl.dot(pairs[i, d, 0], even, acc=acc)
            acc = hl.dot(pairs[i, d, 1], odd, acc=acc)
        out[i, j] = acc.to(x.dtype)
    return out


@helion.kernel()
def microscaled_product(x: torch.Tensor, x_scale: torch.Tensor, y: torch.Tensor, y_scale: torch.Tensor) -> torch.Tensor:
    m, groups = x_scale.size()
    n = y_scale.size(0)
    x, y = x.view(m, groups, 32), y.view(groups, 32, n)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j])
        for g in hl.tile(groups):
            lhs = x[i, g, :].reshape(i, g.block_size * 32)
            rhs = y[g, :, j].reshape(g.block_size * 32, j)
            acc = hl.dot_scaled(lhs, x_scale[i, g], "e4m3", rhs, y_scale[j, g], "e4m3", acc=acc)
        out[i, j] = acc.to(torch.bfloat16)
    return out


@helion.kernel()
def gated_dual_product(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = gate.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        a = hl.zeros([i, j], dtype=torch.float32)
        b = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            rows = x[i, d]
            a = torch.addmm(a, rows, gate[d, j])
            b = torch.addmm(b, rows, up[d, j])
        out[i, j] = (torch.sigmoid(a) * a * b).to(x.dtype)
    return out


@helion.kernel()
def normed_product(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Whole rows are normalised, then multiplied by columns in a loop."""
    m, k = x.size()
    k = hl.specialize(k)
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i in hl.tile(m):
        rows = x[i, :].to(torch.float32)
        scale = torch.rsqrt((rows * rows).mean(-1, keepdim=True) + 1e-6)
        normed = (rows * scale * weight[:].to(torch.float32)).to(x.dtype)
        for j in hl.tile(n):
            out[i, j] = torch.mm(normed, y[:, j]).to(x.dtype)
    return out


@helion.kernel()
def centred_product(x: torch.Tensor, y: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """The left operand is normalised on its way to the product."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        total = hl.zeros([i], dtype=torch.float32)
        squares = hl.zeros([i], dtype=torch.float32)
        for d in hl.tile(k):
            rows = x[i, d].to(torch.float32)
            total = total + rows.sum(-1)
            squares = squares + (rows * rows).sum(-1)
        mean = total / k
        scale = torch.rsqrt(squares / k - mean * mean + 1e-5)
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            rows = x[i, d].to(torch.float32)
            normed = (rows - mean[:, None]) * scale[:, None] + shift[d].to(torch.float32)[None, :]
            acc = torch.addmm(acc, normed.to(x.dtype), y[d, j])
        out[i, j] = acc.to(x.dtype)
    return out


@helion.kernel()
def residual_product(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = torch.addmm(acc, x[i, d], y[d, j])
        out[i, j] = (torch.relu(acc + bias[j].to(torch.float32)) + residual[i, j].to(torch.float32)).to(x.dtype)
    return out


@helion.kernel()
def sum_of_products(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    m, n = a.size(0), b.size(1)
    out = torch.empty([m, n], dtype=a.dtype, device=a.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for k in hl.tile(a.size(1)):
            acc = torch.addmm(acc, a[i, k], b[k, j])
        for k in hl.tile(c.size(1)):
            acc = torch.addmm(acc, c[i, k], d[k, j])
        out[i, j] = acc.to(a.dtype)
    return out


@helion.kernel()
def moments(x: torch.Tensor) -> torch.Tensor:
    """``x.T @ x``: the left operand is turned."""
    k, n = x.size()
    out = torch.empty([n, n], dtype=torch.float32, device=x.device)
    for i, j in hl.tile([n, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = torch.addmm(acc, x[d, i].T, x[d, j])
        out[i, j] = acc
    return out


@helion.kernel()
def small_products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One tile holds a whole matrix."""
    b, m, k = x.size()
    m, k, n = hl.specialize(m), hl.specialize(k), hl.specialize(y.size(2))
    out = torch.empty([b, m, n], dtype=x.dtype, device=x.device)
    for batch in hl.tile(b):
        out[batch, :, :] = torch.bmm(x[batch, :, :], y[batch, :, :]).to(x.dtype)
    return out


# --- attention and its like ----------------------------------------------------------------------------------------------


@helion.kernel()
def attention_grad_q(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor
) -> torch.Tensor:
    b, m, h = q.size()
    n, h = k.size(1), hl.specialize(h)
    out = torch.empty_like(q)
    for batch, i in hl.tile([b, m], block_size=[1, None]):
        rows, g = q[batch.begin, i, :], grad[batch.begin, i, :]
        acc = hl.zeros([i, h], dtype=torch.float32)
        for j in hl.tile(n):
            keys = k[batch.begin, j, :]
            p = torch.exp2(torch.mm(rows, keys.T) - lse[batch.begin, i][:, None])
            gp = torch.mm(g, v[batch.begin, j, :].T)
            gs = p * (gp - delta[batch.begin, i][:, None])
            acc = torch.addmm(acc, gs.to(q.dtype), keys)
        out[batch.begin, i, :] = acc.to(q.dtype)
    return out


@helion.kernel()
def attention_grad_kv(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    b, m, h = q.size()
    n, h = k.size(1), hl.specialize(h)
    grad_k, grad_v = torch.empty_like(k), torch.empty_like(v)
    for batch, j in hl.tile([b, n], block_size=[1, None]):
        keys, values = k[batch.begin, j, :], v[batch.begin, j, :]
        acc_k = hl.zeros([j, h], dtype=torch.float32)
        acc_v = hl.zeros([j, h], dtype=torch.float32)
        for i in hl.tile(m):
            rows, g = q[batch.begin, i, :], grad[batch.begin, i, :]
            p = torch.exp2(torch.mm(keys, rows.T) - lse[batch.begin, i][None, :])
            acc_v = torch.addmm(acc_v, p.to(q.dtype), g)
            gs = p * (torch.mm(values, g.T) - delta[batch.begin, i][None, :])
            acc_k = torch.addmm(acc_k, gs.to(q.dtype), rows)
        grad_k[batch.begin, j, :] = acc_k.to(k.dtype)
        grad_v[batch.begin, j, :] = acc_v.to(v.dtype)
    return grad_k, grad_v


@helion.kernel()
def retention_chunks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Linear attention by chunks: a state of head by head elements is carried along."""
    b, n, d = q.size()
    d, e = hl.specialize(d), hl.specialize(v.size(2))
    out = torch.empty_like(v)
    for batch in hl.tile(b, block_size=1):
        state = hl.zeros([d, e], dtype=torch.float32)
        for chunk in hl.tile(n):
            rows, keys, values = q[batch.begin, chunk, :], k[batch.begin, chunk, :], v[batch.begin, chunk, :]
            scores = torch.mm(rows, keys.T)
            scores = torch.where(chunk.index[:, None] >= chunk.index[None, :], scores, 0.0)
            own = torch.mm(scores.to(v.dtype), values)
            out[batch.begin, chunk, :] = (own + torch.mm(rows, state.to(v.dtype))).to(v.dtype)
            state = torch.addmm(state, keys.T, values)
    return out


@helion.kernel()
def bilinear_scores(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``sum((x @ w) * y, -1)``: a row meets a product."""
    m, k = x.size()
    n = hl.specialize(w.size(1))
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for i in hl.tile(m):
        acc = hl.zeros([i, n], dtype=torch.float32)
        for d in hl.tile(k):
            acc = torch.addmm(acc, x[i, d], w[d, :])
        out[i] = (acc * y[i, :].to(torch.float32)).sum(-1)
    return out


@helion.kernel()
def low_rank_update(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n, r = w.size(1), hl.specialize(a.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        low = hl.zeros([i, r], dtype=torch.float32)
        for d in hl.tile(k):
            rows = x[i, d]
            acc = torch.addmm(acc, rows, w[d, j])
            low = torch.addmm(low, rows, a[d, :])
        out[i, j] = torch.addmm(acc, low.to(x.dtype), b[:, j]).to(x.dtype)
    return out


# --- cells ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Varied:
    """One kernel on arguments of some shapes. ``case`` names them."""

    kernel: helion.Kernel
    case: str
    args: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.kernel.name}-{self.case}"


def cells() -> tuple[Varied, ...]:
    made = (*_scans(), *_reductions(), *_products(), *_narrow_products(), *_chains())
    return tuple(Varied(kernel=kernel, case=case, args=args) for kernel, case, args in made)


_Made = Iterator[tuple[helion.Kernel, str, tuple[Any, ...]]]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _scans() -> _Made:
    for m, n in ((64, 4096), (2048, 1000)):
        yield bin_counts, f"{m}x{n}", (tensor(m, n, dtype=INT32), 64)
    for (m, n), dtype in (((1000, 4096), BF16), ((64, 32768), FP32), ((16, 131072), FP32), ((4096, 300), FP16)):
        for kernel in (running_maximum, row_prefix_sum, chunked_prefix_sum):
            yield kernel, f"{m}x{n} {_name(dtype)}", (tensor(m, n, dtype=dtype),)
    for (t, n), dtype in (((256, 4096), BF16), ((2048, 512), FP32)):
        both = (tensor(t, n, dtype=dtype), tensor(t, n, dtype=dtype))
        yield decayed_sum, f"{t}x{n} {_name(dtype)}", both
        yield stepwise_recurrence, f"{t}x{n} {_name(dtype)}", both
    for (edges, nodes, n), dtype in (((200000, 10000, 128), BF16), ((65536, 4096, 300), FP32)):
        ids = tensor(edges, dtype=torch.int64)
        args = (tensor(nodes, n, dtype=dtype), ids, ids, tensor(nodes, n, dtype=FP32))
        yield gathered_rows_added, f"{edges}x{n} {_name(dtype)}", args
    yield pooled_embedding, "4096x20x256", (tensor(50000, 256), tensor(4096, 20, dtype=torch.int64))


def _reductions() -> _Made:
    for (m, n), dtype in (((16384, 1024), BF16), ((8192, 8192), BF16), ((2048, 20480), FP16), ((4096, 3000), FP32)):
        rows = tensor(m, n, dtype=dtype)
        yield noisy_rms, f"{m}x{n} {_name(dtype)}", (rows, rows, tensor(n, dtype=dtype), 7)
        yield norm_then_column_sums, f"{m}x{n} {_name(dtype)}", (rows, rows)
    yield noisy_copy, "4096x4096", (tensor(4096, 4096),)
    for (m, n), dtype in (((4096, 128256), BF16), ((2048, 50257), FP32), ((16384, 32000), BF16)):
        yield focal_loss_gradient, f"{m}x{n} {_name(dtype)}", (tensor(m, n, dtype=dtype), tensor(m, dtype=torch.int64))
    for (b, p, g, c), dtype in (((8, 16384, 32, 16), FP16), ((32, 4096, 32, 8), BF16), ((4, 1000, 8, 40), FP32)):
        yield channel_group_norm, f"{b}x{p}x{g}x{c} {_name(dtype)}", (tensor(b, p, g, c, dtype=dtype),)
    yield ragged_mean, "65536x1024", (tensor(65536, 1024), tensor(17, dtype=INT32))
    for (m, k, n), dtype in (((512, 512, 512), FP32), ((1000, 128, 2000), BF16)):
        yield chebyshev_distance, f"{m}x{k}x{n} {_name(dtype)}", (tensor(m, k, dtype=dtype), tensor(n, k, dtype=dtype))
        yield tropical_product, f"{m}x{k}x{n} {_name(dtype)}", (tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype))


def _products() -> _Made:
    for (m, k, n), dtype in (((4096, 4096, 4096), BF16), ((1000, 1000, 3000), FP16), ((2048, 2048, 2048), FP32)):
        x, y, case = tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype), f"{m}x{k}x{n} {_name(dtype)}"
        yield dynamic_product, case, (x, y)
        yield routed_product, case, (x, tensor(m, dtype=torch.int64), y)
        yield gated_dual_product, case, (x, y, y)
        yield centred_product, case, (x, y, tensor(k, dtype=dtype))
        yield residual_product, case, (x, y, tensor(n, dtype=dtype), tensor(m, n, dtype=dtype))
        yield low_rank_update, case, (x, y, tensor(k, 16, dtype=dtype), tensor(16, n, dtype=dtype))
    for (m, k, n), dtype in (((777, 513, 1025), BF16), ((512, 4096, 512), FP16)):
        x, y, case = tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype), f"{m}x{k}x{n} {_name(dtype)}"
        yield sum_of_products, case, (x, y, x, y)
        yield residual_product, case, (x, y, tensor(n, dtype=dtype), tensor(m, n, dtype=dtype))
    for (m, k, n), dtype in (((512, 4096, 4096), BF16), ((2048, 1024, 1024), FP16)):
        args = (tensor(m, k, dtype=dtype), tensor(k, dtype=dtype), tensor(k, n, dtype=dtype))
        yield normed_product, f"{m}x{k}x{n} {_name(dtype)}", args
    for (k, n), dtype in (((16384, 2048), FP16), ((100000, 200), FP32), ((65536, 64), BF16)):
        yield moments, f"{k}x{n} {_name(dtype)}", (tensor(k, n, dtype=dtype),)
    for (b, m), dtype in (((4096, 32), BF16), ((20000, 16), FP16)):
        args = (tensor(b, m, m, dtype=dtype), tensor(b, m, m, dtype=dtype))
        yield small_products, f"{b}x{m} {_name(dtype)}", args


def _narrow_products() -> _Made:
    for (m, k, n), dtype in (((4096, 4096, 4096), E4M3), ((64, 7168, 4096), E4M3), ((1000, 1024, 3072), E5M2)):
        x, y = tensor(m, k, dtype=dtype), tensor(n, k, dtype=dtype).T
        scales = (tensor(m, dtype=FP32), tensor(n, dtype=FP32))
        yield scaled_fp8_product, f"{m}x{k}x{n} {_name(dtype)}", (x, y, *scales)
        blocks = (tensor(m, k // 128, dtype=FP32), tensor(k // 128, n, dtype=FP32))
        yield block_scaled_fp8, f"{m}x{k}x{n} {_name(dtype)}", (x, y, *blocks)
    for m, k, n in ((2048, 4096, 4096), (16, 4096, 11008)):
        case = f"{m}x{k}x{n}"
        yield int8_weights, case, (tensor(m, k), tensor(k, n, dtype=INT8), tensor(n, dtype=FP32))
        scales = (tensor(m, dtype=FP32), tensor(n, dtype=FP32))
        yield int8_product, case, (tensor(m, k, dtype=INT8), tensor(k, n, dtype=INT8), *scales)
        yield grouped_int4, case, (tensor(m, k), tensor(k // 2, n, dtype=INT8), tensor(k // 64, n))
        mx_scales = (tensor(m, k // 32, dtype=torch.uint8), tensor(n, k // 32, dtype=torch.uint8))
        operands = (tensor(m, k, dtype=E4M3), tensor(k, n, dtype=E4M3))
        yield microscaled_product, case, (operands[0], mx_scales[0], operands[1], mx_scales[1])


def _chains() -> _Made:
    for (b, n, d), dtype in (((64, 2048, 64), FP16), ((32, 1024, 128), BF16), ((32, 1024, 256), BF16)):
        head, sums = tensor(b, n, d, dtype=dtype), tensor(b, n, dtype=FP32)
        args = (head, head, head, head, sums, sums)
        yield attention_grad_q, f"{b}x{n}x{d} {_name(dtype)}", args
        yield attention_grad_kv, f"{b}x{n}x{d} {_name(dtype)}", args
    for (b, n, d), dtype in (((32, 4096, 128), BF16), ((128, 2048, 64), FP16)):
        yield retention_chunks, f"{b}x{n}x{d} {_name(dtype)}", tuple(tensor(b, n, d, dtype=dtype) for _ in range(3))
    for (m, k, n), dtype in (((4096, 1024, 1024), BF16), ((65536, 256, 256), FP16)):
        args = (tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype), tensor(m, n, dtype=dtype))
        yield bilinear_scores, f"{m}x{k}x{n} {_name(dtype)}", args
