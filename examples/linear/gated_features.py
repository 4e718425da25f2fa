"""Gated linear attention (GLA): each feature of the keys has a decay of its own, at each position.

Within a chunk, the factor between two positions depends on the feature, so that scores are no matmul. They are sums of
products with factors of at most 1, in chunks of 16 positions. The state is read and written by matmuls.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases

#: Positions of a chunk. The factors of a chunk are a tensor of this size twice, times the features.
CHUNK = 16


@helion.kernel(static_shapes=False)
def feature_gated_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """Compute `q[t] @ state[t]`, with `state[t] = exp(decay[t])[:, None] * state[t - 1] + outer(k[t], v[t])`.

    The tensors are `q[H, S, D]`, `k[H, S, D]`, `v[H, S, E]` and fp32 `decay[H, S, D]`, which is at most 0.
    """
    heads, length = q.size(0), q.size(1)
    depth, width = hl.specialize((q.size(2), v.size(2)))
    out = torch.empty([heads, length, width], dtype=v.dtype, device=q.device)
    for tile_h, tile_e in hl.tile([heads, width], block_size=[1, None]):
        head = tile_h.begin
        state = hl.zeros([depth, tile_e], dtype=torch.float32)
        for chunk in hl.tile(length, block_size=CHUNK):
            query, key = q[head, chunk, :].to(torch.float32), k[head, chunk, :].to(torch.float32)
            value, steps = v[head, chunk, tile_e], decay[head, chunk, :]
            since = hl.cumsum(steps, dim=0)
            until = torch.sum(steps, dim=0)[None, :] - since
            earlier = (chunk.index[:, None] >= chunk.index[None, :])[:, :, None]
            between = torch.exp(torch.where(earlier, since[:, None, :] - since[None, :, :], float("-inf")))
            scores = torch.sum(query[:, None, :] * key[None, :, :] * between, dim=-1)
            read = hl.dot((query * torch.exp(since)).to(v.dtype), state.to(v.dtype))
            out[head, chunk, tile_e] = hl.dot(scores.to(v.dtype), value) + read
            faded = (key * torch.exp(until)).to(v.dtype)
            state = state * torch.exp(torch.sum(steps, dim=0))[:, None] + hl.dot(faded.T, value)
    return out


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    state, found = v.new_zeros(q.size(0), q.size(2), v.size(2)), []
    for t in range(q.size(1)):
        state = state * decay[:, t].exp()[..., None] + k[:, t, :, None] * v[:, t, None, :]
        found.append((q[:, t, None, :] @ state)[:, 0])
    return torch.stack(found, 1)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    q, k, v = (torch.randn([2, 41, 32], device=DEVICE) * 0.3 for _ in range(3))
    decay = -torch.rand([2, 41, 32], device=DEVICE)
    return [
        ("fp32", feature_gated_attention, (q, k, v, decay)),
        ("fp32, features that forget at once", feature_gated_attention, (q, k, v, decay * 30)),
        ("bf16", feature_gated_attention, (q.bfloat16(), k.bfloat16(), v.bfloat16(), decay)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
