"""Warps that copy operands of the matmul: any stride, major mode and type, or computed elements, through registers, and
what cp.async copies past them."""

from __future__ import annotations

import dataclasses

from ..plan.copied import COPY_WARPS
from ..plan.counts import (
    counts,
    is_raw,
    loads_while_copying,
    past_registers,
    raw_operands,
    through_registers,
    turns,
)
from ..plan.records import LOADING_WARPS, GemmPlan
from .edits import add_role, after, before, edit_role, rewrite
from .grammar import (
    Acquire,
    Advance,
    ArriveAfterCopies,
    Commit,
    CopyAcquire,
    CopyCommit,
    CopyTail,
    Cursor,
    FenceShared,
    Gate,
    KernelProgram,
    KLoop,
    LoadElements,
    LoadRaw,
    OrderCopies,
    Pipeline,
    ReadRaw,
    RegisterLimit,
    Release,
    Role,
    SetUp,
    StartCopies,
    Step,
    Tail,
    TileLoop,
    TmaLoad,
    Wait,
    WarpSync,
    WriteElements,
)
from .registers import register_limit

LOAD_REGISTERS, STORE_REGISTERS, COPY_REGISTERS = 24, 112, 112
"""128 x 24 + 256 x 112 + 256 x 112 registers are 60416 of the 61440 that 640 threads launch with."""
START_REGISTERS, LARGE_STORE_REGISTERS = 88, 208
"""Registers where the warpgroup that loads also copies: 128 x 88 + 256 x 208 of the 64512 that 384 threads launch with."""


def _order_reads(step: Step) -> tuple[Step, ...]:
    """Order reads of a raw tile before TMA overwrites it."""
    return (FenceShared(), WarpSync(), step) if step == Release("raw_read") else (step,)


def with_copies(program: KernelProgram) -> KernelProgram:
    """Add the warps that copy operands, which TMA then does not load. A stage is full after both."""
    plan = program.plan
    labels = [copied.operand for copied in plan.problem.copied]
    if plan.converts:
        program = edit_role(program, "load", lambda step: () if _is_copied(step, labels) else (step,))
        return edit_role(_with_raw_tiles(program), "store", _order_reads)
    if past_registers(plan):
        program = edit_role(program, "store" if plan.unit == "wgmma" else "multiply", _ordered)
    if loads_while_copying(plan):
        return _with_shared_warps(program)
    if raw_operands(plan):
        program = _with_raw_tiles(program)
    first = program.warps
    copy = Role(name="copy", first_warp=first, warps=COPY_WARPS, program=_copies(plan))
    roles = []
    for role in program.roles:
        if role.name != "load":
            roles.append(role)
        elif len(labels) < 1 + plan.products:
            left = rewrite(role.program, lambda step: () if _is_copied(step, labels) else (step,))
            roles.append(dataclasses.replace(role, program=left))
    return dataclasses.replace(
        program, warps=first + COPY_WARPS, roles=(*roles, copy), registers=_registers(program, first)
    )


def _with_raw_tiles(program: KernelProgram) -> KernelProgram:
    """Add a warp that loads raw tiles through TMA, ahead of the warps that read them by their pipeline.

    Warps with K tiles of their own read both operands of one at once. The warp that loads B loads raw tiles as well: one warp
    less on each SM leaves more registers to the others.
    """
    raw = counts(program.plan).raw
    assert raw is not None
    loads = tuple(LoadRaw(copied.operand, "raw_fill") for copied in raw_operands(program.plan))
    pipeline = Pipeline(name="raw", kind="tma_epilogue", counts=raw, barriers="raw_barriers")
    program = dataclasses.replace(program, pipelines=(*program.pipelines, pipeline), host=(*program.host, "raw_tiles"))
    steps = (Acquire("raw_fill"), *loads, Commit("raw_fill"), Advance("raw_fill"))
    set_up = (SetUp("raw_loads"), Cursor("raw_fill", "raw", "producer"))
    if program.plan.sliced:
        program = edit_role(program, "load", before(TileLoop, set_up))
        program = edit_role(program, "load", lambda step: _followed(step, KLoop, steps))
        return edit_role(program, "load", after(Tail, (Tail("raw_fill"),)))
    role = Role(
        name="load_raw",
        first_warp=program.spare_warp + program.plan.has_residual,
        warps=1,
        program=(*set_up, TileLoop((KLoop(steps),)), Tail("raw_fill")),
    )
    return add_role(dataclasses.replace(program, warps=max(program.warps, role.first_warp + 1)), role)


