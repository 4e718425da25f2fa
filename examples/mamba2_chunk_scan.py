"""Output of a Mamba-2 layer from the states at the beginning of its chunks.

A position reads the decayed initial state of its chunk, and attends to the earlier positions of the chunk with
decaying weights. This is a causal matmul whose inner loop ends at the last position of the tile.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def mamba2_chunk_scan(
    cb: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    decay: torch.Tensor,
    c: torch.Tensor,
    state: torch.Tensor,
    skip: torch.Tensor,
) -> torch.Tensor:
    """Compute `out[l]` as `exp(decay[l]) * state @ c[l]`, plus the sum over s from 0 to l of `cb[l, s] * exp(decay[l]
    - decay[s]) * dt[s] * x[s]`, plus `skip * x[l]`, for positions l and s of one chunk.

    `cb[B, C, G, L, L]` holds the products of `c` with the input projections in each chunk; `x[B, C L, H, P]`; `dt` and
    `decay` are `[B, H, C, L]`, `decay` being the running sum of the logarithms of the decay within the chunk;
    `c[B, C L, G, N]`; `state[B, C, H, P, N]`; `skip[H]`. The result has the shape and dtype of `x`.
    """
    batch, heads, chunks, length = decay.size()
    _, positions, groups, _ = c.size()
    features = x.size(3)
    states = hl.specialize(c.size(3))
    assert positions == chunks * length, f"{positions} positions are not {chunks} chunks of {length}"
    assert dt.size() == decay.size(), "dt and decay must have the same shape"
    assert heads % groups == 0, f"{heads} heads do not share {groups} groups evenly"
    x = x.reshape(batch, chunks, length, heads, features)
    c = c.reshape(batch, chunks, length, groups, states)
    out = torch.empty([batch, chunks, length, heads, features], dtype=x.dtype, device=x.device)
    for tile_b, tile_c, tile_h, tile_l, tile_p in hl.tile(
        [batch, chunks, heads, length, features], block_size=[1, 1, 1, None, None]
    ):
        i, chunk, head = tile_b.begin, tile_c.begin, tile_h.begin
        group = head // (heads // groups)
        decay_l = decay[i, head, chunk, tile_l].to(torch.float32)
        entering = state[i, chunk, head, tile_p, :].to(c.dtype)
        acc = hl.dot(c[i, chunk, tile_l, group, :], entering.T) * torch.exp(decay_l)[:, None]
        for tile_s in hl.tile(tile_l.end):
            earlier = tile_l.index[:, None] >= tile_s.index[None, :]
            exponent = decay_l[:, None] - decay[i, head, chunk, tile_s].to(torch.float32)[None, :]
            weight = cb[i, chunk, group, tile_l, tile_s].to(torch.float32) * dt[i, head, chunk, tile_s][None, :]
            weight = weight * torch.exp(torch.where(earlier, exponent, float("-inf")))
            acc = hl.dot(weight.to(x.dtype), x[i, chunk, tile_s, head, tile_p], acc=acc)
        acc += x[i, chunk, tile_l, head, tile_p].to(torch.float32) * skip[head].to(torch.float32)
        out[i, chunk, tile_l, head, tile_p] = acc
    return out.view(batch, positions, heads, features)


def reference(
    cb: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    decay: torch.Tensor,
    c: torch.Tensor,
    state: torch.Tensor,
    skip: torch.Tensor,
) -> torch.Tensor:
    _, heads, chunks, length = decay.size()
    share = heads // c.size(2)
    values = x.unflatten(1, (chunks, length))
    c = c.unflatten(1, (chunks, length)).repeat_interleave(share, dim=3)
    entered = torch.einsum("bclhn,bchpn,bhcl->bclhp", c, state, decay.exp())
    exponent = (decay[..., :, None] - decay[..., None, :]).transpose(1, 2)
    weight = torch.tril(cb.repeat_interleave(share, dim=2) * exponent.exp())
    summed = torch.einsum("bchls,bhcs,bcshp->bclhp", weight, dt, values)
    return (entered + summed).flatten(1, 2) + x * skip[:, None]


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    cb = torch.randn([1, 2, 2, 45, 45], device=DEVICE) + 0.5
    x = torch.randn([1, 2 * 45, 4, 24], device=DEVICE) - 0.25
    dt = torch.rand([1, 4, 2, 45], device=DEVICE)
    decay = torch.cumsum(-dt * 0.1, dim=-1)
    c = torch.randn([1, 2 * 45, 2, 19], device=DEVICE) + 0.25
    state = torch.randn([1, 2, 4, 24, 19], device=DEVICE)
    skip = torch.randn([4], device=DEVICE)
    args = (cb, x, dt, decay, c, state, skip)
    return [
        ("fp32", mamba2_chunk_scan, args),
        ("bf16", mamba2_chunk_scan, (cb.bfloat16(), x.bfloat16(), dt, decay, c.bfloat16(), state.bfloat16(), skip)),
        ("fp16", mamba2_chunk_scan, tuple(arg.half() for arg in args)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
