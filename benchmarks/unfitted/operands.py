"""Products of training and decoding: gradients through activations, split results, and experts of few tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, E4M3, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def back_through_gelu(grad: torch.Tensor, w: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`(grad[T, D] @ w[D, N]) * gelu'(hidden[T, N])` of a feed-forward layer, and its column sums in fp32."""
    t, d = grad.size()
    n = w.size(1)
    out = torch.empty_like(hidden)
    sums = torch.zeros([n], dtype=torch.float32, device=grad.device)
    for rows, cols in hl.tile([t, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(d):
            acc = hl.dot(grad[rows, inner], w[inner, cols], acc=acc)
        x = hidden[rows, cols].to(torch.float32)
        slope = 0.5 * (1.0 + torch.erf(x * 0.7071067811865476)) + x * torch.exp(-0.5 * x * x) * 0.3989422804014327
        acc = acc * slope
        out[rows, cols] = acc.to(out.dtype)
        hl.atomic_add(sums, [cols], acc.sum(0))
    return out, sums


def back_through_gelu_torch(
    grad: torch.Tensor, w: torch.Tensor, hidden: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    x = high(hidden)
    slope = 0.5 * (1.0 + torch.erf(x * 0.7071067811865476)) + x * torch.exp(-0.5 * x * x) * 0.3989422804014327
    y = high(grad @ w) * slope
    return y.to(hidden.dtype), y.sum(0)


def make_back_through_gelu(device: str, small: bool) -> Arguments:
    t, d, n = (37, 40, 24) if small else (8192, 1280, 5120)
    grad, w = normal(device, t, d, dtype=BF16), normal(device, d, n, dtype=BF16, scale=d**-0.5)
    return grad, w, normal(device, t, n, dtype=BF16)


CELLS.add(back_through_gelu, make_back_through_gelu, back_through_gelu_torch)


@helion.kernel
def three_way_projection(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, groups: int, dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`x[T, K] @ w[(H + 2 G) D, K].T + bias`, stored as queries `[H, T, D]`, keys and values `[G, T, D]`."""
    t, k = x.size()
    dim = hl.specialize(dim)
    both = w.size(0) // dim
    heads = both - 2 * groups
    q = torch.empty([heads, t, dim], dtype=x.dtype, device=x.device)
    keys = torch.empty([groups, t, dim], dtype=x.dtype, device=x.device)
    values = torch.empty_like(keys)
    for tile, rows in hl.tile([both, t], block_size=[1, None]):
        head = tile.begin
        own = head * dim + hl.arange(dim)
        acc = hl.zeros([rows, dim], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = hl.dot(x[rows, inner], w[own, inner].T, acc=acc)
        y = (acc + bias[own].to(torch.float32)[None, :]).to(x.dtype)
        if head < heads:
            q[head, rows, :] = y
        elif head < heads + groups:
            keys[head - heads, rows, :] = y
        else:
            values[head - heads - groups, rows, :] = y
    return q, keys, values


def three_way_projection_torch(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, groups: int, dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    y = F.linear(x, w, bias).unflatten(1, [-1, dim]).transpose(0, 1)
    q, k, v = y.split([y.size(0) - 2 * groups, groups, groups])
    return q.contiguous(), k.contiguous(), v.contiguous()


def make_three_way_projection(device: str, small: bool) -> Arguments:
    t, k, h, g, d = (13, 40, 4, 2, 16) if small else (4096, 4096, 32, 8, 128)
    n = (h + 2 * g) * d
    w = normal(device, n, k, dtype=BF16, scale=k**-0.5)
    return normal(device, t, k, dtype=BF16), w, normal(device, n, dtype=BF16), g, d


CELLS.add(three_way_projection, make_three_way_projection, three_way_projection_torch)


@helion.kernel
def highway_layer(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`g tanh(x a) + (1 - g) x` with `g = sigmoid(x b + bias)`; a and b are `w[2, D, D]`, with columns along K."""
    m, d = x.size()
    out = torch.empty_like(x)
    for rows, cols in hl.tile([m, d]):
        value = hl.zeros([rows, cols], dtype=torch.float32)
        gate = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(d):
            own = x[rows, inner]
            value = torch.addmm(value, own, w[0, inner, cols])
            gate = torch.addmm(gate, own, w[1, inner, cols])
        gate = torch.sigmoid(gate + bias[cols][None, :])
        out[rows, cols] = torch.lerp(x[rows, cols].to(torch.float32), torch.tanh(value), gate).to(x.dtype)
    return out


def highway_layer_torch(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    value, gate = high(x @ w[0]), torch.sigmoid(high(x @ w[1]) + bias)
    return torch.lerp(high(x), torch.tanh(value), gate).to(x.dtype)


def make_highway_layer(device: str, small: bool) -> Arguments:
    m, d = (13, 40) if small else (6000, 2048)
    return normal(device, m, d, dtype=BF16), normal(device, 2, d, d, dtype=BF16, scale=d**-0.5), normal(device, d) - 2.0


CELLS.add(highway_layer, make_highway_layer, highway_layer_torch)


@helion.kernel
def fp8_input_gradient(grad: torch.Tensor, w: torch.Tensor, scales: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
    """`grad[M, N] @ w[N, K]` of e4m3 and one scale of each, `scales[2]`, plus a gradient in bf16 that skips the layer."""
    m, n = grad.size()
    k = w.size(1)
    out = torch.empty_like(skip)
    for rows, cols in hl.tile([m, k]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(n):
            acc = hl.dot(grad[rows, inner], w[inner, cols], acc=acc)
        out[rows, cols] = (acc * (scales[0] * scales[1]) + skip[rows, cols].to(torch.float32)).to(skip.dtype)
    return out


def fp8_input_gradient_torch(
    grad: torch.Tensor, w: torch.Tensor, scales: torch.Tensor, skip: torch.Tensor
) -> torch.Tensor:
    y = grad.to(scales.dtype) @ w.to(scales.dtype)
    return (y * (scales[0] * scales[1]) + high(skip)).to(skip.dtype)


def fp8_input_gradient_baseline(
    grad: torch.Tensor, w: torch.Tensor, scales: torch.Tensor, skip: torch.Tensor
) -> torch.Tensor:
    columns = w.T.contiguous().T
    return torch._scaled_mm(grad, columns, scale_a=scales[0], scale_b=scales[1], out_dtype=BF16) + skip


def make_fp8_input_gradient(device: str, small: bool) -> Arguments:
    m, n, k = (16, 64, 48) if small else (8192, 4096, 3072)
    grad, w = normal(device, m, n).to(E4M3), normal(device, n, k).to(E4M3)
    return grad, w, torch.rand([2], device=device) * n**-0.25 + n**-0.25, normal(device, m, k, dtype=BF16)


CELLS.add(fp8_input_gradient, make_fp8_input_gradient, fp8_input_gradient_torch, fp8_input_gradient_baseline)


@helion.kernel
def absorbed_queries(q: torch.Tensor, w: torch.Tensor, rotary: int) -> torch.Tensor:
    """The first D numbers of queries `q[B, H, D + R]` times `w[H, D, L]` of their head, and the last R behind that."""
    b, h, _ = q.size()
    latent = w.size(2)
    d, rotary = hl.specialize(w.size(1)), hl.specialize(rotary)
    out = torch.empty([b, h, latent + rotary], dtype=q.dtype, device=q.device)
    for heads, rows, cols in hl.tile([h, b, latent], block_size=[1, None, None]):
        head = heads.begin
        acc = hl.dot(q[rows, head, hl.arange(d)], w[head, :, cols])
        out[rows, head, cols] = acc.to(q.dtype)
        if cols.begin == 0:
            out[rows, head, latent + hl.arange(rotary)] = q[rows, head, d + hl.arange(rotary)]
    return out


def absorbed_queries_torch(q: torch.Tensor, w: torch.Tensor, rotary: int) -> torch.Tensor:
    own, turned = q.split([w.size(1), rotary], -1)
    return torch.cat([torch.bmm(own.transpose(0, 1), w).transpose(0, 1), turned], -1)


def make_absorbed_queries(device: str, small: bool) -> Arguments:
    b, h, d, latent, r = (5, 3, 32, 48, 16) if small else (512, 128, 128, 512, 64)
    q = normal(device, b, h, d + r, dtype=BF16)
    return q, normal(device, h, d, latent, dtype=BF16, scale=d**-0.5), r


CELLS.add(absorbed_queries, make_absorbed_queries, absorbed_queries_torch)


@helion.kernel
def few_tokens_experts(x: torch.Tensor, w: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """`sum_j weights[T, J] relu(x[T, K] w[e_j, N, K].T)` for the J experts of each of a few tokens."""
    t, k = x.size()
    n = w.size(1)
    top = hl.specialize(experts.size(1))
    out = torch.zeros([t, n], dtype=torch.float32, device=x.device)
    for token, cols in hl.tile([t, n], block_size=[1, None]):
        ti = token.begin
        total = hl.zeros([cols], dtype=torch.float32)
        for j in hl.static_range(top):
            expert = experts[ti, j]
            acc = hl.zeros([cols], dtype=torch.float32)
            for inner in hl.tile(k):
                own = x[ti, inner].to(torch.float32)
                acc += (w[expert, cols, inner].to(torch.float32) * own[None, :]).sum(-1)
            total += torch.relu(acc) * weights[ti, j]
        out[ti, cols] = total
    return out


def few_tokens_experts_torch(
    x: torch.Tensor, w: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    y = torch.relu(high(torch.einsum("tk,tjnk->tjn", x, w[experts])))
    return (y * weights[:, :, None]).sum(1)


def make_few_tokens_experts(device: str, small: bool) -> Arguments:
    t, k, n, e, top = (3, 40, 48, 6, 2) if small else (4, 2048, 1536, 64, 6)
    experts = torch.argsort(torch.rand([t, e], device=device), 1)[:, :top]
    w = normal(device, e, n, k, dtype=BF16, scale=k**-0.5)
    return normal(device, t, k, dtype=BF16), w, experts, torch.rand([t, top], device=device)


CELLS.add(few_tokens_experts, make_few_tokens_experts, few_tokens_experts_torch)
