"""Facts of loops that ``peel_masks`` splits: the kernel in their first tiles and in their last ones, and how many these are.

In these tiles some comparisons are known, so that masks and hidden values are not computed.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ...._shapes import cdiv
from ...._support.records import dataclass, replace
from ...ir.build import Numbers
from ...ir.grammar import Bound, ForAttrs, Op, Operand, PointwiseAttrs, Program, TileAttrs, TileField, Value, ViewAttrs
from ...ir.rewrite import expand_ops
from ...passes.always.simplify import drop_dead
from ..record import FactContext
from .loops import Copier, Known, Peeler, is_peelable, operand_of

#: Tiles of rows whose loops are counted, evenly spaced among all.
_COUNTED = 16


@dataclass(frozen=True, kw_only=True)
class Edge:
    """Tiles at one end of a loop. In row r they reach up to element ``sign * r + start``, for each pair of ``reaches``."""

    reaches: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class PeeledLoop:
    """A loop over ``columns`` whose masks depend on ``rows``. ``extents`` are the elements of both.

    It begins at the first column, or with the tile of rows (``from_rows``). It ends at the last column, or with the tile of
    rows (``to_rows``). ``first`` and ``last`` are its ends with known comparisons.
    """

    rows: int
    columns: int
    extents: tuple[int, int]
    from_rows: bool
    to_rows: bool
    first: Edge | None
    last: Edge | None

    def shares(self, sizes: Mapping[int, int]) -> tuple[float, float]:
        """Return the fractions of the loop's tiles that are among the first ones and the last ones."""
        return _shares(self, sizes[self.rows], sizes[self.columns])


@dataclass(frozen=True, kw_only=True)
class PeeledFact:
    """The facts of a kernel if all tiles of its ``loops`` were first ones, and if all were last ones; None if none is.

    Elementwise ops on hidden values, which are alike in a row, are not among them: LLVM computes them once a row.
    """

    loops: tuple[PeeledLoop, ...]
    first: Any
    last: Any


