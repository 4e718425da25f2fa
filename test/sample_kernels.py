"""Kernels, not yet decorated, that several tests look at."""

from __future__ import annotations

import torch

import helion.language as hl


def add(x, y):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + y[tile]
    return out


def attention(q, k, v):
    m, n, d = q.size(1), k.size(2), hl.specialize(q.size(2))
    out = torch.empty_like(q)
    for tile_b, tile_m in hl.tile([q.size(0), m]):
        highest = hl.full([tile_b, tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_b, tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_b, tile_m, d], dtype=torch.float32)
        queries = q[tile_b, tile_m, :]
        for tile_n in hl.tile(n):
            scores = torch.bmm(queries, k[tile_b, :, tile_n]).to(torch.float32)
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp2(scores - raised[:, :, None])
            alpha = torch.exp2(highest - raised)
            total = total * alpha + torch.sum(weights, -1)
            acc = torch.baddbmm(acc * alpha[:, :, None], weights.to(v.dtype), v[tile_b, tile_n, :])
            highest = raised
        out[tile_b, tile_m, :] = (acc / total[:, :, None]).to(out.dtype)
    return out


def bmm(a, b):
    batch, m, k = a.size()
    n = b.size(2)
    out = torch.empty([batch, m, n], dtype=a.dtype, device=a.device)
    for tile_b, tile_m, tile_n in hl.tile([batch, m, n]):
        acc = hl.zeros([tile_b, tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.baddbmm(acc, a[tile_b, tile_m, tile_k], b[tile_b, tile_k, tile_n])
        out[tile_b, tile_m, tile_n] = acc
    return out


def matmul(x, y):
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


def matmul_to_bf16(x, y):
    """For operands that torch does not multiply on its own, such as fp8."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


def product_of_bytes(x, y):
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.int32, device=x.device)
    for tile_m, tile_n in hl.tile(out.size()):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.int32)
        for tile_k in hl.tile(x.size(1)):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


def row_sum(x):
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, :].to(torch.float32).sum(-1)
    return out


def scan(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.cumsum(x[tile, :], dim=1)
    return out


def softmax(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :], dim=-1)
    return out


def transpose(x):
    m, n = x.size()
    out = torch.empty([n, m], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_n, tile_m] = x[tile_m, tile_n].T
    return out
