"""The outputs of attention: values computed from accumulator, sum and maximum after the loop."""

from __future__ import annotations

import torch

from ....._compiler.ir.grammar import Op, Operand
from ....._shapes import dtype_name
from ...plan.attention.records import AttentionOutput, Formula, Matrix
from ...plan.refusal import Refusal
from ..chain import ROUNDED
from ..names import name_of
from .formula import FormulaReader
from .loops import Loops
from .places import access_of, check_reach, matrix_of
from .softmax import Softmax
from .values import name_of_op

ACCUMULATOR, TOTAL, MAXIMUM = "accumulator", "total", "maximum"


class Finish:
    """The outputs that are computed after the loop."""

    def __init__(self, loops: Loops, softmax: Softmax) -> None:
        self.loops = loops
        columns = [each for each in loops.blocks(loops.second.result) if each != loops.queries]
        self.columns = columns[0] if columns else None
        self.reader = FormulaReader(loops, (ACCUMULATOR, TOTAL, MAXIMUM), self.columns, "outputs")
        results = loops.loop.results
        places = {softmax.accumulator: ACCUMULATOR, softmax.total: TOTAL, softmax.maximum: MAXIMUM}
        for at, name in places.items():
            self.reader.known[results[at].number] = name
        self.formula = Formula()
        self.tensors: tuple[int, ...] = ()

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
            matrix = matrix_of(self.loops, op, self.loops.queries, "queries")
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
        )
        return AttentionOutput(name=name, value=numbers[name], kind="query", dtype=dtype, matrix=matrix)


def unrounded(loops: Loops, store: Op) -> Operand:
    """Return the stored value without a cast that the store makes redundant."""
    made = loops.maker(store.operands[0])
    if made is not None and name_of_op(made) == "cast" and made.result.dtype == loops.tensor(store).dtype:
        return made.operands[0]
    return store.operands[0]
