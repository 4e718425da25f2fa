"""Conversion of pairs of integers, in the halves of a word, to 16-bit floats: one logic instruction and one FMA.

A constant in the high bits makes an integer in the low ones a float, from which the FMA subtracts. In bfloat16 that has
room for the low four bits of a half only. Up to eight bits without a constant are a multiple of the least number, which the
FMA multiplies by 2**127. All of these are exact. Results are then a fraction of the integers, the same for all.
"""

from __future__ import annotations

import math

import torch

from ....._support.records import dataclass
from ...plan.copied import Copied

HALVES = 0x00010001
"""The factor that copies 16 bits to both halves of a word."""
LARGEST_FACTOR = 127
"""The exponent of the largest power of two in bfloat16."""
LEAST_NUMBER = -133
"""That of its least number."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A conversion: the bits of an integer in each half, the bits that are flipped, and the FMA of the result."""

    name: str
    mask: int
    flipped: int
    factor: float
    added: float


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """The conversions of a word: of each eight bits, ``pairs`` in the order of the numbers along K. Results are integers
    divided by ``divisor``."""

    dtype: str
    pairs: tuple[Pair, ...]
    divisor: int


def conversion(copied: Copied, dtype: str) -> Conversion:
    """Return the conversion of 8-bit or 4-bit integers to a 16-bit type."""
    if not copied.is_packed:
        return _of_bytes(dtype)
    assert copied.offset is not None
    flipped = 8 if copied.sources[0].dtype == "int4" else 0
    return _of_nibbles(dtype, flipped, copied.offset - flipped)


def _of_bytes(dtype: str) -> Conversion:
    """Return the conversion of int8: flipping the sign adds 128."""
    if dtype == "float16":
        pair = Pair(name="byte_pair", mask=0xFF, flipped=0x6480, factor=1.0, added=-1152.0)
        return Conversion(dtype=dtype, pairs=(pair,), divisor=1)
    divisor = 2 ** -(LEAST_NUMBER + LARGEST_FACTOR)
    pair = Pair(name="byte_pair", mask=0xFF, flipped=0x80, factor=2.0**LARGEST_FACTOR, added=-128 / divisor)
    return Conversion(dtype=dtype, pairs=(pair,), divisor=divisor)


def _of_nibbles(dtype: str, flipped: int, offset: int) -> Conversion:
    """Return the conversions of the low and of the high four bits, with ``flipped`` bits, plus an offset."""
    if dtype == "float16":
        low = Pair(name="low_pair", mask=0xF, flipped=0x6400 | flipped, factor=1.0, added=offset - 1024)
        high = Pair(name="high_pair", mask=0xF0, flipped=0x6400 | flipped << 4, factor=1 / 16, added=offset - 64)
        return Conversion(dtype=dtype, pairs=(low, high), divisor=1)
    divisor = 2 ** -(LEAST_NUMBER + LARGEST_FACTOR + 4)
    low = Pair(name="low_pair", mask=0xF, flipped=0x4300 | flipped, factor=1 / divisor, added=(offset - 128) / divisor)
    high = Pair(name="high_pair", mask=0xF0, flipped=flipped << 4, factor=2.0**LARGEST_FACTOR, added=offset / divisor)
    return Conversion(dtype=dtype, pairs=(low, high), divisor=divisor)


def halves_of(number: float, dtype: str) -> int:
    """Return a word with a number of a 16-bit type in both halves."""
    half = torch.tensor(number, dtype=getattr(torch, dtype))
    assert math.isclose(float(half), number, rel_tol=0)
    return (int(half.view(torch.int16).item()) & 0xFFFF) * HALVES


def definitions(found: Conversion) -> tuple[str, ...]:
    """Return the functions of all pairs. Masks are in registers, because an instruction has one constant."""
    suffix, lines = {"bfloat16": "bf16x2", "float16": "f16x2"}[found.dtype], list[str]()
    for pair in found.pairs:
        factor, added = (halves_of(number, found.dtype) for number in (pair.factor, pair.added))
        constants = f"mov.b32 factor, {factor:#x}; mov.b32 added, {added:#x};"
        lines += [
            "",
            "",
            f"def {pair.name}(word, mask):",
            "    return cute.arch.inline_ptx(",
            f'        "{{ .reg .b32 factor, added; {constants} fma.rn.{suffix} {{$w0}}, {{$r0}}, factor, added; }}",',
            "        write_only_types=[cutlass.Uint32],",
            f"        read_only_args=[(word & mask) ^ cutlass.Uint32({pair.flipped * HALVES:#x})],",
            "    )",
        ]
    return tuple(lines)


def masks(found: Conversion) -> list[str]:
    """Define the masks, from a number that only the launch knows to be one: constants would be moved to a register for each
    use."""
    made = [
        f"{pair.name}_mask = cutlass.Uint32(one) * cutlass.Uint32({pair.mask * HALVES:#010x})" for pair in found.pairs
    ]
    return ["_, _, one = cute.arch.grid_dim()", *made]
