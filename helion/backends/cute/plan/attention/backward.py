"""The records of attention's gradients, and ``plan_backward``: the plan of one choice, its pipelines and shared memory.

A CTA owns a tile of rows and streams blocks of other rows. For the gradient of queries it owns ``q`` and that of the output,
and streams ``k`` and ``v``; for those of keys and values it is the other way round. Of the tile and a block, it needs two
products, from which a formula computes the left operands of the gradients' own products. Where the kernel adds the gradient
of streamed rows to memory, the consumer groups exchange left operands through shared memory.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .....hardware import Target
from ..counts import PipelineCounts
from ..dtypes import itemsize
from ..epilogue import Constant
from ..records import SUM_BYTES, TMA_ALIGNMENT_BYTES, WGMMA_ROWS
from ..refusal import Refusal
from ..shared import RING_ALIGNMENT_BYTES, WORD_BYTES, Allocation, placed
from .build import (
    COLUMN_STEP,
    KEY_STEP,
    LEAST_STAGES,
    MOST_COLUMNS,
    MOST_GROUPS,
    MOST_KEYS,
    MOST_MODES,
    MOST_STAGES,
    REGISTERS,
    TILE_SLOTS,
    blocks_counts,
    check_matrix,
    check_positions,
)
from .numbers import is_known
from .operands import Matrix, RandomNumbers, Source, Table
from .records import AttentionOutput, Band, Formula, KeyRange, Scheduler, ScorePlan, ScoreProblem

DRAWN_REGISTERS, DRAWN_EARLY_REGISTERS = 40, 24
"""Registers of the generator of random numbers: after the second product, or before it alone, when fewer are in use."""
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
PRODUCTS = 2
"""Products of a tile and a block: scores, and the gradients of weights."""
FIXED_REGISTERS = 8
"""Registers besides accumulators, products and left operands, less those of values that are dead by then."""


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
    key_range: KeyRange | None = None
    """The streamed rows that an owned row sees, by integers that are loaded for it."""
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
        return (*self.formula.sources, *(each for formula in finished for each in formula.sources), *bounds)

    @property
    def argument_names(self) -> tuple[str, ...]:
        outputs = [each.output.name for each in self.gradients]
        outputs += [] if self.atomic is None else [self.atomic.matrix.name]
        return (*self.names, *outputs, *(each.name for each in self.sources))

    @property
    def outputs_at(self) -> range:
        """Positions of the outputs among the arguments of a launch."""
        return range(len(self.names), len(self.argument_names) - len(self.sources))

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
        formula, lefts = self.formula, [each.left for each in self.gradients]
        random = {formula.starts + at for at, each in enumerate(formula.sources) if isinstance(each, RandomNumbers)}
        after = self._read_by([each for each in lefts if self.late[each]], self.held)
        before = self._read_by([*self.held, *(each for each in lefts if not self.late[each])])
        compared = (
            formula.computed + at
            for at, made in enumerate(formula.instructions)
            if made.op in COMPARISONS
            and not random.isdisjoint(each for each in made.arguments if isinstance(each, int))
        )
        of_products = _depending(formula, (0, 1))
        return tuple(each for each in compared if each in before & after and not of_products[each])

    def _read_by(self, values: Sequence[int], known: Sequence[int] = ()) -> set[int]:
        """Return the values that some are computed from, themselves included, but for those that known ones are."""
        waiting, found = [*values], set[int]()
        while waiting:
            value = waiting.pop()
            found.add(value)
            if value >= self.formula.computed and value not in known:
                made = self.formula.instructions[value - self.formula.computed]
                waiting += (each for each in made.arguments if not isinstance(each, Constant))
        return found

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
        early = {*self.held, *(each.left for each in self.gradients if not self.late[each.left])}
        return any(reading[each] for each in early)

    def _feeds_late(self, value: int) -> bool:
        """Return whether an instruction that needs the second product reads a value."""
        formula = self.formula
        return any(
            self.late[formula.computed + at] and value in made.arguments for at, made in enumerate(formula.instructions)
        )


ATOMIC_KEYS = 64
"""Streamed rows of a block whose gradient is added to memory: those of one MMA."""
TURNED_KEYS = 96
"""The same where MMAs compute the gradient transposed: the most whose accumulators two consumer groups hold. Half of them are
a multiple of 16, the columns of a swizzled line of left operands."""
ATOMIC_COLUMNS = 64
"""Columns of that gradient that a consumer group computes."""
EXCHANGE_STAGES = 2
"""Blocks of left operands in shared memory: one is written while the one before is multiplied."""
FEW_TILES = 8
"""Tiles of an SM up to which their order matters more than the L2 cache: tiles of a head visit the same blocks in turn."""
SHORTEST_KEYS = 32
"""Streamed rows of the shortest blocks that are chosen for heads of many dimensions."""
VECTOR_MULTIPLE = 32
VECTOR_STEP = TMA_ALIGNMENT_BYTES // SUM_BYTES
"""Multiples of elements at which stages of a staged source begin, and blocks in memory: others are illegal on an H200."""
STREAMED = ("first", "second")
"""Names of the pipelines of streamed blocks."""


def is_staging_kind(source: Source) -> bool:
    """Return whether a source has one fp32 number for each streamed row, contiguous."""
    return source.kind == "key" and source.dtype == "float32" and source.pitches[1] == 1


def _is_staged(source: Source) -> bool:
    """Return whether TMA can load blocks of a source."""
    strides = (source.offset, *(mode.stride for mode in source.modes))
    aligned = all(stride * SUM_BYTES % TMA_ALIGNMENT_BYTES == 0 for stride in strides)
    return is_staging_kind(source) and aligned and 1 + len(source.modes) <= MOST_MODES


def _depending(formula: Formula, starts: tuple[int, ...]) -> tuple[bool, ...]:
    """Return flags by value, true for values that depend on one of the starting values ``starts``."""
    found = [at in starts for at in range(formula.computed)]
    for made in formula.instructions:
        found.append(any(not isinstance(each, Constant) and found[each] for each in made.arguments))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class BackwardChoice:
    """The tunable decisions of a config; None means the most that fits."""

    groups: int
    """Consumer warpgroups, of 64 owned rows each."""
    keys: int
    """Streamed rows of a block."""
    stages: int | None = None
    scheduler: Scheduler = "static"


@dataclass(frozen=True, kw_only=True)
class BackwardPlan(ScorePlan):
    """Gradients of attention with every decision made. Immutable and hashable; contains no generated text."""

    problem: BackwardProblem
    groups: int
    keys: int
    stages: int
    """Pipeline stages of each streamed matrix."""
    scheduler: Scheduler
    heads_per_band: int
    cached_rows: int
    """Streamed rows of a head that stay in the L2 cache, counted once for each repetition."""
    few_tiles: int
    """Tiles of a launch up to which all heads are in one band, if tiles differ in length."""
    shared_limit_bytes: int
    registers_per_sm: int
    registers_per_thread: int
    splits: int = 1
    own_output: bool = False

    __hash__ = ScorePlan.__hash__

    @property
    def operand_bytes(self) -> int:
        return itemsize(self.problem.owned[0].dtype)

    @functools.cached_property
    def staged(self) -> dict[str, tuple[Source, ...]]:
        """Sources that TMA loads with the blocks of each pipeline: numbers per streamed row, contiguous in fp32.

        The first product's values read those of the first pipeline. Both pipelines' stages have to be in use until after
        the last values are computed, as with two gradients. Of spans they are loaded where a gradient is added to memory:
        threads have no registers for their addresses then.
        """
        spanned = self.problem.spans_keys and self.problem.atomic is None
        if len(self.problem.gradients) < len(STREAMED) or spanned:
            return dict.fromkeys(STREAMED, ())
        formula = self.problem.formula
        found: dict[str, list[Source]] = {name: [] for name in STREAMED}
        for at, source in enumerate(formula.sources):
            if _is_staged(source):
                found[STREAMED[0 if self.problem.feeds_early(formula.starts + at) else 1]].append(source)
        return {name: tuple(sources) for name, sources in found.items()}

    @property
    def moves_vectors(self) -> bool:
        """True if blocks of staged sources begin at a loaded row, before which TMA reads up to the next aligned one."""
        return self.problem.key_range is not None and self.problem.key_range.begins is not None

    @property
    def vector_rows(self) -> int:
        """Elements of a staged source that TMA loads for a block."""
        return self.keys + (VECTOR_STEP if self.moves_vectors else 0)

    @property
    def vector_pitch(self) -> int:
        """Elements from one stage of a staged source to the next, a multiple of the alignment of TMA."""
        return -(-self.vector_rows // VECTOR_MULTIPLE) * VECTOR_MULTIPLE

    @property
    def orders_by_length(self) -> bool:
        return not self.problem.band.is_whole

    @property
    def is_limited(self) -> bool:
        return self.problem.spans_keys

    @property
    def clears_rows(self) -> bool:
        """True if owned rows without streamed rows are cleared: they may be no numbers, as rows of no sequence are, and the
        gradient of streamed rows adds over them."""
        return self.problem.atomic is not None and self.problem.spans_keys

    @property
    def turned(self) -> bool:
        """True if MMAs compute the gradient that is added to memory transposed: consumer groups share its streamed rows, since
        it has no 64 columns for each."""
        atomic = self.problem.atomic
        return atomic is not None and atomic.matrix.columns < ATOMIC_COLUMNS * self.groups

    @property
    def overlap(self) -> bool:
        """True if the MMAs of a block's gradient are in flight while the next block's first product is issued. Those of two
        gradients are not, since ptxas serializes MMAs with two accumulators in flight at a loop's edge."""
        return self.problem.atomic is None and all(len(chosen) == 1 for chosen in self.problem.passes)


