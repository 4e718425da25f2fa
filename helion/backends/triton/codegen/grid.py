"""Printing of the mapping from program ids to tiles: flat, grouped, 3-D and persistent grids."""

from __future__ import annotations

from ...._compiler.ir.grammar import LoopAxis, Root
from ...._shapes import Number, fixed_at
from ..plan.records import AxisPlan, GridPlan, RangePlan
from .emission import Emission
from .printer import Active, Lines
from .ranges import range_text


def emit_roots(e: Emission) -> None:
    """Print every root, each for its own range of program ids."""
    roots = [each.root for each in e.kernel.roots]
    grids = [each.grid for each in e.kernel.roots]
    if e.plan.launch.pid_type == "xyz":
        order = grids[0].order
        _body(e, roots[0], grids[0], _named(e, [_program_id(e, order.index(at)) for at in range(len(order))]))
        return
    totals = [_total(e, root, plan) for root, plan in zip(roots, grids, strict=True)]
    if e.plan.launch.persistent:
        pid = _persistent_loop(e, e.kernel.roots[0].range, " + ".join(totals))
    else:
        pid = e.names.fresh("pid")
        e.lines.add(f"{pid} = {_own_number(e)}")
    depth = e.lines.depth
    _branches(e, pid, totals, roots, grids)
    e.lines.depth = depth


def _branches(e: Emission, pid: str, totals: list[str], roots: list[Root], grids: list[GridPlan]) -> None:
    """Print each root below an ``if`` of its own range.

    Branches of one ``if`` would not share memory: Triton keeps the buffers of one and the other.
    """
    if len(roots) == 1:
        _body(e, roots[0], grids[0], _decompose(e, grids[0], roots[0], pid))
        return
    full = dict(e.scope.active)
    for at, root in enumerate(roots):
        ends = f"{pid} < {totals[at]}"
        heads = (ends, f"({pid} >= 0) & ({ends})", f"{pid} >= 0")
        e.lines.add(f"if {heads[0 if at == 0 else 2 if root is roots[-1] else 1]}:")
        e.lines.depth += 1
        _body(e, root, grids[at], _decompose(e, grids[at], root, pid))
        e.scope.active = dict(full)
        e.lines.depth -= 1
        if root is not roots[-1]:
            shifted = e.names.fresh("pid")
            e.lines.add(f"{shifted} = {pid} - {totals[at]}")
            pid = shifted


def _program_id(e: Emission, axis: int) -> str:
    return f"tl.program_id({axis})" + (".to(tl.int64)" if e.wide else "")


def _own_number(e: Emission) -> str:
    """Return the number of a program among those of a grid of one dimension.

    With several dies, to which consecutive programs go in turn, the first die has the first numbers, and so on.
    """
    own, dies = _program_id(e, 0), e.plan.launch.dies
    if dies == 1:
        return own
    die = e.names.fresh("pid_die")
    e.lines.add(f"{die} = {own} % {dies}")
    before = f"{die} * (tl.num_programs(0) // {dies}) + tl.minimum({die}, tl.num_programs(0) % {dies})"
    return f"{before} + {own} // {dies}"


def _named(e: Emission, texts: list[str]) -> list[str]:
    names = []
    for at, text in enumerate(texts):
        name = e.names.fresh(f"pid_{at}")
        e.lines.add(f"{name} = {text}")
        names.append(name)
    return names


def _count(e: Emission, count: Number | None, axis: LoopAxis) -> str:
    """Return the number of tiles along an axis as text."""
    if isinstance(count, int):
        return str(count)
    step = e.number(axis.step) if axis.scalar else e.symbol(axis.block)
    begin, end = e.bound(axis.begin, None), e.bound(axis.end, None)
    return f"tl.cdiv({end} - {begin}, {step})" if begin != "0" else f"tl.cdiv({end}, {step})"


def _total(e: Emission, root: Root, plan: GridPlan) -> str:
    counts = [_count(e, axis_plan.count, axis) for axis, axis_plan in zip(root.axes, plan.axes, strict=True)]
    return f"({' * '.join(counts)})" if len(counts) > 1 else counts[0]


def _persistent_loop(e: Emission, options: RangePlan, total: str) -> str:
    """Print a loop in which each program computes many tiles: consecutive ones, or every n-th."""
    launch = e.plan.launch
    programs = "_NUM_SM" if launch.persistent == 1 else f"(_NUM_SM * {launch.persistent})"
    pid = e.names.fresh("virtual_pid")
    total_name = e.names.fresh("total_pids")
    e.lines.add(f"{total_name} = {total}")
    if launch.pid_type == "persistent_interleaved":
        bounds = [_own_number(e), total_name, programs]
    else:
        share = e.names.fresh("pids_per_program")
        start = e.names.fresh("start_pid")
        e.lines.add(f"{share} = tl.cdiv({total_name}, {programs})")
        number = _own_number(e)
        e.lines.add(f"{start} = {number if e.plan.launch.dies == 1 else f'({number})'} * {share}")
        bounds = [start, f"tl.minimum({start} + {share}, {total_name})", "1"]
    e.lines.add(f"for {pid} in {range_text(options, bounds)}:")
    e.lines.depth += 1
    return pid


