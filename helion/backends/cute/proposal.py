"""What a heuristic proposes of the keys of a matrix unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...autotuner.proposal import Proposal


@dataclass(frozen=True, kw_only=True)
class CuteProposal(Proposal):
    """``unit`` are keys of the matrix unit, whole: ``wgmma_cluster_m`` and so on."""

    unit: Mapping[str, Any] = field(default_factory=dict)

    @property
    def values(self) -> Mapping[str, Any]:
        return self.unit