def plan_backward(problem: BackwardProblem, choice: BackwardChoice, target: Target) -> BackwardPlan:
    """Return the plan. Raises ``Refusal`` for a choice that is not implemented or does not fit."""
    check_backward(problem)
    if not target.has("wgmma"):
        raise Refusal(f"gradients of attention are implemented for wgmma, which {target} does not have")
    _check_choice(problem, choice)
    row_bytes = sum(matrix.columns for matrix in problem.streamed) * itemsize(problem.streamed[0].dtype)
    row_bytes += 0 if problem.atomic is None else problem.atomic.matrix.columns * SUM_BYTES
    cached = target.l2_bytes // (2 * row_bytes)
    few = 0 if problem.band.is_whole else FEW_TILES * target.num_sms
    stages = range(MOST_STAGES, LEAST_STAGES - 1, -1) if choice.stages is None else (choice.stages,)
    for number in stages:
        found = BackwardPlan(
            problem=problem,
            groups=choice.groups,
            keys=choice.keys,
            stages=number,
            scheduler=choice.scheduler,
            heads_per_band=_heads_per_band(problem, WGMMA_ROWS * choice.groups, cached, few),
            cached_rows=cached,
            few_tiles=few,
            shared_limit_bytes=target.smem_per_block_bytes,
            registers_per_sm=target.registers_per_sm,
            registers_per_thread=target.max_registers_per_thread,
        )
        if backward_bytes(found) <= found.shared_limit_bytes:
            return found
    raise Refusal(
        f"tiles of {found.rows} rows and blocks of {found.keys} with {found.stages} stages need {backward_bytes(found)}"
        f" bytes of shared memory; a CTA has {found.shared_limit_bytes}"
    )


