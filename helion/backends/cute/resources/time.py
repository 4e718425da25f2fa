"""How long a plan takes: a roofline of a K tile, times the rounds of tiles that as many clusters as fit the GPU take.

The parameters are fitted to 318 timings of products on an H200 with a cold L2. Of the 379 that are kept now
(benchmarks/results/cute, 2026-11-22), most of them of a later run, they are off by 4.8 % at the median, and the plan they
choose takes 1.015 of the best one's time at the geometric mean, 1.09 at worst. Fitted on one half of the products, they
choose plans of the other half that take 1.015 and 1.023 (``benchmarks/cute_fit.py``).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from .... import hardware
from ....hardware import Target
from ..plan.counts import Counts, counts
from ..plan.dtypes import itemsize
from ..plan.finish import rows_bytes, stored_last
from ..plan.records import SUM_BYTES, Finish, GemmPlan, RowFinish, TileFinish
from ..plan.reductions import reductions_of


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Bandwidths are multiples of an SM's share of the GPU's memory bandwidth, times are in microseconds."""

    matrix: float = 0.935
    """Part of the data sheet's rate that a main loop keeps up while the GPU is cool."""
    sustained: float = 0.639
    """That of a launch that never ends: power takes the clock down."""
    sustained_us: float = 1035.0
    """After so long it is down by half of the difference."""
    cooperative: float = 0.97
    """Part of the rate of two warpgroups in turn that warpgroups have which begin and end their tiles together."""
    promoted: float = 0.871
    """Part that is left where sums leave the matrix unit every few K tiles."""
    l2: float = 2.06
    """Operands from the L2 cache where all SMs load."""
    l2_of_few: float = 4.17
    """The most that one SM can load."""
    memory: float = 0.618
    """Part of the memory bandwidth that a kernel's first reads of its operands get."""
    memory_of_few: float = 3.17
    """The most that one SM reads from memory."""
    multicast: float = 0.818
    """Of operand bytes that a multicast saves, what shows in the time."""
    stored: float = 1.21
    """What an epilogue stores and reads."""
    k_tile_us: float = 0.136
    """The least time of a K tile: a load waits for a slot, the unit for the load."""
    ring_us: float = 0.0
    """From the release of a slot of A and B until its next tile is there: with few stages the unit waits for that."""
    slices_us: float = 0.0
    """Of a K tile, for each pair of CTAs that share A: each loads a slice for all, and waits for all."""
    overlap: float = 6.5
    """Of products and memory: the exponent of the norm in which their times add up, the larger one for a large exponent."""
    launch_us: float = 4.63
    """Launch, barriers and the last store."""
    fill_us: float = 1.01
    """Until the first operands are there."""
    tile_us: float = 0.162
    """Between two tiles of warps that multiply and store in turn."""
    split_us: float = 0.325
    """What CTAs that split K wait for each other, for each of them."""
    exchange_us: float = 0.04
    """What CTAs that hold parts of rows wait for each other, for each of them and each time; not fitted."""
    walk_us: float = 0.0
    """A walk over the sums of a tile of 128 x 256 that reduces them."""
    workspace_us: float = 2.5
    """Two fences and a counter in global memory, about four times the latency of memory; not fitted."""


