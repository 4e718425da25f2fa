"""Legality of split-K: the loop that ``split_accumulation`` splits, or the reason why a kernel has none."""

from __future__ import annotations

import itertools

import torch

from ...._shapes import cdiv, fixed_at, hint_of
from ...ir.grammar import (
    DotAttrs,
    ForAttrs,
    LoopAxis,
    Op,
    Operand,
    OperandRef,
    PointwiseAttrs,
    Program,
    Region,
    Root,
    TileAttrs,
    Value,
)
from ...ir.operands import accumulator_of
from ...ir.ops import OPS
from ...ir.rewrite import Declined, remembered
from .loops import check_split_loops, split_loop_blocks

#: Ops after the loop whose results do not depend on the tiles of their grid.
_AFTER = frozenset(
    ("number", "iota", "full", "load", "store", "atomic", "pointwise", "reduce", "view", "mask", "join", "split", "seed", "random", "random4")
)  # fmt: skip
_PRODUCTS = frozenset(("dot", "dot_scaled"))
#: Combinations of partials.
_COMBINED = frozenset(("add", "maximum", "minimum"))
#: Types of partials that are summed with a reduction.
SUMMED = frozenset((torch.float32, torch.float64, torch.int32, torch.int64))

#: Elements of a tile along K that is long enough for the matrix unit, and steps of an axis that has enough parts.
_LARGE_STEP, _ENOUGH_STEPS = 64, 8
#: Reason against splitting that disappears if every call has the same sizes.
OPEN_GRID = "the sizes of the grid differ from call to call"


@remembered
def accumulation_loop(program: Program) -> int:
    """Return the number of the op that is the loop that ``split_accumulation`` splits.

    Raises ``Declined`` with the reason if no tile sizes allow a split.
    """
    root = split_root(program)
    loops = [op for op in root.body.ops if op.regions and not is_guard(op)]
    if not loops or not isinstance(loops[0].attrs, ForAttrs):
        raise Declined("the kernel is not a grid loop around one loop")
    sums = summing(root.body.ops)
    for loop in sums:
        _check_loop(loop)
    at = root.body.ops.index(sums[-1])
    before, behind = tuple(op for op in root.body.ops[:at] if op not in sums), root.body.ops[at + 1 :]
    _check_around(before, () if len(loops) > 1 else behind)
    if len(loops) > 1 and len(program.roots) > 1:
        raise Declined("the kernel has other grid loops, and loops after the sums")
    if len(loops) > 1:
        _check_spread(program, sums, before, behind)
    if any(axis.merged or not fixed_at(axis.begin, 0) or not isinstance(axis.end, int) for axis in root.axes):
        raise Declined(OPEN_GRID)
    return sums[0].number


def split_root(program: Program) -> Root:
    """Return the grid loop whose sums programs can share: the only one, or of several the only one with a matmul."""
    if len(program.roots) == 1:
        return program.roots[0]
    multiplying = [root for root in program.roots if any(op.kind in _PRODUCTS for op in root.body.walk())]
    launches = {root.launch for root in program.roots}
    if len(multiplying) != 1 or len(launches) > 1:
        raise Declined(f"the kernel has {len(program.roots)} grid loops, {len(multiplying)} of them with matmuls")
    return multiplying[0]


def summing(ops: tuple[Op, ...]) -> list[Op]:
    """Return the first loop, and the following loops that carry values."""
    first, *others = [op for op in ops if op.regions and not is_guard(op)]
    carrying = itertools.takewhile(lambda op: isinstance(op.attrs, ForAttrs) and op.attrs.carried, others)
    return [first, *carrying]


def axis_to_split(loop: Op) -> LoopAxis:
    """Return the axis of a reduction loop of which each program takes a part: the one of the most steps, or the outermost
    of several.

    The steps of the last axis prefetch each other, so that one of the others comes first if it has enough of them
    (measurement ``split_nests``).
    """
    *outer, last = loop.attributes(ForAttrs).axes
    able = [axis for axis in outer if _has_parts(axis)]
    longest = max(able, key=_least_steps, default=None)
    if longest is not None and (_least_steps(longest) >= _ENOUGH_STEPS or not _has_parts(last)):
        return longest
    return max(filter(_has_parts, (*able, last)), key=_least_steps)


def _has_parts(axis: LoopAxis) -> bool:
    return axis.jagged is None and fixed_at(axis.begin, 0) and fixed_at(axis.step, 1)


def _least_steps(axis: LoopAxis) -> int:
    """Return the steps seen when binding, of an axis of tiles those of large ones."""
    assert not isinstance(axis.end, OperandRef)
    extent = int(hint_of(axis.end))
    return extent if axis.scalar else cdiv(extent, _LARGE_STEP)


def is_guard(op: Op) -> bool:
    """Return whether an op is an ``if`` around stores of a kind that may follow the loop."""
    return op.kind == "if" and not op.results and all(_may_follow(each) for r in op.regions for each in r.ops)


