"""Numbers of matmuls with operands that are copied first, for the rules that compare them with the matmul as written."""

from __future__ import annotations

from typing import ClassVar

from ......_support.records import dataclass
from ...tuned import Tuned, tuned


@dataclass(frozen=True)
class CopyNumbers(Tuned):
    """Numbers of copied operands."""

    rule: ClassVar[str] = "rewritten_matmul"

    #: Ratio of the time of matmuls with unaligned rows to the prediction.
    unaligned: int
    #: Multiply-adds of the smallest matmul that is rewritten.
    least: int
    #: Microseconds by which a rewrite that launches copies must be faster than one that does not.
    copy_us: float
    #: Tiles of copied batches, compared with that of the formula: M, N, K, warps and stages.
    batches: tuple[tuple[int, int, int, int, int], ...]


_TUNED = tuned(CopyNumbers)


def copy_numbers() -> CopyNumbers:
    """Return the numbers of copied operands."""
    return _TUNED
