"""Rules for numbers with fewer bits than an element of memory."""

from __future__ import annotations

from typing import Any

import torch

from .... import exc
from .... import language as hl
from ....language._words import BYTES
from ....language.quantized import check_bfloat16, check_float4, storage_dtype
from .. import memory, ops
from ..rules import Rules
from ..torch.shapes import bitcast
from ..tracer import Tracer
from ..values import DeviceValue, HostTensorValue, Tile, describe

RULES = Rules()
rule = RULES.register

#: Scale of e2m1 codes in fp16: the bits are placed in the top of the mantissa and the lowest bits of the exponent. fp16
#: has a bias of 15, e2m1 of 1. Subnormal numbers of e2m1 become subnormal ones of fp16.
_SCALE = 2.0**14


def _decoded(t: Tracer, words: DeviceValue, shift: int) -> DeviceValue:
    """Decode the e2m1 numbers at bit ``shift`` of int16 or int64 words to fp16."""
    code = ops.pointwise(t, "rshift", words, shift) if shift else words
    code = ops.cast(t, code, torch.int16)
    sign = ops.pointwise(t, "lshift", ops.pointwise(t, "bitwise_and", code, 8), 12)
    rest = ops.pointwise(t, "lshift", ops.pointwise(t, "bitwise_and", code, 7), 9)
    return ops.pointwise(t, "mul", bitcast(t, ops.pointwise(t, "bitwise_or", sign, rest), torch.float16), _SCALE)


@rule(hl.float4_e2m1fn_x2_to_float32)
def _to_float32(t: Tracer, values: Any) -> tuple[DeviceValue, DeviceValue]:
    if not isinstance(values, DeviceValue):
        ops.refuse_operand(values, "by hl.float4_e2m1fn_x2_to_float32")
        raise exc.InvalidAPIUsage(f"hl.float4_e2m1fn_x2_to_float32 takes a tile, got {describe(values)}.")
    check_float4(values.dtype, "float4_e2m1fn_x2_to_float32")
    wide = ops.cast(t, values, torch.int16)
    low, high = (ops.cast(t, _decoded(t, wide, shift), torch.float32) for shift in (0, 4))
    return low, high


def _words(t: Tracer, storage: Any, name: str) -> HostTensorValue:
    """Return the words of a host tensor, as a separate host tensor on the same memory."""
    if not isinstance(storage, HostTensorValue):
        raise exc.InvalidAPIUsage(f"The storage of hl.{name} must be a host tensor, got {describe(storage)}.")
    t.tensors.check(storage)
    source = f"_helion_runtime.flat_words({storage.source or storage.made})"
    known = (tensor for tensor in t.tensors.used[t.tensors.first :] if tensor.source == source)
    found = next(known, None)
    if found is None:
        count = storage.numel() * storage.dtype.itemsize // BYTES
        found = HostTensorValue(t, (count,), (1,), torch.int64, storage.device, storage.storage, source)
        found.aligned = storage.aligned
    return found


def _groups(t: Tracer, storage: Any, offsets: Any, mask: Any, name: str, count: int) -> list[DeviceValue]:
    """Load the ``count`` words of each group."""
    if isinstance(offsets, Tile):
        offsets = offsets.index
    places = ops.as_device(t, offsets, f"as group offsets of hl.{name}")
    if places.dtype.is_floating_point or places.dtype == torch.bool:
        raise exc.InvalidAPIUsage(f"The group offsets of hl.{name} must be integers, got {describe(offsets)}.")
    words = _words(t, storage, name)
    first = ops.pointwise(t, "mul", places, count) if count > 1 else places
    each = [ops.pointwise(t, "add", first, at) if at else first for at in range(count)]
    return [memory.load(t, words, (place,), mask) for place in each]


@rule(hl.load_float4_e2m1fn_x16_to_float16)
def _load_float4(t: Tracer, storage: Any, group_offsets: Any, extra_mask: Any = None) -> tuple[DeviceValue, ...]:
    name = "load_float4_e2m1fn_x16_to_float16"
    check_float4(storage_dtype(storage), name)
    (word,) = _groups(t, storage, group_offsets, extra_mask, name, 1)
    return tuple(_decoded(t, word, 4 * at) for at in range(16))


@rule(hl.load_bfloat16_x16_to_float16)
def _load_bfloat16(t: Tracer, storage: Any, group_offsets: Any, extra_mask: Any = None) -> tuple[DeviceValue, ...]:
    name = "load_bfloat16_x16_to_float16"
    check_bfloat16(storage_dtype(storage), name)
    words = _groups(t, storage, group_offsets, extra_mask, name, 4)
    found = []
    for word in words:
        for at in range(4):
            bits = ops.pointwise(t, "rshift", word, 16 * at) if at else word
            found.append(ops.cast(t, bitcast(t, ops.cast(t, bits, torch.int16), torch.bfloat16), torch.float16))
    return tuple(found)
