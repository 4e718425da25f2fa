"""The printing rules of the role programs of attention's gradients, where they differ from those of attention."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from ...plan.attention.backward import EXCHANGE_STAGES, VECTOR_STEP, BackwardPlan
from ...plan.attention.gradients import ATOMIC_COLUMNS, STREAMED
from ...plan.attention.numbers import text_of
from ...plan.attention.operands import Source
from ...plan.records import WARPGROUP_THREADS
from ...roles import grammar as g
from ...roles.attention import grammar as a
from ...roles.attention.grammar import BackwardProgram, rule_of
from ..writer import Writer
from . import numbers, spans, vectors
from .atomic import BOX, WARPS, clear_rows, sum_name
from .backward import finish_arguments, loaded_ahead, registers, seen_arguments, values_arguments, values_name
from .formula import arguments_of, head_axes
from .softmax import has_masks
from .steps import indexed, partition, print_steps, rows_pipeline

RULES: dict[type[g.Step], Callable[..., None]] = {}

_rule = functools.partial(rule_of, RULES)


# Set-up ----------------------------------------------------------------------------------------------------------------


@_rule(g.SetUp)
def _(out: Writer, program: BackwardProgram, step: g.SetUp) -> None:
    out.lines(_SETUPS[step.name](program.plan))


def _load_blocks(plan: BackwardPlan) -> list[str]:
    return [] if plan.problem.spans_keys else partitions(plan)


def partitions(plan: BackwardPlan, first_row: str = "") -> list[str]:
    """Return the partitions of streamed matrices, those of a span with rows from ``first_row`` on, and of the sources of their
    rows."""
    lines = []
    for name, matrix in plan.problem.blocks.items():
        lines += partition(name, matrix, (plan.keys, matrix.columns), first_row=first_row)
    for source in (source for sources in plan.staged.values() for source in sources):
        lines += [] if plan.moves_vectors else _vector_partition(plan, source, f"tensor_{source.label}")
    return lines


def _vector_partition(plan: BackwardPlan, source: Source, tensor: str) -> list[str]:
    name, modes = source.label, ", ".join(["None"] * (1 + len(source.modes)))
    return [
        f"tiles_{name} = cute.local_tile({tensor}, ({plan.vector_rows},), ({modes},))",
        f"to_{name}, from_{name} = cpasync.tma_partition(",
        f"    tma_{name}, 0, cute.make_layout(1), cute.group_modes(shared_{name}, 0, 1),"
        f" cute.group_modes(tiles_{name}, 0, 1)",
        ")",
    ]


def _load_rows(plan: BackwardPlan) -> list[str]:
    owned = enumerate(plan.problem.owned)
    return [line for at, matrix in owned for line in partition(f"own_{at}", matrix, (plan.group_rows, matrix.columns))]


def _multiply(plan: BackwardPlan) -> list[str]:
    return [*registers(plan), *stored_outputs(plan)]


def stored_outputs(plan: BackwardPlan) -> list[str]:
    """Return the partitions of all outputs for their TMA stores."""
    lines = []
    for at, gradient in enumerate(plan.problem.gradients):
        if gradient.wide is not None:
            continue
        matrix, shared = gradient.output.matrix, f"shared_own_{plan.problem.output_memory(at)}"
        modes = ", ".join(["None", "0", *("None" for _ in matrix.modes)])
        lines += [
            f"tiles_{at} = cute.local_tile(tensor_gradient_{at}, ({plan.group_rows}, {matrix.columns}), ({modes}))",
            f"from_{at}, to_{at} = cpasync.tma_partition(",
            f"    tma_gradient_{at}, 0, cute.make_layout(1), cute.group_modes({shared}, 0, 2),"
            f" cute.group_modes(tiles_{at}, 0, 2)",
            ")",
        ]
    return lines


_SETUPS: Mapping[str, Callable[[BackwardPlan], list[str]]] = {
    "load_blocks": _load_blocks,
    "load_rows": _load_rows,
    "multiply": _multiply,
}


# Control and loads -----------------------------------------------------------------------------------------------------


@_rule(a.RepeatLoop)
def _(out: Writer, program: BackwardProgram, step: a.RepeatLoop) -> None:
    problem = program.plan.problem
    if step.first:
        out.line("block = end - 1")
    repeats = numbers.less(text_of(problem.repeats), step.begin) if step.begin else text_of(problem.repeats)
    with out.block(f"for repeat in cutlass.range({repeats}, unroll=1):"):
        out.line(f"{head_axes(problem)[-1]} = repeat{f' + {step.begin}' if step.begin else ''}")
        print_steps(out, program, step.body)


@_rule(a.NextPass)
def _(out: Writer, program: BackwardProgram, step: a.NextPass) -> None:
    if program.plan.problem.is_repeated:
        out.line(f"{head_axes(program.plan.problem)[-1]} = cutlass.Int32(0)")
    elif step.loads:
        out.line("block = end - 1")


@_rule(a.LoadRows)
def _(out: Writer, program: BackwardProgram, step: a.LoadRows) -> None:
    plan, barriers = program.plan, rows_pipeline(program).barriers
    for at, matrix in enumerate(plan.problem.owned):
        source = indexed(plan, matrix, f"tile_m * {plan.groups} + group")
        out.line(
            f"cute.copy(tma_own_{at}, from_own_{at}[{source}], to_own_{at}[None, group], tma_bar_ptr={barriers} + group)"
        )


@_rule(a.LoadBlock)
def _(out: Writer, program: BackwardProgram, step: a.LoadBlock) -> None:
    """Print the load of a block, and of the sources of its rows."""
    plan, name = program.plan, step.operand
    stage = f"{step.cursor}.index], tma_bar_ptr={name}.producer_get_barrier({step.cursor}))"
    source = indexed(plan, plan.problem.blocks[name], "block", f"end_of_{name}" if plan.problem.spans_keys else "")
    out.line(f"cute.copy(tma_{name}, from_{name}[{source}], to_{name}[None, {stage}")
    for each in plan.staged[name]:
        block = "block"
        if plan.moves_vectors:  # rows before the block and after the span are masked
            begin, block = f"origin // {VECTOR_STEP} * {VECTOR_STEP} + block * {plan.keys}", "0"
            places = ", ".join([begin, *("0" for _ in each.modes)])
            out.lines(_vector_partition(plan, each, f"cute.domain_offset(({places},), tensor_{each.label})"))
        places = ", ".join(["None", block, *(mode.at.text(head_axes(plan.problem)) for mode in each.modes)])
        out.line(f"cute.copy(tma_{each.label}, from_{each.label}[{places}], to_{each.label}[None, {stage}")


# MMAs and left operands ------------------------------------------------------------------------------------------------


@_rule(a.ProductMma)
def _(out: Writer, program: BackwardProgram, step: a.ProductMma) -> None:
    at, name = step.product, STREAMED[step.product]
    steps = program.plan.problem.owned[at].columns // 16
    left, right = (
        f"fragment_own_{at}[None, None, None, group]",
        f"fragment_{name}[None, None, None, {step.cursor}.index]",
    )
    if at == 0 and loaded_ahead(program.plan):
        out.line(_first_key(program.plan, step.first))
        out.lines(vectors.load_ahead(each, head_axes(program.plan.problem)) for each in loaded_ahead(program.plan))
    out.line(f"multiply(product_mma(), product_{at}, {left}, {right}, {steps}, True)")


@_rule(a.GradientMma)
def _(out: Writer, program: BackwardProgram, step: a.GradientMma) -> None:
    at, right = step.gradient, f"right_{step.gradient}[None, None, None, {step.cursor}.index]"
    steps = program.plan.keys // 16
    out.line(f"multiply(gradient_mma_{at}(), gradient_{at}, operand_{at}, {right}, {steps}, {step.first})")


def _first_key(plan: BackwardPlan, first: bool) -> str:
    """Return the definition of the first column of a thread's elements."""
    return f"first_key = {spans.plus_origin(plan)}({'end - 1' if first else 'block'}) * {plan.keys} + lane % 4 * 2"


