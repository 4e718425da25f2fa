"""Inputs of a compilation besides the kernel itself. They are passed explicitly; nothing is global."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from .. import exc
from .._support.nested import kinds
from .._support.records import dataclass, field
from ..hardware import Target
from ..settings import Settings


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The actual dtype and layout of a tensor that host code made; ``shape`` and ``strides`` in elements."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a backend on a target, as far as they shape the program."""

    backend: str
    """Name of the backend in messages."""
    powers_of_2: bool
    """True if tile dimensions have power-of-two lane counts, so that other sizes are padded."""
    tile_step: int | None
    """Tile sizes that the program fixes may also be multiples of this. None if they may not."""
    min_dot: Mapping[int, tuple[int, int, int]]
    """Smallest (M, N, K) of a matmul, in elements, by the bytes of an element."""
    min_four_bit_k: int
    """Smallest K of a scaled matmul with two operands of 4-bit elements."""
    dot_precisions: frozenset[str]
    """Precisions of fp32 matmuls; ``ieee`` is one of them."""
    float_arguments: torch.dtype
    """Dtype in which float scalars of the host are passed to the kernel."""
    least_size: int = 0
    """Smallest dynamic size of an argument that its code takes; smaller ones have code of their own."""
    loads_rows: bool = False
    """True if a tile of a matmul may have rows at indices of their own, loaded each by itself."""
    stops: bool = False
    """True if ``breakpoint()`` in device code stops in the debugger."""


@dataclass(frozen=True, kw_only=True)
class CompileContext:
    """Context of one compilation.

    ``device`` is the device of the arguments (it may be cpu or meta). ``target`` is the GPU that the code is made for.
    ``limits`` are those of the backend on that target.
    """

    settings: Settings
    target: Target
    limits: Limits
    device: torch.device
    index_dtype: torch.dtype
    #: Tensors whose dtype or layout differs from the result of the torch function, by name in generated code.
    observed: Mapping[str, Observed] = field(default_factory=dict)
    #: Front-end rules for functions that only the backend has, in the form of the front end's own rules.
    rules: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    #: Names of arguments whose strides are products of their sizes in each launch, with dynamic shapes.
    row_major: frozenset[str] = frozenset()


def device_of(name: str, arguments: Mapping[str, Any]) -> torch.device:
    """Return the device of the first tensor in the arguments of a kernel.

    Raises:
        exc.NoTensorArgs: no argument is a tensor.
    """
    stack: list[Any] = list(arguments.values())[::-1]
    while stack:
        item = stack.pop()
        if isinstance(item, torch.Tensor):
            return item.device
        if isinstance(item, torch.device):
            return item
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, (tuple, list)):
            stack.extend(item)
        elif is_dataclass(item) and not isinstance(item, type):
            stack.extend(getattr(item, f.name) for f in fields(item))
    raise exc.NoTensorArgs(kernel=name, got=kinds(arguments.values()))
