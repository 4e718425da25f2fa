"""Registers that warpgroups hand to one another after the launch."""

from __future__ import annotations

from typing import Literal

from ..plan.records import WARP_THREADS, GemmPlan
from .grammar import RegisterLimit

GRANULARITY = 8
"""``setmaxnreg`` counts in steps of so many registers (PTX ISA)."""


def launched_registers(plan: GemmPlan, warps: int) -> int:
    """Registers of each thread when a kernel of so many warps starts: an even share of the SM's."""
    share = min(plan.registers_per_sm // (warps * WARP_THREADS), plan.registers_per_thread)
    return share // GRANULARITY * GRANULARITY


def register_limit(plan: GemmPlan, launched: int, first_warp: int, warps: int, registers: int) -> RegisterLimit:
    """``registers`` for `warps` of the ``launched`` ones. Asking for fewer than a thread has, or giving back what it does
    not have, is undefined (PTX ISA, ``setmaxnreg``), so the direction follows from what they start with."""
    asks = registers > launched_registers(plan, launched)
    change: Literal["decrease", "increase"] = "increase" if asks else "decrease"
    return RegisterLimit(first_warp=first_warp, warps=warps, registers=registers, change=change)
