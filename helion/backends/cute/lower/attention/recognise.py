"""``attention_of``: turn a program with weights computed between two matmuls into an ``AttentionProblem``.

With an online softmax, the loop carries the row maximum m, the row sum l and the accumulator of p @ v. For scores x computed from q @ k.T it has
to compute, up to the order of operands and the base of the exponential::

    m' = max(m, rowmax(x));  p = exp(unit * (x - m'));  c = exp(unit * (m - m'))
    l' = l * c + rowsum(p);  acc' = acc * c + p @ v

A number may be added to the exponent of p.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....._compiler.ir.grammar import Program
from ....._shapes import Expr
from ....._support.records import dataclass, replace
from ...plan.attention.build import MOST_COLUMNS, check_problem
from ...plan.attention.records import AttentionProblem, Band, Formula, KeyRange, without_rest
from ...plan.refusal import Refusal
from ..rewrites.key_parts import with_whole_keys
from .band import begins_with_chunk, covered_keys, every_query_sees, key_span
from .consecutive import with_joined_loops
from .formula import FormulaReader
from .lefts import Lefts
from .loops import Loops, loops_of
from .operands import Queries, check_storage, check_strides, operands_of, stored_keys, table_of
from .outputs import ACCUMULATOR, TOTAL, Finish
from .packing import with_packed_heads
from .ranges import LoadedRange, check_range, check_spans, key_range, query_span, with_heads_as_rows
from .scores import PRODUCT, may_be_infinite, scores_of
from .softmax import Softmax, has_softmax, softmax_of, start_of
from .weights import weights_of

WEIGHT = "weight"


@dataclass(frozen=True, kw_only=True)
class Attention:
    """An attention of a program; ``sources`` are ids of tensors or host expressions of the launch's other inputs."""

    problem: AttentionProblem
    loops: Loops
    tensors: tuple[int, ...]
    """Ids of q, k, v and the outputs."""
    sources: tuple[int | Expr, ...]
    gone: tuple[int, ...] = ()
    """Blocks of the program that ``loops`` does not have."""

    @property
    def arguments(self) -> tuple[int | Expr, ...]:
        """Arguments of a launch, in order."""
        return (*self.tensors, *self.sources)


@dataclass(frozen=True, kw_only=True)
class Weighting:
    """The fields of a problem that describe its weights, and the ``sources`` of their formula."""

    score: Formula
    band: Band
    keys: int
    sources: tuple[int | Expr, ...]
    key_range: KeyRange | None = None
    bounds: tuple[int | Expr, ...] = ()
    """The arguments of a launch for the sources of ``key_range``."""
    scale: float = 1.0
    unit: float = 1.0
    lift: float = 0.0
    replaced: bool = False
    guarded: bool = False
    start: float = 0.0
    softmax: bool = True
    dropped: Formula | None = None
    rounded: str = ""


def attention_of(program: Program, packed: bool = True) -> Attention:
    """Return the attention that ``program`` computes. If ``packed``, heads may be rows of a tile, and bands have prefixes and chunks.

    Raises ``Refusal``.
    """
    whole = with_whole_keys(program)
    loops = loops_of(with_joined_loops(whole.program))
    finish = Finish(loops)
    weighting = (_with_softmax if has_softmax(loops) else _with_weights)(loops, finish, packed)
    queries = Queries(loops)
    (q, k, v), rests = operands_of(loops, queries)
    outputs = finish.outputs()
    problem = AttentionProblem(
        heads=(*map(loops.extent, loops.heads), *([loops.tiles] if loops.rows else [])) or (1,),
        queries=loops.extent(loops.queries),
        keys=weighting.keys,
        q=q[0],
        k=k[0],
        v=v[0],
        scale=weighting.scale * (queries.factor(weighting.score) if weighting.softmax else 1.0),
        unit=weighting.unit,
        lift=weighting.lift,
        replaced=weighting.replaced,
        query=queries.formula,
        score=weighting.score,
        guarded=weighting.guarded,
        start=weighting.start,
        band=weighting.band,
        finish=finish.formula,
        outputs=outputs,
        loaded=tuple(loops.loaded),
        key_span=key_span(loops, k[0].row, paged=k[0].pages is not None),
        query_span=query_span(loops, (q[0], *(output.matrix for output in outputs))),
        key_range=weighting.key_range,
        units=tuple(loops.numbers.units),
        softmax=weighting.softmax,
        dropped=weighting.dropped,
        rounded=weighting.rounded,
        **{name: matrix for name, (matrix, _, _) in rests.items()},  # type: ignore[arg-type]
        names=tuple(name for _, _, name in (q, k, v)),  # type: ignore[arg-type]
    )
    check_spans(loops, problem)
    problem = replace(problem, latent=_is_latent(problem, k[1] == v[1]))
    problem = with_heads_as_rows(loops, with_packed_heads(loops, problem) if packed else problem)
    problem = replace(problem, units=tuple(loops.numbers.units))
    _check(loops, problem, weighting, whole.masks)
    return Attention(
        problem=problem,
        loops=loops,
        gone=whole.blocks,
        tensors=(q[1], k[1], v[1], *(tensor for _, tensor, _ in rests.values()), *finish.tensors),
        sources=(
            *queries.reader.arguments(queries.formula),
            *weighting.sources,
            *finish.reader.arguments(finish.formula),
            *weighting.bounds,
            *table_of(loops),
            *loops.loaded.values(),
        ),
    )


