"""Order between the device loops of one kernel."""

from __future__ import annotations

from ._registry import declare, reference


@declare("host")
def barrier() -> None:
    """Between two device loops at the top level: everything the loops before wrote is visible to those behind."""


@reference(barrier, "raw")
def _barrier() -> None:
    """Eager loops run one after the other."""
