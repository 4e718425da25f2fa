"""Single lanes for vectors that a loop spreads over tiles of more dimensions.

Triton gives a thread as many neighbours of a load as its widest access takes. A loop may combine loads to a tile of more
axes, such as all pairs of two vectors, and access no such tile. Triton then gives each thread one lane of the tile at a
time. Every step passes its loads through shared memory, with two barriers each (measurement ``spread_vectors``). Before::

    for b1 in 0..n: %2: [b1] = load x[b1]; %3: [1, b1] = view %2; %4: [b0, b1] = sub %3, %1; ..

after, lanes of the load are those of the tile. The same holds for tiles of rows, if each thread has a column of its own, and
enough rows in flight. Elements of 16 bits would fill no bank of the L1 cache::

    for b1 in 0..n: %2: [b1] = load x[b1], lanes 1; ..
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ....._compiler.ir.grammar import ForAttrs, MemoryAttrs, Op, Program, Value
from ....._compiler.ir.ops import OPS
from ....._compiler.ir.rewrite import map_ops
from ....._compiler.rewrites.steps import StepInputs

#: Bytes of a bank of the L1 cache, and least rows of a thread with a column of its own.
_BANK_BYTES, _DEEP = 4, 16
#: Ops after which the lanes of a tile are those of a matrix unit, or of another op that exchanges them.
_ARRANGED = frozenset(("dot", "sort", "scan", "fold"))


def slice_lanes(program: Program, inputs: StepInputs) -> Program:
    """Return the program with single lanes for such loads, if ``inputs`` has near lanes and no loop has stages."""
    if not inputs.near_lanes or inputs.staged or inputs.checked:
        return program
    sizes = inputs.sizes_in(program)
    written = {program.tensors[op.attributes(MemoryAttrs).tensor].storage for op in program.walk() if _writes(op)}
    found: set[int] = set()
    for op in program.walk():
        if isinstance(op.attrs, ForAttrs):
            found |= {
                load.number for load in _spread(op, sizes, inputs, program) if _storage(load, program) not in written
            }
    if not found:
        return program

    def change(op: Op) -> Op:
        return replace(op, attrs=replace(op.attrs, lanes=1)) if op.number in found else op

    return map_ops(program, change)


def _spread(loop: Op, sizes: Mapping[int, int], inputs: StepInputs, program: Program) -> Iterator[Op]:
    """Yield the loads of a loop that have several lanes a thread, if the loop has a tile with more axes than any access."""
    inside = list(loop.regions[0].walk())
    if any(op.kind in _ARRANGED or op.regions for op in inside):
        return
    accesses = [op for op in inside if isinstance(op.attrs, MemoryAttrs)]
    tiles = [value for op in inside for value in op.results if OPS[op.kind].per_lane]
    widest = max(tiles, key=lambda value: len(_blocks(value)), default=None)
    if widest is None or not all(op.kind == "load" and _blocks(op.result) < _blocks(widest) for op in accesses):
        return
    for op in (each for each in accesses if each.result.dims):
        attrs = op.attributes(MemoryAttrs)
        lanes, whole = (_lanes(value, sizes) for value in (op.result, widest))
        own = op.result.dims[-1].lanes(sizes) == inputs.threads and lanes == whole >= _DEEP * inputs.threads
        vector = sum(dim.lanes(sizes) > 1 for dim in op.result.dims) == 1
        plain = not (attrs.lanes or attrs.run or attrs.mark) and attrs.slot not in inputs.block_accesses
        full = program.tensors[attrs.tensor].dtype.itemsize >= _BANK_BYTES
        if lanes > inputs.threads and plain and full and (vector or own):
            yield op


def _lanes(value: Value, sizes: Mapping[int, int]) -> int:
    return math.prod(dim.lanes(sizes) for dim in value.dims)


def _blocks(value: Value) -> frozenset[int]:
    return frozenset(block for dim in value.dims for block in dim.blocks)


def _writes(op: Op) -> bool:
    return OPS[op.kind].writes and isinstance(op.attrs, MemoryAttrs)


def _storage(op: Op, program: Program) -> object:
    return program.tensors[op.attributes(MemoryAttrs).tensor].storage
