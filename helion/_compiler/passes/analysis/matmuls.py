"""Matmuls that a separate grid loop could compute: their position, axes and accumulator loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from ...._shapes import Expr, fixed_at
from ...._support.records import dataclass
from ...ir.grammar import DotAttrs, ForAttrs, LoopAxis, Op, Operand, PointwiseAttrs, Program, Region, Value
from ...ir.operands import accumulator_of
from ...ir.rewrite import Declined, Makers


@dataclass(frozen=True, kw_only=True)
class Product:
    """A matmul that a separate grid loop could compute. ``value`` is result ``at`` of ``op``, which is the ``dot`` or
    its accumulator loop.

    ``axes`` are the loops over the dimensions of ``value``, ``depth`` the loop over K, all from 0. ``around`` are the
    axes of the grid and of the loops around ``op``. ``casts`` are the ops between dot and accumulator, in order.
    ``initial`` is the initial accumulator, None for zeros. ``dtype`` is the dtype of the stored elements.
    """

    op: Op
    at: int
    value: Value
    dot: Op
    casts: tuple[Op, ...]
    axes: tuple[LoopAxis, ...]
    depth: LoopAxis
    around: Mapping[int, LoopAxis]
    initial: Operand | None
    dtype: torch.dtype


def find_products(program: Program) -> tuple[Product, ...]:
    """Return all matmuls of a program.

    Raises ``Declined`` with the reason if one of them cannot be computed first. It also declines if each program
    computes one tile of the matmul already, since then there is no gain.
    """
    if not any(isinstance(op.attrs, DotAttrs) for op in program.walk()):
        raise Declined("the kernel has no matmul")
    if len(program.roots) != 1:
        raise Declined(f"the kernel has {len(program.roots)} grid loops")
    found = tuple(_Search(program).products())
    blocks = {axis.block for axis in program.roots[0].axes}
    if any(blocks.issuperset(axis.block for axis in each.axes) for each in found):
        raise Declined("each program computes one tile of a matmul, and no op needs whole rows of it")
    return found


# --- search -----------------------------------------------------------------------------------------------------------


class _Search:
    def __init__(self, program: Program) -> None:
        self.program = program
        (self.root,) = program.roots
        self.makers = Makers.among(self.root.body.walk())
        self.readers: dict[int, list[Op]] = {}
        self.yielded: set[int] = set()
        for op in self.root.body.walk():
            for value in op.values():
                self.readers.setdefault(value.number, []).append(op)
            self.yielded |= {v.number for region in op.regions for v in region.results if isinstance(v, Value)}

    def products(self) -> Iterator[Product]:
        yield from self.region(self.root.body, None, {axis.block: axis for axis in self.root.axes})

    def region(self, region: Region, loop: Op | None, around: Mapping[int, LoopAxis]) -> Iterator[Product]:
        """Yield the matmuls of a region; ``loop`` is the op whose body it is, ``around`` the axes around that op."""
        attrs = None if loop is None else loop.attributes(ForAttrs)
        inner = {**around, **{axis.block: axis for axis in attrs.axes}} if attrs is not None else around
        for op in region.ops:
            if isinstance(op.attrs, DotAttrs):
                yield self.product(op, region, loop, around, inner)
            elif isinstance(op.attrs, ForAttrs):
                yield from self.region(op.regions[0], op, inner)
            elif any(isinstance(each.attrs, DotAttrs) for each in op.walk()):
                raise Declined(f"a matmul is in data-dependent control flow ({op.kind})")

    def product(
        self, dot: Op, body: Region, loop: Op | None, around: Mapping[int, LoopAxis], inner: Mapping[int, LoopAxis]
    ) -> Product:
        lhs, rhs = list(dot.values())[:2]
        block = lhs.dims[-1].block
        if dot.attributes(DotAttrs).scaled is not None:
            raise Declined("a matmul has block scales")
        if block is None or lhs.dims[-1].const != 1 or lhs.dims[-1] != rhs.dims[-2]:
            raise Declined("K of a matmul is not a tile")
        if loop is not None and [axis.block for axis in loop.attributes(ForAttrs).axes] == [block]:
            return self.summed(dot, body, loop, around)
        depth = self.walked(block, {})
        initial = accumulator_of(dot)
        return self.made(dot, 0, dot, (), depth, inner, initial)

    def summed(self, dot: Op, body: Region, loop: Op, around: Mapping[int, LoopAxis]) -> Product:
        """Return a matmul that a loop accumulates."""
        at, casts = self.sum(dot, body)
        (axis,) = loop.attributes(ForAttrs).axes
        return self.made(loop, at, dot, casts, _from_zero(axis), around, loop.operands[at])

    def sum(self, dot: Op, body: Region) -> tuple[int, tuple[Op, ...]]:
        """Return the position of the carried value that is only the accumulator of the dot, and the casts before the
        addition."""
        casts: list[Op] = []
        last = dot
        while accumulator_of(dot) is None:
            if len(self.readers.get(last.result.number, ())) != 1 or last.result.number in self.yielded:
                break
            (last,) = self.readers[last.result.number]
            if not isinstance(last.attrs, PointwiseAttrs) or last.attrs.name != "cast":
                break
            casts.append(last)
        for at, (param, result) in enumerate(zip(body.params, body.results, strict=True)):
            if result is last.result and self.is_alone(body, param, result) and _adds(last, param):
                return at, tuple(casts)
        raise Declined("a loop does more with a matmul than accumulate it")

    def is_alone(self, body: Region, param: Value, result: Value) -> bool:
        """Return whether a carried value and its update have no other uses in an iteration."""
        reads = len(self.readers.get(param.number, ())), len(self.readers.get(result.number, ()))
        once = sum(v is result for v in body.results) == 1 and not any(v is param for v in body.results)
        return once and reads == (1, 0)

    def made(
        self,
        op: Op,
        at: int,
        dot: Op,
        casts: tuple[Op, ...],
        depth: LoopAxis,
        around: Mapping[int, LoopAxis],
        initial: Operand | None,
    ) -> Product:
        value = op.results[at]
        blocks = [dim.block for dim in value.dims]
        if None in blocks or len(set(blocks)) < len(blocks) or any(dim.const != 1 for dim in value.dims):
            raise Declined("a dimension of a matmul is not exactly one tile, or two dimensions have the same tile")
        axes = tuple(self.walked(block, around) for block in blocks)  # type: ignore[arg-type]
        initial = None if self.is_zero(initial) else initial
        return Product(
            op=op,
            at=at,
            value=value,
            dot=dot,
            casts=casts,
            axes=axes,
            depth=depth,
            around=around,
            initial=initial,
            dtype=value.dtype if initial is not None else self.stored(value),
        )

    def walked(self, block: int, around: Mapping[int, LoopAxis]) -> LoopAxis:
        """Return the loop over all tiles of a block."""
        known = self.program.blocks[block]
        if block in around:
            return _from_zero(around[block])
        if known.kind != "full" or known.extent is None:
            raise Declined(f"no loop covers all of {known.name or 'a dimension'} of a matmul")
        return LoopAxis(block, 0, known.extent)  # type: ignore[arg-type]

    def is_zero(self, initial: Operand | None) -> bool:
        if not isinstance(initial, Value):
            return initial is None or initial == 0
        maker = self.makers.of(initial)
        return maker is not None and maker.kind == "full" and _is_number(maker.operands[0], 0)

    def stored(self, value: Value) -> torch.dtype:
        """Return the narrower dtype if all uses of a matmul cast to it, else the dtype of the value."""
        readers = self.readers.get(value.number, [])
        casts = [isinstance(op.attrs, PointwiseAttrs) and op.attrs.name == "cast" for op in readers]
        wanted = {op.result.dtype for op in readers}
        if value.number in self.yielded or not readers or not all(casts) or len(wanted) != 1:
            return value.dtype
        (dtype,) = wanted
        narrower = dtype.is_floating_point == value.dtype.is_floating_point and dtype.itemsize < value.dtype.itemsize
        return dtype if narrower else value.dtype


def _adds(op: Op, param: Value) -> bool:
    if isinstance(op.attrs, DotAttrs):
        return accumulator_of(op) is param
    return isinstance(op.attrs, PointwiseAttrs) and op.attrs.name == "add" and any(v is param for v in op.operands)


def _is_number(operand: Operand, number: int) -> bool:
    return not isinstance(operand, Value) and operand == number


def _from_zero(axis: LoopAxis) -> LoopAxis:
    """Return ``axis`` if it begins at 0 and the host knows its end. Raises ``Declined`` for others."""
    known = isinstance(axis.end, (int, Expr)) and fixed_at(axis.begin, 0)
    if not known or axis.jagged is not None or axis.merged or axis.split is not None or axis.scalar:
        raise Declined("a loop over tiles of a matmul does not begin at 0, or its end depends on data")
    return axis


__all__ = ["Product", "find_products"]
