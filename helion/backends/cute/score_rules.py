"""The config keys that attention and its gradients share, and the rules that legalize a config before the plan checks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from ... import exc
from ..._compiler.decisions import Decisions
from ..._compiler.ir.grammar import Program
from ..._shapes import NeedsValue
from ..._support.records import dataclass, replace
from ...autotuner.space.fields import Field
from ...autotuner.space.own import OwnKeys, Rule
from ...hardware import Target
from .lower.attention.loops import Loops
from .lower.names import as_written
from .plan.attention.backward import BackwardChoice
from .plan.attention.records import AttentionChoice
from .plan.records import WGMMA_ROWS
from .plan.refusal import Refusal
from .space import DOCS, ELSEWHERE, VERBATIM_PREFIX

_OWN = {
    "wgmma": " has wgmma_kv_stages, wgmma_pingpong, wgmma_lazy_rescale and wgmma_tile_scheduler",
    "tcgen05": " on tcgen05 has tcgen05_kv_stages, tcgen05_lazy_rescale, tcgen05_polynomial and tcgen05_key_splits",
}
"""The keys of attention by unit, for messages."""
C = TypeVar("C", bound=AttentionChoice | BackwardChoice)

KEY_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of CTAs that share the keys of a tile. One more for each SM gains nothing (measurement ``decode_narrow``)."""


@dataclass(frozen=True)
class ScoreRules:
    """The rules of one attention, or of its gradients, on one target.

    ``planned`` returns the values of keys that a plan has filled in, or raises ``Refusal``. ``simpler`` are changes that
    make a config legal, in order.
    """

    kernel: str
    target: Target
    planned: Callable[[Decisions], dict[str, Any]]
    simpler: tuple[dict[str, Any], ...]

    def rules(self) -> tuple[Rule, ...]:
        return (
            Rule(why="the plan of attention visits its tiles in an order of its own", legalize=self._order),
            Rule(why="the plan is limited by what fits and what is implemented", legalize=self._plan),
        )

    def _order(self, decisions: Decisions, repair: bool) -> Decisions:
        entries = decisions.entries.get("loop_orders", {})
        decisions = decisions.with_entries("loop_orders", {place: sorted(order) for place, order in entries.items()})
        groups = decisions.entries.get("l2_groupings", {})
        decisions = decisions.with_entries("l2_groupings", dict.fromkeys(groups, 1))
        return decisions.with_values(epilogue_subtile=None)

    def _plan(self, decisions: Decisions, repair: bool) -> Decisions:
        """Fill in the stages that were left open. A refused plan is an error, or, with ``repair``, becomes a simpler
        one."""
        refusal: Refusal | None = None
        for tried in self._simpler(decisions) if repair else [decisions]:
            try:
                values = self.planned(tried)
            except Refusal as error:
                refusal = refusal or error
                continue
            return tried.with_values(**values)
        if repair:  # the tile is too large; the caller checks the needed resources
            return tried
        raise exc.InvalidConfig(f"{self.kernel} on {self.target}: {refusal}.")

    def _simpler(self, decisions: Decisions) -> Iterator[Decisions]:
        yield decisions
        for changes in self.simpler:
            decisions = decisions.with_values(**changes)
            yield decisions


def refusal_of(program: Program, target: Target, needs: str, check: Callable[[], object]) -> exc.Base | None:
    """Return why the backend cannot run a kernel on a target, or None. ``needs`` says for messages of sizes known at a launch
    which kernel depends on them."""
    try:
        if program.tunables:
            raise Refusal(f"it has tunables of its own: {', '.join(name for name, _ in program.tunables)}")
        check()
    except Refusal as error:
        reason = error
    except NeedsValue as error:
        reason = Refusal(f"a size that {needs} ({error})")
    else:
        return None
    return exc.CuteUnsupported(kernel=program.host.name, target=target, reason=as_written(program, reason))


def tile_that_is_set(loops: Loops, row: int, most: int, owned: str, least: C) -> C:
    """Return ``least`` with the groups of ``row`` rows, and keys, that the program sets. Raises ``Refusal``."""
    rows, keys = (loops.program.blocks[at].size for at in (loops.queries, loops.keys))
    if isinstance(rows, int) and (rows % row or not 0 < rows <= most * row):
        *sizes, last = (str(row * groups) for groups in range(1, most + 1))
        on = "" if row == WGMMA_ROWS else " on tcgen05"
        raise Refusal(f"the kernel sets tiles of {rows} {owned}; {', '.join(sizes)} and {last} are implemented{on}")
    groups = rows // row if isinstance(rows, int) else least.groups
    return replace(least, groups=groups, keys=keys if isinstance(keys, int) else least.keys)


def first_of(choices: Iterable[C], plan: Callable[[C], object], otherwise: C) -> C:
    """Return the tile that a search begins with: the first that has a plan."""
    for choice in choices:
        try:
            plan(choice)
        except Refusal:
            continue
        return choice
    return otherwise


def keys_of(
    loops: Loops,
    rules: ScoreRules,
    *,
    row: int,
    groups: tuple[int, int],
    keys: tuple[int, int],
    step: int,
    first: AttentionChoice | BackwardChoice,
    fields: tuple[Field, ...],
    absent: Mapping[str, str],
    sizes: Mapping[int, tuple[int, int]] | None = None,
    least: Mapping[int, int] | None = None,
) -> OwnKeys:
    """Return the keys of a kernel, and the bounds of its tiles: the least and most ``groups`` of ``row`` rows, and ``keys``."""
    blocks = loops.program.blocks
    bounds = {loops.queries: (groups[0] * row, groups[1] * row), loops.keys: keys}
    heads = {block: (1, 1) for block in loops.heads if blocks[block].kind == "tile"}
    return OwnKeys(
        fields=fields,
        absent=absent,
        verbatim=VERBATIM_PREFIX,
        rules=rules.rules(),
        sizes={**bounds, **heads, **(sizes or {})},
        initial={loops.queries: first.groups * row, loops.keys: first.keys},
        least={loops.keys: step} if least is None else least,
        multiples={loops.queries: row, loops.keys: step},
        holds_values=False,
        planned=True,
    )


def absent_keys(unit: str, lacking: Iterable[str] = ()) -> dict[str, str]:
    """Return the keys of other kernels, with the reason why those on ``unit`` have none of them: of matmuls, and for gradients
    ``lacking`` ones of attention."""
    why = f"it is for matmuls; attention{_OWN[unit]}"
    found = {f"{each}_{name}": why for each in ("wgmma", "tcgen05") for name in DOCS}
    if unit == "wgmma":
        del found["wgmma_pingpong"]
    found |= {name: reason.format(unit=unit) for name, reason in ELSEWHERE.items()}
    own = "it is for attention itself; this kernel computes its gradients"
    return found | {f"{unit}_{name}": own for name in lacking}
