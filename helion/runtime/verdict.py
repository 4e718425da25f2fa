"""Verdicts on a kernel's seeds by their binaries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..config import Config


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A config that does not run, with the reason; ``fits`` if it could be launched."""

    config: Config
    reason: str
    fits: bool


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The config that runs if none was requested, and those that were compiled and rejected."""

    config: Config
    rejected: tuple[Rejected, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as JSON data."""
        rejected = [{"config": r.config.to_dict(), "reason": r.reason, "fits": r.fits} for r in self.rejected]
        return {"config": self.config.to_dict(), "rejected": rejected}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Verdict:
        """Make a verdict from ``to_dict``'s data.

        Raises KeyError, TypeError, ValueError or AttributeError for any other.
        """
        rejected = (
            Rejected(config=Config.from_dict(each["config"]), reason=str(each["reason"]), fits=bool(each["fits"]))
            for each in data["rejected"]
        )
        return cls(config=Config.from_dict(data["config"]), rejected=tuple(rejected))


__all__ = ["Rejected", "Verdict"]
