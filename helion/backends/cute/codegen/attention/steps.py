"""The printing rules of the role programs of attention: one rule per kind of step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...plan.attention.build import QUAD
from ...plan.attention.numbers import text_of
from ...plan.attention.operands import SPAN_DIMENSIONS, Matrix
from ...plan.attention.records import AttentionPlan, ScorePlan, without_rest
from ...plan.dtypes import DTYPES
from ...roles import grammar as g
from ...roles.attention import grammar as a
from ...roles.attention.grammar import AttentionProgram, ScoreProgram, rule_of
from ..raw import READ_ONCE
from ..setups import dsl
from ..writer import Writer
from . import numbers, quads, spans, splits, vectors
from .bounds import block_index, bounded, hand_out, next_tile, part_lengths, side_lengths, take_ticket
from .finish import finish_call
from .formula import arguments_of, head_axes
from .host import own_name
from .latent import parts_of_stages, values_in_keys
from .softmax import softmax_call


def coordinates(plan: ScorePlan) -> list[str]:
    """Return the definitions of the coordinates of ``head``, the last of which varies fastest."""
    lines, rest = [], "head"
    sizes = plan.problem.heads
    for at in reversed(range(len(sizes))):
        lines.append(f"head_{at} = {rest} % {text_of(sizes[at])}" if at else f"head_{at} = {rest}")
        rest = f"{rest} // {text_of(sizes[at])}"
    if isinstance(plan, AttentionPlan):
        return [*lines, *spans.coordinates(plan)]
    return [*lines, *(f"head_{at} = cutlass.Int32(0)" for at in range(len(sizes), len(plan.problem.coordinates)))]


def indexed(plan: ScorePlan, matrix: Matrix, block: str, span: str = "") -> str:
    """Return the index of block number ``block`` of the current head's matrix, of a span of rows that ends at ``span``."""
    places = [mode.at.text(head_axes(plan.problem)) for mode in matrix.modes]
    return ", ".join(["None", block, *(spans.places(span) if span else []), *places])


def print_steps(out: Writer, program: ScoreProgram, steps: Sequence[g.Step]) -> None:
    own = OWN_RULES.get(type(program), RULES)
    for step in steps:
        (own.get(type(step)) or RULES[type(step)])(out, program, step)


Rule = Callable[..., None]
RULES: dict[type[g.Step], Rule] = {}
OWN_RULES: dict[type[ScoreProgram], dict[type[g.Step], Rule]] = {}
"""Rules that a kind of programs has instead."""
OWN_BLOCKS: dict[type[ScoreProgram], Callable[[Any, str], list[str]]] = {}
"""The partitions of blocks that a kind of programs has instead, given the index of a span's first row."""

OWN_TILES: dict[type[ScoreProgram], Callable[[Any], list[str]]] = {}
"""Definitions of consumers of a kind of programs for a tile, after its bounds."""
OWN_WORK: set[type[ScoreProgram]] = set()
"""Kinds of programs whose roles read the first work item, and the distance to the next one, by themselves. In large kernels
ptxas spills what all roles share."""
FIRST_WORK, WORK_STEP = "_, first_work, _ = cute.arch.block_idx()", "_, work_step, _ = cute.arch.grid_dim()"
OWN_QUERIES: dict[type[ScoreProgram], Callable[[Any], list[str]]] = {}
"""The definitions of a thread's first query, and of its bounds, that a kind of programs has instead."""

_rule = functools.partial(rule_of, RULES)


def _block(head: str, body: Callable[[Writer, ScoreProgram, g.Step], Sequence[str]]) -> Rule:
    """Return the rule of a step with a body: definitions before it in the block, and the loop or predicate."""

    def rule(out: Writer, program: ScoreProgram, step: g.Step) -> None:
        with out.block(head):
            out.lines(body(out, program, step))
            print_steps(out, program, step.body)  # type: ignore[attr-defined]

    return rule


def _text(*lines: str) -> Rule:
    return lambda out, program, step: out.lines(lines)


# Set-up ----------------------------------------------------------------------------------------------------------------


@_rule(g.SetUp)
def _(out: Writer, program: AttentionProgram, step: g.SetUp) -> None:
    out.lines(_SETUPS[step.name](program.plan))


