"""Accesses of attention: the matrix of a head, and other inputs and outputs, by their strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....._compiler.ir.grammar import HostTensor, Index, MemoryAttrs, NumberAttrs, Op, Operand, PointwiseAttrs, Value
from ....._shapes import Expr, Number, dtype_name, hint_of
from ...plan.attention.launch import strides_of
from ...plan.attention.numbers import is_known
from ...plan.attention.records import Matrix, Mode, Place, ScoreProblem
from ...plan.dtypes import PITCH
from ...plan.refusal import Refusal
from ..batch import POSITION
from ..names import name_of
from ..numbers import dividing, equal
from .loops import Loops, is_position

MOST_ELEMENTS = 2**31
"""Elements that an offset of 32 bits reaches."""
_OPERATIONS = {"add": "add", "sub": "sub", "mul": "mul", "floordiv": "floordiv", "mod": "mod", "remainder": "mod"}


@dataclass(frozen=True, kw_only=True)
class Access:
    """An accessed tensor: strides by block of its tile's dimensions, and the rest of its dimensions by head."""

    tensor: HostTensor
    strides: dict[int, int]
    extents: dict[int, int]
    offset: int
    modes: tuple[Mode, ...]


def access_of(loops: Loops, op: Op) -> Access:
    """Return the access of a load or store. Raises ``Refusal``."""
    attrs, tensor = op.attributes(MemoryAttrs), loops.tensor(op)
    if attrs.mask is not None:
        raise Refusal(f"{tensor.name} is accessed with a mask of the user's; implemented are whole tiles")
    strides, extents, modes, numbers = dict[int, int](), dict[int, int](), list[Mode](), loops.numbers
    offset: Number = 0
    name = name_of(tensor)
    for at, index in enumerate(attrs.indices):
        shape = numbers.of(tensor.shape[at], f"size_{name}_{at}")
        stride = numbers.of(tensor.strides[at], f"stride_{name}_{at}", PITCH)
        block = _block_of(loops, op, index)
        if block is not None and block not in loops.heads:
            if block in strides:
                raise Refusal(f"{tensor.name} is indexed twice by one tile")
            if index.kind == "tensor" and loops.program.blocks[block].kind == "full" and loops.extent(block) != shape:
                raise Refusal(
                    f"{tensor.name} is indexed by a part of the dimensions of a head, which is not implemented"
                )
            strides[block], extents[block] = stride, shape
            continue
        place = Place("axis", (loops.heads.index(block),)) if block is not None else _place_of(loops, op, index)
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
    return Access(tensor=tensor, strides=strides, extents=extents, offset=start, modes=tuple(modes))


def _block_of(loops: Loops, op: Op, index: Index) -> int | None:
    """Return the block of an index that is a tile, without offset; None for an index of one element."""
    if index.kind == "block":
        if index.operand is None and equal(index.shift, 0):
            return index.block
        raise Refusal(f"{loops.tensor(op).name} is indexed by a tile plus an offset, which is not implemented")
    if index.kind == "scalar":
        return None
    made = loops.stripped(op.operands[index.operand]) if index.operand is not None else None
    if made is not None and made.kind == "iota" and (not made.attrs.relative or _is_whole(loops, made)):
        return int(made.attrs.block)
    if made is not None and not loops.blocks(made.result):
        return None
    raise Refusal(f"{loops.tensor(op).name} is indexed by computed positions, which is not implemented")


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
    return place if index.shift == 0 else Place("add", (place, Place("number", (index.shift,))))


def place_of_value(loops: Loops, value: Operand, name: str) -> Place:
    """Return an integer of the program as a function of the head. Raises ``Refusal``."""
    if not isinstance(value, Value):
        return Place("number", (int(value),))
    made = loops.stripped(value)
    block = is_position(made, POSITION)
    if block is not None and block in loops.heads:
        return Place("axis", (loops.heads.index(block),))
    if made is not None and made.kind == "iota" and made.attrs.block in loops.heads and not made.attrs.relative:
        return Place("axis", (loops.heads.index(made.attrs.block),))
    if made is not None and made.kind == "number" and made.attributes(NumberAttrs).expr.kind is int:
        return Place("number", (loops.numbers.of(made.attributes(NumberAttrs).expr, "size_number"),))
    if made is not None and made.kind == "full":
        return place_of_value(loops, made.operands[0], name)
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
    if place.op in ("floordiv", "mul") and other == Place("number", (1,)):
        assert isinstance(one, Place)
        return one
    if place.op in ("floordiv", "mod") and not (isinstance(other, Place) and _is_positive(other)):
        raise Refusal("an index is divided by a number that is not known to be positive")
    return place


