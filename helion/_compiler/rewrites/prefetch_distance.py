"""Prefetches loads of a loop over single indices.

Each step of such a loop waits for its own loads. The loads of the next step follow the stores of this one. No compiler
reorders them, since it cannot prove that the tensors are disjoint. Before::

    for i in 0..n: %1: [b0] = load x[i, b0]; ..; store out[i, b0] <- %2

After, with a prefetch distance of one step; the last step repeats its own load instead of one past the end::

    %3: [b0] = load x[0, b0]
    for i in 0..n carrying %1 = %3: %4: [b0] = load x[min(i + 1, n - 1), b0]; ..; store out[i, b0] <- %2; yield %4

A larger distance carries as many tiles, which shift by one in every step. A load is moved only if it runs in every step
and the loop does not write its memory. Its address may depend only on the index and on loop-invariant values. A program
accesses the same elements as before, and no others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch

from ..._shapes import Expr, cdiv, fixed_at
from ..._support.records import dataclass, replace
from ...fields import IntegerFragment
from ...hardware import Target
from ..ir.build import Builder, Numbers
from ..ir.effects import effects_of, may_meet, own_effects
from ..ir.grammar import (
    Bound,
    ForAttrs,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    NumberAttrs,
    Op,
    Operand,
    OperandRef,
    Program,
    Region,
    TileAttrs,
    Value,
)
from ..ir.rewrite import Makers, expand_ops
from .record import FactContext, Rewrite, Values
from .steps import StepInputs

#: Minimal bytes per thread of an asynchronous copy.
_COPIED_BYTES = 4
#: Ops that addresses of loads may depend on: their results do not depend on their position.
_REPEATED = frozenset(("number", "tile", "iota", "full", "pointwise", "view", "join"))


@dataclass(frozen=True, kw_only=True)
class Prefetchable:
    """A load of a loop that can be prefetched, and the ops that compute its operands, in program order."""

    load: Op
    ops: tuple[Op, ...]


def prefetchable_loads(program: Program, loop: Op) -> tuple[Prefetchable, ...]:
    """Return the loads of a loop over single indices that can be prefetched."""
    axis = _steps(loop)
    if axis is None:
        return ()
    body = loop.regions[0]
    order = {op.number: at for at, op in enumerate(body.ops)}
    makers = Makers.among(body.walk())
    others = {effect for op in body.ops for effect in effects_of(program, op)}
    carried = {param.number for param in body.params}

    def places(load: Op) -> Prefetchable | None:
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
        return Prefetchable(load=load, ops=tuple(sorted(found.values(), key=lambda op: order[op.number])))

    loads = (op for op in body.ops if op.kind == "load" and not _walks(op, axis.block))
    return tuple(each for each in map(places, loads) if each is not None)


def prefetching_loops(program: Program) -> Iterator[Op]:
    """Return the loops that have such loads."""
    return (op for op in program.walk() if op.kind == "for" and prefetchable_loads(program, op))


def prefetch_distance(program: Program, steps: int, sizes: Mapping[int, int], copying: int = 0) -> Program:
    """Return the program with such loads ``steps`` earlier, or as many as a loop has.

    With ``copying`` threads, pipelined loops copy large tiles asynchronously. Then only tiles that these copies cannot
    take are prefetched.
    """
    numbers = Numbers.after(program)
    made = numbers.ops

    def change(op: Op) -> tuple[Op, ...]:
        found = prefetchable_loads(program, op) if op.kind == "for" else ()
        # Initial loads of an inner loop stay before that loop.
        found = tuple(each for each in found if each.load.number < made)
        if copying:
            found = tuple(each for each in found if not is_copied(each.load.result, sizes, copying))
        return _rewritten(program, op, found, steps, numbers) if found else (op,)

    return expand_ops(program, change)


def is_copied(loaded: Value, sizes: Mapping[int, int], threads: int) -> bool:
    """Return whether ``threads`` threads can copy a tile to shared memory asynchronously: each has at least
    ``_COPIED_BYTES``."""
    if not loaded.dims:
        return False
    lanes = math.prod(sizes[block] for dim in loaded.dims for block in dim.blocks)
    lanes *= math.prod(dim.const for dim in loaded.dims)
    return max(1, lanes // threads) * loaded.dtype.itemsize >= _COPIED_BYTES


def _steps(loop: Op) -> LoopAxis | None:
    """Return the axis of a loop over single indices, unless it is known to run at most once.

    With run-time bounds, its step must be 1.
    """
    attrs = loop.attrs
    if not isinstance(attrs, ForAttrs) or len(attrs.axes) != 1:
        return None
    (axis,) = attrs.axes
    if not axis.scalar or axis.jagged is not None or axis.split is not None or axis.backwards:
        return None
    count = _count(axis)
    if count is not None:
        return axis if count > 1 else None
    numbers = (bound for bound in (axis.begin, axis.end) if isinstance(bound, Expr))
    return axis if fixed_at(axis.step, 1) and all(bound.leaves_are("host") for bound in numbers) else None


def _count(axis: LoopAxis) -> int | None:
    """Return the trip count of an axis, if known."""
    if not (isinstance(axis.begin, int) and isinstance(axis.end, int) and isinstance(axis.step, int)):
        return None
    return max(0, cdiv(axis.end - axis.begin, axis.step))


def _is_index(op: Op, block: int) -> bool:
    return isinstance(op.attrs, TileAttrs) and op.attrs.block == block and op.attrs.field == "index"


def _depends_otherwise(op: Op, block: int) -> bool:
    """Return whether an op depends on the step other than through its index."""
    return isinstance(op.attrs, (TileAttrs, IotaAttrs)) and op.attrs.block == block and not _is_index(op, block)


def _walks(load: Op, block: int) -> bool:
    return any(index.block == block for index in load.attributes(MemoryAttrs).indices)


def _rewritten(
    program: Program, loop: Op, found: tuple[Prefetchable, ...], steps: int, numbers: Numbers
) -> tuple[Op, ...]:
    """Return a loop with prefetched loads, and the ops before it."""
    (axis,), (body,) = loop.attributes(ForAttrs).axes, loop.regions
    before: list[Op] = []
    out = Builder(numbers, loop.location, before)
    count = _count(axis)
    if count is not None:
        assert isinstance(axis.begin, int) and isinstance(axis.step, int)
        steps = min(steps, count - 1)
        last: Operand = axis.begin + (count - 1) * axis.step
        places = [axis.begin + step * axis.step for step in range(steps)]
        indices = [out.emit("full", (place,), program.index_dtype, ()) for place in places]
        carried = [_loaded(found, axis.block, index, out) for index in indices]
    else:
        last, carried = _first_steps(program, loop, axis, found, steps, out)
    inside: list[Op] = []
    top = Builder(numbers, loop.location, inside)
    index = top.emit("tile", (), program.index_dtype, (), TileAttrs(axis.block, "index"))
    index = top.pointwise("minimum", top.pointwise("add", index, steps * int(axis.step)), last)
    loaded = _loaded(found, axis.block, index, top)
    initial, params, results = list(loop.operands[: len(body.params)]), list(body.params), list(body.results)
    made = list(loop.results)
    for at, (each, value) in enumerate(zip(found, loaded, strict=True)):
        was = each.load.result
        queue = [was, *(numbers.value(was.dtype, was.dims, was.name) for _ in range(steps - 1))]
        initial += [values[at] for values in carried]
        params += queue
        results += [*queue[1:], value]
        made += [numbers.value(was.dtype, was.dims, was.name) for _ in range(steps)]
    gone = {each.load.number for each in found}
    ops = (*inside, *(op for op in body.ops if op.number not in gone))
    region = replace(body, params=tuple(params), ops=ops, results=tuple(results))
    added = len(params) - len(body.params)
    axis = replace(axis, begin=_moved(axis.begin, added), end=_moved(axis.end, added))
    attrs = replace(loop.attributes(ForAttrs), axes=(axis,), carried=len(params))
    operands = (*initial, *loop.operands[len(body.params) :])
    return (*before, replace(loop, operands=operands, results=tuple(made), attrs=attrs, regions=(region,)))


def _moved(bound: Bound, by: int) -> Bound:
    return OperandRef(bound.at + by) if isinstance(bound, OperandRef) else bound


def _first_steps(
    program: Program, loop: Op, axis: LoopAxis, found: tuple[Prefetchable, ...], steps: int, out: Builder
) -> tuple[Value, list[list[Value]]]:
    """Return the last index of a loop with run-time bounds, and the loaded values of its first steps.

    The loop may be empty; the loads are then skipped.
    """
    begin, end = (_bound(bound, loop, program, out) for bound in (axis.begin, axis.end))
    last = out.pointwise("sub", end, 1)
    loads: list[Op] = []
    inside = Builder(out.numbers, loop.location, loads)
    carried = []
    for step in range(steps):
        index = inside.pointwise("minimum", last, inside.pointwise("add", begin, step))
        carried.append(_loaded(found, axis.block, index, inside))
    nothing: list[Op] = []
    outside = Builder(out.numbers, loop.location, nothing)
    flat = [value for values in carried for value in values]
    zeros = [outside.emit("full", (0,), value.dtype, value.dims) for value in flat]
    merged = [out.value(value.dtype, value.dims, value.name) for value in flat]
    runs = out.pointwise("lt", begin, end)
    regions = Region((), tuple(loads), tuple(flat)), Region((), tuple(nothing), tuple(zeros))
    out.append("if", (runs,), merged, None, regions)
    return last, [merged[at : at + len(found)] for at in range(0, len(merged), len(found))]


def _bound(bound: Bound, loop: Op, program: Program, out: Builder) -> Value:
    match bound:
        case int():
            return out.emit("full", (bound,), program.index_dtype, ())
        case Expr():
            return out.cast(out.emit("number", (), torch.int64, (), NumberAttrs(bound)), program.index_dtype)
    value = loop.operands[bound.at]
    assert isinstance(value, Value)
    return out.cast(value, program.index_dtype)


def _loaded(found: tuple[Prefetchable, ...], block: int, index: Value, out: Builder) -> list[Value]:
    """Return the values of the loads in the step of ``index``."""
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


# --- the record ------------------------------------------------------------------------------------------------------


def _slots(context: FactContext) -> tuple[int, ...]:
    loops = (op for op in context.program.walk() if op.kind == "for")
    found = (each for loop in loops for each in prefetchable_loads(context.program, loop))
    return tuple(each.load.attributes(MemoryAttrs).slot for each in found)


def _applies(program: Program, target: Target) -> str:
    if next(prefetching_loops(program), None) is None:
        return "no loop over single indices loads data that it does not write, at addresses from its index"
    return ""


def _apply(program: Program, value: int, inputs: StepInputs) -> Program:
    return prefetch_distance(program, value, inputs.sizes_in(program), inputs.threads if inputs.staged else 0)


_DISTANCES = IntegerFragment(0, 8, 0)
PREFETCH_DISTANCE = Rewrite(
    key="prefetch_distance",
    doc="Prefetch distance: iterations before its use at which a loop over single indices loads gathered data into registers; 0 loads it in the same iteration. In a loop with stages, those serve loads of 4 bytes or more per thread, and this key the others.",
    off=0,
    range=_DISTANCES,
    values=lambda program, target: Values(legal=_DISTANCES),
    applies=_applies,
    needs="",
    after=("peel_masks",),
    fact=_slots,
    apply=_apply,
)
