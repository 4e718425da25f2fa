"""Outputs whose rows and columns are divided, as matrices of which each dimension is two of the tensor.

::

    out[m // c, n // e, m % c, n % e] = value    →    out[tile_m, tile_n] = value    of rows in parts of c, and columns in parts of e

TMA stores a box of the parts of a tile. The elements of a part are as far from each other as those of the tensor, and
the parts have a distance of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ....._compiler.ir.grammar import (
    HostTensor,
    Index,
    IotaAttrs,
    MemoryAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    Value,
)
from ....._compiler.ir.rewrite import Makers, map_ops
from ....._compiler.passes.always.simplify import drop_dead
from ....._shapes import fixed_at
from ....._support.records import dataclass, field
from ...plan.epilogue import Parts
from ..numbers import is_known


@dataclass(frozen=True, kw_only=True)
class Division:
    """The parts of each block that a matrix divides."""

    parts: Mapping[int, Parts]


@dataclass(frozen=True, kw_only=True)
class Divided:
    """A ``program`` that stores matrices, whose ``divisions`` are by their ids. Without them it is the original one.

    ``tensors`` are those of the original program by the ids of their matrices.
    """

    program: Program
    divisions: Mapping[int, Division] = field(default_factory=dict)
    tensors: Mapping[int, int] = field(default_factory=dict)


def with_divisions(program: Program) -> Divided:
    """Return the program with a matrix in place of each tensor whose rows or columns a store divides."""
    makers, found, of = Makers.among(program.walk()), dict[int, Division](), dict[int, int]()
    accesses = [op for op in program.walk() if isinstance(op.attrs, MemoryAttrs)]
    tensors = list[HostTensor]()

    def changed(op: Op) -> Op:
        if op.kind != "store" or sum(each.attrs.tensor == op.attrs.tensor for each in accesses) > 1:
            return op
        made = _matrix(program, makers, op, len(program.tensors) + len(tensors))
        if made is None:
            return op
        matrix, division = made
        tensors.append(matrix)
        found[matrix.id], of[matrix.id] = division, op.attrs.tensor
        indices = tuple(Index("block", dim.block, (at,)) for at, dim in enumerate(op.result.dims))
        attrs = dataclasses.replace(op.attributes(MemoryAttrs), tensor=matrix.id, indices=indices, rank=len(indices))
        return dataclasses.replace(op, attrs=attrs, operands=(op.operands[0], *(0 for _ in op.operands[1:])))

    rewritten = map_ops(program, changed)
    if not found:
        return Divided(program=program)
    rewritten = dataclasses.replace(rewritten, tensors=(*program.tensors, *tensors))
    return Divided(program=drop_dead(rewritten), divisions=found, tensors=of)


def _matrix(program: Program, makers: Makers, store: Op, number: int) -> tuple[HostTensor, Division] | None:
    """Return the matrix that a store has with tensor ``number``, and its parts; None for another store."""
    attrs, value = store.attributes(MemoryAttrs), store.operands[0]
    tensor, dims = program.tensors[attrs.tensor], store.result.dims
    places: dict[int, dict[str, tuple[int, int]]] = {}
    for at, index in enumerate(attrs.indices):
        line = _line(makers, store, index)
        if line is None or line[1] in places.get(line[0], {}):
            return None
        places.setdefault(line[0], {})[line[1]] = at, line[2]
    blocks = [dim.block for dim in dims]
    known = attrs.mask is None and all(map(is_known, (*tensor.shape, *tensor.strides)))
    same = isinstance(value, Value) and value.dims == dims and len(blocks) == 2 and {*blocks} == {*places}
    if not known or not same or all("whole" in each for each in places.values()):
        return None
    shape, strides, parts = list[int](), list[int](), dict[int, Parts]()
    for block in blocks:
        assert block is not None
        extent, found = program.blocks[block].extent, places[block]
        if "whole" in found:
            ((at, _),) = found.values()
            covered = tensor.shape[at]
        else:
            if {*found} != {"floordiv", "remainder"} or found["floordiv"][1] != found["remainder"][1]:
                return None
            (outer, size), (at, _) = found["floordiv"], found["remainder"]
            if not fixed_at(tensor.shape[at], size):
                return None
            covered = tensor.shape[outer] * size
            step = tensor.strides[outer]
            assert is_known(step)
            parts[block] = Parts(size=size, step=step)
        if extent != covered or not is_known(covered) or len(found) > 2:
            return None
        stride = tensor.strides[at]
        assert is_known(stride)
        shape.append(covered)
        strides.append(stride)
    matrix = dataclasses.replace(tensor, id=number, shape=tuple(shape), strides=tuple(strides))
    return matrix, Division(parts=parts)


def _line(makers: Makers, store: Op, index: Index) -> tuple[int, str, int] | None:
    """Return the block whose indices an index is, ``whole``, or a ``floordiv`` or ``remainder`` by a number; None for others."""
    if not fixed_at(index.shift, 0):
        return None
    if index.kind == "block" and index.operand is None and index.block is not None:
        return index.block, "whole", 1
    if index.kind != "tensor" or index.operand is None:
        return None
    made = _made(makers, store.operands[index.operand])
    if made is None:
        return None
    if isinstance(made.attrs, PointwiseAttrs) and made.attrs.name in ("floordiv", "remainder"):
        size, of = made.operands[1], _made(makers, made.operands[0])
        if not isinstance(size, int) or size < 2 or of is None or not isinstance(of.attrs, IotaAttrs):
            return None
        if of.attrs == IotaAttrs(of.attrs.block, False):
            return of.attrs.block, made.attrs.name, size
        return None
    if isinstance(made.attrs, IotaAttrs) and made.attrs == IotaAttrs(made.attrs.block, False):
        return made.attrs.block, "whole", 1
    return None


def _made(makers: Makers, value: Operand) -> Op | None:
    """Return the op that makes a value, through views and casts of integers."""
    made = makers.of(value)
    while made is not None and (made.kind == "view" or made.attrs == PointwiseAttrs("cast")):
        made = makers.of(made.operands[0])
    return made
