"""Loops and branches."""

from __future__ import annotations

from ....._compiler.ir.grammar import ForAttrs, LoopAxis, Op, Operand, OperandRef, Region, Value, Variables, WhileAttrs
from ....._shapes import WIDE, cdiv, hint_of
from ...plan.records import LoopPlan
from ..emission import Emission
from ..ranges import range_text
from .literals import SETTLE


def while_loop(e: Emission, op: Op) -> None:
    attrs = op.attributes(WhileAttrs)
    condition, body = op.regions
    carried = _carry_all(e, op, attrs.variables)
    for param, name in zip(condition.params, carried, strict=True):
        e.names.reuse(param, name)
    again = e.names.fresh("again")
    e.region(condition)
    e.lines.add(f"{again} = {e.operand(condition.results[0])}")
    e.lines.add(f"while {again}:")
    with e.lines.indent():
        e.region(body)
        _yield_values(e, body, carried)
        e.region(condition)
        e.lines.add(f"{again} = {e.operand(condition.results[0])}")
    for result, name in zip(op.results, carried, strict=True):
        e.names.reuse(result, name)


def for_loop(e: Emission, op: Op) -> None:
    attrs = op.attributes(ForAttrs)
    (region,) = op.regions
    plan = e.plan.loops[op.number]
    carried = _carry_all(e, op, attrs.variables)
    outer = dict(e.scope.active)
    depth = e.lines.depth
    if attrs.axes[0].aligned:
        _aligned_tiles(e, op, plan, carried)
    else:
        for at in plan.order:
            _loop_header(e, op, attrs.axes[at], plan, at)
        e.region(region)
        _settle(e, op)
        _yield_values(e, region, carried)
    e.lines.depth = depth
    e.scope.active = outer
    for result, name in zip(op.results, carried, strict=True):
        e.names.reuse(result, name)


def _carry_all(e: Emission, op: Op, variables: Variables | None) -> list[str]:
    """Return the variables of a loop's carried values, initialized."""
    assert variables is not None, "the steps of this backend have not run"
    body = op.regions[-1]
    names = []
    for at, (initial, param) in enumerate(zip(op.operands, body.params, strict=False)):
        name = _carry(e, initial, param, at in variables.taken)
        names.append(name)
        if at in variables.fresh:
            e.lines.add(f"{name} = tl.where(True, {name}, {name})")
        if at in variables.updated:
            after = body.results[at]
            assert isinstance(after, Value)
            e.names.promise(after, name)
    return names


def _carry(e: Emission, initial: Operand, param: Value, taken: bool) -> str:
    """Return the variable of a carried value. Where the initial value is an alias, it gets a variable of its own."""
    if taken and isinstance(initial, Value) and e.names.is_own(initial):
        name = e.names.of(initial)
        e.names.reuse(param, name)
        return name
    name = e.names.define(param, "carried")
    e.lines.add(f"{name} = {e.operand(initial)}")
    return name


def _aligned_tiles(e: Emission, op: Op, plan: LoopPlan, carried: list[str]) -> None:
    """Print a loop whose first and last tile have lanes out of range: an unmasked body, and a masked one for those
    tiles.
    """
    (axis,), (region,) = op.attributes(ForAttrs).axes, op.regions
    begin, end, size = e.bound(axis.begin, op), e.bound(axis.end, op), e.symbol(axis.block)
    ends = ""
    if axis.backwards:
        ends = e.names.fresh("ends")
        e.lines.add(f"{ends} = 2 * {begin} + ({end} - 1 - {begin}) // {size} * {size}")
    offset = _tiles(e, axis, range_text(plan.ranges[0], [begin, end, size]), ends, wide=e.wide)
    known = e.names.mark()
    for head, masked in ((f"if ({offset} >= 0) & ({offset} + {size} <= {end}):", False), ("else:", True)):
        e.names.rewind(known)
        known = e.names.mark()
        e.lines.add(head)
        with e.lines.indent():
            first = "0" if masked else ""
            e.scope.active[axis.block] = e.vector(axis.block, offset, masked, end, begin, first)
            e.region(region)
            _settle(e, op)
            _yield_values(e, region, carried)


def _tiles(e: Emission, axis: LoopAxis, run: str, ends: str, *, wide: bool) -> str:
    """Print the head of a loop over the range ``run``, and return the variable of its tile's begin.

    ``ends``, for a reversed loop, is the sum of the begins of the first and the last tile.
    """
    offset = e.names.fresh(f"offset_{axis.block}")
    walked = e.names.fresh("walked") if ends else offset
    e.lines.add(f"for {walked} in {run}:")
    e.lines.depth += 1
    if ends:
        e.lines.add(f"{offset} = {ends} - {walked}")
    if wide:
        e.lines.add(f"{offset} = tl.cast({offset}, tl.int64)")
    return offset


