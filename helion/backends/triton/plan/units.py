"""Host numbers whose largest power of two a kernel knows, so that rows of a length known at launch have vectors.

Triton compiles other binaries for multiples of 16, and takes any other number as odd. A row of 1000 16-bit elements then
has an access for each of them (measurement ``units_of_numbers``). A launch therefore passes the power of two, up to 16,
that divides such a number as a constant of the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...._compiler.ir.grammar import ForAttrs, Index, LoopAxis, MemoryAttrs, Op, Program
from ...._shapes import Expr, Number, fixed_at

#: Triton knows multiples of this number by itself.
KNOWN = 16


def numbers_with_units(program: Program) -> frozenset[Any]:
    """Return the keys of the numbers that the alignment of vectors depends on, and that were no multiples of 16 when
    binding."""
    ends = dict[int, list[Number]]()
    for axis in _axes(program):
        ends.setdefault(axis.block, []).extend(n for n in (axis.begin, axis.end) if isinstance(n, (int, Expr)))
    for block in program.blocks:
        if block.kind == "full" and isinstance(block.extent, Expr):
            ends.setdefault(block.id, []).append(block.extent)
    found = set[Any]()
    for op in program.walk():
        if op.kind not in ("load", "store") or not isinstance(op.attrs, MemoryAttrs):
            continue
        parts = [part for number in _numbers(program, op, op.attrs, ends) for part in host_parts(number)]
        found.update(part.key for part in parts if part.kind is int and part.hint % KNOWN)
    return frozenset(found)


def host_parts(expr: Expr) -> list[Expr]:
    """Return the largest parts of an expression that do not depend on block sizes."""
    kinds = {leaf.op for leaf in expr.leaves()}
    if "block" not in kinds:
        return [expr] if "host" in kinds else []
    return [part for arg in expr.args if isinstance(arg, Expr) for part in host_parts(arg)]


def _axes(program: Program) -> Iterator[LoopAxis]:
    for root in program.roots:
        yield from root.axes
    for op in program.walk():
        if isinstance(op.attrs, ForAttrs):
            yield from op.attrs.axes


def _numbers(program: Program, op: Op, attrs: MemoryAttrs, ends: dict[int, list[Number]]) -> Iterator[Expr]:
    """Yield the numbers that the alignment of an access depends on; none if its lanes are no neighbours in memory."""
    strides = program.tensors[attrs.tensor].strides
    pairs = list(zip(attrs.indices, strides, strict=True))
    along = [index for index, stride in pairs if fixed_at(stride, 1) and index.kind == "block"]
    if len(along) != 1 or len(op.result.dims) == 0:
        return
    (index,) = along
    if index.block is not None:
        yield from (end for end in ends.get(index.block, ()) if isinstance(end, Expr))
    if isinstance(index.shift, Expr):
        yield index.shift
    yield from (stride for each, stride in pairs if isinstance(stride, Expr) and not _is_first(each))


def _is_first(index: Index) -> bool:
    """Return whether an index is 0 in every program."""
    return index.kind == "scalar" and index.operand is None and fixed_at(index.shift, 0)
