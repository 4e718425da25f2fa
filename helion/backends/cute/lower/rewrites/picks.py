"""Lines that an index picks: accesses of a tensor's lines become accesses of another tensor, which has the picked ones.

::

    row = tokens[tile_m]                                        x[tile_m, tile_k]      with x = x[tokens]
    x[row, tile_k]                                       →
    out[row, tile_n] = ...                                      out[tile_m, tile_n]    with out = out[tokens]

The index is a vector of a tile's elements. A kernel before the matmul gathers the lines that it picks of an operand.
Threads store to those that it picks of an output, or add to them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from ....._compiler.ir.grammar import (
    HostTensor,
    Index,
    MemoryAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    Region,
    Value,
)
from ....._compiler.passes.always.simplify import drop_dead
from ....._shapes import fixed_at
from ....._support.records import dataclass, field

LINE_DTYPES = (torch.int32, torch.int64)
"""Types of the numbers of lines."""


@dataclass(frozen=True, kw_only=True)
class Pick:
    """A tensor of picked lines: those of dimension ``along`` of ``tensor``, whose numbers are in the vector ``lines``."""

    tensor: HostTensor
    along: int
    lines: HostTensor


@dataclass(frozen=True, kw_only=True)
class Picked:
    """A ``program`` that accesses tensors of picked lines, which ``picks`` has by their ids. Without them it is the
    original one."""

    program: Program
    picks: Mapping[int, Pick] = field(default_factory=dict)


def with_picks(program: Program) -> Picked:
    """Return the program with a tensor of its own for the picked lines of each tensor."""
    picker = _Picker(program)
    roots = tuple(dataclasses.replace(root, body=picker.region(root.body)) for root in program.roots)
    if not picker.made:
        return Picked(program=program)
    tensors = (*program.tensors, *(tensor for tensor, _ in picker.made.values()))
    changed = drop_dead(dataclasses.replace(program, tensors=tensors, roots=roots))
    return Picked(program=changed, picks={tensor.id: pick for tensor, pick in picker.made.values()})


class _Picker:
    """A rewrite of accesses. ``made`` has the tensors of picked lines, by those that they are of."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.makers = {result.number: op for op in program.walk() for result in op.results}
        self.made: dict[tuple[int, int, int], tuple[HostTensor, Pick]] = {}

    def region(self, region: Region) -> Region:
        return dataclasses.replace(region, ops=tuple(map(self._op, region.ops)))

    def _op(self, op: Op) -> Op:
        if op.regions:
            return dataclasses.replace(op, regions=tuple(map(self.region, op.regions)))
        if not isinstance(op.attrs, MemoryAttrs) or op.attrs.mask is not None:
            return op
        found = [
            (at, load) for at, index in enumerate(op.attrs.indices) if (load := self._lines(op, index)) is not None
        ]
        if len(found) != 1:
            return op
        ((along, load),) = found
        (of_lines,), index = load.attributes(MemoryAttrs).indices, op.attrs.indices[along]
        indices = list(op.attrs.indices)
        indices[along] = Index("block", of_lines.block, index.positions)
        operands = tuple(0 if at == index.operand else each for at, each in enumerate(op.operands))
        picked = self._picked(self.program.tensors[op.attrs.tensor], along, self.program.tensors[load.attrs.tensor])
        attrs = dataclasses.replace(op.attrs, tensor=picked.id, indices=tuple(indices))
        return dataclasses.replace(op, attrs=attrs, operands=operands)

    def _lines(self, op: Op, index: Index) -> Op | None:
        """Return the load of the numbers of lines that an index has; None for another index."""
        if index.kind != "tensor" or index.operand is None or len(index.positions) != 1 or not fixed_at(index.shift, 0):
            return None
        load = self._maker(op.operands[index.operand])
        if load is None or load.kind != "load" or load.attributes(MemoryAttrs).mask is not None:
            return None
        tensor, indices = self.program.tensors[load.attrs.tensor], load.attributes(MemoryAttrs).indices
        plain = len(indices) == 1 and indices[0] == Index("block", indices[0].block, indices[0].positions)
        return load if plain and tensor.dtype in LINE_DTYPES else None

    def _maker(self, value: Operand) -> Op | None:
        """Return the op that makes a value, through casts between integers."""
        op = self.makers.get(value.number) if isinstance(value, Value) else None
        while op is not None and op.attrs == PointwiseAttrs("cast") and op.result.dtype in LINE_DTYPES:
            source = op.operands[0]
            op = self.makers.get(source.number) if isinstance(source, Value) else None
        return op

    def _picked(self, tensor: HostTensor, along: int, lines: HostTensor) -> HostTensor:
        key = tensor.id, along, lines.id
        if key not in self.made:
            shape = list(tensor.shape)
            shape[along] = lines.shape[0]
            free = len(self.program.tensors) + len(self.made)
            made = dataclasses.replace(tensor, id=free, shape=tuple(shape))
            self.made[key] = made, Pick(tensor=tensor, along=along, lines=lines)
        return self.made[key][0]