def partition(
    name: str, matrix: Matrix, box: tuple[int, int], transposed: bool = False, first_row: str = "", shared: str = ""
) -> list[str]:
    """Return the partition of a matrix in global and shared memory for its TMA loads. That of a span of rows has tiles from
    ``first_row`` on, and the dimensions of a span."""
    modes = ["0", "None"] if transposed else ["None", "0"]
    others = ["None" for _ in matrix.modes] + (["None"] * SPAN_DIMENSIONS if first_row else [])
    tensor = f"tensor_{name}"
    if first_row:
        offsets = ", ".join([*([first_row, "0"][:: -1 if transposed else 1]), *("0" for _ in others)])
        tensor = f"cute.domain_offset(({offsets}), {tensor})"
    return [
        f"tiles_{name} = cute.local_tile({tensor}, {box}, ({', '.join([*modes, *others])}))",
        f"to_{name}, from_{name} = cpasync.tma_partition(",
        f"    tma_{name}, 0, cute.make_layout(1), cute.group_modes(shared_{shared or name}, 0, 2), cute.group_modes(tiles_{name}, 0, 2)",
        ")",
    ]


def _parts(
    plan: AttentionPlan, name: str, rows: int, whole: Matrix, rest: Matrix | None, stages: int, first_row: str
) -> list[str]:
    """Return the partition of Q or K, or those of its two tensors, whose columns are next to each other in a stage."""
    own = without_rest(whole, rest)
    shared = own_name(name, rest)
    of_own = partition(name, own, (rows, own.columns), first_row=first_row, shared=shared)
    if rest is None:
        return of_own
    lines = parts_of_stages(name, shared, rows, whole, rest, stages)
    return [*lines, *of_own, *partition(f"{name}_rest", rest, (rows, rest.columns), first_row=first_row)]


def _load_blocks(plan: AttentionPlan) -> list[str]:
    policy = READ_ONCE if _reads_once(plan) else ()
    return [*policy, *([] if plan.problem.spans_keys else _blocks(plan))]


def _reads_once(plan: ScorePlan) -> bool:
    """Return whether L2 drops lines of K and V first: on Hopper, if they are read once."""
    return type(plan) is AttentionPlan and plan.reads_once


def _blocks(plan: AttentionPlan, first_row: str = "") -> list[str]:
    problem = plan.problem
    of_keys = (
        quads.partition(plan)
        if plan.takes_quads
        else _parts(plan, "k", plan.keys, problem.k, problem.k_rest, plan.stages, first_row)
    )
    if problem.latent:
        return of_keys
    return [
        *of_keys,
        *vectors.partition(plan),
        *partition("v", problem.v, (problem.v.columns, plan.keys), transposed=True, first_row=first_row),
    ]


def _spanned_blocks(plan: ScorePlan, partitions: Callable[[Any, str], list[str]] = _blocks) -> list[str]:
    """Return the partitions of a tile's span of streamed rows, which are counted back from the end of the span."""
    end = f"{spans.plus_origin(plan)}limit"
    return [
        *(f"end_of_{name} = {spans.end_of(plan, matrix, end)}" for name, matrix in plan.problem.blocks.items()),
        f"first_row = {spans.first_row('limit')}",
        *partitions(plan, "first_row"),
    ]


def _load_rows(plan: AttentionPlan) -> list[str]:
    return [] if plan.problem.spans_queries else _rows(plan)


def _rows(plan: AttentionPlan, first_row: str = "") -> list[str]:
    stages = plan.groups * plan.row_buffers
    return _parts(plan, "q", plan.group_rows, plan.problem.q, plan.problem.q_rest, stages, first_row)


def _spanned_rows(plan: AttentionPlan) -> list[str]:
    """Return the partition of a head's span of Q."""
    return [
        *spans.of_queries(plan),
        f"first_row = {spans.first_row('query_limit')}",
        *_rows(plan, "first_row"),
    ]


def stored_rows(plan: AttentionPlan, first_row: str = "") -> list[str]:
    """Return the partition of the output for its TMA stores."""
    columns = "None" if plan.problem.latent else "0"
    modes = len(plan.problem.matrix.matrix.modes)
    return spans.stored("o", "shared_o", (plan.group_rows, plan.output_columns), columns, modes, first_row)


