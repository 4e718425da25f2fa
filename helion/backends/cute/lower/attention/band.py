"""Masks of scores: which are bounds of the keys that each query sees, in the same distance from every query."""

from __future__ import annotations

from collections.abc import Callable

from ....._compiler.ir.grammar import ForAttrs, NumberAttrs, Op, Operand, OperandRef, PointwiseAttrs, Value
from ....._shapes import Expr, Number, fixed_at, hint_of
from ....._support.records import dataclass, replace
from ...plan.attention.numbers import is_known, text_of
from ...plan.attention.operands import Place
from ...plan.attention.records import Band, Span
from ...plan.refusal import Refusal
from ..numbers import equal, size
from .loops import Loops, is_position
from .places import ZERO, access_of, added, loaded_value, subtracted
from .values import end_of_tile, name_of_op


@dataclass(frozen=True)
class Affine:
    """``query`` * the index of the query + ``key`` * that of the key + ``number`` + what is ``loaded`` for the head."""

    query: int
    key: int
    number: Number
    loaded: Place = ZERO


def affine_of(loops: Loops, value: Operand) -> Affine | None:
    """Return an integer value as an affine function of query and key, or None."""
    if not isinstance(value, Value):
        return Affine(0, 0, value) if isinstance(value, int) and not isinstance(value, bool) else None
    made = loops.stripped(value)
    if made is None or value.dtype.is_floating_point:
        return None
    place = loaded_value(loops, value)
    if place is not None:
        return Affine(0, 0, 0, place)
    if made.kind == "iota" and not made.attrs.relative:
        block = made.attrs.block
        return {loops.queries: Affine(1, 0, 0), loops.keys: Affine(0, 1, 0)}.get(block)
    if made.kind == "full":
        return affine_of(loops, made.operands[0])
    if made.kind == "number" and made.attributes(NumberAttrs).expr.kind is int:
        return Affine(0, 0, made.attributes(NumberAttrs).expr)
    if not isinstance(made.attrs, PointwiseAttrs):
        return None
    terms = [affine_of(loops, each) for each in made.operands]
    known = [each for each in terms if each is not None]
    if len(known) < len(terms):
        return None
    if made.attrs.name == "cast":
        return known[0]
    if made.attrs.name == "neg":
        (one,) = known
        return Affine(-one.query, -one.key, -one.number, subtracted(ZERO, one.loaded))
    if made.attrs.name in ("add", "sub") and len(known) == 2:
        sign = 1 if made.attrs.name == "add" else -1
        one, other = known
        loaded = (added if sign > 0 else subtracted)(one.loaded, other.loaded)
        return Affine(
            one.query + sign * other.query, one.key + sign * other.key, one.number + sign * other.number, loaded
        )
    return None


def band_of(loops: Loops, condition: Operand, seen: bool = True) -> Band | None:
    """Return the band of the keys for which a condition is ``seen``, or None if they are not one."""
    made = loops.stripped(condition)
    if made is None or not isinstance(made.attrs, PointwiseAttrs):
        return None
    name = made.attrs.name
    if name in ("logical_not", "bitwise_not"):
        return band_of(loops, made.operands[0], not seen)
    if name in (("bitwise_and", "logical_and") if seen else ("bitwise_or", "logical_or")):
        bands = [band_of(loops, each, seen) for each in made.operands]
        known = [band for band in bands if band is not None]
        return joined(loops, *known) if len(known) == len(bands) else None
    return _of_comparison(loops, made, seen)


_NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_QUERY, _KEY = Affine(1, 0, 0), Affine(0, 1, 0)
LONGEST_CHUNK = 2**31
"""Chunks are shorter than this, so that multiples of them are 32-bit integers."""


def _of_comparison(loops: Loops, made: Op, seen: bool) -> Band | None:
    name = made.attrs.name if seen else _NEGATED.get(made.attrs.name, "")
    if name not in _NEGATED:
        return None
    one, other = (affine_of(loops, each) for each in made.operands)
    if one is None and other is not None and (other.query, other.key, other.loaded) == (0, 0, ZERO):
        return _of_distance(loops, made.operands[0], name, other.number)
    if one is None or other is None:
        return None
    if one.key < other.key:  # mirror the comparison
        one, other, name = other, one, _MIRRORED[name]
    key, query, number = one.key - other.key, one.query - other.query, one.number - other.number
    if (key, query) != (1, -1):
        return None
    # key - query + number compared with what is loaded
    place = subtracted(other.loaded, one.loaded)
    shift = None if place == ZERO else place
    if name in ("le", "lt"):
        return Band(last=loops.numbers.of(-number - (1 if name == "lt" else 0), "bound_last"), shift=shift)
    return Band(first=loops.numbers.of(-number + (1 if name == "gt" else 0), "bound_first"), shift=shift)


