"""Row kernels with other names, types, masks and loops, for ``benchmarks/row_census.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import helion.language as hl

FP8_LARGEST, FP4_LARGEST = 448.0, 6.0


def t5_norm(hidden_states: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty_like(hidden_states)
    for tile in hl.tile(hidden_states.size(0)):
        h = hidden_states[tile, :].to(torch.float32)
        variance = h.pow(2).mean(-1, keepdim=True)
        h = h * torch.rsqrt(variance + eps)
        out[tile, :] = weight[:][None, :] * h.to(hidden_states.dtype)
    return out


def norm_of_loops(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    y = torch.empty_like(x)
    for i in hl.tile(m):
        s = hl.zeros([i], dtype=torch.float32)
        for j in hl.tile(n):
            s += x[i, j].to(torch.float32).sum(1)
        mu = s / n
        v = hl.zeros([i], dtype=torch.float32)
        for j in hl.tile(n):
            d = x[i, j].to(torch.float32) - mu[:, None]
            v += (d * d).sum(1)
        r = torch.rsqrt(v / n + 1e-5)
        for j in hl.tile(n):
            y[i, j] = ((x[i, j].to(torch.float32) - mu[:, None]) * r[:, None] * w[j] + b[j]).to(y.dtype)
    return y


def welford_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty_like(x)
    for tile_m in hl.tile(m):
        count = torch.zeros_like(x[tile_m, 0], dtype=torch.float32)
        mean = torch.zeros_like(count)
        m2 = torch.zeros_like(count)
        for tile_n in hl.tile(n):
            chunk = x[tile_m, tile_n]
            size = chunk.size(-1)
            sum_x = torch.sum(chunk, dim=-1)
            mean_c = sum_x / size
            m2_c = torch.sum(chunk * chunk, dim=-1) - sum_x * sum_x / size
            delta = mean_c - mean
            new_count = count + size
            mean = mean + delta * (size / new_count)
            m2 = m2 + m2_c + delta * delta * (count * size / new_count)
            count = new_count
        rstd = torch.rsqrt(m2 / count + 1e-5)
        for tile_n in hl.tile(n):
            out[tile_m, tile_n] = ((x[tile_m, tile_n].float() - mean[:, None]) * rstd[:, None] * w[tile_n]).to(x.dtype)
    return out


def attention_scores(scores: torch.Tensor, lengths: torch.Tensor, scale: float) -> torch.Tensor:
    m, n = scores.size()
    probs = torch.empty_like(scores)
    for tile in hl.tile(m):
        s = scores[tile, :].to(torch.float32) * scale
        visible = hl.arange(n)[None, :] < lengths[tile][:, None]
        s = torch.where(visible, s, float("-inf"))
        s = s - s.amax(-1, keepdim=True)
        e = torch.exp(s)
        probs[tile, :] = (e / e.sum(-1, keepdim=True)).to(probs.dtype)
    return probs


def softmax_with_bias(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        y[tile, :] = torch.nn.functional.softmax(x[tile, :].float() + bias[tile, :].float(), dim=1).to(y.dtype)
    return y


def log_softmax_into(x: torch.Tensor, out: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.nn.functional.log_softmax(x[tile, :].to(torch.float32), dim=-1)


def sparsemax_gap(x: torch.Tensor) -> torch.Tensor:
    """Return the largest minus the mean of what exceeds the mean."""
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].float()
        mean = row.mean(-1)
        above = row > mean[:, None]
        out[tile] = row.amax(-1) - torch.where(above, row, 0.0).sum(-1) / above.to(torch.float32).sum(-1)
    return out


def temperature_cross_entropy(logits: torch.Tensor, targets: torch.Tensor, temperature: float) -> torch.Tensor:
    n, v = logits.shape
    losses = torch.empty([n], dtype=torch.float32, device=logits.device)
    flat = logits.view(-1)
    for t in hl.tile(n):
        lse = torch.logsumexp(logits[t, :].to(torch.float32) / temperature, dim=-1)
        target = hl.load(flat, [t.index * v + targets[t]]).to(torch.float32) / temperature
        losses[t] = lse - target
    return losses


def softcapped_loss(logits: torch.Tensor, labels: torch.Tensor, cap: float) -> torch.Tensor:
    n, v = logits.shape
    out = torch.empty([n], dtype=torch.float32, device=logits.device)
    for t in hl.tile(n):
        x = cap * torch.tanh(logits[t, :].to(torch.float32) / cap)
        hit = torch.arange(v, device=logits.device)[None, :] == labels[t][:, None]
        out[t] = torch.logsumexp(x, -1) - torch.where(hit, x, 0.0).sum(-1)
    return out


def z_loss_only(logits: torch.Tensor, weight: float) -> torch.Tensor:
    out = torch.empty([logits.size(0)], dtype=torch.float32, device=logits.device)
    for t in hl.tile(logits.size(0)):
        lse = torch.logsumexp(logits[t, :].to(torch.float32), -1)
        out[t] = weight * lse * lse
    return out


def label_smoothing_gradient(logits: torch.Tensor, labels: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    n, v = logits.shape
    grad = torch.empty_like(logits)
    for t in hl.tile(n):
        row = logits[t, :].float()
        p = torch.exp(row - torch.logsumexp(row, -1)[:, None])
        hit = (hl.arange(v)[None, :] == labels[t][:, None]).to(torch.float32)
        grad[t, :] = ((p - 0.9 * hit - 0.1 / v) * lse[t][:, None]).to(grad.dtype)
    return grad


def reverse_kl(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    out = torch.empty([student.size(0)], dtype=torch.float32, device=student.device)
    for t in hl.tile(student.size(0)):
        s = torch.log_softmax(student[t, :].float(), -1)
        q = torch.log_softmax(teacher[t, :].float(), -1)
        out[t] = (torch.exp(s) * (s - q)).sum(-1)
    return out


def hinge_rows(x: torch.Tensor, y: torch.Tensor, margin: float) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for t in hl.tile(x.size(0)):
        out[t] = torch.clamp(margin - x[t, :].float() * y[t, :].float(), min=0.0).mean(-1)
    return out


def ratio_clipped(new: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    out = torch.empty([new.size(0)], dtype=torch.float32, device=new.device)
    for t in hl.tile(new.size(0)):
        ratio = torch.exp(new[t, :].float() - old[t, :].float())
        a = advantage[t][:, None]
        out[t] = -torch.minimum(ratio * a, torch.clamp(ratio, 0.8, 1.2) * a).mean(-1)
    return out


def entropy_of_logits(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for t in hl.tile(x.size(0)):
        row = x[t, :].float()
        lse = torch.logsumexp(row, -1)
        out[t] = lse - (torch.exp(row - lse[:, None]) * row).sum(-1)
    return out


def perplexity_parts(x: torch.Tensor, top: torch.Tensor, total: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        row = x[t, :].float()
        best = row.amax(-1)
        top[t] = best
        total[t] = torch.exp(row - best[:, None]).sum(-1)


def fp8_per_token(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    m, n = x.shape
    q = torch.empty([m, n], dtype=torch.float8_e4m3fn, device=x.device)
    s = torch.empty([m, 1], dtype=torch.float32, device=x.device)
    for t in hl.tile(m):
        row = x[t, :].to(torch.float32)
        amax = row.abs().amax(-1, keepdim=True).clamp(min=1e-12)
        s[t, :] = amax / FP8_LARGEST
        q[t, :] = (row * (FP8_LARGEST / amax)).clamp(-FP8_LARGEST, FP8_LARGEST).to(torch.float8_e4m3fn)
    return q, s


def int8_per_token(x: torch.Tensor, low: torch.Tensor, scale: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        row = x[t, :].float()
        step = row.abs().amax(-1) / 127.0
        scale[t] = step
        low[t, :] = torch.round(row / step[:, None]).clamp(-128, 127).to(torch.int8)


def fp8_groups_of_powers(x: torch.Tensor, low: torch.Tensor, scale: torch.Tensor) -> None:
    m, n = x.size()
    for t in hl.tile(m):
        groups = x[t, :].float().reshape(t, n // 128, 128)
        largest = groups.abs().amax(-1).clamp(min=1e-10)
        step = torch.exp2(torch.ceil(torch.log2(largest / FP8_LARGEST)))
        scale[t, :] = step
        low[t, :] = (groups / step[:, :, None]).reshape(t, n).to(torch.float8_e4m3fn)


def norm_and_groups(x: torch.Tensor, w: torch.Tensor, low: torch.Tensor, scale: torch.Tensor) -> None:
    m, n = x.size()
    for t in hl.tile(m):
        row = x[t, :].float()
        normed = row * torch.rsqrt((row * row).mean(-1) + 1e-6)[:, None] * w[:].float()
        groups = normed.reshape(t, n // 128, 128)
        step = groups.abs().amax(-1).clamp(min=1e-10) / FP8_LARGEST
        scale[t, :] = step
        low[t, :] = (groups / step[:, :, None]).reshape(t, n).to(torch.float8_e4m3fn)


def silu_and_mul_quantized(gate: torch.Tensor, up: torch.Tensor, low: torch.Tensor, scale: torch.Tensor) -> None:
    for t in hl.tile(gate.size(0)):
        h = torch.nn.functional.silu(gate[t, :].float()) * up[t, :].float()
        step = torch.clamp(h.abs().amax(-1), min=1e-10) / FP8_LARGEST
        scale[t] = step
        low[t, :] = (h / step[:, None]).to(torch.float8_e4m3fn)


def double_norm(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        row = x[t, :].float()
        first = row * torch.rsqrt((row * row).mean(-1, keepdim=True) + 1e-6) * w[:].float()
        gated = torch.tanh(first)
        out[t, :] = (gated * torch.rsqrt((gated * gated).mean(-1, keepdim=True) + 1e-6) * v[:].float()).to(out.dtype)
    return out


def centred_softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        row = x[t, :].float()
        spread = torch.sqrt(((row - row.mean(-1, keepdim=True)) ** 2).mean(-1, keepdim=True) + 1e-6)
        out[t, :] = torch.softmax((row - row.mean(-1, keepdim=True)) / spread, -1).to(out.dtype)
    return out


def residual_scaled_norm(x: torch.Tensor, residual: torch.Tensor, gamma: torch.Tensor, alpha: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        h = x[t, :] * alpha + residual[t, :]
        residual[t, :] = h
        f = h.to(torch.float32)
        out[t, :] = (f * torch.rsqrt(torch.sum(f * f, dim=1) / x.size(1) + 1e-6)[:, None] * (1.0 + gamma[:])).to(
            out.dtype
        )
    return out


def instance_norm_of_images(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    b, c, _hw = x.size()
    out = torch.empty_like(x)
    for tile_b, tile_c in hl.tile([b, c]):
        v = x[tile_b, tile_c, :].to(torch.float32)
        mean = v.mean(-1, keepdim=True)
        var = ((v - mean) ** 2).mean(-1, keepdim=True)
        out[tile_b, tile_c, :] = ((v - mean) * torch.rsqrt(var + 1e-5) * weight[tile_c][None, :, None]).to(out.dtype)
    return out


def norm_of_last_axis(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    b, s, _d = x.size()
    out = torch.empty_like(x)
    for i, j in hl.tile([b, s]):
        v = x[i, j, :].float()
        out[i, j, :] = (v * torch.rsqrt((v * v).mean(-1, keepdim=True) + 1e-6) * w[None, None, :].float()).to(out.dtype)
    return out


def rows_in_a_loop(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    m, _n = x.size()
    out = torch.empty_like(x)
    for tile in hl.tile(m, block_size=1):
        v = x[tile, :].float()
        out[tile, :] = (v / (v.abs().amax(-1, keepdim=True) + 1e-6) * w[:].float()).to(out.dtype)
    return out


def one_row_at_a_time(x: torch.Tensor) -> torch.Tensor:
    m, _n = x.size()
    out = torch.empty_like(x)
    for i in hl.grid(m):
        v = x[i, :].to(torch.float32)
        out[i, :] = (v - torch.logsumexp(v, 0)).to(out.dtype)
    return out


def top_one_with_probability(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    m = x.size(0)
    where = torch.empty([m], dtype=torch.int64, device=x.device)
    share = torch.empty([m], dtype=torch.float32, device=x.device)
    for t in hl.tile(m):
        row = x[t, :].float()
        p = torch.softmax(row, -1)
        where[t] = torch.argmax(p, -1)
        share[t] = p.amax(-1)
    return where, share


def atomic_norm_gradients(x: torch.Tensor, w: torch.Tensor, grad: torch.Tensor, rstd: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    m, n = x.size()
    dx = torch.empty_like(x)
    dw = torch.zeros([n], dtype=torch.float32, device=x.device)
    for t in hl.tile(m):
        row, given, scale = x[t, :].float(), grad[t, :].float(), rstd[t][:, None]
        hat, slope = row * scale, given * w[:].float()
        dx[t, :] = (scale * (slope - hat * (slope * hat).mean(-1, keepdim=True))).to(dx.dtype)
        hl.atomic_add(dw, [hl.arange(n)], (given * hat).sum(0))
    return dx, dw


def fp4_blocks(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pairs of e2m1 codes and a scale for each 32 columns."""
    m, n = x.size()
    codes = torch.empty([m, n // 2], dtype=torch.uint8, device=x.device)
    scales = torch.empty([m, n // 32], dtype=torch.float32, device=x.device)
    for t in hl.tile(m):
        blocks = x[t, :].float().reshape(t, n // 32, 32)
        step = torch.clamp(blocks.abs().amax(-1), min=1e-12) / FP4_LARGEST
        scales[t, :] = step
        values = (blocks / step[:, :, None]).reshape(t, n)
        size = values.abs()
        code = (size > 0.25).to(torch.int32) + (size >= 0.75).to(torch.int32) + (size > 1.25).to(torch.int32)
        code = code + (size >= 1.75).to(torch.int32) + (size > 2.5).to(torch.int32) + (size >= 3.5).to(torch.int32)
        code = code + (size > 5.0).to(torch.int32) + 8 * (values < 0).to(torch.int32)
        low, high = hl.split(code.reshape(t, n // 2, 2))
        codes[t, :] = (low | (high << 4)).to(torch.uint8)
    return codes, scales


CASES: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = (
    (t5_norm, ("rows", "vector", 1e-6)),
    (norm_of_loops, ("rows", "vector", "vector")),
    (welford_norm, ("rows", "vector")),
    (attention_scores, ("rows", "label", 0.125)),
    (softmax_with_bias, ("rows", "rows")),
    (log_softmax_into, ("rows", "float rows")),
    (sparsemax_gap, ("rows",)),
    (temperature_cross_entropy, ("rows", "label", 0.7)),
    (softcapped_loss, ("rows", "label", 30.0)),
    (z_loss_only, ("rows", 1e-4)),
    (label_smoothing_gradient, ("rows", "label", "number")),
    (reverse_kl, ("rows", "rows")),
    (hinge_rows, ("rows", "rows", 1.0)),
    (ratio_clipped, ("rows", "rows", "number")),
    (entropy_of_logits, ("rows",)),
    (perplexity_parts, ("rows", "number", "number")),
    (fp8_per_token, ("rows",)),
    (int8_per_token, ("rows", "int8", "number")),
    (fp8_groups_of_powers, ("rows", "fp8", "groups")),
    (norm_and_groups, ("rows", "vector", "fp8", "groups")),
    (silu_and_mul_quantized, ("rows", "rows", "fp8", "number")),
    (double_norm, ("rows", "vector", "vector")),
    (centred_softmax, ("rows",)),
    (residual_scaled_norm, ("rows", "rows", "vector", 0.5)),
    (instance_norm_of_images, ("batches", "channels")),
    (norm_of_last_axis, ("batches", "vector")),
    (rows_in_a_loop, ("rows", "vector")),
    (one_row_at_a_time, ("rows",)),
    (top_one_with_probability, ("rows",)),
    (atomic_norm_gradients, ("rows", "vector", "rows", "number")),
    (fp4_blocks, ("rows",)),
)
"""Each kernel with its arguments: numbers, or the names of ``row_census.tensors``."""
