"""torch functions of the order along a dimension: sort, argsort, topk, kthvalue and median.

All compare integer keys in torch's order, with nan as the greatest. A few elements are selected in rounds: each takes
the extremum of the keys after the previous one. The reduction of a round can process a long row in chunks, while a sort
needs the whole row at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .... import exc
from ...._shapes import ONE
from .. import ops
from ..rules import Rules
from ..tracer import Tracer
from ..values import DeviceValue, describe
from .pointwise import named
from .reductions import whole
from .shapes import position

RULES = Rules()
rule = RULES.register

#: Rounds that one call may take: each is a reduction, or two for 64-bit elements, and the compile time grows with them.
MOST_ROUNDS = 32
#: Maximum number of elements of a sorted row: their keys, of 8 bytes each, go through shared memory.
MOST_SORTED = 16384

_LAST = torch.iinfo(torch.int64).max
_WIDE = (torch.int64, torch.uint64, torch.float64)


class _ValuesAndIndices(NamedTuple):
    values: DeviceValue
    indices: DeviceValue


# --- keys -------------------------------------------------------------------------------------------------------------


class _Keys(NamedTuple):
    """Integer keys along the last dimension, compared word by word; no two elements have equal keys.

    Elements of up to 32 bits have one word: order in the high half and position in the low one. Others have two.
    """

    words: tuple[DeviceValue, ...]
    descending: bool

    def order(self, words: tuple[DeviceValue, ...]) -> DeviceValue:
        """Return the order (as of ``_ordered``) of the elements of some of the keys."""
        order = words[0] if len(words) == 2 else words[0] >> 32
        return -1 - order if self.descending else order

    def places(self, words: tuple[DeviceValue, ...]) -> DeviceValue:
        """Return the positions of the elements of some of the keys."""
        return words[1] if len(words) == 2 else words[0] & 0xFFFFFFFF


def _along(t: Tracer, input: DeviceValue, dim: int, name: str) -> tuple[DeviceValue, list[int]]:
    """Return ``input`` with a dimension moved to the end, and the permutation.

    Raises ``exc.UnsupportedTorchFunction`` along a tile, whose elements change with the block size.
    """
    at = position(input, dim)
    whole(t, input, [at], name, "; it would order each tile separately: take the whole dimension with `:`")
    order = [*(i for i in range(input.ndim) if i != at), at]
    return ops.permute(t, input, order), order


def _keys(t: Tracer, value: DeviceValue, descending: bool) -> _Keys:
    """Return the keys of ``value``: positions order equal elements, so the sort is stable."""
    rank = value.ndim
    shape = tuple(value.dims[-1] if i == rank - 1 else ONE for i in range(rank))
    place = ops.cast(t, ops.reshape(t, ops.iota_along(t, value.dims[-1]), shape), torch.int64)
    order = _ordered(t, value)
    order = -1 - order if descending else order
    words = (order, place) if value.dtype in _WIDE else ((order << 32) | place,)
    return _Keys(tuple(ops.broadcast(t, word, value.dims) for word in words), descending)


def _ordered(t: Tracer, value: DeviceValue) -> DeviceValue:
    """Return int64 values in the order of ``value``."""
    if value.dtype.is_floating_point:
        double = value.dtype == torch.float64
        wide = value if double else ops.cast(t, value, torch.float32)
        # canonical nan, and +0 for both zeros
        number = ops.pointwise(t, "where", ops.pointwise(t, "isnan", wide), float("nan"), wide + 0.0)
        bits = ops.pointwise(
            t, "bitcast", ops.cast(t, number, wide.dtype), dtype=torch.int64 if double else torch.int32
        )
        magnitude = 0x7FFFFFFFFFFFFFFF if double else 0x7FFFFFFF
        return ops.cast(t, ops.pointwise(t, "where", bits < 0, bits ^ magnitude, bits), torch.int64)
    if value.dtype == torch.uint64:
        return ops.pointwise(t, "bitcast", value, dtype=torch.int64) ^ torch.iinfo(torch.int64).min
    return ops.cast(t, value, torch.int64)


# --- sorting ----------------------------------------------------------------------------------------------------------


def _check_held(t: Tracer, value: DeviceValue, name: str) -> None:
    """Refuse a dimension that a sort cannot process: of unknown size, or of more than ``MOST_SORTED`` elements."""
    size = t.blocks.size_of(value.dims[-1])
    if not isinstance(size, int):
        remedy = f"; specialize it with hl.specialize, select at most {MOST_ROUNDS} elements with torch.topk, or call torch.{name} in the host code"
        raise exc.UnsupportedTorchFunction(name=f"torch.{name} along a dimension of unknown size", remedy=remedy)
    if size > MOST_SORTED:
        remedy = f"; a sort takes rows of up to {MOST_SORTED} elements: select at most {MOST_ROUNDS} of them with torch.topk, or call torch.{name} in the host code"
        raise exc.UnsupportedTorchFunction(name=f"torch.{name} along a dimension of {size} elements", remedy=remedy)


def _sorted(
    t: Tracer, input: DeviceValue, dim: int, descending: bool, name: str, stable: bool = False
) -> _ValuesAndIndices:
    value, order = _along(t, input, dim, name)
    if value.dtype in _WIDE:
        raise exc.UnsupportedTorchFunction(name=f"torch.{name} of {input.dtype}", remedy="; convert to 32 bits first")
    _check_held(t, value, name)
    keys = _keys(t, value, descending)
    (word,) = keys.words
    # lanes beyond the extent go last
    operands = (_inside(t, word).value, *(() if stable else (value.value, descending)))
    ranked = ops.emit(t, "sort", operands, torch.int64, word.dims)
    # lanes beyond the extent have positions that no element has
    indices = ops.pointwise(t, "minimum", keys.places((ranked,)), t.blocks.size_of(value.dims[-1]) - 1)
    values = ops.gather(t, value, ops.cast(t, indices, torch.int32), value.ndim - 1)
    return _back(t, _ValuesAndIndices(values, indices), order)


def _inside(t: Tracer, word: DeviceValue) -> DeviceValue:
    """Return a key whose out-of-range lanes are after all others."""
    at = word.ndim - 1
    block = word.dims[at].block
    if block is not None and block in t.blocks.active:
        return ops.within_tile(t, word, at, _LAST)
    size = t.blocks.size_of(word.dims[at])
    return ops.pointwise(t, "where", ops.lanes(t, size, word.ndim, at) < size, word, _LAST)


def _back(t: Tracer, found: _ValuesAndIndices, order: list[int]) -> _ValuesAndIndices:
    """Return values and indices with their last dimension moved back."""
    back = [order.index(i) for i in range(len(order))]
    return _ValuesAndIndices(ops.permute(t, found.values, back), ops.permute(t, found.indices, back))


@rule(*named("sort"))
def _sort(t: Tracer, input: DeviceValue, dim: int = -1, descending: bool = False, *, stable: Any = None) -> Any:
    return _sorted(t, input, dim, descending, "sort", bool(stable))


@rule(*named("argsort"))
def _argsort(t: Tracer, input: DeviceValue, dim: int = -1, descending: bool = False, *, stable: Any = None) -> Any:
    return _sorted(t, input, dim, descending, "argsort").indices


# --- selecting --------------------------------------------------------------------------------------------------------


def _least(t: Tracer, word: DeviceValue) -> DeviceValue:
    """Return the minimum along the last dimension, which becomes 1."""
    least = ops.reduce(t, "min", word, [word.ndim - 1], torch.int64)
    return ops.reshape(t, least, (*word.dims[:-1], ONE))


def _first(t: Tracer, words: tuple[DeviceValue, ...]) -> tuple[DeviceValue, ...]:
    """Return the words of the first key."""
    if len(words) == 1:
        return (_least(t, words[0]),)
    order, place = words
    least = _least(t, order)
    return least, _least(t, ops.pointwise(t, "where", order == least, place, _LAST))


def _following(t: Tracer, words: tuple[DeviceValue, ...], before: tuple[DeviceValue, ...]) -> tuple[DeviceValue, ...]:
    """Return the words of the key after ``before``."""
    if len(words) == 1:
        return (_least(t, ops.pointwise(t, "where", words[0] > before[0], words[0], _LAST)),)
    order, place = words
    same = ops.pointwise(t, "logical_and", order == before[0], place > before[1])
    later = ops.pointwise(t, "logical_or", order > before[0], same)
    least = _least(t, ops.pointwise(t, "where", later, order, _LAST))
    chosen = ops.pointwise(t, "logical_and", later, order == least)
    return least, _least(t, ops.pointwise(t, "where", chosen, place, _LAST))


def _rounds(t: Tracer, keys: _Keys, count: int) -> list[tuple[DeviceValue, ...]]:
    """Return the first ``count`` keys, each with a last dimension of 1."""
    found = [_first(t, keys.words)]
    while len(found) < count:
        found.append(_following(t, keys.words, found[-1]))
    return found


def _element(t: Tracer, value: DeviceValue, keys: _Keys, words: tuple[DeviceValue, ...]) -> DeviceValue:
    """Return the element of ``value`` with a key. Floats are summed with zeros for others, which has a derivative."""
    if value.dtype == torch.uint64:
        return ops.pointwise(t, "bitcast", keys.order(words) ^ torch.iinfo(torch.int64).min, dtype=value.dtype)
    if not value.dtype.is_floating_point:
        return ops.cast(t, keys.order(words), value.dtype)
    chosen = keys.words[-1] == words[-1]
    alone = ops.pointwise(t, "where", chosen, value, ops.full(t, (), 0, value.dtype))
    total = ops.reduce(t, "sum", alone, [value.ndim - 1], value.dtype)
    return ops.reshape(t, total, (*value.dims[:-1], ONE))


def _in_a_row(t: Tracer, values: list[DeviceValue]) -> DeviceValue:
    """Concatenate values with a last dimension of 1 along it."""
    if len(values) == 1:
        return values[0]
    rank = values[0].ndim
    lanes = ops.lanes(t, len(values), rank, rank - 1)
    result = values[-1]
    for number in reversed(range(len(values) - 1)):
        result = ops.pointwise(t, "where", lanes == number, values[number], result)
    return result


def _checked(t: Tracer, input: DeviceValue, dim: int, k: Any, name: str) -> int:
    """Return ``k``, which must be a number of elements that the dimension has."""
    size = t.blocks.size_of(input.dims[position(input, dim)])
    k = t.numbers.known(k)
    if type(k) is int and k >= 1 and (not isinstance(size, int) or k <= size):
        return k
    limits = f"between 1 and {size}" if isinstance(size, int) else "above 0"
    if isinstance(k, (bool, float)):
        raise exc.InvalidAPIUsage(
            f"k of torch.{name} must be an integer {limits}, got {describe(k)}: pass an int, as in k={max(int(k), 1)}."
        )
    remedy = (
        "" if type(k) is int else ": annotate the argument that it comes from with hl.constexpr, or use hl.specialize"
    )
    raise exc.InvalidAPIUsage(f"k of torch.{name} must be a constant {limits}, got {describe(k)}{remedy}.")


@rule(*named("topk"))
def _topk(t: Tracer, input: DeviceValue, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    count = _checked(t, input, dim, k, "topk")
    if count > MOST_ROUNDS:
        return _part_of_sorted(t, input, dim, largest, count)
    value, order = _along(t, input, dim, "topk")
    keys = _keys(t, value, largest)
    found = _rounds(t, keys, count)
    values = _in_a_row(t, [_element(t, value, keys, words) for words in found])
    indices = _in_a_row(t, [keys.places(words) for words in found])
    return _back(t, _ValuesAndIndices(values, indices), order)


def _part_of_sorted(t: Tracer, input: DeviceValue, dim: int, descending: bool, count: int) -> _ValuesAndIndices:
    """Return the first elements of a sorted dimension."""
    at = position(input, dim)
    ranked = _sorted(t, input, dim, descending, "topk")
    lanes = ops.lanes(t, count, input.ndim, at)
    return _ValuesAndIndices(*(ops.pick(t, v, at, lanes) for v in ranked))


def _ranked(t: Tracer, input: DeviceValue, dim: int, keepdim: bool, rank: int, name: str) -> _ValuesAndIndices:
    """Return the element of number ``rank`` in ascending order along a dimension, and its position."""
    at = position(input, dim)
    size = t.blocks.size_of(input.dims[at])
    from_end = size - 1 - rank if isinstance(size, int) and _is_full(t, input, at) else rank
    if min(rank, from_end) < MOST_ROUNDS:
        found = _selected(t, input, dim, rank, from_end, name)
    else:
        before = (slice(None),) * at
        ordered = _sorted(t, input, dim, False, name)
        found = _ValuesAndIndices(*(v[(*before, slice(rank, rank + 1))] for v in ordered))
    if keepdim:
        return found
    dims = tuple(d for i, d in enumerate(found.values.dims) if i != at)
    return _ValuesAndIndices(*(ops.reshape(t, v, dims) for v in found))


def _is_full(t: Tracer, input: DeviceValue, at: int) -> bool:
    """Return whether the dimension has the same number of elements in every program, without partial tiles."""
    return all(t.blocks[block].kind == "full" for block in input.dims[at].blocks)


def _selected(t: Tracer, input: DeviceValue, dim: int, rank: int, from_end: int, name: str) -> _ValuesAndIndices:
    """Select the element of number ``rank``, by rounds from the nearer end."""
    value, order = _along(t, input, dim, name)
    keys = _keys(t, value, False)
    if from_end < rank:
        # reversed as a whole: of equal elements the last one comes first
        backwards = keys._replace(words=tuple(-1 - word for word in keys.words))
        words = tuple(-1 - word for word in _rounds(t, backwards, 1 + from_end)[-1])
    else:
        words = _rounds(t, keys, 1 + rank)[-1]
    return _back(t, _ValuesAndIndices(_element(t, value, keys, words), keys.places(words)), order)


@rule(*named("kthvalue"))
def _kthvalue(t: Tracer, input: DeviceValue, k: int, dim: int = -1, keepdim: bool = False) -> _ValuesAndIndices:
    return _ranked(t, input, dim, keepdim, _checked(t, input, dim, k, "kthvalue") - 1, "kthvalue")


@rule(*named("median"))
def _median(t: Tracer, input: DeviceValue, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None and input.ndim != 1:
        raise exc.UnsupportedTorchFunction(name="torch.median over all dimensions", remedy="; give dim")
    at = position(input, 0 if dim is None else dim)
    size = t.blocks.size_of(input.dims[at])
    if not isinstance(size, int) or not _is_full(t, input, at):
        raise exc.UnsupportedTorchFunction(
            name="torch.median along a tile or a dimension of unknown size",
            remedy="; take a whole dimension with `:`, and specialize its size with hl.specialize",
        )
    middle = _ranked(t, input, at, keepdim, (size - 1) // 2, "median")
    if not input.dtype.is_floating_point:
        return middle.values if dim is None else middle
    last = _ranked(t, input, at, keepdim, size - 1, "median")  # a nan is the last, if there is one
    missing = ops.pointwise(t, "isnan", last.values)
    values = ops.pointwise(t, "where", missing, last.values, middle.values)
    if dim is None:
        return values
    flags = ops.cast(t, ops.pointwise(t, "isnan", input), torch.int32)
    first = ops.reshape(t, ops.reduce(t, "argmax", flags, [at], torch.int64), missing.dims)
    return _ValuesAndIndices(values, ops.pointwise(t, "where", missing, first, middle.indices))
