"""Values of bf16 that are computed on in fp32, which stand in variables of fp32.

What eager mode rounds to bf16 between two operations is rounded here, and widened again. Triton converts the numbers of a
tensor one by one, and the assembler has an instruction for that which runs at a sixteenth of the rate of an addition, on
the unit of exponentials: attention whose scores are rounded is bound by it (132 of them beside 66 exponentials a loop,
128 queries by 128 keys, offline for sm_80 to sm_120). What rounds two numbers to the halves of a register is eight times as
fast, and gives one number in fp32 where the lower half is that of 0. So such values are rounded in this way and stay in fp32; on
an H200 attention takes 2302 us, and 2335 with two numbers at once that are taken apart again (128 heads of 128, 4096 rows)::

    qk = dot.to(tl.bfloat16)                        qk = _rounded_bf16(dot)
    scaled = (qk.to(tl.float32) * 0.5)...           scaled = (qk.to(tl.float32) * 0.5)...
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ...._compiler.ir.grammar import Op, PointwiseAttrs, ReduceAttrs, Region, Value
from .ops_pointwise import computes_in_fp32

#: Pointwise operations that round nothing and have no dtype of their own.
_MOVES = ("where", "neg", "abs")


@dataclass(frozen=True, kw_only=True)
class Roundings:
    """Values by number: those that some operation computes on in fp32, and those that one takes as bf16."""

    wide: frozenset[int] = frozenset()
    narrow: frozenset[int] = frozenset()


def roundings(regions: Iterable[Region]) -> Roundings:
    """What of the values that are rounded in these regions has to be there in which dtype."""
    regions = tuple(regions)
    ops = [op for region in regions for op in region.walk()]
    rounded = _rounded(ops)
    wide: set[int] = set()
    narrow = {v.number for op in ops for region in op.regions for v in region.results if isinstance(v, Value)}
    for op in reversed(ops):  # what reads a value stands behind it
        moved = len(op.results) == 1 and op.result.number in wide
        for value in op.values():
            if value.number not in rounded:
                continue
            in_fp32 = _widens(op) or (moved and _moves(op, value))
            (wide if in_fp32 else narrow).add(value.number)
            if moved and op.kind == "mask" and op.result.number in narrow:
                narrow.add(value.number)  # one that masks nothing is the value itself
    return Roundings(wide=frozenset(wide), narrow=frozenset(narrow))


def _rounded(ops: Iterable[Op]) -> frozenset[int]:
    """Values of bf16 that are results of arithmetic in fp32, or of moving such values."""
    found: set[int] = set()
    for op in ops:
        if len(op.results) != 1 or op.result.dtype != torch.bfloat16 or not op.result.dims:
            continue
        if _rounds(op) or any(value.number in found and _moves(op, value) for value in op.values()):
            found.add(op.result.number)
    return frozenset(found)


def _rounds(op: Op) -> bool:
    """Whether the result of bf16 is rounded from fp32."""
    if isinstance(op.attrs, PointwiseAttrs):
        if op.attrs.name == "cast":
            return all(value.dtype == torch.float32 and value.dims for value in op.values())
        return computes_in_fp32(op.attrs.name)
    return isinstance(op.attrs, ReduceAttrs) and op.attrs.name not in ("argmax", "argmin")


def _widens(op: Op) -> bool:
    """Whether operands of bf16 are converted to fp32 before anything else is done with them."""
    if isinstance(op.attrs, PointwiseAttrs):
        return computes_in_fp32(op.attrs.name) or (op.attrs.name == "cast" and op.result.dtype == torch.float32)
    return isinstance(op.attrs, ReduceAttrs) and op.attrs.name not in ("argmax", "argmin")


def _moves(op: Op, value: Value) -> bool:
    """Whether the result consists of numbers of ``value``, but for their signs, and of numbers of its dtype."""
    if op.result.dtype != value.dtype:
        return False
    if isinstance(op.attrs, PointwiseAttrs):
        chosen = [o for o in op.operands[op.attrs.name == "where" :] if isinstance(o, Value)]
        return op.attrs.name in _MOVES and all(each.dtype == value.dtype for each in chosen)
    return op.kind in ("view", "mask") and bool(value.dims)
