"""What a backend adds to the space of a kernel: keys of its own, and the rules by which its decisions go together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...fields import Fragment
from ..decisions import Decisions
from .fields import Field

#: Decisions, and whether what does not go together is changed (else it raises ``exc.InvalidConfig``), as decisions that
#: go together. Gives back what it was given where nothing changes.
Settle = Callable[[Decisions, bool], Decisions]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One step of settling. ``why`` says, of a config that it changed, what could not be had."""

    why: str
    settle: Settle


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A key that other arguments, settings or targets of a kernel have: what a value, or each entry of a list, may be there.

    One that is ``structural`` depends on the operations of the kernel: sizes change these only where a dimension has no or
    one element. ``initial`` asks for nothing, and is all there is without a ``fragment``.
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
        """Tell that ``value`` is what the kernel does anyway."""
        if isinstance(value, (list, tuple)):
            return all(map(self.asks_for_nothing, value))
        return value is None or value is False or (type(value) is type(self.initial) and value == self.initial)


@dataclass(frozen=True, kw_only=True)
class OwnKeys:
    """``absent`` are keys known elsewhere, with why not here, and ``missing`` those of them that other arguments or targets
    of the kernel may have; keys that begin with ``verbatim`` are passed on as they are.
    ``rules`` run in order, on sizes that are in range. ``sizes`` are the fewest and the most elements of tiles, by block,
    where the backend bounds them closer than the kernel does."""

    fields: tuple[Field, ...]
    absent: Mapping[str, str]
    verbatim: str
    missing: Mapping[str, Missing] = field(default_factory=dict)
    rules: tuple[Rule, ...]
    sizes: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    initial: Mapping[int, int] = field(default_factory=dict)
    """Sizes of tiles that a config begins with, by block, where the fewest elements are not what other keys begin with."""
    multiples: Mapping[int, int] = field(default_factory=dict)
    """What sizes of tiles are multiples of, by block, where they need not be powers of two."""
    holds_values: bool = True
    """Whether each value of a program is one tile, of no more than ``Target.max_tensor_numel`` elements."""
    check: Callable[[Decisions], None] | None = None
    """Raises ``exc.InvalidConfig`` for decisions that no one is to compile, though they could be."""
    planned: bool = False
    """Whether rules refuse tiles that are in range, since nothing else in a config makes room for them."""
