"""Inference of language models: caches, adapters, experts, quantization, sampling."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, E4M3, FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def partial_rotary_cache(
    qkv: torch.Tensor,
    cosines: torch.Tensor,
    sines: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Turn the first half of each head of packed rows `[T, (H + 2 G) 4 R]`; keys and values go to slots of a cache."""
    t, half = cosines.size()
    half = hl.specialize(half)
    groups = keys.size(1)
    packed = qkv.view(t, -1, 4, half)
    count = packed.size(1) - 2 * groups
    key_part, value_part = packed[:, count : count + groups], packed[:, count + groups :]
    q = torch.empty([t, count, 4, half], dtype=qkv.dtype, device=qkv.device)
    key_cache, value_cache = keys.view(-1, groups, 4, half), values.view(-1, groups, 4, half)
    for rows, head in hl.tile([t, count]):
        cos, sin = cosines[rows, :].to(torch.float32)[:, None, :], sines[rows, :].to(torch.float32)[:, None, :]
        low, top = packed[rows, head, 0, :].to(torch.float32), packed[rows, head, 1, :].to(torch.float32)
        q[rows, head, 0, :] = (low * cos - top * sin).to(qkv.dtype)
        q[rows, head, 1, :] = (top * cos + low * sin).to(qkv.dtype)
        q[rows, head, 2, :] = packed[rows, head, 2, :]
        q[rows, head, 3, :] = packed[rows, head, 3, :]
    for rows, group in hl.tile([t, groups]):
        to = slots[rows]
        cos, sin = cosines[rows, :].to(torch.float32)[:, None, :], sines[rows, :].to(torch.float32)[:, None, :]
        low, top = key_part[rows, group, 0, :].to(torch.float32), key_part[rows, group, 1, :].to(torch.float32)
        key_cache[to, group, 0, :] = (low * cos - top * sin).to(qkv.dtype)
        key_cache[to, group, 1, :] = (top * cos + low * sin).to(qkv.dtype)
        key_cache[to, group, 2, :] = key_part[rows, group, 2, :]
        key_cache[to, group, 3, :] = key_part[rows, group, 3, :]
        value_cache[to, group, :, :] = value_part[rows, group, :, :]
    return q.view(t, count, 4 * half), keys, values


