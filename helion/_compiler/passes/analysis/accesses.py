"""Alias analysis of a program's memory accesses: which pairs may touch the same element, and in which threads.

Two accesses *conflict* if they may touch the same element and at least one of them writes it. ``apart`` proves that
they do not conflict. ``same_thread`` proves that, if they do, the instruction order of one thread preserves the source
order. Both return False if in doubt.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ...._shapes import Number, number_key
from ...._support.records import dataclass, field, replace
from ...ir.effects import is_fence, own_effects
from ...ir.grammar import (
    AddressAttrs,
    ForAttrs,
    HostTensor,
    Index,
    InlineAttrs,
    LoopAxis,
    MemoryAttrs,
    NumberAttrs,
    Op,
    Operand,
    OperandRef,
    Program,
    Region,
    Root,
    TileAttrs,
    Value,
)
from ...ir.ops import OPS
from ...ir.rewrite import Makers
from .layouts import are_apart, is_injective


@dataclass(frozen=True, kw_only=True)
class Launched:
    """Properties of a program's threads under a config.

    ``lanes`` is the minimal number of elements of each block; ``threads`` the maximal number of threads of a program.
    ``steady``: no loads move to other iterations or threads (no pipelining, no warp specialization). ``block_accesses``
    are the slots of accesses that may not use pointers.
    """

    lanes: Mapping[int, int]
    threads: int
    steady: bool
    block_accesses: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Coordinate:
    """Address of an access in one dimension of a tensor.

    ``loop`` gives ``block`` its position; it is 0 for a grid or without a block. ``value`` is the operand, ``made_in``
    the loops around its definition. ``span`` has the keys of the first index and of the end of the indices of all
    lanes, if known.
    """

    kind: str
    block: int | None
    loop: int
    positions: tuple[int, ...]
    value: int | None
    made_in: frozenset[int]
    shift: Any
    span: tuple[Any, Any] | None = None

    @property
    def loops(self) -> frozenset[int]:
        """The loops whose iterations change the coordinate."""
        return self.made_in | {self.loop} if self.loop else self.made_in


@dataclass(frozen=True, eq=False)
class Access:
    """One op that touches the memory ``storage``; None is the memory around a fence. ``attrs`` is None for the user's
    inline source, which may touch all of the storage.

    ``loops`` are those around it, the outermost first. ``path`` has the loops and branches, as (op, region) pairs.
    Accesses of one root with equal coordinates have the same ``place``. ``constants`` has the constant subscript of
    each dimension, if any. It is empty for tensors in which different subscripts may be one element.
    """

    op: Op
    storage: int | None
    attrs: MemoryAttrs | None
    reads: bool
    writes: bool
    at: tuple[Coordinate, ...]
    loops: tuple[int, ...]
    path: tuple[tuple[int, int], ...]
    place: int = 0
    constants: tuple[int | None, ...] = ()

    @property
    def is_atomic(self) -> bool:
        return self.op.kind == "atomic"

    def differs(self, other: Access) -> bool:
        """Return whether the two accesses have different constant subscripts in one dimension, so that they never
        conflict."""
        if not self.constants or not other.constants or self.attrs.tensor != other.attrs.tensor:  # type: ignore[union-attr]
            return False
        return any(
            a != b and a is not None and b is not None for a, b in zip(self.constants, other.constants, strict=True)
        )


@dataclass(frozen=True)
class Since:
    """Control flow between two accesses: a later iteration of loop ``later`` began; control left the loops ``left``,
    and perhaps entered them again."""

    later: int = 0
    left: frozenset[int] = frozenset()

    @property
    def loops(self) -> frozenset[int]:
        return self.left | {self.later} if self.later else self.left


NOW = Since()


@dataclass
class Accesses:
    """The accesses of one root, by op, and the data that proofs about them need."""

    program: Program
    launched: Launched
    grid: Mapping[int, LoopAxis]
    of: dict[int, list[Access]] = field(default_factory=dict)
    makers: Makers = field(default_factory=lambda: Makers({}))
    loop_ops: dict[int, Op] = field(default_factory=dict)
    #: Program order of ops.
    numbers: dict[int, int] = field(default_factory=dict)
    _around: dict[int, frozenset[int]] = field(default_factory=dict)
    _users: dict[int, list[Op]] = field(default_factory=dict)
    _yielded: Counter[int] = field(default_factory=Counter)
    _apart: dict[int, bool] = field(default_factory=dict)
    _places: dict[tuple[Coordinate, ...], int] = field(default_factory=dict)
    #: For each value, other values that do not depend on it.
    _free: dict[int, set[int]] = field(default_factory=dict)
    _narrowest: int = 16
    _has_dot: bool = False

    @classmethod
    def collect(cls, program: Program, root: Root, launched: Launched) -> Accesses:
        made = cls(program, launched, {axis.block: axis for axis in root.axes})
        made._region(root.body, (), ())
        return made

    def all(self) -> Iterator[Access]:
        for found in self.of.values():
            yield from found

    # --- collecting ---------------------------------------------------------------------------------------------------

    def _region(self, region: Region, loops: tuple[int, ...], path: tuple[tuple[int, int], ...]) -> None:
        for param in region.params:
            self._around[param.number] = frozenset(loops)
        for op in region.ops:
            self.numbers[op.number] = len(self.numbers)
            for value in op.values():
                self._users.setdefault(value.number, []).append(op)
            for result in op.results:
                self.makers.ops[result.number] = op
                self._around[result.number] = frozenset(loops)
            self._has_dot |= op.kind == "dot"
            self._note(op, loops, path)
            inner = loops
            if OPS[op.kind].is_loop:
                self.loop_ops[op.number] = op
                inner = (*loops, op.number)
            for number, child in enumerate(op.regions):
                self._region(child, inner, (*path, (op.number, number)))
        self._yielded.update(v.number for v in region.results if isinstance(v, Value))

    def _note(self, op: Op, loops: tuple[int, ...], path: tuple[tuple[int, int], ...]) -> None:
        attrs = op.attrs if isinstance(op.attrs, MemoryAttrs) else None
        if attrs is not None:
            self._narrowest = min(self._narrowest, self.program.tensors[attrs.tensor].dtype.itemsize)
        elif isinstance(op.attrs, AddressAttrs):
            self._narrowest = min(self._narrowest, op.attrs.dtype.itemsize)
        elif isinstance(op.attrs, InlineAttrs):
            self._narrowest = 0
        elif not is_fence(op):
            return
        at = tuple(self._coordinate(op, index, loops) for index in attrs.indices) if attrs is not None else ()
        place = self._places.setdefault(at, len(self._places))
        constants = self._constants(attrs, at) if attrs is not None else ()
        where = Access(op, None, None, False, False, at, loops, path, place)  # the effect of a fence has no constants
        self.of[op.number] = [
            replace(where, reads=effect.reads, writes=effect.writes)
            if effect.fence
            else replace(
                where,
                storage=effect.storage,
                attrs=attrs,
                reads=effect.reads,
                writes=effect.writes,
                constants=constants,
            )
            for effect in own_effects(self.program, op)
            if effect.fence or effect.storage is not None
        ]

    def _constants(self, attrs: MemoryAttrs, at: tuple[Coordinate, ...]) -> tuple[int | None, ...]:
        merged = any(c.block is not None and self.program.blocks[c.block].merged for c in at)
        if merged or not self.is_injective(self.program.tensors[attrs.tensor]):
            return ()
        plain = (c.kind == "scalar" and c.block is None and c.value is None and isinstance(c.shift, int) for c in at)
        found = tuple(c.shift if known else None for c, known in zip(at, plain, strict=True))
        return found if any(number is not None for number in found) else ()

    def _coordinate(self, op: Op, index: Index, loops: tuple[int, ...]) -> Coordinate:
        value: Operand = op.operands[index.operand] if index.operand is not None else 0
        kind, block, shift = index.kind, index.block if index.kind == "block" else None, index.shift
        if kind != "tensor":
            value, shift = self._without_constants(value, shift)
        maker = self.makers.of(value)
        loop = self._loop_of(block, loops)
        if not isinstance(value, Value):
            span = self._span(block, loop, shift)
            return Coordinate(kind, block, loop, index.positions, None, frozenset(), number_key(shift), span)
        attrs = maker.attrs if maker is not None and kind == "scalar" else None
        if isinstance(attrs, TileAttrs) and attrs.field in ("index", "begin", "id"):
            around = self._around[value.number]
            loop = self._loop_of(attrs.block, tuple(at for at in loops if at in around))
            span = self._span(attrs.block, loop, shift) if attrs.field != "id" else None
            return Coordinate(
                f"scalar {attrs.field}", attrs.block, loop, (), None, frozenset(), number_key(shift), span
            )
        made_in = self._around.get(value.number, frozenset(loops))
        return Coordinate(kind, block, loop, index.positions, value.number, made_in, number_key(shift))

    def _without_constants(self, value: Operand, shift: Number) -> tuple[Operand, Number]:
        """Return a scalar and a shift with the same sum, with the part that the host knows in the shift."""
        while isinstance(value, Value) and (op := self.makers.of(value)) is not None:
            numbers = [o for o in op.operands if type(o) is int]
            if isinstance(op.attrs, NumberAttrs):
                return 0, _sum(shift, op.attrs.expr)
            if op.kind != "pointwise" or len(numbers) != 1 or len(op.operands) != 2:
                break
            if op.attrs.name == "sub" and op.operands[1] is numbers[0]:
                shift = _sum(shift, -numbers[0])
            elif op.attrs.name == "add":
                shift = _sum(shift, numbers[0])
            else:
                break
            value = next(op.values())
        return (value, shift) if isinstance(value, Value) else (0, _sum(shift, value))

    def _loop_of(self, block: int | None, loops: tuple[int, ...]) -> int:
        if block is None:
            return 0
        part = self.program.blocks[block].part
        wanted = block if part is None else part.block
        for loop in reversed(loops):
            attrs = self.loop_ops[loop].attrs
            if isinstance(attrs, ForAttrs) and any(axis.block == wanted for axis in attrs.axes):
                return loop
        return 0

    def _span(self, block: int | None, loop: int, shift: Number) -> tuple[Any, Any] | None:
        begin: Any = 0
        end: Any = 1
        if block is not None:
            whole = self._whole(block)
            axes = self.loop_ops[loop].attrs.axes if loop else tuple(self.grid.values())
            axis = next((axis for axis in axes if axis.block == whole), None)
            full = self.program.blocks[whole].extent if self.program.blocks[whole].kind == "full" else None
            begin, end = (axis.begin, axis.end) if axis is not None else (0, full)
        if end is None or isinstance(begin, OperandRef) or isinstance(end, OperandRef):
            return None
        return number_key(_sum(begin, shift)), number_key(_sum(end, shift))

    # --- different elements -------------------------------------------------------------------------------------------

    def apart(self, first: Access, second: Access, since: Since) -> bool:
        """Return whether the two never touch one element, with control flow ``since`` from the first to the second."""
        if first.attrs is None or second.attrs is None:
            return False
        if first.attrs.tensor != second.attrs.tensor:
            one, other = (self.program.tensors[each.attrs.tensor] for each in (first, second) if each.attrs is not None)
            return not (self._has_merged(first) or self._has_merged(second)) and are_apart(one, other)
        if first.differs(second):
            return True
        tensor = self.program.tensors[first.attrs.tensor]
        if not self.is_injective(tensor) or self._has_merged(first) or self._has_merged(second):
            return False
        pairs = list(zip(first.at, second.at, strict=True))
        if any(self._differ(one, other, since) or _behind(one, other) or _behind(other, one) for one, other in pairs):
            return True
        if not since.later:
            return False
        attrs = self.loop_ops[since.later].attrs
        # At least one axis of a loop has another tile in a later iteration.
        return isinstance(attrs, ForAttrs) and all(
            any(self._moves(one, other, axis.block, since) for one, other in pairs) for axis in attrs.axes
        )

    def _has_merged(self, access: Access) -> bool:
        """Return whether lanes count through several merged dimensions, past the end of the indexed one."""
        return any(c.block is not None and bool(self.program.blocks[c.block].merged) for c in access.at)

    def _differ(self, one: Coordinate, other: Coordinate, since: Since) -> bool:
        if (one.loops | other.loops) & since.loops or (one.value, one.loop) != (other.value, other.loop):
            return False
        if one.kind == other.kind and one.kind.startswith("scalar") and one.block == other.block:
            numbers = isinstance(one.shift, int) and isinstance(other.shift, int)
            return numbers and one.shift != other.shift
        if one.kind == other.kind == "block":
            return self._lanes_differ(one, other)
        return False

    def _lanes_differ(self, one: Coordinate, other: Coordinate) -> bool:
        """Return whether coordinates differ for lanes of one iteration of a loop."""
        assert one.block is not None and other.block is not None
        a, b = (self.program.blocks[c.block].part for c in (one, other) if c.block is not None)
        if a is not None and b is not None:
            return (
                number_key(one.shift) == number_key(other.shift)
                and (a.block, a.count) == (b.block, b.count)
                and a.at != b.at
            )
        # For a merged dimension, one tile covers any of its indices.
        merged = any(one.block in block.merged for block in self.program.blocks)
        if one.block != other.block or self.program.blocks[one.block].kind != "tile" or merged:
            return False
        numbers = isinstance(one.shift, int) and isinstance(other.shift, int)
        return numbers and abs(one.shift - other.shift) >= self.launched.lanes.get(one.block, math.inf)

    def _moves(self, one: Coordinate, other: Coordinate, block: int, since: Since) -> bool:
        """Return whether both coordinates follow the tiles of ``block``, whose loop is now at another tile."""
        if one.loop != since.later or other.loop != since.later or one.block is None or other.block is None:
            return False
        if (one.kind, one.value, number_key(one.shift)) != (other.kind, other.value, number_key(other.shift)):
            return False
        if one.made_in & since.loops or one.kind == "tensor":
            return False
        return self._whole(one.block) == self._whole(other.block) == block

    def _whole(self, block: int) -> int:
        part = self.program.blocks[block].part
        return block if part is None else part.block

    def is_injective(self, tensor: HostTensor) -> bool:
        """Return whether different subscripts within the shape are certainly different elements."""
        known = self._apart.get(tensor.id)
        if known is None:
            known = self._apart[tensor.id] = is_injective(tensor)
        return known

    # --- one thread ---------------------------------------------------------------------------------------------------

    def same_thread(self, first: Access, second: Access, since: Since) -> bool:
        """Return whether every lane of the second conflicts only with the same lane of the first, in an order that one
        thread keeps.

        There are three sufficient conditions on a GPU:

        - *The stored value depends on the loaded one*, lane by lane, and one thread loads each element. The store
          cannot begin before the load ends, whichever threads execute them.
        - The same holds if several threads load an element, because there are more threads than elements, and only the
          store uses the result. The storing thread has loaded before, and the other threads' results have no use.
        - *Layouts agree*: the target's compiler distributes accesses over threads by pointers and element width. So the
          same threads access the same pointers. No narrower element in the kernel may make loads wider than stores, and
          no pass may move loads to other threads.
        """
        if first.is_atomic or second.is_atomic or not self._same_lanes(first, second, since):
            return False
        many = self._elements(first) >= self.launched.threads
        if many and self._layouts_agree(first, second):
            return True
        overwrites = first.reads and not second.reads and self._follows(first, second, since)
        return overwrites and (many or self._flows_only(first.op, second.op)) and self._made_of(first.op, second.op)

    def _same_lanes(self, first: Access, second: Access, since: Since) -> bool:
        if first.attrs is None or second.attrs is None:
            return False
        if first.attrs.tensor != second.attrs.tensor or first.at != second.at:
            return False
        if first.op.result.dims != second.op.result.dims or first.op.result.dtype != second.op.result.dtype:
            return False
        if any(c.loops & since.loops for c in first.at):
            return False
        return self.is_injective(self.program.tensors[first.attrs.tensor]) and self._lanes_apart(first)

    def _lanes_apart(self, access: Access) -> bool:
        """Return whether different lanes of an access are different elements."""
        blocks = {(c.block, p) for c in access.at if c.kind == "block" for p in c.positions}
        for position, dim in enumerate(access.op.result.dims):
            if dim.is_one:
                continue
            if dim.block is None:
                return False
            merged = self.program.blocks[dim.block].merged
            extents = {m: self.program.blocks[m].extent for m in merged}
            axes = [m for m, extent in extents.items() if not (isinstance(extent, int) and extent == 1)]
            if (dim.block, position) not in blocks and not (axes and all((m, position) in blocks for m in axes)):
                return False
        return all(c.kind != "tensor" for c in access.at)

    def _elements(self, access: Access) -> int:
        sizes = (math.prod((self.launched.lanes[b] for b in d.blocks), start=d.const) for d in access.op.result.dims)
        return math.prod(sizes)

    def _follows(self, first: Access, second: Access, since: Since) -> bool:
        """Return whether the second access follows the first in its region, or in a branch there, in the same
        iteration."""
        depth = len(first.path)
        deeper = second.path[depth:]
        return (
            not since.loops and second.path[:depth] == first.path and not any(at in self.loop_ops for at, _ in deeper)
        )

    def _layouts_agree(self, first: Access, second: Access) -> bool:
        assert first.attrs is not None and second.attrs is not None
        if (
            not self.launched.steady
            or self._has_dot
            or {first.attrs.slot, second.attrs.slot} & self.launched.block_accesses
        ):
            return False
        return self.program.tensors[first.attrs.tensor].dtype.itemsize <= self._narrowest

    # --- dataflow from loads to stores --------------------------------------------------------------------------------

    def _made_of(self, load: Op, store: Op) -> bool:
        """Return whether each stored lane depends on the same loaded lane, in a way that no compiler can simplify."""
        known: dict[int, bool] = {}
        source, stored = load.result, store.operands[0]

        def is_lane(operand: Operand) -> bool:
            return operand is source or (isinstance(operand, Value) and known.get(operand.number, False))

        waiting: list[tuple[Operand, bool]] = [(stored, False)]
        while waiting:
            value, ready = waiting.pop()
            op = self.makers.of(value)
            if value is source or op is None or not isinstance(value, Value) or value.dims != source.dims:
                continue
            if ready:
                found = [operand for operand in op.operands if is_lane(operand)]
                known[value.number] = bool(found) and self._keeps(op, found, source)
            elif value.number not in known:
                known[value.number] = False
                waiting.append((value, True))
                waiting += ((operand, False) for operand in op.operands)
        return is_lane(stored)

    def _keeps(self, op: Op, found: list[Operand], source: Value) -> bool:
        """Return whether the result of an op depends on the lanes ``found`` of its operands, whatever the others
        are."""
        if op.kind == "mask":
            return found[0] is op.operands[0]
        if op.kind != "pointwise":
            return False
        name, values = op.attrs.name, [o for o in found if isinstance(o, Value)]
        if name == "where":
            return all(any(o is v for v in values) for o in op.operands[1:])
        numbers = [o for o in op.operands if not isinstance(o, Value)]
        if all(v.dtype.is_floating_point for v in (op.result, *values)):
            return name in _KEPT_FLOATS and all(map(math.isfinite, numbers))
        others = [o for o in op.operands if o is not values[0]]
        if torch.bool in (op.result.dtype, values[0].dtype) or any(self._depends(o, source) for o in others):
            return False
        small = name == "mul" and len(numbers) == 1 and 0 < abs(numbers[0]) < 2**7
        return small or (name in _KEPT and len(others) == len(op.operands) - 1)

    def _depends(self, value: Operand, source: Value) -> bool:
        """Return whether a value depends on another."""
        free = self._free.setdefault(source.number, set())
        seen: set[int] = set()
        stack = [value]
        while stack:
            one = stack.pop()
            if one is source:
                return True
            if not isinstance(one, Value) or one.number in seen or one.number in free:
                continue
            seen.add(one.number)
            op = self.makers.of(one)
            if op is None:
                return True  # carried by a loop: unknown
            stack += op.operands
            stack += (v for region in op.regions for inner in region.walk() for v in inner.values())
            stack += (v for region in op.regions for v in region.results)
        free |= seen
        return False

    def _flows_only(self, load: Op, store: Op) -> bool:
        """Return whether the loaded value is used only for the same lane of the stored value."""
        stack, seen = [load.result], {load.result.number}
        while stack:
            value = stack.pop()
            if self._yielded[value.number]:
                return False
            for user in self._users.get(value.number, ()):
                if user is store:
                    continue
                if user.kind not in ("pointwise", "mask") or user.result.dims != load.result.dims:
                    return False
                if user.result.number not in seen:
                    seen.add(user.result.number)
                    stack.append(user.result)
        return True


#: Float operations whose result depends on each operand, whatever the other is.
_KEPT_FLOATS = frozenset(
    ("add", "sub", "mul", "div", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "neg",
     "abs", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "relu",
     "erf", "erfc", "floor", "ceil", "round", "trunc", "frac", "maximum", "minimum", "hypot", "cast")
)  # fmt: skip
#: The same for integers, if the other operand does not depend on the first.
_KEPT = frozenset(("add", "sub", "neg", "cast", "bitwise_xor", "bitwise_not"))


def _sum(a: Number, b: Number) -> Number:
    """Return the sum, without zeros, so that equal sums have equal keys more often."""
    return b if isinstance(a, int) and a == 0 else a if isinstance(b, int) and b == 0 else a + b


def _behind(one: Coordinate, other: Coordinate) -> bool:
    """Return whether all indices of one come after all of the other."""
    if one.span is None or other.span is None:
        return False
    first, end = one.span[0], other.span[1]
    return first == end or (isinstance(first, int) and isinstance(end, int) and first >= end)
