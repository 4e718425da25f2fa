"""Comparison of tensors made by host code with those its kernels were compiled for, before each launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from ... import exc
from ..._support.lazy import lazy
from ..._support.records import dataclass
from ..call.signature import TensorGuards

_host_module = lazy("helion._compiler.ir.host_module")
_source = lazy("helion._compiler.source")

Numbers = tuple[int | None, ...]


@dataclass(frozen=True)
class ExpectedTensor:
    """Expectation of one tensor: sizes and strides in elements, None for any.

    A ``device`` of None is that of the arguments.
    """

    dtype: str
    shape: Numbers
    strides: Numbers
    device: str | None = None

    def differs(self, tensor: Any, reference: torch.Tensor | None) -> str:
        """Describe the first difference; empty if there is none."""
        if not isinstance(tensor, torch.Tensor):
            return f"it is a {type(tensor).__name__}, expected a tensor"
        if str(tensor.dtype) != f"torch.{self.dtype}":
            return f"its dtype is {tensor.dtype}, expected torch.{self.dtype}"
        if tensor.dim() != len(self.shape) or not _agree(tensor.shape, self.shape, (2,) * tensor.dim()):
            return f"its shape is {tuple(tensor.shape)}, expected {_text(self.shape)}"
        if tensor.numel() and not _agree(tensor.stride(), self.strides, tensor.shape):
            return f"its strides are {tensor.stride()}, expected {_text(self.strides)}"
        device = torch.device(self.device) if self.device is not None else getattr(reference, "device", tensor.device)
        if tensor.device.type != device.type or device.index not in (None, tensor.device.index):
            return f"it is on {tensor.device}, expected {device}"
        if tensor.is_conj() or tensor.is_neg():
            return "its conjugation or negation has not been carried out; call resolve_conj() or resolve_neg()"
        return ""


def _agree(numbers: Sequence[int], expected: Numbers, sizes: Sequence[int]) -> bool:
    """Return whether numbers are as expected in dimensions with more than one element."""
    return all(e is None or n == e or size == 1 for n, e, size in zip(numbers, expected, sizes, strict=True))


def _text(numbers: Numbers) -> str:
    return f"({', '.join('any' if n is None else str(n) for n in numbers)}{',' if len(numbers) == 1 else ''})"


def expected_tensors(*expected: tuple[Any, ...]) -> Callable[..., bool]:
    """Return a function that checks whether tensors are as ``expected``: tuples of the fields of ``ExpectedTensor``.

    It takes as many tensors, and possibly one of the arguments after them. A tensor like one that passed before is
    compared with it alone (measurement ``host_calls``).
    """
    each = tuple(ExpectedTensor(*fields) for fields in expected)
    known: Callable[..., bool] | None = None

    def compare(*tensors: Any) -> bool:
        nonlocal known
        reference = tensors[len(each)] if len(tensors) > len(each) else None
        if any(e.differs(tensor, reference) for e, tensor in zip(each, tensors, strict=False)):
            return False
        if TensorGuards is not None and len({id(tensor) for tensor in tensors}) == len(tensors):
            known = _exactly(tensors, len(each))
        return True

    def check(*tensors: Any) -> bool:
        return (known is not None and known(*tensors)) or compare(*tensors)

    return check


def _exactly(tensors: Sequence[torch.Tensor], count: int) -> Callable[..., bool]:
    """Return a native check for tensors like these, with any sizes and strides after the first ``count``."""
    sizes = [[*t.shape] if at < count else [None] * t.dim() for at, t in enumerate(tensors)]
    strides = [[*t.stride()] if at < count else [None] * t.dim() for at, t in enumerate(tensors)]
    check: Callable[..., bool] = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    return check


def mismatch(number: int | None, names: Any) -> NoReturn:
    """Raise the error of a generated module for a tensor that its kernels were not compiled for."""
    raise exc.InvalidAPIUsage(
        "This generated code was compiled for other tensors than the ones it is given, or than its host code has made; bind the kernel to them."
    )


_Place = tuple[str, int, int, int, str]


def out_of_range(index: int, size: int, name: str, dim: int, place: _Place | None) -> NoReturn:
    """Raise the error of a generated module for an argument that is an index beyond the ``size`` of a dimension."""
    raise _host_module.out_of_range(index, name, dim, size).at(None if place is None else _source.Location(*place))


def past_the_end(end: int, size: int, tile: str, name: str, dim: int, place: _Place | None) -> NoReturn:
    """Raise the error of a generated module for indices of ``tile``, below ``end``, beyond the ``size`` of a dimension."""
    raise _host_module.past_the_end(tile, end, name, dim, size).at(None if place is None else _source.Location(*place))


__all__ = ["ExpectedTensor", "expected_tensors", "mismatch", "out_of_range", "past_the_end"]
