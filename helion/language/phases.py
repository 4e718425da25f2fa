"""Order between the device loops of one kernel."""

from __future__ import annotations

from ._registry import declare


@declare("host")
def barrier() -> None:
    """Between two device loops at the top level: everything the loops before wrote is visible to those behind."""
