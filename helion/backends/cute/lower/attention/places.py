"""Accesses of attention: the matrix of a head, and other inputs and outputs, by their strides."""

from __future__ import annotations

from collections.abc import Iterator

from ....._compiler.ir.grammar import HostTensor, Index, MemoryAttrs, NumberAttrs, Op, Operand, PointwiseAttrs, Value
from ....._shapes import Expr, Number, dtype_name, fixed_at
from ....._support.records import dataclass, replace
from ...plan.attention.numbers import is_known
from ...plan.attention.operands import INTEGERS, Mode, Pages, Place, Source
from ...plan.dtypes import PITCH
from ...plan.refusal import Refusal
from ..batch import POSITION
from ..names import name_of
from ..numbers import equal
from .loops import Loops, is_position

MOST_ELEMENTS = 2**31
"""Elements that an offset of 32 bits reaches."""
_OPERATIONS = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "floordiv": "floordiv",
    "mod": "mod",
    "remainder": "mod",
    "minimum": "min",
    "maximum": "max",
}
ZERO = Place("number", (0,))


@dataclass(frozen=True, kw_only=True)
class Access:
    """An accessed tensor: strides by block of its tile's dimensions, and the rest of its dimensions by head.

    ``rows`` are added to the indices of a block, and ``ends`` are the ends of the indices that a mask lets pass.
    """

    tensor: HostTensor
    strides: dict[int, int]
    extents: dict[int, int]
    offset: int
    modes: tuple[Mode, ...]
    rows: dict[int, Place]
    ends: dict[int, Place]
    pages: dict[int, tuple[Pages, int | Expr]]
    """By block: the pages that its indices select, and the table's argument of a launch."""
    parts: frozenset[int] = frozenset()
    """Blocks of consecutive indices that may be fewer than a dimension has."""

    def check_plain(self) -> None:
        """Check that indices of tiles are those of rows, without a mask. Raises ``Refusal``."""
        if self.pages:
            raise Refusal(f"{self.tensor.name} is indexed by computed positions, which is not implemented")
        if self.rows:
            raise Refusal(f"{self.tensor.name} is indexed by a tile plus an offset, which is not implemented")
        if self.ends:
            raise Refusal(f"{self.tensor.name} is accessed with a mask of the user's; implemented are whole tiles")


def access_of(loops: Loops, op: Op, left_out: int | None = None) -> Access:
    """Return the access of a load or store, without index number ``left_out``. Raises ``Refusal``."""
    attrs, tensor = op.attributes(MemoryAttrs), loops.tensor(op)
    ends = {} if attrs.mask is None else _ends_of_mask(loops, op.operands[attrs.mask], tensor.name)
    strides, extents, modes, numbers = dict[int, int](), dict[int, int](), list[Mode](), loops.numbers
    rows, pages, parts = dict[int, Place](), dict[int, tuple[Pages, int | Expr]](), set[int]()
    offset: Number = 0
    name = name_of(tensor)
    pool, found = _pool_of(loops, op)
    for at, index in enumerate(attrs.indices):
        if at in (left_out, pool):
            continue
        shape = numbers.of(tensor.shape[at], f"size_{name}_{at}")
        stride = numbers.of(tensor.strides[at], f"stride_{name}_{at}", PITCH)
        if (part := _slice_of(loops, op, index)) is not None:
            columns, start = part
            if columns in strides:
                raise Refusal(f"{tensor.name} is indexed twice by one tile")
            strides[columns], extents[columns] = stride, _part_of(loops, tensor.name, shape, part)
            parts |= {columns} if index.kind == "tensor" and extents[columns] != shape else set()
            offset = offset + numbers.number(stride) * start
            continue
        paged = found.get(at) or pages_of(loops, op, index)
        pages |= {} if paged is None else {loops.keys: paged}
        block, row = (loops.keys, ZERO) if paged is not None else _block_of(loops, op, index)
        if block is not None and block not in loops.heads:
            if block in strides:
                raise Refusal(f"{tensor.name} is indexed twice by one tile")
            if loops.rows and block == loops.queries:
                modes += _of_tiles(loops, op, shape, stride)
                shape = loops.rows
            is_whole = loops.program.blocks[block].kind == "full"
            strides[block], extents[block] = stride, loops.extent(block) if is_whole else shape
            rows |= {} if row == ZERO else {block: row}
            continue
        of_head = None if block is None else Place("axis", (loops.heads.index(block),))
        place = _place_of(loops, op, index) if of_head is None else added(of_head, row)
        if stride == 0 or shape == 1:
            continue
        if place.op == "number":
            (number,) = place.arguments
            assert isinstance(number, int)
            offset = offset + numbers.number(stride) * (number if number >= 0 else number + numbers.number(shape))
        else:
            modes.append(Mode(size=shape, stride=stride, at=place))
    if not tensor.aligned:
        raise Refusal(f"{tensor.name} may begin at an address that is no multiple of 16 bytes")
    modes.sort(key=lambda mode: mode.stride)
    start = numbers.of(offset, f"offset_{name}", PITCH)
    return Access(
        tensor=tensor,
        strides=strides,
        extents=extents,
        offset=start,
        modes=tuple(modes),
        rows=rows,
        ends=ends,
        pages=pages,
        parts=frozenset(parts),
    )


