"""The config keys of a row kernel, and the rule that legalizes a config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import exc
from ..._compiler.decisions import Decisions
from ..._compiler.ir.grammar import Program
from ..._shapes import next_power_of_2
from ..._support.records import dataclass
from ...autotuner.space.fields import Scalar
from ...autotuner.space.own import OwnKeys, Rule
from ...autotuner.space.program_shape import ProgramShape
from ...fields import EnumFragment
from ...hardware import Target
from ...settings import Settings
from .limits import LEAST_COLUMNS
from .lower.names import as_written
from .lower.rowwise.kernel import choice_of, known_rows
from .lower.rowwise.rows import RowKernel
from .plan.refusal import Refusal
from .plan.rowwise.choice import RowChoice
from .plan.rowwise.choices import ranked
from .plan.rowwise.layout import layout_of
from .plan.rowwise.passes import demand_of
from .plan.rowwise.records import RowLayout
from .plan.rowwise.time import fastest_span
from .space import DOCS as PRODUCT_KEYS
from .space import ELSEWHERE, VERBATIM_PREFIX

#: Config keys of a row kernel, and their meaning.
DOCS: dict[str, str] = {
    "cute_row_cluster": "CTAs of a cluster that hold a row together.",
    "cute_row_warps": "Warps of a row in each CTA.",
    "cute_row_ctas_per_sm": "CTAs per SM: the exchange of one overlaps the loads and stores of the other. More than 8 load their own rows.",
    "cute_row_keep": "Place of a row between passes: `registers`, or `shared` memory, from which it is read again.",
    "cute_row_ahead": "Reduce the next row before the exchange of a row is awaited: that needs memory for two rows.",
    "cute_row_overlap": "Map a row with sums while the second one after it is reduced: that needs memory for three rows.",
}

SIMILAR = 5
"""Decisions, of six, that a legal layout shares with the one that does not fit and that it replaces."""
LAYOUT = "warps, stages and copies of a row kernel follow from cute_row_cluster, cute_row_warps and the like"


def own_keys(shape: ProgramShape, program: Program, target: Target, settings: Settings) -> OwnKeys:
    """Return the keys of a row kernel, the bounds of its tiles, and the rule that legalizes a config.

    The tile of rows is the number of rows that a CTA works on at a time. Tiles of columns have no meaning here.
    """
    kernel = known_rows(program)
    found = ranked(demand_of(kernel.problem), kernel.problem.m, target, tiled=not kernel.fixed)
    legalizer = RowSettling(program, kernel, target, found)
    blocks = {block.id: block for block in program.blocks}
    columns = [block for block in kernel.columns if blocks[block].tunable]
    width = next_power_of_2(kernel.problem.n) if kernel.one_tile else LEAST_COLUMNS
    sizes = dict.fromkeys(columns, (width, width))
    sizes |= {block: (1, 1) for block in kernel.others if blocks[block].tunable}
    initial, multiples = {}, {}
    if not kernel.fixed:
        rows = {layout.choice.rows for layout in found}
        sizes[kernel.rows] = (min(rows), max(rows))
        initial[kernel.rows] = found[0].choice.rows
    if kernel.blocks is not None and blocks[kernel.blocks].tunable:
        sizes[kernel.blocks] = (1, next_power_of_2(kernel.problem.m))
        initial[kernel.blocks], _ = fastest_span(found[0], kernel.problem.m, target)
        multiples[kernel.blocks] = 1
    return OwnKeys(
        fields=(
            _field("cute_row_cluster", [layout.choice.cluster for layout in found]),
            _field("cute_row_warps", [layout.choice.warps for layout in found]),
            _field("cute_row_ctas_per_sm", [layout.choice.ctas_per_sm for layout in found]),
            _field("cute_row_keep", [layout.choice.keep for layout in found]),
            _field("cute_row_ahead", [layout.choice.ahead for layout in found]),
            _field("cute_row_overlap", [layout.choice.overlap for layout in found]),
        ),
        absent=_absent(),
        verbatim=VERBATIM_PREFIX,
        rules=(Rule(why="the layout of rows is limited by what fits", legalize=legalizer.legalize),),
        sizes=sizes,
        initial=initial,
        multiples=multiples,
        holds_values=False,
        planned=True,
        rolls=False,
    )


def _absent() -> dict[str, str]:
    """Return the keys of other backends, and those of GEMMs, with the reason."""
    units = [f"{unit}_{name}" for unit in ("wgmma", "tcgen05") for name in PRODUCT_KEYS]
    return {**dict.fromkeys(ELSEWHERE, LAYOUT), **dict.fromkeys(units, "the kernel has no matmul")}


def _field(key: str, values: Sequence[Any]) -> Scalar:
    """Return the field of a key: the values of all layouts that fit, beginning with that of the best one."""
    return Scalar(key=key, fragment=EnumFragment(tuple(sorted({*values}))), initial=values[0])


@dataclass(frozen=True)
class RowSettling:
    """The rule of one row kernel on one target; ``found`` are the layouts that fit, the fastest first."""

    program: Program
    kernel: RowKernel
    target: Target
    found: tuple[RowLayout, ...]

    def legalize(self, decisions: Decisions, repair: bool) -> Decisions:
        """Return decisions whose layout fits: with ``repair`` the most similar ones, of the fastest first."""
        decisions = (
            decisions.with_values(epilogue_subtile=None) if "epilogue_subtile" in decisions.values else decisions
        )
        asked = choice_of(decisions, self.kernel.tile)
        try:
            layout_of(self.found[0].demand, asked, self.target)
        except Refusal as refusal:
            if not repair:
                reason = as_written(self.program, refusal)
                raise exc.InvalidConfig(f"{self.program.host.name} on {self.target}: {reason}.") from refusal
            return self._nearest(decisions, asked)
        return decisions

    def _nearest(self, decisions: Decisions, asked: RowChoice) -> Decisions:
        allowed = [each.choice for each in self.found if each.choice.rows == asked.rows]
        if not allowed:
            return decisions
        similar = [each for each in allowed if _common(each, asked) >= SIMILAR]
        best = (similar or allowed)[0]
        return decisions.with_values(
            cute_row_cluster=best.cluster,
            cute_row_warps=best.warps,
            cute_row_ctas_per_sm=best.ctas_per_sm,
            cute_row_keep=best.keep,
            cute_row_ahead=best.ahead,
            cute_row_overlap=best.overlap,
        )


def _common(one: RowChoice, other: RowChoice) -> int:
    names = ("cluster", "warps", "ctas_per_sm", "keep", "ahead", "overlap")
    return sum(getattr(one, name) == getattr(other, name) for name in names)
