"""The printing rules of the role programs of attention's gradients, where they differ from those of attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...plan.attention.backward import STREAMED, BackwardPlan
from ...plan.records import WGMMA_ROWS
from ...roles import grammar as g
from ...roles.attention import grammar as a
from ...roles.attention.grammar import BackwardProgram
from ..writer import Writer
from .backward import finish_arguments, registers, values_arguments, values_name
from .formula import head_axes
from .softmax import has_masks
from .steps import indexed, partition, print_steps, rows_pipeline

RULES: dict[type[g.Step], Callable[..., None]] = {}


def _rule(kind: type[g.Step]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def register(function: Callable[..., None]) -> Callable[..., None]:
        RULES[kind] = function
        return function

    return register


# Set-up ----------------------------------------------------------------------------------------------------------------


@_rule(g.SetUp)
def _(out: Writer, program: BackwardProgram, step: g.SetUp) -> None:
    out.lines(_SETUPS[step.name](program.plan))


def _load_blocks(plan: BackwardPlan) -> list[str]:
    blocks = plan.problem.blocks.items()
    lines = [line for name, matrix in blocks for line in partition(name, matrix, (plan.keys, matrix.columns))]
    for source in (source for sources in plan.staged.values() for source in sources):
        name, modes = source.label, ", ".join(["None"] * (1 + len(source.modes)))
        lines += [
            f"tiles_{name} = cute.local_tile(tensor_{name}, ({plan.keys},), ({modes},))",
            f"to_{name}, from_{name} = cpasync.tma_partition(",
            f"    tma_{name}, 0, cute.make_layout(1), cute.group_modes(shared_{name}, 0, 1),"
            f" cute.group_modes(tiles_{name}, 0, 1)",
            ")",
        ]
    return lines


def _load_rows(plan: BackwardPlan) -> list[str]:
    owned = enumerate(plan.problem.owned)
    return [line for at, matrix in owned for line in partition(f"own_{at}", matrix, (WGMMA_ROWS, matrix.columns))]


def _multiply(plan: BackwardPlan) -> list[str]:
    lines = registers(plan)
    for at, gradient in enumerate(plan.problem.gradients):
        matrix, shared = gradient.output.matrix, f"shared_own_{gradient.right}"
        modes = ", ".join(["None", "0", *("None" for _ in matrix.modes)])
        lines += [
            f"tiles_{at} = cute.local_tile(tensor_gradient_{at}, (64, {matrix.columns}), ({modes}))",
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
    with out.block(f"for repeat in cutlass.range({problem.repeats}, unroll=1):"):
        out.line(f"{head_axes(problem)[-1]} = repeat")
        if isinstance(step.body[0], a.BlockLoop):
            out.line("again_blocks = cutlass.min(repeat, 1)")
        else:
            out.line("block = end - 1")
        print_steps(out, program, step.body)


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
    source = indexed(plan, plan.problem.blocks[name], "block")
    out.line(f"cute.copy(tma_{name}, from_{name}[{source}], to_{name}[None, {stage}")
    for each in plan.staged[name]:
        places = ", ".join(["None", "block", *(mode.at.text(head_axes(plan.problem)) for mode in each.modes)])
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
    out.line(f"multiply(product_mma(), product_{at}, {left}, {right}, {steps}, True)")


@_rule(a.GradientMma)
def _(out: Writer, program: BackwardProgram, step: a.GradientMma) -> None:
    at, right = step.gradient, f"right_{step.gradient}[None, None, None, {step.cursor}.index]"
    steps = program.plan.keys // 16
    out.line(f"multiply(gradient_mma_{at}(), gradient_{at}, operand_{at}, {right}, {steps}, {step.first})")


def _values(late: bool) -> Callable[..., None]:
    def rule(out: Writer, program: BackwardProgram, step: a.Weights | a.Differences) -> None:
        plan = program.plan
        block = "end - 1" if step.first else "block"
        masked = step.masked and has_masks(plan)
        out.line(f"first_key = ({block}) * {plan.keys} + lane % 4 * 2")
        out.line(f"{values_name(late)}({', '.join(values_arguments(plan, late))}, {step.cursor}.index, {masked})")

    return rule


RULES[a.Weights] = _values(late=False)
RULES[a.Differences] = _values(late=True)


# Outputs ---------------------------------------------------------------------------------------------------------------


@_rule(a.Finish)
def _(out: Writer, program: BackwardProgram, step: a.Finish) -> None:
    out.line(f"finish_{step.output}({', '.join(finish_arguments(program.plan, step.output))})")


@_rule(a.WriteOutput)
def _(out: Writer, program: BackwardProgram, step: a.WriteOutput) -> None:
    at = step.output
    out.line(f"cute.copy(stage_copy_{at}, stage_registers_{at}, stage_part_{at}[None, None, None, group])")


@_rule(a.StoreOutput)
def _(out: Writer, program: BackwardProgram, step: a.StoreOutput) -> None:
    plan, at = program.plan, step.output
    target = indexed(plan, plan.problem.gradients[at].output.matrix, f"tile_m * {plan.groups} + group")
    out.line(f"cute.copy(tma_gradient_{at}, from_{at}[None, group], to_{at}[{target}])")
    out.line("cute.arch.cp_async_bulk_commit_group()")
