"""Rules that legalize the config of a GEMM before the plan checks it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from ... import exc
from ..._compiler.decisions import Decisions
from ..._support.records import dataclass
from ...autotuner.space.own import Rule
from ...hardware import Target
from .bounds import columns_of, ctas_per_mma, least_rows, lies_in_memory, places_of_copies, row_clusters, tile_bounds
from .plan.build import plan_gemm, unit_of
from .plan.records import Choice, GemmPlan, GemmProblem
from .plan.refusal import Refusal
from .subtiles import ONE_WARP_COLUMNS, buffers_of, subtile_of

MEMORY_GROUP = 8
"""Tiles along M per group of the tile order where rows are in global memory."""
TILE_COLUMNS = (64, 128, 256)
"""Tile columns where rows are in global memory."""
CLUSTER_HELD = {"pingpong": False, "k_splits": 1, "grid_splits": 1, "split_tiles": "all"}
"""The values that configs need where a cluster holds rows."""


class Asked(Protocol):
    """A GEMM before any decision; ``blocks`` are those of M, N and K.

    With ``whole_rows`` the config has no tile of columns: the CTAs of a cluster share the columns. With a ``depth``, the K
    of a tile, it has no tile of K. ``fixed`` are tile sizes that the program sets, of columns where its own are of pairs.
    """

    @property
    def problem(self) -> GemmProblem: ...
    @property
    def blocks(self) -> tuple[int, int, int]: ...
    @property
    def whole_rows(self) -> bool: ...
    @property
    def depth(self) -> int | None: ...
    @property
    def fixed(self) -> Mapping[int, int]: ...


def key(name: str, target: Target) -> str:
    """Return the name of a key of the matrix unit of ``target``: ``wgmma_ab_stages``, ``tcgen05_ab_stages``."""
    return f"{unit_of(target)}_{name}"


def choice_of(decisions: Decisions, asked: Asked, target: Target) -> Choice:
    """Return the decisions about a GEMM as the planner's choice."""

    def value(name: str, default: Any = None) -> Any:
        return decisions.values.get(key(name, target), default)

    m, _, k = (decisions.sizes[block] for block in asked.blocks)
    rows_in = value("rows_in", "cluster")
    group = MEMORY_GROUP if rows_in == "memory" else 1
    return Choice(
        tile=(m, width_of(decisions, asked, target), asked.depth or k),
        cluster=(value("cluster_m"), value("cluster_n")),
        rows_in=rows_in,
        copies_in=value("copies_in", "shared"),
        ctas_per_mma=ctas_per_mma(m, target),
        ab_stages=value("ab_stages"),
        accumulator_stages=value("acc_stages"),
        store_stages=value("c_stages"),
        epilogue_n=value("epilogue_columns"),
        pingpong=value("pingpong", False),
        splits=value("k_splits", 1),
        grid_splits=value("grid_splits", 1),
        split_last=value("grid_splits", 1) > 1 and value("split_tiles") == "last",
        ctas_per_sm=value("ctas_per_sm", 1),
        residual_stages=value("residual_stages", 2),
        group=next(iter(decisions.entries.get("l2_groupings", {}).values()), group),
    )


def width_of(decisions: Decisions, asked: Asked, target: Target) -> int:
    """Return the columns of a tile."""
    if decisions.values.get(key("rows_in", target)) == "memory":
        return decisions.values[key("tile_columns", target)]
    if asked.whole_rows:
        return columns_of(asked.problem, decisions.values[key("cluster_n", target)], target)
    columns = asked.blocks[1]
    return asked.fixed.get(columns, decisions.sizes[columns])


