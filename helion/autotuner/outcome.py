"""The outcome of one config that was tried."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

from ..config import Config


class Status(enum.Enum):
    """Status of an outcome. ``OK`` has a time. ``PRUNED`` was never compiled: it is predicted to be far from the best.
    ``UNTIMED`` compiles; there was no time, or no reason, to time it. ``NO_MEMORY``: the GPU's memory was taken, which
    says nothing about the config.
    """

    OK = "ok"
    PRUNED = "pruned"
    UNTIMED = "untimed"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    CRASHED = "crashed"
    INACCURATE = "inaccurate"
    NO_MEMORY = "no memory"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """An outcome: ``microseconds`` of device time (None unless ``OK``), ``compile_seconds``, and the error for users."""

    config: Config
    status: Status
    microseconds: float | None = None
    compile_seconds: float | None = None
    detail: str = ""

    @property
    def time(self) -> float:
        """Microseconds, infinite for a failure."""
        return math.inf if self.microseconds is None else self.microseconds

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON data."""
        return {
            "config": self.config.to_dict(),
            "status": self.status.value,
            "microseconds": self.microseconds,
            "compile_seconds": self.compile_seconds,
            "detail": self.detail,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Outcome:
        """Make an outcome from ``to_dict``'s data. Raises KeyError, TypeError or ValueError for any other."""
        microseconds = data["microseconds"]
        if microseconds is not None and not 0 < float(microseconds) < math.inf:
            raise ValueError(f"{microseconds!r} is no time")
        return cls(
            config=Config.from_dict(data["config"]),
            status=Status(data["status"]),
            microseconds=None if microseconds is None else float(microseconds),
            compile_seconds=data.get("compile_seconds"),
            detail=str(data.get("detail", "")),
        )
