"""Keys that a query sees by integers that are loaded for it, as those of its sequence: masks, and the ends of the loop."""

from __future__ import annotations

from collections.abc import Sequence

from ....._compiler.ir.grammar import ForAttrs, MemoryAttrs, Op, Operand, OperandRef
from ....._shapes import Expr
from ....._support.records import dataclass, replace
from ...plan.attention.build import MOST_MODES
from ...plan.attention.operands import SPAN_DIMENSIONS, Matrix, Place, Source
from ...plan.attention.records import AttentionProblem, KeyRange, Span
from ...plan.refusal import Refusal
from .band import key_span
from .formula import FormulaReader
from .loops import Loops
from .places import access_of, added, end_of_indices, rows_between, terms_of_condition, tile_of
from .values import end_of_tile, loaded_bound, name_of_op

MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


@dataclass(frozen=True, kw_only=True)
class LoadedRange:
    """The loads of the first key that a query sees, and of the one after the last, and numbers that are added to them."""

    begins: Op | None = None
    ends: Op | None = None
    shifts: tuple[int, int] = (0, 0)

    def joined(self, other: LoadedRange) -> LoadedRange | None:
        """Return the keys of both ranges, or None if both have the same bound."""
        if (self.begins and other.begins) or (self.ends and other.ends):
            return None
        return LoadedRange(
            begins=self.begins or other.begins,
            ends=self.ends or other.ends,
            shifts=(self.shifts[0] + other.shifts[0], self.shifts[1] + other.shifts[1]),
        )


def stored_queries(loops: Loops) -> Place | None:
    """Return the loaded end of the queries that stores let pass, or None. Raises ``Refusal``."""
    stores = [op for op in loops.root.body.ops if op.kind == "store"]
    ends = {access_of(loops, op).ends.get(loops.queries) if _is_masked(op) else None for op in stores}
    if len(ends) > 1:
        raise Refusal("outputs of different queries are not implemented; store all with the same mask")
    return next(iter(ends), None)


def _is_masked(op: Op) -> bool:
    return op.attributes(MemoryAttrs).mask is not None


def needed_terms(loops: Loops, condition: Operand, seen: bool) -> list[tuple[Operand, bool]]:
    """Return the conditions that together make up one, without those that hold for all keys of the loop and all stored
    queries."""
    terms = terms_of_condition(loops, condition, seen)
    return [term for term in terms if not _always_holds(loops, *term)]


def _always_holds(loops: Loops, condition: Operand, seen: bool) -> bool:
    found = end_of_indices(loops, condition, seen)
    if found is None:
        return False
    block, end = found
    if block == loops.queries:
        return end == stored_queries(loops)
    span = key_span(loops, None) if block == loops.keys else None
    return span is not None and end in span.ends


def range_of(loops: Loops, condition: Operand, seen: bool) -> LoadedRange | None:
    """Return the keys for which a comparison of their indices with loaded integers of queries is ``seen``, or None."""
    made = loops.stripped(condition)
    name = name_of_op(made)
    if made is None or name not in NEGATED or not loops.is_aligned(made):
        return None
    name = name if seen else NEGATED[name]
    one, other = made.operands
    if tile_of(loops, one) != loops.keys:
        one, other, name = other, one, MIRRORED[name]
    load = loaded_bound(loops, other) if tile_of(loops, one) == loops.keys else None
    if load is None:
        return None
    if name in ("ge", "gt"):
        return LoadedRange(begins=load, shifts=(1 if name == "gt" else 0, 0))
    return LoadedRange(ends=load, shifts=(0, 1 if name == "le" else 0))


def ends_of_loop(loops: Loops) -> LoadedRange:
    """Return the loads at whose least and greatest integers of the tile the loop over keys begins and ends."""
    (axis,) = loops.loop.attributes(ForAttrs).axes
    begin, end = (
        loops.loop.operands[each.at] if isinstance(each, OperandRef) else each for each in (axis.begin, axis.end)
    )
    return LoadedRange(begins=end_of_tile(loops, begin, "amin"), ends=end_of_tile(loops, end, "amax"))


def check_range(loops: Loops, found: LoadedRange) -> None:
    """Check that a loop that ends with the keys of a tile's queries hides the other keys of each. Raises ``Refusal``."""
    ends = ends_of_loop(loops)
    for name, bound, mask in (("begins", ends.begins, found.begins), ("ends", ends.ends, found.ends)):
        if bound is not None and (mask is None or not _same_load(loops, bound, mask)):
            raise Refusal(
                f"the loop over keys {name} with the {'first' if name == 'begins' else 'last'} key of a tile's queries,"
                f" by {loops.tensor(bound).name}, and no mask hides other keys by the same numbers: the result would"
                " depend on the size of tiles"
            )
    if ends.ends is not None and found.shifts[1]:
        raise Refusal("the loop over keys ends before the last key of a tile's queries that its mask shows")