def _loop_header(e: Emission, op: Op, axis: LoopAxis, plan: LoopPlan, at: int) -> None:
    begin, end = e.bound(axis.begin, op), e.bound(axis.end, op)
    chosen = plan.axes[at]
    step = e.number(axis.step) if axis.scalar else e.symbol(axis.block)
    range_plan = plan.ranges[at]
    ends = ""
    first, behind = _run(e, axis, begin, end)
    if not range_plan.static:
        first = _counted(e, axis, first)
    if axis.backwards:
        ends = _last(e, axis, end) if axis.split is None else _ends_of_part(e, axis, first, behind)
    run = range_text(range_plan, [first, behind, step])
    offset = _tiles(e, axis, run, ends, wide=e.wide and not range_plan.static)
    e.activate(axis, offset, chosen.masked, begin, end)
    if axis.jagged is not None:
        _jagged(e, axis, op)


def _counted(e: Emission, axis: LoopAxis, first: str) -> str:
    """Return the begin of a loop, in 64 bits where a 32-bit counter may overflow past the end.

    A counter has as many bits as the widest of its bounds. In such kernels host numbers and a program's own range have
    64.
    """
    if not e.wide or axis.split is not None:
        return first
    step = hint_of(axis.step) if axis.scalar else e.plan.size(axis.block)
    bounds = (axis.begin, axis.end)
    far = isinstance(axis.end, int) and isinstance(axis.begin, int) and axis.end + max(step, 2**31 - WIDE) >= 2**31
    return f"tl.cast({first}, tl.int64)" if far or any(isinstance(b, OperandRef) for b in bounds) else first


def _last(e: Emission, axis: LoopAxis, end: str) -> str:
    """Return the begin of the last tile of a loop from 0."""
    if isinstance(axis.end, int):
        size = e.plan.size(axis.block)
        return str((axis.end - 1) // size * size)
    return f"({end} - 1) // {e.symbol(axis.block)} * {e.symbol(axis.block)}"


def _ends_of_part(e: Emission, axis: LoopAxis, first: str, behind: str) -> str:
    """Return the sum of the begins of the first and the last tile of a program's own range; unused for an
    empty range.
    """
    size, ends = e.symbol(axis.block), e.names.fresh("ends")
    e.lines.add(f"{ends} = 2 * ({first}) + ({behind} - 1 - {first}) // {size} * {size}")
    return ends


def _run(e: Emission, axis: LoopAxis, begin: str, end: str) -> tuple[str, str]:
    """Return the begin and end of the program's own tiles of an axis."""
    if axis.split is None:
        return begin, end
    size, count, extent = "1" if axis.scalar else e.symbol(axis.block), axis.split.count, axis.end
    part = e.scope.active[axis.split.block].offset
    run = f"(tl.cdiv({end}, {count} * {size}) * {size})"
    if isinstance(extent, int):
        tiles = cdiv(cdiv(extent, e.plan.size(axis.block)), count)
        run = size if tiles == 1 else f"({tiles} * {size})"
        if tiles * count * e.plan.size(axis.block) == extent:
            return f"{part} * {run}", f"({part} + 1) * {run}"
    return f"{part} * {run}", f"tl.minimum(({part} + 1) * {run}, {end})"


def _jagged(e: Emission, axis: LoopAxis, op: Op) -> None:
    """Print the mask of a jagged loop: lanes within each row's own length."""
    assert axis.jagged is not None
    lengths = op.operands[axis.jagged.at]
    assert isinstance(lengths, Value)
    loop = e.scope.active[axis.block]
    rank = len(lengths.dims)
    lanes = f"{loop.index}[{', '.join(['None'] * rank)}, :]"
    rows = f"{e.names.of(lengths)}[{', '.join([':'] * rank)}, None]"
    loop.rows_mask = e.names.fresh(f"rows_mask_{axis.block}")
    loop.rows = tuple(d.blocks[0] for d in lengths.dims)
    e.lines.add(f"{loop.rows_mask} = {lanes} < {rows}")


def _settle(e: Emission, op: Op) -> None:
    """Print that a step waits for its sums, where the plan requires it."""
    at = e.plan.settled_loops.get(op.number)
    if at is not None:
        name = e.operand(op.regions[0].results[at])
        e.needs.add(SETTLE)
        e.lines.add(f"{name} = {SETTLE}({name})")


def _yield_values(e: Emission, region: Region, carried: list[str]) -> None:
    afters = [e.operand(value) for value in region.results]
    # read a value that is another carried variable before that variable changes
    for at, text in enumerate(afters):
        if text in carried and text != carried[at]:
            afters[at] = e.names.fresh(f"{text}_before")
            e.lines.add(f"{afters[at]} = {text}")
    for name, text in zip(carried, afters, strict=True):
        if name != text:
            e.lines.add(f"{name} = {text}")
    if not region.ops and not carried:
        e.lines.add("pass")


def branch(e: Emission, op: Op) -> None:
    names = [e.names.define(result, "merged") for result in op.results]
    for at, (head, region) in enumerate(zip((f"if {e.operand(op.operands[0])}:", "else:"), op.regions, strict=True)):
        if at and not region.ops and not region.results:
            continue
        e.lines.add(head)
        with e.lines.indent():
            before = len(e.lines.lines)
            e.region(region)
            for name, value in zip(names, region.results, strict=True):
                e.lines.add(f"{name} = {e.operand(value)}")
            if len(e.lines.lines) == before:
                e.lines.add("pass")


OPS = {"while": while_loop, "for": for_loop, "if": branch}
