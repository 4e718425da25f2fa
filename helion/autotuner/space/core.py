"""``ConfigSpace``: every way to compile one kernel, as lists whose lengths and ranges follow from the kernel."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from random import Random
from typing import Any

from ... import exc
from ..._compiler.decisions import Decisions, Place
from ..._compiler.ir.grammar import Block
from ..._compiler.sizes import dependent_size, fixed_size, padded_extent
from ..._shapes import Expr, is_power_of_2
from ..._support.records import dataclass, field, replace
from ...config import EVERY_REDUCTION, RENAMED, Config, as_config
from ...hardware import Target
from ..proposal import Proposal
from .adjusted import Adjustment, Dropped, adjustments
from .fields import BlockSizes, Field, PerAccess, PerSlot, Tunable
from .own import Missing, Rule
from .program_shape import ProgramShape, Volume

Values = dict[str, Any]
#: Keys that become ``Decisions.sizes`` and ``chunked``.
_SIZES = ("block_sizes", "reduction_loops")
#: Keys whose entries may be reduced below the requested value.
_GRANTED = (*_SIZES, "flatten_loops")


@dataclass(frozen=True, kw_only=True, eq=False)
class ConfigSpace:
    """The config space of a kernel. Immutable; ``build_space`` makes it.

    ``tunable`` blocks have an entry in ``block_sizes``, ``rollable`` ones in ``reduction_loops``, in that order.
    ``lowest`` is the minimum of elements for each of them. ``fields`` are the keys of a full config, in order.
    ``absent`` are keys that other kernels have, with the reason why this one lacks them. ``missing`` are those of them
    that other arguments of the kernel may have. Keys that begin with ``verbatim`` are passed on unchanged. ``narrow``:
    a dimension has no or one element, so that other sizes give the kernel further operations, loops and accesses.
    ``rules`` legalize combinations; if ``planned``, they refuse tiles that no other key can fix. ``check`` refuses
    configs not worth compiling. ``default`` is the config that runs if nothing was tuned: the owner of the space sets
    it with ``dataclasses.replace``; None means the conservative one.
    """

    kernel: str
    target: Target
    shape: ProgramShape
    tunable: tuple[int, ...]
    rollable: tuple[int, ...]
    lowest: Mapping[int, int]
    fields: tuple[Field, ...]
    absent: Mapping[str, str]
    verbatim: str
    rules: tuple[Rule, ...]
    check: Callable[[Decisions], None] | None = None
    planned: bool = False
    default: Config | None = None
    #: Prefixes of the keys of other backends, by name.
    elsewhere: tuple[tuple[str, tuple[str, ...]], ...] = ()
    missing: Mapping[str, Missing] = field(default_factory=dict)
    narrow: bool = False

    # --- configs ----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys of a full config, in order."""
        return tuple(field.key for field in self.fields)

    @functools.cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.keys)

    def field(self, key: str) -> Field:
        """Return the field of one key. Raises KeyError for a key that a full config does not have."""
        found = self._by_key.get(key)
        if found is None:
            raise KeyError(f"{self.kernel} has no config key {key!r}; it has {', '.join(self.keys)}")
        return found

    def normalize(self, config: Config | Mapping[str, Any]) -> Config:
        """Return the full config of ``config``: every key, in order, each value in its normal form.

        Keys and list entries that are left out take their defaults. Tile sizes out of range are brought into it. Values
        without effect given the rest of the config are reset, so that configs with the same code are equal. Normalizing
        twice changes nothing. A full config of one call is valid for every other: keys and entries that the kernel has
        only with other arguments are dropped.

        Raises ``exc.InvalidConfig`` for unknown, malformed or impossible values. Raises ``exc.NoFeasibleConfig`` if no
        tile sizes keep the kernel's values below the target's largest tile.
        """
        return self._normalize(config, repair=False)

    def worth_compiling(self, config: Config | Mapping[str, Any]) -> Config:
        """Normalize a config, and refuse tiles that take minutes to compile. Raises ``exc.InvalidConfig``."""
        full = self.normalize(config)
        if self.check is not None:
            self.check(self.decode(full))
        return full

    def adjusted(self, config: Config | Mapping[str, Any]) -> tuple[Adjustment | Dropped, ...]:
        """List the changes that ``normalize`` makes to ``config``, with the reasons. Raises the same errors."""
        given = self._spelt_out(as_config(config))
        values = self._read(given)
        snapshots = [("the nearest that the dimension takes", dict(values))]
        # other keys are compared with their requested value, in its normal form
        asked = {key: self._kept(key, given) if key in _GRANTED else values[key] for key in given if key in values}
        self._legalize_sizes(values, self._chosen(given))
        snapshots.append(("what is around it leaves room for no more", dict(values)))
        settled = replace(self.decode(values), given=frozenset(given))
        for rule in self.rules:
            settled = rule.legalize(settled, False)
            snapshots.append((rule.why, self._recode(values, settled)))
        return (*self.dropped(given), *adjustments(self.fields, asked, snapshots))

    def _kept(self, key: str, given: Config) -> Any:
        known = self.field(key)
        return known.kept(given[key]) if isinstance(known, PerSlot) else given[key]

    def dropped(self, given: Mapping[str, Any]) -> Iterator[Dropped]:
        """Yield keys and entries of a readable ``given`` that belong to other arguments."""
        for key, missing in self.missing.items():
            if key in given and not missing.asks_for_nothing(given[key]):
                yield Dropped(what=key, asked=given[key], why=self.absent[key])
        for each in self._slotted:
            if (asked := given.get(each.key)) is None:
                continue
            asked = [asked] if isinstance(asked, str) and isinstance(each, PerAccess) and each.ignored else asked
            if isinstance(asked, (list, tuple)) and len(asked) > len(each.slots):
                spare = [entry for entry in asked[len(each.kept(asked)) :] if not _asks_for_nothing(entry)]
                if isinstance(each, PerAccess) and each.ignored:
                    spare = [entry for entry in spare if entry != each.choice.default()]
                    if spare:
                        yield Dropped(what=each.key, asked=asked, why=each.ignored)
                elif each.spare and any(entry not in ("", 0, 1) for entry in spare):
                    yield Dropped(
                        what=each.key, asked=asked, why=f"with these arguments it has {len(each.slots)} entries"
                    )

    def repair(self, config: Config | Mapping[str, Any]) -> Config:
        """Normalize a config, but shrink tiles that are too large together, largest first, and then whole dimensions.

        They are too large for the target's largest tile, for the backend's plan, or to compile in seconds.
        """
        found = self.approach(config)
        while not self._is_legal(found):
            sizes = self.sizes(found)
            larger = [[b for b in blocks if sizes[b] > self.lowest[b]] for blocks in (self.tunable, self.rollable)]
            if not any(larger):
                break
            largest = max(larger[0] or larger[1], key=lambda block: sizes[block])
            smaller = self.sized(found, {largest: self.half(largest, sizes[largest])})
            before, found = found, self.approach({**config, **smaller})
            if found == before:
                break
        return found

    def approach(self, config: Config | Mapping[str, Any]) -> Config:
        """Repair a config, except for tiles too large for the backend's plan or to compile: the caller shrinks them by
        predictions."""
        return self._normalize(config, repair=True)

    def _is_legal(self, repaired: Config) -> bool:
        """Return whether a config of ``approach`` has a plan, and is worth compiling."""
        try:
            if self.planned:
                self.normalize(repaired)
            if self.check is not None:
                self.check(self.decode(repaired))
        except exc.InvalidConfig:
            return False
        return True

    def default_config(self) -> Config:
        """Return the config that runs if nothing was tuned."""
        return self.default or self.conservative()

    def conservative(self) -> Config:
        """Return a config of small tiles that fit anywhere, made without a heuristic. Raises ``exc.NoFeasibleConfig``."""
        return self.normalize(Config())

    def random(self, rng: Random) -> Config:
        """Draw a legal config that is worth compiling."""
        return self.repair({field.key: field.random(rng) for field in self.fields})

    def encode(self, proposal: Proposal) -> Values:
        """Convert a proposal to config keys, without those it leaves open; numbers are brought into range.

        Raises KeyError when it names a block, a root or a load that has no such setting.
        """
        found = {field.key: wish for field in self.fields if (wish := field.encode(proposal)) is not None}
        return {**found, **{key: value for key, value in proposal.verbatim.items() if key not in self._renamed}}

    # --- decisions --------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _slotted(self) -> tuple[PerSlot, ...]:
        return tuple(field for field in self.fields if isinstance(field, PerSlot))

    @functools.cached_property
    def _lists(self) -> tuple[PerSlot, ...]:
        return tuple(field for field in self._slotted if field.key not in _SIZES)

    def decode(self, config: Mapping[str, Any]) -> Decisions:
        """Decode a full ``config`` to decisions about the kernel."""
        full = config.config if isinstance(config, Config) else config
        return self._decoded(full, self.sizes(full), frozenset())

    def _decoded(self, full: Mapping[str, Any], sizes: Mapping[int, int], given: frozenset[str]) -> Decisions:
        """Decode a full config with the ``sizes`` of all blocks, of which these keys were ``given``."""
        lists = {key: dict(zip(places, full[key], strict=True)) for key, places in self._places.items()}
        names = self._renamed
        return Decisions(
            sizes=sizes,
            chunked=self.rolled(full),
            entries=lists,
            values={
                names.get(key, key): value for key, value in full.items() if key not in lists and key not in _SIZES
            },
            given=given,
        )

    @functools.cached_property
    def _places(self) -> dict[str, tuple[Place, ...]]:
        """The places of the entries of each list."""
        return {field.key: field.places for field in self._lists}

    @functools.cached_property
    def _renamed(self) -> dict[str, str]:
        """Tunables with the name of a key that other kernels have, by what the program calls them."""
        return {f.key: f.name for f in self.fields if isinstance(f, Tunable) and f.key != f.name}

    # --- sizes ------------------------------------------------------------------------------------------------------

    def sizes(self, config: Mapping[str, Any]) -> dict[int, int]:
        """Return the elements of every block under a full ``config``.

        The size of a tile is its slot's, or fixed by the kernel; 1 for ``hl.grid``. A whole dimension has its chunk,
        else its extent rounded up to a power of two. If extents differ from call to call, the one seen when binding
        counts.
        """
        named = {**config, **{name: config[key] for key, name in self._renamed.items()}} if self._renamed else config
        constant, computed, following = self._sized
        sizes = {**constant, **{block.id: _fixed_size(block, named) for block in computed}}
        sizes.update(zip(self.tunable, config["block_sizes"], strict=True))
        for block, chunk in zip(self.rollable, config["reduction_loops"], strict=True):
            if chunk is not None:
                sizes[block] = chunk
        for known in following:
            sizes[known.id] = dependent_size(known, sizes)
        return {block.id: sizes[block.id] for block in self.shape.blocks}

    @functools.cached_property
    def _sized(self) -> tuple[Mapping[int, int], tuple[Block, ...], tuple[Block, ...]]:
        """The sizes that no config changes, the blocks whose size tunables give, and those that follow another block."""
        own = [block for block in self.shape.blocks if block.base is None]
        computed = [block for block in own if block.kind != "full" and isinstance(block.size, Expr)]
        constant = {block.id: _fixed_size(block, {}) for block in own if block not in computed}
        # a block follows the one that gives its size
        following = tuple(block for block in self.shape.blocks if block.base is not None)
        return constant, tuple(computed), following

    def rolled(self, config: Mapping[str, Any]) -> frozenset[int]:
        """Return the whole dimensions that are loops over chunks in a full ``config``."""
        pairs = zip(self.rollable, config["reduction_loops"], strict=True)
        return frozenset(block for block, chunk in pairs if chunk is not None)

    def sized(self, config: Mapping[str, Any], sizes: Mapping[int, int]) -> Values:
        """Return the size keys of a full ``config``, with other ``sizes`` for some tiles and whole dimensions."""
        chunks = zip(self.rollable, config["reduction_loops"], strict=True)
        before = self.sizes(config)
        return {
            "block_sizes": [sizes.get(block, before[block]) for block in self.tunable],
            "reduction_loops": [sizes.get(block, chunk) for block, chunk in chunks],
        }

    def resized(self, config: Mapping[str, Any], sizes: Mapping[int, int]) -> Config:
        """Return the full ``config`` with other ``sizes`` for some tiles and whole dimensions."""
        return self.repair({**config, **self.sized(config, sizes)})

    def half(self, block: int, size: int) -> int:
        """Return about half of the ``size`` of a tile or a chunk, as a legal config value."""
        if block not in self.tunable:
            return size // 2
        sizes = self.field("block_sizes")
        assert isinstance(sizes, BlockSizes)
        return sizes.half(block, size)

    def smallest(self) -> Config:
        """Return the conservative config with the smallest legal tiles and chunks."""
        return self.resized(self.conservative(), self.lowest)

    def fewest(self, config: Mapping[str, Any]) -> Decisions:
        """Decode a config with the smallest of each size that differs from call to call."""
        decisions, blocks = self.decode(config), self.shape.blocks
        sizes = {b: blocks[b].min_size if self._varies(b) else n for b, n in decisions.sizes.items()}
        return replace(decisions, sizes=sizes)

    def _varies(self, block: int) -> bool:
        """Return whether a size that is not in the config differs from call to call."""
        known = self.shape.blocks[block]
        if known.base is not None:
            return False
        return block not in self.lowest and isinstance(known.extent if known.kind == "full" else known.size, Expr)

    def nothing_fits(self, needs: str) -> exc.Base:
        """Return the error of a kernel that exceeds the target's resources; ``needs`` names tiles, resource and amount.

        It names the widest dimension that no config can shrink, and the line of the largest value along it.
        """
        sizes = self.sizes(self.smallest())
        held = [
            block
            for block in self.shape.blocks
            if block.kind != "grid" and block.id not in self.lowest and not block.merged and block.part is None
        ]
        wide = max(held, key=lambda block: sizes[block.id], default=None)
        if wide is None or sizes[wide.id] == 1:
            reason, location = f"{needs}; give a config with smaller block_sizes, or split the kernel", None
        else:
            along = [volume for volume in self.shape.volumes if wide.id in volume.blocks]
            volume = max(along, key=lambda v: v.numel(sizes), default=None)
            location = volume.location if volume is not None else None
            if wide.kind == "full":
                extent = ""
                if not self._varies(wide.id):
                    padding = f" padded to {sizes[wide.id]}" if sizes[wide.id] != wide.extent else ""
                    extent = f", {wide.extent} elements{padding},"
                what = f"the kernel holds the whole of {wide.name}{extent} at once"
                remedy = "loop over it with hl.tile, as examples/matmul_*_tiled.py do, or split it"
            else:
                what = f"the kernel fixes the tiles of {wide.name} at {sizes[wide.id]} elements"
                remedy = "make its block_size smaller"
            reason = f"{needs}; {what}: {remedy}"
        return exc.NoFeasibleConfig(kernel=self.kernel, target=self.target, reason=reason, location=location)

    # --- normalizing ------------------------------------------------------------------------------------------------

    def _normalize(self, config: Config | Mapping[str, Any], *, repair: bool) -> Config:
        given = self._spelt_out(as_config(config))
        values = self._read(given)
        sizes = self._legalize_sizes(values, set() if repair else self._chosen(given))
        before = settled = self._decoded(values, sizes, frozenset(given.config))
        for rule in self.rules:
            settled = rule.legalize(settled, repair)
        return Config.of_full(values if settled is before else self._recode(values, settled))

    def _read(self, given: Config) -> Values:
        """Read every key's own value in range, independent of the others. Raises for unknown keys."""
        verbatim = self._check_keys(given)
        asked = given.config
        values = self._defaults.copy()
        for known in self.fields:
            if known.key in asked:
                values[known.key] = known.read(asked[known.key])
            elif isinstance(known, PerSlot):
                values[known.key] = known.default()  # a list of its own
        values.update(verbatim)
        return values

    @functools.cached_property
    def _defaults(self) -> Values:
        """The default of every key, in order."""
        return {known.key: known.default() for known in self.fields}

    @functools.cached_property
    def _by_key(self) -> dict[str, Field]:
        return {known.key: known for known in self.fields}

    def _chosen(self, given: Config) -> set[int]:
        """Return the blocks that ``given`` sizes."""
        chosen = set(self.tunable if "block_sizes" in given else ())
        return chosen | set(self.rollable[: len(given["reduction_loops"])] if "reduction_loops" in given else ())

    def _recode(self, values: Values, settled: Decisions) -> Values:
        """Return ``values`` with the decisions of the rules, which change no chunk."""
        lists = {f.key: f.recode(settled.entries[f.key]) for f in self._lists if f.key in settled.entries}
        lists["block_sizes"] = [settled.sizes[block] for block in self.tunable]
        return {**values, **{key: value for key, value in settled.values.items() if key in values}, **lists}

    def _spelt_out(self, given: Config) -> Config:
        """Give keys their present names, and expand one chunk for every whole dimension to a list."""
        given = self._present_names(given)
        if EVERY_REDUCTION not in given:
            return given
        chunks = [given[EVERY_REDUCTION]] * len(self.rollable)
        return Config(**{k: v for k, v in given.items() if k != EVERY_REDUCTION}, reduction_loops=chunks)

    def _present_names(self, given: Config) -> Config:
        """Replace former names of keys. Raises ``exc.InvalidConfig`` if a key is given under both its names."""
        former = {key: RENAMED[key] for key in given.config if key in RENAMED and key not in self._known}
        if not former:
            return given
        for old, new in former.items():
            if new in given:
                raise exc.InvalidConfig(
                    f"Both {old!r} and {new!r} are given; {old!r} is the former name: leave it out."
                )
        return Config(**{former.get(key, key): value for key, value in given.items()})

    def _check_keys(self, given: Config) -> Values:
        """Return the keys that are passed on unchanged. Raises for unknown ones."""
        others = [key for key in given.config if key not in self._known]
        if not others:
            return {}
        verbatim = {key: given[key] for key in sorted(others) if key.startswith(self.verbatim)}
        others = [key for key in others if key not in verbatim]
        if unknown := [key for key in others if key not in self.absent]:
            for key in unknown:
                self._refuse_elsewhere(key)
            close = difflib.get_close_matches(unknown[0], self.keys, 1)
            known = f"did you mean {close[0]!r}? Known" if close else "known"
            known += f" are {', '.join((*self.keys, f'{self.verbatim}*'))}"
            raise exc.InvalidConfig(f"Invalid config keys {unknown} for kernel {self.kernel!r}; {known}.")
        for key in others:
            self._check_absent(key, given[key])
        return verbatim

    def _check_absent(self, key: str, value: Any) -> None:
        """Raise for a value that no other arguments of the kernel take either."""
        missing = self.missing.get(key)
        if _asks_for_nothing(value) or (missing is not None and missing.asks_for_nothing(value)):
            return
        if missing is None or missing.fragment is None or (missing.structural and not self.narrow):
            raise exc.InvalidConfig(f"{key} cannot be {value!r}: {self.absent[key]}; leave it out.")
        if (why := missing.why_not(value)) is not None:
            raise exc.InvalidConfig(f"{key} {why}.")

    def _refuse_elsewhere(self, key: str) -> None:
        """Raise for a key of another backend."""
        owner = next((name for name, prefixes in self.elsewhere if key.startswith(prefixes)), None)
        if owner is not None:
            raise exc.InvalidConfig(
                f"The config key {key!r} belongs to the {owner} backend, and kernel {self.kernel!r} is compiled by another; "
                f"leave it out, or choose that one with backend={owner!r}."
            )

    # --- sizes that go together -------------------------------------------------------------------------------------

    def _legalize_sizes(self, values: Values, chosen: Collection[int]) -> Mapping[int, int]:
        """Keep tiles inside the tile they iterate over, and every value below the largest tile of the target.

        Return the sizes of all blocks.

        Blocks in ``chosen`` were sized by the user: it is an error if they are too large. The exception is a value with
        a whole dimension, which may be shorter with other arguments.
        """
        before = self.sizes(values)
        self._check_computed(before, values)
        sizes = dict(before)
        self._keep_inside(sizes)
        for blocks in (self.tunable, self.rollable):
            too_large = self._shrink(sizes, [block for block in blocks if block not in chosen])
        if too_large is not None and self._has_whole_dimension(too_large):  # with shorter ones the sizes would do
            too_large = self._shrink(sizes, (*self.tunable, *self.rollable))
        self._keep_inside(sizes)
        if too_large is not None:
            raise self._refusal(too_large, sizes)
        if sizes == before:
            return before
        values["block_sizes"] = [sizes[block] for block in self.tunable]
        chunks = zip(self.rollable, values["reduction_loops"], strict=True)
        values["reduction_loops"] = [sizes[b] if sizes[b] < before[b] else chunk for b, chunk in chunks]
        return self.sizes(values)

    def _check_computed(self, sizes: Mapping[int, int], values: Values) -> None:
        """Raise ``exc.InvalidConfig`` if tunables give a tile a size that is no power of two."""
        for block in self.shape.blocks:
            if block.kind == "tile" and isinstance(block.size, Expr) and block.base is None:
                names = dict.fromkeys(leaf.args[0] for leaf in block.size.leaves())
                named = {name: key for key, name in self._renamed.items()}
                given = ", ".join(f"{named.get(n, n)}={values[named.get(n, n)]!r}" for n in names)
                if not is_power_of_2(sizes[block.id]):
                    raise exc.InvalidConfig(
                        f"The tiles of {block.name!r} in kernel {self.kernel!r} have {sizes[block.id]} elements with "
                        f"{given}; tiles need a power of two: give block_size=helion.next_power_of_2(...), which rounds up."
                    )

    def _has_whole_dimension(self, volume: Volume) -> bool:
        return any(self.shape.blocks[block].kind == "full" for block in volume.blocks)

    def _keep_inside(self, sizes: dict[int, int]) -> None:
        for block, outer in self.shape.inner.items():
            if block in self.lowest:
                sizes[block] = max(min(sizes[block], sizes[outer]), self.lowest[block])

    def _shrink(self, sizes: dict[int, int], blocks: Collection[int]) -> Volume | None:
        """Halve ``blocks`` in place, the largest first; return a value that is still too large, if any."""
        left = None
        for volume in self.shape.volumes:
            while volume.numel(sizes) > self.target.max_tensor_numel:
                movable = [b for b in volume.blocks if b in blocks and sizes[b] > self.lowest[b]]
                if not movable:
                    left = volume
                    break
                sizes[max(movable, key=lambda b: sizes[b])] //= 2
        return left

    def _refusal(self, volume: Volume, sizes: Mapping[int, int]) -> exc.Base:
        def shape(of: Mapping[int, int]) -> str:
            return " x ".join(f"{self.shape.blocks[b].name}={of[b]}" for b in volume.blocks)

        limit = self.target.max_tensor_numel
        text = f"{volume.name} has {volume.numel(sizes)} elements ({shape(sizes)}), more than the {limit} of one tile"
        smallest = {**sizes, **self.lowest}
        if volume.numel(smallest) <= limit:
            text = f"With these sizes {text}; make block_sizes or reduction_loops smaller."
            return exc.InvalidConfig(text, location=volume.location)
        whole = [self.shape.blocks[b] for b in volume.blocks if b not in self.lowest]
        remedy = f"walk over {whole[0].name} in an hl.tile loop" if whole else "tile another dimension of it"
        reason = (
            f"even in the smallest tiles {volume.name} has {volume.numel(smallest)} elements ({shape(smallest)}), more "
            f"than the {limit} of one tile; {remedy}"
        )
        return exc.NoFeasibleConfig(kernel=self.kernel, target=self.target, reason=reason, location=volume.location)


def _asks_for_nothing(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_asks_for_nothing, value))
    return value is None or value is False


def _fixed_size(block: Block, config: Mapping[str, Any]) -> int:
    if block.kind == "full":
        return padded_extent(block)
    return 1 if block.size is None else fixed_size(block, config)
