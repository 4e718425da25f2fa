"""A heuristic's proposal for the keys of a matrix unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...autotuner.proposal import Proposal


@dataclass(frozen=True, kw_only=True)
class CuteProposal(Proposal):
    """A proposal with ``unit``, keys of the matrix unit with their full names: ``wgmma_cluster_m`` and so on."""

    unit: Mapping[str, Any] = field(default_factory=dict)

    @property
    def values(self) -> Mapping[str, Any]:
        return self.unit
