"""Matrix products."""

from __future__ import annotations

from typing import Any

import torch

from ._registry import declare


@declare("device")
def dot(mat1: Any, mat2: Any, acc: Any = None, out_dtype: torch.dtype | None = None) -> Any:
    """``mat1[.., M, K] @ mat2[.., K, N] (+ acc)``, both of rank 2 or both of rank 3.

    Operands are fp16, bf16, fp32, int8 or fp8. The result is fp32 (int32 for int8) unless ``acc`` or ``out_dtype``
    says otherwise. Raises ``exc.ShapeMismatch`` and ``exc.DotBatchDimensionMismatch``.
    """
