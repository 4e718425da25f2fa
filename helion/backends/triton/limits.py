"""Limits of Triton on a target, as far as they shape a program."""

from __future__ import annotations

import torch

from ... import knobs
from ..._compiler.context import Limits
from ...hardware import Target
from ...language.matmul import SCALE_GROUP

#: Elements along K of one instruction when both operands are e2m1 (``kind::mxf4`` of PTX's mma and tcgen05.mma).
_FOUR_BIT_K = 64


def limits(target: Target) -> Limits:
    """Return the limits of ``target``.

    Triton passes Python floats in fp32. On AMD it has no tf32x3, and tf32 only where the matrix unit has it (MI300X,
    not MI355X).
    """
    precisions = {"ieee", "tf32", "tf32x3"}
    if target.kind == "hip":
        precisions = {"ieee", "tf32"} if "tf32" in dict(target.matrix_tflops) else {"ieee"}
    return Limits(
        backend="Triton",
        powers_of_2=True,
        tile_step=None,
        min_dot={itemsize: target.min_dot(itemsize) for itemsize in (1, 2, 4, 8)},
        min_four_bit_k=_FOUR_BIT_K if target.has("scaled_mma") else SCALE_GROUP,
        dot_precisions=frozenset(precisions),
        float_arguments=torch.float32,
        stops=knobs.TRITON_INTERPRET.read(),
    )
