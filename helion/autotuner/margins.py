"""Ratios of predicted times at which one config replaces another as the default, for all backends.

A prediction is 10 to 20 % off, so close predictions do not decide. The order of the heuristics does.
"""

from __future__ import annotations

from .._support.records import dataclass

#: Ratio of predicted times from which any other seed replaces the first promoted one.
FASTER_RATIO = 2.0
#: Speedup from which a config that is predicted to spill replaces one that is not.
SPILLING_RATIO = 4.0
#: Ratio below which predicted times of two halved tiles count as equal.
SAME_TIME_RATIO = 1.25


@dataclass(frozen=True, kw_only=True)
class Lead:
    """The lead in predicted time from which a kernel leaves the general backend.

    Its time has to be less than ``ratio`` times the general backend's, and ``saved_us`` microseconds shorter. The general
    backend's predicted time is multiplied by ``corrected`` before, where it is known to be off for a kind of kernel.
    """

    ratio: float = 1.0
    saved_us: float = 0.0
    corrected: float = 1.0

    def handicapped(self, us: float) -> float:
        """Return the time of the general backend above which a kernel of ``us`` microseconds replaces it."""
        return max(us / self.ratio, us + self.saved_us) / self.corrected


NO_LEAD = Lead()
#: Smaller differences are within the error of the prediction.
PREDICTABLE_LEAD = Lead(ratio=0.97)