def _check_choice(problem: BackwardProblem, choice: BackwardChoice) -> None:
    if not 1 <= choice.groups <= MOST_GROUPS:
        raise Refusal(f"tiles of {WGMMA_ROWS * choice.groups} rows; 64, 128 and 192 are implemented")
    if choice.keys % KEY_STEP or not KEY_STEP <= choice.keys <= MOST_KEYS:
        raise Refusal(f"blocks of {choice.keys} rows; multiples of {KEY_STEP} up to {MOST_KEYS} are implemented")
    if choice.stages is not None and not LEAST_STAGES <= choice.stages <= MOST_STAGES:
        raise Refusal(f"{choice.stages} stages of blocks; {LEAST_STAGES} to {MOST_STAGES} are implemented")
    if problem.atomic is not None:
        _check_atomic_choice(problem, problem.atomic, choice)
    needed, most = backward_registers(problem, choice.keys), REGISTERS[choice.groups][1]
    if needed > most:
        raise Refusal(
            f"{choice.groups} consumer groups with blocks of {choice.keys} rows need {needed} registers per thread; they"
            f" have {most}"
        )


def _check_atomic_choice(problem: BackwardProblem, atomic: AtomicSum, choice: BackwardChoice) -> None:
    columns = [problem.streamed[each.right].columns for each in problem.gradients]
    groups, keys = atomic_tile(problem.owned[atomic.right].columns, columns, problem.draws)
    if choice.groups != groups:
        raise Refusal(
            f"tiles of {WGMMA_ROWS * choice.groups} rows; a kernel that adds to {atomic.matrix.name}, of"
            f" {atomic.matrix.columns} dimensions, has tiles of {WGMMA_ROWS * groups}"
        )
    if choice.keys != keys:
        raise Refusal(f"blocks of {choice.keys} rows; a kernel that adds to {atomic.matrix.name} has blocks of {keys}")


