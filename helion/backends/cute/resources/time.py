"""A model of a plan's time: a roofline of a K tile, times the waves of tiles over the co-resident clusters.

The parameters are fitted to timings of GEMMs on an H200 with a cold L2. ``benchmarks/cute_fit.py`` compares predictions
with the timings in benchmarks/results/cute (measurement ``cute_time_model``).
"""

from __future__ import annotations

import dataclasses
import math

from ...._support.records import dataclass
from ....hardware import Target
from ..plan.copied import Copied
from ..plan.counts import (
    Counts,
    copied_lines,
    counts,
    granule_walk,
    in_fragments,
    is_raw,
    past_registers,
    raw_bytes,
    raw_operands,
    slices,
    through_registers,
)
from ..plan.dtypes import itemsize, per_byte
from ..plan.finish import rows_bytes, stored_last
from ..plan.passes import draws_in_loop
from ..plan.records import (
    SUM_BYTES,
    SWIZZLE_BYTES,
    WARP_THREADS,
    Finish,
    GemmPlan,
    GemmProblem,
    Prepare,
    RowFinish,
    TileFinish,
)
from ..plan.reductions import reductions_of
from ..plan.shared import stores_lines


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Fitted rates. Bandwidths are multiples of an SM's share of the GPU's memory bandwidth, times are in microseconds."""

    matrix: float = 0.935
    """Fraction of the data sheet's rate in the mainloop of a cool GPU."""
    sustained: float = 0.639
    """The same in an endless launch: the power limit reduces the clock (measurement ``hot_products``)."""
    sustained_us: float = 1035.0
    """Time after which half of the reduction is reached."""
    cooperative: float = 0.97
    """Fraction of the ping-pong rate for cooperative warpgroups, which begin and end their tiles together."""
    promoted: float = 0.871
    """Fraction that remains where accumulators are promoted every few K tiles."""
    awaited: float = 0.72
    """Fraction of that which remains where warps with one accumulator wait for the MMAs of each K tile, and promote it
    before the next (``blockwise`` of benchmarks/results/cute/nvidia-h200-parts.jsonl)."""
    l2: float = 2.06
    """L2 bandwidth for operands where all SMs load."""
    l2_of_few: float = 4.17
    """Limit of the loads of one SM."""
    memory: float = 0.618
    """Fraction of the memory bandwidth for a kernel's first reads of its operands."""
    memory_stored: float = 0.7
    """The same for what it stores (measurement ``stored_rate``)."""
    memory_of_few: float = 3.17
    """Limit of the memory reads of one SM."""
    read_together: float = 0.4
    """Part of an operand that memory transfers again where all CTAs that read it run at the same time: none finds it in
    the cache yet. Long K with few tiles shows it."""
    crossed: float = 1.0
    """Bytes that are loaded for each byte of an operand whose rows begin between lines of the L2 cache."""
    crossed_us: float = 0.0
    """Least time of such a row of 128 bytes, which an SM receives in two transfers."""
    multicast: float = 0.818
    """Fraction of the bytes saved by multicast that shows in the time."""
    stored: float = 1.21
    """Bandwidth of the epilogue's loads and stores."""
    k_tile_us: float = 0.136
    """Minimum time of a K tile: a load waits for a stage, the MMA for the load."""
    ring_us: float = 0.0
    """Latency from the release of a stage of A and B to its next full phase, which few stages expose."""
    slices_us: float = 0.0
    """Time of a K tile for each pair of CTAs that share A: each loads a slice for all, and waits for all."""
    overlap: float = 6.5
    """Exponent of the norm that combines compute and memory time; a large exponent gives the maximum."""
    launch_us: float = 4.63
    """Launch, barriers and the last store."""
    fill_us: float = 1.01
    """Latency of the first operands."""
    tile_us: float = 0.162
    """Time between two tiles of warps that alternate between mainloop and epilogue."""
    split_us: float = 0.325
    """Synchronization of CTAs that split K, for each of them."""
    exchange_us: float = 0.04
    """Synchronization of CTAs that share rows, for each of them and each exchange; not fitted."""
    walk_us: float = 0.0
    """A reducing pass over the accumulator of a tile of 128 x 256."""
    copied_us: float = 1.1
    """Least time of a K tile that warps copy through registers: they have the loads of one in flight (benchmarks/results/
    cute/nvidia-h200-products.jsonl)."""
    scattered_us: float = 0.0004
    """Time of an element that warps copy from a sector of its own (``triangle_product`` of
    benchmarks/results/nvidia-h200-variants.jsonl)."""
    raw_us: float = 0.12
    """Least time of a K tile whose raw tiles warps convert: waits, the fence and the arrival; not fitted."""
    converted_us: float = 0.000047
    """Time of an element that warps convert (``int8_weights_512_rows`` and ``int8_weights_n_major_few_rows`` of
    benchmarks/results/cute/nvidia-h200-products.jsonl)."""
    words_us: float = 0.25
    """Time of a K tile of which warps read words of A to registers, hidden in part by MMAs of another warpgroup (measurement
    ``tf32_fragments``)."""
    fragment_us: float = 0.16
    """Least time of a K tile that the warps that multiply convert (benchmarks/results/cute/nvidia-h200-few-rows.jsonl)."""
    fragments_us: float = 0.00003
    """Time of an element that these warps convert, from the same runs."""
    issued_us: float = 0.000033
    """The same for each of two CTAs on an SM, which share its schedulers."""
    slice_us: float = 0.65
    """Time of a K tile of a warp that has it alone (benchmarks/results/cute/nvidia-h200-few-rows.jsonl)."""
    sliced_us: float = 0.000012
    """Time of an element that such warps convert and multiply, from the same runs."""
    added_us: float = 3.85
    """Time after the last K tile has arrived: that of a warp, and of the sums of all warps, from the same runs."""
    sliced_memory: float = 0.96
    """Fraction of the memory bandwidth that remains where warps hold stages longer, from the same runs."""
    shared_bytes_per_us: float = 218e3
    """Shared-memory bandwidth of an SM: 128 bytes per cycle. It limits K tiles that are written twice."""
    granules_us: float = 0.0023
    """Time of a cp.async of a warp along lines, of which an SM starts one at a time; not fitted."""
    spread_granules_us: float = 0.0052
    """The same across 8 lines, which touches four times as many rows of the tensor."""
    strided_us: float = 0.0006
    """Time of the store of a single element (``odd_outputs_8`` and ``filtered_odd_large`` of
    benchmarks/results/cute/nvidia-h200-parts.jsonl)."""
    line_us: float = 0.00024
    """The same of elements that a warp stores next to each other (``lines`` of
    benchmarks/results/cute/nvidia-h200-few-tiles.jsonl)."""
    residual_us: float = 1.15
    """Latency of a sub-tile of a matrix that the epilogue reads (``ahead`` of benchmarks/results/cute/nvidia-h200-few-tiles.jsonl)."""
    turn_us: float = 0.1
    """Time between two epilogues of consumer groups that take turns (the same rows)."""
    narrow_us: float = 0.0014
    """The same of a line of a sub-tile whose lines are half of a sector of memory (``uneven`` of
    benchmarks/results/cute/nvidia-h200-few-tiles.jsonl)."""
    drawn_us: float = 0.0009
    """Time of a random number, whose 70 instructions wait for each other (measurement ``drawn_numbers``)."""
    looped_us: float = 0.00046
    """The same in the loop over K, next to MMAs (measurement ``drawn_bits``)."""
    workspace_us: float = 1.5
    """Two fences and a counter in global memory, which are a few times the latency of memory."""
    part_us: float = 0.3
    """Latency of the partials of a cluster, which the last one reads in order (benchmarks/results/cute/nvidia-h200-few-tiles.jsonl)."""
    split: float = 0.9
    """Rate of the matrix unit where K is split, relative to all of K (the same rows)."""
    shared_us: float = 0.05
    """Time of a K tile that CTAs share where K is split: its stage waits for all of them (the same rows)."""


