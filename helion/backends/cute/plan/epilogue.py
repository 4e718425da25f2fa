"""The epilogue between accumulator and store, as a straight-line program in fp32 over named operands."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from ...._support.records import dataclass
from .refusal import Refusal

Awaiting = Literal["operands", "matrices"]
"""Loads after messages: those of A and B, in a CTA and in all that share them, or those of matrices of the epilogue."""
OperandKind = Literal["exact", "strided", "row", "column", "product", "number", "uniform", "integers", "group"]
OutputKind = Literal["exact", "strided", "column", "tile", "sum", "total", "group", "pair"]

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
"""Number of arguments by operation. ``round`` rounds half to even; ``round_*`` rounds to the type and widens again, as
a cast within the chain does. Comparisons give 1 or 0, and ``where`` selects the second argument unless the first is 0.
"""
COLUMN_NUMBER, ROW_NUMBER = "column_number", "row_number"
ROW_PLACE = "row_place"
"""The number of a row, divided by a constant and modulo another one: its index in one of several dimensions of rows."""
"""The operations without arguments that give the index of each column, and of each row, from 0."""
INTEGER_SUM = "integer_sum"
"""The operation (accumulator, integers) that adds in int32, and wraps, before the result is converted to fp32."""
MAX_NUMBERED = 2**24
"""Rows, or columns, whose indices are exact in fp32."""
REDUCTIONS: Mapping[str, int] = {"row_sum": 1, "row_maximum": 1, "row_minimum": 1, "row_first": 2}
"""Number of arguments by operation on the N values of a whole row, whose result is one number per row.

``row_maximum`` and ``row_minimum`` give NaN for a row that has one. ``row_first`` (x, s) is the first column at which x
equals s, or at which both are NaN. With s the maximum of x, it is the result of torch's ``argmax``.
"""
GROUP_REDUCTIONS: Mapping[str, str] = {
    "group_sum": "row_sum",
    "group_maximum": "row_maximum",
    "group_minimum": "row_minimum",
}
"""Reductions (x, n) over each n consecutive columns, whose result all columns of the group have, and those over rows."""
BLOCK_REDUCTIONS: Mapping[str, str] = {
    "block_sum": "row_sum",
    "block_maximum": "row_maximum",
    "block_minimum": "row_minimum",
}
"""Reductions (x, n) of a number per row over each n consecutive rows, the rows of a CTA, and those over columns."""
PARTNER, JOINED = "partner", "joined"
"""The operation (x) whose result is, in each column, the x of the other column of its pair: of 2j + 1 in 2j. That of
(x, y) is x in the first column of each pair, and y in the second one."""
ROUND_E4M3 = "round_float8_e4m3fn"
"""The operation (x) of row kernels that rounds to e4m3 and widens again. Numbers too large for it become the largest."""
MAX_PRODUCTS = 4
"""Matmuls of one A, whose columns one MMA instruction has side by side."""
MAX_CHAIN = 6
"""Limit of row reductions that each depend on the one before."""


@dataclass(frozen=True, kw_only=True)
class EpilogueOperand:
    """An input of the epilogue besides the accumulator.

    It is a tensor, ``exact`` or ``strided`` (M, N), ``row`` (N,) or ``column`` (M,). TMA loads ``exact`` ones, and threads
    read ``strided`` ones, ``column_pitch`` from one column to the next, where they are. Or it is a ``number``, an fp32 scalar
    of each launch. A ``product`` is a second B, of the type, shape and major of the first: the value is A @ B of it.
    ``uniform`` are random numbers in [0, 1) of a seed, as if they were a matrix of all of its numbers in order. Their offsets
    have the type ``dtype``. ``integers`` are read like ``strided`` ones, and added to the accumulator in int32. A ``group``
    has one number for each row and for each ``group`` columns.

    ``pitch`` counts elements from one row to the next of an exact operand, or from one line to the next of a second B.
    For a vector it counts those from one element to the next: 0 for a column with one number for all rows. A ``strided`` one
    of ``pairs`` columns has one number for each pair of columns, of as many pairs, again and again. One of ``repeated`` columns has
    these again and again.
    """

    name: str
    kind: OperandKind
    dtype: str
    pitch: int = 1
    column_pitch: int = 1
    pairs: int = 0
    repeated: int = 0
    group: int = 0

    def __repr__(self) -> str:
        return _shown(self)

    @property
    def label(self) -> str:
        """Its name in generated code, distinct from the kernel's own names."""
        return f"{self.name}_operand"

    @property
    def turned(self) -> bool:
        """True if TMA loads tiles that are contiguous along M, as it stores those of the output."""
        return self.kind == "exact" and self.column_pitch > 1

    @property
    def by_threads(self) -> bool:
        """True if threads read or draw it at the positions of their values."""
        return self.kind in ("strided", "uniform", "integers")


