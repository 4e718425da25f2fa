"""PTX that printed kernels name, for their runs without a GPU."""

from __future__ import annotations

import torch

QUOTIENT = "div.full.f32"
ROUNDED = {"cvt.rn.bf16x2.f32": torch.bfloat16, "cvt.rn.f16x2.f32": torch.float16}


def rounded_to(text: str) -> torch.dtype:
    """Return the dtype that the instruction rounds its one argument to; the result is float32 again."""
    (dtype,) = (dtype for name, dtype in ROUNDED.items() if name in text)
    return dtype