def _of_distance(loops: Loops, value: Operand, name: str, most: Number) -> Band | None:
    """Return the band of keys whose distance from the query, in either direction, is at most ``most``, or less."""
    made = loops.stripped(value)
    if made is None or made.attrs != PointwiseAttrs("abs") or name not in ("le", "lt"):
        return None
    distance = affine_of(loops, made.operands[0])
    if distance is None or distance.query + distance.key != 0 or abs(distance.key) != 1 or distance.loaded != ZERO:
        return None
    most = most - (1 if name == "lt" else 0)
    middle = -distance.number * distance.key
    return Band(
        first=loops.numbers.of(middle - most, "bound_first"), last=loops.numbers.of(middle + most, "bound_last")
    )


def joined(loops: Loops, *bands: Band) -> Band:
    """Return the keys that all bands have. Raises ``Refusal``."""
    shifts = {band.shift for band in bands if (band.first, band.last) != (None, None)}
    if len(shifts) > 1:
        raise Refusal("masks by distances of queries and keys plus different loaded integers are not implemented")
    if len({band.chunk for band in bands if band.chunk}) > 1:
        raise Refusal("masks by chunks of several lengths are not implemented")
    firsts = [band.first for band in bands if band.first is not None]
    lasts = [band.last for band in bands if band.last is not None]
    return Band(
        first=loops.numbers.greatest(firsts, "bound_first") if firsts else None,
        last=loops.numbers.least(lasts, "bound_last") if lasts else None,
        shift=next(iter(shifts), None),
        prefix=next((band.prefix for band in bands if band.prefix is not None), None),
        chunk=next((band.chunk for band in bands if band.chunk), 0),
    )


def prefixed_band_of(loops: Loops, condition: Operand, seen: bool = True) -> Band | None:
    """Return the band of the keys for which a condition is ``seen`` that is a last key, or a key below a number; else None."""
    made = loops.stripped(condition)
    if made is None or not isinstance(made.attrs, PointwiseAttrs):
        return None
    name = made.attrs.name
    if name in ("logical_not", "bitwise_not"):
        return prefixed_band_of(loops, made.operands[0], not seen)
    if name not in (("bitwise_or", "logical_or") if seen else ("bitwise_and", "logical_and")):
        return None
    for one, other in (made.operands, made.operands[::-1]):
        band, prefix = band_of(loops, one, seen), _prefix_of(loops, other, seen)
        if band is not None and prefix is not None and band.first is None and band.last is not None:
            return replace(band, prefix=prefix)
    return None


def _prefix_of(loops: Loops, condition: Operand, seen: bool) -> Place | None:
    """Return the integer of a head below which keys are ``seen`` by a comparison, or None."""
    made = loops.stripped(condition)
    name = made.attrs.name if made is not None and isinstance(made.attrs, PointwiseAttrs) else ""
    name = name if seen else _NEGATED.get(name, "")
    if made is None or name not in _NEGATED:
        return None
    one, other = (affine_of(loops, each) for each in made.operands)
    if one is None or other is None:
        return None
    if one.key < other.key:
        one, other, name = other, one, _MIRRORED[name]
    if (one.key - other.key, one.query - other.query) != (1, 0) or name not in ("lt", "le"):
        return None
    place, number = subtracted(other.loaded, one.loaded), other.number - one.number + (1 if name == "le" else 0)
    return place if place != ZERO and equal(number, 0) else _moved(loops, place, number)


def _moved(loops: Loops, place: Place, number: Number) -> Place:
    """Return a place plus a number."""
    moved = Place("number", (loops.numbers.of(number, "bound_prefix"),))
    return moved if place == ZERO else added(place, moved)


