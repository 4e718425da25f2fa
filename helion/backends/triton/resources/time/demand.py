"""What the programs of one grid loop ask of each unit of the GPU, as numbers that a time follows from."""

from __future__ import annotations

import math
from typing import NamedTuple

from ....._compiler.facts.records import KernelFacts, MatmulFact, ReductionFact
from .....autotuner.proposal import Predicted
from .....hardware import Target
from ..matrix import rate_name, tile_shape, unit_of
from ..tiles import VECTOR_BYTES
from .launch import Launch
from .nest import Nest
from .roots import Access, Root, roots_of

_SECTOR = 32
#: Threads of a warp exchange in registers; a reduction over more of them goes through shared memory.
_WARP = 32
#: Part of the L2 cache that what programs share may take and stay there.
_L2_SHARE = 0.6
#: What an SM keeps near itself of a tensor that all of its programs read.
_NEAR_BYTES = 131072
#: Rows of one instruction of the asynchronous unit and of the other one.
_UNIT_ROWS = {"mma": 16, "wgmma": 64, "tcgen05": 128}
_LEAST_COLUMNS = 8
#: Values that are reduced together: an index goes with its value, and is compared too.
_VALUES = {"argmax": 3, "argmin": 3}
_ACCUMULATOR_BYTES = 4
#: Bytes of an operand that one instruction of a warp brings to registers for the synchronous unit.
_FRAGMENT_BYTES = 256
#: Rows and columns of an accumulator that one warp takes at least.
_FRAGMENT_ROWS, _FRAGMENT_COLUMNS = 16, 8
#: Of an access to memory, what an exchange within a warp costs.
_SHUFFLE_ACCESSES = 0.5
#: Bytes that lie together, or are read by programs next to each other: each halving below this costs the memory as much.
_RUN_BYTES = 16384.0


class Demand(NamedTuple):
    """Of one root; per program unless the name says otherwise. Times in microseconds, instructions as those of a warp.

    ``looped_*`` are of what a program repeats, ``straight_*`` of what it does once.
    """

    programs: float
    warps: float
    resident: float
    """Programs that one SM holds, by the prediction of registers and shared memory."""
    registers: float
    limit: float
    new_bytes: float
    """Bytes that come from memory or go there, in whole sectors, by the order of programs and what the L2 cache keeps."""
    again_bytes: float
    """Bytes that a program reads for the second time, which come from memory where the cache has lost them."""
    first_bytes: float
    """Bytes of loops that the L2 cache is asked to drop first."""
    last_bytes: float
    """The same to keep longest."""
    row_bytes: float
    """Bytes that one program has to find in the cache for that."""
    scattered_bytes: float
    """Bytes from memory, each as often as its run is a halving of a long one."""
    asked_bytes: float
    """Bytes through the L2 cache."""
    sector_bytes: float
    written_bytes: float
    """Bytes of sectors that programs store to in parts, beside what they store."""
    near_bytes: float
    """Of ``sector_bytes``, those that the last program on the same SM has read too."""
    straight_bytes: float
    looped_bytes: float
    straight_issue: float
    looped_issue: float
    special: float
    walked_issue: float
    """Of rows that are taken in chunks: what each chunk computes, once for each pass."""
    walked_special: float
    accesses: float
    straight_rounds: float
    """Times that a program waits for memory."""
    looped_rounds: float
    pipelined_rounds: float
    fills: float
    stages: float
    iterations: float
    largest_times: float
    """Runs of what holds the largest tile, where registers run out first."""
    matrix_us: float
    """On one SM, at the data sheet's rate of the unit that takes the product, padding included."""
    synchronous_us: float
    """Of that, what the unit without asynchronous instructions does where there is a faster one."""
    converted_us: float
    """Of that, products whose operands change their layout on the way."""
    products: float
    accumulated_bytes: float
    """Of accumulators in registers, each counted once for every product that is added to it."""
    operand_bytes: float
    """Read from shared memory by the matrix unit."""
    turned_bytes: float
    """Of products that are operands of others, what goes to other warps on the way."""
    exchanges: float
    """Reductions across warps."""
    shuffles: float
    barriers: float
    stores: float
    descriptors: float
    """Descriptors of tensors that a program makes before it can load; one that goes on to other tiles makes them once."""
    persistent: float
    """1 where programs go on to other tiles."""
    fused: float
    """1 where the next tile's loads begin before the last one is stored."""


