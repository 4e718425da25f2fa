"""Evaluation of attention and of its gradients on CPU tensors in fp32."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from ...._support.philox import WORD, philox, uniform
from ..plan.attention.build import NARROW_DTYPES
from ..plan.attention.gradients import AtomicSum, BackwardProblem
from ..plan.attention.operands import GATHER, INTEGERS, Matrix, Mode, Place, RandomNumbers, Source, Table
from ..plan.attention.records import KEY_INDEX, QUERY_INDEX, AttentionProblem, Formula, ScoreProblem, Span, without_rest
from ..plan.attention.row_values import RowValues
from ..plan.epilogue import COLUMN_NUMBER, ROW_NUMBER, Constant
from ..toolchain.kernel import GemmKernel
from .evaluate import OPERATIONS
from .problems import Given, launched, split


def evaluate_attention(kernel: GemmKernel, given: Sequence[Given]) -> None:
    """Run attention on the arguments of a launch: q, k, v, the outputs, the sources of both formulas, and integers."""
    given, integers = split(kernel, given)
    problem = launched(kernel, integers)
    assert isinstance(problem, AttentionProblem)
    tensors = [each if isinstance(each, torch.Tensor) else torch.tensor(each) for each in given]
    for head in itertools.product(*map(range, problem.heads)):
        _evaluate(problem, head, tensors)


def _evaluate(problem: AttentionProblem, head: tuple[int, ...], tensors: Sequence[torch.Tensor]) -> None:
    """Evaluate one head."""
    q, k, v, *others = tensors
    rests, others = dict(zip(problem.rests, others, strict=False)), others[len(problem.rests) :]
    outputs, sources = others[: len(problem.outputs)], others[len(problem.outputs) :]
    for source, tensor in zip(problem.loaded, sources[len(sources) - len(problem.loaded) :], strict=True):
        head = (*head, int(_source(problem, source, tensor, head, 1)))
    sources = sources[: len(sources) - len(problem.loaded)]
    pages, table = problem.k.pages, None
    if pages is not None:
        table, sources = _source(problem, pages.table, sources[-1], head, pages.most), sources[:-1]
    stored = _span(problem.query_span, head, problem.queries)
    kept = _span(problem.key_span, head, problem.keys - (0 if problem.k.row is None else place_at(problem.k.row, head)))
    of_query, sources = sources[: len(problem.query.sources)], sources[len(problem.query.sources) :]
    of_score, sources = sources[: len(problem.score.sources)], sources[len(problem.score.sources) :]
    rows, keys = problem.queries, problem.keys

    def read_rows(matrix: Matrix, tensor: torch.Tensor, span: slice, count: int, name: str = "") -> torch.Tensor:
        rest = problem.rests.get(name)
        found = _rows(without_rest(matrix, rest), tensor, head, span, count, table)
        return (
            found if rest is None else torch.cat([found, _rows(rest, rests[name], head, span, count, table)], 1)
        ).float()

    left = read_rows(problem.q, q, stored, rows, "q_rest")
    right = read_rows(problem.k, k, kept, keys, "k_rest")
    values = read_rows(problem.v, v, kept, keys)
    if problem.query.instructions:
        values_of_q = _computed(problem.query, [left, *(tensor.float() for tensor in of_query)])
        left = values_of_q[problem.query.value].to(q.dtype).float()
    read = _sources(problem, problem.score, of_score, head, keys)
    scores = _computed(problem.score, [left @ right.t(), *read])[problem.score.value] * problem.scale
    seen = _seen(problem, head)
    seen[:, : kept.start], seen[:, kept.stop :] = False, False
    seen = _within(problem, seen, sources, head)
    if problem.key_range is not None:
        sources = sources[: len(sources) - len(problem.key_range.bounds)]
    values = _read_rows(problem, values, seen)
    scores = scores.expand(rows, keys).masked_fill(~seen, -math.inf if problem.softmax else 0.0)
    highest = scores.amax(1, keepdim=True).clamp(min=problem.start)
    less = highest.masked_fill(highest == -math.inf, 0.0)  # as the kernel does for a query without keys
    weights = torch.exp2(problem.unit * (scores - less) + problem.lift) if problem.softmax else scores
    total = weights.sum(1, keepdim=True)
    if problem.lacks_sum:
        total = total.masked_fill(highest == -math.inf, math.nan)
    if problem.dropped is not None:
        drawn, sources = sources[: len(problem.dropped.sources)], sources[len(problem.dropped.sources) :]
        read = _sources(problem, problem.dropped, drawn, head, keys)
        weights = _computed(problem.dropped, [weights, *read])[problem.dropped.value].expand(rows, keys)
    if problem.q.dtype in NARROW_DTYPES:
        weights = weights.to(q.dtype).float()
    read = _sources(problem, problem.finish, sources, head, problem.v.columns)
    found = _computed(problem.finish, [weights @ values, total, highest, *read])
    for output, tensor in zip(problem.outputs, outputs, strict=True):
        result = _matrix(output.matrix, tensor, head, stored.stop)
        result.copy_(found[output.value].expand(rows, output.matrix.columns)[: stored.stop])


def evaluate_backward(kernel: GemmKernel, given: Sequence[Given]) -> None:
    """Run gradients of attention on the arguments of a launch: owned and streamed matrices, outputs, sources, and
    integers."""
    given, integers = split(kernel, given)
    problem = launched(kernel, integers)
    assert isinstance(problem, BackwardProblem)
    tensors = [each if isinstance(each, torch.Tensor) else torch.tensor(each) for each in given]
    reads = tensors[len(tensors) - len(problem.read_before) :]
    tensors = tensors[: len(tensors) - len(reads)]
    for values, at in zip(problem.values, problem.values_at, strict=True):
        read, reads = reads[: len(values.reads)], reads[len(values.reads) :]
        tensors[at] = _row_values(values, read)
    for head in itertools.product(*map(range, problem.heads)):
        _evaluate_gradients(problem, head, tensors)


def _row_values(values: RowValues, given: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the values of rows as the kernel before that of gradients stores them."""
    dtype = getattr(torch, values.dtype)
    found = torch.full((values.bytes // dtype.itemsize,), math.nan, dtype=dtype)
    for place in itertools.product(*map(range, values.heads)):
        coordinates = dict(zip(values.axes, place, strict=True))
        head = tuple(coordinates.get(axis, 0) for axis in range(max(values.axes, default=-1) + 1))
        read = [_matrix(each, x, head, values.rows).float() for each, x in zip(values.reads, given, strict=True)]
        made = _computed(values.formula, read)[values.formula.value]
        target = torch.as_strided(
            found,
            (values.rows, 1 if values.sums else values.columns),
            (values.pitch, 1),
            _start(found, 0, values.modes, head),
        )
        target.copy_(made.sum(1, keepdim=True) if values.sums else made)
    return found


def _evaluate_gradients(problem: BackwardProblem, head: tuple[int, ...], tensors: Sequence[torch.Tensor]) -> None:
    """Evaluate one head. Left operands are rounded, as the kernel does."""
    pairs, gradients = len(problem.owned), problem.gradients
    owned = [_matrix(m, t, head, problem.queries).float() for m, t in zip(problem.owned, tensors[:pairs], strict=True)]
    of_streamed, rest = tensors[pairs : 2 * pairs], tensors[2 * pairs :]
    outputs, sources = rest[: len(gradients)], rest[len(gradients) :]
    added, sources = (sources[0], sources[1:]) if problem.atomic is not None else (None, sources)
    stored, sources = sources[: len(problem.loop_outputs)], sources[len(problem.loop_outputs) :]
    of_formula, sources = sources[: len(problem.formula.sources)], sources[len(problem.formula.sources) :]
    seen = _within(problem, _seen(problem), sources, head)
    sums = [torch.zeros(problem.queries, each.output.matrix.columns) for each in gradients]
    for repeat in range(problem.repeats):
        place = (*head, repeat) if problem.is_repeated else head
        blocks = [
            _read_rows(problem, _matrix(matrix, tensor, place, problem.keys).float(), seen)
            for matrix, tensor in zip(problem.streamed, of_streamed, strict=True)
        ]
        products = [left @ right.t() for left, right in zip(owned, blocks, strict=True)]
        read = _sources(problem, problem.formula, of_formula, place, problem.keys)
        found = _computed(problem.formula, [*products, *read])
        for total, each in zip(sums, gradients, strict=True):
            left = found[each.left].expand(problem.queries, problem.keys).masked_fill(~seen, 0.0)
            total += left.to(tensors[0].dtype).float() @ blocks[each.right]
        for made, tensor in zip(problem.loop_outputs, stored, strict=True):
            target, value = _source(problem, made.target, tensor, place, problem.keys), found[made.value]
            target.copy_(value + target if made.adds else value)
        if problem.atomic is not None and added is not None:
            _add(
                problem,
                problem.atomic,
                found,
                owned,
                _matrix(problem.atomic.matrix, added, place, problem.keys),
                tensors,
                seen,
            )
    for total, each, output in zip(sums, gradients, outputs, strict=True):
        columns = each.output.matrix.columns
        read = _sources(problem, each.finish, sources[: len(each.finish.sources)], head, columns)
        sources = sources[len(each.finish.sources) :]
        found = _computed(each.finish, [total, *read])
        _matrix(each.output.matrix, output, head, problem.queries).copy_(found[each.finish.value])


def _add(
    problem: BackwardProblem,
    atomic: AtomicSum,
    values: Sequence[torch.Tensor],
    owned: Sequence[torch.Tensor],
    target: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    seen: torch.Tensor,
) -> None:
    """Add the gradient of streamed rows. The sources of its formula are the last of the launch's ``tensors`` but for loaded
    bounds. Owned rows without streamed rows are read as 0."""
    left = values[atomic.left].expand(problem.queries, problem.keys).masked_fill(~seen, 0.0)
    end = len(tensors) - (0 if problem.key_range is None else len(problem.key_range.bounds))
    numbers, right = tensors[end - len(atomic.finish.sources) : end], owned[atomic.right]
    right = right.masked_fill(~seen.any(1)[:, None], 0.0) if problem.spans_keys else right
    product = left.to(tensors[0].dtype).float().t() @ right
    target += _computed(atomic.finish, [product, *numbers])[atomic.finish.value]


def _within(
    problem: ScoreProblem, seen: torch.Tensor, sources: Sequence[torch.Tensor], head: tuple[int, ...]
) -> torch.Tensor:
    """Return what is seen within the loaded bounds of each row, the last ones of ``sources``."""
    bounds = {} if problem.key_range is None else problem.key_range.bounds
    for (name, (source, shift)), tensor in zip(bounds.items(), sources[len(sources) - len(bounds) :], strict=True):
        bound = _source(problem, source, tensor, head, 1) + shift
        rows = torch.arange(problem.keys)
        seen = seen & (rows >= bound if name == "begins" else rows < bound)
    return seen


def _read_rows(problem: ScoreProblem, rows: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Return streamed rows: those out of a span are read as 0."""
    return rows.masked_fill(~seen.any(0)[:, None], 0.0) if problem.spans_keys else rows


def _span(span: Span | None, head: tuple[int, ...], rows: int) -> slice:
    """Return the indices of a span, of at most ``rows``."""
    if span is None:
        return slice(0, rows)
    begin = 0 if span.begin is None else max(0, place_at(span.begin, head))
    end = max(0, min([rows, *(place_at(each, head) for each in span.ends)]))
    return slice(min(begin, end), end)


def _rows(
    matrix: Matrix,
    tensor: torch.Tensor,
    head: tuple[int, ...],
    span: slice,
    rows: int,
    table: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the rows of a matrix, those out of the span as 0. They are in the pages of ``table``, if there is one."""
    held = tensor.new_zeros(rows, matrix.columns)
    if table is not None and matrix.pages is not None:
        size = matrix.pages.size
        for at in range(span.start, span.stop):
            row = int(table[0, at // size]) * matrix.pages.distance + at % size
            held[at] = _matrix(matrix, tensor, head, row + 1)[row]
        return held
    held[span] = _matrix(matrix, tensor, head, span.stop)[span.start :]
    return held


def _seen(problem: ScoreProblem, head: tuple[int, ...] = ()) -> torch.Tensor:
    queries = torch.arange(problem.queries) % (problem.band.period or max(1, problem.queries))
    distance = torch.arange(problem.keys) - queries[:, None]
    if problem.band.shift is not None:
        distance = distance - place_at(problem.band.shift, head)
    seen = torch.ones_like(distance, dtype=torch.bool)
    if problem.band.first is not None:
        seen &= distance >= problem.band.first
    if problem.band.last is not None:
        before = distance <= problem.band.last
        prefix = problem.band.prefix
        seen &= before if prefix is None else before | (torch.arange(problem.keys) < place_at(prefix, head))
    if problem.band.chunk:
        seen &= torch.arange(problem.keys) >= queries[:, None] // problem.band.chunk * problem.band.chunk
    return seen


def _computed(formula: Formula, values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return all values of a formula."""
    rows, columns = values[0].shape
    for made in formula.instructions:
        if made.op in (COLUMN_NUMBER, KEY_INDEX):
            values.append(torch.arange(columns, dtype=torch.float32).expand(rows, columns))
        elif made.op in (ROW_NUMBER, QUERY_INDEX):
            values.append(torch.arange(rows, dtype=torch.float32)[:, None])
        elif made.op == GATHER:
            index, table = (values[each] for each in made.arguments if isinstance(each, int))
            values.append(table[0, index.long().clamp(0, table.size(1) - 1)])
        else:
            arguments = [
                torch.tensor(float(each.text)) if isinstance(each, Constant) else values[each]
                for each in made.arguments
            ]
            values.append(OPERATIONS[made.op](*arguments))
    return values


def _sources(
    problem: ScoreProblem, formula: Formula, tensors: Sequence[torch.Tensor], head: tuple[int, ...], columns: int
) -> list[torch.Tensor]:
    return [
        tensor.float() if source.kind == "number" else _read(problem, source, tensor, head, columns)
        for source, tensor in zip(formula.sources, tensors, strict=True)
    ]


def _read(
    problem: ScoreProblem, source: Source, tensor: torch.Tensor, head: tuple[int, ...], columns: int
) -> torch.Tensor:
    """Return a source in fp32, integers as they are."""
    found = _source(problem, source, tensor, head, columns)
    return found if source.dtype in INTEGERS else found.float()


def _source(
    problem: ScoreProblem, source: Source, tensor: torch.Tensor, head: tuple[int, ...], columns: int
) -> torch.Tensor:
    if isinstance(source, RandomNumbers):
        return _uniform(source, tensor, head, problem.queries, columns)
    shape = (
        problem.queries if source.kind in ("exact", "query") else 1,
        source.size if isinstance(source, Table) else columns if source.kind in ("exact", "key") else 1,
    )
    return torch.as_strided(tensor, shape, source.pitches, _start(tensor, source.offset, source.modes, head))


def _uniform(source: RandomNumbers, seed: torch.Tensor, head: tuple[int, ...], rows: int, columns: int) -> torch.Tensor:
    """Return random numbers of the queries and keys of a head."""
    first = source.offset + sum(mode.stride * place_at(mode.at, head) for mode in source.modes)
    row, column = source.pitches
    offsets = first + row * torch.arange(rows)[:, None] + column * torch.arange(columns)
    if source.seed.kind != "number":
        seed = torch.as_strided(seed, (), (), _start(seed, source.seed.offset, source.seed.modes, head))
    return uniform(philox(seed.long(), offsets if source.wide else offsets & WORD)[0])


def _matrix(matrix: Matrix, tensor: torch.Tensor, head: tuple[int, ...], rows: int) -> torch.Tensor:
    start = _start(tensor, matrix.offset, matrix.modes, head)
    before = (place_at(each, head) for each in (matrix.base, matrix.row) if each is not None)
    start += sum(before) * matrix.pitch
    return torch.as_strided(tensor, (rows, matrix.columns), matrix.strides, start)


def _start(tensor: torch.Tensor, offset: int, modes: Sequence[Mode], head: tuple[int, ...]) -> int:
    return int(tensor.storage_offset()) + offset + sum(mode.stride * place_at(mode.at, head) for mode in modes)


def place_at(place: Place, head: tuple[int, ...]) -> int:
    """Return the value of a place for the coordinates of a head."""
    if place.op in ("axis", "number"):
        (number,) = place.arguments
        assert isinstance(number, int)
        return head[number] if place.op == "axis" else number
    one, other = (place_at(each, head) for each in place.arguments if isinstance(each, Place))
    results = {
        "add": one + other,
        "sub": one - other,
        "mul": one * other,
        "min": min(one, other),
        "max": max(one, other),
    }
    if place.op in results:
        return results[place.op]
    return one // other if place.op == "floordiv" else one % other
