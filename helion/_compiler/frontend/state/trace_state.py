"""All that a trace has collected, in parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...context import CompileContext
from ...ir.build import Builder, Mark
from .. import journal
from ..journal import Part, Snapshot
from ..rules import Rules
from ..values import HostTensorValue, Recorder
from .blocks import Blocks
from .host_numbers import HostNumbers
from .origins import Origins
from .registered import Registered
from .slots import Slots
from .tensors import HostTensors
from .world import World


@dataclass(frozen=True)
class TraceSnapshot:
    """A trace as it was: the attributes of its parts, its builder, and those of the host tensors it had made."""

    parts: tuple[tuple[Part, Snapshot], ...]
    builder: Mark
    host_tensors: tuple[tuple[HostTensorValue, Snapshot], ...]


class TraceState(Part, Recorder):
    """``snapshot`` and ``restore`` cover every attribute of every part; collections hold what is not changed in place, host
    tensors apart."""

    def __init__(self, context: CompileContext, rules: Rules) -> None:
        self.context = context
        self.rules = rules
        self.builder = Builder()
        self.numbers = HostNumbers()
        self.blocks = Blocks(self.numbers, context.limits.powers_of_2)
        self.tensors = HostTensors(self.numbers, context.device)
        self.origins = Origins()
        self.slots = Slots()
        self.registered = Registered()
        self.world = World(frozenset(context.settings.ignore_warnings))
        #: Calls a function of the user's on abstract values; set by whoever walks the kernel.
        self.call: Callable[[Any, tuple[Any, ...]], Any] = lambda function, args: function(*args)
        #: How many barriers stand before what is being walked.
        self.phase = 0
        #: How many host loops around launches are being walked.
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
        """What ``restore`` needs to forget everything recorded from here on."""
        return TraceSnapshot(
            parts=tuple((part, journal.snapshot(part)) for part in self.parts),
            builder=self.builder.mark(),
            host_tensors=tuple((tensor, journal.snapshot(tensor)) for tensor in self.tensors.made),
        )

    def restore(self, saved: TraceSnapshot) -> None:
        """Be as when ``saved`` was taken, which may be used again."""
        for part, attributes in saved.parts:
            journal.restore(part, attributes)
        self.builder.rewind(saved.builder)
        for tensor, attributes in saved.host_tensors:
            journal.restore(tensor, attributes)
            tensor.forget_meta()
