"""Counting of conditions in fp32, which GPUs add at twice the rate of integers.

An SM of an H100 adds 128 floats a cycle and 64 integers. It has a comparison that returns 1.0 or 0.0, but none that
returns 1 or 0. So counting a condition takes two instructions instead of three, or instead of four for torch's 64-bit
sums. Sums up to 2^24 are exact in fp32, in any order. Before::

    %2: int64[b0, b1] = cast (le %0, %1); %3: int64[b0] = reduce sum (mask %2 along 1 with 0) over 1

after::

    %2: float32[b0, b1] = cast (le %0, %1); %4: float32[b0] = reduce sum (mask %2 along 1 with 0.0) over 1
    %3: int64[b0] = cast (cast %4 to int32)

The rewrite applies to sums along whole dimensions. A loop over tiles accumulates an integer, to which each tile's
partial sum would be converted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch

from ....._compiler.ir.build import Builder, Numbers
from ....._compiler.ir.grammar import MaskAttrs, Op, PointwiseAttrs, Program, ReduceAttrs, Value
from ....._compiler.ir.rewrite import Makers, expand_ops
from ....._compiler.passes.always.simplify import drop_dead
from ....._compiler.rewrites.steps import StepInputs
from ....._shapes import Dim

#: Up to this many terms of 0 and 1, a sum in fp32 is exact.
_EXACT = 1 << 24


def count_reductions(program: Program, inputs: StepInputs) -> Program:
    """Return the program with integer sums of conditions in fp32, if that is ``inputs``."""
    if not inputs.float_counts or not any(_is_integer_sum(op) for op in program.walk()):
        return program
    makers, numbers = Makers.among(program.walk()), Numbers.after(program)

    def count(op: Op) -> Iterable[Op]:
        source = _counted(op, makers, program)
        return (op,) if source is None else _in_floats(op, *source, numbers)

    counted = expand_ops(program, count)
    return program if counted is program else drop_dead(counted)


def _is_integer_sum(op: Op) -> bool:
    dtype = op.results[0].dtype if op.results else torch.bool
    return op.kind == "reduce" and op.attributes(ReduceAttrs).name == "sum" and dtype in (torch.int32, torch.int64)


def _counted(op: Op, makers: Makers, program: Program) -> tuple[Value, tuple[MaskAttrs, ...]] | None:
    """Return the condition that ``op`` counts, and its masks, the last mask first."""
    if not _is_integer_sum(op):
        return None
    (value,) = op.values()
    if not math.prod(_lanes(value, op.attributes(ReduceAttrs).dims, program)) < _EXACT:
        return None
    masks: list[MaskAttrs] = []
    while value.dtype != torch.bool:
        maker = makers.of(value)
        if maker is None or len(list(maker.values())) != 1:
            return None
        if isinstance(maker.attrs, MaskAttrs) and maker.attrs.fill == 0:
            masks.append(maker.attrs)
        elif maker.attrs != PointwiseAttrs("cast") or value.dtype.is_floating_point or value.dtype.is_complex:
            return None
        (value,) = maker.values()
    return value, tuple(masks)


def _lanes(value: Value, places: tuple[int, ...], program: Program) -> Iterator[float]:
    return (_most_lanes(value.dims[place], program) for place in places)


def _most_lanes(dim: Dim, program: Program) -> float:
    """Return the number of elements of a whole dimension; infinity for a tile, and where it is known only at
    run time.
    """
    extents = [program.blocks[block].extent if program.blocks[block].kind == "full" else None for block in dim.blocks]
    return math.prod((each if isinstance(each, int) else math.inf for each in extents), start=dim.const)


def _in_floats(op: Op, value: Value, masks: tuple[MaskAttrs, ...], numbers: Numbers) -> list[Op]:
    made = Builder(numbers, op.location, [])
    terms = made.cast(value, torch.float32)
    for mask in reversed(masks):
        terms = made.mask(terms, mask.dims, 0.0)
    result = op.result
    total = made.emit("reduce", (terms,), torch.float32, result.dims, op.attrs, result.name)
    # conversion from fp32 to 64 bits takes several instructions
    if result.dtype != torch.int32:
        total = made.cast(total, torch.int32)
    made.append("pointwise", (total,), (result,), PointwiseAttrs("cast"))
    return made.ops
