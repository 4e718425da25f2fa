"""The operands of a matmul: tensors that TMA loads as they are, or elements that warps copy and compute."""

from __future__ import annotations

import math

import torch

from ...._compiler.ir.grammar import HostTensor, MemoryAttrs, Op, Operand, PointwiseAttrs, Value, ViewAttrs
from ...._shapes import Number, dtype_name
from ...._support.records import dataclass, replace
from ..plan.copied import Copied, CopySource, granule_of, raw_major
from ..plan.dtypes import per_byte
from ..plan.epilogue import Constant, Instruction
from ..plan.records import TMA_ALIGNMENT_BYTES, Major
from ..plan.refusal import Refusal
from .chain import EXAMPLE_MULTIPLE, ROUNDED, Chain, Reference
from .frame import Frame, Place, blocks_of, major_of, numbers_of, picked_lines, place_of
from .names import name_of
from .numbers import equal, is_known, known
from .rewrites.sums import LineSum
from .weights.groups import numbers_of_k

QUANTIZED = {torch.float8_e4m3fn: "round_float8_e4m3fn", torch.float8_e5m2: "round_float8_e5m2"}
"""Rounding to 8-bit floats, by their types."""


@dataclass(frozen=True, kw_only=True)
class Multiplied:
    """An operand of the matmul, of ``dtype`` in shared memory.

    TMA loads the only one of ``tensors``, with contiguous elements along ``major`` and ``pitch`` elements from one line
    to the next. With ``copied`` the tensors are its sources.
    """

    tensors: tuple[HostTensor, ...]
    dtype: torch.dtype
    major: Major
    pitch: Number
    copied: Copied | None = None

    @property
    def tensor(self) -> HostTensor:
        """The tensor that takes the operand's place among arguments."""
        return self.tensors[0]


def common_dtype(frame: Frame, dot: Op) -> torch.dtype:
    """Return the type that the operands of a dot are multiplied in.

    It is that of its operands. Two loads of one 16-bit type that are widened before the dot are multiplied as they are.
    """
    loads = [_loaded(frame, operand) for operand in dot.operands[:2]]
    held = {frame.tensor(op).dtype for op in loads if op is not None}
    if None not in loads and len(held) == 1 and held <= {*ROUNDED}:
        return held.pop()
    left = dot.operands[0]
    assert isinstance(left, Value)
    return left.dtype


def multiplied(
    frame: Frame, value: Operand, wanted: tuple[int, int], dtype: torch.dtype, copies: bool = False
) -> Multiplied:
    """Return an operand of the dot, whose dimensions iterate over the blocks ``wanted``; ``copies`` rules out TMA."""
    op = _loaded(frame, value)
    if op is not None and frame.tensor(op).dtype == dtype and not copies:
        held = _turned(frame, value, wanted)
        if blocks_of(frame, op) != held:
            raise Refusal(f"{frame.tensor(op).name} is not tiled by the dimensions of the dot")
        place = place_of(frame, op, aligned=False)
        if _suits_tma(frame, place):
            major, pitch = major_of(frame, place)
            return Multiplied(tensors=(place.tensor,), dtype=dtype, major=major, pitch=pitch)
    (line,) = (block for block in wanted if block != frame.k)
    return _Elements(frame, line).multiplied(value, dtype, k_major=copies or dtype.itemsize != 2)


def is_transposed(op: Op) -> bool:
    return op.kind == "view" and op.attrs == ViewAttrs("permute", (1, 0))


def _is_widening(op: Op) -> bool:
    source = op.operands[0] if op.attrs == PointwiseAttrs("cast") else None
    return isinstance(source, Value) and source.dtype in ROUNDED and op.result.dtype == torch.float32


def _loaded(frame: Frame, value: Operand) -> Op | None:
    """Return the load of an operand that is at most transposed and widened from 16 bits; None for others."""
    op = frame.maker(value)
    while op is not None and (is_transposed(op) or _is_widening(op)):
        op = frame.maker(op.operands[0])
    return op if op is not None and op.kind == "load" else None


