"""Which heuristics there are, per backend, the most specific first. The last one of each always applies."""

from __future__ import annotations

from .base import Heuristic

HEURISTICS: dict[str, tuple[Heuristic, ...]] = {"triton": ()}


def promotes(name: str) -> bool:
    """Whether the first seed of heuristic ``name`` may become the default config."""
    return any(h.promote_seed_to_default for rules in HEURISTICS.values() for h in rules if h.name == name)
