"""The complete state of a trace, in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...._support.records import dataclass
from ...context import CompileContext
from ...ir.build import Builder, Mark
from .. import journal
from ..journal import Part, Snapshot
from ..rules import Rules
from ..values import HostTensorValue, Recorder
from .blocks import Blocks
from .host_numbers import HostNumbers
from .origins import Origins
from .ranges import Ranges
from .registered import Registered
from .slots import Slots
from .tensors import HostTensors
from .world import World


@dataclass(frozen=True)
class TraceSnapshot:
    """A trace at one point: the attributes of its parts, its builder, and those of the host tensors it had made."""

    parts: tuple[tuple[Part, Snapshot], ...]
    builder: Mark
    host_tensors: tuple[tuple[HostTensorValue, Snapshot], ...]


class TraceState(Part, Recorder):
    """The state of a trace. ``snapshot`` and ``restore`` cover every attribute of every part.

    Objects in collections are not changed in place, except host tensors, which are saved separately.
    """

    def __init__(self, context: CompileContext, rules: Rules) -> None:
        self.context = context
        self.rules = rules
        self.builder = Builder()
        self.numbers = HostNumbers()
        self.blocks = Blocks(self.numbers, context.limits.powers_of_2)
        self.tensors = HostTensors(self.numbers, context.device)
        self.origins = Origins()
        self.ranges = Ranges(self.numbers, self.tensors)
        self.slots = Slots()
        self.registered = Registered()
        self.world = World(frozenset(context.settings.ignore_warnings))
        #: Calls a user function on abstract values; set by the walk over the kernel.
        self.call: Callable[[Any, tuple[Any, ...]], Any] = lambda function, args: function(*args)
        #: Number of barriers before the current position.
        self.phase = 0
        #: Number of host loops around launches at the current position.
        self.host_loops = 0

    @property
    def device(self) -> torch.device:
        return self.context.device

    @property
    def on_device(self) -> bool:
        return self.builder.active

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self, *(value for value in vars(self).values() if isinstance(value, Part)))

    def snapshot(self) -> TraceSnapshot:
        """Return a snapshot of the trace for ``restore``."""
        return TraceSnapshot(
            parts=tuple((part, journal.snapshot(part)) for part in self.parts),
            builder=self.builder.mark(),
            host_tensors=tuple((tensor, journal.snapshot(tensor)) for tensor in self.tensors.made),
        )

    def restore(self, saved: TraceSnapshot) -> None:
        """Restore the state when ``saved`` was taken; the snapshot can be used again."""
        for part, attributes in saved.parts:
            journal.restore(part, attributes)
        self.builder.rewind(saved.builder)
        for tensor, attributes in saved.host_tensors:
            journal.restore(tensor, attributes)
            tensor.forget_meta()