def chunk_of_mask(loops: Loops, condition: Operand, seen: bool) -> int:
    """Return the length of chunks, or 0 for another condition.

    It is ``seen`` where query and key are in one chunk, or where the key is not before the query's chunk.
    """
    made = loops.stripped(condition)
    name = name_of_op(made)
    if made is None or len(made.operands) != 2:
        return 0
    if name == ("eq" if seen else "ne"):
        found = [_quotient(loops, each) for each in made.operands]
        (one, first), (other, second) = (each if each is not None else (None, 0) for each in found)
        same = one is not None and other is not None and equal(first, second)
        return _length(loops, first) if same and (one, other) in ((_QUERY, _KEY), (_KEY, _QUERY)) else 0
    name = name if seen else _NEGATED.get(name, "")
    key, query = made.operands
    if affine_of(loops, key) != _KEY:
        key, query, name = query, key, _MIRRORED.get(name, "")
    if name != "ge" or affine_of(loops, key) != _KEY:
        return 0
    length = _start(loops, query, lambda value: affine_of(loops, value) == _QUERY)
    return 0 if length is None else _length(loops, length)


def chunk_of_begin(loops: Loops, begin: Operand) -> Number | None:
    """Return the length of the chunks of which a loop over keys begins with that of the tile's first query, or None."""
    return _start(loops, begin, lambda value: is_position(loops.stripped(value), ("begin",)) == loops.queries)


def begins_with_chunk(loops: Loops, begin: Operand, band: Band) -> bool:
    """Return whether a loop over keys begins with the chunk of the tile's first query, before which a band shows no keys."""
    found = chunk_of_begin(loops, begin) if band.chunk else None
    return found is not None and equal(found, loops.numbers.number(band.chunk))


def shows_whole_chunks(band: Band) -> bool:
    """Return whether the chunks of a band hide only keys before that of a query, since the band hides all keys after it."""
    if not band.chunk:
        return True
    return (
        (band.shift, band.prefix) == (None, None) and band.last is not None and is_known(band.last) and band.last <= 0
    )


def _length(loops: Loops, number: Number) -> int:
    """Return the length of chunks as the plan has it, 0 if it may not be positive: launches check that of an argument."""
    if isinstance(number, Expr):
        argument = number.op == "host" and number.args[0] in loops.program.host.symbols
        return loops.numbers.of(number, "chunk") if argument and 0 < number.hint < LONGEST_CHUNK else 0
    return int(number) if 0 < number < LONGEST_CHUNK else 0


def _number(loops: Loops, value: Operand) -> Number | None:
    """Return the integer of the launch that a value is, or None."""
    found = affine_of(loops, value)
    return found.number if found is not None and found == Affine(0, 0, found.number) else None


def _quotient(loops: Loops, value: Operand) -> tuple[Affine, Number] | None:
    """Return what is divided, and by what, if a value is such a quotient."""
    made = loops.stripped(value)
    while made is not None and name_of_op(made) == "cast" and not made.result.dtype.is_floating_point:
        made = loops.stripped(made.operands[0])
    if made is None or name_of_op(made) not in ("floordiv", "truncdiv"):
        return None
    divided, length = affine_of(loops, made.operands[0]), _number(loops, made.operands[1])
    return None if divided is None or length is None else (divided, length)


def _start(loops: Loops, value: Operand, is_base: Callable[[Operand], bool]) -> Number | None:
    """Return the length of chunks if a value is the first element of that of a base: ``base // length * length``, or ``base -
    base % length``; else None."""
    made = loops.stripped(value)
    while made is not None and (made.kind == "full" or name_of_op(made) == "cast"):
        if made.result.dtype.is_floating_point:
            return None
        made = loops.stripped(made.operands[0])
    name = name_of_op(made)
    if made is None or name not in ("mul", "sub"):
        return None
    for part, other in (made.operands, made.operands[::-1]) if name == "mul" else (made.operands[::-1],):
        inner = loops.stripped(part)
        if inner is None or name_of_op(inner) not in (("floordiv", "truncdiv") if name == "mul" else ("remainder",)):
            continue
        base, length = inner.operands[0], _number(loops, inner.operands[1])
        factor = _number(loops, other) if name == "mul" else length
        if length is None or factor is None or not is_base(base) or (name == "sub" and not is_base(other)):
            continue
        return length if equal(length, factor) else None
    return None


