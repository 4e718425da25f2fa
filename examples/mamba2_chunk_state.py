"""State that each chunk of a Mamba-2 sequence adds: a sum of outer products that decay towards the chunk's end.

Within a chunk that sum is a matmul of the decayed inputs with the input projections; chunks are independent.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def mamba2_chunk_state(x: torch.Tensor, b: torch.Tensor, dt: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """Compute `state[B, C, H, P, N]` in the dtype of `x`: the sum over positions l of each chunk of `exp(decay[last]
    - decay[l]) * dt[l] * outer(x[l], b[l])`.

    `x[B, C L, H, P]`, `b[B, C L, G, N]` with H a multiple of G; `dt` and `decay` are `[B, H, C, L]`, `decay` being the
    running sum of the logarithms of the decay within the chunk.
    """
    batch, heads, chunks, length = decay.size()
    _, positions, groups, states = b.size()
    features = x.size(3)
    assert positions == chunks * length, f"{positions} positions are not {chunks} chunks of {length}"
    assert dt.size() == decay.size(), "dt and decay must have the same shape"
    assert heads % groups == 0, f"{heads} heads do not share {groups} groups evenly"
    x = x.reshape(batch, chunks, length, heads, features)
    b = b.reshape(batch, chunks, length, groups, states)
    out = torch.empty([batch, chunks, heads, features, states], dtype=x.dtype, device=x.device)
    for tile_b, tile_c, tile_h, tile_p, tile_n in hl.tile(
        [batch, chunks, heads, features, states], block_size=[1, 1, 1, None, None]
    ):
        i, chunk, head = tile_b.begin, tile_c.begin, tile_h.begin
        group = head // (heads // groups)
        end = decay[i, head, chunk, length - 1].to(torch.float32)
        acc = hl.zeros([tile_p, tile_n], dtype=torch.float32)
        for tile_l in hl.tile(length):
            weight = torch.exp(end - decay[i, head, chunk, tile_l].to(torch.float32)) * dt[i, head, chunk, tile_l]
            values = x[i, chunk, tile_l, head, tile_p] * weight[:, None]
            acc = hl.dot(values.to(x.dtype).T, b[i, chunk, tile_l, group, tile_n], acc=acc)
        out[i, chunk, head, tile_p, tile_n] = acc
    return out


def reference(x: torch.Tensor, b: torch.Tensor, dt: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    _, heads, chunks, length = decay.size()
    x = x.unflatten(1, (chunks, length))
    b = b.unflatten(1, (chunks, length)).repeat_interleave(heads // b.size(2), dim=3)
    weight = torch.exp(decay[..., -1:] - decay) * dt
    return torch.einsum("bhcl,bclhp,bclhn->bchpn", weight, x, b)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([1, 2 * 45, 4, 24], device=DEVICE) + 0.5
    b = torch.randn([1, 2 * 45, 2, 19], device=DEVICE) - 0.25
    dt = torch.rand([1, 4, 2, 45], device=DEVICE)
    decay = torch.cumsum(-dt * 0.1, dim=-1)
    return [
        ("fp32", mamba2_chunk_state, (x, b, dt, decay)),
        ("bf16", mamba2_chunk_state, (x.bfloat16(), b.bfloat16(), dt, decay)),
        ("fp16, one group", mamba2_chunk_state, (x.half(), b[:, :, :1].half(), dt.half(), decay)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
