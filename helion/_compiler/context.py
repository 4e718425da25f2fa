"""What a compilation knows besides the kernel itself. Passed explicitly; nothing is global."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
class CompileContext:
    """``device`` is where the arguments live (it may be cpu or meta); ``target`` is what the code is made for."""

    settings: Settings
    target: Target
    device: torch.device
    index_dtype: torch.dtype
    #: By the name that generated code has for it, what is not as torch's functions say.
    observed: Mapping[str, Observed] = field(default_factory=dict)
