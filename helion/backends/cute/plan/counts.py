"""Counts that both sides of a pipeline share, computed by one function of the plan."""

from __future__ import annotations

import functools

from ...._support.records import dataclass
from .copied import (
    CHUNK_BYTES,
    CONVERTED_BYTES,
    COPY_WARPS,
    MAX_RAW_STAGES,
    MAX_TURN_BYTES,
    RAW_BYTES,
    SLICED_BYTES,
    SLICED_STAGES,
    Copied,
    CopySource,
)
from .dtypes import itemsize, per_byte
from .records import LOADING_WARPS, SUM_BYTES, SWIZZLE_BYTES, WARP_THREADS, WGMMA_ROWS, GemmPlan, GemmProblem
from .reductions import exchanges
from .refusal import Refusal
from .scales import ATOM_BLOCKS, ATOM_BYTES, ATOM_COLUMNS, ATOM_LINES

SWIZZLED_LINES = 8
"""Lines of the pattern of a swizzle, which repeats after them."""
ROW_SLOTS = 2
"""Stages of row exchanges: CTAs with the result of one exchange may begin the next while others still read."""


@dataclass(frozen=True, kw_only=True)
class PipelineCounts:
    """Counts of one pipeline of ``stages`` stages. Transaction bytes are those of one full barrier per phase."""

    stages: int
    full_arrivals: int
    empty_arrivals: int
    transaction_bytes: int = 0
    spare_words: int = 0
    """Unused barrier words."""

    @property
    def barrier_words(self) -> int:
        """64-bit barriers: one full barrier per stage, and one empty barrier unless no one arrives at it."""
        return (2 if self.empty_arrivals else 1) * self.stages + self.spare_words


@dataclass(frozen=True, kw_only=True)
class Counts:
    a_stage_bytes: int
    """One stage of A in the shared memory of one CTA."""
    b_stage_bytes: int
    """The same for B, of both matmuls where there are two."""
    ab: PipelineCounts
    accumulator: PipelineCounts | None
    residual: PipelineCounts | None
    """One stage holds a sub-tile of every residual."""
    raw: PipelineCounts | None
    """One stage holds a K tile of the source of each copied operand that TMA loads."""
    parts: PipelineCounts | None
    """One stage holds the partials of every other CTA that shares K, for all sub-tiles that this CTA stores. Its bytes
    are those of one such sub-tile."""
    parts_stage_bytes: int
    rows: PipelineCounts | None
    """One stage holds the results of all CTAs of a row; its bytes are those of one reduction. There are no empty
    barriers. A CTA that fills a stage has completed the exchange before, which each CTA sent after it had read the
    stage. With one stage, it has received K tiles of A and B into stages that all CTAs released after they had read it.
    """
    rows_stage_bytes: int
    """The bytes of the exchange with the most reductions. The stage of a joint exchange has the bytes of two separate
    stages, because memory is predicted from facts that do not know the choice."""
    a_multicast: int
    """CTAs of the cluster that share one load of an A tile: those along N, or one."""
    b_multicast: int
    """CTAs, or pairs, that read one B tile: those along M."""
    consumer_threads: int
    """Threads of the barrier among the epilogue warps."""
    tensor_memory_threads: int
    """Threads of the tensor-memory barrier: the epilogue warps and the MMA warp."""
    tensor_memory_columns: int


