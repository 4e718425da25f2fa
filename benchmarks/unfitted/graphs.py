"""Recommendation and graphs: tables, crossed features, sparse matrices, edges, draws and clusters."""

from __future__ import annotations

import torch

import helion
import helion.language as hl

from .cell import BF16, FP16, FP32, Arguments, Cells, high, normal, offsets_of

CELLS = Cells()


@helion.kernel
def pair_interactions(x: torch.Tensor) -> torch.Tensor:
    """Products of all pairs of the features `[B, F, D]` of each sample, in the lower triangle of `[B, F, F]`."""
    b, features, width = x.size()
    features, width = hl.specialize(features), hl.specialize(width)
    out = torch.empty([b, features, features], dtype=x.dtype, device=x.device)
    for tile in hl.tile(b):
        e = x[tile, :, :]
        scores = hl.dot(e, e.transpose(1, 2), out_dtype=torch.float32)
        place = hl.arange(features)
        keep = (place[:, None] > place[None, :])[None, :, :]
        out[tile, :, :] = torch.where(keep, scores, 0.0).to(x.dtype)
    return out


CELLS.add(
    pair_interactions,
    lambda device, small: (normal(device, *((5, 11, 32) if small else (16384, 27, 64)), dtype=BF16, scale=0.3),),
    lambda x: (high(x) @ high(x).transpose(1, 2)).tril(-1).to(x.dtype),
    lambda x: (x @ x.transpose(1, 2)).tril(-1),
)


