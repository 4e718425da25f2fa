"""Simultaneously live tiles, for symbolic axis sizes.

The analysis counts six sets of the same program:

- *live* tiles: at every op its operands and results together, as the IR is written. The peak is the step with the most
  tiles of the highest rank, then of the next. It is an actual snapshot, never a union over steps.
- *resident* tiles: the values that registers must hold between ops. Elementwise ops work in place, so an operand that
  dies gives its registers to the result. Masks and views are not values of their own. Indices, constants and operands
  that pass from memory to a dot through shared memory are free.
- *held* tiles: the minimum. Between two reductions, dots, loops and stores, elementwise ops can process a few elements
  at a time, from loads to results. Only values that cross one of these must exist whole. A stored value is also
  computed piecewise if all its inputs stay live.
- *kept* tiles: held ones, where values that are only converted from loads of a shorter dtype stay in that one. Without
  dots the assembler converts them again for each use.
- *needed* tiles: resident ones without those that a reduction takes as they are computed from fewer values. The
  assembler uses free registers for them, but spills none. In kernels with dots, where it has few, the same
  holds for tiles computed from loads and from values of outside. These stay in their own dtype.
- *packed* tiles: needed ones in the dtypes of kept ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ..._support.records import dataclass, field
from ..ir.grammar import Op, PointwiseAttrs, Region, Value
from ..ir.ops import OPS
from .records import LiveTile, LiveTiles
from .walk import MAX_HOPS, Walk

#: Tiles of one rank that a profile can count before they overflow into the next rank.
_PROFILE_BITS = 12


@dataclass(slots=True)
class Liveness:
    """Result of the analysis. ``peaks[region]`` is the rank profile and the live tiles of a region alone.
    ``resident[root]``, ``needed[root]``, ``held[root]``, ``packed[root]`` and ``kept[root]`` are snapshots."""

    peaks: dict[int, tuple[int, LiveTiles]] = field(default_factory=dict)
    resident: list[set[LiveTiles]] = field(default_factory=list)
    needed: list[set[LiveTiles]] = field(default_factory=list)
    held: list[set[LiveTiles]] = field(default_factory=list)
    packed: list[set[LiveTiles]] = field(default_factory=list)
    kept: list[set[LiveTiles]] = field(default_factory=list)

    def peak_of(self, regions: list[int]) -> LiveTiles:
        """Return the highest peak of several regions; the first on a tie."""
        return max((self.peaks[r] for r in regions), key=lambda peak: peak[0], default=(0, ()))[1]


def sweep(walk: Walk, staged: frozenset[int]) -> Liveness:
    """Compute the liveness of all regions. ``staged`` are the numbers of loaded values that reach a dot through shared
    memory."""
    liveness = Liveness()
    for fact in walk.regions:
        if fact.kind == "root":
            for sets in (liveness.resident, liveness.needed, liveness.held, liveness.packed, liveness.kept):
                sets.append(set())
            _Sweep(walk, staged, liveness).region(fact.region, {}, {})
    return liveness


def maximal(snapshots: set[LiveTiles]) -> tuple[LiveTiles, ...]:
    """Return the snapshots that no other snapshot contains, largest first."""
    ordered = sorted(snapshots, key=lambda tiles: (-len(tiles), tiles))
    kept: list[tuple[LiveTiles, Counter[LiveTile]]] = []
    for tiles in ordered:
        if not tiles:
            continue
        count = Counter(tiles)
        if not any(all(other[tile] >= n for tile, n in count.items()) for _, other in kept):
            kept.append((tiles, count))
    return tuple(tiles for tiles, _ in kept)


@dataclass(slots=True)
class _Scope:
    """State of the sweep of one region.

    ``last`` is the position of a value's last use in the IR, ``held`` that of the value whose registers hold it. Values
    from outside have their last use after the region's end.
    """

    last: dict[int, int]
    held: dict[int, int]
    live: dict[int, Value]
    resident: dict[int, LiveTile]
    profile: int = 0


class _Sweep:
    def __init__(self, walk: Walk, staged: frozenset[int], liveness: Liveness) -> None:
        self.walk = walk
        self.staged = staged
        self.liveness = liveness
        self.alias: dict[int, int] = {}
        self.free: set[int] = set()
        #: By value that is reduced as it is computed, the tiles that it is computed from.
        self.passing: dict[int, dict[int, LiveTile]] = {}
        #: By value that is only converted from a load, the tile in the load's shorter dtype.
        self.converted: dict[int, LiveTile] = {}

    def region(self, number: int, live: dict[int, Value], resident: dict[int, LiveTile]) -> None:
        """Sweep a region. ``live`` and ``resident`` are values from outside that stay live throughout."""
        region = self.walk.bodies[number]
        self.register(region.ops)
        self.passing.update(self.reduced_at_once(region))
        last, held = self.last_uses(region)
        beyond = len(region.ops) + 1
        last.update(dict.fromkeys(live, beyond))
        held.update(dict.fromkeys(resident, beyond))
        scope = _Scope(last, held, dict(live), dict(resident))
        scope.profile = sum(self.weight(value) for value in live.values())
        for param in region.params:
            if self.weight(param) and last.get(param.number, -1) >= 0:
                scope.live[param.number] = param
                scope.profile += self.weight(param)
            self.hold(param, -1, scope)
        self.liveness.peaks[number] = self.steps(region, scope)

    def weight(self, value: Value) -> int:
        """Return the contribution of a value to a profile: one in the digit of its rank."""
        rank = self.walk.shape(value.dims)[2]
        return 1 << _PROFILE_BITS * rank if rank else 0

    def register(self, ops: tuple[Op, ...]) -> None:
        """Map masks and views to the value whose registers they share, and record values that cost no registers."""
        alias, free = self.alias, self.free
        for op in ops:
            spec = OPS[op.kind]
            if spec.is_view:
                source = op.operands[0]
                if isinstance(source, Value):
                    alias[op.results[0].number] = alias.get(source.number, source.number)
                    continue
            if spec.per_lane:
                # Each use recomputes index arithmetic.
                cheap = all(alias.get(v.number, v.number) in free or not v.dims for v in op.values())
            elif op.kind == "full":
                cheap = not any(True for _ in op.values())
            else:
                cheap = spec.free or (op.kind == "load" and op.results[0].number in self.staged)
            if cheap:
                free.update(r.number for r in op.results)
            elif not self.walk.dots and (loaded := self.loaded(op)) is not None:
                self.converted[op.results[0].number] = loaded

    def loaded(self, op: Op) -> LiveTile | None:
        """Return the tile that an op converts to a longer dtype, if it is loaded."""
        if not isinstance(op.attrs, PointwiseAttrs) or op.attrs.name != "cast":
            return None
        (source,) = op.values()
        maker = self.walk.makers.ops.get(self.alias.get(source.number, source.number))
        if maker is None or maker.kind != "load" or source.dtype.itemsize >= op.results[0].dtype.itemsize:
            return None
        axes, _ = self.walk.tile(op.results[0])
        return axes, self.walk.tile(source)[1]

    def reduced_at_once(self, region: Region) -> dict[int, dict[int, LiveTile]]:
        """Return the values that elementwise ops compute from values of lower rank, each for one other such op or one
        reduction. In kernels with dots these may be loaded values too, and those of outside. With each value are the
        tiles that it is computed from.

        A thread reduces each of their elements as soon as it is computed.
        """
        made: dict[int, dict[int, LiveTile]] = {}
        own = {result.number for op in region.ops if op.kind != "load" for result in op.results}
        users: dict[int, list[Op]] = {}
        for op in region.ops:
            for value in op.values():
                users.setdefault(value.number, []).append(op)
            sources = self.sources_of(op, made, own) if OPS[op.kind].keeps_lanes else None
            if sources is not None:
                made.update((result.number, sources) for result in op.results)
        kept = {value.number for value in region.results if isinstance(value, Value)}
        kept.update(*(self.walk.captured[op.number] for op in region.ops if op.number in self.walk.inner))
        found: dict[int, dict[int, LiveTile]] = {}
        for number in sorted(made.keys() - kept, reverse=True):
            user, *others = users.get(number, [None])
            if user is None or others:
                continue
            if user.kind == "reduce" or any(result.number in found for result in user.results):
                found[number] = made[number]
        return found

    def sources_of(self, op: Op, made: Mapping[int, dict[int, LiveTile]], own: set[int]) -> dict[int, LiveTile] | None:
        """Return the tiles that the result of an op is computed from; None if an operand is none of these: of fewer
        dimensions, without registers, among ``made``, and not the region's ``own``.
        """
        rank = self.walk.shape(op.results[0].dims)[2]
        found: dict[int, LiveTile] = {}
        for value in op.values() if rank else ():
            key = self.alias.get(value.number, value.number)
            if key in self.free or (not OPS[op.kind].is_view and self.walk.shape(value.dims)[2] < rank):
                continue
            if value.number in made:
                found |= made[value.number]
            elif self.walk.dots and value.number not in own:
                found[key] = self.walk.tile(value)
            else:
                return None
        return found if rank else None

    def last_uses(self, region: Region) -> tuple[dict[int, int], dict[int, int]]:
        last: dict[int, int] = {}
        for at, op in enumerate(region.ops):
            for operand in op.operands:
                if isinstance(operand, Value):
                    last[operand.number] = at
            if op.number in self.walk.inner:
                last.update(dict.fromkeys(self.walk.captured[op.number], at))
        end = len(region.ops)
        for result in region.results:
            if isinstance(result, Value):
                last[result.number] = end
        held: dict[int, int] = {}
        for key, at in last.items():
            root = self.alias.get(key, key)
            held[root] = max(held.get(root, -1), at)
        return last, held

    def hold(self, value: Value, at: int, scope: _Scope) -> bool:
        """Record that ``value``, defined by op ``at``, takes registers from there on; return whether it does."""
        key = value.number
        if scope.held.get(key, -1) <= at or key in self.alias or key in self.free or not self.weight(value):
            return False
        scope.resident[key] = self.walk.tile(value)
        return True

    def steps(self, region: Region, scope: _Scope) -> tuple[int, LiveTiles]:
        """Sweep the ops of a region and return the peak of the region alone."""
        best, best_tiles = scope.profile, tuple(map(self.walk.tile, scope.live.values()))
        grown = True
        for at, op in enumerate(region.ops):
            if op.number in self.walk.inner:
                self.nested(op, at, scope)
                self.bury(op, at, scope)
            if op.kind != "store":
                for result in op.results:
                    if weight := self.weight(result):
                        scope.live[result.number] = result
                        scope.profile += weight
            if scope.profile > best:
                best, best_tiles = scope.profile, tuple(map(self.walk.tile, scope.live.values()))
            self.bury(op, at, scope)
            roots = {self.alias.get(v.number, v.number) for v in op.values()}
            dying = [key for key in roots if key in scope.resident and scope.held[key] <= at]
            if dying and grown:
                self.record(scope)
                grown = False
            if op.kind in ("store", "atomic"):
                repeated = [key for key in dying if self.is_repeated(key, at, scope)]
                self.keep({key: tile for key, tile in scope.resident.items() if key not in repeated})
            for key in dying:
                del scope.resident[key]
            for result in op.results:
                grown |= self.hold(result, at, scope)
            if OPS[op.kind].needs_whole or op.number in self.walk.inner:
                self.keep(scope.resident)
        if grown:
            self.record(scope)
        self.keep(scope.resident)
        return best, best_tiles

    def keep(self, tiles: Mapping[int, LiveTile]) -> None:
        """Add the snapshots of held and of kept tiles."""
        self.liveness.held[-1].add(tuple(sorted(tiles.values())))
        self.liveness.kept[-1].add(tuple(sorted(self.converted.get(key, tile) for key, tile in tiles.items())))

    def record(self, scope: _Scope) -> None:
        """Add the snapshot of resident tiles, and those of the needed and the packed ones."""
        self.liveness.resident[-1].add(tuple(sorted(scope.resident.values())))
        needed = {key: tile for key, tile in scope.resident.items() if key not in self.passing}
        for key, own in scope.resident.items():
            sources = {source: tile for source, tile in self.passing.get(key, {}).items() if source not in needed}
            narrower = sum(itemsize for _, itemsize in sources.values()) < own[1]
            needed |= sources if narrower else {key: own}
        self.liveness.needed[-1].add(tuple(sorted(needed.values())))
        self.liveness.packed[-1].add(tuple(sorted(self.converted.get(key, tile) for key, tile in needed.items())))

    def is_repeated(self, key: int, at: int, scope: _Scope, hops: int = MAX_HOPS) -> bool:
        """Return whether elementwise ops can recompute a value a few elements at a time.

        Its inputs must stay live after op ``at`` anyway, or have lower rank.
        """
        op = self.walk.makers.ops.get(key)
        if op is None or not OPS[op.kind].per_lane or not hops:
            return False
        rank = self.walk.shape(op.results[0].dims)[2]
        sources = {self.alias.get(v.number, v.number) for v in op.values() if self.walk.shape(v.dims)[2] >= rank}
        return all(
            (source in scope.resident and scope.held[source] > at) or self.is_repeated(source, at, scope, hops - 1)
            for source in sources - self.free
        )

    def bury(self, op: Op, at: int, scope: _Scope) -> None:
        """Drop from the live values those that have their last use in ``op``, and results without uses."""
        for value in (*op.values(), *op.results):
            if scope.last.get(value.number, -1) <= at and scope.live.pop(value.number, None) is not None:
                scope.profile -= self.weight(value)

    def nested(self, op: Op, at: int, scope: _Scope) -> None:
        """Sweep the regions of ``op`` with the values that are live across it. A loop's initial values have become its
        parameters."""
        captured = self.walk.captured[op.number]
        roots = {self.alias.get(key, key) for key in captured}
        live = {key: value for key, value in scope.live.items() if key in captured or scope.last[key] > at}
        resident = {key: tile for key, tile in scope.resident.items() if key in roots or scope.held[key] > at}
        for inner in self.walk.inner[op.number]:
            self.region(inner, live, resident)