def _turned(frame: Frame, value: Operand, wanted: tuple[int, int]) -> tuple[int, int]:
    """Return the blocks that iterate over the tensor's dimensions, given those of the operand."""
    op = frame.maker(value)
    while op is not None and op.kind != "load":
        wanted = (wanted[1], wanted[0]) if op.kind == "view" else wanted
        op = frame.maker(op.operands[0])
    return wanted


def _suits_tma(frame: Frame, place: Place) -> bool:
    """Return whether TMA loads tiles of a tensor for the matrix unit. Strides that only the launch knows have to be
    multiples of 16 bytes."""
    if place.tensor.id in frame.picks or not place.tensor.aligned:
        return False
    along_k = place.blocks.index(frame.k)
    k_stride, other = place.strides[along_k], place.strides[1 - along_k]
    contiguous = equal(k_stride, 1) or (equal(other, 1) and place.tensor.dtype.itemsize == 2)
    lines = other if equal(k_stride, 1) else k_stride
    steps = [lines, *frame.batch_strides.get(place.tensor.id, ())]
    size = place.tensor.dtype.itemsize
    if not contiguous and not all(map(is_known, (k_stride, other))):
        return True  # refused with its strides, which a copy would need to know
    return contiguous and all(not is_known(step) or step * size % TMA_ALIGNMENT_BYTES == 0 for step in steps)


def sum_along_k(frame: Frame, sums: LineSum, label: str) -> tuple[Copied, tuple[HostTensor, ...]]:
    """Return a sum along K that the epilogue reads as an operand, and the tensors of its terms. Raises ``Refusal``."""
    return _Elements(frame, sums.block).summed(sums.terms, label)


