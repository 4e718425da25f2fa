"""The records of attention's gradients: ``BackwardProblem``, and the checks of its tensors.

A CTA owns a tile of rows and streams blocks of other rows. For the gradient of queries it owns ``q`` and that of the output,
and streams ``k`` and ``v``; for those of keys and values it is the other way round. Of the tile and a block, it needs two
products, from which a formula computes the left operands of the gradients' own products.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from ....._support.records import dataclass
from ..dtypes import itemsize
from ..epilogue import Constant
from ..refusal import Refusal
from .build import COLUMN_STEP, MOST_COLUMNS, MOST_GROUPS, MOST_KEYS, REGISTERS, check_matrix, check_positions
from .numbers import is_known
from .operands import Matrix, RandomNumbers, Source, Table
from .records import AttentionOutput, Band, Formula, KeyRange, ScoreProblem
from .row_values import RowValues

DRAWN_REGISTERS, DRAWN_EARLY_REGISTERS = 40, 24
"""Registers of the generator of random numbers: after the second product, or before it alone, when fewer are in use."""
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
PRODUCTS = 2
"""Products of a tile and a block: scores, and the gradients of weights."""
LOOP_OUTPUT_REGISTERS = 70
"""Registers of the addresses of numbers that the loop stores, and of both products, which are in use until then."""
SPAN_REGISTERS = 24
"""Registers of the addresses of numbers of streamed rows that begin at a loaded one, of which TMA does not load blocks
(``span_registers`` in benchmarks/results/cute/nvidia-h200-attention.jsonl)."""
FIXED_REGISTERS = 8
"""Registers besides accumulators, products and left operands, less those of values that are dead by then."""
ATOMIC_COLUMNS = 64
"""Columns of that gradient that a consumer group computes."""
SHORTEST_KEYS = 32
"""Streamed rows of the shortest blocks that are chosen for heads of many dimensions."""
STREAMED = ("first", "second")
"""Names of the pipelines of streamed blocks."""


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """The sum over all blocks of a left operand, value ``left`` of the formula, @ streamed matrix number ``right``.

    ``finish`` is the formula of its ``output``, which is stored in the shared memory of owned matrix ``right``: both have the
    same columns.
    """

    left: int
    right: int
    finish: Formula
    output: AttentionOutput

    @property
    def wide(self) -> tuple[Source, int] | None:
        """The output as numbers that threads store, and its columns, if it is in fp32: shared memory has no room for that."""
        matrix = self.output.matrix
        if matrix.dtype != "float32":
            return None
        source = Source(
            name=self.output.name,
            kind="exact",
            dtype=matrix.dtype,
            pitches=matrix.strides,
            offset=matrix.offset,
            modes=matrix.modes,
        )
        return source, matrix.columns


@dataclass(frozen=True, kw_only=True)
class AtomicSum:
    """The gradient of streamed rows, of which each tile adds its part to ``matrix`` in memory, in fp32 and in any order: the
    transposed left operand, value ``left`` of the formula, @ owned matrix number ``right``.

    The formula ``finish``, of numbers alone, is applied before the addition.
    """

    left: int
    right: int
    finish: Formula
    matrix: Matrix

    @property
    def label(self) -> str:
        """Its name in generated code."""
        return f"{self.matrix.name}_sum"


@dataclass(frozen=True, kw_only=True)
class LoopOutput:
    """Value ``value`` of the formula, of which the loop stores one number for each owned and streamed row, as the gradient of
    a bias. With ``adds`` it is added to what is in memory, in any order."""

    value: int
    target: Source
    adds: bool = False


@dataclass(frozen=True, kw_only=True, repr=False)
class BackwardProblem(ScoreProblem):
    """Gradients of attention for each head: sums of a formula of ``owned[0] @ streamed[0].T`` and ``owned[1] @
    streamed[1].T``, rounded, @ streamed matrices.

    ``queries`` counts owned rows, ``keys`` streamed ones. Left operands are 0 out of the band. The blocks are streamed
    ``repeats`` times, as for several heads that share keys. The number of the repetition is the last coordinate of a head
    then.
    """

    heads: tuple[int, ...]
    repeats: int
    queries: int
    keys: int
    band: Band
    owned: tuple[Matrix, Matrix]
    streamed: tuple[Matrix, Matrix]
    formula: Formula
    gradients: tuple[Gradient, ...]
    atomic: AtomicSum | None = None
    loop_outputs: tuple[LoopOutput, ...] = ()
    key_range: KeyRange | None = None
    """The streamed rows that an owned row sees, by integers that are loaded for it."""
    values: tuple[RowValues, ...] = ()
    """What a kernel before computes of rows. A launch passes another tensor in the place of each, and what it is computed from
    after all sources."""
    units: tuple[int, ...] = ()
    """Strides that each launch passes, and that have to be 1."""
    names: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    @property
    def is_repeated(self) -> bool:
        """True if blocks may be streamed more than once."""
        return not is_known(self.repeats) or self.repeats > 1

    @property
    def coordinates(self) -> tuple[int, ...]:
        """Sizes of the coordinates of a head, the repetition included."""
        return (*self.heads, self.repeats) if self.is_repeated else self.heads

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        added = () if self.atomic is None else (self.atomic.matrix,)
        return *self.owned, *self.streamed, *(each.output.matrix for each in self.gradients), *added

    @property
    def blocks(self) -> dict[str, Matrix]:
        return dict(zip(STREAMED, self.streamed, strict=True))

    @property
    def sources(self) -> tuple[Source, ...]:
        """Inputs other than the matrices, in the order of a launch."""
        finished = [gradient.finish for gradient in self.gradients]
        finished += [] if self.atomic is None else [self.atomic.finish]
        bounds = () if self.key_range is None else self.key_range.sources
        stored = tuple(each.target for each in self.loop_outputs)
        return (*stored, *self.formula.sources, *(each for formula in finished for each in formula.sources), *bounds)

    @property
    def argument_names(self) -> tuple[str, ...]:
        outputs = [each.output.name for each in self.gradients]
        outputs += [] if self.atomic is None else [self.atomic.matrix.name]
        return (*self.names, *outputs, *(each.name for each in self.sources), *(each.name for each in self.read_before))

    @property
    def outputs_at(self) -> range:
        """Positions of the outputs among the arguments of a launch."""
        outputs = len(self.gradients) + (self.atomic is not None) + len(self.loop_outputs)
        return range(len(self.names), len(self.names) + outputs)

    @property
    def read_before(self) -> tuple[Matrix, ...]:
        """The matrices that values of rows are computed from."""
        return tuple(matrix for each in self.values for matrix in each.reads)

    @property
    def values_at(self) -> tuple[int, ...]:
        """Positions of the values of rows among the arguments of a launch."""
        names = [*(each.name for each in self.matrices), *(each.name for each in self.sources)]
        return tuple(names.index(each.name) for each in self.values)

    @property
    def wanted(self) -> tuple[int, ...]:
        """Values of the formula that are left operands of gradients, or stored in the loop."""
        return (*(each.left for each in self.gradients), *(each.value for each in self.loop_outputs))

    @functools.cached_property
    def late(self) -> tuple[bool, ...]:
        """Flags by value of the formula, true for values that the second product is needed for."""
        return _depending(self.formula, (1,))

    @functools.cached_property
    def held(self) -> tuple[int, ...]:
        """Values computed from the first product that those of the second one are computed from."""
        early, formula = _depending(self.formula, (0,)), self.formula
        return tuple(
            value
            for value in range(formula.computed, formula.computed + len(formula.instructions))
            if early[value] and not self.late[value] and self._feeds_late(value)
        )

    @functools.cached_property
    def drawn(self) -> tuple[int, ...]:
        """Comparisons of random numbers that values before and after the second product are computed from. Their bits are
        held, so that numbers are drawn once for both."""
        if not self.draws or len(self.passes) > 1:
            return ()
        formula, wanted = self.formula, self.wanted
        random = {formula.starts + at for at, each in enumerate(formula.sources) if isinstance(each, RandomNumbers)}
        after = formula.read_by([each for each in wanted if self.late[each]], self.held)
        before = formula.read_by([*self.held, *(each for each in wanted if not self.late[each])])
        compared = (
            formula.computed + at
            for at, made in enumerate(formula.instructions)
            if made.op in COMPARISONS
            and not random.isdisjoint(each for each in made.arguments if isinstance(each, int))
        )
        of_products = _depending(formula, (0, 1))
        return tuple(each for each in compared if each in before & after and not of_products[each])

    @functools.cached_property
    def passes(self) -> tuple[tuple[int, ...], ...]:
        """Gradients by pass over all blocks: all in one, or each in its own where registers do not hold both accumulators.

        The one that needs both products comes first, since its output takes the memory of what the other does not read.
        """
        every = range(len(self.gradients))
        if self.atomic is not None or not in_passes([self.streamed[each.right].columns for each in self.gradients]):
            return (tuple(every),)
        return tuple((at,) for at in sorted(every, key=lambda at: not self.late[self.gradients[at].left]))

    def output_memory(self, gradient: int) -> int:
        """Return the number of the owned matrix whose shared memory an output takes, after all have read that."""
        if len(self.passes) == 1:
            return self.gradients[gradient].right
        return 1 if self.late[self.gradients[gradient].left] else 0

    def feeds_early(self, value: int) -> bool:
        """Return whether values before the second product are computed from a value."""
        formula = self.formula
        reading = _depending(formula, (value,))
        early = {*self.held, *(each for each in self.wanted if not self.late[each])}
        return any(reading[each] for each in early)

    def _feeds_late(self, value: int) -> bool:
        """Return whether an instruction that needs the second product reads a value."""
        formula = self.formula
        return any(
            self.late[formula.computed + at] and value in made.arguments for at, made in enumerate(formula.instructions)
        )


def _depending(formula: Formula, starts: tuple[int, ...]) -> tuple[bool, ...]:
    """Return flags by value, true for values that depend on one of the starting values ``starts``."""
    found = [at in starts for at in range(formula.computed)]
    for made in formula.instructions:
        found.append(any(not isinstance(each, Constant) and found[each] for each in made.arguments))
    return tuple(found)


def in_passes(columns: Sequence[int]) -> bool:
    """Return whether gradients of ``columns`` are computed one after the other, each in a pass over all blocks: registers of
    two consumer groups do not hold both accumulators with the shortest blocks."""
    return len(columns) > 1 and _registers(columns, SHORTEST_KEYS) > REGISTERS[2][1]


def estimated_registers(
    columns: Sequence[int],
    keys: int,
    *,
    atomic: bool = False,
    draws: bool = False,
    stores: bool = False,
    spans: bool = False,
) -> int:
    """Return the estimated registers of a consumer thread. With ``atomic``, a gradient is added to memory as well. ``draws``
    tells of random numbers, ``stores`` of numbers that the loop stores, and ``spans`` of streamed rows from a loaded one on."""
    held = [max(columns)] if columns and in_passes(columns) and not atomic else columns
    drawn = DRAWN_EARLY_REGISTERS if len(held) > 1 else DRAWN_REGISTERS
    others = [(draws, drawn), (stores, LOOP_OUTPUT_REGISTERS), (spans and not atomic and len(held) > 1, SPAN_REGISTERS)]
    return _registers(held, keys) + sum(number for used, number in others if used)


def _registers(columns: Sequence[int], keys: int) -> int:
    """Return the estimated registers of accumulators of ``columns`` and two products in fp32, and left operands of 16 bits.

    One held value takes the registers of the first product. Facts do not show the others, which ptxas may spill.
    """
    return sum(columns) // 2 + PRODUCTS * keys // 2 + len(columns) * keys // 4 + FIXED_REGISTERS


def check_backward(problem: BackwardProblem) -> None:
    """Check that the tensors can be loaded and multiplied. Raises ``Refusal``."""
    if not problem.keys:
        raise Refusal("gradients of attention over no rows are not implemented")
    tables = [source.name for source in problem.sources if isinstance(source, Table)]
    if tables:
        raise Refusal(f"gradients that read {tables[0]} by computed indices are not implemented")
    for one, other in zip(problem.owned, problem.streamed, strict=True):
        if one.columns != other.columns:
            raise Refusal(f"heads of {one.name} and {other.name} have {one.columns} and {other.columns} dimensions")
    dtype = problem.owned[0].dtype
    for matrix in (*problem.owned, *problem.streamed):
        if matrix.dtype != dtype or dtype not in ("bfloat16", "float16"):
            raise Refusal(
                f"gradients of bfloat16 or float16 tensors of one type are implemented, not {matrix.name} in {matrix.dtype}"
            )
        check_matrix(matrix, problem.spans_keys and matrix in problem.streamed)
        if matrix.columns % COLUMN_STEP or not COLUMN_STEP <= matrix.columns <= MOST_COLUMNS:
            raise Refusal(
                f"heads of {matrix.columns} dimensions; multiples of {COLUMN_STEP} up to {MOST_COLUMNS} are implemented"
            )
    check_positions(problem, (problem.formula,))
    rights = [each.right for each in problem.gradients]
    if len(set(rights)) < len(rights):
        raise Refusal("several gradients that multiply the same matrix are not implemented")
    for gradient in problem.gradients:
        output = gradient.output
        if output.dtype not in (dtype, "float32"):
            raise Refusal(f"gradients in {dtype} or float32 are implemented, not {output.name} in {output.dtype}")
        check_matrix(output.matrix)
    if problem.atomic is not None:
        _check_atomic(problem, problem.atomic)
    if len(problem.passes) > 1:
        _check_passes(problem)
    for stored in problem.loop_outputs:
        _check_loop_output(problem, stored)


def _check_passes(problem: BackwardProblem) -> None:
    """Check that outputs fit into the memory of what no later pass reads."""
    columns = [matrix.columns for matrix in problem.owned]
    late = [problem.late[each.left] for each in problem.gradients]
    if len(set(columns)) > 1 or sorted(late) != [False, True]:
        raise Refusal(
            f"gradients of {' and '.join(map(str, columns))} dimensions, of which registers hold one at a time, are implemented"
            " for equal dimensions, if one of them needs one product alone; write a kernel for each"
        )


def _check_atomic(problem: BackwardProblem, atomic: AtomicSum) -> None:
    lefts = [each.left for each in problem.gradients if problem.late[each.left]]
    name, columns = atomic.matrix.name, problem.owned[atomic.right].columns
    if atomic.left not in lefts:
        raise Refusal(
            f"what is added to {name} has another left operand than the gradient of the tile's rows, or one that needs no"
            " second product"
        )
    if atomic.matrix.dtype != "float32":
        raise Refusal(f"gradients that are added to {name} in {atomic.matrix.dtype}; float32 is implemented")
    if columns % ATOMIC_COLUMNS or columns > ATOMIC_COLUMNS * MOST_GROUPS:
        raise Refusal(
            f"gradients of {columns} dimensions that are added to {name}; {ATOMIC_COLUMNS}, {2 * ATOMIC_COLUMNS} and"
            f" {MOST_GROUPS * ATOMIC_COLUMNS} are implemented"
        )
    check_matrix(atomic.matrix, problem.spans_keys)


def _check_loop_output(problem: BackwardProblem, stored: LoopOutput) -> None:
    """Check that threads can store the numbers of a block, and that the loop visits all of them."""
    target, name = stored.target, stored.target.name
    if len(problem.passes) > 1 or problem.atomic is not None or problem.key_range is not None:
        raise Refusal(f"{name} is stored in the loop of gradients that need two passes, atomics or loaded ranges")
    if not problem.band.is_whole:
        raise Refusal(f"{name} is stored in a loop over a band of positions; a loop over all rows stores all of it")
    dtypes = ("float32",) if stored.adds else ("float32", problem.owned[0].dtype)
    if target.dtype not in dtypes:
        how = "added to in" if stored.adds else "stored in"
        raise Refusal(f"{name} is {how} the loop in {target.dtype}; {' and '.join(dtypes)} are implemented")
    if is_known(target.pitches[1]) and target.pitches[1] * itemsize(target.dtype) * MOST_KEYS >= 2**31:
        raise Refusal(
            f"{name} is stored in the loop with a stride of {target.pitches[1]} elements, too far for an offset"
        )
