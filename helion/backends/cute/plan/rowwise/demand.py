"""Everything about a row problem that its layout depends on."""

from __future__ import annotations

import functools
import math

from ....._support.records import dataclass

GRANULE_BYTES = 16
"""The smallest unit of a bulk copy, and the largest vectorized access of a thread."""
WORD_BYTES, HALF_BYTES = 4, 2
MOST_PART_LANES = 32
"""Lanes of a warp."""


@dataclass(frozen=True, kw_only=True)
class RowDemand:
    """Everything about a problem that its layout depends on. Sizes are bytes of one element.

    ``pitches`` are those of inputs and output matrices, in elements. ``vectors`` are elements of vectors over columns.
    ``held_bytes`` are bytes per element that later passes need, ``keeps_computed`` if these are a computed value.
    ``exchanges`` has the fp32 numbers that each warp sends, by exchange. ``passes`` counts walks over a row. ``sums`` are
    the sums over rows that each column has, and ``group`` is the most columns that are reduced together, or 0. ``pairs``
    are sizes of outputs of one element per pair of columns.
    """

    n: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    pitches: tuple[int, ...]
    vectors: tuple[int, ...] = ()
    strided_vectors: bool = False
    wide_vectors: bool = False
    """True if threads may convert vectors of 16 bits to fp32 once: every pass over a row would convert them again."""
    repeated: bool = False
    """True if rows of an input repeat."""
    held_bytes: int = 0
    keeps_computed: bool = False
    live: int = 0
    """Values of 32 bits of an element that threads keep between passes where rows stay in registers: a compiler converts
    elements once. 0 where all passes take packed words."""
    exchanges: tuple[int, ...] = ()
    passes: int = 1
    walks: int = 0
    """Passes that walk over a row, if they are known: 0 for a problem from facts."""
    later: bool = False
    """True if a pass follows the last exchange."""
    stores_early: bool = False
    """True if a pass before the last one stores elements, if passes are known."""
    sums: int = 0
    group: int = 0
    wide: int = 0
    """Reductions of groups that are wide: no power of two of columns, or more than a warp has at once."""
    pairs: tuple[int, ...] = ()
    least: int = 0
    """The fewest columns, if only the launch knows their number, which is up to ``n``; else 0."""
    gathers: int = 0
    """Elements of each row that data selects."""
    temporaries: int = 0
    """Registers of a pass that takes more than usual."""
    work: int = 8
    """Instructions per element, approximately."""

    @property
    def fewest(self) -> int:
        """The fewest columns of a row."""
        return self.least or self.n

    @property
    def column_bytes(self) -> float:
        """Bytes of one column of inputs and outputs."""
        return sum(self.inputs) + sum(self.outputs) + sum(self.pairs) / 2

    @property
    def copied_lanes(self) -> int:
        """Elements of 16 bytes of the smallest input type, of which bulk copies have a multiple."""
        return GRANULE_BYTES // min(self.inputs)

    @functools.cached_property
    def by_words(self) -> bool:
        """True if threads take words of rows that begin anywhere: each thread sums the same columns of all rows.

        A word of the first column may be split among two words of memory. All types have one size, of 2 or 4 bytes.
        """
        sizes = {*self.inputs, *self.outputs}
        apart = self.group or self.pairs or self.repeated
        anywhere = any(pitch % self.copied_lanes for pitch in self.pitches)
        vectors = all(size in (min(self.inputs), WORD_BYTES) for size in self.vectors)
        return bool(self.sums and not apart) and anywhere and vectors and sizes in ({2}, {WORD_BYTES})

    @functools.cached_property
    def lanes(self) -> int:
        """Elements of one granule: 16 bytes of the smallest input type, or of the largest one with rows that repeat; one
        word of rows that threads take by words.

        With 16 bytes of masks, threads would load and store other types at a distance: half sectors, and bank conflicts.
        """
        if self.by_words:
            return WORD_BYTES // min(self.inputs)
        lanes = self.copied_lanes
        whole = not self.least and all(each % lanes == 0 for each in (self.n, *self.pitches))
        apart = self.sums or self.group or self.pairs
        return GRANULE_BYTES // max(self.inputs) if self.repeated and whole and not apart else lanes

    @property
    def numbered(self) -> bool:
        """True for rows of 16 bits with numbers of their columns: they take less time in several CTAs of an SM."""
        return bool(self.temporaries and self.outputs) and max(self.inputs) == HALF_BYTES and not self.wide

    @property
    def part_lanes(self) -> int:
        """Lanes of a warp that have columns of one wide group; 0 without these."""
        return math.gcd(self.group // self.lanes, MOST_PART_LANES) if self.wide else 0


def is_wide(group: int, lanes: int) -> bool:
    """Return whether groups of so many columns are no power of two, or more than a warp has in granules of ``lanes``."""
    return group & (group - 1) > 0 or group > MOST_PART_LANES * lanes


def bytes_moved(m: int, demand: RowDemand) -> int:
    """Return the bytes from and to global memory of ``m`` rows."""
    return int(m * demand.n * demand.column_bytes) + demand.n * sum(demand.vectors)
