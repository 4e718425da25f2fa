"""Sums along K: numbers per line that the loop of a matmul adds up become loads of vectors, which hold them.

::

    for tile_k in hl.tile(k):                                     for tile_k in hl.tile(k):
        a = x[tile_m, tile_k]                                         acc = hl.dot(x[tile_m, tile_k], ..., acc=acc)
        acc = hl.dot(a, y[tile_k, tile_n], acc=acc)          →    norms = sums[tile_m]
        norms = norms + (a.float() ** 2).sum(-1)

A kernel before the matmul writes the vectors, whose lines are rows or columns of the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from ....._compiler.ir.grammar import (
    ForAttrs,
    HostTensor,
    Index,
    MemoryAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    ReduceAttrs,
    Value,
)
from ....._support.records import dataclass, field
from ..numbers import size


@dataclass(frozen=True, kw_only=True)
class LineSum:
    """A sum along K of ``terms``, for each line of ``block``."""

    terms: Value
    block: int


@dataclass(frozen=True, kw_only=True)
class Summed:
    """A ``program`` that loads sums, which ``sums`` has by the ids of their vectors. Without them it is the original
    one."""

    program: Program
    sums: Mapping[int, LineSum] = field(default_factory=dict)


def with_sums(program: Program) -> Summed:
    """Return the program with a vector for each sum along K that its loop carries next to its matmuls."""
    unchanged = Summed(program=program)
    if len(program.roots) != 1:
        return unchanged
    (root,) = program.roots
    loops = [op for op in root.body.ops if isinstance(op.attrs, ForAttrs) and len(op.attrs.axes) == 1]
    makers = {result.number: op for op in program.walk() for result in op.results}
    if len(loops) != 1 or not any(op.kind == "dot" for op in loops[0].regions[0].ops):
        return unchanged
    found = {at: each for at in range(len(loops[0].results)) if (each := _sum(loops[0], at, makers)) is not None}
    loads = [op for op in loops[0].walk() if op.kind == "load"]
    if not found or not loads:
        return unchanged
    vectors = {at: _vector(program, made, number) for number, (at, (made, _)) in enumerate(found.items())}
    free = 1 + max(number for op in program.walk() for number in (op.number, *(each.number for each in op.results)))
    ops: list[Op] = []
    for op in root.body.ops:
        if op is loops[0]:
            for at, vector in vectors.items():
                ops += _loaded(op, at, vector, loads[0], free + 2 * at, makers)
            op = _without(op, found)
        ops.append(op)
    tensors = (*program.tensors, *vectors.values())
    changed = dataclasses.replace(root, body=dataclasses.replace(root.body, ops=tuple(ops)))
    sums = {vectors[at].id: made for at, (made, _) in found.items()}
    return Summed(program=dataclasses.replace(program, tensors=tensors, roots=(changed,)), sums=sums)


def _sum(loop: Op, at: int, makers: Mapping[int, Op]) -> tuple[LineSum, tuple[Op, ...]] | None:
    """Return a carried sum along K of one number per line, and the ops that add a tile's; None for other values."""
    body, (axis,) = loop.regions[0], loop.attributes(ForAttrs).axes
    param, added = body.params[at], _maker(body.results[at], makers)
    if added is None or added.attrs != PointwiseAttrs("add") or added.result.dtype != torch.float32:
        return None
    rest = [each for each in added.operands if each is not param]
    reduced = _maker(rest[0], makers) if len(rest) == 1 else None
    if reduced is None or not isinstance(reduced.attrs, ReduceAttrs) or reduced.attrs.name != "sum":
        return None
    terms = reduced.operands[0]
    if not isinstance(terms, Value) or len(terms.dims) != 2 or terms.dtype != torch.float32:
        return None
    readers = [op for op in loop.walk() if any(value is param or value is added.result for value in op.operands)]
    if readers != [added] or [each for each in body.results if each is added.result] != [added.result]:
        return None
    blocks = [dim.block for dim in terms.dims]
    (along,) = reduced.attrs.dims if len(reduced.attrs.dims) == 1 else (0,)
    line = blocks[1 - along]
    if blocks[along] != axis.block or line is None or line == axis.block or len(param.dims) != 1:
        return None
    return LineSum(terms=terms, block=line), (reduced, added)


def _maker(value: Operand, makers: Mapping[int, Op]) -> Op | None:
    return makers.get(value.number) if isinstance(value, Value) else None


def _vector(program: Program, made: LineSum, number: int) -> HostTensor:
    """Return the vector of a sum, which no tensor of the program shares memory with."""
    free = 1 + max(tensor.storage for tensor in program.tensors)
    return HostTensor(
        id=len(program.tensors) + number,
        name="sums",
        source="",
        dtype=torch.float32,
        shape=(size(program.blocks[made.block].extent),),
        strides=(1,),
        storage=free + number,
    )


def _loaded(loop: Op, at: int, vector: HostTensor, like: Op, free: int, makers: Mapping[int, Op]) -> list[Op]:
    """Return the ops that make the result of a carried sum: a load, which is added to what it starts from."""
    result, start = loop.results[at], loop.operands[at]
    block = result.dims[0].block
    attrs = dataclasses.replace(
        like.attributes(MemoryAttrs), tensor=vector.id, indices=(Index("block", block, (0,)),), mask=None
    )
    made = _maker(start, makers)
    from_zero = made is not None and made.kind == "full" and made.operands[0] in (0, 0.0)
    loaded = result if from_zero else dataclasses.replace(result, number=free)
    load = dataclasses.replace(like, number=free, operands=(), results=(loaded,), attrs=attrs)
    if from_zero:
        return [load]
    add = Op(
        number=free + 1,
        kind="pointwise",
        operands=(start, loaded),
        results=(result,),
        attrs=PointwiseAttrs("add"),
        location=loop.location,
    )
    return [load, add]


def _without(loop: Op, found: Mapping[int, tuple[LineSum, tuple[Op, ...]]]) -> Op:
    """Return the loop without the sums that it carries."""
    carried = loop.attributes(ForAttrs).carried
    kept = [at for at in range(carried) if at not in found]
    dropped = {op.number for _, ops in found.values() for op in ops}
    body = loop.regions[0]
    region = dataclasses.replace(
        body,
        params=tuple(body.params[at] for at in kept),
        ops=tuple(op for op in body.ops if op.number not in dropped),
        results=tuple(body.results[at] for at in kept),
    )
    return dataclasses.replace(
        loop,
        operands=(*(loop.operands[at] for at in kept), *loop.operands[carried:]),
        results=tuple(loop.results[at] for at in kept),
        attrs=dataclasses.replace(loop.attributes(ForAttrs), carried=len(kept)),
        regions=(region,),
    )
