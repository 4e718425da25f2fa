"""Loads before the first reduction of a program, and before the first loop that reduces.

A launch whose programs do not fill the GPU takes as long as one program: the latency of its loads, reductions and
stores, one after the other. A reduction between warps has barriers, and no compiler moves a load before one. With a cold
cache a load after a reduction adds the latency of memory once more. Before::

    %1 = load x[b0, b1]
    %2 = reduce %1
    %3 = load weight[b1]
    store out[b0, b1] <- %1 * %2 * %3

After::

    %1 = load x[b0, b1]
    %3 = load weight[b1]
    %2 = reduce %1
    store out[b0, b1] <- %1 * %2 * %3

In larger launches other programs of an SM hide some of that latency, but fewer of them have loads in flight. There loads
of at most one element for each result of the reduction move, such as labels (measurement ``early_labels``). Programs of
one warp have no barriers and need none of that. Longer loads stay where they need no registers. So do all of programs
with a matmul, whose accumulators need them.
"""

from __future__ import annotations

import math

from ...._compiler.ir.grammar import Op, OperandRef, Program, Region, Root
from ...._compiler.rewrites.steps import StepInputs
from ...._shapes import cdiv, hint_of
from ...._support.records import dataclass, replace
from ....hardware import REGISTER_BYTES, WARP_THREADS
from .moving import moved

#: Ops that combine elements of several threads.
_COMBINING = ("reduce", "fold", "scan", "sort")
_REDUCING = _COMBINING[:2]
#: Registers of a thread that loaded elements may take.
_MOST_REGISTERS = 16


def load_first(program: Program, inputs: StepInputs) -> Program:
    """Return the program with loads moved before the first reduction of each small launch."""
    if not inputs.filling_programs or not any(op.kind in _COMBINING for op in program.walk()):
        return program
    loader = _Loader(program=program, inputs=inputs)
    roots = tuple(loader.root(root) for root in program.roots)
    same = all(new is old for new, old in zip(roots, program.roots, strict=True))
    return program if same else replace(program, roots=roots)


@dataclass(frozen=True, kw_only=True)
class _Loader:
    """A program, and the inputs of its steps."""

    program: Program
    inputs: StepInputs

    def root(self, root: Root) -> Root:
        """Return a root with its loads moved, if its programs have no matmul."""
        if any(op.kind == "dot" for op in root.body.walk()):
            return root
        programs = self._programs(root)
        few = programs is not None and programs <= self.inputs.filling_programs
        if programs is None or not (few or self.inputs.threads > WARP_THREADS):
            return root
        body = self._region(root.body, few=few)
        return root if body is root.body else replace(root, body=body)

    def _programs(self, root: Root) -> int | None:
        """Return the programs of a root, as seen when binding; None if loads delimit its grid."""
        sizes, found = self.inputs.sizes_in(self.program), 1
        for axis in root.axes:
            if isinstance(axis.begin, OperandRef) or isinstance(axis.end, OperandRef):
                return None
            step = hint_of(axis.step) if axis.scalar else sizes[axis.block]
            found *= int(cdiv(hint_of(axis.end) - hint_of(axis.begin), max(1, int(step))))
        return found

    def _region(self, region: Region, *, few: bool) -> Region:
        """Return a region with loads before its first reduction, up to the registers that they may take."""
        first = next((op for op in region.ops if any(inner.kind in _COMBINING for inner in op.walk())), None)
        if first is None:
            return region
        ops, results, first = [*region.ops], self._results(first), _accumulation(region, first)
        room = _MOST_REGISTERS * REGISTER_BYTES * self.inputs.threads
        for load in [op for op in ops[ops.index(first) :] if op.kind == "load"]:
            lanes = self._lanes(load)
            size = lanes * load.result.dtype.itemsize
            able = size <= room and (lanes <= results or (few and not first.regions))
            found = moved(self.program, ops, load.result, first) if able else ops
            if found != ops:
                ops, room = found, room - size
        return region if ops == [*region.ops] else replace(region, ops=tuple(ops))

    def _results(self, op: Op) -> int:
        """Return the elements that the first reduction in an op gives, 0 if that is a scan or a sort."""
        first = next(inner for inner in op.walk() if inner.kind in _COMBINING)
        return self._lanes(first) if first.kind in _REDUCING else 0

    def _lanes(self, op: Op) -> int:
        sizes = self.inputs.sizes_in(self.program)
        return math.prod(dim.lanes(sizes) for dim in op.results[0].dims)


def _accumulation(region: Region, op: Op) -> Op:
    """Return the loop that accumulates the tile which an op reduces, or the op itself."""
    if op.kind not in _REDUCING:
        return op
    return next((each for each in region.ops if each.regions and op.operands[0] in each.results), op)
