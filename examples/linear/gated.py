"""Linear attention with a decay per position: plain linear attention without decay, retention with a constant one.

A chunk of positions reads the state that the chunks before it have left, and attends to itself as attention without
softmax does. All of it is matmuls. The compiler derives the gradients.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.experimental
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel(static_shapes=False)
def gated_linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """Compute `q[t] @ state[t]`, with `state[t] = exp(decay[t]) * state[t - 1] + outer(k[t], v[t])`.

    The tensors are `q[H, S, D]`, `k[H, S, D]`, `v[H, S, E]` and fp32 `decay[H, S]`, which is at most 0.
    """
    heads, length = q.size(0), q.size(1)
    depth, width = hl.specialize((q.size(2), v.size(2)))
    out = torch.empty([heads, length, width], dtype=v.dtype, device=q.device)
    for tile_h, tile_e in hl.tile([heads, width], block_size=[1, None]):
        head = tile_h.begin
        state = hl.zeros([depth, tile_e], dtype=torch.float32)
        for chunk in hl.tile(length):
            query, key, value = q[head, chunk, :], k[head, chunk, :], v[head, chunk, tile_e]
            steps = decay[head, chunk]
            since = hl.cumsum(steps, dim=0)
            until = torch.sum(steps, dim=0) - since
            earlier = chunk.index[:, None] >= chunk.index[None, :]
            between = torch.exp(torch.where(earlier, since[:, None] - since[None, :], float("-inf")))
            inside = hl.dot((hl.dot(query, key.T) * between).to(v.dtype), value)
            out[head, chunk, tile_e] = inside + hl.dot(query, state.to(q.dtype)) * torch.exp(since)[:, None]
            faded = (key.to(torch.float32) * torch.exp(until)[:, None]).to(k.dtype)
            state = state * torch.exp(torch.sum(steps, dim=0)) + hl.dot(faded.T, value)
    return out


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    since = decay.cumsum(-1)
    between = (since[:, :, None] - since[:, None, :]).tril().exp().tril()
    return (q @ k.mT * between) @ v


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    q, k, v = (torch.randn([2, 75, 32], device=DEVICE) * 0.3 for _ in range(3))
    decay = -torch.rand([2, 75], device=DEVICE) * 0.2
    constant = torch.tensor([[0.9], [0.97]], device=DEVICE).log().expand(2, 75).contiguous()
    return [
        ("decay of its own", gated_linear_attention, (q, k, v, decay)),
        ("no decay, bf16", gated_linear_attention, (q.bfloat16(), k.bfloat16(), v.bfloat16(), 0 * decay)),
        ("retention, wide values", gated_linear_attention, (q, k, torch.cat((v, q), -1), constant)),
    ]


def check_gradients() -> None:
    """Compare the derived gradients with those of eager PyTorch."""
    _, kernel, args = cases()[0]
    leaves = [arg.detach().requires_grad_() for arg in args]
    out = reference(*leaves)
    grad = torch.cos(torch.arange(out.numel(), device=out.device)).view_as(out)
    found = helion.experimental.backward(kernel, grad, *args)
    for ours, theirs in zip(found, torch.autograd.grad(out, leaves, grad), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=2e-2)


def main() -> None:
    run_cases(cases(), reference)
    check_gradients()
    print("gradients agree")


if __name__ == "__main__":
    main()
