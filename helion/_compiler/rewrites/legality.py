"""Legalization of the decisions about rewrites, derived from their records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...config import RANGE_OPTIONS
from ..decisions import Decisions, Place
from ..ir.grammar import ForAttrs, LoopAxis, MemoryAttrs, Op, Program, Root
from ..ir.loops import loops_of
from .record import Rewrite, RuleContext

#: Options of loops, with the entries that leave them out.
LOOP_OPTIONS: Mapping[str, Any] = {"static_ranges": False, **{option.key: option.off for option in RANGE_OPTIONS}}


def in_order_of_legality(rewrites: Iterable[Rewrite]) -> tuple[Rewrite, ...]:
    """Return rewrites in the order of their rules: each after those that reset it, or that it yields to."""
    waiting, done = list(rewrites), list[Rewrite]()
    while waiting:
        ready = next(each for each in waiting if not any(_decides(other, each) for other in waiting))
        waiting.remove(ready)
        done.append(ready)
    return tuple(done)


def _decides(first: Rewrite, second: Rewrite) -> bool:
    return first.key in second.yields_to or second.key in first.resets


def legalize(rewrite: Rewrite, context: RuleContext, decisions: Decisions) -> Decisions:
    """Return decisions with a legal value of the rewrite's key, and of the keys that it rules out."""
    if rewrite.key not in decisions.values:
        return decisions
    if rewrite.is_on(decisions):
        decisions = decisions.with_values(**{rewrite.key: _fitting(rewrite, context, decisions)})
    if not rewrite.is_on(decisions):
        return decisions.with_values(**{each.key: None for each in rewrite.launch if each.key in decisions.values})
    decisions = rewrite.adjust(context, _reset(decisions, rewrite.resets))
    if "loops" in rewrite.removes:
        decisions = _without_gone_loops(context, decisions)
    if "accesses" in rewrite.removes:
        decisions = without_gone_accesses(context.rewritten(decisions), decisions)
    numbered = rewrite.numbered and decisions.values["pid_type"] == "xyz"
    return decisions.with_values(pid_type="flat") if numbered else decisions


def _fitting(rewrite: Rewrite, context: RuleContext, decisions: Decisions) -> Any:
    if any(decisions.values.get(key, False) for key in rewrite.yields_to):
        return rewrite.off
    return rewrite.fit(context, decisions.values[rewrite.key], decisions)


def _reset(decisions: Decisions, plain: Mapping[str, Any]) -> Decisions:
    """Return decisions with these values of keys, where the kernel has them; one value for all entries of a list."""
    decisions = decisions.with_values(**{key: value for key, value in plain.items() if key in decisions.values})
    for key, value in plain.items():
        decisions = decisions.with_entries(key, dict.fromkeys(decisions.entries.get(key, {}), value))
    return decisions


def reset_loops(decisions: Decisions, gone: Callable[[str, int], bool]) -> Decisions:
    """Return decisions without options of the device loops for which ``gone`` is true, by key and number of the loop."""
    for key, plain in LOOP_OPTIONS.items():
        entries: Mapping[Place, Any] = decisions.entries.get(key, {})
        places = [place for place in entries if isinstance(place, tuple) and gone(key, place[0])]
        decisions = decisions.with_entries(key, dict.fromkeys(places, plain))
    return decisions


def _without_gone_loops(context: RuleContext, decisions: Decisions) -> Decisions:
    """Reset the options and the tiles of loops that the rewritten program does not have."""
    rewritten = context.rewritten(decisions)
    left = {op.number for op in rewritten.walk() if isinstance(op.attrs, ForAttrs)}
    loops = enumerate(loops_of(context.program))
    gone = {at for at, loop in loops if isinstance(loop, Op) and loop.number not in left}
    walked = {axis.block for loop in loops_of(rewritten) for axis in _axes(loop)}
    unread = {block.id: block.min_size for block in context.program.blocks if block.tunable and block.id not in walked}
    return reset_loops(decisions.with_sizes(unread), lambda key, loop: loop in gone)


def _axes(loop: Root | Op) -> tuple[LoopAxis, ...]:
    return loop.axes if isinstance(loop, Root) else loop.attributes(ForAttrs).axes


def without_gone_accesses(program: Program, decisions: Decisions) -> Decisions:
    """Return decisions without cache options of accesses that the rewritten ``program`` does not have."""
    attrs = [op.attrs for op in program.walk() if isinstance(op.attrs, MemoryAttrs)]
    slots: set[int | None] = {each.slot for each in attrs}
    loads = {each.load_slot for each in attrs}
    options = {"load_eviction_policies": loads, "load_cache_modifiers": slots, "store_cache_modifiers": slots}
    for key, known in options.items():
        gone = [slot for slot, option in decisions.entries.get(key, {}).items() if option and slot not in known]
        decisions = decisions.with_entries(key, dict.fromkeys(gone, ""))
    return decisions


__all__ = ["LOOP_OPTIONS", "in_order_of_legality", "legalize", "reset_loops", "without_gone_accesses"]
