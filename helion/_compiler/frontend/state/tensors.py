"""Host tensors of a trace: those that kernels use, memory that they share, and checks before launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...._shapes import Expr, Number, number_key, shared_memory
from ...ir.grammar import HostTensor
from ...ir.host_module import Check, Narrow, Reach
from ..journal import Part
from ..values import HostTensorValue
from .host_numbers import HostNumbers


class HostTensors(Part):
    """All host tensors of a trace. ``device`` is the device of the arguments."""

    def __init__(self, numbers: HostNumbers, device: torch.device) -> None:
        self.numbers = numbers
        self.device = device
        #: Tensors of the program, and the abstract values of the same tensors.
        self.program: list[HostTensor] = []
        self.used: list[HostTensorValue] = []
        #: The first of them that the launch being recorded passes; a variable may be bound to another tensor in the
        #: next one.
        self.first = 0
        #: All that were made.
        self.made: list[HostTensorValue] = []
        #: Tensors from outside of the kernel, by identity and the host expression for them.
        self.lifted: dict[tuple[int, str], HostTensorValue] = {}
        #: The memories that host code changes.
        self.changed: set[int] = set()
        #: Tensors whose sizes, strides or dtype the host code has read, and that may differ from the model.
        self.relied: list[HostTensorValue] = []
        #: True if one of them has no name to compare it by, so that everything after it may differ too.
        self.unsure = False
        #: Tensors to compare before each launch.
        self.checks: list[tuple[Check, ...]] = []
        #: Indices to compare with sizes before each launch.
        self.reaches: list[tuple[Reach, ...]] = []
        #: Numbers that must fit int32 in each launch.
        self.narrow: list[tuple[Narrow, ...]] = []
        #: The number of each memory of the arguments.
        self.storage_numbers: dict[int, int] = {}
        self._storages = 0
        #: Tensors of which others are certain parts.
        self.wholes: list[HostTensorValue] = []
        #: Seeds of launches that draw random numbers, by the first tensor of the launch: a tensor of the program, and
        #: its number of seeds so far.
        self.seeds: dict[int, tuple[int, int]] = {}

    def new_storage(self) -> int:
        self._storages += 1
        return self._storages

    def part_of(self, tensor: HostTensorValue) -> tuple[int, int] | None:
        """Return the number of the tensor that one is a part of, and the bytes between their begins."""
        if tensor.part is None:
            return None
        whole, moved = tensor.part
        at = next((i for i, each in enumerate(self.wholes) if each is whole), len(self.wholes))
        self.wholes += [whole] if at == len(self.wholes) else []
        return at, moved

    def storage_of(self, tensor: torch.Tensor) -> int:
        """Return one number per memory: arguments that are views of one tensor share it, as do those united by
        ``meeting``.
        """
        key = _storage_key(tensor)
        if key not in self.storage_numbers:
            self.storage_numbers[key] = self.new_storage()
        return self.storage_numbers[key]

    def meeting(self, tensors: Sequence[torch.Tensor]) -> None:
        """Give arguments one memory if they may overlap although their storages differ."""
        numbers: dict[int, int] = {}
        for tensor, first in zip(tensors, shared_memory(tensors), strict=True):
            if tensor.layout is torch.strided:
                numbers[first] = self.storage_of(tensor) if first not in numbers else numbers[first]
                self.storage_numbers[_storage_key(tensor)] = numbers[first]

    def number_of(self, tensor: HostTensorValue) -> int | None:
        """Return the number of a tensor in the program, None before the launch being recorded uses it."""
        used = enumerate(self.used[self.first :], self.first)
        return next((at for at, known in used if known is tensor), None)

    def begin_checks(self) -> None:
        """Begin a launch: tensors that the trace has relied on so far are compared before it."""
        self.checks.append(())
        self.reaches.append(())
        self.narrow.append(())
        for tensor in self.relied:
            self.check(tensor)

    def check(self, tensor: HostTensorValue) -> None:
        """Compare a tensor before the launch being recorded, if it may differ from the model."""
        if not tensor.checked or not self.checks:
            return
        source = tensor.source or tensor.made
        if not source:
            self.unsure = True
        elif all(known.source != source for known in self.checks[-1]):
            check = Check(
                source=source,
                made=tensor.made or source,
                dtype=tensor.dtype,
                shape=tuple(self._expected(tensor, n) for n in tensor.shape),
                strides=tuple(self._expected(tensor, n) for n in tensor.strides),
                device=None if tensor.device.type == self.device.type else tensor.device,
            )
            self.checks[-1] = (*self.checks[-1], check)

    def compare(self, reach: Reach) -> None:
        """Compare indices with a size before the launch being recorded."""
        known = (*map(_bounds, self.reaches[-1]),) if self.reaches else ()
        if self.reaches and _bounds(reach) not in known:
            self.reaches[-1] = (*self.reaches[-1], reach)

    def keep_narrow(self, number: Narrow) -> None:
        """Compare a number with a bound of int32 before the launch being recorded."""
        if self.narrow and number.key not in {known.key for known in self.narrow[-1]}:
            self.narrow[-1] = (*self.narrow[-1], number)

    def _expected(self, tensor: HostTensorValue, number: Number) -> Number | None:
        """Return a size or stride to compare; None if its source is the tensor itself."""
        number = self.numbers.known(number)
        if isinstance(number, Expr) and number.op == "host" and number.args[0] in self.numbers.deferred:
            return None if self.numbers.deferred[number.args[0]][0] is tensor else number
        return number

    def rely(self, tensor: HostTensorValue) -> None:
        """Record that the rest of the trace depends on the sizes, strides or dtype of a tensor."""
        if tensor.checked and not any(known is tensor for known in self.relied):
            self.relied.append(tensor)


def _bounds(reach: Reach) -> tuple[Any, ...]:
    return (bool(reach.tile), *map(number_key, (reach.begin, reach.end, reach.size)))


def _storage_key(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):  # wrapper subclasses may have no storage
        return id(tensor)
