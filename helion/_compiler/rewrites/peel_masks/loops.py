"""Splits loops with matmuls into ranges of tiles in which masks are known.

Causal attention compares the indices of queries and keys in every tile. In all but a few tiles the mask is all true or
all false. Before::

    for b1 in 0..%9: %3 = ge (iota b0), (iota b1); %4 = where %3, %2, -inf; ..

After, with tiles of 64 in b1::

    %10 = min(max(0, (b0.begin + 1) & -64), %9 & -64)
    for b1 in 0..%10, whole: .. %2 ..
    for b1 in %10..%9: %3 = ge (iota b0), (iota b1); %4 = where %3, %2, -inf; ..

There are up to three ranges. In the first tiles and in the last ones some comparisons are known; in those between, none
is. A range with a known mask does not compute the hidden values. No lane of the first range is out of range.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ...._shapes import hint_of
from ...._support.records import dataclass, field, replace
from ...ir.build import Builder, Numbers
from ...ir.grammar import (
    Bound,
    ForAttrs,
    IotaAttrs,
    LoopAxis,
    NumberAttrs,
    Op,
    Operand,
    OperandRef,
    PointwiseAttrs,
    Program,
    Region,
    TileAttrs,
    Value,
    ViewAttrs,
)
from ...ir.rewrite import Makers, expand_ops
from ...passes.always.simplify import drop_dead

#: Minimal number of matmuls of a loop: with one alone it is memory-bound, and a shorter body gains nothing.
_LEAST_PRODUCTS = 2
#: Largest constant that may be added to indices, so that 32-bit sums do not overflow.
_LARGEST = 2**20
#: Clamp for 64-bit scalars: larger ones compare with indices in the same way, and sums with this one do not overflow.
_FARTHEST = 2**60
#: Comparisons as ``sign * (left - right) + shift >= 0``.
_COMPARISONS: Mapping[str, tuple[int, int]] = {"ge": (1, 0), "gt": (1, -1), "le": (-1, 0), "lt": (-1, -1)}
_SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
_AND, _OR, _NOT = ("bitwise_and", "logical_and"), ("bitwise_or", "logical_or"), ("bitwise_not", "logical_not")


def peelable(program: Program) -> bool:
    """Return whether a loop may be split into ranges, if comparisons are known in some of its tiles."""
    return any(op.kind == "for" and is_peelable(program, op) for op in program.walk())


def hidden_blocks(program: Program) -> frozenset[int]:
    """Return the blocks of peelable loops over tiles that position comparisons hide."""
    peeler = Peeler(program, {})
    loops = [op for op in program.walk() if op.kind == "for" and is_peelable(program, op)]
    return frozenset(op.attributes(ForAttrs).axes[0].block for op in loops if peeler.hides(op))


def window_of(program: Program, rows: int, block: int) -> int | None:
    """Return the width of the band of ``block`` that comparisons in its peelable loops leave to each index of ``rows``.

    The comparisons are taken to hold together. Numbers of a launch are those seen when binding. None if they do not bound the
    distance in both directions.
    """
    peeler = Peeler(program, {})
    loops = [op for op in program.walk() if op.kind == "for" and is_peelable(program, op)]
    of_block = [op for op in loops if op.attributes(ForAttrs).axes[0].block == block]
    lines = [condition.line for op in of_block for condition in peeler.conditions(op, block)]
    lines += [line for op in of_block for line in peeler.distances(op, block)]
    known = [(line, peeler.start_of(line)) for line in lines]
    compared = [
        (line.slope, start)
        for line, start in known
        if start is not None and _blocks(line) == (_Term(sign=-line.slope, block=rows),)
    ]
    nearest = [start for slope, start in compared if slope > 0]
    farthest = [start for slope, start in compared if slope < 0]
    width = min(nearest) + min(farthest) + 1 if nearest and farthest else 0
    return width if width > 0 else None


def _blocks(line: Line) -> tuple[_Term, ...]:
    """Return the terms that are indices of blocks."""
    return tuple(term for term in line.terms if term.block is not None)


def peel_masks(program: Program, sizes: Mapping[int, int]) -> Program:
    """Return the program with its peelable loops split into ranges; ``sizes`` are those of all blocks."""
    if not peelable(program):
        return program
    changed = expand_ops(program, Peeler(program, sizes).change)
    return program if changed is program else drop_dead(changed)


def is_peelable(program: Program, op: Op) -> bool:
    """Return whether ``op`` is a plain loop over the tiles of one block, with matmuls."""
    axes, (body,) = op.attributes(ForAttrs).axes, op.regions
    if len(axes) != 1 or any(o.regions for o in body.ops) or sum(o.kind == "dot" for o in body.ops) < _LEAST_PRODUCTS:
        return False
    (axis,), block = axes, program.blocks[axes[0].block]
    if axis.scalar or axis.jagged is not None or axis.merged or axis.split is not None or axis.aligned:
        return False
    counted = any(isinstance(o.attrs, TileAttrs) and o.attrs.block == block.id for o in body.ops)
    return block.kind == "tile" and not block.merged and block.part is None and not counted


# --- analysis of comparisons ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Term:
    """``sign`` times integers that are the same in all tiles of a loop: a scalar, or the indices of a block.

    ``dtype`` is that of the indices if it is narrower than the scalar, which loses its upper bits in the comparison;
    else None.
    """

    sign: int
    scalar: Value | None = None
    block: int | None = None
    dtype: torch.dtype | None = None


@dataclass(frozen=True, kw_only=True)
class Line:
    """``slope`` times the indices of a loop's own block, plus ``terms`` and ``start``."""

    slope: int = 0
    terms: tuple[_Term, ...] = ()
    start: int = 0

    def plus(self, other: Line, sign: int = 1) -> Line:
        """Return the sum with ``sign`` times ``other``."""
        terms = tuple(replace(term, sign=sign * term.sign) for term in other.terms)
        return Line(
            slope=self.slope + sign * other.slope, terms=self.terms + terms, start=self.start + sign * other.start
        )


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A comparison, by the number of its value. It is true where ``line``, of slope 1 or -1, is at least 0."""

    value: int
    line: Line

    @property
    def falls(self) -> bool:
        """True if it is true in the first tiles and false in the last ones, False for the opposite."""
        return self.line.slope < 0


@dataclass(frozen=True)
class _Reader:
    """Analysis of the comparisons of a loop over tiles of ``block``, whose body defines the values ``inside``."""

    program: Program
    block: int
    makers: Makers
    inside: frozenset[int]

    def condition(self, op: Op) -> Condition | None:
        name = op.attrs.name if isinstance(op.attrs, PointwiseAttrs) else ""
        if name not in _COMPARISONS:
            return None
        first, second = op.operands
        left, right = self.compared(first, second), self.compared(second, first)
        if left is None or right is None:
            return None
        sign, shift = _COMPARISONS[name]
        line = Line(start=shift).plus(left, sign).plus(right, -sign)
        return Condition(value=op.result.number, line=line) if abs(line.slope) == 1 else None

    def distance(self, op: Op) -> tuple[Line, ...]:
        """Return the two lines that are at least 0 where an absolute value is at most a number, or less."""
        name = op.attrs.name if isinstance(op.attrs, PointwiseAttrs) else ""
        sides = op.operands if name in ("le", "lt") else op.operands[::-1] if name in ("ge", "gt") else ()
        maker = self.makers.of(sides[0]) if sides else None
        if maker is None or maker.attrs != PointwiseAttrs("abs"):
            return ()
        line, most = self.line(maker.operands[0]), self.compared(sides[1], sides[0])
        if line is None or most is None or abs(line.slope) != 1:
            return ()
        most = most.plus(Line(start=-1)) if name in ("lt", "gt") else most
        return most.plus(line), most.plus(line, -1)

    def compared(self, operand: Operand, other: Operand) -> Line | None:
        """Return one side of a comparison with ``other``: a line, or any scalar, which is converted to the index
        dtype."""
        if isinstance(operand, Value) and not operand.dims and operand.dtype in _SIGNED and self.is_outside(operand):
            dtype = other.dtype if isinstance(other, Value) else None
            return Line(terms=(_Term(sign=1, scalar=operand, dtype=dtype),))
        return self.line(operand)

    def is_outside(self, value: Value) -> bool:
        """Return whether a scalar is available before the loop, or can be made so."""
        maker = self.makers.of(value)
        return value.number not in self.inside or (maker is not None and maker.kind in ("number", "tile"))

    def line(self, operand: Operand) -> Line | None:
        if not isinstance(operand, Value):
            return Line(start=operand) if type(operand) is int and abs(operand) <= _LARGEST else None
        maker = self.makers.of(operand)
        match maker.attrs if maker is not None else None:
            case IotaAttrs(block=block, relative=False):
                return self.indices(block)
            case TileAttrs(field="begin" | "end" | "index"):
                return Line(terms=(_Term(sign=1, scalar=operand),))
            case ViewAttrs():
                assert maker is not None
                return self.line(maker.operands[0])
            case PointwiseAttrs(name="cast") if operand.dtype in _SIGNED:
                assert maker is not None
                given = maker.operands[0]
                if not isinstance(given, Value) or given.dtype not in _SIGNED:
                    return None
                return self.line(given) if given.dtype.itemsize <= operand.dtype.itemsize else None
            case PointwiseAttrs(name="add" | "sub" as name) if operand.dtype in _SIGNED:
                assert maker is not None
                left, right = map(self.line, maker.operands)
                return None if left is None or right is None else left.plus(right, 1 if name == "add" else -1)
        return None

    def indices(self, block: int) -> Line | None:
        if block == self.block:
            return Line(slope=1)
        found = self.program.blocks[block]
        plain = found.kind == "tile" and not found.merged and found.part is None
        return Line(terms=(_Term(sign=1, block=block),)) if plain else None


#: Comparisons of a loop with their values.
Known = list[tuple[Condition, bool]]

# --- ranges -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Run:
    """Tiles up to ``end``, in which comparisons are ``known``. ``whole``: none of their lanes is out of range."""

    end: Any
    known: Mapping[int, bool] = field(default_factory=dict)
    whole: bool = False


class Peeler:
    def __init__(self, program: Program, sizes: Mapping[int, int]) -> None:
        self.program, self.sizes = program, sizes
        self.numbers = Numbers.after(program)
        self.makers = Makers.among(program.walk())
        axes = [axis for root in program.roots for axis in root.axes]
        axes += [axis for op in program.walk() if isinstance(op.attrs, ForAttrs) for axis in op.attrs.axes]
        #: None for blocks of several loops, whose tiles may begin and end differently.
        self.axes = {a.block: None if any(b.block == a.block and b is not a for b in axes) else a for a in axes}

    def start_of(self, line: Line) -> int | None:
        """Return the start of a line plus its numbers of a launch, as seen when binding; None with other scalars."""
        start = line.start
        for scalar, sign in ((term.scalar, term.sign) for term in line.terms if term.block is None):
            maker = None if scalar is None else self.makers.of(scalar)
            if maker is None or not isinstance(maker.attrs, NumberAttrs):
                return None
            start += sign * int(hint_of(maker.attrs.expr))
        return start

    def change(self, op: Op) -> Iterator[Op]:
        if op.kind != "for" or not is_peelable(self.program, op):
            yield op
            return
        axis = op.attributes(ForAttrs).axes[0]
        ops: list[Op] = []
        runs = self.runs(op, axis, Builder(self.numbers, op.location, ops))
        yield from (*ops, *self.loops(op, axis, runs)) if len(runs) > 1 else (op,)

    def runs(self, op: Op, axis: LoopAxis, out: Builder) -> list[_Run]:
        """Return the ranges of a loop; a single one if it stays as it is. ``out`` takes the ops that compute the
        bounds."""
        size, whole = self.sizes[axis.block], self.is_whole(op, axis)
        begins, ends = self.known(op, axis)
        last = _Run(end=axis.end, known={c.value: value for c, value in ends}, whole=whole)
        single = isinstance(axis.begin, int) and isinstance(axis.end, int) and axis.end - axis.begin <= size
        if single or size & (size - 1) or not (begins or ends or not whole):
            return [last]
        places = _Places(self, op, axis, out)
        runs: list[_Run] = []
        if begins or not (ends or whole):
            known = {c.value: value for c, value in begins}
            runs.append(_Run(end=places.first_end(begins, whole), known=known, whole=True))
        if ends:
            least = runs[-1].end if runs else None
            runs.append(_Run(end=places.last_begin(ends, least), whole=whole))
        begin = operand_of(op, axis.begin)
        return [*(run for run in runs if not (isinstance(run.end, int) and run.end == begin)), last]

    def known(self, op: Op, axis: LoopAxis) -> tuple[Known, Known]:
        """Return the comparisons that are known in the first tiles of a loop, and those known in its last ones."""
        found = self.conditions(op, axis.block)
        hidden = [c for c in found if not self.is_always_seen(op, axis, c)]
        begins = _of(hidden, False, falls=False) or _of(found, True, falls=True)
        return begins, _of(hidden, False, falls=True) or _of(found, True, falls=False)

    def conditions(self, op: Op, block: int) -> list[Condition]:
        reader = self._reader(op, block)
        return [each for o in op.regions[0].ops if (each := reader.condition(o)) is not None]

    def distances(self, op: Op, block: int) -> list[Line]:
        """Return the lines that bound distances from indices of ``block`` in either direction."""
        reader = self._reader(op, block)
        return [line for o in op.regions[0].ops for line in reader.distance(o)]

    def _reader(self, op: Op, block: int) -> _Reader:
        (body,) = op.regions
        inside = frozenset(value.number for o in body.ops for value in o.results)
        inside |= {param.number for param in body.params}
        return _Reader(self.program, block, self.makers, inside)

    def hides(self, op: Op) -> bool:
        """Return whether a comparison may be false in whole tiles of the loop ``op``."""
        (axis,) = op.attributes(ForAttrs).axes
        return not all(self.is_always_seen(op, axis, each) for each in self.conditions(op, axis.block))

    # --- known loop bounds --------------------------------------------------------------------------------------------

    def is_always_seen(self, op: Op, axis: LoopAxis, condition: Condition) -> bool:
        """Return whether no tile of the loop makes ``condition`` entirely false.

        That is known if the loop ends or begins at a tile of the block that its own block is compared with.
        """
        line = condition.line
        bound = operand_of(op, axis.end if condition.falls else axis.begin)
        maker = self.makers.of(bound)
        if len(line.terms) != 1 or line.start < 0 or maker is None:
            return False
        (term,) = line.terms
        met = (1, "end") if condition.falls else (-1, "begin")
        return (
            isinstance(maker.attrs, TileAttrs)
            and (term.sign, maker.attrs.field) == met
            and term.block == maker.attrs.block
        )

    def is_whole(self, op: Op, axis: LoopAxis) -> bool:
        """Return whether no tile of a loop has lanes out of range."""
        size = self.sizes[axis.block]
        return all(self.divides(size, operand_of(op, bound)) for bound in (axis.begin, axis.end))

    def divides(self, size: int, bound: Operand | Bound) -> bool:
        """Return whether a bound is known to be a multiple of ``size``."""
        if isinstance(bound, int):
            return bound % size == 0
        maker = self.makers.of(bound) if isinstance(bound, Value) else None
        attrs = maker.attrs if maker is not None else None
        if not isinstance(attrs, TileAttrs) or attrs.field not in ("begin", "end"):
            return False
        axis = self.axes[attrs.block]
        if axis is None or axis.scalar or axis.merged or axis.jagged is not None or axis.split is not None:
            return False
        ends = (axis.begin, axis.end) if attrs.field == "end" else (axis.begin,)
        return self.sizes[attrs.block] % size == 0 and all(isinstance(n, int) and n % size == 0 for n in ends)

    # --- loops --------------------------------------------------------------------------------------------------------

    def loops(self, op: Op, axis: LoopAxis, runs: list[_Run]) -> Iterator[Op]:
        """Yield ``op`` as loops over ranges of its tiles. Each continues with the values carried by the one before; the
        last one defines the results."""
        attrs, begin = op.attributes(ForAttrs), operand_of(op, axis.begin)
        carried = op.operands[: attrs.carried]
        for run in runs:
            last = run is runs[-1]
            end = operand_of(op, run.end)
            bounds = [each for each in (begin, end) if isinstance(each, Value)]
            own = replace(axis, begin=_bound(begin, attrs.carried, bounds), end=_bound(end, attrs.carried, bounds))
            body = op.regions[0] if last and not run.known else Copier(self.numbers, run.known).region(op.regions[0])
            results = op.results if last else tuple(self.numbers.value(r.dtype, r.dims, r.name) for r in op.results)
            yield replace(
                op,
                number=op.number if last else self.numbers.op(),
                operands=(*carried, *bounds),
                results=results,
                attrs=replace(attrs, axes=(replace(own, whole=run.whole),), like=op.number),
                regions=(body,),
            )
            carried, begin = results, end


def _of(conditions: list[Condition], value: bool, *, falls: bool) -> Known:
    return [(c, value) for c in conditions if c.falls == falls]


def operand_of(op: Op, bound: Bound) -> Any:
    """Return a bound of ``op`` as a number, or as the value that it refers to."""
    return op.operands[bound.at] if isinstance(bound, OperandRef) else bound


def _bound(bound: Any, first: int, bounds: list[Value]) -> Bound:
    """Return the bound of a loop whose operands from ``first`` on are ``bounds``."""
    if not isinstance(bound, Value):
        return bound
    return OperandRef(first + next(at for at, each in enumerate(bounds) if each is bound))


# --- bounds of ranges -------------------------------------------------------------------------------------------------

_INTEGERS: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "bitwise_and": operator.and_,
    "minimum": min,
    "maximum": max,
}


class _Places:
    """Computation of range bounds before a loop, in int64."""

    def __init__(self, peeler: Peeler, op: Op, axis: LoopAxis, out: Builder) -> None:
        self.peeler, self.out, self.size = peeler, out, peeler.sizes[axis.block]
        self.begin = self.number(operand_of(op, axis.begin))
        self.end = self.number(operand_of(op, axis.end))

    def first_end(self, conditions: list[tuple[Condition, bool]], whole: bool) -> Value | int:
        """Return the end of the first tiles in which all ``conditions`` have their given values and no lane is out of
        range."""
        place = self.end if whole else self.tiles(self.apply("sub", self.end, self.begin))
        for condition, value in conditions:
            low, high = self.range(condition.line)
            end = self.apply("add", low, 1) if value else self.apply("sub", 0, high)
            place = self.apply("minimum", place, self.tiles(self.apply("sub", end, self.begin)))
        return self.indexed(place)

    def last_begin(self, conditions: list[tuple[Condition, bool]], least: Value | int | None) -> Value | int:
        """Return the begin, at least ``least``, of the last tiles in which all ``conditions`` have their given
        values."""
        place = self.begin if least is None else self.number(least)
        for condition, value in conditions:
            low, high = self.range(condition.line)
            begin = self.apply("sub", 0, low) if value else self.apply("add", high, 1)
            behind = self.apply("add", self.apply("sub", begin, self.begin), self.size - 1)
            place = self.apply("maximum", place, self.tiles(behind))
        return self.indexed(self.apply("minimum", place, self.end))

    def range(self, line: Line) -> tuple[Value | int, Value | int]:
        """Return the minimum and the maximum of a line, without the term of the loop's own block."""
        low: Value | int = line.start
        high: Value | int = line.start
        for term in line.terms:
            first = self.first(term)
            behind = first if term.block is None else self.apply("add", first, self.peeler.sizes[term.block] - 1)
            ends = (first, behind) if term.sign > 0 else (behind, first)
            name = "add" if term.sign > 0 else "sub"
            low, high = self.apply(name, low, ends[0]), self.apply(name, high, ends[1])
        return low, high

    def first(self, term: _Term) -> Value:
        """Return the first of a term's integers."""
        if term.block is not None:
            dtype, kind, attrs = self.peeler.program.index_dtype, "tile", TileAttrs(term.block, "begin")
            return self.out.cast(self.out.emit(kind, (), dtype, (), attrs), torch.int64)
        assert term.scalar is not None
        maker, scalar = self.peeler.makers.of(term.scalar), term.scalar
        if maker is not None and maker.kind in ("number", "tile"):
            scalar = self.out.emit(maker.kind, (), scalar.dtype, (), maker.attrs)
        if term.dtype is None or scalar.dtype != torch.int64 or (maker is not None and maker.kind == "tile"):
            return self.out.cast(scalar, torch.int64)
        if term.dtype != torch.int64:
            return self.out.cast(self.out.cast(scalar, term.dtype), torch.int64)
        near = self.out.emit("pointwise", (scalar, _FARTHEST), torch.int64, (), PointwiseAttrs("minimum"))
        return self.out.emit("pointwise", (near, -_FARTHEST), torch.int64, (), PointwiseAttrs("maximum"))

    def tiles(self, elements: Value | int) -> Value | int:
        """Return the end of the whole tiles among the first ``elements`` of the loop."""
        whole = self.apply("maximum", self.apply("bitwise_and", elements, -self.size), 0)
        return self.apply("add", whole, self.begin)

    def number(self, number: Any) -> Value | int:
        if isinstance(number, int):
            return number
        if isinstance(number, Value):
            return self.out.cast(number, torch.int64)
        return self.out.emit("number", (), torch.int64, (), NumberAttrs(number))

    def indexed(self, place: Value | int) -> Value | int:
        return place if isinstance(place, int) else self.out.cast(place, self.peeler.program.index_dtype)

    def apply(self, name: str, left: Value | int, right: Value | int) -> Value | int:
        if isinstance(left, int) and isinstance(right, int):
            return _INTEGERS[name](left, right)
        if right == 0 and name in ("add", "sub"):
            return left
        if left == 0 and name == "add":
            return right
        return self.out.emit("pointwise", (left, right), torch.int64, (), PointwiseAttrs(name))


