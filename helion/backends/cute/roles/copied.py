"""Warps that copy operands of the matmul through registers: any stride, major mode and type, or computed elements."""

from __future__ import annotations

import dataclasses

from ..plan.copied import COPY_WARPS
from .edits import rewrite
from .grammar import (
    Advance,
    CopyAcquire,
    CopyCommit,
    CopyTail,
    Cursor,
    FenceShared,
    KernelProgram,
    KLoop,
    LoadElements,
    RegisterLimit,
    Role,
    SetUp,
    Step,
    TileLoop,
    TmaLoad,
    WarpSync,
    WriteElements,
)
from .registers import register_limit

LOAD_REGISTERS, STORE_REGISTERS, COPY_REGISTERS = 24, 112, 112
"""128 x 24 + 256 x 112 + 256 x 112 registers are 60416 of the 61440 that 640 threads launch with."""


def with_copies(program: KernelProgram) -> KernelProgram:
    """Add the warps that copy operands, which TMA then does not load. A stage is full after both."""
    labels = [copied.operand for copied in program.plan.problem.copied]
    first = program.warps
    copy = Role(name="copy", first_warp=first, warps=COPY_WARPS, program=_copies(labels))
    roles = []
    for role in program.roles:
        if role.name != "load":
            roles.append(role)
        elif len(labels) < 1 + program.plan.products:
            left = rewrite(role.program, lambda step: () if _is_copied(step, labels) else (step,))
            roles.append(dataclasses.replace(role, program=left))
    return dataclasses.replace(
        program, warps=first + COPY_WARPS, roles=(*roles, copy), registers=_registers(program, first)
    )


def _is_copied(step: Step, labels: list[str]) -> bool:
    return isinstance(step, TmaLoad) and step.operand in labels


def _copies(labels: list[str]) -> tuple[Step, ...]:
    """Build the program of the copying warps. The loads of the next K tile are in flight while they wait for its stage."""
    return (
        SetUp("copies"),
        Cursor("ab_copy", "ab", "producer"),
        TileLoop(
            (
                *(LoadElements(label) for label in labels),
                KLoop(
                    (
                        CopyAcquire("ab_copy"),
                        *(WriteElements(label, "ab_copy") for label in labels),
                        FenceShared(),
                        WarpSync(),
                        CopyCommit("ab_copy"),
                        *(LoadElements(label, ahead=1) for label in labels),
                        Advance("ab_copy"),
                    )
                ),
            )
        ),
        CopyTail("ab_copy"),
    )


def _registers(program: KernelProgram, first: int) -> tuple[RegisterLimit, ...]:
    """Return the register limits with those of the copying warpgroup, which takes them from the others."""
    if not program.registers:
        return ()
    load, store = program.registers
    launched = first + COPY_WARPS
    return (
        register_limit(program.plan, launched, load.first_warp, load.warps, LOAD_REGISTERS),
        register_limit(program.plan, launched, store.first_warp, store.warps, STORE_REGISTERS),
        register_limit(program.plan, launched, first, COPY_WARPS, COPY_REGISTERS),
    )
