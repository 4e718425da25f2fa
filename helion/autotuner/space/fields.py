"""Config fields: each has a range and a default, checks a user's value, and reads a heuristic's proposal.

A field of one value wraps a fragment; a field of a list has one *slot* per loop, tile or memory access, and each slot
its own fragment.
"""

from __future__ import annotations

import abc
import functools
import math
import os
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from ... import exc
from ..._compiler.decisions import Place
from ..._shapes import previous_power_of_2
from ..._support.records import dataclass
from ...fields import (
    BooleanFragment,
    EnumFragment,
    Fragment,
    IntegerFragment,
    MultipleFragment,
    PermutationFragment,
    PowerOfTwoFragment,
)
from ...fields import values_of as values_of
from ..proposal import Proposal

_ANY_POWER_OF_TWO = PowerOfTwoFragment(1, 2**31)


# --- distances between values of fragments -------------------------------------------------------------------------


def nearest(fragment: Fragment, value: Any, default: Any) -> Any:
    """Bring ``value`` into range; unordered sets give ``default``."""
    match fragment:
        case PowerOfTwoFragment(low, high):
            return min(max(previous_power_of_2(value), low), high)
        case IntegerFragment(low, high):
            return min(max(value, low), high)
        case MultipleFragment(step, low, high):
            return min(max(value // step * step, low), high)
    return default if fragment.why_not(value) else value


def adjacent(fragment: Fragment, value: Any) -> list[Any]:
    """List the neighbors of a value: one step up and down for numbers, also the next powers of two among multiples.

    Unordered sets give every other value. A number out of range has the nearest one in it.
    """
    values = values_of(fragment)
    if fragment.why_not(value) is not None and isinstance(value, (int, float)):
        near = nearest(fragment, value, None)
        return [other for other in values if near is None or other == near]
    if isinstance(fragment, MultipleFragment):
        half, double = previous_power_of_2(max(1, value - 1)), 2 * previous_power_of_2(value)
        near = {value - fragment.step, value + fragment.step, half, double} - {value}
        return [other for other in values if other in near]
    if isinstance(fragment, (PowerOfTwoFragment, IntegerFragment)):
        at = values.index(value)
        return [values[i] for i in (at - 1, at + 1) if 0 <= i < len(values)]
    return [other for other in values if other != value or type(other) is not type(value)]


#: Distance of two unordered values, in steps of ordered ones.
_APART = 0.7


def coordinates(fragment: Fragment, value: Any) -> list[float]:
    """Return coordinates of ``value`` with meaningful distances: one step of a number is 1, powers of two are steps."""
    match fragment:
        case PowerOfTwoFragment() | MultipleFragment():
            return [math.log2(value)]
        case IntegerFragment() | BooleanFragment():
            return [float(value)]
        case PermutationFragment():
            return [float(dim) for dim in value]
        case EnumFragment(choices):
            return _enumerated(choices, value)


def _enumerated(choices: tuple[Any, ...], value: Any) -> list[float]:
    numbers = [choice for choice in choices if type(choice) is int and choice > 0]
    if numbers and all(choice is None or choice in numbers for choice in choices):
        # None means the whole row, beyond the largest number
        return [math.log2(2 * max(numbers) if value is None else value)]
    return [_APART * (value == choice and type(value) is type(choice)) for choice in choices]


# --- fields --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Field(abc.ABC):
    """One key of a config. A search changes it ``weight`` times as often as one of weight 1."""

    key: str
    weight: float = 1.0

    @abc.abstractmethod
    def default(self) -> Any:
        """Return the value if the config leaves the key out (a fresh list for list fields)."""

    @abc.abstractmethod
    def read(self, value: Any) -> Any:
        """Normalize a user's value. Raises ``exc.InvalidConfig``, naming the key and the entry."""

    @abc.abstractmethod
    def encode(self, proposal: Proposal) -> Any:
        """Return the proposal's value, brought into range; None if it has none. Raises KeyError for an unknown slot."""

    @abc.abstractmethod
    def random(self, rng: Random) -> Any:
        """Draw a legal value."""

    @abc.abstractmethod
    def neighbours(self, value: Any) -> list[Any]:
        """List the legal values one step away from the legal ``value``."""

    @abc.abstractmethod
    def coordinates(self, value: Any) -> list[float]:
        """Return coordinates of the legal ``value``: of fixed length, and close together for values of similar effect."""


@dataclass(frozen=True, kw_only=True)
class Scalar(Field):
    """A key with one value.

    ``remedies`` are the reasons why a value that other kernels have is not legal here. ``searched`` are the values
    worth trying, if not all; the others are legal too. A value that only ``elsewhere`` has, with other arguments of the
    kernel, is brought into range.
    """

    fragment: Fragment
    initial: Any
    remedies: Mapping[Any, str] | None = None
    searched: Fragment | None = None
    elsewhere: Fragment | None = None

    def default(self) -> Any:
        return self.initial

    def read(self, value: Any) -> Any:
        if (why := self.fragment.why_not(value)) is None:
            return value
        if self.elsewhere is not None and self.elsewhere.why_not(value) is None:
            return nearest(self.fragment, value, self.initial)
        remedy = (self.remedies or {}).get(value) if isinstance(value, str) else None
        raise exc.InvalidConfig(f"{self.key} {why}{f': {remedy}' if remedy else ''}.")

    def encode(self, proposal: Proposal) -> Any:
        wish = proposal.values.get(self.key)
        return None if wish is None else nearest(self.fragment, wish, self.initial)

    def random(self, rng: Random) -> Any:
        return rng.choice(values_of(self.searched or self.fragment))

    def neighbours(self, value: Any) -> list[Any]:
        return adjacent(self.searched or self.fragment, value)

    def coordinates(self, value: Any) -> list[float]:
        return coordinates(self.fragment, value)


@dataclass(frozen=True, kw_only=True)
class Tunable(Scalar):
    """A key of the kernel's own.

    Proposals and decisions use its ``name`` in the program, which differs from all our keys.
    """

    name: str

    def encode(self, proposal: Proposal) -> Any:
        wish = proposal.values.get(self.name)
        return None if wish is None else nearest(self.fragment, wish, self.initial)


@dataclass(frozen=True, kw_only=True)
class EpilogueSubtile(Scalar):
    """Number of column subtiles of a matmul's epilogue; None keeps the tile whole.

    ``columns`` are the blocks split; if there are none, every value means None, and ``reason`` is given.
    """

    key: str = "epilogue_subtile"
    initial: None = None
    columns: tuple[int, ...]
    reason: str = ""

    def read(self, value: Any) -> Any:
        if value is True:
            return super().read(2)
        return super().read(None if isinstance(value, int) and value == 0 else value)


@dataclass(frozen=True, kw_only=True)
class OptionsFile(Scalar):
    """The path of a file with options for the assembler, None for none. A search has no files to try."""

    initial: None = None

    def read(self, value: Any) -> str | None:
        if value is None or value == "":
            return None
        path = str(value) if isinstance(value, (str, os.PathLike)) else ""
        if not path or path.split() != [path]:
            raise exc.InvalidConfig(f"{self.key} must be the path of a file, without spaces in it, got {value!r}.")
        return path

    def neighbours(self, value: Any) -> list[Any]:
        return []

    def coordinates(self, value: Any) -> list[float]:
        return []


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One entry of a list.

    ``name`` is the tile, loop or access it belongs to, and ``at`` the same for ``Decisions``. A proposal may use any of
    ``ids`` (block ids, the number of a root or of a load). ``remedy`` is the reason for a narrower range.
    """

    name: str
    at: Place
    fragment: Fragment
    initial: Any
    ids: tuple[int, ...] = ()
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class PerSlot(Field):
    """A key with a list of values. ``per`` completes "one entry per".

    A list that is too short is filled with defaults. One that is too long is refused, unless the kernel has more
    entries with other arguments (``spare``): then the surplus entries are dropped. Entries that only ``elsewhere`` has
    are brought into range. ``spread`` are the places of loops that the program lacks, in a list for the loops as
    written: those that became dimensions of their grid, and unrolled ones. Their entries are dropped.
    """

    slots: tuple[Slot, ...]
    per: str
    spare: bool = False
    elsewhere: Fragment | None = None
    spread: tuple[int, ...] = ()

    def default(self) -> list[Any]:
        initial, nested = self._initial
        return [*map(_fresh, initial)] if nested else [*initial]

    @functools.cached_property
    def _initial(self) -> tuple[tuple[Any, ...], bool]:
        """The default entries, and whether some are lists themselves."""
        initial = tuple([slot.initial for slot in self.slots])
        return initial, any([isinstance(each, (list, tuple)) for each in initial])

    def read(self, value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise exc.InvalidConfig(f"{self.key} must be a list with one entry per {self.per}, got {value!r}.")
        if self.spread and len(value) == len(self.slots) + len(self.spread):
            value = [entry for at, entry in enumerate(value) if at not in self.spread]
        self.check_length(value)
        kept = self.kept(value)
        read = self.entry if len(kept) == len(value) else self.moved
        entries = [read(i, slot, v) for i, (slot, v) in enumerate(zip(self.slots, kept, strict=False))]
        return entries if len(entries) == len(self.slots) else [*entries, *self.default()[len(entries) :]]

    def decode(self, value: Sequence[Any]) -> dict[Place, Any]:
        """Map the places of a full list to its entries."""
        return dict(zip(self.places, value, strict=True))

    @functools.cached_property
    def places(self) -> tuple[Place, ...]:
        """The places of the entries, in their order."""
        return tuple([slot.at for slot in self.slots])

    def recode(self, entries: Mapping[Place, Any]) -> list[Any]:
        """Return the full list whose ``decode`` is ``entries``."""
        return [entries[slot.at] for slot in self.slots]

    def kept(self, value: Sequence[Any]) -> Sequence[Any]:
        """Return the entries of a list that are for these arguments."""
        return value[: len(self.slots)]

    def moved(self, at: int, slot: Slot, value: Any) -> Any:
        """Return an entry of a list that is too long: it may belong to another slot, which takes other values."""
        return self.entry(at, slot, value) if slot.fragment.why_not(value) is None else _fresh(slot.initial)

    def check_length(self, value: Sequence[Any]) -> None:
        if len(value) > len(self.slots) and not self.spare:
            raise exc.InvalidConfig(f"{self.key} has {self.counted(len(value))}.")

    def counted(self, got: int) -> str:
        """Format the given and the expected length, and the owners of the entries."""
        names = f": {', '.join(slot.name or 'unused' for slot in self.slots)}" if self.slots else ""
        return f"{got} {'entry' if got == 1 else 'entries'}, expected {len(self.slots)} (one per {self.per}{names})"

    def entry(self, at: int, slot: Slot, value: Any) -> Any:
        """Normalize one entry."""
        if self.elsewhere is not None and not slot.remedy and self.elsewhere.why_not(value) is None:
            value = nearest(slot.fragment, value, slot.initial)
        if (why := slot.fragment.why_not(value)) is not None:
            raise self.refusal(at, slot, f"{why}{f': {slot.remedy}' if slot.remedy else ''}")
        return list(value) if isinstance(value, tuple) else value

    def refusal(self, at: int, slot: Slot, why: str) -> exc.Base:
        return exc.InvalidConfig(f"{self.key}[{at}]{f' ({slot.name})' if slot.name else ''} {why}.")

    def encode(self, proposal: Proposal) -> list[Any] | None:
        wishes = proposal.lists.get(self.key)
        if not wishes:
            return None
        known = self._ids
        if not wishes.keys() <= known:
            unknown = sorted(wishes.keys() - known)
            raise KeyError(f"{self.key} has no entry for {unknown}; it has entries for {sorted(known)}")
        return [self.granted(slot, wishes) for slot in self.slots]

    @functools.cached_property
    def _ids(self) -> frozenset[int]:
        return frozenset([i for slot in self.slots for i in slot.ids])

    def granted(self, slot: Slot, wishes: Mapping[int, Any]) -> Any:
        wish = [wishes[i] for i in slot.ids if i in wishes]
        return nearest(slot.fragment, _fresh(wish[0]), slot.initial) if wish else _fresh(slot.initial)

    def random(self, rng: Random) -> list[Any]:
        return [_fresh(rng.choice(values_of(slot.fragment))) for slot in self.slots]

    def neighbours(self, value: list[Any]) -> list[list[Any]]:
        return [
            [*value[:i], other, *value[i + 1 :]]
            for i, slot in enumerate(self.slots)
            for other in adjacent(slot.fragment, value[i])
        ]

    def coordinates(self, value: list[Any]) -> list[float]:
        return [place for slot, entry in zip(self.slots, value, strict=True) for place in self.place(slot, entry)]

    def place(self, slot: Slot, entry: Any) -> list[float]:
        return coordinates(slot.fragment, entry)


def _fresh(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True, kw_only=True)
class BlockSizes(PerSlot):
    """Tile sizes in elements, all of which must be given.

    One beyond the dimension, or below the minimum of a matmul, is brought into range, because one config serves many
    shapes.
    """

    key: str = "block_sizes"
    weight: float = 4.0
    per: str = "tiled dimension without a fixed size"

    def check_length(self, value: Sequence[Any]) -> None:
        if value and isinstance(value[0], str):
            raise exc.InvalidConfig(f"{self.key} must be a list of integers, got {value[0]!r}.")
        if len(value) < len(self.slots):
            raise exc.InvalidConfig(
                f"{self.key} has {self.counted(len(value))}; "
                "is a dimension of an hl.tile, or an hl.register_block_size, forgotten?"
            )
        super().check_length(value)

    def entry(self, at: int, slot: Slot, value: Any) -> int:
        if (why := _why_no_size(slot.fragment, value)) is not None:
            raise self.refusal(at, slot, why)
        return nearest(slot.fragment, value, slot.initial)

    def half(self, block: int, size: int) -> int:
        """Return about half of the ``size`` of a block, as a legal value of its slot."""
        slot = next(slot for slot in self.slots if slot.at == block)
        return int(nearest(slot.fragment, size // 2, slot.initial))


def _why_no_size(fragment: Fragment, value: object) -> str | None:
    """Return the reason why ``value`` cannot be brought into range: it is no power of two and no legal multiple."""
    why = _ANY_POWER_OF_TWO.why_not(value)
    if (
        why is None
        or not isinstance(fragment, MultipleFragment)
        or isinstance(value, bool)
        or not isinstance(value, int)
    ):
        return why
    if value > 0 and value % fragment.step == 0:
        return None
    return f"must be a power of two or a multiple of {fragment.step}, got {value}"


@dataclass(frozen=True, kw_only=True)
class LoopOrders(PerSlot):
    """Permutations of the dimensions of a loop. In a grid loop the first one varies fastest, in an inner loop the last.

    A permutation of another number of dimensions, for a grid loop as written (``spare``), takes the default.
    """

    key: str = "loop_orders"
    per: str = "loop over several dimensions"

    def entry(self, at: int, slot: Slot, value: Any) -> list[int]:
        if not isinstance(value, (list, tuple)) or any(type(dim) is not int for dim in value):
            raise self.refusal(at, slot, f"must be a permutation of {slot.initial}, got {value!r}")
        if self.spare and len(value) != len(slot.initial) and sorted(value) == list(range(len(value))):
            return list(slot.initial)
        return super().entry(at, slot, list(value))


@dataclass(frozen=True, kw_only=True)
class FlattenLoops(PerSlot):
    """Flags that flatten the dimensions of a loop into one, of an inner loop if it is one run in memory.

    For a slot with a remedy that is impossible, and True means False.
    """

    key: str = "flatten_loops"
    per: str = "hl.tile over several dimensions from 0 whose tiles have no begin or end that is read, unless they have one element"

    def entry(self, at: int, slot: Slot, value: Any) -> Any:
        return False if slot.remedy and value is True else super().entry(at, slot, value)


@dataclass(frozen=True, kw_only=True)
class Chunk(Slot):
    """Range of a chunk.

    ``low`` is the smallest one, ``extent`` the elements of the row, None if they differ from call to call.
    """

    low: int
    extent: int | None


#: Smallest useful chunk. Below it, lanes of a warp are idle even for the smallest dtype, if only rows are contiguous.
SMALLEST_CHUNK = 8


@dataclass(frozen=True, kw_only=True)
class ReductionLoops(PerSlot):
    """Chunk sizes in elements of loops over whole dimensions, None to hold the row at once.

    A chunk that covers the row is None; 0 and 1 mean the smallest.
    """

    slots: tuple[Chunk, ...]
    key: str = "reduction_loops"
    weight: float = 3.0
    per: str = "whole dimension that can be a loop over chunks"

    def entry(self, at: int, slot: Slot, value: Any) -> int | None:
        if value is None:
            return None
        small = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2
        if not small and (why := _ANY_POWER_OF_TWO.why_not(value)) is not None:
            raise self.refusal(at, slot, f"{why} (or None to hold the row at once)")
        return self.chunk(slot, max(1, value) if small else value)

    def kept(self, value: Sequence[Any]) -> Sequence[Any]:
        """Return the smallest chunks: a config that fits with more dimensions fits with these."""
        spare = len(value) - len(self.slots)
        if spare <= 0:
            return value
        largest = sorted(range(len(value)), key=lambda at: -_elements(value[at]))[:spare]
        return [entry for at, entry in enumerate(value) if at not in largest]

    def moved(self, at: int, slot: Slot, value: Any) -> int | None:
        return self.entry(at, slot, value)

    def chunk(self, slot: Slot, value: int) -> int | None:
        assert isinstance(slot, Chunk)
        value = max(value, slot.low)
        return None if slot.extent is not None and value >= slot.extent else value

    def granted(self, slot: Slot, wishes: Mapping[int, Any]) -> int | None:
        wish = wishes.get(slot.ids[0], slot.initial)
        return None if wish is None else self.chunk(slot, previous_power_of_2(max(1, wish)))

    def random(self, rng: Random) -> list[Any]:
        return [self.entry(i, slot, v) for i, (slot, v) in enumerate(zip(self.slots, super().random(rng), strict=True))]

    def place(self, slot: Slot, entry: Any) -> list[float]:
        assert isinstance(slot, Chunk)
        largest = max((chunk for chunk in values_of(slot.fragment) if chunk is not None), default=slot.low)
        return [math.log2(2 * largest if entry is None else entry)]

    def neighbours(self, value: list[Any]) -> list[list[Any]]:
        """List configs with half and double the chunk; None follows the largest."""
        found = []
        for i, slot in enumerate(self.slots):
            values = values_of(slot.fragment)
            if value[i] in values:
                at = values.index(value[i])
                found += [[*value[:i], values[j], *value[i + 1 :]] for j in (at - 1, at + 1) if 0 <= j < len(values)]
        return found


def _elements(chunk: Any) -> float:
    return chunk if isinstance(chunk, int) else math.inf


@dataclass(frozen=True, kw_only=True)
class PerAccess(PerSlot):
    """One entry per memory access, each out of ``choice``.

    With ``copied`` lists may be too long: elsewhere the copies of an access count that rolling a reduction makes, while
    here they share the entry of the access in the kernel's source.
    """

    choice: EnumFragment
    copied: bool = False
    ignored: str = ""
    """Why entries other than the first of ``choice`` have no effect, where they have none."""
    remedies: Mapping[str, str] | None = None

    def check_length(self, value: Sequence[Any]) -> None:
        for at in range(len(self.slots), len(value)):
            self.check(f"{self.key}[{at}]", value[at])
        if not self.copied:
            super().check_length(value)

    def entry(self, at: int, slot: Slot, value: Any) -> Any:
        self.check(f"{self.key}[{at}]{f' ({slot.name})' if slot.name else ''}", value)
        return value

    def check(self, where: str, value: Any) -> None:
        if (why := self.choice.why_not(value)) is not None:
            remedy = (self.remedies or {}).get(value) if isinstance(value, str) else None
            raise exc.InvalidConfig(f"{where} {why}{f': {remedy}' if remedy else ''}.")


@dataclass(frozen=True, kw_only=True)
class Indexing(PerAccess):
    """Addressing mode of each load and store; a single name applies to all of them."""

    def read(self, value: Any) -> list[Any]:
        if not isinstance(value, str):
            return super().read(value)
        self.check(self.key, value)
        return [value] * len(self.slots)
