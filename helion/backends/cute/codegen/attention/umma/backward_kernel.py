"""The kernel of attention's gradients on tcgen05 in its generated module, and the printing rules of its steps."""

from __future__ import annotations

import functools
from collections.abc import Callable

from ....plan.attention.gradients import STREAMED
from ....plan.attention.numbers import text_of
from ....plan.attention.row_values import values_bytes
from ....plan.attention.umma import UMMA_ROWS
from ....plan.attention.umma_backward import UmmaBackwardPlan, umma_backward_bytes, umma_backward_memory
from ....roles import grammar as g
from ....roles.attention import grammar as a
from ....roles.attention import umma_backward as b
from ....roles.attention.grammar import rule_of
from ....roles.attention.umma_backward import UmmaBackwardProgram
from ....toolchain.kernel import GemmKernel
from ...chained.row_values import launches, reads_of, row_functions
from ...writer import Writer
from .. import backward_steps, spans, steps
from ..bounds import bounds_function, place_function
from ..formula import uniform_functions
from ..host import backward_matrices, backward_tensors
from ..kernel import score_kernel
from ..module import Pieces
from ..steps import print_steps
from . import steps as forward
from .backward import backward_functions, computing, finish_lines, lefts_lines, multiplying
from .kernel import IMPORTS
from .views import allocator, fences

SHARED = (a.RepeatLoop, a.LoadRows, a.LoadBlock, a.StoreOutput)
"""Steps that are printed as on wgmma."""
RULES: dict[type[g.Step], Callable[..., None]] = {
    **{kind: rule for kind, rule in forward.RULES.items() if kind is not g.SetUp},
    **{kind: backward_steps.RULES[kind] for kind in SHARED},
}


def umma_backward_kernel(name: str, program: UmmaBackwardProgram) -> GemmKernel:
    """Return the kernel named ``name`` of a program."""
    matrices = tuple(each.dtype for each in program.plan.problem.matrices)
    reads = tuple(each.dtype for each in program.plan.problem.read_before)
    return score_kernel(name, program, _pieces(program), matrices, reads=reads)


def _pieces(program: UmmaBackwardProgram) -> Pieces:
    """Return the pieces of the module of a program."""
    plan, problem = program.plan, program.plan.problem
    owned = tuple(f"own_{at}" for at in range(len(problem.owned)))
    gradients = tuple(f"gradient_{at}" for at in range(len(problem.gradients)))
    pointers = (*owned, *problem.blocks, *(each.output.label for each in problem.gradients))
    return Pieces(
        functions=(
            *fences(),
            place_function(plan),
            *spans.functions(plan),
            bounds_function(plan),
            *uniform_functions(problem),
            *backward_functions(plan),
            *row_functions(problem.values),
        ),
        matrices=(*owned, *problem.blocks, *gradients),
        objects=backward_matrices(plan),
        tensors=backward_tensors(plan),
        pointers=pointers,
        sources=problem.sources,
        memory=umma_backward_memory(plan),
        dtypes=dict.fromkeys((*owned, *problem.blocks), problem.owned[0].dtype),
        shared_bytes=umma_backward_bytes(plan),
        workspace_bytes=values_bytes(problem.values),
        vectors=tuple(source.label for sources in plan.staged.values() for source in sources),
        ctas_per_sm=1,
        imports=IMPORTS,
        objects_of_kernel=allocator(program),
        reads=reads_of(problem.values),
        launches=launches(problem, pointers),
    )


_rule = functools.partial(rule_of, RULES)


_SETUPS: dict[str, Callable[[UmmaBackwardPlan], list[str]]] = {
    "compute": lambda plan: [*computing(plan), *backward_steps.stored_outputs(plan)],
    "multiply": multiplying,
}


@_rule(g.SetUp)
def _(out: Writer, program: UmmaBackwardProgram, step: g.SetUp) -> None:
    own = _SETUPS.get(step.name)
    if own is None:
        backward_steps.RULES[g.SetUp](out, program, step)
    else:
        out.lines(own(program.plan))


@_rule(b.OtherBlocks)
def _(out: Writer, program: UmmaBackwardProgram, step: b.OtherBlocks) -> None:
    out.line(f"blocks = (end - begin) * {text_of(program.plan.problem.repeats)}")
    with out.block("for at in cutlass.range(blocks - 1, unroll=1):"):
        print_steps(out, program, step.body)


@_rule(a.ProductMma)
def _(out: Writer, program: UmmaBackwardProgram, step: a.ProductMma) -> None:
    at, name = step.product, STREAMED[step.product]
    steps_of_k = program.plan.problem.owned[at].columns // 16
    given = f"product_{at}, fragment_own_{at}, fragment_{name}, {steps_of_k}, group, {step.cursor}.index, False"
    out.line(f"multiply(product_mma(), {given})")


@_rule(b.GradientOfBlock)
def _(out: Writer, program: UmmaBackwardProgram, step: b.GradientOfBlock) -> None:
    at = step.gradient
    adds = "blocks > 1" if step.last else "at > 0"
    given = (
        f"gradient_{at}, left_{at}, fragment_right_{at}, {program.plan.keys // 16}, group, {step.cursor}.index, {adds}"
    )
    out.line(f"multiply(gradient_mma_{at}(), {given})")


@_rule(b.Lefts)
def _(out: Writer, program: UmmaBackwardProgram, step: b.Lefts) -> None:
    out.lines(lefts_lines(program.plan, step.masked, "end - 1" if step.first else "block"))


@_rule(b.FinishGradient)
def _(out: Writer, program: UmmaBackwardProgram, step: b.FinishGradient) -> None:
    out.lines(finish_lines(program.plan, step.gradient))


def _query(plan: UmmaBackwardPlan) -> list[str]:
    return [f"query = tile_m * {plan.rows} + group * {UMMA_ROWS} + group_thread", *spans.of_row(plan, "query")]


steps.OWN_RULES[UmmaBackwardProgram] = RULES
steps.OWN_QUERIES[UmmaBackwardProgram] = _query
steps.OWN_WORK.add(UmmaBackwardProgram)
steps.OWN_BLOCKS[UmmaBackwardProgram] = backward_steps.partitions
