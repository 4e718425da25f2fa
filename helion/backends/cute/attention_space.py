"""The config keys of attention, and the rules that legalize a config before the plan checks it."""

from __future__ import annotations

from typing import Any

from ... import exc
from ..._compiler.decisions import Decisions
from ..._compiler.ir.grammar import Block, Program
from ..._shapes import NeedsValue, hint_of, next_power_of_2
from ...autotuner.space.fields import Scalar
from ...autotuner.space.own import OwnKeys
from ...autotuner.space.program_shape import ProgramShape
from ...fields import BooleanFragment, EnumFragment
from ...hardware import Target
from ...settings import Settings
from .lower.attention.kernel import known_attention
from .lower.attention.recognise import Attention
from .lower.names import as_written
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
from .plan.records import WGMMA_ROWS
from .plan.refusal import Refusal
from .resources.attention import choice_of
from .score_rules import KEY_SPLITS, ScoreRules
from .space import DOCS, ELSEWHERE, VERBATIM_PREFIX
from .umma_attention_space import UMMA_DOCS, smallest_umma, umma_keys

FIRST_KEYS = 64
"""Keys of a block that a search begins with."""
ATTENTION_DOCS: dict[str, str] = {
    "kv_stages": "Pipeline stages of K and of V in shared memory; None is as many as fit.",
    "lazy_rescale": "Whether the accumulator of attention is rescaled only where a row maximum grows by more than 2**8.",
    "key_splits": "CTAs that share the keys of a tile of queries; the last one to arrive combines their results.",
    "bias_stages": "Pipeline stages of a bias per query and key, which TMA loads to shared memory; 0 loads it to registers.",
    "tile_scheduler": "Order of attention's tiles: `static`, a fixed stride, or `dynamic`, a counter in global memory.",
    **UMMA_DOCS,
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
    try:
        if program.tunables:
            raise Refusal(f"it has tunables of its own: {', '.join(name for name, _ in program.tunables)}")
        found = known_attention(program)
        check_quads(found.problem)
        reason = smallest_umma(found, target) if target.has("tcgen05") else _smallest(found, target)
    except Refusal as error:
        reason = error
    except NeedsValue as error:
        reason = Refusal(f"a size that attention depends on is known only when it runs ({error})")
    if reason is None:
        return None
    return exc.CuteUnsupported(kernel=program.host.name, target=target, reason=as_written(program, reason))


def _smallest(found: Attention, target: Target) -> Refusal | None:
    """Return why no smallest tile, of the sizes that the program sets, has a plan, or None."""
    blocks = found.loops.program.blocks
    rows, keys = (blocks[at].size for at in (found.loops.queries, found.loops.keys))
    if isinstance(rows, int) and (rows % WGMMA_ROWS or not 0 < rows <= MOST_GROUPS * WGMMA_ROWS):
        return Refusal(f"the kernel sets tiles of {rows} queries; 64, 128 and 192 are implemented")
    groups = rows // WGMMA_ROWS if isinstance(rows, int) else 1
    choice = AttentionChoice(groups=groups, keys=keys if isinstance(keys, int) else key_step(found.problem))
    try:
        plan_attention(found.problem, choice, target)
    except Refusal as error:
        return error
    return None


def _first_choice(problem: AttentionProblem, most_keys: int, target: Target) -> AttentionChoice:
    """Return the tile that a search begins with: the first of a few sizes that has a plan."""
    step = key_step(problem)
    for keys in (min(FIRST_KEYS, most_keys), *(each for each in (FIRST_KEYS // 2, step) if each < most_keys)):
        for groups in (1,) if problem.latent else (2, 1):
            choice = AttentionChoice(groups=groups, keys=keys)
            try:
                plan_attention(problem, choice, target)
            except Refusal:
                continue
            return choice
    return AttentionChoice(groups=1, keys=step)


def attention_keys(shape: ProgramShape, program: Program, target: Target, settings: Settings) -> OwnKeys:
    """Return the keys of attention, the bounds of its tiles, and the rules that legalize a config."""
    if target.has("tcgen05"):
        return umma_keys(program, target)
    found = known_attention(program)
    loops = found.loops
    pages, step = found.problem.k.pages, key_step(found.problem)
    most = MOST_KEYS if pages is None else min(MOST_KEYS, pages.size & -pages.size)  # a power of two that divides it
    most_groups = 1 if found.problem.latent else MOST_GROUPS
    sizes = {loops.queries: (WGMMA_ROWS, most_groups * WGMMA_ROWS), loops.keys: (step, most)}
    sizes |= {block: (1, 1) for block in loops.heads if program.blocks[block].kind == "tile"}
    sizes |= {block: (whole, whole) for block in found.gone if (whole := one_tile(program.blocks[block]))}
    stages = EnumFragment((None, *range(LEAST_STAGES, MOST_STAGES + 1)))
    first = _first_choice(found.problem, most, target)
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

    return OwnKeys(
        fields=(
            Scalar(key="wgmma_kv_stages", fragment=stages, initial=None),
            Scalar(key="wgmma_pingpong", fragment=BooleanFragment(), initial=False),
            Scalar(key="wgmma_lazy_rescale", fragment=BooleanFragment(), initial=False),
            Scalar(key="wgmma_key_splits", fragment=EnumFragment(KEY_SPLITS), initial=1),
            Scalar(key="wgmma_tile_scheduler", fragment=EnumFragment(("static", "dynamic")), initial="static"),
            *([Scalar(key=BIAS_STAGES, fragment=EnumFragment((0, 1, 2, 3)), initial=0)] if bias else []),
        ),
        absent={**absent_keys(), **({} if bias else {BIAS_STAGES: NO_BIAS})},
        verbatim=VERBATIM_PREFIX,
        rules=ScoreRules(program.host.name, target, planned, simpler).rules(),
        sizes=sizes,
        initial={loops.queries: first.groups * WGMMA_ROWS, loops.keys: first.keys},
        least={loops.keys: step},
        multiples={loops.queries: WGMMA_ROWS, loops.keys: step},
        holds_values=False,
        planned=True,
    )


def one_tile(block: Block) -> int:
    """Return the size of one tile of a block that a rewrite has taken out of the kernel; 0 for no tile of the config's.

    The host may allocate memory for each tile.
    """
    return 0 if block.kind != "tile" or block.extent is None else next_power_of_2(hint_of(block.extent))


def absent_keys() -> dict[str, str]:
    """Return the keys of matmuls, with the reason why attention has none of them."""
    why = "is for matmuls; attention has wgmma_kv_stages, wgmma_pingpong, wgmma_lazy_rescale and wgmma_tile_scheduler"
    of_matmul = {f"{unit}_{name}": f"it {why}" for unit in ("wgmma", "tcgen05") for name in DOCS if name != "pingpong"}
    elsewhere = {name: reason.format(unit="wgmma") for name, reason in ELSEWHERE.items()}
    return {**of_matmul, "tcgen05_pingpong": f"it {why}", **elsewhere}
