"""What a compilation knows besides the kernel itself. Passed explicitly; nothing is global."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..hardware import Target
from ..settings import Settings


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What a tensor that host code made turned out to be; ``shape`` and ``strides`` in elements."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a backend takes on a target, as far as it shapes the program."""

    backend: str
    """Its name in messages."""
    powers_of_2: bool
    """Whether tiles have powers of two of lanes, so that other sizes are padded."""
    tile_step: int | None
    """Sizes of tiles that the program says may be multiples of this as well; None where they may not."""
    min_dot: Mapping[int, tuple[int, int, int]]
    """Smallest (M, N, K) of a matrix product, in elements, by the bytes of an element."""
    min_four_bit_k: int
    """Fewest numbers along K of a scaled product of two matrices of 4-bit numbers."""
    dot_precisions: frozenset[str]
    """Precisions that products of fp32 can have; ``ieee`` is one of them."""
    float_arguments: torch.dtype
    """What numbers of the host that are floats are passed in."""
    stops: bool = False
    """Whether ``breakpoint()`` in device code stops in the debugger."""


@dataclass(frozen=True, kw_only=True)
class CompileContext:
    """``device`` is where the arguments live (it may be cpu or meta); ``target`` is what the code is made for, and
    ``limits`` what the backend takes there."""

    settings: Settings
    target: Target
    limits: Limits
    device: torch.device
    index_dtype: torch.dtype
    #: By the name that generated code has for it, what is not as torch's functions say.
    observed: Mapping[str, Observed] = field(default_factory=dict)
    #: What functions mean that only the backend has; the front end's own rules say how.
    rules: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
