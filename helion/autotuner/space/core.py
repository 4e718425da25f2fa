"""``ConfigSpace``: every way to compile one kernel, as lists whose lengths and ranges follow from the kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from ... import exc
from ..._compiler.ir.grammar import Block
from ..._shapes import cdiv, hint_of, next_power_of_2
from ...config import Config
from ...hardware import Target
from ..heuristics.base import Proposal
from .fields import Field, PerSlot
from .survey import Survey, Volume

#: Launcher options under any name; they are passed on as they are.
VERBATIM_PREFIX = "_triton_config_"
#: Warps that a warp-specialized loop needs: one group of four for each role.
_SPECIALIZED_WARPS = 4

Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RangeEntries:
    """Positions in the ``range_*`` lists: those of the grid loops, and those of the entries of ``static_ranges``."""

    roots: tuple[int, ...]
    static: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ConfigSpace:
    """Immutable. ``rollable`` blocks can be walked in chunks. ``absent`` are keys known elsewhere, with why not here.

    ``default`` is the config that runs when nothing was tuned; None stands for the conservative one.
    """

    kernel: str
    target: Target
    backend: str
    survey: Survey
    rollable: tuple[int, ...]
    fields: tuple[Field, ...]
    range_entries: RangeEntries
    absent: Mapping[str, str]
    default: Config | None = None

    # --- configs ---------------------------------------------------------------------------------------------------------

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of a full config, in order."""
        return tuple(field.key for field in self.fields)

    def normalize(self, config: Config | Mapping[str, Any]) -> Config:
        """The full config that ``config`` stands for: every key, in order, each value in its normal form.

        Keys and list entries that are left out take their defaults. Tile sizes out of range are brought into it. What has
        no effect with the rest of the config is reset, so that configs which give the same code are equal. Normalizing
        twice changes nothing.

        Raises ``exc.InvalidConfig`` for what is unknown, malformed or impossible, and ``exc.NoFeasibleConfig`` when no
        tile sizes at all keep the kernel's values below the target's largest tile.
        """
        return self._normalize(config, repair=False)

    def repair(self, config: Config | Mapping[str, Any]) -> Config:
        """As ``normalize``, but tiles that are too large together are made smaller, the largest first."""
        return self._normalize(config, repair=True)

    def default_config(self) -> Config:
        """What runs when nothing was tuned."""
        return self.default or self.conservative()

    def conservative(self) -> Config:
        """Small tiles that fit anywhere, chosen without a heuristic. Raises ``exc.NoFeasibleConfig``."""
        return self.normalize(Config())

    def random(self, rng: Random) -> Config:
        """Any legal config."""
        values = {field.key: field.random(rng) for field in self.fields}
        if not _is_persistent(values):
            values["num_sm_multiplier"] = 1
        if values["pid_type"] == "xyz" and self._xyz_excess(self.repair({**values, "pid_type": "flat"})):
            values["pid_type"] = "flat"
        return self.repair(values)

    def encode(self, proposal: Proposal) -> Values:
        """The proposal as config keys, without those it leaves open; numbers are brought into range.

        Raises KeyError when it names a block, a root or a load that has no such setting.
        """
        wishes = ((field.key, field.encode(proposal)) for field in self.fields)
        return {**{key: wish for key, wish in wishes if wish is not None}, **proposal.launch}

    # --- sizes -----------------------------------------------------------------------------------------------------------

    def sizes(self, config: Mapping[str, Any]) -> dict[int, int]:
        """Elements of every block under a full ``config``.

        A tile's is its slot's, or fixed by the kernel; 1 for ``hl.grid``; for a whole dimension the chunk, else its
        extent rounded up to a power of two (as seen when binding, where extents differ from call to call).
        """
        sizes = dict(self._fixed_sizes)
        sizes.update(zip(self._tunable, config["block_sizes"], strict=True))
        for block, chunk in zip(self.rollable, config["reduction_loops"], strict=True):
            if chunk is not None:
                sizes[block] = chunk
        return sizes

    def block_size_of(self, config: Mapping[str, Any], block: int) -> int:
        """Elements of one block under a full ``config``; see ``sizes``."""
        return self.sizes(config)[block]

    def rolled(self, config: Mapping[str, Any]) -> frozenset[int]:
        """The whole dimensions that a full ``config`` walks in chunks."""
        pairs = zip(self.rollable, config["reduction_loops"], strict=True)
        return frozenset(block for block, chunk in pairs if chunk is not None)

    def resized(self, config: Mapping[str, Any], sizes: Mapping[int, int]) -> Config:
        """The full ``config`` with other ``sizes`` for some tiles and whole dimensions."""
        values = dict(config)
        self._write(values, {**self.sizes(config), **sizes})
        return self.repair(values)

    def smallest(self, block: int) -> int:
        """The fewest elements a block can be given: of a tile, of a chunk, or its only size."""
        return self._lowest.get(block, self._fixed_sizes[block])

    @property
    def tunable(self) -> tuple[int, ...]:
        """The blocks with an entry in ``block_sizes``, in its order."""
        return self._tunable

    @functools.cached_property
    def _tunable(self) -> tuple[int, ...]:
        return tuple(block.id for block in self.survey.blocks if block.tunable)

    @functools.cached_property
    def _fixed_sizes(self) -> dict[int, int]:
        return {block.id: _fixed_size(block) for block in self.survey.blocks}

    @functools.cached_property
    def _lowest(self) -> dict[int, int]:
        chunks = {slot.ids[0]: slot.low for slot in self.field("reduction_loops").slots}  # type: ignore[attr-defined]
        return {**{block: self.survey.blocks[block].min_size for block in self._tunable}, **chunks}

    @functools.cached_property
    def _by_key(self) -> dict[str, Field]:
        return {field.key: field for field in self.fields}

    def field(self, key: str) -> PerSlot: ...
