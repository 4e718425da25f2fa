"""One pipeline stage or few for steps of several matmuls, such as the taps of a convolution.

A pipeline holds the operands of all matmuls of a step in each stage, which leaves room for small tiles alone. Without
one, each matmul has shared memory in turn, and the loads of one are issued before the last one ends (measurement
``taps``). A short pipeline of shallow tiles comes first where it is predicted to be faster than that.

A loop that computes the left operand from several loads, such as two inputs of a gate, keeps two stages or more. Without
a pipeline, each step waits for all loads. The program computes its rows again for each tile of columns, so tiles of many
columns come first. Each warp group has 64 rows of its own, since two that share rows both compute them.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, ClassVar

from ......_shapes import previous_power_of_2
from ......_support.records import dataclass, replace
from ...choose import trust
from ...sizing import WARP_ROWS
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
    #: K and the stages of tiles with a pipeline, and their share of the least time without one.
    shallow: tuple[tuple[int, int], ...]
    faster: float


@dataclass(frozen=True)
class _Rows(Tuned):
    rule: ClassVar[str] = "computed_operands"

    #: M, N and K of the tiles, and their stages.
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    depths: tuple[int, ...]
    stages: tuple[int, ...]


_TUNED = tuned(_Numbers)


def without_stages(sizer: ProductSizer, first: ProductTile) -> ProductTile | None:
    """Return the fastest tile of one stage, or of few, if it is predicted to be about as fast as ``first``, else None."""
    worth = trust(sizer.target).unstaged
    if not worth or len(sizer.facts.matmuls) < _TUNED.matmuls or sizer.looped or sizer.parts > 1:
        return None
    us, best = _fastest(sizer, first, ((_TUNED.depth, 1),))
    few_us, few = _fastest(sizer, first, _TUNED.shallow)
    if few is not None and few_us <= _TUNED.faster * min(us, sizer.time_us(first)):
        return few
    return best if best is not None and us <= worth * sizer.time_us(first) else None


def _fastest(
    sizer: ProductSizer, first: ProductTile, pipelines: tuple[tuple[int, int], ...]
) -> tuple[float, ProductTile | None]:
    """Return the least predicted time of tiles with these K and stages, and its tile, None where no tile fits."""
    most = previous_power_of_2(sizer.extents[2])
    options = {
        replace(first, m=min(m, sizer.caps[0]), n=min(n, sizer.caps[1]), k=min(depth, most), warps=warps, stages=stages)
        for m, n in _TUNED.sides
        for warps in _TUNED.warps
        for depth, stages in pipelines
        if depth >= sizer.least_k
    }
    predicted = ((each, sizer.predict(each)) for each in options)
    timed = [(sizer.time_us(each), each) for each, found in predicted if found.fits and not found.spill_risk]
    return min(timed, key=lambda option: (option[0], -option[1].m * option[1].n), default=(math.inf, None))


def with_shared_rows(sizer: ProductSizer, first: ProductTile) -> ProductTile:
    """Return the fastest of these tiles by predicted time if the left operand is computed from several loads, else
    ``first``.
    """
    computed = sizer.fact.lhs_prologue and sizer.fact.lhs_slot is None
    if not computed or len(sizer.facts.matmuls) != 1 or sizer.looped or sizer.parts > 1 or sizer.span is not None:
        return first
    numbers = tuned(_Rows)
    options = {
        replace(first, m=m, n=min(n, sizer.caps[1]), k=k, warps=m // WARP_ROWS, stages=stages)
        for m, n, k, stages in itertools.product(numbers.rows, numbers.columns, numbers.depths, numbers.stages)
        if m <= sizer.caps[0] and sizer.least_k <= k and k * stages <= sizer.depth(m, n)
    }
    timed = [(sizer.time_us(each), each) for each in options if not sizer.predict(each).spill_risk]
    us, best = min(timed, key=lambda option: (option[0], option[1].stages), default=(0.0, first))
    return best if us <= trust(sizer.target).computed_rows * sizer.time_us(first) else first


__all__ = ["with_shared_rows", "without_stages"]
