"""Addressing of loads and stores: pointers, block pointers or tensor descriptors.

A config requests a mechanism per access; an access that cannot use it falls back to pointers, which always work. Block
pointers and descriptors move rectangular tiles and check the bounds of the *tensor*. They are correct only where a
tile's lanes out of range are the lanes beyond the end of the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Literal

import torch

from ...._compiler.ir.effects import is_fence, order_of, own_effects
from ...._compiler.ir.grammar import (
    AddressAttrs,
    ForAttrs,
    HostTensor,
    Index,
    LoopAxis,
    MemoryAttrs,
    Op,
    Program,
    Region,
    Root,
)
from ...._compiler.ir.operands import unaddressed
from ...._compiler.ir.ops import OPS
from ...._compiler.passes.always.order_memory import overlapping_storages
from ...._compiler.passes.analysis.accesses import Launched
from ...._shapes import Expr, fixed_at
from ...._support.records import dataclass
from ....hardware import DESCRIPTOR_RANKS, Target

Mechanism = Literal["pointer", "block_ptr", "tensor_descriptor"]

#: A descriptor's rows, and each of its strides, are multiples of this many bytes (CUDA's tensor maps). TMA stores the
#: last ones of a row whole. Triton 3.6 places tiles with fewer bytes than TMA's alignment in shared memory too closely:
#: "misaligned address".
_DESCRIPTOR_BYTES, _LEAST_BOX_BYTES = 16, 128


@dataclass(frozen=True, kw_only=True)
class Box:
    """An access by block pointer or descriptor. ``order`` lists the tensor's dimensions with the contiguous one last;
    ``check`` the dimensions where the tile may extend past the end.
    """

    mechanism: Mechanism
    order: tuple[int, ...]
    check: tuple[int, ...]


def plan_boxes(
    program: Program,
    sizes: Mapping[int, int],
    wanted: Mapping[int, str],
    available: frozenset[str],
    launched: Launched,
    target: Target,
) -> dict[int, Box]:
    """Return the accesses that do not use pointers, by op.

    ``wanted`` maps memory slots to mechanisms; ``available`` are those of the code generator.
    """
    if all(mechanism == "pointer" for mechanism in wanted.values()):
        return {}
    finder = _Finder(program, sizes, wanted, available, target)
    for root in program.roots:
        finder.rewritten = _rewritten(program, root, launched)
        finder.fenced = _fenced(root)
        finder.region(root.body, {axis.block: axis for axis in root.axes})
    return finder.boxes


def _rewritten(program: Program, root: Root, launched: Launched) -> frozenset[int]:
    """Return the storages that one kernel both reads and writes, or whose elements it writes more than once."""
    read: set[int] = set()
    written: set[int] = set()
    for op in root.body.walk():
        if isinstance(op.attrs, (MemoryAttrs, AddressAttrs)):
            for effect in own_effects(program, op):
                own = set() if effect.storage is None else {effect.storage}
                read |= own if effect.reads else set()
                written |= own if effect.writes else set()
    return frozenset(read & written) | overlapping_storages(program, root, launched)


def _fenced(root: Root) -> frozenset[int]:
    """Return the stores that may precede a release, and the accesses that may follow an acquire, by op.

    They do so in the order of the program, or in another iteration of a loop around both.
    """
    found: set[int] = set()
    for fence, around in _fences(root.body, ()):
        order, loops = order_of(fence), {inner.number for loop in around for inner in loop.walk()}
        places = {op.number: at for at, op in enumerate(root.body.walk())}
        for op in root.body.walk():
            again, before = op.number in loops, places[op.number] < places[fence.number]
            released = order.releases and op.kind == "store" and (before or again)
            if released or (order.acquires and (not before or again)):
                found.add(op.number)
    return frozenset(found)


def _fences(region: Region, around: tuple[Op, ...]) -> Iterator[tuple[Op, tuple[Op, ...]]]:
    """Yield the fences of a region, with the loops around them."""
    for op in region.ops:
        if is_fence(op):
            yield op, around
        for child in op.regions:
            yield from _fences(child, (*around, op) if OPS[op.kind].is_loop else around)


class _Finder:
    def __init__(
        self,
        program: Program,
        sizes: Mapping[int, int],
        wanted: Mapping[int, str],
        available: frozenset[str],
        target: Target,
    ) -> None:
        self.program = program
        self.sizes = sizes
        self.wanted = wanted
        self.available = available
        self.target = target
        self.boxes: dict[int, Box] = {}
        self.rewritten: frozenset[int] = frozenset()
        self.fenced: frozenset[int] = frozenset()

    def region(self, region: Region, active: Mapping[int, LoopAxis]) -> None:
        for op in region.ops:
            if isinstance(op.attrs, MemoryAttrs) and op.kind != "atomic":
                box = self.box(op, op.attrs, active)
                if box is not None:
                    self.boxes[op.number] = box
            inner = active
            if isinstance(op.attrs, ForAttrs):
                inner = {**active, **{axis.block: axis for axis in op.attrs.axes}}
            for child in op.regions:
                self.region(child, inner)

    def box(self, op: Op, attrs: MemoryAttrs, active: Mapping[int, LoopAxis]) -> Box | None:
        mechanism = self.wanted.get(attrs.slot, "pointer")
        tensor = self.program.tensors[attrs.tensor]
        if mechanism == "pointer" or mechanism not in self.available:
            return None
        if attrs.mask is not None or attrs.mark is not None or self.program.index_dtype != torch.int32:
            return None
        if tensor.dtype == torch.bool:  # block pointers and descriptors access bytes only
            return None
        if not any(index.kind == "block" for index in attrs.indices):  # one element, a scalar in generated code
            return None
        if any(isinstance(n, Expr) for n in (*tensor.shape, *tensor.strides)):
            return None
        if unaddressed(attrs.indices, op.operands, op.result.dims):
            return None
        check: list[int] = []
        for dim, index in enumerate(attrs.indices):
            if not self.is_box(index, tensor, dim, active, [] if attrs.padded else check, padded=attrs.padded):
                return None
        unit = [d for d, stride in enumerate(tensor.strides) if stride == 1 and tensor.shape[d] != 1]
        if mechanism == "tensor_descriptor":
            if not (self.target.has("tensor_descriptor") and self.fits_descriptor(tensor, attrs, unit)):
                return None
            if (
                op.kind == "store"
                and unit[0] in check
                and tensor.shape[unit[0]] * tensor.dtype.itemsize % _DESCRIPTOR_BYTES
            ):
                return None
            if tensor.storage in self.rewritten:
                # barriers between threads do not order TMA stores with later accesses
                return None
            if op.number in self.fenced:
                # nor with accesses of other programs after a release or before an acquire
                return None
        elif not unit:
            unit = [tensor.ndim - 1]
        order = (*(d for d in range(tensor.ndim) if d != unit[-1]), unit[-1])
        return Box(mechanism=mechanism, order=order, check=tuple(check))  # type: ignore[arg-type]

    def is_box(
        self,
        index: Index,
        tensor: HostTensor,
        dim: int,
        active: Mapping[int, LoopAxis],
        check: list[int],
        padded: bool,
    ) -> bool:
        """Return whether one subscript is a scalar or a plain tile whose lanes out of range lie beyond the tensor's
        end.

        They may lie in the tensor where the access is ``padded``.
        """
        if index.kind != "block":
            return index.kind == "scalar"
        assert index.block is not None
        block = self.program.blocks[index.block]
        walked = index.block if block.part is None else block.part.block
        size, axis = self.sizes[walked], active.get(walked)
        if index.operand is not None or not isinstance(index.shift, int) or block.merged:
            return False
        if axis is None and block.kind != "full":
            return False
        if axis is not None and axis.whole:
            return index.shift >= 0
        begin, end = (axis.begin, axis.end) if axis is not None else (0, block.extent)
        if not isinstance(begin, int) or not isinstance(end, int):
            return False
        if (end - begin) % size == 0 and end > begin:
            return index.shift >= 0
        check.append(dim)
        return fixed_at(index.shift, 0) and (padded or end == tensor.shape[dim])

    def fits_descriptor(self, tensor: HostTensor, attrs: MemoryAttrs, unit: list[int]) -> bool:
        """Return whether the rules of CUDA's tensor maps allow a descriptor."""
        if tensor.ndim not in DESCRIPTOR_RANKS or len(unit) != 1 or not tensor.aligned or tensor.dtype == torch.bool:
            return False
        itemsize = tensor.dtype.itemsize
        for dim, (stride, index) in enumerate(zip(tensor.strides, attrs.indices, strict=True)):
            assert isinstance(stride, int)
            if dim == unit[0]:
                if index.kind != "block" or self.sizes[index.block] * itemsize < _DESCRIPTOR_BYTES:  # type: ignore[index]
                    return False
            elif stride * itemsize % _DESCRIPTOR_BYTES or stride == 0:
                return False
            if index.kind == "block" and self.sizes[index.block] > tensor.shape[dim]:  # type: ignore[index]
                return False
        sides = (self.sizes[index.block] for index in attrs.indices if index.kind == "block")  # type: ignore[index]
        return math.prod(sides) * itemsize >= _LEAST_BOX_BYTES
