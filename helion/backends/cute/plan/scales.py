"""Scales of blocks of K, which multiply the partial sum of a block before it is accumulated, and parts of K: those of groups,
and those that tiles end."""

from __future__ import annotations

from typing import Literal

from ...._support.records import dataclass
from .dtypes import per_byte

Side = Literal["row", "column"]
MICRO_BLOCK = 32
"""Elements of K with one scale in microscaling formats, which the matrix unit multiplies itself (OCP MX specification)."""
MICRO_FORMATS = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e2m1": "float4_e2m1fn_x2"}
"""Types of operands in microscaling formats, by the format."""
ATOM_LINES, ATOM_BLOCKS, ATOM_BYTES = 128, 4, 512
"""Rows or columns, and blocks of K, of an atom of scales in shared memory, and its bytes (PTX ISA, scale factors of
``tcgen05.mma``): line number 32 i + j is word i of row j of 16 bytes."""
SCALE_DTYPES = {"uint8": "cutlass.Float8E8M0FNU", "float8_e4m3fn": "cutlass.Float8E4M3FN"}
"""The DSL's types of these scales. Those of e4m3 are of smaller blocks of 4-bit numbers (NVFP4)."""
SMALL_BLOCK = 16
"""Numbers along K with one scale in e4m3."""
ATOM_COLUMNS = 4
"""Columns of tensor memory of an atom."""


LONGEST = "longest"
"""The name of the most rows of a group among the numbers that a launch passes."""


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Groups of the rows of A and of the outputs, or of K: tiles have rows of one group each.

    The offsets are ``size`` + 1 numbers on the device, with a stride of ``pitch`` elements. Number g is the first row of
    group g, and number g + 1 the row after its last one. No more than ``longest`` rows of a group are computed, if that
    is given.

    With ``rows``, the numbers are those of the groups of blocks of so many rows instead, from 0 to ``size`` - 1. With a
    ``span``, they are ``size`` counts: of each ``span`` rows, the first ones are those of a group.
    """

    name: str
    size: int
    dtype: str
    pitch: int = 1
    longest: int | None = None
    rows: int | None = None
    span: int | None = None

    def most_tiles(self, m: int, rows: int) -> int:
        """Return the most tiles of ``rows`` that ``m`` rows have: of each group, one that its rows do not fill."""
        return -(-m // rows) if self.rows is not None else m // rows + self.size


@dataclass(frozen=True, kw_only=True)
class Ends:
    """The side of D whose tiles end K: those before the end of tile t are the first (t + 1) * ``tile`` elements. A plan knows
    the ``tile``, which is all of the side before.

    With ``groups`` it is the batch instead: the K of a matmul are the elements of its group, of K of all.
    """

    side: Literal["m", "n", "batch"]
    tile: int = 0
    groups: Groups | None = None


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A tensor of scales. Row or column ``x`` of D and block ``b`` of K use element ``x // lines * pitch + b *
    k_pitch``.

    ``lines`` rows, or columns, share a scale. With ``whole`` all of a tile share one, so a tile may cover no more than
    ``lines``. Each matmul of a batch has its own, ``batch`` elements after those of the one before.
    """

    name: str
    side: Side
    dtype: str
    pitch: int
    k_pitch: int
    lines: int = 1
    whole: bool = False
    batch: int = 0

    @property
    def label(self) -> str:
        """Its name in generated code, distinct from the kernel's own names."""
        return f"{self.name}_scale"


@dataclass(frozen=True, kw_only=True)
class BlockScales:
    """The scales of blocks of ``k`` elements of K, or bytes of 4-bit numbers, at most one per row of D and one per column."""

    k: int
    factors: tuple[Scale, ...]

    @property
    def micro(self) -> bool:
        """True if the matrix unit multiplies by scales."""
        return self.k <= MICRO_BLOCK

    @property
    def dsl(self) -> str:
        """The DSL's type of scales that the matrix unit multiplies by."""
        return SCALE_DTYPES[self.factors[0].dtype]

    def of(self, side: Side) -> Scale | None:
        return next((factor for factor in self.factors if factor.side == side), None)


def factors_of(scales: BlockScales | None) -> tuple[Scale, ...]:
    """Return the scales of blocks of K, if there are any."""
    return () if scales is None else scales.factors


def micro_block(dtype: str, of_scales: str) -> int:
    """Return the elements of an operand with one scale of a type in a microscaling format, or its bytes of 4-bit numbers."""
    return (SMALL_BLOCK if of_scales == "float8_e4m3fn" else MICRO_BLOCK) // per_byte(dtype)


def promoted(scales: BlockScales | None) -> BlockScales | None:
    """Return the scales that partial sums are multiplied by outside of the matrix unit."""
    return None if scales is None or scales.micro else scales