def every_query_sees(loops: Loops, band: Band, keys: int) -> bool:
    """Return whether each query has at least one key in the band, in every launch."""
    numbers, queries = loops.numbers, loops.numbers.number(loops.extent(loops.queries))
    sees = not _end(loops).is_loaded and band.shift is None and (not is_known(keys) or keys > 0)  # launches have keys
    if band.chunk:  # a query sees itself
        sees &= numbers.at_most(queries, numbers.number(keys)) and (
            band.first is None or numbers.at_most(band.first, 0)
        )
    if band.last is not None:
        sees &= numbers.at_most(0, band.last)
    if band.first is not None:
        sees &= numbers.at_most(queries + numbers.number(band.first), numbers.number(keys))
    if band.first is not None and band.last is not None:
        sees &= numbers.at_most(band.first, band.last)
    return sees


def whole_where_empty(loops: Loops, band: Band, keys: int) -> tuple[Band, Number] | None:
    """Return a band that is whole in launches in which ``band`` is empty, and a number: 0 in these launches, else 1.

    It is None if a query may see no key of a band that is not empty.
    """
    numbers, queries = loops.numbers, loops.numbers.number(loops.extent(loops.queries))
    if band.first is None or band.last is None or band.shift or band.prefix or band.chunk or _end(loops).is_loaded:
        return None
    first, last = numbers.number(band.first), numbers.number(band.last)
    if not numbers.at_most(0, last) or not numbers.at_most(queries + last, numbers.number(keys)):
        return None
    empty = _extreme("min", _extreme("max", first - last, 0), 1)
    begin, end = _extreme("min", first, last + 1) - empty * EVERY_DISTANCE, last + empty * EVERY_DISTANCE
    return Band(first=numbers.of(begin, "bound_first"), last=numbers.of(end, "bound_last")), 1 - empty


def _extreme(op: str, one: Number, other: Number) -> Number:
    chosen = (min if op == "min" else max)(hint_of(one), hint_of(other))
    return Expr(op, (one, other), chosen) if isinstance(one, Expr) or isinstance(other, Expr) else chosen


EVERY_DISTANCE = 2**30
"""More than the distance of any key from any query."""
EVERY_KEY = -(2**62)
"""The distance of the first key in loops from 0."""


@dataclass(frozen=True)
class End:
    """The end of a loop over keys: the least of several numbers, None where there is none.

    They are ``limit``, and ``past`` keys beyond the end of the tile of queries, or ``floor`` if that is more. ``loaded`` ones are
    of each head. ``greatest`` loads one for each of the tile's queries, of which the greatest counts.
    """

    limit: Number | None = None
    past: Number | None = None
    loaded: tuple[Place, ...] = ()
    greatest: Op | None = None
    floor: Place | None = None

    @property
    def is_loaded(self) -> bool:
        return bool(self.loaded) or self.greatest is not None


def end_of_loop(loops: Loops, end: Operand) -> End | None:
    """Return the end of a loop over keys from its operand, or None if it is neither of both kinds."""
    if not isinstance(end, Value):
        return End(limit=int(end))
    made, greatest = loops.stripped(end), end_of_tile(loops, end, "amax")
    if greatest is not None:
        return End(greatest=greatest)
    place = loaded_value(loops, end)
    if place is not None:
        return End(loaded=(place,))
    if made is None:
        return None
    if made.kind == "full":
        return end_of_loop(loops, made.operands[0])
    if made.kind == "number" and made.attributes(NumberAttrs).expr.kind is int:
        return End(limit=size(made.attributes(NumberAttrs).expr))
    if is_position(made, ("end",)) == loops.queries:
        return End(past=0)
    if not isinstance(made.attrs, PointwiseAttrs):
        return None
    if made.attrs.name == "mul" and 0 in made.operands:
        return End(limit=0)
    name, terms = made.attrs.name, [end_of_loop(loops, each) for each in made.operands]
    if name == "cast":
        return terms[0]
    if name == "add" and _is_begin_and_size(loops, made):
        return End(past=0)
    one, other = terms if len(terms) == 2 else (None, None)
    if one is None or other is None:
        return None
    if name == "maximum":
        return _raised(loops, one, other) or _raised(loops, other, one)
    floor = one.floor or other.floor
    if name == "minimum":
        if one.greatest is not None and other.greatest is not None:
            return None
        if floor is not None and one.past is not None and other.past is not None:
            return None
        limit, past = _least(loops, one.limit, other.limit), _least(loops, one.past, other.past)
        loaded, greatest = (*one.loaded, *other.loaded), one.greatest or other.greatest
        return End(limit=limit, past=past, loaded=loaded, greatest=greatest, floor=floor)
    if name == "add" and fixed_at(one.limit, 0) and one.past is None and not one.is_loaded:
        return other
    if name not in ("add", "sub") or other.past is not None or other.limit is None or one.is_loaded or other.is_loaded:
        return None
    if floor is not None:
        return None
    moved = other.limit if name == "add" else -other.limit
    limit, past = (None if each is None else each + moved for each in (one.limit, one.past))
    return End(limit=limit, past=past)