def _registers_of_rows(plan: AttentionPlan) -> list[str]:
    """Return the registers of a thread's two rows: maxima, sums, and the factors of the accumulator."""
    sizes = {"highest": 2, "total": 2, "factors": 3 if plan.lazy else 2}
    if not plan.problem.softmax:
        sizes = {"total": 2} if plan.problem.needs_total else {}
    return [f"{name} = cute.make_rmem_tensor({size}, cutlass.Float32)" for name, size in sizes.items()]


def _attend(plan: AttentionPlan) -> list[str]:
    """Return the registers and views of a consumer thread.

    Element ``e`` of its scores is in row ``e // 2 % 2`` of two rows, 8 rows distant, and in column ``e // 4 * 8 + e % 2``
    from its first. Operand A of the second MMA has its elements in the same order, but for those of 8 bits
    (``round_weights``).
    """
    problem, columns = plan.problem, plan.output_columns
    stored, pair, k = dsl(problem.matrix.dtype), QUAD if plan.takes_quads else 2, DTYPES[problem.q.dtype].mma_k
    return [
        "consumer_thread = thread - 128",
        "group = cute.arch.make_warp_uniform(consumer_thread // 128)",
        "group_thread = consumer_thread % 128",
        "group_warp = cute.arch.make_warp_uniform(group_thread // 32)",
        "mma_of_scores = score_mma()",
        "mma_of_output = output_mma()",
        f"scores = cute.make_rmem_tensor(mma_of_scores.partition_shape_C((64, {plan.keys})), cutlass.Float32)",
        f"output = cute.make_rmem_tensor(mma_of_output.partition_shape_C((64, {columns})), cutlass.Float32)",
        *(["product = cute.make_rmem_tensor(output.shape, cutlass.Float32)"] if plan.adds_products else []),
        f"rounded_weights = cute.make_rmem_tensor(scores.shape, {dsl(problem.q.dtype)})",
        *_registers_of_rows(plan),
        *spans.registers(plan),
        *(["peaks = cute.make_rmem_tensor(2, cutlass.Float32)"] if plan.restores_maxima else []),
        *vectors.registers(plan),
        "fragment_q = mma_of_scores.make_fragment_A(mma_of_scores.get_slice(0).partition_A(shared_q))",
        "fragment_k = mma_of_scores.make_fragment_B(mma_of_scores.get_slice(0).partition_B(shared_k))",
        *(values_in_keys(plan) if problem.latent else []),
        "fragment_v = mma_of_output.make_fragment_B(mma_of_output.get_slice(0).partition_B(shared_v))",
        f"weights = cute.make_tensor(rounded_weights.iterator, cute.make_layout((({pair}, 2, 2), 1, {plan.keys // k})))",
        "stage_copy = cute.make_tiled_copy_C(",
        f"    cute.make_copy_atom({_STORES.get(problem.matrix.dtype, _STORE_MATRIX)}, {stored}), mma_of_output",
        ")",
        f"rounded_output = cute.make_rmem_tensor(output.shape, {stored})",
        "stage_part = stage_copy.get_slice(group_thread).partition_D(shared_o)",
        "stage_registers = stage_copy.retile(rounded_output)",
        *([] if problem.spans_queries else stored_rows(plan)),
    ]


_STORE_MATRIX = "warp_level.StMatrix8x8x16bOp(False, 4)"
_STORES = {"float32": "cute.nvgpu.CopyUniversalOp()"}
"""Copies of outputs to shared memory, by their type."""
_SETUPS: Mapping[str, Callable[[AttentionPlan], list[str]]] = {
    "load_blocks": _load_blocks,
    "load_rows": _load_rows,
    "attend": _attend,
}


# Control ---------------------------------------------------------------------------------------------------------------


