"""A backend's additions to the config space of a kernel: its keys, and the rules that make decisions legal together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..._compiler.decisions import Decisions
from ..._support.records import dataclass, field
from ...fields import Fragment
from .fields import Field

#: Rule: takes decisions, and a flag to change illegal combinations (else it raises ``exc.InvalidConfig``). Returns
#: legal decisions, or the same object if nothing changes.
Legalize = Callable[[Decisions, bool], Decisions]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One step of legalization. ``why`` is the reason shown for a config that it changed."""

    why: str
    legalize: Legalize


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A key of other arguments, settings or targets of a kernel, with the range of its value or list entries there.

    A ``structural`` one depends on the operations of the kernel: sizes change these only if a dimension has no or one
    element. ``initial`` is the value without effect, and the only one without a ``fragment``.
    """

    fragment: Fragment | None
    initial: Any = None
    structural: bool = False

    def why_not(self, value: Any) -> str | None:
        """Return a reason why no arguments take ``value``, or None."""
        if self.fragment is None:
            return None
        entries = value if isinstance(value, (list, tuple)) else [value]
        reasons = (self.fragment.why_not(entry) for entry in entries if not self.asks_for_nothing(entry))
        return next((why for why in reasons if why is not None), None)

    def asks_for_nothing(self, value: Any) -> bool:
        """Return whether ``value`` has no effect on the kernel."""
        if isinstance(value, (list, tuple)):
            return all(map(self.asks_for_nothing, value))
        return value is None or value is False or (type(value) is type(self.initial) and value == self.initial)


@dataclass(frozen=True, kw_only=True)
class OwnKeys:
    """Keys of a backend.

    ``absent`` are keys that other kernels have, with the reason why this one lacks them. ``missing`` are those of them
    that other arguments or targets of the kernel may have. Keys that begin with ``verbatim`` are passed on unchanged.
    """

    fields: tuple[Field, ...]
    absent: Mapping[str, str]
    verbatim: str
    missing: Mapping[str, Missing] = field(default_factory=dict)
    rules: tuple[Rule, ...]
    sizes: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    initial: Mapping[int, int] = field(default_factory=dict)
    """Sizes of tiles that a config begins with, by block, where the fewest elements are not what other keys begin with."""
    least: Mapping[int, int] = field(default_factory=dict)
    """The fewest elements of tiles, by block, where they are less than those of any matmul."""
    multiples: Mapping[int, int] = field(default_factory=dict)
    """The numbers that sizes of tiles are multiples of, by block, where they need not be powers of two."""
    holds_values: bool = True
    """Whether each value of a program is one tile, of no more than ``Target.max_tensor_numel`` elements."""
    check: Callable[[Decisions], None] | None = None
    """Raises ``exc.InvalidConfig`` for decisions that no one is to compile, though they could be."""
    planned: bool = False
    """Whether rules refuse tiles that are in range, since nothing else in a config makes room for them."""
    rolls: bool = True
    """Whether whole dimensions can be loops over chunks."""
