"""Kernels that nothing was tuned on, unlike the examples and the other kernels of the tests, at several shapes and dtypes:
what first seeds and the resource model are scored on. Tensors are on ``meta``: nothing here is run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from unseen_fields import fields
from varied_kernels import BF16, E4M3, E5M2, FP16, FP32, INT8, INT32, Varied, tensor

import helion
import helion.language as hl

INT64, UINT8 = torch.int64, torch.uint8


# --- elements ------------------------------------------------------------------------------------------------------------


@helion.kernel()
def mish_with_bias(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for row, column in hl.tile(x.size()):
        value = x[row, column].to(torch.float32) + bias[column].to(torch.float32)
        out[row, column] = (value * torch.tanh(torch.log(1.0 + torch.exp(value)))).to(x.dtype)
    return out


@helion.kernel()
def adam_step(
    weight: torch.Tensor, grad: torch.Tensor, first: torch.Tensor, second: torch.Tensor, rate: float
) -> torch.Tensor:
    for at in hl.tile(weight.size(0)):
        g = grad[at].to(torch.float32)
        m = first[at] * 0.9 + g * 0.1
        v = second[at] * 0.999 + g * g * 0.001
        first[at] = m
        second[at] = v
        weight[at] = (weight[at].to(torch.float32) - rate * m / (torch.sqrt(v) + 1e-8)).to(weight.dtype)
    return weight


@helion.kernel()
def masked_blend(x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for row, column in hl.tile(x.size()):
        share = part[row].to(torch.float32)[:, None]
        mixed = x[row, column].to(torch.float32) * share + y[row, column].to(torch.float32) * (1.0 - share)
        out[row, column] = torch.where(mask[row, column], mixed, x[row, column].to(torch.float32)).to(x.dtype)
    return out


@helion.kernel()
def swap_last_dimensions(x: torch.Tensor) -> torch.Tensor:
    b, m, n = x.size()
    out = torch.empty([b, n, m], dtype=x.dtype, device=x.device)
    for batch, i, j in hl.tile([b, m, n]):
        out[batch, j, i] = x[batch, i, j].permute(0, 2, 1)
    return out


@helion.kernel()
def to_bytes(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.size(), dtype=torch.int8, device=x.device)
    for row, column in hl.tile(x.size()):
        scaled = x[row, column].to(torch.float32) / scale[column][None, :]
        out[row, column] = torch.clamp(torch.round(scaled), -127.0, 127.0).to(torch.int8)
    return out


@helion.kernel()
def looked_up(codes: torch.Tensor, table: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Values by their number in a table of 256."""
    out = torch.empty(codes.size(), dtype=torch.bfloat16, device=codes.device)
    for row, column in hl.tile(codes.size()):
        values = hl.load(table, [codes[row, column].to(torch.int32)])
        out[row, column] = (values * scale[row][:, None]).to(torch.bfloat16)
    return out