@functools.lru_cache(maxsize=1024)
def counts(plan: GemmPlan) -> Counts:
    """Return the counts of `plan`."""
    rows, columns = plan.cta_tile
    a_bytes = 0 if plan.converts else rows * plan.tile[2] * plan.operand_bytes
    b_bytes = columns * plan.products // plan.ctas_per_mma * plan.tile[2] * plan.operand_bytes
    a_multicast, b_multicast = plan.cluster[1] if plan.shares_a else 1, plan.cluster_tiles[0]
    sharers = a_multicast + b_multicast - 1
    tcgen05 = plan.unit == "tcgen05"
    row_bytes = plan.cluster[1] * rows * SUM_BYTES
    slots = 1 if plan.joins else ROW_SLOTS
    parts_bytes = (plan.splits - 1) * rows * plan.epilogue_n * SUM_BYTES
    return Counts(
        a_stage_bytes=a_bytes,
        b_stage_bytes=b_bytes,
        ab=PipelineCounts(
            stages=plan.ab_stages,
            full_arrivals=full_arrivals(plan, copy_warps(plan) // turns(plan)),
            # wgmma: every warp that reads the stage, of every CTA that reads this CTA's loads; tcgen05: one commit per CTA or
            # pair.
            empty_arrivals=sharers if tcgen05 else sharers * stage_readers(plan),
            transaction_bytes=_bytes_by_tma(plan, a_bytes, b_bytes) * plan.ctas_per_mma,
        ),
        accumulator=PipelineCounts(
            stages=plan.accumulator_stages, full_arrivals=1, empty_arrivals=plan.consumer_warps * plan.ctas_per_mma
        )
        if tcgen05
        else None,
        residual=_residual_counts(plan) if plan.has_residual else None,
        raw=_raw_counts(plan) if raw_operands(plan) else None,
        parts=PipelineCounts(
            stages=1,
            full_arrivals=1,
            empty_arrivals=(plan.splits - 1) * plan.consumer_warps,
            transaction_bytes=parts_bytes,
        )
        if plan.splits > 1
        else None,
        parts_stage_bytes=parts_bytes,
        rows=PipelineCounts(
            stages=slots,
            full_arrivals=1,
            empty_arrivals=0,
            transaction_bytes=row_bytes,
            spare_words=ROW_SLOTS - slots,
        )
        if exchanges(plan) and plan.cluster[1] > 1
        else None,
        rows_stage_bytes=ROW_SLOTS // slots * row_bytes * max(map(len, exchanges(plan)), default=0),
        a_multicast=a_multicast,
        b_multicast=b_multicast,
        consumer_threads=plan.consumer_warps * WARP_THREADS,
        tensor_memory_threads=(plan.consumer_warps + 1) * WARP_THREADS if tcgen05 else 0,
        tensor_memory_columns=_columns(scale_columns(plan) + plan.ab_stages * micro_columns(plan)) if tcgen05 else 0,
    )


def shares_rows(problem: GemmProblem) -> bool:
    """Return whether all matmuls of a batch have one A, so that tiles of the same rows follow each other."""
    return problem.batch is not None and problem.groups is None and not any(problem.batch_pitches("a"))


def least_stages(plan: GemmPlan) -> int:
    """Return the fewest stages of A and B: two, those of two accumulators that take turns, or as many for each slice of K."""
    if plan.sliced:
        return -(-plan.ab_stages // slices(plan)) * slices(plan)
    return 2 * plan.promote_k_tiles if plan.unit == "wgmma" and plan.accumulator_stages > 1 else 2


def scale_columns(plan: GemmPlan) -> int:
    """Return the first column of tensor memory after the accumulators."""
    return plan.accumulator_stages * plan.sum_columns


def micro_atoms(plan: GemmPlan) -> tuple[int, int]:
    """Return the atoms of scales of a stage that the matrix unit takes: of rows and of columns."""
    scales = plan.problem.scales
    if scales is None or not scales.micro:
        return 0, 0
    along_k = -(-plan.tile[2] // (scales.k * ATOM_BLOCKS))
    rows, columns = (-(-side // ATOM_LINES) * along_k for side in plan.cta_tile)
    return rows, columns


def micro_bytes(plan: GemmPlan) -> int:
    """Return the bytes of these scales in shared memory, for a stage."""
    return sum(micro_atoms(plan)) * ATOM_BYTES


def micro_columns(plan: GemmPlan) -> int:
    """Return their columns in tensor memory."""
    return sum(micro_atoms(plan)) * ATOM_COLUMNS


def copied_lines(plan: GemmPlan, copied: Copied) -> int:
    """Return the lines of a copied operand in a stage."""
    return plan.cta_tile[0] if copied.operand == "a" else plan.tile[1]


def chunk_elements(plan: GemmPlan) -> int:
    """Return the elements of a chunk, which a copying thread writes at a time."""
    return CHUNK_BYTES // plan.operand_bytes


def chunks_of_thread(plan: GemmPlan, copied: Copied) -> int:
    """Return the chunks of a stage of a copied operand that each thread writes."""
    return copied_lines(plan, copied) * (plan.tile[2] // chunk_elements(plan)) // copying_threads(plan)


def along_lines(plan: GemmPlan, copied: Copied) -> bool:
    """Return whether elements of neighboring lines are contiguous in shared memory, rather than those along K."""
    return (plan.problem.a_major if copied.operand == "a" else plan.problem.b_major) != "k"


def is_vector(plan: GemmPlan, copied: Copied, source: CopySource) -> bool:
    """Return whether each chunk of a source is contiguous, aligned, and inside the operand or outside as a whole."""
    size, elements = itemsize(source.dtype), chunk_elements(plan)
    extent, step, pitch = plan.problem.k, source.k_pitch, source.pitch
    if along_lines(plan, copied):
        extent, step, pitch = plan.problem.m if copied.operand == "a" else plan.problem.n, pitch, step
    steps = (pitch * size, plan.problem.batch_pitch(copied.operand) * size)
    aligned = all(each % min(elements * size, CHUNK_BYTES) == 0 for each in steps)
    return step == 1 and pitch != 0 and aligned and source.aligned and extent % elements == 0


def elements_of_thread(plan: GemmPlan, copied: Copied, source: CopySource) -> int:
    """Return the elements of a source that each thread loads for a K tile: those that differ."""
    by_item, by_element = varies(plan, copied, source)
    return (chunks_of_thread(plan, copied) if by_item else 1) * (chunk_elements(plan) if by_element else 1)


def varies(plan: GemmPlan, copied: Copied, source: CopySource) -> tuple[bool, bool]:
    """Return whether the elements of a source differ between the chunks of a thread, and within a chunk.

    Threads that go along K first keep their index along K. Those that go along lines keep their lines if their number is
    a multiple of the chunks of a column.
    """
    if along_lines(plan, copied):
        columns = copied_lines(plan, copied) // chunk_elements(plan)
        same_lines = copying_threads(plan) % columns == 0
        return bool(source.k_pitch or (source.pitch and not same_lines)), source.pitch != 0
    if source.k_pitch == 0:
        return source.pitch != 0, False
    return source.pitch != 0 or copied.lines_are_contiguous, True


def copied_registers(plan: GemmPlan) -> int:
    """Return the registers of a copying thread that loads of a K tile fill: elements share one in vectors alone."""
    found = 0
    for copied in through_registers(plan):
        for at, source in enumerate(copied.sources):
            packed = is_vector(plan, copied, source) or (at == 0 and is_raw(plan, copied))
            size = itemsize(source.dtype) if packed else max(4, itemsize(source.dtype))
            found += elements_of_thread(plan, copied, source) * size // 4
    return found


def through_registers(plan: GemmPlan) -> list[Copied]:
    """Return the operands that warps copy through registers."""
    return [each for each in plan.problem.copied if not each.granule and not plan.converts]


def past_registers(plan: GemmPlan) -> list[Copied]:
    """Return the operands that warps copy by cp.async."""
    return [each for each in plan.problem.copied if each.granule]


def is_raw(plan: GemmPlan, copied: Copied) -> bool:
    """Return whether warps read tiles of the first source that TMA loads."""
    return copied.raw and plan.unit == "wgmma"


def raw_operands(plan: GemmPlan) -> list[Copied]:
    """Return the operands of which TMA loads the first source."""
    return [each for each in plan.problem.copied if is_raw(plan, each)]


def raw_bytes(plan: GemmPlan, copied: Copied) -> int:
    """Return the bytes of a K tile of the first source of an operand."""
    dtype = copied.sources[0].dtype
    return copied_lines(plan, copied) * plan.tile[2] * itemsize(dtype) // per_byte(dtype)


def _raw_counts(plan: GemmPlan) -> PipelineCounts:
    size = sum(raw_bytes(plan, copied) for copied in raw_operands(plan))
    in_flight = CONVERTED_BYTES // plan.ctas_per_sm if plan.converts else RAW_BYTES
    stages = max(2, min(MAX_RAW_STAGES, in_flight // size))
    if plan.sliced:
        stages = min(SLICED_STAGES, SLICED_BYTES // plan.ctas_per_sm // size)
    return PipelineCounts(
        stages=whole_rounds(plan, stages),
        full_arrivals=1,
        empty_arrivals=raw_readers(plan, copy_warps(plan)),
        transaction_bytes=size,
    )


def raw_readers(plan: GemmPlan, copying_warps: int) -> int:
    """Return the warps that read a raw tile, given those that copy."""
    return stage_readers(plan) if plan.converts else copying_warps // turns(plan)


def whole_rounds(plan: GemmPlan, stages: int) -> int:
    """Return up to so many stages, of which each always has the same slice of K, or the same group that copies by turns.

    A reader sees the parity of a phase. If others had read the stage before, it could mistake an earlier phase for its own.
    """
    readers = slices(plan) if plan.sliced else turns(plan)
    return max(1, stages // readers) * readers


def stage_readers(plan: GemmPlan) -> int:
    """Return the warps of a CTA that read a stage of operands: all that multiply, or those of a slice of K."""
    return plan.tile[0] // WGMMA_ROWS if plan.sliced else plan.consumer_warps


def in_fragments(plan: GemmPlan) -> bool:
    """Return whether the warps that multiply read A from its stages to registers: the matrix unit takes elements of 32 bits
    that are contiguous along M from there alone."""
    return plan.unit == "wgmma" and plan.operand_bytes == 4 and plan.problem.a_major == "mn"


def slices(plan: GemmPlan) -> int:
    """Return the slices of K, each of warps that multiply K tiles of their own: 64 rows of the tile each."""
    return plan.consumer_warps // stage_readers(plan)


def slice_columns(plan: GemmPlan) -> int:
    """Return the columns that warps with K tiles of their own multiply: half of a tile's if no launch has more."""
    half = plan.tile[1] // 2
    return half if plan.problem.n <= half and "size_n" not in plan.problem.runtime else plan.tile[1]


def slice_values(plan: GemmPlan) -> int:
    """Return the sums of a thread of a warp that multiplies K tiles of its own, for 64 rows."""
    return WGMMA_ROWS * slice_columns(plan) // WARP_THREADS


def loads_while_copying(plan: GemmPlan) -> bool:
    """Return whether the warps that copy are those of the warpgroup that loads, whose first one uses TMA as well."""
    return plan.unit == "wgmma" and bool(past_registers(plan)) and not through_registers(plan) and not plan.has_residual


def copy_warps(plan: GemmPlan) -> int:
    """Return the warps that copy operands."""
    return LOADING_WARPS if loads_while_copying(plan) else COPY_WARPS


def turns(plan: GemmPlan) -> int:
    """Return the groups of copying warps, which take K tiles by turns.

    A group waits for barriers, shared memory and its fence while another one converts.
    """
    if plan.converts:
        return 1
    raw = raw_operands(plan)
    most = MAX_TURN_BYTES // (2 if any(each.tensors[1:] for each in plan.problem.copied) else 1)
    alone = bool(raw) and len(raw) == len(plan.problem.copied)
    return 2 if alone and sum(raw_bytes(plan, copied) for copied in raw) <= most else 1


def copying_threads(plan: GemmPlan) -> int:
    """Return the threads that copy one K tile."""
    return copy_warps(plan) // turns(plan) * WARP_THREADS


def full_arrivals(plan: GemmPlan, copying_warps: int) -> int:
    """Return the arrivals that fill a stage of A and B: one of TMA, one of each warp that copies operands through
    registers, and one of each thread that copies by cp.async."""
    by_tma = (len(plan.problem.copied) < 1 + plan.products) + (WARP_THREADS if micro_bytes(plan) else 0)
    by_warps = copying_warps if through_registers(plan) else 0
    return by_tma + by_warps + (copying_warps * WARP_THREADS if past_registers(plan) else 0)


@dataclass(frozen=True, kw_only=True)
class GranuleWalk:
    """The granules of a stage of ``lines`` lines that each of ``threads`` threads copies by cp.async.

    A line has ``granules``. A thread has ``walks``, each of which goes to every ``step``-th line.
    """

    threads: int
    lines: int
    granules: int
    walks: int
    step: int


def copied_line_step(plan: GemmPlan, copied: Copied) -> int:
    """Return the divisor of the lines of a stage that all threads copy the same number of chunks or granules of."""
    if copied.granule:
        return granule_walk(plan, copied).step
    return copying_threads(plan) * chunk_elements(plan) // plan.tile[2]


def granule_walk(plan: GemmPlan, copied: Copied) -> GranuleWalk:
    """Return the granules of a thread.

    A warp that walks along contiguous lines copies 16 bytes of K of 8 lines at a time: its reads fill sectors, and its
    writes all banks. Others read contiguous granules of a line.
    """
    threads, lines = copy_warps(plan) * WARP_THREADS, copied_lines(plan, copied)
    granules = SWIZZLE_BYTES // copied.granule
    if copied.lines_are_contiguous:
        walks, step = SWIZZLE_BYTES // CHUNK_BYTES * WARP_THREADS // threads, SWIZZLED_LINES
    else:
        at_once = threads // granules
        walks, step = max(1, SWIZZLED_LINES // at_once), max(SWIZZLED_LINES, at_once)
    return GranuleWalk(threads=threads, lines=lines, granules=granules, walks=walks, step=step)


def _bytes_by_tma(plan: GemmPlan, a_bytes: int, b_bytes: int) -> int:
    """Return the bytes of a stage that TMA loads."""
    labels = [each.operand for each in plan.problem.copied]
    a = 0 if "a" in labels else a_bytes
    return a + b_bytes // plan.products * (plan.products - sum(label != "a" for label in labels))


def _residual_counts(plan: GemmPlan) -> PipelineCounts:
    operands = plan.problem.epilogue.of_kind("exact")
    return PipelineCounts(
        stages=plan.residual_stages,
        full_arrivals=1,
        empty_arrivals=plan.consumer_warps,
        transaction_bytes=sum(subtile_bytes(plan, operand.dtype) for operand in operands),
    )


def subtile_bytes(plan: GemmPlan, dtype: str) -> int:
    """Return the bytes of a sub-tile of a residual or an output of `dtype`."""
    return plan.cta_tile[0] * plan.epilogue_n * itemsize(dtype)


@functools.lru_cache(maxsize=4096)
def multicast_masks(plan: GemmPlan, rank: int) -> tuple[int, int]:
    """Return the CTAs of the cluster, as bit masks, that receive the loads of A and of B by CTA `rank`.

    Ranks count the halves of a pair first, then pairs along M, then CTAs along N, then parts of K. Both halves of a
    pair keep their own half of either operand.
    """
    half, pair_m, cta_n = place(plan, rank)
    rows, columns = plan.cluster_tiles
    a = sum(1 << rank_at(plan, half, pair_m, n) for n in (range(columns) if plan.shares_a else (cta_n,)))
    b = sum(1 << rank_at(plan, half, m, cta_n) for m in range(rows))
    first = rank_at(plan, 0, 0, 0, part_of(plan, rank))
    return a << first, b << first


@functools.lru_cache(maxsize=4096)
def place(plan: GemmPlan, rank: int) -> tuple[int, int, int]:
    """Return (half of its pair, tile along M, tile along N) of CTA `rank` in its cluster."""
    pair, half = divmod(rank % (plan.cluster[0] * plan.cluster[1]), plan.ctas_per_mma)
    cta_n, pair_m = divmod(pair, plan.cluster_tiles[0])
    return half, pair_m, cta_n


def part_of(plan: GemmPlan, rank: int) -> int:
    """Return the part of K that CTA `rank` of its cluster multiplies."""
    return rank // (plan.cluster[0] * plan.cluster[1])


def rank_at(plan: GemmPlan, half: int, pair_m: int, cta_n: int, part: int = 0) -> int:
    """Return the rank of a CTA: the inverse of ``place`` and ``part_of``."""
    return half + plan.ctas_per_mma * (pair_m + plan.cluster_tiles[0] * (cta_n + plan.cluster_tiles[1] * part))


def takes_turns(plan: GemmPlan) -> bool:
    """Return whether CTAs that split K take its tiles by turns, so that they read neighboring elements at the same time.

    That is so where clusters split K of one matmul that TMA loads.
    """
    problem = plan.problem
    return plan.grid_splits > 1 and not (problem.copied or problem.scales or problem.terms or problem.ends)


def leaves_cache(plan: GemmPlan, label: str) -> bool:
    """Return whether the lines of an operand that TMA loads leave the L2 cache first: those that CTAs read once, or all at
    the same time.

    Lines that other kernels have written then stay there, and are not written back to make room
    (benchmarks/results/cute/nvidia-h200-few-tiles.jsonl).
    """
    problem = plan.problem
    if takes_turns(plan) and not plan.whole_tiles:
        return True
    if problem.runtime or problem.groups is not None or problem.terms or problem.ends is not None:
        return False
    base = problem.multiplicand(label).base
    return is_read_once(plan, "a" if base == "a" else "b") and all(problem.batch_pitches(label))


def is_read_once(plan: GemmPlan, operand: str) -> bool:
    """Return whether one tile alone reads each line of ``a`` or ``b``."""
    others = plan.work[1] if operand == "a" else plan.work[0]
    return others == 1 and all(plan.problem.batch_pitches(operand))


def k_range(plan: GemmPlan, rank: int, k_tiles: int, grid_part: int = 0, whole: bool = False) -> range:
    """Return the K tiles that CTA `rank` of a cluster multiplies: contiguous ones, or by turns.

    On an H200 contiguous ranges of the CTAs of a cluster are up to an eighth faster than interleaved ones. ``grid_part``
    is the cluster's index among those that split K. A ``whole`` tile is that of one cluster, which has one CTA for each tile.
    """
    if whole:
        return range(k_tiles)
    part = grid_part * plan.splits + part_of(plan, rank)
    if takes_turns(plan):
        return range(part, k_tiles, plan.parts)
    return range(k_tiles * part // plan.parts, k_tiles * (part + 1) // plan.parts)


def row_peers(plan: GemmPlan, rank: int) -> list[int]:
    """Return the ranks of the CTAs that share rows with CTA `rank`, including itself, in the order of columns."""
    half, pair_m, _ = place(plan, rank)
    return [rank_at(plan, half, pair_m, n) for n in range(plan.cluster_tiles[1])]


def block_count(plan: GemmPlan) -> int:
    """Return the number of blocks of K with one scale each."""
    return -(-plan.k_tiles // plan.promote_k_tiles)


def owner(plan: GemmPlan, subtile: int) -> int:
    """Return the part of K whose CTA adds all partials of `subtile` and stores it."""
    return subtile % plan.splits


def _columns(needed: int) -> int:
    """Return allocated tensor-memory columns: a power of two of at least 32."""
    return max(32, 1 << (needed - 1).bit_length())


def check_slices(plan: GemmPlan) -> None:
    """Check that CTAs that share an operand each load whole swizzle atoms: 8 lines of K, or 128 bytes along M or N."""
    rows, columns = plan.cta_tile[0], plan.tile[1] // plan.ctas_per_mma
    for name, extent, sharers, major in (
        ("A", rows, counts(plan).a_multicast, plan.problem.a_major),
        ("B", columns, counts(plan).b_multicast, plan.problem.b_major),
    ):
        atom = 8 if major == "k" else SWIZZLE_BYTES // plan.operand_bytes
        if extent % (sharers * atom):
            raise Refusal(f"{sharers} CTAs cannot load slices of {name}: {extent} lines in atoms of {atom}")


def check_fragments(plan: GemmPlan) -> None:
    """Check a plan whose A has elements of 32 bits that are contiguous along M. Raises ``Refusal``."""
    problem = plan.problem
    if plan.operand_bytes != 4 or problem.a_major == "k":
        return
    several = problem.groups or problem.terms or problem.scales or problem.ends or problem.copied or plan.promote
    if several or plan.products > 1 or not in_fragments(plan):
        raise Refusal(
            f"{problem.names[0]} has elements of 32 bits that are contiguous along M; they are implemented on wgmma for one plain"
            " matmul"
        )
    if plan.teams > 1 or plan.row_atoms > 1 or plan.tile[2] * plan.operand_bytes != SWIZZLE_BYTES:
        raise Refusal(
            f"a tile of {plan.tile} whose A is read to registers; up to {2 * WGMMA_ROWS} rows and {SWIZZLE_BYTES} bytes along K are"
            " implemented, without ping-pong"
        )
