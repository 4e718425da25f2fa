"""Products one behind the other, with a long K, of narrow numbers, and in disguise."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl
from helion.autotuner import PowerOfTwoFragment


@helion.kernel()
def weight_gradient(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`grad[T, N].T @ x[T, K]` in fp32: few tiles of output, all tokens to sum up."""
    tokens, n = grad.size()
    k = x.size(1)
    out = torch.empty([n, k], dtype=torch.float32, device=x.device)
    for tile_n, tile_k in hl.tile([n, k]):
        acc = hl.zeros([tile_n, tile_k], dtype=torch.float32)
        for tile_t in hl.tile(tokens):
            acc = hl.dot(grad[tile_t, tile_n].T, x[tile_t, tile_k], acc=acc)
        out[tile_n, tile_k] = acc
    return out


@helion.kernel()
def long_product(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`gelu(x[M, K] @ y[K, N] + bias[N])` with a K much longer than M and N."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = F.gelu(acc + bias[tile_n]).to(x.dtype)
    return out


@helion.kernel()
def tuned_split(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The product with K in parts, whose number is a tunable, added up by atomics."""
    m, k = x.size()
    n = y.size(1)
    out = torch.zeros([m, n], dtype=torch.float32, device=x.device)
    parts = hl.register_tunable("parts", PowerOfTwoFragment(1, 256))
    span = helion.next_power_of_2(helion.cdiv(k, parts))
    for tile_m, tile_n, outer in hl.tile([m, n, k], block_size=[None, None, span]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for inner in hl.tile(outer.begin, outer.end):
            acc = torch.addmm(acc, x[tile_m, inner], y[inner, tile_n])
        hl.atomic_add(out, [tile_m, tile_n], acc)
    return out


@helion.kernel()
def two_layers(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """`relu(x[M, K] @ first[K, H]) @ second[H, N]` without the hidden values in memory; K and N are held."""
    m, k = x.size()
    hidden, n = second.size()
    k, n = hl.specialize(k), hl.specialize(n)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        rows = x[tile_m, :]
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_h in hl.tile(hidden):
            middle = torch.relu(hl.dot(rows, first[:, tile_h]))
            acc = hl.dot(middle.to(x.dtype), second[tile_h, :], acc=acc)
        out[tile_m, :] = acc.to(x.dtype)
    return out


@helion.kernel()
def sum_of_two(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """`a[M, K] @ b[K, N] + c[M, L] @ d[L, N]`, one loop behind the other."""
    m, k = a.size()
    n, other = b.size(1), c.size(1)
    out = torch.empty([m, n], dtype=a.dtype, device=a.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, a[tile_m, tile_k], b[tile_k, tile_n])
        for tile_l in hl.tile(other):
            acc = torch.addmm(acc, c[tile_m, tile_l], d[tile_l, tile_n])
        out[tile_m, tile_n] = acc.to(a.dtype)
    return out


@helion.kernel()
def adapter(x: torch.Tensor, weight: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """`x @ weight.T + (x @ down.T) @ up.T` of `weight[N, K]`, `down[R, K]`, `up[N, R]`: a low-rank adapter."""
    m, k = x.size()
    n, rank = weight.size(0), hl.specialize(down.size(0))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        low = hl.zeros([tile_m, rank], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = x[tile_m, tile_k]
            acc = hl.dot(rows, weight[tile_n, tile_k].T, acc=acc)
            low = hl.dot(rows, down[:, tile_k].T, acc=low)
        acc = hl.dot(low.to(x.dtype), up[tile_n, :].T, acc=acc)
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel()
def dense_int8(x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    """int8 `x[M, K] @ w[N, K].T` in bf16, a scale for each row and each column."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.int32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_n, tile_k].T, acc=acc)
        scaled = acc.to(torch.float32) * x_scale[tile_m][:, None] * w_scale[tile_n][None, :]
        out[tile_m, tile_n] = scaled.to(torch.bfloat16)
    return out


@helion.kernel()
def weight_only_int8(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """`x[M, K] @ (w[N, K].T * scale[N])` with int8 weights."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_n, tile_k].T.to(x.dtype))
        out[tile_m, tile_n] = (acc * scale[tile_n][None, :]).to(x.dtype)
    return out


@helion.kernel()
def grouped_int4_weights(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Weights of 4 bits, two neighbours along K in a byte of `packed[K / 2, N]`, `scales[K / 128, N]`."""
    m, k = x.size()
    n = packed.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    block = hl.register_block_size(16, 64)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_p in hl.tile(k // 2, block_size=block):
            both = packed[tile_p, tile_n]
            low = ((both << 4) >> 4).to(torch.float32)
            high = (both >> 4).to(torch.float32)
            weights = hl.join(low, high).permute(0, 2, 1).reshape(block * 2, tile_n.block_size)
            scale = scales[tile_p.begin // 64, tile_n].to(torch.float32)
            rows = x[tile_m, tile_p.begin * 2 + hl.arange(block * 2)]
            acc = hl.dot(rows, (weights * scale[None, :]).to(x.dtype), acc=acc)
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel()
def rowwise_fp8(x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    """fp8 `x[M, K] @ w[N, K].T` in bf16, a scale for each row and each column."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_n, tile_k].T, acc=acc)
        out[tile_m, tile_n] = (acc * x_scale[tile_m][:, None] * w_scale[tile_n][None, :]).to(torch.bfloat16)
    return out


@helion.kernel()
def blockwise_fp8(x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    """The same with a scale for 1 by 128 elements of x, `x_scale[M, K / 128]`, and for 128 by 128 of w."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k, block_size=128):
            part = hl.dot(x[tile_m, tile_k], w[tile_n, tile_k].T)
            columns = w_scale[tile_n.index // 128, tile_k.id]
            acc += part * x_scale[tile_m, tile_k.id][:, None] * columns[None, :]
        out[tile_m, tile_n] = acc.to(torch.bfloat16)
    return out


@helion.kernel()
def convolution_nhwc(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """3 by 3 over `x[B, H, W, C]`, already padded by one, with `w[3, 3, C, F]`: a product for each tap."""
    b, h, wide, c = x.size()
    f = w.size(3)
    h, wide = h - 2, wide - 2
    pixels = b * h * wide
    out = torch.empty([pixels, f], dtype=x.dtype, device=x.device)
    flat = x.view(-1, c)
    for tile_p, tile_f in hl.tile([pixels, f]):
        image = tile_p.index // (h * wide)
        row = tile_p.index // wide % h
        column = tile_p.index % wide
        acc = hl.zeros([tile_p, tile_f], dtype=torch.float32)
        for dy in hl.static_range(3):
            for dx in hl.static_range(3):
                at = (image * (h + 2) + row + dy) * (wide + 2) + column + dx
                for tile_c in hl.tile(c):
                    acc = torch.addmm(acc, flat[at, tile_c], w[dy, dx, tile_c, tile_f])
        out[tile_p, tile_f] = acc.to(x.dtype)
    return out.view(b, h, wide, f)


@helion.kernel()
def shifted_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """`x[:, 1:] @ y[1:]`: rows that begin anywhere."""
    x, y = x[:, 1:], y[1:]
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel()
def linear_layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`x[M, K] @ weight[N, K].T + bias[N]`: in fp32, products of TF32."""
    m, k = x.size()
    n = weight.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], weight[tile_n, tile_k].T, acc=acc)
        out[tile_m, tile_n] = (acc + bias[tile_n][None, :]).to(x.dtype)
    return out


@helion.kernel()
def manhattan(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """`sum(|x[M, K] - y[N, K]|)` of every pair of rows: a contraction without a product."""
    m, k = x.size()
    n = y.size(0)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            left, right = x[tile_m, tile_k].to(torch.float32), y[tile_n, tile_k].to(torch.float32)
            acc = acc + torch.abs(left[:, None, :] - right[None, :, :]).sum(-1)
        out[tile_m, tile_n] = acc
    return out
