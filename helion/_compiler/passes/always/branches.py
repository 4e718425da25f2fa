"""Resolves branches on block sizes and tunables, which a config fixes, to the branch taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...._shapes import Expr
from ...ir.grammar import NumberAttrs, Op, Operand, Program, Region, Value
from ...ir.rewrite import Makers
from .simplify import drop_dead


def choose_branches(program: Program, sizes: Mapping[int, int], tunables: Mapping[str, Any]) -> Program:
    """Replace ``if (block_size < 16)`` by the ops of one of its regions.

    ``sizes`` are those of the blocks in elements, ``tunables`` the values of the kernel's own keys.
    """
    if not any(op.kind == "if" for op in program.walk()):
        return program
    chooser = _Chooser(program, sizes, tunables)
    roots = tuple(replace(root, body=chooser.region(root.body)) for root in program.roots)
    return drop_dead(replace(program, roots=roots)) if chooser.found else program


class _Chooser:
    def __init__(self, program: Program, sizes: Mapping[int, int], tunables: Mapping[str, Any]) -> None:
        self.makers = Makers.among(program.walk())
        self.sizes = sizes
        self.tunables = tunables
        self.found = False
        #: Replacements of the results of branches.
        self.replaced: dict[int, Operand] = {}

    def region(self, region: Region) -> Region:
        ops: list[Op] = []
        for op in region.ops:
            ops += self.expanded(op)
        return Region(region.params, tuple(ops), tuple(map(self.now, region.results)))

    def now(self, operand: Operand) -> Operand:
        return self.replaced.get(operand.number, operand) if isinstance(operand, Value) else operand

    def expanded(self, op: Op) -> tuple[Op, ...]:
        taken = self.taken(op) if op.kind == "if" else None
        if taken is None:
            return (
                replace(op, operands=tuple(map(self.now, op.operands)), regions=tuple(map(self.region, op.regions))),
            )
        self.found = True
        live = self.region(taken)
        self.replaced.update({result.number: value for result, value in zip(op.results, live.results, strict=True)})
        return live.ops

    def taken(self, op: Op) -> Region | None:
        """Return the region that the config selects; None if the condition is known only at run time."""
        made = self.makers.of(op.operands[0])
        condition = made.attrs.expr if made is not None and isinstance(made.attrs, NumberAttrs) else None
        if condition is None or not condition.leaves_are("block", "tunable"):
            return None
        return op.regions[0] if condition.evaluate(self._leaf) else op.regions[1]

    def _leaf(self, leaf: Expr) -> Any:
        return self.sizes[leaf.args[0]] if leaf.op == "block" else self.tunables[leaf.args[0]]