def _raised(loops: Loops, one: End, other: End) -> End | None:
    """Return the end of the tile of queries, or another number if that is more; None for other ends than these."""
    if one != End(past=one.past) or one.past is None:
        return None
    if other.limit is not None and other == End(limit=other.limit):
        return End(past=one.past, floor=_moved(loops, ZERO, other.limit))
    return End(past=one.past, floor=other.loaded[0]) if other == End(loaded=other.loaded[:1]) else None


def _is_begin_and_size(loops: Loops, made: Op) -> bool:
    """Return whether an op adds the size of the tile of queries to its begin."""
    terms = [loops.stripped(each) for each in made.operands]
    for one, other in (terms, terms[::-1]):
        if is_position(one, ("begin",)) == loops.queries and _size_of(other) == loops.queries:
            return True
    return False


def _size_of(op: Op | None) -> int | None:
    """Return the block whose tile size the op is, or None."""
    expr = op.attrs.expr if op is not None and isinstance(op.attrs, NumberAttrs) else None
    return expr.args[0] if isinstance(expr, Expr) and expr.op == "block" else is_position(op, ("block_size",))


def begin_of_loop(loops: Loops, begin: Operand) -> Number | None:
    """Return the least distance of a loop's first key from the first query of the tile.

    A loop from 0 has every key. The result is None for a begin that is neither 0 nor a position of the tile plus a
    number.
    """
    if not isinstance(begin, Value):
        return EVERY_KEY if begin == 0 else None
    made = loops.stripped(begin)
    if made is None:
        return None
    if made.kind == "full":
        return begin_of_loop(loops, made.operands[0])
    if is_position(made, ("begin",)) == loops.queries:
        return 0
    name = made.attrs.name if isinstance(made.attrs, PointwiseAttrs) else ""
    if name == "cast":
        return begin_of_loop(loops, made.operands[0])
    if name == "maximum":
        known = [begin_of_loop(loops, each) for each in made.operands]
        distances = [each for each in known if each is not None and not equal(each, EVERY_KEY)]
        return distances[0] if len(distances) == 1 and any(equal(each, EVERY_KEY) for each in known) else None
    if name not in ("add", "sub"):
        return None
    one, other = made.operands
    moved = affine_of(loops, other)
    if moved is None and name == "add":
        one, moved = other, affine_of(loops, one)
    found = None if moved is None or (moved.query, moved.key) != (0, 0) else begin_of_loop(loops, one)
    if found is None or moved is None or equal(found, EVERY_KEY):
        return None
    return found + (moved.number if name == "add" else -moved.number)


def _least(loops: Loops, one: Number | None, other: Number | None) -> Number | None:
    known = [loops.numbers.of(each, "size_end") for each in (one, other) if each is not None]
    return loops.numbers.number(loops.numbers.least(known, "size_end")) if known else None


