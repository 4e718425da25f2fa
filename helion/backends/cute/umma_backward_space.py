"""The config keys of attention's gradients on tcgen05, and the tiles that a search begins with."""

from __future__ import annotations

from typing import Any

from ..._compiler.decisions import Decisions
from ..._compiler.ir.grammar import Program
from ...autotuner.space.fields import Scalar
from ...autotuner.space.own import OwnKeys
from ...fields import EnumFragment
from ...hardware import Target
from .lower.attention.backward import Backward
from .lower.attention.kernel import known_backward
from .plan.attention.backward import BackwardChoice
from .plan.attention.build import KEY_STEP, LEAST_STAGES, MOST_STAGES
from .plan.attention.gradients import BackwardProblem
from .plan.attention.umma import UMMA_GROUPS, UMMA_KEYS, UMMA_ROWS
from .plan.attention.umma_backward import plan_umma_backward
from .plan.refusal import Refusal
from .resources.umma_backward import umma_backward_choice
from .score_rules import ScoreRules
from .space import VERBATIM_PREFIX
from .umma_attention_space import absent_umma_keys

OF_ATTENTION = ("lazy_rescale", "polynomial", "key_splits")


def check_umma_backward(program: Program, found: Backward, target: Target) -> None:
    """Check that the smallest tile, of the sizes that the program sets, has a plan on tcgen05. Raises ``Refusal``."""
    rows, keys = (program.blocks[at].size for at in (found.loops.queries, found.loops.keys))
    if isinstance(rows, int) and (rows % UMMA_ROWS or not 0 < rows <= UMMA_GROUPS * UMMA_ROWS):
        raise Refusal(f"the kernel sets tiles of {rows} rows; 128 and 256 are implemented on tcgen05")
    groups = rows // UMMA_ROWS if isinstance(rows, int) else 1
    plan_umma_backward(
        found.problem, BackwardChoice(groups=groups, keys=keys if isinstance(keys, int) else KEY_STEP), target
    )


def umma_backward_keys(program: Program, target: Target) -> OwnKeys:
    """Return the keys of gradients of attention on tcgen05, the bounds of their tiles, and the rules that legalize a config."""
    found = known_backward(program)
    loops, first = found.loops, _first_choice(found.problem, target)
    others = {
        f"tcgen05_{name}": "it is for attention itself; this kernel computes its gradients" for name in OF_ATTENTION
    }

    def planned(decisions: Decisions) -> dict[str, Any]:
        choice = umma_backward_choice(decisions, (loops.queries, loops.keys))
        return {"tcgen05_kv_stages": plan_umma_backward(found.problem, choice, target).stages}

    stages = EnumFragment((None, *range(LEAST_STAGES, MOST_STAGES + 1)))
    return OwnKeys(
        fields=(Scalar(key="tcgen05_kv_stages", fragment=stages, initial=None),),
        absent={**absent_umma_keys(), **others},
        verbatim=VERBATIM_PREFIX,
        rules=ScoreRules(program.host.name, target, planned, ({"tcgen05_kv_stages": None},)).rules(),
        sizes={
            loops.queries: (UMMA_ROWS, UMMA_GROUPS * UMMA_ROWS),
            loops.keys: (KEY_STEP, UMMA_KEYS),
            **{block: (1, 1) for block in loops.heads if program.blocks[block].kind == "tile"},
        },
        initial={loops.queries: first.groups * UMMA_ROWS, loops.keys: first.keys},
        least={loops.keys: KEY_STEP},
        multiples={loops.queries: UMMA_ROWS, loops.keys: KEY_STEP},
        holds_values=False,
        planned=True,
    )


def _first_choice(problem: BackwardProblem, target: Target) -> BackwardChoice:
    """Return the tile that a search begins with: the first of a few sizes that has a plan."""
    for keys in (UMMA_KEYS // 2, UMMA_KEYS // 4):
        for groups in range(UMMA_GROUPS, 0, -1):
            choice = BackwardChoice(groups=groups, keys=keys)
            try:
                plan_umma_backward(problem, choice, target)
            except Refusal:
                continue
            return choice
    return BackwardChoice(groups=1, keys=KEY_STEP)
