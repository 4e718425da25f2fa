"""Bounds of GEMM tiles, and the number of CTAs that hold a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..._shapes import is_power_of_2
from ...hardware import Target
from .limits import COLUMN_STEP, LEAST_COLUMNS, LEAST_FEW, TCGEN05_ROWS
from .plan.build import MAX_CLUSTER, MAX_ROW_CLUSTER, MAX_SUM_REGISTERS
from .plan.copied import COPY_WARPS, MAX_COPIED_SUMS, MAX_LOADED_REGISTERS
from .plan.dtypes import IMPRECISE_DTYPES, itemsize
from .plan.finish import finishes, turned
from .plan.finish import split as split_rows
from .plan.operands import (
    by_fragments,
    by_gather,
    can_convert,
    can_slice,
    has_steps,
    in_both_majors,
    needs_registers,
    split,
)
from .plan.records import SWIZZLE_BYTES, WARP_THREADS, WGMMA_ROWS, Choice, CopiesIn, GemmProblem, Major
from .plan.refusal import Refusal
from .plan.scales import ATOM_LINES, LONGEST, BlockScales, promoted
from .subtiles import STORE_STAGES, buffers_of, subtile_of

MOST_COLUMNS = 256
#: The minimum and maximum tile extents along M, N and K.
Sides = tuple[tuple[int, int], ...]


def tile_bounds(problem: GemmProblem, target: Target) -> Sides:
    """Return the minimum and maximum extents of a tile along M, N and K."""
    line = SWIZZLE_BYTES // itemsize(problem.operand_dtype)
    a_major, b_major = _majors(problem, target)
    least = LEAST_COLUMNS if b_major == "k" else max(LEAST_COLUMNS, line)
    products = 1 + len(problem.epilogue.of_kind("product"))
    most, depth = MOST_COLUMNS // products // least * least, 2 * line if products == 1 else line
    rows = 2 * TCGEN05_ROWS if target.has("tcgen05") else 4 * WGMMA_ROWS
    promotes = target.has("wgmma") and problem.operand_dtype in IMPRECISE_DTYPES and target.fp8_partial_sum > 0
    if promotes or problem.rounded or promoted(problem.scales) is not None:  # two accumulators are live
        most = min(most, MAX_SUM_REGISTERS // products // least * least)
    if products > 2 or (products == 2 and target.has("tcgen05")):
        rows //= 2
    if target.has("wgmma") and can_convert(problem) and problem.n <= LEAST_FEW:
        least = LEAST_FEW
    if needs_registers(problem) and can_convert(problem):
        tallest = 4 if can_slice(problem) and problem.n <= LEAST_FEW else 2
        return (WGMMA_ROWS, tallest * WGMMA_ROWS), (least, 2 * MAX_COPIED_SUMS), (depth, depth)
    in_stages = problem.epilogue.reduces_rows or not suits_memory(problem)
    if problem.copied and in_stages and _rows_turned(problem, target) is None:
        (rows, most), depth = (
            _copied_bounds(problem, (min(rows, 2 * WGMMA_ROWS), most), (WGMMA_ROWS, least), target),
            line,
        )
    fewest = WGMMA_ROWS if a_major == "k" else max(WGMMA_ROWS, line)
    sides = (fewest, max(fewest, rows)), (least, most), (line, depth)
    if problem.scales is not None and problem.scales.micro:
        return (ATOM_LINES, ATOM_LINES), (least, most), (line, line)
    return sides if problem.scales is None else _with_factors(problem.scales, sides)


def suits_memory(problem: GemmProblem) -> bool:
    """Return whether kernels before the matmul can write its copied operands."""
    if not problem.copied:
        return False
    try:
        stored, _ = split(problem)
    except Refusal:
        return False
    return not problem.epilogue.reduces_rows or stored.b_major == problem.b_major


def _copied_bounds(
    problem: GemmProblem, most: tuple[int, int], least: tuple[int, int], target: Target
) -> tuple[int, int]:
    """Return the most rows and columns whose loads, one by one, fit the registers of the copying warps."""
    line = SWIZZLE_BYTES // itemsize(problem.operand_dtype)
    full = [
        (0 if copied.operand == "a" else 1, max(1, itemsize(source.dtype) // 4))
        for copied in problem.copied
        if not copied.granule
        for source in copied.sources
        if source.pitch and source.k_pitch
    ]
    rows, columns = most
    past_registers = all(copied.granule for copied in problem.copied) and not problem.epilogue.of_kind("exact")
    if target.has("wgmma") and not past_registers:
        promotes = problem.operand_dtype in IMPRECISE_DTYPES and target.fp8_partial_sum > 0
        sums = MAX_COPIED_SUMS // (1 + len(problem.epilogue.of_kind("product"))) // (1 + promotes)
        columns = min(columns, 2 * sums)

    def loaded() -> int:
        return sum((rows, columns)[side] * words * line // (COPY_WARPS * WARP_THREADS) for side, words in full)

    while loaded() > MAX_LOADED_REGISTERS[target.has("wgmma") and rows > WGMMA_ROWS] and (rows, columns) != least:
        if rows > least[0] and rows >= columns:
            rows //= 2
        else:
            columns = max(least[1], columns // 2)
    return rows, columns


def column_step(problem: GemmProblem, target: Target) -> int | None:
    """Return the required divisor of a tile's columns: swizzle atoms of B and the step of the matrix units.

    Returns None where columns are powers of two, such as columns that share one scale.
    """
    shared = problem.scales.of("column") if problem.scales is not None else None
    if shared is not None and shared.whole and is_power_of_2(shared.lines):
        return None
    b_major = _majors(problem, target)[1]
    return COLUMN_STEP if b_major == "k" else SWIZZLE_BYTES // itemsize(problem.operand_dtype)


def _majors(problem: GemmProblem, target: Target) -> tuple[Major, Major]:
    """Return the major modes of A and B in shared memory, wherever they are copied."""
    loaded = in_both_majors(problem) if target.has("tcgen05") else None
    if loaded is not None:
        return loaded.a_major, loaded.b_major
    turned = problem.b_major == "k" and suits_memory(problem) and split(problem)[0].b_major != "k"
    return problem.a_major, "mn" if turned else problem.b_major


def _with_factors(scales: BlockScales, sides: Sides) -> Sides:
    """Return bounds no larger than the block that shares one scale in the program."""
    whole = {"row": scales.of("row"), "column": scales.of("column")}
    shared = [each.lines if each is not None and each.whole else None for each in whole.values()]
    return tuple(
        (least, max(least, min(most, bound or most)))
        for (least, most), bound in zip(sides, (*shared, scales.k), strict=True)
    )


def ctas_per_mma(rows: int, target: Target) -> int:
    """Return 2 for a tile with more rows than one CTA has tensor-memory lanes: a pair of CTAs computes it."""
    return 2 if target.has("tcgen05") and rows > TCGEN05_ROWS else 1


def columns_of(problem: GemmProblem, ctas: int, target: Target) -> int:
    """Return the tile columns when ``ctas`` CTAs of a cluster along N share all columns, up to the limit of a CTA."""
    least, most = tile_bounds(problem, target)[1]
    wanted = -(-problem.n // ctas)
    columns = -(-wanted // least) * least
    return columns if problem.epilogue.reduces_rows else min(columns, most)


def row_clusters(problem: GemmProblem, target: Target) -> tuple[int, ...]:
    """Return the powers of two of CTAs along N that can share all columns, each CTA with at least one.

    Whole rows that are reduced have to fit in one cluster. Returns at least one value, even if it has no plan.
    """
    most = tile_bounds(problem, target)[1][1]
    largest = MAX_ROW_CLUSTER if problem.epilogue.reduces_rows else MAX_CLUSTER
    ctas = [1 << bit for bit in range(largest.bit_length())]
    widths = {each: columns_of(problem, each, target) for each in ctas}
    rows = tile_bounds(problem, target)[0][1]
    found = [each for each in ctas if widths[each] <= most and (each - 1) * widths[each] < problem.n]
    return tuple(each for each in found if least_rows(problem, each) <= rows) or (largest,)


def least_rows(problem: GemmProblem, ctas: int) -> int:
    """Return the minimum rows of a tile when each of ``ctas`` CTAs loads a slice of A: 8 lines of K, or 128 bytes along
    M."""
    atom = 8 if problem.a_major == "k" else SWIZZLE_BYTES // itemsize(problem.operand_dtype)
    return max(WGMMA_ROWS, atom * ctas)


def held_by_cluster(problem: GemmProblem, target: Target) -> bool:
    """Return whether a cluster's registers can hold whole rows; always true where no epilogue reduces them."""
    most = tile_bounds(problem, target)[1][1]
    return not problem.epilogue.reduces_rows or problem.n <= MAX_ROW_CLUSTER * most