def _same_load(loops: Loops, one: Op, other: Op) -> bool:
    return one is other or (
        one.attrs == other.attrs and one.operands == other.operands and loops.tensor(one) is loops.tensor(other)
    )


def key_range(reader: FormulaReader, found: LoadedRange) -> tuple[KeyRange | None, tuple[int | Expr, ...]]:
    """Return the range of the plan, and the ids of the tensors of its bounds. Raises ``Refusal``."""
    bounds: dict[str, Source] = {}
    ids: list[int | Expr] = []
    for name, load in (("begins", found.begins), ("ends", found.ends)):
        if load is None:
            continue
        source, tensor = reader.source_of(load)
        bounds[name] = replace(source, name=f"{source.name}_{name}")
        ids.append(tensor)
    return (KeyRange(**bounds, shifts=found.shifts) if bounds else None), tuple(ids)


def query_span(loops: Loops, matrices: Sequence[Matrix]) -> Span | None:
    """Return the queries of a head that are stored, or None if these are all. Raises ``Refusal``."""
    end = stored_queries(loops)
    moved = [matrix.name for matrix in matrices if matrix.row is not None]
    if moved and end is None:
        raise Refusal(
            f"{moved[0]} has the rows of a head at a loaded place, and outputs are stored without"
            " extra_mask=tile.index < length, which would keep a tile out of the rows of others"
        )
    return None if end is None else Span(ends=(end,))


def check_spans(loops: Loops, problem: AttentionProblem) -> None:
    """Check that K and V have the same rows, and that masks of loads let all of them pass. Raises ``Refusal``."""
    span = problem.key_span
    if problem.k.row != problem.v.row or problem.k.pages != problem.v.pages:
        raise Refusal("k and v whose rows begin at different loaded places, or are in other pages, are not implemented")
    if problem.k.pages is not None and (problem.key_range is not None or (span is not None and span.begin is not None)):
        raise Refusal("pages of keys in a loop that begins at a loaded key are not implemented")
    if span is not None and problem.key_range is not None:
        raise Refusal("bounds of keys that are loaded for each head and for each query are not implemented together")
    queries = () if problem.query_span is None else problem.query_span.ends
    known = {loops.keys: () if span is None else span.ends, loops.queries: queries}
    for op in (op for op in loops.program.walk() if op.kind == "load" and _is_masked(op)):
        for block, end in access_of(loops, op).ends.items():
            if end not in known.get(block, ()):
                raise Refusal(
                    f"{loops.tensor(op).name} is loaded with a mask other than that of the loop or of the stores"
                )


def with_heads_as_rows(loops: Loops, problem: AttentionProblem) -> AttentionProblem:
    """Return the problem with heads whose distance is a whole number of rows as rows, where TMA has too few dimensions."""
    matrices: dict[str, Matrix] = {}
    if problem.spans_keys:
        matrices |= {"k": _heads_as_rows(loops, problem.k), "v": _heads_as_rows(loops, problem.v)}
        if problem.k_rest is not None:
            matrices["k_rest"] = _heads_as_rows(loops, problem.k_rest)
    if problem.spans_queries:
        outputs = (
            replace(each, matrix=_heads_as_rows(loops, each.matrix)) if each.kind == "exact" else each
            for each in problem.outputs
        )
        problem = replace(problem, outputs=tuple(outputs))
        matrices["q"] = _heads_as_rows(loops, problem.q)
        if problem.q_rest is not None:
            matrices["q_rest"] = _heads_as_rows(loops, problem.q_rest)
    return replace(problem, **matrices)  # type: ignore[arg-type]


def _heads_as_rows(loops: Loops, matrix: Matrix) -> Matrix:
    for mode in reversed(matrix.modes):
        if 2 + len(matrix.modes) + SPAN_DIMENSIONS <= MOST_MODES:
            break
        if int(mode.stride) % int(matrix.pitch):
            continue
        place = Place("mul", (mode.at, Place("number", (rows_between(loops, mode.stride, matrix.pitch, matrix.name),))))
        base = place if matrix.base is None else added(matrix.base, place)
        matrix = replace(matrix, base=base, modes=tuple(each for each in matrix.modes if each is not mode))
    return matrix
