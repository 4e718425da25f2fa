"""Values of bf16 that fp32 arithmetic reads, kept in variables of fp32.

Where eager mode rounds to bf16 between two operations, the kernel rounds and widens again. Triton converts elements one
by one, by an instruction on the special function unit at a sixteenth of the rate of an addition. It bounds attention
with rounded scores (132 of them and 66 exponentials a loop, 128 queries by 128 keys, offline for sm_80 to sm_120). The
instruction that rounds two numbers to the halves of a register is eight times as fast. With 0 in the lower half, its
result is one number in fp32. So such values are rounded in this way and stay in fp32 (measurement
``rounded_scores``)::

    qk = dot.to(tl.bfloat16)                        qk = _rounded_bf16(dot)
    scaled = (qk.to(tl.float32) * 0.5)...           scaled = (qk.to(tl.float32) * 0.5)...
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ...._compiler.ir.grammar import Op, PointwiseAttrs, ReduceAttrs, Region, Value
from ...._support.records import dataclass
from .ops.pointwise import computes_in_fp32

#: Pointwise operations that are exact and have no dtype of their own.
_MOVES = ("where", "neg", "abs")


@dataclass(frozen=True, kw_only=True)
class Roundings:
    """Values by number: those that some fp32 operation reads, and those that one reads as bf16."""

    wide: frozenset[int] = frozenset()
    narrow: frozenset[int] = frozenset()


def roundings(regions: Iterable[Region]) -> Roundings:
    """Return the dtypes that each rounded value of these regions needs."""
    regions = tuple(regions)
    ops = [op for region in regions for op in region.walk()]
    rounded = _rounded(ops)
    wide: set[int] = set()
    narrow = {v.number for op in ops for region in op.regions for v in region.results if isinstance(v, Value)}
    for op in reversed(ops):  # readers of a value follow it
        moved = len(op.results) == 1 and op.result.number in wide
        for value in op.values():
            if value.number not in rounded:
                continue
            in_fp32 = _widens(op) or (moved and _moves(op, value))
            (wide if in_fp32 else narrow).add(value.number)
            if moved and op.kind == "mask" and op.result.number in narrow:
                narrow.add(value.number)  # a mask that masks nothing is the value itself
    return Roundings(wide=frozenset(wide), narrow=frozenset(narrow))


def _rounded(ops: Iterable[Op]) -> frozenset[int]:
    """Return the values of bf16 that are results of arithmetic in fp32, or of moving such values."""
    found: set[int] = set()
    for op in ops:
        if len(op.results) != 1 or op.result.dtype != torch.bfloat16 or not op.result.dims:
            continue
        if _rounds(op) or any(value.number in found and _moves(op, value) for value in op.values()):
            found.add(op.result.number)
    return frozenset(found)


def _rounds(op: Op) -> bool:
    """Return whether the bf16 result is rounded from fp32."""
    if isinstance(op.attrs, PointwiseAttrs):
        if op.attrs.name == "cast":
            return all(value.dtype == torch.float32 and value.dims for value in op.values())
        return computes_in_fp32(op.attrs.name)
    return isinstance(op.attrs, ReduceAttrs) and op.attrs.name not in ("argmax", "argmin")


def _widens(op: Op) -> bool:
    """Return whether operands of bf16 are converted to fp32 before any other use."""
    if isinstance(op.attrs, PointwiseAttrs):
        return computes_in_fp32(op.attrs.name) or (op.attrs.name == "cast" and op.result.dtype == torch.float32)
    return isinstance(op.attrs, ReduceAttrs) and op.attrs.name not in ("argmax", "argmin")


def _moves(op: Op, value: Value) -> bool:
    """Return whether the result consists of elements of ``value``, up to their signs, and has its dtype."""
    if op.result.dtype != value.dtype:
        return False
    if isinstance(op.attrs, PointwiseAttrs):
        chosen = [o for o in op.operands[op.attrs.name == "where" :] if isinstance(o, Value)]
        return op.attrs.name in _MOVES and all(each.dtype == value.dtype for each in chosen)
    return op.kind in ("view", "mask") and bool(value.dims)
