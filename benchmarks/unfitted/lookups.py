"""Bags, graphs, segments, counts, orders and selections, with indices from memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, FP16, FP32, Arguments, Cells, high, normal, offsets_of

CELLS = Cells()


def bounds(device: str, parts: int, low: int, most: int) -> tuple[torch.Tensor, int]:
    """Return int32 offsets `[parts + 1]` of sequences with `low` to `most` elements, and the sum of their lengths."""
    offsets = offsets_of(parts, low, most + 1)
    return offsets.to(torch.int32).to(device), int(offsets[-1])


def owners(offsets: torch.Tensor, count: int) -> torch.Tensor:
    """Return the sequence of each of `count` elements."""
    at = torch.arange(count, device=offsets.device, dtype=offsets.dtype)
    return torch.searchsorted(offsets, at, right=True) - 1


@helion.kernel
def bag_maxima(ids: torch.Tensor, offsets: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return the largest of each feature over the rows of a table `[V, D]` that a bag of ids names, or zeros."""
    bags = offsets.size(0) - 1
    d = hl.specialize(table.size(1))
    out = torch.empty([bags, d], dtype=table.dtype, device=table.device)
    for bag in hl.grid(bags):
        start, end = offsets[bag], offsets[bag + 1]
        best = hl.full([d], float("-inf"), dtype=torch.float32)
        for at in hl.tile(start, end):
            rows = table[ids[at], :].to(torch.float32)
            best = torch.maximum(best, rows.amax(0))
        out[bag, :] = torch.where(end > start, best, 0.0).to(table.dtype)
    return out


