"""The config keys of attention's gradients, and the tiles that a search begins with."""

from __future__ import annotations

import itertools
from typing import Any

from ... import exc
from ..._compiler.decisions import Decisions
from ..._compiler.ir.grammar import Program
from ...autotuner.space.fields import Scalar
from ...autotuner.space.own import OwnKeys
from ...autotuner.space.program_shape import ProgramShape
from ...fields import EnumFragment
from ...hardware import Target
from ...settings import Settings
from .attention_space import FIRST_KEYS
from .lower.attention.kernel import known_backward
from .plan.attention.backward import BackwardChoice, least_choice, plan_backward
from .plan.attention.build import KEY_STEP, LEAST_STAGES, MOST_GROUPS, MOST_KEYS, MOST_STAGES
from .plan.attention.umma import UMMA_GROUPS, UMMA_KEYS, UMMA_ROWS
from .plan.attention.umma_backward import plan_umma_backward
from .plan.records import WGMMA_ROWS
from .resources.backward import backward_choice
from .resources.umma_backward import umma_backward_choice
from .score_rules import ScoreRules, absent_keys, first_of, keys_of, refusal_of, tile_that_is_set

_SIMPLER: tuple[dict[str, Any], ...] = ({"wgmma_kv_stages": None}, {"wgmma_tile_scheduler": "static"})
_STAGES = EnumFragment((None, *range(LEAST_STAGES, MOST_STAGES + 1)))


def backward_refusal(program: Program, target: Target) -> exc.Base | None:
    """Return why the backend cannot run gradients of attention on a target, or None."""
    needs = "gradients of attention depend on is known only when they run"
    return refusal_of(program, target, needs, lambda: _plan_smallest(program, target))


def _plan_smallest(program: Program, target: Target) -> None:
    """Plan the smallest tile, of the sizes that the program sets. Raises ``Refusal``."""
    found = known_backward(program)
    if target.has("tcgen05"):
        least = BackwardChoice(groups=1, keys=KEY_STEP)
        tile = tile_that_is_set(found.loops, UMMA_ROWS, UMMA_GROUPS, "rows", least)
        plan_umma_backward(found.problem, tile, target)
        return
    least = least_choice(found.problem)
    plan_backward(found.problem, tile_that_is_set(found.loops, WGMMA_ROWS, MOST_GROUPS, "rows", least), target)


def backward_keys(shape: ProgramShape, program: Program, target: Target, settings: Settings) -> OwnKeys:
    """Return the keys of gradients of attention, the bounds of their tiles, and the rules that legalize a config."""
    if target.has("tcgen05"):
        return _umma_keys(program, target)
    found = known_backward(program)
    loops, exchanges = found.loops, found.problem.atomic is None
    # two consumer groups, with the longest blocks that fit
    choices = (BackwardChoice(groups=2, keys=keys) for keys in range(FIRST_KEYS, KEY_STEP, -KEY_STEP) if exchanges)
    least = least_choice(found.problem)
    first = first_of(choices, lambda choice: plan_backward(found.problem, choice, target), least)

    def planned(decisions: Decisions) -> dict[str, Any]:
        choice = backward_choice(decisions, (loops.queries, loops.keys))
        return {"wgmma_kv_stages": plan_backward(found.problem, choice, target).stages}

    scheduler = EnumFragment(("static", "dynamic"))
    return keys_of(
        loops,
        ScoreRules(program.host.name, target, planned, _SIMPLER),
        row=WGMMA_ROWS,
        groups=(1, MOST_GROUPS) if exchanges else (first.groups, first.groups),
        keys=(KEY_STEP, MOST_KEYS) if exchanges else (first.keys, first.keys),
        step=KEY_STEP,
        first=first,
        fields=(
            Scalar(key="wgmma_kv_stages", fragment=_STAGES, initial=None),
            Scalar(key="wgmma_tile_scheduler", fragment=scheduler, initial="static"),
        ),
        absent=absent_keys("wgmma", ("pingpong", "lazy_rescale", "key_splits")),
        least={loops.keys: first.keys} if first.groups > 1 and first.keys < FIRST_KEYS else {},
    )


def _umma_keys(program: Program, target: Target) -> OwnKeys:
    """Return the same on tcgen05."""
    found = known_backward(program)
    loops = found.loops
    tiles = itertools.product((UMMA_KEYS // 2, UMMA_KEYS // 4), range(UMMA_GROUPS, 0, -1))
    choices = (BackwardChoice(groups=groups, keys=keys) for keys, groups in tiles)
    least = BackwardChoice(groups=1, keys=KEY_STEP)

    def planned(decisions: Decisions) -> dict[str, Any]:
        choice = umma_backward_choice(decisions, (loops.queries, loops.keys))
        return {"tcgen05_kv_stages": plan_umma_backward(found.problem, choice, target).stages}

    return keys_of(
        loops,
        ScoreRules(program.host.name, target, planned, ({"tcgen05_kv_stages": None},)),
        row=UMMA_ROWS,
        groups=(1, UMMA_GROUPS),
        keys=(KEY_STEP, UMMA_KEYS),
        step=KEY_STEP,
        first=first_of(choices, lambda choice: plan_umma_backward(found.problem, choice, target), least),
        fields=(Scalar(key="tcgen05_kv_stages", fragment=_STAGES, initial=None),),
        absent=absent_keys("tcgen05", ("lazy_rescale", "polynomial", "key_splits")),
    )