RATES = Rates()
ROW_RATES = Rates(
    matrix=0.86, sustained=0.86, cooperative=1.0, promoted=1.0, l2=2.14, l2_of_few=4.5, memory=1.0, memory_of_few=1.1,
    multicast=0.75, stored=1.1, k_tile_us=0.15, overlap=64.0, launch_us=6.3, fill_us=0.0, tile_us=0.0, split_us=0.75,
    walk_us=0.4, ring_us=0.75, slices_us=0.0018,
)  # fmt: skip
"""Of plans that reduce rows: 7.5 % off at the root mean square of 14 products with their chains on an H200 (2026-11-22) that take
more than 100 us, 17 % at worst, where a chain has exponential functions, whose steps facts do not count. Of 147 plans of 1 to
1024 rows there (benchmarks/results/cute/nvidia-h200-rows.json, 2026-11-23), which take 8 to 110 us, they are 6.1 % off at the median:
launch, ring and slices are fitted to these."""
CACHED_RATES = dataclasses.replace(
    RATES, fill_us=0.16, stored=1.82, l2=2.3, l2_of_few=3.1, memory=0.55, memory_of_few=9.6, k_tile_us=0.19, split_us=0.46,
    workspace_us=4.3, tile_us=0.0,
)  # fmt: skip
"""Of products that leave rows in memory which stay in the L2 cache until a second kernel reads them: 5.1 % off at the median of
270 plans of few rows on that H200. Of the 15 products that are timed in both ways, what is chosen takes 1.014 of the best one's time
at the geometric mean, 1.07 at worst (``benchmarks/cute_fit.py``)."""
FINISH_LAUNCH_US, FINISH_MEMORY, FINISH_CACHED, FROM_L2 = 3.0, 0.8, 1.2, 2.0
"""What a second kernel takes beside its memory, the part of the memory bandwidth that it reaches where it reads and writes whole
rows, the same where they are in the L2 cache, and how much faster that gives them once more. The second and the last are not
fitted."""
ACTIVE_CLUSTERS = {3: 39, 4: 30, 6: 17, 8: 15, 16: 7}
"""Clusters of so many CTAs that run at once on the SMs of ``MEASURED``, whose GPCs have different numbers of them
(``cudaOccupancyMaxActiveClusters``, benchmarks/results/cute/nvidia-h200.json)."""
MEASURED = "h200"
WALKED = 128 * 256
LARGE_CLUSTER, IN_WHOLE_GROUPS = 4, 10 / 11
"""Other GPUs have groups of SMs as well: clusters of so many CTAs and more reach this part of the SMs, as on that H200."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Microseconds of one tile, and how many rounds of tiles the GPU needs."""

    k_tile_us: float
    epilogue_us: float
    waves: int
    tiles: int
    total_us: float
    finish_us: float = 0.0
    """Of the total, what the kernel behind the product takes."""
    cached: bool = False
    """Whether rows stay in the L2 cache until that reads them."""


def predicted_time(plan: GemmPlan, bytes_moved: int, target: Target, rates: Rates | None = None) -> Timing:
    """Of one launch of `plan`, which moves so many bytes from and to memory."""
    cached = stays_cached(plan, target)
    rates = rates or (ROW_RATES if plan.by_rows else CACHED_RATES if cached else RATES)
    cool = _at_rate(plan, bytes_moved, target, rates, rates.matrix)
    warm = cool.total_us / (cool.total_us + rates.sustained_us)
    time = _at_rate(plan, bytes_moved, target, rates, rates.matrix + (rates.sustained - rates.matrix) * warm)
    finish_us = _finish_us(plan.finish, target, FINISH_CACHED if cached else FINISH_MEMORY)
    return dataclasses.replace(time, finish_us=finish_us, total_us=time.total_us + finish_us, cached=cached)


def stays_cached(plan: GemmPlan, target: Target) -> bool:
    """Whether the rows that the product leaves, no more than half of the L2 cache holds, are there when they are read."""
    finish = plan.finish
    if not isinstance(finish, RowFinish) or plan.unit != "wgmma":
        return False
    return 2 * finish.problem.m * finish.pitch * itemsize(finish.dtype) <= target.l2_bytes


def _finish_us(finish: Finish | None, target: Target, memory: float) -> float:
    """Of the kernel behind the product, which takes as long as its memory: longer rows than registers keep are read once more
    by each walk, from the L2 cache."""
    if finish is None:
        return 0.0
    if isinstance(finish, TileFinish):
        moved = float(rows_bytes(finish))
    else:
        exact = [each.dtype for each in finish.problem.epilogue.of_kind("exact")]
        written = [each.dtype for each in stored_last(finish)]
        columns = sum(map(itemsize, (finish.dtype, *exact, *written)))
        again = 0 if finish.kept else len(reductions_of(finish.problem)) * itemsize(finish.dtype)
        moved = finish.problem.m * finish.problem.n * (columns + again / FROM_L2)
    return FINISH_LAUNCH_US + moved / (memory * target.bandwidth_gb_per_s * 1e3)


