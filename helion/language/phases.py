"""Order between the device loops of one kernel."""

from __future__ import annotations

from ._registry import declare, reference


@declare("host")
def barrier() -> None:
    """Order two device loops at the top level: writes of the loops before the barrier are visible to the loops after
    it.

    The loops before and after it become kernels of their own, launched in order.

    Raises:
        exc.BarrierOnlyAllowedAtTopLevel: it is inside a device loop.

    Example::

        @helion.kernel
        def normalize(x: torch.Tensor) -> torch.Tensor:
            largest = torch.zeros([1], device=x.device)
            out = torch.empty_like(x)
            for tile in hl.tile(x.size(0)):
                hl.atomic_max(largest, [0], torch.amax(x[tile].abs()))
            hl.barrier()
            for tile in hl.tile(x.size(0)):
                out[tile] = x[tile] / largest[0]
            return out

        normalize(torch.randn(100))
    """


@reference(barrier, "raw")
def _barrier() -> None:
    """Return at once: eager loops run one after the other."""