def lies_in_memory(problem: GemmProblem) -> bool:
    """Return whether rows can stay in global memory for a second kernel."""
    return problem.epilogue.reduces_rows and problem.batch is None and finishes(problem) and not problem.strided


def smallest(
    problem: GemmProblem, whole_rows: bool, target: Target, fixed: Sequence[int | None] = (None, None, None)
) -> Iterator[Choice]:
    """Yield the choices with the smallest footprint; a problem that none of them fits has no plan.

    ``fixed`` are tile extents along M, N and K that the program sets.
    """
    found = [*_smallest(problem, whole_rows, target, fixed)]
    if places_of_copies(problem, target) == ("tma",):
        yield from (replace(choice, copies_in="tma") for choice in found)
        return
    yield from found
    if suits_memory(problem):
        yield from (replace(choice, copies_in="memory") for choice in found)
    if can_convert(problem) and target.has("wgmma"):
        for place in ("registers", *(("slices",) if can_slice(problem) else ())):
            yield from (replace(choice, copies_in=place, tile=(*choice.tile[:2], SWIZZLE_BYTES)) for choice in found)


def places_of_copies(problem: GemmProblem, target: Target) -> tuple[CopiesIn, ...]:
    """Return the places where copied operands can be."""
    in_memory = bool(problem.groups or problem.terms) or has_steps(problem)
    in_memory |= problem.scales is not None or any(copied.is_gathered for copied in problem.copied)
    in_memory |= bool({*problem.runtime} - {LONGEST})
    suiting: dict[CopiesIn, bool] = {
        "shared": not needs_registers(problem) and not in_memory,
        "memory": suits_memory(problem),
        "tma": target.has("tcgen05") and in_both_majors(problem) is not None,
        "registers": target.has("wgmma") and can_convert(problem),
        "slices": target.has("wgmma") and can_slice(problem),
    }
    if suiting["tma"]:
        return ("tma",)
    loaded = by_gather(problem) if target.has("tcgen05") else by_fragments(problem) or _rows_turned(problem, target)
    suiting["tma"] = loaded is not None
    return tuple(place for place, suits in suiting.items() if suits)