def _at_rate(plan: GemmPlan, bytes_moved: int, target: Target, rates: Rates, matrix: float) -> Timing:
    resident = resident_clusters(plan.ctas, target) * plan.ctas_per_sm
    waves = -(-plan.pieces // resident)
    busy = min(plan.pieces * plan.ctas, resident * plan.ctas // plan.ctas_per_sm)
    share = target.bandwidth_gb_per_s * 1e3 / target.num_sms
    l2 = share * min(rates.l2_of_few, rates.l2 * target.num_sms / busy)
    multiplied, loaded = _flops(plan) / _rate(plan, target, rates, matrix), _loaded(plan, counts(plan), rates) / l2
    # CTAs that share an SM share its unit and its loads, and wait at the same time.
    k_tile_us = max(plan.ctas_per_sm * max(multiplied, loaded), rates.k_tile_us, _slot_us(plan, rates))
    epilogue_us = _epilogue_us(plan, share, l2, rates)
    tile_us = -(-plan.k_tiles // plan.parts) * k_tile_us
    if plan.teams > 1 or plan.accumulator_stages > 1:
        body = rates.fill_us + waves * max(tile_us, epilogue_us) + epilogue_us
    else:
        body = rates.fill_us + waves * (tile_us + epilogue_us + rates.tile_us)
    memory_us = bytes_moved / (share * min(rates.memory * target.num_sms, rates.memory_of_few * busy))
    return Timing(
        k_tile_us=k_tile_us,
        epilogue_us=epilogue_us,
        waves=waves,
        tiles=plan.tiles * plan.cluster_tiles[0] * plan.cluster_tiles[1],
        total_us=rates.launch_us + _together(body, rates.fill_us + memory_us, rates.overlap),
    )


def _slot_us(plan: GemmPlan, rates: Rates) -> float:
    """What the CTAs of a cluster and the stages of the ring let a K tile take at least; of tcgen05 that is not known."""
    ctas = plan.cluster[1]
    return 0.0 if plan.unit == "tcgen05" else max(rates.ring_us / plan.ab_stages, rates.slices_us * ctas * ctas)


def _together(one: float, other: float, exponent: float) -> float:
    longer, shorter = max(one, other), min(one, other)
    return longer * (1 + (shorter / longer) ** exponent) ** (1 / exponent)


def resident_clusters(ctas: int, target: Target) -> int:
    """Clusters of so many CTAs that run at once, where each has an SM to itself."""
    known = ACTIVE_CLUSTERS.get(ctas) if target.has("wgmma") else None
    if known is None:
        sms = int(target.num_sms * IN_WHOLE_GROUPS) if ctas >= LARGE_CLUSTER else target.num_sms
        return max(1, sms // ctas)
    return max(1, known * target.num_sms // hardware.target(MEASURED).num_sms)


def _flops(plan: GemmPlan) -> int:
    rows, columns = plan.cta_tile
    return 2 * rows * columns * plan.tile[2] * plan.products


def _rate(plan: GemmPlan, target: Target, rates: Rates, matrix: float) -> float:
    """Of one SM, in operations per microsecond."""
    unit = "tf32" if plan.problem.operand_dtype == "float32" else plan.problem.operand_dtype
    rate = matrix * target.matrix_tflops_for(unit) * 1e6 / target.num_sms
    rate *= rates.promoted if plan.promote else 1.0
    return rate if plan.teams > 1 else rate * rates.cooperative


def _loaded(plan: GemmPlan, numbers: Counts, rates: Rates) -> float:
    """Bytes of a K tile that count."""
    a, b = numbers.a_stage_bytes, numbers.b_stage_bytes
    shared = (1 - 1 / numbers.a_multicast) * a + (1 - 1 / numbers.b_multicast) * b
    return a + b - rates.multicast * shared


def _epilogue_us(plan: GemmPlan, share: float, l2: float, rates: Rates) -> float:
    """Storing a tile and reading what its epilogue needs; CTAs that split K share that, and hand each other sums.

    Of clusters that do, each writes its sums, and the last one reads those of all.
    """
    rows, columns = plan.cta_tile
    exact = sum(itemsize(each.dtype) for each in plan.problem.epilogue.of_kind("exact"))
    sums = rows * columns * SUM_BYTES / plan.splits
    written = sum(itemsize(each.dtype) for each in plan.problem.outputs_of("exact"))
    time = plan.ctas_per_sm * rows * columns * (written + exact) / plan.splits / (rates.stored * share)
    if plan.cluster[1] > 1:
        time += rates.exchange_us * plan.cluster[1] * max(plan.problem.epilogue.levels)
    time += rates.walk_us * plan.ctas_per_sm * max(plan.problem.epilogue.levels) * rows * columns / WALKED
    if plan.splits > 1:
        time += rates.split_us * plan.splits + 2 * sums * (plan.splits - 1) / l2
    if plan.grid_splits > 1:
        time += rates.workspace_us + sums * (1 + plan.grid_splits) / l2
    return time
