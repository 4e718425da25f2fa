"""Properties of dtypes for the code generator, by torch's names."""

from __future__ import annotations

from ...._support.records import dataclass
from .refusal import Refusal


@dataclass(frozen=True, kw_only=True)
class Dtype:
    itemsize_bytes: int
    dsl: str
    """Attribute of the module ``cutlass``."""
    mma_k: int = 0
    """K extent of one MMA instruction, in bytes for 4-bit numbers; 0 where it is no operand type."""
    operand: str = ""
    """The operand type of the MMA, an attribute of ``cutlass``; "" where it is the same."""


DTYPES: dict[str, Dtype] = {
    "float32": Dtype(itemsize_bytes=4, dsl="Float32", mma_k=8, operand="TFloat32"),
    "float16": Dtype(itemsize_bytes=2, dsl="Float16", mma_k=16),
    "bfloat16": Dtype(itemsize_bytes=2, dsl="BFloat16", mma_k=16),
    "float8_e4m3fn": Dtype(itemsize_bytes=1, dsl="Float8E4M3FN", mma_k=32),
    "float8_e5m2": Dtype(itemsize_bytes=1, dsl="Float8E5M2", mma_k=32),
    "int8": Dtype(itemsize_bytes=1, dsl="Int8", mma_k=32),
    "bool": Dtype(itemsize_bytes=1, dsl="Int8"),
    "uint8": Dtype(itemsize_bytes=1, dsl="Uint8"),
    "int16": Dtype(itemsize_bytes=2, dsl="Int16"),
    "int32": Dtype(itemsize_bytes=4, dsl="Int32"),
    "int64": Dtype(itemsize_bytes=8, dsl="Int64"),
    "int4": Dtype(itemsize_bytes=1, dsl="Uint8"),
    "uint4": Dtype(itemsize_bytes=1, dsl="Uint8"),
    "float4_e2m1fn_x2": Dtype(itemsize_bytes=1, dsl="Uint8", mma_k=32, operand="Float4E2M1FN"),
}
"""Of 4-bit numbers, ``per_byte`` are in the one byte of ``itemsize_bytes``."""
NUMBER = "number"
"""In place of a dtype: an fp32 scalar instead of a tensor."""
SIZE, PITCH = "size", "pitch"
"""In place of a dtype: an integer of 32 bits, or of 64."""
SEED = "seed"
"""In place of a dtype: an integer of 64 bits on which neither addresses nor sizes depend."""
OPERAND_DTYPES = tuple(name for name, dtype in DTYPES.items() if dtype.mma_k)
IMPRECISE_DTYPES = ("float8_e4m3fn", "float8_e5m2")
"""Operand types whose products wgmma adds in less than fp32."""
FLOAT_DTYPES = ("float32", "float16", "bfloat16")
EPILOGUE_DTYPES = (*FLOAT_DTYPES, "int8", "bool")
"""Types of epilogue inputs."""
COLUMN_DTYPES = (*EPILOGUE_DTYPES, "int32", "int64")
"""Types of epilogue inputs of one number per row: integers are rounded to fp32."""
OUTPUT_DTYPES = (*FLOAT_DTYPES, "float8_e4m3fn", "int8", "bool")
"""Types of output matrices; a bool is a byte of 0 or 1. The conversion to e4m3 saturates, as torch's; to e5m2 it does too,
where torch's gives infinity."""
ADDED_DTYPES = FLOAT_DTYPES
"""Types of output matrices that TMA adds to."""
COLUMN_OUTPUT_DTYPES = (*FLOAT_DTYPES, "int32", "int64")
"""Types of outputs with one number per row, which are stored one by one."""
ROW_NUMBER_DTYPES = (*COLUMN_OUTPUT_DTYPES, "float8_e4m3fn", "int8", "uint8")
"""The same of row kernels, which have such numbers for groups of columns as well."""
ROW_DTYPES = (*EPILOGUE_DTYPES, "float8_e4m3fn", "uint8")
"""Types of the matrices that row kernels read."""
ROW_OUTPUT_DTYPES = (*FLOAT_DTYPES, "float8_e4m3fn", "int8", "uint8")
"""Types of the matrices that row kernels write."""


def per_byte(name: str) -> int:
    """Return the elements of a byte: 2 of 4-bit numbers."""
    return 2 if name in ("int4", "uint4", "float4_e2m1fn_x2") else 1


def itemsize(name: str) -> int:
    """Return the bytes of one element. Raises ``Refusal`` for a dtype that the backend lacks."""
    if name not in DTYPES:
        raise Refusal(f"tensors of {name} are not implemented")
    return DTYPES[name].itemsize_bytes