def _shown(tensor: EpilogueOperand | EpilogueOutput) -> str:
    """Return the text of a tensor, without what most have: contiguous columns, stores, and lines in order."""
    hidden = {"column_pitch": 1, "adds": False, "lines": None, "picked": 0, "pairs": 0, "group": 0, "block": 0}
    hidden |= {"rows": None, "columns": None, "repeated": 0}
    shown = [
        each.name
        for each in dataclasses.fields(tensor)
        if each.name not in hidden or getattr(tensor, each.name) != hidden[each.name]
    ]
    return f"{type(tensor).__name__}({', '.join(f'{name}={getattr(tensor, name)!r}' for name in shown)})"


@dataclass(frozen=True)
class Constant:
    """A number as Python writes it, because 1, 1.0 and True, and 0.0 and -0.0, are equal."""

    text: str


def constant(value: float) -> Constant:
    return Constant(repr(float(value)))


@dataclass(frozen=True)
class Instruction:
    """An ``op`` over earlier values (by number) or constants."""

    op: str
    arguments: tuple[int | Constant, ...]


@dataclass(frozen=True, kw_only=True)
class LineNumbers:
    """A vector of the numbers of picked lines, ``pitch`` elements from one to the next."""

    name: str
    dtype: str
    pitch: int


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Parts of a dimension of a matrix: ``size`` elements each, ``step`` elements of memory from one part to the next."""

    size: int
    step: int


@dataclass(frozen=True, kw_only=True)
class EpilogueOutput:
    """A tensor that value number ``value`` is stored to, rounded once.

    It is ``exact`` or ``strided`` (M, N), ``column`` (M,), or ``tile`` (M, tiles of N). Each tile stores a reduction of
    its own columns to a ``tile``. A ``sum`` (blocks of M, N) has the sum of the values over the rows of each block, a ``total`` (N,) over all rows. A ``group`` (M, groups of N) has one value of
    each group of columns. A ``pair`` (M, N / 2) has the value of the first column of each pair.

    ``pitch`` counts elements from one row to the next of ``exact``, ``tile``, ``sum``, ``group`` and ``pair``, and from one element to the next of
    ``column``. The values of ``column`` and ``tile`` have to be one per row. With ``adds`` TMA, or threads, add the value
    to what is in memory, element by element. With ``lines`` row ``i`` is stored to the line whose number these have at
    ``i``, of the ``picked`` lines of the tensor; other numbers store nothing. A ``strided`` one of ``pairs`` columns has the
    value of the first column of each pair. A ``column`` has one number for each ``block`` of so many rows. An ``exact`` one
    may have ``rows`` and ``columns`` in parts: then ``pitch`` is that of the rows of a part.
    """

    name: str
    value: int
    kind: OutputKind
    dtype: str
    pitch: int
    column_pitch: int = 1
    adds: bool = False
    lines: LineNumbers | None = None
    picked: int = 0
    pairs: int = 0
    block: int = 0
    rows: Parts | None = None
    columns: Parts | None = None

    def __repr__(self) -> str:
        return _shown(self)

    @property
    def divided(self) -> bool:
        """True if rows or columns are in parts."""
        return self.rows is not None or self.columns is not None

    @property
    def label(self) -> str:
        """Its name in generated code, distinct from the kernel's own names."""
        return f"{self.name}_output"

    @property
    def turned(self) -> bool:
        """True if TMA stores tiles that are contiguous along M, with ``column_pitch`` elements from one column to the next."""
        return self.kind == "exact" and self.column_pitch > 1


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word of int32 for each tile: number ``first`` of a tensor, plus the numbers of the tile along M and N times
    ``steps``. With steps of 0, tiles share it."""

    name: str
    first: int
    steps: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class Signal:
    """A message to a peer after all accesses of a tile: 1 is added to ``word``, in memory of the peer."""

    word: Word


@dataclass(frozen=True, kw_only=True)
class Await:
    """A wait before the loads of a tile, of operands or of matrices: ``word`` has to reach ``seen`` plus ``count``.

    Unless it has to ``keep`` the messages, ``seen`` then counts them. A wait of ``seconds``, 0 for never, writes ``note``
    to the words ``lost`` and ``lost_word``, and ends.
    """

    before: Awaiting = "matrices"
    word: Word
    seen: Word
    count: int
    keep: bool
    seconds: int
    note: int
    lost: int
    lost_word: Word


@dataclass(frozen=True, kw_only=True)
class Epilogue:
    """A straight-line program. Value 0 is the accumulator, values 1 .. len(operands) the operands, then one value per
    instruction.

    Each output is a value of these; without outputs the last value is stored to D. A tile waits for messages of peers
    before, and signals to peers after it.
    """

    operands: tuple[EpilogueOperand, ...] = ()
    instructions: tuple[Instruction, ...] = ()
    outputs: tuple[EpilogueOutput, ...] = ()
    waits: tuple[Await, ...] = ()
    signals: tuple[Signal, ...] = ()
    tile: tuple[int, int] = (0, 0)
    """Rows and columns of the tiles of messages, which a plan decides."""

    def __repr__(self) -> str:
        more = "".join(f", {name}={getattr(self, name)!r}" for name in self._shown_names())
        return f"Epilogue(operands={self.operands!r}, instructions={self.instructions!r}{more})"

    def _shown_names(self) -> list[str]:
        messages = ("waits", "signals", "tile") if self.words else ()
        return [name for name in ("outputs", *messages) if getattr(self, name)]

    @functools.cached_property
    def words(self) -> tuple[Word, ...]:
        """The words of messages, of which each has a tensor among the arguments of a launch."""
        awaited = (word for wait in self.waits for word in (wait.word, wait.seen))
        return (*awaited, *(signal.word for signal in self.signals))

    @property
    def last(self) -> int:
        """Number of the last computed value: that of the accumulator if there are no instructions."""
        return len(self.operands) + len(self.instructions) if self.instructions else 0

    def made(self, value: int) -> Instruction | None:
        """Return the instruction that computes `value`; None for the accumulator and operands."""
        at = value - 1 - len(self.operands)
        return self.instructions[at] if at >= 0 else None

    def instruction(self, value: int) -> Instruction:
        """Return the instruction that computes `value`, which is no operand."""
        return self.instructions[value - 1 - len(self.operands)]

    def elements_for(self, values: Iterable[int], kept: int = 0) -> list[int]:
        """Return the per-element values that `values` depend on, down to operands and to `kept`, in order."""
        found: set[int] = set()
        left = list(values)
        while left:
            value = left.pop()
            if value not in found and not self.per_row[value]:
                found.add(value)
                made = self.made(value) if value != kept else None
                left += [x for x in made.arguments if not isinstance(x, Constant)] if made else []
        return sorted(found)

    @functools.cached_property
    def reduces_rows(self) -> bool:
        return any(instruction.op in REDUCTIONS for instruction in self.instructions)

    @functools.cached_property
    def per_row(self) -> tuple[bool, ...]:
        """Flags by value, true for one number per row: numbers, column operands, reductions, and what depends only on
        these."""
        found = [False, *(operand.kind in ("column", "number") for operand in self.operands)]
        for instruction in self.instructions:
            values = [x for x in instruction.arguments if not isinstance(x, Constant)]
            alone = instruction.op in REDUCTIONS or instruction.op in (ROW_NUMBER, ROW_PLACE)
            found.append(alone or (bool(values) and all(found[x] for x in values)))
        return tuple(found)

    @functools.cached_property
    def grouped(self) -> tuple[int, ...]:
        """Columns of a group, by value, for values that are the same in all columns of a group, and not of a row; else 0."""
        found = [0, *(operand.group for operand in self.operands)]
        for number, instruction in enumerate(self.instructions):
            values = [x for x in instruction.arguments if not isinstance(x, Constant)]
            sizes = {found[x] for x in values if not self.per_row[x]}
            if instruction.op in GROUP_REDUCTIONS:
                size = instruction.arguments[1]
                assert isinstance(size, Constant)
                sizes = {int(float(size.text))}
            same = len(sizes) == 1 and not self.per_row[1 + len(self.operands) + number]
            found.append(sizes.pop() if same else 0)
        return tuple(found)

    @functools.cached_property
    def levels(self) -> tuple[int, ...]:
        """Depths by value: the longest chain of reductions that it depends on."""
        found = [0] * (1 + len(self.operands))
        for instruction in self.instructions:
            before = max((found[x] for x in instruction.arguments if not isinstance(x, Constant)), default=0)
            found.append(before + (instruction.op in REDUCTIONS))
        return tuple(found)

    @property
    def in_pairs(self) -> bool:
        """True if it moves values between the columns of a pair, or has a matrix of one number for each pair."""
        moved = any(made.op in (PARTNER, JOINED) for made in self.instructions)
        return moved or any(each.pairs for each in self.operands) or any(each.pairs for each in self.outputs)

    @functools.cached_property
    def rows_of_blocks(self) -> tuple[int, ...]:
        """Rows of each block that is reduced."""
        sizes = (made.arguments[1] for made in self.instructions if made.op in BLOCK_REDUCTIONS)
        return tuple(int(float(size.text)) for size in sizes if isinstance(size, Constant))

    def numbers(self, op: str) -> bool:
        """Return whether it computes with the indices of rows, or of columns."""
        return any(instruction.op == op for instruction in self.instructions)

    def of_kind(self, kind: OperandKind) -> tuple[EpilogueOperand, ...]:
        return self._by_kind.get(kind, ())

    @functools.cached_property
    def _by_kind(self) -> dict[OperandKind, tuple[EpilogueOperand, ...]]:
        """The operands of each kind, in their order."""
        kinds = {operand.kind for operand in self.operands}
        return {kind: tuple(operand for operand in self.operands if operand.kind == kind) for kind in kinds}

    def rows_of(self, values: Sequence[int]) -> list[EpilogueOperand]:
        """Return the row operands among values."""
        return [each for each in (self.operands[value - 1] for value in values) if each.kind == "row"]

    def check(self) -> None:
        """Check that instructions are known and read only earlier values, and outputs are values. Raises ``Refusal``."""
        for what, names in (
            ("operands", [operand.name for operand in self.operands]),
            ("outputs", [output.name for output in self.outputs]),
        ):
            if not all(name.isidentifier() for name in names) or len(set(names)) != len(names):
                raise Refusal(f"epilogue {what} need distinct identifiers as names, not {names}")
        if len(self.of_kind("product")) >= MAX_PRODUCTS:
            raise Refusal(f"up to {MAX_PRODUCTS} matmuls that share an epilogue are implemented, not more")
        for number, instruction in enumerate(self.instructions):
            self._check_instruction(number, instruction)
        for output in self.outputs:
            self._check_output(output)
        if max(self.levels) > MAX_CHAIN:
            raise Refusal(f"{max(self.levels)} dependent reductions of a row; up to {MAX_CHAIN} are implemented")

    def _check_instruction(self, number: int, instruction: Instruction) -> None:
        groups = dict.fromkeys(GROUP_REDUCTIONS, 2)
        arity = {
            **ARITY,
            **REDUCTIONS,
            **groups,
            **dict.fromkeys(BLOCK_REDUCTIONS, 2),
            COLUMN_NUMBER: 0,
            ROW_NUMBER: 0,
            ROW_PLACE: 2,
            PARTNER: 1,
            JOINED: 2,
            ROUND_E4M3: 1,
            INTEGER_SUM: 2,
        }.get(instruction.op)
        if arity != len(instruction.arguments):
            raise Refusal(f"no epilogue operation {instruction.op!r} of {len(instruction.arguments)} arguments")
        for argument in instruction.arguments:
            if not isinstance(argument, Constant) and not 0 <= argument < 1 + len(self.operands) + number:
                raise Refusal(f"instruction {number} of the epilogue reads value {argument}, which comes later")
        if (instruction.op == INTEGER_SUM) != any(self._is_integers(each) for each in instruction.arguments):
            raise Refusal("integers are added to an accumulator in int32, and read by nothing else")
        if instruction.op == INTEGER_SUM and instruction.arguments[0] != 0:
            raise Refusal("integers are added to the accumulator of the first matmul")
        if instruction.op in GROUP_REDUCTIONS:
            reduced, size = instruction.arguments
            if isinstance(reduced, Constant) or self.per_row[reduced] or not isinstance(size, Constant):
                raise Refusal(f"{instruction.op} of a value that is the same in all columns is not implemented")
        if instruction.op in BLOCK_REDUCTIONS:
            reduced, size = instruction.arguments
            if isinstance(reduced, Constant) or not self.per_row[reduced] or not isinstance(size, Constant):
                raise Refusal(f"{instruction.op} of another value than one number per row is not implemented")
        if instruction.op == PARTNER and not self._differs(instruction.arguments[0]):
            raise Refusal("the columns of a pair have the same value")
        if instruction.op in REDUCTIONS:
            reduced, *others = instruction.arguments
            if isinstance(reduced, Constant) or self.per_row[reduced]:
                raise Refusal(f"{instruction.op} of a value that is the same in all columns is not implemented")
            if any(isinstance(other, Constant) or not self.per_row[other] for other in others):
                raise Refusal(f"{instruction.op} compares with one number per row")

    def _is_integers(self, value: int | Constant) -> bool:
        if isinstance(value, Constant) or not 0 < value <= len(self.operands):
            return False
        return self.operands[value - 1].kind == "integers"

    def _differs(self, value: int | Constant) -> bool:
        """Return whether a value may differ from column to column."""
        return not isinstance(value, Constant) and not self.per_row[value] and not self.grouped[value]

    def _check_output(self, output: EpilogueOutput) -> None:
        if not 0 <= output.value < len(self.per_row):
            raise Refusal(f"output {output.name} is value {output.value} of {len(self.per_row)}")
        if output.kind == "group" and not self.grouped[output.value]:
            raise Refusal(f"output {output.name} has one number per group of columns, value {output.value} has not")
        if output.kind == "pair" and self.per_row[output.value]:
            raise Refusal(f"output {output.name} has one number per pair of columns, value {output.value} one per row")
        if output.kind not in ("exact", "strided", "sum", "total", "group", "pair") and not self.per_row[output.value]:
            raise Refusal(f"output {output.name} has one number per row, value {output.value} one per column as well")
