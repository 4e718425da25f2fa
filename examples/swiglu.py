"""SiLU-gated linear unit, of two tensors or of one that holds gate and value side by side.

A projection computes both halves in one matmul; `tile + n` addresses the second half without a copy.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def swiglu(gate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Compute `silu(gate[M, N]) * x[M, N]`, the activation in fp32."""
    assert gate.size() == x.size(), "gate and x must have the same shape"
    out = torch.empty_like(x)
    for tile in hl.tile(out.size()):
        values = gate[tile].to(torch.float32)
        out[tile] = values * torch.sigmoid(values) * x[tile].to(torch.float32)
    return out


@helion.kernel()
def swiglu_packed(both: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Write `silu(both[:, :N]) * both[:, N:]` of `both[M, 2 N]` to `out[M, N]`."""
    m, n = out.size()
    assert both.size(1) == 2 * n, f"{both.size(1)} columns do not hold gate and value of {n} columns"
    for tile_m, tile_n in hl.tile([m, n]):
        gate = both[tile_m, tile_n].to(torch.float32)
        out[tile_m, tile_n] = torch.nn.functional.silu(gate) * both[tile_m, tile_n + n].to(torch.float32)
    return out


def reference(gate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    if gate.size() != x.size():  # packed: x is the output
        gate, x = gate.chunk(2, dim=1)
    return torch.nn.functional.silu(gate) * x


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    both = torch.randn([45, 2 * 77], device=DEVICE) * 2 + 0.5
    gate, x = both.chunk(2, dim=1)
    return [
        ("fp32", swiglu, (gate, x)),
        ("bf16", swiglu, (gate.bfloat16(), x.bfloat16())),
        ("packed, fp32", swiglu_packed, (both, torch.empty_like(gate))),
        ("packed, fp16", swiglu_packed, (both.half(), torch.empty_like(gate, dtype=torch.float16))),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
