"""What happens between the accumulator and the store, as a straight-line program in fp32 over named operands."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .refusal import Refusal

OperandKind = Literal["exact", "row", "column", "product", "number"]
OutputKind = Literal["exact", "column", "tile"]

ARITY: Mapping[str, int] = {
    "add": 2,
    "sub": 2,
    "mul": 2,
    "div": 2,
    "maximum": 2,
    "minimum": 2,
    "neg": 1,
    "abs": 1,
    "relu": 1,
    "exp": 1,
    "log": 1,
    "sqrt": 1,
    "rsqrt": 1,
    "tanh": 1,
    "one_plus_tanh": 1,
    "erf": 1,
    "sigmoid": 1,
    "silu": 1,
    "gelu": 1,
    "gelu_tanh": 1,
    "exp2": 1,
    "expm1": 1,
    "log2": 1,
    "log10": 1,
    "log1p": 1,
    "floor": 1,
    "ceil": 1,
    "trunc": 1,
    "round": 1,
    "eq": 2,
    "ne": 2,
    "lt": 2,
    "le": 2,
    "gt": 2,
    "ge": 2,
    "isnan": 1,
    "isinf": 1,
    "isfinite": 1,
    "where": 3,
    "round_float16": 1,
    "round_bfloat16": 1,
}
"""Number of arguments by operation. ``round`` gives the nearest integer, of two the even one; ``round_*`` rounds to the type
and widens again, as a cast within the chain does. What compares gives 1 or 0, and ``where`` takes the second argument unless
the first is 0."""
COLUMN_NUMBER, ROW_NUMBER = "column_number", "row_number"
"""The operations without arguments that give the number of each column, and of each row, from 0 on."""
MAX_NUMBERED = 2**24
"""Rows, or columns, whose numbers fp32 holds."""
REDUCTIONS: Mapping[str, int] = {"row_sum": 1, "row_maximum": 1, "row_minimum": 1, "row_first": 2}
"""Number of arguments by operation on the N values of a whole row, whose result is one number per row.

``row_maximum`` and ``row_minimum`` give NaN for a row that has one. ``row_first`` (x, s) is the first column at which x equals
s, or at which both are NaN: with s the maximum of x, it is where torch's ``argmax`` finds it.
"""
MAX_CHAIN = 4
"""Reductions of a row that each need the one before."""


@dataclass(frozen=True, kw_only=True)
class EpilogueOperand:
    """A tensor read beside the accumulator: ``exact`` (M, N), ``row`` (N,) or ``column`` (M,); or a ``number`` that each launch
    is given, in fp32.

    ``pitch`` counts elements from one row to the next of an exact operand, and from one element to the next of a vector: 0
    of a column that has one number for all rows.
    ``product`` is a
    second B, of the type, shape and major of the first: the value is A @ B of it, its ``pitch`` that of its lines.
    """

    name: str
    kind: OperandKind
    dtype: str
    pitch: int = 1

    @property
    def label(self) -> str:
        """Its name in the text, unlike any of the kernel's own."""
        return f"{self.name}_operand"


@dataclass(frozen=True)
class Constant:
    """A number as Python writes it, because 1, 1.0 and True, and 0.0 and -0.0, are equal."""

    text: str


def constant(value: float) -> Constant:
    return Constant(repr(float(value)))


@dataclass(frozen=True)
class Instruction:
    """``op`` of earlier values (their numbers) or constants."""

    op: str
    arguments: tuple[int | Constant, ...]


@dataclass(frozen=True, kw_only=True)
class EpilogueOutput:
    """A tensor that value number ``value`` is stored to, rounded once: ``exact`` (M, N), ``column`` (M,), or ``tile`` (M, tiles
    of N), to which each tile stores what it reduces its own columns to.

    ``pitch`` counts elements from one row to the next of an exact output and of one per tile, and from one element to the
    next of a column. The values of both others have to be one per row.
    """

    name: str
    value: int
    kind: OutputKind
    dtype: str
    pitch: int

    @property
    def label(self) -> str:
        """Its name in the text, unlike any of the kernel's own."""
        return f"{self.name}_output"


