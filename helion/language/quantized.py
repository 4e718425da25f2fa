"""Numbers in fewer bits than an element of memory: 4-bit floats, and wide loads of small ones."""

from __future__ import annotations

from typing import Any

import torch

from .. import exc
from ._reference import access
from ._registry import declare, reference
from ._words import BYTES, flat_words

#: Values of the codes of e2m1: a sign bit, two bits of exponent, one of mantissa.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
#: Dtypes with two e2m1 numbers per element, the first one in the low half.
FLOAT4 = (torch.uint8, torch.float4_e2m1fn_x2)
_GROUP = 16


@declare("device")
def float4_e2m1fn_x2_to_float32(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Unpack the two e2m1 numbers in each element of a tile.

    Args:
        values: a tile of uint8 or float4_e2m1fn_x2.

    Returns:
        Two float32 tiles of its shape: the numbers of the low halves, and those of the high halves.

    Raises:
        exc.InvalidAPIUsage: another dtype.

    Example::

        @helion.kernel
        def unpack(packed: torch.Tensor) -> torch.Tensor:
            out = torch.empty([packed.size(0), 2], device=packed.device)
            for tile in hl.tile(packed.size(0)):
                low, high = hl.float4_e2m1fn_x2_to_float32(packed[tile])
                out[tile, :] = hl.join(low, high)
            return out

        unpack(torch.tensor([0x21, 0xF7], dtype=torch.uint8))
    """


@declare("device")
def load_float4_e2m1fn_x16_to_float16(
    storage: torch.Tensor, group_offsets: torch.Tensor, extra_mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    """Load groups of 16 e2m1 numbers, 8 bytes each, by one load of 64 bits per group.

    Args:
        storage: a contiguous host tensor of uint8 or float4_e2m1fn_x2 that begins at a multiple of 8 bytes; bytes after
            the last whole group are ignored.
        group_offsets: an integer tile of numbers of groups.
        extra_mask: a boolean tile; where it is false the numbers are 0.

    Returns:
        16 float16 tiles of the shape of ``group_offsets``, in order of memory, the low half of a byte first.

    Raises:
        exc.InvalidAPIUsage: another dtype; at the call, storage that is not contiguous or not aligned.

    Example::

        @helion.kernel
        def group_sums(packed: torch.Tensor) -> torch.Tensor:
            groups = packed.size(0) // 8
            out = torch.empty([groups], dtype=torch.float16, device=packed.device)
            for tile in hl.tile(groups):
                numbers = hl.load_float4_e2m1fn_x16_to_float16(packed, tile.index)
                out[tile] = numbers[0] + numbers[15]
            return out

        group_sums(torch.zeros(32, dtype=torch.uint8))
    """


@declare("device")
def load_bfloat16_x16_to_float16(
    storage: torch.Tensor, group_offsets: torch.Tensor, extra_mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    """Load groups of 16 bfloat16 numbers, 32 bytes each, by loads of 64 bits, and round them to float16.

    Args:
        storage: a contiguous host tensor of bfloat16 that begins at a multiple of 8 bytes; elements after the last
            whole group are ignored.
        group_offsets: an integer tile of numbers of groups.
        extra_mask: a boolean tile; where it is false the numbers are 0.

    Returns:
        16 float16 tiles of the shape of ``group_offsets``, in order of memory.

    Raises:
        exc.InvalidAPIUsage: another dtype; at the call, storage that is not contiguous or not aligned.

    Example::

        @helion.kernel
        def ends(x: torch.Tensor) -> torch.Tensor:
            groups = x.size(0) // 16
            out = torch.empty([groups], dtype=torch.float16, device=x.device)
            for tile in hl.tile(groups):
                numbers = hl.load_bfloat16_x16_to_float16(x, tile.index)
                out[tile] = numbers[0] + numbers[15]
            return out

        ends(torch.ones(64, dtype=torch.bfloat16))
    """


def check_float4(dtype: torch.dtype, name: str) -> None:
    """Raise ``exc.InvalidAPIUsage`` for a dtype without e2m1 numbers."""
    if dtype not in FLOAT4:
        raise exc.InvalidAPIUsage(
            f"hl.{name} takes torch.uint8 or torch.float4_e2m1fn_x2, got {dtype}; view the storage as torch.uint8 in host code."
        )


def storage_dtype(storage: Any) -> torch.dtype:
    """Return the dtype of storage that is loaded in groups. Raise ``exc.InvalidAPIUsage`` if it is not a tensor."""
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
    """Return the ``count`` words of each group."""
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
