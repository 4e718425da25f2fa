"""Reductions as Triton expressions, with the helpers that give torch's treatment of nan."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .ops_pointwise import TRITON_DTYPES

#: ``tl.max`` drops nan and ``tl.argmax`` ignores it; torch propagates it and finds the first.
HELPERS: Mapping[str, str] = {
    "_max_nan": """\
@triton.jit
def _max_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "_min_nan": """\
@triton.jit
def _min_nan(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "_prod": """\
@triton.jit
def _prod(a, b):
    return a * b
""",
    "_argmax": """\
@triton.jit
def _argmax(value, index, other, other_index):
    better = (value > other) | ((value != value) & (other == other))
    same = (value == other) | ((value != value) & (other != other))
    keep = better | (same & (index < other_index))
    return tl.where(keep, value, other), tl.where(keep, index, other_index)
""",
    "_argmin": """\
@triton.jit
def _argmin(value, index, other, other_index):
    better = (value < other) | ((value != value) & (other == other))
    same = (value == other) | ((value != value) & (other != other))
    keep = better | (same & (index < other_index))
    return tl.where(keep, value, other), tl.where(keep, index, other_index)
""",
}


def render(name: str, operand: str, axis: int, dtype: torch.dtype) -> str:
    """One reduction over one axis. The result of ``tl.sum`` and its like may be wider than ``dtype``."""
    floating = dtype.is_floating_point
    if name == "sum":
        return f"tl.sum({operand}, {axis})"
    if name == "prod":
        return f"tl.reduce({operand}, {axis}, _prod)"
    if name in ("max", "min"):
        return f"tl.reduce({operand}, {axis}, _{name}_nan)" if floating else f"tl.{name}({operand}, {axis})"
    raise KeyError(name)


def render_arg(name: str, operand: str, index: str, axis: int) -> str:
    """The index of an extremum over one axis; ``index`` is an integer expression of the operand's shape."""
    return f"tl.reduce(({operand}, {index}), {axis}, _{name})[1]"


def cast(text: str, dtype: torch.dtype) -> str:
    return f"({text}).to({TRITON_DTYPES[dtype]})"
