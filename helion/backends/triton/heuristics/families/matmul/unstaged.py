"""One pipeline stage for steps of several matmuls, such as the taps of a convolution.

A pipeline holds the operands of all matmuls of a step in each stage, which leaves room for small tiles alone. Without
one, each matmul has shared memory in turn, and the loads of one are issued before the last one ends (measurement
``taps``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ......_shapes import previous_power_of_2
from ......_support.records import dataclass, replace
from ...choose import trust
from ...tuned import Tuned, tuned

if TYPE_CHECKING:
    from .tiles import ProductSizer, ProductTile


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "unstaged_products"

    #: Least matmuls of a step.
    matmuls: int
    #: M and N of the tiles, and the most elements of a tile along K.
    sides: tuple[tuple[int, int], ...]
    depth: int
    warps: tuple[int, ...]


_TUNED = tuned(_Numbers)


def without_stages(sizer: ProductSizer, first: ProductTile) -> ProductTile | None:
    """Return the fastest tile of one stage if it is predicted to be about as fast as ``first``, else None."""
    worth = trust(sizer.target).unstaged
    if not worth or len(sizer.facts.matmuls) < _TUNED.matmuls or sizer.looped or sizer.parts > 1:
        return None
    depth = min(_TUNED.depth, previous_power_of_2(sizer.extents[2]))
    options = {
        replace(first, m=min(m, sizer.caps[0]), n=min(n, sizer.caps[1]), k=depth, warps=warps, stages=1)
        for m, n in _TUNED.sides
        for warps in _TUNED.warps
    }
    predicted = ((each, sizer.predict(each)) for each in options)
    timed = [(sizer.time_us(each), each) for each, found in predicted if found.fits and not found.spill_risk]
    us, best = min(timed, key=lambda option: (option[0], -option[1].m * option[1].n), default=(0.0, None))
    return best if best is not None and us <= worth * sizer.time_us(first) else None


__all__ = ["without_stages"]
