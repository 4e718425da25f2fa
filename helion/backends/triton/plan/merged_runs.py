"""Runs along the inner dimensions of a flattened grid.

Halves of the channels of ``x[B, 2 * C, T]`` are one run of ``C * T`` elements in each batch. With a sum of three offsets
for each lane, Triton sees no neighbours where ``T`` is no multiple of a vector, and loads single elements::

    tl.load(x + (indices_0 * 2 * C * T + indices_1 * T + indices_2))

The remainder of the lane number by the elements of the run keeps vectors (measurement ``merged_runs``)::

    tl.load(x + (indices_0 * 2 * C * T + indices_0_1_2 % (C * T)))
"""

from __future__ import annotations

from collections.abc import Sequence

from ...._compiler.ir.grammar import HostTensor, Index, LoopAxis, MemoryAttrs
from ...._shapes import fixed_at
from ....hardware import VECTOR_BYTES


def inner_run(attrs: MemoryAttrs, tensors: Sequence[HostTensor], axes: Sequence[LoopAxis]) -> tuple[int, int]:
    """Return how many of the last merged ``axes`` are one run of an access, and its elements; two zeros without a run.

    ``axes`` are in the order of lanes. Rows that are aligned for vectors need none.
    """
    tensor = tensors[attrs.tensor]
    vector, none = max(1, VECTOR_BYTES // tensor.dtype.itemsize), (0, 0)
    if attrs.rank != 1 or attrs.run or attrs.based or attrs.aligned:
        return none
    places = {index.block: at for at, index in enumerate(attrs.indices) if index.block is not None}
    taken, elements = 0, 1
    for axis in reversed(axes):
        at = places.get(axis.block)
        if at is None or not (isinstance(axis.end, int) and axis.end) or not _is_plain(attrs.indices[at]):
            break
        if axis.end != 1 and not fixed_at(tensor.strides[at], elements):
            break
        taken, elements = taken + 1, elements * axis.end
    last = axes[-1].end
    unaligned = isinstance(last, int) and last % vector != 0
    return (taken, elements) if taken > 1 and unaligned and elements % vector == 0 else none


def _is_plain(index: Index) -> bool:
    return index.kind == "block" and index.operand is None and fixed_at(index.shift, 0)