@functools.lru_cache(maxsize=256)
def _shares(loop: PeeledLoop, height: int, width: int) -> tuple[float, float]:
    rows, columns = loop.extents
    count = cdiv(rows, height)
    step = max(1, count // _COUNTED)
    total = first = last = 0
    for tile in range(step // 2, count, step):
        top, bottom = tile * height, (tile + 1) * height - 1
        begin = top if loop.from_rows else 0
        end = min(columns, bottom + 1) if loop.to_rows else columns
        tiles = cdiv(max(0, end - begin), width)
        head = _tiles_before(loop.first, begin, tiles, (top, bottom), width)
        tail = _tiles_after(loop.last, begin, tiles, (top, bottom), width)
        total, first, last = total + tiles, first + head, last + min(tail, tiles - head)
    return (first / total, last / total) if total else (0.0, 0.0)


def _tiles_before(edge: Edge | None, begin: int, tiles: int, rows: tuple[int, int], width: int) -> int:
    if edge is None:
        return 0
    until = min(min(sign * row for row in rows) + start for sign, start in edge.reaches)
    return min(tiles, max(0, (until - begin) // width))


def _tiles_after(edge: Edge | None, begin: int, tiles: int, rows: tuple[int, int], width: int) -> int:
    if edge is None:
        return 0
    since = max(max(sign * row for row in rows) + start for sign, start in edge.reaches)
    return min(tiles, max(0, tiles - cdiv(max(0, since - begin), width)))


# --- collection -------------------------------------------------------------------------------------------------------


def peeled_fact(context: FactContext) -> PeeledFact | None:
    """Return the facts of a kernel's peelable loops; None if there are none whose ranges the facts describe."""
    program = context.program
    peeler = Peeler(program, {})
    ops = [op for op in program.walk() if op.kind == "for" and is_peelable(program, op)]
    loops = [loop for op in ops if (loop := _loop(op, peeler, context)) is not None]
    if not loops or len(loops) < len(ops):
        return None
    return PeeledFact(
        loops=tuple(loops),
        first=_variant(context, peeler, 0) if any(loop.first for loop in loops) else None,
        last=_variant(context, peeler, 1) if any(loop.last for loop in loops) else None,
    )


def _loop(op: Op, peeler: Peeler, context: FactContext) -> PeeledLoop | None:
    axis = op.attributes(ForAttrs).axes[0]
    begins, ends = peeler.known(op, axis)
    rows = {term.block for condition, _ in (*begins, *ends) for term in condition.line.terms if term.block is not None}
    first, last = _edge(begins, peeler), _edge(ends, peeler)
    if len(rows) != 1 or first is _UNKNOWN or last is _UNKNOWN:
        return None
    (own,) = rows
    from_rows, to_rows = _is_at(op, axis.begin, "begin", own, peeler), _is_at(op, axis.end, "end", own, peeler)
    extents = context.extents.get(own), context.extents.get(axis.block)
    end = operand_of(op, axis.end)  # a loop from a row on to a known end has no known extent
    columns = extents[1] or (extents[0] if to_rows else end if isinstance(end, int) else None)
    fixed = (from_rows or operand_of(op, axis.begin) == 0) and (to_rows or columns is not None)
    if not fixed or extents[0] is None or columns is None:
        return None
    return PeeledLoop(
        rows=own,
        columns=axis.block,
        extents=(extents[0], columns),
        from_rows=from_rows,
        to_rows=to_rows,
        first=first,
        last=last,
    )


_UNKNOWN = Edge(reaches=())


def _edge(known: Known, peeler: Peeler) -> Edge | None:
    """Return the end of a loop where comparisons are known, None without any; ``_UNKNOWN`` if it depends on other values."""
    reaches = []
    for condition, _ in known:
        line, start = condition.line, peeler.start_of(condition.line)
        signs = [term.sign for term in line.terms if term.block is not None]
        if start is None or len(signs) > 1 or any(sign != -line.slope for sign in signs):
            return _UNKNOWN
        reaches.append((len(signs), start + 1 if condition.falls else -start))
    return Edge(reaches=tuple(reaches)) if reaches else None


def _is_at(op: Op, bound: Bound, field: TileField, block: int, peeler: Peeler) -> bool:
    """Return whether a bound of a loop is that end of the tile of ``block``."""
    maker = peeler.makers.of(operand_of(op, bound))
    return maker is not None and isinstance(maker.attrs, TileAttrs) and maker.attrs == TileAttrs(block, field)


def _variant(context: FactContext, peeler: Peeler, end: int) -> Any:
    """Return the facts with the body of the first tiles (``end`` 0) or the last ones in all tiles of the loops."""
    program, numbers = context.program, Numbers.after(context.program)
    blocks = []

    def change(op: Op) -> Iterator[Op]:
        if op.kind != "for" or not is_peelable(program, op):
            yield op
            return
        axis = op.attributes(ForAttrs).axes[0]
        known = {condition.value: value for condition, value in peeler.known(op, axis)[end]}
        blocks.append(axis.block)
        yield replace(op, regions=(Copier(numbers, known).region(op.regions[0]),)) if known else op

    changed = drop_dead(expand_ops(program, change))
    facts = context.collect(changed)
    loops = {fact.axes: fact.region for fact in facts.regions if fact.kind == "loop"}
    saved = Counter((loops.get((block,)), axes) for block in blocks for axes in _alike(changed, block))
    work = [
        replace(
            fact,
            ops=max(0, fact.ops - saved[fact.region, fact.axes]),
            sfu_ops=0 if (fact.region, fact.axes) in saved else fact.sfu_ops,
        )
        for fact in facts.work
    ]
    return replace(facts, work=tuple(work))


def _alike(program: Program, block: int) -> Iterator[tuple[int, ...]]:
    """Yield the axes of each elementwise op along ``block`` whose operands are alike in all of its elements."""
    alike: set[int] = set()

    def is_alike(operand: Operand) -> bool:
        if not isinstance(operand, Value) or operand.number in alike:
            return True
        return all(block not in dim.blocks for dim in operand.dims)

    for op in program.walk():
        same = isinstance(op.attrs, PointwiseAttrs | ViewAttrs) and all(map(is_alike, op.operands))
        if op.kind == "full" or same:
            alike.update(result.number for result in op.results)
        if same and op.kind == "pointwise":
            axes = tuple(block for dim in op.results[0].dims for block in dim.blocks)
            if block in axes:
                yield axes
