"""Checks of a row kernel for all lengths of its bucket: every element has a thread, and no mask is left out."""

from __future__ import annotations

from collections.abc import Iterator

from ...plan.rowwise.records import RowLayout
from ..state import Fault

SAMPLES = 16
"""Lengths between the ends of a bucket."""


def check_lengths(layout: RowLayout) -> None:
    """Check the ends of the bucket and lengths between them, with rows that begin at both ends of a granule. Raises
    ``Fault``."""
    if layout.demand.least:
        for n in _lengths(layout):
            for shift in (0,) if layout.aligned or layout.by_columns else (0, layout.lanes - 1):
                _check(layout, n, shift)


def _lengths(layout: RowLayout) -> Iterator[int]:
    """Yield lengths of the class of a layout: multiples of a granule, or any."""
    least, most, each = (
        layout.demand.least,
        layout.demand.n,
        layout.lanes if layout.aligned and not layout.by_words else 1,
    )
    least = -(-least // each) * each
    step = max(1, (most - least) // each // SAMPLES)
    yield from range(least, most + 1, step * each)
    yield most


def _check(layout: RowLayout, n: int, shift: int) -> None:
    granules, part = -(-(n + shift) // layout.lanes), layout.slice_at(n)
    if part > layout.slice_granules:
        raise Fault(f"a row of {n} columns has {part} granules in a CTA, with room for {layout.slice_granules}")
    if layout.choice.cluster * part < granules:
        raise Fault(f"CTAs of {part} granules leave some of a row of {n} columns")
    for rank in range(layout.choice.cluster):
        first = rank * part
        mine = max(0, min(granules - first, part))
        if mine > layout.thread_granules * layout.threads:
            raise Fault(f"threads leave some granules of a row of {n} columns in CTA {rank}")
        for granule in range(layout.thread_granules):
            end = (granule + 1) * layout.threads
            whole = end <= mine and (first + end) * layout.lanes - shift <= n
            if layout.kind(granule) == "all" and not whole:
                raise Fault(f"granule {granule} of a thread is not masked, and a row of {n} columns may lack it")