@helion.kernel()
def mean_of_neighbours(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty([m, n - 2], dtype=x.dtype, device=x.device)
    for row, column in hl.tile([m, n - 2]):
        left = hl.load(x, [row, column.index])
        middle = hl.load(x, [row, column.index + 1])
        right = hl.load(x, [row, column.index + 2])
        total = left.to(torch.float32) + middle.to(torch.float32) + right.to(torch.float32)
        out[row, column] = (total / 3.0).to(x.dtype)
    return out


@helion.kernel()
def overlap_of_boxes(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """All pairs of boxes, four coordinates each."""
    out = torch.empty([a.size(1), b.size(1)], dtype=torch.float32, device=a.device)
    for i, j in hl.tile(out.size()):
        left = torch.maximum(a[0, i][:, None], b[0, j][None, :])
        top = torch.maximum(a[1, i][:, None], b[1, j][None, :])
        right = torch.minimum(a[2, i][:, None], b[2, j][None, :])
        bottom = torch.minimum(a[3, i][:, None], b[3, j][None, :])
        both = torch.relu(right - left) * torch.relu(bottom - top)
        area_a = (a[2, i] - a[0, i]) * (a[3, i] - a[1, i])
        area_b = (b[2, j] - b[0, j]) * (b[3, j] - b[1, j])
        out[i, j] = both / (area_a[:, None] + area_b[None, :] - both)
    return out


@helion.kernel()
def rotated_halves(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """``[tokens, heads, 2, half]``: the halves of each head are turned."""
    t, h, _, d = x.size()
    d = hl.specialize(d)
    out = torch.empty_like(x)
    for token, head in hl.tile([t, h]):
        c, s = cosine[token, :].to(torch.float32)[:, None, :], sine[token, :].to(torch.float32)[:, None, :]
        a, b = x[token, head, 0, :].to(torch.float32), x[token, head, 1, :].to(torch.float32)
        out[token, head, 0, :] = (a * c - b * s).to(x.dtype)
        out[token, head, 1, :] = (a * s + b * c).to(x.dtype)
    return out


@helion.kernel()
def clipped_gate(x: torch.Tensor) -> torch.Tensor:
    """Both halves of a row: one gates the other."""
    m, n = x.size(0), x.size(2)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for row, column in hl.tile([m, n]):
        gate = torch.clamp(x[row, 0, column].to(torch.float32), max=7.0)
        up = torch.clamp(x[row, 1, column].to(torch.float32), -7.0, 7.0)
        out[row, column] = ((up + 1.0) * gate * torch.sigmoid(1.702 * gate)).to(x.dtype)
    return out


# --- rows ----------------------------------------------------------------------------------------------------------------


@helion.kernel()
def between_extremes(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for row in hl.tile(x.size(0)):
        values = x[row, :].to(torch.float32)
        low = values.amin(-1, keepdim=True)
        high = values.amax(-1, keepdim=True)
        out[row, :] = ((values - low) / (high - low + 1e-6)).to(x.dtype)
    return out


@helion.kernel()
def entropy(logits: torch.Tensor) -> torch.Tensor:
    out = torch.empty([logits.size(0)], dtype=torch.float32, device=logits.device)
    for row in hl.tile(logits.size(0)):
        values = logits[row, :].to(torch.float32)
        shifted = values - values.amax(-1, keepdim=True)
        weights = torch.exp(shifted)
        total = weights.sum(-1)
        out[row] = torch.log(total) - (weights * shifted).sum(-1) / total
    return out


@helion.kernel()
def log_cosh_loss(prediction: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    m = prediction.size(0)
    out = torch.empty([m], dtype=torch.float32, device=prediction.device)
    for row in hl.tile(m):
        apart = prediction[row, :].to(torch.float32) - truth[row, :].to(torch.float32)
        out[row] = (apart + torch.log(0.5 + 0.5 * torch.exp(-2.0 * apart))).mean(-1)
    return out


@helion.kernel()
def second_largest(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for row in hl.tile(m):
        values = x[row, :].to(torch.float32)
        best = torch.argmax(values, dim=-1)
        rest = torch.where(hl.arange(n)[None, :] == best[:, None], float("-inf"), values)
        out[row] = rest.amax(-1)
    return out


@helion.kernel()
def softmax_of_prefix(x: torch.Tensor, lengths: torch.Tensor, temperature: float) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty_like(x)
    for row in hl.tile(m):
        inside = hl.arange(n)[None, :] < lengths[row][:, None]
        values = torch.where(inside, x[row, :].to(torch.float32) / temperature, -1e30)
        weights = torch.exp(values - values.amax(-1, keepdim=True))
        out[row, :] = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
    return out


@helion.kernel()
def normed_twice(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Three reductions one behind another, and a residual between them."""
    out = torch.empty_like(x)
    for row in hl.tile(x.size(0)):
        a = x[row, :].to(torch.float32)
        a = a * torch.rsqrt((a * a).mean(-1, keepdim=True) + 1e-6) * w[:].to(torch.float32)
        b = a + y[row, :].to(torch.float32)
        mean = b.mean(-1, keepdim=True)
        centred = b - mean
        scale = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-6)
        out[row, :] = (centred * scale * v[:].to(torch.float32)).to(x.dtype)
    return out


@helion.kernel()
def hinge_loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    m, n = scores.size()
    out = torch.empty([m], dtype=torch.float32, device=scores.device)
    flat = scores.view(-1)
    for row in hl.tile(m):
        values = scores[row, :].to(torch.float32)
        label = labels[row]
        right = hl.load(flat, [row.index * n + label]).to(torch.float32)
        margin = torch.relu(values - right[:, None] + 1.0)
        other = hl.arange(n)[None, :] != label[:, None]
        out[row] = torch.where(other, margin, 0.0).sum(-1)
    return out


@helion.kernel()
def triplet_margin(anchor: torch.Tensor, near: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
    out = torch.empty([anchor.size(0)], dtype=torch.float32, device=anchor.device)
    for row in hl.tile(anchor.size(0)):
        a = anchor[row, :].to(torch.float32)
        p = a - near[row, :].to(torch.float32)
        n = a - far[row, :].to(torch.float32)
        out[row] = torch.relu(torch.sqrt((p * p).sum(-1)) - torch.sqrt((n * n).sum(-1)) + 0.5)
    return out


@helion.kernel()
def weighted_variance(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for row in hl.tile(x.size(0)):
        values = x[row, :].to(torch.float32)
        w = weight[row, :].to(torch.float32)
        total = w.sum(-1, keepdim=True)
        mean = (values * w).sum(-1, keepdim=True) / total
        apart = values - mean
        out[row] = (apart * apart * w).sum(-1) / total[:, 0]
    return out


@helion.kernel()
def instance_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    b, c = x.size(0), x.size(1)
    out = torch.empty_like(x)
    for batch, channel in hl.tile([b, c]):
        values = x[batch, channel, :].to(torch.float32)
        mean = values.mean(-1, keepdim=True)
        centred = values - mean
        scale = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)
        out[batch, channel, :] = (centred * scale * weight[channel].to(torch.float32)[None, :, None]).to(x.dtype)
    return out


@helion.kernel()
def softmax_of_columns(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for column in hl.tile(x.size(1)):
        values = x[:, column].to(torch.float32)
        weights = torch.exp(values - values.amax(0, keepdim=True))
        out[:, column] = (weights / weights.sum(0, keepdim=True)).to(x.dtype)
    return out


@helion.kernel()
def column_moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    m, n = x.size()
    mean = torch.empty([n], dtype=torch.float32, device=x.device)
    variance = torch.empty([n], dtype=torch.float32, device=x.device)
    for column in hl.tile(n):
        total = hl.zeros([column], dtype=torch.float32)
        squares = hl.zeros([column], dtype=torch.float32)
        for row in hl.tile(m):
            values = x[row, column].to(torch.float32)
            total = total + values.sum(0)
            squares = squares + (values * values).sum(0)
        mean[column] = total / m
        variance[column] = squares / m - (total / m) * (total / m)
    return mean, variance


@helion.kernel()
def column_sums_by_atomics(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    for row, column in hl.tile(x.size()):
        hl.atomic_add(out, [column], x[row, column].to(torch.float32).sum(0))
    return out


@helion.kernel()
def sinkhorn_step(cost: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    m, n = cost.size()
    out = torch.empty([m], dtype=torch.float32, device=cost.device)
    for row in hl.tile(m):
        top = hl.full([row], float("-inf"), dtype=torch.float32)
        total = hl.zeros([row], dtype=torch.float32)
        for column in hl.tile(n):
            values = v[column][None, :] - cost[row, column].to(torch.float32) * 10.0
            peak = torch.maximum(top, values.amax(-1))
            total = total * torch.exp(top - peak) + torch.exp(values - peak[:, None]).sum(-1)
            top = peak
        out[row] = -(top + torch.log(total))
    return out


@helion.kernel()
def mean_over_time(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    b, t, d = x.size()
    out = torch.empty([b, d], dtype=x.dtype, device=x.device)
    for batch, feature in hl.tile([b, d]):
        acc = hl.zeros([batch, feature], dtype=torch.float32)
        count = hl.zeros([batch], dtype=torch.float32)
        for step in hl.tile(t):
            here = mask[batch, step].to(torch.float32)
            acc = acc + (x[batch, step, feature].to(torch.float32) * here[:, :, None]).sum(1)
            count = count + here.sum(1)
        out[batch, feature] = (acc / (count[:, None] + 1e-6)).to(x.dtype)
    return out


@helion.kernel()
def dropped_softmax(x: torch.Tensor, seed: int) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty_like(x)
    for row in hl.tile(m):
        values = x[row, :].to(torch.float32)
        weights = torch.exp(values - values.amax(-1, keepdim=True))
        weights = weights / weights.sum(-1, keepdim=True)
        out[row, :] = torch.where(hl.rand([row, n], seed=seed) > 0.1, weights / 0.9, 0.0).to(x.dtype)
    return out


@helion.kernel()
def grouped_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A scale for every 128 neighbours."""
    m, n = x.size()
    groups = n // 128
    out = torch.empty([m, groups, 128], dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty([m, groups], dtype=torch.float32, device=x.device)
    parts = x.view(m, groups, 128)
    for row, group in hl.tile([m, groups]):
        values = parts[row, group, :].to(torch.float32)
        scale = torch.clamp(values.abs().amax(-1), min=1e-6) / 448.0
        scales[row, group] = scale
        out[row, group, :] = (values / scale[:, :, None]).to(torch.float8_e4m3fn)
    return out, scales


@helion.kernel()
def smoothed_loss_gradient(logits: torch.Tensor, labels: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    m, n = logits.size()
    out = torch.empty_like(logits)
    for row in hl.tile(m):
        values = logits[row, :].to(torch.float32)
        weights = torch.exp(values - values.amax(-1, keepdim=True))
        p = weights / weights.sum(-1, keepdim=True)
        hit = hl.arange(n)[None, :] == labels[row][:, None]
        out[row, :] = ((p - torch.where(hit, 0.9, 0.0) - 0.1 / n) * scale[row][:, None]).to(logits.dtype)
    return out


@helion.kernel()
def normed_heads(x: torch.Tensor, weight: torch.Tensor, cosine: torch.Tensor) -> torch.Tensor:
    t, h, d = x.size()
    d = hl.specialize(d)
    out = torch.empty_like(x)
    for token, head in hl.tile([t, h]):
        values = x[token, head, :].to(torch.float32)
        values = values * torch.rsqrt((values * values).mean(-1, keepdim=True) + 1e-6) * weight[:].to(torch.float32)
        out[token, head, :] = (values * cosine[token, :].to(torch.float32)[:, None, :]).to(x.dtype)
    return out


@helion.kernel()
def norm_backward_of_rows(grad: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for row in hl.tile(x.size(0)):
        normed = (x[row, :].to(torch.float32) - mean[row][:, None]) * scale[row][:, None]
        g = grad[row, :].to(torch.float32)
        first = g.mean(-1, keepdim=True)
        second = (g * normed).mean(-1, keepdim=True)
        out[row, :] = ((g - first - normed * second) * scale[row][:, None]).to(x.dtype)
    return out


@helion.kernel()
def matrix_vector(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    m, n = w.size()
    out = torch.empty([m], dtype=torch.float32, device=w.device)
    for row in hl.tile(m):
        acc = hl.zeros([row], dtype=torch.float32)
        for column in hl.tile(n):
            acc = acc + (w[row, column].to(torch.float32) * x[column].to(torch.float32)[None, :]).sum(-1)
        out[row] = acc
    return out


# --- scans, gathers, scatters --------------------------------------------------------------------------------------------


def _log_add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    top = torch.maximum(a, b)
    return top + torch.log(torch.exp(a - top) + torch.exp(b - top))


@helion.kernel()
def running_log_sum(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for row in hl.tile(x.size(0)):
        out[row, :] = hl.associative_scan(_log_add, x[row, :].to(torch.float32), dim=1).to(x.dtype)
    return out


def _decay(a: Any, b: Any, c: Any, d: Any) -> Any:
    return a * c, b * c + d


@helion.kernel()
def moving_average(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Along rows, each with a factor of its own."""
    out = torch.empty_like(x)
    for row in hl.tile(x.size(0)):
        values = x[row, :].to(torch.float32)
        factors = keep[row][:, None] + values * 0.0
        _, state = hl.associative_scan(_decay, (factors, values * (1.0 - factors)), dim=1)
        out[row, :] = state.to(x.dtype)
    return out


@helion.kernel()
def picked_columns(x: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    out = torch.empty(columns.size(), dtype=x.dtype, device=x.device)
    for row, column in hl.tile(columns.size()):
        out[row, column] = hl.load(x, [row.index[:, None], columns[row, column]])
    return out


@helion.kernel()
def written_rows(x: torch.Tensor, to: torch.Tensor, scale: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    for row, column in hl.tile(x.size()):
        values = x[row, column].to(torch.float32) * scale[row][:, None]
        hl.store(out, [to[row], column], values.to(out.dtype))
    return out


@helion.kernel()
def combined_tokens(x: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Each token adds up what several experts made of it."""
    t, k = rows.size()
    k = hl.specialize(k)
    out = torch.empty([t, x.size(1)], dtype=x.dtype, device=x.device)
    for token, feature in hl.tile(out.size()):
        acc = hl.zeros([token, feature], dtype=torch.float32)
        for at in hl.static_range(k):
            acc = acc + hl.load(x, [rows[token, at], feature]).to(torch.float32) * weight[token, at][:, None]
        out[token, feature] = acc.to(x.dtype)
    return out


@helion.kernel()
def weighted_counts(ids: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    for at in hl.tile(ids.size(0)):
        hl.atomic_add(out, [ids[at]], weight[at])
    return out


@helion.kernel()
def embedded_and_normed(ids: torch.Tensor, table: torch.Tensor, places: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    n = table.size(1)
    out = torch.empty([ids.size(0), n], dtype=table.dtype, device=table.device)
    for token in hl.tile(ids.size(0)):
        values = hl.load(table, [ids[token], hl.arange(n)]).to(torch.float32) + places[token, :].to(torch.float32)
        scale = torch.rsqrt((values * values).mean(-1, keepdim=True) + 1e-6)
        out[token, :] = (values * scale * w[:].to(torch.float32)).to(table.dtype)
    return out


@helion.kernel()
def greatest_of_segments(x: torch.Tensor, segment: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    for row, column in hl.tile(x.size()):
        hl.atomic_max(out, [segment[row], column], x[row, column])
    return out


@helion.kernel()
def causal_taps(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """A short filter of each channel's own, along time."""
    b, t, c = x.size()
    width = hl.specialize(taps.size(0))
    out = torch.empty_like(x)
    for batch, step, channel in hl.tile([b, t, c], block_size=[1, None, None]):
        acc = hl.zeros([step, channel], dtype=torch.float32)
        for tap in hl.static_range(width):
            at = step.index - (width - 1 - tap)
            values = hl.load(x, [batch.begin, at, channel], extra_mask=(at >= 0)[:, None])
            acc = acc + values.to(torch.float32) * taps[tap, channel].to(torch.float32)[None, :]
        out[batch.begin, step, channel] = (acc * torch.sigmoid(acc)).to(x.dtype)
    return out


# --- products ------------------------------------------------------------------------------------------------------------


@helion.kernel()
def scaled_and_added(x: torch.Tensor, y: torch.Tensor, c: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    """Both operands contiguous along K."""
    m, k = x.size()
    n = y.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = torch.addmm(acc, x[i, d], y[j, d].T)
        out[i, j] = (alpha * acc + beta * c[i, j].to(torch.float32)).to(x.dtype)
    return out


@helion.kernel()
def weight_and_bias_gradients(x: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    k, m = x.size()
    n = grad.size(1)
    weight = torch.empty([m, n], dtype=torch.float32, device=x.device)
    bias = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        total = hl.zeros([j], dtype=torch.float32)
        for d in hl.tile(k):
            g = grad[d, j]
            acc = torch.addmm(acc, x[d, i].T, g)
            total = total + g.to(torch.float32).sum(0)
        weight[i, j] = acc
        bias[i, j] = acc * 0.0 + total[None, :]
    return weight, bias


@helion.kernel()
def dropped_product(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, seed: int) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = torch.addmm(acc, x[i, d], y[d, j])
        kept = hl.rand([i, j], seed=seed) > 0.2
        out[i, j] = torch.where(kept, (acc + bias[j].to(torch.float32)) * 1.25, 0.0).to(x.dtype)
    return out


@helion.kernel()
def bytes_to_bytes(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, scale: float) -> torch.Tensor:
    """An int8 product that is rounded to int8 again."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=torch.int8, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.int32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], y[d, j], acc=acc)
        values = (acc + bias[j][None, :]).to(torch.float32) * scale
        out[i, j] = torch.clamp(torch.round(values), -128.0, 127.0).to(torch.int8)
    return out


@helion.kernel()
def fp8_to_fp8(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], y[d, j], acc=acc)
        values = acc + bias[j].to(torch.float32)
        out[i, j] = (0.5 * values * (1.0 + torch.erf(values * 0.70710678))).to(x.dtype)
    return out


@helion.kernel()
def fp8_weights(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
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
def causal_scores(q: torch.Tensor, k: torch.Tensor, scale: float) -> torch.Tensor:
    b, m, d = q.size()
    n = k.size(1)
    out = torch.empty([b, m, n], dtype=q.dtype, device=q.device)
    for batch, i, j in hl.tile([b, m, n]):
        acc = hl.zeros([batch, i, j], dtype=torch.float32)
        for at in hl.tile(d):
            acc = torch.baddbmm(acc, q[batch, i, at], k[batch, j, at].transpose(1, 2))
        visible = i.index[None, :, None] >= j.index[None, None, :]
        out[batch, i, j] = torch.where(visible, acc * scale, -1e9).to(q.dtype)
    return out


@helion.kernel()
def one_weight_for_all(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    b, m, k = x.size()
    n = w.size(1)
    out = torch.empty([b, m, n], dtype=x.dtype, device=x.device)
    for batch, i, j in hl.tile([b, m, n], block_size=[1, None, None]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = torch.addmm(acc, x[batch.begin, i, d], w[d, j])
        out[batch.begin, i, j] = acc.to(x.dtype)
    return out


@helion.kernel()
def nearest_centres(x: torch.Tensor, centres: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
    """The number of the nearest centre, over tiles of them."""
    m, d = x.size()
    d = hl.specialize(d)
    out = torch.empty([m], dtype=torch.int64, device=x.device)
    for i in hl.tile(m):
        rows = x[i, :]
        best = hl.full([i], float("inf"), dtype=torch.float32)
        number = hl.zeros([i], dtype=torch.int64)
        for j in hl.tile(centres.size(0)):
            apart = squares[j][None, :] - 2.0 * hl.dot(rows, centres[j, :].T)
            least = apart.amin(-1)
            at = torch.argmin(apart, dim=-1) + j.begin
            number = torch.where(least < best, at, number)
            best = torch.minimum(least, best)
        out[i] = number
    return out


@helion.kernel()
def log_sum_of_vocabulary(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The loss's normaliser, without its logits in memory."""
    m, k = x.size()
    n = w.size(1)
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for i in hl.tile(m):
        top = hl.full([i], float("-inf"), dtype=torch.float32)
        total = hl.zeros([i], dtype=torch.float32)
        for j in hl.tile(n):
            acc = hl.zeros([i, j], dtype=torch.float32)
            for d in hl.tile(k):
                acc = torch.addmm(acc, x[i, d], w[d, j])
            peak = torch.maximum(top, acc.amax(-1))
            total = total * torch.exp(top - peak) + torch.exp(acc - peak[:, None]).sum(-1)
            top = peak
        out[i] = top + torch.log(total)
    return out


@helion.kernel()
def product_to_bytes(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole rows of a product, scaled to int8 by their greatest value."""
    m, k = x.size()
    n = hl.specialize(y.size(1))
    out = torch.empty([m, n], dtype=torch.int8, device=x.device)
    scales = torch.empty([m], dtype=torch.float32, device=x.device)
    for i in hl.tile(m):
        acc = hl.zeros([i, n], dtype=torch.float32)
        for d in hl.tile(k):
            acc = torch.addmm(acc, x[i, d], y[d, :])
        scale = acc.abs().amax(-1) / 127.0
        scales[i] = scale
        out[i, :] = torch.round(acc / scale[:, None]).to(torch.int8)
    return out, scales


@helion.kernel()
def biased_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """Scores fall with the distance of positions."""
    b, m, d = q.size()
    n, d = k.size(1), hl.specialize(d)
    out = torch.empty_like(q)
    for batch, i in hl.tile([b, m], block_size=[1, None]):
        rows = q[batch.begin, i, :]
        top = hl.full([i], float("-inf"), dtype=torch.float32)
        total = hl.full([i], 1.0, dtype=torch.float32)
        acc = hl.zeros([i, d], dtype=torch.float32)
        steep = slope[batch.begin]
        for j in hl.tile(n):
            scores = torch.mm(rows, k[batch.begin, j, :].T).to(torch.float32)
            far = (i.index[:, None] - j.index[None, :]).abs().to(torch.float32)
            scores = scores * 0.125 - far * steep
            peak = torch.maximum(top, scores.amax(-1))
            p = torch.exp2(scores - peak[:, None])
            fade = torch.exp2(top - peak)
            total = total * fade + p.sum(-1)
            acc = torch.addmm(acc * fade[:, None], p.to(v.dtype), v[batch.begin, j, :])
            top = peak
        out[batch.begin, i, :] = (acc / total[:, None]).to(q.dtype)
    return out


@helion.kernel()
def windowed_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    """Several query heads share one of the keys; positions see few before them."""
    g, h, m, d = q.size()
    n, d = k.size(1), hl.specialize(d)
    out = torch.empty_like(q)
    for group, head, i in hl.tile([g, h, m], block_size=[1, 1, None]):
        rows = q[group.begin, head.begin, i, :]
        top = hl.full([i], -1e30, dtype=torch.float32)
        total = hl.full([i], 1.0, dtype=torch.float32)
        acc = hl.zeros([i, d], dtype=torch.float32)
        for j in hl.tile(n):
            scores = hl.dot(rows, k[group.begin, j, :].T) * 0.1
            back = i.index[:, None] - j.index[None, :]
            scores = torch.where((back >= 0) & (back < window), scores, -1e30)
            peak = torch.maximum(top, scores.amax(-1))
            p = torch.exp2(scores - peak[:, None])
            fade = torch.exp2(top - peak)
            total = total * fade + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[group.begin, j, :], acc=acc * fade[:, None])
            top = peak
        out[group.begin, head.begin, i, :] = (acc / total[:, None]).to(q.dtype)
    return out


@helion.kernel()
def decoded_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One token of several query heads against a cache that they share."""
    b, h, d = q.size()
    n, h, d = k.size(1), hl.specialize(h), hl.specialize(d)
    out = torch.empty_like(q)
    for batch in hl.tile(b, block_size=1):
        rows = q[batch.begin, :, :]
        top = hl.full([h], float("-inf"), dtype=torch.float32)
        total = hl.zeros([h], dtype=torch.float32)
        acc = hl.zeros([h, d], dtype=torch.float32)
        for j in hl.tile(n):
            scores = hl.dot(rows, k[batch.begin, j, :].T) * 0.1
            peak = torch.maximum(top, scores.amax(-1))
            p = torch.exp2(scores - peak[:, None])
            fade = torch.exp2(top - peak)
            total = total * fade + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[batch.begin, j, :], acc=acc * fade[:, None])
            top = peak
        out[batch.begin, :, :] = (acc / total[:, None]).to(q.dtype)
    return out


@helion.kernel()
def sigmoid_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """No row sums; keys beyond a length of each batch's own are left out."""
    b, m, d = q.size()
    n, d = k.size(1), hl.specialize(d)
    out = torch.empty_like(q)
    for batch, i in hl.tile([b, m], block_size=[1, None]):
        rows = q[batch.begin, i, :]
        acc = hl.zeros([i, d], dtype=torch.float32)
        length = lengths[batch.begin]
        for j in hl.tile(n):
            p = torch.sigmoid(hl.dot(rows, k[batch.begin, j, :].T) * 0.1 - 4.0)
            p = torch.where((j.index < length)[None, :], p, 0.0)
            acc = hl.dot(p.to(v.dtype), v[batch.begin, j, :], acc=acc)
        out[batch.begin, i, :] = acc.to(q.dtype)
    return out


@helion.kernel()
def narrow_mlp(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Two layers at once: the hidden one is walked in tiles."""
    m, k = x.size()
    k, n = hl.specialize(k), hl.specialize(down.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i in hl.tile(m):
        rows = x[i, :]
        acc = hl.zeros([i, n], dtype=torch.float32)
        for j in hl.tile(up.size(1)):
            hidden = torch.relu(torch.mm(rows, up[:, j]).to(torch.float32))
            acc = torch.addmm(acc, (hidden * hidden).to(x.dtype), down[j, :])
        out[i, :] = acc.to(x.dtype)
    return out


@helion.kernel()
def batch_of_outer_products(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Sums along a batch that is split over programs."""
    b, m = x.size()
    n = y.size(1)
    for i, j, part in hl.tile([m, n, b], block_size=[None, None, 4096]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for at in hl.tile(part.begin, part.end):
            acc = torch.addmm(acc, x[at, i].T, y[at, j])
        hl.atomic_add(out, [i, j], acc)
    return out


@helion.kernel()
def bottleneck(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Down to a few columns, and up again."""
    m, k = x.size()
    n, r = b.size(1), hl.specialize(a.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i in hl.tile(m):
        low = hl.zeros([i, r], dtype=torch.float32)
        for d in hl.tile(k):
            low = torch.addmm(low, x[i, d], a[d, :])
        narrow = torch.tanh(low).to(x.dtype)
        for j in hl.tile(n):
            out[i, j] = torch.mm(narrow, b[:, j]).to(x.dtype)
    return out


@helion.kernel()
def filter_of_three(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A convolution along time: three products of shifted rows."""
    t, c = x.size()
    n = w.size(2)
    out = torch.empty([t - 2, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([t - 2, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(c):
            for tap in hl.static_range(3):
                acc = hl.dot(hl.load(x, [i.index + tap, d]), w[tap, d, j], acc=acc)
        out[i, j] = acc.to(x.dtype)
    return out


@helion.kernel()
def complex_product(
    ar: torch.Tensor, ai: torch.Tensor, br: torch.Tensor, bi: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    m, k = ar.size()
    n = br.size(1)
    real = torch.empty([m, n], dtype=ar.dtype, device=ar.device)
    imaginary = torch.empty([m, n], dtype=ar.dtype, device=ar.device)
    for i, j in hl.tile([m, n]):
        plus = hl.zeros([i, j], dtype=torch.float32)
        minus = hl.zeros([i, j], dtype=torch.float32)
        cross = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            left, right, below, beside = ar[i, d], br[d, j], ai[i, d], bi[d, j]
            plus = hl.dot(left, right, acc=plus)
            minus = hl.dot(below, beside, acc=minus)
            cross = hl.dot(left, beside, acc=cross)
            cross = hl.dot(below, right, acc=cross)
        real[i, j] = (plus - minus).to(ar.dtype)
        imaginary[i, j] = cross.to(ar.dtype)
    return real, imaginary


@helion.kernel()
def experts_with_room(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Each expert has room for as many tokens."""
    e, m, k = x.size()
    n = w.size(1)
    out = torch.empty([e, m, n], dtype=x.dtype, device=x.device)
    for expert, i, j in hl.tile([e, m, n], block_size=[1, None, None]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = hl.dot(x[expert.begin, i, d], w[expert.begin, j, d].T, acc=acc)
        out[expert.begin, i, j] = (acc * scale[expert.begin, i][:, None]).to(x.dtype)
    return out


@helion.kernel()
def cosine_scores(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Norms of rows are summed in the same loop as their product."""
    m, k = x.size()
    n = y.size(0)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        left = hl.zeros([i], dtype=torch.float32)
        right = hl.zeros([j], dtype=torch.float32)
        for d in hl.tile(k):
            a, b = x[i, d], y[j, d]
            acc = hl.dot(a, b.T, acc=acc)
            left = left + (a.to(torch.float32) * a.to(torch.float32)).sum(-1)
            right = right + (b.to(torch.float32) * b.to(torch.float32)).sum(-1)
        out[i, j] = acc * torch.rsqrt(left + 1e-6)[:, None] * torch.rsqrt(right + 1e-6)[None, :]
    return out


@helion.kernel()
def blocks_of_bytes(x: torch.Tensor, y: torch.Tensor, x_scale: torch.Tensor, y_scale: torch.Tensor) -> torch.Tensor:
    """An int8 product with scales for every 128 of K."""
    m, k = x.size()
    n = y.size(0)
    out = torch.empty([m, n], dtype=torch.float16, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k, block_size=128):
            part = hl.dot(x[i, d], y[j, d].T)
            acc = acc + part.to(torch.float32) * x_scale[i, d.id][:, None] * y_scale[j, d.id][None, :]
        out[i, j] = acc.to(torch.float16)
    return out


@helion.kernel()
def state_update(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Chunks of a gated recurrence: products within a chunk, and a state between them."""
    b, n, d = q.size()
    d, e = hl.specialize(d), hl.specialize(v.size(2))
    out = torch.empty_like(v)
    for batch in hl.tile(b, block_size=1):
        state = hl.zeros([d, e], dtype=torch.float32)
        for chunk in hl.tile(n, block_size=64):
            rows, keys, values = q[batch.begin, chunk, :], k[batch.begin, chunk, :], v[batch.begin, chunk, :]
            fade = torch.cumsum(gate[batch.begin, chunk], dim=0)
            scores = hl.dot(rows, keys.T) * torch.exp(fade[:, None] - fade[None, :])
            scores = torch.where(chunk.index[:, None] >= chunk.index[None, :], scores, 0.0)
            inner = hl.dot(scores.to(v.dtype), values)
            outer = hl.dot((rows.to(torch.float32) * torch.exp(fade)[:, None]).to(q.dtype), state.to(q.dtype))
            out[batch.begin, chunk, :] = (inner + outer).to(v.dtype)
            state = hl.dot(keys.T, values, acc=state)
    return out


@helion.kernel()
def gated_by_itself(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The product times what it came from, with its transposed right operand beside it."""
    m, k = x.size()
    out = torch.empty([m, k], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, k]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        turned = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            rows = x[i, d]
            acc = hl.dot(rows, w[d, j], acc=acc)
            turned = hl.dot(rows, y[j, d].T, acc=turned)
        out[i, j] = (torch.sigmoid(acc) * turned * x[i, j].to(torch.float32)).to(x.dtype)
    return out


# --- cells ---------------------------------------------------------------------------------------------------------------


_Made = Iterator[tuple[helion.Kernel, str, tuple[Any, ...]]]
_M_N_ROWS = (((16384, 1024), BF16), ((4097, 5000), FP32), ((2048, 16384), FP16))
_M_K_N = (((4096, 2048, 4096), BF16), ((1000, 777, 1300), FP16), ((1024, 1024, 1024), FP32))


def unseen() -> tuple[Varied, ...]:
    """Every kernel at every shape; the order is that of the file."""
    made = (*_elements(), *_rows(), *_row_losses(), *_other_rows(), *_moves(), *_products(), *_narrow(), *_attention())
    made += (*_batches(), *_chains(), *fields())
    return tuple(Varied(kernel=kernel, case=case, args=args) for kernel, case, args in made)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _elements() -> _Made:
    for (m, n), dtype in (((8192, 4096), BF16), ((1000, 3001), FP32), ((63, 131072), FP16)):
        x, case = tensor(m, n, dtype=dtype), f"{m}x{n} {_name(dtype)}"
        yield mish_with_bias, case, (x, tensor(n, dtype=dtype))
        yield masked_blend, case, (x, x, tensor(m, n, dtype=torch.bool), tensor(m, dtype=FP32))
        yield to_bytes, case, (x, tensor(n, dtype=FP32))
        yield mean_of_neighbours, case, (x,)
        yield clipped_gate, case, (tensor(m, 2, n, dtype=dtype),)
        codes = tensor(m, n, dtype=UINT8)
        yield looked_up, case, (codes, tensor(256, dtype=dtype), tensor(m, dtype=FP32))
    for size, dtype in ((50_000_000, BF16), (4097, FP32)):
        weight, moment = tensor(size, dtype=dtype), tensor(size, dtype=FP32)
        yield adam_step, f"{size} {_name(dtype)}", (weight, weight, moment, moment, 0.1)
    for (b, m, n), dtype in (((16, 2048, 1024), BF16), ((100, 63, 1000), FP32), ((4, 512, 512), INT8)):
        yield swap_last_dimensions, f"{b}x{m}x{n} {_name(dtype)}", (tensor(b, m, n, dtype=dtype),)
    for m, n in ((4096, 4096), (1000, 63)):
        yield overlap_of_boxes, f"{m}x{n}", (tensor(4, m, dtype=FP32), tensor(4, n, dtype=FP32))
    for (t, h, d), dtype in (((8192, 32, 64), BF16), ((1000, 12, 40), FP32)):
        angles = tensor(t, d, dtype=dtype)
        yield rotated_halves, f"{t}x{h}x{d} {_name(dtype)}", (tensor(t, h, 2, d, dtype=dtype), angles, angles)
        heads = tensor(t, h, 2 * d, dtype=dtype)
        yield (
            normed_heads,
            f"{t}x{h}x{d} {_name(dtype)}",
            (heads, tensor(2 * d, dtype=dtype), tensor(t, 2 * d, dtype=dtype)),
        )


def _rows() -> _Made:
    for (m, n), dtype in _M_N_ROWS:
        x, case = tensor(m, n, dtype=dtype), f"{m}x{n} {_name(dtype)}"
        yield between_extremes, case, (x,)
        yield softmax_of_prefix, case, (x, tensor(m, dtype=INT32), 0.7)
        yield normed_twice, case, (x, x, tensor(n, dtype=dtype), tensor(n, dtype=dtype))
        yield weighted_variance, case, (x, x)
        yield dropped_softmax, case, (x, 3)
        yield norm_backward_of_rows, case, (x, x, tensor(m, dtype=FP32), tensor(m, dtype=FP32))


def _row_losses() -> _Made:
    for (m, n), dtype in (((4096, 32000), BF16), ((8192, 1000), FP32), ((1000, 100_003), FP16)):
        x, case = tensor(m, n, dtype=dtype), f"{m}x{n} {_name(dtype)}"
        yield entropy, case, (x,)
        yield log_cosh_loss, case, (x, x)
        yield second_largest, case, (x,)
        yield hinge_loss, case, (x, tensor(m, dtype=INT64))
        yield smoothed_loss_gradient, case, (x, tensor(m, dtype=INT64), tensor(m, dtype=FP32))
        yield sinkhorn_step, case, (x, tensor(n, dtype=FP32))


def _other_rows() -> _Made:
    for (m, n), dtype in (((65536, 256), BF16), ((5000, 3000), FP32)):
        x, case = tensor(m, n, dtype=dtype), f"{m}x{n} {_name(dtype)}"
        yield triplet_margin, case, (x, x, x)
        yield column_moments, case, (x,)
        yield column_sums_by_atomics, case, (x, tensor(n, dtype=FP32))
        yield matrix_vector, case, (x, tensor(n, dtype=dtype))
    for (m, n), dtype in (((512, 8192), BF16), ((4096, 1000), FP32)):
        yield softmax_of_columns, f"{m}x{n} {_name(dtype)}", (tensor(m, n, dtype=dtype),)
    for (b, c, p), dtype in (((32, 64, 3136), BF16), ((8, 3, 50176), FP32)):
        yield instance_norm, f"{b}x{c}x{p} {_name(dtype)}", (tensor(b, c, p, dtype=dtype), tensor(c, dtype=dtype))
    for (b, t, d), dtype in (((64, 512, 768), BF16), ((1000, 63, 100), FP32)):
        args = (tensor(b, t, d, dtype=dtype), tensor(b, t, dtype=torch.bool))
        yield mean_over_time, f"{b}x{t}x{d} {_name(dtype)}", args
    for m, n in ((8192, 4096), (1000, 14336)):
        yield grouped_fp8, f"{m}x{n}", (tensor(m, n),)


def _moves() -> _Made:
    for (m, n), dtype in (((4096, 2048), BF16), ((64, 16384), FP32), ((1000, 300), FP16)):
        x, case = tensor(m, n, dtype=dtype), f"{m}x{n} {_name(dtype)}"
        yield running_log_sum, case, (x,)
        yield moving_average, case, (x, tensor(m, dtype=FP32))
        yield picked_columns, case, (x, tensor(m, 64, dtype=INT64))
        yield written_rows, case, (x, tensor(m, dtype=INT64), tensor(m, dtype=FP32), x)
        yield combined_tokens, case, (x, tensor(m, 4, dtype=INT64), tensor(m, 4, dtype=FP32))
        args = (tensor(5000, dtype=INT64), x, tensor(5000, n, dtype=dtype), tensor(n, dtype=dtype))
        yield embedded_and_normed, case, args
    for m, n in ((65536, 128), (4097, 1000)):
        args = (tensor(m, n, dtype=FP32), tensor(m, dtype=INT32), tensor(100, n, dtype=FP32))
        yield greatest_of_segments, f"{m}x{n}", args
    ids, weight = tensor(1_000_000, dtype=INT32), tensor(1_000_000, dtype=FP32)
    yield weighted_counts, "1000000", (ids, weight, tensor(1024, dtype=FP32))
    for (b, t, c), dtype in (((4, 4096, 2048), BF16), ((1, 1000, 300), FP32)):
        yield causal_taps, f"{b}x{t}x{c} {_name(dtype)}", (tensor(b, t, c, dtype=dtype), tensor(4, c, dtype=dtype))


def _products() -> _Made:
    for (m, k, n), dtype in _M_K_N:
        x, y, case = tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype), f"{m}x{k}x{n} {_name(dtype)}"
        turned, bias, full = tensor(n, k, dtype=dtype), tensor(n, dtype=dtype), tensor(m, n, dtype=dtype)
        yield scaled_and_added, case, (x, turned, full, 2.0, 0.5)
        yield weight_and_bias_gradients, case, (tensor(k, m, dtype=dtype), y)
        yield dropped_product, case, (x, y, bias, 11)
        yield complex_product, case, (x, x, y, y)
        yield cosine_scores, case, (x, turned)
        yield gated_by_itself, case, (x, tensor(k, k, dtype=dtype), tensor(k, k, dtype=dtype))
        yield filter_of_three, case, (x, tensor(3, k, n, dtype=dtype))
    for (m, k, n), dtype in (((8192, 1024, 512), BF16), ((512, 4096, 1024), FP16), ((4096, 512, 256), FP32)):
        x, case = tensor(m, k, dtype=dtype), f"{m}x{k}x{n} {_name(dtype)}"
        yield product_to_bytes, case, (x, tensor(k, n, dtype=dtype))
    for (b, m, n), dtype in (((100_000, 256, 512), BF16), ((16384, 100, 300), FP32)):
        args = (tensor(b, m, dtype=dtype), tensor(b, n, dtype=dtype), tensor(m, n, dtype=FP32))
        yield batch_of_outer_products, f"{b}x{m}x{n} {_name(dtype)}", args


def _narrow() -> _Made:
    for m, k, n in ((4096, 4096, 4096), (16, 8192, 4096), (1000, 1024, 3000)):
        case = f"{m}x{k}x{n}"
        bytes_x, bytes_y = tensor(m, k, dtype=INT8), tensor(k, n, dtype=INT8)
        yield bytes_to_bytes, case, (bytes_x, bytes_y, tensor(n, dtype=INT32), 0.01)
        turned = tensor(n, k, dtype=INT8)
        scales = tensor(m, k // 128, dtype=FP32), tensor(n, k // 128, dtype=FP32)
        yield blocks_of_bytes, case, (bytes_x, turned, *scales)
        yield fp8_weights, case, (tensor(m, k, dtype=FP16), tensor(k, n, dtype=E4M3), tensor(n, dtype=FP32))
        yield fp8_weights, f"{case} turned", (tensor(m, k), tensor(n, k, dtype=E5M2).T, tensor(n, dtype=FP32))
        yield fp8_to_fp8, case, (tensor(m, k, dtype=E4M3), tensor(n, k, dtype=E4M3).T, tensor(n, dtype=FP32))


def _attention() -> _Made:
    for (b, m, n, d), dtype in (((64, 2048, 2048, 64), FP16), ((32, 1000, 3000, 128), BF16), ((8, 512, 512, 32), FP32)):
        q, kv, case = tensor(b, m, d, dtype=dtype), tensor(b, n, d, dtype=dtype), f"{b}x{m}x{n}x{d} {_name(dtype)}"
        yield biased_attention, case, (q, kv, kv, tensor(b, dtype=FP32))
        yield sigmoid_attention, case, (q, kv, kv, tensor(b, dtype=INT32))
        grouped = tensor(b, 4, m, d, dtype=dtype)
        yield windowed_attention, case, (grouped, kv, kv, 256)
    for (b, h, n, d), dtype in (((64, 16, 8192, 128), BF16), ((8, 32, 4096, 64), FP16)):
        cache = tensor(b, n, d, dtype=dtype)
        yield decoded_heads, f"{b}x{h}x{n}x{d} {_name(dtype)}", (tensor(b, h, d, dtype=dtype), cache, cache)


def _batches() -> _Made:
    for (b, m, k, n), dtype in (((32, 1024, 128, 1024), BF16), ((100, 63, 64, 200), FP32)):
        x, case = tensor(b, m, k, dtype=dtype), f"{b}x{m}x{k}x{n} {_name(dtype)}"
        yield causal_scores, case, (x, tensor(b, n, k, dtype=dtype), 0.1)
        yield one_weight_for_all, case, (x, tensor(k, n, dtype=dtype))
        yield experts_with_room, case, (x, tensor(b, n, k, dtype=dtype), tensor(b, m, dtype=FP32))


def _chains() -> _Made:
    for (m, d, n), dtype in (((65536, 64, 1024), BF16), ((10000, 128, 4096), FP16), ((5000, 32, 100), FP32)):
        args = (tensor(m, d, dtype=dtype), tensor(n, d, dtype=dtype), tensor(n, dtype=FP32))
        yield nearest_centres, f"{m}x{d}x{n} {_name(dtype)}", args
        mlp = (tensor(m, d, dtype=dtype), tensor(d, n, dtype=dtype), tensor(n, d, dtype=dtype))
        yield narrow_mlp, f"{m}x{d}x{n} {_name(dtype)}", mlp
    for (m, k, n), dtype in (((2048, 2048, 32000), BF16), ((1000, 512, 5000), FP32)):
        x, case = tensor(m, k, dtype=dtype), f"{m}x{k}x{n} {_name(dtype)}"
        yield log_sum_of_vocabulary, case, (x, tensor(k, n, dtype=dtype))
        yield bottleneck, case, (x, tensor(k, 32, dtype=dtype), tensor(32, n, dtype=dtype))
    for (b, n, d), dtype in (((32, 2048, 64), BF16), ((16, 1024, 128), FP16)):
        head = tensor(b, n, d, dtype=dtype)
        yield state_update, f"{b}x{n}x{d} {_name(dtype)}", (head, head, head, tensor(b, n, dtype=FP32))
