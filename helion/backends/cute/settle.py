"""What goes together in a config of a matrix product: the plan says, and the rules here bring configs before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ... import exc
from ...autotuner.decisions import Decisions
from ...autotuner.space.own import Rule
from ...hardware import Target
from .limits import TCGEN05_ROWS
from .plan.build import plan_gemm, unit_of
from .plan.records import Choice, GemmPlan, GemmProblem
from .plan.refusal import Refusal

ONE_WARP_COLUMNS = 16
"""The fewest columns of a sub-tile."""


def key(name: str, target: Target) -> str:
    """A key of the matrix unit of ``target``: ``wgmma_ab_stages``, ``tcgen05_ab_stages``."""
    return f"{unit_of(target)}_{name}"


def choice_of(decisions: Decisions, blocks: Sequence[int], target: Target) -> Choice:
    """The decisions about a product whose M, N and K are ``blocks``, as its planner takes them."""

    def value(name: str, default: Any = None) -> Any:
        return decisions.values.get(key(name, target), default)

    m, n, k = (decisions.sizes[block] for block in blocks)
    return Choice(
        tile=(m, n, k),
        cluster=(value("cluster_m"), value("cluster_n")),
        ctas_per_mma=ctas_per_mma(m, target),
        ab_stages=value("ab_stages"),
        accumulator_stages=value("acc_stages"),
        store_stages=value("c_stages"),
        epilogue_n=value("epilogue_columns"),
        pingpong=value("pingpong", False),
        splits=value("k_splits", 1),
        grid_splits=value("grid_splits", 1),
        residual_stages=value("residual_stages", 2),
        group=next(iter(decisions.entries.get("l2_groupings", {}).values()), 1),
    )


def ctas_per_mma(rows: int, target: Target) -> int:
    """A tile of more rows than one CTA has lanes of tensor memory is that of a pair."""
    return 2 if target.has("tcgen05") and rows > TCGEN05_ROWS else 1


@dataclass(frozen=True)
class Settling:
    """The rules of one product on one target."""

    kernel: str
    problem: GemmProblem
    blocks: tuple[int, ...]
    target: Target

    def rules(self) -> tuple[Rule, ...]:
        return (
            Rule(why="the plan of a product sweeps its tiles in groups along M", settle=self._order),
            Rule(why="an epilogue is divided by its sub-tiles' columns", settle=self._subtile),
            Rule(
                why="a tile has at least two sub-tiles, and a whole number of times the buffers", settle=self._sub_tiles
            ),
            Rule(why="a tile of this many rows is that of a pair of CTAs", settle=self._pairs),
            Rule(why="it is as much as fits, or what is implemented", settle=self._plan),
        )

    def _key(self, name: str) -> str:
        return key(name, self.target)

    def _order(self, decisions: Decisions, repair: bool) -> Decisions:
        entries = decisions.entries.get("loop_orders", {})
        return decisions.having("loop_orders", {place: sorted(order) for place, order in entries.items()})

    def _subtile(self, decisions: Decisions, repair: bool) -> Decisions:
        return decisions.valued(epilogue_subtile=None)

    def _sub_tiles(self, decisions: Decisions, repair: bool) -> Decisions:
        width = decisions.sizes[self.blocks[1]]
        columns = min(decisions.values[self._key("epilogue_columns")], max(width // 2, ONE_WARP_COLUMNS))
        stages = min(decisions.values[self._key("c_stages")], max(width // columns, 2))
        return decisions.valued(**{self._key("epilogue_columns"): columns, self._key("c_stages"): stages})

    def _pairs(self, decisions: Decisions, repair: bool) -> Decisions:
        least = ctas_per_mma(decisions.sizes[self.blocks[0]], self.target)
        rows = decisions.values[self._key("cluster_m")]
        return decisions.valued(**{self._key("cluster_m"): max(least, rows)})

    def _plan(self, decisions: Decisions, repair: bool) -> Decisions:
        """Fills in what was left open. A plan that is refused is an error, or brought to one that is not."""
        refusal: Refusal | None = None
        for tried in self._simpler(decisions) if repair else [decisions]:
            try:
                return self._filled(
                    tried, plan_gemm(self.problem, choice_of(tried, self.blocks, self.target), self.target)
                )
            except Refusal as error:
                refusal = refusal or error
        if repair:  # the tile is too large; who made the config asks what it takes
            return tried
        raise exc.InvalidConfig(f"{self.kernel} on {self.target}: {refusal}.")

    def _simpler(self, decisions: Decisions) -> Iterator[Decisions]:
        """The decisions, and each with less than the one before."""
        yield decisions
        pair = ctas_per_mma(decisions.sizes[self.blocks[0]], self.target)
        width = decisions.sizes[self.blocks[1]]
        for changes in (
            {"ab_stages": None, "acc_stages": None, "residual_stages": 2},
            {"pingpong": False, "k_splits": 1, "grid_splits": 1},
            {"cluster_m": pair, "cluster_n": 1},
            {"c_stages": 2},
            {"epilogue_columns": min(ONE_WARP_COLUMNS, width)},
            {"ab_stages": 2},
        ):
            known = {self._key(name): value for name, value in changes.items()}
            decisions = decisions.valued(**{k: v for k, v in known.items() if k in decisions.values})
            yield decisions

    def _filled(self, decisions: Decisions, plan: GemmPlan) -> Decisions:
        stages = {self._key("ab_stages"): plan.ab_stages}
        if self._key("acc_stages") in decisions.values:
            stages[self._key("acc_stages")] = plan.accumulator_stages
        return decisions.valued(**stages)
