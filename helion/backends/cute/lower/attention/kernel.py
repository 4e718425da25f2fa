"""The lowering from a program with attention, or its gradients, and the decisions of a config to the plan of its kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from ..... import exc
from ....._compiler.decisions import Decisions
from ....._compiler.host.analysis import overwritten
from ....._compiler.host.build import HostBuilder
from ....._compiler.ir.grammar import Program
from ....._shapes import Expr, NeedsValue, cdiv
from .....hardware import Target
from .....settings import Settings
from ...plan.attention.backward import BackwardPlan, plan_backward
from ...plan.attention.build import plan_attention
from ...plan.attention.launch import launch_multiples
from ...plan.attention.numbers import LaunchInt
from ...plan.attention.plan import CuteAttentionPlan, CuteBackwardPlan
from ...plan.attention.records import AttentionPlan, ScorePlan
from ...plan.attention.umma import plan_umma_attention
from ...plan.attention.umma_backward import plan_umma_backward
from ...plan.launch import LaunchPlan
from ...plan.refusal import Refusal
from ...resources.attention import choice_of
from ...resources.backward import backward_choice
from ...resources.umma_attention import umma_choice
from ...resources.umma_backward import umma_backward_choice
from ..names import as_written
from ..numbers import dividing
from .backward import Backward, backward_of
from .band import LONGEST_CHUNK
from .recognise import Attention, attention_of

T = TypeVar("T")

KEPT = 64
_ATTENTION: dict[int, tuple[Program, Attention]] = {}
_BACKWARD: dict[int, tuple[Program, Backward]] = {}


def known_attention(program: Program) -> Attention:
    """Return ``attention_of``, cached per program by identity. Raises ``Refusal``."""
    return _known(program, _ATTENTION, attention_of)


def known_backward(program: Program) -> Backward:
    """Return ``backward_of``, cached per program by identity. Raises ``Refusal``."""
    return _known(program, _BACKWARD, backward_of)


def _known(program: Program, kept: dict[int, tuple[Program, T]], found: Callable[[Program], T]) -> T:
    known = kept.get(id(program))
    if known is None or known[0] is not program:
        if len(kept) >= KEPT:
            kept.clear()
        known = kept[id(program)] = (program, found(program))
    return known[1]


def build_attention(program: Program, decisions: Decisions, target: Target, settings: Settings) -> CuteAttentionPlan:
    """Build the plan of a program. Raises ``exc.InvalidConfig`` for decisions that the planner refuses."""
    found = known_attention(program)
    blocks = found.loops.queries, found.loops.keys
    try:
        if target.has("tcgen05"):
            plan: AttentionPlan = plan_umma_attention(found.problem, umma_choice(decisions, blocks), target)
        else:
            plan = plan_attention(found.problem, choice_of(decisions, blocks), target)
    except Refusal as refusal:
        raise exc.InvalidConfig(f"{program.host.name} on {target}: {as_written(program, refusal)}.") from refusal
    return CuteAttentionPlan(attention=plan, **_launch(program, decisions, settings, found))


def build_backward(program: Program, decisions: Decisions, target: Target, settings: Settings) -> CuteBackwardPlan:
    """Build the plan of gradients. Raises ``exc.InvalidConfig`` for decisions that the planner refuses."""
    found = known_backward(program)
    blocks = found.loops.queries, found.loops.keys
    try:
        if target.has("tcgen05"):
            plan: BackwardPlan = plan_umma_backward(found.problem, umma_backward_choice(decisions, blocks), target)
        else:
            plan = plan_backward(found.problem, backward_choice(decisions, blocks), target)
    except Refusal as refusal:
        raise exc.InvalidConfig(f"{program.host.name} on {target}: {as_written(program, refusal)}.") from refusal
    return CuteBackwardPlan(backward=plan, **_launch(program, decisions, settings, found))


def _launch(program: Program, decisions: Decisions, settings: Settings, found: Attention | Backward) -> dict[str, Any]:
    """Return the fields of every plan of a launch."""
    expressions = found.loops.numbers.expressions
    runtime = tuple((name, expressions[name]) for name in found.problem.runtime)
    return {
        "program": program,
        "arguments": (
            *(at if isinstance(at, Expr) else program.tensors[at] for at in found.arguments),
            *(number for _, number in runtime),
        ),
        "runtime": runtime,
        "is_empty": 0 in (found.problem.queries, found.problem.batches),
        "sizes": tuple(decisions.sizes[block.id] for block in program.blocks),
        "overwritten": tuple(dict.fromkeys(tensor.source for tensor in overwritten(program, program))),
        "origin_lines": settings.output_origin_lines,
    }


def attention_pieces(plan: CuteAttentionPlan, host: HostBuilder) -> str:
    """Return the number of work items in host code."""
    return _pieces(plan, plan.attention, host)


def backward_pieces(plan: CuteBackwardPlan, host: HostBuilder) -> str:
    """Return the number of work items in host code."""
    return _pieces(plan, plan.backward, host)


def _pieces(plan: LaunchPlan, scores: ScorePlan, host: HostBuilder) -> str:
    numbers = dict(plan.runtime)

    def known(number: int) -> Any:
        return numbers[number.name] if isinstance(number, LaunchInt) else number

    tiles = cdiv(known(scores.problem.queries), scores.rows)
    return host.number(math.prod(map(known, scores.problem.heads), start=tiles * scores.splits))


def attention_multiples(program: Program) -> dict[str, int]:
    """Return the divisors of host numbers by which kernels of attention differ; none for refused programs."""
    return _multiples(program, known_attention)


def attention_ranges(program: Program) -> dict[str, range]:
    """Return the values of host numbers that generated code is for: positive lengths of chunks."""
    try:
        found = known_attention(program)
    except (Refusal, NeedsValue):
        return {}
    chunk = found.problem.band.chunk
    return (
        {found.loops.numbers.expressions[chunk.name].args[0]: range(1, LONGEST_CHUNK)}
        if isinstance(chunk, LaunchInt)
        else {}
    )


def backward_multiples(program: Program) -> dict[str, int]:
    """Return the same of gradients of attention."""
    return _multiples(program, known_backward)


def _multiples(program: Program, known: Callable[[Program], Attention | Backward]) -> dict[str, int]:
    try:
        found = known(program)
    except (Refusal, NeedsValue):
        return {}
    multiples: dict[str, int] = {}
    for name, multiple in launch_multiples(found.problem).items():
        number = found.loops.numbers.expressions[name]
        names = dividing(multiple, number)
        if names is None:
            names = frozenset(leaf.args[0] for leaf in number.leaves() if leaf.op == "host" and leaf.kind is int)
        multiples |= {each: max(multiple, multiples.get(each, 1)) for each in names}
    return multiples