def _part_of(loops: Loops, name: str, shape: int, part: tuple[int, int]) -> int:
    """Return the number of indices of a part of a dimension. Raises ``Refusal`` if the dimension has fewer."""
    block, start = part
    extent = loops.extent(block)
    if is_known(shape) and is_known(extent) and start + extent > shape:
        raise Refusal(f"{name} has {shape} dimensions of a head, and more are read")
    return extent


def _slice_of(loops: Loops, op: Op, index: Index) -> tuple[int, int] | None:
    """Return the block of a slice of a dimension of a head, or of as many consecutive indices, and the first element; None for
    other indices, and for slices that begin with the first element."""
    if not isinstance(index.shift, int) or index.shift < 0:
        return None
    if index.kind == "tensor" and index.operand is not None:
        found = _consecutive(loops, op.operands[index.operand])
        return None if found is None or found[1] < 0 else (found[0], found[1] + index.shift)
    block = None if index.kind != "block" or index.block is None else loops.program.blocks[index.block]
    if block is None or block.kind != "full" or index.operand is not None or not index.shift:
        return None
    return block.id, index.shift


def _consecutive(loops: Loops, value: Operand) -> tuple[int, int] | None:
    """Return the block whose indices a value is, of a dimension without tiles, and the number that is added to them; or None."""
    made = loops.stripped(value)
    while made is not None and made.attrs == PointwiseAttrs("cast") and not made.result.dtype.is_floating_point:
        made = loops.stripped(made.operands[0])
    if made is not None and made.kind == "iota":
        return (int(made.attrs.block), 0) if _is_whole(loops, made) else None
    if made is None or made.attrs != PointwiseAttrs("add"):
        return None
    for one, other in (made.operands, made.operands[::-1]):
        found = _consecutive(loops, one) if isinstance(other, int) else None
        if found is not None and isinstance(other, int):
            return found[0], found[1] + other
    return None


