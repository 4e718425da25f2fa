"""The simulation of the steps that gradients of attention have."""

from __future__ import annotations

import functools

from ...plan.attention.backward import BackwardPlan
from ...plan.attention.gradients import BackwardProblem
from ...roles import grammar as g
from ...roles.attention import grammar as a
from ...roles.attention.grammar import rule_of
from ...roles.grammar import Step
from ..state import Fault
from .machine import Machine, Running, Stage, Store, Warp
from .rules import Rule, issue, stage_of

RULES: dict[type[Step], Rule] = {}

_rule = functools.partial(rule_of, RULES)


def _problem(machine: Machine) -> BackwardProblem:
    problem = machine.plan.problem
    assert isinstance(problem, BackwardProblem)
    return problem


@_rule(a.NextPass)
def _(machine: Machine, step: a.NextPass, warp: Warp) -> None:
    assert warp.tile is not None
    warp.passed += 1
    warp.repeat, warp.block, warp.part = 0, machine.tiles[warp.tile].blocks - 1, None


@_rule(a.ProductMma)
def _(machine: Machine, step: a.ProductMma, warp: Warp) -> None:
    stage, _ = stage_of(machine, warp, step.cursor)
    rows, tag = machine.rings[machine.rows][warp.group], (warp.tile, warp.place)
    if stage.held != tag or rows.held != warp.tile or step.product in rows.overwritten:
        raise Fault(f"stale operands: a stage holds {stage.held} and rows of {rows.held}, to be multiplied are {tag}")
    state = warp.products.get(step.product, ("used", warp.place))
    if state[0] != "used":
        raise Fault(f"product {step.product} of block {warp.place} overwrites {state}")
    warp.products[step.product] = ("mma", warp.place)
    issue(warp, f"product {step.product}", stage, rows)


def _check_block(machine: Machine, warp: Warp, step: a.Weights | a.Differences) -> None:
    masked, first = step.masked, step.first
    stage, _ = stage_of(machine, warp, step.cursor)
    if stage.held != (warp.tile, warp.place):
        raise Fault(f"stale operands: sources of block {warp.place} are read from a stage with {stage.held}")
    if warp.part != "free" and not masked:
        raise Fault(f"block {warp.place} of part {warp.part} is not masked")
    if first != (warp.part is None):
        raise Fault(f"block {warp.place} of part {warp.part} is printed as the first one, or as a later one")


def _write_lefts(machine: Machine, warp: Warp, late: bool, only: int | None) -> None:
    problem = _problem(machine)
    for at, gradient in enumerate(problem.gradients):
        if problem.late[gradient.left] != late or only not in (None, at):
            continue
        if warp.in_flight(f"output {at}"):
            raise Fault(f"the left operand of gradient {at} is overwritten while MMAs read it")
        warp.lefts[at] = warp.place


@_rule(a.Weights)
def _(machine: Machine, step: a.Weights, warp: Warp) -> None:
    _check_block(machine, warp, step)
    if warp.products.get(0) != ("ready", warp.place):
        raise Fault(f"values of block {warp.place} are computed from a product in state {warp.products.get(0)}")
    warp.weighed = warp.place
    _write_lefts(machine, warp, late=False, only=step.only)
    if step.only is not None and not _problem(machine).late[_problem(machine).gradients[step.only].left]:
        warp.products[0] = ("used", warp.place)


@_rule(a.Differences)
def _(machine: Machine, step: a.Differences, warp: Warp) -> None:
    _check_block(machine, warp, step)
    wanted = {0: ("ready", warp.place), 1: ("ready", warp.place)}
    if warp.products != wanted or warp.weighed != warp.place:
        raise Fault(f"values of block {warp.place} are computed from products in state {warp.products}, or others held")
    warp.products = {0: ("used", warp.place), 1: ("used", warp.place)}
    _write_lefts(machine, warp, late=True, only=step.only)


@_rule(a.GradientMma)
def _(machine: Machine, step: a.GradientMma, warp: Warp) -> None:
    stage, _ = stage_of(machine, warp, step.cursor)
    if warp.lefts.get(step.gradient) != warp.place or stage.held != (warp.tile, warp.place):
        raise Fault(
            f"stale operands: registers hold block {warp.lefts.get(step.gradient)} and a stage {stage.held}, to be multiplied"
            f" is block {warp.place}"
        )
    former = [] if step.first else warp.added.get(step.gradient, [])
    warp.added[step.gradient] = [*former, warp.place]
    issue(warp, f"output {step.gradient}", stage)


# Gradients of streamed rows ----------------------------------------------------------------------------------------------


def _clears(machine: Machine) -> bool:
    return isinstance(machine.plan, BackwardPlan) and machine.plan.clears_rows


def _exchange(machine: Machine, blocks: int) -> tuple[Stage, int]:
    """Return the stage of a warp's block number ``blocks``, and the parity of its phase."""
    stages = machine.rings["exchange"]
    return stages[blocks % len(stages)], blocks // len(stages) & 1


