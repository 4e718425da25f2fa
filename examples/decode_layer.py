"""A transformer layer for one new token of each sequence, in one kernel.

Its phases are grid loops with barriers in between: a kernel each, or one cooperative launch for all of them (config key
`cooperative_launch`), as is predicted to be faster. Few tokens read every weight once, so that launches are a large part of
the time.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases

#: One persistent program for each SM, with tiles of few columns, and of many elements along K.
TILES = [16, 32, 256, 64, 16, 32, 256, 16, 32, 128, 16, 32, 256]
TOGETHER = helion.Config(
    block_sizes=TILES, pid_type="persistent_interleaved", num_warps=8, num_stages=3, cooperative_launch=True
)
EPS = 1e-6


@helion.kernel(static_shapes=True)
def decode_layer(
    x: torch.Tensor,
    norm_in: torch.Tensor,
    w_qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    lengths: torch.Tensor,
    w_out: torch.Tensor,
    norm_mlp: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
) -> torch.Tensor:
    """Compute a layer for `x[B, H]`, and append keys and values to the caches `[B, T, G, D]` at `lengths[B]`."""
    batch, hidden = x.size()
    groups, dim = k_cache.size(2), k_cache.size(3)
    assert groups, "the caches have no heads"
    half = dim // 2
    heads = w_out.size(1) // dim
    shared = hl.specialize(heads // groups)
    half = hl.specialize(half)
    hl.specialize((cos.size(1), sin.size(1)))
    inner = w_down.size(1)
    qkv = torch.empty([batch, w_qkv.size(0)], dtype=x.dtype, device=x.device)
    q = qkv[:, : heads * dim].view(batch, groups, shared, 2, half)
    k = qkv[:, heads * dim : (heads + groups) * dim].view(batch, groups, 2, half)
    v = qkv[:, (heads + groups) * dim :].view(batch, groups, 2, half)
    keys = k_cache.view(batch, k_cache.size(1), groups, 2, half)
    values = v_cache.view(batch, v_cache.size(1), groups, 2, half)
    attended = torch.empty([batch, groups, shared, 2, half], dtype=x.dtype, device=x.device)
    flat = attended.view(batch, heads * dim)
    after = torch.empty_like(x)
    gated = torch.empty([batch, inner], dtype=x.dtype, device=x.device)
    out = torch.empty_like(x)

    # normalization and the products for queries, keys and values
    for tile_b, tile_n in hl.tile([batch, w_qkv.size(0)]):
        acc = hl.zeros([tile_b, tile_n], dtype=torch.float32)
        squares = hl.zeros([tile_b], dtype=torch.float32)
        for tile_k in hl.tile(hidden):
            part = x[tile_b, tile_k].to(torch.float32)
            squares += torch.sum(part * part, dim=-1)
            scaled = (part * norm_in[tile_k].to(torch.float32)[None, :]).to(x.dtype)
            acc = hl.dot(scaled, w_qkv[tile_n, tile_k].T, acc=acc)
        qkv[tile_b, tile_n] = acc * torch.rsqrt(squares / hidden + EPS)[:, None]
    hl.barrier()

    # rotary embedding, and attention to the cached tokens and the new one
    for b, g in hl.grid([batch, groups]):
        length = lengths[b]
        c, s = cos[length, :].to(torch.float32), sin[length, :].to(torch.float32)
        k_0, k_1 = k[b, g, 0, :].to(torch.float32), k[b, g, 1, :].to(torch.float32)
        new_0, new_1 = (k_0 * c - k_1 * s).to(x.dtype), (k_1 * c + k_0 * s).to(x.dtype)
        keys[b, length, g, 0, :] = new_0
        keys[b, length, g, 1, :] = new_1
        v_0, v_1 = v[b, g, 0, :], v[b, g, 1, :]
        values[b, length, g, 0, :] = v_0
        values[b, length, g, 1, :] = v_1
        q_0, q_1 = q[b, g, :, 0, :].to(torch.float32), q[b, g, :, 1, :].to(torch.float32)
        factor = dim**-0.5 * 1.44269504
        rotated_0 = ((q_0 * c[None, :] - q_1 * s[None, :]) * factor).to(x.dtype)
        rotated_1 = ((q_1 * c[None, :] + q_0 * s[None, :]) * factor).to(x.dtype)
        largest = torch.sum(rotated_0.to(torch.float32) * new_0.to(torch.float32)[None, :], dim=-1) + torch.sum(
            rotated_1.to(torch.float32) * new_1.to(torch.float32)[None, :], dim=-1
        )
        total = torch.full_like(largest, 1.0)
        acc_0 = hl.zeros([shared, half], dtype=torch.float32) + v_0.to(torch.float32)[None, :]
        acc_1 = hl.zeros([shared, half], dtype=torch.float32) + v_1.to(torch.float32)[None, :]
        for tile_t in hl.tile(length):
            scores = hl.dot(rotated_0, keys[b, tile_t, g, 0, :].T)
            scores = hl.dot(rotated_1, keys[b, tile_t, g, 1, :].T, acc=scores)
            scores = torch.where((tile_t.index < length)[None, :], scores, float("-inf"))
            peak = torch.maximum(largest, torch.amax(scores, dim=-1))
            weights = torch.exp2(scores - peak[:, None])
            decay = torch.exp2(largest - peak)
            total = total * decay + torch.sum(weights, dim=-1)
            weights = weights.to(x.dtype)
            acc_0 = hl.dot(weights, values[b, tile_t, g, 0, :], acc=acc_0 * decay[:, None])
            acc_1 = hl.dot(weights, values[b, tile_t, g, 1, :], acc=acc_1 * decay[:, None])
            largest = peak
        attended[b, g, :, 0, :] = acc_0 / total[:, None]
        attended[b, g, :, 1, :] = acc_1 / total[:, None]
    hl.barrier()

    # projection and residual
    for tile_b, tile_n in hl.tile([batch, hidden]):
        acc = hl.zeros([tile_b, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(heads * dim):
            acc = hl.dot(flat[tile_b, tile_k], w_out[tile_n, tile_k].T, acc=acc)
        after[tile_b, tile_n] = acc + x[tile_b, tile_n].to(torch.float32)
    hl.barrier()

    # normalization, gate and up
    for tile_b, tile_n in hl.tile([batch, inner]):
        gate = hl.zeros([tile_b, tile_n], dtype=torch.float32)
        up = hl.zeros([tile_b, tile_n], dtype=torch.float32)
        squares = hl.zeros([tile_b], dtype=torch.float32)
        for tile_k in hl.tile(hidden):
            part = after[tile_b, tile_k].to(torch.float32)
            squares += torch.sum(part * part, dim=-1)
            scaled = (part * norm_mlp[tile_k].to(torch.float32)[None, :]).to(x.dtype)
            gate = hl.dot(scaled, w_gate_up[0, tile_n, tile_k].T, acc=gate)
            up = hl.dot(scaled, w_gate_up[1, tile_n, tile_k].T, acc=up)
        scale = torch.rsqrt(squares / hidden + EPS)[:, None]
        gate = gate * scale
        gated[tile_b, tile_n] = gate * torch.sigmoid(gate) * (up * scale)
    hl.barrier()

    # down and residual
    for tile_b, tile_n in hl.tile([batch, hidden]):
        acc = hl.zeros([tile_b, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(inner):
            acc = hl.dot(gated[tile_b, tile_k], w_down[tile_n, tile_k].T, acc=acc)
        out[tile_b, tile_n] = acc + after[tile_b, tile_n].to(torch.float32)
    return out


layer_at_once = helion.kernel(decode_layer.fn, config=TOGETHER)


def reference(
    x: torch.Tensor,
    norm_in: torch.Tensor,
    w_qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    lengths: torch.Tensor,
    w_out: torch.Tensor,
    norm_mlp: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
) -> torch.Tensor:
    batch, (groups, dim) = x.size(0), k_cache.shape[2:]
    heads = w_out.size(1) // dim
    qkv = F.rms_norm(x, [x.size(1)], norm_in, EPS) @ w_qkv.T
    q, k, v = qkv.split([heads * dim, groups * dim, groups * dim], dim=1)
    c, s = cos[lengths][:, None], sin[lengths][:, None]

    def rotated(t: torch.Tensor) -> torch.Tensor:
        low, high = t.view(batch, -1, dim).chunk(2, dim=-1)
        return torch.cat((low * c - high * s, high * c + low * s), dim=-1)

    rows = torch.arange(batch, device=x.device)
    k_cache[rows, lengths], v_cache[rows, lengths] = rotated(k), v.view(batch, groups, dim)
    attended = torch.empty(batch, heads, dim, dtype=x.dtype, device=x.device)
    for b in range(batch):
        end = int(lengths[b]) + 1
        one, keys, values = (t.transpose(0, 1) for t in (rotated(q)[b][None], k_cache[b, :end], v_cache[b, :end]))
        attended[b] = F.scaled_dot_product_attention(one, keys, values, enable_gqa=True)[:, 0]
    after = x + attended.flatten(1) @ w_out.T
    normed = F.rms_norm(after, [x.size(1)], norm_mlp, EPS)
    return after + (F.silu(normed @ w_gate_up[0].T) * (normed @ w_gate_up[1].T)) @ w_down.T


def inputs(
    batch: int, hidden: int, heads: int, groups: int, dim: int, inner: int, tokens: int, dtype: torch.dtype
) -> tuple[Any, ...]:
    """Return random arguments: caches for `tokens` tokens, a third to all but one of which are there."""

    def made(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape, device=DEVICE) * scale).to(dtype)

    angles = torch.arange(tokens, device=DEVICE)[:, None] * 10000.0 ** -torch.linspace(0, 1, dim // 2, device=DEVICE)
    return (
        made(batch, hidden) + 0.2,
        made(hidden, scale=0.1) + 1,
        made((heads + 2 * groups) * dim, hidden, scale=hidden**-0.5),
        angles.cos().to(dtype),
        angles.sin().to(dtype),
        made(batch, tokens, groups, dim),
        made(batch, tokens, groups, dim) + 0.3,
        torch.randint(tokens // 3, tokens, [batch], device=DEVICE),
        made(hidden, heads * dim, scale=(heads * dim) ** -0.5),
        made(hidden, scale=0.1) + 1,
        made(2, inner, hidden, scale=hidden**-0.5),
        made(hidden, inner, scale=inner**-0.5),
    )


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    small = inputs(3, 96, 4, 2, 32, 160, 70, torch.float32)
    half = inputs(5, 96, 6, 3, 32, 160, 70, torch.bfloat16)
    return [
        ("as predicted, fp32", decode_layer, small),
        ("as predicted, bf16", decode_layer, half),
        ("one kernel, bf16", layer_at_once, half),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
