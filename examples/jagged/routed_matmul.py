"""Products of tokens with the matrix of the expert that each is routed to, as in a mixture of experts.

Tokens stay where they are: a list has the numbers of those of each expert, one expert after the other. Loads gather rows
by it, and stores scatter them back.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def routed_matmul(x: torch.Tensor, weights: torch.Tensor, tokens: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Compute `x[t] @ weights[e]`, with `x[T, K]` and `weights[E, K, N]`; `tokens[offsets[e] : offsets[e + 1]]` are those of e."""
    experts, k, n = weights.size()
    out = torch.empty([x.size(0), n], dtype=x.dtype, device=x.device)
    for tile_e, tile_n in hl.tile([experts, n], block_size=[1, None]):
        expert = tile_e.begin
        for tile_t in hl.tile(offsets[expert], offsets[expert + 1]):
            token = tokens[tile_t]
            acc = hl.zeros([tile_t, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[token, tile_k], weights[expert, tile_k, tile_n], acc=acc)
            out[token, tile_n] = acc
    return out


def reference(x: torch.Tensor, weights: torch.Tensor, tokens: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    out = x.new_empty([x.size(0), weights.size(2)])
    for own, weight in zip(tokens.split(offsets.diff().tolist()), weights, strict=True):
        out[own.long()] = x[own.long()] @ weight
    return out


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x, weights = torch.randn([101, 48], device=DEVICE) + 0.2, torch.randn([5, 48, 40], device=DEVICE)
    expert = torch.randint(0, 4, [101], device=DEVICE)  # none for the last expert
    tokens = expert.argsort(stable=True)
    offsets = torch.bincount(expert, minlength=5).cumsum(0)
    offsets = torch.cat([offsets.new_zeros(1), offsets])
    half = x.bfloat16(), weights.bfloat16(), tokens.int(), offsets.int()
    return [
        ("fp32", routed_matmul, (x, weights, tokens, offsets)),
        ("bf16, int32", routed_matmul, half),
        ("one expert, fp16", routed_matmul, (x.half(), weights[:1].half(), tokens, offsets[[0, -1]])),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
