"""The simulation of the steps that gradients of attention have."""

from __future__ import annotations

from collections.abc import Callable

from ...plan.attention.backward import BackwardProblem
from ...roles.attention import grammar as a
from ...roles.grammar import Step
from ..state import Fault
from .machine import Machine, Warp
from .rules import Rule, issue, stage_of

RULES: dict[type[Step], Rule] = {}


def _rule(kind: type[Step]) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES[kind] = function
        return function

    return register


def _problem(machine: Machine) -> BackwardProblem:
    problem = machine.plan.problem
    assert isinstance(problem, BackwardProblem)
    return problem


@_rule(a.ProductMma)
def _(machine: Machine, step: a.ProductMma, warp: Warp) -> None:
    stage, _ = stage_of(machine, warp, step.cursor)
    rows, tag = machine.rings[machine.rows][warp.group], (warp.tile, warp.place)
    if stage.held != tag or rows.held != warp.tile:
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


def _write_lefts(machine: Machine, warp: Warp, late: bool) -> None:
    problem = _problem(machine)
    for at, gradient in enumerate(problem.gradients):
        if problem.late[gradient.left] != late:
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
    _write_lefts(machine, warp, late=False)


@_rule(a.Differences)
def _(machine: Machine, step: a.Differences, warp: Warp) -> None:
    _check_block(machine, warp, step)
    wanted = {0: ("ready", warp.place), 1: ("ready", warp.place)}
    if warp.products != wanted or warp.weighed != warp.place:
        raise Fault(f"values of block {warp.place} are computed from products in state {warp.products}, or others held")
    warp.products = {0: ("used", warp.place), 1: ("used", warp.place)}
    _write_lefts(machine, warp, late=True)


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
