"""Weights and activations of few bits, experts and their routers, and gradients of layers, attention and adapters."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, E4M3, FP16, Arguments, Cells, below, high, normal

CELLS = Cells()


@helion.kernel
def gptq_linear(
    x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, group: int
) -> torch.Tensor:
    """`x[M, K]` times 4-bit weights: eight rows of K in an int32 of `packed[K / 8, N]`, scales and zeros `[K / group, N]`."""
    m, k = x.size()
    n = packed.size(1)
    eighths, parts = x.view(m, k // 8, 8), hl.specialize(group) // 8
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, cols in hl.tile([m, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for words in hl.tile(k // 8):
            word = packed[words, cols]
            scale = scales[words.index // parts, cols]
            zero = zeros[words.index // parts, cols]
            for nibble in hl.static_range(8):
                q = ((word >> (4 * nibble)) & 15).to(x.dtype)
                acc = hl.dot(eighths[rows, words, nibble], (q - zero) * scale, acc=acc)
        out[rows, cols] = acc.to(x.dtype)
    return out


def gptq_linear_torch(
    x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, group: int
) -> torch.Tensor:
    shifts = 4 * torch.arange(8, device=x.device, dtype=torch.int32)
    q = ((packed[:, None] >> shifts[None, :, None]) & 15).to(x.dtype).view(-1, group, packed.size(1))
    return x @ ((q - zeros[:, None]) * scales[:, None]).flatten(0, 1)


def make_gptq_linear(device: str, small: bool) -> Arguments:
    m, k, n, group = (5, 256, 40, 128) if small else (24, 4096, 11008, 128)
    packed = torch.randint(-(2**31), 2**31 - 1, [k // 8, n], device=device, dtype=torch.int32)
    scales = ((torch.rand([k // group, n], device=device) + 0.5) * 0.02).to(FP16)
    zeros = torch.randint(6, 10, [k // group, n], device=device).to(FP16)
    return normal(device, m, k, dtype=FP16), packed, scales, zeros, group


CELLS.add(gptq_linear, make_gptq_linear, gptq_linear_torch)


@helion.kernel
def two_bit_linear(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """`x[M, K]` times weights of -1.5 to 1.5: quarters of K in a byte of `packed[N, K / 4]`, with a scale for each row."""
    m, k = x.size()
    n = packed.size(0)
    quarter = k // 4
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, cols in hl.tile([m, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(quarter):
            byte = packed[cols, inner].to(torch.int32)
            for place in hl.static_range(4):
                q = ((byte >> (2 * place)) & 3).to(x.dtype) - 1.5
                acc = hl.dot(x[rows, inner.index + place * quarter], q.T, acc=acc)
        out[rows, cols] = (acc * scales[cols][None, :]).to(x.dtype)
    return out


def two_bit_linear_torch(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    w = torch.cat([((packed >> (2 * place)) & 3).to(x.dtype) - 1.5 for place in range(4)], 1)
    return (high(x @ w.T) * scales).to(x.dtype)


def make_two_bit_linear(device: str, small: bool) -> Arguments:
    m, k, n = (5, 128, 40) if small else (100, 5120, 13824)
    packed = torch.randint(0, 256, [n, k // 4], device=device, dtype=torch.uint8)
    return normal(device, m, k, dtype=BF16), packed, (torch.rand([n], device=device) + 0.5) * 0.02


CELLS.add(two_bit_linear, make_two_bit_linear, two_bit_linear_torch)


@helion.kernel
def normal_float_linear(
    x: torch.Tensor, packed: torch.Tensor, levels: torch.Tensor, peaks: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """`x[M, K]` times NF4 weights `packed[N, K / 2]` of two of 16 `levels` in a byte, with a peak for each 64, and bias."""
    m, k = x.size()
    n = packed.size(0)
    pairs = x.view(m, k // 2, 2)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, cols in hl.tile([m, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k // 2):
            byte = packed[cols, inner].to(torch.int32)
            peak = peaks[cols, inner.index // 32]
            low = (levels[byte & 15] * peak).to(x.dtype)
            top = (levels[byte >> 4] * peak).to(x.dtype)
            acc = hl.dot(pairs[rows, inner, 0], low.T, acc=acc)
            acc = hl.dot(pairs[rows, inner, 1], top.T, acc=acc)
        out[rows, cols] = (acc + bias[cols].to(torch.float32)[None, :]).to(x.dtype)
    return out


def normal_float_linear_torch(
    x: torch.Tensor, packed: torch.Tensor, levels: torch.Tensor, peaks: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(1).to(torch.int32)
    w = (levels[codes] * peaks.repeat_interleave(64, 1)).to(x.dtype)
    return F.linear(x, w, bias)


def make_normal_float_linear(device: str, small: bool) -> Arguments:
    m, k, n = (5, 128, 40) if small else (333, 2048, 5504)
    packed = torch.randint(0, 256, [n, k // 2], device=device, dtype=torch.uint8)
    levels = torch.sort(torch.rand([16], device=device) * 2 - 1).values
    peaks = torch.rand([n, k // 64], device=device) * 0.05 + 0.01
    return normal(device, m, k, dtype=BF16), packed, levels, peaks, normal(device, n, dtype=BF16)


CELLS.add(normal_float_linear, make_normal_float_linear, normal_float_linear_torch)


@helion.kernel
def quantize_on_the_fly(x: torch.Tensor, w: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    """`x[M, K] w[N, K].T` with w in e4m3, a scale of each row, and x cast to e4m3 in the loop: a scale of each 128."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, cols in hl.tile([m, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k, block_size=128):
            own = x[rows, inner].to(torch.float32)
            scale = torch.clamp(torch.abs(own).amax(-1), min=1e-4) / 448.0
            part = hl.dot((own / scale[:, None]).to(torch.float8_e4m3fn), w[cols, inner].T)
            acc += part * scale[:, None]
        out[rows, cols] = (acc * w_scale[cols][None, :]).to(x.dtype)
    return out


