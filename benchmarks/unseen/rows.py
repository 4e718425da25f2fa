"""Reductions in both directions, scans, gathers, scatters and copies."""

from __future__ import annotations

import torch

import helion
import helion.language as hl


@helion.kernel()
def channel_statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 mean and variance of each of the channels of `x[B, C, P]`."""
    b, c, p = x.size()
    mean = torch.empty([c], dtype=torch.float32, device=x.device)
    variance = torch.empty([c], dtype=torch.float32, device=x.device)
    for tile_c in hl.tile(c):
        total = hl.zeros([tile_c], dtype=torch.float32)
        squares = hl.zeros([tile_c], dtype=torch.float32)
        for tile_b, tile_p in hl.tile([b, p]):
            values = x[tile_b, tile_c, tile_p].to(torch.float32)
            total = total + values.sum(-1).sum(0)
            squares = squares + (values * values).sum(-1).sum(0)
        average = total / (b * p)
        mean[tile_c] = average
        variance[tile_c] = squares / (b * p) - average * average
    return mean, variance


@helion.kernel(ignore_warnings=[helion.exc.TensorOperationInWrapper])
def column_sums_in_parts(x: torch.Tensor) -> torch.Tensor:
    """fp32 sums of the columns of `x[M, N]`: parts of the rows first, then all parts by torch."""
    m, n = x.size()
    span = hl.register_block_size(m)
    parts = torch.empty([helion.cdiv(m, span), n], dtype=torch.float32, device=x.device)
    for rows, columns in hl.tile([m, n], block_size=[span, None]):
        acc = hl.zeros([columns], dtype=torch.float32)
        for row in hl.tile(rows.begin, rows.end):
            acc = acc + x[row, columns].to(torch.float32).sum(0)
        parts[rows.id, columns] = acc
    return parts.sum(0)


@helion.kernel()
def selective_scan(x: torch.Tensor, a: torch.Tensor, dt: torch.Tensor) -> torch.Tensor:
    """`h = exp(a dt[t]) h + dt[t] x[t]` along time, over `[B, T, C]`, step by step."""
    b, t, c = x.size()
    out = torch.empty_like(x)
    for tile_b, tile_c in hl.tile([b, c], block_size=[1, None]):
        h = hl.zeros([tile_c], dtype=torch.float32)
        rate = a[tile_c].to(torch.float32)
        for step in hl.grid(t):
            width = dt[tile_b.begin, step, tile_c].to(torch.float32)
            h = torch.exp(rate * width) * h + width * x[tile_b.begin, step, tile_c].to(torch.float32)
            out[tile_b.begin, step, tile_c] = h.to(x.dtype)
    return out


def _affine(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return a * c, b * c + d


@helion.kernel()
def linear_recurrence(gate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`h[t] = gate[t] h[t - 1] + x[t]` along the rows of `[C, T]`, chunk by chunk, with an associative scan."""
    c, t = x.size()
    out = torch.empty_like(x)
    for tile_c in hl.tile(c):
        before = hl.zeros([tile_c], dtype=torch.float32)
        for chunk in hl.tile(t):
            decay, values = gate[tile_c, chunk].to(torch.float32), x[tile_c, chunk].to(torch.float32)
            kept, own = hl.associative_scan(_affine, (decay, values), dim=1)
            full = own + kept * before[:, None]
            out[tile_c, chunk] = full.to(x.dtype)
            last = chunk.index == chunk.end - 1
            before = torch.where(last[None, :], full, 0.0).sum(1)
    return out


@helion.kernel()
def row_running_sum(x: torch.Tensor) -> torch.Tensor:
    m, _ = x.size()
    out = torch.empty_like(x)
    for tile in hl.tile(m):
        out[tile, :] = torch.cumsum(x[tile, :].to(torch.float32), dim=-1).to(x.dtype)
    return out


@helion.kernel()
def value_counts(x: torch.Tensor, bins: int) -> torch.Tensor:
    """How often each of `bins` integers stands in `x[N]`."""
    out = torch.zeros([bins], dtype=torch.int32, device=x.device)
    for tile in hl.tile(x.size(0)):
        hl.atomic_add(out, [x[tile]], torch.ones_like(x[tile], dtype=torch.int32))
    return out