def partial_rotary_cache_torch(
    qkv: torch.Tensor,
    cosines: torch.Tensor,
    sines: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    t, half = cosines.shape
    groups = keys.size(1)
    x = qkv.view(t, -1, 4 * half)
    turned = x[:, :-groups]
    cos, sin = cosines.float()[:, None], sines.float()[:, None]
    low, top = turned[..., :half].float(), turned[..., half : 2 * half].float()
    rest = turned[..., 2 * half :]
    turned = torch.cat([(low * cos - top * sin).to(x.dtype), (top * cos + low * sin).to(x.dtype), rest], -1)
    keys[slots] = turned[:, -groups:]
    values[slots] = x[:, -groups:]
    return turned[:, :-groups].contiguous(), keys, values


def make_partial_rotary_cache(device: str, small: bool) -> Arguments:
    t, count, groups, half, size = (21, 5, 2, 8, 40) if small else (8192, 32, 8, 32, 16384)
    angles = torch.rand([t, half], device=device)
    slots = torch.randperm(size)[:t].to(device)
    caches = (torch.zeros([size, groups, 4 * half], dtype=BF16, device=device) for _ in range(2))
    qkv = normal(device, t, (count + 2 * groups) * 4 * half, dtype=BF16)
    return qkv, torch.cos(angles).to(BF16), torch.sin(angles).to(BF16), slots, *caches


CELLS.add(partial_rotary_cache, make_partial_rotary_cache, partial_rotary_cache_torch)


@helion.kernel
def pages_to_fp8(pages: torch.Tensor, table: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Gather pages `[P, 16, H, D]` of sequences `table[B, N]` into `[B, H, 16 N, D]` in e4m3, a scale for each head."""
    b, n = table.size()
    _, size, h, d = pages.size()
    out = torch.empty([b, h, n, size, d], dtype=torch.float8_e4m3fn, device=pages.device)
    for sequence, tile_p, head in hl.tile([b, n, h], block_size=[1, None, None]):
        page = table[sequence.begin, tile_p]
        x = pages[page, :, head, :].to(torch.float32) / scales[head][None, None, :, None]
        x = torch.clamp(x, -448.0, 448.0).to(torch.float8_e4m3fn)
        out[sequence.begin, head, tile_p, :, :] = x.permute(2, 0, 1, 3)
    return out.view(b, h, n * size, d)


def pages_to_fp8_torch(pages: torch.Tensor, table: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    x = torch.clamp(high(pages)[table] / scales[:, None], -448.0, 448.0)
    return x.permute(0, 3, 1, 2, 4).flatten(2, 3).to(E4M3)


def make_pages_to_fp8(device: str, small: bool) -> Arguments:
    count, h, d, b, n = (30, 3, 16, 2, 5) if small else (8192, 8, 128, 16, 256)
    table = torch.randint(0, count, [b, n], device=device, dtype=torch.int32)
    return normal(device, count, 16, h, d, dtype=BF16), table, torch.rand([h], device=device) * 0.01 + 0.01


CELLS.add(pages_to_fp8, make_pages_to_fp8, pages_to_fp8_torch)


@helion.kernel
def int8_cache_decode(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    key_scales: torch.Tensor,
    value_scales: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """Attention of one token, queries `[B, G, R, D]`, to a cache `[B, G, T, D]` in int8 with a scale for each token."""
    b, g, r, d = q.size()
    r, d = hl.specialize(r), hl.specialize(d)
    out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(d)
    for sequence, group in hl.grid([b, g]):
        query = q[sequence, group, :, :]
        top = hl.full([r], float("-inf"), dtype=torch.float32)
        total = hl.zeros([r])
        acc = hl.zeros([r, d])
        for tile in hl.tile(lengths[sequence]):
            s = hl.dot(query, keys[sequence, group, tile, :].to(q.dtype).T)
            s = s * (key_scales[sequence, group, tile] * scale)[None, :]
            new = torch.maximum(top, torch.amax(s, -1))
            p = torch.exp(s - new[:, None])
            decay = torch.exp(top - new)
            total = total * decay + p.sum(-1)
            p = (p * value_scales[sequence, group, tile][None, :]).to(q.dtype)
            acc = hl.dot(p, values[sequence, group, tile, :].to(q.dtype), acc=acc * decay[:, None])
            top = new
        out[sequence, group, :, :] = (acc / total[:, None]).to(q.dtype)
    return out


def int8_cache_decode_torch(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    key_scales: torch.Tensor,
    value_scales: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    k, v = (keys * key_scales[..., None]).to(q.dtype), (values * value_scales[..., None]).to(q.dtype)
    keep = torch.arange(k.size(2), device=q.device)[None] < lengths[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None])


def make_int8_cache_decode(device: str, small: bool) -> Arguments:
    b, g, r, t, d = (2, 3, 4, 70, 32) if small else (32, 8, 8, 4097, 128)
    codes = (torch.randint(-127, 128, [b, g, t, d], device=device, dtype=torch.int8) for _ in range(2))
    scales = (torch.rand([b, g, t], device=device) * 0.01 + 0.005 for _ in range(2))
    lengths = torch.randint(t // 2, t + 1, [b], device=device, dtype=torch.int32)
    return normal(device, b, g, r, d, dtype=BF16), *codes, *scales, lengths


CELLS.add(int8_cache_decode, make_int8_cache_decode, int8_cache_decode_torch)


@helion.kernel
def latent_attention(q: torch.Tensor, turned: torch.Tensor, latent: torch.Tensor, rotary: torch.Tensor) -> torch.Tensor:
    """Attention of one token `q[B, H, L]`, `turned[B, H, R]` to a cache of latents `[B, T, L]` and keys `[B, T, R]`."""
    b, h, width = q.size()
    t, width = latent.size(1), hl.specialize(width)
    out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(width // 4 + rotary.size(2))
    for sequence, head in hl.tile([b, h], block_size=[1, None]):
        at = sequence.begin
        own, own_turned = q[at, head, :], turned[at, head, :]
        top = hl.full([head], float("-inf"), dtype=torch.float32)
        total, acc = hl.zeros([head]), hl.zeros([head, width])
        for tile in hl.tile(t):
            cached = latent[at, tile, :]
            s = hl.dot(own_turned, rotary[at, tile, :].T, acc=hl.dot(own, cached.T)) * scale
            new = torch.maximum(top, torch.amax(s, -1))
            p, decay = torch.exp(s - new[:, None]), torch.exp(top - new)
            total = total * decay + p.sum(-1)
            acc = hl.dot(p.to(q.dtype), cached, acc=acc * decay[:, None])
            top = new
        out[at, head, :] = (acc / total[:, None]).to(q.dtype)
    return out


def latent_attention_torch(
    q: torch.Tensor, turned: torch.Tensor, latent: torch.Tensor, rotary: torch.Tensor
) -> torch.Tensor:
    s = (q @ latent.transpose(1, 2) + turned @ rotary.transpose(1, 2)).float()
    return torch.softmax(s / math.sqrt(q.size(2) // 4 + rotary.size(2)), -1).to(q.dtype) @ latent


def make_latent_attention(device: str, small: bool) -> Arguments:
    b, h, t, width, part = (2, 5, 37, 64, 16) if small else (128, 16, 2048, 512, 64)
    shapes = (b, h, width), (b, h, part), (b, t, width), (b, t, part)
    return tuple(normal(device, *shape, dtype=BF16, scale=0.5) for shape in shapes)


CELLS.add(latent_attention, make_latent_attention, latent_attention_torch)


@helion.kernel
def adapter_of_each_token(
    base: torch.Tensor, x: torch.Tensor, down: torch.Tensor, up: torch.Tensor, which: torch.Tensor
) -> torch.Tensor:
    """`base[T, N] + up[a] @ (down[a] @ x)` for tokens `x[T, K]`, each with an adapter a of rank 16."""
    t, k = x.size()
    n, rank = base.size(1), hl.specialize(down.size(1))
    out = torch.empty_like(base)
    for tokens in hl.tile(t):
        adapter = which[tokens]
        hidden = hl.zeros([tokens, rank])
        for inner in hl.tile(k):
            part = x[tokens, inner].to(torch.float32)[:, None, :]
            hidden += (down[adapter, :, inner].to(torch.float32) * part).sum(-1)
        for columns in hl.tile(n):
            delta = (up[adapter, columns, :].to(torch.float32) * hidden[:, None, :]).sum(-1)
            out[tokens, columns] = (base[tokens, columns].to(torch.float32) + delta).to(base.dtype)
    return out


def adapter_of_each_token_torch(
    base: torch.Tensor, x: torch.Tensor, down: torch.Tensor, up: torch.Tensor, which: torch.Tensor
) -> torch.Tensor:
    hidden = (high(down)[which] * high(x)[:, None]).sum(-1)
    return (high(base) + (high(up)[which] * hidden[:, None]).sum(-1)).to(base.dtype)


def adapter_of_each_token_baseline(
    base: torch.Tensor, x: torch.Tensor, down: torch.Tensor, up: torch.Tensor, which: torch.Tensor
) -> torch.Tensor:
    hidden = torch.bmm(down[which], x[..., None])
    return base + torch.bmm(up[which], hidden)[..., 0]


def make_adapter_of_each_token(device: str, small: bool) -> Arguments:
    t, k, n, rank, count = (9, 70, 33, 16, 4) if small else (512, 4096, 4096, 16, 32)
    which = torch.randint(0, count, [t], device=device)
    shapes = (t, n), (t, k), (count, rank, k), (count, n, rank)
    return *(normal(device, *shape, dtype=BF16, scale=0.1) for shape in shapes), which


CELLS.add(
    adapter_of_each_token,
    make_adapter_of_each_token,
    adapter_of_each_token_torch,
    adapter_of_each_token_baseline,
)


@helion.kernel
def combine_experts(y: torch.Tensor, place: torch.Tensor, gate: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    """Outputs of the eight experts of each token, rows `place[T, 8]` of y, weighted and added to the shared expert's."""
    t, d = shared.size()
    out = torch.empty_like(shared)
    for tokens, columns in hl.tile([t, d]):
        acc = shared[tokens, columns].to(torch.float32)
        for i in hl.static_range(8):
            acc += gate[tokens, i][:, None] * y[place[tokens, i], columns].to(torch.float32)
        out[tokens, columns] = acc.to(shared.dtype)
    return out


def combine_experts_torch(
    y: torch.Tensor, place: torch.Tensor, gate: torch.Tensor, shared: torch.Tensor
) -> torch.Tensor:
    return (high(shared) + (gate[..., None] * high(y[place])).sum(1)).to(shared.dtype)


def make_combine_experts(device: str, small: bool) -> Arguments:
    t, d = (21, 65) if small else (4097, 2048)
    place = torch.randperm(8 * t).view(t, 8).to(torch.int32).to(device)
    gate = torch.softmax(normal(device, t, 8), -1)
    return normal(device, 8 * t, d, dtype=BF16), place, gate, normal(device, t, d, dtype=BF16)


CELLS.add(combine_experts, make_combine_experts, combine_experts_torch)


@helion.kernel
def permute_to_fp8(x: torch.Tensor, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows `source[M]` of `x[T, D]` in e4m3, with a scale for each 128 of D: the input of experts."""
    m, d = source.size(0), x.size(1)
    out = torch.empty([m, d], dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty([m, d // 128], dtype=torch.float32, device=x.device)
    blocks, codes = x.view(-1, d // 128, 128), out.view(m, d // 128, 128)
    for rows, group in hl.tile([m, d // 128]):
        v = blocks[source[rows], group, :].to(torch.float32)
        scale = torch.clamp(v.abs().amax(-1), min=1e-4) / 448.0
        scales[rows, group] = scale
        codes[rows, group, :] = (v / scale[:, :, None]).to(torch.float8_e4m3fn)
    return out, scales


def permute_to_fp8_torch(x: torch.Tensor, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    v = high(x)[source].view(source.size(0), -1, 128)
    scale = torch.clamp(v.abs().amax(-1), min=1e-4) / 448.0
    return (v / scale[..., None]).flatten(1).to(E4M3), scale


def make_permute_to_fp8(device: str, small: bool) -> Arguments:
    m, t, d = (37, 11, 256) if small else (32768, 4096, 2048)
    return normal(device, t, d, dtype=BF16), torch.randint(0, t, [m], device=device)


CELLS.add(permute_to_fp8, make_permute_to_fp8, permute_to_fp8_torch)


@helion.kernel
def fp8_of_blocks(
    x: torch.Tensor, w: torch.Tensor, row_scales: torch.Tensor, block_scales: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """e4m3 `x[M, K]` with scales `[M, K / 128]` times `w[N, K]` with scales of blocks of 128 by 128, plus a bias in bf16."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for rows, columns in hl.tile([m, n]):
        acc = hl.zeros([rows, columns])
        for inner in hl.tile(k, block_size=128):
            part = hl.dot(x[rows, inner], w[columns, inner].T)
            by_column = block_scales[columns.index // 128, inner.id]
            acc += part * row_scales[rows, inner.id][:, None] * by_column[None, :]
        out[rows, columns] = (acc + bias[columns].to(torch.float32)[None, :]).to(torch.bfloat16)
    return out


def fp8_of_blocks_torch(
    x: torch.Tensor, w: torch.Tensor, row_scales: torch.Tensor, block_scales: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    by_row = row_scales.repeat_interleave(128, 1)
    by_block = block_scales.repeat_interleave(128, 0)[: w.size(0)].repeat_interleave(128, 1)
    return ((x.float() * by_row) @ (w.float() * by_block).T + bias.float()).to(BF16)


def fp8_of_blocks_baseline(
    x: torch.Tensor, w: torch.Tensor, row_scales: torch.Tensor, block_scales: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    by_row = row_scales.repeat_interleave(128, 1)
    by_block = block_scales.repeat_interleave(128, 0)[: w.size(0)].repeat_interleave(128, 1)
    return F.linear((x.float() * by_row).to(BF16), (w.float() * by_block).to(BF16), bias)


def make_fp8_of_blocks(device: str, small: bool) -> Arguments:
    m, n, k = (33, 130, 256) if small else (4096, 2112, 4096)
    scales = torch.rand([m, k // 128], device=device), torch.rand([-(-n // 128), k // 128], device=device)
    return normal(device, m, k).to(E4M3), normal(device, n, k).to(E4M3), *scales, normal(device, n, dtype=BF16)


CELLS.add(fp8_of_blocks, make_fp8_of_blocks, fp8_of_blocks_torch, fp8_of_blocks_baseline)


@helion.kernel
def rotated_int8(x: torch.Tensor, turn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks of 128 of the rows of x, rotated by a Hadamard matrix, in int8 with a scale each."""
    m, k = x.size()
    hl.specialize(turn.size(0))
    out = torch.empty([m, k], dtype=torch.int8, device=x.device)
    scales = torch.empty([m, k // 128], dtype=torch.float32, device=x.device)
    for rows, block in hl.tile([m, k], block_size=[None, 128]):
        y = hl.dot(x[rows, block], turn[:, :])
        scale = torch.clamp(y.abs().amax(-1), min=1e-6) / 127.0
        scales[rows, block.id] = scale
        out[rows, block] = torch.round(y / scale[:, None]).to(torch.int8)
    return out, scales


def rotated_int8_torch(x: torch.Tensor, turn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = high(x).view(x.size(0), -1, 128) @ high(turn)
    scale = torch.clamp(y.abs().amax(-1), min=1e-6) / 127.0
    return torch.round(y / scale[..., None]).flatten(1).to(torch.int8), scale


def rotated_int8_baseline(x: torch.Tensor, turn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = (x.view(x.size(0), -1, 128) @ turn).float()
    scale = torch.clamp(y.abs().amax(-1), min=1e-6) / 127.0
    return torch.round(y / scale[..., None]).flatten(1).to(torch.int8), scale


def make_rotated_int8(device: str, small: bool) -> Arguments:
    m, k = (37, 256) if small else (16384, 4096)
    turn = torch.ones([1, 1], device=device)
    for _ in range(7):
        turn = torch.cat([torch.cat([turn, turn], 1), torch.cat([turn, -turn], 1)], 0)
    return normal(device, m, k, dtype=BF16), (turn / math.sqrt(128.0)).to(BF16)


CELLS.add(rotated_int8, make_rotated_int8, rotated_int8_torch, rotated_int8_baseline)


@helion.kernel
def small_products(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """`a @ b + c` of many small matrices `[B, N, N]`."""
    out = torch.empty_like(a)
    for tile in hl.tile(a.size(0)):
        out[tile, :, :] = hl.dot(a[tile, :, :], b[tile, :, :], acc=c[tile, :, :].to(torch.float32)).to(a.dtype)
    return out


CELLS.add(
    small_products,
    lambda device, small: tuple(
        normal(device, *((5, 33, 33) if small else (8192, 64, 64)), dtype=FP16) for _ in range(3)
    ),
    lambda a, b, c: torch.baddbmm(c, a, b),
)


@helion.kernel
def conv_step(
    x: torch.Tensor, state: torch.Tensor, taps: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token of a causal depthwise convolution of four taps: the state `[B, C, 3]` moves on, then a silu."""
    b, c = x.size()
    out = torch.empty_like(x)
    for rows, channels in hl.tile([b, c]):
        new = x[rows, channels].to(torch.float32)
        first, second, third = state[rows, channels, 0], state[rows, channels, 1], state[rows, channels, 2]
        acc = bias[channels][None, :] + new * taps[channels, 3][None, :]
        acc += first.to(torch.float32) * taps[channels, 0][None, :]
        acc += second.to(torch.float32) * taps[channels, 1][None, :]
        acc += third.to(torch.float32) * taps[channels, 2][None, :]
        state[rows, channels, 0] = second
        state[rows, channels, 1] = third
        state[rows, channels, 2] = x[rows, channels]
        out[rows, channels] = (acc * torch.sigmoid(acc)).to(x.dtype)
    return out, state


def conv_step_torch(
    x: torch.Tensor, state: torch.Tensor, taps: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    window = torch.cat([state, x[..., None]], -1)
    acc = (high(window) * taps).sum(-1) + bias
    return F.silu(acc).to(x.dtype), state.copy_(window[..., 1:])


def make_conv_step(device: str, small: bool) -> Arguments:
    b, c = (5, 63) if small else (1000, 8192)
    x, state = normal(device, b, c, dtype=BF16), normal(device, b, c, 3, dtype=BF16)
    return x, state, normal(device, c, 4), normal(device, c)


CELLS.add(conv_step, make_conv_step, conv_step_torch)


@helion.kernel
def state_step(
    state: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    keys: torch.Tensor,
    queries: torch.Tensor,
    skip: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token of a state-space layer: states `[B, H, P, N]` decay by `exp(dt a)`, take `dt x keys`, are read by queries."""
    b, h, p, _ = state.size()
    out = torch.empty_like(x)
    for sequence, head, place in hl.tile([b, h, p], block_size=[1, 1, None]):
        i, j = sequence.begin, head.begin
        step = torch.nn.functional.softplus(dt[i, j].to(torch.float32))
        own = x[i, j, place].to(torch.float32)
        new = state[i, j, place, :] * torch.exp(step * a[j])
        new = new + (step * own)[:, None] * keys[i, :].to(torch.float32)[None, :]
        state[i, j, place, :] = new
        y = (new * queries[i, :].to(torch.float32)[None, :]).sum(-1) + skip[j] * own
        out[i, j, place] = y.to(x.dtype)
    return out, state


def state_step_torch(
    state: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    keys: torch.Tensor,
    queries: torch.Tensor,
    skip: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    step = F.softplus(high(dt))[..., None]
    new = state * torch.exp(step * a[:, None])[..., None] + (step * high(x))[..., None] * high(keys)[:, None, None]
    y = (new * high(queries)[:, None, None]).sum(-1) + skip[:, None] * high(x)
    return y.to(x.dtype), state.copy_(new)


def make_state_step(device: str, small: bool) -> Arguments:
    b, h, p, n = (3, 2, 20, 33) if small else (100, 48, 64, 128)
    one, few = normal(device, b, h, p, dtype=BF16), normal(device, b, h, dtype=BF16)
    keys, queries = normal(device, b, n, dtype=BF16), normal(device, b, n, dtype=BF16)
    return normal(device, b, h, p, n), one, few, -torch.rand([h], device=device), keys, queries, normal(device, h)


CELLS.add(state_step, make_state_step, state_step_torch)
