"""Products of lines that an index picks, and results that are stored to such lines."""

from __future__ import annotations

import torch

import helion
import helion.language as hl


@helion.kernel(backend="cute")
def gathered(x: torch.Tensor, w: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    (m,), (n, k) = rows.size(), w.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        row = rows[tile_m]
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[row, tile_k], w[tile_n, tile_k].T, acc=acc)
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute")
def gathered_columns(x: torch.Tensor, w: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Logits of some words: columns of the result are lines of the right operand."""
    (m, k), (n,) = x.size(), words.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[words[tile_n], tile_k].T, acc=acc)
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute")
def dequantized(x: torch.Tensor, scale: torch.Tensor, w: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Picked rows of int8, each with a scale."""
    (m,), (n, k) = rows.size(), w.size()
    out = torch.empty([m, n], dtype=w.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        row = rows[tile_m]
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            left = (x[row, tile_k].to(torch.float32) * scale[row][:, None]).to(w.dtype)
            acc = hl.dot(left, w[tile_n, tile_k].T, acc=acc)
        out[tile_m, tile_n] = acc.to(w.dtype)
    return out


@helion.kernel(backend="cute")
def scattered(x: torch.Tensor, w: torch.Tensor, rows: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.size(), w.size(0)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_n, tile_k].T, acc=acc)
        out[rows[tile_m], tile_n] = acc.to(out.dtype)
    return out


@helion.kernel(backend="cute")
def routed(
    x: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    tokens: torch.Tensor,
    offsets: torch.Tensor,
) -> torch.Tensor:
    """SwiGLU of picked rows by the matrices of their groups."""
    (slots,), (groups, n, k) = tokens.size(), gate.size()
    out = torch.zeros([slots, n], dtype=x.dtype, device=x.device)
    for g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        for tile_m in hl.tile(offsets[g.id], offsets[g.id + 1]):
            token = tokens[tile_m]
            first = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            second = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                rows = x[token, tile_k]
                first = hl.dot(rows, gate[g.id, tile_n, tile_k].T, acc=first)
                second = hl.dot(rows, up[g.id, tile_n, tile_k].T, acc=second)
            out[tile_m, tile_n] = (torch.nn.functional.silu(first) * second).to(x.dtype)
    return out


@helion.kernel(backend="cute")
def combined(
    x: torch.Tensor,
    w: torch.Tensor,
    tokens: torch.Tensor,
    weight: torch.Tensor,
    offsets: torch.Tensor,
    out: torch.Tensor,
) -> torch.Tensor:
    """Rows times the matrices of their groups, times a weight, added to the rows of their tokens."""
    groups, k, n = w.size()
    for g in hl.grid(groups):
        start = offsets[g]
        for tile_m, tile_n in hl.tile([offsets[g + 1] - start, n]):
            at = start + tile_m.index
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[at, tile_k], w[g, tile_k, tile_n], acc=acc)
            hl.atomic_add(out, [tokens[at], tile_n], (acc * weight[at][:, None]).to(out.dtype))
    return out


@helion.kernel(backend="cute")
def added(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """A product that is added to a matrix of any strides."""
    (m, k), n = x.size(), w.size(0)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_n, tile_k].T, acc=acc)
        hl.atomic_add(out, [tile_m, tile_n], acc.to(out.dtype))
    return out


@helion.kernel(backend="cute")
def inner(x: torch.Tensor, w: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Picked along K."""
    (m, _), n, (k,) = x.size(), w.size(1), rows.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[rows[tile_k], tile_n], acc=acc)
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute")
def inner_columns(x: torch.Tensor, w: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Columns of the left operand, each with a factor."""
    m, (k, n) = x.size(0), w.size()
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, columns[tile_k]], w[tile_k, tile_n] * 0.5, acc=acc)
        out[tile_m, tile_n] = acc
    return out


@helion.kernel(backend="cute")
def weight_gradient(x: torch.Tensor, rows: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Both operands are contiguous across K, of which an index picks."""
    (k, n), m = g.size(), x.size(1)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[rows[tile_k], tile_m].T, g[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


@helion.kernel(backend="cute")
def twice(x: torch.Tensor, w: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Elements that two vectors pick."""
    (m,), (k,), n = rows.size(), columns.size(), w.size(1)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[rows[tile_m], columns[tile_k]], w[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


@helion.kernel(backend="cute")
def with_bias(x: torch.Tensor, w: torch.Tensor, rows: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """An epilogue that reads picked lines."""
    (m, k), n = x.size(), w.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_n, tile_k].T, acc=acc)
        out[tile_m, tile_n] = (acc + bias[rows[tile_m], tile_n]).to(x.dtype)
    return out
