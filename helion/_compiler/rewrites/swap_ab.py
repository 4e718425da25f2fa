"""Swaps A and B of TF32 matmuls, so that wgmma reads both operands without a transpose.

wgmma takes 4-byte operands from shared memory only if they are K-major. An MN-major operand goes through registers,
tile by tile. Operand A may come from registers in any shared-memory layout. With A and B swapped and the accumulator
transposed, no data moves. Before::

    %5: [b0, b1] = for b2 carrying (%1 = %0): %2: [b0, b2] = load x; %3: [b2, b1] = load y
        %4 = dot %2, %3, %1; yield %4

After::

    %6: [b1, b0] = permute %0
    %7: [b1, b0] = for b2 carrying (%8 = %6): %2 = load x; %3 = load y
        %9: [b2, b1] = add %3, 0.0; %10: [b1, b2] = permute %9; %11: [b2, b0] = permute %2;
        %4 = dot %10, %11, %8; yield %4
    %5: [b0, b1] = permute %7

The addition keeps compilers from reading operand B from shared memory: computed values are in registers.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..._shapes import Dim
from ..._support.records import dataclass, replace
from ...hardware import GROUP_WARPS, WARP_ROWS, Target
from ..decisions import Decisions
from ..ir.build import Builder, Numbers
from ..ir.grammar import DotAttrs, ForAttrs, MemoryAttrs, Op, Operand, Program, Region, Value, ViewAttrs
from ..ir.rewrite import Declined, Makers, map_regions
from .record import FactContext, Rewrite, RuleContext, has_matmul
from .unfuse_matmul import matmul_launch, matmul_tile
from .unfuse_matmul.loops import unfuse_matmul

_TRANSPOSE = ViewAttrs("permute", (1, 0))


@dataclass(frozen=True, kw_only=True)
class SwappableMatmul:
    """A matmul whose loop carries the accumulator.

    ``dot`` is the matmul, ``adding`` the separate op that adds its result to the accumulator, if any. ``at`` is the
    position of the accumulator among the carried values.
    """

    dot: Op
    adding: Op | None
    at: int

    @property
    def columns(self) -> Dim:
        """The dimension that becomes M of the swapped matmul."""
        return self.dot.result.dims[-1]


def swappable_matmuls(program: Program) -> tuple[SwappableMatmul, ...]:
    """Return the matmuls that can be swapped: of two fp32 loads, A contiguous along K, B contiguous along N."""
    return tuple(found for op in program.walk() if (found := _swappable(program, op)) is not None)


def swap_ab(program: Program) -> Program:
    """Return the program with A and B swapped in all matmuls that allow it."""
    numbers = Numbers.after(program)

    def region(each: Region) -> Region:
        ops: list[Op] = []
        for op in each.ops:
            found = _swappable(program, op)
            ops += (map_regions(op, region),) if found is None else _swapped(op, found, numbers)
        return replace(each, ops=tuple(ops))

    return program.map_regions(region)


# --- legality ---------------------------------------------------------------------------------------------------------


def _swappable(program: Program, loop: Op) -> SwappableMatmul | None:
    """Return the only matmul of a loop, if it can be swapped."""
    if not isinstance(loop.attrs, ForAttrs):
        return None
    (body,) = loop.regions
    dots = [op for op in body.walk() if op.kind == "dot"]
    if len(dots) != 1 or dots[0] not in body.ops or not _fits(program, dots[0], Makers.among(body.ops)):
        return None
    (dot,) = dots
    for at, (param, result) in enumerate(zip(body.params, body.results, strict=True)):
        adding = None if result is dot.result else _addition(body, param, dot, result)
        summing = dot if adding is None else adding
        if (
            result is not summing.result
            or param.dims != dot.result.dims
            or not _only_accumulates(body, summing, param, dot)
        ):
            continue
        if adding is not None or dot.operands[2:] == (param,):
            return SwappableMatmul(dot=dot, adding=adding, at=at)
    return None


def _only_accumulates(body: Region, summing: Op, param: Value, dot: Op) -> bool:
    """Return whether the old accumulator has its only use in ``summing``, and the result is only the new
    accumulator."""
    read = [v for op in body.walk() for v in op.reads()]
    unread = sum(v is param for v in read) == 1 and not any(v is summing.result for v in read)
    carried = sum(v is summing.result for v in body.results) == 1 and not any(v is param for v in body.results)
    return unread and carried and (dot is summing or not any(v is dot.result for v in body.results))


def _fits(program: Program, dot: Op, makers: Makers) -> bool:
    attrs = dot.attributes(DotAttrs)
    lhs, rhs = list(dot.values())[:2]
    tf32 = attrs.scaled is None and attrs.precision == "tf32" and lhs.dtype == rhs.dtype == torch.float32
    if not tf32 or len(dot.result.dims) != 2 or dot.result.dtype != torch.float32:
        return False
    return _contiguous(program, makers.of(lhs)) == 1 and _contiguous(program, makers.of(rhs)) == 1


def _contiguous(program: Program, op: Op | None) -> int | None:
    """Return the dimension of a loaded value along which memory is contiguous."""
    if op is None or op.kind != "load" or len(op.result.dims) != 2:
        return None
    attrs = op.attributes(MemoryAttrs)
    strides = program.tensors[attrs.tensor].strides
    pairs = zip(attrs.indices, strides, strict=True)
    found = [i.positions[0] for i, stride in pairs if i.kind == "block" and isinstance(stride, int) and stride == 1]
    return found[0] if len(found) == 1 else None


def _addition(body: Region, param: Value, dot: Op, result: Operand) -> Op | None:
    """Return the op that adds the result of the dot to ``param`` and defines ``result``."""
    readers = [op for op in body.ops if any(v is dot.result for v in op.reads())]
    if len(readers) != 1 or len(dot.operands) != 2:
        return None
    (op,) = readers
    adds = op.kind == "pointwise" and op.attrs.name == "add" and op.result is result
    return op if adds and {v.number for v in op.values()} == {param.number, dot.result.number} else None


# --- swapping A and B -------------------------------------------------------------------------------------------------


def _swapped(loop: Op, found: SwappableMatmul, numbers: Numbers) -> Iterator[Op]:
    """Yield the ops that replace the loop."""
    (body,) = loop.regions
    around: list[Op] = []
    out = Builder(numbers, loop.location, around)
    initial = loop.operands[found.at]
    total = loop.results[found.at]
    transposed = tuple(reversed(total.dims))
    start = out.emit("view", (initial,), total.dtype, transposed, _TRANSPOSE) if isinstance(initial, Value) else initial
    yield from around
    param = numbers.value(total.dtype, transposed, body.params[found.at].name)
    summed = numbers.value(total.dtype, transposed, total.name)
    inside = tuple(_inside(body, found, param, summed, numbers))
    region = Region(_with(body.params, found.at, param), inside, _with(body.results, found.at, summed))
    after = numbers.value(total.dtype, transposed, total.name)
    yield replace(
        loop,
        operands=_with(loop.operands, found.at, start),
        results=_with(loop.results, found.at, after),
        regions=(region,),
    )
    yield Op(numbers.op(), "view", (after,), (total,), _TRANSPOSE, (), loop.location)


def _inside(body: Region, found: SwappableMatmul, param: Value, summed: Value, numbers: Numbers) -> Iterator[Op]:
    for op in body.ops:
        if op is found.adding:
            continue
        if op is not found.dot:
            yield op
            continue
        before: list[Op] = []
        out = Builder(numbers, op.location, before)
        lhs, rhs = list(op.values())[:2]
        through = out.pointwise("add", rhs, 0.0, like=rhs.name)
        left = out.emit("view", (through,), rhs.dtype, tuple(reversed(rhs.dims)), _TRANSPOSE)
        right = out.emit("view", (lhs,), lhs.dtype, tuple(reversed(lhs.dims)), _TRANSPOSE)
        yield from before
        yield replace(op, operands=(left, right, param), results=(summed,))


def _with(values: tuple, at: int, value: object) -> tuple:
    return (*values[:at], value, *values[at + 1 :])


# --- the record ------------------------------------------------------------------------------------------------------


def _fact(context: FactContext) -> bool:
    return 0 < len(context.dots) == len(swappable_matmuls(context.program))


def _applies(program: Program, target: Target) -> str:
    if not target.has("wgmma"):
        return f"the matrix unit of {target} does not need K-major TF32 operands"
    if not _has_swappable(program):
        return "no loop only accumulates a matmul of fp32 operands of which the left one alone is K-major"
    return ""


def _has_swappable(program: Program) -> bool:
    """Return whether A and B of a matmul can be swapped, where it is or in the kernel of unfused matmuls."""
    if swappable_matmuls(program):
        return True
    try:
        return bool(swappable_matmuls(unfuse_matmul(program, (None, None, None))))
    except Declined:
        return False


def _fit(context: RuleContext, value: bool, decisions: Decisions) -> bool:
    """Return whether the columns give at least 16 rows of wgmma to each of at least 4 warps.

    Loops with swapped dots are not unrolled, because chained dots have different layouts.
    """
    if (tile := matmul_tile(decisions)) is not None:
        warps, rows = matmul_launch(decisions)[0], [tile[1]]
    else:
        warps = decisions.values["num_warps"]
        rows = [found.columns.lanes(decisions.sizes) for found in swappable_matmuls(context.program)]
    unrolled = any(
        flag for key in ("range_unroll_factors", "static_ranges") for flag in decisions.entries.get(key, {}).values()
    )
    return not unrolled and warps >= GROUP_WARPS and min(rows, default=0) >= WARP_ROWS * warps


SWAP_AB = Rewrite(
    key="swap_ab",
    doc="Swap A and B: compute a TF32 matmul of fp32 operands as its transpose, so that a right operand that is contiguous along N is read through registers without a transposition.",
    applies=_applies,
    in_checked=True,
    varies=has_matmul,
    fit=_fit,
    needs="swapped A and B need at least 4 warps, 16 columns of the tile per warp, no unrolled loop and no K-major copies of the operands",
    yields_to=frozenset(("transpose_operands",)),
    after=("order_memory", "insert_checks"),
    fact=_fact,
    model=lambda program: swap_ab(program) if swappable_matmuls(program) else program,
    apply=lambda program, value, inputs: swap_ab(program),
)
