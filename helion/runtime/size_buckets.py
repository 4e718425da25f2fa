"""Which sizes share a config where they differ from call to call (``static_shapes=False``).

The sizes up to one of the setting ``size_hints``, and above the one before it, make a bucket, which gets the seeds of that hint:
what fits the largest fits all. Calls are told apart by the sizes that extents of tiles, grids and whole dimensions are made of.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .signature import pick

Origin = tuple[Any, ...]

#: Launches tell whether a number is a multiple of this, and know nothing of one that is not.
ALIGNED = 16


@dataclass(frozen=True)
class Bucket:
    """Sizes above ``above`` and up to ``most`` (None: no matter how large), which count as ``hint``."""

    above: int | None
    most: int | None
    hint: int

    @property
    def is_limited(self) -> bool:
        """Whether there are other buckets."""
        return self.above is not None or self.most is not None

    def hint_like(self, size: int) -> int:
        """``hint``, or one less where ``size`` is no multiple of 16: strides that are made of it are as little aligned."""
        return self.hint - 1 if size % ALIGNED and self.hint % ALIGNED == 0 else self.hint

    def condition(self, size: str) -> str:
        """An expression that says whether the expression ``size`` is in a bucket that ``is_limited``."""
        low = "" if self.above is None else f"{self.above} < "
        return f"{low}{size}" + ("" if self.most is None else f" <= {self.most}")


def bucket_of(size: int, hints: Sequence[int]) -> Bucket:
    """The bucket of one size: up to the first of ascending ``hints`` that is not below it, else that of the last."""
    last = len(hints) - 1
    at = min(bisect.bisect_left(hints, size), last)
    return Bucket(hints[at - 1] if at else None, hints[at] if at < last else None, hints[at])


@dataclass(frozen=True)
class SizeBuckets:
    """``origins`` are the paths into the arguments of the sizes that matter, by name; several where dimensions are equal, the
    first being enough where it is known that they are. ``hints`` ascend."""

    origins: tuple[tuple[str, Origin], ...] = ()
    hints: tuple[int, ...] = ()

    def of(self, values: Sequence[Any]) -> tuple[Bucket, ...]:
        """The bucket of each size that matters among the arguments, which are all of them in order."""
        given = tuple(values)
        return tuple(bucket_of(int(pick(given, origin)), self.hints) for _, origin in self.origins)

    def by_name(self, buckets: Sequence[Bucket]) -> dict[str, tuple[Origin, Bucket]]:
        """What ``of`` gives, with the first path, by name."""
        found: dict[str, tuple[Origin, Bucket]] = {}
        for (name, origin), bucket in zip(self.origins, buckets, strict=True):
            found.setdefault(name, (origin, bucket))
        return found


def buckets_of(sizes: Sequence[tuple[str, Origin]], values: Sequence[Any], hints: Sequence[int]) -> SizeBuckets:
    """Those of arguments in which ``sizes`` matter, and with them the dimensions that are equal to them."""
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
