"""Loads what later steps of a loop need before this step computes.

A loop over single indices waits in each step for what the step has asked for: the loads of the next one stand behind this
one's stores, and no compiler moves them across, since none knows that tensors are apart. Before::

    for i in 0..n: %1: [b0] = load x[i, b0]; ..; store out[i, b0] <- %2

After, with loads one step ahead; where there is no such step, what the last one needs is loaded once more::

    %3: [b0] = load x[0, b0]
    for i in 0..n carrying %1 = %3: %4: [b0] = load x[min(i + 1, n - 1), b0]; ..; store out[i, b0] <- %2; yield %4

Several steps ahead, as many tiles are carried, each of which moves up in every step. Only what runs in every step is moved,
of memory that the loop does not write, at places that depend on the index and on what the loop does not change: a program
makes the accesses that it made before, and no others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..._shapes import cdiv
from ..ir.build import Builder, Numbers
from ..ir.effects import effects_of, may_meet, own_effects
from ..ir.grammar import ForAttrs, IotaAttrs, LoopAxis, MemoryAttrs, Op, Operand, Program, TileAttrs, Value
from ..ir.rewrite import Makers, expand_ops

#: What places of loads may be computed by: ops that give the same wherever they stand.
_REPEATED = frozenset(("number", "tile", "iota", "full", "pointwise", "view", "join"))


@dataclass(frozen=True, kw_only=True)
class Ahead:
    """A load of a loop that can be made in an earlier step, and what makes its operands, in the order of the program."""

    load: Op
    ops: tuple[Op, ...]


def loads_ahead(program: Program, loop: Op) -> tuple[Ahead, ...]:
    """The loads of a loop over single indices of known bounds that can be made in an earlier step."""
    axis = _steps(loop)
    if axis is None:
        return ()
    body = loop.regions[0]
    order = {op.number: at for at, op in enumerate(body.ops)}
    makers = Makers.among(body.walk())
    others = {effect for op in body.ops for effect in effects_of(program, op)}
    carried = {param.number for param in body.params}

    def places(load: Op) -> Ahead | None:
        if any(may_meet(effect, other) for effect in own_effects(program, load) for other in others):
            return None
        found: dict[int, Op] = {}
        waiting: list[Operand] = list(load.operands)
        while waiting:
            operand = waiting.pop()
            if not isinstance(operand, Value):
                continue
            if operand.number in carried:
                return None
            op = makers.of(operand)
            if op is None or op.number in found:
                continue
            if op.kind not in _REPEATED or op.number not in order or _depends_otherwise(op, axis.block):
                return None
            found[op.number] = op
            waiting += op.operands
        if not any(_is_index(op, axis.block) for op in found.values()):
            return None
        return Ahead(load=load, ops=tuple(sorted(found.values(), key=lambda op: order[op.number])))

    loads = (op for op in body.ops if op.kind == "load" and not _walks(op, axis.block))
    return tuple(each for each in map(places, loads) if each is not None)


def stepping_loops(program: Program) -> Iterator[Op]:
    """The loops that have such loads."""
    return (op for op in program.walk() if op.kind == "for" and loads_ahead(program, op))


def load_ahead(program: Program, steps: int) -> Program:
    """The program with such loads made ``steps`` earlier, or as many as a loop has."""
    numbers = Numbers.after(program)
    made = numbers.ops

    def change(op: Op) -> tuple[Op, ...]:
        found = loads_ahead(program, op) if op.kind == "for" else ()
        # what stands in front of a loop inside stays there
        found = tuple(each for each in found if each.load.number < made)
        return _rewritten(program, op, found, steps, numbers) if found else (op,)

    return expand_ops(program, change)


def _steps(loop: Op) -> LoopAxis | None:
    """The axis of a loop over single indices that is known to run twice or more."""
    attrs = loop.attrs
    if not isinstance(attrs, ForAttrs) or len(attrs.axes) != 1:
        return None
    (axis,) = attrs.axes
    known = isinstance(axis.begin, int) and isinstance(axis.end, int) and isinstance(axis.step, int) and axis.step > 0
    plain = axis.scalar and axis.jagged is None and axis.split is None and not axis.backwards
    return axis if known and plain and _count(axis) > 1 else None


def _count(axis: LoopAxis) -> int:
    """How often a loop over it runs."""
    assert isinstance(axis.begin, int) and isinstance(axis.end, int) and isinstance(axis.step, int)
    return max(0, cdiv(axis.end - axis.begin, axis.step))


def _is_index(op: Op, block: int) -> bool:
    return isinstance(op.attrs, TileAttrs) and op.attrs.block == block and op.attrs.field == "index"


def _depends_otherwise(op: Op, block: int) -> bool:
    """Whether an op depends on the step in another way than through its index."""
    return isinstance(op.attrs, (TileAttrs, IotaAttrs)) and op.attrs.block == block and not _is_index(op, block)


def _walks(load: Op, block: int) -> bool:
    return any(index.block == block for index in load.attributes(MemoryAttrs).indices)


def _rewritten(program: Program, loop: Op, found: tuple[Ahead, ...], steps: int, numbers: Numbers) -> tuple[Op, ...]:
    """A loop with what stands in front of it."""
    (axis,), (body,) = loop.attributes(ForAttrs).axes, loop.regions
    assert isinstance(axis.begin, int) and isinstance(axis.step, int)
    count = _count(axis)
    steps = min(steps, count - 1)
    last = axis.begin + (count - 1) * axis.step
    before: list[Op] = []
    first = Builder(numbers, loop.location, before)
    carried: list[list[Value]] = [[] for _ in found]
    for step in range(steps):
        fill = axis.begin + step * axis.step
        index = first.emit("full", (fill,), program.index_dtype, ())
        for values, value in zip(carried, _loaded(found, axis.block, index, first), strict=True):
            values.append(value)
    inside: list[Op] = []
    top = Builder(numbers, loop.location, inside)
    index = top.emit("tile", (), program.index_dtype, (), TileAttrs(axis.block, "index"))
    index = top.pointwise("minimum", top.pointwise("add", index, steps * axis.step), last)
    loaded = _loaded(found, axis.block, index, top)
    initial, params, results = list(loop.operands[: len(body.params)]), list(body.params), list(body.results)
    made = list(loop.results)
    for each, values, value in zip(found, carried, loaded, strict=True):
        was = each.load.result
        queue = [was, *(numbers.value(was.dtype, was.dims, was.name) for _ in range(steps - 1))]
        initial += values
        params += queue
        results += [*queue[1:], value]
        made += [numbers.value(was.dtype, was.dims, was.name) for _ in range(steps)]
    gone = {each.load.number for each in found}
    ops = (*inside, *(op for op in body.ops if op.number not in gone))
    region = replace(body, params=tuple(params), ops=ops, results=tuple(results))
    attrs = replace(loop.attributes(ForAttrs), carried=len(params))
    bounds = loop.operands[len(body.params) :]
    assert not bounds, "bounds that are known are no operands"
    return (*before, replace(loop, operands=tuple(initial), results=tuple(made), attrs=attrs, regions=(region,)))


def _loaded(found: tuple[Ahead, ...], block: int, index: Value, out: Builder) -> list[Value]:
    """The loads, in the step of ``index``."""
    renamed: dict[int, Value] = {}
    values = []
    for each in found:
        for op in (*each.ops, each.load):
            if op is not each.load and op.result.number in renamed:
                continue
            if _is_index(op, block):
                renamed[op.result.number] = index
                continue
            results = tuple(out.value(value.dtype, value.dims, value.name) for value in op.results)
            operands = tuple(renamed.get(o.number, o) if isinstance(o, Value) else o for o in op.operands)
            out.repeat(op, operands=operands, results=results)
            renamed.update((old.number, new) for old, new in zip(op.results, results, strict=True))
        values.append(renamed[each.load.result.number])
    return values


__all__ = ["Ahead", "load_ahead", "loads_ahead", "stepping_loops"]
