"""Networks of sorts: bitonic ones, whose exchanges are between registers, lanes of a warp, or warps.

A sort is unrolled while a thread has few exchanges, and fewer if some are between warps, which wait for each other.
Another is a loop, whose exchanges all go through shared memory (measurement ``sorted_rows``).
"""

from __future__ import annotations

import math

from ..._support.records import dataclass

#: Bytes of a word that an instruction compares, and elements of a thread that are next to each other.
_WORD_BYTES, _RUN = 4, 4
#: Exchanges of words of a thread that are unrolled, within a warp and between warps. The time of ``ptxas`` grows with
#: them.
_MOST, _MOST_BETWEEN = 2048, 512
_WARP = 32


@dataclass(frozen=True)
class Network:
    """The exchanges of a sort along rows of ``lanes``, of all elements together, which are powers of 2.

    ``words`` are the 32-bit words of a key.
    """

    elements: int
    lanes: int
    words: int
    warps: int

    @classmethod
    def of(cls, elements: int, lanes: int, itemsize: int, warps: int) -> Network:
        return cls(elements, lanes, max(1, itemsize // _WORD_BYTES), warps)

    @property
    def stages(self) -> int:
        """The merges of a row, each of twice the length."""
        return (self.lanes - 1).bit_length()

    @property
    def steps(self) -> int:
        """The exchanges of an element."""
        return self.stages * (self.stages + 1) // 2

    @property
    def exchanges(self) -> int:
        """The exchanges of words of a thread."""
        return self.steps * self.words * -(-self.elements // (_WARP * self.warps))

    @property
    def warps_of_a_row(self) -> int:
        return max(1, min(self.warps, self.lanes // (_WARP * _RUN)))

    @property
    def is_unrolled(self) -> bool:
        return self.exchanges <= (_MOST if self.warps_of_a_row == 1 else _MOST_BETWEEN)

    @property
    def between_warps(self) -> int:
        """The steps of a row that exchange elements of different warps."""
        if not self.is_unrolled:
            return self.steps
        first = int(math.log2(_WARP * _RUN))
        return sum(self.stages - bit for bit in range(first, first + int(math.log2(self.warps_of_a_row))))

    @property
    def between_lanes(self) -> int:
        """The steps of a row that exchange elements of different lanes of a warp."""
        if not self.is_unrolled:
            return 0
        first = int(math.log2(_RUN))
        return sum(max(0, self.stages - bit) for bit in range(first, first + int(math.log2(_WARP))))
