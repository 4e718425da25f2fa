"""Heads that share keys as rows of one tile, where each has few queries.

``h // shared`` selects the keys of head h. With one query per head, the ``shared`` heads of a group become the queries of
one tile, so that their keys are loaded once. A band is then a range of keys. Heads of several queries do if these are
consecutive rows. Their band repeats for each head.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ...plan.attention.numbers import is_known
from ...plan.attention.operands import Matrix, Mode, Place, Source
from ...plan.attention.records import KEY_INDEX, QUERY_INDEX, AttentionProblem, Band
from ...plan.dtypes import PITCH
from ...plan.epilogue import COLUMN_NUMBER, ROW_NUMBER
from ...plan.records import WGMMA_ROWS
from .loops import Loops

_POSITIONS = (QUERY_INDEX, KEY_INDEX, ROW_NUMBER, COLUMN_NUMBER)


def with_packed_heads(loops: Loops, problem: AttentionProblem) -> AttentionProblem:
    """Return the problem with heads as rows, or the same one where that does not apply."""
    others = len(problem.sources) > len(problem.loaded)
    spanned = problem.key_span is not None
    begins = not problem.band.has_first and is_known(problem.band.last) and (not spanned or problem.band.is_whole)
    varies = not begins and (spanned or problem.runtime)
    shifted = problem.query_span is not None or problem.band.shift or problem.band.prefix or problem.band.chunk
    known = all(map(is_known, (problem.queries, problem.band.first, problem.band.last)))
    few = problem.queries == 1 or (known and problem.queries < WGMMA_ROWS)
    if not few or problem.rests or others or varies or shifted or _reads_positions(problem):
        return problem
    for at, size in enumerate(problem.heads):
        shared = _shared(problem, at) if is_known(size) else None
        if shared is not None and is_known(shared) and shared > 1 and size % shared == 0 and _are_rows(problem, at):
            return _packed(loops, problem, at, shared)
    return problem


def _are_rows(problem: AttentionProblem, at: int) -> bool:
    """Return whether the queries of a head follow those of the one before, along coordinate ``at``."""
    if problem.queries == 1:
        return True
    matrices = (problem.q, *(output.matrix for output in problem.outputs))
    strides = [(mode.stride, each.strides[0]) for each in matrices for mode in each.modes if _depends(mode.at, at)]
    return all(is_known(head) and is_known(row) and head == problem.queries * row for head, row in strides)


def _reads_positions(problem: AttentionProblem) -> bool:
    return any(made.op in _POSITIONS for each in (problem.score, problem.finish) for made in each.instructions)


def _shared(problem: AttentionProblem, at: int) -> int | None:
    """Return the number of heads along coordinate ``at`` that share keys, or None if other indices depend on it."""
    found: set[int] = set()
    for matrix in (problem.k, problem.v):
        for mode in matrix.modes:
            if _depends(mode.at, at):
                number = _divisor(mode.at, at)
                if number is None:
                    return None
                found.add(number)
        if not any(_depends(mode.at, at) for mode in matrix.modes):
            found.add(problem.heads[at])
    ends = (end for span in problem.spans for end in (span.begin, *span.ends) if end is not None)
    rows = (place for matrix in problem.matrices for place in (matrix.row, matrix.base) if place is not None)
    if any(_depends(place, at) for place in (*_places(problem.loaded), *ends, *rows)):
        return None
    for matrix in (problem.q, *(output.matrix for output in problem.outputs)):
        if [mode.at for mode in matrix.modes if _depends(mode.at, at)] != [Place("axis", (at,))]:
            return None
    return found.pop() if len(found) == 1 else None


def _places(sources: Iterable[Source]) -> Iterator[Place]:
    return (mode.at for source in sources for mode in source.modes)


def _depends(place: Place, at: int) -> bool:
    return at in place.coordinates


def _divisor(place: Place, at: int) -> int | None:
    """Return n if a place is coordinate ``at`` divided by n."""
    if place.op != "floordiv" or place.arguments[0] != Place("axis", (at,)):
        return None
    number = place.arguments[1]
    known = number.arguments[0] if isinstance(number, Place) and number.op == "number" else None
    return known if isinstance(known, int) else None


def _packed(loops: Loops, problem: AttentionProblem, at: int, shared: int) -> AttentionProblem:
    heads = tuple(size // shared if number == at else size for number, size in enumerate(problem.heads))
    begin, end, band = 0, problem.keys, problem.band
    if problem.queries > 1:
        band = band if band.is_whole else replace(band, period=problem.queries)
    else:
        begin, band = max(0, band.first or 0), Band()
    if problem.queries == 1 and problem.band.last is not None:
        end = loops.numbers.least([problem.keys, problem.band.last + 1], "size_keys")
    if is_known(end) and end <= begin:  # no key is visible
        return problem
    k, v = (_of_keys(matrix, at, begin) for matrix in (problem.k, problem.v))
    return replace(
        problem,
        heads=heads,
        queries=shared * problem.queries,
        keys=end - begin if begin else end,
        q=_rows(loops, problem.q, at, shared, problem.queries),
        k=k,
        v=v,
        band=band,
        outputs=tuple(
            replace(each, matrix=_rows(loops, each.matrix, at, shared, problem.queries)) for each in problem.outputs
        ),
    )


def _of_keys(matrix: Matrix, at: int, begin: int) -> Matrix:
    """Return K or V from key ``begin`` on, indexed by the group."""
    modes = tuple(replace(mode, at=Place("axis", (at,))) if _depends(mode.at, at) else mode for mode in matrix.modes)
    return replace(matrix, offset=matrix.offset + begin * matrix.strides[0] if begin else matrix.offset, modes=modes)


def _rows(loops: Loops, matrix: Matrix, at: int, shared: int, queries: int) -> Matrix:
    """Return a matrix whose rows are the queries of the heads of a group."""
    (own,) = (mode for mode in matrix.modes if _depends(mode.at, at))
    stride = loops.numbers.of(loops.numbers.number(own.stride) * shared, f"stride_{matrix.name}_groups", PITCH)
    group = Mode(size=own.size // shared, stride=stride, at=own.at)
    modes = tuple(group if mode is own else mode for mode in matrix.modes)
    kept = tuple(mode for mode in modes if mode is not group or mode.size > 1)
    pitch = own.stride if queries == 1 else matrix.pitch
    return replace(matrix, pitch=pitch, modes=kept)
