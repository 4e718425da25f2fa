"""Asks torch what a call in host code gives: the call itself runs on tensors without data.

Results that are the very tensor that went in, or that share its memory, are known again by their storage, and tensors
that the call changed in place take what it made of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ... import exc
from ..._shapes import Expr, hint_of
from .state import TraceState
from .untraced_meta import keep_dynamo_out
from .values import HostTensorValue, Tile, describe

#: Words by which torch's errors say that the result depends on data, which is not there when a kernel is compiled.
_NO_DATA = ("meta", "no data", "data-dependent", "data dependent", "pt2", "fake", "unbacked")


@dataclass
class Question:
    """One call on stand-ins without data. ``tensors`` are the host tensors among its arguments with their stand-ins."""

    t: TraceState
    name: str
    func: Callable[..., Any]
    tensors: list[tuple[HostTensorValue, torch.Tensor]] = field(default_factory=list)
    _storages: list[int] = field(default_factory=list)

    def ask(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the call gives on stand-ins. Raises ``exc.TorchOpTracingError`` where torch refuses it."""
        given, keywords = self.lower(args), self.lower(kwargs)
        keep_dynamo_out()
        try:
            with torch._C.DisableTorchFunction():  # modes of the user's are for the real call
                return self.func(*given, **keywords)
        except exc.Base:
            raise
        except Exception as error:
            raise refusal(self.name, error) from None

    def lower(self, item: Any) -> Any:
        """An argument with stand-ins for tensors, and numbers as they were when binding."""
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
        """The host tensor whose memory a result shares, and whether it is the result itself; None for new memory."""
        for value, meta in self.tensors:
            if meta is result:
                return value, True
        return next(((value, False) for value, meta in self.tensors if _storage(meta) == _storage(result)), None)

    def take_changes(self) -> None:
        """Arguments that the call gave other sizes, strides or memory have them from now on."""
        before = dict(zip(self._storages, (value.storage for value, _ in self.tensors), strict=True))
        for (value, meta), storage in zip(self.tensors, self._storages, strict=True):
            if _storage(meta) != storage:  # of another tensor, or new
                value.storage = before[_storage(meta)] if _storage(meta) in before else self.t.tensors.new_storage()
            shape, strides = ([hint_of(n) for n in numbers] for numbers in (value.shape, value.strides))
            if [*meta.shape] == shape and [*meta.stride()] == strides:
                continue
            if is_symbolic(value):
                raise exc.TypeInferenceError(
                    f"{self.name} changes the sizes or strides of {describe(value)} in place, which are known at run time only; use the function that gives a new tensor."
                )
            value.become(meta)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def is_symbolic(value: HostTensorValue) -> bool:
    """Whether a size or a stride is known at run time only."""
    return any(isinstance(n, Expr) for n in (*value.shape, *value.strides))


def has_symbols(item: Any) -> bool:
    """Whether an argument, however deep, has a number that is known at run time only."""
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
    """Host tensors in an argument, in order."""
    if isinstance(item, HostTensorValue):
        return [item]
    if isinstance(item, dict):
        item = tuple(item.values())
    return [x for part in item for x in tensors_in(part)] if isinstance(item, (tuple, list)) else []


def refusal(name: str, error: Exception) -> exc.Base:
    """The error for what torch refused: its own words, unless they are about tensors without data."""
    text = str(error).strip()
    if isinstance(error, NotImplementedError) or any(word in text.lower() for word in _NO_DATA):
        return needs_data(name)
    return exc.TorchOpTracingError(name=name, reason=f"{type(error).__name__}: {text.splitlines()[0] if text else ''}")


def needs_data(name: str) -> exc.Base:
    """The error for a call whose result depends on the data of tensors."""
    return exc.TypeInferenceError(
        f"{name} depends on the data of tensors, which is not known when the kernel is compiled; call it before the kernel and pass the result as an argument."
    )
