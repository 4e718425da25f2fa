"""Evaluation of torch calls in host code on meta tensors.

Results are matched to arguments by identity and storage. Arguments that the call changes in place get its metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .... import exc
from ...._shapes import Expr, hint_of
from ...._support.records import dataclass, field
from ..state import TraceState
from ..values import HostTensorValue, Tile, describe
from .untraced_meta import keep_dynamo_out

#: Words in torch's errors that indicate a dependence on data, which does not exist at compile time.
_NO_DATA = ("meta", "no data", "data-dependent", "data dependent", "pt2", "fake", "unbacked")


@dataclass
class Question:
    """One call on meta tensors. ``tensors`` are the host tensors among its arguments with their meta tensors."""

    t: TraceState
    name: str
    func: Callable[..., Any]
    tensors: list[tuple[HostTensorValue, torch.Tensor]] = field(default_factory=list)
    _storages: list[int] = field(default_factory=list)

    def ask(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of the call on meta tensors. Raises ``exc.TorchOpTracingError`` if torch refuses it."""
        given, keywords = self.lower(args), self.lower(kwargs)
        keep_dynamo_out()
        try:
            with torch._C.DisableTorchFunction():  # user modes are for the real call
                return self.func(*given, **keywords)
        except exc.Base:
            raise
        except Exception as error:
            raise refusal(self.name, error) from None

    def lower(self, item: Any) -> Any:
        """Return an argument with meta tensors for tensors, and numbers as they were at bind time."""
        if isinstance(item, HostTensorValue):
            self.tensors.append((item, item.meta))
            self._storages.append(_storage(item.meta))
            return item.meta
        if isinstance(item, torch.Tensor):
            return torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device="meta")
        if isinstance(item, Expr):
            return item.hint
        if isinstance(item, Tile):
            raise exc.IncorrectTileUsage(how=f"as a tensor, by {self.name}")
        if isinstance(item, slice):
            return slice(*map(hint_of, (item.start, item.stop, item.step)))
        if isinstance(item, tuple) and hasattr(item, "_fields"):
            return type(item)(*map(self.lower, item))
        if isinstance(item, (tuple, list)):
            plain = list if isinstance(item, list) else tuple
            return plain(map(self.lower, item))
        if isinstance(item, dict):
            return {key: self.lower(x) for key, x in item.items()}
        return item

    def origin(self, result: torch.Tensor) -> tuple[HostTensorValue, bool] | None:
        """Return the host tensor whose memory a result shares, and whether it is the result itself; None for new
        memory.
        """
        for value, meta in self.tensors:
            if meta is result:
                return value, True
        return next(((value, False) for value, meta in self.tensors if _storage(meta) == _storage(result)), None)

    def take_changes(self) -> None:
        """Update the arguments whose sizes, strides or memory the call has changed."""
        before = dict(zip(self._storages, (value.storage for value, _ in self.tensors), strict=True))
        for (value, meta), storage in zip(self.tensors, self._storages, strict=True):
            if _storage(meta) != storage:  # of another tensor, or new
                value.storage = before[_storage(meta)] if _storage(meta) in before else self.t.tensors.new_storage()
            value.moved = value.moved or _storage(meta) != storage or meta.storage_offset() != 0
            shape, strides = ([hint_of(n) for n in numbers] for numbers in (value.shape, value.strides))
            if [*meta.shape] == shape and [*meta.stride()] == strides:
                continue
            if is_symbolic(value):
                raise exc.TypeInferenceError(
                    f"{self.name} changes the sizes or strides of {describe(value)} in place, which are known at run time only; use the function that returns a new tensor."
                )
            value.become(meta)
            value.moved = True


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def is_symbolic(value: HostTensorValue) -> bool:
    """Return whether a size or a stride is known at run time only."""
    return any(isinstance(n, Expr) for n in (*value.shape, *value.strides))


def has_symbols(item: Any) -> bool:
    """Return whether an argument contains a number that is known at run time only, at any depth."""
    if isinstance(item, Expr):
        return True
    if isinstance(item, HostTensorValue):
        return is_symbolic(item)
    if isinstance(item, slice):
        return any(isinstance(n, Expr) for n in (item.start, item.stop, item.step))
    if isinstance(item, dict):
        return any(map(has_symbols, item.values()))
    return isinstance(item, (tuple, list)) and any(map(has_symbols, item))


def tensors_in(item: Any) -> list[HostTensorValue]:
    """Return the host tensors in an argument, in order."""
    if isinstance(item, HostTensorValue):
        return [item]
    if isinstance(item, dict):
        item = tuple(item.values())
    return [x for part in item for x in tensors_in(part)] if isinstance(item, (tuple, list)) else []


def refusal(name: str, error: Exception) -> exc.Base:
    """Return the error for a call that torch refused, with torch's own text unless it is about meta tensors."""
    text = str(error).strip()
    if isinstance(error, NotImplementedError) or any(word in text.lower() for word in _NO_DATA):
        return needs_data(name)
    return exc.TorchOpTracingError(name=name, reason=f"{type(error).__name__}: {text.splitlines()[0] if text else ''}")


def needs_data(name: str) -> exc.Base:
    """Return the error for a call whose result depends on the data of tensors."""
    return exc.TypeInferenceError(
        f"{name} depends on the data of tensors, which is not known when the kernel is compiled; call it before the kernel and pass the result as an argument."
    )
