"""Checks of a second kernel: its warps, in any order between barriers, and the layout of memory."""

from __future__ import annotations

import functools
import random

from ...._support.records import dataclass, field
from ....hardware import VECTOR_BYTES
from ..plan.counts import counts
from ..plan.dtypes import itemsize
from ..plan.finish import is_turned, loaded_early, part_slot, row_walks, row_words, rows_bytes, shared_words, threads_of
from ..plan.records import SUM_BYTES, WARP_THREADS, Finish, GemmPlan, RowFinish
from ..plan.reductions import reductions_of
from ..plan.workspace import COUNTER_BYTES, MAX_COUNTERS, rows_offset, sums_bytes, workspace_bytes
from ..roles import finish as g
from .state import Fault

MAX_THREADS = 1024
SCHEDULES = 3


def verify_finish(plan: GemmPlan, steps: tuple[g.FinishStep, ...]) -> None:
    """Check the second kernel of `plan` with `steps`. Raises ``Fault`` for stale reads, deadlocks and out-of-bounds
    accesses."""
    finish = plan.finish
    assert finish is not None
    _check_memory(plan, finish)
    _simulate(finish, steps)


def _check_memory(plan: GemmPlan, finish: Finish) -> None:
    """Check that rows follow counters and partials, and that every column belongs to a thread."""
    problem, in_front = finish.problem, MAX_COUNTERS * COUNTER_BYTES + (sums_bytes(plan) if plan.grid_splits > 1 else 0)
    if rows_bytes(finish) and not in_front <= rows_offset(plan) <= workspace_bytes(plan) - rows_bytes(finish):
        raise Fault(
            f"rows begin {rows_offset(plan)} bytes after the start of the workspace, partials end at {in_front}"
        )
    if rows_offset(plan) % VECTOR_BYTES or threads_of(finish) > MAX_THREADS or threads_of(finish) % WARP_THREADS:
        raise Fault(f"rows at {rows_offset(plan)} bytes for CTAs of {threads_of(finish)} threads")
    if not isinstance(finish, RowFinish):
        if finish.tiles != plan.work[1] * counts(plan).a_multicast or plan.tile[1] * finish.tiles < problem.n:
            raise Fault(f"{finish.tiles} tiles of {plan.tile[1]} columns are joined to rows of {problem.n}")
        return
    stored = plan.problem.outputs[0]
    pitch = stored.column_pitch if stored.turned else stored.pitch
    if (stored.dtype, pitch) != (finish.dtype, finish.pitch) or pitch < problem.n:
        raise Fault(f"rows of {stored.dtype} are stored with a pitch of {pitch} elements, and read with another")
    if (plan.problem.m, plan.problem.n) != ((problem.n, problem.m) if is_turned(plan) else (problem.m, problem.n)):
        raise Fault(f"a matmul of {plan.problem.m} by {plan.problem.n} stores rows of {problem.m} by {problem.n}")
    if finish.chunks * finish.threads * finish.vector < problem.n:
        raise Fault(
            f"{finish.threads} threads with {finish.chunks} times {finish.vector} columns leave some of {problem.n}"
        )
    shared = SUM_BYTES * (row_words(finish) + shared_words(finish))
    if shared > plan.shared_limit_bytes:
        raise Fault(f"the second kernel has {shared} bytes of shared memory, of {plan.shared_limit_bytes}")
    if finish.shared and not (finish.kept and row_words(finish) >= problem.n):
        raise Fault(f"shared memory has {row_words(finish)} words of a row of {problem.n}")
    moved = [(finish.pitch, finish.dtype), *((each.pitch, each.dtype) for each in problem.outputs_of("exact"))]
    moved += [(each.pitch, each.dtype) for each in problem.epilogue.of_kind("exact")]
    for pitch, dtype in moved:
        size = itemsize(dtype)
        if finish.vector * size > VECTOR_BYTES or pitch % finish.vector or pitch * size % (finish.vector * size):
            raise Fault(f"vectors of {finish.vector} {dtype} in rows of {pitch} elements")


@dataclass
class _Warp:
    number: int
    place: int = 0
    """Index of the next step."""
    awaited: bool = False
    """True if the stores of the matmul are visible."""
    operands: bool = False
    """True if operands that are loaded early are in registers."""
    loaded: bool = False
    reduced: int = -1
    """The last pass whose reductions of its own columns it has."""
    joined: int = -1
    level: int = -1
    stored: set[str] = field(default_factory=set)


@dataclass
class _Cta:
    """A CTA; ``words`` has the pass, the warp and the barrier interval of the last store to each word of shared memory."""

    finish: Finish
    words: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    met: int = 0


