"""Decoding with keys that the user divides among programs, which store results and logarithms of sums of each part."""

from __future__ import annotations

import torch

import helion.language as hl


def of_lengths(q, k, v, lengths, parts: hl.constexpr):
    """Parts of the keys that each sequence has, for all queries `[B, G, R, D]` of a group at once."""
    batch, groups = q.size(0), q.size(1)
    shared, dims = hl.specialize(q.size(2)), hl.specialize(q.size(3))
    out = torch.empty([batch, groups, parts, shared, dims], dtype=torch.float32, device=q.device)
    logsum = torch.empty([batch, groups, parts, shared], dtype=torch.float32, device=q.device)
    for tile_b, tile_g, tile_p in hl.tile([batch, groups, parts], block_size=[1, 1, 1]):
        b, g, part = tile_b.begin, tile_g.begin, tile_p.begin
        query = q[b, g, :, :]
        length = lengths[b]
        step = (length + parts - 1) // parts
        highest = hl.full([shared], -1e30, dtype=torch.float32)
        total = hl.zeros([shared], dtype=torch.float32)
        acc = hl.zeros([shared, dims], dtype=torch.float32)
        for tile in hl.tile(torch.minimum(part * step, length), torch.minimum(part * step + step, length)):
            scores = hl.dot(query, k[b, tile, g, :].T) * dims**-0.5
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b, tile, g, :], acc=acc * shrink[:, None])
            highest = raised
        out[b, g, part, :, :] = acc / torch.where(total > 0, total, 1.0)[:, None]
        logsum[b, g, part, :] = highest + torch.log(total)
    return out, logsum


def of_all(q, k, v, parts: hl.constexpr):
    """Parts of all keys, whose begins are multiples of a number, for tiles of queries `[B, G, R, D]`."""
    batch, groups, n = q.size(0), q.size(1), k.size(1)
    shared, dims = q.size(2), hl.specialize(q.size(3))
    step = (n + parts - 1) // parts
    out = torch.empty([batch, groups, parts, shared, dims], dtype=torch.float32, device=q.device)
    logsum = torch.empty([batch, groups, parts, shared], dtype=torch.float32, device=q.device)
    for tile_b, tile_g, tile_p, rows in hl.tile([batch, groups, parts, shared], block_size=[1, 1, 1, None]):
        b, g, part = tile_b.begin, tile_g.begin, tile_p.begin
        query = q[b, g, rows, :]
        highest = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, dims], dtype=torch.float32)
        for tile in hl.tile(part * step, min(part * step + step, n)):
            scores = hl.dot(query, k[b, tile, g, :].T) * dims**-0.5
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b, tile, g, :], acc=acc * shrink[:, None])
            highest = raised
        out[b, g, part, rows, :] = acc / total[:, None]
        logsum[b, g, part, rows] = highest + torch.log(total)
    return out, logsum


def joined(out: torch.Tensor, logsum: torch.Tensor) -> torch.Tensor:
    """Return the result of all parts in fp64."""
    shares = torch.softmax(logsum.double(), 2)
    return (shares[..., None] * out.double()).sum(2)


def given_of(
    lengths: list[int], n: int, shared: int, dims: int = 64, device: str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries, keys, values, and lengths after which keys are not numbers."""
    batch = len(lengths)
    shapes = (batch, 2, shared, dims), (batch, n, 2, dims), (batch, n, 2, dims)
    q, k, v = (torch.randn(shape, device=device).add(0.2).bfloat16() for shape in shapes)
    for b, length in enumerate(lengths):
        k[b, length:], v[b, length:] = float("nan"), float("nan")
    return q, k, v, torch.tensor(lengths, dtype=torch.int32, device=device)


def wanted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("bgrd,bngd->bgrn", q.double(), torch.nan_to_num(k.double())) * q.size(3) ** -0.5
    hidden = torch.arange(k.size(1), device=q.device) >= lengths[:, None, None, None]
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1)
    return torch.einsum("bgrn,bngd->bgrd", weights, torch.nan_to_num(v.double()))
