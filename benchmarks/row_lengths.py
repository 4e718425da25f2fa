"""Row kernels whose number of columns only the launch knows, for ``benchmarks/row_kernels.py``: one binary for a bucket.

``checked`` runs it on lengths of the bucket and random numbers of rows, then launches these in random order, often.
``timed`` compares it with the binary of one length.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

#: Columns with which kernels are bound, and the type.
CHECKED = (
    ("bfloat16", 131072),
    ("float32", 150001),
    ("bfloat16", 4099),
    ("float32", 8192),
    ("bfloat16", 1000),
    ("float32", 1003),
    ("bfloat16", 50257),
)
TIMED = (("bfloat16", 4096, 50257), ("bfloat16", 2048, 131072), ("bfloat16", 4096, 110592), ("bfloat16", 16384, 8192), ("bfloat16", 131072, 1000))  # fmt: skip
LENGTHS = 8
MOST_ROWS = 300
LAUNCHES, SECONDS = 10000, 3.0


def names() -> tuple[str, ...]:
    """Return the kernels without vectors of sums, whose length is a constant of the language."""
    from row_workloads import WORKLOADS

    return tuple(name for name in WORKLOADS if not name.endswith("norm_backward"))


def bucket(n: int, lanes: int) -> range:
    """Return the lengths that one binary serves."""
    from helion.backends.cute.plan.rowwise.buckets import bucket_of

    whole = bucket_of(n, n % lanes == 0)
    return range(-(-whole[0] // lanes) * lanes, whole.stop, lanes) if n % lanes == 0 else whole


def lengths(n: int, lanes: int) -> list[int]:
    """Return the first, the last and other lengths of a bucket; those that begin anywhere are no multiples of ``lanes``."""
    found, numbers = bucket(n, lanes), random.Random(n)
    drawn = [found[0], found[-1], n, *(numbers.choice(found) for _ in range(LENGTHS))]
    return [each for each in dict.fromkeys(drawn) if (each % lanes == 0) == (n % lanes == 0)]


def checked(make: Callable[[int, int], Any], kernel: Callable[..., Any], n: int, lanes: int) -> dict[str, Any]:
    """Run a kernel that is compiled for the bucket of ``n``; ``make`` returns a case of a number of rows and columns."""
    numbers, cases, worst, held = random.Random(n), [], 0.0, True
    for length in lengths(n, lanes):
        case = make(numbers.randint(1, MOST_ROWS), length)
        case.clear()
        kernel(*case.arguments)
        worst, held = max(worst, case.error()), held and case.guards_hold()
        cases.append(case)
    found = dict(error=float(f"{worst:.3g}"), guards=held, lengths=len(cases))
    launched = launches(cases, kernel, numbers)
    return found | launched | dict(ok=worst <= 1 and held and not launched["wrong"])


def launches(cases: Sequence[Any], kernel: Callable[..., Any], numbers: random.Random) -> dict[str, int]:
    """Launch cases in random order; count results that are not those of the first launch."""
    import torch

    firsts = []
    for case in cases:
        case.clear()
        kernel(*case.arguments)
        firsts.append([each.clone() for each in case.outputs])
    wrong = count = 0
    start = time.time()
    while time.time() - start < SECONDS and count < LAUNCHES:
        for case in cases:
            case.clear()
        for _ in range(20 * len(cases)):
            kernel(*numbers.choice(cases).arguments)
        for case, first in zip(cases, firsts, strict=True):
            kernel(*case.arguments)
            pairs = zip(case.outputs, first, strict=True)
            same = all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)
            wrong += not (same and case.guards_hold())
        count += 21 * len(cases)
    return dict(launches=count, wrong=wrong)


def jobs(wanted: Sequence[str]) -> Iterator[tuple[str, str, str, int, int]]:
    """Yield kind, kernel, type, rows and columns of jobs, the checks first."""
    found = [name for name in names() if name in wanted]
    for dtype, n in CHECKED:
        yield from (("lengths", name, dtype, MOST_ROWS, n) for name in found)
    for dtype, m, n in TIMED:
        yield from (("buckets", name, dtype, m, n) for name in found)
