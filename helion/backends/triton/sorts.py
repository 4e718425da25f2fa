"""Networks of sorts: bitonic ones, whose exchanges are between registers, lanes of a warp, or warps.

A sort of keys of one word in one warp is unrolled while a thread has few exchanges. Another is a loop over the merges
of longer and longer runs (measurement ``sorted_rows``).
"""

from __future__ import annotations

import math

from ..._support.records import dataclass

#: Bytes of a word that an instruction compares, and elements of a thread that are next to each other.
_WORD_BYTES, _RUN = 4, 4
#: Exchanges of a thread that are unrolled. The time of ``ptxas`` grows with them.
_MOST = 2048
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
        return self.words == self.warps_of_a_row == 1 and self.exchanges <= _MOST

    @property
    def bits_between(self) -> tuple[int, int]:
        """The first place of the bits of a lane that are different in each warp, and the place after the last."""
        first = int(math.log2(_WARP))
        return first, first + int(math.log2(max(1, min(self.warps, self.lanes // _WARP))))

    @property
    def between_warps(self) -> int:
        """The steps of a row that exchange elements of different warps."""
        return 0 if self.is_unrolled else sum(max(0, self.stages - bit) for bit in range(*self.bits_between))

    @property
    def between_lanes(self) -> int:
        """The steps of a row that exchange elements of different lanes of a warp."""
        first = int(math.log2(_RUN)) if self.is_unrolled else 0
        return sum(max(0, self.stages - bit) for bit in range(first, first + int(math.log2(_WARP))))
