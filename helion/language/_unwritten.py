"""Bit patterns of uninitialized memory in checked mode: one number per dtype, which no computation gives.

Checked mode fills memory of ``torch.empty`` with them (``runtime/checked.py``). A pattern that is found later was
read, or returned, uninitialized. Floats have a NaN whose payload no operation makes. Types of one byte, bools and
16-bit integers have no number to spare and are not checked.
"""

from __future__ import annotations

import torch

#: The integer type of the same size, and the bits as such an integer.
PATTERNS: dict[torch.dtype, tuple[torch.dtype, int]] = {
    torch.float64: (torch.int64, 0x7FFDEAD5ADEAD5AD),
    torch.float32: (torch.int32, 0x7FDEAD5A),
    torch.float16: (torch.int16, 0x7EAD),
    torch.bfloat16: (torch.int16, 0x7FDA),
    torch.int64: (torch.int64, -0x2152411021524111),
    torch.uint64: (torch.int64, -0x2152411021524111),
    torch.int32: (torch.int32, -0x21524111),
    torch.uint32: (torch.int32, -0x21524111),
}


def unwritten(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the mask of uninitialized elements; None for dtypes that are not checked."""
    if tensor.dtype not in PATTERNS:
        return None
    integer, pattern = PATTERNS[tensor.dtype]
    return tensor.view(integer) == pattern


def mark_unwritten(tensor: torch.Tensor) -> None:
    """Fill a tensor with the pattern of uninitialized memory."""
    if tensor.dtype in PATTERNS:
        integer, pattern = PATTERNS[tensor.dtype]
        tensor.view(integer).fill_(pattern)


__all__ = ["PATTERNS", "mark_unwritten", "unwritten"]
