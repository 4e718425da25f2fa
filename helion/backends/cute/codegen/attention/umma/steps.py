"""The printing rules of attention on tcgen05, where they differ from those of wgmma."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from ....plan.attention.umma import MESSAGE_VALUES, UMMA_ROWS, UmmaPlan, allocated_columns
from ....roles import grammar as g
from ....roles.attention import grammar as a
from ....roles.attention import umma as u
from ....roles.attention.grammar import rule_of
from ....roles.attention.umma import UmmaProgram
from ...setups import dsl
from ...writer import Writer
from .. import spans, steps
from ..formula import arguments_of, head_axes
from ..steps import WORK_STEP, print_steps, stored_rows
from . import splits
from .finish import chunk_of, finish_lines
from .softmax import chunk_of_weights, dropped_lines, maxima_call, stored_lines, weights_lines
from .views import accumulators, copy_of, tile

RULES: dict[type[g.Step], Callable[..., None]] = {}

_rule = functools.partial(rule_of, RULES)


def _text(*lines: str) -> Callable[..., None]:
    return lambda out, program, step: out.lines(lines)


# Set-up ----------------------------------------------------------------------------------------------------------------


@_rule(g.SetUp)
def _(out: Writer, program: UmmaProgram, step: g.SetUp) -> None:
    setup = _SETUPS.get(step.name)
    if setup is None:
        steps.RULES[g.SetUp](out, program, step)
        return
    out.lines(setup(program.plan))


def _multiply(plan: UmmaPlan) -> list[str]:
    """Return the views of the MMA warp. Shared memory has the layouts of TMA, which those of MMAs equal to the byte."""
    problem = plan.problem
    dtype, columns, groups = dsl(problem.q.dtype), problem.v.columns, plan.groups
    scores, output = f"(128, {plan.keys}, {problem.q.columns})", f"(128, {columns}, {plan.keys})"
    layouts = {
        "q": ("a", "mma_of_scores", scores, groups),
        "k": ("b", "mma_of_scores", scores, plan.stages),
        "v": ("b", "mma_of_output", output, plan.stages),
    }
    lines = [
        "mma_of_scores, mma_of_output = score_mma(), output_mma()",
        accumulators("scores", "mma_of_scores", "", plan.keys, groups),
        accumulators("outputs", "mma_of_output", f" + {plan.score_columns}", columns, groups),
        f"layout_of_weights = mma_of_output.make_fragment_A(mma_of_output.partition_shape_A((128, {plan.keys}))).layout",
        "weights = cute.make_tensor(",
        f"    cute.recast_ptr(sums_pointer, dtype={dtype}),",
        f"    cute.append(layout_of_weights, cute.make_layout({groups}, stride={32 // _bits(plan) * plan.keys})),",
        ")",
    ]
    for name, (side, mma, shape, stages) in layouts.items():
        layout = f"blackwell.make_smem_layout_{side}({mma}, {shape}, {dtype}, {stages}).outer"
        lines.append(
            f"fragment_{name} = {mma}.make_fragment_{side.upper()}(cute.make_tensor(shared_{name}.iterator, {layout}))"
        )
    return lines


def _bits(plan: UmmaPlan) -> int:
    return 8 * plan.operand_bytes


def _tiles(name: str, place: int, columns: int, groups: int) -> list[str]:
    """Return the view of the columns of all groups, by lane, column and group."""
    return [
        f"{name} = cute.make_tensor(",
        f"    sums_pointer + {place}, cute.make_layout((128, {columns}, {groups}), stride=(65536, 1, {columns}))",
        ")",
    ]


def _softmax(plan: UmmaPlan) -> list[str]:
    """Return the registers and views of a thread: its row of scores, which it loads, and of weights, which it stores."""
    packed, chunk = plan.keys * _bits(plan) // 32, chunk_of_weights(plan)
    names = ["highest", "total", "factors", "shifts", *(["peaks"] if plan.restores_maxima else [])]
    if not plan.problem.softmax:
        names = ["total"] if plan.problem.needs_total else []
    return [
        "group = cute.arch.make_warp_uniform(thread // 128)",
        "group_thread = thread % 128",
        tile("scores_tile", f"group * {plan.keys}", plan.keys),
        *copy_of("score_reads", "Ld32x32bOp", chunk_of(plan.keys), "scores_tile"),
        "score_parts = score_reads.get_slice(group_thread).partition_S(scores_tile)",
        tile("weights_tile", f"group * {plan.keys}", packed),
        *copy_of("weight_writes", "St32x32bOp", chunk, "weights_tile"),
        "weight_parts = weight_writes.get_slice(group_thread).partition_D(weights_tile)",
        f"scores = cute.make_rmem_tensor({_registers(plan.keys)}, cutlass.Float32)",
        f"rounded_weights = cute.make_rmem_tensor((({chunk}, 1), 1, {packed // chunk}), cutlass.Float32)",
        "packed = cute.recast_tensor(rounded_weights, cutlass.Int32)",
        *(f"{name} = cute.make_rmem_tensor(1, cutlass.Float32)" for name in names),
    ]


def _registers(columns: int) -> str:
    """Return the shape of a row in registers: that of its parts in tensor memory."""
    chunk = chunk_of(columns)
    return f"(({chunk}, 1), 1, {columns // chunk})"


def _correct(plan: UmmaPlan) -> list[str]:
    """Return the registers and views of a correcting thread, which has a row of each group."""
    columns = plan.problem.v.columns
    chunk = chunk_of(columns)
    lines = [f"correction_thread = thread - {32 * plan.softmax_warps}", "group_warp = correction_thread // 32"]
    lines += _tiles("outputs", plan.score_columns, columns, plan.groups)
    lines += copy_of("output_reads", "Ld32x32bOp", chunk, "outputs[None, None, 0]")
    lines += copy_of("output_writes", "St32x32bOp", chunk, "outputs[None, None, 0]")
    return [
        *lines,
        "from_parts = output_reads.get_slice(correction_thread).partition_S(outputs)",
        "to_parts = output_writes.get_slice(correction_thread).partition_D(outputs)",
        f"values = cute.make_rmem_tensor((({chunk}, 1), 1), cutlass.Float32)",
        f"message = cute.make_rmem_tensor({MESSAGE_VALUES}, cutlass.Float32)",
        *([] if plan.problem.spans_queries else stored_rows(plan)),
    ]


_SETUPS: Mapping[str, Callable[[UmmaPlan], list[str]]] = {
    "multiply": _multiply,
    "softmax": _softmax,
    "correct": _correct,
}


@_rule(g.AllocateSums)
def _(out: Writer, program: UmmaProgram, step: g.AllocateSums) -> None:
    out.line(f"tensor_memory.allocate({allocated_columns(program.plan)})")


@_rule(g.FreeSums)
def _(out: Writer, program: UmmaProgram, step: g.FreeSums) -> None:
    out.line("tensor_memory.relinquish_alloc_permit()")
    out.line(f"tensor_memory.free(sums_pointer, {allocated_columns(program.plan)})")


RULES[g.FindSums] = _text(
    "tensor_memory.wait_for_alloc()", "sums_pointer = tensor_memory.retrieve_ptr(cutlass.Float32)"
)


@_rule(g.BarrierSync)
def _(out: Writer, program: UmmaProgram, step: g.BarrierSync) -> None:
    barrier = next(each for each in program.barriers if each.name == step.barrier)
    out.line(f"cute.arch.barrier(barrier_id={barrier.number}, number_of_threads={barrier.threads})")


@_rule(u.LastGroup)
def _(out: Writer, program: UmmaProgram, step: u.LastGroup) -> None:
    with out.block(f"if group == {program.plan.groups - 1}:"):
        print_steps(out, program, step.body)


@_rule(a.GroupLoop)
def _(out: Writer, program: UmmaProgram, step: a.GroupLoop) -> None:
    """Print the loop without unrolling, which keeps the addresses of one group in registers."""
    with out.block(f"for group in cutlass.range({program.plan.groups}, unroll=1):"):
        print_steps(out, program, step.body)


RULES[a.NextTile] = _text(WORK_STEP, "work += work_step")


# Pipelines -------------------------------------------------------------------------------------------------------------


def _of_groups(program: UmmaProgram, cursor: str) -> g.Pipeline | None:
    """Return the pipeline of a cursor if it has a stage for each group."""
    name = cursor.partition("_")[0]
    return next((each for each in program.pipelines if each.name == name and each.kind == "of_groups"), None)


def _full(pipeline: g.Pipeline) -> str:
    return f"{pipeline.barriers} + group"


def _empty(pipeline: g.Pipeline) -> str:
    return f"{pipeline.barriers} + {pipeline.counts.stages} + group"


def _own(kind: type[g.Step], print_own: Callable[[Writer, g.Pipeline, str], None]) -> None:
    """Register a rule for pipelines with a stage for each group; others have that of wgmma."""

    def rule(out: Writer, program: UmmaProgram, step: g.Step) -> None:
        cursor: str = step.cursor if not isinstance(step, g.Cursor) else step.name  # type: ignore[attr-defined]
        pipeline = _of_groups(program, cursor)
        if pipeline is None:
            steps.RULES[kind](out, program, step)
        else:
            print_own(out, pipeline, cursor)

    RULES[kind] = rule


def _arrive(out: Writer, barrier: str) -> None:
    out.line("cute.arch.sync_warp()")
    with out.block("with cute.arch.elect_one():"):
        out.line(f"cute.arch.mbarrier_arrive({barrier})")


_own(g.Acquire, lambda out, pipeline, cursor: out.line(f"cute.arch.mbarrier_wait({_empty(pipeline)}, {cursor})"))
_own(g.Wait, lambda out, pipeline, cursor: out.line(f"cute.arch.mbarrier_wait({_full(pipeline)}, {cursor})"))
_own(g.Commit, lambda out, pipeline, cursor: _arrive(out, _full(pipeline)))
_own(g.Release, lambda out, pipeline, cursor: _arrive(out, _empty(pipeline)))
_own(g.Advance, lambda out, pipeline, cursor: out.line(f"{cursor} = {cursor} ^ 1"))
_own(
    g.Cursor,
    lambda out, pipeline, cursor: out.line(f"{cursor} = cutlass.Int32({1 if cursor.endswith('_fill') else 0})"),
)


@_rule(u.CommitMma)
def _(out: Writer, program: UmmaProgram, step: u.CommitMma) -> None:
    name, _, side = step.cursor.partition("_")
    pipeline = next(each for each in program.pipelines if each.name == name)
    with out.block("with cute.arch.elect_one():"):
        out.line(f"tcgen05.commit({_full(pipeline) if side == 'fill' else _empty(pipeline)})")


@_rule(u.TensorFence)
def _(out: Writer, program: UmmaProgram, step: u.TensorFence) -> None:
    out.line("fence_after()" if step.after else "fence_before()")


# Data ------------------------------------------------------------------------------------------------------------------


@_rule(a.ScoreMma)
def _(out: Writer, program: UmmaProgram, step: a.ScoreMma) -> None:
    out.line(f"multiply_scores(scores, fragment_q, fragment_k, group, {step.cursor}.index)")


@_rule(u.OutputOfBlock)
def _(out: Writer, program: UmmaProgram, step: u.OutputOfBlock) -> None:
    adds = f"{'block + 1' if step.behind else 'block'} != end - 1"
    out.line(f"multiply_output(outputs, weights, fragment_v, group, {step.cursor}.index, {adds})")


RULES[u.ReadScores] = _text("cute.copy(score_reads, score_parts, scores)", "cute.arch.fence_view_async_tmem_load()")


@_rule(u.WriteWeights)
def _(out: Writer, program: UmmaProgram, step: u.WriteWeights) -> None:
    out.lines(stored_lines(program.plan))
    out.line("cute.arch.fence_view_async_tmem_store()")


@_rule(a.TransformQueries)
def _(out: Writer, program: UmmaProgram, step: a.TransformQueries) -> None:
    given = ["shared_q", "group", "correction_thread", *arguments_of(program.plan.problem.query)]
    out.line(f"transform_queries({', '.join(given)})")


@_rule(u.Maxima)
def _(out: Writer, program: UmmaProgram, step: u.Maxima) -> None:
    out.lines(maxima_call(program.plan, step.masked, step.first, head_axes(program.plan.problem)))


@_rule(u.Exponentials)
def _(out: Writer, program: UmmaProgram, step: u.Exponentials) -> None:
    out.lines(weights_lines(program.plan, step.masked))


@_rule(u.DropWeights)
def _(out: Writer, program: UmmaProgram, step: u.DropWeights) -> None:
    out.lines(dropped_lines(program.plan, step.first, head_axes(program.plan.problem)))


@_rule(u.AddWeights)
def _(out: Writer, program: UmmaProgram, step: u.AddWeights) -> None:
    factors = ", factors" if program.plan.problem.softmax else ""
    out.line(f"add_weights(scores, total{factors}, first={step.first})")


def _message(number: int, thread: str) -> str:
    return f"shared_message[(group * {MESSAGE_VALUES} + {number}) * {UMMA_ROWS} + {thread}]"


RULES[u.WriteFactors] = _text(f"{_message(0, 'group_thread')} = factors[0]")


@_rule(u.WriteTotals)
def _(out: Writer, program: UmmaProgram, step: u.WriteTotals) -> None:
    problem = program.plan.problem
    values = [
        "total[0]" if problem.needs_total else "cutlass.Float32(0.0)",
        *(["highest[0]"] if problem.softmax else []),
    ]
    if program.plan.restores_maxima:
        out.line("restore_maximum(highest, total, peaks, factors)")
        values.append("factors[0]")
    out.lines(f"{_message(at, 'group_thread')} = {value}" for at, value in enumerate(values))


@_rule(u.ReadMessage)
def _(out: Writer, program: UmmaProgram, step: u.ReadMessage) -> None:
    softmax, restores = program.plan.problem.softmax, program.plan.restores_maxima
    values = 1 + (step.last and softmax) + (step.last and restores)
    out.lines(f"message[{at}] = {_message(at, 'correction_thread')}" for at in range(values))


RULES[a.Rescale] = _text(
    "rescale(output_reads, output_writes, from_parts[None, None, None, group], to_parts[None, None, None, group], values, message[0])"
)


RULES[g.StorePartials] = lambda out, program, step: out.lines(splits.put(program.plan))
RULES[a.CombinePartials] = lambda out, program, step: out.lines(splits.combine(program.plan))


@_rule(u.FinishRow)
def _(out: Writer, program: UmmaProgram, step: u.FinishRow) -> None:
    plan = program.plan
    out.line(f"query = tile_m * {plan.rows} + group * {UMMA_ROWS} + correction_thread")
    out.line("stage = shared_o[None, None, group]")
    out.lines(finish_lines(plan, head_axes(plan.problem)))


def _query(plan: UmmaPlan) -> list[str]:
    return [f"query = tile_m * {plan.rows} + group * {UMMA_ROWS} + group_thread", *spans.of_row(plan, "query")]


steps.OWN_RULES[UmmaProgram] = RULES
steps.OWN_QUERIES[UmmaProgram] = _query
steps.OWN_WORK.add(UmmaProgram)
