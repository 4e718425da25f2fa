"""Order between the device loops of one kernel."""

from __future__ import annotations

from ._registry import declare, reference


@declare("host")
def barrier() -> None:
    """Order two device loops at the top level: what the loops before it wrote is visible to those behind it.

    The loops before and behind it become kernels of their own, launched in order.

    Raises:
        exc.BarrierOnlyAllowedAtTopLevel: it stands in a device loop.
    """


@reference(barrier, "raw")
def _barrier() -> None:
    """Eager loops run one after the other."""
