"""Folding of lane counts along several merged dimensions into one range.

After a reshape Triton does not see which lanes are neighbours in memory, and loads at such indices one element at a
time: ``x[rows, tile.begin * 2 + hl.arange(2 * block)]``. Before::

    %0: [b0] = iota b0; %1: [2] = iota 2; %2: [b0, 2] = add mul(%0, 2), %1; %3: [2 * b0] = reshape %2

After::

    %3: [2 * b0] = iota along the whole dimension
"""

from __future__ import annotations

from dataclasses import replace

from ...._compiler.ir.counting import Counting, merges_lanes
from ...._compiler.ir.grammar import Op, Program
from ...._compiler.ir.rewrite import map_ops
from ...._compiler.passes.always.simplify import drop_dead
from ...._compiler.rewrites.steps import StepInputs


def count_lanes(program: Program, inputs: StepInputs) -> Program:
    """Return the program with a range in place of each merged dimension that counts its lanes consecutively."""
    merging = [op for op in program.walk() if merges_lanes(op)]
    if not merging:
        return program
    counting = Counting(program, inputs.sizes_in(program))
    found = {op.number: attrs for op in merging if (attrs := counting.range_of(op)) is not None}
    if not found:
        return program

    def count(op: Op) -> Op:
        attrs = found.get(op.number)
        return op if attrs is None else replace(op, kind="iota", operands=(), attrs=attrs)

    return drop_dead(map_ops(program, count))
