"""Register counts of warpgroups after the launch."""

from __future__ import annotations

from typing import Literal

from ..plan.records import WARP_THREADS, GemmPlan
from .grammar import RegisterLimit

GRANULARITY = 8
"""Step of register counts in ``setmaxnreg`` (PTX ISA)."""


def launched_registers(plan: GemmPlan, warps: int) -> int:
    """Return the registers per thread at launch for this many warps: an even share of the SM's."""
    share = min(plan.registers_per_sm // (warps * WARP_THREADS), plan.registers_per_thread)
    return share // GRANULARITY * GRANULARITY


def register_limit(plan: GemmPlan, launched: int, first_warp: int, warps: int, registers: int) -> RegisterLimit:
    """Set ``registers`` for `warps` of the ``launched`` ones.

    Increasing to fewer than a thread has, or decreasing to more, is undefined (PTX ISA, ``setmaxnreg``). So the launch
    count sets the direction.
    """
    asks = registers > launched_registers(plan, launched)
    change: Literal["decrease", "increase"] = "increase" if asks else "decrease"
    return RegisterLimit(first_warp=first_warp, warps=warps, registers=registers, change=change)
