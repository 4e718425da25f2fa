"""The last tile of rows that begin anywhere in a loop of its own, so that all other tiles need no masks.

Such rows have an access for each element. Each of them has a condition, a zero for lanes out of range, and an address of
its own: compilers fold no constant into a sum of 32 bits that may overflow (measurement ``peeled_tails``). Before::

    for b1 in 0..4097 carrying (%1 = %0): %2: [b0, b1] = load x[b0, b1]; ..

after, with tiles of 1024, whose begins are part of the pointers::

    %3 = for b1 in 0..4096, whole tiles, carrying (%4 = %0): %5: [b0, b1] = load x[b0, b1], based; ..
    for b1 in 4096..4097 carrying (%1 = %3): %2: [b0, b1] = load x[b0, b1]; ..
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ....._compiler.ir.build import Numbers
from ....._compiler.ir.grammar import ForAttrs, LoopAxis, MemoryAttrs, Op, Program, Region
from ....._compiler.ir.rewrite import expand_ops
from ....._compiler.rewrites.peel_masks.loops import Copier
from ....._compiler.rewrites.steps import StepInputs
from ....._shapes import fixed_at
from ....._support.records import replace

#: Least whole tiles of a row, and most ops of a body: printing it twice takes instructions and time to compile.
_LEAST_TILES, _MOST_OPS = 4, 64
#: Kinds of ops that the body may contain.
_KINDS = frozenset(("number", "tile", "iota", "full", "load", "pointwise", "reduce", "view", "mask"))


def peel_tails(program: Program, inputs: StepInputs) -> Program:
    """Return the program with a loop of its own for the last tile of rows that begin anywhere."""
    if inputs.checked or inputs.unrolled or inputs.repeated or not inputs.steady or inputs.staged:
        return program
    if inputs.block_accesses or not any(isinstance(op.attrs, ForAttrs) for op in program.walk()):
        return program
    sizes, numbers = inputs.sizes_in(program), Numbers.after(program)

    def changed(op: Op) -> Iterator[Op]:
        axis = _axis(program, op)
        if axis is None or not isinstance(axis.end, int):
            yield op
            return
        size = sizes[axis.block]
        whole, single = axis.end // size * size, _single_elements(program, op.regions[0], axis.block)
        if whole == axis.end or whole < _LEAST_TILES * size or not single:
            yield op
            return
        yield from _ranges(op, axis, whole, single, numbers)

    return expand_ops(program, changed)


def _axis(program: Program, op: Op) -> LoopAxis | None:
    """Return the axis of a plain loop over tiles of a known number of elements, None for any other op."""
    if not isinstance(op.attrs, ForAttrs) or len(op.attrs.axes) != 1 or len(op.operands) != op.attrs.carried:
        return None
    (axis,), body = op.attrs.axes, op.regions[0]
    plain = not (
        axis.scalar or axis.jagged or axis.merged or axis.split or axis.aligned or axis.whole or axis.backwards
    )
    short = len(body.ops) <= _MOST_OPS and all(each.kind in _KINDS for each in body.ops)
    known = fixed_at(axis.begin, 0) and isinstance(axis.end, int)
    block = program.blocks[axis.block]
    return axis if plain and short and known and block.kind == "tile" and block.part is None else None


def _single_elements(program: Program, body: Region, block: int) -> frozenset[int]:
    """Return the loads along contiguous memory that have an access for each element, by number of the op."""
    found = set[int]()
    for op in body.ops:
        attrs = op.attrs
        if (
            op.kind != "load"
            or not isinstance(attrs, MemoryAttrs)
            or attrs.padded
            or attrs.run
            or attrs.mark is not None
        ):
            continue
        strides = program.tensors[attrs.tensor].strides
        if not all(isinstance(stride, int) for stride in strides):
            continue
        along = [
            index
            for index, stride in zip(attrs.indices, strides, strict=True)
            if fixed_at(stride, 1) and index.block == block
        ]
        if len(along) != 1 or along[0].kind != "block":
            continue
        (index,) = along
        others = [
            stride
            for each, stride in zip(attrs.indices, strides, strict=True)
            if each is not index and isinstance(stride, int)
        ]
        shift = index.shift if isinstance(index.shift, int) else 1
        if index.operand is not None or math.gcd(shift, *others) % 2:
            found.add(op.number)
    return frozenset(found)


def _ranges(op: Op, axis: LoopAxis, whole: int, single: frozenset[int], numbers: Numbers) -> Iterator[Op]:
    """Yield the loop over whole tiles, and the one over the last tile, which defines the results."""
    attrs, copier = op.attributes(ForAttrs), Copier(numbers, {})
    number = numbers.op()
    results = tuple(numbers.value(each.dtype, each.dims, each.name) for each in op.results)
    based = (_based(each) if each.number in single else each for each in op.regions[0].ops)
    body = copier.region(replace(op.regions[0], ops=tuple(based)))
    first = replace(attrs, axes=(replace(axis, end=whole, whole=True),), like=op.number)
    yield replace(op, number=number, results=results, attrs=first, regions=(body,))
    last = replace(attrs, axes=(replace(axis, begin=whole),), like=op.number)
    yield replace(op, operands=results[: attrs.carried], attrs=last)


def _based(op: Op) -> Op:
    return replace(op, attrs=replace(op.attributes(MemoryAttrs), based=True))


__all__ = ["peel_tails"]
