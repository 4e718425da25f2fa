"""States of the gated delta rule before each chunk of a sequence, which run through its chunks in order.

Each chunk has solved its own equations before: it adds `u - w @ state` as values, whatever state it meets. With the
states, the results of all chunks are independent of one another.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel(static_shapes=False)
def delta_states(
    k: torch.Tensor, w: torch.Tensor, u: torch.Tensor, decay: torch.Tensor, chunk: hl.constexpr
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the states `[B, C, H, D, E]` before chunks of a number of positions, and the values `[B, S, H, E]` that they add.

    The tensors are `k[B, S, H, D]`, `w[B, S, H, D]`, `u[B, S, H, E]` and fp32 `decay[B, S, H]`, which is the sum of the
    logarithms of the decay since the chunk's begin. The last chunk may be shorter.
    """
    batch, length, heads, depth = k.size()
    depth, width = hl.specialize((depth, u.size(3)))
    states = torch.empty([batch, helion.cdiv(length, chunk), heads, depth, width], dtype=k.dtype, device=k.device)
    values = torch.empty_like(u)
    for tile_b, tile_h, tile_e in hl.tile([batch, heads, width], block_size=[1, 1, None]):
        i, head = tile_b.begin, tile_h.begin
        state = hl.zeros([depth, tile_e], dtype=torch.float32)
        for tile in hl.tile(length, block_size=chunk):
            states[i, tile.id, head, :, tile_e] = state
            read = hl.dot(w[i, tile, head, :], state.to(w.dtype))
            added = u[i, tile, head, tile_e].to(torch.float32) - read
            values[i, tile, head, tile_e] = added
            since = decay[i, tile, head]
            end = decay[i, torch.minimum(tile.begin + chunk, length) - 1, head]
            faded = (added * torch.exp(end - since)[:, None]).to(k.dtype)
            state = state * torch.exp(end) + hl.dot(k[i, tile, head, :].T, faded)
    return states, values


def reference(
    k: torch.Tensor, w: torch.Tensor, u: torch.Tensor, decay: torch.Tensor, chunk: int
) -> tuple[torch.Tensor, torch.Tensor]:
    state, states, values = k.new_zeros(k.size(0), k.size(2), k.size(3), u.size(3)), [], []
    for part in zip(*(t.transpose(1, 2).split(chunk, 2) for t in (k, w, u, decay)), strict=True):
        key, erased, fresh, since = part
        states.append(state)
        values.append(fresh - erased @ state)
        fade = (since[:, :, -1:] - since).exp()[..., None]
        state = state * since[:, :, -1].exp()[..., None, None] + key.mT @ (values[-1] * fade)
    return torch.stack(states, 1), torch.cat(values, 2).transpose(1, 2)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    k, w, u = (torch.randn([2, 70, 2, 16], device=DEVICE) * 0.2 for _ in range(3))
    steps = -torch.rand([2, 70, 2], device=DEVICE) * 0.1
    decay = torch.cat([part.cumsum(1) for part in steps.split(32, 1)], 1)
    return [
        ("fp32, a shorter last chunk", delta_states, (k, w, u, decay, 32)),
        ("bf16", delta_states, (k.bfloat16(), w.bfloat16(), u.bfloat16(), decay, 32)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
