"""Check of results against the eager reference, with tolerances by dtype."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch

#: Largest relative error in the 2-norm, and largest error of one element relative to the root mean square, by dtype.
#: Eager torch and kernels round at different places, so that both may be off; fp32 matmuls run in TF32. Errors of a
#: wrong tile, mask or order are far larger.
_NORM = {
    torch.float64: 1e-9,
    torch.float32: 4e-3,
    torch.float16: 1e-2,
    torch.bfloat16: 3e-2,
}
_NORM_8_BIT = 0.2
_ELEMENT = 16.0


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Absolute and relative tolerances that the user has set; None takes those of the dtype.

    ``packed`` are the bits at which the kernel puts small integers into larger ones, from the second on. ``rounded`` are
    the floating-point dtypes of which it makes integers.
    """

    atol: float | None = None
    rtol: float | None = None
    packed: tuple[int, ...] = ()
    rounded: tuple[torch.dtype, ...] = ()


def leaves(value: Any) -> Iterator[Any]:
    """Yield tensors and plain values in containers, in order."""
    if isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from leaves(getattr(value, each.name))
    else:
        yield value


def difference(
    actual: Any, expected: Any, tolerance: Tolerance, inputs: Sequence[Any] = (), sources: Sequence[Any] = ()
) -> str:
    """Describe what is wrong with ``actual``; "" if it is right.

    The least precise dtype among ``inputs`` bounds the precision, too: an fp32 sum of bf16 products is as exact as
    these. ``sources`` are the arguments before the call where ``actual`` are those after it. Integers may be rounded from
    them, from ``inputs``, or from what the kernel computes. Those that the reference leaves as they were are compared
    exactly.
    """
    ours, theirs = list(leaves(actual)), list(leaves(expected))
    if len(ours) != len(theirs):
        return f"{len(ours)} results, the reference has {len(theirs)}"
    least, before = _least_precise(inputs), list(leaves(sources))
    share = max((_bound(dtype) for dtype in tolerance.rounded), default=0.0)
    share = max(share, _least_precise(sources or inputs))
    for at, (mine, right) in enumerate(zip(ours, theirs, strict=True)):
        kept = at < len(before) and _is_kept(before[at], right)
        wrong = _wrong(mine, right, tolerance, least, 0.0 if kept else share)
        if wrong:
            return f"result {at} {wrong}"
    return ""


def _least_precise(values: Sequence[Any]) -> float:
    return max((_bound(t.dtype) for t in leaves(values) if _is_floating(t)), default=0.0)


def _is_kept(before: Any, after: Any) -> bool:
    """Return whether a call leaves a tensor of integers as it was."""
    both = isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor) and before.dtype == after.dtype
    return both and not after.dtype.is_floating_point and torch.equal(before.to(after.device), after)


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _bound(dtype: torch.dtype) -> float:
    return _NORM.get(dtype, _NORM_8_BIT)


def _wrong(mine: Any, right: Any, tolerance: Tolerance, least: float, share: float) -> str:
    if not isinstance(right, torch.Tensor) or not isinstance(mine, torch.Tensor):
        same = type(mine) is type(right) and (mine == right or mine is right or mine != mine)
        return "" if same else f"is {mine!r}, not {right!r}"
    if mine.shape != right.shape or mine.dtype != right.dtype:
        return f"is {mine.dtype} {list(mine.shape)}, not {right.dtype} {list(right.shape)}"
    if mine.numel() == 0:
        return ""
    if not right.is_floating_point() and not right.is_complex():
        return _miscounted(mine.to(right.device), right, tolerance, share)
    return _off(mine, right.to(mine.device), tolerance, max(least, _bound(right.dtype)))


def _miscounted(mine: torch.Tensor, right: torch.Tensor, tolerance: Tolerance, share: float) -> str:
    """Describe what is wrong with integers or truth values.

    Those that a kernel rounds from floating-point numbers may be one off in a share of the elements, by the dtype of the
    numbers. A sum in another order moves a quotient across a half. So may the small integers that it packs into others.
    """
    differs = mine != right
    count = int(differs.sum())
    if not count:
        return ""
    gap = (mine[differs].double() - right[differs].double()).abs()
    said = f"differs in {count} of {right.numel()} elements, by up to {float(gap.max()):g}"
    if tolerance.atol is not None or tolerance.rtol is not None:
        allowed = (tolerance.atol or 0.0) + (tolerance.rtol or 0.0) * right[differs].double().abs()
        return said if bool((gap > allowed).any()) else ""
    if count <= share * right.numel() and (
        float(gap.max()) <= 1.0 or _are_near(mine[differs], right[differs], tolerance)
    ):
        return ""
    return f"{said}; autotune_baseline_accuracy_check_fn accepts what is right nevertheless" if share else said


def _are_near(mine: torch.Tensor, right: torch.Tensor, tolerance: Tolerance) -> bool:
    """Return whether integers consist of smaller ones that are at most one off, also from the largest to 0.

    A field of one bit has to be equal.
    """
    bits = torch.iinfo(right.dtype).bits if right.dtype != torch.bool else 1
    starts = [0, *(each for each in tolerance.packed if each < bits), bits]
    for begin, end in itertools.pairwise(starts) if len(starts) > 2 else ():
        last = (1 << min(end - begin, 62)) - 1
        gap = ((mine.long() >> begin) - (right.long() >> begin)) & last
        near = (gap == 0) | (gap == 1) | (gap == last) if last > 1 else gap == 0
        if not bool(near.all()):
            return False
    return len(starts) > 2


def _off(mine: torch.Tensor, right: torch.Tensor, tolerance: Tolerance, bound: float) -> str:
    ours, exact = mine.detach().double(), right.detach().double()
    finite = torch.isfinite(exact)
    if not torch.equal(torch.isfinite(ours), finite) or not bool((finite | _same_special(ours, exact)).all()):
        return "has NaN or infinity where the reference has not, or the other way round"
    gap = torch.where(finite, (ours - exact).abs(), 0.0)
    size = torch.where(finite, exact.abs(), 0.0)
    if tolerance.atol is not None or tolerance.rtol is not None:
        allowed = (tolerance.atol or 0.0) + (tolerance.rtol or 0.0) * size
        count = int((gap > allowed).sum())
        return f"is off by up to {float(gap.max()):.3g} in {count} of {gap.numel()} elements" if count else ""
    norm = float(size.norm())
    root_mean_square = norm / math.sqrt(size.numel())
    relative = float(gap.norm()) / norm if norm else float(gap.norm())
    if relative > bound:
        return f"is {relative:.2g} off, {bound:.2g} is allowed"
    worst = float((gap - bound * size).max())
    if worst > _ELEMENT * bound * max(root_mean_square, 1e-30):
        return f"has an element that is {float(gap.max()):.3g} off"
    return ""


def _same_special(ours: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    return (ours == exact) | (ours.isnan() & exact.isnan())
