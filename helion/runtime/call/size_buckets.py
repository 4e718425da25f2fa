"""Buckets of dynamic sizes that share a config (``static_shapes=False``).

A bucket has the sizes up to one of the setting ``size_hints``, and above the one before it. It gets the seeds of its
hint, because a config that fits the largest size fits all. Calls are distinguished by the sizes that extents of tiles,
grids and whole dimensions depend on.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

import torch

from ..._support.records import dataclass
from .signature import pick

Origin = tuple[Any, ...]

#: Launches specialize on whether a number is a multiple of this.
ALIGNED = 16


@dataclass(frozen=True)
class Bucket:
    """Sizes above ``above`` and up to ``most`` (None: no limit), which are treated as ``hint``."""

    above: int | None
    most: int | None
    hint: int

    @property
    def is_limited(self) -> bool:
        """True if there are other buckets."""
        return self.above is not None or self.most is not None

    def hint_like(self, size: int) -> int:
        """Return ``hint``, or one less if ``size`` is no multiple of 16, so that derived strides are aligned alike."""
        return self.hint - 1 if size % ALIGNED and self.hint % ALIGNED == 0 else self.hint

    def condition(self, size: str) -> str:
        """Format a condition that the expression ``size`` is in a bucket that ``is_limited``."""
        low = "" if self.above is None else f"{self.above} < "
        return f"{low}{size}" + ("" if self.most is None else f" <= {self.most}")


def bucket_of(size: int, hints: Sequence[int]) -> Bucket:
    """Return the bucket of a size: up to the first of ascending ``hints`` that is not below it, else the last one."""
    last = len(hints) - 1
    at = min(bisect.bisect_left(hints, size), last)
    return Bucket(hints[at - 1] if at else None, hints[at] if at < last else None, hints[at])


@dataclass(frozen=True)
class SizeBuckets:
    """The sizes that select a bucket.

    ``origins`` are their paths into the arguments, by name. Equal dimensions give several paths; the first is enough if
    they are known to be equal. ``hints`` ascend.
    """

    origins: tuple[tuple[str, Origin], ...] = ()
    hints: tuple[int, ...] = ()

    def of(self, values: Sequence[Any]) -> tuple[Bucket, ...]:
        """Return the bucket of each relevant size among the arguments, which are all of them in order."""
        if not self.origins:
            return ()
        given = tuple(values)
        return tuple([bucket_of(int(pick(given, origin)), self.hints) for _, origin in self.origins])

    def by_name(self, buckets: Sequence[Bucket]) -> dict[str, tuple[Origin, Bucket]]:
        """Map names to the first path and the bucket that ``of`` returned."""
        found: dict[str, tuple[Origin, Bucket]] = {}
        for (name, origin), bucket in zip(self.origins, buckets, strict=True):
            found.setdefault(name, (origin, bucket))
        return found


def buckets_of(sizes: Sequence[tuple[str, Origin]], values: Sequence[Any], hints: Sequence[int]) -> SizeBuckets:
    """Return the buckets of arguments in which ``sizes`` are relevant, with the dimensions that equal them."""
    if not hints:
        return SizeBuckets()
    given = tuple(values)
    dims = [(at, d) for at, value in enumerate(given) if isinstance(value, torch.Tensor) for d in range(value.dim())]
    origins: dict[tuple[str, Origin], None] = {}
    for name, origin in sizes:
        origins[name, origin] = None
        if isinstance(origin[-1], tuple):  # of a tensor
            number = pick(given, origin)
            equal = ((at, d) for at, d in dims if given[at].size(d) == number)
            origins.update(dict.fromkeys((name, ("arg", at, ("size", d))) for at, d in equal))
    return SizeBuckets(tuple(origins), tuple(hints))


__all__ = ["Bucket", "SizeBuckets", "bucket_of", "buckets_of"]
