"""Windows of a grid loop: loads whose places differ by whole rows of its tiles."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ...._support.records import dataclass, field
from ...ir.grammar import Index, IotaAttrs, LoopAxis, MemoryAttrs, Op, Operand, PointwiseAttrs, Value, ViewAttrs
from ...ir.rewrite import Makers

#: Ops of a grid loop each row of which may be a value.
PLAIN_KINDS = frozenset(("number", "tile", "iota", "full", "load", "store", "pointwise", "view"))
#: Least loads of one tensor that rows may share.
LEAST_LOADS = 3
#: A condition that all rows but those at an edge of the tensor fulfil: a comparison of their number with a constant.
_EDGE, _COMPARED = "edge", frozenset(("ge", "gt", "le", "lt"))


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedRows:
    """Loads of tiles with one axis of a grid loop, in groups that differ by whole rows.

    ``rows`` are the different rows of each group relative to a tile's own, and ``slots`` its loads.
    """

    rows: tuple[tuple[int, ...], ...]
    slots: tuple[tuple[int, ...], ...]

    def loads(self, rows: int) -> tuple[int, int]:
        """Return the loads of single rows by a tile of ``rows``: one for each row and tap, and each row once."""
        asked = rows * sum(map(len, self.slots))
        return asked, sum(len({first + row for first in group for row in range(rows)}) for group in self.rows)

    @property
    def shares(self) -> bool:
        """True if rows share loads."""
        asked, made = self.loads(2)
        return made < asked


def is_plain(op: Op) -> bool:
    """Return whether an op only loads, computes elements, or stores, so that each row may be a value."""
    return op.kind in PLAIN_KINDS and not (isinstance(op.attrs, ViewAttrs) and op.attrs.name == "permute")


def is_simple(axis: LoopAxis) -> bool:
    """Return whether an axis has tiles of consecutive indices, in order."""
    special = axis.scalar or axis.jagged or axis.merged or axis.split or axis.aligned or axis.parted or axis.backwards
    return not special


def shared_rows(makers: Makers, ops: Sequence[Op], block: int) -> SharedRows | None:
    """Return the loads with an axis among plain ops; None without such loads."""
    groups: dict[Hashable, set[int]] = {}
    counts: dict[Hashable, list[int]] = {}
    for op in ops:
        if op.kind != "load" or all(dim.block != block for dim in op.result.dims):
            continue
        attrs = op.attributes(MemoryAttrs)
        places = _Places(makers, block)
        parts: tuple[Hashable, ...] = tuple(places.index(op, index) for index in attrs.indices)
        mask = places.of(op.operands[attrs.mask]) if attrs.mask is not None else _EDGE
        row, shifts = places.normal()
        key = (attrs.tensor, attrs.eviction, parts, mask, shifts)
        groups.setdefault(key, set()).add(row)
        counts.setdefault(key, []).append(attrs.slot)
    if not groups:
        return None
    rows = tuple(tuple(sorted(rows)) for rows in groups.values())
    return SharedRows(rows=rows, slots=tuple(map(tuple, counts.values())))


@dataclass
class _Places:
    """Expressions of indices as trees. ``numbers`` has the rows in them, in order: ``scale * row + shift``."""

    makers: Makers
    block: int
    numbers: list[tuple[int, int]] = field(default_factory=list)

    def normal(self) -> tuple[int, Hashable]:
        """Return the first number's row, and all numbers relative to it."""
        if not self.numbers:
            return 0, ()
        scale, shift = self.numbers[0]
        row = shift // scale if scale else 0
        return row, tuple((s, c - s * row) for s, c in self.numbers)

    def index(self, op: Op, index: Index) -> Hashable:
        operand = op.operands[index.operand] if index.operand is not None else None
        shift = index.shift
        if index.kind == "block" and index.block == self.block and isinstance(shift, int):
            self.numbers.append((1, shift))
            return "row", None if operand is None else self.of(operand)
        inner = None if operand is None else self.of(operand)
        return index.kind, index.block, index.positions, repr(shift), inner

    def of(self, operand: Operand) -> Hashable:
        """Return the tree of an operand."""
        linear = self.linear(operand)
        if linear is not None:
            self.numbers.append(linear)
            return "row"
        if not isinstance(operand, Value):
            return type(operand), repr(operand)
        op = self.makers.of(operand)
        if op is None or op.kind not in ("pointwise", "view"):
            return operand.number
        name = op.attrs.name
        if name in _COMPARED and type(op.operands[1]) is int and self.linear(op.operands[0]) is not None:
            return _EDGE
        parts = tuple(map(self.of, op.operands))
        if op.kind == "view":
            return _EDGE if parts == (_EDGE,) else ("view", op.attrs, operand.dims, parts)
        if name in ("logical_and", "bitwise_and"):
            parts = tuple(part for part in parts if part != _EDGE)
            return parts[0] if len(parts) == 1 else parts or _EDGE
        return name, operand.dims, parts

    def linear(self, operand: Operand) -> tuple[int, int] | None:
        """Return the scale and the shift of a multiple of a row's number; None for anything else."""
        op = self.makers.of(operand)
        if op is None:
            return None
        if isinstance(op.attrs, IotaAttrs):
            plain = op.attrs.block == self.block and not op.attrs.relative and op.attrs.step == 1 and not op.attrs.start
            return (1, 0) if plain else None
        if not isinstance(op.attrs, PointwiseAttrs) or len(op.operands) != 2:
            return None
        first, other = op.operands
        if (
            type(other) is not int
            or op.attrs.name not in ("add", "sub", "mul")
            or (known := self.linear(first)) is None
        ):
            return None
        scale, shift = known
        if op.attrs.name == "mul":
            return scale * other, shift * other
        return scale, shift + (other if op.attrs.name == "add" else -other)