def _check_parts(weighting: Weighting, masks: str) -> None:
    """Check that a query sees keys in each part of them, or that parts without any count for nothing: else ``masks`` says why.
    Raises ``Refusal``."""
    formula = weighting.score
    infinite = may_be_infinite(replace(formula, sources=()))
    if masks and (not weighting.band.is_whole or weighting.key_range is not None or infinite):
        raise Refusal(
            f"a mask is not implemented in parts of keys that a loop after hl.barrier() combines, where {masks}"
        )


def _check(loops: Loops, problem: AttentionProblem, weighting: Weighting, masks: str) -> None:
    """Check what is known of the problem and of its tensors. Raises ``Refusal``."""
    check_problem(problem)
    _check_parts(weighting, masks)
    check_strides(loops, problem)
    check_storage(loops)


def _is_latent(problem: AttentionProblem, same: bool) -> bool:
    """Return whether V is the first columns of K, of ``same`` if both are one tensor, in heads too wide for two copies."""
    k, v = problem.k, problem.v
    inside = v.columns <= without_rest(k, problem.k_rest).columns
    return same and k.columns > MOST_COLUMNS and inside and v == replace(k, columns=v.columns)


def _with_softmax(loops: Loops, finish: Finish, packed: bool) -> Weighting:
    softmax = softmax_of(loops)
    scores = scores_of(loops, softmax.scores, packed)
    keys = covered_keys(
        loops, scores.band, stored_keys(loops), lambda begin: begins_with_chunk(loops, begin, scores.band)
    )
    start = start_of(loops, softmax, every_query_sees(loops, scores.band, keys))
    finish.start_from(softmax, start)
    check_range(loops, scores.range)
    loaded, bounds = key_range(scores.reader, scores.range)
    dropped, drawn = _dropped(loops, softmax)
    return Weighting(
        key_range=loaded,
        bounds=bounds,
        score=scores.formula,
        band=scores.band,
        keys=keys,
        sources=(*scores.reader.arguments(scores.formula), *drawn),
        scale=scores.scale,
        unit=softmax.unit,
        lift=softmax.lift,
        replaced=softmax.replaced and math.isinf(start.maximum),
        guarded=may_be_infinite(scores.formula),
        start=start.maximum,
        dropped=dropped,
        rounded=softmax.rounded,
    )


def _dropped(loops: Loops, softmax: Softmax) -> tuple[Formula | None, Sequence[int | Expr]]:
    """Return the formula of what is multiplied instead of the weights, and its sources."""
    if softmax.dropped is None:
        return None, ()
    reader = FormulaReader(loops, (WEIGHT,), loops.keys, "weights")
    reader.known[softmax.power.result.number] = WEIGHT
    formula, numbers = reader.formula({WEIGHT: reader.read(softmax.dropped)})
    return replace(formula, value=numbers[WEIGHT]), reader.arguments(formula)


def _with_weights(loops: Loops, finish: Finish, packed: bool) -> Weighting:
    weights = weights_of(loops)
    check_range(loops, LoadedRange())
    lefts = Lefts(loops, {PRODUCT: loops.first}, "weights")
    band = lefts.visible([weights.value]).band
    formula, (number,) = lefts.formula([weights.value])
    finish.know_from(weights.accumulator, ACCUMULATOR)
    if weights.total is not None:
        finish.know_from(weights.total, TOTAL)
    return Weighting(
        score=replace(formula, value=number),
        band=band,
        keys=covered_keys(loops, band, stored_keys(loops)),
        sources=tuple(lefts.reader.arguments(formula)),
        softmax=False,
        rounded=weights.rounded,
    )
