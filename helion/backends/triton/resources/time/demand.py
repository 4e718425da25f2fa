"""The demand of one grid loop's programs on each unit of the GPU, as numbers that determine the time."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

from ....._compiler.facts.records import KernelFacts, MatmulFact
from .....autotuner.proposal import Predicted
from .....hardware import Target
from ...histograms import counts, issued_per_warp
from ...row_windows import kept_loads
from ...sorts import Network
from ..late import late_axes, late_regions
from ..registers import register_limit
from .launch import Launch
from .nest import Nest
from .products import product, warps_of_columns, warps_of_rows
from .record import Demand
from .roots import SECTOR_BYTES, Access, Reduction, Root, Scan, Sort, roots_of
from .scans import live_share, scan_work
from .spread import WARP as _WARP
from .spread import accumulator_threads, threads_along

#: Bytes of a line of the cache.
_LINE = 128
#: Cost of an atomic of a whole line by one warp, relative to its part of a tile's.
_WHOLE_LINE = 3.0
#: Fraction of the L2 cache that shared data may take and stay cached (measurement ``rows_of_half_a_cache``).
_L2_SHARE = 0.5
#: Bytes of a tensor read by all programs that an SM keeps in L1.
_NEAR_BYTES = 131072
#: Floats of a vector that the memory adds in the time of one (measurement ``sums_in_memory``).
_ADDED_TOGETHER = 3.0
#: Most neighbours in memory of one thread, whose atomics are instructions of their own.
_NEIGHBOURS = 4
#: Bytes of numbers that the memory adds in pairs alone.
_PAIRED_BYTES = 2
#: Adjacent lines that slices of the cache serve at the same time, and those that meet in one slice (measurement
#: ``meeting_atomics``).
_LINES_APART, _LINES_MEETING = 4, 8
#: Time of a line's atomic in a busy slice, and of a lane's, over that in a busy line (measurements
#: ``slices_of_lanes`` and ``slices_of_atomics``).
_SLICE_SHARE, _LANE_SHARE = 0.8, 0.4
#: Cost of an exchange within a warp, relative to a memory access.
_SHUFFLE_ACCESSES = 0.5
#: Instructions of a transcendental function, relative to those of other ops.
_SPECIAL_CODE = 4
#: Instructions of an exchange of a word in a sort.
_SORT_ISSUE = 3
#: Bytes of the narrowest asynchronous copy.
_COPY_BYTES = 4
#: Vectors of a thread in flight in a step of a loop that combines each as it arrives.
_IN_FLIGHT = 2
#: Accesses to shared memory of a lane of a lookup, and their bytes.
_LOOKUP_ACCESSES, _TABLE_BYTES = 5, 4
#: Written lines that stay in the cache where loads leave it first: of the cache, and of the loaded bytes. Loads that are
#: nearly all of a program.
_SPARED_CACHE, _SPARED_SHARE, _NEARLY_ALL = 0.3, 0.125, 0.95
#: Bytes of contiguous runs, or of reads by adjacent programs: each halving below this costs the memory as much.
_RUN_BYTES = 16384.0


_NOTHING: dict[str, float] = dict.fromkeys(Demand._fields, 0.0)


def demands(facts: KernelFacts, launch: Launch, predicted: Predicted, target: Target) -> list[Demand]:
    """Return one demand for each grid loop."""
    threads = launch.warps * target.warp_size
    return [
        _Count(launch, predicted, target, root, kept_loads(facts, launch.sizes, threads, root.root)).demand()
        for root in roots_of(facts)
    ]


def rereads_depend_on_groups(facts: KernelFacts, target: Target) -> bool:
    """Return whether programs share a load that the L2 cache cannot keep. Else groups of rows change no time."""
    accesses = (access for root in roots_of(facts) for access in root.accesses)
    kept = target.l2_bytes * _L2_SHARE
    return any(each.kind == "load" and each.apart and each.once_bytes > kept for each in accesses)


class _Count:
    """Sums over the facts of one root."""

    def __init__(
        self, launch: Launch, predicted: Predicted, target: Target, mine: Root, kept: Mapping[int, float]
    ) -> None:
        self.launch, self.predicted, self.target, self.mine, self.root = launch, predicted, target, mine, mine.root
        self.flattened = mine.root in launch.flattened
        self.kept = {} if self.flattened else kept
        self.nest = Nest(mine, launch.sizes, launch.parts)
        self.fastest = self.nest.ordered(launch)
        self.threads = launch.warps * target.warp_size
        self.cached_bytes = target.l2_bytes * _L2_SHARE
        self.first = self.fastest[:1]
        self.stages = launch.stages if mine.matmuls else launch.own_stages
        #: The regions whose reductions run after their loops.
        late: dict[int, int] = {}
        if mine.late:
            late = late_regions(mine.late, launch.sizes, self.threads, register_limit(launch.warps, target))
        self.late = late_axes(mine.late, late, launch.sizes, self.threads) if late else frozenset()
        #: Regions whose loads wait for their tiles a few vectors at a time; a loop with a matmul copies them ahead.
        self.streamed = frozenset(late) if not mine.matmuls else frozenset()
        self.sums = _NOTHING.copy()
        #: Warps that repeat the rows of a matmul's result, by its number and by the tile.
        self.repeats: dict[int, int] = {}
        self.repeated: dict[int, int] = {}
        for fact, tiles in mine.consumed:
            self.repeats[fact.number] = warps_of_rows(fact, launch.sizes, launch.warps, target)
            self.repeated |= dict.fromkeys(tiles, self.repeats[fact.number])
        for fact, tiles in mine.computed:
            self.repeated |= dict.fromkeys(tiles, warps_of_columns(fact, launch.sizes, launch.warps, target))
        #: Bytes of the tensors that programs have read or written, and those that they have written.
        self.seen: dict[tuple[int, tuple[int, ...]], float] = {}
        #: The same by region, of tiles that are not chunked: reading them again there follows at once.
        self.just_read: set[tuple[int, tuple[int, ...], int]] = set()
        self.stored: dict[tuple[int, tuple[int, ...]], float] = {}
        self.waits: dict[tuple[int, tuple[int, ...], int, bool], float] = {}
        #: Bytes of the loads of a program, and those that nothing reads again and that leave the cache first.
        self.loaded = self.streamed_bytes = 0.0
        #: Regions in which warps wait for each other.
        self.fenced: set[int] = set()

    def demand(self) -> Demand:
        sums, nest, predicted = self.sums, self.nest, self.predicted
        sums.update(
            programs=nest.programs,
            warps=self.launch.warps,
            resident=min(max(1, predicted.occupancy_blocks), self.launch.per_sm or math.inf),
            registers=predicted.registers_per_thread,
            needed=max(predicted.registers_per_thread, predicted.least_registers),
            limit=predicted.register_limit,
            persistent=self.launch.persistent,
            longest=1.0 if self.launch.persistent else self.mine.longest,
            skewed=self.mine.uneven and self.launch.blocked,
            fused=self.root in self.launch.fused,
            iterations=nest.iterations,
            largest_times=self._largest_times(),
        )
        for access in self.mine.accesses:
            self._access(access)
        self._spare()
        self._elementwise()
        for reduction in self.mine.reductions:
            self._reduction(reduction)
        self._wait()
        for scan in self.mine.scans:
            self._scan(scan)
        for sort in self.mine.sorts:
            self._sort(sort)
        for fact in self.mine.matmuls:
            times = nest.times(fact.region) * math.prod([self.launch.sizes[axis] for axis in fact.batch_axes])
            self._product(fact, times)
        return tuple.__new__(Demand, sums.values())  # in the order of the fields

    def _largest_times(self) -> int:
        nest, most, times = self.nest, 1, 1
        for region, tile in self.mine.held:
            if (elements := nest.elements[tile]) >= most:
                each = nest.runs[region] * nest.chunks(self.mine.tiles[tile])
                if elements > most or each > times:
                    most, times = elements, each
        return times

    def _access(self, access: Access) -> None:
        # most of a prediction's time: helpers are called only where needed (measurement ``seeding_accesses``)
        sums, nest, launch, kind, threads = self.sums, self.nest, self.launch, access.kind, self.threads
        slot, itemsize, region, is_load = access.slot, access.itemsize, access.region, kind == "load"
        passes, times = nest.repeats(access) if nest.walked else (1, nest.runs[region])
        numel, useful = nest.elements[access.tile], nest.useful[access.tile]
        per_thread = numel / threads if numel > threads else 1.0
        if self.stages > 1 and slot in self.mine.tables:
            self._look_up(times * per_thread * launch.warps)
            return
        run, width = self._run(access, numel) if access.inner is not None else (1.0, 1.0)
        kept = self.kept.get(slot, 1.0) if self.kept and is_load else 1.0
        every = times * useful * itemsize / (self._sharing(access) if access.quotients else 1)
        asked = every * kept
        near, step = (run, itemsize) if access.strided is None else (nest.used[access.strided[0]], access.strided[1])
        runs = asked / itemsize / (near if near > 1.0 else 1.0)
        sector_bytes = runs * -(-near * step // SECTOR_BYTES) * SECTOR_BYTES
        fresh = self._fresh(access, every) if access.again else 1.0
        sums["asked_bytes"] += asked * fresh
        if kind != "atomic":
            self._lines(access, runs * -(-near * step // _LINE), asked)
        sums["sector_bytes"] += sector_bytes * fresh
        distance = self._distance(access) if is_load else 0
        if times > 1:
            sums["prefetched_bytes" if distance else "looped_bytes"] += asked
        else:
            sums["straight_bytes"] += asked
        if distance:
            sums["staged_bytes"] += asked / distance
        if launch.evictions or is_load:
            self._evict(access, asked, sector_bytes, times, passes)
        if kind == "atomic":
            self._atomic(access, times, per_thread, useful, run, width)
        elif slot in launch.boxed:
            sums["descriptors"] += self._begun if self.mine.matmuls else not launch.persistent
        else:
            sums["accesses"] += times * (per_thread / width if per_thread > width else 1.0) * kept * launch.warps
        shared = tuple([axis for axis in access.apart if nest.trips[axis] > 1]) if access.apart else ()
        shifted = is_load and bool(self.just_read) and self._is_shifted(access, shared)
        # rows that share loads reach the same elements with fewer of them
        self._traffic(access, every, passes, shared)
        if is_load:
            if slot not in launch.uncached:
                if access.once_bytes <= _NEAR_BYTES and self._of_all_programs(access):
                    sums["near_bytes"] += sector_bytes * fresh
                elif shifted:
                    sums["shifted_bytes"] += sector_bytes * fresh
            walked = tuple([axis for axis in access.axes if axis in nest.walked]) if nest.walked else ()
            waits: float = times
            if region in self.streamed:
                waits *= max(1.0, per_thread / width / _IN_FLIGHT)
            key = region, walked, distance, not distance and slot in launch.boxed
            if self.waits.get(key, 0.0) < waits:
                self.waits[key] = waits
        elif kind == "store":
            sums["written_bytes"] += max(0.0, sector_bytes - asked)
            sums["stores"] += times
            if access.turned is not None:
                rows = min(_WARP, math.prod(launch.sizes[axis] for axis in access.turned))
                sums["conflicting_bytes"] += 2 * times * numel * itemsize * rows

    def _lines(self, access: Access, lines: float, asked: float) -> None:
        """Add the lines that an access asks for; of a matmul's loads, those of short pieces beyond their bytes.

        Whole lines take the time of their bytes (measurement ``short_pieces``).
        """
        if self.mine.matmuls:
            pieces = access.kind == "load" and access.inner is not None and access.slot not in self.launch.boxed
            lines = max(0.0, lines - asked / _LINE) if pieces and self.target.kind == "cuda" else 0.0
        self.sums["lines"] += lines

    def _atomic(self, access: Access, times: float, per_thread: float, useful: float, run: float, width: float) -> None:
        """Add the atomics of an access, or the histogram or sums that take their place."""
        sums, warps = self.sums, self.launch.warps
        if counts(self.nest.elements[access.tile], access.bins, warps, self.target, access.summed):
            self._count(access, times, per_thread)
            return
        vectored = access.vectored and self.target.has("vector_atomics")
        together = min(per_thread, width) if vectored else 1.0
        sums["accesses"] += times * per_thread / together * warps
        if access.itemsize == _PAIRED_BYTES and width == 1:
            # the memory adds pairs of 16 bits; single ones compare and swap in a loop (measurement ``added_pairs``)
            sums["lane_atomics"] += times * per_thread * warps
        lines = max(1.0, access.once_bytes / _LINE)
        met = times * useful / min(run, _WARP) / lines
        if access.inner is None:
            sums["lane_atomics"] += max(met, times * useful * _LANE_SHARE / self.target.l2_slices)
        else:
            # of each line, an instruction has a part: a thread's neighbours are in others
            meeting = min(max(1.0, lines / _LINES_APART), _LINES_MEETING / _LINES_APART)
            part = min(1.0, max(SECTOR_BYTES, run * access.itemsize) / _LINE)
            meeting = max(meeting, part * lines * _SLICE_SHARE / self.target.l2_slices)
            cost = max(1.0, min(per_thread, _NEIGHBOURS) / together) * min(1.0, _ADDED_TOGETHER / together)
            sums["line_atomics"] += met * cost * meeting

    def _evict(self, access: Access, asked: float, sector_bytes: float, times: float, passes: int) -> None:
        """Add the bytes of loop loads by eviction policy, and those of sectors that other programs use.

        Later passes lose bytes that leave the cache first (measurement ``lost_passes``).
        """
        sums, eviction = self.sums, self.launch.evictions.get(access.slot)
        if eviction and times > 1 and access.read_again:
            sums[f"{eviction}_bytes"] += asked * (1 - 1 / passes) if passes > 1 and eviction == "first" else asked
        if access.kind == "load":
            self.loaded += asked
            self.streamed_bytes += asked if eviction == "first" and not access.read_again else 0.0
        if sector_bytes > asked and access.kind == "load" and access.inner in self.mine.order:
            sums["others_bytes"] += sector_bytes - asked
            sums["first_others_bytes"] += sector_bytes - asked if eviction == "first" else 0.0
            sums["sectors_in_flight"] += sector_bytes / times

    def _spare(self) -> None:
        """Subtract the written lines that stay in the cache where all loads leave it first.

        Other loads would replace them, so that memory is written (measurement ``spared_lines``).
        """
        if self.streamed_bytes and self.streamed_bytes >= _NEARLY_ALL * self.loaded:
            programs = self.nest.programs
            spared = min(_SPARED_CACHE * self.target.l2_bytes, _SPARED_SHARE * programs * self.streamed_bytes)
            self.sums["new_bytes"] -= min(self.sums["new_bytes"], spared / programs)

    def _is_shifted(self, access: Access, shared: tuple[int, ...]) -> bool:
        """Return whether the program has just read a tile of the same elements, but for a shift."""
        place = access.storage, shared, access.region
        return 2 * access.once_bytes > access.whole_bytes and place in self.just_read

    def _look_up(self, lanes: float) -> None:
        """Add lookups in a table, whose places and elements change layout (measurement ``tables_in_loops``)."""
        self.sums["accesses"] += _LOOKUP_ACCESSES * lanes
        self.sums["exchanged_bytes"] += _LOOKUP_ACCESSES * lanes * _WARP * _TABLE_BYTES

    def _count(self, access: Access, times: float, per_thread: float) -> None:
        """Add a histogram or sums, and the atomics of its bins, which are neighbours."""
        sums, warps = self.sums, self.launch.warps
        issued = times * per_thread * warps * issued_per_warp(access.bins, access.summed)
        sums["looped_issue" if times > 1 else "straight_issue"] += issued
        sums["accesses"] += times * max(1.0, access.bins / self.threads) * warps
        lines = max(1.0, access.once_bytes / _LINE)
        sums["line_atomics"] += times * max(1.0, access.bins / _WARP / lines) * _WHOLE_LINE

    def _sharing(self, access: Access) -> float:
        """Return the elements of a tile that one element in memory is read for."""
        return math.prod(min(divisor, self.nest.used[axis]) for axis, divisor in access.quotients)

    def _distance(self, access: Access) -> int:
        """Return the steps between a load and its use.

        Loops fused with the tile loop copy no pointer load ahead. Neither does a thread that has less than a copy of it
        (measurement ``narrow_copies``).
        """
        launch = self.launch
        if access.feeds_dots and not access.in_loop:
            # only a persistent program has a loop around it, the one over tiles
            return launch.tile_stages.get(self.root, 1) - 1 if launch.persistent and self.mine.is_flat else 0
        if access.slot in launch.boxed:
            return self.stages - 1 if access.feeds_dots else 0
        if access.feeds_dots or (launch.own_stages > 1 and access.in_loop):
            held = max(1, self.nest.elements[access.tile] // self.threads) * access.itemsize
            if self.root not in launch.fused and min(held, access.copied_bytes) >= _COPY_BYTES:
                return self.stages - 1
        return launch.ahead if access.carried else 0

    def _of_all_programs(self, access: Access) -> bool:
        trips = self.nest.trips
        return all([trips[axis] == 1 for axis in access.inside])

    def _fresh(self, access: Access, every: float) -> float:
        """Return the fraction of the bytes that a program loads which earlier steps of its loops have not.

        The L1 cache keeps those for taps of a window (measurement ``taps_in_steps``).
        """
        steps = math.prod([self.nest.trips[axis] for axis in access.again])
        kept = every / steps * self.sums["resident"] <= _NEAR_BYTES
        return 1 / steps if kept and self.nest.programs * every >= 2 * access.once_bytes else 1.0

    def _run(self, access: Access, numel: int) -> tuple[float, float]:
        """Return the contiguous elements of a contiguous access in memory, and the elements of one thread's."""
        inner, widest = access.inner, access.widest
        assert inner is not None
        tiled = self.launch.sizes[inner]
        if self.flattened and inner in self.mine.order:
            # a tile is a run of the flat index, along the last of the axes in their order
            run, tiled = (float(numel), numel) if inner == self.fastest[-1] else (1.0, 1)
            widest = access.widest_of_run
        else:
            run = self.nest.run(access)
        if numel < 2 * self.threads:
            return run, 1.0
        return run, float(min(widest, tiled, numel // self.threads))

    def _traffic(self, access: Access, asked: float, passes: int, shared: tuple[int, ...]) -> None:
        """Add the bytes from and to memory: each once, and again where the cache has lost it in between.

        Programs along the axes ``shared`` access the same tile.
        """
        sums, nest, once, kind = self.sums, self.nest, access.once_bytes, access.kind
        programs = nest.programs
        first, again = asked / passes, 0.0
        total = programs * first if access.numbered else min(once, programs * first)
        small = once <= self.cached_bytes
        place = access.storage, shared
        if kind == "load" and access.placed is not None and not shared and not small:
            total = self._selected_bytes(access.placed, once, programs * asked, place in self.seen)
            self.seen[place] = max(self.seen.get(place, 0.0), total)
        elif kind == "load":
            if shared and not small:
                total = max(total, nest.covered(self.launch, self._at_once(), shared) * first)
            near = *place, access.region
            read, known = total, _known(self.seen.get(place, 0.0), access, total)
            again, total = (0.0 if small or near in self.just_read else known), total - known
            if not nest.walked or nest.walked.isdisjoint(access.axes):
                self.just_read.add(near)
            if passes > 1 and not small:
                again += programs * first * (passes - 1)
            self.seen[place] = self.seen.get(place, 0.0) + read - known
            if access.outside and not (small or shared):
                walks = nest.walks(access)
                if walks > 1:
                    # each pass of a loop around the row loops reads all rows again
                    again += programs * first * (1 - 1 / walks)
                    first /= walks
        elif kind == "store" and not shared:
            # a program finds its own stores in the cache, and storing again replaces them
            known = _known(before := self.stored.get(place, 0.0), access, total)
            again, total = (0.0 if small else known), total - known
            self.stored[place] = before + total
            self.seen[place] = max(self.seen.get(place, 0.0), first * programs)
        sums["new_bytes"] += total / programs
        if again:
            sums["again_bytes"] += again / programs
            sums["row_bytes"] += first
        together = self._run_bytes(access)
        if together < _RUN_BYTES:
            halvings = math.log2(_RUN_BYTES / max(SECTOR_BYTES, together))
            sums["scattered_bytes"] += (total + again) / programs * halvings

    def _selected_bytes(self, placed: tuple[int, ...], once: int, asked: float, is_seen: bool) -> float:
        """Return the bytes from memory of loads that data selects, ``asked`` of ``once`` distinct ones at most.

        The cache has the part of the tensor that programs which run together select from, as far as it has room. They
        select from all of it, or from the part that the axes ``placed`` index.
        """
        reach = min(once, asked) * self.nest.share(self.launch, self._at_once(), placed)
        missed = 1.0 - min(1.0, self.target.l2_bytes * _L2_SHARE / max(1.0, reach))
        return max(0.0 if is_seen else min(once, asked), asked * missed)

    @property
    def _begun(self) -> float:
        """Return the programs that begin for each tile: less than one if they are persistent."""
        return min(1.0, self._at_once() / self.nest.programs) if self.launch.persistent else 1.0

    def _at_once(self) -> float:
        return self.target.num_sms * self.sums["resident"]

    def _run_bytes(self, access: Access) -> float:
        """Return the bytes along the contiguous axis that adjacent programs read together."""
        if not self.launch.blocked and (self.flattened or not access.unit_stride.isdisjoint(self.first)):
            return _RUN_BYTES
        return access.itemsize * (1.0 if access.inner is None else self.nest.used[access.inner])

    def _wait(self) -> None:
        sums = self.sums
        for (region, walked, distance, boxed), times in self.waits.items():
            if distance:
                sums["pipelined_rounds"] += times / distance
                # a tile loop fills its pipeline once for all tiles of a program
                sums["fills"] += 1 if self.mine.loops[region] else self._begun
            elif times > 1:
                fenced = region in self.fenced and not walked
                stored = region in self.mine.storing
                kind = "stored" if stored else "boxed" if boxed else "fenced" if fenced else "looped"
                sums[f"{kind}_rounds"] += times
            else:
                sums["boxes" if boxed else "straight_rounds"] += times

    def _elementwise(self) -> None:
        sums, nest = self.sums, self.nest
        merged = self.mine.order if self.mine.numbering and self.flattened else ()
        if merged:
            elements = math.prod(self.launch.sizes[axis] for axis in merged)
            issued = max(1.0, elements / self.threads) * self.launch.warps
            sums["straight_issue"] += issued * self.mine.numbering
        warps, held = self.launch.warps, dict[int, float]()
        for region, tile, axes, ops, sfu_ops, apart in self.mine.work:
            times = nest.runs[region] * nest.chunks(axes) if nest.walked else nest.runs[region]
            if (each := held.get(tile)) is None:
                each = held[tile] = self._held(tile)
            issued = times * (max(1.0, nest.elements[tile] / self.threads) if apart else each) * warps
            if self.repeated:
                issued *= self.repeated.get(tile, 1)
            sums["looped_issue" if times > 1 else "straight_issue"] += issued * ops
            sums["special"] += issued * sfu_ops
            sums["steps"] += times * warps * ops
            if nest.walked and not nest.walked.isdisjoint(axes):
                sums["walked_issue"] += issued * ops
                sums["walked_special"] += issued * sfu_ops

    @functools.cached_property
    def along(self) -> dict[int, int]:
        """The threads along each axis of the largest tile."""
        return self.nest.threads_of_axes(self.threads)

    def _held(self, tile: int) -> float:
        """Return the elements of a tile that a thread has.

        A part of the largest tile, such as a row, is in threads as that one is (measurement ``held_rows``). Rows that
        are values of their own are spread over all threads.
        """
        numel, axes = self.nest.elements[tile], self.mine.tiles[tile]
        held = numel / self.threads if numel > self.threads else 1.0
        if self.mine.matmuls or self.kept or numel == 1:
            return held
        if len(set(axes)) < self.mine.rank and self.along.keys() > set(axes):
            held = max(held, math.prod([max(1.0, self.launch.sizes[axis] / self.along[axis]) for axis in axes]))
        return held

    def _reduction(self, reduction: Reduction) -> None:
        sums, nest, fact = self.sums, self.nest, reduction.fact
        times = each = nest.times(fact.region) * reduction.values
        late = (fact.region, fact.axis) in self.late and not reduction.lies_along(self.launch.sizes)
        if fact.after is not None and late:
            times = nest.times(fact.after) * reduction.values
        numel = nest.elements[reduction.tile]
        along, of_warp, width = self._threads_along(reduction)
        outputs = numel / self.launch.sizes[fact.axis]
        results = max(1.0, outputs * along / self.threads)
        steps = math.log2(of_warp)
        sums["shuffles"] += times * steps * results
        if along > of_warp:
            sums["exchanges"] += times * results
            sums["barriers"] += times
            if not late:
                self.fenced.add(fact.region)
            if reduction.product is None:
                sums["exchanged_bytes"] += times * results * self._exchanged_bytes(along // of_warp, of_warp, width)
        chunks = nest.chunks((fact.axis,))
        issued = each * chunks * max(1.0, numel / self.threads) * self.launch.warps
        sums["looped_issue" if each * chunks > 1 else "straight_issue"] += issued
        sums["accesses"] += times * results * self.launch.warps * steps * _SHUFFLE_ACCESSES

    def _exchanged_bytes(self, warps_along: int, of_warp: int, width: int) -> float:
        """Return the bytes of one result of each thread that goes through shared memory twice, once for each access to
        the same bank.

        The parts of a result are next to each other. So lanes with other results, of which each has ``width`` in a row,
        meet in few banks (measurement ``exchanged_results``).
        """
        meeting = _WARP // of_warp * min(_WARP, width * warps_along) / _WARP
        return 2 * self.launch.warps * max(1.0, meeting) * _LINE

    def _scan(self, scan: Scan) -> None:
        sums, nest, warps = self.sums, self.nest, self.launch.warps
        times = math.prod([nest.trips[axis] for axis in scan.around])
        each = max(1.0, nest.elements[scan.tile] / self.threads)
        along, of_warp, width = self._along(scan.axis, scan.axes, scan.widest, scan.ahead)
        size, chunked = self.launch.sizes[scan.axis], nest.trips[scan.axis] > 1
        live = 1.0 if chunked else live_share(size, nest.used[scan.axis], along, 1 if scan.ahead else width)
        work = scan_work(scan, each, along, of_warp, width, live=live, chunked=scan.axis in nest.walked)
        sums["code"] += work.ops + work.special * _SPECIAL_CODE
        sums["code_runs"] = max(sums["code_runs"], times)
        sums["looped_issue" if times > 1 else "straight_issue"] += work.ops * times * warps
        sums["special"] += work.special * times * warps
        sums["shuffles"] += work.shuffles * times
        sums["chained_cycles"] += work.chained * times
        sums["barriers"] += work.barriers * times
        sums["exchanges"] += times if work.barriers else 0

    def _sort(self, sort: Sort) -> None:
        """Add the work of a sort: both extrema of each exchange and the choice of one, besides the exchange itself, which
        is through shared memory if it is between warps.
        """
        sums, nest, warps = self.sums, self.nest, self.launch.warps
        times = math.prod([nest.trips[axis] for axis in sort.around])
        elements = int(nest.elements[sort.tile])
        network = Network.of(elements, self.launch.sizes[sort.axis], sort.itemsize, warps)
        each = times * warps * max(1.0, elements / self.threads) * network.words
        sums["looped_issue" if times > 1 else "straight_issue"] += each * network.steps * _SORT_ISSUE
        sums["accesses"] += each * (network.between_lanes * _SHUFFLE_ACCESSES + network.between_warps * 2)
        sums["barriers"] += times * network.between_warps * 2

    def _threads_along(self, reduction: Reduction) -> tuple[int, int, int]:
        """Return the threads of a program, and of one warp, that share a reduced row, and the results in a row of each
        thread.
        """
        fact, launch = reduction.fact, self.launch
        if reduction.product is not None:
            return *accumulator_threads(fact.axis, reduction.product, launch.sizes, launch.warps), 1
        ahead = () if reduction.lies_along(launch.sizes) else reduction.ahead
        threads, of_warp, width = self._along(fact.axis, reduction.axes, reduction.widest, ahead)
        if not ahead:
            return threads, of_warp, 1
        return threads, of_warp, 0 if ahead[0] in fact.gone else width

    def _product(self, fact: MatmulFact, times: float) -> None:
        sums, launch, repeats = self.sums, self.launch, self.repeats.get(fact.number)
        loaded = next((each.itemsize for each in self.mine.accesses if each.slot == fact.rhs_slot), 0)
        asked = product(fact, launch.sizes, launch.warps, self.target, times=times, repeats=repeats, loaded=loaded)
        for name, value in asked.items():
            sums[name] += value

    def _along(self, axis: int, tile: tuple[int, ...], widest: int, ahead: tuple[int, ...]) -> tuple[int, int, int]:
        return threads_along(axis, tile, widest, ahead, self.launch.sizes, self.threads)


def _known(before: float, access: Access, total: float) -> float:
    """Return the bytes of an access that are among those that programs have read, or written, ``before``.

    Accesses of a part of a tensor are of different parts, as far as it has them.
    """
    if before and access.once_bytes < access.whole_bytes:
        before = max(0.0, before + access.once_bytes - access.whole_bytes)
    return min(total, before)
