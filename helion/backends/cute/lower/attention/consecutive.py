"""Consecutive loops over the keys of one attention, which become a single loop.

A causal kernel often has two loops: over the keys before the tile of queries without a mask, and over the tile's own keys
with one. Their ranges are adjacent, and their bodies differ in that mask alone. The masked body then runs over both
ranges, if the mask hides nothing of the other one.

A branch around the loops may skip tiles of queries of which masks let no store pass. The kernel skips these by the masks::

    if tile.begin < length:                                        q = hl.load(..)
        q = hl.load(..)                                      →     ..
        ..                                                         hl.store(.., extra_mask=tile.index < length)
        hl.store(.., extra_mask=tile.index < length)
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ....._compiler.ir.grammar import (
    ForAttrs,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    Operand,
    OperandRef,
    PointwiseAttrs,
    Program,
    TileAttrs,
    Value,
)
from ....._compiler.ir.rewrite import Makers, count_uses
from ....._shapes import Dims
from ...plan.attention.numbers import is_known
from ...plan.refusal import Refusal
from ..rewrites.padding import without_padding
from ..rewrites.partials import key_of
from ..rewrites.passes import with_one_pass
from .band import band_of, begin_of_loop
from .loops import loops_of
from .values import is_lowest, name_of_op


def with_joined_loops(program: Program) -> Program:
    """Return the program with one loop for each run of loops over adjacent ranges of keys, and for passes over the same keys.

    A branch around them that skips tiles is gone.
    """
    program = without_padding(without_skipped_tiles(program))
    while (shorter := _with_a_joined_pair(program)) is not None:
        program = shorter
    return with_one_pass(program)


def _with_a_joined_pair(program: Program) -> Program | None:
    if len(program.roots) != 1:
        return None
    (root,) = program.roots
    loops = [op for op in root.body.ops if op.kind == "for"]
    for before, after in itertools.pairwise(loops):
        for low, high in ((before, after), (after, before)):
            pair = _pair(program, before, after, low, high)
            made = None if pair is None else pair.joined()
            if pair is not None and made is not None and pair.hides_nothing(made):
                return made
    return None


def _pair(program: Program, before: Op, after: Op, low: Op, high: Op) -> _Pair | None:
    """Return two loops of which ``after`` continues with the results of ``before``, and ``low`` ends where ``high``
    begins."""
    for loop in (low, high):
        attrs = loop.attributes(ForAttrs)
        if len(attrs.axes) != 1 or not _is_plain(attrs.axes[0]):
            return None
    carried, uses = before.attributes(ForAttrs).carried, count_uses(program)
    places = {value.number: at for at, value in enumerate(before.results)}
    given = after.operands[: after.attributes(ForAttrs).carried]
    order = [places.get(value.number, -1) if isinstance(value, Value) else -1 for value in given]
    if sorted(order) != list(range(carried)) or any(uses[value.number] != 1 for value in before.results):
        return None
    ordered = {at: to for to, at in enumerate(order)}
    pair = _Pair(program, before, after, low, high, ordered)
    return pair if pair.is_adjacent() else None


def _is_plain(axis: LoopAxis) -> bool:
    return not axis.scalar and axis.jagged is None and not axis.merged and axis.split is None and not axis.backwards


class _Pair:
    """Two loops over adjacent ranges of keys, ``low`` and ``high``, in the order ``before`` and ``after``.

    ``order`` has the position of a carried value in ``after``, by that in ``before``.
    """

    def __init__(self, program: Program, before: Op, after: Op, low: Op, high: Op, order: Mapping[int, int]) -> None:
        self.program, self.before, self.after, self.low, self.high = program, before, after, low, high
        self.order = order
        self.makers = Makers.among(program.walk())
        self.axes = tuple(loop.attributes(ForAttrs).axes[0] for loop in (low, high))
        self.hidden: list[tuple[Op, int]] = []
        """Selections of ``high`` that ``low`` does not have, and the operand that ``low`` has instead."""
        self.known: dict[tuple[int, int], bool] = {}

    def is_adjacent(self) -> bool:
        one, other = self._bound(self.low, self.axes[0].end), self._bound(self.high, self.axes[1].begin)
        return self._is_same(one, other)

    def _bound(self, loop: Op, bound: Any) -> Any:
        return loop.operands[bound.at] if isinstance(bound, OperandRef) else bound

    def joined(self) -> Program | None:
        """Return the program with one loop of the body of ``high``, or None if the bodies differ in more than masks."""
        for at, value in enumerate(self.before.regions[0].params):
            pair = value.number, self.after.regions[0].params[self.order[at]].number
            self.known[pair if self.low is self.before else pair[::-1]] = True
        for at, to in self.order.items():
            results = self.before.regions[0].results[at], self.after.regions[0].results[to]
            if not self._is_same(*(results if self.low is self.before else results[::-1])):
                return None
        return self._program()

    def _is_same(self, one: Any, other: Any) -> bool:
        """Return whether an operand of ``low`` is one of ``high`` but for selections, which ``hidden`` gets."""
        if not isinstance(one, Value) or not isinstance(other, Value):
            return type(one) is type(other) and one == other
        pair = one.number, other.number
        if pair not in self.known:
            self.known[pair] = one.number == other.number or self._is_made_alike(one, other)
        return self.known[pair]

    def _is_made_alike(self, one: Value, other: Value) -> bool:
        made, found = self._unmasked(one), self._unmasked(other)
        if made is None or found is None or made.regions or found.regions:
            return False
        if made.kind == found.kind and len(made.operands) == len(found.operands):
            same = key_of(self._renamed(made.attrs)) == key_of(found.attrs)
            same = same and self._has_dims(made.result, found.result)
            if same and all(map(self._is_same, made.operands, found.operands)):
                return True
        if name_of_op(found) != "where":
            return False
        for at in (1, 2):
            if self._is_same(one, found.operands[at]):
                self.hidden.append((found, at))
                return True
        return False

    def _unmasked(self, value: Operand) -> Op | None:
        made = self.makers.of(value)
        while made is not None and made.kind == "mask":
            made = self.makers.of(made.operands[0])
        return made

    def _has_dims(self, one: Value, other: Value) -> bool:
        return one.dtype == other.dtype and self._of_high(one.dims) == other.dims

    def _of_high(self, dims: Dims) -> Dims:
        return tuple(replace(dim, blocks=tuple(map(self._block, dim.blocks))) for dim in dims)

    def _block(self, block: int) -> int:
        low, high = self.axes
        return high.block if block == low.block else block

    def _renamed(self, attrs: Any) -> Any:
        """Return attributes with the block of ``high`` for that of ``low``."""
        if isinstance(attrs, MemoryAttrs):
            indices = tuple(
                index if index.block is None else replace(index, block=self._block(index.block))
                for index in attrs.indices
            )
            return replace(attrs, indices=indices)
        return replace(attrs, block=self._block(attrs.block)) if isinstance(attrs, (IotaAttrs, TileAttrs)) else attrs

    def _program(self) -> Program:
        """Return the program with the body of ``high`` over both ranges, in the place of ``after``."""
        low, high = self.axes
        carried = self.before.operands[: self.before.attributes(ForAttrs).carried]
        results: list[Value] = list(self.after.results)
        if self.high is self.after:
            ordered = {to: carried[at] for at, to in self.order.items()}
            carried = tuple(ordered[to] for to in range(len(carried)))
        else:
            results = [self.after.results[self.order[at]] for at in range(len(carried))]
        bounds = [self._bound(self.low, low.begin), self._bound(self.high, high.end)]
        operands = [*carried]
        refs = []
        for bound in bounds:
            refs.append(OperandRef(len(operands)) if isinstance(bound, Value) else bound)
            operands += [bound] if isinstance(bound, Value) else []
        axis = replace(high, begin=refs[0], end=refs[1])
        made = replace(
            self.high,
            number=self.after.number,
            operands=tuple(operands),
            results=tuple(results),
            attrs=replace(self.high.attributes(ForAttrs), axes=(axis,)),
        )
        (root,) = self.program.roots
        ops = tuple(made if op is self.after else op for op in root.body.ops if op is not self.before)
        return replace(self.program, roots=(replace(root, body=replace(root.body, ops=ops)),))

    def hides_nothing(self, made: Program) -> bool:
        """Return whether the selections of ``high`` are masks that hide no key of the range of ``low``, in any launch."""
        try:
            loops = loops_of(made)
        except Refusal:
            return False
        end = self._bound(self.low, self.axes[0].end)
        past = begin_of_loop(loops, end) if self.hidden and isinstance(end, Value) else None
        for selection, kept in self.hidden:
            band = band_of(loops, selection.operands[0], seen=kept == 1)
            if past is None or band is None or not is_lowest(loops, selection.operands[3 - kept]):
                return False
            if band.has_first or band.last is None or not isinstance(past, int):
                return False
            if not (is_known(band.last) and is_known(past)) or band.last < past - 1:
                return False
        return True


def without_skipped_tiles(program: Program) -> Program:
    """Return the program without a branch around all of its loops that skips tiles of which no element is stored."""
    if len(program.roots) != 1:
        return program
    (root,) = program.roots
    nested = [op for op in root.body.ops if op.regions]
    if [op.kind for op in nested] != ["if"]:
        return program
    (branch,) = nested
    then, other = branch.regions
    makers = Makers.among(program.walk())
    bound = _bound(makers, branch.operands[0], "tile")
    effects = [op for op in then.walk() if op.kind not in _PURE]
    if bound is None or branch.results or other.ops or not effects:
        return program
    if any(op.kind != "store" or bound not in _stored_below(makers, op) for op in effects):
        return program
    at = root.body.ops.index(branch)
    ops = (*root.body.ops[:at], *then.ops, *root.body.ops[at + 1 :])
    return replace(program, roots=(replace(root, body=replace(root.body, ops=ops)),))


_PURE = ("number", "tile", "iota", "full", "load", "pointwise", "reduce", "dot", "view", "mask", "for", "random")


def _stored_below(makers: Makers, store: Op) -> set[tuple[int, int]]:
    """Return the blocks and values of which a store's mask lets indices of the block below the value pass alone."""
    mask = store.attributes(MemoryAttrs).mask
    waiting, found = [] if mask is None else [store.operands[mask]], set[tuple[int, int]]()
    while waiting:
        made = _stripped(makers, waiting.pop())
        if made is not None and made.attrs in (PointwiseAttrs("bitwise_and"), PointwiseAttrs("logical_and")):
            waiting += made.operands
        elif made is not None and (bound := _bound(makers, made.result, "iota")) is not None:
            found.add(bound)
    return found


