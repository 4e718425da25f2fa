"""What a heuristic is, what it proposes, and what becomes of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from .._compiler.facts.records import KernelFacts
from ..config import Config
from ..hardware import Target


@dataclass(frozen=True)
class Declined:
    """Why a heuristic proposes nothing, as it is shown to users."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A wish, in terms of the program: sizes by block id, orders, groupings and what is flattened by the number of a grid loop.

    Only ``ConfigSpace`` turns it into positional lists. What is left out takes the space's default. ``block_sizes``
    are elements; ``reduction_loops`` maps a whole dimension's block id to a chunk in elements, or None to hold the
    row at once. A backend that has more to say derives a class of its own.
    """

    reason: str
    block_sizes: Mapping[int, int] = field(default_factory=dict)
    reduction_loops: Mapping[int, int | None] = field(default_factory=dict)
    l2_groupings: Mapping[int, int] = field(default_factory=dict)
    loop_orders: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    flatten_loops: Mapping[int, bool] = field(default_factory=dict)

    @functools.cached_property
    def lists(self) -> Mapping[str, Mapping[int, Any]]:
        """Lists of the config by key, each by what its entries are about."""
        return {
            "block_sizes": self.block_sizes,
            "reduction_loops": self.reduction_loops,
            "l2_groupings": self.l2_groupings,
            "loop_orders": self.loop_orders,
            "flatten_loops": self.flatten_loops,
        }

    @property
    def values(self) -> Mapping[str, Any]:
        """Other keys that are brought into range; None leaves one open."""
        return {}

    @property
    def verbatim(self) -> Mapping[str, Any]:
        """Keys that are taken as they are, or refused."""
        return {}


#: The risk from which on a predicted spill happens: of 0.2 to 0.6, 88 to 1528 bytes were spilled offline; below, none.
_SPILL_RISK = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """What one launch takes.

    ``registers_per_thread`` before any cap, in 32-bit registers, of which there are ``register_limit``; ``spill_risk``
    from 0 (none) to 1 (certain), and ``least_registers`` those that no order of instructions does without. ``shared_bytes`` per block is an upper bound, and no error of the prediction makes it
    less than ``least_shared_bytes``. ``waves`` is blocks over all that run at once. ``fits``: the launch is possible
    (shared memory, tensor memory, threads, tile size); if not, ``reason`` says what is needed and what there is.
    ``bytes_moved`` from and to memory, ``flops`` of dots and elementwise ops. ``time_us`` is a roofline where no more is known,
    and ``units`` has the microseconds that each unit of the GPU would need by itself, by name; they work at the same time.
    """

    registers_per_thread: int
    spill_risk: float
    shared_bytes: int
    tensor_memory_columns: int
    waves: float
    occupancy_blocks: int
    fits: bool
    bytes_moved: int
    flops: int
    time_us: float
    register_limit: int
    least_shared_bytes: int = 0
    least_registers: int = 0
    reason: str = ""
    units: tuple[tuple[str, float], ...] = ()

    @property
    def spills(self) -> bool:
        """Whether spills are to be expected; a smaller risk has never come true."""
        return self.spill_risk >= _SPILL_RISK


@dataclass(frozen=True, kw_only=True)
class Seed:
    """A legal, full, normalised config with where it comes from and what it is predicted to take."""

    config: Config
    heuristic: str
    reason: str
    predicted: Predicted


#: What a launch of a full config takes.
Predict = Callable[[Config], Predicted]


class Heuristic(Protocol):
    """Stateless and pure: sees facts and target, nothing else; no other heuristic either."""

    name: ClassVar[str]
    #: Whether its first seed may become the default config.
    promote_seed_to_default: ClassVar[bool]
    #: Whether it only stands in: it is asked where none before it gives a seed that may become the default.
    stands_in: ClassVar[bool] = False

    def contends(self, target: Target) -> bool:
        """Whether its seeds become the default wherever they are predicted to be faster than the one that a heuristic promotes,
        and not only where they are by far: what it proposes differs from what others do by more than sizes, and was measured
        beside it."""
        return False

    def propose(self, facts: KernelFacts, target: Target) -> tuple[Proposal, ...] | Declined:
        """Ranked proposals, of which the first is *the* seed, or why there are none."""
        ...
