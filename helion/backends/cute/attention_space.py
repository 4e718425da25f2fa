"""The config keys of attention, and the tiles that a search begins with."""

from __future__ import annotations

import itertools
from typing import Any

from ... import exc
from ..._compiler.decisions import Decisions
from ..._compiler.ir.grammar import Block, Program
from ..._shapes import hint_of, next_power_of_2
from ...autotuner.space.fields import Scalar
from ...autotuner.space.own import OwnKeys
from ...autotuner.space.program_shape import ProgramShape
from ...fields import BooleanFragment, EnumFragment
from ...hardware import Target
from ...settings import Settings
from .lower.attention.kernel import known_attention
from .plan.attention.build import (
    LEAST_STAGES,
    MOST_GROUPS,
    MOST_KEYS,
    MOST_STAGES,
    check_quads,
    key_step,
    plan_attention,
    takes_bias,
    takes_lazy,
)
from .plan.attention.records import AttentionChoice, AttentionProblem
from .plan.attention.umma import (
    MOST_POLYNOMIAL,
    UMMA_GROUPS,
    UMMA_KEYS,
    UMMA_ROWS,
    UMMA_STAGES,
    UmmaChoice,
    plan_umma_attention,
)
from .plan.records import WGMMA_ROWS
from .resources.attention import choice_of
from .resources.umma_attention import umma_choice
from .score_rules import KEY_SPLITS, ScoreRules, absent_keys, first_of, keys_of, refusal_of, tile_that_is_set

FIRST_KEYS = 64
"""Keys of a block that a search begins with."""
ATTENTION_DOCS: dict[str, str] = {
    "kv_stages": "Pipeline stages of K and of V in shared memory; None is as many as fit.",
    "lazy_rescale": "Whether the accumulator of attention is rescaled only where a row maximum grows by more than 2**8.",
    "key_splits": "CTAs that share the keys of a tile of queries. If the GPU holds all of them at once, each combines some columns of their results, else the last one to arrive combines all.",
    "bias_stages": "Pipeline stages of a bias per query and key, which TMA loads to shared memory; 0 loads it to registers.",
    "tile_scheduler": "Order of attention's tiles: `static`, a fixed stride, or `dynamic`, a counter in global memory.",
    "polynomial": f"Of 16 exponentials of attention, those by a polynomial instead of the special function unit: even numbers up to {MOST_POLYNOMIAL}. None is the best by the model.",
}  # fmt: skip
"""Config keys of attention without the unit's name in front, and their meaning."""


BIAS_STAGES = "wgmma_bias_stages"
NO_BIAS = "its scores read no tensor per query and key that TMA takes"

_SIMPLER: tuple[dict[str, Any], ...] = (
    {"wgmma_kv_stages": None},
    {"wgmma_tile_scheduler": "static"},
    {"wgmma_key_splits": 1},
)
"""Changes that make a config legal, in order."""


_OF_WEIGHTS: tuple[dict[str, Any], ...] = ({"wgmma_lazy_rescale": False}, {"wgmma_key_splits": 1})
"""Changes that weights without a softmax need; the first one is for those that lazy rescaling takes out of range."""


def attention_refusal(program: Program, target: Target) -> exc.Base | None:
    """Return why the backend cannot run attention on a target, or None."""
    return refusal_of(
        program,
        target,
        "attention depends on is known only when it runs",
        lambda: _plan_smallest(program, target),
    )


def _plan_smallest(program: Program, target: Target) -> None:
    """Plan the smallest tile, of the sizes that the program sets. Raises ``Refusal``."""
    found = known_attention(program)
    check_quads(found.problem)
    if target.has("tcgen05"):
        least = UmmaChoice(groups=1, keys=key_step(found.problem))
        tile = tile_that_is_set(found.loops, UMMA_ROWS, UMMA_GROUPS, "queries", least)
        plan_umma_attention(found.problem, tile, target)
        return
    choice = AttentionChoice(groups=1, keys=key_step(found.problem))
    plan_attention(found.problem, tile_that_is_set(found.loops, WGMMA_ROWS, MOST_GROUPS, "queries", choice), target)


