"""More row kernels in the styles of different users, for ``benchmarks/row_census.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import helion.language as hl

LOG2E = 1.4426950408889634


def rms_norm_bwd(
    grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rsqrt: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    m_block = hl.register_block_size(x.size(0))
    grad_x = torch.empty_like(x)
    grad_weight = x.new_empty([(x.size(0) + m_block - 1) // m_block, *weight.shape], dtype=torch.float32)
    weight_shape = hl.specialize(weight.size(0))
    for mb_cta in hl.tile(x.size(0), block_size=m_block):
        grad_w_m = x.new_zeros(weight_shape, dtype=torch.float32)
        for mb in hl.tile(mb_cta.begin, mb_cta.end):
            x_m = x[mb, :].to(torch.float32)
            do_m = grad_out[mb, :].to(torch.float32)
            rsqrt_m = rsqrt[mb, :].to(torch.float32)
            grad_w_m += (x_m * do_m * rsqrt_m).sum(0)
            w_m = weight[None, :].to(torch.float32)
            grad_x[mb, :] = (w_m * do_m * rsqrt_m - x_m * rsqrt_m**3 * (w_m * do_m * x_m).mean(-1)[:, None]).to(x.dtype)
        grad_weight[mb_cta.id, :] = grad_w_m
    return grad_x, grad_weight.sum(0).to(weight.dtype)


def layer_norm_bwd(
    grad_out: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    m_block = hl.register_block_size(x.size(0))
    n = hl.specialize(x.size(1))
    grad_x = torch.empty_like(x)
    num_blocks = (x.size(0) + m_block - 1) // m_block
    grad_weight_blocks = x.new_empty([num_blocks, n], dtype=torch.float32)
    grad_bias_blocks = x.new_empty([num_blocks, n], dtype=torch.float32)
    for mb_cta in hl.tile(x.size(0), block_size=m_block):
        grad_w_acc = weight.new_zeros(n, dtype=torch.float32)
        grad_b_acc = weight.new_zeros(n, dtype=torch.float32)
        weight_cta = weight[None, :].to(torch.float32)
        for mb in hl.tile(mb_cta.begin, mb_cta.end):
            x_mb = x[mb, :].to(torch.float32)
            dy_mb = grad_out[mb, :].to(torch.float32)
            mean_mb = mean[mb].to(torch.float32)
            rstd_mb = rstd[mb].to(torch.float32)
            x_hat = (x_mb - mean_mb[:, None]) * rstd_mb[:, None]
            grad_w_acc += torch.sum(dy_mb * x_hat, dim=0)
            grad_b_acc += torch.sum(dy_mb, dim=0)
            wdy = weight_cta * dy_mb
            c1 = torch.sum(x_hat * wdy, dim=-1) / n
            c2 = torch.sum(wdy, dim=-1) / n
            grad_x[mb, :] = ((wdy - (x_hat * c1[:, None] + c2[:, None])) * rstd_mb[:, None]).to(x.dtype)
        grad_weight_blocks[mb_cta.id, :] = grad_w_acc
        grad_bias_blocks[mb_cta.id, :] = grad_b_acc
    return grad_x, grad_weight_blocks.sum(0).to(weight.dtype), grad_bias_blocks.sum(0).to(weight.dtype)


def rms_norm_with_statistics(x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    m = x.size(0)
    out = torch.empty_like(x)
    inv_rms = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        x_tile = x[tile_m, :].to(torch.float32)
        inv = torch.rsqrt(torch.mean(x_tile * x_tile, dim=-1) + eps)
        out[tile_m, :] = (x_tile * inv[:, None] * weight[:].to(torch.float32)).to(out.dtype)
        inv_rms[tile_m] = inv
    return out, inv_rms.reshape(-1, 1)


def layer_norm_with_statistics(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    m, n = x.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    mean = torch.empty([m], dtype=torch.float32, device=x.device)
    rstd = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        acc = x[tile_m, :].to(torch.float32)
        mean_val = torch.sum(acc, dim=-1) / n
        centered = acc - mean_val[:, None]
        var_val = torch.sum(centered * centered, dim=-1) / n
        rstd_val = torch.rsqrt(var_val + eps)
        out[tile_m, :] = (centered * rstd_val[:, None] * weight[:].to(torch.float32) + bias[:].to(torch.float32)).to(
            x.dtype
        )
        mean[tile_m] = mean_val
        rstd[tile_m] = rstd_val
    return out, mean, rstd


def layer_norm_of_moments(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        var, mean = torch.var_mean(x[tile, :].to(torch.float32), dim=-1, keepdim=True, correction=0)
        out[tile, :] = ((x[tile, :] - mean) * torch.rsqrt(var + 1e-5) * weight[:]).to(x.dtype)
    return out


def softmax_decomposed(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        values = x[tile, :]
        amax = torch.amax(values, dim=1, keepdim=True)
        exp = torch.exp(values - amax)
        out[tile, :] = exp / torch.sum(exp, dim=1, keepdim=True)
    return out


def softmax_two_pass(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty_like(x)
    block_m, block_n = hl.register_block_size(m), hl.register_block_size(n)
    for tile_m in hl.tile(m, block_size=block_m):
        mi = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        di = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n, block_size=block_n):
            values = x[tile_m, tile_n]
            mi_next = torch.maximum(mi, torch.amax(values, dim=1))
            di = di * torch.exp(mi - mi_next) + torch.exp(values - mi_next[:, None]).sum(dim=1)
            mi = mi_next
        for tile_n in hl.tile(n, block_size=block_n):
            values = x[tile_m, tile_n]
            out[tile_m, tile_n] = torch.exp(values - mi[:, None]) / di[:, None]
    return out


def softmax_base_two(x: torch.Tensor, scale: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32) * (scale * LOG2E)
        power = torch.exp2(row - torch.amax(row, -1, keepdim=True))
        out[tile, :] = (power / power.sum(-1, keepdim=True)).to(x.dtype)
    return out


def softcapped_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, cap: float) -> torch.Tensor:
    losses = torch.zeros([logits.size(0)], dtype=torch.float32, device=logits.device)
    flat = logits.view(-1)
    for tile in hl.tile(logits.size(0)):
        index = tile.index * logits.size(1) + labels[tile]
        at_target = hl.load(flat, [index]).to(torch.float32)
        rows = cap * torch.tanh(logits[tile, :].to(torch.float32) / cap)
        losses[tile] = torch.logsumexp(rows, -1) - cap * torch.tanh(at_target / cap)
    return losses


def cross_entropy_with_z_loss(
    logits: torch.Tensor, labels: torch.Tensor, z_weight: float, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor]:
    n, v = logits.shape
    losses = torch.zeros([n], dtype=torch.float32, device=logits.device)
    z_losses = torch.zeros([n], dtype=torch.float32, device=logits.device)
    flat = logits.view(-1)
    for tile in hl.tile(n):
        label = labels[tile]
        valid = label != ignore_index
        safe = torch.where(valid, label, 0)
        at_target = hl.load(flat, [tile.index * v + safe]).to(torch.float32)
        row = logits[tile, :].to(torch.float32)
        top = torch.amax(row, dim=-1)
        lse = top + torch.log(torch.sum(torch.exp(row - top[:, None]), dim=-1))
        z = z_weight * lse * lse
        losses[tile] = torch.where(valid, lse - at_target + z, 0.0)
        z_losses[tile] = torch.where(valid, z, 0.0)
    return losses, z_losses


def kl_div_batchmean(y_pred: torch.Tensor, y_true: torch.Tensor, eps: float) -> torch.Tensor:
    bt, v = y_pred.shape
    loss = torch.zeros([bt], dtype=torch.float32, device=y_pred.device)
    for tile_bt in hl.tile(bt):
        total = hl.zeros([tile_bt], dtype=torch.float32)
        for tile_v in hl.tile(v):
            pred, true = y_pred[tile_bt, tile_v].to(torch.float32), y_true[tile_bt, tile_v].to(torch.float32)
            total += (true * (torch.log(torch.clamp(true, min=eps)) - pred)).sum(-1)
        loss[tile_bt] = total
    return loss


def jsd(x: torch.Tensor, y: torch.Tensor, beta: float) -> tuple[torch.Tensor, torch.Tensor]:
    bt, v = x.shape
    loss = torch.zeros([bt], dtype=torch.float32, device=x.device)
    dx = torch.empty_like(x)
    for tile_bt in hl.tile(bt):
        total = hl.zeros([tile_bt], dtype=torch.float32)
        for tile_v in hl.tile(v):
            log_q, log_p = x[tile_bt, tile_v].to(torch.float32), y[tile_bt, tile_v].to(torch.float32)
            q, p = torch.exp(log_q), torch.exp(log_p)
            m = beta * p + (1 - beta) * q
            log_m = torch.log(m)
            total += (beta * p * (log_p - log_m) + (1 - beta) * q * (log_q - log_m)).sum(-1)
            dx[tile_bt, tile_v] = ((1 - beta) * q * (log_q - log_m)).to(x.dtype)
        loss[tile_bt] = total
    return loss, dx


def policy_loss(
    logp: torch.Tensor, old: torch.Tensor, reference: torch.Tensor, advantage: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    out = torch.empty([logp.size(0)], dtype=torch.float32, device=logp.device)
    for tile in hl.tile(logp.size(0)):
        new, prior, ref = (each[tile, :].to(torch.float32) for each in (logp, old, reference))
        kept = mask[tile, :].to(torch.float32)
        ratio = torch.exp(new - prior)
        gain = advantage[tile][:, None]
        chosen = torch.minimum(ratio * gain, torch.clamp(ratio, 0.8, 1.2) * gain)
        penalty = torch.exp(ref - new) - (ref - new) - 1
        out[tile] = ((0.04 * penalty - chosen) * kept).sum(-1) / torch.clamp(kept.sum(-1), min=1.0)
    return out


def chosen_log_probability(logits: torch.Tensor, ids: torch.Tensor, temperature: float) -> torch.Tensor:
    n, v = logits.shape
    out = torch.empty([n], dtype=torch.float32, device=logits.device)
    flat = logits.view(-1)
    for tile in hl.tile(n):
        row = logits[tile, :].to(torch.float32) / temperature
        at = hl.load(flat, [tile.index * v + ids[tile]]).to(torch.float32) / temperature
        out[tile] = at - torch.logsumexp(row, -1)
    return out


def residual_rms_in_place(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        total = x[tile, :].to(torch.float32) + residual[tile, :].to(torch.float32)
        residual[tile, :] = total.to(residual.dtype)
        scale = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + eps)
        x[tile, :] = (total * scale).to(x.dtype) * weight[:]
    return x


def gemma_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].float()
        normed = row * torch.rsqrt(row.pow(2).mean(-1, keepdim=True) + 1e-6)
        out[tile, :] = (normed * (1.0 + weight[:].float())).to(x.dtype)
    return out


def instance_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    b, c, _ = x.size()
    out = torch.empty_like(x)
    for tile_b, tile_c in hl.tile([b, c]):
        row = x[tile_b, tile_c, :].to(torch.float32)
        centred = row - row.mean(-1, keepdim=True)
        scale = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)
        gain, shift = weight[tile_c].to(torch.float32), bias[tile_c].to(torch.float32)
        out[tile_b, tile_c, :] = (centred * scale * gain[None, :, None] + shift[None, :, None]).to(x.dtype)
    return out


def group_norm_of_views(x: torch.Tensor, groups: hl.constexpr) -> torch.Tensor:
    b, c, p = x.size()
    view = x.view(b, groups, c // groups * p)
    out = torch.empty_like(view)
    for tile_b, tile_g in hl.tile([b, groups]):
        row = view[tile_b, tile_g, :].to(torch.float32)
        mean = row.mean(-1, keepdim=True)
        var = ((row - mean) ** 2).mean(-1, keepdim=True)
        out[tile_b, tile_g, :] = ((row - mean) * torch.rsqrt(var + 1e-5)).to(x.dtype)
    return out.view(b, c, p)


def dynamic_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    m, n = x.size()
    out = torch.empty([m, n], dtype=torch.int8, device=x.device)
    scales = torch.empty([m, 1], dtype=torch.float32, device=x.device)
    for tile in hl.tile(m):
        row = x[tile, :].to(torch.float32)
        scale = torch.clamp(row.abs().amax(-1, keepdim=True) / 127.0, min=1e-8)
        scales[tile, :] = scale
        out[tile, :] = torch.clamp(torch.round(row / scale), -128, 127).to(torch.int8)
    return out, scales


def scaled_fp8_of_clamped(x: torch.Tensor, limit: float) -> tuple[torch.Tensor, torch.Tensor]:
    m, n = x.size()
    out = torch.empty([m, n], dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile in hl.tile(m):
        row = x[tile, :].to(torch.float32)
        scale = torch.clamp(torch.amax(torch.abs(row), -1), max=limit) / 448.0
        scales[tile] = scale
        out[tile, :] = torch.clamp(row * (1.0 / scale)[:, None], -448.0, 448.0).to(torch.float8_e4m3fn)
    return out, scales


def top_one(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    places = torch.empty([x.size(0)], dtype=torch.int32, device=x.device)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :]
        values[tile] = torch.amax(row, -1)
        places[tile] = torch.argmax(row, -1).to(torch.int32)
    return values, places


def maxima_by_dim(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    places = torch.empty([x.size(0)], dtype=torch.int64, device=x.device)
    for tile in hl.tile(x.size(0)):
        values[tile], places[tile] = torch.max(x[tile, :], dim=-1)
    return values, places


def norms_of_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    one, two, most = (torch.empty([x.size(0)], dtype=torch.float32, device=x.device) for _ in range(3))
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        one[tile] = row.abs().sum(-1)
        two[tile] = torch.sqrt((row * row).sum(-1))
        most[tile] = row.abs().amax(-1)
    return one, two, most


def nll_of_log_softmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        log = torch.log_softmax(x[tile, :].to(torch.float32), -1)
        out[tile] = -(y[tile, :].to(torch.float32) * log).sum(-1)
    return out


def focal_loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        p = torch.sigmoid(x[tile, :].to(torch.float32))
        t = y[tile, :].to(torch.float32)
        near = t * p + (1 - t) * (1 - p)
        out[tile] = (-((1 - near) ** 2) * torch.log(near + 1e-8)).mean(-1)
    return out


def standardized(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        out[tile, :] = ((row - row.mean(-1, keepdim=True)) / (row.std(-1, keepdim=True) + 1e-6)).to(x.dtype)
    return out


def min_max_scaled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        low, high = torch.amin(row, -1, keepdim=True), torch.amax(row, -1, keepdim=True)
        out[tile, :] = ((row - low) / (high - low)).to(x.dtype)
    return out


def gelu_norm(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = torch.nn.functional.gelu(x[tile, :].to(torch.float32) + bias[:].to(torch.float32), approximate="tanh")
        out[tile, :] = (row * torch.rsqrt(row.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)
    return out


def rows_of_whole_batches(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows = x.reshape(-1, x.size(-1))
    out = torch.empty_like(rows)
    for tile in hl.tile(rows.size(0)):
        row = rows[tile, :].to(torch.float32)
        out[tile, :] = (row * torch.rsqrt((row * row).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight[:]
    return out.view(x.size())


def softmax_gradient_of_loops(grad: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, n = y.size()
    out = torch.empty_like(y)
    for tile_m in hl.tile(m):
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            total += (grad[tile_m, tile_n].to(torch.float32) * y[tile_m, tile_n].to(torch.float32)).sum(-1)
        for tile_n in hl.tile(n):
            row = y[tile_m, tile_n].to(torch.float32)
            out[tile_m, tile_n] = (row * (grad[tile_m, tile_n].to(torch.float32) - total[:, None])).to(y.dtype)
    return out


def biased_softmax_of_heads(x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_h, tile_m in hl.tile([x.size(0), x.size(1)]):
        row = x[tile_h, tile_m, :].to(torch.float32)
        place = hl.arange(x.size(2)).to(torch.float32)
        row = row + place[None, None, :] * slope[tile_h].to(torch.float32)[:, None, None]
        out[tile_h, tile_m, :] = torch.softmax(row, -1).to(x.dtype)
    return out


CASES: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = (
    (rms_norm_bwd, ("rows", "rows", "vector", "lines")),
    (layer_norm_bwd, ("rows", "rows", "number", "number", "vector")),
    (rms_norm_with_statistics, ("rows", "vector", 1e-5)),
    (layer_norm_with_statistics, ("rows", "vector", "vector", 1e-5)),
    (layer_norm_of_moments, ("rows", "vector")),
    (softmax_decomposed, ("rows",)),
    (softmax_two_pass, ("rows",)),
    (softmax_base_two, ("rows", 0.125)),
    (softcapped_cross_entropy, ("rows", "label", 30.0)),
    (cross_entropy_with_z_loss, ("rows", "label", 1e-4, -100)),
    (kl_div_batchmean, ("rows", "rows", 1e-10)),
    (jsd, ("rows", "rows", 0.5)),
    (policy_loss, ("rows", "rows", "rows", "number", "mask")),
    (chosen_log_probability, ("rows", "label", 0.7)),
    (residual_rms_in_place, ("rows", "rows", "vector", 1e-6)),
    (gemma_norm, ("rows", "vector")),
    (instance_norm, ("batches", "channels", "channels")),
    (group_norm_of_views, ("batches", 32)),
    (dynamic_int8, ("rows",)),
    (scaled_fp8_of_clamped, ("rows", 1200.0)),
    (top_one, ("rows",)),
    (maxima_by_dim, ("rows",)),
    (norms_of_rows, ("rows",)),
    (nll_of_log_softmax, ("rows", "rows")),
    (focal_loss, ("rows", "mask")),
    (standardized, ("rows",)),
    (min_max_scaled, ("rows",)),
    (gelu_norm, ("rows", "vector")),
    (rows_of_whole_batches, ("batches", "vector")),
    (softmax_gradient_of_loops, ("rows", "rows")),
    (biased_softmax_of_heads, ("batches", "heads")),
)
"""Each kernel with its arguments: numbers, or the names of ``row_census.tensors``."""