def _simulate(finish: Finish, steps: tuple[g.FinishStep, ...]) -> None:
    for seed in range(SCHEDULES):
        draw, cta = random.Random(seed), _Cta(finish)
        warps = [_Warp(number) for number in range(threads_of(finish) // WARP_THREADS)]
        while waiting := [warp for warp in warps if warp.place < len(steps)]:
            ready = [warp for warp in waiting if not isinstance(steps[warp.place], g.CtaSync)]
            if ready:
                warp = draw.choice(ready)
                _run(steps[warp.place], cta, warp)
                warp.place += 1
            elif len(waiting) == len(warps):
                cta.met += 1
                for warp in warps:
                    warp.place += 1
            else:
                raise Fault("some warps wait at a barrier that others have left")
        for warp in warps:
            _check_done(finish, warp)


def _check_done(finish: Finish, warp: _Warp) -> None:
    wanted = {"columns"} if isinstance(finish, RowFinish) and row_walks(finish)[-1].outputs else set()
    wanted |= {"numbers"} if finish.problem.outputs_of("column") else set()
    if warp.stored != wanted:
        raise Fault(f"warp {warp.number} stores {sorted(warp.stored)} of {sorted(wanted)}")


@functools.singledispatch
def _run(step: g.FinishStep, cta: _Cta, warp: _Warp) -> None:
    raise NotImplementedError(f"no rule executes {type(step).__name__}")


@_run.register
def _(step: g.LoadOperands, cta: _Cta, warp: _Warp) -> None:
    warp.operands = True


@_run.register
def _(step: g.AwaitProduct, cta: _Cta, warp: _Warp) -> None:
    warp.awaited = True


def _check_awaited(warp: _Warp) -> None:
    if not warp.awaited:
        raise Fault("stores of the matmul are read before they are visible")


@_run.register
def _(step: g.LoadRow, cta: _Cta, warp: _Warp) -> None:
    _check_awaited(warp)
    warp.loaded = True


@_run.register
def _(step: g.ReduceColumns, cta: _Cta, warp: _Warp) -> None:
    _check_walk(cta, warp, step.number)
    warp.reduced = step.number


def _check_walk(cta: _Cta, warp: _Warp, number: int) -> None:
    assert isinstance(cta.finish, RowFinish)
    _check_awaited(warp)
    if cta.finish.kept and not warp.loaded:
        raise Fault(f"walk {number} reads registers that no row was loaded into")
    read = {cta.finish.problem.epilogue.operands[value - 1] for value in row_walks(cta.finish)[number].reads}
    if not warp.operands and read & {*loaded_early(cta.finish)}:
        raise Fault(f"walk {number} reads registers that no operand was loaded into")
    if warp.level != number:
        raise Fault(f"walk {number} has the numbers per row of level {warp.level}")


def _words(cta: _Cta, number: int, warp: int) -> list[tuple[int, int]]:
    """Return (reduction, word) of a warp."""
    assert isinstance(cta.finish, RowFinish)
    return [(value, part_slot(cta.finish, value) + warp) for value in reductions_of(cta.finish.problem)[number]]


@_run.register
def _(step: g.PutParts, cta: _Cta, warp: _Warp) -> None:
    if warp.reduced != step.number:
        raise Fault(f"parts of walk {step.number} are put while those of {warp.reduced} are there")
    for value, word in _words(cta, step.number, warp.number):
        if not 0 <= word < shared_words(cta.finish) or word in cta.words:
            raise Fault(f"word {word} of shared memory is written twice, or is none")
        cta.words[word] = (step.number, value, warp.number, cta.met)


@_run.register
def _(step: g.JoinParts, cta: _Cta, warp: _Warp) -> None:
    assert isinstance(cta.finish, RowFinish)
    for other in range(cta.finish.threads // WARP_THREADS):
        for value, word in _words(cta, step.number, other):
            number, of, by, when = cta.words.get(word, (-1, -1, -1, cta.met))
            if (number, of, by) != (step.number, value, other) or when >= cta.met:
                raise Fault(
                    f"warp {warp.number} reads what warp {other} found in walk {step.number} before it is there"
                )
    warp.joined = step.number


@_run.register
def _(step: g.JoinTiles, cta: _Cta, warp: _Warp) -> None:
    _check_awaited(warp)
    if warp.level != step.number:
        raise Fault(f"parts of level {step.number} are joined after level {warp.level}")
    warp.joined = step.number


@_run.register
def _(step: g.EvaluateNumbers, cta: _Cta, warp: _Warp) -> None:
    if warp.joined != step.level - 1:
        raise Fault(f"numbers per row of level {step.level} are made of the reductions of walk {warp.joined}")
    warp.level = step.level


@_run.register
def _(step: g.StoreColumns, cta: _Cta, warp: _Warp) -> None:
    _check_walk(cta, warp, len(reductions_of(cta.finish.problem)))
    warp.stored.add("columns")


@_run.register
def _(step: g.StoreNumbers, cta: _Cta, warp: _Warp) -> None:
    _check_awaited(warp)
    if warp.level != len(reductions_of(cta.finish.problem)):
        raise Fault(f"numbers per row are stored while those of level {warp.level} are there")
    warp.stored.add("numbers")
