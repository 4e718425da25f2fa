"""Operands that warps copy through registers: of any stride, major mode and type, or computed from other tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from ...._support.records import dataclass
from ....hardware import TMA_ALIGNMENT_BYTES
from .dtypes import DTYPES, itemsize, per_byte
from .epilogue import ARITY, COLUMN_NUMBER, ROW_NUMBER, Constant, Instruction, LineNumbers
from .refusal import Refusal

COPY_WARPS = 8
"""Warps of the role that copies operands: the loads of a K tile are in the registers of all of them."""
MAX_COPIED_SUMS = 64
"""Accumulator registers per thread that leave enough of the SM's registers to warps that copy through theirs."""
CHUNK_BYTES = 16
"""Contiguous bytes of shared memory that a thread writes at a time: a chunk stays whole under every swizzle."""
SOURCE_DTYPES = tuple(DTYPES)
MAX_LOADED_REGISTERS = (64, 48)
"""Registers of loads in flight per copying thread: of 128 at launch, and of 96 with two consumer warpgroups."""
NOT_COPIED = (
    " is copied by warps, which is implemented without scales that the matrix unit multiplies by, and where its sizes and"
    " strides are known when the kernel is compiled, and all others but the rows of a left operand; use hl.specialize"
)
NIBBLE_GROUP = 128
"""Elements of a line whose bytes are adjacent: the low four bits are the first half of them, the high ones the other."""
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Absolute numbers of e2m1, in the order of their codes."""
RAW_BYTES, MAX_RAW_STAGES = 40960, 8
"""Bytes in flight that hide the latency of memory: raw tiles take at most so many, or two stages."""
CONVERTED_BYTES = 98304
"""The same of an SM whose warps convert raw tiles in their registers: other stages are small."""
SLICED_BYTES, SLICED_STAGES = 131072, 12
"""The same where each slice of K is converted by warps of its own, which hold a stage while they multiply."""
MAX_TURN_BYTES = 16384
"""Bytes of raw tiles that half of the copying warps have in registers, 32 of each thread; half of it with other sources.
"""
MAX_OFFSET = 64
"""The largest offset of integers that are converted in pairs: 128 less it, and all sums, are exact in bfloat16."""
MAX_RAW_ITEM_BYTES = 4
"""Bytes of an element of a raw tile."""
LINE_DTYPES = ("int32", "int64")
"""Types of the numbers of picked lines."""
GRANULES = (16, 8, 4)
"""Bytes that one cp.async copies."""
MAX_SPAN = 2**31 - 1
"""Elements of a source from its first to its last one: offsets are 32-bit."""


@dataclass(frozen=True, kw_only=True)
class CopySource:
    """A tensor that elements of an operand are computed from.

    That of line ``i`` at ``k`` is ``i * pitch + k * k_pitch`` elements after the first. A stride of 0 repeats a number, and
    ``shared`` neighbors along K have one in common: that of ``k // shared``. Of 4-bit numbers a byte has those at ``k`` and
    ``k + apart``, the former in its low bits unless it is ``high_first``. Bytes follow those of the ``2 * apart`` numbers
    before.
    Line ``i`` of a source with ``picked`` lines is the one whose number ``Copied.lines`` has at ``i``. Those of a source with
    ``k_picked`` elements along K are numbers of these.
    """

    name: str
    dtype: str
    pitch: int
    k_pitch: int
    picked: int = 0
    """Lines of the tensor, of which numbers pick; 0 where lines are those of the operand."""
    k_picked: int = 0
    """The same along K."""
    aligned: bool = True
    """False for elements that begin within a tensor, between multiples of 16 bytes."""
    batch: tuple[int, ...] = ()
    """Elements from one matmul of a batch to the next along each of its dimensions, innermost first; empty where all read the
    same, and for the first source, whose strides are those of the operand."""
    shared: int = 1
    apart: int = NIBBLE_GROUP // 2
    high_first: bool = False

    @property
    def is_interleaved(self) -> bool:
        """True for 4-bit numbers of which neighbors along K share a byte."""
        return per_byte(self.dtype) > 1 and self.apart == 1

    @property
    def stored_pitch(self) -> int:
        """Elements in memory from one line to the next: bytes of 4-bit numbers."""
        return self.pitch // per_byte(self.dtype)

    @property
    def lines_are_contiguous(self) -> bool:
        """True if neighboring lines are adjacent in memory, and neighbors along K are not."""
        return self.stored_pitch == 1 and (self.k_pitch != 1 or self.is_interleaved or self.shared > 1)

    def __repr__(self) -> str:
        more = f", picked={self.picked}" if self.picked else ""
        more += f", k_picked={self.k_picked}" if self.k_picked else ""
        more += "" if self.aligned else ", aligned=False"
        more += f", batch={self.batch}" if self.batch else ""
        more += f", shared={self.shared}" if self.shared > 1 else ""
        more += f", apart={self.apart}" if self.apart != NIBBLE_GROUP // 2 else ""
        more += ", high_first=True" if self.high_first else ""
        strides = f"pitch={self.pitch}, k_pitch={self.k_pitch}"
        return f"CopySource(name={self.name!r}, dtype={self.dtype!r}, {strides}{more})"


@dataclass(frozen=True, kw_only=True)
class Copied:
    """An operand whose elements warps load, compute in fp32 and store to shared memory.

    ``operand`` is ``a``, ``b``, or the label of a second B. The first values are ``sources``, then one follows per
    instruction. The last value is rounded to the operand's type. ``row_number`` is the index of the line, and
    ``column_number`` the index along K. With a ``granule``, cp.async copies so many bytes at a time past the registers.
    With ``raw``, TMA loads tiles of the first source to shared memory, from which warps read them (on wgmma).
    """

    operand: str
    sources: tuple[CopySource, ...]
    instructions: tuple[Instruction, ...] = ()
    granule: int = 0
    raw: bool = False
    lines: LineNumbers | None = None
    """A vector of numbers of lines, for sources whose lines are picked."""

    def __repr__(self) -> str:
        hidden = {"lines"} if self.lines is None else set()
        shown = [each.name for each in dataclasses.fields(self) if each.name not in hidden]
        return f"Copied({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    @property
    def tensors(self) -> tuple[CopySource | LineNumbers, ...]:
        """The sources, and the vector of numbers of lines, if there is one."""
        return self.sources if self.lines is None else (*self.sources, self.lines)

    @property
    def last(self) -> int:
        """Number of the value that is stored."""
        return len(self.sources) + len(self.instructions) - 1

    @property
    def is_packed(self) -> bool:
        """True if its first source has 4-bit integers, which only the warps that multiply convert."""
        return per_byte(self.sources[0].dtype) > 1 and not self.sources[0].is_interleaved

    @property
    def is_gathered(self) -> bool:
        """True if only a kernel before the matmul computes it: of picked lines, of 4-bit neighbors, or of shared numbers."""
        return self.lines is not None or any(each.shared > 1 or each.is_interleaved for each in self.sources)

    @property
    def offset(self) -> int | None:
        """The number that its instructions add to integers; None if they do anything else."""
        if not self.instructions:
            return 0
        (made, *others) = self.instructions
        number = made.arguments[-1]
        if others or made.op not in ("add", "sub") or made.arguments[0] != 0 or not isinstance(number, Constant):
            return None
        value = float(number.text) * (-1 if made.op == "sub" else 1)
        return int(value) if value.is_integer() and abs(value) <= MAX_OFFSET else None

    @property
    def lines_are_contiguous(self) -> bool:
        """True if neighboring threads should read neighboring lines, rather than neighboring elements of a line."""
        return self.sources[0].k_pitch != 1

    def check(self, lines: int, k: int) -> None:
        """Check its types, strides and instructions. Raises ``Refusal``."""
        for source in self.sources:
            if source.dtype not in SOURCE_DTYPES:
                raise Refusal(
                    f"{source.name} is of {source.dtype}; copies of {', '.join(SOURCE_DTYPES)} are implemented"
                )
            if source.pitch < 0 or source.k_pitch < 0:
                raise Refusal(
                    f"{source.name} has strides of {source.pitch} and {source.k_pitch}; none below 0 is implemented"
                )
            span = span_of(source, lines, k)
            if span > MAX_SPAN:
                raise Refusal(f"{source.name} spans {span} elements; copies of up to {MAX_SPAN} are implemented")
        picked = {side for each in self.sources for side, of in (("m", each.picked), ("k", each.k_picked)) if of}
        if bool(picked) != (self.lines is not None) or (picked and (self.granule or self.raw)):
            raise Refusal(f"lines of {self.sources[0].name} are picked without a vector of their numbers")
        if len(picked) > 1:
            raise Refusal(f"{self.lines.name if self.lines else 'a vector'} picks lines, and elements along K")
        check_lines(self.lines)
        if self.granule and (self.instructions or self.granule > granule_of(self.sources[0], 0)):
            raise Refusal(f"{self.sources[0].name} cannot be copied by {self.granule} bytes at a time")
        if self.raw and (self.granule or raw_major(self.sources[0], ()) is None):
            raise Refusal(f"TMA cannot load tiles of {self.sources[0].name}")
        for number, made in enumerate(self.instructions):
            arity = {**ARITY, COLUMN_NUMBER: 0, ROW_NUMBER: 0}.get(made.op)
            values = [x for x in made.arguments if not isinstance(x, Constant)]
            if arity != len(made.arguments) or any(not 0 <= x < len(self.sources) + number for x in values):
                raise Refusal(f"instruction {number} of a computed operand, {made.op}, is not implemented")


def span_of(source: CopySource, lines: int, k: int) -> int:
    """Return the elements from the first one of a source to its last one."""
    return ((source.picked or lines) - 1) * source.pitch + (
        (source.k_picked or k) - 1
    ) // source.shared * source.k_pitch


def check_lines(lines: LineNumbers | None) -> None:
    """Check a vector of numbers of lines, if there is one. Raises ``Refusal``."""
    if lines is not None and (lines.dtype not in LINE_DTYPES or lines.pitch < 0):
        raise Refusal(f"{lines.name} of {lines.dtype} with a stride of {lines.pitch} picks lines")


def granule_of(source: CopySource, batch_pitch: int) -> int:
    """Return the bytes that cp.async can copy at a time, aligned and contiguous along K; 0 if they are fewer than 4."""
    size = itemsize(source.dtype)
    if source.shared > 1 or source.is_interleaved:
        return 0
    if source.k_pitch != 1 or not source.aligned:
        return size if size in GRANULES else 0
    steps = (source.pitch * size, batch_pitch * size)
    return next((each for each in GRANULES if not any(step % each for step in steps)), 0)


def raw_major(source: CopySource, batch_pitches: Sequence[int]) -> Literal["k", "mn"] | None:
    """Return the contiguous dimension of a source that TMA can load; None if there is none."""
    size, packed = itemsize(source.dtype), per_byte(source.dtype)
    if size > MAX_RAW_ITEM_BYTES or not source.aligned or source.shared > 1 or source.is_interleaved:
        return None
    contiguous = {"k": (source.k_pitch, source.pitch), "mn": (source.pitch, source.k_pitch)}
    for major, (step, pitch) in contiguous.items():
        steps = (pitch, *batch_pitches)
        if step == 1 and pitch > 0 and not any(each * size % (TMA_ALIGNMENT_BYTES * packed) for each in steps):
            return "k" if major == "k" else "mn"
    return None
