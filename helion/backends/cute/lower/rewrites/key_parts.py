"""Parts of keys that a later grid loop combines, as one attention over all keys.

::

    for head, part, tile_m in hl.tile([heads, parts, m], ...):            for head, tile_m in hl.tile([heads, m]):
        for tile_n in hl.tile(begin(part), end(part)):                        for tile_n in hl.tile(n):
            highest, total, acc = ...                                             highest, total, acc = ...
        partials[head, part, tile_m, :] = acc / total[:, None]            →       out[head, tile_m, :] = acc / total[:, None]
        logsum[head, part, tile_m] = highest + log(total)
    hl.barrier()
    for head, tile_m in hl.tile([heads, m]):
        shares = torch.softmax(logsum[head, :, tile_m], 0)
        out[head, tile_m, :] = (partials[head, :, tile_m, :] * shares[:, :, None]).sum(0)

The parts store the accumulator, the sum and the maximum as well, or what is divided and its logarithm. No other code sees them.
A config splits the keys again.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import torch

from ....._compiler.ir.grammar import (
    ForAttrs,
    Index,
    LoopAxis,
    MemoryAttrs,
    Op,
    Operand,
    OperandRef,
    PointwiseAttrs,
    Program,
    ReduceAttrs,
    TileAttrs,
    Value,
    ViewAttrs,
)
from ....._compiler.ir.operands import is_block
from ....._compiler.passes.always.simplify import drop_dead
from ....._shapes import ONE, Expr, cdiv, fixed_at
from ....._support.records import dataclass
from ...plan.refusal import Refusal
from ..attention.loops import Loops, has_attention, loops_of
from ..attention.softmax import LOG2E, Softmax, softmax_of, start_of
from ..attention.values import LOWEST, is_number, name_of_op, same_value, terms_of
from ..numbers import equal, size
from .key_ranges import Terms, all_keys
from .partials import MOVED, Joiner, Whole, blocks_of, has_two_phases, is_counter, is_plain, moved

ACCUMULATOR, TOTAL, MAXIMUM, QUOTIENT, LOGSUM = "accumulator", "total", "maximum", "quotient", "logsum"
"""Values of a part."""
WHOLE_QUOTIENT, WHOLE_LOGSUM = "quotient of all", "logsum of all"
"""Values of all keys."""
_RULES: Mapping[tuple[str, ...], str] = {
    ("max", LOGSUM): "highest",
    ("max", MAXIMUM): "highest",
    ("sub", LOGSUM, "highest"): "difference",
    ("sub", MAXIMUM, "highest"): "difference",
    ("power", "difference"): "weight",
    ("mul", "weight", QUOTIENT): "weighted quotient",
    ("mul", "weight", ACCUMULATOR): "weighted accumulator",
    ("mul", "weight", TOTAL): "weighted total",
    ("sum", "weighted total"): "total of all",
    ("sum", "weighted accumulator"): "accumulator of all",
    ("sum", "weighted quotient"): "accumulator of all",
    ("div", "weight", "total of all"): "share",
    ("mul", "share", QUOTIENT): "shared matrix",
    ("mul", "share", ACCUMULATOR): "shared matrix",
    ("sum", "shared matrix"): WHOLE_QUOTIENT,
    ("div", "accumulator of all", "total of all"): WHOLE_QUOTIENT,
    ("logarithm", "total of all"): "logarithm",
    ("add", "highest", "logarithm"): WHOLE_LOGSUM,
    ("maximum", "carried highest", LOGSUM): "raised",
    ("maximum", "carried highest", MAXIMUM): "raised",
    ("sub", LOGSUM, "raised"): "difference",
    ("sub", MAXIMUM, "raised"): "difference",
    ("sub", "carried highest", "raised"): "change",
    ("power", "change"): "factor",
    ("mul", "carried total", "factor"): "former total",
    ("mul", "carried accumulator", "factor"): "former accumulator",
    ("add", "former total", "weighted total"): "next total",
    ("add", "former accumulator", "weighted accumulator"): "next accumulator",
    ("add", "former accumulator", "weighted quotient"): "next accumulator",
}
"""What an operation computes of the parts, by its name and its operands. Maxima and sums are over the parts."""
_OF_QUOTIENTS: Mapping[tuple[str, ...], str] = {
    ("sum", "weight"): "total of all",
    ("add", "former total", "weight"): "next total",
}
"""The same where the weights are exponentials of logarithms of sums."""
_OTHERS = (
    "a loop over the parts that carries other values than their maximum, sum and accumulator, from below all and 0,"
)
_CARRIED = {
    "carried highest": ("raised", "highest"),
    "carried total": ("next total", "total of all"),
    "carried accumulator": ("next accumulator", "accumulator of all"),
}
"""Values that a loop over the parts carries: those of its next step, and those of all parts."""


def with_whole_keys(program: Program) -> Whole:
    """Return the program without parts of keys in memory. Raises ``Refusal`` for parts that are combined in another way."""
    if not has_two_phases(program):
        return Whole(program=program)
    of_first, of_second = (has_attention(dataclasses.replace(program, roots=(root,))) for root in program.roots)
    return _KeyJoiner(program).over_all_keys() if of_first and not of_second else Whole(program=program)


def _refuse(what: str) -> Refusal:
    return Refusal(f"{what} is not implemented in parts of keys that a loop after hl.barrier() combines")


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """The parts of a program: their axis, the extent of all keys, the loops of one part, its stores and what each one has.

    ``guards`` are the kinds of results in which a sum of 0 is replaced by 1.
    """

    axis: LoopAxis
    keys: int | Expr | Value
    guards: frozenset[str]
    loops: Loops
    softmax: Softmax
    stores: Mapping[int, Op]
    kinds: Mapping[int, str]

    @property
    def guarded(self) -> bool:
        """True if a part without keys stores zeros and a logarithm."""
        return self.guards == {QUOTIENT, LOGSUM}

    @property
    def names(self) -> dict[str, str]:
        """The exponential and the logarithm in the unit of the maximum, by name."""
        base = "2" if self.softmax.unit == 1.0 else ""
        return {f"exp{base}": "power", f"log{base}": "logarithm", "amax": "max"}

    @property
    def rules(self) -> Mapping[tuple[str, ...], str]:
        """The meaning of each operation of the second loop."""
        natural = self.softmax.unit == 1.0 or math.isclose(self.softmax.unit, LOG2E, rel_tol=1e-12)
        rules = _RULES if natural else {}
        return {**rules, **_OF_QUOTIENTS} if QUOTIENT in self.kinds.values() else rules

    @property
    def hidden(self) -> str:
        """The reason why a part whose keys are all hidden changes the result.

        Empty if the part counts for nothing, and a query without keys is NaN, or 0, in both programs.
        """
        infinite = math.isinf(start_of(self.loops, self.softmax, True).maximum)
        if infinite and not self.softmax.replaced:
            return "exponents less a maximum of minus infinity, which are NaN (use torch.where(m == -inf, 0, m))"
        if QUOTIENT in self.kinds.values() and QUOTIENT not in self.guards:
            return "a quotient of zeros, which is NaN (use torch.where(total > 0, total, 1))"
        return "a query without keys is NaN here, and 0 in one loop" if infinite and self.guarded else ""


class _KeyJoiner(Joiner):
    """A rewrite of two grid loops to one. ``numbers`` are the blocks of the numbers of the parts in the second one."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.numbers: set[int | None] = set()
        self._counted = {
            axis.block: axis
            for op in self.second.body.ops
            if isinstance(op.attrs, ForAttrs)
            for axis in op.attrs.axes
            if self.part_size(axis.block) == 1 and is_counter(axis)
        }

    def over_all_keys(self) -> Whole:
        """Return the program over all keys. Raises ``Refusal``."""
        parts = self._read()
        dims = self._matched(parts)
        return self._written(parts, dims, _Combination(self, parts, dims))

    # Reading -------------------------------------------------------------------------------------------------------------

    def _read(self) -> _Parts:
        nested = [op for op in self.first.body.ops if op.regions]
        if len(nested) != 1 or not isinstance(nested[0].attrs, ForAttrs) or len(nested[0].attrs.axes) != 1:
            raise _refuse("more than one loop over keys")
        (loop,) = nested
        found = [(axis, each) for axis in self.first.axes if (each := self._keys(loop, axis)) is not None]
        if len(found) != 1:
            raise _refuse("a loop whose bounds are no adjacent ranges of keys")
        ((axis, (keys, filled)),) = found
        root = dataclasses.replace(self.first, axes=tuple(each for each in self.first.axes if each is not axis))
        loops = loops_of(dataclasses.replace(self.program, roots=(root,)))
        softmax = softmax_of(loops)
        if start_of(loops, softmax, True).held is not None:
            raise _refuse("an initial sum, which every part counts,")
        stores = {op.attrs.tensor: op for op in self.first.body.ops if op.kind in ("store", "atomic")}
        kinds, guarded = dict[int, str](), set[str]()
        for tensor, op in stores.items():
            kinds[tensor], is_guarded = self._stored(loops, softmax, op)
            guarded |= {kinds[tensor]} if is_guarded else set()
        whole = sorted(kinds.values())
        if whole not in (sorted((QUOTIENT, LOGSUM)), sorted((ACCUMULATOR, TOTAL, MAXIMUM))):
            raise _refuse(f"a part that stores {', '.join(whole)}")
        if not filled and QUOTIENT in whole and QUOTIENT not in guarded:
            raise _refuse(
                "a quotient of zeros, which a part without keys stores (use torch.where(total > 0, total, 1)),"
            )
        fields = dict(loops=loops, softmax=softmax, stores=stores, kinds=kinds)
        return _Parts(axis=axis, keys=keys, guards=frozenset(guarded), **fields)  # type: ignore[arg-type]

    def _keys(self, loop: Op, axis: LoopAxis) -> tuple[int | Expr | Value, bool] | None:
        """Return the extent of the keys whose parts an axis counts, one after the other, and whether each part has some; None if
        it counts others."""
        (inner,) = loop.attributes(ForAttrs).axes
        bounds = [self._bound_of(loop, bound) for bound in (inner.begin, inner.end)]
        tiles = [TileAttrs(axis.block, "begin"), TileAttrs(axis.block, "end")]
        if is_plain(axis) and fixed_at(inner.step, 1) and bounds == tiles and isinstance(axis.end, (int, Expr)):
            return axis.end, True
        ends = self.ends(loop, axis)
        if not ends:
            return self._stepped(loop, axis)
        some = [(begin, end) for begin, end in ends if begin < end]
        adjacent = all(one[1] == other[0] for one, other in itertools.pairwise(some))
        return (some[-1][1], some == ends) if some and some[0][0] == 0 and adjacent else None

    def _stepped(self, loop: Op, axis: LoopAxis) -> tuple[Expr | Value, bool] | None:
        """Return the same for keys whose number only launches know, or loads."""
        (inner,) = loop.attributes(ForAttrs).axes
        plain = is_plain(axis) and fixed_at(inner.step, 1) and is_plain(dataclasses.replace(inner, begin=0))
        parts = self.parts(axis) if plain and self.part_size(axis.block) == 1 else None
        if parts is None:
            return None
        begin, end = (
            loop.operands[each.at] if isinstance(each, OperandRef) else each for each in (inner.begin, inner.end)
        )
        terms = Terms(self.makers, axis.block)
        keys = all_keys(terms, begin, end, parts)
        if keys is None:
            return None
        waiting: list[Operand | Expr] = [end]
        while waiting:  # the value whose term that is
            each = waiting.pop()
            made = self.made(each) if isinstance(each, Value) else None
            if terms.of(each) == keys and isinstance(each, (Value, Expr)):
                return each, False
            waiting += made.operands if made is not None else each.args if isinstance(each, Expr) else ()
        return None

    def _bound_of(self, loop: Op, bound: object) -> object:
        made = self.made(loop.operands[bound.at]) if hasattr(bound, "at") else None
        return None if made is None else made.attrs

    def _stored(self, loops: Loops, softmax: Softmax, store: Op) -> tuple[str, bool]:
        """Return what a part stores, and whether a sum of 0 is replaced by 1 in it. Raises ``Refusal``."""
        attrs, tensor = store.attributes(MemoryAttrs), self.program.tensors[store.attrs.tensor]
        if store.kind != "store" or attrs.mask is not None or tensor.dtype != torch.float32:
            raise _refuse(f"{tensor.source}, which is no tensor in float32 that is stored without a mask,")
        if not self.is_hidden(attrs.tensor, store):
            raise _refuse(f"{tensor.source}, which other code reads,")
        value = store.operands[0]
        places = {softmax.accumulator: ACCUMULATOR, softmax.total: TOTAL, softmax.maximum: MAXIMUM}
        results = {kind: loops.loop.results[at] for at, kind in places.items()}
        for kind, result in results.items():
            if same_value(loops, value, result):
                return kind, False
        terms = terms_of(loops, value, "div")
        if terms and same_value(loops, terms[0], results[ACCUMULATOR]):
            total = _unguarded(loops, terms[1])
            if same_value(loops, total, results[TOTAL]):
                return QUOTIENT, total is not terms[1]
        terms = terms_of(loops, value, "add")
        for one, other in (terms, terms[::-1]) if terms else ():
            made, name = loops.stripped(other), "log2" if softmax.unit == 1.0 else "log"
            logarithm = made is not None and name_of_op(made) == name and same_value(loops, one, results[MAXIMUM])
            total = _unguarded(loops, made.operands[0]) if logarithm and made is not None else other
            if logarithm and made is not None and same_value(loops, total, results[TOTAL]):
                return LOGSUM, total is not made.operands[0]
        raise _refuse(
            f"{tensor.source}, whose values are no accumulator, sum, maximum, quotient or logarithm of the sum,"
        )

    def _matched(self, parts: _Parts) -> dict[int, int]:
        """Return the block of the first grid loop for each one of the second. Raises ``Refusal``."""
        found: dict[int, int] = {}
        for op in self.second.body.walk():
            if op.kind == "load" and op.attrs.tensor in parts.stores:
                pairs = self._pairs(parts.stores[op.attrs.tensor], op, parts.axis)
                if any(found.get(one, other) != other for one, other in pairs.items()):
                    raise _refuse("a load of the parts in another order than other loads")
                found |= pairs
        if self.numbers & {*found, *found.values()}:
            raise _refuse("a number of parts that is the size of another dimension")
        blocks, tiles = self.program.blocks, {axis.block for axis in self.first.axes if axis is not parts.axis}
        walked, covered = {axis.block for axis in self.second.axes}, {each for each in found.values() if each in tiles}
        same = all(equal(blocks[one].extent, blocks[other].extent) for one, other in found.items())
        plain = all(map(is_plain, (*self.first.axes, *self.second.axes)))
        if not (walked <= {*found} and covered == tiles and len({*found.values()}) == len(found) and same and plain):
            raise _refuse("a grid of the combination other than that of the parts")
        return found

    def _pairs(self, store: Op, load: Op, part: LoopAxis) -> dict[int, int]:
        """Return the blocks of a load of all parts, and those of their store."""
        stored, loaded = (op.attributes(MemoryAttrs) for op in (store, load))
        found, counted = dict[int, int](), 0
        for at, (one, other) in enumerate(zip(stored.indices, loaded.indices, strict=True)):
            extent = self.program.tensors[stored.tensor].shape[at]
            if self._tile(store, one, ("id", "begin", "index")) == part.block:
                counted += 1
                number = self._number(load, other, extent)
                if number is None or not self._counts(store, one, part, extent):
                    raise _refuse("a load of some parts")
                self.numbers.add(number)
            elif one.kind == other.kind == "block" and is_block(one) and is_block(other):
                assert one.block is not None and other.block is not None
                found[other.block] = one.block
            else:
                to, begin = (
                    self._tile(op, each, ("begin", "index", "id")) for op, each in ((store, one), (load, other))
                )
                if to is None or begin is None or self.part_size(to) != 1 or self.part_size(begin) != 1:
                    raise _refuse("an index of the parts that is neither a tile nor one element of the grid")
                found[begin] = to
        if counted != 1 or loaded.mask is not None:
            raise _refuse("a load of the parts with a mask, or without their number,")
        return found

    def _tile(self, op: Op, index: Index, fields: tuple[str, ...]) -> int | None:
        """Return the block whose tile's position an index is."""
        made = self.made(op.operands[index.operand]) if index.operand is not None else None
        attrs = made.attrs if made is not None and index.kind == "scalar" and fixed_at(index.shift, 0) else None
        return attrs.block if isinstance(attrs, TileAttrs) and attrs.field in fields else None

    def _number(self, load: Op, index: Index, extent: object) -> int | None:
        """Return the block over all parts that an index of a load is: a whole dimension, or a loop of ``extent`` steps."""
        if index.block is not None:
            return index.block if is_block(index) and self.program.blocks[index.block].kind == "full" else None
        counted = self._counted.get(self._tile(load, index, ("begin", "index", "id")) or 0)
        return counted.block if counted is not None and equal(counted.end, extent) else None

    def _counts(self, store: Op, index: Index, part: LoopAxis, extent: object) -> bool:
        """Return whether an index is the number of a part, and ``extent`` the count of parts."""
        made = self.made(store.operands[index.operand]) if index.operand is not None else None
        if made is None or (made.attrs.field != "id" and self.part_size(part.block) != 1):
            return False
        parts = self.parts(part)
        if parts is None and isinstance(extent, Expr) and isinstance(part.end, (int, Expr)):
            sizes = [leaf for leaf in extent.leaves() if leaf.op == "block" and leaf.args[0] == part.block]
            return bool(sizes) and equal(extent, cdiv(size(part.end), sizes[0]))  # type: ignore[arg-type]
        return parts is not None and equal(extent, parts)

    # Writing -------------------------------------------------------------------------------------------------------------

    def _written(self, parts: _Parts, dims: Mapping[int, int], found: _Combination) -> Whole:
        loop, (inner,) = parts.loops.loop, parts.loops.loop.attributes(ForAttrs).axes
        carried = loop.attributes(ForAttrs).carried
        end = OperandRef(carried) if isinstance(parts.keys, Value) else parts.keys
        attrs = dataclasses.replace(loop.attributes(ForAttrs), axes=(dataclasses.replace(inner, begin=0, end=end),))
        more = (parts.keys,) if isinstance(parts.keys, Value) else ()
        joined = dataclasses.replace(loop, attrs=attrs, operands=(*loop.operands[:carried], *more))
        stores = {op.number for op in parts.stores.values()}
        before = [joined if op is loop else op for op in self.first.body.ops if op.number not in stores]
        made, values = _Maker(self.program, parts), dict[int, Value]()
        for number, kind in found.results.items():
            values[number] = made.quotient() if kind == WHOLE_QUOTIENT else made.logsum()
        after = []
        for op in self.second.body.ops:
            if not op.results or op.result.number not in found.read:
                if op.kind not in MOVED or op.regions:
                    raise _refuse(f"{op.kind} in the combination")
                after.append(moved(op, dims, values))
        axes = tuple(axis for axis in self.first.axes if axis is not parts.axis)
        body = dataclasses.replace(self.first.body, ops=(*before, *made.ops, *after))
        blocks = tuple(
            dataclasses.replace(each, extent=None if isinstance(parts.keys, Value) else parts.keys)
            if each.id == inner.block
            else each
            for each in self.program.blocks
        )
        root = dataclasses.replace(self.first, axes=axes, body=body)
        changed = drop_dead(dataclasses.replace(self.program, blocks=blocks, roots=(root,)))
        if parts.axis.block in {block for op in changed.walk() for block in blocks_of(op)}:
            raise _refuse("a formula that reads the number of the part")
        if any(isinstance(op.attrs, MemoryAttrs) and op.attrs.tensor in parts.stores for op in changed.walk()):
            raise _refuse("a load of a part in its own loop")
        gone = (parts.axis.block, *(axis.block for axis in self.second.axes))
        return Whole(program=changed, blocks=gone, masks=parts.hidden or ("" if _is_kept(found) else _LOGSUM_OF_NONE))


