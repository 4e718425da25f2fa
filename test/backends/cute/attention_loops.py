"""Loops of attention with other weights and initial values than those of a plain softmax, each with its reference in fp64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import helion.language as hl


def consecutive(q, k, v):
    """Two loops: over the keys before the tile, without a mask, and over those of the tile. They carry values in other
    orders."""
    batch, heads, m, _ = q.size()
    dims = hl.specialize(q.size(3))
    out = torch.empty_like(q)
    logsum = torch.empty([batch, heads, m], dtype=torch.float32, device=q.device)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        query = q[b.begin, h.begin, tile_m, :]
        for tile_n in hl.tile(0, tile_m.begin):
            scores = hl.dot(query, k[b.begin, h.begin, tile_n, :].T) * dims**-0.5
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b.begin, h.begin, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        for tile_n in hl.tile(tile_m.begin, tile_m.end):
            scores = hl.dot(query, k[b.begin, h.begin, tile_n, :].T) * dims**-0.5
            scores = torch.where(tile_m.index[:, None] >= tile_n.index[None, :], scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            shrink = torch.exp(highest - raised)
            weights = torch.exp(scores - raised[:, None])
            acc = hl.dot(weights.to(v.dtype), v[b.begin, h.begin, tile_n, :], acc=acc * shrink[:, None])
            total = total * shrink + weights.sum(-1)
            highest = raised
        out[b.begin, h.begin, tile_m, :] = acc / total[:, None]
        logsum[b.begin, h.begin, tile_m] = highest + torch.log(total)
    return out, logsum


def continued(q, k, v, highest_of, total_of, acc_of):
    """Maximum, sum and accumulator begin with those of other keys; inputs `[H, S, D]`."""
    heads, m, _ = q.size()
    dims, out = hl.specialize(q.size(2)), torch.empty_like(q)
    for h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        highest, total = highest_of[h.begin, tile_m], total_of[h.begin, tile_m]
        acc = acc_of[h.begin, tile_m, :]
        for tile_n in hl.tile(k.size(1)):
            scores = hl.dot(q[h.begin, tile_m, :], k[h.begin, tile_n, :].T) * dims**-0.5
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[h.begin, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[h.begin, tile_m, :] = acc / total[:, None]
    return out


def sinks(q, k, v, sink, first: hl.constexpr):
    """Maximum and sum begin with a key without a value, of its own score for each head. Some queries see no other."""
    batch, heads, m, _ = q.size()
    dims = hl.specialize(q.size(3))
    out = torch.empty_like(q)
    logsum = torch.empty([batch, heads, m], dtype=torch.float32, device=q.device)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        highest = hl.zeros([tile_m], dtype=torch.float32) + sink[h.begin]
        total = hl.full([tile_m], 1.0, dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        query = q[b.begin, h.begin, tile_m, :]
        for tile_n in hl.tile(k.size(2)):
            scores = hl.dot(query, k[b.begin, h.begin, tile_n, :].T) * dims**-0.5
            seen = tile_m.index[:, None] >= tile_n.index[None, :] + first
            scores = torch.where(seen, scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b.begin, h.begin, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[b.begin, h.begin, tile_m, :] = acc / total[:, None]
        logsum[b.begin, h.begin, tile_m] = highest + torch.log(total)
    return out, logsum


def one_more(q, k, v):
    """A softmax whose denominator has one more exponential, of 0."""
    heads, m, _ = q.size()
    dims = hl.specialize(q.size(2))
    out = torch.empty_like(q)
    for h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        highest = hl.zeros([tile_m], dtype=torch.float32)
        total = hl.full([tile_m], 1.0, dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(k.size(1)):
            scores = hl.dot(q[h.begin, tile_m, :], k[h.begin, tile_n, :].T) * dims**-0.5
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = acc * shrink[:, None] + hl.dot(weights.to(v.dtype), v[h.begin, tile_n, :])
            highest = raised
        out[h.begin, tile_m, :] = acc / total[:, None]
    return out


def gated(q, k, v, count: hl.constexpr):
    """Causal weights silu(x) / count, in a loop that ends with the tile."""
    heads, m, _ = q.size()
    dims = hl.specialize(q.size(2))
    out = torch.empty_like(q)
    for h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(0, tile_m.end):
            weights = torch.nn.functional.silu(hl.dot(q[h.begin, tile_m, :], k[h.begin, tile_n, :].T) * 0.125) / count
            weights = torch.where(tile_m.index[:, None] >= tile_n.index[None, :], weights, 0.0)
            acc = acc + hl.dot(weights.to(v.dtype), v[h.begin, tile_n, :])
        out[h.begin, tile_m, :] = acc
    return out


def decayed(q, k, v, slopes):
    """Products that decay with the distance, by a rate for each head, and a gate by the queries themselves."""
    heads, m, _ = q.size()
    dims, wide = hl.specialize(q.size(2)), hl.specialize(v.size(2))
    out = torch.empty([heads, m, wide], dtype=q.dtype, device=q.device)
    for h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        acc = hl.zeros([tile_m, wide], dtype=torch.float32)
        slope = slopes[h.begin]
        for tile_n in hl.tile(0, tile_m.end):
            products = hl.dot(q[h.begin, tile_m, :], k[h.begin, tile_n, :].T) * dims**-0.5
            distance = tile_m.index[:, None] - tile_n.index[None, :]
            weights = torch.where(distance >= 0, products * torch.exp(slope * distance), 0.0)
            acc = hl.dot(weights.to(v.dtype), v[h.begin, tile_n, :], acc=acc)
        out[h.begin, tile_m, :] = acc * torch.sigmoid(slope)
    return out


def summed(q, k, v):
    """Exponentials relative to a number, their sum, and a window; keys are no multiple of a block."""
    heads, m, _ = q.size()
    dims = hl.specialize(q.size(2))
    out = torch.empty_like(q)
    totals = torch.empty([heads, m], dtype=torch.float32, device=q.device)
    for h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(k.size(1)):
            scores = hl.dot(q[h.begin, tile_m, :], k[h.begin, tile_n, :].T) * dims**-0.5 - 4.0
            near = (tile_m.index[:, None] - tile_n.index[None, :]).abs() <= 90
            weights = torch.exp(torch.where(near, scores, float("-inf")))
            total = total + weights.sum(-1)
            acc = torch.addmm(acc, weights.to(v.dtype), v[h.begin, tile_n, :])
        out[h.begin, tile_m, :] = acc / total[:, None]
        totals[h.begin, tile_m] = total
    return out, totals


def finite_masks(q, k, v, padding, window: int):
    """Masks by large finite numbers in place of infinities: hidden keys come first in some rows and last in others. In a
    batch of padding alone the mean of those out of the window remains."""
    b, m, d = q.size()
    d = hl.specialize(d)
    out = torch.empty_like(q)
    for i in hl.grid(b):
        for tile_m in hl.tile(m):
            highest = hl.full([tile_m], -1.0e30, dtype=torch.float32)
            total = hl.zeros([tile_m], dtype=torch.float32)
            acc = hl.zeros([tile_m, d], dtype=torch.float32)
            for tile_n in hl.tile(k.size(1)):
                scores = hl.dot(q[i, tile_m, :], k[i, tile_n, :].T) * 0.125 + padding[i, tile_n]
                apart = tile_m.index[:, None] - tile_n.index[None, :]
                scores = torch.where((apart >= 0) & (apart < window), scores, -1.0e30)
                raised = torch.maximum(highest, torch.amax(scores, 1))
                weights = torch.exp(scores - raised[:, None])
                shrink = torch.exp(highest - raised)
                total = total * shrink + weights.sum(1)
                acc = acc * shrink[:, None] + hl.dot(weights.to(v.dtype), v[i, tile_n, :])
                highest = raised
            out[i, tile_m, :] = (acc / total[:, None]).to(q.dtype)
    return out


def _distance(q, k):
    return torch.arange(q.size(-2), device=q.device)[:, None] - torch.arange(k.size(-2), device=q.device)


def _scores(q, k):
    return q.double() @ k.double().mT * q.size(-1) ** -0.5


def _softmax(q, k, v, seen, sink=None):
    """Return attention in fp64, and the logarithm of its sums, to which a score for each head may be added."""
    scores = _scores(q, k).masked_fill(~seen, float("-inf"))
    if sink is not None:
        scores = torch.cat([scores, sink.double()[:, None, None].expand(*scores.shape[:-1], 1)], -1)
    weights = torch.softmax(scores, -1)[..., : k.size(-2)]
    return weights @ v.double(), torch.logsumexp(scores, -1)


def _of_consecutive(q, k, v):
    return _softmax(q, k, v, _distance(q, k) >= 0)


def _of_sinks(q, k, v, sink, first):
    return _softmax(q, k, v, _distance(q, k) >= first, sink)


def _of_one_more(q, k, v):
    return _softmax(q, k, v, _distance(q, k) > -k.size(-2), torch.zeros(q.size(0), device=q.device))[0]


def _of_gated(q, k, v, count):
    x = q.double() @ k.double().mT * 0.125
    return torch.where(_distance(q, k) >= 0, torch.nn.functional.silu(x) / count, 0.0) @ v.double()


def _of_decayed(q, k, v, slopes):
    slope, distance = slopes.double()[:, None, None], _distance(q, k)
    weights = torch.where(distance >= 0, _scores(q, k) * torch.exp(slope * distance), 0.0)
    return weights @ v.double() * torch.sigmoid(slope)


def _of_summed(q, k, v):
    weights = torch.where(_distance(q, k).abs() <= 90, torch.exp(_scores(q, k) - 4.0), 0.0)
    total = weights.sum(-1)
    return weights @ v.double() / total[..., None], total


Named = tuple[str, Callable[..., Any], tuple[Any, ...], Callable[..., Any]]


def _of_finite_masks(q, k, v, padding, window):
    scores = q.double() @ k.double().mT * 0.125 + padding.double()[:, None]
    apart = torch.arange(q.size(1), device=q.device)[:, None] - torch.arange(k.size(1), device=q.device)
    scores = torch.where((apart >= 0) & (apart < window), scores, -1.0e30)
    return torch.softmax(scores, -1) @ v.double()


def loops(three: Callable[..., tuple[torch.Tensor, ...]], device: str, large: bool) -> list[Named]:
    """Return names, kernels, arguments and references; ``three`` makes q, k and v of sizes."""
    found: list[Named] = []
    for size in [(1, 2, 2, 300, 300, 64, 64), *([(2, 3, 3, 1000, 1000, 128, 128)] if large else [])]:
        x = three(*size)
        found.append((f"consecutive {size}", consecutive, x, _of_consecutive))
        found.append((f"gated {size}", gated, (*(each[0] for each in x), 77), _of_gated))
    for size in [(2, 3, 3, 200, 233, 64, 64), *([(2, 4, 4, 1000, 1100, 128, 128)] if large else [])]:
        sink = torch.linspace(-3.0, 4.0, size[1], device=device)
        found.append((f"sinks {size}", sinks, (*three(*size), sink, 9), _of_sinks))
        found.append((f"one more {size}", one_more, tuple(each[0] for each in three(*size)), _of_one_more))
        found.append((f"summed {size}", summed, tuple(each[0] for each in three(*size)), _of_summed))
        padding = torch.zeros(size[1], size[4], device=device)
        padding[0] = torch.finfo(torch.bfloat16).min
        arguments = (*(each[0] for each in three(*size)), padding, size[3] // 3)
        found.append((f"finite masks {size}", finite_masks, arguments, _of_finite_masks))
    for size in [(1, 3, 3, 260, 260, 64, 128), *([(1, 4, 4, 1000, 1000, 128, 64)] if large else [])]:
        slopes = torch.linspace(-0.3, -0.01, size[1], device=device)
        found.append((f"decayed {size}", decayed, (*(each[0] for each in three(*size)), slopes), _of_decayed))
    return found
