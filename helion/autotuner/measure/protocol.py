"""Protocol of evaluators of configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ...config import Config
from ..outcome import Outcome


class Evaluator(Protocol):
    """Evaluator that compiles and times configs; a failure is an outcome, and never an exception."""

    @property
    def capacity(self) -> int:
        """The number of configs that may be in flight at once."""
        ...

    @property
    def waited(self) -> float:
        """Seconds of waiting for other processes' measurements on the same device."""
        ...

    def start(self, config: Config) -> None:
        """Start a config."""
        ...

    def finish(self) -> Outcome:
        """Return the outcome of the config that was started first, of those not finished."""
        ...

    def rounds(self, configs: Sequence[Config], count: int) -> Sequence[Mapping[Config, float]]:
        """Return microseconds of up to ``count`` rounds, each of which runs all ``configs`` once, in a random order.

        The configs must have worked before; those that fail now are missing.
        """
        ...

    def close(self) -> None:
        """End everything in flight."""
        ...
