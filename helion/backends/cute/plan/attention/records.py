"""The records of one attention: the problem, the tunable decisions (``AttentionChoice``), and the plan."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Container, Iterable
from typing import Literal

from ....._support.records import dataclass, replace
from ..dtypes import itemsize
from ..epilogue import Constant, Instruction
from ..records import WGMMA_ROWS
from .bands import Band
from .blocks import last_keys_share_a_block
from .magnitude import LARGE, LARGEST_FLOAT, largest
from .numbers import is_known, launch_integers
from .operands import OMITTED, Matrix, Place, RandomNumbers, Source, text_without

Scheduler = Literal["static", "dynamic"]
Part = Literal["again", "diagonal", "free", "edge", "side", "middle", "any"]

QUERY_INDEX, KEY_INDEX = "query_index", "key_index"
"""The operations without arguments that give the index of a query, or key, as an integer."""
PRODUCT = 0
"""Number of the value that a formula of scores starts from: q @ k.T."""
ACCUMULATOR, TOTAL, MAXIMUM = 0, 1, 2
"""Numbers of the values that formulas of outputs start from: the accumulator, the row sum of exponentials, the row
maximum in units of the scores."""
STARTS = 3


@dataclass(frozen=True, kw_only=True)
class Formula:
    """A straight-line program in fp32, as ``Epilogue``: first the values it starts from, then its sources, then one
    value per instruction. ``value`` is the number of its result."""

    sources: tuple[Source, ...] = ()
    instructions: tuple[Instruction, ...] = ()
    starts: int = 1
    value: int = 0

    @property
    def computed(self) -> int:
        """Number of the first instruction's value."""
        return self.starts + len(self.sources)

    def read_by(self, values: Iterable[int], known: Container[int] = ()) -> set[int]:
        """Return the values that some are computed from, themselves included, but for those that known ones are."""
        waiting, found = [*values], set[int]()
        while waiting:
            value = waiting.pop()
            if value not in found and value >= self.computed and value not in known:
                made = self.instructions[value - self.computed]
                waiting += (each for each in made.arguments if not isinstance(each, Constant))
            found.add(value)
        return found


@dataclass(frozen=True, kw_only=True)
class KeyRange:
    """The keys that a query sees, by integers that are loaded for it: from ``begins`` on, and those below ``ends``, where None
    is no bound. ``shifts`` are added to them."""

    begins: Source | None = None
    ends: Source | None = None
    shifts: tuple[int, int] = (0, 0)

    @property
    def bounds(self) -> dict[str, tuple[Source, int]]:
        """The bounds there are, and what is added to each, by name."""
        named = zip(("begins", "ends"), (self.begins, self.ends), self.shifts, strict=True)
        return {name: (source, shift) for name, source, shift in named if source is not None}

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(source for source, _ in self.bounds.values())


