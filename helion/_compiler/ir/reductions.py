"""Reductions: their neutral elements, and how two partial results combine. Names no backend.

A new reduction is one row of :data:`REDUCTIONS`, one spelling in each backend, a rule for torch's function in
``frontend/torch/reductions.py``, and a test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from ..._support.records import dataclass

Scalar = bool | int | float


@dataclass(frozen=True, kw_only=True, slots=True)
class ReductionOp:
    """A reduction. ``combine`` is the pointwise op that combines two partial results, or None if no such op exists
    (argmax, argmin). ``neutral`` returns the identity element of a dtype."""

    name: str
    combine: str | None
    neutral: Callable[[torch.dtype], Scalar]


def _zero(dtype: torch.dtype) -> Scalar:
    return 0.0 if dtype.is_floating_point else 0


def _one(dtype: torch.dtype) -> Scalar:
    return 1.0 if dtype.is_floating_point else 1


def _lowest(dtype: torch.dtype) -> Scalar:
    if dtype.is_floating_point:
        return -math.inf
    return False if dtype == torch.bool else torch.iinfo(dtype).min


def _highest(dtype: torch.dtype) -> Scalar:
    if dtype.is_floating_point:
        return math.inf
    return True if dtype == torch.bool else torch.iinfo(dtype).max


_ROWS = (
    ReductionOp(name="sum", combine="add", neutral=_zero),
    ReductionOp(name="prod", combine="mul", neutral=_one),
    ReductionOp(name="max", combine="maximum", neutral=_lowest),
    ReductionOp(name="min", combine="minimum", neutral=_highest),
    ReductionOp(name="argmax", combine=None, neutral=_lowest),
    ReductionOp(name="argmin", combine=None, neutral=_highest),
)

REDUCTIONS: Mapping[str, ReductionOp] = {row.name: row for row in _ROWS}
"""All reductions by name."""


def identity(name: str, dtype: torch.dtype) -> Scalar:
    """Return the identity element of a reduction."""
    return REDUCTIONS[name].neutral(dtype)
