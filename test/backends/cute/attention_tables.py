"""Attention with biases that are looked up by computed indices, as users write it, and its results in fp64."""

from __future__ import annotations

from typing import Any

import torch

import helion.language as hl

KINDS = ("distance", "clamped", "absolute", "buckets", "matrix", "documents")
"""Indices of biases: distances, clamped ones, absolute ones; those in buckets of distances, and of pairs. Of ``documents``,
which are looked up for queries and keys, masks are made as well."""
NEAR = 16


def biased(q, k, v, bias, numbers, kind: hl.constexpr):
    """Attention `[H, S, D]` with scores plus `bias[H, T]`; ``numbers`` are integers of the index."""
    heads, m, dims = q.size()
    n, dims = k.size(1), hl.specialize(dims)
    out = torch.empty_like(q)
    for h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        query = q[h.begin, tile_m, :]
        for tile_n in hl.tile(n):
            distance = tile_n.index[None, :] - tile_m.index[:, None]
            if kind == "clamped":
                index = torch.clamp(distance, -NEAR, NEAR) + NEAR
            elif kind == "absolute":
                index = torch.minimum(torch.abs(distance) // 2, 2 * NEAR - 1)
            elif kind == "buckets":
                index = numbers[distance + m - 1]
            elif kind == "matrix":
                index = numbers[tile_m, tile_n]
            else:
                index = distance + m - 1
            scores = hl.dot(query, k[h.begin, tile_n, :].T) * dims**-0.5 + bias[h.begin, index]
            if kind == "documents":
                scores = torch.where(numbers[index] >= 0, scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[h.begin, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[h.begin, tile_m, :] = acc / total[:, None]
    return out


def given_of(
    kind: str, m: int, n: int, dims: int = 64, heads: int = 3, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> tuple[Any, ...]:
    """Return the arguments of ``biased``."""
    q, k, v = (torch.randn(heads, rows, dims, device=device).add(0.2).bfloat16() for rows in (m, n, n))
    numbers = torch.randint(0, 2 * NEAR, (m, n) if kind == "matrix" else (m + n,), dtype=torch.int32, device=device)
    if kind == "documents":
        numbers = torch.where(torch.arange(m + n, device=device) % 3 == 1, -1, numbers)
    size = m + n if kind in ("distance", "documents") else 2 * NEAR + 1
    return q, k, v, torch.randn(heads, size, device=device).to(dtype), numbers, kind


def of_biased(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, numbers: torch.Tensor, kind: str
) -> torch.Tensor:
    m, n = q.size(1), k.size(1)
    distance = torch.arange(n, device=q.device) - torch.arange(m, device=q.device)[:, None]
    index = distance + m - 1
    if kind == "clamped":
        index = distance.clamp(-NEAR, NEAR) + NEAR
    elif kind == "absolute":
        index = (distance.abs() // 2).clamp(max=2 * NEAR - 1)
    elif kind == "buckets":
        index = numbers[index].long()
    elif kind == "matrix":
        index = numbers.long()
    scores = q.double() @ k.double().mT * q.size(2) ** -0.5 + bias.double()[:, index]
    if kind == "documents":
        scores = scores.masked_fill(numbers[index] < 0, float("-inf"))
    return torch.softmax(scores, -1) @ v.double()