def bag_maxima_torch(ids: torch.Tensor, offsets: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    bags = offsets.size(0) - 1
    rows = high(table[ids])
    index = owners(offsets, ids.size(0))[:, None].expand_as(rows)
    best = torch.full([bags, table.size(1)], float("-inf"), device=table.device, dtype=rows.dtype)
    best = best.scatter_reduce(0, index, rows, "amax")
    return torch.where(best == float("-inf"), 0.0, best).to(table.dtype)


def make_bag_maxima(device: str, small: bool) -> Arguments:
    bags, most, v, d = (17, 6, 40, 20) if small else (30000, 50, 500_000, 80)
    offsets, count = bounds(device, bags, 0, most)
    return torch.randint(0, v, [count], device=device, dtype=torch.int32), offsets, normal(device, v, d, dtype=FP16)


CELLS.add(bag_maxima, make_bag_maxima, bag_maxima_torch)


@helion.kernel
def neighbour_means(x: torch.Tensor, starts: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return features `[N, 2 D]`: those of each node of a graph in CSR form, and the mean of its neighbours."""
    n, d = x.size()
    d = hl.specialize(d)
    out = torch.empty([n, 2, d], dtype=x.dtype, device=x.device)
    for nodes in hl.tile(n):
        start = starts[nodes]
        degree = starts[nodes.index + 1] - start
        total = hl.zeros([nodes, d], dtype=torch.float32)
        for at in hl.jagged_tile(degree):
            near = columns[start[:, None] + at.index[None, :]]
            total += x[near, :].to(torch.float32).sum(1)
        mean = total / torch.clamp(degree, min=1).to(torch.float32)[:, None]
        out[nodes, 0, :] = x[nodes, :]
        out[nodes, 1, :] = mean.to(x.dtype)
    return out.view(n, 2 * d)


def neighbour_means_torch(x: torch.Tensor, starts: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    n, d = x.size()
    node = owners(starts, columns.size(0))
    rows = high(x[columns])
    total = torch.zeros([n, d], device=x.device, dtype=rows.dtype).index_add(0, node, rows)
    mean = total / starts.diff().clamp(min=1)[:, None]
    return torch.cat([x, mean.to(x.dtype)], 1)


def make_neighbour_means(device: str, small: bool) -> Arguments:
    n, most, d = (23, 5, 12) if small else (100_000, 30, 100)
    starts, count = bounds(device, n, 0, most)
    return normal(device, n, d, dtype=FP16), starts, torch.randint(0, n, [count], device=device, dtype=torch.int32)


CELLS.add(neighbour_means, make_neighbour_means, neighbour_means_torch)


@helion.kernel
def attend_to_neighbours(
    x: torch.Tensor, source: torch.Tensor, target: torch.Tensor, starts: torch.Tensor, columns: torch.Tensor
) -> torch.Tensor:
    """Mix features `[N, H, D]` of neighbours in CSR form by a softmax of leaky scores, as graph attention does."""
    n, h, d = x.size()
    d = hl.specialize(d)
    out = torch.empty_like(x)
    for node, head in hl.grid([n, h]):
        own = target[node, head]
        top = hl.full([], float("-inf"), dtype=torch.float32)
        mass = hl.zeros([], dtype=torch.float32)
        acc = hl.zeros([d], dtype=torch.float32)
        for at in hl.tile(starts[node], starts[node + 1]):
            near = columns[at]
            score = F.leaky_relu(source[near, head] + own, 0.2)
            new = torch.maximum(top, score.amax(0))
            weight = torch.exp(score - new)
            faded = torch.exp(top - new)
            mass = mass * faded + weight.sum(0)
            acc = acc * faded + (weight[:, None] * x[near, head, :].to(torch.float32)).sum(0)
            top = new
        out[node, head, :] = (acc / mass).to(x.dtype)
    return out


def attend_to_neighbours_torch(
    x: torch.Tensor, source: torch.Tensor, target: torch.Tensor, starts: torch.Tensor, columns: torch.Tensor
) -> torch.Tensor:
    node = owners(starts, columns.size(0))
    score = F.leaky_relu(source[columns] + target[node], 0.2)
    index = node[:, None].expand_as(score)
    top = torch.full_like(target, float("-inf")).scatter_reduce(0, index, score, "amax")
    weight = torch.exp(score - top[node])
    mass = torch.zeros_like(target).index_add(0, node, weight)
    share = weight / mass[node]
    mixed = torch.zeros(x.shape, device=x.device, dtype=share.dtype)
    return mixed.index_add(0, node, share[:, :, None] * high(x[columns])).to(x.dtype)


def make_attend_to_neighbours(device: str, small: bool) -> Arguments:
    n, most, h, d = (23, 5, 2, 8) if small else (40_000, 24, 4, 32)
    starts, count = bounds(device, n, 1, most)
    columns = torch.randint(0, n, [count], device=device, dtype=torch.int32)
    return normal(device, n, h, d, dtype=BF16), normal(device, n, h), normal(device, n, h), starts, columns


CELLS.add(attend_to_neighbours, make_attend_to_neighbours, attend_to_neighbours_torch)


@helion.kernel
def segment_log_sums(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Return the log of the sum of exponentials of each segment of fp32 values."""
    segments = offsets.size(0) - 1
    out = torch.empty([segments], dtype=torch.float32, device=values.device)
    for segment in hl.grid(segments):
        top = hl.full([], float("-inf"), dtype=torch.float32)
        total = hl.zeros([], dtype=torch.float32)
        for at in hl.tile(offsets[segment], offsets[segment + 1]):
            v = values[at]
            new = torch.maximum(top, v.amax(0))
            total = total * torch.exp(top - new) + torch.exp(v - new).sum(0)
            top = new
        out[segment] = top + torch.log(total)
    return out


def segment_log_sums_torch(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    segments = offsets.size(0) - 1
    segment = owners(offsets, values.size(0))
    top = torch.full([segments], float("-inf"), device=values.device, dtype=values.dtype)
    top = top.scatter_reduce(0, segment, values, "amax")
    return top + torch.zeros_like(top).index_add(0, segment, torch.exp(values - top[segment])).log()


def make_segment_log_sums(device: str, small: bool) -> Arguments:
    segments, most = (19, 40) if small else (30_000, 2000)
    offsets, count = bounds(device, segments, 1, most)
    return normal(device, count, scale=4.0), offsets


CELLS.add(segment_log_sums, make_segment_log_sums, segment_log_sums_torch)


@helion.kernel
def greedy_with_entropy(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the best token of logits `[T, V]`, its log-probability, and the entropy of the distribution."""
    t, _v = logits.size()
    tokens = torch.empty([t], dtype=torch.int64, device=logits.device)
    logs = torch.empty([t], dtype=torch.float32, device=logits.device)
    entropy = torch.empty([t], dtype=torch.float32, device=logits.device)
    for rows in hl.tile(t):
        x = logits[rows, :].to(torch.float32)
        top, place = torch.max(x, -1)
        e = torch.exp(x - top[:, None])
        mass = e.sum(-1)
        tokens[rows] = place
        logs[rows] = -torch.log(mass)
        entropy[rows] = torch.log(mass) - (e * (x - top[:, None])).sum(-1) / mass
    return tokens, logs, entropy


def greedy_with_entropy_torch(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    logs = torch.log_softmax(high(logits), -1)
    best, place = logs.max(-1)
    return place, best, -(logs.exp() * logs).sum(-1)


def make_greedy_with_entropy(device: str, small: bool) -> Arguments:
    t, v = (13, 203) if small else (3000, 50257)
    spread = torch.rand([t, 1], device=device) * 4.0 + 0.5
    return ((torch.randn([t, v], device=device) * spread).to(FP16),)


CELLS.add(greedy_with_entropy, make_greedy_with_entropy, greedy_with_entropy_torch)


@helion.kernel
def entropy_cutoff(logits: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Suppress tokens of `[T, V]` less likely than `min(epsilon, sqrt(epsilon) exp(-entropy))`, but the best."""
    t, _v = logits.size()
    out = torch.empty_like(logits)
    for rows in hl.tile(t):
        x = logits[rows, :].to(torch.float32)
        logs = torch.log_softmax(x, -1)
        p = torch.exp(logs)
        entropy = -(p * logs).sum(-1, keepdim=True)
        limit = torch.minimum(torch.exp(-entropy) * epsilon**0.5, hl.full([1, 1], 1.0) * epsilon)
        kept = (p >= limit) | (x == x.amax(-1, keepdim=True))
        out[rows, :] = torch.where(kept, x, -1e4).to(logits.dtype)
    return out


def entropy_cutoff_torch(logits: torch.Tensor, epsilon: float) -> torch.Tensor:
    x = high(logits)
    logs = torch.log_softmax(x, -1)
    p = logs.exp()
    entropy = -(p * logs).sum(-1, keepdim=True)
    limit = (torch.exp(-entropy) * epsilon**0.5).clamp(max=epsilon)
    kept = (p >= limit) | (x == x.amax(-1, keepdim=True))
    return torch.where(kept, x, -1e4).to(logits.dtype)


def make_entropy_cutoff(device: str, small: bool) -> Arguments:
    t, v = (13, 203) if small else (2048, 32000)
    return normal(device, t, v, dtype=BF16, scale=3.0), 3e-3


CELLS.add(entropy_cutoff, make_entropy_cutoff, entropy_cutoff_torch)


@helion.kernel
def confusion_counts(predicted: torch.Tensor, labels: torch.Tensor, classes: int) -> torch.Tensor:
    """Count pairs of label and predicted class of uint8 pixels `[B, P]` as int32 `[C, C]`; labels of 255 are left."""
    b, p = labels.size()
    counts = torch.zeros([classes * classes], dtype=torch.int32, device=labels.device)
    for tb, tp in hl.tile([b, p]):
        label = labels[tb, tp].to(torch.int32)
        counted = label < classes
        cell = torch.where(counted, label * classes + predicted[tb, tp].to(torch.int32), 0)
        hl.atomic_add(counts, [cell], counted.to(torch.int32))
    return counts.view(classes, classes)


def confusion_counts_torch(predicted: torch.Tensor, labels: torch.Tensor, classes: int) -> torch.Tensor:
    label = labels.flatten().to(torch.int32)
    counted = label < classes
    cell = torch.where(counted, label * classes + predicted.flatten().to(torch.int32), classes * classes)
    counts = torch.zeros([classes * classes + 1], dtype=torch.int32, device=labels.device)
    return counts.index_add(0, cell, torch.ones_like(cell))[:-1].view(classes, classes)


def make_confusion_counts(device: str, small: bool) -> Arguments:
    b, p, classes = (3, 77, 5) if small else (2, 1024 * 1000, 19)
    labels = torch.randint(0, classes + 1, [b, p], device=device)
    labels = torch.where(labels == classes, 255, labels)
    predicted = torch.randint(0, classes, [b, p], device=device, dtype=torch.uint8)
    return predicted, labels.to(torch.uint8), classes


CELLS.add(confusion_counts, make_confusion_counts, confusion_counts_torch)


@helion.kernel
def area_under_curve(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """Return the share of pairs whose positive score is larger, ties by half, for each of K classes `[K, P]`, `[K, N]`."""
    k, p = positive.size()
    n = negative.size(1)
    out = torch.zeros([k], dtype=torch.float32, device=positive.device)
    for kind, mine in hl.tile([k, p], block_size=[1, None]):
        i = kind.begin
        a = positive[i, mine]
        wins = hl.zeros([mine], dtype=torch.float32)
        for others in hl.tile(n):
            gap = a[:, None] - negative[i, others][None, :]
            wins += torch.where(gap > 0, 1.0, torch.where(gap == 0, 0.5, 0.0)).sum(-1)
        hl.atomic_add(out, [i], wins.sum(0) / p / n)
    return out


def area_under_curve_torch(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    gap = positive[:, :, None] - negative[:, None, :]
    return ((gap > 0).to(positive.dtype) + 0.5 * (gap == 0).to(positive.dtype)).mean([1, 2])


def area_under_curve_baseline(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    ordered = negative.sort(-1).values
    below = torch.searchsorted(ordered, positive) + torch.searchsorted(ordered, positive, right=True)
    return below.to(positive.dtype).mean(-1) / (2 * negative.size(-1))


def make_area_under_curve(device: str, small: bool) -> Arguments:
    k, p, n = (3, 41, 57) if small else (20, 1500, 6001)
    positive = (normal(device, k, p) * 50 + 20).round() / 50
    return positive, (normal(device, k, n) * 50).round() / 50


CELLS.add(area_under_curve, make_area_under_curve, area_under_curve_torch, area_under_curve_baseline)


@helion.kernel
def order_scores(scores: torch.Tensor, keep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort the kept scores of each row `[R, N]` in descending order, with their places; others follow as -1e30."""
    r, n = scores.size()
    n = hl.specialize(n)
    values = torch.empty_like(scores)
    places = torch.empty([r, n], dtype=torch.int32, device=scores.device)
    for rows in hl.tile(r):
        x = torch.where(keep[rows, :], scores[rows, :], -1e30)
        own, place = torch.sort(x, dim=-1, descending=True, stable=True)
        values[rows, :] = own
        places[rows, :] = place.to(torch.int32)
    return values, places


def order_scores_torch(scores: torch.Tensor, keep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, places = torch.where(keep, scores, -1e30).sort(dim=-1, descending=True, stable=True)
    return values, places.to(torch.int32)


def make_order_scores(device: str, small: bool) -> Arguments:
    r, n = (13, 20) if small else (60_000, 80)
    return normal(device, r, n, dtype=FP32), torch.rand([r, n], device=device) < 0.9


CELLS.add(order_scores, make_order_scores, order_scores_torch)


@helion.kernel
def running_columns(x: torch.Tensor) -> torch.Tensor:
    """Return the sums of `x[B, T, D]` in bf16 over time up to each row, in fp32."""
    b, t, d = x.size()
    out = torch.empty([b, t, d], dtype=torch.float32, device=x.device)
    for batch, cols in hl.tile([b, d], block_size=[1, None]):
        carry = hl.zeros([cols], dtype=torch.float32)
        for rows in hl.tile(t):
            v = x[batch.begin, rows, cols].to(torch.float32)
            out[batch.begin, rows, cols] = hl.cumsum(v, 0) + carry[None, :]
            carry += v.sum(0)
    return out


def running_columns_torch(x: torch.Tensor) -> torch.Tensor:
    return high(x).cumsum(1)


def make_running_columns(device: str, small: bool) -> Arguments:
    shape = (2, 37, 20) if small else (8, 4097, 1000)
    return (normal(device, *shape, dtype=BF16),)


CELLS.add(running_columns, make_running_columns, running_columns_torch)


@helion.kernel
def places_of_kept(keep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number of each kept element of a row `[R, C]` among the kept ones, -1 for others, and their count."""
    r, c = keep.size()
    places = torch.empty([r, c], dtype=torch.int32, device=keep.device)
    counts = torch.empty([r], dtype=torch.int32, device=keep.device)
    for rows in hl.tile(r):
        kept = keep[rows, :]
        running = torch.cumsum(kept.to(torch.int32), -1)
        places[rows, :] = torch.where(kept, running - 1, -1)
        counts[rows] = kept.to(torch.int32).sum(-1)
    return places, counts


def places_of_kept_torch(keep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    running = keep.cumsum(-1, dtype=torch.int32)
    return torch.where(keep, running - 1, -1), running[:, -1]


def make_places_of_kept(device: str, small: bool) -> Arguments:
    r, c = (13, 77) if small else (5000, 6000)
    return (torch.rand([r, c], device=device) < 0.5,)


CELLS.add(places_of_kept, make_places_of_kept, places_of_kept_torch)


@helion.kernel
def neighbour_counts(points: torch.Tensor, radius: float) -> torch.Tensor:
    """Count the points of a cloud `[B, N, 3]` within a radius of each point, itself included."""
    b, n, _ = points.size()
    out = torch.empty([b, n], dtype=torch.int32, device=points.device)
    for cloud, own in hl.tile([b, n], block_size=[1, None]):
        i = cloud.begin
        x, y, z = points[i, own, 0], points[i, own, 1], points[i, own, 2]
        count = hl.zeros([own], dtype=torch.int32)
        for other in hl.tile(n):
            dx = x[:, None] - points[i, other, 0][None, :]
            dy = y[:, None] - points[i, other, 1][None, :]
            dz = z[:, None] - points[i, other, 2][None, :]
            near = dx * dx + dy * dy + dz * dz <= radius * radius
            count += (near & (other.index < n)[None, :]).to(torch.int32).sum(-1)
        out[i, own] = count
    return out


def neighbour_counts_torch(points: torch.Tensor, radius: float) -> torch.Tensor:
    gap = points[:, :, None, :] - points[:, None, :, :]
    return (gap.square().sum(-1) <= radius * radius).sum(-1, dtype=torch.int32)


def make_neighbour_counts(device: str, small: bool) -> Arguments:
    b, n = (2, 77) if small else (8, 5000)
    return torch.rand([b, n, 3], device=device), 0.2


CELLS.add(neighbour_counts, make_neighbour_counts, neighbour_counts_torch)


@helion.kernel
def int8_table_rows(ids: torch.Tensor, table: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Look up rows of an int8 table `[V, D]` with an fp32 scale and shift for each row, `scales[V, 2]`, as fp16."""
    t, d = ids.size(0), table.size(1)
    out = torch.empty([t, d], dtype=torch.float16, device=table.device)
    for rows, cols in hl.tile([t, d]):
        row = ids[rows]
        value = table[row, cols].to(torch.float32) * scales[row, 0][:, None] + scales[row, 1][:, None]
        out[rows, cols] = value.to(torch.float16)
    return out


def int8_table_rows_torch(ids: torch.Tensor, table: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    found = scales[ids]
    return (table[ids].to(scales.dtype) * found[:, :1] + found[:, 1:]).to(FP16)


def make_int8_table_rows(device: str, small: bool) -> Arguments:
    t, v, d = (77, 40, 20) if small else (200_000, 1_000_000, 192)
    table = torch.randint(-127, 128, [v, d], device=device).to(torch.int8)
    return torch.randint(0, v, [t], device=device), table, torch.rand([v, 2], device=device)


CELLS.add(int8_table_rows, make_int8_table_rows, int8_table_rows_torch)