def quantize_on_the_fly_torch(x: torch.Tensor, w: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    own = x.float().unflatten(1, [-1, 128])
    scale = own.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448.0
    own = ((own / scale).to(E4M3).float() * scale).flatten(1)
    return (own @ w.float().T * w_scale).to(x.dtype)


def quantize_on_the_fly_baseline(x: torch.Tensor, w: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    own = x.float().unflatten(1, [-1, 128])
    scale = own.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448.0
    own = ((own / scale).to(E4M3).float() * scale).flatten(1).to(x.dtype)
    return (high(own @ w.to(x.dtype).T) * w_scale).to(x.dtype)


def make_quantize_on_the_fly(device: str, small: bool) -> Arguments:
    m, k, n = (13, 256, 40) if small else (1500, 4096, 6144)
    w = normal(device, n, k).to(E4M3)
    return normal(device, m, k, dtype=BF16), w, (torch.rand([n], device=device) + 0.5) * k**-0.5


CELLS.add(quantize_on_the_fly, make_quantize_on_the_fly, quantize_on_the_fly_torch, quantize_on_the_fly_baseline)


@helion.kernel
def int4_activations(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantize groups of 64 of `x[T, K]` between their extremes: two 4-bit numbers in a byte, a scale and a minimum."""
    t, k = x.size()
    groups = k // 64
    packed = torch.empty([t, groups, 32], dtype=torch.uint8, device=x.device)
    scales = torch.empty([t, groups], dtype=torch.float16, device=x.device)
    lows = torch.empty([t, groups], dtype=torch.float16, device=x.device)
    pairs = x.view(t, groups, 32, 2)
    for rows, parts in hl.tile([t, groups]):
        first, second = hl.split(pairs[rows, parts, :, :].to(torch.float32))
        low = torch.minimum(first, second).amin(-1)
        top = torch.maximum(first, second).amax(-1)
        low, scale = low.to(torch.float16), torch.clamp((top - low) / 15.0, min=1e-6).to(torch.float16)
        scales[rows, parts] = scale
        lows[rows, parts] = low
        first, second = (
            torch.clamp(torch.round((v - low[:, :, None]) / scale[:, :, None]), 0, 15).to(torch.uint8)
            for v in (first, second)
        )
        packed[rows, parts, :] = first | (second << 4)
    return packed.view(t, k // 2), scales, lows


def int4_activations_torch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    y = x.float().unflatten(1, [-1, 32, 2])
    low, top = y.amin((2, 3)), y.amax((2, 3))
    low, scale = low.to(FP16), ((top - low) / 15.0).clamp(min=1e-6).to(FP16)
    q = torch.round((y - low[..., None, None]) / scale[..., None, None]).clamp(0, 15).to(torch.uint8)
    return (q[..., 0] | (q[..., 1] << 4)).flatten(1), scale, low


CELLS.add(
    int4_activations,
    lambda device, small: (normal(device, *((7, 192) if small else (12000, 5120)), dtype=BF16),),
    int4_activations_torch,
)


@helion.kernel
def sixty_experts_router(
    x: torch.Tensor, w: torch.Tensor, top: hl.constexpr
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Softmax of `x[T, K] w[E, K].T`, the largest `top` as weights of sum one and experts, and tokens of each expert."""
    t, k = x.size()
    e = hl.specialize(w.size(0))
    weights = torch.empty([t, top], dtype=torch.float32, device=x.device)
    experts = torch.empty([t, top], dtype=torch.int32, device=x.device)
    counts = torch.zeros([e], dtype=torch.int32, device=x.device)
    for rows in hl.tile(t):
        acc = hl.zeros([rows, e], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = hl.dot(x[rows, inner], w[:, inner].T, acc=acc)
        p = torch.softmax(acc, -1)
        values, places = torch.topk(p, top, dim=-1)
        weights[rows, :] = values / values.sum(-1, keepdim=True)
        experts[rows, :] = places.to(torch.int32)
        hl.atomic_add(counts, [places], 1)
    return weights, experts, counts


def sixty_experts_router_torch(
    x: torch.Tensor, w: torch.Tensor, top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    values, places = torch.topk(torch.softmax(high(x) @ high(w).T, -1), top)
    counts = torch.zeros([w.size(0)], dtype=torch.int32, device=x.device)
    counts.index_add_(0, places.flatten(), torch.ones_like(places, dtype=torch.int32).flatten())
    return values / values.sum(-1, keepdim=True), places.to(torch.int32), counts


def make_sixty_experts_router(device: str, small: bool) -> Arguments:
    t, k, e = (37, 64, 12) if small else (16384, 2048, 60)
    return normal(device, t, k, dtype=BF16), normal(device, e, k, dtype=BF16, scale=k**-0.5), 4


CELLS.add(sixty_experts_router, make_sixty_experts_router, sixty_experts_router_torch)


@helion.kernel
def down_and_scatter(
    hidden: torch.Tensor,
    w: torch.Tensor,
    starts: torch.Tensor,
    tokens: torch.Tensor,
    share: torch.Tensor,
    out: torch.Tensor,
) -> torch.Tensor:
    """Add `share[i] * hidden[i] @ w[e].T` to `out[tokens[i]]` in fp32, for rows i from `starts[e]` to `starts[e + 1]`."""
    experts, n, k = w.size()
    for tile_e, cols in hl.tile([experts, n], block_size=[1, None]):
        e = tile_e.begin
        for rows in hl.tile(starts[e], starts[e + 1]):
            acc = hl.zeros([rows, cols], dtype=torch.float32)
            for inner in hl.tile(k):
                acc = hl.dot(hidden[rows, inner], w[e, cols, inner].T, acc=acc)
            hl.atomic_add(out, [tokens[rows], cols], acc * share[rows][:, None])
    return out


def down_and_scatter_torch(
    hidden: torch.Tensor,
    w: torch.Tensor,
    starts: torch.Tensor,
    tokens: torch.Tensor,
    share: torch.Tensor,
    out: torch.Tensor,
) -> torch.Tensor:
    rows = torch.arange(hidden.size(0), device=hidden.device)
    expert = torch.searchsorted(starts[1:], rows, right=True)
    y = torch.cat([high(hidden[expert == e] @ w[e].T) for e in range(w.size(0))])
    return out.index_add(0, tokens, y * share[:, None])


def down_and_scatter_baseline(
    hidden: torch.Tensor,
    w: torch.Tensor,
    starts: torch.Tensor,
    tokens: torch.Tensor,
    share: torch.Tensor,
    out: torch.Tensor,
) -> torch.Tensor:
    y = torch._grouped_mm(hidden, w.transpose(1, 2), offs=starts[1:])
    return out.index_add(0, tokens, high(y) * share[:, None])


def make_down_and_scatter(device: str, small: bool) -> Arguments:
    t, top, k, n, experts = (24, 2, 32, 40, 4) if small else (2048, 4, 1408, 2048, 60)
    rows = t * top
    cuts = torch.linspace(0, 1, experts + 1, device=device) ** 1.2 * rows
    tokens = torch.randint(0, t, [rows], device=device)
    w = normal(device, experts, n, k, dtype=BF16, scale=k**-0.5)
    share = torch.rand([rows], device=device)
    return normal(device, rows, k, dtype=BF16), w, cuts.to(torch.int32), tokens, share, normal(device, t, n)


CELLS.add(down_and_scatter, make_down_and_scatter, down_and_scatter_torch, down_and_scatter_baseline)


@helion.kernel
def shared_expert_gate(x: torch.Tensor, gate: torch.Tensor, shared: torch.Tensor, routed: torch.Tensor) -> torch.Tensor:
    """`routed + sigmoid(x . gate) * shared` for tokens `[T, K]`: routed results in fp32, the others in bf16."""
    t, _ = x.size()
    out = torch.empty_like(x)
    for tile in hl.tile(t):
        score = (x[tile, :].to(torch.float32) * gate[:].to(torch.float32)[None, :]).sum(-1)
        y = routed[tile, :] + torch.sigmoid(score)[:, None] * shared[tile, :].to(torch.float32)
        out[tile, :] = y.to(x.dtype)
    return out


def shared_expert_gate_torch(
    x: torch.Tensor, gate: torch.Tensor, shared: torch.Tensor, routed: torch.Tensor
) -> torch.Tensor:
    return (routed + torch.sigmoid(high(x) @ high(gate))[:, None] * high(shared)).to(x.dtype)


def make_shared_expert_gate(device: str, small: bool) -> Arguments:
    t, k = (13, 40) if small else (12000, 3584)
    gate = normal(device, k, dtype=BF16, scale=k**-0.5)
    return normal(device, t, k, dtype=BF16), gate, normal(device, t, k, dtype=BF16), normal(device, t, k)


CELLS.add(shared_expert_gate, make_shared_expert_gate, shared_expert_gate_torch)


@helion.kernel
def adapter_down_gradient(grad: torch.Tensor, b: torch.Tensor, x: torch.Tensor, scale: float) -> torch.Tensor:
    """Gradient `scale * (grad[M, N] b[N, R]).T x[M, K]` of the first matrix of an adapter, in fp32 over splits of M."""
    m, n = grad.size()
    r, k = hl.specialize(b.size(1)), x.size(1)
    middle = torch.empty([m, r], dtype=x.dtype, device=x.device)
    out = torch.zeros([r, k], dtype=torch.float32, device=x.device)
    for rows in hl.tile(m):
        acc = hl.zeros([rows, r], dtype=torch.float32)
        for inner in hl.tile(n):
            acc = hl.dot(grad[rows, inner], b[inner, :], acc=acc)
        middle[rows, :] = acc.to(x.dtype)
    hl.barrier()
    for cols, part in hl.tile([k, m], block_size=[None, 1024]):
        acc = hl.zeros([r, cols], dtype=torch.float32)
        for rows in hl.tile(part.begin, part.end):
            acc = hl.dot(middle[rows, :].T, x[rows, cols], acc=acc)
        hl.atomic_add(out, [slice(None), cols], acc * scale)
    return out


def adapter_down_gradient_torch(grad: torch.Tensor, b: torch.Tensor, x: torch.Tensor, scale: float) -> torch.Tensor:
    return high((grad @ b).T @ x) * scale


def make_adapter_down_gradient(device: str, small: bool) -> Arguments:
    m, n, r, k = (53, 40, 16, 24) if small else (8192, 4096, 16, 4096)
    b = normal(device, n, r, dtype=BF16, scale=n**-0.5)
    return normal(device, m, n, dtype=BF16), b, normal(device, m, k, dtype=BF16), 2.0


CELLS.add(adapter_down_gradient, make_adapter_down_gradient, adapter_down_gradient_torch)


@helion.kernel
def grouped_keys_gradient(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of keys and values `[B, G, T, D]` of causal attention, added over the query heads of a group: `q` and
    `grad[B, G, R, T, D]`, `lse` and `delta[B, G, R, T]`."""
    b, g, r, t, d = q.size()
    d = hl.specialize(d)
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    scale = d**-0.5
    for tile_b, tile_g, cols in hl.tile([b, g, t], block_size=[1, 1, None]):
        bi, gi = tile_b.begin, tile_g.begin
        keys, values = k[bi, gi, cols, :], v[bi, gi, cols, :]
        acc_k = hl.zeros([cols, d], dtype=torch.float32)
        acc_v = hl.zeros([cols, d], dtype=torch.float32)
        for ri in hl.grid(r):
            for rows in hl.tile(cols.begin, t):
                queries, slope = q[bi, gi, ri, rows, :], grad[bi, gi, ri, rows, :]
                s = hl.dot(keys, queries.T) * scale - lse[bi, gi, ri, rows][None, :]
                p = torch.where(cols.index[:, None] <= rows.index[None, :], torch.exp(s), 0.0)
                acc_v = hl.dot(p.to(v.dtype), slope, acc=acc_v)
                ds = p * (hl.dot(values, slope.T) - delta[bi, gi, ri, rows][None, :])
                acc_k = hl.dot(ds.to(q.dtype), queries, acc=acc_k)
        dk[bi, gi, cols, :] = (acc_k * scale).to(k.dtype)
        dv[bi, gi, cols, :] = acc_v.to(v.dtype)
    return dk, dv


def grouped_keys_gradient_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    scale = q.size(4) ** -0.5
    s = high(q @ k[:, :, None].transpose(-1, -2)) * scale - lse[..., None]
    p = torch.exp(s).masked_fill(~below(q.size(3), q.device), 0.0)
    ds = p * (high(grad @ v[:, :, None].transpose(-1, -2)) - delta[..., None])
    dv = high(p.to(v.dtype).transpose(-1, -2) @ grad).sum(2)
    return (high(ds.to(q.dtype).transpose(-1, -2) @ q).sum(2) * scale).to(k.dtype), dv.to(v.dtype)


def make_grouped_keys_gradient(device: str, small: bool) -> Arguments:
    b, g, r, t, d = (2, 2, 3, 37, 16) if small else (2, 8, 3, 1500, 128)
    q, grad = (normal(device, b, g, r, t, d, dtype=BF16) for _ in range(2))
    k, v = (normal(device, b, g, t, d, dtype=BF16) for _ in range(2))
    s = high(q @ k[:, :, None].transpose(-1, -2)) * d**-0.5
    lse = torch.logsumexp(s.masked_fill(~below(t, device), -1e30), -1)
    return q, k, v, grad, lse, normal(device, b, g, r, t)


CELLS.add(grouped_keys_gradient, make_grouped_keys_gradient, grouped_keys_gradient_torch)


@helion.kernel
def silu_gate_products_gradient(
    grad: torch.Tensor, w: torch.Tensor, gate: torch.Tensor, up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients `[M, N]` of `gate` and `up` in `silu(gate) * up @ w.T`, from `grad[M, K]` and `w[K, N]`."""
    m, k = grad.size()
    n = w.size(1)
    d_gate, d_up = torch.empty_like(gate), torch.empty_like(up)
    for rows, cols in hl.tile([m, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = hl.dot(grad[rows, inner], w[inner, cols], acc=acc)
        g, u = gate[rows, cols].to(torch.float32), up[rows, cols].to(torch.float32)
        s = torch.sigmoid(g)
        d_up[rows, cols] = (acc * g * s).to(up.dtype)
        d_gate[rows, cols] = (acc * u * s * (1.0 + g * (1.0 - s))).to(gate.dtype)
    return d_gate, d_up


def silu_gate_products_gradient_torch(
    grad: torch.Tensor, w: torch.Tensor, gate: torch.Tensor, up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    y, g, u = high(grad @ w), high(gate), high(up)
    s = torch.sigmoid(g)
    return (y * u * s * (1.0 + g * (1.0 - s))).to(gate.dtype), (y * g * s).to(up.dtype)


def make_silu_gate_products_gradient(device: str, small: bool) -> Arguments:
    m, k, n = (13, 40, 24) if small else (2500, 3072, 8192)
    gate, up = (normal(device, m, n, dtype=BF16) for _ in range(2))
    return normal(device, m, k, dtype=BF16), normal(device, k, n, dtype=BF16, scale=k**-0.5), gate, up


CELLS.add(silu_gate_products_gradient, make_silu_gate_products_gradient, silu_gate_products_gradient_torch)