@dataclass(frozen=True, kw_only=True)
class Span:
    """Indices of rows from ``begin`` on, or from 0, up to the least of ``ends``, or to the last row."""

    begin: Place | None = None
    ends: tuple[Place, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AttentionOutput:
    """An output of one value of the formula of outputs: a matrix, or a number per query (``pitch`` elements from one to the next)."""

    name: str
    value: int
    kind: Literal["exact", "query"]
    dtype: str
    matrix: Matrix

    @property
    def label(self) -> str:
        """Its name in generated code."""
        return f"{self.name}_output"


class ScoreProblem:
    """Scores of rows that CTAs own with rows that they stream in blocks, for each head.

    In attention, and the gradient of its queries, queries are owned and keys streamed. The gradients of keys exchange
    both: ``queries`` counts owned rows and ``keys`` streamed ones there, and the band is that of streamed rows.
    """

    heads: tuple[int, ...]
    queries: int
    keys: int
    band: Band
    key_range: KeyRange | None
    units: tuple[int, ...]

    def __repr__(self) -> str:
        return text_without(self, [name for name in OMITTED.split() if not getattr(self, name, None)])

    @functools.cached_property
    def runtime(self) -> tuple[str, ...]:
        """Names of the integers that each launch passes, in order."""
        return tuple(each.name for each in launch_integers(self))

    @property
    def coordinates(self) -> tuple[int, ...]:
        """Sizes of the coordinates of a head."""
        return self.heads

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """The matrices that TMA loads and stores."""
        raise NotImplementedError

    @property
    def vectors(self) -> tuple[Matrix, ...]:
        """Outputs of one number per query."""
        return ()

    @property
    def accessed(self) -> tuple[Matrix | Source, ...]:
        """All inputs and outputs."""
        return *self.matrices, *self.vectors, *self.sources

    @property
    def argument_names(self) -> tuple[str, ...]:
        """Names of the tensors and scalars of a launch for messages, in order."""
        raise NotImplementedError

    @property
    def outputs_at(self) -> range:
        """Positions of the written tensors among the arguments of a launch."""
        raise NotImplementedError

    @property
    def sources(self) -> tuple[Source, ...]:
        """Inputs other than the matrices, in the order of a launch."""
        raise NotImplementedError

    @property
    def blocks(self) -> dict[str, Matrix]:
        """Streamed matrices by the names of their pipelines."""
        raise NotImplementedError

    @property
    def spans(self) -> tuple[Span, ...]:
        """Spans of rows that are loaded for each head."""
        return ()

    @property
    def has_first(self) -> bool:
        """True if there is a first key that a query sees, other than key 0."""
        return self.band.has_first or (self.key_range is not None and self.key_range.begins is not None)

    @property
    def has_last(self) -> bool:
        """True if there is a last key that a query sees, other than the last one of all."""
        return self.band.last is not None or (self.key_range is not None and self.key_range.ends is not None)

    @property
    def spans_keys(self) -> bool:
        """True if a tile's keys are a span of streamed rows, from loaded integers. Rows out of it are read as 0."""
        return self.key_range is not None

    @property
    def draws(self) -> bool:
        """True if a formula reads random numbers."""
        return any(isinstance(source, RandomNumbers) for source in self.sources)

    @functools.cached_property
    def batches(self) -> int:
        """Heads of all coordinates of the grid."""
        return math.prod(self.heads)


@dataclass(frozen=True, kw_only=True, repr=False)
class AttentionProblem(ScoreProblem):
    """For each head and query: the sum of exp2(``unit`` * (score - maximum) + ``lift``) @ v over the keys of its band, and
    outputs computed from it. Without ``softmax``, weights are the scores themselves.

    ``heads`` are the sizes of the coordinates of a head, the slowest first. Scores are the formula
    ``score`` of q @ k.T, times the positive number ``scale``. ``start`` is the initial maximum.
    """

    heads: tuple[int, ...]
    queries: int
    keys: int
    q: Matrix
    k: Matrix
    v: Matrix
    scale: float
    unit: float
    query: Formula
    """The formula of an element of q, of numbers alone, whose result is rounded to the operand type."""
    score: Formula
    guarded: bool
    """True if the formula itself may give minus infinity."""
    start: float
    band: Band
    finish: Formula
    outputs: tuple[AttentionOutput, ...]
    softmax: bool = True
    lift: float = 0.0
    replaced: bool = False
    """True if exponents subtract another number than a maximum of minus infinity: the sum of a query without keys is 0."""
    dropped: Formula | None = None
    """The formula of weights after they were summed, as of dropout: that of 0 is 0."""
    rounded: str = ""
    """The type that the product of each block is rounded to before it is added, if any."""
    loaded: tuple[Source, ...] = ()
    """Integers that are loaded for each head, which are coordinates of it."""
    key_span: Span | None = None
    """The keys of a head, which may be none."""
    query_span: Span | None = None
    """The queries of a head that are stored."""
    key_range: KeyRange | None = None
    latent: bool = False
    """True if V is the first columns of K, and a tile reads both from one copy in shared memory."""
    q_rest: Matrix | None = None
    """The last columns of Q, if they are in another tensor. ``q`` counts them."""
    k_rest: Matrix | None = None
    """The same of K."""
    units: tuple[int, ...] = ()
    """Strides that each launch passes, and that have to be 1."""
    names: tuple[str, str, str] = dataclasses.field(default=("q", "k", "v"), compare=False)

    @property
    def blocks(self) -> dict[str, Matrix]:
        rest = {} if self.k_rest is None else {"k_rest": self.k_rest}
        return {"k": without_rest(self.k, self.k_rest), **rest, **({} if self.latent else {"v": self.v})}

    @property
    def rests(self) -> dict[str, Matrix]:
        """Tensors with the last columns of Q and of K, by the names of their descriptors."""
        return {name: each for name, each in (("q_rest", self.q_rest), ("k_rest", self.k_rest)) if each is not None}

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        of_outputs = (each.matrix for each in self.outputs if each.kind == "exact")
        return self.q, self.k, self.v, *self.rests.values(), *of_outputs

    @property
    def vectors(self) -> tuple[Matrix, ...]:
        return tuple(each.matrix for each in self.outputs if each.kind == "query")

    @property
    def sources(self) -> tuple[Source, ...]:
        """Inputs other than q, k and v, in the order of a launch."""
        bounds = () if self.key_range is None else self.key_range.sources
        dropped = () if self.dropped is None else self.dropped.sources
        tables = () if self.k.pages is None else (self.k.pages.table,)
        return (
            *self.query.sources,
            *self.score.sources,
            *dropped,
            *self.finish.sources,
            *bounds,
            *tables,
            *self.loaded,
        )

    @functools.cached_property
    def has_large_scores(self) -> bool:
        """True if scores may be so large that exponents subtract the maximum before they multiply."""
        last = max(self.queries, self.keys) if is_known(self.queries) and is_known(self.keys) else math.inf
        return largest(self.score, last) * self.scale >= LARGE

    @property
    def floor(self) -> float | None:
        """The least maximum of the scores before their scale, None if no finite score is below: the initial one, if it counts."""
        starts = self.softmax and not math.isinf(self.start) and self.has_large_scores
        return max(self.start / self.scale, -LARGEST_FLOAT) if starts else None

    @property
    def lacks_sum(self) -> bool:
        """True if a query without keys has a sum of NaN, of exponents of minus infinity less itself."""
        return self.softmax and math.isinf(self.start) and not self.replaced

    @property
    def coordinates(self) -> tuple[int, ...]:
        return (*self.heads, *(1 for _ in self.loaded))

    @property
    def spans(self) -> tuple[Span, ...]:
        return tuple(span for span in (self.key_span, self.query_span) if span is not None)

    @property
    def spans_queries(self) -> bool:
        """True if the queries of a head are a span of rows of Q and of the outputs, the others of which are not stored."""
        return self.query_span is not None

    @property
    def spans_keys(self) -> bool:
        return self.key_span is not None or super().spans_keys

    @property
    def argument_names(self) -> tuple[str, ...]:
        rests = (each.name for each in self.rests.values())
        return (*self.names, *rests, *(each.name for each in self.outputs), *(each.name for each in self.sources))

    @functools.cached_property
    def needs_total(self) -> bool:
        """True if the sums of the weights are computed."""
        read = any(TOTAL in made.arguments for made in self.finish.instructions)
        return self.softmax or read or any(output.value == TOTAL for output in self.outputs)

    @property
    def outputs_at(self) -> range:
        """Positions of the outputs among the arguments of a launch."""
        first = len(self.names) + len(self.rests)
        return range(first, first + len(self.outputs))

    @property
    def matrix(self) -> AttentionOutput:
        """The one output that is a matrix."""
        return next(output for output in self.outputs if output.kind == "exact")


def biases(problem: AttentionProblem) -> tuple[Source, ...]:
    """Return the tensors with a number per query and key that scores read."""
    sources = problem.score.sources
    return tuple(each for each in sources if each.kind == "exact" and not isinstance(each, RandomNumbers))


def without_rest(matrix: Matrix, rest: Matrix | None) -> Matrix:
    """Return the columns of a matrix that are in its own tensor."""
    return matrix if rest is None else replace(matrix, columns=matrix.columns - rest.columns)


@dataclass(frozen=True, kw_only=True)
class AttentionChoice:
    """The tunable decisions of a config; None means the most that fits."""

    groups: int
    """Consumer warpgroups, of 64 queries each."""
    keys: int
    """Keys of a block."""
    stages: int | None = None
    pingpong: bool = False
    lazy: bool = False
    scheduler: Scheduler = "static"
    splits: int = 1
    """CTAs that share the keys of a tile; the last one to arrive combines their partials."""
    bias_stages: int = 0
    """Pipeline stages of a bias per query and key; 0 if threads load it from global memory."""


class ScorePlan:
    """The decisions that plans of attention and of its gradients share, with the names of attention's."""

    problem: ScoreProblem
    groups: int
    keys: int
    stages: int
    scheduler: Scheduler
    splits: int
    own_output: bool
    heads_per_band: int
    cached_rows: int
    shared_limit_bytes: int
    registers_per_sm: int
    registers_per_thread: int
    row_buffers: int = 1
    """Tiles of rows that shared memory holds: with two, those of the next tile are loaded before the current one ends."""

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, each.name) for each in dataclasses.fields(self)))  # type: ignore[arg-type]

    @property
    def group_rows(self) -> int:
        """Rows of a consumer group."""
        return WGMMA_ROWS

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return self.group_rows * self.groups

    @property
    def column_groups(self) -> int:
        """Consumer groups that share 64 rows: each has its own columns of the output."""
        return 1

    @property
    def consumer_groups(self) -> int:
        return self.groups * self.column_groups

    @property
    def consumer_warps(self) -> int:
        return 4 * self.consumer_groups

    @property
    def tiles(self) -> int:
        return -(-self.problem.queries // self.rows) * self.problem.batches

    @property
    def pieces(self) -> int:
        """Work items: parts of the blocks of each tile."""
        return self.tiles * self.splits

    @property
    def operand_bytes(self) -> int:
        """Bytes of an element of the operands."""
        raise NotImplementedError

    @property
    def orders_by_length(self) -> bool:
        """True if the tiles with the most blocks come first within a band of heads."""
        raise NotImplementedError

    @property
    def is_limited(self) -> bool:
        """True if tiles have their own number of keys, which may be 0."""
        return False

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts of the loop over blocks, after the first block: from the right to the left."""
        one = not self.problem.spans_keys and not self.problem.spans and last_keys_share_a_block(self)
        right: tuple[Part, ...] = ("diagonal",) if self.problem.has_last and not one else ()
        left: tuple[Part, ...] = ("edge",) if self.problem.has_first else ()
        return (*right, "free", *left)


@dataclass(frozen=True, kw_only=True)
class AttentionPlan(ScorePlan):
    """An attention with every decision made. Immutable and hashable; contains no generated text."""

    problem: AttentionProblem
    groups: int
    keys: int
    stages: int
    """Pipeline stages of K, and of V."""
    pingpong: bool
    """Groups take turns in issuing MMAs."""
    lazy: bool
    """The accumulator is rescaled only where a maximum grows by more than ``LAZY`` powers of two."""
    scheduler: Scheduler
    splits: int
    own_output: bool
    """The output has its own shared memory; else it takes that of Q."""
    heads_per_band: int
    """Heads whose tiles are visited together, so that their K and V stay in the L2 cache."""
    cached_rows: int
    """Rows of K, with those of V, that stay in the L2 cache."""
    shared_limit_bytes: int
    registers_per_sm: int
    registers_per_thread: int
    bias_stages: int = 0
    """Pipeline stages of a bias per query and key, which TMA loads; 0 if threads load it from global memory."""
    row_buffers: int = 1
    combining: int = 1
    """CTAs that each combine some columns of the partials of a tile, once all are there; 1: the last to arrive combines all."""

    __hash__ = ScorePlan.__hash__

    @property
    def operand_bytes(self) -> int:
        return itemsize(self.problem.q.dtype)

    @property
    def reads_once(self) -> bool:
        """True if one tile of queries reads the keys of each head, which need not stay in the L2 cache.

        Keys of more than twice its size are faster without (``keys that are read once`` in
        benchmarks/results/cute/nvidia-h200-attention.jsonl).
        """
        problem = self.problem
        of_keys = [mode.size for mode in problem.k.modes]
        known = all(map(is_known, (problem.queries, problem.keys, *problem.heads, *of_keys)))
        few = problem.keys * problem.batches <= READ_ONCE * self.cached_rows
        return known and few and problem.queries <= self.rows and problem.batches == math.prod(of_keys)

    @functools.cached_property
    def bias(self) -> Source | None:
        """The bias that TMA loads in tiles of queries and keys, if any."""
        return next(iter(biases(self.problem)), None) if self.bias_stages else None

    @property
    def takes_quads(self) -> bool:
        """True if a thread's scores are of four consecutive keys, as a left operand of 8 bits has them in registers.

        Rows of K have another order in shared memory then: of each 4, the first two are in its first half.
        """
        return self.operand_bytes == 1

    @property
    def adds_products(self) -> bool:
        """True if the product of each block has registers of its own, from which threads add it in fp32: one that is rounded
        first, and that of MMAs of 8 bits, which add in less."""
        return self.operand_bytes == 1 or bool(self.problem.rounded)

    @property
    def column_groups(self) -> int:
        return LATENT_GROUPS if self.problem.latent else 1

    @property
    def output_columns(self) -> int:
        """Columns of the output that a consumer group computes."""
        return self.problem.v.columns // self.column_groups

    @property
    def partial_values(self) -> int:
        """The fp32 numbers of a thread in a partial of split keys: accumulators, maxima and sums of two rows."""
        return self.output_columns // 2 + 4

    @property
    def spread_columns(self) -> int:
        """Columns that a warp of the last CTA to arrive combines, if all queries are those of its group's first warp, else 0."""
        problem, columns = self.problem, self.output_columns // WARPS_OF_GROUP
        few = is_known(problem.queries) and problem.queries <= ROWS_OF_WARP and not problem.latent
        stored = self.consumer_groups == 1 and itemsize(problem.matrix.dtype) == 2 and self.combining == 1
        return columns if self.splits > 1 and few and stored and columns % COLUMNS_AT_ONCE == 0 else 0

    @property
    def restores_maxima(self) -> bool:
        """True if outputs need the maxima themselves: with lazy rescaling, sums are relative to smaller numbers."""
        finish, outputs = self.problem.finish, self.problem.outputs
        read = any(MAXIMUM in made.arguments for made in finish.instructions)
        return self.lazy and (read or any(output.kind == "query" for output in outputs))

    @property
    def orders_by_length(self) -> bool:
        return self.problem.band.last is not None

    @property
    def is_limited(self) -> bool:
        spanned = self.problem.spans_keys or self.problem.spans_queries
        return spanned or (self.splits > 1 and not is_known(self.problem.keys))


WARPS_OF_GROUP, ROWS_OF_WARP, COLUMNS_AT_ONCE = 4, 16, 16
"""Warps of a consumer group, the queries of each, and columns of the output that a warp stores by one instruction."""
READ_ONCE = 4
"""Keys that are read once at most, in those that planners keep in half of the L2 cache."""
LATENT_GROUPS = 2
"""Consumer groups of a latent tile. Each computes all scores: to exchange parts of them, groups would wait in each block."""
LAZY = 8.0
"""Growth of a maximum, in powers of two, up to which exponentials are relative to the former maximum."""