_LOGSUM_OF_NONE = "the logarithm of a query's sum is stored, which is NaN without keys"


def _is_kept(found: _Combination) -> bool:
    """Return whether all results of the parts are NaN for a query without keys, as quotients of 0 by 0 are."""
    return WHOLE_LOGSUM not in found.results.values()


def _unguarded(loops: Loops, value: Operand) -> Operand:
    """Return the sum of a selection of 1 where that is 0, or the value itself."""
    made = loops.stripped(value)
    if made is None or name_of_op(made) != "where":
        return value
    condition, *chosen = made.operands
    tested = loops.stripped(condition)
    name = name_of_op(tested)
    if tested is None or name not in ("gt", "ne", "eq") or not is_number(loops, tested.operands[1], 0.0):
        return value
    total, other = chosen[::-1] if name == "eq" else chosen
    return total if same_value(loops, tested.operands[0], total) and is_number(loops, other, 1.0) else value


class _Maker:
    """The ops that compute the result of all keys, after their loop."""

    def __init__(self, program: Program, parts: _Parts) -> None:
        numbers = [number for op in program.walk() for number in (op.number, *(x.number for x in op.results))]
        self._next = itertools.count(max(numbers) + 1)
        self._parts = parts
        self._results = {
            kind: parts.loops.loop.results[at]
            for at, kind in zip(
                (parts.softmax.accumulator, parts.softmax.total, parts.softmax.maximum),
                (ACCUMULATOR, TOTAL, MAXIMUM),
                strict=True,
            )
        }
        self.ops: list[Op] = []

    def quotient(self) -> Value:
        """Return the accumulator over the sum."""
        accumulator, total = self._results[ACCUMULATOR], self._divisor()
        dims = (*total.dims, *([ONE] * (len(accumulator.dims) - len(total.dims))))
        wide = self._add("view", ViewAttrs("reshape"), (total,), dataclasses.replace(total, dims=dims))
        return self._add("pointwise", PointwiseAttrs("div"), (accumulator, wide), accumulator)

    def logsum(self) -> Value:
        """Return the maximum plus the logarithm of the sum."""
        total = self._divisor()
        name = next(name for name, meant in self._parts.names.items() if meant == "logarithm")
        log = self._add("pointwise", PointwiseAttrs(name), (total,), total)
        return self._add("pointwise", PointwiseAttrs("add"), (self._results[MAXIMUM], log), total)

    def _divisor(self) -> Value:
        """Return the sum, or 1 for a sum of 0 where the parts have that."""
        total = self._results[TOTAL]
        if not self._parts.guarded:
            return total
        some = self._add("pointwise", PointwiseAttrs("gt"), (total, 0.0), dataclasses.replace(total, dtype=torch.bool))
        return self._add("pointwise", PointwiseAttrs("where"), (some, total, 1.0), total)

    def _add(self, kind: str, attrs: object, operands: tuple[Operand, ...], like: Value) -> Value:
        number = next(self._next)
        result = dataclasses.replace(like, number=number, name="")
        self.ops.append(Op(number, kind, operands, (result,), attrs))
        return result


