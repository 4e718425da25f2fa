"""Records in memory, such as small matrices, whose elements a kernel accesses one by one."""

from __future__ import annotations

from collections.abc import Sequence

#: Bytes that memory moves at once, of which a record has more, and elements that a thread has registers for.
#: The last number has the least accesses of single elements.
_SECTOR_BYTES, _MOST_ELEMENTS, LEAST_ACCESSES = 32, 64, 9


def is_whole(record: int, itemsize: int) -> bool:
    """Return whether programs access records of so many elements as a whole."""
    return record * itemsize > _SECTOR_BYTES and record <= _MOST_ELEMENTS


def record_of(shape: Sequence[object], strides: Sequence[object], along: int) -> int:
    """Return the elements of the records of a tensor along a dimension: all that its other dimensions have.

    It is 0 where the other dimensions are no run in memory, or records meet.
    """
    others = []
    for at, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
        if not isinstance(stride, int) or (at != along and not isinstance(extent, int)):
            return 0
        if at != along and isinstance(extent, int) and extent != 1:
            others.append((stride, extent))
    reach, pitch = 1, strides[along]
    for stride, extent in sorted(others):
        if stride != reach:
            return 0
        reach *= extent
    return reach if isinstance(pitch, int) and pitch >= reach else 0


__all__ = ["LEAST_ACCESSES", "is_whole", "record_of"]
