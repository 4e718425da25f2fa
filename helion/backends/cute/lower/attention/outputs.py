"""The outputs of attention: values computed from accumulator, sum and maximum after the loop."""

from __future__ import annotations

import torch

from ....._compiler.ir.grammar import Op, Operand
from ....._shapes import dtype_name
from ...plan.attention.operands import Matrix
from ...plan.attention.records import AttentionOutput, Formula
from ...plan.epilogue import Constant, constant
from ...plan.refusal import Refusal
from ..chain import ROUNDED, Reference
from ..names import name_of
from .formula import FormulaReader
from .loops import Loops
from .operands import matrix_of
from .places import access_of, check_reach
from .softmax import Softmax, Start
from .values import name_of_op

ACCUMULATOR, TOTAL, MAXIMUM = "accumulator", "total", "maximum"


class Finish:
    """The outputs that are computed after the loop."""

    def __init__(self, loops: Loops) -> None:
        self.loops = loops
        columns = [each for each in loops.blocks(loops.second.result) if each != loops.queries]
        self.columns = columns[0] if columns else None
        self.reader = FormulaReader(loops, (ACCUMULATOR, TOTAL, MAXIMUM), self.columns, "outputs")
        self.formula = Formula()
        self.tensors: tuple[int, ...] = ()

    def start_from(self, softmax: Softmax, start: Start) -> None:
        """Let the formula start from the results of a loop with a softmax."""
        places = {softmax.accumulator: ACCUMULATOR, softmax.total: TOTAL, softmax.maximum: MAXIMUM}
        values = places if start.held is None else dict(zip(places, self._with(start, softmax.unit), strict=True))
        for at, value in values.items():
            self.know(at, value)

    def know(self, at: int, value: Reference) -> None:
        """Let ``value`` be the result of the loop at position ``at``."""
        self.reader.known[self.loops.loop.results[at].number] = value

    def _with(self, start: Start, unit: float) -> tuple[Reference, Reference, Reference]:
        """Return the accumulator, the sum and the maximum of the program, whose initial values count.

        The kernel begins with a maximum of ``UNSEEN`` and a sum of 0. Both sums become relative to the larger maximum.
        """
        step, read = self.reader.step, self.reader.read
        assert start.held is not None
        initial, total, accumulator = map(read, start.held)
        unseen = step("le", (MAXIMUM, constant(start.maximum)))
        highest = step("where", (unseen, initial, step("maximum", (MAXIMUM, initial))))

        def factor(maximum: Reference, same: Reference, otherwise: float) -> Reference:
            power = step("exp2", (step("mul", (step("sub", (maximum, highest)), constant(unit))),))
            return step("where", (same, constant(otherwise), power))

        shrunk = factor(MAXIMUM, unseen, 0.0)
        share = factor(initial, step("eq", (initial, highest)), 1.0)
        totals = step("mul", (total, share))
        accumulated = step("mul", (ACCUMULATOR, shrunk))
        if not _is_zero(accumulator):
            accumulated = step("add", (accumulated, step("mul", (accumulator, share))))
        return accumulated, step("add", (step("mul", (TOTAL, shrunk)), totals)), highest

    def know_from(self, at: int, value: Reference) -> None:
        """Let ``value``, plus what the program begins with, be the result of the loop at position ``at``."""
        begin = self.reader.read(self.loops.loop.operands[at])
        self.know(at, value if _is_zero(begin) else self.reader.step("add", (value, begin)))

    def outputs(self) -> tuple[AttentionOutput, ...]:
        """Return the outputs, the matrix first, and set the formula and the ids of their tensors."""
        stored = [op for op in self.loops.root.body.ops if op.kind == "store"]
        stores = sorted(stored, key=lambda op: -len(access_of(self.loops, op).strides))
        values = {name_of(self.loops.tensor(op)): self.reader.read(unrounded(self.loops, op)) for op in stores}
        if len(values) < len(stores):
            raise Refusal("a tensor that is stored twice is not implemented")
        self.formula, numbers = self.reader.formula(values)
        self.tensors = tuple(self.loops.tensor(op).id for op in stores)
        return tuple(self._output(op, numbers) for op in stores)

    def _output(self, op: Op, numbers: dict[str, int]) -> AttentionOutput:
        access, name = access_of(self.loops, op), name_of(self.loops.tensor(op))
        if name not in numbers:
            raise Refusal(f"{access.tensor.name} does not depend on the attention")
        if self.columns in access.strides:
            matrix = matrix_of(self.loops, op, self.loops.queries, "queries", spanned=True)
            return AttentionOutput(name=name, value=numbers[name], kind="exact", dtype=matrix.dtype, matrix=matrix)
        if set(access.strides) != {self.loops.queries}:
            raise Refusal(f"{access.tensor.name} is no matrix of queries, nor has it one number for each")
        check_reach(access)
        dtype = dtype_name(access.tensor.dtype)
        if access.tensor.dtype not in (torch.float32, *ROUNDED):
            raise Refusal(f"numbers per query in {dtype} are not implemented")
        matrix = Matrix(
            name=name,
            dtype=dtype,
            columns=1,
            pitch=access.strides[self.loops.queries],
            offset=access.offset,
            modes=access.modes,
            row=access.rows.get(self.loops.queries),
        )
        return AttentionOutput(name=name, value=numbers[name], kind="query", dtype=dtype, matrix=matrix)


def _is_zero(value: Reference) -> bool:
    return isinstance(value, Constant) and float(value.text) == 0


def unrounded(loops: Loops, store: Op) -> Operand:
    """Return the stored value without a cast that the store makes redundant."""
    made = loops.maker(store.operands[0])
    if made is not None and name_of_op(made) == "cast" and made.result.dtype == loops.tensor(store).dtype:
        return made.operands[0]
    return store.operands[0]