def _values(late: bool) -> Callable[..., None]:
    def rule(out: Writer, program: BackwardProgram, step: a.Weights | a.Differences) -> None:
        plan = program.plan
        masked = step.masked and has_masks(plan)
        out.line(_first_key(plan, step.first))
        if masked and plan.clears_rows and not late:
            out.lines([*spans.of_rows(plan), f"keep_seen({', '.join(seen_arguments(plan))})"])
        out.line(
            f"{values_name(late, step.only)}({', '.join(values_arguments(plan, late, step.only))}, {step.cursor}.index, {masked})"
        )

    return rule


RULES[a.Weights] = _values(late=False)
RULES[a.Differences] = _values(late=True)


_TILE_BITS = 30
"""Bits of the number of a tile. The others, which are 0, keep LLVM from holding addresses in registers over all blocks."""

# Outputs ---------------------------------------------------------------------------------------------------------------


@_rule(a.Finish)
def _(out: Writer, program: BackwardProgram, step: a.Finish) -> None:
    out.line(f"finish_{step.output}({', '.join(finish_arguments(program.plan, step.output))})")


@_rule(a.WriteOutput)
def _(out: Writer, program: BackwardProgram, step: a.WriteOutput) -> None:
    plan, at, part = program.plan, step.output, f"stage_part_{step.output}"
    if plan.problem.gradients[at].wide is not None:
        return  # threads have stored it
    if plan.clears_rows:
        part, shared = f"part_of_tile_{at}", f"shared_own_{plan.problem.output_memory(at)}"
        of_thread = f"stage_copy_{at}.get_slice(group_thread + (tile_m >> {_TILE_BITS}))"
        out.line(f"{part} = {of_thread}.partition_D({shared})")
    out.line(f"cute.copy(stage_copy_{at}, stage_registers_{at}, {part}[None, None, None, group])")


