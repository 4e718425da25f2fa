"""The simulation of the steps of attention whose keys are split between CTAs: partials, their counts, and combining."""

from __future__ import annotations

import functools

from ...plan.attention.records import AttentionPlan
from ...roles import grammar as g
from ...roles.attention import grammar as a
from ...roles.attention.grammar import rule_of
from ..state import Fault
from .machine import Machine, Running, Warp
from .rules import Rule, run_steps

RULES: dict[type[g.Step], Rule] = {}

_rule = functools.partial(rule_of, RULES)


@_rule(g.StorePartials)
def _(machine: Machine, step: g.StorePartials, warp: Warp) -> None:
    assert warp.tile is not None
    if (
        warp.in_flight("output 0")
        or warp.unadded is not None
        or len(warp.added.get(0, ())) != machine.tiles[warp.tile].blocks
    ):
        raise Fault(f"the partial of item {warp.tile} has blocks {warp.added}, or MMAs add to it")
    warp.put = (warp.tile, warp.group)


@_rule(g.WorkspaceRelease)
def _(machine: Machine, step: g.WorkspaceRelease, warp: Warp) -> None:
    assert warp.tile is not None
    if warp.put == (warp.tile, warp.group):
        machine.partials.setdefault((warp.tile, warp.group), set()).add(warp.number)


@_rule(g.IncrementTileCounter)
def _(machine: Machine, step: g.IncrementTileCounter, warp: Warp) -> None:
    assert warp.tile is not None
    if len(machine.partials.get((warp.tile, warp.group), ())) < 4:
        raise Fault(f"item {warp.tile} is counted before all warps have released their partials")
    key = (warp.tile // machine.plan.splits, warp.group)
    machine.found[warp.group] = (warp.tile, machine.counters.get(key, 0))
    machine.counters[key] = machine.counters.get(key, 0) + 1


@_rule(g.WorkspaceAcquire)
def _(machine: Machine, step: g.WorkspaceAcquire, warp: Warp) -> None:
    """Order the count before the reads of partials, which are in program order here."""


@_rule(a.LastSplit)
def _(machine: Machine, step: a.LastSplit, warp: Warp) -> Running:
    item, count = machine.found.get(warp.group, (None, 0))
    if item != warp.tile:
        raise Fault(f"the count of item {item} is read as that of {warp.tile}")
    if count == machine.plan.splits - 1:
        yield from run_steps(machine, warp, step.body)


@_rule(a.CombinePartials)
def _(machine: Machine, step: a.CombinePartials, warp: Warp) -> None:
    assert warp.tile is not None
    first = warp.tile // machine.plan.splits * machine.plan.splits
    items = range(first, first + machine.plan.splits)
    if (first // machine.plan.splits, warp.group) in machine.awaited:
        items = range(warp.tile, warp.tile + 1)
    if any(len(machine.partials.get((item, warp.group), ())) < 4 for item in items):
        raise Fault(f"the partials of items {[*items]} are combined before all of them are there")
    warp.combined = (warp.tile, warp.group)


@_rule(a.AwaitPartials)
def _(machine: Machine, step: a.AwaitPartials, warp: Warp) -> None:
    """Wait for the CTAs of the other parts, which run at the same time: one CTA is simulated, so that they are there."""
    plan = machine.plan
    assert isinstance(plan, AttentionPlan) and warp.tile is not None
    if machine.found.get(warp.group, (None, 0))[0] != warp.tile:
        raise Fault(f"deadlock: item {warp.tile} awaits all parts before its own is counted")
    key = (warp.tile // plan.splits, warp.group)
    machine.awaited[key] = machine.awaited.get(key, 0) + (warp.tile % plan.splits < plan.combining)
    if machine.counters[key] == plan.splits and machine.awaited[key] == min(plan.combining, plan.splits):
        machine.counters[key] = 0


@_rule(a.CombiningSplit)
def _(machine: Machine, step: a.CombiningSplit, warp: Warp) -> Running:
    plan = machine.plan
    assert isinstance(plan, AttentionPlan) and warp.tile is not None
    if warp.tile % plan.splits < plan.combining:
        yield from run_steps(machine, warp, step.body)


@_rule(a.StoreColumns)
def _(machine: Machine, step: a.StoreColumns, warp: Warp) -> None:
    assert warp.tile is not None
    if warp.finished.get(0) != warp.tile:
        raise Fault(f"the output of tile {warp.tile} is stored before it is computed")
    key = (warp.tile // machine.plan.splits, warp.group, 0)
    machine.stored[key] = machine.stored.get(key, 0) + 1


@_rule(g.ResetTileCounter)
def _(machine: Machine, step: g.ResetTileCounter, warp: Warp) -> None:
    assert warp.tile is not None
    machine.counters[warp.tile // machine.plan.splits, warp.group] = 0