@helion.kernel()
def scatter_rows(values: torch.Tensor, rows: torch.Tensor, count: int) -> torch.Tensor:
    """fp32 `[count, N]` with row i of `values[M, N]` added to row `rows[i]`."""
    m, n = values.size()
    out = torch.zeros([count, n], dtype=torch.float32, device=values.device)
    for tile_m, tile_n in hl.tile([m, n]):
        hl.atomic_add(out, [rows[tile_m], tile_n], values[tile_m, tile_n].to(torch.float32))
    return out


@helion.kernel()
def embedding_mean(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The mean of the rows of `table[V, N]` that each row of `ids[M, L]` names."""
    m, length = ids.size()
    n = table.size(1)
    out = torch.empty([m, n], dtype=table.dtype, device=table.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for j in hl.grid(length):
            acc = acc + table[ids[tile_m, j], tile_n].to(torch.float32)
        out[tile_m, tile_n] = (acc / length).to(table.dtype)
    return out


@helion.kernel()
def heads_first(x: torch.Tensor) -> torch.Tensor:
    """`x[B, T, H, D]` as `[B, H, T, D]`, copied."""
    b, t, h, d = x.size()
    out = torch.empty([b, h, t, d], dtype=x.dtype, device=x.device)
    for tile_b, tile_t, tile_h, tile_d in hl.tile([b, t, h, d]):
        out[tile_b, tile_h, tile_t, tile_d] = x[tile_b, tile_t, tile_h, tile_d].permute(0, 2, 1, 3)
    return out


@helion.kernel()
def channels_last(x: torch.Tensor) -> torch.Tensor:
    """`x[B, C, P]` as `[B, P, C]`, copied."""
    b, c, p = x.size()
    out = torch.empty([b, p, c], dtype=x.dtype, device=x.device)
    for tile_b, tile_c, tile_p in hl.tile([b, c, p]):
        out[tile_b, tile_p, tile_c] = x[tile_b, tile_c, tile_p].transpose(1, 2)
    return out


@helion.kernel()
def vocabulary_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy of every row of `logits[M, V]`, in one pass over tiles."""
    m, v = logits.size()
    flat = logits.view(-1)
    out = torch.empty([m], dtype=torch.float32, device=logits.device)
    for tile_m in hl.tile(m):
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        den = hl.zeros([tile_m], dtype=torch.float32)
        picked = flat[tile_m.index * v + labels[tile_m]].to(torch.float32)
        for tile_v in hl.tile(v):
            values = logits[tile_m, tile_v].to(torch.float32)
            new = torch.maximum(top, values.amax(-1))
            den = den * torch.exp(top - new) + torch.exp(values - new[:, None]).sum(-1)
            top = new
        out[tile_m] = top + torch.log(den) - picked
    return out


@helion.kernel()
def row_probabilities(x: torch.Tensor) -> torch.Tensor:
    m, _ = x.size()
    out = torch.empty_like(x)
    for tile in hl.tile(m):
        out[tile, :] = torch.softmax(x[tile, :].to(torch.float32), dim=-1).to(x.dtype)
    return out


@helion.kernel()
def distillation_loss(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """`KL(softmax(teacher) || softmax(student))` of every row, from logits: four exponentials an element."""
    m, _ = student.size()
    out = torch.empty([m], dtype=torch.float32, device=student.device)
    for tile in hl.tile(m):
        s = torch.log_softmax(student[tile, :].to(torch.float32), dim=-1)
        t = torch.log_softmax(teacher[tile, :].to(torch.float32), dim=-1)
        out[tile] = (torch.exp(t) * (t - s)).sum(-1)
    return out


@helion.kernel()
def focal_map(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The focal loss of every element: `[M, N]` logits and targets."""
    out = torch.empty_like(logits)
    for tile in hl.tile(logits.size()):
        x, y = logits[tile].to(torch.float32), targets[tile].to(torch.float32)
        p = torch.sigmoid(x)
        soft = torch.relu(x) - x * y + torch.log1p(torch.exp(-torch.abs(x)))
        off = 1.0 - (p * y + (1.0 - p) * (1.0 - y))
        out[tile] = (off * off * soft).to(logits.dtype)
    return out