def _decompose(e: Emission, plan: GridPlan, root: Root, pid: str) -> list[str]:
    """Return the tile number per axis of one program id."""
    counts = {at: _count(e, plan.axes[at].count, root.axes[at]) for at in plan.order}
    names: dict[int, str] = {}
    if len(plan.order) == 1:
        return [pid]
    rest, order = pid, list(plan.order)
    if plan.group > 1:
        rest = _grouped(e, plan, counts, pid, names)
        order = order[2:]
        if len(order) == 1:
            names[order[0]] = rest
            order = []
    for position, at in enumerate(order):
        last = position == len(order) - 1
        name = names[at] = e.names.fresh(f"pid_{at}")
        e.lines.add(f"{name} = {rest}" if last else f"{name} = {rest} % {counts[at]}")
        if not last:
            following = e.names.fresh("pid_rest") if position < len(order) - 2 else f"{rest} // {counts[at]}"
            if position < len(order) - 2:
                e.lines.add(f"{following} = {rest} // {counts[at]}")
            rest = following
    return [names[at] for at in range(len(plan.order))]


def _grouped(e: Emission, plan: GridPlan, counts: dict[int, str], pid: str, names: dict[int, str]) -> str:
    """Print the two fastest axes in groups of ``plan.group`` tiles, so that resident programs share operands in L2."""
    m, n = plan.order[0], plan.order[1]
    lines: Lines = e.lines
    tiles = f"({counts[m]} * {counts[n]})"
    inner = pid
    if len(plan.order) > 2:
        inner = e.names.fresh("pid_inner")
        lines.add(f"{inner} = {pid} % {tiles}")
    group, first, rows, within = (e.names.fresh(x) for x in ("group_id", "first_pid", "group_size", "pid_in_group"))
    lines.add(f"{group} = {inner} // ({plan.group} * {counts[n]})")
    lines.add(f"{first} = {group} * {plan.group}")
    lines.add(f"{rows} = tl.minimum({counts[m]} - {first}, {plan.group})")
    lines.add(f"{within} = {inner} % ({plan.group} * {counts[n]})")
    names[m], names[n] = e.names.fresh(f"pid_{m}"), e.names.fresh(f"pid_{n}")
    lines.add(f"{names[m]} = {first} + {within} % {rows}")
    lines.add(f"{names[n]} = {within} // {rows}")
    if len(plan.order) <= 2:
        return ""
    rest = e.names.fresh("pid_rest")
    lines.add(f"{rest} = {pid} // {tiles}")
    return rest


def _body(e: Emission, root: Root, plan: GridPlan, pids: list[str]) -> None:
    e.lines.origin(root.location)
    if root.axes[0].parted:
        _whole_and_last_tile(e, root, plan.axes[0], pids[0])
        return
    for at, (axis, axis_plan) in enumerate(zip(root.axes, plan.axes, strict=True)):
        _enter(e, axis, axis_plan.masked, _offset(e, axis, axis_plan, pids[at]))
    e.region(root.body)


def _whole_and_last_tile(e: Emission, root: Root, plan: AxisPlan, pid: str) -> None:
    """Print the body for tiles whose lanes are all in range, and for the last one."""
    (axis,) = root.axes
    offset = _offset(e, axis, plan, pid)
    whole = f"if {offset} <= {e.bound(axis.end, None)} - {e.symbol(axis.block)}:"  # a sum might not fit into 32 bits
    known = e.names.mark()
    for head, masked in ((whole, False), ("else:", True)):
        e.names.rewind(known)
        known = e.names.mark()
        e.lines.add(head)
        with e.lines.indent():
            _enter(e, axis, masked, offset)
            e.region(root.body)


def _offset(e: Emission, axis: LoopAxis, plan: AxisPlan, pid: str) -> str:
    """Return the variable with the begin of a program's tile."""
    from_zero = fixed_at(axis.begin, 0)
    step = e.number(axis.step) if axis.scalar else e.symbol(axis.block)
    offset = e.names.fresh(f"offset_{e.kernel.blocks[axis.block].label}")
    if plan.descending:
        last = plan.count - 1 if isinstance(plan.count, int) else f"{_count(e, plan.count, axis)} - 1"
        pid = f"({last} - {pid})"
    scaled = pid if step == "1" else f"{pid} * {step}"
    e.lines.add(f"{offset} = {scaled}" if from_zero else f"{offset} = {e.bound(axis.begin, None)} + {scaled}")
    return offset


def _enter(e: Emission, axis: LoopAxis, masked: bool, offset: str) -> None:
    e.activate(axis, offset, masked, e.bound(axis.begin, None), e.bound(axis.end, None))
    if axis.merged:
        e.scope.merged.append(axis)
        _merged_indices(e, axis)


def _merged_indices(e: Emission, axis: LoopAxis) -> None:
    """Define the index along each axis of a flattened grid, where an access needs it.

    Lane numbers are never negative. A division without sign takes fewer instructions (measurement ``unsigned_lanes``).
    """
    bits = 64 if e.wide else 32
    numbered = [at for at, part in enumerate(axis.merged) if part.block in e.kernel.indexed]
    if not numbered:
        return
    rest = lanes = f"{e.scope.active[axis.block].index}.to(tl.uint{bits})"
    elements = 1
    for at, part in reversed(list(enumerate(axis.merged))[numbered[0] :]):
        # a dimension without elements starts no program, but Triton would still fold a division by its 0
        count = e.bound(max(part.end, 1) if isinstance(part.end, int) else part.end, None)
        if not isinstance(part.end, int):
            count = f"tl.cast({count}, tl.uint{bits})"
        if at in numbered:
            index = e.names.fresh(f"indices_{part.block}")
            digit = f"({rest} % {count})" if at else f"({rest})" if "//" in rest else rest
            e.lines.add(f"{index} = {digit}.to(tl.int{bits})")
            e.scope.active[part.block] = Active(index, index)
        elements *= part.end if isinstance(part.end, int) else 0
        # lanes of a run have one quotient by its elements
        rest = f"{lanes} // {elements}" if part.block in e.kernel.runs else f"{rest} // {count}"