def _followed(step: Step, kind: type[KLoop], more: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return a loop over K with more steps at its end."""
    return (dataclasses.replace(step, body=(*step.body, *more)),) if isinstance(step, kind) else (step,)


def _with_shared_warps(program: KernelProgram) -> KernelProgram:
    """Let all warps of the loading warpgroup copy; the first one uses TMA for other operands."""
    plan, load = program.plan, program.role("load")
    labels = [copied.operand for copied in plan.problem.copied]
    by_tma = [label for label in ("a", "b", *_second(plan)) if label not in labels]
    loads = (Acquire("ab_copy"), *(TmaLoad(label, "ab_copy") for label in by_tma), Commit("ab_copy"))
    steps = (CopyAcquire("ab_copy"), *((Gate("first_warp", loads),) if by_tma else ()))
    copies = (*(StartCopies(label, "ab_copy") for label in labels), ArriveAfterCopies("ab_copy"), Advance("ab_copy"))
    views = tuple(step for step in load.program if isinstance(step, SetUp)) if by_tma else ()
    role = Role(
        name="copy",
        first_warp=load.first_warp,
        warps=LOADING_WARPS,
        program=(
            *views,
            SetUp("copies"),
            Cursor("ab_copy", "ab", "producer"),
            TileLoop((KLoop((*steps, *copies)),)),
            CopyTail("ab_copy"),
        ),
    )
    limits = [
        (0, LOADING_WARPS, START_REGISTERS),
        (LOADING_WARPS, program.warps - LOADING_WARPS, LARGE_STORE_REGISTERS),
    ]
    return dataclasses.replace(
        program,
        roles=(role, *(each for each in program.roles if each is not load)),
        registers=tuple(register_limit(plan, program.warps, *each) for each in limits) if program.registers else (),
    )


def _second(plan: GemmPlan) -> list[str]:
    return [operand.label for operand in plan.problem.epilogue.of_kind("product")]


def _is_copied(step: Step, labels: list[str]) -> bool:
    return isinstance(step, TmaLoad) and step.operand in labels


def _ordered(step: Step) -> tuple[Step, ...]:
    """Order copies after each wait for operands."""
    return (step, OrderCopies("ab_read")) if step == Wait("ab_read") else (step,)


def _copies(plan: GemmPlan) -> tuple[Step, ...]:
    """Build the program of the copying warps. Loads into registers for the next K tile are in flight while they wait for
    its stage; cp.async has all stages in flight, and so has TMA of raw tiles."""
    through, raw = through_registers(plan), [each.operand for each in raw_operands(plan)]
    loaded = [each.operand for each in through if not is_raw(plan, each) or len(each.sources) > 1]
    constant = [each.operand for each in raw_operands(plan) if not any(other.k_pitch for other in each.sources[1:])]
    varying = [label for label in loaded if label not in constant]
    started = [each.operand for each in past_registers(plan)]
    by_turns = turns(plan) > 1
    steps: tuple[Step, ...] = (
        *(LoadElements(label, now=True) for label in varying if by_turns),
        *((Wait("raw_read"), *(ReadRaw(label, "raw_read") for label in raw)) if raw else ()),
        CopyAcquire("ab_copy"),
        *(StartCopies(label, "ab_copy") for label in started),
        *((ArriveAfterCopies("ab_copy"),) if started else ()),
        *(WriteElements(each.operand, "ab_copy") for each in through),
        *((FenceShared(), WarpSync()) if through else ()),
        *((Release("raw_read"),) if raw else ()),
        *((CopyCommit("ab_copy"),) if through else ()),
        *(LoadElements(label, ahead=1) for label in varying if not by_turns),
    )
    return (
        SetUp("copies"),
        Cursor("ab_copy", "ab", "producer"),
        *((Cursor("raw_read", "raw", "consumer"),) if raw else ()),
        TileLoop(
            (
                *(LoadElements(label) for label in loaded if label not in varying or not by_turns),
                KLoop(
                    (
                        *((Gate("own_turn", steps),) if by_turns else steps),
                        *((Advance("raw_read"),) if raw else ()),
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
