"""Proposals of a heuristic for Triton's own keys."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar

from ..._support.records import dataclass, field
from ...autotuner.proposal import Proposal


@dataclass(frozen=True, kw_only=True)
class TritonProposal(Proposal):
    """A proposal with Triton's keys.

    ``eviction`` maps a load slot to ``""``, ``"first"`` or ``"last"``. ``ranges`` has options of loops
    (``config.RANGE_OPTIONS``) by key, each by the block id of a loop. ``indexing`` maps a memory slot; the others keep
    their default. ``launch`` has further config keys verbatim
    (``waves_per_eu`` ...).
    """

    flattens_runs: ClassVar[bool] = True

    eviction: Mapping[int, str] = field(default_factory=dict)
    indexing: Mapping[int, str] = field(default_factory=dict)
    ranges: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)
    num_warps: int | None = None
    num_stages: int | None = None
    pid_type: str | None = None
    launch: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def lists(self) -> Mapping[str, Mapping[int, Any]]:
        return {
            **super().lists,
            "load_eviction_policies": self.eviction,
            "indexing": self.indexing,
            **self.ranges,
        }

    @property
    def values(self) -> Mapping[str, Any]:
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, "pid_type": self.pid_type}

    @property
    def verbatim(self) -> Mapping[str, Any]:
        return self.launch