def demands(facts: KernelFacts, launch: Launch, predicted: Predicted, target: Target) -> list[Demand]:
    """One for each grid loop."""
    return [_Count(facts, launch, predicted, target, root).demand() for root in roots_of(facts)]


class _Count:
    """Sums over the facts of one root."""

    def __init__(self, facts: KernelFacts, launch: Launch, predicted: Predicted, target: Target, mine: Root) -> None:
        self.launch, self.predicted, self.target, self.mine, self.root = launch, predicted, target, mine, mine.root
        self.nest = Nest(facts, launch.sizes, mine.root, launch.parts)
        self.fastest = self.nest.ordered(launch)
        self.threads = launch.warps * target.warp_size
        self.sums: dict[str, float] = dict.fromkeys(Demand._fields, 0.0)
        self.seen: set[tuple[int, tuple[int, ...]]] = set()
        self.waits: dict[tuple[int, tuple[int, ...], bool], float] = {}

    def demand(self) -> Demand:
        sums, nest, predicted = self.sums, self.nest, self.predicted
        sums.update(
            programs=nest.programs,
            warps=self.launch.warps,
            resident=min(max(1, predicted.occupancy_blocks), self.launch.per_sm or math.inf),
            registers=predicted.registers_per_thread,
            limit=predicted.register_limit,
            stages=self.launch.stages,
            persistent=self.launch.persistent,
            fused=self.root in self.launch.fused,
            iterations=nest.iterations,
            largest_times=self._largest_times(),
        )
        for access in self.mine.accesses:
            self._access(access)
        self._wait()
        self._elementwise()
        self._reductions()
        self._scans()
        for fact in self.mine.matmuls:
            self._product(fact)
        return Demand(**sums)

    def _largest_times(self) -> int:
        sizes, nest = self.launch.sizes, self.nest
        held = [(1, 1)]
        for region, axes in self.mine.tiles:
            held.append((math.prod([sizes[axis] for axis in axes]), nest.times(region) * nest.chunks(axes)))
        return max(held)[1]

    def _access(self, access: Access) -> None:
        sums, nest, sizes, op, itemsize = self.sums, self.nest, self.launch.sizes, access.op, access.itemsize
        passes, times = nest.repeats(op)
        numel = math.prod([sizes[axis] for axis in op.tile_axes])
        useful = math.prod([nest.used[axis] for axis in op.tile_axes])
        run, width = self._run(access, numel)
        asked = times * useful * itemsize
        sector_bytes = times * useful / max(run, 1.0) * -(-run * itemsize // _SECTOR) * _SECTOR
        sums["asked_bytes"] += asked
        sums["sector_bytes"] += sector_bytes
        if op.kind == "store":
            sums["written_bytes"] += max(0.0, sector_bytes - asked)
        if op.kind == "load" and access.once_bytes <= _NEAR_BYTES and self._of_all_programs(access):
            sums["near_bytes"] += sector_bytes
        sums["looped_bytes" if times > 1 else "straight_bytes"] += asked
        eviction = self.launch.evictions.get(op.slot)
        if eviction and times > 1:
            sums[f"{eviction}_bytes"] += asked
        per_thread = max(1.0, numel / self.threads)
        if op.kind == "atomic":
            sums["accesses"] += times * per_thread * self.launch.warps
        elif op.slot in self.launch.boxed:
            sums["descriptors"] += not self.launch.persistent
        else:
            sums["accesses"] += times * max(1.0, per_thread / width) * self.launch.warps
        if op.kind == "store":
            sums["stores"] += times
        self._traffic(access, asked, passes, run)
        if op.kind == "load":
            walked = tuple([axis for axis in op.tile_axes if axis in nest.walked]) if nest.walked else ()
            # Triton does not prefetch loads through pointers in a loop that is one with the loop over tiles
            kept = self.root not in self.launch.fused or op.slot in self.launch.boxed
            key = op.region, walked, access.feeds_dots and kept and self.launch.stages > 1
            self.waits[key] = max(self.waits.get(key, 0.0), times)

    def _of_all_programs(self, access: Access) -> bool:
        return not any([self.nest.trips[axis] > 1 for axis in access.inside])

    def _run(self, access: Access, numel: int) -> tuple[float, float]:
        """Elements of the tile that lie together in memory, and elements of one thread's access."""
        inner, run, tiled = access.inner, 1.0, 1
        if inner is not None:
            run, tiled = self.nest.used[inner], self.launch.sizes[inner]
            if self.root in self.launch.flattened and inner in self.nest.order:
                # a tile is a run of the flat index, along the last of the axes in their order
                run, tiled = (float(numel), numel) if inner == self.fastest[-1] else (1.0, 1)
        return run, float(max(1, min(VECTOR_BYTES // access.itemsize, tiled, access.aligned, numel // self.threads)))

    def _traffic(self, access: Access, asked: float, passes: int, run: float) -> None:
        """Bytes from and to memory: each once, and again what the cache has lost in between."""
        sums, nest, op, once = self.sums, self.nest, access.op, access.once_bytes
        programs = nest.programs
        first = asked / passes
        small = once <= self.target.l2_bytes * _L2_SHARE
        shared = [axis for axis in access.apart if nest.trips[axis] > 1]
        total = least = min(once, programs * first)
        if shared and op.kind == "load" and not small:
            total = max(least, nest.covered(self.launch, self._at_once(), shared) * first)
        again = 0.0
        key = op.storage, tuple(shared)
        if op.kind == "load":
            if key in self.seen:
                again, total = (0.0 if small else total), 0.0
            if passes > 1 and not small:
                again += programs * first * (passes - 1)
            self.seen.add(key)
        sums["new_bytes"] += total / programs
        sums["again_bytes"] += again / programs
        if again:
            sums["row_bytes"] += first
        halvings = math.log2(_RUN_BYTES / min(_RUN_BYTES, max(_SECTOR, self._run_bytes(access, run))))
        sums["scattered_bytes"] += (total + again) / programs * halvings

    def _at_once(self) -> float:
        return self.target.num_sms * self.sums["resident"]

    def _run_bytes(self, access: Access, run: float) -> float:
        """Bytes that programs next to each other read together."""
        joined = self.root in self.launch.flattened or not access.unit_stride.isdisjoint(self.fastest[:1])
        return _RUN_BYTES if joined else run * access.itemsize

    def _wait(self) -> None:
        for (_, _, pipelined), times in self.waits.items():
            if pipelined:
                self.sums["pipelined_rounds"] += times
                self.sums["fills"] += 1
            else:
                self.sums["looped_rounds" if times > 1 else "straight_rounds"] += times

    def _elementwise(self) -> None:
        for fact in self.mine.work:
            times = self.nest.times(fact.region) * self.nest.chunks(fact.axes)
            each = max(1.0, math.prod([self.launch.sizes[axis] for axis in fact.axes]) / self.threads)
            issued = times * each * self.launch.warps
            self.sums["looped_issue" if times > 1 else "straight_issue"] += issued * fact.ops
            self.sums["special"] += issued * fact.sfu_ops
            if self.nest.walked.intersection(fact.axes):
                self.sums["walked_issue"] += issued * fact.ops
                self.sums["walked_special"] += issued * fact.sfu_ops

    def _reductions(self) -> None:
        sizes, sums = self.launch.sizes, self.sums
        for fact in self.mine.reductions:
            times = self.nest.times(fact.region) * sum(_VALUES.get(name, 1) for name in fact.names)
            numel = math.prod([sizes[axis] for axis in fact.tile])
            along, of_warp = self._threads_along(fact, numel)
            results = max(1.0, numel / sizes[fact.axis] * along / self.threads)
            steps = math.log2(of_warp)
            sums["shuffles"] += times * steps * results
            if along > of_warp:
                sums["exchanges"] += times * results
                sums["barriers"] += times
            chunks = self.nest.chunks((fact.axis,))
            issued = times * chunks * max(1.0, numel / self.threads) * self.launch.warps
            sums["looped_issue" if times * chunks > 1 else "straight_issue"] += issued
            sums["accesses"] += times * results * self.launch.warps * steps * _SHUFFLE_ACCESSES

    def _scans(self) -> None:
        """Each step of a scan exchanges, within a warp or through shared memory, all that a thread has."""
        sizes, sums = self.launch.sizes, self.sums
        for scanned, fact in self.mine.scans:
            times = math.prod([self.nest.trips[axis] for axis in fact.tile if axis not in self.nest.order])
            each = max(1.0, math.prod([sizes[axis] for axis in fact.tile]) / self.threads)
            issued = times * each * self.launch.warps * fact.ops
            steps = math.log2(min(_WARP, max(2, sizes[scanned])))
            sums["looped_issue" if times > 1 else "straight_issue"] += issued * (1 + steps)
            sums["accesses"] += times * each * self.launch.warps * steps * _SHUFFLE_ACCESSES
            sums["barriers"] += times

    def _threads_along(self, fact: ReductionFact, numel: int) -> tuple[int, int]:
        """Threads of a program, and of one warp, that share a row which is reduced: neighbours in memory go to neighbours."""
        sizes = self.launch.sizes
        for product in self.mine.matmuls:
            if product.region == fact.region and {product.m_axis, product.n_axis} <= set(fact.tile):
                return self._accumulator_threads(fact, product)
        width = max(1, min(VECTOR_BYTES // max(1, fact.input_load_itemsize or fact.itemsize), numel // self.threads))
        inside = math.prod([sizes[axis] for axis in fact.tile[fact.tile.index(fact.axis) + 1 :]])
        if inside == 1:
            along = min(self.threads, max(1, sizes[fact.axis] // width))
            return along, min(_WARP, along)
        lanes = min(self.threads, max(1, inside // width))
        along = min(sizes[fact.axis], max(1, self.threads // lanes))
        return along, min(along, max(1, _WARP // lanes))

    def _accumulator_threads(self, fact: ReductionFact, product: MatmulFact) -> tuple[int, int]:
        """The same of a product: warps take rows by 16 first, then columns; a warp has 8 rows and 4 columns of threads."""
        rows, columns, _ = tile_shape(product, self.launch.sizes)
        below = max(1, min(self.launch.warps, rows // _FRAGMENT_ROWS))
        beside = max(1, min(self.launch.warps // below, columns // _FRAGMENT_COLUMNS))
        return (4 * beside, 4) if fact.axis == product.n_axis else (8 * below, 8)

    def _product(self, fact: MatmulFact) -> None:
        sums, launch, target = self.sums, self.launch, self.target
        times = self.nest.times(fact.region) * math.prod([launch.sizes[axis] for axis in fact.batch_axes])
        rows, columns, depth = tile_shape(fact, launch.sizes)
        unit = unit_of(fact, launch.sizes, launch.warps, target)
        padded = max(rows, _UNIT_ROWS[unit])
        flops = 2.0 * padded * max(columns, _LEAST_COLUMNS) * depth
        took = times * flops / (target.matrix_tflops_for(rate_name(fact)) * 1e6) * target.num_sms
        sums["matrix_us"] += took
        if unit == "mma":
            operands = (rows * fact.lhs_dtype.itemsize + columns * fact.rhs_dtype.itemsize) * depth
            sums["accesses"] += times * operands / _FRAGMENT_BYTES
            if target.has("wgmma") or target.has("tcgen05"):
                sums["synchronous_us"] += took
        elif fact.lhs_dtype.itemsize == 4 and fact.rhs_layout != "k_major":
            sums["converted_us"] += took
        groups = max(1, launch.warps // 4)
        below = max(1, min(groups, padded // _UNIT_ROWS[unit]))
        read = padded * (groups // below) + columns * below
        sums["operand_bytes"] += times * read * depth * fact.lhs_dtype.itemsize
        if fact.consumes and rows < _FRAGMENT_ROWS * launch.warps:
            sums["turned_bytes"] += times * rows * depth * fact.lhs_dtype.itemsize
        sums["products"] += times
        if unit != "tcgen05":
            sums["accumulated_bytes"] += times * padded * columns * _ACCUMULATOR_BYTES