def _rows_turned(problem: GemmProblem, target: Target) -> GemmProblem | None:
    """Return the transposed matmul of rows in memory, whose B warps read to registers; None for others."""
    if not problem.copied or not problem.epilogue.reduces_rows:
        return None
    try:
        return turned(split_rows(problem, MOST_COLUMNS, target.smem_per_block_bytes)[0])
    except Refusal:
        return None


def _smallest(problem: GemmProblem, whole_rows: bool, target: Target, fixed: Sequence[int | None]) -> Iterator[Choice]:
    bounds = tile_bounds(problem, target)
    tile = tuple(said or least for said, (least, _) in zip(fixed, bounds, strict=True))
    narrow = LEAST_COLUMNS // 2
    if not whole_rows:
        rows = tile[0]
        pair = ctas_per_mma(rows, target)
        columns = subtile_of(tile[1], narrow)
        yield Choice(
            tile=(rows, tile[1], tile[2]),
            cluster=(pair, 1),
            ctas_per_mma=pair,
            epilogue_n=columns,
            store_stages=buffers_of(tile[1] // columns, STORE_STAGES[0]),
            ab_stages=2,
        )
        return
    for ctas in row_clusters(problem, target) if held_by_cluster(problem, target) else ():
        columns = columns_of(problem, ctas, target)
        rows = fixed[0] or least_rows(problem, ctas)
        yield Choice(tile=(rows, columns, tile[2]), cluster=(1, ctas), epilogue_n=narrow, ab_stages=2)
    if problem.epilogue.reduces_rows:
        yield Choice(tile=(tile[0], tile[1], tile[2]), epilogue_n=narrow, ab_stages=2, rows_in="memory")
