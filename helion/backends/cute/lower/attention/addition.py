"""The outputs of a loop: the gradient of streamed rows that it adds to memory by ``hl.atomic_add``, and numbers for each owned
and streamed row."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ....._compiler.ir.grammar import MemoryAttrs, Op
from ....._shapes import Expr, dtype_name
from ....._support.records import dataclass, replace
from ...plan.attention.gradients import AtomicSum, LoopOutput
from ...plan.attention.operands import Matrix, Source
from ...plan.attention.records import Formula
from ...plan.epilogue import Constant
from ...plan.refusal import Refusal
from ..names import name_of
from .formula import FormulaReader
from .loops import Loops
from .operands import check_dot, loaded, matrix_of
from .places import access_of, check_reach

SUM = "sum"
_LINEAR = (("neg", [True]), ("mul", [True, False]), ("mul", [False, True]), ("div", [True, False]))
"""Operations that keep a multiple of the product, by which of their arguments are one."""


@dataclass(frozen=True, kw_only=True)
class Addition:
    """An atomic addition of a product of streamed rows by a tile's rows with the tile's rows, after a formula of numbers."""

    loops: Loops
    op: Op
    dot: Op
    finish: Formula
    sources: tuple[int | Expr, ...]

    def record(self, left: int, owned: Sequence[Matrix], keys: int) -> AtomicSum:
        """Return the record of the plan. ``owned`` are the tile's matrices, ``keys`` the streamed rows. Raises ``Refusal``."""
        loops = self.loops
        load = loaded(loops, self.dot.operands[1], "the right operand of an atomic sum")
        matrix, access = matrix_of(loops, self.op, loops.keys, "rows"), access_of(loops, self.op)
        right = matrix_of(loops, load, loops.queries, "rows")
        if right not in owned:
            raise Refusal(f"{loops.tensor(load).name} is multiplied by an atomic sum, and by no product before it")
        if not loops.numbers.at_most(keys, access.extents[loops.keys]) or matrix.columns != right.columns:
            raise Refusal(
                f"{access.tensor.name} has another shape than {loops.tensor(load).name} has for streamed rows"
            )
        if access.parts:
            raise Refusal(
                f"{access.tensor.name} is indexed by a part of the dimensions of a head, which is not implemented"
            )
        if matrix.pitch < matrix.columns:
            raise Refusal(f"{access.tensor.name} has rows that overlap in memory, which is not implemented")
        return AtomicSum(left=left, right=owned.index(right), finish=self.finish, matrix=matrix)


def atomics_of(loops: Loops) -> list[Op]:
    """Return the atomic additions of the loop over streamed rows. Raises ``Refusal``."""
    found = [op for op in loops.loop.regions[0].ops if op.kind == "atomic"]
    numbers_read = {value.number for each in loops.program.walk() for value in each.values()}
    for op in found:
        attrs, name = op.attributes(MemoryAttrs), loops.tensor(op).name
        if attrs.atomic != "add" or attrs.sem != "relaxed" or attrs.scope != "gpu" or op.result.number in numbers_read:
            raise Refusal(f"an atomic operation on {name} other than a relaxed addition, whose result is unread")
        if loops.tensor(op).dtype != torch.float32:
            raise Refusal(
                f"an atomic addition to {name} in {dtype_name(loops.tensor(op).dtype)}; float32 is implemented"
            )
    return found


def loop_outputs_of(loops: Loops) -> list[Op]:
    """Return the stores and additions of the loop that have a number for each owned and streamed row. Raises ``Refusal``."""
    stores = [op for op in loops.loop.regions[0].ops if op.kind == "store"]
    both = {loops.queries, loops.keys}
    found = [op for op in [*stores, *atomics_of(loops)] if both <= access_of(loops, op).strides.keys()]
    names = [loops.tensor(op).name for op in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Refusal(f"{twice} is stored twice in the loop, which is not implemented")
    return found


def loop_output(loops: Loops, op: Op, value: int, keys: int) -> LoopOutput:
    """Return the record of the plan of an output of the loop, value ``value`` of the formula. Raises ``Refusal``."""
    access = access_of(loops, op)
    access.check_plain()
    check_reach(access)
    tensor, rows = access.tensor, (loops.extent(loops.queries), keys)
    blocks = loops.queries, loops.keys
    pitches = tuple(access.strides[block] for block in blocks)
    enough = all(loops.numbers.at_most(n, access.extents[block]) for n, block in zip(rows, blocks, strict=True))
    if access.strides.keys() != {*blocks} or 0 in pitches or not enough:
        raise Refusal(f"{tensor.name}, which the loop stores, has other elements than one for each of its rows")
    target = Source(
        name=name_of(tensor),
        kind="exact",
        dtype=dtype_name(tensor.dtype),
        pitches=pitches,  # type: ignore[arg-type]
        offset=access.offset,
        modes=access.modes,
    )
    return LoopOutput(value=value, target=target, adds=op.kind == "atomic")


def addition_of(loops: Loops) -> Addition | None:
    """Return the atomic addition of a gradient by the loop over streamed rows, or None. Raises ``Refusal``."""
    outputs = loop_outputs_of(loops)
    atomics = [op for op in atomics_of(loops) if op not in outputs]
    if not atomics:
        return None
    op, name = atomics[0], loops.tensor(atomics[0]).name
    if len(atomics) > 1:
        raise Refusal("gradients of attention with more than one atomic operation are not implemented")
    dot = _dot(loops, name)
    reader = FormulaReader(loops, (SUM,), None, "sums")
    reader.known[dot.result.number] = SUM
    value = reader.read(op.operands[0])
    formula, numbers = reader.formula({SUM: value})
    if isinstance(value, Constant) or not _is_multiple(formula, numbers[SUM]):
        raise Refusal(f"what is added to {name} is no product times numbers")
    return Addition(
        loops=loops,
        op=op,
        dot=dot,
        finish=replace(formula, value=numbers[SUM]),
        sources=tuple(reader.arguments(formula)),
    )


def _dot(loops: Loops, name: str) -> Op:
    """Return the dot of streamed rows by the tile's rows with the tile's rows."""
    rows = loops.keys, loops.queries
    dots = [op for op in loops.loop.regions[0].ops if op.kind == "dot"]
    found = [op for op in dots if loops.blocks(op.operands[0]) == rows and loops.blocks(op.operands[1])[:1] == rows[1:]]
    if len(found) != 1 or len(found[0].operands) != 2 or found[0].result.dtype != torch.float32:
        raise Refusal(f"what is added to {name} is no product x @ y in fp32 of left operands with the tile's rows")
    check_dot(found[0])
    return found[0]


def _is_multiple(formula: Formula, value: int) -> bool:
    """Return whether a value is the product times numbers: blocks that are not visited add 0 then."""
    linear = [True] + [False] * len(formula.sources)
    for made in formula.instructions:
        flags = [not isinstance(each, Constant) and linear[each] for each in made.arguments]
        kept = (made.op, flags) in _LINEAR
        if not kept and (any(flags) or not made.arguments):
            return False
        linear.append(kept)
    return linear[value] and all(source.kind == "number" for source in formula.sources)