@dataclass(frozen=True, kw_only=True)
class Epilogue:
    """Value 0 is the accumulator, values 1 .. len(operands) the operands, then one value per instruction.

    Each output is a value of these; without outputs the last value is stored to D.
    """

    operands: tuple[EpilogueOperand, ...] = ()
    instructions: tuple[Instruction, ...] = ()
    outputs: tuple[EpilogueOutput, ...] = ()

    def __repr__(self) -> str:
        outputs = f", outputs={self.outputs!r}" if self.outputs else ""
        return f"Epilogue(operands={self.operands!r}, instructions={self.instructions!r}{outputs})"

    @property
    def last(self) -> int:
        """Number of the last value that is computed: of the accumulator where nothing is."""
        return len(self.operands) + len(self.instructions) if self.instructions else 0

    def made(self, value: int) -> Instruction | None:
        """The instruction that gives `value`; None for the accumulator and operands."""
        at = value - 1 - len(self.operands)
        return self.instructions[at] if at >= 0 else None

    def instruction(self, value: int) -> Instruction:
        """The instruction that gives `value`, which is no operand."""
        return self.instructions[value - 1 - len(self.operands)]

    @property
    def reduces_rows(self) -> bool:
        return any(instruction.op in REDUCTIONS for instruction in self.instructions)

    @functools.cached_property
    def per_row(self) -> tuple[bool, ...]:
        """By value: whether it is one number per row, as numbers, column operands and reductions are, and what is made of such."""
        found = [False, *(operand.kind in ("column", "number") for operand in self.operands)]
        for instruction in self.instructions:
            values = [x for x in instruction.arguments if not isinstance(x, Constant)]
            alone = instruction.op in REDUCTIONS or instruction.op == ROW_NUMBER
            found.append(alone or (bool(values) and all(found[x] for x in values)))
        return tuple(found)

    @functools.cached_property
    def levels(self) -> tuple[int, ...]:
        """By value: how many reductions, each of which needs the one before, it comes behind."""
        found = [0] * (1 + len(self.operands))
        for instruction in self.instructions:
            before = max((found[x] for x in instruction.arguments if not isinstance(x, Constant)), default=0)
            found.append(before + (instruction.op in REDUCTIONS))
        return tuple(found)

    def numbers(self, op: str) -> bool:
        """Whether it computes with the numbers of rows, or of columns."""
        return any(instruction.op == op for instruction in self.instructions)

    def of_kind(self, kind: OperandKind) -> tuple[EpilogueOperand, ...]:
        return tuple(operand for operand in self.operands if operand.kind == kind)

    def check(self) -> None:
        """Raises ``Refusal`` unless every instruction is known and reads only earlier values, and outputs are values."""
        for what, names in (
            ("operands", [operand.name for operand in self.operands]),
            ("outputs", [output.name for output in self.outputs]),
        ):
            if not all(name.isidentifier() for name in names) or len(set(names)) != len(names):
                raise Refusal(f"epilogue {what} need distinct identifiers as names, not {names}")
        if len(self.of_kind("product")) > 1:
            raise Refusal("two products that share an epilogue are implemented, not more")
        for number, instruction in enumerate(self.instructions):
            self._check_instruction(number, instruction)
        for output in self.outputs:
            self._check_output(output)
        if max(self.levels) > MAX_CHAIN:
            raise Refusal(
                f"{max(self.levels)} reductions of a row, one behind the other; up to {MAX_CHAIN} are implemented"
            )

    def _check_instruction(self, number: int, instruction: Instruction) -> None:
        arity = {**ARITY, **REDUCTIONS, COLUMN_NUMBER: 0, ROW_NUMBER: 0}.get(instruction.op)
        if arity != len(instruction.arguments):
            raise Refusal(f"no epilogue operation {instruction.op!r} of {len(instruction.arguments)} arguments")
        for argument in instruction.arguments:
            if not isinstance(argument, Constant) and not 0 <= argument < 1 + len(self.operands) + number:
                raise Refusal(f"instruction {number} of the epilogue reads value {argument}, which comes later")
        if instruction.op in REDUCTIONS:
            reduced, *others = instruction.arguments
            if isinstance(reduced, Constant) or self.per_row[reduced]:
                raise Refusal(f"{instruction.op} of a value that is the same in all columns is not implemented")
            if any(isinstance(other, Constant) or not self.per_row[other] for other in others):
                raise Refusal(f"{instruction.op} compares with one number per row")

    def _check_output(self, output: EpilogueOutput) -> None:
        if not 0 <= output.value < len(self.per_row):
            raise Refusal(f"output {output.name} is value {output.value} of {len(self.per_row)}")
        if output.kind != "exact" and not self.per_row[output.value]:
            raise Refusal(f"output {output.name} has one number per row, value {output.value} one per column as well")
