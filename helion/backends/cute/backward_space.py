"""The config keys of attention's gradients, and the rules that legalize a config before the plan checks it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ... import exc
from ..._compiler.decisions import Decisions
from ..._compiler.ir.grammar import Program
from ..._shapes import NeedsValue
from ...autotuner.space.fields import Scalar
from ...autotuner.space.own import OwnKeys
from ...autotuner.space.program_shape import ProgramShape
from ...fields import EnumFragment
from ...hardware import Target
from ...settings import Settings
from .attention_space import FIRST_KEYS, absent_keys
from .lower.attention.kernel import known_backward
from .lower.names import as_written
from .plan.attention.backward import BackwardChoice, least_choice, plan_backward
from .plan.attention.build import KEY_STEP, LEAST_STAGES, MOST_GROUPS, MOST_KEYS, MOST_STAGES
from .plan.attention.gradients import BackwardProblem
from .plan.records import WGMMA_ROWS
from .plan.refusal import Refusal
from .resources.backward import backward_choice
from .score_rules import ScoreRules
from .space import VERBATIM_PREFIX
from .umma_backward_space import check_umma_backward, umma_backward_keys

_SIMPLER: tuple[dict[str, Any], ...] = ({"wgmma_kv_stages": None}, {"wgmma_tile_scheduler": "static"})


def backward_refusal(program: Program, target: Target) -> exc.Base | None:
    """Return why the backend cannot run gradients of attention on a target, or None."""
    try:
        if program.tunables:
            raise Refusal(f"it has tunables of its own: {', '.join(name for name, _ in program.tunables)}")
        found = known_backward(program)
        if target.has("tcgen05"):
            check_umma_backward(program, found, target)
            return None
        rows, keys = (program.blocks[at].size for at in (found.loops.queries, found.loops.keys))
        if isinstance(rows, int) and (rows % WGMMA_ROWS or not 0 < rows <= MOST_GROUPS * WGMMA_ROWS):
            raise Refusal(f"the kernel sets tiles of {rows} rows; 64, 128 and 192 are implemented")
        least = least_choice(found.problem)
        groups = rows // WGMMA_ROWS if isinstance(rows, int) else least.groups
        choice = replace(least, groups=groups, keys=keys if isinstance(keys, int) else least.keys)
        plan_backward(found.problem, choice, target)
    except Refusal as error:
        return exc.CuteUnsupported(kernel=program.host.name, target=target, reason=as_written(program, error))
    except NeedsValue as error:
        reason = Refusal(f"a size that gradients of attention depend on is known only when they run ({error})")
        return exc.CuteUnsupported(kernel=program.host.name, target=target, reason=as_written(program, reason))
    return None


def backward_keys(shape: ProgramShape, program: Program, target: Target, settings: Settings) -> OwnKeys:
    """Return the keys of gradients of attention, the bounds of their tiles, and the rules that legalize a config."""
    if target.has("tcgen05"):
        return umma_backward_keys(program, target)
    found = known_backward(program)
    loops = found.loops
    sizes = {loops.queries: (WGMMA_ROWS, MOST_GROUPS * WGMMA_ROWS), loops.keys: (KEY_STEP, MOST_KEYS)}
    first = _first_choice(found.problem, target)
    initial = {loops.queries: first.groups * WGMMA_ROWS, loops.keys: first.keys}
    if found.problem.atomic is not None:
        sizes = {block: (size, size) for block, size in initial.items()}
    sizes |= {block: (1, 1) for block in loops.heads if program.blocks[block].kind == "tile"}

    def planned(decisions: Decisions) -> dict[str, Any]:
        choice = backward_choice(decisions, (loops.queries, loops.keys))
        return {"wgmma_kv_stages": plan_backward(found.problem, choice, target).stages}

    others = {
        f"wgmma_{name}": "it is for attention itself; this kernel computes its gradients" for name in _OF_ATTENTION
    }
    return OwnKeys(
        fields=(
            Scalar(
                key="wgmma_kv_stages",
                fragment=EnumFragment((None, *range(LEAST_STAGES, MOST_STAGES + 1))),
                initial=None,
            ),
            Scalar(key="wgmma_tile_scheduler", fragment=EnumFragment(("static", "dynamic")), initial="static"),
        ),
        absent={**absent_keys(), **others},
        verbatim=VERBATIM_PREFIX,
        rules=ScoreRules(program.host.name, target, planned, _SIMPLER).rules(),
        sizes=sizes,
        initial=initial,
        least={loops.keys: first.keys} if first.groups > 1 and first.keys < FIRST_KEYS else {},
        multiples={loops.queries: WGMMA_ROWS, loops.keys: KEY_STEP},
        holds_values=False,
        planned=True,
    )


def _first_choice(problem: BackwardProblem, target: Target) -> BackwardChoice:
    """Return the choice that configs without sizes have: two consumer groups, with the longest blocks that fit."""
    for keys in range(FIRST_KEYS, KEY_STEP, -KEY_STEP) if problem.atomic is None else ():
        choice = BackwardChoice(groups=2, keys=keys)
        try:
            plan_backward(problem, choice, target)
        except Refusal:
            continue
        return choice
    return least_choice(problem)


_OF_ATTENTION = ("pingpong", "lazy_rescale", "key_splits")