def pages_of(loops: Loops, op: Op, index: Index) -> tuple[Pages, int | Expr] | None:
    """Return the pages that an index ``table[..., tile.index // size] * distance + tile.index % size`` selects, and the argument
    of a launch for the table; None for other indices. A fixed tile of keys is a page as well, by its ``id``."""
    made = loops.stripped(op.operands[index.operand]) if index.kind == "tensor" and index.operand is not None else None
    if made is None or made.attrs not in (PointwiseAttrs("add"), PointwiseAttrs("sub")):
        return None
    terms = [*_summands(loops, made)]
    added = [term for term, sign in terms if sign > 0]
    taken = [term for term, sign in terms if sign < 0]
    own = loops.program.blocks[loops.keys].size
    sizes = [size for term in added if (size := _size_of_page(loops, term))]
    if taken:  # the begin of the tile, from its indices
        begins = len(taken) == 1 and is_position(loops.stripped(taken[0]), ("begin",)) == loops.keys
        sizes = [own for term in added if begins and isinstance(own, int) and tile_of(loops, term) == loops.keys]
    tables = [times for term in added if (times := _product_of(loops, term)) is not None]
    if len(sizes) != 1 or len(tables) != 1 or len(terms) != 2 + len(taken):
        return None
    ((load, distance),), (size,) = tables, sizes
    found = _table(loops, load, size)
    if found is None:
        return None
    return Pages(table=found[0], size=size, most=found[1], distance=distance), loops.tensor(load).id


def _summands(loops: Loops, made: Op, sign: int = 1) -> Iterator[tuple[Operand, int]]:
    """Yield the terms of a sum, and their signs."""
    signs = sign, -sign if made.attrs == PointwiseAttrs("sub") else sign
    for operand, own in zip(made.operands, signs, strict=True):
        is_made = isinstance(operand, Value) and loops.stripped(operand) is not None
        inner = _core(loops, operand) if is_made and not _size_of_page(loops, operand) else None
        if inner is not None and inner.attrs in (PointwiseAttrs("add"), PointwiseAttrs("sub")):
            yield from _summands(loops, inner, own)
        else:
            yield operand, own


def _page_size(loops: Loops, op: Op, index: Index) -> int:
    return 0 if index.operand is None else _size_of_page(loops, op.operands[index.operand])


def _size_of_page(loops: Loops, value: Operand) -> int:
    """Return the size of pages in which a value is the index of a key, or 0."""
    if not isinstance(value, Value) or loops.stripped(value) is None:
        return 0
    size = _operand_of(loops, value, ("mod", "remainder"))
    made = _core(loops, value)
    if size is not None:
        return size if tile_of(loops, made.operands[0]) == loops.keys else 0
    relative = made.kind == "iota" and made.attrs.relative and made.attrs.block == loops.keys
    if made.attrs == PointwiseAttrs("sub") and tile_of(loops, made.operands[0]) == loops.keys:
        relative = is_position(loops.stripped(made.operands[1]), ("begin",)) == loops.keys
    own = loops.program.blocks[loops.keys].size
    return own if relative and isinstance(own, int) else 0


def _pool_of(loops: Loops, op: Op) -> tuple[int | None, dict[int, tuple[Pages, int | Expr]]]:
    """Return the number of the index that selects a page, and the pages by the number of that of a row.

    An example is ``pool[table[..., tile.id], tile.index - tile.begin]``. Raises ``Refusal``.
    """
    indices, tensor = op.attributes(MemoryAttrs).indices, loops.tensor(op)
    given = [None if each.operand is None else loops.stripped(op.operands[each.operand]) for each in indices]
    rows = [at for at, index in enumerate(indices) if index.kind == "tensor" and _page_size(loops, op, index)]
    for at, (index, load) in enumerate(zip(indices, given, strict=True)):
        plain = index.kind == "scalar" and fixed_at(index.shift, 0) and len(rows) == 1
        if not plain or load is None or load.kind != "load":
            continue
        (row,) = rows
        size = _page_size(loops, op, indices[row])
        found = _table(loops, load, size)
        if found is None:
            continue
        name, numbers, (table, most) = name_of(tensor), loops.numbers, found
        if isinstance(tensor.shape[row], int) and size > tensor.shape[row]:
            raise Refusal(
                f"{tensor.name} has pages of {tensor.shape[row]} rows, and tiles of {size} keys are read of each"
            )
        between, pitch = (numbers.of(tensor.strides[each], f"stride_{name}_{each}", PITCH) for each in (at, row))
        distance = rows_between(loops, between, pitch, name)
        return at, {row: (Pages(table=table, size=size, most=most, distance=distance), loops.tensor(load).id)}
    return None, {}


