"""The delta rule, one position at a time: a key replaces the value that the state has for it, as for decoding.

With a decay per position it is the gated delta rule, and with one per feature Kimi delta attention.
`helion.ops.gated_delta_rule` computes long sequences in chunks.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel(static_shapes=False)
def delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `q[t] @ state[t]` for all t, and the last state.

    State t is `faded + outer(k[t], beta[t] * (v[t] - k[t] @ faded))`, with `faded = exp(decay[t])[:, None] * state[t - 1]`.
    The tensors are `q[H, S, D]`, `k[H, S, D]`, `v[H, S, E]`, `beta[H, S]`, the first `state[H, D, E]`, and `decay[H, S, D]`
    or `decay[H, S, 1]`. The last three are fp32.
    """
    heads, length = q.size(0), q.size(1)
    depth, width = hl.specialize((q.size(2), v.size(2)))
    decay = decay.expand(heads, length, depth)
    out = torch.empty([heads, length, width], dtype=v.dtype, device=q.device)
    last = torch.empty([heads, depth, width], dtype=torch.float32, device=q.device)
    for tile_h, tile_e in hl.tile([heads, width], block_size=[1, None]):
        head = tile_h.begin
        memory = state[head, :, tile_e]
        for t in hl.grid(length):
            query, key = q[head, t, :].to(torch.float32), k[head, t, :].to(torch.float32)
            memory = memory * torch.exp(decay[head, t, :])[:, None]
            missing = v[head, t, tile_e].to(torch.float32) - torch.sum(key[:, None] * memory, dim=0)
            memory = memory + key[:, None] * (missing * beta[head, t])[None, :]
            out[head, t, tile_e] = torch.sum(query[:, None] * memory, dim=0)
        last[head, :, tile_e] = memory
    return out, last


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    found, dtype = [], v.dtype
    q, k, v = q.to(state.dtype), k.to(state.dtype), v.to(state.dtype)
    for t in range(q.size(1)):
        state = state * decay[:, t].exp()[..., None]
        missing = v[:, t] - (k[:, t, None] @ state)[:, 0]
        state = state + k[:, t, :, None] * (beta[:, t, None] * missing)[:, None]
        found.append((q[:, t, None] @ state)[:, 0])
    return torch.stack(found, 1).to(dtype), state


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    q, v = (torch.randn([2, 19, 32], device=DEVICE) for _ in range(2))
    k = torch.nn.functional.normalize(torch.randn([2, 19, 32], device=DEVICE), dim=-1)
    beta, state = torch.rand([2, 19], device=DEVICE), torch.randn([2, 32, 32], device=DEVICE)
    decay = -torch.rand([2, 19, 32], device=DEVICE) * 0.3
    return [
        ("delta rule", delta_rule, (q, k, v, 0 * decay[..., :1], beta, state)),
        ("gated, bf16", delta_rule, (q.bfloat16(), k.bfloat16(), v.bfloat16(), decay[..., :1], beta, state)),
        ("gated by feature", delta_rule, (q, k, v, decay, beta, state)),
        ("one position", delta_rule, (q[:, :1], k[:, :1], v[:, :1], decay[:, :1], beta[:, :1], state)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