@_rule(a.WorkLoop)
def _(out: Writer, program: ScoreProgram, step: a.WorkLoop) -> None:
    plan = program.plan
    out.lines([FIRST_WORK] if type(program) in OWN_WORK else [])
    out.lines(("visited = cutlass.Int32(0)", "work = cutlass.Int32(first_work)"))
    with out.block(f"while work < {numbers.pieces(plan)}:"):
        sizes = numbers.parameters(plan)
        item = "work" if plan.splits == 1 else f"work // {plan.splits}"
        out.lines((f"tile_m, head = place({', '.join([item, *sizes])})", *coordinates(plan)))
        loads, computes = _has(step.body, a.LoadBlock), _has(step.body, a.BlockLoop)
        own = OWN_QUERIES.get(type(program))
        if computes and own is None:  # before the bounds of the tile, whose loads these overlap with
            out.lines(_first_query(plan))
        if (
            loads or computes or _has(step.body, a.LoadLoop) or not plan.is_limited
        ):  # other roles need no blocks, nor the loads of their bounds
            out.lines(spans.of_tile(plan))
            out.line(f"begin, end, whole, edge = blocks_of({', '.join(['tile_m', *spans.names(plan), *sizes])})")
            out.lines(splits.part_of_keys(plan) if isinstance(plan, AttentionPlan) and plan.splits > 1 else ())
        if computes:
            lengths = [] if _has(step.body, a.BlockLoop, "any") else part_lengths(plan)
            out.lines([*lengths, *(own(plan) if own is not None else [])])
            out.lines(OWN_TILES[type(program)](plan) if type(program) in OWN_TILES else ())
        if isinstance(plan, AttentionPlan) and plan.problem.spans_queries:
            if _has(step.body, a.StoreOutput):
                out.lines(stored_rows(plan, spans.first_row("query_limit")))
            elif _has(step.body, a.LoadRows):
                out.lines(_spanned_rows(plan))
        if loads:
            blocks = OWN_BLOCKS.get(type(program), _blocks)
            out.lines(_spanned_blocks(plan, blocks) if plan.problem.spans_keys else ())
        if any(isinstance(each, a.LoadBlock) for each in step.body):  # else the loop around begins with that block
            out.line("block = end - 1")
        print_steps(out, program, step.body)
        out.line("visited += 1")


def _first_query(plan: ScorePlan) -> list[str]:
    of_group = "" if plan.column_groups > 1 else "group * 64 + "
    first = f"first_query = tile_m * {plan.rows} + {of_group}group_warp * 16 + lane // 4"
    return [first, *spans.of_rows(plan)]


def _has(steps: Sequence[g.Step], kind: type[g.Step], part: str = "") -> bool:
    return any(
        (isinstance(each, kind) and part in ("", getattr(each, "part", "")))
        or _has(getattr(each, "body", ()), kind, part)
        for each in steps
    )


@_rule(a.BlockLoop)
def _(out: Writer, program: ScoreProgram, step: a.BlockLoop) -> None:
    length = "end - 1 - begin" if step.part == "any" else f"{step.part}_blocks"
    with out.block(f"for at in cutlass.range({length}, unroll=1):"):
        out.line(f"block = {block_index(program.plan, step.part)}")
        print_steps(out, program, step.body)


@_rule(a.SideLoop)
def _(out: Writer, program: ScoreProgram, step: a.SideLoop) -> None:
    with out.block("for side in cutlass.range(2, unroll=1):"):
        out.lines(side_lengths())
        print_steps(out, program, step.body)


@_rule(a.LoadLoop)
def _(out: Writer, program: ScoreProgram, step: a.LoadLoop) -> None:
    with out.block("for at in cutlass.range(end - 1 - begin, unroll=1):"):
        out.line("block = end - 2 - at")
        print_steps(out, program, step.body)
    out.line("block = begin")


RULES[a.GroupLoop] = lambda out, program, step: _group_loop(out, program, step)


def _group_loop(out: Writer, program: ScoreProgram, step: g.Step) -> None:
    assert isinstance(step, a.GroupLoop)
    with out.block(f"for group in cutlass.range_constexpr({program.plan.groups}):"):
        print_steps(out, program, step.body)


RULES[a.FirstWarp] = _block("if group_warp == 0:", lambda out, program, step: ())


# Pipelines -------------------------------------------------------------------------------------------------------------


@_rule(g.Cursor)
def _(out: Writer, program: ScoreProgram, step: g.Cursor) -> None:
    stages = next(each.counts.stages for each in program.pipelines if each.name == step.pipeline)
    out.line(
        f"{step.name} = pipeline.make_pipeline_state(pipeline.PipelineUserType.{step.side.capitalize()}, {stages})"
    )


def _pipeline_of(cursor: str) -> str:
    return cursor.partition("_")[0]


