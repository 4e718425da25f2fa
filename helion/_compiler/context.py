"""What a compilation knows besides the kernel itself. Passed explicitly; nothing is global."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..hardware import Target
from ..settings import Settings


@dataclass(frozen=True, kw_only=True)
class CompileContext:
    """``device`` is where the arguments live (it may be cpu or meta); ``target`` is what the code is made for."""

    settings: Settings
    target: Target
    device: torch.device
    index_dtype: torch.dtype
