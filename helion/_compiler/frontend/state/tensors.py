"""Host tensors of a trace: which the kernels use, which share memory, and which have to be compared before a launch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...._shapes import Expr, Number, shared_memory
from ...ir.grammar import Check, HostTensor
from ..journal import Part
from ..values import HostTensorValue
from .host_numbers import HostNumbers


class HostTensors(Part):
    """``device`` is where the arguments live."""

    def __init__(self, numbers: HostNumbers, device: torch.device) -> None:
        self.numbers = numbers
        self.device = device
        #: Those of the program, with the values they stand for.
        self.program: list[HostTensor] = []
        self.used: list[HostTensorValue] = []
        #: The first of them that the launch being recorded passes; a variable may hold another tensor in the next one.
        self.first = 0
        #: All that were made.
        self.made: list[HostTensorValue] = []
        #: Tensors from outside of the kernel, by identity and the host expression for them.
        self.lifted: dict[tuple[int, str], HostTensorValue] = {}
        #: Those whose sizes, strides or dtype the host code has read, and may not be as modelled.
        self.relied: list[HostTensorValue] = []
        #: Whether one of them has no name by which it could be compared, so that whatever follows may be otherwise too.
        self.unsure = False
        #: What each launch has to compare.
        self.checks: list[tuple[Check, ...]] = []
        #: The number of each memory of the arguments.
        self.storage_numbers: dict[int, int] = {}
        self._storages = 0
        #: Where launches that draw seeds have them, by the first tensor of the launch: a tensor of the program, and how
        #: many seeds it has by now.
        self.seeds: dict[int, tuple[int, int]] = {}

    def new_storage(self) -> int:
        self._storages += 1
        return self._storages

    def storage_of(self, tensor: torch.Tensor) -> int:
        """One number per memory: arguments that are views of one tensor share it, and so do those that ``meeting`` gave."""
        key = _storage_key(tensor)
        if key not in self.storage_numbers:
            self.storage_numbers[key] = self.new_storage()
        return self.storage_numbers[key]

    def meeting(self, tensors: Sequence[torch.Tensor]) -> None:
        """Arguments whose memory may meet though their storages differ are taken to share it."""
        numbers: dict[int, int] = {}
        for tensor, first in zip(tensors, shared_memory(tensors), strict=True):
            if tensor.layout is torch.strided:
                numbers[first] = self.storage_of(tensor) if first not in numbers else numbers[first]
                self.storage_numbers[_storage_key(tensor)] = numbers[first]

    def number_of(self, tensor: HostTensorValue) -> int | None:
        """The number of a tensor in the program, None before the launch being recorded uses it."""
        used = enumerate(self.used[self.first :], self.first)
        return next((at for at, known in used if known is tensor), None)

    def begin_checks(self) -> None:
        """A launch begins: what was relied on up to here is compared before it."""
        self.checks.append(())
        for tensor in self.relied:
            self.check(tensor)

    def check(self, tensor: HostTensorValue) -> None:
        """Have the launch being recorded compare a tensor, if it may be otherwise than modelled."""
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

    def _expected(self, tensor: HostTensorValue, number: Number) -> Number | None:
        """A size or stride to compare; None for what is read off the tensor itself."""
        number = self.numbers.known(number)
        if isinstance(number, Expr) and number.op == "host" and number.args[0] in self.numbers.deferred:
            return None if self.numbers.deferred[number.args[0]][0] is tensor else number
        return number

    def rely(self, tensor: HostTensorValue) -> None:
        """What follows depends on the sizes, strides or dtype of a tensor."""
        if tensor.checked and not any(known is tensor for known in self.relied):
            self.relied.append(tensor)


def _storage_key(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):  # wrapper subclasses may have no storage
        return id(tensor)