@_rule(g.Acquire)
def _(out: Writer, program: ScoreProgram, step: g.Acquire) -> None:
    rows = rows_pipeline(program)
    if _pipeline_of(step.cursor) == rows.name:
        out.line(_wait_for_rows(program))
        with out.block("with cute.arch.elect_one():"):
            out.line(
                f"cute.arch.mbarrier_arrive_and_expect_tx({rows.barriers} + {_stage_of_rows(program)}, {rows.counts.transaction_bytes})"
            )
        return
    out.line(f"{_pipeline_of(step.cursor)}.producer_acquire({step.cursor})")


def rows_pipeline(program: ScoreProgram) -> g.Pipeline:
    """Return the pipeline of the tile's rows, which has a stage for each group."""
    return next(each for each in program.pipelines if each.kind == "tma_rows")


def _stage_of_rows(program: ScoreProgram, ahead: int = 0) -> str:
    """Return the stage of a consumer group's rows, in a tile that is ``ahead`` of the current one."""
    plan, visited = program.plan, f"(visited + {ahead})" if ahead else "visited"
    group = "group" if plan.column_groups == 1 else "0"
    return group if plan.row_buffers == 1 else f"({visited} & 1) * {plan.groups} + {group}"


def _parity_of_rows(program: ScoreProgram, ahead: int = 0) -> str:
    """Return the parity of the phase in which the stage is filled."""
    visited = f"(visited + {ahead})" if ahead else "visited"
    return f"({visited} >> 1) & 1" if program.plan.row_buffers > 1 else f"{visited} & 1"


def _wait_for_rows(program: ScoreProgram, ahead: int = 0) -> str:
    """Return the wait until the group's stage is empty."""
    rows = rows_pipeline(program)
    stage, parity = _stage_of_rows(program, ahead), _parity_of_rows(program, ahead)
    return f"cute.arch.mbarrier_wait({rows.barriers} + {rows.counts.stages} + {stage}, ({parity}) ^ 1)"


@_rule(g.Commit)
def _(out: Writer, program: ScoreProgram, step: g.Commit) -> None:
    out.line(f"{_pipeline_of(step.cursor)}.producer_commit({step.cursor})")


@_rule(g.Wait)
def _(out: Writer, program: ScoreProgram, step: g.Wait) -> None:
    rows = rows_pipeline(program)
    if _pipeline_of(step.cursor) == rows.name:
        out.line(f"cute.arch.mbarrier_wait({rows.barriers} + {_stage_of_rows(program)}, {_parity_of_rows(program)})")
        return
    out.line(f"{_pipeline_of(step.cursor)}.consumer_wait({step.cursor})")


@_rule(g.Release)
def _(out: Writer, program: ScoreProgram, step: g.Release) -> None:
    rows = rows_pipeline(program)
    if _pipeline_of(step.cursor) == rows.name:
        with out.block("with cute.arch.elect_one():"):
            out.line(f"cute.arch.mbarrier_arrive({rows.barriers} + {rows.counts.stages} + {_stage_of_rows(program)})")
        return
    out.line(f"{_pipeline_of(step.cursor)}.consumer_release({step.cursor})")


@_rule(g.Advance)
def _(out: Writer, program: ScoreProgram, step: g.Advance) -> None:
    out.line(f"{step.cursor}.advance()")


@_rule(g.Tail)
def _(out: Writer, program: ScoreProgram, step: g.Tail) -> None:
    rows = rows_pipeline(program)
    if _pipeline_of(step.cursor) == rows.name:
        with out.block(f"for group in cutlass.range_constexpr({program.plan.groups}):"):
            out.lines(_wait_for_rows(program, ahead) for ahead in range(program.plan.row_buffers))
        return
    out.line(f"{_pipeline_of(step.cursor)}.producer_tail({step.cursor})")


# Data ------------------------------------------------------------------------------------------------------------------


@_rule(a.LoadRows)
def _(out: Writer, program: AttentionProgram, step: a.LoadRows) -> None:
    plan = program.plan
    rest = {} if plan.problem.q_rest is None else {"q_rest": plan.problem.q_rest}
    for name, matrix in {"q": plan.problem.q, **rest}.items():
        source = indexed(plan, matrix, f"tile_m * {plan.groups} + group", _end_of_queries(plan, matrix))
        stage = _stage_of_rows(program)
        out.line(
            f"cute.copy(tma_{name}, from_{name}[{source}], to_{name}[None, {stage}], tma_bar_ptr=q_barriers + {stage})"
        )