# --- bodies -----------------------------------------------------------------------------------------------------------


class Copier:
    """Copy of a loop's body for tiles in which some comparisons are ``known``, by the numbers of their values."""

    def __init__(self, numbers: Numbers, known: Mapping[int, bool]) -> None:
        self.numbers, self.known = numbers, dict(known)
        self.copies: dict[int, Operand] = {}

    def region(self, region: Region) -> Region:
        params = tuple(self.copied(param) for param in region.params)
        ops: list[Op] = []
        for op in region.ops:
            if not self.is_settled(op):
                ops.append(self.op(op))
        return Region(params, tuple(ops), tuple(map(self.now, region.results)))

    def copied(self, value: Value) -> Value:
        made = self.copies[value.number] = self.numbers.value(value.dtype, value.dims, value.name)
        return made

    def now(self, operand: Operand) -> Operand:
        return self.copies.get(operand.number, operand) if isinstance(operand, Value) else operand

    def op(self, op: Op) -> Op:
        operands = tuple(map(self.now, op.operands))
        chosen = self.chosen(op)
        if chosen is not None and not isinstance(chosen, Value):
            return self.made(op, "full", (chosen,))
        self.learn(op)
        return replace(op, number=self.numbers.op(), operands=operands, results=tuple(map(self.copied, op.results)))

    def made(self, op: Op, kind: str, operands: tuple[Operand, ...]) -> Op:
        results = tuple(map(self.copied, op.results))
        return replace(op, number=self.numbers.op(), kind=kind, operands=operands, results=results, attrs=None)

    def is_settled(self, op: Op) -> bool:
        """Return whether ``op`` selects a value with the type of its result, and replace the result by it."""
        chosen = self.chosen(op)
        if not isinstance(chosen, Value) or (chosen.dtype, chosen.dims) != (op.result.dtype, op.result.dims):
            return False
        self.copies[op.result.number] = self.now(chosen)
        return True

    def chosen(self, op: Op) -> Operand | None:
        """Return the operand that a ``where`` with a known condition selects."""
        if not isinstance(op.attrs, PointwiseAttrs) or op.attrs.name != "where":
            return None
        value = self.truth(op.operands[0])
        return None if value is None else op.operands[1] if value else op.operands[2]

    def truth(self, operand: Operand) -> bool | None:
        return self.known.get(operand.number) if isinstance(operand, Value) else None

    def learn(self, op: Op) -> None:
        """Derive the truth of the result from that of the operands."""
        name = op.attrs.name if isinstance(op.attrs, PointwiseAttrs) else op.kind
        truths = [self.truth(operand) for operand in op.operands]
        value: bool | None = None
        if name in _AND:
            value = False if False in truths else True if None not in truths else None
        elif name in _OR:
            value = True if True in truths else False if None not in truths else None
        elif name in _NOT:
            value = None if truths[0] is None else not truths[0]
        elif isinstance(op.attrs, ViewAttrs):
            value = truths[0]
        if value is not None:
            self.known[op.result.number] = value
