"""Tensors in nested values: tuples, lists, dicts and dataclasses."""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch


def tensors_in(values: Iterable[Any], closures: bool = False) -> Iterator[torch.Tensor]:
    """Yield the tensors among arguments, including those in tuples, lists, dicts and dataclasses.

    With ``closures`` also those that functions close over or have as defaults.
    """
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_in(value, closures)
        elif isinstance(value, dict):
            yield from tensors_in(value.values(), closures)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from tensors_in((getattr(value, f.name) for f in dataclasses.fields(value)), closures)
        elif closures and isinstance(value, types.FunctionType):
            cells = (cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType())
            yield from tensors_in((*cells, *(value.__defaults__ or ())), closures)


def map_nested(value: Any, kind: type | tuple[type, ...], convert: Callable[[Any], Any]) -> Any:
    """Convert everything of ``kind`` in a value, including tuples, lists, dicts and dataclasses."""
    if isinstance(value, kind):
        return convert(value)
    if isinstance(value, (tuple, list)) and type(value) is not torch.Size:
        items = [map_nested(item, kind, convert) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: map_nested(item, kind, convert) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = copy.copy(value)
        for each in dataclasses.fields(value):
            object.__setattr__(
                changed, each.name, map_nested(getattr(value, each.name), kind, convert)
            )  # may be frozen
        return changed
    return value


def copy_tensors(args: Sequence[Any], device: torch.device | None = None) -> tuple[Any, ...]:
    """Copy arguments, to another ``device`` if one is given. Tensors that share memory share it in the copy, too."""
    memories: dict[int, torch.UntypedStorage] = {}

    def fresh(tensor: torch.Tensor) -> torch.Tensor:
        storage, on = tensor.untyped_storage(), device or tensor.device
        if storage.data_ptr() not in memories:
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            memories[storage.data_ptr()] = whole.to(on, copy=True).untyped_storage()
        empty = torch.empty(0, dtype=tensor.dtype, device=on)
        return empty.set_(memories[storage.data_ptr()], tensor.storage_offset(), tensor.size(), tensor.stride())

    return map_nested(tuple(args), torch.Tensor, fresh)


__all__ = ["copy_tensors", "kinds", "map_nested", "tensors_in"]


def kinds(values: Iterable[Any]) -> str:
    """Return the types of arguments for an error: ``None, int``; ``no argument`` if there is none."""
    return ", ".join("None" if value is None else type(value).__name__ for value in values) or "no argument"
