"""Accumulation of 8-bit float matmuls, and matmuls that a loop must wait for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

from ...._compiler.ir.grammar import DotAttrs, ForAttrs, MemoryAttrs, Op, PointwiseAttrs, Program, Region, Value
from ...._compiler.ir.ops import OPS
from ...._compiler.ir.rewrite import Makers
from ...._shapes import Dim, hint_of
from ....hardware import Target
from ..resources.matrix import Unit, are_float8, partial_sum, unit_for


def partial_sums(program: Program, sizes: Mapping[int, int], num_warps: int, target: Target) -> dict[int, int]:
    """Return, for each dot of 8-bit floats, the elements along K that the unit accumulates before promotion to fp32.

    0 promotes every partial. Others occur only on a unit that accumulates with fewer bits than fp32 and rejects matmuls
    without a limit.
    """
    dots = [op for op in program.walk() if op.kind == "dot" and _is_float8(op)]
    makers = Makers.among(program.walk() if dots else ())
    return {op.number: _of(program, op, makers, sizes, num_warps, target) for op in dots}


def _is_float8(op: Op) -> bool:
    attrs = op.attributes(DotAttrs)
    lhs, rhs = list(op.values())[:2]
    return attrs.scaled is None and are_float8((lhs.dtype, rhs.dtype))


def settled_sums(program: Program, sizes: Mapping[int, int], num_warps: int, target: Target) -> frozenset[int]:
    """Return the ops, by number, whose accumulators must be complete before the next operands are computed.

    wgmma reads a computed left operand from registers while the warps continue. Triton (3.6 and 3.7) waits for all
    parts of a matmul but the last, and the next iteration overwrites the registers (measurement ``overwritten_operands``).
    Where the operand comes from another dot of the loop on the same unit, waiting for that dot waits for both.
    """
    if not target.has("wgmma"):
        return frozenset()
    found: set[int] = set()
    makers = Makers.among(program.walk())
    for loop in program.walk():
        if not isinstance(loop.attrs, ForAttrs):
            continue
        (body,) = loop.regions
        dots = [op for op in body.ops if isinstance(op.attrs, DotAttrs)]
        late = {op.number for op in dots if dot_unit(program, op, makers, sizes, num_warps, target) == "wgmma"}
        found |= {_sum(op, body).number for op in dots if op.number in late and _is_computed(op, body, late)}
    return frozenset(found)


def settled_loops(program: Program, sizes: Mapping[int, int], num_warps: int, target: Target) -> dict[int, int]:
    """Return, by loop, the carried value to wait for at the end of a step: a sum of wgmma whose operands the step reads too.

    Triton (3.6 and 3.7) gives a load one buffer more only if nothing but asynchronous dots reads it. Otherwise the copy for
    a later step overwrites what the dot still reads (measurement ``shared_loads``). Loops within a step count as well: a
    static one, or one of a single step, becomes part of it. Its dots may read registers that the next step computes again.
    """
    if not target.has("wgmma"):
        return {}
    found: dict[int, int] = {}
    makers = Makers.among(program.walk())
    for loop in program.walk():
        if not isinstance(loop.attrs, ForAttrs):
            continue
        (body,) = loop.regions
        dots = [op for op in body.walk() if isinstance(op.attrs, DotAttrs)]
        late = [op for op in dots if dot_unit(program, op, makers, sizes, num_warps, target) == "wgmma"]
        numbers, own = {op.number for op in late}, {op.number for op in body.ops}
        sums = _sums(body, numbers)
        places = [at for at, value in enumerate(body.results) if isinstance(value, Value) and value.number in sums]
        nested = any(op.number not in own and _is_computed(op, body, numbers) for op in late)
        again = any(_reads_again(operand, body, late) for op in late for operand in list(op.values())[:2])
        if places and (nested or again):
            order = {result.number: at for at, op in enumerate(body.ops) for result in op.results}
            found[loop.number] = max(places, key=lambda at: order[body.results[at].number])  # type: ignore[union-attr]
    return found


def _sums(body: Region, late: AbstractSet[int]) -> set[int]:
    """Return the values that the dots ``late`` add up, by number, in a step or in the loops within it."""
    found = {_sum(op, body).result.number for op in body.ops if op.number in late}
    for op in body.ops:
        if isinstance(op.attrs, ForAttrs):
            (inner,) = op.regions
            sums = _sums(inner, late)
            pairs = zip(op.results, inner.results, strict=True)
            found.update(after.number for after, value in pairs if isinstance(value, Value) and value.number in sums)
    return found


def _reads_again(operand: Value, body: Region, late: list[Op]) -> bool:
    """Return whether an operand is loaded in each step, and the step reads the load by other ops than these dots."""
    makers = Makers.among(body.walk())
    made = makers.of(operand)
    while made is not None and made.kind == "view":
        made = makers.of(next(made.values()))
    if made is None or made.kind != "load":
        return False
    dots = {op.number for op in late}
    ahead = [made.result]
    while ahead:
        value = ahead.pop()
        for reader in body.walk():
            if any(each is value for each in reader.reads()) and reader.number not in dots:
                if reader.kind != "view":
                    return True
                ahead += reader.results
    return any(each is made.result for each in body.results)


def _is_computed(dot: Op, body: Region, late: AbstractSet[int]) -> bool:
    """Return whether the left operand is computed in each iteration, from none of the asynchronous dots ``late``."""
    makers = Makers.among(body.walk())
    carried = {param.number for param in body.params}
    lhs = next(dot.values())
    op = makers.of(lhs)
    while op is not None and op.kind == "view":
        lhs = next(op.values())
        op = makers.of(lhs)
    if op is None:
        return lhs.number in carried
    return op.kind != "load" and not any(each.number in late for each in _behind(op, makers))


def _behind(op: Op, makers: Makers) -> Iterator[Op]:
    """Yield the ops that an op depends on, and itself."""
    seen: set[int] = set()
    ahead = [op]
    while ahead:
        each = ahead.pop()
        if each.number not in seen:
            seen.add(each.number)
            yield each
            ahead += [made for value in each.values() if (made := makers.of(value)) is not None]


def _sum(dot: Op, body: Region) -> Op:
    """Return the dot, or the op that accumulates it: Triton makes one instruction of both."""
    readers = [op for op in body.ops if any(value is dot.result for value in op.reads())]
    alone = len(readers) == 1 and isinstance(readers[0].attrs, PointwiseAttrs) and readers[0].attrs.name == "add"
    return readers[0] if alone and len(dot.operands) == 2 and readers[0].result.dtype == dot.result.dtype else dot


def _of(program: Program, op: Op, makers: Makers, sizes: Mapping[int, int], warps: int, target: Target) -> int:
    lhs, rhs = list(op.values())[:2]
    unit = dot_unit(program, op, makers, sizes, warps, target)
    return partial_sum((lhs.dtype, rhs.dtype), lanes(lhs.dims[-1], sizes), target) if unit == "wgmma" else 0


def lanes(dim: Dim, sizes: Mapping[int, int]) -> int:
    """Return the number of elements of a dimension in tiles of ``sizes``."""
    return math.prod((sizes[block] for block in dim.blocks), start=dim.const)


def dot_unit(program: Program, op: Op, makers: Makers, sizes: Mapping[int, int], warps: int, target: Target) -> Unit:
    """Return the matrix unit that computes a dot of ``program``."""
    lhs, rhs = list(op.values())[:2]
    depth, dtypes = lanes(lhs.dims[-1], sizes), (lhs.dtype, rhs.dtype)
    return unit_for(
        rows=lanes(lhs.dims[-2], sizes),
        columns=lanes(rhs.dims[-1], sizes),
        depth=depth,
        batched=any(lanes(dim, sizes) > 1 for dim in lhs.dims[:-2]),
        dtypes=dtypes,
        k_major=all(_is_k_major(program, makers, *side) for side in ((lhs, lhs.dims[-1]), (rhs, rhs.dims[-2]))),
        precision=op.attributes(DotAttrs).precision,
        warps=warps,
        target=target,
    )


def _is_k_major(program: Program, makers: Makers, value: Value, k: Dim) -> bool:
    """Return whether an operand is contiguous along ``k`` in memory, or is computed."""
    op = makers.of(value)
    while op is not None and OPS[op.kind].keeps_lanes:
        values = list(op.values())
        if op.kind == "pointwise" and len(values) != 1:
            return True
        op = makers.of(values[0])
    if op is None or op.kind != "load":
        return True
    attrs = op.attributes(MemoryAttrs)
    strides = program.tensors[attrs.tensor].strides
    unit = [i.block for i, stride in zip(attrs.indices, strides, strict=True) if hint_of(stride) == 1]
    return k.block is None or k.block in unit