def _of_tiles(loops: Loops, op: Op, queries: int, stride: int) -> list[Mode]:
    """Return the dimension of the tiles of queries, each of which is a head. Raises ``Refusal``."""
    name = name_of(loops.tensor(op))
    loops.check_queries(queries, name)
    between = loops.numbers.of(loops.numbers.number(stride) * loops.rows, f"stride_{name}_tiles", PITCH)
    tiles = loops.tiles
    return [] if tiles == 1 else [Mode(size=tiles, stride=between, at=_tile_of_head(loops))]


def rows_between(loops: Loops, stride: int, pitch: int, name: str) -> int:
    """Return the rows that lie between two elements with a distance of ``stride``. Launches check that these are whole."""
    if is_known(stride) and is_known(pitch):
        if stride % pitch:
            raise Refusal(f"{name} has pages every {stride} elements, which is no multiple of the {pitch} of a row")
        return stride // pitch
    one, other = (loops.numbers.number(each) for each in (stride, pitch))
    loops.numbers.units.setdefault(loops.numbers.of(one % other + 1, f"rest_{name}"))
    return loops.numbers.of(one // other, f"rows_{name}")


def _core(loops: Loops, value: Operand) -> Op:
    """Return the op that makes a value, without casts. Raises ``Refusal``."""
    made = loops.stripped(value)
    while made is not None and made.attrs == PointwiseAttrs("cast"):
        made = loops.stripped(made.operands[0])
    if made is None:
        raise Refusal("an index that is carried from one block of keys to the next is not implemented")
    return made


def _operand_of(loops: Loops, value: Operand, names: tuple[str, ...]) -> int | None:
    """Return the positive integer that is the second operand of an op of these names, or None."""
    if not isinstance(value, Value) or loops.stripped(value) is None:
        return None
    made = _core(loops, value)
    number = made.operands[1] if isinstance(made.attrs, PointwiseAttrs) and made.attrs.name in names else None
    return number if isinstance(number, int) and number > 0 else None


def _product_of(loops: Loops, value: Operand) -> tuple[Op, int] | None:
    """Return the load and the integer whose product a value is, or None."""
    if not isinstance(value, Value) or loops.stripped(value) is None:
        return None
    number, load = _operand_of(loops, value, ("mul",)), _core(loops, value)
    if number is not None and isinstance(load.operands[0], Value):
        load = _core(loops, load.operands[0])
    return (load, number or 1) if load.kind == "load" else None


def _table(loops: Loops, load: Op, size: int) -> tuple[Source, int] | None:
    """Return the source that a load of page numbers is, and its number of pages, or None."""
    attrs, tensor = load.attributes(MemoryAttrs), loops.tensor(load)
    modes, pitch, most = list[Mode](), None, 0
    for at, index in enumerate(attrs.indices):
        shape = loops.numbers.of(tensor.shape[at], f"size_{name_of(tensor)}_{at}")
        stride = loops.numbers.of(tensor.strides[at], f"stride_{name_of(tensor)}_{at}", PITCH)
        if index.kind == "tensor" and index.operand is not None and loops.blocks(load.operands[index.operand]):
            value = load.operands[index.operand]
            if _operand_of(loops, value, ("floordiv",)) != size or pitch is not None:
                return None
            if tile_of(loops, _core(loops, value).operands[0]) != loops.keys:
                return None
            pitch, most = stride, shape
            continue
        if index.kind == "scalar" and index.operand is not None and _is_page(loops, load.operands[index.operand], size):
            if pitch is not None or not fixed_at(index.shift, 0):
                return None
            pitch, most = stride, shape
            continue
        block, row = _block_of(loops, load, index)
        if block is not None and block not in loops.heads:
            return None
        of_head = None if block is None else Place("axis", (loops.heads.index(block),))
        place = _place_of(loops, load, index) if of_head is None else added(of_head, row)
        modes.append(Mode(size=shape, stride=stride, at=place))
    if pitch is None or attrs.mask is not None or dtype_name(tensor.dtype) not in INTEGERS:
        return None
    table = Source(
        name=f"{name_of(tensor)}_of_pages",
        kind="key",
        dtype=dtype_name(tensor.dtype),
        pitches=(0, pitch),
        modes=tuple(modes),
    )
    return table, most


def _is_page(loops: Loops, value: Operand, size: int) -> bool:
    """Return whether a value is the number of a tile of ``size`` keys."""
    made = loops.stripped(value)
    begin = made.operands[0] if made is not None and _operand_of(loops, value, ("floordiv",)) == size else None
    number = is_position(made, ("id",)) if begin is None else is_position(loops.stripped(begin), ("begin",))
    return number == loops.keys and loops.program.blocks[loops.keys].size == size


def _block_of(loops: Loops, op: Op, index: Index) -> tuple[int | None, Place]:
    """Return the block of an index that is a tile, and what is added to it; None for an index of one element."""
    if index.kind == "block":
        if index.operand is None and equal(index.shift, 0):
            return index.block, ZERO
        row = ZERO if index.operand is None else loaded_value(loops, op.operands[index.operand])
        moved = row is not None and isinstance(index.shift, int)
        if moved and (row != ZERO or index.block in loops.heads):
            return index.block, added(row, Place("number", (index.shift,)))  # type: ignore[arg-type]
        raise Refusal(f"{loops.tensor(op).name} is indexed by a tile plus an offset, which is not implemented")
    if index.kind == "scalar":
        return None, ZERO
    made = loops.stripped(op.operands[index.operand]) if index.operand is not None else None
    if made is not None and made.kind == "iota" and (not made.attrs.relative or _is_whole(loops, made)):
        return int(made.attrs.block), ZERO
    if made is not None and not loops.blocks(made.result):
        return None, ZERO
    found = None if made is None else _moved_tile(loops, made)
    if found is not None:
        return found
    raise Refusal(f"{loops.tensor(op).name} is indexed by computed positions, which is not implemented")


def _moved_tile(loops: Loops, made: Op) -> tuple[int, Place] | None:
    """Return the block and the loaded integer that a value adds to its indices, or None."""
    if made.attrs != PointwiseAttrs("add"):
        return None
    for one, other in (made.operands, made.operands[::-1]):
        block, row = tile_of(loops, one), loaded_value(loops, other)
        if block is not None and row is not None:
            return block, row
    return None


def computed_index(loops: Loops, op: Op) -> int | None:
    """Return the number of the one index of a load that is computed from positions, or loaded, for each element, or None."""
    found = []
    for at, index in enumerate(op.attributes(MemoryAttrs).indices):
        value = op.operands[index.operand] if index.kind == "tensor" and index.operand is not None else None
        made = None if value is None else _core(loops, value)
        plain = made is None or made.kind == "iota" or not loops.blocks(made.result)
        if made is not None and not plain and _moved_tile(loops, made) is None and pages_of(loops, op, index) is None:
            found.append(at)
    return found[0] if len(found) == 1 else None


def tile_of(loops: Loops, value: Operand) -> int | None:
    """Return the block whose indices a value is, through views and casts, or None."""
    made = loops.stripped(value)
    while made is not None and made.attrs == PointwiseAttrs("cast") and not made.result.dtype.is_floating_point:
        made = loops.stripped(made.operands[0])
    return int(made.attrs.block) if made is not None and made.kind == "iota" and not made.attrs.relative else None


def _ends_of_mask(loops: Loops, mask: Operand, name: str) -> dict[int, Place]:
    """Return the ends of the indices that a mask lets pass, by block. Raises ``Refusal``."""
    ends = dict[int, Place]()
    for condition, seen in terms_of_condition(loops, mask, True):
        found = end_of_indices(loops, condition, seen)
        if found is None or found[0] in ends:
            raise Refusal(
                f"{name} is accessed with a mask of the user's; implemented are those of indices below an integer that is"
                " loaded for each head"
            )
        ends |= [found]
    return ends


def terms_of_condition(loops: Loops, condition: Operand, seen: bool) -> list[tuple[Operand, bool]]:
    """Return the conditions that together make up one, and whether each has to be true."""
    made = loops.stripped(condition)
    name = made.attrs.name if made is not None and isinstance(made.attrs, PointwiseAttrs) else ""
    if made is not None and name in ("logical_not", "bitwise_not"):
        return terms_of_condition(loops, made.operands[0], not seen)
    if made is not None and name in (("bitwise_and", "logical_and") if seen else ("bitwise_or", "logical_or")):
        return [term for each in made.operands for term in terms_of_condition(loops, each, seen)]
    return [(condition, seen)]


def end_of_indices(loops: Loops, condition: Operand, seen: bool) -> tuple[int, Place] | None:
    """Return the block whose indices are below a loaded integer of a head if a condition is ``seen``, and that integer."""
    made = loops.stripped(condition)
    name = made.attrs.name if made is not None and isinstance(made.attrs, PointwiseAttrs) else ""
    if made is None or name not in ("lt", "gt", "le", "ge"):
        return None
    one, other = made.operands if name in ("lt", "ge") else made.operands[::-1]
    block, place = tile_of(loops, one), loaded_value(loops, other)
    below = name in (("lt", "gt") if seen else ("ge", "le"))
    return (block, place) if below and block is not None and place is not None else None


def loaded_value(loops: Loops, value: Operand) -> Place | None:
    """Return an integer that is computed from those that are loaded for each head, and from its coordinates, or None."""
    if not isinstance(value, Value) or value.dtype.is_floating_point or loops.blocks(value):
        return None
    if not _varies(loops, value):  # numbers get names where they are read
        return None
    try:
        place = place_of_value(loops, value, "a loop")
    except Refusal:
        return None
    return place if place.coordinates else None


def _varies(loops: Loops, value: Operand) -> bool:
    """Return whether an integer is computed from loads, or from positions of heads."""
    made = loops.stripped(value)
    if made is None or made.kind == "load" or is_position(made, POSITION) in loops.heads or _is_number(loops, made):
        return made is not None
    return any(_varies(loops, each) for each in made.operands)


def first_loaded(loops: Loops) -> int:
    """Return the number of the first coordinate of a head that is a loaded integer."""
    return loops.tile_axis + bool(loops.rows) or 1


def _tile_of_head(loops: Loops) -> Place:
    return Place("axis", (loops.tile_axis,))


def _is_number(loops: Loops, made: Op | None) -> bool:
    """Return whether an op is the number of a tile of queries that is a coordinate of its head."""
    return bool(loops.rows) and is_position(made, ("id",)) == loops.queries


def _loaded(loops: Loops, op: Op) -> Place:
    """Return an integer that is loaded for each head, as a coordinate. Raises ``Refusal``."""
    access = access_of(loops, op)
    access.check_plain()
    check_reach(access)
    name = name_of(access.tensor)
    source = Source(
        name=f"{name}_of_heads",
        kind="head",
        dtype=dtype_name(access.tensor.dtype),
        offset=access.offset,
        modes=access.modes,
    )
    while any(each.name == source.name and each != source for each in loops.loaded):
        source = replace(source, name=f"{source.name}_more")
    if source.dtype not in INTEGERS or access.strides:
        raise Refusal(f"{access.tensor.name} in {source.dtype} as an index is not implemented")
    loops.loaded.setdefault(source, access.tensor.id)
    return Place("axis", (first_loaded(loops) + [*loops.loaded].index(source),))


def added(one: Place, other: Place) -> Place:
    """Return the sum of two places."""
    return other if one == ZERO else one if other == ZERO else Place("add", (one, other))


def subtracted(one: Place, other: Place) -> Place:
    """Return the difference of two places."""
    if one == ZERO and other.op == "sub":
        (first, second) = other.arguments
        assert isinstance(first, Place) and isinstance(second, Place)
        return subtracted(second, first)
    return one if other == ZERO else Place("sub", (one, other))


def _is_whole(loops: Loops, made: Op) -> bool:
    """Return whether an iota counts all indices of a dimension that has no tiles."""
    attrs = made.attrs
    return (attrs.start, attrs.step) == (0, 1) and loops.program.blocks[attrs.block].kind == "full"


def _place_of(loops: Loops, op: Op, index: Index) -> Place:
    """Return the index of one element, as a function of the head."""
    if not isinstance(index.shift, int):
        raise Refusal(f"the index of {loops.tensor(op).name} is known only at launch")
    if index.operand is None:
        return Place("number", (index.shift,))
    place = place_of_value(loops, op.operands[index.operand], loops.tensor(op).name)
    if place.op == "number" and not is_known(place.arguments[0]):  # type: ignore[arg-type]
        raise Refusal(f"the index of {loops.tensor(op).name} is known only at launch")
    return place if fixed_at(index.shift, 0) else Place("add", (place, Place("number", (index.shift,))))


def place_of_value(loops: Loops, value: Operand, name: str) -> Place:
    """Return an integer of the program as a function of the head. Raises ``Refusal``."""
    if not isinstance(value, Value):
        return Place("number", (int(value),))
    made = loops.stripped(value)
    block = is_position(made, POSITION)
    if block is not None and block in loops.heads:
        return Place("axis", (loops.heads.index(block),))
    if _is_number(loops, made):
        return _tile_of_head(loops)
    if made is not None and made.kind == "iota" and made.attrs.block in loops.heads and not made.attrs.relative:
        return Place("axis", (loops.heads.index(made.attrs.block),))
    if made is not None and made.kind == "number" and made.attributes(NumberAttrs).expr.kind is int:
        return Place("number", (loops.numbers.of(made.attributes(NumberAttrs).expr, "size_number"),))
    if made is not None and made.kind == "full":
        return place_of_value(loops, made.operands[0], name)
    if made is not None and made.kind == "load" and not loops.blocks(made.result):
        return _loaded(loops, made)
    if made is not None and isinstance(made.attrs, PointwiseAttrs):
        if made.attrs.name == "cast" and not made.result.dtype.is_floating_point:
            return place_of_value(loops, made.operands[0], name)
        operation = _OPERATIONS.get(made.attrs.name)
        if operation is not None and not made.result.dtype.is_floating_point:
            places = tuple(place_of_value(loops, each, name) for each in made.operands)
            return _folded(Place(operation, places))
    raise Refusal(f"the index of {name} is no arithmetic of the head's indices and numbers")


def _folded(place: Place) -> Place:
    """Return a place without operations that change nothing."""
    one, other = place.arguments
    assert isinstance(one, Place) and isinstance(other, Place)
    if place.op == "mul" and ZERO in (one, other):
        return ZERO
    if place.op == "add":
        return added(one, other)
    if place.op == "sub":
        return subtracted(one, other)
    if place.op in ("floordiv", "mul") and other == Place("number", (1,)):
        return one
    if place.op in ("floordiv", "mod") and not _is_positive(other):
        raise Refusal("an index is divided by a number that is not known to be positive")
    return place


def _is_positive(place: Place) -> bool:
    """Return whether a place is a positive number. Launches check those that only they know."""
    (number, *_) = place.arguments
    return place.op == "number" and isinstance(number, int) and (number > 0 or not is_known(number))


def check_reach(access: Access) -> None:
    """Check that offsets within the tensor fit in 32 bits. Raises ``Refusal``."""
    last = sum(access.strides[block] * (extent - 1) for block, extent in access.extents.items())
    last += sum(mode.stride * (mode.size - 1) for mode in access.modes)
    if last >= MOST_ELEMENTS:
        raise Refusal(f"{access.tensor.name} has offsets of {last} elements; below 2**31 are implemented")
