"""Products whose epilogues reduce tiles of a grid over rows and columns, with their results in fp64."""

from __future__ import annotations

import torch

import helion.language as hl


def group_scales(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Write ``x @ w`` to ``out`` in e4m3, with a scale for each row and 128 columns, and return the scales."""
    m, k = x.size()
    n = w.size(1)
    scales = torch.empty([m, n // 128], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n], block_size=[None, 128]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_k, tile_n], acc=acc)
        scale = torch.amax(acc.abs(), -1) / 448.0
        out[tile_m, tile_n] = (acc / scale[:, None]).to(out.dtype)
        scales[tile_m, tile_n.id] = scale
    return scales


def block_scales(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Write ``x @ w`` to ``out`` in e4m3, with a scale for each 128 rows and columns, and return the scales."""
    m, k = x.size()
    n = w.size(1)
    scales = torch.empty([m // 128, n // 128], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n], block_size=[128, 128]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_k, tile_n], acc=acc)
        scale = torch.amax(acc.abs()) / 448.0
        out[tile_m, tile_n] = (acc / scale).to(out.dtype)
        scales[tile_m.id, tile_n.id] = scale
    return scales


def tile_sums(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return the sums of 64 columns of ``relu(x @ w + bias)`` each."""
    m, k = x.size()
    n = w.size(1)
    out = torch.empty([n // 64, m], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n], block_size=[None, 64]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_k, tile_n], acc=acc)
        out[tile_n.id, tile_m] = torch.relu(acc + bias[tile_n]).sum(-1)
    return out


def tile_tops(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return the largest of 64 columns of ``x @ w`` each."""
    m, k = x.size()
    n = w.size(1)
    out = torch.empty([m, n // 64], dtype=torch.float32, device=x.device)
    for tile_n, tile_m in hl.tile([n, m], block_size=[64, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n.id] = torch.amax(acc, -1)
    return out


def square_sums(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return half of the sums of the squares of the rows of ``x @ w``, to which programs add those of their tiles."""
    m, k = x.size()
    n = w.size(1)
    out = torch.zeros([m], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_k, tile_n], acc=acc)
        hl.atomic_add(out, [tile_m], (acc * acc).sum(-1) * 0.5)
    return out


def column_sums(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``x @ w`` and the sums of its columns."""
    m, k = x.size()
    n = w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    total = torch.zeros([n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc.to(out.dtype)
        hl.atomic_add(total, [tile_n], acc.sum(0))
    return out, total


def shares(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return the shares of the two largest columns of ``x @ w`` in the softmax of both, by five dependent reductions."""
    m, k = x.size()
    n = hl.specialize(w.size(1))
    out = torch.empty([m, 2], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_k, :], acc=acc)
        weights = torch.softmax(acc, dim=-1)
        first, place = torch.amax(weights, dim=-1), torch.argmax(weights, dim=-1)
        rest = torch.where(hl.arange(n)[None, :] == place[:, None], -1.0, weights)
        second = torch.amax(rest, dim=-1)
        out[tile_m, 0] = first / (first + second)
        out[tile_m, 1] = second / (first + second)
    return out


def numbered(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return the position of the largest of 64 columns, among all columns."""
    m, k = x.size()
    n = w.size(1)
    out = torch.empty([m, n // 64], dtype=torch.int64, device=x.device)
    for tile_m, tile_n in hl.tile([m, n], block_size=[None, 64]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n.id] = torch.argmax(acc, -1) + tile_n.begin
    return out


def top_sums(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return sums of the largest columns of tiles, which depend on the size of tiles."""
    m, k = x.size()
    n = w.size(1)
    out = torch.zeros([m], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_k, tile_n], acc=acc)
        hl.atomic_add(out, [tile_m], torch.amax(acc, -1))
    return out


def roots(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return sums of the roots of sums over tiles, which depend on the size of tiles."""
    m, k = x.size()
    n = w.size(1)
    out = torch.zeros([m], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_k, tile_n], acc=acc)
        hl.atomic_add(out, [tile_m], torch.sqrt((acc * acc).sum(-1)))
    return out
