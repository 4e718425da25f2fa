"""How much of a thread's registers may be planned with: the predictions are 12 % off in the median, and what the estimate
does not see depends on what goes through the registers.

One line per kind of kernel, in percent of what a block leaves each thread; "offline" is ptxas for sm_80 to sm_120 and LLVM
for gfx942 and gfx950 (Triton 3.7, scripts/prove_seeds.py).
"""

from __future__ import annotations

from ....autotuner.proposal import Predicted
from ....hardware import Target

#: All of them: the prediction as it is.
ALL = 100
#: Scores, their softmax and the output: of eleven seeds of 88 % and more seven spill 24 to 264 bytes, of fourteen of at
#: most 86 % none.
ATTENTION = 87
#: The same where operands reach the matrix unit through registers: for sm_80 216 planned with spill 64 and 104 bytes.
ATTENTION_FRAGMENTS = 80
#: The same on AMD: for gfx950 209 and 217 of 256 planned with spill 112 and 380 bytes.
ATTENTION_AMD = 80
#: The same for so few rows that the synchronous unit multiplies them, where two programs of four warps share an SM: 261 of 255
#: planned with for sm_90 spill 136 bytes, which costs less than eight warps that each read all rows from shared memory.
FEW_ROWS = 103
#: Backward passes of attention, whose scores and gradients are there at once: for sm_90 232 planned with spill 48 bytes and
#: 180 none; through fragments, for sm_80, 199 spill 132 and 161 none.
GRADIENT, GRADIENT_FRAGMENTS = 75, 65
#: The same with accumulators in tensor memory: for sm_100 226 planned with spill 544 bytes, 180 none.
GRADIENT_TENSOR_MEMORY = 85
#: A state that products add to from chunk to chunk: 182 planned with spill 648 bytes for sm_90, 198 spill 308 for sm_100.
#: 122 spill 80 through fragments, for sm_80.
STATE = 70
#: Several products: 251 of 255 planned with spill 272 to 508 bytes, 238 up to 88, 224 none.
PRODUCTS = 92
#: The same where a thread has more than 256, half of them for matrix products alone: 329 of 512 planned with take 506,
#: 347 spill 128 bytes and 403 up to 416.
PRODUCTS_WIDE, _WIDE_REGISTERS = 60, 256
#: Operands that reach the matrix unit through registers, for sm_80: 237 planned with spill 88 bytes, 227 none.
FRAGMENTS = 92
#: Tiles that reach past the end of an axis: masks take the rest. Six planned with 53 to 65 % take 14 to 33 % more and
#: spill none.
RAGGED = 70


def attention(target: Target) -> int:
    """Percent for scores, their softmax and the output on ``target``."""
    if target.kind == "hip":
        return ATTENTION_AMD
    return ATTENTION_FRAGMENTS if _has_fragments(target) else ATTENTION


def gradient(target: Target) -> int:
    """Percent for backward passes of attention on ``target``."""
    if target.kind != "cuda":
        return products(target)
    if target.has("tcgen05"):
        return GRADIENT_TENSOR_MEMORY
    return GRADIENT_FRAGMENTS if _has_fragments(target) else GRADIENT


def products(target: Target) -> int:
    """Percent for several products on ``target``."""
    return PRODUCTS_WIDE if target.max_registers_per_thread > _WIDE_REGISTERS else PRODUCTS


def within(predicted: Predicted, percent: int) -> bool:
    """Whether ``percent`` of the registers that a thread may have hold what is predicted."""
    return predicted.registers_per_thread <= predicted.register_limit * percent // 100


def _has_fragments(target: Target) -> bool:
    """Whether operands reach the matrix unit through registers."""
    return target.kind == "cuda" and not (target.has("wgmma") or target.has("tcgen05"))
