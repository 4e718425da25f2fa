"""The rules that legalize a config of attention, or of its gradients, before the plan checks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ... import exc
from ..._compiler.decisions import Decisions
from ...autotuner.space.own import Rule
from ...hardware import Target
from .plan.refusal import Refusal

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
