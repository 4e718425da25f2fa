"""Launches of the interpreter on tensors of a GPU, through copies of the memory that they own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .interpreter import interpret


class _Copies:
    """Copies of storages; tensors with one storage share its copy."""

    def __init__(self) -> None:
        self._storages: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def of(self, value: Any) -> Any:
        """Return ``value`` with its tensors on the CPU, also inside of tuples and lists."""
        if isinstance(value, (tuple, list)):
            items = map(self.of, value)
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
            return value
        storage = value.untyped_storage()
        if storage._cdata not in self._storages:
            original = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage)
            self._storages[storage._cdata] = (original, original.cpu())
        copy = self._storages[storage._cdata][1].untyped_storage()
        return torch.empty(0, dtype=value.dtype).set_(copy, value.storage_offset(), value.shape, value.stride())

    def write_back(self) -> None:
        """Copy the contents of the copies back to the tensors."""
        for original, copy in self._storages.values():
            original.copy_(copy)


def interpret_copies(kernel: Any, grid: tuple[int, ...], args: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Run a kernel in the interpreter on copies of its tensors. Raises IndexError for addresses outside of all
    arguments.
    """
    copies = _Copies()
    given = [copies.of(arg) for arg in args]
    interpret(kernel, grid, given, {name: copies.of(value) for name, value in options.items()}, elsewhere=False)
    copies.write_back()
