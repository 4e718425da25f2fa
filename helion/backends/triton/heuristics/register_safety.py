"""Percentages of a thread's registers that plans may use.

Register predictions are 12 % off in the median, and the unseen part of the estimate depends on the data that registers
hold. There is one line per kind of kernel, in percent of the registers that a block leaves each thread. "Offline" is
ptxas for sm_80 to sm_120 and LLVM for gfx942 and gfx950 (Triton 3.7, scripts/prove_seeds.py).
"""

from __future__ import annotations

from typing import ClassVar

from ...._support.records import dataclass
from ....autotuner.proposal import Predicted
from ....hardware import Target
from .tuned import Tuned, tuned

#: All registers: the prediction as it is. A chunk in which a row ends takes no more: for sm_120 a plan of 67 of 64 spills
#: 376 bytes there.
ALL = 100
#: Scores, their softmax and the output: of eleven seeds with a plan of 88 % and more, seven spill 24 to 264 bytes; of
#: fourteen of at most 86 %, none.
ATTENTION = 87
#: The same where operands reach the matrix unit through registers: for sm_80 a plan of 216 spills 64 and 104 bytes.
ATTENTION_FRAGMENTS = 80
#: The same on AMD: for gfx950 plans of 209 and 217 of 256 spill 112 and 380 bytes.
ATTENTION_AMD = 80
#: The same for so few rows that the synchronous unit multiplies them, where two programs of four warps share an SM. A
#: plan of 261 of 255 for sm_90 spills 136 bytes, which costs less than eight warps that each read all rows from shared
#: memory.
FEW_ROWS = 103
#: Backward passes of attention, whose scores and gradients are live at once: for sm_90 a plan of 232 spills 48 bytes
#: and 180 none; through fragments, for sm_80, 199 spills 132 and 161 none.
GRADIENT, GRADIENT_FRAGMENTS = 75, 65
#: The same with accumulators in tensor memory: for sm_100 a plan of 226 spills 544 bytes, 180 none.
GRADIENT_TENSOR_MEMORY = 85
#: The same of tiles that were measured (measurement ``attention_gradient_registers``). Heads of 256 spill, which costs less
#: than steps of 32 rows, too few for the asynchronous unit. Of tiles that no warp repeats, a plan of 268 spills 532 bytes.
GRADIENT_MEASURED, GRADIENT_UNREPEATED = 96, 106
#: Several matmuls: plans of 251 of 255 spill 272 to 508 bytes, 238 up to 88, 224 none.
PRODUCTS = 92
#: The same where a thread has more than 256, half of them for matrix operations alone: a plan of 329 of 512 takes 506,
#: 347 spills 128 bytes and 403 up to 416.
PRODUCTS_WIDE, _WIDE_REGISTERS = 60, 256
#: Operands that reach the matrix unit through registers, for sm_80: a plan of 237 spills 88 bytes, 227 none.
FRAGMENTS = 92
#: Tiles that extend past the end of an axis: masks take the rest. Six plans of 53 to 65 % take 14 to 33 % more and
#: spill none.
RAGGED = 70
#: A loop that applies a result to a longer tile than the loop that reduces it: a plan of 56 of 64 spills 224 to 536
#: bytes on sm_80 to sm_120.
APPLIED = 85
#: Elementwise kernels with more rows per thread: a plan of 107 of 255 takes 130 registers, 118 takes 196 to 207.
MANY_ROWS = 44


def attention(target: Target) -> int:
    """Return the percentage for scores, their softmax and the output on ``target``."""
    if target.kind == "hip":
        return ATTENTION_AMD
    return ATTENTION_FRAGMENTS if _has_fragments(target) else ATTENTION


def gradient(target: Target) -> int:
    """Return the percentage for backward passes of attention on ``target``."""
    if target.kind != "cuda":
        return products(target)
    if target.has("tcgen05"):
        return GRADIENT_TENSOR_MEMORY
    return GRADIENT_FRAGMENTS if _has_fragments(target) else GRADIENT


@dataclass(frozen=True)
class _State(Tuned):
    rule: ClassVar[str] = "chunk_state"

    #: A state that matmuls accumulate from chunk to chunk: a plan of 182 spills 648 bytes for sm_90, 198 spills 308 for
    #: sm_100. Through fragments, for sm_80, 122 spills 80. On the unit of warp groups, with pointers, a plan of 202 for
    #: sm_90 takes 240 registers, and 227 spills 508 bytes.
    percent: int
    #: The same with block pointers, which take registers: on warp groups 202 spills 80 bytes (measurement
    #: ``state_warps``).
    blocks: int


def state(target: Target) -> int:
    """Return the percentage for a state that matmuls accumulate from chunk to chunk on ``target``."""
    return min(products(target), tuned(_State, target).percent)


def state_with_blocks(target: Target) -> int:
    """Return the same for operands with block pointers."""
    return tuned(_State, target).blocks


def products(target: Target) -> int:
    """Return the percentage for several matmuls on ``target``."""
    return PRODUCTS_WIDE if target.max_registers_per_thread > _WIDE_REGISTERS else PRODUCTS


def within(predicted: Predicted, percent: int) -> bool:
    """Return whether the predicted registers stay within ``percent`` of those of a thread."""
    return predicted.registers_per_thread <= predicted.register_limit * percent // 100


def _has_fragments(target: Target) -> bool:
    """Return whether operands reach the matrix unit through registers."""
    return target.kind == "cuda" and not (target.has("wgmma") or target.has("tcgen05"))
