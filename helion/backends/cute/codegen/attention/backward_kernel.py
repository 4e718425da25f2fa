"""The kernel of a plan of attention's gradients in its generated module."""

from __future__ import annotations

from ...plan.attention.backward import BackwardPlan, backward_bytes, backward_memory
from ...plan.attention.row_values import values_bytes
from ...plan.workspace import COUNTER_BYTES, MAX_COUNTERS
from ...roles.attention.grammar import BackwardProgram
from ...toolchain.kernel import GemmKernel
from ..chained.row_values import launches, reads_of, row_functions
from . import backward_steps, spans
from .atomic import spanned_sums
from .backward import backward_functions
from .bounds import bounds_function, place_function
from .formula import uniform_functions
from .host import backward_matrices, backward_tensors
from .kernel import score_kernel
from .module import Pieces
from .steps import OWN_BLOCKS, OWN_RULES, OWN_TILES

OWN_RULES[BackwardProgram] = backward_steps.RULES
OWN_BLOCKS[BackwardProgram] = backward_steps.partitions
OWN_TILES[BackwardProgram] = spanned_sums


def backward_pieces(plan: BackwardPlan) -> Pieces:
    """Return the pieces of a plan of gradients."""
    problem = plan.problem
    owned = tuple(f"own_{at}" for at in range(len(problem.owned)))
    outputs = tuple(each.output.label for each in problem.gradients)
    dtypes = dict.fromkeys((*owned, *problem.blocks), problem.owned[0].dtype)
    gradients = tuple(f"gradient_{at}" for at, each in enumerate(problem.gradients) if each.wide is None)
    if problem.atomic is not None:
        outputs, gradients = (*outputs, problem.atomic.label), (*gradients, "sum")
        dtypes |= {"exchange": problem.owned[0].dtype, "sum": problem.atomic.matrix.dtype}
    return Pieces(
        functions=(
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
        pointers=(*owned, *problem.blocks, *outputs),
        sources=problem.sources,
        memory=backward_memory(plan),
        dtypes=dtypes,
        shared_bytes=backward_bytes(plan),
        workspace_bytes=_workspace_bytes(plan),
        vectors=tuple(source.label for sources in plan.staged.values() for source in sources),
        ctas_per_sm=1,  # else ptxas may ignore changes of register counts
        reads=reads_of(problem.values),
        launches=launches(problem, (*owned, *problem.blocks, *outputs)),
    )


def _workspace_bytes(plan: BackwardPlan) -> int:
    """Return the bytes of the workspace, for the counter that hands out tiles, and for values of rows."""
    counters = MAX_COUNTERS * COUNTER_BYTES if plan.scheduler == "dynamic" else 0
    return values_bytes(plan.problem.values) or counters


def backward_kernel(name: str, program: BackwardProgram) -> GemmKernel:
    """Return the kernel named ``name`` of a program."""
    plan = program.plan
    counter = COUNTER_BYTES if plan.scheduler == "dynamic" else 0
    matrices = tuple(each.dtype for each in plan.problem.matrices)
    reads = tuple(each.dtype for each in plan.problem.read_before)
    return score_kernel(name, program, backward_pieces(plan), matrices, counter, reads)
