"""Products in sequence with a narrow middle: a matmul that writes the middle to the workspace, and one that reads it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ... import exc
from ..._compiler.decisions import Decisions
from ..._compiler.ir.grammar import HostTensor, Program
from ..._shapes import Expr
from ...autotuner.space.own import OwnKeys
from ...autotuner.space.program_shape import ProgramShape
from ...hardware import Target
from ...settings import Settings
from .lower.kernel import build_plan, known_product
from .lower.names import as_written
from .lower.product import Product
from .lower.rewrites.middles import Middle, in_sequence
from .plan.build import plan_gemm
from .plan.chained.choice import choice_of_first
from .plan.chained.records import ChainedPlan
from .plan.records import GemmPlan
from .plan.refusal import Refusal
from .refusal import multiples, refusal
from .space import own_keys


def is_chained(program: Program) -> bool:
    """Return whether a program multiplies a narrow middle, which it computes by a matmul."""
    return in_sequence(program) is not None


def _known(program: Program) -> Middle:
    found = in_sequence(program)
    assert found is not None
    return found


def main_of(program: Program) -> Program:
    """Return the program of the last matmul."""
    return _known(program).main


def programs_of(program: Program) -> tuple[Program, Program]:
    """Return the programs of both matmuls."""
    found = _known(program)
    return found.first, found.main


def chained_refusal(program: Program, target: Target) -> exc.Base | None:
    """Return why the backend cannot run products in sequence on a target, or None."""
    found = _known(program)
    try:
        _plan_of_first(known_product(found.first), target)
        if known_product(found.main).runtime:
            raise Refusal(_RUNTIME)
    except Refusal as reason:
        return exc.CuteUnsupported(kernel=program.host.name, target=target, reason=as_written(program, reason))
    return refusal(found.main, target)


_RUNTIME = (
    "products in sequence are implemented for sizes and strides that are known when the kernel is compiled; use"
    " hl.specialize"
)


def _plan_of_first(product: Product, target: Target) -> GemmPlan:
    """Return the plan of the first matmul. Raises ``Refusal``."""
    problem = product.problem
    if product.runtime:
        raise Refusal(_RUNTIME)
    several = problem.batch or problem.groups or problem.terms or problem.summed or problem.scales or problem.starts
    if several or product.is_empty:
        raise Refusal(
            f"the first of products in sequence, by {problem.names[1]}, is implemented without batches, groups, scales and sums"
        )
    return plan_gemm(problem, choice_of_first(problem, target), target)


def chained_keys(shape: ProgramShape, program: Program, target: Target, settings: Settings) -> OwnKeys:
    """Return the keys of the last matmul."""
    return own_keys(shape, main_of(program), target, settings)


def chained_multiples(program: Program) -> Mapping[str, int]:
    """Return the divisibility assumptions of the last matmul."""
    return multiples(main_of(program))


def build_chained(program: Program, decisions: Decisions, target: Target, settings: Settings) -> ChainedPlan:
    """Build the plan of products in sequence. Raises ``exc.InvalidConfig`` for decisions that the planner refuses."""
    found = _known(program)
    main, first = build_plan(found.main, decisions, target, settings), known_product(found.first)
    at = next(
        at for at, each in enumerate(main.arguments) if isinstance(each, HostTensor) and each.id == found.middle.id
    )
    given = [each if isinstance(each, Expr) else found.first.tensors[each] for each in first.arguments]
    arguments = [*main.arguments, *given[:2], *given[3:]]
    arguments[at] = given[0]  # any tensor: the launch reads the workspace in its place
    fields = {each.name: getattr(main, each.name) for each in dataclasses.fields(main)}
    fields["arguments"] = tuple(arguments)
    return ChainedPlan(**fields, before=_plan_of_first(first, target), at=at)
