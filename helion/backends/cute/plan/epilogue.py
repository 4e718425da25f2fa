"""What happens between the accumulator and the store, as a straight-line program in fp32 over named operands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .refusal import Refusal

OperandKind = Literal["exact", "row", "column", "product"]

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
    "round_float16": 1,
    "round_bfloat16": 1,
}
"""Number of arguments by operation. ``round_*`` rounds to the type and widens again, as a cast within the chain does."""


@dataclass(frozen=True, kw_only=True)
class EpilogueOperand:
    """A tensor read beside the accumulator: ``exact`` (M, N), ``row`` (N,) or ``column`` (M,).

    ``pitch`` counts elements from one row to the next of an exact operand, and from one element to the next of a vector.
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
class Epilogue:
    """Value 0 is the accumulator, values 1 .. len(operands) the operands, then one value per instruction.

    The last value is rounded once, to the type of the output.
    """

    operands: tuple[EpilogueOperand, ...] = ()
    instructions: tuple[Instruction, ...] = ()

    def of_kind(self, kind: OperandKind) -> tuple[EpilogueOperand, ...]:
        return tuple(operand for operand in self.operands if operand.kind == kind)

    def check(self) -> None:
        """Raises ``Refusal`` unless every instruction is known and reads only earlier values."""
        names = [operand.name for operand in self.operands]
        for name in names:
            if not name.isidentifier() or names.count(name) != 1:
                raise Refusal(f"epilogue operands need distinct identifiers as names, not {names}")
        if len(self.of_kind("product")) > 1:
            raise Refusal("two products that share an epilogue are implemented, not more")
        known = 1 + len(self.operands)
        for number, instruction in enumerate(self.instructions):
            if ARITY.get(instruction.op) != len(instruction.arguments):
                raise Refusal(f"no epilogue operation {instruction.op!r} of {len(instruction.arguments)} arguments")
            for argument in instruction.arguments:
                if isinstance(argument, Constant) and not math.isfinite(float(argument.text)):
                    raise Refusal(f"epilogue constants are finite numbers, not {argument.text}")
                if not isinstance(argument, Constant) and not 0 <= argument < known + number:
                    raise Refusal(f"instruction {number} of the epilogue reads value {argument}, which comes later")