def _first_choice(problem: AttentionProblem, most_keys: int, target: Target) -> AttentionChoice:
    """Return the tile that a search begins with: the first of a few sizes that has a plan."""
    step = key_step(problem)
    lengths = (min(FIRST_KEYS, most_keys), *(each for each in (FIRST_KEYS // 2, step) if each < most_keys))
    tiles = itertools.product(lengths, (1,) if problem.latent else (2, 1))
    choices = (AttentionChoice(groups=groups, keys=keys) for keys, groups in tiles)
    least = AttentionChoice(groups=1, keys=step)
    return first_of(choices, lambda choice: plan_attention(problem, choice, target), least)


def _most_keys(problem: AttentionProblem, most: int) -> int:
    """Return the most keys of a block: of pages, a power of two that divides them."""
    pages = problem.k.pages
    return most if pages is None else min(most, pages.size & -pages.size)


def attention_keys(shape: ProgramShape, program: Program, target: Target, settings: Settings) -> OwnKeys:
    """Return the keys of attention, the bounds of its tiles, and the rules that legalize a config."""
    if target.has("tcgen05"):
        return _umma_keys(program, target)
    found = known_attention(program)
    loops, step, most = found.loops, key_step(found.problem), _most_keys(found.problem, MOST_KEYS)
    stages = EnumFragment((None, *range(LEAST_STAGES, MOST_STAGES + 1)))
    if not found.problem.softmax:
        simpler = (*_OF_WEIGHTS, *_SIMPLER)
    else:
        simpler = _SIMPLER if takes_lazy(found.problem) else (*_OF_WEIGHTS[:1], *_SIMPLER)

    bias = takes_bias(found.problem)
    if bias:
        simpler = ({BIAS_STAGES: 0}, *simpler)

    def planned(decisions: Decisions) -> dict[str, Any]:
        plan = plan_attention(found.problem, choice_of(decisions, (loops.queries, loops.keys)), target)
        return {"wgmma_kv_stages": plan.stages, "wgmma_pingpong": plan.pingpong}

    return keys_of(
        loops,
        ScoreRules(program.host.name, target, planned, simpler),
        row=WGMMA_ROWS,
        groups=(1, 1 if found.problem.latent else MOST_GROUPS),
        keys=(step, most),
        step=step,
        first=_first_choice(found.problem, most, target),
        fields=(
            Scalar(key="wgmma_kv_stages", fragment=stages, initial=None),
            Scalar(key="wgmma_pingpong", fragment=BooleanFragment(), initial=False),
            Scalar(key="wgmma_lazy_rescale", fragment=BooleanFragment(), initial=False),
            Scalar(key="wgmma_key_splits", fragment=EnumFragment(KEY_SPLITS), initial=1),
            Scalar(key="wgmma_tile_scheduler", fragment=EnumFragment(("static", "dynamic")), initial="static"),
            *([Scalar(key=BIAS_STAGES, fragment=EnumFragment((0, 1, 2, 3)), initial=0)] if bias else []),
        ),
        absent={**absent_keys("wgmma"), **({} if bias else {BIAS_STAGES: NO_BIAS})},
        sizes={block: (whole, whole) for block in found.gone if (whole := one_tile(program.blocks[block]))},
    )


def one_tile(block: Block) -> int:
    """Return the size of one tile of a block that a rewrite has taken out of the kernel; 0 for no tile of the config's.

    The host may allocate memory for each tile.
    """
    return 0 if block.kind != "tile" or block.extent is None else next_power_of_2(hint_of(block.extent))


def _umma_keys(program: Program, target: Target) -> OwnKeys:
    """Return the same on tcgen05."""
    found = known_attention(program)
    loops, problem, step = found.loops, found.problem, key_step(found.problem)
    lazy = problem.softmax and takes_lazy(problem)
    stages, exponentials = (None, *range(LEAST_STAGES, UMMA_STAGES + 1)), (None, *range(0, MOST_POLYNOMIAL + 1, 2))

    def planned(decisions: Decisions) -> dict[str, Any]:
        plan = plan_umma_attention(problem, umma_choice(decisions, (loops.queries, loops.keys)), target)
        return {"tcgen05_kv_stages": plan.stages, "tcgen05_polynomial": plan.polynomial}

    simpler: tuple[dict[str, Any], ...] = ({"tcgen05_kv_stages": None}, {"tcgen05_key_splits": 1})
    if not problem.softmax:
        simpler = ({"tcgen05_polynomial": None}, *reversed(simpler))
    if not lazy:
        simpler = ({"tcgen05_lazy_rescale": False}, *simpler)
    tiles = itertools.product((UMMA_KEYS, UMMA_KEYS // 2, step), (UMMA_GROUPS, 1))
    choices = (UmmaChoice(groups=groups, keys=keys) for keys, groups in tiles)
    least = UmmaChoice(groups=1, keys=step)
    return keys_of(
        loops,
        ScoreRules(program.host.name, target, planned, simpler),
        row=UMMA_ROWS,
        groups=(1, UMMA_GROUPS),
        keys=(step, _most_keys(problem, UMMA_KEYS)),
        step=step,
        first=first_of(choices, lambda choice: plan_umma_attention(problem, choice, target), least),
        fields=(
            Scalar(key="tcgen05_kv_stages", fragment=EnumFragment(stages), initial=None),
            Scalar(key="tcgen05_lazy_rescale", fragment=BooleanFragment(), initial=lazy),
            Scalar(key="tcgen05_polynomial", fragment=EnumFragment(exponentials), initial=None),
            Scalar(key="tcgen05_key_splits", fragment=EnumFragment(KEY_SPLITS), initial=1),
        ),
        absent=absent_keys("tcgen05"),
    )
