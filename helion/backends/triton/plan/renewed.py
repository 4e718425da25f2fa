"""Left operands that are copied in each iteration, because ptxas would reuse their registers.

wgmma takes a left operand from four registers at a time. ptxas 12.8 and 12.9 (Triton 3.6 to 3.9 on Hopper) may reuse
the registers of a loop-invariant left operand for another dot's computed one. That happens where both dots accumulate
tiles with equally many columns and a branch lies between them. From the second iteration on, the first dot multiplies
the second one's operand. A wait for a TMA load is such a branch. ptxas 13.1 is correct.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

from ...._compiler.ir.grammar import (
    DotAttrs,
    ForAttrs,
    IotaAttrs,
    MemoryAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    TileAttrs,
    Value,
)
from ...._compiler.ir.ops import OPS
from ...._compiler.ir.pointwise import POINTWISE
from ...._compiler.ir.rewrite import Makers
from ...._support.records import dataclass
from ....hardware import Target
from .dots import dot_unit, lanes
from .indexing import Box

#: Ops that compile to no branch, and transcendental operations that do not either.
_STRAIGHT = frozenset(("number", "tile", "iota", "full", "load", "store", "reduce", "dot", "view", "mask", "barrier"))
_STRAIGHT_POINTWISE = frozenset(("exp", "exp2", "sigmoid"))


def renewed_operands(
    program: Program, sizes: Mapping[int, int], num_warps: int, target: Target, boxes: Mapping[int, Box]
) -> frozenset[int]:
    """Return the dots, by number, whose left operand must be copied in each iteration."""
    if not target.has("wgmma"):
        return frozenset()
    makers = Makers.among(program.walk())
    late = frozenset(
        op.number
        for op in program.walk()
        if isinstance(op.attrs, DotAttrs) and dot_unit(program, op, makers, sizes, num_warps, target) == "wgmma"
    )
    found: set[int] = set()
    for loop in program.walk() if len(late) > 1 else ():
        if OPS[loop.kind].is_loop:
            found |= _Loop.of(loop, makers, boxes).renewed(late, sizes)
    return frozenset(found)


@dataclass(frozen=True, kw_only=True)
class _Loop:
    """A loop, with all ops in it by number, and the blocks that it and its nested loops iterate over."""

    makers: Makers
    boxes: Mapping[int, Box]
    ops: Mapping[int, Op]
    params: AbstractSet[int]
    blocks: AbstractSet[int]

    @classmethod
    def of(cls, loop: Op, makers: Makers, boxes: Mapping[int, Box]) -> _Loop:
        ops = {op.number: op for op in loop.walk()}
        loops = [op for op in ops.values() if OPS[op.kind].is_loop]
        return cls(
            makers=makers,
            boxes=boxes,
            ops={number: op for number, op in ops.items() if op is not loop},
            params=frozenset(param.number for op in loops for region in op.regions for param in region.params),
            blocks=frozenset(a.block for op in loops if isinstance(op.attrs, ForAttrs) for a in op.attrs.axes),
        )

    def renewed(self, late: AbstractSet[int], sizes: Mapping[int, int]) -> set[int]:
        dots = [op for op in self.ops.values() if op.number in late]
        kept = [op for op in dots if self.is_kept(_left(op)) and self.is_in_registers(_left(op))]
        computed = [op for op in dots if self.is_computed(_left(op))]
        return {
            op.number
            for op in kept
            if self.may_branch(op) and any(_columns(op, sizes) == _columns(other, sizes) for other in computed)
        }

    def is_kept(self, operand: Operand) -> bool:
        """Return whether a value is the same in all iterations."""
        if not isinstance(operand, Value):
            return True
        op = self.makers.of(operand)
        if operand.number in self.params or not self.blocks.isdisjoint(b for d in operand.dims for b in d.blocks):
            return False
        if op is None or op.number not in self.ops:
            return True
        spec, attrs = OPS[op.kind], op.attrs
        if isinstance(attrs, (TileAttrs, IotaAttrs)):
            return attrs.block not in self.blocks
        if isinstance(attrs, MemoryAttrs):
            walked = {index.block for index in attrs.indices}
            return op.kind == "load" and walked.isdisjoint(self.blocks) and all(map(self.is_kept, op.operands))
        return spec.mergeable and not op.regions and all(map(self.is_kept, op.operands))

    def is_in_registers(self, operand: Value) -> bool:
        """Return whether an operand may stay in the registers that the matrix unit reads.

        That holds for a computation on a descriptor's load, and for the result of another dot. Pointer loads,
        reductions and values made of indices go through shared memory.
        """
        made = list(self.behind(operand))
        if all(op.kind in ("load", "view") for op in made):
            return False
        return any(self.is_boxed(op) if op.kind == "load" else op.kind == "dot" or bool(op.regions) for op in made)

    def is_boxed(self, op: Op) -> bool:
        box = self.boxes.get(op.number)
        return box is not None and box.mechanism == "tensor_descriptor"

    def is_computed(self, operand: Value) -> bool:
        """Return whether an operand is computed in each iteration from more than a load."""
        op = self.makers.of(operand)
        while op is not None and op.kind == "view":
            op = self.makers.of(next(op.values()))
        return op is not None and op.number in self.ops and op.kind != "load" and not self.is_kept(operand)

    def may_branch(self, kept: Op) -> bool:
        """Return whether an op between two dots may compile to a branch.

        The wait for the tile that ``kept`` itself multiplies by comes before it.
        """
        _, right, *_ = kept.values()
        own = list(self.behind(right))
        made = {result.number for op in own for result in op.results}
        others = [op for op in self.ops.values() if op is not kept and op not in own]
        alone = all(value.number not in made for op in others for value in op.reads())
        return any(map(self.branches, others if alone else [*others, *own]))

    def branches(self, op: Op) -> bool:
        if isinstance(op.attrs, PointwiseAttrs):
            return POINTWISE[op.attrs.name].cost != "alu" and op.attrs.name not in _STRAIGHT_POINTWISE
        return op.kind not in _STRAIGHT or self.is_boxed(op)

    def behind(self, operand: Value) -> Iterator[Op]:
        """Yield the ops that a value depends on, not beyond a load, a dot or a loop."""
        seen: set[int] = set()
        ahead = [operand]
        while ahead:
            op = self.makers.of(ahead.pop())
            if op is not None and op.number not in seen:
                seen.add(op.number)
                yield op
                if op.kind not in ("load", "dot") and not op.regions:
                    ahead += op.values()


def _left(dot: Op) -> Value:
    return next(dot.values())


def _columns(dot: Op, sizes: Mapping[int, int]) -> int:
    return lanes(dot.result.dims[-1], sizes)
