"""What tries configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ...config import Config
from ..outcome import Outcome


class Evaluator(Protocol):
    """Compiles and times configs; what goes wrong with one is its outcome, and never an exception."""

    @property
    def capacity(self) -> int:
        """How many configs may be under way at once."""
        ...

    @property
    def waited(self) -> float:
        """Seconds for which measuring has waited until other processes had measured on the same device."""
        ...

    def start(self, config: Config) -> None:
        """Begins with a config."""
        ...

    def finish(self) -> Outcome:
        """What became of the config that was started first, of those not finished."""
        ...

    def rounds(self, configs: Sequence[Config], count: int) -> Sequence[Mapping[Config, float]]:
        """Microseconds of ``count`` rounds or fewer, in each of which every one of ``configs``, which have worked, runs once, in an
        order drawn anew; without those that do not work any more."""
        ...

    def close(self) -> None:
        """Ends everything that is under way."""
        ...
