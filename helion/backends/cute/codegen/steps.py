"""The printing rules of role programs: one rule per kind of step, the only code that depends on the kind."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from ..plan.counts import counts, leaves_cache
from ..plan.epilogue import ROW_NUMBER
from ..plan.passes import Pass, passes
from ..plan.records import GemmPlan
from ..plan.shared import staged_as
from ..roles import grammar as g
from ..roles.elements.drawn import Draw, StartDraws
from ..roles.halves import HalfStep, OfKTile
from ..roles.messages import MessageStep
from ..roles.micro import MicroMma, MicroStep
from ..roles.overlapped import Ahead, Rest, TurnMma, TurnPromote, TurnScales
from ..roles.partial import PieceViews, TermMma
from ..roles.sliced import SliceScales, SliceStep
from . import copied, exchange, groups, numbers, raw, rows, scales, vectors, workspace
from .blackwell import micro
from .elements import drawn
from .epilogue import (
    accumulated,
    converted,
    evaluate,
    first_column,
    first_row,
    fragment,
    kept_integers,
    kept_values,
    numbers_columns,
    positions,
    reads_strided,
    suffixed,
    values_of,
)
from .numbers import batched, steps_of_tile
from .outputs.strided import store_strided
from .peers import messages
from .setups import SETUPS, dsl, rows_of, second_b, stage_of, sums_of, tile_source
from .slices import sliced
from .terms import partial
from .writer import Writer


def print_steps(out: Writer, program: g.KernelProgram, role: g.Role) -> None:
    """Print the body of `role`."""
    _body(role.program, out, Names(program, role))


class Names:
    """The names that the code of one role refers to."""

    def __init__(self, program: g.KernelProgram, role: g.Role) -> None:
        self.program = program
        self.plan: GemmPlan = program.plan
        self.role = role
        self.pipelines: dict[str, str] = {}  # cursor -> pipeline
        self.group = 0  # K tiles per iteration of the enclosing loop over groups
        self.k_tile = "k_tile"

    def pipeline(self, cursor: str) -> str:
        return self.pipelines[cursor]


def _body(steps: tuple[g.Step, ...], out: Writer, names: Names) -> None:
    for step in steps:
        _print(step, out, names)


_LINES: Mapping[type[g.Step], str] = {
    g.WgmmaFence: "warpgroup.fence()",
    g.WgmmaCommit: "warpgroup.commit_group()",
    g.ClearSums: "total.fill(0.0)",
    g.FenceShared: 'cute.arch.fence_proxy("async.shared", space="cta")',
    g.LaunchFinish: "cute.arch.griddepcontrol_launch_dependents()",
    g.WarpSync: "cute.arch.sync_warp()",
    g.WorkspaceRelease: "cute.arch.fence_acq_rel_gpu()",
    g.WorkspaceAcquire: "cute.arch.fence_acq_rel_gpu()",
}
"""Steps that are one line of code, the same in every kernel."""
_OF_PLAN: Mapping[type[g.Step], Callable[[GemmPlan], list[str]]] = {
    g.AddPartials: exchange.add,
    g.StorePartials: workspace.put,
    g.IncrementTileCounter: workspace.count,
    g.ReducePartials: workspace.take,
    g.ResetTileCounter: workspace.reset,
    g.OwnRows: rows.own,
}
"""Steps whose code depends on the plan alone."""


@functools.singledispatch
def _print(step: g.Step, out: Writer, names: Names) -> None:
    if type(step) in _OF_PLAN:
        out.lines(_OF_PLAN[type(step)](names.plan))
        return
    if type(step) not in _LINES:
        raise NotImplementedError(f"no rule prints {type(step).__name__}")
    out.line(_LINES[type(step)])


@_print.register
def _(step: g.TileLoop, out: Writer, names: Names) -> None:
    plan = names.plan
    every = "work_step" if step.every == 1 else f"work_step * {step.every}"
    out.line("work = first_work" if step.every == 1 else f"work = first_work + work_step * {step.first}")
    number = "work"
    if plan.problem.groups is not None:
        _group_tiles(step, out, names, every)
        return
    with out.block(f"while work < {numbers.pieces(plan)}:"):
        if plan.grid_splits > 1:
            number = "tile"
            out.lines(workspace.parts_of(plan))
        out.lines([*numbers.tile_at(plan, number), *numbers.end_of_k(plan)])
        _body(step.body, out, names)
        out.line(f"work += {every}")


def _group_tiles(step: g.TileLoop, out: Writer, names: Names, every: str) -> None:
    """Print the loop over the tiles of all groups of rows."""
    plan = names.plan
    out.lines(groups.start())
    _find_group(out, plan)
    with out.block(f"while row_group < {numbers.groups(plan)}:"):
        out.lines(groups.tile(plan))
        _body(step.body, out, names)
        out.line(f"work += {every}")
        _find_group(out, plan)


def _find_group(out: Writer, plan: GemmPlan) -> None:
    lines, condition, body = groups.find(plan)
    out.lines(lines)
    if condition:
        with out.block(f"while {condition}:"):
            out.lines(body)


@_print.register
def _(step: g.GroupViews, out: Writer, names: Names) -> None:
    out.lines(groups.views(names.plan, step.of))


@_print.register
def _(step: g.KLoop, out: Writer, names: Names) -> None:
    first, end = numbers.loop_bounds(names.plan, step, names.group)
    if first == end:
        return
    with out.block(f"for k_tile in cutlass.range({first}, {end}, unroll=1):"):
        _body(step.body, out, names)


@_print.register
def _(step: SliceStep, out: Writer, names: Names) -> None:
    names.pipelines |= {"ab_read": "ab", "raw_read": "raw"}
    out.lines(sliced.lines(names.plan, step, numbers.k_bounds(names.plan)))


@_print.register(OfKTile)
@_print.register(Ahead)
@_print.register(Rest)
def _(step: OfKTile | Ahead | Rest, out: Writer, names: Names) -> None:
    before, names.k_tile = names.k_tile, numbers.other_k_tile(names.plan, step, names.k_tile)
    if names.k_tile:
        _body(step.body, out, names)
    names.k_tile = before


@_print.register
def _(step: g.KGroups, out: Writer, names: Names) -> None:
    first, end = numbers.k_bounds(names.plan)
    names.group = step.size
    with out.block(f"for group in cutlass.range({first}, {end}, {step.size}, unroll=1):"):
        _body(step.body, out, names)
    names.group = 0


@_print.register
def _(step: g.SubtileLoop, out: Writer, names: Names) -> None:
    # the body is traced once, and the DSL unrolls it afterwards
    # (measurements ``first_call_subtiles`` and ``first_call_subtiles_timed``)
    how = "unroll=1" if step.rolled else "unroll_full=True"
    with out.block(f"for subtile in cutlass.range({names.plan.subtiles}, {how}):"):
        _body(step.body, out, names)


@_print.register
def _(step: g.Gate, out: Writer, names: Names) -> None:
    with out.block(f"if {numbers.predicate(names.plan, step.who, names.role.first_warp)}:"):
        _body(step.body, out, names)


@_print.register
def _(step: g.OfTerm, out: Writer, names: Names) -> None:
    with out.block(f"if {numbers.is_of_term(names.plan, step.number)}:"):
        _body(step.body, out, names)


@_print.register
def _(step: g.Cursor, out: Writer, names: Names) -> None:
    names.pipelines[step.name] = step.pipeline
    stages = names.program.pipeline(step.pipeline).counts.stages
    out.line(
        f"{step.name} = pipeline.make_pipeline_state(pipeline.PipelineUserType.{step.side.capitalize()}, {stages})"
    )


def _call(method: str, cursor: str, out: Writer, names: Names) -> None:
    out.line(f"{names.pipeline(cursor)}.{method}({cursor})")


@_print.register
def _(step: g.Skip, out: Writer, names: Names) -> None:
    stages = names.program.pipeline(names.pipeline(step.cursor)).counts.stages
    slots = numbers.k_tiles(names.plan) if step.slots == "k_tiles" else str(names.plan.subtiles)
    cursor = step.cursor
    at = f"({cursor}.index + {slots})"
    out.line(
        f"{cursor} = pipeline.PipelineState("
        f"{stages}, {cursor}.count + {slots}, {at} % {stages}, ({cursor}.phase + {at} // {stages}) % 2)"
    )


def _exchange(cursor: str, names: Names) -> g.Pipeline | None:
    """Return the pipeline of `cursor` if no class of the DSL implements it."""
    pipeline = names.program.pipeline(names.pipeline(cursor))
    return pipeline if pipeline.kind == "exchange" else None


@_print.register
def _(step: g.Acquire, out: Writer, names: Names) -> None:
    if ring := _exchange(step.cursor, names):
        out.lines(exchange.acquire(names.plan, names.role, ring, step.cursor))
        return
    _call("producer_acquire", step.cursor, out, names)


@_print.register
def _(step: g.Commit, out: Writer, names: Names) -> None:
    _call("producer_commit", step.cursor, out, names)


@_print.register
def _(step: g.Wait, out: Writer, names: Names) -> None:
    pipeline = names.program.pipeline(names.pipeline(step.cursor))
    if pipeline.kind == "rows":
        out.lines(rows.wait(pipeline, step.cursor))
        return
    if ring := _exchange(step.cursor, names):
        out.lines(exchange.wait(ring, step.cursor))
        return
    _call("consumer_wait", step.cursor, out, names)


@_print.register
def _(step: g.Release, out: Writer, names: Names) -> None:
    if ring := _exchange(step.cursor, names):
        out.lines(exchange.release(names.plan, ring))
        return
    release = f"{names.pipeline(step.cursor)}.consumer_release({step.cursor})"
    if names.program.pipeline(names.pipeline(step.cursor)).kind == "umma_epilogue":
        with out.block("with cute.arch.elect_one():"):
            out.line(release)
    else:
        out.line(release)


@_print.register
def _(step: g.Tail, out: Writer, names: Names) -> None:
    if ring := _exchange(step.cursor, names):
        out.lines(exchange.wait(ring, step.cursor, word=1))
        return
    _call("producer_tail", step.cursor, out, names)


@_print.register
def _(step: g.Advance, out: Writer, names: Names) -> None:
    out.line(f"{step.cursor}.advance()")


@_print.register
def _(step: g.TmaLoad, out: Writer, names: Names) -> None:
    plan, slot, mask = names.plan, f"{step.cursor}.index", ""
    multiplied = {each.label: each for each in plan.problem.multiplicands}.get(step.operand)
    if multiplied is not None:
        out.lines(groups.views_of_k(plan, step.operand))
        is_a, numbers_of = multiplied.base == "a", counts(plan)
        source = tile_source(plan, multiplied)
        shared = numbers_of.a_multicast if is_a else numbers_of.b_multicast
        mask = f", mcast_mask=mask_{'a' if is_a else 'b'}" if shared > 1 else ""
        mask += ", cache_policy=read_once" if leaves_cache(plan, step.operand) else ""
        if not is_a and plan.products > 1:
            slot = f"{slot} * {plan.products} + {('b', *second_b(plan)).index(multiplied.base)}"
    else:
        source = f"from_{step.operand}[None, {rows_of(plan)}, tile_n * {plan.subtiles} + subtile{batched(plan, step.operand)}]"
    barrier = f"{names.pipeline(step.cursor)}.producer_get_barrier({step.cursor})"
    out.line(f"cute.copy(tma_{step.operand}, {source}, to_{step.operand}[None, {slot}], tma_bar_ptr={barrier}{mask})")


@_print.register
def _(step: g.CopyStep, out: Writer, names: Names) -> None:
    out.lines(copied.lines(step, names.plan, names.role, names.plan.ab_stages))


@_print.register
def _(step: MessageStep, out: Writer, names: Names) -> None:
    out.lines(messages.lines(step, names.plan))


@_print.register
def _(step: g.Mma, out: Writer, names: Names) -> None:
    wgmma = names.plan.unit == "wgmma"
    if step.first:
        out.line("tiled_mma.set(warpgroup.Field.ACCUMULATE, False)")
    sums = scales.of_turn("sums", step.turn) if isinstance(step, TurnMma) else "sums"
    with out.block(f"for step in {steps_of_tile(names.plan, 0, names.plan.mma_steps, fresh=step.first)}:"):
        place = f"[None, None, step, {step.cursor}.index]"
        out.line(f"cute.gemm(tiled_mma, {sums}, fragment_a{place}, fragment_b{place}, {sums})")
        if step.first or not wgmma:
            out.line(f"tiled_mma.set({'warpgroup' if wgmma else 'tcgen05'}.Field.ACCUMULATE, True)")


@_print.register(TermMma)
@_print.register(PieceViews)
def _(step: TermMma | PieceViews, out: Writer, names: Names) -> None:
    out.lines(partial.lines(names.plan, step))


@_print.register(MicroStep)
@_print.register(MicroMma)
def _(step: MicroStep, out: Writer, names: Names) -> None:
    out.lines(micro.lines(step, names.plan))


@_print.register
def _(step: g.WgmmaWait, out: Writer, names: Names) -> None:
    out.line(f"warpgroup.wait_group({step.pending})")


@_print.register
def _(step: HalfStep, out: Writer, names: Names) -> None:
    out.lines(raw.of_half(names.plan, step, names.k_tile))


@_print.register
def _(step: g.LoadScales, out: Writer, names: Names) -> None:
    turn = step.turn if isinstance(step, TurnScales) else 0
    block = (
        sliced.block(names.plan, step, numbers.k_bounds(names.plan)) if isinstance(step, SliceScales) else _block(names)
    )
    out.lines(scales.load(names.plan, rows_of(names.plan), block, turn))


def _block(names: Names) -> str:
    """Return the current block of K."""
    first = "group" if names.group else names.k_tile
    return first if names.plan.promote_k_tiles == 1 else f"{first} // {names.plan.promote_k_tiles}"


@_print.register
def _(step: g.Promote, out: Writer, names: Names) -> None:
    turn = step.turn if isinstance(step, TurnPromote) else 0
    sums = scales.promote(names.plan, step.cursor, turn)
    out.lines(sums)


@_print.register
def _(step: g.SelectSums, out: Writer, names: Names) -> None:
    out.line(f"sums = all_sums[None, None, None, {step.cursor}.index]")
    out.line("tiled_mma.set(tcgen05.Field.ACCUMULATE, False)")


@_print.register
def _(step: g.ReadSums, out: Writer, names: Names) -> None:
    if step.cursor is not None:
        for number, name in enumerate(sums_of(names.plan)):
            place = f"subtile + {number * names.plan.subtiles}" if number else "subtile"
            out.line(f"cute.copy(sums_copy, sums_part[None, None, None, 0, {place}, {step.cursor}.index], {name})")
        out.line("cute.arch.fence_view_async_tmem_load()")
        out.lines(converted(names.plan, sums_of(names.plan)))
        return
    with out.block(f"for i in cutlass.range_constexpr({fragment(names.plan).values}):"):
        for number, name in enumerate(sums_of(names.plan)):
            first = f"{number * names.plan.tile[1] // 2} + " if number else ""
            out.line(f"{name}[i] = {accumulated(names.plan, first)}")
        out.lines(kept_integers(names.plan))


@_print.register
def _(step: g.SendPartials, out: Writer, names: Names) -> None:
    out.lines(exchange.send(names.plan, names.program.pipeline(names.pipeline(step.cursor))))


@_print.register
def _(step: g.BarrierArrive, out: Writer, names: Names) -> None:
    out.line(f"{step.barrier}_barrier.arrive()")


@_print.register
def _(step: g.LoadVectors, out: Writer, names: Names) -> None:
    out.lines(vectors.load(names.plan, step.kinds, "place[2]" if step.once else "tile_n"))


@_print.register
def _(step: g.ShareVectors, out: Writer, names: Names) -> None:
    out.lines(vectors.share(names.plan, names.role))


@_print.register
def _(step: g.ReadResiduals, out: Writer, names: Names) -> None:
    for operand in names.plan.problem.epilogue.of_kind("exact"):
        name = operand.label
        out.line(f"cute.copy({name}_copy, {name}_part[None, None, None, {step.cursor}.index], {name}_registers)")
    out.line("cute.arch.sync_warp()")  # One lane releases for the warp.


@_print.register
def _(step: g.ClearRows, out: Writer, names: Names) -> None:
    out.lines(rows.clear(names.plan, step.number))


@_print.register
def _(step: g.AddTerms, out: Writer, names: Names) -> None:
    _read_columns(out, names.plan, passes(names.plan)[step.number])
    if reads_strided(names.plan, passes(names.plan)[step.number]):
        out.lines(positions(names.plan, rows_of(names.plan)))
    elif rows.needs_first_column(names.plan, step.number):
        out.line(first_column(names.plan))
    with out.block(f"for i in cutlass.range_constexpr({fragment(names.plan).values}):"):
        out.lines(rows.add_terms(names.plan, step.number))


@_print.register
def _(step: g.JoinLanes, out: Writer, names: Names) -> None:
    out.lines(rows.join(names.plan, step.number))


@_print.register
def _(step: g.ArmRows, out: Writer, names: Names) -> None:
    pipeline = names.program.pipeline(names.pipeline(step.cursor))
    out.lines(rows.arm(names.plan, names.role, pipeline, step.cursor, step.number))


@_print.register
def _(step: g.SendRows, out: Writer, names: Names) -> None:
    pipeline = names.program.pipeline(names.pipeline(step.cursor))
    out.lines(rows.send(names.plan, pipeline, step.cursor, step.number))


@_print.register
def _(step: g.GatherRows, out: Writer, names: Names) -> None:
    out.lines(rows.gather(names.plan, step.cursor, step.number))


@_print.register
def _(step: g.EvaluateRows, out: Writer, names: Names) -> None:
    if step.level == 0 and names.plan.problem.epilogue.numbers(ROW_NUMBER):
        out.line(first_row(names.plan, rows_of(names.plan)))
    out.lines(rows.evaluate_rows(names.plan, step.level))


@_print.register
def _(step: g.StoreRows, out: Writer, names: Names) -> None:
    out.lines(rows.store_rows(names.plan, rows_of(names.plan), dsl, functools.partial(batched, names.plan)))


def _read_columns(out: Writer, plan: GemmPlan, walk: Pass) -> None:
    """Load row operands that `walk` reads, at the columns of the sub-tile."""
    for operand in plan.problem.epilogue.rows_of(walk.reads):
        source = f"{operand.label}_view[{'None, None' if plan.paired else 'None'}, subtile]"
        out.line(f"cute.autovec_copy({source}, {operand.label}_columns)")


@_print.register(StartDraws)
@_print.register(Draw)
def _(step: StartDraws | Draw, out: Writer, names: Names) -> None:
    out.lines(drawn.lines(names.plan, step, rows_of(names.plan)))


@_print.register
def _(step: g.Evaluate, out: Writer, names: Names) -> None:
    plan, places = names.plan, fragment(names.plan)
    _read_columns(out, plan, passes(plan)[-1])
    if plan.problem.strided:
        out.lines(positions(plan, rows_of(plan)))
    elif numbers_columns(plan.problem, passes(plan)[-1]):
        out.line(first_column(plan))
    if not plan.problem.strided and not plan.by_rows and plan.problem.epilogue.numbers(ROW_NUMBER):
        out.line(first_row(plan, rows_of(plan)))
    outputs = [output for output in plan.problem.matrices if staged_as(plan.problem, output) == output]
    body = evaluate(plan)
    if body:
        out.lines(kept_values(plan))
        with out.block(f"for i in cutlass.range_constexpr({places.values}):"):
            out.lines(body)
    for output in outputs:
        rounded = suffixed(plan, "rounded", output)
        out.line(f"{rounded}.store({values_of(plan, output)}.load().to({dsl(output.dtype)}))")


@_print.register
def _(step: g.StoreStrided, out: Writer, names: Names) -> None:
    out.lines(store_strided(names.plan, names.plan.problem.outputs_of("strided")[step.output], names.role))


@_print.register
def _(step: g.WriteStage, out: Writer, names: Names) -> None:
    output = names.plan.problem.outputs_of("exact")[step.output]
    copy, registers, part = (
        suffixed(names.plan, name, output) for name in ("stage_copy", "stage_registers", "stage_part")
    )
    out.line(f"cute.copy({copy}, {registers}, {part}[None, None, None, {stage_of(names.plan, names.role)}])")


@_print.register
def _(step: g.TmaStore, out: Writer, names: Names) -> None:
    plan = names.plan
    label = plan.problem.label_of(plan.problem.outputs_of("exact")[step.output])
    stage, rows, third = stage_of(plan, names.role), _stored_rows(plan), batched(plan, label)
    if plan.problem.groups is not None:
        rows, third = "0", ", 0"
    if plan.warp_stores:
        stage = f"{stage} * {plan.storing_warps} + store_warp"
    copy = (
        f"cute.copy(tma_{label}, from_{label}[None, {stage}],"
        f" to_{label}[None, {rows}, tile_n * {plan.subtiles} + subtile{third}])"
    )
    if inside := _inside(plan):
        with out.block(f"if {' and '.join(inside)}:"):
            out.line(copy)
    else:
        out.line(copy)
    out.line("cute.arch.cp_async_bulk_commit_group()")


def _stored_rows(plan: GemmPlan) -> str:
    """Return the index of the rows of one store among those of all CTAs along M."""
    return f"{rows_of(plan)} * {plan.storing_warps} + store_warp" if plan.warp_stores else rows_of(plan)


def _inside(plan: GemmPlan) -> list[str]:
    """Return the conditions for a sub-tile inside the output, unless all are inside.

    With one sub-tile of rows or of columns, coordinates past it would alias the first. A skipped store still commits an
    empty group, because groups are counted.
    """
    (high, wide), of_tile = plan.store_box, plan.cta_tile[0] // plan.store_box[0]
    rows, columns = numbers.parts(plan, "m", high), numbers.parts(plan, "n", wide)
    walked = plan.work[0] * plan.cluster[0] * of_tile, plan.work[1] * plan.cluster[1] * plan.subtiles
    conditions = []
    if plan.problem.groups is None and (not rows.isdigit() or int(rows) < walked[0]):
        conditions.append(f"{_stored_rows(plan)} < {rows}")
    if not columns.isdigit() or int(columns) < walked[1]:
        conditions.append(f"tile_n * {plan.subtiles} + subtile < {columns}")
    if plan.problem.groups is not None and plan.cluster[0] > 1:  # a CTA may have no row of its group
        conditions.append("tile_rows > 0")
    return conditions


@_print.register
def _(step: g.StoreWait, out: Writer, names: Names) -> None:
    out.line(f"cute.arch.cp_async_bulk_wait_group({step.pending}, read=True)")


@_print.register
def _(step: g.BarrierSync, out: Writer, names: Names) -> None:
    out.line(f"{step.barrier}_barrier.arrive_and_wait()")


@_print.register
def _(step: g.SetUp, out: Writer, names: Names) -> None:
    out.lines(SETUPS[step.name](names.plan, names.role))


@_print.register
def _(step: g.AllocateSums, out: Writer, names: Names) -> None:
    out.line(f"tensor_memory.allocate({counts(names.plan).tensor_memory_columns})")


@_print.register
def _(step: g.FindSums, out: Writer, names: Names) -> None:
    out.line("tensor_memory.wait_for_alloc()")
    out.line("sums_pointer = tensor_memory.retrieve_ptr(cutlass.Float32)")


@_print.register
def _(step: g.FreeSums, out: Writer, names: Names) -> None:
    out.line("tensor_memory.relinquish_alloc_permit()")
    out.line(f"tensor_memory.free(sums_pointer, {counts(names.plan).tensor_memory_columns})")


@_print.register
def _(step: g.ClusterExit, out: Writer, names: Names) -> None:
    out.line("cute.arch.cluster_arrive_relaxed()")
    out.line("cute.arch.cluster_wait()")
