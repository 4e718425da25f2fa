"""What a backend adds to the space of a kernel: keys of its own, and the rules by which its decisions go together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

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
class OwnKeys:
    """``absent`` are keys known elsewhere, with why not here; keys that begin with ``verbatim`` are passed on as they are.
    ``rules`` run in order, on sizes that are in range. ``sizes`` are the fewest and the most elements of tiles, by block,
    where the backend bounds them closer than the kernel does."""

    fields: tuple[Field, ...]
    absent: Mapping[str, str]
    verbatim: str
    rules: tuple[Rule, ...]
    sizes: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    initial: Mapping[int, int] = field(default_factory=dict)
    """Sizes of tiles that a config begins with, by block, where the fewest elements are not what other keys begin with."""
    multiples: Mapping[int, int] = field(default_factory=dict)
    """What sizes of tiles are multiples of, by block, where they need not be powers of two."""
    holds_values: bool = True
    """Whether each value of a program is one tile, of no more than ``Target.max_tensor_numel`` elements."""
    planned: bool = False
    """Whether rules refuse tiles that are in range, since nothing else in a config makes room for them."""