class _Combination:
    """The ops of the second grid loop. ``read`` are the values that depend on single parts, and ``results`` those of them that are
    of all keys. Raises ``Refusal`` for a loop that computes others."""

    def __init__(self, joiner: _KeyJoiner, parts: _Parts, dims: Mapping[int, int]) -> None:
        self._joiner, self._parts, self._dims = joiner, parts, dims
        self._kinds: dict[int, str] = {}
        self.read: set[int] = set()
        self.results: dict[int, str] = {}
        for op in joiner.second.body.ops:
            if op.kind == "for":
                self._loop(op)
            else:
                self._read(op)

    def _read(self, op: Op) -> None:
        known = [kind for x in op.values() if (kind := self._kinds.get(x.number, ""))]
        if op.kind == "load" and op.attrs.tensor in self._parts.stores:
            self._know(op, self._parts.kinds[op.attrs.tensor])
        elif known:
            self._know(op, self._kind(op, known))

    def _loop(self, loop: Op) -> None:
        """Read a loop over the parts that carries their maximum, sum and accumulator. Raises ``Refusal`` for another loop."""
        body, kinds = loop.regions[0], dict(self._kinds)
        attrs = loop.attributes(ForAttrs)
        if attrs.carried != len(_CARRIED) or attrs.axes[0].block not in self._joiner.numbers:
            raise _refuse(_OTHERS)
        reasons: list[tuple[int, Refusal]] = []
        for order in itertools.permutations(_CARRIED):
            self._kinds = kinds | {param.number: kind for param, kind in zip(body.params, order, strict=False)}
            known = len(self._kinds)
            try:
                for op in body.ops:
                    self._read(op)
            except Refusal as refusal:
                reasons.append((len(self._kinds) - known, refusal))
                continue
            after = [self._kinds.get(each.number) if isinstance(each, Value) else None for each in body.results]
            if after == [_CARRIED[kind][0] for kind in order] and self._begins(loop, order):
                self._kinds = kinds | {x.number: _CARRIED[kind][1] for x, kind in zip(loop.results, order, strict=True)}
                self.read |= {x.number for x in loop.results}
                return
            raise _refuse(_OTHERS)
        raise max(reasons, key=lambda pair: pair[0])[1]

    def _begins(self, loop: Op, order: Sequence[str]) -> bool:
        """Return whether a loop begins with a maximum that is below all others, and zeros."""
        for value, kind in zip(loop.operands, order, strict=False):
            made = self._joiner.made(value)
            number = made.operands[0] if made is not None and made.kind == "full" else None
            wanted = isinstance(number, (int, float)) and (
                number <= LOWEST if kind == "carried highest" else number == 0
            )
            if not wanted:
                return False
        return True

    def _know(self, op: Op, kind: str) -> None:
        self.read.add(op.result.number)
        if kind not in (WHOLE_QUOTIENT, WHOLE_LOGSUM):
            self._kinds[op.result.number] = kind
            return
        softmax = self._parts.softmax
        at = softmax.accumulator if kind == WHOLE_QUOTIENT else softmax.total
        blocks = [self._dims.get(dim.block, dim.block) if dim.block is not None else None for dim in op.result.dims]
        if blocks != [dim.block for dim in self._parts.loops.loop.results[at].dims] or op.result.dtype != torch.float32:
            raise _refuse(f"a {kind} keys in another order of dimensions")
        self.results[op.result.number] = kind

    def _kind(self, op: Op, known: list[str]) -> str:
        """Return what an op computes of the parts. Raises ``Refusal``."""
        name = op.attrs.name if isinstance(op.attrs, (PointwiseAttrs, ReduceAttrs)) else op.kind
        if op.kind in ("view", "mask"):
            return known[0]
        found, rules = None, self._parts.rules
        name = self._parts.names.get(name, name)
        if len(known) == len(op.operands) and (
            self._is_over_parts(op) if op.kind == "reduce" else self._parts.loops.is_aligned(op)
        ):
            orders = (known, known[::-1]) if name in ("mul", "add") else (known,)
            found = next((rules[key] for order in orders if (key := (name, *order)) in rules), None)
        if found is None:
            raise _refuse(f"{name} of {' and '.join(known)}")
        return found

    def _is_over_parts(self, op: Op) -> bool:
        value, at = op.operands[0], op.attributes(ReduceAttrs).dims
        return isinstance(value, Value) and len(at) == 1 and value.dims[at[0]].block in self._joiner.numbers
