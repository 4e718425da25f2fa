"""GELU-gated linear unit: the gate passes through the tanh form of GELU and scales the other operand.

The kernel is elementwise and memory-bound: two loads and one store for an activation that eager PyTorch stores in
between.
"""

from __future__ import annotations

import math
from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def geglu(gate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Compute `gelu(gate, approximate="tanh") * x` of tensors of one shape, in fp32 between load and store."""
    assert gate.size() == x.size(), "gate and x must have the same shape"
    out = torch.empty_like(x, dtype=torch.promote_types(gate.dtype, x.dtype))
    for tile in hl.tile(out.size()):
        values = gate[tile].to(torch.float32)
        inner = math.sqrt(2 / math.pi) * (values + 0.044715 * values * values * values)
        activated = 0.5 * values * (1 + torch.tanh(inner))
        out[tile] = activated * x[tile].to(torch.float32)
    return out


def reference(gate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(gate, approximate="tanh") * x


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    gate = torch.randn([5, 9, 63], device=DEVICE) * 2 + 0.5
    x = torch.randn([5, 9, 63], device=DEVICE) - 0.25
    return [
        ("fp32", geglu, (gate, x)),
        ("bf16", geglu, (gate.bfloat16(), x.bfloat16())),
        ("fp16 gate, fp32, transposed", geglu, (gate.half().transpose(0, 1), x.transpose(0, 1))),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