@dataclass(frozen=True)
class Legalizer:
    """The rules of one GEMM on one target."""

    kernel: str
    product: Asked
    target: Target

    def rules(self) -> tuple[Rule, ...]:
        return (
            Rule(why="the plan of a matmul visits its tiles in groups along M", legalize=self._order),
            Rule(why="either all CTAs of a cluster hold whole rows, or none does", legalize=self._rows),
            Rule(why="the epilogue is divided by the columns of its sub-tiles", legalize=self._subtile),
            Rule(why="a tile has at least two sub-tiles, a multiple of the store buffers", legalize=self._sub_tiles),
            Rule(why="a tile of this many rows needs a pair of CTAs", legalize=self._pairs),
            Rule(why="the plan is limited by what fits and what is implemented", legalize=self._plan),
        )

    def _key(self, name: str) -> str:
        return key(name, self.target)

    def _order(self, decisions: Decisions, repair: bool) -> Decisions:
        entries = decisions.entries.get("loop_orders", {})
        return decisions.with_entries("loop_orders", {place: sorted(order) for place, order in entries.items()})

    def _rows(self, decisions: Decisions, repair: bool) -> Decisions:
        if self._too_few_rows(decisions):
            decisions = self._with(decisions, {"rows_in": "memory"})
        if decisions.values.get(self._key("rows_in")) == "memory":
            return decisions.with_values(**{self._key("cluster_n"): 1})
        columns = min(tile_bounds(self.product.problem, self.target)[1][1], TILE_COLUMNS[-1])
        decisions = self._with(decisions, {"tile_columns": columns})
        if not (repair or self._is_full(decisions)) or not self.product.whole_rows:
            return decisions
        decisions = self._with(decisions, CLUSTER_HELD) if self.product.problem.epilogue.reduces_rows else decisions
        problem, name = self.product.problem, self._key("cluster_n")
        rows, wanted = decisions.sizes[self.product.blocks[0]], decisions.values[name]
        known = [each for each in row_clusters(problem, self.target) if least_rows(problem, each) <= rows] or [wanted]
        return decisions.with_values(**{name: min(known, key=lambda each: abs(each - wanted))})

    def _too_few_rows(self, decisions: Decisions) -> bool:
        """Return whether tiles have fewer rows than slices of A for the CTAs of a cluster; rows in memory avoid this."""
        problem = self.product.problem
        if not self.product.whole_rows or not lies_in_memory(problem):
            return False
        rows = decisions.sizes[self.product.blocks[0]]
        return all(least_rows(problem, ctas) > rows for ctas in row_clusters(problem, self.target))

    def _with(self, decisions: Decisions, changes: Mapping[str, Any]) -> Decisions:
        """Return the decisions with those of `changes` that the GEMM has keys for."""
        known = {self._key(name): value for name, value in changes.items()}
        return decisions.with_values(**{name: value for name, value in known.items() if name in decisions.values})

    def _subtile(self, decisions: Decisions, repair: bool) -> Decisions:
        return decisions.with_values(epilogue_subtile=None)

    def _sub_tiles(self, decisions: Decisions, repair: bool) -> Decisions:
        width = width_of(decisions, self.product, self.target)
        parts = (each.columns.size for each in self.product.problem.outputs if each.columns is not None)
        wanted = min((decisions.values[self._key("epilogue_columns")], *parts))
        columns = subtile_of(width, wanted, divided=False)
        stages = buffers_of(width // columns, decisions.values[self._key("c_stages")])
        return decisions.with_values(**{self._key("epilogue_columns"): columns, self._key("c_stages"): stages})

    def _pairs(self, decisions: Decisions, repair: bool) -> Decisions:
        least = ctas_per_mma(decisions.sizes[self.product.blocks[0]], self.target)
        rows = decisions.values[self._key("cluster_m")]
        return decisions.with_values(**{self._key("cluster_m"): max(least, rows)})

    def _plan(self, decisions: Decisions, repair: bool) -> Decisions:
        """Fill in the values that were left open.

        A refused plan is an error. With ``repair``, and for a full config, which may be that of other sizes, it becomes
        a simpler one.
        """
        refusal: Refusal | None = None
        for tried in self._simpler(decisions) if repair or self._is_full(decisions) else [decisions]:
            try:
                choice = choice_of(tried, self.product, self.target)
                return self._filled(tried, plan_gemm(self.product.problem, choice, self.target))
            except Refusal as error:
                refusal = refusal or error
        if repair:  # the tile is too large; the caller checks the needed resources
            return tried
        raise exc.InvalidConfig(f"{self.kernel} on {self.target}: {refusal}.")

    def _is_full(self, decisions: Decisions) -> bool:
        """Return whether the config named every key of the matrix unit, as the configs of bound kernels do."""
        own = (name for name in decisions.values if name.startswith(self._key("")))
        return "block_sizes" in decisions.given and decisions.given.issuperset(own)

    def _simpler(self, decisions: Decisions) -> Iterator[Decisions]:
        """Yield the decisions, then simpler ones, each with less than the one before."""
        yield decisions
        pair = ctas_per_mma(decisions.sizes[self.product.blocks[0]], self.target)
        whole = self.product.whole_rows and decisions.values.get(self._key("rows_in")) != "memory"
        least = row_clusters(self.product.problem, self.target)[0] if whole else 1
        places = places_of_copies(self.product.problem, self.target)
        columns = tile_bounds(self.product.problem, self.target)[1][1]
        for changes in (
            {"ab_stages": None, "residual_stages": 2},
            {"acc_stages": None if unit_of(self.target) == "tcgen05" else 1},
            {"copies_in": "memory"} if "memory" in places else {},
            {"split_tiles": "all"},
            {"pingpong": False, "k_splits": 1, "grid_splits": 1, "ctas_per_sm": 1},
            {"cluster_m": pair},
            {"cluster_n": least},
            {"c_stages": 2},
            {"epilogue_columns": ONE_WARP_COLUMNS},
            {"ab_stages": 2},
            # Warps that fill stages need no slices of a copy, whose CTAs load whole swizzle atoms each.
            {"copies_in": "shared"} if "shared" in places else {},
            # No cluster of this tile holds the rows, as where a tile of two CTAs meets rows that 16 share.
            {"rows_in": "memory", "cluster_n": 1} if whole and lies_in_memory(self.product.problem) else {},
            {"tile_columns": min(columns, TILE_COLUMNS[0])} if lies_in_memory(self.product.problem) else {},
        ):
            decisions = self._sub_tiles(self._with(decisions, changes), True)
            yield decisions

    def _filled(self, decisions: Decisions, plan: GemmPlan) -> Decisions:
        stages = {self._key("ab_stages"): plan.ab_stages}
        if self._key("acc_stages") in decisions.values:
            stages[self._key("acc_stages")] = plan.accumulator_stages
        whole = self._with(decisions, {} if plan.whole_tiles else {"split_tiles": "all"})
        return whole.with_values(**stages)