RATES = Rates(crossed=1.4, crossed_us=0.0013)
"""Rates of matmuls that store tiles. Rows between lines are those of ``odd`` and ``gelu`` in
benchmarks/results/cute/nvidia-h200-few-tiles.jsonl, and of measurement ``crossing_rows``."""
ROW_RATES = Rates(
    matrix=0.86, sustained=0.86, cooperative=1.0, promoted=1.0, l2=2.14, l2_of_few=4.5, memory=1.0, memory_stored=1.0,
    memory_of_few=1.1, residual_us=0.0,
    multicast=0.75, stored=1.1, k_tile_us=0.15, overlap=64.0, launch_us=6.3, fill_us=0.0, tile_us=0.0, split_us=0.75,
    walk_us=0.4, ring_us=0.75, slices_us=0.0018,
)  # fmt: skip
"""Rates of plans that reduce rows (measurement ``cute_row_model``). They are least exact for exponential functions, whose
cost facts do not count. Launch, ring and slices are fitted to plans of few rows."""
CACHED_RATES = dataclasses.replace(
    RATES, fill_us=0.16, stored=1.82, l2=2.3, l2_of_few=3.1, memory=0.55, memory_stored=0.55, memory_of_few=9.6, k_tile_us=0.19, split_us=0.46,
    workspace_us=4.3, part_us=0.0, tile_us=0.0,
)  # fmt: skip
"""Rates of GEMMs that store rows which stay in the L2 cache until a second kernel reads them (measurement
``cute_cached_model``)."""
GROUP_RATES = dataclasses.replace(RATES, memory=0.82, memory_stored=0.82)
"""Rates of groups of rows, whose matrices are read once: ``few_rows_128``, ``even_128``, ``giant_128`` and
``gated_few_128`` of benchmarks/results/cute/nvidia-h200-parts.jsonl."""
FINISH_LAUNCH_US, FINISH_MEMORY, FINISH_CACHED, FROM_L2 = 3.0, 0.8, 1.2, 2.0
"""The fixed time of a second kernel, the fraction of the memory bandwidth for whole rows, the same from the L2 cache,
and the speedup of repeated reads from it. The second and the last are not fitted."""
PREPARE_LAUNCH_US, PREPARE_MEMORY, PREPARE_LEAST_US = 1.0, 0.7, 3.0
"""The time of a kernel before the matmul that the matmul's set-up does not hide, and its fraction of the memory bandwidth
(measurement ``operands_before``). The least time of a small one is not fitted."""
ACTIVE_CLUSTERS = {3: 39, 4: 30, 6: 17, 8: 15, 16: 7}
"""Co-resident clusters of this many CTAs on the SMs of all GPCs (``Target.gpc_sms``), which differ in size
(``cudaOccupancyMaxActiveClusters``, benchmarks/results/cute/nvidia-h200.json)."""
SECTOR_BYTES = 32
WALKED = 128 * 256
LARGE_CLUSTER, IN_WHOLE_GROUPS = 4, 10 / 11
"""Other GPUs have GPCs as well: clusters of this many CTAs and more reach this fraction of the SMs, as on those SMs."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Predicted microseconds of one tile, and the waves of tiles."""

    k_tile_us: float
    epilogue_us: float
    waves: int
    tiles: int
    total_us: float
    finish_us: float = 0.0
    """Part of the total: the kernel after the matmul."""
    prepare_us: float = 0.0
    """Part of the total: the kernels before the matmul."""
    cached: bool = False
    """True if rows stay in the L2 cache until that kernel reads them."""


