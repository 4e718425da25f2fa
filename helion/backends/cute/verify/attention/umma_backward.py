"""The simulation of attention's gradients on tcgen05: products, left operands and sums in tensor memory.

It finds products that are overwritten before they were read, left operands before they were multiplied, and sums before they
were stored.
"""

from __future__ import annotations

import functools

from ....._support.records import dataclass, field
from ...plan.attention.gradients import PRODUCTS, STREAMED
from ...plan.attention.umma import SOFTMAX_WARPS
from ...plan.attention.umma_backward import UmmaBackwardPlan
from ...roles import grammar as g
from ...roles.attention import grammar as a
from ...roles.attention import umma_backward as b
from ...roles.attention.grammar import rule_of
from ...roles.attention.umma_backward import UmmaBackwardProgram
from ..state import Fault
from .machine import Block, Place, Running, Warp
from .rules import RULES as SHARED
from .rules import Rule, execute, run_steps
from .umma import RULES as FORWARD
from .umma import UmmaMachine, access, begin, end

SCHEDULES = ((0, 0), (3, 1), (3, 4))
"""Simulated (tiles, seed). They expose each of the faults that tests plant (test_umma_backward.py)."""
RULES: dict[type[g.Step], Rule] = {**FORWARD, g.FenceShared: SHARED[g.FenceShared]}


@dataclass
class Rows:
    """The columns of a group in tensor memory, by number and warp."""

    products: dict[tuple[int, int], tuple[str, Block]] = field(default_factory=dict)
    """Contents in the place of a product: ``product``, ``left``, what was ``multiplied``, or what no gradient multiplies
    and is ``read``."""
    sums: dict[tuple[int, int], list[Block]] = field(default_factory=dict)
    """The blocks of the sum of a gradient."""


class UmmaBackwardMachine(UmmaMachine):
    """The state of one CTA that computes gradients."""

    program: UmmaBackwardProgram  # type: ignore[assignment]
    plan: UmmaBackwardPlan  # type: ignore[assignment]

    def __init__(self, program: UmmaBackwardProgram, tiles: int, seed: int) -> None:
        super().__init__(program, tiles, seed)
        self.rules = RULES
        self.held = [Rows() for _ in range(program.plan.groups)]

    def first_of(self, tile: int | None) -> Block:
        """Return the first block of a tile."""
        assert tile is not None
        return tile, self.visits(tile, 0)[0]


def simulate(program: UmmaBackwardProgram) -> None:
    """Run schedules of a program. Raises ``Fault``."""
    for tiles, seed in SCHEDULES:
        UmmaBackwardMachine(program, tiles=tiles, seed=seed).run(execute)


_rule = functools.partial(rule_of, RULES)


# MMAs ------------------------------------------------------------------------------------------------------------------


@_rule(b.OtherBlocks)
def _(machine: UmmaBackwardMachine, step: b.OtherBlocks, warp: Warp) -> Running:
    assert warp.tile is not None
    for place in machine.visits(warp.tile, 0)[1:]:
        warp.repeat, warp.block = place
        yield from run_steps(machine, warp, step.body)


@_rule(a.ProductMma)
def _(machine: UmmaBackwardMachine, step: a.ProductMma, warp: Warp) -> None:
    stage, _ = machine.cursor_stage(warp, step.cursor)
    rows, group, block = machine.rings[machine.rows][warp.group], warp.group, (warp.tile, warp.place)
    if stage.held != block or rows.held != warp.tile or rows.overwritten:
        raise Fault(f"stale operands: stages hold {stage.held} and rows of {rows.held}, to be multiplied are {block}")
    begin(machine, "product", group, stage, rows)

    def done() -> None:
        held = machine.held[group].products
        for number in range(SOFTMAX_WARPS):
            kind, of = held.get((step.product, number), ("read", block))
            if kind not in ("read", "multiplied"):
                raise Fault(f"product {step.product} of {block} overwrites the {kind} of {of}")
            held[step.product, number] = ("product", block)
        end(machine, "product", group, stage, rows)

    machine.issue(done)


