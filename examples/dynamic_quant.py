"""Symmetric quantization of activations row by row, to int8 or to 8-bit floats, with the scales.

The largest magnitude of a row sets its scale. Then the row is read again, divided and converted, as an operand of an
8-bit matmul. The dtype is a compile-time constant, so only its rounding is compiled.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def dynamic_quant(
    x: torch.Tensor, dtype: hl.constexpr = torch.int8, largest: float = 127.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute values `[M, N]` of `dtype` and fp32 scales `[M]` with `values * scale` near `x[M, N]`.

    The largest magnitude of each row becomes `largest`: 127 for int8, 448 for e4m3. Rows of zeros have scale 1.
    """
    m, n = x.size()
    out = torch.empty([m, n], dtype=dtype, device=x.device)
    scales = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile in hl.tile(m):
        row = x[tile, :].to(torch.float32)
        highest = torch.amax(torch.abs(row), dim=-1)
        scale = torch.where(highest > 0, highest / largest, 1.0)
        scales[tile] = scale
        scaled = row / scale[:, None]
        if dtype == torch.int8:
            out[tile, :] = torch.round(scaled).to(torch.int8)
        else:
            out[tile, :] = scaled.to(dtype)
    return out, scales


def reference(
    x: torch.Tensor, dtype: torch.dtype = torch.int8, largest: float = 127.0
) -> tuple[torch.Tensor, torch.Tensor]:
    highest = x.abs().amax(-1)
    scales = torch.where(highest > 0, highest / largest, 1.0)
    scaled = x / scales[:, None]
    return (torch.round(scaled).to(dtype) if dtype == torch.int8 else scaled), scales


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([33, 301], device=DEVICE) * 2 + 0.5
    x[7] = 0
    return [
        ("bf16 to int8", dynamic_quant, (x.bfloat16(),)),
        ("fp32 to int8, 77 columns", dynamic_quant, (x[:, :77],)),
        ("bf16 to e4m3", dynamic_quant, (x.bfloat16(), torch.float8_e4m3fn, 448.0)),
        ("fp16 to e5m2, 77 columns", dynamic_quant, (x[:, :77].half(), torch.float8_e5m2, 57344.0)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