@_rule(a.AllRows)
def _(machine: Machine, step: a.AllRows, warp: Warp) -> Running:
    for stage in machine.rings[machine.rows]:
        yield lambda stage=stage: stage.full.passed(warp.visited & 1)  # type: ignore[misc]


@_rule(a.ClearRows)
def _(machine: Machine, step: a.ClearRows, warp: Warp) -> None:
    rows, part = machine.rings[machine.rows][warp.group], machine.part_of_rows(warp)
    if rows.held != warp.tile or rows.overwritten or part in rows.changed:
        raise Fault(f"rows of tile {rows.held} are cleared as those of {warp.tile}, or twice")
    rows.changed[part] = False


@_rule(a.WriteLeft)
def _(machine: Machine, step: a.WriteLeft, warp: Warp) -> Running:
    stage, _ = _exchange(machine, warp.exchanged)
    atomic = _problem(machine).atomic
    assert atomic is not None
    gradient = next(at for at, each in enumerate(_problem(machine).gradients) if each.left == atomic.left)
    if stage.readers:
        raise Fault(f"left operands of block {warp.place} overwrite some that MMAs read")
    if warp.lefts.get(gradient) != warp.place:
        raise Fault(f"left operands of block {warp.lefts.get(gradient)} are exchanged as those of {warp.place}")
    held = stage.held if isinstance(stage.held, dict) else {}
    stage.held = {**held, (warp.group, warp.number): (warp.tile, warp.place)}
    stage.changed[warp.number] = False
    warp.sum.met = False
    yield None


@_rule(a.PublishLeft)
def _(machine: Machine, step: a.PublishLeft, warp: Warp) -> None:
    stage, _ = _exchange(machine, warp.exchanged)
    if not stage.changed.get(warp.number):
        raise Fault("left operands are exchanged without a fence")
    if not warp.sum.met:
        raise Fault("left operands are exchanged before all threads of the warp have written them")
    if step.first != (warp.part is None):
        raise Fault(f"block {warp.place} of part {warp.part} is printed as the first one, or as a later one")
    stage.full.arrive()
    warp.exchanged += 1
    warp.former = warp.tile, warp.place


@_rule(a.WaitExchange)
def _(machine: Machine, step: a.WaitExchange, warp: Warp) -> Running:
    stage, parity = _exchange(machine, warp.exchanged - 1)
    yield lambda: stage.full.passed(parity)


@_rule(a.SumMma)
def _(machine: Machine, step: a.SumMma, warp: Warp) -> None:
    stage, _ = _exchange(machine, warp.exchanged - 1)
    rows = machine.rings[machine.rows]
    wanted = {(number // 4, number): warp.former for number in range(machine.plan.consumer_warps)}
    if stage.held != wanted:
        raise Fault(f"stale operands: the exchange holds {stage.held}, to be multiplied is {warp.former}")
    if any(each.held != warp.tile or each.overwritten for each in rows):
        raise Fault(f"stale operands: rows of other tiles than {warp.tile} are multiplied")
    cleared = dict.fromkeys(range(4), True) if _clears(machine) else {}
    if any(each.changed != cleared for each in rows):
        raise Fault("rows are multiplied before all warps have cleared and fenced theirs")
    if warp.products.get(1, ("used",))[0] != "used":
        raise Fault(f"the gradient of block {warp.former} overwrites {warp.products[1]}")
    warp.products[1] = ("mma", warp.place)
    issue(warp, "product 1", stage, *rows)


@_rule(g.WarpSync)
def _(machine: Machine, step: g.WarpSync, warp: Warp) -> None:
    warp.sum.met = True


@_rule(a.WriteSum)
def _(machine: Machine, step: a.WriteSum, warp: Warp) -> None:
    if warp.products.get(1, ("",))[0] != "ready":
        raise Fault(f"the gradient of block {warp.former} is stored in state {warp.products.get(1)}")
    if not warp.sum.last.done or not warp.sum.met:
        raise Fault(f"the gradient of block {warp.former} overwrites one that is being added")
    warp.products[1] = ("used", warp.place)
    warp.sum.written, warp.sum.fenced, warp.sum.met = warp.former, False, False


@_rule(a.AddSum)
def _(machine: Machine, step: a.AddSum, warp: Warp) -> None:
    part = warp.sum
    if part.written != warp.former or warp.former is None:
        raise Fault(f"block {warp.former} is added while its part holds {part.written}")
    if not part.fenced or not part.met:
        raise Fault(f"block {warp.former} is added without a fence, or before all threads have written")
    part.met = False
    store = part.last = Store()
    warp.stores.append(store)
    machine.sums[warp.former, warp.group] = machine.sums.get((warp.former, warp.group), 0) + 1


@_rule(a.AllGroupsSync)
def _(machine: Machine, step: a.AllGroupsSync, warp: Warp) -> Running:
    yield machine.meetings["groups"].come()
