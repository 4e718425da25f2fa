"""Operands of matmuls that are loaded before an earlier matmul, so that both operands have addresses of their own.

ptxas 12.8 computes wrong descriptors for wgmma operands that lie at one address of shared memory with different
swizzles (``toolchain/descriptors.py``). Triton gives an operand that is loaded after a matmul the memory of that
matmul's operands. Operands that are loaded before it are in memory at the same time. Before::

    %4 = load k[b0, b2]
    %5 = dot %3, %4
    %6 = relu %5
    %7 = load v[b2, b3]
    %8 = dot %6, %7

After::

    %4 = load k[b0, b2]
    %7 = load v[b2, b3]
    %5 = dot %3, %4
    %6 = relu %5
    %8 = dot %6, %7
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from ...._compiler.ir.grammar import MemoryAttrs, Op, Program, Region, Value
from ...._compiler.ir.ops import OPS
from ...._compiler.ir.rewrite import Makers, map_regions
from ...._compiler.rewrites.steps import StepInputs
from ...._shapes import Dim, hint_of
from ...._support.records import dataclass, replace
from .moving import moved

#: Swizzles of shared memory in bytes, in the order of their codes in a descriptor; the code of none is the smallest.
_SWIZZLES = (128, 64, 32)
#: Bytes of an operand along K that one wgmma multiplies.
_STEP_BYTES = 32
#: Steps along K of the operand with the smaller code, and of the other, from which they clash; matmuls from which the
#: order of the two does not matter.
_FEWER_STEPS, _MORE_STEPS, _MANY_MATMULS = 2, 3, 3


def load_early(program: Program, inputs: StepInputs) -> Program:
    """Return the program with operands of matmuls loaded before earlier ones whose swizzle differs, if ``inputs`` say so."""
    if not inputs.early_operands or sum(op.kind == "dot" for op in program.walk()) < 2:
        return program
    loader = _Loader(program, inputs.sizes_in(program), Makers.among(program.walk()))
    roots = tuple(replace(root, body=loader.region(root.body)) for root in program.roots)
    same = all(new.body is old.body for new, old in zip(roots, program.roots, strict=True))
    return program if same else replace(program, roots=roots)


@dataclass(frozen=True)
class _Loader:
    """A program's sizes and the ops that define its values."""

    program: Program
    sizes: Mapping[int, int]
    makers: Makers

    def region(self, region: Region) -> Region:
        """Return a region, and those in it, with the operands of its matmuls loaded early."""
        ops = [map_regions(op, self.region) for op in region.ops]
        dots = [op for op in ops if op.kind == "dot"]
        for at, later in enumerate(dots):
            earlier = dots[:at]
            many = len(earlier) + 1 >= _MANY_MATMULS
            clashing = (op for op in earlier if self.clash(op, later, many))
            if (first := next(clashing, None)) is not None:
                for operand in list(later.values())[:2]:
                    ops = moved(self.program, ops, operand, first)
        same = len(ops) == len(region.ops) and all(new is old for new, old in zip(ops, region.ops, strict=True))
        return region if same else replace(region, ops=tuple(ops))

    def clash(self, first: Op, later: Op, many: bool) -> bool:
        """Return whether descriptors of two matmuls may differ in their swizzle as ptxas does not expect."""
        early, late = set(self.swizzles(first)), set(self.swizzles(later))
        pairs = itertools.product(early, late)
        return any(_is_wrong(*pair) or (many and _is_wrong(*pair[::-1])) for pair in pairs)

    def swizzles(self, dot: Op) -> Iterator[tuple[int, int]]:
        """Yield the codes of swizzles that operands of a matmul may have, each with the operand's steps along K.

        A computed left operand is in registers. Only 2-byte elements need not be contiguous along K.
        """
        lhs, rhs = list(dot.values())[:2]
        for value, depth in ((lhs, lhs.dims[-1]), (rhs, rhs.dims[-2])):
            itemsize, source = value.dtype.itemsize, self.source(value)
            if value is rhs or source is not None:
                steps = self.lanes(depth) * itemsize // _STEP_BYTES
                for dim in value.dims[-2:] if itemsize == 2 else (depth,):
                    if source is None or itemsize != 2 or self.is_contiguous(source, dim):
                        yield _code(self.lanes(dim) * itemsize), steps

    def source(self, value: Value) -> Op | None:
        """Return the load that an operand is a view of; None for a computed operand."""
        op = self.makers.of(value)
        while op is not None and OPS[op.kind].is_view:
            op = self.makers.of(next(op.values()))
        return op if op is not None and op.kind == "load" else None

    def is_contiguous(self, load: Op, dim: Dim) -> bool:
        """Return whether the memory of a load is contiguous along ``dim``. Its tile in shared memory is so, too."""
        attrs = load.attributes(MemoryAttrs)
        strides = self.program.tensors[attrs.tensor].strides
        unit = {index.block for index, stride in zip(attrs.indices, strides, strict=True) if hint_of(stride) == 1}
        return dim.block is None or dim.block in unit

    def lanes(self, dim: Dim) -> int:
        return dim.lanes(self.sizes)


def _is_wrong(less: tuple[int, int], more: tuple[int, int]) -> bool:
    """Return whether ptxas may mistake the second of two descriptors, each a code of a swizzle and steps along K."""
    return less[0] < more[0] and less[1] >= _FEWER_STEPS and more[1] >= _MORE_STEPS


def _code(row_bytes: int) -> int:
    """Return the code of the swizzle of a tile whose rows have so many bytes."""
    return next((code for code, swizzle in enumerate(_SWIZZLES, 1) if row_bytes >= swizzle), 0)
