"""What the binaries of a kernel's seeds say about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..config import Config


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A config that does not run, and why, in words with numbers; ``fits`` if it could be launched."""

    config: Config
    reason: str
    fits: bool


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The config that runs where nobody asked for one, and those that were compiled and do not."""

    config: Config
    rejected: tuple[Rejected, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As data that JSON can hold."""
        rejected = [{"config": r.config.to_dict(), "reason": r.reason, "fits": r.fits} for r in self.rejected]
        return {"config": self.config.to_dict(), "rejected": rejected}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Verdict:
        """Raises KeyError, TypeError, ValueError or AttributeError for what ``to_dict`` does not give."""
        rejected = (
            Rejected(config=Config.from_dict(each["config"]), reason=str(each["reason"]), fits=bool(each["fits"]))
            for each in data["rejected"]
        )
        return cls(config=Config.from_dict(data["config"]), rejected=tuple(rejected))


__all__ = ["Rejected", "Verdict"]