def _former(machine: UmmaBackwardMachine, warp: Warp, last: bool) -> Block:
    """Return the block whose gradients are added: that before the current one, or the last one."""
    assert warp.tile is not None
    visits: list[Place] = machine.visits(warp.tile, 0)
    return warp.tile, visits[-1] if last else visits[visits.index(warp.place) - 1]


@_rule(b.GradientOfBlock)
def _(machine: UmmaBackwardMachine, step: b.GradientOfBlock, warp: Warp) -> None:
    access(machine, warp)
    stage, _ = machine.cursor_stage(warp, step.cursor)
    block, group, held = _former(machine, warp, step.last), warp.group, machine.held[warp.group]
    places = [(step.gradient, number) for number in range(SOFTMAX_WARPS)]
    if stage.held != block:
        raise Fault(f"stale operands: a stage holds {stage.held}, to be multiplied is {block}")
    if any(held.products.get(place) != ("left", block) for place in places):
        raise Fault(f"gradient {step.gradient} of {block} is multiplied while tensor memory holds {held.products}")
    if block == machine.first_of(warp.tile) and any(held.sums.get(place) for place in places):
        raise Fault(f"gradient {step.gradient} of {block} overwrites a sum that was not stored")
    begin(machine, "gradient", group, stage)

    def done() -> None:
        for place in places:
            if held.products[place] != ("left", block):
                raise Fault(f"left operands of {block} change while MMAs read them: {held.products[place]}")
            held.products[place] = ("multiplied", block)
            held.sums.setdefault(place, []).append(block)
        end(machine, "gradient", group, stage)

    machine.issue(done)


# Left operands and outputs -----------------------------------------------------------------------------------------------


@_rule(b.Lefts)
def _(machine: UmmaBackwardMachine, step: b.Lefts, warp: Warp) -> None:
    block, number = (warp.tile, warp.place), warp.number % 4
    access(machine, warp).open = True
    if warp.part != "free" and not step.masked:
        raise Fault(f"block {block} of part {warp.part} is not masked")
    if step.first != (warp.part is None):
        raise Fault(f"block {block} of part {warp.part} is printed as the first one, or as a later one")
    held = machine.held[warp.group].products
    for at in range(PRODUCTS):
        if held.get((at, number)) != ("product", block) or machine.multiplying.get(("product", warp.group)):
            raise Fault(f"product {at} of {block} is read while tensor memory holds {held}, or MMAs write it")
        held[at, number] = ("left" if at < len(machine.plan.problem.gradients) else "read", block)
    for name in STREAMED:
        if machine.plan.staged[name]:
            stage, _ = machine.cursor_stage(warp, f"{name}_read")
            if stage.held != block:
                raise Fault(f"stale numbers: a stage of {name} holds {stage.held}, to be read are those of {block}")


@_rule(b.FinishGradient)
def _(machine: UmmaBackwardMachine, step: b.FinishGradient, warp: Warp) -> None:
    assert warp.tile is not None
    access(machine, warp).open = True
    at, sums = (step.gradient, warp.number % 4), machine.held[warp.group].sums
    blocks = [(warp.tile, place) for place in machine.visits(warp.tile, step.gradient)]
    if machine.multiplying.get(("gradient", warp.group)) or sums.get(at) != blocks:
        raise Fault(f"a sum is finished with blocks {sums.get(at)} of {blocks}, or while MMAs add to it")
    sums[at] = []
    buffer, rows = machine.buffers[warp.group, step.gradient], machine.rings[machine.rows][warp.group]
    if not buffer.last.done:
        raise Fault(f"the output of tile {warp.tile} overwrites one that is being stored")
    if rows.readers or rows.held != warp.tile:
        raise Fault(f"the output of tile {warp.tile} overwrites rows that MMAs read")
    rows.overwritten.add(machine.memory_of(step.gradient))
    buffer.written[warp.number % 4] = warp.tile
    buffer.fenced.discard(warp.number % 4)
    key = (warp.tile, warp.group, step.gradient)
    machine.finished[key] = machine.finished.get(key, 0) + 1