@helion.kernel
def embedding_bags(ids: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    """Sums of the rows of each table `[T, R, D]` at the ids `[B, T, L]` of a sample: `[B, T, D]`."""
    b, count, length = ids.size()
    _, size, width = tables.size()
    rows = tables.view(count * size, width)
    out = torch.empty([b, count, width], dtype=tables.dtype, device=tables.device)
    for samples, table, columns in hl.tile([b, count, width], block_size=[None, 1, None]):
        acc = hl.zeros([samples, columns])
        for item in range(length):
            place = ids[samples, table.begin, item] + table.begin * size
            acc += rows[place, columns].to(torch.float32)
        out[samples, table.begin, columns] = acc.to(tables.dtype)
    return out


def embedding_bags_torch(ids: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    table = torch.arange(ids.size(1), device=ids.device)[None, :, None]
    return high(tables[table, ids]).sum(2).to(tables.dtype)


def make_embedding_bags(device: str, small: bool) -> Arguments:
    b, count, length, size, width = (13, 3, 2, 50, 24) if small else (4096, 26, 4, 100000, 64)
    return torch.randint(0, size, [b, count, length], device=device), normal(device, count, size, width, dtype=BF16)


CELLS.add(embedding_bags, make_embedding_bags, embedding_bags_torch)


@helion.kernel
def cross_layers(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Layers `y = x * (y . w) + b + y` of crossed features `[B, D]`, as many as `weight[L, D]` has rows."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        first = x[tile, :].to(torch.float32)
        y = first
        for layer in hl.static_range(3):
            along = (y * weight[layer, :][None, :]).sum(1, keepdim=True)
            y = first * along + bias[layer, :][None, :] + y
        out[tile, :] = y.to(x.dtype)
    return out


def cross_layers_torch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    first = y = high(x)
    for w, b in zip(weight, bias, strict=True):
        y = first * (y * w).sum(1, keepdim=True) + b + y
    return y.to(x.dtype)


def make_cross_layers(device: str, small: bool) -> Arguments:
    b, d = (7, 63) if small else (32768, 1000)
    return normal(device, b, d, dtype=FP16), normal(device, 3, d, scale=0.02), normal(device, 3, d, scale=0.1)


CELLS.add(cross_layers, make_cross_layers, cross_layers_torch)


@helion.kernel
def csr_dense(offsets: torch.Tensor, columns: torch.Tensor, values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A sparse matrix of rows from `offsets[R + 1]`, with `columns[E]` and `values[E]`, times `x[N, D]`."""
    rows, width = offsets.size(0) - 1, x.size(1)
    out = torch.empty([rows, width], dtype=x.dtype, device=x.device)
    for row in hl.grid(rows):
        for tile_d in hl.tile(width):
            acc = hl.zeros([tile_d])
            for entries in hl.tile(offsets[row], offsets[row + 1]):
                acc += (values[entries][:, None] * x[columns[entries], tile_d].to(torch.float32)).sum(0)
            out[row, tile_d] = acc.to(x.dtype)
    return out


def csr_dense_torch(
    offsets: torch.Tensor, columns: torch.Tensor, values: torch.Tensor, x: torch.Tensor
) -> torch.Tensor:
    lengths = offsets[1:] - offsets[:-1]
    rows = torch.repeat_interleave(torch.arange(lengths.size(0), device=x.device), lengths, output_size=columns.size(0))
    out = torch.zeros([lengths.size(0), x.size(1)], dtype=high(x).dtype, device=x.device)
    return out.index_add_(0, rows, values[:, None] * high(x)[columns]).to(x.dtype)


def make_csr_dense(device: str, small: bool) -> Arguments:
    rows, size, width = (17, 40, 24) if small else (65536, 65536, 128)
    offsets = offsets_of(rows, 4, 33)
    entries = int(offsets[-1])
    ids = torch.randint(0, size, [entries], device=device, dtype=torch.int32)
    return offsets.to(device), ids, normal(device, entries), normal(device, size, width, dtype=BF16)


CELLS.add(csr_dense, make_csr_dense, csr_dense_torch)


@helion.kernel
def ell_matvec(columns: torch.Tensor, values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A sparse matrix with K entries in each row, stored as `columns[K, N]` and `values[K, N]`, times a vector."""
    k, n = columns.size()
    out = torch.empty([n], dtype=torch.float32, device=x.device)
    for rows in hl.tile(n):
        acc = hl.zeros([rows])
        for entry in range(k):
            acc += values[entry, rows] * x[columns[entry, rows]]
        out[rows] = acc
    return out


def make_ell_matvec(device: str, small: bool) -> Arguments:
    k, n = (5, 63) if small else (27, 1000000)
    near = torch.arange(n, device=device) + torch.randint(-1000, 1000, [k, n], device=device)
    return near.clamp(0, n - 1).to(torch.int32), normal(device, k, n), normal(device, n)


CELLS.add(ell_matvec, make_ell_matvec, lambda columns, values, x: (values * x[columns]).sum(0))


@helion.kernel
def edge_messages(x: torch.Tensor, edges: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """Sums at each edge's target of `relu(x[source] + features)`, with `edges[2, E]` and `features[E, D]`."""
    count, width = features.size()
    out = torch.zeros([x.size(0), width], dtype=torch.float32, device=x.device)
    for tile, columns in hl.tile([count, width]):
        source, target = edges[0, tile], edges[1, tile]
        message = torch.relu(x[source, columns].to(torch.float32) + features[tile, columns].to(torch.float32))
        hl.atomic_add(out, [target, columns], message)
    return out


def edge_messages_torch(x: torch.Tensor, edges: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    message = torch.relu(high(x)[edges[0]] + high(features))
    return torch.zeros(x.shape, dtype=message.dtype, device=x.device).index_add_(0, edges[1], message)


def make_edge_messages(device: str, small: bool) -> Arguments:
    nodes, edges, width = (21, 63, 24) if small else (100000, 500000, 64)
    ends = torch.randint(0, nodes, [2, edges], device=device)
    return normal(device, nodes, width, dtype=BF16), ends, normal(device, edges, width, dtype=BF16)


CELLS.add(edge_messages, make_edge_messages, edge_messages_torch)


@helion.kernel
def draw_from_weights(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The index that each uniform number selects from the cumulative weights of a row of `[B, V]`."""
    out = torch.empty([weights.size(0)], dtype=torch.int64, device=weights.device)
    for tile in hl.tile(weights.size(0)):
        below = hl.cumsum(weights[tile, :], 1)
        limit = uniform[tile] * weights[tile, :].sum(1)
        out[tile] = (below <= limit[:, None]).to(torch.int64).sum(1)
    return out


def draw_from_weights_torch(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    below = weights.cumsum(1)
    return (below <= (uniform * weights.sum(1))[:, None]).sum(1)


def make_draw_from_weights(device: str, small: bool) -> Arguments:
    b, v = (13, 63) if small else (16384, 4097)
    weights = torch.randint(0, 8, [b, v], device=device).to(FP32)
    return weights, torch.randint(0, 256, [b], device=device) / 256


CELLS.add(draw_from_weights, make_draw_from_weights, draw_from_weights_torch)


@helion.kernel
def kmeans_step(points: torch.Tensor, centres: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of the points `[N, D]` that are nearest to each of the centres `[K, D]`, and their number."""
    n, width = points.size()
    k = centres.size(0)
    sums = torch.zeros([k, width], dtype=torch.float32, device=points.device)
    counts = torch.zeros([k], dtype=torch.int32, device=points.device)
    for tile in hl.tile(n):
        p, c = points[tile, :], centres[:, :]
        wide = c.to(torch.float32)
        distance = (wide * wide).sum(1)[None, :] - 2.0 * hl.dot(p, c.T, out_dtype=torch.float32)
        nearest = torch.argmin(distance, dim=1)
        hl.atomic_add(sums, [nearest, hl.arange(width)], p.to(torch.float32))
        hl.atomic_add(counts, [nearest], 1)
    return sums, counts


def kmeans_step_torch(points: torch.Tensor, centres: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide = high(points)
    nearest = ((high(centres) ** 2).sum(1) - 2 * wide @ high(centres).T).argmin(1)
    sums = torch.zeros(centres.shape, dtype=wide.dtype, device=points.device).index_add_(0, nearest, wide)
    return sums, torch.bincount(nearest, minlength=centres.size(0)).to(torch.int32)


def kmeans_step_baseline(points: torch.Tensor, centres: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    nearest = ((high(centres) ** 2).sum(1) - 2 * (points @ centres.T).float()).argmin(1)
    sums = torch.zeros(centres.shape, device=points.device).index_add_(0, nearest, high(points))
    counts = torch.zeros(centres.size(0), dtype=torch.int32, device=points.device)
    return sums, counts.index_add_(0, nearest, torch.ones_like(nearest, dtype=torch.int32))


def make_kmeans_step(device: str, small: bool) -> Arguments:
    n, k, width = (63, 16, 32) if small else (131072, 64, 32)
    centres = normal(device, k, width, scale=8.0)
    points = centres[torch.randint(0, k, [n], device=device)] + normal(device, n, width)
    return points.to(BF16), centres.to(BF16)


CELLS.add(kmeans_step, make_kmeans_step, kmeans_step_torch, kmeans_step_baseline)
