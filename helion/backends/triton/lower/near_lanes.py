"""Neighbouring lanes for taps of a window along contiguous memory, in a loop or one after the other.

Such a load begins at any element, so each lane loads one. Triton gives a thread as many neighbours as the widest access
of a tile takes, such as the store of the result. Lanes of the loads then begin at every vector, and meet in the same banks
of the L1 cache: each load of 4-byte elements takes four cycles instead of one (measurement ``spread_lanes``). Before::

    for b2 in 0..33: %2 = tile b2.index; %3: [b0, b1] = load x[b0, b1 + %2]; ..
    store out[b0, b1] <- %9

after, the store promises no vectors of more than the 4 bytes that a bank has::

    store out[b0, b1], lanes 1 <- %9

Taps that the code lists promise pairs too where they begin at even places, so that all of them are narrow. With few of
them in a row, memory limits the kernel, and a thread loads elements that its taps share once (measurement
``listed_taps``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from ...._compiler.ir.grammar import (
    ForAttrs,
    MemoryAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    Root,
    TileAttrs,
    Value,
)
from ...._compiler.ir.rewrite import Makers, map_ops
from ...._compiler.rewrites.steps import StepInputs
from ...._shapes import Dims, fixed_at
from ....hardware import VECTOR_BYTES
from .align import is_ordered

#: Bytes of a bank of the L1 cache.
_BANK_BYTES = 4
#: Taps of a row, outside of loops, from which on lanes are next to each other.
_SHIFTED = 6
#: Ops of a grid whose lanes may lie anywhere: nothing exchanges elements between threads.
_KINDS = frozenset(("number", "tile", "iota", "full", "load", "store", "pointwise", "view", "mask", "for"))
#: Ops by which a step moves an index by as many elements.
_MOVES = frozenset(("add", "sub", "neg", "cast", "minimum", "maximum"))


def near_lanes(program: Program, inputs: StepInputs) -> Program:
    """Return the program with the lanes of taps next to each other, if ``inputs``."""
    if not inputs.near_lanes or inputs.unrolled or is_ordered(program):
        return program
    found: dict[int, int] = {}
    for root in program.roots:
        if all(op.kind in _KINDS for op in root.body.walk()):
            found |= _narrowed(program, root)
    if not found:
        return program

    def change(op: Op) -> Op:
        lanes = found.get(op.number)
        return op if lanes is None else replace(op, attrs=replace(op.attrs, lanes=lanes))

    return map_ops(program, change)


def _narrowed(program: Program, root: Root) -> dict[int, int]:
    """Return the most elements of a thread at once, by number of each access of a tile that taps load.

    Taps of loops begin anywhere, and only other accesses promise vectors. Taps at known places promise pairs too.
    """
    makers, taps, others = Makers.among(root.body.walk()), dict[Dims, list[int]](), dict[Dims, list[Op]]()
    in_steps: Counter[Dims] = Counter()
    for op, steps in _accesses(root.body.ops, frozenset()):
        dims = op.result.dims
        if _is_tap(op, steps, program, makers):
            taps.setdefault(dims, []).append(_lanes(op, program))
        else:
            others.setdefault(dims, []).append(op)
            in_steps[dims] += bool(steps)
    few = {dims: min(lanes) for dims, lanes in taps.items() if len(lanes) >= in_steps[dims]}
    for dims, ops in others.items():
        shifted = [op for op in ops if _is_shifted(op, program)]
        rows = Counter((op.attributes(MemoryAttrs).tensor, op.attributes(MemoryAttrs).indices[:-1]) for op in shifted)
        if not in_steps[dims] and max(rows.values(), default=0) >= _SHIFTED and 3 * len(shifted) >= len(ops):
            few.setdefault(dims, min(_lanes(op, program) for op in shifted))
    return {op.number: lanes for dims, lanes in few.items() for op in others.get(dims, ())}


def _lanes(op: Op, program: Program) -> int:
    """Return the elements of a bank of the L1 cache."""
    return max(1, _BANK_BYTES // program.tensors[op.attributes(MemoryAttrs).tensor].dtype.itemsize)


def _is_shifted(op: Op, program: Program) -> bool:
    """Return whether a load begins so many elements from a tile that it is not aligned to vectors."""
    attrs = op.attributes(MemoryAttrs)
    if not attrs.indices or attrs.aligned or attrs.run or attrs.mark is not None:
        return False
    tensor, last = program.tensors[attrs.tensor], attrs.indices[-1]
    along = last.kind == "block" and attrs.rank - 1 in last.positions and fixed_at(tensor.strides[-1], 1)
    return along and isinstance(last.shift, int) and last.shift * tensor.dtype.itemsize % VECTOR_BYTES != 0


def _accesses(ops: tuple[Op, ...], steps: frozenset[int]) -> Iterator[tuple[Op, frozenset[int]]]:
    """Yield the accesses, each with the blocks of the loops over single indices around it."""
    for op in ops:
        if isinstance(op.attrs, MemoryAttrs):
            yield op, steps
        elif isinstance(op.attrs, ForAttrs):
            own = frozenset(axis.block for axis in op.attrs.axes if axis.scalar and fixed_at(axis.step, 1))
            yield from _accesses(op.regions[0].ops, steps | own)


def _is_tap(op: Op, steps: frozenset[int], program: Program, makers: Makers) -> bool:
    """Return whether a load begins an element further along contiguous memory with each step of a loop."""
    attrs = op.attributes(MemoryAttrs)
    if op.kind != "load" or not steps or not attrs.indices or attrs.aligned or attrs.run or attrs.mark is not None:
        return False
    if not fixed_at(program.tensors[attrs.tensor].strides[-1], 1):
        return False
    last = attrs.indices[-1]
    if last.operand is None or attrs.rank - 1 not in last.positions:
        return False
    return _moves(op.operands[last.operand], steps, makers)


def _moves(index: Operand, steps: frozenset[int], makers: Makers) -> bool:
    """Return whether an index is a sum with the number of a step, which nothing multiplies."""
    made = makers.of(index) if isinstance(index, Value) else None
    if made is None:
        return False
    if isinstance(made.attrs, TileAttrs):
        return made.attrs.block in steps and made.attrs.field == "index"
    if isinstance(made.attrs, PointwiseAttrs) and made.attrs.name in _MOVES:
        moving = [_moves(operand, steps, makers) for operand in made.operands]
        return any(moving) and not any(_is_loaded(operand, makers) for operand in made.operands)
    return made.kind == "view" and _moves(made.operands[0], steps, makers)


def _is_loaded(operand: Operand, makers: Makers) -> bool:
    made = makers.of(operand) if isinstance(operand, Value) else None
    if made is None:
        return isinstance(operand, Value)  # of another region, such as a value that a loop carries
    return made.kind not in ("number", "tile", "iota", "full", "pointwise", "view") or any(
        _is_loaded(each, makers) for each in made.operands
    )