def covered_keys(
    loops: Loops, band: Band, stored: int, covers_band: Callable[[Operand], bool] = lambda begin: False
) -> int:
    """Return the number of keys of the loop, of which tensors have ``stored``.

    ``covers_band`` returns whether the band hides all keys before a begin. Raises ``Refusal`` if the size of tiles would change
    the result.
    """
    (axis,) = loops.loop.attributes(ForAttrs).axes
    block = loops.program.blocks[axis.block]
    plain = block.kind == "tile" and not axis.scalar and axis.jagged is None and axis.split is None
    begin = loops.loop.operands[axis.begin.at] if isinstance(axis.begin, OperandRef) else axis.begin
    first = begin_of_loop(loops, begin) if isinstance(begin, (int, Value)) else None
    if end_of_tile(loops, begin, "amin") is not None or loaded_begin(loops) is not None:
        first = EVERY_KEY
    if isinstance(begin, Value) and covers_band(begin):
        first = EVERY_KEY
    if not plain or first is None or not equal(axis.step, 1):
        raise Refusal("a loop over keys from 0, or from the first query of the tile plus a number, is implemented")
    numbers = loops.numbers
    if not equal(first, EVERY_KEY) and (band.first is None or not numbers.at_most(first, band.first)):
        raise Refusal(
            "the loop over keys begins with the tile of queries, and its mask lets a query see earlier keys: the result"
            " would depend on the size of tiles"
        )
    found = _end(loops)
    if band.shift is not None and (found.past is not None or not equal(first, EVERY_KEY)):
        raise Refusal("a loop over keys to the end of the tile of queries, and masks by distances plus loaded integers")
    cut = band.prefix is not None and band.prefix != found.floor
    if found.past is not None and (band.last is None or cut or not numbers.at_most(band.last, found.past)):
        raise Refusal(
            "the loop over keys ends with the tile of queries, and its mask lets a query see later keys: the result would"
            " depend on the size of tiles"
        )
    if found.is_loaded:
        return stored
    if not numbers.at_most(last_key(loops), stored):
        raise Refusal(f"the loop over keys may go past the {text_of(stored)} keys of k and v")
    return stored if found.limit is None else numbers.of(found.limit, "size_keys")


def last_key(loops: Loops) -> Number:
    """Return the keys up to the last one that the loop reaches for any tile. Raises ``Refusal``."""
    end = _end(loops)
    if end.limit is not None:
        return end.limit
    if end.loaded:
        raise Refusal("a number for each key, in a loop to a number of keys that is loaded, is not implemented")
    if end.greatest is not None:
        return loops.numbers.number(_streamed_rows(loops))
    return loops.numbers.number(loops.extent(loops.queries)) + (0 if end.past is None else end.past)


def reached_keys(loops: Loops, stored: int) -> int:
    """Return the ``stored`` keys that a loop reaches whose end does not depend on the tile of queries."""
    limit = _end(loops).limit
    return stored if limit is None else loops.numbers.least([stored, loops.numbers.of(limit, "size_keys")], "size_keys")


def _streamed_rows(loops: Loops) -> int:
    """Return the rows that the loaded operands of both dots have, along the loop."""
    values = [loops.stripped(value) for dot in (loops.first, loops.second) for value in dot.operands[:2]]
    loads = [access_of(loops, made) for made in values if made is not None and made.kind == "load"]
    return loops.numbers.least([each.extents[loops.keys] for each in loads if loops.keys in each.extents], "size_keys")


def loaded_begin(loops: Loops) -> Place | None:
    """Return the loaded integer of each head at which the loop over keys begins, or None."""
    (axis,) = loops.loop.attributes(ForAttrs).axes
    return loaded_value(loops, loops.loop.operands[axis.begin.at]) if isinstance(axis.begin, OperandRef) else None


def key_span(loops: Loops, row: Place | None, paged: bool = False) -> Span | None:
    """Return the keys of the loop by what is loaded for each head, or None. ``row`` is the row of key 0, if it is loaded.
    Raises ``Refusal``."""
    begin, end = loaded_begin(loops), _end(loops)
    if begin is None and not end.loaded and row is None and not paged:
        return None
    limit = () if end.limit is None else (Place("number", (loops.numbers.of(end.limit, "size_keys"),)),)
    return Span(begin=begin, ends=(*end.loaded, *limit))


def _end(loops: Loops) -> End:
    (axis,) = loops.loop.attributes(ForAttrs).axes
    end = axis.end
    found = end_of_loop(loops, loops.loop.operands[end.at]) if isinstance(end, OperandRef) else _known(end)
    if found is None:
        raise Refusal("a loop over keys ends at a number, or at the end of the tile of queries")
    return found


def _known(end: object) -> End | None:
    return End(limit=size(end))
