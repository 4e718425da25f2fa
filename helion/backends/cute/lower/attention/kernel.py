"""The lowering from a program with attention and the decisions of a config to the plan of its kernel."""

from __future__ import annotations

from ..... import exc
from ....._compiler.decisions import Decisions
from ....._compiler.host.analysis import overwritten
from ....._compiler.host.build import HostBuilder
from ....._compiler.ir.grammar import Program
from ....._shapes import Expr
from .....hardware import Target
from .....settings import Settings
from ...plan.attention.build import plan_attention
from ...plan.attention.plan import CuteAttentionPlan
from ...plan.refusal import Refusal
from ...resources.attention import choice_of
from ..names import as_written
from .recognise import Attention, attention_of

KEPT = 64
_KNOWN: dict[int, tuple[Program, Attention]] = {}


def known_attention(program: Program) -> Attention:
    """Return ``attention_of``, cached per program by identity. Raises ``Refusal``."""
    known = _KNOWN.get(id(program))
    if known is None or known[0] is not program:
        if len(_KNOWN) >= KEPT:
            _KNOWN.clear()
        known = _KNOWN[id(program)] = (program, attention_of(program))
    return known[1]


def build_attention(program: Program, decisions: Decisions, target: Target, settings: Settings) -> CuteAttentionPlan:
    """Build the plan of a program. Raises ``exc.InvalidConfig`` for decisions that the planner refuses."""
    found = known_attention(program)
    blocks = found.loops.queries, found.loops.keys
    try:
        plan = plan_attention(found.problem, choice_of(decisions, blocks), target)
    except Refusal as refusal:
        raise exc.InvalidConfig(f"{program.host.name} on {target}: {as_written(program, refusal)}.") from refusal
    return CuteAttentionPlan(
        program=program,
        attention=plan,
        arguments=tuple(at if isinstance(at, Expr) else program.tensors[at] for at in found.arguments),
        is_empty=0 in (found.problem.queries, found.problem.batches),
        sizes=tuple(decisions.sizes[block.id] for block in program.blocks),
        overwritten=tuple(dict.fromkeys(tensor.source for tensor in overwritten(program, program))),
        origin_lines=settings.output_origin_lines,
    )


def attention_pieces(plan: CuteAttentionPlan, host: HostBuilder) -> str:
    """Return the number of tiles in host code."""
    return host.number(plan.attention.pieces)