def atomic_tile(added: int, columns: Sequence[int], draws: bool = False) -> tuple[int, int]:
    """Return the consumer groups and the streamed rows of a block where the gradient of streamed rows, of ``added`` columns, is
    added to memory. ``columns`` are those of the tile's own gradients."""
    fits = estimated_registers(columns, TURNED_KEYS, atomic=True, draws=draws) <= REGISTERS[2][1]
    if added == ATOMIC_COLUMNS and fits:
        return 2, TURNED_KEYS
    return max(1, added // ATOMIC_COLUMNS), ATOMIC_KEYS


def least_choice(problem: BackwardProblem) -> BackwardChoice:
    """Return the choice of the fewest registers and the least shared memory."""
    if problem.atomic is None:
        return BackwardChoice(groups=1, keys=KEY_STEP)
    columns = [problem.streamed[each.right].columns for each in problem.gradients]
    groups, keys = atomic_tile(problem.owned[problem.atomic.right].columns, columns, problem.draws)
    return BackwardChoice(groups=groups, keys=keys)


def backward_registers(problem: BackwardProblem, keys: int) -> int:
    """Return the estimated registers of a consumer thread."""
    columns = [problem.streamed[each.right].columns for each in problem.gradients]
    return estimated_registers(columns, keys, atomic=problem.atomic is not None, draws=problem.draws)


def in_passes(columns: Sequence[int]) -> bool:
    """Return whether gradients of ``columns`` are computed one after the other, each in a pass over all blocks: registers of
    two consumer groups do not hold both accumulators with the shortest blocks."""
    return len(columns) > 1 and _registers(columns, SHORTEST_KEYS) > REGISTERS[2][1]


def estimated_registers(columns: Sequence[int], keys: int, atomic: bool = False, draws: bool = False) -> int:
    """Return the estimated registers of a consumer thread. With ``atomic``, a gradient is added to memory as well. ``draws``
    tells of random numbers."""
    held = [max(columns)] if columns and in_passes(columns) and not atomic else columns
    early = len(held) > 1
    return _registers(held, keys) + (0 if not draws else DRAWN_EARLY_REGISTERS if early else DRAWN_REGISTERS)


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
        if output.dtype != dtype:
            raise Refusal(f"gradients in the type of the operands are implemented, not {output.name} in {output.dtype}")
        check_matrix(output.matrix)
    if problem.atomic is not None:
        _check_atomic(problem, problem.atomic)
    if len(problem.passes) > 1:
        _check_passes(problem)


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


def _heads_per_band(problem: BackwardProblem, rows: int, cached_rows: int, few_tiles: int) -> int:
    """Return the heads whose streamed matrices stay in the L2 cache together.

    All heads are in one band where SMs have few tiles of different lengths. Else the longest tiles of the last band would
    begin when other SMs have none left.
    """
    tiles = -(-problem.queries // rows) * problem.batches
    if tiles <= few_tiles:
        return max(1, problem.batches)
    return max(1, min(problem.batches, cached_rows // max(1, problem.repeats * problem.keys)))


@functools.lru_cache(maxsize=1024)
def backward_counts(plan: BackwardPlan) -> dict[str, PipelineCounts]:
    """Return the counts of the pipelines of ``plan``, by name."""
    columns = sum(matrix.columns for matrix in plan.problem.owned)
    found = {
        "rows": PipelineCounts(
            stages=plan.groups,
            full_arrivals=1,
            empty_arrivals=1,
            transaction_bytes=WGMMA_ROWS * columns * plan.operand_bytes,
        )
    }
    for name, matrix in plan.problem.blocks.items():
        blocks, vectors = blocks_counts(plan, matrix.columns), len(plan.staged[name]) * plan.vector_rows * SUM_BYTES
        found[name] = replace(blocks, transaction_bytes=blocks.transaction_bytes + vectors)
    if plan.problem.atomic is not None:
        found["exchange"] = PipelineCounts(stages=EXCHANGE_STAGES, full_arrivals=plan.consumer_warps, empty_arrivals=0)
    if plan.scheduler == "dynamic":
        found["tile"] = PipelineCounts(stages=TILE_SLOTS, full_arrivals=1, empty_arrivals=1 + plan.consumer_warps)
    return found


@functools.lru_cache(maxsize=1024)
def backward_memory(plan: BackwardPlan) -> tuple[Allocation, ...]:
    """Return every allocation of ``plan``, by offset."""
    numbers, width = backward_counts(plan), plan.operand_bytes
    wanted = [
        (f"shared_own_{at}", plan.rows * matrix.columns * width, RING_ALIGNMENT_BYTES)
        for at, matrix in enumerate(plan.problem.owned)
    ]
    wanted += [
        (f"shared_{name}", plan.stages * plan.keys * matrix.columns * width, RING_ALIGNMENT_BYTES)
        for name, matrix in plan.problem.blocks.items()
    ]
    if plan.problem.atomic is not None:
        columns = plan.problem.atomic.matrix.columns
        wanted.append(("shared_exchange", EXCHANGE_STAGES * plan.rows * plan.keys * width, RING_ALIGNMENT_BYTES))
        wanted.append(("shared_sum", plan.keys * columns * SUM_BYTES, RING_ALIGNMENT_BYTES))
    vectors = [source for sources in plan.staged.values() for source in sources]
    size = plan.stages * plan.vector_pitch * SUM_BYTES
    wanted += [(f"shared_{source.label}", size, VECTOR_MULTIPLE * SUM_BYTES) for source in vectors]
    wanted += [(f"{name}_barriers", each.barrier_words * WORD_BYTES, WORD_BYTES) for name, each in numbers.items()]
    if plan.scheduler == "dynamic":
        wanted.append(("tile_slots", 4 * TILE_SLOTS, WORD_BYTES))
    return tuple(placed(wanted))


def backward_bytes(plan: BackwardPlan) -> int:
    """Return the total bytes of shared memory, which the launch requests."""
    last = backward_memory(plan)[-1]
    return last.offset_bytes + last.size_bytes
