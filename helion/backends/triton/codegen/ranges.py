"""Printing of loop ranges with their options."""

from __future__ import annotations

from ..plan.records import RangePlan


def range_text(plan: RangePlan, bounds: list[str]) -> str:
    """Return ``tl.range(...)`` or ``tl.static_range(...)`` with the options that are not at their defaults."""
    if plan.static:
        return f"tl.static_range({', '.join(bounds)})"
    if plan.unroll > 1:
        bounds = _never_negative(bounds)
    options = [f"{keyword}={value}" for keyword, value in plan.options.items()]
    return f"tl.range({', '.join([*bounds, *options])})"


def _never_negative(bounds: list[str]) -> list[str]:
    """Return bounds whose end is not before the begin, since Triton unrolls a negative number of iterations as a huge one.

    Bounds that are literals stay.
    """
    begin, end, *step = bounds if len(bounds) > 1 else ["0", *bounds]
    if begin.isdecimal() and end.isdecimal():
        return bounds
    later = "minimum" if step and step[0].startswith("-") else "maximum"
    return [begin, f"tl.{later}({begin}, {end})", *step]