def predicted_time(
    plan: GemmPlan, bytes_moved: int, target: Target, rates: Rates | None = None, element_ops: int = 0
) -> Timing:
    """Return the time of one launch of `plan`, which moves ``bytes_moved`` from and to global memory.

    The epilogue has ``element_ops`` instructions for each element of D, which rates of rows have in their passes."""
    cached = stays_cached(plan, target)
    usual = RATES if plan.problem.groups is None else GROUP_RATES
    rates = rates or (ROW_RATES if plan.by_rows else CACHED_RATES if cached else usual)
    ops = 0 if plan.by_rows or plan.finish is not None else element_ops
    cool = _at_rate(plan, bytes_moved, target, rates, rates.matrix, ops)
    warm = cool.total_us / (cool.total_us + rates.sustained_us)
    time = _at_rate(plan, bytes_moved, target, rates, rates.matrix + (rates.sustained - rates.matrix) * warm, ops)
    finish_us = _finish_us(plan.finish, target, FINISH_CACHED if cached else FINISH_MEMORY)
    prepare_us = _prepare_us(plan.prepare, target)
    total_us = prepare_us + time.total_us + finish_us
    return dataclasses.replace(time, finish_us=finish_us, prepare_us=prepare_us, total_us=total_us, cached=cached)


def _prepare_us(prepare: Prepare | None, target: Target) -> float:
    """Return the time of the kernels before the matmul, which are memory-bound."""
    time = 0.0
    for prepared in prepare.operands if prepare is not None else ():
        assert prepare is not None
        width, columns = itemsize(prepared.copied.sources[0].dtype), prepared.columns
        if prepared.totals:
            columns = prepare.problem.k
        else:
            width += itemsize(prepare.problem.operand_dtype)
        moved = prepared.rows * columns * prepared.batches * width
        moved_us = moved / (PREPARE_MEMORY * target.bandwidth_gb_per_s * 1e3)
        time += max(PREPARE_LEAST_US, PREPARE_LAUNCH_US + moved_us)
    return time


