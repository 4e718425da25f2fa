"""The config keys of attention on tcgen05, and the tiles that a search begins with."""

from __future__ import annotations

from typing import Any

from ..._compiler.decisions import Decisions
from ..._compiler.ir.grammar import Program
from ...autotuner.space.fields import Scalar
from ...autotuner.space.own import OwnKeys
from ...fields import BooleanFragment, EnumFragment
from ...hardware import Target
from .lower.attention.kernel import known_attention
from .lower.attention.recognise import Attention
from .plan.attention.build import LEAST_STAGES, key_step, takes_lazy
from .plan.attention.records import AttentionProblem
from .plan.attention.umma import (
    MOST_POLYNOMIAL,
    UMMA_GROUPS,
    UMMA_KEYS,
    UMMA_ROWS,
    UMMA_STAGES,
    UmmaChoice,
    plan_umma_attention,
)
from .plan.refusal import Refusal
from .resources.umma_attention import umma_choice
from .score_rules import KEY_SPLITS, ScoreRules
from .space import DOCS, ELSEWHERE, VERBATIM_PREFIX

UMMA_DOCS: dict[str, str] = {
    "polynomial": f"Of 16 exponentials of attention, those by a polynomial instead of the special function unit: even numbers up to {MOST_POLYNOMIAL}. None is the best by the model.",
}  # fmt: skip
"""Config keys of attention on tcgen05 alone, without the unit's name in front, and their meaning."""


def smallest_umma(found: Attention, target: Target) -> Refusal | None:
    """Return why no smallest tile, of the sizes that the program sets, has a plan on tcgen05, or None."""
    blocks = found.loops.program.blocks
    rows, keys = (blocks[at].size for at in (found.loops.queries, found.loops.keys))
    if isinstance(rows, int) and (rows % UMMA_ROWS or not 0 < rows <= UMMA_GROUPS * UMMA_ROWS):
        return Refusal(f"the kernel sets tiles of {rows} queries; 128 and 256 are implemented on tcgen05")
    choice = UmmaChoice(
        groups=rows // UMMA_ROWS if isinstance(rows, int) else 1,
        keys=keys if isinstance(keys, int) else key_step(found.problem),
    )
    return _refusal(found.problem, choice, target)


def _refusal(problem: AttentionProblem, choice: UmmaChoice, target: Target) -> Refusal | None:
    try:
        plan_umma_attention(problem, choice, target)
    except Refusal as error:
        return error
    return None


def _first_choice(problem: AttentionProblem, target: Target) -> UmmaChoice:
    """Return the tile that a search begins with: the first of a few sizes that has a plan."""
    for keys in (UMMA_KEYS, UMMA_KEYS // 2, key_step(problem)):
        for groups in (UMMA_GROUPS, 1):
            choice = UmmaChoice(groups=groups, keys=keys)
            if _refusal(problem, choice, target) is None:
                return choice
    return UmmaChoice(groups=1, keys=key_step(problem))


def umma_keys(program: Program, target: Target) -> OwnKeys:
    """Return the keys of attention on tcgen05, the bounds of its tiles, and the rules that legalize a config."""
    found = known_attention(program)
    loops, pages = found.loops, found.problem.k.pages
    lazy = found.problem.softmax and takes_lazy(found.problem)
    most = UMMA_KEYS if pages is None else min(UMMA_KEYS, pages.size & -pages.size)  # a power of two that divides it
    first, step = _first_choice(found.problem, target), key_step(found.problem)

    def planned(decisions: Decisions) -> dict[str, Any]:
        plan = plan_umma_attention(found.problem, umma_choice(decisions, (loops.queries, loops.keys)), target)
        return {"tcgen05_kv_stages": plan.stages, "tcgen05_polynomial": plan.polynomial}

    simpler: tuple[dict[str, Any], ...] = ({"tcgen05_kv_stages": None}, {"tcgen05_key_splits": 1})
    if not found.problem.softmax:
        simpler = ({"tcgen05_polynomial": None}, *reversed(simpler))
    return OwnKeys(
        fields=(
            Scalar(
                key="tcgen05_kv_stages",
                fragment=EnumFragment((None, *range(LEAST_STAGES, UMMA_STAGES + 1))),
                initial=None,
            ),
            Scalar(key="tcgen05_lazy_rescale", fragment=BooleanFragment(), initial=lazy),
            Scalar(
                key="tcgen05_polynomial",
                fragment=EnumFragment((None, *range(0, MOST_POLYNOMIAL + 1, 2))),
                initial=None,
            ),
            Scalar(key="tcgen05_key_splits", fragment=EnumFragment(KEY_SPLITS), initial=1),
        ),
        absent=absent_umma_keys(),
        verbatim=VERBATIM_PREFIX,
        rules=ScoreRules(
            program.host.name, target, planned, simpler if lazy else ({"tcgen05_lazy_rescale": False}, *simpler)
        ).rules(),
        sizes={
            loops.queries: (UMMA_ROWS, UMMA_GROUPS * UMMA_ROWS),
            loops.keys: (step, most),
            **{block: (1, 1) for block in loops.heads if program.blocks[block].kind == "tile"},
        },
        initial={loops.queries: first.groups * UMMA_ROWS, loops.keys: first.keys},
        least={loops.keys: step},
        multiples={loops.queries: UMMA_ROWS, loops.keys: step},
        holds_values=False,
        planned=True,
    )


def absent_umma_keys() -> dict[str, str]:
    """Return the keys of matmuls, with the reason why attention has none of them."""
    own = "tcgen05_kv_stages, tcgen05_lazy_rescale, tcgen05_polynomial and tcgen05_key_splits"
    why = f"it is for matmuls; attention on tcgen05 has {own}"
    of_matmul = {f"{unit}_{name}": why for unit in ("wgmma", "tcgen05") for name in DOCS}
    return {**of_matmul, **{name: reason.format(unit="tcgen05") for name, reason in ELSEWHERE.items()}}