def _end_of_queries(plan: AttentionPlan, matrix: Matrix) -> str:
    """Return the row after the span of queries in a matrix, or nothing if these are all rows."""
    return spans.end_of(plan, matrix, "query_limit") if plan.problem.spans_queries else ""


@_rule(a.LoadBlock)
def _(out: Writer, program: ScoreProgram, step: a.LoadBlock) -> None:
    for name in (each for each in (step.operand, f"{step.operand}_rest") if each in program.plan.problem.blocks):
        _load_block(out, program, step, name)


def _load_block(out: Writer, program: ScoreProgram, step: a.LoadBlock, name: str) -> None:
    """Print the copy of a block of the matrix ``name`` to the current stage of the step's operand."""
    plan = program.plan
    span = f"end_of_{name}" if isinstance(plan, AttentionPlan) and plan.problem.spans_keys else ""
    matrix, block = plan.problem.blocks[name], "block + 1" if step.behind else "block"
    if matrix.pages is not None:
        out.line(f"page_of_{name} = {spans.row_of_page(plan, matrix, f'({block})')}")
        span = f"page_of_{name} + {span}"
    source = indexed(plan, matrix, block, span)
    policy = ", cache_policy=read_once" if _reads_once(plan) else ""
    in_quads = name == "k" and isinstance(plan, AttentionPlan) and plan.takes_quads
    for part, to in quads.halves(source) if in_quads else [(source, f"to_{name}")]:
        out.line(
            f"cute.copy(tma_{name}, from_{name}[{part}], {to}[None, {step.cursor}.index],"
            f" tma_bar_ptr={step.operand}.producer_get_barrier({step.cursor}){policy})"
        )


RULES[a.LoadBias] = lambda out, program, step: out.lines(vectors.load(program.plan, step.cursor))
RULES[a.ReadBias] = lambda out, program, step: out.lines(vectors.read_bias(program.plan, step.cursor))
RULES[g.WgmmaFence] = _text("warpgroup.fence()")
RULES[g.WgmmaCommit] = _text("warpgroup.commit_group()")
RULES[g.FenceShared] = _text('cute.arch.fence_proxy("async.shared", space="cta")')
RULES[a.ClearOutput] = _text("output.fill(0.0)")
RULES[a.AddProduct] = _text("add_product(output, product)")
RULES[a.RoundWeights] = _text("round_weights(scores, rounded_weights)")
RULES[a.JoinTotals] = _text("join_totals(total)")
RULES[a.RestoreMaxima] = _text("restore_maxima(output, highest, total, peaks)")
RULES[a.GroupSync] = _text("cute.arch.barrier(barrier_id=1 + group, number_of_threads=128)")
RULES[a.WriteOutput] = lambda out, program, step: out.lines(splits.write(program.plan))


@_rule(g.WgmmaWait)
def _(out: Writer, program: ScoreProgram, step: g.WgmmaWait) -> None:
    out.line(f"warpgroup.wait_group({step.pending})")


@_rule(g.StoreWait)
def _(out: Writer, program: ScoreProgram, step: g.StoreWait) -> None:
    out.line(f"cute.arch.cp_async_bulk_wait_group({step.pending}, read=True)")


@_rule(a.TransformQueries)
def _(out: Writer, program: AttentionProgram, step: a.TransformQueries) -> None:
    latent = program.plan.problem.latent
    given = ["shared_q", _stage_of_rows(program), "consumer_thread" if latent else "group_thread"]
    given += arguments_of(program.plan.problem.query)
    out.line(f"transform_queries({', '.join(given)})")


@_rule(a.ScoreMma)
def _(out: Writer, program: ScoreProgram, step: a.ScoreMma) -> None:
    out.line(f"multiply_scores(scores, fragment_q, fragment_k, {_stage_of_rows(program)}, {step.cursor}.index)")