def stays_cached(plan: GemmPlan, target: Target) -> bool:
    """Return whether stored rows, at most half of the L2 cache, stay there until they are read."""
    finish = plan.finish
    if not isinstance(finish, RowFinish) or plan.unit != "wgmma":
        return False
    return 2 * finish.problem.m * finish.pitch * itemsize(finish.dtype) <= target.l2_bytes


def _finish_us(finish: Finish | None, target: Target, memory: float) -> float:
    """Return the time of the kernel after the matmul, which is memory-bound.

    Rows that do not fit in registers are read again by each pass, from the L2 cache.
    """
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


def _at_rate(plan: GemmPlan, bytes_moved: int, target: Target, rates: Rates, matrix: float, element_ops: int) -> Timing:
    resident = resident_clusters(plan.ctas, target) * plan.ctas_per_sm
    pieces = expected_pieces(plan)
    busy = min(pieces * plan.ctas, resident * plan.ctas // plan.ctas_per_sm)
    share = target.bandwidth_gb_per_s * 1e3 / target.num_sms
    l2 = share * min(rates.l2_of_few, rates.l2 * target.num_sms / busy)
    multiplied, loaded = _flops(plan) / _rate(plan, target, rates, matrix), _loaded(plan, counts(plan), rates) / l2
    multiplied /= rates.split if plan.parts > 1 else 1.0
    shared_us = rates.shared_us if plan.parts > 1 and plan.ctas > plan.splits else 0.0
    # CTAs that share an SM share its unit and its loads, and wait at the same time.
    k_tile_us = max(
        plan.ctas_per_sm * max(multiplied + shared_us, loaded),
        rates.k_tile_us + shared_us,
        _slot_us(plan, rates),
        _copied_us(plan, rates),
    )
    k_tile_us = _together(k_tile_us, rates.words_us, 3) if in_fragments(plan) else k_tile_us
    whole_us, whole_waves = _whole_tiles_us(plan, target, rates, matrix, element_ops), plan.whole_tiles // resident
    waves = -(-(pieces - plan.whole_tiles) // resident)
    epilogue_us = _epilogue_us(plan, share, l2, rates) + (rates.added_us if plan.sliced else 0.0)
    epilogue_us += _computed_us(plan, target, element_ops)
    tile_us = -(-plan.k_tiles // plan.parts) * k_tile_us
    tile_us *= _share_of_k(plan)
    tile_us += _drawn_us(plan, rates) if draws_in_loop(plan) else 0.0
    if plan.teams > 1 or (plan.unit == "tcgen05" and plan.accumulator_stages > 1):
        body = rates.fill_us + waves * max(tile_us, epilogue_us + rates.turn_us) + epilogue_us
    else:
        body = rates.fill_us + waves * (tile_us + epilogue_us + rates.tile_us) + whole_waves * whole_us
    moved = bytes_moved + (_read_together(plan) * rates.read_together if waves == 1 else 0.0)
    stored = plan.problem.repeats * plan.problem.m * plan.problem.n * _written(plan)
    moved += min(stored, bytes_moved) * (rates.memory / rates.memory_stored - 1)
    memory_us = moved / (share * min(rates.memory * target.num_sms, rates.memory_of_few * busy))
    memory_us /= rates.sliced_memory if plan.sliced else 1.0
    return Timing(
        k_tile_us=k_tile_us,
        epilogue_us=epilogue_us,
        waves=whole_waves + waves,
        tiles=plan.tiles * plan.cluster_tiles[0] * plan.cluster_tiles[1],
        total_us=rates.launch_us + _together(body, rates.fill_us + memory_us, rates.overlap),
    )


def _computed_us(plan: GemmPlan, target: Target, element_ops: int) -> float:
    """Return the time of an epilogue's instructions, which an SM issues for as many elements as it multiplies and adds in
    fp32 (measurement ``epilogue_instructions``)."""
    elements_per_us = target.fp32_tflops * 1e6 / (2 * target.num_sms)
    return plan.ctas_per_sm * math.prod(plan.cta_tile) * element_ops / plan.splits / elements_per_us


def _whole_tiles_us(plan: GemmPlan, target: Target, rates: Rates, matrix: float, element_ops: int) -> float:
    """Return the time of a tile with all of K, where clusters split those of the last wave alone; otherwise 0."""
    if not plan.whole_tiles:
        return 0.0
    whole = _at_rate(dataclasses.replace(plan, grid_splits=1, whole_tiles=0), 0, target, rates, matrix, element_ops)
    return plan.k_tiles * whole.k_tile_us + whole.epilogue_us + rates.tile_us


def _share_of_k(plan: GemmPlan) -> float:
    """Return the K tiles of a tile on average, as a share of all: half of those that end with tiles, or those of a group of
    average size, of which the last one is half full."""
    ends = plan.problem.ends
    if ends is None:
        return 1.0
    return 0.5 if ends.groups is None else max(1.0, plan.k_tiles / ends.groups.size + 0.5) / plan.k_tiles


def _read_together(plan: GemmPlan) -> int:
    """Return the bytes of the operands that several clusters read; 0 for groups of rows."""
    problem = plan.problem
    if problem.groups is not None:
        return 0
    along_m, along_n = plan.work
    lines = problem.m * (along_n > 1) + problem.n * (along_m > 1)
    repeats = 1 if problem.ends is not None and problem.ends.groups is not None else problem.repeats
    return repeats * lines * problem.k * itemsize(problem.operand_dtype)


def expected_pieces(plan: GemmPlan) -> int:
    """Return the work items of the tile loop. Of groups of rows, whose sizes only the device knows, they are those of even
    groups: the last tile of a group is half full on average, and each group has one at least."""
    groups = plan.problem.groups
    if groups is None or groups.rows is not None:
        return plan.pieces
    rows, (most, columns) = plan.tile[0] * plan.cluster_tiles[0], plan.work
    along_m = -(-plan.problem.m // rows) + groups.size // 2
    return min(most, max(groups.size, along_m)) * columns


def _slot_us(plan: GemmPlan, rates: Rates) -> float:
    """Return the least time of a K tile from the cluster's CTAs, the pipeline stages and rows between lines; unknown for
    tcgen05."""
    ctas = plan.cluster[1]
    if plan.unit == "tcgen05":
        return 0.0
    return max(rates.ring_us / plan.ab_stages, rates.slices_us * ctas * ctas, _crossed_us(plan, rates))


def _crossed_us(plan: GemmPlan, rates: Rates) -> float:
    """Return the least time of a K tile from rows that lie in two lines of the L2 cache."""
    if plan.finish is not None or not rates.crossed_us:
        return 0.0
    numbers = counts(plan)
    sides = (("a", numbers.a_stage_bytes), ("b", numbers.b_stage_bytes))
    crossing = sum(stage for side, stage in sides if crosses_lines(plan.whole, side))
    return plan.ctas_per_sm * crossing / SWIZZLE_BYTES * rates.crossed_us


def _copied_us(plan: GemmPlan, rates: Rates) -> float:
    """Return the least time of a K tile from the warps that copy operands."""
    started = 0.0
    for copied in past_registers(plan):
        walk = granule_walk(plan, copied)
        each_us = rates.spread_granules_us if copied.lines_are_contiguous else rates.granules_us
        started += each_us * walk.lines * walk.granules / WARP_THREADS
    loaded = [copied for copied in through_registers(plan) if not is_raw(plan, copied)]
    if loaded:
        return max(started, rates.copied_us, sum(_sectors(plan, copied) for copied in loaded) * rates.scattered_us)
    return max(started, _converted_us(plan, rates)) if raw_operands(plan) else started


def _sectors(plan: GemmPlan, copied: Copied) -> float:
    """Return the sectors of a K tile of an operand's sources of which no two elements are adjacent in memory."""
    elements, found = copied_lines(plan, copied) * plan.tile[2], 0.0
    for source in copied.sources:
        near = min((stride for stride in (source.stored_pitch, source.k_pitch) if stride), default=0)
        found += elements * min(1.0, near * itemsize(source.dtype) / SECTOR_BYTES) if near > 1 else 0.0
    return found


def _converted_us(plan: GemmPlan, rates: Rates) -> float:
    """Return the least time of a K tile with raw tiles: of the instructions that convert them, or of shared memory.

    Shared memory holds each raw tile and each operand: both are written and read, operands by each warpgroup.
    """
    numbers, elements, moved = counts(plan), 0, 0
    for copied in raw_operands(plan):
        elements += copied_lines(plan, copied) * plan.tile[2]
        moved += 2 * raw_bytes(plan, copied)
    moved += 2 * numbers.a_stage_bytes + (1 + plan.warpgroups) * numbers.b_stage_bytes
    shared_us = moved / rates.shared_bytes_per_us
    if not plan.converts:
        return max(rates.raw_us + elements * rates.converted_us, shared_us)
    if plan.sliced:
        return max(rates.slice_us / slices(plan), plan.ctas_per_sm * max(elements * rates.sliced_us, shared_us))
    issued_us = elements * rates.issued_us
    return max(rates.fragment_us + elements * rates.fragments_us, plan.ctas_per_sm * max(issued_us, shared_us))


def _together(one: float, other: float, exponent: float) -> float:
    longer, shorter = max(one, other), min(one, other)
    return longer * (1 + (shorter / longer) ** exponent) ** (1 / exponent)


def resident_clusters(ctas: int, target: Target) -> int:
    """Return the co-resident clusters of ``ctas`` CTAs, with one CTA per SM."""
    known = ACTIVE_CLUSTERS.get(ctas) if target.has("wgmma") else None
    if known is None:
        sms = int(target.num_sms * IN_WHOLE_GROUPS) if ctas >= LARGE_CLUSTER else target.num_sms
        return max(1, sms // ctas)
    return max(1, known * target.num_sms // sum(target.gpc_sms))


def crosses_lines(problem: GemmProblem, side: str = "a") -> bool:
    """Return whether TMA loads parts of rows of A, or of B, that begin between lines of the L2 cache. Rows of two lines are
    loaded whole."""
    elements = problem.a_pitch if side == "a" else problem.b_pitch
    pitch = elements * itemsize(problem.operand_dtype) // per_byte(problem.operand_dtype)
    known = f"pitch_{side}" not in problem.runtime and problem.copy_of(side) is None
    return known and pitch > 2 * SWIZZLE_BYTES and pitch % SWIZZLE_BYTES > 0


def _flops(plan: GemmPlan) -> int:
    """Return the operations of a K tile: the average of those of terms that add to a part of the accumulators."""
    (rows, columns), terms = plan.cta_tile, 1 + len(plan.problem.terms)
    matmuls = plan.products * terms - len(plan.problem.absent)
    return 2 * rows * columns * plan.tile[2] * per_byte(plan.problem.operand_dtype) * matmuls // terms


def _rate(plan: GemmPlan, target: Target, rates: Rates, matrix: float) -> float:
    """Return the MMA rate of one SM, in operations per microsecond."""
    unit = "tf32" if plan.problem.operand_dtype == "float32" else plan.problem.operand_dtype
    rate = matrix * target.matrix_tflops_for(unit) * 1e6 / target.num_sms
    rate *= rates.promoted if plan.promote else 1.0
    rate *= rates.awaited if plan.promote and plan.promote_k_tiles * plan.accumulator_stages == 1 else 1.0
    return rate if plan.teams > 1 else rate * rates.cooperative


def _loaded(plan: GemmPlan, numbers: Counts, rates: Rates) -> float:
    """Return the effective bytes of a K tile after multicast: more where rows of a tile lie in two lines of the L2 cache."""
    plain = plan.finish is None  # rows in memory were not measured
    a, b = float(numbers.a_stage_bytes), float(numbers.b_stage_bytes)
    a *= rates.crossed if plain and crosses_lines(plan.whole) else 1.0
    b *= rates.crossed if plain and crosses_lines(plan.whole, "b") else 1.0
    for copied in raw_operands(plan):
        operand = a if copied.operand == "a" else b // plan.products
        saved = operand - raw_bytes(plan, copied)
        a, b = (a - saved, b) if copied.operand == "a" else (a, b - saved)
    shared = (1 - 1 / numbers.a_multicast) * a + (1 - 1 / numbers.b_multicast) * b
    return a + b - rates.multicast * shared


def _written(plan: GemmPlan) -> int:
    """Return the bytes that an element of the accumulators is stored as."""
    return sum(itemsize(each.dtype) for each in plan.problem.matrices)


def _drawn_us(plan: GemmPlan, rates: Rates) -> float:
    """Return the time of the random numbers of a tile, which comparisons read, as those of dropout."""
    each_us = rates.looped_us if draws_in_loop(plan) else rates.drawn_us
    return plan.ctas_per_sm * math.prod(plan.cta_tile) * each_us * len(plan.problem.epilogue.of_kind("uniform"))


def _epilogue_us(plan: GemmPlan, share: float, l2: float, rates: Rates) -> float:
    """Return the time of an epilogue: its stores and loads, which CTAs that split K share, and their exchange of
    partials.

    Clusters that split K each store their partials, and the last one loads all of them.
    """
    rows, columns = plan.cta_tile
    read = (each for kind in ("exact", "strided") for each in plan.problem.epilogue.of_kind(kind))
    exact = sum(itemsize(each.dtype) for each in read)
    sums = rows * columns * SUM_BYTES / plan.splits
    written = _written(plan)
    time = plan.ctas_per_sm * rows * columns * (written + exact) / plan.splits / (rates.stored * share)
    for output in plan.problem.outputs_of("strided"):
        element_us = rates.line_us if stores_lines(plan, output) else rates.strided_us
        time += plan.ctas_per_sm * rows * columns * element_us / plan.splits
    for output in plan.problem.outputs_of("exact"):
        if plan.epilogue_n * itemsize(output.dtype) < SECTOR_BYTES and not output.turned:
            time += plan.ctas_per_sm * rows * (columns // plan.epilogue_n) * rates.narrow_us / plan.splits
    time += 0.0 if draws_in_loop(plan) else _drawn_us(plan, rates)
    if plan.has_residual:
        before = 0 if plan.teams > 1 else plan.residual_stages  # sub-tiles that arrive during the mainloop
        time = max(time, max(0, plan.subtiles - before) * rates.residual_us / plan.residual_stages)
    if plan.cluster[1] > 1:
        time += rates.exchange_us * plan.cluster[1] * max(plan.problem.epilogue.levels)
    time += rates.walk_us * plan.ctas_per_sm * max(plan.problem.epilogue.levels) * rows * columns / WALKED
    if plan.splits > 1:
        time += rates.split_us * plan.splits + 2 * sums * (plan.splits - 1) / l2
    if plan.grid_splits > 1:
        time += rates.workspace_us + rates.part_us * plan.grid_splits + sums * (1 + plan.grid_splits) / l2
    return time
