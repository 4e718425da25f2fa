"""Conversions of bytes to floats by permuting bytes, for operands of matmuls in loops.

Conversion instructions run at a fraction of the rate of others, in each step of the loop (measurement
``byte_conversions``). A byte in the mantissa of a float with a known exponent is that float plus the byte, so that one
subtraction gives the byte. Signed bytes have their sign bit flipped, which adds 128. All results are exact.

Triton itself converts int8 to bf16 so. It has no such conversion of uint8, which is one of int8 plus 128.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

#: Instructions that leave four bytes in ``t``, and what they add to each.
_BYTES = {torch.int8: ("xor.b32 t, {0}, 0x80808080;", 128), torch.uint8: ("mov.b32 t, {0};", 0)}
#: 1024 in fp16, and 2**23 in fp32: the last bits of their mantissas are units.
_HALF, _SINGLE = 0x6400, 0x4B000000


def _to_halves(source: torch.dtype) -> str:
    """Return assembly that converts a register of four bytes to two of two numbers in fp16."""
    moved, added = _BYTES[source]
    upper, less = f"{_HALF >> 8:#x}" + f"{_HALF >> 8:02x}" * 3, _HALF + added
    parts = [
        f"prmt.b32 ${i}, t, {upper}, {order}; sub.f16x2 ${i}, ${i}, c;" for i, order in enumerate(("0x4140", "0x4342"))
    ]
    return f"{{ .reg .b32 t, c; {moved.format('$2')} mov.b32 c, {less:#x}{less:04x}; {' '.join(parts)} }}"


def _to_singles(source: torch.dtype) -> str:
    """Return assembly that converts a register of four bytes to four of one number in fp32."""
    moved, added = _BYTES[source]
    parts = [
        f"prmt.b32 ${i}, t, {_SINGLE:#x}, {0x7650 + i:#x}; sub.f32 ${i}, ${i}, 0f{_SINGLE + added:08X};"
        for i in range(4)
    ]
    return f"{{ .reg .b32 t; {moved.format('$4')} {' '.join(parts)} }}"


#: The function of each conversion.
FUNCTIONS: Mapping[tuple[torch.dtype, torch.dtype], str] = {
    (torch.int8, torch.float16): "_int8_to_fp16",
    (torch.int8, torch.float32): "_int8_to_fp32",
    (torch.uint8, torch.float16): "_uint8_to_fp16",
    (torch.uint8, torch.float32): "_uint8_to_fp32",
    (torch.uint8, torch.bfloat16): "_uint8_to_bf16",
}
#: The conversion of each assembly.
PTX: Mapping[str, tuple[torch.dtype, torch.dtype]] = {
    text(source): (source, to)
    for source in _BYTES
    for to, text in ((torch.float16, _to_halves), (torch.float32, _to_singles))
}


def _helper(text: str, source: torch.dtype, to: torch.dtype) -> str:
    outputs, dtype = "=&r," * to.itemsize, str(to).removeprefix("torch.")
    return f'''\
@triton.jit
def {FUNCTIONS[source, to]}(x):
    """Four bytes at a time, without conversion instructions."""
    return tl.inline_asm_elementwise({text!r}, "{outputs}r", [x], dtype=tl.{dtype}, is_pure=True, pack=4)
'''


HELPERS: Mapping[str, str] = {
    **{FUNCTIONS[pair]: _helper(text, *pair) for text, pair in PTX.items()},
    "_uint8_to_bf16": '''\
@triton.jit
def _uint8_to_bf16(x):
    """The conversion of int8, without conversion instructions, plus 128."""
    return (x ^ 128).to(tl.int8, bitcast=True).to(tl.bfloat16) + 128.0
''',
}
