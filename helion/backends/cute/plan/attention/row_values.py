"""Numbers of rows that a kernel before that of attention's gradients computes in the workspace: sums over the dimensions of a
head, as of ``do * o``, or rows that are computed, as scaled queries.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from ....._support.records import dataclass
from ..dtypes import itemsize
from ..operands import ALIGNMENT_BYTES
from ..records import SUM_BYTES, TMA_ALIGNMENT_BYTES
from ..refusal import Refusal
from ..workspace import COUNTER_BYTES, MAX_COUNTERS
from .numbers import is_known
from .operands import Matrix, Mode, Place, Source, SourceKind
from .records import Formula

CHUNK = 8
"""Columns that a thread computes: 16 bytes of an operand."""
MOST_COLUMNS = 256
"""Columns of a warp."""
MOST_ELEMENTS = 2**31
"""Elements that an offset of 32 bits reaches."""


@dataclass(frozen=True, kw_only=True)
class RowValues:
    """A formula of the elements of rows of some matrices, stored in ``dtype``, or its sum over the columns in fp32.

    Values depend on the coordinates ``axes`` of a head, whose sizes are ``heads``.
    """

    name: str
    reads: tuple[Matrix, ...]
    formula: Formula
    sums: bool
    axes: tuple[int, ...]
    heads: tuple[int, ...]
    rows: int
    columns: int
    dtype: str

    @property
    def pitch(self) -> int:
        """Elements from one row to the next."""
        return 1 if self.sums else self.columns

    @property
    def head_pitch(self) -> int:
        """Elements from one head to the next, of which TMA takes the bytes."""
        step = TMA_ALIGNMENT_BYTES // itemsize(self.dtype)
        return -(-self.rows * self.pitch // step) * step

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The dimensions of heads, the one with the least stride first."""
        found, stride = list[Mode](), self.head_pitch
        for axis, size in reversed([*zip(self.axes, self.heads, strict=True)]):
            found.append(Mode(size=size, stride=stride, at=Place("axis", (axis,))))
            stride *= size
        return tuple(found)

    @property
    def total(self) -> int:
        """Rows of all heads."""
        return math.prod(self.heads) * self.rows

    @property
    def bytes(self) -> int:
        size = math.prod(self.heads) * self.head_pitch * itemsize(self.dtype)
        return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    @property
    def moved_bytes(self) -> int:
        """Bytes that the kernel reads and writes."""
        read = sum(itemsize(each.dtype) for each in self.reads) * self.columns
        return self.total * (read + itemsize(self.dtype) * self.pitch)

    @property
    def matrix(self) -> Matrix:
        """The rows as an operand of matmuls."""
        return Matrix(name=self.name, dtype=self.dtype, columns=self.columns, pitch=self.pitch, modes=self.modes)

    def source(self, kind: SourceKind) -> Source:
        """Return the sums as a source of formulas, with a number per ``query`` or per ``key``."""
        pitches = (self.pitch, 0) if kind == "query" else (0, self.pitch)
        return Source(name=self.name, kind=kind, dtype=self.dtype, pitches=pitches, modes=self.modes)


def offsets(values: Sequence[RowValues]) -> list[int]:
    """Return where values are in the workspace, in fp32 numbers: after its counters."""
    ends = itertools.accumulate((each.bytes for each in values), initial=MAX_COUNTERS * COUNTER_BYTES)
    return [end // SUM_BYTES for _, end in zip(values, ends, strict=False)]


def values_bytes(values: Sequence[RowValues]) -> int:
    """Return the bytes of the workspace of a launch, its counters included; 0 without values."""
    return MAX_COUNTERS * COUNTER_BYTES + sum(each.bytes for each in values) if values else 0


def check_row_values(values: RowValues) -> None:
    """Check that a kernel can compute the values. Raises ``Refusal``."""
    name = " and ".join(dict.fromkeys(each.name for each in values.reads))
    if not all(map(is_known, (*values.heads, values.rows))) or any(
        not is_known(number)
        for each in values.reads
        for number in (each.pitch, each.offset, *(mode.stride for mode in each.modes))
    ):
        raise Refusal(
            f"rows of {name} that are computed in the loop, or their sums, are implemented for sizes and strides that are"
            " known when the kernel is compiled; use static_shapes=True, or compute them before the kernel"
        )
    if values.columns % CHUNK or values.columns > MOST_COLUMNS:
        raise Refusal(
            f"rows of {values.columns} columns of {name} that are computed in the loop; multiples of {CHUNK} up to"
            f" {MOST_COLUMNS} are implemented"
        )
    if math.prod(values.heads) * values.head_pitch >= MOST_ELEMENTS:
        raise Refusal(
            f"{values.total} rows of {name} that are computed in the loop are too many for offsets of 32 bits"
        )