def _may_follow(op: Op) -> bool:
    return op.kind in _AFTER or (op.kind == "tile" and op.attributes(TileAttrs).field in ("index", "begin"))


def split_epilogue_loops(program: Program) -> tuple[int, ...]:
    """Return the blocks of the loops after the sums, which programs share as well; empty if the sums cannot be
    split."""
    try:
        loop = accumulation_loop(program)
    except Declined:
        return ()
    return split_loop_blocks(op for op in split_root(program).body.ops if op.number != loop)


def _check_loop(loop: Op) -> None:
    attrs, (body,) = loop.attributes(ForAttrs), loop.regions
    if len(loop.operands) != attrs.carried:
        raise Declined("the loop's bounds depend on data")
    if not any(map(_has_parts, attrs.axes)):
        raise Declined("the loop is not over tiles or single indices from 0 on")
    inside = list(itertools.chain.from_iterable(op.walk() for op in body.ops))
    if any(op.kind not in ("load", "for") and (OPS[op.kind].stays or OPS[op.kind].writes) for op in inside):
        raise Declined("the loop does more than accumulate")
    nested = [op for op in body.ops if op.regions and not OPS[op.kind].combines]
    if any(op.kind != "for" or not any(each.kind in _PRODUCTS for each in op.walk()) for op in nested):
        raise Declined("the loop contains loops without a matmul, or branches")
    if not body.params:
        raise Declined("the loop carries no accumulator")
    for param, result in zip(body.params, body.results, strict=True):
        combination(body, param, result)


def combination(body: Region, param: Value, result: Operand) -> str:
    """Return the combination of a carried value with independent terms. Raises ``Declined`` if there is none.

    Terms may follow each other, as two dots do that accumulate into one value (measurement ``split_chains``).
    """
    names: set[str] = set()
    at = result
    while at is not param:
        (maker,) = [op for op in body.ops if any(r is at for r in op.results)] or (None,)
        found = None if maker is None or _uses(body, at) != 1 else _combined(maker, at, param, body)
        if found is None:
            raise Declined("the loop carries other values than sums and extrema")
        name, at = found
        names.add(name)
    if _uses(body, param) != 1 or len(names) != 1:
        raise Declined("the loop carries other values than sums and extrema")
    return names.pop()


def _uses(body: Region, value: Operand) -> int:
    """Return how often the ops of a loop read a value or hand it to the next iteration."""
    return sum(v is value for op in body.walk() for v in op.reads()) + sum(v is value for v in body.results)


def _combined(op: Op, at: Operand, param: Value, body: Region) -> tuple[str, Operand] | None:
    """Return the combination of an op with result ``at``, and the operand that depends on ``param``; None for others."""
    if isinstance(op.attrs, DotAttrs):
        inner = accumulator_of(op)
        return None if inner is None else ("add", inner)
    if isinstance(op.attrs, ForAttrs):
        return _combined_inside(op, at)
    if not isinstance(op.attrs, PointwiseAttrs) or len(op.operands) != 2:
        return None
    carried = [v for v in op.operands if isinstance(v, Value) and _depends(v, param, body)]
    if len(carried) != 1:
        return None
    if op.attrs.name == "sub" and carried[0] is op.operands[0]:
        return "add", carried[0]  # the sum of the negative terms
    return (op.attrs.name, carried[0]) if op.attrs.name in _COMBINED else None


def _combined_inside(loop: Op, at: Operand) -> tuple[str, Operand] | None:
    """Return the same for a loop that combines a value with terms in each of its steps."""
    (body,) = loop.regions
    place = next(place for place, result in enumerate(loop.results) if result is at)
    return combination(body, body.params[place], body.results[place]), loop.operands[place]


def _depends(value: Value, param: Value, body: Region) -> bool:
    """Return whether a value of a loop's body is computed from ``param``."""
    found = {param.number}
    for op in body.ops:
        if any(v.number in found for v in op.reads()):
            found.update(result.number for result in op.results)
    return value.number in found


def _check_around(before: tuple[Op, ...], behind: tuple[Op, ...]) -> None:
    if any(OPS[op.kind].stays or OPS[op.kind].writes for op in before):
        raise Declined("the kernel stores before the loop")
    for op in (*before, *behind):
        if not _may_follow(op) and not is_guard(op):
            raise Declined(f"the kernel has {op.kind} outside of the loop")


def _check_spread(program: Program, sums: list[Op], before: tuple[Op, ...], behind: tuple[Op, ...]) -> None:
    """Check the further requirements of kernels with programs that share loops."""
    if any(op.kind == "dot" for loop in sums for op in loop.walk()):
        raise Declined("the kernel has loops after that of a matmul")
    if any(value.dtype not in SUMMED for loop in sums for value in loop.results):
        raise Declined("the sums before other loops have narrow dtypes")
    check_split_loops(program, before, behind)


def combinations(loop: Op) -> list[str]:
    """Return the combination of each result of a loop."""
    (body,) = loop.regions
    return [combination(body, param, result) for param, result in zip(body.params, body.results, strict=True)]