@_rule(a.OutputMma)
def _(out: Writer, program: AttentionProgram, step: a.OutputMma) -> None:
    part = "group, " if program.plan.problem.latent else ""
    to = "product" if program.plan.adds_products else "output"
    out.line(f"multiply_output({to}, weights, fragment_v, {part}{step.cursor}.index)")


@_rule(a.RowsSync)
def _(out: Writer, program: ScoreProgram, step: a.RowsSync) -> None:
    groups = program.plan.consumer_groups
    out.line(f"cute.arch.barrier(barrier_id={1 + groups}, number_of_threads={128 * groups})")


@_rule(a.TakeTurn)
def _(out: Writer, program: ScoreProgram, step: a.TakeTurn) -> None:
    _turn(out, "group == 0" if step.last else "", f"barrier(barrier_id={1 + program.plan.groups} + group")


@_rule(a.PassTurn)
def _(out: Writer, program: ScoreProgram, step: a.PassTurn) -> None:
    groups = program.plan.groups
    if step.first:
        _turn(out, f"group == {groups - 1}", f"barrier_arrive(barrier_id={1 + groups}")
        return
    following = f"cutlass.select_(group == {groups - 1}, cutlass.Int32(0), group + 1)"
    _turn(out, "", f"barrier_arrive(barrier_id={1 + groups} + {following}")


def _turn(out: Writer, predicate: str, call: str) -> None:
    line = f"cute.arch.{call}, number_of_threads=256)"
    if not predicate:
        out.line(line)
        return
    with out.block(f"if {predicate}:"):
        out.line(line)


@_rule(a.Softmax)
def _(out: Writer, program: AttentionProgram, step: a.Softmax) -> None:
    axes = head_axes(program.plan.problem)
    out.lines(softmax_call(program.plan, step.masked, step.first, axes, bounded(program.plan) if step.any else ""))


@_rule(a.Rescale)
def _(out: Writer, program: ScoreProgram, step: a.Rescale) -> None:
    out.line("rescale(output, factors)")


@_rule(a.Finish)
def _(out: Writer, program: AttentionProgram, step: a.Finish) -> None:
    out.lines(finish_call(program.plan, head_axes(program.plan.problem)))


@_rule(a.StoreOutput)
def _(out: Writer, program: AttentionProgram, step: a.StoreOutput) -> None:
    plan = program.plan
    output = plan.problem.matrix.matrix
    block = "tile_m, group" if plan.problem.latent else f"tile_m * {plan.groups} + group"
    target = indexed(plan, output, block, _end_of_queries(plan, output))
    out.line(f"cute.copy(tma_o, from_o[None, group], to_o[{target}])")
    out.line("cute.arch.cp_async_bulk_commit_group()")


# Split keys ------------------------------------------------------------------------------------------------------------

RULES[g.WorkspaceRelease] = _text("cute.arch.fence_acq_rel_gpu()")
RULES[g.WorkspaceAcquire] = _text("cute.arch.fence_acq_rel_gpu()")
RULES[g.StorePartials] = lambda out, program, step: out.lines(splits.put(program.plan))
RULES[g.IncrementTileCounter] = lambda out, program, step: out.lines(splits.count(program.plan))
RULES[g.ResetTileCounter] = lambda out, program, step: out.lines(splits.reset(program.plan))
RULES[a.CombinePartials] = lambda out, program, step: out.lines(splits.combine(program.plan))
RULES[a.AwaitPartials] = lambda out, program, step: out.lines(splits.wait(program.plan))
RULES[a.StoreColumns] = lambda out, program, step: out.lines(splits.store(program.plan))


@_rule(a.CombiningSplit)
def _(out: Writer, program: AttentionProgram, step: a.CombiningSplit) -> None:
    with out.block(f"if split < {program.plan.combining}:"):
        print_steps(out, program, step.body)


@_rule(a.LastSplit)
def _(out: Writer, program: ScoreProgram, step: a.LastSplit) -> None:
    with out.block(f"if shared_counts[group] == {program.plan.splits - 1}:"):
        print_steps(out, program, step.body)


# Scheduler -------------------------------------------------------------------------------------------------------------

RULES[a.TakeTicket] = lambda out, program, step: take_ticket(out)
RULES[a.HandOut] = lambda out, program, step: hand_out(out, program.plan)
RULES[a.NextTile] = lambda out, program, step: next_tile(out, program.plan)