@_rule(a.StoreOutput)
def _(out: Writer, program: BackwardProgram, step: a.StoreOutput) -> None:
    plan, at = program.plan, step.output
    target = indexed(plan, plan.problem.gradients[at].output.matrix, f"tile_m * {plan.groups} + group")
    if plan.problem.gradients[at].wide is None:
        out.line(f"cute.copy(tma_gradient_{at}, from_{at}[None, group], to_{at}[{target}])")
    out.line("cute.arch.cp_async_bulk_commit_group()")


# Gradients of streamed rows ----------------------------------------------------------------------------------------------

assert EXCHANGE_STAGES == 2, "bit 0 of `exchanged` is the stage of a block, bit 1 the parity of its phase"
_WRITTEN, _FORMER, _FORMER_PHASE = "(exchanged & 1)", "((exchanged & 1) ^ 1)", "(((exchanged + 3) & 3) >> 1)"
_NEXT = "exchanged = (exchanged + 1) & 3"
"""The count wraps, so that LLVM does not make induction variables of all that depends on it."""


@_rule(a.AllRows)
def _(out: Writer, program: BackwardProgram, step: a.AllRows) -> None:
    for group in range(program.plan.groups):
        out.line(f"cute.arch.mbarrier_wait({rows_pipeline(program).barriers} + {group}, visited & 1)")


@_rule(a.ClearRows)
def _(out: Writer, program: BackwardProgram, step: a.ClearRows) -> None:
    out.lines(clear_rows(program.plan))


@_rule(a.WriteLeft)
def _(out: Writer, program: BackwardProgram, step: a.WriteLeft) -> None:
    groups, part = program.plan.groups, f"{_WRITTEN} * {program.plan.groups} + group"
    if not program.plan.turned:
        out.line(f"cute.copy(exchange_copy, exchange_registers, exchange_part[None, None, None, {part}])")
        return
    for at in range(groups):
        target = f"exchange_part[None, None, None, ({part}) * {groups} + {at}]"
        out.line(f"cute.copy(exchange_copy, exchange_registers[{at}], {target})")


@_rule(a.PublishLeft)
def _(out: Writer, program: BackwardProgram, step: a.PublishLeft) -> None:
    with out.block("with cute.arch.elect_one():"):
        out.line(f"cute.arch.mbarrier_arrive(exchange_barriers + {_WRITTEN})")
    out.lines((_NEXT, f"former = {'end - 1' if step.first else 'block'}"))
    if program.plan.problem.is_repeated:
        out.line(f"former_repeat = {head_axes(program.plan.problem)[-1]}")


@_rule(a.WaitExchange)
def _(out: Writer, program: BackwardProgram, step: a.WaitExchange) -> None:
    out.line(f"cute.arch.mbarrier_wait(exchange_barriers + {_FORMER}, {_FORMER_PHASE})")


@_rule(a.SumMma)
def _(out: Writer, program: BackwardProgram, step: a.SumMma) -> None:
    out.line(f"multiply_sum({sum_name(program.plan)}, sum_left, sum_right, {_FORMER}, group)")


@_rule(a.WriteSum)
def _(out: Writer, program: BackwardProgram, step: a.WriteSum) -> None:
    atomic, name = program.plan.problem.atomic, sum_name(program.plan)
    assert atomic is not None
    if atomic.finish.instructions:
        out.line(f"finish_sum({', '.join([name, *arguments_of(atomic.finish)])})")
    out.line(f"store_sum({name}, written, {'odd_pair' if program.plan.turned else 'odd_row'})")


@_rule(a.AddSum)
def _(out: Writer, program: BackwardProgram, step: a.AddSum) -> None:
    problem = program.plan.problem
    assert problem.atomic is not None
    axes = list(head_axes(problem))
    if problem.is_repeated:
        axes[-1] = "former_repeat"
    places = spans.places("end_of_sum") if problem.spans_keys else []
    places += [mode.at.text(tuple(axes)) for mode in problem.atomic.matrix.modes]
    width = ATOMIC_COLUMNS // BOX[1]
    copies = [
        (
            f"group * {WARPS * width} + {at * WARPS} + group_warp",
            f"former * {WARPS} + group_warp",
            f"group * {width} + {at}",
        )
        for at in range(width)
    ]
    if program.plan.turned:
        copies = [(f"group * {WARPS} + group_warp", f"former * {program.plan.groups} + group", "group_warp")]
    for source, *target in copies:
        out.line(f"cute.copy(tma_sum, from_sum[None, {source}], to_sum[{', '.join(['None', *target, *places])}])")
    out.line("cute.arch.cp_async_bulk_commit_group()")


RULES[g.WarpSync] = lambda out, program, step: out.line("cute.arch.sync_warp()")


@_rule(a.AllGroupsSync)
def _(out: Writer, program: BackwardProgram, step: a.AllGroupsSync) -> None:
    groups = program.plan.groups
    out.line(f"cute.arch.barrier(barrier_id={1 + groups}, number_of_threads={WARPGROUP_THREADS * groups})")