def _is_positive(place: Place) -> bool:
    """Return whether a place is a positive number. Launches check those that only they know."""
    (number, *_) = place.arguments
    return place.op == "number" and isinstance(number, int) and (number > 0 or not is_known(number))


def matrix_of(loops: Loops, op: Op, rows: int, what: str) -> Matrix:
    """Return the matrix of a head whose rows are those of block ``rows``. Raises ``Refusal``."""
    access = access_of(loops, op)
    others = [block for block in access.strides if block != rows]
    if rows not in access.strides or len(others) != 1:
        raise Refusal(f"{access.tensor.name} is no matrix of {what} for each head")
    (columns,) = others
    if not is_known(access.extents[columns]):
        raise Refusal(
            f"{access.tensor.name} has a number of dimensions of a head that is known only at launch; use hl.specialize on it"
        )
    contiguous = access.strides[columns] == 1 or loops.require_one(access.strides[columns])
    if not contiguous and access.extents[columns] > 1:
        raise Refusal(
            f"{access.tensor.name} has a stride of {int(access.strides[columns])} along the dimensions of a head; it must be"
            " contiguous there"
        )
    return Matrix(
        name=name_of(access.tensor),
        dtype=dtype_name(access.tensor.dtype),
        columns=access.extents[columns],
        pitch=access.strides[rows],
        offset=access.offset,
        modes=access.modes,
    )


def check_reach(access: Access) -> None:
    """Check that offsets within the tensor fit in 32 bits. Raises ``Refusal``."""
    last = sum(access.strides[block] * (extent - 1) for block, extent in access.extents.items())
    last += sum(mode.stride * (mode.size - 1) for mode in access.modes)
    if last >= MOST_ELEMENTS:
        raise Refusal(f"{access.tensor.name} has offsets of {last} elements; below 2**31 are implemented")


KINDS = ("number", "tile", "iota", "full", "load", "store", "pointwise", "reduce", "dot", "view", "mask", "for")


def check_storage(loops: Loops, added: Sequence[Op] = ()) -> None:
    """Check that the program only loads and stores, but for the atomics ``added``, and does not read what it writes. Raises
    ``Refusal``."""
    others = [op.kind for op in loops.program.walk() if op.kind not in KINDS and op not in added]
    if others:
        raise Refusal(f"{others[0]} in attention is not implemented")
    used = {loops.tensor(op).storage for op in loops.program.walk() if op.kind in ("load", "store")}
    for op in added:
        if loops.tensor(op).storage in used:
            raise Refusal(f"{loops.tensor(op).name} is added to, and read or stored by the kernel as well")
    read = {loops.tensor(op).storage for op in loops.program.walk() if op.kind == "load"}
    for op in loops.program.walk():
        if op.kind == "store" and (loops.tensor(op).storage in read or op not in loops.root.body.ops):
            raise Refusal(f"{loops.tensor(op).name} is stored in the loop over keys, or read by the kernel as well")


def check_strides(loops: Loops, problem: ScoreProblem) -> None:
    """Check strides of arguments that only launches know: for the bound arguments, TMA takes them. Launches check the others.
    Raises ``Refusal``."""
    for matrix in problem.matrices:
        for name, multiple in strides_of([matrix], []).items():
            number = loops.numbers.expressions[name]
            known = isinstance(number, Expr) and all(
                leaf.args[0] in loops.program.host.symbols for leaf in number.leaves()
            )
            if known and dividing(multiple, number) is None:
                raise Refusal(
                    f"{matrix.name} has a stride or offset of {hint_of(number)} elements; TMA needs a multiple of {multiple}"
                )