class _Elements(Chain):
    """A trace from an operand of the dot back to loads. Lines take the place of rows, and K that of columns."""

    def __init__(self, frame: Frame, line: int) -> None:
        super().__init__(replace(frame, m=line, n=frame.k, whole_rows=False, by_tiles=False))
        self.sources: dict[str, tuple[CopySource, HostTensor]] = {}
        self.lines: HostTensor | None = None

    def multiplied(self, value: Operand, dtype: torch.dtype, k_major: bool) -> Multiplied:
        """Return the copy of an operand, without its label.

        Where TMA loads the first source, elements stay in its order unless the operand has to be K-major.
        """
        reference = self._unrounded_to(dtype, self.read(value))
        if isinstance(reference, Constant) or not self.sources:
            raise Refusal("an operand of the dot that no tensor is loaded for is not implemented")
        found = sorted(self.sources.values(), key=lambda pair: _dimensions(pair[0]), reverse=True)
        names = {source.name: number for number, (source, _) in enumerate(found)}
        source, tensor = found[0]
        instructions = self._numbered(reference, names)
        lines = None if self.lines is None else numbers_of(self.lines)
        moves = not instructions and tensor.dtype == dtype and lines is None
        batch_pitch = self._batch_pitch(tensor)
        granule = granule_of(source, batch_pitch) if moves else 0
        major = None if granule or lines is not None else raw_major(source, [batch_pitch])
        raw = major == "k" or (major is not None and not k_major)
        copied = Copied(
            operand="",
            sources=tuple(source for source, _ in found),
            instructions=instructions,
            granule=granule,
            raw=raw,
            lines=lines,
        )
        turned = raw and major == "mn"
        along = self.frame.extent(self.frame.m if turned else self.frame.k)
        extent = known(along, f"{'the lines' if turned else 'K'} of an operand that warps copy")
        return Multiplied(
            tensors=(*(each for _, each in found), *([] if self.lines is None else [self.lines])),
            dtype=dtype,
            major="mn" if turned else "k",
            pitch=-(-extent // EXAMPLE_MULTIPLE) * EXAMPLE_MULTIPLE,
            copied=copied,
        )

    def summed(self, value: Operand, label: str) -> tuple[Copied, tuple[HostTensor, ...]]:
        """Return the elements whose sum along K an operand of the epilogue is, and their tensors."""
        reference = self.read(value)
        if isinstance(reference, Constant) or not self.sources or self.lines is not None:
            raise Refusal("a sum along K of elements that no tensor is loaded for as a whole is not implemented")
        found = sorted(self.sources.values(), key=lambda pair: _dimensions(pair[0]), reverse=True)
        names = {source.name: number for number, (source, _) in enumerate(found)}
        sources, instructions = tuple(source for source, _ in found), self._numbered(reference, names)
        copied = Copied(operand=label, sources=sources, instructions=instructions)
        return copied, tuple(tensor for _, tensor in found)

    def _unrounded_to(self, dtype: torch.dtype, value: Reference) -> Reference:
        """Return a value without a rounding that its store as ``dtype`` repeats."""
        made = self.steps[value] if isinstance(value, int) else None
        return made.arguments[0] if made is not None and made.op == {**ROUNDED, **QUANTIZED}.get(dtype) else value

    def _cast(self, op: Op, dtype: torch.dtype) -> Reference:
        """Read a cast. That to 8-bit floats is implemented as the last operation, which the store of the operand repeats."""
        if dtype in QUANTIZED:
            return self.step(QUANTIZED[dtype], (self.read(op.operands[0]),))
        return super()._cast(op, dtype)

    def _picked(self, op: Op, place: Place) -> tuple[int, int]:
        """Return the lines of a tensor, and its elements along K, of which numbers pick; 0 where none do. Raises ``Refusal``."""
        pick = picked_lines(self.frame, op, place, along="mn")
        if pick is None:
            return 0, 0
        if self.lines not in (None, pick.lines):
            raise Refusal(f"an operand of the dot is picked by {pick.lines.name}, and by another tensor")
        self.lines = pick.lines
        size = known(pick.tensor.shape[pick.along], f"the size of {pick.tensor.name}, whose lines are picked,")
        block = op.attributes(MemoryAttrs).indices[pick.along].block
        return (size, 0) if block is not None and self.frame.named(block) == self.frame.m else (0, size)

    def _batch_pitch(self, tensor: HostTensor) -> int:
        """Return the largest divisor of the strides from one matmul of a batch to the next."""
        steps = self.frame.batch_strides.get(tensor.id, ())
        return math.gcd(*(known(step, f"a stride of {tensor.name}, which warps copy,") for step in steps))

    def _numbered(self, value: Reference, names: dict[str, int]) -> tuple[Instruction, ...]:
        numbers: dict[Reference, int] = {name: number for name, number in names.items()}
        instructions: list[Instruction] = []
        for position in sorted(self._steps_of([value])):
            step = self.steps[position]
            arguments = tuple(x if isinstance(x, Constant) else numbers[x] for x in step.arguments)
            numbers[position] = len(names) + len(instructions)
            instructions.append(Instruction(step.op, arguments))
        if not instructions and numbers[value] != len(names) - 1:
            raise Refusal("an operand of the dot that is loaded among others is not implemented")
        return tuple(instructions)

    def _load(self, op: Op) -> Reference:
        shared = numbers_of_k(self.frame, op, self.frame.n)
        place = place_of(self.frame, op, aligned=False) if shared is None else shared.place
        if len({*place.blocks}) < len(place.blocks) or not {*place.blocks} <= {self.frame.m, self.frame.n}:
            raise Refusal(f"{place.tensor.name} is not tiled by the dimensions of the dot")
        strides = dict(zip(place.blocks, place.strides, strict=True))
        pitch, k_pitch = (
            known(strides.get(block, 0), f"a stride of {place.tensor.name}, which warps copy,")
            for block in (self.frame.m, self.frame.n)
        )
        name = name_of(place.tensor)
        picked, k_picked = self._picked(op, place)
        source = CopySource(
            name=name,
            dtype=dtype_name(place.tensor.dtype),
            pitch=pitch,
            k_pitch=k_pitch,
            picked=picked,
            k_picked=k_picked,
            aligned=place.tensor.aligned,
            shared=1 if shared is None else shared.shared,
        )
        if per_byte(source.dtype) > 1 and place.tensor.id in self.frame.pairs:
            source = replace(source, apart=1, high_first=self.frame.pairs[place.tensor.id])
        if name in self.sources and self.sources[name][0] != source:
            source = replace(source, name=f"{name}_{len(self.sources)}")
        self.sources[source.name] = (source, place.tensor)
        return source.name


def _dimensions(source: CopySource) -> tuple[int, bool]:
    return (source.pitch != 0) + (source.k_pitch != 0), source.shared == 1
