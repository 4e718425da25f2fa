"""Protocols of kernels in graphs."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ...config import Config
from ...settings import Settings
from ..variants.variant import Variant


class BoundKernel(Protocol):
    """A kernel for one specialization; ``specialized`` are paths into the arguments of numbers that its code depends on."""

    variant: Variant

    @property
    def specialized(self) -> Mapping[str, Any]: ...


class Kernel(Protocol):
    """A kernel as calls in graphs see it."""

    fn: types.FunctionType
    name: str
    settings: Settings
    configs: list[Config]
    signature: inspect.Signature
    constant_at: tuple[bool, ...]
    is_in_graphs: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def bind(self, args: Sequence[Any]) -> BoundKernel: ...
    def variant(self, values: tuple[Any, ...]) -> BoundKernel: ...
    def kernel_source(self) -> str: ...


__all__ = ["BoundKernel", "Kernel"]
