"""What the generator knows of a dtype, by torch's name for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Dtype:
    itemsize_bytes: int
    dsl: str
    """Attribute of the module ``cutlass``."""
    mma_k: int = 0
    """Depth of one instruction of the matrix units; 0 where they do not take it as an operand."""


DTYPES: dict[str, Dtype] = {
    "float32": Dtype(itemsize_bytes=4, dsl="Float32"),
    "float16": Dtype(itemsize_bytes=2, dsl="Float16", mma_k=16),
    "bfloat16": Dtype(itemsize_bytes=2, dsl="BFloat16", mma_k=16),
    "float8_e4m3fn": Dtype(itemsize_bytes=1, dsl="Float8E4M3FN", mma_k=32),
    "float8_e5m2": Dtype(itemsize_bytes=1, dsl="Float8E5M2", mma_k=32),
}
OPERAND_DTYPES = tuple(name for name, dtype in DTYPES.items() if dtype.mma_k)
EPILOGUE_DTYPES = ("float32", "float16", "bfloat16")
"""Of outputs and of what epilogues read. The unit's own rounding to 8 bits saturates where torch's gives NaN."""


def itemsize(name: str) -> int:
    """Bytes of one element."""
    return DTYPES[name].itemsize_bytes
