"""Heuristics, their proposals, and the seeds made of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

from .._compiler.facts.records import KernelFacts
from .._support.records import dataclass, field
from ..config import Config
from ..hardware import Target


@dataclass(frozen=True)
class Declined:
    """A refusal of a heuristic, with the reason shown to users."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A proposal for a program: sizes by block id; orders, groupings and flattening by number of the grid loop.

    A loop inside of a grid loop is flattened by its number among all loops, negated.

    Only ``ConfigSpace`` converts it to positional lists. Settings that are left out take the space's default.
    ``block_sizes`` are elements; ``reduction_loops`` maps a whole dimension's block id to a chunk in elements, or None
    to hold the row at once. A proposal that ``may_spill`` was measured, though its registers run out. A backend with more
    settings derives a class.
    """

    #: True if the backend flattens loops inside of grid loops.
    flattens_runs: ClassVar[bool] = False

    reason: str
    block_sizes: Mapping[int, int] = field(default_factory=dict)
    reduction_loops: Mapping[int, int | None] = field(default_factory=dict)
    l2_groupings: Mapping[int, int] = field(default_factory=dict)
    loop_orders: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    flatten_loops: Mapping[int, bool] = field(default_factory=dict)
    may_spill: bool = False

    @functools.cached_property
    def lists(self) -> Mapping[str, Mapping[int, Any]]:
        """Lists of the config by key, each a mapping from places to entries."""
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
        """Keys that are passed on unchanged, or refused."""
        return {}


#: The risk from which spills are expected: of risks 0.2 to 0.6, 88 to 1528 bytes were spilled offline. Of smaller ones,
#: one of 0.05 spilled 368 bytes.
_SPILL_RISK = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """Predicted resources and time of one launch.

    ``registers_per_thread`` is before any cap, in 32-bit registers, of which there are ``register_limit``.
    ``spill_risk`` is from 0 (none) to 1 (certain), and ``least_registers`` the minimum for any order of instructions.
    ``shared_bytes`` per block is an upper bound, and ``least_shared_bytes`` a lower bound for any error of the
    prediction. ``waves`` is blocks over the number that run at once. ``fits``: the launch is possible (shared memory,
    tensor memory, threads, tile size); if not, ``reason`` names the need and the limit. ``bytes_moved`` counts memory
    traffic, ``flops`` dots and elementwise ops. ``time_us`` is a roofline without a better model. ``units`` has the
    microseconds that each unit of the GPU needs by itself, by name; units work in parallel. ``error`` is the standard
    deviation of the logarithm of ``time_us``, within the configs of one kernel. ``never_spills``: a binary that spills
    anything is replaced by the next seed, since no measurement supports it.
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
    error: float = 0.3
    never_spills: bool = False

    @property
    def spills(self) -> bool:
        """True if spills are expected; a smaller risk rarely leads to one."""
        return self.spill_risk >= _SPILL_RISK


@dataclass(frozen=True, kw_only=True)
class Seed:
    """A legal, full, normalized config with its heuristic and its prediction; ``may_spill`` as in ``Proposal``."""

    config: Config
    heuristic: str
    reason: str
    predicted: Predicted
    may_spill: bool = False


#: Predicts a launch of a full config.
Predict = Callable[[Config], Predicted]


class Heuristic(Protocol):
    """Stateless and pure heuristic: reads only facts and target, and no other heuristic."""

    name: ClassVar[str]
    #: True if its first seed may become the default config.
    promote_seed_to_default: ClassVar[bool]
    #: True for a fallback: it runs only if no earlier heuristic gives a seed that may become the default.
    fallback_only: ClassVar[bool] = False

    def competes_within(self, facts: KernelFacts, target: Target) -> float:
        """Return the ratio to the promoted seed's predicted time within which its seeds become the default.

        It is 0 where they must be much faster. Proposals that differ from others by more than sizes, and were measured
        against them, have a ratio.
        """
        return 0.0

    def propose(self, facts: KernelFacts, target: Target) -> tuple[Proposal, ...] | Declined:
        """Return ranked proposals, of which the first is *the* seed, or the reason why there are none."""
        ...
