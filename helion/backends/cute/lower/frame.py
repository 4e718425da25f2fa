"""Which loops a product has, what makes each value, and where tensors lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...._compiler.ir.grammar import HostTensor, MemoryAttrs, Op, Operand, Program, Value
from ..plan.epilogue import OperandKind
from ..plan.records import Major
from ..plan.refusal import Refusal


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The loops of the program, and which op gives each value."""

    program: Program
    makers: Mapping[int, Op]
    m: int
    n: int
    k: int

    def maker(self, value: Operand) -> Op | None:
        return self.makers.get(value.number) if isinstance(value, Value) else None

    def tensor(self, op: Op) -> HostTensor:
        return self.program.tensors[op.attrs.tensor]

    def extent(self, block: int) -> int:
        return integer(self.program.blocks[block].extent, "an extent")


def integer(number: object, what: str) -> int:
    if not isinstance(number, int):
        raise Refusal(f"{what} is known only at run time")
    return number


def blocks_of(op: Op) -> tuple[int, ...]:
    """Which block walks over each dimension of the tensor that `op` addresses."""
    attrs = op.attrs
    assert isinstance(attrs, MemoryAttrs)
    plain = all(
        i.kind == "block" and isinstance(i.shift, int) and i.shift == 0 and i.operand is None for i in attrs.indices
    )
    if not plain or attrs.mask is not None:
        raise Refusal("loads and stores of whole tiles, without offsets and masks, are implemented")
    return tuple(index.block for index in attrs.indices if index.block is not None)


def covered(frame: Frame, op: Op, blocks: Sequence[int]) -> HostTensor:
    """The tensor of `op`, whose extents are those of the loops over it."""
    tensor = frame.tensor(op)
    wanted = tuple(frame.extent(block) for block in blocks)
    if not all(isinstance(number, int) for number in (*tensor.shape, *tensor.strides)):
        raise Refusal(f"{tensor.name} has a shape that is known only at run time")
    if tensor.shape != wanted:
        raise Refusal(f"{tensor.name} is {tuple(tensor.shape)}, of which tiles cover {wanted}")
    if not tensor.aligned:
        raise Refusal(f"{tensor.name} may begin at an address that is no multiple of 16 bytes")
    return tensor


def major_of(frame: Frame, tensor: HostTensor, blocks: tuple[int, ...]) -> tuple[Major, int]:
    """Which dimension is contiguous, and the stride of the other; K where both strides are 1."""
    along_k = blocks.index(frame.k)
    k_stride, other = (integer(tensor.strides[at], "a stride") for at in (along_k, 1 - along_k))
    if k_stride == 1:
        return "k", other
    if other == 1:
        return "mn", k_stride
    raise Refusal(f"{tensor.name} has strides {tuple(tensor.strides)}, of which none is 1")


def kind_of(frame: Frame, op: Op) -> tuple[OperandKind, int]:
    """The kind of an operand and its pitch. A stride of 0 is looked for before an exact operand: an expanded vector is read as the vector that it is."""
    blocks = blocks_of(op)
    tensor = covered(frame, op, blocks)
    step = max((integer(stride, "a stride") for stride in tensor.strides), default=0)
    if blocks == (frame.n,) and step:
        return "row", step
    if blocks == (frame.m,) and step:
        return "column", step
    if blocks == (frame.m, frame.n):
        if tensor.strides[0] == 0 and step:
            return "row", step
        if tensor.strides[1] == 0 and step:
            return "column", step
        if tensor.strides[1] == 1:
            return "exact", integer(tensor.strides[0], "a stride")
    raise Refusal(f"{tensor.name} with strides {tuple(tensor.strides)} is no matrix, row or column of the epilogue")
