"""Numbers in fewer bits than an element of memory: 4-bit floats, and wide loads of small ones."""

from __future__ import annotations

from typing import Any

import torch

from .. import exc
from . import _reference_access as access
from ._registry import declare, reference
from ._words import BYTES, flat_words

#: Values of the codes of e2m1: a sign bit, two bits of exponent, one of mantissa.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
#: What holds two e2m1 numbers per element, the first one in the low half.
FLOAT4 = (torch.uint8, torch.float4_e2m1fn_x2)
_GROUP = 16


@declare("device")
def float4_e2m1fn_x2_to_float32(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The two e2m1 numbers in each element of a tile of uint8 or float4_e2m1fn_x2, as two fp32 tiles of its shape: those of the
    low and those of the high halves. Raises ``exc.InvalidAPIUsage`` for other dtypes."""


@declare("device")
def load_float4_e2m1fn_x16_to_float16(
    storage: torch.Tensor, group_offsets: torch.Tensor, extra_mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    """16 e2m1 numbers from each of the groups of 8 bytes that ``group_offsets``, an integer tile, counts, as 16 fp16 tiles of
    its shape, in order of memory and the low half of a byte first. One load of 64 bits per group.

    ``storage`` is a contiguous host tensor of uint8 or float4_e2m1fn_x2 that begins at a multiple of 8 bytes (else
    ``exc.InvalidAPIUsage``, at the call); what is left of its bytes behind the last whole group is no group. Lanes where
    ``extra_mask`` is false are 0. Raises ``exc.InvalidAPIUsage`` for other dtypes.
    """


@declare("device")
def load_bfloat16_x16_to_float16(
    storage: torch.Tensor, group_offsets: torch.Tensor, extra_mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    """16 numbers from each of the groups of 16 bfloat16 that ``group_offsets`` counts, rounded to fp16: 16 tiles of its shape,
    by loads of 64 bits. Otherwise as ``load_float4_e2m1fn_x16_to_float16``."""


def check_float4(dtype: torch.dtype, name: str) -> None:
    """Raises ``exc.InvalidAPIUsage`` for what holds no e2m1 numbers."""
    if dtype not in FLOAT4:
        raise exc.InvalidAPIUsage(
            f"hl.{name} takes torch.uint8 or torch.float4_e2m1fn_x2, got {dtype}; view the storage as torch.uint8 in host code."
        )


def storage_dtype(storage: Any) -> torch.dtype:
    """The dtype of what is loaded in groups. Raises ``exc.InvalidAPIUsage`` for what is no tensor."""
    dtype = getattr(storage, "dtype", None)
    if not isinstance(dtype, torch.dtype):
        raise exc.InvalidAPIUsage(f"Storage that is loaded in groups must be a host tensor, got {storage!r}.")
    return dtype


def check_bfloat16(dtype: torch.dtype, name: str) -> None:
    if dtype != torch.bfloat16:
        raise exc.InvalidAPIUsage(f"hl.{name} takes torch.bfloat16, got {dtype}; use hl.load for other dtypes.")


# --- eager references ---------------------------------------------------------------------------------------------------


@reference(float4_e2m1fn_x2_to_float32)
def _to_float32(values: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if not isinstance(values, torch.Tensor):
        raise exc.InvalidAPIUsage(f"hl.float4_e2m1fn_x2_to_float32 takes a tile, got {values!r}.")
    check_float4(values.dtype, "float4_e2m1fn_x2_to_float32")
    codes = values.view(torch.uint8).long()
    table = torch.tensor(E2M1, device=values.device)
    return table[codes & 15], table[codes >> 4]


def _groups(storage: Any, offsets: Any, mask: Any, count: int) -> list[torch.Tensor]:
    """The ``count`` words of each group."""
    words = flat_words(storage)
    return [access.load(words, [offsets * count + at if count > 1 else offsets], mask) for at in range(count)]


@reference(load_float4_e2m1fn_x16_to_float16)
def _load_float4(storage: Any, group_offsets: Any, extra_mask: Any = None) -> tuple[torch.Tensor, ...]:
    check_float4(storage_dtype(storage), "load_float4_e2m1fn_x16_to_float16")
    (words,) = _groups(storage, group_offsets, extra_mask, 1)
    table = torch.tensor(E2M1, dtype=torch.float16, device=words.device)
    return tuple(table[(words >> (4 * at)) & 15] for at in range(_GROUP))


@reference(load_bfloat16_x16_to_float16)
def _load_bfloat16(storage: Any, group_offsets: Any, extra_mask: Any = None) -> tuple[torch.Tensor, ...]:
    check_bfloat16(storage_dtype(storage), "load_bfloat16_x16_to_float16")
    per_word = BYTES // torch.bfloat16.itemsize
    words = _groups(storage, group_offsets, extra_mask, _GROUP // per_word)
    parts = [(word >> (16 * at)).to(torch.int16).view(torch.bfloat16) for word in words for at in range(per_word)]
    return tuple(part.to(torch.float16) for part in parts)
