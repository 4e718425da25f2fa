"""Sums of integers of which only the low 32 bits are used become sums of 32 bits.

The sum of integers of 32 bits or of conditions has 64. A program that adds it to a count of 32 bits drops the others, which
no lower bit depends on (measurement ``sums_of_conditions``). Before::

    %8 = cast %7 to int64
    %9 = reduce sum %8 over 2
    %10 = add %1, %9                      %1 is int32
    %11 = cast %10 to int32

After::

    %9 = reduce sum %7 over 2
    %11 = add %1, %9
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch

from ...._support.records import replace
from ...ir.grammar import Op, Operand, PointwiseAttrs, Program, ReduceAttrs, Region, Value

_WIDE, _NARROW = torch.int64, torch.int32
_CAST = PointwiseAttrs("cast")
#: Ops whose low bits depend on no higher ones of their operands.
_LOW_BITS = frozenset(("add", "sub", "mul", "neg", "where", "bitwise_and", "bitwise_or", "bitwise_xor", "cast"))
_WITHOUT_BITS = frozenset(("view", "mask", "full"))


def narrow_sums(program: Program) -> Program:
    """Compute sums in 32 bits where all that uses them drops the others. Return the same program if there are none."""
    sums = [op for op in program.walk() if _is_sum(op)]
    if not sums:
        return program
    users = _users(program)
    wide = {op.result.number: op for op in program.walk() if len(op.results) == 1 and _keeps_low_bits(op)}
    narrow = set(wide)
    while dropped := {number for number in narrow if not _is_narrow(wide[number], narrow, users)}:
        narrow -= dropped
    narrow = _connected(narrow, [op.result.number for op in sums], wide, users)
    if not narrow:
        return program
    renamed: dict[int, Value] = {}
    return program.map_regions(lambda body: _changed(body, narrow, renamed))


def _is_sum(op: Op) -> bool:
    return isinstance(op.attrs, ReduceAttrs) and op.attrs.name == "sum" and op.result.dtype == _WIDE


def _keeps_low_bits(op: Op) -> bool:
    """Return whether an op of 64 bits has the same low bits if computed in 32."""
    if op.result.dtype != _WIDE:
        return False
    name = op.attrs.name if isinstance(op.attrs, PointwiseAttrs) else ""
    return _is_sum(op) or op.kind in _WITHOUT_BITS or name in _LOW_BITS


def _is_narrow(op: Op, narrow: set[int], users: dict[int, list[Op]]) -> bool:
    """Return whether the operands of an op have 32 bits, and all its users drop more or are such ops."""
    if not all(_has_low_bits(operand, narrow) for operand in op.operands):
        return False
    uses = users.get(op.result.number, ())
    return all(len(user.results) == 1 and (user.result.number in narrow or _drops(user)) for user in uses)


def _has_low_bits(operand: Operand, narrow: set[int]) -> bool:
    if not isinstance(operand, Value):
        return isinstance(operand, int) and -(2**31) <= operand < 2**31
    dtype = operand.dtype
    few = not dtype.is_floating_point and not dtype.is_complex and (dtype == torch.bool or dtype.itemsize <= 4)
    return few or operand.number in narrow


def _drops(op: Op) -> bool:
    """Return whether an op keeps at most the low 32 bits of its operand."""
    dtype = op.result.dtype
    is_cast = op.attrs == _CAST
    return is_cast and not dtype.is_floating_point and dtype != torch.bool and dtype.itemsize <= 4


def _connected(narrow: set[int], sums: list[int], wide: dict[int, Op], users: dict[int, list[Op]]) -> set[int]:
    """Return the narrow values that a narrow sum depends on, or that depend on one."""
    found: set[int] = set()
    waiting = [number for number in sums if number in narrow]
    while waiting:
        number = waiting.pop()
        if number in found:
            continue
        found.add(number)
        near = [operand.number for operand in wide[number].operands if isinstance(operand, Value)]
        near += [user.result.number for user in users.get(number, ())]
        waiting += [each for each in near if each in narrow]
    return found


def _users(program: Program) -> dict[int, list[Op]]:
    """Return the ops that read each value, by its number; a region's result is read by the op of the region."""
    users: dict[int, list[Op]] = {}
    for op in program.walk():
        for value in op.reads():
            users.setdefault(value.number, []).append(op)
    return users


def _dtype(operand: Operand) -> torch.dtype | None:
    return operand.dtype if isinstance(operand, Value) else None


def _changed(region: Region, narrow: set[int], renamed: dict[int, Value]) -> Region:
    """Return the region with ops of 32 bits in place of ``narrow`` ones, and without casts between 32 bits."""

    def read(operand: Operand) -> Operand:
        return renamed.get(operand.number, operand) if isinstance(operand, Value) else operand

    def changed() -> Iterator[Op]:
        for op in region.ops:
            operands = tuple(map(read, op.operands))
            results = op.results
            if len(results) == 1 and results[0].number in narrow:
                results = (replace(results[0], dtype=_NARROW),)
                renamed[results[0].number] = results[0]
            is_changed = operands != op.operands or results is not op.results
            if op.attrs == _CAST and is_changed and _dtype(operands[0]) == results[0].dtype:
                renamed[results[0].number] = cast("Value", operands[0])
                continue
            regions = tuple(_changed(inner, narrow, renamed) for inner in op.regions)
            yield replace(op, operands=operands, results=results, regions=regions)

    ops = tuple(changed())
    return Region(region.params, ops, tuple(map(read, region.results)))