def _bound(makers: Makers, condition: Operand, kind: str) -> tuple[int, int] | None:
    """Return the block and the value of a condition that the tile's begin, or each index with ``kind`` "iota", is below the
    value."""
    made = _stripped(makers, condition)
    name = made.attrs.name if made is not None and isinstance(made.attrs, PointwiseAttrs) else ""
    if made is None or name not in ("lt", "gt"):
        return None
    low, high = made.operands if name == "lt" else made.operands[::-1]
    position, end = _stripped(makers, low), _scalar(makers, high)
    if position is None or end is None or position.kind != kind:
        return None
    if isinstance(position.attrs, TileAttrs) and position.attrs.field == "begin":
        return position.attrs.block, end.number
    plain = isinstance(position.attrs, IotaAttrs) and not position.attrs.relative
    plain = plain and (position.attrs.start, position.attrs.step) == (0, 1)
    return (position.attrs.block, end.number) if plain else None


def _stripped(makers: Makers, operand: Operand) -> Op | None:
    made = makers.of(operand)
    while made is not None and made.kind in ("view", "mask"):
        made = makers.of(made.operands[0])
    return made


def _scalar(makers: Makers, operand: Operand) -> Value | None:
    """Return the integer of all elements of an operand, or None."""
    made = makers.of(operand)
    while isinstance(operand, Value) and operand.dims and made is not None and made.kind in ("view", "full"):
        operand = made.operands[0]
        made = makers.of(operand)
    return operand if isinstance(operand, Value) and not operand.dims and not operand.dtype.is_floating_point else None
